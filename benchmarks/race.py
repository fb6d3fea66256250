"""A race of translators: the transformer beside recurrent models, each with settings of its own.

All learn the same pairs in the same batches for the same number of steps, and have about as many parameters. Settings
are chosen stage by stage, with one seed and on the validation set, each axis widened until its best value lies inside;
then they are judged with three seeds, on the test set.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch import nn

from benchmarks.results import FOLDER, save
from benchmarks.search import Settings, climb
from classroom.measured import measured
from dotformer.command_line.commands import device_named
from dotformer.command_line.models import new_translator
from dotformer.data.corpora import Corpus, Pair
from dotformer.recurrent import RecurrentSeq2Seq
from dotformer.support.recording import record_weights
from dotformer.tokens import BPETokenizer
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches
from dotformer.translation import Translator

SEEDS = range(3)
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"kind": "transformer"},
    "gru, attention": {"kind": "recurrent", "cell": "gru", "attention": True},
    "lstm, attention": {"kind": "recurrent", "cell": "lstm", "attention": True},
    "gru, no attention": {"kind": "recurrent", "cell": "gru", "attention": False},
    "lstm, no attention": {"kind": "recurrent", "cell": "lstm", "attention": False},
}
DRAWN = 1 / 8  # the size of an embedding's entries that is not scaled: 1 / sqrt(D), for D about 64
AXES = {
    "learning_rate": [7.5e-4 * 2**n for n in range(9)],
    "size": [1 / 16, DRAWN, 1 / 4, 1 / 2, 1, 2, 4, 8],
    "layers": [None, 1, 2, 3, 4, 5, 6],
    "dropout": [None, 0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5],
    "warmup": [25, 50, 100, 200, 400, 800, 1600],
    "norm_first": [None, False, True, None],  # of the transformer alone
}
TUNED = ["learning_rate", "size", "layers", "dropout"]  # with the warm-up that is here
WARMUP = 100
Figures = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """What is learnt, for how long, by models of which size, and in which stages their settings are chosen.

    `learnt` returns a corpus and two tokenizers. `validated` returns what is kept of a trained model in the search,
    beside its losses, and `judged` what is kept in the end. `chosen_by` is the loss of a row of the search. Functions
    must be those of a module.
    """

    learnt: Callable[[], tuple[Corpus, BPETokenizer, BPETokenizer]]
    validated: Callable[[Translator, Corpus], Figures]
    judged: Callable[[Translator, Corpus], Figures]
    chosen_by: Callable[[Figures], float]
    steps: int
    stages: Mapping[str, list[str]]
    models: tuple[str, ...] = tuple(MODELS)
    parameters: int = 260_000  # about
    max_tokens: int = 1024
    shape: Mapping[str, Any] = field(default_factory=dict)  # of every model


def shape(model: str, width: int, settings: Settings) -> dict[str, Any]:
    """The configuration of a model of some width, without its vocabularies and without its kind."""
    own = {"d_model": width, "dropout": settings["dropout"]}
    if MODELS[model]["kind"] == "transformer":
        depths = ("num_encoder_layers", "num_decoder_layers")
        sizes = {"num_heads": 4, "d_ff": 2 * width, "max_length": 256}
        own |= {"norm_first": settings.get("norm_first", False)}
        return own | dict.fromkeys(depths, settings["layers"]) | sizes
    return own | MODELS[model] | {"num_layers": settings["layers"]}


def translator_of(task: Task, model: str, settings: Settings, *tokenizers: BPETokenizer) -> Translator:
    """A fresh model of the width with which it has the number of parameters that comes nearest to the task's."""

    def made(width: int) -> Translator:
        options = shape(model, width, settings) | task.shape
        return new_translator(*tokenizers, options.pop("kind", "transformer"), options)

    with torch.device("meta"):
        width = min(range(24, 257, 4), key=lambda width: abs(parameters(made(width).model) - task.parameters))
    translator = made(width)
    scaled = translator.model
    tables = (
        [scaled]
        if isinstance(translator.model, RecurrentSeq2Seq)
        else [scaled.source_embeddings, scaled.target_embeddings]
    )
    for table in tables:
        table.scale = settings["size"] * width**0.5
    return translator


def parameters(model: nn.Module) -> int:
    """How many there are."""
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def attention(translator: Translator, pair: Pair) -> torch.Tensor:
    """How a model with attention looks at the source, given the target: weights (layers, H, T, S).

    Row t has the weights with which target t is predicted, the last row those for the end.
    """
    [(source, target)] = translator.encode_pairs([pair])
    model = translator.model.eval()
    rows = [torch.tensor([row], device=model.output.weight.device) for row in (source, target[:-1])]
    if isinstance(translator.model, RecurrentSeq2Seq):
        return model.attend(*rows)[1][None]
    with record_weights(model) as seen:
        model(*rows)
    return torch.cat([seen[name] for name in seen if name.endswith("cross_attention")])


