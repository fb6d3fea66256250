# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 4. What does a word pay attention to?
#
# *You import a file with python.* *A python is a large snake.* To know which python is meant, look at the other words.
# By the end of this chapter you will have a short function that lets every word of a sentence look at all of them and
# take what it needs: **scaled dot-product attention**, the formula at the heart of the transformer.
#
# You need the soft look-up of [chapter 3](03_softmax.ipynb). The chapter takes about 30 minutes to read, and 45 for the
# exercises. [Going further](#going-further), at the end, takes 12 more minutes. Only the code? Read [the
# definition](#the-definition), [masks](#masks-leaving-a-word-out) and [the PyTorch
# module](#the-same-as-a-pytorch-module).

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. Dot product, scaling, softmax and weighted average are built. This chapter adds the three projections to queries, keys and values, and the mask, which completes one head of attention."}}
from functools import partial, wraps

import matplotlib.pyplot as plt
from classroom import checks, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=4)

# %% [markdown]
# ## One look-up, with its numbers
#
# In a look-up, queries ask, keys are compared with them, and values are blended. Start with the simplest choice: let a
# word's vector play all three roles. *Python* asks its sentence: the query is the vector of *python*, and the keys and
# the values are the vectors of all the words.
#
# The vectors of the words, called *embeddings*, are those of [chapter 2](02_similarity.ipynb#real-vectors). They are
# scaled to length 1, so the scores are cosines. We divide these by a temperature of 0.1, to make the choice sharper.
# And for now *python* must not choose itself, because its cosine with itself is 1, so it would take more than 99
# percent of the weight. Below, `softmax` is chapter 3's; `embeddings`, one row a word, and `row_of`, a word's row
# number, come from the folded cell.

# %% the vectors of the words, and a look-up tags=["hide-input"]
import numpy as np
from dotformer.by_hand.similarity import normalize, similarity_matrix
from dotformer.by_hand.softmax import softmax
from dotformer.support.published import minilm_embeddings

row_of, embeddings = minilm_embeddings()  # row of each token, (30522, 384)
embeddings = normalize(embeddings)


def look_up(sentence, word, itself=True):
    """One word asks its sentence: weights (T,), and what it receives (384,)."""
    words = sentence.split()
    x = embeddings[[row_of[each] for each in words]]  # (T, 384)
    scaled = x @ x[words.index(word)] / 0.1
    if not itself:
        scaled[words.index(word)] = -np.inf
    weights = softmax(scaled)
    return weights, weights @ x


for sentence in ("you import a file with python", "a python is a large snake"):
    weights, _ = look_up(sentence, "python")
    assert weights[sentence.split().index("python")] > 0.99

# %%
import numpy as np

words = "you import a file with python".split()
vectors = np.stack([embeddings[row_of[word]] for word in words])  # (6, 384)
cosines = vectors @ vectors[-1]  # python asks every word
cosines[-1] = -np.inf  # but not itself: its weight becomes e^-inf = 0
shares = softmax(cosines / 0.1)
blend = shares @ vectors  # what python receives, (384,)
print(*(f"{word} {share:.2f}" for word, share in zip(words, shares, strict=True)))

# %% tags=["plot"] mystnb={"image": {"alt": "Two look-ups by python, itself left out. In you import a file with python the weights are import 0.83, file 0.08, the rest at most 0.04; what python receives is close to import, imported, imports, export, while the plain average of the words is close to with, you, and, for. In a python is a large snake the weight is 0.88 on snake; what it receives is close to snake, snakes, serpent, lizard, and the plain average to are, the, and, was."}}
from classroom.diagram import Diagram

known = sorted(word for word in row_of if word.isalpha() and len(word) > 2)
rows = embeddings[[row_of[word] for word in known]]


def nearest(vector, count=4):
    """The words of the largest cosine with a vector."""
    return [known[n] for n in np.argsort(-(rows @ vector))[:count]]


drawing = Diagram(6.8, 4.9)
for top, sentence in (
    (4.65, "you import a file with python"),
    (2.1, "a python is a large snake"),
):
    words = sentence.split()
    weights, received = look_up(sentence, "python", itself=False)
    average = np.mean(
        [embeddings[row_of[word]] for word in words if word != "python"], axis=0
    )
    assert nearest(average)[:2] in (["with", "you"], ["are", "the"])
    at = [1.2 + 5.4 / len(words) * (n + 0.5) for n in range(len(words))]
    drawing.text(0.1, top, "key and value", color=plots.GREY, at="left", size=10)
    drawing.text(0.1, top - 0.45, "weight", color=plots.GREY, at="left", size=10)
    for x, key, weight in zip(at, words, weights, strict=True):
        drawing.text(x, top, key, color=plots.RED if key == "python" else plots.INK)
        drawing.cells(x - 0.3, top - 0.45, [f"{weight:.2f}"], "#d3e3ef", width=0.6)
        if weight:
            drawing.arrow(
                (x, top - 0.66),
                (3.9, top - 1.28),
                color=plots.BLUE,
                width=0.4 + 5 * weight,
            )
    drawing.box(3.9, top - 1.48, "what python receives", 1.9, 0.36)
    drawing.text(
        3.9,
        top - 1.82,
        "close to: " + ", ".join(nearest(received)),
        color=plots.TEAL,
    )
    drawing.text(
        3.9,
        top - 2.08,
        "plain average of the words: " + ", ".join(nearest(average)),
        color=plots.GREY,
        size=10,
    )
plt.show()

weights, received = look_up("you import a file with python", "python", False)
assert nearest(received)[:2] == ["import", "imported"]
assert weights[1].round(2) == 0.83
weights, received = look_up("a python is a large snake", "python", False)
assert nearest(received)[:3] == ["snake", "snakes", "serpent"]
assert weights[-1].round(2) == 0.88

# %% [markdown]
# The same word received two different things: something close to *import* and *imported* in one sentence, and to
# *snake* and *serpent* in the other. The plain averages, the grey lines, are close to words like *with* and *are*,
# which say nothing about *python*; in these two sentences the weights pick out the one word that does. Attention is a
# blend whose weights are computed from the words.
#
# Does *python* now mean a language in the first sentence? Not yet. Add what it received to its own vector, as a
# transformer does ([chapter 8](08_encoder.ipynb)), so that the word is kept. The sum's cosine with *imports* is 0.53,
# where that of *python* alone was 0.21. But with *programming* it falls from 0.25 to 0.21, because *import* itself has
# a cosine of only 0.07 with *programming*. *Python* has received the word *import*, and not what *import* implies.

# %% tags=["proof"]
compared = ("imports", "serpent", "programming")
asked = embeddings[[row_of[word] for word in compared]]
own = embeddings[row_of["python"]]
moved = {"python alone": asked @ own}
for sentence, about in (
    ("you import a file with python", "import sentence"),
    ("a python is a large snake", "snake sentence"),
):
    _, received = look_up(sentence, "python", itself=False)
    moved[f"{about}: plus what it received"] = asked @ normalize(own + received)
assert np.round(list(moved.values()), 2).tolist() == [
    [0.21, 0.29, 0.25],
    [0.53, 0.17, 0.21],
    [0.17, 0.53, 0.17],
]
weights, _ = look_up("the snake shed its skin", "its", itself=False)
assert weights.round(2).tolist()[:2] == [0.91, 0.04]

