# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 12. How does it write?
#
# A trained model says which words are likely to come next. Two questions are open. First, which word should be chosen?
# You can take the best each time, follow several beginnings, or draw words by their probability. Second, how can
# writing be made faster? A cache keeps what was computed, and a small model can write ahead.
#
# You need [chapter 9](09_decoder.ipynb) for the decoder, and [chapter 11](11_training.ipynb) for a model that has
# learned something. This chapter takes about 30 minutes to read, and 40 for the exercises. [Going
# further](#going-further), at the end, takes 12 more minutes, and has [a GPT with a cache in one
# file](#a-gpt-with-a-cache-in-one-file).

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer, complete. This chapter adds generation: an arrow from the output back to the decoder's input."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=12)

# %% [markdown]
# ## One word at a time
#
# Here is a very small model. What may follow depends on the last word alone:
#
# | after | may come |
# |---|---|
# | `<bos>` | *a* 0.5, *the* 0.4, *this* 0.1 |
# | *a* | *cup* 0.4, *pot* 0.35, *tea* 0.25 |
# | *the* | *tea* 0.9, *cup* 0.1 |
# | *this* | *tea* 0.6, *cup* 0.4 |
# | *cup*, *pot* or *tea* | `<eos>` |
#
# Writing is a loop: ask what may come next, choose a token, append it, and go on until `<eos>` is chosen. Always taking
# the token with the highest probability is *greedy decoding*.
#
# **Predict first.** Which sentence is the likeliest, and which one does greedy decoding write?

# %% the probabilities, and the words tags=["hide-input"]
import math

import torch

words = ["<pad>", "<bos>", "<eos>", "a", "the", "this", "cup", "pot", "tea"]
table = torch.zeros(9, 9)
table[1, [3, 4, 5]] = torch.tensor([0.5, 0.4, 0.1])
table[3, [6, 7, 8]] = torch.tensor([0.4, 0.35, 0.25])
table[4, [6, 8]] = torch.tensor([0.1, 0.9])
table[5, [6, 8]] = torch.tensor([0.4, 0.6])
table[6:, 2] = 1.0


def text_of(tokens):
    return " ".join(words[token] for token in tokens)


# %% [markdown]
# `table[token]` holds the probabilities of what may follow a token, and `text_of` turns tokens into words:

# %% tags=["nbval-check-output"]
written, token = [], 1  # <bos>
while (token := int(table[token].argmax())) != 2:  # <eos>
    written.append(token)
print("greedy:", text_of(written))

# %% tags=["proof"]
assert text_of(written) == "a cup"
chances = {
    text_of([n, m]): round(float(table[1, n] * table[n, m]), 3)
    for n, m in (table[1, :, None] * table > 0).nonzero().tolist()
}
assert max(chances, key=chances.get) == "the tea"
assert (chances["the tea"], chances["a cup"]) == (0.36, 0.2)

# %% [markdown]
# *The tea* is likeliest, $0.4 \cdot 0.9 = 0.36$. Greedy decoding gives *a cup*, $0.5 \cdot 0.4 = 0.2$, because it took
# the best first word, after which no second word was likely, and cannot go back.
#
# ## Several hypotheses at once
#
# **Beam search** keeps the best few beginnings (**hypotheses**), say two. At each step it continues each of them with
# every word that may follow, ranks all results by probability, the product over their words, and keeps the two best. By
# hand, with dropped hypotheses in grey:

# %% tags=["plot"] mystnb={"image": {"alt": "A tree of beginnings. From <bos> to a 0.5, the 0.4 and this 0.1, of which a and the are kept. From a to cup 0.2, pot 0.175 and tea 0.125, from the to tea 0.36 and cup 0.04; kept are the tea and a cup, and both end."}}
from classroom.diagram import Diagram

drawing = Diagram(7.2, 3.0)
beginnings = {  # where it is drawn, what it goes on from, its last word, probability
    "<bos>": (0.6, 1.6, None, "<bos>", ""),
    "a": (2.4, 2.3, "<bos>", "a", " 0.5"),
    "the": (2.4, 1.1, "<bos>", "the", " 0.4"),
    "this": (2.4, 0.25, "<bos>", "this", " 0.1"),
    "a cup": (4.4, 2.75, "a", "cup", " 0.2"),
    "a pot": (4.4, 2.3, "a", "pot", " 0.175"),
    "a tea": (4.4, 1.85, "a", "tea", " 0.125"),
    "the tea": (4.4, 1.1, "the", "tea", " 0.36"),
    "the cup": (4.4, 0.65, "the", "cup", " 0.04"),
    "end of a cup": (6.3, 2.75, "a cup", "<eos>", " 0.2"),
    "end of the tea": (6.3, 1.1, "the tea", "<eos>", " 0.36"),
}
for name, (*_, chance) in beginnings.items():
    if name.count(" ") == 1 and not name.startswith("end"):
        one, two = map(words.index, name.split())
        found = float(table[1, one] * table[one, two])
        assert math.isclose(found, float(chance), rel_tol=1e-6)
dropped = {"this", "a pot", "a tea", "the cup"}
for name, (x, y, before, word, chance) in beginnings.items():
    color = plots.GREY if name in dropped else plots.INK
    drawing.text(x, y, word + chance, color=color)
    if before:
        start = beginnings[before]
        drawing.arrow((start[0] + 0.55, start[1]), (x - 0.6, y), color=color)
plt.show()

# %% [markdown]
# At the next step both end. The better one is *the tea*: beam search finds it, although its first word is only the
# second best. In general, endings among the two best results are set aside as finished. The two best results that do
# *not* end go on; they are called *live*. (An ending that is not among the two best is dropped:
# [why](#when-does-beam-search-stop).)
#
# A product of many probabilities is tiny, so the code adds their logarithms (**log-probabilities**). The ranking stays
# the same.

# %% tags=["nbval-check-output"]
beam, live, ended = 2, [(0.0, [1])], []  # sums, tokens; 1 is <bos>, 2 <eos>
while live:
    ranked = []
    for total, tokens in live:
        for token, log in enumerate(table[tokens[-1]].log().tolist()):
            if log > -math.inf:
                ranked.append((total + log, [*tokens, token]))
    ranked.sort(reverse=True)
    ended += [(total, tokens) for total, tokens in ranked[:beam] if tokens[-1] == 2]
    going = [(total, tokens) for total, tokens in ranked if tokens[-1] != 2]
    live = going[:beam]
    print("live:", [f"{text_of(tokens[1:])} {total:.2f}" for total, tokens in live])
print("ended:", [f"{text_of(tokens[1:-1])} {total:.2f}" for total, tokens in ended])
assert [text_of(tokens[1:-1]) for _, tokens in ended] == ["the tea", "a cup"]

# %% [markdown]
# A logarithm of a probability is at most 0, so a further token never raises the sum, and long hypotheses are at a
# disadvantage. So divide the sum by something that grows with the length. That could be the number $n$ of tokens,
# including the end token. [Wu and others (2016)](https://arxiv.org/abs/1609.08144) found a gentler divisor better in
# their experiments, the **length penalty** $\text{lp}(n)$:
#
# $$\text{score} = \frac{\sum \log p}{\text{lp}(n)}, \qquad \text{lp}(n) = \left(\frac{5 + n}{6}\right)^{\alpha}$$
#
# This is **length normalisation**. Take two hypotheses, and $\alpha = 0.6$, as in the original transformer:
#
# | tokens | sum | $\text{lp}(n)$ | score |
# |---|---|---|---|
# | 3 | −1.2 | $(8/6)^{0.6} = 1.188$ | −1.010 |
# | 6 | −1.4 | $(11/6)^{0.6} = 1.439$ | −0.973 |
#
# By its sum the short one wins. By its score the long one wins: a negative sum divided by a larger number comes closer
# to 0, so long hypotheses gain, the more so the larger $\alpha$ is. With $\alpha = 0$ the score is the plain sum.
#
# Nothing forces a trained model ever to choose `<eos>`, so a maximum length is needed.

# %% [markdown]
# ## Should one search harder?
#
# Beam search usually finds likelier sentences than greedy decoding. (It can still miss the likeliest, because a
# beginning that was dropped never comes back.) Is likelier better?
#
# [Stahlberg and Byrne (2019)](https://arxiv.org/abs/1908.10090) found, for each source, the sentence that is likeliest
# under a trained translation model ([how](#when-does-beam-search-stop)). For more than half of the sources it was the
# *empty* one.
#
# The probability of a good translation of twenty words is a product of twenty-one factors, counting the end token. At
# 0.7 each that makes 0.0006. A model that wrongly gives the empty sentence as much as 0.001 prefers it. This preference
# for short texts is called **length bias**.
#
# A **search error** means that the search misses the sentence with the highest score, and a **model error** that this
# sentence is bad. A search error can hide a model error. Suppose that at the first step `<eos>` is only the 40th
# likeliest token:
#
# - A beam of 4 never gets to the empty sentence, and writes the translation.
# - A beam of 100 does keep it as finished, and with $\alpha = 0$ its 0.001 wins against the translation's 0.0006.
#
# So a better search can make worse translations ([Koehn and Knowles, 2017](https://arxiv.org/abs/1706.03872)), later
# called the *beam search curse*. The length penalty repairs our example: with $\alpha = 0.6$ the translation has
# $21 \ln 0.7 / \text{lp}(21) = -7.5 / 2.41 = -3.1$, and the empty sentence only $\ln 0.001 / \text{lp}(1) = -6.9$.

# %% tags=["proof"]
assert round(0.7**21, 4) == 0.0006

assert round(math.log(0.001), 1) == -6.9
assert round(21 * math.log(0.7) / (26 / 6) ** 0.6, 1) == -3.1

# %% [markdown]
# ## One loop for every model
#
# Greedy decoding and [sampling](#sampling), a random draw, differ only in how a token is chosen, and models with and
# without a cache only in how logits are computed. So the loop of [chapter
# 9](09_decoder.ipynb#a-model-that-has-learned-to-answer) is written once, for many sentences, one per row. A function
# `choose` turns logits $(B, V)$ into tokens $(B)$: argmax for greedy decoding, a draw for sampling. And a **state**,
# the model together with what it has read so far, offers four things:
#
# | | what it does |
# |---|---|
# | `len(state)` | says how many rows there are |
# | `state.step(tokens)` | reads one more token for each row, and returns the logits $(B, V)$ of what may follow |
# | `state.select(rows)` | keeps these rows, in this order. In beam search every hypothesis is a row, and a row that two kept hypotheses continue is named twice |
# | `state.special_ids` | the numbers of padding, begin and end; the first two are never written |
#
# `Table`, folded, is a state for the little model above; the type of all states is `Decoding`. `generate` is the loop:
# ask for the logits, rule out padding and begin, choose. Rows that chose the end leave, and the others append their
# token.


# %% the interface over these probabilities tags=["hide-input"]
class Table:
    """Sentences written from probabilities that are fixed."""

    special_ids = (0, 1, 2)

    def __init__(self, rows=1):
        self.rows = rows

    def __len__(self):
        return self.rows

    def step(self, tokens):
        return table[tokens].log()  # their softmax is the probabilities again

    def select(self, rows):
        self.rows = len(rows)


