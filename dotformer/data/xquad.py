"""Questions about paragraphs of Wikipedia, with the sentence that has the answer: the English part of XQuAD."""

import json
from typing import NamedTuple

from dotformer.data.download import cached
from dotformer.support.texts import SENTENCE

XQUAD = "https://raw.githubusercontent.com/google-deepmind/xquad/7d30520/xquad.en.json"
XQUAD_SHA256 = "e4c57d1c9143aaa1c5d265ba5987a65f4e69528d2a98f29d6e75019b10344f29"


class Question(NamedTuple):
    """A question, the sentences of its paragraph, what answers it, and the number of the sentence that has the answer.

    The number counts from 0. It is that of the sentence in which the first answer begins.
    """

    text: str
    sentences: tuple[str, ...]
    answers: tuple[str, ...]
    sentence: int


def read_questions(text: str) -> list[Question]:
    """The questions in a file like SQuAD's.

    A sentence ends as in `support.texts.passages`; spaces and line ends become one space. Raises ValueError, with the
    question's id, for one that has no answer, or one that does not stand where the file says.
    """
    found = []
    for paragraph in (paragraph for article in json.loads(text)["data"] for paragraph in article["paragraphs"]):
        context, matches = paragraph["context"], list(SENTENCE.finditer(paragraph["context"]))
        sentences = tuple(" ".join(match.group().split()) for match in matches)
        for question in paragraph["qas"]:
            answers = [(answer["text"], answer["answer_start"]) for answer in question["answers"]]
            if not answers or not all(context[begin : begin + len(answer)] == answer for answer, begin in answers):
                raise ValueError(f"question {question['id']} has no answer where the file says")
            number = sum(match.start() <= answers[0][1] for match in matches) - 1
            found.append(Question(question["question"], sentences, tuple(answer for answer, _ in answers), number))
    return found


def xquad() -> list[Question]:
    """The 1,190 questions about 240 paragraphs that XQuAD has from SQuAD's development set, each with one answer.

    In English, CC BY-SA 4.0. Downloaded at first use (0.6 MB), unless DOTFORMER_DATA names a folder that has the file.
    For errors see `data.download.cached`. After Artetxe and others (2020).
    """
    return read_questions(cached("xquad", "XQuAD", XQUAD, XQUAD_SHA256).read_text(encoding="utf-8"))
