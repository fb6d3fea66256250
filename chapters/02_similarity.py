# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 2. How alike are two words?
#
# *A Lannister always pays his debts.* What gets paid? To find the right word, a network must compare what it looks
# for with what each word offers. By the end of this chapter you will have a one-line function that compares every
# word of a sentence with every other, and will have used a published model's vectors to find the words most like
# *tea*, *debts* and *python*.
#
# You need Python with a little NumPy, the product of two matrices, the law of cosines, and, from statistics, the mean,
# the variance and the normal distribution (covariance in Going further). It takes about 27 minutes to read, and 30 for
# the exercises. [Going further](#going-further), at the end, takes 8 more minutes. Only the code? Read [a whole
# sentence at once](#a-whole-sentence-at-once) and [the mistake](#break-it-a-reshape-is-not-a-transpose) after it.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. One box is lit: the dot product between queries and keys, which this chapter builds. Everything else is still to come."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=2)

# %% [markdown]
# ## A question is a vector too
#
# A machine can find *debts* without understanding anything, if the question and the words are described by the same
# **features**. Here there are three: is it a *person*, is it a *thing*, does it say how *often*? Each answer is a
# number, larger for a stronger yes. The question *what gets paid?* asks for a thing: $(0, 2, 0)$. Four words of the
# sentence are described in the same way. *Lannister* is $(3, 0, 0)$, *always* is $(0, 0, 3)$ and *debts* is
# $(0, 3, 0)$; *pays*, which is none of the three, is $(0, 0, 0)$.

# %% [markdown]
# Multiply the question by a word, number by number, and add up. For *debts* this gives
# $0 \cdot 0 + 2 \cdot 3 + 0 \cdot 0 = 6$, for the other words 0. The sum is the word's **score**. A product is large
# and positive where question and word both have large numbers of the same sign, so the score is high where the two
# agree. (The size of the 2 does not matter here: with a 4 every score would double, and the same word would win.)
#
# Why multiply and add? Compare three ways to look something up:
#
# - *Equality*, as in a Python dictionary, finds only what is exactly the same, and no word is $(0, 2, 0)$. Nor can a
#   model be trained with it: after any small change of the numbers the answer stays *no*, so training cannot tell what
#   helps.
# - *Distance* finds the nearest word. But let *debts* be $(0, 9, 0)$, three times as strongly a thing. Its **Euclidean
#   distance** from the question, the root of the sum of the squared differences, is now 7. *Pays*, which is not a thing
#   at all, wins at distance 2.
# - The *sum of products* gives the stronger *debts* 18 instead of 6: more of what was asked for, a higher score. And
#   what is not asked for costs nothing, because it is multiplied by 0: if *debts* were $(0, 3, 3)$, it would still
#   score 6.
#


# %% tags=["plot"] mystnb={"image": {"alt": "A question, what gets paid, is the row of numbers 0, 2, 0 under person, thing and often. Below it four words with their rows, debts in two strengths, and for each whether it equals the question, its distance from it, and the sum of products. Lannister 3, 0, 0: no, 3.6, 0. Always 0, 0, 3: no, 3.6, 0. Pays 0, 0, 0: no, 2.0, 0. Debts 0, 3, 0: no, 1.0, 6. Debts, three times as strongly, 0, 9, 0: no, 7.0, 18. Only the sum of products finds debts both times."}}
from classroom.diagram import Diagram

question = [0, 2, 0]
offers = {
    "Lannister": [3, 0, 0],
    "always": [0, 0, 3],
    "pays": [0, 0, 0],
    "debts": [0, 3, 0],
    "debts, stronger": [0, 9, 0],
}
drawing = Diagram(7.8, 3.3)
for n, name in enumerate(["person", "thing", "often"]):
    drawing.text(2.6 + 0.7 * n, 3.12, name, color=plots.GREY)
for x, name in (4.9, "equal?"), (5.75, "distance"), (6.95, "sum of products"):
    drawing.text(x, 2.55, name, color=plots.GREY)
drawing.text(2.0, 2.8, "what gets paid?", color=plots.RED, at="right")
drawing.cells(2.25, 2.8, question, plots.BLANK, width=0.7)
agreements, distances = {}, {}
for n, (word, offer) in enumerate(offers.items()):
    y = 2.1 - 0.45 * n
    both = list(zip(question, offer, strict=True))
    agreement = agreements[word] = sum(a * b for a, b in both)
    distance = distances[word] = sum((a - b) ** 2 for a, b in both) ** 0.5
    color = "#d3e3ef" if agreement else plots.BLANK
    drawing.text(2.0, y, word, color=plots.BLUE, at="right")
    drawing.cells(2.25, y, offer, color, width=0.7)
    drawing.text(4.9, y, "no" if offer != question else "yes")
    drawing.text(5.75, y, f"{distance:.1f}")
    drawing.cells(6.77, y, [agreement], color, width=0.36)
drawing.arrow((2.6 + 0.7, 2.6), (2.6 + 0.7, 2.32), color=plots.RED)
plt.show()

# %% tags=["proof"]
assert list(agreements.values()) == [0, 0, 0, 6, 18]
assert distances["debts"] == 1 and distances["debts, stronger"] == 7
assert distances["pays"] == 2 and question not in offers.values()
asked = {word: offer[1] + 2 * offer[2] for word, offer in offers.items()}
assert [*asked.values()][:4] == [0, 6, 0, 3]

# %% [markdown]
# In attention the question is called the *query*; here it is $(0, 2, 0)$. What it is compared with is the word's
# **key**; for *debts* that is $(0, 3, 0)$. What the word hands over is its **value**, which for now may be the word
# itself. In this look-up every key gets a score, and only the value of the best key comes back. Attention returns a
# blend of all values, with more of those whose keys score higher (chapters 3 and 4). This chapter is about the
# comparison of query and key.

# %% tags=["quiz"]
quiz.one_choice(
    "Ask *what gets paid, and how often?* at once, with the query $(0, 1, 2)$. Which of the four words of the sentence scores highest?",
    quiz.wrong(
        "*debts*",
        "It scores $1 \\cdot 3 = 3$. The query asks for a thing, too, but less strongly than for how often.",
    ),
    quiz.right(
        "*always*",
        "Yes: $2 \\cdot 3 = 6$, more than the 3 of *debts* and the 0 of the others.",
    ),
    quiz.wrong(
        "*pays*",
        "Its numbers are all 0, so its score is 0, whatever the query.",
    ),
    quiz.wrong(
        "Three of them tie, since each has a single 3",
        "Each 3 is multiplied by what the query asks of that feature: 0, 1 or 2.",
    ),
)

# %% [markdown]
# ## A word as a row of numbers
#
# What does the sum of products measure? In the look-up a word matched the question or it did not. So take words that
# agree in part, and where common sense knows the answer: *tea* is more like *coffee* than like *train*. We describe
# *tea* and three other words by three new features: how *warm* is it, how *drinkable*, how fast does it *move*? The
# numbers are our own rough judgement.

# %%
import numpy as np

words = ["tea", "coffee", "ice", "train"]
vectors = np.array(
    [
        #  warm drink move
        [2, 3, 0],  # tea
        [3, 3, 0],  # coffee
        [-3, 1, 0],  # ice: anything but warm
        [1, 0, 4],  # train
    ]
)
tea, coffee, ice, train = vectors

