# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 8. How do you stack attention?
#
# One layer of attention looks up once. The transformer of 2017 stacks six in its encoder, and surrounds attention with
# other parts: a residual connection, a norm, and a network that works on one word at a time. Why? Stack attention
# alone, with random weights, and after four layers all words of a sentence are practically one vector. You will build
# an encoder equal to PyTorch's, and leave out its parts one by one.
#
# You need [chapter 7](07_learning.ipynb). It takes about 30 minutes to read, and 70 for the exercises. [Going
# further](#going-further), at the end, takes 13 more minutes. Only the code? Read [the feed-forward
# network](#one-network-for-each-token-by-itself), [the encoder layer](#the-encoder-layer) and [the whole
# encoder](#the-whole-encoder).

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. Attention with its heads and positions is built, and so are the gradients. This chapter adds the feed-forward network, add and norm, and the stack of layers that make the encoder, with embeddings below it. Residual paths lead around attention and around the feed-forward network, each to an add and norm."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=8)

# %% [markdown]
# ## One layer, on paper
#
# *Good* is praise and *bad* blame, but *not bad* is praise and *not good* blame. Suppose that every word had one
# number, and that a sum above 0 meant praise. This cannot get all four right: to turn *good* into blame, *not* must be
# negative, and to turn *bad* into praise, positive. So *not* must change how the next word is read, as in this layer by
# hand. Each word is four numbers, and the layer fills in the last, the tone:
#
# | | polarity | affirmed | is it *not*? | tone |
# |---|---|---|---|---|
# | *not* | 0 | 1 | 1 | 0 |
# | *good* | 1 | 1 | 0 | 0 |
# | *bad* | −1 | 1 | 0 | 0 |
#
# **Polarity** says whether the word alone is praise or blame. **Affirmed** is 1 at first, as if nothing were negated.
# The layer turns it to −1 if there is a *not*, and fills in the **tone**: 1 for praise, −1 for blame.

# %% tags=["plot"] mystnb={"image": {"alt": "One layer for the two words not and bad, drawn from left to right. Each word has a horizontal line, its residual stream. Between the lines stands attention: it receives both words, and what it returns is added to each line. After it, not is (0, -1, 1, 0) and bad is (-1, -1, 0, 0). Then a feed-forward network beside each line, separately, returns something that is added too. At the end, bad is (-1, -1, 0, 1)."}}
from classroom.diagram import Diagram

drawing = Diagram(8.6, 3.2)
stages = {
    "not": (2.6, [[0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 1, 0]]),
    "bad": (0.6, [[-1, 1, 0, 0], [-1, -1, 0, 0], [-1, -1, 0, 1]]),
}
changed = [None, 1, 3]
drawing.box(2.72, 1.6, "attention", 1.15, 0.7)
for word, (y, vectors) in stages.items():
    up = 1 if word == "bad" else -1
    drawing.text(0.3, y, word, at="right")
    for x, vector, entry in zip([0.4, 3.75, 7.1], vectors, changed, strict=True):
        same = x == 7.1 and word == "not"
        marked = [entry == n and not same for n in range(4)]
        colors = ["#a9c6dc" if mark else plots.BLANK for mark in marked]
        drawing.cells(x, y, vector, colors, width=0.34)
    drawing.arrow((1.78, y), (3.0, y))
    drawing.arrow((2.3, y), (2.3, 1.6 - up * 0.36), color=plots.BLUE)
    drawing.arrow((3.1, 1.6 - up * 0.36), (3.1, y + up * 0.1), color=plots.BLUE)
    drawing.arrow((3.2, y), (3.73, y))
    drawing.sum(3.1, y)
    drawing.arrow((5.13, y), (6.58, y))
    drawing.box(5.95, y + up * 0.62, "feed-forward", 1.1, 0.36, plots.RED)
    drawing.arrow(
        (5.3, y), (5.3, y + up * 0.62), (5.4, y + up * 0.62), color=plots.RED
    )
    drawing.arrow(
        (6.5, y + up * 0.62),
        (6.68, y + up * 0.62),
        (6.68, y + up * 0.1),
        color=plots.RED,
    )
    drawing.sum(6.68, y)
    drawing.arrow((6.78, y), (7.08, y))
drawing.text(
    1.08, 3.03, "polarity, affirmed,\nis not, tone", size=9, color=plots.GREY
)
plt.show()

# %% [markdown]
# In *not bad*, two vectors are *added* to that of *bad*, one after the other.
#
# 1. **Attention fetches.** Every word has the same query, *are you a not?*, so the score depends on the key alone: 20
#    for *not*, which gets all the weight, and 0 for any other word. The value of *not* is −2 in the second entry, and
#    *affirmed* goes from 1 to −1. All other words have the value 0, so without a *not* nothing is fetched. (A *not*
#    negates every word of the text here. To negate only the next one, a query would ask for the word before, which
#    takes positions.)
# 2. **A small network looks at *bad* alone.** The tone should be polarity times *affirmed*: 1 if the two agree, −1 if
#    not. Their sum is ±2 if they agree and 0 if not, so
#
# $$\text{tone} = |\text{polarity} + \text{affirmed}| - 1 ,$$
#
# which is $|-1 - 1| - 1 = 1$: praise. Attention and the network write to a word's horizontal line in the drawing, its
# **residual stream**: the vector that entered, and everything added to it since.
#
# Attention is the only part in which one word's numbers reach another's. The network combines numbers within one
# vector: here it had to multiply polarity by *affirmed*.
#
# One matrix cannot do that. It gives a weighted sum of the two, and the points at which such a sum changes from blame
# to praise form a straight line. In the left panel below, praise lies on one diagonal of a square and blame on the
# other, so no line separates them: they are not **linearly separable** (the *XOR* problem).
#
# From $z$, the sum of polarity and *affirmed*, the network makes $\max(0, z)$ and $\max(0, -z)$. With these as axes, on
# the right, one line separates praise from blame.

# %% tags=["plot"] mystnb={"image": {"alt": "Two panels. Left, polarity against affirmed: good at (1, 1) and not bad at (-1, -1) are praise, bad at (-1, 1) and not good at (1, -1) are blame; the two kinds stand on opposite corners of a square. Right, the positive part of their sum against its negative part: good at (2, 0), not bad at (0, 2), bad and not good both at (0, 0). A dashed line separates praise from blame."}}
figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.0))
square = {
    "good": (1, 1),
    "not bad": (-1, -1),
    "bad": (-1, 1),
    "not good": (1, -1),
}
for word, (polarity, affirmed) in square.items():
    color = plots.TEAL if polarity == affirmed else plots.RED
    z = polarity + affirmed
    hidden = max(0, z), max(0, -z)
    panels[0].plot(polarity, affirmed, "o", color=color, ms=9)
    panels[0].text(polarity, affirmed + 0.22, word, ha="center", color=color)
    panels[1].plot(*hidden, "o", color=color, ms=9)
    if z:
        panels[1].text(hidden[0] + 0.12, hidden[1] + 0.12, word, color=color)
panels[1].text(-0.42, -0.38, "bad, not good", color=plots.RED)
panels[1].plot([-0.5, 1.5], [1.5, -0.5], "--", color=plots.GREY)
panels[0].set(xlabel="polarity", ylabel="affirmed", xlim=(-2, 2), ylim=(-1.6, 1.7))
panels[1].set(
    xlabel="max(0, polarity + affirmed)",
    ylabel="max(0, −polarity − affirmed)",
    xlim=(-0.5, 3),
    ylim=(-0.5, 2.5),
)
for axes, title in zip(
    panels,
    ("what attention has brought", "after the network's first step"),
    strict=True,
):
    axes.set_title(title)
    axes.set_xticks([tick for tick in range(-1, 3) if tick >= axes.get_xlim()[0]])
    axes.set_yticks([tick for tick in range(-1, 3) if tick >= axes.get_ylim()[0]])
figure.tight_layout()
plt.show()

# %% [markdown]
# This $\max(0, z)$ is called $\operatorname{ReLU}(z)$. It keeps a positive number and turns a negative one into 0. Two
# of them make $|z| = \operatorname{ReLU}(z) + \operatorname{ReLU}(-z)$, as in the code:

# %%
import numpy as np
import torch

words = {"not": [0, 1, 1, 0], "good": [1, 1, 0, 0], "bad": [-1, 1, 0, 0]}


def attend(x):  # (T, 4), a row for each word -> (T, 4)
    is_not = x[:, 2]  # the keys
    scores = (20 * is_not).expand(len(x), -1)  # (T, T): all queries are alike
    values = torch.zeros_like(x)
    values[:, 1] = -2 * is_not  # "affirmed": from 1 to -1
    return scores.softmax(dim=-1) @ values


def feed_forward(x):
    z = x[:, 0] + x[:, 1]
    written = torch.zeros_like(x)
    written[:, 3] = z.relu() + (-z).relu() - 1  # |z| - 1
    return written


def layer(x):
    x = x + attend(x)
    return x + feed_forward(x)


tones = {}
for text in ("good", "bad", "not good", "not bad"):
    x = layer(torch.tensor([words[word] for word in text.split()]).float())
    tones[text] = x[-1, 3].round().item()  # the tone of the last word
    print(f"{text:9} tone {tones[text]:+.0f}")
assert list(tones.values()) == [1, -1, -1, 1]

# %% tags=["proof"]
cases = torch.tensor([[1.0, 1, 1], [-1, 1, 1], [1, -1, 1], [-1, -1, 1]])
best = torch.linalg.lstsq(cases, torch.tensor([[1.0], [-1], [-1], [1]])).solution
assert torch.allclose(cases @ best, torch.zeros(4, 1), atol=1e-6)

# %% [markdown]
# ## One network, for each token by itself
#
# The general network of this form, the **feed-forward network** (FFN, or MLP), is applied to every token by itself,
# **position-wise**, with the same parameters for all tokens of a layer.
#
# $$\operatorname{FeedForward}(x) = \operatorname{activation}(x W_1 + b_1) \, W_2 + b_2 .$$
#
# $W_1$ takes a vector from $D$ entries, `d_model` in code, up to $d_\text{ff}$ *hidden* entries, or *units*, usually
# $4D$ of them (2,048 in the paper), and $W_2$ brings it down again. In *not bad* two units were enough, with $b_1 = 0$:
#
# $$W_1 = \begin{pmatrix} 1 & -1 \\ 1 & -1 \\ 0 & 0 \\ 0 & 0 \end{pmatrix}, \quad W_2 = \begin{pmatrix} 0 & 0 & 0 & 1 \\ 0 & 0 & 0 & 1 \end{pmatrix}, \quad b_2 = (0, 0, 0, -1) .$$
#
# $W_1$ makes $z$ and $-z$, ReLU keeps the positive one, $W_2$ adds it to the tone, and $b_2$ subtracts 1.
#
# Parameters: $2 D d_\text{ff} + d_\text{ff} + D$. In code:

# %%
from torch import nn


class PlainFeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):  # (B, T, D): each of the B T vectors by itself
        return self.down(self.up(x).relu())


x = torch.randn(2, 7, 512)  # B = 2 sentences of T = 7 tokens, width D = 512
assert PlainFeedForward(512, 2048)(x).shape == x.shape

# %% tags=["proof"]
w_1 = torch.tensor([[1.0, -1.0], [1.0, -1.0], [0.0, 0.0], [0.0, 0.0]])
w_2 = torch.tensor([[0.0, 0.0, 0.0, 1.0]] * 2)
for polarity, affirmed in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
    z = torch.tensor([polarity, affirmed, 0.0, 0.0])
    tone = ((z @ w_1).relu() @ w_2 - torch.tensor([0.0, 0.0, 0.0, 1.0]))[3]
    assert tone == polarity * affirmed

# %% [markdown]
# The **activation function**, or *non-linearity*, keeps the two maps from collapsing into one: without it, $x W_1 W_2$
# would be $x$ times a single $D \times D$ matrix. Could attention do without the network? With fixed weights it is
# linear, and so is a stack of it. Its weights do depend on the words, but they only say how much of each value is
# taken, and a value is a linear map of its word. So attention makes something like $|z|$ only by a detour through its
# weights ([how far it gets](#what-is-each-part-for-leave-it-out)). The paper uses ReLU. Many models use **GELU**,
# $z \, \Phi(z)$ with the normal distribution function $\Phi$, a smooth relative of it.
#
# With $d_\text{ff} = 4D$ the network's two matrices hold $8 D^2$ parameters, and the four of attention $4 D^2$, so the
# network has two thirds of a layer's parameters: at $D = 512$ some 2.10 of 3.15 million. [What does it
# store?](#what-does-the-network-store)
#


