"""Drawings of structures, in the colours and with the arrows of the map: boxes, arrows, sums, vectors as rows of cells.

Lengths are inches; x grows to the right and y upwards.
"""

from collections.abc import Sequence
from itertools import pairwise

import matplotlib.pyplot as plt
from matplotlib.patches import Circle, FancyBboxPatch, Rectangle

from classroom.plots import BLANK, BLUE, GREY, INK

PALE = {BLUE: "#d3e3ef"}  # the map's fill; of any other colour a tint
SUM = 0.1  # radius of the sign for a sum


class Diagram:
    """A drawing of the given size."""

    def __init__(self, width: float, height: float) -> None:
        figure = plt.figure(figsize=(width, height))
        self.axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height), aspect="equal")
        self.axes.axis("off")

    def box(
        self,
        x: float,
        y: float,
        label: str,
        width: float = 1.5,
        height: float = 0.36,
        color: str = BLUE,
        size: int = 11,
    ) -> None:
        """A labelled box around (x, y)."""
        corner = (x - width / 2, y - height / 2)
        shape = "round,pad=0,rounding_size=0.06"
        fill = PALE.get(color, f"{color}22")
        self.axes.add_patch(
            FancyBboxPatch(corner, width, height, boxstyle=shape, facecolor=fill, edgecolor=color, linewidth=1.4)
        )
        self.text(x, y, label, size=size)

    def frame(self, x: float, y: float, width: float, height: float, label: str = "", color: str = GREY) -> None:
        """An empty frame around (x, y), its label inside at the top left."""
        corner = (x - width / 2, y - height / 2)
        shape = "round,pad=0,rounding_size=0.1"
        self.axes.add_patch(
            FancyBboxPatch(corner, width, height, boxstyle=shape, facecolor="none", edgecolor=color, linewidth=1.2)
        )
        self.text(corner[0] + 0.1, corner[1] + height - 0.15, label, color=color, at="left")

    def sum(self, x: float, y: float, color: str = INK) -> None:
        """A plus sign in a circle."""
        self.axes.add_patch(Circle((x, y), SUM, facecolor="white", edgecolor=color, linewidth=1.3, zorder=3))
        self.text(x, y, "+", color=color, size=12)

    def cells(
        self, x: float, y: float, values: Sequence[object], colors: Sequence[str] | str = BLANK, width: float = 0.36
    ) -> None:
        """A vector as a row of cells that begins at (x, y), its left middle; a value is written in each cell."""
        height = 0.36
        colors = [colors] * len(values) if isinstance(colors, str) else colors
        for n, (value, color) in enumerate(zip(values, colors, strict=True)):
            corner = (x + n * width, y - height / 2)
            self.axes.add_patch(Rectangle(corner, width, height, facecolor=color, edgecolor="white", linewidth=1.5))
            self.text(x + (n + 0.5) * width, y, str(value), size=10)

    def arrow(self, *points: tuple[float, float], color: str = GREY, dashed: bool = False, width: float = 1.4) -> None:
        """A line through the points that ends in an arrowhead."""
        style = "--" if dashed else "-"
        for start, end in pairwise(points[:-1]):
            self.axes.plot(*zip(start, end, strict=True), color=color, linewidth=width, linestyle=style)
        look = {"arrowstyle": "-|>,head_width=0.22,head_length=0.4", "color": color, "linewidth": width}
        self.axes.annotate(
            "", points[-1], points[-2], arrowprops=look | {"linestyle": style, "shrinkA": 0, "shrinkB": 0}
        )

    def arc(self, start: float, end: float, y: float, color: str = GREY, width: float = 1.4) -> None:
        """A bow above y from x = start to x = end, which ends in an arrowhead."""
        bow = f"arc3,rad={0.45 if end < start else -0.45}"
        look = {"arrowstyle": "-|>,head_width=0.22,head_length=0.4", "color": color, "linewidth": width}
        self.axes.annotate(
            "", (end, y), (start, y), arrowprops=look | {"connectionstyle": bow, "shrinkA": 0, "shrinkB": 0}
        )

    def text(self, x: float, y: float, label: str, color: str = INK, at: str = "center", size: int = 11) -> None:
        """A label at (x, y): `at` says which end of it is there, or its center."""
        self.axes.text(x, y, label, color=color, size=size, horizontalalignment=at, verticalalignment="center")
