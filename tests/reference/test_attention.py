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
    if mask is not None:
        mask = torch.atleast_2d(mask)  # PyTorch takes no mask with a single axis
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
    query, key, value = np.full((1, 4), largest), largest * np.array([[1.0] * 4, [-1.0] * 4]), [[1.0], [7.0]]
    output, weights = scaled_dot_product_attention(query, key, value, mask=[False, True])
    assert weights.tolist() == [[0.0, 1.0]]
    assert output.tolist() == [[7.0]]


def test_integers_are_not_cut_off():
    weights = scaled_dot_product_attention([[0, 0]], [[1, 1], [2, 2]], [[1, 2], [2, 3]])
    assert_same(weights[0], [[1.5, 2.5]])


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"query": np.full((2, 3), 1e200), "key": np.full((4, 3), -1e200)}, ValueError, "overflow"),
        ({"mask": np.ones((4, 2), dtype=bool)}, ValueError, r"\(4, 2\) does not broadcast to scores of \(2, 4\)"),
        ({"mask": [[True] * 4, [False] * 4]}, ValueError, "leaves a query nothing to attend to$"),
        (
            {"mask": np.ones((2, 4), dtype=int)},
            TypeError,
            "^mask must be boolean, True for may attend, but it is int64$",
        ),
    ],
)
def test_bad_input_is_named(changes, error, says):
    arguments = {"query": np.ones((2, 3)), "key": np.ones((4, 3)), "value": np.ones((4, 2)), **changes}
    with pytest.raises(error, match=says):
        scaled_dot_product_attention(**arguments)


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ([(2, 2), (3, 2), (3, 2)], r"^w_q does not fit x: x has shape \(4, 3\), w_q \(2, 2\)$"),
        ([(3, 2), (3, 1), (3, 2)], r"w_q and w_k differ in shape: \(3, 2\) and \(3, 1\)"),
    ],
)
def test_matrices_that_do_not_fit_are_named(shapes, says):
    with pytest.raises(ValueError, match=says):
        self_attention(np.ones((4, 3)), *map(np.ones, shapes))
