"""The book's models as other libraries build them, with the same parameters: what benchmarks/peers.py measures."""

import math
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertModel, GenerationConfig, LogitsProcessorList, MarianConfig, MarianMTModel
from transformers.utils import logging

from dotformer.attention import MultiHeadAttention
from dotformer.export import write_onnx
from dotformer.pretrained import minilm_files
from dotformer.support.decoding import Decoding
from dotformer.support.onnx_files import OnnxGraph
from dotformer.transformer import Transformer

PAD, BEGIN, END = 0, 1, 2
TO_TORCH = {  # parts of our parameters' names -> of those in nn.Transformer; the first that fits is the one
    "encoder": {"attention_add_norm.norm": "norm1", "feed_forward_add_norm.norm": "norm2", "attention": "self_attn"},
    "decoder": {
        "self_attention_add_norm.norm": "norm1",
        "cross_attention_add_norm.norm": "norm2",
        "feed_forward_add_norm.norm": "norm3",
        "self_attention": "self_attn",
        "cross_attention": "multihead_attn",
    },
    "both": {"feed_forward.up": "linear1", "feed_forward.down": "linear2", "w_o": "out_proj"},
}
TO_MARIAN = {  # the same for Marian
    "encoder": {"attention_add_norm.norm": "self_attn_layer_norm", "attention": "self_attn"},
    "decoder": {
        "self_attention_add_norm.norm": "self_attn_layer_norm",
        "cross_attention_add_norm.norm": "encoder_attn_layer_norm",
        "self_attention": "self_attn",
        "cross_attention": "encoder_attn",
    },
    "both": {
        **{"feed_forward_add_norm.norm": "final_layer_norm", "feed_forward.up": "fc1"},
        **{"feed_forward.down": "fc2", "w_q": "q_proj", "w_k": "k_proj", "w_v": "v_proj", "w_o": "out_proj"},
    },
}


def renamed(model: Transformer, names: dict[str, dict[str, str]]) -> dict[str, Tensor]:
    """The parameters of a model's two stacks, under other names."""
    found = {}
    for stack in ("encoder", "decoder"):
        for name, values in getattr(model, stack).state_dict(prefix=f"{stack}.").items():
            for old, new in (names[stack] | names["both"]).items():
                name = name.replace(f".{old}.", f".{new}.")
            found[name] = values
    return found


