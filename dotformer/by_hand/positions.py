"""Tangled from chapters/05_position.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dotformer.by_hand.arrays import as_real_array


def paces(d_model: int) -> NDArray[np.float64]:
    """How far each pair turns with a step: 10000^(-2i/D) for i = 0, 1, ...

    The result has shape (D/2,), in radians. Raises ValueError unless `d_model` is
    even and positive: a sine needs its cosine.

    Defined in chapter 5, "Sines and cosines".
    """
    if d_model < 2 or d_model % 2:
        raise ValueError(
            f"d_model must be even and at least 2, but it is {d_model}"
        )
    return 10000.0 ** (-np.arange(0, d_model, 2) / d_model)


def sinusoidal_encoding(positions: ArrayLike, d_model: int) -> NDArray[np.float64]:
    """Sines and cosines for any places: entries 2i and 2i + 1 turn at pace i.

    `positions` has any shape (...), and the result (..., D). Places count from 0;
    they may be fractions, or negative. Raises ValueError unless `d_model` is even.
    After Vaswani and others (2017), section 3.5.

    Defined in chapter 5, "Sines and cosines".
    """
    angles = as_real_array(positions, "positions")[..., None] * paces(d_model)
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1)  # (..., D/2, 2)
    return pairs.reshape(*angles.shape[:-1], d_model)


def sinusoidal_positions(length: int, d_model: int) -> NDArray[np.float64]:
    """The first `length` places, (length, D): see `sinusoidal_encoding`.

    Raises ValueError when `length` is less than 1 or `d_model` is not even.

    Defined in chapter 5, "Sines and cosines".
    """
    if length < 1 or length != int(length):
        raise ValueError(
            f"length must be a whole number from 1, but it is {length}"
        )
    return sinusoidal_encoding(np.arange(length), d_model)


def shift_matrix(shift: float, d_model: int) -> NDArray[np.float64]:
    """The rotation that moves places by `shift`: p[t + shift] = p[t] @ R.

    The result has shape (D, D), with a 2 by 2 rotation for each pair on its
    diagonal. Raises ValueError unless `d_model` is even.

    Defined in chapter 5, "A step is a rotation".
    """
    shift = as_real_array(shift, "shift")
    if shift.ndim:
        raise ValueError(
            f"shift must be one number, but its shape is {shift.shape}"
        )
    angles = shift * paces(d_model)
    matrix = np.zeros((d_model, d_model))
    for i, angle in enumerate(angles):
        sine, cosine = np.sin(angle), np.cos(angle)
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [
            [cosine, -sine],
            [sine, cosine],
        ]
    return matrix
