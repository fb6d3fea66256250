"""Tangled from chapters/12_generation.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dotformer.attention import MultiHeadAttention
from dotformer.transformer import Transformer


class Decoding(Protocol):
    """What generation needs: N sentences that can be continued and selected.

    `step` reads a token of each (N,) and returns logits (N, V) of what may follow;
    `select` keeps the sentences of these numbers (M,), which may repeat.

    Defined in chapter 12, "One word at a time".
    """

    def __len__(self) -> int: ...

    def step(self, tokens: Tensor) -> Tensor: ...

    def select(self, rows: Tensor) -> None: ...


def read(state: Decoding, tokens: Tensor) -> Tensor:
    """A copy of the logits (N, V) after a step, in float32 at least.

    Raises FloatingPointError when one of them is not a number.

    Defined in chapter 12, "One word at a time".
    """
    logits = state.step(tokens)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
    if logits.amax(dim=-1).isnan().any():
        raise FloatingPointError("the model's scores are not numbers (NaN)")
    return logits


def generate(
    state: Decoding,
    choose: Callable[[Tensor], Tensor],
    max_length: int,
    marks: tuple[int, int, int] = (0, 1, 2),
) -> list[list[int]]:
    """Write each sentence token by token, to its end or for `max_length` tokens.

    `choose` takes logits (N, V) and returns tokens (N,). `marks` are the tokens for
    padding, begin and end: the first two are never written, the third ends a
    sentence, which then leaves the batch. Returns the tokens, without marks, and
    uses the state up. Raises ValueError when there is nothing that may follow, or
    when a model has no more positions.

    Defined in chapter 12, "One word at a time".
    """
    pad, begin, end = marks
    if max_length < 1:
        raise ValueError(f"max_length must be positive, not {max_length}")
    written: list[list[int]] = [[] for _ in range(len(state))]
    still = written  # the same lists: what one is given, both have
    tokens = torch.full((len(state),), begin)
    for _ in range(max_length):
        logits = read(state, tokens)
        logits[:, [pad, begin]] = -math.inf
        if (logits.amax(dim=-1) == -math.inf).any():
            raise ValueError("no token may follow: all scores are minus infinity")
        tokens = choose(logits)
        going = (tokens != end).nonzero().flatten()
        if len(going) < len(still):
            state.select(going)
            still, tokens = [still[n] for n in going.tolist()], tokens[going]
        if not still:
            break
        for sentence, token in zip(still, tokens.tolist(), strict=True):
            sentence.append(token)
    return written


def greedy(
    state: Decoding, max_length: int, marks: tuple[int, int, int] = (0, 1, 2)
) -> list[list[int]]:
    """Always the token that scores highest; see `generate`.

    Defined in chapter 12, "One word at a time".
    """
    return generate(state, lambda logits: logits.argmax(dim=-1), max_length, marks)


class Hypothesis(NamedTuple):
    """A way to write a sentence: its tokens, and its log-probability by its length.

    Defined in chapter 12, "Several drafts at once".
    """

    tokens: list[int]
    score: float


def length_penalty(length: int, alpha: float) -> float:
    """What a log-probability of `length` tokens, with the end, is divided by.

    After Wu and others (2016), equation 14. With `alpha` 0 it is 1.

    Defined in chapter 12, "Several drafts at once".
    """
    return ((5 + length) / 6) ** alpha


def beam_search(
    state: Decoding,
    max_length: int,
    beam: int = 4,
    alpha: float = 0.6,
    marks: tuple[int, int, int] = (0, 1, 2),
) -> list[list[Hypothesis]]:
    """For each sentence the best hypotheses found, at most `beam`, the best first.

    At each step the `beam` likeliest beginnings go on, beside what has ended.
    A sentence leaves the batch when `beam` have ended and no beginning can become
    better than the best of them. What has not ended after `max_length` tokens
    counts only where nothing has. Uses the state up. Raises ValueError when there
    is no room for a hypothesis, or when `alpha` is negative.

    Defined in chapter 12, "Several drafts at once".
    """
    if min(beam, max_length) < 1 or alpha < 0:
        raise ValueError(
            "beam and max_length must be positive and alpha not negative, not"
            f" {beam}, {max_length} and {alpha}"
        )
    pad, begin, end = marks
    finished: list[list[Hypothesis]] = [[] for _ in range(len(state))]
    waiting = [
        (done, [Hypothesis([], 0.0)]) for done in finished
    ]  # and what is live
    tokens = torch.full((len(state),), begin)
    for length in range(1, max_length + 1):
        logs = read(state, tokens).log_softmax(dim=-1)
        logs[:, [pad, begin]] = -math.inf
        best = logs.topk(min(beam + 1, logs.shape[1]))  # of each draft
        likely, places = best.values.tolist(), best.indices.tolist()
        penalty, first, rows, going = length_penalty(length, alpha), 0, [], []
        for done, live in waiting:
            ways = [
                (draft.score + log, row, token)
                for row, draft in enumerate(live, first)
                for log, token in zip(likely[row], places[row], strict=True)
                if log > -math.inf
            ]
            ways.sort(key=lambda way: way[0], reverse=True)
            longer = []
            for rank, (total, row, token) in enumerate(ways):
                written = live[row - first].tokens
                if token != end:
                    longer.append((row, [*written, token], total))
                elif rank < beam:
                    done.append(Hypothesis(written, total / penalty))
                if len(longer) == beam:
                    break
            first += len(live)
            bound = (
                longer[0][2] / length_penalty(max_length, alpha) if longer else 0
            )
            if longer and (len(done) < beam or bound > max(h.score for h in done)):
                rows += [row for row, _, _ in longer]
                going.append((done, [Hypothesis(t, s) for _, t, s in longer]))
        waiting = going
        if not waiting:
            break
        state.select(torch.tensor(rows))
        tokens = torch.tensor([h.tokens[-1] for _, live in waiting for h in live])
    for done, live in waiting:
        if not done:
            done += [Hypothesis(h.tokens, h.score / penalty) for h in live]
    return [sorted(done, key=lambda h: -h.score)[:beam] for done in finished]


class KVCache:
    """Sentences that a transformer is writing, with their keys and values so far.

    Encodes the source tokens (B, S). Raises ValueError when the model is in
    training mode, where dropout would take part in the choice of words.

    Defined in chapter 12, "What has been computed before".
    """

    @torch.no_grad()
    def __init__(self, model: Transformer, source: Tensor) -> None:
        if model.training:
            raise ValueError("the model is in training mode: call model.eval()")
        self.model = model
        self.memory, mask = model.encode(source)
        unmasked = source.device.type == "cpu" and mask.all()  # a GPU would wait
        self.memory_mask = None if unmasked else mask
        self.source = torch.arange(len(source))  # of each row
        self.length = 0
        self.read: dict[MultiHeadAttention, tuple[Tensor, Tensor]] = {}
        self.written: dict[MultiHeadAttention, tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        """How many sentences are being written."""
        return len(self.memory)

    def project(
        self, attention: MultiHeadAttention, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Keys and values to attend to: the memory's once, new tokens' added."""
        if key is self.memory:  # cross-attention
            if attention not in self.read:
                self.read[attention] = attention.project(key, value)
            return self.read[attention]
        keys, values = attention.project(key, value)
        if attention in self.written:
            old_keys, old_values = self.written[attention]
            keys = torch.cat([old_keys, keys], dim=-2)
            values = torch.cat([old_values, values], dim=-2)
        self.written[attention] = keys, values
        return keys, values

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Read a token of each sentence (B,): logits (B, V) of what may follow."""
        tokens = tokens.to(self.memory.device)[:, None]
        logits = self.model.decode(tokens, self.memory, self.memory_mask, self)
        self.length += 1
        return logits[:, -1]

    def select(self, rows: Tensor) -> None:
        """Keep these sentences, in this order; one may be there several times."""
        before, self.source = self.source, self.source[rows.cpu()]
        rows = rows.to(self.memory.device)
        changing = [self.written]
        if not torch.equal(before, self.source):  # else drafts of one sentence swap
            changing.append(self.read)
            self.memory = self.memory.index_select(0, rows)
            if self.memory_mask is not None:
                self.memory_mask = self.memory_mask.index_select(0, rows)
        for kept in changing:
            for attention, (keys, values) in kept.items():
                kept[attention] = (
                    keys.index_select(0, rows),
                    values.index_select(0, rows),
                )


def filter_logits(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> Tensor:
    """Logits (N, V) to draw from: divided by `temperature`, the unlikely ones out.

    Out is what is not among the `top_k` most likely tokens, then what is not needed
    for a share `top_p` of the probability that is left; one token always stays.
    Raises ValueError for numbers that make no sense. After Fan, Lewis and Dauphin
    (2018) and Holtzman and others (2020).

    Defined in chapter 12, "Drawing lots".
    """
    if not (temperature > 0 and (top_k is None or top_k > 0) and 0 < top_p <= 1):
        raise ValueError(
            "temperature and top_k must be positive, top_p above 0 and at most 1,"
            f" not {temperature}, {top_k} and {top_p}"
        )
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    ordered, order = logits.sort(dim=-1, descending=True)
    ordered[..., top_k or logits.shape[-1] :] = -math.inf
    if top_p < 1:
        share = ordered.softmax(dim=-1)
        before = share.cumsum(dim=-1) - share  # all that is likelier, together
        ordered = ordered.masked_fill(before >= top_p, -math.inf)
    return torch.empty_like(ordered).scatter(-1, order, ordered)


def sample(
    state: Decoding,
    max_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
    marks: tuple[int, int, int] = (0, 1, 2),
) -> list[list[int]]:
    """Draw each token by its probability; see `filter_logits` and `generate`.

    A `generator` must be on the device of the logits.

    Defined in chapter 12, "Drawing lots".
    """

    def draw(logits: Tensor) -> Tensor:
        shares = filter_logits(logits, temperature, top_k, top_p).softmax(dim=-1)
        return torch.multinomial(shares, 1, generator=generator).flatten()

    return generate(state, draw, max_length, marks)
