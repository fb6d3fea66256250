"""Chapters are read as they stand, and what is wrong in one is named with file and line."""

from pathlib import Path

import pytest

from literate.chapter import Chapter, read_chapter
from literate.project import ChapterError
from literate.sections import sections

SOFTMAX = '''
# %% tags=["export"] module="by_hand.softmax"
def softmax(scores):
    """Shares."""
    return scores
'''


def read(folder, stem: str = "03_softmax") -> Chapter:
    return read_chapter(folder.root, Path("chapters", f"{stem}.py"))


def test_a_chapter_is_its_cells_in_order_with_their_lines_and_sections(folder):
    folder.chapter(
        "03_softmax",
        '''
        # %%
        # cat sat on the mat
        first = 1

        # %% [markdown]
        # ## Why divide by $\\sqrt{d_k}$?
        #
        # ```
        # # no heading
        # ```

        # %% tags=["plot"] mystnb={"image": {"alt": "what it shows"}}
        plot = 2
        # %% [markdown]
        """
        ### The *soft* `look_up`
        """
        # %% tags=["export", "nbval-check-output"] module="by_hand.softmax"

        # A comment stays.
        import third
        ''',
        title="From *scores* to shares",
    )
    chapter = read(folder)
    assert (chapter.path, chapter.number, chapter.stem) == (Path("chapters/03_softmax.py"), 3, "03_softmax")
    assert chapter.title == "From scores to shares"
    assert [cell.kind for cell in chapter.cells] == ["markdown", "code", "markdown", "code", "markdown", "code"]
    _, first, _, plot, _, last = chapter.cells
    assert first.source == "# cat sat on the mat\nfirst = 1"
    assert plot.tags == ("plot",) and plot.metadata == {"mystnb": {"image": {"alt": "what it shows"}}}
    assert last.tags == ("export", "nbval-check-output") and last.module == "by_hand.softmax"
    assert [cell.section.title for cell in (first, plot, last)] == [
        "From scores to shares",
        "Why divide by sqrt(d_k)?",
        "The soft look_up",
    ]
    lines = folder.read("chapters/03_softmax.py").split("\n")
    for cell in chapter.code_cells:
        assert cell.source.split("\n") == lines[cell.line - 1 : cell.line - 1 + len(cell.source.split("\n"))]
        for node in cell.tree.body:
            assert lines[cell.line_of(node) - 1].startswith(("first", "plot", "import third"))


def test_anchors_are_those_of_the_page():
    markdown = "# 3. A title\n\n## Same\n\n## Same\n\n## Rows & columns: `d_k` *here*\n"
    assert [section.slug for section in sections(markdown, set())] == [
        "3-a-title",
        "same",
        "same-1",
        "rows--columns-d_k-here",
    ]


@pytest.mark.parametrize(
    ("math", "plain"),
    [
        (r"\sqrt{d_k}", "sqrt(d_k)"),
        (r"\frac{1}{10}", "1/10"),
        (r"Q K^\top", "Q K^T"),
        (r"d_\text{model}", "d_model"),
        (r"q \cdot k", "q · k"),
    ],
)
def test_formulas_in_headings_become_readable(math, plain):
    (section,) = sections(f"## What is ${math}$?", set())
    assert section.title == f"What is {plain}?"


