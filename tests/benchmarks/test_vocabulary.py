"""Language models with vocabularies of several sizes: what is scored, and on what."""

import math

import pytest
import torch

from benchmarks import vocabulary
from benchmarks.vocabulary import as_pairs, bits_per_byte
from dotformer.gpt import GPT, GPTConfig
from dotformer.tokens import BPETokenizer

TEXTS = [" ab", " c"]


def test_a_model_that_guesses_pays_the_logarithm_of_the_vocabulary_for_each_token_and_end():
    tokenizer = BPETokenizer([])
    model = GPT(GPTConfig(vocab_size=len(tokenizer), d_model=8, num_heads=1, d_ff=8, num_layers=1, max_length=16))
    torch.nn.init.zeros_(model.output.weight)
    pairs = as_pairs(tokenizer, TEXTS)
    assert [len(target) for _, target in pairs] == [5, 4]
    assert bits_per_byte(model, pairs, TEXTS) == pytest.approx((4 + 3) * math.log2(259) / 5)


def test_a_model_is_trained_on_the_captions_and_scored_on_others(monkeypatch):
    some = [f" {word} {n}" for word in ("one", "two", "three") for n in range(40)]
    parts = {"train": some, "validation": some[:7], "test": some[5:20]}
    monkeypatch.setattr(vocabulary, "texts", lambda: parts)
    monkeypatch.setattr(vocabulary, "SHAPE", vocabulary.SHAPE | {"num_layers": 1})
    monkeypatch.setattr(vocabulary, "WARMUP", 1)
    job = {"seed": 1, "settings": {"vocab_size": 270, "d_model": 16, "learning_rate": 1e-2}}
    vocabulary.tokenizer_of.cache_clear()
    threads = torch.get_num_threads()
    found = vocabulary.train(job)
    torch.set_num_threads(threads)
    vocabulary.tokenizer_of.cache_clear()
    assert job.items() <= found.items()
    assert 1 <= found["steps"] <= 3 and found["parameters"] > 270 * 16
    assert 0 < found["bits"] < 8.1 and 0 < found["validation_bits"] < 12
