"""by_hand as a whole: what no function takes, and that none changes the arrays that it is given."""

import inspect
import pkgutil
from importlib import import_module
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import AbstractArray, Bool, Float, Real

from dotformer import by_hand
from tests.reference.strategies import assert_same


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


MASK = np.tri(4, dtype=bool)
ARGUMENTS = {
    "attention.scaled_dot_product_attention": (reals(4, 3), reals(4, 3), reals(4, 2), MASK),
    "attention.self_attention": (reals(4, 3), reals(3, 2), reals(3, 2), reals(3, 5), MASK),
    "blocks.blockwise_attention": (reals(4, 3), reals(5, 3), reals(5, 2), 2),
    "gradients.attention_gradients": (*[reals(4, 3)] * 2, reals(4, 2), reals(4, 2), MASK),
    "multihead.merge_heads": (reals(2, 4, 3),),
    "multihead.multi_head_attention": (*[reals(4, 6)] * 3, *[reals(6, 6)] * 4, 2, MASK),
    "multihead.split_heads": (reals(4, 6), 2),
    "positions.frequencies": (4,),
    "positions.rotation_matrix": (1.5, 4),
    "positions.sinusoidal_encoding": (reals(2, 3), 4),
    "positions.sinusoidal_positions": (3, 4),
    "recurrence.lstm_cell": (reals(5, 3), reals(5, 2), reals(5, 2), *of_cell(4)),
    "recurrence.rnn_cell": (reals(5, 3), reals(5, 2), *of_cell(1)),
    "recurrence.sigmoid": (reals(2, 3),),
    "similarity.cosine_similarity": (reals(3), reals(3) + 1),
    "similarity.dot": (reals(3), reals(3)),
    "similarity.normalize": (reals(2, 3),),
    "similarity.similarity_matrix": (reals(2, 3), reals(4, 3)),
    "softmax.softmax": (reals(2, 3),),
    "softmax.softmax_jacobian": (shares(2, 3),),
    "softmax.weighted_average": (shares(2, 3), reals(3, 4)),
}


def function_of(name):
    module, function = name.split(".")
    return getattr(import_module(f"{by_hand.__name__}.{module}"), function)


def annotations(name):
    """What each argument that is given must be: the parts of `a | b`, without None."""
    parameters = inspect.signature(function_of(name)).parameters.values()
    kinds = [get_args(parameter.annotation) or (parameter.annotation,) for parameter in parameters]
    named = zip(parameters, kinds, ARGUMENTS[name], strict=False)
    return {parameter.name: [kind for kind in kinds if kind is not type(None)] for parameter, kinds, _ in named}


def fixed(kind):
    """The axes of an array that stand for one each, from the last to the first; of another argument, none."""
    axes = kind.dim_str.replace("#", "").split() if issubclass(kind, AbstractArray) else []
    return [axis for axis in reversed(axes) if not axis.startswith(("*", "..."))]


def arrays(name):
    """The arrays among the arguments, by name."""
    given = zip(annotations(name), ARGUMENTS[name], strict=True)
    return {argument: value for argument, value in given if isinstance(value, np.ndarray)}


def test_every_function_has_its_arguments_here():
    modules = [import_module(f"{by_hand.__name__}.{found.name}") for found in pkgutil.iter_modules(by_hand.__path__)]
    exported = {
        f"{module.__name__.removeprefix(by_hand.__name__ + '.')}.{name}"
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
    }
    assert exported == ARGUMENTS.keys()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_are_left_alone(name):
    given = arrays(name).values()
    before = [array.tobytes() for array in given]
    function_of(name)(*ARGUMENTS[name])
    assert [array.tobytes() for array in given] == before


def wrong_values(kind, value):
    """What is no `kind`: other types, other dtypes, and too few axes, made from a value that fits."""
    if not issubclass(kind, AbstractArray):
        return [str(value), np.array([value]), complex(value)] + ([value + 0.5] if kind is int else [])
    dtypes = {Real: [bool, complex, str], Float: [int, bool, complex], Bool: [int, float]}
    (own,) = [dtype for dtype in dtypes if dtype.dtypes == kind.dtypes]
    wrong = [value.astype(dtype) for dtype in dtypes[own]]
    if fixed(kind):
        wrong.append(value.reshape(*value.shape[: len(fixed(kind)) - 1], -1)[..., 0])
    return [*wrong, value.tolist(), torch.from_numpy(value), str(value)]


