"""Tangled from chapters/09_decoder.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import torch
from torch import Tensor, nn

from dotformer.attention import Cache, MultiHeadAttention
from dotformer.encoder import AddAndNorm, FeedForward


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Which earlier places each place may attend to: (T, T), True on and below.

    Row t is true in columns 0 to t, so that no query sees its future.

    Defined in chapter 9, "Who may see whom".
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def padding_mask(tokens: Tensor, pad_id: int) -> Tensor:
    """Which tokens (B, S) are real: (B, 1, 1, S), for all heads and all queries.

    Raises ValueError when a sentence of the batch has no token that is real. (On
    a GPU, or compiled, that is not checked: the check would have to wait.)

    Defined in chapter 9, "Who may see whom".
    """
    if tokens.ndim != 2:
        raise ValueError(
            f"tokens must have shape (batch, tokens), not {tuple(tokens.shape)}"
        )
    real = tokens != pad_id
    unchecked = tokens.device.type != "cpu" or torch.compiler.is_compiling()
    if not unchecked and not real.any(dim=1).all():
        empty = (~real.any(dim=1)).nonzero().flatten().tolist()
        raise ValueError(
            f"empty sentences: rows {empty} of tokens {tuple(tokens.shape)} hold"
            f" nothing but padding ({pad_id})"
        )
    return real[:, None, None]


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention, feed-forward, with add and norm each.

    The arguments are those of `EncoderLayer`. After Vaswani and others (2017),
    section 3.1.

    Defined in chapter 9, "Which encoder layer does the decoder ask?".
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
        self.self_attention = MultiHeadAttention(d_model, num_heads, dropout)
        self.self_attention_add_norm = AddAndNorm(d_model, dropout, norm_first, eps)
        self.cross_attention = MultiHeadAttention(d_model, num_heads, dropout)
        self.cross_attention_add_norm = AddAndNorm(
            d_model, dropout, norm_first, eps
        )
        self.feed_forward = FeedForward(d_model, d_ff, dropout, activation)
        self.feed_forward_add_norm = AddAndNorm(d_model, dropout, norm_first, eps)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Pass x (..., T, D) through; it may look at the `memory` (..., S, D).

        `mask` broadcasts to (..., H, T, T) and says which targets see which,
        `memory_mask` to (..., H, T, S) and says who sees which source. With a
        `cache` (chapter 12), x follows on the targets that are in it.
        """
        x = self.self_attention_add_norm(
            x, lambda x: self.self_attention(x, x, x, mask, cache=cache)[0]
        )
        x = self.cross_attention_add_norm(
            x,
            lambda x: self.cross_attention(
                x, memory, memory, memory_mask, cache=cache
            )[0],
        )
        return self.feed_forward_add_norm(x, self.feed_forward)


class Decoder(nn.Module):
    """A stack of `num_layers` decoder layers, all of which see the same memory.

    The arguments, and the final norm, are those of `Encoder`.

    Defined in chapter 9, "Which encoder layer does the decoder ask?".
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
            DecoderLayer(d_model, num_heads, d_ff, *options)
            for _ in range(num_layers)
        )
        wanted = norm_first if final_norm is None else final_norm
        self.norm = nn.LayerNorm(d_model, eps=eps) if wanted else nn.Identity()

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Pass x (..., T, D) through all layers; see `DecoderLayer`."""
        for layer in self.layers:
            x = layer(x, memory, mask, memory_mask, cache)
        return self.norm(x)