# %% tags=["export"] module="generation"
import math
from collections.abc import Callable

import torch
from dotformer.support import decoding
from dotformer.support.decoding import Decoding
from torch import Tensor


def generate(
    state: Decoding, max_length: int, choose: Callable[[Tensor], Tensor]
) -> list[list[int]]:
    """Write each sentence token by token, to its end or for `max_length` tokens.

    `choose` takes logits (B, V) and returns tokens (B,). ValueError: a dead end,
    where no token is possible.
    """
    decoding.check_search(max_length)
    pad, begin, end = state.special_ids
    sentences: list[list[int]] = [[] for _ in range(len(state))]
    unfinished = sentences  # the same lists, not copies
    tokens = torch.full((len(state),), begin)
    for _ in range(max_length):
        logits = decoding.checked_logits(state.step(tokens))  # (B, V)
        logits[:, [pad, begin]] = -math.inf
        decoding.check_possible(logits)
        tokens = choose(logits)  # (B,)
        going = (tokens != end).nonzero().flatten()
        if len(going) < len(unfinished):
            state.select(going)
            unfinished = [unfinished[row] for row in going.tolist()]
            tokens = tokens[going]
        if not unfinished:
            break
        for sentence, token in zip(unfinished, tokens.tolist(), strict=True):
            sentence.append(token)
    return sentences


def greedy(state: Decoding, max_length: int) -> list[list[int]]:
    """Always the token that scores highest; see `generate`."""
    return generate(state, max_length, lambda logits: logits.argmax(dim=-1))


# %% tags=["proof"]
assert greedy(Table(rows=2), max_length=5) == [written, written]

# %% [markdown]
# The simplest state for a transformer, `Recompute` (folded), has no cache, and reads again all that has been written.


# %% a state without a cache tags=["hide-input"]
class Recompute:
    special_ids = (0, 1, 2)

    def __init__(self, model, source):
        with torch.no_grad():
            self.model, self.memory = model, model.encode(source)
        self.read = torch.empty(len(source), 0, dtype=torch.long)

    def __len__(self):
        return len(self.read)

    @torch.no_grad()
    def step(self, tokens):
        self.read = torch.cat([self.read, tokens[:, None]], dim=1)
        return self.model.decode(self.read, *self.memory)[:, -1]

    def select(self, rows):
        self.read = self.read[rows]
        self.memory = tuple(part[rows] for part in self.memory)


# %% [markdown]
# `beam_search`, folded, does for a batch what the short beam search above did for one sentence, with the length
# penalty. After each step `select` gets the rows that the kept hypotheses came from. In the example:
#
# | row | before | after | comes from row |
# |---|---|---|---|
# | 0 | *a* | *the tea* | 1 |
# | 1 | *the* | *a cup* | 0 |
#
# So `select([1, 0])` swaps what the model has read. Without this call a transformer would read *tea* after *a*, and
# nothing would crash.

# %% tags=["export", "hide-input"] module="generation"
from typing import NamedTuple


class Hypothesis(NamedTuple):
    """A way to write a sentence: its tokens, and its score, the higher the better."""

    tokens: list[int]
    score: float


def length_penalty(length: int, alpha: float) -> float:
    """What a sum of `length` logarithms is divided by: Wu and others 2016, eq. 14."""
    return ((5 + length) / 6) ** alpha


# %% tags=["export", "hide-input"] module="generation"
def beam_search(
    state: Decoding, max_length: int, beam: int = 4, alpha: float = 0.6
) -> list[list[Hypothesis]]:
    """For each sentence the best hypotheses found, at most `beam`, the best first.

    A sentence is done when `beam` have ended and none that goes on can beat their
    best. If none has ended after `max_length` tokens, unfinished ones are returned.
    """
    decoding.check_search(max_length, beam, alpha)
    pad, begin, end = state.special_ids
    finished: list[list[Hypothesis]] = [[] for _ in range(len(state))]
    # of each row: its sentence, its sum, its tokens
    live = [(n, 0.0, []) for n in range(len(state))]
    tokens = torch.full((len(state),), begin)
    last_penalty = length_penalty(max_length, alpha)
    for length in range(1, max_length + 1):
        if not live:
            break
        # kept: sentence, sum, row and token of all that go on
        penalty, kept = length_penalty(length, alpha), []
        logs = decoding.checked_logits(state.step(tokens)).log_softmax(dim=-1)
        logs[:, [pad, begin]] = -math.inf  # never written
        best = logs.topk(min(beam + 1, logs.shape[1]))  # of each row
        values, indices = best.values.tolist(), best.indices.tolist()
        candidates = [[] for _ in finished]
        for row, (n, total, _) in enumerate(live):
            for log, token in zip(values[row], indices[row], strict=True):
                if log > -math.inf:
                    candidates[n].append((total + log, row, token))
        for n, ended in enumerate(finished):
            ranked = sorted(candidates[n], key=lambda c: c[0], reverse=True)
            for total, row, token in ranked[:beam]:
                if token == end:
                    ended.append(Hypothesis(live[row][2], total / penalty))
            going = [(n, *c) for c in ranked if c[2] != end][:beam]
            bound = going[0][1] / last_penalty if going else -math.inf
            if len(ended) < beam or bound > max(h.score for h in ended):
                kept += going
        state.select(torch.tensor([row for _, _, row, _ in kept], dtype=torch.long))
        tokens = torch.tensor([token for *_, token in kept])
        live = [(n, total, [*live[row][2], token]) for n, total, row, token in kept]
    for n, found in enumerate(finished):
        if not found:
            found += [Hypothesis(t, s / last_penalty) for m, s, t in live if m == n]
    return [sorted(found, key=lambda h: -h.score)[:beam] for found in finished]


# %% tags=["proof"]
import numpy as np

[hypotheses] = beam_search(Table(), max_length=5, beam=2)
assert text_of(hypotheses[0].tokens) == "the tea"
assert np.isclose(hypotheses[0].score, np.log(0.36) / (8 / 6) ** 0.6)
assert np.allclose(
    [length_penalty(n, 0.6) for n in (3, 6)], [1.188, 1.439], atol=5e-4
)


# %% [markdown]
# ## A model that has learned a little
#
# Does a beam help a trained model? Take the number model of chapter 11, which writes English numbers in German. After
# its full training it leaves a beam almost nothing to improve, so we train it for only 110 steps instead of 600,
# without label smoothing, which [changes the probabilities](#why-are-draws-after-label-smoothing-so-poor). The beam
# ranks with $\alpha = 0.6$. Here is the exact match, the share of 500 numbers with every token right, for three seeds:

# %% three models, trained, without a cache tags=["hide-input"]
from dotformer.data.corpora import number_words
from dotformer.tokens import BPETokenizer, pad_batch
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches
from dotformer.transformer import Transformer, TransformerConfig

corpus = number_words()
english = BPETokenizer.train((" " + p.source for p in corpus.train), 10_000)
german = BPETokenizer.train((" " + p.target for p in corpus.train), 10_000)


def encode_pairs(pairs):
    return [
        (
            english.encode(" " + p.source),
            german.encode(" " + p.target, add_special_tokens=True),
        )
        for p in pairs
    ]


validation = encode_pairs(corpus.validation)
batches = partial(pair_batches, encode_pairs(corpus.train), max_tokens=1024)
validate = partial(evaluate, batches=list(pair_batches(validation)))
sizes = {"d_model": 64, "num_heads": 4, "d_ff": 128, "dropout": 0.0}
layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}


def trained(seed, steps=110, smoothing=0.0, **changes):
    config = TrainingConfig(
        steps=steps,
        learning_rate=3e-3,
        warmup_steps=50,
        validate_every=steps,
        label_smoothing=smoothing,
    )
    torch.manual_seed(seed)
    shape = sizes | layers | changes
    model = Transformer(TransformerConfig(len(english), len(german), **shape))
    [row] = Trainer(model, config).train(batches, validate, progress=False)
    return model.eval(), row["validation_exact"]


models, forced = zip(*(trained(seed) for seed in range(3)), strict=True)

# %% whole numbers right, greedy and beam tags=["hide-input"]
sources = pad_batch([source for source, _ in validation], 0)
wanted = [target[1:-1] for _, target in validation]


def exact(written):
    return np.mean(
        [one == other for one, other in zip(written, wanted, strict=True)]
    )


def best(state, beam, alpha=0.6):
    return [found[0].tokens for found in beam_search(state, 40, beam, alpha)]


shares = {
    "greedy": [exact(greedy(Recompute(m, sources), 40)) for m in models],
    "beam 4": [exact(best(Recompute(m, sources), 4)) for m in models],
}
for name, row in shares.items():
    print(f"{name:21}", "  ".join(f"{share:.1%}" for share in row))
assert np.allclose(shares["greedy"], forced, atol=0.005)
assert np.all(np.array(shares["beam 4"]) > shares["greedy"])

# %% tags=["proof"]
# the search against all 341 sentences that a tiny model can write
from itertools import product

torch.manual_seed(34)
tiny = Transformer(
    TransformerConfig(
        7, 7, 1, 1, d_model=16, num_heads=2, d_ff=32, tie_output=False
    )
).eval()
tiny.output.weight.data *= 2  # so that its probabilities are less even
question = torch.tensor([[3, 4, 5]])


def score(sentence, alpha=0.6):
    tokens = torch.tensor([[1, *sentence, 2]])
    with torch.no_grad():
        logs = tiny(question, tokens[:, :-1])[0].log_softmax(-1)
    total = logs[range(len(sentence) + 1), tokens[0, 1:]].sum()
    return (total / length_penalty(len(sentence) + 1, alpha)).item()


every = [
    list(s) for length in range(5) for s in product(range(3, 7), repeat=length)
]
ranked, places = sorted(every, key=score, reverse=True), []
for beam in (1, 2, 4, 2000):
    [found] = beam_search(Recompute(tiny, question), 5, beam)
    place = ranked.index(found[0].tokens) + 1
    places.append(place)
assert places == [3, 1, 1, 1]
assert [hypothesis.tokens for hypothesis in found[:10]] == ranked[:10]
assert np.allclose(
    [hypothesis.score for hypothesis in found],
    sorted(map(score, every))[::-1],
    atol=1e-5,
)

# %% [markdown]
# The beam gets a few more numbers right with every seed, but the decoder has four times as many rows to compute.
#
# Is a wrong output the fault of the search or of the model? Where only one sentence is right, as here, the scores tell.
# If the right sentence scores higher than the one that was written, the search has failed. If it scores lower, a better
# search cannot help: it could only find sentences that score higher still. Here are an output of the first model that
# the beam repairs, and one that it breaks, with the beam's two best hypotheses and their scores:


# %% one repaired by beam search, one broken tags=["hide-input"]
def spelled(tokens):
    return german.decode(tokens).strip()


