# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 1. Why attention?
#
# Before attention, networks mostly read text the way you listen to a stranger reading out a telephone number: one digit
# at a time, holding on to what you can. By the end of this chapter you will have run untrained networks that read like
# that, and measured how fast they forget and how much they can hold.
#
# You need a little Python, the product of two matrices, and the ideas of a derivative, a variance and a correlation.
# The chapter takes about 28 minutes to read, and 25 for the exercises. [Going further](#going-further), at the end,
# takes 10 more minutes. In a hurry? Read [One number of memory](#one-number-of-memory), [The other
# way](#the-other-way-keep-everything-and-look) and [The network of 2014](#the-network-of-2014).

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer, an encoder and a decoder with one attention block magnified. No box is filled: this chapter says why it is worth building."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=1)

# %% [markdown]
# This is what the book builds. This chapter shows what attention replaced, and then the idea of attention.
#
# ## Which word would you keep?
#
# *A Lannister always pays his debts.* You may keep a single word of this sentence. Which?
#
# *Lannister* is a good choice: it carries most of what is special here. But suppose that somebody then asks what it
# is that gets paid. Now you want *debts*. And how often? *Always*. No word is the most important one in itself: that
# depends on the question, and the question comes *after* the sentence.
#
# People answer such questions by looking back at what they have read. A network can look back only if the words are
# still there, and in the networks of the next four sections they are not. Attention was invented so that a network
# could look back.
#
# ## One number of memory
#
# A network reads each word as a vector of numbers, its **embedding** ([chapter 2](02_similarity.ipynb)). A **recurrent
# network** (RNN) reads a sequence one word at a time and keeps a **state**, a vector of fixed size. Each word changes
# the state; then the word is gone. What the network says at the end, such as a prediction of the next word, it computes
# from the state. In the smallest example state and word are single numbers, $h$ and $x$. Each step halves the state and
# adds the new word:
#
# $$h_t = 0.5 \, h_{t-1} + x_t .$$
#
# **Predict first.** After four words, how much of the first is left in $h_4$?
#
# The code changes one word a little (a nudge), reads again, and divides the change of the state by the nudge. For a
# tiny nudge this ratio is the derivative, which says how much the state depends on the word: we call it the word's
# **influence**. *0 back* means the latest word:

# %%
import numpy as np


def read(words):
    state = 0.0
    for word in words:
        state = 0.5 * state + word
    return state


nudge = 1e-6
influence, before = [], read([3.0, 1.0, 4.0, 1.0])
for back in range(4):
    words = np.array([3.0, 1.0, 4.0, 1.0])
    words[3 - back] += nudge
    after = read(words)
    influence.append((after - before) / nudge)
print("moved by the word 0, 1, 2, 3 back:", np.round(influence, 3))
assert np.allclose(influence, [1, 0.5, 0.25, 0.125])

# %% [markdown]
# An eighth is left. Starting from $h_0 = 0$, $h_4 = x_4 + 0.5 \, x_3 + 0.25 \, x_2 + 0.125 \, x_1$. The word $k$ steps
# back has the factor $0.5^k$, and that factor is its influence: $\partial h_4 / \partial x_{4-k} = 0.5^k$. (With 0.9 in
# place of 0.5, $0.9^{20} = 0.12$ is left after 20 steps.)
#
# Why not multiply by 1? Then nothing fades, but after a thousand words the state is the sum of all thousand, and no
# single one can be read off. Whatever the factor, one number of limited precision cannot hold a thousand: a memory of
# fixed size is a *bottleneck*. So we ask how fast it forgets, and how much it holds.
#
# ## Two cells
#
# A real state is a vector. The function that computes the new state from the old one and the word is called a **cell**.
# The plain cell (that of a *vanilla* or *Elman* RNN) mixes the word $x$ and the state $h$ with two matrices, and
# squeezes the result between −1 and 1. Why squeeze? Without it each word would add a term of its own to the state,
# whatever the other words are, so *good* would add the same after *not* as after *very*. The squeeze, the function
# $\tanh$, is steep near 0 and flat far from it. So the effect of *good* depends on the state, and *not* has changed the
# state. The new state is $h'$:
#
# $$h' = \tanh(x W_x + h W_h + b) .$$
#
# Vectors are rows in this book, so they stand left of a matrix. The same $W_x$, $W_h$ and $b$ (the **bias**) serve at
# every step, so the number of parameters does not depend on the length of the sequence.
#
# How long does a plain cell keep a word? A nudged word leaves the state changed a little, and each later step
# multiplies this change by $W_h$, the same matrix whatever the word, and by the slope of $\tanh$, which is at most 1.
# So a plain cell can hardly choose, word by word, what to keep. The best-known repair is the **LSTM** (long short-term
# memory). It adds a second state, the **cell state** $c$. On the direct path from $c$ to the new $c'$ there is no
# matrix and no $\tanh$:
#
# $$c' = f \odot c + i \odot g .$$
#
# The sign $\odot$ multiplies entry by entry. The share $f$ of the old $c$ stays, and the share $i$ of something new,
# $g$, is added. For example, with $c = 2$, $f = 0.9$, $i = 0.1$ and $g = -1$ the cell state becomes $1.8 - 0.1 = 1.7$.
#
# Along this path a change is multiplied only by $f$, which is computed for each word: near 1 to keep, near 0 to forget.
#
# The state $h$, also called the **hidden state**, is here what the cell shows of its memory: $h' = o \odot \tanh c'$.
# While $o$ is near 0, a number can stay in $c$ unseen, and be used later. The vectors $f$, $i$, $o$ and $g$ are
# computed from $x$ and $h$, each with a $W_x$, a $W_h$ and a $b$ of its own:
#
# | | name | says | computed as |
# |---|---|---|---|
# | $f$ | **forget gate** | what share of $c$ stays | $\sigma(x W_x + h W_h + b)$ |
# | $i$ | **input gate** | what share of $g$ is let in | the same |
# | $o$ | **output gate** | what share of $\tanh c'$ is shown | the same |
# | $g$ | **candidate** | what is new | $\tanh(x W_x + h W_h + b)$ |
#
# A **gate** is a vector of numbers between 0 and 1, since $\sigma(z) = 1 / (1 + e^{-z})$ always lies there. (The
# **GRU** is a smaller relative, with two gates and no second state. Its $h' = u \odot h + (1 - u) \odot g$ is a sum
# like $c'$: with the gate $u$ near 1 it keeps nearly all of $h$.) Here is the whole cell as a picture:

# %% tags=["plot"] mystnb={"image": {"alt": "An LSTM cell. Along the top the cell state c goes from left to right: it is multiplied by the forget gate f, then the input gate times the candidate, i times g, is added, and it leaves as c prime. Below, the word x and the hidden state h enter a box that computes f, i, g and o. From the new cell state a line goes down through tanh and a multiplication by o, and leaves as the new hidden state h prime."}}
from classroom.diagram import Diagram

drawing = Diagram(7.2, 2.5)
drawing.text(0.45, 2.1, "c")
drawing.arrow((0.65, 2.1), (1.55, 2.1), color=plots.BLUE)
drawing.box(1.95, 2.1, "× f", 0.7)
drawing.arrow((2.32, 2.1), (3.35, 2.1), color=plots.BLUE)
drawing.sum(3.5, 2.1)
drawing.arrow((3.65, 2.1), (6.55, 2.1), color=plots.BLUE)
drawing.text(6.8, 2.1, "c′")
drawing.text(0.45, 0.7, "x, h")
drawing.arrow((0.8, 0.7), (1.45, 0.7))
drawing.box(2.6, 0.7, "gates and g, from x and h", 2.2, 0.44)
drawing.arrow((1.95, 0.95), (1.95, 1.88), color=plots.RED)
drawing.text(1.72, 1.4, "f", color=plots.RED)
drawing.arrow((3.5, 0.95), (3.5, 1.93), color=plots.RED)
drawing.text(3.95, 1.4, "i ⊙ g", color=plots.RED)
drawing.arrow((4.9, 2.1), (4.9, 1.62), color=plots.BLUE)
drawing.box(4.9, 1.4, "tanh", 0.8)
drawing.arrow((4.9, 1.2), (4.9, 0.92), color=plots.BLUE)
drawing.box(4.9, 0.7, "× o", 0.7)
drawing.arrow((3.72, 0.7), (4.5, 0.7), color=plots.RED)
drawing.text(4.1, 0.88, "o", color=plots.RED)
drawing.arrow((5.27, 0.7), (6.55, 0.7))
drawing.text(6.8, 0.7, "h′")
plt.show()

# %% [markdown]
# In code a step of the plain cell is one line. The whole cells are folded below. (As in PyTorch they have two biases,
# whose sum is $b$. [Chapter 2](02_similarity.ipynb#multiply-and-add) explains the notation for shapes.)
#
# ```python
# hidden = np.tanh(x @ w_x + hidden @ w_h + b)
# ```

# %% tags=["export", "hide-input"] module="by_hand.recurrence"
import numpy as np
from dotformer.support.shapes import shapes
from jaxtyping import Float


