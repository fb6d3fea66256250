# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 9. How does a transformer answer?
#
# *Hi, how are you?* goes in, *I am fine* comes out. An encoder can read the question. It is bad at writing: each new
# word would change the vectors of all earlier ones, and it has never learned to do without the words on the right. So
# the transformer of 2017 has a second stack, the **decoder**, which attends to the question and to its own words so
# far. Together they are an **encoder-decoder**, or *sequence-to-sequence*, model. In training the decoder is given the
# right answer, and must predict each *next* word, which a mask hides from it. Would you notice if the mask were
# missing? By the end of this chapter the transformer of the paper is complete, in under eighty lines of code.
#
# You need [chapter 8](08_encoder.ipynb), and the masks of [chapter
# 4](04_self_attention.ipynb#masks-leaving-a-word-out). The chapter takes about 30 minutes to read, and 50 for the
# exercises. [Going further](#going-further), at the end, takes 20 more minutes, and has [a decoder-only
# model](#a-decoder-only-model-that-answers). Only the code? Read [all of it on one screen](#all-of-it-on-one-screen)
# and, in [the leak test](#the-leak-test), the folded `check`.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. The encoder side is built, with embeddings and positions. This chapter adds the decoder side: masked self-attention, cross-attention, the decoder stack, and the output layer. Residual paths lead around each sublayer, and the memory from the top of the encoder's stack to the cross-attention."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, movable, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=9)

# %% [markdown]
# ## The whole model, drawn
#
# Read from bottom to top: token numbers go in, and predictions of the next words come out. In between, each arrow
# carries one vector of width $D$ for each token: $S = 6$ tokens of the question on the left, $T = 4$ of the answer on
# the right. $V$ is the size of the vocabulary, and a batch has $B$ sentences.

# %% tags=["plot"] mystnb={"image": {"alt": "The whole transformer with shapes. Left, from bottom to top: the tokens Hi , how are you ?, shape (S), embeddings and positions, (S, D), then a frame of N encoder layers with self-attention and feed-forward, and out of its top the memory, (S, D). Right: the tokens bos I am fine, (T), embeddings and positions, (T, D), then a frame of N decoder layers with causal self-attention, cross-attention and feed-forward, then a linear map to logits (T, V). Above each sublayer stands a box, add and norm, and a residual path leads around the sublayer into it. An arrow leads from the memory to the cross-attention. At the top stands what must be predicted: I am fine eos."}}
from classroom.diagram import Diagram

drawing = Diagram(7.4, 6.9)
EMBED, SUBLAYERS = 0.95, [1.95, 3.2, 4.45]  # heights; add and norm stand 0.48 above


def half(x, side, sublayers, shape):
    """Embeddings and one layer at x, with its residual paths on that side."""
    drawing.box(x, EMBED, "embed, add positions", 2.1, 0.36, plots.GOLD)
    heights = SUBLAYERS[: len(sublayers)]
    drawing.frame(x, heights[-1] / 2 + 1.25, 2.7, heights[-1] - 0.5, "N times")
    at = "left" if side < 0 else "right"
    below = EMBED + 0.18
    for y, (label, color) in zip(heights, sublayers, strict=True):
        drawing.box(x, y, label, 2.1, 0.36, color)
        drawing.box(x, y + 0.48, "add & norm", 2.1, 0.24, plots.GREY, 9)
        drawing.arrow((x, below), (x, y - 0.18))
        drawing.arrow((x, y + 0.18), (x, y + 0.36))
        drawing.text(x - 0.1 * side, y - 0.3, shape, plots.GREY, at, 9)
        out, edge = x + side * 1.2, x + side * 1.05
        way = (x, y - 0.3), (out, y - 0.3), (out, y + 0.48), (edge, y + 0.48)
        drawing.arrow(*way, color=plots.GREY)
        below = y + 0.6
    return below


blue, red = plots.BLUE, plots.RED
top = half(1.7, -1, [("self-attention", blue), ("feed-forward", red)], "(S, D)")
sublayers = [
    ("causal self-attention", blue),
    ("cross-attention", plots.TEAL),
    ("feed-forward", red),
]
above = half(5.2, 1, sublayers, "(T, D)")
drawing.arrow((1.7, top), (1.7, 4.4), (3.45, 4.4), (3.45, 3.2), (4.13, 3.2))
drawing.text(2.55, 4.58, "memory (S, D)", plots.GREY, size=10)
for x, text, shape in [
    (1.7, "Hi , how are you ?", "(S)"),
    (5.2, "<bos> I am fine", "(T)"),
]:
    drawing.text(x, 0.2, text)
    drawing.arrow((x, 0.37), (x, EMBED - 0.18))
    drawing.text(x + 0.1, 0.55, shape, plots.GREY, "left", 9)
drawing.box(5.2, 5.75, "linear", 2.1, 0.36, plots.GOLD)
drawing.arrow((5.2, above), (5.2, 5.57))
drawing.arrow((5.2, 5.93), (5.2, 6.4))
drawing.text(5.3, 6.15, "logits (T, V)", plots.GREY, "left", 9)
drawing.text(5.2, 6.6, "I am fine <eos>")
plt.show()

# %% [markdown]
# The left half is the encoder of chapter 8, with $N$ layers in a row, and what comes out of its top is called the
# **memory**.
#
# The right half is the decoder. Its layers differ from the encoder's in two ways: their self-attention is masked, so
# that no word sees a later one, and a second attention, the *cross-attention*, looks at the memory. (Most chat models
# have only the right half, without cross-attention, partly because a conversation grows, and has no fixed input. Two
# halves suit an input that is complete before the answer begins, such as a sentence to translate:
# [more](#with-one-stack-or-two).)
#
# At each position, a linear map at the top of the decoder gives every token of the vocabulary a number, its **logit**.
# A softmax turns these $V$ logits into probabilities, and the *next* word should get the highest.
#
# `<bos>` (beginning of sequence) and `<eos>` (end of sequence) are *special tokens*: the decoder starts from the
# first, and writes the second when it is done.
#
# ## Who may see whom
#
# In training the decoder is given the right answer, shifted by one, and all positions predict the next word at once:
#
# | given | `<bos>` | I | am | fine |
# |---|---|---|---|---|
# | **wanted** | I | am | fine | `<eos>` |
# | may be seen | `<bos>` | `<bos>` I | `<bos>` I am | `<bos>` I am fine |
#
# Why is it shifted? Without the shift, each position would be asked for the very word that it is given, and would only
# copy. And `<eos>` is wanted, too, because otherwise the model would never learn to stop: its answers would begin right
# and then run on, while the loss looks fine. Number the given words from 0, so that `<bos>` is word 0: the position of
# word $t$ sees words 0 to $t$ and must predict word $t + 1$, for the last one `<eos>`.
#
# Later, when the model writes, at **inference** (in *generation*), there is no right answer to give it. The decoder
# runs once for each word, and what it has written goes in again:

# %% tags=["plot"] mystnb={"image": {"alt": "Left, training: the right answer, begin, I, am, fine, goes into one decoder at once, and out of it come I, am, fine, end. Right, writing: four passes, one below the other. Begin gives I; begin I gives am; begin I am gives fine; begin I am fine gives end. Each word that is written is appended to what goes in next."}}
drawing = Diagram(8.2, 2.7)
given = ["<bos>", "I", "am", "fine"]
next_words = ["I", "am", "fine", "<eos>"]
drawing.text(1.6, 2.5, "training: one pass", color=plots.GREY, size=9)
drawing.text(5.9, 2.5, "writing: a pass for each word", color=plots.GREY, size=9)
drawing.box(1.6, 1.3, "decoder", 2.9)
for x, word, after in zip((0.4, 1.2, 2.0, 2.8), given, next_words, strict=True):
    drawing.text(x, 0.55, word, size=10)
    drawing.arrow((x, 0.72), (x, 1.1))
    drawing.arrow((x, 1.5), (x, 1.88), color=plots.RED)
    drawing.text(x, 2.05, after, color=plots.RED, size=10)
for n, after in enumerate(next_words):
    y = 2.05 - 0.55 * n
    for x, word in zip((3.9, 4.55, 5.0, 5.5), given[: n + 1], strict=False):
        drawing.text(
            x, y, word, size=10, color=plots.RED if word != "<bos>" else plots.INK
        )
    drawing.arrow((5.85, y), (6.1, y))
    drawing.box(6.65, y, "decoder", 1.05)
    drawing.arrow((7.2, y), (7.45, y), color=plots.RED)
    drawing.text(7.55, y, after, color=plots.RED, at="left", size=10)
plt.show()

# %% [markdown]
# The one pass of training is cheap, but it opens a way to cheat: the position that is given *I* could copy the wanted
# *am* from the very next input, and learn nothing about the question. So each position may see only its own token and
# those to its left.
#
# Two masks are needed, both from chapter 4. A mask sets the scores of hidden words to minus infinity, so that their
# weights are 0. In this book, **True means: may attend**.
#
# - The **causal mask** is about order. Row $t$ is true up to column $t$, so no row is empty: even row 0 may see
#   `<bos>`. Its shape is $(T, T)$, queries by keys, and it is the same for every sentence.
# - The *padding mask* says which tokens are real. Shorter sentences of a batch are filled up with `<pad>`, which
#   means nothing. The mask has one entry for each key of each sentence, and all heads and queries share it:
#   $(B, 1, 1, S)$ for the **source** (here the question), $(B, 1, 1, T)$ for the **target** (the answer).
#
# This code makes both masks for one answer; token number 0 is padding, and `[:, None, None]` inserts two axes of length
# 1.

# %%
import torch

tokens = torch.tensor([[1, 4, 5, 0]])  # <bos> I am <pad>: B = 1, T = 4
T = tokens.shape[1]
causal = torch.ones(T, T, dtype=torch.bool).tril()  # (T, T)
padding = (tokens != 0)[:, None, None]  # (B, 1, 1, T)
both = causal & padding  # (B, 1, T, T)

# %% tags=["plot"] mystnb={"image": {"alt": "Three small matrices of yes and dashes for the tokens bos, I, am and one of padding. Causal: a triangle, each row yes up to its own column. Padding: three columns of yes in every row, the last of dashes. Both: the triangle without the last column."}}
import numpy as np

