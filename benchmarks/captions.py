"""The transformer beside three recurrent models on captions: `python -m benchmarks.captions --device auto --jobs 4`.

A race of small models. Each kind gets learning rate, depth, dropout and size of the embeddings of its own, then a
warm-up of its own, with the learning rate once more, and at last both together with depth, and for the transformer the
order of norm and sum. Settings are chosen by BLEU on the validation captions. Kept of each trained model: its
translations of the test set, BLEU and chrF, what BLEU counts of each sentence, all that with an alpha of its own
besides, and seconds; and of each pair of models, each with its alpha, whether they differ, by approximate
randomisation. Three seeds each are too few to tell whether two *kinds* differ, so of two of them more are trained. A
step of these two is timed in turns; and the transformer, with all five seeds, takes as many steps, too, as fit in the
time of the GRU.

Takes some eight hours of one core. Whatever is done is kept in book/measurements/captions.json, and not done again.
"""

import time
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from scipy.stats import permutation_test

from benchmarks.race import SEEDS, TUNED, Task, race, translator_of
from benchmarks.results import save
from benchmarks.search import climb
from classroom.measured import measured
from dotformer.data.corpora import Corpus, multi30k
from dotformer.tokens import BPETokenizer
from dotformer.training import Trainer, TrainingConfig, pair_batches
from dotformer.translation import Translator, bleu

ALPHA = 0.6  # how far beam search favours length, as in the paper
ALPHAS = [None, 0.0, 0.3, ALPHA, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]


@cache
def learnt() -> tuple[Corpus, BPETokenizer, BPETokenizer]:
    """English to German, and one tokenizer of 2,000 tokens for both."""
    corpus = multi30k("en", "de")
    tokenizer = BPETokenizer.train((f" {text}" for p in corpus.train for text in (p.source, p.target)), 2000)
    return corpus, tokenizer, tokenizer


def chosen_by(row: dict[str, Any]) -> float:
    """Minus BLEU on the validation captions; a training that has failed has none."""
    return -row.get("validation_bleu", -row["validation_loss"])


def validated(translator: Translator, corpus: Corpus, alpha: float = ALPHA) -> dict[str, Any]:
    """BLEU on the validation captions."""
    texts = translator.translate([pair.source for pair in corpus.validation], alpha=alpha)
    return {"validation_bleu": round(bleu(texts, [pair.target for pair in corpus.validation])[0], 2)}


def judged(translator: Translator, corpus: Corpus) -> dict[str, Any]:
    """How it translates the test set, with the usual favour for length, and with the alpha that validates best."""

    def losses_of(settings: list[dict[str, Any]]) -> list[float]:
        return [-validated(translator, corpus, one["alpha"])["validation_bleu"] for one in settings]

    best = climb({"alpha": ALPHAS}, {"alpha": ALPHA}, losses_of)["alpha"]
    own = {"alpha": best} | validated(translator, corpus, best) | scored(translator, corpus, best)
    return validated(translator, corpus) | scored(translator, corpus, ALPHA) | {"own_alpha": own}


def scored(translator: Translator, corpus: Corpus, alpha: float) -> dict[str, Any]:
    """Its translations of the test set, their scores, and what BLEU counts of each."""
    texts = translator.translate([pair.source for pair in corpus.test], alpha=alpha)
    wanted = [pair.target for pair in corpus.test]
    found = {"translations": texts, "counts": counts(texts, wanted)}
    for metric in METRICS.values():
        score = metric.corpus_score(texts, [wanted])
        found[score.name] = round(score.score, 2)
        found[f"{score.name} signature"] = str(metric.get_signature())
    return found


def counts(texts: list[str], wanted: list[str]) -> list[str]:
    """For each text the n-grams found, for n from 1 to 4, its words and those of its reference: "5 3 2 1 9 8"."""
    sentence = BLEU(effective_order=True)
    scores = (sentence.sentence_score(text, [one]) for text, one in zip(texts, wanted, strict=True))
    return [" ".join(map(str, (*score.counts, score.sys_len, score.ref_len))) for score in scores]