@shapes
def rnn_cell(
    x: Float[np.ndarray, "*batch D"],
    hidden: Float[np.ndarray, "*batch H"],
    w_x: Float[np.ndarray, "D H"],
    w_h: Float[np.ndarray, "H H"],
    b_x: Float[np.ndarray, " H"],
    b_h: Float[np.ndarray, " H"],
) -> Float[np.ndarray, "*batch H"]:
    """One step of a plain recurrent network: from word and state to the new state.

    Equal to `torch.nn.RNNCell` with its weights transposed. After Elman (1990).
    """
    return np.tanh(x @ w_x + b_x + hidden @ w_h + b_h)


# %% tags=["export", "hide-input"] module="by_hand.recurrence"
@shapes
def sigmoid(z: Float[np.ndarray, "*batch H"]) -> Float[np.ndarray, "*batch H"]:
    """1 / (1 + e^-z) for every entry of z: between 0 and 1."""
    return np.exp(-np.logaddexp(0, -z))  # e^(-ln(1 + e^-z)): no overflow


@shapes
def lstm_cell(
    x: Float[np.ndarray, "*batch D"],
    hidden: Float[np.ndarray, "*batch H"],
    cell: Float[np.ndarray, "*batch H"],
    w_x: Float[np.ndarray, "D 4*H"],
    w_h: Float[np.ndarray, "H 4*H"],
    b_x: Float[np.ndarray, " 4*H"],
    b_h: Float[np.ndarray, " 4*H"],
) -> tuple[Float[np.ndarray, "*batch H"], Float[np.ndarray, "*batch H"]]:
    """One step of an LSTM: the new hidden state h and the new cell state c.

    Equal to `torch.nn.LSTMCell` with its weights transposed. After Hochreiter and
    Schmidhuber (1997), with the forget gate of Gers and others (2000).
    """
    gates = x @ w_x + b_x + hidden @ w_h + b_h
    i, f, g, o = np.split(gates, 4, axis=-1)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


# %% [markdown]
# ## How fast do they forget?
#
# Training follows derivatives, so it hardly learns from a word that hardly moves the last state. How far, then, does the
# last state move when a word is nudged? Each network reads 100 random words, vectors of 8 standard normal numbers.
# Nothing is trained: these are weights from which training would start.
#
# Nudge a word in each of its 8 numbers in turn, and see how each number of the last state moves. Each move, divided by
# the nudge, is a derivative. Together they form a matrix, the *Jacobian*, with a row for each number of the word and a
# column for each number of the state (most texts have its transpose). Write $s_t$ for the whole state after step $t$:
# in the plain cell $h$, in the LSTM $h$ and $c$. By the chain rule the Jacobian is a product with a factor for each
# step:
#
# $$\frac{\partial s_t}{\partial x_{t-k}} = \frac{\partial s_{t-k}}{\partial x_{t-k}} \;
# \frac{\partial s_{t-k+1}}{\partial s_{t-k}} \cdots \frac{\partial s_t}{\partial s_{t-1}} .$$
#
# So if a typical step keeps a half, $0.5^k$ is left. The plain cell's state has $H = 24$ numbers, the LSTM's 48. A
# word's *influence* is now the size of its Jacobian (the root of the sum of the squared entries), divided by that of
# the latest word. So the latest word has influence 1 in every network, and the networks can be compared. We show the
# median of eight networks with different random weights.
#
# How weights start is called **initialisation**. We compare:
#
# | row | start |
# |---|---|
# | *plain*, *LSTM* | as in PyTorch: every entry of the matrices and biases uniform between $-1/\sqrt{H}$ and $1/\sqrt{H}$ |
# | *plain, orthogonal* | to forget less: $W_h$ is **orthogonal**, a rotation with or without a reflection, which leaves every length as it is |
# | *LSTM, gate open* | to forget less: 3 added to the forget gate's bias, so $f$ starts at about $\sigma(3) = 0.95$ |
#
# **Predict first.** In the plain cell with PyTorch's initialisation, how much influence does the word 20 steps back
# have, compared with the latest: about a fifth, a hundredth, or less than a ten-thousandth? (In the output, 1.0e-02 is
# a hundredth.)


# %% cells to compare, and a Jacobian by nudging tags=["hide-input"]
def lstm_step(x, state, *weights):
    """The LSTM with both states in one vector, so that all cells are called alike."""
    hidden, cell = np.split(state, 2, axis=-1)
    return np.concatenate(lstm_cell(x, hidden, cell, *weights), axis=-1)


def start_parameters(rng, blocks, width=8, size=24, forget=0.0):
    """Parameters as PyTorch draws them: 1 block of columns, or an LSTM's 4.

    `forget` is added to the bias of the second, the forget gate's.
    """
    bound, columns = size**-0.5, blocks * size
    sizes = [(width, columns), (size, columns), (columns,), (columns,)]
    weights = [rng.uniform(-bound, bound, each) for each in sizes]
    weights[2][size : 2 * size] += forget
    return weights


def network(name, rng):
    """A step, its weights, and how many numbers its state has."""
    if name.startswith("LSTM"):
        forget = 3.0 if name.endswith("open") else 0.0
        return lstm_step, start_parameters(rng, blocks=4, forget=forget), 48
    weights = start_parameters(rng, blocks=1)
    if name == "plain, orthogonal":
        weights[1] = np.linalg.qr(rng.standard_normal((24, 24)))[0]
    return rnn_cell, weights, 24


def jacobian(function, point, nudge=1e-6):
    """Derivatives of results with respect to entries: (entries, results)."""
    nudges = nudge * np.eye(len(point))
    return (function(point + nudges) - function(point - nudges)) / (2 * nudge)


def influence_by_distance(name, seed, words=100, cut=False):
    """How much the last state depends on the word 0, 1, 2, ... back.

    With `cut`, not by way of an LSTM's h from step to step.
    """
    rng = np.random.default_rng(seed)
    step, weights, size = network(name, rng)
    text = rng.standard_normal((words, 8))
    states = [np.zeros(size)]
    for word in text:
        states.append(step(word, states[-1], *weights))
    sizes, chain = [], np.eye(size)  # chain: the steps after the one at hand
    for word, state in zip(text[::-1], states[-2::-1], strict=True):
        one_step = jacobian(
            lambda rows: step(rows[:, :8], rows[:, 8:], *weights),
            np.concatenate([word, state]),
        )
        sizes.append(np.linalg.norm(one_step[:8] @ chain))
        if cut:
            one_step[8:32] = 0
        chain = one_step[8:] @ chain
    return np.array(sizes) / sizes[0]


names = ["plain", "LSTM", "plain, orthogonal", "LSTM, gate open"]
influence = {}
for name in names:
    runs = [influence_by_distance(name, seed) for seed in range(8)]
    influence[name] = m = np.median(runs, axis=0)
    print(f"{name:18}", *(f"{k} back {m[k]:.1e}  " for k in (1, 5, 20, 40)))

# %% [markdown]
# Less than a ten-thousandth. The LSTM keeps about 30 times as much, still below a ten-thousandth. A sentence has about
# twenty words, so at its end its first word would have almost no effect in such an untrained network. Training can open
# gates and change $W_h$, and a trained LSTM reaches further. But it has to learn this from derivatives that start so
# small.
#
# Why so small? At each step a small change of the state is multiplied by $W_h$, and then each entry by the slope of
# $\tanh$. At this start $W_h$ shrinks a typical change to $1/\sqrt 3 = 0.58$ of its length
# ([derived](#four-explanations)). The slope, averaged over the states of 200 random texts, leaves 0.86 of that.
# Together they predict $0.58 \cdot 0.86 = 0.50$ a step. The folded code measures both factors, and how much is really
# left:


# %% matrix, slope and both, along 200 texts tags=["hide-input"]
def slope_and_matrix(kind, seed):
    """Mean slope of tanh over 200 texts, and what the matrix keeps of a change."""
    step, weights, size = network(kind, np.random.default_rng(seed))
    states = np.zeros((200, size))
    for words in np.random.default_rng(seed).standard_normal((50, 200, 8)):
        states = step(words, states, *weights)
    shrinks = np.linalg.norm(weights[1]) / size**0.5
    return (1 - states**2).mean(), shrinks  # tanh' = 1 - tanh²


slope, shrinks = np.mean([slope_and_matrix("plain", n) for n in range(8)], axis=0)
a_step = (influence["plain"][20] / influence["plain"][5]) ** (1 / 15)
print(f"slope {slope:.2f}, matrix {shrinks:.2f}, measured {a_step:.2f} a step")
assert abs(slope - 0.86) < 0.02 and abs(shrinks - 0.58) < 0.02
turned = [slope_and_matrix("plain, orthogonal", n) for n in range(8)]
assert np.allclose(np.mean(turned, axis=0), [0.8, 1], atol=0.03)
gated = (influence["LSTM"][20] / influence["LSTM"][5]) ** (1 / 15)
assert 0.55 < gated < 0.7
assert abs(a_step - 0.52) < 0.01
by_seed = [network("plain", np.random.default_rng(n))[1][1] for n in range(8)]
largest = [np.abs(np.linalg.eigvals(w_h)).max() for w_h in by_seed]
assert 0.55 < np.median(largest) < 0.65
once, twice = (
    [np.linalg.norm(np.linalg.matrix_power(w_h, n), ord=2) for w_h in by_seed]
    for n in (1, 2)  # the largest singular values
)
assert np.median(once) > 1 > max(twice)
turning = np.array([[0, 1.1], [0.3, 0]])
assert np.allclose(np.array([1, 0]) @ turning @ turning, [0.33, 0])
assert np.allclose(np.abs(np.linalg.eigvals(turning)), 0.33**0.5)

