"""The drawings behind the movable figures: their SVG and controls, and the geometry that moves them.

book/_static/movable.js finds what moves by its class, "movable-...", and changes it by the same formulas as here.
"""

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from classroom.plots import BLUE, RED

# the page's own colours where it has them; elsewhere ours, drawn towards the colour of the text around
FIRST = f"var(--book-accent, color-mix(in srgb, {BLUE} 70%, currentColor))"
SECOND = f"var(--book-second, color-mix(in srgb, {RED} 65%, currentColor))"
SOFT = 'opacity=".74"'
SMALL = f'{SOFT} font-size="12"'  # what names an axis or a column
MIDDLE, END = 'text-anchor="middle"', 'text-anchor="end"'

WIDTH = 360  # of a picture: one fits a phone, two stand side by side on a wide page


def bars(labels: Sequence[str], scores: np.ndarray, weights: np.ndarray, now: str, said: str) -> tuple[str, dict]:
    """Draw a bar for each weight; the geometry is how long the bar of a weight of 1 would be."""
    left = max(24, 8 * max(map(len, labels))) + 58
    full = WIDTH - left - 56
    equal, foot = left + full / len(labels), 30 + 34 * len(labels)
    drawn = [
        text(left - 14, 15, "score", f"{END} {SMALL}"),
        heading(f"temperature {now}", left),
        text(WIDTH, 15, "weight", f"{END} {SMALL}"),
    ]
    for index, (label, score, weight) in enumerate(zip(labels, scores, weights, strict=True)):
        y = 30 + 34 * index
        box = f'x="{left}" y="{y + 4}" height="22"'
        drawn += [
            text(0, y + 20, label),
            text(left - 14, y + 20, number(score, "3g"), f"{END} {SOFT}"),
            f'<rect {box} width="{full}" opacity=".08"/>',
            f'<rect class="movable-bar" {box} width="{full * weight:.2f}" fill="{FIRST}"/>',
            text(WIDTH, y + 20, number(weight, "3f"), f'class="movable-number" {END}'),
        ]
    drawn.append(vertical(equal, 30, foot + 5, 'stroke-dasharray="3 3"'))
    drawn.append(text(equal + 5, foot + 13, "equal shares", SMALL))
    return picture(foot + 20, said, drawn), {"full": full}


def height_of_waves(table: np.ndarray) -> float:
    """Return the height of the picture of a table: a strip for each two columns, and what names them."""
    return 68 + _strip(table) * table.shape[1] / 2


