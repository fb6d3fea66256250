"""Random shapes, numbers and masks for the comparisons with the references."""

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dotformer.data.trees import Tree

sizes = st.integers(1, 6)
seeds = st.integers(0, 2**32 - 1)


def reals(shape, largest=3.0):
    """Arrays of float64 of the given shape, entries between -largest and largest."""
    return hnp.arrays(np.float64, shape, elements=st.floats(-largest, largest, allow_subnormal=False))


@st.composite
def leading_axes(draw, count=2):
    """Tuples of leading axes that broadcast with each other, often different from one another."""
    return draw(hnp.mutually_broadcastable_shapes(num_shapes=count, max_dims=2, max_side=3)).input_shapes


@st.composite
def masks(draw, *shapes):
    """None, or a mask of one of the shapes that never leaves a query nothing to attend to."""
    shape = draw(st.sampled_from([None, *shapes]))
    if shape is None:
        return None
    mask = draw(hnp.arrays(np.bool_, shape))
    mask[..., draw(st.integers(0, shape[-1] - 1))] |= ~mask.any(axis=-1)
    return mask


@st.composite
def attention_inputs(draw):
    """Query (..., T, d_k), key and value (..., S, d_k or d_v), and a mask or None, as attention takes them.

    T, S, d_k and d_v are drawn apart from one another. A mask is (1, S), (T, S), (..., 1, S) or (..., T, S).
    """
    t, s, d_k, d_v = (draw(sizes) for _ in range(4))
    of_query, of_key, of_value = draw(leading_axes(count=3))
    query, key = draw(reals((*of_query, t, d_k))), draw(reals((*of_key, s, d_k)))
    value = draw(reals((*of_value, s, d_v)))
    every = np.broadcast_shapes(of_query, of_key)
    return query, key, value, draw(masks((1, s), (t, s), (*every, 1, s), (*every, t, s)))


def assert_same(ours, reference, scale=1.0):
    """Equal in shape and, relative to `scale` or the reference's own size, to 1e-12."""
    ours, reference = np.asarray(ours), np.asarray(reference)
    assert ours.shape == reference.shape
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, reference, rtol=1e-12, atol=1e-12 * scale)


def normals(seed, *shapes):
    """Tensors of float64 of the given shapes, standard normal, drawn with a seed of their own."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def assert_close(ours, reference, tolerance=1e-12):
    """Tensors equal in shape and dtype, and to `tolerance`, absolute or relative."""
    torch.testing.assert_close(ours, reference, rtol=tolerance, atol=tolerance)


def drawn_anew(module, seed):
    """The module in float64, every parameter random: PyTorch starts some at 0 or 1, where a mistake would hide."""
    module = module.double()
    parameters = list(module.parameters())
    for parameter, values in zip(parameters, normals(seed, *(p.shape for p in parameters)), strict=True):
        parameter.data = values / 2
    return module


def torch_mask(mask, shape):
    """A mask that is True for *may attend*, as PyTorch's modules take it: True for *may not*, (B H, T, S)."""
    return None if mask is None else ~mask.expand(shape).reshape(-1, *shape[-2:])


words_with_parts_of_speech = [Tree(label, (word,)) for label in ("NN", "VB", ".") for word in ("a", "bc", "d")]


def constituents(parts):
    """Trees made of parts."""
    return st.builds(Tree, st.sampled_from(["S", "NP", "VP"]), st.lists(parts, min_size=1, max_size=4).map(tuple))


def some_trees(most):
    """Random trees of at most so many words, a constituent each; some have a single part."""
    trees = constituents(st.recursive(st.sampled_from(words_with_parts_of_speech), constituents, max_leaves=most))
    return trees.filter(lambda tree: len(tree.words()) <= most)
