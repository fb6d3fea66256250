"""transformer beside PyTorch's, in float64, and beside what the paper says of its size."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from dotformer.attention import MultiHeadAttention
from dotformer.support.torch_modules import our_state_dict
from dotformer.transformer import Transformer, TransformerConfig
from tests.reference.strategies import assert_close, drawn_anew, seeds

SMALL = {"d_model": 8, "num_heads": 2, "num_encoder_layers": 2, "num_decoder_layers": 2, "d_ff": 16, "dropout": 0.0}
SOURCE = torch.tensor([[1, 5, 3, 2, 4], [7, 1, 2, 0, 0], [9, 0, 0, 0, 0]])
TARGET = torch.tensor([[1, 4, 2, 6], [3, 3, 0, 0], [8, 9, 10, 0]])


def small(seed=0, **options):
    """A small model with random parameters for 10 source and 12 target tokens, in float64."""
    return drawn_anew(Transformer(TransformerConfig(10, 12, **(SMALL | {"max_length": 20} | options))), seed)


def test_all_dropout_is_as_configured_and_sleeps_in_eval():
    model, plain = small(dropout=0.7), small(dropout=0.0)
    plain.load_state_dict(model.state_dict())
    assert not torch.isclose(model(SOURCE, TARGET), model(SOURCE, TARGET)).all(-1).any()
    assert_close(model.eval()(SOURCE, TARGET), plain(SOURCE, TARGET))
    dropouts = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
    assert len(dropouts) > 10 and set(dropouts) == {0.7}
    assert {m.dropout for m in model.modules() if isinstance(m, MultiHeadAttention)} == {0.7}


# parameters


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("share", [False, True])
def test_tables_are_shared_and_tied_as_configured(tie, share):
    model = Transformer(TransformerConfig(12, 12, **SMALL, share_embeddings=share, tie_output=tie))
    source, target = model.source_embeddings.tokens.weight, model.target_embeddings.tokens.weight
    assert (source is target) == share
    assert (model.output.weight is target) == tie
    assert torch.equal(source, target) == share
    assert model.output.bias is None
    model(SOURCE, TARGET).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    copied = Transformer(model.config)
    copied.load_state_dict(model.state_dict())
    assert_close(copied(SOURCE, TARGET), model(SOURCE, TARGET), 0)
    assert torch.equal(source, target) == share
    assert torch.equal(model.output.weight, target) == tie


def test_matrices_start_uniform_after_glorot_and_biases_at_zero():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(1000, 1000, d_model=64, d_ff=256, tie_output=False))
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert len(linear) == 6 * (4 + 2) + 6 * (8 + 2) + 1
    for layer in linear:
        end = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert 0.99 * end < layer.weight.abs().max() <= end
        assert layer.weight.std().item() == pytest.approx(end / math.sqrt(3), rel=0.03)
        assert layer.bias is None or (layer.bias == 0).all()
    for embeddings in (model.source_embeddings, model.target_embeddings):
        assert embeddings.tokens.weight.std().item() == pytest.approx(1 / 8, rel=0.03)


# working with it


def test_a_model_built_on_another_device_is_there_entirely():
    with torch.device("meta"):
        model = Transformer(TransformerConfig(10, 12, **SMALL))
    # where there are no numbers, so that the forward pass cannot wait for any
    assert model(SOURCE.to("meta"), TARGET.to("meta")).shape == (3, 4, 12)
    assert model(SOURCE[:0].to("meta"), TARGET[:0].to("meta")).shape == (0, 4, 12)


# the configuration


def test_the_defaults_are_the_base_model_of_the_paper():
    config = TransformerConfig(37_000, 37_000)
    assert (config.num_encoder_layers, config.num_decoder_layers, config.tie_output) == (6, 6, True)
    with torch.device("meta"):
        model = Transformer(config)
    assert isinstance(model.decoder.norm, nn.Identity)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 256


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"d_model": 6, "num_heads": 4}, "^6 columns do not make 4 heads$"),
        ({"d_model": 9, "num_heads": 3}, "^d_model must be even and positive"),
        ({"num_heads": 0}, "^num_heads must be positive, not 0$"),
        ({"num_decoder_layers": 0}, "^num_decoder_layers must be positive, not 0$"),
        ({"pad_id": 10}, "^pad_id must be a token of both sides, not 10$"),
        ({"share_embeddings": True}, r"^a shared table needs vocabularies of one size, not 10 and 12$"),
    ],
)
def test_numbers_that_cannot_work_together_are_named(options, says):
    with pytest.raises(ValueError, match=says):
        Transformer(TransformerConfig(10, 12, **options))


# how large it is


def count(**options):
    with torch.device("meta"):
        model = Transformer(TransformerConfig(37_000, 37_000, **options))
    return sum(p.numel() for p in model.parameters())


def test_the_base_model_has_63_million_parameters():
    # an embedding; 6 layers with 1 or 2 attentions, a feed-forward network, and 2 or 3 norms
    attention, feed_forward, norm = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512, 2 * 512
    layers = 6 * (attention + feed_forward + 2 * norm) + 6 * (2 * attention + feed_forward + 3 * norm)
    table = 37_000 * 512
    assert count(share_embeddings=True) == table + layers == 63_082_496
    assert count() == count(share_embeddings=True, tie_output=False) == 2 * table + layers
    assert count(tie_output=False) == 3 * table + layers
    assert count(share_embeddings=True, norm_first=True) == table + layers + 2 * norm


# beside PyTorch's transformer


@st.composite
def cases(draw):
    """Options of a model, and of PyTorch's; source (B, S) and target (B, T), padded with `pad_id`; a seed."""
    pad_id, batch = draw(st.sampled_from([0, 3])), draw(st.integers(1, 3))
    options = {"norm_first": draw(st.booleans()), "activation": draw(st.sampled_from(["relu", "gelu"]))}
    layers = {"num_encoder_layers": draw(st.integers(1, 2)), "num_decoder_layers": draw(st.integers(1, 2))}
    ours = SMALL | options | layers | {"pad_id": pad_id, "final_norm": True, "tie_output": draw(st.booleans())}
    sentences = []
    for size in (10, 12):
        token = st.integers(0, size - 1).filter(lambda token: token != pad_id)
        rows = draw(st.lists(st.lists(token, min_size=1, max_size=5), min_size=batch, max_size=batch))
        longest = max(map(len, rows))
        sentences.append(torch.tensor([row + [pad_id] * (longest - len(row)) for row in rows]))
    theirs = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0.0, "batch_first": True} | options | layers
    return ours, theirs, *sentences, draw(seeds)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@given(cases(), st.booleans())
