"""Tangled from chapters/19_modern.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

from dotformer.gpt import GPT, GPTCache
from dotformer.support import decoding, llama_files
from dotformer.support.settings import check_heads, check_settings
from dotformer.support.shapes import shapes


class SwiGLU(nn.Module):
    """Two linear maps multiplied, one of them through SiLU; then a third.

    (..., D) -> (..., d_ff) -> (..., D). After Shazeer (2020).

    Defined in chapter 19, "SwiGLU: one map opens the gate for another".
    """

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, d_ff, bias=False)
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to each vector of x (..., D)."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


@shapes
def rotation(
    positions: Int[Tensor, "*batch T"], d_k: int, base: float = 10_000.0
) -> Float[Tensor, "2 *batch T pairs"]:
    """Cosine and sine of each position's angles, one for each pair of entries.

    Defined in chapter 19, "RoPE: turn the query and the key".
    """
    i = torch.arange(0, d_k, 2, device=positions.device)
    angles = positions[..., None] * base ** (-i / d_k)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turn each pair of entries of x (..., T, d_k) by its angle.

    Neighbours make a pair, as in Su and others (2021). For `turn` see `rotation`.

    Defined in chapter 19, "RoPE: turn the query and the key".
    """
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = turn.to(x.dtype)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


@dataclass(frozen=True, kw_only=True)
class ModernConfig:
    """All that fixes the shape of a decoder-only model of today.

    `num_kv_heads` divides `num_heads`, and d_model / `num_heads` is even. Tokens
    equal to `pad_id` are padding; None: there is none.

    Defined in chapter 19, "Heads that share keys and values".
    """

    vocab_size: int
    d_model: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    d_ff: int
    max_length: int = 2048
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    tied: bool = True
    pad_id: int | None = 0

    def __post_init__(self) -> None:
        check_settings(self, zero=("pad_id",))
        check_heads(self.d_model, self.num_heads, self.num_kv_heads)


class GroupedAttention(nn.Module):
    """Self-attention whose heads share keys and values, in groups.

    After Ainslie and others (2023); for rotary positions Su and others (2021).

    Defined in chapter 19, "Heads that share keys and values".
    """

    def __init__(self, config: ModernConfig) -> None:
        super().__init__()
        D, self.d_k = config.d_model, config.d_model // config.num_heads
        shared = self.d_k * config.num_kv_heads
        self.w_q = nn.Linear(D, D, bias=False)
        self.w_k = nn.Linear(D, shared, bias=False)
        self.w_v = nn.Linear(D, shared, bias=False)
        self.w_o = nn.Linear(D, D, bias=False)

    def split_heads(self, x: Tensor) -> Tensor:
        """(..., T, heads * d_k) -> (..., heads, T, d_k)."""
        return x.unflatten(-1, (-1, self.d_k)).transpose(-3, -2)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        turn: Tensor,
        kept: "KeptHeads | None" = None,
    ) -> Tensor:
        """Attend from x (B, T, D) to x, and to what is kept of earlier tokens.

        Without a `mask` the attention is causal.
        """
        q, k, v = (self.split_heads(w(x)) for w in (self.w_q, self.w_k, self.w_v))
        q, k = rotate(q, turn), rotate(k, turn)
        if kept is not None:
            k, v = kept.extend(k, v)
        heads = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, enable_gqa=True
        )
        return self.w_o(heads.transpose(-3, -2).flatten(-2))


