"""Tangled from chapters/03_softmax.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from jaxtyping import Float, Real

from dotformer.support.scores import check_scores
from dotformer.support.shapes import shapes


@shapes
def softmax(
    scores: Real[np.ndarray, "*batch S"], axis: int = -1
) -> Float[np.ndarray, "*batch S"]:
    """Turn scores into weights: numbers from 0 to 1 that sum to 1 along `axis`.

    A score of minus infinity gets the weight 0. Raises ValueError when a row holds
    only those, when a score is plus infinity or NaN, and when there is none.

    Defined in chapter 3, "From scores to shares".
    """
    highest = scores.max(axis=axis, keepdims=True).astype(float)
    check_scores(highest)
    powers = np.exp(scores - highest)
    return powers / powers.sum(axis=axis, keepdims=True)


@shapes
def weighted_average(
    weights: Real[np.ndarray, "*queries S"], values: Real[np.ndarray, "S d_v"]
) -> Float[np.ndarray, "*queries d_v"]:
    """Blend the rows of `values`, once for each row of `weights`.

    Raises ValueError when a weight is negative, or the weights of a row do not sum
    to 1 (to 1e-5, so that weights computed in float32 pass).

    Defined in chapter 3, "The blend".
    """
    if (weights < 0).any() or not np.allclose(weights.sum(axis=-1), 1):
        raise ValueError("weights must be at least 0 and sum to 1 in each row")
    return weights.astype(float) @ values


@shapes
def softmax_jacobian(
    weights: Real[np.ndarray, "*batch S"],
) -> Float[np.ndarray, "*batch S S"]:
    """Derivative of every weight with respect to every score: diag(w) - w w^T.

    Entry (i, j) says how fast weight i rises with score j.

    Defined in chapter 3, "How far do weights move?".
    """
    w_i = weights[..., :, None]  # (..., S, 1)
    w_j = weights[..., None, :]  # (..., 1, S)
    return w_i * (np.eye(weights.shape[-1]) - w_j)  # (..., S, S)
