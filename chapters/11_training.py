# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 11. How do you train it, and stop halfway?
#
# In this chapter you train, in about a minute and with a loop of some twenty-five lines, a transformer that turns
# *eleven thousand seven hundred and eighty nine* into *elf tausend sieben hundert neun und achtzig*. Then you see what
# each part of the loop is for, what happens with only 150 examples, and how a trainer that is killed goes on from its
# last checkpoint as if nothing had happened.
#
# You need [chapter 9](09_decoder.ipynb) for the model and [chapter 10](10_tokens.ipynb) for the batches. The chapter
# takes about 30 minutes to read, and 25 for the exercises. [Going further](#going-further), at the end, takes 12 more
# minutes. Only the code? Read [the loop](#a-loop-that-learns), [Stop halfway](#stop-halfway) and [the
# symptoms](#symptoms).

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. Everything is built but generation. This chapter adds the loss, above the output."}}
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from classroom import checks, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=11)

# %% [markdown]
# ## Something to learn
#
# In German numbers the units come before the tens: 42 is *zweiundvierzig*, two-and-forty. To write the first German
# word for *forty two*, a model has to look at the second English one: a small task, but one for attention.
#
# A **corpus**, a collection of texts, is split into three parts. The model learns from the *training set*. The
# *validation set* is for choosing when to stop and which settings (**hyperparameters**) to use. The *test set* must
# tell how good the result is on new text. It is never used to choose anything, because the setting that scores best on
# a set owes part of its score to luck. Our texts are numbers, written out. No number occurs in more than one part, or
# the result would look better than it is (**data leakage**). We draw numbers from 1 to 999,999, short ones more often,
# and `number_words` spells them in both languages, with each German word cut into its parts.

# %% the corpus, and four of its test pairs tags=["hide-input"]
from dotformer.data.corpora import number_words

corpus = number_words()
print(
    f"{len(corpus.train)} to learn from, {len(corpus.validation)} to validate, {len(corpus.test)} to test"
)
for pair in corpus.test[:4]:
    print(f"  {pair.source}\n      {pair.target}")
everything = [*corpus.train, *corpus.validation, *corpus.test]
assert len({pair.source for pair in everything}) == len(everything) == 21_000

# %% [markdown]
#
#
# Each side gets its own tokenizer ([chapter 10](10_tokens.ipynb#the-definition)). There are so few different words that
# merging makes each of them one token, with the space before it: 332 and 334 tokens, the 256 bytes among them.

# %% a tokenizer for each language, and all pairs as tokens tags=["hide-input", "nbval-check-output"]
from dotformer.tokens import BPETokenizer

english = BPETokenizer.train((" " + pair.source for pair in corpus.train), 10_000)
german = BPETokenizer.train((" " + pair.target for pair in corpus.train), 10_000)
print(len(english), len(german), german.tokenize(" zwei und vierzig"))


def encode_pairs(pairs):
    return [
        (
            english.encode(" " + p.source),
            german.encode(" " + p.target, add_special_tokens=True),
        )
        for p in pairs
    ]


train_pairs, validation_pairs, test_pairs = map(
    encode_pairs, (corpus.train, corpus.validation, corpus.test)
)
first = corpus.train[0]
for text, tokens in zip((first.source, first.target), train_pairs[0], strict=True):
    print(f"{text}: {tokens}")

# %% [markdown]
# The target stands between the special tokens `<bos>`, 1, and `<eos>`, 2. As in [chapter
# 9](09_decoder.ipynb#a-model-that-has-learned-to-answer), the model gets all of it but the last token, `<bos>` *zwei
# und vierzig*, and must predict all of it but the first, *zwei und vierzig* `<eos>`.
#
# ## The loss
#
# The loss is that of [chapter 9](09_decoder.ipynb#what-is-given-and-what-is-wanted). The probability of the right
# translation $y$ of a source $x$ is a product with one factor for each of its $T$ tokens $y_t$, `<eos>` included: that
# token's probability, given $x$ and the tokens before it, $y_{<t}$.
#
# For a long text the product is too small to compute with (it **underflows**). Its logarithm is a sum, and is largest
# where the product is largest. So training minimises minus the logarithm, divided by the number of tokens, so that long
# and short texts can be compared:
#
# $$\text{loss} = -\frac1T \ln p(y \mid x) = -\frac1T \sum_{t=1}^{T} \ln p(y_t \mid y_{<t}, x) .$$
#
# For many texts, sum over all of them, and divide by the number of all their tokens. Parameters that minimise this make
# the targets as probable as possible, given their sources (*maximum likelihood*).
#
# **By hand.** A vocabulary of four tokens, and a target of two, *b c*, then padding. The model gives these
# probabilities:
#
# | target | a | b | c | d | minus logarithm of the right one |
# |---|---|---|---|---|---|
# | b | 0.1 | **0.7** | 0.1 | 0.1 | $-\ln 0.7 = 0.357$ |
# | c | 0.25 | 0.25 | **0.25** | 0.25 | $-\ln 0.25 = 1.386$ |
# | padding | 0.4 | 0.2 | 0.2 | 0.2 | does not count |
#
# The loss is the mean of the last column over the real targets, those that are not padding:
# $(0.357 + 1.386) / 2 = 0.871$. It is also called the *cross-entropy*, and its unit is the *nat*, since the logarithm
# is the natural one. The *perplexity* is $e^{0.871} = 2.39$: the model is as unsure as if it guessed among 2.39 equally
# likely tokens. (Both are *per token*, so between two tokenizers compare the loss [per
# byte](10_tokens.ipynb#which-vocabulary-is-best).)
#
# Only the right token's probability counts. A model that knows nothing, as in the second row, gives each of $V$ tokens
# the probability $1/V$, so its loss is $-\ln(1/V) = \ln V$, and its perplexity is $V$. Expect a loss of $\ln V$ before
# training ([chapter 7](07_learning.ipynb#the-first-number-to-look-at)).
#
# PyTorch's `F.cross_entropy` computes the loss, and its `ignore_index` leaves the padding out. The folded
# `cross_entropy` is the same without the division: it returns the sum and the number of targets, needed
# [later](#one-step-from-several-batches).

# %% tags=["export", "hide-input"] module="training"
import torch
from dotformer.support.shapes import shapes
from jaxtyping import Float, Int
from torch import Tensor, nn, optim
from torch.nn import functional as F


