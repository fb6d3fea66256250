# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 6. Why more than one head?
#
# *Dog bites man.* For the verb's vector to say who bit whom, it needs both nouns, kept apart. One *head*, as in chapter
# 4, has one row of weights for the verb, and so gives it one average of the words. But an average does not in general
# tell which words went into it: if words were numbers, 1 and 5 would have the average 3, and so would 2 and 4. (If
# *dog* and *man* were the only nouns, one head could get by, because few pairs would be possible.) **Multi-head
# attention** runs the attention of chapter 4 several times at once, each time with matrices of its own, and sets the
# results side by side. This chapter builds it by hand and as a [PyTorch module](#the-same-as-a-pytorch-module), shows
# [what a single head loses](#would-one-head-do), asks why heads become different, and inspects those of a published
# model.
#
# You need [chapter 4](04_self_attention.ipynb), and it helps to have read [chapter 5](05_position.ipynb). The chapter
# takes about 27 minutes to read, and 55 for the exercises. [Going further](#going-further), at the end, takes 13 more
# minutes. Only the code? Read [the definition](#the-definition), [In code](#in-code) and [the PyTorch
# module](#the-same-as-a-pytorch-module).

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. Inside the magnified attention a single head is built. This chapter adds the frame around a head, times H, and the box above it that joins the heads with W_O."}}
from functools import partial, wraps

import matplotlib.pyplot as plt
from classroom import checks, movable, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=6)

# %% [markdown]
# ## Two heads by hand
#
# Here are two heads with matrices of their own, small enough for paper. A word has four numbers: is it *dog*, is it
# *man*, is it a *verb*, and its *position*, 1 for first, 0 in the middle, −1 for last.

# %%
import numpy as np

dog, man, verb, position = np.eye(4)  # the four numbers
nothing = np.zeros(4)
dog_bites = np.stack([dog + position, verb, man - position])
man_bites = np.stack([man + position, verb, dog - position])

head_1 = {  # each matrix (4, 2): two columns
    "w_q": np.stack([9 * verb, nothing], axis=1),  # a verb asks
    "w_k": np.stack([position, nothing], axis=1),  # for the first word
    "w_v": np.stack([dog, man], axis=1),  # and receives who that is
}
head_2 = {
    "w_q": head_1["w_q"],
    "w_k": np.stack([-position, nothing], axis=1),  # for the last word
    "w_v": head_1["w_v"],
}

# %% [markdown]
# So *dog*, first in its sentence, is the vector $(1, 0, 0, 1)$. Each head has three matrices of two columns, so
# $d_k = 2$. Those of head 1, with rows for *dog*, *man*, *verb* and *position*, are
#
# $$W_Q = \begin{pmatrix} 0 & 0 \\ 0 & 0 \\ 9 & 0 \\ 0 & 0 \end{pmatrix}, \quad W_K = \begin{pmatrix} 0 & 0 \\ 0 & 0 \\ 0 & 0 \\ 1 & 0 \end{pmatrix}, \quad W_V = \begin{pmatrix} 1 & 0 \\ 0 & 1 \\ 0 & 0 \\ 0 & 0 \end{pmatrix} .$$
#
# Head 2 has −1 in place of the 1 in $W_K$. Values need both columns, one for *dog* and one for *man*. Queries and keys
# use only the first. The 9 will make the verb's weights come out close to 1 and 0. First the verb's query, and the keys
# and values that it meets:
#
# | | the verb's query | keys of *dog*, *bites*, *man* | values of *dog*, *bites*, *man* |
# |---|---|---|---|
# | head 1 | (9, 0) | (1, 0), (0, 0), (−1, 0) | (1, 0), (0, 0), (0, 1) |
# | head 2 | (9, 0) | (−1, 0), (0, 0), (1, 0) | the same |
#
# Follow the verb in head 1. Its scores with the three keys are 9, 0 and −9; divided by $\sqrt 2$ that is 6.364, 0 and
# −6.364. The exponentials are about 580, 1 and 0.002, so the weights are 0.9983, 0.0017 and 0.0000, and the blend of
# the values is $0.9983 \cdot (1, 0) + 0.0017 \cdot (0, 0) \approx (0.998, 0)$: *dog*. In head 2 the keys have opposite
# signs, so the blend is $(0, 0.998)$: *man*.

# %% tags=["nbval-check-output"]
from dotformer.by_hand.attention import self_attention


def heads_by_loop(x, heads):
    outputs, weights = [], []
    for head in heads:
        output, shares = self_attention(x, **head)
        outputs.append(output)
        weights.append(shares)
    return np.concatenate(outputs, axis=1), np.stack(weights)


together, weights = heads_by_loop(dog_bites, [head_1, head_2])
print("the verb's weights, head 1:", weights[0, 1].round(4))
print("the verb's weights, head 2:", weights[1, 1].round(4))
print("dog bites man, the verb receives:", together[1].round(3))
swapped, _ = heads_by_loop(man_bites, [head_1, head_2])
print("man bites dog, the verb receives:", swapped[1].round(3))

# %% [markdown]
# The first two numbers say who bites, the last two who is bitten, and when the nouns change places, so do the pairs.

# %% tags=["proof"]
assert np.allclose(weights[0, 1], [0.9983, 0.0017, 0], rtol=0, atol=0.00005)
assert np.allclose(together[1], [0.998, 0, 0, 0.998], rtol=0, atol=0.0005)

# %% [markdown]
# ## Would one head do?
#
# Did the verb need two heads? A head adds up all that it compares into one score for each word, so however wide it is,
# it has one row of weights for the verb, and gives the verb one average, which in general cannot be taken apart. Let
# words be numbers for a moment. With equal weights even the order would be lost, so let the head give the weight
# $\tfrac23$ to the first noun and $\tfrac13$ to the last. The pair 1, 5 then gives
# $\tfrac23 \cdot 1 + \tfrac13 \cdot 5 = \tfrac73$. So does the pair 2, 3, and every pair on the red line below. A
# second head, with the weights $\tfrac13$ and $\tfrac23$, gives $\tfrac{11}3$ for 1, 5 and for every pair on the blue
# line. The lines cross at only one point, so two averages together determine the pair:

# %% tags=["plot"] mystnb={"image": {"alt": "The plane of pairs: first noun across, last noun up. The red line of head 1, where the average is 7 thirds, goes through the pairs 1, 5 and 2, 3 and 3, 1. The blue line of head 2, where the average is 11 thirds, crosses it at 1, 5 only."}}
figure, axes = plt.subplots(figsize=(5.6, 3.4))
first_noun = np.array([-0.2, 5.2])
axes.plot(first_noun, 7 - 2 * first_noun, color=plots.RED)
axes.plot(first_noun, (11 - first_noun) / 2, color=plots.BLUE)
for pair in ((2, 3), (3, 1)):
    axes.plot(*pair, "o", color=plots.RED)
    axes.text(pair[0] + 0.15, pair[1] + 0.1, f"{pair[0]}, {pair[1]}", fontsize=9)
axes.plot(1, 5, "o", color=plots.INK, zorder=3)
axes.text(1.15, 5.15, "1, 5", fontsize=9)
axes.text(0.25, 6.55, "one head", color=plots.RED, va="center", fontsize=9)
axes.text(4.2, 3.75, "another head", color=plots.BLUE, ha="center", fontsize=9)
axes.set(xlim=(-0.2, 5.2), ylim=(0, 7.2), xlabel="first noun", ylabel="last noun")
plt.show()

# %% [markdown]
# Words are vectors. Say a noun fills 8 of a word's 16 numbers, the same 8 for every noun. To know both nouns, the verb
# must receive 16 numbers. A single head of width 16 hands over 16 numbers.
#
# **Predict first.** How much of the two nouns can be worked out from what this one head hands over: all, half, or
# nothing?
#
# Let the head give the weight $\alpha$ to the first noun, $a$, and $1 - \alpha$ to the last, $b$. Its average is
# $\alpha \, a + (1 - \alpha) \, b$, which fills 8 numbers, like the nouns themselves. $W_V$ can spread the 8 over 16
# entries, but these tell no more than the 8 did. If the weights do not depend on the nouns, one head, however wide,
# gives 8 equations for 16 unknowns: they fix 8 combinations of the numbers, and leave 8 others free. Half of what is
# needed is lost. Two heads of width 8 also hand over 16 numbers, but from two different averages: 16 equations, and
# nothing is lost. All this is for nouns that may be any vectors. (The half is [measured below](#why-exactly-half). If
# nouns fill more than 8 numbers, two heads of width 8 [lose some, too](#what-if-nouns-fill-more-than-half-of-a-word).)
#
# And the verb above? With *dog* and *man* alone, one head with the weights $\tfrac23$ and $\tfrac13$ would do, because
# only a few pairs are possible, and no two of them have the same average.

# %% [markdown]
# ## The definition
#
# There are $H$ heads. Each has its own three **projections**, matrices of shape $(D, d_k)$. All of them have $D$ rows,
# so every head reads the whole word. The **head dimension** (`head_dim` in much code) is by convention $d_k = D / H$,
# so $D$ must be divisible by $H$. A head divides its scores by $\sqrt{d_k}$, [not by
# $\sqrt D$](03_softmax.ipynb#which-d-is-under-the-root), because each score is a sum of $d_k$ products. Head $h$
# computes attention with its own three matrices, and the layer sets all heads side by side and multiplies by one more
# matrix:
#
# $$\text{head}_h = \operatorname{Attention}(X W_Q^{(h)},\; X W_K^{(h)},\; X W_V^{(h)}),$$
#
# $$\operatorname{MultiHead}(X) = \bigl[\text{head}_1, \dots, \text{head}_H\bigr] \, W_O .$$
#
# The square brackets **concatenate** the heads' outputs: they set them side by side, which gives $(T, D)$ again. The
# last matrix, the **output projection** $W_O$ of shape $(D, D)$, mixes them. The example did without $W_O$, because
# nothing had to be mixed. The definition is that of [Vaswani and others, 2017](https://arxiv.org/abs/1706.03762), who
# write *Concat* for the brackets. (In their words the heads attend to information from "different representation
# subspaces": each compares, and hands over, only the $d_k$ numbers that its own matrices make of a word.)
#
# Why $d_k = D / H$? Because the heads then have $H d_k = D$ columns together, so the layer has as many parameters and
# multiplications as with a single wide head ($H = 1$, and a $W_O$ after it). The price is that a narrower head compares
# fewer numbers of each word. If it has only one or two numbers for each word, a query can hardly pick out any one word
# it wants from many: with one number only the largest or the smallest key can win, and with two the keys lie close
# together ([how few are too few](#what-if-a-head-is-too-narrow)).