# %% [markdown]
# Each row is a **vector**: a list of numbers in a fixed order. Its number of entries is its **dimension** or *width*
# $D$, here 3. In the original transformer the width of a word's vector is called $d_\text{model}$, in code `d_model`,
# and that of queries and keys $d_k$. There nobody chooses the features: training finds the numbers ([chapter
# 7](07_learning.ipynb)), and a single entry need not have a meaning that one could name.
#
# ## Multiply and add
#
# The sum of products of two vectors $a$ and $b$ of the same width $D$ is called their **dot product**, or inner
# product:
#
# $$a \cdot b = \sum_{i=1}^{D} a_i \, b_i , \qquad a, b \in \mathbb{R}^D .$$
#
# NumPy has it as `a @ b`; here it is spelled out because it is the subject. In this book **a signature says which
# shapes fit**: `Real[np.ndarray, " D"]` is an array of real numbers with one axis, of size $D$, and `"*batch D"` allows
# any number of axes before it. The notation is [jaxtyping](https://docs.kidger.site/jaxtyping/)'s, and `@shapes` checks
# that each letter stands for one size throughout a call. A `#` before a name allows a size of 1, too, as in NumPy's
# broadcasting. Outside this book leave out the annotations and `@shapes`.

# %% tags=["export"] module="by_hand.similarity"
import numpy as np
from dotformer.support.shapes import shapes
from jaxtyping import Float, Real


@shapes
def dot(a: Real[np.ndarray, " D"], b: Real[np.ndarray, " D"]) -> float:
    """Dot product of two vectors: multiply entry by entry, add up."""
    return float((a.astype(float) * b).sum())


# %% tags=["nbval-check-output"]
for word, vector in zip(words[1:], vectors[1:], strict=True):
    print(f"tea and {word:7}{dot(tea, vector):5.0f}")

# %% [markdown]
# Tea and ice disagree about warmth: opposite signs give a negative product, and here it outweighs the positive one for
# *drink*: $2 \cdot (-3) + 3 \cdot 1 + 0 \cdot 0 = -3$.

# %% tags=["proof"]
assert (vectors @ [1, 1, 0]).tolist() == [5, 6, -2, 1]  # something warm to drink
assert dot(tea, coffee) == 15
assert dot(tea, ice) == -3
assert dot(tea, train) == 2

# %% [markdown]
# **Predict first.** Which of these four words has the largest dot product with *tea*?
#
# 1. *tea*, since nothing is more like tea than tea itself;
# 2. *coffee*, although tea is on the list;
# 3. both the same, since they agree about what matters.

# %% tags=["nbval-check-output"]
print("tea and tea    ", dot(tea, tea))
print("tea and coffee ", dot(tea, coffee))

# %% [markdown]
# Coffee, 15 against 13, because it has the same *drink* and a larger *warm*. The dot product measures two things at
# once: how nearly two vectors say the same thing, and how loudly they say it.
#
# ## Direction and length
#
# Draw a vector as an arrow: its direction shows what the vector says, and its length how loudly. For tea, coffee and
# ice two numbers are enough, because the third is 0.

# %% tags=["plot"] mystnb={"image": {"alt": "Arrows for tea (2, 3), coffee (3, 3) and ice (-3, 1) in the plane of warm and drink. Tea and coffee point almost the same way, 11 degrees apart, and coffee is longer. Ice points to the other side, more than a right angle away from tea."}}
figure, axes = plt.subplots(figsize=(6, 3.6))
for word, (warm, drink, _), color in zip(
    words[:3], vectors, [plots.BLUE, plots.RED, plots.TEAL], strict=False
):
    axes.annotate(
        "",
        (warm, drink),
        (0, 0),
        arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2},
    )
    axes.annotate(
        f"{word} ({warm}, {drink})",
        (warm, drink),
        (0, 8),
        textcoords="offset points",
        color=color,
        ha={"coffee": "left", "tea": "right", "ice": "center"}[word],
    )
axes.set(
    xlim=(-4.4, 4.9),
    ylim=(-0.3, 3.8),
    xlabel="warm",
    ylabel="drink",
    aspect="equal",
)
axes.axhline(0, color=plots.GREY, lw=0.8)
axes.axvline(0, color=plots.GREY, lw=0.8)
plt.show()

# %% [markdown]
#
#
# The **length** of an arrow, also called the (L2) **norm** or *magnitude* of its vector, comes from Pythagoras. It is
# the root of the vector's dot product with itself: $\|a\| = \sqrt{a_1^2 + \dots + a_D^2} = \sqrt{a \cdot a}$.
#
# The dot product mixes agreement and length. To take them apart, we need the angle $\theta$ between two arrows $a$ and
# $b$. However wide the vectors, two arrows lie in one plane and span a triangle, whose third side is $a - b$. Compute
# the squared length of that side in two ways. First, it is the dot product of $a - b$ with itself. Its brackets expand
# as with ordinary numbers, because the dot product distributes over sums and its factors may be swapped:
#
# $$\|a - b\|^2 = (a - b) \cdot (a - b) = \|a\|^2 + \|b\|^2 - 2\, a \cdot b .$$
#
# Second, by the law of cosines, it is $\|a\|^2 + \|b\|^2 - 2\, \|a\| \, \|b\| \cos\theta$. Set the two equal, subtract
# the squares and divide by $-2$:
#
# $$a \cdot b = \|a\| \, \|b\| \cos\theta .$$
#
# For angles below a right angle the cosine is positive, and so is the dot product. Beyond it, as for tea and ice, both
# are negative; at a right angle both are 0. As a picture: $\|b\| \cos\theta$ is the length of the *shadow* that $b$
# casts on the direction of $a$, with a minus if it falls behind (the *scalar projection*), and the dot product is that
# length times the length of $a$.
#
# For the angle alone, divide by both lengths. What is left is the **cosine similarity**:
#
# $$\cos\theta = \frac{a \cdot b}{\|a\| \, \|b\|} .$$
#
# It lies between $-1$, for opposite directions, and 1, for the same direction (the *Cauchy–Schwarz inequality*).
#
# For tea and coffee, whose squared lengths are 13 and 18, it is $15 / \sqrt{13 \cdot 18} \approx 0.981$, an angle of
# about 11 degrees.
#
# In code, the division comes first: scale every vector to length 1, which makes it a **unit vector**, then take the dot
# product.

# %%
four = vectors  # the four words above, (4, 3)
lengths = np.sqrt((four**2).sum(axis=-1, keepdims=True))  # (4, 1), a column
units = four / lengths  # (4, 3), each row divided by its own length

# %% [markdown]
# The folded cell makes this a function, `normalize`; `cosine_similarity` scales two vectors and takes their dot
# product.


# %% tags=["export", "hide-input"] module="by_hand.similarity"
@shapes
def normalize(
    vectors: Real[np.ndarray, "*batch D"],
) -> Float[np.ndarray, "*batch D"]:
    """Scale every vector to length 1; its direction stays.

    Raises ValueError for a vector of zeros, and for one with NaN or infinity.
    """
    largest = np.abs(vectors.astype(float)).max(axis=-1, keepdims=True, initial=0)
    if not ((largest > 0) & (largest < np.inf)).all():
        raise ValueError("a vector of zeros, NaN or infinity has no direction")
    vectors = vectors / largest
    return vectors / np.sqrt((vectors**2).sum(axis=-1, keepdims=True))


@shapes
def cosine_similarity(
    a: Real[np.ndarray, " D"], b: Real[np.ndarray, " D"]
) -> float:
    """Cosine of the angle between two vectors: their dot product at length 1.

    Raises ValueError where `normalize` does.
    """
    cosine = dot(normalize(a), normalize(b))
    return min(max(cosine, -1.0), 1.0)  # rounding can go slightly past 1