greedy_all = greedy(Recompute(models[0], sources), 40)
found_all = beam_search(Recompute(models[0], sources), 40, beam=4)
pairs = list(zip(greedy_all, [found[0].tokens for found in found_all], strict=True))
fixed, broken = (
    [n for n, pair in enumerate(pairs) if pair[side] == wanted[n] != pair[1 - side]]
    for side in (1, 0)
)
for n in (fixed[0], broken[-1]):
    print("source:   ", corpus.validation[n].source)
    print("right:    ", spelled(wanted[n]))
    print("greedy:   ", spelled(greedy_all[n]))
    for hypothesis in found_all[n][:2]:
        print(f"beam {hypothesis.score:6.2f}", spelled(hypothesis.tokens))
    print()
print(
    f"of {len(wanted)} numbers the beam fixes {len(fixed)} and breaks {len(broken)}"
)
assert len(fixed) > len(broken) > 0
shorter = spelled(wanted[broken[-1]]).replace("acht hundert ", "", 1)
assert shorter == spelled(found_all[broken[-1]][0].tokens)

# %% [markdown]
# In the first example, greedy decoding makes a search error, because the right sentence scores higher. In the second,
# the beam finds the right sentence too, but a shorter one, without *acht hundert*, scores higher: a model error, which
# greedy decoding had hidden. So the length penalty does not always protect against lost words.
#
# ## Sampling
#
# A translation is tied to its source, and a narrow beam usually finds a good one. A story can go on in thousands of
# ways, and the likeliest is not the one that you want to read. [Holtzman and others
# (2020)](https://arxiv.org/abs/1904.09751) let GPT-2 continue texts by beam search, and it repeated the same sentences
# over and over (**degeneration**). Greedy decoding often repeats, too. Here is how SmolLM2, [a published
# model](19_modern.ipynb#smollm2), goes on after *The old man walked along the shore and looked at the sea.*, greedily,
# and drawn with top-p, explained below:

# %% one text, greedily and drawn tags=["hide-input"]
import textwrap

from classroom.measured import measured

going_on = measured("degeneration")
for name, text in (
    ("greedy:", going_on["greedy"]),
    ("drawn, top-p 0.9:", going_on["drawn"][:77]),
):
    line = " ".join(f"{name} … {text}".split())
    print(textwrap.fill(f"{line} …", 84))
assert (
    going_on["greedy"].count("I am the one who has brought the sea back to me.")
    == 3
)

# %% [markdown]
# There are two reasons not to look for the likeliest story:
#
# 1. Repetition feeds on itself: with each repetition GPT-2 found the next one likelier.
# 2. The likeliest text is not a typical one. Toss a coin that shows heads with probability 0.6. The likeliest run of a
#    hundred tosses is all heads, and nobody ever sees it.
#
# So draw each word with the model's probabilities: **sampling** (or *ancestral sampling*). Its weakness is the
# **tail**: thousands of words of tiny probability. If together they take 5 percent at each step, a text of twenty words
# has at least one of them with probability $1 - 0.95^{20} = 0.64$, and one odd word can mislead all that follow.
#
# Four options control how random the draw is; the last three cut off the tail:
#
# | option | what it does | effect |
# |---|---|---|
# | **temperature** | divides the logits before the softmax ([chapter 3](03_softmax.ipynb#temperature)) | near 0 almost greedy decoding (some programs take 0 to mean it); at 1 the model's own probabilities; above 1 flatter; as it grows, all words approach the same probability, and nearly every draw comes from the tail |
# | **top-k** | keeps the $k$ likeliest words; $k = 1$ is greedy decoding | the same number at every step: too many where one word fits, too few where hundreds do |
# | **top-p**, nucleus sampling | keeps as few words as possible, the likeliest first, whose probabilities sum to at least $p$; $p = 1$ cuts nothing | one word where the model is sure, many where it is unsure |
# | **min-p** | keeps words with at least a given share of the likeliest word's probability | few where the model is sure; where it is unsure the limit is low, and many stay |
#
# After a cut, the probabilities that are left are divided by their sum. Top-k and top-p compared:

# %% tags=["plot"] mystnb={"image": {"alt": "Two bar charts of ten words' probabilities. Left, sure: the first word has 0.9, the others share 0.1; top-p with p = 0.8 keeps that one word, top-k with k = 4 keeps three unlikely ones as well. Right, unsure: the probabilities fall slowly from 0.16 to 0.04; top-p keeps seven words, top-k four."}}
sure = np.array([0.9, 0.02, 0.015, 0.015, *[0.01] * 4, 0.005, 0.005])
unsure = np.linspace(0.16, 0.04, 10)
figure, panels = plt.subplots(1, 2, figsize=(7.2, 2.1))
for axes, chances, title in zip(
    panels, (sure, unsure), ("sure", "unsure"), strict=True
):
    top = chances.max()
    before = np.cumsum(chances) - chances
    nucleus_size = int((before < 0.8).sum())
    axes.bar(range(10), chances, color=plots.GREY)
    for size, height, color, name in (
        (4, 1.3, plots.RED, "top-k, 4"),
        (nucleus_size, 1.12, plots.BLUE, "top-p, 0.8"),
    ):
        axes.plot([-0.4, size - 0.6], [height * top] * 2, color=color, lw=3)
        axes.text(size - 0.4, height * top, name, color=color, va="center")
    axes.set(title=title, xticks=[], xlabel="words", ylim=(0, 1.45 * top))
panels[0].set_ylabel("probability")
figure.tight_layout()
plt.show()
assert nucleus_size == 7 and np.allclose([sure.sum(), unsure.sum()], 1)

# %% [markdown]
# **By hand**, five probabilities under each option:
#
# | | | | | | |
# |---|---|---|---|---|---|
# | the model | 0.5 | 0.25 | 0.15 | 0.07 | 0.03 |
# | temperature 0.5 | 0.734 | 0.183 | 0.066 | 0.014 | 0.003 |
# | temperature 2 | 0.348 | 0.246 | 0.191 | 0.130 | 0.085 |
# | top-k, $k = 2$ | 0.667 | 0.333 | 0 | 0 | 0 |
# | top-p, $p = 0.8$ | 0.556 | 0.278 | 0.167 | 0 | 0 |
# | min-p, a tenth of the likeliest | 0.515 | 0.258 | 0.155 | 0.072 | 0 |
#
# Temperature 0.5 doubles the logits, which squares the probabilities ($e^{2x} = (e^x)^2$); the squares are then divided
# by their sum. Top-p with $p = 0.8$ needs three words, because $0.5 + 0.25$ is not enough; after temperature 0.5 two
# are enough, and after temperature 2 four are needed. So the order matters: the code, which has no min-p, applies
# temperature, top-k, then top-p; other programs use other orders.
#
# [Nguyen and others (2024)](https://arxiv.org/abs/2407.01082) propose min-p for high temperatures: there thousands of
# unlikely words together have so large a share that top-p lets many in, whereas min-p judges each word alone. Whether
# its texts are better is disputed ([Schaeffer and others, 2025](https://arxiv.org/abs/2506.13681)).

# %% tags=["proof"]
assert round(1 - 0.95**20, 2) == 0.64
five = np.array([0.5, 0.25, 0.15, 0.07, 0.03])
enough = np.where(five >= 0.1 * five.max(), five, 0)
assert (enough / enough.sum()).round(3).tolist() == [0.515, 0.258, 0.155, 0.072, 0]

# %% tags=["export"] module="generation"


