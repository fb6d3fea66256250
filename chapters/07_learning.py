# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 7. How does attention learn?
#
# Nearly every matrix so far was chosen by us or drawn at random. In this chapter you follow one wrong answer backwards
# through the softmax on paper, down to new numbers in $W_Q$. Then you watch a thousand such steps turn evenly spread
# weights into a look-up: an attention layer finds its own matrices, from nothing but questions and right answers.
#
# You need chapters [4](04_self_attention.ipynb) and [6](06_many_heads.ipynb), the softmax's derivative from [chapter
# 3](03_softmax.ipynb#how-far-do-weights-move), and the chain rule. The chapter takes about 30 minutes to read, and 45
# for the exercises. [Going further](#going-further), at the end, takes 16 more minutes. Only the code? Read [the
# backward pass](#the-backward-pass-for-all-queries), [the training loop](#learning-to-look-things-up) and [the four
# checks](#break-it-a-cut-in-the-record).

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. All of one attention block is built: dot product, scaling, softmax, weighted average, projections, positions and heads. This chapter adds gradients, which flow back from the answer to every matrix."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, movable, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=7)

# %% [markdown]
# ## One answer, one gradient
#
# Return to the verb of [chapter 4](04_self_attention.ipynb#queries-keys-and-values). In *dog bites man*, the query of
# *bites*, $(2, 0)$, met the keys of *dog*, *bites* and *man*, $(1, 0)$, $(0, 1)$ and $(2, 0)$, and the verb received a
# blend of their values, $(1, 0)$, $(0, 0)$ and $(1, 1)$:

# %% chapter 4's blend tags=["hide-input", "nbval-check-output"]
import numpy as np
from dotformer.by_hand.attention import (
    scaled_dot_product_attention as attend_by_hand,
)

tokens = ["dog", "bites", "man"]
q = np.array([[2.0, 0]])  # bites looks for something alive
k = np.array([[1.0, 0], [0, 1], [2, 0]])  # alive, action
v = np.array([[1.0, 0], [0, 0], [1, 1]])  # am I alive, am I human

output, weights = attend_by_hand(q, k, v)
print("weights", weights[0].round(3), "  output", output[0].round(3))

# %% [markdown]
# That is mostly the man. But the dog does the biting. The two numbers of a value say *alive* and *human*, so suppose
# that for this one sentence the output should have been $(1, 0)$, alive and not human. A **loss** says how wrong an
# answer is in one number. Here we take half the squared distance between the output $o$ and the right answer:
#
# $$L = \tfrac12 \lVert o - (1, 0) \rVert^2, \qquad \frac{\partial L}{\partial o} = o - (1, 0) = (-0.045,\ 0.768) .$$
#
# This vector of derivatives is the **gradient** of the loss with respect to $o$, for short the gradient *of* $o$. It
# says how fast the loss rises with each number, so to learn we step the other way. For this loss the gradient of $o$ is
# the error itself, because the ½ cancels the 2 of the square: *the second number is too large by 0.768*. The loss
# itself is $\tfrac12 (0.045^2 + 0.768^2) = 0.296$.
#
# We know what is wrong at the output. But training can change only the **parameters**: the entries of $W_Q$, $W_K$ and
# $W_V$. (In this first step we change only $W_Q$.) So the gradient is passed back, from each result to what it was made
# of, until it reaches them. This **backward pass**, the chain rule applied from the end to the start, is called
# **backpropagation**. Here it has four stages: output → weights → scores → query → $W_Q$. Besides the softmax's
# derivative, two facts are enough. In a product $y = a x$ the gradient of $a$ is $x$ times the gradient of $y$. And if
# a number is used twice, its gradients from both uses add up: a small change of it changes the loss in both ways, and
# to first order these changes add.
#
# **Predict first.** Which of the three scores should rise, which should fall, and which hardly matters?
#
# ### Back through the blend
#
# The output is $o = \sum_j w_j v_j$. Raise $w_j$ by a small $\delta$, and the output moves by $\delta \, v_j$. The
# gradient of $o$ says how much each entry of this move counts, so multiply each entry by its gradient, and add: the
# loss changes by $\delta$ times the dot product of $v_j$ and the gradient of $o$. The values are simpler: an entry of
# $v_j$ is multiplied by $w_j$ on its way into $o$, so its gradient is $w_j$ times the gradient of that entry of $o$:
#
# $$\frac{\partial L}{\partial w_j} = \frac{\partial L}{\partial o} \cdot v_j , \qquad \frac{\partial L}{\partial v_j} = w_j \, \frac{\partial L}{\partial o} .$$
#
# The gradient of the weight of *dog* is $-0.045 \cdot 1 + 0.768 \cdot 0 = -0.045$, that of *bites* is 0, and that of
# *man* is $-0.045 + 0.768 = 0.723$. More weight on *man* makes things worse.
#
# ### Back through the softmax
#
# First we measure one gradient, so that we can check the formula later. Raise the scaled score of *man* by 0.1. The
# weights become 0.173, 0.042 and 0.785, the output (0.958, 0.785), and the loss 0.3092 instead of 0.2959. So it rises
# by 0.0133, about 0.13 for each unit of score.
#
# Now in general. Raise the scaled score of *man* by a small $\delta$. Its exponential grows by a fraction $\delta$, so,
# if the sum stayed as it was, its weight would gain $0.768 \, \delta$. But the weights must still sum to 1, so this
# gain is taken back from all three, in proportion to their weights. Per unit, the gain raises the loss by 0.723. Taking
# a unit back, in these proportions, lowers it by the *average* of their gradients, weighted in the same way:
#
# $$0.187 \cdot (-0.045) + 0.045 \cdot 0 + 0.768 \cdot 0.723 = 0.546 .$$
#
# (With the rounded numbers 0.547; from here on we compute with unrounded ones.) So the loss rises by $0.768 \cdot
# (0.723 - 0.546) \, \delta \approx 0.135 \, \delta$. For every score $s_i $ it is the same calculation, with the
# derivatives of [chapter 3](03_softmax.ipynb#how-far-do-weights-move), $w_i - w_i^2$ for its own weight and $-w_j w_i$
# for another one:
#
# $$\frac{\partial L}{\partial s_i} = w_i \frac{\partial L}{\partial w_i} - \sum_j w_j w_i \frac{\partial L}{\partial w_j} = w_i \left( \frac{\partial L}{\partial w_i} - \sum_j w_j \frac{\partial L}{\partial w_j} \right) .$$
#
# So a score is judged by comparison. A step against the gradient lowers it if more weight on its key would be worse
# than average, and raises it if better.
#
# | | dog | bites | man |
# |---|---|---|---|
# | weight $w_j$ | 0.187 | 0.045 | 0.768 |
# | gradient of the weight | −0.045 | 0 | 0.723 |
# | less the average (0.546) | −0.592 | −0.546 | 0.176 |
# | times the weight: gradient of the scaled score | −0.110 | −0.025 | 0.135 |
#
# So the score of *dog* should rise, that of *man* should fall, and *bites* hardly matters. The 0.135 of *man* agrees
# with the nudge (0.133, because a nudge of 0.1 is not tiny). The three gradients sum to 0, because the same number
# added to all scores changes nothing. The formula also says when a score gets little or no gradient:
#
# | case | gradient of the score | because |
# |---|---|---|
# | a key with hardly any weight | nearly 0 | the factor $w_i$ |
# | a key with nearly all the weight | nearly 0 | the average is nearly the gradient of this one weight |
# | all values are equal | 0 | no gradient differs from the average |
#
# So a *saturated* row, whose weights are near 0 and 1, recovers slowly: its scores, and through them $W_Q$ and $W_K$,
# get hardly any gradient. (With an argmax in place of the softmax they would get none, because a small change of a
# score almost never changes which key wins.)
#
# ### Back to query and keys
#
# A scaled score is $s_j = q \cdot k_j / \sqrt{2}$. Its derivative with respect to $q$ is $k_j / \sqrt 2$, and with
# respect to $k_j$ it is $q / \sqrt 2$. Multiply each by the gradient of $s_j$. The query takes part in all three
# scores, so its gradient is a sum:
#
# $$\frac{\partial L}{\partial q} = \frac{1}{\sqrt 2} \sum_j \frac{\partial L}{\partial s_j} k_j , \qquad \frac{\partial L}{\partial k_j} = \frac{1}{\sqrt 2} \frac{\partial L}{\partial s_j} \, q .$$
#
# In numbers, for *dog*, *bites* and *man*:
#
# $$\frac{\partial L}{\partial q} = \frac{1}{\sqrt 2} \bigl( -0.110 \, (1, 0) - 0.025 \, (0, 1) + 0.135 \, (2, 0) \bigr) = (0.113, -0.018) .$$

# %%
d_output = output - [1, 0]  # (1, 2), for the one query
d_weights = d_output @ v.T  # (1, 3)
d_scaled = weights * (d_weights - (weights * d_weights).sum())  # (1, 3)
d_query = d_scaled @ k / np.sqrt(2)  # (1, 2)
print("gradient of the query:", d_query[0].round(3))

# %% tags=["proof"]
nudged, nudged_weights = attend_by_hand(
    q, np.add(k, [[0, 0], [0, 0], [0.1 / 2**0.5, 0]]), v
)
rise = (((nudged - [1, 0]) ** 2).sum() - (d_output**2).sum()) / 2
assert round(rise, 4) == 0.0133
assert nudged_weights[0].round(3).tolist() == [0.173, 0.042, 0.785]
assert nudged[0].round(3).tolist() == [0.958, 0.785]
losses_of = [((o - [1, 0]) ** 2).sum() / 2 for o in (output, nudged)]
assert np.round(losses_of, 4).tolist() == [0.2959, 0.3092]
assert np.allclose(d_output, [-0.045, 0.768], rtol=0, atol=0.0005)

d_weights, d_scaled, d_query = d_weights[0], d_scaled[0], d_query[0]
assert np.allclose(d_weights, [-0.045, 0, 0.723], rtol=0, atol=0.0005)
assert np.allclose(weights[0] @ d_weights, 0.546, rtol=0, atol=0.0005)
assert np.allclose(d_scaled, [-0.110, -0.025, 0.135], rtol=0, atol=0.0005)
assert np.allclose(d_query, [0.113, -0.018], rtol=0, atol=0.0005)
assert abs(d_scaled.sum()) < 1e-15

