"""Tangled from chapters/08_encoder.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dotformer.attention import MultiHeadAttention
from dotformer.by_hand.positions import sinusoidal_positions
from dotformer.support.settings import check_settings
from dotformer.support.shapes import shapes


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """What fixes a layer, and a stack of them. Defaults: the paper's base model.

    For `norm_first` see `AddAndNorm`, for `final_norm` see `Stack`.

    Defined in chapter 8, "The book's version".
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

    Defined in chapter 8, "The book's version".
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


class AddAndNorm(nn.Module):
    """A residual connection around a sublayer, and layer normalisation.

    With `norm_first` the norm stands before the sublayer, and nothing but additions
    lies on the way through.

    Defined in chapter 8, "The book's version".
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


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network, each with its add and norm.

    After Vaswani and others (2017), section 3.1.

    Defined in chapter 8, "The book's version".
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

    Defined in chapter 8, "The book's version".
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
    """A stack of `num_layers` encoder layers.

    Defined in chapter 8, "The book's version".
    """

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


class PositionalEncoding(nn.Module):
    """Add to each vector the sinusoid of its position, then drop some entries.

    The table has `max_length` rows of width `d_model`. After Vaswani and others
    (2017), section 3.5.

    Defined in chapter 8, "The book's version".
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
    sqrt(D) when looked up, so that they start about as large as the positions.
    After Vaswani and others (2017), section 3.4.

    Defined in chapter 8, "The book's version".
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