# %% [markdown]
# ## Add what each part returns
#
# Attention and the feed-forward network are the two **sublayers** of a layer. Neither replaces the vector that it
# reads: what it returns is *added*. With $f$ for either of them,
#
# $$x \leftarrow x + f(x) .$$
#
# This is a **residual connection**, or skip connection. The sum needs $f(x)$ in the shape of $x$, so every sublayer
# takes $(B, T, D)$ and returns $(B, T, D)$. What is gained?
#
# - **A word is passed along.** A sublayer need only compute what changes: *bad* kept its polarity. Where $f(x) = 0$,
#   the word passes unchanged.
# - **So is the gradient.** Let $f'$ be the matrix of derivatives of $f$ at its input (the Jacobian), and $I$ the
#   identity. The derivative of $x + f(x)$ is $I + f'$. By the chain rule, the derivatives of $n$ sublayers multiply:
#   $(I + f_1')(I + f_2') \cdots (I + f_n')$. Multiplied out, this has a term $I$ alone: a path to the lowest layer that
#   passes through no sublayer. Without the sums $x + f(x)$ only $f_1' f_2' \cdots f_n'$ is left, which vanishes if its
#   factors are small.
#
# Stack twelve feed-forward networks, with PyTorch's random initial weights (its *initialisation*). Start with a
# gradient of length 1 at the top. How long is it when it arrives at the bottom?


# %%
def gradient_at_the_bottom(add, seed):
    torch.manual_seed(seed)
    bottom = x = torch.randn(64, 64, requires_grad=True)
    for _ in range(12):
        up, down = nn.Linear(64, 256), nn.Linear(256, 64)
        y = down(up(x).relu())
        x = x + y if add else y
    d_x = torch.randn_like(x)
    x.backward(d_x / d_x.norm())
    return bottom.grad.norm().item()


arrives = {}
for name, add in ("with the sums", True), ("without", False):
    arrives[name] = np.median([gradient_at_the_bottom(add, n) for n in range(5)])
    print(f"{name:13} {arrives[name]:.2g}")

# %% tags=["proof"]
assert 1.2 < arrives["with the sums"] < 1.6 and 2e-8 < arrives["without"] < 4e-8

# %% [markdown]
# Without the sums it vanishes, because each of these networks shrinks it about fourfold. Larger initial weights could
# balance that. With the sums one term always keeps it, though the whole gradient can
# [grow](#how-do-size-and-gradient-change-with-the-layer).
#
# The price of the sums: the stream can grow from layer to layer. Call the root mean square (RMS) of a vector's entries
# its **size**. In [24 attention layers without norms](#how-do-size-and-gradient-change-with-the-layer) the stream
# reaches size 1,280. Larger vectors have larger scores, and then the softmax gives nearly all weight to one word
# ([chapter 3](03_softmax.ipynb#temperature)). So a norm resets the size of what a sublayer receives.

# %% [markdown]
# ## Layer norm, on four numbers
#
# **Layer normalisation** takes one token's vector, subtracts the mean of its entries, and divides by their standard
# deviation. $(2, 4, 4, 10)$ has the mean 5; subtract it: $(-3, -1, -1, 5)$. The mean of the squares is
# $(9 + 1 + 1 + 25) / 4 = 9$, its square root 3. Divide: $(-1, -\tfrac13, -\tfrac13, \tfrac53)$. Ten times as much plus
# 1, $(21, 41, 41, 101)$, gives the same result: offset and (positive) scale no longer matter.
#
# $$\operatorname{LayerNorm}(x) = \gamma \circ \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$$
#
# Mean $\mu$ and variance $\sigma^2$ are those of the vector $x$. A small $\epsilon$ guards against dividing by 0. The
# vectors $\gamma$ (the *gain*) and $\beta$ (the *bias*), of width $D$, are trained and start at 1 and 0. They let
# training stretch and shift single entries again.


# %%
def layer_norm(x, gain, bias, eps=1e-5):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return gain * centred / torch.sqrt(variance + eps) + bias


four = torch.tensor([2.0, 4, 4, 10], dtype=torch.float64)
by_hand = layer_norm(four, gain=1, bias=0, eps=0)
print([f"{number:.3f}" for number in by_hand.tolist()])
assert torch.allclose(layer_norm(10 * four + 1, gain=1, bias=0, eps=0), by_hand)

# %% tags=["proof"]
assert torch.allclose(by_hand, torch.tensor([-1, -1 / 3, -1 / 3, 5 / 3]).double())
assert np.isclose(layer_norm(four, gain=2, bias=1, eps=0)[-1], 13 / 3)
torch.manual_seed(0)
x, norm = torch.randn(3, 5, 8), nn.LayerNorm(8)
nn.init.normal_(norm.weight)
nn.init.normal_(norm.bias)
assert torch.allclose(layer_norm(x, norm.weight, norm.bias), norm(x), atol=1e-6)

# %% [markdown]
# No other token takes part, so layer norm does the same to a token in training and in use, alone and in a batch.
# **Batch normalisation** takes the mean and variance of an entry over the whole batch. Then a token depends on other
# sentences and on padding, and in use one needs averages kept from training. (Many recent models leave out $\mu$ and
# $\beta$: [RMSNorm](19_modern.ipynb#rmsnorm-the-same-without-the-mean).)
#

# %% tags=["quiz"]
quiz.number(
    "Layer norm of $(1, 1, 5, 5)$, with $\\epsilon = 0$, gain 1 and bias 0. What is the last entry?",
    layer_norm(torch.tensor([1.0, 1, 5, 5]), 1, 0, eps=0)[-1].item(),
    tolerance=0.01,
    feedback="Yes: the mean is 3, the deviations are all 2, so the entries are −1, −1, 1, 1.",
    mistakes=[
        (
            2 / np.sqrt(16 / 3),
            "You divided the sum of squares by 3, as for a sample. Layer norm divides by the number of entries, 4.",
        ),
        (0.5, "You divided by the variance, 4. Its root is wanted."),
        (
            2,
            "That is the deviation from the mean. Divide it by the root of the mean square.",
        ),
    ],
    otherwise="Subtract the mean, 3. Then divide by the root of the mean of the squared deviations.",
)

# %% [markdown]
# ## Post-norm or pre-norm?
#
# The 2017 paper normalises the stream itself, after each addition: **post-norm**, or *Post-LN*. Most language models
# since GPT-2 normalise what goes *into* a sublayer, and leave the stream alone: **pre-norm**, or *Pre-LN*. (BERT, a
# little older, is post-norm.)
#
# $$\text{post-norm:}\quad x \leftarrow \operatorname{LN}\bigl(x + f(x)\bigr),$$
#
# $$\text{pre-norm:}\quad x \leftarrow x + f\bigl(\operatorname{LN}(x)\bigr) .$$

# %% tags=["plot"] mystnb={"image": {"alt": "Two drawings of one layer from left to right. Post-norm: x goes along a line; a branch passes through attention and is added; then the sum itself passes through a norm; the same again with feed-forward. Pre-norm: on each branch a norm stands before attention and before feed-forward, and the line itself passes through nothing but two additions."}}
drawing = Diagram(7.6, 3.3)
for y, name in [(2.2, "post-norm"), (0.45, "pre-norm")]:
    post, up, end = name == "post-norm", y + 0.65, 0.05
    drawing.text(0.05, up + 0.28, name, at="left", color=plots.GREY)
    drawing.text(0.05, y + 0.2, "x (T, D)", at="left", size=10)
    for left, sublayer, color in [
        (0.9, "attention", plots.BLUE),
        (4.2, "feed-forward", plots.RED),
    ]:
        middle, join = (
            left + (1.0 if post else 1.75),
            left + (2.0 if post else 2.75),
        )
        first = middle - 0.6 if post else left + 0.2
        drawing.arrow((left, y), (left, up), (first, up), color=color)
        drawing.box(middle, up, sublayer, 1.2, 0.36, color)
        drawing.arrow((middle + 0.6, up), (join, up), (join, y + 0.1), color=color)
        drawing.arrow((end, y), (join - 0.1, y), width=2.2)
        drawing.sum(join, y)
        end = join + 0.1
        if post:
            drawing.arrow((end, y), (join + 0.3, y), width=2.2)
            drawing.box(join + 0.6, y, "norm", 0.6, 0.32, plots.GOLD)
            end = join + 0.9
        else:
            drawing.box(left + 0.5, up, "norm", 0.6, 0.32, plots.GOLD)
            drawing.arrow((left + 0.8, up), (middle - 0.6, up), color=color)
    drawing.arrow((end, y), (7.5, y), width=2.2)
plt.show()

# %% [markdown]
# Follow the thick line, the stream. With post-norm it passes through every norm, and so does the gradient on its way
# back: no path is a plain $I$ any more, because each norm divides the gradient by the size of the sum. Before training
# this size is about $\sqrt 2$ at most: two vectors of size 1, nearly at right angles, are added. (Terms with $f'$ may
# make up for it.) With pre-norm the stream passes only through additions, so that path is there. But the additions can
# make the stream grow, and nothing normalises it, so a pre-norm stack ends in a **final norm**, after the last layer.
#
# Choose pre-norm, unless you reproduce the paper: in deep stacks it [learns quickly](#does-training-agree) even where
# post-norm is slow. A [warm-up](#does-it-need-warm-up), a learning rate that grows from nearly 0, may help post-norm.

# %% tags=["quiz"]
quiz.one_choice(
    "A pre-norm stack of 24 layers is followed directly by a linear map to the vocabulary, without a final norm. What does that map receive?",
    quiz.right(
        "Vectors whose size grows with the number of layers",
        "Yes, unless the initialisation is small: every sublayer adds something to the sum, and no norm stands on the way through. Hence the final norm.",
    ),
    quiz.wrong(
        "Vectors of mean 0 and variance 1, as after any layer norm",
        "The norm of a pre-norm layer stands before the sublayer. The stream itself is never normalised.",
    ),
    quiz.wrong(
        "What the last feed-forward network wrote, and nothing else",
        "It wrote onto a sum that holds everything before it, the word included.",
    ),
)

# %% [markdown]
# ## The encoder layer
#
# Here is the layer, in both orders. The attention is [chapter 7's](07_learning.ipynb), which returns a pair: the
# result, and the weights if asked for. One thing is new: what a sublayer returns passes through **dropout**. In
# training it sets each number to 0 with a small probability, so that nothing can rely on a single one, and enlarges the
# others to keep the mean. Outside training it is off; left on, it makes answers vary.

# %%
from dotformer.attention import MultiHeadAttention


class PlainLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout=0.1, norm_first=False):
        super().__init__()
        self.attention = MultiHeadAttention(d_model, num_heads)
        self.feed_forward = PlainFeedForward(d_model, d_ff)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm_first

    def attend(self, x, mask):
        y, _ = self.attention(x, x, x, mask)  # query, key, value; True: may attend
        return y

    def forward(self, x, mask=None):  # x: (B, T, D), mask: (B, 1, 1, T)
        if self.norm_first:  # pre-norm: the norm stands on the branch
            x = x + self.dropout(self.attend(self.norm1(x), mask))
            return x + self.dropout(self.feed_forward(self.norm2(x)))
        # post-norm: the norm stands on the stream
        x = self.norm1(x + self.dropout(self.attend(x, mask)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))


print(tuple(PlainLayer(16, 4, 32)(torch.randn(2, 7, 16)).shape))  # (B, T, D)

# %% [markdown]
# PyTorch has the same layer, with more dropout: `nn.TransformerEncoderLayer`. `copy_parameters`, folded, gives the two
# the same parameters.


# %% PyTorch's parameters into ours tags=["hide-input"]
def copy_parameters(theirs, ours):
    """The parameters of an `nn.TransformerEncoderLayer` into a `PlainLayer`."""
    attention = theirs.self_attn
    for our, their in (
        (ours.feed_forward.up, theirs.linear1),
        (ours.feed_forward.down, theirs.linear2),
        (ours.norm1, theirs.norm1),
        (ours.norm2, theirs.norm2),
        (ours.attention.w_o, attention.out_proj),
    ):
        our.load_state_dict(their.state_dict())
    for our, weight, bias in zip(
        (ours.attention.w_q, ours.attention.w_k, ours.attention.w_v),
        attention.in_proj_weight.chunk(3),
        attention.in_proj_bias.chunk(3),
        strict=True,
    ):
        our.load_state_dict({"weight": weight, "bias": bias})


