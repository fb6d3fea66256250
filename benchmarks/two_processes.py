"""Chapter 21's race of two processes against one: `python -m benchmarks.two_processes`.

The code is the chapter's own. Takes three minutes of two cores and writes book/measurements/two_processes.json.
"""

from functools import partial

from benchmarks.pages import names_before
from benchmarks.results import save
from dotformer.support.processes import launch

SENTENCES = (32, 4)


def main() -> None:
    """Race, save."""
    race = names_before("21_many_gpus", "two_processes")["race"]
    found = {n: [launch(partial(race, n), size)[0] for size in (1, 2)] for n in SENTENCES}
    save("two_processes", {"found": found})


if __name__ == "__main__":
    main()
