"""The command line: what it refuses, and that one check covers everything."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--check alone checks all three"),
        (["press"], "invalid choice"),
        (["weave", "-j", "0"], "not a positive number: 0"),
        (["index", "03_softmax"], "index takes no chapters"),
        (["tangle", "--check", "07_nothing"], "no chapter 07_nothing; there are 03_softmax"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_why(folder, capsys, arguments, message):
    folder.chapter("03_softmax", "")
    with pytest.raises(SystemExit) as ended:
        folder.literate(*arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_error_in_a_chapter_is_one_line_and_1(folder, capsys):
    folder.chapter("03_softmax", '# %% tags=["plott"]\nx = 1')
    assert folder.literate("weave") == 1
    errors = capsys.readouterr().err
    assert errors.startswith("chapters/03_softmax.py:4: unknown tag 'plott'") and errors.count("\n") == 1


def test_one_check_covers_tangle_weave_and_index(folder, capsys):
    folder.chapter("03_softmax", '# %% tags=["export"] module="softmax"\ndef softmax(x):\n    """Shares."""\n')
    assert folder.literate("--check") == 1
    errors = capsys.readouterr().err
    for expected in ("dotformer/softmax.py: missing", "03_softmax.ipynb: never woven", "book/names.md: missing"):
        assert expected in errors


def test_a_configuration_that_is_not_yaml_is_one_line(folder, capsys):
    folder.chapter("03_softmax", "")
    folder.write("_config.yml", "repository: [")
    folder.write(
        "book/notebooks/03_softmax.ipynb",
        '{"metadata": {"dotformer": {"executed": 1, "outputs": 2}}, "nbformat": 4, "nbformat_minor": 5, "cells": []}',
    )
    assert folder.literate("weave", "--check") == 1
    assert capsys.readouterr().err.startswith("_config.yml is not YAML")