# %%
real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])  # 7 and 4 tokens
x = torch.randn(2, 7, 16)
for norm_first in (False, True):
    theirs = nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=norm_first
    )
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = PlainLayer(16, 4, 32, norm_first=norm_first)
    copy_parameters(theirs, ours)
    expected = theirs.eval()(x, src_key_padding_mask=~real)
    mine = ours.eval()(x, real[:, None, None])  # the mask is (B, 1, 1, T)
    apart = (mine - expected)[real].abs().max()  # real tokens only
    print(f"{norm_first=}: largest difference {apart:.0e}")
    assert apart < 1e-5

# %% tags=["proof"]
ours.norm1, ours.norm2 = ours.norm2, ours.norm1
assert (ours(x, real[:, None, None]) - expected)[real].abs().max() > 0.3

# %% [markdown]
# The results agree (dropout was off). Three pitfalls:
#
# - **The mask.** `src_key_padding_mask` is true where a token is *hidden*, the reverse of our `mask`.
# - **The norms.** PyTorch's layers are post-norm unless you say `norm_first=True`, and its `nn.TransformerEncoder` has
#   a final norm only if you pass one.
# - **Random biases and gains.** Set them to random numbers before you compare, as above. PyTorch's layer starts with
#   attention's biases at 0 and all gains at 1, so a forgotten bias or two swapped norms would go unnoticed.

# %% [markdown]
# ## From token numbers to vectors
#
# A model receives tokens as numbers, their *IDs*. Each picks a row from a table of vectors, the **embeddings**, and the
# vector of its position is added. Once is enough, because the residual connections carry both upwards.
#
# Before that, the row is multiplied by $\sqrt D$. In the code below a row starts with length about 1, and a position's
# vector has the length $\sqrt{D/2}$ ([chapter 5](05_position.ipynb)), 16 for $D = 512$. Beside it such a row would
# hardly count, and two different words at one position would have a cosine near 1. Times $\sqrt{512} \approx 23$, it is
# the longer of the two. (Rows start so short because many models use them again at the output, where long ones would
# make the first logits [too large](07_learning.ipynb#the-first-number-to-look-at).)
#
# ## The whole encoder
#
# The encoder is embeddings, chapter 5's positions, and the layers, also called **blocks**, with a mask that hides the
# padding, token 0.


# %%
import math

from dotformer.by_hand.positions import sinusoidal_positions


class PlainEncoder(nn.Module):
    def __init__(
        self, vocab_size, num_layers, norm_first, d_model, num_heads, d_ff, dropout
    ):
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)
        self.layers = nn.ModuleList(  # in a plain list their parameters get lost
            PlainLayer(d_model, num_heads, d_ff, dropout, norm_first)
            for _ in range(num_layers)
        )
        self.final_norm = nn.LayerNorm(d_model) if norm_first else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens):  # (B, T) -> (B, T, D)
        T, D = tokens.shape[1], self.table.embedding_dim
        positions = torch.tensor(sinusoidal_positions(T, D)).to(self.table.weight)
        x = self.dropout(self.table(tokens) * math.sqrt(D) + positions)
        mask = (tokens != 0)[:, None, None]  # (B, 1, 1, T)
        for layer in self.layers:
            x = layer(x, mask)
        return self.final_norm(x)


sizes = {"d_model": 64, "num_heads": 4, "d_ff": 256, "dropout": 0.1}
encoder = PlainEncoder(1000, num_layers=6, norm_first=True, **sizes).eval()
sentences = torch.tensor([[17, 5, 902, 17], [8, 330, 0, 0]])
print(tuple(sentences.shape), "->", tuple(encoder(sentences).shape))
alone = encoder(sentences[1:, :2])  # without the padding
assert torch.allclose(encoder(sentences)[1, :2], alone[0], atol=1e-5)

# %% [markdown]
# Each token number becomes a vector, its *hidden state*, that has drawn on all real tokens of its sentence.

# %% [markdown]
# ### Why more than one layer?
#
# Some questions need two look-ups, one after the other. Let each digit name a position, counted from 0. Take 2 0 1. At
# position 0 stands 2, so look at position 2. There stands 1, so look at position 1. There stands 0, the answer for
# position 0. The second look-up cannot start before the first has returned. In one layer all look-ups happen at once,
# but a second layer makes its queries from what the first has found. Train one layer, and two, on ten digits, to answer
# for every position:

# %%
from torch.nn import functional as F


def share_right(num_layers, steps=400, d_ff=256, seed=0):
    torch.manual_seed(seed)
    sizes = {"d_model": 64, "num_heads": 4, "d_ff": d_ff, "dropout": 0.0}
    reader = PlainEncoder(11, num_layers, norm_first=True, **sizes)
    model = nn.Sequential(reader, nn.Linear(64, 10))  # logits at each position
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    for _ in range(steps):
        digits = torch.randint(10, (64, 10))
        wanted = digits.gather(1, digits.gather(1, digits))  # two look-ups
        logits = model(digits + 1)  # 0 is padding
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (logits.argmax(-1) == wanted).float().mean().item()


two_hops = {n: share_right(n) for n in (1, 2)}
print("right, by number of layers:", {n: f"{s:.0%}" for n, s in two_hops.items()})

# %% tags=["proof"]
assert two_hops[1] < 0.5 and two_hops[2] > 0.97
assert 0.4 < share_right(1, steps=1500) < 0.65
assert max(share_right(1, d_ff=640, seed=seed) for seed in range(3)) < 0.425
digits = torch.randint(10, (5000, 10))
found = digits.gather(1, digits.gather(1, digits))
assert round((found == digits).double().mean().item(), 2) in (0.34, 0.35)

# %% [markdown]
# One layer does little better than repeating each position's own digit, which is right in 35 percent of the cases: the
# path often returns to its start, or meets a position that names itself. It goes on learning, but after 1,500 steps
# only about half are right. More parameters did not replace the second layer here: with 640 hidden units one layer has
# as many as two, and after 400 steps at most 42 percent are right, with three seeds.

# %% [markdown]
# ## The book's version
#
# The encoder as later chapters import it, from `dotformer.encoder`, is folded here, and compared with PyTorch's
# `nn.TransformerEncoder`:

# %% tags=["hide-input", "export"] module="encoder"
from dataclasses import dataclass
from typing import Literal

from dotformer.support.settings import check_settings
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """What fixes a layer, and a stack of them. Defaults: the paper's base model.

    For `norm_first` see `AddAndNorm`, for `final_norm` see `Stack`.
    """

    d_model: int = 512
    num_heads: int = 8
    d_ff: int = 2048
    dropout: float = 0.1
    activation: Literal["relu", "gelu"] = "relu"
    norm_first: bool = False
    final_norm: bool | None = None
    layer_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        check_settings(self, shares=("dropout",))


# %% tags=["export", "hide-input"] module="encoder"
class FeedForward(nn.Module):
    """Two linear maps with an activation function between them, for each token.

    (..., D) -> (..., d_ff) -> (..., D). After Vaswani and others (2017), 3.3.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.d_ff)
        self.activation = nn.ReLU() if config.activation == "relu" else nn.GELU()
        self.dropout = nn.Dropout(config.dropout)
        self.down = nn.Linear(config.d_ff, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to each vector of x (..., D)."""
        return self.down(self.dropout(self.activation(self.up(x))))


# %% tags=["export", "hide-input"] module="encoder"
from collections.abc import Callable


class AddAndNorm(nn.Module):
    """A residual connection around a sublayer, and layer normalisation.

    With `norm_first` the norm stands before the sublayer, and nothing but additions
    lies on the way through.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.norm_first = config.norm_first

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return x (..., T, D) with the sublayer's output added, same shape."""
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


# %% tags=["export", "hide-input"] module="encoder"
from dotformer.attention import MultiHeadAttention
from dotformer.support.shapes import shapes
from jaxtyping import Bool, Float


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network, each with its add and norm.

    After Vaswani and others (2017), section 3.1.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            config.d_model, config.num_heads, config.dropout
        )
        self.attention_add_norm = AddAndNorm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_add_norm = AddAndNorm(config)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pass x (..., T, D) through; `mask` broadcasts to (..., H, T, T)."""
        x = self.attention_add_norm(x, lambda x: self.attention(x, x, x, mask)[0])
        return self.feed_forward_add_norm(x, self.feed_forward)


# %% tags=["export", "hide-input"] module="encoder"
class Stack(nn.Module):
    """Layers of one kind, one after the other, each with parameters of its own.

    With `config.norm_first` nothing has normalised what leaves the last layer, so a
    final norm does; `config.final_norm` overrides that.
    """

    def __init__(
        self, layer: type[nn.Module], config: LayerConfig, num_layers: int
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(config) for _ in range(num_layers))
        final = (
            config.norm_first if config.final_norm is None else config.final_norm
        )
        norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.norm = norm if final else nn.Identity()

    def forward(self, x: Tensor, *context: Tensor | None) -> Tensor:
        """Pass x (..., T, D) through all layers, each with the same context."""
        for layer in self.layers:
            x = layer(x, *context)
        return self.norm(x)


class Encoder(Stack):
    """A stack of `num_layers` encoder layers."""

    def __init__(self, config: LayerConfig, num_layers: int) -> None:
        super().__init__(EncoderLayer, config, num_layers)

    @shapes
    def forward(
        self,
        x: Float[Tensor, "*batch T D"],
        mask: Bool[Tensor, "... #T #T"] | None = None,
    ) -> Float[Tensor, "*batch T D"]:
        """Pass x through all layers; `mask` is True where a query may attend."""
        return super().forward(x, mask)


# %% tags=["export", "hide-input"] module="encoder"
import math

import torch
from dotformer.by_hand.positions import sinusoidal_positions
from dotformer.support.shapes import shapes
from jaxtyping import Float, Int
from torch import Tensor, nn


class PositionalEncoding(nn.Module):
    """Add to each vector the sinusoid of its position, then drop some entries.

    The table has `max_length` rows of width `d_model`. After Vaswani and others
    (2017), section 3.5.
    """

    def __init__(
        self, d_model: int, max_length: int = 5000, dropout: float = 0.0
    ) -> None:
        super().__init__()
        table = sinusoidal_positions(max_length, d_model)
        table = torch.tensor(table, dtype=torch.get_default_dtype())
        self.register_buffer("table", table, persistent=False)
        self.dropout = nn.Dropout(dropout)

    @shapes
    def forward(
        self, x: Float[Tensor, "*batch T D"]
    ) -> Float[Tensor, "*batch T D"]:
        """Add the first T rows. ValueError: the table has fewer."""
        if x.shape[-2] > len(self.table):
            raise ValueError(
                f"{x.shape[-2]} tokens exceed max_length {len(self.table)}"
            )
        return self.dropout(x + self.table[: x.shape[-2]])


# %% tags=["export", "hide-input"] module="encoder"
class Embeddings(nn.Module):
    """From token numbers to vectors: look each up, scale, add its position.

    The `vocab_size` rows start with deviation 1/sqrt(D) and are multiplied by
    sqrt(D) when looked up, so that they start about as large as the positions.
    After Vaswani and others (2017), section 3.4.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_length: int = 5000,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.tokens.weight, std=d_model**-0.5)
        self.scale = math.sqrt(d_model)
        self.positions = PositionalEncoding(d_model, max_length, dropout)

    @shapes
    def forward(
        self, tokens: Int[Tensor, "*batch T"]
    ) -> Float[Tensor, "*batch T D"]:
        """A vector for each token. IndexError (on a CPU): no such token."""
        return self.positions(self.tokens(tokens) * self.scale)


# %%
stack = Encoder(LayerConfig(d_model=16, num_heads=4, d_ff=32), num_layers=6)
print(tuple(stack(torch.randn(2, 7, 16), real[:, None, None]).shape))  # (B, T, D)

# %% tags=["proof"]
tone = FeedForward(LayerConfig(d_model=4, d_ff=2, dropout=0.0))
with torch.no_grad():
    tone.up.weight.copy_(torch.tensor([[1.0, 1, 0, 0], [-1, -1, 0, 0]]))
    tone.up.bias.zero_()
    tone.down.weight.zero_()
    tone.down.weight[3] = 1.0
    tone.down.bias.copy_(torch.tensor([0.0, 0, 0, -1]))
bad = torch.tensor([-1.0, -1, 0, 0])  # as it is after *not* has been fetched
assert tone(bad).tolist() == feed_forward(bad[None])[0].tolist() == [0, 0, 0, 1]


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