# %% [markdown]
# The measured 0.52, between 5 and 20 back, is close to that. A constant factor for each step is **exponential** fading:
# $0.52^{20}$ is two millionths.
#
# So much for the plain cell. An orthogonal $W_h$ keeps every length, so only the slope of $\tanh$ is left, and that is
# below 1 wherever the state is not 0.
#
# The sum inside an LSTM's forget gate is spread around 0, so the gate stands about half open, $\sigma(0) = \frac12$.
# But a change of $c$ also changes $h$, and $h$ enters the next gates and so the next $c$: this *path through $h$* adds
# some more ([measured](#four-explanations)). With the gate held open, $f$ is about 0.95. Here are all four side by
# side, between 5 and 20 back:
#
# | | the matrix or the gate keeps | and then | a step |
# |---|---|---|---|
# | plain | 0.58 | times the slope, 0.86 | about 0.5 |
# | LSTM | about ½ | and more on a path through $h$ | 0.64 |
# | plain, orthogonal $W_h$ | 1 | times the slope, about 0.8 | 0.8 |
# | LSTM, gate open | 0.95 | and more on the path through $h$ | about 0.97 |
#
# The path along $c$ is a product, too, of gates, and a gate $\sigma(z)$ stays below 1. So it still fades, only more
# slowly: after 1,000 steps at 0.99, $0.99^{1000} \approx 0.00004$ is left. To keep a number for 1,000 steps, training
# must push the gate almost to 1.
#
# Influence decides what is learned easily. Training moves each parameter against the *gradient*, the derivative of the
# error. A parameter serves at every step, so its gradient is a sum with a term for each step (*backpropagation through
# time*). Say that the error depends only on the last state. What the parameter did $k$ steps back reaches the error
# only through the states from there on. So the term of that step contains the chain of their Jacobians. If this chain
# has shrunk to $10^{-6}$, the term is next to nothing beside the others, and training hardly responds to that step: the
# **vanishing gradient**. It made plain networks hard to train on **long-range dependencies**, where the right answer
# depends on a word far back. The LSTM was invented to overcome it.
#
# Where each step multiplies by more than 1, the gradient grows instead. Fifty factors of 0.9 leave half a percent, but
# fifty of 1.1 make 117: this is the **exploding gradient**. In training the loss can then leap up or become NaN (*not a
# number*). **Clipping** helps: a gradient that is longer than a limit is scaled down to it ([chapter
# 11](11_training.ipynb#clipping)). It does not help against vanishing, because the far words' share of the gradient
# stays as small as it was.

# %% tags=["proof"]
assert influence["plain"][20] < 1e-5 and influence["LSTM"][20] < 1e-4
assert influence["plain, orthogonal"][20] > 3000 * influence["plain"][20]
assert 0.25 < influence["LSTM, gate open"][40] < 0.45
assert 0.4 < influence["LSTM, gate open"][20] < 0.6
open_gate = influence["LSTM, gate open"]
plain, lstm = influence["plain"], influence["LSTM"]
turned = influence["plain, orthogonal"]
assert (
    1.5e-6 < plain[20] < 2.5e-6
    and 5e-5 < lstm[20] < 7e-5
    and 25 < lstm[20] / plain[20] < 40
)
assert round((turned[20] / turned[5]) ** (1 / 15), 1) == 0.8
assert abs((lstm[20] / lstm[5]) ** (1 / 15) - 0.64) < 0.01
assert open_gate[1] < 0.85
assert round((open_gate[5] / open_gate[1]) ** (1 / 4), 2) == 0.96
assert round((open_gate[20] / open_gate[5]) ** (1 / 15), 2) == 0.97
assert 0.98 <= (open_gate[40] / open_gate[20]) ** (1 / 20) < 0.99
for name, rate in (("LSTM", 0.55), ("LSTM, gate open", 0.95)):
    runs = [influence_by_distance(name, seed, cut=True) for seed in range(8)]
    without_h = np.median(runs, axis=0)
    assert round((without_h[20] / without_h[5]) ** (1 / 15), 2) == rate
assert round(open_gate[40], 2) == 0.35
others = [
    influence_by_distance("LSTM, gate open", seed, words=words)[40]
    for words in (100, 150, 300)
    for seed in range(8)
]
assert [round(end(others), 1) for end in (min, max)] == [0.2, 0.8]

# %% [markdown]
# ## How much do they hold?
#
# A better start makes influence last longer. But influence is not yet memory. The last state may *depend* on the word
# 40 steps back, but can you tell from this state what the word was?
#
# Let each cell read 4,000 random texts of 50 words, each word of 8 independent numbers. Then predict the word $k$ back
# from the last state, with one matrix fitted by least squares (a *linear probe*). $R^2$ is the share of a number's
# variance that the prediction explains: 1 is perfect recall, 0 is none.
#
# The table shows $R^2$, averaged over a word's 8 numbers: the median of three networks. For example, 0.98 in the first
# row stands for $0.98 \cdot 8 = 7.8$ numbers of the latest word. The last column adds up all words: the **memory
# capacity**.
#
# **Predict first.** A word has 8 numbers, and the state of a plain cell 24. How many numbers can a linear fit recall
# from that state, at most? (Two numbers that are each recalled with an $R^2$ of 0.5 count as one.)


# %% what a linear fit recalls from the last state tags=["hide-input"]
def after_reading(name, seed, texts, words):
    """The words (words, texts, 8) of random texts, and the last states (texts, H)."""
    rng = np.random.default_rng(seed)
    step, weights, size = network(name, rng)
    read = rng.standard_normal((words, texts, 8))
    state = np.zeros((texts, size))
    for word in read:
        state = step(word, state, *weights)
    return read, state


def recall_by_distance(name, seed, texts=4000, words=50, part=slice(None)):
    """R² of the best linear fit of the word 0, 1, 2, ... back to the last state."""
    read, state = after_reading(name, seed, texts, words)
    state = state[:, part]
    size = state.shape[1]
    basis, _ = np.linalg.qr(state - state.mean(axis=0))
    read = read - read.mean(axis=1, keepdims=True)
    explained = ((basis.T @ read) ** 2).sum(axis=1) / (read**2).sum(axis=1)
    # even a fit to noise explains a share; it is taken off, as in the adjusted R²
    chance = size / texts
    return ((explained - chance) / (1 - chance)).mean(axis=1)[::-1]


recall, sums = {}, {}
print("R² of the word, back   0     1     2     3    10    40    numbers recalled")
rng = np.random.default_rng(0)
for name in names:
    size = network(name, rng)[2]
    runs = np.array([recall_by_distance(name, seed) for seed in range(3)])
    recall[name] = r = np.median(runs, axis=0)
    sums[name] = 8 * np.median(runs.sum(axis=1))
    shown = "".join(f"{max(r[k], 0):6.2f}" for k in (0, 1, 2, 3, 10, 40))
    print(f"{name:18}{shown}    {sums[name]:.1f} of {size}")

# %% [markdown]
# At most 24: **a linear fit to a state of $N$ numbers recalls at most $N$ of the independent numbers that were read**,
# whatever the weights. The smallest case shows why. Let the state be one number that has read two independent ones of
# variance 1, $h = x_1 + x_2$. A linear fit to $h$ explains half of the variance of each. With $h = 2 x_1 + x_2$ the
# shares are 0.8 and 0.2. They sum to 1, and with a $\tanh$ to at most 1. So one number has a budget of 1 to share among
# all that it has read. A state of 24 has at most 24 such budgets: if its numbers are correlated, part of what they hold
# is the same ([proof](#why-not-more-than-24)).
#
# Of 24 possible numbers the plain cell recalls 19. The orthogonal one forgets far more slowly, yet with 21 it recalls
# hardly more. It spreads nearly the same memory over more words.
#
# The LSTM with its gate open recalls 2 percent of the word 40 steps back, although the influence of that word was about
# a third. Its $c$ still depends on the old word, but dozens of words are mixed in $c$, and each explains only a small
# share of it. (The LSTM with PyTorch's start recalls only 14 numbers of 48: about two thirds of what its state carries
# are *products* of two numbers read, such as $x_1 x_2$, from which a linear fit recovers neither. [Going
# further](#why-only-14-of-48) has the details.)
#
# Training might choose what is worth keeping on average, *Lannister* rather than *a*, and a gate can choose which words
# stay. But both choose before the question comes, and neither lifts the bound. From a state of 24 numbers a linear fit
# recalls at most three words of 8.
#
# Why not a larger state, then? It holds more, at a price: the state must grow with the text, and in these cells the
# work of each step grows with the square of the state. For a linear fit to recall 50 words of 8 independent numbers, a
# state of 400 is needed. Its $W_h$ is $400 \times 400$, so $W_h$ alone takes 160,000 multiplications a step. For a
# state of 24 it takes 576. And a wider state hardly forgets more slowly: with PyTorch's initialisation $W_h$ keeps 0.58
# of a change per step at every width.
#
# Real words depend on one another, so more of them fit, and a nonlinear fit can recover more. But a state of fixed
# width and precision can take only a fixed number of values, while the number of possible sentences grows exponentially
# with their length. So beyond some length different sentences must share a state, however good the training. Forgetting
# can be slowed, but a state of fixed size stays a bottleneck. One way out is to keep all the words.
#
# (If you train such a network: does it forget, or is its state too small? Early in training, plot the size of the
# error's gradient with respect to the word $k$ steps back, over $k$. If it falls exponentially to almost nothing, the
# gradient vanishes. If it is still large for far words, but a probe cannot recover them, and a wider state helps, the
# state is too small. Later the plot proves less, because a trained network may have learned that far words do not
# matter.)

