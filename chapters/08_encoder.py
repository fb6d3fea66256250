# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 8. How do you stack attention?
#
# One layer of attention mixes words once. A transformer has six and more of them, one after the other, and between them
# are parts that no article spends a picture on: a residual connection, a norm, and a small network for each word. At
# the end of this chapter there is an encoder, equal to PyTorch's, and you know what each of its parts is for.
#
# You need [chapter 7](07_learning.ipynb), and [chapter 5](05_position.ipynb) for the positions. 30 minutes to read, and
# 40 more for the exercises.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. Attention with its heads and positions is built, and so are the gradients. This chapter adds the feed-forward network, add and norm, and the stack of layers that make the encoder, with embeddings below it."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, plots, quiz, transformer_map

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
# - **position**: does the vector still know where it stands? Fit a linear map from vectors to positions on 100
#   sentences, then guess the positions in 100 others. Chance is $1/16$, about 6 percent.
#
# And one thing backwards. **Gradient**: start at the top with a gradient of norm 1, in a random direction. What is the
# norm of what arrives at the words?

# %%
import numpy as np
import torch
from dotformer.attention import MultiHeadAttention
from dotformer.by_hand.positions import sinusoidal_positions
from torch import nn
from torch.nn import functional as F

DEPTHS = [1, 2, 4, 8, 16, 24]


def guess_positions(known, asked):
    """Share of the positions that a linear map reads off correctly."""
    positions = torch.eye(known.shape[1]).repeat(len(known), 1)
    known, asked = (
        known.double().round(decimals=4),
        asked.double().round(decimals=4),
    )
    flat = F.pad(known.flatten(0, 1), (0, 1), value=1.0)  # with a constant
    read = torch.linalg.lstsq(flat, positions.double()).solution
    guesses = F.pad(asked, (0, 1), value=1.0) @ read
    return (guesses.argmax(-1) == torch.arange(known.shape[1])).float().mean()


def measure(step, seed, gain=None, words=16, width=64):
    torch.manual_seed(seed)
    positions = torch.from_numpy(sinusoidal_positions(words, width)).float()
    start = (torch.randn(200, words, width) + positions).requires_grad_()
    x, rows = start, []
    for depth in range(1, max(DEPTHS) + 1):
        attention = MultiHeadAttention(width, num_heads=4)
        for parameter in attention.parameters() if gain else ():
            if parameter.ndim == 2:
                nn.init.xavier_uniform_(parameter, gain)
        x = step(x, attention(x, x, x)[0])
        if depth in DEPTHS:
            own = (x - x.mean(dim=1, keepdim=True)).norm() / x.norm()
            position = guess_positions(x[:100].detach(), x[100:].detach())
            d_x = torch.randn_like(x)
            d_x /= d_x.norm()
            back = torch.autograd.grad(x, start, d_x, retain_graph=True)[0]
            size = x.square().mean().sqrt()
            rows.append(
                [own.item(), position.item(), back.norm().item(), size.item()]
            )
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
print("layers    own  position  gradient")
for depth, row in zip(DEPTHS, alone, strict=True):
    print(f"{depth:6} {row[0]:6.4f} {row[1]:9.0%} {row[2]:9.5f}")
assert alone[0, 0] < 0.2 and alone[1, 0] < 0.001
assert alone[1:, 1].max() < 0.08 and alone[4, 2] < 1e-4

# %% [markdown]
# Not even after one. The first layer leaves 15 percent, the second nothing: all sixteen words have become one vector.
# PyTorch draws small matrices, so scores are near 0, weights nearly equal, and everybody receives nearly the same
# average. No later layer can tell the words apart again, and their positions are gone with them. And since small
# matrices also make everything smaller, a gradient from layer 16 hardly arrives.
#
# The remedy is one addition. Let a layer *add its output to its input*:
#
# $$x \leftarrow x + \operatorname{Attention}(x) .$$
#
# This is a **residual connection**, or skip connection. The word itself passes straight through, all the way up, and
# each layer only adds something to it: the sum that runs through all layers is the **residual stream**. On the way
# back, the same addition hands the gradient through unchanged.

