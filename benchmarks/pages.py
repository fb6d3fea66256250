"""The code of a chapter, for a program that runs it longer than a page should: with more seeds, or other settings."""

from pathlib import Path
from typing import Any

import matplotlib
import torch

from literate.chapter import read_chapter

ROOT = Path(__file__).resolve().parents[1]


def names_before(stem: str, measurement: str) -> dict[str, Any]:
    """What the cells of a chapter define up to the one that reads `measured("MEASUREMENT")`, each of them executed.

    Raises ValueError when no cell does.
    """
    matplotlib.use("agg")
    torch.set_num_threads(1)
    names: dict[str, Any] = {"__name__": stem}
    for cell in read_chapter(ROOT, Path("chapters", f"{stem}.py")).code_cells:
        if f'measured("{measurement}")' in cell.source:
            return names
        if not {"raises-exception", "check", "quiz"} & set(cell.tags):
            exec(compile(cell.tree, f"{stem}.py", "exec"), names)
    raise ValueError(f'no cell of {stem} reads measured("{measurement}")')
