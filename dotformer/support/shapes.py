"""Shapes and dtypes in signatures, checked at each call."""

import inspect
import sys
import threading
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

from beartype import beartype
from jaxtyping import jaxtyped

Function = TypeVar("Function", bound=Callable[..., Any])


class Calls(threading.local):
    """Whether this thread is inside a checked method."""

    inside = False


CALLS = Calls()


@cache
def checked(function: Function) -> Function:
    """The function with its check."""
    return jaxtyped(typechecker=beartype)(function)


def shapes(function: Function) -> Function:
    """Check the arguments and the result of a function against its jaxtyping annotations.

    `Float[Tensor, "*batch T d_k"]` wants a floating-point tensor with an axis T, an axis d_k, and any axes before
    them. A name stands for one size throughout a call; `"*#batch #T"` broadcasts. What does not fit raises a TypeError
    that names the argument, its dtype and shape, and the size of each axis so far.

    A check costs some 50 microseconds. A method is checked where you call it, and not where another checked method
    does: a model checks what it is given once, and its layers trust it. The check steps aside while PyTorch compiles or
    exports the function, and everywhere if the environment has JAXTYPING_DISABLE=1.
    """
    method = next(iter(inspect.signature(function).parameters), "") == "self"

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        return call_checked(function, method, arguments, keywords)

    return call


# Not inside `shapes`: a function of a notebook that goes to another process can take neither check nor state along.
def call_checked(function: Callable[..., Any], method: bool, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Call a function, with its check unless PyTorch compiles or another checked method calls this one."""
    torch = sys.modules.get("torch")  # Part I has NumPy only
    if (torch is not None and torch.compiler.is_compiling()) or (method and CALLS.inside):
        return function(*arguments, **keywords)
    before, CALLS.inside = CALLS.inside, CALLS.inside or method
    try:
        return checked(function)(*arguments, **keywords)
    finally:
        CALLS.inside = before