names = ["<bos>", "I", "am", "<pad>"]
figure, panels = plt.subplots(1, 3, figsize=(8, 3))
for axes, title, allowed in [
    (panels[0], "causal (T, T)", causal),
    (panels[1], "padding (B, 1, 1, T)", padding[0, 0].expand(4, 4)),
    (panels[2], "both (B, 1, T, T)", both[0, 0]),
]:
    axes.pcolormesh(allowed, cmap=plots.WEIGHTS, vmin=0, vmax=1.4, ec="white", lw=2)
    axes.set(xlabel="key", ylabel="query", aspect="equal", ylim=(4, 0))
    axes.set_title(title, fontsize=10)
    axes.set_xticks(np.arange(4) + 0.5, names, fontsize=8)
    axes.set_yticks(np.arange(4) + 0.5, names, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for row, column in np.ndindex(4, 4):
        text = "yes" if allowed[row, column] else "–"
        color = "white" if allowed[row, column] else plots.GREY
        axes.text(
            column + 0.5,
            row + 0.5,
            text,
            ha="center",
            va="center",
            color=color,
            fontsize=9,
        )
figure.tight_layout()
plt.show()

# %% [markdown]
# Strictly, with padding on the right, as here, the answer needs only the causal mask. (Do not pad it on the left: in
# the model below, a row that may see nothing becomes NaN.) The question needs its padding mask, because no causal mask
# is used there. (The row of `<pad>` is computed, too, but the loss leaves it out of its mean.)

# %% tags=["export", "hide-input"] module="decoder"
import torch
from dotformer.support.checks import check_real
from dotformer.support.shapes import shapes
from jaxtyping import Bool, Float, Int
from torch import Tensor


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Which positions each may attend to: (T, T), True on and below the diagonal.

    Row t is true in columns 0 to t, so that no query sees its future.
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


@shapes
def padding_mask(
    tokens: Int[Tensor, "B S"], pad_id: int
) -> Bool[Tensor, "B 1 1 S"]:
    """Which tokens are real: the same for all heads and all queries.

    On a CPU, a ValueError when a sentence has no real token.
    """
    real = tokens != pad_id
    check_real(real)
    return real[:, None, None]


# %% [markdown]
# ### Which mask goes where?
#
# | attention | queries from | keys and values from | mask |
# |---|---|---|---|
# | of the encoder | the question | the question | its padding, $(B, 1, 1, S)$ |
# | of the decoder | the answer | the answer | `causal & padding`, $(B, 1, T, T)$ |
# | cross-attention | the answer | the memory | the question's padding, $(B, 1, 1, S)$ |

# %% tags=["proof"]
from dotformer.attention import MultiHeadAttention
from torch import nn

torch.manual_seed(0)
x, nothing = torch.randn(1, 3, 8), torch.zeros(3, 3, dtype=torch.bool)
ours, _ = MultiHeadAttention(8, 2, bias=False)(x, x, x, nothing)
theirs, _ = nn.MultiheadAttention(8, 2, batch_first=True)(
    x, x, x, attn_mask=~nothing
)
assert (ours == 0).all() and theirs.isnan().all()

# %% tags=["quiz"]
quiz.one_choice(
    "Two sentences of 5 and 3 tokens are padded to 5 and enter an *encoder* with 4 heads. Which mask does its attention need?",
    quiz.right(
        "A padding mask of shape $(2, 1, 1, 5)$",
        "Yes: for each sentence one row that says which keys are real, for all heads and queries.",
    ),
    quiz.wrong(
        "A causal mask of shape $(5, 5)$",
        "An encoder reads a sentence that is complete. There is no future to hide, and a causal mask would only keep its first words from seeing the later ones.",
    ),
    quiz.wrong(
        "Both of them, combined into $(2, 1, 5, 5)$",
        "That is what a *decoder's* self-attention needs. In an encoder, the last word may inform the first.",
    ),
    quiz.wrong(
        "None, as padding tokens have vectors of zeros",
        "They are not zeros: padding has an embedding, like any token, and a position. And even a vector of zeros would have a score, and a score of 0 can be the largest of all.",
    ),
)

# %% [markdown]
# ## Cross-attention: looking at the question
#
# The decoder also needs the question. One vector for the whole question would be a **bottleneck**, as wide for sixty
# words as for six. So, as in the attention of 2014 in [chapter 1](01_why_attention.ipynb), the decoder gets one vector
# for each word of the question, and each position of the answer chooses which of them to read.
#
# In **cross-attention** (called *encoder-decoder attention* in the paper) the decoder asks, because it must predict. So
# the decoder gives the queries, one at each position, `<bos>` included, and the memory gives the keys and values. (With
# the roles exchanged, each word of the *question* would receive a blend of the answer, and the position that must
# predict would receive nothing.)
#
# The formula does not change, but the matrix of weights has a row for each word of the answer, $T$, and a column for
# each word of the question, $S$; with a batch and $H$ heads it is $(B, H, T, S)$, where the decoder's self-attention
# has $(B, H, T, T)$.

# %% tags=["plot"] mystnb={"image": {"alt": "Drawing of cross-attention as a matrix of 4 rows and 6 columns, with invented weights as shades: begin looks at you, I at are, am at how, fine at the question mark. Above the columns stands the memory, a vector for each of Hi , how are you ?, and an arrow W_K leads down to their keys. Left of the rows stands the decoder, a vector for each of begin, I, am, fine, and an arrow W_Q leads to their queries. From the memory an arrow W_V leads right to six values, one below the other, and under these stand four results, what each row receives."}}
question = ["Hi", ",", "how", "are", "you", "?"]
writing = ["<bos>", "I", "am", "fine"]


def cells(left, bottom, rows, columns, color, width=1.0, shades=None):
    for row, column in np.ndindex(rows, columns):
        corner = (left + width * column, bottom + rows - 1 - row)
        shade = (
            {"alpha": 0.12 + 0.88 * shades[row, column]}
            if shades is not None
            else {}
        )
        axes.add_patch(
            plt.Rectangle(corner, width, 1, fc=color, ec="white", lw=1.5, **shade)
        )


def arrow(start, end, text, at):
    style = {"arrowstyle": "-|>", "color": plots.INK}
    axes.annotate("", end, start, arrowprops=style)
    axes.text(*at, text, ha="center", va="center", fontsize=11)


figure, axes = plt.subplots(figsize=(7.6, 4.6))
invented = np.full((4, 6), 0.03)
invented[range(4), [4, 3, 2, 5]] = 0.85
cells(8, 7.5, 3, 6, plots.BLUE, width=1.5)
cells(8, 4, 2, 6, plots.GOLD, width=1.5)
cells(8, -1, 4, 6, plots.BLUE, width=1.5, shades=invented)
cells(0, -1, 4, 3, plots.RED)
cells(5, -1, 4, 2, plots.TEAL)
cells(19.5, 4.5, 6, 2, plots.BLUE)
cells(19.5, -1, 4, 2, plots.GREY)
arrow((12.5, 7.4), (12.5, 6.1), "$W_K$", (13.4, 6.75))
arrow((3.1, 1), (4.9, 1), "$W_Q$", (4, 1.7))
arrow((17.1, 9), (19.4, 9), "$W_V$", (18.2, 9.7))
arrow((17.1, 1), (19.4, 1), "blend", (18.2, 1.6))
arrow((20.5, 4.4), (20.5, 3.1), "", (20.5, 3.1))
for column, token in enumerate(question):
    axes.text(8.75 + 1.5 * column, 10.7, token, ha="center", fontsize=9)
for row, token in enumerate(writing):
    axes.text(-0.3, 2.5 - row, token, ha="right", va="center")
for x, y, text in [
    (7.7, 9, "memory,\nfrom the encoder"),
    (7.7, 5, "keys"),
]:
    axes.text(x, y, text, ha="right", va="center")
for x, y, text in [
    (1.5, 3.5, "decoder"),
    (6, 3.5, "queries"),
    (12.5, 3.5, "weights (T, S)"),
    (20.5, 10.9, "values"),
    (20.5, -1.6, "received"),
]:
    axes.text(x, y, text, ha="center", va="center")
axes.set(xlim=(-2.5, 22.5), ylim=(-2.2, 11.4), aspect="equal")
axes.set_axis_off()
plt.show()

# %% [markdown]
# The weights are invented. No causal mask is needed here, because the question is complete before the answer begins.

# %% [markdown]
# ## The decoder layer
#
# A decoder layer has three sublayers, each with a residual connection and a norm, in post-norm order as in 2017. All
# decoder layers look at the same memory, each with its own $W_Q$, $W_K$, $W_V$ and $W_O$. The memory is the output of
# the *last* encoder layer. In the code, an attention takes its queries from its first argument, and its keys and values
# from its second:
#
# ```python
# x = norm_self(x + self_attention(x, x, mask))
# x = norm_cross(x + cross_attention(x, memory, memory_mask))
# x = norm_ff(x + feed_forward(x))
# ```
#
# Self-attention comes first, so queries to the memory can depend on all words so far.
#


# %% tags=["quiz"]
quiz.one_choice(
    "Encoder and decoder have 6 layers each. Where do the keys of decoder layer 2's cross-attention come from?",
    quiz.wrong(
        "From the output of encoder layer 2",
        "The two towers are drawn side by side, which suggests it. But the decoder starts when the encoder has finished, and sees only its last output.",
    ),
    quiz.right(
        "From the output of encoder layer 6, by a matrix of decoder layer 2",
        "Yes: one memory for all decoder layers, and a $W_K$ of its own in each.",
    ),
    quiz.wrong(
        "From the output of encoder layer 6, by the same matrix in all layers",
        "The memory is the same, but each layer looks at it with matrices of its own.",
    ),
    quiz.wrong(
        "From the words written so far",
        "Those give the *queries* here. In the layer's other attention they give all three.",
    ),
)

# %% [markdown]
# ## All of it on one screen
#
# Here is the whole model. It needs only PyTorch. [One file](../transformer.py) has it, with checks, data and training:
# `python transformer.py` prints its first answers after some ten seconds.
#
# First come the positions of chapter 5 and the attention, whose keys and values are made from `context`.

# %% file="transformer.py"
import math

import torch
from torch import nn
from torch.nn import functional as F


def sinusoids(T, D):
    rates = 10000 ** (-torch.arange(0, D, 2) / D)
    angles = torch.arange(T)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # (T, D)


class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def split(self, y):  # (B, T, D) -> (B, H, T, d_k)
        return y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x, context, mask):
        q = self.split(self.w_q(x))  # (B, H, T, d_k)
        k, v = self.split(self.w_k(context)), self.split(self.w_v(context))
        scaled = q @ k.mT / math.sqrt(q.shape[-1])  # (B, H, T, S)
        weights = scaled.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return self.w_o((weights @ v).transpose(1, 2).flatten(2))  # (B, T, D)


# %% [markdown]
# Four words of an answer ask six words of a question, and each receives one vector of width 16:

# %%
ask = Attention(d_model=16, num_heads=2)
answer, memory = torch.randn(1, 4, 16), torch.randn(1, 6, 16)
nothing_hidden = torch.ones(1, 1, 1, 6, dtype=torch.bool)
print(tuple(ask(answer, memory, nothing_hidden).shape))

# %% [markdown]
# Next comes the layer. With `cross=True` it belongs to the decoder, and receives the memory:


# %% file="transformer.py"
class Layer(nn.Module):  # post-norm
    def __init__(self, d_model, num_heads, d_ff, dropout, cross):
        super().__init__()
        self.cross = cross
        self.self_attention = Attention(d_model, num_heads)
        self.norm_self = nn.LayerNorm(d_model)
        if cross:
            self.cross_attention = Attention(d_model, num_heads)
            self.norm_cross = nn.LayerNorm(d_model)
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm_ff = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.norm_self(x + self.dropout(self.self_attention(x, x, mask)))
        if self.cross:
            y = self.cross_attention(x, memory, memory_mask)
            x = self.norm_cross(x + self.dropout(y))
        return self.norm_ff(x + self.dropout(self.down(self.up(x).relu())))


# %% [markdown]
# Now the model. Read `forward` first. It calls `encode`, then `decode`. Each makes its mask and calls `stack`, which looks
# up embeddings, adds positions and runs the layers.


# %% file="transformer.py"
class OneScreen(nn.Module):
    def __init__(
        self, vocab_size, d_model, heads, layers, d_ff, dropout=0.1, layer=Layer
    ):
        super().__init__()
        self.source_table = nn.Embedding(vocab_size, d_model)
        self.target_table = nn.Embedding(vocab_size, d_model)
        sizes = d_model, heads, d_ff, dropout
        encoder = [layer(*sizes, cross=False) for _ in range(layers)]
        decoder = [layer(*sizes, cross=True) for _ in range(layers)]
        self.encoder, self.decoder = nn.ModuleList(encoder), nn.ModuleList(decoder)
        self.dropout = nn.Dropout(dropout)
        for matrix in (p for p in self.parameters() if p.ndim == 2):
            nn.init.xavier_uniform_(matrix)  # Glorot's initialisation: chapter 8
        # small: the target table also produces the logits
        for table in (self.source_table, self.target_table):
            nn.init.normal_(table.weight, std=d_model**-0.5)

    def forward(self, source, target):
        memory, memory_mask = self.encode(source)
        return self.decode(target, memory, memory_mask)

    def encode(self, source):
        mask = (source != 0)[:, None, None]  # (B, 1, 1, S); 0 is padding
        return self.stack(self.source_table, self.encoder, source, mask), mask

    def decode(self, target, memory, memory_mask):
        T = target.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=target.device).tril()
        mask = causal & (target != 0)[:, None, None]  # (B, 1, T, T)
        table = self.target_table
        x = self.stack(table, self.decoder, target, mask, memory, memory_mask)
        return x @ table.weight.T  # tied to the embeddings: (B, T, V)

    def stack(self, table, layers, tokens, mask, memory=None, memory_mask=None):
        T, D = tokens.shape[1], table.embedding_dim
        x = table(tokens) * math.sqrt(D) + sinusoids(T, D).to(tokens.device)
        x = self.dropout(x)
        for layer in layers:
            x = layer(x, mask, memory, memory_mask)
        return x  # (B, T, D)


# %% [markdown]
# The linear map in the drawing, often called the *LM head*, needs no matrix of its own. It is the target's embedding
# matrix, used a second time: a token's logit is the dot product of its embedding with the decoder's final vector. This
# **weight tying** saves a matrix of $V \times D$, 16.4 million numbers for $V = 32{,}000$ and $D = 512$. One matrix can
# do both, because words that are used alike should be similar both as input and as output. (In the paper source and
# target share it, too.)
#
# The final vector comes out of a norm, so its entries have standard deviation 1. If those of the embeddings had 1, too,
# a logit, as a sum of $D$ products of random sign, would start with a spread of $\sqrt D$, 23 for $D = 512$, and the
# untrained model would be sure of some random word. So the embeddings start with standard deviation $1 / \sqrt D$,
# which gives the logits standard deviation 1. At the input such short vectors would hardly count beside the positions,
# so `stack` multiplies them by $\sqrt D$ ([chapter 8](08_encoder.ipynb#from-token-numbers-to-vectors)).
#
# Look at two things before any training: the shape of the logits and the first loss. They find wrong sizes and a wrong
# initialisation. The only wrong mask they find is one that leaves a row nothing to see, because then the loss is NaN.
# Try the model at the paper's size, with a small vocabulary and random tokens. Equal logits would cost $\ln V$, and
# logits of standard deviation 1 cost half a unit more ([chapter 7](07_learning.ipynb#the-first-number-to-look-at)), so
# the loss should be about $\ln V + \frac12$:

# %%
torch.manual_seed(0)
base = OneScreen(1000, d_model=512, heads=8, layers=6, d_ff=2048)
source, target = torch.randint(3, 1000, (2, 4, 10))
logits = base(source, target[:, :-1])
first = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
print(
    f"logits {tuple(logits.shape)}, first loss {first:.1f}, ln V {math.log(1000):.1f}"
)