# %% tags=["nbval-check-output"]
for word, vector in zip(words, vectors, strict=True):
    cosine = cosine_similarity(tea, vector)
    print(f"tea and {word:7} dot {dot(tea, vector):5.1f}   cosine {cosine:6.3f}")

# %% tags=["proof"]
assert abs(cosine_similarity(tea, coffee) - 15 / np.sqrt(13 * 18)) < 1e-12
assert round(cosine_similarity(tea, coffee), 3) == 0.981
assert 11 < np.degrees(np.arccos(cosine_similarity(tea, coffee))) < 12

# %% [markdown]
# Now tea is most like itself.
#
# One trap: a vector of zeros, such as that of *pays* above, has no direction, and so no cosine. Divided by its length
# it would be 0/0, which is NaN (*not a number*), so `normalize` raises an error for it. (Libraries often divide by a
# tiny $\epsilon$ instead, and then the cosine comes out as 0.)
#
# ### Dot product or cosine: which does a transformer use?
#
# The original transformer uses the dot product, divided by a fixed number, the same for all keys (chapter 3 derives
# it). A key's own length is not divided out, so it counts. What difference does that make? Compare three keys with
# *what gets paid?*, $(0, 2, 0)$: the plain *debts*, a longer one, and a key that matches everything:
#
# | key | distance | cosine | dot product |
# |---|---|---|---|
# | $(0, 3, 0)$ | **1** | **1** | 6 |
# | $(0, 9, 0)$ | 7 | **1** | **18** |
# | $(9, 9, 9)$ | 14.5 | 0.58 | **18** |
#
# The cosine ignores the key's length, and lowers the score of $(9, 9, 9)$, which also offers what nobody asked for. The
# dot product rewards the length of the shadow. What nobody asked for is multiplied by 0, so it does not count. In the
# picture, which leaves out *often*, $(0, 9)$ and $(9, 9)$ cast the same shadow on the query's direction:

# %% tags=["plot"] mystnb={"image": {"alt": "Three panels with the axes person and thing. In each the query, a red arrow of length 2, points up along thing, and a blue key: 0, 3 points up, its shadow on the query's direction is 3 long, score 6; 0, 9 points up, shadow 9, score 18; 9, 9 points up to the right, and its shadow is 9, too, score 18."}}
figure, panels = plt.subplots(1, 3, figsize=(7, 2.5), sharey=True)
for axes, key in zip(panels, ((0, 3), (0, 9), (9, 9)), strict=True):
    for tip, color, width in (key, plots.BLUE, 2), ((0, 2), plots.RED, 3):
        style = {"arrowstyle": "-|>", "color": color, "lw": width}
        axes.annotate("", tip, (0, 0), arrowprops=style)
    axes.plot([-0.7, -0.7], [0, key[1]], color=plots.TEAL, lw=3)  # the shadow
    axes.plot([-0.7, key[0]], [key[1]] * 2, color=plots.GREY, lw=0.8, ls=":")
    axes.set(xlim=(-2, 10.5), ylim=(-0.5, 10), xlabel="person")
    axes.set_title(f"key {key}: score {2 * key[1]}", fontsize=10)
panels[0].set_ylabel("thing")
panels[0].text(0.6, 1.1, "query (0, 2)", color=plots.RED, fontsize=9)
panels[2].text(0.2, 7.4, "shadow 9", color=plots.TEAL, fontsize=9)
figure.tight_layout()
plt.show()

# %% [markdown]
# When is each of the three the right choice?
#
# | | dot product | cosine | distance |
# |---|---|---|---|
# | a longer key | magnifies every score: positive ones rise, negative ones fall | changes nothing | is nearer to some queries and farther from others |
# | a longer query | ranking unchanged, gaps wider | changes nothing | may change the ranking |
# | good for | a look-up in which some keys should count more where they match | asking which texts are alike: direction shows what a text says, and length often only how much of it there is | measured quantities, where more is not better: $(0, 9, 0)$ really differs from $(0, 3, 0)$ |
#
# **For keys of equal length all three rank alike**, because $\|q - k\|^2 = \|q\|^2 + \|k\|^2 - 2\,q \cdot k$, and then
# only $q \cdot k$ differs between keys. The transformer of 2017 keeps the lengths. That has a price. What nobody asked
# for costs nothing, so a key that matches everything, such as $(9, 9, 9)$, can win too often: it scores 18 for *every*
# query with one 2 and zeros elsewhere. Training can shorten such a key, and lengthen one that is often worth finding.
# Dot products have no upper limit, so one key can get nearly all of the blend, which can stop learning; cosines lie
# between $-1$ and 1, so without a factor one key gets at most $e^2 = 7.4$ times another's share ([chapter
# 3](03_softmax.ipynb#short-answers)). Some models normalise queries and keys and learn the factor (*QK-norm*, [chapter
# 19](19_modern.ipynb)).

# %% tags=["proof"]
asked, plain, everything = np.diag([0, 2, 0])[1], np.array([0, 3, 0]), np.full(3, 9)
assert (dot(asked, everything), dot(asked, plain)) == (18, 6)
assert round(cosine_similarity(asked, everything), 2) == 0.58
assert round(cosine_similarity(asked, plain), 9) == 1
assert dot(asked, 3 * plain) == 18
assert round(np.linalg.norm(asked - everything), 1) == 14.5

# %% tags=["quiz"]
longer = np.array([4, 6, 0])  # tea, twice as long
quiz.number(
    "Make tea twice as long: $(4, 6, 0)$ instead of $(2, 3, 0)$. What is its *dot product* with coffee, $(3, 3, 0)$?",
    dot(longer, coffee),
    tolerance=0.01,
    feedback="Yes. Doubling one vector doubles its dot products with all others. Its cosines stay as they were.",
    mistakes=[
        (
            dot(tea, coffee),
            "That is the value for tea as it was. The cosine does not change when a vector is stretched; the dot product does.",
        ),
        (
            4 * dot(tea, coffee),
            "Only one of the two vectors was doubled. Doubling both gives a factor of four.",
        ),
    ],
    otherwise="Multiply feature by feature and add: $4 \\cdot 3 + 6 \\cdot 3 + 0 \\cdot 0$.",
)

# %% [markdown]
# ## How alike are random vectors?
#
# In the original transformer the vector of a word has 512 entries, and the queries and keys, which chapter 4 makes from
# words, have 64. Is a cosine of 0.5 a lot there? Before we trust a high score, we must know how high a score chance
# alone can give, and chapter 3 will need the same for the dot product, which grows with the width. So take vectors that
# have nothing to do with each other: every entry is drawn independently from a normal distribution with mean 0 and
# variance 1. For 10,000 pairs of each width, the code below prints the *typical size* of the cosine, the root of the
# mean of its square (**RMS**).
#
# **Predict first.** As the width grows from 2 to 2048, the cosines of random pairs
#
# 1. stay spread between $-1$ and 1, since the vectors stay random;
# 2. gather around 0, as chance agreements cancel;
# 3. drift towards 1, as two vectors have more to share.

# %%
widths = [2, 8, 32, 128, 512, 2048]


rng = np.random.default_rng(0)
print("width   typical cosine   1/sqrt(width)")
typical = {}
for width in widths:
    a, b = normalize(rng.standard_normal((2, 10_000, width)))  # two (10000, width)
    cosine = (a * b).sum(axis=1)  # (10000,), one for each pair
    typical[width] = np.sqrt(np.mean(cosine**2))
    print(f"{width:5}{typical[width]:17.3f}{width**-0.5:16.3f}")

