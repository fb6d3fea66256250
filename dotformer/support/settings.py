"""Settings in a dataclass: their types and their limits."""

from collections.abc import Sequence
from dataclasses import fields
from numbers import Real
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dotformer.support.checks import check_positive


def check_settings(settings: Any, zero: Sequence[str] = (), shares: Sequence[str] = ()) -> None:
    """Give each field of a dataclass the type that it is annotated with, and check its limits.

    Numbers must be above 0, those of `zero` at least 0, and those of `shares` in [0, 1); what is annotated with a
    Literal must be one of its values, and what is annotated with None too may be None. A number of NumPy becomes
    Python's, and 2.0 a whole number where one is wanted. Raises TypeError for a value of another type, and
    ValueError for one beyond its limits.
    """
    hints = get_type_hints(type(settings))
    for field in fields(settings):
        name, given, kind = field.name, getattr(settings, field.name), hints[field.name]
        if NoneType in get_args(kind):
            if given is None:
                continue
            [kind] = set(get_args(kind)) - {NoneType}
        if get_origin(kind) is Literal:
            if given not in get_args(kind):
                raise ValueError(f"{name} must be {' or '.join(get_args(kind))}, not {given!r}")
        elif kind in (int, float):
            if not isinstance(given, Real) or isinstance(given, bool) or (kind is int and given % 1):
                raise TypeError(f"{name} must be of type {kind.__name__}, not {given!r}")
            object.__setattr__(settings, name, kind(given))
            check_limits(name, kind(given), zero=name in zero, share=name in shares)
        elif not isinstance(given, kind):
            raise TypeError(f"{name} must be of type {getattr(kind, '__name__', kind)}, not {given!r}")


def check_limits(name: str, number: float, zero: bool, share: bool) -> None:
    """Raise ValueError unless a number is positive, or a share, or with `zero` at least 0."""
    if share:
        if not 0 <= number < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, not {number}")
    elif zero:
        if not number >= 0:
            raise ValueError(f"{name} must be at least 0, not {number}")
    else:
        check_positive(**{name: number})


def check_vocabularies(source_size: int, target_size: int, pad_id: int, shared: bool) -> None:
    """Raise ValueError unless both vocabularies have the padding, and one size if they share a table."""
    if pad_id >= min(source_size, target_size):
        raise ValueError(f"pad_id must be a token of both sides, not {pad_id}")
    if shared and source_size != target_size:
        raise ValueError(f"a shared table needs vocabularies of one size, not {source_size} and {target_size}")


def check_heads(d_model: int, num_heads: int, num_kv_heads: int) -> None:
    """Raise ValueError unless heads share out a vector in pairs of entries, and groups of them keys and values."""
    if d_model % num_heads:
        raise ValueError(f"{d_model} columns do not make {num_heads} heads")
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} heads cannot share {num_kv_heads} heads of keys and values")
    if d_model // num_heads % 2:
        raise ValueError(f"rotary positions turn pairs: {d_model // num_heads} entries a head are not even")
