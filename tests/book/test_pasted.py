"""What a chapter says can be pasted into one file runs there: the cells that a reader sees, with PyTorch alone."""

import ast

from literate.chapter import read_chapter

HIDDEN = {"hide-input", "proof", "plot", "quiz", "check", "exercise", "solution", "remove-cell"}
SHOWN = (
    "All of it on one screen",
    "A model that has learnt to answer",
    "Does training run token by token?",
    "A decoder-only model that answers",
)


def test_the_model_on_one_screen_runs_as_it_stands_on_the_page(root):
    """It trains, answers and passes its tests; so does the decoder-only model."""
    cells = read_chapter(root, root / "chapters/09_decoder.py").code_cells
    shown = [cell for cell in cells if cell.section.title in SHOWN and not HIDDEN & set(cell.tags)]
    imports = [node for cell in shown for node in ast.walk(cell.tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert {module.partition(".")[0] for module in modules} == {"math", "torch"}
    names: dict[str, object] = {}
    for cell in shown:
        exec(compile(cell.tree, cell.section.title, "exec"), names)
    assert names["share_right"](names["screen"], names["unseen"]) > 0.95
    assert sum(names["right"]) > 0.95 * len(names["right"])
