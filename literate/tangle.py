"""Tangles the exported cells of the chapters into the modules of the package."""

import ast
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from literate.chapter import JAVASCRIPT, Cell, Chapter, Definition, Import
from literate.names import WRITTEN_BY_HAND, Book, Export
from literate.project import PACKAGE, ChapterError, ProjectError, read_text, remove_leftovers, short_diff, write_text

BY_HAND = {"__init__.py", "__main__.py"}
BY_HAND_FOLDERS = (*WRITTEN_BY_HAND, "command_line")
TANGLED = '"""Tangled from '
TITLE_WIDTH = 54  # what a line as wide as a page's column has room for, beside the words around it


@dataclass(frozen=True)
class Piece:
    """A top-level statement as it stands in the chapter, with the comments above it; `line` is where that begins."""

    chapter: Chapter
    cell: Cell
    node: Definition | Import
    line: int
    text: str

    @property
    def path(self) -> Path:
        return self.chapter.path

    @property
    def node_line(self) -> int:
        return self.cell.line_of(self.node)


@dataclass
class Module:
    """What the chapters give to one module of the package."""

    name: str
    imports: list[Piece] = field(default_factory=list)
    definitions: list[Piece] = field(default_factory=list)

    @property
    def chapters(self) -> list[Path]:
        return list(dict.fromkeys(piece.path for piece in self.definitions))


def tangle(book: Book, chosen: Sequence[Chapter], *, check: bool) -> list[str]:
    """Write the modules that the chosen chapters export to, or with `check` only compare.

    Returns what is wrong, one string for each file. Files that were tangled once and that no chapter exports any more
    are removed when all chapters are chosen. Raises ChapterError where exported cells do not make a module.
    """
    project = book.project
    chosen_modules = {export.module for export in book.exports if export.chapter in chosen}
    modules = {module.name: tangled(book, module) for module in _collect(book) if module.name in chosen_modules}
    texts = {project.package.joinpath(*name.split(".")).with_suffix(".py"): text for name, text in modules.items()}
    texts |= _scripts(book, chosen) | _files(book, chosen)
    surplus = []
    if len(chosen) == len(book.chapters):
        by_hand = {path for folder in BY_HAND_FOLDERS for path in (project.package / folder).rglob("*.py")}
        here = {path for path in project.package.rglob("*.py") if path.name not in BY_HAND}
        here |= set((project.root / "book").glob("*.py"))
        surplus = sorted(here - by_hand - texts.keys())
    if check:
        problems = [problem for path, text in texts.items() if (problem := _difference(book, path, text))]
        return problems + [f"{project.relative(path)}: surplus, no chapter exports it" for path in surplus]

    remove_leftovers(project.package)
    for path, text in texts.items():
        if write_text(path, text):
            print(f"tangled {project.relative(path)}")
    problems = []
    for path in surplus:
        if (read_text(path) or "").startswith(TANGLED):
            path.unlink()
            print(f"removed {project.relative(path)}: no chapter exports it any more")
        else:
            problems.append(f"{project.relative(path)}: surplus, no chapter exports it; not tangled, so move it away")
    return problems


def _scripts(book: Book, chosen: Sequence[Chapter]) -> dict[Path, str]:
    """The scripts of the pages to which the chosen chapters export cells of JavaScript."""
    scripts: dict[Path, list[str]] = {}
    for chapter in chosen:
        for cell in chapter.code_cells:
            if cell.module and cell.is_javascript:
                path = book.project.package / "page" / f"{cell.module}.js"
                header = f"// Tangled from {chapter.path.as_posix()}: edit the chapter, then `make tangle`."
                scripts.setdefault(path, [header]).append(cell.source.removeprefix(JAVASCRIPT).strip("\n"))
    return {path: "\n\n".join(parts) + "\n" for path, parts in scripts.items()}


