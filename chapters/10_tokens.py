# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 10. What is a token?
#
# The model of [chapter 9](09_decoder.ipynb) knew 29 words and punctuation marks. Ask it about Zoë, and it has no number
# for her name. By the end of this chapter you will have a **tokenizer**, which turns any text into numbers and back. It
# decides what a model sees: one of ours cuts *␣12345* (*␣* is a space) into *␣12 | 3 | 4 | 5*. Its cuts hide letters
# and misalign digits, which is thought to be one reason why models count letters and add numbers badly. You also see
# how a typed text can act as a command, and how sentences become a batch.
#
# You need some Python and almost no mathematics. It takes about 30 minutes to read, and 45 for the exercises. [Going
# further](#going-further), at the end, takes 7 more minutes. Only the code? Read [the definition](#the-definition) and
# [the mistake](#break-it-text-that-acts-as-a-command).

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. Encoder, decoder and output are built. This chapter adds the tokens, at the bottom of both sides."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=10)

# %% [markdown]
# ## Words are too many, letters too few
#
# A *token* is a piece of text that a model treats as one unit, and knows only by its number, the **token ID**, which
# picks its row in the table of embeddings. All tokens of a model together are its **vocabulary**. What should be a
# token? The two obvious answers each have a price.
#
# **An ID for each word.** Our test words are the numbers from 0 to 9,999 in German, which writes each as one word: 21
# is *einundzwanzig*, one-and-twenty. Of these, 500 drawn at random serve as new words, `unseen`; the other 9,500 make
# the vocabulary, `seen`.

# %% number words, seen and unseen tags=["hide-input"]
import numpy as np
from num2words import num2words

spelled = [num2words(n, lang="de") for n in range(10_000)]
order = np.random.default_rng(0).permutation(10_000)
unseen, seen = [[spelled[n] for n in part] for part in (order[:500], order[500:])]

known = set(seen)
print(
    f"letters: {len(set(''.join(seen)))} kinds, {np.mean([len(w) for w in seen]):.0f} per word"
)
assert not known & set(unseen)

# %% [markdown]
# The 500 are **out of vocabulary**, although nothing in them is new: one is *sechsunddreißig*, and *sechs*, *und*,
# *dreißig* all occur inside the 9,500. Models with such a vocabulary have one token, `<unk>`, for all unknown words, so
# the word itself is lost. And words are many: at 512 numbers each, a million word forms would fill an embedding table
# with half a billion numbers.
#
# **An ID for each letter.** These words have only 21 different letters, so 21 IDs are enough. But texts become long:
# our words have 32 tokens on average (ordinary English words about five), and the work of attention grows with the
# square of the length.
#
# We want tokens between the two: **subwords**, so that a frequent word is one token and a rare one is several.
#
# ## Merging, by hand
#
# **Byte-pair encoding**, BPE for short, finds the subwords by counting. Start with letters; while we merge, the units
# are called **symbols**. Count all pairs of neighbouring symbols inside words, and join the most frequent pair into one
# new symbol. Repeat. Merging the most frequent pair shortens the text most: by one symbol wherever the pair occurs. (In
# *aaa* the pair *a a* counts twice but can be merged only once.)
#
# Take four words and their counts:
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
# counted again: *t ea* occurs 9 times, *ea m* 5, *ea t* 3, *s t* 2. The second merge is *t ea*, and *tea* is whole.
#
# **Predict first.** What are the third and the fourth merge?

# %% four merges, counted and carried out tags=["hide-input", "nbval-check-output"]
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
assert not any("ea" in symbols for symbols in words.values())

# %% [markdown]
# *Steam* is cut into *s team*, though it has nothing to do with a team: the method knows only what is frequent. Each
# merge adds a symbol and removes none from the vocabulary: five letters and four merges make nine symbols.
#
# To encode a *new* word, apply the merges in the order in which they were learned. Take *seat*. The first merge, *e a*,
# gives *s ea t*. The second, *t ea*, does not fit, because here the *t* comes after *ea*. Nor does the third, *tea m*.
# The fourth, *ea t*, gives *s eat*.
#
# *Seat* never occurred in the text, but *s* and *eat* did. That is the advantage over whole words: a new word usually
# consists of subwords whose embeddings have been learned.
#
# Does the order matter? Yes. In *seateam* the first merge leaves *s ea t ea m*, where *ea t* and *t ea* both want the
# same *t*. The merge *t ea* was learned first, so you get *s ea tea m*, and then *s ea team*, three tokens. The longest
# token that fits, taken from the left, would give four, *s eat ea m*. (Merging does not always give the fewest:
# *eateat* becomes *ea tea t*, because the method is **greedy** and never takes a merge back.) Keep to the order of
# learning, because it repeats the cuts that learning made, and the model's training text was cut in this way. If you
# cut new text in another way, nothing fails, but the model sees cuts that it has hardly ever seen.

# %% tags=["quiz"]
quiz.one_choice(
    "In what order are the merges applied to a new word?",
    quiz.wrong(
        "From left to right through the word",
        "That is how one merge goes through a word. But which merge comes next depends on when it was learned.",
    ),
    quiz.right(
        "Those learned early before those learned late",
        "Yes: at each step, of all pairs in the word, the one that was learned first.",
    ),
    quiz.wrong(
        "By how often each pair occurs in the new word",
        "Counting is for learning. The word's most frequent pair may not have been learned at all.",
    ),
    quiz.wrong(
        "From the left, always the longest subword that fits",
        "Other tokenizers do that. The two can differ: *seateam* would then be *s eat ea m*.",
    ),
)

# %% [markdown]
# ## Bytes, so that nothing is unknown
#
# If we start with letters, a letter missing from the training text is still unknown. So start with **bytes**, numbers
# from 0 to 255. Text is stored as bytes, usually in UTF-8:

# %% tags=["nbval-check-output"]
for text in ("tea", "Zoë", "茶", "🙂"):
    print(text, list(text.encode()))

