"""What `benchmarks.stories` makes of chapter 17's stories, and where it finds what is asked, in a known model."""

import re
from itertools import pairwise
from random import Random
from types import SimpleNamespace

import pytest
import torch

from benchmarks import stories
from benchmarks.stories import HELD, LINES, THINGS, followed, held, rooms, supporting
from dotformer.tokens import BPETokenizer

PEOPLE = ("Anna", "John", "Mary", "Paul")


def read(text):
    """Where everybody is, who took what, and what holds what, after a story that is told from its end."""
    where, owner, holder = {}, {}, {}
    for fact in reversed(text.split("\n")[1:]):
        if found := re.fullmatch(r" (\w+) went to the (\w+)\.", fact):
            where[found[1]] = found[2]
        elif found := re.fullmatch(r" (\w+) took the (\w+)\.", fact):
            owner[found[2]] = found[1]
        else:
            name, thing = re.fullmatch(r" The (\w+) is in the (\w+)\.", fact).groups()
            holder[name] = thing
    return where, owner, holder


@pytest.mark.parametrize("apart", [False, True])
def test_a_question_is_answered_by_what_its_evidence_says(apart):
    rng, seen = Random(0), set()
    for one in (held(rng, apart) for _ in range(200)):
        where, owner, holder = read(one.source)
        assert {*holder} == {*HELD} and {*holder.values()} == {*THINGS}
        asked = re.search(r"(\w+)\?", one.source)[1]
        thing = holder.get(asked, asked)
        who = owner.get(thing, thing)
        assert one.target == where[who] and len({*one.evidence}) == one.task
        assert (asked in HELD, asked in THINGS, asked in PEOPLE) == tuple(one.task == n for n in (3, 2, 1))
        lines = one.source.split("\n")
        said = [lines[n].strip() for n in one.evidence]
        assert said[-1] == f"{who} went to the {one.target}." and said[-2:-1] in ([], [f"{who} took the {thing}."])
        assert one.task < 3 or said[0] == f"The {asked} is in the {thing}."
        assert rooms(one) == [where[owner[t]] for t in re.findall(r"took the (\w+)", one.source)]
        assert not apart or one.task == 1 or len({*rooms(one)}) > 1
        seen.add(one.task)
    assert seen == {1, 2, 3}


def took_and_went(lines):
    """The lines of who took the thing asked for, and of where that person went; as chapter 17 has it."""
    thing = re.search(r"(\w+)\?", lines[0])[1]
    [took] = (n for n, line in enumerate(lines) if line.endswith(f"took the {thing}."))
    return took, next(n for n, line in enumerate(lines) if line.startswith(f" {lines[took].split()[0]} went"))


class Known:
    """In the place of a model: what is asked moves a line further in each of three layers; where it ends is read."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.encoder = SimpleNamespace(layers=[self.further] * 3)

    def embed(self, source):
        self.texts = [self.tokenizer.decode(row).strip() for row in source.tolist()]
        x = torch.zeros(len(self.texts), self.texts[0].count("\n") + 1, len(HELD))
        for row, text in zip(x, self.texts, strict=True):
            row[0, HELD.index(re.search(r"(\w+)\?", text)[1])] = 1
        return x, torch.ones(len(x), 1, 1, x.shape[1])

    def ways(self):
        """For each name the lines from the question to the answer."""
        lines = self.texts[0].split("\n")
        return [[0, *(supporting(lines, name) or [0, 0, 0])] for name in HELD]

    def further(self, x, mask):
        moved = torch.zeros_like(x)
        for n, way in enumerate(self.ways()):
            for here, there in pairwise(way):
                moved[:, there, n] += x[:, here, n]
        return moved

    def answer(self, x):
        """For each story the last line that what is asked for has come to."""
        ends = [{n: int(row[way[-1], n] > 0) for n, way in enumerate(self.ways())} for row in x]
        return ["".join(f"{HELD[n]} " for n, there in end.items() if there) for end in ends]


def test_what_is_asked_is_found_in_the_line_that_it_has_come_to(monkeypatch):
    def answers_from(translator, x, mask, done):
        for layer in translator.model.encoder.layers[done:]:
            x = layer(x, mask)
        return translator.model.answer(x)

    monkeypatch.setattr(stories, "page", lambda: {"supporting": took_and_went, "answers_from": answers_from})
    rng = Random(1)
    some = [held(rng, apart=True) for _ in range(60)]
    tokenizer = BPETokenizer.train((f" {text}" for one in some for text in one[:2]), 1000)
    translator = SimpleNamespace(model=Known(tokenizer), tokens=lambda text: tokenizer.encode(f" {text}"))
    count, shares = followed(translator, some)
    assert count == sum(one.task == 3 for one in some) > 10
    assert torch.tensor(shares).shape == (4, len(LINES))
    assert torch.equal(torch.tensor(shares), torch.eye(4, len(LINES)))
    assert followed(translator, [one for one in some if one.task < 3]) == (0, [])


def test_a_thing_that_nobody_took_leads_nowhere(monkeypatch):
    monkeypatch.setattr(stories, "page", lambda: {"supporting": took_and_went})
    lines = ["Where is the key?", " Mary took the cup.", " Mary went to the hall.", " The key is in the cup.",
             " The coin is in the ball."]  # fmt: skip
    assert supporting(lines, "key") == [3, 1, 2] and supporting(lines, "coin") is None
