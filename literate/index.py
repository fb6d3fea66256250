"""The index of names: where each public name of the package is defined, and which chapters use it."""

import ast
import re
from collections import defaultdict

from literate.chapter import Chapter
from literate.names import Book, Export
from literate.project import PACKAGE, read_text, short_diff, write_text

MARKUP = re.compile(r"[\\`*_\[\]|<>$]")
HEAD = f"""# Where every name comes from

Each public name that a chapter gives to the package `{PACKAGE}`: the section that defines it, and which other chapters
use it; the name itself leads to its documentation. What is written by hand, `{PACKAGE}.data` and `{PACKAGE}.support`,
stands in [the API](api.md#data-and-support).

*Generated from the chapters by `python -m literate index`. Edits made here are lost.*
"""


def index(book: Book, *, check: bool) -> list[str]:
    """Write the page, or with `check` only compare; returns what is wrong. The page always covers all chapters."""
    page, text = book.project.names_page, names_page(book)
    name = book.project.relative(page)
    if not check:
        if write_text(page, text):
            print(f"wrote {name}")
        return []
    old = read_text(page)
    if old == text:
        return []
    if old is None:
        return [f"{name}: missing, run `make index`"]
    return [f"{name}: not what the chapters say, run `make index`\n{short_diff(old, text)}"]


def names_page(book: Book) -> str:
    """The page in Markdown: one table for each module, in the order in which the chapters begin them."""
    users = defaultdict(list)
    for chapter in book.chapters:
        used = {(use.module, use.name) for use in book.references(chapter) if not use.imports}
        for module_and_name in used:
            users[module_and_name].append(chapter)
    lines = [HEAD]
    for module in book.modules:
        exports = [export for export in book.exports if export.module == module and export.public]
        if exports:
            lines += [f"## `{PACKAGE}.{module}`\n", "| name | defined in | used in |", "|---|---|---|"]
            lines += [_row(export, users[module, export.name]) for export in exports]
            lines.append("")
    return "\n".join(lines)


def _row(export: Export, users: list[Chapter]) -> str:
    role = "class" if isinstance(export.node, ast.ClassDef) else "func"
    name = f"{{py:{role}}}`{export.name} <{PACKAGE}.{export.module}.{export.name}>`"
    section, chapter = export.cell.section, export.chapter
    defined = _link(f"{chapter.number}. {section.title}", chapter, f"#{section.slug}")
    used = "<br>".join(_link(f"{user.number}. {user.title}", user) for user in users)
    return f"| {name} | {defined} | {used or 'no other chapter yet'} |"


def _link(text: str, chapter: Chapter, anchor: str = "") -> str:
    escaped = MARKUP.sub(r"\\\g<0>", text)
    return f"[{escaped}](notebooks/{chapter.stem}.ipynb{anchor})"
