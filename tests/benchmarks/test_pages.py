"""Programs that run the cells of a chapter find them: those that define what they use, before those that read it."""

import ast

import pytest

from benchmarks.pages import SKIPPED, cells_before
from literate.chapter import Cell, read_chapter
from tests.conftest import ROOT


def calls() -> list[tuple[str, str, str, set[str]]]:
    """The programs that call `names_before`: their names, both arguments, and what they take from the result."""
    found = []
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {node.slice.value for node in ast.walk(tree) if is_taken(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "names_before":
                stem, measurement = map(ast.literal_eval, node.args)
                found.append((path.stem, stem, measurement, names))
    return found


def is_taken(node: ast.AST) -> bool:
    """Whether a node is `page["name"]` or `names_before(...)["name"]`."""
    return isinstance(node, ast.Subscript) and ast.unparse(node.value).startswith(("page", "names_before("))


def names_in(cell: Cell, context: type[ast.expr_context]) -> set[str]:
    """The names that a cell reads, or those that it writes: what it defines or imports, and parameters, are written."""
    nodes = list(ast.walk(cell.tree))
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, context)}
    if context is ast.Store:
        names |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        names |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
        names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return names


@pytest.mark.parametrize(("program", "stem", "measurement", "names"), calls())
def test_a_program_finds_its_cells(program, stem, measurement, names, root):
    """They define what it takes, and need nothing from the exercises and quizzes, which it skips."""
    cells = cells_before(stem, measurement)
    defined = set().union(*(names_in(cell, ast.Store) for cell in cells))
    assert names
    assert names <= defined, program
    skipped = set().union(
        *(
            names_in(cell, ast.Store)
            for cell in read_chapter(root, root / "chapters" / f"{stem}.py").code_cells
            if SKIPPED & set(cell.tags)
        )
    )
    read = set().union(*(names_in(cell, ast.Load) for cell in cells))
    assert not read & (skipped - defined), program


def test_a_measurement_that_nobody_reads():
    with pytest.raises(ValueError, match="no cell of 09_decoder reads"):
        cells_before("09_decoder", "weather")
