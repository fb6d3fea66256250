"""Shapes and dtypes in signatures, checked at each call."""

import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

from beartype import beartype
from jaxtyping import jaxtyped

Function = TypeVar("Function", bound=Callable[..., Any])


@cache  # not made by `shapes`: a function of a notebook that goes to another process cannot take its check along
def checked(function: Function) -> Function:
    """The function with its check."""
    return jaxtyped(typechecker=beartype)(function)


def shapes(function: Function) -> Function:
    """Check the arguments and the result of a function against its jaxtyping annotations.

    `Float[Tensor, "*batch T d_k"]` wants a floating-point tensor with an axis T, an axis d_k, and any axes before
    them. A name stands for one size throughout a call; `"*#batch #T"` broadcasts. What does not fit raises a TypeError
    that names the argument, its dtype and shape, and the size of each axis so far.

    A call costs some 50 microseconds more, so decorate what others call, not what a loop calls. The check steps aside
    while PyTorch compiles or exports the function, and everywhere if the environment has JAXTYPING_DISABLE=1.
    """

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        torch = sys.modules.get("torch")  # Part I has NumPy only
        if torch is not None and torch.compiler.is_compiling():
            return function(*arguments, **keywords)
        return checked(function)(*arguments, **keywords)

    return call
