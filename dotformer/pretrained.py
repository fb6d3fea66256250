"""Tangled from chapters/15_pretrained.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from dotformer.encoder import Encoder, LayerConfig
from dotformer.support.checks import check_positive
from dotformer.support.published import minilm_files
from dotformer.support.shapes import shapes


class BertEmbeddings(nn.Module):
    """From token numbers to vectors, as in BERT: three tables, added, normalised.

    After Devlin and others (2018).

    Defined in chapter 15, "BERT is the encoder, with other embeddings".
    """

    def __init__(
        self, vocab_size: int, config: LayerConfig, max_length: int = 512
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        self.positions = nn.Embedding(max_length, config.d_model)
        self.segments = nn.Embedding(2, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    @shapes
    def forward(
        self, tokens: Int[Tensor, "*batch T"]
    ) -> Float[Tensor, "*batch T D"]:
        """A vector for each token, all of the first segment."""
        length, longest = tokens.shape[-1], self.positions.num_embeddings
        if length > longest:
            raise ValueError(f"{length} tokens exceed max_length {longest}")
        x = self.tokens(tokens) + self.positions.weight[:length]
        return self.norm(x + self.segments.weight[0])


class SentenceEncoder(nn.Module):
    """From sentences to unit vectors: embeddings, an encoder, and the mean.

    After Reimers and Gurevych (2019).

    Defined in chapter 15, "BERT is the encoder, with other embeddings".
    """

    def __init__(
        self, tokenizer: Tokenizer, embeddings: BertEmbeddings, encoder: Encoder
    ) -> None:
        super().__init__()
        self.tokenizer, self.embeddings = tokenizer, embeddings
        self.encoder = encoder

    def batch(self, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token numbers (B, S), padded, and the mask (B, 1, 1, S) of real ones."""
        rows = self.tokenizer.encode_batch(list(sentences))
        tokens = torch.tensor([row.ids for row in rows])
        real = torch.tensor([row.attention_mask for row in rows]).bool()
        device = self.embeddings.tokens.weight.device
        return tokens.to(device), real[:, None, None].to(device)

    @shapes
    def forward(
        self,
        tokens: Int[Tensor, "B S"],
        mask: Bool[Tensor, "B 1 1 S"] | None = None,
    ) -> Float[Tensor, "B S D"]:
        """A vector for each token; `mask` is True for real ones."""
        return self.encoder(self.embeddings(tokens), mask)

    @torch.no_grad()
    def encode(self, sentences: Sequence[str], batch_size: int = 32) -> Tensor:
        """One vector of length 1 for each of N sentences: (N, D).

        The mean over a sentence's tokens; padding does not count. Raises TypeError
        for a single string, ValueError when a sentence has too many tokens or
        `batch_size` is below 1.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences must be a list of strings, not one string")
        check_positive(batch_size=batch_size)
        means = [
            self.embeddings.tokens.weight[:0]
        ]  # (0, D), if there is no sentence
        for first in range(0, len(sentences), batch_size):
            tokens, mask = self.batch(sentences[first : first + batch_size])
            real = mask[:, 0, 0, :, None]  # (B, S, 1)
            total = (self(tokens, mask) * real).sum(dim=1)
            means.append(total / real.sum(dim=1))
        return nn.functional.normalize(torch.cat(means), dim=-1)


def load_minilm(folder: str | Path | None = None) -> SentenceEncoder:
    """all-MiniLM-L6-v2, a published encoder: 6 layers, 12 heads, width 384.

    For `folder` and errors see `support.published.minilm_files`.

    Defined in chapter 15, "BERT is the encoder, with other embeddings".
    """
    files = minilm_files(folder)
    tokenizer = Tokenizer.from_file(str(files["tokenizer.json"]))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    sizes = {"d_model": 384, "num_heads": 12, "d_ff": 1536, "dropout": 0.0}
    config = LayerConfig(**sizes, activation="gelu", layer_norm_eps=1e-12)
    with torch.device("meta"):  # shapes, and no numbers yet
        embeddings = BertEmbeddings(tokenizer.get_vocab_size(), config)
        encoder = Encoder(config, num_layers=6)
    model = SentenceEncoder(tokenizer, embeddings, encoder)
    published = load_file(files["model.safetensors"])
    renamed = {our_name(name): tensor for name, tensor in published.items()}
    wanted = model.state_dict().keys()
    model.load_state_dict({name: renamed[name] for name in wanted}, assign=True)
    return model.eval()


def our_name(name: str) -> str:
    """The name in a `SentenceEncoder` of what BERT's code calls `name`.

    Defined in chapter 15, "BERT is the encoder, with other embeddings".
    """
    for theirs, ours in {
        "word_embeddings": "tokens",
        "position_embeddings": "positions",
        "token_type_embeddings": "segments",
        "embeddings.LayerNorm": "embeddings.norm",
        "encoder.layer.": "encoder.layers.",
        "attention.self.query": "attention.w_q",
        "attention.self.key": "attention.w_k",
        "attention.self.value": "attention.w_v",
        "attention.output.dense": "attention.w_o",
        "attention.output.LayerNorm": "attention_add_norm.norm",
        "intermediate.dense": "feed_forward.up",
        "output.dense": "feed_forward.down",
        "output.LayerNorm": "feed_forward_add_norm.norm",
    }.items():
        name = name.replace(theirs, ours)
    return name


def search(
    encoder: SentenceEncoder,
    passages: Sequence[str],
    questions: Sequence[str],
    best: int = 5,
) -> list[list[tuple[float, int]]]:
    """For each question the passages nearest in meaning, the best first.

    Each hit is a cosine and the number of a passage. Raises what `encoder.encode`
    does.

    Defined in chapter 15, "Search by meaning".
    """
    order = sorted(range(len(passages)), key=lambda n: len(passages[n]))
    vectors = encoder.encode([passages[n] for n in order])  # with little padding
    found = (encoder.encode(questions) @ vectors.T).topk(min(best, len(order)))
    numbers = torch.tensor(order)[found.indices.cpu()]
    both = zip(found.values.tolist(), numbers.tolist(), strict=True)
    return [list(zip(*one, strict=True)) for one in both]
