"""Tangled from chapters/07_learning.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from jaxtyping import Bool, Float, Real

from dotformer.by_hand.attention import (
    scaled_dot_product_attention as attend_by_hand,
)
from dotformer.support.shapes import shapes


@shapes
def attention_gradients(
    query: Real[np.ndarray, "*batch T d_k"],
    key: Real[np.ndarray, "*batch S d_k"],
    value: Real[np.ndarray, "*batch S d_v"],
    d_output: Real[np.ndarray, "*batch T d_v"],
    mask: Bool[np.ndarray, "*#batch #T #S"] | None = None,
) -> tuple[
    Float[np.ndarray, "*batch T d_k"],
    Float[np.ndarray, "*batch S d_k"],
    Float[np.ndarray, "*batch S d_v"],
]:
    """Gradients of a loss for query, key and value, from that for the output.

    `mask` and errors are those of `scaled_dot_product_attention`.

    Defined in chapter 7, "The backward pass, for all queries".
    """
    _, weights = attend_by_hand(query, key, value, mask)
    d_value = weights.swapaxes(-1, -2) @ d_output
    d_weights = d_output.astype(float) @ value.swapaxes(-1, -2)
    average = (weights * d_weights).sum(axis=-1, keepdims=True)
    d_scaled = weights * (d_weights - average)
    d_scores = d_scaled / np.sqrt(query.shape[-1])
    return d_scores @ key, d_scores.swapaxes(-1, -2) @ query, d_value