# %% [markdown]
# Other weights would hardly help, because they blend the same vectors. The vector of *import*, which implies
# *programming*, points elsewhere. But a matrix can turn [the one into the other](#and-python) before it is handed over.
# So this chapter adds three matrices, the same for every word, which training can change. One decides what a word hands
# over. The other two decide which words are chosen, because similarity is a poor way to choose, as you will see next.
#
# ## Queries, keys and values
#
# Using one vector in all three roles has four faults.
#
# - A word finds itself first, because among vectors of equal length no dot product is larger than a vector's with
#   itself. Leaving the word itself out is only a patch: weights sum to 1, so the word must then take from others even
#   where none is useful.
# - It finds what is most like it. In *the snake shed its skin*, with the vectors above, the word *its* (not allowed to
#   choose itself) puts 0.91 of its weight on *the*, and only 0.04 on *snake*, which it should find.
# - Scores are symmetric. *Snake* needs nothing from *its*, yet the score is the same both ways. (Their weights on each
#   other differ only because each word divides by its own sum of exponentials.)
# - A word can hand over only its own vector, and neither a part of it nor what it implies: *import* could not hand over
#   *programming*.
#
# Think of searching for a video. What you type is the query: what you are looking for. The title of each video is its
# key: what it can be found by. The video itself is its value: what is handed over. In a sentence every word asks *and*
# is found, and what comes back is a blend of all the videos.
#
# So give every word three vectors, one for each role, computed from its own vector $x_i$ by three matrices:
#
# $$q_i = x_i W_Q , \qquad k_i = x_i W_K , \qquad v_i = x_i W_V .$$
#
# Such a multiplication by a matrix is called a **projection**. For a sentence $X$ of $T$ words, $Q = X W_Q$,
# $K = X W_K$ and $V = X W_V$ are three matrices with a row for each word. Every vector is a row, so the dot product of
# a query and a key is written $q_i k_j^\top$.
#
# A projection may change the width. Let a word vector have $D$ numbers; papers call this width $d_\text{model}$.
# Queries and keys have $d_k$ numbers each, the same because they meet in a dot product. Values have $d_v$ numbers, a
# free choice because values are only weighted and added; usually $d_v = d_k$. So $W_Q$ and $W_K$ have the shape
# $(D, d_k)$, and $W_V$ has the shape $(D, d_v)$.
#
# Real word vectors are too long to work through by hand, so take small ones first. The sentence is *dog bites man*. A
# word has three numbers: is it *alive*, is it an *action*, is it *human*? So *dog* is $(1, 0, 0)$, *bites* $(0, 1, 0)$
# and *man* $(1, 0, 1)$. Queries and keys have two numbers, for *alive* and for *action*: in a query each says how much
# of its feature is asked for, and in a key how much is offered. Values have two, *alive* and *human*. So $D = 3$ and
# $d_k = d_v = 2$, and each matrix has three rows of two:
#
# | what the word is | $W_Q$: it asks for (*alive*, *action*) | $W_K$: it is found by (*alive*, *action*) | $W_V$: it hands over (*alive*, *human*) |
# |---|---|---|---|
# | *alive* | (0, 2) | (1, 0) | (1, 0) |
# | *action* | (2, 0) | (0, 1) | (0, 0) |
# | *human* | (0, 0) | (1, 0) | (0, 1) |
#
# Actions ask for something alive, and living things ask for an action, both with a 2, so that the choice is clear. Each
# is found by what it is, and being human counts as extra alive, so *man* is easier to find than *dog*. A word hands
# over whether it is alive and human, so an action hands over nothing: what a word is found by and what it hands over
# are separate decisions. To project a word, add up the rows of what it is. So the query of *bites* is the row *action*,
# $(2, 0)$, and the key of *man* is $(1, 0) + (1, 0) = (2, 0)$.

# %% tags=["nbval-check-output"]
import numpy as np

small_tokens = ["dog", "bites", "man"]
small = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1]])  # alive, action, human

# rows: alive, action, human; columns of w_q and w_k: alive, action
w_q = np.array([[0, 2], [2, 0], [0, 0]])  # row 1: alive asks for action
w_k = np.array([[1, 0], [0, 1], [1, 0]])  # row 1: alive is found by alive
w_v = np.array([[1, 0], [0, 0], [0, 1]])  # columns: is it alive, is it human

q, k, v = small @ w_q, small @ w_k, small @ w_v
for i, token in enumerate(small_tokens):
    print(f"{token:6} query {q[i]}   key {k[i]}   value {v[i]}")

# %% [markdown]
# Follow the query of *bites* along the row of *man* in the figure below:
#
# 1. The score is the dot product of query and key: $2 \cdot 2 + 0 \cdot 0 = 4$.
# 2. The score is divided by $\sqrt{d_k} = \sqrt 2$: $4 / 1.414 = 2.828$. As in chapter 3, this root takes the place
#    of the temperature.
# 3. The softmax computes $e^{2.828} = 16.919$, and divides it by the sum of the three words' exponentials, 22.032. The
#    weight is 0.768.
# 4. Each value is multiplied by its weight, and the three products are added up.

# %% tags=["plot"] mystnb={"image": {"alt": "The query of bites, the row 2, 0, on the left. Three rows, one for each word. dog: key 1, 0; score 2; divided by root 2, 1.414; e to that power, 4.113; weight 0.187; value 1, 0. bites: key 0, 1; score 0; 0; 1; weight 0.045; value 0, 0. man: key 2, 0; score 4; 2.828; 16.919; weight 0.768; value 1, 1. Below: the sum of the powers, 22.032, and the output, 0.955, 0.768."}}
drawing = Diagram(6.8, 2.75)
places = {"key": 1.95, "score": 2.75, "÷ √2": 3.4, "$e$ to that": 4.15}
places |= {"weight": 5.0, "value": 5.95}
for title, x in places.items():
    drawing.text(x, 2.55, title, color=plots.GREY)
drawing.text(0.45, 2.05, "query", color=plots.GREY)
drawing.text(0.45, 1.75, "of bites", color=plots.RED)
drawing.cells(0.09, 1.4, q[1], "#f3dcd7")
drawing.arrow((0.83, 1.4), (1.02, 1.4), color=plots.RED)
scores = q[1] @ k.T
powers = np.exp(scores / np.sqrt(2))
shares = powers / powers.sum()
numbers = [scores, scores / np.sqrt(2), powers, shares]
for n, (y, word) in enumerate(zip([1.9, 1.4, 0.9], small_tokens, strict=True)):
    drawing.text(1.5, y, word, color=plots.BLUE, at="right")
    drawing.cells(1.6, y, k[n], "#d3e3ef")
    for x, column in zip(list(places.values())[1:-1], numbers, strict=True):
        drawing.text(
            x, y, f"{column[n]:.3f}" if column[n] % 1 else f"{column[n]:.0f}"
        )
    drawing.cells(5.6, y, v[n], "#dfe9d8")
drawing.text(4.15, 0.35, f"sum {powers.sum():.3f}", color=plots.GREY)
drawing.text(5.5, 0.35, "output", color=plots.RED, at="right")
drawing.cells(5.6, 0.35, (shares @ v).round(3), "#f3dcd7", width=0.55)
plt.show()

# %% [markdown]
# The result, the verb's *context vector*, is this weighted sum, or blend:
#
# $$0.187 \, (1, 0) + 0.045 \, (0, 0) + 0.768 \, (1, 1) = (0.955, 0.768) .$$
#
# Because these values hold only 0 and 1, each number is a share of the weight: 95.5 percent of the verb's attention
# went to what is alive, and 76.8 percent to what is human. The context vector cannot say *who* bites: *man bites dog*
# gives the same one. Could other matrices tell? A [later section](#does-the-order-of-the-words-matter) asks.

# %% tags=["proof"]
scores = q @ k.T
assert scores[1].tolist() == [2, 0, 4]
weights = softmax(scores / np.sqrt(2))
assert np.allclose(weights[1], [0.187, 0.045, 0.768], rtol=0, atol=0.0005)
assert np.allclose(weights[1] @ v, [0.955, 0.768], rtol=0, atol=0.0005)
assert np.allclose(weights[[0, 2]] @ v, [0.33, 0.16], rtol=0, atol=0.005)
assert weights[[0, 2], 1].round(3).tolist() == [0.673, 0.673]

# %% tags=["quiz"]
quiz.one_choice(
    "What does the query vector of a word stand for?",
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
        "The word's own vector, as it entered the attention",
        "The vector $x_i$ is the *source* of the query, but also of the key and the value. The matrix $W_Q$ makes the difference.",
    ),
)

# %% [markdown]
# ## The definition
#
# With the queries, keys and values of all words as the rows of $Q$, $K$ and $V$,
#
# $$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V .$$
#
# Where all three are computed from the same words, this is **self-attention**. In *cross-attention* the queries come
# from one sequence, and keys and values from another. The shapes below are for $T$ queries, and $S$ keys with one value
# each; in self-attention $S = T$.
#
# | | shape | one row is |
# |---|---|---|
# | $Q$, queries | $(T, d_k)$ | what one word looks for |
# | $K$, keys | $(S, d_k)$ | what one word can be found by |
# | $V$, values | $(S, d_v)$ | what one word hands over |
# | $Q K^\top$, **scores** | $(T, S)$ | how well each key matches one query |
# | divided by $\sqrt{d_k}$, **scaled scores** | $(T, S)$ | the same, with a [spread](#why-the-square-root) that, before training, does not grow with $d_k$ |
# | their softmax, **attention weights** | $(T, S)$ | how one query shares out its attention; each row sums to 1 |
# | times $V$, a **weighted sum** | $(T, d_v)$ | what one word receives, its *context vector* |
#
# The weights are at least 0 and sum to 1, so an output is a weighted average of the values. Here is the whole
# computation for *dog bites man*, with the row of *bites* in red.

# %% tags=["plot"] mystnb={"image": {"alt": "Self-attention for dog bites man as matrices, from left to right. X, 3 by 3, goes through W_Q, W_K and W_V to Q, K and V, each 3 by 2. Q and the transpose of K give the scores, 3 by 3: 0 2 0, 2 0 4, 0 2 0. Divided by root 2 and through the softmax they are the weights, 0.16 0.67 0.16, 0.19 0.05 0.77, 0.16 0.67 0.16. These and V give the outputs, 3 by 2: 0.33 0.16, 0.95 0.77, 0.33 0.16. The row of bites is red throughout."}}
drawing = Diagram(5.8, 4.7)


def matrix(x, y, title, rows, width=0.3, form="{:.0f}", asks=True):
    """A matrix whose middle row begins at (x, y); the row of bites is red."""
    drawing.text(x + width * len(rows[0]) / 2, y + 0.75, title, size=10)
    for n, row in enumerate(rows):
        color = "#f3dcd7" if n == 1 and asks else "#e4edf4"
        shown = [form.format(number) for number in row]
        drawing.cells(x, y + 0.36 * (1 - n), shown, color, width)


