# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 3. How do you look something up without choosing?
#
# You search a list for *something warm to drink*. Coffee scores 6, tea 5. Do you return what is written beside coffee
# and forget the rest? This chapter builds a look-up that answers with a *blend* of all entries, with the largest share
# from the best match. And it shows why transformers divide their scores by the square root of the width of the keys.
#
# You need [chapter 2](02_similarity.ipynb), means and variances, the derivative of $e^x$, the quotient rule and the
# chain rule. The chapter takes about 30 minutes to read, and 20 for the exercises. [Going further](#going-further), at
# the end, takes 11 more minutes. Only the code? Read [scaled dot-product attention](#scaled-dot-product-attention) and
# the two sections *Break it*.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. The dot product is built; this chapter adds the scaling, the softmax and the weighted average, so that the middle of an attention block is complete."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, movable, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=3)

# %% [markdown]
# ## Hard look-up
#
# A hard look-up scores every key with a dot product and takes the best.
#
# Each key has a *value*: the key says what an entry is found by, and the value what the look-up hands over if that key
# wins. Here a value is a price and a number of litres.

# %% tags=["nbval-check-output"]
import numpy as np

drinks = ["tea", "coffee", "ice", "train"]
# columns: warm, drink, move; a row for each of the four, as in chapter 2
keys = np.array([[2, 3, 0], [3, 3, 0], [-3, 1, 0], [1, 0, 4]])
# columns: price, litres
values = np.array([[2.0, 0.3], [3.0, 0.2], [1.0, 0.1], [40.0, 0.0]])

query = np.array([1, 1, 0])  # something warm to drink
scores = keys @ query
best = scores.argmax()
print("scores:", scores)
print("the best match is", drinks[best], "with price and litres", values[best])

# %% [markdown]
# Coffee wins, and tea is discarded, although it fits nearly as well: that is one fault.
#
# There is a worse fault. Turn the query slowly: the answer does not move, and then it jumps. The query $(0.01, 1, 0)$
# finds coffee, and $(-0.01, 1, 0)$ finds tea. But training asks: "If I change the query a little, does the answer get
# better?" Here the answer nearly always stays the same, so training cannot find a better query in small steps.
#
# Both faults have the same cure: give every key a *share*, and let the answer be a blend of all values.
#
# ## From scores to shares
#
# Why not divide each score by the sum of all scores?
#
# **Predict first.** What goes wrong with `scores / scores.sum()` for the scores $-1, 0, 1$? And do the shares of
# $0, 1, 2$ change when 10 is added to every score?

# %% tags=["nbval-check-output"]
with np.errstate(all="ignore"):
    for row in ([0, 1, 2], [10, 11, 12], [-1, 0, 1], scores):
        print(row, "->", (row / np.sum(row)).round(2))

# %% [markdown]
# In the third line the scores sum to 0, and a division by 0 gives no shares; in the last line, our list, ice gets a
# negative share.
#
# The second line shows another fault: with 10 added to the scores of the first line, the winner's share falls from 0.67
# to 0.36. But such a shift should change nothing, because it favours no key. To see this, give every key a fourth entry
# of 1, and the query a fourth entry of 10: every score rises by 10, but the new entry is the same for all keys.
#
# Could we subtract the lowest score first? Then only differences count and no share is negative. But the lowest key
# gets nothing, whatever its score, and a bad key changes how two good ones share: keys with the scores 6 and 5 get
# shares in the ratio 2 to 1 if the lowest score is 4, and 106 to 105 if it is $-100$.
#
# So we ask for five things. Many formulas meet the first two. All five together leave only one kind of formula, as we
# shall see.
#
# 1. Every finite score gets a positive share. If a key had share 0 for a range of scores, no small change of its score
#    would change its share, and learning would get no hint.
# 2. The shares sum to 1, so that the blend stays on the scale of the values: if every value is 5, so is the answer.
# 3. A higher score gets a larger share.
# 4. A common shift of all scores changes no share.
# 5. The ratio of two shares depends on their two scores alone: whichever keys have these scores, and whatever else is
#    in the list.
#
# Take two keys with the scores 6 and 5. By demand 5 the ratio of their shares depends on the 6 and the 5 alone. By
# demand 4 we may subtract 5 from all scores, so scores of 1 and 0 give the same ratio, and so do 101 and 100. In
# general, **the ratio of two shares depends on the difference of their scores, and on nothing else.**
#
# From this the formula follows. Let $f(x)$ be the ratio that belongs to the difference $x$: the share of one key,
# divided by that of another whose score is lower by $x$.
#
# Take three keys: the first scores 1 more than the second, and the second 1 more than the third. So each gets $f(1)$
# times the share of the next: if $f(1)$ is 3, the three share 9 to 3 to 1. The first is 2 ahead of the third and gets
# $f(1)^2$ times its share, so $f(2) = f(1)^2$. In the same way leads of $x$ and $y$ give $f(x + y) = f(x) f(y)$.
#
# Write $a$ for $f(1)$; it is above 1, since a higher score must get more. Then $f(3) = a^3$, and
# $f(\tfrac12) = \sqrt a$, since $f(\tfrac12)^2 = f(1)$. The same reasoning works for every fraction, and one more short
# step covers every other $x$ ([Going further](#why-only-powers)): $f(x) = a^x$ for all differences.
#
# To get such ratios, raise $a$ to the power of each score, and divide each result by their sum. Two scores $s$ and $t$
# then have the ratio $a^s / a^t = a^{s - t}$, since the sum cancels. The shares are positive and sum to 1, like the
# probabilities of a **distribution**. We take $a = e$, because $e^x$ is its own derivative. Another base would only
# rescale the scores, since $a^s = e^{s \ln a}$. For the scores 0, 1, 2:
#
# | score | $e^{\text{score}}$ | share |
# |---|---|---|
# | 0 | 1.000 | 1.000 / 11.107 = 0.090 |
# | 1 | 2.718 | 2.718 / 11.107 = 0.245 |
# | 2 | 7.389 | 7.389 / 11.107 = 0.665 |
# | sum | 11.107 | 1 |
#
# A key one point ahead of another gets $e \approx 2.718$ times the other's share, whether both scores are high or low.
#
# As a loop in Python:


# %%
def shares_by_loop(scores):
    total = 0.0
    for score in scores:
        total += np.exp(score)
    return [np.exp(score) / total for score in scores]


# %% tags=["proof"]
assert np.allclose(
    shares_by_loop([0, 1, 2]), [0.090, 0.245, 0.665], rtol=0, atol=0.0005
)
assert np.allclose(shares_by_loop([10, 11, 12]), shares_by_loop([0, 1, 2]))
assert np.allclose(shares_by_loop([-1, 0, 1]), shares_by_loop([0, 1, 2]))

# %% [markdown]
# This function is the **softmax**, the soft form of the hard choice. The hard choice is the *argmax*: written as
# shares, it gives 1 to the largest score and 0 to the rest (a *one-hot* vector). The scores that go into a softmax are
# also called *logits*. For a row of $S$ scores, $s_1, \dots, s_S$,
#
# $$\operatorname{softmax}(s)_i = \frac{e^{s_i}}{\sum_{j=1}^{S} e^{s_j}} .$$
#
# In attention its results are called **attention weights**, weights for short. Unlike the weights of a network, which
# are learned, these are computed afresh from the scores.
#
# If you add a number $c$ to every score, no weight changes: $e^{s_i + c} = e^c e^{s_i}$, and the factor $e^c$ cancels.
# This is called **shift invariance**. So with two keys only the difference $x = s_1 - s_2$ counts. Divide numerator and
# denominator of $e^{s_1} / (e^{s_1} + e^{s_2})$ by $e^{s_1}$: the first weight is $1 / (1 + e^{-x})$, the **sigmoid**,
# or *logistic function*.
#
# The function below uses shift invariance and subtracts from each row its largest score, `highest`. [Break
# it](#break-it-scores-of-a-thousand) shows why.

# %% tags=["export"] module="by_hand.softmax"
import numpy as np
from dotformer.support.scores import check_scores
from dotformer.support.shapes import shapes
from jaxtyping import Float, Real


