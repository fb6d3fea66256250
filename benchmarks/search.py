"""Chooses settings for a model as fairly for one kind as for another: along one axis after the other, widening each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Settings = dict[str, Any]


def climb(
    axes: Mapping[str, Sequence[Any]], start: Settings, losses_of: Callable[[list[Settings]], Sequence[float]]
) -> Settings:
    """The settings whose loss no neighbour on any axis undercuts, found from `start`.

    An axis has all its values in order; `losses_of` measures several settings at once, and is asked for none twice.
    ValueError when the best value of an axis is its first or last: then the axis is too short. (One that ends there by
    nature has None at that end.)
    """
    known: dict[tuple[tuple[str, Any], ...], float] = {}

    def loss(one: Settings) -> float:
        return known[tuple(sorted(one.items()))]

    def better(best: Settings, name: str) -> Settings:
        n = list(axes[name]).index(best[name])
        near = [best | {name: value} for value in axes[name][max(0, n - 1) : n + 2] if value is not None]
        new = [one for one in near if tuple(sorted(one.items())) not in known]
        for one, measured in zip(new, losses_of(new) if new else [], strict=True):
            known[tuple(sorted(one.items()))] = measured
        return min(near, key=loss)

    best, before = dict(start), None
    while best != before:
        before = best
        for name in axes:
            while (step := better(best, name)) != best:
                best = step
    for name, values in axes.items():
        if best[name] in (values[0], values[-1]):
            raise ValueError(f"the best {name} is {best[name]}, where the axis ends: widen it")
    return best