def waves(table: np.ndarray, at: int, said: str) -> tuple[str, dict]:
    """Draw the columns of a table in strips, two in each, and write the row that is marked beside them."""
    length, width = table.shape
    strip, height = _strip(table), height_of_waves(table)
    left, step, reach = 50, (WIDTH - 178) / (length - 1), 0.4 * strip / max(np.abs(table).max(), 1e-12)
    middles = [44 + strip * (pair + 0.5) for pair in range(width // 2)]
    columns = (WIDTH - 60, WIDTH)
    drawn = [
        heading(f"position {at}"),
        text(0, 35, "columns", SMALL),
        text(columns[0], 35, "first", f'{END} fill="{FIRST}" font-size="12"'),
        text(columns[1], 35, "second", f'{END} fill="{SECOND}" font-size="12"'),
        vertical(left + at * step, 42, height - 22, 'class="movable-mark"'),
        text(left, height - 6, "0", f"{MIDDLE} {SMALL}"),
        text(left + step * (length - 1) / 2, height - 6, "position", f"{MIDDLE} {SMALL}"),
        text(left + step * (length - 1), height - 6, str(length - 1), f"{MIDDLE} {SMALL}"),
        *(text(0, middle + 5, f"{2 * i}, {2 * i + 1}", f'{SOFT} font-size="13"') for i, middle in enumerate(middles)),
    ]
    for column, values in enumerate(table.T):
        middle, colour = middles[column // 2], SECOND if column % 2 else FIRST
        drawn += [
            line(((left + t * step, middle - value * reach) for t, value in enumerate(values)), colour),
            mark(left + at * step, middle - values[at] * reach, colour),
            text(
                columns[column % 2],
                middle + 5,
                number(values[at], "3f"),
                f'class="movable-value" {END} fill="{colour}" font-size="13"',
            ),
        ]
    return picture(height, said, drawn), {"left": left, "step": step, "middles": middles, "reach": reach}


def curve(products: np.ndarray, at: int, near: list[int], height: float, said: str) -> tuple[str, dict]:
    """Draw one row of a table's dot products over the distance, and write the nearest below."""
    length = len(products)
    low, high = min(products.min(), 0.0), max(products.max(), 1e-12)
    scale, unit, centre = (height - 162) / (high - low), 160 / (length - 1), 196
    zero, foot = 40 + high * scale, height - 122
    tick = 2 ** int(np.log2(max(length - 1, 2) / 1.5))

    def points(pairs: Iterable[tuple[int, float]]) -> list[tuple[float, float]]:
        return [(centre + distance * unit, zero - value * scale) for distance, value in pairs]

    # at each distance, the smallest and the largest dot product of any two rows that far apart
    spans = [(distance, np.diagonal(products, distance)) for distance in range(1 - length, length)]
    edges = points([*((k, span.min()) for k, span in spans), *((k, span.max()) for k, span in reversed(spans))])
    drawn = [
        heading(f"dot product of row {at} with row {at} + distance"),
        f'<line x1="34" x2="{WIDTH}" y1="{zero:.2f}" y2="{zero:.2f}" stroke="currentColor" opacity=".3"/>',
        *(text(26, y + 4, number(v, "3g"), f"{END} {SMALL}") for v, y in ((0.0, zero), (high, zero - high * scale))),
        *(
            text(centre + k * unit, foot + 24, number(k, "0f"), f"{MIDDLE} {SMALL}")
            for k in sorted({-tick, 0, tick}, key=abs)
        ),
        f'<polygon points="{_joined(edges)}" stroke="currentColor" stroke-width="7" stroke-linejoin="round"'
        ' opacity=".16"/>',
        line(points((j - at, value) for j, value in enumerate(products[at])), FIRST, 'class="movable-line"', 2),
        text(0, height - 54, "distance", SMALL),
        *(text(122 + 59 * i, height - 54, str(k), f"{END} {SMALL}") for i, k in enumerate(near)),
    ]
    for sign, name, y in ((-1, "before", height - 30), (1, "after", height - 6)):
        drawn.append(text(0, y, name, SOFT))
        for i, distance in enumerate(sign * k for k in near):
            written = product(products, at, at + distance)
            ((x, dot_y),) = points([(distance, 0.0 if written == "off" else products[at, at + distance])])
            drawn.append(text(122 + 59 * i, y, written, f'class="movable-number" {END}'))
            drawn.append(mark(x, dot_y, FIRST, f'visibility="{"hidden" if written == "off" else "visible"}"'))
    return picture(height, said, drawn), {"centre": centre, "unit": unit, "zero": zero, "scale": scale}


def slider(label: str, attributes: str, now: str, said: str, ends: Sequence[str]) -> str:
    """Return a range input with its name, its value, its scale, and what is read aloud when it has moved."""
    now, scale = escape(now), "".join(f"<span>{escape(end)}</span>" for end in ends)
    return (
        f'<label class="movable-slider"><span>{label}</span><input type="range" {attributes} aria-valuetext="{now}"'
        f' autocomplete="off"></label><div class="movable-scale" aria-hidden="true">{scale}</div>'
        f'<output aria-live="polite"><span class="movable-now" aria-hidden="true">{now}</span>'
        f'<span class="movable-said movable-unseen">{escape(said)}</span></output>'
    )


def choice(legend: str, name: str, count: int, chosen: int) -> str:
    """Return radio buttons numbered from 1 to `count`; `chosen` counts from 0."""
    labels = "".join(
        f"<label>{radio(name, index, index == chosen)}<span>{index + 1}</span></label>" for index in range(count)
    )
    return f'<fieldset class="movable-choices"><legend>{legend}</legend>{labels}</fieldset>'


def radio(name: str, value: int, checked: bool, attributes: str = "") -> str:
    """Return one radio button; Firefox would remember its state over a reload if it were not told otherwise."""
    state = " checked" if checked else ""
    return f'<input type="radio" name="{name}" value="{value}" autocomplete="off"{state} {attributes}>'


def picture(height: float, said: str, drawn: Iterable[str], width: float = WIDTH) -> str:
    """Return an SVG whose text has the size of the text around, as near as the page's width allows."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 0 {width + 4:.0f} {height:.0f}" width="{width + 4:.0f}"'
        ' role="img" style="max-width:100%;height:auto" font-family="system-ui, sans-serif" font-size="14"'
        f' fill="currentColor"><title>{escape(said)}</title>{"".join(drawn)}</svg>'
    )


def number(value: float, form: str) -> str:
    """Write a number with a true minus sign, and none before a zero."""
    return f"{value:z.{form}}".replace("-", "−")


def product(products: np.ndarray, at: int, other: int) -> str:
    """Write the dot product of two rows, or that the other is off the table."""
    return number(products[at, other], "3f") if 0 <= other < len(products) else "off"


def text(x: float, y: float, content: str, attributes: str = "") -> str:
    """Return one line of text."""
    return f'<text x="{x:.2f}" y="{y:.2f}" {attributes}>{escape(content)}</text>'


def heading(content: str, x: float = 0) -> str:
    """Return the line above a picture, which changes as it moves."""
    return text(x, 15, content, 'class="movable-heading" font-weight="600"')


def line(points: Iterable[tuple[float, float]], colour: str, attributes: str = "", thickness: float = 1.5) -> str:
    """Return a line through points."""
    return (
        f'<polyline {attributes} points="{_joined(points)}" fill="none" stroke="{colour}" stroke-width="{thickness}"'
        ' stroke-linejoin="round"/>'
    )


def vertical(x: float, y1: float, y2: float, attributes: str) -> str:
    """Return a thin vertical line."""
    return f'<line {attributes} x1="{x:.2f}" x2="{x:.2f}" y1="{y1:.2f}" y2="{y2:.2f}" stroke="currentColor"/>'


def mark(x: float, y: float, colour: str, attributes: str = "") -> str:
    """Return a dot on a curve."""
    return f'<circle class="movable-dot" cx="{x:.2f}" cy="{y:.2f}" r="3.5" fill="{colour}" {attributes}/>'


def _joined(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)


def _strip(table: np.ndarray) -> float:
    return min(110, max(34, 464 / table.shape[1]))
