"""Tangled from chapters/04_self_attention.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from jaxtyping import Bool, Float, Real

from dotformer.by_hand.softmax import softmax
from dotformer.support.shapes import shapes


@shapes
def scaled_dot_product_attention(
    query: Real[np.ndarray, "*#batch T d_k"],
    key: Real[np.ndarray, "*#batch S d_k"],
    value: Real[np.ndarray, "*#batch S d_v"],
    mask: Bool[np.ndarray, "*#batch #T #S"] | None = None,
) -> tuple[Float[np.ndarray, "*batch T d_v"], Float[np.ndarray, "*#batch T S"]]:
    """Scaled dot-product attention: softmax(Q K^T / sqrt(d_k)) V, and its weights.

    `mask` is True where a query may attend. Raises ValueError when a query may
    attend to nothing, or the largest of its scores is NaN or infinity. After
    Vaswani and others (2017), equation 1.

    Defined in chapter 4, "Masks: leaving a word out".
    """
    scores = query.astype(float) @ key.swapaxes(-2, -1)
    scaled = scores / np.sqrt(query.shape[-1])
    if mask is not None:
        scaled = np.where(mask, scaled, -np.inf)
    weights = softmax(scaled)
    return weights @ value, weights


@shapes
def self_attention(
    x: Real[np.ndarray, "*batch T D"],
    w_q: Real[np.ndarray, "D d_k"],
    w_k: Real[np.ndarray, "D d_k"],
    w_v: Real[np.ndarray, "D d_v"],
    mask: Bool[np.ndarray, "*#batch #T #T"] | None = None,
) -> tuple[Float[np.ndarray, "*batch T d_v"], Float[np.ndarray, "*batch T T"]]:
    """Attention of a sequence to itself: three projections of the same vectors.

    `mask`, the results and the errors are those of `scaled_dot_product_attention`.

    Defined in chapter 4, "Masks: leaving a word out".
    """
    query, key, value = (x.astype(float) @ w for w in (w_q, w_k, w_v))
    return scaled_dot_product_attention(query, key, value, mask)
