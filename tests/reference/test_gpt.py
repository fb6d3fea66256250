"""gpt beside the GPT-2 of the library `transformers`, with and without a cache, prompts and padding."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel

from dotformer.generation import beam_search, greedy
from dotformer.gpt import GPT, GPTCache, GPTConfig
from dotformer.support.published import named_as_ours
from tests.reference.strategies import assert_close, seeds, sizes


def small(seed=0, vocab_size=11, num_heads=2, num_layers=2, d_model=8, max_length=24, pad_id=0):
    """A GPT in float64, and a GPT-2 of the library with the same parameters."""
    torch.manual_seed(seed)
    sizes = {"n_embd": d_model, "n_head": num_heads, "n_layer": num_layers, "n_inner": 3 * d_model}
    sizes |= {"vocab_size": vocab_size, "n_positions": max_length, "activation_function": "gelu"}
    theirs = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, initializer_range=0.5)).double().eval()
    for parameter in theirs.parameters():
        if parameter.ndim == 1:  # it starts with biases of 0 and gains of 1
            torch.nn.init.normal_(parameter)
    shape = {"d_model": d_model, "num_heads": num_heads, "num_layers": num_layers, "d_ff": 3 * d_model}
    ours = GPT(GPTConfig(vocab_size=vocab_size, max_length=max_length, pad_id=pad_id, **shape)).double().eval()
    ours.load_state_dict(named_as_ours(theirs.state_dict(), d_model))
    return ours, theirs


@given(seed=seeds, batch=sizes, length=st.integers(1, 20), cut=st.integers(0, 20), pad_id=st.sampled_from([0, None]))
def test_logits_are_those_of_gpt2_wherever_the_prompt_ends(seed, batch, length, cut, pad_id):
    ours, theirs = small(seed, pad_id=pad_id)
    tokens, cut = torch.randint(1, 11, (batch, length)), min(cut, length)
    with torch.no_grad():
        found, expected = ours(tokens[:, :cut], tokens[:, cut:]), theirs(tokens).logits
    assert_close(found, expected[:, cut:])


@given(seed=seeds, pads=st.lists(st.integers(0, 3), min_size=4, max_size=4), length=st.integers(1, 6))
def test_padding_of_prompt_and_text_changes_nothing(seed, pads, length):
    ours, _ = small(seed)
    prompt, text = torch.randint(1, 11, (1, length)), torch.randint(1, 11, (1, 4))
    zeros = [torch.zeros(1, count, dtype=torch.long) for count in pads]
    padded = torch.cat([zeros[0], prompt, zeros[1]], dim=1), torch.cat([zeros[2], text, zeros[3]], dim=1)
    with torch.no_grad():
        expected, found = ours(prompt, text), ours(*padded)
    assert_close(found[:, pads[2] : pads[2] + 4], expected)
    assert found.isfinite().all()


@given(seed=seeds, rows=st.lists(st.lists(st.integers(3, 10), max_size=6), min_size=1, max_size=4), left=st.booleans())
def test_with_a_cache_each_row_has_the_logits_that_it_has_alone_without(seed, rows, left):
    ours, _ = small(seed)
    width = max(map(len, rows))
    pads = [[0] * (width - len(row)) for row in rows]
    padded = [pad + row if left else row + pad for pad, row in zip(pads, rows, strict=True)]
    cache = GPTCache(ours, torch.tensor(padded, dtype=torch.long).reshape(len(rows), width))
    texts = torch.randint(3, 11, (len(rows), 4))
    order = torch.randint(0, len(rows), (3,))
    for length in range(1, 5):
        if length == 3:  # some rows, several times
            cache.select(order)
            rows, texts = [rows[n] for n in order], texts[order]
        logits = cache.step(texts[:, length - 1])
        assert len(cache) == len(rows)
        for found, row, text in zip(logits, rows, texts, strict=True):
            with torch.no_grad():
                expected = ours(torch.tensor([row], dtype=torch.long).reshape(1, -1), text[None, :length])[0, -1]
            assert_close(found, expected)


def test_searches_write_what_the_model_says():
    ours, _ = small(6)
    prompt = torch.tensor([[5, 6, 7], [8, 9, 10]])
    for row, text in zip(prompt, greedy(GPTCache(ours, prompt), 8), strict=True):
        with torch.no_grad():
            logits = ours(row[None], torch.tensor([[1, *text]]))[0]
        logits[:, :2] = -math.inf
        assert logits.argmax(dim=-1).tolist()[: len(text)] == text and len({*text}) > 2
    [best] = beam_search(GPTCache(ours, prompt[:1]), 8, beam=3)
    assert len({*best[0].tokens}) > 2
    with torch.no_grad():
        logs = ours(prompt[:1], torch.tensor([[1, *best[0].tokens]]))[0].log_softmax(dim=-1)
    ends = [*best[0].tokens, 2] if len(best[0].tokens) < 8 else best[0].tokens
    total = sum(float(log[token]) for log, token in zip(logs, ends, strict=False))
    assert best[0].score == pytest.approx(total / ((5 + len(ends)) / 6) ** 0.6)


def test_the_first_loss_is_that_of_a_guess_and_writers_start_small():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=1000, d_model=192, num_heads=4, d_ff=768, num_layers=8)).eval()
    tokens = torch.randint(3, 1000, (4, 50))
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :0], tokens).mT, torch.randint(3, 1000, (4, 50)))
    assert loss.item() == pytest.approx(math.log(1000) + 768 * 0.02**2 / 2, abs=0.1)  # half the variance of the logits
    layer = model.stack.layers[3]
    assert layer.attention.w_q.weight.std().item() == pytest.approx(0.04, rel=0.03)
    assert layer.feed_forward.up.weight.std().item() == pytest.approx(0.04, rel=0.03)
    for writer in (layer.attention.w_o, layer.feed_forward.down):
        assert writer.weight.std().item() == pytest.approx(0.01, rel=0.03)
        assert not writer.bias.any()
    assert model.output.weight is model.tokens.weight


def test_the_smallest_gpt2_is_the_default():
    with torch.device("meta"):
        for model in (GPT(GPTConfig(vocab_size=50_257)), GPT2LMHeadModel(GPT2Config())):
            assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808


def test_more_tokens_than_positions_are_refused():
    ours, _ = small(max_length=5)
    tokens = torch.ones(1, 5, dtype=torch.long)
    ours(tokens[:, :2], tokens[:, 2:])
    with pytest.raises(ValueError, match=r"^6 tokens exceed max_length 5$"):
        ours(tokens, tokens[:, :1])
    cache = GPTCache(ours, tokens)
    with pytest.raises(ValueError, match=r"^6 tokens exceed max_length 5$"):
        cache.step(tokens[:, 0])
    with pytest.raises(ValueError, match="training mode"):
        GPTCache(ours.train(), tokens)
    with pytest.raises(ValueError, match="num_layers must be positive"):
        GPTConfig(vocab_size=5, num_layers=0)


def test_without_padding_token_0_is_a_token_like_others():
    tokens = torch.tensor([[0, 4, 0, 5]])
    shape = {"d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 8, "max_length": 9}
    for padding in (0, None):
        torch.manual_seed(0)
        ours = GPT(GPTConfig(vocab_size=11, pad_id=padding, **shape)).eval()
        with torch.no_grad():
            one, other = ours(tokens[:, :0], tokens)[0, -1], ours(tokens[:, :0], tokens[:, [1, 3]])[0, -1]
        assert torch.allclose(one, other) == (padding == 0)
    for wrong in (-1, 11):
        with pytest.raises(ValueError, match="pad_id must be"):
            GPTConfig(vocab_size=11, pad_id=wrong, **shape)
    with pytest.raises(TypeError, match="pad_id must be of type int, not True"):
        GPTConfig(vocab_size=11, pad_id=True, **shape)
