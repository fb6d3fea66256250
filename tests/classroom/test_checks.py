"""An exercise check says, for each way of being wrong, what is wrong."""

import functools

import numpy as np
import pytest
import torch

from classroom import checks

CASES = [(np.array([[1.0, 2.0], [3.0, 5.0]]),), (np.arange(15.0).reshape(3, 5),)]


def softmax(scores, axis=-1):
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


verdict_on = functools.partial(
    checks.check,
    reference=softmax,
    cases=CASES,
    properties=[checks.finite, checks.non_negative, checks.rows_sum_to_one],
    mistakes={"Is the exponential missing?": lambda scores: scores / scores.sum(axis=-1, keepdims=True)},
)


def forgets_to_return(scores):
    softmax(scores)


def is_a_stub(scores):
    return ...


def is_unwritten(scores):
    raise NotImplementedError("write me")


def fails(scores):
    raise KeyError(object())


def changes_its_input(scores):
    scores -= scores.max(axis=-1, keepdims=True)
    return softmax(scores)


def loses_an_axis(scores):
    return softmax(scores).sum(axis=0)


def returns_a_list(scores):
    return softmax(scores).tolist()


def returns_two(scores):
    return softmax(scores), scores


def divides_by_zero(scores):
    return softmax(scores) * np.array(0.0) / np.array(0.0)


def overflows(scores):
    return softmax(scores) / np.array(0.0)


def runs_over_queries(scores):
    return softmax(scores, axis=0)


def divides_by_everything(scores):
    return np.exp(scores) / np.exp(scores).sum()


def is_not_divided(scores):
    return 2 * softmax(scores)


def goes_below_zero(scores):
    return softmax(scores) - 0.5


def skips_the_exponential(scores):
    return scores / scores.sum(axis=-1, keepdims=True)


def is_too_sharp(scores):
    return softmax(2 * scores)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (forgets_to_return, "your function returned None. Is there a `return`?"),
        (is_a_stub, "your function returned `...`. Is there a `return`?"),
        (is_unwritten, "`is_unwritten` is still to be written (write me)."),
        (fails, "`fails([[1., 2.], [3., 5.]])` raised KeyError: <object object>"),
        (changes_its_input, "your function changed its input: argument 1 was [[1., 2.], [3., 5.]] before the call and"),
        (loses_an_axis, "gave an array of shape (2,), expected an array of shape (2, 2)."),
        (returns_a_list, "gave a list of 2 items, expected an array of shape (2, 2)."),
        (returns_two, "gave 2 values (an array of shape (2, 2), an array of shape (2, 2)), expected an array"),
        (divides_by_zero, "holds NaN. Did an exponential overflow"),
        (overflows, "holds infinity. Did an exponential overflow"),
        (runs_over_queries, "your rows do not sum to 1, but your columns do: did the softmax run over queries?"),
        (divides_by_everything, "but all entries together do: divide each row by its own sum"),
        (is_not_divided, "your row 0 sums to 2, not to 1"),
        (goes_below_zero, "your result has a negative entry (-0.3808 at row 1, column 0)"),
        (skips_the_exponential, "Is the exponential missing?"),
        (is_too_sharp, "`is_too_sharp([[1., 2.], [3., 5.]])`: expected [[0.2689, 0.7311], [0.1192, 0.8808]], got [[0."),
    ],
)
def test_each_mistake_is_named(attempt, message):
    verdict = verdict_on(attempt)
    assert not verdict.passed
    assert verdict.message.startswith("not yet: ")
    assert message in verdict.message
    assert " at 0x" not in verdict.message


def test_a_right_function_passes_and_the_inputs_are_left_alone():
    before = [argument.copy() for (argument,) in CASES]
    verdict = verdict_on(softmax)
    assert verdict.passed
    assert verdict.message == "right: `softmax` gives what it should on all 2 inputs."
    for (argument,), old in zip(CASES, before, strict=True):
        np.testing.assert_array_equal(argument, old)


def test_a_verdict_displays_as_text_and_as_html():
    verdict = checks.Verdict(False, "not yet: `f(a < b)`")
    assert repr(verdict) == "✗ not yet: `f(a < b)`"
    assert "<code>f(a &lt; b)</code>" in verdict._repr_html_()


