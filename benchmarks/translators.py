"""The transformer beside four recurrent models, on two corpora of the book: `python -m benchmarks.translators`.

Each learns the same pairs in the same batches for the same number of steps, and has about as many parameters. Each
kind gets the best of the same few rates, chosen on validation. Then several seeds, how often attention points at the
word that the grammar knows to be meant, and accuracy over length: trained on the shorter half of the sentences, tested
on all. Takes an hour of two cores and writes book/measurements/translators.json. Behind the command may stand the
names of corpora (grammar, numbers): only these are measured again, the others stay as they are in that file.
"""

import sys
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.results import save
from classroom.measured import measured
from dotformer.alignment import on_target
from dotformer.data.corpora import Corpus, Pair, grammar, number_words
from dotformer.generation import greedy
from dotformer.tokens import BPETokenizer, pad_batch
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches
from dotformer.translation import Translator

SEEDS = range(3)
RATES = (1e-3, 3e-3, 6e-3)
STEPS = {"numbers": 600, "grammar": 900}
TRANSFORMER = {"d_model": 64, "num_heads": 4, "d_ff": 128, "num_encoder_layers": 2, "num_decoder_layers": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer", TRANSFORMER | {"dropout": 0.0, "max_length": 64}),
    **{
        f"{cell}, {'attention' if attention else 'no attention'}": (
            "recurrent",
            {"d_model": width, "dropout": 0.0, "cell": cell, "attention": attention},
        )
        for cell, attention, width in (
            ("lstm", True, 64), ("gru", True, 72), ("lstm", False, 80), ("gru", False, 96),
        )
    },
}  # fmt: skip


def words(pair: Pair) -> int:
    """The length of a pair: its target's words."""
    return len(pair.target.split())


def run(corpus: Corpus, model: str, steps: int, learning_rate: float, seed: int) -> tuple[Translator, dict[str, Any]]:
    """Train one model: its validations, and its test."""
    sides = (BPETokenizer.train((f" {pair[side]}" for pair in corpus.train), 10_000) for side in (0, 1))
    torch.manual_seed(seed)
    translator = Translator(*sides, *MODELS[model])
    learn, held_out, test = map(translator.numbered, (corpus.train, corpus.validation, corpus.test))
    config = TrainingConfig(steps, learning_rate, warmup_steps=100, validate_every=steps // 12, seed=seed)
    batches = partial(pair_batches, learn, max_tokens=1024, seed=seed)
    validate = partial(evaluate, batches=list(pair_batches(held_out)))
    rows = Trainer(translator.model, config).train(batches, validate, progress=False)
    curve = {name: [row[name] for row in rows] for name in ("step", "validation_loss", "validation_exact")}
    found = (
        {"seed": seed, "learning_rate": learning_rate}
        | curve
        | {"test": evaluate(translator.model, pair_batches(test))}
    )
    return translator, found | {"points_right": points_right(translator, corpus.test)}


def points_right(translator: Translator, pairs: list[Pair]) -> list[list[float]]:
    """For each layer, and in it for each head, the share of aligned target words that attend most to a word of theirs.

    Nothing without attention or gold alignments. Several heads are followed by their mean.
    """
    if not pairs[0].alignment or not translator.shape.get("attention", True):
        return []
    hits = []
    for pair in pairs:
        weights = translator.attention(pair)[:, :, :-1]
        if weights.shape[1] > 1:
            weights = torch.cat([weights, weights.mean(dim=1, keepdim=True)], dim=1)
        hits.append(on_target(weights, pair.alignment))
    return torch.cat(hits, dim=-1).double().mean(dim=-1).tolist()


def over_length(translator: Translator, pairs: list[Pair]) -> dict[int, list[int]]:
    """For each length of target, how many sentences greedy writing gets right, and of how many."""
    counts: dict[int, list[int]] = {}
    for start in range(0, len(pairs), 100):
        some = pairs[start : start + 100]
        source = pad_batch([row for row, _ in translator.numbered(some)], 0)
        written = greedy(translator.state(translator.model.eval(), source), 60)
        for pair, tokens in zip(some, written, strict=True):
            count = counts.setdefault(words(pair), [0, 0])
            count[0] += translator.target.decode(tokens).strip() == pair.target
            count[1] += 1
    return dict(sorted(counts.items()))


def main() -> None:
    """Run all of it and save what it found."""
    corpora = {"numbers": number_words, "grammar": grammar}
    found = measured("translators")["found"] if sys.argv[1:] else {}
    for name in sys.argv[1:] or corpora:
        corpus = corpora[name]()
        middle = sorted(map(words, corpus.train))[len(corpus.train) // 2]
        short = Corpus(*([p for p in part if words(p) <= middle] for part in (corpus.train, corpus.validation)), [])
        short = Corpus(short.train, short.validation, corpus.test)
        found[name] = {"trained_up_to": middle}
        for model in tqdm(MODELS, desc=name):
            tried = [run(corpus, model, STEPS[name], rate, seed=0)[1] for rate in RATES]
            best = min(tried, key=lambda one: one["validation_loss"][-1])
            others = [run(corpus, model, STEPS[name], best["learning_rate"], seed)[1] for seed in SEEDS if seed]
            long = [
                over_length(run(short, model, STEPS[name], best["learning_rate"], seed)[0], corpus.test)
                for seed in SEEDS
            ]
            found[name][model] = {"tried": tried, "runs": [best, *others], "over_length": long}
    save("translators", {"steps": STEPS, "models": MODELS, "found": found})


if __name__ == "__main__":
    main()
