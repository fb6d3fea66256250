"""The drawings of attention among the movable figures: lines from one token to others, and maps of coloured cells.

book/_static/movable.js finds what moves by its class, "movable-...", and changes it by the same formulas as here.
"""

from collections.abc import Sequence
from html import escape

import numpy as np

from classroom.movable_drawing import END, FIRST, MIDDLE, SMALL, SOFT, WIDTH, heading, number, picture, radio, text
from classroom.plots import MOST_NUMBERED_CELLS, WEIGHTS

ROW, TOP = 30, 34  # of the tokens: their height, and what stands above them
COLOURS = [[round(255 * part) for part in WEIGHTS(third / 3)[:3]] for third in range(4)]  # a map's, for 0 to 1
WHITE_FROM = 0.596  # from this weight on, white stands out from the colour more than black does
MOST_NUMBERED_COLUMNS = 12


def looks(weights: np.ndarray, tokens: Sequence[str], keys: Sequence[str], token: int, said: str) -> str:
    """Draw the weights of one head as lines, those of the token that asks strongly, and write them beside the rest.

    `weights` has shape (T, S), for T tokens that ask and S keys that are asked.
    """
    column, width, height = _columns(tokens, keys)
    right = width - column - 46
    drawn = [
        text(column - 6, 15, "asks", f"{END} {SMALL}"),
        text(right + 6, 15, "is asked", SMALL),
        text(width, 15, "weight", f"{END} {SMALL}"),
        _behind(0, TOP + ROW * token, column, 0.3, "movable-chosen"),
    ]
    for asking, asked in np.ndindex(weights.shape):
        weight = weights[asking, asked]
        thick, opaque = (1 + 5 * weight, weight**0.5) if asking == token else (1, 0.3 * weight)
        drawn.append(
            f'<line class="movable-look" x1="{column + 5:.2f}" y1="{TOP + ROW * (asking + 0.5)}" x2="{right - 5:.2f}"'
            f' y2="{TOP + ROW * (asked + 0.5)}" stroke="{FIRST}" stroke-width="{thick:.2f}" opacity="{opaque:.2f}"/>'
        )
    for index in range(max(weights.shape)):
        y = TOP + ROW * index
        asking = [text(column - 6, y + 20, tokens[index], END)] if index < len(tokens) else []
        if index >= len(keys):
            drawn += asking
            continue
        weight = weights[token, index]
        drawn += [
            _behind(right, y, column, 0.45 * weight, "movable-asked"),
            *asking,
            text(right + 6, y + 20, keys[index]),
            text(width, y + 20, number(weight, "2f"), f'class="movable-number" {END}'),
        ]
    return picture(height, said, drawn, width)


def token_choice(tokens: Sequence[str], keys: Sequence[str], token: int, name: str) -> str:
    """Return a radio button for each token that asks, laid over its place in the picture."""
    column, width, height = _columns(tokens, keys)
    inputs = [
        radio(
            name,
            index,
            index == token,
            f'aria-label="{escape(asking)}, word {index + 1}" style="top:{100 * (TOP + ROW * index) / height:.3f}%;'
            f'height:{100 * ROW / height:.3f}%;width:{100 * column / width:.3f}%"',
        )
        for index, asking in enumerate(tokens)
    ]
    return f'<fieldset class="movable-tokens" hidden><legend>The word that asks</legend>{"".join(inputs)}</fieldset>'


def most(row: np.ndarray, keys: Sequence[str]) -> str:
    """Return the three keys that are looked at most, with their weights; none that is not looked at."""
    best = [index for index in np.argsort(-row, kind="stable")[:3] if row[index] > 0]
    return ", ".join(f"{spoken(keys[index])} {number(row[index], '2f')}" for index in best)


def spoken(token: str) -> str:
    """Return a token as a sentence can hold it: in quotation marks if it has no letter and no digit."""
    return token if any(character.isalnum() for character in token) else f"“{token}”"


