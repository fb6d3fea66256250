"""bAbI tasks, learnt together by a vector for each fact: `python -m benchmarks.reading --jobs 2`.

Nineteen of them, and all twenty from a tenth of the questions: of the third, which takes three facts, there are no
more.

Learning rate and dropout of a `FactTransformer` are chosen by the share of right answers on the validation set, each
axis wide enough that its best value lies inside. Then it is judged on the test set with three seeds, and again after
half as many steps. Kept are the share of right answers to each task, beside three rules that never look at what is
asked, and how many answers are the rule's; how often attention points at a fact that the answer follows from, beside
chance and two simple rules; whose answer is given when the state of a line is another story's; and what is written
instead of the answer. Takes an hour and a half of one core. Whatever is done is kept in book/measurements/reading.json,
and not done again.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable
from functools import cache, partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.race import SEEDS, Store, asked_for, parameters
from benchmarks.search import Settings, climb
from dotformer.command_line.models import new_translator
from dotformer.data.babi import Story, babi
from dotformer.data.corpora import Corpus
from dotformer.support.recording import record_weights
from dotformer.tokens import BPETokenizer
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches
from dotformer.translation import Translator

FEW = " ".join(map(str, range(1, 21))), "1k"
DATA: dict[str, tuple] = {"babi": (), "a tenth": FEW}  # what is asked of `babi`
STEPS, SHORTER, MAX_TOKENS, VOCAB = 4000, 2000, 4096, 10_000
SHAPE = {"d_model": 64, "num_heads": 4, "num_encoder_layers": 3, "num_decoder_layers": 1, "d_ff": 128}
SHAPE |= {"norm_first": True, "share_embeddings": True, "max_length": 2048}
SAMPLED, VALIDATED, SHOWN = 100, 100, 2  # questions of each task
PLACES = ["bathroom", "bedroom", "garden", "hallway", "kitchen", "office"]
AXES: dict[str, list[Any]] = {
    "learning_rate": [3.75e-4 * 2**n for n in range(8)],
    "dropout": [None, 0.0, 0.05, 0.1, 0.2, 0.3],
}
START: Settings = {"learning_rate": 3e-3, "dropout": 0.0}


@cache
def learnt(*data: Any) -> tuple[Corpus, BPETokenizer]:
    """The questions that `babi` has of some tasks and a size, and one tokenizer for both sides, by words."""
    corpus = babi(*data)
    return corpus, BPETokenizer.train((f" {text}" for story in corpus.train for text in story[:2]), VOCAB)


@cache
def encoded(*data: Any) -> tuple[list, list]:
    """The pairs to learn from, and some to choose by, as tokens."""
    corpus, _ = learnt(*data)
    held_out = [story for some in of_each_task(corpus.validation, VALIDATED).values() for story in some]
    return tuple(map(fresh(START, *data).encode_pairs, (corpus.train, held_out)))


def of_each_task(stories: list[Story], count: int) -> dict[int, list[Story]]:
    """So many questions of each task, or all if there are not so many; always the same ones."""
    tasks: dict[int, list[Story]] = {}
    for story in stories:
        tasks.setdefault(story.task, []).append(story)
    return {task: Random(0).sample(some, min(count, len(some))) for task, some in tasks.items()}


def fresh(settings: Settings, *data: Any) -> Translator:
    """One whose model has random parameters."""
    _, tokenizer = learnt(*data)
    return new_translator(tokenizer, tokenizer, "facts", SHAPE | {"dropout": settings["dropout"]})


@torch.no_grad()
def attention(translator: Translator, story: Story) -> Tensor:
    """How the decoder attends to each line for the answer's first token: (layers, H, L), each row with the sum 1."""
    source = torch.tensor([translator.tokens(story.source)])
    with record_weights(translator.model) as seen:
        translator.model(source, torch.tensor([[translator.target.bos_id]]))
    return torch.cat([weights for name, weights in seen.items() if name.endswith("cross_attention")])[:, :, 0]