# %% [markdown]
# The cosines gather around 0, and their typical size is $1/\sqrt{D}$: four times the width, half the size.
#
# Why $1/\sqrt D$? Start with the *dot product* of two such vectors. It is a sum of $D$ products $a_i b_i$. Each has
# mean 0, so its variance is the mean of $a_i^2 b_i^2$. Because $a_i$ and $b_i$ are independent, this is the mean of
# $a_i^2$ times the mean of $b_i^2$, and both are 1, the variance of an entry. The $D$ terms are independent, too, so
# their variances add up to $D$, and the typical size of the sum is $\sqrt D$ (not $D$, because positive and negative
# terms mostly cancel; at width 256 it is 16). Chapter 3 will divide scores by this root, with the width of the keys as
# $D$. For the cosine, divide by the two lengths. Each is the root of a sum of $D$ squares of mean 1. That sum is $D$ on
# average, and its spread grows only like $\sqrt D$, again because the terms are independent. So in a wide space the
# length is close to $\sqrt D$. And $\sqrt D / (\sqrt D \cdot \sqrt D)$ is $1/\sqrt D$. ([Going
# further](#why-exactly-one-over-the-root-of-the-width) has it exactly.)
#
# At width 512 the typical cosine is 0.044, an angle of 87 degrees; at width 64 it is 0.125. **In a wide space, random
# vectors are almost at right angles**, or nearly *orthogonal*.
#
# So is 0.5 high? At width 2, two pairs in three have a cosine above 0.5 or below $-0.5$. At width 64, where 0.5 is four
# times the typical size, only about two pairs in 100,000 do. So a key whose cosine with a query is 0.5 stands out among
# thousands of random ones. Learned vectors are not drawn like that. They can share a direction, and then all their
# cosines are higher, so measure on the model itself what chance gives, as we do next.

# %% tags=["proof"]
assert all(abs(typical[width] * width**0.5 - 1) < 0.03 for width in widths)
assert 87 < np.degrees(np.arccos(typical[512])) < 88
cosines = np.linspace(-1, 1, 200_001)
density = (1 - cosines**2) ** ((64 - 3) / 2)  # of a random cosine at width 64
assert round(1e5 * density[abs(cosines) > 0.5].sum() / density.sum()) == 2

# %% [markdown]
# ## Real vectors
#
# So far our vectors were invented. How should a word become a vector, if nobody judges its features? The simplest way
# is a **one-hot** vector, all zeros but a single 1 at the word's own number. But the dot product of any two different
# one-hot vectors is 0, so *tea* would be as unlike *coffee* as it is unlike *train*. We want vectors that can be alike:
# then what a model learns about one word carries over, in part, to similar ones.
#
# Where do such vectors come from? Behind them is the **distributional hypothesis**, which J. R. Firth put in one line:
# "You shall know a word by the company it keeps". *Tea* and *coffee* stand in the same kinds of sentences, after
# *drink* and *a cup of*. Now suppose that a model is trained on a lot of text to guess, from the vector of a word,
# which words stand near it (one kind of *word2vec* does this). Each word has two vectors, one as the given word and one
# as the neighbour. A pair's score is the dot product of the given word's first vector and the neighbour's second. *Tea*
# and *coffee* share many neighbours, such as *cup*, so they need similar scores with many second vectors. The second
# vectors point in many directions, and only similar first vectors score alike with so many of them.
#
# The vectors in this section come from all-MiniLM-L6-v2, a small published model that is installed with this book.
# [Chapter 15](15_pretrained.ipynb) runs all of it. Here we need only its first part, the **embedding table**: 30,522
# rows of 384 learned numbers. They were learned with the rest of the model, from running text and then from pairs of
# sentences that belong together. So here, too, company decides. Nearly every row is the *embedding* of a **token**,
# which is a word, part of a word or a character; about a thousand rows are reserved. Looking up a word means picking
# its row; multiplying its one-hot vector by the embedding table does the same.
#
# **Predict first.** Which word is nearest to *tea*? To *debts*? And what is nearest to *python*?

# %%
from dotformer.support.published import minilm_embeddings

row_of, table = minilm_embeddings()  # row of each token, (30522, 384)
table = normalize(table)
# three or more letters; tokens from inside a word start with ##
known = sorted(word for word in row_of if word.isalpha() and len(word) > 2)
rows = table[[row_of[word] for word in known]]  # (about 21,000, 384)


def nearest(word, count=6):
    """The `count` words nearest to `word`, one of `known`, with their cosines."""
    cosines = rows @ table[row_of[word]]  # one for each row: all have length 1
    best = np.argsort(-cosines)[1 : count + 1]  # the very first is the word itself
    return [(known[n], cosines[n]) for n in best]


for word in ("tea", "debts", "python"):
    print(
        f"{word:7}", *(f"{other} {cosine:.2f} " for other, cosine in nearest(word))
    )

# %% [markdown]
# Of some 21,000 words, the nearest to *tea* is *coffee*, and nobody gave the model a list of drinks.
#
# The neighbours of *debts* include *creditors* and *owed*, words that go with debts but do not mean the same. So a high
# cosine can mean that two words are alike (*similarity*), or only that they belong together (*relatedness*). Even
# [opposites](#does-a-high-cosine-mean-the-same) can come out near, because they can stand in the same kinds of
# sentences.
#
# *Python*'s first neighbour, *panda*, may come from the library pandas; three others are words for snakes, and *import*
# and *pip* belong to programming: the word has several senses (**polysemy**), but only one vector. Embeddings like
# these are called **static**, because a word has the same vector whatever the sentence (the opposite is *contextual*).
# To find out which python is meant, a model has to look at the other words. That is what attention is for, and chapter
# 4 does it with these very vectors.
#
# Is a cosine of 0.44 high? Compare with others from the same model ([measured below](#how-high-is-high)):
#
# | | cosine |
# |---|---|
# | two words drawn at random: typical size (RMS) | 0.07 |
# | a made-up vector (random, with the words' mean and spread) and its nearest of the 21,000 words: mean | 0.29 |
# | a word, and the nearest other word: median | 0.58 |
#
# If you have chosen a pair beforehand, compare with random pairs. If you have found it by a search, compare with what
# such a random vector finds in the same search, because the best of many can be high by luck alone. So the 0.44 of
# *coffee* is well above luck, but below the usual nearest word, which can be another form of the same word (*debt*,
# *debts*). No threshold holds for all models: measure these three for yours.

# %% tags=["proof"]
assert nearest("tea")[0][0] == "coffee" and 0.43 < nearest("tea")[0][1] < 0.45
assert {"creditors", "owed"} < {word for word, _ in nearest("debts")}
assert {"import", "pip", "snake"} < {word for word, _ in nearest("python")}
assert 0.27 < nearest("python")[-1][1] < 0.33