def filter_logits(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> Tensor:
    """Logits (B, V) divided by `temperature`, those of unlikely tokens -inf.

    Unlikely: not among the `top_k` highest (Fan and others, 2018), then not needed
    for a share `top_p` of the probability left (Holtzman and others, 2020).
    """
    decoding.check_filters(temperature, top_k, top_p)
    # the largest is 0 now: no overflow at a low temperature
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    ordered, order = logits.sort(dim=-1, descending=True)
    if top_k is not None:
        ordered[..., top_k:] = -math.inf
    if top_p < 1:
        share = ordered.softmax(dim=-1)
        before = share.cumsum(dim=-1) - share  # all that is likelier, together
        ordered = ordered.masked_fill(before >= top_p, -math.inf)
    # back to the order of the vocabulary
    return torch.empty_like(ordered).scatter(-1, order, ordered)


def sample(
    state: Decoding,
    max_length: int,
    generator: torch.Generator | None = None,
    **filters: float | None,
) -> list[list[int]]:
    """Draw each token by its probability, with the options of `filter_logits`."""

    def draw(logits: Tensor) -> Tensor:
        shares = filter_logits(logits, **filters).softmax(dim=-1)
        return torch.multinomial(shares, 1, generator=generator).flatten()

    return generate(state, max_length, draw)


# %% the same five words, filtered tags=["hide-input"]
scores = torch.tensor([[0.5, 0.25, 0.15, 0.07, 0.03]]).log()
top_k = filter_logits(scores, top_k=2).softmax(-1)
top_p = filter_logits(scores, top_p=0.8).softmax(-1)
cold = filter_logits(scores, temperature=0.5).softmax(-1)
assert np.allclose(top_k, [[2 / 3, 1 / 3, 0, 0, 0]], atol=1e-6)
assert np.allclose(top_p, [[0.556, 0.278, 0.167, 0, 0]], atol=5e-4)
hot = filter_logits(scores, temperature=2.0).softmax(-1)
assert np.allclose(cold, [[0.734, 0.183, 0.066, 0.014, 0.003]], atol=6e-4)
assert np.allclose(hot, [[0.348, 0.246, 0.191, 0.130, 0.085]], atol=6e-4)
assert hot[0, :3].sum() < 0.8 < hot[0, :4].sum()  # top-p after temperature 2
assert cold[0, :2].sum().round(decimals=3) == 0.917

generator = torch.Generator().manual_seed(0)
drawn = sample(Table(1000), max_length=5, generator=generator)
drawn_share = {
    t: np.mean([text_of(d) == t for d in drawn]) for t in ("the tea", "a cup")
}
assert np.allclose(list(drawn_share.values()), [0.36, 0.2], atol=0.05)

# %% [markdown]
# Numbers have one right answer, so with the number model we can *count* what drawing costs.
#
# **Predict first.** Greedy decoding gets more than half of the numbers right with the first model. How many does
# sampling get right?

# %% four samples, and the share right tags=["hide-input"]
n = next(
    n
    for n, pair in enumerate(corpus.validation)
    if pair.source == "eleven thousand seven hundred and eighty nine"
)
four = sample(
    Recompute(models[0], sources[[n] * 4]), 40, torch.Generator().manual_seed(0)
)
print(corpus.validation[n].source)
for tokens in four:
    print("   ", spelled(tokens), "" if tokens == wanted[n] else "  (wrong)")
print()
for options in (
    {},
    {"top_k": 5},
    {"top_p": 0.9},
    {"temperature": 0.5},
    {"temperature": 0.1},
):
    generator = torch.Generator().manual_seed(0)
    drawn = sample(
        Recompute(models[0], sources), 40, generator=generator, **options
    )
    shares[str(options)] = exact(drawn)
    print(f"{options or 'no option'!s:24}{shares[str(options)]:9.1%} of 500 right")

# %% [markdown]
# Without any option, about a fifth are right, because one wrong token spoils a number. (The � is a byte that does not
# make a whole character.) Each option tried brings the share nearer to that of greedy decoding. Top-p 0.9 stays far
# below it, because a wrong token that is likely survives the cut. After training with label smoothing, draws without
# any option are right less than one time in eight ([why](#why-are-draws-after-label-smoothing-so-poor)).
#
# So which method for what? Where the source largely determines the answer, as in translation, take a narrow beam, or
# greedy decoding. For stories and conversation, draw, and cut off the tail.

# %% tags=["proof"]
smoothed, _ = trained(0, smoothing=0.1)
generator = torch.Generator().manual_seed(0)
drawn = sample(Recompute(smoothed, sources), 40, generator=generator)
assert (
    exact(drawn) < 1 / 8
    and 0.4 < exact(greedy(Recompute(smoothed, sources), 40)) < 0.6
)
rising = [shares[str(o)] for o in ({}, {"temperature": 0.5}, {"temperature": 0.1})]
assert rising[0] < rising[1] < rising[2]
for option in ({"top_k": 5}, {"top_p": 0.9}):
    assert shares[str(option)] > shares["{}"] + 0.05
assert 0.5 < shares["greedy"][0] < 0.57 and 0.15 < shares["{}"] < 0.25

# %% tags=["quiz"]
quiz.one_choice(
    "You raise *top-p* from 0.5 to 0.9. What can happen at a step where one word alone has the probability 0.95?",
    quiz.right(
        "Nothing: that word alone is enough for both",
        "Yes. Where the model is sure, top-p lets one word through, and where it is unsure, many. Top-k always keeps the same number.",
    ),
    quiz.wrong(
        "More words can be drawn, since 0.9 is a larger share",
        "A larger share may need more words. Here one word has 0.95 of it already.",
    ),
    quiz.wrong(
        "No word can be drawn, since 0.95 is above 0.9",
        "Words are added until the share is *reached*. The one that crosses it stays.",
    ),
    quiz.wrong(
        "The word becomes less likely, as at a higher temperature",
        "Temperature changes the ratios between words. Top-p only takes words away.",
    ),
)

# %% [markdown]
# ## What has been computed before
#
# The second question was how to write faster. At step $t$ `Recompute` sends all $t$ tokens through the decoder and uses
# only the last row. **By hand:** for 100 tokens, $1 + 2 + \dots + 100 = 5050$ token vectors go through the model, of
# which 100 are new.
#
# **Predict first.** Which results for the first $t - 1$ tokens could be kept?
#
# Because of the causal mask an earlier token never sees a later one, so its vectors stay the same in every layer when
# more tokens are written. The new token's query is compared with the earlier keys and its own key, and the weights
# blend the values. The earlier queries have done their work, so keep only the earlier keys and values: this is the **KV
# cache**. (If an earlier token is changed or inserted, keep only the keys and values before it, and compute the rest
# again.)
#
# The keys and values of cross-attention come from the encoder's output and never change, so they are computed once.

# %% tags=["plot"] mystnb={"image": {"alt": "Two rows of triangles of cells for four steps. Above, without a cache: at step t all t rows of the score matrix are computed, a triangle that grows from one cell to ten. Below, with a cache: at step t only the last row is computed, one to four cells; the earlier rows are pale."}}
figure, panels = plt.subplots(2, 4, figsize=(7.2, 3.6))
for column in range(4):
    for row, (axes, name) in enumerate(
        zip(panels[:, column], ("no cache", "cache"), strict=True)
    ):
        steps = column + 1
        for query, key in np.ndindex(4, 4):
            known = key <= query < steps
            new = known and (row == 0 or query == steps - 1)
            color = plots.BLUE if new else ("#c9d5de" if known else "none")
            edge = "white" if known else plots.GREY
            axes.add_patch(
                plt.Rectangle((key, -query), 0.9, -0.9, fc=color, ec=edge, lw=0.3)
            )
        computed = steps * (steps + 1) // 2 if row == 0 else steps
        axes.set(xlim=(-0.2, 4), ylim=(-4.9, 0.2), aspect="equal")
        axes.text(
            2, -4.6, f"{computed} score{'s' * (computed > 1)}", ha="center", size=10
        )
        axes.axis("off")
        if row == 0:
            axes.set_title(f"step {steps}", size=11)
        if column == 0:
            axes.text(-0.5, -2, name, rotation=90, va="center", ha="right")
plt.show()

# %% [markdown]
# Each triangle is one head's attention scores, one query per row, above without a cache and below with one. Dark cells
# are computed at that step. For $n$ tokens, all steps together compute (masked scores not counted):
#
# | | without a cache | with a cache |
# |---|---|---|
# | token vectors | $n(n+1)/2$, so $O(n^2)$ | $n$ |
# | attention scores | $n(n+1)(n+2)/6$, so $O(n^3)$ | $n(n+1)/2$, so $O(n^2)$ |

# %% [markdown]
# For one head, and a new token `x` of shape $(1, D)$, the idea is four lines:
#
# ```python
# kept_k = torch.cat([kept_k, w_k(x)])  # (t, d_k)
# kept_v = torch.cat([kept_v, w_v(x)])
# weights = (w_q(x) @ kept_k.T / math.sqrt(d_k)).softmax(dim=-1)  # (1, t)
# received = weights @ kept_v
# ```
#
# `KVAttention` does that for all heads of a batch, with the parameters of the attention of [chapter
# 7](07_learning.ipynb#let-the-machine-do-it). It starts with keys and values for the vectors that it is given, which
# may be none. `extend` first keeps those of new tokens and then attends; `attend` attends to what is kept, and adds
# nothing.

# %% tags=["export"] module="generation"
from dotformer.attention import MultiHeadAttention
from dotformer.transformer import Transformer
from jaxtyping import Float, Int
from torch.nn import functional as F


class KVAttention:
    """Attention that keeps keys and values (B, H, S, d_k), those of x (B, S, D)."""

    def __init__(
        self, attention: MultiHeadAttention, x: Tensor, mask: Tensor | None = None
    ) -> None:
        self.attention, self.mask = attention, mask
        self.k = attention.split_heads(attention.w_k(x))
        self.v = attention.split_heads(attention.w_v(x))

    def extend(self, x: Tensor) -> Tensor:
        """Keep keys and values of new tokens x (B, T, D); attend from x to all.

        ValueError: there are several, and no mask hides the later ones.
        """
        if x.shape[1] > 1 and self.mask is None:
            raise ValueError(f"{x.shape[1]} new tokens need a causal mask")
        a = self.attention
        # along the tokens: (B, H, S + T, d_k)
        self.k = torch.cat([self.k, a.split_heads(a.w_k(x))], dim=-2)
        self.v = torch.cat([self.v, a.split_heads(a.w_v(x))], dim=-2)
        return self.attend(x)

    def attend(self, x: Tensor) -> Tensor:
        """Attention from x (B, T, D) to all that is kept."""
        q = self.attention.split_heads(self.attention.w_q(x))
        heads = F.scaled_dot_product_attention(q, self.k, self.v, self.mask)
        return self.attention.w_o(self.attention.merge_heads(heads))

    def select(self, rows: Tensor) -> None:
        """Keep these rows (M,) of the batch, in this order."""
        self.k, self.v = self.k.index_select(0, rows), self.v.index_select(0, rows)
        self.mask = None if self.mask is None else self.mask[rows]


# %% [markdown]
# For each decoder layer `KVCache` has two such objects. The one for self-attention starts empty and grows with the
# target; `memory[:, :0]`, empty, gives it its shape. The one for cross-attention keeps the memory's keys and values,
# and never grows.


# %% tags=["export"] module="generation"
class KVCache:
    """Sentences that a transformer writes, with their keys and values so far."""

    special_ids = (0, 1, 2)  # as `BPETokenizer` numbers padding, begin and end

    @torch.no_grad()
    def __init__(self, model: Transformer, source: Int[Tensor, "B S"]) -> None:
        decoding.check_evaluating(model)
        memory, mask = model.encode(source)
        self.model, self.length, layers = model, 0, model.decoder.layers
        self.target = [KVAttention(a.self_attention, memory[:, :0]) for a in layers]
        self.source = [KVAttention(a.cross_attention, memory, mask) for a in layers]
        self.sentences = torch.arange(len(source))  # which source each row is of

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.sentences)

    @torch.no_grad()
    def step(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
        """Read a token of each row: logits of what may follow."""
        embeddings, decoder = self.model.target_embeddings, self.model.decoder
        positions = embeddings.positions.table
        decoding.check_room(self.length, len(positions))
        x = embeddings.tokens(tokens.to(positions.device)[:, None])
        x = x * embeddings.scale + positions[self.length]  # (B, 1, D)
        for n, layer in enumerate(decoder.layers):
            x = layer.self_attention_add_norm(x, self.target[n].extend)
            x = layer.cross_attention_add_norm(x, self.source[n].attend)
            x = layer.feed_forward_add_norm(x, layer.feed_forward)
        self.length += 1
        return self.model.output(decoder.norm(x))[:, -1]

    def select(self, rows: Int[Tensor, " M"]) -> None:
        """Keep these rows, in this order; one may occur several times."""
        before, self.sentences = self.sentences, self.sentences[rows.cpu()]
        # rows of one source have equal memories: nothing to copy
        moved = not torch.equal(before, self.sentences)
        rows = rows.to(self.model.output.weight.device)
        for attention in self.target + (self.source if moved else []):
            attention.select(rows)


# %% [markdown]
# `step` is `Transformer.decode` of [chapter 9](09_decoder.ipynb#the-module-that-the-book-uses) for one token. The
# position to add is the number of tokens read so far, `self.length`. A layer takes its attention as a function:
# `layer.self_attention_add_norm(x, f)` adds `f(x)` to `x`, with a norm before or after. Here `f` is `extend` for
# self-attention, which keeps the new keys and values, and `attend` for cross-attention.
#
# **Which masks does a step need?**
#
# - It needs no causal mask, because the tokens that it would hide are not written yet.
# - It needs no padding mask of the *target*: all rows start with `<bos>`, and finished ones leave the batch, so all are
#   equally long.
# - It does need the padding mask of the *source*: padded positions have keys like any others.
#
# A given text, such as a chat model's *prompt*, is read in one pass, the **prefill**, which fills the cache. That is
# faster than one `step` for each token. ([The GPT below](#a-gpt-with-a-cache-in-one-file) has one.) In a prefill the
# new tokens *do* need a causal mask, among themselves ([why](#several-tokens-at-once)).
#
# At each step the cache must give the logits that one pass over the whole target gives (teacher forcing), also after
# `select` has moved and repeated sentences:

# %% the largest difference at each step tags=["hide-input"]
torch.manual_seed(0)
long_sizes = sizes | layers | {"max_length": 512}
model = Transformer(TransformerConfig(100, 100, **long_sizes)).eval()
source, target = torch.randint(3, 100, (2, 5, 40)).unbind()
source[1:, 30:] = 0  # some are shorter


def worst_step(state):
    """Largest difference from teacher forcing, at each step."""
    with torch.no_grad():
        at_once = model(source, target)
    order, steps = torch.arange(5), []
    for t in range(40):
        if t == 20:
            order = torch.tensor([4, 0, 3, 3, 2])
            state.select(order)
        apart = state.step(target[order, t]) - at_once[order, t]
        steps.append(apart.abs().max())
    return torch.stack(steps)


print(
    f"largest difference of a logit: {worst_step(KVCache(model, source)).max():.1e}"
)
assert worst_step(KVCache(model, source)).max() < 1e-5
for search in (greedy, partial(beam_search, beam=4)):
    cached, again = (
        search(kind(models[0], sources[:60]), 40) for kind in (KVCache, Recompute)
    )
    assert cached == again or [c[0].tokens for c in cached] == [
        a[0].tokens for a in again
    ]

# %% [markdown]
# With dropout off this is rounding, because the same products are added in another order. (Where two tokens are nearly
# equally likely, rounding can decide, and the texts differ from there on.)

# %% tags=["quiz"]
quiz.one_choice(
    "An *encoder* of six layers has read a sentence, and one word is added at its end. Which of the keys and values of the earlier words may be kept?",
    quiz.wrong(
        "All of them, as in a decoder",
        "In a decoder an earlier word never sees a later one. In an encoder it does, so its vectors change.",
    ),
    quiz.right(
        "Those of the first layer only",
        "Yes: they come from the embeddings alone. After one layer every word has seen the new one, so from the second layer on all keys and values differ.",
    ),
    quiz.wrong(
        "None, since all positions move",
        "The new word comes at the end. The positions of the others stay.",
    ),
    quiz.wrong(
        "Those of the last layer only",
        "These change too: they depend on all layers below, in which the words have seen the new one.",
    ),
)

# %% [markdown]
# ### What it saves, and what it costs
#
# Let a model of two decoder layers, of width 64, write four sentences of 256 tokens with the cache and with
# `Recompute`.

# %% seconds and bytes as the text grows tags=["hide-input"]
import time

assert worst_step(Recompute(model, source)).max() < 1e-5


def seconds(state, length):
    start = time.perf_counter()
    for _ in range(length):
        state.step(torch.full((len(state),), 3))
    return time.perf_counter() - start


def kept_bytes(cache):
    attentions = cache.source + cache.target
    return sum(kept.k.nbytes + kept.v.nbytes for kept in attentions)


four = torch.randint(3, 100, (4, 20))
lengths = [16, 32, 64, 128, 256]
times = {
    kind: [seconds(kind(model, four), n) for n in lengths]
    for kind in (Recompute, KVCache)
}
cache = KVCache(model, four)
seconds(cache, 256)
# K and V, layers, B, T + S, D, bytes
assert kept_bytes(cache) == 2 * 2 * 4 * (256 + 20) * 64 * 4
faster = times[Recompute][-1] / times[KVCache][-1]
print(f"256 tokens: {faster:.1f} times as fast with the cache")
assert faster > 3

# %% tags=["plot"] mystnb={"image": {"alt": "Seconds over the number of tokens written, up to 256. Recomputing grows faster than linearly, the cache nearly linearly, and at the end the cache is several times as fast."}}
figure, axes = plt.subplots(figsize=(6, 2.8))
for kind, color, text in [
    (Recompute, plots.RED, "recomputing"),
    (KVCache, plots.BLUE, "cache"),
]:
    axes.plot(lengths, times[kind], "o-", ms=3, color=color)
    axes.text(
        250, times[kind][-1] * 0.98, text, color=color, ha="right", va="bottom"
    )
axes.set(xlabel="tokens written", ylabel="seconds, 4 sentences", ylim=(0, None))
plt.show()

# %% [markdown]
# By the table above, the cache needs $257/2$, about 128, times fewer token vectors. The gain in time is smaller,
# presumably because `Recompute`'s many tokens in one pass share the overhead of launching operations and the reading of
# parameters. (With a cache a step gets slower, too, as the text grows, because its query meets all keys so far:
# attention costs $O(n^2 D)$ in all. While $n$ is not much larger than $D$, the $O(n D^2)$ of the matrices dominates.)
#
# The price is storage: for each layer and head, the cache keeps a key and a value of each token. For $n$ tokens of $B$
# sequences these are
#
# $$2 \cdot \text{layers} \cdot \text{heads} \cdot d_k \cdot n \cdot B$$
#
# numbers, where $\text{heads} \cdot d_k$ is the model's width $D$. The paper's base model has 6 layers of width 512. At
# 4 bytes a number the keys and values of self-attention take $2 \cdot 6 \cdot 512 \cdot 4 = 24{,}576$ bytes for each
# token of each sentence (those of cross-attention, for the source tokens of each sentence, come on top). With a beam,
# each hypothesis counts as a sentence.
#
# Models with 7 billion parameters commonly have 32 layers of width 4,096. At 2 bytes a number the parameters take 14
# GB, and the cache half a megabyte for each token. Eight texts of 4,096 tokens need 17 GB, more than the parameters do.
# So newer models make the cache smaller ([how](#how-is-the-cache-made-smaller)).

# %% tags=["quiz"]
quiz.number(
    "A decoder of 6 layers, width 512, 4 bytes a number, writes 32 sentences of 100 tokens with beam 4. How many megabytes (millions of bytes) do the keys and values of its *self-attention* take at the end? To within a megabyte.",
    2 * 6 * 512 * 4 * 32 * 4 * 100 / 1e6,
    tolerance=1,
    feedback="Yes: 24,576 bytes a token, and 32 times 4 times 100 tokens.",
    mistakes=[
        (
            2 * 6 * 512 * 4 * 32 * 100 / 1e6,
            "Each sentence has four hypotheses, and each has keys and values of its own.",
        ),
        (
            6 * 512 * 4 * 32 * 4 * 100 / 1e6,
            "Keys *and* values: two vectors a layer.",
        ),
        (2 * 512 * 4 * 32 * 4 * 100 / 1e6, "Every layer keeps its own."),
    ],
    otherwise="Bytes a token: 2 vectors, 6 layers, 512 numbers of 4 bytes. Then count the tokens of all hypotheses.",
)

# %% [markdown]
# ### Break it: every token is the first
#
# The decoder of [Dive into Deep
# Learning](https://d2l.ai/chapter_attention-mechanisms-and-transformers/transformer.html) gives every new token the
# position of the sentence's first token. Let our cache make the same mistake, and repeat the check:


# %% a cache without positions tags=["hide-input"]
class Forgetful(KVCache):
    """A cache that does not count."""

    def step(self, tokens):
        self.length = 0
        return super().step(tokens)


apart = worst_step(Forgetful(model, source))
print("steps 1 to 4, logits differ by up to", *(f"{d:.3f}" for d in apart[:4]))
with torch.no_grad():
    print(f"(a logit is typically {model(source, target).std():.2f} in size)")
assert apart[0] < 1e-5 and apart[1:].min() > 0.01

# %% [markdown]
# Only the first step is right. From then on every word carries the first position, and order shows only indirectly,
# through what each word has read. The shapes are right and nothing crashes, so you would blame the model. The check
# finds the mistake.

# %% [markdown]
# ## Several tokens for the price of one
#
# To write one token of one sentence, a GPU must fetch most parameters of the decoder from its memory, and that takes
# far longer than the arithmetic ([why](#why-one-sentence-is-slow)). If the model reads five tokens in one pass, its
# parameters are still fetched only once. **Speculative decoding** ([Leviathan and others,
# 2023](https://arxiv.org/abs/2211.17192)) uses that: a small **draft model** with the same vocabulary writes a few
# tokens ahead, and the large model checks them all in one pass.
#
# Say that the draft model has written *elf tausend acht hundert*. The token before these, here `<bos>`, has not been
# through the large model yet. So five tokens go in, this one and the four drafted ones, under a causal mask, and five
# rows of logits come out, each for what follows its token:
#
# | after | the large model's choice | drafted | result |
# |---|---|---|---|
# | `<bos>` | *elf* | *elf* | kept |
# | *elf* | *tausend* | *tausend* | kept |
# | *tausend* | *sieben* | *acht* | replaced by *sieben* |
# | *acht* | not looked at | *hundert* | dropped, right or not |
# | *hundert* | not looked at | none | not used (if all four are right, a fifth token for free) |
#
# A row depends only on the tokens up to its own, so every row counts, up to and including the first whose choice was
# not drafted. With greedy decoding a drafted token is kept if it is the large model's choice. The first that is not is
# replaced by that choice, and the rest are dropped. The cache is cut back to the last token that was kept. Here three
# tokens come from one pass. Except for rounding, the text is what the large model would have written alone. Drafting
# costs time, too: for our small models there is [little gain, or a loss](#does-a-small-draft-model-pay-off).
#
# It works with sampling, too. Say that the draft model gives *acht* the probability 0.5, and the large model only 0.3.
# Where *acht* is drafted, keep it three times in five, because $0.5 \cdot 0.6 = 0.3$. In place of a rejected token draw
# one of those to which the draft model gives too little. Here *acht* is drafted and rejected with probability
# $0.5 \cdot 0.4 = 0.2$. Let only *sieben* get too little: 0.1 from the draft model, where the large one gives 0.3. A
# drafted *sieben* is always kept. It also replaces every rejected *acht*, so it is written with probability
# $0.1 + 0.2 = 0.3$. In general, with $p(x)$ from the large model and $q(x)$ from the small one, a drafted token $x$ is
# kept with probability $\min(1, p(x)/q(x))$. Otherwise another is drawn with probabilities proportional to
# $\max(0, p(x) - q(x))$, and the drafted tokens after it are dropped. Then every token is written as often as if the
# large model had drawn it ([why](#why-does-speculative-sampling-change-nothing)), and a poor draft model only costs
# speed ([how much?](#how-many-tokens-does-a-pass-give)). With many short texts at once the device is busy already, and
# the gain shrinks or is lost.

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: The nucleus
#
# *Medium, 15 minutes.* Write top-p yourself. You get the probabilities of one step, an array $(V,)$ that sums to 1, and
# $p$. Take words from the likeliest down until their probabilities sum to at least $p$. Set all other probabilities to
# 0, and make the rest sum to 1. Return an array $(V,)$, in NumPy.


# %% tags=["exercise"]
def nucleus(probabilities, p):
    """The probabilities that top-p draws from, in their old order."""
    ...


# %% tags=["check"]
def kept_by_loop(probabilities, p, reach=True, again=True):
    result, total = np.zeros(len(probabilities)), 0.0
    for n in np.argsort(-probabilities, kind="stable"):
        if total >= p or (not reach and total + probabilities[n] > p and total):
            break
        result[n] = probabilities[n]
        total += probabilities[n]
    return result / result.sum() if again else result


def by_threshold(probabilities, p):
    large = np.where(probabilities >= 1 - p, probabilities, 0)
    return large / max(large.sum(), 1e-9)


check_nucleus = partial(
    checks.check,
    reference=kept_by_loop,
    cases=[
        (np.array([0.07, 0.5, 0.15, 0.25, 0.03]), 0.8),
        (np.array([0.9, 0.06, 0.04]), 0.5),
        (np.array([0.125, 0.25, 0.5, 0.125]), 0.625),
        (np.array([0.125, 0.25, 0.5, 0.125]), 0.75),
        (np.array([0.3, 0.28, 0.22, 0.2]), 0.5),
        (np.array([0.5, 0.25, 0.125, 0.125]), 1.0),
    ],
    mistakes={
        "the word that crosses p belongs to it": lambda q, p: kept_by_loop(
            q, p, reach=False
        ),
        "once the sum is p, no further word is needed": lambda q, p: kept_by_loop(
            q, p + 1e-9
        ),
        "p is a share of the sum, not of the likeliest word": lambda q, p: (
            np.where(q >= (1 - p) * q.max(), q, 0) / q[q >= (1 - p) * q.max()].sum()
        ),
        "the rest must sum to 1 again": lambda q, p: kept_by_loop(
            q, p, again=False
        ),
        "p is a share of the sum, not a threshold for each word": by_threshold,
        "the words must stay in their order": lambda q, p: np.sort(
            kept_by_loop(q, p)
        )[::-1],
    },
)
check_nucleus(nucleus)


# %% tags=["solution"]
def nucleus(probabilities, p):
    order = np.argsort(-probabilities)
    before = np.cumsum(probabilities[order]) - probabilities[order]
    kept = np.zeros_like(probabilities)
    kept[order] = np.where(before < p, probabilities[order], 0)
    return kept / kept.sum()


verdict = check_nucleus(nucleus)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: One step of a beam
#
# *Medium, 15 minutes.* Given the sums of logarithms of $K$ hypotheses, an array $(K,)$, and for each the logarithms of
# what may follow, $(K, V)$, return the $K$ best continuations, the best first, as a list of pairs (hypothesis, token).
# No two totals are equal, and no token is special here.


# %% tags=["exercise"]
def continue_beam(sums, logs):
    """The K best pairs (hypothesis, token)."""
    ...


# %% tags=["check"]
def by_sorting(sums, logs):
    pairs = [(sums[k] + logs[k, v], k, v) for k, v in np.ndindex(*logs.shape)]
    return [(k, v) for _, k, v in sorted(pairs, reverse=True)[: len(sums)]]


def one_each(sums, logs):
    pairs = [
        (sums[k] + logs[k].max(), k, int(logs[k].argmax()))
        for k in range(len(sums))
    ]
    return [(k, v) for _, k, v in sorted(pairs, reverse=True)]


draws = np.random.default_rng(0)
some_logs = [np.log(draws.dirichlet(np.ones(6), size=k)) for k in (3, 4, 2)]
some_sums = [np.log(draws.uniform(0.05, 1, k)) for k in (3, 4, 2)]
check_beam = partial(
    checks.check,
    reference=by_sorting,
    cases=[
        (np.log([0.5, 0.4]), np.log([[0.4, 0.35, 0.25], [0.8, 0.15, 0.05]])),
        (np.log([0.9, 0.1]), np.log([[0.4, 0.35, 0.25], [0.8, 0.15, 0.05]])),
        *zip(some_sums, some_logs, strict=True),
    ],
    mistakes={
        "you keep one continuation of each hypothesis; two may come from the same": one_each,
        "the hypotheses' own sums are left out": lambda s, x: by_sorting(0 * s, x),
        "logarithms are added, not multiplied": lambda s, x: [
            (k, v)
            for _, k, v in sorted(
                [(s[k] * x[k, v], k, v) for k, v in np.ndindex(*x.shape)],
                reverse=True,
            )
        ][: len(s)],
        "the worst come first": lambda s, x: by_sorting(s, x)[::-1],
    },
)
check_beam(continue_beam)


# %% tags=["solution"]
def continue_beam(sums, logs):
    totals = sums[:, None] + logs
    places = np.argsort(-totals, axis=None)[: len(sums)]
    return [divmod(int(place), logs.shape[1]) for place in places]


verdict = check_beam(continue_beam)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: The newest word
#
# *Medium, 10 minutes.* One head of the decoder's self-attention takes a step, with scores divided by $\sqrt d$. You get
# the new token's query, key and value, $(d,)$ each, and the keys and values that were kept, $(t, d)$ each, where $t$
# may be 0. Return what the new token receives, $(d,)$. In NumPy.


# %% tags=["exercise"]
def receive(query, key, value, kept_keys, kept_values):
    """The blend of values that the new token receives: (d,)."""
    ...


# %% tags=["check"]
def received(
    query, key, value, kept_keys, kept_values, own=True, scale=None, past=True
):
    keys = [*(kept_keys if past else []), *([key] if own else [])]
    values = [*(kept_values if past else []), *([value] if own else [])]
    if not keys:
        return np.zeros(len(query))
    scaled = np.array(keys) @ query / np.sqrt(scale or len(query))
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum() @ np.array(values)


normal = np.random.default_rng(1).normal
check_receive = partial(
    checks.check,
    reference=received,
    cases=[
        (*normal(size=(3, 4)), *normal(size=(2, 3, 4))),
        (*normal(size=(3, 2)), *normal(size=(2, 5, 2))),
        (*normal(size=(3, 4)), *np.empty((2, 0, 4))),
    ],
    mistakes={
        "the new token attends to itself too": lambda *given: received(
            *given, own=False
        ),
        "the kept ones are left out": lambda *given: received(*given, past=False),
        "the scores are not divided by the root of d": lambda *given: received(
            *given, scale=1
        ),
        "divide by the root of the width d, not of the number of tokens": lambda *given: (
            received(*given, scale=len(given[3]) + 1)
        ),
        "scores come from the keys; the values are what is blended": lambda q, k, v, ks, vs: (
            received(q, v, k, vs, ks)
        ),
    },
)
check_receive(receive)


# %% tags=["solution"]
def receive(query, key, value, kept_keys, kept_values):
    keys, values = np.vstack([kept_keys, key]), np.vstack([kept_values, value])
    scaled = keys @ query / np.sqrt(len(query))
    weights = np.exp(scaled - scaled.max())
    return weights @ values / weights.sum()


verdict = check_receive(receive)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# To write, a model reads a word and says which words may come next; one of them is chosen. The best word each time can
# lead astray, so a beam follows a few hypotheses, and where many texts are good, one samples. What was computed for
# earlier words does not change, so their keys and values are kept, and each new word needs a position of its own. A
# small model can write ahead, and the large one checks several words in one pass.
#
# **Sources.** Beam 4 and $\alpha = 0.6$: [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762), section 6.1.
# Top-k: [Fan, Lewis and Dauphin (2018)](https://arxiv.org/abs/1805.04833).
#
# What keys and values cost in a large model: [Pope and others (2023)](https://arxiv.org/abs/2211.05102).
#
# **Next.** Everything on the map is built. Part III puts it to work: chapters 13 and 14 translate whole sentences,
# measure how well, and compare the transformer with the networks that came before.

# %% [markdown]
# ## Going further
#
# Nine points about writing, and short answers. Later chapters repeat what they need of them.

# %% [markdown]
# ### When does beam search stop?
#
# Why do only the best endings count? A trained model gives every token some probability, so every hypothesis can end at
# every step. If all endings counted, even the empty sentence could win, because its sum has a single term.
#
# The search stops after `max_length` tokens. It stops earlier if `beam` hypotheses have ended and no live one can still
# beat the best of them. A live one's sum can only fall, and the penalty is largest at `max_length`, so its score is at
# most its present sum divided by $\text{lp}$ of `max_length`. If none has ended after `max_length` tokens, the live
# ones are returned.
#
# With $\alpha = 0$ a beam of 1 gives what greedy decoding gives. At the step that ends the greedy sentence, the best
# result that goes on has a smaller sum than it, which can only fall, so the search stops. (With $\alpha > 0$ a longer
# one may overtake it.)
#
# That a sum never rises also allows a search that is *exact* without ranking all sentences: it drops every beginning
# whose sum is already below that of the best finished sentence. So Stahlberg and Byrne could find the likeliest
# sentence of all. (A folded test above ranks all 341 sentences of up to four words of a tiny model by their score with
# $\alpha = 0.6$: beams of 2 and of 4 find the best, a beam of 1 the third best.)
#
# ### Why are draws after label smoothing so poor?
#
# A model trained with label smoothing of 0.1 has learned to leave about a tenth of the probability to other tokens, at
# every token. So even a perfect one would draw the nine tokens of a typical number right only $0.9^9 = 39$ percent of
# the time. Trained like ours, but with smoothing, a model gets fewer than one number in eight right by sampling,
# instead of one in five, although greedily it gets half. Sample from such a model only with a filter.

# %% [markdown]
# ### Why one sentence is slow
#
# A step loads most parameters of the decoder once, and uses each for one multiplication and one addition per sentence.
# For $B$ sentences that makes $2B$ floating-point operations (FLOPs) for each parameter. At 16 bits a parameter has 2
# bytes, so there are $B$ FLOPs for each byte. This ratio is the *arithmetic intensity*.
#
# Compare it with the hardware. In the time that an H100, a GPU for data centres, takes to load one byte, it can do
# about 300 FLOPs (the SXM version, at 16 bits, without sparsity). Below that intensity the GPU waits for its memory, so
# the FLOP/s that it can reach grow with the intensity. Above it arithmetic sets the limit, and they stay level.
# Plotted, this limit is the *roofline* of [chapter 20](20_one_gpu.ipynb), and 300 FLOPs per byte is its *ridge point*.
# With one sentence the intensity is only 1. Caches aside, arithmetic would set the limit from about 300 sentences on:

# %% tags=["plot"] mystnb={"image": {"alt": "The roofline of an H100 on logarithmic axes: FLOP/s against FLOPs per byte. From 1 FLOP per byte it rises in a straight line, 3.35 TFLOP/s at 1 and 54 at 16, to 989 TFLOP/s at 295, and is level from there. Dots mark steps of decoding with 1, 16 and 300 sentences."}}
bandwidth, peak = 3.35, 989  # of an H100: TB/s, TFLOP/s
intensity = np.geomspace(1, 2000, 200)
figure, axes = plt.subplots(figsize=(6, 2.6))
axes.loglog(intensity, np.minimum(peak, bandwidth * intensity), color=plots.BLUE)
for count in (1, 16, 300):
    height = min(peak, bandwidth * count)
    axes.plot(count, height, "o", color=plots.RED)
    label = f"{count} sentence{'s' * (count > 1)}"
    axes.text(count * 1.2, height * 0.55, label, color=plots.RED)
axes.set(xlabel="FLOPs for each byte", ylabel="TFLOP/s at most", ylim=(1.5, 2500))
plt.show()
assert round(peak / bandwidth) == 295

# %% [markdown]
# So decoding one sentence is *memory-bound*: the bandwidth of the GPU's memory sets the pace. The 14 GB of the 7
# billion parameters above cannot be read in less than 4.2 ms at the H100's 3.35 TB/s, so one text gets at most 240
# tokens a second, at one token a pass. More sentences share the parameters, but each has a cache of its own, and with
# many long texts reading the caches takes longest. A long prefill uses each parameter for many tokens at once, so it is
# *compute-bound*: arithmetic sets the limit. Here are steps of decoding on the processor that ran this page, with the
# layers and the width of the paper's base model (here launching operations takes part of the time, too):

# %% tags=["proof"]
assert round(1000 * 14e9 / 3.35e12, 1) == 4.2 and 230 < 3.35e12 / 14e9 < 240

# %% milliseconds for 1, 16 and 64 sentences tags=["hide-input"]
wide = TransformerConfig(100, 100, 6, 6, max_length=64)  # the paper's base size
torch.manual_seed(0)
base = Transformer(wide).eval()
cost = {}
print("sentences   ms a step   ms a token")
for rows in (1, 16, 64):
    cache = KVCache(base, torch.randint(3, 100, (rows, 10)))
    seconds(cache, 2)
    step = min(seconds(cache, 1) for _ in range(5)) * 1e3
    cost[rows] = step / rows
    print(f"{rows:9} {step:11.1f} {cost[rows]:15.2f}")
assert cost[64] < cost[1] / 4

# %% [markdown]
# For 64 times as many sentences a step takes a few times as long, not 64 times: the **throughput** (tokens a second, of
# all sentences together) grows, and so does each sentence's *latency* (the time for one of its tokens, which is that
# of a step).

# %% [markdown]
# ### Several tokens at once
#
# A chat model reads your next question in one pass, as it read the first, but now the cache already keeps $n$ tokens
# ([chapter 18](18_gpt.ipynb#it-writes) builds such a cache). With $m$ new tokens the mask is $(m, n + m)$, the last $m$
# rows of the causal mask of all $n + m$ tokens. Each new token attends to all that is kept, to itself and to the new
# ones before it.
#
# So the causal mask is needed again: without it the first new token would see the second. PyTorch's `is_causal=True`
# does not help: it aligns the triangle with the top left corner of such a rectangle, so that the first new token would
# see a single kept one.
#
# Here are two new tokens after three kept ones, with the right mask, and the largest error of each token with
# `is_causal=True` and with no mask (the last token may see everything, so it needs none):

# %% three masks for two tokens at once tags=["hide-input"]
from dotformer.decoder import causal_mask

print(causal_mask(5)[3:].int())
cache = KVCache(model, source)
for t in range(3):
    cache.step(target[:, t])
own = cache.target[0]  # the first layer's self-attention
with torch.no_grad():
    x = model.target_embeddings(target[:, :5])
    split = own.attention.split_heads
    k, v = (split(linear(x)) for linear in (own.attention.w_k, own.attention.w_v))
    q = split(own.attention.w_q(x[:, 3:]))
    at_once = F.scaled_dot_product_attention(q, k, v, causal_mask(5)[3:])
    left = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    unmasked = F.scaled_dot_product_attention(q, k, v)
    for name, wrong in (("is_causal", left), ("no mask", unmasked)):
        apart = (wrong - at_once).abs().amax(dim=(0, 1, 3))
        print(f"{name:10} wrong by {apart[0]:.2f} and {apart[1]:.2f}", end="  ")
        print(f"(correct entries have a typical size of {at_once.std():.2f})")
    assert (left - at_once).abs().amax(dim=(0, 1, 3)).min() > 1e-3
    assert not torch.allclose(unmasked[:, :, 0], at_once[:, :, 0], atol=1e-3)
    assert torch.allclose(unmasked[:, :, 1], at_once[:, :, 1], atol=1e-6)
    for t in (3, 4):
        heads = own.extend(x[:, t : t + 1])
        wanted = own.attention.w_o(
            own.attention.merge_heads(at_once[:, :, t - 3 : t - 2])
        )
        assert torch.allclose(heads, wanted, atol=1e-5)

# %% [markdown]
# ### A GPT with a cache, in one file
#
# `KVCache` serves chapter 9's encoder-decoder. Here is the same idea for a decoder-only model, on its own: PyTorch is
# all that it needs. It reads prompts in one pass, keeps keys and values, and then writes greedily or draws with
# temperature and top-p. The positions are learned. All prompts must be equally long. With `end`, the number of an end
# token, it stops once every row has written one; what a row has after its own is junk. The test at its end compares a
# prefill and single steps with one pass. ([The file](../cached_gpt.py) is ready to run; chapter 18 trains such a
# model.)

# %% a GPT that keeps keys and values tags=["hide-input"] file="cached_gpt.py"
import torch
from torch import nn
from torch.nn import functional as F


class CachedAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, x, cache):  # x (B, T, D): new tokens only
        q, k, v = (
            y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for y in self.qkv(x).chunk(3, dim=-1)
        )  # (B, H, T, d_k) each
        if cache is not None:  # earlier keys and values, along the tokens
            k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
        T, S = q.shape[2], k.shape[2]
        # new token t stands at S - T + t, and sees what stands up to there
        mask = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.w_o(heads.transpose(1, 2).flatten(2)), (k, v)


