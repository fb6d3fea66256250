"""Part I runs in its pages: every cell to its end, printing what the notebook prints, and all that a reader can do."""

import functools
import re
import shutil
import threading
from http.server import ThreadingHTTPServer

import nbformat
import pytest
from playwright.sync_api import expect

from dotformer.support.published import minilm_parameters
from literate.live import CHAPTERS, make_live
from literate.project import Project, ProjectError
from tests.browser.conftest import QuietHandler
from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "book" / "notebooks").glob(CHAPTERS))
DECIMAL = r"\d+\.\d+"
NOT_HERE = {"04_self_attention": 3, "05_position": 3, "06_many_heads": 6}  # cells that need PyTorch


@pytest.fixture(scope="module")
def live(site, tmp_path_factory):
    """Where the rendered book is served, with Python in its pages. Python and NumPy come from npm, once."""
    html = tmp_path_factory.mktemp("live") / "html"
    shutil.copytree(site, html)
    try:
        make_live(Project(ROOT), html)
    except ProjectError as error:
        if not str(error).startswith("npm "):  # not installed, or it cannot deliver
            raise
        pytest.skip(str(error))
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=html)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", html
        server.shutdown()


def opened(page, live, chapter):
    """A chapter's page with Python ready in it."""
    page.goto(f"{live[0]}/book/notebooks/{chapter}.html")
    page.get_by_role("button", name="Run this page").click()
    expect(page.locator(".live-status")).to_contain_text("ready", timeout=120_000)


def woven_text(cell):
    """What a cell of a notebook has printed, and shown as text."""
    parts = []
    for output in cell.outputs:
        data = output.get("data", {})
        if output.output_type == "stream":
            parts.append(output.text)
        elif "text/html" not in data and not any(kind.startswith("image/") for kind in data):
            parts.append(data.get("text/plain", ""))
    return "".join(parts).strip()


