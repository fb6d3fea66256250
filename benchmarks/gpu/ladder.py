"""The ladder of chapter 20: what a training step costs on each rung, and the kernels of two of them."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.gpu.roofline import utilisation
from benchmarks.gpu.run import Measurement, Row, Run
from dotformer.devices import Setup, measure, rungs, training_step
from dotformer.support.benchmark import Workload, climb, cumulative, profile_operators
from dotformer.transformer import TransformerConfig

SHARED = {"dropout": 0.0, "share_embeddings": True, "max_length": 128}
WORKLOADS = {  # on a GPU, the paper's base model
    "cuda": Workload(TransformerConfig(37_003, 37_003, **SHARED), 100, 64),
    "cpu": Workload(TransformerConfig(6_001, 6_001, 2, 2, d_model=128, num_heads=4, d_ff=512, **SHARED), 32, 24),
    "quick": Workload(TransformerConfig(51, 51, 1, 1, d_model=16, num_heads=2, d_ff=32, **SHARED), 4, 6),
}
STEPS = {"cuda": 20, "cpu": 10, "quick": 2}


def setups(sizes: str) -> dict[str, Setup]:
    """The setup of each rung; a quick run leaves the compiler out, which takes a minute on a CPU."""
    changes = {name: change for name, change in rungs().items() if sizes != "quick" or not change.get("compiled")}
    return cumulative(Setup(), changes)


def cost(run: Run, setup: Setup, found: dict[str, Any]) -> Measurement:
    """What `dotformer.devices.measure` found, as all measurements have it, and the model FLOPs utilisation."""
    low, middle, high = found["seconds"]
    return {
        **{"dtype": setup.precision, "first_step": found["first_step"], "seconds": middle, "quartiles": [low, high]},
        **{name: found[name] for name in ("tokens_per_second", "flops_per_second")},
        **utilisation(run, setup.precision, found["flops_per_second"]),
        "peak_memory": found["peak_memory"],
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
    step, _ = training_step(WORKLOADS[run.sizes], setups(run.sizes)[name], run.device)
    return {"what": "kernels", "name": name, "kernels": profile_operators(step, run.device, shown=12)}


def rows(run: Run) -> Iterator[Row]:
    """Each rung, then the kernels of the first and of the fastest."""
    each = partial(measure, WORKLOADS[run.sizes], device=run.device, steps=STEPS[run.sizes])
    climbed, compiled = climb(each, setups(run.sizes)), None
    for name, setup in setups(run.sizes).items():
        shapes = setup.compiled and (setup.batch, setup.vocabulary_multiple)
        yield Row(name, partial(rung, run, climbed, setup), 60.0 if shapes and shapes != compiled else 8.0)
        compiled = shapes
    measured = [row for row in run.measured["ladder"] if row["what"] == "rung"]
    if measured:
        fastest = max(measured, key=lambda row: row["tokens_per_second"])["name"]
        for name in dict.fromkeys([measured[0]["name"], fastest]):
            yield Row(f"kernels of {name}", partial(kernels, run, name), 15.0)
