"""Figures in the book's style: the palette, vector output that is the same on every run, maps of weights and scores.

Queries are rows and keys are columns, always, and the axes say so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from IPython import get_ipython
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib_inline.backend_inline import set_matplotlib_formats
from numpy.typing import ArrayLike

BLUE = "#2f6690"
RED = "#b5443c"
GOLD = "#a87400"
TEAL = "#14795f"
GREY = "#6b7280"
INK = "#1f2933"
BLANK = "#eceef0"

WEIGHTS = LinearSegmentedColormap.from_list("weights", ["#f3f7fa", "#a9c6dc", BLUE, "#173a56"])
SCORES = LinearSegmentedColormap.from_list("scores", ["#7f211b", RED, "#e9b7b1", "#f8f8f7", "#a9c6dc", BLUE, "#173a56"])

MOST_NUMBERED_CELLS = 36
MIDDLE_LUMINANCE = 0.18  # black and white stand out from it equally well


def book_style() -> None:
    """Set the look of every figure that follows; in a notebook, also make figures SVG without a date or random ids."""
    plt.rcParams.update(
        {
            "figure.figsize": (5.6, 3.4),
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "svg.hashsalt": "dotformer",
            "font.size": 12,
            "axes.titlesize": 13,
            "axes.titlelocation": "left",
            "axes.edgecolor": GREY,
            "axes.labelcolor": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.prop_cycle": plt.cycler(color=[BLUE, RED, GOLD, TEAL, GREY]),
            "lines.linewidth": 2,
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "xtick.labelsize": 12,
            "ytick.labelsize": 12,
        }
    )
    if get_ipython() is not None:
        set_matplotlib_formats("svg", metadata={"Date": None})


def measured_on(found: Mapping[str, Any]) -> None:
    """Say below the current figure on which device and on which day a measurement was made."""
    plt.figtext(1, -0.01, f"{found['accelerator']}, {found['date']}", ha="right", va="top", size=8, color=GREY)


def attention_map(
    weights: ArrayLike,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw attention weights, one row a query and one column a key, and return the axes.

    Shapes: weights (T, S) for T queries and S keys. ValueError when they do not fit or a weight is outside 0 to 1.
    """
    weights = _fitting("weights", weights, queries, keys)
    if not ((weights >= -1e-9) & (weights <= 1 + 1e-9)).all():  # NaN fails both
        raise ValueError(f"weights must lie in 0 to 1, got {weights.min():g} to {weights.max():g}: are these scores?")
    return _cell_map(weights, queries, keys, WEIGHTS, Normalize(0, 1), "{:.2f}", title, ax)


def score_map(
    scores: ArrayLike,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw signed scores, one row a query and one column a key, in colours centred at 0, and return the axes.

    Shapes: scores (T, S) for T queries and S keys. A score of minus infinity, which a mask leaves, is a blank cell that
    says so. ValueError when the shapes do not fit or a score is NaN or plus infinity.
    """
    scores = _fitting("scores", scores, queries, keys)
    if not (np.isfinite(scores) | np.isneginf(scores)).all():
        raise ValueError("scores must be numbers or minus infinity, got NaN or plus infinity")
    reach = max(np.abs(scores[np.isfinite(scores)]).max(initial=0.0), 1e-12)
    return _cell_map(scores, queries, keys, SCORES, Normalize(-reach, reach), _score_format(reach), title, ax)


def _fitting(name: str, values: ArrayLike, queries: Sequence[str], keys: Sequence[str]) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    if values.ndim != 2 or values.shape != (len(queries), len(keys)):
        wanted = f"({len(queries)}, {len(keys)})"
        raise ValueError(f"{name} must have shape (queries, keys) = {wanted}, got {values.shape}")
    if not values.size:
        raise ValueError(f"{name} must have at least one row and one column, got shape {values.shape}")
    return values


def _score_format(reach: float) -> str:
    return "{:.2f}" if reach < 10 else "{:.1f}" if reach < 100 else "{:.0f}"


def _cell_map(
    values: np.ndarray,
    queries: Sequence[str],
    keys: Sequence[str],
    colours: Colormap,
    scale: Normalize,
    number_format: str,
    title: str | None,
    ax: Axes | None,
) -> Axes:
    rows, columns = values.shape
    numbered = values.size <= MOST_NUMBERED_CELLS
    if ax is None:
        cell = 0.62 if numbered else max(0.2, min(0.44, 3.8 / max(rows, columns)))
        _, ax = plt.subplots(figsize=(cell * columns + 1.3, cell * rows + 1))
    mesh = ax.pcolormesh(
        np.ma.masked_invalid(values), cmap=colours, norm=scale, edgecolor="white", linewidth=1.5 if numbered else 0.6
    )
    ax.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal")
    ax.set_xlabel("key (column)", labelpad=9)
    ax.set_ylabel("query (row)", labelpad=9)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    slanted = max(len(key) for key in keys) > (6 if numbered else 2)
    slant = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"} if slanted else {}
    ax.set_xticks(np.arange(columns) + 0.5, keys, parse_math=False, **slant)
    ax.set_yticks(np.arange(rows) + 0.5, queries, parse_math=False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_facecolor(BLANK)  # seen where a mask left no score
    if title:
        ax.set_title(title, pad=10)
    if numbered:
        _number_cells(ax, values, colours(scale(values)), number_format)
    else:
        bar = ax.figure.colorbar(mesh, ax=ax, shrink=0.6, aspect=24, pad=0.03, ticks=[scale.vmin, scale.vmax])
        bar.ax.set_yticklabels([_written(bound, "{:.3g}") for bound in (scale.vmin, scale.vmax)])
        bar.ax.tick_params(length=0)
        bar.outline.set_visible(False)
    return ax


def _number_cells(ax: Axes, values: np.ndarray, shades: np.ndarray, number_format: str) -> None:
    for (row, column), value in np.ndenumerate(values):
        dark = np.isfinite(value) and _luminance(shades[row, column]) < MIDDLE_LUMINANCE
        text = _written(value, number_format)
        ax.text(
            column + 0.5, row + 0.5, text, ha="center", va="center", color="white" if dark else "black", fontsize=11
        )


def _written(value: float, number_format: str) -> str:
    return number_format.format(value).replace("-", "−").replace("inf", "∞")


def _luminance(colour: np.ndarray) -> float:
    """Return a colour's relative luminance, as the web's contrast guidelines define it."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
