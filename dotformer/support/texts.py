"""Texts on their way to a model: whether one fits, and its sentences, each with the line on which it begins."""

import re
from typing import Any

BLOCK = re.compile(r"\S.*?(?=\n[^\S\n]*\n|\Z)", re.DOTALL)  # up to an empty line
SENTENCE = re.compile(r"\S.*?(?:[.!?][\"')\]’”]*(?=\s+[^\sa-z])|\Z)", re.DOTALL)


def passages(text: str, longest: int = 100) -> list[tuple[int, str]]:
    """The sentences of a text, each with the number of the line on which it begins, from 1.

    A sentence ends with . ! or ? before a space and what is no small letter, or at an empty line. Of one with more than
    `longest` words each `longest` are a passage. Spaces and line ends become one space.
    """
    found, line, seen = [], 1, 0
    for block in BLOCK.finditer(text):
        for sentence in SENTENCE.finditer(text, block.start(), block.end()):
            line, seen = line + text.count("\n", seen, sentence.start()), sentence.start()
            words = sentence.group().split()
            found += [(line, " ".join(words[n : n + longest])) for n in range(0, len(words), longest)]
    return found


def fitting_tokens(tokenizer: Any, text: str, longest: int) -> list[int]:
    """The tokens of a text, with a space before its first word; none if it is nothing but space.

    Raises ValueError when they are more than `longest`. A text that is far too long is not even cut up, because that
    takes the square of its longest word.
    """
    text = text.strip()
    few = len(text.encode()) <= longest * max(map(len, tokenizer.symbols))
    tokens = tokenizer.encode(f" {text}") if text and few else []
    if not few or len(tokens) > longest:
        raise ValueError(f"more than the {longest} tokens that fit")
    return tokens
