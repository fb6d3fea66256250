# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 4. What does a word pay attention to?
#
# *The dog bites the man.* To know what *bites* means here, look at its neighbours. At the end of this chapter there is
# a function that lets every word of a sentence look at all the words at once and take from each what it needs: scaled
# dot-product attention, the formula at the heart of the transformer.
#
# You need the soft look-up of [chapter 3](03_softmax.ipynb). It takes about 30 minutes to read, and 45 more for the
# exercises.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. Dot product, scaling, softmax and weighted average are built. This chapter adds the three projections to queries, keys and values, which completes one attention block."}}
from functools import partial, wraps

import matplotlib.pyplot as plt
from classroom import checks, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=4)

# %% [markdown]
# The boxes marked *built* are the look-up of chapter 3. Those of *this chapter* feed it, and make it look at the
# sentence itself.
#
# ## A first try: everybody looks at everybody
#
# A look-up needs queries, keys and values. You have a sentence of nine tokens (a **token** is a word or a punctuation
# mark, for now), each with a vector. Take the plainest choice: the word vectors are all three. Each word in turn is the
# query; all nine are keys, and all nine are values.


# %%
import numpy as np
from dotformer.by_hand.similarity import similarity_matrix
from dotformer.by_hand.softmax import softmax, weighted_average

tokens = ["I", "like", "Natural", "Language", "Processing", ",", "a", "lot", "!"]
width = 16
x = np.random.default_rng(0).standard_normal((9, width))  # nobody has trained these


def first_try(x):
    output = np.zeros_like(x)
    for i, query in enumerate(x):
        scores = np.array([query @ key for key in x]) / np.sqrt(width)  # 9 numbers
        output[i] = weighted_average(softmax(scores), x)
    return output


# %% [markdown]
# Nine vectors go in, nine come out, each a blend of all nine. Forum answers often explain self-attention this way.
#
# **Predict first.** The vectors are random, so no word has anything to do with another. To which word does each word
# give its largest weight?
#
# 1. To any of the nine, by chance.
# 2. To itself.
# 3. To the longest vector in the sentence.

# %% tags=["plot"] mystnb={"image": {"alt": "Nine by nine heat map of attention weights with Q = K = V for the tokens I like Natural Language Processing , a lot !. The largest weights lie on the diagonal: nearly every token gives most of its weight to itself."}}
first_weights = softmax(x @ x.T / np.sqrt(width))
plots.attention_map(first_weights, tokens, tokens)
plt.show()

# %% [markdown]
# To itself. Each row is a query, and its largest weight stands on the diagonal every time. Is that this sentence, or all
# of them? Draw two thousand sentences of nine random vectors, and count the rows whose largest weight lies on the
# diagonal.


# %%
def weigh(queries, keys):
    return softmax(similarity_matrix(queries, keys) / np.sqrt(keys.shape[-1]))


def favours_itself(weights):
    """Share of the rows whose largest weight is the token's own."""
    return np.mean(weights.argmax(axis=-1) == np.arange(weights.shape[-1]))


many = np.random.default_rng(1).standard_normal((2000, len(tokens), width))
same = weigh(many, many)
own = np.diagonal(same, axis1=-2, axis2=-1).mean()
print(f"rows in which a token attends most to itself: {favours_itself(same):.1%}")
print(f"weight that a token gives to itself, on average: {own:.2f}")
assert np.allclose(first_try(x), first_weights @ x)
assert favours_itself(first_weights) == 1
assert 0.99 < favours_itself(same) < 1 and 0.74 < own < 0.76

# %% [markdown]
# More than 99 percent of rows, with three quarters of the weight. A vector's dot product with a stranger has size
# $\sqrt{16} = 4$, as in [chapter 3](03_softmax.ipynb#why-divide-by-the-square-root-of-the-width); its dot product with
# itself is its squared length, about 16. A stranger can win only if it is longer *and* points nearly the same way. A
# word that wants to know about its neighbours mostly hears itself. Something is missing.
#
# ## Three roles
#
# A word plays three roles in a look-up, and one vector had to serve in all of them. Compare the search for a video:
#
# - what you type is the **query**: what I am looking for;
# - the title of each video is its **key**: what I can be found by;
# - the video itself is its **value**: what I hand over when found.
#
# So give every word three vectors, one for each role. They are computed from the word's vector $x_i$ by three matrices:
#
# $$q_i = x_i W_Q , \qquad k_i = x_i W_K , \qquad v_i = x_i W_V .$$
#
# Such a multiplication by a matrix is called a **projection**. It may change the width: queries and keys have $d_k$
# numbers each, values $d_v$, so $W_Q$ and $W_K$ have the shape $(D, d_k)$ and $W_V$ has $(D, d_v)$. For a sentence $X$
# of $T$ words, $Q = X W_Q$, $K = X W_K$ and $V = X W_V$ are three matrices with a row for each word.
#
# Here is a sentence small enough for paper. A word has three numbers: is it *animate*, is it an *action*, is it
# *human*? Queries and keys have two: *alive* and *action*. Each row of a matrix says what one of the three turns into.
# The second row of $W_Q$, $(2, 0)$, means: actions look strongly for something alive.

