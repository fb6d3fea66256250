"""The page of the comparison: that it shows what was measured, and that the committed one is fresh."""

import re
from pathlib import Path

import pytest

from benchmarks import comparison
from benchmarks.timing import summary
from tests.conftest import ROOT

BOOK = ROOT / "book"


def row(what, size, ours, peer):
    times = summary({"dotformer": [ours] * 3, "torch": [peer] * 3})
    return {"what": what, "size": size, "contenders": times, "parameters": {}}


@pytest.fixture
def rows():
    return [row("generation, greedy", "batch 1", 0.1, 0.4), row("generation, beam 4", "batch 32", 0.3, 0.2)]


def strokes(path: Path) -> str:
    """A drawing without what differs from processor to processor: names of parts, the last digits of numbers."""
    text = re.sub(r"\b[a-z][0-9a-f]{10}\b", "part", path.read_text(encoding="utf-8"))
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.2f}", text)


def test_the_committed_page_is_what_was_measured(tmp_path):
    assert (BOOK / "comparison.md").read_text(encoding="utf-8") == comparison.page(tmp_path), "run `make bench`"
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(path.name for path in (BOOK / "_static").glob("peers-*.svg"))
    for name in drawn:
        assert strokes(tmp_path / name) == strokes(BOOK / "_static" / name), name


def test_everything_measured_is_on_the_page_once():
    text = (BOOK / "comparison.md").read_text(encoding="utf-8")
    assert "{{" not in text
    measurements = [row for where in ("cpu", "cuda") for row in comparison.measured(f"peers-{where}")["measurements"]]
    rows = [line for line in text.split("\n") if line.startswith("| ")]
    for found in measurements:
        cells = [comparison.milliseconds(one["ms"]) for one in found["contenders"].values()]
        assert any(" | ".join(cells) in line for line in rows), found["what"]
    assert len(rows) == len(measurements) + text.count("\n|---|")


def test_what_the_page_says_of_a_gpu_was_measured():
    rows = comparison.measured("peers-cuda")["measurements"]
    alone = "dotformer, products alone"
    several = [row["contenders"] for row in rows if alone in row["contenders"]]
    shares = [row[alone]["ms"] / row["dotformer"]["ms"] for row in several]
    assert (round(100 * min(shares)), round(100 * max(shares))) == (23, 29)
    ways = [row for row in rows if row["what"].startswith("attention") and row["size"].endswith("× 4096")]
    whole, causal = (row["contenders"]["dotformer"]["ms"] for row in ways)
    assert causal < 0.9 * whole  # what the mask hides is not computed


def test_what_the_page_says_of_one_product_and_of_the_loss_was_measured():
    rows = comparison.measured("peers-cpu")["measurements"]
    kinds = [[row["contenders"] for row in rows if row["what"] == what] for what in ("training step", "products")]
    for layers, step, alone in zip((4, 4, 8, 12), *kinds, strict=True):
        gained = layers * (alone["dotformer"]["ms"] - alone["one product"]["ms"])
        assert gained < 0.01 * step["dotformer"]["ms"]
    for row in rows:
        if row["what"] == "cross-entropy":
            assert row["contenders"]["dotformer"]["ratio_quartiles"][1] < 1
    for row in rows:
        if row["what"].endswith("all to one length") and "batch 32" in row["size"]:
            assert round(row["contenders"]["CTranslate2"]["ratio"], 1) == 0.4


def test_a_table_shows_times_and_ratios(rows):
    head, rule, first, second = comparison.table(rows)
    assert head == "|  | dotformer | torch | ratio |"
    assert rule == "|---|---:|---:|---:|"
    assert first == "| greedy: batch\u00a01 | 100 | 400 | **0.25** 0.25\u2060–\u20600.25 |"
    assert second == "| beam\u00a04: batch\u00a032 | 300 | 200 | **1.50** 1.50\u2060–\u20601.50 |"


def test_what_a_row_lacks_stays_empty(rows):
    rows[1]["contenders"]["dotformer, products alone"] = rows[1]["contenders"]["torch"]
    _, _, first, second = comparison.table(rows)
    assert first.split("|")[4].strip() == "" and second.split("|")[4].strip() == "200"


def test_what_all_rows_share_is_said_once():
    rows = [row("generation, greedy", size, 1, 2) for size in ("D 8, V 9, batch 1", "D 8, V 9, batch 2")]
    assert comparison.common(rows) == ["D 8", "V 9"]
    assert comparison.labels(rows) == ["greedy: batch 1", "greedy: batch 2"]
    assert comparison.common(rows[:1]) == [] and comparison.labels(rows[:1]) == ["greedy: D 8, V 9, batch 1"]


@pytest.mark.parametrize(("time", "shown"), [(0.12345, "0.123"), (9.999, "10.0"), (99.4, "99.4"), (1030.2, "1,030")])
def test_times_have_three_digits(time, shown):
    assert comparison.milliseconds(time) == shown


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (2.0, "**Met in all 2 rows.** The largest ratio is 1.50."),
        (1.5, "**Met in 1 of 2 rows.** The largest ratio is 1.50, for *beam 4: batch 32*."),
        (1.0, "**Met in 1 of 2 rows.** The largest ratio is 1.50, for *beam 4: batch 32*."),
        (0.1, "**Met in 0 of 2 rows.** The largest ratio is 1.50, for *beam 4: batch 32*."),
    ],
)
def test_whether_a_target_is_met(rows, target, says):
    assert comparison.verdict(rows, target) == says


def test_a_figure_is_the_same_each_time_and_told_in_words(rows, tmp_path):
    comparison.book_style()
    words = comparison.figure(rows, tmp_path / "a.svg", 0.5)
    assert words.endswith("greedy: batch 1, dotformer 0.25; beam 4: batch 32, dotformer 1.50.")
    comparison.figure(rows, tmp_path / "b.svg", 0.5)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
