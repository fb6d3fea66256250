"""The files that readers can take away run with PyTorch alone, and so do the variants on chapter 9's page."""

import ast
from typing import Any

import pytest

from literate.chapter import read_chapter

LEFT_OUT = {"hide-input", "proof", "plot", "quiz", "check", "exercise", "solution", "remove-cell"}
VARIANTS = ("Break it: leave out the causal mask", "A decoder-only model that answers", "Pre-norm on one screen")


def run(*trees: ast.Module) -> dict[str, Any]:
    """The names that some code defines; it imports PyTorch alone."""
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert {module.partition(".")[0] for module in modules} <= {"math", "torch"}
    names: dict[str, Any] = {"__name__": "__main__"}
    for tree in trees:
        exec(compile(tree, "a file", "exec"), names)
    return names


@pytest.fixture(scope="module")
def pasted(root) -> dict[str, Any]:
    """The names that the file defines, and then the page's variants of its model."""
    cells = read_chapter(root, root / "chapters/09_decoder.py").code_cells
    shown = [cell.tree for cell in cells if cell.section.title in VARIANTS and not LEFT_OUT & set(cell.tags)]
    return run(ast.parse((root / "book/transformer.py").read_text(encoding="utf-8")), *shown)


def test_the_model_in_one_file_trains_and_answers(pasted):
    """With either order of norms; so does the decoder-only model."""
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


def test_the_gpt_in_one_file_stops_at_the_end_and_at_its_last_position(root):
    names = run(ast.parse((root / "book/cached_gpt.py").read_text(encoding="utf-8")))
    gpt, prompt, write = names["gpt"], names["prompts"][:1], names["write"]
    whole = write(gpt, prompt, 20, temperature=0)
    end = int(whole[0, 14])
    first = prompt.shape[1] + whole[0, prompt.shape[1] :].tolist().index(end)
    assert write(gpt, prompt, 20, temperature=0, end=end).tolist() == whole[:, : first + 1].tolist()
    with pytest.raises(IndexError):
        write(gpt, prompt, 60, temperature=0)