CELLS_THAT_ARE_WRONG = {
    "unknown tag": ('# %% tags=["plott"]\nx = 1', "plott", "unknown tag 'plott'"),
    "tags not a list": ('# %% tags="plot"\nx = 1', "tags=", "tags"),
    "tags not JSON": ("# %% tags=[plot]\nx = 1", "tags=", "not understood"),
    "misspelt metadata": ('# %% tag=["plot"]\nx = 1', "tag=", "not understood on a '# %%' line: tag"),
    "a title and no tag": ("# %% export\nx = 1", "%% export", 'only the tag "hide-input" has a title'),
    "export without module": ('# %% tags=["export"]\nimport x', "export", "go together"),
    "module without export": ('# %% module="softmax"\nimport x', "module", "go together"),
    "export of markdown": ('# %% [markdown] tags=["export"] module="softmax"\n# hi', "module", "not a code cell"),
    "module not a name": ('# %% tags=["export"] module="soft-max"\nimport x', "module", "dotted name"),
    "syntax error": ("# %%\nfine = 1\n\nwrong = = 1", "wrong", "SyntaxError"),
    "return outside": ("# %%\nfine = 1\n\nreturn fine", "return", "outside function"),
    "await outside": ("# %%\nfine = 1\n\nawait fine", "await", "outside function"),
    "a raw cell": ("# %% [raw]\n# text", "[raw]", "code or [markdown], not [raw]"),
    "empty cell": ("# %%\n\n# %% [markdown]\n# text", "%%\n", "a code cell without code"),
    "export of a value": (SOFTMAX + "\nTABLE = 1", "TABLE", "only imports and definitions"),
    "export of a call": (SOFTMAX + "\nsoftmax(1)", "softmax(1)", "only imports and definitions"),
    "file not a name": ('# %% file="../softmax.py"\nimport x', "file", "a file to begin with"),
    "export of everything": ('# %% tags=["export"] module="x"\nfrom a import *', "import *", "without *"),
    "two statements on a line": ('# %% tags=["export"] module="x"\nimport a; import b', "import b", "one statement"),
    "no docstring": ('# %% tags=["export"] module="x"\n\nclass Softmax:\n    x = 1', "class", "needs a docstring"),
    "async without docstring": ('# %% tags=["export"] module="x"\nasync def f():\n    x = 1', "async", "a docstring"),
    "a marker in a string": ('# %%\nx = """\n# %% inside\n"""', "%% inside", "in a string"),
}


@pytest.mark.parametrize("name", CELLS_THAT_ARE_WRONG)
def test_a_wrong_cell_is_named_with_its_line(folder, name):
    cells, fragment, message = CELLS_THAT_ARE_WRONG[name]
    folder.chapter("03_softmax", cells)
    with pytest.raises(ChapterError) as raised:
        read(folder)
    if name == "empty cell":
        assert str(raised.value).startswith("chapters/03_softmax.py:4: ")
    else:
        assert str(raised.value).startswith(folder.at("03_softmax", fragment))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("# %%\nx = 1\n", 2),
        ("# %% [markdown]\n# No title\n", 2),
        ("# %% [markdown]\n# # Title without number\n", 2),
        ("# ---\n# jupyter:\n#   jupytext: {}\n# ---\n\n# %% [markdown]\n# # 4. Not 3\n", 7),
    ],
)
def test_a_chapter_without_its_title_is_refused(folder, text, line):
    folder.write("chapters/03_softmax.py", text)
    with pytest.raises(ChapterError, match=rf"chapters/03_softmax.py:{line}: no title: .* '# 3\. Title'"):
        read(folder)


def test_a_chapter_that_is_not_utf_8_is_refused(folder):
    folder.write("chapters/03_softmax.py", "")
    (folder.root / "chapters/03_softmax.py").write_bytes("# %% [markdown]\n# # 3. Käse".encode("latin-1"))
    with pytest.raises(ChapterError, match=r"chapters/03_softmax.py:1: not a text in UTF-8: .* at byte 24"):
        read(folder)


def test_a_file_that_is_not_named_like_a_chapter_is_refused(folder):
    folder.write("chapters/notes.py", "")
    with pytest.raises(ChapterError, match=r"chapters/notes.py:1: .* name such as 03_softmax.py"):
        read(folder, "notes")


def test_private_definitions_need_no_docstring_and_async_ones_can_be_exported(folder):
    cells = SOFTMAX + "\nasync def _helper():\n    pass\n\n\nclass _Hidden:\n    pass\n"
    folder.chapter("03_softmax", cells)
    assert len(read(folder).cells) == 2
