# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 19. What has changed since 2017?
#
# Put [chapter 18](18_gpt.ipynb)'s GPT beside a model of 2026, and you recognise it: the same residual stream, attention
# and a feed-forward network in turn, one token after the other. But almost every part has been replaced. In this
# chapter you read the new parts line by line, measure what each is worth, load a published model of 135 million
# parameters into your own classes, and chat with it.
#
# You need chapters [5](05_position.ipynb), [12](12_generation.ipynb) and [18](18_gpt.ipynb). It takes about 28 minutes
# to read, and 30 for the exercises. [Going further](#going-further), at the end, takes 13 more minutes.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. Every part is built. This chapter exchanges some of them."}}
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from classroom import checks, plots, quiz, transformer_map
from classroom.diagram import Diagram

plots.book_style()
transformer_map(built=19)

# %% [markdown]
# ## Seven changes
#
# Each row is one change. The sections below explain the last column.
#
# | | 2017, chapter 9 | GPT-2, chapter 18 | Llama 3, SmolLM2 and most others |
# |---|---|---|---|
# | where the norm stands | after each sublayer (post-norm) | before it (pre-norm) | before it |
# | norm | LayerNorm | LayerNorm | RMSNorm |
# | feed-forward | ReLU | GELU | SwiGLU |
# | positions | sinusoids, added once | learned, added once | queries and keys turned in each layer (RoPE) |
# | keys and values | separate for each head | separate for each head | shared by groups of heads |
# | biases | yes | yes | no |
# | output matrix | the embedding table | the embedding table | the embedding table in small models, a matrix of its own in large ones |
#
# Here are a layer of 2017 and one of today. New parts are red, and the norm has moved.

# %% tags=["plot"] mystnb={"image": {"alt": "Two layers, drawn from bottom to top. Left, 2017: attention, whose output joins the residual stream, LayerNorm, feed-forward with ReLU, which joins too, LayerNorm. Sinusoids are added below, before the first layer. Right, today: RMSNorm, attention with turned queries and keys and shared heads, which joins, RMSNorm, SwiGLU, which joins. The norms stand on the branches, so that the line of the residual stream goes straight through."}}
drawing = Diagram(8.2, 4.5)
for x, label in ((1.9, "2017"), (6.0, "today")):
    drawing.text(x, 4.32, label, plots.GREY)
drawing.arrow((6.0, 0.25), (6.0, 4.15), width=2.2)
drawing.text(1.75, 0.4, "+ sinusoids", plots.GREY, at="right", size=10)
for y, label in ((0.95, "attention"), (2.6, "feed-forward\nReLU")):
    drawing.arrow((1.9, 0.25 if y < 1 else 2.16), (1.9, y + 0.6), width=2.2)
    drawing.axes.plot([1.9, 1.9], [y + 0.8, y + 0.91], color=plots.GREY, lw=2.2)
    drawing.arrow((1.9, y - 0.35), (2.9, y - 0.35), (2.9, y), color=plots.BLUE)
    drawing.box(2.9, y + 0.25, label, 1.3, 0.5, size=10)
    drawing.arrow((2.9, y + 0.5), (2.9, y + 0.7), (2.0, y + 0.7), color=plots.BLUE)
    drawing.sum(1.9, y + 0.7)
    drawing.box(1.9, y + 1.06, "LayerNorm", 1.1, 0.3, plots.GOLD, size=10)
drawing.arrow((1.9, 3.81), (1.9, 4.15), width=2.2)
for y, label in ((0.95, "attention\nturned, shared"), (2.6, "SwiGLU")):
    drawing.arrow(
        (6.0, y - 0.55), (7.0, y - 0.55), (7.0, y - 0.36), color=plots.BLUE
    )
    drawing.box(7.0, y - 0.2, "RMSNorm", 1.1, 0.32, plots.RED, size=10)
    drawing.arrow((7.0, y - 0.04), (7.0, y + 0.2), color=plots.BLUE)
    drawing.box(7.0, y + 0.48, label, 1.4, 0.5, plots.RED, size=10)
    drawing.arrow(
        (7.0, y + 0.73), (7.0, y + 0.95), (6.1, y + 0.95), color=plots.BLUE
    )
    drawing.sum(6.0, y + 0.95)
plt.show()

# %% [markdown]
# The first, pre-norm, you know from [chapter 8](08_encoder.ipynb). The other six follow one by one, and then a small
# run measures all seven.
#
# ## RMSNorm: the same without the mean
#
# LayerNorm ([chapter 8](08_encoder.ipynb#layer-norm-on-four-numbers)) subtracts the mean of a vector and divides by its
# standard deviation. [Zhang and Sennrich (2019)](https://arxiv.org/abs/1910.07467) left out the mean, and the learned
# shift has mostly gone, too. What is left is to divide by the **root mean square**, and to multiply each entry by a
# learned gain $g$:
#
# $$\text{RMSNorm}(x) = \frac{x}{\sqrt{\frac{1}{D} \sum_i x_i^2 + \epsilon}} \odot g$$
#
# **By hand**: $x = (7, 1)$ has the mean square $(49 + 1) / 2 = 25$, so it becomes $(7, 1) / 5 = (1.4, 0.2)$. LayerNorm
# subtracts the mean 4, divides by the deviation 3, and arrives at $(1, -1)$. RMSNorm, before the gain, leaves the
# direction as it is and changes the length alone. PyTorch has it:

# %%
import torch
from torch import nn

x = torch.tensor([7.0, 1.0])
print("of (7, 1):")
for norm in (nn.RMSNorm(2, eps=1e-5), nn.LayerNorm(2)):
    print(type(norm).__name__, [round(entry, 4) for entry in norm(x).tolist()])
torch.manual_seed(0)
x, gain = torch.randn(3, 8), torch.randn(8)
by_formula = x / (x.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * gain
assert torch.allclose(by_formula, nn.functional.rms_norm(x, (8,), gain, 1e-5))

# %% [markdown]
# Why may the mean go? A norm makes the next sublayer independent of how long the vector has grown, and the division
# alone does that: RMSNorm of $10 x$ is RMSNorm of $x$ (*re-scaling invariance*). LayerNorm also gives the same if a
# number $c$ is added to every entry (*re-centring invariance*). That seems not to be needed, because Zhang and
# Sennrich's models were as good without it, and took 7 to 64 percent less time.
#
# ## SwiGLU: one map opens the gate for another
#
# The feed-forward network of chapter 8, without its biases, is $\max(0, x W_1) W_2$. Each hidden unit computes one
# weighted sum of the entries of $x$, and passes it on if it is above 0. A **gated linear unit** replaces $W_1$ by two
# maps: *up* makes the numbers, and *gate* says how much of each passes:
#
# $$\text{SwiGLU}(x) = \big(\text{SiLU}(x W_\text{gate}) \odot x W_\text{up}\big) W_\text{down}$$
#
# $$\text{SiLU}(z) = z \cdot \text{sigmoid}(z) = \frac{z}{1 + e^{-z}}$$
#
# SiLU's other name, *Swish*, gave SwiGLU its first three letters.
#
# **By hand**, for one unit: up gives 2. If the gate gives $-3$, then SiLU is $-3 / (1 + e^3) = -0.14$, and twice that,
# $-0.28$, passes: almost nothing. If the gate gives 3, then SiLU is 2.86, and 5.72 passes. The unit is a *product* of
# two sums of $x$, one of them through SiLU: what up finds counts only where the gate finds something, too.
#
# With a third matrix there are half as many parameters again. So $d_{ff}$ becomes two thirds of what it was, and the
# number of parameters stays the same: $3 \cdot \frac{2}{3} = 2$.
#
# [Shazeer (2020)](https://arxiv.org/abs/2002.05202) found several gated units better than ReLU and GELU at equal size,
# among them **GeGLU**, with GELU in place of SiLU. He attributes their success "to divine benevolence".

# %% tags=["export"] module="modern"
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SwiGLU(nn.Module):
    """Two linear maps multiplied, one of them through SiLU; then a third.

    (..., D) -> (..., d_ff) -> (..., D). After Shazeer (2020).
    """

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, d_ff, bias=False)
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to each vector of x (..., D)."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


# %% gate and up, on two numbers tags=["hide-input"]
torch.manual_seed(0)
network = SwiGLU(d_model=8, d_ff=20)
with torch.no_grad():
    gate, up = network.gate(x), network.up(x)
    by_formula = network.down(gate / (1 + torch.exp(-gate)) * up)
    assert torch.allclose(network(x), by_formula, atol=1e-6)
silu = nn.functional.silu(torch.tensor([-3.0, 3.0]))
print("SiLU(-3), SiLU(3):", [round(z, 2) for z in silu.tolist()])

# %% tags=["quiz"]
quiz.number(
    "A model has $D = 576$ and, before the change, $d_{ff} = 4 D$ with two matrices. With which $d_{ff}$ has SwiGLU as many parameters?",
    8 * 576 / 3,
    tolerance=0.5,
    feedback="Yes: $3 D \\cdot d_{ff} = 8 D^2$. SmolLM2-135M, below, has exactly these 1,536.",
    mistakes=[
        (
            4 * 576,
            "That would be half as many again, because there are three matrices.",
        ),
        (
            2 * 576,
            "Half is too little: of three matrices each must have two thirds of the size, not half.",
        ),
    ],
    otherwise="Two matrices of $D \\times 4D$ are $8 D^2$ numbers. Three of $D \\times d_{ff}$ must come to the same.",
)