@shapes
def softmax(
    scores: Real[np.ndarray, "*batch S"], axis: int = -1
) -> Float[np.ndarray, "*batch S"]:
    """Turn scores into weights: numbers from 0 to 1 that sum to 1 along `axis`.

    A score of minus infinity gets the weight 0. Raises ValueError when a row holds
    only those, when a score is plus infinity or NaN, and when there is none.
    """
    highest = scores.max(axis=axis, keepdims=True).astype(float)
    check_scores(highest)
    powers = np.exp(scores - highest)
    return powers / powers.sum(axis=axis, keepdims=True)


# %% tags=["proof"]
row = np.array([0, 1, 2])
assert np.allclose(softmax(row), shares_by_loop(row), rtol=1e-14, atol=0)

# %% tags=["quiz"]
quiz.one_choice(
    "Which change to a row of scores leaves its weights as they are, whatever the row?",
    quiz.wrong(
        "Multiplying every score by 10",
        "That stretches the differences, and differences are what counts: 0, 1, 2 become 0, 10, 20, and the last key takes "
        "nearly everything. The section on temperature, further on, is about exactly this.",
    ),
    quiz.right(
        "Subtracting 10 from every score",
        "Yes. The common factor $e^{-10}$ appears in numerator and denominator and cancels.",
    ),
    quiz.wrong(
        "Replacing every negative score by 0",
        "A negative score is not a negative weight: its exponential is positive. Raising it to 0 changes the differences between the scores.",
    ),
    quiz.wrong(
        "Dividing the scores by their sum",
        "The weights sum to 1 anyway, but the scores need not. Dividing them changes their differences, and may mean dividing by 0.",
    ),
)

# %% [markdown]
# ## The blend
#
# Now multiply each value by its weight, and add up. For our list and its prices:
#
# | | score | $e^{\text{score}}$ | weight | price | weight · price |
# |---|---|---|---|---|---|
# | tea | 5 | 148.41 | 0.2676 | 2 | 0.535 |
# | coffee | 6 | 403.43 | 0.7273 | 3 | 2.182 |
# | ice | −2 | 0.14 | 0.0002 | 1 | 0.000 |
# | train | 1 | 2.72 | 0.0049 | 40 | 0.196 |
# | sum | | 554.70 | 1 | | 2.913 |
#
# A sum whose weights are not negative and sum to 1 is a **weighted average**, or *convex combination*: each number of
# the answer lies between the smallest and the largest in its column of the values. (All its numbers use the same
# weights, so a price near 40 comes with nearly 0 litres. Unless a column is constant, its largest number is not
# reached, because every weight is positive, and nothing can be enlarged or subtracted.)
#
# Now take $T$ queries at once, and $S$ keys whose values have the width $d_v$. The weights are a matrix $W$ of shape
# $(T, S)$, with a row for each query, and the values a matrix $V$ of shape $(S, d_v)$, with a row for each key. Row
# $O_i$ of their product $O$ is the answer to query $i$:
#
# $$O = W V , \qquad O_i = \sum_{j=1}^{S} W_{ij} \, V_j .$$
#
# The softmax runs over the keys, along each row of scores: each query shares out its own attention. Over the [wrong
# axis](#break-it-the-wrong-axis) it still gives a matrix of the right shape, so nothing warns you. The function below
# therefore checks that each row sums to 1.
#


# %% tags=["export"] module="by_hand.softmax"
@shapes
def weighted_average(
    weights: Real[np.ndarray, "*queries S"], values: Real[np.ndarray, "S d_v"]
) -> Float[np.ndarray, "*queries d_v"]:
    """Blend the rows of `values`, once for each row of `weights`.

    Raises ValueError when a weight is negative, or the weights of a row do not sum
    to 1 (to 1e-5, so that weights computed in float32 pass).
    """
    if (weights < 0).any() or not np.allclose(weights.sum(axis=-1), 1):
        raise ValueError("weights must be at least 0 and sum to 1 in each row")
    return weights.astype(float) @ values


# %% tags=["nbval-check-output"]
weights = softmax(scores)
price, litres = weighted_average(weights, values)
print(f"the answer: price {price:.2f}, {litres:.2f} litres")

# %% tags=["proof"]
assert np.allclose(keys[:2] @ [0.01, 1, 0], [3.02, 3.03])
assert np.allclose(keys[:2] @ [-0.01, 1, 0], [2.98, 2.97])
assert round(price, 2) == 2.91 and weights[3] < 0.005
assert (weights * values[:, 0]).round(3).tolist() == [0.535, 2.182, 0, 0.196]
assert weights.round(4).tolist() == [0.2676, 0.7273, 0.0002, 0.0049]
assert np.allclose(
    [price, litres], sum(w * v for w, v in zip(weights, values, strict=True))
)
for first, drink in ((0.01, "coffee"), (-0.01, "tea")):
    assert drinks[(keys @ [first, 1, 0]).argmax()] == drink

# %% [markdown]
# The answer costs 2.91, which is not on the list: it is mostly coffee and about a quarter tea. Even the train, with
# less than half a percent of the weight, puts 0.20 into the answer, because its price is 40. So a small weight need not
# mean a small effect. And since the weights always sum to 1, a soft look-up always hands over something: it cannot
# answer *nothing found*, unless a value is near 0, or values cancel out. A hard look-up cannot either: it returns the
# least bad entry at full strength. (A Python dictionary raises `KeyError`.) If all keys score equally, the soft look-up
# returns the plain average. Trained models often avoid such an average: when nothing fits, they give the weight to one
# token where it does no harm, an [attention
# sink](15_pretrained.ipynb#why-do-heads-look-at-tokens-that-stand-for-no-word).

# %% [markdown]
# Does the blend still jump when the query turns? Ask with $(x, 1, 0)$, let $x$ run from $-2$ to 2, and look at the
# litres. The hard look-up jumps from ice (0.1) to tea (0.3) and then to coffee (0.2); the blend, called *soft* in the
# figure, has no jumps:

# %% tags=["plot"] mystnb={"image": {"alt": "The litres of the answer against the first entry of the query, from -2 to 2. Hard: steps, 0.1 (ice) below -0.4, 0.3 (tea) up to 0, then 0.2 (coffee). Soft: a smooth curve from 0.1 up to 0.24 at 0.2 and down to 0.21."}}
from dotformer.by_hand.similarity import similarity_matrix

turn = np.linspace(-2, 2, 401)
asked = np.stack([turn, np.ones_like(turn), np.zeros_like(turn)], axis=1)
all_scores = similarity_matrix(asked, keys)  # (401 queries, 4 keys)
figure, axes = plt.subplots(figsize=(6, 3))
chosen = values[all_scores.argmax(axis=1), 1]
for low, high in ((-2, -0.4), (-0.4, 0), (0, 2)):
    step = (turn > low) & (turn < high)
    axes.plot(turn[step], chosen[step], color=plots.RED)
axes.plot(
    turn, weighted_average(softmax(all_scores), values)[:, 1], color=plots.BLUE
)
axes.text(0.05, 0.29, "hard", color=plots.RED)
axes.text(0.7, 0.235, "soft", color=plots.BLUE)
axes.set(xlabel="x, in the query (x, 1, 0)", ylabel="litres", ylim=(0, 0.35))
plt.show()

# %% [markdown]
# Scores, softmax, weighted average: together they are a **soft look-up**. Its answer has a slope at every query (it is
# **differentiable**), so queries and keys can be learned by following the slope (**gradient descent**, chapter 7). A
# hard choice has a slope of 0 everywhere but at its jumps, where it has none. Attention is this soft look-up, *soft
# attention*.
#
# Nobody buys a blended price, but attention blends word vectors. Is such a blend still like the words in it? If they
# are few, yes: take two vectors of length 1 at right angles, and add half of each. The sum has length $\sqrt{1/2}$ and
# the dot product $\tfrac12$ with each, so its cosine with each is 0.71, and an unrelated word has about 0. With $n$
# such vectors in equal shares the cosine is $1/\sqrt n$, because each word is a smaller part of the sum: 0.1 for a
# hundred words. ([Can a blend also be near a word that fits both?](#is-a-blend-near-a-word-that-fits-both))

