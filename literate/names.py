"""The names of the book: which chapter exports what, who refers to it, and whether anyone looks ahead."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from literate.chapter import Cell, Chapter, Definition, read_chapter
from literate.project import PACKAGE, ChapterError, Project, ProjectError

WRITTEN_BY_HAND = ("data", "support")  # a chapter uses them as it uses other packages: Python says what is not there


@dataclass(frozen=True)
class Export:
    """A definition that a chapter gives to a module of the package, and the cell it stands in."""

    module: str
    chapter: Chapter
    cell: Cell
    node: Definition

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def public(self) -> bool:
        return not self.name.startswith("_")

    @property
    def line(self) -> int:
        return self.cell.line_of(self.node)


@dataclass(frozen=True)
class Reference:
    """A place in a chapter that names something of the package: `module`, and in it `name` if it goes that far.

    Where no module has that name, `module` is all that was written. `imports` tells an import from a use.
    """

    module: str
    name: str | None
    line: int
    imports: bool


@dataclass(frozen=True)
class Book:
    """The project with its chapters in order, checked against each other, and everything they export in that order."""

    project: Project
    chapters: tuple[Chapter, ...]
    exports: tuple[Export, ...]

    @property
    def modules(self) -> list[str]:
        """The modules in the order in which the chapters begin them."""
        return list(dict.fromkeys(export.module for export in self.exports))

    def references(self, chapter: Chapter) -> Iterator[Reference]:
        """Everything in a chapter that names the package or something in it."""
        return _references(chapter, set(self.modules))


def read_book(project: Project) -> Book:
    """Read every chapter; raises ChapterError where one is wrong in itself or does not go with the others."""
    paths = sorted(project.chapters.glob("*.py"))
    if not paths:
        raise ProjectError(f"no chapters in {project.chapters}")
    chapters = tuple(read_chapter(project.root, path.relative_to(project.root)) for path in paths)
    for before, chapter in pairwise(chapters):
        if before.number == chapter.number:
            raise ChapterError(chapter.path, 1, f"{before.path.as_posix()} has the number {chapter.number} already")
    exports = tuple(
        Export(cell.module, chapter, cell, node)
        for chapter in chapters
        for cell in chapter.code_cells
        if cell.module and not cell.is_javascript
        for node in cell.tree.body
        if isinstance(node, Definition)
    )
    book = Book(project, chapters, exports)
    exported = _check_unique(exports)
    for chapter in chapters:
        for cell in chapter.code_cells:
            if cell.module and not cell.is_javascript and cell.module not in book.modules:
                message = f"no chapter defines anything in {PACKAGE}.{cell.module}: imports alone make no module"
                raise ChapterError(chapter.path, cell.line, message)
        for reference in book.references(chapter):
            if reference.module.split(".")[0] not in WRITTEN_BY_HAND:
                _check_reference(chapter, reference, exported)
    return book


def _check_unique(exports: tuple[Export, ...]) -> dict[tuple[str, str], Export]:
    exported: dict[tuple[str, str], Export] = {}
    for export in exports:
        first = exported.setdefault((export.module, export.name), export)
        if first is not export:
            there = f"{first.chapter.path.as_posix()}:{first.line}"
            message = f"{PACKAGE}.{export.module} has a {export.name} already, from {there}"
            raise ChapterError(export.chapter.path, export.line, message)
    return exported


def _check_reference(chapter: Chapter, reference: Reference, exported: dict[tuple[str, str], Export]) -> None:
    """A chapter refers only to what earlier chapters export."""
    module, name = reference.module, reference.name
    if name is not None and name.startswith("__"):  # such as __doc__, which every module has
        return
    if name is not None:
        found = [exported[module, name]] if (module, name) in exported else []
    else:
        within = f"{module}." if module else ""
        found = [export for export in exported.values() if f"{export.module}.".startswith(within)]
    full_name = ".".join(part for part in (PACKAGE, module, name) if part)
    if not found:
        raise ChapterError(chapter.path, reference.line, f"no chapter exports {full_name}")
    first = found[0].chapter
    if first.number == chapter.number:
        message = f"this chapter exports {full_name} itself: use it as it is defined here, without an import"
        raise ChapterError(chapter.path, reference.line, message)
    if first.number > chapter.number:
        message = f"{full_name} is exported by a later chapter, {first.path.as_posix()}"
        raise ChapterError(chapter.path, reference.line, message)


def _references(chapter: Chapter, modules: set[str]) -> Iterator[Reference]:
    aliases: dict[str, str] = {}  # a name in the chapter -> what it stands for, from `dotformer.` on
    rebound: set[str] = set()
    nodes = [(cell, node) for cell in chapter.code_cells for node in ast.walk(cell.tree)]
    for cell, node in nodes:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    if alias.name.split(".")[0] == PACKAGE:
                        aliases[alias.asname or PACKAGE] = alias.name if alias.asname else PACKAGE
                        yield _resolve(alias.name, modules, cell.line_of(node), imports=True)
            case ast.ImportFrom(module=str(package), names=names, level=0) if package.split(".")[0] == PACKAGE:
                for alias in names:
                    full_name = package if alias.name == "*" else f"{package}.{alias.name}"
                    aliases[alias.asname or alias.name] = full_name
                    yield _resolve(full_name, modules, cell.line_of(node), imports=True)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                rebound.add(name)
    for name in rebound & aliases.keys():  # what is a module here and something else there is not followed
        if _resolve(aliases[name], modules, 0, imports=True).name is None:
            del aliases[name]
    for cell, node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and (full_name := _full_name(node, aliases)):
            yield _resolve(full_name, modules, cell.line_of(node), imports=False)


def _full_name(node: ast.expr, aliases: dict[str, str]) -> str | None:
    """`softmax_module.softmax` with its first name replaced by what it stands for; None for anything else."""
    match node:
        case ast.Name(id=name):
            return aliases.get(name)
        case ast.Attribute(value=value, attr=attribute):
            owner = _full_name(value, aliases)
            return f"{owner}.{attribute}" if owner else None
    return None


def _resolve(full_name: str, modules: set[str], line: int, *, imports: bool) -> Reference:
    parts = full_name.split(".")[1:]
    for end in range(len(parts), 0, -1):
        if (module := ".".join(parts[:end])) in modules:
            return Reference(module, parts[end] if end < len(parts) else None, line, imports)
    return Reference(".".join(parts), None, line, imports)
