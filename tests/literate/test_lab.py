"""The reader's folder: what was changed in it stays, and all else follows the book."""

import json

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, writes

from literate.lab import lay_out
from literate.project import Project

BOOKS, COPY = "book/notebooks/03_softmax.ipynb", "work/03_softmax.ipynb"


def notebook(*sources: str) -> str:
    """A notebook of a title and code cells."""
    cells = [new_markdown_cell("# 3. Softmax", id="0"), *(new_code_cell(source, id=source) for source in sources)]
    return writes(new_notebook(cells=cells)) + "\n"


def saved_by_jupyterlab(text: str) -> str:
    """A notebook as JupyterLab saves it unchanged: it writes down which Python it ran."""
    return json.dumps(json.loads(text) | {"metadata": {"language_info": {"name": "python", "version": "3.11.9"}}})


def lay(folder) -> list[str]:
    return lay_out(Project(folder.root))


@pytest.fixture
def laid(folder):
    """A folder whose one notebook, of the cell `old`, has been copied."""
    folder.write(BOOKS, notebook("old"))
    assert lay(folder) == []
    return folder


def test_a_copy_is_the_books_notebook_byte_for_byte(laid):
    assert laid.read(COPY) == laid.read(BOOKS)


def test_notebooks_lie_side_by_side_so_that_links_between_them_lead_somewhere(laid):
    laid.write("book/notebooks/04_attention.ipynb", notebook("next"))
    assert lay(laid) == []
    assert sorted(path.name for path in (laid.root / "work").glob("*.ipynb")) == [
        "03_softmax.ipynb",
        "04_attention.ipynb",
    ]


@pytest.mark.parametrize("looked_at", [False, True])
def test_a_copy_without_changes_follows_the_book(laid, looked_at):
    if looked_at:
        laid.write(COPY, saved_by_jupyterlab(laid.read(COPY)))
    for source in ("new", "newer"):
        laid.write(BOOKS, notebook(source))
        assert lay(laid) == []
        assert laid.read(COPY) == notebook(source)


@pytest.mark.parametrize("changed", [notebook("mine"), notebook("old", "mine"), notebook(), "{half of a noteb", ""])
def test_what_the_reader_changed_stays_whatever_the_book_does(laid, changed):
    laid.write(COPY, changed)
    assert lay(laid) == []
    laid.write(BOOKS, notebook("new"))
    for _ in range(2):
        assert lay(laid) == [COPY]
        assert laid.read(COPY) == changed


def test_a_file_of_the_readers_that_has_a_chapters_name_stays(folder):
    folder.write(COPY, notebook("mine"))
    folder.write(BOOKS, notebook("old"))
    assert lay(folder) == [COPY]
    assert folder.read(COPY) == notebook("mine")


def test_a_copy_renamed_or_deleted_makes_room_for_the_books(laid):
    laid.write(COPY, notebook("mine"))
    laid.write(BOOKS, notebook("new"))
    (laid.root / COPY).rename(laid.root / "work/mine.ipynb")
    assert lay(laid) == []
    assert laid.read(COPY) == notebook("new") and laid.read("work/mine.ipynb") == notebook("mine")
    (laid.root / COPY).unlink()
    assert lay(laid) == []
    assert laid.read(COPY) == notebook("new")


def test_an_interruption_between_copy_and_record_does_not_make_the_copy_the_readers(laid):
    for name in (BOOKS, COPY):
        laid.write(name, notebook("new"))
    assert lay(laid) == []
    laid.write(BOOKS, notebook("newer"))
    assert lay(laid) == []
    assert laid.read(COPY) == notebook("newer")