# %% [markdown]
# ### Heads are a sum
#
# In the product with $W_O$, the first head's $d_k$ numbers meet only the first $d_k$ rows of $W_O$, the second head's
# the next $d_k$, and so on. Call the rows that head $h$ owns $W_O^{(h)}$. Then multiplying the concatenated heads by
# $W_O$ is the same as multiplying each head by its own rows and adding the results:
#
# $$\bigl[\text{head}_1, \dots, \text{head}_H\bigr] \, W_O \;=\; \sum_{h} \text{head}_h \, W_O^{(h)} .$$
#
# Two heads of width 1, for example, hand over 5 and 7, and $W_O$ has the rows $(1, 0)$ and $(2, 3)$:
# $(5, 7) \, W_O = 5 \, (1, 0) + 7 \, (2, 3) = (19, 21)$. Each term needs only $X$ and its own head's matrices, so no
# head can use what another finds in the same layer.
#
# So a head has two jobs. Its $W_Q$ and $W_K$ say where it looks. Its $W_V$ and its rows of $W_O$ say what it hands
# over, and into which numbers of the output. [Elhage and others,
# 2021](https://transformer-circuits.pub/2021/framework/index.html), call the two its *QK circuit* and its *OV circuit*.
#
# Head $h$, with its attention weights $A^{(h)}$, adds $A^{(h)} X W_V^{(h)} W_O^{(h)}$. The last two matrices could be
# multiplied into one of shape $(D, D)$. They are kept apart, because with more than two heads they have fewer numbers,
# $2 D d_k$ instead of $D^2$. (With one head of width $D$, $W_O$ adds nothing that $W_V$ could not do.) If all heads had
# the same weights $A$, the sum would be $A X \bigl[W_V^{(1)}, \dots, W_V^{(H)}\bigr] \, W_O$. One wide head computes
# the same, if its $W_Q$ and $W_K$ are those of one of the heads, filled up with zeros (and scaled, because it divides
# by another root). So several heads gain only where their attention weights differ. And a sum has no order: if two
# heads change places, together with their rows of $W_O$, the layer computes the same. So *head 3* of one trained model
# need not be like *head 3* of another.

# %% tags=["plot"] mystnb={"image": {"alt": "Two heads as a sum. From x two arrows lead to head 1 and head 2, each a box with its own W_Q, W_K, W_V and output of width d_k. Each output goes through its own rows of W_O, and the two results of width D are added up to the output."}}
from classroom.diagram import Diagram

drawing = Diagram(6.8, 2.5)
drawing.box(0.5, 1.25, "x", 0.6)
drawing.text(0.5, 0.9, "(T, D)", color=plots.GREY, size=9)
for head, (y, color) in enumerate([(1.85, plots.BLUE), (0.65, plots.RED)]):
    drawing.arrow((0.8, 1.25), (1.05, 1.25), (1.05, y), (1.3, y))
    label = f"head {head + 1}: $W_Q$, $W_K$, $W_V$"
    drawing.box(2.2, y, label, 1.8, 0.42, color)
    drawing.arrow((3.1, y), (3.75, y), color=color)
    drawing.text(3.42, y + 0.17, "(T, $d_k$)", color=plots.GREY, size=9)
    drawing.box(4.5, y, "its rows of $W_O$", 1.5, 0.42, color)
    drawing.arrow((5.25, y), (5.95, y), (5.95, 1.25 + (0.1 if y > 1.25 else -0.1)))
    drawing.text(5.6, y + 0.17, "(T, D)", color=plots.GREY, size=9)
drawing.sum(5.95, 1.25)
drawing.arrow((6.05, 1.25), (6.45, 1.25))
drawing.text(6.62, 1.25, "out")
plt.show()

# %% [markdown]
# ### What $W_O$ joins
#
# Without $W_O$ a head could write only into its own $d_k$ of the output's $D$ numbers. And in a transformer, as
# [chapter 8](08_encoder.ipynb) will show, the output is added to the word's own vector, number by number. So head 1
# could change only the first $d_k$ numbers of a word, even if what it finds belongs in the others. With $W_O$, each
# head can write into any of the $D$ numbers, and two heads into the same ones. (A later part could also mix what the
# heads found, but only after it has been added to the word.)
#
# Here is a question that neither head can answer alone: does the dog bite, or is it bitten, or both? Go back to the two
# heads of the example, and take *dog bites man*, *man bites dog* and *dog bites dog*. One column of $W_O$,
# $(1, 0, -1, 0)$, brings the answer into one number: it subtracts head 2's first entry (*dog is bitten*) from head 1's
# (*dog bites*).


# %% tags=["plot"] mystnb={"image": {"alt": "One column of W_O as a row of four numbers, 1 and 0 for head 1, minus 1 and 0 for head 2. Under it what the two heads hand over, in blue and red. For dog bites man head 1 hands over 0.998 and 0, head 2 hands over 0 and 0.998, so head 1 writes 0.998, head 2 writes 0, and the sum is 0.998. For man bites dog head 1 writes 0, head 2 writes minus 0.998, and the sum is minus 0.998. For dog bites dog they write 0.998 and minus 0.998, and the sum is 0."}}
def written(number):
    return f"{number:.3g}".replace("-", "−")


fight = np.stack([dog + position, verb, dog - position])
drawing = Diagram(6.8, 2.65)
tints = [f"{plots.BLUE}33"] * 2 + [f"{plots.RED}33"] * 2
column = [1, 0, -1, 0]
for middle, label in (1.9, "head 1"), (2.9, "head 2"):
    drawing.text(middle, 2.5, label, color=plots.GREY, size=9)
drawing.text(1.25, 2.17, "a column of $W_O$", at="right", size=9)
drawing.cells(1.4, 2.17, [written(n) for n in column], tints, 0.5)
for y, sentence, name in (
    (1.55, dog_bites, "dog bites man"),
    (1.0, man_bites, "man bites dog"),
    (0.45, fight, "dog bites dog"),
):
    found = heads_by_loop(sentence, [head_1, head_2])[0][1].round(3)
    parts = found[:2] @ column[:2], found[2:] @ column[2:]
    drawing.text(1.25, y, name, at="right", size=10)
    drawing.cells(1.4, y, [written(n) for n in found], tints, 0.5)
    drawing.arrow((3.5, y), (3.9, y))
    drawing.text(4.3, y, written(parts[0]), color=plots.BLUE)
    drawing.sum(4.8, y)
    drawing.text(5.3, y, written(parts[1]), color=plots.RED)
    drawing.text(6.2, y, f"= {written(sum(parts))}")
plt.show()

# %% [markdown]
# The sum is positive where the dog only bites, negative where it is only bitten, and, in the third sentence, 0 where it
# does both (*man bites man* would give 0, too). Neither head by itself tells all three sentences apart. Their sum does.

# %% tags=["proof"]
who = np.array([[1], [0], [-1], [0]])  # two rows of head 1, two of head 2
for sentence, expected in ((dog_bites, 0.998), (man_bites, -0.998), (fight, 0.0)):
    heads, _ = heads_by_loop(sentence, [head_1, head_2])
    assert np.isclose((heads @ who)[1, 0], expected, atol=0.0006)

# %% tags=["quiz"]
quiz.one_choice(
    "What does $W_O$ do?",
    quiz.wrong(
        "It averages the heads, so that one bad head does no harm",
        "That would make heads an *ensemble*, several models whose answers are averaged. They are laid side by side, and $W_O$ is free to treat each differently.",
    ),
    quiz.wrong(
        "It brings the heads' outputs back to the width of a word, where $d_k = D / H$",
        "They have it already: $H$ heads of width $D / H$, side by side, are $D$ wide. The matrix is square.",
    ),
    quiz.right(
        "It lets what different heads found meet in one number",
        "Yes. Up to that point, no number depends on two heads of this layer.",
    ),
    quiz.wrong(
        "It turns the output into probabilities over words",
        "That is the last layer of the whole model, with a softmax over the vocabulary. Attention ends in a vector for each word.",
    ),
)

# %% [markdown]
# ### In code
#
# In code the query matrices of all heads stand side by side in one matrix of shape $(D, D)$, so that one product
# computes all queries, and likewise for keys and values. Then each row of the product is cut into $H$ slices of $d_k$,
# and two axes are swapped, so that each head has a matrix of its own with a row for every word. In the picture below, a
# cell is labelled with its row and column in the first matrix. Follow cell 1,2 (labels count from 0), the second word's
# third number. After the reshape it is the first of the second word's two numbers for head 2. After the swap it stands
# in the second row of head 2's own matrix. The number itself has not changed.


# %% tags=["plot"] mystnb={"image": {"alt": "Three stages from left to right. First a matrix of 3 rows and 4 columns, T by D, its first two columns blue for head 1 and its last two red for head 2. Then the same matrix with each row cut in two, T by H by d_k. Then two matrices of 3 rows and 2 columns, one blue and one red, H by T by d_k. Below, the same in reverse, in paler colours: attention in each head gives two matrices of 3 rows and 2 columns, H by T by d_k; axes are swapped to T by H by d_k, a reshape gives T by D, and W_O gives the output."}}
def draw_block(axes, left, bottom, color, first_column, pale=False):
    for row in range(3):
        for column in range(2):
            corner = (left + column, bottom + 2 - row)
            fill = f"{color}40" if pale else color
            axes.add_patch(plt.Rectangle(corner, 1, 1, fc=fill, ec="white", lw=2))
            label = f"{row},{first_column + column}"
            axes.text(
                corner[0] + 0.5,
                corner[1] + 0.5,
                label,
                color=plots.INK if pale else "white",
                ha="center",
                va="center",
                fontsize=9,
            )