@pytest.mark.parametrize("name", ARGUMENTS)
@given(data=st.data())
def test_a_wrong_type_or_dtype_and_too_few_axes_are_named(name, data):
    kinds = annotations(name)
    argument = data.draw(st.sampled_from(sorted(kinds)))
    values = dict(zip(kinds, ARGUMENTS[name], strict=True))
    for wrong in wrong_values(kinds[argument][0], values[argument]):
        if not any(isinstance(wrong, kind) for kind in kinds[argument]):
            with pytest.raises(TypeError, match=f"parameter '{argument}'"):
                function_of(name)(**values | {argument: wrong})


def shared_axes(name):
    """Each axis of an array whose size an earlier argument has set already."""
    kinds, seen = {argument: kinds[0] for argument, kinds in annotations(name).items()}, set()
    for argument in arrays(name):
        for place, axis in enumerate(fixed(kinds[argument]), start=1):
            if axis.split("*")[-1] in seen:  # 4*H as well as H
                yield argument, -place
        seen.update(fixed(kinds[argument]))


WITH_SHARED_AXES = [name for name in ARGUMENTS if any(shared_axes(name))]


@pytest.mark.parametrize("name", WITH_SHARED_AXES)
@given(data=st.data())
def test_an_axis_of_another_size_is_named_with_its_array_and_shape(name, data):
    argument, axis = data.draw(st.sampled_from(list(shared_axes(name))))
    values = dict(zip(annotations(name), ARGUMENTS[name], strict=True))
    size = data.draw(st.integers(2, 9).filter(lambda size: size != values[argument].shape[axis]))
    shape = list(values[argument].shape)
    shape[axis] = size
    wrong = np.resize(values[argument], shape)
    with pytest.raises(TypeError) as raised:
        function_of(name)(**values | {argument: wrong})
    assert f"parameter '{argument}'" in str(raised.value)
    assert f"Actual value: {'bool' if wrong.dtype == bool else 'f64'}{str(shape).replace(' ', '')}" in str(raised.value)


def with_leading_axes(name):
    """The first two arrays that share their leading axes, or none."""
    shared = [argument for argument in arrays(name) if annotations(name)[argument][0].dim_str.startswith("*")]
    return shared[:2] if len(shared) > 1 else []


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if with_leading_axes(name)])
def test_leading_axes_that_do_not_fit_are_named(name):
    first, second = with_leading_axes(name)
    values = dict(zip(annotations(name), ARGUMENTS[name], strict=True))
    values |= {first: np.stack([values[first]] * 2), second: np.stack([values[second]] * 3)}
    with pytest.raises(TypeError, match=f"parameter '{second}'"):
        function_of(name)(**values)


def test_hardly_a_function_is_without_shared_axes():
    assert ARGUMENTS.keys() - WITH_SHARED_AXES == {
        *[name for name in ARGUMENTS if name.startswith("positions.")],
        *("multihead.merge_heads", "multihead.split_heads", "recurrence.sigmoid"),
        *("similarity.normalize", "softmax.softmax", "softmax.softmax_jacobian"),
    }


def whole_numbers(name, dtype):
    """The arguments with whole numbers up to 100 where any real ones are taken; rows of weights have a single 1."""
    kinds = annotations(name)
    for (argument, value), [kind, *_] in zip(zip(kinds, ARGUMENTS[name], strict=True), kinds.values(), strict=True):
        if not issubclass(kind, AbstractArray) or kind.dtypes != Real.dtypes:
            yield value
        elif argument == "weights":
            yield np.eye(value.shape[-1], dtype=dtype)[: len(value)]
        else:
            yield (np.abs(value) * 60).clip(1, 100).round().astype(dtype)


@pytest.mark.parametrize("name", [name for name in ARGUMENTS if not name.startswith("recurrence.")])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.float16, np.float32])
def test_whole_numbers_of_any_dtype_are_computed_in_float64(name, dtype):
    ours = function_of(name)(*whole_numbers(name, dtype))
    reference = function_of(name)(*whole_numbers(name, np.float64))
    for array, expected in zip(*(r if isinstance(r, tuple) else (r,) for r in (ours, reference)), strict=True):
        if name in ("multihead.merge_heads", "multihead.split_heads"):  # they move numbers, and compute none
            assert array.dtype == dtype
            array = array.astype(float)
        assert_same(array, expected, scale=0)
