"""by_hand.arrays: what the doorkeeper lets in, and how it words a refusal."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra import numpy as hnp

from dotformer.by_hand.arrays import as_real_array
from tests.reference.strategies import assert_same, reals


@given(hnp.array_shapes(min_dims=0, max_dims=4, max_side=3).flatmap(lambda shape: reals(shape, 1e300)))
def test_reals_come_through_bit_by_bit(values):
    ours = as_real_array(values, "x")
    assert ours.dtype == np.float64
    assert np.array_equal(ours, values)
    assert not np.shares_memory(ours, values)  # so that no function changes its input


@pytest.mark.parametrize("dtype", ["?", "B", "q", "e", "g", ">f8"])
def test_every_kind_of_real_number_is_taken(dtype):
    values = np.array([[0, 1, 100], [1, 0, 7]]).astype(dtype)
    assert_same(as_real_array(values, "x"), [[float(entry) for entry in row] for row in values.tolist()])


def test_lists_scalars_tensors_and_nothing_are_taken():
    assert_same(as_real_array([[1, 2.5], (True, -3)], "x"), [[1.0, 2.5], [1.0, -3.0]])
    assert_same(as_real_array(7, "x"), 7.0)
    assert_same(as_real_array([], "x"), np.zeros(0))
    assert_same(as_real_array(torch.tensor([0.1, 0.2], dtype=torch.float64), "x"), [0.1, 0.2])


def test_infinity_passes_where_it_is_allowed():
    assert as_real_array([np.inf, -np.inf, 1], "x", infinite=True).tolist() == [np.inf, -np.inf, 1]


@pytest.mark.parametrize(
    ("values", "error", "says"),
    [
        ([[1], [1, 2]], TypeError, "^x is ragged: its rows have different lengths$"),
        (["a", "b"], TypeError, "^x must hold real numbers, but its dtype is <U1$"),
        ([[1, np.nan]], ValueError, "^x holds NaN: nothing can be computed from a missing number$"),
        ([[1, -np.inf]], ValueError, "^x holds an infinite entry$"),
    ],
)
def test_bad_input_is_named(values, error, says):
    with pytest.raises(error, match=says):
        as_real_array(values, "x")


def test_nan_does_not_pass_for_infinity():
    with pytest.raises(ValueError, match="hidden holds NaN"):
        as_real_array([np.inf, np.nan], "hidden", infinite=True)
