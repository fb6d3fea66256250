"""The reference tests notice every planted defect, by themselves: no other test is run against the copy."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.book.mutants import AS_IT_IS, MUTANTS, Mutant
from tests.book.mutants_run import NOTICED_BY

COPIED = ("dotformer", "tests", "pyproject.toml")


@pytest.fixture(scope="module")
def found(root, tmp_path_factory) -> dict[str, tuple[int, str]]:
    """What `mutants_run` finds in a copy of the project: for each mutant pytest's exit code and the test that failed.

    With DOTFORMER_NOTICED_BY set, the tests that noticed them are written to noticed_by.json.
    """
    copy = tmp_path_factory.mktemp("mutants")
    for name in COPIED:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    environment = os.environ | {"HYPOTHESIS_PROFILE": "quick", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = str(copy)
    command = [sys.executable, "-m", "tests.book.mutants_run", "codes.json"]
    result = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads((copy / "codes.json").read_text(encoding="utf-8"))
    if os.environ.get("DOTFORMER_NOTICED_BY"):
        noticed = {mutant.key: test for mutant in MUTANTS if (test := found[mutant.key][1])}
        (root / "tests/book/noticed_by.json").write_text(json.dumps(noticed, indent=1) + "\n", encoding="utf-8")
    return found


def test_without_a_defect_all_tests_that_noticed_one_pass(found):
    code, test = found[AS_IT_IS]
    assert code == pytest.ExitCode.OK, f"{test} failed"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.key)
def test_a_defect_is_noticed(found, mutant: Mutant):
    code, _ = found[mutant.key]
    assert code != -1, f"{mutant.right!r} is not found exactly once in dotformer.{mutant.module}"
    assert code == pytest.ExitCode.TESTS_FAILED


def test_no_defect_that_is_gone_is_said_to_be_noticed():
    assert NOTICED_BY.keys() <= {mutant.key for mutant in MUTANTS}
