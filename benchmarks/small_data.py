"""Translators from little data, setting by setting: `python -m benchmarks.small_data --device cuda --jobs 8`.

Trains a recipe, for captions close to configs/multi30k-en-de.toml, for words wider than configs/cmudict.toml, and
changes of it, one at a time, with up to three seeds, and keeps how well each does on the validation set: BLEU of
captions, and of words the percentage pronounced right. Then the recipe and its best change are judged on the test
set; captions in both directions. The length of a training is counted in FLOPs: with a `budget` of 1 it has as many as
`BUDGET`, whatever the model's size.

What the literature has for small data (Sennrich and Zhang 2019) is among the changes: few tokens, much dropout,
smaller batches; cutting words at random (BPE-dropout, Provilkov and others 2020), and asking two passes with
different dropout for the same answer (R-Drop, Liang and others 2021). Whatever is done is kept in
book/measurements/small_data.json, and not done again. On one core a training takes hours; an H200 does eight at a
time in six minutes.
"""

import time
from collections.abc import Iterable, Iterator
from functools import cache, partial
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers.convert_slow_tokenizer import bytes_to_unicode

from benchmarks.race import SEEDS, Store, asked_for
from benchmarks.search import Settings
from benchmarks.tokens import PATTERN
from dotformer.command_line.models import new_translator
from dotformer.data.corpora import Corpus, Pair, cmudict, multi30k
from dotformer.devices import GraphTrainer, level, training_flops
from dotformer.support.modes import matmul_precision
from dotformer.tokens import BPETokenizer
from dotformer.training import Trainer, TrainingConfig, cross_entropy, evaluate, pair_batches
from dotformer.translation import Translator, bleu, exact_match

BUDGET = 2e14  # FLOPs; 2,937 steps of the recipe for captions
AVERAGED = (1, 3, 5, 10)  # of how many of the last forty validations the parameters may be averaged
LARGEST = 12e6  # parameters
RECIPE: Settings = {  # of captions, close to configs/multi30k-en-de.toml
    "vocab_size": 6000,
    "learning_rate": 1.25e-3,
    "dropout": 0.3,
    "label_smoothing": 0.1,
    "max_tokens": 2048,
    "layers": 3,
    "d_model": 256,
    "bpe_dropout": 0.0,
    "consistency": 0.0,
    "budget": 6,
}
PRONOUNCING: Settings = {"dropout": 0.2, "max_tokens": 4096, "budget": 5}
TRIALS: dict[str, list[Settings]] = {  # what differs from RECIPE
    "en-de": [
        {},
        *({"dropout": share} for share in (0.2, 0.4)),
        *({"learning_rate": rate} for rate in (6.25e-4, 2.5e-3)),
        *({"vocab_size": size} for size in (3000, 10_000)),
        *({"label_smoothing": share} for share in (0.0, 0.2)),
        *({"layers": layers} for layers in (2, 5)),
        *({"d_model": width} for width in (128, 384)),
        *({"max_tokens": tokens} for tokens in (1024, 4096)),
        {"bpe_dropout": 0.1},
        {"consistency": 2.0},
        {"budget": 12},
    ],
    "cmudict": [
        PRONOUNCING | change
        for change in (
            {},
            *({"dropout": share} for share in (0.1, 0.3)),
            *({"learning_rate": rate} for rate in (6.25e-4, 2.5e-3)),
            {"layers": 5},
            {"budget": 15},
        )
    ],
}
JUDGED = {"en-de": ["en-de", "de-en"], "cmudict": ["cmudict"]}  # on which corpora


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
    """The training pairs as tokens, cut anew in each epoch where words are cut at random.

    They are padded to the few shapes that a GPU wants. Where two passes are compared, a batch holds every row twice.
    """

    def __init__(self, translator: Translator, pairs: list[Pair], settings: Settings, seed: int) -> None:
        self.translator, self.pairs, self.seed = translator, pairs, seed
        self.max_tokens, self.twice = settings["max_tokens"], bool(settings["consistency"])
        share = settings["bpe_dropout"]
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
        rows = level(rows, min(self.translator.longest, self.max_tokens - 1))
        for batch in pair_batches(rows, epoch, self.max_tokens, seed=self.seed):
            yield tuple(torch.cat([side, side]) for side in batch) if self.twice else batch


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


