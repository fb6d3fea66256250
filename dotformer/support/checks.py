"""Checks of values that no annotation can say, one line each where they are used."""

from collections.abc import Sequence, Sized

import torch
from torch import Tensor


def check_positive(**numbers: float) -> None:
    """Raise ValueError, which names it, when one of the numbers is not above 0."""
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name} must be positive, not {number}")


def check_rows(rows: Sequence[Sized]) -> None:
    """Raise ValueError, which says which, when there is no row or one is empty."""
    empty = [n for n, row in enumerate(rows) if not len(row)]
    if empty or not len(rows):
        raise ValueError(f"rows {empty} of {len(rows)} are empty" if empty else "there is no row")


def check_real(real: Tensor) -> None:
    """Raise ValueError, which says which, when rows (B, S) are nothing but padding; not on a GPU, nor compiled."""
    if real.device.type == "cpu" and not torch.compiler.is_compiling() and not real.any(dim=1).all():
        empty = (~real.any(dim=1)).nonzero().flatten().tolist()
        raise ValueError(f"empty sentences in rows {empty}: nothing but padding")
