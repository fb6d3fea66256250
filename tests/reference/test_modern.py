"""modern beside the Llama of the library `transformers`, and slower ways to say the same."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from dotformer.by_hand.positions import rotation_matrix
from dotformer.generation import greedy
from dotformer.modern import Experts, ModernCache, ModernConfig, ModernGPT, rotate, rotation
from dotformer.support.published import named_as_theirs
from tests.reference.strategies import assert_close, seeds, sizes

SHAPE = {"vocab_size": 11, "d_model": 16, "num_heads": 4, "num_kv_heads": 2, "num_layers": 2, "d_ff": 12}
SHAPE |= {"max_length": 40}


def model(seed=0, **options):
    """A model in float64 whose gains are not what they start as."""
    torch.manual_seed(seed)
    made = ModernGPT(ModernConfig(**SHAPE | options)).double().eval()
    for parameter in made.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return made


@given(
    seed=seeds,
    kv_heads=st.sampled_from([1, 2, 4]),
    tied=st.booleans(),
    length=st.integers(1, 20),
    cut=st.integers(0, 20),
)
def test_logits_are_those_of_llama_wherever_the_prompt_ends(seed, kv_heads, tied, length, cut):
    ours = model(seed, num_kv_heads=kv_heads, tied=tied, pad_id=None, rope_base=500.0, norm_eps=0.01)
    sizes = {"vocab_size": 11, "hidden_size": 16, "intermediate_size": 12, "num_hidden_layers": 2, "rms_norm_eps": 0.01}
    sizes |= {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "max_position_embeddings": 40}
    heads = {"num_attention_heads": 4, "num_key_value_heads": kv_heads, "tie_word_embeddings": tied}
    theirs = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).double().eval()
    theirs.load_state_dict(named_as_theirs(ours.state_dict(), d_k=4))
    tokens, cut = torch.randint(0, 11, (2, length)), min(cut, length)
    with torch.no_grad():
        found, expected = ours(tokens[:, :cut], tokens[:, cut:]), theirs(tokens).logits
    assert_close(found, expected[:, cut:], 1e-5)  # their angles are in float32


@given(
    seed=seeds,
    rows=st.lists(st.lists(st.integers(3, 10), max_size=6), min_size=1, max_size=4),
    left=st.booleans(),
)
def test_with_a_cache_each_row_has_the_logits_that_it_has_alone_without(seed, rows, left):
    ours = model(seed)
    width = max(map(len, rows))
    pads = [[0] * (width - len(row)) for row in rows]
    padded = [pad + row if left else row + pad for pad, row in zip(pads, rows, strict=True)]
    cache = ModernCache(ours, torch.tensor(padded, dtype=torch.long).reshape(len(rows), width))
    texts, order = torch.randint(3, 11, (len(rows), 4)), torch.randint(0, len(rows), (3,))
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
    shape = cache.kept[0].both[0].shape
    assert shape == (len(rows), 2, width + 4, 4)


@given(seed=seeds, pairs=sizes, shift=st.integers(0, 1000), m=st.integers(0, 50), n=st.integers(0, 50))
def test_a_score_depends_on_the_distance(seed, pairs, shift, m, n):
    torch.manual_seed(seed)
    q, k = torch.randn(2, 1, 2 * pairs, dtype=torch.float64)

    def turned(x, position):
        return rotate(x, rotation(torch.tensor([position]), 2 * pairs).double())

    one, other = turned(q, m) @ turned(k, n).T, turned(q, m + shift) @ turned(k, n + shift).T
    assert_close(one, other, 1e-3)  # the angles are in float32
    assert_close(turned(q, m), q @ torch.tensor(rotation_matrix(-m, 2 * pairs)), 1e-5)
    assert_close(turned(q, m).norm(), q.norm(), 1e-6)


def test_rotations_of_some_base_turn_by_powers_of_it():
    angles = torch.atan2(*rotation(torch.tensor([1]), 6, base=8.0).flip(0))
    assert_close(angles[0], torch.tensor([1.0, 0.5, 0.25]), 1e-6)


def test_positions_tell_the_order():
    ours = model(3, num_layers=1)
    tokens = torch.tensor([[5, 6, 7, 8], [6, 5, 7, 8]])
    with torch.no_grad():
        one, other = ours(tokens[:, :0], tokens)[:, -1]
    assert not torch.allclose(one, other)


def test_there_are_no_biases_and_the_output_may_be_tied():
    names = {name for name, _ in model().named_parameters()}
    assert not any(name.endswith("bias") for name in names) and "output.weight" not in names
    untied = model(tied=False)
    assert {name for name, _ in untied.named_parameters()} - names == {"output.weight"}
    assert not torch.equal(untied.output.weight, untied.tokens.weight)


def test_the_first_loss_is_that_of_a_guess():
    torch.manual_seed(0)
    for options in ({}, {"tied": False}):
        fresh = ModernGPT(ModernConfig(**SHAPE | {"vocab_size": 1000, "d_model": 192, "d_ff": 512} | options)).eval()
        tokens = torch.randint(3, 1000, (8, 40))
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(fresh(tokens[:, :0], tokens).mT, torch.randint(3, 1000, (8, 40)))
        assert loss.item() == pytest.approx(math.log(1000) + 768 * 0.02**2 / 2, abs=0.15)


def test_shapes_that_do_not_work_are_named():
    for options, says in (
        ({"num_kv_heads": 3}, "4 heads cannot share 3 heads of keys and values"),
        ({"num_kv_heads": 0}, "num_kv_heads must be positive, not 0"),
        ({"d_model": 12}, "rotary positions turn pairs: 3 entries a head are not even"),
        ({"d_model": 18}, "18 columns do not make 4 heads"),
        ({"pad_id": -1}, "pad_id must be at least 0, not -1"),
        ({"rope_base": 0.0}, "rope_base must be positive, not 0.0"),
    ):
        with pytest.raises(ValueError, match=f"^{says}$"):
            ModernConfig(**SHAPE | options)
    with pytest.raises(TypeError, match="pad_id must be of type int, not True"):
        ModernConfig(**SHAPE, pad_id=True)
    assert ModernConfig(**SHAPE, pad_id=None).pad_id is None
    tokens = torch.ones(1, 41, dtype=torch.long)
    ours = model()
    with pytest.raises(ValueError, match=r"^41 tokens exceed max_length 40$"):
        ours(tokens, tokens[:, :0])
    cache = ModernCache(ours, tokens[:, 1:])
    for _ in range(2):  # and nothing is lost
        with pytest.raises(ValueError, match=r"^41 tokens exceed max_length 40$"):
            cache.step(tokens[:, 0])
    with pytest.raises(ValueError, match="training mode"):
        ModernCache(ours.train(), tokens[:, :3])


def test_without_padding_token_0_is_a_token_like_others():
    tokens = torch.tensor([[0, 4, 0, 5]])
    for padding in (0, None):
        ours = model(1, pad_id=padding)
        with torch.no_grad():
            one, other = ours(tokens[:, :0], tokens)[0, -1], ours(tokens[:, :0], tokens[:, [1, 3]])[0, -1]
        assert torch.allclose(one, other) == (padding == 0)


def test_searches_take_it():
    ours = model(4)
    [text] = greedy(ModernCache(ours, torch.tensor([[5, 6, 7]])), 8)
    with torch.no_grad():
        logits = ours(torch.tensor([[5, 6, 7]]), torch.tensor([[1, *text]]))[0]
    logits[:, :2] = -math.inf
    assert logits.argmax(dim=-1).tolist()[: len(text)] == text


@given(seed=seeds, experts=st.integers(1, 4), rows=sizes)
def test_each_token_goes_to_the_expert_of_the_largest_share(seed, experts, rows):
    torch.manual_seed(seed)
    made = Experts(6, 5, experts).double()
    x = torch.randn(2, rows, 6, dtype=torch.float64)
    with torch.no_grad():
        found = made(x)
        counts, total = torch.zeros(experts), torch.zeros(experts).double()
        for b in range(2):
            for t in range(rows):
                shares = made.router(x[b, t]).softmax(dim=-1)
                best = max(range(experts), key=lambda e: shares[e])
                assert_close(found[b, t], shares[best] * made.experts[best](x[b, t]))
                counts[best] += 1 / (2 * rows)
                total += shares / (2 * rows)
    assert_close(made.balance.detach(), experts * (counts * total).sum(), 1e-6)


def test_balance_is_the_number_of_experts_used_evenly():
    made = Experts(4, 5, 4)
    made.router.weight.data = 1e3 * torch.eye(4)
    made(torch.eye(4))
    assert made.balance.item() == pytest.approx(1)
    made(torch.eye(4)[:1].expand(4, -1))
    assert made.balance.item() == pytest.approx(4)
    made(torch.eye(4)).sum().backward()
    assert made.experts[2].down.weight.grad.abs().max() > 0
