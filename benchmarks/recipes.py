"""What the parts of a recipe do to chapter 11's model: `python -m benchmarks.recipes`.

Trains it with each recipe, three seeds each; Adam and gradient descent over a grid of learning rates. Takes half an
hour of one core and writes book/measurements/recipes.json.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn, optim
from tqdm import tqdm

from benchmarks.results import save
from dotformer.data.corpora import Corpus, number_words
from dotformer.support.progress import Batch, Row
from dotformer.tokens import BPETokenizer
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches
from dotformer.transformer import Transformer, TransformerConfig

SEEDS = range(3)
CHAPTER = {"steps": 600, "learning_rate": 3e-3, "warmup_steps": 100, "validate_every": 25}
RECIPES: dict[str, dict[str, Any]] = {  # what differs from the chapter's
    "the chapter's": {},
    "no smoothing": {"label_smoothing": 0.0},
    "1/sqrt": {"schedule": "inverse_sqrt"},
    "cosine": {"cosine": True},
    "the paper's": {"schedule": "inverse_sqrt", "learning_rate": (64 * 4000) ** -0.5, "warmup_steps": 4000},
    "double learning rate": {"learning_rate": 6e-3},
    "double learning rate, no warm-up": {"learning_rate": 6e-3, "warmup_steps": 1},
    "no warm-up": {"warmup_steps": 1},
    "no clipping": {"max_grad_norm": 1e9},
    **{f"Adam, {rate}": {"learning_rate": rate} for rate in (3e-4, 1e-3, 1e-2, 3e-2)},  # and 3e-3 is the chapter's
    **{f"SGD, {rate}": {"learning_rate": rate, "sgd": True} for rate in (1e-2, 3e-2, 0.1, 0.3, 1.0)},
    "SGD, 0.1, no clipping": {"learning_rate": 0.1, "sgd": True, "max_grad_norm": 1e9},
}
AVERAGED = 5  # checkpoints at the end, whose parameters are averaged


@dataclass(frozen=True)
class CosineConfig(TrainingConfig):
    """Up in a line to the peak, then down along half a cosine to 0."""

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, the first of which is 1."""
        if step <= self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        done = (step - self.warmup_steps) / (self.steps - self.warmup_steps)
        return self.learning_rate * (1 + math.cos(math.pi * done)) / 2


def tokenizers_of(corpus: Corpus) -> tuple[BPETokenizer, BPETokenizer]:
    """One for each side, in which every word is a token, as in the chapter."""
    sides = zip(*((" " + pair.source, " " + pair.target) for pair in corpus.train), strict=True)
    english, german = (BPETokenizer.train(side, 10_000) for side in sides)
    return english, german


def optimizer_of(model: nn.Module, sgd: bool, weight_decay: float) -> optim.Optimizer:
    """Gradient descent with momentum 0.9, or Adam with decoupled weight decay (with none, it is the chapter's)."""
    if sgd:
        return optim.SGD(model.parameters(), momentum=0.9)
    return optim.AdamW(model.parameters(), betas=(0.9, 0.98), eps=1e-9, weight_decay=weight_decay)


def run(
    corpus: Corpus,
    seed: int,
    numbers: int = 20_000,
    dropout: float = 0.0,
    sgd: bool = False,
    weight_decay: float = 0.0,
    cosine: bool = False,
    figures: Callable[[nn.Module, list[Batch]], Row] = evaluate,
    **options: Any,
) -> dict[str, Any]:
    """Train with a recipe and a seed: its losses, its validations, its test, and that of its last checkpoints' mean.

    `figures` is what a validation finds.
    """
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
    sizes = {"d_model": 64, "num_heads": 4, "d_ff": 128, "dropout": dropout}
    model = Transformer(TransformerConfig(len(english), len(german), **sizes, **layers))
    kind = CosineConfig if cosine else TrainingConfig
    config = kind(**(CHAPTER | options | {"seed": seed}))
    batches, held_out = list(pair_batches(validation)), list(pair_batches(test))
    checkpoints: list[dict[str, Tensor]] = []

    def validate(model: nn.Module) -> dict[str, float]:
        checkpoints.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        del checkpoints[:-AVERAGED]
        return figures(model, batches)

    trainer = Trainer(model, config)
    trainer.optimizer = optimizer_of(model, sgd, weight_decay)
    rows = trainer.train(partial(pair_batches, learn, max_tokens=1024, seed=seed), validate, progress=False)
    found: dict[str, Any] = {"seed": seed, "test": evaluate(model, held_out)}
    means = {name: torch.stack([state[name] for state in checkpoints]).mean(dim=0) for name in checkpoints[0]}
    model.load_state_dict(means)
    found["test_averaged"] = evaluate(model, held_out)
    names = ["step", "loss", *(name for name in rows[0] if name.startswith("validation_"))]
    return found | {name: [row[name] for row in rows] for name in names}


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
