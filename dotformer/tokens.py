"""Tangled from chapters/10_tokens.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import Self

import regex
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from dotformer.support import tokenizer_files as files
from dotformer.support.checks import check_rows


def pretokenize(text: str) -> list[str]:
    """Cut a text into words, numerals, other characters and white space.

    The first three keep one space before them.

    Defined in chapter 10, "Before any merge, cut into words".
    """
    pattern = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return regex.findall(pattern, text)


def merge_pair(word: Sequence[int], pair: tuple[int, int], new: int) -> list[int]:
    """Replace each `pair` of symbols in a word, from left to right, by one `new`.

    Defined in chapter 10, "Learning the merges".
    """
    merged: list[int] = []
    for symbol in word:
        if merged and (merged[-1], symbol) == pair:
            merged[-1] = new
        else:
            merged.append(symbol)
    return merged


def learn_merges(texts: Iterable[str], count: int) -> list[tuple[int, int]]:
    """Byte-pair encoding: the pairs to merge, most frequent first, at most `count`.

    Symbols 0 to 255 are bytes; merge n makes symbol 256 + n. Of pairs that are
    equally frequent, the one with the smaller numbers comes first. Stops early when
    no pair is left. After Sennrich, Haddow and Birch (2016).

    Defined in chapter 10, "Learning the merges".
    """
    frequencies = Counter(word for text in texts for word in pretokenize(text))
    words = [list(word.encode()) for word in frequencies]
    counts = list(frequencies.values())
    pair_counts, words_with = Counter(), defaultdict(set)
    for n, word in enumerate(words):
        for pair in pairwise(word):
            pair_counts[pair] += counts[n]
            words_with[pair].add(n)
    queue = [(-times, pair) for pair, times in pair_counts.items()]
    heapq.heapify(queue)
    merges: list[tuple[int, int]] = []
    while queue and len(merges) < count:
        minus_times, pair = heapq.heappop(queue)
        if (
            pair_counts[pair] != -minus_times
        ):  # it has changed since it was put there
            if pair_counts[pair]:
                heapq.heappush(queue, (-pair_counts[pair], pair))
            continue
        new, new_pairs = 256 + len(merges), set()
        merges.append(pair)
        for n in words_with.pop(pair):
            for old_pair in pairwise(words[n]):
                pair_counts[old_pair] -= counts[n]
            words[n] = merge_pair(words[n], pair, new)
            for new_pair in pairwise(words[n]):
                pair_counts[new_pair] += counts[n]
                if new in new_pair:
                    words_with[new_pair].add(n)
                    new_pairs.add(new_pair)
        for new_pair in new_pairs:
            heapq.heappush(queue, (-pair_counts[new_pair], new_pair))
    return merges


class BPETokenizer:
    """From text to token IDs and back, by bytes and learned merges.

    The IDs begin with the special tokens: padding, begin, end, and others if
    wanted. No text is encoded as one of them. Then come the 256 bytes, so that
    nothing is unknown, then the merges. Raises ValueError for merges or special
    tokens that are invalid.

    Defined in chapter 10, "The tokenizer".
    """

    def __init__(
        self,
        merges: Sequence[tuple[int, int]],
        special_tokens: Sequence[str] = ("<pad>", "<bos>", "<eos>"),
    ) -> None:
        self.merges, self.special_tokens = files.checked(merges, special_tokens)
        self.pad_id, self.bos_id, self.eos_id = range(3)
        self.symbols = [bytes([n]) for n in range(256)]
        for left, right in self.merges:
            self.symbols.append(self.symbols[left] + self.symbols[right])
        self.vocabulary = [b""] * len(self.special_tokens) + self.symbols
        self._ranks = {pair: n for n, pair in enumerate(self.merges)}
        self._cache: dict[str, list[int]] = {}

    def __len__(self) -> int:
        """How many token IDs there are."""
        return len(self.vocabulary)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Self:
        """Learn merges until there are `vocab_size` tokens, or no pair is left."""
        smallest = len(cls([]))
        files.check_training(texts, vocab_size, smallest)
        return cls(learn_merges(texts, vocab_size - smallest))

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The token IDs. UnicodeEncodeError: half of a surrogate pair."""
        shift, words = len(self.special_tokens), pretokenize(text)
        tokens = [n + shift for word in words for n in self._merge(word)]
        if add_special_tokens:
            return [self.bos_id, *tokens, self.eos_id]
        return tokens

    def _merge(self, word: str) -> list[int]:
        if word in self._cache:
            return self._cache[word]
        symbols = list(word.encode())
        # the learnt pairs that are in this word
        while pairs := self._ranks.keys() & pairwise(symbols):
            pair = min(pairs, key=self._ranks.get)
            symbols = merge_pair(symbols, pair, 256 + self._ranks[pair])
        if len(self._cache) < 100_000:
            self._cache[word] = symbols
        return symbols

    def tokenize(self, text: str) -> list[str]:
        """The tokens of a text, to look at; bytes that are not UTF-8 as \\xNN."""
        symbols = [self.vocabulary[token] for token in self.encode(text)]
        return [symbol.decode(errors="backslashreplace") for symbol in symbols]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text; what is not UTF-8 becomes �. ValueError for no token ID."""
        tokens = files.checked_tokens(tokens, len(self))
        joined = b"".join(self.vocabulary[token] for token in tokens)
        return joined.decode(errors="replace")

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as JSON, one merge a line; all of it or nothing."""
        files.write_tokenizer(path, self.merges, self.special_tokens, self.symbols)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. Raises ValueError for any other file."""
        return cls(*files.read_tokenizer(path))


def pad_batch(rows: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """Rows filled up to the longest: (B, T), int64. ValueError: one is empty.

    Defined in chapter 10, "Batches with little padding".
    """
    # none may be empty; index() rejects what is not a whole number
    check_rows(rows)
    tensors = [torch.tensor([index(token) for token in row]) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=pad_id)


def token_batches(
    lengths: Sequence[int],
    max_tokens: int,
    generator: torch.Generator | None = None,
    others: Sequence[int] | None = None,
) -> list[list[int]]:
    """Group sentences by length into batches of at most `max_tokens` tokens.

    Padding counts: a batch of B sentences has B times its longest. Returns for each
    batch where in `lengths` its sentences are, batches in random order. `others`, a
    number each, sorts those of one length (for pairs: the difference of the two
    sides). ValueError: one alone is too long.

    Defined in chapter 10, "Batches with little padding".
    """
    lengths = [int(length) for length in lengths]
    if max(lengths, default=0) > max_tokens:
        raise ValueError(f"{max(lengths)} tokens exceed max_tokens {max_tokens}")
    others = [0] * len(lengths) if others is None else others
    # so that sentences of one length come in random order
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for n in sorted(shuffled, key=lambda n: (lengths[n], others[n])):
        # with n: B = rows so far + 1, T = lengths[n], the longest so far
        if not batches or lengths[n] * (len(batches[-1]) + 1) > max_tokens:
            batches.append([])
        batches[-1].append(n)
    order = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[k] for k in order]
