"""Properties that results have: each takes (output, *arguments) and returns None, or a message for the reader."""

from collections.abc import Callable
from typing import Any

import numpy as np

from classroom.values import form, plain, position, shown

Property = Callable[..., str | None]

CLOSE = 1e-6


def rows_sum_to_one(output: Any, *arguments: Any) -> str | None:
    """The last axis sums to 1, as attention weights do."""
    weights = plain(output)
    if _ones(weights.sum(axis=-1)):
        return None
    if weights.ndim >= 2 and _ones(weights.sum(axis=-2)):
        return "your rows do not sum to 1, but your columns do: did the softmax run over queries?"
    if weights.ndim >= 2 and _ones(weights.sum()):
        return "your rows do not sum to 1, but all entries together do: divide each row by its own sum"
    sums = np.atleast_1d(weights.sum(axis=-1))
    place = np.unravel_index(np.abs(sums - 1).argmax(), sums.shape)
    which = "your weights sum" if weights.ndim == 1 else f"your row {', '.join(str(int(i)) for i in place)} sums"
    return f"{which} to {shown(sums[place])}, not to 1: is each row divided by its own sum?"


def non_negative(output: Any, *arguments: Any) -> str | None:
    """No entry is below 0."""
    values = plain(output)
    if (values >= 0).all():
        return None
    place = np.unravel_index(values.argmin(), values.shape)
    return f"your result has a negative entry{_at(place, values)}, and it should have none"


def finite(output: Any, *arguments: Any) -> str | None:
    """No entry is NaN or infinite."""
    values = plain(output)
    if np.isfinite(values).all():
        return None
    place = tuple(np.argwhere(~np.isfinite(values))[0])
    return f"your result has an entry that is not a finite number{_at(place, values)}: did an exponential overflow?"


def symmetric(output: Any, *arguments: Any) -> str | None:
    """The matrix equals its transpose, as similarities of words with each other do."""
    matrix = plain(output)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        return f"your result is {form(matrix)}: it should be square, with one row and one column a word"
    if np.allclose(matrix, matrix.T, rtol=CLOSE, atol=CLOSE):
        return None
    row, column = np.unravel_index(np.abs(matrix - matrix.T).argmax(), matrix.shape)
    here, there = shown(matrix[row, column]), shown(matrix[column, row])
    return (
        f"your matrix is not symmetric: row {row}, column {column} holds {here}, but row {column}, column {row} holds "
        f"{there}: is the similarity of two words the same both ways?"
    )


def same_shape_as_first_argument(output: Any, first: Any, *arguments: Any) -> str | None:
    """The result has the shape of the first argument."""
    if np.shape(plain(output)) == np.shape(plain(first)):
        return None
    return f"your result is {form(output)}, but its input is {form(first)}: they should have one shape"


def _ones(sums: Any) -> bool:
    return bool(np.allclose(sums, 1, rtol=CLOSE, atol=CLOSE))


def _at(place: tuple, values: np.ndarray) -> str:
    return f" ({shown(values[place])}{' at ' + position(place) if values.ndim else ''})"
