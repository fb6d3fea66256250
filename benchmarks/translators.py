"""The transformer beside four recurrent models: `python -m benchmarks.translators`.

All learn the same pairs in the same batches for the same number of steps, and have about as many parameters. On the
grammar they get what else there is in four stages: one learning rate for all and embeddings as they are drawn; then
each its own learning rate; then embeddings scaled as the transformer's; then depth, dropout and size of the embeddings
as well, each axis widened until its best value lies inside. Of the number words they get the shorter half, with scaled
embeddings and a learning rate of their own, and are tested on all lengths.

Settings are chosen with one seed, by the share of validation sentences that are right (of equals, by the loss), and
judged with three on the test set: what is wrong, seconds, and how often attention points at a word that is meant.

Takes three hours of one core, and less with --jobs. Whatever is done is kept in book/measurements/translators.json, and
not done again.
"""

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from typing import Any

import torch
from torch import nn

from benchmarks.results import FOLDER, save
from benchmarks.search import Settings, climb
from classroom.measured import measured
from dotformer.alignment import on_target
from dotformer.data.corpora import Corpus, Pair, grammar, number_words
from dotformer.generation import greedy
from dotformer.tokens import BPETokenizer, pad_batch
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches
from dotformer.translation import Translator

SEEDS = range(3)
STEPS = {"grammar": 900, "numbers": 600}
PARAMETERS = 260_000  # about
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
    "layers": [None, 1, 2, 3, 4, 5],
    "dropout": [None, 0.0, 0.05, 0.1, 0.2, 0.3, 0.4],
}
STAGES = {
    "grammar": {
        "untuned": [],
        "own learning rate": ["learning_rate"],
        "scaled": ["learning_rate"],
        "tuned": list(AXES),
    },
    "numbers": {"scaled": ["learning_rate"]},
}