@torch.no_grad()
def exchanged(translator: Translator, stories: list[Story]) -> dict[str, Any]:
    """How often the answer is a donor's, when the state of one line is the donor's after 0, 1, ... layers.

    The donor is the same story with another place in the fact that names the answer. The line is the question, that
    fact, the other fact that the answer follows from, or another that has nothing to do with it. A
    story does not count that is answered wrong, or whose donor is, or that lacks one of these lines.
    """
    rng, model, count = Random(0), translator.model, 0
    layers = model.encoder.layers
    hits: dict[str, list[int]] = {}

    def answer(x: Tensor, mask: Tensor, seen: Tensor, done: int) -> list[str]:
        """The answers to which states x after so many layers lead."""
        for layer in layers[done:]:
            x = layer(x, mask)
        begin = torch.full((len(x), 1), translator.target.bos_id)
        best = model.decode(begin, model.encoder.norm(x), seen)[:, 0].argmax(dim=-1)
        return [translator.target.decode([token]).strip() for token in best.tolist()]

    for story in stories:
        lines, wanted = story.source.split("\n"), [story.target, rng.choice([p for p in PLACES if p != story.target])]
        place = next((n for n in story.evidence if story.target in lines[n]), None)
        others = [n for n in range(1, len(lines)) if n not in story.evidence]
        if place is None or not others:
            continue
        changed = [*lines[:place], lines[place].replace(*wanted), *lines[place + 1 :]]
        source = torch.tensor([translator.tokens(text) for text in (story.source, "\n".join(changed))])
        (x, mask), (_, seen) = model.embed(source), model.encode(source)
        if answer(x, mask, seen, 0) != wanted:
            continue
        count += 1
        exchange = {"question": 0, "fact": place, "another": rng.choice(others)}
        exchange |= dict.fromkeys(["other fact"] * (len(story.evidence) > 1), sum(story.evidence) - place)
        for done in range(len(layers) + 1):
            for name, line in exchange.items():
                mixed = x[:1].clone()
                mixed[:, line] = x[1:, line]
                counted = hits.setdefault(name, [0] * (len(layers) + 1))
                counted[done] += answer(mixed, mask[:1], seen[:1], done) == wanted[1:]
            x = layers[done](x, mask) if done < len(layers) else x
    return {"stories": count} | {name: [round(n / max(count, 1), 3) for n in each] for name, each in hits.items()}


def on_evidence(weights: Tensor, story: Story) -> Tensor:
    """Whether the largest weight on a fact is on one that the answer follows from: (layers, H)."""
    best = weights[..., 1:].argmax(dim=-1) + 1
    return (best[..., None] == torch.tensor(story.evidence)).any(dim=-1)


def rules(stories: list[Story]) -> dict[str, float]:
    """How often it is evidence: a fact drawn at random, the newest, the newest with most words of the question."""
    found: Counter[str] = Counter()
    for story in stories:
        question, *facts = (set(re.findall(r"\w+", line.lower())) for line in story.source.split("\n"))
        shared = [len(question & fact) for fact in facts]
        found["chance"] += len({*story.evidence}) / len(facts)
        found["newest"] += 1 in story.evidence
        found["shared words"] += 1 + shared.index(max(shared)) in story.evidence
    return {name: round(hits / len(stories), 4) for name, hits in found.items()}


@cache
def answers_to(task: int, *data: Any) -> Counter[str]:
    """How often each answer to a task occurs in training."""
    return Counter(story.target for story in learnt(*data)[0].train if story.task == task)


def guesses(stories: list[Story], *data: Any) -> dict[str, list[str]]:
    """What three rules answer to stories of one task, none of which looks at what is asked.

    The answer that is commonest in training; and of all answers to the task that are words of the story, the newest
    and the commonest (the newer of two), or else the commonest in training.
    """
    known = answers_to(stories[0].task, *data)
    [(best, _)] = known.most_common(1)
    told = [re.findall(r"\w+", story.source.partition("\n")[2]) for story in stories]
    there = [[word for word in words if word in known] or [best] for words in told]
    return {
        "commonest in training": [best] * len(stories),
        "newest in the story": [words[0] for words in there],
        "commonest in the story": [Counter(words).most_common(1)[0][0] for words in there],
    }


def shortcuts(*data: Any) -> dict[int, dict[str, float]]:
    """How often each of these rules is right, on the test set of each task."""
    tasks = of_each_task(learnt(*data)[0].test, 1000)
    return {
        task: {
            name: round(sum(map(str.__eq__, guessed, (story.target for story in stories))) / len(stories), 4)
            for name, guessed in guesses(stories, *data).items()
        }
        for task, stories in sorted(tasks.items())
    }


def beside_rules(answers: list[str], stories: list[Story], *data: Any) -> dict[str, list[float | None]]:
    """Two shares for each of these rules: answers that are the rule's, and right ones where the rule is wrong.

    The second is None for a rule that never is.
    """
    found = {}
    for name, guessed in guesses(stories, *data).items():
        same = sum(map(str.__eq__, answers, guessed)) / len(stories)
        wrong = [n for n, story in enumerate(stories) if guessed[n] != story.target]
        better = [answers[n] == stories[n].target for n in wrong]
        found[name] = [round(same, 4), round(sum(better) / len(wrong), 4) if wrong else None]
    return found


def came_from(story: Story) -> str | None:
    """Where whoever came last to the place that task 3 names was before, whatever they carried; None if nobody was."""
    question, *facts = story.source.split("\n ")
    asked, where, found = re.findall(r"\w+", question)[-1], {}, None
    for who, place in re.findall(r"^(\w+) .* to the (\w+)\.$", "\n".join(reversed(facts)), re.M):
        before = where.get(who)
        if place == asked and before and before != place:
            found = before
        where[who] = place
    return found


