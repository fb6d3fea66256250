"""by_hand.positions beside the formula as PyTorch tutorials write it, in float64."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dotformer.by_hand.positions import paces, shift_matrix, sinusoidal_encoding, sinusoidal_positions
from tests.reference.strategies import assert_same, reals

widths = st.integers(1, 8).map(lambda pairs: 2 * pairs)
shifts = st.floats(-100, 100, allow_subnormal=False)
places = hnp.array_shapes(min_dims=0, max_dims=3, max_side=4).flatmap(lambda shape: reals(shape, 1e3))


def torch_paces(d_model):
    """The paces, by way of a logarithm."""
    return torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))


def torch_encoding(positions, d_model):
    """Sines into the even columns, cosines into the odd ones."""
    angles = torch.as_tensor(positions, dtype=torch.float64).unsqueeze(-1) * torch_paces(d_model)
    encoding = torch.zeros(*angles.shape[:-1], d_model, dtype=torch.float64)
    encoding[..., 0::2], encoding[..., 1::2] = torch.sin(angles), torch.cos(angles)
    return encoding


@given(st.integers(1, 300).map(lambda pairs: 2 * pairs))
def test_paces_are_torch_paces(d_model):
    assert_same(paces(d_model), torch_paces(d_model), scale=0)


def test_paces_of_two_pairs():
    assert_same(paces(4), [1, 0.01], scale=0)


@given(places, widths)
def test_encoding_is_torch_encoding(positions, d_model):
    ours = sinusoidal_encoding(positions, d_model)
    assert_same(ours, torch_encoding(positions, d_model), scale=1 + np.abs(positions).max())


@given(st.integers(1, 200), widths)
def test_table_is_torch_table(length, d_model):
    assert_same(sinusoidal_positions(length, d_model), torch_encoding(np.arange(length), d_model), scale=length)


def test_table_begins_at_place_0():
    first = [0, 1, 0, 1]
    second = [math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)]
    assert_same(sinusoidal_positions(2, 4), [first, second], scale=0)


@given(st.integers(-500, 500), widths)
def test_one_place_at_a_time_is_all_at_once(place, d_model):
    assert np.array_equal(sinusoidal_encoding(place, d_model), sinusoidal_encoding([3, place], d_model)[1])


@given(places, shifts, widths)
def test_shift_matrix_moves_any_place(positions, shift, d_model):
    moved = sinusoidal_encoding(positions, d_model) @ shift_matrix(shift, d_model)
    reference = torch_encoding(positions + shift, d_model)
    assert_same(moved, reference, scale=1 + np.abs(positions).max() + abs(shift))


@given(shifts, widths)
def test_shift_matrix_is_an_exponential(shift, d_model):
    """SciPy's, since PyTorch's matrix_exp is right to ten digits only."""
    turns = [[[0, -pace], [pace, 0]] for pace in torch_paces(d_model).tolist()]
    reference = scipy.linalg.expm(shift * scipy.linalg.block_diag(*turns))
    assert_same(shift_matrix(shift, d_model), reference, scale=1 + abs(shift))


@given(shifts, widths)
def test_shift_matrix_is_orthogonal(shift, d_model):
    rotation = shift_matrix(shift, d_model)
    assert_same(rotation @ rotation.T, np.eye(d_model))
    assert_same(rotation.T, shift_matrix(-shift, d_model))


@given(shifts, shifts, widths)
def test_two_shifts_are_their_sum(first, second, d_model):
    in_a_row = shift_matrix(first, d_model) @ shift_matrix(second, d_model)
    assert_same(in_a_row, shift_matrix(first + second, d_model), scale=1 + abs(first) + abs(second))
    assert_same(shift_matrix(0, d_model), np.eye(d_model))


@given(st.integers(1, 5).flatmap(lambda count: reals(count, 100)), shifts, widths)
def test_dot_products_depend_on_the_distance_only(positions, shift, d_model):
    here, there = (sinusoidal_encoding(positions + k, d_model) for k in (0, shift))
    distances = torch.from_numpy(positions[:, None] - positions)
    reference = torch.cos(distances[..., None] * torch_paces(d_model)).sum(dim=-1)
    for table in (here, there):
        assert_same(table @ table.T, reference, scale=100 * d_model)


def test_whole_numbers_are_taken_and_left_alone():
    positions = np.array([[0, 3], [-2, 5]])
    assert np.array_equal(sinusoidal_encoding(positions, 4), sinusoidal_encoding(positions.astype(float), 4))
    assert np.array_equal(sinusoidal_encoding(positions.tolist(), 4), sinusoidal_encoding(positions, 4))
    assert positions.tolist() == [[0, 3], [-2, 5]]
    fractions = np.array([0.5, -1.5])
    sinusoidal_encoding(fractions, 4)
    assert fractions.tolist() == [0.5, -1.5]


@pytest.mark.parametrize("d_model", [0, 1, 3, 7])
@pytest.mark.parametrize(
    "call",
    [
        paces,
        lambda d_model: sinusoidal_encoding([0, 1], d_model),
        lambda d_model: sinusoidal_positions(3, d_model),
        lambda d_model: shift_matrix(1, d_model),
    ],
)
def test_an_odd_width_is_named(call, d_model):
    with pytest.raises(ValueError, match=r"^d_model must be even and at least 2, but it is \d$"):
        call(d_model)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: paces(-2), ValueError, "^d_model must be even and at least 2, but it is -2$"),
        (lambda: sinusoidal_positions(0, 4), ValueError, "^length must be a whole number from 1, but it is 0$"),
        (lambda: sinusoidal_positions(-3, 4), ValueError, "^length must be a whole number from 1, but it is -3$"),
        (lambda: sinusoidal_positions(2.5, 4), ValueError, r"^length must be a whole number from 1, but it is 2\.5$"),
        (lambda: sinusoidal_encoding(["first"], 4), TypeError, "^positions must hold real numbers"),
        (lambda: sinusoidal_encoding([[1], [1, 2]], 4), TypeError, "^positions is ragged"),
        (lambda: sinusoidal_encoding([np.nan], 4), ValueError, "^positions holds NaN"),
        (lambda: sinusoidal_encoding([np.inf], 4), ValueError, "^positions holds an infinite entry$"),
        (lambda: shift_matrix([1, 2], 4), ValueError, r"^shift must be one number, but its shape is \(2,\)$"),
        (lambda: shift_matrix("one", 4), TypeError, "^shift must hold real numbers"),
        (lambda: shift_matrix(np.nan, 4), ValueError, "^shift holds NaN"),
        (lambda: shift_matrix(-np.inf, 4), ValueError, "^shift holds an infinite entry$"),
    ],
)
def test_bad_input_is_named(call, error, says):
    with pytest.raises(error, match=says):
        call()
