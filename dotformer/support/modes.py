"""Modes, of a model and of PyTorch, set and set back."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """A model without dropout and without gradients, and afterwards in the mode that it was in; its device."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        model.train(training)


@contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Matrix products of float32 rounded to TF32 ("high"), or not ("highest"), and afterwards as they were.

    As `torch.set_float32_matmul_precision`, while the block lasts.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
