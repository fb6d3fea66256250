"""Runs cells of JavaScript in the notebook, by V8, so that what a page will compute can be held against Python.

A cell that begins with `%%js` is handed to one context, which keeps what the cells before have defined. `call` calls a
function of theirs. The context has what the language has and nothing of a browser: no document, no network.
"""

import atexit
from functools import cache
from typing import Any

from IPython import get_ipython
from py_mini_racer import JSUndefined, MiniRacer


@cache
def context() -> MiniRacer:
    """The one context of this process, closed at its end: V8's threads would now and then keep the process alive."""
    started = MiniRacer()
    atexit.register(started.close)
    return started


def run(code: str, line: str = "") -> None:
    """Execute code; print its value, if it has one. An error is JavaScript's, with its message."""
    value = context().eval(code)
    if value is not JSUndefined and not callable(value):
        print(value)


def call(function: str, *arguments: Any) -> Any:
    """What a function returns; arguments and result pass as JSON.

    Raises what V8 raises: JSEvalException with the message of the error.
    """
    return context().call(function, *arguments)


if shell := get_ipython():
    shell.register_magic_function(lambda line, cell: run(cell, line), "cell", "js")
