"""What `benchmarks.summaries` reckons with, beside slow counts: names cut into words, shares, and tests by chance."""

import itertools

import numpy as np
import pytest

from benchmarks import summaries
from benchmarks.summaries import best_sentence, chance, in_text, name_words, named, rouge
from dotformer.data.summaries import Summary
from dotformer.reading import rouge_scores


def pair(source="One dog. Two cats sleep.", target="two cats", name="numpy.linalg.norm"):
    return Summary(source, target, tuple(source.replace(". ", ".|").split("|")), name)


@pytest.mark.parametrize(
    ("name", "words"),
    [("a.gn_graph", "gn graph"), ("a.b.KDTree", "KD Tree"), ("a.fft2", "fft 2"), ("a.readHTMLFile", "read HTML File")],
)
def test_a_name_is_cut_into_words(name, words):
    assert name_words(pair(name=name)) == words


def test_the_name_comes_before_the_text():
    assert named(pair()).source == "norm: One dog. Two cats sleep."


def test_no_sentence_scores_higher_than_the_best():
    assert best_sentence(pair()) == "Two cats sleep."


def test_scores_are_those_of_the_book():
    pairs, texts = [pair(), pair(target="a dog")], ["two dogs", "the dog sleeps"]
    assert rouge(pairs, texts).mean(axis=0).tolist() == pytest.approx(list(rouge_scores(texts, pairs).values())[:3])


def test_chance_is_the_share_of_exchanges_that_differ_as_much(monkeypatch):
    one, other = np.array([3.0, 5.0, 4.0, 9.0]), np.array([1.0, 5.5, 2.0, 7.0])
    signs = itertools.product([-1, 1], repeat=4)
    exact = np.mean([abs(np.dot(sign, one - other)) >= abs((one - other).sum()) - 1e-9 for sign in signs])
    assert chance(one, other) == pytest.approx(exact, abs=0.02)
    assert chance(one, one) == 1
    monkeypatch.setattr(summaries, "SHUFFLES", 99)
    assert chance(np.arange(40.0), np.zeros(40)) == 1 / 100  # never 0


def test_words_are_looked_for_in_the_text():
    assert in_text([pair(), pair()], ["Two dogs", "cats"]) == round(2 / 3, 4)
