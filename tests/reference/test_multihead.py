"""by_hand.multihead beside PyTorch's MultiheadAttention, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

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

    A mask is (1, S) or (T, S) for all heads, or says for each head or each sequence of the batch what it may attend to.
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
    mask = draw(masks((1, s), (t, s), *by_sequence, *by_head))
    return num_heads, query, key, value, mask


# two sequences of different length
@example((2, *[np.eye(4) + np.arange(2)[:, None, None]] * 3, np.tri(4, dtype=bool)[[3, 1], None, None]), 0)
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


@given(st.lists(st.integers(1, 3), max_size=2), sizes, head_counts, head_widths)
def test_heads_are_runs_of_columns(leading, tokens, num_heads, width):
    shape = (*leading, tokens, num_heads * width)
    x = torch.arange(float(np.prod(shape)), dtype=torch.float64).reshape(shape)  # no two entries alike
    heads = split_heads(x.numpy(), num_heads)
    assert_same(heads, torch.stack(x.chunk(num_heads, dim=-1), dim=-3), scale=0)
    assert_same(merge_heads(heads), x, scale=0)


@pytest.mark.parametrize("num_heads", [3, 0, -2])
def test_heads_that_do_not_divide_the_width_are_named(num_heads):
    with pytest.raises(ValueError, match=f"^width 4 does not make {num_heads} heads$"):
        multi_head_attention(*[np.ones((3, 4))] * 3, *[np.eye(4)] * 4, num_heads)
