"""The gradients of attention by hand, against PyTorch's autograd."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from dotformer.by_hand.gradients import attention_gradients

from .strategies import assert_same, masks, reals, sizes


@st.composite
def inputs(draw):
    """Query, key and value with the same leading axes, the gradient of the output, and a mask or None."""
    t, s, d_k, d_v = (draw(sizes) for _ in range(4))
    leading = draw(st.sampled_from([(), (2,), (2, 3)]))
    shapes = [(t, d_k), (s, d_k), (s, d_v), (t, d_v)]
    arrays = [draw(reals((*leading, *shape))) for shape in shapes]
    return *arrays, draw(masks((1, s), (t, s), (*leading, t, s)))


@given(inputs())
def test_gradients_are_those_of_autograd(given_inputs):
    *arrays, d_output, mask = given_inputs
    leaves = [torch.tensor(array, requires_grad=True) for array in arrays]
    allowed = None if mask is None else torch.tensor(mask)
    F.scaled_dot_product_attention(*leaves, attn_mask=allowed).backward(torch.tensor(d_output))
    for ours, leaf in zip(attention_gradients(*arrays, d_output, mask), leaves, strict=True):
        assert_same(ours, leaf.grad, scale=100)
