"""Chapter 11's model on few numbers, and what helps against overfitting: `python -m benchmarks.overfitting`.

Trains it on 150 numbers, three seeds each. Takes ten minutes of one core and writes
book/measurements/overfitting.json.
"""

from typing import Any

from tqdm import tqdm

from benchmarks.recipes import SEEDS, run
from benchmarks.results import save
from dotformer.data.corpora import number_words

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


def main() -> None:
    """Train with each remedy and save what it did."""
    corpus = number_words()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in REMEDIES}
    for name, seed in tqdm([(name, seed) for name in REMEDIES for seed in SEEDS], unit="run"):
        runs[name].append(run(corpus, seed, **(FEW | REMEDIES[name])))
    save("overfitting", {"common": FEW, "remedies": REMEDIES, "runs": runs})


if __name__ == "__main__":
    main()