# %%
kinds = {
    "attention alone": lambda x, found: found,
    "added": lambda x, found: x + found,
    # the norm is explained below
    "added, normalised": lambda x, found: F.layer_norm(x + found, x.shape[-1:]),
}
for name in ("added", "added, normalised"):
    runs[name] = np.array([measure(kinds[name], seed) for seed in range(5)])

# %% tags=["plot"] mystnb={"image": {"alt": "Three panels against depth, 1 to 24 layers. Own share: attention alone falls to 0 at two layers, the other two fall slowly from over 0.8 to about 0.4. Position guessed: attention alone is at chance from two layers on, the others stay at about 0.4. Gradient at the words, on a logarithmic axis: attention alone falls by many powers of ten, the others stay between 0.5 and 1.5."}}
figure, panels = plt.subplots(1, 3, figsize=(8, 3), sharex=True)
titles = ["own share", "position read", "gradient at the words"]
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
# With residual connections, more than a third of each vector is still its own after 24 such layers, and its position
# can be read nearly as well as after the first. The gradient arrives.
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
print("24 layers              own  position  gradient    size")
larger = {
    name: np.mean([measure(step, seed, gain=1.0) for seed in range(3)], axis=0)[-1]
    for name, step in kinds.items()
}
for name, (own, position, back, size) in larger.items():
    print(f"{name:18} {own:7.4f} {position:9.0%} {back:9.2g} {size:7.2g}")
assert max(row[0] for row in larger.values()) < 0.02
assert larger["added"][2] > 1e5 and larger["added, normalised"][2] < 10

# %% [markdown]
# So the vanishing gradient came from small matrices: now half of it arrives through attention alone. The collapse did
# not. Attention alone still ends with one word, and since each layer now adds as much as there was, so nearly does the
# sum: it delays the collapse, and does not forbid it. (Differences of less than a thousandth remain in the last line,
# from which a linear map still reads some positions.) How deep one can go depends on how much each layer adds; our
# stacks in chapter 9 have two layers. And without a brake, sizes and gradients explode. The norm is the brake.
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
# word received should also be *worked on*. So each layer has two **sublayers**: after the attention comes a small network,
# applied to every token by itself:
#
# $$\operatorname{FeedForward}(x) = \operatorname{activation}(x W_1 + b_1) \, W_2 + b_2 .$$
#
# $W_1$ goes up from $D$ to $d_\text{ff}$, usually four times as many, and $W_2$ comes down again. The **activation
# function** between them is what makes it more than one matrix: $\operatorname{ReLU}(z) = \max(0, z)$, or the smoother
# GELU. Two numbers and a ReLU already do what no matrix does, the absolute value:
# $|z| = \operatorname{ReLU}(z) + \operatorname{ReLU}(-z)$.
#
# The sublayers need a few of the same numbers, so these travel together, as one configuration:

# %% tags=["export"] module="encoder"
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
# Both sublayers get the same frame: add, and normalise. The paper normalises *the sum* (**post-norm**). Most later
# models normalise *what goes into the sublayer*, and leave the sum alone (**pre-norm**). Either is one line, which
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
# What is missing is the bottom of the stack. A model receives tokens as numbers. Each picks a row from a table of
# vectors, the **embeddings**. Then come the positions of [chapter 5](05_position.ipynb), now as a module:

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
# ## Post-norm or pre-norm?
#
# The two orders differ in how training begins. The norms of a post-norm stack sit on the residual stream itself, two in
# each layer; [Xiong and others (2020)](https://arxiv.org/abs/2002.04745) found that gradients near the output start
# large there, too large for big steps. Vaswani and others start their training with tiny steps that grow for a while, a
# **warm-up**. Is that needed?
#
# Here is a task in which every token must attend to another position: give back twelve random symbols in reverse order.
# Three layers, 400 steps, post-norm or pre-norm, with a warm-up of 200 steps or without (`warm_up=1`), when the first
# step is as large as all others.
#
# **Predict first.** One learning rate would tell you little, so seven are tried, from 0.0025 to 0.03. Which of the four
# combinations still learns at the highest?


# %%
def learn_to_reverse(norm_first, warm_up, seed, steps=400, learning_rate=0.015):
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
            group["lr"] = learning_rate * min(1, step / warm_up)
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

