"""Tokenizers on the disk, and what a tokenizer's parts must be."""

import json
from collections.abc import Iterable, Sequence
from operator import index
from pathlib import Path

from dotformer.support.files import replacing

Merges = Sequence[tuple[int, int]]


def checked(merges: Merges, special_tokens: Sequence[str]) -> tuple[list[tuple[int, int]], tuple[str, ...]]:
    """Merges and special tokens as a list of pairs of int and a tuple of strings.

    Raises ValueError, which names what is wrong, unless they make a tokenizer: merge n joins two of the symbols 0 to
    255 + n, no pair twice, into symbol 256 + n, of at most 10,000 bytes (33 merges of a symbol with itself would fill
    the memory); special tokens are different strings, at least three.
    """
    merges, special_tokens = [(index(left), index(right)) for left, right in merges], tuple(special_tokens)
    names = {name for name in special_tokens if isinstance(name, str)}
    if len(names) < max(3, len(special_tokens)):
        raise ValueError(
            "special tokens must be different strings, beginning with padding, begin and end, not"
            f" {list(special_tokens)}"
        )
    lengths = [1] * 256  # of each symbol, in bytes
    for n, (left, right) in enumerate(merges):
        if not 0 <= left < len(lengths) > right >= 0:
            raise ValueError(f"merge {n} joins {left} and {right}, but only 0 to {len(lengths) - 1} exist by then")
        lengths.append(lengths[left] + lengths[right])
        if lengths[-1] > 10_000:
            raise ValueError(f"symbol {len(lengths) - 1} is over 10,000 bytes")
    if len(set(merges)) < len(merges):
        raise ValueError("a pair is merged twice")
    return merges, special_tokens


def check_training(texts: Iterable[str], vocab_size: int, smallest: int) -> None:
    """Raise an error unless `texts` are several and `vocab_size` is at least the `smallest` that there is."""
    if isinstance(texts, str):
        raise TypeError("texts must be several strings, not one string")
    if index(vocab_size) < smallest:
        raise ValueError(f"vocab_size {vocab_size} has no room for 256 bytes and {smallest - 256} special tokens")


def checked_tokens(tokens: Iterable[int], vocab_size: int) -> list[int]:
    """Token numbers as int. Raises ValueError, which names it, for one that is not below `vocab_size`."""
    tokens = [index(token) for token in tokens]
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise ValueError(f"token {token} is not one of 0 to {vocab_size - 1}")
    return tokens


def write_tokenizer(path: str | Path, merges: Merges, special_tokens: Sequence[str], symbols: Sequence[bytes]) -> None:
    """Write a tokenizer as JSON, a line a merge with the symbol that it makes, for people; all of it or nothing.

    `symbols` are all of the tokenizer's, the 256 bytes first.
    """
    texts = [symbol.decode(errors="backslashreplace") for symbol in symbols[256:]]
    lines = [json.dumps([*pair, text], ensure_ascii=False) for pair, text in zip(merges, texts, strict=True)]
    content = (
        f'{{"tokenizer": "byte-pair encoding",\n"special_tokens": {json.dumps(special_tokens, ensure_ascii=False)},\n'
        '"merges": [\n' + ",\n".join(lines) + "\n]}\n"
    )
    with replacing(path) as draft:
        draft.write_text(content, encoding="utf-8")


def read_tokenizer(path: str | Path) -> tuple[list[tuple[int, int]], tuple[str, ...]]:
    """The merges and the special tokens that `write_tokenizer` wrote. Raises ValueError when the file is another."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["tokenizer"] != "byte-pair encoding":
            raise ValueError(f"it says {content['tokenizer']!r}")
        return checked([(left, right) for left, right, _ in content["merges"]], content["special_tokens"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a saved tokenizer: {error}") from error
