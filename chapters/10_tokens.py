# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 10. What is a token?
#
# The model of [chapter 9](09_decoder.ipynb) knew 32 words. Ask it about Zoë, and there is no number for her. At the end
# of this chapter there is a tokenizer that has a number for everything, since it begins with bytes, and that has learnt
# from text which bytes belong together. Given the same merges, it cuts text exactly as the library does that most
# published models come with.
#
# You need some Python (a queue, a class, files) and no mathematics. It takes about 35 minutes to read, and 35 more for
# the exercises.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. Encoder, decoder and output are built. This chapter adds the tokens, at the bottom of both sides."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=10)

# %% [markdown]
# ## Words are too many, letters are too few
#
# A model needs a number for each token, and a row of a table for each number. Two answers suggest themselves, and both
# fail.
#
# **A number for each word.** German writes numbers as single words: 21 is *einundzwanzig*, one-and-twenty. Here are the
# first 10,000, with a few hundred of them set aside.

# %%
import numpy as np
from num2words import num2words

spelled = [num2words(n, lang="de") for n in range(10_000)]
order = np.random.default_rng(0).permutation(10_000)
unseen, seen = [[spelled[n] for n in part] for part in (order[:500], order[500:])]

known = set(seen)
print(
    f"{len(known)} words known; {len(known & set(unseen))} of {len(unseen)} new ones among them"
)
print(
    f"letters: {len(set(''.join(seen)))} kinds, {np.mean([len(w) for w in seen]):.0f} a word"
)
assert not known & set(unseen)

# %% [markdown]
# With 9,500 number words in its vocabulary, a model by words cannot read a single one of the other 500, although
# nothing in them is new: *sieben*, *und*, *zwanzig* have all been there.
#
# **A number for each letter.** Then these 21 kinds suffice. But a word is now 32 tokens long on average, and attention
# costs the square of the length. Also, a letter means next to nothing, so the first layers must spell.
#
# We want tokens between the two: **subwords**, so that a frequent word is one token and a rare one is several.
#
# ## Merging, by hand
#
# **Byte-pair encoding** finds the subwords by counting. Start with letters. Count all pairs of neighbours. Make the
# most frequent pair a new symbol. Repeat.
#
# Take four words, with how often each occurs:
#
# > *tea* 4, *team* 3, *steam* 2, *eat* 3
#
# | pair | where | times |
# |---|---|---|
# | e a | tea 4, team 3, steam 2, eat 3 | **12** |
# | t e | tea 4, team 3, steam 2 | 9 |
# | a m | team 3, steam 2 | 5 |
# | a t | eat 3 | 3 |
# | s t | steam 2 | 2 |
#
# The first merge is *e a*, giving *ea*. Now the words read *t ea*, *t ea m*, *s t ea m*, *ea t*, and the pairs must be
# counted anew: *t ea* occurs 9 times, *ea m* 5, *ea t* 3, *s t* 2. The second merge is *t ea*, and *tea* is whole.
#
# **Predict first.** What are the third and the fourth merge?

# %% tags=["nbval-check-output"]
from collections import Counter
from itertools import pairwise

counts = {"tea": 4, "team": 3, "steam": 2, "eat": 3}
words = {word: list(word) for word in counts}
for step in range(1, 5):
    pairs = Counter()
    for word, symbols in words.items():
        for pair in pairwise(symbols):
            pairs[pair] += counts[word]
    (left, right), times = pairs.most_common(1)[0]
    print(f"merge {step}: {left} + {right}, {times} times:", end="  ")
    for symbols in words.values():
        i = 0
        while i < len(symbols) - 1:
            if (symbols[i], symbols[i + 1]) == (left, right):
                symbols[i : i + 2] = [left + right]
            i += 1
    print(",  ".join(" ".join(symbols) for symbols in words.values()))

# %% [markdown]
# *tea m*, five times, makes *team*; then *ea t* makes *eat*. *Steam* is *s team*, which is not how the word is built.
# The method knows what is frequent, and nothing else.
#
# To encode a *new* word, apply the merges in the order in which they were learnt. *Seat* begins as *s e a t*; *e a*
# merges, *t ea* finds nothing (the *t* comes after), *ea t* merges: *s eat*. A word that was not in the text, in two
# subwords that were.
#
# ## Bytes, so that nothing is unknown
#
# If we start with letters, a text with a letter that the training text did not have is still unknown. So start with
# **bytes**. Every text is stored as bytes, there are 256 of them, and UTF-8 spells everything:

# %% tags=["nbval-check-output"]
for text in ("tea", "Zoë", "茶", "🙂"):
    print(text, list(text.encode()))

# %% [markdown]
# An English letter is one byte, *ë* is two, the Chinese *tea* three, and the smile four. With bytes as the first 256
# symbols, no token for *unknown* is needed, and whatever UTF-8 can write comes back from its tokens as it was.
#
# Merges should not cross from one word into the next, or *of the* would become a token that helps with neither *of* nor
# *the*. So the text is first cut into words, each with the space before it, so that nothing is lost. This is called
# **pre-tokenization**. (In the pattern, `\p{L}` is any letter and `\p{N}` any digit of any script; the last two parts
# catch spaces.)

# %% tags=["export"] module="tokens"
import regex


def pretokenize(text: str) -> list[str]:
    """Cut a text into words, each with a space before it, punctuation and spaces."""
    pattern = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return regex.findall(pattern, text)


# %% tags=["nbval-check-output"]
print(pretokenize("A Lannister always pays his 2 debts!"))
assert (
    "".join(pretokenize("  two spaces\n and a tab\t."))
    == "  two spaces\n and a tab\t."
)

# %% [markdown]
# ## The definition
#
# Learning is what you did by hand, on bytes, with a faster way to count. After a merge, only the words that contained
# the pair are counted anew. A queue keeps the most frequent pair in front; since it cannot change an entry once it is
# in, an entry whose count is out of date goes back with the right one when it comes to the front.

# %% tags=["export"] module="tokens"
import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise


def merge_pair(word: Sequence[int], pair: tuple[int, int], new: int) -> list[int]:
    """Replace each `pair` of symbols in a word, from left to right, by one `new`."""
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


# %%
lines = [word for word, n in counts.items() for _ in range(n)]
merges = learn_merges(lines, count=4)
assert merges == [(101, 97), (116, 256), (257, 109), (256, 116)]  # as by hand


def learn_slowly(texts, count):
    """The loop from above, over bytes: counts everything anew at each step."""
    words = [list(w.encode()) for text in texts for w in pretokenize(text)]
    merges = []
    for made in range(256, 256 + count):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = [merge_pair(w, best, made) for w in words]
    return merges


assert learn_merges(seen[:300], 60) == learn_slowly(seen[:300], 60)

# %% [markdown]
# The tokenizer keeps the merges, and puts a few **special tokens** before the bytes: `<pad>` for padding, `<begin>` and
# `<end>` (other libraries write `<bos>` and `<eos>`, for the beginning and the end of a sequence). These stand for no
# text. They are numbers that only the program can write. (Two numberings meet here: *symbols* count from the bytes,
# *tokens* from the special tokens, so symbol 256 is token 259.)
#
# Its file is JSON, and `tokenizer_files`, an import, checks what it reads. It writes the whole file or nothing, since a
# file cut short by a full disk or a power cut is worse than none.

# %% tags=["export"] module="tokens"
from operator import index
from pathlib import Path
from typing import Self

from dotformer.support import tokenizer_files as files


