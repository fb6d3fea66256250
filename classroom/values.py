"""What an exercise check needs to know of a value: what form it has, whether it equals another, how to show it."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

SMALL = 12  # an array with at most this many entries is shown whole
NUMERIC = "biufc"  # NumPy's letters for booleans, integers, floats and complex numbers


def plain(value: Any) -> Any:
    """Return a value with its tensors as arrays, and numbers of any library as zero-dimensional arrays."""
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if hasattr(value, "detach"):  # a PyTorch tensor, told without importing PyTorch
        return value.detach().cpu().numpy()
    return np.asarray(value) if isinstance(value, bool | int | float | complex | np.generic) else value


def form(value: Any) -> str:
    """Say in words what a value is, not what it holds: 'an array of shape (2, 3)', 'a number', 'a list of 4 items'."""
    value = plain(value)
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return "a boolean" if value.dtype == bool else "a number"
        return f"an array of {'booleans of ' if value.dtype == bool else ''}shape {value.shape}"
    if isinstance(value, tuple):
        return f"{len(value)} values ({', '.join(form(item) for item in value)})"
    if isinstance(value, list):
        return f"a list of {len(value)} item{'' if len(value) == 1 else 's'}"
    names = {str: "a string", dict: "a dictionary", type(None): "None", type(...): "..."}
    return names.get(type(value), f"a value of type {type(value).__name__}")


def same(left: Any, right: Any, tolerance: float = 0.0) -> bool:
    """Whether two values have one form and equal content: numbers within the tolerance, NaN equal to NaN.

    Two objects of one type that does not define equality, such as random generators, count as the same.
    """
    left, right = plain(left), plain(right)
    if form(left) != form(right):
        return False
    if isinstance(left, tuple | list):
        return all(same(a, b, tolerance) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key], tolerance) for key in left)
    if isinstance(left, np.ndarray) and left.dtype.kind in NUMERIC:
        return bool(_close(left, right, tolerance).all())
    return type(left).__eq__ is object.__eq__ or bool(np.all(left == right))


def unfinite(value: Any) -> str | None:
    """Return 'NaN' or 'infinity' when a value holds one, else None."""
    value = plain(value)
    if isinstance(value, tuple | list):
        return next((found for item in value if (found := unfinite(item))), None)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fc" or np.isfinite(value).all():
        return None
    return "NaN" if np.isnan(value).any() else "infinity"


def difference(expected: Any, got: Any, tolerance: float) -> str:
    """Say in a line how two values of one form differ: both if they are small, else the entry that is furthest off."""
    expected, got = plain(expected), plain(got)
    if isinstance(expected, tuple):
        for number, (wanted, found) in enumerate(zip(expected, got, strict=True), start=1):
            if not same(wanted, found, tolerance):
                return f"in value {number}, {difference(wanted, found, tolerance)}"
    if isinstance(expected, np.ndarray) and expected.dtype.kind in NUMERIC and expected.size > SMALL:
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            off = np.nan_to_num(np.abs(expected.astype(complex) - got.astype(complex)), nan=np.inf)
        off[_close(expected, got, tolerance)] = 0
        place = np.unravel_index(off.argmax(), off.shape)
        return f"furthest off at {position(place)}: expected {_both(expected[place], got[place])}"
    return f"expected {_both(expected, got)}"


def position(index: tuple[int, ...]) -> str:
    """Name an entry's place: 'row 0, column 2' in a matrix, 'entry 3' in a vector, 'entry (0, 1, 2)' beyond."""
    place = tuple(int(i) for i in index)
    if len(place) == 2:
        return f"row {place[0]}, column {place[1]}"
    return f"entry {place[0] if len(place) == 1 else place}"


def shown(value: Any, digits: int = 4) -> str:
    """Return a value in one short line, the same on every run: no memory addresses, large arrays by their shape."""
    if callable(value) and not hasattr(value, "detach"):
        return name_of(value)
    value = plain(value)
    if isinstance(value, np.ndarray):
        if value.size > SMALL:
            return form(value)
        if value.ndim == 0 and value.dtype.kind == "f":
            return f"{value:.{digits}g}"
        text = np.array2string(value, precision=digits, separator=", ", suppress_small=True, max_line_width=10_000)
        return re.sub(r"\s+", " ", text).replace("[ ", "[")
    if isinstance(value, tuple | list):
        opening, closing = "()" if isinstance(value, tuple) else "[]"
        text = opening + ", ".join(shown(item, digits) for item in value) + closing
    else:
        text = without_addresses(repr(value))
    return text if len(text) <= 120 else f"{text[:117]}..."


def name_of(function: Callable) -> str:
    """Return a function's name, or its type's where it has none."""
    if isinstance(function, partial):
        return name_of(function.func)
    return getattr(function, "__name__", type(function).__name__)


def without_addresses(text: str) -> str:
    """Return a text without the memory addresses in it, which differ from run to run."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _close(left: np.ndarray, right: np.ndarray, tolerance: float) -> np.ndarray:
    return np.isclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)


def _both(expected: Any, got: Any) -> str:
    digits = next((digits for digits in (4, 8) if shown(expected, digits) != shown(got, digits)), 16)
    return f"{shown(expected, digits)}, got {shown(got, digits)}"
