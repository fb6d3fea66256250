"""Figures moved by keyboard, mouse and finger on the pages they stand on: they show what NumPy computes."""

import json

import numpy as np
import pytest
from playwright.sync_api import expect

from dotformer.by_hand.softmax import softmax

PAGES = {"temperature": "03_softmax", "position": "05_position", "heads": "06_many_heads"}
KINDS = pytest.mark.parametrize("kind", PAGES)
SLIDERS = pytest.mark.parametrize("kind", ["temperature", "position"])


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
    thick = [float(line.get_attribute("stroke-width")) for line in figure.locator(".movable-look").all()]
    wanted = np.ones_like(weights)
    wanted[token] += 5 * weights[token]
    assert thick == pytest.approx(wanted.ravel().tolist(), abs=0.01)
    best = weights[token].argmax()
    said = f"Head {head + 1}, {numbers['tokens'][token]}: looks most at {numbers['tokens'][best]} "
    assert figure.locator(".movable-said").text_content().startswith(said)


def texts(figure):
    return figure.locator("svg text, svg title, output").all_text_contents()


@KINDS
def test_shows_numpys_numbers_before_it_is_moved(page, address, kind):
    shows_numpys_numbers(kind, *open_figure(page, address, kind))


@SLIDERS
def test_a_slider_moves_by_keyboard(page, address, kind):
    figure, numbers = open_figure(page, address, kind)
    still = texts(figure)
    figure.locator("input").focus()
    seen = [still]
    for key in ("ArrowRight", "ArrowUp", "PageDown", "Home", "End"):
        page.keyboard.press(key)
        shows_numpys_numbers(kind, figure, numbers)
        assert texts(figure) != seen[-1]
        seen.append(texts(figure))


@SLIDERS
def test_moved_back_it_shows_the_still_picture_again(page, address, kind):
    figure, _ = open_figure(page, address, kind)
    still = texts(figure)
    figure.locator("input").focus()
    page.keyboard.press("ArrowRight")
    assert texts(figure) != still
    page.keyboard.press("ArrowLeft")
    assert texts(figure) == still


@SLIDERS
def test_a_slider_moves_by_pointer(page, address, kind):
    figure, numbers = open_figure(page, address, kind)
    slider = figure.locator("input")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.2 * box["width"], middle)
    page.mouse.down()
    shows_numpys_numbers(kind, figure, numbers)
    low = float(slider.input_value())
    page.mouse.move(box["x"] + 0.9 * box["width"], middle, steps=4)
    page.mouse.up()
    shows_numpys_numbers(kind, figure, numbers)
    assert float(slider.input_value()) > low


def test_temperature_runs_from_a_tenth_to_a_hundred(page, address):
    figure, numbers = open_figure(page, address, "temperature")
    figure.locator("input").focus()
    for key, end in (("Home", 0.1), ("End", 100)):
        page.keyboard.press(key)
        assert written(figure, ".movable-now") == [end]
        shows_numpys_numbers("temperature", figure, numbers)


def test_the_curve_of_dot_products_keeps_its_shape(page, address):
    figure, numbers = open_figure(page, address, "position")
    before = curve(figure, numbers)
    figure.locator("input").focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    after = curve(figure, numbers)
    assert before.keys() != after.keys()  # it ends elsewhere
    for distance in before.keys() & after.keys():
        assert before[distance] == pytest.approx(after[distance], abs=0.01)


def test_heads_and_words_are_chosen_by_keyboard(page, address):
    figure, numbers = open_figure(page, address, "heads")
    for group, choices in ((".movable-tokens", "tokens"), (".movable-choices", "weights")):
        figure.locator(f"{group} input:checked").focus()
        seen = set()
        for _ in numbers[choices]:
            page.keyboard.press("ArrowDown")
            seen.add(figure.locator(f"{group} input:checked").get_attribute("value"))
            shows_numpys_numbers("heads", figure, numbers)
        assert len(seen) == len(numbers[choices])


def test_heads_are_clicked_and_words_pointed_at(page, address):
    figure, numbers = open_figure(page, address, "heads")
    for index in range(len(numbers["weights"])):
        figure.locator(".movable-choices label").nth(index).click()
        assert figure.locator(".movable-choices input:checked").get_attribute("value") == str(index)
        shows_numpys_numbers("heads", figure, numbers)
    for index in range(len(numbers["tokens"])):
        figure.locator(".movable-tokens input").nth(index).hover()
        assert figure.locator(".movable-tokens input:checked").get_attribute("value") == str(index)
        shows_numpys_numbers("heads", figure, numbers)


@pytest.fixture
def phone(browser):
    """A fresh tab of a phone, with a finger for a pointer."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    yield context.new_page()
    context.close()


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
