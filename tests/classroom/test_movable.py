"""Movable figures as still pictures: their numbers are NumPy's, they come out the same each time, what they refuse."""

import json

import numpy as np
import pytest
from bs4 import BeautifulSoup

from classroom import movable

LABELS, SCORES = ["tea", "coffee", "ice", "<train>"], [5, 6, -2, 1]
ANGLES = np.arange(12)[:, None] / 10000 ** (np.arange(4) / 4)
TABLE = np.stack([np.sin(ANGLES), np.cos(ANGLES)], axis=-1).reshape(12, 8)
TOKENS = ["who", "did", "<it>"]
WEIGHTS = np.array([np.eye(3), [[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.005, 0.99, 0.005]]])

BUILDS = {
    "temperature": lambda: movable.temperature(LABELS, SCORES, temperature=2.5),
    "position": lambda: movable.position(TABLE, position=9),
    "heads": lambda: movable.heads(WEIGHTS, TOKENS, head=1, token=1),
}
KINDS = pytest.mark.parametrize("kind", BUILDS)


def figure(kind):
    soup = BeautifulSoup(BUILDS[kind]()._repr_mimebundle_()["text/html"], "html.parser")
    return soup.select_one("figure.movable")


def written(element, selector):
    return [float(part.text.replace("−", "-")) for part in element.select(selector) if part.text != "off"]


@KINDS
def test_the_same_every_time(kind):
    assert BUILDS[kind]()._repr_mimebundle_() == BUILDS[kind]()._repr_mimebundle_()


@KINDS
def test_stands_still_without_a_script(kind):
    drawn = figure(kind)
    assert drawn["data-kind"] == kind
    assert not drawn.find("script") and not drawn.find(id=True)
    assert all(control.find_parent(hidden=True) for control in drawn.find_all(["input", "output", "label"]))
    assert drawn.figcaption.text
    for picture in drawn.find_all("svg"):
        assert picture["role"] == "img" and len(picture.title.text) > 20


@KINDS
def test_plain_text_is_one_line_and_is_what_is_read_aloud(kind):
    plain = BUILDS[kind]()._repr_mimebundle_()["text/plain"]
    assert plain == repr(BUILDS[kind]()) == figure(kind).select_one(".movable-said").text
    assert "\n" not in plain


@KINDS
def test_carries_its_numbers_at_full_precision(kind):
    numbers = json.loads(figure(kind)["data-numbers"])
    name, wanted = {
        "temperature": ("scores", SCORES),
        "position": ("table", TABLE.tolist()),
        "heads": ("weights", WEIGHTS.tolist()),
    }[kind]
    assert numbers[name] == wanted


def test_the_still_temperature():
    drawn = figure("temperature")
    weights = np.exp(np.array(SCORES) / 2.5)
    weights /= weights.sum()
    assert written(drawn, ".movable-number") == weights.round(3).tolist()
    full = json.loads(drawn["data-numbers"])["full"]
    assert np.allclose([float(bar["width"]) for bar in drawn.select(".movable-bar")], full * weights, atol=0.01)
    assert drawn.select_one(".movable-heading").text == "temperature 2.50"
    assert 10 ** float(drawn.input["value"]) == pytest.approx(2.5, rel=1e-3)


@pytest.mark.parametrize(
    ("degrees", "shown"), [(0.1, "0.100"), (1, "1.00"), (np.sqrt(3), "1.73"), (8, "8.00"), (64, "64.0"), (100, "100")]
)
def test_a_temperature_is_shown_with_three_digits_and_meant_so(degrees, shown):
    figure = BeautifulSoup(movable.temperature(LABELS, SCORES, temperature=degrees).html, "html.parser")
    assert figure.select_one(".movable-now").text == shown
    weights = np.exp((np.array(SCORES) - 6) / float(shown))
    assert written(figure, ".movable-number") == (weights / weights.sum()).round(3).tolist()


def test_scores_of_any_size():
    figure = BeautifulSoup(movable.temperature(["a", "b"], [1000, 0], temperature=0.1).html, "html.parser")
    assert written(figure, ".movable-number") == [1, 0]


def test_the_still_position():
    drawn = figure("position")
    assert written(drawn, ".movable-value") == pytest.approx(TABLE[9].round(3).tolist(), abs=1e-12)
    products = TABLE @ TABLE[9]
    before, after = [products[9 - k] for k in (0, 1, 2, 4, 8)], [products[9 + k] for k in (0, 1, 2)]
    assert written(drawn, ".movable-number") == np.round([*before, *after], 3).tolist()
    hidden = drawn.select(".movable-dot[visibility=hidden]")
    assert len(hidden) == sum(part.text == "off" for part in drawn.select(".movable-number")) == 2
    assert drawn.input["max"] == "11" and drawn.input["value"] == "9"


def test_the_middle_position_is_marked_by_default():
    assert repr(movable.position(TABLE)).startswith("Position 6.")


def test_the_still_heads():
    drawn = figure("heads")
    assert written(drawn, ".movable-number") == [0.1, 0.2, 0.7]
    assert repr(BUILDS["heads"]()) == "Head 2, did: looks most at <it> 0.70, did 0.20, who 0.10."
    assert [box["value"] for box in drawn.select("input[checked]")] == ["1", "1"]
    thick = [float(line["stroke-width"]) for line in drawn.select(".movable-look")]
    assert thick == [1, 1, 1, 1.5, 2, 4.5, 1, 1, 1]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: movable.temperature(LABELS, [1, 2]), r"4 label.*shape \(2,\)"),
        (lambda: movable.temperature([], []), r"0 label.*shape \(0,\)"),
        (lambda: movable.temperature(LABELS, [SCORES]), r"shape \(1, 4\)"),
        (lambda: movable.temperature(["a", "b"], [0, np.inf]), r"scores of shape \(2,\) must hold finite"),
        (lambda: movable.temperature(LABELS, SCORES, temperature=0), r"0\.1 to 100, got 0"),
        (lambda: movable.temperature(LABELS, SCORES, temperature=np.nan), "got nan"),
        (lambda: movable.position(TABLE[0]), r"\(T, D\).*got \(8,\)"),
        (lambda: movable.position(TABLE[:, :3]), r"D even.*got \(12, 3\)"),
        (lambda: movable.position(np.ones((65, 4))), r"got \(65, 4\)"),
        (lambda: movable.position(np.ones((8, 18))), r"got \(8, 18\)"),
        (lambda: movable.position(TABLE * np.nan), r"table of shape \(12, 8\) must hold finite"),
        (lambda: movable.position(TABLE, position=12), r"shape \(12, 8\), 0 to 11, got 12"),
        (lambda: movable.position(TABLE, position=-1), "got -1"),
        (lambda: movable.heads(WEIGHTS[0], TOKENS), r"\(H, T, T\) with T = 3.*got \(3, 3\)"),
        (lambda: movable.heads(WEIGHTS, TOKENS[:2]), r"T = 2.*got \(2, 3, 3\)"),
        (lambda: movable.heads(np.zeros((0, 3, 3)), TOKENS), r"got \(0, 3, 3\)"),
        (lambda: movable.heads(WEIGHTS.swapaxes(1, 2), TOKENS), r"\(2, 3, 3\).*sum to 1"),
        (lambda: movable.heads([[[2, -1], [0, 1]]], TOKENS[:2]), r"\(1, 2, 2\) must be at least 0"),
        (lambda: movable.heads(WEIGHTS, TOKENS, head=2), r"head 2 .* \(2, 3, 3\)"),
        (lambda: movable.heads(WEIGHTS, TOKENS, token=-1), "token -1"),
    ],
)
def test_what_does_not_fit_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