# %% [markdown]
# An English letter takes one byte, *ë* two, 茶, the Chinese character for *tea*, three, and the emoji four. With bytes
# as the first 256 symbols (**byte-level BPE**) every text that UTF-8 can encode survives the round trip to tokens and
# back.
#
# ### Before any merge, cut into words
#
# No merge may cross the end of a word. Otherwise *dog.*, *dog,* and *dog!* could each become a token, and the model
# would have to learn *dog* separately for each. And frequent phrases, such as *␣of␣the*, would take tokens from words.
# So the text is first cut into words, with punctuation split off, which is called **pre-tokenization**.
#
# The cut must keep the spaces, or *now here* and *nowhere* could both be *now | here*. Each space goes with the word
# after it, so that a frequent word and its space can become one token.
#
# This pattern is GPT-2's, without its rule for English contractions. It tries five parts in turn, and the first that
# matches takes as many characters as it can. Three take letters, numerals or other characters, with one space before
# them, if there is one. Two take the white space that is left over. (`\p{L}` is a letter, `\p{N}` a numeral, `\s` white
# space, `\S` anything else, and `(?!…)` means that … must not follow.)
#
# | part | takes | for example |
# |---|---|---|
# | ` ?\p{L}+` | letters of any script | *␣pays* |
# | ` ?\p{N}+` | numerals | *␣2* |
# | ` ?[^\s\p{L}\p{N}]+` | other characters | *!* |
# | `\s+(?!\S)` | a run of white space, but without its last character if something visible follows | *a␣␣b* is cut into *a*, *␣*, *␣b* |
# | `\s+` | white space that is left | a line break before a word |

# %% tags=["export"] module="tokens"
import regex


def pretokenize(text: str) -> list[str]:
    """Cut a text into words, numerals, other characters and white space.

    The first three keep one space before them.
    """
    pattern = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return regex.findall(pattern, text)


# %% tags=["nbval-check-output"]
print(pretokenize("A Lannister always pays his 2 debts!"))

sentences = {
    "English": "The dog bites the man.",
    "German": "Der Hund beißt den Mann.",
    "Greek": "Ο σκύλος δαγκώνει τον άνδρα.",
    "Hindi": "कुत्ता आदमी को काटता है।",
    "Chinese": "狗咬人。",
}
print('the same sentence   characters   bytes   "words"')
for language, text in sentences.items():
    count = len(pretokenize(text))
    print(f"{language:18}{len(text):10}{len(text.encode()):10}{count:8}")
print(*pretokenize(sentences["Hindi"])[:6], "are the first Hindi word, cut")

# %% tags=["proof"]
assert (
    "".join(pretokenize("  two spaces\n and a tab\t."))
    == "  two spaces\n and a tab\t."
)
assert pretokenize("a  b") == ["a", " ", " b"]

# %% [markdown]
# For some writing systems bytes and this pattern are a bad fit.
#
# - *More bytes.* Before any merge each byte is a token, so the Greek sentence starts with more than twice as many
#   tokens as the English one, and the Hindi one with nearly three times as many. A tokenizer for such languages spends
#   many early merges on joining bytes into whole characters.
# - *Bad cuts.* Hindi attaches most vowels, and the sign for no vowel, to a consonant. What is attached does not count
#   as a letter, so the first word is cut into six. Chinese has no spaces, so a whole clause is one "word", and one
#   token may hold the end of a word and the start of the next.
#
# ## The definition
#
# Three things are missing: learning the merges on bytes, numbering the tokens, and cutting new text.
#
# ### Learning the merges
#
# Learn as you did by hand, now on bytes: the first merge makes symbol 256, the second 257, and so on. Stop after a
# chosen number of merges, and keep them in order, because with the pattern they are all you need to cut a text.

# %% tags=["export"] module="tokens"
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


# %%
from collections import Counter


def learn_slowly(texts, count):  # among ties: the pair of smaller symbol numbers
    words = [list(w.encode()) for text in texts for w in pretokenize(text)]
    merges = []
    for made in range(256, 256 + count):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = [merge_pair(w, best, made) for w in words]
    return merges


# %% tags=["proof"]
lines = [word for word, n in counts.items() for _ in range(n)]
as_by_hand = [(101, 97), (116, 256), (257, 109), (256, 116)]
assert learn_slowly(lines, count=4) == as_by_hand


def cut_by(merges, word):
    for pair in merges:
        word = merge_pair(word, pair, "".join(pair))
    return word


four = [("e", "a"), ("t", "ea"), ("tea", "m"), ("ea", "t")]
assert cut_by(four, "eateat") == ["ea", "tea", "t"]
assert cut_by(four, "seateam") == ["s", "ea", "team"]
assert cut_by(four, "seat") == ["s", "eat"]

# %% [markdown]
# The folded `learn_merges` learns the same merges faster, because it counts again only the words that contained the
# pair.

# %% tags=["export", "hide-input"] module="tokens"
import heapq
from collections import Counter, defaultdict


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


# %% the same merges as the slow method's tags=["hide-input"]
assert learn_merges(lines, count=4) == as_by_hand
assert learn_merges(seen[:300], 60) == learn_slowly(seen[:300], 60)

# %% [markdown]
# ### Two numberings
#
# Besides bytes and merges, a tokenizer has **special tokens**, which stand for no text: `<pad>` for padding, `<bos>`
# for the beginning, from which a model starts to write, and `<eos>` for the end. In our tokenizer only the program can
# insert them, by their numbers.
#
# The merges know nothing of special tokens, so *symbol numbers* begin with the bytes. *Token IDs* begin with the three
# special tokens, so that `<pad>` is 0 however many merges there are. A token ID is therefore the symbol's number plus 3:
#
# | | symbol | token ID |
# |---|---|---|
# | special tokens | | 0, 1, 2 |
# | bytes | 0 to 255 | 3 to 258 |
# | merges | from 256 on | from 259 on |
#
# With our four merges *eat* is symbol 259, and its ID is 262.
#
# In our numbering one more special token would shift the IDs of all bytes and merges. A trained model knows a token
# only by its ID, so choose the special tokens before training. (Libraries give a special token that is added later the
# next free ID, because then no old ID moves.) For the same reason never swap tokenizers: 262 would be another piece of
# text. As long as the IDs fit the embedding table there is no error, only nonsense.
#
# ### The tokenizer
#
# Read `__init__`, `encode`, `_merge` and `decode`; the others train, save, load, or show tokens. `vocabulary` lists the
# bytes of each token ID (none for a special token), and `decode` joins them.
#
# The heart is `_merge`. The *rank* of a pair says how early it was learned, 0 for the first. `_merge` takes, again and
# again, the learned pair of lowest rank in the word, until there is none. In *seat* only *e a* is a learned pair, of
# rank 0, so the word becomes *s ea t*. Now the word contains the learned pair *ea t*, of rank 3, and becomes *s eat*.
# That is two rounds instead of four merges, and a large tokenizer has thousands of merges.
#
# The result is the same as from going through all merges in order: every new pair contains the new symbol, so if it was
# learned at all, it was learned later, and has a higher rank. So a pair of lower rank, once gone, does not come back.
# (In the code `&` keeps the neighbours that are learned pairs.) `_cache` keeps results, because frequent words come
# back. `encode` puts `<bos>` and `<eos>` around a text only when asked, as for the sentences that a decoder learns to
# write.

