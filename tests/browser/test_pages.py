"""Every page of the book in a real browser: quiet, self-contained, accessible in both themes, and fit for a phone."""

import json

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import noise_of, quiet_tab
from tests.conftest import ROOT

TOC = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
DOCUMENTS = [TOC["root"], *(chapter["file"] for part in TOC["parts"] for chapter in part["chapters"])]
PAGES = [*DOCUMENTS, "genindex", "search"]
CHAPTER = "book/notebooks/03_softmax"
TAGS = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
COLOURS = ["color-contrast", "link-in-text-block"]  # what depends on the theme
# Between them they have all colours.
KINDS = [TOC["root"], CHAPTER, "book/notebooks/06_many_heads", "book/api", "book/comparison", "search"]
KEEP_ONE_TOKEN_OF_EACH_LOOK = """() => {
    const looks = new Set(), repeated = []
    for (const token of document.querySelectorAll(":is(.highlight pre, dt.sig) span:not(:has(*))")) {
        let look = getComputedStyle(token).color
        for (let node = token; node; node = node.parentElement) look += "|" + node.className
        if (looks.has(look)) repeated.push(token)
        looks.add(look)
    }
    for (const token of repeated) token.remove()
}"""

WRITE_CODE_AND_FORMULAS_PLAINLY = """() => {
    const parts = document.querySelectorAll(".highlight pre span:not(:has(*)):not(a *), mjx-container")
    for (const part of parts) part.replaceWith(part.textContent)
}"""

# An inline formula is never broken, and a phone's line is 358 pixels for letters of 16.
LONG_FORMULAS = """() => [...document.querySelectorAll("mjx-container:not([display])")]
    .filter((formula) => formula.clientWidth / parseFloat(getComputedStyle(formula.parentElement).fontSize) > 358 / 16)
    .map((formula) => formula.closest("p, li, td")?.textContent)"""


def open_page(page: Page, address: str, name: str) -> None:
    """Open a page and wait until its formulas are set."""
    page.goto(f"{address}/{name}.html", wait_until="load")
    page.evaluate("async () => { await window.MathJax?.startup?.promise; await document.fonts.ready }")


def use_theme(page: Page, theme: str) -> None:
    """Press the theme button until the page has the theme."""
    button = page.locator(".article-header-buttons .theme-switch-button")
    for _ in range(3):
        if page.locator("html").get_attribute("data-theme") == theme:
            return
        button.click()
    expect(page.locator("html")).to_have_attribute("data-theme", theme)


def serious(page: Page, options: dict) -> list[str]:
    """What axe-core finds on the page that is serious or critical."""
    # to describe all that passed takes as long again; and preloading asks for style sheets in the wrong folder
    options = options | {"resultTypes": ["violations"], "preload": False}
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{rule['id']}: {node['html'][:160]} {json.dumps([check['message'] for check in node['any'][:1]])}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def barriers(page: Page) -> list[str]:
    """What axe-core finds, colours apart."""
    return serious(page, {"runOnly": TAGS, "rules": {rule: {"enabled": False} for rule in COLOURS}})


def pale(page: Page) -> list[str]:
    """What axe-core finds in the colours. It takes tokens of code one by one: of those that look alike one is left."""
    page.evaluate(KEEP_ONE_TOKEN_OF_EACH_LOOK)
    return serious(page, {"runOnly": COLOURS})


def test_an_error_and_another_host_are_noticed(browser, address):
    page = browser.new_page()
    noise = noise_of(page)
    open_page(page, address, CHAPTER)
    assert noise == []
    elsewhere, missing = "http://elsewhere.test/image.png", f"{address}/missing.png"
    for source in (elsewhere, missing):
        page.evaluate("source => { new Image().src = source }", source)
    page.evaluate("setTimeout(() => { throw new Error('thrown') }); console.error('said')")
    page.wait_for_timeout(500)
    page.close()
    assert {elsewhere, missing, "said"} < set(noise)
    assert any("thrown" in line for line in noise)


@pytest.fixture(scope="module")
def tab(browser):
    """A tab that goes from page to page, which takes a third less time than fresh ones, and its errors so far."""
    context = browser.new_context()
    page = context.new_page()
    yield page, noise_of(page)
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_quiet_accessible_and_fits_a_phone(tab, address, name):
    page, noise = tab
    noise.clear()
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light", reduced_motion="reduce")
    open_page(page, address, name)
    assert page.evaluate(LONG_FORMULAS) == []
    if name not in KINDS:
        page.evaluate(WRITE_CODE_AND_FORMULAS_PLAINLY)  # quicker; how they are marked up is seen on the pages of KINDS
    assert barriers(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    if name in KINDS:
        page.set_viewport_size({"width": 1280, "height": 900})
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            expect(page.locator("html")).to_have_attribute("data-theme", theme)
            assert pale(page) == []
    assert noise == []


def test_a_pale_token_of_code_is_noticed(page, address):
    page.goto(f"{address}/{CHAPTER}.html", wait_until="load")
    page.add_style_tag(content=".highlight .kn { color: #ddd !important }")
    found = pale(page)
    assert found
    assert all(line.startswith("color-contrast") for line in found)


def test_the_front_address_leads_to_the_book(page, address):
    page.goto(address)
    page.wait_for_url(f"{address}/{TOC['root']}.html")


@pytest.fixture(scope="module")
def chapter(browser, address):
    """A tab with a chapter, which several tests use one after the other."""
    with quiet_tab(browser, viewport={"width": 1280, "height": 900}, color_scheme="light") as page:
        open_page(page, address, CHAPTER)
        yield page


def test_formulas_are_set(chapter):
    page = chapter
    assert (
        page.locator("mjx-container").count() == page.locator(".bd-content span.math, .bd-content div.math").count() > 0
    )
    assert page.locator("mjx-merror").count() == 0


def test_the_theme_switch(chapter):
    page = chapter
    use_theme(page, "dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    use_theme(page, "light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_the_toggle_of_a_solution_opens_by_keyboard(chapter):
    page = chapter
    toggle = page.locator(".tag_solution summary").first
    expect(toggle).to_contain_text("Show the solution")
    toggle.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".tag_solution div.highlight").first).to_be_visible()


@pytest.mark.parametrize("kind", ["one", "number"])
def test_a_quiz_is_answered_by_keyboard(chapter, kind):
    page = chapter
    form = page.locator(f"form.classroom-quiz[data-kind={kind}]").first
    for verdict in ("wrong", "right"):
        answer(page, form, verdict)
        expect(form.locator("[role=status]")).to_contain_text("Right" if verdict == "right" else "Not yet")


def answer(page: Page, form, verdict: str) -> None:
    """Give a right or a wrong answer with the keyboard alone, and submit it."""
    answers = form.locator(".cq-answers li")
    index = [item.get_attribute("data-verdict") for item in answers.all()].index(verdict)
    if form.get_attribute("data-kind") == "number":
        field = form.locator("input[name=answer]")
        field.focus()
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type(answers.nth(index).get_attribute("data-value"))
    else:
        form.locator("input[name=answer]").nth(index).focus()
        page.keyboard.press("Space")
    page.keyboard.press("Enter")
