"""Tangled from chapters/06_many_heads.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dotformer.by_hand.arrays import as_real_array
from dotformer.by_hand.attention import scaled_dot_product_attention


def split_heads(x: ArrayLike, num_heads: int) -> NDArray[np.float64]:
    """Deal the columns of x out to heads: (..., T, D) -> (..., H, T, D/H).

    Head h gets columns h D/H to (h+1) D/H. Raises ValueError when D is not
    divisible by the number of heads.

    Defined in chapter 6, "The definition".
    """
    x = as_real_array(x, "x")
    if x.ndim < 2 or num_heads < 1 or x.shape[-1] % num_heads:
        raise ValueError(
            f"x of shape {x.shape} cannot be split into {num_heads} heads"
        )
    pieces = x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads)
    return pieces.swapaxes(-2, -3)


def merge_heads(heads: ArrayLike) -> NDArray[np.float64]:
    """Set the heads' outputs side by side again: (..., H, T, d) -> (..., T, H d).

    Undoes `split_heads`. Raises ValueError when there is no head axis.

    Defined in chapter 6, "The definition".
    """
    heads = as_real_array(heads, "heads")
    if heads.ndim < 3:
        raise ValueError(
            f"heads need the axes (heads, tokens, width), not {heads.shape}"
        )
    pieces = heads.swapaxes(-2, -3)  # (..., T, H, d): first swap, then reshape
    return pieces.reshape(*pieces.shape[:-2], pieces.shape[-2] * pieces.shape[-1])


def multi_head_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    w_q: ArrayLike,
    w_k: ArrayLike,
    w_v: ArrayLike,
    w_o: ArrayLike,
    num_heads: int,
    mask: ArrayLike | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Attention in several heads: project, split, attend, merge, mix.

    `query` has shape (..., T, D), `key` and `value` (..., S, D), and the four
    matrices (D, D); for self-attention pass the same array three times. `mask` is
    boolean, True for *may attend*, and broadcasts to (..., H, T, S). Returns the
    output (..., T, D) and the weights (..., H, T, S). Raises ValueError when shapes
    do not fit or D is not divisible by `num_heads`. After Vaswani and others
    (2017), section 3.2.2.

    Defined in chapter 6, "The definition".
    """
    inputs = {"query": query, "key": key, "value": value}
    matrices = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
    matrices = {name: as_real_array(w, name) for name, w in matrices.items()}
    d_model = matrices["w_q"].shape[-1] if matrices["w_q"].ndim else 0
    for name, w in matrices.items():
        if w.shape != (d_model, d_model):
            raise ValueError(
                f"{name} must have shape {(d_model,) * 2}, not {w.shape}"
            )
    for name, array in inputs.items():
        inputs[name] = as_real_array(array, name)
        if inputs[name].ndim < 2 or inputs[name].shape[-1] != d_model:
            shape = inputs[name].shape
            raise ValueError(
                f"{name} needs shape (..., tokens, {d_model}), not {shape}"
            )
    q, k, v = (
        split_heads(array @ matrix, num_heads)
        for array, matrix in zip(inputs.values(), matrices.values(), strict=False)
    )
    heads, weights = scaled_dot_product_attention(q, k, v, mask)
    return merge_heads(heads) @ matrices["w_o"], weights
