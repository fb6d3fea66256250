"""Figures moved by keyboard, mouse and finger on the pages they stand on: they show what NumPy computes."""

import json

import numpy as np
import pytest
from bs4 import BeautifulSoup
from playwright.sync_api import expect

from classroom import movable
from dotformer.by_hand.softmax import softmax
from tests.browser.conftest import quiet_tab
from tests.browser.test_pages import barriers, pale
from tests.conftest import ROOT

PAGES = {"temperature": "03_softmax", "position": "05_position", "heads": "06_many_heads"}
KINDS = pytest.mark.parametrize("kind", PAGES)
SLIDERS = pytest.mark.parametrize("kind", ["temperature", "position"])

RNG = np.random.default_rng(20)
TOKENS, KEYS = ["<s>", "my", "dog", "."], ["mein", "Hund", "&", "ich", "</s>"]
MOMENTS, LOSSES = ["step 0", "step 20", "<last>"], ["loss 1.609", "loss 0.4", "loss 0.041"]
LAYERS = softmax(3 * RNG.standard_normal((2, 12, 4, 4)))
CROSS = softmax(3 * RNG.standard_normal((2, 3, 4, 5)))
MASKED = softmax(np.where(np.tri(4, dtype=bool), RNG.standard_normal((2, 4, 4)), -np.inf))
TRAINED = softmax(3 * RNG.standard_normal((3, 4, 5)))
LARGE = softmax(3 * RNG.standard_normal((3, 10, 10)))
UNIFORM = np.stack([np.full((8, 8), 1 / 8), np.eye(8)])  # an eighth lies halfway between two numbers of two decimals
BUILDS = {
    "layers": lambda **state: movable.heads(LAYERS, TOKENS, **state),
    "across": lambda **state: movable.heads(CROSS, TOKENS, keys=KEYS, **state),
    "masked": lambda **state: movable.heads(MASKED, TOKENS, **state),
    "uniform": lambda **state: movable.heads(UNIFORM, list("abcdefgh"), **state),
    "frames": lambda **state: movable.frames(TRAINED, TOKENS, KEYS, MOMENTS, notes=LOSSES, **state),
    "large": lambda **state: movable.frames(LARGE, ["transformer"] * 10, ["transformer"] * 10, MOMENTS, **state),
}
BUILT = pytest.mark.parametrize("kind", BUILDS)


def open_figure(page, address, kind):
    """The first figure of its kind, on its page, with the numbers it was drawn from."""
    page.goto(f"{address}/book/notebooks/{PAGES[kind]}.html", wait_until="load")
    figure = page.locator(f"figure.movable[data-kind={kind}]").first
    expect(figure.locator(".movable-controls")).to_be_visible()
    figure.scroll_into_view_if_needed()
    return figure, json.loads(figure.get_attribute("data-numbers"))


def number(text):
    return float(text.replace("−", "-"))


def written(figure, selector):
    """The numbers that the parts of a figure show; None for a distance that is off the table."""
    texts = figure.locator(selector).all_text_contents()
    return [None if text == "off" else number(text) for text in texts]


def shows_numpys_numbers(kind, figure, numbers):
    """Assert that a figure shows, draws and says what NumPy computes for the state its controls are in."""
    {"temperature": shows_weights, "position": shows_position, "heads": shows_looks}[kind](figure, numbers)
    said = figure.locator(".movable-said").text_content()
    assert figure.locator("svg > title").last.text_content() == said
    # a live region is read aloud when it changes
    assert figure.locator("output[aria-live=polite]").text_content().endswith(said)


def shows_weights(figure, numbers):
    now = number(figure.locator(".movable-now").text_content())
    assert now == pytest.approx(10 ** float(figure.locator("input").input_value()), rel=5e-3)
    weights = softmax(np.array(numbers["scores"]) / now)
    assert written(figure, ".movable-number") == pytest.approx(weights.tolist(), abs=0.00051)
    widths = [float(bar.get_attribute("width")) for bar in figure.locator(".movable-bar").all()]
    assert widths == pytest.approx((numbers["full"] * weights).tolist(), abs=0.01)
    said = figure.locator(".movable-said").text_content()
    assert said.startswith(f"Weights at temperature {figure.locator('.movable-now').text_content()}: ")
    assert all(f"{label} {weight:.3f}" in said for label, weight in zip(numbers["labels"], weights, strict=True))


