"""The page that shows what `benchmarks.peers` measured: `python -m benchmarks.comparison`.

Writes book/comparison.md from the text in comparison.md beside this file, in which {{cpu generation}} stands for the
measurements in book/measurements/peers-cpu.json that are so called: whether a target is met, a figure, and a table.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.results import FOLDER
from benchmarks.timing import OURS
from classroom.measured import measured
from classroom.plots import BLUE, GOLD, GREY, INK, RED, TEAL, book_style

TEXT = Path(__file__).with_suffix(".md")
BOOK = FOLDER.parent
TARGETS = {"training step": 1.0, "generation": 0.5}  # ratios have to be below
COLORS = {
    "dotformer": BLUE,
    "dotformer, no attention": BLUE,
    "dotformer, attention": TEAL,
    "dotformer, ONNX Runtime": TEAL,
    "dotformer, products alone": GREY,
    "torch": RED,
    "transformers": GOLD,
    "CTranslate2": RED,
    "x-transformers": INK,
    "x-transformers, flash": TEAL,
    "one product": RED,
    "from the sum of exponentials": RED,
    "nn.LSTM alone": RED,
}

Row = dict[str, Any]


def common(rows: list[Row]) -> list[str]:
    """The parts of the size that all rows share, such as "V 6000"."""
    first, *others = (row["size"].split(", ") for row in rows)
    return [part for part in first if others and all(part in other for other in others)]


def labels(rows: list[Row]) -> list[str]:
    """What is special about each row: how it was done, and what no other says of its size."""
    shared = common(rows)
    sizes = [", ".join(part for part in row["size"].split(", ") if part not in shared) for row in rows]
    ways = [row["what"].partition(", ")[2] for row in rows]
    return [": ".join(filter(None, pair)) for pair in zip(ways, sizes, strict=True)]


def ours(rows: list[Row]) -> list[str]:
    """The contenders that are the book's."""
    names = dict.fromkeys(name for row in rows for name in row["contenders"] if name.startswith(OURS))
    return [name for name in names if not name.endswith("alone")]


def milliseconds(time: float) -> str:
    """A time with three digits, and all of those before the point."""
    return f"{time:,.0f}" if time >= 100 else f"{time:#.3g}"


def table(rows: list[Row]) -> Iterator[str]:
    """A Markdown table: a row for each size, a column for each contender and for each ratio of ours."""
    names, compared = list(dict.fromkeys(name for row in rows for name in row["contenders"])), ours(rows)
    ratios = [f"ratio{name.removeprefix(OURS)}" for name in compared]
    yield "| " + " | ".join(["", *names, *ratios]) + " |"
    yield "|---" + "|---:" * len(names + ratios) + "|"
    for label, row in zip(labels(rows), rows, strict=True):
        found = row["contenders"]
        times = [milliseconds(found[name]["ms"]) if name in found else "" for name in names]
        for name in compared:
            low, high = found[name]["ratio_quartiles"]
            times.append(f"**{found[name]['ratio']:.2f}** {low:.2f}\u2060–\u2060{high:.2f}")  # not to be broken
        label = re.sub("(?<![,:]) ", "\u00a0", label)  # broken behind a comma only
        yield f"| {' | '.join([label, *times])} |"


def figure(rows: list[Row], path: Path, target: float | None) -> str:
    """Draw the ratios of all contenders with their quartiles; returns in words what is seen of ours."""
    drawing, axes = plt.subplots(figsize=(7.2, 1.2 + 0.5 * len(rows)))
    for n, row in enumerate(rows):
        count = len(row["contenders"])
        for k, (name, found) in enumerate(row["contenders"].items()):
            place = n + 0.16 * (k - (count - 1) / 2)
            axes.plot(found["ratio_quartiles"], [place, place], color=COLORS[name], lw=2, alpha=0.5)
            axes.plot(found["ratio"], place, "o", ms=5, color=COLORS[name], label=name)
    axes.axvline(1, color=INK, lw=1)
    if target:
        axes.axvline(target, color=INK, lw=1, ls=":")
    axes.set_yticks(range(len(rows)), [label.replace(": ", "\n") for label in labels(rows)], fontsize=9)
    low, high = axes.get_xlim()
    low, high = min(low, 0.85), max(high, 1.18)
    axes.set(xscale="log", xlabel="ratio to the fastest of the others", xlim=(low, high), ylim=(len(rows) - 0.4, -0.6))
    ticks = [tick for tick in (0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1, 1.1, 1.3, 1.5, 2, 3, 5, 10) if low <= tick <= high]
    ticks = [tick for tick in ticks if high < 1.5 * low or tick not in (0.9, 1.1)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    once = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(once.values(), once, fontsize=9, frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1))
    drawing.tight_layout()
    drawing.savefig(path, metadata={"Date": None})
    plt.close(drawing)
    seen = [
        f"{label}, {name} {row['contenders'][name]['ratio']:.2f}"
        for label, row in zip(labels(rows), rows, strict=True)
        for name in ours(rows)
    ]
    return "Dots on a line for each size, the ratios of all contenders. " + "; ".join(seen) + "."


def verdict(rows: list[Row], target: float) -> str:
    """Whether each of ours is below a target in three quarters of its rounds, and where it misses it by most."""
    said = []
    for name in ours(rows):
        found = [row["contenders"][name] for row in rows]
        ratios = dict(zip(labels(rows), (one["ratio"] for one in found), strict=True))
        worst = max(ratios, key=ratios.__getitem__)
        met = sum(one["ratio_quartiles"][1] < target for one in found)
        count = f"in all {met} rows" if met == len(ratios) else f"in {met} of {len(ratios)} rows"
        where = "" if met == len(ratios) else f", for *{worst}*"
        way = name.removeprefix(OURS).replace(", ", " by ")
        said.append(f"**Met{way} {count}.** The largest ratio is {ratios[worst]:.2f}{where}.")
    return " ".join(said)


def shown(device: str, what: str, figures: Path) -> str:
    """What stands on the page for the measurements of a device whose name begins with `what`."""
    found = measured(f"peers-{device}")
    if what == "machine":
        machine = found.get("accelerator", found["machine"])
        missing = [f"`{error['row']}` ({error['error'].split(': ')[1]})" for error in found.get("errors", [])]
        dates = sorted({row.get("date", found["date"]) for row in found["measurements"]})
        said = f"Measured on {' and '.join(dates)}: {machine}, PyTorch {found['torch']}."
        return said + (f" Not measured: {', '.join(missing)}." if missing else "")
    rows = [row for row in found["measurements"] if row["what"].startswith(what)]
    name, target = f"peers-{device}-{what.replace(' ', '-')}.svg", TARGETS.get(what)
    alt = figure(rows, figures / name, target)
    parts = [verdict(rows, target)] if target else []
    parts += [f"```{{image}} _static/{name}\n:alt: {alt}\n```", "\n".join(table(rows))]
    shared = ", ".join(common(rows))
    return "\n\n".join([*parts, f"All rows: {shared}."] if shared else parts)


def page(figures: Path = BOOK / "_static") -> str:
    """The page; its figures are drawn into a folder."""
    book_style()
    text = TEXT.read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+) ([^}]+)\}\}", lambda found: shown(*found.groups(), figures), text)


def main() -> None:
    """Write the page."""
    path = BOOK / TEXT.name
    path.write_text(page(), encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