# %% tags=["proof"]
assert abs(first - np.log(1000) - 0.5) < 0.2
in_tables = 2 * 1000 * 512
assert sum(p.numel() for p in base.parameters()) - in_tables == 6 * (
    3_152_384 + 3_152_384 + 4 * (512 * 512 + 512) + 2 * 512
)
nn.init.normal_(base.source_table.weight)
nn.init.normal_(base.target_table.weight)
with torch.no_grad():
    large = base(source, target[:, :-1])
assert F.cross_entropy(large.flatten(0, 1), target[:, 1:].flatten()) > 20

# %% [markdown]
# ## A model that has learned to answer
#
# The task is small talk: ten questions about each of nine people, each asked four ways, plain or after one of three
# greetings, which makes 360. Each has one right answer. Those about *you* are:
#
# | questions | answers |
# |---|---|
# | *how are you?* | *I am fine* |
# | *are you fine?* and the same with *tired, happy, cold, late* | *yes, I am* |
# | *why are you tired?* and the same with *happy, cold, late* | *who says I am tired?* and so on |
#
# A fifth of the questions is held out, *Hi, how are you?* among them. The folded cell makes `pairs`, all questions with
# their answers. (For data of your own, replace `pairs`, and the questions that are asked after training.)

# %% all questions and answers tags=["hide-input"] file="transformer.py"
REPLIES = {"you": "I am", "we": "you are", "they": "they are"}
REPLIES |= {
    name: f"{name} is" for name in ("she", "he", "Ada", "Bo", "Cleo", "Dan")
}
pairs = []
for greeting in ("", "Hi , ", "Hello , ", "Good morning , "):
    for person, reply in REPLIES.items():
        verb = "are" if person in ("you", "we", "they") else "is"
        how = f"{greeting}how {verb} {person} ?"
        pairs.append((how, f"{reply} fine"))
        for state in ("fine", "tired", "happy", "cold", "late"):
            asked = f"{verb} {person} {state} ?"
            pairs.append((greeting + asked, f"yes , {reply}"))
            if state != "fine":
                doubt = f"who says {reply} {state} ?"
                pairs.append((f"{greeting}why {asked}", doubt))

# %% [markdown]
# Every word gets a number, and a batch is padded with 0:

# %% tags=["nbval-check-output"] file="transformer.py"
seen = {word for asked, reply in pairs for word in f"{asked} {reply}".split()}
vocabulary = ["<pad>", "<bos>", "<eos>", *sorted(seen)]
number = {word: n for n, word in enumerate(vocabulary)}


def batch(texts):
    rows = [torch.tensor([number[word] for word in text.split()]) for text in texts]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


questions = batch(asked for asked, _ in pairs)  # (360, S)
answers = batch(f"<bos> {reply} <eos>" for _, reply in pairs)  # (360, T + 1)
print(tuple(questions.shape), tuple(answers.shape), len(vocabulary), "tokens")
print(answers[0].tolist(), " ".join(vocabulary[n] for n in answers[0]))

# %% tags=["proof"]
assert len(pairs) == 360 and len(vocabulary) == 32

# %% [markdown]
# ### What is given, and what is wanted
#
# The decoder receives `answers[:, :-1]`, the rows without their last token, and must predict the wanted words,
# `answers[:, 1:]`, the rows without their first: **next-token prediction**. In shorter answers `<eos>` and `<pad>` are
# inputs, too, and `<pad>` is wanted there. The loss skips these positions, because padding is easy to predict, and
# would lower the mean though no word got better. So `<eos>` must not share padding's number: it would be skipped, too,
# and the model would never learn to stop. The decoder is given the wanted words, *shifted right* by one, even where it
# would have written others: that is **teacher forcing**.
#
# Each word has a loss of its own. What does their average say about the whole answer? Suppose that the softmax gives
# the wanted words the probabilities 0.5 (*I*), 0.8 (*am*), 0.9 (*fine*) and 1 (`<eos>`). Each is the probability of a
# word, given the question and the words before it, so they multiply, as along a path in a tree. Their product, 0.36, is
# the probability of the whole answer $y$ to the question $x$. With $y_{<t}$ for the words before $y_t$:
#
# $$p(y \mid x) = \prod_{t} p(y_t \mid y_{<t}, x) .$$
#
# Minus the logarithm of 0.36 is $0.69 + 0.22 + 0.11 + 0 = 1.02$, the **negative log-likelihood**. Divided by the number
# of tokens, four, it is this answer's loss, 0.26, the cross-entropy of chapter 7. (In a batch the mean runs over all
# its real tokens, so longer answers count more.) So a smaller loss means a more probable right answer. (Minimising it
# is **maximum likelihood** training.)

# %% tags=["proof"]
four = np.array([0.5, 0.8, 0.9, 1.0])
assert round(four.prod(), 2) == 0.36 and round(-np.log(four).sum(), 2) == 1.02
assert round(-np.log(four).mean(), 2) == 0.26
assert np.round(-np.log(four[:3]), 2).tolist() == [0.69, 0.22, 0.11]

# %% [markdown]
# ### Writing
#
# When the model writes, the encoder runs once, and the decoder once for each word and once for `<eos>`. Writing each
# word after all before it is **autoregressive**, and always taking the likeliest is **greedy** decoding.


# %% file="transformer.py"
@torch.no_grad()
def generate(model, asked, longest=8):
    memory, mask = model.encode(asked)
    written = torch.full((len(asked), 1), number["<bos>"], device=asked.device)
    for _ in range(longest):
        logits = model.decode(written, memory, mask)  # (B, words so far, V)
        best = logits[:, -1].argmax(dim=-1)  # last row: the next word, (B,)
        written = torch.cat([written, best[:, None]], dim=1)  # (B, words + 1)
        if (written == number["<eos>"]).any(dim=1).all():  # all have ended
            break
    return written


# %% [markdown]
# Now the decoder receives its own words, and after its first mistake it must go on from a wrong beginning, which
# training never showed. This is **exposure bias**: the longer the answer, the more mistakes can pile up. The loss on
# held-out answers cannot show this, because there the decoder is given the right words.
#
# `words`, folded, turns a row into text and cuts it off at its first `<eos>`, because `generate` goes on until all answers
# have ended. `share_right` lets a model write, and returns the share of answers that are right in every word. `hold_out`
# draws the rows that are held out.


# %% count the answers that are right tags=["hide-input"] file="transformer.py"
def words(row):
    text = " ".join(vocabulary[n] for n in row.tolist())
    return text.removeprefix("<bos>").split(" <eos>")[0].strip()


def share_right(model, rows):
    written = generate(model, questions[rows], longest=answers.shape[1])
    both = zip(written, answers[rows], strict=True)
    right = [words(mine) == words(wanted) for mine, wanted in both]
    return sum(right) / len(right)


# %% draw what is held out tags=["hide-input"] file="transformer.py"
def hold_out(seed, key=str):
    """Rows held out, a fifth of the questions, and rows for training; `key` is for Going further."""
    keys = [key(question) for question, _ in pairs]
    unique = sorted(set(keys))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(unique), generator=generator).tolist()
    held = {unique[n] for n in order[: len(unique) // 5]} | {"Hi , how are you ?"}
    rows = [n for n, k in enumerate(keys) if k in held]
    return rows, [n for n, k in enumerate(keys) if k not in held]


# %% [markdown]
# ### Training it
#
# Each step of `fit` draws 32 of the given `rows`, and takes one step of Adam ([chapter
# 11](11_training.ipynb#how-large-a-step)). The learning rate rises linearly to `peak` over 50 steps (*warm-up*), and
# stays there:


# %% file="transformer.py"
def fit(model, rows, held=(), steps=250, peak=0.01, seed=0):
    # rows: which of `questions` and `answers` to train on
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters())
    model.train()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1, step / 50)  # warm-up
        picked = torch.randint(len(rows), (32,), generator=generator)
        picked = torch.tensor(rows)[picked]
        logits = model(questions[picked], answers[picked, :-1])  # (32, T, V)
        wanted = answers[picked, 1:]  # (32, T)
        loss = F.cross_entropy(
            logits.flatten(0, 1),
            wanted.flatten(),
            ignore_index=0,  # no padding
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if held and step % 50 == 0:
            right = share_right(model.eval(), held)
            print(f"step {step}: loss {loss:.3f}, held out {right:.0%} right")
            model.train()
    model.eval()
    return loss.item()


# %% [markdown]
# Now train a small copy, in five to ten seconds:

# %% file="transformer.py"
unseen, for_training = hold_out(seed=0)
torch.manual_seed(0)
screen = OneScreen(
    len(vocabulary), d_model=16, heads=2, layers=2, d_ff=64, dropout=0.0
)
fit(screen, for_training, unseen)
for asked in ("why are we happy ?", "Hi , is she tired ?", "Hi , how are you ?"):
    print(f"   {asked:22} {words(generate(screen, batch([asked]))[0])}")

# %% tags=["proof"]
assert asked == "Hi , how are you ?"
assert words(generate(screen, batch([asked]))[0]) == "I am fine"
shown = {"why are we happy ?", "Hi , is she tired ?", asked}
assert shown <= {pairs[row][0] for row in unseen}
assert share_right(screen, unseen) > 0.95
torch.manual_seed(0)
wide = OneScreen(len(vocabulary), 64, 4, 2, 256, dropout=0.0)
fit(wide, for_training, peak=0.001)
assert share_right(wide, unseen) > 0.95

# %% [markdown]
# The answers are right. But every held-out question has a twin in training, with another greeting. [A harder
# test](#does-it-combine-what-it-has-learned) holds out the twins, too.

# %% [markdown]
# ## One question, followed to its answer
#
# At `<bos>` the model must choose the first word of its answer to *Hi, how are you?* What does it read from the
# question? Look at one head of the last decoder layer: the first of its cross-attention, with $d_k = 8$. (Why not layer
# 1? Before its cross-attention `<bos>` has seen nothing of the question, so its query is always the same. What it
# fetches is added to its vector, so in layer 2 its query depends on the question.) In the picture, *value[0]* is the
# first of a value's 8 numbers:

# %% one head's weights and blend, and the logits tags=["hide-input"]
hello, right = batch(["Hi , how are you ?"]), batch(["<bos> I am fine <eos>"])


@torch.no_grad()
def inputs_of_cross_attention(model, source, target):
    """Of each decoder layer: its cross-attention, and what that receives."""
    seen = []  # PyTorch calls a hook right before its module runs
    hooks = [
        layer.cross_attention.register_forward_pre_hook(
            lambda attention, received: seen.append((attention, *received))
        )
        for layer in model.decoder
    ]
    model(source, target)
    for hook in hooks:
        hook.remove()
    return seen


cross = []  # of each layer, (2 heads, 4 words of the answer, 6 of the question)
with torch.no_grad():
    logits = screen(hello, right[:, :-1])[0, 0]  # at <bos>
    for attention, x, memory, _ in inputs_of_cross_attention(
        screen, hello, right[:, :-1]
    ):
        q, k, v = (  # (2 heads, 4 or 6 tokens, 8)
            attention.split(linear(y))[0]
            for linear, y in [
                (attention.w_q, x),
                (attention.w_k, memory),
                (attention.w_v, memory),
            ]
        )
        cross.append((q @ k.mT / math.sqrt(8)).softmax(dim=-1))

products, weights = q[0, 0] @ k[0].T, cross[1][0, 0]  # of <bos>, in head 1
blend = weights @ v[0]
best = logits.topk(3)
print(
    "the largest logits:",
    ", ".join(
        f"{vocabulary[n]} {logit:.1f}"
        for logit, n in zip(best.values, best.indices, strict=True)
    ),
)
assert vocabulary[best.indices[0]] == "I" and logits.softmax(-1).max() > 0.9

# %% tags=["plot"] mystnb={"image": {"alt": "The query of begin on the left, and a row for each word of the question: Hi, comma, how, are, you, question mark. Its columns: the dot product of query and key, that divided by root 8, e to that power, the weight, the first entry of the value, and weight times entry. Only are and you have a weight above 0.01, about 0.46 and 0.54; their values begin with about 0.96 and 0.89, and their products 0.44 and 0.48 add up to the blend's first entry, 0.92."}}
scaled = products / math.sqrt(8)
columns = {
    "q · k": products,
    "÷ √8": scaled,
    "$e$ to that": scaled.exp(),
    "weight": weights,
    "value[0]": v[0, :, 0],
    "product": weights * v[0, :, 0],
}
drawing = Diagram(7.2, 3.3)
drawing.text(0.1, 1.85, "query\nof <bos>", color=plots.RED, at="left")
drawing.arrow((0.95, 1.85), (1.25, 1.85), color=plots.RED)
for x, (title, column) in zip(range(6), columns.items(), strict=True):
    x = 2.6 + 0.85 * x
    drawing.text(x, 3.1, title, color=plots.GREY)
    for y, entry in enumerate(column.tolist()):
        color = plots.BLUE if weights[y] > 0.01 else plots.GREY
        drawing.text(x, 2.7 - 0.38 * y, f"{entry:z.2f}", color=color)
for y, word in enumerate(question):
    color = plots.BLUE if weights[y] > 0.01 else plots.GREY
    drawing.text(1.9, 2.7 - 0.38 * y, word, color=color, at="right")
drawing.text(4.3, 0.3, f"sum {scaled.exp().sum():.2f}", color=plots.GREY)
drawing.text(7.15, 0.3, f"blend {blend[0]:.2f}", color=plots.RED, at="right")
plt.show()

# %% [markdown]
# Read the row of *you*: its exponential, about 28, is 0.54 of the sum of its column. Nearly all the rest goes to *are*.
# To the blend's first entry, 0.92, *you* contributes $0.54 \cdot 0.89 = 0.48$, and *are* 0.44.
#
# The blends of both heads, 8 numbers each, pass through $W_O$ and are added to the vector of `<bos>`. A norm, the
# feed-forward sublayer and its norm follow. A token's logit is the dot product of the result with its embedding. *I*
# has by far the largest, 10.5, and is written.

# %% tags=["proof"]
scaled = products / math.sqrt(8)
assert np.isclose(scaled[4].exp(), 27.5, atol=1.5)
assert np.isclose(weights[4], 0.54, atol=0.02)
assert weights[3:5].sum() > 0.99
assert np.isclose(blend[0], 0.92, atol=0.03)
assert np.isclose(v[0, 4, 0], 0.89, atol=0.03)
assert np.isclose(weights[3] * v[0, 3, 0], 0.44, atol=0.02)
assert np.isclose(best.values[0], 10.5, atol=0.4)

# %% tags=["plot"]
so_far = ["<bos>", "I", "am", "fine"]
movable.heads(torch.stack(cross), so_far, keys=question, layer=1)

# %% [markdown]
# Choose a layer and a head. A map shows where this model looked, and not whether the answer depended on it ([tested at
# the end](#does-the-map-say-why)).

# %% [markdown]
# ## Does training run token by token?
#
# No, only writing does. In training one pass gives all logits at once. For the same words they equal the logits that
# writing computes pass by pass. Send `<bos>` and the words that the model has written through the decoder in one pass.
# With the causal mask, row $t$ of its logits depends on the question and on tokens 0 to $t$ alone. When the model
# wrote, the pass that chose word $t + 1$ received exactly tokens 0 to $t$, so the last row of that pass should equal
# row $t$:

# %% one pass beside four tags=["hide-input"]
with torch.no_grad():
    one_pass = screen(hello, right[:, :-1])[0]  # four rows at once
    print("written so far            next word   matches its row of the one pass")
    for length in range(1, 5):
        step = screen(hello, right[:, :length])[0, -1]  # the last row only
        difference = (step - one_pass[length - 1]).abs().max().item()
        so_far = " ".join(vocabulary[n] for n in right[0, :length])
        word = vocabulary[step.argmax()]
        print(f"{so_far:25} {word:11} to within {difference:.0e}")
        assert difference < 1e-5

# %% [markdown]
# They agree. This is what teacher forcing and the causal mask buy: a thousand tokens take a thousand passes to write,
# and only one pass to train on. And since the earlier rows do not change when a word is added, their keys and values
# need not be computed again. Nor need those of the memory, which does not change while the model writes. Keeping both
# is the **key-value cache** of [chapter 12](12_generation.ipynb).
#
# The mask stays on in writing, too, because without it earlier words would get vectors that mix in later words, which
# training never showed. (With a cache only the newest word asks, and it may see all, so no mask is needed.)


# %% tags=["quiz"]
answer = "<bos> who says Dan is tired ? <eos>".split()
quiz.number(
    "A model writes *who says Dan is tired ?*, of six tokens. How many times does its decoder run?",
    len(answer) - 1,
    tolerance=0.1,
    feedback="Yes: once for each token and once for `<eos>`. In training it would run once, for all positions together.",
    mistakes=[
        (
            1,
            "That is training, where the right words are known and all rows are computed together. A model that writes has only its own words so far.",
        ),
        (6, "And once more, for `<eos>`: otherwise it would not stop."),
        (8, "`<bos>` is given, and not written."),
    ],
    otherwise="One pass for each token that is written, the end token included.",
)

# %% [markdown]
# ## Break it: leave out the causal mask
#
# In `decode` the causal mask is one expression. Leave it out, and every output keeps its shape:


# %%
class NoCausalMask(OneScreen):
    def decode(self, target, memory, memory_mask):
        mask = (target != 0)[:, None, None]  # (B, 1, 1, T): padding alone
        table = self.target_table
        x = self.stack(table, self.decoder, target, mask, memory, memory_mask)
        return x @ table.weight.T


# %% [markdown]
# Train it as before, and ask both models for the held-out answers in two ways:
#
# - **Teacher-forced accuracy**: the right answers go in, as in training. What share of the *words* is predicted
#   correctly?
# - *Writing*: the model goes on from its own words. What share of the *answers* is right?
#
# **Predict first.** Which of the loss, the teacher-forced accuracy and the writing will tell you that the mask is
# missing?


# %% train it without the mask, and ask in both ways tags=["hide-input"]
@torch.no_grad()
def forced_accuracy(model, rows):
    logits = model(questions[rows], answers[rows, :-1])
    wanted = answers[rows, 1:]
    return (logits.argmax(dim=-1) == wanted)[wanted != 0].float().mean().item()


torch.manual_seed(0)
leaking = NoCausalMask(
    len(vocabulary), d_model=16, heads=2, layers=2, d_ff=64, dropout=0.0
)
loss = fit(leaking, for_training)
print(f"the last loss of training: {loss:.3f}")
for name, either in ("with the mask", screen), ("without", leaking):
    forced, writing = forced_accuracy(either, unseen), share_right(either, unseen)
    print(
        f"{name:14} words right, forced {forced:4.0%}, answers right {writing:4.0%}"
    )
print("it writes:", words(generate(leaking, batch(["Hi , how are you ?"]))[0]))

# %% tags=["proof"]
assert loss < 0.01 and round(forced, 2) == 1 and writing < 0.1
strange = [*unseen[1:], unseen[0]]  # the questions of other pairs


@torch.no_grad()
def of_strangers(model):
    """Words right, forced, and the loss, with the questions of other pairs."""
    logits, wanted = (
        model(questions[strange], answers[unseen, :-1]),
        answers[unseen, 1:],
    )
    hits = (logits.argmax(dim=-1) == wanted)[wanted != 0]
    loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=0)
    return hits.float().mean().item(), loss.item()


