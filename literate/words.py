"""The words of the field: refuses those that only this book would use. `python -m literate.words` lists them.

`words.toml` has for each word a pattern, what to say instead, and phrases in which it is meant literally. What is read
is the text, the comments and the strings of every chapter, and every page written by hand.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from literate.chapter import Cell
from literate.names import read_book
from literate.project import ChapterError, Project, ProjectError

LIST = Path(__file__).with_name("words.toml")
NO_PROSE = re.compile(r"(?P<role>\{\w+\})?`[^`\n]+`|(?<=\])\([^)\s]*\)")  # code and the targets of links


@dataclass(frozen=True)
class Word:
    """A word that is not the field's: where it matches outside all that is allowed, `say` is what to write."""

    pattern: re.Pattern[str]
    say: str
    allowed: tuple[re.Pattern[str], ...]

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """Where the word stands in `text` in its private sense."""
        everywhere = list(self.pattern.finditer(text))
        literal = [match.span() for phrase in self.allowed for match in phrase.finditer(text)] if everywhere else []
        for match in everywhere:
            if not any(start <= match.start() and match.end() <= end for start, end in literal):
                yield match


def read_words(path: Path = LIST) -> list[Word]:
    """The list of words; a space in a pattern is any white space, and a pattern begins and ends between words."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["word"]
    return [Word(_compile(e["pattern"]), e["say"], tuple(map(_compile, e.get("allowed", ())))) for e in entries]


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{pattern})\b".replace(" ", r"\s+"), re.IGNORECASE)


def passages(cell: Cell) -> Iterator[tuple[int, str]]:
    """What a cell says to its reader, each passage with its line in the chapter's file."""
    yield cell.line - 1, cell.title
    yield cell.line - 1, cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
    if cell.kind == "markdown":
        yield cell.line, cell.source
        return
    for node in ast.walk(cell.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield cell.line_of(node), node.value
    if cell.is_javascript:
        return
    for token in tokenize.generate_tokens(io.StringIO(cell.source).readline):
        if token.type == tokenize.COMMENT:
            yield cell.line + token.start[0] - 1, token.string


def findings(project: Project, words: list[Word]) -> list[str]:
    """Each private word of chapters and pages, as `chapters/05_position.py:123: "places": say position`."""
    texts = [
        (chapter.path.as_posix(), line, text)
        for chapter in read_book(project).chapters
        for cell in chapter.cells
        for line, text in passages(cell)
    ]
    for page in sorted((project.root / "book").glob("*.md")):
        if page not in (project.names_page, project.contents_page):
            texts.append((project.relative(page), 1, page.read_text(encoding="utf-8")))
    found = set()
    for path, line, text in texts:
        prose = NO_PROSE.sub(lambda code: code[0] if code["role"] else "", text)
        for word in words:
            for match in word.matches(prose):
                at = line + prose.count("\n", 0, match.start())
                found.add((path, at, f'"{" ".join(match[0].split())}": say {word.say}'))
    return [f"{path}:{line}: {message}" for path, line, message in sorted(found)]


def main() -> int:
    """Print what `findings` finds in the project of the working folder; returns 1 if there is anything."""
    try:
        problems = findings(Project(Path.cwd()), read_words())
    except (ChapterError, ProjectError) as error:
        problems = [str(error)]
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
