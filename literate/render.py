"""Renders the book: from nothing if anything in it changed since the last good build, and not at all if nothing did.

`python -m literate.render --check` exits with 0 if nothing did, and looks at hashes alone: not even the chapters' tools
are imported. Sphinx by itself renders changed pages only. A page that stayed the same keeps a link to a heading that is
gone, and an old title in its sidebar. An interrupted build has no mark, so the next one begins from nothing too.
"""

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from literate.project import CLASSROOM, PACKAGE, Project, read_text, write_text

PARTS = ("_config.yml", "_toc.yml", "requirements.txt", "book", "chapters", "literate", CLASSROOM, PACKAGE)
MARK = "html/.made_from"
JUPYTER_BOOK = "import literate; from jupyter_book.cli.main import main; main()"  # the first makes the second faster
BUILD = (sys.executable, "-c", JUPYTER_BOOK, "build", "-W", "-n", "--keep-going")


def is_fresh(project: Project) -> bool:
    """Whether the book lies rendered in `_build` as its parts are now: chapters, package, pages and tools."""
    return read_text(project.root / "_build" / MARK) == made_from(project)


def render(project: Project, build: Sequence[str | Path] = BUILD) -> bool:
    """Render into `_build`, if need be, with the command `build`; returns whether all is well.

    What is wrong is said on stderr, and then no build is left.
    """
    if is_fresh(project):
        return True
    folder = project.root / "_build"
    shutil.rmtree(folder, ignore_errors=True)
    command = [*build, "-q", project.root]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(with_lines_of_chapters(project, done.stderr))
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        print("The book was not built.", file=sys.stderr)
        return False
    write_text(folder / MARK, made_from(project))
    return True


def made_from(project: Project) -> str:
    """A hash over all files that the pages are made from; hidden ones, and what Python compiles, do not count."""
    total = hashlib.sha256()
    readers = sorted(project.root.glob("runs/*/page"))  # models that the reader has written for a page
    for part in (*(project.root / part for part in PARTS), *readers):
        for path in sorted([part, *part.rglob("*")]):
            name = project.relative(path)
            if path.is_file() and not re.search(r"(^|/)(\.|__pycache__/)", name):
                total.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def with_lines_of_chapters(project: Project, report: str) -> str:
    """Sphinx's report with places of the chapters: line 3 of a notebook's second cell is line 20004 to it."""
    from literate.chapter import read_chapter
    from literate.notebook import cells_of

    def place(found: re.Match[str]) -> str:
        path = project.chapters.relative_to(project.root) / f"{found[1]}.py"
        cell, line = divmod(int(found[2]), 10_000)
        _, first_line = cells_of(project, read_chapter(project.root, path))[cell - 1]
        return f"{path.as_posix()}:{first_line + line - 2}"

    return re.sub(rf"{re.escape(str(project.notebooks))}/(\w+)\.ipynb:(\d{{5,}})", place, report)


if __name__ == "__main__":
    try:
        done = is_fresh if sys.argv[1:] == ["--check"] else render
        sys.exit(0 if done(Project(Path.cwd().resolve())) else 1)
    except KeyboardInterrupt:
        print("interrupted: the next build begins from nothing", file=sys.stderr)
        sys.exit(130)