figure, axes = plt.subplots(figsize=(7.2, 5.6))
colors = [plots.BLUE, plots.RED]
for below, pale in (0, False), (6.4, True):
    for head in range(2):
        block = {"color": colors[head], "first_column": 2 * head, "pale": pale}
        draw_block(axes, 2 * head, 4.5 - below, **block)
        draw_block(axes, 6.5 + 2.3 * head, 4.5 - below, **block)
        draw_block(axes, 13.2 + 2.9 * head, 4.5 - below, **block)
    for left, title in (
        (0, "(T, D)"),
        (6.5, "(T, H, $d_k$)"),
        (13.2, "(H, T, $d_k$)"),
    ):
        axes.text(left, 7.8 - below, title, fontsize=11)
for start, end, word in [
    ((4.3, 6), (6.2, 6), "reshape"),
    ((11, 6), (12.9, 6), "swap axes"),
    ((14.2, 4.2), (14.2, 2.2), "attention"),
    ((17.1, 4.2), (17.1, 2.2), "attention"),
    ((12.9, -0.4), (11, -0.4), "swap axes"),
    ((6.2, -0.4), (4.3, -0.4), "reshape"),
    ((2, -2.2), (2, -3.6), "times $W_O$: out, (T, D)"),
]:
    axes.annotate(
        "", end, start, arrowprops={"arrowstyle": "-|>", "color": plots.INK}
    )
    across = start[1] == end[1]
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    if across:
        axes.text(x, y + 0.35, word, ha="center", fontsize=8)
    else:
        axes.text(x + 0.2, y, word, va="center", fontsize=9)
axes.set(xlim=(-0.2, 19.2), ylim=(-3.8, 8.8), aspect="equal")
axes.set_axis_off()
plt.show()

# %% [markdown]
# Here is the whole layer, for a batch of $B$ sentences. `split` does the two steps of the picture's upper row, the
# reshape and the swap. Attention (chapter 4) fills the same cells with new numbers, drawn paler. Merging reverses the
# steps of `split`: first swap, then reshape.

# %%
from dotformer.by_hand.softmax import softmax


def multi_head(x, w_q, w_k, w_v, w_o, num_heads):
    B, T, D = x.shape

    def split(y):  # (B, T, D)
        y = y.reshape(B, T, num_heads, -1)  # cut the rows: (B, T, H, d_k)
        return y.swapaxes(1, 2)  # (B, H, T, d_k)

    query, key, value = (split(x @ w) for w in (w_q, w_k, w_v))  # (B, H, T, d_k)
    scaled = query @ key.swapaxes(2, 3) / np.sqrt(query.shape[3])  # (B, H, T, T)
    per_head = softmax(scaled) @ value  # (B, H, T, d_k)
    merged = per_head.swapaxes(1, 2)  # (B, T, H, d_k)
    return merged.reshape(B, T, D) @ w_o  # (B, T, D)


# both heads of the example, side by side, so that each matrix is (4, 4)
both = [np.hstack([head_1[name], head_2[name]]) for name in ("w_q", "w_k", "w_v")]
sentences = np.stack([dog_bites, man_bites])  # 2 sentences of 3 words, width 4
received = multi_head(sentences, *both, np.eye(4), num_heads=2)
print("x", sentences.shape, "  out", received.shape)
print("the verb, in each sentence:", *received[:, 1].round(3))
assert np.allclose(received[0], together)


# %% [markdown]
# Attention works on the last two axes: queries times keys gives $(B, H, T, T)$, one matrix of scores for each head of
# each sentence. So it treats heads as it treats the sentences of a batch: each by itself.
#
# Without the swap, reshaping from $(B, T, D)$ straight to $(B, H, T, d_k)$ gives the same shape and no error, but the
# wrong numbers. A reshape leaves all numbers of the sentence in one long line, first those of word 1, then those of
# word 2, and only cuts this line into $H$ runs. Take two words, $(1, 2, 3, 4)$ and $(5, 6, 7, 8)$, and two heads. Head
# 1 should get $(1, 2)$ and $(5, 6)$. Instead it gets $(1, 2)$ and $(3, 4)$, and takes the second half of word 1 for
# word 2. Merging has [the same trap](#break-it-merged-without-the-swap).
#
# The example with the dog is a poor test of such code. Confusing $H$ and $d_k$ would pass, because both are 2 there,
# and so would forgetting $W_O$, which is the identity. Test with sizes that all differ and a random $W_O$, against a
# loop over the heads:


# %%
def cut_heads(w_q, w_k, w_v, num_heads):
    """Three big matrices (D, D) -> for each head its three, (D, d_k)."""
    q, k, v = (np.split(w, num_heads, axis=1) for w in (w_q, w_k, w_v))
    return [{"w_q": q[h], "w_k": k[h], "w_v": v[h]} for h in range(num_heads)]


rng = np.random.default_rng(0)
x = rng.normal(size=(2, 5, 12))  # 2 sentences of 5 words, 3 heads of width 4
w_q, w_k, w_v, w_o = rng.normal(size=(4, 12, 12))
by_loop, _ = heads_by_loop(x[1], cut_heads(w_q, w_k, w_v, num_heads=3))
all_at_once = multi_head(x, w_q, w_k, w_v, w_o, num_heads=3)
assert np.allclose(all_at_once[1], by_loop @ w_o)

# %% [markdown]
# The first folded cell below has the full version, with a mask.

# %% tags=["export", "hide-input"] module="by_hand.multihead"
import numpy as np
from dotformer.by_hand.attention import scaled_dot_product_attention
from dotformer.support.shapes import shapes
from jaxtyping import Bool, Float, Real


@shapes
def split_heads(
    x: Real[np.ndarray, "*batch T D"], num_heads: int
) -> Real[np.ndarray, "*batch H T d_k"]:
    """Cut the columns of x into heads: head h gets columns h d_k to (h+1) d_k.

    Raises ValueError when D is not divisible by the number of heads.
    """
    if num_heads < 1 or x.shape[-1] % num_heads:
        raise ValueError(f"width {x.shape[-1]} does not make {num_heads} heads")
    return x.reshape(*x.shape[:-1], num_heads, -1).swapaxes(-2, -3)


@shapes
def merge_heads(
    heads: Real[np.ndarray, "*batch H T d_k"],
) -> Real[np.ndarray, "*batch T D"]:
    """Set the heads' outputs side by side again: undoes `split_heads`."""
    pieces = heads.swapaxes(-2, -3)  # (..., T, H, d_k): first swap, then reshape
    return pieces.reshape(*pieces.shape[:-2], -1)


@shapes
def multi_head_attention(
    query: Real[np.ndarray, "*#batch T D"],
    key: Real[np.ndarray, "*#batch S D"],
    value: Real[np.ndarray, "*#batch S D"],
    w_q: Real[np.ndarray, "D D"],
    w_k: Real[np.ndarray, "D D"],
    w_v: Real[np.ndarray, "D D"],
    w_o: Real[np.ndarray, "D D"],
    num_heads: int,
    mask: Bool[np.ndarray, "... #T #S"] | None = None,
) -> tuple[Float[np.ndarray, "... T D"], Float[np.ndarray, "... H T S"]]:
    """Attention in several heads: project, split, attend, merge, mix.

    `mask` is True where a query may attend, and broadcasts to (..., H, T, S).
    Raises ValueError when D is not divisible by `num_heads`, or a query may attend
    to nothing. After Vaswani and others (2017), section 3.2.2.
    """
    q, k, v = (
        split_heads(x.astype(float) @ w, num_heads)
        for x, w in [(query, w_q), (key, w_k), (value, w_v)]
    )
    heads, weights = scaled_dot_product_attention(q, k, v, mask)
    return merge_heads(heads) @ w_o, weights


# %% tags=["proof"]
# five random words of width 16, and matrices for 4 heads
rng = np.random.default_rng(1)
sequence = rng.standard_normal((5, 16))
w_q, w_k, w_v, w_o = rng.standard_normal((4, 16, 16)) / 4
cut = np.arange(1, 9).reshape(2, 4)  # two words, two heads
assert cut.reshape(2, 2, 2)[0].tolist() == [[1, 2], [3, 4]]
assert cut.reshape(2, 2, 2).swapaxes(0, 1)[0].tolist() == [[1, 2], [5, 6]]
mixed, all_weights = multi_head_attention(*[sequence] * 3, w_q, w_k, w_v, w_o, 4)
own = cut_heads(w_q, w_k, w_v, 4)
side_by_side, loop_weights = heads_by_loop(sequence, own)
assert np.allclose(mixed, side_by_side @ w_o)
assert np.allclose(all_weights, loop_weights)
assert np.allclose(mixed, multi_head(sequence[None], w_q, w_k, w_v, w_o, 4)[0])
terms = [side_by_side[:, rows] @ w_o[rows] for rows in np.split(np.arange(16), 4)]
assert np.allclose(sum(terms), mixed)

# %% [markdown]
# ### What do eight heads cost?
#
# **Predict first.** The original transformer has $D = 512$ and 8 heads of 64. Give it a sentence of 100 words. If you
# raise the number of heads and keep $D$, which of these grow: parameters, multiplications, attention weights?


# %% parameters, multiplications and weights, counted tags=["nbval-check-output", "hide-input"]
def cost(d_model, num_heads, words):
    d_k = d_model // num_heads
    parameters = num_heads * 3 * d_model * d_k + d_model * d_model
    projections = words * parameters
    scores_and_blends = num_heads * 2 * words * words * d_k
    return parameters, projections + scores_and_blends