assert of_strangers(leaking)[0] > 0.97 and of_strangers(leaking)[1] < 0.2
assert of_strangers(screen)[0] < 0.9 and of_strangers(screen)[1] > 1

# %% [markdown]
# Only the writing reveals it. (With the mask, loss and accuracy look the same.) In training the wanted word is the next
# input, and the model has learned to copy it from there. That works for held-out answers, too, so loss and accuracy
# look perfect. When the model writes, the next input is not there yet.
#
# Here the answers are certain, so a loss near 0 is no warning. On real text, where several words are possible, it is:
# suspect first the mask, then the shift. But a loss that looks normal does not prove the masks right, and neither do
# good answers: of [nine kinds of wrong mask](#nine-wrong-masks), two leave nearly all answers right, and another does
# in seven of its nine models.

# %% [markdown]
# ## The leak test
#
# How do you notice a missing mask before training? The causal mask must ensure one property: *no position sees its
# future*, not even by a detour through a lower layer. It does: in layer 1, row $t$ is computed from words 0 to $t$
# alone. In each further layer, row $t$ is computed from rows 0 to $t$ of the layer below, and none of these holds a
# later word. Norms and feed-forward networks work on each row alone, and the memory has no word of the answer.
#
# So change later words, and the earlier logits must not move, except for rounding. That is the **leak test**. Here the
# cut is after the third token: from the fourth on, each answer gets the words of another (`roll` takes them from the
# row before).


# %%
def moves(model, source, target, cut=3):
    changed = target.clone()
    changed[:, cut:] = target.roll(1, dims=0)[:, cut:]  # another answer's words
    with torch.no_grad():
        both = model(source, target), model(source, changed)
    return (both[0] - both[1])[:, :cut].abs().max().item()


for name, either in ("with the mask", screen), ("without", leaking):
    moved = moves(either, questions[unseen], answers[unseen, :-1])
    print(f"{name:14} logits before the cut moved by {moved:.1g}")

# %% tags=["proof"]
assert moves(screen, questions[unseen], answers[unseen, :-1]) < 1e-4 < 1 < moved

# %% [markdown]
# It needs no training: a fresh model and random tokens will do. `check`, folded, runs it in `model.train()` and in
# `model.eval()`, because code may compute attention differently in each. It also checks that some later logit does
# move, that padding after the question moves no logit at a real position, that another question moves some, and that
# every logit is a number. (A position that may attend to nothing gets NaN, here as in `nn.MultiheadAttention` by
# default.) Build the model with a dropout of 0, because dropout would move logits by chance.


# %% the leak test and three others tags=["hide-input"] file="transformer.py"
def check(model, source, target, cut=3):  # tokens of some pairs
    drops = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
    assert not any(drops), "build the model with dropout=0.0 for this check"
    for mode in (True, False):
        model.train(mode)
        with torch.no_grad():
            before = model(source, target)
            changed = target.clone()
            changed[:, cut:] = target.roll(1, dims=0)[:, cut:]
            assert (changed != target).any(dim=1).all(), "rows must differ there"
            after = model(source, changed)
            padded = model(F.pad(source, (0, 2)), target)
            other = model(source.roll(1, dims=0), target)
        real = target != 0
        assert before[real].isfinite().all(), "a position may attend to nothing"
        early, late = slice(cut), slice(cut, None)
        assert torch.allclose(before[:, early], after[:, early], atol=1e-4), (
            "the future leaks"
        )
        assert not torch.allclose(before[:, late], after[:, late], atol=1e-2), (
            "answer not read"
        )
        assert torch.allclose(before[real], padded[real], atol=1e-4), "padding"
        assert not torch.allclose(before, other, atol=1e-2), "source not read"


torch.manual_seed(0)
fresh = OneScreen(32, d_model=16, heads=2, layers=2, d_ff=64, dropout=0.0)
check(fresh, torch.randint(3, 32, (8, 6)), torch.randint(3, 32, (8, 7)))

# %% [markdown]
# The leak test cannot see:
#
# 1. targets that are not shifted, because it never sees what is wanted;
# 2. a mask that hides too much, because then nothing leaks;
# 3. a leak that does not cross its cut, such as one between positions 5 and 6. So repeat it at several cuts, with
#    random tokens, since real answers often end alike.
#
# A reference finds item 2: PyTorch's layers, given the same parameters (`by_pytorch`, folded), give the same logits at
# all real positions. Mind that True means *hidden* in `nn.MultiheadAttention` and `nn.Transformer`, but *may attend* in
# `F.scaled_dot_product_attention`, as in this book.


# %% PyTorch's layers, with our parameters tags=["hide-input"] file="transformer.py"
@torch.no_grad()
def copy_attention(ours, theirs):
    """The parameters of an `Attention` into an `nn.MultiheadAttention`."""
    three = ours.w_q, ours.w_k, ours.w_v
    theirs.in_proj_weight.copy_(torch.cat([w.weight for w in three]))
    theirs.in_proj_bias.copy_(torch.cat([w.bias for w in three]))
    theirs.out_proj.load_state_dict(ours.w_o.state_dict())


def copied(layer):
    """PyTorch's layer with the parameters of a `Layer`."""
    attention = layer.self_attention
    sizes = attention.w_q.in_features, attention.num_heads, layer.up.out_features
    kind = nn.TransformerDecoderLayer if layer.cross else nn.TransformerEncoderLayer
    theirs = kind(*sizes, dropout=0.0, batch_first=True)
    copy_attention(attention, theirs.self_attn)
    norms = [layer.norm_self, layer.norm_ff]
    if layer.cross:
        copy_attention(layer.cross_attention, theirs.multihead_attn)
        norms.insert(1, layer.norm_cross)
    parts = {f"norm{n}": norm for n, norm in enumerate(norms, 1)}
    for name, ours in (
        parts | {"linear1": layer.up, "linear2": layer.down}
    ).items():
        getattr(theirs, name).load_state_dict(ours.state_dict())
    return theirs


@torch.no_grad()
def by_pytorch(model, source, target):
    """The logits of a `OneScreen`, from PyTorch's layers; there True means hidden."""

    def embed(table, tokens):
        T, D = tokens.shape[1], table.embedding_dim
        return table(tokens) * math.sqrt(D) + sinusoids(T, D)

    memory, x = embed(model.source_table, source), embed(model.target_table, target)
    for layer in model.encoder:
        memory = copied(layer)(memory, src_key_padding_mask=source == 0)
    T = target.shape[1]
    masks = {
        "tgt_mask": ~torch.ones(T, T, dtype=torch.bool).tril(),
        "tgt_key_padding_mask": target == 0,
        "memory_key_padding_mask": source == 0,
    }
    for layer in model.decoder:
        x = copied(layer)(x, memory, **masks)
    return x @ model.target_table.weight.T