# %% [markdown]
# ## RoPE: turn the query and the key
#
# [Chapter 5](05_position.ipynb#a-step-is-a-rotation) found that a step of sinusoids is a rotation: each pair of entries
# turns by its own angle. There, positions were *added* to the word vectors, and the layers had to separate the two
# again. [Su and others (2021)](https://arxiv.org/abs/2104.09864) leave the word vectors alone and turn the *queries and
# keys* instead, each by its own position. This is the *rotary position embedding*, **RoPE**, which chapter 5 computed
# [by hand](05_position.ipynb#rotary-positions-turning-instead-of-adding).
#
# The rotation $R_t$ at position $t$ turns pair $i$ (entries $2i$ and $2i + 1$, counted from 0) by $t$ times the angle
# of chapter 5, $10000^{-2i/d_k}$, where $d_k$ is a head's width and 10,000 the *base*. A pair $(a, b)$, turned by
# $\theta$, becomes
#
# $$(a, b) \begin{pmatrix} \cos\theta & \sin\theta \\ -\sin\theta & \cos\theta \end{pmatrix} = (a \cos\theta - b \sin\theta, \; a \sin\theta + b \cos\theta) .$$
#
# Query and key are rows, so their score is
#
# $$(q R_t) (k R_s)^\top = q \, R_t R_s^\top k^\top = q \, R_{t-s} \, k^\top .$$
#
# $R_s^\top$ turns back by $s$, because transposing swaps the signs of its two sines. So $R_t R_s^\top$ turns by
# $t - s$, and a score depends on the query, the key *and how far apart they stand, and in which order*, but not on
# where they stand. A rotation keeps lengths, so no position makes a query or a key longer.
#
# The first pairs turn by up to 1 radian a step, so they tell neighbours apart. The last hardly turn, so position
# changes them little, and they compare what the words *are*.
#
# **By hand**: take one pair, which turns by 1 radian a step, and $q = k = (1, 0)$. At position $t$ this vector becomes
# $(\cos t, \sin t)$: the query at 3 is $(\cos 3, \sin 3)$, the key at 1 $(\cos 1, \sin 1)$. Their dot product is
# $\cos 3 \cos 1 + \sin 3 \sin 1 = \cos(3 - 1) = -0.42$. Exchanged positions give the same, because here $q = k$. But
# $k = (0, 1)$ becomes $(-\sin 1, \cos 1)$, which gives $\sin(3 - 1) = 0.91$, and exchanged $-0.91$.
#
# **Predict first.** What is the score at positions 13 and 11?

# %% tags=["plot"] mystnb={"image": {"alt": "Two circles. On the left, arrows of a query at position 3 and a key at position 1, turned by 3 and by 1 radians: 2 radians apart. On the right, the same at positions 13 and 11: both arrows have turned on, and still they are 2 radians apart."}}
figure, panels = plt.subplots(1, 2, figsize=(6, 2.9))
for axes, (m, n) in zip(panels, ((3, 1), (13, 11)), strict=True):
    axes.add_patch(plt.Circle((0, 0), 1, fc="none", ec=plots.BLANK, lw=1.5))
    for name, angle, color in (("q", m, plots.BLUE), ("k", n, plots.RED)):
        tip = np.array([np.cos(angle), np.sin(angle)])
        axes.annotate(
            "",
            tip,
            (0, 0),
            arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.8},
        )
        axes.text(
            *1.22 * tip, f"{name}, {angle}", color=color, ha="center", va="center"
        )
    between = np.linspace(n, m, 40)
    axes.plot(0.3 * np.cos(between), 0.3 * np.sin(between), color=plots.GREY, lw=1)
    axes.set(
        xlim=(-1.6, 1.6),
        ylim=(-1.45, 1.45),
        aspect="equal",
        title=f"positions {m} and {n}",
    )
    axes.axis("off")
figure.tight_layout()
plt.show()

# %% tags=["export"] module="modern"
from dotformer.support.shapes import shapes
from jaxtyping import Float, Int


@shapes
def rotation(
    positions: Int[Tensor, "*batch T"], d_k: int, base: float = 10_000.0
) -> Float[Tensor, "2 *batch T pairs"]:
    """Cosine and sine of each position's angles, one for each pair of entries."""
    i = torch.arange(0, d_k, 2, device=positions.device)
    angles = positions[..., None] * base ** (-i / d_k)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turn each pair of entries of x (..., T, d_k) by its angle.

    Neighbours make a pair, as in Su and others (2021). For `turn` see `rotation`.
    """
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = turn.to(x.dtype)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


# %% scores two apart, and six turns tags=["hide-input"]
from dotformer.by_hand.positions import rotation_matrix

one = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
for where in ([3, 1], [13, 11]):
    q, k = rotate(one, rotation(torch.tensor(where), 2))
    print(f"score at positions {where[0]} and {where[1]}: {q @ k:.2f}")
x = torch.randn(6, 8)
turned = rotate(x, rotation(torch.arange(6), 8))
for t in range(6):
    by_matrix = x[t] @ torch.tensor(rotation_matrix(-t, 8)).float()
    assert torch.allclose(turned[t], by_matrix, atol=1e-5)
assert round(float(q @ k), 2) == -0.42
slowest = [8192 * base ** (-62 / 64) * 180 / np.pi for base in (1e4, 1e5)]
assert [round(angle) for angle in slowest] == [63, 7]

# %% [markdown]
# The same, $-0.42$. In the code, `i` is the $2i$ of the formula.
#
# Many models of today have a base of 100,000 or more. With 100,000 and $d_k = 64$, the slowest pair turns by 7 degrees
# over 8,192 tokens instead of by 63, so it still compares what the words are.
#
# Three things follow from turning queries and keys alone:
#
# - Values are not turned, so the rotation decides how much a word passes on, and not what. And no position is added to
#   the residual stream, so each layer has to turn its own queries and keys.
# - There is no embedding table of positions to run out of, though [that
#   alone](#does-it-read-texts-longer-than-those-it-was-trained-on) does not make a model read longer texts well.
# - Keys can still be cached, after the turn, since a key's position never changes.
#
# Programs differ in two conventions:
#
# - *Direction.* Published models and this chapter turn anticlockwise. Chapter 5 turned clockwise.
# - *Pairs.* In the paper, in Llama's own code and here, *neighbours* make a pair: entries $2i$ and $2i + 1$. The Llama
#   of the library `transformers` pairs *by halves*: entries $i$ and $i + d_k/2$. With four entries that is (0, 1), (2,
#   3) against (0, 2), (1, 3).
#
# Once trained, $W_Q$ and $W_K$ fit one direction and one pairing. PyTorch stores a row for each output, so for the
# other pairing the rows must be reordered, as in exercise 2. If you forget, all shapes still fit, and no error appears.
# [Later](#break-it-it-still-says-paris) you make that mistake on purpose.
#
# ## Heads that share keys and values
#
# With each token that a model writes, it reads the [keys and values of all earlier
# ones](12_generation.ipynb#what-has-been-computed-before). Every token adds one key and one value to this *cache* in
# each head of each layer. In numbers, that is
#
# $$2 \cdot \text{layers} \cdot \text{heads} \cdot d_k.$$
#
# For a model of 30 layers, with 9 heads of width 64, that is 34,560 numbers. At each step of writing, a machine reads
# the weights once for the whole batch, but a cache for every text. So with long texts, or many, much of what it reads
# is cache, and a smaller one makes writing faster.
#
# But do nine queries need nine different sets of keys and values? There are two ways to share them:
#
# - In *multi-query attention* ([Shazeer 2019](https://arxiv.org/abs/1911.02150)) all heads share one set.
# - In *grouped-query attention*, **GQA** ([Ainslie and others 2023](https://arxiv.org/abs/2305.13245)), the heads of
#   a group share one set. With three groups, 11,520 numbers are left.
#
# Multi-query attention saves most and costs most in quality; grouped-query attention lies between. Why not have fewer
# heads? A query that shares keys and values still has its own pattern of attention, and with fewer heads such patterns
# would be lost.

# %% tags=["plot"] mystnb={"image": {"alt": "Three ways to share, drawn as boxes. Left: nine queries above, nine pairs of keys and values below, each connected with its own. Middle, grouped: nine queries, three pairs below, each connected with three queries that stand side by side. Right, multi-query: nine queries, all connected with one pair."}}
drawing = Diagram(8.6, 1.75)
for left, kv_heads, label in (
    (0.2, 9, "each its own"),
    (3.1, 3, "grouped"),
    (6.0, 1, "multi-query"),
):
    width = 2.4 / 9
    drawing.text(left + 1.2, 1.62, label, plots.GREY, size=10)
    for head in range(9):
        x = left + (head + 0.5) * width
        shared = left + (head // (9 // kv_heads) + 0.5) * 2.4 / kv_heads
        drawing.axes.plot([x, shared], [1.05, 0.58], color=plots.GREY, lw=0.8)
        drawing.box(x, 1.2, "q", 0.22, 0.3, size=9)
    for head in range(kv_heads):
        drawing.box(
            left + (head + 0.5) * 2.4 / kv_heads,
            0.42,
            "kv",
            0.24,
            0.3,
            plots.RED,
            size=8,
        )
plt.show()

# %% [markdown]
# The numbers that fix the model's shape are in a `ModernConfig`:

# %% tags=["export", "hide-input"] module="modern"
from dataclasses import dataclass

from dotformer.support.settings import check_heads, check_settings


@dataclass(frozen=True, kw_only=True)
class ModernConfig:
    """All that fixes the shape of a decoder-only model of today.

    `num_kv_heads` divides `num_heads`, and d_model / `num_heads` is even. Tokens
    equal to `pad_id` are padding; None: there is none.
    """

    vocab_size: int
    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    d_ff: int
    max_length: int = 2048
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    tied: bool = True
    pad_id: int | None = 0

    def __post_init__(self) -> None:
        check_settings(self, zero=("pad_id",))
        check_heads(self.d_model, self.num_heads, self.num_kv_heads)


# %% [markdown]
# The attention is chapter 6's, with the two additions of this chapter:
#
# - Queries and keys are turned by `turn`, the cosines and sines from `rotation`.
# - Heads share. $W_K$ and $W_V$ become narrower, and `enable_gqa` lets each key serve all heads of its group.
#
# When the model writes, `kept` is the layer's cache, with the keys, already turned, and the values of earlier tokens.


# %% tags=["export"] module="modern"
class GroupedAttention(nn.Module):
    """Self-attention whose heads share keys and values, in groups.

    After Ainslie and others (2023); for rotary positions Su and others (2021).
    """

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        D, self.d_k = config.d_model, config.d_model // config.num_heads
        shared = self.d_k * config.num_kv_heads
        self.w_q = nn.Linear(D, D, bias=False)
        self.w_k = nn.Linear(D, shared, bias=False)
        self.w_v = nn.Linear(D, shared, bias=False)
        self.w_o = nn.Linear(D, D, bias=False)

    def split_heads(self, x: Tensor) -> Tensor:
        """(..., T, heads * d_k) -> (..., heads, T, d_k)."""
        return x.unflatten(-1, (-1, self.d_k)).transpose(-3, -2)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        turn: Tensor,
        kept: "KeptHeads | None" = None,
    ) -> Tensor:
        """Attend from x (B, T, D) to x, and to what is kept of earlier tokens.

        Without a `mask` the attention is causal.
        """
        q, k, v = (self.split_heads(w(x)) for w in (self.w_q, self.w_k, self.w_v))
        q, k = rotate(q, turn), rotate(k, turn)
        if kept is not None:
            k, v = kept.extend(k, v)
        heads = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, enable_gqa=True
        )
        return self.w_o(heads.transpose(-3, -2).flatten(-2))


# %% tags=["export", "hide-input"] module="modern"
class KeptHeads:
    """Keys, already turned, and values (B, num_kv_heads, S, d_k) of a layer."""

    def __init__(self) -> None:
        self.both: tuple[Tensor, ...] = ()

    def extend(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Append keys and values of new tokens; returns all of both."""
        if self.both:
            pairs = zip(self.both, new, strict=True)
            new = tuple(torch.cat(pair, dim=-2) for pair in pairs)
        self.both = new
        return new

    def select(self, rows: Tensor) -> None:
        """Keep these rows (M,) of the batch, in this order."""
        self.both = tuple(part[rows] for part in self.both)


