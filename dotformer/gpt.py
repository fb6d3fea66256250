"""Tangled from chapters/18_gpt.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dotformer.decoder import causal_mask
from dotformer.encoder import EncoderLayer, LayerConfig, Stack
from dotformer.generation import KVAttention
from dotformer.support import decoding
from dotformer.support.settings import check_settings, check_vocabularies
from dotformer.support.shapes import shapes


@dataclass(frozen=True, kw_only=True)
class GPTConfig(LayerConfig):
    """All that fixes a GPT's shape. Defaults: the smallest GPT-2, token 0 padding.

    Defined in chapter 18, "One sequence".
    """

    vocab_size: int
    num_layers: int = 12
    max_length: int = 1024
    pad_id: int | None = 0
    d_model: int = 768
    num_heads: int = 12
    d_ff: int = 3072
    activation: Literal["relu", "gelu"] = "gelu"
    norm_first: bool = True

    def __post_init__(self) -> None:
        check_settings(self, zero=("pad_id",), shares=("dropout",))
        check_vocabularies(self.vocab_size, self.vocab_size, self.pad_id or 0, True)


class GPT(nn.Module):
    """A decoder-only model: encoder layers under a causal mask, learned positions.

    After Radford and others (2019). Matrices start normal, with deviation 0.02 at
    width 768. Those that write to the stream are divided by the root of the number
    of sublayers.

    Defined in chapter 18, "One sequence".
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = c = config
        self.tokens = nn.Embedding(c.vocab_size, c.d_model)
        self.positions = nn.Embedding(c.max_length, c.d_model)
        self.dropout = nn.Dropout(c.dropout)
        self.stack = Stack(EncoderLayer, c, c.num_layers)
        self.output = nn.Linear(c.d_model, c.vocab_size, bias=False)
        self.output.weight = self.tokens.weight
        self.initialise()

    def initialise(self) -> None:
        """Draw the matrices, and set the biases to 0."""
        c = self.config
        std = 0.02 * (768 / c.d_model) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                writes = name.endswith(("w_o.weight", "down.weight"))
                shrink = (2 * c.num_layers) ** -0.5 if writes else 1
                nn.init.normal_(parameter, std=std * shrink)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def is_real(self, tokens: Tensor) -> Tensor:
        """Which tokens are no padding: all, if `config.pad_id` is None."""
        pad = self.config.pad_id
        return tokens != (-1 if pad is None else pad)

    @shapes
    def embed(
        self, tokens: Int[Tensor, "B T"], real: Bool[Tensor, "B S"]
    ) -> Float[Tensor, "B T D"]:
        """Vectors of the last T of S tokens; `real` is False for padding."""
        length, longest = real.shape[1], self.config.max_length
        if length > longest:
            raise ValueError(f"{length} tokens exceed max_length {longest}")
        positions = (real.cumsum(dim=1) - 1).clamp(min=0)
        positions = positions[:, length - tokens.shape[1] :]
        return self.dropout(self.tokens(tokens) + self.positions(positions))

    @shapes
    def forward(
        self, prompt: Int[Tensor, "B S"], text: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        """Logits: row t scores what may follow the prompt and text 0 to t.

        Padding (`config.pad_id`) is masked, and counts as no position. ValueError
        for over `config.max_length` columns in all, padding included.
        """
        tokens = torch.cat([prompt, text], dim=1)
        real = self.is_real(tokens)
        mask = "causal"
        if self.config.pad_id is not None:
            causal = causal_mask(tokens.shape[1], tokens.device)
            mask = causal & real[:, None, None, :]
        x = self.stack(self.embed(tokens, real), mask)
        return self.output(x[:, prompt.shape[1] :])


class GPTCache:
    """Texts that a GPT writes after prompts (B, S), with keys and values so far.

    Defined in chapter 18, "It writes".
    """

    special_ids = (0, 1, 2)  # as `BPETokenizer` numbers padding, begin and end

    @torch.no_grad()
    def __init__(self, model: GPT, prompt: Int[Tensor, "B S"]) -> None:
        decoding.check_evaluating(model)
        prompt = prompt.to(model.output.weight.device)
        self.model, self.real = (
            model,
            torch.zeros_like(prompt[:, :0], dtype=torch.bool),
        )
        nothing = model.embed(prompt[:, :0], self.real)
        layers = model.stack.layers
        self.kept = [KVAttention(layer.attention, nothing) for layer in layers]
        if prompt.shape[1]:
            self.read(prompt)

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.real)

    @torch.no_grad()
    def read(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """Read some tokens of each row: logits of what may follow the last."""
        tokens = tokens.to(self.model.output.weight.device)
        self.real = torch.cat([self.real, self.model.is_real(tokens)], dim=1)
        S, T = self.real.shape[1], tokens.shape[1]
        causal = causal_mask(S, tokens.device)[S - T :]
        mask = causal & self.real[:, None, None, :]
        x = self.model.embed(tokens, self.real)
        for layer, kept in zip(self.model.stack.layers, self.kept, strict=True):
            kept.mask = mask
            x = layer.attention_add_norm(x, kept.extend)
            x = layer.feed_forward_add_norm(x, layer.feed_forward)
        return self.model.output(self.model.stack.norm(x[:, -1]))

    def step(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
        """Read a token of each row: logits of what may follow."""
        return self.read(tokens[:, None])

    def select(self, rows: Int[Tensor, " M"]) -> None:
        """Keep these rows, in this order; one may be there several times."""
        rows = rows.to(self.real.device)
        self.real = self.real[rows]
        for attention in self.kept:
            attention.select(rows)
