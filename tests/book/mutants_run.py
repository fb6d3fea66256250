"""Run the reference tests against each mutant, in one process: `python -m tests.book.mutants_run RESULTS`.

The working folder is a copy of the project, which the mutants change; RESULTS is written as JSON, a mutant's name to
pytest's exit code and the test that failed. In the end all tests that failed are run without a mutant, and must pass.
The test that noticed a mutant last time (`noticed_by.json`) is asked first, and the others only when it does not fail.
One process, since importing PyTorch takes longer than most of these runs.
"""

import ast
import json
import sys
from pathlib import Path

import pytest

from tests.book.mutants import AS_IT_IS, MUTANTS, Mutant

FRESH = ("dotformer", "tests.reference")
NOTICED_BY = json.loads(Path(__file__).with_name("noticed_by.json").read_text(encoding="utf-8"))
NAMESAKES = {"attention": "torch_attention"}  # by_hand's module of that name has the plain test file


class Failed:
    """Remembers the test that failed."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for each phase of each test."""
        if report.failed:
            self.name = report.nodeid


def reference_tests(*paths: str) -> tuple[int, str]:
    """Pytest's exit code on the dotformer that lies here now, up to the first failure in `paths`, and what failed."""
    for name in [name for name in sys.modules if name.startswith(FRESH)]:
        del sys.modules[name]
    options = ["-x", "-q", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options += ["-p", "no:unraisableexception"]  # it collects garbage for longer than most of these runs take
    failed = Failed()
    return int(pytest.main([*options, *paths], [failed])), failed.name


def planted(mutant: Mutant) -> tuple[int, str]:
    """As `reference_tests`, on the module's own tests with one mutant planted; -1 if it is not found exactly once.

    Its own are the file that has its name, or that the mutant names, and, in by_hand, what all functions there must do.
    """
    path = Path("dotformer", *mutant.module.split(".")).with_suffix(".py")
    source = path.read_text(encoding="utf-8")
    code = ast.unparse(ast.parse(source))
    if code.count(mutant.right) != 1:
        return -1, ""
    path.write_text(code.replace(mutant.right, mutant.wrong), encoding="utf-8")
    try:
        name = mutant.tests or NAMESAKES.get(mutant.module, mutant.module.rpartition(".")[2])
        shared = ["tests/reference/test_inputs.py"] if mutant.module.startswith("by_hand.") else []
        if mutant.key in NOTICED_BY:
            found = reference_tests(NOTICED_BY[mutant.key])
            if found[0] == pytest.ExitCode.TESTS_FAILED:
                return found
        return reference_tests(f"tests/reference/test_{name}.py", *shared)
    finally:
        path.write_text(source, encoding="utf-8")


if __name__ == "__main__":
    found = {mutant.key: planted(mutant) for mutant in MUTANTS}
    found[AS_IT_IS] = reference_tests(*sorted({test for _, test in found.values() if test}))
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