of_scores = q @ k.T
of_weights = softmax(of_scores / np.sqrt(2))
matrix(0.5, 2.25, "$X$", small)
for y, word in zip((2.61, 2.25, 1.89), small_tokens, strict=True):
    drawing.text(0.45, y, word, at="right", size=10)
for y, name, projected in ((3.75, "Q", q), (2.25, "K", k), (0.75, "V", v)):
    drawing.arrow((1.43, 2.25), (1.93, y))
    at = "right" if name == "Q" else "left"
    drawing.text(1.64, (2.25 + y) / 2 + 0.18, f"$W_{name}$", size=10, at=at)
    matrix(2.0, y, f"${name}$", projected, asks=name == "Q")
drawing.arrow((2.63, 3.75), (3.13, 3.75), color=plots.RED)
drawing.arrow((2.63, 2.25), (3.13, 3.35))
matrix(3.2, 3.75, "$QK^\\top$", of_scores)
drawing.arrow((3.35, 3.18), (3.35, 2.7), color=plots.RED)
drawing.text(3.5, 3.1, "÷ √2, softmax", at="left", size=10)
matrix(3.2, 2.1, "weights", of_weights, 0.42, "{:.2f}")
drawing.arrow((4.2, 1.52), (4.7, 0.95), color=plots.RED)
drawing.arrow((2.63, 0.75), (4.7, 0.75))
matrix(4.8, 0.75, "output", of_weights @ v, 0.42, "{:.2f}")
plt.show()

# %% [markdown]
# Each row of weights is a softmax of its own, over the keys, so all queries can go through at once.


# %%
def softmax(scores, axis=-1):  # chapter 3's, without its check
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def attention(query, key, value):
    scores = query @ key.swapaxes(-2, -1)  # K transposed: (T, S)
    scaled = scores / np.sqrt(query.shape[-1])  # (T, S)
    weights = softmax(scaled)  # rows sum to 1
    return weights @ value, weights  # (T, d_v), (T, S)


def self_attention(x, w_q, w_k, w_v):
    return attention(x @ w_q, x @ w_k, x @ w_v)


context, weights = self_attention(small, w_q, w_k, w_v)
print("weights", weights.round(3), sep="\n")
print("outputs", context.round(3), sep="\n")
assert np.allclose(weights[1], [0.187, 0.045, 0.768], rtol=0, atol=0.0005)

# %% [markdown]
# The middle row is the one that we worked out by hand. *Dog* and *man* receive $(0.327, 0.164)$: they give 0.673 of
# their weight to *bites*, which hands over nothing, so what arrives comes from themselves and from each other. To check
# the function, compute the same in a second way, with a loop over the queries:


# %%
def attention_by_loop(q, k, v):  # for small scores: the largest is not subtracted
    outputs = []
    for query in q:
        powers = np.exp([query @ key / np.sqrt(len(query)) for key in k])
        weights = powers / powers.sum()
        outputs.append(sum(w * value for w, value in zip(weights, v, strict=True)))
    return np.array(outputs)  # (T, d_v)


assert np.allclose(context, attention_by_loop(q, k, v))

# %% [markdown]
# Because `swapaxes`, `@` and `softmax` all work on the last one or two axes, a whole batch of $B$ sentences can go
# through `attention` at once: queries and keys $(B, T, d_k)$, values $(B, T, d_v)$, scores and weights $(B, T, T)$,
# outputs $(B, T, d_v)$.
#
# Attention together with its own $W_Q$, $W_K$ and $W_V$ is a **head**. It has $D (2 d_k + d_v)$ parameters, however
# long the sentence is, and computes its weights afresh for each sentence. In training nobody says which word should
# attend to which. But every step here has a derivative, so training can correct all three matrices, using the error of
# the model's output ([chapter 7](07_learning.ipynb)).

# %% tags=["quiz"]
quiz.one_choice(
    "What is one row of the output?",
    quiz.right(
        "A weighted sum of values",
        "Yes: one query's weights say how much of each value it takes.",
    ),
    quiz.wrong(
        "A weighted sum of the words' own vectors",
        "Of their values, $x W_V$: *bites* handed over $(0, 0)$, although its own vector was $(0, 1, 0)$.",
    ),
    quiz.wrong(
        "The value of the most similar word",
        "That would be a hard look-up. Here *bites* received 0.187 of *dog*, too.",
    ),
    quiz.wrong(
        "The weights of one query",
        "These come one step earlier: they have a number for each key, and the output has $d_v$ numbers.",
    ),
)

# %% [markdown]
# ### Are the four faults gone?
#
# - *A word finds itself first.* It need not: *bites* has a weight of 0.045 on itself. (A word that needs nothing from
#   others can be [handed a value near zero](#what-is-the-third-matrix-for).)
# - *It finds what is most like it.* It need not: *bites* finds what is alive. And with the real vectors, $W_K$ the
#   identity, and a $W_Q$ that turns *its* into a large multiple of *animal*, *its* gives 0.60 of its weight to *snake*
#   and 0.08 to *the*.
# - *Scores are symmetric.* Not here: *bites* gives *man* a score of 4, and *man* gives *bites* one of 2.
# - *It hands over only its own vector.* $W_V$ chooses a part: two of *man*'s three numbers, and nothing of *bites*. How
#   a word hands over what it implies comes [next](#and-python).
#
# The first three are gone because a score now compares two different things: what one word asks, and what the other can
# be found by. One matrix for both would keep the [symmetry](#why-two-matrices-and-not-their-product), and often [the
# first fault](#would-one-shared-matrix-do), too.

# %% [markdown]
# ## And *python*?
#
# Back to real vectors. We want *python* to receive *programming* where it finds *import*, and *animal* where it finds
# *snake*. Let $a$ and $b$ be the vectors of two words, of length 1. The **outer product** $a^\top b$ is a matrix that
# turns $a$ into $b$. It holds each number of $a$ times each number of $b$. Multiply a word's vector $x$ by it:
# $x \, a^\top b = (x \cdot a) \, b$. For $x = a$ this is $b$, because $a \cdot a = 1$. Otherwise it is $b$ times the
# cosine of $x$ with $a$.
#
# - $W_V$ is the sum of two outer products: one turns *import* into *programming*, the other *snake* into *animal*. Each
#   hardly disturbs the other, because *import* and *snake* have a cosine near 0.
# - $W_K$ is the identity: a word is found by its own vector, so $d_k = D = 384$.
# - $W_Q$ is $10 \sqrt{384}$ times the outer product of *python* and the query that we want, *import* + *snake* −
#   *python*, which says: who is like *import* or *snake*, but not like *python*? The word vectors have length 1, so the
#   dot products stay small, whatever the width, and the division by $\sqrt{384}$ would leave almost equal weights. The
#   factor $\sqrt{384}$ undoes it, and 10 is $1 / 0.1$, for the temperature of 0.1 again. The query is the same in every
#   sentence, since it is computed from *python* alone. What differs is which keys are there. (Another word gets this
#   query times its own cosine with *python*. If this cosine is near 0, as for *is*, the word attends almost evenly.)
#
# What *python* receives is again added to its own vector, and the output shows this sum's cosine with *programming* and
# *animal*.


# %%
def vector(word):
    return embeddings[row_of[word]]


wanted = vector("import") + vector("snake") - vector("python")
python_q = 10 * np.sqrt(384) * np.outer(vector("python"), wanted)
python_k = np.eye(384)
python_v = np.outer(vector("import"), vector("programming"))
python_v += np.outer(vector("snake"), vector("animal"))

# %% four sentences through these matrices tags=["hide-input"]
print(f"{'cosine of python with':27} programming  animal   attends most to")
before = [vector("python") @ vector(w) for w in ("programming", "animal")]
print(f"{'python alone':27} {before[0]:11.2f} {before[1]:7.2f}")
for sentence in (
    "you import a file with python",
    "a python is a large snake",
    "imported python code",
    "a python is a lizard",
):
    text = sentence.split()
    vectors, at = np.stack([vector(word) for word in text]), text.index("python")
    received, python_weights = self_attention(vectors, python_q, python_k, python_v)
    python = normalize(vectors[at] + received[at])
    after = [python @ vector(w) for w in ("programming", "animal")]
    best = python_weights[at].argmax()
    print(
        f"{sentence:30} {after[0]:8.2f} {after[1]:7.2f}",
        f"  {text[best]} {python_weights[at, best]:.2f}",
    )

# %% tags=["proof"]
assert after[0] > 0.7 or after[1] > 0.27
assert round(vector("import") @ vector("programming"), 2) == 0.07
assert abs(vector("import") @ vector("snake")) < 0.12
likeness = [
    vector(a) @ vector(b) for a, b in (("imported", "import"), ("lizard", "snake"))
]
assert np.round(likeness, 2).tolist() == [0.73, 0.42]
assert 0.42 < python_weights[at].max() < 0.44 and 0.275 < after[1] < 0.285
shed = np.stack([vector(word) for word in "the snake shed its skin".split()])
its_q = 10 * np.sqrt(384) * np.outer(vector("its"), vector("animal"))
_, its_weights = self_attention(shed, its_q, python_k, python_v)
assert its_weights[3, :2].round(2).tolist() == [0.08, 0.60]

