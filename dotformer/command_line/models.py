"""The kinds of models that a configuration can name, and a translator with a fresh one."""

from typing import Any

from dotformer.generation import KVCache
from dotformer.gpt import GPT, GPTCache, GPTConfig
from dotformer.modern import ModernCache, ModernConfig, ModernGPT
from dotformer.reading import CopyingCache, CopyingTransformer, FactTransformer
from dotformer.recurrent import RecurrentConfig, RecurrentSeq2Seq, RecurrentState
from dotformer.tokens import BPETokenizer
from dotformer.transformer import Transformer, TransformerConfig
from dotformer.translation import Translator

MODELS: dict[str, tuple[type, type, type]] = {  # the configuration, the model, and what it writes with
    "transformer": (TransformerConfig, Transformer, KVCache),
    "recurrent": (RecurrentConfig, RecurrentSeq2Seq, RecurrentState),
    "gpt": (GPTConfig, GPT, GPTCache),
    "modern": (ModernConfig, ModernGPT, ModernCache),
    "facts": (TransformerConfig, FactTransformer, KVCache),
    "copying": (TransformerConfig, CopyingTransformer, CopyingCache),
}
ONE_STACK = ("gpt", "modern")  # what they write goes on after what they read
ONE_VOCABULARY = (*ONE_STACK, "copying")
FIXED = ("source_vocab_size", "target_vocab_size", "vocab_size", "pad_id")  # by the tokenizers


def longest_text(kind: str, shape: dict[str, Any]) -> int:
    """How many tokens a text may have: all positions, if there are any, or half of those that both texts share."""
    positions = shape.get("max_length", 1024)
    return positions // 2 if kind in ONE_STACK else positions


def check_kind(kind: str, shape: dict[str, Any], shared: bool) -> None:
    """Raise ValueError for a kind that needs one tokenizer for both sides, or one table, and is given two."""
    if kind in ONE_VOCABULARY and not shared:
        raise ValueError(f"kind {kind} has one vocabulary: it needs [tokens] shared = true")
    if kind == "copying" and not shape.get("share_embeddings"):
        raise ValueError(f"kind {kind} has one table of embeddings: it needs share_embeddings = true")


def new_translator(source: BPETokenizer, target: BPETokenizer, kind: str, shape: dict[str, Any]) -> Translator:
    """A fresh model of that kind, with two tokenizers, which for `ONE_VOCABULARY` must be one and the same.

    `shape` is its configuration without what the tokenizers fix. Raises ValueError for another kind, or a shape or
    tokenizers that do not belong to it.
    """
    if kind not in MODELS:
        raise ValueError(f"kind must be one of {', '.join(MODELS)}, not {kind!r}")
    config, model, state = MODELS[kind]
    unknown = shape.keys() - (config.__dataclass_fields__.keys() - set(FIXED))
    if unknown:
        raise ValueError(f"kind {kind} has no {', '.join(sorted(unknown))}")
    check_kind(kind, shape, source is target)
    sizes = {"source_vocab_size": len(source), "target_vocab_size": len(target)}
    if kind in ONE_STACK:
        sizes = {"vocab_size": len(target)}
    return Translator(source, target, model(config(**sizes, **shape)), state, longest_text(kind, shape))
