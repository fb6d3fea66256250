"""Translators from little data, changed one setting at a time: `python -m benchmarks.small_data --device auto`.

Begins close to configs/multi30k-en-de.toml and configs/cmudict.toml and goes along one axis after the other,
each wide enough that its best value lies inside, by the score on the validation set with one seed: BLEU of captions,
and of words the percentage pronounced right. All contenders get the same arithmetic: as many steps as `BUDGET` FLOPs
buy. Then each change that was kept is judged on top of those before it, with three seeds, on the test set; captions in
both directions.

What the literature has for small data (Sennrich and Zhang 2019) is among the axes: few tokens, much dropout, label
smoothing; cutting words at random (BPE-dropout, Provilkov and others 2020), and asking two passes with different
dropout for the same answer (R-Drop, Liang and others 2021). Whatever is done is kept in
book/measurements/small_data.json, and not done again. On one core a training takes an hour and a half or more: use
--jobs, or --device cuda.
"""

import time
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers.convert_slow_tokenizer import bytes_to_unicode

from benchmarks.race import SEEDS, Store, asked_for
from benchmarks.search import Settings, climb
from benchmarks.tokens import PATTERN
from dotformer.command_line.models import new_translator
from dotformer.data.corpora import Corpus, Pair, cmudict, multi30k
from dotformer.devices import training_flops
from dotformer.tokens import BPETokenizer
from dotformer.training import Trainer, TrainingConfig, cross_entropy, evaluate, pair_batches
from dotformer.translation import Translator, bleu, exact_match

# FLOPs: what the recipe for captions takes for its 9,000 steps, and some; an hour and a half of one core
BUDGET = 2e14
AVERAGED = (1, 3, 5, 10)  # of how many of the last forty validations the parameters may be averaged
LARGEST = 12e6  # parameters
START: Settings = {
    "vocab_size": 6000,
    "learning_rate": 2.5e-3,
    "dropout": 0.2,
    "label_smoothing": 0.1,
    "max_tokens": 2048,
    "layers": 4,
    "d_model": 128,
    "bpe_dropout": 0.0,
    "consistency": 0.0,
}
AXES: dict[str, list[Any]] = {
    "learning_rate": [3.125e-4 * 2**n for n in range(7)],
    "dropout": [None, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5],
    "vocab_size": [500, 1000, 2000, 4000, 6000, 8000, 12_000],
    "max_tokens": [512, 1024, 2048, 4096, 8192, 16_384],
    "label_smoothing": [None, 0.0, 0.1, 0.2, 0.3, 0.4],
    "bpe_dropout": [None, 0.0, 0.05, 0.1, 0.2, 0.3],
    "consistency": [None, 0.0, 1.0, 2.0, 4.0, 8.0],
    "layers": [None, 1, 2, 3, 4, 5, 6, 8],
    "d_model": [64, 96, 128, 192, 256, 384],
}
SEARCHES: dict[str, tuple[list[str], Settings, list[str]]] = {  # axes, where to begin, and the corpora to judge on
    "en-de": ([*AXES], START, ["en-de", "de-en"]),
    "cmudict": (
        [name for name in AXES if name not in ("vocab_size", "bpe_dropout")],  # letters and sounds are the tokens
        START | {"dropout": 0.1, "max_tokens": 4096, "layers": 3},
        ["cmudict"],
    ),
}


@cache
def learnt(name: str, vocab_size: int) -> tuple[Corpus, BPETokenizer, BPETokenizer]:
    """A corpus and two tokenizers, for captions one and the same."""
    if name == "cmudict":
        corpus = cmudict()
        sides = ([f" {pair[side]}" for pair in corpus.train] for side in (0, 1))
        return corpus, *(BPETokenizer.train(side, vocab_size) for side in sides)
    corpus = multi30k(*name.split("-"))
    shared = BPETokenizer.train((f" {text}" for pair in corpus.train for text in pair[:2]), vocab_size)
    return corpus, shared, shared


