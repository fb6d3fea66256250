"""What warm-up, schedule and label smoothing do to chapter 11's model: `python -m benchmarks.recipes`.

Trains it with each recipe, three seeds each, which takes some 10 minutes, and writes book/measurements/recipes.json.
"""

from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.results import save
from dotformer.data.corpora import Corpus, number_words
from dotformer.tokens import BPETokenizer
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches
from dotformer.transformer import Transformer, TransformerConfig

SEEDS = range(3)
CHAPTER = {"steps": 600, "learning_rate": 3e-3, "warmup_steps": 100, "validate_every": 25}
RECIPES: dict[str, dict[str, Any]] = {  # what differs from the chapter's; "numbers" is how many there are to learn from
    "the chapter's": {},
    "no smoothing": {"label_smoothing": 0.0},
    "1/sqrt": {"schedule": "inverse_sqrt"},
    "the paper's": {"schedule": "inverse_sqrt", "learning_rate": (64 * 4000) ** -0.5, "warmup_steps": 4000},
    "double learning rate": {"learning_rate": 6e-3},
    "double learning rate, no warm-up": {"learning_rate": 6e-3, "warmup_steps": 1},
    "no warm-up": {"warmup_steps": 1},
    "few numbers": {"numbers": 1000, "steps": 300},
    "few numbers, no smoothing": {"numbers": 1000, "steps": 300, "label_smoothing": 0.0},
}


def tokenizers_of(corpus: Corpus) -> tuple[BPETokenizer, BPETokenizer]:
    """One for each side, in which every word is a token, as in the chapter."""
    sides = zip(*((" " + pair.source, " " + pair.target) for pair in corpus.train), strict=True)
    english, german = (BPETokenizer.train(side, 10_000) for side in sides)
    return english, german


def run(corpus: Corpus, seed: int, numbers: int = 20_000, **options: Any) -> dict[str, Any]:
    """Train with a recipe and a seed: its validations, and its test."""
    english, german = tokenizers_of(corpus)
    learn, validation, test = (
        [
            (english.encode(" " + pair.source), german.encode(" " + pair.target, add_special_tokens=True))
            for pair in pairs
        ]
        for pairs in (corpus.train[:numbers], corpus.validation, corpus.test)
    )
    torch.manual_seed(seed)
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2, "max_length": 64}
    sizes = {"d_model": 64, "num_heads": 4, "d_ff": 128, "dropout": 0.0}
    model = Transformer(TransformerConfig(len(english), len(german), **sizes, **layers))
    config = TrainingConfig(**(CHAPTER | options | {"seed": seed}))
    validate = partial(evaluate, batches=list(pair_batches(validation)))
    batches = partial(pair_batches, learn, max_tokens=1024, seed=seed)
    rows = Trainer(model, config).train(batches, validate, progress=False)
    names = ("step", "validation_loss", "validation_exact")
    return {"seed": seed, "test": evaluate(model, pair_batches(test))} | {
        name: [row[name] for row in rows] for name in names
    }


def main() -> None:
    """Run all recipes and save what they did."""
    corpus = number_words()
    work = tqdm([(name, seed) for name in RECIPES for seed in SEEDS], unit="run")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in RECIPES}
    for name, seed in work:
        runs[name].append(run(corpus, seed, **RECIPES[name]))
    save("recipes", {"common": CHAPTER, "recipes": RECIPES, "runs": runs})


if __name__ == "__main__":
    main()
