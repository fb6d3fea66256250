"""Chapter 8's task with and without warm-up, over learning rates: `python -m benchmarks.warm_up`.

The code is the chapter's own. Takes ten minutes of one core and writes book/measurements/warm_up.json.
"""

from tqdm import tqdm

from benchmarks.pages import names_before
from benchmarks.results import save

RATES = (0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03)
SEEDS = range(3)
SETTINGS = [(norm_first, warm_up) for norm_first in (False, True) for warm_up in (1, 200)]


def main() -> None:
    """Train and save every loss, rounded to what a figure can show."""
    learn = names_before("08_encoder", "warm_up")["learn_to_reverse"]
    found = []
    for norm_first, warm_up in SETTINGS:
        for rate in tqdm(RATES, desc=f"norm first: {norm_first}, warm-up {warm_up}"):
            runs = [learn(norm_first, warm_up, seed, learning_rate=rate) for seed in SEEDS]
            ends = [sum(losses[-20:]) / 20 for losses in runs]
            curves = [[round(sum(losses[n : n + 10]) / 10, 3) for n in range(0, len(losses), 10)] for losses in runs]
            settings = {"norm_first": norm_first, "warm_up": warm_up, "learning_rate": rate}
            found.append(settings | {"ends": ends, "curves": curves})
    save("warm_up", {"found": found})


if __name__ == "__main__":
    main()