@shapes
def cross_entropy(
    logits: Float[Tensor, "*batch T V"],
    targets: Int[Tensor, "*batch T"],
    pad_id: int = 0,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The loss summed over the real targets, in nats, and how many these are.

    Targets equal to `pad_id` do not count. With `label_smoothing`, that share of
    the target's probability is spread evenly over the whole vocabulary.
    """
    loss = F.cross_entropy(
        logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float)),
        targets.flatten(),
        ignore_index=pad_id,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    return loss, (targets != pad_id).sum()


# %% tags=["proof"]
probabilities = torch.tensor(
    [[0.1, 0.7, 0.1, 0.1], [0.25] * 4, [0.4, 0.2, 0.2, 0.2]], dtype=torch.float64
)
targets = torch.tensor([[1, 2, 9]])  # and 9 stands for padding
logits = probabilities.log()[None]
summed, count = cross_entropy(logits, targets, pad_id=9)
assert np.allclose([summed / count, count], [0.871, 2], rtol=0, atol=5e-4)
smooth, _ = cross_entropy(
    logits[:, :1], targets[:, :1], pad_id=9, label_smoothing=0.1
)
by_hand = -(0.925 * np.log(0.7) + 3 * 0.025 * np.log(0.1))
assert np.isclose(smooth, by_hand) and np.isclose(by_hand, 0.503, atol=5e-4)

# %% tags=["quiz"]
quiz.number(
    "Suppose that a fresh model gave all 334 target tokens the same probability. What would its loss be, in nats, to one decimal?",
    np.log(334),
    tolerance=0.06,
    feedback="Yes: as unsure as if it guessed among all 334 tokens.",
    mistakes=[
        (334, "That is the perplexity, the exponential of the loss."),
        (np.log2(334), "That is in bits. The natural logarithm gives nats."),
        (
            1 / 334,
            "That is the probability of each token. The loss is minus its logarithm.",
        ),
    ],
    otherwise="Each token gets the probability 1/334. The loss is minus its natural logarithm.",
)

# %% [markdown]
# ## How good is it?
#
# Three numbers measure a model on **held-out** sentences, those that it was not trained on:
#
# - The *loss*, in nats per token, is that of the last section (training will add [smoothing](#label-smoothing)).
# - The *accuracy* is the share of positions at which the right token scores highest.
# - *Exact*, or **exact match**, is the share of sentences that are right from beginning to end.
#
# **Predict first.** Must the model write whole translations, word by word, before we can count the exact ones?
#
# No. Feed it the true words (teacher forcing). As long as every prediction is right, its own words *are* the true
# words, so a model that writes alone would see the same input. After the first mistake the sentence is wrong either
# way. So one pass tells which sentences the model would get right by *greedy decoding*, always taking the likeliest
# token. (The accuracy can be too kind, because the model never has to go on from its own mistake.)
#
# The folded `evaluate` computes all three in this way.

# %% tags=["hide-input", "export"] module="training"
from collections.abc import Callable, Iterable, Iterator, Sequence

from dotformer.support.modes import evaluating
from dotformer.support.progress import Batch, Row


def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    pad_id: int = 0,
    total: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Row:
    """How well a model predicts targets, given the true ones before each.

    "loss" is in nats per token, unsmoothed; "accuracy" the share of positions
    where the right token scores highest, "exact" the share of sentences in which it
    always does. Several processes may share the batches, if `total` adds up their
    sums. Raises ValueError when there is no batch.
    """
    loss, tokens, right, exact, sentences = 0.0, 0, 0, 0, 0
    with evaluating(model) as device:
        for source, target in batches:
            logits = model(source.to(device), target[:, :-1].to(device))
            target = target[:, 1:].to(device)
            summed, count = cross_entropy(logits, target, pad_id)
            hits, real = logits.argmax(dim=-1) == target, target != pad_id
            loss, tokens = loss + float(summed), tokens + int(count)
            right += int((hits & real).sum())
            there = real.any(dim=1)
            exact += int(((hits | ~real).all(dim=1) & there).sum())
            sentences += int(there.sum())
    sums = torch.tensor(
        [loss, tokens, right, exact, sentences], dtype=torch.float64
    )
    loss, tokens, right, exact, sentences = total(sums).tolist()
    if not tokens:
        raise ValueError("nothing to evaluate: there is no batch")
    shares = {"accuracy": right / tokens, "exact": exact / sentences}
    return {"loss": loss / tokens} | shares


# %% [markdown]
# ## A loop that learns
#
# The model is a small version of the paper's: post-norm, two layers on each side, four heads, width 64, and at first
# without dropout. An **epoch** is one pass through the data. `batches(epoch)` draws its batches, of at most 1,024
# tokens on each side, in an order fixed by seed and epoch alone, so that a run can be resumed.

# %% tags=["hide-input", "export"] module="training"
from dotformer.tokens import pad_batch, token_batches


def pair_batches(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    epoch: int = 0,
    max_tokens: int = 4096,
    pad_id: int = 0,
    seed: int = 0,
    alike: bool = False,
) -> Iterator[Batch]:
    """Batches of pairs of token lists, each pair in one of them.

    No batch has more than `max_tokens` on a side, padding included; `seed` and
    `epoch` fix the order. If `alike`, pairs of one length are sorted by the other
    side, too: less padding, more shapes. ValueError: a side is empty or too long.
    """
    empty = [n for n, pair in enumerate(pairs) if not all(map(len, pair))]
    if empty:
        raise ValueError(f"a side is empty in pairs {empty[:5]} of {len(pairs)}")
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    lengths = [max(len(source), len(target)) for source, target in pairs]
    others = (
        [len(source) - len(target) for source, target in pairs] if alike else None
    )
    for rows in token_batches(lengths, max_tokens, generator, others):
        source, target = zip(*(pairs[n] for n in rows), strict=True)
        yield pad_batch(source, pad_id), pad_batch(target, pad_id)


# %%
from dotformer.transformer import Transformer, TransformerConfig


def fresh(seed=0, dropout=0.0):
    torch.manual_seed(seed)
    sizes = {"d_model": 64, "num_heads": 4, "d_ff": 128, "max_length": 64}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2, "dropout": dropout}
    return Transformer(
        TransformerConfig(len(english), len(german), **sizes, **layers)
    )


batches = partial(pair_batches, train_pairs, max_tokens=1024)  # of an epoch
validate = partial(evaluate, batches=list(pair_batches(validation_pairs)))


# %% tags=["proof"]
def padding(**options):
    sides = [side for batch in batches(0, **options) for side in batch]
    return sum(int((side == 0).sum()) for side in sides) / sum(
        side.numel() for side in sides
    )


assert 0.05 < padding() < 0.07 and padding(alike=True) < 0.01

# %% [markdown]
# The training takes six hundred steps, or three epochs. Below, `islice` takes 600 batches, pairs of source and target,
# from the endless `data`. Every 50 steps `watch` validates the model, and lets it write one of the validation numbers.
#
# Four parts of the loop are explained after the run: label smoothing; the optimiser, Adam; the learning rate, which
# rises to its peak, 0.003, in 100 steps, and then falls to 0 in a straight line; and clipping.

# %% exact matches, and one number that we watch tags=["hide-input"]
asked = torch.tensor([validation_pairs[1][0]])


def watch(model):
    """What `validate` finds; and one number, the likeliest token each time."""
    with evaluating(model) as device:  # no dropout, no gradients
        memory, mask = model.encode(asked.to(device))
        tokens = torch.tensor([[1]], device=device)
        while tokens.shape[1] < 12 and tokens[0, -1] != 2:
            best = model.decode(tokens, memory, mask)[:, -1:].argmax(dim=-1)
            tokens = torch.cat([tokens, best], dim=1)
    return validate(model) | {"written": german.decode(tokens[0].tolist())}


# %%
from itertools import count, islice

import torch
from torch import nn, optim
from torch.nn import functional as F


def train(model, data, watch, steps=600, peak=3e-3, warmup=100, device="cpu"):
    assert 1 <= warmup <= steps
    model.to(device)
    optimizer = optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    history = [watch(model)]
    for step, (source, target) in enumerate(islice(data, steps), 1):
        up = step / warmup  # 1 at the end of the warm-up
        down = (steps + 1 - step) / (steps + 1 - warmup)  # 1 there, 0 after the end
        for group in optimizer.param_groups:  # the learning rate is kept here
            group["lr"] = peak * min(up, down)
        source, target = source.to(device), target.to(device)
        model.train()  # dropout on, whatever mode the model was in
        logits = model(source, target[:, :-1])  # (B, T, V), from all but the last
        wanted = target[:, 1:]  # (B, T), all but the first
        loss = F.cross_entropy(  # the mean over the targets that are not 0
            logits.flatten(0, 1),  # (B * T, V)
            wanted.flatten(),
            ignore_index=0,
            label_smoothing=0.1,  # explained below
        )
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            row = {"training_loss": loss.item(), "norm": norm.item()}
            history.append(watch(model) | row)
    return history


def endless():
    for epoch in count():
        yield from batches(epoch)


model = fresh()
history = train(model, endless(), watch)
result = evaluate(model, pair_batches(test_pairs))
before, after = history[0]["loss"], history[-1]["loss"]
print(f"validation loss, before and after: {before:.2f}, {after:.2f}")
print(f"test: {result['exact']:.1%} of {len(test_pairs)} numbers exactly right")

# %% tags=["proof"]
assert abs(history[0]["loss"] - np.log(334) - 0.27) < 0.01
assert history[2]["accuracy"] > 0.5 > history[2]["exact"]
assert result["exact"] >= 0.995
assert round(-np.log(0.9), 3) == 0.105 and 0.09 < history[-1]["loss"] < 0.13
assert 2.9 < 600 / len(list(batches(0))) < 3.1

# %% tags=["plot"] mystnb={"image": {"alt": "Two curves over 600 steps, measured on the validation numbers. The share of tokens that are right rises above 80 percent within 100 steps. The share of numbers that are right from beginning to end follows later and ends at the top."}}
figure, axes = plt.subplots(figsize=(6.4, 3))
at = np.arange(0, 601, 50)
for name, color, text, place in [
    ("accuracy", plots.GOLD, "tokens", (76, 0.87)),
    ("exact", plots.BLUE, "whole numbers", (135, 0.55)),
]:
    axes.plot(at, [row[name] for row in history], "o-", ms=3, color=color)
    axes.text(
        *place, text, color=color, ha="right" if name == "accuracy" else "left"
    )
axes.set(
    xlabel="step", ylabel="share right, validation", ylim=(0, 1.06), xlim=(0, 605)
)
plt.show()

# %% [markdown]
# Individual tokens come out right first: at step 100 most are right, but fewer than half of the complete numbers, since
# one wrong token makes a number wrong. In the end all 500 test numbers are right. This is what the model writes for the
# validation number *eleven thousand seven hundred and eighty nine*.

# %% what it writes for the watched number tags=["hide-input"]
for step in (0, 50, 100, 150, 600):
    print(f"step {step:3}: {history[step // 50]['written'].strip()}")
assert history[-1]["written"].strip() == corpus.validation[1].target

# %% [markdown]
# Untrained, the model repeats *send*, a part of *tausend*. The loss began at 6.08, a little above $\ln 334 = 5.81$,
# because [the spread of the first logits raises it](07_learning.ipynb#the-first-number-to-look-at).

# %% [markdown]
# ## Label smoothing
#
# This part explains why the loss ended at 0.11, and real translation models use it. The loss so far, from here on the
# *plain* loss, always falls further if the right token's logit grows. So where one token is always right, this loss
# never stops pushing the model to be more confident. But a model that is more confident of everything is also more
# confident of its mistakes on new text. **Label smoothing** is meant to curb this **overconfidence**: it asks for less
# than certainty.
#
# Without it, the target is *one-hot*: 1 for the right token and 0 for all others. With it, the target is a share $q_i$
# for each token: with $\varepsilon = 0.1$, nine tenths go to the right token, and a tenth is spread evenly over all $V$
# tokens, the right one included. With $p_i$ for the model's probability of token $i$, the loss is then
# $-\sum_i q_i \ln p_i$; for a one-hot $q$ it is the plain loss. In the first row of [the example](#the-loss) $q$ is
# $0.9 + 0.1 / 4 = 0.925$ for *b* and $0.025$ for each other token:
#
# $$-(0.925 \ln 0.7 + 3 \cdot 0.025 \ln 0.1) = 0.330 + 0.173 = 0.503$$
#
# As for a one-hot target ([chapter 7](07_learning.ipynb#where-does-the-gradient-begin)), the gradient with respect to
# the logits is $p - q$. It is 0 only where each $p_i$ equals $q_i$, so there the loss is smallest, though still [above
# 0](#how-small-can-a-smoothed-loss-become). With 334 tokens the right token's $q_i$ is about 0.9. Here the source
# determines each next token, so the model learns to give it about 0.9. Its plain loss, which `evaluate` measures, is
# then about $-\ln 0.9 = 0.105$. That is why the run above ends near 0.11, and not near 0. (Where several tokens are
# possible, each gets nine tenths of its true probability, plus $0.1/V$.)

# %% [markdown]
# ## How large a step?
#
# In chapter 7 every parameter moved by its gradient times one learning rate. But gradients differ in size, often by
# orders of magnitude.
#
# Does a large gradient mean that its parameter should go far? No. Let one parameter be a length in metres, and store it
# in kilometres instead. It needs a change a thousand times smaller, yet its gradient is a thousand times *larger*. So
# it needs a learning rate a million times smaller. A learning rate that suits one parameter can be far too large or too
# small for another. For each parameter Adam keeps the sign that its gradients agree on, and divides their usual size
# out. The learning rate is then roughly the size of the steps where gradients agree. The length in kilometres now needs
# a learning rate a thousand times smaller, not a million: Adam works well if parameters need to move by similar
# distances, which it cannot ensure.
#
# ### Adam
#
# **Adam** asks two questions of each parameter's latest gradients: in which direction do they agree, and how large are
# they usually? It keeps two running means (*exponential moving averages*), $m$ of the gradient $g$ and $v$ of its
# square, its first and second **moments**:
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1)\, g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2 .$$
#
# In $m$ opposite gradients cancel, and what they agree on remains (**momentum**); $\sqrt v$ is the usual size of a
# gradient. With the learning rate $\eta$, the step is in essence $-\eta \, m / \sqrt v$.
#
# With $\beta_1 = 0.9$ a gradient counts 0.1 when it is new, 0.09 one step later, then 0.081, so $m$ is roughly an average
# of the last $1 / (1 - \beta_1) = 10$ gradients. In $v$, with the transformer paper's $\beta_2 = 0.98$, it is the last
# 50, because the usual size should not depend on a few batches.
#
# But $m$ and $v$ start at 0, so at first both are too small, and not equally: after one step $m$ is only $0.1 \, g$,
# and $v$ only $0.02 \, g^2$. After $n$ steps the gradients' weights sum to $1 - \beta^n$ instead of 1, so $m$ and $v$
# are each divided by this sum (**bias correction**):
#
# $$\text{step} = -\,\eta \cdot \frac{m / (1 - \beta_1^n)}{\sqrt{v / (1 - \beta_2^n)} + \epsilon} , \qquad \epsilon = 10^{-9} \text{ against dividing by 0.}$$
#
# **Predict first.** At the first step two parameters have the gradients 100 and 0.001. The learning rate is 0.01. How
# far does each move?

# %% one step of Adam tags=["hide-input"]
parameter = torch.zeros(2, requires_grad=True)
adam = torch.optim.Adam([parameter], lr=0.01, betas=(0.9, 0.98), eps=1e-9)
parameter.grad = torch.tensor([100, 0.001])
adam.step()
print([round(entry, 6) for entry in parameter.tolist()])
assert torch.allclose(parameter, torch.tensor([-0.01, -0.01]), rtol=1e-4)

# %% [markdown]
# Both move equally far, by the whole learning rate. Check it on paper: $m = 0.1\, g$ and $v = 0.02\, g^2$, bias
# correction divides them by 0.1 and 0.02, which leaves $g / \sqrt{g^2}$, 1 or −1. (Without the correction this step
# would be $0.1 / \sqrt{0.02} = 0.71$ times as long. With PyTorch's default $\beta_2 = 0.999$, again without it, the
# step would be $0.1 / \sqrt{0.001} = 3.2$ times as long, because $\sqrt v$ would be too small by a factor of 32, and
# $m$ only by 10.) Adam has seen one gradient, and steps by its sign alone, whether that gradient is signal or noise.
#
# From the second step on it matters whether gradients agree: where they do not, steps are shorter. For the gradients 1,
# −1 and 1:
#
# | gradient | $m$ | $v$ | $m$ corrected | $v$ corrected | step |
# |---|---|---|---|---|---|
# | 1 | 0.1 | 0.02 | 1 | 1 | $-1.00\,\eta$ |
# | −1 | −0.01 | 0.0396 | −0.053 | 1 | $+0.05\,\eta$ |
# | 1 | 0.091 | 0.0588 | 0.336 | 1 | $-0.34\,\eta$ |

# %% tags=["proof"]
parameter, moved = torch.zeros(1, requires_grad=True), []
adam = torch.optim.Adam([parameter], lr=1.0, betas=(0.9, 0.98), eps=1e-9)
for gradient in (1.0, -1.0, 1.0):
    before = parameter.item()
    parameter.grad = torch.tensor([gradient])
    adam.step()
    moved.append(parameter.item() - before)
assert np.round(moved, 2).tolist() == [-1.0, 0.05, -0.34]
assert np.allclose(adam.state[parameter]["exp_avg"], 0.091)

# %% [markdown]
# ### Warm-up and schedule
#
# Adam's first step follows one batch at full length, and for a while $m$ and $v$ rest on few batches, so early steps
# can go far wrong. This is one reason for *warm-up*: the learning rate begins near 0 and grows. At our learning rate it
# makes no clear difference. At twice ours, below on the right, 99 percent of the validation numbers are first right
# after 275 to 400 steps with it, and after 425 to 525 without. ([Xiong and others,
# 2020](https://arxiv.org/abs/2002.04745), found it essential for full-size post-norm models, whose gradients near the
# output are large at first.) Later the learning rate should shrink again, because a model whose steps stay long does
# not settle. The transformer paper's **schedule** does both:
#
# $$\eta(n) = d_\text{model}^{-1/2} \cdot \min\left(n^{-1/2},\ n \cdot \text{warmup}^{-3/2}\right)$$
#
# Up to $n = \text{warmup}$ the second term is smaller, so the learning rate rises in a straight line; after that it
# falls as $1/\sqrt n$ (the *inverse square root*). The factor in front makes the learning rate lower in wider models.
#
# Two other schedules go down to 0: in a straight line, as ours does, or along half a **cosine**, which falls slowly at
# both ends and fast in between. Both need to know the number of steps in advance; the inverse square root does not. The
# left panel shows all three, with their steps of warm-up.

# %% tags=["proof"]
back = np.arange(300)
thrown = 10 / np.sqrt(200) * (0.9 / 0.98**0.5) ** back  # of a gradient 100 times
assert thrown[0].round(1) == 0.7 and 7 < thrown.sum() < 8


def steps_of(gradients):
    """Adam's steps for one parameter, in learning rates."""
    m = v = 0
    for n, g in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g**2
        yield m / (1 - 0.9**n) / np.sqrt(v / (1 - 0.98**n))


assert np.round([*steps_of([1, -1])], 2).tolist() == [1, -0.05]
assert np.allclose([*steps_of([1] * 5)], 1)
rare = [*steps_of(([1] + [0] * 99) * 100)]
assert round(1 / np.mean(rare[5000:])) == 14


# %% tags=["hide-input", "export"] module="training"
def inverse_sqrt_rate(step: int, peak: float, warmup: int) -> float:
    """Up in a line to `peak` at step `warmup`, then down as 1 / sqrt(step).

    Steps count from 1; ValueError for a step or a warm-up below 1.
    """
    if min(step, warmup) < 1:
        raise ValueError(f"step and warmup count from 1, not {step} and {warmup}")
    return peak * min(step / warmup, (warmup / step) ** 0.5)


def noam_rate(step: int, d_model: int, warmup: int) -> float:
    """The paper's schedule (Vaswani and others 2017, equation 3), by Noam Shazeer."""
    return inverse_sqrt_rate(step, (d_model * warmup) ** -0.5, warmup)


def linear_rate(step: int, peak: float, warmup: int, steps: int) -> float:
    """Up in a line to `peak` at step `warmup`, then down in a line.

    It is 0 after `steps`. ValueError unless step >= 1 and 1 <= warmup <= steps.
    """
    if step < 1 or not 1 <= warmup <= steps:
        wanted = "step must be at least 1 and warmup between 1 and steps"
        raise ValueError(f"{wanted}, not {step}, {warmup} and {steps}")
    left = (steps + 1 - step) / (steps + 1 - warmup)
    return peak * max(0.0, min(step / warmup, left))


# %% three schedules, step by step tags=["hide-input"]
steps = np.arange(1, 10_001)
paper = [noam_rate(n, d_model=512, warmup=4000) for n in steps]
linear = [linear_rate(n, peak=7e-4, warmup=1000, steps=10_000) for n in steps]
half = (1 + np.cos(np.pi * (steps - 1000) / 9000)) / 2
cosine = 7e-4 * np.where(steps < 1000, steps / 1000, half)
assert np.argmax(paper) == 3999 and np.isclose(max(paper), 1 / np.sqrt(512 * 4000))
assert np.isclose(noam_rate(9, 4, 4), 4**-0.5 * min(9**-0.5, 9 * 4**-1.5))
after = np.arange(201)  # steps after a gradient of 100 among many of 1 or -1
root_v = np.sqrt(1 + 200 * 0.98**after)
moved = (0.1 * 100 * 0.9**after / root_v).sum()  # by what it has left in m
assert 7.5 < moved < 8.5 and np.isclose(root_v[200], 2.1, atol=0.05)
assert root_v[0].round() == 14 and root_v[100].round() == 5
assert [round(0.1 / (1 - b) ** 0.5, 2) for b in (0.98, 0.999)] == [0.71, 3.16]

# %% tags=["plot"] mystnb={"image": {"alt": "Two panels. Left, the learning rate over 10,000 steps. The paper's rises in a line to 0.0007 at step 4,000 and then falls slowly, to 0.00044 at the end. The linear one and the cosine rise to 0.0007 at step 1,000 and fall to 0, in a line and along half a cosine. Right, validation numbers right over 600 steps, three seeds each, at twice the chapter's learning rate: with warm-up the curves rise from step 75 on and first reach 99 percent by step 400, without it they rise from step 125 to 175 on and first reach it by step 525."}}
from classroom.measured import measured

recipes = measured("recipes")["runs"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 2.9))
for rates, color in (paper, plots.BLUE), (linear, plots.GOLD), (cosine, plots.TEAL):
    left.plot(steps, rates, color=color)