# %% [markdown]
# ## Break it: scores of a thousand
#
# Here are two ways in which code for this look-up fails. One shows in the result, and the other goes unnoticed.
#
# **Predict first.** `shares_by_loop([1000, 1001, 1002])` has the same differences as 0, 1, 2. What does it return?

# %% tags=["nbval-check-output"]
with np.errstate(all="ignore"):
    print("loop:   ", np.array(shares_by_loop([1000, 1001, 1002])))
print("softmax:", softmax(np.array([1000, 1001, 1002])).round(3))

# %% [markdown]
# The loop returns `nan`, "not a number". Python's `float`, which NumPy calls float64, ends near $e^{709.8}$, so
# $e^{1000}$ **overflows** to infinity, and infinity over infinity is undefined. Narrower formats end sooner: float32
# near $e^{88.7}$, and float16 near $e^{11.1}$. Scores that are all near $-1000$ fail, too: all exponentials round to 0,
# and 0/0 is undefined.
#
# The function `softmax` subtracts the largest score from all scores. The largest exponential is then $e^0 = 1$, so none
# can overflow, and the sum is at least 1, so you never divide by 0. Very small exponentials may still round to 0
# (**underflow**). To the answer this does no harm: in float64 such a weight is below $10^{-300}$. (Its logarithm is
# another matter, exercise 2, and such a key can hardly learn.)
#
# A score of minus infinity gets the weight 0, exactly: chapter 4 leaves words out in this way, with a *mask*. In a row
# of nothing else every weight would be 0/0, so `softmax` raises an error.

# %% tags=["proof"]
assert np.array_equal(softmax(np.array([2.0, -np.inf, 2.0])), [0.5, 0.0, 0.5])

# %% [markdown]
# ## Break it: the wrong axis
#
# A matrix of scores has two axes, `softmax` takes an `axis`, and it is easy to name the wrong one. Here are three
# queries and three keys:

# %% tags=["nbval-check-output"]
three = np.array([[2.0, 1.0, 0.0], [0.0, 3.0, 0.0], [1.0, 0.0, 1.0]])
over_keys, over_queries = softmax(three, axis=-1), softmax(three, axis=0)
print(over_keys.round(2), "\n")
print(over_queries.round(2))

# %% [markdown]
# The shape is the same, and all numbers are positive. But look at the first row of the second: its scores are 2, 1 and
# 0, and the key with score 0 gets more than the key with score 1. In each *column* the order is right, because this
# matrix answers another question: not "how does this query share out its attention?" but "how do the queries share out
# this key?" The sums tell them apart.

# %% tags=["nbval-check-output"]
print("softmax over keys,    row sums:", over_keys.sum(axis=1).round(2))
print("softmax over queries, row sums:", over_queries.sum(axis=1).round(2))
try:
    weighted_average(over_queries, np.eye(3))
except ValueError as error:
    print("weighted_average says:", error)

# %% [markdown]
# If all scores are equal, and there are as many keys as queries, the mistake is invisible. Test with different numbers
# of keys and queries: over the wrong axis all entries sum to the number of keys, so the rows cannot all sum to 1.

# %% tags=["proof"]
assert np.allclose(over_keys.sum(axis=1), 1)
assert over_queries.sum(axis=1).round(2).tolist() == [0.99, 1.15, 0.86]

# %% [markdown]
# ## Temperature
#
# The five demands left the base $a$ open, and so the scale of the scores. This scale sets how sharp the look-up is.
# Divide the scores by a positive number $\tau$, the **temperature**, before the softmax.
#
# **Predict first.** Raise $\tau$ until it is very large. Where do the weights of the four entries go?

# %% tags=["plot"] mystnb={"image": {"alt": "Weights of coffee, tea, train and ice against temperature from 0.1 to 1000 on a logarithmic axis. At 0.1 coffee has weight 1. With rising temperature coffee falls and the others rise, tea first and for a while above one quarter; all four end there together."}}
temperatures = np.geomspace(0.1, 1000, 200)
curves = softmax(scores / temperatures[:, None])  # (200 temperatures, 4 keys)
labels = {
    "tea": (0.4, 0.12, "right"),
    "coffee": (0.9, 0.8, "left"),
    "ice": (9, 0.03, "left"),
    "train": (3, 0.12, "right"),
}

figure, axes = plt.subplots(figsize=(6, 3.4))
for drink, curve, color in zip(
    drinks, curves.T, [plots.RED, plots.BLUE, plots.TEAL, plots.GREY], strict=True
):
    axes.plot(temperatures, curve, color=color)
    at, height, side = labels[drink]
    axes.text(at, height, drink, color=color, ha=side)
axes.axhline(0.25, color=plots.GREY, lw=0.8, ls=":")
axes.set(xscale="log", ylim=(-0.05, 1.05), xlabel="temperature", ylabel="weight")
axes.set_xticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1000"])
plt.show()

# %% [markdown]
# All go to one quarter, because scores divided by a large $\tau$ are all near 0, and the answer is then the plain
# average of the values. At low temperature coffee has nearly everything, because it is 1 ahead of tea and gets
# $e^{1/\tau}$ times as much, 22,026 times at 0.1. A lead of $\Delta$ makes it $e^{\Delta / \tau}$. At $\tau = 0.5$, for
# example, the scores 0, 1, 2 act like 0, 2, 4: their weights are 0.016, 0.117 and 0.867 instead of 0.090, 0.245 and
# 0.665.
#
# As $\tau$ goes to 0, the softmax becomes the hard choice again (unless keys tie for the largest score: they share the
# weight). A longer query does the same as a lower temperature: its direction says what is sought, and its length how
# sharply.
#
# Set the temperature yourself: where does tea come close to coffee, and where does it vanish?

# %% tags=["plot"]
movable.temperature(drinks, scores)

# %% [markdown]
# Tea gets $e^{-1/\tau}$ times as much as coffee: nine tenths at $\tau = 10$, and less than a hundredth at 0.2.

# %% tags=["proof"]
assert softmax(np.array([4, 0]))[0].round(3) == 0.982
assert np.allclose(curves[-1], 0.25, atol=0.003) and curves[0, 1] > 0.9999
assert (curves.argsort(axis=1) == scores.argsort()).all()
assert scores.argmax() == 1 and scores[1] - scores[0] == 1
assert round(np.exp(1), 1) == 2.7 and round(np.exp(1 / 0.1)) == 22_026

# %% [markdown]
# ## How far do weights move?
#
# A hard look-up has no slope to learn from. How much has the soft one? That is, how much does a weight change when one
# score changes a little, the others held fixed? The answer is a *partial derivative*. If learning takes steps in
# proportion to these derivatives, it nearly stops where all are nearly 0.
#
# Write $Z$ for the sum of the exponentials, so that $w_i = e^{s_i} / Z$. With respect to $s_i$ the numerator has the
# derivative $e^{s_i}$. The denominator $Z$ has the same derivative, because $e^{s_i}$ is the only one of its terms that
# contains $s_i$. The quotient rule gives
#
# $$\frac{\partial w_i}{\partial s_i} = \frac{e^{s_i} Z - e^{s_i} e^{s_i}}{Z^2} = \frac{e^{s_i}}{Z} \cdot \frac{Z - e^{s_i}}{Z} = w_i (1 - w_i) .$$
#
# Another score $s_j$ appears only in the denominator:
#
# $$\frac{\partial w_i}{\partial s_j} = - \frac{e^{s_i} e^{s_j}}{Z^2} = - w_i w_j .$$
#
# All of them together are the **Jacobian**, a matrix with a row for each weight and a column for each score:
# $J = \operatorname{diag}(w) - w w^\top$, where $\operatorname{diag}(w)$ has the weights on its diagonal and $w w^\top$
# is the matrix of all products $w_i w_j$. For the weights 0.090, 0.245, 0.665 its last column, which says what the last
# score does to every weight, is:
#
# | | the third score, $s_3$ |
# |---|---|
# | weight 1 | $-0.090 \cdot 0.665 = -0.060$ |
# | weight 2 | $-0.245 \cdot 0.665 = -0.163$ |
# | weight 3 | $0.665 \cdot (1 - 0.665) = 0.223$ |
#
# When this score rises a little, its own weight rises by 0.223 times as much, and the other two fall by 0.060 and 0.163
# times as much. So the column sums to 0, because what one weight gains the others lose. $J$ is symmetric, so each row
# sums to 0, too: raise all scores alike, and no weight changes.


