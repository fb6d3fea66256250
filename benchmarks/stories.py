"""Chapter 17's stories, read by a vector for each line or for each token: `python -m benchmarks.stories --jobs 2`.

A third has a vector for each token that says in which line it is and where, as the sums of the first do.
The models have the same parameters, name by name, and learn as `configs/stories.toml` says, but for the learning rate:
each has its own, chosen by the share of right answers on the validation set, on an axis wide enough that its best value
lies inside. Then all are judged with three seeds. Of the first it is also kept where each changed word is after each
layer, by the chapter's own code. Takes forty minutes of one core. Whatever is done is kept in
book/measurements/stories.json, and not done again.
"""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.pages import ROOT, names_before
from benchmarks.race import SEEDS, Store, asked_for, parameters
from benchmarks.search import climb
from dotformer.command_line.runs import Run
from dotformer.decoder import padding_mask
from dotformer.generation import KVCache
from dotformer.reading import FactTransformer, babi_scores, line_positions
from dotformer.training import Trainer, evaluate, pair_batches
from dotformer.transformer import Transformer
from dotformer.translation import Translator

AXES = {"learning_rate": [2.5e-4 * 2**n for n in range(7)]}
MODELS = ("facts", "transformer", "placed tokens")  # kinds
LONGER = 4


class PlacedTokens(Transformer):
    """A transformer that gets what a `FactTransformer` adds up, a vector for each token.

    It is the token's embedding, multiplied by the sinusoid of its position in its line, plus that of the line.
    """

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The memory (B, S, D) and its mask (B, 1, 1, S), from source tokens (B, S)."""
        mask, e = padding_mask(source, self.config.pad_id), self.source_embeddings
        line, position = line_positions(source, FactTransformer.newline)
        sinusoids = e.positions.table[position * mask[:, 0, 0]]
        x = e.tokens(source) * e.scale * sinusoids + e.positions.table[line]
        return self.encoder(e.positions.dropout(x), mask), mask


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one model, and judge it; the job with what is kept."""
    one = Run(ROOT / "configs/stories.toml", Path("runs/none"))  # its folder is never written
    placed = job["model"] == "placed tokens"
    one.config["model"]["kind"] = "transformer" if placed else job["model"]
    rate, seed = job["settings"]["learning_rate"], job["seed"]
    steps = one.training.steps * job["settings"].get("times", 1)
    one.training = config = replace(one.training, learning_rate=rate, seed=seed, steps=steps)
    translator = one.translator()
    if placed:
        model = PlacedTokens(translator.model.config)
        model.load_state_dict(translator.model.state_dict())
        translator = Translator(translator.source, translator.target, model, KVCache, translator.longest)
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
            page = names_before("17_reading", "stories")  # what the chapter defines
            found["patched"] = {change: page["patched"](translator, change) for change in page["CHANGES"]}
    return job | found


if __name__ == "__main__":
    jobs, _ = asked_for(__doc__)
    store = Store("stories", run, jobs, {"axes": AXES})

    def losses_of(job: dict[str, Any], some: list[dict[str, Any]]) -> list[float]:
        """The share of wrong answers on the validation set; of equals the lower loss."""
        rows = store.do([job | {"part": "search", "settings": settings, "seed": 0} for settings in some])
        return [1 - row["validation_exact"][-1] + row["validation_loss"] / 1000 for row in rows]

    for model in MODELS:
        job = {"corpus": "stories", "model": model}
        best = climb(AXES, {"learning_rate": 2e-3}, partial(losses_of, job))
        store.chosen.setdefault("stories", {})[model] = best
        store.do([job | {"part": "judge", "settings": best, "seed": seed} for seed in SEEDS])
    longer = store.chosen["stories"]["transformer"] | {"times": LONGER}
    store.do([{"part": "judge", "corpus": "stories", "model": "transformer", "seed": 0, "settings": longer}])
    store.save()
