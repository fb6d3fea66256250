"""Runs cells of JavaScript in the notebook, by V8, so that what a page will compute can be held against Python.

A cell that begins with `%%js` is handed to one context, which keeps what the cells before have defined. `call` calls a
function of theirs. The context has what the language has and nothing of a browser: no document, no network.
"""

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from IPython import get_ipython
from py_mini_racer import MiniRacer


@cache
def context() -> MiniRacer:
    """The one context of this process, closed at its end: V8's threads would now and then keep the process alive."""
    started = MiniRacer()
    atexit.register(started.close)
    return started


CELLS: list[str] = []  # what the notebook's cells have defined, in order


def run(code: str) -> None:
    """Execute code; print its value, if it has one. An error is JavaScript's, with its message."""
    value = context().eval(code)
    if isinstance(value, bool | int | float | str):
        print(value)


def call(function: str, *arguments: Any) -> Any:
    """What a function returns; arguments and result pass as JSON.

    Raises what V8 raises: JSEvalException with the message of the error.
    """
    return context().call(function, *arguments)


@contextmanager
def changed(line: str, other: str, more: str = "") -> Iterator[MiniRacer]:
    """A context of its own in which all cells have run, one of their lines being another; ended with the context.

    Raises ValueError unless the line is there once.
    """
    code = "\n".join(CELLS)
    if code.count(line) != 1:
        raise ValueError(f"{line!r} is there {code.count(line)} times")
    engine = MiniRacer()
    try:
        engine.eval(code.replace(line, other) + more)
        yield engine
    finally:
        engine.close()


def cell(line: str, code: str) -> None:
    """A cell of the notebook."""
    run(code)
    CELLS.append(code)


if shell := get_ipython():
    shell.register_magic_function(cell, "cell", "js")
