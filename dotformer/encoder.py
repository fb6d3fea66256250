"""Tangled from chapters/08_encoder.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dotformer.attention import MultiHeadAttention
from dotformer.by_hand.positions import sinusoidal_positions


class FeedForward(nn.Module):
    """Two linear maps with a bend between them, the same for every token.

    (..., D) -> (..., d_ff) -> (..., D). `activation` is "relu", as in Vaswani and
    others (2017), section 3.3, or "gelu". Raises ValueError for another.

    Defined in chapter 8, "A network for each token".
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        dropout: float = 0.0,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        bends = {"relu": nn.ReLU, "gelu": nn.GELU}
        if activation not in bends:
            raise ValueError(
                f"activation must be one of {sorted(bends)}, not {activation!r}"
            )
        self.expand = nn.Linear(d_model, d_ff)
        self.bend = bends[activation]()
        self.dropout = nn.Dropout(dropout)
        self.contract = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to each vector of x (..., D)."""
        return self.contract(self.dropout(self.bend(self.expand(x))))


class AddAndNorm(nn.Module):
    """Add what a sublayer found to what went in, and normalise.

    The paper normalises the sum; with `norm_first` the norm stands before the
    sublayer, and nothing but additions lies on the way through.

    Defined in chapter 8, "The encoder".
    """

    def __init__(
        self, d_model: int, dropout: float, norm_first: bool, eps: float
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model, eps=eps)
        self.dropout = nn.Dropout(dropout)
        self.norm_first = norm_first

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return x (..., T, D) with the sublayer's finding added, same shape."""
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network, each with its add and norm.

    Every token looks at all tokens; then each thinks by itself. `norm_first` and
    `eps` as in `AddAndNorm`, `activation` as in `FeedForward`. After Vaswani and
    others (2017), section 3.1.

    Defined in chapter 8, "The encoder".
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        norm_first: bool = False,
        activation: str = "relu",
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, num_heads, dropout)
        self.attention_add_norm = AddAndNorm(d_model, dropout, norm_first, eps)
        self.feed_forward = FeedForward(d_model, d_ff, dropout, activation)
        self.feed_forward_add_norm = AddAndNorm(d_model, dropout, norm_first, eps)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pass x (..., T, D) through; `mask` broadcasts to (..., H, T, T)."""
        x = self.attention_add_norm(x, lambda x: self.attention(x, x, x, mask)[0])
        return self.feed_forward_add_norm(x, self.feed_forward)


class Encoder(nn.Module):
    """A stack of `num_layers` encoder layers, each with parameters of its own.

    With `norm_first`, nothing has normalised what leaves the last layer, so a
    final norm does; `final_norm` overrides that (nn.Transformer always has one).
    The other arguments as in `EncoderLayer`.

    Defined in chapter 8, "The encoder".
    """

    def __init__(
        self,
        num_layers: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        dropout: float = 0.0,
        norm_first: bool = False,
        final_norm: bool | None = None,
        activation: str = "relu",
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        options = (dropout, norm_first, activation, eps)
        self.layers = nn.ModuleList(
            EncoderLayer(d_model, num_heads, d_ff, *options)
            for _ in range(num_layers)
        )
        wanted = norm_first if final_norm is None else final_norm
        self.norm = nn.LayerNorm(d_model, eps=eps) if wanted else nn.Identity()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pass x (..., S, D) through all layers; `mask` as in `EncoderLayer`."""
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class PositionalEncoding(nn.Module):
    """Add to each vector the encoding of its place, then drop some entries.

    The table has `max_length` rows of width `d_model`: sinusoids (chapter 5), or
    with `learned` a parameter that starts small and is trained. After Vaswani and
    others (2017), section 3.5.

    Defined in chapter 8, "From numbers to vectors".
    """

    def __init__(
        self,
        d_model: int,
        max_length: int = 5000,
        dropout: float = 0.0,
        learned: bool = False,
    ) -> None:
        super().__init__()
        if learned:
            self.table = nn.Parameter(torch.randn(max_length, d_model) * 0.02)
        else:
            table = sinusoidal_positions(max_length, d_model)
            table = torch.tensor(table, dtype=torch.get_default_dtype())
            self.register_buffer("table", table, persistent=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Return x (..., T, D) plus the rows from `start` on.

        Raises ValueError when x is not as wide as the table, or when a place lies
        outside it.
        """
        if x.ndim < 2 or x.shape[-1] != self.table.shape[1] or start < 0:
            raise ValueError(
                f"x of shape {tuple(x.shape)} from position {start} does not fit"
                f" the table of shape {tuple(self.table.shape)}"
            )
        end = start + x.shape[-2]
        if end > len(self.table):
            raise ValueError(
                f"x of shape {tuple(x.shape)} reaches position {end - 1}, but the"
                f" table of shape {tuple(self.table.shape)} ends at"
                f" {len(self.table) - 1}"
            )
        return self.dropout(x + self.table[start:end])


class Embeddings(nn.Module):
    """From token numbers to vectors: look each up, scale, add its place.

    `vocab_size` rows of width `d_model`, drawn with deviation 1/sqrt(D) and
    multiplied by sqrt(D) when looked up, so that they start as large as the
    positions (chapter 5). BERT's differ: `scale=False`, `learned_positions`, a
    vector for the first of its `segments`, and a `norm` over the sum.

    Defined in chapter 8, "From numbers to vectors".
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_length: int = 5000,
        dropout: float = 0.0,
        scale: bool = True,
        learned_positions: bool = False,
        segments: int = 0,
        norm: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.tokens.weight, std=d_model**-0.5)
        self.scale = math.sqrt(d_model) if scale else 1.0
        self.positions = PositionalEncoding(
            d_model, max_length, learned=learned_positions
        )
        self.segments = nn.Embedding(segments, d_model) if segments else None
        self.norm = nn.LayerNorm(d_model, eps=eps) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Token numbers (..., T) to vectors (..., T, D), the first at `start`.

        Raises TypeError when they are not int32 or int64, and ValueError when there
        are none, when one is not in the table, or when a place is not.
        """
        if tokens.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"tokens must be int32 or int64, not {tokens.dtype}")
        if tokens.ndim < 1 or tokens.shape[-1] == 0:
            raise ValueError(
                f"an empty sentence: tokens of shape {tuple(tokens.shape)}"
            )
        try:
            x = self.tokens(tokens) * self.scale
        except IndexError as error:
            raise ValueError(
                f"tokens go from {tokens.min()} to {tokens.max()}, but the table"
                f" has {len(self.tokens.weight)} rows"
            ) from error
        x = self.positions(x, start)
        if self.segments is not None:
            x = x + self.segments.weight[0]
        return self.dropout(self.norm(x))
