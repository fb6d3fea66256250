"""by_hand.attention beside PyTorch's scaled_dot_product_attention, in float64."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dotformer.by_hand.attention import checked_mask, scaled_dot_product_attention, self_attention
from tests.reference.strategies import assert_same, attention_inputs, masks, reals, sizes


@given(attention_inputs())
def test_output_is_torch_attention(inputs):
    query, key, value, mask = (None if a is None else torch.from_numpy(a) for a in inputs)
    if mask is not None:
        mask = torch.atleast_2d(mask)  # PyTorch takes no mask with a single axis
    reference = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    assert_same(scaled_dot_product_attention(*inputs)[0], reference, scale=3)


@given(attention_inputs())
def test_weights_are_a_softmax_of_scaled_scores(inputs):
    query, key, _, mask = (None if a is None else torch.from_numpy(a) for a in inputs)
    scores = torch.einsum("...td,...sd->...ts", query, key) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    weights = scaled_dot_product_attention(*inputs)[1]
    assert_same(weights, torch.softmax(scores, dim=-1))
    assert_same(weights.sum(axis=-1), np.ones(weights.shape[:-1]))


@given(attention_inputs())
def test_a_forbidden_value_never_reaches_the_output(inputs):
    query, key, value, mask = inputs
    if mask is None or mask.ndim != 1:
        mask = np.arange(key.shape[-2]) == 0
    changed = np.where(mask[:, None], value, value + 100)
    before, after = (scaled_dot_product_attention(query, key, v, mask)[0] for v in (value, changed))
    assert np.array_equal(before, after)


@given(st.data(), sizes, sizes, sizes, sizes, st.booleans())
def test_self_attention_projects_then_attends(data, tokens, width, d_k, d_v, masked):
    leading = data.draw(hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))
    shapes = [(*leading, tokens, width), (width, d_k), (width, d_k), (width, d_v)]
    x, w_q, w_k, w_v = (data.draw(reals(shape)) for shape in shapes)
    mask = np.tri(tokens, dtype=bool) if masked else None
    query, key, value = (torch.from_numpy(x) @ torch.from_numpy(w) for w in (w_q, w_k, w_v))
    reference = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=None if mask is None else torch.from_numpy(mask)
    )
    ours, weights = self_attention(x, w_q, w_k, w_v, mask)
    largest = float((query.abs() @ key.abs().mT).max()) + 1  # exponentials lose digits in proportion to their exponent
    assert_same(ours, reference, scale=largest * (float(value.abs().max()) + 1))
    assert weights.shape == (*leading, tokens, tokens)
    if masked:
        assert (weights[..., ~mask] == 0).all()


@given(st.data(), sizes, sizes)
def test_shuffled_words_give_shuffled_outputs(data, tokens, width):
    x, *matrices = (data.draw(reals(shape)) for shape in [(tokens, width)] + [(width, width)] * 3)
    order = data.draw(st.permutations(range(tokens)))
    shuffled, _ = self_attention(x[order], *matrices)
    assert_same(shuffled, self_attention(x, *matrices)[0][order], scale=1e3)


def test_64_tokens_of_width_48_are_torch():
    rng = np.random.default_rng(0)
    x, value, mask = rng.standard_normal((2, 64, 48)), rng.standard_normal((64, 32)), np.tri(64, dtype=bool)
    matrices = [rng.standard_normal((48, width)) / 7 for width in (40, 40, 32)]
    projected = [torch.from_numpy(x @ w) for w in matrices]
    for ours, inputs in (
        (scaled_dot_product_attention(x[0], x[1], value, mask), map(torch.from_numpy, (x[0], x[1], value))),
        (self_attention(x, *matrices, mask), projected),
    ):
        reference = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=torch.from_numpy(mask))
        assert_same(ours[0], reference)


@pytest.mark.parametrize("largest", [1e4, 1e6, 1e150])
def test_a_forbidden_key_gets_nothing_however_well_it_matches(largest):
    query, key, value = np.full((1, 4), largest), largest * np.array([[1.0] * 4, [-1.0] * 4]), [[1.0], [7.0]]
    output, weights = scaled_dot_product_attention(query, key, value, mask=[False, True])
    assert weights.tolist() == [[0.0, 1.0]]
    assert output.tolist() == [[7.0]]


def test_integers_are_not_cut_off():
    weights = scaled_dot_product_attention([[0, 0]], [[1, 1], [2, 2]], [[1, 2], [2, 3]])
    assert_same(weights[0], [[1.5, 2.5]])


@given(st.data(), hnp.array_shapes(min_dims=0, max_dims=2, max_side=3), sizes, sizes)
def test_a_checked_mask_is_the_mask_broadcast(data, leading, t, s):
    shapes = [(s,), (1, s), (t, s), (*leading, 1, s), (*leading, t, s)]
    mask = data.draw(masks(*shapes).filter(lambda mask: mask is not None))
    reference = torch.from_numpy(mask).expand(*leading, t, s).numpy()
    for given_mask in (mask, mask.tolist()):
        ours = checked_mask(given_mask, (*leading, t, s))
        assert ours.dtype == np.bool_
        assert np.array_equal(ours, reference)


@pytest.mark.parametrize(
    ("mask", "error", "says"),
    [
        ([[True, True], [False, False]], ValueError, r"^mask of shape \(2, 2\) leaves a query nothing to attend to$"),
        ([False, False], ValueError, "^mask of shape .* leaves a query nothing to attend to$"),
        ([[True], [False]], ValueError, "^mask of shape .* leaves a query nothing to attend to$"),
        ([True] * 3, ValueError, r"^mask of shape \(3,\) does not broadcast to scores of \(2, 2\)$"),
        ([[[True, True]]] * 3, ValueError, r"^mask of shape \(3, 1, 2\) does not broadcast to scores of \(2, 2\)$"),
        ([[True], [True, False]], ValueError, "^mask is ragged: its rows have different lengths$"),
        ([[1, 0], [0, 1]], TypeError, "^mask must be boolean, True for may attend, but it is int64$"),
        ([0.0, -np.inf], TypeError, "^mask must be boolean, True for may attend, but it is float64$"),
        ([None, True], TypeError, "^mask must be boolean, True for may attend, but it is object$"),
    ],
)
def test_a_bad_mask_is_named(mask, error, says):
    with pytest.raises(error, match=says):
        checked_mask(mask, (2, 2))


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"key": np.ones((4, 5))}, ValueError, r"\(2, 3\), keys \(4, 5\)"),
        ({"value": np.ones((5, 2))}, ValueError, r"\(4, 3\), \(5, 2\)"),
        ({"value": np.ones(4)}, ValueError, r"\(4, 3\), \(4,\)"),
        ({"query": np.ones(3)}, ValueError, "two axes"),
        (
            {"query": np.ones((2, 2, 3)), "key": np.ones((3, 4, 3))},
            ValueError,
            r"do not broadcast: queries have shape \(2, 2, 3\), keys \(3, 4, 3\)$",
        ),
        (
            {"query": np.ones((2, 2, 3)), "value": np.ones((3, 4, 2))},
            ValueError,
            r"do not broadcast: weights have shape \(2, 2, 4\), values \(3, 4, 2\)$",
        ),
        ({"query": np.full((2, 3), np.nan)}, ValueError, "query holds NaN"),
        ({"value": [["a"]]}, TypeError, "value must hold real numbers"),
        ({"query": np.full((2, 3), 1e200), "key": np.full((4, 3), -1e200)}, ValueError, "overflow"),
        ({"mask": np.ones((2, 4))}, TypeError, "mask must be boolean"),
        ({"mask": np.ones((2, 4), dtype=int)}, TypeError, "mask must be boolean"),
        ({"mask": [[True], [True, False]]}, ValueError, "mask is ragged"),
        ({"mask": np.ones((4, 2), dtype=bool)}, ValueError, r"\(4, 2\) does not broadcast to scores of \(2, 4\)"),
        ({"mask": np.ones((3, 2, 4), dtype=bool)}, ValueError, "does not broadcast"),
        ({"mask": np.array([[True] * 4, [False] * 4])}, ValueError, "nothing to attend to"),
    ],
)
def test_bad_input_is_named(changes, error, says):
    arguments = {"query": np.ones((2, 3)), "key": np.ones((4, 3)), "value": np.ones((4, 2)), **changes}
    with pytest.raises(error, match=says):
        scaled_dot_product_attention(**arguments)


@pytest.mark.parametrize("name", ["w_q", "w_k", "w_v"])
@pytest.mark.parametrize("shape", [(2, 3), (), (3,), (3, 2, 1), (3, 3, 2)])
def test_a_matrix_that_does_not_fit_is_named(name, shape):
    matrices = {"w_q": np.ones((3, 2)), "w_k": np.ones((3, 2)), "w_v": np.ones((3, 2)), name: np.ones(shape)}
    says = f"{name} does not fit x: x has shape (4, 3), {name} {shape}"
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        self_attention(np.ones((4, 3)), **matrices)


def test_matrices_that_fit_each_other_but_have_three_axes_are_refused():
    with pytest.raises(ValueError, match=r"^w_q does not fit x: x has shape \(4, 3\), w_q \(3, 3, 2\)$"):
        self_attention(np.ones((4, 3)), *[np.ones((3, 3, 2))] * 3)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_sequence_without_tokens_is_named(shape):
    with pytest.raises(ValueError, match=f"^w_q does not fit x: x has shape {re.escape(str(shape))}, "):
        self_attention(np.ones(shape), *[np.ones((3, 2))] * 3)


def test_queries_and_keys_of_different_width_are_named():
    with pytest.raises(ValueError, match=r"w_q and w_k differ in shape: \(3, 2\) and \(3, 1\)"):
        self_attention(np.ones((4, 3)), np.ones((3, 2)), np.ones((3, 1)), np.ones((3, 2)))
