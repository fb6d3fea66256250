"""by_hand.recurrence beside PyTorch's recurrent cells, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dotformer.by_hand.recurrence import gru_cell, lstm_cell, rnn_cell, sigmoid
from tests.reference.strategies import assert_same, reals, seeds, sizes

# each cell called as an LSTM is; the others hand `cell` on as it is
STEPS = {
    "RNNCell": lambda x, hidden, cell, weights: (rnn_cell(x, hidden, weights), cell),
    "GRUCell": lambda x, hidden, cell, weights: (gru_cell(x, hidden, weights), cell),
    "LSTMCell": lstm_cell,
}
GATES = {"RNNCell": 1, "GRUCell": 3, "LSTMCell": 4}
every_kind = pytest.mark.parametrize("kind", STEPS)
no_overflow = {"over": "raise", "invalid": "raise", "divide": "raise"}


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


def whole_numbers(kind, width=2, size=3):
    """Arguments of a cell, with weights of whole numbers from -2 to 2."""
    columns = GATES[kind] * size
    shapes = [(width, columns), (size, columns), (columns,), (columns,)]
    weights = tuple(np.arange(np.prod(shape)).reshape(shape) * 7 % 5 - 2 for shape in shapes)
    return {"x": np.array([1, -2]), "hidden": np.array([0, 1, 2]), "cell": np.array([-1, 0, 3]), "weights": weights}


@given(hnp.array_shapes(min_dims=0, max_dims=3, max_side=4).flatmap(lambda shape: reals(shape, 800)))
def test_sigmoid_is_torch_sigmoid(z):
    assert_same(sigmoid(z), torch.sigmoid(torch.from_numpy(z)), scale=1e-290)  # small shares are kept


def test_sigmoid_ends_at_0_and_1():
    z = np.array([-np.inf, -1e308, -800, -40, -1, 0, 1, 40, 800, 1e308, np.inf])
    with np.errstate(**no_overflow):
        ours = sigmoid(z)
    assert_same(ours, torch.sigmoid(torch.from_numpy(z)), scale=1e-290)
    assert ours[0] == 0 and ours[5] == 0.5 and ours[-1] == 1


@every_kind
@given(st.data(), sizes, sizes, seeds)
def test_steps_in_a_row_are_torch(kind, data, width, size, seed):
    module, weights = torch_cell(kind, width, size, seed)
    leading = data.draw(hnp.array_shapes(min_dims=0, max_dims=3, max_side=3))
    words = data.draw(reals((3, *leading, width)))
    ours = theirs = tuple(data.draw(reals((2, *leading, size))))
    for word in words:
        ours, theirs = STEPS[kind](word, *ours, weights), torch_step(module, word, *theirs)
        for state, reference in zip(ours, theirs, strict=True):
            assert_same(state, reference)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"weights": (np.ones((2, 12)), np.ones((3, 12)), np.ones(12))}, "weights are w_x, w_h, b_x, b_h$"),
        ({"x": [1, np.inf]}, "^x holds an infinite entry$"),
        ({"cell": np.ones(4)}, r"^cell \(4,\) and hidden \(3,\) differ in shape$"),
    ],
)
def test_bad_input_is_named(changes, says):
    with pytest.raises(ValueError, match=says):
        lstm_cell(**whole_numbers("LSTMCell") | changes)


@every_kind
def test_sums_that_overflow_are_named(kind):
    arguments = whole_numbers(kind)
    arguments |= {"x": np.full(2, 1e200), "weights": tuple(1e200 * w for w in arguments["weights"])}
    says = "^x, hidden or the weights are so large that sums overflow$"
    with np.errstate(**no_overflow), pytest.raises(ValueError, match=says):
        STEPS[kind](**arguments)
