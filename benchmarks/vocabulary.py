"""Language models with vocabularies of several sizes: `DOTFORMER_DATA=folder python -m benchmarks.vocabulary --jobs 2`.

Each reads the English and German captions of Multi30k once, in the same number of steps, and has a learning rate of its
own: the best on the validation captions, with neighbours on both sides. All have layers of one width, so that a larger
vocabulary has more parameters; one has a small vocabulary, and wider layers instead. Three seeds are scored on the test
captions, in bits per byte. Takes an hour and a half of one core. The result goes to book/measurements/vocabulary.json,
which chapter 10 shows; what is there is not done again.
"""

import argparse
import math
import time
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch

from benchmarks.race import SEEDS, Store
from benchmarks.search import Settings, climb
from dotformer.data.corpora import multi30k
from dotformer.gpt import GPT, GPTConfig
from dotformer.tokens import BPETokenizer
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches

MODELS: list[Settings] = [{"vocab_size": size, "d_model": 128} for size in (300, 1000, 2000, 4000, 8000, 16_000)]
MODELS.append({"vocab_size": 2000, "d_model": 280})  # with as many parameters as the largest
RATES = [3.75e-4 * 2**n for n in range(8)]
CAPTIONS, WARMUP = 64, 100  # of a step, on average; steps
SHAPE = {"num_heads": 4, "num_layers": 2, "dropout": 0.0, "max_length": 320}
Pairs = list[tuple[list[int], list[int]]]


@cache
def texts() -> dict[str, list[str]]:
    """The captions in both languages, each with a space before it: "train", "validation" and "test"."""
    corpus = multi30k("en", "de")
    return {part: [f" {text}" for pair in pairs for text in pair[:2]] for part, pairs in vars(corpus).items()}


@cache
def tokenizer_of(vocab_size: int) -> BPETokenizer:
    """A tokenizer that has learnt from the captions."""
    return BPETokenizer.train(texts()["train"], vocab_size)


def as_pairs(tokenizer: BPETokenizer, some: Sequence[str]) -> Pairs:
    """For each text a prompt of one token, and the text between its begin and end."""
    return [([tokenizer.bos_id], [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]) for text in some]


def bits_per_byte(model: GPT, pairs: Pairs, some: Sequence[str]) -> float:
    """What the texts cost a model, their ends included, over the bytes of the texts."""
    targets = sum(len(target) - 1 for _, target in pairs)
    nats = evaluate(model, pair_batches(pairs))["loss"] * targets
    return nats / math.log(2) / sum(len(text.encode()) for text in some)


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Train one model; the job with its size, seconds, and bits per byte of validation and test captions."""
    torch.set_num_threads(1)
    tokenizer = tokenizer_of(job["settings"]["vocab_size"])
    learn, held_out, test = (as_pairs(tokenizer, some) for some in texts().values())
    torch.manual_seed(job["seed"])
    width = job["settings"]["d_model"]
    model = GPT(GPTConfig(vocab_size=len(tokenizer), d_model=width, d_ff=4 * width, **SHAPE))
    most = round(CAPTIONS * sum(len(target) for _, target in learn) / len(learn))
    batches = partial(pair_batches, learn, max_tokens=most, seed=job["seed"])
    steps = sum(1 for _ in batches())
    config = TrainingConfig(
        steps, job["settings"]["learning_rate"], WARMUP, label_smoothing=0.0, validate_every=steps, seed=job["seed"]
    )
    start = time.process_time()
    row = Trainer(model, config).train(batches, partial(evaluate, batches=list(pair_batches(held_out))), progress=False)
    return job | {
        "seconds": round(time.process_time() - start, 1),
        "steps": steps,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "validation_loss": round(row[-1]["validation_loss"], 4),
        "validation_bits": round(bits_per_byte(model, held_out, texts()["validation"]), 4),
        "bits": round(bits_per_byte(model, test, texts()["test"]), 4),
    }


def main() -> None:
    """Search and judge, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1, help="how many to train at a time")
    store = Store("vocabulary", train, parser.parse_args().jobs, {"shape": SHAPE, "captions": CAPTIONS})

    def run(some: list[Settings], seeds: Sequence[int] = (0,)) -> list[dict[str, Any]]:
        same = {"part": "train", "corpus": "multi30k", "model": "gpt"}
        return store.do([same | {"seed": seed, "settings": one} for one in some for seed in seeds])

    def losses_of(some: list[Settings]) -> list[float]:
        return [row["validation_bits"] for row in run(some)]

    run([model | {"learning_rate": rate} for model in MODELS for rate in RATES[2:5]])  # side by side
    chosen = [climb({"learning_rate": RATES}, model | {"learning_rate": RATES[3]}, losses_of) for model in MODELS]
    run(chosen, SEEDS)
    store.about["models"] = chosen
    store.save()


if __name__ == "__main__":
    main()
