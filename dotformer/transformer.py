"""Tangled from chapters/09_decoder.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dotformer.decoder import Decoder, causal_mask, padding_mask
from dotformer.encoder import Embeddings, Encoder, LayerConfig
from dotformer.support.settings import check_settings, check_vocabularies
from dotformer.support.shapes import shapes


@dataclass(frozen=True)
class TransformerConfig(LayerConfig):
    """All that fixes a transformer's shape, besides what fixes its layers.

    `share_embeddings` uses one table for source and target; `tie_output` scores
    tokens by their dot products with the target table.

    Defined in chapter 9, "The module that the book uses".
    """

    source_vocab_size: int
    target_vocab_size: int
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    max_length: int = 1024
    pad_id: int = 0
    share_embeddings: bool = False
    tie_output: bool = True

    def __post_init__(self) -> None:
        check_settings(self, zero=("pad_id",), shares=("dropout",))
        sizes = self.source_vocab_size, self.target_vocab_size
        check_vocabularies(*sizes, self.pad_id, self.share_embeddings)


class Transformer(nn.Module):
    """The whole model: embeddings, encoder, decoder, and a score for every token.

    After Vaswani and others (2017), figure 1. Matrices start uniform after Glorot
    and Bengio (2010), biases at 0, embeddings with deviation 1/sqrt(D).

    Defined in chapter 9, "The module that the book uses".
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = c = config
        sizes = c.d_model, c.max_length, c.dropout
        self.source_embeddings = Embeddings(c.source_vocab_size, *sizes)
        self.target_embeddings = Embeddings(c.target_vocab_size, *sizes)
        self.encoder = Encoder(c, c.num_encoder_layers)
        self.decoder = Decoder(c, c.num_decoder_layers)
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

    @shapes
    def encode(
        self, source: Int[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B 1 1 S"]]:
        """The memory and its mask, from source tokens."""
        mask = padding_mask(source, self.config.pad_id)
        return self.encoder(self.source_embeddings(source), mask), mask

    @shapes
    def decode(
        self,
        target: Int[Tensor, "B T"],
        memory: Float[Tensor, "B S D"],
        memory_mask: Bool[Tensor, "B 1 1 S"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits: row t scores what may follow the targets 0 to t."""
        real = padding_mask(target, self.config.pad_id)
        mask = causal_mask(target.shape[1], target.device) & real
        x = self.target_embeddings(target)
        return self.output(self.decoder(x, memory, mask, memory_mask))

    @shapes
    def forward(
        self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        """Logits for the tokens of source and target.

        Padding (`config.pad_id`) is masked on both sides. Raises ValueError when a
        sentence is longer than `config.max_length` or, on a CPU, empty.
        """
        return self.decode(target, *self.encode(source))