class KeptHeads:
    """Keys, already turned, and values (B, num_kv_heads, S, d_k) of a layer.

    Defined in chapter 19, "Heads that share keys and values".
    """

    def __init__(self) -> None:
        self.both: tuple[Tensor, ...] = ()

    def extend(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Append keys and values of new tokens; returns all of both."""
        if self.both:
            pairs = zip(self.both, new, strict=True)
            new = tuple(torch.cat(pair, dim=-2) for pair in pairs)
        self.both = new
        return new

    def select(self, rows: Tensor) -> None:
        """Keep these rows (M,) of the batch, in this order."""
        self.both = tuple(part[rows] for part in self.both)


class ModernLayer(nn.Module):
    """Attention, then a gated feed-forward network, each with a norm before it.

    Defined in chapter 19, "The whole model".
    """

    def __init__(self, c: ModernConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(c.d_model, c.norm_eps)
        self.attention = GroupedAttention(c)
        self.feed_forward_norm = nn.RMSNorm(c.d_model, c.norm_eps)
        self.feed_forward = SwiGLU(c.d_model, c.d_ff)

    def forward(self, x: Tensor, *context: Tensor | KeptHeads | None) -> Tensor:
        """Pass x (B, T, D) through; for the rest see `GroupedAttention`."""
        x = x + self.attention(self.attention_norm(x), *context)
        return x + self.feed_forward(self.feed_forward_norm(x))


class ModernGPT(GPT):
    """A decoder-only model of today: chapter 18's, with other parts.

    Defined in chapter 19, "The whole model".
    """

    def __init__(self, config: ModernConfig) -> None:
        nn.Module.__init__(self)
        self.config = c = config
        self.tokens = nn.Embedding(c.vocab_size, c.d_model)
        self.layers = nn.ModuleList(ModernLayer(c) for _ in range(c.num_layers))
        self.norm = nn.RMSNorm(c.d_model, c.norm_eps)
        self.output = nn.Linear(c.d_model, c.vocab_size, bias=False)
        if c.tied:
            self.output.weight = self.tokens.weight
        self.initialise()

    def run(
        self, tokens: Tensor, real: Tensor, kept: Sequence[KeptHeads] = ()
    ) -> Tensor:
        """Vectors (B, T, D) of the last T of S tokens, `real` (B, S) or padding."""
        c, (S, T) = self.config, (real.shape[1], tokens.shape[1])
        if c.max_length < S:
            raise ValueError(f"{S} tokens exceed max_length {c.max_length}")
        key = torch.arange(S, device=real.device)
        causal = key <= key[S - T :, None]  # (T, S)
        mask = causal & real[:, None, None]  # (B, 1, T, S)
        if S == T and c.pad_id is None:
            mask = None  # causal, and no matrix
        positions = (real.cumsum(dim=1) - 1).clamp(min=0)[:, None, S - T :]
        turn = rotation(positions, c.d_model // c.num_heads, c.rope_base)
        x = self.tokens(tokens)
        for n, layer in enumerate(self.layers):
            x = layer(x, mask, turn, kept[n] if kept else None)
        return self.norm(x)

    @shapes
    def forward(
        self, prompt: Int[Tensor, "B S"], text: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        """Logits: row t scores what may follow the prompt and text 0 to t.

        For padding and errors see `GPT.forward`.
        """
        tokens = torch.cat([prompt, text], dim=1)
        x = self.run(tokens, self.is_real(tokens))
        return self.output(x[:, prompt.shape[1] :])


class ModernCache(GPTCache):
    """Texts that it writes after prompts (B, S), with keys and values so far.

    Defined in chapter 19, "The whole model".
    """

    @torch.no_grad()
    def __init__(self, model: ModernGPT, prompt: Int[Tensor, "B S"]) -> None:
        decoding.check_evaluating(model)
        prompt = prompt.to(model.output.weight.device)
        self.model, self.real = model, torch.zeros_like(prompt[:, :0]).bool()
        self.kept = [KeptHeads() for _ in model.layers]
        if prompt.shape[1]:
            self.read(prompt)

    @torch.no_grad()
    def read(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """Read some tokens of each row: logits of what may follow the last."""
        tokens = tokens.to(self.real.device)
        real = torch.cat([self.real, self.model.is_real(tokens)], dim=1)
        x = self.model.run(tokens, real, self.kept)
        self.real = real
        return self.model.output(x[:, -1])


def load_smollm2(
    path: str | Path | None = None,
) -> tuple[ModernGPT, Tokenizer, str]:
    """SmolLM2-135M-Instruct, a published model; its tokenizer and chat template.

    For `path` and errors see `support.llama_files.smollm2_file`.

    Defined in chapter 19, "SmolLM2".
    """
    file = llama_files.smollm2_file(path)
    settings, state, tokenizer, template = llama_files.read_gguf(file)
    with torch.device("meta"):  # shapes, and no numbers yet
        model = ModernGPT(ModernConfig(**settings, pad_id=None))
    model.load_state_dict(state, assign=True)
    model.output.weight = model.tokens.weight
    return model.eval(), tokenizer, template


class Experts(nn.Module):
    """Feed-forward networks, of which each token goes through one.

    `balance` is what its last input cost: Fedus and others (2021), equation 4.

    Defined in chapter 19, "Experts: more parameters at the same price".
    """

    def __init__(self, d_model: int, d_ff: int, num_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(d_model, num_experts, bias=False)
        experts = (SwiGLU(d_model, d_ff) for _ in range(num_experts))
        self.experts = nn.ModuleList(experts)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to each vector of x (..., D) the expert that its router chooses."""
        shares = self.router(x).softmax(dim=-1)  # (..., experts)
        share, chosen = shares.max(dim=-1)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            rows = chosen == n
            out[rows] = share[rows][:, None] * expert(x[rows])
        used = F.one_hot(chosen, len(self.experts)).to(x.dtype)
        both = used.flatten(0, -2).mean(dim=0), shares.flatten(0, -2).mean(dim=0)
        self.balance = len(self.experts) * (both[0] @ both[1])
        return out
