"""by_hand as a whole: no function changes the arrays that it is given."""

import inspect
import pkgutil
from importlib import import_module

import numpy as np
import pytest

from dotformer import by_hand


def reals(*shape):
    """Float64 in C order, so that NumPy itself would hand on this very array, not a copy."""
    return np.random.default_rng(0).standard_normal(shape)


def shares(*shape):
    """Weights that sum to 1 only nearly, so that dividing them by their sum changes them."""
    weights = np.exp(reals(*shape))
    return weights / weights.sum(axis=-1, keepdims=True) * (1 + 4e-6)


def of_cell(gates):
    """Weights of a cell with this many gates, for words of width 3 and states of width 2."""
    return reals(3, 2 * gates), reals(2, 2 * gates), reals(2 * gates), reals(2 * gates)


ARGUMENTS = {
    "arrays.as_real_array": (reals(2, 3), "x"),
    "attention.checked_mask": (np.tri(4, dtype=bool), (2, 4, 4)),
    "attention.scaled_dot_product_attention": (reals(4, 3), reals(4, 3), reals(4, 2), np.tri(4, dtype=bool)),
    "attention.self_attention": (reals(4, 3), reals(3, 2), reals(3, 2), reals(3, 5), np.tri(4, dtype=bool)),
    "blocks.blockwise_attention": (reals(4, 3), reals(5, 3), reals(5, 2), 2),
    "gradients.attention_gradients": (*[reals(4, 3)] * 2, reals(4, 2), reals(4, 2), np.tri(4, dtype=bool)),
    "multihead.merge_heads": (reals(2, 4, 3),),
    "multihead.multi_head_attention": (*[reals(4, 6)] * 3, *[reals(6, 6)] * 4, 2, np.tri(4, dtype=bool)),
    "multihead.split_heads": (reals(4, 6), 2),
    "positions.shift_matrix": (reals(), 4),
    "positions.sinusoidal_encoding": (reals(2, 3), 4),
    "recurrence.gru_cell": (reals(5, 3), reals(5, 2), of_cell(3)),
    "recurrence.lstm_cell": (reals(5, 3), reals(5, 2), reals(5, 2), of_cell(4)),
    "recurrence.mix": (reals(5, 3), reals(5, 2), of_cell(2), 2),
    "recurrence.rnn_cell": (reals(5, 3), reals(5, 2), of_cell(1)),
    "recurrence.sigmoid": (reals(2, 3),),
    "similarity.cosine_similarity": (reals(3), reals(3) + 1),
    "similarity.dot": (reals(3), reals(3)),
    "similarity.normalize": (reals(2, 3),),
    "similarity.similarity_matrix": (reals(2, 3), reals(4, 3)),
    "softmax.softmax": (reals(2, 3),),
    "softmax.softmax_jacobian": (shares(2, 3),),
    "softmax.weighted_average": (shares(2, 3), reals(3, 4)),
}
WITHOUT_ARRAYS = {"positions.paces", "positions.sinusoidal_positions"}


def arrays(arguments):
    """The arrays among arguments, and in the tuples among them."""
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            yield argument
        elif isinstance(argument, tuple):
            yield from arrays(argument)


def test_every_function_has_its_arguments_here():
    modules = [import_module(f"{by_hand.__name__}.{found.name}") for found in pkgutil.iter_modules(by_hand.__path__)]
    functions = {function for module in modules for _, function in inspect.getmembers(module, inspect.isfunction)}
    exported = {
        f"{function.__module__.removeprefix(by_hand.__name__ + '.')}.{function.__name__}"
        for function in functions
        if not function.__name__.startswith("_")
    }
    assert exported == ARGUMENTS.keys() | WITHOUT_ARRAYS


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_left_alone(name):
    module, function = name.split(".")
    given = list(arrays(ARGUMENTS[name]))
    before = [array.tobytes() for array in given]
    getattr(import_module(f"{by_hand.__name__}.{module}"), function)(*ARGUMENTS[name])
    assert before
    assert [array.tobytes() for array in given] == before