# %% tags=["export"] module="tokens"
from pathlib import Path
from typing import Self

from dotformer.support import tokenizer_files as files


class BPETokenizer:
    """From text to token IDs and back, by bytes and learned merges.

    The IDs begin with the special tokens: padding, begin, end, and others if
    wanted. No text is encoded as one of them. Then come the 256 bytes, so that
    nothing is unknown, then the merges. Raises ValueError for merges or special
    tokens that are invalid.
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


# %% [markdown]
# With the four merges from above, this is how a text gets into a model:

# %% tags=["plot"] mystnb={"image": {"alt": "The text Zoë eats on its way into a model, in five rows of boxes, with arrows from each unit down to what it becomes. Its eight characters are two words, Zoë and ␣eats, and these are nine bytes, since ë is the two bytes 195 and 171. These two bytes stay apart, as tokens 198 and 174, while the bytes 101, 97 and 116 become one token, eat, with the number 262. The other tokens are Z 93, o 114, the space 35 and s 118, and each of the seven has one vector below it, drawn as four shaded cells."}}
from classroom.diagram import Diagram
from classroom.plots import BLUE, GREY, RED

text, slot = "Zoë eats", 0.56
lines = ["tea"] * 4 + ["team"] * 3 + ["steam"] * 2 + ["eat"] * 3
tokenizer = BPETokenizer.train(lines, vocab_size=3 + 256 + 4)
tokens, words, data = tokenizer.encode(text), pretokenize(text), text.encode()
names = [f"{p}\n{n}" for p, n in zip(tokenizer.tokenize(text), tokens, strict=True)]
vectors = np.random.default_rng(2).uniform(0.2, 1, (len(tokenizer), 4))
sizes = [len(tokenizer.vocabulary[token]) for token in tokens]
rows = [  # name, y, height, units, bytes of each
    ("characters", 3.68, 0.38, text, [len(c.encode()) for c in text]),
    ("words", 2.96, 0.38, words, [len(w.encode()) for w in words]),
    ("bytes", 2.24, 0.38, data, [1] * len(data)),
    ("tokens\nand IDs", 1.38, 0.64, names, sizes),
    ("vectors", 0.52, 0.36, tokens, sizes),
]
colors = [GREY] * 2 + [RED] * 2 + [GREY] + [BLUE] * 3 + [GREY]  # one for each byte


def middles(sizes):
    """Middle and colour of each unit; grey where its bytes have several colours."""
    for size, end in zip(sizes, np.cumsum(sizes), strict=True):
        color, *others = set(colors[end - size : end])
        yield 1.24 + (end - size / 2) * slot, GREY if others else color


drawing = Diagram(6.4, 4.0)
bottom, sizes_above = None, []
for name, y, height, units, sizes in rows:
    drawing.text(0.1, y, name, at="left", size=13)
    for unit, size, (x, color) in zip(units, sizes, middles(sizes), strict=True):
        if name == "vectors":
            shades = [(color, depth) for depth in vectors[unit]]
            drawing.cells(x - 0.25, y, [""] * 4, shades, width=0.125)
        else:
            label = str(unit).replace(" ", "␣")
            drawing.box(x, y, label, size * slot - 0.06, height, color, size=12)
    for x, color in middles(max(sizes, sizes_above, key=len)) if bottom else ():
        drawing.arrow((x, bottom - 0.05), (x, y + height / 2 + 0.05), color=color)
    bottom, sizes_above = y - height / 2, sizes
plt.show()

# %% [markdown]
# The space is a token of its own, because our four words had no space before them, so no merge could learn one. From
# running text a tokenizer could learn *␣eat*. Python writes the two bytes of *ë* as `\xc3` and `\xab`.
#
# A single token may be part of a character, so a program that prints tokens as they are generated must wait until a
# character is complete (exercise 1). And other tokens can decode to the same text: *t | ea* gives *tea*, which is
# encoded as one token. So keep the IDs that a model generated, and do not encode its text again.

# %% [markdown]
# Back to the 500 unknown words. Can merges learned from the 9,500 others spell them? Here are sixty, in the order of
# learning. (For texts of your own: `from dotformer.tokens import BPETokenizer`; `save` writes it to a file, and `load`
# reads it.)

# %%
tokenizer = BPETokenizer.train(seen, vocab_size=3 + 256 + 60)
learnt = [s.decode(errors="backslashreplace") for s in tokenizer.symbols[256:]]
print(*learnt)

# %% [markdown]
# A merge knows only what is frequent. The token *ert* was learned early because of *hundert* (hundred). In
# *vier·tausend* (four thousand) it takes *er* from one part and *t* from the other, so this word is joined from *vi*
# and *ertausend*. And `f\xc3` is *f* with the first byte of *ü*. Now cut three texts with these merges, print the IDs
# of the first, and cut the 500 new words:

# %%
for text in (
    "einundzwanzig",
    "siebenhundertdreiundachtzig",
    "Zoë trinkt 3 Tassen 茶",
):
    print(*tokenizer.tokenize(text), sep=" | ")
print("einundzwanzig:", tokenizer.encode("einundzwanzig"))

tokens = [tokenizer.encode(word) for word in unseen]
each = np.mean([len(one) for one in tokens])
same = [tokenizer.decode(one) for one in tokens] == unseen
print(
    f"the {len(unseen)} new words: {each:.1f} tokens each, all decoded to the original: {same}"
)

# %% tags=["proof"]
assert {"und", "hundert", "tausend", "sieben", "zig"} <= set(learnt)
assert "und" in tokenizer.tokenize("siebenhundertdreiundachtzig")
assert "sechsunddreißig" in unseen
assert round(np.mean([len(one) for one in tokens]), 1) == 5.6
assert tokenizer.tokenize("sechsunddreißig") == ["sechs", "und", "dreißig"]

# %% [markdown]
# The tokenizer has found *hundert*, *tausend*, *und* and *zig*, but for *zwanzig*, 60 merges were too few. The new
# words take 5.6 tokens each, where letters needed 32. To test a tokenizer, check the round trip, the merges by hand,
# and that a [library](#is-it-the-same-as-the-librarys) given its merges cuts unusual texts in the same way.
#
# What it never met falls apart into letters and bytes, but nothing is lost: Zoë, for whom the last chapter had no
# number, is four tokens.
#
# ## A real sentence, with a vocabulary of 300 and of 8,000
#
# We have trained such tokenizers on the 58,000 English and German image captions of Multi30k, with vocabularies from
# 300 to 32,000 tokens (`python -m benchmarks.tokens`). We put a space in front of each caption, so that its first word
# is cut like any other. Two of the tokenizers cut *The dog bites the man, and the man drinks his tea.* in both
# languages:

# %% how two vocabularies cut the sentence tags=["hide-input"]
from classroom.measured import measured

captions = measured("tokens")
cuts = {row["vocab_size"]: row["cut"] for row in captions["sizes"]}
english, german = list(cuts[300])[:2]

# %% tags=["plot"] mystnb={"image": {"alt": "Two sentences, The dog bites the man, and the man drinks his tea, in English and German, each cut twice and drawn as coloured boxes, one a token. With a vocabulary of 300 the English one is 31 tokens, mostly of one or two letters. With 8,000 it is 15, where every word but bites and tea is one token. The German sentence needs 38 and 14."}}
figure, panels = plt.subplots(2, 1, figsize=(8, 2.4))
for axes, sentence in zip(panels, (english, german), strict=True):
    for row, size in enumerate((300, 8000)):
        left = 0
        for n, token in enumerate(cuts[size][sentence]):
            width = max(1, len(token))
            color = plots.BLUE if n % 2 else plots.GOLD
            axes.barh(
                -row, width, left=left, color=f"{color}44", ec="white", lw=1.5
            )
            axes.text(
                left + width / 2,
                -row,
                token.replace(" ", "␣"),
                ha="center",
                va="center",
                size=8.5,
                family="monospace",
            )
            left += width
        count = len(cuts[size][sentence])
        axes.text(-1, -row, f"{size:,}", ha="right", va="center", size=9)
        axes.text(left + 0.6, -row, f"{count} tokens", va="center", size=9)
    axes.set_xlim(-6, 68)
    axes.axis("off")
figure.tight_layout()
plt.show()

# %% [markdown]
# With a vocabulary of 300, which has only 41 merges, about half of the letters stand alone or behind a space. With
# 8,000 every word is one token except *tea*, *Tee* and *bites*, which are too rare in captions of photographs.

# %% [markdown]
# ### What a model does not see
#
# Several weaknesses of language models are easier to understand once you see that the model receives token IDs, not
# letters. With a vocabulary of 32,000:

# %% five texts, cut tags=["hide-input"]
for text in (" Straßenbahnhaltestelle", " 12345", " tea", "tea", " TEA"):
    tokens = [token.replace(" ", "␣") for token in cuts[32_000][text]]
    print(f"{text.replace(' ', '␣'):24} {' | '.join(tokens)}")
assert cuts[32_000][" 12345"][0] == " 12"
assert not set(cuts[32_000][" tea"]) & set(
    cuts[32_000]["tea"] + cuts[32_000][" TEA"]
)
assert not set(cuts[32_000]["tea"]) & set(cuts[32_000][" TEA"])

# %% [markdown]
# - *Spelling.* The model gets one number for *Straßenbahn* (tram; the whole word is a tram stop) and never sees the
#   letters. So it knows only from training how many *a*'s it contains, or must first spell it out.
# - *Arithmetic.* 12345 begins with the token *␣12*. Another number may be cut elsewhere, so the digits of two numbers
#   need not line up. Many newer tokenizers therefore cut numbers into single digits, or groups of up to three, best
#   counted from the right.
# - *Case and spaces.* The words *␣tea*, *tea* and *␣TEA* share no token, so the model must learn that they are similar.
#   And a *prompt*, the text that a model is to continue, should not end with a space. In training nearly every space
#   was part of the token that begins the next word, so the model hardly ever saw one alone.
#
# ### How many merges?
#
# Each merge makes texts shorter, so the layers have fewer positions to compute. But each merge has two costs. First, it
# adds a row to the embedding table and a logit at every position. With embeddings of width 512, 32,000 more tokens cost
# 16.4 million parameters, and as many again for an output layer that does not share the embeddings. Second, later
# tokens are rarer, because each merge takes the most frequent pair that is left (by hand 12, 9, 5, 3). So each usually
# saves less than the last. And an early token can become rare, too: after the four merges no *ea* is left by itself. We
# call a token *rare* if the training text uses it fewer than 100 times. The model sees few examples of such a token,
# which stays **undertrained**. (Tokens that a model hardly met in training, *glitch tokens*, have caused odd answers in
# large models.)
#
# **Fertility**, the average number of tokens per word, shows how far texts have shrunk. On held-out captions, with
# words cut at spaces:

# %% tokens per word, and rare tokens tags=["hide-input"]
print("            tokens per word                 share of merged")
print("vocabulary   English  German  French        tokens rare")
for row in captions["sizes"]:
    words = "".join(
        f"{row['tokens_per_word'][lang]:8.2f}" for lang in ("en", "de", "fr")
    )
    print(f"{row['vocab_size']:10,}  {words}{row['rare']:19.0%}")

# %% [markdown]
# From a vocabulary of 300 to one of 4,000, English and German texts shrink to about a third. From 8,000 to 32,000 they
# get shorter by a further tenth at most, and by then 98 percent of the merged tokens are rare. French was absent from
# the training text, so fewer merges fit, and from a vocabulary of 2,000 on it needs about twice as many tokens per word
# as English. So a French word costs about twice the computation (in attention more), and only half as many fit into the
# model's **context window**, the tokens that it can read at once. Large models, too, tend to cost most in the languages
# that their tokenizers saw least.
#
# Which size is best? The share of rare tokens does not say, because it counts each token once, and a running text
# consists mostly of frequent ones. In [our trials](#which-vocabulary-is-best), which went up to 16,000, the largest
# vocabulary did best. Do not carry that over to other tasks: in translation, small vocabularies were found to help
# small corpora. So train a few sizes, and compare their cost and their loss on held-out text [per
# byte](#which-vocabulary-is-best). (Per token the loss is not comparable, because longer tokens are fewer and each is
# harder to predict.)
#
# The original transformer had 37,000 tokens for English and German together. Names and numbers then have the same IDs
# in both, which makes copying easier, and one embedding table serves both. The price is that the languages compete for
# merges. Today's models often have 100,000 tokens or more. With more training text each token occurs more often, and in
# a large model the embeddings are a small share of the parameters.
#
# Whatever the size, split the data first and learn the merges from the training text alone. Merges learned from the
# test text suit its words, an advantage that no other new text would have.

# %% tags=["proof"]
by_size = {row["vocab_size"]: row for row in captions["sizes"]}
words_of = {size: row["tokens_per_word"] for size, row in by_size.items()}
assert all(
    2.7 < words_of[300][lang] / words_of[4000][lang] < 3.1 for lang in ("en", "de")
)
later = [1 - words_of[32_000][lang] / words_of[8000][lang] for lang in ("en", "de")]
assert max(later) < 0.105
assert round(by_size[32_000]["rare"], 2) == 0.98
assert all(
    1.9 <= words_of[size]["fr"] / words_of[size]["en"] < 2.1
    for size in words_of
    if size >= 2000
)
assert [round(by_size[size]["rare"], 2) for size in (2000, 4000)] == [0.15, 0.65]
counts_of = {
    size: [len(cut) for cut in list(cuts[size].values())[:2]]
    for size in (300, 8000)
}
orders = captions["orders"]
assert (orders["words"], round(orders["differ"] / orders["words"], 2)) == (
    1741,
    0.36,
)
assert counts_of == {300: [31, 38], 8000: [15, 14]}

# %% tags=["quiz"]
quiz.number(
    "A tokenizer has 3 special tokens and 6,000 merges. How many token IDs are there, and so rows in the embedding table?",
    3 + 256 + 6000,
    tolerance=0.5,
    feedback="Yes: the special tokens, the 256 bytes, and one for each merge.",
    mistakes=[
        (
            6003,
            "The bytes have IDs too: there are 256, and they are why nothing is unknown.",
        ),
        (6256, "The special tokens have IDs as well."),
        (
            6000,
            "That counts the merges only. Each makes one symbol *more* than the 256 bytes and the special tokens.",
        ),
    ],
    otherwise="Special tokens, bytes, merges: add them up.",
)

# %% [markdown]
# ## Break it: text that acts as a command
#
# Suppose that `encode` turns `<eos>` in a text into the special token. That is convenient for training texts written by
# hand. Then somebody types `<eos>` into a message.


# %%
class Convenient(BPETokenizer):
    """Recognises special tokens wherever they are written."""

    def encode(self, text, add_special_tokens=False):
        tokens = []
        for part in regex.split(r"(<pad>|<bos>|<eos>)", text):
            if part in self.special_tokens:
                tokens.append(self.special_tokens.index(part))
            else:
                tokens += super().encode(part)
        if add_special_tokens:
            return [self.bos_id, *tokens, self.eos_id]
        return tokens


convenient = Convenient(tokenizer.merges)
message = "zwei <eos> drei"
for name, chosen in [("ours", tokenizer), ("convenient", convenient)]:
    tokens = chosen.encode(message)
    print(
        f"{name:15} {len(tokens):2} tokens, comes back as {chosen.decode(tokens)!r}"
    )

# %% tags=["proof"]
assert tokenizer.decode(tokenizer.encode(message)) == message
assert convenient.eos_id in convenient.encode(message)
assert convenient.decode(convenient.encode(message)) != message

# %% [markdown]
# The user has put an end token into a sentence. Decoding shows only the two spaces around it. A program that cuts its
# input at end tokens loses the rest of the sentence. Where special tokens separate the speakers of a chat, a user can
# speak in another's name, a form of **prompt injection**. (A safe `encode` prevents this form only: a command in
# ordinary words still gets through.)
#
# Tests on ordinary texts do not find this fault. So encode a text that contains `<eos>`, and check that no special
# token comes out.
#
# Libraries differ. Hugging Face's tokenizers recognise special tokens in a text, unless told not to
# (`split_special_tokens=True` in `transformers`). tiktoken raises an error, unless you say what to do
# (`allowed_special`, `disallowed_special`). Know what yours does before you pass it user input.

# %% [markdown]
# ## Batches with little padding
#
# A GPU works on many sentences at once, as one rectangle. Each sentence is now a list of token IDs, and these lists
# differ in length. A batch is one tensor, so its lists are *padded* to the longest with `<pad>`. Sentences of 2, 3 and
# 7 tokens make a batch of $3 \cdot 7 = 21$ tokens, of which 9 are padding.
#
# Without the padding mask of [chapter 9](09_decoder.ipynb#who-may-see-whom) padding would take a share of the softmax,
# so a sentence's outputs would depend on its batch. (The encoder and cross-attention need this mask; in decoder
# self-attention the causal mask hides padding, which comes last.) The mask is `tokens != pad_id`, which is safe because
# no text is ever encoded as `<pad>`.
#
# The loss must leave out padding, too, so it is the mean over the real tokens alone. If `<pad>` counted, the model
# would look better than it is, because `<pad>` is the easiest token to predict.
#
# A missing mask raises no error, so test mask and loss. Add more padding, with dropout off: the outputs at real tokens
# and the loss must stay the same, up to rounding.
#
# Padding takes as much computation as any token. What share of a batch is padding, and can it be avoided? **Bucketing**
# reduces it: sort the sentences by length, and fill the batches in this order. The price is that a batch is no longer a
# random sample of all lengths: each gradient comes from sentences of nearly the same length, so gradients differ more
# from batch to batch. (A common compromise sorts inside random chunks of the data.)
#
# We also limit each batch by its tokens (a *token budget*), because memory and time grow with them (in attention also
# with the length). Padding counts: a batch's size is the number of its sentences times the length of the longest.

# %% tags=["export"] module="tokens"
from operator import index

import torch
from dotformer.support.checks import check_rows
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def pad_batch(rows: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """Rows filled up to the longest: (B, T), int64. ValueError: one is empty."""
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


# %% [markdown]
# Now try it on 2,000 texts, each of 1 to 19 numbers in words:

# %% the share of padding, at random and by length tags=["hide-input"]
import torch

rng = np.random.default_rng(1)
texts = [" ".join(rng.choice(spelled, size=n)) for n in rng.integers(1, 20, 2000)]
rows = [tokenizer.encode(text, add_special_tokens=True) for text in texts]
lengths = [len(row) for row in rows]


def waste(batches):
    tokens = sum(len(batch) * max(lengths[n] for n in batch) for batch in batches)
    return 1 - sum(lengths) / tokens


mixed = np.array_split(rng.permutation(len(rows)), 100)
in_order = np.array_split(np.argsort(lengths), 100)
sorted_batches = token_batches(lengths, 2000, torch.Generator().manual_seed(0))
print(
    f"batches of 20 texts at random: {waste(mixed):.0%} of the tokens are padding"
)
print(f"batches of 20, by length:      {waste(in_order):.1%}")
print(f"by length, up to 2000 tokens:  {waste(sorted_batches):.1%}")
assert waste(mixed) > 0.35 and max(map(waste, (in_order, sorted_batches))) < 0.03
assert sorted(n for batch in sorted_batches for n in batch) == list(
    range(len(rows))
)
size, longest = pad_batch([rows[n] for n in sorted_batches[0]], 0).shape
print(f"one of these batches: {size} texts, filled up to {longest} tokens")

# %% [markdown]
# Sorting by length saves nearly all of the padding. With 46 percent padding, a model computes about 1.9 times as many
# positions as there are tokens. With at most 2,000 tokens in each batch 2 percent are padding instead of 1, but the
# memory of every batch stays within bounds. The order of the batches is random, or the model would get all short
# sentences first, and might forget them while training on the long ones.

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
        "4, one per sentence",
        "A batch by sentences would count so. Then a batch of long sentences costs many times one of short ones.",
    ),
)

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: Print while it writes
#
# *Medium, 20 minutes.* A model writes token after token, and each stands for some bytes. You are given the bytes that
# have not been printed yet. Return the text that can be printed, and the bytes that must wait because their character
# is not complete. In UTF-8 the first byte of a character says how many it has: 0 to 127 one, 192 to 223 two, 224 to 239
# three, and from 240 on four. The bytes after the first lie from 128 to 191. The bytes that you get are valid, but may
# stop inside a character. (Python has this as `codecs.getincrementaldecoder`.)


# %% tags=["exercise"]
def printable(data):
    """Text of the complete characters in `data`, and the bytes left over."""
    ...


# %% tags=["check"]
def by_length(data):
    end = 0
    while end < len(data):
        first = data[end]
        length = 1 + (first >= 192) + (first >= 224) + (first >= 240)
        if end + length > len(data):
            break
        end += length
    return data[:end].decode(), data[end:]


def whole_or_nothing(data):
    try:
        return data.decode(), b""
    except UnicodeDecodeError:
        return "", data


check_printable = partial(
    checks.check,
    reference=by_length,
    cases=[
        (b"tea",),
        ("Zoë".encode()[:-1],),
        ("Zoë".encode(),),
        ("茶".encode()[:2],),
        ("a🙂".encode()[:-1],),
        (b"",),
    ],
    mistakes={
        "you print U+FFFD for a character that is not complete yet": lambda d: (
            d.decode(errors="replace"),
            b"",
        ),
        "the bytes of the unfinished character are lost": lambda d: (
            d.decode(errors="ignore"),
            b"",
        ),
        "complete characters before the unfinished one can be printed": whole_or_nothing,
        "you wait although the character is complete": lambda d: (
            by_length(d[:-1])[0],
            by_length(d[:-1])[1] + d[-1:],
        ),
    },
)
check_printable(printable)


# %% tags=["solution"]
def printable(data):
    for left in range(4):  # bytes that wait
        try:
            return data[: len(data) - left].decode(), data[len(data) - left :]
        except UnicodeDecodeError:
            continue


verdict = check_printable(printable)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: Cut a new word
#
# *Medium, 15 minutes.* Given a word as a list of symbols, and the merges in the order in which they were learned, as a
# list of pairs (merge number $n$, counted from 0, makes symbol $256 + n$), return its symbols after all merges.


# %% tags=["exercise"]
def cut(symbols, merges):
    """The word's symbols after all merges that apply."""
    ...