def differences(runs: list[dict[str, Any]], wanted: list[str]) -> list[dict[str, Any]]:
    """How often chance alone makes the scores of two trained models as different, for each pair of two kinds.

    A run has its kind, its seed and its `translations` of what is `wanted` otherwise.
    """
    found = []
    for one in runs:
        others = [run for run in runs if run["corpus"] == one["corpus"] and run["model"] > one["model"]]
        if not others:
            continue
        systems = [(str(n), run["translations"]) for n, run in enumerate([one, *others])]
        signatures, results = PairedTest(systems, METRICS, [wanted], "ar")()
        for n, other in enumerate(others, 1):
            p = {name: results[name][n].p_value for name in signatures}
            found.append({"corpus": one["corpus"], "runs": [[r["model"], r["seed"]] for r in (one, other)], "p": p})
    return found


def step_milliseconds(chosen: dict[str, dict[str, Any]], rounds: int = 7, steps: int = 60) -> dict[str, list[float]]:
    """What a training step of each kind takes on one core: in turns, the mean of the same steps in each round."""
    torch.set_num_threads(1)
    corpus, *tokenizers = learnt()
    found: dict[str, list[float]] = {}
    for model in KINDS * rounds:
        torch.manual_seed(0)
        translator = translator_of(SHORT, model, chosen[model]["placed"], *tokenizers)
        trainer = Trainer(translator.model, TrainingConfig(), "cpu")
        batches = pair_batches(translator.encode_pairs(corpus.train), max_tokens=SHORT.max_tokens, seed=0)
        some = [*islice(batches, steps)]
        start = time.process_time()
        for batch in some:
            trainer.train_step([batch], learning_rate=1e-3)
        found.setdefault(model, []).append(round(1000 * (time.process_time() - start) / steps, 1))
    return found


def kinds(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, float]:
    """How often chance alone makes the means of two kinds as different, by each metric: over all splits of the runs."""

    def gap(left: np.ndarray, right: np.ndarray) -> float:
        return left.mean() - right.mean()

    pairs = {name: [[run[name] for run in runs] for runs in (one, other)] for name in ("BLEU", "chrF2")}
    return {name: round(float(permutation_test(pair, gap).pvalue), 4) for name, pair in pairs.items()}


KINDS, MORE = ("transformer", "gru, attention"), range(3, 5)  # seeds that the search has not seen
METRICS = {"BLEU": BLEU(force=True), "chrF": CHRF()}
SHORT = Task(
    learnt=learnt,
    validated=validated,
    judged=judged,
    chosen_by=chosen_by,
    steps=2000,
    stages={
        "tuned": TUNED,
        "warmed": ["warmup", "learning_rate"],
        "placed": ["norm_first", "learning_rate", "warmup", "layers"],
    },
    models=("transformer", "gru, attention", "gru, no attention", "lstm, attention"),
    parameters=900_000,
    max_tokens=1024,
    shape={"share_embeddings": True},
)
TASKS = {"short": SHORT, "longer": replace(SHORT, steps=2900, models=())}  # nothing is chosen for the longer one

if __name__ == "__main__":
    store = race("captions", TASKS, __doc__)
    for model in KINDS:
        job = {"part": "more", "corpus": "short", "model": model, "settings": store.chosen["short"][model]["placed"]}
        store.do([job | {"seed": seed} for seed in MORE])
    job = {"part": "more", "corpus": "longer", "model": "transformer"}
    job["settings"] = store.chosen["short"]["transformer"]["placed"]
    store.do([job | {"seed": seed} for seed in (*SEEDS, *MORE)])
    found = measured("captions")
    last = {(task, name): [*stages.values()][-1] for task, of in found["chosen"].items() for name, stages in of.items()}
    judged_runs = [r for r in found["runs"] if r["part"] == "judge" and r["settings"] == last[r["corpus"], r["model"]]]
    with_own = [run | run["own_alpha"] for run in judged_runs]
    more = [r | r["own_alpha"] for r in found["runs"] if r["part"] == "more"]
    longer = [run | {"corpus": "short", "model": "transformer, longer"} for run in more if run["corpus"] == "longer"]
    fives = {"transformer, longer": longer}
    fives |= {kind: [r for r in (*with_own, *more) if (r["corpus"], r["model"]) == ("short", kind)] for kind in KINDS}
    if "step_milliseconds" not in found:
        found["step_milliseconds"] = step_milliseconds(found["chosen"]["short"])
    found["kinds"] = {
        f"{one} / {other}": kinds(fives[one], fives[other])
        for one, other in (KINDS, ("transformer, longer", "gru, attention"))
    }
    with_own += [run for run in longer if run["seed"] in SEEDS]
    found["differences"] = differences(with_own, [pair.target for pair in learnt()[0].test])
    save("captions", found)
