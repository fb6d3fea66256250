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


@every_kind
def test_64_words_of_width_48_are_torch(kind):
    module, weights = torch_cell(kind, 48, 40, seed=0)
    words, *state = (np.random.default_rng(0).standard_normal((64, width)) for width in (48, 40, 40))
    for ours, reference in zip(STEPS[kind](words, *state, weights), torch_step(module, words, *state), strict=True):
        assert_same(ours, reference)


@every_kind
@pytest.mark.parametrize("largest", [50.0, 1e4, 1e150, 1e300])
def test_large_numbers_saturate_without_a_warning(kind, largest):
    module, weights = torch_cell(kind, 4, 5, seed=0)
    rng = np.random.default_rng(0)
    x, hidden, cell = (largest * rng.standard_normal((20, n)) for n in (4, 5, 5))
    with np.errstate(**no_overflow):
        ours = STEPS[kind](x, hidden, cell, weights)
    for state, reference in zip(ours, torch_step(module, x, hidden, cell), strict=True):
        assert_same(state, reference)


@every_kind
def test_a_batch_is_its_members_one_by_one(kind):
    _, weights = torch_cell(kind, 3, 4, seed=1)
    rng = np.random.default_rng(1)
    x, hidden, cell = (rng.standard_normal((2, 5, n)) for n in (3, 4, 4))
    together = STEPS[kind](x, hidden, cell, weights)
    for place in np.ndindex(2, 5):
        alone = STEPS[kind](x[place], hidden[place], cell[place], weights)
        for state, of_batch in zip(alone, together, strict=True):
            assert_same(state, of_batch[place])


@every_kind
def test_whole_numbers_in_lists_are_taken_and_left_alone(kind):
    numbers, untouched = whole_numbers(kind), whole_numbers(kind)
    as_floats = {name: numbers[name].astype(float) for name in ("x", "hidden", "cell")}
    as_floats["weights"] = tuple(w.astype(float) for w in numbers["weights"])
    as_lists = {name: numbers[name].tolist() for name in ("x", "hidden", "cell")}
    as_lists["weights"] = [w.tolist() for w in numbers["weights"]]
    expected = STEPS[kind](**as_floats)
    for arguments in (numbers, as_lists):
        for state, reference in zip(STEPS[kind](**arguments), expected, strict=True):
            assert np.array_equal(state, reference)
    for name in ("x", "hidden", "cell"):
        assert np.array_equal(numbers[name], untouched[name])
    for w, before in zip(numbers["weights"], untouched["weights"], strict=True):
        assert np.array_equal(w, before)


@every_kind
@pytest.mark.parametrize("place", range(4))
def test_weights_of_another_shape_are_named(kind, place):
    arguments, columns = whole_numbers(kind), 3 * GATES[kind]
    name = ["w_x", "w_h", "b_x", "b_h"][place]
    shape = [rf"\(2, {columns}\)", rf"\(3, {columns}\)", rf"\({columns},\)", rf"\({columns},\)"][place]
    weights = list(arguments["weights"])
    weights[place] = np.ones((columns, 2))  # w_x in PyTorch's own order
    with pytest.raises(ValueError, match=rf"^{name} must have shape {shape} for .*, not \({columns}, 2\)$"):
        STEPS[kind](**arguments | {"weights": weights})
    weights[place] = np.full((columns, 2), np.inf)
    with pytest.raises(ValueError, match=f"^{name} holds an infinite entry$"):
        STEPS[kind](**arguments | {"weights": weights})


@every_kind
@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"x": 1.0}, ValueError, "^x and hidden need an axis, and weights are w_x, w_h, b_x, b_h$"),
        ({"hidden": 1.0, "cell": 1.0}, ValueError, "^x and hidden need an axis"),
        ({"weights": (np.ones((2, 3)), np.ones((3, 3)), np.ones(3))}, ValueError, "weights are w_x, w_h, b_x, b_h$"),
        ({"x": np.ones(5)}, ValueError, r"^w_x .* \(5, \d+\) for x \(5,\) and hidden \(3,\), not \(2, "),
        ({"hidden": np.ones(4), "cell": np.ones(4)}, ValueError, r"^w_x .* x \(2,\) and hidden \(4,\), not \(2, "),
        ({"x": [1, 2, np.nan]}, ValueError, "^x holds NaN"),
        ({"x": ["one", "two"]}, TypeError, "^x must hold real numbers"),
        ({"x": [1, np.inf]}, ValueError, "^x holds an infinite entry$"),
        ({"hidden": [1j, 0, 0]}, TypeError, "^hidden must hold real numbers"),
        ({"hidden": [np.nan, 0, 0]}, ValueError, "^hidden holds NaN"),
        ({"hidden": [[1], [1, 2]]}, TypeError, "^hidden is ragged"),
    ],
)
def test_bad_input_is_named(kind, changes, error, says):
    with pytest.raises(error, match=says):
        STEPS[kind](**whole_numbers(kind) | changes)


@every_kind
@pytest.mark.parametrize("name", ["x", "hidden"])
def test_sums_that_overflow_are_named(kind, name):
    arguments = whole_numbers(kind)
    arguments[name] = np.full(arguments[name].shape, 1e200)
    arguments["weights"] = tuple(1e200 * w for w in arguments["weights"])
    says = "^x, hidden or the weights are so large that sums overflow$"
    with np.errstate(**no_overflow), pytest.raises(ValueError, match=says):
        STEPS[kind](**arguments)


@pytest.mark.parametrize(
    ("cell", "error", "says"),
    [
        (np.ones(4), ValueError, r"^cell \(4,\) and hidden \(3,\) differ in shape$"),
        (np.ones((1, 3)), ValueError, r"^cell \(1, 3\) and hidden \(3,\) differ in shape$"),
        (["a"] * 3, TypeError, "^cell must hold real numbers"),
        ([[1], [1, 2]], TypeError, "^cell is ragged"),
        ([0, np.nan, 0], ValueError, "^cell holds NaN"),
    ],
)
def test_a_bad_cell_is_named(cell, error, says):
    with pytest.raises(error, match=says):
        lstm_cell(**whole_numbers("LSTMCell") | {"cell": cell})


@pytest.mark.parametrize(("z", "error"), [([np.nan], ValueError), (["a"], TypeError), ([1j], TypeError)])
def test_sigmoid_names_bad_input(z, error):
    with pytest.raises(error, match=r"^z (holds NaN|must hold real numbers)"):
        sigmoid(z)
