"""Runs tests against a copy of the project in which one module of dotformer is another, each time in a fork.

A fork, since importing PyTorch takes longer than most of these runs, and since what goes round for ever can be ended.
"""

import ast
import compileall
import gc
import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("dotformer", "classroom", "configs", "book/models", "tests", "pyproject.toml")
OURS = ("dotformer", "tests", "classroom", "literate", "benchmarks")
OPTIONS = ["-x", "-q", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:nbval"]
OPTIONS += ["-p", "no:unraisableexception"]  # it collects garbage for longer than most of these runs take


class FirstFailure:
    """Remembers the test that failed."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for each phase of each test."""
        if report.failed:
            self.name = report.nodeid


class Copy:
    """A copy of the project in a temporary folder, removed at the end of the context."""

    def __enter__(self) -> "Copy":
        self.folder = tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True)
        self.root = Path(self.folder.name)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, self.root / name)
        # compiled files that hold good by content: a mutant may be as long, and written in the same second
        compileall.compile_dir(self.root, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.cleanup()

    def path(self, module: str) -> Path:
        """The file of a module of dotformer, given without that name."""
        return self.root.joinpath("dotformer", *module.split(".")).with_suffix(".py")

    def code(self, module: str) -> str:
        """A module's code as it is in the project."""
        return (ROOT / self.path(module).relative_to(self.root)).read_text(encoding="utf-8")

    def failure(self, module: str, code: str, tests: Sequence[str], seconds: int = 60) -> str:
        """The first of the tests to fail when the module holds `code`; empty if they pass.

        "no end" if they take longer than that; a module that cannot be imported is named itself. Raises ValueError when
        there is no such test.
        """
        path = self.path(module)
        path.write_text(code, encoding="utf-8")
        try:
            return run(self.root, tests, seconds)
        finally:
            path.write_text(self.code(module), encoding="utf-8")


def run(root: Path, tests: Sequence[str], seconds: int) -> str:
    """As `Copy.failure`, of the project as it lies in `root`."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with suppress(BaseException):
            os.write(writing, verdict(root, tests).encode())
        os._exit(0)
    os.close(writing)
    previous = signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(seconds)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)
    os.waitpid(child, 0)
    if not said:
        return "no end"
    code, _, name = said.partition(" ")
    if int(code) not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        raise ValueError(f"pytest exits with {code}: is there no test {' '.join(tests)}?")
    return "" if int(code) == pytest.ExitCode.OK else name or "it cannot be imported"


def verdict(root: Path, tests: Sequence[str]) -> str:
    """Pytest's exit code and the test that failed, in a process that then ends."""
    os.chdir(root)
    sys.path[:0] = [str(root)]
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONPATH": str(root), "HYPOTHESIS_PROFILE": "quick"}
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    failed = FirstFailure()
    return f"{int(pytest.main([*OPTIONS, *tests], [failed]))} {failed.name}"


def import_libraries(files: Iterable[Path]) -> None:
    """Import here what the files import and is not ours. No fork has to do so then, or to look for garbage in it."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    nodes = [node for tree in trees for node in tree.body]
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for name in sorted(names):
        if name.partition(".")[0] not in OURS:
            with suppress(ImportError):
                importlib.import_module(name)
    gc.freeze()
