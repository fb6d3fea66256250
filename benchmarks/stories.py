"""Chapter 17's stories, read by a vector for each line or for each token: `python -m benchmarks.stories --jobs 2`.

The two models have the same parameters, name by name, and learn as `configs/stories.toml` says, but for the learning
rate: each has its own, chosen by the share of right answers on the validation set, on an axis wide enough that its best
value lies inside. Then both are judged with three seeds. Of the first it is also kept where each changed word is after
each layer, by the chapter's own code. Takes twenty minutes of one core. Whatever is done is kept in
book/measurements/stories.json, and not done again.
"""

import time
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.pages import ROOT, names_before
from benchmarks.race import SEEDS, Store, asked_for, parameters
from benchmarks.search import climb
from dotformer.command_line.runs import Run
from dotformer.reading import babi_scores
from dotformer.training import Trainer, evaluate, pair_batches

AXES = {"learning_rate": [2.5e-4 * 2**n for n in range(7)]}
MODELS = ("facts", "transformer")  # kinds
LONGER = 4


@cache
def page() -> dict[str, Any]:
    """What chapter 17 defines."""
    return names_before("17_reading", "stories")


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one model, and judge it; the job with what is kept."""
    one = Run(ROOT / "configs/stories.toml", Path("runs/none"))  # its folder is never written
    one.config["model"]["kind"] = job["model"]
    rate, seed = job["settings"]["learning_rate"], job["seed"]
    steps = one.training.steps * job["settings"].get("times", 1)
    one.training = config = replace(one.training, learning_rate=rate, seed=seed, steps=steps)
    translator = one.translator()
    pairs, held_out = (one.encode_part(translator, part) for part in ("train", "validation"))
    torch.set_num_threads(1)
    batches = partial(pair_batches, pairs, max_tokens=config.max_tokens, seed=seed)
    validate = partial(evaluate, batches=list(pair_batches(held_out, max_tokens=config.max_tokens)))
    start = time.process_time()
    rows = Trainer(translator.model, config).train(batches, validate, progress=False)
    found = {
        "seconds": round(time.process_time() - start, 1),
        "parameters": parameters(translator.model),
        "validation_loss": rows[-1]["validation_loss"],
        "validation_exact": [round(row["validation_exact"], 4) for row in rows],
    }
    if job["part"] == "judge":
        translator.model.eval()
        answers = translator.translate([story.source for story in one.corpus.test], beam=1)
        found["scores"] = babi_scores(answers, one.corpus.test)
        if job["model"] == "facts":
            found["patched"] = {change: page()["patched"](translator, change) for change in page()["CHANGES"]}
    return job | found


if __name__ == "__main__":
    jobs, _ = asked_for(__doc__)
    store = Store("stories", run, jobs, {"axes": AXES})
    for model in MODELS:
        job = {"corpus": "stories", "model": model, "seed": 0}

        def losses_of(some: list[dict[str, Any]], job: dict[str, Any] = job) -> list[float]:
            """The share of wrong answers on the validation set; of equals the lower loss."""
            rows = store.do([job | {"part": "search", "settings": settings} for settings in some])
            return [1 - row["validation_exact"][-1] + row["validation_loss"] / 1000 for row in rows]

        store.chosen[model] = climb(AXES, {"learning_rate": 2e-3}, losses_of)
        judge = job | {"part": "judge", "settings": store.chosen[model]}
        store.do([judge | {"seed": seed} for seed in SEEDS])
    store.do([judge | {"settings": store.chosen["transformer"] | {"times": LONGER}}])
    store.save()