# %% tags=["export"] module="by_hand.softmax"
@shapes
def softmax_jacobian(
    weights: Real[np.ndarray, "*batch S"],
) -> Float[np.ndarray, "*batch S S"]:
    """Derivative of every weight with respect to every score: diag(w) - w w^T.

    Entry (i, j) says how fast weight i rises with score j.
    """
    w_i = weights[..., :, None]  # (..., S, 1)
    w_j = weights[..., None, :]  # (..., 1, S)
    return w_i * (np.eye(weights.shape[-1]) - w_j)  # (..., S, S)


# %% tags=["proof"]
example = softmax(np.array([0, 1, 2]))
assert softmax(np.array([0, 2, 4])).round(3).tolist() == [0.016, 0.117, 0.867]
jacobian = softmax_jacobian(example)
assert np.allclose(jacobian[2], [-0.060, -0.163, 0.223], rtol=0, atol=0.0005)
assert np.allclose(jacobian.sum(axis=1), 0)

# the same by trying it out: move each score a little, see how the weights change
nudge = 1e-6
for j in range(3):
    up, down = (
        softmax(row + nudge * np.eye(3)[j]),
        softmax(row - nudge * np.eye(3)[j]),
    )
    assert np.allclose((up - down) / (2 * nudge), jacobian[:, j], rtol=0, atol=1e-9)

# %% [markdown]
# When are these derivatives small? On the diagonal, $w_i (1 - w_i)$ is largest at $w_i = 0.5$, where it is 0.25, and
# vanishes at 0 and 1. So if one weight is near 1 and all others are near 0, the whole diagonal is nearly 0. Every
# $w_i w_j$ off the diagonal is then nearly 0, too, because at least one of its two factors is. With the weights 0.99,
# 0.005 and 0.005 no entry of $J$ is larger than 0.01 in absolute value. **A softmax that is sure of itself has stopped
# listening**: nudge its scores, and the weights hardly move. A softmax that gives one key nearly all the weight is
# called **saturated**. Not every saturated softmax is a fault: after training a sharp row may well be right ([what to
# look at](#is-mine-saturated)).

# %% tags=["proof"]
sure = np.array([0.99, 0.005, 0.005])
assert np.abs(np.diag(sure) - np.outer(sure, sure)).max() < 0.01

# %% tags=["quiz"]
quiz.one_choice(
    "Inside attention a softmax gives the weights 0.999, 0.0005 and 0.0005, and the second key was the right one. Why is this hard to fix in small steps?",
    quiz.wrong(
        "Because the second weight is so small that it was rounded to 0",
        "0.0005 is far from the smallest number a computer can hold. The weight is there; what is nearly missing is its slope.",
    ),
    quiz.right(
        "Because changing the scores a little hardly changes the weights",
        "Yes. The slope of the second weight with respect to its own score is 0.0005 · 0.9995, a five-hundredth of the slope at a weight of 0.5.",
    ),
    quiz.wrong(
        "Because the weights must sum to 1, so the second cannot grow",
        "It can: what it gains, the others lose, which is what a column of the Jacobian says.",
    ),
    quiz.wrong(
        "Because the order of the keys is fixed by the softmax",
        "The softmax keeps the order *of the scores*. When the second score becomes the largest, so does the second weight.",
    ),
)

# %% [markdown]
# ## Why divide by the square root of the width?
#
# Our drinks had three entries. A query or key of the original transformer has 64. This width is written $d_k$ ($k$ for
# key), and a score is a sum of $d_k$ products.
#
# Before learning starts, no key should have nearly all of the weight, or the softmax is saturated from the first step.
# So how large are the scores at the start?
#
# A network starts from random numbers (its *initialisation*), chosen so that the entries of its vectors have roughly
# size 1. Its queries and keys are word vectors multiplied by different random matrices (chapter 4), and thus even a
# word's own query and key are unrelated. So, as a simplification, let all queries and keys at the start be random
# vectors, as in chapter 2, whose entries are all independent, with mean 0 and **variance** 1. The variance is the mean
# squared distance from the mean; if the mean is 0, it is the mean of the square.
#
# [Chapter 2](02_similarity.ipynb#how-alike-are-random-vectors) found how large their dot products are; here is the
# argument once more, for any distribution. For independent numbers the mean of a product is the product of the means.
# So one product, $q_i k_i$, has mean 0, and its square, $q_i^2 k_i^2$, has mean $1 \cdot 1 = 1$, which is the variance.
#
# The score, the sum of all $d_k$ products, has mean 0, too, so its variance is the mean of its square. Multiply this
# square out: two different terms make a product such as $q_1 k_1 q_2 k_2$, with mean 0, since its four numbers are
# independent. Only the squares of the $d_k$ terms remain, each with mean 1:
#
# $$\operatorname{Var}(q \cdot k) = \sum_{i=1}^{d_k} \operatorname{Var}(q_i k_i) = d_k .$$
#
# So the standard deviation of a score, its typical distance from 0, is $\sqrt{d_k}$: 8 for $d_k = 64$.
#
# How far apart are the scores of two keys? Square their difference and multiply out: each score's square has mean
# $d_k$, and the mixed terms have mean 0. So the difference has the variance $2 d_k$. At width 64 the standard deviation
# is $\sqrt{128} \approx 11$. The two scores can easily differ by 10, and then one key gets $e^{10}$ times the weight of
# the other.
#
# The cure is a division. Dividing the scores by $c$ divides their variance, $d_k$, by $c^2$. So with $c = \sqrt{d_k}$
# the variance is 1 at every width: the division is a temperature, $\tau = \sqrt{d_k}$. Two scores then typically differ
# by $\sqrt 2$, and one key gets about 4 times the weight of the other. The variance need not be exactly 1. What counts
# is that it is not much above 1, and the same at every width.
#
# Why a constant, and not the measured spread of each row? Then every other key would change how two keys share, against
# demand 5. And a longer query could no longer be sharper, because its length would cancel.
#
# **Predict first.** One query, ten keys, all random, undivided scores. How large is the largest weight at width 64? At
# width 1024?

# %%
widths, trials = [1, 4, 16, 64, 256, 1024], 2000
largest = {}
print("on average over 2000 trials      largest of ten weights, scores divided by")
print(" d_k   variance of a score       nothing   root of d_k   d_k")
for width in widths:
    rng = np.random.default_rng(width)
    queries = rng.standard_normal((trials, 1, width))
    ten_keys = rng.standard_normal((trials, 10, width))
    products = similarity_matrix(queries, ten_keys)[:, 0]  # (2000 trials, 10 keys)

    found = [softmax(products / by) for by in (1, np.sqrt(width), width)]
    largest[width] = [weights.max(axis=1).mean() for weights in found]
    nothing, root, whole = largest[width]
    print(f"{width:4}{products.var():21.1f}{nothing:15.2f}{root:13.2f}{whole:8.2f}")

# %% [markdown]
# Undivided, one random key takes 87 percent of the weight at width 64, and 97 percent at 1024. Divided by $\sqrt{d_k}$,
# the largest weight is about 0.3. Why not divide by $d_k$ itself? Such scores have the standard deviation
# $1 / \sqrt{d_k}$, so the wider the keys, the more equal the weights: at 1024 each of these ten keys gets about a
# tenth. Such a softmax is not saturated, but at the start the answer to such a random query is nearly the plain average
# of the values. That is not hopeless, but the gradients [are then short](#can-a-query-still-learn), and shorter the
# wider the keys, so learning needs larger steps.
#
# All of this holds only for the start. Training fits queries to keys, so their entries are no longer independent, and
# then scores may have any size. A query and a key that have become parallel, with entries of size 1, have the product
# $d_k$, so after the division the score is still $\sqrt{d_k}$. At width 64 that is 8, and $e^8 \approx 3000$ times the
# weight of a key with score 0.

# %% tags=["proof"]
assert round(np.exp(2**0.5)) == 4
assert largest[64][0].round(2) == 0.87 and largest[1024][0].round(2) == 0.97
assert all(0.25 < divided < 0.33 for _, divided, _ in largest.values())
assert largest[1024][2].round(2) == 0.1 and largest[64][2].round(2) == 0.12

