"""XQuAD: questions about paragraphs, in a small file made here, and the sentence that has each answer."""

import hashlib
import json
from pathlib import Path

import pytest

from dotformer.data import xquad as module
from dotformer.data.text import decompressed
from dotformer.data.xquad import read_questions, xquad

KEPT = Path(__file__).parents[2].parent / "shared/data/xquad.en.json.gz"
CONTEXTS = [
    "Ada wrote  notes. They were\nlong! (Who \"read\" them?) Mr. Babbage did, in 1843. 'He said: well done.' And more",
    " One sentence, e.g. this one. ",
    "First line.\n\nSecond line.",
]
ANSWERS = {  # of each paragraph, with the number of the sentence
    0: [("Ada", 0), ("notes", 0), ("They", 1), ("were\nlong", 1), ("1843", 4), ("long! (Who", 1), ("more", 6)],
    1: [("One", 0), ("this one", 0)],
    2: [("line", 0), ("Second", 1), ("line.\n\nSecond", 0)],
}


def as_json(shift=0):
    """A file like SQuAD's, with one article for each paragraph; all answers are `shift` characters off."""
    articles = []
    for n, context in enumerate(CONTEXTS):
        questions = [
            {
                "id": f"{n}-{answer}",
                "question": f"Where is {answer}?",
                "answers": [{"text": answer, "answer_start": context.index(answer) + shift}],
            }
            for answer, _ in ANSWERS[n]
        ]
        articles.append({"paragraphs": [{"context": context, "qas": questions}]})
    return {"data": articles}


def test_the_sentences_are_the_paragraph_and_the_one_named_has_the_answer():
    questions, wanted = read_questions(json.dumps(as_json())), []
    for n, answers in ANSWERS.items():
        wanted += [(CONTEXTS[n], answer, number) for answer, number in answers]
    for question, (context, answer, number) in zip(questions, wanted, strict=True):
        assert question.text == f"Where is {answer}?" and question.answers == (answer,)
        assert " ".join(question.sentences) == " ".join(context.split())
        assert question.sentence == number and answer.split()[0] in question.sentences[number]
    assert questions[0].sentences[:4] == ("Ada wrote notes.", "They were long!", '(Who "read" them?)', "Mr.")
    assert len(questions[7].sentences) == 1 and questions[9].sentences == ("First line.", "Second line.")


def test_the_first_answer_decides():
    file = as_json()
    start = CONTEXTS[0].index("1843")
    file["data"][0]["paragraphs"][0]["qas"][0]["answers"].append({"text": "1843", "answer_start": start})
    file["data"][0]["paragraphs"][0]["qas"][4]["answers"].append({"text": "Ada", "answer_start": 0})
    questions = read_questions(json.dumps(file))
    assert questions[0][2:] == (("Ada", "1843"), 0) and questions[4][2:] == (("1843", "Ada"), 4)


@pytest.mark.parametrize("wrong", [[], [{"text": "Adam", "answer_start": 0}], [{"text": "Ada", "answer_start": 999}]])
def test_an_answer_that_is_not_there_is_named(wrong):
    file = as_json()
    file["data"][0]["paragraphs"][0]["qas"][1]["answers"] = wrong
    with pytest.raises(ValueError, match=r"^question 0-notes has no answer where the file says$"):
        read_questions(json.dumps(file))
    with pytest.raises(ValueError, match=r"^question 0-Ada has no answer"):
        read_questions(json.dumps(as_json(shift=1)))


def test_a_file_that_is_another_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "xquad.en.json"
    path.write_text(json.dumps(as_json()), encoding="utf-8")
    monkeypatch.setenv("DOTFORMER_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"xquad\.en\.json is not the file it should be"):
        xquad()
    monkeypatch.setattr(module, "XQUAD_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    assert xquad() == read_questions(path.read_text(encoding="utf-8"))


@pytest.mark.skipif(not KEPT.exists(), reason="XQuAD is not beside the checkout")
def test_xquad_itself(tmp_path, monkeypatch):
    (tmp_path / "xquad.en.json").write_bytes(decompressed(KEPT, KEPT.read_bytes()))
    monkeypatch.setenv("DOTFORMER_DATA", str(tmp_path))
    questions = xquad()
    assert len(questions) == 1190 and len({question.sentences for question in questions}) == 240
    for question in questions:
        [answer] = question.answers
        assert " ".join(answer.split()) in " ".join(question.sentences[question.sentence :])
        assert answer.split()[0] in question.sentences[question.sentence]
    assert sum(question.answers[0] not in question.sentences[question.sentence] for question in questions) == 15
