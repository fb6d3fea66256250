"""What `benchmarks.questions` reckons with: shared words, SQuAD's scores, McNemar's test, places in replies."""

import math
import random
import re

import pytest
from scipy.stats import binomtest

from benchmarks import questions
from benchmarks.questions import (
    asked,
    compared,
    f1,
    first_place,
    idf,
    most_shared,
    normalised,
    place_scores,
    squad_scores,
)
from dotformer.data.babi import read_stories
from dotformer.data.xquad import Question


def question(text="What?", sentences=("One.",), answers=("one",), sentence=0):
    return Question(text, sentences, answers, sentence)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The  Cat's hat!", "cats hat"),
        ("a theory, an answer; then the end", "theory answer then end"),
        ("U.S.A.", "usa"),  # one word
        ("the-cat", "thecat"),  # punctuation goes before articles
        ("“A”", "“ ”"),  # of punctuation only that of ASCII
        ("\tThe\nA an ", ""),
    ],
)
def test_texts_are_normalised_as_by_squad(text, plain):
    assert normalised(text) == plain


@pytest.mark.parametrize(
    ("reply", "answer", "score"),
    [
        ("kuznets curve", "kuznets curve hypothesis", 2 * (1 * 2 / 3) / (1 + 2 / 3)),
        ("red red blue", "red green", 2 * (1 / 3 * 1 / 2) / (1 / 3 + 1 / 2)),  # a word counts as often as in both
        ("308", "308", 1),
        ("307", "308", 0),
        ("", "308", 0),
        ("", "", 0),
    ],
)
def test_f1(reply, answer, score):
    assert f1(reply, answer) == pytest.approx(score) == f1(answer, reply)


def test_squad_scores():
    asked_for = [question(answers=("The Tower", "a bridge")), question(answers=("art",)), question(answers=("the",))]
    assert squad_scores(["Bridge.", "Art!", "or the."], asked_for) == {
        "exact": 0.6667,
        "f1": 0.6667,
        "contains": 0.6667,
    }
    # "party" has "art" in it, but not as a word; and nothing is left of "the", of which nothing is wanted
    found = squad_scores(["It is the tower, over there", "At a party", "the"], asked_for)
    assert found["contains"] == 0.6667 and found["exact"] == 0.3333
    assert found["f1"] == round((2 * (1 / 5 * 1) / (1 / 5 + 1)) / 3, 4)
    with pytest.raises(ValueError):
        squad_scores(["one"], asked_for)


def test_most_shared_words_and_the_first_of_equals():
    asked_for = question(
        "Who saw THE dog, dog, dog?", ("A cat.", "The cat saw.", "He saw the dog?", "Dog: who saw the?")
    )
    assert most_shared(asked_for, lambda word: 1) == 3
    assert most_shared(asked_for._replace(text="The dog saw"), lambda word: 1) == 2
    assert most_shared(asked_for._replace(text="Nothing"), lambda word: 1) == 0
    weights = {"cat": 0.5, "saw": 0.1, "the": 0.1, "dog": 0.3, "he": 0.0, "who": 0.0, "a": 0.0}
    assert most_shared(asked_for._replace(text="The cat, the dog!"), weights.__getitem__) == 1


def test_idf_beside_a_slow_count():
    drawn = random.Random(0)
    sentences = [" ".join(drawn.choices(["a", "B", "b", "cd", "Cd.", "e"], k=4)) for _ in range(40)]
    weights = idf(sentences)
    assert weights.keys() <= set("abe") | {"cd"}
    for word, weight in weights.items():
        having = [sentence for sentence in sentences if re.search(rf"\b{word}\b", sentence, re.IGNORECASE)]
        assert weight == pytest.approx(-math.log(len(having) / 40))
    assert idf(["it rains", "it snows"])["it"] == 0


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (5, 5), (3, 9), (76, 139), (136, 115)])
def test_mcnemar_is_a_binomial_test(first, second):
    one, other = [True] * first + [False] * second + [True, False, False], [False] * first + [True] * second
    found = compared(one, [*other, True, False, False])
    p = binomtest(first, first + second).pvalue if first + second else 1.0
    assert found == {"both": 1, "first": first, "second": second, "neither": 2, "p": pytest.approx(p)}


def test_first_place():
    assert first_place("In the Kitchen, or the garden.") == "kitchen"
    assert first_place("THE BATHROOM") == "bathroom"
    assert first_place("The officer has bedrooms.") is None


def test_place_scores():
    facts = "1 Mary is in the garden.\n2 John went to the office.\n"
    text = f"{facts}3 Where is Mary?\tgarden\t1\n4 Where is John?\toffice\t2\n"
    stories = [*read_stories(text, 1)] * 2
    found = place_scores(["The garden", "Garden, not office", "Mary", "An office"], stories)
    assert found == {"right": 0.5, "no_place": 0.25, "named_last": 0.5, "chance": 0.1667}


def test_each_prompt_begins_a_conversation(monkeypatch):
    """And the texts that are kept are cut at the front."""
    chats = []

    class Chat:
        def __init__(self, cache, tokenizer, template):
            assert (cache, tokenizer, template) == ("empty", "tokenizer", "template")
            chats.append(self)

        def reply(self, content, length):
            yield from [content[-1], "!"] if len(content) < 9 else ["-"] * length

    monkeypatch.setattr(questions, "Chat", Chat)
    monkeypatch.setattr(questions, "ModernCache", lambda model, prompt: model == "model" and "empty")
    long = "x" * 300 + "y" * 200
    replies, kept = asked(("model", "tokenizer", "template"), ["ab", long, "c", "d"], ["1", "2", "3", "4"])
    assert replies == ["b!", "-" * questions.LENGTH, "c!", "d!"] and len(chats) == 4
    assert kept["asked"] == 4 and kept["cut"] == 0.25 and kept["seconds"] >= 0
    assert kept["shown"] == [("ab", "1", "b!"), ("y" * 200, "2", replies[1]), ("c", "3", "c!")]
