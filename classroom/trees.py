"""Drawings of sentences as trees."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from matplotlib.axes import Axes

from classroom.plots import BLUE, GREY, INK


class Tree(Protocol):
    """A label, and what it is made of: trees, or one word."""

    label: str
    children: Sequence["Tree | str"]


def draw_tree(tree: Tree, ax: Axes, colors: Mapping[str, str] | None = None, size: float | None = None) -> None:
    """Draw a tree, words below, with the label of each constituent above those it is made of.

    A tree has a `label` and `children`, which are trees, or the one word of a leaf; of a leaf only its word is drawn.
    `colors` are by label; `size` is that of the letters, in points. Raises ValueError for a constituent without words.
    """
    end = 0.0  # of the words so far, in letters

    def visit(node: Tree) -> tuple[float, int]:
        nonlocal end
        if not node.children:
            raise ValueError(f"{node.label} has no words")
        if isinstance(node.children[0], str):
            x, height, text, color = end + len(node.children[0]) / 2, 0, node.children[0], INK
            end += max(len(text), 2) + 2
        else:
            below = [visit(child) for child in node.children]
            x = (below[0][0] + below[-1][0]) / 2
            height = 1 + max(y for _, y in below)
            text, color = node.label, (colors or {}).get(node.label, BLUE)
            for child_x, child_y in below:
                ax.plot([x, child_x], [height - 0.22, child_y + 0.22], color=GREY, lw=1, zorder=0)
        ax.text(x, height, text, ha="center", va="center", color=color, size=size, parse_math=False)
        return x, height

    _, top = visit(tree)
    ax.set(xlim=(-1, end - 1), ylim=(-0.4, top + 0.4))
    ax.set_axis_off()