# %% [markdown]
# ### Back to the matrix, and one step
#
# The query was made as $q = x W_Q$, where $x$ is the word's vector. So
#
# $$\frac{\partial L}{\partial W_Q} = x^\top \frac{\partial L}{\partial q} .$$
#
# Why? The entry in row $a$ and column $b$ of $W_Q$ is multiplied by $x_a$ and added to $q_b$, so its gradient is $x_a$
# times that of $q_b$. All these products form a $3 \times 2$ matrix, the *outer product* of two rows: $x$, with 3
# entries, and the gradient of $q$, with 2.
#
# The vector of *bites* is $(0, 1, 0)$, and $W_Q$ has the rows $(0, 2)$, $(2, 0)$ and $(0, 0)$. So its query *is* row 2
# of $W_Q$, and only this row gets a gradient: $(0.113, -0.018)$. To learn, we subtract from the row its gradient times
# a number, the *learning rate*. We take 1:
#
# $$(2,\ 0) - 1 \cdot (0.113,\ -0.018) = (1.887,\ 0.018) .$$
#
# That is one step of *gradient descent*. Ask again with the new query:
#
# | | before | after |
# |---|---|---|
# | query | (2, 0) | (1.887, 0.018) |
# | scaled scores | 1.414, 0, 2.828 | 1.334, 0.012, 2.668 |
# | weights | 0.187, 0.045, 0.768 | 0.197, 0.053, 0.750 |
# | output | (0.955, 0.768) | (0.947, 0.750) |
# | loss | 0.296 | 0.283 |
#
# Why did the score of *dog* fall, when it should rise? Its key and that of *man* point the same way, so no query can
# raise one score and lower the other. But only differences matter, and the lead of *man* shrank: its score fell by
# twice as much.
#
# Could we have known how far the loss would fall? A small step changes it by about the dot product of gradient and
# step. Our step is minus the gradient times the learning rate, so the loss falls by about the learning rate times the
# squared length of the gradient, here $0.113^2 + 0.018^2 = 0.0131$. It fell by 0.0134. For small steps the prediction
# will serve as [a test of code](#break-it-a-cut-in-the-record).
#
# [Further steps](#keep-going) with all three matrices bring the loss close to 0.

# %% tags=["plot"] mystnb={"image": {"alt": "The path of one query. Above, forwards from left to right: x and W_Q make the query, with the keys the scaled scores, by the softmax the weights, with the values the output, and the loss 0.296. Below, backwards from right to left, the gradients: output -0.045, 0.768; weights -0.045, 0, 0.723; scaled scores -0.110, -0.025, 0.135; query 0.113, -0.018; row 2 of W_Q the same. One step takes that row from 2, 0 to 1.887, 0.018, and the loss from 0.296 to 0.283."}}
from classroom.diagram import Diagram

drawing = Diagram(7.0, 1.9)
steps_of = [
    ("row 2\nof $W_Q$", d_query),
    ("query", d_query),
    ("scaled\nscores", d_scaled),
    ("weights", d_weights),
    ("output", d_output[0]),
    ("loss", []),
]
at = [0.6 + 1.17 * n for n in range(6)]
for n, (label, gradient) in enumerate(steps_of):
    drawing.box(at[n], 1.35, label, 0.8, 0.36)
    numbers = "\n".join(f"{number:.3f}" for number in gradient)
    drawing.text(at[n], 0.42, numbers, color=plots.RED, size=9)
    if n:
        drawing.arrow(
            (at[n - 1] + 0.4, 1.35), (at[n] - 0.4, 1.35), color=plots.BLUE
        )
        drawing.arrow((at[n] - 0.3, 0.85), (at[n - 1] + 0.3, 0.85), color=plots.RED)
for place, what in ((1, "keys"), (3, "values")):
    middle = (at[place] + at[place + 1]) / 2
    drawing.text(middle, 1.72, what, color=plots.GREY, size=10)
    drawing.arrow((middle, 1.63), (middle, 1.42))
step_taken = "(2, 0) → (1.887, 0.018)"
drawing.text(0.2, 1.72, step_taken, color=plots.TEAL, at="left", size=9)
drawing.text(at[5], 1.72, "0.296 → 0.283", color=plots.TEAL, size=9)
plt.show()

# %% [markdown]
# Blue is the computation of the loss, red the backward pass, with the gradient that arrives at each stage, and teal
# what one step changes.

# %% one step, and the loss after it tags=["hide-input"]
w_q = np.array([[0, 2.0], [2, 0], [0, 0]])
x_bites = np.array([[0, 1.0, 0]])  # alive, action, human
w_q -= x_bites.T @ d_query[None]
better, new_weights = attend_by_hand(x_bites @ w_q, k, v)
two_losses = [0.5 * ((o[0] - [1, 0]) ** 2).sum() for o in (output, better)]
print("loss before and after one step:", *np.round(two_losses, 3))
assert np.allclose(w_q[1], [1.887, 0.018], rtol=0, atol=0.0005)
assert np.allclose(two_losses, [0.296, 0.283], rtol=0, atol=0.0005)
assert (
    round(two_losses[0] - two_losses[1], 3) == round(d_query @ d_query, 3) == 0.013
)
new_scores = (x_bites @ w_q) @ k.T / np.sqrt(2)
assert np.allclose(new_scores, [1.334, 0.012, 2.668], rtol=0, atol=0.0006)
assert np.allclose(new_weights[0], [0.197, 0.053, 0.750], rtol=0, atol=0.0006)
assert np.allclose(better[0], [0.947, 0.750], rtol=0, atol=0.0006)
assert round(two_losses[0] - two_losses[1], 4) == 0.0134

# %% tags=["quiz"]
quiz.one_choice(
    "A key got the weight 0.0001, and its value would have been exactly the right answer. How large is the gradient that the softmax passes back to its score?",
    quiz.wrong(
        "Large, since the error is large and this key would make it smaller",
        "That is what one would wish. But the gradient is multiplied by the weight, and 0.0001 times anything moderate is next to nothing.",
    ),
    quiz.right(
        "Next to nothing: it is multiplied by 0.0001",
        "Yes. This is the saturation of chapter 3 at work, and a reason to start with weights that are nearly equal.",
    ),
    quiz.wrong(
        "Zero: only the key with the largest weight is corrected",
        "Every key with a weight above 0 is corrected, unless more weight on it would change the loss exactly as much as the average does: *bites*, with 0.045, was corrected too. A weight of exactly 0 gets none: that of a masked key, or of a score so low that it rounds to 0.",
    ),
    quiz.wrong(
        "As large as every other key's, since the gradients of the scores sum to 0",
        "They do sum to 0, but they are not equal: look at −0.110, −0.025 and 0.135, the gradients of the scaled scores in the example.",
    ),
)

# %% [markdown]
# ## The backward pass, for all queries
#
# Now the pass for a whole layer. Queries share keys, values and matrices. A shared number reaches the loss through
# every query, so its gradient is a sum over them. Take $T$ queries and $S$ keys; row $i$ of $X$ is the vector of word
# $i$:
#
# | one query | all queries | in code | shape |
# |---|---|---|---|
# | $q$ | $Q$ | `query` | $(T, d_k)$ |
# | $k_j$, $v_j$ | $K$, $V$ | `key`, `value` | $(S, d_k)$, $(S, d_v)$ |
# | scaled scores $s_j$ | $Z$ | `scaled` | $(T, S)$ |
# | weights $w_j$ | $A$ | `weights` | $(T, S)$ |
# | output $o$ | $O$ | `output` | $(T, d_v)$ |
#
# We write $dM$, in code `d_…`, for the gradient of a matrix $M$, of the same shape. (Only $d_k$ and $d_v$ are widths.)
# The sign $\circ$ multiplies entry by entry, and $\operatorname{rowsum}$ adds up each row.
# $\operatorname{rowsum}(A \circ dA)$ is [the average from above](#back-through-the-softmax), subtracted from its row of
# $dA$.
#
# | back through | forwards | backwards |
# |---|---|---|
# | blend | $O = AV$ | $dV = A^\top dO$, $\; dA = dO \, V^\top$ |
# | softmax | $A = \operatorname{softmax}(Z)$ | $dZ = A \circ (dA - \operatorname{rowsum}(A \circ dA))$ |
# | scores | $Z = Q K^\top / \sqrt{d_k}$ | $dQ = dZ \, K / \sqrt{d_k}$, $\; dK = dZ^\top Q / \sqrt{d_k}$ |
# | matrix | $Q = X W_Q$ | $dW_Q = X^\top dQ$ |
#
# These are the formulas from above, for all queries at once. Row $j$ of $A^\top dO$, for example, adds up, over all
# queries, the weight of key $j$ times the gradient of that query's output. $dK$ and $dW_Q$ are sums over the queries in
# the same way. $W_K$ and $W_V$ get theirs in the same way, $X^\top dK$ and $X^\top dV$, with the $X$ that keys and
# values were made from. The words get a gradient, too, which the layer hands to the layer below or to the embeddings.
# In self-attention a word is query, key and value at once, so its gradient is a sum of three terms:
# $dX = dQ \, W_Q^\top + dK \, W_K^\top + dV \, W_V^\top$.
#
# In code:
#
# ```python
# d_value = weights.T @ d_output  # (S, d_v)
# d_weights = d_output @ value.T  # (T, S)
# average = (weights * d_weights).sum(axis=-1, keepdims=True)  # (T, 1)
# d_scaled = weights * (d_weights - average)  # (T, S)
# d_query = d_scaled @ key / np.sqrt(d_k)  # (T, d_k)
# d_key = d_scaled.T @ query / np.sqrt(d_k)  # (S, d_k)
# ```

# %% tags=["export", "hide-input"] module="by_hand.gradients"
import numpy as np
from dotformer.by_hand.attention import (
    scaled_dot_product_attention as attend_by_hand,
)
from dotformer.support.shapes import shapes
from jaxtyping import Bool, Float, Real


@shapes
def attention_gradients(
    query: Real[np.ndarray, "*batch T d_k"],
    key: Real[np.ndarray, "*batch S d_k"],
    value: Real[np.ndarray, "*batch S d_v"],
    d_output: Real[np.ndarray, "*batch T d_v"],
    mask: Bool[np.ndarray, "*#batch #T #S"] | None = None,
) -> tuple[
    Float[np.ndarray, "*batch T d_k"],
    Float[np.ndarray, "*batch S d_k"],
    Float[np.ndarray, "*batch S d_v"],
]:
    """Gradients of a loss for query, key and value, from that for the output.

    `mask` and errors are those of `scaled_dot_product_attention`.
    """
    _, weights = attend_by_hand(query, key, value, mask)
    d_value = weights.swapaxes(-1, -2) @ d_output
    d_weights = d_output.astype(float) @ value.swapaxes(-1, -2)
    average = (weights * d_weights).sum(axis=-1, keepdims=True)
    d_scaled = weights * (d_weights - average)
    d_scores = d_scaled / np.sqrt(query.shape[-1])
    return d_scores @ key, d_scores.swapaxes(-1, -2) @ query, d_value


# %% [markdown]
# Is that right? One check needs no calculus: nudge one input up, then down, and divide the difference of the two losses
# by twice the nudge. Comparing this quotient, a **central difference**, with the formula's gradient is called a
# **gradient check**. In the code, `attend_by_hand` is the forward pass, `attention_gradients` is the backward pass
# above as a function, and `d_output` and `d_query` are the gradients found on paper:


# %%
def finite_differences(loss, x, step=1e-5):
    slopes = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += step
        down[index] -= step
        slopes[index] = (loss(up) - loss(down)) / (2 * step)
    return slopes


def loss_of(q, k, v):
    return 0.5 * ((attend_by_hand(q, k, v)[0] - [1, 0]) ** 2).sum()


by_formula = attention_gradients(q, k, v, d_output)
by_difference = [
    finite_differences(lambda x: loss_of(x, k, v), q),
    finite_differences(lambda x: loss_of(q, x, v), k),
    finite_differences(lambda x: loss_of(q, k, x), v),
]
for formula, difference in zip(by_formula, by_difference, strict=True):
    assert np.allclose(formula, difference, rtol=0, atol=1e-10)
assert np.allclose(by_formula[0], d_query)

# %% tags=["proof"]
assert round(max(np.abs(formula).max() for formula in by_formula), 1) == 0.6

