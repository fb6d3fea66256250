"""Looking at attention weights from outside, without touching the model."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def record_weights(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Keep the weights of every attention inside `model` while it runs.

    An attention is a module whose `forward` has an option `need_weights` and returns (output, weights). Yields a
    dictionary that each forward pass fills: from the name of the module (as in `model.named_modules()`) to its weights
    (..., H, T, S), detached. Raises TypeError for a compiled model, which runs no hooks: pass the original.
    """
    if hasattr(model, "_orig_mod"):
        raise TypeError("the model is compiled: record the original's weights")
    weights: dict[str, Tensor] = {}
    hooks = []
    for name, module in model.named_modules():
        signature = inspect.signature(module.forward)
        if "need_weights" in signature.parameters:

            def ask(_: nn.Module, args: tuple, options: dict, signature: inspect.Signature = signature) -> tuple:
                given = signature.bind(*args, **options)
                given.arguments["need_weights"] = True
                return given.args, given.kwargs

            def keep(_: nn.Module, __: tuple, output: Any, name: str = name) -> None:
                weights[name] = output[1].detach()

            hooks.append(module.register_forward_pre_hook(ask, with_kwargs=True))
            hooks.append(module.register_forward_hook(keep))
    try:
        yield weights
    finally:
        for hook in hooks:
            hook.remove()
