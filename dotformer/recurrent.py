"""Tangled from chapters/13_alignment.py and chapters/14_translation.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dotformer.decoder import padding_mask
from dotformer.support.settings import check_settings, check_vocabularies
from dotformer.support.shapes import shapes


class AdditiveAttention(nn.Module):
    """Attention whose scores are v · tanh(W_s state + W_h memory).

    After Bahdanau, Cho and Bengio (2015), section A.1.2.

    Defined in chapter 13, "What came before".
    """

    def __init__(self, d_model: int, d_memory: int) -> None:
        super().__init__()
        self.w_s = nn.Linear(d_model, d_model, bias=False)
        self.w_h = nn.Linear(d_memory, d_model, bias=False)
        self.v = nn.Linear(d_model, 1, bias=False)

    def forward(
        self, state: Tensor, memory: Tensor, keys: Tensor, real: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Blend the memory (B, S, 2D) for each state (B, D): context (B, 2D).

        `keys` (B, S, D) are `w_h(memory)`, computed once for all steps, and `real`
        (B, S) is False for padding. Also returns the weights (B, S).
        """
        scores = self.v(torch.tanh(self.w_s(state)[:, None] + keys)).squeeze(-1)
        weights = scores.masked_fill(~real, -math.inf).softmax(dim=-1)
        return (weights[:, None] @ memory).squeeze(1), weights


@dataclass(frozen=True)
class RecurrentConfig:
    """All that fixes a recurrent model's shape; vectors are `d_model` wide.

    The rest is as in `TransformerConfig`.

    Defined in chapter 13, "What came before".
    """

    source_vocab_size: int
    target_vocab_size: int
    d_model: int = 256
    num_layers: int = 1
    dropout: float = 0.1
    cell: Literal["lstm", "gru"] = "lstm"
    attention: bool = True
    pad_id: int = 0
    share_embeddings: bool = False
    tie_output: bool = True

    def __post_init__(self) -> None:
        check_settings(self, zero=("pad_id",), shares=("dropout",))
        sizes = self.source_vocab_size, self.target_vocab_size
        check_vocabularies(*sizes, self.pad_id, self.share_embeddings)