def right(translator: Translator, stories: list[Story]) -> float:
    """The share of questions that are answered right, in every token."""
    batches = pair_batches(translator.encode_pairs(stories), max_tokens=MAX_TOKENS)
    return round(evaluate(translator.model, batches)["exact"], 4)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train one model, and judge it; the job with what is kept."""
    torch.set_num_threads(1)
    torch.manual_seed(job["seed"])
    settings, seed, data = job["settings"], job["seed"], DATA[job["corpus"]]
    translator, steps = fresh(settings, *data), settings["steps"]
    pairs, held_out = encoded(*data)
    config = TrainingConfig(
        steps,
        settings["learning_rate"],
        warmup_steps=steps // 10,
        label_smoothing=0.0,
        validate_every=steps // 5,
        seed=seed,
    )
    batches = partial(pair_batches, pairs, max_tokens=MAX_TOKENS, seed=seed)
    validate = partial(evaluate, batches=list(pair_batches(held_out, max_tokens=MAX_TOKENS)))
    start = time.process_time()
    try:
        rows = Trainer(translator.model, config).train(batches, validate, progress=False)
    except FloatingPointError:  # the gradient has overflowed: a learning rate that is too high
        rows = [{"validation_loss": 1e9, "validation_exact": 0.0}]
    found = {
        "seconds": round(time.process_time() - start, 1),
        "parameters": parameters(translator.model),
        "validation_loss": rows[-1]["validation_loss"],
        "validation_exact": [round(row["validation_exact"], 4) for row in rows],
    }
    return job | found | (judged(translator, *data) if job["part"] == "judge" else {})


def judged(translator: Translator, *data: Any) -> dict[str, Any]:
    """What is kept of a trained model: by task, how much is right, where it looks, and what it writes instead."""
    corpus, _ = learnt(*data)
    translator.model.eval()
    tasks, some = of_each_task(corpus.test, 1000), of_each_task(corpus.test, SAMPLED)
    found: dict[str, Any] = {"right": {task: right(translator, stories) for task, stories in tasks.items()}}
    found |= {name: {} for name in ("answer_on_evidence", "mistakes", "shown")}
    found["exchanged"] = {task: exchanged(translator, tasks[task][:200]) for task in (1, 2)}
    found["beside_rules"] = {}
    for task, stories in tasks.items():
        answers = translator.translate([story.source for story in stories], beam=1)
        found["beside_rules"][task] = beside_rules(answers, stories, *data)
    for task, stories in some.items():
        found["answer_on_evidence"][task] = mean(on_evidence(attention(translator, story), story) for story in stories)
        written = translator.translate([story.source for story in stories], beam=1)
        pairs = [(text, story) for text, story in zip(written, stories, strict=True) if text != story.target]
        found["mistakes"][task] = Counter(f"{story.target} > {text}" for text, story in pairs).most_common(5)
        short = sorted(pairs, key=lambda pair: len(pair[1].source))[:SHOWN]
        found["shown"][task] = [[story.source, story.target, text] for text, story in short]
    return found


def mean(hits: Iterable[Tensor]) -> list:
    """The share of questions for which each is true, with three digits."""
    return (torch.stack(list(hits)).double().mean(dim=0) * 1000).round().div(1000).tolist()


if __name__ == "__main__":
    jobs, _ = asked_for(__doc__)
    store = Store("reading", run, jobs, {"steps": STEPS, "axes": AXES, "shape": SHAPE})
    some = of_each_task(learnt()[0].test, 1000)
    store.about["rules"] = {task: rules(stories) for task, stories in some.items()}
    store.about["shortcuts"], store.about["shortcuts_few"] = shortcuts(), shortcuts(*FEW)
    three = [story for story in learnt(*FEW)[0].test if story.task == 3]
    store.about["came_from"] = sum(came_from(story) == story.target for story in three) / len(three)

    def losses_of(corpus: str, some: list[Settings]) -> list[float]:
        """The share of wrong answers on the validation set; of equals the lower loss."""
        search = {"part": "search", "corpus": corpus, "model": "facts", "seed": 0}
        rows = store.do([search | {"settings": one | {"steps": STEPS}} for one in some])
        return [1 - row["validation_exact"][-1] + row["validation_loss"] / 1000 for row in rows]

    for corpus in DATA:
        best = climb(AXES, START, partial(losses_of, corpus))
        store.chosen[corpus] = {"facts": best}
        for steps in (STEPS, SHORTER):
            job = {"part": "judge", "corpus": corpus, "model": "facts", "settings": best | {"steps": steps}}
            store.do([job | {"seed": seed} for seed in SEEDS])
    store.save()