source, target = torch.randint(3, 32, (8, 6)), torch.randint(3, 32, (8, 7))
source[:4, 4:] = target[2:6, 5:] = 0  # padding
for norm in fresh.modules():  # random, or exchanged norms would not show
    if isinstance(norm, nn.LayerNorm):
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
theirs = by_pytorch(fresh, source, target)
apart = (fresh(source, target) - theirs)[target != 0].abs().max()
print(f"largest difference from PyTorch's layers: {apart:.0e}")
assert apart < 1e-5

# %% [markdown]
# ### What to check, and in what order
#
# Run these checks on every model with masks. They need no training and take seconds. (`check` has the second, at one
# cut, and the third.)
#
# | check | finds |
# |---|---|
# | one pair of input and target, printed | targets that are not shifted ([a tenth mistake](#a-tenth-mistake-in-no-mask)) |
# | the leak test, in both modes and at several cuts | masks that show the future |
# | more padding | padding that is not hidden |
# | a reference with the same parameters, as in `by_pytorch`, with sentences of different lengths, in both modes, at real positions | every mask that changes a logit, including one that hides too much |
#
# [Four more](#checks-that-need-training) need training.

# %% [markdown]
# ## The module that the book uses
#
# Later chapters use the book's own module, folded here, with the same methods and a choice of pre-norm. Given the
# parameters of `screen`, it returns the same logits.

# %% tags=["hide-input", "export"] module="decoder"
from dotformer.attention import MultiHeadAttention
from dotformer.encoder import AddAndNorm, FeedForward, LayerConfig, Stack
from torch import nn


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, feed-forward, each with add and norm.

    After Vaswani and others (2017), section 3.1.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        sizes = config.d_model, config.num_heads, config.dropout
        self.self_attention = MultiHeadAttention(*sizes)
        self.self_attention_add_norm = AddAndNorm(config)
        self.cross_attention = MultiHeadAttention(*sizes)
        self.cross_attention_add_norm = AddAndNorm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_add_norm = AddAndNorm(config)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """Pass x (..., T, D) through; it may attend to the `memory` (..., S, D).

        `mask` broadcasts to (..., H, T, T) and says which targets see which,
        `memory_mask` to (..., H, T, S) and says which sources they see.
        """
        x = self.self_attention_add_norm(
            x, lambda x: self.self_attention(x, x, x, mask)[0]
        )
        x = self.cross_attention_add_norm(
            x, lambda x: self.cross_attention(x, memory, memory, memory_mask)[0]
        )
        return self.feed_forward_add_norm(x, self.feed_forward)


# %% tags=["hide-input", "export"] module="decoder"
class Decoder(Stack):
    """A stack of `num_layers` decoder layers, all of which see the same memory."""

    def __init__(self, config: LayerConfig, num_layers: int) -> None:
        super().__init__(DecoderLayer, config, num_layers)

    @shapes
    def forward(
        self,
        x: Float[Tensor, "*batch T D"],
        memory: Float[Tensor, "*batch S D"],
        mask: Bool[Tensor, "... #T #T"] | None = None,
        memory_mask: Bool[Tensor, "... #T #S"] | None = None,
    ) -> Float[Tensor, "*batch T D"]:
        """Pass x through all layers; masks as in `DecoderLayer`."""
        return super().forward(x, memory, mask, memory_mask)


# %% tags=["hide-input", "export"] module="transformer"
from dataclasses import dataclass

from dotformer.encoder import Embeddings, Encoder, LayerConfig
from dotformer.support.settings import check_settings, check_vocabularies
from dotformer.support.shapes import shapes
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class TransformerConfig(LayerConfig):
    """All that fixes a transformer's shape, besides what fixes its layers.

    `share_embeddings` uses one table for source and target; `tie_output` scores
    tokens by their dot products with the target table.
    """

    source_vocab_size: int
    target_vocab_size: int
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    max_length: int = 1024
    pad_id: int = 0
    share_embeddings: bool = False
    tie_output: bool = True

    def __post_init__(self) -> None:
        check_settings(self, zero=("pad_id",), shares=("dropout",))
        sizes = self.source_vocab_size, self.target_vocab_size
        check_vocabularies(*sizes, self.pad_id, self.share_embeddings)


# %% tags=["hide-input", "export"] module="transformer"
class Transformer(nn.Module):
    """The whole model: embeddings, encoder, decoder, and a score for every token.

    After Vaswani and others (2017), figure 1. Matrices start uniform after Glorot
    and Bengio (2010), biases at 0, embeddings with deviation 1/sqrt(D).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = c = config
        sizes = c.d_model, c.max_length, c.dropout
        self.source_embeddings = Embeddings(c.source_vocab_size, *sizes)
        self.target_embeddings = Embeddings(c.target_vocab_size, *sizes)
        self.encoder = Encoder(c, c.num_encoder_layers)
        self.decoder = Decoder(c, c.num_decoder_layers)
        self.output = nn.Linear(c.d_model, c.target_vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if c.share_embeddings:
            self.source_embeddings.tokens = self.target_embeddings.tokens
        if c.tie_output:
            self.output.weight = self.target_embeddings.tokens.weight

    @shapes
    def encode(
        self, source: Int[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B 1 1 S"]]:
        """The memory and its mask, from source tokens."""
        mask = padding_mask(source, self.config.pad_id)
        return self.encoder(self.source_embeddings(source), mask), mask

    @shapes
    def decode(
        self,
        target: Int[Tensor, "B T"],
        memory: Float[Tensor, "B S D"],
        memory_mask: Bool[Tensor, "B 1 1 S"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits: row t scores what may follow the targets 0 to t."""
        real = padding_mask(target, self.config.pad_id)
        mask = causal_mask(target.shape[1], target.device) & real
        x = self.target_embeddings(target)
        return self.output(self.decoder(x, memory, mask, memory_mask))

    @shapes
    def forward(
        self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        """Logits for the tokens of source and target.

        Padding (`config.pad_id`) is masked on both sides. Raises ValueError when a
        sentence is longer than `config.max_length` or, on a CPU, empty.
        """
        return self.decode(target, *self.encode(source))


# %% tags=["proof"]
from dotformer.support.recording import record_weights

source = torch.tensor([[4, 5, 6, 7, 8, 9], [9, 10, 3, 0, 0, 0]])  # B = 2, S = 6
target = torch.tensor([[1, 4, 5, 6], [1, 7, 8, 0]])  # T = 4
sizes = {"d_model": 16, "num_heads": 8, "d_ff": 32, "final_norm": True}
layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
small = Transformer(TransformerConfig(11, 11, **sizes, **layers)).eval()
with torch.no_grad(), record_weights(small) as weights:
    memory, memory_mask = small.encode(source)
    logits = small.decode(target, memory, memory_mask)
assert memory.shape == (2, 6, 16) and memory_mask.shape == (2, 1, 1, 6)
assert (causal_mask(4) & padding_mask(target, 0)).shape == (2, 1, 4, 4)
assert weights["decoder.layers.0.cross_attention"].shape == (2, 8, 4, 6)
assert logits.shape == (2, 4, 11)

# %% the parameters of screen, in the module tags=["hide-input"]
import warnings

config = TransformerConfig(
    source_vocab_size=len(vocabulary),
    target_vocab_size=len(vocabulary),
    d_model=16,
    num_heads=2,
    num_encoder_layers=2,
    num_decoder_layers=2,
    d_ff=64,
    dropout=0.0,
    max_length=16,
)
warnings.filterwarnings("ignore", message=".*nested")  # nn.Transformer's own
model = Transformer(config).eval()
with torch.no_grad():
    for mine, trained in zip(model.parameters(), screen.parameters(), strict=True):
        mine.copy_(trained)
    found = model(questions[unseen], answers[unseen, :-1])
    expected = screen(questions[unseen], answers[unseen, :-1])
real = answers[unseen, :-1] != 0
difference = (found - expected)[real].abs().max()
print(f"the same logits: largest difference {difference:.0e}")
assert difference < 1e-4
check(model, questions[::41], answers[::41, :-1])

# %% [markdown]
# It also agrees with `nn.Transformer`, pre-norm and post-norm. (PyTorch's post-norm stacks end in one more norm, which
# the book's get here, too.)

# %% compare with nn.Transformer tags=["hide-input"]
from dataclasses import replace

from dotformer.support.torch_modules import our_state_dict

asked, given = questions[::41], answers[::41, :-1]
for norm_first in (False, True):
    options = {"batch_first": True, "norm_first": norm_first}
    theirs = nn.Transformer(16, 2, 2, 2, 64, **options).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours = Transformer(replace(config, norm_first=norm_first, final_norm=True))
    ours.encoder.load_state_dict(our_state_dict(theirs.encoder))
    ours.decoder.load_state_dict(our_state_dict(theirs.decoder))
    with torch.no_grad():
        vectors = theirs(
            ours.source_embeddings(asked),
            ours.target_embeddings(given),
            tgt_mask=~causal_mask(given.shape[1]),
            src_key_padding_mask=asked == 0,
            tgt_key_padding_mask=given == 0,
            memory_key_padding_mask=asked == 0,
        )
    apart = (ours(asked, given) - ours.output(vectors))[given != 0].abs().max()
    print(f"norm_first={norm_first}: largest difference {apart.item():.0e}")
    assert apart < 1e-5

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: Shift right
#
# *Easy, 10 minutes.* Given right answers $(B, T)$ as a NumPy array, padded with 0 and with no begin or end, return what
# the decoder receives and what it must predict, stacked: $(2, B, T + 1)$. What must be predicted has the end token
# right after the last word, before the padding. Unlike `answers[:, :-1]`, the decoder's input never contains the end
# token: it is padding there.


# %% tags=["exercise"]
def teacher_forcing(answers, begin, end):
    """Decoder input and wanted output for answers (B, T): (2, B, T + 1)."""
    ...


# %% tags=["check"]
def forced_by_loop(answers, begin, end):
    pair = np.zeros((2, len(answers), answers.shape[1] + 1), dtype=int)
    for n, row in enumerate(answers):
        real = row[row != 0].tolist()
        pair[0, n, : len(real) + 1] = [begin, *real]
        pair[1, n, : len(real) + 1] = [*real, end]
    return pair


def ends_in_the_last_column(answers, begin, end):
    column = np.ones((len(answers), 1), dtype=int)
    return np.stack(
        [np.hstack([begin * column, answers]), np.hstack([answers, end * column])]
    )


def not_shifted(answers, begin, end):
    first, _ = forced_by_loop(answers, begin, end)
    return np.stack([first, first])


def the_input_ends(answers, begin, end):
    first, second = forced_by_loop(answers, begin, end)
    return np.stack(
        [np.where((first == 0) & (np.roll(first, 1, 1) != 0), end, first), second]
    )


check_forcing = partial(
    checks.check,
    reference=forced_by_loop,
    cases=[
        (np.array([[5, 6, 7], [8, 0, 0]]), 1, 2),
        (np.array([[9, 4, 0, 0], [3, 3, 3, 0], [5, 6, 7, 8]]), 11, 30),
    ],
    mistakes={
        "the end token stands after the padding; it belongs right after the last word": ends_in_the_last_column,
        "input and output are the same: the output must be one position ahead": not_shifted,
        "the decoder need not receive the end token: nothing comes after it": the_input_ends,
    },
)
check_forcing(teacher_forcing)


# %% tags=["solution"]
def teacher_forcing(answers, begin, end):
    column = np.zeros((len(answers), 1), dtype=int)
    received = np.hstack([column + begin, answers])
    wanted = np.hstack([answers, column])
    wanted[np.arange(len(answers)), (answers != 0).sum(axis=1)] = end
    return np.stack([received, wanted])


verdict = check_forcing(teacher_forcing)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: A prefix
#
# *Medium, 15 minutes.* Some models read and write in one stack (a **prefix language model**). The first `prefix` tokens
# of a sequence are the question: they may see each other in both directions. The rest is the answer: it may see the
# question and its own past. Padding is seen by nobody; its own rows follow the same rule as the others. Given tokens
# $(B, T)$, the padding token's number and `prefix`, return the mask, boolean, $(B, 1, T, T)$, true for *may attend*. In
# NumPy.


# %% tags=["exercise"]
def prefix_mask(tokens, pad_id, prefix):
    """Who may attend to whom: (B, 1, T, T)."""
    ...


# %% tags=["check"]
def prefixed(tokens, pad_id, prefix, rows=False, turned=False):
    length = tokens.shape[1]
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    seen = (key >= query) if turned else (key <= query)
    seen = seen | (query < prefix if rows else key < prefix)
    return seen & (tokens != pad_id)[:, None, None, :]


check_prefix = partial(
    checks.check,
    reference=prefixed,
    cases=[
        (np.array([[1, 5, 6, 7], [1, 7, 3, 0]]), 0, 2),
        (np.array([[4, 4, 2, 9, 9], [5, 9, 9, 9, 9]]), 9, 3),
        (np.array([[4, 4, 4]]), 0, 1),
    ],
    mistakes={
        "this is the causal mask: the question may look ahead within itself": lambda t, pad, n: (
            prefixed(t, pad, 0)
        ),
        "the question sees the answer; it may see only itself": lambda t, pad, n: (
            prefixed(t, pad, n, rows=True)
        ),
        "padding may be attended to": lambda t, pad, n: np.repeat(
            prefixed(t[:1] * 0, -1, n), len(t), axis=0
        ),
        "true must mean: may attend": lambda t, pad, n: ~prefixed(t, pad, n),
        "the triangle is upside down": lambda t, pad, n: prefixed(
            t, pad, n, turned=True
        ),
        "the prefix is one token too long": lambda t, pad, n: prefixed(
            t, pad, n + 1
        ),
    },
)
check_prefix(prefix_mask)


# %% tags=["solution"]
def prefix_mask(tokens, pad_id, prefix):
    positions = np.arange(tokens.shape[1])
    causal = positions[None, :] <= positions[:, None]  # queries are rows
    in_question = positions < prefix  # as keys, for everybody
    return (causal | in_question) & (tokens != pad_id)[:, None, None, :]


verdict = check_prefix(prefix_mask)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: A decoder layer
#
# *Medium, 25 minutes.* Write a decoder layer in the order that most models use today, *pre-norm*:
# $x + f(\operatorname{norm}(x))$ for each sublayer $f$. You get its parts as functions:
# `own(query, key, value, mask)` and `cross(query, key, value, mask)` are the two attentions, `feed(x)` is the
# feed-forward network, and `norms` are three layer norms, in the order in which they are needed. Nothing in the
# memory is padding, so `cross` gets the mask `None`.


# %% tags=["exercise"]
def decoder_layer(x, memory, mask, own, cross, feed, norms):
    """One pre-norm layer: x (T, D) and memory (S, D), mask (T, T) -> (T, D)."""
    ...


# %% tags=["check"]
def in_numpy(module):
    """A module as a function of arrays."""

    def function(*arrays):
        tensors = [a if a is None else torch.as_tensor(a) for a in arrays]
        with torch.no_grad():
            output = module(*tensors)
        return (output[0] if isinstance(output, tuple) else output).numpy()

    return function


def layer_case(seed):
    """x, memory and mask, and the parts of a random layer."""
    torch.manual_seed(seed)
    layer = DecoderLayer(LayerConfig(d_model=8, num_heads=2, d_ff=16)).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    layer.eval()
    norms = (
        layer.self_attention_add_norm.norm,
        layer.cross_attention_add_norm.norm,
        layer.feed_forward_add_norm.norm,
    )
    parts = layer.self_attention, layer.cross_attention, layer.feed_forward
    x, memory = torch.randn(2, 4, 8, dtype=torch.float64).numpy()
    triangle = causal_mask(4).numpy()
    functions = [in_numpy(part) for part in parts]
    return x, memory, triangle, *functions, tuple(in_numpy(norm) for norm in norms)


def layer_with(
    source="memory",
    hide=True,
    hide_cross=False,
    normed=True,
    added=True,
    swapped=False,
):
    """The right layer, or one with a mistake."""

    def layer(x, memory, mask, own, cross, feed, norms):
        def attend_own(y):
            return own(y, y, y, mask if hide else None)

        def attend_memory(y):
            seen = {"memory": memory, "x": y}[source]
            return cross(y, seen, seen, mask if hide_cross else None)

        parts = [
            (attend_own, norms[0]),
            (attend_memory, norms[1]),
            (feed, norms[2]),
        ]
        for part, norm in [parts[1], parts[0], parts[2]] if swapped else parts:
            if normed == "after":
                x = norm(x + part(x))
            else:
                x = x * added + part(norm(x) if normed else x)
        return x

    return layer


check_layer = partial(
    checks.check,
    reference=layer_with(),
    cases=[layer_case(0), layer_case(1)],
    mistakes={
        "this is post-norm: put each norm before its sublayer, and leave the sum alone": layer_with(
            normed="after"
        ),
        "the norms are missing: each part receives a norm of x": layer_with(
            normed=False
        ),
        "the residual connections are missing: add what each part returns to x": layer_with(
            added=False
        ),
        "`cross` asks x itself; keys and values come from the memory": layer_with(
            source="x"
        ),
        "`own` needs the mask: no word may see a later one": layer_with(hide=False),
        "`cross` needs no mask: the whole question is there": layer_with(
            hide_cross=True
        ),
        "`cross` comes first here; a word attends to what is written, then to the memory": layer_with(
            swapped=True
        ),
    },
)
check_layer(decoder_layer)


# %% tags=["solution"]
def decoder_layer(x, memory, mask, own, cross, feed, norms):
    y = norms[0](x)
    x = x + own(y, y, y, mask)
    x = x + cross(norms[1](x), memory, memory, None)
    return x + feed(norms[2](x))


verdict = check_layer(decoder_layer)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# A decoder layer attends to what is written, attends to what was read, and passes the result through a feed-forward
# network. A mask keeps each word from its future, so that training handles all words in one pass, though writing takes
# them one by one. In every layer, cross-attention takes its queries from the answer, and its keys and values from what
# the encoder's last layer has made of the question.
#
# **Sources.** The model: [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762), sections 3.1 and 3.2.3.
# Attention from decoder to encoder: [Bahdanau, Cho and Bengio (2015)](https://arxiv.org/abs/1409.0473). Teacher
# forcing: [Williams and Zipser (1989)](https://doi.org/10.1162/neco.1989.1.2.270). Tied output: [Press and Wolf
# (2016)](https://arxiv.org/abs/1608.05859). Initialisation: [Glorot and Bengio
# (2010)](https://proceedings.mlr.press/v9/glorot10a.html). Order without positions: [Haviv and others
# (2022)](https://arxiv.org/abs/2203.16634).
#
# **Next.** The model is complete. But real text has more words than any vocabulary, real training takes more care than
# a short loop, and there are better ways to write than the greedy one. That is what chapters 10 to 12 are for.

# %% [markdown]
# ## Going further
#
# A model of one stack, the other order of norms, more checks, nine wrong masks, a tenth mistake, three questions, and
# short answers. Later chapters repeat what they need of them.
#
# ### With one stack, or two?
#
# Leave out the decoder, and you have an **encoder-only** model, for tasks where the whole text is there, such as
# classification and search. Leave out the encoder, and with it the cross-attention, and you have a **decoder-only**
# model: chapter 8's encoder layer with a causal mask. Question and answer stand in one sequence, and the causal
# self-attention of the answer does what cross-attention did here. The words of the question then see only the earlier
# ones, unless a *prefix* mask ([exercise 2](#exercise-2-a-prefix)) lets them see one another.
#
# | | masks, besides padding | is trained to | for example |
# |---|---|---|---|
# | encoder-only | none | fill in words that were hidden (**masked language modelling**) | BERT, [chapter 15](15_pretrained.ipynb) |
# | decoder-only | causal | predict the next token (**causal language modelling**) | GPT, [chapter 18](18_gpt.ipynb) |
# | encoder-decoder | causal, on the target alone | predict the target's next token, given the source | this chapter, T5, Whisper |
#
# When are two stacks the better choice, and when one? Two suit a source that is complete before the answer begins, as
# in translation and speech recognition: the encoder is *bidirectional*, runs once, and has parameters of its own. One
# stack is simpler, and needs no division into source and target. And a conversation can grow in it cheaply, because
# under the causal mask the vectors of old tokens stay as they were, where a bidirectional encoder would read everything
# again. So most chat models are decoder-only ([chapter 18](18_gpt.ipynb)).

# %% [markdown]
# ### A decoder-only model that answers
#
# Here is a small GPT: one stack, a causal mask, and *pre-norm*, with a norm at the top (positions and ReLU are those of
# 2017). It takes `Attention` and `sinusoids` from [the model on one screen](#all-of-it-on-one-screen), and the data
# with their split from [its training](#a-model-that-has-learned-to-answer):


# %%
class Block(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.attention = Attention(d_model, num_heads)
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        y = self.norm1(x)
        x = x + self.dropout(self.attention(y, y, mask))
        hidden = self.up(self.norm2(x)).relu()
        return x + self.dropout(self.down(hidden))


class DecoderOnly(nn.Module):
    def __init__(self, vocab_size, d_model, heads, layers, d_ff, dropout=0.1):
        super().__init__()
        self.table = nn.Embedding(vocab_size, d_model)
        blocks = [Block(d_model, heads, d_ff, dropout) for _ in range(layers)]
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)

    def forward(self, tokens):
        T, D = tokens.shape[1], self.table.embedding_dim
        causal = torch.ones(T, T, dtype=torch.bool, device=tokens.device).tril()
        mask = causal & (tokens != 0)[:, None, None]  # (B, 1, T, T)
        x = self.table(tokens) * math.sqrt(D) + sinusoids(T, D).to(tokens.device)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x) @ self.table.weight.T  # (B, T, V)


