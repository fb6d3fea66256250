"""Run the reference tests against each mutant, in one process: `python -m tests.book.mutants_run RESULTS`.

The working folder is a copy of the project, which the mutants change; RESULTS is written as JSON, a mutant's name to
pytest's exit code. One process, since importing PyTorch takes longer than most of these runs.
"""

import ast
import json
import sys
from pathlib import Path

import pytest

from tests.book.mutants import AS_IT_IS, MUTANTS, Mutant

FRESH = ("dotformer", "tests.reference")
NAMESAKES = {"attention": "torch_attention"}  # by_hand's module of that name has the plain test file


def reference_tests(*paths: str) -> int:
    """Pytest's exit code on the dotformer that lies here now, up to the first failure among the tests of `paths`."""
    for name in [name for name in sys.modules if name.startswith(FRESH)]:
        del sys.modules[name]
    options = ["-x", "-q", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist"]
    options += ["-p", "no:unraisableexception"]  # it collects garbage for longer than most of these runs take
    return int(pytest.main([*options, *paths]))


def planted(mutant: Mutant) -> int:
    """Pytest's exit code on the module's own tests with one mutant planted; -1 if it is not found exactly once.

    Its own are the file that has its name, or that the mutant names, and, in by_hand, what all functions there must do.
    """
    path = Path("dotformer", *mutant.module.split(".")).with_suffix(".py")
    source = path.read_text(encoding="utf-8")
    code = ast.unparse(ast.parse(source))
    if code.count(mutant.right) != 1:
        return -1
    path.write_text(code.replace(mutant.right, mutant.wrong), encoding="utf-8")
    try:
        name = mutant.tests or NAMESAKES.get(mutant.module, mutant.module.rpartition(".")[2])
        shared = ["tests/reference/test_inputs.py"] if mutant.module.startswith("by_hand.") else []
        return reference_tests(f"tests/reference/test_{name}.py", *shared)
    finally:
        path.write_text(source, encoding="utf-8")


if __name__ == "__main__":
    codes = {AS_IT_IS: reference_tests("tests/reference")} | {mutant.key: planted(mutant) for mutant in MUTANTS}
    Path(sys.argv[1]).write_text(json.dumps(codes), encoding="utf-8")