class RecurrentSeq2Seq(nn.Module):
    """Read the source in both directions, then write the target word by word.

    The encoder's last states, through a learned map, start the decoder. With
    attention its previous state asks for a context, which enters the next step,
    after Bahdanau, Cho and Bengio (2015). Without, that start is all it gets, after
    Sutskever, Vinyals and Le (2014), who reverse the source; we do not.

    Defined in chapter 13, "What came before".
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = c = config
        cell, parts = (nn.LSTM, 2) if c.cell == "lstm" else (nn.GRU, 1)
        d, d_memory = c.d_model, 2 * c.d_model if c.attention else 0
        size = parts * c.num_layers * d  # of a decoder's state
        options = {"batch_first": True, "dropout": c.dropout * (c.num_layers > 1)}
        self.source_embeddings = nn.Embedding(c.source_vocab_size, d)
        self.target_embeddings = nn.Embedding(c.target_vocab_size, d)
        self.scale = math.sqrt(d)  # of an embedding, as in the transformer
        self.encoder = cell(d, d, c.num_layers, bidirectional=True, **options)
        self.bridge = nn.Linear(2 * size, size)
        self.attention = AdditiveAttention(d, d_memory) if c.attention else None
        self.decoder = cell(d + d_memory, d, c.num_layers, **options)
        self.readout = nn.Linear(2 * d + d_memory, d)
        self.output = nn.Linear(d, c.target_vocab_size, bias=False)
        self.dropout = nn.Dropout(c.dropout)
        for name, values in self.named_parameters():
            if "embeddings" in name:
                nn.init.normal_(values, std=d**-0.5)
            elif "bias_ih" in name and c.cell == "lstm":
                nn.init.ones_(values[d : 2 * d])  # at first, forget little
        if c.share_embeddings:
            self.source_embeddings = self.target_embeddings
        if c.tie_output:
            self.output.weight = self.target_embeddings.weight

    def encode(self, source: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """What the decoder may look at, and its first state, from source (B, S).

        The former is memory (B, S, 2D), keys (B, S, D) and which of them are real
        (B, S), or nothing without attention; the latter (1 or 2, layers, B, D).
        """
        real = padding_mask(source, self.config.pad_id)[:, 0, 0]
        gaps = (real[:, 1:] & ~real[:, :-1]).any(dim=1).nonzero().flatten().tolist()
        if gaps:
            raise ValueError(f"source rows {gaps} have padding before a token")
        x = self.dropout(self.source_embeddings(source) * self.scale)
        lengths = real.sum(dim=1).cpu()
        packed = pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        packed, last = self.encoder(packed)
        last = torch.stack(last) if self.config.cell == "lstm" else last[None]
        state = self.bridge(last.movedim(2, 0).flatten(1))  # from all of a sentence
        state = state.unflatten(1, (len(last), -1, x.shape[2]))
        state = state.movedim(0, 2).contiguous()
        if self.attention is None:
            return (), state
        memory, _ = pad_packed_sequence(packed, True, total_length=source.shape[1])
        return (memory, self.attention.w_h(memory), real), state

    def decode(
        self, target: Tensor, memory: tuple[Tensor, ...], state: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Go on from what `encode` or `decode` returned, through target (B, T).

        Returns logits (B, T, V), attention's weights (B, T, S) or None, and the
        state after the last target. Raises ValueError when rows are missing.
        """
        if target.shape[:-1] != state.shape[2:3]:
            raise ValueError(
                f"source has {state.shape[2]} rows, target {tuple(target.shape)}"
            )
        x = self.dropout(self.target_embeddings(target) * self.scale)
        if self.attention is None:
            hidden, state = self.advance(x, state)
            read, weights = torch.cat([hidden, x], dim=-1), None
        else:
            steps = []
            for word in x.split(1, dim=1):
                context, weights = self.attention(state[0, -1], *memory)
                word = torch.cat([word, context[:, None]], dim=-1)
                hidden, state = self.advance(word, state)
                steps.append((torch.cat([hidden, word], dim=-1), weights[:, None]))
            read, weights = (torch.cat(s, dim=1) for s in zip(*steps, strict=True))
        logits = self.output(self.dropout(torch.tanh(self.readout(read))))
        return logits, weights, state

    def advance(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's cells alone, over x (B, T, ...): (B, T, D), new state."""
        if self.config.cell == "lstm":
            hidden, last = self.decoder(x, tuple(state))
            return hidden, torch.stack(last)
        hidden, last = self.decoder(x, state[0])
        return hidden, last[None]

    @shapes
    def attend(
        self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B T V"], Float[Tensor, "B T S"] | None]:
        """As `forward`, with attention's weights, or None without it."""
        logits, weights, _ = self.decode(target, *self.encode(source))
        return logits, weights

    @shapes
    def forward(
        self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        """Logits: row t scores what may follow targets 0 to t.

        `source` is padded at the end. Raises ValueError where it is empty or has
        padding before a token. Padding of the target is read like a token: nothing
        that stands before it changes.
        """
        return self.attend(source, target)[0]


class RecurrentState:
    """A decoder on its way: its source (B, S), encoded, and its state.

    Defined in chapter 14, "One translator for every model".
    """

    special_ids = (0, 1, 2)  # as `BPETokenizer` numbers padding, begin and end

    def __init__(self, model: RecurrentSeq2Seq, source: Tensor) -> None:
        self.model = model
        self.memory, self.state = model.encode(source)

    def __len__(self) -> int:
        """How many rows there are."""
        return self.state.shape[2]

    def step(self, tokens: Tensor) -> Tensor:
        """Feed each row its next token (N,): logits (N, V) of what may follow."""
        logits, _, self.state = self.model.decode(
            tokens.to(self.state.device)[:, None], self.memory, self.state
        )
        return logits[:, 0]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows (M,), int64, in this order; one may come twice."""
        rows = rows.to(self.state.device)
        self.memory = tuple(part.index_select(0, rows) for part in self.memory)
        self.state = self.state.index_select(2, rows)
