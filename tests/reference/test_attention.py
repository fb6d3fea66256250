"""by_hand.attention beside PyTorch's scaled_dot_product_attention, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.nn import functional as F

from dotformer.by_hand.attention import scaled_dot_product_attention, self_attention
from tests.reference.strategies import assert_same, attention_inputs, reals, sizes


@given(attention_inputs())
def test_output_is_torch_attention(inputs):
    query, key, value, mask = (None if a is None else torch.from_numpy(a) for a in inputs)
    output, weights = scaled_dot_product_attention(*inputs)
    assert_same(output, F.scaled_dot_product_attention(query, key, value, attn_mask=mask), scale=3)
    identity = torch.eye(key.shape[-2], dtype=torch.float64)  # as values, it shows the weights
    assert_same(weights, F.scaled_dot_product_attention(query, key, identity, attn_mask=mask))


@given(st.data(), sizes, sizes, sizes, sizes, st.booleans())
def test_self_attention_projects_then_attends(data, tokens, width, d_k, d_v, masked):
    leading = data.draw(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))
    shapes = [(*leading, tokens, width), (width, d_k), (width, d_k), (width, d_v)]
    x, w_q, w_k, w_v = (data.draw(reals(shape)) for shape in shapes)
    mask = np.tri(tokens, dtype=bool) if masked else None
    query, key, value = (torch.from_numpy(x) @ torch.from_numpy(w) for w in (w_q, w_k, w_v))
    reference = F.scaled_dot_product_attention(
        query, key, value, attn_mask=None if mask is None else torch.from_numpy(mask)
    )
    ours, weights = self_attention(x, w_q, w_k, w_v, mask)
    largest = float((query.abs() @ key.abs().mT).max()) + 1  # exponentials lose digits in proportion to their exponent
    assert_same(ours, reference, scale=largest * (float(value.abs().max()) + 1))
    assert weights.shape == (*leading, tokens, tokens)
    if masked:
        assert (weights[..., ~mask] == 0).all()


@pytest.mark.parametrize("largest", [1e6, 1e150])
def test_a_forbidden_key_gets_nothing_however_well_it_matches(largest):
    query, key = np.full((1, 4), largest), largest * np.array([[1.0] * 4, [-1.0] * 4])
    output, weights = scaled_dot_product_attention(query, key, np.array([[1], [7]]), np.array([[False, True]]))
    assert weights.tolist() == [[0.0, 1.0]]
    assert output.tolist() == [[7.0]]


@pytest.mark.parametrize(
    "changes",
    [
        {"query": np.full((2, 3), 1e200), "key": np.full((4, 3), 1e200)},
        {"query": np.full((2, 3), 1e200), "key": np.full((4, 3), -1e200)},
        {"key": np.array([[1, np.nan, 1]] * 4)},
        {"key": np.ones((0, 3)), "value": np.ones((0, 2))},
        {"mask": np.array([[True] * 4, [False] * 4])},
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_a_row_without_weights_is_refused(changes):
    arguments = {"query": np.ones((2, 3)), "key": np.ones((4, 3)), "value": np.ones((4, 2)), **changes}
    with pytest.raises(ValueError, match=r"nothing to attend to, or holds NaN or infinity|zero-size array"):
        scaled_dot_product_attention(**arguments)
