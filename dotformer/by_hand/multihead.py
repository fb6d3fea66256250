"""Tangled from chapters/06_many_heads.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from jaxtyping import Bool, Float, Real

from dotformer.by_hand.attention import scaled_dot_product_attention
from dotformer.support.shapes import shapes


@shapes
def split_heads(
    x: Real[np.ndarray, "*batch T D"], num_heads: int
) -> Real[np.ndarray, "*batch H T d_k"]:
    """Cut the columns of x into heads: head h gets columns h d_k to (h+1) d_k.

    Raises ValueError when D is not divisible by the number of heads.

    Defined in chapter 6, "In code".
    """
    if num_heads < 1 or x.shape[-1] % num_heads:
        raise ValueError(f"width {x.shape[-1]} does not make {num_heads} heads")
    return x.reshape(*x.shape[:-1], num_heads, -1).swapaxes(-2, -3)


@shapes
def merge_heads(
    heads: Real[np.ndarray, "*batch H T d_k"],
) -> Real[np.ndarray, "*batch T D"]:
    """Set the heads' outputs side by side again: undoes `split_heads`.

    Defined in chapter 6, "In code".
    """
    pieces = heads.swapaxes(-2, -3)  # (..., T, H, d_k): first swap, then reshape
    return pieces.reshape(*pieces.shape[:-2], -1)


@shapes
def multi_head_attention(
    query: Real[np.ndarray, "*#batch T D"],
    key: Real[np.ndarray, "*#batch S D"],
    value: Real[np.ndarray, "*#batch S D"],
    w_q: Real[np.ndarray, "D D"],
    w_k: Real[np.ndarray, "D D"],
    w_v: Real[np.ndarray, "D D"],
    w_o: Real[np.ndarray, "D D"],
    num_heads: int,
    mask: Bool[np.ndarray, "... #T #S"] | None = None,
) -> tuple[Float[np.ndarray, "... T D"], Float[np.ndarray, "... H T S"]]:
    """Attention in several heads: project, split, attend, merge, mix.

    `mask` is True where a query may attend, and broadcasts to (..., H, T, S).
    Raises ValueError when D is not divisible by `num_heads`, or a query may attend
    to nothing. After Vaswani and others (2017), section 3.2.2.

    Defined in chapter 6, "In code".
    """
    q, k, v = (
        split_heads(x.astype(float) @ w, num_heads)
        for x, w in [(query, w_q), (key, w_k), (value, w_v)]
    )
    heads, weights = scaled_dot_product_attention(q, k, v, mask)
    return merge_heads(heads) @ w_o, weights
