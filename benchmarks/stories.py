"""Chapter 17's stories, read by a vector for each line or for each token: `python -m benchmarks.stories --jobs 2`.

A third has a vector for each token that says in which line it is and where, as the sums of the first do.
The models have the same parameters, name by name, and learn as `configs/stories.toml` says, but for the learning rate:
each has its own, chosen by the share of right answers on the validation set, on an axis wide enough that its best value
lies inside. Then all are judged with three seeds. Of the first it is also kept where each changed word is after each
layer, by the chapter's own code.

Then a third fact is needed: each thing holds another, and one may ask for that. The first model, with a third encoder
layer and more steps, learns such stories as they come, or only those in which the room of whoever took something is no
answer; here the learning rate is chosen with three seeds. Takes two hours of one core. Whatever is done is kept in
book/measurements/stories.json, and not done again.
"""

import time
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.pages import ROOT, names_before
from benchmarks.race import SEEDS, Store, asked_for, parameters
from benchmarks.search import climb
from dotformer.command_line.runs import Run
from dotformer.data.babi import Story
from dotformer.data.corpora import Corpus, distinct
from dotformer.decoder import padding_mask
from dotformer.generation import KVCache
from dotformer.reading import FactTransformer, babi_scores, line_positions, story
from dotformer.training import Trainer, evaluate, pair_batches
from dotformer.transformer import Transformer
from dotformer.translation import Translator

AXES = {"learning_rate": [2.5e-4 * 2**n for n in range(7)]}
MODELS = ("facts", "transformer", "placed tokens")  # kinds
LONGER, MORE = 4, {"times": 3}
THINGS, HELD = ("ball", "book", "cup"), ("coin", "key", "ring")
LINES = "question", "held", "took", "went", "all others"  # of a story whose question takes three facts
WORLDS = {"as they come": False, "told apart": True}


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


@cache
def page() -> dict[str, Any]:
    """What chapter 17 defines."""
    return names_before("17_reading", "stories")


def rooms(one: Story) -> list[str]:
    """Where those are who took something, whoever took something last first."""
    facts = one.source.split("\n ")[1:]
    owners = (fact.split()[0] for fact in facts if " took " in fact)
    return [next(fact for fact in facts if fact.startswith(f"{who} went"))[:-1].split()[-1] for who in owners]


def held(rng: Random, apart: bool) -> Story:
    """A story of the chapter's, after three facts about what each thing holds; its question takes one to three facts.

    With `apart`, those who took something are in two rooms or more, unless one fact is enough.
    """
    hops, one = rng.randint(1, 3), story(rng)
    while one.task != min(hops, 2) or (apart and hops > 1 and len({*rooms(one)}) < 2):
        one = story(rng)
    question, *facts = one.source.split("\n ")
    things = dict(zip(HELD, rng.sample(THINGS, 3), strict=True))
    evidence = one.evidence
    first = rng.sample([f"The {name} is in the {thing}." for name, thing in things.items()], 3)
    if hops == 3:
        [name] = (name for name, thing in things.items() if question.endswith(f"{thing}?"))
        question = f"Where is the {name}?"
        evidence = 1 + len(facts) + next(n for n, fact in enumerate(first) if f" {name} " in fact), *evidence
    return Story("\n ".join([question, *facts, *first]), one.target, evidence, hops)


@cache
def world(apart: bool) -> Corpus:
    """60,000 of these to learn from, three times the chapter's stories, all different."""
    rng = Random(0)
    return Corpus.split(distinct(lambda: held(rng, apart), 61_000), 500, 500)


def supporting(lines: list[str], asked: str) -> list[int] | None:
    """The lines that one needs to find a thing that another holds; None if nobody has taken that.

    They say what holds it, who took that, and where that person went.
    """
    [holds] = (n for n, line in enumerate(lines) if line.startswith(f" The {asked} "))
    thing = lines[holds].strip(".").split()[-1]
    if not any(line.endswith(f" took the {thing}.") for line in lines):
        return None
    return [holds, *page()["supporting"]([f"Where is the {thing}?", *lines[1:]])]


def followed(translator: Translator, stories: Iterable[Story]) -> tuple[int, list[list[float]]]:
    """How many questions of three facts have another answer for another thing, and how often copied lines bring it.

    A row for 0, 1, ... layers, a column for each of LINES; as the chapter's `patched` does it for two facts.
    """
    rng, hits = Random(0), []
    for lines in (one.source.split("\n") for one in stories if one.task == 3):
        needed = {asked: supporting(lines, asked) for asked in HELD}
        asked = lines[0].strip("?").split()[-1]
        others = [name for name in HELD if name != asked and needed[name]]
        if not others:
            continue
        donor = rng.choice(others)
        texts = "\n".join(lines), "\n".join([f"Where is the {donor}?", *lines[1:]])
        copied = [{0}, *map(set, zip(needed[asked], needed[donor], strict=True))]
        copied.append({*range(len(lines))}.difference(*copied))
        if rows := page()["brought"](translator, texts, copied):
            hits.append(rows)
    return len(hits), np.mean(hits, axis=0).round(2).tolist() if hits else []


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one model, and judge it; the job with what is kept."""
    one = Run(ROOT / "configs/stories.toml", Path("runs/none"))  # its folder is never written
    placed = job["model"] == "placed tokens"
    one.config["model"]["kind"] = "transformer" if placed else job["model"]
    if job["corpus"] in WORLDS:
        one.corpus = world(WORLDS[job["corpus"]])
        one.config["model"]["num_encoder_layers"] = 3
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
        if job["corpus"] in WORLDS:
            apart = world(True).test
            answers = translator.translate([story.source for story in apart], beam=1)
            found["told apart"] = babi_scores(answers, apart)
            found["followed"] = followed(translator, apart)
        elif job["model"] == "facts":
            found["patched"] = {change: page()["patched"](translator, change) for change in page()["CHANGES"]}
    return job | found


if __name__ == "__main__":
    jobs, _ = asked_for(__doc__)
    store = Store("stories", run, jobs, {"axes": AXES, "shortcuts": {}})

    def losses_of(job: dict[str, Any], some: list[dict[str, Any]]) -> list[float]:
        """The share of wrong answers on the validation set; of equals the lower loss. Of several seeds, the mean."""
        seeds = SEEDS if job["corpus"] in WORLDS else [0]
        jobs = [job | {"part": "search", "settings": settings, "seed": seed} for settings in some for seed in seeds]
        losses = [1 - row["validation_exact"][-1] + row["validation_loss"] / 1000 for row in store.do(jobs)]
        return np.mean(np.reshape(losses, (-1, len(seeds))), axis=1).tolist()

    for corpus, model, times in [*(("stories", model, {}) for model in MODELS), *((w, "facts", MORE) for w in WORLDS)]:
        job = {"corpus": corpus, "model": model}
        best = climb(AXES, {"learning_rate": 2e-3} | times, partial(losses_of, job))
        store.chosen.setdefault(corpus, {})[model] = best
        store.do([job | {"part": "judge", "settings": best, "seed": seed} for seed in SEEDS])
    longer = store.chosen["stories"]["transformer"] | {"times": LONGER}
    store.do([{"part": "judge", "corpus": "stories", "model": "transformer", "seed": 0, "settings": longer}])
    for name, apart in WORLDS.items():
        asked = [story for story in world(apart).test if story.task == 3]
        store.about["shortcuts"][name] = sum(rooms(story)[0] == story.target for story in asked) / len(asked)
    store.save()
