"""The check of shapes: what it refuses, what its error says, and that compiling and exporting do without it."""

import numpy as np
import pytest
import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor, nn

from dotformer.support.shapes import shapes


@shapes
def scores(
    query: Float[Tensor, "*batch T d_k"],
    key: Float[Tensor, "*batch S d_k"],
    mask: Bool[Tensor, "*#batch #T #S"] | None = None,
) -> Float[Tensor, "*batch T S"]:
    """Dot products."""
    product = query @ key.mT
    return product if mask is None else product.where(mask, 0.0)


@shapes
def first(rows: Real[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    """The first row."""
    return rows[0]


QUERY, KEY = torch.randn(2, 5, 8), torch.randn(2, 3, 8)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((QUERY, KEY[..., :7]), ["'key'", "[2,3,7]", "T=5", "d_k=8"]),
        ((QUERY, KEY, torch.ones(5, 4, dtype=torch.bool)), ["'mask'", "bool[5,4]", "S=3"]),
        ((QUERY, KEY, torch.ones(5, 3)), ["'mask'", "f32[5,3]", "Bool"]),
        ((QUERY.numpy(), KEY), ["'query'", "numpy", "Float[Tensor"]),
        ((QUERY.int(), KEY), ["'query'", "i32[2,5,8]"]),
        ((QUERY.tolist(), KEY), ["'query'", "Float[Tensor"]),
    ],
)
def test_an_error_names_the_argument_its_shape_and_the_axes_so_far(arguments, said):
    with pytest.raises(TypeError) as raised:
        scores(*arguments)
    assert [part for part in said if part not in str(raised.value)] == []


def test_a_result_of_another_dtype_is_refused():
    assert first(np.eye(2)).tolist() == [1, 0]
    with pytest.raises(TypeError, match="return"):
        first(np.eye(2, dtype=int))


def test_what_fits_passes_and_broadcasts():
    assert scores(QUERY, KEY, torch.ones(1, 5, 1, dtype=torch.bool)).shape == (2, 5, 3)
    assert scores.__name__ == "scores" and scores.__doc__ == "Dot products."


class Scores(nn.Module):
    @shapes
    def forward(self, query: Float[Tensor, "*batch T d_k"]) -> Float[Tensor, "*batch T T"]:
        return query @ query.mT


class Outer(nn.Module):
    """A model whose checked forward pass hands on what `inner` makes of its input."""

    def __init__(self, inner):
        super().__init__()
        self.scores, self.inner = Scores(), inner

    @shapes
    def forward(self, query: Float[Tensor, "B T d_k"]) -> Tensor:
        return self.scores(self.inner(query))


def test_a_method_is_checked_where_it_is_called_from_outside():
    whole = QUERY.int()
    assert Outer(lambda query: whole)(QUERY).dtype == torch.int32  # not by the model that has been checked itself
    with pytest.raises(TypeError, match="'query'"):
        Scores()(whole)
    with pytest.raises(ZeroDivisionError):
        Outer(lambda query: 1 / 0)(QUERY)
    with pytest.raises(TypeError, match="'query'"):  # an exception leaves nothing behind
        Scores()(whole)


def test_compiled_and_exported_the_check_steps_aside():
    expected = Scores()(QUERY)
    compiled = torch.compile(Scores(), fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(QUERY), expected)
    exported = torch.export.export(Scores(), (QUERY,)).module()
    assert torch.allclose(exported(QUERY), expected)