def score(translator: Translator, pairs: list[Pair], exact: bool) -> float:
    """BLEU, or the percentage of sources for which one of their targets was written."""
    sources = list(dict.fromkeys(pair.source for pair in pairs))
    written = dict(zip(sources, translator.translate(sources), strict=True))
    texts = [written[pair.source] for pair in pairs]
    return 100 * exact_match(texts, pairs) if exact else bleu(texts, [pair.target for pair in pairs])[0]


def cut_at_random(tokenizer: BPETokenizer, share: float) -> Tokenizer:
    """The library's tokenizer with the same merges and numbers, which leaves out a share of the merges each time."""
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    characters = bytes_to_unicode()  # as which the library writes bytes
    names = ["".join(map(characters.__getitem__, symbol)) for symbol in tokenizer.symbols]
    first = len(tokenizer.special_tokens)
    library = Tokenizer(
        models.BPE(
            vocab={name: first + n for n, name in enumerate(names)},
            merges=[(names[left], names[right]) for left, right in tokenizer.merges],
            dropout=share,
        )
    )
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"), to_bytes])
    return library


class Pairs:
    """The training pairs as tokens, cut anew in each epoch where words are cut at random."""

    def __init__(self, translator: Translator, pairs: list[Pair], share: float, max_tokens: int, seed: int) -> None:
        self.translator, self.pairs, self.max_tokens, self.seed = translator, pairs, max_tokens, seed
        self.library = cut_at_random(translator.source, share) if share else None
        self.encoded = translator.encode_pairs(pairs)

    def __call__(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch."""
        rows = self.encoded
        if self.library:
            sides = ([f" {text}" for text in side] for side in list(zip(*self.pairs, strict=True))[:2])
            source, target = ([found.ids for found in self.library.encode_batch(side)] for side in sides)
            begin, end = self.translator.target.bos_id, self.translator.target.eos_id
            rows = [(one, [begin, *other, end]) for one, other in zip(source, target, strict=True)]
            longest = self.translator.longest
            rows = [
                row if max(map(len, row)) <= longest else whole for row, whole in zip(rows, self.encoded, strict=True)
            ]
        return pair_batches(rows, epoch, self.max_tokens, seed=self.seed)


def consistent(weight: float, logits: Tensor, targets: Tensor, pad_id: int, smoothing: float) -> tuple[Tensor, int]:
    """Cross-entropy of a batch that is there twice, and `weight` times how much its halves differ; real targets.

    They differ by the mean of both Kullback-Leibler divergences. In the terms of Liang and others (2021), whose loss is
    twice this one, `weight` is alpha.
    """
    loss, count = cross_entropy(logits, targets, pad_id, smoothing)
    if weight:
        one, other = logits.log_softmax(dim=-1).chunk(2)
        divergences = ((one.exp() - other.exp()) * (one - other)).sum(dim=-1)  # of both directions
        loss = loss + weight / 2 * (divergences * (targets != pad_id).chunk(2)[0]).sum()
    return loss, count


class Twice(Trainer):
    """Shows the model each batch twice in a step, with different dropout."""

    def train_step(self, batches: list[tuple[Tensor, Tensor]], rate: float) -> tuple[float, int]:
        """One step on batches that hold every row twice, the second time in the second half."""
        return super().train_step([tuple(torch.cat([side, side]) for side in batch) for batch in batches], rate)


def steps_for(config: Any, settings: Settings, budget: float) -> int:
    """How many steps the budget buys, counted for pairs of sixteen tokens a side."""
    once = sum(training_flops(config, settings["max_tokens"] // 16, 16, 16).values())
    return max(12, int(budget / (once * (2 if settings["consistency"] else 1))))


def train(device: str, budget: float, job: dict[str, Any]) -> dict[str, Any]:
    """Train a translator; the job with its scores, and with steps, size and seconds."""
    torch.set_num_threads(1)
    settings, seed, exact = job["settings"], job["seed"], job["corpus"] == "cmudict"
    corpus, *tokenizers = learnt(job["corpus"], settings["vocab_size"])
    torch.manual_seed(seed)
    width, depth = settings["d_model"], settings["layers"]
    shape = {"norm_first": True, "share_embeddings": not exact, "max_length": 256, "num_heads": 4}
    shape |= {"d_model": width, "d_ff": 2 * width, "dropout": settings["dropout"]}
    shape |= {"num_encoder_layers": depth, "num_decoder_layers": depth}
    translator = new_translator(*tokenizers, "transformer", shape)
    size = sum(parameter.numel() for parameter in translator.model.parameters())
    row = job | {"parameters": size}
    if size > LARGEST:
        return row | {"validation_loss": 1e9, "validation": 0.0, "seconds": 0.0}
    steps = steps_for(translator.model.config, settings, budget)
    config = TrainingConfig(
        steps,
        settings["learning_rate"],
        warmup_steps=max(1, steps // 20),
        label_smoothing=settings["label_smoothing"],
        validate_every=max(1, steps // 40),
        seed=seed,
    )
    batches = Pairs(translator, corpus.train, settings["bpe_dropout"], settings["max_tokens"], seed)
    held_out = list(pair_batches(translator.encode_pairs(corpus.validation)))
    trainer = (Twice if settings["consistency"] else Trainer)(translator.model, config, device)
    trainer.criterion = partial(consistent, settings["consistency"])
    latest: list[dict[str, Tensor]] = []

    def validate(model: torch.nn.Module) -> dict[str, float]:
        latest.append({name: tensor.detach().clone() for name, tensor in model.state_dict().items()})
        del latest[: -max(AVERAGED)]
        return evaluate(model, held_out)

    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    try:
        history = trainer.train(batches, validate, progress=False)
    except FloatingPointError:  # a learning rate that is too high
        return row | {"validation_loss": 1e9, "validation": 0.0, "seconds": clock() - start}
    row |= {"steps": steps, "seconds": round(clock() - start, 1), "validation_loss": history[-1]["validation_loss"]}
    found = {}
    for count in AVERAGED:
        translator.model.load_state_dict(mean(latest[-count:]))
        found[count] = round(score(translator, corpus.validation, exact), 2)
    best = max(found, key=found.__getitem__)
    row |= {"averaged": found, "validation": found[best]}
    if job["part"] == "judge":
        translator.model.load_state_dict(mean(latest[-best:]))
        row["test"] = round(score(translator, corpus.test, exact), 2)
    return row


def mean(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each parameter over several states of a model."""
    return {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in states[0]}


def one_at_a_time(start: Settings, best: Settings) -> Iterator[tuple[str, Settings]]:
    """The way from one setting to another, an axis at a time: what has changed, and the settings with it."""
    now = dict(start)
    yield "today's", dict(now)
    for name, value in best.items():
        if now[name] != value:
            now[name] = value
            yield f"{name} {value}", dict(now)


def main() -> None:
    """Search, then judge."""
    jobs, device = asked_for(__doc__)
    store = Store("small_data", partial(train, device, BUDGET), jobs, {"axes": AXES, "budget": BUDGET})
    for name, (axes, start, corpora) in SEARCHES.items():

        def losses_of(some: list[Settings], name: str = name) -> list[float]:
            asked = [{"part": "search", "corpus": name, "model": "", "seed": 0, "settings": one} for one in some]
            return [-row["validation"] for row in store.do(asked)]

        best = climb({axis: AXES[axis] for axis in axes}, start, losses_of)
        for change, settings in one_at_a_time(start, best):
            store.chosen.setdefault(name, {}).setdefault("", {})[change] = settings
            for corpus in corpora:
                job = {"part": "judge", "corpus": corpus, "model": "", "settings": settings}
                store.do([job | {"seed": seed} for seed in SEEDS])
    store.save()


if __name__ == "__main__":
    main()