def cells(
    weights: np.ndarray, queries: Sequence[str], keys: Sequence[str], label: str, note: str | None
) -> tuple[str, str]:
    """Draw weights as a map of coloured cells, with numbers in them if they are few; return it and what it shows.

    `weights` has shape (T, S): T queries are rows, S keys columns. A label and a note stand above.
    """
    best = ", ".join(
        f"{query} at {keys[row.argmax()]} {number(row.max(), '2f')}"
        for query, row in zip(queries, weights, strict=True)
    )
    said = f"{label if note is None else f'{label}, {note}'}. Where each query looks most: {best}."
    numbered = weights.size <= MOST_NUMBERED_CELLS and len(keys) <= MOST_NUMBERED_COLUMNS
    left = max(60, 14 + 8.2 * max(map(len, queries)))
    cell, slanted, reach = _cell(left, keys, 30 if numbered else 17)
    top = (24 if note is None else 43) + max(reach if slanted else 0, 38)
    drawn = [
        heading(label),
        *([] if note is None else [text(0, 35, note, f'class="movable-note" {SOFT} font-size="13"')]),
        text(left - 8, top - 24, "key →", f"{END} {SMALL}"),
        text(left - 8, top - 8, "query ↓", f"{END} {SMALL}"),
        *(_above(left + cell * (column + 0.5), top - 8, key, slanted) for column, key in enumerate(keys)),
        *(text(left - 8, top + cell * (row + 0.5) + 5, query, END) for row, query in enumerate(queries)),
    ]
    for (row, column), weight in np.ndenumerate(weights):
        x, y = left + cell * column, top + cell * row
        drawn.append(_square(x + 0.75, y + 0.75, cell - 1.5, colour(weight), 'class="movable-cell"'))
        if numbered:
            look = f'class="movable-number" {MIDDLE} font-size="12" fill="{ink(weight)}"'
            drawn.append(text(x + cell / 2, y + cell / 2 + 4, number(weight, "2f"), look))
    foot = top + cell * len(queries) + 4
    if not numbered:
        drawn += _scale(left, foot + 12)
        foot += 28
    width = left + cell * (len(keys) - 0.5) + max(cell / 2, slanted * reach)
    return picture(foot, said, drawn, max(WIDTH, width)), said


def colour(weight: float) -> str:
    """Return the colour of a weight from 0 to 1, between the two of COLOURS that it lies between."""
    place = weight * (len(COLOURS) - 1)
    lower = min(int(place), len(COLOURS) - 2)
    pairs = zip(COLOURS[lower], COLOURS[lower + 1], strict=True)
    return "#" + "".join(f"{int(low + (high - low) * (place - lower) + 0.5):02x}" for low, high in pairs)


def ink(weight: float) -> str:
    """Return the colour of the number on a cell: black or white, whichever stands out."""
    return "white" if weight >= WHITE_FROM else "black"


def _cell(left: float, keys: Sequence[str], least: float) -> tuple[float, bool, float]:
    """The width of a cell, whether the names of the keys need a slant, and how far they then reach up and aside."""
    long = 7.6 * max(map(len, keys)) + 4
    reach = 0.71 * long
    upright = min(46, (WIDTH - left) / len(keys))
    if long <= upright:
        return max(least, upright), False, reach
    return max(least, min(46, (WIDTH - left - reach) / (len(keys) - 0.5))), True, reach


def _above(x: float, y: float, key: str, slanted: bool) -> str:
    """The name of a key above its column."""
    turned = f'transform="rotate(-45 {x + 2:.2f} {y:.2f})"' if slanted else MIDDLE
    return text(x + 2 if slanted else x, y, key, f'font-size="13" {turned}')


def _scale(left: float, y: float) -> list[str]:
    """The colours of the weights from 0 to 1, in steps of a tenth."""
    steps = [_square(left + 14 + 11 * tenth, y, 11, colour(tenth / 10)) for tenth in range(11)]
    ends = [text(left, y + 10, "0", SMALL), text(left + 141, y + 10, "1", SMALL)]
    return [text(left - 8, y + 10, "weight", f"{END} {SMALL}"), *ends, *steps]


def _square(x: float, y: float, side: float, fill: str, attributes: str = "") -> str:
    return f'<rect {attributes} x="{x:.2f}" y="{y:.2f}" width="{side:.2f}" height="{side:.2f}" fill="{fill}"/>'


def _behind(x: float, y: float, width: float, opacity: float, name: str) -> str:
    box = f'x="{x:.2f}" y="{y + 3}" width="{width:.2f}" height="{ROW - 6}" rx="4"'
    return f'<rect class="{name}" {box} fill="{FIRST}" opacity="{opacity:.2f}"/>'


def _columns(tokens: Sequence[str], keys: Sequence[str]) -> tuple[float, float, float]:
    """The width of a column of names, and the width and height of the picture."""
    column = max(72, 14 + 8.2 * max(map(len, (*tokens, *keys))))
    return column, max(WIDTH, 2 * column + 130), TOP + ROW * max(len(tokens), len(keys))
