"""Tangled from chapters/01_why_attention.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def as_real_array(
    values: ArrayLike, name: str, *, infinite: bool = False
) -> NDArray[np.float64]:
    """Turn `values` into a float64 array, or say in one line why not.

    `name` is what the error calls the argument. Raises TypeError for text, complex
    numbers and ragged lists, and ValueError where an entry is NaN or, unless
    `infinite` allows it, infinite.

    Defined in chapter 1, "Three cells".
    """
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise TypeError(
            f"{name} is ragged: its rows have different lengths"
        ) from error
    if array.dtype.kind not in "biuf":  # boolean, integer, unsigned, floating
        raise TypeError(
            f"{name} must hold real numbers, but its dtype is {array.dtype}"
        )
    array = array.astype(np.float64)
    if np.isnan(array).any():
        raise ValueError(
            f"{name} holds NaN: nothing can be computed from a missing number"
        )
    if not infinite and np.isinf(array).any():
        raise ValueError(f"{name} holds an infinite entry")
    return array
