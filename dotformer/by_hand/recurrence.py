"""Tangled from chapters/01_why_attention.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import numpy as np
from jaxtyping import Float

from dotformer.support.shapes import shapes


@shapes
def rnn_cell(
    x: Float[np.ndarray, "*batch D"],
    hidden: Float[np.ndarray, "*batch H"],
    w_x: Float[np.ndarray, "D H"],
    w_h: Float[np.ndarray, "H H"],
    b_x: Float[np.ndarray, " H"],
    b_h: Float[np.ndarray, " H"],
) -> Float[np.ndarray, "*batch H"]:
    """One step of a plain recurrent network: from word and state to the new state.

    Equal to `torch.nn.RNNCell` with its weights transposed. After Elman (1990).

    Defined in chapter 1, "Two cells".
    """
    return np.tanh(x @ w_x + b_x + hidden @ w_h + b_h)


@shapes
def sigmoid(z: Float[np.ndarray, "*batch H"]) -> Float[np.ndarray, "*batch H"]:
    """1 / (1 + e^-z) for every entry of z: between 0 and 1.

    Defined in chapter 1, "Two cells".
    """
    return np.exp(-np.logaddexp(0, -z))  # e^(-ln(1 + e^-z)): no overflow


@shapes
def lstm_cell(
    x: Float[np.ndarray, "*batch D"],
    hidden: Float[np.ndarray, "*batch H"],
    cell: Float[np.ndarray, "*batch H"],
    w_x: Float[np.ndarray, "D 4*H"],
    w_h: Float[np.ndarray, "H 4*H"],
    b_x: Float[np.ndarray, " 4*H"],
    b_h: Float[np.ndarray, " 4*H"],
) -> tuple[Float[np.ndarray, "*batch H"], Float[np.ndarray, "*batch H"]]:
    """One step of an LSTM: the new hidden state h and the new cell state c.

    Equal to `torch.nn.LSTMCell` with its weights transposed. After Hochreiter and
    Schmidhuber (1997), with the forget gate of Gers and others (2000).

    Defined in chapter 1, "Two cells".
    """
    gates = x @ w_x + b_x + hidden @ w_h + b_h
    i, f, g, o = np.split(gates, 4, axis=-1)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell
