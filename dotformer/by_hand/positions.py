"""Tangled from chapters/05_position.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from jaxtyping import Float, Real

from dotformer.support.shapes import shapes


@shapes
def frequencies(d_model: int) -> Float[np.ndarray, " pairs"]:
    """The angle by which each pair turns in a step: 10000^(-2i/D), i = 0, 1, ...

    Raises ValueError unless D is even and positive: a sine needs its cosine.

    Defined in chapter 5, "Sines and cosines".
    """
    if d_model < 2 or d_model % 2:
        raise ValueError(f"d_model must be even and positive, not {d_model}")
    return 10000.0 ** (-np.arange(0, d_model, 2) / d_model)


@shapes
def sinusoidal_encoding(
    positions: Real[np.ndarray, "*positions"] | int | float, d_model: int
) -> Float[np.ndarray, "*positions D"]:
    """Sines and cosines for any positions: entries 2i, 2i + 1 have frequency w_i.

    They may be fractions, or negative. Raises ValueError unless `d_model` is even.
    After Vaswani and others (2017), section 3.5.

    Defined in chapter 5, "Sines and cosines".
    """
    angles = np.multiply.outer(positions, frequencies(d_model))  # (..., D/2)
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1)  # (..., D/2, 2)
    return pairs.reshape(*angles.shape[:-1], d_model)


@shapes
def sinusoidal_positions(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    """The first `length` positions: see `sinusoidal_encoding`.

    Raises ValueError when `length` is less than 1 or `d_model` is not even.

    Defined in chapter 5, "Sines and cosines".
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, not {length}")
    return sinusoidal_encoding(np.arange(length), d_model)


@shapes
def rotation_matrix(shift: int | float, d_model: int) -> Float[np.ndarray, "D D"]:
    """The rotation that moves positions by `shift`: p[t + shift] = p[t] @ R.

    Raises ValueError unless `d_model` is even.

    Defined in chapter 5, "A step is a rotation".
    """
    matrix = np.zeros((d_model, d_model))
    for i, angle in enumerate(shift * frequencies(d_model)):
        sine, cosine = np.sin(angle), np.cos(angle)
        pair = slice(2 * i, 2 * i + 2)
        matrix[pair, pair] = [[cosine, -sine], [sine, cosine]]
    return matrix
