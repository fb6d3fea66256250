"""What building and testing the book costs, beside its targets: `make costs`. Exits with 1 if a target is missed."""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "_build", "__pycache__", "*.ipynb", ".*_cache", ".hypothesis")
IMAGE = re.compile(r'src="[^"]*?(_images/[^"]+)"')
MEGABYTE = 1e6

Row = tuple[str, float, str, float]  # what is measured, its value, the unit, and the value it must stay under


def seconds(command: Iterable[str], folder: Path = ROOT) -> float:
    """How long a command takes; its output is shown only if it fails, and then ends the benchmark."""
    start = time.perf_counter()
    result = subprocess.run(list(command), cwd=folder, capture_output=True, text=True, check=False)
    took = time.perf_counter() - start
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{result.stdout[-4000:]}{result.stderr[-4000:]}")
    return took


def weave_from_nothing() -> float:
    """How long it takes to weave all chapters in a copy of the project that has no notebook."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
        return seconds([sys.executable, "-m", "literate", "weave"], copy)


def biggest_notebook() -> tuple[str, float]:
    """The biggest woven notebook and its bytes."""
    notebooks = (ROOT / "book/notebooks").glob("*.ipynb")
    return max(((path.name, path.stat().st_size) for path in notebooks), key=itemgetter(1))


def biggest_page() -> tuple[str, float]:
    """The heaviest rendered page and its bytes, with its images and without the assets that all pages share."""
    site = ROOT / "_build/html"
    return max(((page.name, page_bytes(site, page)) for page in (site / "book").rglob("*.html")), key=itemgetter(1))


def page_bytes(site: Path, page: Path) -> int:
    """The bytes of a page and of each image in it."""
    images = set(IMAGE.findall(page.read_text(encoding="utf-8")))
    return page.stat().st_size + sum((site / image).stat().st_size for image in images)


def measure() -> Iterable[Row]:
    """Every row of the table, as soon as it is known. The book is built once first, so that nothing is stale."""
    seconds(["make", "book"])
    yield "make book, nothing stale", seconds(["make", "book"]), "s", 20
    yield "weave all chapters from nothing", weave_from_nothing(), "s", 360
    yield "make test", seconds(["make", "test"]), "s", 840
    for kind, (name, size) in (("notebook", biggest_notebook()), ("page", biggest_page())):
        yield f"biggest {kind}, {name}", size / MEGABYTE, "MB", 1


def main() -> int:
    """Measure, print the table, and return 1 if a target was missed."""
    rows = list(tqdm(measure(), total=5, desc="measuring", leave=False))
    width = max(len(name) for name, *_ in rows)
    print(f"{'':{width}}  {'measured':>10}  {'target':>10}")
    for name, value, unit, target in rows:
        verdict = "" if value < target else "  missed"
        print(f"{name:{width}}  {value:7.2f} {unit:2}  < {target:5} {unit:2}{verdict}")
    return int(any(value >= target for _, value, _, target in rows))


if __name__ == "__main__":
    sys.exit(main())
