"""by_hand.multihead beside PyTorch's MultiheadAttention, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dotformer.by_hand.multihead import merge_heads, multi_head_attention, split_heads
from tests.reference.strategies import assert_same, leading_axes, masks, reals, seeds, sizes

head_counts, head_widths = st.integers(1, 4), st.integers(1, 4)


def torch_attention(d_model, num_heads, seed):
    """PyTorch's layer with the weights it draws, and ours: w_q, w_k, w_v and w_o, transposed."""
    torch.manual_seed(seed)
    module = torch.nn.MultiheadAttention(d_model, num_heads, bias=False, batch_first=True, dtype=torch.float64)
    module.requires_grad_(False)
    return module, [w.numpy().T for w in (*module.in_proj_weight.chunk(3), module.out_proj.weight)]


def run_torch(module, query, key, value, mask=None):
    """Output and weights; PyTorch takes a single leading axis, and a mask that is True for *may not*."""
    inputs = (query, key, value)
    leading = np.broadcast_shapes(*(a.shape[:-2] for a in inputs))
    flat = [
        torch.tensor(np.broadcast_to(a, (*leading, *a.shape[-2:]))).reshape(-1, *a.shape[-2:]).contiguous()
        for a in inputs
    ]
    table = (*leading, module.num_heads, query.shape[-2], key.shape[-2])
    if mask is not None:
        mask = ~torch.tensor(np.broadcast_to(mask, table)).reshape(-1, *table[-2:])
    output, weights = module(*flat, attn_mask=mask, average_attn_weights=False)
    return output.reshape(*leading, *query.shape[-2:]), weights.reshape(table)


@st.composite
def multi_head_inputs(draw):
    """The number of heads, query, key and value (the same array now and then), and a mask or None.

    A mask is (S,) or (T, S) for all heads, or says for each head or each sequence of the batch what it may attend to.
    """
    num_heads, t, s = draw(head_counts), draw(sizes), draw(sizes)
    d_model = num_heads * draw(head_widths)
    of_query, of_key, of_value = draw(leading_axes(count=3))
    query = key = value = draw(reals((*of_query, t, d_model)))
    if draw(st.booleans()):
        s, of_key = t, of_query
    else:
        key, value = draw(reals((*of_key, s, d_model))), draw(reals((*of_value, s, d_model)))
    every = np.broadcast_shapes(of_query, of_key)
    by_sequence = [(*every, 1, 1, s), (*every, 1, t, s)]
    by_head = [(num_heads, 1, s), (num_heads, t, s), (*every, num_heads, 1, s), (*every, num_heads, t, s)]
    mask = draw(masks((s,), (t, s), *by_sequence, *by_head))
    return num_heads, query, key, value, mask


@given(multi_head_inputs(), seeds)
def test_output_and_weights_are_torch(inputs, seed):
    num_heads, query, key, value, mask = inputs
    module, matrices = torch_attention(query.shape[-1], num_heads, seed)
    ours, weights = multi_head_attention(query, key, value, *matrices, num_heads, mask)
    output, table = run_torch(module, query, key, value, mask)
    assert_same(ours, output, scale=10)
    of_scores = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    assert weights.shape == (*of_scores, *table.shape[-3:])
    assert_same(np.broadcast_to(weights, table.shape), table, scale=10)


def test_64_tokens_of_width_48_are_torch():
    module, matrices = torch_attention(48, 8, seed=0)
    x, y = np.random.default_rng(0).standard_normal((2, 3, 64, 48))
    mask = np.tri(64, dtype=bool)
    output, table = run_torch(module, x, y, y, mask)
    ours, weights = multi_head_attention(x, y, y, *matrices, 8, mask)
    assert_same(ours, output)
    assert_same(weights, table)


def test_a_padding_mask_binds_each_sequence_in_its_own_way():
    module, matrices = torch_attention(6, 2, seed=0)
    x = np.random.default_rng(0).standard_normal((3, 5, 6))
    words = np.arange(5) < np.array([[2], [5], [3]])  # the rest of each sequence is padding
    batch = torch.from_numpy(x)
    output, table = module(batch, batch, batch, key_padding_mask=~torch.from_numpy(words), average_attn_weights=False)
    ours, weights = multi_head_attention(x, x, x, *matrices, 2, words[:, None, None, :])
    assert_same(ours, output)
    assert_same(weights, table)


