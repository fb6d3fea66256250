"""A GPT that learns documentation: `python -m benchmarks.docstrings`.

Trains the model of configs/gpt-docstrings.toml with three seeds. Of each it keeps the validation loss, what it writes
while it learns, and of the trained model: the loss by position in a text, how often it finds the name that belongs to a
text, how much each head copies, and what becomes of the loss without it. Then models of four widths for half as many
steps, each with a learning rate of its own, found with one seed and judged with three.

Takes an hour and a half of one core. Whatever is done is kept in book/measurements/docstrings.json, and not done again.
"""

import math
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor, nn

from benchmarks.race import SEEDS, Store, asked_for
from benchmarks.search import Settings, climb
from dotformer.data.corpora import Corpus, Pair, docstrings
from dotformer.generation import sample
from dotformer.gpt import GPT, GPTCache, GPTConfig
from dotformer.support.recording import record_weights
from dotformer.tokens import BPETokenizer
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches

VOCAB_SIZE, LAYERS, HEADS, MAX_TOKENS = 2000, 4, 4, 2048
WIDTHS = (16, 32, 64, 128)
STEPS = {"model": 1500, "sizes": 750}
AXES = {"learning_rate": [3.75e-4 * 2**n for n in range(9)]}
CONFIGURED: Settings = {"learning_rate": 3e-3, "width": 128}
WRITING = {"temperature": 0.8, "top_p": 0.95}
WRITTEN_AFTER = (50, 200, 1500)  # steps
PROMPTS = ("numpy.linalg.triangular_norm", "networkx.algorithms.paths.longest_path", "sklearn.metrics.mean_score")
REPEATED = 24  # random tokens that come twice
LONG, BIN = 160, 16  # texts of so many tokens, and their positions in parts
CONTEXTS = (0, 1, 2, 4, 8, 16, 32, 64, LONG - BIN)  # tokens
CHOICES = 4
Encoded = list[tuple[list[int], list[int]]]


@cache
def learnt() -> tuple[Corpus, BPETokenizer]:
    """The corpus, and a tokenizer for its names and texts."""
    corpus = docstrings()
    return corpus, BPETokenizer.train((f" {text}" for pair in corpus.train for text in pair[:2]), VOCAB_SIZE)


def encoded(tokenizer: BPETokenizer, pairs: list[Pair]) -> Encoded:
    """Tokens of the names, and of the texts between special ones."""
    return [(tokenizer.encode(f" {p.source}"), tokenizer.encode(f" {p.target}", True)) for p in pairs]


def entropies(train: Encoded, held_out: Encoded, vocab_size: int) -> dict[str, float]:
    """Nats a token that counting leaves: equal shares, shares of tokens, of pairs of tokens.

    A pair's share is mixed with its second token's, lambda of the one and the rest of the other; the best lambda.
    """
    ones, twos, firsts = Counter(), Counter(), Counter()
    for _, text in train:
        ones.update(text[1:])
        twos.update(pairwise(text))
        firsts.update(text[:-1])
    total = sum(ones.values()) + vocab_size
    pairs = [pair for _, text in held_out for pair in pairwise(text)]
    single = [(ones[after] + 1) / total for _, after in pairs]
    double = [twos[pair] / max(firsts[pair[0]], 1) for pair in pairs]

    def nats(weight: float) -> float:
        both = zip(single, double, strict=True)
        return -sum(math.log((1 - weight) * one + weight * two) for one, two in both) / len(pairs)

    return {
        "uniform": math.log(vocab_size),
        "unigram": nats(0.0),
        "bigram": min(nats(tenth / 10) for tenth in range(10)),
    }


def new_model(width: int, vocab_size: int, seed: int) -> GPT:
    """A GPT of some width, four layers and four heads."""
    torch.manual_seed(seed)
    shape = {"d_model": width, "d_ff": 4 * width, "num_heads": HEADS, "num_layers": LAYERS}
    return GPT(GPTConfig(vocab_size=vocab_size, dropout=0.0, **shape))


@torch.no_grad()
def write(model: GPT, tokenizer: BPETokenizer, name: str) -> str:
    """A text for a name, sampled."""
    prompt = torch.tensor([tokenizer.encode(f" {name}")])
    generator = torch.Generator().manual_seed(0)
    [tokens] = sample(GPTCache(model.eval(), prompt), 150, generator, **WRITING)
    return tokenizer.decode(tokens).strip()


@torch.no_grad()
def token_losses(model: GPT, pair: tuple[list[int], list[int]]) -> Tensor:
    """Nats of each token of a text, given its name and what stands before it."""
    name, text = (torch.tensor([side]) for side in pair)
    return nn.functional.cross_entropy(model.eval()(name, text[:, :-1])[0], text[0, 1:], reduction="none")


def by_position(losses: list[Tensor]) -> list[float]:
    """The mean loss at positions 0 to 15, 16 to 31, and so on, of texts that are long enough for all of them."""
    long = torch.stack([one[:LONG] for one in losses if len(one) >= LONG])
    return [round(float(part.mean()), 3) for part in long.split(BIN, dim=1)]


