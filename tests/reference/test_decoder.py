"""decoder beside PyTorch's decoder, in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dotformer.decoder import Decoder, DecoderLayer, causal_mask, padding_mask
from dotformer.encoder import LayerConfig
from dotformer.support.torch_modules import our_state_dict
from tests.reference.strategies import assert_close, drawn_anew, normals, seeds, sizes

# masks


@given(st.integers(0, 8))
def test_a_causal_mask_is_true_on_and_below_the_diagonal(length):
    mask = causal_mask(length)
    assert mask.dtype == torch.bool
    # PyTorch's own is added to the scores: 0 where a query may attend, minus infinity where it may not
    assert torch.equal(mask, nn.Transformer.generate_square_subsequent_mask(length) == 0)
    assert mask.tolist() == [[s <= t for s in range(length)] for t in range(length)]


@given(sizes, sizes, st.sampled_from([0, 1, 5]), st.data())
def test_a_padding_mask_is_true_for_real_tokens(batch, length, pad_id, data):
    row = st.lists(st.integers(0, 6), min_size=length, max_size=length).filter(lambda row: set(row) != {pad_id})
    rows = data.draw(st.lists(row, min_size=batch, max_size=batch))
    mask = padding_mask(torch.tensor(rows), pad_id)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [[[[token != pad_id for token in row]]] for row in rows]


def test_an_empty_sentence_is_named():
    says = r"^empty sentences in rows \[0, 2\]: nothing but padding$"
    with pytest.raises(ValueError, match=says):
        padding_mask(torch.tensor([[3, 3], [1, 3], [3, 3]]), 3)


@pytest.mark.parametrize("tokens", [torch.zeros(2, 3), torch.tensor([1, 2])], ids=["dtype", "axes"])
def test_tokens_that_do_not_fit_are_refused(tokens):
    with pytest.raises(TypeError, match="'tokens'"):
        padding_mask(tokens, 0)


def test_nothing_waits_for_the_numbers_of_another_device():
    tokens = torch.zeros(2, 3, dtype=torch.long, device="meta")  # it has no numbers
    assert padding_mask(tokens, 0).shape == (2, 1, 1, 3)
    assert causal_mask(3, torch.device("meta")).is_meta


# layers and stacks


@st.composite
def stacks(draw):
    """Sizes; PyTorch's options for a decoder layer, and ours; x (B, T, D); memory (B, S, D); lengths; a seed."""
    num_heads, width, batch = (draw(st.integers(1, 3)) for _ in range(3))
    d_model, d_ff, seed = 2 * num_heads * width, draw(st.integers(1, 8)), draw(seeds)
    t, s = draw(sizes), draw(sizes)
    options = {"norm_first": draw(st.booleans()), "activation": draw(st.sampled_from(["relu", "gelu"]))}
    eps = draw(st.sampled_from([1e-5, 1e-2]))
    x, memory = normals(seed, (batch, t, d_model), (batch, s, d_model))
    lengths = [draw(st.lists(st.integers(1, n), min_size=batch, max_size=batch)) for n in (t, s)]
    theirs = {"dropout": 0.0, "batch_first": True, "layer_norm_eps": eps} | options
    ours = {"d_model": d_model, "num_heads": num_heads, "d_ff": d_ff, "dropout": 0.0, "layer_norm_eps": eps} | options
    return (d_model, num_heads, d_ff), theirs, ours, x, memory, lengths, seed


def masks(x, memory, lengths):
    """Which targets and sources are real, (B, T) and (B, S); our masks; and PyTorch's for the same."""
    real, known = (
        torch.arange(a.shape[1]) < torch.tensor(n)[:, None] for a, n in zip((x, memory), lengths, strict=True)
    )
    causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    theirs = {"tgt_mask": ~causal, "tgt_key_padding_mask": ~real, "memory_key_padding_mask": ~known}
    return real, known, (causal & real[:, None, None], known[:, None, None]), theirs


def pair(num_layers, final_norm, case):
    """PyTorch's stack with random parameters, and ours with the same."""
    sizes, options, our_options, *_, seed = case
    normed = options["norm_first"] if final_norm is None else final_norm  # pre-norm brings one unless told
    norm = nn.LayerNorm(sizes[0], eps=options["layer_norm_eps"]) if normed else None
    layer = nn.TransformerDecoderLayer(*sizes, **options)
    reference = drawn_anew(nn.TransformerDecoder(layer, num_layers, norm), seed)
    decoder = Decoder(LayerConfig(**our_options, final_norm=final_norm), num_layers).double()
    decoder.load_state_dict(our_state_dict(reference))
    return decoder, reference


@given(stacks(), st.integers(1, 3), st.sampled_from([None, False, True]), st.booleans())
def test_a_decoder_is_a_torch_decoder(case, num_layers, final_norm, training):
    _, _, _, x, memory, lengths, _ = case
    decoder, reference = (model.train(training) for model in pair(num_layers, final_norm, case))
    assert_close(decoder(x, memory), reference(x, memory), 1e-9)
    real, known, ours, theirs = masks(x, memory, lengths)
    output = decoder(x, memory, *ours)
    assert_close(output, reference(x, memory, **theirs), 1e-9)
    for row, (t, s) in enumerate(zip(real.sum(-1), known.sum(-1), strict=True)):
        alone = decoder(x[row, :t], memory[row, :s], causal_mask(t))
        assert_close(alone, output[row, :t], 1e-9)


@pytest.mark.parametrize("norm_first", [False, True])
def test_in_training_entries_are_dropped_where_torch_drops_them(norm_first):
    theirs = nn.TransformerDecoderLayer(8, 2, 16, 0.3, batch_first=True, norm_first=norm_first)
    reference = drawn_anew(theirs, seed=0)
    config = LayerConfig(d_model=8, num_heads=2, d_ff=16, dropout=0.3, norm_first=norm_first)
    layer = DecoderLayer(config).double()
    layer.load_state_dict(our_state_dict(reference))
    x, memory = normals(1, (1, 5, 8), (1, 4, 8))  # with one sentence both lay their numbers out alike
    for seed in range(2):
        outputs = []
        for model in (layer, reference):
            torch.manual_seed(seed)
            outputs.append(model(x, memory))
        assert_close(*outputs, 1e-10)
        assert (layer(x, memory) != outputs[0]).any()
    assert_close(layer.eval()(x, memory), reference.eval()(x, memory), 1e-10)


def test_a_decoder_names_the_input_that_does_not_fit():
    decoder, (x, memory) = Decoder(LayerConfig(d_model=8, num_heads=2, d_ff=16), 1), normals(0, (2, 5, 8), (2, 4, 8))
    for arguments, name in (
        ((x, memory[:1]), "memory"),
        ((x, memory[..., :6]), "memory"),
        ((x, memory, causal_mask(4)), "mask"),
        ((x, memory, None, causal_mask(5)), "memory_mask"),
    ):
        with pytest.raises(TypeError, match=f"'{name}'"):
            decoder(*arguments)


def test_the_padding_mask_compiles_into_one_graph():
    compiled = torch.compile(padding_mask, backend="eager", fullgraph=True)
    tokens = torch.tensor([[3, 0], [4, 5]])
    assert torch.equal(compiled(tokens, 0), padding_mask(tokens, 0))