@given(st.lists(st.integers(1, 3), max_size=2), sizes, head_counts, head_widths)
def test_heads_are_runs_of_columns(leading, tokens, num_heads, width):
    shape = (*leading, tokens, num_heads * width)
    x = torch.arange(float(np.prod(shape)), dtype=torch.float64).reshape(shape)  # no two entries alike
    heads = split_heads(x, num_heads)
    assert_same(heads, torch.stack(x.chunk(num_heads, dim=-1), dim=-3), scale=0)
    assert_same(heads, x.unflatten(-1, (num_heads, width)).transpose(-2, -3), scale=0)
    assert_same(merge_heads(heads), x, scale=0)


@given(st.lists(st.integers(1, 3), max_size=2), sizes, head_counts, head_widths)
def test_merged_heads_stand_side_by_side(leading, tokens, num_heads, width):
    shape = (*leading, num_heads, tokens, width)
    heads = torch.arange(float(np.prod(shape)), dtype=torch.float64).reshape(shape)
    x = merge_heads(heads)
    assert_same(x, torch.cat(heads.unbind(dim=-3), dim=-1), scale=0)
    assert_same(x, heads.transpose(-2, -3).flatten(start_dim=-2), scale=0)
    assert_same(split_heads(x, num_heads), heads, scale=0)


@given(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3), sizes, head_counts, head_widths, seeds, st.data())
def test_shuffled_words_give_shuffled_outputs(leading, tokens, num_heads, width, seed, data):
    _, matrices = torch_attention(num_heads * width, num_heads, seed)
    x = np.random.default_rng(seed).standard_normal((*leading, tokens, num_heads * width))
    order = data.draw(st.permutations(range(tokens)))
    output, weights = multi_head_attention(x, x, x, *matrices, num_heads)
    moved = x[..., order, :]
    shuffled, table = multi_head_attention(moved, moved, moved, *matrices, num_heads)
    assert_same(shuffled, output[..., order, :])
    assert_same(table, weights[..., order, :][..., order])
    of_keys, _ = multi_head_attention(x, moved, moved, *matrices, num_heads)
    assert_same(of_keys, output)


@given(st.integers(2, 6), head_counts, head_widths, seeds, st.data())
def test_nothing_comes_from_later_words(tokens, num_heads, width, seed, data):
    _, matrices = torch_attention(num_heads * width, num_heads, seed)
    x = np.random.default_rng(seed).standard_normal((tokens, num_heads * width))
    place = data.draw(st.integers(1, tokens - 1))
    changed = x.copy()
    changed[place:] += 5
    causal = np.tri(tokens, dtype=bool)
    before, after = (multi_head_attention(a, a, a, *matrices, num_heads, causal)[0] for a in (x, changed))
    assert np.array_equal(before[:place], after[:place])
    assert not np.isclose(before[place:], after[place:]).all(axis=-1).any()


@pytest.mark.parametrize("head", range(3))
def test_a_mask_may_bind_one_head_alone(head):
    _, matrices = torch_attention(6, 3, seed=0)
    x = np.random.default_rng(0).standard_normal((4, 6))
    mask = np.ones((3, 1, 4), dtype=bool)
    mask[head, :, 2] = False
    _, free = multi_head_attention(x, x, x, *matrices, 3)
    _, bound = multi_head_attention(x, x, x, *matrices, 3, mask)
    assert (bound[head, :, 2] == 0).all()
    others = np.arange(3) != head
    assert np.array_equal(bound[others], free[others])


@pytest.mark.parametrize("leading", [(0,), (2, 0)])
def test_no_sequences_at_all_give_no_outputs(leading):
    nothing = np.zeros((*leading, 3, 4))
    assert_same(merge_heads(split_heads(nothing, 2)), nothing)
    output, weights = multi_head_attention(nothing, nothing, nothing, *[np.eye(4)] * 4, 2)
    assert_same(output, nothing)
    assert_same(weights, np.zeros((*leading, 2, 3, 3)))


def test_whole_numbers_are_taken_and_left_alone():
    x, matrices = np.arange(12).reshape(3, 4) % 5 - 2, [np.arange(k, k + 16).reshape(4, 4) % 3 - 1 for k in range(4)]
    mask = np.tri(3, dtype=bool)
    untouched = [a.copy() for a in (x, *matrices, mask)]
    expected = multi_head_attention(*[x.astype(float)] * 3, *(w.astype(float) for w in matrices), 2, mask)
    lists = [x.tolist()] * 3 + [w.tolist() for w in matrices]
    for arguments in ([x, x, x, *matrices], lists):
        for ours, reference in zip(multi_head_attention(*arguments, 2, mask), expected, strict=True):
            assert np.array_equal(ours, reference)
    split_heads(x, 2)[:] = merge_heads(x[None])[:] = 0
    for a, before in zip((x, *matrices, mask), untouched, strict=True):
        assert np.array_equal(a, before)