def by_context(model: GPT, pairs: Encoded) -> dict[str, float]:
    """The mean loss of the last tokens of long texts, if before them only so many tokens are the text's own.

    The tokens farther back are those of another long text, at the same positions; the name is always the text's own.
    """
    long = [(name, text) for name, text in pairs if len(text) > LONG]
    found = {}
    for length in CONTEXTS:
        own = LONG + 1 - BIN - length  # from here on
        mixed = [
            (name, [*text[:1], *other[1:own], *text[own : LONG + 1]])
            for (name, text), (_, other) in zip(long, long[1:] + long[:1], strict=True)
        ]
        losses = torch.cat([token_losses(model, pair)[-BIN:] for pair in mixed])
        found[str(length)] = round(float(losses.mean()), 3)
    return found


def words(text: str) -> str:
    """The words of a name or of a text, apart by spaces: triangularNorm_2d has triangular, norm, d."""
    return " ".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)).lower()


def names_found(model: GPT, tokenizer: BPETokenizer, pairs: list[Pair]) -> dict[str, float]:
    """How often a text is likeliest after its own name, among names of the same package; and how often words tell.

    Words in common are weighted by how rare they are in these texts (tf-idf), and texts compared by the cosine.
    """
    counted = TfidfVectorizer(token_pattern=r"\S+", sublinear_tf=True).fit([words(pair.target) for pair in pairs])
    right, drawn = Counter(), random.Random(0)
    for pair in pairs:
        package = pair.source.partition(".")[0]
        others = [one.source for one in pairs if one.source.partition(".")[0] == package and one is not pair]
        names = [pair.source, *drawn.sample(others, CHOICES - 1)]
        rows = encoded(tokenizer, [Pair(name, pair.target) for name in names])
        nats = [float(token_losses(model, row).sum()) for row in rows]
        right["model"] += min(nats) == nats[0]
        near = (counted.transform(map(words, names)) @ counted.transform([words(pair.target)]).T).toarray()[:, 0]
        right["words"] += (near.max() == near[0]) / (near == near.max()).sum()  # guesses among equals
    return {name: round(float(count) / len(pairs), 3) for name, count in right.items()}


@contextmanager
def without(model: GPT, heads: list[tuple[int, int]]) -> Iterator[None]:
    """What these heads, (layer, head), hand over is lost for a while."""
    kept = {name: parameter.clone() for name, parameter in model.state_dict().items()}
    size = model.config.d_model // model.config.num_heads
    for layer, head in heads:
        model.stack.layers[layer].attention.w_o.weight.data[:, head * size : (head + 1) * size] = 0
    try:
        yield
    finally:
        model.load_state_dict(kept)


@torch.no_grad()
def copying(model: GPT, vocab_size: int) -> tuple[dict[str, float], Tensor, Tensor]:
    """On random tokens that come twice: nats in each half, and of each head two weights, (layers, H).

    The weight on the token before, and from a token's second time on the token that came after its first time.
    """
    generator = torch.Generator().manual_seed(0)
    half = torch.randint(3, vocab_size, (64, REPEATED), generator=generator)
    text = torch.cat([torch.ones(64, 1, dtype=torch.long), half, half], dim=1)
    nothing = text[:, :0]
    with record_weights(model.eval()) as seen:
        logits = model(nothing, text[:, :-1])
    losses = nn.functional.cross_entropy(logits.mT, text[:, 1:], reduction="none")
    nats = {"first": losses[:, :REPEATED].mean(), "second": losses[:, REPEATED + 1 :].mean()}
    weights = torch.stack(list(seen.values()))  # (layers, B, H, T, T)
    before = weights.diagonal(-1, -2, -1).mean((1, 3))
    after = weights.diagonal(1 - REPEATED, -2, -1)[..., 2:].mean((1, 3))  # from queries in the second half
    return {name: round(float(value), 3) for name, value in nats.items()}, before, after


def repeats(pair: tuple[list[int], list[int]]) -> Tensor:
    """Which targets of a text have followed the token before them already, in the same text."""
    seen, found = set(), []
    for two in pairwise(pair[1]):
        found.append(two in seen)
        seen.add(two)
    return torch.tensor(found)


def ablations(model: GPT, held_out: Encoded, before: Tensor, after: Tensor) -> list[dict[str, Any]]:
    """What each head's loss costs: nats of targets that repeat, of the others, and of random tokens' second time."""
    heads = [[(layer, head)] for layer in range(LAYERS) for head in range(HEADS)]
    ranked = after.flatten().argsort(descending=True).tolist()
    best = [divmod(n, HEADS) for n in ranked]
    found = []
    for group in ([], *heads, best[:3], best[-3:]):
        with without(model, group):
            losses = torch.cat([token_losses(model, pair) for pair in held_out])
            twice = torch.cat([repeats(pair) for pair in held_out])
            row = {"heads": group, "repeated": float(losses[twice].mean()), "other": float(losses[~twice].mean())}
            row |= {"random": copying(model, model.config.vocab_size)[0]["second"]}
        if len(group) == 1:
            [(layer, head)] = group
            row |= {"before": float(before[layer, head]), "after": float(after[layer, head])}
        found.append({name: value if name == "heads" else round(value, 3) for name, value in row.items()})
    return found