def _files(book: Book, chosen: Sequence[Chapter]) -> dict[Path, str]:
    """The files that readers can take away: what the cells that name one define, then what they do when it is run."""
    taken: dict[Path, list[Piece]] = {}
    for chapter in chosen:
        for cell in chapter.code_cells:
            if cell.file:
                taken.setdefault(book.project.root / "book" / cell.file, []).extend(_cut(chapter, cell))
    texts = {}
    for path, pieces in taken.items():
        chapter = pieces[0].chapter
        title = f'"""The code of chapter {chapter.number}, "{chapter.title}", in one file (MIT licence)."""'
        imports = [piece.text for piece in pieces if isinstance(piece.node, Import)]
        defined = [piece.text for piece in pieces if isinstance(piece.node, Definition)]
        done = "\n".join(piece.text for piece in pieces if not isinstance(piece.node, Import | Definition))
        run = [f'if __name__ == "__main__":\n{textwrap.indent(done, "    ")}'] if done else []
        text = "\n\n\n".join([title, "\n".join(imports), *defined, *run])
        texts[path] = _ruff(book, ["format", f"--stdin-filename={path.name}"], text)
    return texts


def _difference(book: Book, path: Path, text: str) -> str | None:
    old = read_text(path)
    if old == text:
        return None
    name = book.project.relative(path)
    if old is None:
        return f"{name}: missing, run `make tangle`"
    return f"{name}: not what the chapters say; edit the chapter and run `make tangle`\n{short_diff(old, text)}"


def _collect(book: Book) -> list[Module]:
    """Every module of the book with its pieces in the order of the chapters."""
    modules = {name: Module(name) for name in book.modules}
    for chapter in book.chapters:
        for cell in chapter.code_cells:
            if cell.module in modules:
                for piece in _cut(chapter, cell):
                    module = modules[cell.module]
                    (module.imports if isinstance(piece.node, Import) else module.definitions).append(piece)
    return list(modules.values())


def _cut(chapter: Chapter, cell: Cell) -> Iterator[Piece]:
    """Cut a cell into its statements; what stands between two belongs to the second, what stands last to the last."""
    lines = cell.source.split("\n")
    start = 0
    for number, node in enumerate(cell.tree.body, 1):
        end = len(lines) if number == len(cell.tree.body) else node.end_lineno
        yield Piece(chapter, cell, node, cell.line + start, "\n".join(lines[start:end]))
        start = end


def tangled(book: Book, module: Module) -> str:
    """The text of a module: what it was tangled from, all imports, all definitions; sorted and formatted by ruff."""
    imports = [piece for piece in module.imports if not _imports_itself(module, piece)]
    _check_bindings(imports, module.definitions)
    header = "\n".join(piece.text for piece in imports)
    header = "\n".join([header, *_borrowed(book, module, header)])
    definitions = "\n\n\n".join(_with_origin(piece) for piece in module.definitions)
    text = f"{_docstring(module.chapters)}\n{header}\n\n\n{definitions}\n"
    file = f"{PACKAGE}/{module.name.replace('.', '/')}.py"
    known = f'lint.isort.known-first-party=["{PACKAGE}"]'
    fix = [
        "check",
        "--quiet",
        "--exit-zero",
        "--fix",
        "--select=I,F401",
        f"--config={known}",
        f"--stdin-filename={file}",
    ]
    return _ruff(book, ["format", f"--stdin-filename={file}"], _ruff(book, fix, text))


def _ruff(book: Book, arguments: list[str], text: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, encoding="utf-8", cwd=book.project.root)
    if done.returncode:
        raise ProjectError(f"{' '.join(command)} failed: {' '.join(done.stderr.split())}")
    return done.stdout


def _docstring(chapters: list[Path]) -> str:
    origin = " and ".join(path.as_posix() for path in chapters)
    return f'{TANGLED}{origin}.\n\nNever edited by hand: edit the chapter, then `make tangle`.\n"""\n'


