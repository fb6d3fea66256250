"""Checks an exercise: runs the reader's function beside a reference and, when they differ, names the likely mistake.

check(softmax, reference=..., cases=[(np.array([1.0, 2.0]),)], properties=[rows_sum_to_one], mistakes={"...": ...})
"""

import copy
import html
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from classroom.properties import (
    Property,
    finite,
    non_negative,
    rows_sum_to_one,
    same_shape_as_first_argument,
    symmetric,
)
from classroom.values import difference, form, name_of, same, shown, unfinite, without_addresses

__all__ = [
    "Property",
    "Verdict",
    "check",
    "finite",
    "non_negative",
    "rows_sum_to_one",
    "same_shape_as_first_argument",
    "symmetric",
]


@dataclass(frozen=True)
class Verdict:
    """What a check found: whether the function passed, and a message that says why or why not."""

    passed: bool
    message: str

    def __repr__(self) -> str:
        return f"{'✓' if self.passed else '✗'} {self.message}"

    def _repr_html_(self) -> str:
        message = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(repr(self)))
        style = f"margin: .75em 0; padding: .4em 1em; border-left: 4px solid {'#14795f' if self.passed else '#c0392b'}"
        return f'<div class="classroom-verdict mathjax_ignore tex2jax_ignore" style="{style}">{message}</div>'


class _NotYetError(Exception):
    """What is wrong with the reader's function, in words for the reader."""


def check(
    function: Callable,
    *,
    reference: Callable,
    cases: Iterable[tuple],
    properties: Sequence[Property] = (),
    mistakes: Mapping[str, Callable] | None = None,
    tolerance: float = 1e-9,
) -> Verdict:
    """Return whether `function` agrees with `reference` on every case and has every property, and if not, why.

    `cases` are tuples of arguments. A property takes (output, *arguments) and returns None or a message. `mistakes`
    maps a message to an implementation that makes that mistake: the message is given when the function does the same
    in every case. ValueError when the exercise itself is wrong: no cases, a reference that lacks a property, a mistake
    that no case shows.
    """
    cases, mistakes = list(cases), dict(mistakes or {})
    expected = [_call(reference, case) for case in cases]
    known = {message: [_attempt(mistake, case) for case in cases] for message, mistake in mistakes.items()}
    _validate_exercise(cases, expected, properties, known, tolerance)
    try:
        outputs = [_call_reader(function, case) for case in cases]
        _compare(function, cases, outputs, expected, properties, known, tolerance)
    except _NotYetError as problem:
        return Verdict(False, f"not yet: {problem}")
    inputs = "its one input" if len(cases) == 1 else f"all {len(cases)} inputs"
    return Verdict(True, f"right: `{name_of(function)}` gives what it should on {inputs}.")


def _call_reader(function: Callable, case: tuple) -> Any:
    given = copy.deepcopy(case)
    name = name_of(function)
    try:
        output = _quietly(function, given)
    except NotImplementedError as error:
        raise _NotYetError(f"`{name}` is still to be written{f' ({error})' if str(error) else ''}.") from error
    except Exception as error:
        what = without_addresses(f"{type(error).__name__}: {error}".strip().rstrip(":"))
        raise _NotYetError(f"`{_shown_call(name, case)}` raised {what}") from error
    if output is None or output is ...:
        raise _NotYetError(f"your function returned {output}. Is there a `return`?".replace("Ellipsis", "`...`"))
    for number, (before, after) in enumerate(zip(case, given, strict=True), start=1):
        if not same(before, after):
            raise _NotYetError(
                f"your function changed its input: argument {number} was {shown(before)} before the call and "
                f"{shown(after)} after it. Work on a copy, or build a new array."
            )
    return output


def _compare(
    function: Callable,
    cases: list[tuple],
    outputs: list,
    expected: list,
    properties: Sequence[Property],
    known: dict[str, list],
    tolerance: float,
) -> None:
    name = name_of(function)
    named = [message for message, results in known.items() if _all_same(outputs, results, tolerance)]
    for case, output, wanted in zip(cases, outputs, expected, strict=True):
        if form(output) != form(wanted):
            why = f" {named[0]}" if named else ""
            raise _NotYetError(f"`{_shown_call(name, case)}` gave {form(output)}, expected {form(wanted)}.{why}")
    if named:
        raise _NotYetError(named[0])
    for case, output, wanted in zip(cases, outputs, expected, strict=True):
        if (found := unfinite(output)) and not unfinite(wanted):
            raise _NotYetError(
                f"`{_shown_call(name, case)}` holds {found}. Did an exponential overflow, was something divided by "
                "zero, or was the logarithm of zero taken?"
            )
    for case, output in zip(cases, outputs, strict=True):
        for wanted_property in properties:
            if message := wanted_property(output, *case):
                raise _NotYetError(f"{message} (seen with `{_shown_call(name, case)}`)")
    for case, output, wanted in zip(cases, outputs, expected, strict=True):
        if not same(output, wanted, tolerance):
            raise _NotYetError(f"`{_shown_call(name, case)}`: {difference(wanted, output, tolerance)}")


def _validate_exercise(
    cases: list[tuple], expected: list, properties: Sequence[Property], known: dict[str, list], tolerance: float
) -> None:
    if not cases:
        raise ValueError("an exercise check needs at least one case")
    for case, wanted in zip(cases, expected, strict=True):
        for wanted_property in properties:
            if message := wanted_property(wanted, *case):
                raise ValueError(f"the reference itself lacks a property: {message}")
    for message, results in known.items():
        if _all_same(results, expected, tolerance):
            raise ValueError(f"no case shows the mistake {message!r}: it gives what the reference gives")


def _all_same(left: list, right: list, tolerance: float) -> bool:
    return all(same(a, b, tolerance) for a, b in zip(left, right, strict=True))


def _call(function: Callable, case: tuple) -> Any:
    return _quietly(function, copy.deepcopy(case))


def _attempt(mistake: Callable, case: tuple) -> Any:
    """What a mistaken implementation returns, or the exception it raises, which equals no output."""
    try:
        return _call(mistake, case)
    except Exception as error:
        return error


def _quietly(function: Callable, arguments: tuple) -> Any:
    """Call without warnings: the verdict says what overflowed, in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


def _shown_call(name: str, case: tuple) -> str:
    return f"{name}({', '.join(shown(argument) for argument in case)})"
