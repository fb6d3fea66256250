"""Tangled from chapters/20_one_gpu.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from jaxtyping import Float, Real

from dotformer.by_hand.similarity import similarity_matrix
from dotformer.support.scores import check_scores
from dotformer.support.shapes import shapes


@shapes
def blockwise_attention(
    query: Real[np.ndarray, "T d_k"],
    key: Real[np.ndarray, "S d_k"],
    value: Real[np.ndarray, "S d_v"],
    block: int = 128,
) -> Float[np.ndarray, "T d_v"]:
    """Attention that holds (T, block) weights at a time, never (T, S).

    The output and the errors are those of `scaled_dot_product_attention`. Raises
    ValueError besides when `block` is below 1. After Milakov and Gimelshein (2018),
    Rabe and Staats (2021), Dao and others (2022).

    Defined in chapter 20, "Attention without the score matrix".
    """
    if block < 1:
        raise ValueError(f"block must be at least 1, not {block}")
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
    check_scores(best)
    return blend / total
