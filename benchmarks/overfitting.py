"""Chapter 11's model on few numbers, and what helps against overfitting: `python -m benchmarks.overfitting`.

Trains it on 150 numbers, three seeds each. Takes ten minutes of one core and writes
book/measurements/overfitting.json.
"""

from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from benchmarks.recipes import SEEDS, run
from benchmarks.results import save
from dotformer.data.corpora import number_words
from dotformer.support.modes import evaluating
from dotformer.support.progress import Batch, Row
from dotformer.training import evaluate

FEW = {"numbers": 150, "label_smoothing": 0.0}
REMEDIES: dict[str, dict[str, Any]] = {
    "none": {},
    "label smoothing 0.1": {"label_smoothing": 0.1},
    "weight decay 0.1": {"weight_decay": 0.1},
    "weight decay 1": {"weight_decay": 1.0},
    "weight decay 3": {"weight_decay": 3.0},
    "dropout 0.1": {"dropout": 0.1},
    "dropout 0.2": {"dropout": 0.2},
}


@torch.no_grad()
def sureness(model: nn.Module, batches: list[Batch], pad_id: int = 0) -> Row:
    """What `evaluate` finds, and how probable the model holds its best guess of a token to be.

    That is "sure_right" where the guess is right and "sure_wrong" where it is wrong, both on average; "loss_wrong" is
    the share of the loss that wrong guesses make.
    """
    sure, right, losses = [], [], []
    with evaluating(model):
        for source, target in batches:
            logs, target = model(source, target[:, :-1]).log_softmax(dim=-1), target[:, 1:]
            best, guess = logs.max(dim=-1)
            real = target != pad_id
            sure.append(best.exp()[real])
            right.append((guess == target)[real])
            losses.append(-logs.gather(-1, target[..., None])[..., 0][real])
    probability, hit, loss = torch.cat(sure), torch.cat(right), torch.cat(losses)
    told = {"sure_right": probability[hit].mean(), "sure_wrong": probability[~hit].mean()}
    told["loss_wrong"] = loss[~hit].sum() / loss.sum()
    return evaluate(model, batches) | {name: float(value) for name, value in told.items()}


def main() -> None:
    """Train with each remedy and save what it did."""
    corpus = number_words()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in REMEDIES}
    for name, seed in tqdm([(name, seed) for name in REMEDIES for seed in SEEDS], unit="run"):
        runs[name].append(run(corpus, seed, figures=sureness, **(FEW | REMEDIES[name])))
    save("overfitting", {"common": FEW, "remedies": REMEDIES, "runs": runs})


if __name__ == "__main__":
    main()
