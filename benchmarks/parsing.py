"""Four parsers of real sentences, from more and more trees: `python -m benchmarks.parsing --jobs 2`.

The treebank is CRAFT, sentences of at most twenty words. The translator writes brackets, free or held to trees; the
chart parser scores spans with an encoder of the same depth and width; the grammar counts rules. Learning rate and
dropout of the two that are trained, and which words the grammar takes for rare, are chosen by F1 on the validation
set, each axis wide enough that its best value lies inside; for all trees, and again for 1/4 and 1/16 of them. Each is
judged on the test set with three seeds, which also choose the trees. One translator more trains four times as long.
Takes some four hours of one core. Whatever is done is kept in book/measurements/parsing.json, and not done again.
"""

import time
from collections import Counter
from functools import cache, partial
from random import Random
from typing import Any

import torch

from benchmarks.race import SEEDS, Store, asked_for
from benchmarks.search import Settings, climb
from dotformer.command_line.models import new_translator
from dotformer.data.corpora import Corpus
from dotformer.data.pcfg import PCFG
from dotformer.data.trees import Parse, Tree, craft_articles, tree_to_spans
from dotformer.encoder import LayerConfig
from dotformer.parsing import (
    SpanParser,
    brackets,
    cky,
    craft,
    linearize,
    only_trees,
    parse_scores,
    read_tree,
)
from dotformer.tokens import BPETokenizer
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches

LONGEST, WIDTH, LAYERS, VOCAB = 20, 128, 3, 8000
STEPS = {"translator": 1500, "chart": 750}  # with all trees; with a fraction of them, its root times as many
MAX_TOKENS = {"translator": 1024, "chart": 4096}
SHARES = [1, 1 / 4, 1 / 16]
LONGER = {"times": 4, "dropout": 0.1}  # one translator more: many more steps, and dropout against overfitting
SHOWN = (2756, 2988, 3441, 3676)  # test sentences whose parses are kept, of articles under CC BY
TRAINED = {
    "learning_rate": [2.5e-4 * 2**n for n in range(8)],
    "dropout": [None, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5],
}
AXES: dict[str, dict[str, list[Any]]] = {
    "translator": TRAINED,
    "chart": TRAINED,
    "grammar": {"rare": [None, 0, 1, 2, 5, 10, 20, 50]},
    "right-branching": {},
}
START: dict[str, Settings] = {
    "translator": {"learning_rate": 2e-3, "dropout": 0.2},
    "chart": {"learning_rate": 2e-3, "dropout": 0.2},
    "grammar": {"rare": 5},
    "right-branching": {},
}


@cache
def treebank() -> Corpus:
    """The sentences."""
    return craft(LONGEST)


@cache
def learnt(share: float, seed: int) -> tuple[list[Parse], list[Parse], list[Parse]]:
    """Some of the trees to learn from, drawn with the seed, and those to choose and to judge by."""
    corpus = treebank()
    train = Random(seed).sample(corpus.train, round(share * len(corpus.train)))
    return train, corpus.validation, corpus.test


def right_branching(gold: Tree) -> Tree:
    """Each word with all that follow it: S around, VP inside; a full stop at the end is left to S."""
    leaves = gold.leaves()
    stop = leaves[-1:] if leaves[-1].is_punctuation and len(leaves) > 1 else []
    *before, nested = leaves[: len(leaves) - len(stop)]
    for leaf in reversed(before):
        nested = Tree("VP", (leaf, nested))
    inside = nested.children if before else (nested,)
    return Tree("S", (*inside, *stop))


def config(model: str, settings: Settings, seed: int) -> TrainingConfig:
    """How long and how fast to learn."""
    steps = round(STEPS[model] * settings["share"] ** 0.5 * settings.get("times", 1))
    smoothing = 0.1 if model == "translator" else 0.0
    return TrainingConfig(
        steps,
        settings["learning_rate"],
        warmup_steps=steps // 10,
        label_smoothing=smoothing,
        validate_every=steps // 6,
        seed=seed,
    )


def trained(model: str, module: torch.nn.Module, pairs: list, held_out: list, settings: Settings, seed: int) -> dict:
    """Train, and how long that took."""
    start, tokens = time.process_time(), MAX_TOKENS[model]
    batches = partial(pair_batches, pairs, max_tokens=tokens, seed=seed)
    validate = partial(evaluate, batches=list(pair_batches(held_out, max_tokens=tokens)))
    rows = Trainer(module, config(model, settings, seed), "cpu").train(batches, validate, progress=False)
    seconds = round(time.process_time() - start, 1)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    losses = [round(row["validation_loss"], 4) for row in rows]
    return {"seconds": seconds, "parameters": parameters, "validation_losses": losses, "validation_loss": losses[-1]}


