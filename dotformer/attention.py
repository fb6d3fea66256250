"""Tangled from chapters/07_learning.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def checked_mask(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The mask, with 2 axes or more, if it fits scores of `shape` (..., T, S).

    Raises TypeError when it is not boolean, and ValueError when it does not
    broadcast, or when it has an axis for the batch but none for the heads: those
    two would be taken for each other.

    Defined in chapter 7, "Let the machine do it".
    """
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask must be boolean, True for may attend, but it is {mask.dtype}"
        )
    axes = zip(mask.shape[::-1], shape[::-1], strict=False)
    if mask.ndim > len(shape) or any(m not in (1, size) for m, size in axes):
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} does not broadcast to scores of"
            f" {tuple(shape)}"
        )
    if 2 < mask.ndim < len(shape):
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} has no axis for the heads of scores"
            f" of {tuple(shape)}: use mask[:, None]"
        )
    return torch.atleast_2d(mask)


def scores_shape(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """The shape (..., T, S) of the scores, or a ValueError that says why not.

    Defined in chapter 7, "Let the machine do it".
    """
    fits = min(query.ndim, key.ndim, value.ndim) > 1 and query.shape[-1] > 0
    fits = fits and query.shape[-1] == key.shape[-1]
    fits = fits and key.shape[-2] == value.shape[-2]
    leading = query.shape[:-2]
    if not leading == key.shape[:-2] == value.shape[:-2]:
        try:
            leading = torch.broadcast_shapes(leading, key.shape[:-2])
            torch.broadcast_shapes(leading, value.shape[:-2])
        except RuntimeError:
            fits = False
    if not fits:
        raise ValueError(
            "query and key need equal widths, key and value equally many rows, and"
            " leading axes that broadcast, not"
            f" {tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
        )
    return (*leading, query.shape[-2], key.shape[-2])


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attention: each query receives a blend of the values, weighted by their keys.

    `query` has shape (..., T, d_k), `key` (..., S, d_k) and `value` (..., S, d_v).
    `mask` is boolean and broadcasts to (..., T, S); True means *may attend*. A
    query that may attend to nothing receives zeros. `dropout` is the share of the
    weights set to 0 (and the rest enlarged) before they blend, always: pass 0
    outside training. Returns the output (..., T, d_v) and the weights (..., T, S)
    before dropout. Raises TypeError when the mask is not boolean, and ValueError
    when shapes do not fit. After Vaswani and others (2017), equation 1.

    Defined in chapter 7, "Let the machine do it".
    """
    shape = scores_shape(query, key, value)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        mask = checked_mask(mask, shape)
        nothing = ~mask.any(dim=-1, keepdim=True)  # rows with nothing to attend to
        weights = scores.masked_fill(~mask & ~nothing, -math.inf).softmax(dim=-1)
        weights = weights.masked_fill(nothing, 0.0)
    return F.dropout(weights, dropout) @ value, weights


class Cache(Protocol):
    """A keeper of keys and values, for a decoder that runs a token at a time.

    `length` tokens are in it already. `project` gives an attention the keys and
    values (..., H, S, D/H) to attend to. Chapter 12 has one.

    Defined in chapter 7, "Let the machine do it".
    """

    length: int

    def project(
        self, attention: "MultiHeadAttention", key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]: ...


class MultiHeadAttention(nn.Module):
    """Attention in several heads: project, split, attend, merge, mix.

    `d_model` is the width D of the vectors, `num_heads` the number H of heads of
    width D / H, `dropout` the share of the weights dropped in training; with
    `bias`, each projection adds a vector of its own. Raises ValueError when D is
    not divisible by H. After Vaswani and others (2017), section 3.2.2.

    Defined in chapter 7, "Let the machine do it".
    """

    def __init__(
        self, d_model: int, num_heads: int, dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_model % num_heads:
            raise ValueError(
                "d_model must be divisible by num_heads, not"
                f" {d_model} by {num_heads}"
            )
        if not 0 <= dropout < 1:
            raise ValueError(
                f"dropout must be at least 0 and below 1, not {dropout}"
            )
        self.d_model, self.num_heads, self.dropout = d_model, num_heads, dropout
        self.w_q = nn.Linear(d_model, d_model, bias)
        self.w_k = nn.Linear(d_model, d_model, bias)
        self.w_v = nn.Linear(d_model, d_model, bias)
        self.w_o = nn.Linear(d_model, d_model, bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        need_weights: bool = False,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `query` (..., T, D) to `key` and `value` (..., S, D).

        `mask` is boolean, True for *may attend*, and broadcasts to (..., H, T, S).
        Where there is a `cache`, it is asked for the keys and values (chapter 12).
        Returns the output (..., T, D) and, with `need_weights`, the weights
        (..., H, T, S), otherwise None: then PyTorch's fused attention is used,
        which never writes them out. Raises ValueError when shapes do not fit.
        """
        q = self.split_heads(self.w_q(self.checked(query, "query")))
        if cache is None:
            k, v = self.project(key, value)
        else:
            k, v = cache.project(self, key, value)
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            heads, weights = scaled_dot_product_attention(q, k, v, mask, dropout)
        else:
            shape = scores_shape(q, k, v)
            mask = None if mask is None else checked_mask(mask, shape)
            heads = F.scaled_dot_product_attention(q, k, v, mask, dropout)
            weights = None
        return self.w_o(heads.transpose(-3, -2).flatten(-2)), weights

    def project(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all heads, (..., H, S, D/H) each."""
        k = self.split_heads(self.w_k(self.checked(key, "key")))
        v = self.split_heads(self.w_v(self.checked(value, "value")))
        return k, v

    def split_heads(self, x: Tensor) -> Tensor:
        """Deal the columns out to the heads: (..., T, D) -> (..., H, T, D/H)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)

    def checked(self, x: Tensor, name: str) -> Tensor:
        """Return `x` if it has shape (..., tokens, D), or say which one it has."""
        if x.ndim < 2 or x.shape[-1] != self.d_model:
            raise ValueError(
                f"{name} needs shape (..., tokens, {self.d_model}), not"
                f" {tuple(x.shape)}"
            )
        return x


@contextmanager
def record_weights(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Keep the weights of every `MultiHeadAttention` inside `model` while it runs.

    Yields a dictionary that each forward pass fills: from the name of the module
    (as in `model.named_modules()`) to its weights (..., H, T, S), detached. Raises
    TypeError for a compiled model, which runs none of this: pass the original.

    Defined in chapter 7, "A window".
    """
    if hasattr(model, "_orig_mod"):
        raise TypeError("the model is compiled: record the original's weights")
    weights: dict[str, Tensor] = {}
    handles = []

    def ask(_module: nn.Module, arguments: tuple, keywords: dict) -> tuple:
        return arguments[:4], keywords | {"need_weights": True}

    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):

            def keep(
                _m: nn.Module, _a: tuple, output: tuple, name: str = name
            ) -> None:
                weights[name] = output[1].detach()

            handles.append(module.register_forward_pre_hook(ask, with_kwargs=True))
            handles.append(module.register_forward_hook(keep))
    try:
        yield weights
    finally:
        for handle in handles:
            handle.remove()
