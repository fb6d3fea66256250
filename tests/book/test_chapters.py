"""Every chapter holds what CONTRIBUTING asks of it, and what is committed is what the chapters say."""

import subprocess
import sys

import pytest

from literate.project import Project
from literate.words import findings, read_words
from tests.book import gates
from tests.conftest import ROOT

CHAPTERS = sorted((ROOT / "chapters").glob("[0-9][0-9]_*.py"))
NOTEBOOKS = sorted((ROOT / "book" / "notebooks").glob("*.ipynb"))
NOTEBOOK_GATES = [
    gates.not_executed,
    gates.without_alt_text,
    gates.without_titles,
    gates.without_quizzes,
    gates.without_exercises,
    gates.wrong_verdicts,
    gates.wrong_reading_time,
    gates.run_together,
    gates.oversized,
]


def run(*command: str) -> subprocess.CompletedProcess:
    """Run a module's command line in the root of the project."""
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )


def test_every_chapter_is_woven():
    assert CHAPTERS
    assert [path.stem for path in NOTEBOOKS] == [path.stem for path in CHAPTERS]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_chapter(notebook):
    assert [problem for gate in NOTEBOOK_GATES for problem in gate(notebook)] == []


def test_the_front_page_shows_what_is_built():
    newest = int(CHAPTERS[-1].name[:2])
    drawn = (ROOT / "book" / "_static" / "map.svg").read_text(encoding="utf-8")
    assert drawn == run("classroom", str(newest)).stdout, "run `make index`"


def test_the_contents_list_every_chapter_in_order():
    assert gates.wrong_contents(ROOT) == []


def test_the_arrows_of_the_house():
    assert gates.against_the_arrows(ROOT) == []


def test_what_is_made_from_the_chapters_is_fresh():
    result = run("literate", "--check")
    assert result.returncode == 0, result.stdout + result.stderr


def test_chapters_and_pages_use_the_words_of_the_field():
    assert findings(Project(ROOT), read_words()) == []


@pytest.mark.parametrize("command", [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("codespell_lib",)])
def test_style_and_spelling(command):
    result = run(*command)
    assert result.returncode == 0, result.stdout + result.stderr