# %% tags=["nbval-check-output"]
small_tokens = ["dog", "bites", "man"]
small = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1]])  # animate, action, human

# queries and keys have two columns: alive, action
w_q = np.array([[0, 2], [2, 0], [0, 0]])  # life looks for action, action for life
w_k = np.array([[1, 0], [0, 1], [1, 0]])  # found as; humans are alive twice over
w_v = np.array([[1, 0], [0, 0], [0, 1]])  # handed over: am I alive, am I human

q, k, v = small @ w_q, small @ w_k, small @ w_v
for token, *vectors in zip(small_tokens, q, k, v, strict=True):
    print(f"{token:6} query {vectors[0]}   key {vectors[1]}   value {vectors[2]}")

# %% [markdown]
# We chose these matrices; a transformer learns them (chapter 7). Follow the query of *bites*, $(2, 0)$, on paper.
#
# | step | dog | bites | man |
# |---|---|---|---|
# | dot product with the key | $2 \cdot 1 + 0 \cdot 0 = 2$ | $2 \cdot 0 + 0 \cdot 1 = 0$ | $2 \cdot 2 + 0 \cdot 0 = 4$ |
# | divided by $\sqrt{d_k} = \sqrt{2}$ | 1.414 | 0 | 2.828 |
# | $e$ to that power | 4.113 | 1 | 16.919 |
# | divided by the sum, 22.032 | 0.187 | 0.045 | 0.768 |
#
# The output is the blend of the three values:
#
# $$0.187 \, (1, 0) + 0.045 \, (0, 0) + 0.768 \, (1, 1) = (0.955, 0.768) .$$
#
# The verb receives that there is something alive in the sentence, mostly from *man*, and it hardly looks at itself:
# nothing in $W_Q$ and $W_K$ makes an action look for actions.

# %%
scores = q @ k.T
assert scores[1].tolist() == [2, 0, 4]
weights = softmax(scores / np.sqrt(2))
assert np.allclose(weights[1], [0.187, 0.045, 0.768], rtol=0, atol=0.0005)
assert np.allclose(weights[1] @ v, [0.955, 0.768], rtol=0, atol=0.0005)

# %% [markdown]
# The comparison with a video search stops working at three points. Here every word asks *and* is found. Nobody wrote
# the titles: queries and keys are learned together, so that they fit. And you get a blend of all the videos.

# %% tags=["quiz"]
quiz.one_choice(
    "In self-attention, what does the query vector of a word stand for?",
    quiz.right(
        "What the word is looking for",
        "Yes: $q_i = x_i W_Q$ is compared with every key, and decides whose values word $i$ receives.",
    ),
    quiz.wrong(
        "What the word can be found by",
        "That is its key. The two are easily swapped, since both enter the same dot product; the query belongs to the word that *receives* the blend.",
    ),
    quiz.wrong(
        "The content that the word passes on",
        "That is its value. A query is compared and then forgotten; no entry of it reaches the output.",
    ),
    quiz.wrong(
        "The word's own vector, as it entered the layer",
        "The vector $x_i$ is the *source* of the query, but also of the key and the value. The matrix $W_Q$ makes the difference.",
    ),
)

# %% [markdown]
# ## The definition
#
# Scores are one matrix product, the softmax runs along each row, and the blend is another product:
#
# $$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V .$$
#
# | | shape | a row is |
# |---|---|---|
# | $Q$ | $(T, d_k)$ | what one word looks for |
# | $K$ | $(S, d_k)$ | what one word can be found by |
# | $V$ | $(S, d_v)$ | what one word hands over |
# | $Q K^\top$, the scores | $(T, S)$ | how well each key matches one query |
# | their softmax, the weights | $(T, S)$ | how one query shares out its attention |
# | the result | $(T, d_v)$ | what one query received |
#
# In **self-attention** queries, keys and values come from the same words, so $T = S$. The formula works for any $T$ and
# $S$.
#
# The matrix of weights has an entry for every pair of words, so a text twice as long costs four times the work.
#
# The code below has one argument more, `mask`; the next section is about it.


# %% tags=["export"] module="by_hand.attention"
import numpy as np
from dotformer.by_hand.softmax import softmax
from dotformer.support.shapes import shapes
from jaxtyping import Bool, Float, Real


@shapes
def scaled_dot_product_attention(
    query: Real[np.ndarray, "*#batch T d_k"],
    key: Real[np.ndarray, "*#batch S d_k"],
    value: Real[np.ndarray, "*#batch S d_v"],
    mask: Bool[np.ndarray, "*#batch #T #S"] | None = None,
) -> tuple[Float[np.ndarray, "*batch T d_v"], Float[np.ndarray, "*#batch T S"]]:
    """Scaled dot-product attention: softmax(Q K^T / sqrt(d_k)) V, and its weights.

    `mask` is True where a query may attend. Raises ValueError when a query may
    attend to nothing, or the largest of its scores is NaN or infinity. After
    Vaswani and others (2017), equation 1.
    """
    scores = query.astype(float) @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = softmax(scores)
    return weights @ value, weights