def test_a_known_mistake_with_a_wrong_shape_names_both():
    verdict = checks.check(
        lambda x: x.sum(axis=0),
        reference=lambda x: x.sum(axis=1),
        cases=[(np.ones((2, 3)),)],
        mistakes={"Did you sum over rows?": lambda x: x.sum(axis=0)},
    )
    assert "gave an array of shape (3,), expected an array of shape (2,). Did you sum over rows?" in verdict.message


@pytest.mark.parametrize(
    ("wanted", "given", "passed"),
    [
        (0.5, np.float64(0.5), True),
        (0.5, np.array(0.5), True),
        (1, 1.0, True),
        (np.nan, float("nan"), True),
        (True, 1, False),
        ((np.ones(2), 3), (np.ones(2), 3.0), True),
        ((np.ones(2), 3), [np.ones(2), 3.0], False),
        (["a", "b"], ["a", "b"], True),
        (["a", "b"], ["a", "c"], False),
        ({"a": np.ones(2)}, {"a": np.ones(2)}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"b": 1}, False),
        (torch.ones(2), torch.ones(2), True),
        (torch.ones(2), torch.zeros(2), False),
        (np.array([True, False]), np.array([1.0, 0.0]), False),
    ],
)
def test_values_are_compared_by_form_and_content(wanted, given, passed):
    verdict = checks.check(lambda _: given, reference=lambda _: wanted, cases=[(0,)])
    assert verdict.passed == passed, verdict


def test_a_large_difference_is_told_by_its_place():
    reference = np.zeros((4, 5))
    given = reference.copy()
    given[2, 3] = 0.25
    reference[0, 0] = given[0, 0] = -np.inf
    verdict = checks.check(lambda _: given, reference=lambda _: reference, cases=[(0,)])
    assert "furthest off at row 2, column 3: expected 0, got 0.25" in verdict.message


def test_a_random_generator_may_be_used_up():
    cases = [(np.random.default_rng(0), 3)]
    verdict = checks.check(lambda rng, n: rng.normal(size=n), reference=lambda rng, n: rng.normal(size=n), cases=cases)
    assert verdict.passed, verdict


def test_a_tiny_difference_is_shown_with_enough_digits():
    verdict = checks.check(lambda _: 1 / 3 + 1e-7, reference=lambda _: 1 / 3, cases=[(0,)])
    assert "expected 0.33333333, got 0.33333343" in verdict.message


def test_the_message_is_the_same_on_every_run():
    def attempt(callback, values):
        return 0.0

    case = (softmax, np.ones(20))
    messages = {checks.check(attempt, reference=lambda callback, values: 1.0, cases=[case]).message for _ in range(2)}
    assert messages == {"not yet: `attempt(softmax, an array of shape (20,))`: expected 1, got 0"}


@pytest.mark.parametrize(
    ("exercise", "named"),
    [
        ({"cases": []}, "at least one case"),
        ({"properties": [checks.symmetric]}, "the reference itself lacks a property"),
        ({"mistakes": {"Nothing is wrong": softmax}}, "no case shows the mistake 'Nothing is wrong'"),
    ],
)
def test_a_wrong_exercise_is_an_error(exercise, named):
    with pytest.raises(ValueError, match=named):
        verdict_on(softmax, **exercise)


@pytest.mark.parametrize(
    ("wanted", "good", "bad", "message"),
    [
        (checks.rows_sum_to_one, np.full(4, 0.25), np.full(4, 0.5), "your weights sum to 2, not to 1"),
        (checks.non_negative, 0.0, -1.0, "negative entry (-1), and it"),
        (checks.finite, np.ones(2), np.array([1, np.inf]), "not a finite number (inf at entry 1)"),
        (
            checks.symmetric,
            np.eye(2),
            np.array([[0, 1], [2, 0]]),
            "row 0, column 1 holds 1, but row 1, column 0 holds 2",
        ),
        (checks.symmetric, np.eye(2), np.ones((2, 3)), "it should be square"),
    ],
)
def test_properties(wanted, good, bad, message):
    assert wanted(good) is None
    assert message in wanted(bad)


def test_a_result_has_the_shape_of_the_first_argument():
    assert checks.same_shape_as_first_argument(np.ones(3), np.zeros(3)) is None
    message = checks.same_shape_as_first_argument(np.ones(2), np.zeros(3))
    assert (
        message
        == "your result is an array of shape (2,), but its input is an array of shape (3,): they should have one shape"
    )
