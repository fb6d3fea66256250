"""encoder beside by_hand and beside PyTorch's encoder, in float64."""

import math
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from dotformer.by_hand.positions import sinusoidal_positions
from dotformer.encoder import Embeddings, Encoder, EncoderLayer, FeedForward, LayerConfig, PositionalEncoding
from dotformer.support.torch_modules import our_state_dict
from tests.reference.strategies import assert_close, drawn_anew, normals, seeds, sizes

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu}
activations = st.sampled_from(list(ACTIVATIONS))


@pytest.fixture
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# positions


@pytest.mark.parametrize("tokens", [20, 7])
def test_positions_are_sinusoids_by_hand(in_float64, tokens):
    (x,) = normals(0, (2, 3, tokens, 6))
    table = torch.from_numpy(sinusoidal_positions(20, 6))
    assert_close(PositionalEncoding(6, 20)(x), x + table[:tokens])


def test_positions_in_float32_are_as_exact_as_float32_can_be():
    encoding = PositionalEncoding(16, 5000)
    assert_close(encoding.table, torch.from_numpy(sinusoidal_positions(5000, 16)).float(), 0)
    assert PositionalEncoding(16).table.shape == (5000, 16)
    assert not list(encoding.parameters()) and not encoding.state_dict()  # a saved model may become longer


def test_more_tokens_than_positions_are_refused():
    with pytest.raises(ValueError, match=r"^11 tokens exceed max_length 10$"):
        PositionalEncoding(4, 10)(torch.zeros(2, 11, 4))
    with pytest.raises(ValueError, match=r"d_model must be even .* 5"):
        PositionalEncoding(5)


def test_positions_are_added_before_entries_are_dropped():
    encoding = PositionalEncoding(50, 200, dropout=0.25)
    x = torch.ones(200, 50)
    torch.manual_seed(0)
    dropped = encoding(x)
    kept = dropped != 0
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.02)
    whole = encoding.eval()(x)
    assert_close(whole, x + encoding.table)
    assert_close(dropped[kept], whole[kept] / 0.75, 1e-6)


# the feed-forward network