@shapes
def self_attention(
    x: Real[np.ndarray, "*batch T D"],
    w_q: Real[np.ndarray, "D d_k"],
    w_k: Real[np.ndarray, "D d_k"],
    w_v: Real[np.ndarray, "D d_v"],
    mask: Bool[np.ndarray, "*#batch #T #T"] | None = None,
) -> tuple[Float[np.ndarray, "*batch T d_v"], Float[np.ndarray, "*batch T T"]]:
    """Attention of a sequence to itself: three projections of the same vectors.

    `mask`, the results and the errors are those of `scaled_dot_product_attention`.
    """
    query, key, value = (x.astype(float) @ w for w in (w_q, w_k, w_v))
    return scaled_dot_product_attention(query, key, value, mask)


# %% tags=["nbval-check-output"]
small_output, small_weights = self_attention(small, w_q, w_k, w_v)
print(small_weights.round(3))

# %%
assert np.allclose(small_weights, weights)
assert np.allclose(small_output[1], weights[1] @ v)
assert small_weights.round(3)[[1, 2], [2, 1]].tolist() == [0.768, 0.673]

# %% [markdown]
# The middle row is the one from the table above. And here is what chapter 2 asked for: *bites* gives *man* 0.768, and
# *man* gives *bites* 0.673. With two projections, the matrix of weights need not be symmetric.

# %% tags=["quiz"]
quiz.one_choice(
    "What does one row of a self-attention layer's output consist of?",
    quiz.wrong(
        "The word's own vector, strengthened where other words agree with it",
        "Its own vector is blended in only as its own value, with a weight that may be near 0. Chapter 8 adds the original vector back, *outside* attention.",
    ),
    quiz.wrong(
        "The sum of the word's query and the key that matches it best",
        "Queries and keys make the weights and then they are gone. And no single key is chosen: all values are blended.",
    ),
    quiz.right(
        "A blend of the value vectors of all words, by their weights",
        "Yes: row $i$ of the output is $\\sum_j W_{ij} v_j$.",
    ),
    quiz.wrong(
        "How strongly the word attends to every word",
        "That is a row of the *weights*, with a number for each word. The output has as many numbers as a value vector.",
    ),
)

# %% [markdown]
# ### Leaving a word out
#
# Sometimes a word must not be seen: it is padding, or it lies in the future (chapter 9 has both). A **mask** is a
# matrix of true and false, and in this book *true always means: may attend*. A forbidden score becomes minus infinity
# *before* the softmax. Its exponential is 0, so its weight is exactly 0, and the others still sum to 1. Hide the dog:

# %% tags=["nbval-check-output"]
no_dog = np.array([[False, True, True]])  # one row, which serves all queries
_, masked_weights = self_attention(small, w_q, w_k, w_v, mask=no_dog)
print(masked_weights.round(3))

# %% [markdown]
# The first column is empty, and each row still sums to 1. *Man* is the only living thing that *bites* can see, and gets
# 0.944.

# %%
assert (masked_weights[:, 0] == 0).all() and masked_weights[1, 2].round(3) == 0.944
assert np.allclose(masked_weights.sum(axis=1), 1)

# %% [markdown]
# ### What projections cure, and what they do not
#
# Give each of the two thousand sentences projections of its own, random and untrained, and count again. In between, a
# compromise that looks tempting: one matrix for both queries and keys.
#
# **Predict first.** With nine words, chance is 1/9, about 11 percent. For *one shared* matrix, do you expect a number
# near 11 percent, near 99, or half-way?

# %%
rng = np.random.default_rng(2)
w_1, w_2 = rng.standard_normal((2, len(many), width, width)) / np.sqrt(width)
shares = {
    "no matrix": weigh(many, many),
    "one shared matrix": weigh(many @ w_1, many @ w_1),
    "two matrices": weigh(many @ w_1, many @ w_2),
}
for name, all_weights in shares.items():
    batches = [favours_itself(batch) for batch in np.split(all_weights, 20)]
    print(
        f"{name:18} favours itself in {np.mean(batches):6.1%} of rows"
        f" (in 20 batches: {min(batches):.1%} to {max(batches):.1%})"
    )
assert 0.90 < favours_itself(shares["one shared matrix"]) < 0.97
assert abs(favours_itself(shares["two matrices"]) - 1 / 9) < 0.01

# %% [markdown]
# Two matrices bring it down to chance: a word's query and its own key are strangers now. (On average over matrices,
# that is. One random pair may lean towards the diagonal or away from it.) One shared matrix hardly helps, since then
# every query *is* the word's own key.
#
# One attention is usually not the end: its output goes into another. Stack eight, and watch how far the nine words
# still are from their average, first without projections and then with three random ones in each.