# %% tags=["proof"]
assert all(sums[name] < network(name, rng)[2] for name in names)
assert 1.4 < sums["LSTM, gate open"] / sums["LSTM"] < 1.6
assert sums["plain"] > 18 and sums["plain, orthogonal"] > 18
assert 0.01 < recall["LSTM, gate open"][40] < 0.03
parts = [slice(0, 24), slice(24, 48)]  # h, c
of_latest = [recall_by_distance("LSTM, gate open", 0, part=p)[0] for p in parts]
assert of_latest[0] > 0.6 > 0.3 > of_latest[1]
kept = [recall[name][[1, 3]] for name in ("plain", "plain, orthogonal")]
assert np.round(kept, 2).tolist() == [[0.81, 0.14], [0.56, 0.33]]
assert 1 < sums["plain, orthogonal"] - sums["plain"] < 2.5 and round(1.1**50) == 117


def with_products(name, texts=6000, back=6):
    """Sum of R² over the latest numbers and over the products of any two of them."""
    read, state = after_reading(name, 0, texts, words=30)
    basis, _ = np.linalg.qr(state - state.mean(axis=0))
    latest = np.concatenate(read[-back:], axis=1)
    one, other = np.triu_indices(latest.shape[1])
    inputs = np.hstack([latest, latest[:, one] * latest[:, other]])
    inputs -= inputs.mean(axis=0)
    explained = ((basis.T @ inputs) ** 2).sum(axis=0) / (inputs**2).sum(axis=0)
    chance = state.shape[1] / texts
    return ((explained - chance) / (1 - chance)).sum()


assert 43 < with_products("LSTM") < 48

_, state = after_reading("LSTM", 0, texts=4000, words=50)
shown, kept = np.split(state - state.mean(axis=0), 2, axis=1)  # h and c
basis, _ = np.linalg.qr(kept)
of_shown = ((basis.T @ shown) ** 2).sum() / (shown**2).sum()
assert round(of_shown, 2) == 0.97
of_kept = [
    recall_by_distance("LSTM", s, part=slice(24, 48)).sum() for s in range(3)
]
assert 11 < 8 * min(of_kept) < 8 * max(of_kept) < 13

# %% tags=["quiz"]
quiz.number(
    "A recurrent network has a state of 512 numbers, and its words are vectors of 64 independent numbers. How many whole words can a linear fit recall from the state, at most?",
    512 // 64,
    tolerance=0.5,
    feedback="Yes: 512 numbers recall 512 numbers, and a word is 64 of them.",
    mistakes=[
        (
            512,
            "That is how many *numbers*. Each word is 64 of them.",
        ),
        (64, "That is the width of one word."),
        (
            3,
            "That was a state of 24 and words of 8. The rule is the same: numbers in the state by numbers in a word.",
        ),
    ],
    otherwise="A state of $N$ numbers recalls at most $N$ numbers, and each word is 64 of them.",
)

# %% [markdown]
# ## The other way: keep everything, and look
#
# Now keep all words. When the question comes, give each word a weight, so that the weights sum to 1, and add up the
# words in these proportions. That is attention: you *attend to* a word as much as its weight says.

# %% tags=["plot"] mystnb={"image": {"alt": "Above, a recurrent network reads A Lannister always pays his debts: an arrow leads from each word to a state below it and from state to state, so that the first word reaches the last state through five others. Below, attention: from each of the six words an arrow leads directly to the answer."}}
from classroom.diagram import Diagram

drawing = Diagram(6.6, 3.3)
at = [0.65 + 1.05 * n for n in range(6)]
for n, word in enumerate("A Lannister always pays his debts".split()):
    drawing.text(at[n], 2.05, word)
    drawing.box(at[n], 2.7, "state", 0.74, 0.34, plots.RED, 10)
    drawing.arrow((at[n], 2.2), (at[n], 2.52))
    if n:
        drawing.arrow((at[n - 1] + 0.37, 2.7), (at[n] - 0.38, 2.7), color=plots.RED)
    drawing.text(at[n], 1.2, word)
    drawing.arrow((at[n], 1.05), (3.3, 0.45), color=plots.BLUE)
drawing.box(3.3, 0.27, "weighted sum", 1.4, 0.34)
drawing.text(0.2, 3.12, "recurrent network", color=plots.RED, at="left")
drawing.text(0.2, 1.55, "attention", color=plots.BLUE, at="left")
plt.show()

# %% [markdown]
# Where do the weights come from? Each word has a score, and its weight is $e^{\text{score}}$, divided by the sum of
# these exponentials over all words. This is a *softmax*; [chapter 3](03_softmax.ipynb) says why the exponential. The
# question will be a vector, too, the **query**, and chapters 2 to 4 let the network compute the scores from it. Here we
# set them by hand.
#
# For *what gets paid?* give *debts* the score 9 and the other five words 0. Then *debts* gets
# $e^9 / (e^9 + 5) = 0.9994$ of the weight, and each other word 0.0001. For *how often?* give the 9 to *always*. The
# words stay, and only the scores change. So far this only picks a word by its position, because we say where to look.
#
# How far back the word stands plays no part. Take 50 random words, and ask for the words 1, 10 and 40 steps back:


# %%
def look_back(words, scores):
    """A blend of all words (n, D), weighted by scores (n,)."""
    weights = np.exp(scores - scores.max())  # against overflow: chapter 3
    return (weights / weights.sum()) @ words


words = np.random.default_rng(0).standard_normal((50, 8))
for back in (1, 10, 40):
    scores = np.where(np.arange(50) == 49 - back, 9.0, 0.0)
    answer, wanted = look_back(words, scores), words[49 - back]
    error = np.linalg.norm(answer - wanted) / np.linalg.norm(wanted)
    print(f"asked for the word {back:2} back: off by {error:.1%} of its length")
    assert error < 0.01

# %% [markdown]
# Any word can be recalled, 1 back or 40, because none was thrown away: 50 words of 8 are 400 numbers, where the
# recurrent networks had 24 or 48.
#
# Influence does not fade with the distance, either. The answer is a sum of weights times words. So as long as the
# scores stay fixed, nudging a word moves the answer by the nudge times that word's weight: one factor, not a product
# over steps. A word of small weight has little influence here, too, but its score decides that, not its distance.
#
# Here are influence and recall of the four recurrent networks as curves. The horizontal line at 1, on the right, is the
# recall of attention that is told where to look, as above. (The recurrent networks are told the distance, too: every
# point was fitted for its own distance.)

# %% tags=["plot"] mystnb={"image": {"alt": "Two panels against words back, 0 to 40. Left, influence on a logarithmic axis: plain and LSTM fall straight, below a ten-thousandth at 20 back; the plain, orthogonal one falls less than half as steeply; the LSTM with its gate open stays above a tenth. Right, recall from 1 to 0: all four curves are near 0 by 10 back, and attention is a horizontal line at 1."}}
colors = dict(
    zip(
        names,
        [plots.RED, plots.TEAL, plots.INK, plots.GREY],
        strict=True,
    )
)
figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.4))
for name, color in colors.items():
    left.plot(influence[name][:41], color=color)
    right.plot(recall[name][:41], color=color)
right.axhline(1, color=plots.BLUE)
right.text(3, 0.92, "attention, told where to look", color=plots.BLUE, fontsize=11)
ends = {
    "plain": (1, 3e-7),
    "LSTM": (32, 4e-6),
    "plain, orthogonal": (16, 6e-2),
    "LSTM, gate open": (16, 1.3),
}
for name, place in ends.items():
    left.text(*place, name, color=colors[name], fontsize=11)
left.set(yscale="log", ylim=(1e-9, 10), xlabel="words back", title="influence")
right.set(ylim=(-0.02, 1.05), xlabel="words back", title="recall, $R^2$")
figure.tight_layout()
plt.show()

