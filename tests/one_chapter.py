"""What proves one chapter, as arguments for pytest: `python -m tests.one_chapter 05`.

Its notebook, what every chapter must hold, whether what is made from the chapters is fresh, and the tests that import
what it exports.
"""

import ast
import sys
from pathlib import Path

from literate.chapter import read_chapter

ROOT = Path(__file__).resolve().parents[1]


def imported(path: Path) -> set[str]:
    """The modules that a file imports from, by their full names, and the names it imports, as if they were modules."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    return names | {str(node.module) for node in nodes}


def arguments(number: str) -> list[str]:
    """The arguments for a chapter, named by the beginning of its file; exits in one line when there is none."""
    paths = sorted((ROOT / "chapters").glob(f"{number.zfill(2)}*.py"))
    if len(paths) != 1:
        there = " ".join(path.stem for path in sorted((ROOT / "chapters").glob("[0-9]*.py")))
        sys.exit(f"{len(paths)} chapters are called {number!r}; there are: {there}")
    stem = paths[0].stem
    cells = read_chapter(ROOT, Path("chapters", paths[0].name)).code_cells
    modules = {f"dotformer.{cell.module}" for cell in cells if cell.module}
    structure = [f"test_chapter[{stem}]", "test_what_is_made_from_the_chapters_is_fresh"]
    structure = [f"tests/book/test_chapters.py::{test}" for test in structure]
    tests = [path for path in sorted((ROOT / "tests/reference").glob("test_*.py")) if modules & imported(path)]
    return [*structure, *(str(path.relative_to(ROOT)) for path in tests), f"book/notebooks/{stem}.ipynb"]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("which chapter? Such as: make test CHAPTER=05")
    print(*arguments(sys.argv[1]), sep="\n")