# %% [markdown]
# Four heads that share two pairs of keys and values must return what ordinary attention does, if each group's $W_K$ and
# $W_V$ are copied for both of its heads:

# %% shared heads beside copied ones tags=["hide-input"]
from dotformer.attention import MultiHeadAttention

torch.manual_seed(0)
shape = {"vocab_size": 50, "d_model": 16, "num_layers": 3, "d_ff": 32}
shape |= {"num_heads": 4, "num_kv_heads": 2, "max_length": 64, "pad_id": None}
grouped = GroupedAttention(ModernConfig(**shape))
whole = MultiHeadAttention(16, 4, bias=False)
state = grouped.state_dict()
for name in ("w_k.weight", "w_v.weight"):
    shared = state[name].unflatten(0, (2, 4))  # two heads of four rows
    state[name] = shared.repeat_interleave(2, dim=0).flatten(0, 1)
whole.load_state_dict(state)
x, all_keys = torch.randn(1, 5, 16), torch.ones(5, 5, dtype=torch.bool)
unturned = rotation(torch.zeros(5, dtype=torch.long), 4)  # as if all stood at 0
found = grouped(x, all_keys, unturned)
assert torch.allclose(found, whole(x, x, x)[0], atol=1e-6)
print(
    "equal outputs; w_k:",
    tuple(grouped.w_k.weight.shape),
    "instead of",
    tuple(whole.w_k.weight.shape),
)

# %% tags=["quiz"]
quiz.number(
    "SmolLM2 has 30 layers, 9 heads of width 64 and 3 shared heads of keys and values. How many megabytes (of $10^6$ bytes) does its cache need for 8,192 tokens, in 16 bits a number?",
    2 * 30 * 3 * 64 * 8192 * 2 / 1e6,
    tolerance=1,
    feedback="Yes, 189 MB: 11,520 numbers a token, two bytes each. Without sharing it would be 566.",
    mistakes=[
        (566.2, "That is what nine heads of their own would need."),
        (
            94.4,
            "A number of 16 bits has two bytes. (Or you have counted keys and no values.)",
        ),
        (377.5, "That is in 32 bits."),
    ],
    otherwise="Keys and values, 30 layers, 3 heads of 64: 11,520 numbers a token.",
)

# %% [markdown]
# ## The whole model
#
# Two changes are left. Most models have no **biases**: [Chowdhery and others (2022)](https://arxiv.org/abs/2204.02311)
# found that large models train more steadily without them.
#
# And most large models do not **tie** their output to the embedding table, but give it a matrix of its own. A token's
# row in the embedding table says what the token brings into the model. Its row in the output matrix says after which
# contexts it comes. A tied matrix has to do both. Small models go on tying, because there it saves much: of SmolLM2's
# 135 million parameters, 28 million are the embedding table.
#
# Dropout has mostly gone, too: a model that reads each text only once has little chance to overfit.
#
# Here are a layer of 2017 and one of today, two lines each:
#
# ```python
# x = norm1(x + attention(x, mask))  # 2017
# x = norm2(x + down(up(x).relu()))
#
# x = x + attention(norm1(x), mask, turn)  # today
# x = x + swiglu(norm2(x))  # down(silu(gate(y)) * up(y)) of y = norm2(x)
# ```

# %% tags=["export"] module="modern"
from collections.abc import Sequence

from dotformer.gpt import GPT, GPTCache
from dotformer.support import decoding