# %% tags=["quiz"]
quiz.one_choice(
    "What can attention do that a recurrent network cannot?",
    quiz.wrong(
        "Learn more, because it has more parameters",
        "A layer of attention will have four matrices, a plain cell two, an LSTM eight. It is not the number of parameters: the LSTM has more than attention, and it remembers no more than its state holds.",
    ),
    quiz.wrong(
        "Throw away the words that do not matter",
        "Forgetting is what the recurrent network does. Attention keeps every word and gives each a weight, and the weights are computed for each question.",
    ),
    quiz.right(
        "Draw on any word directly, at any distance",
        "Yes. Which words it draws on is decided when the question is known, and distance plays no part.",
    ),
    quiz.wrong(
        "Shorten the text before it is processed",
        "Nothing is shortened: every word is kept. Attention does *more* work on long texts.",
    ),
)

# %% [markdown]
# ## The network of 2014
#
# The bottleneck hurt in translation. A network for translation had two parts and was called an *encoder-decoder* or
# **sequence-to-sequence** network (*seq2seq*). A recurrent **encoder** read the source sentence, and a recurrent
# **decoder** wrote the translation. From the source the decoder got only the encoder's last state, so everything had to
# fit into one vector before the first word was written. The longer the sentence, the more has to fit in, and
# translations did get worse with length ([Cho and others, 2014](https://arxiv.org/abs/1409.1259)). A state of 8,000
# numbers, and reading the source backwards, helped a lot ([Sutskever and others,
# 2014](https://arxiv.org/abs/1409.3215)). But the size was still fixed, whatever the length.
#
# Here is such a network, reading forwards; German *der Hund beißt ihn* is *the dog bites him*:

# %% tags=["plot"] mystnb={"image": {"alt": "The translation network before attention. The source words the dog bites him go one after the other through four encoder states; the last state, one vector, is all that reaches the decoder, whose states write der Hund beißt ihn."}}
drawing = Diagram(7.4, 1.35)
for n, word in enumerate("the dog bites him".split()):
    x = 0.45 + 0.8 * n
    drawing.text(x, 0.2, word)
    drawing.box(x, 0.85, "", 0.4, 0.34, plots.RED)
    drawing.arrow((x, 0.36), (x, 0.67))
    end = x + 0.6 if n < 3 else 3.42
    drawing.arrow((x + 0.2, 0.85), (end, 0.85), color=plots.RED)
drawing.box(3.9, 0.85, "one vector", 0.94, 0.4)
for n, word in enumerate("der Hund beißt ihn".split()):
    x = 5.0 + 0.7 * n
    drawing.arrow(
        (x - (0.5 if n else 0.62), 0.85), (x - 0.2, 0.85), color=plots.TEAL
    )
    drawing.box(x, 0.85, "", 0.4, 0.34, plots.TEAL)
    drawing.arrow((x, 0.67), (x, 0.36))
    drawing.text(x, 0.2, word)
drawing.text(1.65, 1.25, "encoder", color=plots.RED)
drawing.text(6.05, 1.25, "decoder", color=plots.TEAL)
plt.show()

# %% [markdown]
# Bahdanau, Cho and Bengio kept *all* states of the encoder, $h_1, \dots, h_n$. Before the decoder writes a word, its
# own state $s$ serves as the query (the first $s$ is computed from a state of the encoder). The states of the two
# networks may differ in width and in what each number means, so a small network learns to compare them. It gives each
# $h_j$ a score, $r_j = v \cdot \tanh(s W + h_j U)$, with learned $W$, $U$ and $v$. This is **additive attention**, also
# *Bahdanau attention*. (With $D$ numbers in $s$, $H$ in $h_j$ and $A$ in between, $W$ is $(D, A)$, $U$ is $(H, A)$ and
# $v$ has $A$ numbers; you write it in [exercise 2](#exercise-2-look-back-as-in-2014).) Softmax turns the scores into
# weights $\alpha_j$, which say where to look. What comes back is the weighted sum of the states, the **context vector**
# $c$ (not the cell state of an LSTM):
#
# $$\alpha_j = \frac{e^{r_j}}{\sum_k e^{r_k}}, \qquad c = \sum_{j} \alpha_j \, h_j .$$
#
# The encoder is **bidirectional**: two recurrent networks read the sentence, one from each end, and $h_j$ joins their
# states at word $j$, so it depends on the words on both sides. In the next figure the source sentence is again *the dog
# bites him*, and the decoder is about to write *beißt*, German for *bites*. A thicker arrow is a larger weight (these
# are invented; [chapter 13](13_alignment.ipynb) shows learned ones):

# %% tags=["plot"] mystnb={"image": {"alt": "The network of 2014. Below, four encoder states, h1 to h4, one for each word of the source sentence, with arrows between neighbours in both directions. Above them the decoder's state s, which asks. From each h an arrow leads to the context vector c, the weighted sum; the one from bites is thick, the others are thin. Both c and s lead to the next state, which writes the word beißt."}}
drawing = Diagram(6.8, 3.0)
sources = [0.7, 2.0, 3.3, 4.6]
for n, (x, word) in enumerate(
    zip(sources, "the dog bites him".split(), strict=True)
):
    drawing.text(x, 0.2, word)
    drawing.box(x, 0.85, f"$h_{n + 1}$", 0.8, 0.36, plots.RED)
    drawing.arrow((x, 0.36), (x, 0.66))
    if n:
        drawing.arrow((x - 0.9, 0.92), (x - 0.42, 0.92), color=plots.RED)
        drawing.arrow((x - 0.4, 0.78), (x - 0.88, 0.78), color=plots.RED)
    weight = [0.05, 0.1, 0.8, 0.05][n]
    drawing.arrow((x, 1.04), (2.65, 1.58), color=plots.BLUE, width=0.5 + 4 * weight)
drawing.box(2.65, 1.77, "context $c$", 1.2, 0.36)
for x, state in [(1.0, "$s$"), (4.3, "next $s$")]:
    drawing.box(x, 2.5, state, 0.8, 0.36, plots.TEAL)
drawing.arrow((0.1, 2.5), (0.59, 2.5), color=plots.TEAL)
drawing.arrow((1.41, 2.5), (3.89, 2.5), color=plots.TEAL)
drawing.arrow((1.0, 2.31), (1.0, 1.77), (2.03, 1.77), color=plots.TEAL)
drawing.text(1.45, 1.93, "asks", color=plots.TEAL, size=10)
drawing.arrow((3.26, 1.77), (4.3, 1.77), (4.3, 2.3))
drawing.text(4.3, 2.86, "beißt")
drawing.text(5.6, 0.85, "encoder", color=plots.RED)
drawing.text(5.6, 2.5, "decoder", color=plots.TEAL)
drawing.text(5.6, 1.35, "weights", color=plots.BLUE)
plt.show()

# %% [markdown]
# To write a word, the decoder
#
# 1. scores each $h_j$ with its state $s$, which gives the weights and $c$;
# 2. computes its next state from $s$, $c$ and the word that it wrote last;
# 3. writes the next word from that next state, $c$ and the same last word.
#
# The next state is the new $s$, so the scores change and the decoder looks elsewhere, mostly at the source words that
# it is about to translate. Such a pairing of words is an **alignment** ([chapter 13](13_alignment.ipynb)).
#
# Nobody tells the decoder where to look: it learns this. Every step from the scores to the next word is differentiable,
# so the gradient reaches the scores: where a little more of one source word in the blend would make the right next word
# likelier, training pushes up the score of that source word. If the decoder took only the word with the highest score,
# a form of *hard attention*, a small change of a score would change nothing, and the gradient could not tell where to
# look instead.
#
# But is $c$ not one small vector again? Yes, but there is a new $c$ for each word that is written, another blend of all
# the states, so no single state has to hold everything. And each $h_j$ is one step away from $c$, both for what it
# hands over and for the gradient that comes back. Looking back helped where the old network failed: with attention,
# sentences of 50 words and more were translated no worse than shorter ones.

# %% [markdown]
# How hard is it to learn to pack a text into one vector? We trained five networks to copy strings of 2 to 32 random
# letters (`python -m benchmarks.bottleneck`, half an hour). Encoder and decoder are LSTMs with 32, 64 or 128 numbers in
# $h$ and in $c$. Training takes 2,000 steps, or 6,000 for a second network of width 64. Four decoders get one vector,
# made of the last states of an encoder that reads in both directions; the fifth, of width 32, has attention. The lines
# show the share of letters that are right in new strings, when the decoder is given the right letters before each
# (guessing would get 0.04). They are means of three random starts, with the best of four settings of the training
# (*learning rates*, [chapter 7](07_learning.ipynb)), selected on the same strings.

# %% tags=["plot"] mystnb={"image": {"alt": "Share of letters right against the number of letters to copy, 2 to 32. Without attention all curves start at 1 and fall: width 32 from 8 letters on, to 0.34; width 64 from 10 on, to 0.45; width 128, and width 64 with three times the steps, from 14 on, to 0.57 and 0.60. With attention, at width 32, the line stays at 1."}}
from classroom.measured import measured

copied = measured("bottleneck")
at_best = {}  # of each network: share right (3 seeds, lengths)
for name in dict.fromkeys(run["model"] for run in copied["runs"]):
    by_rate = {}
    for run in copied["runs"]:
        if run["model"] == name:
            by_rate.setdefault(run["learning_rate"], []).append(run["right"])
    at_best[name] = np.array(max(by_rate.values(), key=np.mean))
