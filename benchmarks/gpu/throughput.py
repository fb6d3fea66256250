"""Training tokens per second over the batch, until one does not fit into memory."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from benchmarks.gpu.ladder import WORKLOADS, cost
from benchmarks.gpu.run import Measurement, Row, Run
from dotformer.devices import Setup, measure

PAIRS = {"cuda": (1, 4, 16, 64, 256, 512, 1024, 2048, 4096), "cpu": (1, 4, 16, 64), "quick": (1, 3)}
STEPS = {"cuda": 8, "cpu": 4, "quick": 2}
SETUP = Setup("bfloat16", fused_attention=True, fused_optimizer=True, vocabulary_multiple=64)  # nothing is compiled


def batch(run: Run, pairs: int) -> Measurement:
    """What a step on so many pairs of sentences costs."""
    workload = replace(WORKLOADS[run.sizes], pairs=pairs)
    found = measure(workload, SETUP, run.device, STEPS[run.sizes])
    return {"what": "batch", "pairs": pairs, "length": workload.length, **cost(run, SETUP, found)}


def rows(run: Run) -> Iterator[Row]:
    """Larger and larger batches, up to the first that fails."""
    for number, pairs in enumerate(PAIRS[run.sizes], 1):
        yield Row(f"{pairs:,} pairs", partial(batch, run, pairs), 8.0)
        if len(run.measured["throughput"]) < number:
            return
