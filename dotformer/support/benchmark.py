"""What work costs: seconds, the operators that take them, and training steps in one way after another."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, count, repeat
from statistics import quantiles
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from dotformer.support.checks import check_positive
from dotformer.support.memory import saved_activations
from dotformer.support.progress import Batch

Setup = TypeVar("Setup")


def synchronize(device: torch.device | str) -> None:
    """Wait until a device has done all that it was asked to do."""
    device = torch.device(device)
    which = [] if device.type == "mps" else [device]  # a Mac has one
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(*which)


def benchmark(work: Callable[[], object], device: torch.device | str, repeats: int = 10) -> list[float]:
    """Seconds that each repetition of some work takes, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return times[1:]


@contextmanager
def quietly() -> Iterator[None]:
    """Throw away what is written to standard error, by any part of the process."""
    before, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nothing)


def profile_operators(
    work: Callable[[], object], device: torch.device | str, shown: int = 8
) -> list[tuple[str, float]]:
    """The operators on which some work spends most time, and the seconds of each without what it calls.

    On a CUDA device they are its kernels, elsewhere PyTorch's operators. The work is done three times before, to warm
    up.
    """
    for _ in range(3):
        work()
    synchronize(device)
    cuda = torch.device(device).type == "cuda"
    watched = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
    # its start and its end are reported there, whatever one asks for
    with quietly(), profile(activities=watched) as record:
        work()
        synchronize(device)
    own = "self_device_time_total" if cuda else "self_cpu_time_total"
    operators = [
        operator
        for operator in record.key_averages()
        if not cuda or (operator.device_type.name == "CUDA" and not operator.is_user_annotation)
    ]
    operators.sort(key=lambda operator: -getattr(operator, own))
    return [(operator.key, getattr(operator, own) / 1e6) for operator in operators[:shown]]


def timeline(work: Callable[[], object]) -> list[tuple[str, str, float, float]]:
    """The operators of some work in the order in which the host begins them; the work is done once before.

    Of each its name, that of the outermost one that has called it, and the seconds at which it starts and ends. An
    operator comes before those that it calls.
    """
    work()
    with quietly(), profile(activities=[ProfilerActivity.CPU]) as record:
        work()
    events = sorted(record.events(), key=lambda event: (event.time_range.start, -event.time_range.end))
    begin, found = events[0].time_range.start, []
    for event in events:
        outermost = event
        while outermost.cpu_parent is not None:
            outermost = outermost.cpu_parent
        start, end = ((moment - begin) / 1e6 for moment in (event.time_range.start, event.time_range.end))
        found.append((event.name, outermost.name, start, end))
    return found


def most_allocated(work: Callable[[], object]) -> int:
    """The most bytes of memory of the CPU that tensors take while some work is done, less those that were there."""
    with quietly(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    events = (event for event in record.profiler.kineto_results.events() if event.name() == "[memory]")
    changes = sorted((event.start_ns(), event.nbytes()) for event in events)  # what is freed counts below 0
    return max(accumulate((change for _, change in changes), initial=0))


# training steps


@dataclass(frozen=True)
class Workload:
    """What training steps compute: a model of a `config`, on `pairs` pairs of random tokens.

    Sentences have `length` tokens on each side, and the target one more. Raises ValueError when there are none, and
    when the model has dropout: no two steps would compute the same.
    """

    config: Any
    pairs: int
    length: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.config.dropout:
            raise ValueError(f"dropout must be 0, not {self.config.dropout}")
        check_positive(pairs=self.pairs, length=self.length)

    def tokens(self, times: int = 1) -> list[tuple[list[int], list[int]]]:
        """The tokens of all pairs, `times` over."""
        draw = torch.Generator().manual_seed(self.seed)
        top = min(self.config.source_vocab_size, self.config.target_vocab_size)
        rows = torch.randint(3, top, (self.pairs, 2 * self.length + 1), generator=draw).tolist()
        return [(row[: self.length], row[self.length :]) for row in rows] * times


class _Asked(TorchDispatchMode):
    """Counts how often a number is taken from a tensor."""

    count = 0

    def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        self.count += operator in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default)
        return operator(*given, **(named or {}))


def count_synchronisations(work: Callable[[], object]) -> int:
    """How often some work asks for the number in a tensor, for which Python must wait until the device has it."""
    with _Asked() as asked:
        work()
    return asked.count