class BPETokenizer:
    """From text to token numbers and back, by bytes and learned merges.

    Numbers begin with the special tokens: padding, begin, end, and others if
    wanted. No text is made one of them. Then come the 256 bytes, so that nothing is
    unknown, then the merges. Raises ValueError for what makes no tokenizer.
    """

    def __init__(
        self,
        merges: Sequence[tuple[int, int]],
        special_tokens: Sequence[str] = ("<pad>", "<begin>", "<end>"),
    ) -> None:
        self.merges, self.special_tokens = files.checked(merges, special_tokens)
        self.pad_id, self.begin_id, self.end_id = range(3)
        self.symbols = [bytes([n]) for n in range(256)]
        for left, right in self.merges:
            self.symbols.append(self.symbols[left] + self.symbols[right])
        self.vocabulary = [b""] * len(self.special_tokens) + self.symbols
        self._ranks = {pair: n for n, pair in enumerate(self.merges)}
        self._cache: dict[str, list[int]] = {}

    def __len__(self) -> int:
        """How many token numbers there are."""
        return len(self.vocabulary)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Self:
        """Learn merges until there are `vocab_size` tokens (or no pairs) in all."""
        smallest = len(cls([]))
        files.check_training(texts, vocab_size, smallest)
        return cls(learn_merges(texts, vocab_size - smallest))

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The tokens of a text. UnicodeEncodeError: half of a surrogate pair."""
        shift, words = len(self.special_tokens), pretokenize(text)
        tokens = [n + shift for word in words for n in self._merge(word)]
        if add_special_tokens:
            return [self.begin_id, *tokens, self.end_id]
        return tokens

    def _merge(self, word: str) -> list[int]:
        if word in self._cache:
            return self._cache[word]
        symbols = list(word.encode())
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
        """The text of tokens; what is not UTF-8 is U+FFFD. ValueError: no token."""
        tokens = files.checked_tokens(tokens, len(self))
        joined = b"".join(self.vocabulary[token] for token in tokens)
        return joined.decode(errors="replace")

    def save(self, path: str | Path) -> None:
        """Write the tokenizer as JSON, a line a merge; all of it or nothing."""
        files.write_tokenizer(path, self.merges, self.special_tokens, self.symbols)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote. Raises ValueError when the file is another."""
        return cls(*files.read_tokenizer(path))


# %% [markdown]
# ## What it finds in German numbers
#
# Train it on the 9,500 numbers with 60 merges. Nobody tells it that *und* means *and*.

# %%
tokenizer = BPETokenizer.train(seen, vocab_size=3 + 256 + 60)
whole = [symbol.decode() for symbol in tokenizer.symbols[256:] if symbol.isascii()]
print(*whole)
for text in (
    "einundzwanzig",
    "siebenhundertdreiundachtzig",
    "Zoë trinkt 3 Tassen 茶",
):
    print(tokenizer.tokenize(text))
assert {"und", "hundert", "tausend", "sieben", "zig"} <= set(whole)
assert "und" in tokenizer.tokenize("siebenhundertdreiundachtzig")

# %% [markdown]
# It has found many parts of German number words, *hundert*, *tausend*, *und*, *zig*, and stepping stones such as
# *ertausend*. (Subwords with *ü* and *ß* are left out of the list; some end in the middle of a letter.) *Zwanzig* still
# falls into four; its merges come later. Zoë and the tea fall apart into letters and bytes, `\xc3` being how Python
# writes byte 195, and are there all the same.
#
# How many merges are right? Each one makes texts shorter and the embedding table longer. Count a token as *rare* if the
# 9,500 words use it less than 100 times.

# %%
sizes = [0, 20, 60, 120, 250, 500]
learnt = BPETokenizer.train(seen, vocab_size=3 + 256 + max(sizes))
lengths, uses = [], []
for size in sizes:
    smaller = BPETokenizer(learnt.merges[:size])
    lengths.append(np.mean([len(smaller.encode(word)) for word in unseen]))
    used = Counter(n for word in seen for n in smaller.encode(word))
    made = [used[3 + 256 + n] for n in range(size)]
    uses.append(np.mean([n < 100 for n in made]) if made else 0)
    print(
        f"{size:5} merges: {lengths[-1]:5.1f} tokens a word, {uses[-1]:4.0%} rare"
    )
assert (
    lengths[0] > 32 and lengths[2] < 6 and max(lengths[4:]) < 2.1 and uses[4] > 0.9
)

# %% tags=["plot"] mystnb={"image": {"alt": "Tokens per unseen number word against the number of merges, from 0 to 500. The curve falls steeply from 32 to under 6 within the first 60 merges, reaches 2 at 250 and stays there."}}
figure, axes = plt.subplots(figsize=(6, 3))
axes.plot(sizes, lengths, color=plots.BLUE, marker="o", ms=4)
axes.set(xlabel="merges", ylabel="tokens per word", ylim=(0, None))
plt.show()

# %% [markdown]
# The first 60 merges take a word from 32 tokens to fewer than 6. After 250 there is nothing more to gain: a number is
# two tokens, and a model sees nearly all of them less than a hundred times. (Some tokens are rare early on since they
# are stepping stones, as *hund* is for *hundert*.) Small corpora use a few thousand merges; the original transformer
# had about 37,000 tokens.