for num_heads in (1, 8, 64):
    parameters, products = cost(512, num_heads, words=100)
    heads = f"{num_heads:2} heads of {512 // num_heads:3}"
    print(
        f"{heads}: {parameters:,} parameters, {products:,} multiplications",
        end=", ",
    )
    print(f"{num_heads * 100 * 100:7,} attention weights")

# %% [markdown]
# The four matrices $W_Q$, $W_K$, $W_V$ and $W_O$ have $4 D^2$ numbers together, however they are cut. Each word takes
# one product with each of the four, of $D^2$ multiplications, so $4 T D^2 = 104{,}857{,}600$ in all. Scores and blends
# take $T^2 d_k$ multiplications each in every head, so $2 H T^2 d_k = 2 T^2 D = 10{,}240{,}000$ in all, because
# $H \cdot d_k = D$. What grows is the number of attention weights, $H \, T^2$, and so the time for their softmaxes and
# any memory to store them. (What a model must keep in memory while it writes text is a question for [chapter
# 19](19_modern.ipynb#heads-that-share-keys-and-values).)
#
# How many heads are best? Vaswani and others chose eight. Their table 3 gives the quality of translations as a score
# from 0 to 100, called BLEU ([chapter 14](14_translation.ipynb)): 24.9 with one head, 25.5 with 4, 25.8 with 8 and with
# 16, 25.4 with 32. The paper concludes that one head is worse, and so are too many. No spread is reported, so the
# smaller differences may be chance. Many later models keep $d_k$ at 64 or 128 and let $H$ grow with $D$: the smallest
# GPT-2 has 12 heads of 64, and the largest GPT-3 96 heads of 128. A head then compares about as much as before, and a
# wider word gets more averages.


# %% tags=["quiz"]
quiz.number(
    "Words have width $D = 96$, there are 8 heads, and a sentence has 11 words. How many attention *weights* are there, all heads together?",
    8 * 11 * 11,
    tolerance=0.5,
    feedback="Yes: each of the 8 heads has a matrix of 11 by 11. The width does not appear.",
    mistakes=[
        (11 * 11, "That is one head's matrix. Every head has its own."),
        (
            11 * 96,
            "That is the size of all queries, 8 heads of 11 by 12, and also of the output. A weight belongs to a *pair* of words.",
        ),
    ],
    otherwise="Heads times rows times columns: each head compares every word with every word.",
)

# %% [markdown]
# ## The same as a PyTorch module
#
# The same layer again, now as the module that is trained below. Like PyTorch's own `nn.MultiheadAttention`, and unlike
# the formula above, it adds a vector, a *bias*, after each product. The $T$ queries may come from other words than the
# $S$ keys and values, as when a translation model attends to the source sentence ([chapter 9](09_decoder.ipynb)), so
# the module serves as self-attention and as *cross-attention*.

# %%
import torch
from torch import nn
from torch.nn import functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        assert d_model % num_heads == 0
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def split(self, y):  # (B, T, D) -> (B, T, H, d_k) -> (B, H, T, d_k)
        return y.unflatten(-1, (self.num_heads, self.d_k)).transpose(1, 2)

    def forward(self, query, key, value, mask=None):
        # query (B, T, D), key and value (B, S, D); mask: True may attend
        q = self.split(self.w_q(query))  # (B, H, T, d_k)
        k, v = self.split(self.w_k(key)), self.split(self.w_v(value))
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        merged = heads.transpose(1, 2).flatten(-2)  # (B, T, H, d_k) -> (B, T, D)
        return self.w_o(merged)  # (B, T, D)


ours = MultiHeadAttention(d_model=12, num_heads=3)
x = torch.randn(2, 5, 12)
causal = torch.ones(5, 5, dtype=torch.bool).tril()
print(ours(x, x, x, causal).shape)  # self-attention: x three times

# %% [markdown]
# Here `d_model` is our $D$. We give all heads of a sentence the same mask. It must broadcast to $(B, H, T, S)$:
#
# - A causal mask, $(T, S)$, fits as it is.
# - A padding mask, $(B, S)$, True for real words, needs two axes: `mask[:, None, None]` is $(B, 1, 1, S)$. Without them
#   it is taken for $(T, S)$, and is silently wrong if $B = T > 1$.
# - A mask for each sentence, $(B, T, S)$, needs one more axis: `mask[:, None]`. Without it, broadcasting adds an axis
#   in front, $(1, B, T, S)$, so $B$ stands where $H$ should. If $B = 1$, that is harmless. If $B = H$, it is silently
#   wrong, because [head $h$ takes the mask of sentence $h$](04_self_attention.ipynb#a-mask-over-the-wrong-axis).
#   Otherwise it is an error.
#
# Do not use `view` for the merge: after `transpose` the numbers need not lie in memory in the order of the axes, so
# `view`, which never copies, may stop with an error. `flatten` and `reshape` copy when they must.
#
# To take one head out of the module, remember that `nn.Linear` stores its matrix transposed: head $h$ owns *rows* of
# `w_q.weight` and *columns* of `w_o.weight`. `F.scaled_dot_product_attention` returns no weights. Where you want to see
# them, write its steps out, as in [chapter 4](04_self_attention.ipynb#the-same-as-a-pytorch-module).
#
# The module agrees with a loop over heads (in the folded cell). To see that PyTorch's `nn.MultiheadAttention` computes
# the same, copy our parameters into it, and compare the two, under a causal mask and as cross-attention:


# %% a loop over heads gives the same tags=["hide-input"]
class Head(nn.Module):
    def __init__(self, d_model, d_k):
        super().__init__()
        self.w_q, self.w_k, self.w_v = (nn.Linear(d_model, d_k) for _ in range(3))

    def forward(self, x, mask=None):  # (B, T, D) -> (B, T, d_k)
        q, k, v = self.w_q(x), self.w_k(x), self.w_v(x)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class HeadsByLoop(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        d_k = d_model // num_heads
        self.heads = nn.ModuleList(Head(d_model, d_k) for _ in range(num_heads))
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):  # (B, T, D) -> (B, T, D)
        return self.w_o(torch.cat([head(x, mask) for head in self.heads], dim=-1))


loop = HeadsByLoop(d_model=12, num_heads=3)
state = {f"w_o.{name}": p for name, p in loop.w_o.state_dict().items()}
for name in (
    "w_q.weight",
    "w_k.weight",
    "w_v.weight",
    "w_q.bias",
    "w_k.bias",
    "w_v.bias",
):
    state[name] = torch.cat([head.state_dict()[name] for head in loop.heads])
ours.load_state_dict(state)
assert torch.allclose(ours(x, x, x, causal), loop(x, causal), atol=1e-6)

# %%
pytorchs = nn.MultiheadAttention(12, 3, batch_first=True)
with torch.no_grad():  # in_proj holds W_Q, W_K and W_V
    three = ours.w_q, ours.w_k, ours.w_v
    pytorchs.in_proj_weight.copy_(torch.cat([w.weight for w in three]))
    pytorchs.in_proj_bias.copy_(torch.cat([w.bias for w in three]))
    pytorchs.out_proj.load_state_dict(ours.w_o.state_dict())
other = torch.randn(2, 7, 12)  # beside x (2, 5, 12)
for y, mask in (x, causal), (other, None):
    hidden = None if mask is None else ~mask  # there True means hidden
    theirs, _ = pytorchs(x, y, y, attn_mask=hidden)
    apart = (ours(x, y, y, mask) - theirs).abs().max().item()
    print(f"largest difference {apart:.0e}")
    assert apart < 1e-6

# %% [markdown]
# They agree, up to rounding. `nn.MultiheadAttention` calls $D$ `embed_dim` and returns the weights as well, *averaged
# over the heads* unless you pass `average_attn_weights=False`. Two of its conventions differ from ours: in its boolean
# masks True means *hidden*, and unless `batch_first=True` the batch is the second axis.

# %% [markdown]
# ## Why do heads become different?
#
# Nothing in the definition says that one head should look at the first noun and another at the last. Let training
# decide. How it works is for [chapter 7](07_learning.ipynb); here you see what it finds.
#
# The sentences are *noun, verb, noun*. The nouns are smaller this time. A word has $D = 16$ numbers, as
# [above](#would-one-head-do), but now uses only eight: six for the noun, one for *verb*, and one for the position. The
# other eight are 0, so a head of width 8 can hold the whole word. A layer has either one head of width 16 or two of
# width 8. Its task is to write both nouns, 12 numbers, into its output for the verb.
#
# **Predict first.** Train three layers: one head; two heads with random starts; two heads with equal starts, rows of
# $W_O$ included. What share of the nouns does each miss? (The squared error, divided by that of always answering 0: the
# *fraction of variance unexplained*.)


# %% layers with one head and with two, trained tags=["hide-input"]
def draw_sentences(count, generator):
    """Noun, verb, noun as vectors (count, 3, 16), and both nouns (count, 12)."""
    nouns = torch.randn(count, 2, 6, generator=generator)
    x = torch.zeros(count, 3, 16)
    x[:, 0, :6], x[:, 2, :6] = nouns[:, 0], nouns[:, 1]
    x[:, 1, 6] = 1  # it is the verb
    x[:, 0, 7], x[:, 2, 7] = 1, -1  # position
    return x, nouns.flatten(1)


def equal_heads(layer, output=True):
    """Give the second of two heads what the first has, its rows of W_O too or not."""
    half = layer.w_q.in_features // 2
    for projection in (layer.w_q, layer.w_k, layer.w_v):
        projection.weight[half:] = projection.weight[:half]
        projection.bias[half:] = projection.bias[:half]
    if output:
        layer.w_o.weight[:, half:] = layer.w_o.weight[:, :half]