@settings(max_examples=settings.default.max_examples // 2)
def test_the_model_is_a_torch_transformer_between_embeddings_and_output(case, training):
    options, theirs, source, target, seed = case
    model = small(seed, **options).train(training)
    reference = drawn_anew(nn.Transformer(**theirs), seed + 1).train(training)
    model.encoder.load_state_dict(our_state_dict(reference.encoder))
    model.decoder.load_state_dict(our_state_dict(reference.decoder))
    pad_id, length = options["pad_id"], target.shape[1]
    no_source, no_target = source == pad_id, target == pad_id
    words = model.source_embeddings(source), model.target_embeddings(target)
    vectors = reference(
        *words,
        tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
        src_key_padding_mask=no_source,
        tgt_key_padding_mask=no_target,
        memory_key_padding_mask=no_source,
    )
    logits, expected = model(source, target), F.linear(vectors, model.output.weight)
    assert logits.shape == (*target.shape, 12)
    assert_close(logits, expected, 1e-9)
    gradients = []
    for output in (logits, expected):
        model.zero_grad()
        output[~no_target].square().sum().backward(retain_graph=True)
        gradients.append([e.tokens.weight.grad.clone() for e in (model.source_embeddings, model.target_embeddings)])
    for a, b in zip(*gradients, strict=True):
        assert_close(a / b.abs().max(), b / b.abs().max(), 1e-9)


# in one piece


def test_the_model_is_compiled_and_exported_in_one_piece():
    model = small().float().eval()
    expected = model(SOURCE, TARGET)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(SOURCE, TARGET), expected, atol=1e-5)
    exported = torch.export.export(model, (SOURCE, TARGET)).module()
    assert torch.allclose(exported(SOURCE, TARGET), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("source", "target", "name"),
    [
        (SOURCE.float(), TARGET, "source"),
        (SOURCE[0], TARGET, "source"),
        (SOURCE, TARGET.tolist(), "target"),
        (SOURCE, TARGET[:2], "target"),
    ],
)
def test_tokens_that_do_not_fit_are_refused_by_name(source, target, name):
    with pytest.raises(TypeError, match=f"'{name}'"):
        small()(source, target)


def test_sentences_that_are_empty_or_too_long_are_refused():
    with pytest.raises(ValueError, match=r"^empty sentences in rows \[1\]"):
        small()(torch.tensor([[1, 2], [0, 0]]), TARGET[:2])
    with pytest.raises(ValueError, match=r"^21 tokens exceed max_length 20$"):
        small()(SOURCE, torch.ones(3, 21, dtype=torch.long))
