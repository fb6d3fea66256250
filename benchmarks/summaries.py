"""Docstrings shortened to a line, with and without copying: `python -m benchmarks.summaries --jobs 2`.

A transformer and one that may copy, of the same width, read a name and what comes after the first line of its
docstring, and write that line. Learning rate and dropout of each are chosen by the loss on the validation set, each
axis wide enough that its best value lies inside. Then both learn twice as long, with three seeds, and are judged
by ROUGE, on unseen lines of the packages that they have learnt from and on a package of which they have read nothing,
beside the text's first sentence, its best sentence, and the words of the name. Also kept: whether differences are more
than chance, how much of a summary stands in its text, when the model copies, and a dozen texts. Takes an hour and a
half of one core. Whatever is done is kept in book/measurements/summaries.json, and not done again.
"""

import re
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from rouge_score.rouge_scorer import RougeScorer

from benchmarks.race import SEEDS, Store, asked_for
from benchmarks.results import package_versions
from benchmarks.search import Settings, climb
from dotformer.command_line.models import new_translator
from dotformer.data.corpora import Corpus
from dotformer.data.summaries import Summary, summaries
from dotformer.tokens import BPETokenizer
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches
from dotformer.translation import Translator

UNSEEN = "networkx"
LONGEST = 200  # characters of a text
VOCAB, WIDTH, LAYERS = 4000, 96, 2
STEPS, LONGER, MAX_TOKENS = 400, 2, 2048
SHUFFLES, SHOWN = 10_000, 6
MODELS = ("transformer", "copying")  # kinds
AXES = {
    "learning_rate": [5e-4 * 2**n for n in range(7)],
    "dropout": [None, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5],
}
START: Settings = {"learning_rate": 4e-3, "dropout": 0.1}
METRICS = ("rouge1", "rouge2", "rougeL")
ROUGE = RougeScorer(list(METRICS), use_stemmer=True)


@cache
def learnt() -> tuple[Corpus, BPETokenizer]:
    """The pairs, and one tokenizer for both sides."""
    found = summaries(longest=LONGEST, unseen=UNSEEN)
    corpus = Corpus(*([named(pair) for pair in part] for part in (found.train, found.validation, found.test)))
    return corpus, BPETokenizer.train((f" {text}" for pair in corpus.train for text in pair[:2]), VOCAB)


def named(pair: Summary) -> Summary:
    """The pair with the name of what is documented before its text, as who writes the first line knows it too."""
    return pair._replace(source=f"{pair.name.rpartition('.')[2]}: {pair.source}")