def alike(ours, woven):
    """Whether texts are equal, but for the last digit of a decimal: the page's NumPy may round it the other way."""
    (one, numbers), (other, expected) = (
        (re.sub(DECIMAL, "#", text), re.findall(DECIMAL, text)) for text in (ours, woven)
    )
    return one == other and all(
        abs(float(a) - float(b)) < 1.01 * 10 ** -len(b.partition(".")[2])
        for a, b in zip(numbers, expected, strict=True)
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_prints_what_the_notebook_prints(page, live, path):
    opened(page, live, path.stem)
    page.get_by_role("button", name="Run all cells").click()
    expect(page.locator(".live-status")).to_contain_text("have run", timeout=300_000)
    assert page.locator(".live-error").all_text_contents() == []
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    cells = [cell for cell in cells if "remove-cell" not in cell.metadata.get("tags", ())]
    shown = page.evaluate(
        "[...document.querySelectorAll('article div.cell')].map(cell => cell.querySelector('.live-needs') ? null :"
        " [...cell.querySelectorAll('.live-output pre')].map(pre => pre.textContent).join('').trim())"
    )
    assert shown.count(None) == NOT_HERE.get(path.stem, 0)
    both = [(ours, woven_text(cell)) for ours, cell in zip(shown, cells, strict=True)]
    assert [pair for pair in both if pair[0] is not None and not alike(*pair)] == []


def test_nothing_is_loaded_before_the_button_is_pressed(page, live):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{live[0]}/book/notebooks/03_softmax.html", wait_until="networkidle")
    assert [url for url in asked if "/live/" in url and not url.endswith(("live.js", "live.css"))] == []


def field_with(page, text):
    """The code of the one cell that holds a text."""
    [n] = [n for n, value in enumerate(values(page)) if text in value]
    return page.locator("textarea.live-code").nth(n)


def cell_of(field):
    """The cell that holds a field."""
    return field.locator("xpath=ancestor::div[contains(concat(' ', @class, ' '), ' cell ')][1]")


def values(page):
    return page.evaluate("[...document.querySelectorAll('textarea.live-code')].map(field => field.value)")


def test_a_reader_changes_a_number_and_it_is_there_after_a_reload(page, live):
    opened(page, live, "03_softmax")
    field = field_with(page, 'print("the best match is"')
    field.fill(field.input_value().replace("np.array([1, 1, 0])", "np.array([-1, 0, 0])"))
    field.press("Shift+Enter")
    expect(page.locator(".live-status")).to_contain_text("cells have run")
    expect(cell_of(field).locator(".live-output pre")).to_contain_text("the best match is ice")
    page.reload()
    opened(page, live, "03_softmax")
    assert "np.array([-1, 0, 0])" in field_with(page, 'print("the best match is"').input_value()
    page.get_by_role("button", name="Undo my changes").click()
    assert "np.array([1, 1, 0])" in field_with(page, 'print("the best match is"').input_value()


def test_an_exercise_is_done_in_the_page(page, live):
    """As the stub is, its check says that there is nothing yet; with the solution it says that it is right."""
    opened(page, live, "03_softmax")
    exercise = page.locator("div.cell.tag_exercise").first
    check = page.locator("div.cell.tag_check").first
    solution = page.evaluate("document.querySelector('div.cell.tag_solution textarea').value")
    check.locator("summary").first.click()
    run = check.get_by_role("button", name="run cell")
    run.click()
    expect(check.locator(".live-output")).to_contain_text("not yet", timeout=60_000)
    before = check.locator(".live-output").inner_text()
    exercise.locator("textarea").fill(solution.partition("\n\nverdict")[0])
    run.click()
    expect(check.locator(".live-output")).not_to_have_text(before, timeout=60_000)
    assert "right" in check.locator(".live-output").inner_text().lower()


def test_an_error_is_shown_and_what_does_not_end_is_stopped(page, live):
    opened(page, live, "04_self_attention")
    field = page.locator("textarea.live-code:visible").first
    original = field.input_value()
    field.fill("print('before')\n1 / 0")
    field.press("Control+Enter")
    cell = cell_of(field)
    expect(cell.locator(".live-error")).to_contain_text("ZeroDivisionError", timeout=120_000)
    assert cell.locator(".live-text").text_content() == "before\n"
    field.fill("while True:\n    pass")
    field.press("Control+Enter")
    expect(page.locator(".live-status")).to_contain_text("running")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".live-status")).to_contain_text("stopped")
    field.fill(original)
    field.press("Control+Enter")
    expect(page.locator(".live-status")).to_contain_text("have run", timeout=120_000)
    assert page.locator(".live-error").count() == 0


def test_the_page_cuts_texts_as_the_published_tokenizer_does(page, live):
    texts = ["the unaffordable café, isn't it?", "a snow_man's  co-op: 3.14 (zyzzyvas)", "E=mc² — naïve Zoë\tdances"]
    opened(page, live, "06_many_heads")
    field = field_with(page, "minilm_parameters()")
    field.evaluate("field => field.closest('details')?.setAttribute('open', '')")
    field.fill(field.input_value() + f"\nfor text in {texts!r}:\n    print(*tokenizer.encode(text).ids)")
    field.press("Control+Enter")
    tokenizer, _ = minilm_parameters()
    expected = "".join(" ".join(map(str, tokenizer.encode(text).ids)) + "\n" for text in texts)
    expect(cell_of(field).locator(".live-output pre")).to_have_text(expected, timeout=120_000)


def test_pictures_stay_when_all_cells_have_run(page, live):
    opened(page, live, "02_similarity")
    before = page.locator("article div.cell img, article div.cell svg").count()
    page.get_by_role("button", name="Run all cells").click()
    expect(page.locator(".live-status")).to_contain_text("have run", timeout=300_000)
    pictures = page.locator("article div.cell img, article div.cell svg")
    assert pictures.count() == before > 3
    assert page.evaluate(
        "[...document.querySelectorAll('article div.cell img')].every(one => one.complete && one.naturalWidth > 0"
        " && one.checkVisibility())"
    )


def test_from_a_disk_there_is_no_button(browser, live):
    page = browser.new_page()  # not a quiet one: from a disk the theme's fonts are refused
    page.goto((live[1] / "book/notebooks/03_softmax.html").as_uri())
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.get_by_role("button", name="Run this page").count() == 0
    page.close()
