"""What generation needs of a model, and what must hold before it chooses a token."""

import math
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dotformer.support.checks import check_positive


class Decoding(Protocol):
    """N sentences that are being written, each in a row, which can be continued and selected.

    `step` reads a token of each row and returns logits of what may follow. `select` keeps the rows of these numbers, in
    this order; one may be there several times. `special_ids` are the tokens for padding, begin and end: generation
    never writes the first two, and stops at the third. It uses the state up.
    """

    special_ids: tuple[int, int, int]

    def __len__(self) -> int: ...

    def step(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N V"]: ...

    def select(self, rows: Int[Tensor, " M"]) -> None: ...


def check_evaluating(model: nn.Module) -> None:
    """Raise ValueError when the model is in training mode, where dropout would take part in every choice."""
    if model.training:
        raise ValueError("the model is in training mode: call model.eval()")


def checked_logits(logits: Tensor) -> Tensor:
    """A copy of logits (N, V), in float32 at least: half precision cannot tell all of them apart.

    Raises FloatingPointError when one of them is not a number.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    if logits.amax(dim=-1).isnan().any():
        raise FloatingPointError("the model's scores are not numbers (NaN)")
    return logits


def check_possible(logits: Tensor) -> None:
    """Raise ValueError when no token of a row of logits (N, V) may be chosen."""
    if (logits.amax(dim=-1) == -math.inf).any():
        raise ValueError("no token may follow: all scores are minus infinity")


def check_filters(temperature: float, top_k: int | None, top_p: float) -> None:
    """Raise ValueError for what tells no tokens from others, or all of them out."""
    if not (temperature > 0 and (top_k is None or top_k > 0) and 0 < top_p <= 1):
        raise ValueError(
            "temperature and top_k must be positive, top_p above 0 and at most 1, not"
            f" {temperature}, {top_k} and {top_p}"
        )


def check_search(max_length: int, beam: int = 1, alpha: float = 0.0) -> None:
    """Raise ValueError, which names it, for a number with which nothing can be written."""
    check_positive(max_length=max_length, beam=beam)
    if not alpha >= 0:
        raise ValueError(f"alpha must not be negative, and is {alpha}")


def check_room(length: int, max_length: int) -> None:
    """Raise ValueError when a model with `max_length` positions has read as many tokens, and is given another."""
    if length >= max_length:
        raise ValueError(f"more tokens than max_length {max_length}")
