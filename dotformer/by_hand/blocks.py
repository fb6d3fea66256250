"""Tangled from chapters/20_one_gpu.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dotformer.by_hand.arrays import as_real_array
from dotformer.by_hand.similarity import similarity_matrix


def blockwise_attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, block: int = 128
) -> NDArray[np.float64]:
    """Attention that holds (T, block) weights at a time, never (T, S).

    `query` (T, d_k), `key` (S, d_k) and `value` (S, d_v) give the output (T, d_v)
    of `scaled_dot_product_attention`. Raises ValueError when shapes do not fit,
    there is no key, or `block` is below 1. After Milakov and Gimelshein (2018),
    Rabe and Staats (2021), Dao and others (2022).

    Defined in chapter 20, "Attention without the table".
    """
    query, key, value = (
        as_real_array(a, name)
        for a, name in [(query, "query"), (key, "key"), (value, "value")]
    )
    if block < 1:
        raise ValueError(f"block must be positive, not {block}")
    flat = query.ndim == key.ndim == value.ndim == 2
    if not flat or not len(key) == len(value) > 0:
        raise ValueError(
            "query, key and value need 2 axes, key and value equally many rows, not"
            f" {query.shape}, {key.shape}, {value.shape}"
        )
    best = np.full((len(query), 1), -np.inf)  # the best score so far
    total, blend = np.zeros((len(query), 1)), np.zeros((len(query), value.shape[1]))
    for start in range(0, len(key), block):
        keys, values = key[start : start + block], value[start : start + block]
        scores = similarity_matrix(query, keys) / np.sqrt(query.shape[1])
        better = np.maximum(best, scores.max(axis=1, keepdims=True))
        shrink, weights = np.exp(best - better), np.exp(scores - better)
        total = total * shrink + weights.sum(axis=1, keepdims=True)
        blend = blend * shrink + weights @ values
        best = better
    return blend / total
