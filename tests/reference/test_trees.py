"""Trees in brackets: what of a treebank's files is kept or refused, CRAFT made of small files, chains and spans."""

import hashlib
from collections import Counter
from importlib.resources import files

import pytest
from hypothesis import given

from dotformer.data import trees
from dotformer.data.trees import (
    Tree,
    collapse,
    craft_trees,
    expand,
    read_trees,
    spans_to_tree,
    tree_to_spans,
    word_class,
)
from tests.reference.strategies import some_trees


def read(text):
    """The trees of a text, as text."""
    return list(map(str, read_trees(text)))


def test_a_tree_has_labels_and_the_words_in_order():
    [tree] = read_trees("(S (NP (DT the) (NN cat))\n\t(VP (VBZ sleeps)) (. .))")
    np = Tree("NP", (Tree("DT", ("the",)), Tree("NN", ("cat",))))
    assert tree == Tree("S", (np, Tree("VP", (Tree("VBZ", ("sleeps",)),)), Tree(".", (".",))))
    assert tree.words() == ["the", "cat", "sleeps", "."]
    assert [leaf.label for leaf in tree.leaves()] == ["DT", "NN", "VBZ", "."]
    assert [leaf.is_punctuation for leaf in tree.leaves()] == [False, False, False, True]
    assert (tree.is_leaf, tree.leaves()[0].is_leaf) == (False, True)


def test_punctuation_is_what_evalb_deletes():
    labels = [",", ":", "``", "''", ".", "-LRB-", "-RRB-", "HYPH", "SYM", "$", "#"]
    assert [label for label in labels if Tree(label, ("x",)).is_punctuation] == labels[:5]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("( (S (NP (NN a)) (VP (VB b))) )", "(S (NP (NN a)) (VP (VB b)))"),  # the empty outer bracket of the Penn files
        ("((S (NP (NN a)) (VP (VB b))))", "(S (NP (NN a)) (VP (VB b)))"),
        ("(S (NP-SBJ-1 (NN a)) (VP=2 (VB b)))", "(S (NP (NN a)) (VP (VB b)))"),
        ("(S (NP (-NONE- *T*-1)) (VP (VB b) (NP (-NONE- *) (NN a))))", "(S (VP (VB b) (NP (NN a))))"),
        ("(S (SBAR (-NONE- 0) (S (-NONE- *T*))) (VP (VB b)))", "(S (VP (VB b)))"),
        ("(NP (NP (NP (NN a))))", "(NP (NN a))"),
        ("(NP-SBJ (NP (NN a)) (SBAR (-NONE- 0)))", "(NP (NN a))"),
        ("(NP (NP (NN a)) (NN b))", "(NP (NP (NN a)) (NN b))"),
        ("(NN (NN a))", "(NN (NN a))"),  # the inner one is a part of speech
        ("(S (-LRB- -LRB-) (NN x-RRB-y) (-RRB- -RRB-))", "(S (-LRB- () (NN x)y) (-RRB- )))"),
        ("(S (NN two words) (NN a\xa0b))", "(S (NN two words) (NN a_b))"),
    ],
)
def test_trees_are_kept_as_parsers_learn_them(text, kept):
    assert read(text) == [kept]


def test_a_file_has_many_trees_and_those_without_words_are_left_out():
    assert read("(S (NN a))\n\n (S (NP (-NONE- *)))(S\n(NN b))") == ["(S (NN a))", "(S (NN b))"]
    assert read(" \n") == []
    assert read("( (NN a) (S (NN b)))") == ["(NN a)", "(S (NN b))"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(S (NN a)", "a bracket does not close"),
        ("(S (NN a)))", "a bracket closes that was not opened"),
        (")(", "a bracket closes that was not opened"),
        ("()", "no tree"),
        ("(S)", "no tree"),
        ("(S (NP) (NN a))", "no tree"),
        ("(S ((NN a)))", "no tree"),
        ("word", "no tree"),
        ("(S (NN a) bc)", "no tree"),
        ("(NN a (B c))", "no tree"),
    ],
)
def test_what_is_no_tree_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        read(text)