def train_heads(seed, num_heads, equal=False, only_positions=False, steps=600):
    """Shares of the nouns missed after training, and the verb's weights (H, 3).

    The first share is that of the whole layer, the others without one head each.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    layer = MultiHeadAttention(16, num_heads)
    if equal:
        with torch.no_grad():
            equal_heads(layer, output=equal != "but W_O")
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    kept = torch.ones(16)
    kept[:6] = 0 if only_positions else 1  # what a key sees of a word
    for _ in range(steps):
        x, nouns = draw_sentences(64, generator)
        error = F.mse_loss(layer(x[:, 1:2], x * kept, x)[:, 0, :12], nouns)
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
    with torch.no_grad():
        x, nouns = draw_sentences(2000, generator)

        def share_missed():
            apart = layer(x[:, 1:2], x * kept, x)[:, 0, :12] - nouns
            return (apart.square().mean() / nouns.square().mean()).item()

        missed = [share_missed()]
        for own in layer.w_o.weight.split(layer.d_k, dim=1):  # what one head feeds
            before = own.clone()
            own.zero_()
            missed.append(share_missed())
            own.copy_(before)
        query = layer.split(layer.w_q(x[:, 1:2]))
        keys = layer.split(layer.w_k(x * kept))
        scaled = query @ keys.mT / query.shape[-1] ** 0.5
    weights = scaled.softmax(dim=-1)[:, :, 0].mean(dim=0)
    return missed, weights.numpy()


kinds = {"one head": (1,), "two heads": (2,), "two, equal start": (2, True)}
print(
    "share missed by         three seeds     "
    "the verb's weights on noun, verb, noun (one seed)"
)
for name, kind in kinds.items():
    runs = [train_heads(seed, *kind) for seed in range(3)]
    shares, weights = zip(*runs, strict=True)
    missed, *without = zip(*shares, strict=True)  # three seeds each
    print(f"{name:20}", *(f"{share:5.2f}" for share in missed), end="         ")
    print(" | ".join(" ".join(f"{w:4.2f}" for w in head) for head in weights[0]))
    if name == "two heads":
        assert max(missed) < 0.005
        with_one_off = without
        tops = [{head.argmax() for head in each} for each in weights]
        assert all(top == {0, 2} for top in tops)
    else:
        assert min(missed) > 0.38 and max(missed) < 0.45
    if name.endswith("start"):
        assert all(np.allclose(*each, atol=1e-4) for each in weights)
(by_position, _), _ = train_heads(seed=0, num_heads=1, only_positions=True)
assert 0.48 < by_position < 0.53
(parted, *_), _ = train_heads(seed=0, num_heads=2, equal="but W_O")
print(f"{'two, equal but W_O':20} {parted:5.2f}")
assert parted < 0.005

# %% [markdown]
# The weights in the output are means over 2,000 sentences. Ignore the last row, a single run, until the quiz below.
#
# One head misses nearly half. Its average gives 6 of the 12 numbers. Here its weights may depend on the nouns, too,
# which [gives one more](#could-one-head-escape-by-other-means). So 5 of 12 are lost, 0.42.
#
# Two heads that start equal miss as much as one. Two that start at random miss nothing: in all three runs, each from a
# different random start (*seed*), one head gives most to the first noun on average, the other to the last. The weights
# need not be 1 and 0. Two different averages are enough, and $W_O$ works out the nouns from them.
#
# Why? Training corrects each matrix according to how a change in it would change the error, and a head affects the
# error only through its own rows of $W_O$. Two heads that are equal, rows included, get equal corrections, so they stay
# equal. If they differ, their corrections in general differ, too, and presumably a task that one average cannot solve
# rewards the difference. Different starts break the *symmetry*, and the task pulls the heads apart. Where one average
# would do, nothing forces heads to differ.
#
# Does the layer of two different heads need both? Switch one off after training, by setting its rows of $W_O$ to 0, and
# measure again. This is an **ablation**:

# %% each of the two heads switched off tags=["hide-input"]
for number, missed in enumerate(with_one_off, 1):
    print(
        f"head {number} off: share missed", *(f"{share:5.2f}" for share in missed)
    )
assert min(map(min, with_one_off)) > 0.5 and max(map(max, with_one_off)) < 0.62

# %% [markdown]
# It needs both. And with one head off, more is missed than the 0.42 of the layer that had one from the start. That
# layer's $W_O$ was trained to make the best of one average, and this one's to combine two. So an ablation measures what
# the *trained* model loses, not what a smaller one could have learned.

# %% tags=["quiz"]
quiz.one_choice(
    "Two heads start with equal $W_Q$, $W_K$ and $W_V$, but their rows of $W_O$ are random. What does training make of them?",
    quiz.wrong(
        "They stay equal, since they look at the same words",
        "At first they do look at the same words. But what they hand over goes through different rows of $W_O$, so the error asks different things of them.",
    ),
    quiz.right(
        "They drift apart: each is corrected through its own rows of $W_O$",
        "Yes, as the row *two, equal but W_O* above shows: no part of the nouns is missed. Equal rows of $W_O$ are needed to keep two heads equal.",
    ),
    quiz.wrong(
        "One of them learns, and the other stays as it was",
        "Both contribute to the output, and both are corrected through their rows of $W_O$.",
    ),
    quiz.wrong(
        "They drift apart only if they are given different sentences",
        "All heads of a layer see the same sentences, always. What differs is how each is corrected.",
    ),
)

# %% [markdown]
# ## Heads at work
#
# So far we chose the task. Do heads become different in a model trained on real text, too? Take all-MiniLM-L6-v2, which
# gave us the vectors of chapter 2, and look at its first layer, of twelve heads of width 32 ($D = 384$). The model adds
# two tokens that are not words, `[CLS]` before each text and `[SEP]` after it. Give it three sentences, such as *the
# dog that bit the man ran*. For each head, average the weight on the word before, over all words but the first of each
# sentence. The sentences have 9 to 13 tokens, so equal weights would be about 0.09.
#
# **Predict first.** Chapter 5 wired a head that looks one word back. Does training find one, too? How large is the
# weight on the word before, in the head where it is largest?

# %% the attention weights of MiniLM's first layer tags=["hide-input"]
from dotformer.support.published import minilm_parameters

tokenizer, published = minilm_parameters()


def first_layer(text):
    """Tokens, and the attention weights (12, T, T) of the first layer's heads."""
    encoded = tokenizer.encode(text)
    word, position, kind = (
        published[f"embeddings.{name}_embeddings.weight"]
        for name in ("word", "position", "token_type")
    )
    x = word[encoded.ids] + position[: len(encoded.ids)] + kind[0]  # (T, 384)
    x = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    x = x * published["embeddings.LayerNorm.weight"]
    x = x + published["embeddings.LayerNorm.bias"]
    own = "encoder.layer.0.attention.self."
    q, k, v = (
        split_heads(
            x @ published[f"{own}{n}.weight"].T + published[f"{own}{n}.bias"], 12
        )
        for n in ("query", "key", "value")
    )
    return encoded.tokens, scaled_dot_product_attention(q, k, v)[1]


# %% weight on the word before and on [CLS], head by head tags=["hide-input"]
texts = [
    "the cat sat on the mat and it slept",
    "she gave the book to her brother because he wanted it",
    "the dog that bit the man ran",
]
read = [first_layer(text) for text in texts]  # tokens, weights (12 heads, T, T)
# rows: words from the second on; columns: the words before them
before = np.mean(
    [np.diagonal(w[:, 2:-1, 1:-2], axis1=1, axis2=2).mean(axis=1) for _, w in read],
    axis=0,
)
print("head                    ", *(f"{n:5}" for n in range(1, 13)))
print("weight on the word before", *(f"{w:5.2f}" for w in before))
least = min(np.diagonal(w[2, 2:-1, 1:-2]).min() for _, w in read)
to_cls = np.mean([w[:, 2:-1, 0].mean(axis=1) for _, w in read], axis=0)
equal = np.mean([1 / len(tokens) for tokens, _ in read])
print(f"equal weights would be {equal:.2f}")
assert (to_cls > 0.25).sum() == 6 and to_cls[2] < 0.01
assert before.argmax() == 2 and least > 0.9985 and np.median(before) < 0.15

# %% [markdown]
# Choose a head, then point at a word, or move to it with the arrow keys.

# %% tags=["plot"]
movable.heads(read[2][1], read[2][0], head=2, token=4)

# %% [markdown]
# Training does find one: in these three sentences head 3 gives nearly all of its weight to the word before, and no
# other head comes near that. So here, too, a trained head does something that no other does. Such a head is called a
# **previous-token head**.
#
# Does head 3 find out who bit? It seems to: *bit* gives *dog* 1.00 in *the dog bit the man*, and *man* 1.00 in *the man
# bit the dog*. But only because the biter is the word before: in *the dog that bit the man ran*, *bit* looks at *that*.
# Head 11, for example, hardly cares who bites in *the dog bit the man* and *the man bit the dog*: *bit* gives *dog*
# 0.31 in one and 0.28 in the other.

# %% tags=["proof"]
for text, biter, of_dog in (
    ("the dog bit the man", "dog", 0.31),
    ("the man bit the dog", "man", 0.28),
):
    tokens, weights = first_layer(text)
    of_bit = weights[:, tokens.index("bit")]
    assert of_bit[2, tokens.index(biter)] > 0.995
    assert round(of_bit[10, tokens.index("dog")], 2) == of_dog

# %% [markdown]
# A map of weights does not explain what a model does. It shows neither what a head hands over, nor whether another
# hands over the same, nor whether any later layer uses it. To see whether a head is needed, switch it off, as
# [above](#why-do-heads-become-different), and measure how much worse the model does on new text. [Chapter
# 15](15_pretrained.ipynb) does that with every head of this model. [Going
# further](#what-else-do-heads-do-and-can-they-be-removed) describes what else heads do, which of them can be removed,
# and a possible reason why six of these twelve heads give much of their weight to `[CLS]`.

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: The layer, from memory
#
# *Medium, 20 minutes.* Without scrolling up, write multi-head attention for one sentence $(T, D)$, in NumPy alone,
# without a loop over the heads. The check names the common mistakes.


# %% tags=["exercise"]
def from_memory(x, w_q, w_k, w_v, w_o, num_heads):
    """x (T, D), four matrices (D, D) -> (T, D)."""
    ...


