"""Movable figures as still pictures: their numbers are NumPy's, they come out the same each time, what they refuse."""

import json

import numpy as np
import pytest
from bs4 import BeautifulSoup

from classroom import movable, movable_attention, plots

LABELS, SCORES = ["tea", "coffee", "ice", "<train>"], [5, 6, -2, 1]
ANGLES = np.arange(12)[:, None] / 10000 ** (np.arange(4) / 4)
TABLE = np.stack([np.sin(ANGLES), np.cos(ANGLES)], axis=-1).reshape(12, 8)
TOKENS = ["who", "did", "<it>"]
WEIGHTS = np.array([np.eye(3), [[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.005, 0.99, 0.005]]])
LAYERS = np.stack([WEIGHTS, WEIGHTS[::-1]])
KEYS = ["wer", "&", "es", "da"]
CROSS = np.array([[[0.1, 0.2, 0.3, 0.4], [0, 1, 0, 0], [0.0046, 0.125, 0.8704, 0]]])
STEPS, LOSSES = ["step 0", "<step 20>"], ["loss 1.609", "loss 0.041"]

BUILDS = {
    "temperature": lambda: movable.temperature(LABELS, SCORES, temperature=2.5),
    "position": lambda: movable.position(TABLE, position=9),
    "heads": lambda: movable.heads(WEIGHTS, TOKENS, head=1, token=1),
    "heads of layers": lambda: movable.heads(LAYERS, TOKENS, layer=1, token=2, caption="<Two> layers."),
    "heads across": lambda: movable.heads(CROSS, TOKENS, keys=KEYS, token=1),
    "frames": lambda: movable.frames(WEIGHTS[::-1], TOKENS, TOKENS, STEPS, notes=LOSSES),
    "frames across": lambda: movable.frames(CROSS, TOKENS, KEYS, STEPS[:1]),
}
KINDS = pytest.mark.parametrize("kind", BUILDS)


def figure(kind):
    soup = BeautifulSoup(BUILDS[kind]()._repr_mimebundle_()["text/html"], "html.parser")
    return soup.select_one("figure.movable")


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def written(element, selector):
    return [float(part.text.replace("−", "-")) for part in element.select(selector) if part.text != "off"]


@KINDS
def test_the_same_every_time(kind):
    assert BUILDS[kind]()._repr_mimebundle_() == BUILDS[kind]()._repr_mimebundle_()


@KINDS
def test_stands_still_without_a_script(kind):
    drawn = figure(kind)
    assert drawn["data-kind"] == kind.split()[0]
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


@pytest.mark.parametrize("kind", ["temperature", "position", "heads"])
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


def test_the_still_layers():
    drawn = figure("heads of layers")
    assert repr(BUILDS["heads of layers"]()) == "Layer 2, head 1, <it>: looks most at did 0.99, who 0.00, <it> 0.00."
    assert [box["value"] for box in drawn.select("input[checked]")] == ["2", "1", "0"]
    groups = drawn.select(".movable-controls fieldset")
    assert [group.legend.text for group in groups] == ["Layer", "Head"]
    assert len({group.input["name"] for group in drawn.select("fieldset")}) == 3
    assert drawn.figcaption.text == "<Two> layers."


def test_tokens_ask_others():
    drawn = figure("heads across")
    assert repr(BUILDS["heads across"]()) == "Head 1, did: looks most at “&” 1.00."  # and none that is not looked at
    assert written(drawn, ".movable-number") == [0, 1, 0, 0]
    assert len(drawn.select(".movable-look")) == 12
    assert [box["aria-label"] for box in drawn.select(".movable-tokens input")] == [
        "who, word 1", "did, word 2", "<it>, word 3"
    ]  # fmt: skip
    names = [part.text for part in drawn.select("svg text:not(.movable-number)")]
    assert sorted(names) == sorted(["asks", "is asked", "weight", *TOKENS, *KEYS])


@pytest.mark.parametrize("keys", [None, KEYS[:3]])
def test_more_who_ask_or_as_many(keys):
    weights = WEIGHTS if keys is None else CROSS[:, :, :3] / CROSS[:, :, :3].sum(axis=-1, keepdims=True)
    drawn = BeautifulSoup(movable.heads(weights, TOKENS, keys=keys).html, "html.parser")
    assert len(written(drawn, ".movable-number")) == len(drawn.select(".movable-asked")) == 3