def _imports_itself(module: Module, piece: Piece) -> bool:
    """Whether a chapter that continues a module imports from it what an earlier chapter put there."""
    if not (isinstance(piece.node, ast.ImportFrom) and piece.node.module == f"{PACKAGE}.{module.name}"):
        return False
    if any(alias.asname for alias in piece.node.names):
        message = f"this becomes part of {PACKAGE}.{module.name}: import its names as they are, without 'as'"
        raise ChapterError(piece.path, piece.node_line, message)
    return True


def _check_bindings(imports: list[Piece], definitions: list[Piece]) -> None:
    """In one module a name means one thing: the chapters that make it must import alike."""
    meanings: dict[str, tuple[str, Piece]] = {piece.node.name: (piece.node.name, piece) for piece in definitions}
    for piece in imports:
        for alias in piece.node.names:
            name = alias.asname or (alias.name.split(".")[0] if isinstance(piece.node, ast.Import) else alias.name)
            origin = piece.node.module if isinstance(piece.node, ast.ImportFrom) else "import"
            meaning = f"{origin} {alias.name if alias.asname or origin != 'import' else name}"
            known, first = meanings.setdefault(name, (meaning, piece))
            if known != meaning:
                there = f"{first.path.as_posix()}:{first.node_line}"
                message = f"in this module {name} is something else already, from {there}"
                raise ChapterError(piece.path, piece.node_line, message)


def _borrowed(book: Book, module: Module, header: str) -> list[str]:
    """Imports of what a module uses from another one that the same chapter fills: there it needs no import.

    Raises ChapterError for a name that is defined nowhere.
    """
    starts, line = [], header.count("\n") + 2
    for piece in module.definitions:
        starts.append(line)
        line += piece.text.count("\n") + 1
    text = "\n".join([header, *(piece.text for piece in module.definitions)])
    arguments = ["check", "--isolated", "--exit-zero", "--select=F821", "--output-format=json"]
    borrowed = []
    for finding in json.loads(_ruff(book, arguments, text)):
        row = finding["location"]["row"]
        number = max(n for n, start in enumerate(starts) if start <= row)
        piece = module.definitions[number]
        chapter_line = piece.line + row - starts[number]
        name = finding["message"].split("`")[1] if "`" in finding["message"] else ""
        lender = _lender(book, piece, name)
        if lender is None:
            message = f"{finding['message']}: an exported cell imports, in itself or before, all that it uses"
            raise ChapterError(piece.path, chapter_line, message)
        borrowed.append(f"from {PACKAGE}.{lender.module} import {name}")
    return borrowed


def _lender(book: Book, piece: Piece, name: str) -> Export | None:
    """The last export above the piece, in the same chapter, that has the name."""
    above = [export for export in book.exports if export.chapter is piece.chapter and export.line < piece.line]
    return next((export for export in reversed(above) if export.name == name), None)


def _with_origin(piece: Piece) -> str:
    """The text of a definition; if it is public, its docstring says at its end which section defines it."""
    node, chapter = piece.node, piece.chapter
    if node.name.startswith("_"):
        return piece.text
    docstring = node.body[0].value
    lines = piece.text.split("\n")
    last = piece.cell.line + docstring.end_lineno - 1 - piece.line
    end = len(lines[last].encode()[: docstring.end_col_offset].decode())
    head = "\n".join([*lines[:last], lines[last][:end]])
    if not head.endswith('"""'):
        line = piece.cell.line_of(docstring)
        raise ChapterError(piece.path, line, f'the docstring of {node.name} stands in triple double quotes (""")')
    indent = " " * docstring.col_offset
    title = textwrap.shorten(piece.cell.section.title, TITLE_WIDTH, placeholder=" …")
    origin = f'Defined in chapter {chapter.number}, "{title}".'
    tail = "\n".join([lines[last][end:], *lines[last + 1 :]])
    return f'{head[:-3].rstrip()}\n\n{indent}{origin}\n{indent}"""{tail}'