# %% [markdown]
# ### Scaled dot-product attention
#
# With the scaling, the soft look-up has four steps: dot product, scaling, softmax and blend. Stack the queries as rows
# of $Q$, $(T, d_k)$, the keys as rows of $K$, $(S, d_k)$, and the values as rows of $V$, $(S, d_v)$:
#
# $$O = \operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V .$$


# %% tags=["nbval-check-output"]
def attention(queries, keys, values):  # (..., T, d_k), (..., S, d_k), (..., S, d_v)
    scaled = queries @ keys.swapaxes(-1, -2) / np.sqrt(keys.shape[-1])
    powers = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True)  # (..., T, S)
    return weights @ values  # (..., T, d_v)


rng = np.random.default_rng(0)
one, ten = rng.standard_normal((1, 64)), rng.standard_normal((10, 64))
weights_of = np.eye(10)  # with these values the answer is the weights
print("divided:  ", attention(one, ten, weights_of)[0].round(2))
# 8 = √64 in the query undoes the division
print("undivided:", attention(8 * one, ten, weights_of)[0].round(2))

# %% [markdown]
# The division shows at once: undivided, one of ten random keys takes 93 percent of the weight; divided, none takes more
# than 31. The function needs NumPy alone. PyTorch has it, in `torch.nn.functional`, as `scaled_dot_product_attention`.

# %% tags=["proof"]
found = [attention(n * one, ten, weights_of).max() for n in (1, 8)]
assert np.round(found, 2).tolist() == [0.31, 0.93]

# %% [markdown]
# ### Which d is under the root?
#
# The number $d_k$ is the width of one key, which is the number of products in one score. A transformer runs several
# attentions side by side, called **heads** (chapter 6). Each head has narrow keys of its own, and their width is $d_k$.
# Many libraries call it `head_dim`. So $d_k$ is not the width of a word's vector, which is 512 in the original paper.

# %% tags=["quiz"]
d_model, num_heads, words = 768, 12, 100
quiz.number(
    "A model's words have vectors of width 768. It runs 12 heads, each with keys a twelfth as wide, on a sentence of 100 words. By which number are the scores divided?",
    np.sqrt(d_model / num_heads),
    tolerance=0.01,
    feedback="Yes: each head's keys have 768 / 12 = 64 entries, and $\\sqrt{64} = 8$.",
    mistakes=[
        (
            np.sqrt(d_model),
            "That is $\\sqrt{768}$, the root of the whole width. One score sums only the entries of one head.",
        ),
        (
            np.sqrt(words),
            "That is the root of the number of words. Words are compared with each other, not summed in a score.",
        ),
        (
            d_model / num_heads,
            "That is the width of one key. Its *root* is the typical size of a score.",
        ),
        (
            num_heads,
            "That is the number of heads. It says how many keys a word has, not how wide one is.",
        ),
        (
            np.sqrt(num_heads),
            "That is the root of the number of heads, which says nothing about how many products a score sums.",
        ),
    ],
    otherwise="First find the width of one key of one head; then take its root.",
)

# %% [markdown]
# ### What does saturation cost?
#
# At the start, undivided scores of wide keys saturate the softmax. Does this hurt learning? The paper that introduced
# the transformer ([Vaswani and others, 2017](https://arxiv.org/abs/1706.03762)) only suspects so: "we suspect that for
# large values of $d_k$, the dot products grow large in magnitude, pushing the softmax function into regions where it
# has extremely small gradients". Let us test the suspicion by training the queries alone. In a network, training says
# which key is wanted (chapter 7). Here we say it ourselves: the first.
#
# Take two keys, with the values 1 and 0. The answer is then $w_1$, the weight of the first, and learning should raise
# it by changing the query $q$. With two keys $w_1$ is the sigmoid of $x = q \cdot (k_1 - k_2) / \tau$, the difference
# of their scores, where $\tau$ is $\sqrt{d_k}$, or 1 without the division. Raising the first score raises $x$ equally,
# so the derivative of $w_1$ with respect to $x$ is on the diagonal of $J$: $w_1 (1 - w_1)$. And that of $x$ with
# respect to each entry of $q$ is the matching entry of $(k_1 - k_2) / \tau$. The derivatives of $w_1$ with respect to
# all entries of $q$ make a vector, the **gradient**, and by the chain rule it is
#
# $$\frac{\partial w_1}{\partial q} = w_1 (1 - w_1) \cdot \frac{k_1 - k_2}{\tau} .$$
#
# In words: to raise $w_1$, move the query towards the first key and away from the second. The first factor is small
# where the softmax is saturated. The second is shortened by the division. Which counts for more? For random keys of
# width 64, $k_1 - k_2$ has a length of about $\sqrt{128} = 11.3$, and the undivided scores typically differ by 11. Say
# that the first key trails by that much. Compare the two versions:
#
# | | $x$ | $w_1$ | $w_1 (1 - w_1)$ | length of $(k_1 - k_2) / \tau$ | length of the gradient |
# |---|---|---|---|---|---|
# | unscaled | −11 | 0.000017 | 0.000017 | 11.3 | 0.0002 |
# | scaled | −1.4 | 0.20 | 0.16 | 1.4 | 0.23 |
#
# (With ten random keys this is common: about half of the time the wanted one trails the best by at least that much.)
# The scaled gradient is a thousand times as long. Without the division it is nearly 0 where learning is needed, a
# *vanishing gradient*. Now draw queries at random, each with ten keys. How long are their gradients? ([Going
# further](#can-a-query-still-learn) has the formula for ten.)

# %% tags=["plot"] mystnb={"image": {"alt": "Two histograms of the lengths of 2,000 gradients, on a logarithmic axis. Width 64: the scaled ones lie in a narrow hump around 0.07, the unscaled ones are spread from 3 down to 1e-18, with a median below 0.0001. Width 1024: the scaled ones are where they were, and the unscaled ones reach from 11 to below 1e-30."}}
lengths = {}
figure, panels = plt.subplots(1, 2, figsize=(6.2, 2.7), sharey=True)
for axes, width in zip(panels, (64, 1024), strict=True):
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((2000, 1, width))
    ten_keys = rng.standard_normal((2000, 10, width))
    for name, tau, color in [
        ("scaled", np.sqrt(width), plots.BLUE),
        ("unscaled", 1, plots.RED),
    ]:
        weights = softmax(queries @ ten_keys.swapaxes(1, 2) / tau)
        slopes = softmax_jacobian(weights)[:, :, 0] @ ten_keys / tau
        lengths[name, width] = np.linalg.norm(slopes, axis=-1).flatten()
        shown = np.log10(np.maximum(lengths[name, width], 1e-30))
        axes.hist(shown, np.arange(-30, 3), color=color, alpha=0.7)
        axes.set(title=f"width {width}", xlabel="length of the gradient")
    axes.set_xticks([-30, -15, 0], ["≤ 1e-30", "1e-15", "1"])
panels[0].set_ylabel("queries of 2,000")
panels[0].text(-3, 1100, "scaled", color=plots.BLUE, ha="right")
panels[0].text(-5, 400, "unscaled", color=plots.RED, ha="right")
plt.show()

# %% [markdown]
# Without the division the median length is below 0.0001 at width 64, and below $10^{-18}$ at 1024. With it the median
# is about 0.07 at both: the weights are alike, and the factor $1/\sqrt{d_k}$ cancels the growing length of the
# difference.
#
# Does a short gradient slow learning down? If it does, many unscaled queries should still fail after 100 steps. Let
# each query move, while its keys stay as they are: a step adds 10 times the gradient of $w_1$ to the query; the 10 is
# called the **learning rate**. A query succeeds if its first key has more than 0.9 of the weight. The table shows how
# many have succeeded before the first step, by luck, and how many after 100 steps:
#
# | | width 64, before | after | width 1024, before | after |
# |---|---|---|---|---|
# | scaled | 0 % | 100 % | 0 % | 100 % |
# | unscaled | 6 % | 53 % | 9 % | 19 % |