# %%
def distance_to_average(x):
    """Distance of words (..., T, D) from their average: the median sentence."""
    offsets = x - x.mean(axis=-2, keepdims=True)
    return np.median(np.linalg.norm(offsets, axis=-1).mean(axis=-1))


plain = projected = many[:300]
for depth in range(9):
    distances = distance_to_average(plain), distance_to_average(projected)
    print(f"depth {depth}:  without {distances[0]:.3f}   with {distances[1]:.3f}")
    plain = weigh(plain, plain) @ plain
    q, k, v = projected @ (
        rng.standard_normal((3, 1, width, width)) / np.sqrt(width)
    )
    projected = weigh(q, k) @ v
assert max(distances) < 0.0005

# %% [markdown]
# At depth 8 the words of a sentence can no longer be told apart, with projections even sooner than without. An average
# lies between what it averages, so blending draws words together, and the less a word clings to itself the faster it
# goes. This fault the projections do not cure. The cure stands *around* attention: chapter 8 adds each word's own
# vector back after every step.

# %% [markdown]
# ## Three things that people get wrong here
#
# ### Are Q, K and V the word vectors?
#
# No. They are three projections of them. The verb *bites* entered as $(0, 1, 0)$; its query was $(2, 0)$, its key
# $(0, 1)$, its value $(0, 0)$.
#
# ### Are Q, K and V the same in self-attention?
#
# They have the same *source*, and slides that draw "three copies" of the input mean that. The copies then pass through
# three different matrices. Without those you have the first try.
#
# ### Would one shared matrix do?
#
# With $W_Q = W_K = W$ the scores are $X W (X W)^\top$, which is symmetric: if *hot* matters to *tea*, then *tea*
# matters to *hot*, by the same score. (The weights then differ a little, since each row has its own softmax.) And you
# have measured the other fault, the preference for oneself. A later model, the Reformer, does share the matrix, and for
# that reason keeps words from attending to themselves.

# %%
shared, separate = (
    similarity_matrix(x @ w_1[0], x @ w_1[0]),
    similarity_matrix(x @ w_1[0], x @ w_2[0]),
)
assert np.allclose(shared, shared.T) and not np.allclose(separate, separate.T)

# %% [markdown]
# ## Somebody else's numbers: a six by six filter
#
# A popular slide deck explains attention with the sentence *Hi , how are you ?* and this matrix of scores. It calls the
# matrix an **attention filter**, and gives no numbers after it. Compute them.

# %%
greeting = ["Hi", ",", "how", "are", "you", "?"]
slide_scores = np.array(
    [
        [89, 12, 32, 45, 73, 34],
        [20, 11, 15, 21, 29, 24],
        [33, 25, 91, 36, 55, 45],
        [52, 68, 12, 13, 40, 27],
        [28, 27, 54, 41, 92, 12],
        [39, 30, 73, 64, 12, 74],
    ]
)

# %% [markdown]
# The slides divide by $\sqrt{6}$, "the dimension of the key vector". There are six *words*; how wide the keys are is
# not said ([chapter 3](03_softmax.ipynb#which-d-is-under-the-root) lists the mix-ups). Follow the slides for now.
#
# **Predict first.** Look at the first row, and at its two largest scores, 89 and 73. After dividing by
# $\sqrt 6 \approx 2.45$ and the softmax, what does *Hi* give to *you*: about 0.4, about 0.1, or about 0.001?

# %% tags=["plot"] mystnb={"image": {"alt": "Six by six attention weights from the slide deck's scores divided by the square root of 6. In the rows Hi, how, are and you a single cell holds 1.00. The comma gives 0.84 to you and 0.11 to the question mark; the question mark gives 0.59 to itself and 0.40 to how."}}
slide_weights = softmax(slide_scores / np.sqrt(6))
plots.attention_map(slide_weights, greeting, greeting)
plt.show()

# %% [markdown]
# About 0.001. Four of the six rows put over 99 percent on one word. A gap of 16 points between two scores is a factor
# of $e^{16 / 2.45} \approx 690$.
#
# The scores are far too large for an untrained model: with entries of size 1 they have a size of about 1 after the
# division, as chapter 3 showed. If you see weights of 1.00 in a model that has learnt nothing yet, suspect the scale.

# %%
largest = slide_weights.max(axis=1)
assert (largest > 0.99).sum() == 4 and 0.0005 < slide_weights[0, 4] < 0.0015
assert 680 < np.exp(16 / np.sqrt(6)) < 700

# %% tags=["quiz"]
quiz.number(
    "Three words have the scores $0$, $0$ and $2$ with a query of width $d_k = 4$. What weight does the third word get?",
    softmax(np.array([0, 0, 2]) / np.sqrt(4))[2],
    tolerance=0.005,
    feedback="Yes. The scores become 0, 0 and 1; the exponentials 1, 1 and 2.718; and 2.718 / 4.718 is 0.576.",
    mistakes=[
        (
            softmax(np.array([0, 0, 2]))[2],
            "That is the softmax of the scores as they are: divide them by $\\sqrt{d_k} = 2$ first.",
        ),
        (
            softmax(np.array([0, 0, 2]) / np.sqrt(3))[2],
            "You divided by the root of the number of words. Divide by the root of the *width*, $\\sqrt 4$.",
        ),
        (
            softmax(np.array([0, 0, 2]) / 4)[2],
            "You divided by $d_k$ itself. Divide by its root.",
        ),
    ],
    otherwise="Divide the scores by $\\sqrt 4$, raise $e$ to each, and divide the third by the sum.",
)

