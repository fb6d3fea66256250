"""The command line: `python -m literate {tangle,weave,index} [--check] [CHAPTER ...]`, or `--check` alone for all."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from literate.chapter import Chapter
from literate.index import index
from literate.names import Book, read_book
from literate.project import ChapterError, Project, ProjectError
from literate.tangle import tangle
from literate.weave import weave

COMMANDS = ("tangle", "weave", "index")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 if all is well and 1 if not, having said why. Wrong usage exits with 2.

    Raises KeyboardInterrupt when interrupted, with every kernel stopped and every notebook whole.
    """
    parser = _parser()
    options = parser.parse_intermixed_args(arguments)
    if not options.command and not options.check:
        parser.error(f"which of {', '.join(COMMANDS)}? (--check alone checks all three)")
    if options.command == "index" and options.chapters:
        parser.error("index takes no chapters: its page covers all of them")
    try:
        book = read_book(Project(options.root.resolve()))
        chosen = [_find(book, name, parser) for name in options.chapters] or list(book.chapters)
        problems = _run(book, chosen, options)
    except (ChapterError, ProjectError) as error:
        problems = [str(error)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m literate", description="Press the chapters into package and book.")
    parser.add_argument("command", nargs="?", choices=COMMANDS, help="what to do; without it --check checks all three")
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="such as 03_softmax; all if none is named")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and say what is not up to date")
    parser.add_argument("-j", "--jobs", type=_positive, metavar="N", help="weave at most N chapters at a time")
    parser.add_argument("--root", type=Path, default=Path.cwd(), metavar="FOLDER", help="the project (default: here)")
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a positive number: {text}")
    return int(text)


def _find(book: Book, name: str, parser: argparse.ArgumentParser) -> Chapter:
    """The chapter that a name or a path means; ends the program with exit code 2 if there is none."""
    for chapter in book.chapters:
        if chapter.stem == Path(name).stem:
            return chapter
    parser.error(f"no chapter {name}; there are {', '.join(chapter.stem for chapter in book.chapters)}")


def _run(book: Book, chosen: Sequence[Chapter], options: argparse.Namespace) -> list[str]:
    problems = []
    if options.command in (None, "tangle"):
        problems += tangle(book, chosen, check=options.check)
    if options.command in (None, "weave"):
        problems += weave(book, chosen, check=options.check, jobs=options.jobs)
    if options.command in (None, "index"):
        problems += index(book, check=options.check)
    return problems
