"""Every gate bites: each is shown something broken in one way, and says so."""

import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from literate.command_line import main
from tests.book import gates, site_gates
from tests.conftest import FIXTURES, build_book

NUMBER_QUIZ = '<form data-kind="number"></form>'


def code(source: str, *tags: str, result: dict | None = None, executed: bool = True, **metadata):
    """A code cell, with at most one output: a dictionary from MIME type to content."""
    outputs = [new_output("execute_result", result, execution_count=1)] if result else []
    count = 1 if executed else None
    return new_code_cell(source, metadata={"tags": list(tags), **metadata}, outputs=outputs, execution_count=count)


def alt(text: str) -> dict:
    """Cell metadata that give a figure its alt text."""
    return {"mystnb": {"image": {"alt": text}}}


@pytest.fixture
def notebook(tmp_path):
    """Write cells into a notebook file and return its path."""

    def write(*cells, name: str = "00_fixture"):
        path = tmp_path / f"{name}.ipynb"
        numbered = [NotebookNode(cell, id=str(number)) for number, cell in enumerate(cells)]
        nbformat.write(new_notebook(cells=numbered), path)
        return path

    return write


def exercise(check: str = "✗ not yet", solution: str = "✓ right"):
    """The four cells of an exercise, with the verdicts that the last two showed."""
    heading = new_markdown_cell("### Exercise 1: try")
    shown = code("check(f)", "check", result={"text/plain": check})
    return [heading, code("f = 0", "exercise"), shown, code("f = 1", "solution", result={"text/plain": solution})]


def test_a_cell_never_executed(notebook):
    assert gates.not_executed(notebook(code("1", executed=False)))
    assert not gates.not_executed(notebook(code("1"), code("", executed=False)))


def test_a_reading_time_that_is_minutes_off(notebook):
    """230 words are a minute; 8 lines that are shown, and a line of output, 27 seconds; what is folded takes none."""
    lines = "\n".join(["x = 1"] * 8)
    cells = [
        new_markdown_cell("It takes about 10\nminutes to read." + " word" * (230 * 10 - 8)),
        code(lines, result={"text/plain": "1"}),
        code(lines, "hide-input", executed=False),
        code(lines, "proof", result={"text/plain": "1"}),
        code(lines, "plot", result={"image/svg+xml": "<svg/>"}),
        code("quiz", "quiz", result={"text/html": "<form></form>"}),
        new_markdown_cell("## Exercises\n" + " word" * 5000),
        new_markdown_cell("## In one breath\n**Sources.**" + " word" * 5000),
    ]
    path = notebook(*cells)
    assert gates.reading_minutes(gates.read(path)) == pytest.approx(
        10 + (8 * 3 + 3 + 25 + 40 + 5 / 230 * 60) / 60, abs=0.02
    )
    assert not gates.wrong_reading_time(path)
    assert gates.wrong_reading_time(notebook(cells[0], *[cells[1]] * 10))
    assert gates.wrong_reading_time(notebook(cells[1]))
    long = new_markdown_cell("It takes about 31 minutes to read." + " word" * (230 * 31 - 8))
    [problem] = gates.wrong_reading_time(notebook(long))
    assert problem.endswith("takes 31 minutes to read, and 30 at most are wanted")


def test_a_reading_time_of_what_goes_further(notebook):
    """What stands in the last section is counted apart, and the chapter must say how long that takes, too."""
    begin = new_markdown_cell("It takes about 10 minutes to read." + " word" * (230 * 10 - 8))
    more = "[Going further](#going-further), at the end, has 5 more.\n\n"
    further = [
        new_markdown_cell("## In one breath\n**Sources.**"),
        new_markdown_cell("## Going further\n" + "word " * 1150),
    ]
    said = new_markdown_cell(more + begin.source)
    assert not gates.wrong_reading_time(notebook(said, *further))
    assert gates.wrong_reading_time(notebook(begin, *further))
    assert gates.wrong_reading_time(notebook(said, *further, further[1]))


def test_folded_code_without_a_title(notebook):
    titled = code("x = 1", "hide-input")
    titled.metadata["mystnb"] = {"code_prompt_show": "one number"}
    others = [code("def f(): ...", "hide-input", "export"), code("1", "hide-input", "proof"), code("1")]
    assert not gates.without_titles(notebook(titled, *others))
    assert len(gates.without_titles(notebook(code("x = 1", "hide-input"), *others))) == 1
    assert len(gates.without_titles(notebook(code("%%js\nf", "hide-input", "export"), *others))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "- One. - **Two**: more.",
        "- One\n  (or so). -\n  Two.",
        "1. One. 2. The second.",
        "| head | of two | |---|---| | a | b |",
        "## What does it cost? Scores and blends take time, and the weights of a layer take memory.",
    ],
)
def test_a_list_or_table_or_heading_in_one_line(notebook, text):
    assert len(gates.run_together(notebook(new_markdown_cell("Before.\n\n" + text)))) == 1
    apart = text.replace(" -\n ", "\n-").replace(". - ", ".\n- ").replace(". 2", ".\n2").replace("| |", "|\n|")
    apart = apart.replace("cost? ", "cost?\n\n")
    assert not gates.run_together(notebook(new_markdown_cell("Before. - Not an item.\n\n" + apart)))