# %% tags=["check"]
def layer_by_loop(x, w_q, w_k, w_v, w_o, num_heads):
    return heads_by_loop(x, cut_heads(w_q, w_k, w_v, num_heads))[0] @ w_o


def per_head(d_k, width):
    return np.sqrt(d_k)


def variant(
    split=split_heads, merge=merge_heads, root=per_head, axis=-1, mix=np.matmul
):
    """The layer with one step replaced."""

    def layer(x, w_q, w_k, w_v, w_o, num_heads):
        q, k, v = (split(x @ w, num_heads) for w in (w_q, w_k, w_v))
        scaled = q @ k.swapaxes(-2, -1) / root(k.shape[-1], x.shape[-1])
        powers = np.exp(scaled - scaled.max())
        merged = merge(powers / powers.sum(axis=axis, keepdims=True) @ v)
        return mix(merged, w_o)

    return layer


def draw_layer(words, width, heads):
    rng = np.random.default_rng(words)
    return (
        rng.normal(size=(words, width)),
        *rng.normal(size=(4, width, width)),
        heads,
    )


check_from_memory = partial(
    checks.check,
    reference=layer_by_loop,
    cases=[draw_layer(5, 6, 3), draw_layer(3, 8, 2), draw_layer(6, 6, 1)],
    mistakes={
        "you reshape straight to (H, T, d_k), and a head mixes up the words: make it (T, H, d_k), then swap": variant(
            split=lambda y, heads: y.reshape(heads, len(y), -1)
        ),
        "you reshape straight to (H, T, d_k) and straight back: swap the axes T and H, both times": variant(
            split=lambda y, heads: y.reshape(heads, len(y), -1),
            merge=lambda heads: heads.reshape(heads.shape[1], -1),
        ),
        "a head takes every H-th column; its d_k columns stand side by side": variant(
            split=lambda y, heads: y.reshape(len(y), -1, heads).transpose(2, 0, 1)
        ),
        "on the way back you reshape at once, and a row mixes several words: swap first": variant(
            merge=lambda heads: heads.reshape(heads.shape[1], -1)
        ),
        "on the way back the heads' numbers alternate; those of one head belong side by side": variant(
            merge=lambda heads: heads.transpose(1, 2, 0).reshape(heads.shape[1], -1)
        ),
        "you divide by the root of D; a score sums the d_k products of one head": variant(
            root=lambda d_k, width: np.sqrt(width)
        ),
        "the scores are not divided by the root of d_k": variant(
            root=lambda d_k, width: 1
        ),
        "the softmax runs over the queries; each query's weights must sum to 1": variant(
            axis=-2
        ),
        "W_O is missing": variant(mix=lambda merged, w_o: merged),
        "W_O is transposed": variant(mix=lambda merged, w_o: merged @ w_o.T),
    },
)
check_from_memory(from_memory)