# %% tags=["plot"] mystnb={"image": {"alt": "Two panels, the loss at the end over the highest learning rate, three seeds each. Post-norm without warm-up learns up to 0.01 and stays near 3 from 0.015 on; with warm-up it learns up to 0.02, and two of three seeds at 0.03. Pre-norm without warm-up learns up to 0.02 and not at 0.03; with warm-up it learns at every learning rate."}}
from classroom.measured import measured

ends = {
    (row["norm_first"], row["warm_up"] > 1, row["learning_rate"]): row["ends"]
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
# Knowing nothing costs $\ln 20 = 3.0$. Without warm-up, post-norm learns at every learning rate up to 0.01, and from
# 0.015 on next to nothing. With warm-up it learns at 0.02 as well, and at 0.03 with two seeds of three. Pre-norm needs
# no warm-up to learn at 0.02, and with it learns even at 0.03, the highest that was tried.
#
# So at a learning rate that is low enough, neither pre-norm nor warm-up is needed here, and each makes learning rates
# usable that are about twice as high. Part of what warm-up does is plain: over half of these 400 steps it keeps them
# smaller. And this is a small stack of three layers. For post-norm models of full size Xiong and others found warm-up
# essential, which this experiment cannot show.

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

# %% tags=["quiz"]
quiz.one_choice(
    "A pre-norm stack of 24 layers is followed directly by a linear map to the vocabulary, without a final norm. What does that map receive?",
    quiz.right(
        "Vectors whose size grows with the number of layers",
        "Yes: every sublayer adds something to the sum, and no norm stands on the way through. Hence the final norm.",
    ),
    quiz.wrong(
        "Vectors of mean 0 and variance 1, as after any layer norm",
        "The norm of a pre-norm layer stands before the sublayer. What is added to is never normalised.",
    ),
    quiz.wrong(
        "What the last feed-forward network wrote, and nothing else",
        "It wrote onto a sum that holds everything before it, the word included.",
    ),
)

# %% [markdown]
# ## Break it: a norm that is nearly right
#
# The layer norm of the [Annotated Transformer](https://nlp.seas.harvard.edu/annotated-transformer/) divides by the
# deviation of a *sample*, whose squares are divided by $D - 1$, and adds $\epsilon$ outside the root. How far is that
# from PyTorch's?


# %%
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
# At the paper's width it is a tenth of a percent, in all entries alike, and the trained $\gamma$ makes up for it. So a
# model with this norm learns as well as any, and no loss curve will ever tell. It shows where two programs must agree:
# load parameters that were trained with the other norm, and every layer is a little off. At width 4 it is 13 percent,
# which is why the comparison with a reference is best made on small models.
#
# ## Exercises
#
# ### Exercise 1: Count the parameters
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
# ### Exercise 2: Back through the norm
#
# *Harder, 25 minutes.* Given $x$ $(T, D)$ and the gradient for $y = \operatorname{LayerNorm}(x)$, with gain 1, bias 0
# and $\epsilon = 0$, return the gradient for $x$, in NumPy. Start with one vector: $y_i = (x_i - \mu) / \sigma$. Both
# $\mu$ and $\sigma$ depend on every entry, with $\partial \mu / \partial x_j = 1 / D$ and
# $\partial \sigma / \partial x_j = y_j / D$, so the gradient comes back by three ways.


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
# Two layers of untrained attention make all words one word; adding what each sublayer finds to what went in keeps them
# apart for longer, and a norm keeps the sums in size. After each attention, every word is worked on by itself, in a
# network that holds two thirds of a layer's parameters. Where the norm stands decides how high a learning rate the stack
# bears.
#
# **Sources.** The encoder: [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762), section 3.1. Residual
# connections: [He and others (2015)](https://arxiv.org/abs/1512.03385). Layer norm: [Ba, Kiros and Hinton
# (2016)](https://arxiv.org/abs/1607.06450). Attention alone loses rank: [Dong, Cordonnier and Loukas
# (2021)](https://arxiv.org/abs/2103.03404). Order of norm and sum: [Xiong and others
# (2020)](https://arxiv.org/abs/2002.04745).
#
# **Next.** An encoder reads. [Chapter 9](09_decoder.ipynb) adds the part that writes: it must not see its own future,
# and it may look at what the encoder read. (If you would rather see first what a trained encoder knows,
# [chapter 15](15_pretrained.ipynb) loads a published one into this code.)