# %% [markdown]
# The gradients of all 14 numbers in query, keys and values agree to within $10^{-10}$, and the largest gradient is
# about 0.6. Check in 64-bit floats, as here: [32 bits are too few](#how-small-a-step-in-a-gradient-check). PyTorch's
# own check is `torch.autograd.gradcheck`. Check the words' gradient, $dX$, too: if it lacks two of its three terms,
# $dQ$, $dK$ and $dV$ still pass. A check that passes has compared the backward pass with *your* forward pass, so it
# cannot find a wrong axis or mask in that, nor a wrong label or update: test on new examples, or compare with a
# reference.

# %% [markdown]
# ## Let the machine do it
#
# Nudging takes two forward passes for each number, and formulas for a whole transformer would fill pages. So PyTorch
# does the work, by **automatic differentiation**, or *autograd*:
#
# - During the **forward pass**, which computes the loss, it records the operations on its arrays, which it calls
#   **tensors**. This record is the **computation graph**. It also keeps the numbers that the backward pass needs, for
#   attention $A$, $V$, $Q$, $K$ and $X$, so training takes more memory than a forward pass alone. In long texts $A$ is
#   the largest, with $T \times S$ numbers for each head ([chapter
#   20](20_one_gpu.ipynb#attention-without-the-score-matrix) computes it again instead). Inside `torch.no_grad()`
#   nothing is recorded.
# - `loss.backward()` walks the graph once, from the loss back. Such a walk gives the derivatives of one number with
#   respect to everything before it (**reverse mode**). The walk costs about twice as much as the forward pass, since
#   each matrix product needs two on the backward pass, one for each factor. *Forward mode* starts at one parameter and
#   gives the derivatives of everything after it, so a million parameters need a million walks. (Autograd is exact up to
#   rounding: at each recorded operation it applies that operation's own rule.)
# - Afterwards each tensor made with `requires_grad=True` has its gradient in `.grad` (or `None`, if the loss does not
#   depend on it). `backward()` *adds* to `.grad`, so clear it after each step. If you forget, step 100 follows the sum
#   of a hundred gradients, and no error is raised.

# %%
import torch

tensors = [torch.tensor(array, requires_grad=True) for array in (q, k, v)]
query, key, value = tensors
scaled = query @ key.T / key.shape[-1] ** 0.5
error = scaled.softmax(dim=-1) @ value - torch.tensor([1.0, 0])
(0.5 * error.square().sum()).backward()

for formula, tensor in zip(by_formula, tensors, strict=True):
    assert np.allclose(formula, tensor.grad, rtol=0, atol=1e-10)
print("the query's gradient:", query.grad[0].numpy().round(3))

# %% [markdown]
# These are the numbers found on paper. From here on, models are written in PyTorch, in float32 unless we say otherwise.
# PyTorch calls an axis `dim`. `nn.Linear` multiplies by a matrix and adds a vector, its **bias**; both are parameters,
# so they have `requires_grad=True`.

# %% [markdown]
# ## Learning to look things up
#
# For a single sentence, as above, changing $W_V$ alone is enough: it can make the value of *man* $(1, 0)$, and the
# output is nearly right. So we need a task that cannot be solved without *looking*. The layer is told only which
# answers are right. A note holds five names, each with a digit; a question is a name; the answer is its digit.
#
# > Ada 3, Bo 7, Cleo 1, Dan 3, Eve 9. **Cleo?** 1.
#
# Each entry of the note, such as *Ada 3*, is one token, a vector of 18 numbers: a 1 among the first eight says which of
# eight names, a 1 among the last ten which digit. A question has a name and no digit. The layer has a single head.
# Queries come from the questions, keys and values from the note. After the layer, one linear map turns what each
# question received into ten **logits**, one for each digit, and their softmax gives the model's probabilities. (`draw`
# makes random notes, `as_vectors` their vectors.)

# %% notes and questions as vectors tags=["hide-input"]
from torch import nn
from torch.nn import functional as F

names = ["Ada", "Bo", "Cleo", "Dan", "Eve", "Fay", "Gil", "Hal"]


def as_vectors(who, digits):
    """Names and digits, both (B, 5), as notes (B, 5, 18) and questions."""
    who, digits = F.one_hot(who, 8).float(), F.one_hot(digits, 10).float()
    notes = torch.cat([who, digits], dim=-1)
    questions = torch.cat([who, torch.zeros_like(digits)], dim=-1)
    return notes, questions


def draw(count, generator):
    """Random notes: five of the eight names, and their digits, both (count, 5)."""
    who = torch.rand(count, 8, generator=generator).argsort(dim=1)[:, :5]
    return who, torch.randint(10, (count, 5), generator=generator)


# %% [markdown]
# The layer is [chapter 6's](06_many_heads.ipynb#the-same-as-a-pytorch-module) `MultiHeadAttention`, in the version that
# all models of the book use (folded).

# %% tags=["hide-input", "export"] module="attention"
import math
from typing import Literal

import torch
from dotformer.support.shapes import shapes
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F


@shapes
def scaled_dot_product_attention(
    query: Float[Tensor, "*batch T d_k"],
    key: Float[Tensor, "*batch S d_k"],
    value: Float[Tensor, "*batch S d_v"],
    mask: Bool[Tensor, "*#batch #T #S"] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "*batch T d_v"], Float[Tensor, "*batch T S"]]:
    """Scaled dot-product attention: softmax(Q K^T / sqrt(d_k)) V, and its weights.

    `mask` is True where a query may attend; one that may attend to nothing gets
    zeros. `dropout` is the share of the weights set to 0 before they blend, always:
    pass 0 outside training. After Vaswani and others (2017), equation 1.
    """
    scaled = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is None:
        mask = torch.ones_like(scaled, dtype=torch.bool)
    scaled = scaled.masked_fill(~mask, torch.finfo(scaled.dtype).min)
    weights = scaled.softmax(dim=-1).masked_fill(~mask, 0.0)
    return F.dropout(weights, dropout) @ value, weights


# %% tags=["hide-input", "export"] module="attention"
class MultiHeadAttention(nn.Module):
    """Attention in several heads: project, split, attend, merge, mix.

    Vectors of width D = `d_model`, and H = `num_heads` heads of width D / H; in
    training, a share `dropout` of the weights is dropped. After Vaswani and others
    (2017), section 3.2.2.
    """

    def __init__(
        self, d_model: int, num_heads: int, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"{d_model} columns do not make {num_heads} heads")
        self.d_model, self.num_heads, self.dropout = d_model, num_heads, dropout
        self.w_q = nn.Linear(d_model, d_model, bias)
        self.w_k = nn.Linear(d_model, d_model, bias)
        self.w_v = nn.Linear(d_model, d_model, bias)
        self.w_o = nn.Linear(d_model, d_model, bias)

    @shapes
    def forward(
        self,
        query: Float[Tensor, "*batch T {self.d_model}"],
        key: Float[Tensor, "*batch S {self.d_model}"],
        value: Float[Tensor, "*batch S {self.d_model}"],
        mask: Bool[Tensor, "... #T #S"] | Literal["causal"] | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The output (..., T, D) and, with `need_weights`, weights (..., H, T, S).

        `mask` is True where a query may attend, the same for all heads if H is 1;
        "causal" lets query t attend to keys 0 to t, and needs no matrix.
        """
        causal = isinstance(mask, str)
        if causal and need_weights:
            shape = query.shape[-2], key.shape[-2]
            mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        elif causal:
            mask = None
        if mask is not None and 2 < mask.ndim <= query.ndim:
            raise ValueError("a mask (B, T, S) lacks the heads: use mask[:, None]")
        q = self.split_heads(self.w_q(query))  # (B, H, T, d_k)
        k = self.split_heads(self.w_k(key))  # (B, H, S, d_k)
        v = self.split_heads(self.w_v(value))
        p = self.dropout if self.training else 0.0
        if need_weights:
            heads, weights = scaled_dot_product_attention(q, k, v, mask, p)
        else:  # PyTorch's own, which need not keep the weights
            heads = F.scaled_dot_product_attention(q, k, v, mask, p, causal)
            weights = None
        return self.w_o(self.merge_heads(heads)), weights

    def split_heads(self, x: Tensor) -> Tensor:
        """(..., T, D) -> (..., H, T, d_k)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)

    def merge_heads(self, heads: Tensor) -> Tensor:
        """(..., H, T, d_k) -> (..., T, D)."""
        return heads.transpose(-3, -2).flatten(-2)


# %% tags=["proof"]
from dotformer.by_hand.multihead import multi_head_attention

torch.manual_seed(0)
layer = MultiHeadAttention(d_model=8, num_heads=2, bias=False).double()
x = torch.randn(3, 5, 8, dtype=torch.float64)  # B, T, D
mask = torch.ones(5, 5, dtype=torch.bool).tril()  # True: may attend

matrices = [
    linear.weight.detach().numpy().T
    for linear in (layer.w_q, layer.w_k, layer.w_v, layer.w_o)
]
by_hand, hand_weights = multi_head_attention(
    *[x.numpy()] * 3, *matrices, 2, mask.numpy()
)

theirs = torch.nn.MultiheadAttention(8, 2, bias=False, batch_first=True).double()
with torch.no_grad():
    rows = [layer.w_q.weight, layer.w_k.weight, layer.w_v.weight]
    theirs.in_proj_weight.copy_(torch.cat(rows))
    theirs.out_proj.weight.copy_(layer.w_o.weight)

with torch.no_grad():
    ours, our_weights = layer(x, x, x, mask, need_weights=True)
    fused, _ = layer(x, x, x, mask)
    published, _ = theirs(x, x, x, attn_mask=~mask)  # there, True means: may not

assert np.allclose(by_hand, ours, rtol=0, atol=1e-12)
assert np.allclose(hand_weights, our_weights, rtol=0, atol=1e-12)
assert torch.allclose(ours, fused, rtol=0, atol=1e-12)
assert torch.allclose(ours, published, rtol=0, atol=1e-12)

mask[0] = False  # the first query may attend to nothing
with torch.no_grad():
    for need_weights in (True, False):
        output, _ = layer(x, x, x, mask, need_weights)
        assert (output[:, 0] == 0).all()


# %%
class NoteModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = MultiHeadAttention(d_model=18, num_heads=1)
        self.answer = nn.Linear(18, 10)

    def forward(self, notes, questions):  # (B, 5, 18) each
        received, weights = self.attention(
            questions, notes, notes, need_weights=True
        )  # (B, 5, 18), (B, 1, 5, 5)
        return self.answer(received), weights[:, 0]  # (B, 5, 10), (B, 5, 5)


# %% [markdown]
# The loss is the **cross-entropy**, or *negative log-likelihood*: minus the natural logarithm of the probability that
# the model gave to the right digit. It is 0 for a model that was certain and right, and grows without bound as that
# probability goes to 0: a probability of 0.9 costs 0.11, and one of 0.1 costs 2.30. Why a logarithm? The probabilities
# of independent answers multiply, and so their logarithms add up to one loss. The share of right answers would not do:
# a small change of a parameter almost never changes it, so its gradient is 0 nearly everywhere. (The gradient of the
# cross-entropy [at a logit](#where-does-the-gradient-begin) is the predicted probability, minus 1 if the digit is the
# right one.)
#
# Training repeats four steps:
#
# 1. take a **batch** of sixteen notes, and ask each about all five of its names;
# 2. measure the loss, the mean over these eighty answers;
# 3. pass its gradient back;
# 4. subtract from every parameter its gradient times the learning rate, here 1.
#
# The optimizer takes the fourth step. Ours is `SGD`, *stochastic gradient descent*: each step follows one random batch.
#
# `F.cross_entropy` takes logits and applies the softmax itself; `flatten` makes one list of the eighty questions. One
# step:

