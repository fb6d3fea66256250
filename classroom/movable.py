"""Figures to move by hand: the temperature of a softmax, a position along the sinusoids, an attention.

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

from classroom import movable_attention as attention
from classroom import movable_drawing as drawing
from classroom.movable_drawing import number

LOWEST, HIGHEST = 0.1, 100.0  # temperatures
LONGEST, WIDEST = 64, 16  # tables of positions
NEAR = (0, 1, 2, 4, 8)  # the distances whose dot products are written out

LOOKS = "Where one word looks in one head: the stronger a line, the larger the weight. Faint lines are of other words."
TRAINING = (
    "The weights of one attention as its training goes on. Rows are queries, columns keys; the more a cell stands out"
    " from the page, the larger its weight."
)


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
    said = f"Position {at}. Dot products with the rows that many positions after: {listed}."
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


def heads(
    weights: ArrayLike,
    tokens: Sequence[str],
    *,
    keys: Sequence[str] | None = None,
    layer: int = 0,
    head: int = 0,
    token: int = 0,
    caption: str = LOOKS,
) -> Movable:
    """Return where one token looks in one head, as lines to the tokens that are asked, with both to be chosen.

    `weights` has shape (H, T, S): heads, the T `tokens` that ask, the S `keys` that are asked. Each row sums to 1.
    With shape (L, H, T, S) the layer is to be chosen too. Without `keys` the tokens ask each other. `layer`, `head` and
    `token` count from 0 and choose the still picture. With layers or keys, the figure carries and draws its weights
    rounded to 3 decimals, to keep the page small. ValueError when any of these does not fit.
    """
    weights, asked = _finite("weights", weights), tokens if keys is None else keys
    if weights.ndim not in (3, 4) or weights.shape[-2:] != (len(tokens), len(asked)) or not weights.size:
        wanted = f"(H, T, S) or (L, H, T, S) with T = {len(tokens)} token(s) and S = {len(asked)} key(s)"
        raise ValueError(f"weights must have shape {wanted}, got {weights.shape}")
    _check_shares(weights)
    layered = weights.ndim == 4
    layers, count = weights.shape[0] if layered else 1, weights.shape[-3]
    if layer not in range(layers) or head not in range(count) or token not in range(len(tokens)):
        raise ValueError(f"layer {layer}, head {head} or token {token} is not in weights of shape {weights.shape}")
    short = layered or keys is not None
    weights = _rounded(weights) if short else weights
    shown = weights[layer, head] if layered else weights[head]
    where = f"Layer {layer + 1}, head {head + 1}" if layered else f"Head {head + 1}"
    said = f"{where}, {attention.spoken(tokens[token])}: looks most at {attention.most(shown[token], asked)}."

    data = {"weights": weights.tolist(), "tokens": list(tokens)} | ({} if keys is None else {"keys": list(keys)})
    name = "movable-" + hashlib.sha256(json.dumps(data).encode()).hexdigest()[:12]
    return _figure(
        "heads",
        data,
        attention.looks(shown, tokens, asked, token, said)
        + attention.token_choice(tokens, asked, token, f"{name}-token"),
        (drawing.choice("Layer", f"{name}-layer", layers, layer) if layered else "")
        + drawing.choice("Head", f"{name}-head", count, head)
        + f'<output class="movable-said" aria-live="polite">{escape(said)}</output>',
        caption,
        said,
        short=short,
    )


def frames(
    weights: ArrayLike,
    queries: Sequence[str],
    keys: Sequence[str],
    labels: Sequence[str],
    *,
    notes: Sequence[str] | None = None,
    frame: int = -1,
    caption: str = TRAINING,
) -> Movable:
    """Return a map of attention weights that changes over training, with the moment to be moved.

    `weights` has shape (F, T, S): moments, T `queries`, S `keys`. Each row sums to 1. `labels` names the F moments,
    such as "step 20"; `notes` says more about each, such as "loss 1.609". The still picture shows the first moment and
    that of `frame`. The figure carries and draws its weights rounded to 3 decimals; up to 36 of them, in at most 12
    columns, are written in their cells. ValueError when any of these does not fit.
    """
    weights, count = _finite("weights", weights), len(labels)
    if weights.shape != (count, len(queries), len(keys)) or not weights.size:
        wanted = f"(F, T, S) with F = {count} label(s), T = {len(queries)} queries and S = {len(keys)} keys"
        raise ValueError(f"weights must have shape {wanted}, got {weights.shape}")
    _check_shares(weights)
    if notes is not None and len(notes) != count:
        raise ValueError(f"notes must have one entry for each of {count} label(s), got {len(notes)}")
    if frame not in range(-count, count):
        raise ValueError(f"frame {frame} is not in weights of shape {weights.shape}")
    weights, frame = _rounded(weights), frame % count

    (first, _), (picture, said) = (
        attention.cells(weights[at], queries, keys, labels[at], None if notes is None else notes[at])
        for at in (0, frame)
    )
    position = f'min="0" max="{count - 1}" step="1" value="{frame}"'
    data = {"weights": weights.tolist(), "queries": list(queries), "keys": list(keys), "labels": list(labels)}
    data |= {"notes": None if notes is None else list(notes)}
    return _figure(
        "frames",
        data | {"colours": attention.COLOURS, "white": attention.WHITE_FROM},
        (f'<span class="movable-first">{first}</span>' if frame else "") + picture,
        drawing.slider("Training", position, labels[frame], said, (labels[0], labels[-1])),
        caption,
        said,
        short=True,
    )


def _finite(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} of shape {array.shape} must hold finite numbers only")
    return array


def _check_shares(weights: np.ndarray) -> None:
    if (weights < 0).any() or not np.allclose(weights.sum(axis=-1), 1, rtol=0, atol=1e-6):
        raise ValueError(f"weights of shape {weights.shape} must be at least 0, and each row must sum to 1")


def _rounded(weights: np.ndarray) -> np.ndarray:
    """Round to 3 decimals, but so that 2 decimals of the result are those of the weight: 0.0046 becomes 0.004."""
    hundredths = 10 * np.rint(100 * weights)
    return np.clip(np.rint(1000 * weights), hundredths - 4, hundredths + 4) / 1000


def _figure(
    kind: str, data: dict, pictures: str, controls: str, caption: str, plain: str, *, short: bool = False
) -> Movable:
    numbers = escape(json.dumps(data, separators=(",", ":") if short else None))
    return Movable(
        f'<figure class="movable mathjax_ignore tex2jax_ignore" data-kind="{kind}" data-numbers="{numbers}">'
        f'<div class="movable-pictures">{pictures}</div><div class="movable-controls" hidden>{controls}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>",
        plain,
    )