figure, axes = plt.subplots(figsize=(6.2, 3.2))
for name, color, style, height in (
    ("width 32", plots.RED, "-", 0.31),
    ("width 64", plots.GOLD, "-", 0.43),
    ("width 128", plots.TEAL, "-", 0.54),
    ("width 64, three times the steps", plots.GOLD, "--", 0.63),
    ("attention, width 32", plots.BLUE, "-", 0.98),
):
    means = at_best[name].mean(axis=0)
    axes.plot(copied["lengths"], means, color=color, ls=style)
    label = name.replace("three times the steps", "3 × the steps")
    axes.text(32.6, height, label, color=color, fontsize=9)
axes.set(
    xlabel="letters to copy", ylabel="share right", ylim=(0, 1.08), xlim=(0, 47)
)
axes.set_xticks([2, 8, 16, 24, 32])
plt.show()

# %% [markdown]
# Short strings come out right; the longer a string, the more letters are wrong. A wider state moves the fall to the
# right. Longer training does, too, so at width 64 this is not yet the limit of what a vector can hold. What we see is
# how hard it is to learn to pack all letters into one vector and to unpack them again. With attention nothing has to be
# packed: at width 32 the curve stays at 1, with little more than a third of the parameters of width 64. Training with
# attention takes about one and a half times as long as 2,000 steps at width 64, and half as long as 6,000. (Copying
# suits attention, because each letter written is one letter read.)

# %% tags=["proof"]
ends = {name: round(shares.mean(axis=0)[-1], 2) for name, shares in at_best.items()}
assert list(ends.values()) == [0.34, 0.45, 0.6, 0.57, 1.0]
for name, shares in at_best.items():
    runs = [run for run in copied["runs"] if run["model"] == name]
    rates = sorted({run["learning_rate"] for run in runs})
    mean_at = [
        np.mean([r["right"] for r in runs if r["learning_rate"] == n])
        for n in rates
    ]
    assert len(runs) == 12 and 0 < np.argmax(mean_at) < 3  # the best is inside
    assert shares.shape == (3, 16) and shares.std(axis=0).max() < 0.035
sizes = {run["model"]: run["parameters"] for run in copied["runs"]}
assert 1 / 3 < sizes["attention, width 32"] / sizes["width 64"] < 0.36
times = {run["model"]: [] for run in copied["runs"]}
for run in copied["runs"]:
    times[run["model"]].append(run["seconds"])
spent = {name: np.mean(seconds) for name, seconds in times.items()}
longest = spent["width 64, three times the steps"]
assert 0.4 < spent["attention, width 32"] / longest < 0.55
assert 1.3 < spent["attention, width 32"] / spent["width 64"] < 1.7

# %% [markdown]
# ## The transformer: no recurrence at all
#
# The network of 2014 leaves two problems. Each state is computed from the one before it, so the words must be taken one
# after another. And within the source, and within the translation, the path from one word to another is still long.
#
# The transformer of 2017 keeps the attention and drops the recurrent network around it. It is a stack of **layers**.
# Each layer takes a vector for every word and returns a new one. In a layer each word asks a question of its own,
# computed from its vector by a learned matrix, and looks at the words of its *own* sentence, as the decoder of 2014
# looks at the source: *bites*, for example, may look for who bites. This is *self-attention*. Where a translation is
# written, its words look at the source, too, as before: *cross-attention*.
#
# That removes both problems. When a text is read, all the vectors that a word looks at are there before the layer
# begins, so the layer computes all words at once, and any two words are one step apart. One thing is lost, the order of
# the words, since a weighted sum has none; [chapter 5](05_position.ipynb) puts it back.
#
# In the paper, *Attention Is All You Need*, the transformer translated from English into German better than anything
# before, even ensembles of several models: 28.4 BLEU, a score for translations ([chapter 14](14_translation.ipynb)
# explains it), more than 2 above them.
#
# ## What does it cost?
#
# The same paper compares ways to let $n$ words, vectors of $d$ numbers, exchange information, by three costs:
#
# - the work (*complexity per layer*),
# - the steps that must wait for one another (*sequential operations*),
# - the longest path between two words: how many steps a signal must pass through, each of which may weaken the gradient
#   (*maximum path length*).
#
# | layer | work (multiplications) | sequential steps | longest path |
# |---|---|---|---|
# | recurrent (plain cell) | $2 n d^2$ | $n$ | $n - 1$ |
# | attention | $4 n d^2 + 2 n^2 d$ | 1 | 1 |
#
# The work has two parts. The first is the matrices. To multiply a word by a $d \times d$ matrix takes $d^2$
# multiplications. A plain cell has two such matrices, and attention four: for what a word asks (its *query*), what
# queries are compared with (*key*), what it hands over (*value*), and what becomes of the result (*output*; chapters 4
# and 6). The second part, in attention only, is the $n^2$ pairs of words: comparing the two takes $d$ multiplications,
# and weighting the other's value $d$ more. So the work of attention is **quadratic** in $n$: twice the length doubles
# the first part, as it doubles a plain cell's work, but quadruples the second. The second overtakes the first only
# beyond $n = 2 d$, so in short texts the matrices cost more. Attention takes more work than a plain cell at any length,
# because it has four matrices and the cell two. It takes more than an LSTM, which has eight, beyond $2d$ words: with
# $d = 512$, the width of the original transformer, beyond about a thousand ([counted below](#how-much-work-is-it)).
#
# What attention saves in training is the *waiting*. In training the right translation is known, so its words are read
# all at once, like the source ([chapter 9](09_decoder.ipynb)). But a plain cell or an LSTM needs $h_{t-1}$ before it
# can compute $h_t$. Waiting is costly on a GPU, because most of its thousands of units then stand idle. Even when many
# sentences are read together, one step handles only one word of each, and that is often too little work to fill them.
#
# When attention *writes* a text, it too must produce its words one at a time ([chapter 12](12_generation.ipynb)). It
# then keeps vectors of all earlier words (the *KV cache*): a state, too, but one that grows with the text. So each
# further word costs attention more than the last, while a recurrent cell does the same work for every word. This is one
# reason why recurrent networks are still being developed ([Mamba](#in-one-breath), in the sources). (How many numbers
# must be kept? When text is generated, a plain cell keeps $d$, and attention $2 n d$, a key and a value for each word.
# In training both keep a few times $n d$ for the gradient, and attention also its $n^2$ weights, unless it computes
# them again.)
#
# ### Is attention an infinite memory?
#
# No. It keeps vectors of every word, so a long enough text no longer fits into memory. And weight that is shared among
# more words is *diluted*. Say that one word has the score 9, and all the others 0. It counts as much as
# $e^9 \approx 8{,}100$ of them, so it gets 0.994 of the weight among 50 words, 0.62 among 5,000, and 0.14 among 50,000.
# A larger score makes up for this: among ten times as many words it must be $\ln 10 = 2.3$ larger. And a word within
# reach need not be used: the network must have learned scores that find it.
#
# Nearly every transformer has a maximum text length, its **context length**, set by memory, by cost, or by the
# positions that it was trained on. The layer itself fits any length: **the number of parameters does not depend on the
# number of words**, as in a recurrent network. The $n^2$ weights of attention are not parameters, because it *computes*
# them from the words. What it learns are four $d \times d$ matrices, which serve every word.

# %% tags=["proof"]
shares = [np.exp(9) / (np.exp(9) + n - 1) for n in (50, 5_000, 50_000)]
assert np.allclose(shares, [0.994, 0.62, 0.14], rtol=0, atol=[0.0005, 0.005, 0.005])

# %% tags=["quiz"]
quiz.one_choice(
    "A text is made ten times as long. What happens to an attention layer?",
    quiz.wrong(
        "Nothing: it has access to everything at once, and the path stays 1",
        "The *path* stays 1. The matrix of attention weights has an entry for each pair of words, and there are a hundred times as many.",
    ),
    quiz.wrong(
        "Its number of parameters grows tenfold",
        "Parameters do not depend on the length: the same matrices serve every word. It is the work that grows.",
    ),
    quiz.right(
        "Its matrix of attention weights grows a hundredfold",
        "Yes: every word against every word. The path between any two stays 1.",
    ),
    quiz.wrong(
        "It forgets the beginning, like a recurrent network",
        "Distance alone plays no part in it, as long as no positions are added (chapter 5). Shared among more words, the weight of each is smaller on average, but a good enough match still wins.",
    ),
)

# %% [markdown]
# ## Exercises
#
# Write your answer in the first cell of the exercise, run it, then run the check below it. The check tells you what
# it saw.
#
# ### Exercise 1: How long does it last?
#
# *Easy, 10 minutes.* A memory keeps the share `keep` of its state at each step. With `keep` and `share` strictly
# between 0 and 1, return the smallest number of steps after which less than `share` of a word's influence is left.


# %% tags=["exercise"]
def lasts(keep, share):
    """Smallest whole k with keep**k < share."""
    ...