def shows_position(figure, numbers):
    at, table = int(figure.locator("input").input_value()), np.array(numbers["table"])
    assert figure.locator(".movable-now").text_content() == str(at)
    assert written(figure, ".movable-value") == pytest.approx(table[at].tolist(), abs=0.00051)
    products = table @ table[at]
    places = [at + sign * distance for sign in (-1, 1) for distance in numbers["near"]]
    shown = written(figure, ".movable-number")
    assert [value is not None for value in shown] == [0 <= place < len(table) for place in places]
    for value, place in zip(shown, places, strict=True):
        assert value is None or value == pytest.approx(products[place], abs=0.00051)
    assert len(curve(figure, numbers)) == len(table)
    assert [height for _, height in sorted(curve(figure, numbers).items())] == pytest.approx(products, abs=0.01)
    assert min(curve(figure, numbers)) == -at


def curve(figure, numbers):
    """The curve that is drawn: dot products by distance."""
    frame = numbers["curve"]
    points = figure.locator(".movable-line").get_attribute("points").split()
    pairs = [map(float, point.split(",")) for point in points]
    return {round((x - frame["centre"]) / frame["unit"]): (frame["zero"] - y) / frame["scale"] for x, y in pairs}


def shows_looks(figure, numbers):
    head = int(figure.locator(".movable-choices input:checked").get_attribute("value"))
    token = int(figure.locator(".movable-tokens input:checked").get_attribute("value"))
    weights = np.array(numbers["weights"])[head]
    assert written(figure, ".movable-number") == pytest.approx(weights[token].tolist(), abs=0.0051)
    thick = figure.locator(".movable-look").evaluate_all(
        "lines => lines.map(line => +line.getAttribute('stroke-width'))"
    )
    wanted = np.ones_like(weights)
    wanted[token] += 5 * weights[token]
    assert thick == pytest.approx(wanted.ravel().tolist(), abs=0.01)
    best = weights[token].argmax()
    said = f"Head {head + 1}, {numbers['tokens'][token]}: looks most at {numbers['tokens'][best]} "
    assert figure.locator(".movable-said").text_content().startswith(said)


def texts(figure):
    return figure.locator("svg text, svg title, output").all_text_contents()


def moves_by_keyboard(page, figure, numbers, kind):
    """Each key changes a slider, and the key back brings back the still picture."""
    still = texts(figure)
    figure.locator("input").focus()
    for key, back in (("ArrowRight", "ArrowLeft"), ("ArrowUp", "ArrowDown")):
        page.keyboard.press(key)
        shows_numpys_numbers(kind, figure, numbers)
        assert texts(figure) != still
        page.keyboard.press(back)
        assert texts(figure) == still
    ends = []
    for key in ("PageDown", "Home", "End"):
        page.keyboard.press(key)
        shows_numpys_numbers(kind, figure, numbers)
        ends.append(written(figure, ".movable-now")[0])
    assert len(set(ends)) == 3
    if kind == "temperature":
        assert ends[1:] == [0.1, 100]


def moves_by_pointer(page, figure, numbers, kind):
    """A slider follows the pointer that holds it."""
    slider = figure.locator("input")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.2 * box["width"], middle)
    page.mouse.down()
    shows_numpys_numbers(kind, figure, numbers)
    low, before = float(slider.input_value()), curve(figure, numbers) if kind == "position" else {}
    page.mouse.move(box["x"] + 0.9 * box["width"], middle, steps=4)
    page.mouse.up()
    shows_numpys_numbers(kind, figure, numbers)
    assert float(slider.input_value()) > low
    if before:  # the curve of dot products keeps its shape, and ends elsewhere
        after = curve(figure, numbers)
        assert before.keys() != after.keys()
        for distance in before.keys() & after.keys():
            assert before[distance] == pytest.approx(after[distance], abs=0.01)


@SLIDERS
def test_a_slider_on_its_page(page, address, kind):
    figure, numbers = open_figure(page, address, kind)
    shows_numpys_numbers(kind, figure, numbers)
    moves_by_keyboard(page, figure, numbers, kind)
    moves_by_pointer(page, figure, numbers, kind)


def test_heads_on_their_page(page, address):
    figure, numbers = open_figure(page, address, "heads")
    shows_numpys_numbers("heads", figure, numbers)
    for group, choices in ((".movable-tokens", "tokens"), (".movable-choices", "weights")):
        figure.locator(f"{group} input:checked").focus()
        seen = set()
        for _ in numbers[choices]:
            page.keyboard.press("ArrowDown")
            seen.add(figure.locator(f"{group} input:checked").get_attribute("value"))
            shows_numpys_numbers("heads", figure, numbers)
        assert len(seen) == len(numbers[choices])
    figure.locator(".movable-choices label").nth(1).click()
    assert figure.locator(".movable-choices input:checked").get_attribute("value") == "1"
    figure.locator(".movable-tokens input").first.hover()
    assert figure.locator(".movable-tokens input:checked").get_attribute("value") == "0"
    shows_numpys_numbers("heads", figure, numbers)


