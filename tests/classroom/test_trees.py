"""A tree is drawn with its words in a line and each label above what it is made of."""

from typing import NamedTuple

import matplotlib.pyplot as plt
import pytest

from classroom import plots
from classroom.trees import draw_tree


@pytest.fixture(autouse=True)
def closed():
    """No figure is left open."""
    yield
    plt.close("all")


class Node(NamedTuple):
    """What `draw_tree` asks of a tree."""

    label: str
    children: tuple


DOG, BARKS = Node("NP", (Node("DT", ("the",)), Node("NN", ("dog",)))), Node("VP", (Node("VBZ", ("barks",)),))


def drawn(tree, **colors):
    """What is drawn of a tree: places by text, colours by text, the ends of lines, and the axes."""
    _, axes = plt.subplots()
    draw_tree(tree, axes, colors)
    places = {text.get_text(): text.get_position() for text in axes.texts}
    return places, {text.get_text(): text.get_color() for text in axes.texts}, axes


def test_words_of_a_tree_are_at_the_bottom_in_order_and_labels_above_what_they_are_made_of():
    places, _, axes = drawn(Node("S", (DOG, BARKS, Node(".", (".",)))))
    words = ["the", "dog", "barks", "."]
    assert [places[word][1] for word in words] == [0] * 4
    assert sorted(words, key=lambda word: places[word]) == words
    assert set(places) == {*words, "NP", "VP", "S"}  # no parts of speech
    heights = {label: places[label][1] for label in ("NP", "VP", "S")}
    assert heights == {"NP": 1, "VP": 1, "S": 2}
    assert places["the"][0] < places["NP"][0] < places["dog"][0] and places["VP"][0] == places["barks"][0]
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert all(left < x < right and bottom < y < top for x, y in places.values())
    lines = {tuple(line.get_xdata()) for line in axes.lines}
    parents = {"the": "NP", "dog": "NP", "barks": "VP", "NP": "S", "VP": "S", ".": "S"}
    assert lines == {(places[parent][0], places[child][0]) for child, parent in parents.items()}
    assert len(axes.lines) == len(parents) and not axes.axison


def test_labels_of_a_tree_have_the_colours_that_are_wanted():
    _, colors, _ = drawn(Node("S", (DOG, BARKS)), NP=plots.RED, the=plots.RED)
    assert (colors["NP"], colors["VP"], colors["S"]) == (plots.RED, plots.BLUE, plots.BLUE)
    assert colors["the"] == colors["barks"] == plots.INK


def test_a_tree_without_words_is_refused():
    with pytest.raises(ValueError, match="no words"):
        drawn(Node("S", (Node("NP", ()),)))