# %% [markdown]
# ## A whole sentence at once
#
# Now compare every word of a sentence with every other, and with itself. In each comparison one word is the query and
# the other the key. In the matrix of results, the **similarity matrix**, **each query has a row and each key has a
# column**, as everywhere in this book.
#
# For 6 words that is 36 dot products, and for 1,000 a million: the work is *quadratic* in the number of words, and so
# is the memory for the results. Each dot product takes $D$ multiplications, so twice the width is twice the work, but
# no more results. The dot products need not be computed one by one, because every entry of a matrix product is a dot
# product too: of a row of the first matrix with a column of the second. The multiplications are the same, but a library
# does many of them at once, and uses each number many times once it is loaded. So stack the queries $q_i$ as the rows
# of $Q$ and the keys $k_j$ as the rows of $K$. Transposed, $K$ has the keys as columns, and all the dot products at
# once are
#
# $$Q K^\top , \qquad \text{with} \quad (Q K^\top)_{ij} = q_i \cdot k_j .$$
#
# First by hand, with the vectors of the first section: the queries *what gets paid?*, $(0, 2, 0)$, and *how often?*,
# $(0, 0, 2)$, as rows, times the keys *Lannister*, *always*, *pays* and *debts* as columns:
#
# $$\begin{pmatrix} 0 & 2 & 0 \\ 0 & 0 & 2 \end{pmatrix} \begin{pmatrix} 3 & 0 & 0 & 0 \\ 0 & 0 & 0 & 3 \\ 0 & 3 & 0 & 0 \end{pmatrix} = \begin{pmatrix} 0 & 0 & 0 & 6 \\ 0 & 6 & 0 & 0 \end{pmatrix} .$$
#
# The first question finds *debts*, the second *always*. One matrix product compares all pairs. (In the other order,
# $K Q^\top$, rows and columns swap. With as many keys as queries no shape shows it, so check an entry off the
# diagonal.)
#
# Attention that scores like this is **dot-product attention**. The decoder of [chapter
# 1](01_why_attention.ipynb#the-network-of-2014) ran the same small network on every pair (*additive attention*), which
# takes a $\tanh$ of a whole vector for each. The dot product won because all pairs are one matrix product, which is
# faster and needs less memory. The dot product has no parameters, so what counts as a match must be learned where
# queries and keys are made.
#
# As shapes, $(T, D)$ times $(D, S)$ gives $(T, S)$, for $T$ queries and $S$ keys of width $D$. In code:

# %% tags=["nbval-check-output"]
queries = np.array([[0, 2, 0], [0, 0, 2]])  # what gets paid? how often?
keys = np.array([[3, 0, 0], [0, 0, 3], [0, 0, 0], [0, 3, 0]])
print(queries @ keys.T)  # (2, 3) times (3, 4)

# %% [markdown]
# Forget the `.T`, and the shapes do not fit, unless $S = D$: then the product runs, and is wrong. The function below
# allows further axes in front (a batch). There `.T` would reverse all axes, so the function swaps only the last two.


# %% tags=["export"] module="by_hand.similarity"
@shapes
def similarity_matrix(
    queries: Real[np.ndarray, "*#batch T D"],
    keys: Real[np.ndarray, "*#batch S D"],
) -> Float[np.ndarray, "*batch T S"]:
    """Dot product of every query with every key: queries are rows, keys columns.

    For cosines, `normalize` both first.
    """
    return queries.astype(float) @ keys.swapaxes(-1, -2)


# %% [markdown]
# Now a real sentence, each word with its vector of length 1, so that the entries are cosines:

# %%
sentence = "they drink hot coffee or tea".split()
x = table[[row_of[word] for word in sentence]]  # (6, 384), each row of length 1
likeness = similarity_matrix(x, x)  # (6, 6): every word is a query and a key
one_by_one = [[dot(query, key) for key in x] for query in x]
assert np.allclose(likeness, one_by_one)  # the same, one pair at a time

# %% tags=["proof"]
found = similarity_matrix(
    np.array([[0, 2, 0], [0, 0, 2]]), np.array([*offers.values()][:4])
)
assert found.tolist() == [[0, 0, 0, 6], [0, 6, 0, 0]]

# %% tags=["plot"] mystnb={"image": {"alt": "Six by six matrix of cosines for the words they, drink, hot, coffee, or, tea. The diagonal is 1. Coffee and tea have 0.44, drink has 0.33 with coffee and 0.28 with tea; they and or have 0.19; nearly all others are close to 0. The matrix is the same above and below its diagonal."}}
plots.score_map(likeness, sentence, sentence)
plt.show()

# %% [markdown]
# Read the last row, *tea*: *coffee* 0.44, *drink* 0.28, and *hot* 0.09. The last column has the same numbers: the
# matrix of all dot products of a set of vectors with each other, their **Gram matrix**, is always **symmetric**,
# because $a \cdot b = b \cdot a$. For likeness, this symmetry is right; for a look-up, two things are wrong:
#
# - It is symmetric: if *hot* scores *coffee* high, *coffee* must score *hot* as high. But *hot* should find the noun
#   that it belongs to, and that noun need not ask for *hot*.
# - Every word finds itself first, because the diagonal holds the squared lengths, here 1, and between vectors of length
#   1 no dot product is larger. But a word should be able to take more from *others* than from itself.
#
# Both faults come from using one vector as query *and* as key. The cure is two vectors for each word, one that asks and
# one that is found. With the words as rows of $X$, they are the rows of $Q = X W_Q$ and $K = X W_K$, and the numbers in
# $W_Q$ and $W_K$ are learned. Then $q_i \cdot k_j$ need not equal $q_j \cdot k_i$, and no word need find itself first
# ([chapter 4](04_self_attention.ipynb#queries-keys-and-values)).

# %% tags=["quiz"]
quiz.one_choice(
    "A question of 4 words is compared with a text of 100 words. Every word has 64 numbers. What is the shape of $QK^\\top$, "
    "with the question's words as queries?",
    quiz.wrong(
        "64 × 64",
        "That would be the shape of $Q^\\top K$ if both had the same number of rows: it compares the 64 *features* with each "
        "other, not the words. The width is what gets summed away.",
    ),
    quiz.wrong(
        "100 × 4",
        "Right numbers, wrong order. In this book, and in the paper on the original transformer, queries are rows.",
    ),
    quiz.right(
        "4 × 100",
        "Yes. A row for each query, a column for each key; the width 64 disappears in the sum.",
    ),
    quiz.wrong(
        "104 × 104",
        "That would be the matrix if all the words stood in one sequence and each compared itself with all. Here only the "
        "question asks.",
    ),
)

# %% tags=["quiz"]
quiz.several_choices(
    "You compute the similarity matrix of a sentence with itself, from some model's vectors, each of length 1. Which of these show that something is wrong? (More than one may.)",
    quiz.right(
        "The first row and the first column differ",
        "Yes: $a \\cdot b = b \\cdot a$, so the matrix must be symmetric.",
    ),
    quiz.right(
        "One number on the diagonal is 0.7",
        "Yes: a vector of length 1 has dot product 1 with itself.",
    ),
    quiz.wrong(
        "Two of the words have a cosine of 1",
        "That can happen: a word may be there twice, or two words may have vectors of the same direction. The matrix cannot tell them apart, and it is "
        "right about its input.",
    ),
    quiz.wrong(
        "Some numbers are negative",
        "Cosines run from $-1$ to 1, and that of tea and ice was negative.",
    ),
)

# %% [markdown]
# ## Break it: a reshape is not a transpose
#
# Here is a mistake that is hard to see. The keys came as $(S, D)$ and had to become $(D, S)$. Two expressions give that
# shape: `keys.T` and `keys.reshape(D, S)`.

# %% tags=["nbval-check-output"]
right = x @ x.T
wrong = x @ x.reshape(x.shape[1], x.shape[0])
print("shapes:", right.shape, wrong.shape)
print("the row of 'tea', transposed:", right[5].round(2))
print("the row of 'tea', reshaped:  ", wrong[5].round(2))

# %% [markdown]
# No error, the same shape, numbers that look believable one by one. But `reshape` keeps the numbers in reading order
# and cuts them into new rows, so that a "key" is now made of numbers from different words. One number gives it away:
# the last, tea's likeness to itself, which is not 1. Where the same vectors are queries and keys, the matrix must be
# symmetric, and with vectors of length 1 its diagonal must be ones. When queries and keys differ, neither test applies.
# Then compare one entry with the definition: entry `[0, 3]` must be the dot product of `queries[0]` with `keys[3]`.

