"""What all tests share: the root of the project, the book built once a run, a browser, and hypothesis profiles."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import Phase, settings
from playwright.sync_api import sync_playwright

from tests.chromium import launch

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"

settings.register_profile("thorough", deadline=None, derandomize=True)
# for the mutants: is there a failure at all? A smallest example of it is not looked for.
settings.register_profile(
    "quick", deadline=None, derandomize=True, max_examples=30, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "thorough"))

os.environ.setdefault("MPLBACKEND", "agg")

collect_ignore = ["fixtures"]
MINUTES = ("tests/book/test_mutants.py", "tests/browser/", "tests/torchrun/", "book/notebooks/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes minutes, so that in the end no worker waits long for another."""
    items.sort(key=lambda item: not item.nodeid.startswith(MINUTES))


def pytest_configure(config) -> None:
    """Keep what the user has set for matplotlib and IPython out of the tests, and of the kernels that nbval starts."""
    os.environ["MATPLOTLIBRC"] = os.devnull
    os.environ.pop("PYTHONSTARTUP", None)
    settings_folder = tempfile.TemporaryDirectory(prefix="ipython-", ignore_cleanup_errors=True)
    os.environ["IPYTHONDIR"] = settings_folder.name
    config.add_cleanup(settings_folder.cleanup)


def build_book(source: Path, output: Path) -> subprocess.CompletedProcess:
    """Render the book in `source` as `make book` does, from nothing, into `output`/_build."""
    command = [sys.executable, Path(sys.executable).with_name("jupyter-book"), "build", "-W", "-n", "--keep-going"]
    return subprocess.run(
        [*command, "--path-output", output, source], capture_output=True, text=True, timeout=300, check=False
    )


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