class Block(nn.Module):  # pre-norm
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attention = CachedAttention(d_model, num_heads)
        self.up, self.down = (
            nn.Linear(d_model, 4 * d_model),
            nn.Linear(4 * d_model, d_model),
        )
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x, cache):
        y, cache = self.attention(self.norm1(x), cache)
        x = x + y
        return x + self.down(F.gelu(self.up(self.norm2(x)))), cache


class CachedGPT(nn.Module):
    def __init__(self, vocab_size, d_model, num_heads, num_layers, max_length):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_length, d_model)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.blocks = nn.ModuleList(
            Block(d_model, num_heads) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(d_model)

    def forward(self, ids, caches=None):  # ids (B, T): new tokens only
        start = 0 if caches is None else caches[0][0].shape[2]
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(positions)  # IndexError: too long
        kept = []
        for n, block in enumerate(self.blocks):
            x, cache = block(x, None if caches is None else caches[n])
            kept.append(cache)
        return self.norm(x) @ self.tokens.weight.T, kept  # logits (B, T, V)


@torch.no_grad()
def write(model, ids, count, temperature=1.0, top_p=1.0, end=None, generator=None):
    """Append up to `count` tokens to ids (B, T); temperature 0 means greedy."""
    logits, caches = model(ids)  # prefill: the whole prompt in one pass
    ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for n in range(count):
        last = logits[:, -1]  # (B, V)
        if temperature == 0:
            new = last.argmax(dim=-1, keepdim=True)  # (B, 1)
        else:
            shares, order = (last / temperature).softmax(-1).sort(descending=True)
            if top_p < 1:
                shares[shares.cumsum(-1) - shares >= top_p] = 0
            new = order.gather(1, torch.multinomial(shares, 1, generator=generator))
        ids = torch.cat([ids, new], dim=1)
        if end is not None:
            ended |= new[:, 0] == end  # what follows the end of a row is junk
        if n + 1 == count or ended.all():
            break
        logits, caches = model(new, caches)  # one token
    return ids


torch.manual_seed(0)
gpt = CachedGPT(100, d_model=64, num_heads=4, num_layers=3, max_length=64).eval()
prompts = torch.randint(100, (2, 10))
for temperature in 0, 1:
    draw = torch.Generator().manual_seed(0)
    texts = write(gpt, prompts, 20, temperature, top_p=0.9, generator=draw)
    print(f"temperature {temperature}:", *texts[0, 10:].tolist())
at_once, _ = gpt(texts)  # without a cache
logits, caches = gpt(texts[:, :10])
steps = [logits]
for t in range(10, 30):
    logits, caches = gpt(texts[:, t : t + 1], caches)
    steps.append(logits)
apart = (torch.cat(steps, dim=1) - at_once).abs().max()
print(f"prefill of 10 and 20 steps, against one pass: {apart:.0e} apart")
assert apart < 1e-4

# %% [markdown]
# `torch.cat` copies the whole cache at every step, which is simple but slow for long texts; faster programs write into
# memory that they have reserved.
#
# ### How is the cache made smaller?
#
# Three ways are common:
#
# - **Keep fewer keys and values.** In **multi-query attention** ([Shazeer, 2019](https://arxiv.org/abs/1911.02150)) all
#   heads share one set of keys and values. In **grouped-query attention** ([Ainslie and others,
#   2023](https://arxiv.org/abs/2305.13245)) each group of heads has one set. In [the
#   formula](#what-it-saves-and-what-it-costs) you then count these sets, the **KV heads**, in place of the heads. With
#   8 KV heads for 32 heads of queries a quarter is kept: 131,072 bytes for each token of the model with 7 billion
#   parameters, instead of 524,288.
# - **Give each number fewer bits**, as [chapter 22](22_in_the_browser.ipynb) does with parameters.
# - **Waste less of the memory.** Reserving memory for 4,096 tokens wastes nearly all of it if the text ends after 100.
#   So serving systems hand memory out as each text grows, in pages of a few tokens: *PagedAttention* ([Kwon and others,
#   2023](https://arxiv.org/abs/2309.06180)).
#
# And a model trained with a *sliding window* drops the oldest entries. In higher layers the kept ones still contain
# what they took from the dropped tokens. A model trained without a window can fail when its first tokens are dropped,
# because many heads put much of their weight there ([Xiao and others, 2023](https://arxiv.org/abs/2309.17453)).

# %% [markdown]
# ### Does a small draft model pay off?
#
# `speculate`, folded, writes ahead and checks, without a cache, for the first of the three number models. Its draft
# model has half the width and half the layers, and gets far fewer whole numbers right, though it was trained for more
# steps. But on single tokens it agrees with the large model nearly nine times in ten.


# %% propose four tokens, check them in one pass tags=["hide-input"]
@torch.no_grad()
def speculate(model, draft, source, ahead=4, longest=40):  # source is (1, S)
    """What the model writes greedily, and how many passes it took."""
    memory, cheap_memory = model.encode(source), draft.encode(source)
    tokens, passes = [1], 0  # <bos>
    while tokens[-1] != 2 and len(tokens) < longest:  # <eos>
        guess = list(tokens)
        for _ in range(ahead):
            logits = draft.decode(torch.tensor([guess]), *cheap_memory)
            guess.append(int(logits[0, -1].argmax()))
        logits, passes = model.decode(torch.tensor([guess]), *memory), passes + 1
        own = logits[0, len(tokens) - 1 :].argmax(dim=-1).tolist()  # ahead + 1
        drafted, right = guess[len(tokens) :], 0
        while right < ahead and drafted[right] == own[right]:
            right += 1
        tokens += own[: right + 1]  # those accepted, and one of its own
        if 2 in tokens:
            tokens = tokens[: tokens.index(2) + 1]
    return tokens[1:], passes


# %% tokens a pass with a small draft model tags=["hide-input"]
halved = {"d_model": 32, "d_ff": 64}
halved |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
draft, draft_right = trained(seed=5, steps=160, **halved)
tokens, passes, same = 0, 0, 0
for n, row in enumerate(sources[:60]):
    written, took = speculate(models[0], draft, row[None, row != 0])
    same += written[:-1] == greedy_all[n]  # <eos> aside
    tokens, passes = tokens + len(written), passes + took
print(f"numbers right: large {forced[0]:.0%}, small {draft_right:.0%}")
print(f"{tokens} tokens in {passes} passes: {tokens / passes:.1f} a pass")
print(f"{same} of 60 numbers as greedy decoding writes them")
assert 3.1 < tokens / passes < 3.5 and same > 58  # but for rounding
agreed, asked = 0, 0
with torch.no_grad():
    for row, written in zip(sources[:60], greedy_all[:60], strict=True):
        both = row[None, row != 0], torch.tensor([[1, *written]])
        ours, theirs = (each(*both).argmax(-1) for each in (draft, models[0]))
        agreed += (ours == theirs).sum().item()
        asked += ours.shape[1]
print(f"the draft model's token is the large one's: {agreed / asked:.0%}")
assert 0.85 < agreed / asked < 0.91


@torch.no_grad()
def seconds_a_pass(model):
    memory, best = model.encode(sources[:1]), math.inf
    for _ in range(100):
        start = time.perf_counter()
        model.decode(sources[:1, :8], *memory)
        best = min(best, time.perf_counter() - start)
    return best


times = [seconds_a_pass(each) for each in (draft, models[0])]
print(
    f"a pass of the draft model takes {times[0] / times[1]:.1f} of a large one's time"
)
assert 0.4 < times[0] / times[1] < 0.85
assert draft_right < 0.8 * forced[0]

# %% [markdown]
# The same tokens come out, in fewer than a third as many passes of the large model. But before each of these come four
# passes of the draft model, and each takes 0.4 to 0.85 of a large one's time, depending on the run: presumably starting
# operations takes most of it. Check included, 2.6 to 4.4 large passes give 3.3 tokens: a small gain, or a loss. The
# draft model must be far cheaper than the large one.
#
# ### How many tokens does a pass give?
#
# Let each of the $k$ drafted tokens be accepted independently with probability $a$ (the **acceptance rate**, higher the
# more alike the two models are). The $i$th is kept only with all before it, so with probability $a^i$; on average
# $a + a^2 + \dots + a^k$ are kept. One more token is the large model's own: it replaces the first rejected one or, if
# none was rejected, is drawn from the pass's last row. For $a = 0.8$ and $k = 4$ that makes 3.4.
#
# Say that a pass of the draft model costs a fraction $c$ of a large one. Then one check and $k$ drafted tokens cost
# $1 + kc$ large passes. With $k = 4$ and $c = 0.05$ these are 1.2, a gain of $3.4 / 1.2 = 2.8$; with $c = 0.25$ and
# $a = 0.3$ it takes 2 passes to get 1.4 tokens, a loss.
#
# For the run above, where the models agree on 88 percent of the tokens, the formula gives 3.9. We measured 3.3. Most of
# the difference comes from the end of each number, which cuts its last pass short: independent draws with $a = 0.88$,
# cut off after nine tokens, give 3.4.

# %% tags=["proof"]
for a, c, tokens, gain in (
    (0.8, 0.05, 3.4, 2.8),
    (0.3, 0.25, 1.4, 0.7),
    (0.88, 0.6, 3.9, 1.2),
):
    found = sum(a**n for n in range(5))
    assert round(found, 1) == tokens and round(found / (1 + 4 * c), 1) == gain
rng, passes = np.random.default_rng(0), 0
for _ in range(4000):  # numbers of nine tokens
    written = 0
    while written < 9:
        kept = rng.random(4) < 0.88
        written += 1 + (4 if kept.all() else int(kept.argmin()))
        passes += 1
assert round(4000 * 9 / passes, 1) == 3.4

# %% [markdown]
# ### Why does speculative sampling change nothing?
#
# Let $q$ be the draft model's probabilities and $p$ the large model's, both after temperature and filters. A token $x$
# that the draft model has drawn is accepted with probability $\min(1, p(x) / q(x))$. The first token that is rejected
# is replaced by a draw in proportion to $\max(0, p - q)$, and the drafted tokens after it are discarded. So $x$ is
# written in two ways: it is drawn and accepted (point 1), or another token is rejected and $x$ replaces it (points 2
# and 3). With what probability?
#
# 1. $x$ is drawn and accepted with probability $q(x) \min(1, p(x) / q(x)) = \min(p(x), q(x))$.
# 2. $x$ is drawn and rejected with probability $q(x) - \min(p(x), q(x)) = \max(0, q(x) - p(x))$. Summed over all tokens
#    that is $Z$, the probability of a rejection.
# 3. Both $p$ and $q$ sum to 1, so $p$ exceeds $q$ by as much in total as $q$ exceeds $p$ elsewhere, and
#    $\max(0, p - q)$ also sums to $Z$. A replacement is therefore $x$ with probability $\max(0, p(x) - q(x)) / Z$. So
#    $x$ replaces a rejected token with probability $Z \cdot \max(0, p(x) - q(x)) / Z$.
#
# Points 1 and 3 add up to the large model's own probability (and the acceptance rate $a$ is $1 - Z$):
#
# $$\min(p(x), q(x)) + \max(0,\, p(x) - q(x)) = p(x) .$$
#
# For three tokens with $p = (0.6, 0.3, 0.1)$ and $q = (0.2, 0.5, 0.3)$:

# %% both ways to a token, added up tags=["hide-input", "nbval-check-output"]
large, draft = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.5, 0.3])
accepted, missing = np.minimum(large, draft), np.maximum(large - draft, 0)
rejected = 1 - accepted.sum()
replaced = rejected * missing / missing.sum()
print(
    "drawn and accepted",
    accepted,
    "  in place of a rejected one",
    replaced.round(2),
)
assert np.allclose(accepted + replaced, large)