# %% tags=["quiz"]
quiz.number(
    "A tokenizer has 3 special tokens and 6,000 merges. How many token numbers are there, and so rows in the embedding table?",
    3 + 256 + 6000,
    tolerance=0.5,
    feedback="Yes: the special tokens, the 256 bytes, and one for each merge.",
    mistakes=[
        (
            6003,
            "The bytes have numbers too: there are 256, and they are why nothing is unknown.",
        ),
        (6256, "The special tokens are numbers as well."),
        (
            6000,
            "That counts the merges only. Each makes one symbol *more* than the 256 bytes and the special tokens.",
        ),
    ],
    otherwise="Special tokens, bytes, merges: add them up.",
)

# %% [markdown]
# ## Is it the same as the library's?
#
# The library `tokenizers`, written in Rust, is what most models use. Give it our merges, and both must cut every text
# in the same way, strange texts included.

# %%
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

shown = pre_tokenizers.ByteLevel.alphabet()  # a visible character for each byte
kept = [
    n for n in range(256) if 33 <= n <= 126 or 161 <= n <= 172 or 174 <= n <= 255
]
characters = {n: chr(n) for n in kept}
moved = [n for n in range(256) if n not in characters]
characters |= {n: chr(256 + place) for place, n in enumerate(moved)}


def as_characters(symbol):
    return "".join(characters[byte] for byte in symbol)


names = [as_characters(symbol) for symbol in tokenizer.symbols]
pattern = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
library = Tokenizer(
    models.BPE(
        vocab={name: n + 3 for n, name in enumerate(names)},
        merges=[(names[left], names[right]) for left, right in tokenizer.merges],
    )
)
library.pre_tokenizer = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)
assert set(shown) == set(characters.values())

strange = [
    "",
    " ",
    "a\n\n b",
    "Zoë 🙂 茶",
    "<end>",
    "x" * 50,
    "1.000,50 €",
    "ﬁ½Ⅷ\u0301",
]
for text in [*unseen, *strange]:
    assert tokenizer.encode(text) == library.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text
print(
    f"the same for {len(unseen) + len(strange)} texts, and all come back as they were"
)

# %% [markdown]
# ### How fast?
#
# On real text: 58,000 English and German sentences of Multi30k, 8,000 tokens, one thread. This table was measured by a
# program of the repository, `benchmarks/tokens.py`, at the date that it shows.

# %%
from classroom.measured import measured

speed = measured("tokens")
print(f"{speed['sentences']:,} sentences, {speed['date']}, {speed['machine']}\n")
for task in ("training", "encoding"):
    for name, seconds in speed[task].items():
        print(f"{task}, {name:24} {seconds:6.2f} s")
slower = speed["training"]["ours"] / speed["training"]["library"]
assert 2 < slower < 2.5
assert speed["encoding"]["ours, from nothing"] < speed["encoding"]["library"]

# %% [markdown]
# Learning takes a little over twice as long as in Rust. Cutting words of usual length takes no longer. (Both remember
# the words that they have cut. The library does more for each text, since it also says where each token stood, and on a
# word of thousands of letters it is far faster.)

# %% tags=["quiz"]
quiz.one_choice(
    "In what order are the merges applied to a new word?",
    quiz.wrong(
        "From left to right through the word",
        "That is how one merge goes through a word. But which merge comes next depends on when it was learnt.",
    ),
    quiz.right(
        "Those learnt early before those learnt late",
        "Yes: at each step, of all pairs in the word, the one that was learnt first.",
    ),
    quiz.wrong(
        "By how often each pair occurs in the new word",
        "Counting is for learning. A new word is cut without counting, so that the same word is always cut in the same way.",
    ),
    quiz.wrong(
        "Longest subword first",
        "Other tokenizers do that. The two can differ: with the merges *u n*, *n d*, *u nd* and the text *und*, merging in order gives *un d*, the longest subword would be *und*.",
    ),
)

# %% [markdown]
# ## Batches that waste little
#
# Sentences of a batch are filled up to the longest ([chapter 9](09_decoder.ipynb#who-may-see-whom)). In a batch of
# mixed lengths much is padding, which costs as much as words. So sort sentences by length first, and close a batch when
# its tokens, padding included, would exceed a limit. Then short sentences come in large batches and long ones in
# small batches, and steps cost about the same (not quite, since attention grows with the square of the length).

