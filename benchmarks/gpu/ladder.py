"""The ladder of chapter 20: what a training step costs on each rung, and its costliest kernels on two of them."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.gpu.roofline import utilisation
from benchmarks.gpu.run import Measurement, Row, Run
from dotformer.devices import costliest
from dotformer.ladder import Setup, Workload, climb, feed, rungs, setups, trainer
from dotformer.transformer import TransformerConfig

SHARED = {"dropout": 0.0, "share_embeddings": True, "max_length": 128}
WORKLOADS = {  # on a GPU, the paper's base model
    "cuda": Workload(TransformerConfig(37_003, 37_003, **SHARED), 100, 64),
    "cpu": Workload(TransformerConfig(6_001, 6_001, 2, 2, d_model=128, num_heads=4, d_ff=512, **SHARED), 32, 24),
    "quick": Workload(TransformerConfig(51, 51, 1, 1, d_model=16, num_heads=2, d_ff=32, **SHARED), 4, 6),
}
STEPS = {"cuda": 20, "cpu": 10, "quick": 2}


def changes(sizes: str) -> dict[str, dict[str, Any]]:
    """The rungs; a quick run leaves the compiler out, which takes a minute on a CPU."""
    return {name: change for name, change in rungs().items() if sizes != "quick" or not change.get("compiled")}


def cost(run: Run, setup: Setup, found: dict[str, Any]) -> Measurement:
    """What `dotformer.ladder.measure` found, in the words of all measurements, and the model FLOPs utilisation."""
    low, middle, high = found["seconds"]
    flops_per_second = found["operations_per_second"]
    return {
        **{"dtype": setup.precision, "first_step": found["first_step"], "seconds": middle, "quartiles": [low, high]},
        **{"tokens_per_second": found["tokens_per_second"], "flops_per_second": flops_per_second},
        **utilisation(run, setup.precision, flops_per_second),
        "peak_memory": found["memory"],
    }


def rung(run: Run, climbed: Iterator[dict[str, Any]], setup: Setup) -> Measurement:
    """The next rung. Raises RuntimeError when it cannot run here."""
    found = next(climbed, {"error": "the ladder ended on an earlier rung"})
    if "error" in found:
        raise RuntimeError(found["error"])
    errors = {name: found[name] for name in ("loss_error", "gradient_error")}
    size = {"pairs": WORKLOADS[run.sizes].pairs * setup.batch, "length": WORKLOADS[run.sizes].length}
    return {"what": "rung", "name": found["name"], **size, **cost(run, setup, found), **errors}


def kernels(run: Run, name: str) -> Measurement:
    """The kernels on which a step on a rung spends most time, and their seconds."""
    workload, setup = WORKLOADS[run.sizes], setups(changes(run.sizes))[name]
    step, _ = trainer(workload, setup, run.device)
    batches = feed(workload, setup, run.device)
    return {"what": "kernels", "name": name, "kernels": costliest(lambda: step(next(batches)), run.device, shown=12)}


def rows(run: Run) -> Iterator[Row]:
    """Each rung, then the kernels of the first and of the fastest."""
    climbed = climb(WORKLOADS[run.sizes], changes(run.sizes), run.device, STEPS[run.sizes])
    compiled = None
    for name, setup in setups(changes(run.sizes)).items():
        shapes = setup.compiled and (setup.batch, setup.vocabulary_multiple)
        yield Row(name, partial(rung, run, climbed, setup), 60.0 if shapes and shapes != compiled else 8.0)
        compiled = shapes
    measured = [row for row in run.measured["ladder"] if row["what"] == "rung"]
    if measured:
        fastest = max(measured, key=lambda row: row["tokens_per_second"])["name"]
        for name in dict.fromkeys([measured[0]["name"], fastest]):
            yield Row(f"kernels of {name}", partial(kernels, run, name), 15.0)
