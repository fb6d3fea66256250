"""Tangled from chapters/12_generation.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

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


def next_logits(state: Decoding, tokens: Tensor) -> Tensor:
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
        logits = next_logits(state, tokens)
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
        logs = next_logits(state, tokens).log_softmax(dim=-1)
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


def keys_and_values(
    attention: MultiHeadAttention, x: Tensor
) -> tuple[Tensor, Tensor]:
    """What attention attends to in x (B, S, D): two tensors (B, H, S, d_k).

    Defined in chapter 12, "What has been computed before".
    """
    k, v = attention.w_k(x), attention.w_v(x)
    return attention.split_heads(k), attention.split_heads(v)


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
        memory, mask = model.encode(source)
        unmasked = source.device.type == "cpu" and mask.all()  # a GPU would wait
        self.memory_mask = None if unmasked else mask
        layers = model.decoder.layers
        self.source_kv = [
            keys_and_values(a.cross_attention, memory) for a in layers
        ]
        nothing = memory[:, :0]  # (B, 0, D)
        self.target_kv = [
            keys_and_values(a.self_attention, nothing) for a in layers
        ]
        self.source = torch.arange(len(source))  # of each row
        self.length = 0

    def __len__(self) -> int:
        """How many sentences are being written."""
        return len(self.source)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        """Read a token of each sentence (B,): logits (B, V) of what may follow."""
        embeddings = self.model.target_embeddings
        positions = embeddings.positions.table
        if self.length == len(positions):
            raise ValueError(f"more tokens than max_length {len(positions)}")
        x = embeddings.tokens(tokens.to(positions.device)[:, None])
        x = x * embeddings.scale + positions[self.length]
        for n, layer in enumerate(self.model.decoder.layers):
            x = layer.self_attention_add_norm(x, partial(self.attend_to_target, n))
            x = layer.cross_attention_add_norm(x, partial(self.attend_to_source, n))
            x = layer.feed_forward_add_norm(x, layer.feed_forward)
        self.length += 1
        return self.model.output(self.model.decoder.norm(x))[:, -1]

    def attend_to_target(self, n: int, x: Tensor) -> Tensor:
        """Self-attention of layer n: new tokens x (B, 1, D) to all, x included."""
        attention = self.model.decoder.layers[n].self_attention
        pairs = zip(self.target_kv[n], keys_and_values(attention, x), strict=True)
        k, v = (torch.cat(pair, dim=-2) for pair in pairs)
        self.target_kv[n] = k, v
        return attend(attention, x, k, v)

    def attend_to_source(self, n: int, x: Tensor) -> Tensor:
        """Cross-attention of layer n, from new tokens x (B, 1, D)."""
        attention = self.model.decoder.layers[n].cross_attention
        return attend(attention, x, *self.source_kv[n], self.memory_mask)

    def select(self, rows: Tensor) -> None:
        """Keep these sentences, in this order; one may be there several times."""
        before, self.source = self.source, self.source[rows.cpu()]
        rows = rows.to(self.model.output.weight.device)
        self.target_kv = [(k[rows], v[rows]) for k, v in self.target_kv]
        if not torch.equal(before, self.source):  # else drafts of one sentence swap
            self.source_kv = [(k[rows], v[rows]) for k, v in self.source_kv]
            if self.memory_mask is not None:
                self.memory_mask = self.memory_mask[rows]


def attend(
    attention: MultiHeadAttention,
    x: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
) -> Tensor:
    """Attention from x (B, T, D) to keys and values that are there already.

    Defined in chapter 12, "What has been computed before".
    """
    q = attention.split_heads(attention.w_q(x))
    heads = F.scaled_dot_product_attention(q, k, v, mask)
    return attention.w_o(attention.merge_heads(heads))


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
