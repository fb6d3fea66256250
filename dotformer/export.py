"""Tangled from chapters/22_in_the_browser.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int8
from torch import Tensor, nn

from dotformer.attention import MultiHeadAttention
from dotformer.decoder import padding_mask
from dotformer.generation import KVAttention
from dotformer.support.decoding import check_evaluating
from dotformer.support.onnx_files import OnnxGraph, write_graph
from dotformer.support.pages import (
    bytes_as_text,
    check_page_model,
    vocabulary_rows,
)
from dotformer.support.shapes import shapes
from dotformer.tokens import BPETokenizer
from dotformer.transformer import Transformer
from dotformer.translation import Translator


@shapes
def quantize(
    weight: Float[Tensor, "rows columns"], bits: int = 8
) -> tuple[Int8[Tensor, "rows columns"], Float[Tensor, " rows"]]:
    """Whole numbers, from -127 to 127 in 8 bits, and what to multiply each row by.

    Rounding moves an entry by at most half its row's scale. A row of zeros has
    scale 0. ValueError: fewer than 2 bits, or more than 8.

    Defined in chapter 22, "Parameters in 8 bits".
    """
    if not 2 <= bits <= 8:
        raise ValueError(f"bits must be from 2 to 8, not {bits}")
    most = 2 ** (bits - 1) - 1
    scales = weight.abs().amax(dim=1) / most
    divisors = torch.where(scales > 0, scales, 1.0)
    numbers = (weight / divisors[:, None]).round().clamp(-most, most)
    return numbers.to(torch.int8), scales


def page_model(translator: Translator) -> dict[str, Any]:
    """All that a page needs to translate: configuration, tokenizers and tensors.

    ValueError unless the model is a `Transformer` with ReLU whose parameters are
    finite: the page supports nothing else.

    Defined in chapter 22, "Parameters in 8 bits".
    """
    check_page_model(translator.model, Transformer)
    rows, tensors = vocabulary_rows(translator.model.config), {}
    for name, parameter in translator.model.named_parameters():
        if parameter.ndim == 2:
            # without the rows that pad the vocabulary (chapter 20)
            weight = parameter.detach().float().cpu()[: rows.get(name)]
            numbers, scales = quantize(weight)
            tensors[name] = {
                "columns": numbers.shape[1],
                "scales": [float(f"{scale:.9g}") for scale in scales],
                "data": bytes_as_text(numbers),
            }
        else:
            tensors[name] = [float(f"{entry:.9g}") for entry in parameter]
    return {
        "config": vars(translator.model.config),
        "source": page_tokenizer(translator.source),
        "target": page_tokenizer(translator.target),
        "tensors": tensors,
    }


def page_tokenizer(tokenizer: BPETokenizer) -> dict[str, Any]:
    """What a page needs of a tokenizer.

    Defined in chapter 22, "Parameters in 8 bits".
    """
    specials = len(tokenizer.special_tokens)
    return {"merges": tokenizer.merges, "specials": specials}


def rounded(
    weight: Float[Tensor, "rows columns"], bits: int, by_row: bool = True
) -> Float[Tensor, "rows columns"]:
    """What `quantize` leaves of a matrix, with a scale for each row or one for all.

    Defined in chapter 22, "How few bits are enough?".
    """
    numbers, scales = quantize(weight if by_row else weight.flatten()[None], bits)
    return (numbers * scales[:, None]).view_as(weight)


class KeptAttention(KVAttention):
    """Attention to keys and values (B, H, S, d_k) that somebody else has kept.

    Defined in chapter 22, "A file for servers".
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
    ) -> None:
        self.attention, self.k, self.v, self.mask = attention, k, v, mask


