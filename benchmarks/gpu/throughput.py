"""Training tokens per second over the batch, until one does not fit into memory."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from benchmarks.gpu.ladder import WORKLOADS, cost
from benchmarks.gpu.run import Measurement, Row, Run
from dotformer.devices import Setup, measure

PAIRS = {"cuda": (1, 4, 16, 64, 256, 1024, 1600), "cpu": (1, 4, 16, 64), "quick": (1, 3)}
STEPS = {"cuda": 8, "cpu": 4, "quick": 2}
SETUP = Setup("bfloat16", fused_attention=True, fused_optimizer=True, vocabulary_multiple=64)
RECORDED = replace(SETUP, compiled=True, cuda_graphs=True)


def batch(run: Run, pairs: int) -> Measurement:
    """What a step on so many pairs of sentences costs."""
    workload, setup = replace(WORKLOADS[run.sizes], pairs=pairs), RECORDED if run.sizes == "cuda" else SETUP
    found = measure(workload, setup, run.device, STEPS[run.sizes])
    return {"what": "batch", "pairs": pairs, "length": workload.length, **cost(run, setup, found)}


def rows(run: Run) -> Iterator[Row]:
    """Larger and larger batches, up to the first that fails."""
    for number, pairs in enumerate(PAIRS[run.sizes], 1):
        yield Row(f"{pairs:,} pairs", partial(batch, run, pairs), 12.0)
        if len(run.measured["throughput"]) < number:
            return
