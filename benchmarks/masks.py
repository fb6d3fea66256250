"""Chapter 9's wrong masks, each trained with nine seeds: `python -m benchmarks.masks`.

The code is the chapter's own. Takes five minutes of one core and writes book/measurements/masks.json.
"""

from tqdm import tqdm

from benchmarks.pages import names_before
from benchmarks.results import save

SEEDS = range(9)


def main() -> None:
    """Train, measure, save."""
    page = names_before("09_decoder", "masks")
    found = {
        name: [page["trained_with"](make, seed) for seed in SEEDS]
        for name, make in tqdm(page["variants"].items(), desc="masks")
    }
    save("masks", {"found": found})


if __name__ == "__main__":
    main()
