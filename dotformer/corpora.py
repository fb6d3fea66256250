"""Tangled from chapters/11_training.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from num2words import num2words


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