left.text(4700, 6.9e-4, "the paper's, 4,000", color=plots.BLUE, fontsize=9)
left.text(6500, 3.1e-4, "linear, 1,000", color=plots.GOLD, fontsize=9)
left.text(1200, 7.3e-4, "cosine, 1,000", color=plots.TEAL, fontsize=9)
left.set(xlabel="step", ylabel="learning rate", ylim=(0, 8.2e-4), xlim=(0, 10_000))
left.set_title("schedules, and their warm-up", fontsize=10)
for name, color in (
    ("double learning rate", plots.BLUE),
    ("double learning rate, no warm-up", plots.RED),
):
    for run in recipes[name]:
        right.plot(run["step"], run["validation_exact"], color=color, lw=1)
right.text(2, 0.86, "warm-up", color=plots.BLUE, fontsize=9)
right.text(330, 0.35, "no warm-up", color=plots.RED, fontsize=9)
right.set(xlabel="step", ylabel="numbers right", ylim=(0, 1.04))
right.set_title("validation, twice the learning rate", fontsize=10)
figure.tight_layout()
plt.show()

# %% [markdown]
# ### Clipping
#
# Warm-up protects the beginning of a run, and **gradient clipping** protects every step. Now and then a sentence gives
# a huge gradient, and in plain gradient descent one such step can undo many good ones. Adam bounds that one step, but
# [the steps after it suffer](#why-clip-if-adam-divides-the-size-out).
#
# To clip, take all gradients of the model as one long vector. If its norm, the *global norm*, exceeds a limit, scale
# the vector down to that limit, in the same direction: with limit 1, the vector $(3, 4)$ of norm 5 becomes
# $(0.6, 0.8)$. Why not clip each entry? At 0.5 the vector $(0.3, 4)$ would become $(0.3, 0.5)$, another direction. Why
# not a smaller learning rate? It would shorten every step. Log the norm. If nearly every step is clipped, the limit no
# longer picks out bad batches. (With Adam that does little harm, because a factor that hardly changes is divided out.)
# If the loss jumps and stays high, go back to a state saved before the jump, and skip the batches that caused it.
#
# ## What was needed?
#
# Which of these ingredients does our task need? We compared recipes, three seeds each (`python -m benchmarks.recipes`).
# **Predict first:** which can be left out here, Adam, clipping, a learning rate that falls all the way to 0, or label
# smoothing?
#
# Any one of the four: leaving it out alone costs about one percentage point at most ([all
# figures](#what-was-needed-in-figures)):
#
# | recipe, 600 steps | test numbers right |
# |---|---|
# | the chapter's | 100.0% |
# | gradient descent with momentum instead of Adam, its learning rate tuned | 100.0% |
# | no warm-up | 99.9% |
# | no clipping | 100.0% |
# | inverse square root, which does not fall to 0 | 98.9% |
# | no label smoothing | 100.0% |
# | a tenth of the learning rate | 83% |
# | ten times the learning rate | 0% |
#
# And why Adam? Probably because a large part of ordinary text consists of words that are each rare, and plain gradient
# descent is [slow for these](#what-was-needed-in-figures). What matters most here is the learning rate. The comparison
# cannot rank the rest, because most rows are at the ceiling. Nor does it say what happens if several are left out. To
# find a learning rate, try values a factor of 3 apart in short runs, and choose on the validation numbers; if the best
# is at either end, try further.
#
# So the loop works, given data, memory and no power cut. The rest of the chapter takes these three away.

# %% [markdown]
# ## When a model overfits
#
# First the data. What if there are only 150 numbers instead of 20,000? Then an epoch has only two batches, and 600
# steps are 300 epochs instead of three. We tried that with the recipe of [the loop](#a-loop-that-learns), but without
# label smoothing, itself a remedy (`python -m benchmarks.overfitting`).
#
# The figure shows training and validation loss, three seeds each, with a dot at the lowest validation loss: on the left
# with this recipe, on the right with a remedy, **weight decay** $\lambda = 1$: each step also shrinks every parameter a
# little, by the factor $1 - \eta \lambda$. At the peak of the learning rate that is 0.3 percent a step.

# %% what was measured tags=["hide-input"]
few = measured("overfitting")["runs"]

