"""Tangled from chapters/07_learning.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from dotformer.support.shapes import shapes


@shapes
def scaled_dot_product_attention(
    query: Float[Tensor, "*batch T d_k"],
    key: Float[Tensor, "*batch S d_k"],
    value: Float[Tensor, "*batch S d_v"],
    mask: Bool[Tensor, "*#batch #T #S"] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "*batch T d_v"], Float[Tensor, "*batch T S"]]:
    """Scaled dot-product attention: softmax(Q K^T / sqrt(d_k)) V, and its weights.

    `mask` is True where a query may attend; one that may attend to nothing gets
    zeros. `dropout` is the share of the weights set to 0 before they blend, always:
    pass 0 outside training. After Vaswani and others (2017), equation 1.

    Defined in chapter 7, "Learning to look things up".
    """
    scaled = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is None:
        mask = torch.ones_like(scaled, dtype=torch.bool)
    scaled = scaled.masked_fill(~mask, torch.finfo(scaled.dtype).min)
    weights = scaled.softmax(dim=-1).masked_fill(~mask, 0.0)
    return F.dropout(weights, dropout) @ value, weights


class MultiHeadAttention(nn.Module):
    """Attention in several heads: project, split, attend, merge, mix.

    Vectors of width D = `d_model`, and H = `num_heads` heads of width D / H; in
    training, a share `dropout` of the weights is dropped. After Vaswani and others
    (2017), section 3.2.2.

    Defined in chapter 7, "Learning to look things up".
    """

    def __init__(
        self, d_model: int, num_heads: int, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(f"{d_model} columns do not make {num_heads} heads")
        self.d_model, self.num_heads, self.dropout = d_model, num_heads, dropout
        self.w_q = nn.Linear(d_model, d_model, bias)
        self.w_k = nn.Linear(d_model, d_model, bias)
        self.w_v = nn.Linear(d_model, d_model, bias)
        self.w_o = nn.Linear(d_model, d_model, bias)

    @shapes
    def forward(
        self,
        query: Float[Tensor, "*batch T {self.d_model}"],
        key: Float[Tensor, "*batch S {self.d_model}"],
        value: Float[Tensor, "*batch S {self.d_model}"],
        mask: Bool[Tensor, "... #T #S"] | Literal["causal"] | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The output (..., T, D) and, with `need_weights`, weights (..., H, T, S).

        `mask` is True where a query may attend, the same for all heads if H is 1;
        "causal" lets query t attend to keys 0 to t, and needs no matrix.
        """
        causal = isinstance(mask, str)
        if causal and need_weights:
            shape = query.shape[-2], key.shape[-2]
            mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        elif causal:
            mask = None
        if mask is not None and 2 < mask.ndim <= query.ndim:
            raise ValueError("a mask (B, T, S) lacks the heads: use mask[:, None]")
        q = self.split_heads(self.w_q(query))  # (B, H, T, d_k)
        k = self.split_heads(self.w_k(key))  # (B, H, S, d_k)
        v = self.split_heads(self.w_v(value))
        p = self.dropout if self.training else 0.0
        if need_weights:
            heads, weights = scaled_dot_product_attention(q, k, v, mask, p)
        else:  # PyTorch's own, which need not keep the weights
            heads = F.scaled_dot_product_attention(q, k, v, mask, p, causal)
            weights = None
        return self.w_o(self.merge_heads(heads)), weights

    def split_heads(self, x: Tensor) -> Tensor:
        """(..., T, D) -> (..., H, T, d_k)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)

    def merge_heads(self, heads: Tensor) -> Tensor:
        """(..., H, T, d_k) -> (..., T, D)."""
        return heads.transpose(-3, -2).flatten(-2)
