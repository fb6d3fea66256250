"""Tangled from chapters/01_why_attention.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dotformer.by_hand.arrays import as_real_array


def sigmoid(z: ArrayLike) -> NDArray[np.float64]:
    """1 / (1 + e^-z) for every entry of z, of any shape: between 0 and 1.

    Defined in chapter 1, "Three cells".
    """
    return np.exp(-np.logaddexp(0, -as_real_array(z, "z", infinite=True)))


def mix(
    x: ArrayLike, hidden: ArrayLike, weights: tuple[ArrayLike, ...], gates: int
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """What word and state send to each gate, as pairs (x W_x + b_x, h W_h + b_h).

    `x` has shape (..., D), `hidden` (..., H), and `weights` are w_x (D, G H), w_h
    (H, G H), b_x and b_h (G H,) for G gates. Raises ValueError when a shape does
    not fit.

    Defined in chapter 1, "Three cells".
    """
    x, hidden = as_real_array(x, "x"), as_real_array(hidden, "hidden")
    if x.ndim == 0 or hidden.ndim == 0 or len(weights) != 4:
        raise ValueError(
            "x and hidden need an axis, and weights are w_x, w_h, b_x, b_h"
        )
    width, size = x.shape[-1], hidden.shape[-1]
    columns = gates * size
    shapes = [(width, columns), (size, columns), (columns,), (columns,)]
    checked = []
    for name, values, shape in zip(
        ["w_x", "w_h", "b_x", "b_h"], weights, shapes, strict=True
    ):
        array = as_real_array(values, name)
        if array.shape != shape:
            raise ValueError(
                f"{name} must have shape {shape} for x {x.shape} and hidden"
                f" {hidden.shape}, not {array.shape}"
            )
        checked.append(array)
    w_x, w_h, b_x, b_h = checked
    with np.errstate(over="ignore", invalid="ignore"):
        from_word, from_state = x @ w_x + b_x, hidden @ w_h + b_h
    if not (np.isfinite(from_word).all() and np.isfinite(from_state).all()):
        raise ValueError("x, hidden or the weights are so large that sums overflow")
    by_gate = (
        np.split(from_word, gates, axis=-1),
        np.split(from_state, gates, axis=-1),
    )
    return list(zip(*by_gate, strict=True))


def rnn_cell(
    x: ArrayLike, hidden: ArrayLike, weights: tuple[ArrayLike, ...]
) -> NDArray[np.float64]:
    """One step of a plain recurrent network: tanh of word and state, mixed.

    Shapes and errors as in `mix`, with one gate; returns the new state (..., H).
    Equal to `torch.nn.RNNCell` with its weights transposed. After Elman (1990).

    Defined in chapter 1, "Three cells".
    """
    ((word, state),) = mix(x, hidden, weights, gates=1)
    return np.tanh(word + state)


def lstm_cell(
    x: ArrayLike, hidden: ArrayLike, cell: ArrayLike, weights: tuple[ArrayLike, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One step of an LSTM: gates decide what to let in, keep and show.

    Shapes and errors as in `mix`, with four gates in the order in, forget, new,
    out; `cell` has the shape of `hidden`. Returns the new hidden state and the new
    cell, both (..., H). Equal to `torch.nn.LSTMCell` with its weights transposed.
    After Hochreiter and Schmidhuber (1997), with the forget gate of Gers and others
    (2000).

    Defined in chapter 1, "Three cells".
    """
    hidden, cell = as_real_array(hidden, "hidden"), as_real_array(cell, "cell")
    if cell.shape != hidden.shape:
        raise ValueError(
            f"cell {cell.shape} and hidden {hidden.shape} differ in shape"
        )
    enter, keep, new, show = (
        word + state for word, state in mix(x, hidden, weights, gates=4)
    )
    cell = sigmoid(keep) * cell + sigmoid(enter) * np.tanh(new)
    return sigmoid(show) * np.tanh(cell), cell


def gru_cell(
    x: ArrayLike, hidden: ArrayLike, weights: tuple[ArrayLike, ...]
) -> NDArray[np.float64]:
    """One step of a GRU: a blend of the old state and a new one.

    Shapes and errors as in `mix`, with three gates in the order reset, keep, new;
    returns the new state (..., H). Equal to `torch.nn.GRUCell` with its weights
    transposed. After Cho and others (2014), with the reset where PyTorch has it.

    Defined in chapter 1, "Three cells".
    """
    reset, keep, new = mix(x, hidden, weights, gates=3)
    candidate = np.tanh(new[0] + sigmoid(sum(reset)) * new[1])
    kept = sigmoid(sum(keep))
    return (1 - kept) * candidate + kept * as_real_array(hidden, "hidden")
