"""Contenders timed in turns, so that whatever else a machine does in the meantime meets all of them alike."""

import time
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

OURS = "dotformer"


def finished(device: torch.device) -> float:
    """The time in seconds once the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
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

    A ratio is that of two turns of one round. Peers are those whose name does not begin with "dotformer"; the fastest
    is the one with the lowest median.
    """
    peers = [name for name in times if not name.startswith(OURS)]
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
