"""Reads a chapter: a py:percent file becomes a title and cells that know their line, their tags and their section."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
from nbformat import NotebookNode, ValidationError

from literate.project import ChapterError
from literate.sections import Section, sections

# Comments stay comments: with magics on, jupytext would take `# cat sat` for a shell command.
FORMAT = {"extension": ".py", "format_name": "percent", "comment_magics": False}
FILE_NAME = re.compile(r"(\d\d)_[a-z0-9_]+\.py")
MARKER = re.compile(r"\s*#\s*%%(?:%*\s|$)")
TITLE = re.compile(r"# (\d+)\. \S")
UNLISTED_TAGS = re.compile(r"\btags=\s*[^\s\[]")
BLANK_LINES = re.compile(r"\A(?:[ \t]*\n)+|\A\s+\Z")
MODULE = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*")
FILE = re.compile(r"[a-z][a-z0-9_]*\.py")

TAGS = {  # what an author may write, and the tags that the notebook's cell gets for it
    "check": ("check", "hide-input"),
    "exercise": ("exercise",),
    "export": ("export",),
    "hide-input": ("hide-input",),
    "nbval-check-output": ("nbval-check-output",),
    "plot": ("plot", "hide-input"),
    "proof": ("proof", "hide-input"),
    "quiz": ("quiz", "remove-input"),
    "raises-exception": ("raises-exception",),
    "remove-cell": ("remove-cell",),
    "solution": ("solution", "hide-cell"),
}
METADATA = {"tags", "module", "file", "mystnb", "title"}
LAYOUT = {"lines_to_next_cell", "lines_to_end_of_cell_marker", "cell_marker", "region_name"}  # jupytext's own

JAVASCRIPT = "%%js\n"  # what jupytext makes of a cell with language="js"

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Import = ast.Import | ast.ImportFrom


@dataclass(frozen=True)
class Cell:
    """One cell of a chapter.

    `module` and `file` say where its code goes as well, `line` is the line of the chapter's file on which `source`
    begins, `section` the last heading at or above the cell, `tree` the syntax tree of a code cell (empty for the
    others), `title` what stands on the toggle of folded code, `metadata` the rest.
    """

    kind: str
    source: str
    tags: tuple[str, ...]
    metadata: dict[str, Any]
    module: str | None
    file: str | None
    line: int
    section: Section
    tree: ast.Module
    title: str

    @property
    def is_javascript(self) -> bool:
        """Whether the cell is code for a page, which IPython hands to a magic."""
        return self.kind == "code" and self.source.startswith(JAVASCRIPT)

    def line_of(self, node: ast.stmt | ast.expr) -> int:
        """The line of the chapter's file on which a node of `tree` begins."""
        return self.line + node.lineno - 1


@dataclass(frozen=True)
class Chapter:
    """A chapter: its path from the project's root, its number, the stem of its file, its title without the number."""

    path: Path
    number: int
    stem: str
    title: str
    cells: tuple[Cell, ...]

    @property
    def code_cells(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if cell.kind == "code")