def test_a_sentence_that_reads_as_a_list(notebook):
    assert gates.run_together(notebook(new_markdown_cell("It vanishes at 0 and at\n1. Nudge the scores.")))
    assert not gates.run_together(notebook(new_markdown_cell("It vanishes:\n\n1. at 0\n2. at 1")))


def test_a_cell_that_failed(notebook):
    error = new_output("error", ename="E", evalue="", traceback=[])
    failed = code("1 / 0")
    meant = code("1 / 0", "raises-exception")
    failed.outputs = meant.outputs = [error]
    assert gates.not_executed(notebook(failed))
    assert not gates.not_executed(notebook(meant))


@pytest.mark.parametrize("text", ["", "A figure.", "3f2a9b0c4d5e6f708192a3b4c5d6e7f8", "attention-by-position.svg"])
def test_a_figure_without_alt_text(notebook, text):
    figure = {"image/svg+xml": "<svg/>"}
    assert gates.without_alt_text(notebook(code("plot()", result=figure, **alt(text))))
    assert gates.without_alt_text(notebook(new_markdown_cell(f"![{text}](a.png)")))
    assert not gates.without_alt_text(notebook(code("plot()", result=figure, **alt("Each word attends to itself."))))


def test_too_few_quizzes(notebook):
    choice, number = (
        code("q", "quiz", result={"text/html": "<form/>"}),
        code("q", "quiz", result={"text/html": NUMBER_QUIZ}),
    )
    assert gates.without_quizzes(notebook(choice, number))
    assert gates.without_quizzes(notebook(choice, choice, choice))
    assert not gates.without_quizzes(notebook(choice, choice, number))
    assert gates.without_quizzes(notebook(choice, choice, number, code("q\nassert True", "quiz")))


def test_too_few_or_unfinished_exercises(notebook):
    first, second = exercise(), exercise()
    second[0].source = "### Exercise 2: again"
    assert not gates.without_exercises(notebook(*first, *second))
    assert gates.without_exercises(notebook(*first))
    assert gates.without_exercises(notebook(*first, *second[:3]))
    assert gates.without_exercises(notebook(*first, *first))
    assert gates.without_exercises(notebook(*first, *second, *first[1:]))


def test_verdicts(notebook):
    assert not gates.wrong_verdicts(notebook(*exercise()))
    assert gates.wrong_verdicts(notebook(*exercise(check="✓ right")))
    assert gates.wrong_verdicts(notebook(*exercise(check="<function f>")))
    assert gates.wrong_verdicts(notebook(*exercise(solution="✗ not yet")))
    cells = exercise()
    cells[3].outputs = []  # it raised, or showed nothing
    assert gates.wrong_verdicts(notebook(*cells))


def test_a_notebook_that_is_too_big(notebook):
    assert gates.oversized(notebook(code("1", result={"text/plain": "1" * gates.MAX_NOTEBOOK_BYTES})))


ONE, TWO, THREE = (f"  - file: book/notebooks/{stem}\n" for stem in ("01_one", "02_two", "03_three"))


@pytest.mark.parametrize("listed", ["", ONE, f"{ONE}#{TWO}", ONE + TWO + THREE, TWO + ONE, ONE + TWO + TWO])
def test_contents_that_are_not_the_chapters(tmp_path, listed):
    (tmp_path / "chapters").mkdir()
    for stem in ("01_one", "02_two"):
        (tmp_path / "chapters" / f"{stem}.py").touch()
    contents = tmp_path / "_toc.yml"
    contents.write_text(f"root: book/index\nchapters:\n{ONE}{TWO}  - file: book/glossary\n", encoding="utf-8")
    assert not gates.wrong_contents(tmp_path)
    contents.write_text(f"root: book/index\nchapters:\n{listed}", encoding="utf-8")
    assert gates.wrong_contents(tmp_path)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("dotformer/by_hand/softmax.py", "from scipy.special import softmax"),
        ("dotformer/by_hand/softmax.py", "def plot():\n    import matplotlib.pyplot"),
        ("classroom/checks.py", "import dotformer.by_hand"),
        ("classroom/checks.py", "from literate import weave"),
        ("literate/weave.py", "from classroom import quiz"),
        ("chapters/03_softmax.py", "from tests.reference import strategies"),
        ("chapters/03_softmax.py", "import scipy"),
        ("dotformer/support/shapes.py", "from dotformer.attention import MultiHeadAttention"),
        ("dotformer/support/shapes.py", "from dotformer import data"),
        ("dotformer/data/corpora.py", "import dotformer.tokens"),
    ],
)
def test_an_import_against_the_arrows(tmp_path, path, source):
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text("import numpy\nfrom pathlib import Path\nfrom . import sibling\n", encoding="utf-8")
    assert not gates.against_the_arrows(tmp_path)
    file.write_text(source, encoding="utf-8")
    assert gates.against_the_arrows(tmp_path)


