"""The choice of settings: it finds the best, asks for nothing twice, and refuses an axis that is too short."""

import pytest

from benchmarks.search import Settings, climb

AXES = {"rate": [1, 2, 4, 8, 16], "layers": [None, 1, 2, 3, 4]}


def test_the_best_is_found_and_nothing_measured_twice():
    asked: list[tuple[int, int]] = []

    def losses_of(some: list[Settings]) -> list[float]:
        asked.extend((one["rate"], one["layers"]) for one in some)
        return [abs(one["rate"] - 4 * one["layers"]) + 9 * (one["layers"] - 2) ** 2 for one in some]

    assert climb(AXES, {"rate": 2, "layers": 4}, losses_of) == {"rate": 8, "layers": 2}
    assert len(asked) == len(set(asked)) > 8


@pytest.mark.parametrize(("aim", "complaint"), [(16, "rate is 16"), (1, "rate is 1")])
def test_an_axis_that_ends_at_the_best_value_is_refused(aim: int, complaint: str):
    with pytest.raises(ValueError, match=complaint):
        climb(AXES, {"rate": 4, "layers": 1}, lambda some: [abs(one["rate"] - aim) for one in some])


def test_an_axis_may_end_by_nature():
    found = climb(AXES, {"rate": 4, "layers": 3}, lambda some: [abs(one["rate"] - 4) + one["layers"] for one in some])
    assert found == {"rate": 4, "layers": 1}
