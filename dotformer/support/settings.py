"""Settings in a dataclass: their types and their limits."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints


def check_settings(settings: Any, zero: Sequence[str] = (), shares: Sequence[str] = ()) -> None:
    """Give each field of a dataclass the type of its default, and check its limits.

    Numbers must be above 0, those of `zero` at least 0, and those of `shares` in [0, 1); a text must be one of those
    that a Literal lists. A number of NumPy becomes Python's, and 2.0 a whole number where one is wanted. Raises
    TypeError for a value of another type, and ValueError for one beyond its limits.
    """
    hints = get_type_hints(type(settings))
    for field in fields(settings):
        name, given, kind = field.name, getattr(settings, field.name), type(field.default)
        if isinstance(given, str) != (kind is str) or (kind is int and given % 1):
            raise TypeError(f"{name} must be of type {kind.__name__}, not {given!r}")
        object.__setattr__(settings, name, kind(given))
        if kind is str:
            choices = get_args(hints[name]) if get_origin(hints[name]) is Literal else (given,)
            if given not in choices:
                raise ValueError(f"{name} must be {' or '.join(choices)}, not {given!r}")
        elif name in shares:
            if not 0 <= given < 1:
                raise ValueError(f"{name} must be at least 0 and below 1, not {given}")
        elif name in zero:
            if not given >= 0:
                raise ValueError(f"{name} must be at least 0, not {given}")
        elif not given > 0:
            raise ValueError(f"{name} must be positive, not {given}")