# %%
torch.manual_seed(0)
model = NoteModel()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
who, digits = draw(16, torch.Generator().manual_seed(0))  # both (16, 5)

notes, questions = as_vectors(who, digits)  # (16, 5, 18) each
logits, _ = model(notes, questions)  # (16, 5, 10)
loss = F.cross_entropy(logits.flatten(0, 1), digits.flatten())
optimizer.zero_grad()  # forget the gradients of the step before
loss.backward()
optimizer.step()
print(f"loss of the first batch: {loss:.2f}")

# %% [markdown]
# That could have been predicted: logits that are all near 0 give each of ten digits a probability of about 1/10, and
# $-\ln \tfrac{1}{10} = \ln 10 = 2.30$. The rest, 0.03, comes from logits that do not start exactly at 0, and from
# chance.
#
# Now `train` repeats this step a thousand times on a new model, each time with sixteen new notes. There are more than
# five million notes, and training shows only some 16,000, nearly all of them only once, so remembering answers would
# not help: the layer must find out *how* to look.

# %%
shown = torch.tensor([[0, 1, 2, 3, 4]]), torch.tensor([[3, 7, 1, 3, 9]])  # to watch


def weights_of(model):  # for the note to watch: (5, 5)
    with torch.no_grad():
        return model(*as_vectors(*shown))[1][0]


