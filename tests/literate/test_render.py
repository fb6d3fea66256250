"""The rendered book: made from nothing when a part of it changed, left alone when none did, gone when it is faulty."""

import subprocess
import sys

import pytest

from literate.project import Project
from literate.render import is_fresh, render

PAGE = "_build/html/page.html"
BUILDING = (  # in place of Jupyter Book, called as it is: the last argument is the project
    "import pathlib, sys, time; html = pathlib.Path(sys.argv[-1], '_build/html'); html.mkdir(parents=True);"
    "html.joinpath('page.html').write_text(f'built at {time.time()}')"
)
PARTS = ["_config.yml", "_toc.yml", "requirements.txt", "book/index.md", "classroom/quiz.css", "dotformer/layers.py"]
PARTS += ["chapters/03_softmax.py", "literate/weave.py"]


@pytest.fixture
def book(folder):
    """A project with every part of a book, rendered."""
    for name in PARTS:
        folder.write(name, f"# {name}\n")
    assert built(folder)
    return folder


def built(folder, building: str = BUILDING) -> bool:
    return render(Project(folder.root), [sys.executable, "-c", building])


def test_a_book_in_which_nothing_changed_is_not_rendered_again(book):
    before = book.read(PAGE)
    for name in ("book/.ipynb_checkpoints/index.md", "book/_ext/__pycache__/press.pyc", "tests/test_it.py"):
        book.write(name, "no part of the pages")
    (book.root / "book/index.md").touch()
    assert is_fresh(Project(book.root))
    assert built(book)
    assert book.read(PAGE) == before


@pytest.mark.parametrize("name", [*PARTS, "book/new.md"])
def test_a_part_that_changed_has_all_rendered_from_nothing(book, name):
    before = book.read(PAGE)
    book.write("_build/html/old.html", "a page that is no more")
    book.write(name, "changed")
    assert not is_fresh(Project(book.root))
    assert built(book)
    assert book.read(PAGE) != before
    assert not (book.root / "_build/html/old.html").exists()


@pytest.mark.parametrize("name", ["book/index.md", "_build/html"])
def test_what_was_taken_away_has_all_rendered_from_nothing(book, name):
    before = book.read(PAGE)
    (book.root / name).rename(book.root / "elsewhere")
    assert built(book)
    assert book.read(PAGE) != before


def test_a_faulty_build_is_taken_away_and_tried_again(book, capsys):
    book.write("book/index.md", "changed")
    faulty = BUILDING + "; sys.exit('index.md: WARNING')"
    for _ in range(2):
        assert not built(book, faulty)
        assert capsys.readouterr().err == "index.md: WARNING\nThe book was not built.\n"
        assert not (book.root / "_build").exists()


def test_an_interrupted_build_is_begun_again(book, monkeypatch):
    def interrupted(command, **options):
        book.write(PAGE, "half of a pa")
        raise KeyboardInterrupt

    book.write("book/index.md", "changed")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(subprocess, "run", interrupted)
        built(book)
    assert built(book)
    assert book.read(PAGE).startswith("built at ")


CONFIG = """\
title: A book
only_build_toc_files: true
execute: {execute_notebooks: "off"}
sphinx: {config: {myst_heading_anchors: 2}}
"""
CHAPTER = """
# Of the first section.

# %%
x = 1

# %% [markdown]
# ## Second
#
# Back to the [page](../index.md#here).
"""


def test_a_link_whose_target_went_is_named_by_its_line_though_its_own_page_is_as_it_was(folder, capsys):
    folder.write("_config.yml", CONFIG)
    folder.write("_toc.yml", "format: jb-book\nroot: book/index\nchapters:\n  - file: book/notebooks/01_one\n")
    folder.write("book/index.md", "# A page\n\n## Here\n")
    folder.chapter("01_one", CHAPTER)
    assert folder.literate("weave") == 0
    assert render(Project(folder.root))
    folder.write("book/index.md", "# A page\n\n## There\n")
    capsys.readouterr()
    assert not render(Project(folder.root))
    errors = capsys.readouterr().err
    assert f"{folder.at('01_one', 'Back to')} WARNING: " in errors
    assert "'here'" in errors
    assert ".ipynb:" not in errors
