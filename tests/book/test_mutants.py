"""The reference tests notice every planted defect, by themselves: no other test is run against the copy."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.book.mutants import AS_IT_IS, MUTANTS, Mutant

COPIED = ("dotformer", "tests", "pyproject.toml")


@pytest.fixture(scope="module")
def exit_codes(root, tmp_path_factory) -> dict[str, int]:
    """Pytest's exit code for each mutant, and for each module as it is, run in a copy of the project."""
    copy = tmp_path_factory.mktemp("mutants")
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    (copy / "tests/reference/test_similarity.py").open("a").write(
        f"\n\ndef test_this_is_the_copy():\n    import dotformer\n\n    assert {str(copy)!r} in dotformer.__file__\n"
    )
    environment = os.environ | {"HYPOTHESIS_PROFILE": "quick", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = str(copy)
    command = [sys.executable, "-m", "tests.book.mutants_run", "codes.json"]
    result = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads((copy / "codes.json").read_text(encoding="utf-8"))


def test_without_a_defect_the_reference_tests_pass(exit_codes):
    assert exit_codes[AS_IT_IS] == pytest.ExitCode.OK


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.key)
def test_a_defect_is_noticed(exit_codes, mutant: Mutant):
    code = exit_codes[mutant.key]
    assert code != -1, f"{mutant.right!r} is not found exactly once in dotformer.{mutant.module}"
    assert code == pytest.ExitCode.TESTS_FAILED