network, attention = FeedForward(LayerConfig()), MultiHeadAttention(512, 8)
gelu = nn.functional.gelu(torch.tensor([-1.0, 0, 1]))
assert np.allclose(gelu, [-0.16, 0, 0.84], rtol=0, atol=0.005)
share = parameters(network) / (parameters(network) + parameters(attention))
assert np.isclose(share, 2 / 3, atol=0.01) and parameters(network) == 2_099_712

# %% tags=["proof"]
from dotformer.support.torch_modules import our_state_dict

for norm_first in (False, True):
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=norm_first
    )
    theirs = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    sizes = {"d_model": 16, "num_heads": 4, "d_ff": 32}
    config = LayerConfig(**sizes, norm_first=norm_first, final_norm=False)
    ours = Encoder(config, num_layers=3).eval()
    ours.load_state_dict(our_state_dict(theirs))
    with torch.no_grad():
        expected = theirs(x, src_key_padding_mask=~real)
        output = ours(x, real[:, None, None])
    assert torch.allclose(output[real], expected[real], atol=1e-5)

# %% [markdown]
# ## What is each part for? Leave it out
#
# Does the encoder need all its parts? Take one away, train what is left, and see what it no longer learns in the same
# time: an **ablation**. Two tasks on twelve random digits:
#
# - *Reverse*: output the digits backwards. 3 1 4 becomes 4 1 3.
# - *Add*: to each digit add the one at the mirrored position, and keep the last digit of the sum. 3 1 4 becomes 7 2 7.
#
# Both must fetch a digit, and *add* must also combine two.
#
# **Predict first.** Which parts does *reverse* need, and which *add*?
#
# **How it is measured.** Every model has three layers of width 32 with four heads, in the paper's order, post-norm, and
# a linear map from each position's final vector to ten scores. It is trained for 600 steps of
# [Adam](11_training.ipynb#adam), the first 50 of them warm-up, with three seeds. A model that lost a part may need a
# larger or smaller learning rate, so each model is tried with seven and gets the best. The matrices have [Glorot's
# initialisation](#what-goes-wrong-in-a-deep-stack). `python -m benchmarks.encoders` repeats all this.


# %% a layer without one of its parts tags=["hide-input"]
from torch.nn import functional as F


def leave_out(stack, part):
    """Take one part out of every layer, post-norm."""
    for layer in stack.layers:
        for name, frame in [
            ("attention", layer.attention_add_norm),
            ("feed-forward", layer.feed_forward_add_norm),
        ]:
            norm = frame.norm
            if part in ("residual", f"residual, {name}"):
                frame.forward = lambda x, sublayer, norm=norm: norm(sublayer(x))
            elif part == "norm":
                frame.forward = lambda x, sublayer: x + sublayer(x)
            elif part == name:
                frame.forward = lambda x, sublayer, norm=norm: norm(x)


# %% the training of a small stack tags=["hide-input"]
def learn(
    task,
    norm_first=False,
    without=None,
    warm_up=50,
    learning_rate=0.005,
    steps=400,
    seed=0,
    num_layers=3,
    small_start=False,
    glorot=True,
):
    """Train a few layers: the model, its losses, and the shares right."""
    torch.manual_seed(seed)
    sizes = {"d_model": 32, "num_heads": 4, "d_ff": 128, "dropout": 0.0}
    stack = Encoder(LayerConfig(**sizes, norm_first=norm_first), num_layers)
    if glorot:  # else PyTorch's own
        for matrix in stack.parameters():
            if matrix.ndim == 2:
                nn.init.xavier_uniform_(matrix)
    if small_start:  # as GPT-2
        for layer in stack.layers:
            for writes in (layer.attention.w_o, layer.feed_forward.down):
                gain = (2 * num_layers) ** -0.5
                nn.init.xavier_uniform_(writes.weight, gain=gain)
    leave_out(stack, without)
    bottom, top = Embeddings(10, 32, max_length=12), nn.Linear(32, 10)
    model = nn.Sequential(bottom, stack, top)
    optimizer = torch.optim.Adam(model.parameters())
    losses, right = [], []
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1, step / warm_up)
        digits = torch.randint(10, (32, 12))
        wanted = digits.flip(1)
        if task == "add":
            wanted = (digits + wanted) % 10
        logits = model(digits)
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        right.append((logits.argmax(-1) == wanted).float().mean().item())
    return model, losses, right


# %% the shares right without each part tags=["hide-input"]
from itertools import product

from classroom.measured import measured

PARTS = [
    "residual",
    "residual, attention",
    "residual, feed-forward",
    "norm",
    "attention",
    "feed-forward",
]
measurement = measured("encoders")


def at_best_rate(task, without):
    rows = [
        row["right"]
        for row in measurement["parts"]
        if (row["task"], row["without"]) == (task, without)
    ]
    best = max(rows, key=np.mean)
    return min(best), max(best)


print(f"{'left out':30}{'reverse':>18}{'add':>18}")
for without in (None, *PARTS):
    shares = [at_best_rate(task, without) for task in ("reverse", "add")]
    cells = [f"{low:.1%} to {high:.1%}" for low, high in shares]
    name = {None: "nothing", "residual": "both residuals"}.get(without, without)
    name = name.replace("residual, ", "residual around ")
    print(f"{name:30}{cells[0]:>18}{cells[1]:>18}")

# %% [markdown]
# Entries are shares of digits right, worst seed to best.
#
# - Without **attention** both stay at chance, 10 percent, because no digit reaches another position.
# - Without the **residual connection** around attention neither task is learned within 600 steps. Before training,
#   attention's weights are spread over all positions, so each position holds an average, and little of its own. After
#   three layers the averages of averages are [nearly alike](#words-become-alike). *Add* stays near chance. *Reverse*
#   gets about a third right at best; always answering with the most frequent digit of the sequence is right 26 percent
#   of the time.
# - The residual connection around the feed-forward network, and the **norms**, are not needed here.
# - Without the **feed-forward** networks even *add* is 98 to 99 percent right: attention's weights change with the
#   words, and norms are not linear either, which may be why three layers can nearly do without the network. [A single
#   layer](#can-one-layer-add-without-a-feed-forward-network) does not in 600 steps: 73 to 79 percent right instead of
#   all.

# %% tags=["proof"]
from dotformer.support.recording import record_weights

one_layer, _, _ = learn(
    "add", without="feed-forward", num_layers=1, learning_rate=0.01, steps=600
)
with record_weights(one_layer) as seen, torch.no_grad():
    one_layer(torch.randint(10, (200, 12)))
[seen] = seen.values()  # (sequences, heads, 12, 12)
mirrored = seen.flip(-1).diagonal(dim1=-2, dim2=-1).mean(dim=(0, 2))
assert mirrored.min() > 0.35 and mirrored.max() < 0.7
best = {
    key: at_best_rate(*key) for key in product(("reverse", "add"), (None, *PARTS))
}
for task in ("reverse", "add"):
    for part in (None, "residual, feed-forward", "norm", "feed-forward"):
        assert best[task, part][0] > 0.98
    assert best[task, "attention"][1] < 0.11
for part in ("residual", "residual, attention"):
    assert best["reverse", part][1] < 0.34 and best["add", part][1] < 0.12
slow = {
    row["without"]: np.round(row["right"], 2)
    for row in measurement["parts"]
    if row["task"] == "add" and row["learning_rate"] == 0.0025
}
for task, without in best:  # the best learning rate lies inside
    rows = [
        np.mean(row["right"])
        for row in measurement["parts"]
        if (row["task"], row["without"]) == (task, without)
    ]
    assert len(rows) == 7 and (0 < np.argmax(rows) < 6 or max(rows) < 0.12)
assert min(slow["feed-forward"]) == 0.35 and max(slow["feed-forward"]) == 0.38
assert min(slow[None]) == 1

# %% [markdown]
# ## What goes wrong in a deep stack?
#
# In three layers it did no harm to leave out the norms, and great harm to leave out the residual connection around
# attention. To see why, take more layers. Let 16 random words, vectors of width 64, pass through 24 layers of nothing
# but attention, before any training. Their matrices have *Glorot's initialisation*, `xavier_uniform_`: the entries of a
# square one have the variance $1/D$. An entry of the result is a sum of $D$ products, so on average a projection leaves
# the size of a vector unchanged. (Feed-forward networks are left out. With them, too, words become alike in a
# [post-norm stack](#does-training-agree).) The layers are joined in one of four ways:
#
# | | a layer computes |
# |---|---|
# | attention alone | $f(x)$ |
# | added | $x + f(x)$ |
# | post-norm | $\operatorname{LN}(x + f(x))$ |
# | pre-norm | $x + f(\operatorname{LN}(x))$ |


# %% four stacks of 24 layers, measured tags=["hide-input"]
def norm(x):
    return F.layer_norm(x, x.shape[-1:])  # gain 1, bias 0


steps = {
    "attention alone": lambda x, attend: attend(x),
    "added": lambda x, attend: x + attend(x),
    "post-norm": lambda x, attend: norm(x + attend(x)),
    "pre-norm": lambda x, attend: x + attend(norm(x)),
}


def fresh_attention():
    attention = MultiHeadAttention(64, num_heads=4)
    for parameter in attention.parameters():
        if parameter.ndim == 2:
            nn.init.xavier_uniform_(parameter)
        else:
            nn.init.zeros_(parameter)  # a bias is the same for all words
    return attention


def measure(step, seed):
    """Own share and size after each of 24 layers, and the gradient of its W_Q."""
    torch.manual_seed(seed)
    x, shares, sizes, queries = torch.randn(50, 16, 64), [], [], []
    for _ in range(24):
        attention = fresh_attention()
        x = step(x, lambda x, attention=attention: attention(x, x, x)[0])
        own = x - x.mean(dim=1, keepdim=True)
        shares.append((own.norm() / x.norm()).item())
        sizes.append(x.square().mean().sqrt().item())
        queries.append(attention.w_q.weight)
    d_x = torch.randn_like(x)
    x.backward(d_x / d_x.norm())
    return shares, sizes, [query.grad.norm().item() for query in queries]


def median_of_starts(step):
    return np.median([measure(step, seed) for seed in range(5)], axis=0)


stacks = {name: median_of_starts(step) for name, step in steps.items()}

# %% [markdown]
# ### Words become alike
#
# How alike have the words become? Measure how much of each vector is its *own*. Take two words, $(3, 1)$ and $(1, 3)$.
# Their average, $(2, 2)$, is what they share; $(1, -1)$ and $(-1, 1)$ are their own. Square all entries, add, and take
# the root: 2 for the own parts, $\sqrt{20}$ for the words. The **own share** is $2 / \sqrt{20} = 0.45$. In general,
# with the vectors as rows of $X$ and their average $\bar X$ (for vectors of equal length the mean cosine, each with
# itself included, is 1 minus the square of the own share):
#
# $$\frac{\lVert X - \bar X \rVert}{\lVert X \rVert} .$$
#
# **Predict first.** With attention alone, after how many layers is the own share below a tenth? And does adding prevent
# that?

# %% tags=["plot"] mystnb={"image": {"alt": "Own share against the layer, 1 to 24, medians of five random initialisations. Attention alone falls to 0 within four layers; after 16 layers added is at 0.06 and post-norm at 0.02; pre-norm is at 0.27 after 24."}}
COLORS = [plots.RED, plots.GOLD, plots.BLUE, plots.TEAL]


def show_stacks(row, title, labels, **axes_settings):
    """A row of `measure` for the four stacks; `labels`: names, and where they go."""
    _, axes = plt.subplots(figsize=(5.4, 2.6))
    for name, color in zip(steps, COLORS, strict=True):
        rows = stacks[name]
        axes.plot(range(1, 25), rows[row], color=color)
    for (name, x, y), color in zip(labels, COLORS, strict=True):
        axes.text(x, y, name, color=color)
    axes.set(title=title, xlabel="layer", xticks=[1, 8, 16, 24], **axes_settings)
    plt.show()


show_stacks(
    0,
    "own share",
    [
        ("alone", 3, 0.04),
        ("added", 10.3, 0.27),
        ("post-norm", 3.1, 0.17),
        ("pre-norm", 16, 0.37),
    ],
)

