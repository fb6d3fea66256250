"""Chapter 9's small talk, learnt nine times: `python -m benchmarks.answers`.

The code is the chapter's own. Takes a minute of one core and writes book/measurements/answers.json.
"""

from tqdm import tqdm

from benchmarks.pages import names_before
from benchmarks.results import save

SEEDS = range(9)


def main() -> None:
    """Train, measure, save."""
    train_and_look = names_before("09_decoder", "answers")["train_and_look"]
    save("answers", {"models": [train_and_look(seed) for seed in tqdm(SEEDS, desc="answers")]})


if __name__ == "__main__":
    main()