def test_nbval_compares_stored_outputs(notebook, tmp_path):
    compared = {"tags": ["nbval-check-output"]}
    cells = [code("1 + 1", result={"text/plain": value}, **compared) for value in "23"]
    right, wrong = (notebook(cell, name=name) for cell, name in zip(cells, ("right", "wrong"), strict=True))
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", tmp_path, "--nbval-lax", "-rA", "-q"]
    result = subprocess.run([*command, right, wrong], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "PASSED right.ipynb::Cell 0" in result.stdout, result.stdout
    assert "FAILED wrong.ipynb::Cell 0" in result.stdout, result.stdout


@pytest.fixture
def project(root, tmp_path):
    """A copy of the chapters and of what is made from them."""
    for name in ("chapters", "dotformer", "classroom", "book/measurements", "book/models", "book/notebooks"):
        shutil.copytree(root / name, tmp_path / name)
    files = [path.relative_to(root) for path in (root / "book").glob("*.py")]
    for name in (*files, "pyproject.toml", "_config.yml", "_toc.yml", "book/contents.md", "book/names.md"):
        shutil.copy(root / name, tmp_path / name)
    return tmp_path


def append(project, **added: str) -> None:
    """Write a line at the end of files, named with __ for / and without their endings."""
    for name, line in added.items():
        (path,) = project.glob(f"{name.replace('__', '/')}.*")
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")


def test_what_is_not_as_the_chapters_say_is_named(project, capsys):
    append(
        project,
        dotformer__by_hand__blocks="# edited by hand",
        book__contents="Edited by hand.",
        book__names="Edited by hand.",
        chapters__03_softmax="# %% [markdown]\n# Changed, and not woven.",
        book__measurements__tokens="",
    )
    assert main(["--root", str(project), "--check"]) == 1
    named = re.findall(r"^[\w/]+\.\w+(?=:)", capsys.readouterr().err, re.MULTILINE)
    notebooks = [f"book/notebooks/{stem}.ipynb" for stem in ("03_softmax", "10_tokens")]
    assert sorted(set(named)) == ["book/contents.md", "book/names.md", *notebooks, "dotformer/by_hand/blocks.py"]


def test_a_chapter_that_looks_ahead_is_named(project, capsys):
    append(project, chapters__02_similarity="# %%\nfrom dotformer.by_hand.softmax import softmax")
    assert main(["--root", str(project), "--check"]) == 1
    assert capsys.readouterr().err.startswith("chapters/02_similarity.py:")


def test_a_faulty_book_is_not_built(tmp_path):
    result = build_book(FIXTURES / "faulty", tmp_path)
    assert result.returncode != 0
    assert all(said in result.stderr for said in ("elsewhere.md", "Non-consecutive header level"))


@pytest.mark.parametrize(
    ("gate", "body"),
    [
        (site_gates.broken_links, '<a href="nowhere.html">x</a>'),
        (site_gates.broken_links, '<a href="#nowhere">x</a>'),
        (site_gates.broken_links, '<img src="nowhere.svg" alt="x">'),
        (site_gates.loaded_from_elsewhere, '<script src="https://example.org/x.js"></script>'),
        (site_gates.loaded_from_elsewhere, '<img src="//example.org/x.png" alt="x">'),
        (site_gates.repeated_ids, '<p id="a"></p><p id="a"></p>'),
        (site_gates.images_without_alt, '<article><img src="page.html"></article>'),
        (site_gates.unset_formulas, "<article><p>so $(9 + 1</p></article>"),
        (site_gates.unset_formulas, "<article><p>that is \\tfrac13</p></article>"),
        (site_gates.heavy_pages, "x" * site_gates.MAX_PAGE_BYTES),
        (site_gates.heavy_pages, '<img src="heavy.svg" alt="x">'),
    ],
)
def test_a_faulty_page(tmp_path, gate, body):
    (tmp_path / "heavy.svg").write_bytes(b" " * site_gates.MAX_PAGE_BYTES)
    page = tmp_path / "page.html"
    page.write_text('<h1 id="a">A</h1><a href="#a">a</a><a href="https://example.org">b</a>', encoding="utf-8")
    assert not gate(tmp_path)
    site_gates.parse.cache_clear()
    page.write_text(body, encoding="utf-8")
    assert gate(tmp_path)
    site_gates.parse.cache_clear()