def steps_for(config: Any, settings: Settings) -> int:
    """How many steps the budget buys, counted for pairs of sixteen tokens a side."""
    once = sum(training_flops(config, settings["max_tokens"] // 16, 16, 16).values())
    return max(12, int(BUDGET * settings["budget"] / (once * (2 if settings["consistency"] else 1))))


def train(device: str, job: dict[str, Any]) -> dict[str, Any]:
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
    steps = steps_for(translator.model.config, settings)
    config = TrainingConfig(
        steps,
        settings["learning_rate"],
        warmup_steps=max(1, steps // 20),
        label_smoothing=settings["label_smoothing"],
        validate_every=max(1, steps // 40),
        seed=seed,
    )
    batches = Pairs(translator, corpus.train, settings, seed)
    held_out = list(pair_batches(translator.encode_pairs(corpus.validation)))
    trainer = (GraphTrainer if device == "cuda" else Trainer)(translator.model, config, device)
    trainer.criterion = partial(consistent, settings["consistency"])
    latest: list[dict[str, Tensor]] = []

    def validate(model: torch.nn.Module) -> dict[str, float]:
        latest.append({name: tensor.detach().clone() for name, tensor in model.state_dict().items()})
        del latest[: -max(AVERAGED)]
        return evaluate(model, held_out)

    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    try:
        with matmul_precision("high"):  # tf32, where there is
            history = trainer.train(batches, validate, progress=False)
    except FloatingPointError:  # a learning rate that is too high
        return row | {"validation_loss": 1e9, "validation": 0.0, "seconds": clock() - start}
    row |= {"steps": steps, "seconds": round(clock() - start, 1), "validation_loss": history[-1]["validation_loss"]}
    found = {}
    for count in AVERAGED:
        translator.model.load_state_dict(mean(latest[-count:]))
        found[count] = round(evaluate(translator.model, held_out)["loss"], 4)
    best = min(found, key=found.__getitem__)
    translator.model.load_state_dict(mean(latest[-best:]))
    row |= {"averaged": found, "validation": round(score(translator, corpus.validation, exact), 2)}
    if job["part"] == "judge":
        row["test"] = round(score(translator, corpus.test, exact), 2)
    return row


def mean(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each parameter over several states of a model."""
    return {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in states[0]}


def jobs_of(part: str, corpora: list[str], seeds: Iterable[int], changes: list[Settings]) -> list[dict[str, Any]]:
    """What is to be done for each change of `RECIPE`, on each corpus, with each seed."""
    return [
        {"part": part, "corpus": corpus, "model": "", "seed": seed, "settings": RECIPE | change}
        for change in changes
        for corpus in corpora
        for seed in seeds
    ]


def main() -> None:
    """Try, then judge."""
    jobs, device = asked_for(__doc__)
    about = {"budget": BUDGET, "recipe": RECIPE} | (
        {"accelerator": torch.cuda.get_device_name()} if device == "cuda" else {}
    )
    store = Store("small_data", partial(train, device), jobs, about)
    for name, changes in TRIALS.items():
        rows = store.do(jobs_of("search", [name], SEEDS, changes))
        count = len(SEEDS)  # rows of each change, one after the other
        sums = [sum(row["validation"] for row in rows[n : n + count]) for n in range(0, len(rows), count)]
        best = changes[sums.index(max(sums))]
        store.do(jobs_of("judge", JUDGED[name], SEEDS, [changes[0], best] if best != changes[0] else [best]))
    store.save()


if __name__ == "__main__":
    main()
