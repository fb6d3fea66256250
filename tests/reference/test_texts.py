"""A text cut into passages: nothing is lost, and each is where it says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dotformer.support.texts import passages

TEXTS = st.lists(
    st.sampled_from(["one", "Two", "3.5", "e.g.", "End.", "Why?", '"So!"', " ", "\t", "\n", "\n\n", "\r\n"])
)


@given(TEXTS.map(" ".join), st.integers(1, 4))
def test_every_word_is_in_one_passage_which_begins_on_its_line(text, longest):
    found = passages(text, longest)
    assert " ".join(passage for _, passage in found).split() == text.split()
    words = [(n, word) for n, line in enumerate(text.split("\n"), 1) for word in line.split()]
    place, lines = 0, []
    for line, passage in found:
        own = passage.split()
        assert 1 <= len(own) <= longest
        lines.append((line, words[place][0]))
        place += len(own)
    assert all(said <= line for said, line in lines)  # of a long sentence, the line on which it begins
    assert longest < 4 or lines == [] or lines[0][0] == lines[0][1]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" \n\n\t", []),
        ("One. Two\nthree! Four", [(1, "One."), (1, "Two three!"), (2, "Four")]),
        ('He said "no." Then (later?) "Yes."', [(1, 'He said "no."'), (1, "Then (later?)"), (1, '"Yes."')]),
        ("see e.g. the 3.5 of v. 2. next", [(1, "see e.g. the 3.5 of v."), (1, "2. next")]),
        ("\n\nno end\n \nnext.\nSo", [(3, "no end"), (5, "next."), (6, "So")]),
        ("Äpfel. Öl! ßo?", [(1, "Äpfel."), (1, "Öl!"), (1, "ßo?")]),
    ],
)
def test_sentences_end_where_people_would_say(text, found):
    assert passages(text) == found


def test_a_long_sentence_is_several_passages():
    assert [(line, len(text.split())) for line, text in passages("\n" + "a " * 250)] == [(2, 100), (2, 100), (2, 50)]