@given(sizes, sizes, st.lists(sizes, max_size=2), activations, seeds)
def test_feed_forward_is_two_linear_maps_with_an_activation_between(d_model, d_ff, leading, activation, seed):
    config = LayerConfig(d_model=d_model, d_ff=d_ff, activation=activation, dropout=0.0)
    network = drawn_anew(FeedForward(config), seed)
    (x,) = normals(seed, (*leading, d_model))
    inside = ACTIVATIONS[activation](F.linear(x, network.up.weight, network.up.bias))
    assert_close(network(x), F.linear(inside, network.down.weight, network.down.bias))
    assert network.up.weight.shape == (d_ff, d_model)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"activation": "tanh"}, "^activation must be relu or gelu, not 'tanh'$"),
        ({"d_ff": 0}, "^d_ff must be positive, not 0$"),
        ({"dropout": 1.0}, "^dropout must be at least 0 and below 1, not 1.0$"),
        ({"dropout": -0.1}, "^dropout must be at least 0 and below 1, not -0.1$"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        LayerConfig(**options)


def test_the_defaults_are_the_base_model_of_the_paper():
    assert asdict(LayerConfig()) == {
        **{"d_model": 512, "num_heads": 8, "d_ff": 2048, "dropout": 0.1, "activation": "relu", "norm_first": False},
        **{"final_norm": None, "layer_norm_eps": 1e-5},
    }


# layers and stacks


@st.composite
def stacks(draw, layers=(1, 3)):
    """PyTorch's arguments for an encoder layer, ours for the same, x (B, T, D), which tokens are real, and a seed."""
    num_heads, width, batch, tokens = (draw(st.integers(1, 3)) for _ in range(4))
    d_model, d_ff, seed = 2 * num_heads * width, draw(st.integers(1, 8)), draw(seeds)
    options = {"norm_first": draw(st.booleans()), "activation": draw(activations)}
    eps = draw(st.sampled_from([1e-5, 1e-2]))
    (x,) = normals(seed, (batch, tokens + 2, d_model))
    lengths = torch.tensor(draw(st.lists(st.integers(1, tokens + 2), min_size=batch, max_size=batch)))
    real = torch.arange(tokens + 2) < lengths[:, None]
    sizes = (d_model, num_heads, d_ff)
    theirs = {"dropout": 0.0, "batch_first": True, "layer_norm_eps": eps} | options
    ours = dict(zip(("d_model", "num_heads", "d_ff"), sizes, strict=True))
    ours |= {"dropout": 0.0, "layer_norm_eps": eps} | options
    return (sizes, theirs), ours, x, real, seed


def pair(num_layers, final_norm, case):
    """PyTorch's stack with random parameters, and ours with the same."""
    (sizes, options), ours, x, _, seed = case
    normed = options["norm_first"] if final_norm is None else final_norm  # pre-norm brings one unless told
    norm = nn.LayerNorm(x.shape[-1], eps=options["layer_norm_eps"]) if normed else None
    layer = nn.TransformerEncoderLayer(*sizes, **options)
    reference = drawn_anew(nn.TransformerEncoder(layer, num_layers, norm, enable_nested_tensor=False), seed)
    encoder = Encoder(LayerConfig(**ours, final_norm=final_norm), num_layers).double()
    encoder.load_state_dict(our_state_dict(reference))
    return encoder, reference


@given(stacks(), st.integers(1, 3), st.sampled_from([None, False, True]), st.booleans())
def test_an_encoder_is_a_torch_encoder(case, num_layers, final_norm, training):
    _, _, x, real, _ = case
    encoder, reference = (model.train(training) for model in pair(num_layers, final_norm, case))
    assert_close(encoder(x), reference(x), 1e-9)
    causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    assert_close(encoder(x, causal), reference(x, ~causal), 1e-9)
    output, wanted = encoder(x, real[:, None, None]), reference(x, src_key_padding_mask=~real)
    assert_close(output[real], wanted[real], 1e-9)
    for row, length in enumerate(real.sum(-1)):
        assert_close(encoder(x[row, :length]), output[row, :length], 1e-9)


@pytest.mark.parametrize("norm_first", [False, True])
def test_in_training_entries_are_dropped_where_torch_drops_them(norm_first):
    theirs = nn.TransformerEncoderLayer(8, 2, 16, 0.3, batch_first=True, norm_first=norm_first)
    reference = drawn_anew(theirs, seed=0)
    config = LayerConfig(d_model=8, num_heads=2, d_ff=16, dropout=0.3, norm_first=norm_first)
    layer = EncoderLayer(config).double()
    layer.load_state_dict(our_state_dict(reference))
    (x,) = normals(1, (1, 5, 8))  # with one sentence both lay their numbers out alike
    for seed in range(2):
        outputs = []
        for model in (layer, reference):
            torch.manual_seed(seed)
            outputs.append(model(x))
        assert_close(*outputs, 1e-10)
        assert (layer(x) != outputs[0]).any()
    assert_close(layer.eval()(x), reference.eval()(x), 1e-10)


# embeddings


def test_embeddings_are_scaled_tokens_and_positions(in_float64):
    embeddings = drawn_anew(Embeddings(9, 6, 20), seed=0)
    tokens = torch.tensor([[1, 8, 0, 1], [2, 2, 3, 0]])
    positions = torch.from_numpy(sinusoidal_positions(20, 6))
    assert_close(embeddings(tokens), F.embedding(tokens, embeddings.tokens.weight) * math.sqrt(6) + positions[:4])
    assert_close(embeddings(tokens[0]), embeddings(tokens)[0])
    assert_close(embeddings(tokens.int()), embeddings(tokens))


def test_embeddings_start_as_large_as_positions():
    torch.manual_seed(0)
    embeddings = Embeddings(2000, 64)
    assert embeddings.tokens.weight.std().item() == pytest.approx(1 / 8, rel=0.02)
    words = embeddings(torch.arange(2000)) - embeddings.positions.table[:2000]
    assert words.std().item() == pytest.approx(1, rel=0.02)
    assert [name for name, _ in embeddings.named_parameters()] == ["tokens.weight"]


@pytest.mark.parametrize(
    ("tokens", "error", "says"),
    [
        (torch.zeros(2, 3), TypeError, r"'tokens'.\n.*f32\[2,3\]"),
        (torch.tensor([[-1, 2]]), IndexError, "out of range"),
        (torch.tensor([[2, 7]]), IndexError, "out of range"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(tokens, error, says):
    with pytest.raises(error, match=says):
        Embeddings(7, 4, 10)(tokens)


@pytest.mark.parametrize("x", [torch.zeros(4), torch.zeros(2, 3, 4, dtype=torch.long)], ids=["axes", "dtype"])
def test_an_encoder_names_the_input_that_does_not_fit(x):
    with pytest.raises(TypeError, match="'x'"):
        Encoder(LayerConfig(d_model=4, num_heads=2, d_ff=8), 1)(x)