# %% [markdown]
# ## Are the weights based on position?
#
# Take the nine tokens, compute their attention, shuffle the sentence, and compute it again.
#
# **Predict first.** The fourth word, *Language*, becomes the seventh. Its output vector
#
# 1. changes, since it has new neighbours;
# 2. changes, since its position is new;
# 3. stays the same, up to rounding.

# %%
projections = np.random.default_rng(3).standard_normal((3, width, width)) / np.sqrt(
    width
)
output, weights = self_attention(x, *projections)

order = np.random.default_rng(4).permutation(len(tokens))
shuffled_output, shuffled_weights = self_attention(x[order], *projections)
print(" ".join(tokens[i] for i in order))
print(
    "largest difference, word by word:",
    f"{np.abs(shuffled_output - output[order]).max():.0e}",
)
assert np.allclose(shuffled_output, output[order], rtol=0, atol=1e-12)
assert np.allclose(shuffled_weights, weights[order][:, order], rtol=0, atol=1e-12)
assert order[6] == 3  # Language, now the seventh

# %% [markdown]
# It stays the same. Word $i$'s output is a *sum* over words, and a sum does not care about the order of its terms.
# Shuffle the words, and the outputs are shuffled along; this is called **permutation equivariance**.
#
# So the answer is no. Unless a mask says otherwise, attention weights depend on the *contents* of the vectors and not
# on their order. In *dog bites man* and in *man bites dog* every word receives the same output.

# %%
news, _ = self_attention(small[[0, 1, 2]], w_q, w_k, w_v)  # dog bites man
joke, _ = self_attention(small[[2, 1, 0]], w_q, w_k, w_v)  # man bites dog
assert np.allclose(news[1], joke[1])  # the verb cannot tell who bites

# %% [markdown]
# A transformer does know about order, because something is *added to the vectors* before they enter: [chapter
# 5](05_position.ipynb) builds it. Then position is part of the content, and the weights can use it.

# %% tags=["quiz"]
quiz.several_choices(
    "Five words are run through self-attention without positions or a mask, then in reverse order. What changes?",
    quiz.wrong(
        "The output vector of the third word, the one in the middle",
        "Its query is the same, and it sums over the same keys and values. Only the order of the terms is new.",
    ),
    quiz.right(
        "The order of the output vectors",
        "Yes. They are reversed along with the words.",
    ),
    quiz.right(
        "The order of rows and columns in the matrix of weights",
        "Yes: both are reversed. A row still holds the same numbers, in a new order.",
    ),
    quiz.wrong(
        "How much weight *dog* gives to *man*, if the two are among the five",
        "The pair keeps its score, which depends on their two vectors, and *dog*'s row still holds the same five scores.",
    ),
)

# %% [markdown]
# ## Which vectors are used?
#
# Whatever comes in. A transformer is a stack of **layers**, each with an attention in it. In the first layer these are
# the vectors of the words plus their positions. In the second they are the outputs of the first, and so on upwards:
# each layer computes its own queries, keys and values, with matrices of its own. Higher layers therefore compare words
# that have already been mixed with others.
#
# A model that translates has two stacks: an **encoder** reads, and a **decoder** writes, word by word. Each decoder
# layer has two different attentions. One is self-attention over what has been written so far. The other takes its
# queries from there, but its keys and values from the output of the *last* encoder layer. Exercise 1 builds that one,
# and chapter 9 puts it in its place. The function is the same: `scaled_dot_product_attention` never asks where its
# inputs come from.

# %% [markdown]
# ## Break it: four versions, one correct
#
# Three of the four versions below repeat mistakes of published code and slides: no division at all, division by the
# root of the number of words, and a softmax over queries. Four checks follow. Which check catches which mistake?


# %%
def attention_with(scale=lambda q: np.sqrt(q.shape[1]), axis=-1):
    def attention(q, k, v):
        w = softmax(q @ k.T / scale(q), axis=axis)
        return w @ v, w

    return attention


versions = {
    "correct": attention_with(),
    "not divided": attention_with(scale=lambda q: 1),
    "root of number of words": attention_with(scale=lambda q: np.sqrt(q.shape[0])),
    "softmax over queries": attention_with(axis=0),
}


def attention_by_loop(q, k, v):
    """One query at a time, straight from the definition: slow and independent."""
    outputs = []
    for query in q:
        scores = [sum(query * key) / len(query) ** 0.5 for key in k]
        shares = [np.exp(score) for score in scores]
        blend = sum(share * value for share, value in zip(shares, v, strict=True))
        outputs.append(blend / sum(shares))
    return np.array(outputs)


