"""How far a run has come: its batches from a position on, its loss and its speed."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor
from torch.utils.data import IterableDataset
from tqdm import tqdm

from dotformer.support.processes import rank

Batch = tuple[Tensor, Tensor]  # tokens of sources (B, S) and of targets (B, T)
Row = dict[str, float]  # figures by name: a row of a history
Position = tuple[int, int]  # in the data: the epoch, and how many of its batches have been taken


def stream(
    batches: Callable[[int], Iterable[Batch]], position: Position, accumulation_steps: int = 1
) -> Iterator[tuple[Position, list[Batch]]]:
    """Epoch after epoch of batches from a position on, as many in a list as make a step, with the position after them.

    Raises ValueError when an epoch is empty, or too short for the position.
    """
    (epoch, taken), group = position, []
    while True:
        n = 0
        for n, batch in enumerate(batches(epoch), 1):
            if n > taken:
                group.append(batch)
            if len(group) == accumulation_steps:
                yield (epoch, n), group
                group = []
        if not n or taken > n:
            raise ValueError(f"epoch {epoch} has {n} batches, of which {taken} have been taken")
        epoch, taken = epoch + 1, 0


class Stream(IterableDataset):
    """The batches that a function gives, for PyTorch's loader."""

    def __init__(self, batches: Callable[[], Iterable[Batch]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches())


def steps_after(history: Sequence[Row], last: int, progress: bool) -> tqdm:
    """The steps that a run has still to make, by number, up to the last; if wanted, with a progress bar on rank 0."""
    done = int(history[-1]["step"]) if history else 0
    return tqdm(range(done + 1, last + 1), initial=done, total=last, disable=not progress or rank() > 0)


class Meter:
    """Counts loss and tokens since it was made."""

    def __init__(self) -> None:
        self.losses, self.tokens, self.start = [], 0, time.perf_counter()

    def add(self, loss: Tensor, tokens: int) -> None:
        """Count a step: its summed loss, which stays on its device, and how many tokens that is of."""
        self.losses.append(loss)
        self.tokens += tokens

    def row(self, step: int, position: Position, learning_rate: float) -> Row:
        """A row of a history: where the run is, its learning rate, the loss a token, and tokens a second.

        Raises FloatingPointError when the loss of a step is not finite.
        """
        summed = sum(map(float, self.losses))
        if not math.isfinite(summed):
            raise FloatingPointError(f"a loss or a gradient has not been finite, in the steps up to {step}")
        loss, speed = summed / self.tokens, self.tokens / (time.perf_counter() - self.start)
        told = {"step": step, "epoch": position[0], "learning_rate": learning_rate}
        return told | {"loss": loss, "tokens_per_second": speed}


def validation_row(found: Row) -> Row:
    """What a validation has found, under the names that it has in a history."""
    return {f"validation_{name}": float(value) for name, value in found.items()}