# %% tags=["check"]
check_lasts = partial(
    checks.check,
    reference=lambda keep, share: next(k for k in range(10**6) if keep**k < share),
    cases=[(0.5, 0.1), (0.9, 0.01), (0.99, 0.455), (0.5, 0.25)],
    mistakes={
        "you return the last step at which the share is still reached: one more": lambda keep, share: (
            max(k for k in range(10**4) if keep**k >= share)
        ),
        "at an exact hit, such as 0.5 squared and 0.25, nothing is *less* yet: one more step": lambda keep, share: (
            next(k for k in range(10**6) if keep**k <= share)
        ),
        "you let it lose the same amount each time; it loses a share of what is left": lambda keep, share: (
            next(k for k in range(10**6) if 1 - k * (1 - keep) < share - 1e-12)
        ),
    },
)
check_lasts(lasts)


# %% tags=["solution"]
def lasts(keep, share):
    left, steps = 1.0, 0
    while left >= share:
        left, steps = keep * left, steps + 1
    return steps


verdict = check_lasts(lasts)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: Look back, as in 2014
#
# *Medium, 15 minutes.* Write the additive attention [of 2014](#the-network-of-2014): from the decoder's state $s$ and
# the encoder's states, one a row, compute the scores, their softmax and the context vector $c$. Scores in the thousands
# must not overflow.


# %% tags=["exercise"]
def context_vector(s, states, w, u, v):
    """The states (n, H), weighted by what s (D,) asks for: (H,).

    w (D, A), u (H, A) and v (A,) are the learned parameters.
    """
    ...


# %% tags=["check"]
def exponentials(scores):
    return np.exp(scores - scores.max())


def attention_of_2014(scores, weigh=lambda e: e / e.sum()):
    return lambda s, h, w, u, v: weigh(exponentials(scores(s, h, w, u, v))) @ h


rng = np.random.default_rng(1)
sizes = [(3,), (5, 4), (3, 2), (4, 2), (2,)]  # s, states, W, U and v
small, large = ([rng.standard_normal(size) for size in sizes] for _ in range(2))
check_context = partial(
    checks.check,
    reference=attention_of_2014(lambda s, h, w, u, v: np.tanh(s @ w + h @ u) @ v),
    cases=[
        tuple(small),
        (*large[:4], 1000 * np.ones(2)),
        (large[0], large[1] / 1000, *large[2:4], 2000 * np.ones(2)),
    ],
    properties=[checks.finite],
    mistakes={
        "the tanh is missing: without it s shifts all scores alike, and its question changes nothing": attention_of_2014(
            lambda s, h, w, u, v: (s @ w + h @ u) @ v
        ),
        "s does not enter the scores, so every question gets the same answer": attention_of_2014(
            lambda s, h, w, u, v: np.tanh(h @ u) @ v
        ),
        "the weights do not sum to 1: divide the exponentials by their sum": attention_of_2014(
            lambda s, h, w, u, v: np.tanh(s @ w + h @ u) @ v, weigh=lambda e: e
        ),
        "the scores themselves are the weights: they need a softmax": lambda s, h, w, u, v: (
            np.tanh(s @ w + h @ u) @ v @ h
        ),
        "every state has the same weight: use the scores": lambda s, h, w, u, v: (
            h.mean(axis=0)
        ),
    },
)
check_context(context_vector)


# %% tags=["solution"]
def context_vector(s, states, w, u, v):
    return look_back(states, np.tanh(s @ w + states @ u) @ v)


verdict = check_context(context_vector)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# Which word of a sentence matters depends on what is asked, and that is known only afterwards. A recurrent network has
# to pack the words into a state of fixed size as they come: with a poor start it forgets them within a sentence, and a
# linear fit recovers at most as many independent numbers as the state has. Attention keeps the words and looks back at
# all of them in one step. When every word looks, every word has to be compared with every other.
#
# **Sources.** The plain recurrent network: [Elman (1990)](https://doi.org/10.1207/s15516709cog1402_1). Why gradients
# vanish: [Bengio, Simard and Frasconi (1994)](https://doi.org/10.1109/72.279181). Orthogonal initialisation: [Saxe,
# McClelland and Ganguli (2014)](https://arxiv.org/abs/1312.6120). How much a state recalls, and the bound: [Jaeger
# (2001)](https://www.ai.rug.nl/minds/uploads/STMEchoStatesTechRep.pdf). The LSTM: [Hochreiter and Schmidhuber
# (1997)](https://doi.org/10.1162/neco.1997.9.8.1735), its forget gate: [Gers, Schmidhuber and Cummins
# (2000)](https://doi.org/10.1162/089976600300015015). Sentences in one vector: [Cho and others
# (2014)](https://arxiv.org/abs/1409.1259). Attention in a recurrent network: [Bahdanau, Cho and Bengio
# (2015)](https://arxiv.org/abs/1409.0473), posted in 2014. A newer recurrent network, whose state also has a fixed
# size: Mamba ([Gu and Dao, 2023](https://arxiv.org/abs/2312.00752)). The comparison of costs: [Vaswani and others
# (2017)](https://arxiv.org/abs/1706.03762), table 1.
#
# **Next.** To look back at the right words, the network must find out which words go together. [Chapter
# 2](02_similarity.ipynb) begins with two of them.

# %% [markdown]
# ## Going further
#
# Results that the chapter used without deriving them, and a mistake that makes a recurrent network read the wrong
# memory.
#
# ### Four explanations
#
# Three findings of [How fast do they forget?](#how-fast-do-they-forget) need an explanation: that $W_h$ shrinks a
# change to 0.58 of its length, that the LSTM keeps more than its forget gate lets through, and that the slope is
# smaller in the orthogonal cell. And one question is open: must the gradient vanish?
#
# The entries of $W_h$ are uniform between $-1/\sqrt{H}$ and $1/\sqrt{H}$. Between $-a$ and $a$ the variance is
# $a^2 / 3$, here $1/(3H)$. Let $\delta$ be a small change of the state, a row. An entry of $\delta W_h$ sums $H$
# entries of $W_h$, each times one of $\delta$. Variances of independent terms add up, and a factor enters as its
# square, so the variance is $\|\delta\|^2 / (3H)$. The mean is 0, so this is also the average square. The change has
# $H$ such entries, so its squared length is on average $\|\delta\|^2 / 3$.
#
# Must the gradient vanish? A matrix multiplies the length of a vector at most by its largest **singular value**. If
# that of $W_h$ is below 1, what reaches far back must vanish, because the slope of $\tanh$ is never above 1: with 0.9,
# at most $0.9^{100} \approx 0.00003$ of a change is left after 100 steps. Here the largest singular value is a little
# above 1, so multiplying by $W_h$ once can lengthen a change. But the lengthened change comes out in another direction,
# which the next step may shorten. For example, $\begin{pmatrix} 0 & 1.1 \\ 0.3 & 0 \end{pmatrix}$ turns the row
# $(1, 0)$ into $(0, 1.1)$, which is longer, but that into $(0.33, 0)$: on average a factor of $\sqrt{0.33} = 0.57$ a
# step. In general, where a matrix multiplies again and again, the average factor per step tends to one number, the size
# of its largest *eigenvalue*. For our $W_h$ that is only about 0.6, close to the 0.58 by which it shrinks a typical
# change in one step. So over many steps $W_h$ by itself shrinks every change. (The slopes of $\tanh$, which differ from
# entry to entry, could in principle undo this. The measurement shows that here they do not.)
#
# The LSTM keeps more, because of the path through $h$. With the gate open it keeps about 0.97 per step (0.96 from 1 to
# 5 steps back, 0.985 from 20 to 40, so not a single exponential). Cut that path, and 0.95 is left. With PyTorch's
# initialisation it keeps about 0.64, and without that path 0.55. That is still a little more than $\frac12$, because
# the gates differ, and those that are further open keep more.
#
# The slope of $\tanh$ is 0.86 in the plain cell, but about 0.8 in the orthogonal one. The states of the orthogonal one
# are larger, and the $\tanh$ is flatter there.

# %% [markdown]
# ### Why not more than 24?
#
# Take a state of $N$ numbers. From each, subtract what a linear fit to the numbers before it predicts. That leaves $N$
# uncorrelated numbers, and since the subtractions can be undone, a linear fit to them recalls exactly as much as one to
# the state itself.
#
# Write every $R^2$ into a matrix, with a row for each of these $N$ and a column for each number read. The $R^2$ of one
# number on another is the square of their correlation, the same in both directions, so we may read the matrix in two
# ways. If the explaining numbers are uncorrelated, their $R^2$ values add up. Along a row, the numbers that were read
# explain one state number. They are independent, so the row sums to the share that all of them explain, which is at
# most 1, with or without a $\tanh$. So the $N$ rows sum to at most $N$. Down a column, the state numbers explain one
# number that was read, so the column sums to what the whole state recalls of it. Rows and columns add up the same
# entries, so all that is recalled sums to at most $N$.
#
# The $R^2$ that we measured is *adjusted*: what a fit to pure noise would explain is subtracted, and the rest rescaled
# so that perfect recall is still 1.
#
# ### Why only 14 of 48?
#
# Why is the LSTM, with PyTorch's initialisation, so far below its 48? As measured in the folded cells above, $c$ alone
# recalls only about 12 of 24. The other half of its budget goes mostly to products: in $i \odot g$ both factors depend
# on the same word, in $f \odot c$ on different ones, so $c$ contains products of two of the numbers read. These do not
# help a linear fit, because $x_1 x_2$ is correlated with neither factor. What $h = o \odot \tanh c$ knows beyond $c$ is
# mostly products again, so it adds only about 2 numbers. But let the fit predict such products, too, and all $R^2$
# together come to about 45 of 48.
#
# In the output, the LSTM with its gate open recalls 0.82 of the latest word, but only 0.21 of the one before. Why so
# much of the latest? Because of the biases, what a step adds to $c$ is not 0 on average. With the gate open these
# averages pile up, so some entries of $c$ have grown large, each with the same sign in nearly every text. There $\tanh$
# is flat, near −1 or 1 whatever the old words were, so $h = o \odot \tanh c$ is nearly $o$ or $-o$. And each step
# computes $o$ again, from the latest word too, so a linear fit can read much of that word off $h$.
#
# ### How much work is it?
#
# With $d = 512$, the width of the original transformer:

