"""Tangled from chapters/09_decoder.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from dotformer.attention import Cache
from dotformer.decoder import Decoder, causal_mask, padding_mask
from dotformer.encoder import Embeddings, Encoder


@dataclass(frozen=True)
class TransformerConfig:
    """All that fixes a transformer's shape. Defaults: the paper's base model,
    with an embedding table for each side.

    `share_embeddings` uses one table for source and target; `tie_output` scores
    tokens by their dot products with the target table. `final_norm` None means: as
    `norm_first`. Raises ValueError when numbers cannot work together.

    Defined in chapter 9, "The whole transformer".
    """

    source_vocab_size: int
    target_vocab_size: int
    d_model: int = 512
    num_heads: int = 8
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    d_ff: int = 2048
    dropout: float = 0.1
    max_length: int = 1024
    pad_id: int = 0
    norm_first: bool = False
    final_norm: bool | None = None
    activation: str = "relu"
    share_embeddings: bool = False
    tie_output: bool = True

    def __post_init__(self) -> None:
        counts = ("source_vocab_size", "target_vocab_size", "d_model", "num_heads")
        counts += ("num_encoder_layers", "num_decoder_layers", "d_ff", "max_length")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be positive, not {getattr(self, name)}"
                )
        if self.d_model % self.num_heads or self.d_model % 2:
            raise ValueError(
                "d_model must be even and divisible by num_heads, not"
                f" {self.d_model} by {self.num_heads}"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(
                f"dropout must be at least 0 and below 1, not {self.dropout}"
            )
        sizes = self.source_vocab_size, self.target_vocab_size
        if not 0 <= self.pad_id < min(sizes):
            raise ValueError(
                f"pad_id must be a token of both sides, not {self.pad_id}"
            )
        if self.share_embeddings and sizes[0] != sizes[1]:
            raise ValueError(
                f"a shared table needs vocabularies of one size, not {sizes}"
            )


class Transformer(nn.Module):
    """The whole model: embeddings, encoder, decoder, and a score for every token.

    After Vaswani and others (2017), figure 1. Matrices start uniform after Glorot
    and Bengio (2010), biases at 0, embeddings with deviation 1/sqrt(D).

    Defined in chapter 9, "The whole transformer".
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = c = config
        sizes = c.d_model, c.max_length, c.dropout
        self.source_embeddings = Embeddings(c.source_vocab_size, *sizes)
        self.target_embeddings = Embeddings(c.target_vocab_size, *sizes)
        stack = (c.d_model, c.num_heads, c.d_ff, c.dropout)
        options = (c.norm_first, c.final_norm, c.activation)
        self.encoder = Encoder(c.num_encoder_layers, *stack, *options)
        self.decoder = Decoder(c.num_decoder_layers, *stack, *options)
        self.output = nn.Linear(c.d_model, c.target_vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if c.share_embeddings:
            self.source_embeddings.tokens = self.target_embeddings.tokens
        if c.tie_output:
            self.output.weight = self.target_embeddings.tokens.weight

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """From tokens (B, S) the memory (B, S, D) and its mask (B, 1, 1, S)."""
        mask = padding_mask(source, self.config.pad_id)
        return self.encoder(self.source_embeddings(source), mask), mask

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits (B, T, V): row t scores what may follow targets 0 to t (B, T).

        With a `cache` (chapter 12), the targets follow on those that are in it.
        """
        if len(target) != len(memory):
            raise ValueError(
                f"source and target differ in number: memory {tuple(memory.shape)},"
                f" target {tuple(target.shape)}"
            )
        start, mask = 0 if cache is None else cache.length, None
        if start == 0 or target.shape[1] > 1:  # one more sees all that is cached
            real = padding_mask(target, self.config.pad_id)
            real = F.pad(real, (start, 0), value=True)  # what is cached is real
            mask = causal_mask(real.shape[-1], target.device)[start:] & real
        x = self.target_embeddings(target, start)
        x = self.decoder(x, memory, mask, memory_mask, cache)
        return self.output(x)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (B, T, V) for source (B, S) and target (B, T) token numbers.

        Padding (`config.pad_id`) is masked on both sides. Raises ValueError when
        the batches differ in size or a place is beyond its table, and on a CPU when
        a sentence is empty or a token is not in its table.
        """
        return self.decode(target, *self.encode(source))