@cache
def corpus_of(name: str) -> tuple[Corpus, BPETokenizer, BPETokenizer]:
    """The grammar, or the number words without the longer half of what is learnt; and two tokenizers by words."""
    corpus = grammar() if name == "grammar" else number_words()
    source, target = (BPETokenizer.train((f" {pair[side]}" for pair in corpus.train), 10_000) for side in (0, 1))
    if name == "numbers":
        longest = sorted(map(length, corpus.train))[len(corpus.train) // 2]
        corpus = Corpus(
            *([pair for pair in part if length(pair) <= longest] for part in (corpus.train, corpus.validation)),
            corpus.test,
        )
    return corpus, source, target


def length(pair: Pair) -> int:
    """The words of a pair's target."""
    return len(pair.target.split())


def shape(model: str, width: int, settings: Settings) -> dict[str, Any]:
    """The configuration of a model of some width, without its vocabularies and without its kind."""
    own = {"d_model": width, "dropout": settings["dropout"]}
    if MODELS[model]["kind"] == "transformer":
        depths = ("num_encoder_layers", "num_decoder_layers")
        return own | dict.fromkeys(depths, settings["layers"]) | {"num_heads": 4, "d_ff": 2 * width, "max_length": 64}
    return own | MODELS[model] | {"num_layers": settings["layers"]}


def translator_of(model: str, settings: Settings, source: BPETokenizer, target: BPETokenizer) -> Translator:
    """A fresh model of the width with which it has the number of parameters that comes nearest to `PARAMETERS`."""

    def made(width: int) -> Translator:
        options = shape(model, width, settings)
        return Translator(source, target, options.pop("kind", "transformer"), options)

    with torch.device("meta"):
        width = min(range(24, 161, 4), key=lambda width: abs(parameters(made(width).model) - PARAMETERS))
    translator = made(width)
    scaled = translator.model
    tables = [scaled] if translator.kind == "recurrent" else [scaled.source_embeddings, scaled.target_embeddings]
    for table in tables:
        table.scale = settings["size"] * width**0.5
    return translator


def parameters(model: nn.Module) -> int:
    """How many there are."""
    return sum(parameter.numel() for parameter in model.parameters())


def train(job: dict[str, Any]) -> tuple[Translator, Corpus, dict[str, Any]]:
    """Train one model: the model, its corpus, and what its training has logged."""
    torch.set_num_threads(1)
    corpus, *tokenizers = corpus_of(job["corpus"])
    steps = STEPS[job["corpus"]]
    torch.manual_seed(job["seed"])
    translator = translator_of(job["model"], job["settings"], *tokenizers)
    learn, held_out = translator.numbered(corpus.train), translator.numbered(corpus.validation)
    rate = job["settings"]["learning_rate"]
    config = TrainingConfig(steps, rate, warmup_steps=100, validate_every=steps // 12, seed=job["seed"])
    batches = partial(pair_batches, learn, max_tokens=1024, seed=job["seed"])
    validate = partial(evaluate, batches=list(pair_batches(held_out)))
    start = time.process_time()
    try:
        rows = Trainer(translator.model, config).train(batches, validate, progress=False)
    except FloatingPointError:  # the gradient has overflowed: a learning rate that is too high
        rows = []
    found = {
        "seconds": round(time.process_time() - start, 1),
        "width": translator.shape["d_model"],
        "parameters": parameters(translator.model),
        "validation_loss": rows[-1]["validation_loss"] if rows else 1e9,
        "validation_exact": [round(row["validation_exact"], 4) for row in rows] or [0.0],
    }
    return translator, corpus, found


def judge(job: dict[str, Any]) -> dict[str, Any]:
    """What a model reaches on validation, and of a test what it writes where it is wrong and where it looks."""
    translator, corpus, found = train(job)
    if job["part"] == "search":
        return job | found
    written = write(translator, corpus.test)
    both = enumerate(zip(corpus.test, written, strict=True))
    found["wrong"] = {n: text for n, (pair, text) in both if text != pair.target}
    found["points_right"] = points_right(translator, corpus.test)
    return job | found


def write(translator: Translator, pairs: list[Pair]) -> list[str]:
    """What greedy decoding writes for each source."""
    texts = []
    for start in range(0, len(pairs), 100):
        source = pad_batch([row for row, _ in translator.numbered(pairs[start : start + 100])], 0)
        state = translator.state(translator.model.eval(), source)
        texts += [translator.target.decode(tokens).strip() for tokens in greedy(state, 60)]
    return texts


def points_right(translator: Translator, pairs: list[Pair]) -> list[list[float]]:
    """For each layer, and in it for each head, the share of aligned target words that attend most to a word of theirs.

    Nothing without attention or without a gold alignment. Several heads are followed by their mean.
    """
    if not pairs[0].alignment or not translator.shape.get("attention", True):
        return []
    hits = []
    for pair in pairs:
        weights = translator.attention(pair)[:, :, :-1]
        if weights.shape[1] > 1:
            weights = torch.cat([weights, weights.mean(dim=1, keepdim=True)], dim=1)
        hits.append(on_target(weights, pair.alignment))
    shares = torch.cat(hits, dim=-1).double().mean(dim=-1)
    return [[round(share, 4) for share in layer] for layer in shares.tolist()]


class Store:
    """What has been found, on disk; jobs that are there are not done again, and several are done at a time."""

    def __init__(self, jobs: int) -> None:
        self.chosen: dict[str, dict[str, dict[str, Settings]]] = {}  # by corpus, model and stage
        self.pool = ProcessPoolExecutor(jobs, get_context("spawn"))
        there = (FOLDER / "translators.json").exists()
        rows = measured("translators").get("runs", []) if there else []
        self.rows = {self.key(row): row for row in rows}

    @staticmethod
    def key(job: dict[str, Any]) -> str:
        """What a job is."""
        return json.dumps([job[name] for name in ("part", "corpus", "model", "seed", "settings")], sort_keys=True)

    def do(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What the jobs find, in their order."""
        new = [job for job in jobs if self.key(job) not in self.rows]
        for row in self.pool.map(judge, new):
            self.rows[self.key(row)] = row
            names = ("part", "corpus", "model", "seed", "settings", "validation_loss", "seconds")
            print(*(row[name] for name in names), flush=True)
            save("translators", {"steps": STEPS, "axes": AXES, "runs": list(self.rows.values()), "chosen": self.chosen})
        return [self.rows[self.key(job)] for job in jobs]


def stages(store: Store, corpus: str, model: str) -> Iterator[tuple[str, Settings]]:
    """Each stage and the settings that a model has in it."""
    transformer = model == "transformer"
    best = {"learning_rate": 3e-3, "size": 1 if transformer else DRAWN, "layers": 2 if transformer else 1}
    best["dropout"] = 0.0

    def losses_of(some: list[Settings]) -> list[float]:
        jobs = [{"part": "search", "corpus": corpus, "model": model, "seed": 0, "settings": one} for one in some]
        return [1 - row["validation_exact"][-1] + row["validation_loss"] / 1000 for row in store.do(jobs)]

    for stage, names in STAGES[corpus].items():
        if stage == "scaled":
            best = best | {"size": 1}
        best = climb({name: AXES[name] for name in names}, best, losses_of)
        yield stage, best


def main() -> None:
    """Do all of it, and keep what is found as soon as it is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="how many to train at a time")
    store = Store(parser.parse_args().jobs)
    for corpus, model in product(STAGES, MODELS):
        for stage, settings in stages(store, corpus, model):
            store.chosen.setdefault(corpus, {}).setdefault(model, {})[stage] = settings
            job = {"part": "judge", "corpus": corpus, "model": model, "settings": settings}
            store.do([job | {"seed": seed} for seed in SEEDS])


if __name__ == "__main__":
    main()