def fresh(model: str, dropout: float) -> Translator:
    """One whose model has random parameters."""
    _, tokenizer = learnt()
    shape = {"d_model": WIDTH, "num_heads": 4, "d_ff": 2 * WIDTH, "dropout": dropout, "norm_first": True}
    shape |= dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), LAYERS)
    shape |= {"max_length": 256, "share_embeddings": True}
    return new_translator(tokenizer, tokenizer, model, shape)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train a model; the job with its losses and, in the end, with what it writes."""
    torch.set_num_threads(1)
    torch.manual_seed(job["seed"])
    (corpus, _), settings = learnt(), job["settings"]
    made = fresh(job["model"], settings["dropout"])
    train, held_out = map(made.encode_pairs, (corpus.train, corpus.validation))
    rate, seed, steps = settings["learning_rate"], job["seed"], settings["steps"]
    config = TrainingConfig(steps, rate, warmup_steps=steps // 10, validate_every=steps // 8, seed=seed)
    batches = partial(pair_batches, train, max_tokens=MAX_TOKENS, seed=seed)
    validate = partial(evaluate, batches=list(pair_batches(held_out)))
    start = time.process_time()
    try:
        rows = Trainer(made.model, config).train(batches, validate, progress=False)
    except FloatingPointError:  # the gradient has overflowed: a learning rate that is too high
        rows = [{"validation_loss": 1e9}]
    losses = [round(row["validation_loss"], 4) for row in rows]
    found = {"seconds": round(time.process_time() - start, 1), "validation_loss": losses[-1]}
    found |= {"validation_losses": losses, "parameters": sum(p.numel() for p in made.model.parameters())}
    if job["part"] == "judge":
        start = time.process_time()
        found["written"] = made.translate([pair.source for pair in corpus.test], beam=1)
        found["writing_seconds"] = round(time.process_time() - start, 1)
        found["losses"] = {
            name: round(evaluate(made.model, pair_batches(made.encode_pairs(part)))["loss"], 4)
            for name, part in parts(corpus.test).items()
        }
        if job["model"] == "copying":
            found["p_gen"] = {name: gates(made, part) for name, part in parts(corpus.test).items()}
    return job | found


def parts(pairs: list[Summary]) -> dict[str, list[Summary]]:
    """The pairs of the packages that are learnt from, and of the one that is not."""
    return {
        "unseen lines": [pair for pair in pairs if pair.package != UNSEEN],
        "unseen package": [pair for pair in pairs if pair.package == UNSEEN],
    }


@torch.no_grad()
def gates(made: Translator, pairs: list[Summary]) -> dict[str, float]:
    """The mean p_gen before each kind of token of the true summaries, and how many tokens are of that kind.

    A token is in the source or not; it begins a word, goes on with one, or is a sign or the end.
    """
    found: dict[str, list[float]] = {}
    for source, target in made.encode_pairs(pairs):
        states = made.model.decode(torch.tensor([target[:-1]]), *made.model.encode(torch.tensor([source])))
        for token, p_gen in zip(target[1:], made.model.gate(states).sigmoid().flatten().tolist(), strict=True):
            symbol = made.target.vocabulary[token]
            place = (
                "begins a word" if re.match(rb" \w", symbol) else "goes on" if re.match(rb"\w", symbol) else "a sign"
            )
            kind = "the end" if token == made.target.eos_id else place
            for name in ("all", f"{kind}, {'in' if token in source else 'not in'} the text"):
                found.setdefault(name, []).append(p_gen)
    return {name: {"mean": round(float(np.mean(p)), 3), "tokens": len(p)} for name, p in sorted(found.items())}


# Texts that need no model


def first_sentence(pair: Summary) -> str:
    """The first sentence of a text."""
    return pair.sentences[0]


def best_sentence(pair: Summary) -> str:
    """The sentence of a text with the highest ROUGE-1: no choice of one sentence scores higher."""
    return max(pair.sentences, key=lambda sentence: ROUGE.score(pair.target, sentence)["rouge1"].fmeasure)


def name_words(pair: Summary) -> str:
    """The words of the last part of a name: gn_graph is gn graph, KDTree is KD Tree."""
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", pair.name.rpartition(".")[2]))


WITHOUT_MODEL: dict[str, Callable[[Summary], str]] = {
    "first sentence": first_sentence,
    "best sentence": best_sentence,
    "words of the name": name_words,
}


# Scores


def rouge(pairs: Sequence[Summary], texts: Sequence[str]) -> np.ndarray:
    """F1 of ROUGE-1, -2 and -L of each text, 0 to 100: (N, 3)."""
    scores = (ROUGE.score(pair.target, text) for pair, text in zip(pairs, texts, strict=True))
    return 100 * np.array([[score[metric].fmeasure for metric in METRICS] for score in scores])


def chance(one: np.ndarray, other: np.ndarray, seed: int = 0) -> float:
    """How often the means of two systems (N,) differ as much if each text is given to either by lot.

    Approximate randomisation, after Noreen (1989).
    """
    difference, rng = one - other, np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], size=(SHUFFLES, len(difference)))
    as_large = np.abs(signs @ difference) >= abs(difference.sum()) - 1e-9
    return float((as_large.sum() + 1) / (SHUFFLES + 1))


def in_text(pairs: Sequence[Summary], texts: Sequence[str]) -> float:
    """The share of the words of summaries that occur in the texts they sum up."""
    found = [word in words(pair.source) for pair, text in zip(pairs, texts, strict=True) for word in words(text)]
    return round(float(np.mean(found)), 4)


def words(text: str) -> list[str]:
    """The words of a text in small letters."""
    return re.findall(r"\w+", text.lower())


def report(pairs: list[Summary], written: dict[str, list[list[str]]]) -> dict[str, Any]:
    """Scores of all systems on some pairs, and how often chance makes two of them as different.

    `written` has the texts of each system, a list for each seed; what is compared are means over seeds, text by text.
    """
    scores = {name: np.stack([rouge(pairs, texts) for texts in seeds]) for name, seeds in written.items()}
    systems = {
        name: {
            "rouge": dict(zip(METRICS, np.round(one.mean(axis=(0, 1)), 2).tolist(), strict=True)),
            "rouge by seed": np.round(one.mean(axis=1), 2).tolist(),
            "words in the text": float(np.mean([in_text(pairs, texts) for texts in written[name]])),
            "words": round(float(np.mean([len(words(text)) for texts in written[name] for text in texts])), 2),
        }
        for name, one in scores.items()
    }
    truth = [pair.target for pair in pairs]
    reference = {"words in the text": in_text(pairs, truth), "words": float(np.mean([len(words(t)) for t in truth]))}
    names = [name for name in scores if name != "best sentence"]
    p = {
        f"{one}, {other}": {
            metric: chance(scores[one].mean(axis=0)[:, n], scores[other].mean(axis=0)[:, n])
            for n, metric in enumerate(METRICS)
        }
        for k, one in enumerate(names)
        for other in names[k + 1 :]
    }
    return {"pairs": len(pairs), "reference": reference, "systems": systems, "p": p}


def examples(pairs: list[Summary], written: dict[str, list[list[str]]]) -> list[dict[str, Any]]:
    """Some pairs and what the first seeds write: as many of the best third of copying, the middle and the worst."""
    scores = rouge(pairs, written["copying"][0])[:, 0]
    thirds = np.array_split(np.argsort(-scores, kind="stable"), 3)
    rng = np.random.default_rng(0)
    rows = [int(n) for third in thirds for n in rng.choice(third, SHOWN // 3, replace=False)]
    return [
        {"name": pairs[n].name, "text": pairs[n].source, "summary": pairs[n].target}
        | {name: seeds[0][n] for name, seeds in written.items()}
        | {"rouge1": round(float(scores[n]), 1)}
        for n in rows
    ]


if __name__ == "__main__":
    jobs, _ = asked_for(__doc__)
    about = {"steps": STEPS, "width": WIDTH, "vocabulary": VOCAB, "longest": LONGEST, "axes": AXES}
    store = Store("summaries", run, jobs, about | {"versions": package_versions(("rouge-score", "nltk"))})
    base = {"corpus": "docstrings"}
    for model in MODELS:

        def losses_of(some: list[Settings], model: str = model) -> list[float]:
            """The loss on the validation set, with one seed."""
            search = base | {"part": "search", "model": model, "seed": 0}
            jobs = [search | {"settings": one | {"steps": STEPS}} for one in some]
            return [row["validation_loss"] for row in store.do(jobs)]

        store.chosen[model] = climb(AXES, START, losses_of) | {"steps": LONGER * STEPS}
    judge = base | {"part": "judge"}
    jobs = [judge | {"model": model, "settings": store.chosen[model]} for model in reversed(MODELS)]
    store.do([job | {"seed": seed} for job in jobs for seed in SEEDS])
    corpus, _ = learnt()
    store.about["sizes"] = {"train": len(corpus.train), "validation": len(corpus.validation), "test": len(corpus.test)}
    rows = [row for row in store.rows.values() if row["part"] == "judge"]
    texts = {
        model: [row["written"] for row in rows if (row["model"], row["settings"]) == (model, store.chosen[model])]
        for model in MODELS
    }
    texts |= {name: [[write(pair) for pair in corpus.test]] for name, write in WITHOUT_MODEL.items()}
    store.about["results"], store.about["examples"] = {}, {}
    for part, pairs in parts(corpus.test).items():
        places = [corpus.test.index(pair) for pair in pairs]
        written = {name: [[one[n] for n in places] for one in seeds] for name, seeds in texts.items()}
        store.about["results"][part] = report(pairs, written)
        store.about["examples"][part] = examples(pairs, written)
    store.save()
