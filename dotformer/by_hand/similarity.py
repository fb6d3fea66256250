"""Tangled from chapters/02_similarity.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from jaxtyping import Float, Real

from dotformer.support.shapes import shapes


@shapes
def dot(a: Real[np.ndarray, " D"], b: Real[np.ndarray, " D"]) -> float:
    """Dot product of two vectors: multiply entry by entry, add up.

    Defined in chapter 2, "Multiply and add".
    """
    return float((a.astype(float) * b).sum())


@shapes
def normalize(
    vectors: Real[np.ndarray, "*batch D"],
) -> Float[np.ndarray, "*batch D"]:
    """Scale every vector to length 1; its direction stays.

    Raises ValueError for a vector of zeros, and for one with NaN or infinity.

    Defined in chapter 2, "Direction and length".
    """
    largest = np.abs(vectors.astype(float)).max(axis=-1, keepdims=True, initial=0)
    if not ((largest > 0) & (largest < np.inf)).all():
        raise ValueError("a vector of zeros, NaN or infinity has no direction")
    vectors = vectors / largest
    return vectors / np.sqrt((vectors**2).sum(axis=-1, keepdims=True))


@shapes
def cosine_similarity(
    a: Real[np.ndarray, " D"], b: Real[np.ndarray, " D"]
) -> float:
    """Cosine of the angle between two vectors: their dot product at length 1.

    Raises ValueError where `normalize` does.

    Defined in chapter 2, "Direction and length".
    """
    cosine = dot(normalize(a), normalize(b))
    return min(max(cosine, -1.0), 1.0)  # rounding can go slightly past 1


@shapes
def similarity_matrix(
    queries: Real[np.ndarray, "*#batch T D"],
    keys: Real[np.ndarray, "*#batch S D"],
) -> Float[np.ndarray, "*batch T S"]:
    """Dot product of every query with every key: queries are rows, keys columns.

    For cosines, `normalize` both first.

    Defined in chapter 2, "A whole sentence at once".
    """
    return queries.astype(float) @ keys.swapaxes(-1, -2)
