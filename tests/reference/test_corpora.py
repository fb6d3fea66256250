"""corpora, whose pairs are derived a second time."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from num2words import num2words

from dotformer.corpora import Corpus, Pair, number_words

SMALL = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
VALUES = {word: n for n, word in enumerate(f"{SMALL} eighteen nineteen".split(), 1)}
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
VALUES |= {word: 10 * n for n, word in enumerate(TENS.split(), 2)}


def number_of(words):
    """The number that English words name, below a million."""
    thousands, rest = 0, 0
    for word in words.split():
        if word == "thousand":
            thousands, rest = rest, 0
        elif word == "hundred":
            rest *= 100
        elif word != "and":
            rest += VALUES[word]
    return 1000 * thousands + rest


@pytest.fixture(scope="module")
def numbers():
    return number_words(1500, 60, 40)


def parts(corpus):
    """The three parts of a corpus."""
    return corpus.train, corpus.validation, corpus.test


def together(corpus):
    """All pairs of a corpus."""
    return [pair for part in parts(corpus) for pair in part]


# numbers


def test_every_pair_names_one_number_in_both_languages(numbers):
    seen = set()
    for pair in together(numbers):
        number = number_of(pair.source)
        assert 1 <= number <= 999_999
        assert pair.target.replace(" ", "") == num2words(number, lang="de")
        assert pair.source == num2words(number, lang="en").replace("-", " ").replace(",", "")
        assert pair.alignment == ()
        seen.add(number)
    assert len(seen) == 1600  # the parts share none


def test_german_is_cut_into_its_parts(numbers):
    words = {word for pair in numbers.train for word in pair.target.split()}
    german = "eins ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf sechzehn siebzehn zwanzig dreißig"
    german += " vierzig fünfzig sechzig siebzig achtzig neunzig hundert tausend und"
    assert words == {*german.split()}
    assert {"ein und vierzig", "vier zehn"} <= {pair.target for pair in together(numbers)}


def test_the_parts_are_as_large_as_wanted(numbers):
    assert list(map(len, parts(numbers))) == [1500, 60, 40]
    assert list(map(len, parts(number_words(3, 0, 2)))) == [3, 0, 2]
    assert list(map(len, parts(number_words(0, 1, 0)))) == [0, 1, 0]


def test_there_are_many_short_numbers(numbers):
    digits = [len(str(number_of(pair.source))) for pair in together(numbers)]
    shares = [digits.count(n) / len(digits) for n in range(1, 7)]
    assert all(share > 0 for share in shares)
    assert sum(shares[:4]) > 0.3  # of all numbers, a hundredth
    assert all(0.2 < share < 0.4 for share in shares[3:])
    assert len({len(str(number_of(pair.source))) for pair in numbers.test}) >= 4


def test_a_seed_fixes_the_numbers(numbers):
    torch.manual_seed(5)
    again = number_words(1500, 60, 40, seed=0)
    assert again == numbers
    other = number_words(1500, 60, 40, seed=1)
    assert all(a != b for a, b in zip(parts(other), parts(numbers), strict=True))
    assert [number_of(p.source) for p in numbers.train] != sorted(number_of(p.source) for p in numbers.train)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [((0, 0, 0), r"^0 different numbers wanted"), ((10**6, 0, 0), r"^1000000 different numbers wanted, \d+ found$")],
)
def test_numbers_that_are_not_there_are_named(sizes, says):
    with pytest.raises(ValueError, match=says):
        number_words(*sizes)


# parts


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_the_first_pairs_are_set_aside(train, validation, test):
    pairs = [Pair(str(n), str(-n)) for n in range(train + validation + test)]
    corpus = Corpus.split(pairs, validation, test)
    assert list(map(len, parts(corpus))) == [train, validation, test]
    assert corpus.test + corpus.validation + corpus.train == pairs


@pytest.mark.parametrize(("validation", "test"), [(3, 3), (-1, 2), (2, -1)])
def test_parts_that_cannot_be_are_named(validation, test):
    says = rf"^5 pairs leave no {validation} to choose by and {test} to judge by$"
    with pytest.raises(ValueError, match=says):
        Corpus.split([Pair("a", "b")] * 5, validation, test)