# %% [markdown]
# Added up these are 0.6, 0.3 and 0.1, the large model's own probabilities. To test code, draw $N = 100{,}000$ tokens
# after one prompt with speculative sampling, and as many from the large model alone. The two frequencies of a token $x$
# should differ only by chance, by about $\sqrt{2\,p(x)\,(1 - p(x)) / N}$.

# %% [markdown]
# ### Short answers
#
# - **Why not rank all sentences?** There are too many: with 8,000 tokens, about $10^{78}$ texts of twenty. Beginnings
#   with the same last word cannot be merged either, because the decoder sees all words before. A beam of 4 ranks at
#   most 640,000 continuations.
# - **How large a beam is usual?** In translation 4 to 10. [Britz and others (2017)](https://arxiv.org/abs/1703.03906)
#   found that 5 to 10, with a length penalty, worked well for recurrent networks. A beam of 10 needs about ten times
#   the decoder's arithmetic and self-attention cache, because each hypothesis is a row.
# - **Why are a beam's results so alike?** Often one good beginning has several good continuations, and they fill the
#   beam, so the results may differ in one word. For variety draw several texts, or penalise hypotheses that resemble
#   others ([Vijayakumar and others, 2016](https://arxiv.org/abs/1610.02424)).
# - **May a beam add logits instead of log-probabilities?** No. A number added to all logits of a row changes no
#   probability: $(1, 0)$ and $(101, 100)$ mean the same, but by its logits the second would be 100 ahead. The
#   log-softmax removes that number, so rows can be compared.
# - **Does temperature change what greedy or beam search writes?** Greedy decoding, no: dividing by a positive number
#   keeps the order of the logits. Beam search, possibly, because each step's probabilities are normalised separately.
#   In this chapter's first model a temperature of 0.25 gives *a cup* 0.41 and *the tea* 0.29.
# - **Does a low temperature make answers correct?** Only where the model's first choice is right, because a low
#   temperature strengthens that choice, right or wrong. If a wrong answer of one token has 0.6 and the right one 0.4, a
#   temperature of 0.5 gives the wrong one 0.36 / 0.52 = 0.69.
# - **Which temperature and top-p are usual?** Temperatures from 0.7 to 1 with top-p from 0.9 to 0.95 are common
#   starting points. Change one at a time: a low temperature already removes much of the tail that top-p cuts, so you
#   could not tell which of them helped.
# - **What does a repetition penalty do, and what does it break?** It lowers the logits of tokens that have been written
#   ([Keskar and others, 2019](https://arxiv.org/abs/1909.05858)), so loops become less likely. If it is too strong it
#   spoils texts, because names, *the* and the brackets of code must recur. (Programs divide positive logits, by 1.2 for
#   example, and multiply negative ones, because dividing would *raise* $-3$ to $-2.5$.)
# - **Why draw several answers and take the commonest?** Because wrong answers often scatter: if the right one has the
#   probability 0.4 and six wrong ones 0.1 each, one draw is right 40 percent of the time, and the commonest of many
#   independent draws almost always ([Wang and others, 2022](https://arxiv.org/abs/2203.11171)). A mistake that most
#   draws share survives.
# - **Can two requests share a cache?** Yes, as far as both begin with the same tokens, because in a decoder-only model
#   a token's keys and values depend only on that token, its position and the tokens before it. So put fixed
#   instructions first, and the date or the question last.
# - **Does a KV cache speed up training?** Not with teacher forcing: all tokens are known, so one pass computes every
#   key and value once, and there is nothing to reuse. After the next update of the parameters, kept keys and values
#   would be out of date.
# - **How many tokens should the draft model write?** The more often its tokens are accepted, the more, because all
#   after a rejection are wasted. At $c = 0.05$ [the formula](#how-many-tokens-does-a-pass-give)'s best is $k = 3$ for
#   $a = 0.5$ (1.6 times as fast), and $k = 8$ for $a = 0.8$ (3.1 times).
# - **What goes wrong with prompts of different lengths in one batch?** Padded on the left, they need a mask over the
#   padding's kept keys, and positions that skip it ([chapter 18](18_gpt.ipynb#break-it-the-position-of-padding)). Test
#   that each prompt alone gives the same logits, up to rounding. Compare logits or greedy texts: a fixed seed does not
#   help if the draws fall in another order.
# - **What does the cache limit?** How many texts fit into memory at once, and the speed of each step, because it must
#   be read again for every token.

# %% tags=["proof"]
assert round(20 * math.log10(8000)) == 78 and 20 * 4 * 8000 == 640_000
sharper = table**4 / (table**4).sum(dim=-1, keepdim=True).clamp(min=1e-12)
cold = [round(float(sharper[1, n] * sharper[n, m]), 2) for n, m in ((3, 6), (4, 8))]
assert cold == [0.41, 0.29] and round(0.36 / 0.52, 2) == 0.69
for share, best, gain in ((0.5, 3, 1.6), (0.8, 8, 3.1)):
    gains = {
        k: sum(share**i for i in range(k + 1)) / (1 + 0.05 * k) for k in range(20)
    }
    assert max(gains, key=gains.get) == best and round(gains[best], 1) == gain