# %% tags=["nbval-check-output"]
q, k, v = x @ projections
print(f"{'':24} shape   rows sum to 1  shuffle  equals the loop")
for name, attention in versions.items():
    out, w = attention(q, k, v)
    passed = [
        out.shape == v.shape,
        np.allclose(w.sum(axis=1), 1),
        np.allclose(attention(q[order], k[order], v[order])[0], out[order]),
        np.allclose(out, attention_by_loop(q, k, v)),
    ]
    verdicts = ["ok" if ok else "CAUGHT" for ok in passed]
    print("{:24}{:>6}{:>16}{:>9}{:>17}".format(name, *verdicts))

# %% [markdown]
# Shape and shuffle catch nothing. The sum catches the wrong axis. A wrong scale passes every check but the last: its
# weights are positive, sum to 1 and follow the words around. Only a comparison with an independent reference sees it,
# which is why every function of this book is tested against one. (Test with a $d_k$ that differs from the number of
# words: where both are 9, the two roots agree.)

# %% [markdown]
# ## A filter for pictures
#
# The deck with the six by six matrix sets "attention filter" beside "image filter". There is a bridge between the two,
# twelve years older than the transformer. You may skip it; no later chapter needs it.
#
# To remove noise from a picture, replace every pixel by an average of pixels. A **blur** averages over neighbours: its
# weights depend on *position* alone. **Non-local means** averages over pixels whose surroundings look alike, wherever
# they are: its weights depend on *content*. It is a soft look-up. Queries and keys are the patches around two pixels,
# the value is the pixel, and the score is minus the squared distance of the patches, over a temperature.
#
# A squared distance is made of dot products:
#
# $$-\|q - k\|^2 = 2\, q \cdot k - \|k\|^2 - \|q\|^2 .$$
#
# The softmax does not see the last term, which is the same along a row. So one function serves for both filters.
# (Unlike attention, each key keeps a term of its own, $-\|k\|^2$.)


# %%
def soft_filter(features, pixels, temperature):
    """Average of all pixels for each pixel, weighted by their features (N, F)."""
    squares = (features**2).sum(axis=1)
    scores = (2 * similarity_matrix(features, features) - squares) / temperature
    weights = softmax(scores)  # (N, N)
    blends = weighted_average(weights, pixels.reshape(-1, 1))
    return blends.reshape(pixels.shape), weights


def patches(picture, reach=2):
    """The 5 by 5 surroundings of every pixel: (N, 25)."""
    padded = np.pad(picture, reach, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5))
    return windows.reshape(-1, 25)


# %%
side, noise = 36, 0.1
down, across = np.mgrid[:side, :side]
positions = np.stack([down.ravel(), across.ravel()], axis=1)

