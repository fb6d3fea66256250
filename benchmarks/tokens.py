"""The tokenizer on Multi30k: `DOTFORMER_DATA=folder python -m benchmarks.tokens`.

How it cuts a few texts, and how many tokens a word of new text needs, at several sizes of the vocabulary. The result
goes to book/measurements/tokens.json, which chapter 10 shows.
"""

import gzip
import os
import sys
from collections import Counter
from pathlib import Path

from benchmarks.results import save
from dotformer.tokens import BPETokenizer, pretokenize

PATTERN = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
VOCAB_SIZE = 8000
SIZES = (300, 1000, 2000, 4000, 8000, 16_000, 32_000)
LANGUAGES = ("en", "de", "fr")  # of French, no text is learnt from
EXAMPLE = " Baufahrzeug"  # a word of the test text
RARE = 100  # fewer uses than that, in the text that is learnt from
TEXTS = (
    " The dog bites the man, and the man drinks his tea.",
    " Der Hund beißt den Mann, und der Mann trinkt seinen Tee.",
    " Straßenbahnhaltestelle",
    " 12345",
    " tea",
    "tea",
    " TEA",
)


def lines(folder: str, name: str) -> list[str]:
    """The sentences of a gzipped file, each with a space before it, as a word within a text has."""
    text = gzip.decompress(Path(folder, f"{name}.gz").read_bytes()).decode()
    return [" " + line for line in text.splitlines()]


def tokens_per_word(tokenizer: BPETokenizer, sentences: list[str]) -> float:
    """How many tokens a word between spaces needs on average."""
    return sum(len(tokenizer.encode(s)) for s in sentences) / sum(len(s.split()) for s in sentences)


def by_size(train: list[str], tests: dict[str, list[str]]) -> list[dict[str, object]]:
    """For each size of the vocabulary: tokens a word of each language's test text, share of rare tokens, texts cut."""
    largest = BPETokenizer.train(train, max(SIZES))
    smallest = len(BPETokenizer([]))
    rows = []
    for size in SIZES:
        tokenizer = BPETokenizer(largest.merges[: size - smallest])
        uses = Counter(token for sentence in train for token in tokenizer.encode(sentence))
        learnt = range(smallest, len(tokenizer))
        rows.append(
            {
                "vocab_size": size,
                "tokens_per_word": {language: tokens_per_word(tokenizer, test) for language, test in tests.items()},
                "rare": sum(uses[token] < RARE for token in learnt) / len(learnt),
                "cut": {text: tokenizer.tokenize(text) for text in TEXTS},
            }
        )
    return rows


def longest_first(tokenizer: BPETokenizer, word: str) -> list[str]:
    """A word cut into the longest symbols that fit, from left to right, as WordPiece does."""
    rest, symbols, tokens = word.encode(), set(tokenizer.symbols), []
    while rest:
        end = next(end for end in range(len(rest), 0, -1) if rest[:end] in symbols)
        tokens.append(rest[:end].decode(errors="backslashreplace"))
        rest = rest[end:]
    return tokens


def two_orders(tokenizer: BPETokenizer, tests: dict[str, list[str]]) -> dict[str, object]:
    """How many words of the test text are cut differently with the longest symbol first, and one of them."""
    words = {word for language in LANGUAGES[:2] for line in tests[language] for word in pretokenize(line)}
    cut = {word: tokenizer.tokenize(word) for word in words}
    several = [word for word in words if len(cut[word]) > 1]
    differ = [word for word in several if longest_first(tokenizer, word) != cut[word]]
    example = {"in order": cut[EXAMPLE], "longest first": longest_first(tokenizer, EXAMPLE)}
    return {"words": len(several), "differ": len(differ), "example": example}


def main() -> None:
    """Measure and save, or say what is missing."""
    folder = os.environ.get("DOTFORMER_DATA", "")
    try:
        sentences = lines(folder, "train.en") + lines(folder, "train.de")
        tests = {language: lines(folder, f"test_2016_flickr.{language}") for language in LANGUAGES}
    except FileNotFoundError as error:
        sys.exit(f"DOTFORMER_DATA must name a folder with the text of Multi30k, train.en.gz and others: {error}")
    ours = BPETokenizer.train(sentences, VOCAB_SIZE)
    result = {
        "sentences": len(sentences),
        "vocab_size": VOCAB_SIZE,
        "sizes": by_size(sentences, tests),
        "orders": two_orders(ours, tests),
    }
    save("tokens", result)


if __name__ == "__main__":
    main()