def read_chapter(root: Path, path: Path) -> Chapter:
    """Read `path`, a chapter given from the project's root; raises ChapterError at the first thing that is wrong."""
    name = FILE_NAME.fullmatch(path.name)
    if not name:
        raise ChapterError(path, 1, "a chapter's file has a name such as 03_softmax.py")
    number = int(name[1])
    try:
        text = (root / path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ChapterError(path, 1, f"not a text in UTF-8: {error.reason} at byte {error.start}") from None
    raw_cells = _split(path, text)
    first_line, first = raw_cells[0] if raw_cells else (0, NotebookNode(cell_type="none", source=""))
    title = TITLE.match(first.source)
    if first.cell_type != "markdown" or not title or int(title[1]) != number:
        message = f"no title: the first cell is Markdown and begins with '# {number}. Title'"
        raise ChapterError(path, first_line + 1, message)

    cells, slugs, headings = [], set[str](), []
    for marker, raw in raw_cells:
        if raw.cell_type == "markdown":
            headings.extend(sections(raw.source, slugs))
        cells.append(_read_cell(path, marker, raw, headings[-1]))
    return Chapter(path, number, path.stem, headings[0].title, tuple(cells))


def _split(path: Path, text: str) -> list[tuple[int, NotebookNode]]:
    """The cells as jupytext reads them, each with the line of its '# %%' marker, which jupytext does not tell."""
    lines = text.split("\n")
    markers = [line for line, content in enumerate(lines, 1) if MARKER.match(content)]
    try:
        raw_cells = jupytext.reads(text, fmt=FORMAT).cells
    except ValidationError as error:
        unlisted = [marker for marker in markers if UNLISTED_TAGS.search(lines[marker - 1])]
        message = 'tags are a list, such as tags=["plot"]' if unlisted else f"not a valid notebook: {error.message}"
        raise ChapterError(path, unlisted[0] if unlisted else 1, message) from None
    if len(raw_cells) == len(markers):
        return list(zip(markers, raw_cells, strict=True))

    pairs = zip(markers, raw_cells, strict=False)
    astray = [marker for marker, raw in pairs if raw.source.split("\n")[0] not in "".join(lines[marker : marker + 1])]
    line = [*astray, *markers[len(raw_cells) :], 1][0]
    counts = f"{len(markers)} '# %%' lines make {len(raw_cells)} cells"
    raise ChapterError(path, line, f"{counts}: is this line in a string, or is there text before the first cell?")


def _read_cell(path: Path, marker: int, raw: NotebookNode, section: Section) -> Cell:
    metadata = {key: value for key, value in raw.metadata.items() if key not in LAYOUT}
    if unknown := set(metadata) - METADATA:
        key = min(unknown)
        raise ChapterError(path, marker, f"not understood on a '# %%' line: {key} ({metadata[key]!r})")
    tags = tuple(metadata.pop("tags", ()))
    module, file = metadata.pop("module", None), metadata.pop("file", None)
    title = metadata.pop("title", "")
    if unknown := set(tags) - set(TAGS):
        raise ChapterError(path, marker, f"unknown tag {min(unknown)!r}; known are {', '.join(TAGS)}")
    if title and "hide-input" not in tags:
        raise ChapterError(path, marker, f'only the tag "hide-input" has a title: {title!r}')
    if ("export" in tags) != (module is not None):
        raise ChapterError(path, marker, 'the tag "export" and a module="by_hand.softmax" go together')
    if module is not None and (raw.cell_type != "code" or not MODULE.fullmatch(str(module))):
        raise ChapterError(path, marker, f"not a code cell with a module's dotted name: module={module!r}")
    if file is not None and (raw.cell_type != "code" or module or not FILE.fullmatch(str(file))):
        raise ChapterError(path, marker, f"not a code cell with the name of a file to begin with: file={file!r}")

    if raw.cell_type not in ("code", "markdown"):
        raise ChapterError(path, marker, f"a chapter's cells are code or [markdown], not [{raw.cell_type}]")

    source = BLANK_LINES.sub("", raw.source)  # IPython would drop them and count its lines from the first that is left
    line = marker + 1 + raw.source.count("\n") - source.count("\n")
    tree = ast.Module([], [])
    if raw.cell_type == "code" and not source:
        raise ChapterError(path, marker, "a code cell without code")
    if raw.cell_type == "code" and not source.startswith(JAVASCRIPT):
        try:
            tree = ast.parse(source)
            compile(tree, str(path), "exec", dont_inherit=True)
        except SyntaxError as error:
            raise ChapterError(path, line + (error.lineno or 1) - 1, f"{type(error).__name__}: {error.msg}") from None
    cell = Cell(raw.cell_type, source, tags, metadata, module, file, line, section, tree, title)
    if module is not None and not cell.is_javascript:
        _check_export(path, cell)
    return cell


def _check_export(path: Path, cell: Cell) -> None:
    """An exported cell holds imports and documented definitions, one a line, and nothing else."""
    last_line = 0
    for node in cell.tree.body:
        line = cell.line_of(node)
        if not isinstance(node, Definition | Import):
            raise ChapterError(
                path, line, "an exported cell holds only imports and definitions (def, async def, class)"
            )
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            raise ChapterError(path, line, "an exported cell names what it imports, without *")
        if node.lineno <= last_line:
            raise ChapterError(path, line, "an exported cell has one statement on a line")
        if isinstance(node, Definition) and not node.name.startswith("_") and not ast.get_docstring(node):
            raise ChapterError(path, line, f"{node.name} is exported and public: it needs a docstring")
        last_line = node.end_lineno or node.lineno
