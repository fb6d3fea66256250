"""Tangled from chapters/04_self_attention.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dotformer.by_hand.arrays import as_real_array
from dotformer.by_hand.similarity import similarity_matrix
from dotformer.by_hand.softmax import softmax, weighted_average


def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    mask: ArrayLike | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Attention: each query receives a blend of the values, weighted by their keys.

    `query` has shape (..., T, d_k), `key` (..., S, d_k) and `value` (..., S, d_v),
    where leading axes broadcast. `mask` is boolean and broadcasts to (..., T, S);
    True means *may attend*. Returns the output (..., T, d_v) and the weights
    (..., T, S). Raises TypeError when the mask is not boolean, and ValueError when
    shapes do not fit, scores overflow, or a query may attend to nothing. After
    Vaswani and others (2017), equation 1.

    Defined in chapter 4, "The definition".
    """
    query, key, value = (
        as_real_array(a, name)
        for a, name in [(query, "query"), (key, "key"), (value, "value")]
    )
    scores = similarity_matrix(query, key) / np.sqrt(query.shape[-1])
    if value.ndim < 2 or value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"key and value need equally many rows, not {key.shape}, {value.shape}"
        )
    if mask is not None:
        scores = np.where(checked_mask(mask, scores.shape), scores, -np.inf)
    weights = softmax(scores)
    return weighted_average(weights, value), weights


def checked_mask(mask: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Broadcast a mask to the `shape` (..., T, S) of the scores, or say why not.

    Raises TypeError when it is not boolean, and ValueError when it does not
    broadcast or leaves a query nothing to attend to.

    Defined in chapter 4, "The definition".
    """
    try:
        mask = np.asarray(mask)
    except ValueError as error:
        raise ValueError(
            "mask is ragged: its rows have different lengths"
        ) from error
    if mask.dtype != np.bool_:
        raise TypeError(
            f"mask must be boolean, True for may attend, but it is {mask.dtype}"
        )
    try:
        mask = np.broadcast_to(mask, shape)
    except ValueError as error:
        raise ValueError(
            f"mask of shape {mask.shape} does not broadcast to scores of {shape}"
        ) from error
    if not mask.any(axis=-1).all():
        raise ValueError(
            f"mask of shape {mask.shape} leaves a query nothing to attend to"
        )
    return mask


def self_attention(
    x: ArrayLike,
    w_q: ArrayLike,
    w_k: ArrayLike,
    w_v: ArrayLike,
    mask: ArrayLike | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Attention of a sequence to itself: three projections of the same vectors.

    `x` has shape (..., T, D), `w_q` and `w_k` (D, d_k), `w_v` (D, d_v); `mask` as
    in `scaled_dot_product_attention`. Returns the output (..., T, d_v) and the
    weights (..., T, T). Raises ValueError when a matrix does not fit `x`, or `w_q`
    and `w_k` do not fit each other.

    Defined in chapter 4, "The definition".
    """
    x = as_real_array(x, "x")
    matrices = {
        name: as_real_array(w, name)
        for name, w in [("w_q", w_q), ("w_k", w_k), ("w_v", w_v)]
    }
    for name, w in matrices.items():
        if x.ndim < 2 or w.ndim != 2 or w.shape[0] != x.shape[-1]:
            raise ValueError(
                f"{name} does not fit x: x has shape {x.shape}, {name} {w.shape}"
            )
    if matrices["w_q"].shape != matrices["w_k"].shape:
        raise ValueError(
            f"w_q and w_k differ in shape: {np.shape(w_q)} and {np.shape(w_k)}"
        )
    query, key, value = (x @ w for w in matrices.values())
    return scaled_dot_product_attention(query, key, value, mask)