# %% [markdown]
# It is trained in much the same way (the width, the number of steps and the peak are different), but the loss now
# includes the words of the question. Nobody can predict whether *she* or *you* comes next, so the loss stays well above
# 0 to the end. The model writes one token after another: the likeliest or, with a `temperature` above 0, one drawn from
# the `top_k` likeliest ([chapter 12](12_generation.ipynb#sampling)):


# %%
def train_gpt(texts, width=32, steps=400, peak=0.005, seed=0):  # texts (N, T + 1)
    torch.manual_seed(seed)
    gpt = DecoderOnly(len(vocabulary), width, 2, 2, 4 * width, dropout=0.0)
    optimizer = torch.optim.Adam(gpt.parameters())
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = peak * min(1, step / 50)
        rows = texts[torch.randint(len(texts), (32,))]
        logits, wanted = gpt(rows[:, :-1]), rows[:, 1:]
        loss = F.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=0
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    return gpt.eval()


@torch.no_grad()
def go_on(gpt, prompt, longest=8, temperature=0.0, top_k=None):
    tokens = batch([prompt])
    for _ in range(longest):
        logits = gpt(tokens)[:, -1]  # (1, V)
        if temperature == 0:
            new = logits.argmax(dim=-1, keepdim=True)
        else:
            likeliest, which = logits.topk(top_k or logits.shape[-1])
            shares = (likeliest / temperature).softmax(dim=-1)
            new = which.gather(1, torch.multinomial(shares, 1))
        tokens = torch.cat([tokens, new], dim=1)
        if new == number["<eos>"]:
            break
    return " ".join(vocabulary[n] for n in tokens[0].tolist())


# %% [markdown]
# On the small talk, question and answer are one text. Between them stands `<bos>`, which here means *the answer
# begins*:

# %%
texts = batch(f"{asked} <bos> {reply} <eos>" for asked, reply in pairs)
gpt = train_gpt(texts[for_training])
print(go_on(gpt, "Hi , how are you ? <bos>"))
expected = [f"{pairs[n][0]} <bos> {pairs[n][1]} <eos>" for n in unseen]
right = [go_on(gpt, text[: text.index(" <bos>") + 6]) == text for text in expected]
print(f"held-out answers right: {sum(right) / len(right):.0%}")
for _ in range(3):  # it has learnt the questions as well
    print(go_on(gpt, "Good morning ,", longest=20, temperature=1.0, top_k=10))

# %% tags=["proof"]
assert sum(right) / len(right) > 0.95
before, changed = texts[:1, :8], texts[:1, :8].clone()
changed[:, 5:] = 3
with torch.no_grad():
    same = gpt(before) - gpt(changed)
assert same[:, :5].abs().max() < 1e-4 < same[:, 5:].abs().max()  # no leak

# %% [markdown]
# After *Good morning,* it writes questions like those it was trained on, and answers them. (Your samples may differ.)
#
# ### Pre-norm on one screen
#
# The layers of the model on one screen are post-norm: they normalise each sum of $x$ and what a sublayer returns. A
# pre-norm layer normalises what goes into a sublayer instead. Then nothing normalises what leaves the last layer. So
# each stack ends in one more norm. `OneScreen` receives the kind of layer through its argument `layer`:


# %%
class PreNormLayer(Layer):
    def forward(self, x, mask, memory=None, memory_mask=None):
        y = self.norm_self(x)
        x = x + self.dropout(self.self_attention(y, y, mask))
        if self.cross:
            y = self.cross_attention(self.norm_cross(x), memory, memory_mask)
            x = x + self.dropout(y)
        return x + self.dropout(self.down(self.up(self.norm_ff(x)).relu()))


class PreNorm(OneScreen):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, layer=PreNormLayer, **options)
        width = self.target_table.embedding_dim
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder_norm = nn.LayerNorm(width)

    def stack(self, table, layers, *inputs):
        x = super().stack(table, layers, *inputs)
        last = self.decoder_norm if layers is self.decoder else self.encoder_norm
        return last(x)


shares = {}
for kind in (OneScreen, PreNorm):
    for seed in range(2):
        torch.manual_seed(seed)
        deep = kind(len(vocabulary), 16, 2, 6, 64, dropout=0.0)  # six layers a side
        fit(deep, for_training)
        shares[kind.__name__, seed] = share_right(deep, unseen)
        print(f"{kind.__name__}: {shares[kind.__name__, seed]:.0%} right")
check(deep, questions[::41], answers[::41, :-1])  # the last one, pre-norm

