"""Tangled from chapters/10_tokens.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import index
from pathlib import Path
from typing import Self

import regex
import torch
from torch import Tensor, nn

from dotformer.support.files import replacing


def words_of(text: str) -> list[str]:
    """Cut a text into words, numbers, signs and spaces, which joined give it back.

    A single space in front belongs to the word after it.

    Defined in chapter 10, "Bytes, so that nothing is unknown".
    """
    pattern = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return regex.findall(pattern, text)


def merge_pair(word: Sequence[int], pair: tuple[int, int], made: int) -> list[int]:
    """Replace each `pair` in a word, from left to right, by the symbol `made`.

    Defined in chapter 10, "The definition".
    """
    merged, i = [], 0
    while i < len(word):
        if tuple(word[i : i + 2]) == pair:
            merged.append(made)
            i += 2
        else:
            merged.append(word[i])
            i += 1
    return merged


def learn_merges(texts: Iterable[str], count: int) -> list[tuple[int, int]]:
    """Byte-pair encoding: the pairs to merge, most frequent first, at most `count`.

    Symbols 0 to 255 are bytes; merge number i makes symbol 256 + i. Of pairs that
    are equally frequent, the one with the smaller numbers comes first. Stops early
    when no pair is left. After Sennrich, Haddow and Birch (2016).

    Defined in chapter 10, "The definition".
    """
    frequency = Counter(word for text in texts for word in words_of(text))
    words = [list(word.encode()) for word in frequency]
    times = list(frequency.values())
    pairs, places = Counter(), defaultdict(set)
    for place, word in enumerate(words):
        for pair in pairwise(word):
            pairs[pair] += times[place]
            places[pair].add(place)
    queue = [(-n, pair) for pair, n in pairs.items()]
    heapq.heapify(queue)
    merges = []
    while queue and len(merges) < count:
        n, pair = heapq.heappop(queue)
        if pairs[pair] != -n:  # it has changed since it was put there
            if pairs[pair]:
                heapq.heappush(queue, (-pairs[pair], pair))
            continue
        made = 256 + len(merges)
        merges.append(pair)
        touched = set()
        for place in places.pop(pair):
            before = words[place]
            after = words[place] = merge_pair(before, pair, made)
            for old in pairwise(before):
                pairs[old] -= times[place]
            for new in pairwise(after):
                pairs[new] += times[place]
                if made in new:
                    places[new].add(place)
                    touched.add(new)
        for new in touched:
            heapq.heappush(queue, (-pairs[new], new))
    return merges


class BPETokenizer:
    """From text to token numbers and back, by bytes and learned merges.

    Numbers begin with the special tokens: padding, begin, end, and others if
    wanted. Then come the 256 bytes, so that nothing is unknown, then the merges.
    Text never becomes a special token, whatever stands in it.

    Defined in chapter 10, "The definition".
    """

    def __init__(
        self,
        merges: Sequence[tuple[int, int]],
        special_tokens: Sequence[str] = ("<pad>", "<begin>", "<end>"),
    ) -> None:
        names = [name for name in special_tokens if isinstance(name, str)]
        if len(names) < 3 or len(set(names)) < len(special_tokens):
            raise ValueError(
                "special tokens must be different strings, beginning with padding,"
                f" begin and end, not {list(special_tokens)}"
            )
        self.special_tokens = tuple(special_tokens)
        self.pad_id, self.begin_id, self.end_id = range(3)
        self.merges = [(index(left), index(right)) for left, right in merges]
        self.symbols = [bytes([n]) for n in range(256)]
        for left, right in self.merges:
            if not 0 <= left < len(self.symbols) > right >= 0:
                raise ValueError(
                    f"merge {len(self.symbols) - 256} joins {left} and {right}, but"
                    f" only 0 to {len(self.symbols) - 1} exist by then"
                )
            self.symbols.append(self.symbols[left] + self.symbols[right])
            if len(self.symbols[-1]) > 10_000:
                raise ValueError(
                    f"symbol {len(self.symbols) - 1} is over 10,000 bytes"
                )
        self._ranks = {pair: n for n, pair in enumerate(self.merges)}
        if len(self._ranks) < len(self.merges):
            raise ValueError("a pair is merged twice")
        self._known: dict[str, list[int]] = {}

    def __len__(self) -> int:
        """How many token numbers there are."""
        return len(self.special_tokens) + len(self.symbols)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        vocab_size: int,
        special_tokens: Sequence[str] = ("<pad>", "<begin>", "<end>"),
    ) -> Self:
        """Learn merges from texts until there are `vocab_size` tokens, or no pairs.

        Raises ValueError when that is less than the special tokens and the bytes,
        and TypeError for a single text.
        """
        if isinstance(texts, str):
            raise TypeError("texts must be several strings, not one string")
        count = index(vocab_size) - 256 - len(special_tokens)
        if count < 0:
            raise ValueError(
                f"vocab_size {vocab_size} has no room for 256 bytes and"
                f" {len(special_tokens)} special tokens"
            )
        return cls(learn_merges(texts, count), special_tokens)

    def encode(self, text: str, marks: bool = False) -> list[int]:
        """The token numbers of a text, with `marks` between begin and end.

        Time grows with the square of the longest word. Raises UnicodeEncodeError
        for what UTF-8 cannot write, half of a surrogate pair.
        """
        shift = len(self.special_tokens)
        tokens = [n + shift for word in words_of(text) for n in self._split(word)]
        return [self.begin_id, *tokens, self.end_id] if marks else tokens

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token numbers; special tokens are left out.

        Bytes that are no text become U+FFFD. Raises ValueError for a number that
        is no token.
        """
        return b"".join(self._bytes(index(n)) for n in tokens).decode(
            errors="replace"
        )

    def pieces(self, text: str) -> list[str]:
        """What a text is cut into, to look at; bytes that are no text as \\xNN."""
        return [
            self._bytes(n).decode(errors="backslashreplace")
            for n in self.encode(text)
        ]

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as JSON, a line a merge; all of it or nothing."""
        lines = [
            json.dumps(
                [*pair, self.symbols[256 + n].decode(errors="backslashreplace")],
                ensure_ascii=False,
            )
            for n, pair in enumerate(self.merges)
        ]
        special = json.dumps(self.special_tokens, ensure_ascii=False)
        text = (
            f'{{"tokenizer": "byte-pair encoding",\n"special_tokens": {special},\n'
            + '"merges": [\n'
            + ",\n".join(lines)
            + "\n]}\n"
        )
        with replacing(path) as draft:
            draft.write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. Raises ValueError when the file is another."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["tokenizer"] != "byte-pair encoding":
                raise ValueError(f"it says {content['tokenizer']!r}")
            merges = [(left, right) for left, right, _ in content["merges"]]
            return cls(merges, content["special_tokens"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not a saved tokenizer: {error}") from error

    def _split(self, word: str) -> list[int]:
        if word in self._known:
            return self._known[word]
        symbols, never = list(word.encode()), len(self.merges)
        while len(symbols) > 1:
            pair = min(pairwise(symbols), key=lambda p: self._ranks.get(p, never))
            if pair not in self._ranks:
                break
            symbols = merge_pair(symbols, pair, 256 + self._ranks[pair])
        if len(self._known) < 100_000:  # words to remember
            self._known[word] = symbols
        return symbols

    def _bytes(self, token: int) -> bytes:
        if not 0 <= token < len(self):
            raise ValueError(f"token {token} is not one of 0 to {len(self) - 1}")
        symbol = token - len(self.special_tokens)
        return self.symbols[symbol] if symbol >= 0 else b""


def pad_batch(rows: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """Rows of token numbers, filled up to the longest: (B, T), int64.

    Raises ValueError when there is no row or one is empty, and TypeError when they
    are no whole numbers.

    Defined in chapter 10, "Batches that waste little".
    """
    empty = [n for n, row in enumerate(rows) if not len(row)]
    if not len(rows) or empty:
        which = (
            f"rows {empty} of {len(rows)} are empty" if empty else "there is no row"
        )
        raise ValueError(which)
    tensors = [torch.as_tensor(row) for row in rows]
    if any(tensor.is_floating_point() for tensor in tensors):
        raise TypeError("rows must hold whole numbers")
    return nn.utils.rnn.pad_sequence(
        [tensor.long() for tensor in tensors],
        batch_first=True,
        padding_value=pad_id,
    )


def token_batches(
    lengths: Sequence[int],
    max_tokens: int,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Group sentences by length into batches of at most `max_tokens` places.

    Padding counts: a batch of B sentences takes B times its longest. Returns the
    sentences' numbers, each once, batches in random order. Raises ValueError when
    one sentence alone is too long.

    Defined in chapter 10, "Batches that waste little".
    """
    lengths = [int(n) for n in lengths]
    if lengths and max(lengths) > max_tokens:
        raise ValueError(
            f"a sentence of {max(lengths)} tokens does not fit into {max_tokens}"
        )
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for n in sorted(
        shuffled, key=lambda n: lengths[n]
    ):  # equal lengths stay shuffled
        if not batches or lengths[n] * (len(batches[-1]) + 1) > max_tokens:
            batches.append([])
        batches[-1].append(n)
    order = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[n] for n in order]