# %% tags=["nbval-check-output"]
d = 512
for n in (50, 512, 5000):
    plain, lstm, attention = 2 * n * d**2, 8 * n * d**2, 4 * n * d**2 + 2 * n**2 * d
    print(
        f"{n:5} words: attention does {attention / plain:4.1f} times the work",
        f"of a plain cell, {attention / lstm:.2f} times that of an LSTM",
    )

# %% [markdown]
# At $n = 2d$, a thousand words, attention costs as much as the LSTM. (When text is generated, word $t$ takes
# $4 d^2 + 2 t d$ multiplications, and an LSTM's step $8 d^2$: again the two meet at $2d$.) The paper itself drops the
# constants and the four matrices of attention, so it says that attention does less work than a plain cell as long as
# $n < d$. In a transformer each layer also has a feed-forward network, [chapter 8](08_encoder.ipynb), of $8 n d^2$.
#
# The paper also compares a *convolution*, which computes all words at once, each from the word and its neighbours. Over a
# word and one neighbour on each side it takes $3 n d^2$ and a single sequential step. But one layer reaches only one
# word to each side, so the path from the first word to the last has $n - 1$ layers. (The convolutions that the paper
# counts are *dilated*: they skip words and need fewer.)
#
# A recurrent network that is linear in its state need not take its steps one after another: two linear steps make one
# linear step, so steps can be combined in pairs, all pairs at once, before any state is known. Mamba, in the sources,
# uses this.

# %% [markdown]
# ### Break it: someone else's memory
#
# Texts are processed in batches, several sentences at once: an array of shape (sentences, words, width). PyTorch's
# recurrent layers, unless made with `batch_first=True`, expect (words, sentences, width). Forget that argument, and
# no error is raised, but a sentence reads another one's memory.


# %% tags=["nbval-check-output"]
def run(text, parameters):
    """Plain cells over the first axis of text, as PyTorch's default has it."""
    state = np.zeros((text.shape[1], 24))
    for step in text:
        state = rnn_cell(step, state, *parameters)
    return state


rng = np.random.default_rng(0)
parameters = start_parameters(rng, blocks=1)  # W_x, W_h and two biases
batch = rng.standard_normal((4, 7, 8))  # 4 sentences of 7 words
right = run(batch.swapaxes(0, 1), parameters)  # (4, 24): a state for each sentence
wrong = run(batch, parameters)  # (7, 24)?
print("right:", right.shape, "  wrong:", wrong.shape)

# %% [markdown]
# The shape of the last state gives the mistake away, if you look. (PyTorch's layers also return all states, in one
# shape with or without that argument.) With 7 sentences of 7 words right and wrong shape would agree. But the loop
# would still run over *sentences*: the first row of the result has read the first word of sentence 1, then the first
# word of sentence 2, and so on.
#
# The check: change one sentence, and the results of the others must stay as they were. Which one should we change? In
# the wrong layout the sentences act as time steps. The first is then read longest ago, and we have seen what happens
# to the oldest.


# %% change the first sentence, or the last tags=["hide-input"]
def reaches_others(run, batch, sentence):
    """Whether changing one sentence changes the results of the others."""
    changed = batch.copy()
    changed[sentence] += 1
    difference = np.abs(run(changed) - run(batch)).max(axis=1)
    return np.delete(difference, sentence).max() > 1e-8


def right_layout(batch):
    return run(batch.swapaxes(0, 1), parameters)


def wrong_layout(batch):
    return run(batch, parameters)


print("is the wrong layout noticed, if the changed sentence is")
for size in (7, 32):  # as many sentences as words
    batch = rng.standard_normal((size, size, 8))
    first, last = (reaches_others(wrong_layout, batch, at) for at in (0, -1))
    shape = f"{size} sentences of {size} words:"
    print(f"   in {shape:28} the first {first!s:5}   the last {last}")
    assert last and not reaches_others(right_layout, batch, -1)
    assert first == (size == 7)

# %% [markdown]
# Changing the first sentence finds the mistake in a batch of 7 and misses it in one of 32: its trace in the state is by
# then smaller than the 1e-8 that the check allows for rounding. So change the last. And before you trust a check, plant
# the mistake that it is meant to find.

# %% [markdown]
# ### Short answers
#
# - **Is an LSTM better than a GRU?** Not in general: [Chung and others (2014)](https://arxiv.org/abs/1412.3555) found
#   the two comparable on music and speech. At equal width a GRU has three quarters of the parameters, because it
#   computes three vectors (two gates and a candidate) instead of four.
# - **Why $\sigma$ for the gates, but $\tanh$ for the candidate?** A gate is a share, so it must lie between 0 and 1.
#   The candidate is what is added, and needs both signs: with $\sigma$ a number in $c$ that starts at 0 could never
#   become negative.
# - **Why $\tanh$ in a plain cell, and not $\max(0, z)$?** That function, *ReLU*, shrinks no change where $z > 0$,
#   because its slope there is 1. But it has no upper limit, so a state that grows 1.2-fold a step grows 9,100-fold in 50.
#   With $W_h$ started as the identity it can work ([Le and others, 2015](https://arxiv.org/abs/1504.00941)).
# - **Why the same matrices at every step?** Because what is learned at one position of a sentence then serves at every
#   other, and sentences of any length fit.
# - **How many parameters has an LSTM?** For words of $D$ numbers and an $h$ of $H$ it is $4 (D H + H^2 + H)$, because
#   $f$, $i$, $o$ and $g$ have separate matrices. With $D = 8$ and $H = 24$ that is 3,168, against 792 in a plain cell.
#   (PyTorch's second biases add $4 H$.)
# - **What is truncated backpropagation through time?** A long text is cut into chunks, say of 100 words, because the
#   gradient needs all states of a chunk in memory. The state is passed on to the next chunk and the gradient is not
#   passed back, so no step is corrected for an error in a later chunk.
# - **Does a vanishing gradient mean that nothing is learned?** No. The terms of near words remain, so the loss can
#   fall, and the whole gradient can look healthy. Measure the error separately where the answer depends on a far word,
#   because the average hides it.
# - **Does a path of length 1 end vanishing gradients?** It removes the factors for distance, but not those for depth,
#   because each layer multiplies the gradient again. The number of layers, though, 6 in the encoder of 2017, does not
#   grow with the text.
# - **Why did reading the source backwards help?** Sutskever and others believe that it did because the first source
#   words then stand near their translations. For 4 words in the same order the distances become 1, 3, 5, 7 instead of 4
#   each. The mean is unchanged, but training can begin with the short ones.
# - **Why is the decoder not bidirectional, too?** Because its second network would begin at the last word of the
#   translation, which is not yet written. Nor does reading from both ends replace attention: the last states still have
#   a fixed size, and the middle of 41 words is 20 steps from each end.
# - **Do more recurrent layers remove the bottleneck?** No. If $L$ plain cells of $N$ numbers are stacked, a linear fit
#   to their last states recalls at most $L N$ numbers. And the path across the text gets no shorter, because every
#   layer goes from word to word.
# - **Does padding disturb a recurrent network?** Yes, if short sentences are filled up at the end, because the state
#   changes at every filler. Use the state after the last real word, as PyTorch's layers do after
#   [`pack_padded_sequence`](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.rnn.pack_padded_sequence.html).
# - **Are recurrent networks obsolete?** No: they suit an endless stream, because their memory does not grow. But
#   transformers copied and retrieved long texts better than networks with a state of fixed size, Mamba included,
#   because such a state cannot hold arbitrarily long texts ([Jelassi and others,
#   2024](https://arxiv.org/abs/2402.01032)).
# - **My network cannot recall a word 50 back. Is recurrence to blame?** First rule out a bug (does it work at distance
#   2?), too little training (more steps, other learning rates, several starts), a closed gate (raise its bias) and a
#   small state (double it). And compare with attention at an equal number of parameters and equal training.

# %% tags=["proof"]
assert 4 * (8 * 24 + 24 * 24 + 24) == 3168 == 4 * 792
assert round(0.9**20, 2) == 0.12 and round(1.2**50, -2) == 9100
assert round(0.99**1000, 5) == 0.00004