def feed(
    epochs: Callable[[int], Iterable[Batch]],
    way: str,
    device: torch.device | str,
    prefetch: Callable[[Callable[[], Iterable[Batch]], bool], Iterable[Batch]],
) -> Iterator[Batch]:
    """Batches on a device, without end: those of epoch 0, of epoch 1, and so on.

    The first one is "held" on the device and given again and again; or each is "made" when it is wanted; or they are
    made "ahead", by `prefetch(batches, pin)`, where `pin` asks for memory from which a GPU can copy by itself.
    """
    batches = partial(in_a_row, epochs)
    if way == "held":
        batches = partial(repeat, tuple(side.to(device) for side in next(batches())))
    if way == "ahead":
        batches = partial(prefetch, batches, torch.device(device).type == "cuda")
    for batch in batches():
        yield tuple(side.to(device, non_blocking=True) for side in batch)


def in_a_row(epochs: Callable[[int], Iterable[Batch]]) -> Iterator[Batch]:
    """The batches of all epochs, one after another."""
    return chain.from_iterable(map(epochs, count()))


def measure_steps(
    step: Callable[[], tuple[Tensor, int]],
    model: nn.Module,
    flops: int,
    device: torch.device | str = "cpu",
    steps: int = 10,
) -> dict[str, Any]:
    """Make some training steps of a model, each of so many `flops`, and say what they cost.

    `step()` returns the summed loss and the number of targets; a source has as many tokens. Returns "loss", a target's
    mean; "gradients" of all parameters, on the CPU; "first_step", the seconds of the first, which may compile;
    "seconds", the quartiles of `steps` others; "tokens_per_second", of both sides, and "flops_per_second", at the
    median; and "peak_memory" in bytes: the most that was allocated on a CUDA device, elsewhere parameters, gradients,
    the optimiser's two moments, and the activations. Raises ValueError for fewer than 2 steps.
    """
    if steps < 2:
        raise ValueError(f"steps must be at least 2, not {steps}")
    cuda, times, kept = torch.device(device).type == "cuda", [], {}
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    for n in range(steps + 2):  # the first compiles, the second is watched
        watch = saved_activations(model) if n == 1 and not cuda else nullcontext(kept)
        synchronize(device)
        start = time.perf_counter()
        with watch as kept:
            loss, targets = step()
        synchronize(device)
        times.append(time.perf_counter() - start)
    quartiles = quantiles(times[2:], n=4, method="inclusive")  # never beyond what was measured
    counted = 4 * sum(p.nbytes for p in model.parameters()) + sum(kept.values())
    return {
        "loss": float(loss) / targets,
        "gradients": [p.grad.float().cpu() for p in model.parameters()],
        "first_step": times[0],
        "seconds": quartiles,
        "tokens_per_second": 2 * targets / quartiles[1],
        "flops_per_second": flops / quartiles[1],
        "peak_memory": torch.cuda.max_memory_allocated(device) if cuda else counted,
    }


def gradient_error(gradients: list[Tensor], right: list[Tensor]) -> float:
    """The norm of the difference of two gradients over that of the `right` one, whose missing rows are zeros."""
    whole = [F.pad(r, [0] * (2 * r.ndim - 1) + [len(g) - len(r)]) for g, r in zip(gradients, right, strict=True)]
    distances = [torch.linalg.vector_norm(g - r) for g, r in zip(gradients, whole, strict=True)]
    norms = [torch.linalg.vector_norm(r) for r in right]
    return float(torch.stack(distances).norm() / torch.stack(norms).norm())


def cumulative(setup: Setup, changes: dict[str, dict[str, Any]]) -> dict[str, Setup]:
    """What some changes make of a dataclass, one on top of the other, by name."""
    found = {}
    for name, change in changes.items():
        found[name] = setup = replace(setup, **change)
    return found


def climb(measure: Callable[[Setup], dict[str, Any]], setups: dict[str, Setup]) -> Iterator[dict[str, Any]]:
    """Measure one setup after another, and how far what it computes is from the first.

    `measure` returns at least the "loss" and the "gradients" of `measure_steps`. Yields, for each setup, its "name" and
    what was measured, with "loss_error" and "gradient_error", relative, in place of the gradients. A setup that cannot
    run here, for want of memory or of a compiler, has an "error" instead.
    """
    first = None
    for name, setup in setups.items():
        try:
            found = measure(setup)
        except RuntimeError as error:
            yield {"name": name, "error": str(error).strip().partition("\n")[0]}
            continue
        gradients = found.pop("gradients")
        loss, right = first = first or (found["loss"], gradients)
        errors = {"loss_error": abs(found["loss"] / loss - 1), "gradient_error": gradient_error(gradients, right)}
        yield {"name": name, **found, **errors}
