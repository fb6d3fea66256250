"""Chapter 8's small encoders, whole, with a part left out, with and without warm-up: `python -m benchmarks.encoders`.

And stacks of one layer, with and without feed-forward network, and of twelve, in either order of norm and sum, with
several starts, and without norms or residual connections; those of twelve once more until they have learned, at their
best learning rate. The code is the chapter's own. Takes three hours of one core and writes
book/measurements/encoders.json.
"""

from collections.abc import Callable
from itertools import product
from math import isfinite

from tqdm import tqdm

from benchmarks.pages import names_before
from benchmarks.results import save

SEEDS = range(3)
PARTS = (None, "residual", "residual, attention", "residual, feed-forward", "norm", "attention", "feed-forward")
RATES_PARTS = (0.0003125, 0.000625, 0.00125, 0.0025, 0.005, 0.01, 0.02)
RATES_WARM_UP = (0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.045, 0.06)
RATES_DEEP = tuple(0.02 / 2**n for n in range(10))
DEEP = (
    {"norm_first": True},
    {"norm_first": False},
    {"norm_first": False, "small_start": True},
    {"norm_first": False, "glorot": False},
    {"without": "norm"},
    {"without": "norm", "small_start": True},
    {"without": "residual"},
)
LAST = 20  # steps at the end whose mean is a result
LONGEST, LEARNED = 5000, 0.99  # steps at most, until so much is right


def best_of(rows: list[dict], settings: dict) -> dict:
    """Of the rows with these settings, and none that they lack, the one that gets most right on average."""
    fixed = {"task", "learning_rate", "steps", "losses", "right"}
    same = [row for row in rows if {name: row[name] for name in row.keys() - fixed} == settings]
    return max(same, key=lambda row: sum(row["right"]))


def learned_at(right: list[float]) -> int | None:
    """The first step at which the mean of the last `LAST` shares right is `LEARNED`, or None."""
    means = (sum(right[step - LAST : step]) / LAST for step in range(LAST, len(right) + 1))
    return next((step for step, mean in enumerate(means, LAST) if mean >= LEARNED), None)


def until_learned(learn: Callable, settings: dict, best: dict) -> dict[str, object]:
    """When each seed has learned to reverse, at the best learning rate, in 600 steps or, if not all did, `LONGEST`."""
    steps = 600 if min(best["right"]) > LEARNED else LONGEST
    settings = settings | {"learning_rate": best["learning_rate"], "steps": steps}
    runs = (learn("reverse", seed=seed, **settings) for seed in SEEDS)
    return settings | {"learned_at": [learned_at(right) for _, _, right in runs]}


def main() -> None:
    """Train and save the losses and the shares right at the end."""
    learn = names_before("08_encoder", "encoders")["learn"]

    def runs(task: str, **settings: object) -> dict[str, object]:
        ends: dict[str, list[float | None]] = {"losses": [], "right": []}
        for seed in SEEDS:
            _, losses, right = learn(task, seed=seed, **settings)
            loss = sum(losses[-LAST:]) / LAST
            ends["losses"].append(loss if isfinite(loss) else None)
            ends["right"].append(sum(right[-LAST:]) / LAST)
        return {"task": task} | settings | ends

    parts = [
        runs(task, without=without, learning_rate=rate, steps=600)
        for task, without, rate in tqdm([*product(("reverse", "add"), PARTS, RATES_PARTS)])
    ]
    one_layer = [
        runs("add", without=without, num_layers=1, learning_rate=rate, steps=600)
        for without, rate in tqdm([*product((None, "feed-forward"), RATES_PARTS)])
    ]
    warm_up = [
        runs("reverse", norm_first=norm_first, warm_up=steps, learning_rate=rate)
        for norm_first, steps, rate in tqdm([*product((False, True), (1, 200), RATES_WARM_UP)])
    ]
    deep = [
        runs("reverse", **settings, num_layers=12, learning_rate=rate, steps=600)
        for settings, rate in tqdm([*product(DEEP, RATES_DEEP)])
    ]
    stacks = [(deep, settings | {"num_layers": 12}) for settings in DEEP]
    stacks.append(([row for row in parts if row["task"] == "reverse"], {"without": "residual, attention"}))
    longer = [until_learned(learn, settings, best_of(rows, settings)) for rows, settings in tqdm(stacks)]
    results = {"parts": parts, "one_layer": one_layer, "warm_up": warm_up, "deep": deep, "longer": longer}
    save("encoders", results)


if __name__ == "__main__":
    main()
