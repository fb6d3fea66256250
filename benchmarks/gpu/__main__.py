"""All that the book wants from a GPU, measured in nine minutes: `python -m benchmarks.gpu`.

The sections, the most valuable first:

- roofline: memory bandwidth, peak compute by dtype, ridge points, and where some operations lie
- ladder: chapter 20's ladder, with the paper's base model, and the kernels of two rungs
- attention: time and memory over length, by backend
- peers: the comparison with other libraries (benchmarks/peers.py)
- throughput: training tokens per second over the batch

Each writes book/measurements/SECTION-cuda.json, after every row anew, with device, driver and versions: what is
measured when a run is cut short stays. "measurements" are the rows, "errors" those that failed and why, "skipped" those
for which there was no time. Times are seconds (medians, then quartiles), memory is bytes; "mfu" is relative to the peak
measured in the roofline section of the same run, "mfu_of_nominal" to the vendor's. Needs nothing but PyTorch and what
the package's own modules import; a section that lacks a library says so, and the others go on.

`--device cpu` measures a processor instead: the first three sections, with a small model, in SECTION-cpu.json.
`--quick` takes toy sizes, and writes to _build/measurements.
"""

import argparse
import gc
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.gpu.run import Row, Run
from benchmarks.results import FOLDER
from dotformer.support.memory import keep_freed_memory

SECTIONS = {"roofline": 0.14, "ladder": 0.4, "attention": 0.14, "peers": 0.24, "throughput": 0.08}  # shares of the time
ON_A_CPU = ("roofline", "ladder", "attention")


def rows(section: str, run: Run) -> Iterator[Row]:
    """The rows of a section, whose module is imported only now."""
    module = import_module(f"benchmarks.gpu.{section}")
    gc.collect()
    gc.freeze()  # what is there by now stays, and collecting between rows need not look through it
    yield from module.rows(run)


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says, and what it leaves out."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=9.0, help="no row begins that may end later (default: 9)")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="default: book/measurements")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, help="default: all; on a CPU the first three")
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see whether it all runs")
    given = parser.parse_args(arguments)
    if given.output is None:
        given.output = FOLDER.parents[1] / "_build" / "measurements" if given.quick else FOLDER
    if given.sections is None:
        given.sections = ON_A_CPU if given.device == "cpu" and not given.quick else SECTIONS
    return given


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure section by section; time that one leaves is there for the next."""
    given = options(arguments)
    keep_freed_memory()
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device here; --device cpu measures this processor")
    run = Run(torch.device(given.device), "quick" if given.quick else given.device, 60 * given.minutes, given.output)
    print("\n".join(f"{key}: {value}" for key, value in run.machine.items()), flush=True)
    chosen = [name for name in SECTIONS if name in given.sections]
    total, share = sum(SECTIONS[name] for name in chosen), 0.0
    for name in chosen:
        share += SECTIONS[name]
        run.section(name, partial(rows, name), deadline=run.limit * share / total)
    print(f"{run.elapsed():.0f} s; see {given.output}", flush=True)


if __name__ == "__main__":
    main()