@pytest.mark.parametrize("name", ["w_q", "w_k", "w_v", "w_o"])
@pytest.mark.parametrize(
    ("matrix", "error", "says"),
    [
        (np.ones((4, 2)), ValueError, r"must have shape \((\d), \1\), not \(4, 2\)$"),
        (np.ones(4), ValueError, r"must have shape \((\d), \1\), not \(4,\)$"),
        (np.ones((4, 4, 1)), ValueError, r"must have shape \((\d), \1\), not \(4, 4, 1\)$"),
        (np.full((4, 4), np.nan), ValueError, "holds NaN"),
        (np.full((4, 4), np.inf), ValueError, "holds an infinite entry$"),
        ([["a"] * 4] * 4, TypeError, "must hold real numbers"),
        ([[1], [1, 2]], TypeError, "is ragged"),
    ],
)
def test_a_matrix_that_does_not_fit_is_named(name, matrix, error, says):
    matrices = dict.fromkeys(["w_q", "w_k", "w_v", "w_o"], np.eye(4)) | {name: matrix}
    with pytest.raises(error, match=rf"^{name} {says}"):
        multi_head_attention(*[np.ones((3, 4))] * 3, **matrices, num_heads=2)


@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize(
    ("array", "error", "says"),
    [
        (np.ones((3, 5)), ValueError, r"needs shape \(..., tokens, 4\), not \(3, 5\)$"),
        (np.ones(4), ValueError, r"needs shape \(..., tokens, 4\), not \(4,\)$"),
        (1.0, ValueError, r"needs shape \(..., tokens, 4\), not \(\)$"),
        (np.full((3, 4), np.nan), ValueError, "holds NaN"),
        ([[None] * 4] * 3, TypeError, "must hold real numbers"),
        ([[1], [1, 2]], TypeError, "is ragged"),
    ],
)
def test_an_input_that_does_not_fit_is_named(name, array, error, says):
    inputs = dict.fromkeys(["query", "key", "value"], np.ones((3, 4))) | {name: array}
    with pytest.raises(error, match=rf"^{name} {says}"):
        multi_head_attention(**inputs, **dict.fromkeys(["w_q", "w_k", "w_v", "w_o"], np.eye(4)), num_heads=2)


def attend(num_heads=2, mask=None, shapes=((3, 4), (5, 4), (5, 4))):
    return multi_head_attention(*(np.ones(shape) for shape in shapes), *[np.eye(4)] * 4, num_heads, mask)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: attend(num_heads=3), ValueError, r"\(3, 4\) cannot be split into 3 heads$"),
        (lambda: attend(num_heads=0), ValueError, r"\(3, 4\) cannot be split into 0 heads$"),
        (lambda: attend(num_heads=-2), ValueError, r"\(3, 4\) cannot be split into -2 heads$"),
        (lambda: attend(shapes=[(3, 4), (5, 4), (6, 4)]), ValueError, "equally many rows"),
        (
            lambda: attend(shapes=[(2, 3, 4), (3, 5, 4), (5, 4)]),
            ValueError,
            r"do not broadcast: queries have shape \(2, 2, 3, 2\), keys \(3, 2, 5, 2\)$",
        ),
        (lambda: attend(mask=np.ones((3, 5))), TypeError, "mask must be boolean"),
        (lambda: attend(mask=np.ones((5, 3), bool)), ValueError, r"\(5, 3\) does not broadcast to .* \(2, 3, 5\)$"),
        (lambda: attend(mask=np.ones((3, 3, 5), bool)), ValueError, "does not broadcast"),
        (lambda: attend(mask=np.arange(5) > 4), ValueError, "nothing to attend to"),
        (lambda: split_heads(np.ones((3, 5)), 2), ValueError, r"^x of shape \(3, 5\) cannot be split into 2 heads$"),
        (lambda: split_heads(np.ones(4), 2), ValueError, r"^x of shape \(4,\) cannot be split into 2 heads$"),
        (lambda: split_heads([["a", "b"]], 2), TypeError, "^x must hold real numbers"),
        (
            lambda: merge_heads(np.ones((3, 4))),
            ValueError,
            r"^heads need the axes \(heads, tokens, width\), not \(3, 4\)$",
        ),
        (lambda: merge_heads([[[np.nan]]]), ValueError, "^heads holds NaN"),
    ],
)
def test_bad_input_is_named(call, error, says):
    with pytest.raises(error, match=says):
        call()