stripes = np.where(down // 4 % 2 == 0, 0.75, 0.25)
radius = np.hypot(down - 18, across - 18)
disc = np.where(radius > 4, 1.0, 0.0)
ring = np.where(radius > 9, stripes, disc)  # a ring on stripes
hills = 0.5 + 0.25 * (np.sin(down / 7) + np.cos(across / 5))  # slopes only


def error(picture, clean):
    return np.sqrt(np.mean((picture - clean) ** 2))


def restore(clean, seed):
    """The noisy picture, its best blur of five, non-local means and its weights."""
    rng = np.random.default_rng(seed)
    noisy = clean + noise * rng.standard_normal(clean.shape)
    widths = (0.3, 0.5, 0.7, 1.0, 1.4)
    blurs = [soft_filter(positions, noisy, 2 * width**2)[0] for width in widths]
    blurred = min(blurs, key=lambda picture: error(picture, clean))
    restored, weights = soft_filter(patches(noisy), noisy, 25 * noise**2)
    return noisy, blurred, restored, weights


# %%
errors = {}
for name, clean in [("ring on stripes", ring), ("hills", hills)]:
    runs = [
        [error(p, clean) for p in restore(clean, seed)[:3]] for seed in range(5)
    ]
    errors[name] = np.mean(runs, axis=0)
    print(f"{name:16} noisy, blurred, non-local: {errors[name].round(3)}")
    print(f"{'':16} spread over five seeds:    {np.std(runs, axis=0).round(3)}")
assert 0.55 < errors["ring on stripes"][2] / errors["ring on stripes"][1] < 0.65
assert errors["hills"][1] < 0.85 * errors["hills"][2]

# %% tags=["plot"] mystnb={"image": {"alt": "Four small pictures: a ring on stripes with noise; the same blurred, its stripes washed out a little; the same after non-local means, with clean stripes and ring; and the weights of one pixel on a stripe, which lie along the matching rows of the other stripes and avoid the ring.", "classes": "photo"}}
spot = 5 * side + 3  # a pixel on the second, dark stripe
figure, (top, bottom) = plt.subplots(2, 2, figsize=(6, 6.4))
axes = [*top, *bottom]
noisy, blurred, restored, pixel_weights = restore(ring, seed=0)
pictures = [
    ("noisy", noisy),
    ("blur: by position", blurred),
    ("non-local: by content", restored),
]
for ax, (title, picture) in zip(axes, pictures, strict=False):
    ax.imshow(picture, cmap="gray", vmin=0, vmax=1)
    ax.set_title(title, fontsize=11)
axes[3].imshow(
    pixel_weights[spot].reshape(side, side),
    cmap=plots.WEIGHTS,
    vmax=pixel_weights[spot].max() / 3,
)
axes[3].plot(spot % side, spot // side, marker="s", mfc="none", mec=plots.RED, ms=9)
axes[3].set_title("weights of one pixel", fontsize=11)
for ax in axes:
    ax.set_axis_off()
plt.show()

# %% [markdown]
# Read the last picture: the pixel in the red square sits near the top of a dark stripe, and its weights lie along the
# same row of *every* dark stripe, across the whole picture. So the third picture keeps its edges, with about 40 percent
# less error than the blur, which had to choose between noise and soft edges. The other picture is all smooth hills,
# where what is near is alike: there the blur wins. Looking by content pays where content tells more than position.
# (Both filters were helped: the blur got the best of five widths, non-local means the true amount of noise.)
#
# Where the comparison stops: non-local means has no learned projections. Its query and key are the same patch, so it
# favours itself, like our first try, and its idea of likeness is fixed, where attention learns what counts as a match.

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: Ask somebody else
#
# *Easy, 10 minutes.* In **cross-attention**, one sequence asks and another answers. Queries come from `x`, keys and
# values from `memory`. Return the output only. You may use `softmax`, but not `scaled_dot_product_attention`.


# %% tags=["exercise"]
def cross_attention(x, memory, w_q, w_k, w_v):
    """x (T, D) asks memory (S, D): w_q, w_k (D, d_k), w_v (D, d_v) -> (T, d_v)."""
    ...


# %% tags=["check"]
rng = np.random.default_rng(5)


def draw(words, width, d_k, d_v):
    """x, memory, w_q, w_k, w_v; both sequences are equally long, so that a mix-up of the two is named, not an error."""
    shapes = [
        (words, width),
        (words, width),
        (width, d_k),
        (width, d_k),
        (width, d_v),
    ]
    return tuple(rng.standard_normal(shape) for shape in shapes)


def attend(q, k, v, root=None):
    return softmax(q @ k.T / (root or np.sqrt(q.shape[1]))) @ v


check_cross = partial(
    checks.check,
    reference=lambda x, m, w_q, w_k, w_v: attention_by_loop(
        x @ w_q, m @ w_k, m @ w_v
    ),
    cases=[draw(2, 3, 4, 2), draw(3, 4, 5, 2)],
    mistakes={
        "keys and values come from `x`: that is self-attention, and `memory` is never asked": (
            lambda x, m, w_q, w_k, w_v: attend(x @ w_q, x @ w_k, x @ w_v)
        ),
        "the roles are swapped: `memory` asks and `x` answers": (
            lambda x, m, w_q, w_k, w_v: attend(m @ w_q, x @ w_k, x @ w_v)
        ),
        "the values come from `x`, but keys and values belong to the same words": (
            lambda x, m, w_q, w_k, w_v: attend(x @ w_q, m @ w_k, x @ w_v)
        ),
        "the keys come from `x`, but keys and values belong to the same words": (
            lambda x, m, w_q, w_k, w_v: attend(x @ w_q, x @ w_k, m @ w_v)
        ),
        "the scores are not divided by the root of the key's width": (
            lambda x, m, w_q, w_k, w_v: attend(x @ w_q, m @ w_k, m @ w_v, root=1)
        ),
        "you divide by the key's width: take its root": (
            lambda x, m, w_q, w_k, w_v: attend(
                x @ w_q, m @ w_k, m @ w_v, root=w_k.shape[1]
            )
        ),
        "you divide by the root of the number of words; a score sums the entries of a *key*": (
            lambda x, m, w_q, w_k, w_v: attend(
                x @ w_q, m @ w_k, m @ w_v, root=np.sqrt(len(m))
            )
        ),
        "you divide by the root of `x`'s width; a score sums the entries of a *key*": (
            lambda x, m, w_q, w_k, w_v: attend(
                x @ w_q, m @ w_k, m @ w_v, root=np.sqrt(x.shape[1])
            )
        ),
        "the softmax runs over the queries: use the last axis": (
            lambda x, m, w_q, w_k, w_v: (
                softmax(x @ w_q @ (m @ w_k).T / np.sqrt(w_k.shape[1]), axis=0)
                @ m
                @ w_v
            )
        ),
    },
)
check_cross(cross_attention)


# %% tags=["solution"]
def cross_attention(x, memory, w_q, w_k, w_v):
    query, key, value = x @ w_q, memory @ w_k, memory @ w_v
    return softmax(query @ key.T / np.sqrt(key.shape[1])) @ value


verdict = check_cross(cross_attention)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: Leave some words out
#
# *Medium, 15 minutes.* Turn a matrix of scores into weights, where `mask` is true for pairs that may attend. Two
# popular ways to do this are wrong; the check looks for both.


# %% tags=["exercise"]
def masked_weights_of(scores, mask):
    """Weights (T, S) from scores and mask (T, S): 0 where mask is False."""
    ...


# %% tags=["check"]
allowed = np.array([[True, True, False], [True, False, True], [False, True, True]])
check_masked = partial(
    checks.check,
    reference=lambda s, m: (
        np.exp(s) * m / (np.exp(s) * m).sum(axis=1, keepdims=True)
    ),
    cases=[
        (np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0], [-1.0, 0.5, 2.0]]), allowed),
        (rng.standard_normal((3, 3)), np.eye(3, dtype=bool)),
    ],
    mistakes={
        "you multiply the scores by the mask: a score of 0 is not a weight of 0, since $e^0 = 1$": lambda s, m: (
            softmax(s * m)
        ),
        "you apply the mask after the softmax and leave it there: the rows no longer sum to 1": lambda s, m: (
            softmax(s) * m
        ),
        "the mask is the wrong way round: True means *may* attend": lambda s, m: (
            softmax(np.where(m, -1e30, s))
        ),
        "the mask is not used": lambda s, m: softmax(s),
    },
    properties=[checks.rows_sum_to_one, checks.non_negative],
)
check_masked(masked_weights_of)