ARTICLES = {
    "1.tree": ("train", "( (S (NP-SBJ (NN a)) (VP (VB b))) )\n(S (NN c))\n(S (NN x) (NN y) (NN z))"),
    "2.tree": ("test", "(S (NN d))\n"),
    "3.tree": ("train", "(S (NN ‘é’))\n"),
    "4.tree": ("validation", "(S (NN f))\n"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of small articles in the place of CRAFT's."""
    lines = []
    for name, (part, text) in ARTICLES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        lines.append(f"{hashlib.sha256(text.encode()).hexdigest()} {name} {part}\n")
    (tmp_path / "craft.sha256").write_text("".join(lines))
    monkeypatch.setattr(trees, "files", lambda package: tmp_path)
    monkeypatch.setenv("DOTFORMER_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_craft_is_parted_by_article_and_has_no_long_sentences():
    found = {part: list(map(str, some)) for part, some in craft_trees(2).items()}
    train = ["(S (NP (NN a)) (VP (VB b)))", "(S (NN c))", "(S (NN ‘é’))"]
    assert found == {"train": train, "validation": ["(S (NN f))"], "test": ["(S (NN d))"]}
    assert list(found) == ["train", "validation", "test"]
    assert [len(tree.words()) for tree in craft_trees(3)["train"]] == [2, 1, 3, 1]
    assert [len(tree.words()) for tree in craft_trees(1)["train"]] == [1, 1]


def test_an_article_that_is_another_or_missing_is_named(folder):
    (folder / "2.tree").write_text("(S (NN D))\n")
    with pytest.raises(ValueError, match=r"2\.tree is not the file it should be"):
        craft_trees(9)
    (folder / "2.tree").unlink()
    with pytest.raises(FileNotFoundError, match=r"2\.tree is not there"):
        craft_trees(9)


def test_the_list_of_craft_has_each_article_once():
    rows = [line.split() for line in files("dotformer.data").joinpath("craft.sha256").read_text().splitlines()]
    assert Counter(part for *_, part in rows) == {"train": 60, "validation": 7, "test": 30}
    assert len({name for _, name, _ in rows}) == len({sha256 for sha256, _, _ in rows}) == 97
    assert all(len(bytes.fromhex(sha256)) == 32 and name.endswith(".tree") for sha256, name, _ in rows)


# as parsers want them


@given(some_trees(10))
def test_chains_are_collapsed_and_come_back(tree):
    short = collapse(tree)
    assert expand(short) == tree and short.words() == tree.words()

    def parts(node):
        return [len(node.children), *(n for child in node.children for n in parts(child))] if not node.is_leaf else []

    assert 1 not in parts(short)


def chains(tree):
    """The labels of each span of a tree, from the outermost to the innermost."""
    found = {}

    def visit(node, start):
        if not node.is_leaf:
            found.setdefault((start, start + len(node.words())), []).append(node.label)
            for child in node.children:
                visit(child, start)
                start += len(child.words())

    visit(tree, 0)
    return {span: "/".join(labels) for span, labels in found.items()}


@given(some_trees(10))
def test_spans_are_those_of_the_constituents_and_make_the_tree_again(tree):
    assert tree_to_spans(tree) == chains(tree)
    assert spans_to_tree(chains(tree), tree.leaves()) == tree


def test_the_spans_of_a_known_tree():
    [tree] = read_trees("(S (NP (PRP she)) (VP (VBZ sees) (NP (DT the) (NN cat))))")
    assert tree_to_spans(tree) == {(0, 4): "S", (0, 1): "NP", (1, 4): "VP", (2, 4): "NP"}
    [tree] = read_trees("(S (VP (VB go)))")
    assert tree_to_spans(tree) == {(0, 1): "S/VP"}


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ({(0, 3): "S", (0, 2): "NP", (1, 3): "VP"}, "VP from 1 to 3 crosses another constituent"),
        ({(0, 3): "S", (1, 1): "NP"}, "NP from 1 to 1 .* has no words"),
        ({(0, 4): "S"}, "no constituent is all of the sentence"),
        ({(0, 2): "NP"}, "no constituent is all of the sentence"),
        ({}, "no constituent is all of the sentence"),
    ],
)
def test_spans_that_are_no_tree_are_refused(spans, said):
    with pytest.raises(ValueError, match=said):
        spans_to_tree(spans, [Tree("NN", (word,)) for word in "abc"])
    with pytest.raises(ValueError, match="no constituent"):
        spans_to_tree({}, [Tree("NN", ("a",))])


def test_the_class_of_a_word():
    classes = {"walking": "< ng>", "IL-2": "<A0- -2>", "Bone": "<A ne>", "10": "<0 10>", "x": "< x>", "αΒ": "<A αβ>"}
    assert {word: word_class(word) for word in classes} == classes
