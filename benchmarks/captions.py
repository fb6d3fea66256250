"""The translator of captions beside recurrent ones: `python -m benchmarks.captions --device auto --jobs 4`.

The transformer of configs/multi30k-en-de.toml and three counterparts with as many parameters, on the same data, in the
same batches. Each kind is trained with each of the same rates for a fraction of the steps; its two best rates, on
validation, then get all of them, and a BLEU score. Takes days of two cores, or ten minutes of a GPU that several
processes can share. Whatever is done is kept in book/measurements/captions.json, and not done again.
"""

import argparse
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.results import FOLDER, save
from classroom.measured import measured
from dotformer.command_line.commands import device_named
from dotformer.command_line.runs import Run
from dotformer.training import Trainer, evaluate, pair_batches
from dotformer.translation import bleu

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
KINDS = {
    "transformer": "multi30k-en-de.toml",
    "gru, attention": "multi30k-en-de-gru.toml",
    "lstm, attention": "multi30k-en-de-lstm.toml",
    "gru, no attention": "multi30k-en-de-gru-without-attention.toml",
}
RATES = (1.25e-3, 2.5e-3, 5e-3, 1e-2)
SEARCH, FULL = 2000, 9000  # steps
Job = tuple[str, float, int]  # kind, learning rate, steps


def attempt(job: Job, folder: Path, device: str) -> dict[str, Any]:
    """Train a kind with a rate for some steps: its validations, and after all steps its score."""
    kind, rate, steps = job
    torch.set_num_threads(1)
    run = Run(CONFIGS / KINDS[kind], folder)  # all share the tokenizers that lie there
    translator = run.translator()
    config = replace(run.training, steps=steps, learning_rate=rate)
    pairs, held_out = (run.numbered(translator, part) for part in ("train", "validation"))
    batches = partial(pair_batches, pairs, max_tokens=config.max_tokens, seed=config.seed)
    validate = partial(evaluate, batches=list(pair_batches(held_out, max_tokens=config.max_tokens)))
    rows = Trainer(translator.model, config, device).train(batches, validate, progress=False)
    found: dict[str, Any] = dict(zip(("kind", "learning_rate", "steps"), job, strict=True))
    found["parameters"] = sum(p.numel() for p in translator.model.parameters())
    found |= {name: [row[name] for row in rows] for name in ("step", "validation_loss", "validation_accuracy")}
    if steps == FULL:
        translations = translator.translate([pair.source for pair in run.corpus.test])
        found["bleu"], found["signature"] = bleu(translations, [pair.target for pair in run.corpus.test])
    return found


def loss(row: dict[str, Any]) -> float:
    """The last loss on validation."""
    return row["validation_loss"][-1]


def best_rates(kind: str, rows: Iterable[dict[str, Any]]) -> list[float]:
    """The two learning rates of a kind that did best in the search."""
    tried = [row for row in rows if (row["kind"], row["steps"]) == (kind, SEARCH)]
    return [row["learning_rate"] for row in sorted(tried, key=loss)[:2]]


def main() -> None:
    """Try every kind with every rate, then with its best rates for longer; print and save what came out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="how many to train at a time")
    args = parser.parse_args()
    device, begun = device_named(args.device), (FOLDER / "captions.json").exists()
    rows = measured("captions")["runs"] if begun else []

    def do(jobs: Iterable[Job]) -> None:
        done = {(row["kind"], row["learning_rate"], row["steps"]) for row in rows}
        at_work = [pool.submit(attempt, job, Path(folder), device) for job in jobs if job not in done]
        for future in as_completed(at_work):
            row = future.result()
            print(
                row["kind"],
                row["learning_rate"],
                row["steps"],
                f"loss {loss(row):.3f}",
                row.get("bleu", ""),
                flush=True,
            )
            rows.append(row)
            rows.sort(key=lambda one: (one["steps"], list(KINDS).index(one["kind"]), one["learning_rate"]))
            save("captions", {"device": device, "runs": rows})

    with TemporaryDirectory() as folder, ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        run = Run(CONFIGS / KINDS["transformer"], Path(folder))
        run.save(run.translator())
        do(product(KINDS, RATES, [SEARCH]))
        do([(kind, rate, FULL) for kind in KINDS for rate in best_rates(kind, rows)])


if __name__ == "__main__":
    main()