def run(tasks: Mapping[str, Task], device: str, job: dict[str, Any]) -> dict[str, Any]:
    """Train one model; the job with what its training has logged, and what is kept of its translations."""
    torch.set_num_threads(1)
    task = tasks[job["corpus"]]
    corpus, *tokenizers = task.learnt()
    torch.manual_seed(job["seed"])
    translator = translator_of(task, job["model"], job["settings"], *tokenizers)
    learn, held_out = translator.encode_pairs(corpus.train), translator.encode_pairs(corpus.validation)
    rate = job["settings"]["learning_rate"]
    warmup = job["settings"].get("warmup", WARMUP)
    config = TrainingConfig(task.steps, rate, warmup, validate_every=task.steps // 12, seed=job["seed"])
    batches = partial(pair_batches, learn, max_tokens=task.max_tokens, seed=job["seed"])
    validate = partial(evaluate, batches=list(pair_batches(held_out)))
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    try:
        rows = Trainer(translator.model, config, device).train(batches, validate, progress=False)
    except FloatingPointError:  # the gradient has overflowed: a learning rate that is too high
        rows = []
    found = {
        "seconds": round(clock() - start, 1),
        "width": translator.model.config.d_model,
        "parameters": parameters(translator.model),
        "validation_loss": rows[-1]["validation_loss"] if rows else 1e9,
        "validation_exact": [round(row["validation_exact"], 4) for row in rows] or [0.0],
        "validation_losses": [round(row["validation_loss"], 3) for row in rows],
    }
    keep = task.validated if job["part"] == "search" else task.judged
    return job | found | (keep(translator, corpus) if rows else {})


class Store:
    """What has been found, on disk; jobs that are there are not done again, and several are done at a time.

    `work` does a job, in a process of its own; `about` is kept beside what it finds.
    """

    def __init__(self, name: str, work: Callable[[dict[str, Any]], dict[str, Any]], jobs: int, about: Figures) -> None:
        self.name, self.work = name, work
        self.about = (measured(name) if (FOLDER / f"{name}.json").exists() else {}) | about
        self.chosen: dict[str, dict[str, dict[str, Settings]]] = {}  # by task, model and stage
        self.pool = ProcessPoolExecutor(jobs, get_context("spawn"))
        self.rows = {self.key(row): row for row in self.about.get("runs", [])}

    @staticmethod
    def key(job: dict[str, Any]) -> str:
        """What a job is."""
        return json.dumps([job[name] for name in ("part", "corpus", "model", "seed", "settings")], sort_keys=True)

    def do(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What the jobs find, in their order."""
        new = [job for job in jobs if self.key(job) not in self.rows]
        at_work = [self.pool.submit(self.work, job) for job in new]
        for future in at_work:
            row = future.result()
            self.rows[self.key(row)] = row
            names = ("part", "corpus", "model", "seed", "settings", "validation_loss", "seconds")
            print(*(row[name] for name in names), flush=True)
            self.save()
        return [self.rows[self.key(job)] for job in jobs]

    def save(self) -> None:
        """Keep all that is found."""
        save(self.name, self.about | {"runs": list(self.rows.values()), "chosen": self.chosen})


def told(settings: Settings) -> Settings:
    """Settings as they are kept: of the order of norms only what is not usual."""
    return {name: value for name, value in settings.items() if name != "norm_first" or value}


def stages(store: Store, tasks: Mapping[str, Task], corpus: str, model: str) -> Iterator[tuple[str, Settings]]:
    """Each stage and the settings that a model has in it."""
    task, transformer = tasks[corpus], model == "transformer"
    best = {"learning_rate": 3e-3, "size": 1, "layers": 2 if transformer else 1, "dropout": 0.0}

    def losses_of(some: list[Settings]) -> list[float]:
        job = {"part": "search", "corpus": corpus, "model": model, "seed": 0}
        jobs = [job | {"settings": told(one)} for one in some]
        return [task.chosen_by(row) for row in store.do(jobs)]

    for stage, names in task.stages.items():
        if stage in ("untuned", "scaled"):
            best = best | {"size": DRAWN if stage == "untuned" and not transformer else 1}
        if "warmup" in names:
            best = {"warmup": WARMUP} | best
        if "norm_first" in names:
            best = {"norm_first": False} | best
        axes = {name: AXES[name] for name in names if transformer or name != "norm_first"}
        best = climb(axes, best, losses_of)
        yield stage, told(best)


def asked_for(about: str) -> tuple[int, str]:
    """How many to train at a time and on which device, as the command line says."""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="how many to train at a time")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="cpu")
    args = parser.parse_args()
    return args.jobs, device_named(args.device)


def race(name: str, tasks: Mapping[str, Task], about: str) -> Store:
    """Do all of it, as the command line says, and keep what is found in book/measurements as soon as it is."""
    jobs, device = asked_for(about)
    steps = {corpus: task.steps for corpus, task in tasks.items()}
    store = Store(name, partial(run, tasks, device), jobs, {"steps": steps, "axes": AXES})
    for corpus, model in ((corpus, model) for corpus, task in tasks.items() for model in task.models):
        for stage, settings in stages(store, tasks, corpus, model):
            store.chosen.setdefault(corpus, {}).setdefault(model, {})[stage] = settings
            job = {"part": "judge", "corpus": corpus, "model": model, "settings": settings}
            store.do([job | {"seed": seed} for seed in SEEDS])
    store.save()
    return store