# %% tags=["proof"]
assert np.allclose(right, right.T) and np.allclose(np.diag(right), 1)
assert not np.allclose(wrong, wrong.T) and not np.allclose(np.diag(wrong), 1)

# %% [markdown]
# After every function, ask what must hold *whatever the numbers are*, and write an assertion for it.

# %% [markdown]
# ## Exercises
#
# Write your answer in the first cell of the exercise, run it, then run the check below it. The check tells you what it
# saw.
#
# ### Exercise 1: The nearest word
#
# *Easy, 5 minutes.* Given the similarity matrix of a sentence with itself and the position of a word (counting from 0),
# return the position of the *other* word that is most like it.


# %% tags=["exercise"]
def nearest_word(similarities, word):
    """Column, other than `word`, of the largest entry in row `word` of (T, T)."""
    ...


# %% tags=["check"]
example = np.array([[1.0, 0.2, 0.9], [0.2, 1.0, -0.4], [0.9, -0.4, 1.0]])
random_table = similarity_matrix(
    *[np.random.default_rng(1).standard_normal((6, 4))] * 2
)
check_nearest = partial(
    checks.check,
    reference=lambda similarities, word: max(
        (c for c in range(len(similarities)) if c != word),
        key=lambda c: similarities[word, c],
    ),
    cases=[
        (example, 0),
        (example, 1),
        (example - 3, 2),
        (vectors @ vectors.T, 0),
        (random_table, 3),
    ],
    mistakes={
        "you return the second largest: by dot product, the word itself need not be the largest": lambda similarities, word: (
            int(np.argsort(similarities[word])[-2])
        ),
        "you left the word out and then counted without it: later words have moved up by one": lambda similarities, word: (
            int(np.argmax(np.delete(similarities[word], word)))
        ),
        "you return the word itself, which is nearest to itself in most matrices: leave column `word` out": lambda similarities, word: (
            int(np.argmax(similarities[word]))
        ),
        "you return the *least* similar word: is it argmin instead of argmax?": lambda similarities, word: (
            int(np.argmin(similarities[word]))
        ),
        "the word itself is set to 0, but every other similarity may be below 0: use minus infinity": lambda similarities, word: (
            int(
                np.argmax(
                    np.where(
                        np.arange(len(similarities)) == word, 0, similarities[word]
                    )
                )
            )
        ),
    },
)
check_nearest(nearest_word)


# %% tags=["solution"]
def nearest_word(similarities, word):
    others = similarities[word].astype(float)  # a copy that can hold infinity
    others[word] = -np.inf
    return int(np.argmax(others))


verdict = check_nearest(nearest_word)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: All the cosines, without a loop
#
# *Medium, 10 minutes.* Return the matrix of cosines between queries $(T, D)$ and keys $(S, D)$ in two or three lines of
# NumPy. This time, divide the finished matrix: do not use `normalize`.


# %% tags=["exercise"]
def cosine_table(queries, keys):
    """Cosines of all pairs: queries (T, D), keys (S, D) -> (T, S)."""
    ...


# %% tags=["check"]
rng = np.random.default_rng(2)
check_cosine_table = partial(
    checks.check,
    reference=lambda q, k: np.array(
        [[cosine_similarity(a, b) for b in k] for a in q]
    ),
    cases=[
        (np.array([[3.0, 4.0]]), np.array([[4.0, 3.0], [0.0, 2.0]])),
        (rng.standard_normal((4, 3)), rng.standard_normal((5, 3))),
    ],
    mistakes={
        "these are dot products: nothing is divided by the lengths": lambda q, k: (
            q @ k.T
        ),
        "only the queries are divided by their lengths": lambda q, k: (
            (q / np.linalg.norm(q, axis=1, keepdims=True)) @ k.T
        ),
        "only the keys are divided by their lengths": lambda q, k: (
            q @ (k / np.linalg.norm(k, axis=1, keepdims=True)).T
        ),
        "you divide by the length of the whole matrix: `np.linalg.norm` needs `axis=1`": lambda q, k: (
            q @ k.T / (np.linalg.norm(q) * np.linalg.norm(k))
        ),
        "your lengths run down the columns: a vector is a row, so sum over `axis=1`": lambda q, k: (
            (q / np.linalg.norm(q, axis=0)) @ (k / np.linalg.norm(k, axis=0)).T
        ),
    },
)
check_cosine_table(cosine_table)


# %% tags=["solution"]
def cosine_table(queries, keys):
    query_lengths = np.sqrt((queries**2).sum(axis=1, keepdims=True))  # (T, 1)
    key_lengths = np.sqrt((keys**2).sum(axis=1))  # (S,)
    return queries @ keys.T / (query_lengths * key_lengths)


verdict = check_cosine_table(cosine_table)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: Distances from dot products
#
# *Harder, 15 minutes.* The [derivation of the cosine](#direction-and-length) holds a recipe:
# $\|a - b\|^2 = \|a\|^2 + \|b\|^2 - 2\, a \cdot b$. Use it to compute all squared distances between queries and keys
# with one matrix product. A hint: for vectors `u` $(T)$ and `w` $(S)$, `u[:, None] + w` is the matrix of all sums,
# $(T, S)$. (For vectors of length 1 the recipe gives $2 - 2 \cos\theta$. So among them the nearest by distance is the
# nearest by cosine.)


# %% tags=["exercise"]
def squared_distances(queries, keys):
    """Squared distances of all pairs: queries (T, D), keys (S, D) -> (T, S)."""
    ...


# %% tags=["check"]
check_distances = partial(
    checks.check,
    reference=lambda q, k: ((q[:, None, :] - k[None, :, :]) ** 2).sum(axis=-1),
    cases=[
        (np.array([[1.0, 2.0]]), np.array([[4.0, 6.0], [1.0, 2.0]])),
        (rng.standard_normal((4, 3)), rng.standard_normal((5, 3))),
    ],
    properties=[checks.non_negative],
    mistakes={
        "the 2 before the dot product is missing": lambda q, k: (
            (q**2).sum(1)[:, None] + (k**2).sum(1) - q @ k.T
        ),
        "the sign before the dot product is plus: that is the square of `a + b`": lambda q, k: (
            (q**2).sum(1)[:, None] + (k**2).sum(1) + 2 * q @ k.T
        ),
        "these are distances, not squared ones: leave the root out": lambda q, k: (
            np.linalg.norm(q[:, None] - k[None], axis=-1)
        ),
    },
)
check_distances(squared_distances)


# %% tags=["solution"]
def squared_distances(queries, keys):
    query_squares = (queries**2).sum(axis=1)[:, None]  # (T, 1)
    key_squares = (keys**2).sum(axis=1)[None, :]  # (1, S)
    squares = query_squares + key_squares - 2 * queries @ keys.T
    return np.maximum(squares, 0)  # rounding can dip below 0


verdict = check_distances(squared_distances)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# A word becomes a vector, and the dot product of two vectors says how much they agree, weighted by how long they are:
# that is how a query finds its key. Divide by the lengths and you have the cosine, which depends only on the direction;
# in a wide space, random vectors have a cosine near 0. All pairs of a sentence at once are one matrix product,
# $QK^\top$.
#
# **Sources.** Words known by their company: [Firth
# (1957)](https://cs.brown.edu/courses/csci2952d/readings/lecture1-firth.pdf). Similarity by a small network, the design
# before the dot product: [Bahdanau, Cho and Bengio (2015)](https://arxiv.org/abs/1409.0473). By dot product: [Luong,
# Pham and Manning (2015)](https://arxiv.org/abs/1508.04025), and with a scale [Vaswani and others
# (2017)](https://arxiv.org/abs/1706.03762).
#
# **Next.** The matrix says how alike words are, but it makes no choice: 15 is more than 13, and then what? [Chapter
# 3](03_softmax.ipynb) turns a row of scores into weights.