class EncodeGraph(nn.Module):
    """From source tokens to what the decoder's layers keep of them.

    Defined in chapter 22, "A file for servers".
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """From (B, S): mask (B, 1, 1, S); keys, values (B, H, S, d_k) by layer."""
        model = self.model
        mask = padding_mask(source, model.config.pad_id)
        # ONNX Runtime wants a row of the mask for each query
        by_query = mask.expand(-1, 1, source.shape[1], -1)
        memory = model.encoder(model.source_embeddings(source), by_query)
        layers = model.decoder.layers
        kept = [KVAttention(layer.cross_attention, memory) for layer in layers]
        return mask, [(one.k, one.v) for one in kept]


class StepGraph(nn.Module):
    """One step of the decoder, with its cache as inputs and outputs.

    Defined in chapter 22, "A file for servers".
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        past: list[tuple[Tensor, Tensor]],
        source: list[tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Logits (B, V) after tokens (B,), and `past` with one token more.

        `past` has the keys and values (B, H, T, d_k) of each layer; `mask` and
        `source` are what `EncodeGraph` returns.
        """
        embeddings, decoder = self.model.target_embeddings, self.model.decoder
        x = embeddings.tokens(tokens[:, None]) * embeddings.scale
        # its position is the number of tokens kept
        x = x + embeddings.positions.table.narrow(0, past[0][0].shape[2], 1)
        longer = []
        for layer, kept, memory in zip(decoder.layers, past, source, strict=True):
            own = KeptAttention(layer.self_attention, *kept)
            cross = KeptAttention(layer.cross_attention, *memory, mask)
            x = layer.self_attention_add_norm(x, own.extend)
            x = layer.cross_attention_add_norm(x, cross.attend)
            x = layer.feed_forward_add_norm(x, layer.feed_forward)
            longer.append((own.k, own.v))
        return self.model.output(decoder.norm(x))[:, -1], longer


def write_onnx(model: Transformer, folder: str | Path) -> None:
    """Write `encode.onnx` and `step.onnx`: any batch, up to `max_length` tokens.

    Needs the packages onnx and onnxscript. ValueError: the model is training.

    Defined in chapter 22, "A file for servers".
    """
    check_evaluating(model)
    source = torch.tensor([[3, 4, 5], [3, 4, 0]])
    encode, step = EncodeGraph(model), StepGraph(model)
    with torch.no_grad():
        mask, memory = encode(source)
    past = [(k[:, :, :2].clone(), v[:, :, :2].clone()) for k, v in memory]
    kept, seen = ({0: "batch", 2: length} for length in ("length", "source"))
    names = [f"{what}_{n}" for n in range(len(past)) for what in ("keys", "values")]
    of_source, longer = (
        [f"{of}_{name}" for name in names] for of in ("source", "new")
    )
    write_graph(
        Path(folder) / "encode.onnx",
        encode,
        {"source": (source, {0: "batch", 1: "source"})},
        ["source"],
        ["mask", *of_source],
    )
    write_graph(
        Path(folder) / "step.onnx",
        step,
        {
            "tokens": (torch.tensor([1, 1]), {0: "batch"}),
            "mask": (mask, {0: "batch", 3: "source"}),
            "past": (past, [(kept, kept)] * len(past)),
            "source": (memory, [(seen, seen)] * len(memory)),
        },
        ["tokens", "mask", *names, *of_source],
        ["logits", *longer],
    )


class OnnxCache:
    """Sentences that two graphs of `write_onnx` write; used as a `KVCache`.

    Defined in chapter 22, "A file for servers".
    """

    special_ids = (0, 1, 2)

    def __init__(self, encode: OnnxGraph, step: OnnxGraph, source: Tensor) -> None:
        padding_mask(source, 0)  # ValueError: a sentence is empty
        self.run = step
        self.mask, *self.source = encode(source)
        self.past = [kept[:, :, :0] for kept in self.source]
        self.sentences = torch.arange(len(source))  # of each row

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.mask)

    def step(self, tokens: Tensor) -> Tensor:
        """Read a token of each row (B,): logits (B, V) of what may follow."""
        logits, *self.past = self.run(tokens, self.mask, *self.past, *self.source)
        return logits

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; one may be there several times."""
        before, self.sentences = self.sentences, self.sentences[rows]
        self.past = [kept.index_select(0, rows) for kept in self.past]
        if not torch.equal(before, self.sentences):  # else within a sentence
            self.mask = self.mask[rows]
            self.source = [kept.index_select(0, rows) for kept in self.source]
