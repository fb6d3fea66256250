"""by_hand.recurrence beside PyTorch's recurrent cells, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dotformer.by_hand.recurrence import lstm_cell, rnn_cell, sigmoid
from tests.reference.strategies import assert_same, reals, seeds, sizes

# each cell called as an LSTM is; the others hand `cell` on as it is
STEPS = {
    "RNNCell": lambda x, hidden, cell, *weights: (rnn_cell(x, hidden, *weights), cell),
    "LSTMCell": lstm_cell,
}


def torch_cell(kind, width, size, seed):
    """PyTorch's cell with the weights it draws, and these weights transposed, as ours takes them."""
    torch.manual_seed(seed)
    module = getattr(torch.nn, kind)(width, size, dtype=torch.float64).requires_grad_(False)
    weights = (module.weight_ih, module.weight_hh, module.bias_ih, module.bias_hh)
    return module, tuple(w.numpy().T for w in weights)


def torch_step(module, x, hidden, cell):
    """The new hidden state and cell; PyTorch takes a single leading axis, so all of them are made one."""
    x, h, c = (torch.from_numpy(a.reshape(-1, a.shape[-1])) for a in (x, hidden, cell))
    h, c = module(x, (h, c)) if isinstance(module, torch.nn.LSTMCell) else (module(x, h), c)
    return h.numpy().reshape(hidden.shape), c.numpy().reshape(cell.shape)


@given(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4).flatmap(lambda shape: reals(shape, 800)))
def test_sigmoid_is_torch_sigmoid(z):
    assert_same(sigmoid(z), torch.sigmoid(torch.from_numpy(z)), scale=1e-290)  # small shares are kept


def test_sigmoid_ends_at_0_and_1():
    z = np.array([-np.inf, -1e308, -800, -40, -1, 0, 1, 40, 800, 1e308, np.inf])
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        ours = sigmoid(z)
    assert_same(ours, torch.sigmoid(torch.from_numpy(z)), scale=1e-290)
    assert ours[0] == 0 and ours[5] == 0.5 and ours[-1] == 1


@pytest.mark.parametrize("kind", STEPS)
@given(st.data(), sizes, sizes, seeds)
def test_steps_in_a_row_are_torch(kind, data, width, size, seed):
    module, weights = torch_cell(kind, width, size, seed)
    leading = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=3))
    words = data.draw(reals((3, *leading, width)))
    ours = theirs = tuple(data.draw(reals((2, *leading, size))))
    for word in words:
        ours, theirs = STEPS[kind](word, *ours, *weights), torch_step(module, word, *theirs)
        for state, reference in zip(ours, theirs, strict=True):
            assert_same(state, reference)
