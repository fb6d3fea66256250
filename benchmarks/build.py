"""What building and testing the book costs, beside its targets: `make costs`. Exits with 1 if a target is missed.

Seconds are those of processors (user and system, of all processes that a command starts), since the clock's depend on
what else a machine does; those of a command that must be over soon are the clock's.
"""

import ctypes
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "_build", "__pycache__", "*.ipynb", ".*_cache", ".hypothesis")
IMAGE = re.compile(r'src="[^"]*?(_images/[^"]+)"')
MEGABYTE = 1e6
PYTEST = (sys.executable, "-m", "pytest", "-q")
ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of Linux: processes whose parents have ended become ours, and are counted

Row = tuple[str, float, str, float]  # what is measured, its value, the unit, and the value it must not exceed


def seconds(command: Iterable[str], folder: Path = ROOT, **environment: str) -> tuple[float, float]:
    """The processors' and the clock's seconds of a command; what it says is shown only if it fails, which ends all."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    result = subprocess.run(
        list(command), cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - start
    with suppress(ChildProcessError):
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{result.stdout[-4000:]}{result.stderr[-4000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, took


def weave_from_nothing() -> float:
    """The processors' seconds to weave all chapters in a copy of the project that has no notebook."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
        return seconds([sys.executable, "-m", "literate", "weave"], copy)[0]


def notebooks() -> Iterator[tuple[str, float]]:
    """Each notebook, and the processors' seconds that testing it takes."""
    for path in sorted((ROOT / "book/notebooks").glob("*.ipynb")):
        yield path.stem, seconds([*PYTEST, "--nbval-lax", str(path)], OMP_NUM_THREADS="1")[0]


def biggest_notebook() -> tuple[str, float]:
    """The biggest woven notebook and its bytes."""
    sizes = ((path.name, path.stat().st_size) for path in (ROOT / "book/notebooks").glob("*.ipynb"))
    return max(sizes, key=itemgetter(1))


def biggest_page() -> tuple[str, float]:
    """The heaviest rendered page and its bytes, with its images and without the assets that all pages share."""
    site = ROOT / "_build/html"
    return max(((page.name, page_bytes(site, page)) for page in (site / "book").rglob("*.html")), key=itemgetter(1))


def page_bytes(site: Path, page: Path) -> int:
    """The bytes of a page and of each image in it."""
    images = set(IMAGE.findall(page.read_text(encoding="utf-8")))
    return page.stat().st_size + sum((site / image).stat().st_size for image in images)


def measure() -> Iterator[Row]:
    """Every row of the table, as soon as it is known. The book is built once first, so that nothing is stale."""
    seconds(["make", "book"])
    yield "make book, nothing stale", seconds(["make", "book"])[0], "s", 5
    yield "make test", seconds(["make", "test"])[0], "s", 720
    fast, clock = seconds(["make", "test", "FAST=1"])
    yield "make test FAST=1", fast, "s", 240
    yield "make test FAST=1, by the clock", clock, "s", 120
    first = [*PYTEST, "-n", "2", "--dist", "loadscope", "tests/book/test_chapters.py", "tests/reference"]
    yield "lint, structure, reference, by the clock", seconds(first, OMP_NUM_THREADS="1")[1], "s", 60
    yield "feared defects", seconds([*PYTEST, "tests/mutants"], OMP_NUM_THREADS="1")[0], "s", 60
    taken = dict(notebooks())
    for stem, took in taken.items():
        yield f"notebook {stem}", took, "s", 60
    yield "notebooks over 30 s", sum(took > 30 for took in taken.values()), "", 4
    yield "weave all chapters from nothing", weave_from_nothing(), "s", 360
    for kind, (name, size) in (("notebook", biggest_notebook()), ("page", biggest_page())):
        yield f"biggest {kind}, {name}", size / MEGABYTE, "MB", 1


def main() -> int:
    """Measure, print each row when it is known, and return 1 if a target was missed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    missed = 0
    print(f"{'':44}  {'measured':>10}  {'target':>8}")
    for name, value, unit, target in tqdm(measure(), desc="measuring", leave=False, disable=not sys.stderr.isatty()):
        missed += value > target
        tqdm.write(f"{name:44}  {value:7.2f} {unit:2}  {target:5} {unit:2}{'  missed' * (value > target)}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