@pytest.fixture
def phone(browser):
    """A tab of a phone, with a finger for a pointer."""
    with quiet_tab(browser, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True) as page:
        yield page


@KINDS
def test_moves_under_a_finger(phone, address, kind):
    figure, numbers = open_figure(phone, address, kind)
    still = texts(figure)
    if kind == "heads":
        index = 0 if figure.locator(".movable-tokens input:checked").get_attribute("value") != "0" else 1
        figure.locator(".movable-tokens input").nth(index).tap()
    else:
        slider = figure.locator("input")
        slider.tap(position={"x": 0.75 * slider.bounding_box()["width"], "y": 12})
    assert texts(figure) != still
    shows_numpys_numbers(kind, figure, numbers)


@KINDS
def test_stands_still_where_scripts_do_not_run(browser, address, kind):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/book/notebooks/{PAGES[kind]}.html")
    figure = page.locator(f"figure.movable[data-kind={kind}]").first
    expect(figure.locator("svg").first).to_be_visible()
    for control in figure.locator("input, output").all():
        expect(control).to_be_hidden()
    context.close()


# Figures that no chapter need hold: built here, and set on a page of their own.


PAGE = """<!doctype html>
<html lang="en" data-theme="{theme}"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Figures</title><link rel="icon" href="favicon.svg">
<link rel="stylesheet" href="custom.css"><link rel="stylesheet" href="movable.css">
<style>* {{ box-sizing: border-box }} body {{ margin: 1rem; background: var(--pst-color-background);
color: var(--pst-color-text-base) }}</style><script defer src="movable.js"></script>
<main class="bd-content"><article class="bd-article"><h1>Figures</h1>{cells}</article></main></html>"""


@pytest.fixture
def stand():
    """Put figures on a page with the book's styles and scripts and open it in a tab."""

    def build(page, *figures, theme="light"):
        cells = "".join(f'<div class="cell_output"><div class="output text_html">{f.html}</div></div>' for f in figures)

        def answer(route):
            name = route.request.url.removeprefix("http://figures.test/")
            if name:
                route.fulfill(path=ROOT / "book" / "_static" / name)
            else:
                route.fulfill(body=PAGE.format(theme=theme, cells=cells), content_type="text/html")

        page.route("http://figures.test/**", answer)
        page.goto("http://figures.test/")
        return page.locator("figure.movable")

    return build


def parts(figure):
    """What a figure draws and says, however it is written: names, numbers and words, in order."""
    found = []
    for part in figure.select("svg *, output *, output:not(:has(*))"):
        attributes = {key: value for key, value in part.attrs.items() if key != "class"}
        found += [part.name, part.get_text() if not part.find() else ""]
        for key, value in sorted(attributes.items()):
            try:
                found += [key, float(value)]
            except ValueError:
                found += [key, value]
    return found


def shows_what_python_draws(figure, build, **state):
    """Assert that a figure moved to a state is the still picture of this state."""
    still = BeautifulSoup(build(**state).html, "html.parser").figure
    for first in still.select(".movable-first"):
        first.decompose()
    moved = BeautifulSoup(figure.evaluate("figure => figure.outerHTML"), "html.parser").figure
    for one, other in zip(parts(moved), parts(still), strict=True):
        assert one == (pytest.approx(other, abs=0.0101) if isinstance(other, float) else other)
    assert figure.locator("svg > title").text_content() == repr(build(**state))
    assert figure.locator("output[aria-live=polite]").text_content().endswith(repr(build(**state)))


@BUILT
def test_a_built_figure_stands_still_until_it_is_moved(page, stand, kind):
    shows_what_python_draws(stand(page, BUILDS[kind]()), BUILDS[kind])


@pytest.mark.parametrize("kind", ["layers", "across"])
def test_layers_heads_and_words_are_chosen_by_keyboard(page, stand, kind):
    build, figure = BUILDS[kind], stand(page, BUILDS[kind]())
    state = {"layer": 0, "head": 0, "token": 0}
    groups = {"layer": ".movable-choices >> nth=0", "head": ".movable-choices >> nth=1", "token": ".movable-tokens"}
    for name, group in groups.items():
        choices = figure.locator(group).locator("input")
        figure.locator(group).locator("input:checked").focus()
        for index in [*range(1, choices.count()), 0, 1]:
            page.keyboard.press("ArrowRight")
            state[name] = index
            expect(choices.nth(index)).to_be_checked()
            shows_what_python_draws(figure, build, **state)


