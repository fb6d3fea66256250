"""Figures come out the same each time, say what rows and columns are, and refuse what does not fit."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pytest

from classroom import plots

TOKENS = ["Hi", ",", "you"]


@pytest.fixture(autouse=True)
def own_style():
    backend = plt.get_backend()
    plt.switch_backend("svg")
    with plt.rc_context():
        plots.book_style()
        yield
    plt.close("all")
    plt.switch_backend(backend)


def svg_of(axes):
    image = io.BytesIO()
    axes.figure.savefig(image, format="svg", metadata={"Date": None})
    return image.getvalue()


def drawn_texts(axes):
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("draw", [plots.attention_map, plots.score_map])
def test_a_map_is_the_same_bytes_twice(draw):
    assert svg_of(draw(np.eye(3), TOKENS, TOKENS)) == svg_of(draw(np.eye(3), TOKENS, TOKENS))


def test_rows_are_queries_from_the_top_and_columns_are_keys():
    weights = np.array([[0.1, 0.2, 0.7], [1.0, 0.0, 0.0]])
    axes = plots.attention_map(weights, ["a", "b"], TOKENS, title="A title")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [label.get_text() for label in axes.get_xticklabels()] == TOKENS
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key (column)", "query (row)")
    assert axes.yaxis_inverted()
    assert drawn_texts(axes) == ["0.10", "0.20", "0.70", "1.00", "0.00", "0.00"]
    assert axes.get_title(loc="left") == "A title"


def test_numbers_are_written_in_at_most_36_cells():
    assert len(drawn_texts(plots.attention_map(np.full((6, 6), 1 / 6), "abcdef", "abcdef"))) == 36
    assert not drawn_texts(plots.attention_map(np.full((6, 7), 1 / 7), "abcdef", "abcdefg"))


def test_scores_are_centred_at_zero_and_a_masked_one_is_marked():
    axes = plots.score_map([[1.0, -2.0], [-np.inf, 0.5]], ["a", "b"], ["a", "b"])
    assert axes.collections[0].get_clim() == (-2, 2)
    assert drawn_texts(axes) == ["1.00", "−2.00", "−∞", "0.50"]


def test_a_dollar_in_a_token_is_not_mathematics():
    axes = plots.attention_map(np.eye(2), ["$5$", "a_b"], ["$5$", "$"])
    assert not any(label.get_parse_math() for label in (*axes.get_xticklabels(), *axes.get_yticklabels()))
    assert svg_of(axes)


def test_a_map_is_drawn_on_the_given_axes():
    _, axes = plt.subplots()
    assert plots.score_map(np.eye(3), TOKENS, TOKENS, ax=axes) is axes


@pytest.mark.parametrize(
    ("draw", "values", "named"),
    [
        (plots.attention_map, np.ones((3, 2)), r"weights must have shape .* = \(3, 3\), got \(3, 2\)"),
        (plots.attention_map, np.ones(3), r"got \(3,\)"),
        (plots.attention_map, np.full((3, 3), 2.0), "must lie in 0 to 1"),
        (plots.attention_map, np.full((3, 3), np.nan), "must lie in 0 to 1"),
        (plots.score_map, np.ones((2, 2)), r"scores must have shape .* = \(3, 3\), got \(2, 2\)"),
        (plots.score_map, np.full((3, 3), np.nan), "got NaN"),
    ],
)
def test_what_does_not_fit_is_refused(draw, values, named):
    with pytest.raises(ValueError, match=named):
        draw(values, TOKENS, TOKENS)


def test_an_empty_map_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        plots.attention_map(np.ones((0, 3)), [], TOKENS)