def translator(settings: Settings, train: list[Parse], held_out: list[Parse], seed: int) -> tuple[dict, Any]:
    """Train one that writes brackets; what is kept of that, and a function from parses to texts, free or held."""
    sides = (BPETokenizer.train((f" {getattr(p, side)}" for p in train), VOCAB) for side in ("source", "target"))
    shape = {"d_model": WIDTH, "num_heads": 4, "d_ff": 4 * WIDTH, "norm_first": True, "max_length": 256}
    depths = dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), LAYERS)
    made = new_translator(*sides, "transformer", shape | depths | {"dropout": settings["dropout"]})
    found = trained("translator", made.model, *map(made.encode_pairs, (train, held_out)), settings, seed)

    def write(parses: list[Parse], held: bool) -> list[str]:
        symbols = {symbol for parse in train for symbol in parse.target.split()}
        used = only_trees(made, filter(str.isupper, symbols)) if held else made
        return used.translate([parse.source for parse in parses], beam=1)

    return found, write


def chart(settings: Settings, train: list[Parse], held_out: list[Parse], seed: int) -> tuple[dict, Any]:
    """Train one that scores spans; what is kept of that, and a function from parses to texts."""
    tokenizer = BPETokenizer.train((f" {parse.source}" for parse in train), VOCAB)
    labels = {label for parse in train for label in tree_to_spans(parse.tree).values()}
    shape = LayerConfig(d_model=WIDTH, num_heads=4, d_ff=4 * WIDTH, dropout=settings["dropout"], norm_first=True)
    made = SpanParser(shape, LAYERS, tokenizer, sorted(labels))
    pairs = ([made.encode(parse.tree) for parse in part] for part in (train, held_out))
    found = trained("chart", made, *pairs, settings, seed)
    made.eval()
    return found, lambda parses, held: [linearize(made.parse(parse.tree.leaves())) for parse in parses]


def grammar(settings: Settings, train: list[Parse], held_out: list[Parse], seed: int) -> tuple[dict, Any]:
    """Count one; how long that took, and a function from parses to texts."""
    start = time.process_time()
    made = PCFG((parse.tree for parse in train), settings["rare"])
    found = {"seconds": round(time.process_time() - start, 1), "rules": made.rules.shape[1], "validation_loss": 0.0}
    trees = lambda parses: (cky(made, parse.tree.words()) for parse in parses)  # noqa: E731
    return found, lambda parses, held: [linearize(tree) if tree else "" for tree in trees(parses)]


def drawn(settings: Settings, train: list[Parse], held_out: list[Parse], seed: int) -> tuple[dict, Any]:
    """Right-branching trees, which need no learning."""
    found = {"seconds": 0.0, "validation_loss": 0.0}
    return found, lambda parses, held: [linearize(right_branching(parse.tree)) for parse in parses]


