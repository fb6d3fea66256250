"""What generation needs of a model, and what must hold before it chooses a token."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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


class Constrained:
    """Walks along with a `Decoding`, and gives no probability to what may not follow.

    `symbols` are the texts of the tokens that may be written at all. `may_follow` is given the number of a sentence and
    what has been written of it, and says which symbols may come next.
    """

    def __init__(
        self,
        state: Decoding,
        symbols: Mapping[int, str],
        may_follow: Callable[[int, Sequence[str]], Iterable[str]],
    ) -> None:
        self.state, self.symbols, self.may_follow = state, symbols, may_follow
        self.special_ids = state.special_ids
        self.tokens = {symbol: token for token, symbol in symbols.items()}
        self.rows: list[tuple[int, tuple[str, ...]]] = [(n, ()) for n in range(len(state))]

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def step(self, tokens: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        """Logits of what may follow, and minus infinity for what may not."""
        for row, token in enumerate(tokens.tolist()):
            if token in self.symbols:
                n, written = self.rows[row]
                self.rows[row] = n, (*written, self.symbols[token])
        logits = self.state.step(tokens)
        barred = torch.ones_like(logits, dtype=torch.bool)
        for row, (n, written) in enumerate(self.rows):
            possible = self.tokens.keys() & set(self.may_follow(n, written))
            barred[row, [self.tokens[symbol] for symbol in possible]] = False
        return logits.masked_fill(barred, -math.inf)

    def select(self, rows: Int[Tensor, " M"]) -> None:
        """Keep these rows, in this order."""
        self.state.select(rows)
        self.rows = [self.rows[n] for n in rows.tolist()]


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