def test_the_still_frames():
    drawn = figure("frames")
    first, last = drawn.find_all("svg")
    assert [picture.select_one(".movable-heading").text for picture in (first, last)] == STEPS
    assert [picture.select_one(".movable-note").text for picture in (first, last)] == LOSSES
    assert written(first, ".movable-number") == [0.5, 0.25, 0.25, 0.1, 0.2, 0.7, 0, 0.99, 0]
    assert written(last, ".movable-number") == np.eye(3).ravel().tolist()
    ends = ["#f3f7fa", "#173a56"]
    assert [cell["fill"] for cell in last.select(".movable-cell")] == [ends[int(one)] for one in np.eye(3).ravel()]
    inks = [part["fill"] for part in last.select(".movable-number")]
    assert inks == [["black", "white"][int(one)] for one in np.eye(3).ravel()]
    assert repr(BUILDS["frames"]()) == (
        "<step 20>, loss 0.041. Where each query looks most: who at who 1.00, did at did 1.00, <it> at <it> 1.00."
    )
    assert first.find_parent(class_="movable-first") and not last.find_parent(class_="movable-first")
    assert drawn.input["max"] == drawn.input["value"] == "1" and drawn.input["aria-valuetext"] == "<step 20>"


def test_the_first_frame_stands_alone_and_needs_no_note():
    drawn = figure("frames across")
    assert len(drawn.find_all("svg")) == 1 and not drawn.select(".movable-note")
    names = [part.text for part in drawn.select("svg text:not(.movable-number)")]
    assert names == ["step 0", "key →", "query ↓", *KEYS, *TOKENS]


@pytest.mark.parametrize(("frame", "shown"), [(0, 0), (1, 1), (-1, 2), (-3, 0)])
def test_a_frame_is_chosen(frame, shown):
    weights = softmax(np.arange(24.0).reshape(3, 4, 2))
    drawn = movable.frames(weights, "abcd", "xy", ["start", "middle", "end"], frame=frame, caption="As it <learns>.")
    assert repr(drawn).startswith(["start.", "middle.", "end."][shown])
    soup = BeautifulSoup(drawn.html, "html.parser")
    assert soup.input["value"] == str(shown) and soup.figcaption.text == "As it <learns>."
    assert len(soup.find_all("svg")) == (2 if shown else 1)


@pytest.mark.parametrize(
    ("rows", "columns", "numbered"), [(6, 6, True), (3, 12, True), (36, 1, True), (2, 13, False), (6, 7, False)]
)
def test_few_cells_have_their_numbers_and_many_a_scale(rows, columns, numbered):
    weights = np.full((1, rows, columns), 1 / columns)
    drawn = movable.frames(weights, ["query"] * rows, ["a long name"] * columns, ["now"])
    soup = BeautifulSoup(drawn.html, "html.parser")
    assert len(soup.select(".movable-number")) == (rows * columns if numbered else 0)
    assert bool(soup.find("text", string="weight")) is not numbered
    left, _, width, _ = map(float, soup.svg["viewbox"].split())
    assert all(float(box["x"]) + float(box["width"]) <= left + width for box in soup.select("rect"))