# %% tags=["plot"] mystnb={"image": {"alt": "Two panels of losses over 600 steps, three runs each. Left, 150 numbers: the training loss falls to 0 by step 200; the validation losses fall to between 0.3 and 0.5 by step 125 to 175 and then rise slowly. Right, with weight decay 1: both fall together, jump a little around step 325, and the validation loss ends near 0.04."}}
figure, panels = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
for axes, name, title in [
    (panels[0], "none", "150 numbers"),
    (panels[1], "weight decay 1", "150 numbers, weight decay 1"),
]:
    for run in few[name]:
        axes.plot(run["step"], run["loss"], color=plots.BLUE, lw=1)
        axes.plot(run["step"], run["validation_loss"], color=plots.RED, lw=1)
        best = int(np.argmin(run["validation_loss"]))
        lowest = run["step"][best], run["validation_loss"][best]
        axes.plot(*lowest, "o", color=plots.RED, ms=5)
    axes.set(title=title, xlabel="step", ylim=(0, 1.0), xlim=(0, 600))
panels[0].set_ylabel("loss, nats per token")
panels[0].text(330, 0.04, "training", color=plots.BLUE)
panels[0].text(330, 0.66, "validation", color=plots.RED)
figure.tight_layout()
plt.show()

# %% [markdown]
# The left panel shows **overfitting**. After some 150 steps the training loss is near 0: the model has memorised these
# 150 numbers. From there it mostly becomes more confident, also of its mistakes: where its likeliest token is wrong, it
# gives that token a mean probability of 0.80 at step 150 and 0.88 at the end. That leaves less for the right token, so
# the validation loss turns upwards while the training loss still falls: the sign to look for.
#
# To be right on new numbers is to **generalise**, and this model does so on only 42.5 percent. (The distance between
# the two losses is the *generalisation gap*.) Anything meant to prevent overfitting is **regularisation**.
#
# The output compares remedies: *none* is the left panel, and each row below adds one. Losses are plain. All values are
# means of three seeds at the end of training, shares ± standard deviation.

# %% lowest and last losses, and what is right then tags=["hide-input"]
print(f"{'validation':19}{'numbers right':>15}{'loss':>10}")
for name, seeds in few.items():
    end = np.array([run["validation_exact"][-1] for run in seeds])
    loss = np.mean([run["validation_loss"][-1] for run in seeds])
    print(f"{name:19}{end.mean():7.1%} ± {end.std(ddof=1):5.1%}{loss:10.3f}")

# %% [markdown]
# The remedies, one by one:
#
# - **Early stopping**: stop when the validation loss has not fallen for a number of validations (the *patience*), or
#   keep a copy of the parameters that had the lowest loss, the dots in the figure. (The trainer below keeps such a
#   copy, but never stops early.) In row *none*, three to six percentage points more numbers are right at the end than
#   at the dots, although the validation loss is higher. So if right answers matter, keep the model that gets the most
#   right.
# - **Weight decay** pulls every parameter towards 0, so that only what keeps lowering the loss stays large. Decay 1 is
#   the right panel of the figure: both losses fall together, apart from a jump halfway that we have not explained. Here
#   it is done by [AdamW](#weight-decay-and-adamw) on all parameters (`optim.AdamW(..., weight_decay=1.0)`; in longer
#   runs, whose learning rates add up to more, 0.01 to 0.1 is usual).
# - **Dropout** zeroes entries of the activations at random, so that the model cannot rely on any single one.
# - **Label smoothing** does not clearly change how many numbers are right, but the model is less confident of its
#   mistakes: at the end a wrong likeliest token has a mean probability of 0.61 instead of 0.88.
#
# We choose by the validation numbers that are right. Weight decay 1, weight decay 3 and dropout 0.1 tie within their
# spread, so the loss decides: decay 1 (its lead over dropout, 0.041 against 0.055, may be luck). Of the test numbers,
# which had no part in this choice, it gets 91.5 percent right, against 38.1 without a remedy.
#
# More data helps most: with 20,000 numbers none of this was needed. If your own validation loss rises, first run
# `evaluate` on part of the *training* set. If that loss is far lower, the model overfits: keep the best checkpoint, get
# more data, try dropout and stronger decay, and last a smaller model. If it is high too, look at the learning rate, or
# for a bug. Large language models read most of their text about once, so they hardly overfit, and usually have no
# dropout or label smoothing, but some weight decay.

