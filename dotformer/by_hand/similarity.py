"""Tangled from chapters/02_similarity.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dotformer.by_hand.arrays import as_real_array


def dot(a: ArrayLike, b: ArrayLike) -> float:
    """Dot product of two vectors: multiply entry by entry, add up.

    `a` and `b` have shape (D,). Raises ValueError when they are not vectors of the
    same width.

    Defined in chapter 2, "Multiply and add".
    """
    a, b = as_real_array(a, "a"), as_real_array(b, "b")
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(
            f"a and b must be vectors of one width, not {a.shape} and {b.shape}"
        )
    return float((a * b).sum())


def normalize(vectors: ArrayLike) -> NDArray[np.float64]:
    """Scale every vector to length 1; its direction stays.

    `vectors` has shape (..., D), and so has the result. Raises ValueError for a
    vector of zeros: it has no direction.

    Defined in chapter 2, "Direction and length".
    """
    vectors = as_real_array(vectors, "vectors")
    if vectors.ndim == 0 or vectors.shape[-1] == 0:
        raise ValueError(
            f"vectors need at least one entry each, but have shape {vectors.shape}"
        )
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    if (largest == 0).any():
        raise ValueError("a vector of zeros has no direction to normalize")
    vectors = vectors / largest  # now no square can overflow, or vanish
    return vectors / np.sqrt((vectors**2).sum(axis=-1, keepdims=True))


def cosine_similarity(a: ArrayLike, b: ArrayLike) -> float:
    """Cosine of the angle between two vectors: their dot product at length 1.

    `a` and `b` have shape (D,). Raises ValueError when the shapes differ or one of
    them is a vector of zeros.

    Defined in chapter 2, "Direction and length".
    """
    cosine = dot(normalize(a), normalize(b))
    return min(max(cosine, -1.0), 1.0)  # rounding can pass 1 by a hair


def similarity_matrix(queries: ArrayLike, keys: ArrayLike) -> NDArray[np.float64]:
    """Dot product of every query with every key.

    `queries` has shape (..., T, D) and `keys` (..., S, D), where leading axes
    broadcast. The result has shape (..., T, S): queries are rows, keys are columns.
    Raises ValueError when the widths D differ, the leading axes do not fit, or a
    dot product overflows. For cosines, `normalize` both first.

    Defined in chapter 2, "A whole sentence at once".
    """
    queries, keys = as_real_array(queries, "queries"), as_real_array(keys, "keys")
    shapes = f"queries have shape {queries.shape}, keys {keys.shape}"
    if queries.ndim < 2 or keys.ndim < 2:
        raise ValueError(
            f"queries and keys need at least two axes, (tokens, width): {shapes}"
        )
    if queries.shape[-1] != keys.shape[-1] or queries.shape[-1] == 0:
        raise ValueError(
            f"queries and keys must have the same width, at least 1: {shapes}"
        )
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            table = queries @ keys.swapaxes(-1, -2)  # the last two axes transposed
    except ValueError as error:
        raise ValueError(
            f"the leading axes of queries and keys do not broadcast: {shapes}"
        ) from error
    if not np.isfinite(table).all():
        raise ValueError(
            "queries and keys are so large that their dot products overflow"
        )
    return table
