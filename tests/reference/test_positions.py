"""by_hand.positions beside the formula as PyTorch tutorials write it, in float64."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dotformer.by_hand.positions import frequencies, rotation_matrix, sinusoidal_encoding, sinusoidal_positions
from tests.reference.strategies import assert_same, reals

widths = st.integers(1, 8).map(lambda pairs: 2 * pairs)
shifts = st.floats(-100, 100, allow_subnormal=False)
any_positions = hnp.array_shapes(min_dims=0, max_dims=3, max_side=4).flatmap(lambda shape: reals(shape, 1e3))


def torch_frequencies(d_model):
    """The frequencies, by way of a logarithm."""
    return torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))


def torch_encoding(positions, d_model):
    """Sines into the even columns, cosines into the odd ones."""
    angles = torch.as_tensor(positions, dtype=torch.float64).unsqueeze(-1) * torch_frequencies(d_model)
    encoding = torch.zeros(*angles.shape[:-1], d_model, dtype=torch.float64)
    encoding[..., 0::2], encoding[..., 1::2] = torch.sin(angles), torch.cos(angles)
    return encoding


@given(st.integers(1, 300).map(lambda pairs: 2 * pairs))
def test_frequencies_are_torch_frequencies(d_model):
    assert_same(frequencies(d_model), torch_frequencies(d_model), scale=0)


@given(any_positions, widths)
def test_encoding_is_torch_encoding(positions, d_model):
    ours = sinusoidal_encoding(positions, d_model)
    assert_same(ours, torch_encoding(positions, d_model), scale=1 + np.abs(positions).max())


@given(st.integers(1, 200), widths)
def test_table_is_torch_table(length, d_model):
    assert_same(sinusoidal_positions(length, d_model), torch_encoding(np.arange(length), d_model), scale=length)


@given(any_positions, shifts, widths)
def test_rotation_matrix_moves_any_position(positions, shift, d_model):
    moved = sinusoidal_encoding(positions, d_model) @ rotation_matrix(shift, d_model)
    reference = torch_encoding(positions + shift, d_model)
    assert_same(moved, reference, scale=1 + np.abs(positions).max() + abs(shift))


@given(st.integers(-99, 99), widths)
def test_a_position_is_a_number_or_an_array_without_axes(position, d_model):
    reference = torch_encoding(position, d_model)
    for one in (position, float(position), np.array(position)):
        assert_same(sinusoidal_encoding(one, d_model), reference, scale=1 + abs(position))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: frequencies(3), "^d_model must be even and positive, not 3$"),
        (lambda: rotation_matrix(1, 0), "^d_model must be even and positive, not 0$"),
        (lambda: sinusoidal_positions(0, 4), "^length must be at least 1, not 0$"),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()