# %% tags=["solution"]
def masked_weights_of(scores, mask):
    # not softmax(scores * mask): a score of 0 is not a weight of 0
    # not softmax(scores) * mask: then rows no longer sum to 1
    return softmax(np.where(mask, scores, -np.inf))


verdict = check_masked(masked_weights_of)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: Wire a head by hand
#
# *Harder, 20 minutes.* Every word has a column of its own: its vector is 1 there and 0 elsewhere (**one-hot**). So $X$
# is the identity, and $X W_Q = W_Q$. Given a list of partners (some may come twice, some not at all), return $W_Q$ and
# $W_K$, both of shape $(T, T)$, such that word $i$ gives more than 99 percent of its weight to word `partner[i]`.
# Remember that scores are divided by $\sqrt{d_k}$.


# %% tags=["exercise"]
def wire(partner):
    """w_q and w_k, each (T, T), that make word i attend to word partner[i]."""
    ...


# %% tags=["check"]
def weights_of(wiring):
    """The part of the answer that counts: the weights which a reader's wiring leads to."""

    @wraps(wiring)
    def weights(partner):
        answer = wiring(partner)
        return (
            answer
            if answer is None
            else self_attention(
                np.eye(len(partner)), *answer, np.eye(len(partner))
            )[1]
        )

    return weights


def decided(weights, partner):
    """A property: the partners get their 99 percent."""
    shares = weights[np.arange(len(partner)), partner]
    if (weights.argmax(axis=1) == partner).all() and shares.min() < 0.99:
        return f"the right partners, but one gets only {shares.min():.2f} of the weight: make the scores larger"


one_hot = np.eye
check_wire = partial(
    checks.check,
    reference=lambda partner: one_hot(len(partner))[partner],
    cases=[([1, 2, 0],), ([3, 3, 3, 0, 1],)],
    tolerance=0.005,
    properties=[decided],
    mistakes={
        "token `partner[i]` attends to token i: the wiring runs backwards": lambda partner: (
            softmax(50 * one_hot(len(partner))[partner].T)
        ),
        "every token attends to itself: the partners are not used": lambda partner: (
            one_hot(len(partner))
        ),
    },
)
check_wire(weights_of(wire))


# %% tags=["solution"]
def wire(partner):
    length = len(partner)
    w_k = np.eye(length)  # each word is found by its own column
    asks = np.eye(length)[partner]  # row i asks for the column of its partner
    return 20 * np.sqrt(length) * asks, w_k  # after the root, a lead of 20 points


verdict = check_wire(weights_of(wire))
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# Every word makes a query, a key and a value from its own vector, by three matrices that training will find. Its query
# is compared with all keys, the scores are divided by the root of the key's width, and by the softmax of these the word
# receives a blend of the values. All words do so at once, and the order of the words plays no part until it is put into
# the vectors.
#
# **Sources.** The formula, and the names: [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762). Repeated
# attention draws all words together: [Dong, Cordonnier and Loukas (2021)](https://arxiv.org/abs/2103.03404). A shared
# matrix: [Kitaev, Kaiser and Levskaya (2020)](https://arxiv.org/abs/2001.04451). Non-local means: [Buades, Coll and
# Morel (2005)](https://doi.org/10.1109/CVPR.2005.38); its bridge to attention: [Wang and others
# (2018)](https://arxiv.org/abs/1711.07971). The nine tokens come from a [forum
# answer](https://stats.stackexchange.com/a/502203), the six by six matrix from a set of slides.
#
# **Next.** [Chapter 5](05_position.ipynb) gives each word a position, so that *dog bites man* and *man bites dog* part
# ways. [Chapter 6](06_many_heads.ipynb) runs several attentions side by side, and adds the linear layer that mixes what
# they found.
