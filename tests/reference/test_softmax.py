"""by_hand.softmax beside PyTorch and SciPy, in float64."""

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dotformer.by_hand.softmax import softmax, softmax_jacobian, weighted_average
from tests.reference.strategies import assert_same, reals, sizes

tables = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5).flatmap(lambda shape: reals(shape, 30))


@given(tables, st.data())
def test_softmax_is_torch_softmax_along_any_axis(scores, data):
    axis = data.draw(st.integers(-scores.ndim, scores.ndim - 1))
    ours = softmax(scores, axis=axis)
    assert_same(ours, torch.softmax(torch.from_numpy(scores), dim=axis), scale=0)
    assert_same(softmax(scores), torch.softmax(torch.from_numpy(scores), dim=-1), scale=0)


@given(tables, st.sampled_from([-1e4, -700.0, 700.0, 1e4]))
def test_softmax_does_not_overflow(scores, shift):
    scores = np.round(scores)  # so that adding the shift does not round
    assert_same(softmax(scores + shift), scipy.special.softmax(scores, axis=-1))


@given(tables, st.data())
def test_minus_infinity_gets_no_weight(scores, data):
    forbidden = data.draw(hnp.arrays(np.bool_, scores.shape))
    assume((~forbidden).any(axis=-1).all())
    scores = np.where(forbidden, -np.inf, scores)
    ours = softmax(scores)
    assert (ours[forbidden] == 0).all()
    assert_same(ours, torch.softmax(torch.from_numpy(scores), dim=-1))


def test_each_row_is_shifted_by_its_own_largest_score():
    rows = np.array([[0, 1], [2000, 2001]])
    assert_same(softmax(rows), scipy.special.softmax([[0.0, 1.0], [0.0, 1.0]], axis=-1))
    assert_same(softmax(np.array([0, -200])), scipy.special.softmax([0.0, -200.0]), scale=0)  # small weights are kept


@given(hnp.array_shapes(min_dims=0, max_dims=3, max_side=4), sizes, sizes, st.data())
def test_weighted_average_is_matmul(queries, s, width, data):
    weights = scipy.special.softmax(data.draw(reals((*queries, s))), axis=-1)
    values = data.draw(reals((s, width)))
    assert_same(weighted_average(weights, values), torch.from_numpy(weights) @ torch.from_numpy(values), scale=3)


def test_weights_computed_in_float32_pass():
    weights = torch.softmax(torch.linspace(-5, 5, 3000).reshape(3, 1000), dim=-1).numpy()
    weighted_average(weights, np.ones((1000, 2)))


@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4).flatmap(reals))
def test_jacobian_is_autograd(scores):
    ours = softmax_jacobian(scipy.special.softmax(scores, axis=-1))
    assert ours.shape == (*scores.shape, scores.shape[-1])
    for place in np.ndindex(scores.shape[:-1]):
        row = torch.from_numpy(scores[place])
        assert_same(ours[place], torch.autograd.functional.jacobian(lambda s: torch.softmax(s, -1), row))


NO_WEIGHTS = "^a row of scores has nothing to attend to, or holds NaN or infinity: its largest is not finite$"


@pytest.mark.parametrize("row", [[-np.inf, -np.inf], [np.inf, 0], [np.nan, 0], [-np.inf, np.nan]])
def test_a_row_without_weights_is_refused(row):
    with pytest.raises(ValueError, match=NO_WEIGHTS):
        softmax(np.array([[0, 1], row]))


@pytest.mark.parametrize("row", [[0.5, 0.4999], [1.5, -0.5], [0.5, np.nan]])
def test_weights_that_are_no_shares_are_refused(row):
    with pytest.raises(ValueError, match=r"^weights must be at least 0 and sum to 1 in each row$"):
        weighted_average(np.array([[0.5, 0.5], row]), np.ones((2, 1)))