def test_the_colours_of_weights_are_those_of_the_plots():
    for weight in np.arange(1001) / 1000:
        code = movable_attention.colour(weight)
        shade = np.array([int(code[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        assert np.allclose(shade, plots.WEIGHTS(weight)[:3], rtol=0, atol=2 / 255)
        linear = np.where(shade <= 0.04045, shade / 12.92, ((shade + 0.055) / 1.055) ** 2.4)
        wanted = "white" if linear @ [0.2126, 0.7152, 0.0722] < plots.MIDDLE_LUMINANCE else "black"
        assert movable_attention.ink(weight) == wanted, weight


@pytest.mark.parametrize("kind", ["heads of layers", "heads across", "frames", "frames across"])
def test_new_figures_carry_three_decimals_which_round_to_two_as_the_weights_do(kind):
    wanted = {"heads of layers": LAYERS, "heads across": CROSS, "frames": WEIGHTS[::-1], "frames across": CROSS}[kind]
    carried = np.array(json.loads(figure(kind)["data-numbers"])["weights"])
    assert np.array_equal(carried, carried.round(3))
    assert np.allclose(carried, wanted, rtol=0, atol=0.00101)
    assert np.array_equal(carried.round(2), wanted.round(2))


def test_a_published_model_fits_a_page():
    weights = softmax(np.random.default_rng(0).standard_normal((6, 12, 12, 12)))
    assert len(movable.heads(weights, ["transform"] * 12).html) < 100_000
    frames = movable.frames(weights[:, :10].reshape(20, 3, 12, 12)[:, 0], ["word"] * 12, ["word"] * 12, ["step"] * 20)
    assert len(frames.html) < 60_000


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
        (lambda: movable.heads(WEIGHTS[0], TOKENS), r"\(H, T, S\) or \(L, H, T, S\) with T = 3.*got \(3, 3\)"),
        (lambda: movable.heads(WEIGHTS, TOKENS[:2]), r"T = 2.*got \(2, 3, 3\)"),
        (lambda: movable.heads(np.zeros((0, 3, 3)), TOKENS), r"got \(0, 3, 3\)"),
        (lambda: movable.heads(WEIGHTS.swapaxes(1, 2), TOKENS), r"\(2, 3, 3\).*sum to 1"),
        (lambda: movable.heads([[[2, -1], [0, 1]]], TOKENS[:2]), r"\(1, 2, 2\) must be at least 0"),
        (lambda: movable.heads(WEIGHTS, TOKENS, head=2), r"head 2 .* \(2, 3, 3\)"),
        (lambda: movable.heads(WEIGHTS, TOKENS, token=-1), "token -1"),
        (lambda: movable.heads(WEIGHTS, TOKENS, layer=1), r"layer 1, .* \(2, 3, 3\)"),
        (lambda: movable.heads(LAYERS, TOKENS, layer=2), r"layer 2, .* \(2, 2, 3, 3\)"),
        (lambda: movable.heads(LAYERS, TOKENS, layer=-1), "layer -1"),
        (lambda: movable.heads(LAYERS[None], TOKENS), r"got \(1, 2, 2, 3, 3\)"),
        (lambda: movable.heads(CROSS, TOKENS), r"T = 3 token\(s\) and S = 3 key\(s\), got \(1, 3, 4\)"),
        (lambda: movable.heads(CROSS, TOKENS, keys=TOKENS), r"S = 3 key\(s\), got \(1, 3, 4\)"),
        (lambda: movable.heads(CROSS * 2, TOKENS, keys=KEYS), r"\(1, 3, 4\).*sum to 1"),
        (lambda: movable.frames(WEIGHTS, TOKENS, TOKENS, ["one"]), r"F = 1 label\(s\).*got \(2, 3, 3\)"),
        (lambda: movable.frames(WEIGHTS, TOKENS[:2], TOKENS, STEPS), r"T = 2 queries.*got \(2, 3, 3\)"),
        (lambda: movable.frames(WEIGHTS, TOKENS, KEYS, STEPS), r"S = 4 keys, got \(2, 3, 3\)"),
        (lambda: movable.frames(WEIGHTS[0], TOKENS, TOKENS, STEPS), r"\(F, T, S\).*got \(3, 3\)"),
        (lambda: movable.frames(np.ones((0, 1, 1)), "a", "a", []), r"got \(0, 1, 1\)"),
        (lambda: movable.frames(WEIGHTS / 2, TOKENS, TOKENS, STEPS), r"weights of shape \(2, 3, 3\).*sum to 1"),
        (lambda: movable.frames(WEIGHTS * np.nan, TOKENS, TOKENS, STEPS), r"weights of shape \(2, 3, 3\).*finite"),
        (lambda: movable.frames(WEIGHTS, TOKENS, TOKENS, STEPS, notes=["a"]), r"notes .* 2 label\(s\), got 1"),
        (lambda: movable.frames(WEIGHTS, TOKENS, TOKENS, STEPS, frame=2), r"frame 2 .* \(2, 3, 3\)"),
        (lambda: movable.frames(WEIGHTS, TOKENS, TOKENS, STEPS, frame=-3), "frame -3"),
    ],
)
def test_what_does_not_fit_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
