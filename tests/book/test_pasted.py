"""What a chapter says can be pasted into one file runs there, with PyTorch alone."""

import ast
from typing import Any

import pytest

from literate.chapter import read_chapter

LEFT_OUT = {"hide-input", "proof", "plot", "quiz", "check", "exercise", "solution", "remove-cell"}
FOLDED = {"REPLIES", "hold_out"}  # data and helpers, which the page says to be folded
SHOWN = (
    "All of it on one screen",
    "A model that has learned to answer",
    "What is given, and what is wanted",
    "Writing",
    "Training it",
    "The leak test",
    "Break it: leave out the causal mask",
    "A decoder-only model that answers",
    "Pre-norm on one screen",
)


def defines(tree: ast.Module) -> set[str]:
    """The names of the functions and the targets of the assignments at the top of a cell."""
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return names | {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.fixture(scope="module")
def pasted(root) -> dict[str, Any]:
    """The names that chapter 9's page defines where it is run as one file."""
    cells = read_chapter(root, root / "chapters/09_decoder.py").code_cells
    shown = [
        cell
        for cell in cells
        if cell.section.title in SHOWN and (not LEFT_OUT & set(cell.tags) or defines(cell.tree) & FOLDED)
    ]
    imports = [node for cell in shown for node in ast.walk(cell.tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert {module.partition(".")[0] for module in modules} == {"math", "torch"}
    names: dict[str, Any] = {}
    for cell in shown:
        exec(compile(cell.tree, cell.section.title, "exec"), names)
    return names


def test_the_model_on_one_screen_runs_as_it_stands_on_the_page(pasted):
    """It trains and answers, with either order of norms; so does the decoder-only model."""
    assert pasted["share_right"](pasted["screen"], pasted["unseen"]) > 0.95
    assert pasted["share_right"](pasted["deep"], pasted["unseen"]) > 0.95
    assert sum(pasted["right"]) > 0.95 * len(pasted["right"])


def test_the_check_on_the_page_can_fail(pasted):
    """It finds a model that sees the future, and rows with which it could not."""
    questions, answers, check = pasted["questions"], pasted["answers"][:, :-1], pasted["check"]
    for start in (32, 16, 2, 2, 64), (32, 64, 4, 1, 64):
        with pytest.raises(AssertionError, match="the future leaks"):
            check(pasted["NoCausalMask"](*start, dropout=0.0), questions[::41], answers[::41])
    with pytest.raises(AssertionError, match="rows must differ"):
        check(pasted["screen"], questions[::40], answers[::40])
    with pytest.raises(AssertionError, match=r"dropout=0\.0"):
        check(pasted["OneScreen"](32, 16, 2, 2, 64), questions[::41], answers[::41])