# %% [markdown]
# With attention alone the own share is below 0.05 after two layers, and 0 after four: all sixteen words are practically
# one vector, because each layer replaces words by weighted averages of the same words, and while the weights are spread
# out, such averages are more alike than the words. The effect feeds on itself: the more alike the words, the more even
# the weights, and with even weights every word receives the same average. This is called *oversmoothing*, or **rank
# collapse**, since equal rows make a matrix of rank 1.
#
# From this initialisation *added* and post-norm only delay the collapse. Only with pre-norm does the share stay above a
# tenth over these 24 layers. Why? Once words are mostly alike, attention returns nearly the same vector to all of them.
# Write a word as $c + w$, what is common to all and what is its own, and let $c$ have size 1. Attention adds another
# common vector. $W_V$ and $W_O$ keep sizes, so that vector has size 1, too. Then the new common part has size
# $\sqrt 2$, because random matrices turn it nearly at right angles to $c$. The word's own part is still $w$, so its
# share has fallen by a factor of $\sqrt 2$. This repeats in every layer. Post-norm divides everything, $w$ too, by
# $\sqrt 2$, and adds a vector of size 1 again. In *added* the next attention reads a stream of size $\sqrt 2$, so it
# adds as much. Either way the share falls by $\sqrt 2$ again. In pre-norm attention reads a normalised copy. So it adds
# vectors of size 1 while the stream grows, and each layer lowers the share by less than the one before ([in
# numbers](#how-fast-do-words-become-alike)).
#
# Why does the collapse matter? Equal vectors at the top give the same answer at every position. And attention has
# nothing to choose: if two words have the same value $v$, a query receives $a v + (1 - a) v = v$, whatever weights $a$
# and $1 - a$ it gives them. $W_Q$ acts only through such weights, so in the high layers, with attention alone and with
# post-norm, it gets [hardly any gradient](#how-do-size-and-gradient-change-with-the-layer).
#
# ### What helps
#
# - **Pre-norm.** Suppose that every layer adds a vector of size 1, as large as the word, the same for all words and at
#   right angles to what is there. After $n$ layers the stream has the size $\sqrt{1 + n}$, by Pythagoras, and the
#   word's own part still has size 1. Its share is $1/\sqrt{1 + 24} = 0.2$ after 24 layers. Measured, it is 0.27. The
#   price is that the upper layers change the stream less and less.
# - **A small initialisation** of the matrices that write into the stream, $W_O$ and $W_2$. GPT-2 divides them by the
#   square root of the number of sublayers. Then 24 additions of size at most $1/\sqrt{24}$, nearly at right angles, are
#   together at most as large as the word itself. Measured, the own share is above 0.9 after 24 layers, in *added*,
#   post-norm and pre-norm.
#

# %% tags=["proof"]
small_start = {
    "added, small": lambda x, attend: x + attend(x) / np.sqrt(24),
    "post-norm, small": lambda x, attend: norm(x + attend(x) / np.sqrt(24)),
    "pre-norm, small": lambda x, attend: x + attend(norm(x)) / np.sqrt(24),
}
stacks |= {name: median_of_starts(step) for name, step in small_start.items()}

alone, added, post, pre, *small_ones = stacks.values()
two = np.array([[3, 1], [1, 3]])
assert (
    round(np.linalg.norm(two - two.mean(axis=0)) / np.linalg.norm(two), 2) == 0.45
)
assert (
    0.7 < alone[0, 0] < 0.76
    and 0.025 < alone[0, 1] < 0.045
    and alone[0, 3] < 1e-6
    and alone[2, 3:].max() < 1e-6
)
own, common = alone[0] * alone[1], np.sqrt(1 - alone[0] ** 2) * alone[1]
assert 0.255 < own[0] < 0.285 and 0.245 < common[0] < 0.275
assert 24 < own[0] / own[1] < 36
assert post[0, -1] < added[0, -1] < 0.01 and round(pre[0, -1], 2) == 0.27
assert post[0, 15] < added[0, 15] < pre[0, 15]
assert (
    1000 < added[1, -1] < 1500
    and 1.3 < (added[1, -1] / added[1, 0]) ** (1 / 23) < 1.4
)
assert np.allclose(post[1], 1, atol=1e-3) and round(pre[1, -1], 1) == 4.1
assert (
    500 < added[2, -1] < 4000
    and 1e5 < added[2, 0] / added[2, -1] < 1e8
    and post[2, 3] > 0.1
    and post[2, -1] < 1e-4
)
assert 30 < pre[2, 0] / pre[2, -1] < 80 and pre[2].min() > 0.02


@torch.no_grad()
def undecided(seed):
    """Added: which share of the queries in layer 24 hesitates between words."""
    torch.manual_seed(seed)
    x = torch.randn(50, 16, 64)
    for _ in range(24):
        y, weights = fresh_attention()(x, x, x, need_weights=True)
        x = x + y
    return (weights.amax(dim=-1) < 0.999).float().mean().item()


assert min(map(undecided, range(5))) > 0 and max(map(undecided, range(5))) < 0.01


def own_share(without, steps, seed):
    model, _, _ = learn(
        "reverse", without=without, learning_rate=0.005, steps=steps, seed=seed
    )
    with torch.no_grad():
        x = model[:2](torch.randint(10, (200, 12)))
    return ((x - x.mean(dim=1, keepdim=True)).norm() / x.norm()).item()


around = "residual, attention"
assert 0.4 < own_share(None, 0, seed=0) < 0.5
assert max(own_share(around, 0, seed) for seed in range(3)) < 0.01
assert 0.93 < own_share(None, 600, seed=0) < 0.97
assert own_share(around, 600, seed=0) > 0.5
for small in small_ones:
    assert small[0].min() > 0.91 and small[2].min() > 0.3
assert np.round(pre[1, [7, -1]] ** 2).tolist() == [4, 17]
assert (
    round(pre[0, 7] / pre[0, -1], 1) == 2.1 and 170 < post[0, 7] / post[0, -1] < 180
)

# %% [markdown]
# ## Does training agree?
#
# Do stacks whose words stay apart learn better? Stack **twelve** whole layers in four ways (*no norm* joins them like
# *added* above). Train *reverse* as before, with the best of ten learning rates:
#
# | | a sublayer computes | initialisation |
# |---|---|---|
# | pre-norm | $x + f(\operatorname{LN}(x))$ | Glorot's |
# | post-norm | $\operatorname{LN}(x + f(x))$ | Glorot's |
# | post-norm, small init | the same | $W_O$ and $W_2$ divided by $\sqrt{24}$, for 24 sublayers |
# | no norm | $x + f(x)$ | Glorot's |
#
# **Predict first**: which of the four learn within 600 steps?


# %% four deep stacks, before and after training tags=["hide-input"]
def before_training(name, rows):
    """Own share and size after the twelfth layer, the median of three starts."""
    starts = []
    for seed in range(3):
        model, *_ = learn(
            "reverse",
            norm_first=name.startswith("pre"),
            without=rows[0].get("without"),
            small_start="small" in name,
            glorot="PyTorch" not in name,
            num_layers=12,
            steps=0,
            seed=seed,
        )
        with torch.no_grad():
            x = model[0](torch.randint(10, (200, 12)))
            for layer in model[1].layers:
                x = layer(x)
        own = (x - x.mean(dim=1, keepdim=True)).norm() / x.norm()
        starts.append([own.item(), x.square().mean().sqrt().item()])
    return np.median(starts, axis=0)


deep = {}
for row in measurement["deep"]:
    if "without" in row:
        name = f"no {row['without']}"
    else:
        name = "pre-norm" if row["norm_first"] else "post-norm"
    name += ", small init" if row.get("small_start") else ""
    name += "" if row.get("glorot", True) else ", PyTorch's init"
    deep.setdefault(name, []).append(row)
longer = dict(zip(deep, measurement["longer"], strict=False))


def print_stacks(*names):
    print(f"{'':27}own share    right after 600 steps     steps until 99%")
    print(f"{'':28}at first   seed 1  seed 2  seed 3        are right")
    for name in names:
        rows = deep[name]
        own, size = before_training(name, rows)
        best = max(rows, key=lambda row: np.mean(row["right"]))
        shares = " ".join(f"{share:7.1%}" for share in best["right"])
        steps_needed, most = longer[name]["learned_at"], longer[name]["steps"]
        needed = f"more than {most:,}"
        if None not in steps_needed:
            needed = f"{min(steps_needed):,} to {max(steps_needed):,}"
        print(f"{name:26}{own:10.2f}  {shares}{needed:>19}")
        learned = max(min(row["right"]) for row in rows) > 0.98
        assert own > 0.4 if learned else own < 0.035
        assert 200 < size < 400 if name == "no norm" else size < 5


print_stacks("pre-norm", "post-norm, small init", "post-norm", "no norm")

# %% [markdown]
# The two stacks whose words still differ before training, with an own share above 0.4 after the twelfth layer, learn
# within 600 steps: pre-norm, and post-norm from the small initialisation. Post-norm with Glorot's initialisation (own
# share 0.02) has an accuracy of 26 percent, no more than if it always gave the most frequent digit. It is slow, but not
# stuck: at a low learning rate it learns after 2,200 to 2,600 steps. This is a pattern and no proof: we did not vary
# the own share alone, and pre-norm also gives gradients a path past the norms. But [three more
# stacks](#three-more-deep-stacks) fit it.
#
# *No norm* (own share 0.03) has a second fault: its [numbers explode](#how-do-size-and-gradient-change-with-the-layer).
# So a norm prevents the explosion. It does not always prevent the collapse. Against collapse it helped here to keep
# each layer's addition small beside the stream. And from Glorot's initialisation three layers learned without norms,
# but twelve did not in 5,000 steps: a shallow model is no test of a deep one.

# %% tags=["proof"]
learns = {"pre-norm": 5, "post-norm, small init": 6, "no norm, small init": 5}
learns["post-norm, PyTorch's init"] = 3
for name, rows in deep.items():
    shares = np.array([row["right"] for row in rows])
    assert shares.shape == (10, 3)
    assert (
        0 < shares.mean(axis=1).argmax() < 9
    )  # the best learning rate lies inside
    if name in learns:
        assert (shares.min(axis=1) > 0.98).sum() == learns[name]
    else:
        most = {"post-norm": 0.28, "no norm": 0.13, "no residual": 0.22}
        assert shares.max() < most[name]
assert all(loss is None for loss in deep["no norm"][0]["losses"])
for name, rows in deep.items():  # the same stacks, in the same order
    best = max(rows, key=lambda row: np.mean(row["right"]))
    same = longer[name].keys() - {"steps", "learned_at"}
    assert all(longer[name][setting] == best[setting] for setting in same)
quick = [n for name in learns for n in longer[name]["learned_at"]]
assert min(quick) >= 140 and max(quick) < 460
for name in ("pre-norm", "post-norm, small init"):
    assert max(longer[name]["learned_at"]) < 200
assert min(longer["post-norm"]["learned_at"]) > 2150
assert max(longer["post-norm"]["learned_at"]) < 2600
for name in ("no norm", "no residual"):
    assert longer[name]["learned_at"] == [None] * 3
    assert longer[name]["steps"] == 5000
_, first_losses, _ = learn("reverse", without="norm", num_layers=12, steps=1)
assert first_losses[0] > 100
random_digits = F.one_hot(torch.randint(10, (20_000, 12)), 10).sum(dim=1)
betting = random_digits.max(dim=1).values.double().mean().item() / 12
stuck = np.max([np.mean(row["right"]) for row in deep["post-norm"]])
assert 0.255 < betting < 0.265 and 0.255 < stuck < 0.27

# %% tags=["quiz"]
quiz.several_choices(
    "Twelve post-norm layers with Glorot's initialisation do not learn *reverse* in 600 steps. Which of these let a stack of twelve learn it here within 600 steps? (More than one may be right.)",
    quiz.right(
        "Putting the norm in front of each sublayer",
        "Yes: what each layer adds is then limited in size, so it changes the growing stream less and less, and the words stay apart.",
    ),
    quiz.right(
        "Smaller initial weights in $W_O$ and $W_2$",
        "Yes: each layer then adds little at first, and the words stay apart.",
    ),
    quiz.wrong(
        "A higher learning rate",
        "Ten were tried, up to 0.02. At none of them did it learn in 600 steps.",
    ),
    quiz.wrong(
        "Leaving out the residual connections",
        "Without them each layer replaces its words by averages, and they become alike even faster.",
    ),
)

# %% [markdown]
# ## What does a position hold after a few layers?
#
# In the last two sections mixing was a danger. But it is also what attention is for. Train three layers on *reverse*,
# for 400 steps. Can the position's *own* digit be read from a layer's output, and can the digit to *output* there, the
# mirrored one? Reading means applying a linear map, fitted on some sequences and tested on others: a **linear probe**.

# %% a linear probe after each layer tags=["hide-input"]
model, _, _ = learn("reverse")
digits = torch.randint(10, (400, 12))
with torch.no_grad():
    streams = [model[0](digits)]
    for layer in model[1].layers:
        streams.append(layer(streams[-1]))


