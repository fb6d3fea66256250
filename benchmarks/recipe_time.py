"""How long the two recipes for captions take on a CPU: `python -m benchmarks.recipe_time`.

Times steps of configs/multi30k-en-de.toml and configs/multi30k-de-en.toml as `python -m dotformer train` takes them, in
turns, with a thread for each core, and one validation of each. Nothing else should run meanwhile. Takes three minutes
and writes book/measurements/recipe_time.json.
"""

import os
import time
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.results import save
from dotformer.command_line.runs import Run
from dotformer.devices import FastTrainer
from dotformer.support.memory import keep_freed_memory
from dotformer.training import evaluate, pair_batches

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
STEPS, ROUNDS = 60, 3


class Timed:
    """A run of a recipe from its start, some steps at a time."""

    def __init__(self, name: str, folder: Path) -> None:
        self.run = Run.begin(CONFIGS / f"{name}.toml", folder)
        config, translator = self.run.training, self.run.translator()
        pairs, held_out = (self.run.encode_part(translator, part) for part in ("train", "validation"))
        self.batches = pair_batches(pairs, max_tokens=config.max_tokens, seed=config.seed, alike=True)
        self.held_out = list(pair_batches(held_out, max_tokens=config.max_tokens))
        self.trainer, self.seconds = FastTrainer(translator.model, config, "cpu"), []
        if config.precision == "bfloat16":
            self.trainer.precision = partial(torch.autocast, "cpu", torch.bfloat16)
        self.go(10)  # the first steps get their memory
        self.seconds.clear()

    def go(self, steps: int) -> None:
        """Take some steps, and keep how long each took."""
        self.trainer.model.train()
        for batch in islice(self.batches, steps):
            start = time.perf_counter()
            self.trainer.train_step([batch], self.run.training.learning_rate_at(1))
            self.seconds.append(time.perf_counter() - start)

    def figures(self) -> dict[str, float]:
        """Seconds of a step, on average, and of a validation; hours of the whole training."""
        start = time.perf_counter()
        evaluate(self.trainer.model, self.held_out)
        validation, config = time.perf_counter() - start, self.run.training
        step = sum(self.seconds) / len(self.seconds)
        hours = (config.steps * step + config.steps / config.validate_every * validation) / 3600
        return {"step": step, "validation": validation, "hours": hours}


def main() -> None:
    """Time both recipes and write down what it took."""
    torch.set_num_threads(os.cpu_count() or 1)
    keep_freed_memory()
    with TemporaryDirectory() as folder:
        both = {name: Timed(name, Path(folder, name)) for name in ("multi30k-en-de", "multi30k-de-en")}
        for _ in range(ROUNDS):
            for timed in both.values():
                timed.go(STEPS)
        save("recipe_time", {"recipes": {name: timed.figures() for name, timed in both.items()}})


if __name__ == "__main__":
    main()
