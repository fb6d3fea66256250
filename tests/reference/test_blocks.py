"""by_hand.blocks beside PyTorch's attention with the whole table, in float64."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from dotformer.by_hand.blocks import blockwise_attention
from dotformer.by_hand.similarity import similarity_matrix
from tests.reference.strategies import assert_same, reals, sizes


@st.composite
def cases(draw):
    """Query (T, d_k), key (S, d_k), value (S, d_v), and the size of a block, which may be larger than S."""
    t, s, d_k, d_v = (draw(sizes) for _ in range(4))
    s *= draw(st.integers(1, 4))
    query, key, value = draw(reals((t, d_k), 20)), draw(reals((s, d_k), 20)), draw(reals((s, d_v)))
    return query, key, value, draw(st.integers(1, s + 3))


@given(cases())
def test_it_is_attention_with_the_whole_table(case):
    query, key, value, block = case
    ours = blockwise_attention(query, key, value, block)
    assert_same(ours, F.scaled_dot_product_attention(*(torch.from_numpy(x) for x in (query, key, value))))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
@pytest.mark.parametrize("block", [1, 2, 3, 4])
def test_the_best_key_may_come_at_any_time(order, block):
    key = np.array([[-1e6], [0.0], [1e6], [1e6 - 1]])[list(order)]
    value = np.eye(4)[list(order)]
    near = 1 / (1 + np.exp(-1))
    query = np.array([[1.0], [-1.0]])
    assert_same(blockwise_attention(query, key, value, block), [[0, 0, near, 1 - near], [1, 0, 0, 0]])


def test_without_more_a_block_has_128_keys(monkeypatch):
    seen = []
    counted = lambda queries, keys: (seen.append(len(keys)), similarity_matrix(queries, keys))[1]  # noqa: E731
    monkeypatch.setattr("dotformer.by_hand.blocks.similarity_matrix", counted)
    blockwise_attention(np.ones((2, 1)), np.ones((300, 1)), np.ones((300, 1)))
    assert seen == [128, 128, 44]


def test_there_is_never_a_table():
    query, key, value = np.ones((256, 1)), np.ones((4096, 1)), np.ones((4096, 1))
    tracemalloc.start()
    blockwise_attention(query, key, value, 16)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 256 * 4096 * 8 / 8


ROWS = np.ones((3, 2))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((ROWS, ROWS, ROWS, 0), r"^block must be at least 1, not 0$"),
        ((ROWS, ROWS, ROWS, -1), r"^block must be at least 1, not -1$"),
        ((ROWS, np.ones((0, 2)), np.ones((0, 2))), "nothing to attend to"),
        ((ROWS, np.full((3, 2), np.nan), ROWS), "holds NaN"),
    ],
)
def test_bad_input_is_named(given, says):
    with pytest.raises(ValueError, match=says):
        blockwise_attention(*given)
