"""What `benchmarks.stories` makes of chapter 17's stories, and which lines it copies."""

import re
from random import Random

import pytest

from benchmarks import stories
from benchmarks.stories import HELD, LINES, THINGS, followed, held, rooms, supporting

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


def test_what_each_of_the_two_questions_needs_is_copied(monkeypatch):
    asked_for = []

    def brought(translator, texts, groups):
        asked_for.append((texts, groups))
        return [[len(asked_for) == 1] * len(LINES)] if len(asked_for) < 3 else None  # the third and later do not differ

    monkeypatch.setattr(stories, "page", lambda: {"supporting": took_and_went, "brought": brought})
    rng = Random(1)
    some = [held(rng, apart=True) for _ in range(60)]
    assert followed(None, some) == (2, [[0.5] * len(LINES)])
    assert len(asked_for) == sum(one.task == 3 for one in some) > 10
    for texts, groups in asked_for:
        assert len(groups) == len(LINES) and texts[0].split("\n")[1:] == texts[1].split("\n")[1:] and len({*texts}) == 2
        lines, where = texts[0].split("\n"), read(texts[0])[0]
        needs = [[], [], []]
        for text in texts:
            asked = re.search(r"(\w+)\?", text)[1]
            thing = read(text)[2][asked]
            owner = read(text)[1][thing]
            wanted = (
                f"The {asked} is in the {thing}.",
                f"{owner} took the {thing}.",
                f"{owner} went to the {where[owner]}.",
            )
            for need, said in zip(needs, wanted, strict=True):
                need.append(next(n for n, line in enumerate(lines) if line == f" {said}"))
        expected = [{0}, *map(set, needs)]
        assert groups == [*expected, {*range(len(lines))}.difference(*expected)]
    assert followed(None, [one for one in some if one.task < 3]) == (0, [])


def test_a_thing_that_nobody_took_leads_nowhere(monkeypatch):
    monkeypatch.setattr(stories, "page", lambda: {"supporting": took_and_went})
    lines = ["Where is the key?", " Mary took the cup.", " Mary went to the hall.", " The key is in the cup.",
             " The coin is in the ball."]  # fmt: skip
    assert supporting(lines, "key") == [3, 1, 2] and supporting(lines, "coin") is None
