"""Each parser of the race is made, judged and kept, here on a few trees of the grammar."""

from dataclasses import replace
from random import Random

import pytest
import torch

from benchmarks import parsing
from benchmarks.parsing import AXES, PARSERS, START, mistakes, reason, right_branching
from dotformer.data.trees import read_trees
from dotformer.generation import KVCache
from dotformer.parsing import as_pair, linearize, parse_scores, trees
from dotformer.translation import Translator

JOB = {"corpus": "craft", "part": "judge", "seed": 0}


def short(train):
    """Sentences of the grammar to learn from, and to judge by short ones, one of them of five words."""
    drawn = trees(train, 8, 70)
    return replace(drawn, test=sorted(drawn.test, key=lambda parse: len(parse.tree.leaves()))[:24])


@pytest.fixture
def corpus(monkeypatch):
    """Few sentences in the place of the treebank, and small models that learn in few steps."""
    threads, found = torch.get_num_threads(), short(40)
    monkeypatch.setattr(parsing, "treebank", lambda: found)
    monkeypatch.setattr(parsing, "articles", lambda: ["odd", "even"] * 12)
    for name, value in {"LONGEST": 10, "WIDTH": 16, "LAYERS": 1, "VOCAB": 300, "SHOWN": (1, 5)}.items():
        monkeypatch.setattr(parsing, name, value)
    monkeypatch.setattr(parsing, "STEPS", dict.fromkeys(parsing.STEPS, 24))
    parsing.learnt.cache_clear()
    yield found
    parsing.learnt.cache_clear()
    torch.set_num_threads(threads)


@pytest.fixture
def texts(monkeypatch, corpus):
    """What the translator writes for the test set: free, and held to trees."""
    targets = [parse.target for parse in corpus.test]
    free = [targets[0].removesuffix(" s"), "S _ s", f"S _ {targets[2]} s", *targets[3:]]
    held = ["S " + "_ " * len(parse.tree.leaves()) + "s" for parse in corpus.test[:3]] + targets[3:]
    written = {parse.source: pair for parse, *pair in zip(corpus.test, free, held, strict=True)}

    def translate(self, sources, beam):
        assert beam == 1
        return [written[source][self.state is not KVCache] for source in sources]

    monkeypatch.setattr(Translator, "translate", translate)
    return free, held


def rounded(scores):
    """Scores with two digits."""
    return {name: round(score, 2) for name, score in scores.items()}


@pytest.mark.parametrize("model", ["chart", "grammar", "right-branching"])
@pytest.mark.parametrize(("part", "share", "seed"), [("search", 1, 0), ("judge", 1, 0), ("judge", 0.25, 1)])
def test_a_parser_learns_its_share_of_the_trees_and_is_scored(corpus, model, part, share, seed):
    found = parsing.run(JOB | {"part": part, "seed": seed, "model": model, "settings": START[model] | {"share": share}})
    train, validation, test = parsing.learnt(share, seed)
    assert train == Random(seed).sample(corpus.train, round(40 * share)) and validation == corpus.validation
    assert found["sentences"] == len(train) and found["seconds"] >= 0 and found["settings"]["share"] == share
    assert (0 <= found["scores"]["f1"] <= 100 and found["scores"]["parsed"] == 100) or model == "grammar"
    assert found.keys() >= {"validation_loss"} | ({"validation_losses", "parameters"} if model == "chart" else set())
    if part == "judge":
        assert set(found["by_length"]) == {"5", "10"} and found["parsing_seconds"] >= 0
        right, written, wanted = map(sum, zip(*found["by_article"].values(), strict=True))
        assert found["scores"]["f1"] == round(200 * right / (written + wanted), 2) and len(found["by_article"]) == 2
        hits, _, wanted = zip(*found["mistakes"].values(), strict=True)
        recall = parse_scores([parse.target for parse in test], test)["recall"] * sum(hits) / sum(wanted)
        assert found["scores"]["recall"] == pytest.approx(recall, abs=0.01)
    assert ("shown" in found) == ((part, share, seed) == ("judge", 1, 0))


def test_a_grammar_of_many_trees_is_right_where_it_parses_and_right_branching_is_not(corpus, monkeypatch):
    monkeypatch.setattr(parsing, "treebank", lambda: short(400))
    found = [
        parsing.run(JOB | {"model": m, "settings": START[m] | {"share": 1}}) for m in ("right-branching", "grammar")
    ]
    assert found[0]["scores"]["precision"] < 50 < found[1]["scores"]["precision"] == 100
    test = parsing.treebank().test
    wanted = parse_scores([linearize(right_branching(parse.tree)) for parse in test], test)
    assert found[0]["scores"] == rounded(wanted)


def test_the_translator_is_judged_free_and_held(corpus, texts):
    free, held = texts
    found = parsing.run(JOB | {"model": "translator", "settings": START["translator"] | {"share": 1}})
    assert found["scores"] == rounded(parse_scores(held, corpus.test))
    assert found["free"] == rounded(parse_scores(free, corpus.test))
    assert found["reasons"] == {"brackets": 1, "too few words": 1, "too many words": 1}
    assert set(found["only_parsed"].values()) == {100}
    assert found["shown"] == {"1": held[1], "5": held[5]}
    assert len(found["validation_losses"]) == 6 and found["parameters"] > 1000


def test_what_follows_branches_to_the_right():
    gold, single = read_trees("(S (NP (DT a) (NN b)) (VP (VB c) (ADVP (RB d))) (. .)) (FRAG (NN a))")
    expected = "(S (DT a) (VP (NN b) (VP (VB c) (RB d))) (. .))"
    assert [str(right_branching(tree)) for tree in (gold, single)] == [expected, "(S (NN a))"]


def test_reasons_and_mistakes_are_told():
    [gold] = read_trees("(S (NP (DT a) (NN b)) (VP (VB c)))")
    parse, wrong = as_pair(gold), "S NP _ np NP _ _ np s"
    said = ("", "brackets", "too few words", "too many words")
    texts = (wrong, "S _ _ _", "S _ _ s", "S _ _ _ _ s")
    assert [reason(text, parse) for text in texts] == list(said)
    assert parsing.reasons([*texts, ""], [parse] * 5) == {"brackets": 1, "too few words": 2, "too many words": 1}
    assert mistakes([wrong, "S"], [parse] * 2) == {"S": [1, 1, 2], "NP": [0, 2, 2], "VP": [0, 0, 2]}


def test_each_parser_has_settings_from_which_to_search():
    assert PARSERS.keys() == AXES.keys() == START.keys()
    for model, axes in AXES.items():
        assert START[model].keys() == axes.keys()
        assert all(START[model][name] in values for name, values in axes.items())
