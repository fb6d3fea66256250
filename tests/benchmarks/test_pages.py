"""Programs that run the cells of a chapter find them: those that define what they use, before those that read it."""

import ast

import pytest

from literate.chapter import read_chapter
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


@pytest.mark.parametrize(("program", "stem", "measurement", "names"), calls())
def test_a_program_finds_its_cells(program, stem, measurement, names, root):
    defined: set[str] = set()
    for cell in read_chapter(root, root / "chapters" / f"{stem}.py").code_cells:
        if f'measured("{measurement}")' in cell.source:
            break
        defined |= {node.name for node in cell.tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        targets = (node for node in ast.walk(cell.tree) if isinstance(node, ast.Name))
        defined |= {node.id for node in targets if isinstance(node.ctx, ast.Store)}
    else:
        pytest.fail(f'no cell of {stem} reads measured("{measurement}")')
    assert names
    assert names <= defined, program