# %% tags=["proof"]
assert (
    max(share for (name, _), share in shares.items() if name == "OneScreen") < 0.3
)
assert min(share for (name, _), share in shares.items() if name == "PreNorm") > 0.95
torch.manual_seed(0)
deep = OneScreen(len(vocabulary), 16, 2, 6, 64, dropout=0.0)
fit(deep, for_training, peak=0.002)
assert share_right(deep, unseen) > 0.6
x, mask = torch.randn(1, 4, 8), ~torch.ones(4, 4, dtype=torch.bool).tril()
assert Attention(8, 2)(x, x, mask)[0, -1].isnan().all()

# %% [markdown]
# In the same 250 steps, at the same peak of 0.01, six pre-norm layers learn to answer, and six post-norm layers do not.
# So here pre-norm tolerates a larger learning rate. At a peak of 0.002 post-norm learns, too, if less surely: 80 to 100
# percent right in our runs, depending on the seed and the machine. [Chapter 8](08_encoder.ipynb#does-training-agree)
# has a possible reason.
#
# ### Checks that need training
#
# Run these when [the first four](#what-to-check-and-in-what-order) have passed:
#
# | check | bad sign | what it means |
# |---|---|---|
# | one batch of 32, trained alone (**overfitting one batch**), without dropout | the loss stays well above 0 although the input determines what is wanted, even at a smaller learning rate | the model or the loop is wrong: do not start the long run |
# | teacher-forced accuracy, on held-out data | it is low | overfitting (chapter 11), too little training, masks that differ between training and test, or a model trained on targets that were not shifted (if this check shifts them itself) |
# | the loss on held-out pairs when each answer gets the question of another pair | it is hardly higher than with the right questions | the source is not used, or the wanted words leak in |
# | writing, on held-out data | it is much worse than the accuracy allows | a future seen in training, or a generation loop that disagrees with the single pass |
#
# (How much worse may writing be? If each word is right with probability 0.99, independently, an answer of five words is
# right with probability $0.99^5 \approx 0.95$.)
#
# ### Nine wrong masks
#
# With the correct masks, causal and padding, row $t$ sees words 0 to $t$ (`<bos>` is word 0) and predicts word $t + 1$.
# Here are nine mistakes. The models are [the book's module](#the-module-that-the-book-uses).
#
# | mistake | row $t$ may see |
# |---|---|
# | no causal mask | all words |
# | causal mask turned around (as when it was made for code in which True means *hidden*) | the words after $t$ |
# | one word too many: the diagonal moved up by one | words 0 to $t + 1$ |
# | one word too few: the diagonal moved down by one | words 0 to $t - 1$, so `<bos>` sees nothing |
# | scaled scores times mask: hidden scores become 0, not $-\infty$ | all: a score of 0 has a weight, as $e^0 = 1$ |
# | weights times mask, after the softmax | words 0 to $t$, and a trace of the later ones |
# | causal mask in training only, not after `model.eval()` | outside training, all |
# | causal mask on cross-attention, too | too little of the question |
# | padding not hidden in cross-attention | padding after the question, too |
#
# The correct model and each mistake were trained with nine seeds (`python -m benchmarks.masks`). Each row of the output
# sums up nine models:
#
# - *loss*: the largest training loss of the nine;
# - *forced*: the mean teacher-forced accuracy;
# - *writing*: the smallest and the largest share of answers that a model writes correctly;
# - *check finds*: what `check` finds first in a fresh model, and in which mode (it tries *train* before *eval*).


# %% nine wrong decoders tags=["hide-input"]
class Masked(Transformer):
    """A transformer whose two decoder masks are made by functions."""

    def __init__(self, own, cross=lambda T, S: torch.ones(T, S).bool(), hide=True):
        super().__init__(config)
        self.own, self.cross, self.hide = own, cross, hide

    def decode(self, target, memory, memory_mask=None):
        shape = target.shape[1], memory.shape[1]
        own = self.own(shape[0], self.training) & padding_mask(target, 0)
        cross = self.cross(*shape) & (memory_mask | (not self.hide))
        x = self.decoder(self.target_embeddings(target), memory, own, cross)
        return self.output(x)


class WrongAttention(MultiHeadAttention):
    """An attention that multiplies by the mask: scores, or weights."""

    where = "scores"

    def forward(self, query, key, value, mask=None, need_weights=False):
        q, k, v = (
            self.split_heads(linear(x))
            for linear, x in [(self.w_q, query), (self.w_k, key), (self.w_v, value)]
        )
        real = mask[..., -1:, :]  # the last query's row: all but padding
        scaled = q @ k.mT / q.shape[-1] ** 0.5
        if self.where == "scores":
            weights = (scaled * mask).masked_fill(~real, -math.inf).softmax(dim=-1)
        else:
            weights = scaled.masked_fill(~real, -math.inf).softmax(dim=-1) * mask
        return self.w_o(self.merge_heads(weights @ v)), weights


class AfterSoftmax(WrongAttention):
    where = "weights"


def with_attention(kind):
    broken = Transformer(config)
    for layer in broken.decoder.layers:
        wrong = kind(config.d_model, config.num_heads)
        wrong.load_state_dict(layer.self_attention.state_dict())
        layer.self_attention = wrong
    return broken


def equals_reference(variant, rows):
    reference = Transformer(config)
    reference.load_state_dict(variant.state_dict())
    same = []
    for mode in (True, False):
        with torch.no_grad():
            theirs = reference.train(mode)(questions[rows], answers[rows, :-1])
            ours = variant.train(mode)(questions[rows], answers[rows, :-1])
        real = answers[rows, :-1] != 0
        same.append(torch.allclose(ours[real], theirs[real], atol=1e-4))
    return all(same)


# %% train one, and score it tags=["hide-input"]
def triangle(T, _training):
    return causal_mask(T)


variants = {
    "correct": lambda: Masked(triangle),
    "no causal mask": lambda: Masked(lambda T, _: torch.ones(T, T).bool()),
    "causal mask turned around": lambda: Masked(lambda T, _: ~causal_mask(T)),
    "one word too many": lambda: Masked(
        lambda T, _: torch.ones(T, T).bool().tril(1)
    ),
    "one word too few": lambda: Masked(
        lambda T, _: torch.ones(T, T).bool().tril(-1)
    ),
    "scaled scores times mask": lambda: with_attention(WrongAttention),
    "weights times mask": lambda: with_attention(AfterSoftmax),
    "causal mask in training only": lambda: Masked(
        lambda T, training: causal_mask(T) | (not training)
    ),
    "causal mask on cross-attention": lambda: Masked(
        triangle, cross=lambda T, S: torch.ones(T, S).bool().tril()
    ),
    "padding not hidden": lambda: Masked(triangle, hide=False),
}


def trained_with(make, seed):
    """Loss, share of words right when forced, share of answers right when writing."""
    held_out, for_training = hold_out(seed)
    torch.manual_seed(seed)
    variant = make()
    loss = fit(variant, for_training, seed=seed)
    return loss, forced_accuracy(variant, held_out), share_right(variant, held_out)


# %% what is measured of each tags=["hide-input"]
from classroom.measured import measured

measurement = measured("masks")["found"]
found = {}
print(len(measurement["correct"]), "seeds of each")
print(f"{'':30}  loss forced     writing  check finds")
print(f"{'':30}  max    mean   min - max")
for name, make in variants.items():
    loss, forced, writing = np.array(measurement[name]).T
    torch.manual_seed(0)
    variant = make()
    assert equals_reference(variant, unseen) == (name == "correct")
    try:
        check(variant, questions[::41], answers[::41, :-1])
        found[name] = "nothing"
    except AssertionError as failure:
        mode = "train" if variant.training else "eval"
        found[name] = f"{failure}, {mode}"
    spread = f"{writing.min():.0%}-{writing.max():.0%}"
    print(
        f"{name:30}{loss.max():6.3f}{forced.mean():7.0%}{spread:>12}  {found[name]}"
    )

# %% tags=["proof"]
runs = {name: np.array(rows).T for name, rows in measurement.items()}
highest = sorted(round(losses.max(), 3) for losses, *_ in runs.values())
assert highest == [0.003] * 9 + [0.041]
_, forced, writing = runs["correct"]
assert forced.min() > 0.99 and writing.min() > 0.95
harmless = "one word too few", "padding not hidden"
for name in harmless:
    assert runs[name][1].min() > 0.99 and runs[name][2].min() > 0.97
future = [name for name in list(variants)[1:7] if name not in harmless]
for name in future:
    assert runs[name][1].min() > 0.99 and runs[name][2].max() < 0.5
    assert found[name] == "the future leaks, train"
dropped = "causal mask in training only"
assert found[dropped] == "the future leaks, eval"
assert found["padding not hidden"] == "padding, train"
assert [name for name, said in found.items() if said == "nothing"] == [
    "correct",
    "one word too few",
    "causal mask on cross-attention",
]
assert runs["one word too many"][2].max() == 0
assert round(runs["no causal mask"][2].max(), 2) == 0.01
assert round(runs[dropped][1].mean(), 2) == 0.49
assert round(runs[dropped][2].min(), 2) == 0.03
assert round(runs[dropped][2].max(), 2) == 0.97
loss, _, across = runs["causal mask on cross-attention"]
assert round(across.min(), 2) == 0.78 and (across == 1).sum() == 7
assert loss[across < 0.95].min() > 9 * runs["correct"][0].max()

# %% [markdown]
# The losses give hardly any warning: all but one are 0.003, as in the correct model. One comparison finds all nine: a
# correct model with the same parameters returns different logits, if both modes and padded questions are tried.
#
# **Five see the future**, in training too. (One layer without the mask would be enough: its rows pass what they have
# seen on to all layers above.) With the right words given, even held-out questions look solved. Without a mask, or with
# it turned around, the wanted word is visible among others.
#
# *One word too many*, an **off-by-one** error, shows exactly the word that is wanted. *Weights times mask* removes the
# later words' weights, but their scores stay in the denominator. So the rest sums to less than 1 ([chapter
# 4](04_self_attention.ipynb#why-minus-infinity)), and each blend is shortened by a factor that depends on which words
# come next. Presumably the model learns to tell the next word from that factor. *Scaled scores times mask* gives each
# hidden word the score 0, so the later words' values stay in the blend.
#
# **One sees the future outside training.** The mask *in training only* is off after `model.eval()`, so *forced* and
# *writing* both run without it. Writing uses only the last row, which may see every word anyway. But now layer 1 mixes
# later words into the *earlier* rows, and the last row of layer 2 reads those. Training never showed such vectors: one
# seed gets 3 percent right, another 97. In *forced* every position but the last sees more than in training; presumably
# that is why only 49 percent are right.
#
# **Two see too little.** *One word too few* hides each word from itself, and leaves `<bos>` nothing at all: in the
# book's module, which was used here, a blend of zeros. Still, at least 97 percent of the answers are right, presumably
# because the residual connection carries the word itself upwards.
#
# In the one-screen model, and in `nn.MultiheadAttention` as it is called by default, a row that may see nothing gets
# the softmax 0/0, which is NaN, and spreads it: a NaN score makes a row's whole softmax NaN, and even a weight of 0
# times NaN is NaN. So in such code the first loss is NaN with *one word too few*, and with *turned around*, whose last
# row has no word after it.
#
# A causal mask *on cross-attention* lets row $t$ attend only to the question's words 0 to $t$. Most answers are right
# all the same, presumably because the encoder, which sees the whole question, has carried what is needed to the first
# positions.
#
# **One sees padding.** The batches in training had padding, too, so the model learned to live with it; an amount that
# it never saw may change the answer. (The *decoder's* self-attention needs no padding mask where padding stands on the
# right: by the causal mask no real word sees it, and the loss ignores its rows.)
#
# ### A tenth mistake, in no mask
#
# What if the target is not shifted, so that `answers[:, :-1]` is both given and wanted?