def probe(vectors, wanted):
    """Share of digits that a linear map reads off correctly: fit, then test."""
    rows = F.pad(vectors, (0, 1), value=1.0).double()  # with a constant
    codes = F.one_hot(wanted, 10).double()
    fit = torch.linalg.lstsq(rows[:200].flatten(0, 1), codes[:200].flatten(0, 1))
    read = (rows[200:] @ fit.solution).argmax(dim=-1)
    return (read == wanted[200:]).double().mean().item()


print("read right: own digit, digit to output")
for depth, stream in enumerate(streams):
    own, due = probe(stream, digits), probe(stream, digits.flip(1))
    print(f"after layer {depth}: {own:9.0%} {due:17.0%}")
    assert own > 0.7 and (due > 0.99 if depth > 1 else due < 0.33)

# %% [markdown]
# At the bottom, layer 0, a vector is a digit's embedding plus its position, so it holds its own digit and nothing of
# the one to output. After layer 1 the one to output is read right in less than a third of the cases, and the digit of
# any other position, we measured, in about 20 percent: this layer seems to spread a little of each everywhere. After
# the second layer, with some seeds only after the third, both can be read from one vector of 32 numbers. (That a digit
# can be read does not say that the model [uses it](#which-layer-fetches-the-digit).)

# %% [markdown]
# So what layer 3 reads at a position is **no longer its word alone**. In a language model such vectors are called
# **contextual**: the same word has the same row of the embedding table in every sentence, and at layer 5 a different
# vector in each. In an attention map of that layer, a line to the word *bank* leads to everything that lower layers
# have written at that position.

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: The layer, from memory
#
# *Medium, 30 minutes.* Without scrolling up, write the layer in both orders, attention included. Your function receives
# PyTorch's layer, `theirs`, and takes the parameters from it: `norm1`, `norm2`, `linear1`, `linear2`,
# `self_attn.out_proj`, all of which you may call, and two tensors, `self_attn.in_proj_weight` $(3D, D)$, which holds
# $W_Q^\top$, $W_K^\top$ and $W_V^\top$, one below the other, and `self_attn.in_proj_bias`. `self_attn.num_heads` and
# `norm_first` say how to use them. The check compares with `theirs(x)` and names the common mistakes.


# %% tags=["exercise"]
def encoder_layer(theirs, x, real):
    """x (B, T, D), real (B, T), True for a token and False for padding -> (B, T, D)."""
    ...


# %% tags=["check"]
def same_layer(theirs, x, real):
    return theirs(x, src_key_padding_mask=~real)


