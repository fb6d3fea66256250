"""Chapter 8's small encoders, whole, with a part left out, with and without warm-up: `python -m benchmarks.encoders`.

And stacks of one layer, with and without feed-forward network, and of twelve, in either order of norm and sum, with
several starts, and without norms or residual connections. The code is the chapter's own. Takes two hours of one core
and writes book/measurements/encoders.json.
"""

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
    save("encoders", {"parts": parts, "one_layer": one_layer, "warm_up": warm_up, "deep": deep})


if __name__ == "__main__":
    main()