def train(model, steps, seed=0, watch=(), look=weights_of, learning_rate=1.0):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    losses, frames = [], []
    for step in range(steps + 1):
        if step in watch:
            frames.append(look(model))
        who, digits = draw(16, generator)
        logits, _ = model(*as_vectors(who, digits))
        loss = F.cross_entropy(logits.flatten(0, 1), digits.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, frames  # frames: what `look` saw at the steps to watch


# %% a new model, trained tags=["hide-input"]
def new_model(seed=0):
    torch.manual_seed(seed)
    return NoteModel()


steps = [0, 20, 40, 60, 80, 90, 100, 110, 120, 130, 140, 160, 200, 400, 1000]
model = new_model()
losses, frames = train(model, 1000, watch=steps)

# %% [markdown]
# **Predict first.** Which comes first: looking at the right name, or a falling loss? And when all answers are right,
# how large is the weight on the right name?
#
# Then move through the steps below. Each frame shows the attention weights for the note of Ada to Eve (`shown` in the
# code), with questions as rows and tokens as columns in the same order, so the right name is on the diagonal. The layer
# cannot use that: it has no positions.


# %% tags=["plot"]
def around(step):
    """The average loss of some steps before and after."""
    return np.mean(losses[max(0, step - 5) : step + 5])


movable.frames(
    torch.stack(frames),
    queries=[f"{name}?" for name in names[:5]],
    keys=[
        f"{name} {digit}" for name, digit in zip(names, shown[1][0], strict=False)
    ],
    labels=[f"step {step}" for step in steps],
    notes=[f"loss {around(step):.2f}" for step in steps],
)

# %% loss and weight on the right name at six steps tags=["hide-input"]
for step in (0, 80, 100, 120, 140, 1000):
    weight = frames[steps.index(step)].diagonal().mean()
    print(
        f"step {step:4}: loss {around(step):.2f}, weight on the right name {weight:.2f}"
    )

# %% [markdown]
# By step 80 the loss has come down by 0.4, and the weights are nearly as even as at the start. Then, within sixty
# steps, the diagonal appears and the loss drops to almost nothing.
#
# So the loss falls first. Why? For each question, let the *push* be the gradient of the right entry's score with its
# sign reversed: where it is positive, this question alone pushes that score up. The lower panel shows the mean push of
# 1,000 questions about new notes, relative to its largest value, and the mean weight on the right name:


# %% which way the right scores are pushed tags=["hide-input"]
def pushes(model):
    """Of right entries in 200 notes: share pushed up, mean push, mean weight."""
    who, digits = draw(200, torch.Generator().manual_seed(1000))
    attention, (notes, questions) = model.attention, as_vectors(who, digits)
    with torch.no_grad():
        scaled = attention.w_q(questions) @ attention.w_k(notes).mT / 18**0.5
        values = attention.w_v(notes)
    weights = scaled.requires_grad_().softmax(dim=-1)
    logits = model.answer(attention.w_o(weights @ values))
    F.cross_entropy(logits.flatten(0, 1), digits.flatten()).backward()
    push = -scaled.grad.diagonal(dim1=1, dim2=2)  # a step goes against the gradient
    right = weights.diagonal(dim1=1, dim2=2)
    return (push > 0).float().mean().item(), push.mean().item(), right.mean().item()


every = range(0, 201, 5)
_, seen = train(new_model(), 200, watch=every, look=pushes)
upwards, mean_push, on_right = map(np.array, zip(*seen, strict=True))

# %% tags=["plot"] mystnb={"image": {"alt": "Two panels over steps 0 to 200. Above, the loss: from 2.3 it falls slowly to 1.6 at step 100, then quickly, to nearly 0 at 130. Below, the mean push is near 0 until step 20, rises to its largest value at about step 115, and falls again; the weight on the right name stays near 0.2 until step 80 and rises to 0.55 between 100 and 140."}}
figure, (upper, lower) = plt.subplots(2, 1, figsize=(6, 3.8), sharex=True)
upper.plot(np.convolve(losses[:206], np.ones(6) / 6, "valid"), color=plots.INK)
upper.set(ylabel="loss", ylim=(0, 2.6))
lower.plot(every, mean_push / mean_push.max(), color=plots.RED)
lower.plot(every, on_right, color=plots.BLUE)
lower.text(70, 0.8, "mean push", color=plots.RED, ha="right")
lower.text(2, 0.29, "weight on the right name", color=plots.BLUE)
lower.set(xlabel="step", ylabel="share", ylim=(0, 1.08))
figure.align_ylabels()
plt.show()

# %% [markdown]
# Before training the pushes hardly agree: 64 percent are upwards here, 47 and 65 with two other seeds (half would mean
# no agreement). Why? Suppose that the untrained maps ($W_V$, $W_O$ and the one to the logits) happen to turn a 1 into a
# vote for 1, but a 7 into a vote *against* 7. Then looking at Cleo helps in a note with *Cleo 1*, and hurts in one with
# *Cleo 7*. All notes share $W_Q$ and $W_K$, so much of this cancels, and at first no look-up forms. What happens then
# has three parts:
#
# 1. *Values.* $W_V$ and the linear maps after the blend can learn without a look-up. With even weights a question
#    receives the mean of five values. That says which digits are in the note, but not which one was asked for: enough
#    to bet on these instead of all ten. To bet on them, each digit's value must come to raise its own logit.
# 2. *Look-up.* Now looking at Cleo helps with every digit. By step 25 nearly all pushes are upwards, and as the values
#    learn, they grow: from step 20 to 100 the mean push grows thirtyfold. [Her score](#back-through-the-softmax) rises
#    where she is asked for, and what changes in $W_Q$ and $W_K$ for her name adds up from note to note. If Bo happens
#    to have her digit, his score rises, too. But in the next note somebody else has that digit, so only Cleo's own
#    gains add up.
# 3. *Suddenly.* The weight follows late, and then fast. The pushes are weak at first, and presumably queries and keys
#    also speed each other up. A query's gradient is made of differences between keys, because the gradients of the
#    scores sum to 0. A key's gradient is made of queries. While both are small and random, both learn slowly, and as
#    one grows, the other learns faster. [Going further](#which-half-waits-for-which) asks which delays which, values or
#    look-up.
#
# After 1,000 steps the weight on the right name is near two thirds, while all answers are right. A weight is not a
# probability of being right: the linear maps after the blend make a clear answer out of a mixture in which one digit is
# the strongest. Once the loss is near 0, the weight grows only slowly: the answers are right and certain, so the
# gradient at every logit is nearly 0.
#
# Was that luck? Here is that run beside those of the next two seeds, each tested on 2,000 new notes:

# %% three seeds, tested on 2,000 new notes tags=["hide-input"]
print("seed   right answers   right name has most weight   mean weight on it")
for seed in range(3):
    trained = new_model(seed)
    train(trained, 1000, seed=seed)
    who, digits = draw(2000, torch.Generator().manual_seed(100 + seed))
    with torch.no_grad():
        logits, weights = trained(*as_vectors(who, digits))
    right = (logits.argmax(-1) == digits).float().mean()
    looks = (weights.argmax(-1) == torch.arange(5)).float().mean()
    weight = weights.diagonal(dim1=1, dim2=2).mean()
    print(f"{seed:4}{right:16.1%}{looks:29.1%}{weight:20.2f}")
    assert min(right, looks) > 0.999 and 0.6 < weight < 0.75


# %% tags=["proof"]
assert 20 < mean_push[20] / mean_push[4] < 40 and upwards[5] > 0.95
first = [pushes(new_model(seed))[0] for seed in range(3)]
assert np.round(first, 2).tolist() == [0.64, 0.47, 0.65]
for seed in range(3):
    _, [after] = train(new_model(seed), 40, seed=seed, watch=[40], look=pushes)
    assert after[0] > 0.985 and after[2] < 0.25
overflowed = []
for seed in range(20):
    for rate in (1.0, 0.5) if seed in (7, 8, 16) else (1.0,):
        ends, _ = train(new_model(seed), 400, seed=seed, learning_rate=rate)
        overflowed.append((rate, not np.isfinite(ends[-1])))
assert sum(bad for rate, bad in overflowed if rate == 1) == 3
assert not any(bad for rate, bad in overflowed if rate < 1)

# %% [markdown]
# All three models answer every question, with about two thirds of the weight on the right name. But a learning rate of
# 1 is large. With 3 of the 20 seeds from 0 to 19 training **diverges**: the steps grow until the loss is NaN. At 0.5
# these three do not, in 400 steps. (The look-up covers only names seen in training: an unseen name's rows of $W_Q$ and
# $W_K$ get no gradient.)
#
# What did training make of $W_Q$ and $W_K$? Leave the biases aside, and look only at the name in each vector. A name is
# a single 1, so what it adds to a query is one row of $W_Q$, and to a key one row of $W_K$. The first eight rows belong
# to the eight names. So the first eight rows and columns of $W_Q W_K^\top / \sqrt{18}$ are the scaled scores of names
# with names: a row for each name that asks, a column for each name as a key. In the model of seed 0:

# %% tags=["plot"] mystnb={"image": {"alt": "Eight by eight scaled scores of names with names, after training. The diagonal is between 1.7 and 2; all other entries are between minus 0.7 and 0.1. So each name finds itself."}}
with torch.no_grad():
    asking, asked = (
        model.attention.w_q.weight[:, :8],
        model.attention.w_k.weight[:, :8],
    )
    found = (asking.T @ asked / 18**0.5).numpy()
figure, axes = plt.subplots(figsize=(5.4, 4.2), layout="constrained")
plots.score_map(found, names, names, ax=axes)
plt.show()

# %% [markdown]
# Each name scores itself 1.7 to 2, and the others about −0.25 on average, a lead of about 2.1. A softmax depends only
# on differences, so count its own score as 2.1 and the other four as 0: the weight is $e^{2.1} / (e^{2.1} + 4) = 0.67$.

# %% tags=["proof"]
diagonal = np.diagonal(found).mean()
others = (np.sum(found) - 8 * diagonal) / 56
assert 1.95 < diagonal - others < 2.3 and -0.3 < others < -0.2
assert round(math.exp(2.1) / (math.exp(2.1) + 4), 2) == 0.67
assert math.comb(8, 5) * 10**5 > 5e6 and 16 * 1000 == 16_000
at = dict(zip(steps, frames, strict=True))
assert (at[0] - 0.2).abs().max() < 0.02 and (at[80] - 0.2).abs().max() < 0.06
assert losses[0] - np.mean(losses[75:85]) > 0.4
assert at[140].diagonal().min() > 0.5 and np.mean(losses[135:145]) < 0.2
assert found.diagonal().min() > 1.5 and found.diagonal().max() < 2.2
assert (found - 9 * np.eye(8)).max() < 0.3

# %% [markdown]
# ### Are attention weights trained, or labelled?
#
# Neither. Where to look was never labelled: the loss saw only digits. Nor are attention weights trained, though a
# network's *weights* are usually its parameters. Here is everything in the model that training can change:

# %% tags=["nbval-check-output"]
for name, parameter in model.named_parameters():
    print(f"{name:22} {tuple(parameter.shape)}")

# %% [markdown]
# Not one is an attention weight, because attention weights are computed for each note. No shape in the list has a 5 in
# it, so the same parameters can be applied to notes of any length. (In the list, `weight` is PyTorch's name for the
# matrix of an `nn.Linear`, stored transposed, one row for each *output*.)

# %% tags=["proof"]
fresh = new_model()
notes, questions = as_vectors(*shown)
F.cross_entropy(fresh(notes, questions)[0][0], shown[1][0]).backward()
assert fresh.attention.w_k.bias.grad.abs().max() < 1e-7
assert fresh.attention.w_k.weight.grad.abs().max() > 1e-5

# %% tags=["quiz"]
quiz.one_choice(
    "A trained transformer reads one sentence, then a longer one. Which of its numbers are different the second time?",
    quiz.wrong(
        "The matrices $W_Q$ and $W_K$, which adapt to each sentence",
        "They stay. Parameters change in training, by the optimizer's step, and at no other time.",
    ),
    quiz.right(
        "The attention weights, and the size of their matrix",
        "Yes: both are computed from the sentence. The parameters are the same numbers as before.",
    ),
    quiz.wrong(
        "None, since training is over",
        "The parameters are fixed. But queries, keys, scores and weights are results, and each sentence has its own.",
    ),
    quiz.wrong(
        "The number of parameters, to make room for more tokens",
        "No matrix of the layer has the sentence's length in its shape. Look at the list above: 18 and 10, and nowhere a 5.",
    ),
)

# %% [markdown]
# ## Break it: a cut in the record
#
# Suppose the scores get no gradient. `weights.detach()` sees to that: it gives the same numbers without their record, a
# *stop-gradient*. So the backward pass is cut: the values and the maps after the blend still learn, the scores do not.
# (`new_model()` makes the whole model.)


# %%
class CutModel(NoteModel):
    def forward(self, notes, questions):
        attention = self.attention
        _, weights = attention(questions, notes, notes, need_weights=True)
        weights = weights[:, 0].detach()  # the cut
        received = attention.w_o(weights @ attention.w_v(notes))
        return self.answer(received), weights


torch.manual_seed(0)
cut = CutModel()
with torch.no_grad():
    vectors = as_vectors(*shown)
    assert torch.allclose(cut(*vectors)[0], new_model()(*vectors)[0], atol=1e-6)
cut_losses, _ = train(cut, 1000)

# %% tags=["plot"] mystnb={"image": {"alt": "Loss over 1000 training steps. The whole model falls slowly for a hundred steps, and then quickly to 0. The model with the cut falls with it at first and then stays level at about 1.6 for good."}}
figure, axes = plt.subplots(figsize=(6, 3.2))
smooth = np.ones(20) / 20
for run, color, name, height in [
    (losses, plots.BLUE, "whole", 0.12),
    (cut_losses, plots.RED, "with the cut", 1.75),
]:
    axes.plot(np.convolve(run, smooth, "valid"), color=color)
    axes.text(1000, height, name, color=color, ha="right")
axes.axhline(np.log(10), color=plots.GREY, lw=1, ls=":")
axes.text(1000, np.log(10) + 0.05, "$\\ln 10$", color=plots.GREY, ha="right")
axes.set(xlabel="step", ylabel="loss", ylim=(0, 2.6))
plt.show()

# %% [markdown]
# Both models start with the same answers, both losses fall, and no error is raised: from outside, the cut model looks
# like one that learns badly. Its loss stays near 1.6, on a **plateau**: it bets on the digits in the note, and never
# learns which of them was asked for. The best such bet that its linear maps can make costs 1.58
# ([why](#why-does-the-best-bet-cost-that-much)).
#
# The reason:

# %%
dead = [n for n, p in cut.named_parameters() if p.grad is None or not p.grad.any()]
print("no gradient:", *dead)

# %% tags=["proof"]
_, digits = draw(5000, torch.Generator().manual_seed(0))
shares = F.one_hot(digits, 10).float().mean(dim=1)  # of each note
even = [
    F.cross_entropy((factor * shares).repeat_interleave(5, dim=0), digits.flatten())
    for factor in range(1, 20)
]
assert 1.57 < min(even) < 1.59
own_share = shares.gather(1, digits)  # each digit's, (5000, 5)
assert abs(-own_share.log().mean() - 1.35) < 0.01
steepest = 1 + int(np.argmin(even))  # of whole numbers
assert 0.155 < 1 / (1 + math.exp(steepest / 5)) < 0.17  # to five absent digits

whole = new_model()
who, digits = draw(16, torch.Generator().manual_seed(0))
logits, _ = whole(*as_vectors(who, digits))
F.cross_entropy(logits.flatten(0, 1), digits.flatten()).backward()
bias, matrix = (
    p.grad.abs().max()
    for p in (whole.attention.w_k.bias, whole.attention.w_k.weight)
)
assert bias < 1e-5 * matrix  # rounding alone

with torch.no_grad():
    believed = cut(*vectors)[0].softmax(dim=-1)[0]
assert believed[:, [1, 3, 7, 9]].sum(-1).mean() > 0.7
assert len(dead) == 4 and all("w_q" in name or "w_k" in name for name in dead)
assert 1.4 < np.mean(cut_losses[-100:]) < 1.8
assert all(
    p.grad is not None and p.grad.any()
    for name, p in model.named_parameters()
    if name != "attention.w_k.bias"
)

# %% [markdown]
# (Of these four, the bias $b$ of $W_K$ is no evidence of a cut: it adds the same number, $q \cdot b$, to all scores of
# a query $q$, which changes no weight, so its gradient is 0, up to rounding, in a healthy model, too.)
#
# Four checks take only seconds each. Do them before any long training. The cut model passes two of them:
#
# | check | it should | the cut model |
# |---|---|---|
# | the first loss | be near $\ln V$, where $V$ is the number of possible answers (and no longer the values); for ten digits 2.30, and ours was 2.33 | passes |
# | the gradient of every matrix and bias | be there, and, except for that bias, not be 0 in all its entries | fails |
# | one small plain step (SGD), the same batch again, no dropout | lower the loss by about the learning rate times the squared length of the gradient | passes, if parameters without a gradient are skipped |
# | the loss of one small batch, trained on again and again (**overfitting one batch**) | fall to nearly 0 | fails: still near 1.3 after 1,000 steps, where the whole model is below 0.01 |
#
# (For a wrong first loss, see [here](#the-first-number-to-look-at).) A loss that *stays* at $\ln V$ means that the
# model does no better than equal guesses: the gradient is missing, the step far too small, or the labels do not belong
# to the inputs (if, as here, all answers are equally frequent). On a plateau below it the model only bets: it has not
# yet learned the rest, or cannot. A gradient that is missing or all zeros usually means a cut, or a part that nothing
# uses, or at the first step [matrices of zeros](#what-if-matrices-start-at-zero). If the third check fails, the
# learning rate is too large, or else the sign, the update or the gradient is wrong. The cut model passes it, because
# only what has a gradient moves. If the fourth fails at several learning rates, the model cannot get at what it needs:
# the cut one answers the five questions of a note nearly alike.
#
# In the third check the squared length is the sum of the squares of all entries of all parameters' gradients:

# %%
model = new_model()
who, digits = draw(16, torch.Generator().manual_seed(0))


def batch_loss():
    logits, _ = model(*as_vectors(who, digits))
    return F.cross_entropy(logits.flatten(0, 1), digits.flatten())


before = batch_loss()
before.backward()
squared = sum(p.grad.square().sum() for p in model.parameters())
with torch.no_grad():
    for p in model.parameters():
        p -= 0.01 * p.grad  # one plain step
print(f"fell by {before - batch_loss():.6f}, predicted {0.01 * squared:.6f}")

# %% tags=["proof"]
assert abs((before - batch_loss()) / (0.01 * squared) - 1) < 0.02
shares = F.one_hot(digits, 10).float().mean(dim=1)
assert round(-shares.gather(1, digits).log().mean().item(), 2) == 1.25
torch.manual_seed(0)
model = CutModel()  # passes this check
before = batch_loss()
before.backward()
learned = [p for p in model.parameters() if p.grad is not None]
squared = sum(p.grad.square().sum() for p in learned)
with torch.no_grad():
    for p in learned:
        p -= 0.01 * p.grad
assert abs((before - batch_loss()) / (0.01 * squared) - 1) < 0.02
for kind, seed in ((NoteModel, 0), (CutModel, 0)):
    torch.manual_seed(seed)
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(1000):
        loss = batch_loss()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.01 if kind is NoteModel else 1.25 < loss < 1.4

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: Back through a softmax
#
# *Easy, 10 minutes.* Weights were made with a temperature, $w = \operatorname{softmax}(u / \tau)$, from scores $u$.
# Given the weights and their gradient, both $(T, S)$, and $\tau$, return the gradient of $u$.


# %% tags=["exercise"]
def softmax_backward(weights, d_weights, temperature):
    """Gradient for the scores, (T, S), from weights and their gradient (T, S)."""
    ...


# %% tags=["check"]
from dotformer.by_hand.softmax import softmax

rng = np.random.default_rng(0)


def back(w, d, tau):
    return w * (d - (w * d).sum(axis=-1, keepdims=True)) / tau


check_backward = partial(
    checks.check,
    reference=back,
    tolerance=1e-6,
    cases=[
        (weights_of, rng.standard_normal(weights_of.shape), tau)
        for weights_of, tau in (
            (softmax(rng.standard_normal((1, 3))), 2.0),
            (softmax(rng.standard_normal((4, 5))), 0.5),
            (softmax(rng.standard_normal((3, 3))), 4.0),
        )
    ],
    mistakes={
        "the temperature is missing: a score counts only as much as u / tau does": lambda w, d, tau: (
            back(w, d, 1)
        ),
        "you multiply by the temperature; divide": lambda w, d, tau: back(
            w, d, 1 / tau
        ),
        "you leave out the average: a score is judged by comparison": lambda w, d, tau: (
            w * d / tau
        ),
        "the average must be weighted by the weights": lambda w, d, tau: (
            w * (d - d.mean(axis=-1, keepdims=True)) / tau
        ),
        "multiply by the weight at the end": lambda w, d, tau: back(w, d, tau) / w,
        "you average over the queries; each row has an average of its own": lambda w, d, tau: (
            w * (d - (w * d).sum(axis=0, keepdims=True)) / tau
        ),
        "the sign is flipped: this is what to add, not the gradient": lambda w, d, tau: (
            -back(w, d, tau)
        ),
    },
)
check_backward(softmax_backward)


# %% tags=["solution"]
def softmax_backward(weights, d_weights, temperature):
    average = (weights * d_weights).sum(axis=-1, keepdims=True)
    return weights * (d_weights - average) / temperature


verdict = check_backward(softmax_backward)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: All the way to the matrix
#
# *Medium, 15 minutes.* Self-attention of `x` $(T, D)$ with three matrices $(D, D)$ gave an output whose gradient is
# `d_output` $(T, D)$. Return the gradients of the three matrices. `attention_gradients` does most of it.


# %% tags=["exercise"]
def matrix_gradients(x, w_q, w_k, w_v, d_output):
    """Gradients of w_q, w_k and w_v, each (D, D), stacked: (3, D, D)."""
    ...


# %% tags=["check"]
def through(x, w_q, w_k, w_v, d_output):
    return attention_gradients(x @ w_q, x @ w_k, x @ w_v, d_output)


def by_autograd(x, w_q, w_k, w_v, d_output):
    matrices = [torch.tensor(w, requires_grad=True) for w in (w_q, w_k, w_v)]
    query, key, value = (torch.tensor(x) @ w for w in matrices)
    output = F.scaled_dot_product_attention(query, key, value)
    output.backward(torch.tensor(d_output))
    return np.stack([w.grad.numpy() for w in matrices])


check_matrices = partial(
    checks.check,
    reference=by_autograd,
    cases=[
        (
            rng.standard_normal((tokens, width)),
            *rng.standard_normal((3, width, width)),
            rng.standard_normal((tokens, width)),
        )
        for tokens, width in [(3, 2), (4, 4), (3, 3)]
    ],
    mistakes={
        "these are transposed: row i belongs to entry i of x": lambda x, *rest: (
            np.stack([d.T @ x for d in through(x, *rest)])
        ),
        "these are the gradients of queries, keys and values; multiply by x": lambda x, *rest: (
            np.stack(through(x, *rest))
        ),
        "the first two are swapped": lambda x, *rest: np.stack(
            [x.T @ through(x, *rest)[i] for i in (1, 0, 2)]
        ),
    },
)
check_matrices(matrix_gradients)


# %% tags=["solution"]
def matrix_gradients(x, w_q, w_k, w_v, d_output):
    gradients = attention_gradients(x @ w_q, x @ w_k, x @ w_v, d_output)
    return np.stack([x.T @ gradient for gradient in gradients])


verdict = check_matrices(matrix_gradients)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: Where the gradient begins
#
# *Medium, 20 minutes.* A classifier's gradient starts at the cross-entropy. Given logits $(N, V)$ and the indices of
# the right answers $(N)$, return the gradient of the logits, for the *mean* loss. Derive it first: the loss of one row
# is $\ln \sum_j e^{z_j} - z_\text{right}$. You may use `softmax`. (Chapter 3 said that at the output the logarithm
# cures the saturation. Look at your result where the right answer got the probability 0.)


# %% tags=["exercise"]
def cross_entropy_gradient(logits, right):
    """Gradient of the mean cross-entropy for the logits: (N, V)."""
    ...


# %% tags=["check"]
check_gradient = partial(
    checks.check,
    reference=lambda z, right: (softmax(z) - np.eye(z.shape[1])[right]) / len(z),
    cases=[
        (rng.standard_normal((2, 3)), np.array([0, 2])),
        (rng.standard_normal((4, 4)) * 3, np.array([1, 1, 0, 3])),
        (np.array([[1000.0, 0, 0], [0, 0, 0]]), np.array([1, 2])),
    ],
    mistakes={
        "the loss is a mean: divide by the number of rows": lambda z, right: (
            softmax(z) - np.eye(z.shape[1])[right]
        ),
        "the sign is flipped": lambda z, right: (
            (np.eye(z.shape[1])[right] - softmax(z)) / len(z)
        ),
        "you divide by all entries; the mean runs over rows": lambda z, right: (
            (softmax(z) - np.eye(z.shape[1])[right]) / z.size
        ),
        "only the right answer's logit gets a gradient; the others must fall": lambda z, right: (
            (softmax(z) - 1) * np.eye(z.shape[1])[right] / len(z)
        ),
    },
)
check_gradient(cross_entropy_gradient)


# %% tags=["solution"]
def cross_entropy_gradient(logits, right):
    gradient = softmax(logits)
    gradient[np.arange(len(logits)), right] -= 1  # -1 where it got 0: no saturation
    return gradient / len(logits)


verdict = check_gradient(cross_entropy_gradient)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# The error of a wrong answer is passed back by the chain rule. Each value gets its share in proportion to its weight;
# what a score gets depends on its weight, and on how that weight's gradient compares with the average. What arrives at
# the matrices, times the learning rate, is subtracted from them. Nobody labels attention: the matrices learn from the
# answers, and the weights are computed from these matrices for every input.
#
# **Sources.** Backpropagation: [Rumelhart, Hinton and Williams (1986)](https://doi.org/10.1038/323533a0). Attention
# trained by nothing but the task: [Bahdanau, Cho and Bengio (2015)](https://arxiv.org/abs/1409.0473). Autograd in
# PyTorch: [Paszke and others (2019)](https://arxiv.org/abs/1912.01703). Checking the first loss: [Karpathy's recipe
# (2019)](https://karpathy.github.io/2019/04/25/recipe/).
#
# **Next.** [Chapter 8](08_encoder.ipynb) stacks many layers. Residual connections and norms let words and gradients
# pass through all of them, and a small network works on what attention has found.

# %% [markdown]
# ## Going further
#
# Eight points about gradients, masks and initialisation, and short answers. Later chapters repeat what they need of
# them.

# %% [markdown]
# ### Why does the best bet cost that much?
#
# With even weights the model [with the cut](#break-it-a-cut-in-the-record) sees each digit's share of the note, but not
# whose digit it is. If it gave each digit its share as its probability, the loss would be $\ln 5 = 1.61$ when the five
# digits differ, and 1.35 on average, since digits often repeat. For that, the logits would have to be the logarithms of
# the shares, but our linear maps can only make logits that are linear in the shares, and by symmetry the best are in
# proportion to them. The average loss is lowest when each logit is about 8.2 times the share. If the five digits
# differ, their logits are then $8.2/5 = 1.64$ and those of the five others 0, so these absent digits get
# $5/(5 + 5 \, e^{1.64}) = 0.16$ together, though none of them is ever right. A larger factor would leave them less, but
# bet too much on a digit that occurs twice. Averaged over many notes the loss is 1.58. In the field's words: the
# average loss is the **entropy** of the answers given what reaches the output, here 1.35, plus the **Kullback-Leibler
# divergence** of the true probabilities from the model's, here 0.23. While the weights are even, training can lower
# only the second. The look-up lowers the first.

# %% tags=["proof"]
_, many = draw(40_000, torch.Generator().manual_seed(0))
shares = F.one_hot(many, 10).float().mean(dim=1)  # of each digit in its note
bets = {}
for steepness in (7.4, 7.8, 8.2, 8.6, 9.0):
    guess = (steepness * shares).log_softmax(dim=-1)
    bets[steepness] = -guess.gather(1, many).mean().item()
assert min(bets, key=bets.get) == 8.2 and round(bets[8.2], 2) == 1.58
assert round(-shares.log().gather(1, many).mean().item(), 2) == 1.35

# %% [markdown]
# ### The first number to look at
#
# The first loss tells you, before any training, whether a model starts sensibly. Ours was 2.33, near $\ln 10 = 2.30$.
# With $V$ possible answers it should be near $\ln V$. ($e$ to the power of the loss is the *perplexity*; here about
# 10.)
#
# A language model has many more answers to choose from. Take $V = 1000$ tokens, vectors of width 64, and score each
# token by the dot product with its embedding, as many models do (the output is **tied** to the embeddings).
#
# **Predict first.** $\ln 1000$ is 6.9. Let random vectors (`states`), with entries of size 1, stand for what an
# untrained model hands to its output; the logits are `states @ embeddings.T`. What is the loss, if the embeddings are
# what `nn.Embedding` starts with: random numbers of mean 0 and standard deviation 1? And if they are divided by
# $\sqrt{64}$?


# %% first losses for two sizes of embeddings tags=["hide-input"]
def first_loss(deviation, seed, vocabulary=1000, width=64, count=2000):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(vocabulary, width, generator=generator) * deviation
    states = torch.randn(count, width, generator=generator)  # entries of size 1
    targets = torch.randint(vocabulary, (count,), generator=generator)
    return F.cross_entropy(states @ embeddings.T, targets).item()


assert round(losses[0], 2) == 2.33 and round(np.log(1000), 1) == 6.9
print("first loss: mean ± sd of five draws")
for name, deviation in [("deviation 1:  ", 1.0), ("deviation 1/8:", 1 / 8)]:
    runs = [first_loss(deviation, seed) for seed in range(5)]
    print(f"embeddings of {name} {np.mean(runs):5.2f} ± {np.std(runs):.2f}")
    assert abs(np.mean(runs) - (26 if deviation == 1 else 7.4)) < 0.7

# %% [markdown]
# The loss of one answer is $\ln \sum_j e^{z_j} - z_\text{right}$, and the right logit is 0 on average. With standard
# deviation 1 a logit is a sum of 64 products, so its standard deviation is $\sqrt{64} = 8$. The largest of a thousand
# is about 3.2 standard deviations, 26, and $e^{26}$ is usually more than all the others together. So the loss is about
# $\ln e^{26} = 26$: a model with such logits bets on one token, though it knows nothing, and training must first take
# that back. With $1/8$ the logits have standard deviation 1. For normally distributed logits of standard deviation
# $\sigma$ the average of $e^z$ is $e^{\sigma^2 / 2}$, so the loss is about $\ln 1000 + \tfrac12 = 7.41$. In general:
# $\ln V + \sigma^2 / 2$ while $\sigma$ is near 1 or below, and about the largest logit when it is large, about
# $2.2\,\sigma$ among 50 answers and $3.2\,\sigma$ among 1,000.
#
# And a first loss *below* $\ln V$? Before training a model should know nothing, so something else must lower the loss.
# There are three usual causes:
#
# - it was given a fair head start: the output's bias was set to the logarithms of the tokens' frequencies;
# - the divisor is too large: the loss was summed over the real targets, and divided by all positions, padding included;
# - it sees what it should predict.
#
# Take the third. A language model is asked for the *next* token, so its targets are the text shifted by one. Forget the
# shift, and a tied model is asked for the very token that it was given. Take embeddings with entries of standard
# deviation 1/8, so of squared length about 1. Let the state be 8 times its token's embedding, so that its entries have
# size 1, as before. Then the right logit is about 8, the others are 0 ± 1, and the loss is about
# $\ln (e^8 + 999 \, e^{1/2}) - 8 = 0.44$. (The squared length varies from token to token, and the short ones make the
# loss larger.)

# %% the target as the input tags=["hide-input"]
generator = torch.Generator().manual_seed(0)
embeddings = torch.randn(1000, 64, generator=generator) / 8
targets = torch.randint(1000, (2000,), generator=generator)
states = embeddings[targets] * 8  # entries of size 1, from the target itself
leaking = F.cross_entropy(states @ embeddings.T, targets).item()
print(f"asked for what it was given: {leaking:.2f}, before any training")
assert leaking < 1
twice = F.cross_entropy(torch.eye(10), torch.arange(10)).item()
assert round(twice, 2) == round(np.log(np.e + 9) - 1, 2) == 1.46
assert round(np.log(np.exp(8) + 999 * np.exp(0.5)) - 8, 2) == 0.44
assert round(-np.log(0.25), 2) == 1.39

# %% [markdown]
# So before you train anything, print the first loss and compare it with $\ln V$. Far above: something starts too large,
# or the loss was summed and not averaged. Below, by more than the noise from batch to batch: the model was given
# something, or the divisor is wrong. (Why parameters start at random: [below](#what-if-matrices-start-at-zero).)
#
# Two mistakes pass this check. A forgotten shift goes unnoticed if the output has a matrix of its own: the model has
# yet to learn to copy its input, so the loss begins near $\ln V$, and then it falls much too far. And `F.cross_entropy`
# applies the softmax itself. Give it probabilities, and it takes them for logits: the first loss is near $\ln V$, but
# even perfect answers then cost $\ln(e + V - 1) - 1$, with ten answers 1.46. Nothing fails, and such a model still
# learns, so compare the loss with what right answers allow.

# %% tags=["quiz"]
quiz.number(
    "A translation model has a vocabulary of 32,000 tokens, and its logits start near 0. Roughly what loss should the first batch show?",
    np.log(32000),
    tolerance=0.06,
    feedback="Yes: $\\ln 32000$, about 10.37.",
    mistakes=[
        (
            np.log2(32000),
            "That is the logarithm to base 2, a loss in bits. Cross-entropy in PyTorch uses the natural logarithm.",
        ),
        (np.log10(32000), "That is the logarithm to base 10."),
    ],
    otherwise="Each token gets the probability $1/32000$. The loss is minus the natural logarithm of that.",
)

# %% [markdown]
# ### How small a step in a gradient check?
#
# Here is the largest error of the query's gradient, for steps of several sizes.


# %% the largest error for each step, in 64 and 32 bits tags=["hide-input"]
def in_32_bits(query):
    arrays = (torch.tensor(array, dtype=torch.float32) for array in (query, k, v))
    blend = F.scaled_dot_product_attention(*arrays)
    return 0.5 * (blend - torch.tensor([1.0, 0])).square().sum().item()


off = {64: {}, 32: {}}
print("step   in 64 bits  in 32 bits")
for exponent in (-2, -3, -5, -7, -9):
    for bits, of in (64, lambda x: loss_of(x, k, v)), (32, in_32_bits):
        slopes = finite_differences(of, q, 10.0**exponent)
        off[bits][exponent] = np.abs(by_formula[0] - slopes).max()
    print(f"1e{exponent:+03}{off[64][exponent]:11.0e}{off[32][exponent]:12.0e}")
assert 80 < off[64][-2] / off[64][-3] < 120
assert off[64][-5] < 1e-11 < off[64][-7] < off[64][-9]
assert 1e-6 < min(off[32].values()) < 1e-4

# %% [markdown]
# With a large step one measures a chord, and its error falls with the square of the step. (With nudges in one direction
# only, the error falls only in proportion to the step; up and down, that part cancels.) With a tiny one the two losses
# differ only in their last digits, and rounding, divided by the step, takes over. In 64-bit floats $10^{-5}$ is small
# enough to make the chord's error tiny, and large enough to keep rounding tiny. In 32-bit floats, in which most of this
# book trains, no step is good for more than four or five digits, and at $10^{-7}$ the nudge no longer changes the loss
# at all, so the whole gradient is missed. So check gradients in 64 bits. If formula and quotient agree there, the
# difference was rounding. A real mistake remains, whatever the step. (A function with a kink, such as $\max(0, x)$ in
# [chapter 8](08_encoder.ipynb), can fail the check although there is no mistake, where a nudge crosses the kink. That
# is one entry here and there, and a shorter nudge or another input avoids it.)

# %% [markdown]
# Where gradients are much larger or smaller than here, divide the difference between formula and quotient by the size
# of the gradient: in 64-bit floats a relative error of $10^{-7}$ is fine, and one of $10^{-2}$ is almost certainly a
# mistake (where both are nearly 0, look at the absolute error). In a large model check a few entries of *every*
# parameter, and set all parameters to random numbers first, because matrices of zeros can hide a mistake. The losses
# after the nudge up and the nudge down must be of the same function: use the same examples, and switch off all that is
# random, such as dropout.
#
# ### A query with nothing to attend to
#
# In a large batch some query may have nothing to attend to. If its whole row were minus infinity, its weights would be
# 0/0, which is NaN, and on the way back NaN spreads into every matrix. So in our module `masked_fill` makes a masked
# score the lowest number that the dtype has, and its weight is still 0. Where a whole row is masked, the softmax is
# even, and a second `masked_fill` sets it to 0: such a query receives zeros, as in recent versions of PyTorch's
# `F.scaled_dot_product_attention`. (What leaves the module is then the bias of $W_O$.)

# %% [markdown]
# ### Keep going
#
# With the gradients of [the backward pass](#the-backward-pass-for-all-queries) we can take more steps, at a learning
# rate of 1, on *dog bites man*, first with $W_Q$ alone, then with $W_K$ too, then with all three matrices.

# %% gradient descent on one, two or three matrices tags=["hide-input"]
x = np.array([[1.0, 0, 0], [0, 1, 0], [1, 0, 1]])  # alive, action, human


def descend(learning, steps=50, learning_rate=1.0):
    """The loss before the first step and after each, when `learning` names what learns."""
    w = {
        "W_Q": np.array([[0.0, 2], [2, 0], [0, 0]]),
        "W_K": np.array([[1.0, 0], [0, 1], [1, 0]]),
        "W_V": np.array([[1.0, 0], [0, 0], [0, 1]]),
    }
    history = []
    for step in range(steps + 1):
        query, key, value = x[[1]] @ w["W_Q"], x @ w["W_K"], x @ w["W_V"]
        d_out = attend_by_hand(query, key, value)[0] - [1, 0]
        history.append(0.5 * (d_out**2).sum())
        d_q, d_k, d_v = attention_gradients(query, key, value, d_out)
        for name, asks, d in (
            ("W_Q", x[[1]], d_q),
            ("W_K", x, d_k),
            ("W_V", x, d_v),
        ):
            if name in learning and step < steps:
                w[name] -= learning_rate * asks.T @ d
    return history


assert np.allclose(descend(["W_Q"], steps=1), two_losses)  # the step on paper

# %% tags=["plot"] mystnb={"image": {"alt": "Loss over 50 steps of gradient descent, from 0.296. With W_Q alone it falls to about 0.1; with W_Q and W_K it is below 0.01 at the end; with all three it is near 0 after three steps."}}
figure, axes = plt.subplots(figsize=(6, 3))
for learning, color, at in [
    (["W_Q"], plots.RED, (30, 0.125)),
    (["W_Q", "W_K"], plots.GOLD, (17, 0.066)),
    (["W_Q", "W_K", "W_V"], plots.BLUE, (3, 0.012)),
]:
    axes.plot(descend(learning), color=color)
    axes.text(*at, ", ".join(f"${name}$" for name in learning), color=color)
axes.set(xlabel="step", ylabel="loss", ylim=(0, 0.31))
plt.show()

# %% [markdown]
# With $W_Q$ alone the loss falls slowly: the keys stay where they are, and those of *dog* and *man* point the same way.
# With all three matrices it falls fastest, and $W_V$ does most of the work: when $W_V$ alone learns (not drawn), the
# loss is below 0.006 after three steps. Training changes all of them at once.
#
# And the learning rate decides. With all three, at 0.01 the loss is still above 0.05 after 50 steps; at 3 each step
# overshoots further than the one before: it diverges.

# %% four learning rates tags=["hide-input"]
every = (["W_Q"], ["W_Q", "W_K"], ["W_Q", "W_K", "W_V"])
print("learning rate   loss after 50 steps")
for learning_rate in (0.01, 0.1, 1, 3):
    history = descend(every[2], learning_rate=learning_rate)
    print(f"{learning_rate:13} {history[-1]:21.2g}")
assert history[-1] > 1e20 and 0.05 < descend(every[2], 50, 0.01)[-1] < 0.08
assert 0.08 < descend(["W_Q"])[-1] < 0.12
assert descend(every[1])[-1] < 0.01 and descend(every[2])[-1] < 1e-4
assert descend(["W_V"])[3] < 0.006

# %% [markdown]
# ### Which half waits for which?
#
# In [learning to look things up](#learning-to-look-things-up) the model must learn two halves: where to look ($W_Q$
# and $W_K$), and what to make of what it finds (the rest). Which delays the other?
#
# *Values given*: train everything but $W_Q$ and $W_K$ for 300 steps, then let these two learn, too. If the look-up had
# been waiting for useful values, it should now come quickly. *$W_Q$, $W_K$ given*: the reverse, a fresh model that
# begins with these two from a trained one. Count the steps after that, until ten losses average below 0.5.


# %% steps that each model needs tags=["hide-input"]
def steps_until(losses, below=0.5):
    """The first step at which the average of ten losses is below a bound."""
    return int(np.argmax(np.convolve(losses, np.ones(10) / 10, "valid") < below))


print("        steps until the loss is below 0.5")
print("seed    from the start  values given  W_Q, W_K given")
for seed in range(3):
    whole, values_first, look_first = (new_model(seed) for _ in range(3))
    together, _ = train(whole, 300, seed=seed)
    maps = [values_first.attention.w_q, values_first.attention.w_k]
    for linear in maps:
        linear.requires_grad_(False)
    train(values_first, 300, seed=seed)
    for linear in maps:
        linear.requires_grad_(True)
    then, _ = train(values_first, 300, seed=50 + seed)
    for name in ("w_q", "w_k"):
        learned = getattr(whole.attention, name).state_dict()
        getattr(look_first.attention, name).load_state_dict(learned)
    found, _ = train(look_first, 300, seed=50 + seed)
    counts = [steps_until(each) for each in (together, then, found)]
    print("{:4}{:18}{:14}{:16}".format(seed, *counts))
    assert counts[0] > 100 and 0 < counts[1] < 50 and 0 < counts[2] < 30
    assert counts[1] + counts[2] < counts[0]

# %% tags=["proof"]
look_only = new_model()
look_only.requires_grad_(False)
for linear in (look_only.attention.w_q, look_only.attention.w_k):
    linear.requires_grad_(True)
alone, _ = train(look_only, 1000)
assert 2.2 < np.mean(alone[-20:]) < 2.4

# %% [markdown]
# With either half given, the rest is learned in fewer than 50 steps, and the two counts together are smaller than the
# count from the start. So in a run from the start each half delays the other: while the values mean nothing, no entry
# is better than another, and without a look-up every value is blended with four others. Which moves first, the counts
# do not say, but the [cut model](#break-it-a-cut-in-the-record) suggests it: values can bring the loss down to 1.6
# alone, and no further. $W_Q$ and $W_K$ alone hardly lower it: it stays at 2.3, presumably because an output that stays
# random could not read the digit even from a perfect look-up.

# %% [markdown]
# ### Where does the gradient begin?
#
# (This is the solution of exercise 3.) The loss is the cross-entropy, $-\ln p_r$, with $r$ for the right digit. Its
# gradient for the logits $z_i$ follows from the formula of [the softmax](#back-through-the-softmax), where $p$ was
# called $w$, and $z$ was $s$. Let $y_i$ be 1 for the right digit and 0 for the others. Only the right digit's
# probability is in the loss, so $\partial L / \partial p_i = -y_i / p_i$. The average of these derivatives, weighted
# by the $p_i$, has a single term, that of the right digit: $p_r \cdot (-1 / p_r) = -1$. So
#
# $$\frac{\partial L}{\partial z_i} = p_i \left( \frac{\partial L}{\partial p_i} - (-1) \right) = p_i - y_i :$$
#
# what the model said minus what was right. If the right digit got 0.25, the loss is 1.39, the gradient at its logit
# −0.75, and those of the others are their probabilities, together 0.75. The gradients always sum to 0, since the
# probabilities sum to 1, and so do the $y_i$. The logarithm's $1 / p$ has cancelled the softmax's factor $p$, so a
# model that is certain and wrong gets a gradient of nearly $-1$ at the right digit. The squared error
# $\tfrac12 (1 - p)^2$ has no such $1 / p$, so there the right digit gets $-(1 - p) \cdot p (1 - p)$: at $p = 0.0001$
# about $-0.0001$. But the gradient is as strong where the *label* is wrong. There a model that has learned the task
# gets nearly $-1$ at the label and $+1$ at the true digit, while all correct examples give next to nothing. So a few
# wrong labels come to dominate the updates, though none pulls on a logit with a gradient larger than 1.

# %% [markdown]
# ### What if matrices start at zero?
#
# Zeros, or any other constant, look like an even start. But if in every matrix and bias all entries start with the same
# number, the columns of each matrix are equal. They read the same input, so they hand on equal numbers. The next layer
# multiplies these by equal parameters, so on the way back it passes the same gradient to each of them. So, without
# dropout, all columns get the same gradient, and stay equal. (The last layer is an exception: each of its columns has a
# right answer of its own.) It is the same with heads: if two start with the same matrices, and the rows of $W_O$ that
# read their outputs are equal, too, both get the same gradients and (again without dropout) stay alike, so you get one
# head for the price of two. A random **initialisation** is there to **break the symmetry**.
#
# Zeros can do worse, as the formulas of [the backward pass](#the-backward-pass-for-all-queries) say: apart from the
# factor $1/\sqrt{d_k}$, $dQ$ is $dZ \, K$, and $dK$ is $dZ^\top Q$. If only $W_Q$ is zero, $Q$ is 0 and $dQ$ is not, so
# $W_Q$ learns, and $W_K$ from the second step on. If both are zero (and their biases), so are both gradients, since
# each has the other as a factor, and they stay zero for ever: all scores are 0, and every weight is exactly $1/n$. (If
# $W_V$ is zero as well, $dV = A^\top dO$ is not 0 unless $W_O$ is zero, so it learns, under even weights.) A zero
# *output* layer is harmless. Its own gradient is not 0. Those of the layers below are 0 in the first step only, because
# they pass through the zero matrix, so these layers start one step later. The first loss is exactly $\ln V$.
#
# The folded cell zeroes $W_Q$, or both matrices. With both at zero the loss ends at 1.62, like that of the [cut
# model](#break-it-a-cut-in-the-record), which bets.

# %% one matrix at zero, then two tags=["hide-input"]
for zeroed in (["w_q"], ["w_q", "w_k"]):
    torch.manual_seed(0)
    from_zero = NoteModel()
    for name in zeroed:
        for parameter in getattr(from_zero.attention, name).parameters():
            nn.init.zeros_(parameter)
    history, _ = train(from_zero, 1000)
    moved = from_zero.attention.w_q.weight.abs().max() > 0
    print(
        " and ".join(zeroed),
        f"at zero: loss at the end {np.mean(history[-100:]):.2f}",
        end="",
    )
    print(f", W_Q has moved: {bool(moved)}")
    assert bool(moved) == (len(zeroed) == 1)
assert round(np.mean(history[-100:]), 2) == 1.62

# %% [markdown]
# How large should random entries be? A sum of $D$ products has $\sqrt D$ times the size of one, so entries of standard
# deviation $1/\sqrt D$ keep the size of an input, at any width. (*Xavier* or *Glorot* initialisation uses the number of
# outputs, too.) And large entries of $W_Q$ and $W_K$ make large scores, and so saturated rows. Multiply both by a
# factor before training:

# %% larger matrices, before and after training tags=["hide-input"]
fresh = as_vectors(*draw(500, torch.Generator().manual_seed(9)))
print("W_Q, W_K times   largest weight before   loss after 1000 steps, three seeds")
for factor in (4, 64):
    ends = []
    for seed in range(3):
        scaled_up = new_model(seed)
        with torch.no_grad():
            for w in (scaled_up.attention.w_q, scaled_up.attention.w_k):
                w.weight.mul_(factor)
            if seed == 0:
                largest = scaled_up(*fresh)[1].max(dim=-1).values.mean()
        history, _ = train(scaled_up, 1000, seed=seed)
        ends.append(np.mean(history[-100:]))
    print(f"{factor:10}{largest:26.2f}       ", *(f"{end:6.2f}" for end in ends))
    assert max(ends) < 0.1 if factor == 4 else min(ends) > 1.2
assert largest > 0.98

# %% [markdown]
# With both multiplied by 4 these three still learn (we saw another seed diverge). With the factor 64, the largest of a
# row's five weights is 0.99 on average before anything has been learned, in most rows on a wrong name. After 1,000
# steps the loss of these three is still about 1.5 to 2.1: the look-up has been learned at best in part. (Saturation
# need not be the only cause: each matrix also multiplies the other's gradient, so at the same learning rate the scores
# move in far larger steps.)

# %% [markdown]
# ### Short answers
#
# - **Is backpropagation the same as gradient descent?** No. Backpropagation computes the gradient and changes no
#   parameter. Gradient descent changes the parameters, and does not care how the gradient was found: with slopes from
#   nudging it would take nearly the same steps, far more slowly.
# - **Why follow a random batch, and not all examples at once?** The mean gradient of independently drawn examples is
#   right on average, and its chance error falls with the root of their number. A hundred times the examples cost a
#   hundred times the work, for an error ten times smaller.
# - **Why is the opposite of the gradient the best direction?** Of all short steps of one length, it has the lowest dot
#   product with the gradient, because its cosine is $-1$. That holds for short steps only, since further on the
#   gradient is a different one.
# - **Is the loss convex, like a bowl with one bottom?** No, because $W_Q, W_K$ and $-W_Q, -W_K$ (biases included) give
#   the same scores, and so the same loss. Halfway between them both are 0 and all weights even. In a bowl that could
#   not be worse than the ends, but wherever the look-up helps it is.
# - **Does a gradient of 0 mean that the best is reached?** No: it says only that no step helps to first order.
#   $L = (1 - a b)^2$ has both derivatives 0 at $a = b = 0$, where $L$ is 1, though $a = b = 1$ gives 0. This is a
#   *saddle point*, from which some directions lead down and others up.
# - **Do two seeds that both succeed find the same matrices?** Not in general, because different matrices can give the
#   same scores: double $W_Q$ and halve $W_K$ (biases too), and neither scores nor loss change. So compare the attention
#   weights that two models compute, and not their matrices.
# - **Does a masked key still learn?** Not from queries that may not attend to it: the weight 0 is a factor of its
#   score's and its value's gradient. From all others it does, since the gradients of all uses add up. So only a key
#   that is masked for every query gets none. (In self-attention its word can still learn as a query.)
# - **What do `detach()`, `no_grad()` and `model.eval()` each switch off?** `detach()` cuts the record at one tensor;
#   `no_grad()` records nothing inside its block. `model.eval()` leaves the record alone, and sets layers such as
#   dropout ([chapter 8](08_encoder.ipynb#the-encoder-layer)) to their behaviour outside training. A test wants the last
#   two together, because neither does the other's work.
# - **Is autograd symbolic, and do loops and branches disturb it?** It writes no formula and nudges nothing, so it is
#   neither symbolic nor numerical ([Baydin and others, 2018](https://arxiv.org/abs/1502.05767)). Loops and branches are
#   fine, because only operations that ran are recorded. The choice of a branch gets no gradient, since it is a yes or
#   no.
# - **Where must `zero_grad()` stand?** Anywhere after one `step()` and before the next `backward()`. Between
#   `backward()` and `step()` it deletes the gradients that the step needs: no parameter moves, the loss only varies
#   from batch to batch, and no error is raised.
# - **What does overfitting one batch not show?** That the labels are right, or that anything general was learned,
#   because it asks only about examples already seen. A large enough network memorises random labels, too ([Zhang and
#   others, 2017](https://arxiv.org/abs/1611.03530)), and a model that sees its answer also passes.
# - **Can attention weights be labelled after all?** Yes: a row's weights sum to 1, like probabilities, so minus the
#   logarithm of the right key's weight can be added to the loss. The labels must come from somewhere. [Liu and others
#   (2016)](https://aclanthology.org/C16-1291) took them from a program that aligns words, and report better
#   translations.
# - **What does $\sqrt{d_k}$ do for the gradient?** It makes the gradients of queries and keys smaller by this factor.
#   But at the start it keeps scores at a size of about 1 at any width, so no row is saturated, and a key that is right
#   can still gain weight.
# - **How can I check my code for the softmax's backward pass quickly?** Every row of `d_scaled` must sum to 0, up to
#   rounding, because a common shift changes nothing. Masked entries must be exactly 0.
# - **Should one stop when the loss stands still?** Not at once. If $W_Q$ and $W_K$ have gradients, train several times
#   as long: in our run the loss fell slowly for about 100 steps, with nearly even weights for 80, and then suddenly. A
#   plateau near $\ln k$ suggests that the model has narrowed the answer to $k$ candidates, and cannot yet choose among
#   them.
# - **What else cuts the record?** `.item()`, `.detach().numpy()` and a `no_grad()` block cut it as silently. Compare
#   parameters before and after a step, too: those behind a cut have not moved, so for a fixed input the attention
#   weights stay as they were.

# %% tags=["proof"]
a, b = (torch.zeros((), requires_grad=True) for _ in range(2))
(1 - a * b).square().backward()
assert a.grad == b.grad == 0
whole, mirrored, halved = (new_model() for _ in range(3))
with torch.no_grad():
    for w, factor in ((mirrored.attention.w_q, -1), (mirrored.attention.w_k, -1)):
        w.weight.mul_(factor), w.bias.mul_(factor)
    for w, factor in ((halved.attention.w_q, 2), (halved.attention.w_k, 0.5)):
        w.weight.mul_(factor), w.bias.mul_(factor)
    for other in (mirrored, halved):
        same = other(*as_vectors(*shown))[1]
        assert torch.allclose(same, whole(*as_vectors(*shown))[1], atol=1e-6)