# %% tags=["check"]
def in_order(symbols, merges):
    for n, pair in enumerate(merges):
        symbols = merge_pair(symbols, pair, 256 + n)
    return list(symbols)


def in_reverse(symbols, merges):
    """Applies the merges in reverse: the last learned first."""
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
        (list(b"seateam"), [(101, 97), (116, 256), (257, 109), (256, 116)]),
        ([], [(101, 97)]),
    ],
    mistakes={
        "you apply the merges in reverse: apply the one that was learned first, first": in_reverse,
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
        symbols = merge_pair(symbols, (left, right), 256 + n)
    return symbols


verdict = check_cut(cut)
assert verdict.passed, verdict
verdict

# %% [markdown]
# The solution goes through all merges in order. The tokenizer's way gives the same result faster, because a word has
# few pairs and there are thousands of merges.
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
        "you average over batches, but a large batch should count for more": lambda b: (
            float(np.mean([1 - sum(x) / (len(x) * max(x)) for x in b]))
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
    positions = sum(len(batch) * max(batch) for batch in batches)
    tokens = sum(sum(batch) for batch in batches)
    return (positions - tokens) / positions


verdict = check_padding(padding_share)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# Words are too many and letters too few, so start with bytes and merge the most frequent pair, again and again. What is
# frequent becomes a token, what is rare is split into parts, and nothing is unknown. Sentences of similar length share
# a batch, so that little of the work is padding.
#
# **Sources.** Byte-pair encoding for translation, which began with letters: [Sennrich, Haddow and Birch
# (2016)](https://arxiv.org/abs/1508.07909), after a compression method by [Gage
# (1994)](http://www.pennelynn.com/Documents/CUJ/HTML/94HTML/19940045.HTM). Bytes as the first symbols, and why *dog.*
# should not be a token: [Radford and others
# (2019)](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf). Small
# vocabularies for small corpora: [Sennrich and Zhang (2019)](https://arxiv.org/abs/1905.11901). Batches by tokens:
# [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762), section 5.1.
#
# **Next.** Text is numbers now. Chapter 11 trains on them with care: what to minimise, how large the steps should be,
# and how to stop in the middle and lose nothing.

# %% [markdown]
# ## Going further
#
# Three questions about tokens, and short answers. Later chapters repeat what they need of them.
#
# ### Which vocabulary is best?
#
# A larger vocabulary makes texts shorter, but more of its tokens are rare. Only trained models can tell which matters
# more. To compare models with different tokenizers, take **bits per byte**:
#
# $$\text{bits per byte} = \frac{1}{\ln 2} \cdot \frac{\text{loss, summed over the tokens}}{\text{bytes of the text}} .$$
#
# Each loss is $-\ln$ of a token's probability. The product of these probabilities is the probability of the text, as
# the tokenizer cuts it, and $-\ln$ turns the product into a sum. So the summed loss is $-\ln$ of the text's
# probability, cut in this way (in this *segmentation*). Text and bytes are the same for all tokenizers, so without
# `<unk>` bits per byte can be compared. Dividing by $\ln 2$ turns **nats**, the unit of the natural logarithm, into
# bits.
#
# A loss *per token* cannot be compared between tokenizers, and neither can its exponential, the *perplexity*. Say that
# the losses of a text add up to 60 nats. In 20 tokens that is 3 nats per token, a perplexity of $e^3 \approx 20$. In 15
# it is 4 nats, and $e^4 \approx 55$. With 80 bytes the text has $60 / 0.693 / 80 = 1.08$ bits per byte in either case.
#
# (The model gives some probability to other segmentations of the same text, too. With these the text is more probable,
# so its true bits per byte are at most those that we report.)
#
# We trained small models to predict the next token, with two layers of width 128 ([chapter 18](18_gpt.ipynb) builds
# such models). Each read every training caption of both languages once. Its learning rate was chosen on a validation
# set of captions, and it was trained with three seeds (`python -m benchmarks.vocabulary`). The bits are those of a test
# set, 2,000 captions that no model has read.
#
# A larger vocabulary also means more parameters, since each token has a row in the embedding table. To separate the two
# effects, one more model has a small vocabulary, and wider layers instead.

# %% bits per byte for each vocabulary tags=["hide-input"]
trials = measured("vocabulary")
print("vocabulary  width  parameters   bits per byte, three seeds   seconds each")
bits = {}
for chosen in trials["models"]:
    runs = [run for run in trials["runs"] if run["settings"] == chosen]
    name = chosen["vocab_size"], chosen["d_model"]
    bits[name] = [run["bits"] for run in runs]
    assert len(runs) == 3
    print(
        f"{name[0]:10,} {name[1]:6} {runs[0]['parameters']:11,}"
        f"   {'  '.join(f'{b:.3f}' for b in bits[name])}"
        f" {np.mean([run['seconds'] for run in runs]):15.0f}"
    )

# %% [markdown]
# The model with the largest vocabulary needs the fewest bits, though 95 percent of its merged tokens are rare: here the
# count of rare tokens would have misled us.
#
# Is the number of parameters the reason? Not alone: with about as many parameters as the model of 16,000, the wider
# model of 2,000 saves 0.03 bits per byte over the narrow one, and that of 16,000 saves 0.12. Both large models take
# roughly three times as long to train as the narrow one.
#
# No model had more than 16,000, so where the best size lies stays open.

# %% tags=["proof"]
from itertools import pairwise

means = {name: np.mean(found) for name, found in bits.items()}
sizes = (300, 1000, 2000, 4000, 8000, 16_000)
assert all(means[a, 128] > means[b, 128] + 0.01 for a, b in pairwise(sizes))
assert [round(means[size, 128], 2) for size in (2000, 16_000)] == [1.37, 1.25]
assert round(60 / np.log(2) / 80, 2) == 1.08
gained = means[2000, 128] - np.array([means[2000, 280], means[16_000, 128]])
assert np.round(gained, 2).tolist() == [0.03, 0.12]
seconds = {
    size: np.mean(
        [
            run["seconds"]
            for run in trials["runs"]
            if run["settings"]["vocab_size"] == size
            and run["settings"]["d_model"] == 128
        ]
    )
    for size in (2000, 16_000)
}
assert 2.8 < seconds[16_000] / seconds[2000] < 3.5

# %% [markdown]
# ### How do WordPiece and Unigram differ?
#
# Two relatives of BPE are in wide use.
#
# **WordPiece**, which BERT uses, is usually described as follows: it merges the pair whose count is highest *when
# divided by the product of the counts of its two parts*, and cuts a new word from the left, taking each time the
# longest known subword that fits. The way of cutting matters: our own merges, with 8,000 tokens, cut 1,741 different
# words of the test text into several tokens. If you cut these words from the left with the same tokens, 36 percent come
# out differently: *Baufahrzeug*, a construction vehicle, is *B auf ahr zeug* in the order of the merges, and *Bau
# fahrzeug* from the left.
#
# **Unigram** ([Kudo, 2018](https://arxiv.org/abs/1804.10959)) goes the other way: it starts with far too many subwords,
# and gives each a probability, fitted to the training text. The probability of a segmentation is the product of those
# of its subwords, and a new word gets the most probable one, so three frequent subwords can beat two rare ones. In
# training, Unigram drops, again and again, the subwords whose removal lowers the probability of the training text
# least, and fits the rest again. Unigram can also draw one of several segmentations at random while a model is trained
# (**subword regularisation**). *BPE-dropout* leaves out merges at random to the same end.
#
# **SentencePiece** is no third method, but a program that trains BPE or Unigram on raw text. It keeps the space as a
# character of the text, so it needs no word splitter made for one language. But unless told otherwise, it lets no
# subword cross a space. With *byte fallback* an unknown character becomes bytes.

# %% [markdown]
# ### Is it the same as the library's?
#
# The library `tokenizers`, written in Rust, stands behind Hugging Face's `transformers`. Give it our merges and our
# pattern, and both must cut every text in the same way, strange ones included (an emoji, `<eos>`, fifty *x*). We
# compare the tokenizer of the number words, and one that was trained on made-up sentences with spaces, digits and
# punctuation.

# %% bytes as the library writes them tags=["hide-input"]
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

# bytes that are visible as characters are written as these, the others as 256, 257, ...
kept = [
    n for n in range(256) if 33 <= n <= 126 or 161 <= n <= 172 or 174 <= n <= 255
]
characters = {n: chr(n) for n in kept}
moved = [n for n in range(256) if n not in characters]
characters |= {n: chr(256 + place) for place, n in enumerate(moved)}


def as_characters(symbol):
    return "".join(characters[byte] for byte in symbol)


assert set(pre_tokenizers.ByteLevel.alphabet()) == set(characters.values())

# %% our merges in the library, compared on all texts tags=["hide-input"]
pattern = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def in_library(ours, pattern):
    """The library's tokenizer with our merges and numbers."""
    names = [as_characters(symbol) for symbol in ours.symbols]
    library = Tokenizer(
        models.BPE(
            vocab={name: n + 3 for n, name in enumerate(names)},
            merges=[(names[left], names[right]) for left, right in ours.merges],
        )
    )
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return library


strange = [
    "",
    " ",
    "a\n\n b",
    "Zoë 🙂 茶",
    "<eos>",
    "x" * 50,
    "1.000,50 €",
    "ﬁ½Ⅷ\u0301",
]
running = [  # text with spaces, digits and punctuation
    f"Zug {n}: {word} Leute, {n % 24} Uhr {n % 60}!"
    for n, word in enumerate(spelled)
]
on_running = BPETokenizer.train(running[:2000], vocab_size=3 + 256 + 200)
assert any(symbol.startswith(b" ") for symbol in on_running.symbols[256:])
compared = [*unseen, *strange, *running[2000:2500]]
for ours in (tokenizer, on_running):
    library = in_library(ours, pattern)
    for text in compared:
        assert ours.encode(text) == library.encode(text).ids
        assert ours.decode(ours.encode(text)) == text
print(f"the same for {len(compared)} texts, and all come back as they were")
# the comparison can fail: without the optional spaces in the pattern it does
without = in_library(on_running, pattern.replace(" ?", ""))
assert on_running.encode(running[2000]) != without.encode(running[2000]).ids

# %% [markdown]
# ### Short answers
#
# - **Is the tokenizer trained together with the model?** With BPE, no: the merges are found by counting, before the
#   model is trained, and then stay fixed. A cut is made or not made, so it has no derivative, and no gradient of the
#   loss reaches it.
# - **How many tokens does a text have, roughly?** In English, with OpenAI's tokenizers, about 100 for 75 words, or one
#   for four characters ([OpenAI](https://help.openai.com/en/articles/4936856-what-are-tokens-and-how-to-count-them)).
#   Code and other languages often take more, because their subwords are rarer in the tokenizer's training text.
# - **What does a typo do?** It can leave no learned pair in the word: with our four merges *team* is one token, and
#   *taem* is four. These have other embeddings than *team*, so the model must recognise the word from its letters and
#   the context.
# - **Can a model do without a tokenizer?** Yes: ByT5 reads bytes ([Xue and others,
#   2022](https://arxiv.org/abs/2105.13626)). It needs no merges, and misspellings harmed it less than a subword model,
#   perhaps because most bytes stay the same. But an English text becomes about four times as long, which costs
#   computation.
# - **Why not start from all Unicode characters?** There are too many: Radford and others (2019) count over 130,000
#   before the first merge. At width 512 these would be 67 million numbers, and most rows would hardly be trained,
#   because most characters are rare. Bytes need 256 rows.
# - **Should I lower-case, stem, or remove stop words first?** Not for a model that writes: it cannot learn to write
#   what its training text lacks. A model that reads loses meaning, too: *US* is not *us*, and *not*, which is on many
#   lists of stop words, reverses a sentence.
# - **Can texts that look the same get different tokens?** Yes: *ë* can be one character (bytes 195, 171) or *e* and a
#   combining mark (101, 204, 136). Normalising the text first, to Unicode's form NFC, makes both the same, but then the
#   second no longer comes back as it was.
# - **Can I encode a text in parts and join the tokens?** Not at every cut: *t* and *ea*, encoded apart, stay two
#   tokens, but *tea* is one. With this chapter's pattern a cut between a visible character and the white space after it
#   is safe, because no word of the pattern crosses it.
# - **What if I add a token to a trained model?** It needs a row in the embedding table, and one in a separate output
#   layer. Start with the mean of the old rows (and biases): with $V$ old tokens its first probability is at most
#   $1/(V + 1)$, so the others hardly change ([Hewitt, 2021](https://nlp.stanford.edu/~johnhew/vocab-expansion.html)).
# - **Where do glitch tokens come from?** Often the tokenizer's training text held a string many times, such as a user
#   name, and the model's hardly at all. So the token exists, but its meaning was never learned. To find candidates,
#   count every token in the model's training text, or, without that text, look for unusual rows in the embedding table
#   ([Land and Bartolo, 2024](https://arxiv.org/abs/2405.05417)).
# - **Can tokens per word be compared between languages?** Only with care, because words hold different amounts:
#   *Straßenbahnhaltestelle* is one word, *tram stop* two. Compare the tokens of the same text in translation. There,
#   differences of up to 15 times were found ([Petrov and others, 2023](https://arxiv.org/abs/2305.15425)).
# - **What makes encoding slow?** A long "word". Each round of `_merge` reads the whole word, and $n$ bytes may need up
#   to $n - 1$ rounds, so the work can grow with $n^2$. Ordinary words are short, but 10,000 letters without a space are
#   one word. So limit the length of untrusted input.
# - **What else does the cut into words do?** It saves work: each different word is counted once, with its frequency.
#   The price is that *New York* can never be one token.
# - **What do unequal batches do to the loss?** With a fixed number of sentences a batch of short ones has few tokens,
#   and each counts more in its mean. With a token budget all tokens count about the same.
# - **Must texts be padded at all?** No: they can be joined end to end and cut into equal rows, as is common for models
#   of one stack ([chapter 18](18_gpt.ipynb)). A mask can then keep each text to itself.

# %% tags=["proof"]
import unicodedata

decomposed = unicodedata.normalize("NFD", "ë")
assert [list(text.encode()) for text in ("ë", decomposed)] == [
    [195, 171],
    [101, 204, 136],
]
assert unicodedata.normalize("NFC", decomposed) == "ë"
few = BPETokenizer.train(
    ["tea"] * 4 + ["team"] * 3 + ["steam"] * 2 + ["eat"] * 3, 263
)
assert len(few.merges) == 4
assert [len(few.encode(word)) for word in ("team", "taem", "tea", "ea")] == [
    1,
    4,
    1,
    1,
]
assert 130_000 * 512 > 66e6