# %% tags=["proof"]
medians = {key: np.median(found) for key, found in lengths.items()}
assert 2e-5 < medians["unscaled", 64] < 1e-4
assert medians["unscaled", 1024] < 1e-18
assert all(0.06 < medians["scaled", width] < 0.08 for width in (64, 1024))
for width, expected in ((64, 0.012), (1024, 0.003)):  # divided by d_k itself
    rng = np.random.default_rng(0)
    queries = rng.standard_normal((2000, 1, width))
    ten_keys = rng.standard_normal((2000, 10, width))
    weights = softmax(queries @ ten_keys.swapaxes(1, 2) / width)
    slopes = softmax_jacobian(weights)[:, :, 0] @ ten_keys / width
    assert round(np.median(np.linalg.norm(slopes, axis=-1)), 3) == expected
apart, behind = np.sqrt(2 * 64), 1 / (1 + np.exp(11))  # of two keys; its weight
assert round(apart, 1) == 11.3 and round(behind, 6) == 0.000017
assert round(behind * (1 - behind) * apart, 4) == 0.0002
rng = np.random.default_rng(0)
one, ten = (rng.standard_normal((4000, rows, 64)) for rows in (1, 10))
found = (one @ ten.swapaxes(1, 2))[:, 0]
lag = (found.max(axis=1) - found[:, 0]) > 11
assert 0.45 < lag.mean() < 0.57
scaled = 1 / (1 + np.exp(11 / 8))
assert round(scaled, 1) == 0.2
assert round(scaled * (1 - scaled) * apart / 8, 2) == 0.23

# %% [markdown]
# With the division every query succeeds. Without it about half fail at width 64, and four fifths at 1024. So the
# division lets the softmax *start* where its derivatives are not nearly 0. ([Going further](#can-a-query-still-learn)
# has the code.) The verdict depends on the learning rate. At 0.1, too small for a hundred steps, the unscaled queries
# are ahead: those that are not saturated have the longer gradients. And the division is not the only cure: [steps of a
# fixed length](#when-does-it-matter-less) work at both widths, too, and absurdly large learning rates ($10^{12}$) at
# width 64. But the division costs almost nothing, and with it every learning rate from 10 up that we tried works at
# both widths.

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: How many keys is that?
#
# *Easy, 10 minutes.* Weights of $\frac14, \frac14, \frac14, \frac14$ attend to four keys; weights of $1, 0, 0, 0$ to
# one. For anything in between there is the **perplexity**: $e^{H}$ with the entropy $H = -\sum_i w_i \ln w_i$, where
# a weight of 0 contributes 0. (For $n$ equal weights $H = \ln n$, so $e^H = n$.) Return the perplexity of each row.


# %% tags=["exercise"]
def perplexity(weights):
    """Effective number of keys: weights (..., S) -> (...)."""
    ...


# %% tags=["check"]
check_perplexity = partial(
    checks.check,
    reference=lambda w: np.prod(np.where(w > 0, w, 1.0) ** -w, axis=-1),
    cases=[
        (np.full(4, 0.25),),
        (np.array([[0.7, 0.2, 0.1], [0.2, 0.3, 0.5]]),),
        (np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]),),
    ],
    properties=[checks.finite],
    mistakes={
        "that is the entropy itself: raise e to its power": lambda w: (
            -(np.where(w > 0, w * np.log(np.where(w > 0, w, 1)), 0)).sum(-1)
        ),
        "the sign is the wrong way round: you return one over the number of keys": lambda w: (
            np.prod(np.where(w > 0, w, 1.0) ** w, axis=-1)
        ),
        "the sum runs over everything: give each row a number of its own, with `axis=-1`": lambda w: (
            np.prod(np.where(w > 0, w, 1.0) ** -w)
        ),
        "the logarithm is to base 2 and the power to base e: use one base": lambda w: (
            np.exp(
                -(np.where(w > 0, w * np.log2(np.where(w > 0, w, 1)), 0)).sum(-1)
            )
        ),
    },
)
check_perplexity(perplexity)


# %% tags=["solution"]
def perplexity(weights):
    # ln 1 = 0, so that a weight of 0 contributes 0
    logarithms = np.log(np.where(weights > 0, weights, 1))
    return np.exp(-(weights * logarithms).sum(axis=-1))


verdict = check_perplexity(perplexity)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: The logarithm of a softmax
#
# *Medium, 10 minutes.* Training needs $\ln w_i$ (chapter 7). `np.log(softmax(scores))` gives minus infinity as soon as
# a weight rounds to 0. Find a form that stays finite for all scores whose differences are finite.


# %% tags=["exercise"]
def log_softmax(scores):
    """Logarithm of the softmax over the last axis: scores (..., S) -> (..., S)."""
    ...


# %% tags=["check"]
check_log_softmax = partial(
    checks.check,
    reference=lambda s: s - np.logaddexp.reduce(s, axis=-1, keepdims=True),
    cases=[
        (np.array([0.0, 1.0, 2.0]),),
        (np.array([[1.0, -2.0], [0.5, 0.5]]),),
        (np.array([[0.0, 1.0], [2000.0, 2001.0]]),),
        (np.array([0.0, 1000.0]),),
    ],
    properties=[checks.finite, checks.same_shape_as_first_argument],
    mistakes={
        "that is the softmax: its logarithm is still to be taken": lambda s: (
            softmax(s)
        ),
        "you take the logarithm of finished weights, and some have rounded to 0: take it before they can": lambda s: (
            np.log(softmax(s))
        ),
        "you subtract the largest of *all* scores, and a row far below it has lost everything: each row has its own": lambda s: (
            s - s.max() - np.log(np.exp(s - s.max()).sum(-1, keepdims=True))
        ),
        "the largest score is subtracted before the exponentials, but not from the score in front": lambda s: (
            s - np.log(np.exp(s - s.max(-1, keepdims=True)).sum(-1, keepdims=True))
        ),
        "the sum runs over everything: use `axis=-1, keepdims=True`": lambda s: (
            s - np.logaddexp.reduce(s, axis=None)
        ),
    },
)
check_log_softmax(log_softmax)


# %% tags=["solution"]
def log_softmax(scores):
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


verdict = check_log_softmax(log_softmax)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# The softmax turns scores into weights that are not negative, sum to 1 and depend only on differences between scores; a
# weighted average of the values with these weights is a look-up that never has to choose. A temperature sets how sharp
# it is. Where it is too sharp, its derivatives are nearly 0, and a query that follows them can get stuck. Dot products
# of vectors with independent entries of mean 0 and variance 1 have the typical size $\sqrt{d_k}$, so they are divided
# by that, and at the start the weights are about equally sharp at every width.
#
# **Sources.** The softmax in a learning machine, and its name: [Bridle
# (1990)](https://doi.org/10.1007/978-3-642-76153-9_28). A temperature to soften a network's answers: [Hinton, Vinyals
# and Dean (2015)](https://arxiv.org/abs/1503.02531). The division by $\sqrt{d_k}$, with the variance argument in a
# footnote: [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762), section 3.2.1.
#
# **Next.** One query has looked something up. [In chapter 4](04_self_attention.ipynb) every word of a sentence does so,
# and the first attempt fails.

# %% [markdown]
# ## Going further
#
# Two questions about the division, one each about blends, many keys and models of your own, the end of a proof, a
# question about the shares, and short answers to twelve more. No later chapter needs them.
#
# ### Can a query still learn?
#
# Here is the experiment behind the percentages of [What does saturation cost?](#what-does-saturation-cost) One of ten
# random keys is the right one: its value is 1 and those of the others are 0, so that the weighted sum is its weight.
# The query follows the gradient of that weight uphill for 100 steps (**gradient ascent**). It acts on $w_1$ through all
# ten scores. A change of score $j$ changes $w_1$ by $J_{1j}$ times as much, and score $j$ has the gradient
# $k_j / \tau$, so the chain rule gives a sum,
#
# $$\frac{\partial w_1}{\partial q} = \frac1\tau \sum_j J_{1j} \, k_j = \frac{w_1}{\tau} \bigl(k_1 - \bar k\bigr), \qquad \bar k = \sum_j w_j k_j .$$
#
# The second equals sign holds because $J_{11} = w_1 - w_1 w_1$, and $J_{1j} = -w_1 w_j$ for the others. With two keys
# $k_1 - \bar k$ is $(1 - w_1)(k_1 - k_2)$, as above.


