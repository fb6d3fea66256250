"""Times: of contenders in turns, so that whatever else a machine does meets all of them alike, and of one alone."""

import time
from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dotformer.support.benchmark import synchronize

OURS = "dotformer"
ENGINE = "CTranslate2"  # in C++: a contender, and nobody's peer


def finished(device: torch.device) -> float:
    """The time in seconds once the device has done all it was given."""
    synchronize(device)
    return time.perf_counter()


def in_turns(
    contenders: dict[str, Callable[[], object]], device: torch.device, seconds: float, warm_up: int = 2, least: int = 5
) -> dict[str, list[float]]:
    """The seconds each contender took, round by round.

    In a round each has one turn, and every round begins with another one. `warm_up` rounds do not count; then there are
    at least `least` rounds, and as many as fit into `seconds`.
    """
    names, times = list(contenders), {name: [] for name in contenders}
    end = finished(device) + seconds
    for n in count():
        first = n % len(names)
        for name in names[first:] + names[:first]:
            start = finished(device)
            contenders[name]()
            times[name].append(finished(device) - start)
        if n + 1 == warm_up:
            end = finished(device) + seconds
        if n + 1 >= warm_up + least and finished(device) >= end:
            return {name: taken[warm_up:] for name, taken in times.items()}


def summary(times: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """For each contender its median and quartiles in milliseconds, and the same of its ratio to the fastest peer.

    A ratio is that of two turns of one round. Peers are those whose name begins with neither "dotformer" nor
    "CTranslate2"; the fastest is the one with the lowest median.
    """
    peers = [name for name in times if not name.startswith((OURS, ENGINE))]
    fastest = np.array(times[min(peers, key=lambda name: np.median(times[name]))])
    found = {}
    for name, taken in times.items():
        low, middle, high = np.percentile(np.array(taken) * 1000, [25, 50, 75])
        ratios = np.percentile(np.array(taken) / fastest, [25, 50, 75])
        found[name] = {
            "ms": rounded(middle),
            "quartiles": [rounded(low), rounded(high)],
            "ratio": rounded(ratios[1]),
            "ratio_quartiles": [rounded(ratios[0]), rounded(ratios[2])],
        }
    return found


def repeated(
    work: Callable[[], object], device: torch.device, seconds: float = 0.25, warm_up: int = 3, least: int = 5
) -> dict[str, Any]:
    """The median and the quartiles of the seconds that some work takes.

    It is repeated for about so many `seconds`, 5 to 100 times. A GPU does all repetitions in one go and its own clock
    is read between them, so that its waiting for the next is not counted unless it has to wait.
    """
    for _ in range(warm_up):
        work()
    start = finished(device)
    work()
    once = finished(device) - start
    repeats = max(least, min(100, int(seconds / max(once, 1e-6))))
    if device.type == "cuda":
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        events[0].record()
        for event in events[1:]:
            work()
            event.record()
        finished(device)
        times = [before.elapsed_time(after) / 1000 for before, after in pairwise(events)]
    else:
        clock = [finished(device)]
        for _ in range(repeats):
            work()
            clock.append(finished(device))
        times = [after - before for before, after in pairwise(clock)]
    low, middle, high = np.percentile(times, [25, 50, 75])
    return {"seconds": float(middle), "quartiles": [float(low), float(high)], "repeats": repeats}


def peak_memory(work: Callable[[], object], device: torch.device) -> int | None:
    """Bytes of a GPU that some work allocates at most, beside what there is; None on another device."""
    if device.type != "cuda":
        return None
    finished(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    finished(device)
    return torch.cuda.max_memory_allocated(device) - before


def rounded(number: float) -> float:
    """A number with four digits that count."""
    return float(f"{number:.4g}")


def difference(outputs: dict[str, Tensor], tolerance: float) -> float:
    """The largest difference between the first output and another, relative to the first's largest entry.

    Raises ValueError when it is above `tolerance`, and names the output.
    """
    first, *_ = outputs.values()
    worst = 0.0
    for name, output in outputs.items():
        if output.shape != first.shape:
            raise ValueError(f"{name} has shape {tuple(output.shape)}, not {tuple(first.shape)}")
        apart = float((output - first).abs().max() / first.abs().max())
        if not apart <= tolerance:
            raise ValueError(f"{name} differs by {apart:.1e} of the largest entry")
        worst = max(worst, apart)
    return worst