def looked_into(model: GPT, tokenizer: BPETokenizer, corpus: Corpus) -> dict[str, Any]:
    """All that is kept of a trained model."""
    test = encoded(tokenizer, corpus.test)
    losses = [token_losses(model, pair) for pair in test]
    nats, before, after = copying(model, len(tokenizer))
    return {
        "test_loss": round(float(torch.cat(losses).mean()), 3),
        "by_position": by_position(losses),
        "by_context": by_context(model, test),
        "names_found": names_found(model, tokenizer, corpus.test),
        "copying": nats,
        "ablations": ablations(model, test, before, after),
        "written": {name: write(model, tokenizer, name) for name in PROMPTS},
    }


def train(device: str, steps: dict[str, int], job: dict[str, Any]) -> dict[str, Any]:
    """Train a model; the job with its losses, and what else is kept."""
    torch.set_num_threads(1)
    (corpus, tokenizer), settings, last = learnt(), job["settings"], steps[job["corpus"]]
    pairs, held_out = encoded(tokenizer, corpus.train), encoded(tokenizer, corpus.validation)
    model = new_model(settings["width"], len(tokenizer), job["seed"])
    config = TrainingConfig(
        last,
        settings["learning_rate"],
        warmup_steps=max(1, last // 20),
        label_smoothing=0.0,
        validate_every=max(1, last // 30),
        seed=job["seed"],
    )
    batches = list(pair_batches(held_out, max_tokens=MAX_TOKENS))
    written: list[dict[str, Any]] = []
    keeps_texts = job["corpus"] == "model" and job["seed"] == 0
    if keeps_texts:
        written.append({"step": 0, "text": write(model, tokenizer, PROMPTS[0])})

    def validate(model: nn.Module) -> dict[str, float]:
        step = seen["steps"] = seen["steps"] + config.validate_every
        if keeps_texts and step in WRITTEN_AFTER:
            written.append({"step": step, "text": write(model, tokenizer, PROMPTS[0])})
        return evaluate(model, batches)

    seen = {"steps": 0}
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    try:
        history = Trainer(model, config, device).train(
            partial(pair_batches, pairs, max_tokens=MAX_TOKENS, seed=job["seed"]), validate, progress=False
        )
    except FloatingPointError:  # a learning rate that is too high
        return job | {"seconds": clock() - start, "validation_loss": 1e9}
    found = {
        "seconds": round(clock() - start, 1),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "in_layers": sum(parameter.numel() for parameter in model.stack.parameters()),
        "validation_loss": history[-1]["validation_loss"],
        "validation_losses": [[row["step"], round(row["validation_loss"], 3)] for row in history],
    }
    if job["corpus"] == "model":
        found |= {"while_learning": written} | looked_into(model.to("cpu"), tokenizer, corpus)
    return job | found


def main() -> None:
    """Train all of them."""
    jobs, device = asked_for(__doc__)
    corpus, tokenizer = learnt()
    pairs, held_out = encoded(tokenizer, corpus.train), encoded(tokenizer, corpus.validation)
    about = {
        "steps": STEPS,
        "max_tokens": MAX_TOKENS,
        "texts": {"train": len(pairs), "validation": len(held_out), "test": len(corpus.test)},
        "characters": sum(len(pair.target) for pair in corpus.train),
        "tokens": sum(len(text) - 1 for _, text in pairs),
        "vocab_size": len(tokenizer),
        "entropies": entropies(pairs, held_out, len(tokenizer)),
        "example": dict(zip(("name", "text"), corpus.test[0], strict=False)),
    }
    store = Store("docstrings", partial(train, device, STEPS), jobs, about)
    for width in WIDTHS:

        def losses_of(some: list[Settings]) -> list[float]:
            asked = {"part": "search", "corpus": "sizes", "model": "gpt", "seed": 0}
            return [row["validation_loss"] for row in store.do([asked | {"settings": one} for one in some])]

        best = climb(AXES, CONFIGURED | {"width": width}, losses_of)
        store.chosen.setdefault("sizes", {}).setdefault("gpt", {})[str(width)] = best
        job = {"part": "judge", "corpus": "sizes", "model": "gpt", "settings": best}
        store.do([job | {"seed": seed} for seed in SEEDS])
    job = {"part": "judge", "corpus": "model", "model": "gpt", "settings": CONFIGURED}
    store.do([job | {"seed": seed} for seed in SEEDS])
    store.save()


if __name__ == "__main__":
    main()