# %% [markdown]
# *Python* moves towards *programming* beside *import*, and towards *animal* beside *snake*. *Imported*, for which we
# made no pair, works almost as well, because its cosine with *import* is 0.73. *Lizard*, whose cosine with *snake* is
# only 0.42, gets less weight and hands over less of *animal*. That *import* implies *programming* was our choice;
# training has to find its matrices from examples.

# %% [markdown]
# ## Why the square root?
#
# [Chapter 3](03_softmax.ipynb#why-divide-by-the-square-root-of-the-width) derived the division by $\sqrt{d_k}$, and
# [measured](03_softmax.ipynb#can-a-query-still-learn) when learning suffers without it. In short, a score sums $d_k$
# products. If the entries of query and key are independent, with mean 0 and variance 1, then each product, too, has
# mean 0 and variance 1, and because variances of independent terms add up, the score has variance $d_k$. So the scores
# of wide queries and keys lie further apart, one word often gets nearly all the weight before anything has been
# learned, and then the gradient of queries and keys is nearly 0, because a small change of a score hardly changes any
# weight.
#
# Dividing the scores by $\sqrt{d_k}$ divides their variance by $d_k$, so under these assumptions the variance is 1 at
# every width. With scores divided by $d_k$ itself it would be $1/d_k$, and wide heads would start with almost equal
# weights. (Entries of [another variance](03_softmax.ipynb#when-does-it-matter-less) give the scores another one, but it
# still does not grow with $d_k$. Training may change it later.) The largest weight of a random query among ten random
# keys, on average, with entries of variance 1:
#
# | $d_k$ | variance of a score | largest weight, undivided | divided by $\sqrt{d_k}$ |
# |---|---|---|---|
# | 4 | 4 | 0.49 | 0.30 |
# | 64 | 64 | 0.86 | 0.32 |
# | 512 | 512 | 0.95 | 0.32 |


# %% tags=["proof"]
rng, largest = np.random.default_rng(0), {}
for d_k in (4, 64, 512):
    queries, ten = rng.normal(size=(4000, 1, d_k)), rng.normal(size=(4000, 10, d_k))
    found = (queries * ten).sum(axis=-1)
    largest[d_k] = [
        softmax(found / divisor).max(axis=1).mean() for divisor in (1, d_k**0.5)
    ]
    assert abs(found.var() / d_k - 1) < 0.05
expected = [[0.49, 0.30], [0.86, 0.32], [0.95, 0.32]]
assert np.allclose(list(largest.values()), expected, rtol=0, atol=0.008)

