"""by_hand.similarity beside PyTorch, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dotformer.by_hand.similarity import cosine_similarity, dot, normalize, similarity_matrix
from tests.reference.strategies import assert_same, leading_axes, reals, sizes

pairs = sizes.flatmap(lambda width: st.tuples(reals(width, 1e6), reals(width, 1e6)))


@given(pairs)
def test_dot_is_torch_dot(pair):
    a, b = pair
    assert_same(dot(a, b), torch.dot(torch.from_numpy(a), torch.from_numpy(b)), scale=np.abs(a) @ np.abs(b))


def test_dot_of_integers_does_not_wrap_around():
    assert dot(np.array([2**40, 1]), np.array([2**40, 1])) == 2.0**80 + 1


@given(pairs.filter(lambda pair: min(np.abs(x).max() for x in pair) > 1e-3))
def test_cosine_is_torch_cosine(pair):
    a, b = (torch.from_numpy(x) for x in pair)
    assert_same(cosine_similarity(*pair), torch.nn.functional.cosine_similarity(a, b, dim=0, eps=0))


@pytest.mark.parametrize(("size", "other"), [(1e-300, 1e-300), (1e-300, 1e300), (1e300, 1e300)])
def test_cosine_does_not_depend_on_length(size, other):
    a, b = size * np.array([3.0, 4.0]), other * np.array([4.0, 3.0])
    assert cosine_similarity(a, b) == pytest.approx(0.96, rel=1e-12)


@given(sizes.flatmap(lambda width: reals(width, 1e3)).filter(lambda vector: np.abs(vector).max() > 1e-3))
def test_cosine_never_leaves_its_range(vector):
    assert 1 - 1e-12 < cosine_similarity(vector, vector) <= 1
    assert -1 <= cosine_similarity(vector, -vector) < -1 + 1e-12


@given(leading_axes(), sizes, sizes, st.data())
def test_normalize_is_torch_normalize(axes, tokens, width, data):
    vectors = data.draw(reals((*axes[0], tokens, width)).map(lambda x: x + np.where(np.abs(x) < 0.01, 0.5, 0)))
    assert_same(normalize(vectors), torch.nn.functional.normalize(torch.from_numpy(vectors), dim=-1, eps=0))


@given(leading_axes(), sizes, sizes, sizes, st.data())
def test_similarity_matrix_is_einsum(axes, t, s, width, data):
    queries, keys = data.draw(reals((*axes[0], t, width))), data.draw(reals((*axes[1], s, width)))
    reference = torch.einsum("...td,...sd->...ts", torch.from_numpy(queries), torch.from_numpy(keys))
    assert_same(similarity_matrix(queries, keys), reference, scale=9 * width)


@pytest.mark.parametrize("vector", [[0, 0], [np.inf, 1], [1, np.nan], []])
def test_a_vector_without_direction_is_refused(vector):
    with pytest.raises(ValueError, match=r"^a vector of zeros, NaN or infinity has no direction$"):
        normalize(np.array([[1.0] * len(vector), vector]))
