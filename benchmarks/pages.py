"""The code of a chapter, for a program that runs it longer than a page should: with more seeds, or other settings."""

from pathlib import Path
from typing import Any

import matplotlib
import torch

from literate.chapter import Cell, read_chapter

ROOT = Path(__file__).resolve().parents[1]


SKIPPED = {"raises-exception", "check", "quiz", "solution"}  # tags of cells that define nothing for a program


def cells_before(stem: str, measurement: str) -> list[Cell]:
    """The cells of a chapter up to the last that reads `measured("MEASUREMENT")`, without exercises and quizzes.

    Earlier cells that read it are left out. Raises ValueError when no cell does.
    """
    cells = read_chapter(ROOT, Path("chapters", f"{stem}.py")).code_cells
    reading = [n for n, cell in enumerate(cells) if f'measured("{measurement}")' in cell.source]
    if not reading:
        raise ValueError(f'no cell of {stem} reads measured("{measurement}")')
    earlier = [cell for n, cell in enumerate(cells[: reading[-1]]) if n not in reading]
    return [cell for cell in earlier if not SKIPPED & set(cell.tags)]


def names_before(stem: str, measurement: str) -> dict[str, Any]:
    """What `cells_before` define when they are executed in order. Raises ValueError as it does."""
    matplotlib.use("agg")
    torch.set_num_threads(1)
    names: dict[str, Any] = {"__name__": stem}
    for cell in cells_before(stem, measurement):
        exec(compile(cell.tree, f"{stem}.py", "exec"), names)
    return names