# %%
def learn(width, tau, learning_rate, seed, scale=1.0, steps=100, unit=False):
    """The share of 100 queries that end with more than 0.9 on the key they want."""
    rng = np.random.default_rng(seed)
    query = scale * rng.standard_normal((100, 1, width))
    keys = scale * rng.standard_normal((100, 10, width))
    for _ in range(steps if learning_rate else 0):
        weights = softmax(query @ keys.swapaxes(1, 2) / tau)
        gradient = softmax_jacobian(weights)[:, :, 0] @ keys / tau  # of w_1
        if unit:  # all of the same length
            gradient = gradient / np.linalg.norm(gradient, axis=-1, keepdims=True)
        query = query + learning_rate * gradient
    return np.mean(softmax(query @ keys.swapaxes(1, 2) / tau)[:, 0, 0] > 0.9)


rates, ends = (0, 0.1, 1, 10, 1e6, 1e12), {}
print("queries with more than 0.9 on their key, by learning rate")
print(f"{'':22}", *(f"{rate:9g}" for rate in rates))
for width in (64, 1024):
    for name, tau in (("unscaled", 1), ("scaled", width**0.5)):
        ends[name, width] = [
            np.mean(
                [learn(width, tau, rate, seed) for seed in range(5 if rate else 60)]
            )
            for rate in rates
        ]
        row = " ".join(f"{share:9.0%}" for share in ends[name, width])
        print(f"d_k {width:4}, {name:13} {row}")

# %% [markdown]
# Each percentage after 100 steps is of 500 queries, so a few points either way are chance. Read the columns from left
# to right:
#
# - *Learning rate 0.* No query moves, so only luck counts. In some 60 percent of the unscaled draws at width 64, and in
#   some 90 percent at 1024, one key has more than 0.9. It is the right key in one of ten of these, which makes 6 and 9
#   percent.
# - *Learning rate 0.1.* It is too small for a hundred steps, and the unscaled version is ahead. Where its softmax is
#   not saturated, its gradients are the larger ones, since they lack the factor $\frac1\tau$.
# - *Learning rates 1 and 10.* At 1 nearly every scaled query finds its key, and at 10 every one does.
# - *Learning rates of a million and more.* At width 64 a million lets 88 percent of the unscaled queries find their
#   key, and $10^{12}$ nearly all, since a gradient that is not 0 can be multiplied by enough. At 1024 fewer than half
#   do, even at $10^{12}$.
#
# So the division does not make all gradients larger. (What about dividing by $d_k$ itself? That shortens them, because
# $1/d_k$ shrinks faster than $k_1 - \bar k$ grows: the median is 0.012 at width 64 and 0.003 at 1024. But they are all
# about equally short, so one larger learning rate suits all: with 1000 all queries succeed at both widths.)
#
# The softmax at the end of a model, which predicts the next word, does not stall like this. It is trained on $-\ln w$
# and not on $w$. The derivative of the logarithm has a factor $\frac1w$, which cancels the factor $w$ in $w (1 - w)$
# and in $-w_i w_j$: see [chapter 7](07_learning.ipynb#where-does-the-gradient-begin).
#
# ### When does it matter less?
#
# The division cancels the growth with the width, but not the scale of the entries. If all entries are twice as large,
# all products are four times as large, and so are the scores. In general, if the entries have variance $v$ in place of
# 1, unscaled scores have variance $v^2 d_k$. For example, let PyTorch's `nn.Linear` make queries and keys from word
# vectors whose entries have variance 1. It draws its weights uniformly from $-1/\sqrt n$ to $1/\sqrt n$, where $n$ is
# the width of a word vector. Numbers drawn uniformly from $-b$ to $b$ have variance $b^2 / 3$, so the weights have
# variance $\frac1{3n}$. Each entry of a query is a sum of $n$ products, each of variance $1 \cdot \frac1{3n}$, so
# $v = \tfrac13$, and unscaled scores at width 64 have variance $64 / 9 = 7.1$. Repeat the experiment from this start:

# %%
for width in (64, 1024):
    small = partial(learn, width, learning_rate=10, scale=3**-0.5)  # variance 1/3
    found, scaled = (
        np.mean([small(tau=tau, seed=seed) for seed in range(3)])
        for tau in (1, width**0.5)
    )
    print(
        f"d_k {width:4}, learning rate 10: unscaled {found:.0%}, scaled {scaled:.0%}"
    )
    assert round(found, 2) == (0.98 if width == 64 else 0.43) and scaled == 1

# %% [markdown]
# At width 64 nearly all unscaled queries now find their key, and at 1024 fewer than half; with the division all do. So
# from this start the division matters less, above all for narrow keys.
#
# Could training not do the division itself, by shrinking the matrix that makes the queries? It could, but it would
# begin from a saturated softmax. One later model, T5, avoids this by starting the query matrix with smaller numbers.
#
# The division also matters less with another kind of step. Go back to variance 1, and give all steps the same length,
# 0.1 (*normalised* gradient steps). Then every query finds its key at either width, with the division or without. The
# unscaled ones even get there sooner. Without the division the same step moves the scores $\sqrt{d_k}$ times as far.
# The scores also start $\sqrt{d_k}$ times further apart, but the lead to be reached is the same at any width: for a
# weight of 0.9, $\ln 9 = 2.2$ over one rival, or $\ln 81 = 4.4$ over nine equal ones.
#
# So unscaled scores spoil the size of the gradient, while its direction is still useful, and a step of fixed length for
# *each query* is enough. That holds in float64, in which this is computed. Float32 holds nothing positive below about
# $10^{-45}$ (on some devices $10^{-38}$), so the weight of the right key rounds to 0 at the start for some 6 percent of
# the queries at width 1024, and then no direction is left. Adam, of [chapter 11](11_training.ipynb#adam), rescales its
# steps, too. But it rescales a sum over many examples, and a saturated query adds next to nothing to this sum.

# %% tags=["proof"]
for width in (64, 1024):
    # divided by d_k, with a large learning rate
    assert np.mean([learn(width, width, 1000, seed) for seed in range(3)]) == 1
    # variance 1 again, and steps of the fixed length 0.1: every one finds its key
    ways = [1, width**0.5]
    assert all(learn(width, tau, 0.1, 0, unit=True) == 1 for tau in ways)
    sooner, later = (learn(width, tau, 0.1, 0, steps=25, unit=True) for tau in ways)
    assert sooner > 0.8 > 0.1 > later
gone = []  # weights on the right key that are 0 in float32, unscaled
for seed in range(5):
    rng = np.random.default_rng(seed)
    query, keys = (
        rng.standard_normal((2000, 1, 1024)),
        rng.standard_normal((2000, 10, 1024)),
    )
    unscaled = (query @ keys.swapaxes(1, 2)).astype(np.float32)
    powers = np.exp(unscaled - unscaled.max(axis=-1, keepdims=True))
    gone.append(np.mean(powers[:, 0, 0] / powers.sum(axis=-1)[:, 0] == 0))
assert 0.04 < min(gone) < max(gone) < 0.09
assert ends["unscaled", 64][1] > 0.3 > 0.02 > ends["scaled", 64][1]
for width in (64, 1024):
    lucky = 0.06 if width == 64 else 0.09
    assert ends["unscaled", width][0].round(2) == lucky
    assert ends["scaled", width][0] < 0.001
    assert 0.94 < ends["scaled", width][2] < 0.99
    assert min(ends["scaled", width][3:]) == 1
    assert max(ends["unscaled", width][2:4]) < 0.56
assert 0.1 < 1 - ends["unscaled", 64][4] < 0.12
assert ends["unscaled", 64][5] > 0.98 and 0.3 < ends["unscaled", 1024][5] < 0.5
for width, share in ((64, 0.6), (1024, 0.9)):
    rng = np.random.default_rng(width)
    one, ten = (rng.standard_normal((2000, rows, width)) for rows in (1, 10))
    winners = softmax(similarity_matrix(one, ten)).max(axis=-1)
    assert round(np.mean(winners > 0.9), 1) == share
assert round(64 / 9, 1) == 7.1
assert [
    round(ends["unscaled", width][n], 2) for n in (3, 4) for width in (64, 1024)
] == [0.53, 0.19, 0.88, 0.29]
assert ends["scaled", 64][3] == ends["scaled", 1024][3] == 1