# %% [markdown]
# ## Going further
#
# No later chapter needs this part.
#
# ### How high is high?
#
# To learn what the best of 21,000 reaches by chance, take vectors that mean nothing: draw them at random, with the mean
# and the covariance of the word vectors, and find the nearest word of each.

# %% nearest words of 300 random vectors tags=["hide-input"]
rng = np.random.default_rng(0)
a, b = rng.choice(rows, (2, 10_000))
pair = np.sqrt(np.mean((a * b).sum(axis=1) ** 2))
random = rng.multivariate_normal(rows.mean(axis=0), np.cov(rows.T), 300)
luckiest = (normalize(random) @ rows.T).max(axis=1)
some = np.arange(0, len(rows), 40)
of_some = rows[some] @ rows.T
of_some[np.arange(len(some)), some] = 0  # of a word with itself
nearest_of_all = np.median(of_some.max(axis=1))
print(f"{pair:.2f}         two words: root mean square of 10,000 random pairs")
print(
    f"{luckiest.mean():.2f} ± {luckiest.std():.2f}  such a random vector and its nearest word: mean ± sd of 300"
)
print(f"{luckiest.max():.2f}         the largest of these 300")
print(f"{nearest('tea')[0][1]:.2f}         tea and its nearest word")
print(
    f"{nearest_of_all:.2f}         a word and its nearest other word: median of {len(some)}"
)

# %% [markdown]
# None of the 300 random vectors reached 0.44. The nearest word can be another form of the same word, as *debt* is of
# *debts*. Two words drawn at random typically have 0.07, where random vectors of this width would have
# $1/\sqrt{384} = 0.05$. In some models the cosines of words drawn at random are far above 0, because all vectors share
# a common part (**anisotropy**; shown for vectors in context by [Ethayarajh,
# 2019](https://aclanthology.org/D19-1006/)). In such a model, subtract the mean vector before you compare.

# %% tags=["proof"]
assert round(float(nearest_of_all), 2) == 0.58
assert abs(pair - 0.07) < 0.005 and 20_500 < len(known) < 21_500
assert 0.28 < luckiest.mean() < 0.295 and np.quantile(luckiest, 0.95) < 0.35
assert "debt" in dict(nearest("debts"))
assert luckiest.max() < 0.43

# %% [markdown]
# ### Why exactly one over the root of the width?
#
# The $D$ entries of such a [random vector](#how-alike-are-random-vectors) are independent, so the density of a vector
# $x$ is, up to a constant, the product of all $e^{-x_i^2/2}$, which is $e^{-\lVert x \rVert^2/2}$. This depends only on
# the length of $x$, so every direction is equally likely. Now take two vectors, and turn the space until the first
# points along $(1, 0, \dots, 0)$. Turning changes no angle. And the second still points in every direction equally
# often, because it is independent of the first. Scale both to length 1, and call the second $u$. Then their cosine is
# their dot product, $(1, 0, \dots, 0) \cdot u$, which is the entry $u_1$.
#
# So how large is $u_1$? The squares $u_1^2, \dots, u_D^2$ sum to 1, because $u$ has length 1. No axis is favoured, so
# all $D$ squares have the same mean, which must be $1/D$. Its square root, the typical size of $u_1$, is $1/\sqrt D$.

# %% [markdown]
# ### More features than dimensions
#
# In a wide space random vectors are almost at right angles ([above](#how-alike-are-random-vectors)), so there is room
# for many. (At most $D$ can be exactly at right angles, but it is enough to be nearly so.) Draw 2,000 random vectors of
# width 512, nearly four times as many as there are axes: the largest of their cosines in absolute value lay between
# 0.21 and 0.24 in ten draws. For any fixed bound on the cosines, however small, the number of directions that fit grows
# exponentially with the width ([Ball, 1997](https://library.slmath.org/books/Book31/files/ball.pdf), lecture 2).
#
# A model could use that, and small ones have been shown to do so ([Elhage and others,
# 2022](https://transformer-circuits.pub/2022/toy_model/index.html)). Such a model gives every *feature*, such as *is a
# drink* or *is hot*, a direction of its own, although there are more features than dimensions (**superposition**). A
# word is the sum of the directions of its features. The price is noise. Suppose that there are 2,000 such features, and
# a word has $n$ of them. Take the dot product of the sum of $n$ random unit vectors with one of them:
#
# $$(v_1 + v_2 + \dots + v_n) \cdot v_1 = 1 + v_2 \cdot v_1 + \dots + v_n \cdot v_1 .$$
#
# The 1 says that the feature is present. The other $n - 1$ terms are cosines of random vectors, and they are noise.
# What is the typical size of their sum? Square the sum: the products of two different cosines are as often positive as
# negative and cancel on average, and $n - 1$ squares remain, each $1/D$ on average. So the noise is about
# $\sqrt{(n-1)/D}$. For a word with 20 features at width 512 that is 0.19, which looks harmless next to 1. But a model
# must tell the 20 features that are present from the 1,980 that are *absent*. The dot products with the present ones
# should be 1, but the smallest of the 20 is 0.65. Those with the absent ones should be 0, but they are about as noisy,
# and the largest of so many is 0.68 (means of 400 draws). In more than half of the draws no threshold separates present
# from absent. So if directions are random, and features are read by single dot products, there may be many, but only a
# few of them can be present at a time. (Training can choose better directions than chance.)

# %% tags=["proof"]
crowd = normalize(np.random.default_rng(0).standard_normal((8000, 512)))
largest = []
for seed in range(10):
    some = normalize(np.random.default_rng(seed).standard_normal((2000, 512)))
    cosine = np.abs(some @ some.T)  # of all pairs at once
    np.fill_diagonal(cosine, 0)
    largest.append(cosine.max())
assert min(largest) > 0.205 and max(largest) < 0.245
errors = [
    vectors[0] @ vectors.sum(axis=0) - 1 for vectors in crowd.reshape(400, 20, 512)
]
assert abs(np.std(errors) - (19 / 512) ** 0.5) < 0.02
reads = []
for seed in range(400):
    some = normalize(np.random.default_rng(seed).standard_normal((2000, 512)))
    reads.append(some @ some[:20].sum(axis=0))
reads = np.array(reads)
assert abs(reads[:, :20].min(axis=1).mean() - 0.65) < 0.01
assert abs(reads[:, 20:].max(axis=1).mean() - 0.68) < 0.005
mixed = reads[:, 20:].max(axis=1) > reads[:, :20].min(axis=1)
assert 0.5 < mixed.mean() < 0.65

# %% [markdown]
# ### King minus man plus woman
#
# If a feature is a direction, a *difference* of two words may be one too: from *man* to *woman* should be the way from
# *king* to *queen*. So $\text{king} - \text{man} + \text{woman}$ should lie near *queen*, an **analogy** solved by
# arithmetic ([Mikolov and others, 2013](https://aclanthology.org/N13-1090/)).
#
# **Predict first.** Which word is nearest to king − man + woman?

