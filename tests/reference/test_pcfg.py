"""Probabilistic grammars: the rules of a tree, that they share all probability, and what rare words are known by."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dotformer.data.pcfg import PCFG, rules
from dotformer.data.trees import collapse, read_trees
from tests.reference.strategies import some_trees


@given(some_trees(10))
def test_rules_make_two_of_one_or_a_word(tree):
    found = list(rules(collapse(tree)))
    assert [made_of[0] for _, *made_of in found if len(made_of) == 1] == tree.words()
    assert len([rule for rule in found if len(rule) == 3]) == len(tree.words()) - 1


def test_the_rules_of_a_tree():
    [tree] = read_trees("(S (NP (DT the) (JJ old) (NN cat)) (VP (VB sleeps)))")
    assert list(rules(collapse(tree))) == [
        ("S", "NP", "VP/VB"),
        ("NP", "DT", "NP|DT"),
        ("NP|DT", "JJ", "NN"),
        *(("DT", "the"), ("JJ", "old"), ("NN", "cat"), ("VP/VB", "sleeps")),
    ]


@given(st.lists(some_trees(4), min_size=1, max_size=6), st.integers(0, 2))
@settings(max_examples=settings.default.max_examples // 2)
def test_the_rules_of_a_symbol_share_all_of_its_probability(treebank, rare):
    grammar = PCFG(treebank, rare)
    classes = [name for name in grammar.words if name != "<rare>"]
    for names in (classes, [*grammar.known, "<rare>"]):
        for n, symbol in enumerate(grammar.symbols):
            pairs = np.exp(grammar.log_p[grammar.rules[0] == n]).sum()
            assert pairs + sum(np.exp(grammar.words[name][n]) for name in names) == pytest.approx(1), symbol
    assert np.exp(grammar.roots).sum() == pytest.approx(1)


def test_probabilities_of_known_rules():
    grammar = PCFG(read_trees("(S (NP a) (VP b)) (S (NP a) (VP (V b) (NP c))) (NP (NP a) (NP a))"), rare=0)
    number = {symbol: n for n, symbol in enumerate(grammar.symbols)}
    found = {rule: math.exp(log) for rule, log in zip(map(tuple, grammar.rules.T.tolist()), grammar.log_p, strict=True)}
    expected = {("S", "NP", "VP"): 1, ("VP", "V", "NP"): 1 / 2, ("NP", "NP", "NP"): 1 / 6}
    assert found == pytest.approx({tuple(number[s] for s in rule): p for rule, p in expected.items()})
    assert np.exp(grammar.roots)[[number["S"], number["NP"]]] == pytest.approx([2 / 3, 1 / 3])
    assert math.exp(grammar.word_scores("a")[number["NP"]]) == pytest.approx(4 / 6)


def test_rare_words_are_known_by_their_class():
    treebank = list(read_trees("(S (NP she) (VP walking)) (S (NP she) (VP singing)) (S (NP singer) (VP sat))"))
    assert [PCFG(treebank, rare).known for rare in (1, 2)] == [{"she"}, set()]
    assert PCFG.__init__.__defaults__ == (5,)
    grammar = PCFG(treebank, rare=1)
    verb = grammar.symbols.index("VP")
    words = ("walking", "talking", "sat", "xyz", "she")  # of a class with two verbs; with one; of none that was seen
    found = [math.exp(grammar.word_scores(word)[verb]) for word in words]
    assert found == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1, 0])


def test_where_no_word_is_rare_a_new_one_is_in_no_role():
    grammar = PCFG(read_trees("(S (NP a) (VP b))"), rare=0)
    assert (grammar.word_scores("new") == -np.inf).all() and not np.isnan(grammar.word_scores("new")).any()


def test_no_trees_are_refused_and_trees_of_one_word_have_no_rules():
    with pytest.raises(ValueError, match=r"^there are no trees to count rules in$"):
        PCFG([])
    assert PCFG(read_trees("(NP (NN a))")).rules.shape == (3, 0)