def variant(
    order=lambda theirs: theirs.norm_first,
    through=lambda x, norm: x,
    slip=lambda x: 0,
    second=lambda theirs: theirs.norm2,
    onto=lambda x, before: x,
    activation=torch.relu,
    project=lambda x, weight: x @ weight.T,
    root=lambda d_k, d_model: math.sqrt(d_k),
    split=lambda y, shape: y.reshape(shape).transpose(1, 2),
    hidden=lambda real: ~real,
):
    """The layer with one step replaced."""

    def layer(theirs, x, real):
        (B, T, D), attention = x.shape, theirs.self_attn
        H = attention.num_heads

        def attend(x):
            q, k, v = (
                split(project(x, weight) + bias, (B, T, H, D // H))
                for weight, bias in zip(
                    attention.in_proj_weight.chunk(3),
                    attention.in_proj_bias.chunk(3),
                    strict=True,
                )
            )
            scaled = q @ k.transpose(-2, -1) / root(D // H, D)
            scaled = scaled.masked_fill(hidden(real)[:, None, None], -1e9)
            y = (scaled.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, T, D)
            return attention.out_proj(y)

        def feed_forward(x):
            return theirs.linear2(activation(theirs.linear1(x)))

        norm1, norm2 = theirs.norm1, second(theirs)
        if order(theirs):
            y = through(x, norm1) + attend(norm1(x))
            return onto(through(y, norm2), x) + feed_forward(norm2(y))
        y = slip(x) + norm1(x + attend(x))
        return slip(y) + norm2(onto(y, x) + feed_forward(y))

    return layer


def draw_case(norm_first, num_heads):
    torch.manual_seed(num_heads)
    theirs = nn.TransformerEncoderLayer(
        8, num_heads, 12, norm_first=norm_first, batch_first=True
    )
    for parameter in theirs.requires_grad_(False).parameters():
        nn.init.normal_(parameter, std=0.5)
    real = torch.ones(2, 5, dtype=torch.bool)
    real[1, 3:] = False
    return theirs.double().eval(), torch.randn(2, 5, 8).double(), real


check_layer = partial(
    checks.check,
    reference=same_layer,
    cases=[draw_case(False, 2), draw_case(True, 4)],
    mistakes={
        "you wrote post-norm only; with `norm_first` the norm stands before the sublayer": variant(
            order=lambda theirs: False
        ),
        "you wrote pre-norm only; without `norm_first` the norm takes the sum, x + f(x)": variant(
            order=lambda theirs: True
        ),
        "in pre-norm you add to norm(x); the stream itself passes no norm": variant(
            through=lambda x, norm: norm(x)
        ),
        "in post-norm x enters twice: x + LN(x + f(x))": variant(slip=lambda x: x),
        "the feed-forward network uses the first norm again": variant(
            second=lambda theirs: theirs.norm1
        ),
        "the second sum adds to what entered the layer; add to what attention's sum left": variant(
            onto=lambda x, before: before
        ),
        "the residual connection around the feed-forward network is missing": variant(
            onto=lambda x, before: 0
        ),
        "there is no ReLU between the two linear maps": variant(
            activation=lambda x: x
        ),
        "`nn.Linear` multiplies by its weight transposed": variant(
            project=lambda x, weight: x @ weight
        ),
        "you divide by the root of D; a score sums the d_k products of one head": variant(
            root=lambda d_k, d_model: math.sqrt(d_model)
        ),
        "you reshape straight to (B, H, T, d_k), and a head mixes up the positions": variant(
            split=lambda y, shape: y.reshape(shape[0], shape[2], shape[1], -1)
        ),
        "the mask is reversed: only the padding is attended to": variant(
            hidden=lambda real: real
        ),
        "the padding is not hidden": variant(
            hidden=lambda real: torch.zeros_like(real)
        ),
    },
)
check_layer(encoder_layer)


# %% tags=["solution"]
def encoder_layer(theirs, x, real):
    B, T, D = x.shape
    attention = theirs.self_attn

    def attend(x):
        joined = x @ attention.in_proj_weight.T + attention.in_proj_bias
        q, k, v = (  # each (B, H, T, d_k)
            part.reshape(B, T, attention.num_heads, -1).transpose(1, 2)
            for part in joined.chunk(3, dim=-1)
        )
        scaled = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scaled = scaled.masked_fill(~real[:, None, None], -math.inf)
        heads = scaled.softmax(dim=-1) @ v
        return attention.out_proj(heads.transpose(1, 2).reshape(B, T, D))

    def feed_forward(x):
        return theirs.linear2(theirs.linear1(x).relu())

    if theirs.norm_first:
        x = x + attend(theirs.norm1(x))
        return x + feed_forward(theirs.norm2(x))
    x = theirs.norm1(x + attend(x))
    return theirs.norm2(x + feed_forward(x))


verdict = check_layer(encoder_layer)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: Count the parameters
#
# *Medium, 15 minutes.* How many parameters does one encoder layer have? Write the formula, with all biases and both
# norms. (For $D = 512$ and $d_\text{ff} = 2048$ it is 3,152,384. The check compares with the book's own layer,
# `EncoderLayer`.)


# %% tags=["exercise"]
def count_parameters(d_model, d_ff):
    """Number of parameters of one encoder layer."""
    ...


# %% tags=["check"]
check_count = partial(
    checks.check,
    reference=lambda d, f: parameters(
        EncoderLayer(LayerConfig(d_model=d, num_heads=2, d_ff=f))
    ),
    cases=[(8, 32), (6, 10), (512, 2048)],
    mistakes={
        "the biases are missing, and the norms": lambda d, f: 4 * d * d + 2 * d * f,
        "the two norms are missing: a gain and a bias each": lambda d, f: (
            4 * (d * d + d) + 2 * d * f + d + f
        ),
        "each norm has a bias too, beside its gain": lambda d, f: (
            4 * (d * d + d) + 2 * d * f + d + f + 2 * d
        ),
        "attention has four matrices: the heads' outputs are mixed by $W_O$": lambda d, f: (
            3 * (d * d + d) + 2 * d * f + d + f + 4 * d
        ),
        "the second linear map has a bias of width D, not d_ff": lambda d, f: (
            4 * (d * d + d) + 2 * d * f + 2 * f + 4 * d
        ),
    },
)
check_count(count_parameters)


# %% tags=["solution"]
def count_parameters(d_model, d_ff):
    attention = 4 * (d_model * d_model + d_model)
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    norms = 2 * 2 * d_model
    return attention + feed_forward + norms


verdict = check_count(count_parameters)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: Back through the norm
#
# *Harder, 25 minutes.* Given $x$ $(T, D)$ and the gradient for $y = \operatorname{LayerNorm}(x)$, with gain 1, bias 0
# and $\epsilon = 0$, return the gradient for $x$, in NumPy. Start with one vector: $y_i = (x_i - \mu) / \sigma$. Both
# $\mu$ and $\sigma$ depend on every entry, with $\partial \mu / \partial x_j = 1 / D$ and
# $\partial \sigma / \partial x_j = y_j / D$, so the gradient comes back along three paths. (A test of your result:
# shifting $x$, or stretching it about its mean, changes nothing in $y$. So the gradient has no part along either
# direction.)


# %% tags=["exercise"]
def layer_norm_backward(x, d_y):
    """Gradient for x (T, D), given that for its layer norm (T, D)."""
    ...


# %% tags=["check"]
def parts_of(x):
    spread = x.std(axis=-1, keepdims=True)
    return (x - x.mean(axis=-1, keepdims=True)) / spread, spread


def mean(values):
    return values.mean(axis=-1, keepdims=True)


def by_autograd(x, d_y):
    leaf = torch.tensor(x, requires_grad=True)
    F.layer_norm(leaf, leaf.shape[-1:], eps=0.0).backward(torch.tensor(d_y))
    return leaf.grad.numpy()


rng = np.random.default_rng(0)
check_norm = partial(
    checks.check,
    reference=by_autograd,
    cases=[
        tuple(rng.standard_normal((2, *shape)))
        for shape in [(1, 4), (3, 6), (4, 4)]
    ],
    mistakes={
        "the mean's share is missing: subtract the mean of the gradient": lambda x, d: (
            (d - parts_of(x)[0] * mean(d * parts_of(x)[0])) / parts_of(x)[1]
        ),
        "the deviation's share is missing: what points along y must go": lambda x, d: (
            (d - mean(d)) / parts_of(x)[1]
        ),
        "divide by the deviation at the end": lambda x, d: (
            d - mean(d) - parts_of(x)[0] * mean(d * parts_of(x)[0])
        ),
        "mean and deviation depend on x too": lambda x, d: d / parts_of(x)[1],
    },
)
check_norm(layer_norm_backward)


# %% tags=["solution"]
def layer_norm_backward(x, d_y):
    deviation = x.std(axis=-1, keepdims=True)
    y = (x - x.mean(axis=-1, keepdims=True)) / deviation
    from_mean = d_y.mean(axis=-1, keepdims=True)
    from_deviation = y * (d_y * y).mean(axis=-1, keepdims=True)
    return (d_y - from_mean - from_deviation) / deviation


verdict = check_norm(layer_norm_backward)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# A layer adds twice to every word's residual stream: attention brings something from other words, and the feed-forward
# network works on each word alone, with two thirds of the parameters. With Glorot's weights, words become alike within
# a few layers without the adding, and the adding alone only delays that. Norms keep what a sublayer receives within
# bounds. Our deep stacks learned quickly only where, before training, each word still had much of its own at the top:
# put the norm first, or start small. After a few layers a position holds more than its word.
#
# **Sources.** The encoder: [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762), section 3.1. Residual
# connections: [He and others (2015)](https://arxiv.org/abs/1512.03385). Layer norm: [Ba, Kiros and Hinton
# (2016)](https://arxiv.org/abs/1607.06450). Attention alone loses rank: [Dong, Cordonnier and Loukas
# (2021)](https://arxiv.org/abs/2103.03404), who find that residual connections and feed-forward networks counteract it.
# Order of norm and sum: [Xiong and others (2020)](https://arxiv.org/abs/2002.04745) and [Liu and others
# (2020)](https://arxiv.org/abs/2004.08249). The feed-forward network as a memory: [Geva and others
# (2020)](https://arxiv.org/abs/2012.14913). The random initialisation: [Glorot and Bengio
# (2010)](https://proceedings.mlr.press/v9/glorot10a.html).
#
# **Next.** An encoder reads. [Chapter 9](09_decoder.ipynb) adds the part that writes: it must not see its own future,
# and it may look at what the encoder read.

# %% [markdown]
# ## Going further
#
# ### What does the network store?
#
# Two thirds of a layer's parameters are the feed-forward network's. What does it do with so many? Written entry by
# entry, it is a look-up. Its keys are the columns $k_i$ of $W_1$, its values the rows $v_i$ of $W_2$. Without the
# biases,
#
# $$\operatorname{FeedForward}(x) = \sum_{i=1}^{d_\text{ff}} \operatorname{ReLU}(x \cdot k_i) \; v_i .$$
#
# These keys and values do not come from the sentence: they are trained, and the same for every text (a **key-value
# memory**). The weight of a value is $\operatorname{ReLU}(x \cdot k_i)$, and no softmax is applied to it. So the
# weights need not sum to 1, and any number of keys may answer. [Geva and others
# (2020)](https://arxiv.org/abs/2012.14913) found such keys in a trained model that answer to a pattern in the text,
# and, in the upper layers, values that tend to raise the probability of words that often follow it. Attention looks up
# *in the sentence*; the feed-forward network looks up *what training has stored*.
#
# ### Can one layer add without a feed-forward network?
#
# In 600 steps [three layers](#what-is-each-part-for-leave-it-out) nearly can. Here is one, complete and without the
# network:

# %% one layer, with and without its network tags=["hide-input"]
print("add, one layer: share right of three seeds, at the best learning rate")
single = {}
for without in (None, "feed-forward"):
    rows = [row for row in measurement["one_layer"] if row["without"] == without]
    means = [np.mean(row["right"]) for row in rows]
    single[without] = rows[int(np.argmax(means))]
    shares = "  ".join(f"{share:6.1%}" for share in single[without]["right"])
    print(
        f"{f'without {without}' if without else 'complete':22}{shares}   at {single[without]['learning_rate']}"
    )
    assert 0 < np.argmax(means) < len(rows) - 1  # the best lies inside
_, _, right = learn("add", without="feed-forward", num_layers=1, steps=2000)
print(f"without it, one seed, after 2,000 steps: {np.mean(right[-100:]):.0%}")
assert 0.95 < np.mean(right[-100:]) < 0.99
assert (
    min(single[None]["right"]) > 0.99
    and min(single["feed-forward"]["right"]) > 0.72
    and max(single["feed-forward"]["right"]) < 0.8
)
for without in single:
    one, _, _ = learn(
        "add", False, without, learning_rate=0.01, steps=600, num_layers=1
    )
    with record_weights(one[1]) as seen, torch.no_grad():
        one(torch.randint(10, (400, 12)))
    [weights] = seen.values()  # (400, 4 heads, 12, 12)
    assert 0.45 < weights.flip(-1).diagonal(dim1=-2, dim2=-1).mean() < 0.6

# %% [markdown]
# With one layer, the missing network shows: after 600 steps 73 to 79 percent of the digits are right without it, and
# all of them with it. Fetching is not the problem: with and without the network the four heads give the mirrored
# position about half of their weight. The problem is combining the two digits, as in *not bad*. With fixed weights, and
# without norms, each of the ten possible answers would get a number for one digit plus a number for the other, and [no
# such scores get all 100 cases right](#why-can-a-sum-not-add-digits). Norms and word-dependent weights get round this,
# but slowly: after 2,000 steps, at a learning rate of 0.005, 97 percent are right.
#
# An ablation of your own needs the same care: a learning rate for each model, with the best inside the range that you
# tried, several seeds, and what guessing scores. Train longer before you say *cannot* instead of *not yet*. And a part
# takes its parameters along, so compare with a model of equal size, too (we did not).
#
# ### Why can a sum not add digits?
#
# Let the score of answer $c$ be $u_c(a) + v_c(b)$ when the two digits are $a$ and $b$. If the right answer won in all
# 100 cases, its score would be above that of a wrong one each time, say of $a + b + 1$ (modulo 10, throughout), and so
# would the total:
#
# $$\sum_{a, b} \bigl( u_{a+b}(a) + v_{a+b}(b) \bigr) > \sum_{a, b} \bigl( u_{a+b+1}(a) + v_{a+b+1}(b) \bigr) .$$
#
# But for each $a$, as $b$ runs through the digits, $a + b$ takes every value once, and so does $a + b + 1$. So both
# sides contain every $u_c(a)$ once, and likewise every $v_c(b)$. They are equal.
#
# ### How fast do words become alike?
#
# Compare the size of what attention adds with that of the stream, in the [deep
# stacks](#what-goes-wrong-in-a-deep-stack).
#
# - **Attention alone** adds nothing: it returns averages. At first nearly all of a word is its own: the average of 16
#   random words has a 16th of their mean square, so the common part begins at a size of about $\sqrt{1/16} = 0.25$ and
#   the own parts at $\sqrt{15/16} = 0.97$. The own parts point in random directions, so averaging shrinks them: after
#   the first layer 0.27 is measured. It does not shrink the common part, measured as 0.26, so both parts are about
#   equal now. But the vectors are less than half as long as before. Shorter vectors have smaller scores, which make the
#   weights nearly even, and so the second layer shrinks the own parts thirty times.
# - **Post-norm** scales every sum back to size 1, so once words are mostly alike, what is added next is about as large
#   as the stream, and the own share should fall by a factor of about $\sqrt 2$ in each layer, as
#   [above](#words-become-alike).
# - **Pre-norm** adds size 1, or less, while the stream grows. Its size is 2 after layer 8 and 4.1 after layer 24, so
#   its square grows from 4 to 17.
#
# So if attention added nothing to a word's own part, its share should fall from layer 8 to layer 24 by a factor of
# about $\sqrt{17/4} = 2.1$ with pre-norm, and of $\sqrt 2^{16} = 256$ with post-norm. Measured, it falls by 2.1, and by
# a little over 170.
#
# And in training? The complete model of [the ablation](#what-is-each-part-for-leave-it-out) begins with an own share of
# 0.45, and training raises it to 0.95. Without the residual connection around attention it begins with at most 0.01,
# and 600 steps raise that above 0.5 (in the first run), but at best about a third of the digits are right. In 5,000
# steps two of three runs learn *reverse*.

# %% [markdown]
# ### How do size and gradient change with the layer?

# %% tags=["plot"] mystnb={"image": {"alt": "Size of an entry against the layer, 1 to 24, on a logarithmic axis: added grows to over 1000, post-norm stays at 1, pre-norm grows slowly to 4, alone falls to 0.25."}}
show_stacks(
    1,
    "size of an entry (root mean square)",
    [
        ("alone", 18, 0.42),
        ("added", 14, 200),
        ("post-norm", 18, 1.25),
        ("pre-norm", 16, 4.5),
    ],
    yscale="log",
)

# %% [markdown]
# Only *added* explodes: slowly at first, and then by a factor of about $\sqrt 2$ in each layer. (In the [trained
# stacks](#does-training-agree), *no norm* has this fault: with Glorot's initialisation its entries have grown to nearly
# 300, and its first loss is above 100.)
#
# Begin the backward pass at the top with a gradient of length 1. How long is the gradient of each layer's $W_Q$?

# %% tags=["plot"] mystnb={"image": {"alt": "Gradient of W_Q against the layer, 1 to 24, on a logarithmic axis: alone falls to 1e-8 by the fourth layer; added is over 1e9 in the first layers; post-norm falls from 3 to 1e-5, pre-norm from 10 to 0.2."}}
show_stacks(
    2,
    "gradient of $W_Q$",
    [
        ("alone", 16, 3e-7),
        ("added", 16, 3e6),
        ("post-norm", 13, 1e-5),
        ("pre-norm", 18, 2),
    ],
    yscale="log",
)

# %% [markdown]
# Where words are alike there is nothing to choose between, and another choice would change nothing. So with attention
# alone $W_Q$ gets no gradient from the fourth layer on (values near 1e-8 are rounding), and with post-norm hardly any
# near the top. With pre-norm every layer's $W_Q$ gets a gradient, the top layer a fiftieth of the lowest one's.
#
# *Added* has the opposite fault. In the top layer scores are products of huge vectors, so more than 99 in 100 queries
# give practically all their weight to one word, and a small change of $W_Q$ does not alter that. Only the few undecided
# queries contribute a gradient, and huge vectors enter it as factors, so its length is about a thousand. On its way
# down, the stream's gradient grows in every layer, so in the first layers that of $W_Q$ is about a million times as
# large.

# %% [markdown]
# Here are the stacks after their last layer, and three more, in which attention's output is divided by $\sqrt{24}$:

# %% size and gradient at the top tags=["hide-input"]
print("after 24 layers    own share      size   gradient of W_Q in layer 24")
for name, (shares, sizes, queries) in stacks.items():
    print(f"{name:18}{shares[-1]:10.3f}{sizes[-1]:10,.1f}{queries[-1]:16.0e}")

# %% [markdown]
# With the small initialisation all three keep an own share above 0.9, and their top layers get a gradient.

# %% [markdown]
# ### Three more deep stacks
#
# Of the [four deep stacks](#does-training-agree), the quick learners were those whose words still differed at the top
# before training. Does that hold for others? Here are three, trained in the same way:
#
# | | a sublayer computes | initialisation |
# |---|---|---|
# | post-norm, PyTorch's init | $\operatorname{LN}(x + f(x))$ | the default of `nn.Linear` |
# | no norm, small init | $x + f(x)$ | $W_O$ and $W_2$ divided by $\sqrt{24}$ |
# | no residual | $\operatorname{LN}(f(x))$ | Glorot's |
#
# The default of `nn.Linear` has, in a square matrix, a third of the variance of Glorot's.

# %% three more deep stacks tags=["hide-input"]
print_stacks("post-norm, PyTorch's init", "no norm, small init", "no residual")

# %% [markdown]
# It does. With PyTorch's initialisation the own share is about a half at first, and post-norm learns, though later than
# from the small one. Without residual connections nothing of a word is left at the top, and 5,000 steps, at the
# learning rate that was best for 600, are not enough. And the stack without any norm learns as quickly as pre-norm,
# provided its weights start small. What do norms add, then? In twelve layers, larger steps: at a learning rate of 0.01,
# from the small initialisation, post-norm still learns with every seed, but without norms the loss diverges. (That is
# not a rule: with three layers, at 0.01, *add* is learned without norms, but not with post-norm.)

# %% tags=["proof"]
at_once = {name: min(rows[1]["right"]) for name, rows in deep.items()}
assert deep["pre-norm"][1]["learning_rate"] == 0.01
assert at_once["post-norm, small init"] > 0.98
assert all(loss is None for loss in deep["no norm, small init"][1]["losses"])
learned = {
    row["without"]
    for row in measurement["parts"]
    if (row["task"], row["learning_rate"]) == ("add", 0.01)
    and min(row["right"]) > 0.5
}
assert learned == {"norm"}
three = measurement["longer"][-1]
assert three["without"] == around and three["steps"] == 5000
assert [step is None for step in three["learned_at"]].count(True) == 1

# %% [markdown]
# ### Does it need warm-up?
#
# The training of the paper starts with a tiny learning rate that grows over 4,000 steps, a **warm-up**. [Xiong and
# others (2020)](https://arxiv.org/abs/2002.04745) trace the need for it to post-norm stacks. A norm divides by the size
# of what it receives, and on the way back it divides the gradient as well. With pre-norm the final norm receives a
# stream that has grown with the depth, and divides the gradients by its size. With post-norm the stream never grows, so
# the gradients of the last layers' feed-forward networks start larger. ($W_2$ acts on every word by itself, so it gets
# a gradient even where words are alike.) Measured here, in twelve layers, the last $W_2$'s gradient has the length 0.41
# with post-norm and 0.10 with pre-norm. So, they argue, full steps at once go wrong: the loss rises, or stays where it
# is, and does not recover. After the warm-up, they find, these gradients are smaller, so the learning rate may be
# large. (Adam divides by a running estimate of the gradient's size, so the size cannot be the whole reason. At first
# this estimate also rests on few batches: [chapter 11](11_training.ipynb#warm-up-and-schedule).)


# %% tags=["proof"]
def last_gradient(norm_first, seed):
    """Length of the gradient of the last W_2 of twelve untrained layers, in the first batch."""
    torch.manual_seed(seed)
    model, *_ = learn("reverse", norm_first, steps=0, num_layers=12, seed=seed)
    digits = torch.randint(10, (32, 12))
    loss = F.cross_entropy(model(digits).flatten(0, 1), digits.flip(1).flatten())
    loss.backward()
    return model[1].layers[-1].feed_forward.down.weight.grad.norm().item()


lengths = [
    np.median([last_gradient(f, seed) for seed in range(5)]) for f in (False, True)
]
assert abs(lengths[0] - 0.41) < 0.06 and abs(lengths[1] - 0.10) < 0.03

# %% [markdown]
# `benchmarks.encoders` trains *reverse*, in three layers, at nine learning rates, three seeds each, for 400 steps, with
# a warm-up of 200 of them or none.
#
# **Predict first.** Post-norm or pre-norm, with warm-up or without: which of the four tolerates the highest learning
# rate?

# %% tags=["plot"] mystnb={"image": {"alt": "Two panels, the loss at the end over the highest learning rate, three seeds each. Post-norm without warm-up learns up to 0.01 and stays above 2 from 0.015 on; with warm-up it learns up to 0.02, and at 0.03 with no seed. Pre-norm without warm-up learns up to 0.02, and at 0.03 with one seed of three; with warm-up it learns up to 0.03, and partly above that."}}
ends = {
    (row["norm_first"], row["warm_up"] > 1, row["learning_rate"]): row["losses"]
    for row in measurement["warm_up"]
}
figure, panels = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
for (norm_first, warm_up, rate), losses in ends.items():
    color = plots.BLUE if warm_up else plots.RED
    apart = 1.03 if warm_up else 0.97  # side by side, where both are 0
    panels[int(norm_first)].plot([rate * apart] * 3, losses, "o", color=color, ms=4)
rates = sorted({rate for *_, rate in ends})
for axes, order in zip(panels, ["post-norm", "pre-norm"], strict=True):
    axes.set(title=order, xlabel="highest learning rate", xscale="log")
    axes.set_xticks([0.0025, 0.01, 0.02, 0.05], ["0.0025", "0.01", "0.02", "0.05"])
    axes.minorticks_off()
panels[0].set_ylabel("loss at the end")
panels[0].text(0.0135, 2.0, "no warm-up", color=plots.RED, ha="right")
panels[0].text(0.024, 0.4, "warm-up", color=plots.BLUE, ha="right")
plt.show()

# %% [markdown]
# Pre-norm with warm-up tolerates the highest: every seed learns up to 0.03. Pre-norm without it, and post-norm with it,
# get to 0.02, and post-norm without it to 0.01. (*Learned* means a loss below 0.3. Which of the two in the middle gets
# further depends on this limit.) At a low enough learning rate, neither pre-norm nor warm-up is needed here. For
# post-norm models of full size Xiong and others found warm-up essential, which this experiment cannot show.

# %% tags=["proof"]
highest = {}
for norm_first, warm_up in product((False, True), (False, True)):
    learns = [r for r in rates if max(ends[norm_first, warm_up, r]) < 0.3]
    highest["pre" if norm_first else "post", warm_up] = max(learns)
    failed = [r for r in rates if r not in learns]
    assert not failed or min(failed) > max(learns)
assert highest["post", False] == 0.01 and highest["post", True] == 0.02
assert highest["pre", False] == 0.02 and highest["pre", True] == 0.03
assert min(ends[False, False, 0.015]) > 2
for limit in (0.98, 0.99):  # stricter than a loss of 0.3
    pre, post = (
        max(
            row["learning_rate"]
            for row in measurement["warm_up"]
            if row["norm_first"] == norm_first
            and (row["warm_up"] > 1) != norm_first
            and min(row["right"]) > limit
        )
        for norm_first in (True, False)
    )
    assert (pre < post) == (limit == 0.98)  # and the other way round at 0.99

# %% [markdown]
# ### Which layer fetches the digit?
#
# In the model that learned *reverse* ([above](#what-does-a-position-hold-after-a-few-layers)), which layer's attention
# fetches the mirrored digit? Here is, for each layer, the mean weight on that position in the head where it is largest,
# and the share of digits that are still right when what this layer's attention finds is thrown away:

# %% weight on the mirrored digit, and what is right without it tags=["hide-input"]
with record_weights(model[1]) as seen, torch.no_grad():
    model(digits)
found = [  # by the head that gives most to the mirrored position
    weights.flip(-1).diagonal(dim1=-2, dim2=-1).mean(dim=(0, 2)).max().item()
    for weights in seen.values()  # (400, 4 heads, 12, 12)
]
rights = []
with torch.no_grad():
    for layer in model[1].layers:
        kept = layer.attention.w_o.weight.clone()
        layer.attention.w_o.weight.zero_()  # what this attention finds is lost
        right = (model(digits).argmax(-1) == digits.flip(1)).float().mean()
        layer.attention.w_o.weight.copy_(kept)
        rights.append(right.item())
matrices = [layer.attention.w_o.weight for layer in model[1].layers[1:]]
kept = [matrix.detach().clone() for matrix in matrices]
with torch.no_grad():
    for matrix in matrices:
        matrix.zero_()
    right = (model(digits).argmax(-1) == digits.flip(1)).float().mean().item()
    for matrix, before in zip(matrices, kept, strict=True):
        matrix.copy_(before)
print("layer   weight on the mirrored digit   right without its attention")
for depth, (weight, share) in enumerate(zip(found, rights, strict=True), 1):
    print(f"{depth:5} {weight:20.2f} {share:30.0%}")
print(f"without the attention of layers 2 and 3: {right:.0%}")
assert right < 0.15 and rights[2] > 0.99 and 0.8 < rights[0] < 1
others = [probe(streams[1], digits.roll(shift, dims=1)) for shift in (1, 4, 8)]
assert min(others) > 0.17 and max(others) < 0.23
assert 0.5 < rights[1] < 2 / 3 and found[1] > 0.9 > 0.2 > found[0]

another, _, _ = learn("reverse", seed=5)
with record_weights(another[1]) as seen, torch.no_grad():
    another(digits)
found = [
    weights.flip(-1).diagonal(dim1=-2, dim2=-1).mean(dim=(0, 2)).max().item()
    for weights in seen.values()
]
assert 0.4 < found[1] < 0.65 and found[2] > 0.95

# %% [markdown]
# It is the second layer's: some head gives the mirrored position nearly all of its weight, and in the first layer none
# gives it more than a fifth, on average. Without the second layer's attention more than half of the digits are still
# right, because in this run the third layer attends to the same position, a *backup*. Without the attention of layers 2
# and 3, the answers are hardly better than chance.

# %% [markdown]
# ### Break it: a norm that is nearly right
#
# The layer norm of the [Annotated Transformer](https://nlp.seas.harvard.edu/annotated-transformer/) divides by the
# *sample* standard deviation, for which the sum of squares is divided by $D - 1$, and adds $\epsilon$ outside the root.
# How far is this norm from PyTorch's?


# %% nearly a norm, beside PyTorch's tags=["hide-input"]
def nearly_layer_norm(x, eps=1e-6):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (x.std(dim=-1, keepdim=True) + eps)


torch.manual_seed(0)
for width in (4, 64, 512):
    x = torch.randn(1000, width, dtype=torch.float64)
    ratio = (nearly_layer_norm(x) / F.layer_norm(x, (width,), eps=0)).mean()
    print(f"width {width:3}: smaller by {1 - ratio:.2%}")
    assert abs(ratio - ((width - 1) / width) ** 0.5) < 1e-4

# %% [markdown]
# At the paper's width it is a tenth of a percent, at width 4 it is 13 percent. Apart from $\epsilon$, the factor is the
# same for every vector, so a trained $\gamma$ absorbs it, and training does not show the mistake. A comparison with a
# reference does, best with a small model.

# %% [markdown]
# ### Short answers
#
# - **Why is $d_\text{ff}$ four times $D$?** By convention: more units can combine more, but cost in proportion. With
#   1,024, 2,048 and 4,096 units [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762), table 3, report 25.4,
#   25.8 and 26.2 BLEU. The parameters grew from 53 to 90 million, so the size may explain the gain.
# - **Which takes more work, attention or the feed-forward network?** With $d_\text{ff} = 4D$ and $T$ tokens, the
#   network takes $8 T D^2$ multiplications, attention's projections $4 T D^2$, and scores and blends $2 T^2 D$. So the
#   network takes more up to $T = 2D$, 1,024 tokens for $D = 512$, and attention beyond, because only scores and blends
#   grow with $T^2$.
# - **Are more layers always better?** Not reliably. With 2, 4, 6 and 8 layers in each of its two stacks, the 2017 model
#   had 23.7, 25.3, 25.8 and 25.5 BLEU (table 3; the last difference may be chance). Depth also costs time that width
#   need not, because each layer waits for the one below.
# - **Why is dropout applied before the addition, and not after it?** Before it, a zeroed entry is missing from one
#   addition, and the word still passes. After the addition, what the entry held is gone: with probability 0.1 at each
#   of 12 sublayers, only $0.9^{12}$, 28 percent of the entries, would survive.
# - **What comes out at padding positions?** Ordinary vectors, in general not zeros. The mask hides padding as a *key*
#   only, so its own queries still read the real tokens, and network and norms run as usual. Leave these rows out of
#   every loss and average, because no error warns you.
# - **Is pre-norm better in every respect?** No. [Liu and others (2020)](https://arxiv.org/abs/2004.08249) argue that
#   depending heavily on what a layer adds makes training unstable, but that depending on it lightly, as with pre-norm,
#   limits the trained model. So where post-norm trains, it may end ahead.
# - **Do the layers share parameters?** Usually not, because each may need a look-up of its own. All shapes agree, so
#   sharing is possible: ALBERT ([Lan and others, 2019](https://arxiv.org/abs/1909.11942)) uses one layer's parameters
#   in all. That saves parameters but no multiplications, because every layer is still computed.
# - **Why attention first, and then the network?** So that the network can use what the same layer has fetched. Side by
#   side, $x + \text{attention}(\operatorname{LN}(x)) + \text{FFN}(\operatorname{LN}(x))$, works too: [Chowdhery and
#   others (2022)](https://arxiv.org/abs/2204.02311) report about 15 percent faster training, with slightly lower
#   quality at 8 billion parameters, and no loss at 62 billion.
# - **Does the stream keep everything that was ever written to it?** No. A sublayer can add the opposite of what is
#   there: $3 + (-3) = 0$. And all layers write to the same $D$ entries, so contributions can overlap and become
#   inseparable. The residual connection makes keeping easy, not certain.
# - **Can a ReLU unit die?** Yes: if its input is negative for every token, its slope is 0, so its weights get no
#   gradient. Zero for *most* tokens is normal: in T5-Base, a trained transformer, about 3 percent of the hidden entries
#   were not 0 on average ([Li and others, 2022](https://arxiv.org/abs/2210.06313)).
# - **What if the norm also averages over tokens?** Then every token depends on all others, padding included, and in a
#   decoder on future words, because they share one mean and variance. `nn.LayerNorm((T, D))` does this, and its gain
#   fixes the length $T$. To notice it, change one token of the norm's input: its outputs at all others change.
# - **What should one log when a deep stack does not learn?** For each layer the stream's size, the own share, and the
#   gradient of $W_Q$. If the size grows by a factor in every layer, the stream explodes. If the own parts, too, are
#   near 0, words have collapsed. If words differ but there is hardly any gradient, look for saturated attention
#   weights.
# - **How does one test that the feed-forward network mixes no tokens?** Change one token: its outputs at all other
#   positions must stay the same. As nothing mixes in it, it works at any length, and attention's mask alone decides who
#   sees whom.
# - **What does layer norm make of $(1, 1, 1, 1)$?** Zeros, and then $\beta$: $\epsilon$ prevents 0/0. It matters only
#   where the variance is not much larger than $\epsilon$. Mean and size are lost, so of $D$ numbers $D - 2$ remain
#   free.
# - **Does a small own share mean that information is lost?** Not by itself: a large vector common to all words gives a
#   small share, or a mean cosine near 1, while each own part is intact, as in pre-norm. Subtract the mean, and measure
#   what is left.
# - **May one multiply the attention maps of all layers?** It is done, but the product ignores values, residual
#   connections and networks. A word's information may lie at other positions, even at a separator. And one position
#   serves as a vector of the sentence only if it was trained for that.

# %% tags=["proof"]
assert round(0.9**12, 2) == 0.28
