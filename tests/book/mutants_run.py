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


def reference_tests(*files: str) -> int:
    """Pytest's exit code on the dotformer that lies here now, up to the first failure; all files if none is named."""
    for name in [name for name in sys.modules if name.startswith(FRESH)]:
        del sys.modules[name]
    options = ["-x", "-q", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return int(pytest.main([*options, *(files or ["tests/reference"])]))


def planted(mutant: Mutant) -> int:
    """Pytest's exit code with one mutant planted; -1 if the mutant is not found exactly once.

    Tests of the module, and of what all functions do, run first and nearly always notice: then no others are collected.
    """
    path = Path("dotformer", *mutant.module.split(".")).with_suffix(".py")
    source = path.read_text(encoding="utf-8")
    code = ast.unparse(ast.parse(source))
    if code.count(mutant.right) != 1:
        return -1
    path.write_text(code.replace(mutant.right, mutant.wrong), encoding="utf-8")
    try:
        stem = mutant.module.rpartition(".")[2]
        own = reference_tests(f"tests/reference/test_{stem}.py", "tests/reference/test_inputs.py")
        return reference_tests() if own == pytest.ExitCode.OK else own
    finally:
        path.write_text(source, encoding="utf-8")


if __name__ == "__main__":
    codes = {AS_IT_IS: reference_tests()} | {mutant.key: planted(mutant) for mutant in MUTANTS}
    Path(sys.argv[1]).write_text(json.dumps(codes), encoding="utf-8")