def test_layers_are_clicked_and_named(page, stand):
    figure = stand(page, BUILDS["layers"](layer=1, head=11))
    assert figure.locator("legend").all_text_contents() == ["The word that asks", "Layer", "Head"]
    figure.get_by_role("group", name="Layer").get_by_role("radio", name="1", exact=True).click()
    shows_what_python_draws(figure, BUILDS["layers"], layer=0, head=11)
    figure.locator(".movable-tokens input").nth(3).hover()
    shows_what_python_draws(figure, BUILDS["layers"], layer=0, head=11, token=3)


def test_what_a_mask_hides_is_not_said(page, stand):
    figure = stand(page, BUILDS["masked"](token=3))
    figure.locator(".movable-tokens input").first.hover()
    assert figure.locator(".movable-said").text_content() == "Head 1, <s>: looks most at <s> 1.00."
    shows_what_python_draws(figure, BUILDS["masked"], token=0)


@pytest.mark.parametrize("kind", ["masked", "uniform"])
def test_chosen_again_a_word_looks_where_it_did(page, stand, kind):
    figure = stand(page, BUILDS[kind](token=1))
    for index in (2, 1):
        figure.locator(".movable-tokens input").nth(index).hover()
        shows_what_python_draws(figure, BUILDS[kind], token=index)


def test_figures_of_the_same_numbers_move_apart(page, stand):
    states = {"layer": 0, "head": 3, "token": 1}, {"layer": 1, "head": 0, "token": 2}
    figures = stand(page, *(BUILDS["layers"](**state) for state in states))
    for index, state in enumerate(states):
        assert figures.nth(index).locator("input:checked").count() == 3
        figures.nth(index).locator(".movable-tokens input").nth(3).hover()
        shows_what_python_draws(figures.nth(index), BUILDS["layers"], **state | {"token": 3})
    assert figures.first.locator("input:checked").count() == 3


@pytest.mark.parametrize("kind", ["frames", "large"])
def test_training_moves_by_keyboard(page, stand, kind):
    build, figure = BUILDS[kind], stand(page, BUILDS[kind]())
    expect(figure.locator("svg")).to_have_count(1)
    figure.get_by_role("slider", name="Training").focus()
    fills = {}
    for key, at in (("Home", 0), ("ArrowRight", 1), ("End", 2), ("ArrowLeft", 1)):
        page.keyboard.press(key)
        shows_what_python_draws(figure, build, frame=at)
        expect(figure.get_by_role("slider")).to_have_attribute("aria-valuetext", MOMENTS[at])
        fills[key] = figure.locator(".movable-cell").evaluate_all("all => all.map(one => one.getAttribute('fill'))")
    assert fills["Home"] != fills["End"] != fills["ArrowRight"] == fills["ArrowLeft"]


def test_without_a_script_the_first_moment_is_beside_the_last(browser, stand):
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 900})
    figure = stand(context.new_page(), BUILDS["frames"]())
    first, last = figure.locator("svg").all()
    assert first.is_visible() and last.is_visible()
    assert first.bounding_box()["y"] == last.bounding_box()["y"]
    for control in figure.locator("input, output").all():
        expect(control).to_be_hidden()
    context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_built_figures_are_accessible(page, stand, theme):
    stand(page, *(build() for build in BUILDS.values()), theme=theme)
    assert barriers(page) + pale(page) == []


def test_built_figures_fit_a_phone_and_move_under_a_finger(phone, stand):
    figures = stand(phone, *(build() for build in BUILDS.values()))
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    kinds = list(BUILDS)
    layers, frames = figures.nth(kinds.index("layers")), figures.nth(kinds.index("frames"))
    for name, wanted in (("Layer", 2), ("Head", 12)):
        layers.get_by_role("group", name=name).get_by_role("radio", name=str(wanted), exact=True).tap()
    shows_what_python_draws(layers, BUILDS["layers"], layer=1, head=11)
    slider = frames.locator("input")
    slider.tap(position={"x": 0.5 * slider.bounding_box()["width"], "y": 12})
    shows_what_python_draws(frames, BUILDS["frames"], frame=1)


@pytest.mark.parametrize("width", [390, 1280])
def test_six_choices_stand_in_a_row(page, stand, width):
    page.set_viewport_size({"width": width, "height": 900})
    boxes = stand(page, BUILDS["layers"]()).get_by_role("group", name="Head").locator("label").all()
    rows = [box.bounding_box()["y"] for box in boxes]
    assert rows == [rows[0]] * 6 + [rows[6]] * 6 and rows[0] < rows[6]
