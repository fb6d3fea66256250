"""Tangled from chapters/07_learning.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dotformer.by_hand.arrays import as_real_array
from dotformer.by_hand.attention import (
    scaled_dot_product_attention as attend_by_hand,
)


def attention_gradients(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    d_output: ArrayLike,
    mask: ArrayLike | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Gradients of a loss for query, key and value, from that for the output.

    `query` has shape (..., T, d_k), `key` (..., S, d_k), `value` (..., S, d_v), all
    with the same leading axes, and `d_output` (..., T, d_v). Returns an array for
    each of the three, in its shape. Raises ValueError when shapes do not fit; for
    `mask` and its errors see `scaled_dot_product_attention`.

    Defined in chapter 7, "The definition".
    """
    query, key, value, d_output = (
        as_real_array(a, name)
        for a, name in [
            (query, "query"),
            (key, "key"),
            (value, "value"),
            (d_output, "d_output"),
        ]
    )
    if not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        raise ValueError(
            "query, key and value need the same leading axes, not"
            f" {query.shape}, {key.shape}, {value.shape}"
        )
    output, weights = attend_by_hand(query, key, value, mask)
    if d_output.shape != output.shape:
        raise ValueError(
            f"d_output needs the shape of the output, {output.shape}, not"
            f" {d_output.shape}"
        )
    d_value = weights.swapaxes(-1, -2) @ d_output
    d_weights = d_output @ value.swapaxes(-1, -2)
    average = (weights * d_weights).sum(axis=-1, keepdims=True)
    d_scores = weights * (d_weights - average) / np.sqrt(query.shape[-1])
    return d_scores @ key, d_scores.swapaxes(-1, -2) @ query, d_value