# %%
for a, b, c in [
    ("king", "man", "woman"),
    ("actor", "man", "woman"),
]:
    end = normalize(table[row_of[a]] - table[row_of[b]] + table[row_of[c]])
    best = np.argsort(-(rows @ end))[:4]
    found = (f"{known[n]} {rows[n] @ end:.2f} " for n in best)
    print(f"{a} - {b} + {c}:".ljust(24), *found)

for word in ("king", "actor"):
    near = rows @ normalize(table[row_of[word]])
    best = np.argsort(-near)[1:4]  # without the word itself
    print(f"near {word}:".ljust(24), *(f"{known[n]} {near[n]:.2f} " for n in best))

# %% [markdown]
# It is *king* itself, with 0.65; *queen* comes second. Tests that count how many analogies a model solves leave out the
# three words of the question, and then *queen* wins. How much of that is due to the arithmetic? *Queen* is near *king*
# to begin with, at 0.63, second only to *kings*, at 0.69. Measured from the sum king − man + woman instead, *kings*
# falls to 0.45, and *queen* only to 0.50. So the arithmetic has moved *queen* past *kings*, but *queen* was among the
# nearest before.
#
# *Actress* comes first, but was near *actor* anyway: only *actors* is nearer. So before you believe an analogy, look at
# what is near its inputs ([Linzen, 2016](https://aclanthology.org/W16-2503/)).
#
# ### Does a high cosine mean *the same*?
#
# No. And a model's vectors repeat the habits of its texts:

# %%
for pair in ["hot warm", "hot cold", "good great", "good bad"]:
    first, second = (table[row_of[word]] for word in pair.split())
    print(f"{pair:11} {first @ second:.2f}")
for job in ("nurse", "engineer"):
    he, she = (table[row_of[job]] @ table[row_of[who]] for who in ("he", "she"))
    print(f"{job:9} with he {he:5.2f}, with she {she:5.2f}")

# %% [markdown]
# Opposites can keep the same company (*a hot drink*, *a cold drink*): *bad* is as near to *good* as *great* is, and
# *cold* is far nearer to *hot* than chance would predict.
#
# Text has habits, too. *Nurse* is nearer to *she* than to *he*, and *engineer* the other way round. A single pair
# proves little, since all four cosines are near those of words drawn at random. But [Bolukbasi and others
# (2016)](https://arxiv.org/abs/1607.06520) showed this *bias* for many words.

# %% tags=["proof"]
queen = normalize(
    table[row_of["king"]] - table[row_of["man"]] + table[row_of["woman"]]
)
ranked = [known[n] for n in np.argsort(-(rows @ queen))[:4]]
assert ranked == ["king", "queen", "kings", "woman"]
king = table[row_of["king"]]
to_queen = [round(v @ table[row_of["queen"]], 2) for v in (king, queen)]
assert to_queen == [0.63, 0.50] and round(king @ queen, 2) == 0.65
assert [word for word, _ in nearest("king")][:2] == ["kings", "queen"]
assert nearest("actor")[1][0] == "actress"
kings = [round(v @ table[row_of["kings"]], 2) for v in (king, queen)]
assert kings == [0.69, 0.45] and nearest("actor")[0][0] == "actors"

# %% [markdown]
# ### Short answers
#
# - **Which measure should I use for a published model's vectors?** The one that it was trained with, because training
#   shaped that score. With plain dot products, multiply a feature by 10 in all queries and divide it by 10 in all keys:
#   no score changes, but cosines between keys can ([Steck and others, 2024](https://arxiv.org/abs/2403.05440)).
# - **Does a negative cosine mean the opposite?** No. It means an angle above 90°, and the angle depends on where the
#   origin is: $(1, 2)$ and $(2, 1)$ have the cosine 0.8, but $-1$ once their mean, $(1.5, 1.5)$, is subtracted from
#   both.
# - **If A is like B and B like C, is A like C?** Not always, because angles can add up. $(1, 0)$ and $(1, 1)$ have the
#   cosine 0.71, and so have $(1, 1)$ and $(0, 1)$, but $(1, 0)$ and $(0, 1)$ have 0. So *cosine distance*,
#   $1 - \cos\theta$, violates the triangle inequality: the direct way, 1, is longer than the detour, 0.29 + 0.29.
# - **Is cosine similarity the same as Pearson correlation?** Correlation is the cosine after each vector's own mean has
#   been subtracted from its entries. $(1, 2, 3)$ and $(3, 2, 1)$ have the cosine $10/14 = 0.71$ and the correlation
#   $-1$, because around their mean of 2 they are $(-1, 0, 1)$ and $(1, 0, -1)$.
# - **Does $1/\sqrt D$ need normal entries with mean 0?** Not normal ones: independent entries of $+1$ or $-1$, equally
#   likely, give exactly $1/\sqrt D$, because every length is $\sqrt D$. The mean of 0 matters: independent entries
#   uniform between 0 and 1 have products of ¼ and squares of ⅓ on average, so wide vectors have cosines near ¾.
# - **Was additive attention less accurate than the dot product?** Not in general. [Vaswani and others
#   (2017)](https://arxiv.org/abs/1706.03762) call the two similar at small widths, and additive attention better at
#   large ones if the dot products are not divided ([chapter
#   3](03_softmax.ipynb#why-divide-by-the-square-root-of-the-width)).
# - **Can the vectors of two models be compared?** Not directly. Where training sees only dot products, one rotation of
#   all vectors changes no score, so two runs can end with different axes. (So an entry by itself need not mean
#   anything, either.) Compare lists of neighbours, or first fit a rotation to the words that both have ([Hamilton and
#   others, 2016](https://aclanthology.org/P16-1141/)).
# - **What if one feature has much larger numbers than the others?** It decides nearly alone: $(100, 1, 0)$ and
#   $(100, 0, 1)$ have the cosine 0.9999, because $100 \cdot 100$ outweighs every other product. In some models one to
#   three entries dominate. It helps to scale each entry to mean 0 and variance 1 over many words ([Timkey and van
#   Schijndel, 2021](https://aclanthology.org/2021.emnlp-main.372/)).
# - **How does one search a million vectors?** One by one is still possible: at width 384 a query takes 384 million
#   multiplications, in one matrix product. For far more keys or queries, *approximate nearest-neighbour search*
#   compares only some keys, which is faster but can miss the best ([Malkov and Yashunin,
#   2016](https://arxiv.org/abs/1603.09320)).
# - **Why is one word near so many others?** It may be a *hub*: in wide spaces a vector near the mean of the others is
#   near to many of them ([Radovanović and others, 2010](https://jmlr.org/papers/v11/radovanovic10a.html)). List the ten
#   nearest of every word, and count in how many lists each word stands. The average must be 10, so hundreds reveal a
#   hub.
# - **Why does word2vec not make all vectors equal?** If it saw only real neighbours, and had only to score them high,
#   equal and ever longer vectors would be best. So its common version also draws words at random, and learns to score
#   them low (*negative sampling*, [Mikolov and others, 2013](https://arxiv.org/abs/1310.4546)).

# %% tags=["proof"]
pairs = [([1, 2], [2, 1]), ([1, 0], [1, 1]), ([1, 2, 3], [3, 2, 1])]
pairs.append(([100, 1, 0], [100, 0, 1]))
found = [cosine_similarity(np.array(a), np.array(b)) for a, b in pairs]
assert np.allclose(found, [0.8, 0.7071, 10 / 14, 0.9999], rtol=0, atol=5e-5)
assert np.isclose(np.corrcoef([1, 2, 3], [3, 2, 1])[0, 1], -1)
wide = np.random.default_rng(0).random((2, 100_000))
assert round(cosine_similarity(*wide), 2) == 0.75