# %% tags=["quiz"]
quiz.number(
    "Three words have the scores $0$, $0$ and $2$ with a query of width $d_k = 4$. What weight does the third word get?",
    softmax(np.array([0, 0, 2]) / np.sqrt(4))[2],
    tolerance=0.005,
    feedback="Yes. The scaled scores are 0, 0 and 1; the exponentials 1, 1 and 2.718; and 2.718 / 4.718 is 0.576.",
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
# ## Masks: leaving a word out
#
# So far every word may see every other. Some words must not be seen: those not yet written, and *padding*, tokens that
# only make short sentences as long as the others, so that a batch fits into one array. A **mask** is a boolean matrix,
# with a row for each query and a column for each key. In this book, as in PyTorch's `scaled_dot_product_attention`,
# **True means *may attend***.
#
# A *causal mask* (or *look-ahead mask*) hides the future: query $t$ may attend only to keys $0$ to $t$. A model that
# writes each word from the words before it is called **autoregressive**. While it writes, later words do not exist yet.
# But in training the whole text is there, and without a mask each position could look at the next word, which it should
# guess, and copy it ([chapter 9](09_decoder.ipynb)).
#
# A **padding mask** hides padding: no query may attend to it, so its column is all False. As a query the padding token
# is not hidden. It, too, may attend to the real words, because a row with nothing to attend to would cause trouble
# ([below](#a-row-with-nothing-to-attend-to)). If you hid the padding token's row instead of its column, the real words
# would still give it weight, so their outputs would change with the amount of padding, and its own row would have
# nothing to attend to. Unless that row becomes NaN, the loss may not show this mistake: it still falls, and a batch of
# equally long texts has no padding.
#
# Wherever a mask is False, the scaled score becomes minus infinity, so the weight becomes 0. Here are both masks, the
# hidden entries in grey. In the lower row the sentence is *dog bites*, with padding, here $(1, 1, 0)$; any vector would
# do, because no word attends to it:

# %% tags=["plot"] mystnb={"image": {"alt": "Two rows of three matrices, scaled scores, masked, and weights. Above, dog bites man with a causal mask: the entries above the diagonal are grey and become minus infinity; the weights are 1, 0, 0; 0.80, 0.20, 0; 0.16, 0.67, 0.16. Below, dog bites pad with a padding mask: the last column is grey and becomes minus infinity in all three rows; the weights are 0.20, 0.80, 0; 0.80, 0.20, 0; 0.50, 0.50, 0."}}
drawing = Diagram(6.8, 3.2)
dog, bites, man = small
for y, name, may, sentence in (
    (2.3, "man", np.tril(np.ones((3, 3), dtype=bool)), small),
    (0.7, "pad", np.array([[True, True, False]] * 3), [dog, bites, [1, 1, 0]]),
):
    of_scores = (sentence @ w_q) @ (sentence @ w_k).T / np.sqrt(2)
    of_weights = softmax(np.where(may, of_scores, -np.inf))
    for n, row in enumerate(("dog", "bites", name)):
        drawing.text(0.75, y + 0.36 * (1 - n), row, at="right", size=10)
        for x, title, shown in (
            (0.85, "scaled scores", of_scores[n]),
            (2.95, "masked", np.where(may[n], of_scores[n], -np.inf)),
            (5.05, "weights", of_weights[n]),
        ):
            colors = np.where(may[n], "#e4edf4", "#d5d5d5")
            cells = [f"{s:.2f}" if np.isfinite(s) else "−∞" for s in shown]
            drawing.cells(x, y + 0.36 * (1 - n), cells, colors, 0.5)
            if y > 2 and not n:
                drawing.text(x + 0.75, y + 0.75, title, size=10)
    drawing.arrow((2.43, y), (2.87, y))
    drawing.arrow((4.53, y), (4.97, y))
plt.show()

# %% [markdown]
# Under the causal mask *bites* may attend only to *dog* and to itself, so their exponentials, 4.113 and 1, are divided
# by 5.113. *Dog* sees only itself, so its weight is 1 and its output its own value.
#
# In `attention` a mask takes two lines:


# %%
def attention(query, key, value, mask=None):
    scores = query @ key.swapaxes(-2, -1)
    scaled = scores / np.sqrt(query.shape[-1])
    if mask is not None:  # new
        scaled = np.where(mask, scaled, -np.inf)  # new
    weights = softmax(scaled)
    return weights @ value, weights


def self_attention(x, w_q, w_k, w_v, mask=None):
    return attention(x @ w_q, x @ w_k, x @ w_v, mask)


causal = np.tril(np.ones((3, 3), dtype=bool))  # a lower triangle
_, causal_weights = self_attention(small, w_q, w_k, w_v, mask=causal)

# %% [markdown]
# To see that a causal mask works, change one word at a time. The outputs of the words before it must not move, or the
# future leaks; all others should move, or the mask hides too much.

# %%
before, _ = self_attention(small, w_q, w_k, w_v, mask=causal)
for t in range(3):
    changed = small.copy()
    changed[t] += 1  # all its numbers: changing one might happen to move nothing
    after, _ = self_attention(changed, w_q, w_k, w_v, mask=causal)
    moved = ~np.isclose(before, after).all(axis=1)
    print(f"{small_tokens[t]:5} changed, outputs moved: {moved}")
    assert (moved == (np.arange(3) >= t)).all()

# %% [markdown]
# A padding mask is made from the numbers of the tokens (*token ids*), where 0 is padding, and has one entry for each
# *key*. In `real[:, None, :]` below, `None` makes the shape (2, 3) into (2, 1, 3), and broadcasting repeats the entries
# for every query. To hide both the future and the padding, combine the two masks with `&`.

# %% tags=["nbval-check-output"]
ids = np.array([[1, 2, 3], [1, 2, 0]])  # dog bites man, dog bites; 0 is padding
table = np.array([[1, 1, 0], *small])  # row 0: padding, any numbers
batch = table[ids]  # (2, 3, 3)
real = ids != 0  # (2, 3)
padded_output, padded_weights = self_attention(
    batch, w_q, w_k, w_v, mask=real[:, None, :]
)
print(padded_weights[1].round(3))
both = causal & real[:, None, :]
print(both.shape)

# %% [markdown]
# No real word gives the padding any weight, so the words of a sentence get the same outputs in a padded batch as alone.
# The third row is the padding token's own. Its output means nothing, but no other word reads it, because later layers,
# too, hide the token as a key. Where outputs or losses are averaged, leave it out.

# %% [markdown]
# The first folded cell below is the checked version that later chapters import; attention is called
# `scaled_dot_product_attention` there.

# %% tags=["export", "hide-input"] module="by_hand.attention"
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
    scores = query.astype(float) @ key.swapaxes(-2, -1)
    scaled = scores / np.sqrt(query.shape[-1])
    if mask is not None:
        scaled = np.where(mask, scaled, -np.inf)
    weights = softmax(scaled)
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


# %% tags=["proof"]
small_output, small_weights = self_attention(small, w_q, w_k, w_v)
assert np.allclose(small_weights, weights) and np.allclose(small_output, context)
assert (q @ k.T)[[1, 2], [2, 1]].tolist() == [4, 2]
assert (w_q @ w_k.T).tolist() == [[0, 2, 0], [2, 0, 2], [0, 0, 0]]

# %% [markdown]
# ### Why minus infinity?
#
# Compare minus infinity with what else one might do:

# %% tags=["nbval-check-output"]
scaled = np.array([1.0, 2.0, 3.0])
may = np.array([True, True, False])
zeroed = softmax(scaled) * may
print(
    "minus infinity before       ", softmax(np.where(may, scaled, -np.inf)).round(3)
)
print("times the mask, before      ", softmax(scaled * may).round(3))
print("times the mask, after       ", zeroed.round(3), "sum", zeroed.sum().round(3))

# %% [markdown]
# Multiplying the scaled scores by the mask (second line) is wrong: a score of 0 is an ordinary score, with $e^0 = 1$,
# so the hidden word still gets 0.09.
#
# Multiplying the weights by the mask (third line) is only half right: they no longer sum to 1, because the sum that
# divides them still contains the hidden word's exponential. Through this sum the hidden word still changes the other
# weights, so under a causal mask the future leaks: *bites* gives *dog* 0.187 in *dog bites man*, but 0.446 if the last
# word is a second *dog*. With minus infinity it is 0.804 in both. (Dividing these weights by their own sum would repair
# both faults, except where the visible weights have already rounded to 0.)

# %% tags=["proof"]
assert (padded_weights[1, :, 2] == 0).all() and np.isfinite(padded_output).all()
assert np.allclose(padded_weights[0], small_weights)
assert softmax(scaled * may)[2].round(2) == 0.09
shares = weights[1, :2]  # of dog and bites, in the row of bites
assert np.allclose(shares, [0.1867, 0.0454], rtol=0, atol=5e-5)
assert np.allclose(shares / shares.sum(), [0.804, 0.196], rtol=0, atol=5e-4)
_, second_dog = self_attention(small[[0, 1, 0]], w_q, w_k, w_v)
assert second_dog[1, 0].round(3) == 0.446
_, masked_dog = self_attention(small[[0, 1, 0]], w_q, w_k, w_v, causal)
assert masked_dog[1, 0].round(3) == causal_weights[1, 0].round(3) == 0.804
assert np.finfo(np.float16).max == 65504
assert np.allclose(softmax(np.full(3, -1e9)), 1 / 3)  # a fully hidden row

# %% [markdown]
# ## Does the order of the words matter?
#
# *Bites* could not tell who bites. Was that due to our matrices? Take nine words with random vectors and three random
# matrices, compute their attention, shuffle the words, and compute it again.
#
# **Predict first.** The fourth token, *Language*, becomes the last. Its output vector
#
# 1. changes, since it has new neighbours;
# 2. changes, since its position is new;
# 3. stays the same, up to rounding.

# %%
tokens = ["I", "like", "Natural", "Language", "Processing", ",", "a", "lot", "!"]
width = 16
x = np.random.default_rng(0).standard_normal((9, width))
projections = np.random.default_rng(3).standard_normal((3, width, width)) / 4  # √16
output, weights = self_attention(x, *projections)

order = np.random.default_rng(32).permutation(len(tokens))
shuffled_output, shuffled_weights = self_attention(x[order], *projections)
print(" ".join(tokens[i] for i in order))
same = np.allclose(shuffled_output, output[order], rtol=0, atol=1e-12)
print("each word's output stays the same, to within 1e-12:", same)
assert same
assert np.allclose(shuffled_weights, weights[order][:, order], rtol=0, atol=1e-12)
assert order[8] == 3  # Language, now the last

# %% [markdown]
# The output of *Language* stays the same, and it would with any matrices. Each score depends on two words alone, the
# softmax divides by a *sum* over all words, an output is itself such a *sum*, and a sum does not depend on the order of
# its terms. So if you shuffle the words, weights and outputs are shuffled alike: **permutation equivariance**.
# (*Invariance* would mean that the whole output matrix stays as it was, row by row.)
#
# Without a mask, then, the verb receives the same in *dog bites man* and in *man bites dog*. A causal mask changes
# that, because which words a query may see then depends on the order:

# %%
dog_bites, _ = self_attention(small[[0, 1, 2]], w_q, w_k, w_v)
man_bites, _ = self_attention(small[[2, 1, 0]], w_q, w_k, w_v)
# the verb cannot tell who bites
assert np.allclose(dog_bites, man_bites[[2, 1, 0]])

for order_of in ([0, 1, 2], [2, 1, 0]):
    masked, _ = self_attention(small[order_of], w_q, w_k, w_v, mask=causal)
    text = " ".join(small_tokens[i] for i in order_of)
    print(f"{text}: the verb receives", masked[1].round(3))
assert masked[1].round(3).tolist() == [0.944, 0.944]

# %% [markdown]
# Of the nouns, the verb now sees only the biter: *dog*, whose value $(1, 0)$ gets the weight 0.804, or *man*, whose
# value $(1, 1)$ gets 0.944. But in a first layer of attention a word still cannot tell the order *among* the words
# before it, because they enter the same sum. (In later layers it can, since what each word brings already depends on
# the words before it.) So most models tell attention the positions, with or without a mask ([chapter
# 5](05_position.ipynb)).

# %% [markdown]
# ## The same as a PyTorch module
#
# From chapter 7 on this book trains models in PyTorch, where a part of a model is an object, called a **module**. Its
# class has an `__init__` that makes the matrices, and a `forward` that runs when you call the module. `nn.Linear`
# without bias is a matrix that training can change, and `.mT` swaps the last two axes. Here $d_v = d_k$.

# %%
import torch
from torch import nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    def __init__(self, d_model, d_k):
        super().__init__()
        self.w_q = nn.Linear(d_model, d_k, bias=False)
        self.w_k = nn.Linear(d_model, d_k, bias=False)
        self.w_v = nn.Linear(d_model, d_k, bias=False)

    def forward(self, x, mask=None):  # (T, T) or (B, 1 or T, T), True: may attend
        query, key, value = self.w_q(x), self.w_k(x), self.w_v(x)  # (B, T, d_k)
        scaled = query @ key.mT / key.shape[-1] ** 0.5  # (B, T, T)
        if mask is not None:
            scaled = scaled.masked_fill(~mask, float("-inf"))
        return scaled.softmax(dim=-1) @ value  # (B, T, d_k)


torch.manual_seed(0)
layer, sentences = SelfAttention(d_model=16, d_k=8), torch.randn(2, 5, 16)
triangle = torch.ones(5, 5, dtype=torch.bool).tril()
print(tuple(layer(sentences, triangle).shape))  # (B, T, d_k)

# %% [markdown]
# Compare the module with PyTorch's own function and with ours in NumPy, with a mask that hides the future and padding:

# %%
real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
mask = triangle & real[:, None, :]  # (B, T, T)
query, key, value = (w(sentences) for w in (layer.w_q, layer.w_k, layer.w_v))
pytorchs = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
assert torch.allclose(layer(sentences, mask), pytorchs, atol=1e-6)

# nn.Linear stores its matrix transposed
matrices = [w.weight.T.detach().numpy() for w in (layer.w_q, layer.w_k, layer.w_v)]
ours, _ = self_attention(sentences.numpy(), *matrices, mask=mask.numpy())
assert np.allclose(layer(sentences, mask).detach().numpy(), ours, atol=1e-6)

# %% tags=["proof"]
blank = F.scaled_dot_product_attention(
    *torch.ones(3, 1, 2, 2), torch.zeros(2, 2, dtype=torch.bool)
)
assert (blank == 0).all()

# %% [markdown]
# In a real model, let `forward` end with PyTorch's function, because it avoids storing the weights where it can
# ([chapter 20](20_one_gpu.ipynb#attention-without-the-score-matrix)). Where only the future is hidden, and $S = T$,
# pass `is_causal=True` instead of a mask. Three things to watch for:
#
# - In `nn.MultiheadAttention`'s `attn_mask` and `key_padding_mask`, True means *hidden*.
# - A mask of floats is *added* to the scaled scores, so it must hold 0 for *may attend* and $-\infty$ for *hidden*.
#   With 1 and 0 PyTorch's function hides nothing, and raises no error.
# - Many models set some weights to 0 at random in training (*dropout*, [chapter
#   8](08_encoder.ipynb#the-encoder-layer)). PyTorch's function does so whenever `dropout_p` is above 0, so outside
#   training pass 0 yourself.
#
# How do you know that yours is right? It should agree with a loop over the queries, and with PyTorch's function on the
# same matrices. If queries come separately, leaving some out must not change the other outputs. Padding must not change
# those of real words, and, under a causal mask, a changed word must not change those before it. Make $B$, $T$, $D$ and
# $d_k$ all different, because where two sizes agree, a wrong axis or a wrong square root can go unnoticed. The loop and
# PyTorch's function find the most; the other checks help to tell [which mistake it
# is](#break-it-four-versions-one-correct).

# %% [markdown]
# ## What does attention cost?
#
# There are $T S$ pairs of a query and a key. Each takes $d_k$ multiplications for its score and $d_v$ for its part of
# the blend, and has one weight, which training keeps unless it computes it again. Within one text $S = T$, so the time
# for the $T^2$ pairs is *quadratic*: it grows with the square of the text's length. So does the memory if all weights
# are stored. The projections cost $T D (2 d_k + d_v)$ multiplications, which grow only linearly with $T$. With
# $d_k = d_v$ the projections take $3 T D d_k$, and the pairs $2 T^2 d_k$. So in short texts the projections are most of
# a head's work. Beyond $T = 1.5 \, D$ the pairs are: for $D = 512$ that is beyond 768 words. In a whole transformer it
# takes longer texts, because its other matrices, too, cost multiplications for each word.


# %% [markdown]
# ## Exercises
#
# ### Exercise 1: Ask somebody else
#
# *Easy, 10 minutes.* In *cross-attention*, one sequence asks and another answers. Queries come from `x`, keys and
# values from `memory`. Return the output only. You may use `softmax`, but not `attention`.


# %% tags=["exercise"]
def cross_attention(x, memory, w_q, w_k, w_v):
    """x (T, D) asks memory (S, D): w_q, w_k (D, d_k), w_v (D, d_v) -> (T, d_v)."""
    ...


# %% tags=["check"]
rng = np.random.default_rng(5)


def draw(words, remembered, width, d_k, d_v):
    """x, memory, w_q, w_k, w_v; where both are equally long, a mix-up of the two is named, and not an error."""
    shapes = [
        (words, width),
        (remembered, width),
        (width, d_k),
        (width, d_k),
        (width, d_v),
    ]
    return tuple(rng.standard_normal(shape) for shape in shapes)


def attend(q, k, v, root=None):
    return softmax(q @ k.T / (root or np.sqrt(q.shape[1]))) @ v


check_at_all = partial(
    checks.check,
    reference=lambda x, m, w_q, w_k, w_v: attention_by_loop(
        x @ w_q, m @ w_k, m @ w_v
    ),
)
check_equally_long = partial(
    check_at_all,
    cases=[draw(2, 2, 3, 4, 2), draw(3, 3, 4, 5, 2)],
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


def check_cross(answer):
    verdict = check_equally_long(answer)
    cases = [draw(2, 5, 3, 4, 2), draw(4, 3, 3, 5, 2)]
    return check_at_all(answer, cases=cases) if verdict.passed else verdict


check_cross(cross_attention)


# %% tags=["solution"]
def cross_attention(x, memory, w_q, w_k, w_v):
    query, key, value = x @ w_q, memory @ w_k, memory @ w_v
    return softmax(query @ key.T / np.sqrt(key.shape[1])) @ value


verdict = check_cross(cross_attention)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: Two masks, and an empty row
#
# *Medium, 15 minutes.* Turn a matrix of scaled scores of a text with itself into weights. No query may attend to a
# later key, or to padding (`real` is False where a token is padding). Where that leaves a query no key, its weights
# are 0. (With minus infinity such a row is refused, or becomes NaN; a very negative finite number avoids this, but then
# the row's weights are not yet 0.)


# %% tags=["exercise"]
def weights_under(scaled, real):
    """Weights (T, T) from scaled scores (T, T), causal, without padding; real (T,)."""
    ...


# %% tags=["check"]
def spread(scaled, may, empty=0.0):
    highest = np.where(may, scaled, -1e30).max(axis=1, keepdims=True)
    powers = np.exp(np.where(may, scaled - highest, -np.inf))
    total = powers.sum(axis=1, keepdims=True)
    return np.where(total > 0, powers / np.where(total > 0, total, 1), empty)


triangle_of_4 = np.tril(np.ones((4, 4), dtype=bool))
check_under = partial(
    checks.check,
    reference=lambda s, real: spread(s, triangle_of_4 & real),
    cases=[
        (rng.standard_normal((4, 4)), np.array([True, True, True, False])),
        (rng.standard_normal((4, 4)), np.array([False, False, True, True])),
        (300 * rng.standard_normal((4, 4)), np.array([True, True, False, True])),
    ],
    mistakes={
        "the future is not hidden": lambda s, real: spread(s, real),
        "the padding is not hidden": lambda s, real: spread(s, triangle_of_4),
        "you hide the *rows* of the padding; nobody may attend to it, so hide its columns": lambda s, real: (
            spread(s, triangle_of_4 & real[:, None])
        ),
        "one mask is enough to hide a pair: both must allow it, so combine them with `&`": lambda s, real: (
            spread(s, triangle_of_4 | real)
        ),
        "the triangle is the wrong way round: query t may attend to keys 0 to t": lambda s, real: (
            spread(s, triangle_of_4.T & real)
        ),
        "a query may attend to its own key: keep the diagonal": lambda s, real: (
            spread(s, np.tril(triangle_of_4, -1) & real)
        ),
        "an empty row gets equal weights: it should get zeros": lambda s, real: (
            spread(s, triangle_of_4 & real, empty=0.25)
        ),
        "you multiply the scaled scores by the mask: 0 there is not a weight of 0, since $e^0 = 1$": lambda s, real: (
            softmax(s * (triangle_of_4 & real))
        ),
        "you apply the mask after the softmax and leave it there: the rows no longer sum to 1": lambda s, real: (
            softmax(s) * (triangle_of_4 & real)
        ),
    },
    properties=[checks.finite, checks.non_negative],
)
check_under(weights_under)


# %% tags=["solution"]
def weights_under(scaled, real):
    may = np.tril(np.ones_like(scaled, dtype=bool)) & real
    # the product changes only rows that are hidden as a whole
    return softmax(np.where(may, scaled, -1e30)) * may


verdict = check_under(weights_under)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: Wire a head by hand
#
# *Harder, 20 minutes.* Every word has a column of its own: its vector is 1 there and 0 elsewhere (*one-hot*). So $X$
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
        return f"the right partners, but one gets only {shares.min():.4f} of the weight: make the scores larger"


one_hot = np.eye
check_wire = partial(
    checks.check,
    reference=lambda partner: one_hot(len(partner))[partner],
    cases=[([1, 2, 0],), ([3, 3, 3, 0, 1],)],
    tolerance=0.01,
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
# Every word makes a query, a key and a value from its own vector, by three learned matrices. Its query is compared with
# all keys, the scores are divided by the root of the key's width, the softmax turns them into weights, and the word
# receives the values in these proportions. All words do so at once, and their order plays no part until attention is
# told the positions, or a causal mask is used. In *you import a file with python*, one choice of $W_Q$ and $W_K$ lets
# *python* choose *import*, and one choice of $W_V$ hands over *programming*.
#
# **Sources.** The formula: [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762). A shared matrix: [Kitaev,
# Kaiser and Levskaya (2020)](https://arxiv.org/abs/2001.04451). The nine tokens of *I like Natural Language Processing
# , a lot !* come from a [forum answer](https://stats.stackexchange.com/a/502203).
#
# **Next.** [Chapter 5](05_position.ipynb) gives each word a position, so that *dog bites man* and *man bites dog*
# become different. [Chapter 6](06_many_heads.ipynb) runs several attentions side by side, and adds the linear layer
# that mixes what they found.

# %% [markdown]
# ## Going further
#
# Questions about the matrices and the mask, an old relative, and four ways to compute the weights. Later chapters
# repeat what they need of them.
#
# ### Why two matrices, and not their product?
#
# Write out a score, and the two matrices meet in the middle, as a product:
#
# $$q_i k_j^\top = (x_i W_Q)(x_j W_K)^\top = x_i \, W_Q W_K^\top \, x_j^\top .$$
#
# Without the matrices, a word's score with itself is its squared length, and among vectors of equal length no score is
# larger. The product $W_Q W_K^\top$ says which entry of the asking word counts with which entry of the other, so
# another word can score higher, and unlike words can match. And the product need not be symmetric, as it would be with
# one matrix for queries and keys, $W W^\top$. For *dog bites man*, with two matrices, the product is
#
# $$W_Q W_K^\top = \begin{pmatrix} 0 & 2 & 0 \\ 2 & 0 & 2 \\ 0 & 0 & 0 \end{pmatrix} .$$
#
# Row $a$, column $b$ (in the order alive, action, human) is what the score gains when the asking word has entry $a$ and
# the other word entry $b$. An action asks for *alive* and for *human*, 2 each (row 2), so *man* gets $2 + 2 = 4$ from
# *bites*. Only *alive* asks for an action (column 2), so *bites* gets 2 from *man*.
#
# For the scores, then, only the product $W_Q W_K^\top$ matters. It is a sum of $d_k$ [outer products](#and-python),
# each of a column of $W_Q$ (a question) and the same column of $W_K$ (what answers it). So its rank, the number of
# independent directions that it uses, is at most $d_k$.
#
# Why not train it as one $(D, D)$ matrix? Because two narrow ones are cheaper as long as $2 d_k < D$. With $D = 512$
# and $d_k = 64$ they hold $2 D d_k = 65{,}536$ numbers, and one would hold $D^2 = 262{,}144$. Each word's short key is
# computed once, and then a score takes 64 multiplications instead of 512. The rank is the price, and [chapter
# 6](06_many_heads.ipynb#what-if-a-head-is-too-narrow) says what it costs.

# %% [markdown]
# ### Would one shared matrix do?
#
# A compromise looks tempting: one matrix for both queries and keys. Compare no matrix at all, one shared matrix, and
# two. Draw two thousand sentences, in 20 batches, each sentence of nine random vectors of width 16 and with its own
# random $16 \times 16$ projections. Count how often a word attends most to itself. By chance it would be 1/9, about
# 11 percent.
#
# **Predict first.** For *one shared* matrix, do you expect a number near 11 percent, near 100, or halfway between?


# %% how often a token's largest weight is its own tags=["hide-input"]
def weigh(queries, keys):
    return softmax(similarity_matrix(queries, keys) / np.sqrt(keys.shape[-1]))


def favours_itself(weights):
    """Share of the rows whose largest weight is the token's own."""
    return np.mean(weights.argmax(axis=-1) == np.arange(weights.shape[-1]))


many = np.random.default_rng(1).standard_normal((2000, 9, width))
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
        f"{name:18} {np.mean(batches):6.1%} of words attend most to themselves"
        f" (20 batches: {min(batches):.1%} to {max(batches):.1%})"
    )
assert 0.99 < favours_itself(shares["no matrix"]) < 1
assert 0.90 < favours_itself(shares["one shared matrix"]) < 0.97
assert abs(favours_itself(shares["two matrices"]) - 1 / 9) < 0.01

# %% [markdown]
# With a shared matrix a word's score with itself is $\|k_i\|^2$, the squared length of its key. Its scores with others,
# $\|k_i\| \|k_j\| \cos\theta$ with $\theta$ the angle between the two keys, scatter around 0. Divide both by $\|k_i\|$:
# word $j$ wins only where $\|k_j\| \cos\theta > \|k_i\|$, so its key must be longer. And the scores
# $X W_Q (X W_Q)^\top$ stay symmetric, whatever training does. With two random matrices a word's query has no more to do
# with its own key than with any other, so training decides whom the word attends to, itself included.
#
# An attention that picks its own word fetches nothing new. Can a shared matrix work? Yes, with two changes: [Kitaev and
# others (2020)](https://arxiv.org/abs/2001.04451) scale the keys, but not the queries, to length 1, so that scores are
# no longer symmetric, and let words attend to themselves only where there is nobody else. (Otherwise each would find
# itself, because its own key points the way its query does.) They report no loss on the two tasks that they tested.
#
# ### What is the third matrix for?
#
# Suppose that word $i$ needs word $j$, and finds it. What it receives is then added to its own vector (chapter 8 says
# why). With values that are the words themselves the sum is $x_i + x_j$. Can a later matrix still tell the two words
# apart?
#
# Test it with random words of width 16. In one run the words use only the first 8 of their 16 numbers, so that there is
# room for another word; in a second run they use all 16. Make two kinds of sum: $x_i + x_j$, and $x_i + x_j W_V$ with a
# random $W_V$. To play the part of the later matrix, fit one by least squares: a sum times this matrix should come as
# near as possible to the two words, side by side. What share of the words' squared length does it miss, on held-out
# sums?


# %% both words, recovered from their sum tags=["hide-input"]
def share_lost(received, wanted):
    """Fit on the first half of the rows; what is missed on the second."""
    half = len(wanted) // 2
    fit = np.linalg.lstsq(received[:half], wanted[:half], rcond=None)[0]
    missed = received[half:] @ fit - wanted[half:]
    return np.mean(missed**2) / np.mean(wanted[half:] ** 2)


for used in (8, 16):
    rng = np.random.default_rng(0)
    own, found = np.zeros((2, 2000, 16))
    own[:, :used], found[:, :used] = rng.standard_normal((2, 2000, used))
    both = np.hstack([own[:, :used], found[:, :used]])
    w = rng.standard_normal((16, 16)) / 4
    lost = share_lost(own + found, both), share_lost(own + found @ w, both)
    print(
        f"{used:2} entries in use: lost {lost[0]:4.0%} with V = X, {lost[1]:4.0%} with V = X W_V"
    )
    assert 0.48 < lost[0] < 0.52
    assert lost[1] < 1e-9 if used == 8 else 0.45 < lost[1] < 0.55

# %% [markdown]
# Without $W_V$ both words use the same entries, so no linear map can tell their parts of the sum apart. The best guess
# for each is half the sum. It misses $(x_i - x_j)/2$, whose squared length is on average half of one word's. A matrix,
# even a random one, turns what was found into other directions. Where words use 8 of 16 entries, $x_j W_V$ fills all
# 16, but the last 8 numbers of the sum come from $x_j$ alone. They determine $x_j$; subtract $x_j W_V$ from the sum,
# and $x_i$ is left. So nothing is lost. Two words that use all 16 entries do not both fit.
#
# One $W_V$ can also hold dozens of pairs like *import* → *programming*. With 50 random pairs of the 384-wide word
# vectors the result still has a cosine of 0.9 with its target, on average, since the first words of the pairs are
# nearly at right angles.
#
# And $W_V$ can hand over nothing: *bites* had the value $(0, 0)$. A value near zero is useful because a softmax cannot
# say *none*. A word that needs nothing must still distribute a total weight of 1, and can give nearly all of it to a
# word whose value is near zero. A token that collects much weight, whatever is asked, is called an **attention sink**
# ([Xiao and others, 2023](https://arxiv.org/abs/2309.17453)).
#
# So read weights with care. A large weight may fetch almost nothing. And above the first layer of a transformer, a
# word's vector is already a mixture of several words, so a weight on *man* is a weight on that mixture.

# %% tags=["proof"]
drawn = np.random.default_rng(0).choice(rows, (2, 50), replace=False)
many = sum(np.outer(a, b) for a, b in drawn.swapaxes(0, 1))
handed = normalize(drawn[0] @ many)
assert 0.86 < (handed * drawn[1]).sum(axis=1).mean() < 0.94

# %% [markdown]
# ### A row with nothing to attend to
#
# If every key is hidden, every scaled score is $-\infty$. The softmax subtracts the largest, and $-\infty - (-\infty)$
# is NaN (*not a number*), which spreads to everything it touches: in the next attention even a weight of 0 times NaN is
# NaN. In training, one NaN in the loss makes nearly every gradient NaN, and with the next step nearly every parameter.
# Such a row arises where padding stands *before* a text (*left padding*). The causal mask lets a padding token see only
# padding, and the padding mask hides that too.
#
# The three lines of `softmax` in [the definition](#the-definition) return NaN for such a row, and so does the module
# `SelfAttention` above. Chapter 3's function, with its check, refuses it with an error. Exercise 2 gives it weights of
# 0, and so does, in the version used here, PyTorch's function.
#
# Many programs write a large negative number, such as $-10^9$, in place of minus infinity. It works too, with two
# exceptions. A row with nothing to attend to then gives equal weights to what is hidden, without a warning. And
# float16, which ends at 65,504, cannot hold such a number.

# %% tags=["proof"]
hidden = np.full(3, -np.inf)
with np.errstate(invalid="ignore"):
    assert np.isnan(np.exp(hidden - hidden.max())).all()
try:
    scaled_dot_product_attention(q, k, v, mask=np.zeros((3, 3), dtype=bool))
except ValueError as error:
    assert "nothing to attend to" in str(error)
else:
    raise AssertionError("a query without keys went through")

# %% [markdown]
# ### A mask over the wrong axis
#
# Chapter 6 runs several attentions side by side, called *heads*, and then the weights have the shape (batch, heads, T,
# S). A mask of shape (batch, T, S) lines up with the *last* three axes, so its batch is taken for heads. With 2
# sentences and 4 heads you get an error. With 4 sentences and 4 heads you get none: in *every* sentence head 0 uses the
# mask of sentence 0, head 1 that of sentence 1, and so on. Here `per_sentence`, (4, T, S), hides the future in sentence
# 0, and nothing in the others. Does any head of sentence 0 give weight to a later word?

# %% the mask with and without an axis for heads tags=["hide-input"]
per_sentence = np.stack([np.tril(np.ones((3, 3), dtype=bool))] * 4)
per_sentence[1:] = True  # only sentence 0 is causal
heads = np.random.default_rng(0).standard_normal(
    (4, 4, 3, 2)
)  # batch, heads, T, d_k
_, wrong = scaled_dot_product_attention(heads, heads, heads, per_sentence)
_, right = scaled_dot_product_attention(heads, heads, heads, per_sentence[:, None])
for name, weights in (("per_sentence", wrong), ("per_sentence[:, None]", right)):
    print(
        f"mask = {name:22} a later word is seen:", (weights[0, :, 0, 2] > 0).any()
    )
assert wrong[0, 1, 0, 2] > 0 and (right[0, :, 0, 1:] == 0).all()
assert (right[1:, :, 0, 2] > 0).all() and (wrong[:, 0, 0, 2] == 0).all()

# %% [markdown]
# Heads 1 to 3 use the masks of the other sentences, which hide nothing. So write `mask[:, None]`, (batch, 1, T, S); a
# padding mask of shape (batch, S) needs two new axes, (batch, 1, 1, S). And test with several heads and sentences, but
# not equally many.

# %% [markdown]
# ### Is attention a filter?
#
# A picture is cleaned of noise by averaging each pixel with others. A blur gives the neighbours of a pixel weights that
# depend only on where they are. *Non-local means* ([Buades, Coll and Morel,
# 2005](https://doi.org/10.1109/CVPR.2005.38)) gives every pixel a weight that depends on how much its surroundings
# *look* like those of the pixel to be cleaned, however far away. That is attention with pixels in place of words: here,
# too, the weights are computed from what is blended ([Wang and others, 2018](https://arxiv.org/abs/1711.07971), draw
# the connection). There the analogy ends. A filter compares surroundings as they are and returns a pixel. Attention
# learns what to compare, and what to hand over. And a *convolution*, a blur whose weights are learned? Moved from
# pixels to words, it has a fixed weight for each position in its window, such as *two words back*. Attention computes a
# weight for each pair of words, however far apart, and without a mask or positions it does not know where they stand
# ([chapter 5](05_position.ipynb)).

# %% [markdown]
# ### Break it: four versions, one correct
#
# Of four ways to compute the weights, three contain a mistake that people make: no division at all, division by the
# root of the number of queries, and a softmax over queries. Five checks follow: the shape of the output; that the
# weights of a query sum to 1; that shuffled words give shuffled outputs; that leaving out queries does not change the
# answers to the others; and that a slow loop agrees. The words are *I like Natural Language Processing , a lot !*.
# **Predict first:** which check catches which mistake?

# %%
versions = {
    "correct": lambda q, k: softmax(q @ k.T / np.sqrt(q.shape[1])),
    "not divided": lambda q, k: softmax(q @ k.T),
    "root of number of queries": lambda q, k: softmax(
        q @ k.T / np.sqrt(q.shape[0])
    ),
    "softmax over queries": lambda q, k: softmax(
        q @ k.T / np.sqrt(q.shape[1]), axis=0
    ),
}

# %% five checks of four versions tags=["nbval-check-output", "hide-input"]
q, k, v = x @ projections
print(f"{'':26} shape  rows sum to 1  shuffle  fewer queries  equals the loop")
for name, version in versions.items():
    w = version(q, k)
    passed = [
        (w @ v).shape == v.shape,
        np.allclose(w.sum(axis=1), 1),
        np.allclose(version(q[order], k[order]) @ v[order], (w @ v)[order]),
        np.allclose(version(q[:4], k) @ v, (w @ v)[:4]),
        np.allclose(w @ v, attention_by_loop(q, k, v)),
    ]
    verdicts = ["ok" if ok else "CAUGHT" for ok in passed]
    print("{:26}{:>6}{:>15}{:>9}{:>15}{:>17}".format(name, *verdicts))

# %% [markdown]
# Shape and shuffle catch nothing: every version leaves the shape $(T, S)$, and every one treats all words alike. (Under
# a causal mask the wrong axis also leaks, because later queries enter each column's sum.) The sum catches the wrong
# axis: there the columns sum to 1 and the rows do not, so an output is no longer an average of the values. Leaving
# queries out catches it, too, because a softmax over queries makes each weight depend on the other queries. The same
# check catches the root of the number of queries, because that number changes.
#
# No division at all passes every check but the last: its weights are positive, sum to 1 and move with the words. Only
# known numbers or independent code, such as the loop, detect it here.

# %% [markdown]
# ### Short answers
#
# - **Why may a word see itself under a causal mask?** A model that guesses the *next* word is given the present one, so
#   to see it leaks nothing. Without the diagonal the first word would have no key. `np.tril` keeps the diagonal; `k=-1`
#   would remove it.
# - **Does a causal mask save work?** Not in `attention` above: it computes all $T^2$ scores, then overwrites nearly
#   half. With 1,000 words, 500,500 of the million scores remain. A function that is told `is_causal=True` can skip the
#   rest, because it knows beforehand which are hidden.
# - **Do the projections need biases?** A key's bias $b$ changes nothing here: it adds the same $q_i b^\top$ to every
#   score of row $i$, which a softmax ignores. A query's bias can favour some keys for all queries, and a value's bias
#   is added to every output ([Namazifar and others, 2023](https://arxiv.org/abs/2302.08626)).
# - **How much memory do the attention weights take?** For 4,096 tokens there are $4{,}096^2 = 16.8$ million weights. In
#   float32, at 4 bytes each, they take 67 MB, for one head and one text. For 8,192 tokens it is four times as much,
#   because both axes double.
# - **How does attention differ from a fully connected layer?** Such a layer across $T$ words learns a weight for each
#   pair of positions: the same for every text, and for one length only. Attention computes its weights from the words,
#   so they change with the text, and any length fits.
# - **Do two copies of a word receive the same?** Without a mask or positions, yes: equal vectors make equal queries, so
#   equal weights and equal outputs. In *dog bites dog* both dogs receive the same, although one bites and the other is
#   bitten.
# - **Can attention count?** It gives shares, because weights sum to 1. Without a mask or positions, a sentence written
#   twice changes no word's output. To count, add one extra token, a marker, that scores as high as a dog. Then $n$ dogs
#   together get $n / (n + 1)$ of the weight that they share with it, and this share reveals $n$.
# - **What if $W_Q$ and $W_K$ are swapped?** The scores are transposed: *bites* gives *man* 2 instead of 4. No shape
#   shows it, because both matrices are $(D, d_k)$; a row worked out by hand does. Before training a swap is harmless,
#   if both are drawn at random in the same way.
# - **Do sentences of a batch see each other?** No: `@` multiplies sentence by sentence, so the scores $(B, T, T)$ have
#   no entry for words of two sentences. Two sentences joined in one row of the batch do see each other, unless a mask
#   hides each from the other.
# - **Must both sequences of cross-attention have the same width?** No. If the second has the width $D'$, then $W_K$ is
#   $(D', d_k)$ and $W_V$ is $(D', d_v)$, while $W_Q$ stays $(D, d_k)$. Queries and keys must agree in width, because
#   only they meet in a dot product.
# - **Does one entry of a query mean something?** Not by itself. Multiply $W_Q$ and $W_K$ by the same $R$ with
#   $R R^\top = I$: the entries change, but in this formula no score does, because
#   $W_Q R R^\top W_K^\top = W_Q W_K^\top$. The columns *alive* and *action* were a choice. (With the keys' matrix
#   multiplied by $(R^{-1})^\top$, any invertible $R$ will do.)
# - **What if rows with nothing to attend to give NaN?** Let every row have at least one key, or hide nothing in an
#   empty row and set its output to 0. Replacing NaN by 0 afterwards mends the outputs but not the gradients, where 0
#   times NaN is NaN.
# - **How do fast programs avoid storing the weights?** Without approximating: block by block they keep each row's
#   running maximum and sum, and when training computes gradients they compute the blocks again ([chapter
#   20](20_one_gpu.ipynb#attention-without-the-score-matrix)). The memory then grows linearly, and the time stays
#   quadratic.
# - **How do I know that a word with a large weight mattered?** Mask it, and measure how far the output moves. Values
#   may be alike, so that other weights would give the same answer, and other heads, or the word's own vector, may
#   outweigh this one.

# %% tags=["proof"]
assert 1000 * 1001 // 2 == 500_500 and round(4096**2 / 1e6, 1) == 16.8
assert round(4 * 4096**2 / 1e6) == 67
swapped = (small @ w_k) @ (small @ w_q).T
assert swapped[1, 2] == 2
both_dogs, _ = self_attention(small[[0, 1, 0]], w_q, w_k, w_v)
assert np.allclose(both_dogs[0], both_dogs[2])
doubled, _ = self_attention(small[[0, 1, 2] * 2], w_q, w_k, w_v)
assert np.allclose(doubled[:3], context)
