"""Tangled from chapters/03_softmax.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dotformer.by_hand.arrays import as_real_array


def softmax(scores: ArrayLike, axis: int = -1) -> NDArray[np.float64]:
    """Turn scores into weights: numbers from 0 to 1 that sum to 1 along `axis`.

    `scores` has any shape with at least one axis; the weights have the same shape.
    A score of minus infinity gets the weight 0. Raises ValueError when a row holds
    nothing else (there is nothing to attend to), when a score is plus infinity, and
    when `scores` has no such axis or no entry along it.

    Defined in chapter 3, "From scores to shares".
    """
    scores = as_real_array(scores, "scores", infinite=True)
    if not -scores.ndim <= axis < scores.ndim or scores.shape[axis] == 0:
        raise ValueError(
            f"nothing to weigh along axis {axis} of scores of shape {scores.shape}"
        )
    highest = scores.max(axis=axis, keepdims=True)
    if np.isposinf(highest).any():
        raise ValueError(
            "scores hold plus infinity: its share of the weight cannot be computed"
        )
    if np.isneginf(highest).any():
        raise ValueError(
            "a row of scores is all minus infinity: it has nothing to attend to"
        )
    shares = np.exp(scores - highest)
    return shares / shares.sum(axis=axis, keepdims=True)


def weighted_average(weights: ArrayLike, values: ArrayLike) -> NDArray[np.float64]:
    """Blend the rows of `values`, a blend for each row of `weights`.

    `weights` has shape (..., T, S), or (S,) for a single query, and `values`
    (..., S, D); leading axes broadcast. The result has shape (..., T, D), or
    (..., D). Raises ValueError when S differs, when a weight is negative, or when
    the weights of a row do not sum to 1 (to 1e-5, so that weights computed in
    float32 pass).

    Defined in chapter 3, "The blend".
    """
    weights = as_real_array(weights, "weights")
    values = as_real_array(values, "values")
    shapes = f"weights have shape {weights.shape}, values {values.shape}"
    if (
        weights.ndim == 0
        or values.ndim < 2
        or weights.shape[-1] != values.shape[-2]
    ):
        raise ValueError(
            f"weights need one column for each row of values: {shapes}"
        )
    if (weights < 0).any():
        raise ValueError(
            f"weights must not be negative, but the least is {weights.min():.6g}"
        )
    totals = weights.sum(axis=-1)
    if (np.abs(totals - 1) > 1e-5).any():
        worst = totals.flat[np.abs(totals - 1).argmax()]
        raise ValueError(
            f"weights must sum to 1 in each row, but a row sums to {worst:.6g}"
        )
    try:
        return weights @ values
    except ValueError as error:
        raise ValueError(
            f"the leading axes of weights and values do not broadcast: {shapes}"
        ) from error


def softmax_jacobian(weights: ArrayLike) -> NDArray[np.float64]:
    """Derivative of every weight with respect to every score: diag(w) - w w^T.

    `weights` has shape (..., S), as `softmax` returns them. The result has shape
    (..., S, S): entry (i, j) says how much weight i gains when score j rises.
    Raises ValueError when there is no axis to differentiate along.

    Defined in chapter 3, "How far do weights move?".
    """
    weights = as_real_array(weights, "weights")
    if weights.ndim == 0:
        raise ValueError("weights must have at least one axis")
    return weights[..., :, None] * (
        np.eye(weights.shape[-1]) - weights[..., None, :]
    )
