"""Figures to move by hand: the temperature of a softmax, a position along the sinusoids, the heads of an attention.

Each displays as a still picture that is right by itself, inline SVG with its numbers written in it, and carries the
numbers it was drawn from. On the book's pages book/_static/movable.js reads these and shows the controls; where that
script does not run, the controls stay hidden.

    movable.temperature(["tea", "coffee"], [5, 6], temperature=2)
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import ArrayLike

from classroom import movable_drawing as drawing
from classroom.movable_drawing import number

LOWEST, HIGHEST = 0.1, 100.0  # temperatures
LONGEST, WIDEST = 64, 16  # tables of positions
NEAR = (0, 1, 2, 4, 8)  # the distances whose dot products are written out


@dataclass(frozen=True)
class Movable:
    """A figure ready to be displayed, as HTML or, where there is none, as one line."""

    html: str
    plain: str

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.plain}

    def __repr__(self) -> str:
        return self.plain


def temperature(labels: Sequence[str], scores: ArrayLike, *, temperature: float = 1.0) -> Movable:
    """Return bars of softmax(scores / temperature), with the temperature to be moved from 0.1 to 100.

    `scores` has shape (S,), one for each of the S labels. The temperature is rounded to the three digits shown.
    ValueError when they do not fit, a score is not finite, or the temperature is out of range.
    """
    scores = _finite("scores", scores)
    if scores.shape != (len(labels),) or not scores.size:
        raise ValueError(f"scores must have one entry for each of {len(labels)} label(s), got shape {scores.shape}")
    if not LOWEST <= temperature <= HIGHEST:
        raise ValueError(f"temperature must lie in {LOWEST:g} to {HIGHEST:g}, got {temperature}")
    degrees = float(f"{temperature:.3g}")
    now = f"{degrees:#.3g}".rstrip(".")
    powers = np.exp((scores - scores.max()) / degrees)
    weights = powers / powers.sum()

    listed = ", ".join(f"{label} {number(weight, '3f')}" for label, weight in zip(labels, weights, strict=True))
    said = f"Weights at temperature {now}: {listed}."
    picture, geometry = drawing.bars(labels, scores, weights, now, said)
    logarithm = f'min="-1" max="2" step="0.05" value="{np.log10(degrees):.4g}"'
    return _figure(
        "temperature",
        {"labels": list(labels), "scores": scores.tolist(), **geometry},
        picture,
        drawing.slider("Temperature", logarithm, now, said, ("0.1", "1", "10", "100")),
        "The weights that a softmax gives to these scores, each divided by the temperature first.",
        said,
    )


def position(table: ArrayLike, *, position: int | None = None) -> Movable:
    """Return a table's columns as waves, and the dot products of one row with all rows, with that row to be moved.

    `table` has shape (T, D), a row for each position, with T from 2 to 64 and D even, at most 16. Columns 2i and
    2i + 1 share a strip. Without a `position`, the middle one is marked. ValueError when the two do not fit.
    """
    table = _finite("table", table)
    if table.ndim != 2 or not 2 <= len(table) <= LONGEST or table.shape[1] not in range(2, WIDEST + 1, 2):
        wanted = f"(T, D) with T in 2 to {LONGEST} and D even, at most {WIDEST}"
        raise ValueError(f"table must have shape {wanted}, got {table.shape}")
    length = len(table)
    at = length // 2 if position is None else position
    if at not in range(length):
        raise ValueError(f"position must be a row of the table of shape {table.shape}, 0 to {length - 1}, got {at}")
    near = [distance for distance in NEAR if distance < length]
    products = table @ table.T

    row = ", ".join(number(value, "3f") for value in table[at])
    listed = ", ".join(f"{k}: {drawing.product(products, at, at + k)}" for k in near)
    said = f"Position {at}. Dot products with the rows that many places after: {listed}."
    waves, wave_geometry = drawing.waves(table, at, f"Position {at}. Its row of the table: {row}.")
    curve, curve_geometry = drawing.curve(products, at, near, drawing.height_of_waves(table), said)
    return _figure(
        "position",
        {"table": table.tolist(), "near": near, "waves": wave_geometry, "curve": curve_geometry},
        waves + curve,
        drawing.slider(
            "Position", f'min="0" max="{length - 1}" step="1" value="{at}"', str(at), said, ("0", str(length - 1))
        ),
        "The columns of the table, two in each strip, and the row at the marked position. Then the dot products of this"
        " row with those before and after it, as far as there are any; the broad grey line is all positions at once.",
        said,
    )


def heads(weights: ArrayLike, tokens: Sequence[str], *, head: int = 0, token: int = 0) -> Movable:
    """Return where one token looks in one head, as lines to the tokens that are asked, with both to be chosen.

    `weights` has shape (H, T, T): heads, tokens that ask, tokens that are asked. Each row sums to 1. `tokens` has
    length T. `head` and `token` count from 0 and choose the still picture. ValueError when any of these does not fit.
    """
    weights, count = _finite("weights", weights), len(tokens)
    if weights.ndim != 3 or weights.shape[1:] != (count, count) or not weights.size:
        raise ValueError(f"weights must have shape (H, T, T) with T = {count} token(s), got {weights.shape}")
    if (weights < 0).any() or not np.allclose(weights.sum(axis=-1), 1, rtol=0, atol=1e-6):
        raise ValueError(f"weights of shape {weights.shape} must be at least 0, and each row must sum to 1")
    if head not in range(len(weights)) or token not in range(count):
        raise ValueError(f"head {head} or token {token} is not in weights of shape {weights.shape}")
    row = weights[head, token]
    best = np.argsort(-row, kind="stable")[:3]
    listed = ", ".join(f"{tokens[index]} {number(row[index], '2f')}" for index in best)
    said = f"Head {head + 1}, {tokens[token]}: looks most at {listed}."

    data = {"weights": weights.tolist(), "tokens": list(tokens)}
    name = "movable-" + hashlib.sha256(json.dumps(data).encode()).hexdigest()[:12]
    choices = "".join(
        f"<label>{drawing.radio(f'{name}-head', index, index == head)}<span>{index + 1}</span></label>"
        for index in range(len(weights))
    )
    return _figure(
        "heads",
        data,
        drawing.looks(weights[head], tokens, token, said) + drawing.token_choice(tokens, token, f"{name}-token"),
        f'<fieldset class="movable-choices"><legend>Head</legend>{choices}</fieldset>'
        f'<output class="movable-said" aria-live="polite">{escape(said)}</output>',
        "Where one word looks in one head: the stronger a line, the larger the weight. Faint lines are of other words.",
        said,
    )


def _finite(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} of shape {array.shape} must hold finite numbers only")
    return array


def _figure(kind: str, data: dict, pictures: str, controls: str, caption: str, plain: str) -> Movable:
    numbers = escape(json.dumps(data))
    return Movable(
        f'<figure class="movable mathjax_ignore tex2jax_ignore" data-kind="{kind}" data-numbers="{numbers}">'
        f'<div class="movable-pictures">{pictures}</div><div class="movable-controls" hidden>{controls}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>",
        plain,
    )