class ModernLayer(nn.Module):
    """Attention, then a gated feed-forward network, each with a norm before it."""

    def __init__(self, c: ModernConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(c.d_model, c.norm_eps)
        self.attention = GroupedAttention(c)
        self.feed_forward_norm = nn.RMSNorm(c.d_model, c.norm_eps)
        self.feed_forward = SwiGLU(c.d_model, c.d_ff)

    def forward(self, x: Tensor, *context: Tensor | KeptHeads | None) -> Tensor:
        """Pass x (B, T, D) through; for the rest see `GroupedAttention`."""
        x = x + self.attention(self.attention_norm(x), *context)
        return x + self.feed_forward(self.feed_forward_norm(x))


# %% [markdown]
# The model is a stack of such layers. All have the same mask, which hides padding and later tokens, and the same angles
# by which queries and keys are turned. So `run` computes both once.
#
# Without a cache, `run` reads all S tokens so far, and T = S. With a cache it reads only the last T, because the cache
# has the keys and values of the others. The argument `real` says which of the S tokens are not padding. A token's
# position is the number of real tokens before it, so padding in front does not count.


# %% tags=["export"] module="modern"
class ModernGPT(GPT):
    """A decoder-only model of today: chapter 18's, with other parts."""

    def __init__(self, config: ModernConfig) -> None:
        nn.Module.__init__(self)
        self.config = c = config
        self.tokens = nn.Embedding(c.vocab_size, c.d_model)
        self.layers = nn.ModuleList(ModernLayer(c) for _ in range(c.num_layers))
        self.norm = nn.RMSNorm(c.d_model, c.norm_eps)
        self.output = nn.Linear(c.d_model, c.vocab_size, bias=False)
        if c.tied:
            self.output.weight = self.tokens.weight
        self.initialise()

    def run(
        self, tokens: Tensor, real: Tensor, kept: Sequence[KeptHeads] = ()
    ) -> Tensor:
        """Vectors (B, T, D) of the last T of S tokens, `real` (B, S) or padding."""
        c, (S, T) = self.config, (real.shape[1], tokens.shape[1])
        if c.max_length < S:
            raise ValueError(f"{S} tokens exceed max_length {c.max_length}")
        key = torch.arange(S, device=real.device)
        causal = key <= key[S - T :, None]  # (T, S)
        mask = causal & real[:, None, None]  # (B, 1, T, S)
        if S == T and c.pad_id is None:
            mask = None  # causal, and no matrix
        positions = (real.cumsum(dim=1) - 1).clamp(min=0)[:, None, S - T :]
        turn = rotation(positions, c.d_model // c.num_heads, c.rope_base)
        x = self.tokens(tokens)
        for n, layer in enumerate(self.layers):
            x = layer(x, mask, turn, kept[n] if kept else None)
        return self.norm(x)

    @shapes
    def forward(
        self, prompt: Int[Tensor, "B S"], text: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        """Logits: row t scores what may follow the prompt and text 0 to t.

        For padding and errors see `GPT.forward`.
        """
        tokens = torch.cat([prompt, text], dim=1)
        x = self.run(tokens, self.is_real(tokens))
        return self.output(x[:, prompt.shape[1] :])


# %% [markdown]
# When the model writes, a `ModernCache`, made from the prompt, holds the keys and values so far. Its `step` reads one
# new token and returns the logits for the next:


# %% tags=["hide-input", "export"] module="modern"
class ModernCache(GPTCache):
    """Texts that it writes after prompts (B, S), with keys and values so far."""

    @torch.no_grad()
    def __init__(self, model: ModernGPT, prompt: Int[Tensor, "B S"]) -> None:
        decoding.check_evaluating(model)
        prompt = prompt.to(model.output.weight.device)
        self.model, self.real = model, torch.zeros_like(prompt[:, :0]).bool()
        self.kept = [KeptHeads() for _ in model.layers]
        if prompt.shape[1]:
            self.read(prompt)

    @torch.no_grad()
    def read(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """Read some tokens of each row: logits of what may follow the last."""
        tokens = tokens.to(self.real.device)
        real = torch.cat([self.real, self.model.is_real(tokens)], dim=1)
        x = self.model.run(tokens, real, self.kept)
        self.real = real
        return self.model.output(x[:, -1])


# %% [markdown]
# Is it a Llama? The library `transformers` has a Llama of its own, written independently of ours. The code makes a
# small one, puts our numbers into it, and compares the logits. Theirs pairs entries by halves, so `named_as_theirs`
# reorders the rows of our $W_Q$ and $W_K$. In the second line of the output they are not reordered:

# %% our logits beside the library's tags=["hide-input"]
import warnings

warnings.filterwarnings("ignore", message="IProgress")  # about progress bars

from dotformer.support.published import named_as_theirs
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()
torch.manual_seed(1)
ours = ModernGPT(ModernConfig(**shape, tied=False)).eval()
for parameter in ours.parameters():  # gains start at 1
    nn.init.normal_(parameter, std=0.3)
sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32}
heads = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
llama = LlamaForCausalLM(LlamaConfig(**sizes, **heads, rms_norm_eps=1e-5)).eval()
llama.load_state_dict(named_as_theirs(ours.state_dict(), d_k=4))
tokens = torch.randint(0, 50, (2, 30))
with torch.no_grad():
    found, expected = (
        ours(tokens[:, :12], tokens[:, 12:]),
        llama(tokens).logits[:, 12:],
    )
    cache = ModernCache(ours, tokens[:, :-1])
    last = cache.step(tokens[:, -1])
print("the same logits:", torch.allclose(found, expected, atol=1e-5))
llama.load_state_dict(named_as_theirs(ours.state_dict(), d_k=2))  # not reordered
with torch.no_grad():
    wrong = llama(tokens).logits[:, 12:]
print(
    "the same with pairs in the wrong order:",
    torch.allclose(found, wrong, atol=1e-3),
)
print("and with a cache:", torch.allclose(last, expected[:, -1], atol=1e-5))
assert torch.allclose(found, expected, atol=1e-5)
assert not torch.allclose(found, wrong, atol=1e-3)
assert torch.allclose(last, expected[:, -1], atol=1e-5)

# %% [markdown]
# It is a Llama: the logits agree, with and without a cache.
#
# ## What is each change worth?
#
# All models here are decoder-only, of four layers of width 64, and read the documentation of [chapter
# 18](18_gpt.ipynb#text-that-nobody-had-to-label), its texts cut after 64 tokens, for 300 steps. The first has the parts
# of 2017 (but chapter 18's initial weights), and each further one has one change more.
#
# Each is trained with three seeds, at a learning rate of its own from a grid in steps of a factor of 2: the best by the
# validation loss of one seed, or a lower one if the mean of three is better there. (`python -m benchmarks.modern` does
# all this, in an hour and a half of one core.)
#
# **Predict first.** Which of these changes does most?

# %% tags=["plot"] mystnb={"image": {"alt": "Test losses of three seeds for eight models, each with one change more than the one before: 2017 4.56, pre-norm 4.21, RMSNorm 4.19, SwiGLU 4.08, RoPE 3.82, no biases 3.82, grouped heads 3.90, untied 3.62."}}
from classroom.measured import measured

found = measured("modern")
chosen = found["chosen"]["docstrings"]


def runs_of(model):
    """The three runs of a model with its best learning rate."""
    best = chosen[model]["judged"]
    return [
        run
        for run in found["runs"]
        if run["model"] == model and run["settings"] == best
    ]


def draw_losses(models, axes):
    """A line for each model, a point for each seed, and the mean beside them."""
    for n, model in enumerate(models):
        losses = [run["test_loss"] for run in runs_of(model)]
        axes.plot(losses, [n] * 3, "o", color=plots.BLUE, ms=6, alpha=0.7)
        axes.text(max(losses) + 0.015, n, f"{np.mean(losses):.2f}", va="center")
    axes.set_yticks(range(len(models)), models)
    axes.set(xlabel="test loss, nats a token", ylim=(len(models) - 0.5, -0.5))
    axes.margins(x=0.15)


figure, axes = plt.subplots(figsize=(6.6, 3.6))
changes = found["changes"]
draw_losses(changes, axes)
axes.set_yticks(range(len(changes)), [changes[0], *(f"+ {c}" for c in changes[1:])])
plt.show()

# %% losses, parameters and cached numbers tags=["hide-input"]


def print_models(*models):
    print(f"{'':17}test loss,{'':38}numbers")
    print("model            three seeds     learning rate  parameters    cached")
    for model in models:
        runs = runs_of(model)
        seeds = " ".join(f"{run['test_loss']:.2f}" for run in runs)
        one = runs[0]
        print(
            f"{model:16} {seeds}      {one['settings']['learning_rate']:<12g}"
            f" {one['parameters']:10,} {one['kept_numbers']:9}"
        )


print_models(*changes)

# %% tags=["proof"]
losses = {model: [run["test_loss"] for run in runs_of(model)] for model in chosen}
mean = {model: np.mean(three) for model, three in losses.items()}
assert [mean[name].round(2) for name in ("no positions", "RoPE")] == [3.96, 3.82]
steps = -np.diff([mean[model] for model in changes])
assert np.allclose(steps, [0.34, 0.03, 0.11, 0.26, -0.01, -0.08, 0.28], atol=0.007)
for before, after in (
    ("2017", "pre-norm"),
    ("RMSNorm", "SwiGLU"),
    ("SwiGLU", "RoPE"),
    ("grouped heads", "untied"),
):
    assert max(losses[after]) < min(losses[before])
rates = {model: best["judged"]["learning_rate"] for model, best in chosen.items()}
assert rates["2017"] == 0.003 and {rates[model] for model in changes[1:]} == {0.012}
post = sorted(
    run["test_loss"]
    for run in found["runs"]
    if run["model"] == "2017" and run["settings"]["learning_rate"] == 0.006
)
assert round(post[0], 2) == 4.19 and post[1] > 4.7
assert found["steps"] // 20 == 15 and found["steps"] == 300
sizes = [runs_of(model)[0]["parameters"] for model in ("grouped heads", "untied")]
assert round(sizes[1] / sizes[0], 2) == 1.41
whole = runs_of("no biases")[0]["parameters"]
assert round(sizes[0] / whole, 2) == 0.95

# %% [markdown]
# Three changes are worth most: pre-norm (0.34 nats), an output matrix of its own (0.28) and RoPE (0.26). SwiGLU is
# worth 0.11, at the same size. In each of these four steps the worst seed is better than the best of the model before
# (with SwiGLU by little).
#
# RMSNorm and leaving out the biases save some arithmetic and some parameters, and do not change the loss, as far as
# three seeds can tell. Shared heads halve what the cache keeps for each token and cost 0.08, though the seeds overlap.
# The untied model has 41 percent more parameters, so 0.28 is not the worth of untying alone.
#
# Dropping the added sinusoids, without turning anything, already gains nearly half of RoPE's 0.26 ([Going
# further](#where-do-the-two-gains-come-from)).
#
# This is one order of the changes, one size and 300 steps, so do not carry the numbers over to a large model.

# %% [markdown]
# ## Published weights
#
# Now the classes above get somebody else's numbers.
#
# ### SmolLM2
#
# [SmolLM2-135M-Instruct](https://arxiv.org/abs/2502.02737) (Ben Allal and others 2025) is a chat model that fits a
# laptop: 30 layers of width 576, nine heads that share three sets of keys and values, SwiGLU, RMSNorm, RoPE with a base
# of 100,000, and a tied embedding table of 49,152 tokens.
#
# It comes with this book's installation as one file in the format *GGUF*. Its matrices were **quantised** after
# training. Outside the embedding table, every block of 32 numbers shares a scale $a$ and a minimum $b$, of 16 bits
# each. Of each number only an integer $n$ from 0 to 15 is kept, in four bits, and stands for $b + a n$. So a number
# takes $4 + 2 \cdot 16/32 = 5$ bits, or eight and a half in the embedding table. The file has 98 megabytes, where 16
# bits a number would need 269. You load a coarser copy of the trained model.
#
# The weights for queries and keys are stored for pairs of neighbours, as ours are.

# %% tags=["hide-input", "export"] module="modern"
from pathlib import Path

from dotformer.support import llama_files
from tokenizers import Tokenizer


def load_smollm2(
    path: str | Path | None = None,
) -> tuple[ModernGPT, Tokenizer, str]:
    """SmolLM2-135M-Instruct, a published model; its tokenizer and chat template.

    For `path` and errors see `support.llama_files.smollm2_file`.
    """
    file = llama_files.smollm2_file(path)
    settings, state, tokenizer, template = llama_files.read_gguf(file)
    with torch.device("meta"):  # shapes, and no numbers yet
        model = ModernGPT(ModernConfig(**settings, pad_id=None))
    model.load_state_dict(state, assign=True)
    model.output.weight = model.tokens.weight
    return model.eval(), tokenizer, template


# %%
model, tokenizer, template = load_smollm2()
print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")


def go_on(text, length):
    """What the model writes after a text: the likeliest token each time."""
    prompt = torch.tensor([tokenizer.encode(text).ids])
    cache, token, written = ModernCache(model, prompt[:, :-1]), prompt[:, -1], []
    for _ in range(length):
        token = cache.step(token).argmax(dim=-1)
        written.append(int(token))
    return tokenizer.decode(written)


print(repr(go_on("The capital of France is", 7)))

# %% tags=["proof"]
count = sum(parameter.numel() for parameter in model.parameters())
assert round(4 * count / 1e6) == 538 and round(2 * count / 1e6) == 269
assert round(llama_files.smollm2_file().stat().st_size / 1e6) == 98
assert round(model.tokens.weight.numel() / 1e6) == 28
assert 2 * 30 * 9 * 64 == 34_560 and 2 * 30 * 3 * 64 == 11_520
shape = model.config
assert (shape.num_layers, shape.num_heads, shape.num_kv_heads) == (30, 9, 3)
assert (shape.vocab_size, shape.rope_base, shape.max_length) == (49_152, 1e5, 8192)

# %% compared with transformers tags=["hide-input"]
published = measured("published")
same = published["compared"]
print(
    f"next token the same after {same['same_next_token']} of {same['prompts']} prompts"
)
share = same["difference"] / same["largest"]
print(f"logits differ by {share:.0e} of the largest")
assert same["same_next_token"] == same["prompts"] == 100 and share < 1e-5

# %% [markdown]
# After each of a hundred prompts your classes choose the same token as the library's Llama.
#
# ### It chats
#
# How does a model that continues text hold a conversation? For the model, the whole conversation is one text. A **chat
# template** writes the messages down, with special tokens where each begins and ends, and then begins a message of the
# assistant. The model continues this message until it writes the token for its end, as fine-tuning [has taught
# it](18_gpt.ipynb#what-does-predicting-the-next-token-have-to-do-with-answering). This is all that the model sees:

# %%
import textwrap

from dotformer.support.chat import Chat
from dotformer.support.llama_files import rendered

print(rendered(template, [{"role": "user", "content": "What is the dot product?"}]))

# %% [markdown]
# `Chat` feeds each new message to the same cache. Ask it what this book began with:


# %%
def chat():
    """A new conversation."""
    return Chat(
        ModernCache(model, torch.zeros(1, 0, dtype=torch.long)), tokenizer, template
    )


answer = "".join(chat().reply("What is the dot product?", length=50))
print(textwrap.fill(answer, 78))

# %% [markdown]
# Your own classes produced this. Similarity, alignment and the cosine are right, but it mixes two definitions: the
# *product* of both lengths and the cosine, and the sum of the products of the entries. A model of this size is fluent
# before it is right.
#
# You can chat in a terminal, too; Ctrl-D ends the conversation.
#
# ```bash
# python -m dotformer chat
# python -m dotformer chat --system "You answer in rhymes." --temperature 0.7
# ```
#
# ### Is the context window a memory?
#
# **Predict first.** You tell it a password and ask for it, in one conversation. Then you begin another, and ask again.

# %%
talk = chat()
print("told: ", "".join(talk.reply("The password is tulip.", length=12)))
print("asked:", "".join(talk.reply("What is the password?", length=12)))
new = "".join(chat().reply("What is the password?", length=12))
print("new:  ", new)
assert "tulip" in talk.messages[-1]["content"] and "tulip" not in new

# %% [markdown]
# The first conversation contains the word *tulip*, and attention finds it there. The second does not, and no parameter
# has changed in between. So what the model "remembers" is the text of the present conversation, at most the 8,192
# tokens of its **context window**. Whatever a chat program seems to know of you from last week, it has written into the
# prompt.

# %% [markdown]
# ### Learning from examples in the prompt
#
# [Chapter 18](18_gpt.ipynb#learning-while-it-reads) promised examples in the prompt (*few-shot*, or *in-context
# learning*). Here is such a prompt, two examples of opposites and a question: *hot -> cold*, *tall -> short*, *big ->*.
# How often is SmolLM2's next token the opposite?
#
# Does the model read the answers of the examples, or only their form? To see that, exchange each answer for that of
# another pair: *hot -> short*, and so on.

# %% tags=["plot"] mystnb={"image": {"alt": "Share of 40 opposites found, for three draws of examples each. With right examples 0 without any, 0.1 after one, 0.55 after two, 0.73 after four, 0.88 after sixteen. With answers exchanged it stays between 0 and 0.23."}}
figure, axes = plt.subplots(figsize=(6, 3.2))
few = published["few_shot"]
for right, color, name in (
    (True, plots.BLUE, "right examples"),
    (False, plots.RED, "answers exchanged"),
):
    counts = sorted({row["examples"] for row in few if row["examples"] or right})
    shares = [
        [
            row["found"]
            for row in few
            if row["examples"] == count and row["right"] == right
        ]
        for count in counts
    ]
    axes.plot(
        range(6 - len(counts), 6), np.mean(shares, axis=1), color=color, lw=1.2
    )
    for n, values in enumerate(shares, 6 - len(counts)):
        axes.plot([n] * len(values), values, "o", color=color, ms=5, alpha=0.7)
    axes.text(5.15, np.mean(shares[-1]), name, color=color, va="center")
axes.set_xticks(range(6), [0, 1, 2, 4, 8, 16])
axes.set(
    xlabel="examples in the prompt",
    ylabel="opposites found",
    xlim=(-0.3, 7.2),
    ylim=(-0.03, 1.03),
)
plt.show()

# %% tags=["proof"]
shots = {
    (count, right): np.mean(
        [r["found"] for r in few if (r["examples"], r["right"]) == (count, right)]
    )
    for count in (0, 1, 2, 4, 8, 16)
    for right in (True, False)
    if count or right
}
assert (
    shots[0, True] == 0 and 0.7 < shots[4, True] < 0.75 and shots[16, True] > 0.87
)
assert max(r["found"] for r in few if not r["right"]) < 0.25

# %% [markdown]
# Without an example, the model never finds the opposite, since nothing says what is asked. After sixteen examples it
# finds seven of eight, though no parameter has changed. If it read only the form of the examples, exchanged answers
# would do no harm, but they keep it below one in four. So it also reads how word and answer are related.
#
# That is not so for every task: in classification, [Min and others (2022)](https://arxiv.org/abs/2202.12837) found that
# random labels did little harm.
#
# ## Break it: it still says Paris
#
# Four mistakes are easy to make:
#
# - *pairs by halves*: pair the entries of queries and keys by halves, where the weights were stored for neighbours;
# - *the other way*: rotate the other way round;
# - *no rotation*: leave the rotation out;
# - *shared in turn*: lend the three shared heads to the nine queries in turn (0, 1, 2, 0, 1, 2 ...) instead of in
#   groups (0, 0, 0, 1, 1, 1 ...).
#
# The table below has the loss on a short story, in nats a token, and what the model writes about the capital of France.
#
# **Predict first.** Which of them do you notice, if you ask for the capital of France?

# %% mistakes to make tags=["hide-input"]
right = rotate


def by_halves(x, turn):
    """Pairs i and i + d_k / 2, as in `transformers`."""
    d_k = x.shape[-1]
    order = torch.arange(d_k).unflatten(0, (2, -1)).T.flatten()
    return right(x[..., order], turn)[..., order.argsort()]


def backwards(x, turn):
    """Turned the other way: a negative sine."""
    cos, sin = turn
    return right(x, torch.stack([cos, -sin]))


def not_turned(x, turn):
    """No position at all."""
    return x


def in_turn(heads):
    """Put the query heads of each layer into another order, in W_Q and in W_O."""
    for layer in model.layers:
        w_q, w_o = layer.attention.w_q.weight.data, layer.attention.w_o.weight.data
        w_q.copy_(w_q.unflatten(0, (9, -1))[heads].flatten(0, 1))
        w_o.copy_(w_o.unflatten(1, (9, -1))[:, heads].flatten(1))


story = """In the small village by the river lived an old baker who baked bread every morning.
One winter the river froze, and the children came to his warm shop to hear stories about
the sea and the ships."""
tokens = torch.tensor([tokenizer.encode(story.replace("\n", " ")).ids])
nothing = tokens[:, :0]


def look():
    """Nats a token of the story, and how it goes on about France."""
    with torch.no_grad():
        logits = model(nothing, tokens)[0, :-1]
        nats = nn.functional.cross_entropy(logits, tokens[0, 1:])
    return round(float(nats), 2), go_on("The capital of France is", 9)


# %% what each does to loss and text tags=["hide-input"]
# The attention above looks up `rotate` at each call.
looks = {"nothing wrong": look()}
rotate = by_halves
looks["pairs by halves"] = look()
rotate = backwards
looks["the other way"] = look()
rotate = not_turned
looks["no rotation"] = look()
rotate = right
order = torch.tensor([0, 3, 6, 1, 4, 7, 2, 5, 8])  # who shares 0, 1, 2 in turn
in_turn(order)
looks["shared in turn"] = look()
in_turn(order.argsort())
print(f"{'':16}  nats  what it writes after: The capital of France is")
for name, (nats, text) in looks.items():
    print(f"{name:16} {nats:5.2f} {text!r}")
assert look() == looks["nothing wrong"]

# %% tags=["proof"]
nats = [nats for nats, _ in looks.values()]
assert np.allclose(nats, [3.67, 4.54, 5.25, 5.04, 14.76], atol=0.03)
assert round(np.log(49_152), 1) == 10.8
assert ["Paris" in text for _, text in looks.values()] == [True] * 4 + [False]

# %% [markdown]
# Only the last mistake produces noise: six of nine queries meet keys and values of another group, and the loss is worse
# than that of a guess among all 49,152 tokens, 10.8.
#
# With each of the other three the model still says Paris. With pairs by halves it could pass for healthy. With the
# other two it repeats itself, but small models do that anyway. The higher loss gives all three away, if you know what
# it should be.
#
# The check that finds all four mistakes is [the comparison with the library](#the-whole-model): the same tokens,
# another implementation, equal logits. It needs several tokens: the first stands at position 0 and sees only itself, so
# there the three rotation mistakes do not show.

# %% tags=["quiz"]
quiz.one_choice(
    "Somebody loads weights that were stored for neighbouring pairs into code that pairs by halves, without changing their order. What would have shown it?",
    quiz.right(
        "Comparing logits with another implementation that is known to be right, on several tokens",
        "Yes: they would differ by far more than rounding. Text that reads well is no evidence.",
    ),
    quiz.wrong(
        "The shapes of the tensors",
        "They are the same either way: only the order of entries within a head differs.",
    ),
    quiz.wrong(
        "Asking a few questions and reading the answers",
        "It still says Paris, as three of these four mistakes do.",
    ),
    quiz.wrong(
        "Checking that a score depends only on the distance",
        "It does, in either pairing. What is wrong is which entries of the learned vectors belong together.",
    ),
)

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: Root mean square
#
# *Easy, 5 minutes.* Write RMSNorm without a gain: `x` has shape $(\ldots, D)$, each vector is divided by the root of
# (its mean square + `eps`). In NumPy.


# %% tags=["exercise"]
def rms_norm(x, eps=1e-5):
    """Each vector of x (..., D), divided by its root mean square."""
    ...


# %% tags=["check"]
def normed(x, eps=1e-5, mean=np.mean, outside=False, axis=-1):
    square = mean(x * x, axis=axis, keepdims=True)
    return x / (np.sqrt(square) + eps if outside else np.sqrt(square + eps))


rng = np.random.default_rng(0)
check_norm = partial(
    checks.check,
    reference=normed,
    cases=[
        (np.array([7.0, 1.0]),),
        (rng.normal(size=(3, 4)),),
        (rng.normal(size=(2, 3, 4)) / 100, 0.01),
    ],
    mistakes={
        "this divides by the length; the mean of the squares is wanted, not their sum": partial(
            normed, mean=np.sum
        ),
        "eps belongs inside the root": partial(normed, outside=True),
        "this takes the mean over all vectors; each is divided by its own": partial(
            normed, axis=None
        ),
        "this subtracts the mean; that is LayerNorm": lambda x, eps=1e-5: normed(
            x - x.mean(axis=-1, keepdims=True), eps
        ),
    },
)
check_norm(rms_norm)


# %% tags=["solution"]
def rms_norm(x, eps=1e-5):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)


verdict = check_norm(rms_norm)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: From neighbours to halves
#
# *Medium, 15 minutes.* Weights $W_Q$ of shape $(H \cdot d_k, D)$ were trained for neighbouring pairs: within a head,
# rows $2i$ and $2i + 1$ turn together. Return them for code that turns rows $i$ and $i + d_k/2$ of each head together.
# In NumPy, given `heads`.


# %% tags=["exercise"]
def for_halves(weight, heads):
    """The rows of weight (H * d_k, D), reordered within each head."""
    ...


# %% tags=["check"]
def reordered(weight, heads, back=False, whole=False):
    parts = 1 if whole else heads
    d_k = len(weight) // parts
    order = [2 * i for i in range(d_k // 2)] + [2 * i + 1 for i in range(d_k // 2)]
    order = np.argsort(order) if back else order
    return np.concatenate([part[order] for part in np.split(weight, parts)])


check_halves = partial(
    checks.check,
    reference=reordered,
    cases=[
        (np.arange(8.0)[:, None], 1),
        (rng.normal(size=(24, 5)), 3),
        (rng.normal(size=(16, 2)), 2),
    ],
    mistakes={
        "this is the way back, from halves to neighbours": partial(
            reordered, back=True
        ),
        "each head is reordered for itself, not all rows at once": partial(
            reordered, whole=True
        ),
        "nothing has changed": lambda weight, heads: weight,
    },
)
check_halves(for_halves)


# %% tags=["solution"]
def for_halves(weight, heads):
    pairs = weight.reshape(heads, -1, 2, weight.shape[-1])  # (H, d_k / 2, 2, D)
    return pairs.swapaxes(1, 2).reshape(weight.shape)


verdict = check_halves(for_halves)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: A window that slides
#
# *Easy, 10 minutes.* Return the mask $(T, T)$, True where a query may attend, of a causal model whose tokens see the
# last `window` tokens, themselves included, and besides those always the first `sinks` tokens. In NumPy.


# %% tags=["exercise"]
def windowed(length, window, sinks=0):
    """Which keys (columns) each query (row) may attend to."""
    ...


# %% tags=["check"]
def masked(length, window, sinks=0, more=0, future=False):
    return np.array(
        [
            [
                (k <= q or (future and k < sinks))
                and (q - k < window + more or k < sinks)
                for k in range(length)
            ]
            for q in range(length)
        ]
    )


check_window = partial(
    checks.check,
    reference=masked,
    cases=[(6, 3), (7, 2, 1), (5, 1, 3), (4, 9)],
    mistakes={
        "a window of n tokens includes the query's own": partial(masked, more=1),
        "a sink in the future must stay hidden": partial(masked, future=True),
        "the first tokens are always seen: mind `sinks`": lambda length, window, sinks=0: (
            masked(length, window)
        ),
    },
)
check_window(windowed)


# %% tags=["solution"]
def windowed(length, window, sinks=0):
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    near = (query - key < window) | (key < sinks)
    return near & (key <= query)


verdict = check_window(windowed)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# A model of today is the GPT of chapter 18 with its parts exchanged: norms that only divide, a feed-forward network
# with a gate, positions that turn queries and keys, heads that share what is kept. Each change is a few lines, and of
# the seven measured here four show in all three seeds of a small run: pre-norm, SwiGLU, RoPE, and an output matrix of
# its own. And whether published weights have been loaded right, you learn from their logits, not from what they say.
#
# **Sources.** RMSNorm: [Zhang and Sennrich (2019)](https://arxiv.org/abs/1910.07467). SwiGLU: [Shazeer
# (2020)](https://arxiv.org/abs/2002.05202). RoPE: [Su and others (2021)](https://arxiv.org/abs/2104.09864). Shared
# heads: [Shazeer (2019)](https://arxiv.org/abs/1911.02150), [Ainslie and others
# (2023)](https://arxiv.org/abs/2305.13245). All of these except the shared heads in one model: Llama, [Touvron and
# others (2023)](https://arxiv.org/abs/2302.13971). SmolLM2: [Ben Allal and others
# (2025)](https://arxiv.org/abs/2502.02737).
#
# **Next.** [Chapter 20](20_one_gpu.ipynb) asks what a training step costs on one device, and how to make it cheaper.

# %% [markdown]
# ## Going further
#
# More about the models of today. You can leave this out: later chapters repeat what they need from it.
#
# ### Where do the two gains come from?
#
# Where does RoPE's 0.26 come from? RoPE does two things: it drops the sinusoids, and it turns queries and keys. A model
# without any positions does only the first, and is already 0.12 better than *SwiGLU*:

# %% the model SwiGLU, with sinusoids and with no positions tags=["hide-input"]
print_models("SwiGLU", "no positions")

# %% [markdown]
# As in [chapter 18](18_gpt.ipynb#does-a-causal-model-need-positions), so short a run does better with no positions than
# with positions that are added. Turning then brings the rest, from 3.96 to 3.82.
#
# Where does pre-norm's 0.34 come from? Presumably pre-norm can bear larger steps. The model of 2017, with post-norm,
# does best at a learning rate of 0.003, and the seven others at 0.012. At 0.006, one seed of the post-norm model comes
# to 4.19, as good as pre-norm, but the other two stay above 4.7. All models have 15 steps of warm-up; [a longer
# warm-up](08_encoder.ipynb#does-it-need-warm-up) might help post-norm.
#
# ### A story, to the last character
#
# A smaller published model is *stories260K* ([Karpathy 2023](https://github.com/karpathy/llama2.c)). It has 260,032
# parameters and five layers, and its eight heads share four sets of keys and values. It was trained on stories that a
# four-year-old understands. Karpathy also published a test: the text that the model must write if it always takes the
# likeliest token. The program `python -m benchmarks.published` loads the weights into `ModernGPT` and lets it write:

# %% the story that it writes tags=["hide-input"]
for line in published["story"].splitlines():
    print(textwrap.fill(line, 78))
assert len(published["story"]) == 464

# %% [markdown]
# These are the 464 characters of that test, to the last one.
#
# ### Is temperature 0 deterministic?
#
# Temperature 0 means always taking the likeliest token. That leaves nothing to chance, and the same call on the same
# machine usually gives the same numbers. But the same question is not always the same call. A floating-point sum
# depends on the order of its terms. That order depends on how many tokens are read at once, on the kernel, and, on a
# server, on which other texts are in the batch.

# %% the same logits in three ways tags=["hide-input"]
with torch.no_grad():
    at_once, again = model(nothing, tokens)[0], model(nothing, tokens)[0]
    cache = ModernCache(model, tokens[:, :-1])
    step_by_step = cache.step(tokens[:, -1])[0]
print("the same call twice gives equal logits:", torch.equal(at_once, again))
apart = (at_once[-1] - step_by_step).abs().max()
print("last logits, at once and with a cache, are equal:", bool(apart == 0))
best = at_once.bfloat16().topk(2).values
ties = int((best[:, 0] == best[:, 1]).sum())
print(f"after {ties} of {len(best)} tokens the two likeliest tie in bfloat16")
assert torch.equal(at_once, again) and 1e-6 < apart < 2e-4 and ties > 0
sixteen = torch.tensor(16.0, dtype=torch.bfloat16)
assert sixteen.nextafter(2 * sixteen) - sixteen == 0.125

# %% [markdown]
# The same call twice agrees to the last bit. Reading all at once and with a cache gives slightly different logits. In
# float32 that rarely changes which token is likeliest. Models are often served in bfloat16. There, neighbouring numbers
# between 16 and 32, where such logits often lie, are 0.125 apart. So the two likeliest tokens now and then tie or
# nearly tie. Then the order of a sum can decide, and from this token on two texts differ. [Horace He and others
# (2025)](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/) asked a served model the same
# question a thousand times at temperature 0 and got 80 different texts.

# %% [markdown]
# ### Are more heads better?
#
# At the same width, more heads are narrower ([chapter 6](06_many_heads.ipynb)). Train the SwiGLU model of [the
# comparison](#what-is-each-change-worth) with one head, four, and sixteen:

# %% 1, 4 and 16 heads tags=["hide-input"]
print("                test loss        ms")
print("               three seeds    a step")
for model, name in (
    ("one head", "1 head of 64"),
    ("SwiGLU", "4 heads of 16"),
    ("sixteen heads", "16 heads of 4"),
):
    seeds = " ".join(f"{run['test_loss']:.2f}" for run in runs_of(model))
    pace = np.median([run["seconds"] for run in runs_of(model)]) / found["steps"]
    print(f"{name:14} {seeds} {1000 * pace:8.0f}")

# %% tags=["proof"]
three = ("one head", "SwiGLU", "sixteen heads")
assert np.allclose([mean[model] for model in three], [4.14, 4.08, 4.05], atol=0.006)
assert min(losses["one head"]) < max(losses["SwiGLU"])
assert min(losses["SwiGLU"]) < max(losses["sixteen heads"])
took = [np.median([run["seconds"] for run in runs_of(model)]) for model in three]
assert 1.7 < took[2] / took[1] < 2.2

# %% [markdown]
# The means fall from 4.14 with one head (at a learning rate of 0.006, its best) to 4.08 with four and 4.05 with
# sixteen, but seeds differ as much as that. Sixteen heads took much longer than four. (In the [paper of
# 2017](https://arxiv.org/abs/1706.03762), table 3, one head was 0.9 BLEU worse than eight, and with 32 the score fell
# again.)

# %% [markdown]
# ### Does it read texts longer than those it was trained on?
#
# Four models learned from texts cut after 64 tokens. Let them read texts of 160 tokens. Two of them come from [the
# comparison](#what-is-each-change-worth): *SwiGLU*, which has sinusoids, and *RoPE*. The third is *no positions* from
# [above](#where-do-the-two-gains-come-from), and the fourth has learned positions. Its vectors for positions beyond the
# longest training text are still the noise that they began as. Sinusoids and rotations go on by formula. Is that
# enough?
#
# **Predict first.** Which does best beyond token 64: learned, sinusoids, RoPE, or no positions at all?

# %% tags=["plot"] mystnb={"image": {"alt": "Mean loss by position in the text, three seeds for each of five models, with a dashed line at 64, where training ended. At the end, from worst to best: learned 4.6, sinusoids 4.6, no positions 4.3, RoPE 4.2; and RoPE trained on texts of 160 tokens, which is worse at the beginning and best at the end, 3.9."}}
figure, axes = plt.subplots(figsize=(6.6, 3.6))
kinds = {"SwiGLU": "sinusoids", "learned positions": "learned", "RoPE": "RoPE"}
kinds |= {"no positions": "none", "RoPE, longer texts": "RoPE, trained to 160"}
hues = (plots.GREY, plots.GOLD, plots.BLUE, plots.RED, plots.TEAL)
colors = dict(zip(kinds, hues, strict=True))
middles = found["bin"] * (np.arange(10) + 0.5)
for model, name in kinds.items():
    for run in runs_of(model):
        axes.plot(middles, run["by_position"], color=colors[model], lw=1.2)
    height = run["by_position"][-1] + {"learned": 0.05, "sinusoids": -0.05}.get(
        name, 0
    )
    axes.text(157, height, name, color=colors[model], va="center")
axes.axvline(found["cut"], color=plots.GREY, lw=1, ls="--")
axes.text(
    62, axes.get_ylim()[1] - 0.1, "training", color=plots.GREY, ha="right", va="top"
)
axes.set(xlabel="position in the text", ylabel="loss, nats a token", xlim=(0, 215))
plt.show()

# %% tags=["proof"]
ends = [
    np.mean([run["by_position"][-2:] for run in runs_of(model)])
    for model in ("learned positions", "SwiGLU", "no positions", "RoPE")
]
assert np.allclose(ends, [4.63, 4.56, 4.30, 4.19], atol=0.012)
longer = np.mean(
    [run["by_position"] for run in runs_of("RoPE, longer texts")], axis=0
)
assert round(np.mean(longer[-2:]), 1) == 3.9
worse = {}
for model in ("no positions", "RoPE"):
    curve = np.mean([run["by_position"] for run in runs_of(model)], axis=0)
    worse[model] = curve[-2:].mean() - curve[:4].mean()  # than where it was trained
assert np.allclose([worse["no positions"], worse["RoPE"]], [0.29, 0.33], atol=0.006)
without, added = (
    np.mean([run["test_loss"] for run in runs_of(model)])
    for model in ("no positions", "SwiGLU")
)
assert round(added - without, 2) == 0.12
assert longer[0] > np.mean([run["by_position"][0] for run in runs_of("RoPE")]) + 0.3

# %% [markdown]
# Of the four that learned from 64 tokens, RoPE is best at the end (4.19), then no positions (4.30), sinusoids (4.56) and
# learned ones (4.63).
#
# So a formula that goes on is not enough. Sinusoids go on, and end hardly better than learned vectors, which are noise
# there. RoPE ends at 4.2, but a RoPE model that was trained on texts of 160 tokens ends at 3.9.
#
# Why does RoPE's loss rise beyond token 64? Three things are new there: the angles, the number of keys, and the later
# parts of texts. Of a head's eight pairs, three go once round within 64 tokens, but the other five come to new angles.
# The model without positions has no angles, and from the trained positions to the end its loss rises by 0.29, nearly as
# much as RoPE's, by 0.33. So a loss can rise without new angles. What share they have in RoPE's rise, this does not
# tell.
#
# Models that are to read long texts are trained on some at the end; in practice their rotations are slowed first
# (**position interpolation**, [Chen and others 2023](https://arxiv.org/abs/2306.15595); **YaRN**, [Peng and others
# 2023](https://arxiv.org/abs/2309.00071)).

# %% [markdown]
# ### What else there is
#
# **Sliding windows.** A token attends to the last $w$ tokens only ([Beltagy and others
# 2020](https://arxiv.org/abs/2004.05150)), so that what a token costs, and what a layer keeps, no longer grows with the
# text. What is farther back arrives through several layers, as in a convolution. Most models that use windows mix: one
# to five layers with a window, then one that sees everything.
#
# **Attention sinks.** A softmax must put its weight somewhere. In trained models, a head that finds nothing often puts
# its weight on the first token, which is then the *sink*. If such a model gets a sliding window only after training, it
# breaks down when the window has passed the first token. So [Xiao and others (2023)](https://arxiv.org/abs/2309.17453)
# keep the first tokens visible. Other models give each head a learned score for "nothing". This score takes part in the
# softmax, but no value belongs to it.

# %% tags=["plot"] mystnb={"image": {"alt": "Three causal masks of twelve tokens. Left: the full causal mask, a triangle. Middle: a sliding window of four, a band below the diagonal. Right: the same band, and the first column too: the sink."}}
figure, panels = plt.subplots(1, 3, figsize=(7.4, 2.6))
causal = np.tril(np.ones((12, 12)))
window = causal - np.tril(np.ones((12, 12)), -4)
sink = np.maximum(window, causal * (np.arange(12) < 1))
for axes, (title, mask) in zip(
    panels,
    {"causal": causal, "window of 4": window, "window and sink": sink}.items(),
    strict=True,
):
    axes.imshow(mask, cmap=plots.WEIGHTS, vmin=0, vmax=1.3)
    axes.set(title=title, xlabel="key", xticks=[], yticks=[])
panels[0].set_ylabel("query")
figure.tight_layout()
plt.show()

# %% [markdown]
# **QK-norm.** Where queries and keys grow during training, scores grow with their product, and a softmax saturates. So
# queries and keys are normalised before the dot product, either each head by itself or all heads as one vector ([Henry
# and others 2020](https://arxiv.org/abs/2010.04245); [Dehghani and others 2023](https://arxiv.org/abs/2302.05442)
# needed it for a very large model).

# %% [markdown]
# ### Experts: more parameters at the same price
#
# In a layer without cross-attention a feed-forward network usually has two thirds or more of the parameters, and every
# token goes through all of them. A **mixture of experts** (MoE) has several such networks, the experts, and a
# **router**. The router is a linear map with a softmax: for each token, it gives each expert a share. The token goes to
# the experts with the largest shares: to a few of them ([Shazeer and others 2017](https://arxiv.org/abs/1701.06538)),
# or, as here, to one ([Fedus and others 2021](https://arxiv.org/abs/2101.03961)).
#
# Four experts have four times the parameters, and a quarter of these is *active* for a token. So a token takes hardly
# more arithmetic than before: only the router's is new. What this does not save is memory: other tokens go to other
# experts, so all must be loaded.
#
# How does the router learn? Its choice has no gradient. So what the expert returns is multiplied by the expert's share,
# and through this share the router learns.

# %% tags=["plot"] mystnb={"image": {"alt": "A token goes to a router and to one of four experts, the second, which is filled; the other three are pale. What it returns is multiplied by its share 0.6 and goes on."}}
drawing = Diagram(8.2, 2.1)
drawing.box(0.9, 1.05, "token", 0.9)
drawing.box(2.5, 1.7, "router", 0.9, color=plots.GOLD)
drawing.arrow((0.9, 1.25), (0.9, 1.7), (2.05, 1.7))
drawing.text(3.05, 1.72, "0.2, 0.6, 0.1, 0.1", plots.GOLD, at="left", size=10)
for n in range(4):
    y = 1.35 - 0.38 * n
    hue = plots.RED if n == 1 else plots.BLANK
    drawing.box(4.3, y, f"expert {n + 1}", 1.2, 0.3, hue, size=10)
drawing.arrow((1.35, 1.0), (3.7, 0.97), color=plots.RED)
drawing.arrow((4.9, 0.97), (6.05, 0.97), color=plots.RED)
drawing.text(5.45, 1.13, "times 0.6", plots.GOLD, size=10)
drawing.box(6.8, 0.97, "goes on", 1.2)
plt.show()


# %% tags=["export"] module="modern"
class Experts(nn.Module):
    """Feed-forward networks, of which each token goes through one.

    `balance` is what its last input cost: Fedus and others (2021), equation 4.
    """

    def __init__(self, d_model: int, d_ff: int, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(d_model, num_experts, bias=False)
        experts = (SwiGLU(d_model, d_ff) for _ in range(num_experts))
        self.experts = nn.ModuleList(experts)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to each vector of x (..., D) the expert that its router chooses."""
        shares = self.router(x).softmax(dim=-1)  # (..., experts)
        share, chosen = shares.max(dim=-1)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            rows = chosen == n
            out[rows] = share[rows][:, None] * expert(x[rows])
        used = F.one_hot(chosen, len(self.experts)).to(x.dtype)
        both = used.flatten(0, -2).mean(dim=0), shares.flatten(0, -2).mean(dim=0)
        self.balance = len(self.experts) * (both[0] @ both[1])
        return out


# %% [markdown]
# Nothing tells the router to use all experts. An early favourite gets more tokens, learns more, and gets more still.
#
# So a **load-balancing loss** is added (Fedus and others, equation 4). For $E$ experts it is $E \sum_e f_e P_e$. Here
# $f_e$ is the fraction of tokens that go to expert $e$, and $P_e$ is this expert's mean share in the router's softmax.
# The loss is $E \cdot E / E^2 = 1$ when all $f_e$ and $P_e$ are $1/E$. It is larger when experts with many tokens also
# have large shares. That is usual, since a token goes to the expert with the largest share. The fraction $f_e$ has no
# gradient, so the loss works through $P_e$: it lowers the shares of experts that have many tokens.
#
# The figure shows which fraction of the test tokens (beyond token 64, too) each expert gets, in four layers of three
# seeds: on the left without the load-balancing loss, on the right with 0.01 times this loss added. In the table below
# the figure, *one network* is the model *grouped heads* of the comparison.

# %% tags=["plot"] mystnb={"image": {"alt": "Bars for twelve layers, four of each of three seeds, each divided by the shares of tokens of its four experts. Left, the router alone: the largest share is often a half, and up to 92 percent. Right, with the load-balancing loss: all shares between 11 and 34 percent."}}
figure, panels = plt.subplots(1, 2, figsize=(7.4, 2.8), sharey=True)
for axes, (model, title) in zip(
    panels,
    (("experts", "router alone"), ("balanced experts", "load-balancing loss")),
    strict=True,
):
    loads = np.concatenate([run["loads"] for run in runs_of(model)])
    bottom = np.zeros(len(loads))
    for expert, color in enumerate((plots.BLUE, plots.RED, plots.GOLD, plots.TEAL)):
        share = np.sort(loads)[:, ::-1][:, expert]
        axes.bar(range(len(loads)), share, bottom=bottom, color=color, width=0.85)
        bottom += share
    axes.set_xticks([1.5, 5.5, 9.5], ["seed 0", "seed 1", "seed 2"])
    axes.set_title(title)
panels[0].set_ylabel("share of tokens")
figure.tight_layout()
plt.show()

# %% experts beside one network tags=["hide-input"]
print("                   test loss, three seeds")
for model in ("grouped heads", "experts", "balanced experts"):
    runs = runs_of(model)
    seeds = " ".join(f"{run['test_loss']:.2f}" for run in runs)
    name = "one network" if model == "grouped heads" else model
    print(f"{name:18} {seeds}", end="")
    if "experts" in model:
        loads = np.concatenate([run["loads"] for run in runs])
        print(
            f"   an expert's tokens: {loads.min():.1%} to {loads.max():.0%}", end=""
        )
    print()

# %% tags=["proof"]
loads = {
    model: np.concatenate([run["loads"] for run in runs_of(model)])
    for model in ("experts", "balanced experts")
}
assert loads["experts"].max() > 0.915 and loads["experts"].min() < 0.003
assert 0.33 < loads["balanced experts"].max() < 0.35
assert 0.1 < loads["balanced experts"].min() < 0.12
assert max(losses["balanced experts"]) < min(losses["experts"])
assert min(losses["grouped heads"]) < min(losses["balanced experts"])
assert np.allclose(
    [mean["experts"], mean["balanced experts"]], [3.93, 3.86], atol=0.006
)

# %% [markdown]
# Left alone, an expert ends with up to 92 percent of its layer's tokens, and another with 0.2 percent (**expert
# collapse**). With the load-balancing loss, the busiest expert has about a third of the tokens, and the test loss is
# lower with all three seeds, 3.86 instead of 3.93. A single network has 3.90, but its seeds lie on both sides of these
# three, so no gain over it is sure. One possible reason: in 300 steps, an expert has seen only about a quarter of the
# tokens.

# %% [markdown]
# ### And what else?
#
# **MLA**, multi-head latent attention ([DeepSeek-AI 2024](https://arxiv.org/abs/2405.04434)), keeps two things of each
# token. One is a vector, narrower than its keys and values together. From it each head makes its own key and value with
# a matrix. The other is a short key for the positions, which all heads share.
#
# **Muon** ([Jordan 2024](https://kellerjordan.github.io/posts/muon/)) is an optimizer for matrices. It takes the
# running mean of a matrix's gradients and makes its singular values about equal, so that rare directions move as much
# as frequent ones. Embeddings and output keep Adam. PyTorch has it as `torch.optim.Muon`.
#
# **LoRA** ([Hu and others 2021](https://arxiv.org/abs/2106.09685)) fine-tunes cheaply. A matrix $W$ stays as it is, and
# only a correction $AB$ is trained, a product of two thin matrices. For $W$ of 4,096 × 4,096 and rank 8 that is 65,536
# numbers, 0.4 percent. One of the two starts at 0, so that training begins at the model as it was. Afterwards $W + AB$
# is one matrix again. (**QLoRA** keeps $W$ in four bits meanwhile.)
#
# Two ideas for servers: *speculative decoding*, in [chapter
# 12](12_generation.ipynb#several-tokens-for-the-price-of-one), makes a text come sooner; a paged cache makes room for
# more texts at once.
#
# A **paged cache** (PagedAttention, [Kwon and others 2023](https://arxiv.org/abs/2309.06180)) keeps keys and values in
# blocks of equal size, as an operating system keeps memory, so that texts of all lengths share it with little waste.
# **FlexAttention** ([Dong and others 2024](https://arxiv.org/abs/2412.05496)) compiles a mask that you write as a
# function into a fused kernel, and skips the blocks that it hides; windows and sinks need no kernel of their own.

# %% tags=["plot"] mystnb={"image": {"alt": "Six small drawings. QK-norm: query and key each go through a norm before their dot product. FlexAttention: of six by six blocks of scores, those that a window leaves are filled and the others skipped. MLA: a token makes one narrow vector, which is kept, and from it come the keys and values of three heads. Speculative decoding: a small model proposes five tokens, the large one reads all of them at once, accepts three and replaces the fourth. Paged cache: the blocks of two texts lie mixed in memory, one block is free. Muon: singular values of a gradient, falling, and after, all about equal."}}
drawing = Diagram(8.6, 5.9)
drawing.text(0.2, 5.75, "QK-norm", plots.GREY, at="left")
for y, label in ((5.3, "query"), (4.7, "key")):
    drawing.box(0.7, y, label, 0.85, 0.32)
    drawing.arrow((1.13, y), (1.6, y))
    drawing.box(2.0, y, "norm", 0.75, 0.32, plots.RED)
    drawing.arrow((2.38, y), (2.9, 5.0 + (y - 5.0) / 2))
drawing.box(3.35, 5.0, "dot", 0.8, 0.5)
drawing.text(4.6, 5.75, "FlexAttention", plots.GREY, at="left")
for row, column in np.ndindex(6, 6):
    hue = plots.BLUE if 0 <= row - column < 3 else plots.BLANK
    corner = (4.75 + 0.22 * column, 5.4 - 0.22 * row)
    drawing.axes.add_patch(plt.Rectangle(corner, 0.2, 0.2, fc=hue))
drawing.text(
    6.3,
    4.95,
    "blocks that the mask\nhides are skipped",
    plots.GREY,
    at="left",
    size=9,
)
drawing.text(0.2, 3.95, "MLA", plots.GREY, at="left")
drawing.box(0.7, 3.2, "token", 0.8)
drawing.arrow((1.1, 3.2), (1.6, 3.2))
drawing.box(2.05, 3.2, "kept", 0.8, 0.3, plots.RED)
for head in range(3):
    drawing.arrow((2.45, 3.2), (3.0, 3.62 - 0.42 * head))
    drawing.box(3.5, 3.62 - 0.42 * head, f"k, v {head + 1}", 0.95, 0.3, size=10)
drawing.text(4.6, 3.95, "speculative decoding", plots.GREY, at="left")
for n in range(5):
    hue = plots.TEAL if n < 3 else plots.RED if n == 3 else plots.GREY
    drawing.box(4.95 + 0.7 * n, 3.4, f"token {n + 1}", 0.64, 0.3, hue, size=8)
    mark = "accepted" if n < 3 else "replaced" if n == 3 else "dropped"
    drawing.text(4.95 + 0.7 * n, 3.08, mark, hue, size=8)
drawing.text(0.2, 1.85, "paged cache", plots.GREY, at="left")
for n, owner in enumerate("ABABBA-A"):
    hue = {"A": plots.BLUE, "B": plots.RED, "-": plots.BLANK}[owner]
    drawing.box(0.45 + 0.5 * n, 1.25, owner.strip("-"), 0.46, 0.34, hue, size=10)
drawing.text(
    0.2, 0.8, "blocks of texts A and B, one free", plots.GREY, at="left", size=9
)
drawing.text(4.6, 1.85, "Muon", plots.GREY, at="left")
rng = np.random.default_rng(0)
gradient = rng.normal(size=(12, 8)) * 0.5 ** np.arange(8)
u, sizes, v = np.linalg.svd(gradient, full_matrices=False)
for left, heights, label in (
    (4.75, sizes / sizes[0], "singular values"),
    (6.7, np.linalg.svd(u @ v)[1], "after"),
):
    for n, height in enumerate(heights):
        drawing.axes.bar(left + 0.2 * n, 1.1 * height, 0.16, 0.4, color=plots.BLUE)
    drawing.text(left - 0.1, 0.2, label, plots.GREY, at="left", size=9)
plt.show()

# %% [markdown]
# Which model has what? Here are the defaults of the library `transformers`; sizes of one family differ. In the column
# of heads, the number in brackets counts the sets of keys and values. "8 of 256" means that each token goes to 8 of 256
# experts. In DeepSeek-V3 it also goes to one more expert, which all tokens share. OLMo 3 has its norms behind the
# sublayers, but on the branch, before the addition.
#
# | | norm | feed-forward | heads (keys and values) | layers with a window | experts | other |
# |---|---|---|---|---|---|---|
# | GPT-2 | LayerNorm | GELU | 12 (12) | | | |
# | Llama 1 | RMSNorm | SwiGLU | 32 (32) | | | |
# | SmolLM3 | RMSNorm | SwiGLU | 16 (4) | | | no RoPE in every fourth layer (*NoPE*) |
# | OLMo 3 | RMSNorm, of what a sublayer returns | SwiGLU | 32 (32) | 24 of 32 | | QK-norm |
# | Gemma 4 | RMSNorm, before and after a sublayer | GeGLU | 8 (4) | 25 of 30 | | QK-norm |
# | Ministral 3 | RMSNorm | SwiGLU | 32 (8) | | | |
# | gpt-oss | RMSNorm | a variant of SwiGLU | 64 (8) | 18 of 36 | 4 of 128 | sinks, biases |
# | MiniMax-M2 | RMSNorm | SwiGLU | 48 (8) | | 8 of 256 | QK-norm |
# | DeepSeek-V3 | RMSNorm | SwiGLU | 128 | | 8 of 256 | MLA |

# %% tags=["proof"]
import inspect
from collections import Counter
from importlib import import_module

from transformers.models.auto.configuration_auto import CONFIG_MAPPING


def read(kind):
    """Heads, windows, experts of a kind of model, and what its code mentions."""
    config = CONFIG_MAPPING[kind]()
    module = type(config).__module__.replace("configuration", "modeling")
    code = inspect.getsource(import_module(module))
    layers = Counter(getattr(config, "layer_types", None) or [])
    experts = [
        getattr(config, name, 0)
        for name in ("num_local_experts", "n_routed_experts")
    ]
    return {
        "heads": (
            config.num_attention_heads,
            getattr(config, "num_key_value_heads", 12),
        ),
        "windows": (layers["sliding_attention"], sum(layers.values())),
        "experts": (getattr(config, "num_experts_per_tok", 0), max(experts)),
        "words": [
            word
            for word in ("RMSNorm", "gate", "q_norm", "sinks", "kv_lora_rank")
            if word in code
        ],
    }


for kind, heads in {
    "gpt2": (12, 12),
    "llama": (32, 32),
    "smollm3": (16, 4),
    "olmo3": (32, 32),
    "gemma4_text": (8, 4),
    "ministral3": (32, 8),
    "gpt_oss": (64, 8),
    "minimax_m2": (48, 8),
    "deepseek_v3": (128, 128),
}.items():
    seen = read(kind)
    assert seen["heads"] == heads
    assert (
        ("RMSNorm" in seen["words"])
        == ("gate" in seen["words"])
        == (kind != "gpt2")
    )
    assert ("q_norm" in seen["words"]) == (
        kind in ("olmo3", "gemma4_text", "minimax_m2")
    )
    assert ("sinks" in seen["words"]) == (kind == "gpt_oss")
    assert ("kv_lora_rank" in seen["words"]) == (kind == "deepseek_v3")
for kind, activation in {
    "llama": "silu",
    "smollm3": "silu",
    "olmo3": "silu",
    "ministral3": "silu",
    "minimax_m2": "silu",
    "deepseek_v3": "silu",
}.items():
    assert CONFIG_MAPPING[kind]().hidden_act == activation
assert CONFIG_MAPPING["gemma4_text"]().hidden_activation.startswith("gelu")
assert CONFIG_MAPPING["smollm3"]().no_rope_layers[:8] == [1, 1, 1, 0] * 2
for kind in ("gpt2", "llama", "smollm3", "ministral3", "minimax_m2", "deepseek_v3"):
    assert read(kind)["windows"][0] == 0
for kind, windows in {
    "olmo3": (24, 32),
    "gemma4_text": (25, 30),
    "gpt_oss": (18, 36),
}.items():
    assert read(kind)["windows"] == windows
for kind, experts in {
    "gpt_oss": (4, 128),
    "minimax_m2": (8, 256),
    "deepseek_v3": (8, 256),
}.items():
    assert read(kind)["experts"] == experts
assert CONFIG_MAPPING["gpt_oss"]().attention_bias