# %% tags=["proof"]
by_seed = {
    name: np.array([run["validation_exact"][-1] for run in seeds])
    for name, seeds in few.items()
}
right = {name: row.mean() for name, row in by_seed.items()}
assert by_seed["none"].round(2).tolist() == [0.5, 0.4, 0.38]
ends = [
    run["validation_exact"][-1]
    - run["validation_exact"][int(np.argmin(run["validation_loss"]))]
    for run in few["none"]
]
assert 0.03 < min(ends) < max(ends) <= 0.0601
assert len(list(pair_batches(train_pairs[:150], max_tokens=1024))) == 2
assert 0.42 < right["none"] < 0.435 and right["weight decay 1"].round(2) == 0.93
gains = by_seed["weight decay 0.1"] - by_seed["none"]
assert 0.03 < gains.min() < gains.max() < 0.105
smoothed = by_seed["label smoothing 0.1"] - by_seed["none"]
assert (smoothed > 0).sum() == 2 and (smoothed < 0).sum() == 1
assert abs(right["weight decay 3"] - right["weight decay 1"]) < 0.02
on_test = [
    np.mean([run["test"]["exact"] for run in few[name]]).round(2)
    for name in ("none", "weight decay 1")
]
assert on_test == [0.38, 0.91]
rates = [linear_rate(step, 3e-3, 100, 600) for step in range(1, 601)]
assert round(sum(rates), 2) == 0.9 and round(np.exp(-0.9), 2) == 0.41
assert round(np.exp(-0.09), 2) == 0.91
assert (
    round(right["dropout 0.1"], 2) == 0.92
    and round(right["dropout 0.2"], 2) == 0.86
)
turns = [run["step"][int(np.argmin(run["validation_loss"]))] for run in few["none"]]
assert min(turns) >= 125 and max(turns) <= 175
exact = [run["validation_exact"] for run in few["none"]]
there = np.mean(
    [row[turn // 25 - 1] for row, turn in zip(exact, turns, strict=True)]
)
assert there < right["none"] - 0.02
at = few["none"][0]["step"].index(150)
surer = [
    np.mean([run[f"validation_{name}"][n] for run in few["none"]]).round(2)
    for name, n in (("sure_wrong", at), ("sure_wrong", -1), ("loss_wrong", -1))
]
doubts = [run["validation_sure_wrong"][-1] for run in few["label smoothing 0.1"]]
assert np.mean(doubts).round(2) == 0.61
assert surer == [0.80, 0.88, 0.98]
assert max(run["loss"][-1] for run in few["none"]) < 0.001
doubting = np.mean(
    [run["validation_loss"] for run in few["label smoothing 0.1"]], 0
)
assert doubting[-1] < doubting.min() + 0.001  # it turns upwards no more
sure = [run["validation_sure_right"][-1] for run in few["label smoothing 0.1"]]
assert round(np.mean(sure), 2) == 0.86
for run in few["weight decay 1"]:
    part = run["step"].index(300), run["step"].index(375)
    for loss in (run["loss"], run["validation_loss"]):
        assert max(loss[slice(*part)]) > 1.3 * min(loss[: part[0]]) > loss[-1]

# %% [markdown]
# ## One step from several batches
#
# Next, memory. A large batch has a less noisy gradient, so it may allow a larger learning rate and fewer steps. But it
# may not fit: say 25,000 tokens, as in the paper, on a GPU that has room for 4,000. Then send several smaller ones
# (**micro-batches**) through the model in turn, add up their gradients, and step once. This is **gradient
# accumulation**, and together the micro-batches form the *effective batch*. A step takes the time of all of them, but
# the memory for the activations of only one, because each backward pass frees its own. Without dropout the step should
# be *the same* as with one large batch, up to rounding.
#
# ### Break it: the mean of means
#
# May we take the mean of the batches' mean losses? No. Take two sentences, with 3 and 9 targets. In one batch each of
# the 12 targets counts $\frac1{12}$. In the mean of two means a target of the short sentence counts
# $\frac12 \cdot \frac13 = \frac16$, and one of the long sentence $\frac12 \cdot \frac19 = \frac1{18}$. So divide each
# summed loss by 12, the number of all targets, and add. *Away* is the relative error of each gradient, its distance
# from that of the one batch, as a share of the latter's length:

# %% two batches, and two ways to divide tags=["hide-input"]
torch.manual_seed(0)
small = Transformer(
    TransformerConfig(9, 9, 1, 1, d_model=16, num_heads=2, d_ff=32, dropout=0.0)
).double()
short = torch.tensor([[3, 4]]), torch.tensor([[1, 3, 4, 2]])
long = (
    torch.tensor([[5, 6, 7, 8, 3, 4, 5, 6]]),
    torch.tensor([[1, 5, 6, 7, 8, 3, 4, 5, 6, 2]]),
)
padded = [
    nn.utils.rnn.pad_sequence([one[0], other[0]], batch_first=True)
    for one, other in zip(short, long, strict=True)
]


def gradient(batches, scale):
    """The gradient of all parameters together, each batch's loss scaled."""
    small.zero_grad()
    for source, target in batches:
        loss, count = cross_entropy(small(source, target[:, :-1]), target[:, 1:])
        scale(loss, count).backward()
    return torch.cat([p.grad.flatten() for p in small.parameters()])


whole = gradient([padded], lambda loss, count: loss / count)
for name, scale in [
    ("each sum divided by 12", lambda loss, count: loss / 12),
    ("mean of the two means", lambda loss, count: loss / count / 2),
]:
    found = gradient([short, long], scale)
    away = (found - whole).norm() / whole.norm()
    print(f"{name:24} {away:5.0%} away")
    assert (away < 1e-12) == name.startswith("each sum")

# %% [markdown]
# A model trained with the mean of means does learn, so the mistake is easy to miss: Hugging Face's `transformers` [made
# it](https://huggingface.co/blog/gradient_accumulation) until October 2024. So count all targets first, and divide each
# part's summed loss, which our `cross_entropy` returns, by that count. Each backward pass adds its gradients to those
# of the parts before:


# %%
def one_step(model, optimizer, parts):
    tokens = sum((target[:, 1:] != 0).sum() for _, target in parts)
    optimizer.zero_grad()
    for source, target in parts:
        logits = model(source, target[:, :-1])
        loss, _ = cross_entropy(logits, target[:, 1:], label_smoothing=0.1)
        (loss / tokens).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


# %% [markdown]
# The gradients are clipped once, when all parts are added up; clipping each part would change their proportions.


# %% tags=["quiz"]
quiz.one_choice(
    "You accumulate over 4 batches. They have 100, 100, 100 and 700 real targets. By what is the summed loss of the first batch divided before its backward pass?",
    quiz.wrong(
        "By 100, its own number of targets",
        "Then all batches count alike, and a word of the first counts seven times as much as a word of the last. The gradient is also about four times too long.",
    ),
    quiz.wrong(
        "By 400, its own number times four",
        "That is the mean of means. It agrees with the whole only where all batches have equally many targets.",
    ),
    quiz.right(
        "By 1,000, the targets of all four",
        "Yes. Then every word counts alike, as it would in one batch.",
    ),
    quiz.wrong(
        "By 4, the number of batches",
        "Then it is 1,000 / 4 = 250 times too long.",
    ),
)

# %% [markdown]
# ## The trainer
#
# Last, the power cut, which a long run must survive. So the model and the optimiser, whose states must be saved, are
# put into one object, the book's `Trainer`. It has a `model`, an `optimizer`, and a `config`, a `TrainingConfig`, whose
# `learning_rate_at(step)` is the schedule. Its `train` is the loop above. Its `train_step(batches, learning_rate)` is
# one step, on a list of batches that count as one, and returns their summed loss and number of targets.

# %% tags=["hide-input", "export"] module="training"
from dataclasses import dataclass
from typing import Literal

from dotformer.support.settings import check_settings


@dataclass(frozen=True)
class TrainingConfig:
    """All that fixes a run, beside the model and the data.

    The schedule has its peak, `learning_rate`, at step `warmup_steps`. The model is
    validated, logged and saved each `validate_every` steps. TypeError for a value
    of another type, and ValueError for a number that cannot work.
    """

    steps: int = 2000
    learning_rate: float = 1e-3
    warmup_steps: int = 200
    schedule: Literal["linear", "inverse_sqrt"] = "linear"
    label_smoothing: float = 0.1
    max_grad_norm: float = 1.0
    accumulation_steps: int = 1
    validate_every: int = 200
    seed: int = 0
    pad_id: int = 0

    def __post_init__(self) -> None:
        check_settings(self, zero=("seed", "pad_id"), shares=("label_smoothing",))
        self.learning_rate_at(1)

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, the first of which is 1."""
        peak, warmup = self.learning_rate, self.warmup_steps
        if self.schedule == "linear":
            return linear_rate(step, peak, warmup, self.steps)
        return inverse_sqrt_rate(step, peak, warmup)


# %% tags=["hide-input", "export"] module="training"
from contextlib import closing, nullcontext
from pathlib import Path

from dotformer.support.checkpoints import RunFolder, keep_random_state
from dotformer.support.progress import Meter, steps_after, stream, validation_row


class Trainer:
    """Trains a model in place. Its optimizer, the function that computes the loss,
    and the context of each forward pass are attributes, which may be replaced.
    """

    def __init__(
        self, model: nn.Module, config: TrainingConfig, device: str = "cpu"
    ) -> None:
        self.model, self.config, self.device = model.to(device), config, device
        self.criterion, self.precision = cross_entropy, nullcontext
        self.optimizer = optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)

    def count_targets(self, batches: list[Batch]) -> int:
        """How many real targets there are in the batches of a step."""
        pad = self.config.pad_id
        return int(sum((target[:, 1:] != pad).sum() for _, target in batches))

    def accumulate_gradients(self, batches: list[Batch], tokens: float) -> Tensor:
        """Add up the gradients of each batch's loss / `tokens`; the summed loss."""
        pad, smoothing = self.config.pad_id, self.config.label_smoothing
        summed = torch.zeros(())
        for source, target in batches:
            with self.precision():
                logits = self.model(source, target[:, :-1])
            loss, _ = self.criterion(logits, target[:, 1:], pad, smoothing)
            (loss / tokens).backward()
            summed = summed + loss.detach()
        return summed

    def update(self, norm: Tensor) -> None:
        """Let the optimizer move the parameters; `norm` is that of the gradient."""
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the norm of the gradient is {float(norm)}")
        self.optimizer.step()

    def train_step(
        self, batches: list[Batch], learning_rate: float
    ) -> tuple[Tensor, int]:
        """One step on several batches, as if they were one; summed loss, targets.

        ValueError when no target is real, FloatingPointError when the gradient is
        not finite; no parameter has changed then.
        """
        tokens = self.count_targets(batches)
        if not tokens:
            raise ValueError("no target of these batches is real")
        batches = [
            tuple(side.to(self.device, non_blocking=True) for side in one)
            for one in batches
        ]
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        return self.device_step(batches, tokens), tokens

    def device_step(self, batches: list[Batch], tokens: float) -> Tensor:
        """A step on batches that are on the device; the summed loss."""
        self.optimizer.zero_grad()
        loss = self.accumulate_gradients(batches, tokens)
        limit = self.config.max_grad_norm
        self.update(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        return loss

    def figures(self, row: Row) -> Row:
        """What else a row of the history should say."""
        return {}

    def train(
        self,
        batches: Callable[[int], Iterable[Batch]],
        validate: Callable[[nn.Module], Row],
        folder: str | Path | None = None,
        progress: bool = True,
    ) -> list[Row]:
        """Train to the last step; the history, a row for each validation.

        `batches(epoch)` gives the same batches whenever it is asked, and leaves
        PyTorch's global random numbers alone; `validate(model)` gives figures,
        "loss" among them. A run that `folder` holds goes on where it was.
        """
        config, optimizer, model = self.config, self.optimizer, self.model.train()
        with keep_random_state(), RunFolder(folder) as run:
            torch.manual_seed(config.seed)
            position, history = run.load(model, optimizer, config)
            steps, meter = steps_after(history, config.steps, progress), Meter()
            with closing(
                stream(batches, position, config.accumulation_steps)
            ) as data:
                for step, (position, group) in zip(steps, data, strict=False):
                    learning_rate = config.learning_rate_at(step)
                    meter.add(*self.train_step(group, learning_rate))
                    if step % config.validate_every == 0 or step == config.steps:
                        row = meter.row(step, position, learning_rate)
                        row |= self.figures(row) | validation_row(validate(model))
                        history.append(row)
                        run.save(model, optimizer, config, position, history)
                        meter = Meter()
                        model.train()
        return history


# %% tags=["proof"]
config = TrainingConfig(
    steps=600, learning_rate=3e-3, warmup_steps=100, validate_every=50
)
trainer, data = Trainer(fresh(), config), list(batches(0))
for step, batch in enumerate(data[:3], 1):
    trainer.train_step([batch], config.learning_rate_at(step))
looped = fresh()
adam = optim.Adam(looped.parameters(), betas=(0.9, 0.98), eps=1e-9)
for step, batch in enumerate(data[:3], 1):
    adam.param_groups[0]["lr"] = 3e-3 * step / 100
    one_step(looped, adam, [batch])
one_step(looped, adam, data[3:5])
trainer.train_step(data[3:5], adam.param_groups[0]["lr"])
both = zip(trainer.model.parameters(), looped.parameters(), strict=True)
assert all(torch.allclose(a, b, atol=1e-6) for a, b in both)
rates = [config.learning_rate_at(step) for step in (1, 100, 350, 600)]
assert np.allclose(rates, [3e-5, 3e-3, 3e-3 * 251 / 501, 3e-3 / 501])

# %% [markdown]
# ## Stop halfway
#
# What must be kept so that a run can **resume** *as if it had never stopped*?
#
# **Predict first.** Make a list before you read on.
#
# 1. The parameters.
# 2. The optimiser state: Adam's two means for every parameter, and its count of steps. (So a checkpoint is about three
#    times as large as the parameters.)
# 3. The state of the random number generator (the **RNG state**), since dropout draws from it; on a GPU, that of the
#    GPU's generator too (and Python's or NumPy's, if the data code draws from them).
# 4. How far the run has got in the data, its *position*: which epoch, and how many of its batches are done.
# 5. The history: a run that keeps the best model must know its lowest validation loss so far, or it could overwrite
#    that model with a worse one. (The example below keeps training losses only.)
#
# The learning rate and the order of the sentences are not on the list: the one follows from the number of the step
# (below, the length of the history), the other from the seed and the epoch. (In code of your own, a scheduler object
# has a `state_dict` to keep. A shuffling `DataLoader` has none, so give it a generator seeded with the epoch.)
#
# `save_run` writes the five to a new file beside the old one, and renames it when it is complete. Renaming is
# **atomic**: it happens wholly or not at all. So a process that is killed while saving leaves the old run or the new
# one. (Against a power cut, call `os.fsync` first, as the book's module does.)

# %%
import tempfile


def save_run(path, model, optimizer, position, history):
    run = {
        "parameters": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),  # and, on a GPU, the GPU's
        "position": position,  # epoch, and how many of its batches are done
        "history": history,
    }
    torch.save(run, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)  # renames it


def load_run(path, model, optimizer):
    run = torch.load(path, weights_only=True)  # with False, a file could run code
    model.load_state_dict(run["parameters"])
    optimizer.load_state_dict(run["optimizer"])
    torch.set_rng_state(run["random"])
    return run["position"], run["history"]


# %% [markdown]
# To go on, draw the epoch's batches again, skip those already done, and train:


# %%
def from_position(batches, position):
    """Batches from there on, epoch after epoch, with the position after each."""
    epoch, done = position
    while True:
        for n, batch in enumerate(batches(epoch), 1):
            if n > done:  # the first `done` came before the stop
                yield (epoch, n), batch
        epoch, done = epoch + 1, 0


def resume(trainer, position, history, last):
    """Train up to step `last`; the history has a loss for each step."""
    steps = range(len(history) + 1, last + 1)
    stream = from_position(batches, position)
    for step in steps:
        position, batch = next(stream)
        loss, count = trainer.train_step(
            [batch], trainer.config.learning_rate_at(step)
        )
        history.append(loss.item() / count)
    return position


# %% [markdown]
# Save at step 5 and train to step 10; then let another trainer, with other parameters, load the file and train to step
# 10.

# %% saved at step 5, resumed by another trainer tags=["hide-input"]
config = TrainingConfig(steps=600, learning_rate=3e-3, warmup_steps=100)
path, history = Path(tempfile.mkdtemp()) / "run.pt", []
trainer = Trainer(fresh(dropout=0.1), config)
position = resume(trainer, (0, 0), history, last=5)
save_run(path, trainer.model, trainer.optimizer, position, history)
resume(trainer, position, history, last=10)

resumed = Trainer(fresh(seed=99, dropout=0.1), config)
position, found = load_run(path, resumed.model, resumed.optimizer)
resume(resumed, position, found, last=10)
both = zip(trainer.model.parameters(), resumed.model.parameters(), strict=True)
same = all(torch.equal(one, other) for one, other in both)
print("same parameters:", same, " same losses:", found == history)
assert same and found == history

# %% [markdown]
# They agree to the last bit. This holds on the same machine with the same software, if its operations are
# **deterministic**: some GPU operations add in an order that varies.
#
# The `Trainer` likewise keeps the five things and the configuration in one file, the **checkpoint**, and the model with
# the lowest validation loss beside it.
#
# To be able to resume, give `train` a folder: `trainer.train(batches, validate, folder)`. After a crash, run the same
# line again, and it continues from the last checkpoint. (In the folded cell the power goes at step 13. The resumed run
# ends with the same parameters as one that never stopped.)


# %% a power cut at step 13, and the run resumed tags=["hide-input"]
class PowerCut(Exception):
    """Somebody has tripped over the cable."""


def failing(epoch):
    """The same batches, until the power goes."""
    for n, batch in enumerate(batches(epoch)):
        if n == 12:
            raise PowerCut
        yield batch


config = TrainingConfig(
    steps=20, learning_rate=3e-3, warmup_steps=10, validate_every=5
)
some = partial(evaluate, batches=list(pair_batches(validation_pairs[:50])))
never_stopped = fresh(dropout=0.1)
Trainer(never_stopped, config).train(batches, some, progress=False)

folder = Path(tempfile.mkdtemp())
try:
    trainer = Trainer(fresh(dropout=0.1), config)
    trainer.train(failing, some, folder, progress=False)
except PowerCut:
    assert (folder / "model.safetensors").is_file()
resumed = fresh(seed=99, dropout=0.1)  # its parameters will be replaced
trainer = Trainer(resumed, config)
rows = trainer.train(batches, some, folder, progress=False)
assert [row["step"] for row in rows] == [5, 10, 15, 20]
both = zip(resumed.parameters(), never_stopped.parameters(), strict=True)
assert all(torch.equal(one, other) for one, other in both)

# %% [markdown]
# ### Break it: the parameters are enough
#
# Suppose that you keep the parameters and nothing else. Then the steps count from 1 again, so the warm-up comes a
# second time, and the data start from the beginning. Even if you set the step and the position in the data by hand,
# Adam's state is lost, and no warm-up protects the first steps.
#
# **Predict first.** Take a run of 600 steps, without dropout, that at step 190 gets more than nine in ten of the
# validation numbers right. What will one step with a new Adam change?

# %% the state of Adam kept, or lost tags=["hide-input"]
import copy

from torch.nn.utils import parameters_to_vector, vector_to_parameters

config = TrainingConfig(steps=600, learning_rate=3e-3, warmup_steps=100)
data = list(batches(0))
keeping = Trainer(fresh(), config)
for step in range(1, 191):
    keeping.train_step([data[step - 1]], config.learning_rate_at(step))

forgetting = Trainer(copy.deepcopy(keeping.model), config)  # with a new Adam
start = parameters_to_vector(keeping.model.parameters()).detach().clone()
print("on the validation numbers")
print("step   right: state kept  new Adam   loss: state kept  new Adam")
shares, losses = {}, {}
for step in range(190, 201):
    if step in (190, 191, 195, 200):
        found = [validate(one.model) for one in (keeping, forgetting)]
        shares[step] = [figures["exact"] for figures in found]
        losses[step] = [figures["loss"] for figures in found]
        print(
            f"{step:4}{shares[step][0]:19.1%}{shares[step][1]:10.1%}"
            f"{losses[step][0]:19.3f}{losses[step][1]:10.3f}"
        )
    for one in (keeping, forgetting):
        one.train_step([data[step]], config.learning_rate_at(step + 1))
    if step == 190:  # how far this step has gone
        kept, new = (
            parameters_to_vector(one.model.parameters()).detach() - start
            for one in (keeping, forgetting)
        )
assert shares[190][0] == shares[190][1] > 0.9
assert shares[191][1] < 2 / 3 * shares[190][1]
assert losses[191][1] > 1.3 * losses[190][1]
assert min(kept for kept, _ in shares.values()) > 0.8
assert shares[200][1] > (shares[190][1] + shares[191][1]) / 2

# %% [markdown]
# One step, and many right answers are gone. Ten steps later most are back, so a lost state shows as a short jump in the
# loss, which is easily taken for a bad batch. The new Adam knows a single gradient, so it moves every parameter whose
# gradient is not tiny by the whole learning rate, as in [Adam's first step](#adam). With the state kept, $m$ is mostly
# smaller than $\sqrt v$, so most parameters move by far less. [Is it the length of the step that does the harm, or its
# direction?](#a-new-adam-length-or-direction)

# %% [markdown]
# Losing the RNG state or the position may not show in the curve at all: dropout draws other numbers, or some sentences
# are read twice. A comparison with a run that never stopped finds that.

# %% [markdown]
# ## Symptoms
#
# | symptom | look at |
# |---|---|
# | the first loss is far from $\ln V$ | [the start](07_learning.ipynb#the-first-number-to-look-at); is the sum divided by the number of real targets? |
# | the loss stays near $\ln V$, or, without smoothing and dropout, does not fall to nearly 0 on one batch | [the four checks](07_learning.ipynb#break-it-a-cut-in-the-record) |
# | the loss falls, but slowly | a learning rate that is too low |
# | the loss jumps, stays high, or becomes NaN | a learning rate that is too high; the logged norms of the gradient; a query that may see nothing; overflow in 16 bits ([chapter 20](20_one_gpu.ipynb)) |
# | the loss falls almost to 0 at once | a leak: [the causal mask](09_decoder.ipynb#the-leak-test), or targets that are not shifted |
# | training loss falls, validation loss rises | [overfitting](#when-a-model-overfits); texts prepared differently |
# | validation loss below training loss | dropout and smoothing, which only training has (here a smoothed loss cannot fall below 0.90); a training loss averaged over an epoch |
# | a jump after a restart | [what was not kept](#break-it-the-parameters-are-enough) |

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: The loss
#
# *Easy, 10 minutes.* Given the probabilities that a model gave, an array $(T, V)$, and the right tokens, an array
# $(T,)$ of whole numbers, return the cross-entropy in nats per token. Targets equal to `pad_id` do not count, and
# `pad_id` may lie outside the vocabulary. In NumPy.


# %% tags=["exercise"]
def mean_loss(probabilities, targets, pad_id):
    """Cross-entropy in nats per real token."""
    ...


# %% tags=["check"]
def counted(probabilities, targets, pad_id):
    logs = [
        -np.log(p[t])
        for p, t in zip(probabilities, targets, strict=True)
        if t != pad_id
    ]
    return float(np.mean(logs))


def of_the_best(probabilities, targets, pad_id):
    real = targets != pad_id
    return float(-np.log(probabilities.max(axis=1))[real].mean())


some = np.random.default_rng(0).dirichlet([1.0] * 5, size=6)
check_loss = partial(
    checks.check,
    reference=counted,
    cases=[
        (some, np.array([1, 4, 2, 3, 0, 0]), 0),
        (some[:4], np.array([3, 1, 2, 1]), 3),
        (some, np.array([4, 1, 1, 2, 9, 9]), 9),
    ],
    mistakes={
        "padding counts, in sum and divisor": lambda p, t, pad: counted(
            p, t % 5, -1
        ),
        "padding is in the divisor": lambda p, t, pad: (
            counted(p, t, pad) * (t != pad).mean()
        ),
        "this is in bits; take the natural logarithm": lambda p, t, pad: (
            counted(p, t, pad) / np.log(2)
        ),
        "this is the loss of the model's favourite, not of the right token": of_the_best,
        "the mean of the probabilities comes before the logarithm": lambda p, t, pad: (
            float(
                -np.log(
                    np.mean([a[b] for a, b in zip(p, t, strict=True) if b != pad])
                )
            )
        ),
        "the sign is missing": lambda p, t, pad: -counted(p, t, pad),
        "the sum is not divided": lambda p, t, pad: float(
            counted(p, t, pad) * (t != pad).sum()
        ),
    },
)
check_loss(mean_loss)


# %% tags=["solution"]
def mean_loss(probabilities, targets, pad_id):
    real = targets != pad_id
    return -np.log(probabilities[real, targets[real]]).mean()


verdict = check_loss(mean_loss)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: Adam
#
# *Medium, 15 minutes.* For one parameter you get the gradients of several steps, a list. Return where it stands after
# them, if it started at 0. Steps count from 1. Use the formula with [bias correction](#adam), with the paper's
# $\beta_1$, $\beta_2$ and $\epsilon$.


# %% tags=["exercise"]
def where_adam_goes(gradients, learning_rate):
    """The parameter after all steps, a number."""
    ...


# %% tags=["check"]
def adam_by_loop(
    gradients,
    learning_rate,
    first=True,
    second=True,
    root=True,
    sign=-1,
    start=1,
    epsilon=1e-9,
):
    m = v = parameter = 0.0
    for n, g in enumerate(gradients, start):
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g * g
        mean = m / (1 - 0.9**n) if first and n else m
        square = v / (1 - 0.98**n) if second and n else v
        parameter += (
            sign
            * learning_rate
            * mean
            / ((np.sqrt(square) if root else square) + epsilon)
        )
    return parameter


check_adam = partial(
    checks.check,
    reference=adam_by_loop,
    cases=[
        ([2.0], 0.1),
        ([1.0, -3.0, 0.5, 0.5], 0.01),
        ([0.2] * 30, 0.003),
        ([0.0, 1e-9], 0.1),
    ],
    mistakes={
        "the means start at 0, which both divisors with n must make up for": lambda g, r: (
            adam_by_loop(g, r, first=False, second=False)
        ),
        "only one of the two means is divided by its 1 minus beta to the n": lambda g, r: (
            adam_by_loop(g, r, first=False)
        ),
        "the mean of the squares is not divided by its 1 minus beta to the n": lambda g, r: (
            adam_by_loop(g, r, second=False)
        ),
        "the root is missing": lambda g, r: adam_by_loop(g, r, root=False),
        "it climbs: subtract the step": lambda g, r: adam_by_loop(g, r, sign=1),
        "steps count from 1": lambda g, r: adam_by_loop(g, r, start=2),
        "epsilon is added after the root, and counts where gradients are tiny": lambda g, r: (
            adam_by_loop(g, r, epsilon=0.0)
        ),
        "this is plain gradient descent": lambda g, r: -r * float(sum(g)),
    },
)
check_adam(where_adam_goes)


# %% tags=["solution"]
def where_adam_goes(gradients, learning_rate):
    parameter, mean, square = 0.0, 0.0, 0.0
    for n, gradient in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.98 * square + 0.02 * gradient**2
        step = mean / (1 - 0.9**n) / (np.sqrt(square / (1 - 0.98**n)) + 1e-9)
        parameter -= learning_rate * step
    return parameter


verdict = check_adam(where_adam_goes)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# Training minimises minus the logarithm of the probability that the model gave to the right word, averaged over all
# real tokens. Adam steps by what the latest gradients agree on, divided by their usual size. The schedule says how far,
# and several batches can make up one step if every target counts the same. With too little data a model grows more
# confident of its mistakes, and weight decay or dropout help. If you keep the parameters, Adam's state, the random
# state, the position in the data and the history, you can stop at any moment, and lose only the time since the last
# save.
#
# **Sources.** Adam: [Kingma and Ba (2015)](https://arxiv.org/abs/1412.6980). Label smoothing: [Szegedy and others
# (2016)](https://arxiv.org/abs/1512.00567). The schedule, and label smoothing for translation: [Vaswani and others
# (2017)](https://arxiv.org/abs/1706.03762), sections 5.3 and 5.4. AdamW: [Loshchilov and Hutter
# (2019)](https://arxiv.org/abs/1711.05101). Why warm-up helps Adam: [Liu and others
# (2020)](https://arxiv.org/abs/1908.03265), and why post-norm needs it most: [Xiong and others
# (2020)](https://arxiv.org/abs/2002.04745). Clipping: [Pascanu, Mikolov and Bengio
# (2013)](https://arxiv.org/abs/1211.5063). The cosine: [Loshchilov and Hutter
# (2017)](https://arxiv.org/abs/1608.03983). Dropout: [Srivastava and others
# (2014)](https://jmlr.org/papers/v15/srivastava14a.html). Teacher forcing: [Williams and Zipser
# (1989)](https://doi.org/10.1162/neco.1989.1.2.270).
#
# **Next.** The model can predict what comes next at every position. Chapter 12 lets it write well and fast: several
# candidates at once, and nothing computed twice.

# %% [markdown]
# ## Going further
#
# Six additions, a question, and short answers. No later chapter depends on them.

# %% [markdown]
# ### Where does it look?
#
# Take the test number *sixty three thousand six hundred and forty nine*, and record the cross-attention of the last
# decoder layer, the mean of its four heads. Each row is labelled with the word that the model is about to write. The
# query of the row comes from the last word already written, and through self-attention that word has read all earlier
# ones. **Predict first**: what does the picture look like where units and tens cross?

# %% the last cross-attention, averaged tags=["hide-input"]
from dotformer.support.recording import record_weights

model.eval()


def looked_at(pair):
    """The last cross-attention's weights (T, S), heads averaged."""
    [(source, target)] = encode_pairs([pair])
    with record_weights(model) as weights, torch.no_grad():
        model(torch.tensor([source]), torch.tensor([target]))
    return weights["decoder.layers.1.cross_attention"][0].mean(dim=0)


shown = next(
    p
    for p in corpus.test
    if len(p.source.split()) == 8 and len(p.target.split()) == 9
)
weights = looked_at(shown)
row, column = shown.target.split().index, shown.source.split().index
assert weights[row("drei")].argmax() == column("three")
assert weights[row("sechzig")].argmax() == column("sixty")

# %% tags=["plot"] mystnb={"image": {"alt": "Matrix of weights. Rows are the parts of a German number about to be written, columns the English words. Most rows have one dark cell. It moves from left to right, but where tens and units meet, the row of the units is dark one column further right and the row of the tens steps back to the left."}}
figure, axes = plt.subplots(figsize=(6.4, 4.4))
words, parts = shown.source.split(), [*shown.target.split(), "<eos>"]
axes.pcolormesh(
    weights[: len(parts)], cmap=plots.WEIGHTS, vmin=0, vmax=1, ec="white", lw=1.5
)
axes.set_xticks(np.arange(len(words)) + 0.5, words, rotation=45, ha="right")
axes.set_yticks(np.arange(len(parts)) + 0.5, parts)
axes.set(
    xlabel="key, an English word",
    ylabel="query, about to write",
    ylim=(len(parts), 0),
)
axes.tick_params(length=0)
axes.spines[:].set_visible(False)
plt.show()

# %% [markdown]
# In the row of *drei* the darkest cell lies under *three*; in the row of *sechzig* it lies under *sixty*. So this
# layer's largest weight goes first to *three* and then to *sixty*, against the order of the English words. [Chapter
# 13](13_alignment.ipynb) counts how often the darkest cell is the right word.
#
# ### How small can a smoothed loss become?
#
# Take the target *b* from [above](#the-loss), among four tokens, with $\varepsilon = 0.1$. **Predict
# first.** How small can the smoothed loss become? (The other tokens share evenly what is left.) Is a model that gives
# *b* a probability of 0.999 better than one that gives it 0.925?

# %% the smoothed loss at five probabilities tags=["hide-input", "nbval-check-output"]
for sure in (0.7, 0.9, 0.925, 0.95, 0.999):
    rest = (1 - sure) / 3
    loss = -(0.925 * np.log(sure) + 3 * 0.025 * np.log(rest))
    print(
        f"probability {sure:5}: smoothed loss {loss:.3f}, plain loss {-np.log(sure):.3f}"
    )

# %% [markdown]
# The smoothed loss is smallest at 0.925, where $p$ equals $q$ ([above](#label-smoothing)). By this loss 0.999 is worse
# than 0.925; by the plain loss it is better. The smoothed loss cannot reach 0: the least is the **entropy** of the
# smoothed target, here 0.349, 0.90 for this chapter's 334 tokens, and 1.38 for the paper's 37,000. So do not compare a
# smoothed training loss with a plain validation loss. And where the model does not overfit, expect a worse perplexity,
# because it is held back from being sure. (A training loss above the validation loss is usually no mistake: smoothing
# and dropout raise it, and it is often the mean over an epoch in which the model was still worse.)

# %% [markdown]
# ### Why clip, if Adam divides the size out?
#
# Adam divides out only the size of a typical gradient. Suppose that usual gradients have size 1, and that at one step
# all of them are a hundred times as large. That step itself stays below a learning rate: $m$ gains $0.1 \cdot 100 = 10$
# and $v$ gains $0.02 \cdot 100^2 = 200$, and $10 / \sqrt{201} = 0.7$. But the steps after it suffer, in two ways.
#
# First, that batch fades from $m$ only slowly. Its part of that first step is 0.71 learning rates. With each step what
# it left in $m$ is multiplied by 0.9, and what it left in $\sqrt v$ by $\sqrt{0.98}$, so its part of the next step is
# $0.9 / \sqrt{0.98} = 0.91$ times as large, and so on. They add up to nearly eight learning rates,
# $0.71 + 0.64 + 0.58 + \dots$, whereas those of a usual batch add up to one. Second, it fills $v$, which forgets more
# slowly: $\sqrt v$ is 14 times its usual size, and 100 steps later still 5 times. By these factors the later batches
# are underweighted. Clipped to a usual norm, that batch would count like any other.
#
# ### Weight decay, and AdamW
#
# The older way to [decay weights](#when-a-model-overfits) is **L2 regularisation**: with $\theta$ for all parameters
# and $\lambda$ for the strength, add $\frac{\lambda}{2} \lVert \theta \rVert^2$ to the loss, and so $\lambda \theta$ to
# the gradient.
#
# For plain gradient descent that is the same as shrinking every parameter by $\eta \lambda \theta$ at each step. With
# Adam it is not, because Adam would divide $\lambda \theta$ by $\sqrt v$ as well, and parameters with large gradients
# would hardly decay. **AdamW** therefore takes the decay out of the gradient, and does it separately from Adam's step
# (*decoupled*): $\theta \leftarrow \theta - \eta \lambda \theta$, with the learning rate $\eta$ in PyTorch (its authors
# take only the schedule's factor). How strong is that? In the [runs above](#when-a-model-overfits) the 600 learning
# rates sum to 0.9. By itself, decay 1 would therefore shrink a parameter to $e^{-0.9} = 0.41$ of its size, and decay
# 0.1 only to 0.91.
#
# Most of today's language models are trained with AdamW, often with $\beta_2 = 0.95$, usually without decay of biases
# and norms. The usual strength is 0.01 to 0.1, where the learning rates often sum to more than here. The paper mentions
# no weight decay, and our trainer has none.

# %% [markdown]
# ### A new Adam: length or direction?
#
# [The step of a new Adam](#break-it-the-parameters-are-enough) differs from the step with Adam's state kept, in its
# length and in its direction. Which of the two does the harm? Take each step as one long vector of all changes, and
# give it the length of the other:

# %% the new step with the old length, and the other way round tags=["hide-input"]
longer = (new.norm() / kept.norm()).item()
steps_tried = {
    "state kept": kept,
    "new Adam": new,
    "new Adam, shortened": new / longer,
    "state kept, stretched": kept * longer,
}
tried, right = copy.deepcopy(keeping.model), {}
print(f"the new Adam's step is {longer:.1f} times as long")
for name, move in steps_tried.items():
    vector_to_parameters(start + move, tried.parameters())
    right[name] = validate(tried)["exact"]
    print(f"{name:22} right {right[name]:4.0%}")
assert right["new Adam, shortened"] > shares[190][0] > 0.8
assert right["new Adam"] < 0.6
assert right["state kept, stretched"] < 0.6
assert 4 < longer < 10

# %% [markdown]
# At this step it is mainly the length. Short steps do little harm in either direction (they may even help), and long
# ones do much harm in both.

# %% [markdown]
# ### When a schedule ends too early

# %% tags=["quiz"]
quiz.one_choice(
    "You trained for 10,000 steps with a linear schedule, and the model is nearly good enough. You let it go on for 10,000 more. What do you do about the learning rate?",
    quiz.wrong(
        "Nothing: the schedule goes on",
        "Its line ends at 0. Beyond it a learning rate is 0 and changes nothing, or, where nobody has thought of it, negative.",
    ),
    quiz.wrong(
        "Keep the last learning rate that was above 0",
        "That is a tiny part of the peak. Such steps let a model settle; they do not teach it much.",
    ),
    quiz.right(
        "Make it rise again, and fall over the new steps",
        "Yes, and expect the loss to rise at first. Or start again with a line of 20,000 steps: a linear schedule needs the number of steps.",
    ),
    quiz.wrong(
        "Return to the learning rate of step 1, the safest there is",
        "With warm-up the learning rate of step 1 is small, partly because Adam knows nothing yet. It does know something now, and so small a learning rate would teach the model little.",
    ),
)

# %% [markdown]
# ### What was needed, in figures
#
# Each recipe was trained with three seeds and validated every 25 steps. The chapter's is a linear schedule with 100
# steps of warm-up and a peak of 0.003, smoothing of 0.1 and clipping at norm 1.
#
# Each row changes only what its name says; *the paper's* changes peak, warm-up and the shape of the schedule. *SGD*
# (stochastic gradient descent) here has a momentum of 0.9: it steps along a decaying sum of the gradients, without
# Adam's division. Its learning rate, named in the row, is the best of five on the validation numbers.
#
# The columns are
#
# - for each of three seeds, the step at which 99 percent of the validation numbers were first right (a dash: never);
# - the share of test numbers that are right at the end;
# - the same for the mean of the parameters at the last five validations (**checkpoint averaging**);
# - the perplexity on the test numbers, without smoothing.
#
# The two shares are means of the three seeds, and the perplexity is the exponential of their mean loss.
#
# Three seeds are few: where two rows overlap, draw no conclusion. From one run of each you cannot even know how far
# runs differ. If one run has the standard deviation $s$, the difference of two runs has $\sqrt 2 \, s$, and that of two
# means over $n$ seeds $\sqrt{2 / n} \, s$. With $s = 0.015$, a difference of 0.02 between two runs is about one
# standard deviation, and says nothing; between means of five seeds it is two.

# %% steps, test shares and perplexities tags=["hide-input"]
import re

runs = measured("recipes")["runs"]
grid = [name for name in runs if re.fullmatch(r"(Adam|SGD), [\d.e-]+", name)]


def reached(name):
    """The first step at which 99 percent were right, for each seed; 0 if none was."""
    shares = [np.array(run["validation_exact"]) >= 0.99 for run in runs[name]]
    return [25 * (s.argmax() + 1).item() if s.any() else 0 for s in shares]


def mean_share(name, which="test"):
    return np.mean([run[which]["exact"] for run in runs[name]])


print(f"{'':32}99% right at step  test   averaged  perplexity")
for name in [n for n in runs if n not in grid or n == "SGD, 0.1"]:
    steps = "".join(f"{step or '-':>6}" for step in reached(name))
    test, averaged = mean_share(name), mean_share(name, "test_averaged")
    perplexity = np.exp(np.mean([run["test"]["loss"] for run in runs[name]]))
    print(f"{name:32}{steps} {test:6.1%}   {averaged:6.1%}  {perplexity:9.3f}")

# %% tags=["plot"] mystnb={"image": {"alt": "Share of test numbers right over the highest learning rate, on a logarithmic axis, three seeds each. Adam: 0.83 at 0.0003, 1 from 0.001 to 0.01, 0 at 0.03. Gradient descent: 0.13 at 0.01, 0.97 at 0.03, 1 at 0.1 and 0.3, 0 at 1."}}
figure, axes = plt.subplots(figsize=(6.4, 2.8))
for optimizer, color, place in [
    ("Adam", plots.BLUE, (0.0025, 0.86)),
    ("SGD", plots.GOLD, (0.09, 0.86)),
]:
    rates = [name for name in grid if name.startswith(optimizer)]
    points = {float(name.split(", ")[1]): runs[name] for name in rates}
    if optimizer == "Adam":
        points[0.003] = runs["the chapter's"]
    points = dict(sorted(points.items()))
    means = [np.mean([run["test"]["exact"] for run in p]) for p in points.values()]
    axes.plot(list(points), means, color=color)
    for rate, seeds in points.items():
        shares = [run["test"]["exact"] for run in seeds]
        axes.plot([rate] * len(shares), shares, "o", ms=4, color=color)
    axes.text(*place, optimizer, color=color)
axes.set(
    xscale="log",
    xlabel="highest learning rate",
    ylabel="test numbers right",
    ylim=(-0.04, 1.06),
)
plt.show()

# %% [markdown]
# **Adam.** Both optimisers get everything right at some learning rate, SGD at learning rates some thirty times as high.
# Over a tenfold range of learning rates Adam gets more than 99 percent, SGD more than 96. So this small model does not
# need Adam. Language models trained with SGD usually end far worse. A likely reason is that a large share of text
# consists of tokens that are each rare. With one learning rate for all, SGD learns the frequent words and is too slow
# for the rare ones. Adam suffers much less from this, because dividing by $\sqrt v$ makes up for much of the difference
# ([Kunstner and others, 2024](https://arxiv.org/abs/2402.19449)). Say that a parameter gets the gradient 1 only at
# every hundredth step. SGD moves it 100 times more slowly than one that gets 1 at every step, and Adam only 14 times
# more slowly.
#
# **Warm-up.** Even at twice the chapter's learning rate nearly all numbers are right in the end without it; [the
# figure](#warm-up-and-schedule) shows only a delay. ([Chapter 8](08_encoder.ipynb#does-it-need-warm-up) has learning
# rates at which nothing is learned without it.)
#
# **Clipping.** With Adam, three seeds show no clear difference. SGD, at the learning rate that is best with clipping,
# needs 75 to 125 steps more for 99 percent without it.
#
# **The schedule.** With each of the three seeds the cosine gets to 99 percent later than the linear schedule, by 25 to
# 75 steps; three pairs are few. The inverse square root gets there as early, but does not settle: its last learning
# rate is still four tenths of the peak. The paper's formula, for this model's width of 64, would have its peak of 0.002
# at step 4,000, and after 600 steps has reached only 0.0003. That is too low a learning rate rather than a bad shape:
# with a peak of 0.0003 the chapter's own schedule is not much better.
#
# **Averaging** the last checkpoints does what small last steps do: it brings the inverse square root to 100 percent.
# The usual explanation is that each checkpoint lies a little beside the minimum, in a direction that depends on its
# last few batches, and that averaging cancels much of that. This works within one run: in models trained from two seeds
# the fifth entry of a vector means different things, so the mean of their parameters means nothing. There one averages
# their probabilities (an **ensemble**). (With the paper's schedule, where the run is still improving, the mean is worse
# than the end.)
#
# **Label smoothing.** A model that fits the smoothed target exactly gives the right token the probability
# $0.9 + 0.1 / 334 = 0.9003$, and then its perplexity is $1 / 0.9003 = 1.111$. That is what was measured, and the number
# of right answers is the same with and without it. In the paper it made perplexity worse and BLEU, a score of
# translations ([chapter 14](14_translation.ipynb)), better. The two need not agree: perplexity punishes any lower
# probability of a right token, while a translation depends on which tokens rank highest.

# %% tags=["proof"]
adam = [runs[f"Adam, {rate}"] for rate in (0.001, 0.01)] + [runs["the chapter's"]]
sgd = [runs[f"SGD, {rate}"] for rate in (0.03, 0.1, 0.3)]
for chosen, least in ((adam, 0.99), (sgd, 0.96)):
    assert min(run["test"]["exact"] for seeds in chosen for run in seeds) > least
assert mean_share("SGD, 0.1") == 1 and mean_share("SGD, 1.0") == 0
assert round(noam_rate(600, 64, 4000), 4) == 0.0003
for size, least in ((4, 0.349), (334, 0.903), (37_000, 1.377)):
    other = 0.1 / size
    p = 0.9 + other
    entropy = -p * np.log(p) - (size - 1) * other * np.log(other)
    assert round(entropy, 3) == least
assert round(noam_rate(4000, 64, 4000), 3) == 0.002
ends = {n: np.mean([run["validation_loss"][-1] for run in runs[n]]) for n in grid}
assert min((n for n in grid if n.startswith("SGD")), key=ends.get) == "SGD, 0.1"
assert mean_share("Adam, 0.03") == 0 and mean_share("no clipping") == 1
assert min(map(mean_share, ("no warm-up", "no smoothing"))) > 0.989
assert (
    round(mean_share("Adam, 0.0003"), 2) == 0.83
    and round(mean_share("1/sqrt"), 3) == 0.989
)
later = np.mean(reached("SGD, 0.1, no clipping")) - np.mean(reached("SGD, 0.1"))
assert 75 < later < 125
warm, cold = (
    reached(f"double learning rate{ending}") for ending in ("", ", no warm-up")
)
assert (min(warm), max(warm), min(cold), max(cold)) == (275, 400, 425, 525)
assert mean_share("double learning rate, no warm-up") > 0.995
assert max(reached("no warm-up") + reached("the chapter's")) <= 300
assert mean_share("cosine") == mean_share("the chapter's") == 1
assert 25 < np.mean(reached("cosine")) - np.mean(reached("the chapter's")) < 75
assert (
    mean_share("1/sqrt", "test")
    < 0.995
    < mean_share("1/sqrt", "test_averaged")
    == 1
)
assert (
    mean_share("the paper's", "test_averaged")
    < mean_share("the paper's", "test")
    < 0.8
)
late = [min(run["validation_exact"][-8:]) for run in runs["1/sqrt"]]
assert (
    max(late)
    < 0.99
    <= min(min(run["validation_exact"][-8:]) for run in runs["the chapter's"])
)
for name, perplexity in [("the chapter's", 1.111), ("no smoothing", 1.0)]:
    losses = [run["test"]["loss"] for run in runs[name]]
    assert np.isclose(np.exp(np.mean(losses)), perplexity, atol=1e-3)

# %% [markdown]
# ### Short answers
#
# - **What happens without `optimizer.zero_grad()`?** No error is raised. `backward` adds to the gradients that are
#   there, so each step also follows those of all earlier steps, computed where the parameters no longer are. Adam
#   divides out most of the growth in size, but not the outdated direction.
# - **What if one forgets `model.eval()` or `model.train()`?** Without `eval()` dropout stays on: validation results are
#   usually worse, and two passes over one text disagree, which is how to notice it. Without `train()` after a
#   validation, dropout stays off, and its protection against overfitting is lost.
# - **Adam adapts its steps. Why does it need a schedule?** Adam divides out the gradient's size, so its steps need not
#   shrink where gradients do. If all become ten times smaller and stay so, its steps are as long as before after a few
#   hundred steps (with $\beta_2 = 0.98$). Only a lower learning rate reliably shortens them.
# - **How long should a warm-up be?** Try about $2 / (1 - \beta_2)$ steps: 100 for 0.98, and 2,000 for 0.999 ([Ma and
#   Yarats, 2021](https://arxiv.org/abs/1910.04209)). By then the weights in $v$ sum to more than 0.86, so it rests on
#   many gradients. The paper's base model took 4,000 of 100,000.
# - **What does $\beta_2 = 0.98$ change, against PyTorch's 0.999?** A $v$ that forgets sooner adapts sooner when
#   gradients grow. If they go from a steady 1 to a steady 100, the tenth step with 100 is 1.5 learning rates long with
#   0.98, but 6.5 with 0.999, because $\sqrt v$ has only reached 10.
# - **At which limit should gradients be clipped?** Often at 1.0, as for GPT-3 ([Brown and others,
#   2020](https://arxiv.org/abs/2005.14165)). But norms depend on the model and on the loss. So log them unclipped for a
#   few hundred steps, and set the limit a little above what most steps reach: then only outliers are shortened.
# - **Must the data be shuffled again in every epoch?** They should be. In a fixed order a sentence always shares its
#   batch with the same others, so the ways in which each batch's gradient deviates from that of all data return in
#   every epoch. In new batches they vary, and average out better.
# - **Why is there usually no weight decay on biases and norms?** The usual reasons: they are few, so they can memorise
#   little, and a norm's gain starts at 1, so pulling it to 0 shrinks what the norm returns. At width 512 a norm has
#   1,024 parameters, and $W_1$, with 2,048 units, over a million.
# - **Do more parameters mean more overfitting?** Not always. A larger model can memorise more, but often does better on
#   new data, even where it fits all of its training data ([Nakkiran and others,
#   2020](https://arxiv.org/abs/1912.02292)). The reason is not settled.
# - **No mistake in 1,000 test sentences: is the model perfect?** Not necessarily. A model that is wrong on 3 in 1,000
#   makes no mistake in $0.997^{1000}$, about 5 percent, of such tests. So after no mistake in $n$ sentences, up to
#   about $3/n$ may be wrong.
# - **May one compare recipes by stopping long runs early?** Better not. Halfway down a long schedule the learning rate
#   is still high, so the loss is usually higher than in a run whose schedule ends there ([Hoffmann and others,
#   2022](https://arxiv.org/abs/2203.15556)). Give each candidate a schedule of the length that you compare.
# - **Why a lower learning rate in wider models?** The paper gives no reason. A likely one: Adam moves every entry about
#   equally far, but an output sums as many products as the model is wide. If their changes agree, it moves eight times
#   as far at width 512 as at 64. (The paper's factor makes up for part of it, $\sqrt 8 = 2.8$.)
# - **What if the sum is not divided by the number of targets?** Each gradient is too long by that number. Adam hides
#   most of it, but nearly every step is clipped.
# - **Does clipping cure NaN?** No: a norm that is NaN makes all gradients NaN. If it is not finite, skip the step and
#   look for the cause. And if norms were small before and now every step is clipped, look for instability before you
#   raise the limit.

# %% tags=["proof"]
for beta, expected in ((0.98, 1.5), (0.999, 6.5)):
    m = v = 1.0
    for _ in range(10):
        m, v = 0.9 * m + 0.1 * 100, beta * v + (1 - beta) * 100**2
    assert round(m / v**0.5, 1) == expected
assert min(1 - 0.98**100, 1 - 0.999**2000) > 0.86
assert round(0.997**1000, 2) == 0.05