PARSERS = {"translator": translator, "chart": chart, "grammar": grammar, "right-branching": drawn}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Make a parser, and score what it writes; the job with what is kept."""
    torch.set_num_threads(1)
    torch.manual_seed(job["seed"])
    settings, model = job["settings"], job["model"]
    train, held_out, test = learnt(settings["share"], job["seed"])
    found, write = PARSERS[model](settings, train, held_out, job["seed"])
    found |= {"sentences": len(train)}
    if job["part"] == "search":
        return job | found | {"scores": rounded(parse_scores(write(held_out, True), held_out))}
    start, texts = time.process_time(), write(test, True)
    found |= {"parsing_seconds": round(time.process_time() - start, 1), "scores": rounded(parse_scores(texts, test))}
    found |= {"by_length": by_length(texts, test), "by_article": by_article(texts, test)}
    known = {parse.source for parse in train}
    new = [(text, parse) for text, parse in zip(texts, test, strict=True) if parse.source not in known]
    found |= {"new": rounded(parse_scores(*map(list, zip(*new, strict=True)))), "new_sentences": len(new)}
    if model == "translator":
        free = write(test, False)
        found |= {"free": rounded(parse_scores(free, test)), "reasons": reasons(free, test)}
        kept = [(parse, text) for parse, text in zip(test, free, strict=True) if not reason(text, parse)]
        if kept:
            found["only_parsed"] = rounded(parse_scores([text for _, text in kept], [parse for parse, _ in kept]))
    found["mistakes"] = mistakes(texts, test)
    if job["seed"] == 0 and settings["share"] == 1:
        found["shown"] = {str(n): texts[n] for n in SHOWN}
    return job | found


def rounded(scores: dict[str, float]) -> dict[str, float]:
    """Scores with two digits."""
    return {name: round(score, 2) for name, score in scores.items()}


def reason(text: str, parse: Parse) -> str:
    """Why a text is no tree of the sentence, or nothing if it is one."""
    words, wanted = text.split().count("_"), len(parse.tree.leaves())
    try:
        read_tree(text, parse.tree.leaves())
    except ValueError:
        return "brackets" if words == wanted else "too many words" if words > wanted else "too few words"
    return ""


def reasons(texts: list[str], parses: list[Parse]) -> dict[str, int]:
    """How often each reason."""
    found = Counter(reason(text, parse) for text, parse in zip(texts, parses, strict=True))
    return {name: times for name, times in sorted(found.items()) if name}


def by_length(texts: list[str], parses: list[Parse]) -> dict[str, dict[str, float]]:
    """F1 of sentences of 1 to 5, 6 to 10, 11 to 15 and 16 to 20 words."""
    found = {}
    for longest in range(5, LONGEST + 1, 5):
        part = [
            (text, parse)
            for text, parse in zip(texts, parses, strict=True)
            if longest - 5 < len(parse.tree.leaves()) <= longest
        ]
        if part:
            found[str(longest)] = rounded(parse_scores(*map(list, zip(*part, strict=True))))
    return found


@cache
def articles() -> list[str]:
    """Of each test sentence the article that it is from."""
    tests = ((name, trees) for part, name, trees in craft_articles() if part == "test")
    return [name for name, trees in tests for tree in trees if len(tree.words()) <= LONGEST]


def by_article(texts: list[str], parses: list[Parse]) -> dict[str, list[int]]:
    """For each article how many brackets are right, were written and were wanted: what a bootstrap needs."""
    found = {name: [0, 0, 0] for name in articles()}
    for name, text, parse in zip(articles(), texts, parses, strict=True):
        gold = brackets(parse.tree)
        given = Counter() if reason(text, parse) else brackets(read_tree(text, parse.tree.leaves()))
        for n, counter in enumerate((gold & given, given, gold)):
            found[name][n] += counter.total()
    return found


def mistakes(texts: list[str], parses: list[Parse]) -> dict[str, list[int]]:
    """For each label how many brackets are right, were written and were wanted."""
    right, written, wanted = Counter(), Counter(), Counter()
    for text, parse in zip(texts, parses, strict=True):
        gold = brackets(parse.tree)
        given = Counter() if reason(text, parse) else brackets(read_tree(text, parse.tree.leaves()))
        for counter, found in ((right, gold & given), (written, given), (wanted, gold)):
            for (label, _, _), times in found.items():
                counter[label] += times
    return {label: [right[label], written[label], times] for label, times in wanted.most_common(12)}


if __name__ == "__main__":
    jobs, _ = asked_for(__doc__)
    store = Store("parsing", run, jobs, {"steps": STEPS, "shares": SHARES, "axes": AXES})
    search = {"part": "search", "corpus": "craft", "seed": 0}
    judge = {"part": "judge", "corpus": "craft"}
    best = dict(START)
    for share in SHARES:
        for model in PARSERS:

            def losses_of(some: list[Settings], share: float = share, model: str = model) -> list[float]:
                """Minus F1 on the validation set, with one seed."""
                rows = store.do([search | {"model": model, "settings": one | {"share": share}} for one in some])
                return [-row["scores"]["f1"] for row in rows]

            best[model] = climb(AXES[model], best[model], losses_of)
            store.chosen.setdefault(model, {})[str(share)] = best[model]
            store.do([judge | {"model": model, "seed": n, "settings": best[model] | {"share": share}} for n in SEEDS])
    longer = store.chosen["translator"]["1"] | {"share": 1} | LONGER
    store.do([judge | {"model": "translator", "seed": 0, "settings": longer}])
    parts = {part: getattr(treebank(), part) for part in ("train", "validation", "test")}
    store.about["sentences"], test = {part: len(trees) for part, trees in parts.items()}, parts["test"]
    store.about["examples"] = {str(n): [test[n].source, test[n].target] for n in SHOWN}
    store.save()
