"""What all tests share: the root of the project, the book built once a run, a browser, and hypothesis profiles."""

import gc
import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import Phase, settings
from playwright.sync_api import sync_playwright

from literate.render import BUILD
from tests.chromium import launch

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"

# The examples are the same on every run, so that many find no more the second time: the weekly run takes new ones.
settings.register_profile("everyday", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=400)
# for the mutants: is there a failure at all? A smallest example of it is not looked for.
settings.register_profile(
    "quick",
    deadline=None,
    derandomize=True,
    max_examples=30,
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "everyday"))

os.environ.setdefault("MPLBACKEND", "agg")

collect_ignore = ["fixtures"]
# Fast and telling first: xdist deals files out in this order, and stops dealing where something has failed (Makefile).
ORDER = ("tests/book/test_chapters.py", "tests/reference/", "tests/mutants/", "tests/command/", "tests/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files: lint and structure, then the reference tests, then the rest."""
    items.sort(key=lambda item: next((n for n, start in enumerate(ORDER) if item.nodeid.startswith(start)), len(ORDER)))


def pytest_collection_finish() -> None:
    """Take what has been imported out of the search for garbage, which would walk through it again and again."""
    gc.freeze()


def pytest_configure(config) -> None:
    """Keep what the user has set for matplotlib and IPython out of the tests, and of the kernels that nbval starts."""
    os.environ["MATPLOTLIBRC"] = os.devnull
    os.environ.pop("PYTHONSTARTUP", None)
    settings_folder = tempfile.TemporaryDirectory(prefix="ipython-", ignore_cleanup_errors=True)
    os.environ["IPYTHONDIR"] = settings_folder.name
    config.add_cleanup(settings_folder.cleanup)


def build_book(source: Path, output: Path) -> subprocess.CompletedProcess:
    """Render the book in `source` as `make book` does, from nothing, into `output`/_build."""
    command = [*BUILD, "--path-output", output, source]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the project."""
    return ROOT


@pytest.fixture(scope="session")
def build(tmp_path_factory, worker_id) -> subprocess.CompletedProcess:
    """The clean build of the book, as a finished process; all workers share one (its folder: `site`)."""
    shared = shared_folder(tmp_path_factory, worker_id)
    with FileLock(shared / "lock"):
        done = shared / "done"
        if not done.exists():
            result = build_book(ROOT, shared)
            (shared / "log").write_text(result.stdout + result.stderr, encoding="utf-8")
            done.write_text(str(result.returncode), encoding="utf-8")
        log = (shared / "log").read_text(encoding="utf-8")
        return subprocess.CompletedProcess([], int(done.read_text(encoding="utf-8")), stdout=log)


@pytest.fixture(scope="session")
def site(build, tmp_path_factory, worker_id) -> Path:
    """The folder of the rendered book."""
    if build.returncode != 0:
        pytest.fail(f"the book was not built:\n{build.stdout[-3000:]}", pytrace=False)
    return shared_folder(tmp_path_factory, worker_id) / "_build" / "html"


@pytest.fixture(scope="module")  # no longer: Playwright runs once at a time, and asyncio does not run beside it
def browser():
    """A running Chromium; without one, the tests that want it are skipped."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


def shared_folder(tmp_path_factory, worker_id: str) -> Path:
    """A folder that all workers of this run see."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "book"
    folder.mkdir(exist_ok=True)
    return folder
