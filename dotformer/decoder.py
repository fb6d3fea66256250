"""Tangled from chapters/09_decoder.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dotformer.attention import MultiHeadAttention
from dotformer.encoder import AddAndNorm, FeedForward, LayerConfig, Stack
from dotformer.support.checks import check_real
from dotformer.support.shapes import shapes


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Which positions each may attend to: (T, T), True on and below the diagonal.

    Row t is true in columns 0 to t, so that no query sees its future.

    Defined in chapter 9, "Who may see whom".
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


@shapes
def padding_mask(
    tokens: Int[Tensor, "B S"], pad_id: int
) -> Bool[Tensor, "B 1 1 S"]:
    """Which tokens are real: the same for all heads and all queries.

    On a CPU, a ValueError when a sentence has no real token.

    Defined in chapter 9, "Who may see whom".
    """
    real = tokens != pad_id
    check_real(real)
    return real[:, None, None]


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, feed-forward, each with add and norm.

    After Vaswani and others (2017), section 3.1.

    Defined in chapter 9, "The module that the book uses".
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


class Decoder(Stack):
    """A stack of `num_layers` decoder layers, all of which see the same memory.

    Defined in chapter 9, "The module that the book uses".
    """

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