# %% train without the shift tags=["hide-input"]
torch.manual_seed(0)
copying = Transformer(config)
optimizer = torch.optim.Adam(copying.parameters(), lr=0.01)
for _ in range(250):
    rows = torch.tensor(for_training)[torch.randint(len(for_training), (32,))]
    given = answers[rows, :-1]
    logits = copying(questions[rows], given)
    loss = F.cross_entropy(logits.flatten(0, 1), given.flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
copying.eval()
forced, writing = forced_accuracy(copying, unseen), share_right(copying, unseen)
print(f"loss {loss.item():.3f}, forced {forced:.0%}, writing {writing:.0%}")
print("it writes:", *[vocabulary[n] for n in generate(copying, hello)[0].tolist()])
check(copying, questions[::41], answers[::41, :-1])  # finds nothing
assert equals_reference(copying, unseen)
assert loss < 0.01 and writing == 0 and forced < 0.05

# %% [markdown]
# Each position copies what it was given, which is all that the loss asks for. The causal mask cannot prevent it: a
# position may see its own token, and only the shift makes the wanted token a later one. Here the loss does not show it,
# because the correct model's is as low; on real text it would be impossibly low. `check` finds nothing, and a reference
# would not help, because the logits are those of a correct model with these parameters. The teacher-forced accuracy is
# near 0, because here it makes its own shift. If it shared the faulty line with training, it would be perfect. And from
# `<bos>` the model writes nothing but `<bos>`.
#
# ### Does it combine what it has learned?
#
# Every question that the model was tested on has a twin with another greeting. (If near-duplicates of training examples
# get into a test set by accident, the set is called **contaminated**.) For a harder test, hold out whole *topics*. A
# topic is a person with a mood, such as *you* with *tired*, or a person with *how*. If *you* and *tired* never stood in
# one question, what does the model say to *why are you tired*? Combining what was seen in different examples is called
# **compositional generalisation**.
#
# **Predict first.** What share of the answers to held-out topics is right? We have trained nine models with whole
# topics held out, and nine with single questions held out as before, each with a seed and a split of its own
# (`python -m benchmarks.answers`; the folded cell holds what it runs).


# %% hide positions of the memory; hold out whole topics tags=["hide-input"]
@torch.no_grad()
def chance_of_i(model, *hidden):
    """Probability of *I* when positions of the memory are hidden."""
    memory, mask = model.encode(hello)
    mask = mask.clone()  # (1, 1, 1, 6)
    for position in hidden:
        mask[..., position] = False
    begin = model.target_embeddings(torch.tensor([[number["<bos>"]]]))
    logits = model.output(model.decoder(begin, memory, causal_mask(1), mask))
    return logits[0, 0].softmax(dim=-1)[number["I"]].item()


@torch.no_grad()
def where_it_looks(model):
    """Weights of the last cross-attention, from <bos>, mean of heads: (6,)."""
    with record_weights(model) as seen:
        model(hello, torch.tensor([[number["<bos>"]]]))
    return seen["decoder.layers.1.cross_attention"][0, :, 0].mean(dim=0).tolist()


def trained_on(rows, seed):
    torch.manual_seed(seed)
    trial = Transformer(config)
    fit(trial, rows, seed=seed)
    return trial


def topic(question):
    """The person, and the mood or *how*: what a question is about."""
    first, second, third = (
        question.split(" , ")[-1].removeprefix("why ").split()[:3]
    )
    return (third, "how") if first == "how" else (second, third)


def train_and_look(seed):
    """What two splits give, and what *I* needs."""
    row, (held_out, rows) = {}, hold_out(seed, key=topic)
    trial = trained_on(rows, seed)
    for kind, word in ("yes", "yes"), ("why", "says"), ("how", "fine"):
        some = [n for n in held_out if word in pairs[n][1].split()]
        row[kind] = [share_right(trial, some) if some else None, len(some)]
    held_out, rows = hold_out(seed)
    trial = trained_on(rows, seed)
    row["questions"] = share_right(trial, held_out)
    row["weights"] = where_it_looks(trial)
    row["without"] = [chance_of_i(trial, n) for n in range(6)]
    return row


# %% right answers by kind of question tags=["hide-input"]
from classroom.measured import measured

nine = measured("answers")["models"]
print(f"new questions: {min(row['questions'] for row in nine):.0%} in each model")
for kind in ("yes", "why", "how"):
    total = sum(count for share, count in (row[kind] for row in nine))
    right = sum(
        share * count for share, count in (row[kind] for row in nine) if count
    )
    print(f"new topics, {kind}: {right:.0f} of {total} = {right / total:.0%}")

# %% [markdown]
# Where topics were held out, the models answer nearly all questions whose answer begins with *yes*: that answer is the
# same for every mood, and the model has seen it for this person with other moods. They answer 93 percent of those that
# ask *why*: a model that has seen *you cold* and *Ada tired* can usually say *who says I am tired*. With *how* it is
# different. *I am fine* answers only *how are you*, so when that topic is held out, no training pair has this answer.
# Then one answer in four is right, in single models none to all. A test set measures what its split makes it measure.

# %% tags=["proof"]
twins = {pairs[n][0].split(" , ")[-1] for n in for_training}
assert all(pairs[n][0].split(" , ")[-1] in twins for n in unseen)
assert all(row["questions"] == 1 for row in nine)
rates = {}
for kind in ("yes", "why", "how"):
    parts = [row[kind] for row in nine if row[kind][1]]
    rates[kind] = sum(s * n for s, n in parts) / sum(n for _, n in parts)
assert rates["yes"] > 0.99 and round(rates["why"], 2) == 0.93
assert 0.2 < rates["how"] < 0.3 and {0, 1} < {row["how"][0] for row in nine}

# %% [markdown]
# ### Does the map say why?
#
# Back to *Hi, how are you?* and the model that we [followed](#one-question-followed-to-its-answer). At `<bos>` the head
# attended to *are* and *you*, and the answer is *I*. Is the first the reason for the second? Hide one position of the
# memory at a time from the decoder, and see what becomes of the probability of *I*, in this model and in the nine
# trained with single questions held out. Hiding a part of the input is called **occlusion**. Below,
#
# - *look* is the attention from `<bos>` in the last layer's cross-attention, the mean of its two heads;
# - *hide* is the probability of *I* with that position hidden from both layers;
# - *I is lost* means that this probability falls below one half when a single position is hidden: *how or are* means
#   that hiding either of them alone is enough.

# %% where it looks, and what it cannot do without tags=["hide-input"]
from collections import Counter
from itertools import combinations

print("     " + "".join(f"{word:>7}" for word in question))
print("look " + "".join(f"{weight:7.2f}" for weight in where_it_looks(model)))
here = [chance_of_i(model, position) for position in range(6)]
print("hide " + "".join(f"{chance:7.2f}" for chance in here))
twos = {two: chance_of_i(model, *two) for two in combinations(range(6), 2)}
both = twos.pop((3, 4))
print(
    f"are and you hidden: {both:.2f}, any other two: at least {min(twos.values()):.2f}"
)

most, needs = [], []
for row in nine:
    most.append(question[int(np.argmax(row["weights"]))])
    needs.append(
        [w for w, p in zip(question, row["without"], strict=True) if p < 0.5]
    )
print("\nof the nine   I is lost without   most attention goes to")
groups = Counter(
    (" or ".join(n) or "-", w) for n, w in zip(needs, most, strict=True)
)
for (lost, looked), count in groups.most_common():
    print(f"{count:11}   {lost:18}  {looked}")

# %% [markdown]
# Hide *you*, and *I* keeps a probability of about 0.85; hide any other single word, and it keeps about 0.99. But hide
# *are* and *you* together, and the probability of *I* is nearly 0; hide any other two, and it is at least 0.8. So, with
# the other four there, either of the two positions with most attention is enough for *I*, presumably because the
# encoder has mixed *you* into the vector of *are*. Hiding one at a time does not show that.
#
# In four of the nine other models *you* gets the most attention, too, and there *I* is lost without it. Three others
# need the positions of *how* and *are*, but not that of *you*; presumably the encoder carried *you* there. The last two
# keep *I* whichever single position is hidden (pairs may matter). In all, in six of the nine *I* is lost without the
# position with most attention, and in three it is not. So this map alone does not say why. It shows only the last
# layer, but hiding acts on both, and a position carries more than its own word.
#
# [Chapter 15](15_pretrained.ipynb#do-attention-maps-explain-predictions) asks how **faithful** such maps are: how far
# they show what the prediction depends on.

# %% tags=["proof"]
assert int(np.argmax(where_it_looks(model))) == 4
assert 0.75 < here[4] < 0.95
assert min(here[:4] + here[5:]) > 0.98
assert both < 0.1 and min(twos.values()) > 0.75
assert (
    sum(look == "you" and n == ["you"] for look, n in zip(most, needs, strict=True))
    == 4
)
assert [n for n in needs if n and n != ["you"]] == [["how", "are"]] * 3
assert sum(not n for n in needs) == 2
assert sum(look in n for look, n in zip(most, needs, strict=True)) == 6

# %% [markdown]
# ### Does a causal mask carry order?
#
# [Chapter 5](05_position.ipynb) added positions, because attention alone cannot tell one order from another. But a
# causal mask treats positions differently. Is that enough? Yes, to some degree. The first word sees only itself, the
# second two words, and so on, so that in the first layer the same word at two positions receives two averages, over
# different words. The second layer can use these differences. Swap the first two of five words: with one layer what the
# last word receives stays the same, with two it changes.

# %% the first two words swapped, with one layer and two tags=["hide-input"]
from dotformer.encoder import Encoder, LayerConfig

sizes = LayerConfig(d_model=16, num_heads=2, d_ff=32, dropout=0.0)
five = torch.randn(1, 5, 16)
for num_layers in (1, 2):
    stack = Encoder(sizes, num_layers).eval()  # with a causal mask: no encoder
    with torch.no_grad():
        last = [
            stack(x, causal_mask(5))[0, -1]
            for x in (five, five[:, [1, 0, 2, 3, 4]])
        ]
    change = (last[0] - last[1]).norm().item()
    print(f"{num_layers} layer(s): the last word's vector moves by {change:.4f}")
    assert (change > 0.01) == (num_layers == 2)

# %% [markdown]
# [Haviv and others (2022)](https://arxiv.org/abs/2203.16634) trained language models without positions (later called
# **NoPE**) that came close to those with them.

# %% [markdown]
# ### Short answers
#
# - **Why not train the decoder on its own words?** Because each wanted word assumes the right words before it: if the
#   model writes *yes* for *I*, the wanted next word *am* no longer fits. And it would take a pass for each word, as in
#   writing.
# - **How serious is exposure bias?** *Scheduled sampling* gives the model some of its own words in training ([Bengio
#   and others, 2015](https://arxiv.org/abs/1506.03099)). The harm is disputed: [He and others
#   (2021)](https://arxiv.org/abs/1905.10617) found it limited, and language models able to recover from bad beginnings.
# - **Why not write all words at once?** Because words that are chosen separately need not fit: if *thank you* and *many
#   thanks* are equally likely, independent draws give *many you* or *thank thanks* half of the time. This
#   *multimodality problem* ([Gu and others, 2018](https://arxiv.org/abs/1711.02281)) costs such *non-autoregressive*
#   models quality, though they write faster.
# - **How does the encoder learn, without a loss of its own?** From the decoder's: the loss depends on the memory
#   through the keys and values of every cross-attention, so gradients flow back along them, from all positions of the
#   answer. If the decoder is given `memory.detach()`, the encoder gets no gradient, and no error is raised.
# - **Why does every decoder layer read the *last* encoder layer?** Its vectors have been through all layers, so they
#   have gathered the most context, and residual connections carry earlier results along. It is a design choice: [Bapna
#   and others (2018)](https://arxiv.org/abs/1808.07561) let decoder layers blend the outputs of all encoder layers.
# - **How much larger is a decoder layer than an encoder layer?** By a third, if $d_\text{ff} = 4D$: an encoder layer
#   has about $4D^2 + 8D^2$ parameters, and cross-attention adds $4D^2$. For $D = 512$, with biases and norms, that is
#   3,152,384 against 4,204,032.
# - **How many scores do the three attentions compute?** In each layer and head every query meets every key: $S^2$
#   scores in the encoder, $T^2$ in the decoder's self-attention, $T S$ in cross-attention. For $S = 100$ and $T = 20$
#   these are 10,000, 400 and 2,000, so a long source costs most in the encoder.
# - **Why does the decoder need `<bos>`?** Because every row of logits belongs to a given token: without `<bos>` no row
#   could predict the first word. Any fixed token can serve, and T5 starts with its padding token. (In `OneScreen` that
#   would be hidden even from itself, and give NaN.)
# - **What if the model never writes `<eos>`?** Then nothing else ends the loop, so it needs a limit: `longest` here,
#   the source's length plus 50 in the [2017 paper](https://arxiv.org/abs/1706.03762). Rows that reach it are
#   unfinished. Count them: many suggest that `<eos>` was not learned, or a limit that is too low.
# - **Must encoder and decoder have the same depth and width?** No, because they meet only in cross-attention, whose
#   $W_K$ and $W_V$ can map vectors of any width. With a deep encoder and one decoder layer [Kasai and others
#   (2021)](https://arxiv.org/abs/2006.10369) kept the accuracy and translated faster, since the encoder runs once.
# - **Why might the decoder ignore the question?** Because earlier words often suffice: after *who says Dan*, *is* needs
#   no question. And the residual connection leads past cross-attention, so the decoder can predict from its own words
#   alone. If it ignores the question entirely, its greedy answer is the same for every question.
# - **How much may the earlier logits move in a leak test?** In float32 allow about $10^{-4}$: rounding moves logits by
#   about $10^{-6}$, and a leak by far more. (No such test finds a leak through the data, such as an answer inside its
#   question.)
# - **What if the padding mask is turned around?** Then only padding is seen, and in a sentence without padding,
#   nothing, which gives NaN in `OneScreen`. So test by hand with one padded and one full sentence.
# - **Can a model with a causal mask find out how far along it is?** Yes: with equal weights the first of $t$ words gets
#   the share $1/t$. If it can be recognised, as `<bos>` can, later layers can read off $t$. This is less direct than
#   positions, and an encoder, which has no causal mask, still needs them.

# %% tags=["proof"]
from dotformer.encoder import EncoderLayer

counts = [
    sum(p.numel() for p in layer(LayerConfig()).parameters())
    for layer in (EncoderLayer, DecoderLayer)
]
assert counts == [3_152_384, 4_204_032]