def parameters(model: nn.Module) -> int:
    """How many numbers a model learns."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


class Embedded(nn.Module):
    """Embeddings, positions and a tied output, around another library's stacks: the same function as a model of ours.

    That has one table for both sides, and ReLU.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        c = model.config
        self.tokens = nn.Embedding.from_pretrained(model.output.weight.detach().clone(), freeze=False)
        self.register_buffer("positions", model.target_embeddings.positions.table.clone())
        self.dropout = nn.Dropout(c.dropout)
        self.pad_id, self.scale = c.pad_id, c.d_model**0.5

    def embed(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to vectors (B, T, D)."""
        return self.dropout(self.tokens(tokens) * self.scale + self.positions[: tokens.shape[1]])

    def score(self, x: Tensor) -> Tensor:
        """Vectors (B, T, D) to logits (B, T, V)."""
        return F.linear(x, self.tokens.weight)


class TorchTransformer(Embedded):
    """nn.Transformer, its final norms left out, as in the paper."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        c = model.config
        options = (c.d_model, c.num_heads, c.d_ff, c.dropout, c.activation)
        encoder = nn.TransformerEncoderLayer(*options, batch_first=True)
        decoder = nn.TransformerDecoderLayer(*options, batch_first=True)
        self.stacks = nn.Transformer(
            *(c.d_model, c.num_heads),
            custom_encoder=nn.TransformerEncoder(encoder, c.num_encoder_layers, enable_nested_tensor=False),
            custom_decoder=nn.TransformerDecoder(decoder, c.num_decoder_layers),
            batch_first=True,
        )
        state = renamed(model, TO_TORCH)
        for name in [name for name in state if ".w_q." in name]:
            parts = [state.pop(name.replace("w_q", part)) for part in ("w_q", "w_k", "w_v")]
            state[name.replace("w_q.", "in_proj_")] = torch.cat(parts)
        self.stacks.load_state_dict(state)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (B, T, V) for source (B, S) and target (B, T)."""
        future = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool, device=target.device).triu(1)
        padding = source == self.pad_id
        x = self.stacks(
            *(self.embed(source), self.embed(target)),
            tgt_mask=future,
            src_key_padding_mask=padding,
            tgt_key_padding_mask=target == self.pad_id,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return self.score(x)


class XTransformer(Embedded):
    """The stacks of `x-transformers`, without biases in attention and norms: ours are 0 before they learn.

    Raises ImportError where that package is missing.
    """

    def __init__(self, model: Transformer) -> None:
        from x_transformers import Decoder, Encoder

        super().__init__(model)
        c = model.config
        options = {"dim": c.d_model, "heads": c.num_heads, "attn_dim_head": c.d_model // c.num_heads}
        options |= {"pre_norm": False, "attn_flash": True, "ff_mult": c.d_ff / c.d_model}
        names = ("attn_dropout", "attn_sublayer_dropout", "ff_dropout", "ff_sublayer_dropout")
        options |= dict.fromkeys(names, c.dropout) | {"ff_custom_activation": nn.ReLU()}
        self.encoder = Encoder(depth=c.num_encoder_layers, **options)
        self.decoder = Decoder(depth=c.num_decoder_layers, cross_attend=True, **options)
        self.encoder.load_state_dict(self.state(model.encoder, "attention", "feed_forward"))
        self.decoder.load_state_dict(self.state(model.decoder, "self_attention", "cross_attention", "feed_forward"))

    @staticmethod
    def state(stack: nn.Module, *parts: str) -> dict[str, Tensor]:
        """The parameters of one of our stacks, under the names that they have there."""
        attention = {"to_q": "w_q", "to_k": "w_k", "to_v": "w_v", "to_out": "w_o"}
        feed_forward = {"ff.0.0": "up", "ff.2": "down"}
        found = {}
        for n, (layer, part) in enumerate((layer, part) for layer in stack.layers for part in parts):
            ours = layer.get_submodule(part)
            for name, own in (feed_forward if part == "feed_forward" else attention).items():
                for kind, values in ours.get_submodule(own).state_dict().items():
                    if part == "feed_forward" or kind == "weight":
                        found[f"layers.{n}.1.{name}.{kind}"] = values
            found[f"layers.{n}.0.2.gamma"] = layer.get_submodule(f"{part}_add_norm.norm").weight - 1
        return found

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (B, T, V) for source (B, S) and target (B, T)."""
        real = source != self.pad_id
        memory = self.encoder(self.embed(source), mask=real)
        x = self.decoder(self.embed(target), context=memory, context_mask=real, mask=target != self.pad_id)
        return self.score(x)


class Marian(nn.Module):
    """MarianMTModel of `transformers`: the same function as a model of ours that has one table and uses ReLU."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        c = model.config
        self.pad_id = c.pad_id
        self.model = MarianMTModel(
            MarianConfig(
                vocab_size=c.target_vocab_size,
                max_position_embeddings=c.max_length,
                d_model=c.d_model,
                encoder_layers=c.num_encoder_layers,
                decoder_layers=c.num_decoder_layers,
                encoder_attention_heads=c.num_heads,
                decoder_attention_heads=c.num_heads,
                encoder_ffn_dim=c.d_ff,
                decoder_ffn_dim=c.d_ff,
                activation_function=c.activation,
                dropout=c.dropout,
                attention_dropout=c.dropout,
                activation_dropout=c.dropout,
                scale_embedding=True,
                pad_token_id=c.pad_id,
                decoder_start_token_id=BEGIN,
                eos_token_id=None,
                forced_eos_token_id=None,
            )
        )
        state = renamed(model, TO_MARIAN)
        for side in ("encoder", "decoder"):  # Marian has sines and cosines in another order
            embeddings = model.source_embeddings if side == "encoder" else model.target_embeddings
            state[f"{side}.embed_positions.weight"] = embeddings.positions.table
        for name in ("shared", "encoder.embed_tokens", "decoder.embed_tokens"):
            state[f"{name}.weight"] = model.output.weight
        self.model.model.load_state_dict(state)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (B, T, V) for source (B, S) and target (B, T)."""
        return self.model(
            input_ids=source,
            attention_mask=source != self.pad_id,
            decoder_input_ids=target,
            decoder_attention_mask=target != self.pad_id,
            use_cache=False,
        ).logits

    def write(self, source: Tensor, ends: "Ends", beam: int) -> list[list[int]]:
        """The likeliest tokens found for each source, with a cache."""
        self.model.final_logits_bias = ends.bias[None]
        config = GenerationConfig(
            max_new_tokens=int(ends.lengths.max()) + ends.early,
            num_beams=beam,
            do_sample=False,
            pad_token_id=self.pad_id,
            decoder_start_token_id=BEGIN,
            eos_token_id=END if ends.early else None,
        )
        mask, beams = (source != self.pad_id).long(), ends.lengths.repeat_interleave(beam)
        rule = [lambda tokens, scores: ends(scores, tokens.shape[1], beams)] if ends.early else []
        found = self.model.generate(
            source, attention_mask=mask, generation_config=config, logits_processor=LogitsProcessorList(rule)
        )
        return [[token for token in row if token not in (self.pad_id, END)] for row in found[:, 1:].tolist()]


class CTranslate2:
    """An engine in C++ that writes with the parameters of a model of ours, which has one table, ReLU and no final norm.

    It uses as many threads as PyTorch. What `bias` (V,) makes impossible is not written. Raises ImportError where the
    package is missing.
    """

    def __init__(self, model: Transformer, bias: Tensor) -> None:
        import ctranslate2
        from ctranslate2.specs import TransformerSpec
        from ctranslate2.specs.common_spec import Activation

        c = model.config
        sizes = (c.num_encoder_layers, c.num_decoder_layers), c.num_heads
        spec = TransformerSpec.from_config(*sizes, pre_norm=False, activation=Activation.RELU)
        norm, attention = "_add_norm.norm", "attention"
        for side, embeddings, stack in (
            (spec.encoder, model.source_embeddings, model.encoder),
            (spec.decoder, model.target_embeddings, model.decoder),
        ):
            [table] = side.embeddings if isinstance(side.embeddings, list) else [side.embeddings]
            table.weight, side.scale_embeddings = embeddings.tokens.weight.detach().numpy(), True
            side.position_encodings.encodings = embeddings.positions.table.numpy()
            own = attention if side is spec.encoder else f"self_{attention}"
            for layer, ours in zip(side.layer, stack.layers, strict=True):
                part = ours.get_submodule
                read = layer.self_attention
                self.fill(read.linear[0], *(part(f"{own}.{name}") for name in ("w_q", "w_k", "w_v")))
                self.fill(read.linear[1], part(f"{own}.w_o"))
                self.fill(read.layer_norm, part(own + norm))
                if side is spec.decoder:
                    read = layer.attention
                    self.fill(read.linear[0], ours.cross_attention.w_q)
                    self.fill(read.linear[1], ours.cross_attention.w_k, ours.cross_attention.w_v)
                    self.fill(read.linear[2], ours.cross_attention.w_o)
                    self.fill(read.layer_norm, part(f"cross_{attention}{norm}"))
                self.fill(layer.ffn.linear_0, ours.feed_forward.up)
                self.fill(layer.ffn.linear_1, ours.feed_forward.down)
                self.fill(layer.ffn.layer_norm, part(f"feed_forward{norm}"))
        spec.decoder.projection.weight = model.output.weight.detach().numpy()
        spec.decoder.projection.bias = bias.clamp_min(-1e9).numpy()
        names = [str(token) for token in range(c.target_vocab_size)]
        spec.register_source_vocabulary(names)
        spec.register_target_vocabulary(names)
        marks = {"unk_token": PAD, "bos_token": BEGIN, "decoder_start_token": BEGIN, "eos_token": END}
        for mark, token in marks.items():
            setattr(spec.config, mark, str(token))
        spec.validate()
        spec.optimize()
        with TemporaryDirectory() as folder:
            spec.save(folder)
            self.engine = ctranslate2.Translator(folder, intra_threads=torch.get_num_threads())

    @staticmethod
    def fill(part: Any, *ours: nn.Module) -> None:
        """Give a part of the engine's model the parameters of ours, one below the other."""
        names = ("gamma", "beta") if isinstance(ours[0], nn.LayerNorm) else ("weight", "bias")
        for name, own in zip(names, ("weight", "bias"), strict=True):
            setattr(part, name, torch.cat([getattr(one, own).detach() for one in ours]).numpy())

    def write(self, source: Tensor, ends: "Ends", beam: int) -> list[list[int]]:
        """The likeliest tokens found for each source; with a beam all sentences have to be of one length."""
        rows = [[str(token) for token in row if token != PAD] for row in source.tolist()]
        lengths = ends.lengths.tolist()
        stop = {"callback": lambda one: one.step + 1 >= lengths[one.batch_id]} if ends.early else {}
        options = {"min_decoding_length": max(lengths), "max_decoding_length": max(lengths)}
        found = self.engine.translate_batch(rows, beam_size=beam, **options, **stop)
        return [[int(token) for token in one.hypotheses[0]] for one in found]


class OneProduct(nn.Module):
    """Queries, keys and values of one input by a single matrix product, where an attention of ours has three."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        parts = attention.w_q, attention.w_k, attention.w_v
        self.together = nn.Linear(attention.d_model, 3 * attention.d_model)
        self.together.weight.data = torch.cat([part.weight.detach() for part in parts])
        self.together.bias.data = torch.cat([part.bias.detach() for part in parts])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of x (B, T, D)."""
        return self.together(x).chunk(3, dim=-1)


class SmoothedCrossEntropy(torch.autograd.Function):
    """The summed cross-entropy with label smoothing, from the sum of exponentials: no V log-probabilities are written.

    PyTorch's keeps them for the way back. Here exponentials are written, and not kept.
    """

    @staticmethod
    def forward(context: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        """Logits (N, V) and targets (N,), padding left out: the loss in nats."""
        total = logits.logsumexp(dim=-1, keepdim=True)
        right = logits.gather(1, targets[:, None])
        losses = total - (1 - smoothing) * right - smoothing * logits.mean(dim=-1, keepdim=True)
        context.save_for_backward(logits, targets, total)
        context.smoothing = smoothing
        return losses[targets != PAD].sum()

    @staticmethod
    def backward(context: Any, after: Tensor) -> tuple[Tensor, None, None]:
        """The gradients of the logits: probabilities less the smoothed targets."""
        logits, targets, total = context.saved_tensors
        gradients = (logits - total).exp_().sub_(context.smoothing / logits.shape[1])
        gradients.scatter_add_(1, targets[:, None], gradients.new_full((len(targets), 1), context.smoothing - 1))
        return gradients.mul_((targets != PAD)[:, None] * after), None, None


class Ends:
    """A rule for logits (N, V): sentence n ends after `lengths[n]` tokens, and padding and begin are never written.

    Without `early`, no end is written either: all go on for as long as the longest.
    """

    def __init__(self, lengths: Tensor, vocab_size: int, early: bool) -> None:
        self.lengths = lengths if early else lengths.amax().expand(len(lengths))
        self.early = early
        self.bias = torch.zeros(vocab_size, device=lengths.device)
        self.bias[[PAD, BEGIN, END]] = -math.inf
        self.last = torch.full((vocab_size,), -math.inf, device=lengths.device)
        self.last[END] = 0

    def __call__(self, logits: Tensor, place: int, lengths: Tensor) -> Tensor:
        """The logits (N, V) of token `place`, from 1, in sentences that end after `lengths` (N,); `bias` is in them."""
        return torch.where((lengths < place)[:, None], self.last, logits) if self.early else logits


class Ending:
    """Sentences that are being written, until they end by a rule."""

    def __init__(self, state: Decoding, ends: Ends) -> None:
        self.state, self.ends, self.lengths, self.length = state, ends, ends.lengths, 0
        self.special_ids = state.special_ids

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.state)

    def step(self, tokens: Tensor) -> Tensor:
        """As `KVCache.step`."""
        self.length += 1
        return self.ends(self.state.step(tokens) + self.ends.bias, self.length, self.lengths)

    def select(self, rows: Tensor) -> None:
        """As `KVCache.select`."""
        self.state.select(rows)
        self.lengths = self.lengths[rows.to(self.lengths.device)]


def onnx_graphs(model: Transformer) -> list[OnnxGraph]:
    """The two graphs of a model, run by ONNX Runtime."""
    with TemporaryDirectory() as folder:
        write_onnx(model, folder)
        return [OnnxGraph(f"{folder}/{name}.onnx") for name in ("encode", "step")]


def products_alone(ours: Transformer, rows: int, steps: int) -> Callable[[], None]:
    """Only the matrix products that writing with a cache takes, one after the other, always of the same vectors.

    Left out are those of the encoder and of the memory's keys and values, which are needed once.
    """
    once = {
        linear for layer in ours.decoder.layers for linear in (layer.cross_attention.w_k, layer.cross_attention.w_v)
    }
    parts = [*ours.decoder.modules(), ours.output]
    linears = [part for part in parts if isinstance(part, nn.Linear) and part not in once]
    device = ours.output.weight.device
    vectors = {width: torch.randn(rows, width, device=device) for width in {part.in_features for part in linears}}

    @torch.no_grad()
    def run() -> None:
        for _ in range(steps):
            for linear in linears:
                linear(vectors[linear.in_features])

    return run


def bert() -> BertModel:
    """The published weights of all-MiniLM-L6-v2 in the code of `transformers`."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder = minilm_files()["model.safetensors"].parent
    return BertModel.from_pretrained(folder, add_pooling_layer=False, local_files_only=True).eval()


def torch_attention(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """nn.MultiheadAttention with the weights of ours, which has no biases."""
    theirs = nn.MultiheadAttention(ours.d_model, ours.num_heads, bias=False, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.w_q.weight, ours.w_k.weight, ours.w_v.weight]))
        theirs.out_proj.weight.copy_(ours.w_o.weight)
    return theirs


def x_attention(ours: MultiHeadAttention, causal: bool, flash: bool) -> nn.Module:
    """The attention of `x-transformers` with the weights of ours, which has no biases.

    Raises ImportError where that package is missing.
    """
    from x_transformers.x_transformers import Attention

    width = ours.d_model // ours.num_heads
    theirs = Attention(ours.d_model, dim_head=width, heads=ours.num_heads, causal=causal, flash=flash)
    names = {"to_q": "w_q", "to_k": "w_k", "to_v": "w_v", "to_out": "w_o"}
    theirs.load_state_dict({f"{name}.weight": getattr(ours, own).weight for name, own in names.items()})
    return theirs


class LSTMs(nn.Module):
    """Embeddings, an LSTM in both directions, an LSTM that its first direction starts, a tied output: no more.

    No peer that computes the same, but what the library's cells cost without all that `RecurrentSeq2Seq` adds.
    """

    def __init__(self, vocab_size: int, d_model: int, dropout: float) -> None:
        super().__init__()
        self.source = nn.Embedding(vocab_size, d_model)
        self.target = nn.Embedding(vocab_size, d_model)
        self.encoder = nn.LSTM(d_model, d_model, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTM(d_model, d_model, batch_first=True)
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (B, T, V) for source (B, S) and target (B, T)."""
        _, (hidden, cell) = self.encoder(self.dropout(self.source(source)))
        x, _ = self.decoder(self.dropout(self.target(target)), (hidden[:1], cell[:1]))
        return F.linear(self.dropout(x), self.target.weight)
