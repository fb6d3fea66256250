"""Docstrings to shorten: what comes after the first line, and the first line."""

import re
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from dotformer.data.corpora import Corpus, documentation
from dotformer.support.texts import passages

PACKAGES = "numpy scipy matplotlib sklearn sympy torch"  # all come with what the book and its tests are made with


class Summary(NamedTuple):
    """A text and its summary; the text's sentences, and the qualified name of what it is about."""

    source: str
    target: str
    sentences: tuple[str, ...]
    name: str

    @property
    def package(self) -> str:
        """The package it comes from."""
        return self.name.partition(".")[0]


def summaries(
    validation: int = 500,
    test: int = 500,
    longest: int = 300,
    seed: int = 0,
    packages: str = PACKAGES,
    unseen: str = "networkx",
) -> Corpus:
    """What docstrings of installed packages say, and the line that they begin with. See `summary`.

    No text and no summary is there twice, whatever its signs and capitals. In the test set, `test` pairs of the
    packages are followed by as many of another package, `unseen`. Nothing of the packages is imported. Raises
    ValueError when a package is missing or too few pairs are found.
    """
    pairs, seen = [], set()
    for name, text in documentation(f"{packages} {unseen}"):
        pair = summary(name, text, longest)
        if pair and seen.isdisjoint(sides := {words(pair.source), words(pair.target)}):
            seen |= sides
            pairs.append(pair)
    pairs = [pairs[n] for n in np.random.default_rng(seed).permutation(len(pairs))]
    corpus = Corpus.split([pair for pair in pairs if pair.package != unseen], validation, test)
    others = Corpus.split([pair for pair in pairs if pair.package == unseen], 0, test)
    return replace(corpus, test=corpus.test + others.test)


def summary(name: str, docstring: str, longest: int) -> Summary | None:
    """The first paragraph of a docstring, 3 to 20 words, and what comes after it; None where it does not sum that up.

    The text is as many sentences of three words or more as `longest` characters hold, up to the first doctest, without
    lines that only underline. A summary is shorter than its text, and not the first sentence of it.
    """
    first, _, rest = docstring.partition("\n\n")
    prose = re.sub(r"^[^\w\n]+$", "", rest.partition(">>>")[0], flags=re.MULTILINE)
    sentences = [sentence for _, sentence in passages(prose) if len(sentence.split()) > 2]
    ends = accumulate(len(sentence) + 1 for sentence in sentences)
    sentences = [sentence for sentence, end in zip(sentences, ends, strict=True) if end <= longest + 1]
    source, target = " ".join(sentences), " ".join(first.split())
    is_line = 3 <= len(target.split()) <= 20 and not re.search(r":$|>>>|---|===", target)
    if is_line and len(target) < len(source) and words(target) != words(sentences[0]):
        return Summary(source, target, tuple(sentences), name)
    return None


def words(text: str) -> str:
    """The words of a text in small letters, without its signs."""
    return " ".join(re.findall(r"\w+", text.lower()))