# %% [markdown]
# ### Is a blend near a word that fits both?
#
# Blend 0.6 of *account* and 0.4 of *river*, in the vectors of [chapter 2](02_similarity.ipynb#real-vectors). Which words
# are nearest?

# %% the words nearest to a blend tags=["hide-input"]
from dotformer.by_hand.similarity import normalize
from dotformer.support.published import minilm_embeddings

row_of, embeddings = minilm_embeddings()
known = sorted(word for word in row_of if word.isalpha() and len(word) > 2)
rows = normalize(embeddings[[row_of[word] for word in known]])
pair = rows[[known.index("account"), known.index("river")]]
cosines = rows @ normalize(weighted_average(np.array([0.6, 0.4]), pair))
nearest = np.argsort(-cosines)[:5]
print(*(f"{known[n]} {cosines[n]:.2f} " for n in nearest))
assert known[nearest[-1]] == "bank"
bank = rows[known.index("bank")]
assert (
    np.round(pair @ bank, 2).tolist() == [0.31, 0.25]
    and cosines[nearest[-1]] > 0.38
)

# %% [markdown]
# After the two words and their plurals comes *bank*, the nearest of all the others. (The cosine of *bank* with *account*
# alone is 0.31, and with *river* 0.25.) We chose the pair and the shares. For most pairs nothing so neat appears.

# %% [markdown]
# ### Does the number of keys matter?
#
# Yes, because many small weights add up. Suppose that one of 10,000 keys has the score 6, and all others have 0. At
# $\tau = 1$ this key gets only $e^6 / (e^6 + 9{,}999) = 0.04$ of the weight, and at $\tau = 0.5$ it gets 0.94. So if
# leads do not grow with the number of keys, attention spreads out (**dilution**). To keep its weight, a key's lead
# $\Delta$ over $n - 1$ equal keys must grow like $\ln n$, so that $e^\Delta$ keeps pace with $n - 1$. One remedy
# multiplies the scores by a factor that grows like $\ln n$. Equal weights over very many keys have small derivatives,
# like saturated ones.

# %% tags=["proof"]
crowd = np.eye(1, 10_000)[0] * 6  # one key with the score 6 among 10,000
assert np.round([softmax(crowd)[0], softmax(crowd / 0.5)[0]], 2).tolist() == [
    0.04,
    0.94,
]

# %% [markdown]
# ### Is mine saturated?
#
# To find saturated rows in a model, record for each head the largest weight of each row, or its
# [perplexity](#exercise-1-how-many-keys-is-that), and the standard deviation of the scores. Compare gradients, too: in
# a saturated head those of the query and key matrices are far smaller than in other heads. That of the value matrix
# need not be, because it does not pass through the softmax. If nearly all rows are sharp at the start, check the
# divisor and the initialisation. If they become sharp in training, that may be right. If training then becomes
# unstable, two things can help: a new start with a lower learning rate, or queries and keys of normalised length with a
# learned scale. (In practice nobody builds $J$. If $g$ is the gradient with respect to the weights, the gradient with
# respect to the scores is $w \odot (g - w \cdot g)$, where $\odot$ multiplies entry by entry: [chapter
# 7](07_learning.ipynb#back-through-the-softmax).)

# %% [markdown]
# ### Why only powers?
#
# [From scores to shares](#from-scores-to-shares) found $f(x + y) = f(x) f(y)$. Since $n$ steps of $\frac1n$ make 1,
# $f(\frac1n)$ is the $n$-th root of $a$, and $m$ such steps give $f(\frac mn) = a^{m/n}$. The same formula holds for
# negative fractions, because $f(-x) = 1 / f(x)$: swapping the two keys inverts the ratio. Any other $x$ lies between
# fractions that are as near to it as we like. Now $f$ grows with $x$, since adding $y > 0$ to $x$ multiplies $f(x)$ by
# $f(y) > 1$. So $f(x)$ lies between the powers of $a$ that belong to these fractions, and $f(x) = a^x$ holds for this
# $x$, too.

# %% [markdown]
# ### Must shares sum to 1?
#
# A sigmoid of each score could answer *nothing found*, because its shares need not add up to one. But then the answer
# is no average: it grows with the number of keys, and keys do not compete. A paper that trained such models subtracts
# about $\ln S$ from every score ([Ramapuram and others, 2024](https://arxiv.org/abs/2409.04431)).
#
# (Exercise 2 subtracts the *log-sum-exp*, $\ln \sum_j e^{s_j}$, a soft *maximum*. Its derivative with respect to $s_i$
# is $w_i$.)

# %% [markdown]
# ### Short answers
#
# - **Does dividing by $\sqrt{d_k}$ make subtracting the largest score unnecessary?** No. The division is there so that
#   the softmax does not start saturated, but trained scores may still be too large for $e^x$. The subtraction keeps the
#   exponentials from overflowing, and changes no weight.
# - **Does a weight of 0.9 mean that the model is 90 percent certain?** No. It is a share of the blend, and nothing ties
#   it to how often the key is right. At $\tau = 0.5$ coffee's 0.73 becomes 0.88, though the scores are the same.
# - **Why not square the scores, or set negative ones to 0?** Squares put a bad match above a good one: $-3$ gets 9, and
#   2 gets 4. With negative scores set to 0 these keys get share 0 and no hint from small changes, and if no score is
#   positive, 0/0 remains.
# - **Can a temperature change which key wins?** No, because dividing by a positive number keeps the order of the
#   scores. The answer changes all the same: as $\tau$ rises from 1, the price goes from 2.91 towards the plain average,
#   11.50.
# - **What happens if softmax is applied twice?** The weights become too equal. The first result lies between 0 and 1,
#   so the second gives no key more than $e$ times another's weight: with ten keys at most $e / (e + 9) = 0.23$. A
#   largest weight that never passes this limit gives the mistake away.
# - **What if you leave the softmax out?** Then $O = (Q K^\top) V = Q (K^\top V)$: every query meets the same matrix,
#   and keys do not compete. *Linear attention* regroups like this, with positive shares that sum to 1, and so needs no
#   $T \times S$ scores ([Katharopoulos and others, 2020](https://arxiv.org/abs/2006.16236)).
# - **Is attention linear?** In the values, yes: while the weights stay as they are, doubled values double the answer.
#   In the queries, no: if every value is 5, the answer is 5 for a query and for its double.
# - **Could a hard look-up be trained after all?** Yes: draw one entry with the weights as probabilities, and make draws
#   that helped more likely ([Xu and others, 2015](https://arxiv.org/abs/1502.03044), for captions of images). The hint
#   rests on single draws, so it must be averaged over many.
# - **Is there a softmax that gives weak keys exactly 0?** Yes, *sparsemax* ([Martins and Astudillo,
#   2016](https://arxiv.org/abs/1602.02068)). It subtracts a threshold, chosen so that what stays positive sums to 1,
#   and sets the rest to 0: the scores 0, 0.5, 1 get 0, 0.25, 0.75. A key below the threshold gets no gradient.
# - **What if there is only one key?** Its weight is 1 whatever its score, so the answer is its value. The derivative
#   $1 \cdot (1 - 1)$ is 0, so neither query nor key can learn from such a row, although the value can.
# - **Do cosines need the division, too?** No, rather a factor above 1. Cosines lie between $-1$ and 1, so no key gets
#   more than $e^2 = 7.4$ times another's weight, and the best of 100 at most 0.07. [Henry and others
#   (2020)](https://arxiv.org/abs/2010.04245) multiply cosines by a learned number.
# - **Can a blend of two right answers be wrong?** Yes. With half of the weight on the year 1910 and half on 1990 the
#   answer is 1950, which is neither value, and nothing in it shows that. So an average suits values that can be mixed,
#   as vectors of words can.

# %% tags=["proof"]
assert round(softmax(scores / 0.5)[1], 2) == 0.88
assert round(values[:, 0].mean(), 2) == 11.5
assert round(np.e / (np.e + 9), 2) == 0.23
assert round(np.exp(2), 1) == 7.4
assert round(np.exp(1) / (np.exp(1) + 99 * np.exp(-1)), 2) == 0.07
