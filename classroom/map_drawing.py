"""The drawing behind the map of the transformer: where each part stands, and the SVG that shows the state it is in."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Box:
    """A labelled rectangle that stands for a part, which may have several; `_` in a label makes a subscript."""

    part: str
    label: str
    x: float
    y: float
    width: float
    height: float = 30


@dataclass(frozen=True)
class Look:
    """How a state is drawn: states differ in outline as well as in colour."""

    fill: str
    stroke: str
    ink: str
    thickness: float
    dash: str = "none"


LOOKS = {
    "built": Look(fill="#d3e3ef", stroke="#2f6690", ink="#173a56", thickness=1.5),
    "this chapter": Look(fill="#2f6690", stroke="#173a56", ink="#ffffff", thickness=2.5),
    "to come": Look(fill="#ffffff", stroke="#8b95a1", ink="#5a6570", thickness=1.5, dash="4 3"),
}
LINE = Look(fill="none", stroke="#5a6570", ink="#5a6570", thickness=1.5)
GROUND = "#f1f3f5"

WIDTH, HEIGHT = 610, 590
WIDE = 148  # a box of the encoder or the decoder
ENCODER, DECODER = 17, 203  # the left edges of their boxes
LANE = 374  # where generation runs from the decoder's top back to its foot
INSET, INSET_WIDE, CHAIN = 434, 156, 114  # the boxes of one attention, magnified: left edge, full width, width beside V

BOXES = (
    *(
        Box(part, label, x, y, WIDE)
        for x in (ENCODER, DECODER)
        for part, label, y in (
            ("tokens", "tokens", 550),
            ("embeddings", "embed", 506),
            ("positions", "+ positions", 462),
        )
    ),
    Box("self-attention", "self-attention", ENCODER, 400, WIDE),
    Box("add and norm", "add & norm", ENCODER, 368, WIDE),
    Box("feed-forward", "feed-forward", ENCODER, 324, WIDE),
    Box("add and norm", "add & norm", ENCODER, 292, WIDE),
    Box("masked self-attention", "masked attention", DECODER, 400, WIDE),
    Box("add and norm", "add & norm", DECODER, 368, WIDE),
    Box("cross-attention", "cross-attention", DECODER, 324, WIDE),
    Box("add and norm", "add & norm", DECODER, 292, WIDE),
    Box("feed-forward", "feed-forward", DECODER, 248, WIDE),
    Box("add and norm", "add & norm", DECODER, 216, WIDE),
    Box("output layer", "linear", DECODER, 122, WIDE),
    Box("output layer", "softmax", DECODER, 78, WIDE),
    Box("loss", "loss", ENCODER, 78, WIDE),
    Box("gradients", "gradients", ENCODER, 148, WIDE),
    Box("heads", "join heads, W_O", INSET, 116, INSET_WIDE),
    Box("weighted average", "weighted average", INSET, 204, INSET_WIDE),
    Box("softmax", "softmax", INSET, 252, CHAIN),
    Box("masks", "mask", INSET, 296, CHAIN),
    Box("scale", "÷ √d_k", INSET, 340, CHAIN),
    Box("dot product", "dot product", INSET, 384, CHAIN),
    Box("queries, keys and values", "Q", INSET, 444, 40),
    Box("queries, keys and values", "K", INSET + 58, 444, 40),
    Box("queries, keys and values", "V", INSET + 116, 444, 40),
)

# around a whole stack: the label's two halves stand left and right of the arrow that leaves the frame
FRAMES = (
    Box("encoder stack", "encoder|× N", ENCODER - 14, 258, WIDE + 23, 185),
    Box("decoder stack", "decoder|× N", DECODER - 14, 182, WIDE + 23, 261),
    Box("heads", "a head|× H", INSET - 9, 170, INSET_WIDE + 18, 313),
)


def _up(x: float, *ends: tuple[float, float]) -> list:
    return [((x, start), (x, end)) for start, end in ends]


def _around(x: float, start: float, end: float) -> tuple:
    """A residual connection: past a sublayer, and into the box where it is added."""
    return ((x + WIDE / 2, start), (x - 9, start), (x - 9, end), (x, end))


SUBLAYERS = ((ENCODER, 436, 383), (ENCODER, 361, 307), (DECODER, 436, 383), (DECODER, 361, 307), (DECODER, 285, 231))

# each a line of points that ends in an arrowhead
ARROWS = (
    *_up(ENCODER + WIDE / 2, (550, 536), (506, 492), (462, 430), (368, 354)),
    *_up(DECODER + WIDE / 2, (550, 536), (506, 492), (462, 430), (368, 354), (292, 278), (216, 152), (122, 108)),
    *(_around(x, *ends) for x, *ends in SUBLAYERS),
    ((ENCODER + WIDE / 2, 292), (ENCODER + WIDE / 2, 246), (181, 246), (181, 339), (DECODER, 339)),  # memory
    ((DECODER, 93), (ENCODER + WIDE, 93)),  # predictions, to the loss
    *((*((INSET + 78, 520), (x, 520)), (x, 474)) for x in (INSET + 20, INSET + 78, INSET + 136)),  # x, to Q, K and V
    *_up(INSET + 20, (444, 414)),
    *_up(INSET + 78, (444, 414), (204, 146), (116, 98)),
    *_up(INSET + 136, (444, 234)),
    *_up(INSET + CHAIN / 2, (384, 370), (340, 326), (296, 282), (252, 234)),
)
PART_ARROWS = (
    ("gradients", ((ENCODER + WIDE / 2, 108), (ENCODER + WIDE / 2, 148))),
    ("gradients", ((ENCODER + 30, 178), (ENCODER + 30, 258))),
    ("gradients", ((ENCODER + WIDE, 166), (DECODER + 24, 166), (DECODER + 24, 182))),
    (
        "generation",
        ((DECODER + WIDE / 2, 78), (DECODER + WIDE / 2, 60), (LANE, 60), (LANE, 565), (DECODER + WIDE, 565)),
    ),
)


def svg(states: Mapping[str, str], description: str) -> str:
    """Return the map as SVG, given the state of each part by name: 'built', 'this chapter' or 'to come'."""
    look_of = {part: LOOKS[state] for part, state in states.items()}
    drawn = [
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *_magnifier(),
        *_legend(states.values()),
        *(_frame(frame, look_of[frame.part]) for frame in FRAMES),
        *(_arrow(points, LINE) for points in ARROWS),
        *(_arrow(points, look_of[part]) for part, points in PART_ARROWS),
        *(_box(box, look_of[box.part]) for box in BOXES),
        _beside_lane("generation", _lined(look_of["generation"])),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img"'
        f' style="max-width: 100%; height: auto" font-family="system-ui, sans-serif" font-size="16.5">'
        f"<title>{escape(description)}</title>{''.join(drawn)}</svg>"
    )


def _magnifier() -> list[str]:
    left, top, wide, high = INSET - 17, 62, INSET_WIDE + 34, 492
    rays = f"{DECODER + WIDE},402 {left + 4},{top + 4} {left + 4},{top + high - 4} {DECODER + WIDE},428"
    return [
        f'<polygon points="{rays}" fill="{GROUND}"/>',
        f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" rx="10" fill="{GROUND}"/>',
        _text("one attention", INSET + INSET_WIDE / 2, 86, LINE.ink),
        _text("x", INSET + INSET_WIDE / 2, 541, LINE.ink),
    ]


def _legend(states: Collection[str]) -> list[str]:
    pieces, x = [], 8
    for state, look in LOOKS.items():
        if state in states:
            pieces.append(f'<rect x="{x}" y="14" width="26" height="18" rx="4" {_paint(look)}/>')
            pieces.append(_text(state, x + 34, 29, LINE.ink, anchor="start"))
            x += 58 + 8 * len(state)
    return pieces


def _beside_lane(label: str, ink: str) -> str:
    return f'<g transform="translate({LANE + 8} 134) rotate(90)">{_text(label, 0, 0, ink)}</g>'


def _box(box: Box, look: Look) -> str:
    rectangle = f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6" {_paint(look)}/>'
    return rectangle + _text(box.label, box.x + box.width / 2, box.y + box.height / 2 + 5.5, look.ink)


def _frame(frame: Box, look: Look) -> str:
    left, right = frame.label.split("|")
    return (
        f'<rect x="{frame.x}" y="{frame.y}" width="{frame.width}" height="{frame.height}" rx="10" fill="#ffffff"'
        f" {_outline(look)}/>"
        + _text(left, frame.x + 10, frame.y + 23, _lined(look), anchor="start")
        + _text(right, frame.x + frame.width - 10, frame.y + 23, _lined(look), anchor="end")
    )


def _arrow(points: tuple, look: Look) -> str:
    (x, y), (end_x, end_y) = points[-2:]
    step_x, step_y = (end_x > x) - (end_x < x), (end_y > y) - (end_y < y)
    foot_x, foot_y = end_x - 7 * step_x, end_y - 7 * step_y
    wing_x, wing_y = 4 * step_y, 4 * step_x
    line = " ".join(f"{x},{y}" for x, y in (*points[:-1], (foot_x, foot_y)))
    head = f"{end_x},{end_y} {foot_x + wing_x},{foot_y + wing_y} {foot_x - wing_x},{foot_y - wing_y}"
    return f'<polyline points="{line}" fill="none" {_outline(look)}/><polygon points="{head}" fill="{look.stroke}"/>'


def _text(label: str, x: float, y: float, ink: str, *, anchor: str = "middle") -> str:
    lettered = re.sub(r"_(\w)", r'<tspan dy="4" font-size="13">\1</tspan>', escape(label))
    return f'<text x="{x}" y="{y}" fill="{ink}" text-anchor="{anchor}">{lettered}</text>'


def _paint(look: Look) -> str:
    return f'fill="{look.fill}" {_outline(look)}'


def _outline(look: Look) -> str:
    return f'stroke="{look.stroke}" stroke-width="{look.thickness}" stroke-dasharray="{look.dash}"'


def _lined(look: Look) -> str:
    """The ink for a label that stands outside a box of this look."""
    return look.ink if look.dash != "none" else look.stroke