# %% tags=["solution"]
def from_memory(x, w_q, w_k, w_v, w_o, num_heads):
    T, D = x.shape

    def split(y):  # (T, D) -> (H, T, d_k)
        return y.reshape(T, num_heads, -1).swapaxes(0, 1)

    q, k, v = (split(x @ w) for w in (w_q, w_k, w_v))
    scaled = q @ k.swapaxes(-2, -1) / np.sqrt(D // num_heads)  # (H, T, T)
    powers = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    heads = powers / powers.sum(axis=-1, keepdims=True) @ v  # (H, T, d_k)
    return heads.swapaxes(0, 1).reshape(T, D) @ w_o


verdict = check_from_memory(from_memory)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: Switch a head off
#
# *Medium, 15 minutes.* Given the heads' outputs before merging, $(H, T, d_k)$, and $W_O$, return what the layer would
# give if the head `off`, counted from 0, handed over nothing. You may use `merge_heads(heads)` from the folded version:
# it swaps and reshapes $(H, T, d_k)$ into $(T, D)$.


# %% tags=["exercise"]
def without_head(heads, w_o, off):
    """Heads (H, T, d_k) merged, times w_o (D, D), without head `off`: (T, D)."""
    ...


# %% tags=["check"]
rng = np.random.default_rng(3)
check_without = partial(
    checks.check,
    reference=lambda heads, w, off: sum(
        heads[h] @ w[h * heads.shape[2] : (h + 1) * heads.shape[2]]
        for h in range(len(heads))
        if h != off
    ),
    cases=[
        (rng.standard_normal((2, 3, 2)), rng.standard_normal((4, 4)), 0),
        (rng.standard_normal((3, 4, 2)), rng.standard_normal((6, 6)), 1),
    ],
    mistakes={
        "nothing is switched off": lambda heads, w, off: merge_heads(heads) @ w,
        "you leave out one *row* of w_o; a head owns d_k of them": lambda heads, w, off: (
            np.delete(merge_heads(heads), off, axis=1) @ np.delete(w, off, axis=0)
        ),
        "you silence a *column* block of w_o: head h feeds the rows h d_k to (h+1) d_k": lambda heads, w, off: (
            merge_heads(heads)
            @ np.where(np.arange(len(w)) // heads.shape[2] == off, 0, w)
        ),
        "this is what the head contributes; what remains is wanted": lambda heads, w, off: (
            heads[off] @ w[off * heads.shape[2] : (off + 1) * heads.shape[2]]
        ),
        "the heads are merged without swapping axes first": lambda heads, w, off: (
            np.where(np.arange(len(heads))[:, None, None] == off, 0, heads).reshape(
                heads.shape[1], -1
            )
            @ w
        ),
    },
)
check_without(without_head)


# %% tags=["solution"]
def without_head(heads, w_o, off):
    silenced = heads.copy()
    silenced[off] = 0
    return merge_heads(silenced) @ w_o


verdict = check_without(without_head)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: Two heads that act as one
#
# *Harder, 20 minutes.* Nothing in the definition forces two heads to differ. So a layer of two heads can do what a
# single head of width $D/2$ does: let both compute it, and average them. Given the matrices $W_Q$, $W_K$, $W_V$ of one
# head, all $(D, D/2)$, return $(D, D)$ matrices for two heads that both compute what this one does, and a $W_O$ of
# shape $(D, D)$ that gives their *average* in the first $D/2$ numbers of each word, and 0 in the others.


# %% tags=["exercise"]
def twice(w_q, w_k, w_v):
    """w_q, w_k, w_v, w_o, all (D, D), from one head's three, (D, D/2) each."""
    ...


# %% tags=["check"]
def of_two_heads(doubled):
    """What a layer with a reader's matrices gives for a fixed sentence: (5, D)."""

    @wraps(doubled)
    def output(w_q, w_k, w_v):
        matrices = doubled(w_q, w_k, w_v)
        if matrices is None:
            return None
        words = np.random.default_rng(4).standard_normal((5, len(w_q)))
        return multi_head_attention(words, words, words, *matrices, num_heads=2)[0]

    return output


def one_head_padded(w_q, w_k, w_v):
    words = np.random.default_rng(4).standard_normal((5, len(w_q)))
    single = scaled_dot_product_attention(words @ w_q, words @ w_k, words @ w_v)[0]
    return np.hstack([single, 0 * single])


def doubled(*matrices, columns=np.hstack, share=0.5, rows=2):
    half = np.eye(matrices[0].shape[1])
    w_o = np.hstack(
        [
            share * np.vstack([half, (rows == 2) * half]),
            np.zeros((len(matrices[0]), len(half))),
        ]
    )
    return [*(columns([matrix, matrix]) for matrix in matrices), w_o]


check_twice = partial(
    checks.check,
    reference=one_head_padded,
    cases=[
        tuple(rng.standard_normal((3, 4, 2))),
        tuple(rng.standard_normal((3, 6, 3))),
    ],
    mistakes={
        "you add the two heads: for their average, w_o needs halves": of_two_heads(
            partial(doubled, share=1)
        ),
        "w_o leaves the second head out, and what is left is half of the first": of_two_heads(
            partial(doubled, rows=1)
        ),
        "each column stands twice side by side; a head's columns must stand together": of_two_heads(
            partial(doubled, columns=lambda pair: np.repeat(pair[0], 2, axis=1))
        ),
    },
)
check_twice(of_two_heads(twice))


# %% tags=["solution"]
def twice(w_q, w_k, w_v):
    half = np.eye(w_q.shape[1])
    average = np.vstack([half, half]) / 2  # (D, D/2): both heads' numbers, halved
    w_o = np.hstack([average, np.zeros_like(average)])
    return *(np.hstack([matrix, matrix]) for matrix in (w_q, w_k, w_v)), w_o


verdict = check_twice(of_two_heads(twice))
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# One head gives each word one average, and an average does not in general tell which words went into it. Where a few
# numbers of each word are enough, several narrow heads, each with its own average, can do better than a wide one. So
# attention runs several times side by side, in narrow heads with matrices of their own. The layer then has as many
# parameters and multiplications as with a single wide head and a $W_O$. Each head writes through its own rows of $W_O$,
# and what they write is added up. In our task training made the heads differ. It could, because they did not start
# equal, and presumably it did so because one average was not enough.
#
# **Sources.** Multi-head attention: [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762), section 3.2.2. What
# trained heads do, and how many can be switched off: [Clark and others (2019)](https://aclanthology.org/W19-4828/),
# [Voita and others (2019)](https://arxiv.org/abs/1905.09418), [Michel, Levy and Neubig
# (2019)](https://arxiv.org/abs/1905.10650).
#
# **Next.** Part I ends here: attention, positions, heads, by hand and mostly with matrices that we chose. Part II
# shows how such matrices are learned. (What is often said of attention, and which chapter tests it, is in a [list of
# misconceptions](../misconceptions.md).)

# %% [markdown]
# ## Going further
#
# Six questions about heads, a common bug, and short answers to twelve more questions.
#
# ### Why exactly half?
#
# How much does [one average](#would-one-head-do) lose? Draw two thousand pairs of nouns, whose entries are independent
# normal numbers with mean 0. A noun fills 8 of a word's 16 numbers, as above, and we set the attention weights
# ourselves:
#
# - *One head* averages the nouns with $\alpha$ and $1 - \alpha$, and multiplies by a random $W_V$ of shape (16, 16), of
#   which only the 8 rows of a noun's numbers count. (Multiplying first gives the same, because $W_V$ is linear.)
# - *Two heads*: one has all of its weight on the first noun, the other on the last. Each has a random $W_V$ of shape
#   (16, 8).
#
# On the first thousand pairs we fit one more matrix, which maps the 16 numbers received to the 16 of both nouns, by
# **least squares**: it makes the squared error as small as possible. On the other thousand pairs we measure its squared
# error, and divide it by the squared error of always guessing 0. This is the *share missed*: 0 is perfect, and 1 is no
# better than that guess.

# %% both nouns, recovered from one head's average tags=["hide-input"]
import numpy as np


def share_missed(received, wanted):
    """Fit the best matrix on the first half of the rows, test on the second."""
    half = len(wanted) // 2
    matrix = np.linalg.lstsq(received[:half], wanted[:half], rcond=None)[0]
    missed = received[half:] @ matrix - wanted[half:]
    return np.mean(missed**2) / np.mean(wanted[half:] ** 2)


alphas = np.linspace(0, 1, 11)
one_head, two_heads = [], []
for seed in range(10):
    rng = np.random.default_rng(seed)
    first, last = rng.standard_normal((2, 2000, 8))
    wanted = np.hstack([first, last])
    wide, narrow = rng.standard_normal((8, 16)), rng.standard_normal((2, 8, 8))
    averages = [(alpha * first + (1 - alpha) * last) @ wide for alpha in alphas]
    one_head.append([share_missed(average, wanted) for average in averages])
    both = np.hstack([first @ narrow[0], last @ narrow[1]])
    two_heads.append(share_missed(both, wanted))

# %% tags=["plot"] mystnb={"image": {"alt": "Share of the two nouns that is missed, against the weight of the first noun from 0 to 1. One head misses one half everywhere, two heads miss nothing."}}
mean, spread = np.mean(one_head, axis=0), np.std(one_head, axis=0)
figure, axes = plt.subplots(figsize=(6, 3.2))
axes.fill_between(
    alphas, mean - spread, mean + spread, color=plots.RED, alpha=0.2, lw=0
)
axes.plot(alphas, mean, color=plots.RED)
axes.plot(alphas, np.full(11, np.mean(two_heads)), color=plots.BLUE)
axes.text(0.5, 0.56, "one head of 16", color=plots.RED, ha="center")
axes.text(0.5, 0.05, "two heads of 8", color=plots.BLUE, ha="center")
axes.set(
    ylim=(-0.05, 0.75), xlabel="weight of the first noun", ylabel="share missed"
)
plt.show()

# %% [markdown]
# One head misses half, whatever $\alpha$ is, and two heads miss nothing. Why half?
#
# Alongside the average, take the combination $(1 - \alpha) \, a - \alpha \, b$. Together, average and combination give
# both nouns. Let the nouns be independent and drawn alike, with mean 0. Then average and combination have the same
# variance, $\alpha^2 + (1 - \alpha)^2$, and are uncorrelated: entry by entry, with variance 1, their covariance is
# $\alpha (1 - \alpha) - (1 - \alpha) \, \alpha = 0$. So no matrix recovers anything of the combination from the
# average: that half is lost. The average explains this share of each noun's variance (the squared correlation between
# an entry of the average and the same entry of the noun):
#
# $$\underbrace{\frac{\alpha^2}{\alpha^2 + (1 - \alpha)^2}}_{\text{of } a} \qquad \text{and} \qquad \underbrace{\frac{(1 - \alpha)^2}{\alpha^2 + (1 - \alpha)^2}}_{\text{of } b} .$$
#
# The two shares sum to 1. Two nouns recovered whole would give 2, so half is recovered. With $\alpha = \tfrac12$ the
# average holds half of each noun, with $\alpha = 1$ all of $a$ and nothing of $b$.
#
# Chapter 5 recovered both parts of a sum, because each came from a fixed list. Here the nouns are arbitrary.
#
# ### Could one head escape by other means?
#
# - *Could its weights depend on the nouns themselves?* Yes. That gains one number, if the weights are nearly equal and
#   a matrix reads off what arrives. With the verb's query $q$ and the nouns' keys $k_a$ and $k_b$, the scores differ by
#   $q \cdot (k_a - k_b)$. The average has lost this number, but the weights still show it. Let one entry of the values
#   be 1 for the first word, 0 for the verb and −1 for the last: its blend is the first noun's weight minus the last's.
#   So with nouns of six numbers 6 + 1 of 12 arrive, and 5 are lost, 0.417, instead of half. Where the head's keys see
#   the positions only, it misses half.
# - *Could its $W_V$ write the first noun into different numbers from those of the last noun?* Not in the first layer.
#   The matrix is the same for every word, and a position is only added, so both nouns are written into the same
#   numbers.
# - *Could a later part that is not linear tell them apart?* For a fixed list of nouns, yes, if no two pairs have the
#   same average. With *dog* and *man* [above](#would-one-head-do), the weights $\tfrac23$ and $\tfrac13$ see to that.
#   For arbitrary new nouns, no.
# - *Could two layers of one head fetch one noun after the other?* Yes, if the first is passed on beside the second
#   (chapter 8). Two heads do it in one layer.

# %% tags=["proof"]
rng = np.random.default_rng(0)
first, last = rng.standard_normal((2, 40_000, 6))
scores = np.stack([0.1 * first[:, 0], np.zeros(40_000), 0.1 * last[:, 0]], axis=1)
by_noun = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
average = by_noun[:, :1] * first + by_noun[:, 2:] * last
constant = np.ones((40_000, 1))
received = [average, by_noun[:, :1] - by_noun[:, 2:], by_noun[:, 1:2]]
pairs_of_nouns = np.hstack([first, last])
missed = [
    share_missed(np.hstack([*received[:n], constant]), pairs_of_nouns)
    for n in (1, 2, 3)
]
assert np.allclose(missed, [0.5, 5 / 12, 5 / 12], rtol=0, atol=0.01)

# %% [markdown]
# ### What if nouns fill more than half of a word?
#
# Two heads look at two words, and each hands over half as many numbers as a wide head. In [the
# measurement](#why-exactly-half) a noun filled 8 of 16 numbers. Let it fill more:

# %% nouns of 8, 12 and 16 numbers tags=["hide-input"]
print("a noun fills   share missed: one head of 16   two heads of 8")
trade = {}
for size in (8, 12, 16):
    rng = np.random.default_rng(0)
    first, last = rng.standard_normal((2, 2000, size))
    wanted, narrow = np.hstack([first, last]), rng.standard_normal((2, size, 8))
    both_heads = np.hstack([first @ narrow[0], last @ narrow[1]])
    trade[size] = [
        share_missed(received, wanted)
        for received in ((first + last) / 2, both_heads)
    ]
    print(f"{size:12} {trade[size][0]:29.2f} {trade[size][1]:16.2f}")

# %% [markdown]
# Count the numbers. Two nouns of 12 are 24, and two heads hand over 16, so a third is missed. Two nouns of 16 are 32,
# so half is missed: a tie with one head. (The extra 0.01 is chance in the draw, and the price of fitting on one sample
# and measuring on another.) Apart from such hundredths, two heads never do worse in this test, and they gain most where
# a few numbers of each word are enough. That may be the usual case: to agree with its subject, a verb needs to know
# *one or many?*, and not all that the subject means. Two narrow heads hand over as many numbers as one wide head. What
# they give up is in the comparing: each compares fewer numbers of each word ([why that
# matters](#what-if-a-head-is-too-narrow)).

# %% tags=["proof"]
pairs = np.array([[1, 5], [2, 3]])
assert np.allclose(pairs @ [2 / 3, 1 / 3], 7 / 3)
assert np.allclose(pairs @ [1 / 3, 2 / 3], [11 / 3, 8 / 3])
assert np.allclose(one_head, 0.5, rtol=0, atol=0.03) and np.allclose(
    two_heads, 0, atol=1e-9
)
assert all(abs(one - 0.5) < 0.03 for one, _ in trade.values())
assert [round(two, 1) for _, two in trade.values()] == [0, 0.3, 0.5]


# %% [markdown]
# ### Do heads cut the input?
#
# No. A head's *output* is a slice, but every head reads the whole word, because the cut comes after the projection.
# Compare two orders: projecting the word and then cutting, as above, or, by mistake, cutting the word first and
# projecting each slice. Change one number of a word: in which of four heads does the word's key change?

# %%
change = np.eye(16)[0]  # the first of 16 numbers
keys_of_all = np.random.default_rng(2).standard_normal((16, 16))
keys_of_each = np.random.default_rng(3).standard_normal((4, 4, 4))
projected_first = (change @ keys_of_all).reshape(4, 4)  # a row for each head
slices = change.reshape(4, 1, 4)  # four slices, each a row of four
cut_first = (slices @ keys_of_each)[:, 0]  # slice h times matrix h
print(
    "projected, then cut: changed in heads",
    np.flatnonzero(projected_first.any(1)) + 1,
)
print("cut, then projected: changed in heads", np.flatnonzero(cut_first.any(1)) + 1)

# %% [markdown]
# The outputs of both orders have the same shape, so a check of shapes misses the mistake. Changing one number, as here,
# reveals it, and so does a comparison with the loop.

# %% [markdown]
# ### What if a head is too narrow?
#
# A head's scores are $X W_Q W_K^\top X^\top$ (without biases, and before the division), so only the product
# $W_Q W_K^\top$ counts, one matrix of shape $(D, D)$. As a product of $(D, d_k)$ and $(d_k, D)$ it has **rank** at most
# $d_k$: all its rows are mixtures of $d_k$ rows. So a head can compare words along only $d_k$ directions. (The product
# $W_V^{(h)} W_O^{(h)}$ has rank at most $d_k$, too, so a head can write along only $d_k$ directions.)
#
# With $d_k = 1$ a query can ask only for the largest or for the smallest key, and never for a value in between, because
# $q k$ only rises or only falls with $k$. With $d_k = 2$ the keys can lie on a circle, where a query can point at any
# of them, so any *single* word can win. But with 100 equally spaced keys the runner-up scores 0.998 times as much as
# the winner, so only very long queries or keys can separate the two.
#
# Nor is every matrix of weights possible in a long sentence. Each row of its scores is a mixture of $d_k$ rows, those
# of $K^\top$. The logarithm of a weight is its scaled score minus one number for its row, so a row of logarithms is a
# mixture of the same $d_k$ rows and of $(1, \dots, 1)$. This matrix of logarithms has rank at most $d_k + 1$, so with
# more than $d_k + 1$ words not every matrix of weights is possible. This is the **low-rank bottleneck** ([Bhojanapalli
# and others, 2020](https://arxiv.org/abs/2002.07028)).

# %% tags=["proof"]
narrow_q, narrow_k = rng.standard_normal((2, 16, 4))
assert np.linalg.matrix_rank(narrow_q @ narrow_k.T) == 4
assert round(np.cos(2 * np.pi / 100), 3) == 0.998

# %% [markdown]
# ### What else do heads do, and can they be removed?
#
# Clark and others (2019) found heads in BERT's middle and higher layers that follow *syntax*, from an object to its
# verb or from an article to its noun, and one that leads from a mention, such as a pronoun, to an earlier mention of
# the same thing. In language models some heads attend to what followed an earlier copy of the same token (*induction
# heads*, [chapter 18](18_gpt.ipynb)).
#
# In the first layer of MiniLM, in our three sentences, six of the twelve heads give more than a quarter of their weight
# to `[CLS]`. Clark and others found that in BERT, a larger model with layers of the same kind, early heads often attend
# to `[CLS]`, and those of middle layers to `[SEP]`. They suspect that a head looks there, at `[SEP]` above all, when it
# finds nothing relevant: its weights sum to 1, so they must go somewhere. Such a token has since been called an
# *attention sink*. If its value is nearly 0, the head then adds almost nothing.
#
# Can heads be removed? Michel and others removed heads one at a time from a trained translation model: of the 96 heads
# in its encoder, only 8 changed the BLEU score significantly when removed, four of them for the better. That does not
# mean that one would be enough everywhere: each was removed while the others stayed, and these may do its work. So a
# head that can be removed alone need not be idle, and removing several at once can do harm. Some layers, they found,
# can be cut to a single head, while cross-attention depends more on having several. Many can be removed together: Voita
# and others pruned 38 of the 48 heads in a translation model's encoder, while training it further, and lost 0.15 BLEU.
# Yet models built with few heads from the start did worse than models pruned down to them ([Behnke and Heafield,
# 2020](https://aclanthology.org/2020.emnlp-main.211/)). So pruning shows what the *trained* model can do without. A
# head that can be removed afterwards may still have helped training to get there.

# %% [markdown]
# ### Break it: merged without the swap
#
# After attention the heads are merged: first swap, then reshape. If you forget the swap, `reshape` alone gives the
# right shape here, too, but the wrong numbers. Head 1 holds $(1, 2)$ and $(5, 6)$, head 2 $(3, 4)$ and $(7, 8)$:
# reshaped without the swap, the first word's row is $(1, 2, 5, 6)$ instead of $(1, 2, 3, 4)$.
#
# `split_heads` and `merge_heads` are the two steps of the folded full version. `sequence` is five random words of width
# 16, and `w_q` to `w_o` are random, too.
#
# **Predict first.** Chapter 4 had checks for such mistakes: the shape; that the weights sum to 1; that shuffled words
# give shuffled outputs; that the loop agrees. Which of them notice this one?


# %% tags=["nbval-check-output"]
def attention_with(merge):
    def attention(x):
        q, k, v = (split_heads(x @ w, 4) for w in (w_q, w_k, w_v))
        heads, weights = scaled_dot_product_attention(q, k, v)
        return merge(heads) @ w_o, weights

    return attention


heads = cut_heads(w_q, w_k, w_v, 4)
by_loop, _ = heads_by_loop(sequence, heads)
order = np.array([3, 0, 4, 1, 2])
print(f"{'':24} shape  rows sum to 1  shuffle  equals the loop")
for name, merge in [
    ("correct", merge_heads),
    ("reshape without swap", lambda h: h.reshape(5, 16)),
]:
    output, weights = attention_with(merge)(sequence)
    passed = [
        output.shape == sequence.shape,
        np.allclose(weights.sum(axis=-1), 1),
        np.allclose(attention_with(merge)(sequence[order])[0], output[order]),
        np.allclose(output, by_loop @ w_o),
    ]
    verdicts = ["ok" if ok else "CAUGHT" for ok in passed]
    print("{:24}{:>6}{:>15}{:>9}{:>17}".format(name, *verdicts))

# %% [markdown]
# The check of the shape misses it, and so does the check of the sums, because the weights are computed before the
# merge. Shuffling detects the mistake, and needs no reference. Why? Before $W_O$, the first row should hold what four
# heads give for the first word, 4 numbers each. Without the swap, its 16 numbers are what the first head gives for the
# first *four words*. So a word's output depends on which words stand where. (Shuffle without a causal mask: with one,
# correct heads depend on the order, too.) And even under a causal mask the first word would receive what belongs to
# words 2 to 4, its future. So here is another test without a reference: under a causal mask, change a later word, and
# no earlier output may change. (Test with several heads, because with one the swap moves nothing, and the mistake is
# hidden.)

# %% tags=["proof"]
wrong = attention_with(lambda h: h.reshape(5, 16))
assert not np.allclose(wrong(sequence[order])[0], wrong(sequence)[0][order])

# %% [markdown]
# ### Short answers
#
# - **Why concatenate the heads, and not average them?** An average loses which head found what: $(1, 0)$ from head 1
#   and $(0, 1)$ from head 2 have the average $(0.5, 0.5)$, and so have $(0, 1)$ and $(1, 0)$. After concatenating,
#   $W_O$ can still average, because averaging is linear.
# - **What happens if scores are divided by $\sqrt D$ by mistake?** No error, because shapes and row sums stay right.
#   With $d_k = D / H$ scores are too small by a factor of $\sqrt H$ (2.8 with eight heads), so the weights are too
#   even. Training can make up for it with larger queries. A published model's parameters give wrong outputs.
# - **Must $H \cdot d_k$ equal $D$?** No, because $W_O$ may have the shape $(H d_k, D)$, and still returns $D$ numbers.
#   The largest T5 has $D = 1024$ but 128 heads of 128, which hand over 16,384 numbers ([Raffel and others,
#   2020](https://arxiv.org/abs/1910.10683)). The price is 16 times as many parameters and multiplications in the
#   projections as with $H d_k = D$. With $d_k = D$ it would be $H$ times.
# - **Do eight heads of 64 compare like one of 512?** No, because each head has its own softmax. Scaled scores
#   $(5, 5, 0)$ in one head and $(5, 0, 5)$ in another give word 1 a weight of 0.498 each time. One head of double
#   width, which divides by a root $\sqrt 2$ times as large, would give it 0.945.
# - **Are heads there to make the computation parallel?** No. One head already computes all words at once, because
#   attention is a few matrix products. Heads are there to give each word several averages.
# - **Can I change the number of heads of a trained model?** You can remove some
#   ([above](#what-else-do-heads-do-and-can-they-be-removed)), but not cut the same matrices into more. The parameters
#   of `MultiHeadAttention(12, 3)` load into `MultiHeadAttention(12, 4)` without an error, because all shapes agree. But
#   the rows are cut elsewhere, and $d_k$ changes, so the outputs are wrong. A comparison with the original's shows it.
# - **May I look at the weights averaged over the heads?** With care: the average can show a pattern that no head has.
#   If head 1 gives $(1, 0, 0)$ and head 2 $(0, 0, 1)$, it is $(0.5, 0, 0.5)$. And a head whose values are nearly 0
#   counts as much as any other.
# - **Should all heads have the same mask?** For what must stay hidden, yes: a single head that sees a later word can
#   hand it on through $W_O$. Otherwise heads may differ. ALiBi ([chapter
#   5](05_position.ipynb#other-ways-to-encode-the-distance)) subtracts a different multiple of the distance in each:
#   with 8 heads ½, ¼, …, 1/256.
# - **Does head 3 of the next layer continue this layer's head 3?** Not in particular. Through $W_O$ every head can
#   write into all $D$ numbers, and every head of the next layer reads all $D$. So head 3 there may equally well use
#   what head 1 found here.
# - **Does a term in the loss make heads differ?** Not in the transformer of 2017, which was trained only to predict its
#   translations. Rewarding heads that differ has been tried, and was reported to improve translation ([Li and others,
#   2018](https://arxiv.org/abs/1810.10183)).
# - **Does a head always look for the same thing?** Not necessarily, because its matrices are fixed but its queries
#   depend on the words. In one head a verb's query may ask for a noun, and a noun's query for an adjective. And several
#   heads may look for the same thing, because their outputs are added.
# - **Which of the four biases matter?** The query's and the output's. A key's bias adds the same number to all scores
#   of a row, so the softmax cancels it (with rotary positions it does not). A value's bias arrives unchanged, because
#   weights sum to 1, so the output's bias can replace it.

# %% tags=["proof"]
one, other = np.array([5, 5, 0]), np.array([5, 0, 5])
assert softmax(one)[0].round(3) == softmax(other)[0].round(3) == 0.498
assert (
    softmax((one + other) / 2**0.5)[0].round(3) == 0.945 and round(8**0.5, 1) == 2.8
)
three, four = MultiHeadAttention(12, 3), MultiHeadAttention(12, 4)
four.load_state_dict(three.state_dict())
x = torch.randn(1, 5, 12)
assert not torch.allclose(three(x, x, x), four(x, x, x), atol=1e-3)
