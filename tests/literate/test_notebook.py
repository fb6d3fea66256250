"""A woven notebook as text: what tags become, ids that stay, and which files decide whether a chapter is stale."""

import ast

import nbformat
import pytest

from literate.dependencies import local_files
from literate.notebook import assemble, cells_of, executed_hash
from literate.project import Project, ProjectError, remove_leftovers, write_text

CELLS = '''
# %% tags=["quiz"]
quiz = 1

# %% tags=["plot", "nbval-check-output"] mystnb={"image": {"alt": "what it shows"}}
plot = 2

# %% tags=["solution"]
solution = 3

# %% tags=["export"] module="softmax"
def softmax(scores):
    """Shares."""

# %%
same = 4

# %%
same = 4
'''


def woven_cells(folder):
    (chapter,) = folder.book().chapters
    return [cell for cell, _ in cells_of(Project(folder.root), chapter)]


def test_tags_become_what_page_lab_and_colab_understand(folder):
    folder.chapter("03_softmax", CELLS)
    hidden = {"jupyter": {"source_hidden": True}, "cellView": "form"}
    assert [cell.metadata for cell in woven_cells(folder)] == [
        {},
        {"tags": ["quiz", "remove-input"], **hidden},
        {
            "tags": ["plot", "hide-input", "nbval-check-output"],
            "mystnb": {"image": {"alt": "what it shows"}},
            **hidden,
        },
        {"tags": ["solution", "hide-cell"], **hidden},
        {"tags": ["export"]},
        {},
        {},
    ]


def test_ids_are_unique_and_survive_a_new_cell(folder):
    folder.chapter("03_softmax", CELLS)
    before = [cell.id for cell in woven_cells(folder)]
    assert len(set(before)) == len(before)
    folder.edit("chapters/03_softmax.py", "solution = 3\n", "solution = 3\n\n# %%\nnew = 5\n")
    after = [cell.id for cell in woven_cells(folder)]
    assert after[:4] + after[5:] == before


def test_the_notebook_is_valid_and_holds_nothing_volatile(folder):
    folder.chapter("03_softmax", CELLS)
    (chapter,) = folder.book().chapters
    text = assemble(Project(folder.root), chapter, "hash", [(count, []) for count in range(1, 7)])
    notebook = nbformat.reads(text, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec == {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert notebook.metadata.language_info == {"name": "python", "pygments_lexer": "ipython3"}
    assert notebook.metadata.dotformer.chapter == "chapters/03_softmax.py"


def test_the_colab_cell_comes_and_goes_with_the_address_and_counts_as_code(folder):
    folder.chapter("03_softmax", CELLS)
    project = Project(folder.root)
    (chapter,) = folder.book().chapters
    without, without_hash = woven_cells(folder), executed_hash(project, chapter)
    for config in ("", "title: x\n", "repository:\n", "repository:\n  url: \n", 'repository:\n  url: ""\n'):
        folder.write("_config.yml", config)
        assert woven_cells(folder) == without
    folder.write("_config.yml", "repository:\n  url: https://example.org/some/book/\n")
    title, colab, *others = woven_cells(folder)
    assert [title, *others] == without
    assert colab.metadata == {"tags": ["remove-cell"]}
    assert 'if "google.colab" in sys.modules:' in colab.source
    assert 'git+https://example.org/some/book"' in colab.source
    exec(colab.source, {})  # and does nothing here
    assert executed_hash(project, chapter) != without_hash


@pytest.fixture
def modules(folder):
    folder.write("classroom/__init__.py", "from . import plots\n")
    folder.write("classroom/plots.py", "import numpy\nfrom .colours import BLUE\nfrom classroom.quiz import one\n")
    folder.write("classroom/colours.py", "BLUE = 1\n")
    folder.write("classroom/quiz.py", "def one():\n    import dotformer.by_hand.late\n")
    folder.write("classroom/quiz.css", "")
    folder.write("classroom/quiz.js", "")
    for stray in ("classroom/.DS_Store", "classroom/notes.txt", "dotformer/ruff.toml"):
        folder.write(stray, "")
    folder.write("classroom/unused.py", "")
    folder.write("dotformer/by_hand/late.py", "")
    folder.write("dotformer/other.py", "")
    for kept in ("measurements/speed.json", "models/small/config.json", "models/small/model.safetensors"):
        folder.write(f"book/{kept}", "{}")
    return folder


CLASSROOM_FILES = [
    "classroom/__init__.py",
    "classroom/colours.py",
    "classroom/plots.py",
    "classroom/quiz.css",
    "classroom/quiz.js",
    "classroom/quiz.py",
]
PACKAGE_FILES = ["dotformer/__init__.py", "dotformer/by_hand/__init__.py", "dotformer/by_hand/late.py"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import numpy, os.path", []),
        ("import dotformer.by_hand.late", PACKAGE_FILES),
        ("from dotformer.by_hand import late", PACKAGE_FILES),
        ("from dotformer.by_hand.late import something", PACKAGE_FILES),
        ("def f():\n    from dotformer import other", ["dotformer/__init__.py", "dotformer/other.py"]),
        ("from classroom import plots", CLASSROOM_FILES + PACKAGE_FILES),
        ('rate = measured("speed")["rate"] + measured("none")', ["book/measurements/speed.json"]),
        ('path = trained("small")', ["book/models/small/config.json", "book/models/small/model.safetensors"]),
    ],
)
def test_a_chapter_depends_on_what_it_imports_and_what_that_imports(modules, code, expected):
    files = local_files(modules.root, [ast.parse(code)])
    assert [path.relative_to(modules.root).as_posix() for path in files] == expected


def test_a_module_with_a_syntax_error_is_named(modules):
    modules.write("classroom/colours.py", "\nBLUE = = 1\n")
    with pytest.raises(ProjectError, match=r"classroom/colours.py:2: SyntaxError"):
        local_files(modules.root, [ast.parse("import classroom")])


def test_a_write_that_fails_leaves_the_file_and_nothing_else(folder, monkeypatch):
    path = folder.root / "page.md"
    assert write_text(path, "old") and not write_text(path, "old")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_text(path, "new")
    assert path.read_text() == "old" and not list(folder.root.glob("*.tmp"))


def test_leftovers_of_a_killed_run_are_removed_and_nothing_else(folder):
    folder.write("book/03_softmax.ipynb.123.tmp", "half")
    folder.write("book/mine.tmp", "whole")
    remove_leftovers(folder.root / "book")
    assert [path.name for path in (folder.root / "book").iterdir()] == ["mine.tmp"]
