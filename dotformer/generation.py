"""Tangled from chapters/12_generation.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from dotformer.attention import MultiHeadAttention
from dotformer.support import decoding
from dotformer.support.decoding import Decoding
from dotformer.transformer import Transformer


def generate(
    state: Decoding, max_length: int, choose: Callable[[Tensor], Tensor]
) -> list[list[int]]:
    """Write each sentence token by token, to its end or for `max_length` tokens.

    `choose` takes logits (B, V) and returns tokens (B,). ValueError: a dead end,
    where no token is possible.

    Defined in chapter 12, "One loop for every model".
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
    """Always the token that scores highest; see `generate`.

    Defined in chapter 12, "One loop for every model".
    """
    return generate(state, max_length, lambda logits: logits.argmax(dim=-1))


class Hypothesis(NamedTuple):
    """A way to write a sentence: its tokens, and its score, the higher the better.

    Defined in chapter 12, "One loop for every model".
    """

    tokens: list[int]
    score: float


def length_penalty(length: int, alpha: float) -> float:
    """What a sum of `length` logarithms is divided by: Wu and others 2016, eq. 14.

    Defined in chapter 12, "One loop for every model".
    """
    return ((5 + length) / 6) ** alpha


def beam_search(
    state: Decoding, max_length: int, beam: int = 4, alpha: float = 0.6
) -> list[list[Hypothesis]]:
    """For each sentence the best hypotheses found, at most `beam`, the best first.

    A sentence is done when `beam` have ended and none that goes on can beat their
    best. If none has ended after `max_length` tokens, unfinished ones are returned.

    Defined in chapter 12, "One loop for every model".
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


def filter_logits(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> Tensor:
    """Logits (B, V) divided by `temperature`, those of unlikely tokens -inf.

    Unlikely: not among the `top_k` highest (Fan and others, 2018), then not needed
    for a share `top_p` of the probability left (Holtzman and others, 2020).

    Defined in chapter 12, "Sampling".
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
    """Draw each token by its probability, with the options of `filter_logits`.

    Defined in chapter 12, "Sampling".
    """

    def draw(logits: Tensor) -> Tensor:
        shares = filter_logits(logits, **filters).softmax(dim=-1)
        return torch.multinomial(shares, 1, generator=generator).flatten()

    return generate(state, max_length, draw)


class KVAttention:
    """Attention that keeps keys and values (B, H, S, d_k), those of x (B, S, D).

    Defined in chapter 12, "What has been computed before".
    """

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


class KVCache:
    """Sentences that a transformer writes, with their keys and values so far.

    Defined in chapter 12, "What has been computed before".
    """

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