# %% tags=["export"] module="tokens"
import torch
from dotformer.support.checks import check_rows
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def pad_batch(rows: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """Rows filled up to the longest: (B, T), int64. ValueError: one is empty."""
    check_rows(rows)
    tensors = [torch.tensor([index(token) for token in row]) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=pad_id)


def token_batches(
    lengths: Sequence[int],
    max_tokens: int,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Group sentences by length into batches of at most `max_tokens` tokens.

    Padding counts: a batch of B sentences has B times its longest. Returns their
    numbers, batches in random order. Raises ValueError when one alone is too long.
    """
    lengths = [int(n) for n in lengths]
    if max(lengths, default=0) > max_tokens:
        raise ValueError(f"{max(lengths)} tokens exceed max_tokens {max_tokens}")
    shuffled = torch.randperm(len(lengths), generator=generator).tolist()
    batches: list[list[int]] = []
    for n in sorted(shuffled, key=lambda n: lengths[n]):
        if not batches or lengths[n] * (len(batches[-1]) + 1) > max_tokens:
            batches.append([])
        batches[-1].append(n)
    order = torch.randperm(len(batches), generator=generator).tolist()
    return [batches[n] for n in order]


# %%
import torch

rng = np.random.default_rng(1)
texts = [" ".join(rng.choice(spelled, size=n)) for n in rng.integers(1, 20, 2000)]
rows = [tokenizer.encode(text, add_special_tokens=True) for text in texts]
lengths = [len(row) for row in rows]


def waste(batches):
    tokens = sum(len(batch) * max(lengths[n] for n in batch) for batch in batches)
    return 1 - sum(lengths) / tokens


mixed = np.array_split(rng.permutation(len(rows)), 100)
sorted_batches = token_batches(lengths, 2000, torch.Generator().manual_seed(0))
print(f"20 sentences at random: {waste(mixed):.0%} of the tokens are padding")
print(f"by length, 2000 tokens: {waste(sorted_batches):.1%}")
assert waste(mixed) > 0.35 and waste(sorted_batches) < 0.03
assert sorted(n for batch in sorted_batches for n in batch) == list(
    range(len(rows))
)
print(
    tuple(pad_batch([rows[n] for n in sorted_batches[0]], 0).shape), "is one batch"
)

# %% [markdown]
# Nearly half of the work at random, two percent by length. Every sentence is there once. The order of the batches is
# drawn anew, or the model would see all short sentences first.

# %% tags=["quiz"]
quiz.one_choice(
    "Batches are limited to 2,000 tokens, padding included. A batch has sentences of 12, 14 and 15 tokens. Another sentence of 18 tokens comes. What counts as the size of the batch with it?",
    quiz.wrong(
        "59 tokens, $12 + 14 + 15 + 18$",
        "That leaves out the padding. The model computes on it too.",
    ),
    quiz.wrong(
        "63 tokens, $3 \\cdot 15 + 18$",
        "All four rows are filled up to 18 once the new one is in.",
    ),
    quiz.right(
        "72 tokens, $4 \\cdot 18$", "Yes: four rows, each filled up to the longest."
    ),
    quiz.wrong(
        "4, one a sentence",
        "A batch by sentences would count so. Then a batch of long sentences costs many times one of short ones.",
    ),
)

# %% [markdown]
# ## Break it: text that acts as a command
#
# Suppose special tokens are recognised in the text, as in `text.replace(...)` or by a regular expression that looks for
# `<end>`. It is convenient: one can write them into training texts by hand. Then somebody types one.


# %%
class Convenient(BPETokenizer):
    """Recognises special tokens wherever they are written."""

    def encode(self, text, add_special_tokens=False):
        tokens = []
        for part in regex.split(r"(<pad>|<begin>|<end>)", text):
            if part in self.special_tokens:
                tokens.append(self.special_tokens.index(part))
            else:
                tokens += super().encode(part)
        if add_special_tokens:
            return [self.begin_id, *tokens, self.end_id]
        return tokens


convenient = Convenient(tokenizer.merges)
message = "zwei <end> drei"
for name, chosen in [("by the program", tokenizer), ("convenient", convenient)]:
    tokens = chosen.encode(message)
    print(
        f"{name:15} {len(tokens):2} tokens, comes back as {chosen.decode(tokens)!r}"
    )
assert tokenizer.decode(tokenizer.encode(message)) == message
assert convenient.end_id in convenient.encode(message)
assert convenient.decode(convenient.encode(message)) != message

# %% [markdown]
# The user has typed an end token into the middle of a sentence. A program that stops at end tokens never sees the rest.
# Where special tokens separate the speakers of a chat, a user can speak in another's name. Usual tests do not show it,
# as usual texts come back. The check: whatever the text, `encode` must return no special token.
#
# A tokenizer belongs to its model: with another one, every number means something else. So it is saved with it, in a
# form that people can read.

# %%
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "numbers.json"
    tokenizer.save(path)
    print("\n".join(path.read_text(encoding="utf-8").splitlines()[:7]))
    loaded = BPETokenizer.load(path)
assert loaded.encode(message) == tokenizer.encode(message)

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: One merge
#
# *Easy, 10 minutes.* Replace a pair of symbols, wherever it stands in a list, by one new symbol, from left to right,
# and return a new list.


# %% tags=["exercise"]
def merge(symbols, left, right, made):
    """The list of symbols with each (left, right) replaced by `made`."""
    ...


# %% tags=["check"]
def merged_wrongly(symbols, left, right, made):
    """Looks at the original only, so that overlapping pairs merge twice."""
    found = []
    for i, symbol in enumerate(symbols):
        if i + 1 < len(symbols) and (symbol, symbols[i + 1]) == (left, right):
            found.append(made)
        elif not (i and (symbols[i - 1], symbol) == (left, right)):
            found.append(symbol)
    return found


def only_first(symbols, left, right, made):
    for i in range(len(symbols) - 1):
        if (symbols[i], symbols[i + 1]) == (left, right):
            return [*symbols[:i], made, *symbols[i + 2 :]]
    return symbols[:]


check_merge = partial(
    checks.check,
    reference=lambda s, left, right, made: merge_pair(s, (left, right), made),
    cases=[
        ([1, 2, 3, 1, 2], 1, 2, 9),
        ([5, 5, 5], 5, 5, 9),
        ([5, 5, 5, 5, 5], 5, 5, 9),
        ([2, 1], 1, 2, 9),
        ([11, 2, 300, 301], 300, 301, 302),
        ([], 1, 2, 9),
    ],
    mistakes={
        "in 5 5 5 only one pair fits: a symbol is used once": merged_wrongly,
        "you stop after the first one": only_first,
        "the order matters: 2 1 is not 1 2": lambda s, left, right, made: (
            merge_pair(merge_pair(s, (left, right), made), (right, left), made)
        ),
    },
)
check_merge(merge)


# %% tags=["solution"]
def merge(symbols, left, right, made):
    result, i = [], 0
    while i < len(symbols):
        if symbols[i : i + 2] == [left, right]:
            result.append(made)
            i += 2
        else:
            result.append(symbols[i])
            i += 1
    return result


verdict = check_merge(merge)
assert verdict.passed, verdict
verdict

# %% [markdown]
# The solution looks forwards, where `merge_pair` looks back at what it has written. (That relies on the symbol being
# new: if it were equal to `left`, `merge_pair` would go on merging.)
#
# ### Exercise 2: Cut a new word
#
# *Medium, 15 minutes.* Given a word as a list of symbols, and the merges in the order in which they were learnt, as a
# list of pairs (merge number $n$ makes symbol $256 + n$), return its symbols after all merges.


# %% tags=["exercise"]
def cut(symbols, merges):
    """The word's symbols after all merges that apply."""
    ...


# %% tags=["check"]
def in_order(symbols, merges):
    for n, pair in enumerate(merges):
        symbols = merge_pair(symbols, pair, 256 + n)
    return list(symbols)


def one_pass(symbols, merges):
    """Applies each merge once to the symbols it finds first, last learnt first."""
    for n, pair in reversed(list(enumerate(merges))):
        symbols = merge_pair(symbols, pair, 256 + n)
    return list(symbols)


def longest_first(symbols, merges):
    subwords = [bytes([n]) for n in range(256)]
    for left, right in merges:
        subwords.append(subwords[left] + subwords[right])
    text, found = bytes(symbols), []
    while text:
        best = max(
            range(len(subwords)),
            key=lambda n: text.startswith(subwords[n]) * len(subwords[n]),
        )
        found.append(best)
        text = text[len(subwords[best]) :]
    return found


check_cut = partial(
    checks.check,
    reference=in_order,
    cases=[
        (list(b"team"), [(101, 97), (116, 256), (257, 109)]),
        (list(b"seat"), [(101, 97), (116, 256), (256, 116)]),
        (list(b"aaaa"), [(97, 97), (256, 256)]),
        (list(b"x"), [(101, 97)]),
        (list(b"und"), [(110, 100), (117, 110), (117, 256)]),
        (list(b"und"), [(117, 110), (110, 100), (117, 257)]),
        ([], [(101, 97)]),
    ],
    mistakes={
        "you apply the merges in reverse: first learnt, first applied": one_pass,
        "you look for the longest subword; early merges come before late ones": longest_first,
        "only the first merge is applied": lambda s, m: merge_pair(s, m[0], 256),
        "the new symbols are numbered from 0; they begin at 256": lambda s, m: [
            n - 256 if n > 255 else n for n in in_order(s, m)
        ],
    },
)
check_cut(cut)


# %% tags=["solution"]
def cut(symbols, merges):
    for n, (left, right) in enumerate(merges):
        symbols = merge(symbols, left, right, 256 + n)
    return symbols


verdict = check_cut(cut)
assert verdict.passed, verdict
verdict

# %% [markdown]
# To go through all merges in order is the same as to take, again and again, the one that was learnt first: a merge can
# only make pairs that were learnt later. The tokenizer does the second, since a word has few pairs and there are
# thousands of merges.
#
# ### Exercise 3: How much is padding?
#
# *Easy, 10 minutes.* Given the lengths of the sentences of each batch, a list of lists, return the share of all tokens
# that is padding.


# %% tags=["exercise"]
def padding_share(batches):
    """Share of padding, from 0 to 1, over all batches together."""
    ...


# %% tags=["check"]
def places_of(batches):
    return sum(len(batch) * max(batch) for batch in batches)


check_padding = partial(
    checks.check,
    reference=lambda b: 1 - sum(sum(batch) for batch in b) / places_of(b),
    cases=[
        ([[3, 3], [1, 4]],),
        ([[10, 1, 1], [2], [2, 2, 2, 2]],),
        ([[5]],),
        ([[1, 5, 2]],),
        ([[9, 1], [3, 3, 3, 3, 3, 2]],),
    ],
    mistakes={
        "this is the share of words": lambda b: (
            sum(sum(batch) for batch in b) / places_of(b)
        ),
        "you average over batches; a large batch counts for more": lambda b: float(
            np.mean([1 - sum(x) / (len(x) * max(x)) for x in b])
        ),
        "each batch is filled up to its own longest, not to the longest of all": lambda b: (
            1
            - sum(sum(x) for x in b)
            / (sum(len(x) for x in b) * max(max(x) for x in b))
        ),
    },
)
check_padding(padding_share)


# %% tags=["solution"]
def padding_share(batches):
    places = sum(len(batch) * max(batch) for batch in batches)
    tokens = sum(sum(batch) for batch in batches)
    return (places - tokens) / places


verdict = check_padding(padding_share)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# Words are too many and letters too few, so start with bytes and merge the most frequent pair, again and again. What is
# frequent becomes a token, what is rare falls into parts, and nothing is unknown. Sentences of similar length share a
# batch, so that little of the work is padding.
#
# **Sources.** Byte-pair encoding for translation: [Sennrich, Haddow and Birch
# (2016)](https://arxiv.org/abs/1508.07909), after a method of compression by [Gage
# (1994)](http://www.pennelynn.com/Documents/CUJ/HTML/94HTML/19940045.HTM). Bytes as the first symbols: [Radford and
# others (2019)](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf).
# Batches by tokens: [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762), section 5.1.
#
# **Next.** Text is numbers now. Chapter 11 trains on them with care: what to minimise, how large the steps should be,
# and how to stop in the middle and lose nothing.
