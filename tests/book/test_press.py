"""The extension that the book is rendered with: what it makes of the signatures in the code."""

from dataclasses import dataclass
from functools import partial
from importlib import import_module

import pytest


def shares(scores: "ArrayLike", *, axis: int = -1) -> "Array":  # noqa: F821
    return scores


@dataclass
class Layer:
    width: int

    def forward(self, x: int, /, *rest: int) -> "Layer":
        return self

    async def later(self): ...

    @classmethod
    def of(cls, width: int = 3): ...

    @staticmethod
    def bound(a, b): ...


@pytest.mark.parametrize(
    ("what", "function", "shown"),
    [
        ("function", shares, ("(scores: 'ArrayLike', *, axis: int=-1)", "'Array'")),
        ("method", Layer.forward, ("(x: int, /, *rest: int)", "'Layer'")),
        ("method", Layer.later, ("()", "")),
        ("method", Layer.of, ("(width: int=3)", "")),
        ("method", Layer.bound, ("(a, b)", "")),
        ("method", Layer.__eq__, None),
        ("method", Layer.__init__, None),
        ("method", object.__eq__, None),
        ("function", len, None),
        ("function", partial(shares, 1), None),
        ("class", Layer, None),
    ],
)
def test_a_signature_is_shown_as_its_author_wrote_it(root, monkeypatch, what, function, shown):
    monkeypatch.syspath_prepend(root / "book/_ext")
    write_signature = import_module("press").write_signature
    assert write_signature(None, what, "name", function, None, None, None) == shown
