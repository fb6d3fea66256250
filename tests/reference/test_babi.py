"""The bAbI tasks: questions and the facts behind them, in small files made here, and the corpus made of them."""

import hashlib
import re
from importlib.resources import files

import pytest

from dotformer.data import babi as module
from dotformer.data.babi import FOLDERS, TASKS, Story, babi, read_stories

TEXT = """1 Mary got the milk there.
2 Mary went to the hall.
3 Where is the milk? \thall\t1 2
4 John went to the attic.
5 Who is in the attic?\tJohn\t4
1 The hall is east of the attic.
2 How do you go from the attic to the hall?\te,e\t1
"""


def test_a_question_comes_first_and_the_newest_fact_next():
    first, second, third = read_stories(TEXT, 2)
    assert first.source == "Where is the milk?\n Mary went to the hall.\n Mary got the milk there."
    assert first[1:] == ("hall", (2, 1), 2)
    assert second.source.split("\n") == [
        "Who is in the attic?",
        " John went to the attic.",
        " Mary went to the hall.",
        " Mary got the milk there.",
    ]
    assert third == Story("How do you go from the attic to the hall?\n The hall is east of the attic.", "e,e", (1,), 2)


def test_evidence_has_the_numbers_of_the_lines_that_the_file_names():
    named = [line.split("\t")[2].split() for line in TEXT.splitlines() if "\t" in line]
    said = dict(line.split(" ", 1) for line in TEXT.splitlines()[:5])
    for story, facts in list(zip(read_stories(TEXT, 1), named, strict=True))[:2]:
        lines = story.source.split("\n ")
        assert [lines[n] for n in story.evidence] == [said[fact] for fact in facts]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("Mary went away.", "neither a fact nor a question: 'Mary went away.'"),
        ("", "neither a fact nor a question: ''"),
        ("7 ", "neither a fact nor a question: '7 '"),
        ("7 Who?\tMary", r"neither a fact nor a question: '7 Who\?\\tMary'"),
        ("7 Who?\tMary\t3", "names a fact that is not before it"),  # a question
        ("7 Who?\tMary\t7", "names a fact that is not before it"),
        ("7 Who?\tMary\tx", "names a fact that is not before it"),
    ],
)
def test_a_line_that_is_wrong_is_named(line, says):
    text = "".join(TEXT.splitlines(keepends=True)[:5]) + line + "\n"
    with pytest.raises(ValueError, match=f"^line 6 (is|) ?{says}"):
        list(read_stories(text, 1))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files of two tasks, of one question for each part, where dotformer looks for them and with their sums."""
    sums = []
    for task in (1, 2):
        for part in ("train", "valid", "test"):
            path = tmp_path / f"qa{task}_{part}.txt"
            path.write_text(f"1 Here is {part}.\n2 What?\t{part} {task}\t1\n", encoding="utf-8")
            sums.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()} en-valid-10k/{path.name}\n")
    (tmp_path / "babi.sha256").write_text("".join(sums), encoding="utf-8")
    monkeypatch.setattr(module, "files", lambda package: tmp_path)
    monkeypatch.setenv("DOTFORMER_DATA", str(tmp_path))
    return tmp_path


def test_each_part_has_the_questions_of_all_tasks(folder):
    corpus = babi("2 1")
    assert [s.target for s in corpus.train] == ["train 2", "train 1"]
    assert [s.target for s in corpus.validation] == ["valid 2", "valid 1"]
    assert [s.task for s in corpus.test] == [2, 1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tasks": "1 3"}, "there is no task 3 of size 10k"),
        ({"tasks": "1", "size": "1k"}, "there is no task 1 of size 1k"),
        ({"tasks": "one"}, "there is no task one of size 10k"),
        ({"size": "5k"}, "size must be one of 1k, 10k, not '5k'"),
    ],
)
def test_what_there_is_not_is_named(folder, options, says):
    with pytest.raises(ValueError, match=f"^{says}$"):
        babi(**options)


def test_a_file_that_is_another_is_refused(folder):
    with (folder / "qa2_valid.txt").open("a", encoding="utf-8") as file:
        file.write("3 And more.\n")
    with pytest.raises(ValueError, match=r"qa2_valid\.txt is not the file it should be"):
        babi("1 2")


def test_every_file_has_a_sum():
    lines = [line.split() for line in files("dotformer.data").joinpath("babi.sha256").read_text().splitlines()]
    assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256, _ in lines)
    wanted = {
        f"{folder}/qa{task}_{part}.txt"
        for size, folder in FOLDERS.items()
        for task in (TASKS.split() if size == "10k" else map(str, range(1, 21)))
        for part in ("train", "valid", "test")
    }
    assert {name for _, name in lines} == wanted
    assert len(lines) == len(wanted) == 117
    assert module.BABI.format(*lines[0][1].split("/")).endswith(f"tasks_1-20_v1-2/{lines[0][1]}")
