"""Questions answered in a real browser, by keyboard alone, and read where scripts do not run."""

import pytest
from playwright.sync_api import expect

from classroom import quiz

ONE = quiz.one_choice(
    r"What is $\sqrt{4}$?",
    quiz.wrong("4", "That is its square."),
    quiz.right("2", r"$2 \cdot 2 = 4$."),
    quiz.wrong("16", "No."),
)
SEVERAL = quiz.several_choices(
    "Which are even?",
    quiz.right("two", "Twice one."),
    quiz.wrong("three", "One is left over."),
    quiz.right("four", "Twice two."),
)
NUMBER = quiz.number(
    "What is a half?",
    0.5,
    tolerance=0.01,
    feedback="Half of one.",
    mistakes=[(2, "Upside down.")],
    otherwise="Think of a cake.",
)
BODY = "".join(question._repr_mimebundle_()["text/html"] for question in (ONE, SEVERAL, NUMBER))
PAGE = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Quiz</title><body>{BODY}</body></html>'


@pytest.fixture
def page(browser):
    page = browser.new_page()
    errors, requests = [], []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.set_content(PAGE)
    yield page
    page.close()
    assert errors == [] and requests == []


def form(page, kind):
    return page.locator(f"form[data-kind={kind}]")


def said(page, kind):
    return form(page, kind).get_by_role("status")


def test_one_choice_by_keyboard(page):
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    expect(said(page, "one")).to_contain_text("✗ Not yet. That is its square.")
    page.keyboard.press("ArrowDown")
    expect(said(page, "one")).to_be_empty()  # a changed answer is not judged before it is checked
    page.keyboard.press("Tab")
    expect(form(page, "one").get_by_role("button", name="Check")).to_be_focused()
    page.keyboard.press("Enter")
    expect(said(page, "one")).to_contain_text("✓ Right.")
    expect(said(page, "one").locator("math")).to_have_count(1)


def test_an_answer_that_is_not_given_is_asked_for(page):
    for kind, text in (("one", "Pick an answer"), ("several", "Tick at least one"), ("number", "Write a number")):
        form(page, kind).get_by_role("button").press("Enter")
        expect(said(page, kind)).to_contain_text(text)


def test_several_choices_tell_what_is_wrong_before_what_is_missing(page):
    boxes, button = form(page, "several").get_by_role("checkbox"), form(page, "several").get_by_role("button")
    boxes.nth(0).press("Space")
    boxes.nth(1).press("Space")
    button.press("Enter")
    expect(said(page, "several")).to_contain_text("One is left over.")
    expect(said(page, "several")).to_contain_text("1 more holds")
    expect(said(page, "several")).not_to_contain_text("Twice two.")
    boxes.nth(1).press("Space")
    button.press("Enter")
    expect(said(page, "several")).to_contain_text("missed: four Twice two.")
    boxes.nth(2).press("Space")
    button.press("Enter")
    expect(said(page, "several")).to_contain_text("✓ Right.")


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("0,5", "✓ Right. Half of one. (0,5 was read as 0.5.)"),
        (".5", "✓ Right."),
        ("1/2", "✓ Right."),
        ("5e-1", "✓ Right."),
        ("0.51", "✓ Right."),
        ("0.52", "✗ Not yet. Think of a cake."),
        ("−0.5", "✗ Not yet. Think of a cake."),
        ("2", "✗ Not yet. Upside down."),
        ("half", "“half” is not a number that can be read here"),
        ("1/0", "is not a number"),
        ("1,000,000", "is not a number"),
    ],
)
def test_numbers_as_people_write_them(page, typed, answer):
    field = form(page, "number").get_by_label("Your answer")
    field.fill(typed)
    field.press("Enter")
    expect(said(page, "number")).to_contain_text(answer)


def test_the_answers_are_hidden_until_a_reader_is_stuck(page):
    answers, field = form(page, "number").locator("details"), form(page, "number").get_by_role("textbox")
    expect(answers).to_be_hidden()
    for typed in ("3", "4"):
        expect(answers).to_be_hidden()
        field.fill(typed)
        field.press("Enter")
    expect(answers).to_be_visible()


def test_the_script_run_again_changes_nothing_and_leaves_no_global(page):
    before = page.evaluate("Object.keys(window).length")
    page.add_script_tag(content=BODY.rsplit("<script>", 1)[1].removesuffix("</script>"))
    assert page.evaluate("Object.keys(window).length") == before
    form(page, "number").get_by_role("textbox").fill("3")
    form(page, "number").get_by_role("textbox").press("Enter")
    expect(form(page, "number").locator("details")).to_be_hidden()  # counted once, not twice


def test_without_scripts_the_answers_can_be_read(browser):
    page = browser.new_page(java_script_enabled=False)
    page.set_content(PAGE)
    expect(page.locator("button")).to_have_count(3)
    for button in page.locator("button").all():
        expect(button).to_be_hidden()
    for answers in page.locator("details").all():
        answers.locator("summary").press("Enter")
    expect(page.get_by_text("That is its square.")).to_be_visible()
    expect(page.get_by_text("Upside down.")).to_be_visible()
    form(page, "number").get_by_role("textbox").press("Enter")
    assert page.url == "about:blank"
    page.close()
