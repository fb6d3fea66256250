"""A text in passages: its sentences, each with the line on which it begins."""

import re

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
