"""Quiz questions that live in the page: one choice, several choices, or a number, each answer with its own feedback.

A question displays as one self-contained piece of HTML: its style, its script and its answers travel with it, so it
works on the rendered page and in JupyterLab, with no network, and sends nothing anywhere. Where scripts do not run, the
answers stand below the question in a <details>; where they do, the script reads its feedback from there.

    quiz.one_choice("What is $1 + 1$?", quiz.wrong("3", "One too many."), quiz.right("2", "Yes."))
"""

import hashlib
import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import ascii_uppercase

from classroom.text import to_html, to_plain


@dataclass(frozen=True)
class Option:
    """One answer that can be picked: its text, whether it is right, and what to say to a reader who picked it."""

    text: str
    is_right: bool
    feedback: str


@dataclass(frozen=True)
class Value:
    """One number a reader may arrive at, whether it is the right one, and what to say to who did."""

    value: float
    is_right: bool
    feedback: str


def right(text: str, feedback: str) -> Option:
    """Return a right answer."""
    return Option(text, True, feedback)


def wrong(text: str, feedback: str) -> Option:
    """Return a wrong answer; its feedback says why one would think so."""
    return Option(text, False, feedback)


@dataclass(frozen=True)
class Question:
    """A question ready to be displayed, as HTML or, where there is none, as plain text without the answers."""

    html: str
    plain: str

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.plain}

    def __repr__(self) -> str:
        return self.plain


def one_choice(question: str, *options: Option) -> Question:
    """Return a question with exactly one right option; ValueError says what is wrong with the options."""
    _validate_options(question, options)
    if sum(option.is_right for option in options) > 1:
        raise ValueError(f"{question!r} has more than one right option: use several_choices")
    return _choice_question("one", question, options)


def several_choices(question: str, *options: Option) -> Question:
    """Return a question with one or more right options, all of which must be ticked; ValueError for bad options."""
    _validate_options(question, options)
    return _choice_question("several", question, options)


def number(
    question: str,
    key: float,
    *,
    tolerance: float,
    feedback: str,
    mistakes: Sequence[tuple[float, str]] = (),
    otherwise: str,
) -> Question:
    """Return a question whose answer is a number within `tolerance` of `key`.

    `mistakes` pairs wrong numbers that a reader is likely to reach with what to say to them; `otherwise` is said to any
    other number. ValueError if the key is not finite, the tolerance not positive, or two numbers cannot be told apart.
    """
    values = [Value(float(key), True, feedback), *(Value(float(value), False, why) for value, why in mistakes)]
    _validate_values(question, values, tolerance, otherwise)
    # a keypad for decimals has no minus sign on some phones
    keypad = "decimal" if all(value.value >= 0 for value in values) else "text"
    controls = (
        '<label class="cq-number"><span>Your answer</span>'
        f'<input type="text" name="answer" inputmode="{keypad}" autocomplete="off" spellcheck="false"></label>'
    )
    answers = [
        _answer(value.is_right, _rounded(value.value, tolerance), value.feedback, f' data-value="{value.value:.12g}"')
        for value in values
    ]
    answers.append(_answer(False, "any other number", otherwise, ""))
    page = _page("number", question, controls, answers, f' data-tolerance="{tolerance:.12g}"')
    return Question(page, f"{to_plain(question)}\n  (a number)")


def _choice_question(kind: str, question: str, options: Sequence[Option]) -> Question:
    control = "radio" if kind == "one" else "checkbox"
    controls = "".join(
        f'<div><label class="cq-option"><input type="{control}" name="answer" value="{index}">'
        f'<span class="cq-text">{to_html(option.text)}</span><span class="cq-mark"></span></label></div>'
        for index, option in enumerate(options)
    )
    answers = [_answer(option.is_right, to_html(option.text), option.feedback, "") for option in options]
    letters = zip(ascii_uppercase, options, strict=False)
    plain = [to_plain(question), *(f"  {letter}. {to_plain(option.text)}" for letter, option in letters)]
    return Question(_page(kind, question, controls, answers, ""), "\n".join(plain))


HINTS = {"one": "Pick one", "several": "Pick every one that holds", "number": "Answer with a number"}


def _page(kind: str, question: str, controls: str, answers: list[str], data: str) -> str:
    body = (
        f"<fieldset><legend>{to_html(question)}</legend>"
        f'<p class="cq-hint">{HINTS[kind]}</p>{controls}</fieldset>'
        '<button type="submit" hidden>Check</button>'
        '<div class="cq-feedback" role="status" aria-live="polite"></div>'
        f'<details class="cq-answers"><summary>Answers</summary><ul>{"".join(answers)}</ul></details>'
    )
    identity = hashlib.sha256((kind + body).encode()).hexdigest()[:12]
    return (
        f"<style>{_asset('quiz.css')}</style>"
        # method="dialog" outside a dialog goes nowhere: with no script, Enter does not reload the page
        f'<form class="classroom-quiz mathjax_ignore tex2jax_ignore" id="quiz-{identity}" method="dialog"'
        f' data-kind="{kind}"{data} data-lm-suppress-shortcuts="true" novalidate>{body}</form>'
        f"<script>{_asset('quiz.js')}</script>"
    )


def _answer(is_right: bool, shown: str, feedback: str, data: str) -> str:
    verdict = "right" if is_right else "wrong"
    return (
        f'<li data-verdict="{verdict}"{data}><span class="cq-verdict">{"✓ Right:" if is_right else "✗ Wrong:"}</span> '
        f'<span class="cq-shown">{shown}</span> <span class="cq-why">{to_html(feedback)}</span></li>'
    )


@cache
def _asset(name: str) -> str:
    return files("classroom").joinpath(name).read_text(encoding="utf-8")


def _rounded(value: float, tolerance: float) -> str:
    """Show a number with the decimals that its tolerance makes meaningful, at most six."""
    decimals = min(6, max(0, 1 - math.floor(math.log10(tolerance))))
    shown = f"{value:.{decimals}f}"
    return html.escape((shown.rstrip("0").rstrip(".") if "." in shown else shown).replace("-", "−"))


def _validate_options(question: str, options: Sequence[Option]) -> None:
    texts = [to_plain(option.text) for option in options]
    if len(options) < 2:
        raise ValueError(f"{question!r} has {len(options)} option(s): a choice needs at least two")
    if not any(option.is_right for option in options):
        raise ValueError(f"{question!r} has no right option")
    for text in texts:
        if texts.count(text) > 1:
            raise ValueError(f"{question!r} has the option {text!r} twice")
    for option in options:
        if not option.feedback.strip():
            raise ValueError(f"the option {option.text!r} of {question!r} has no feedback")


def _validate_values(question: str, values: Sequence[Value], tolerance: float, otherwise: str) -> None:
    if not 0 < tolerance < math.inf:
        raise ValueError(f"the tolerance of {question!r} is {tolerance}: it must be positive and finite")
    if not all(math.isfinite(value.value) for value in values):
        raise ValueError(f"{question!r} has a key or mistake that is not a finite number")
    if not all(text.strip() for text in (otherwise, *(value.feedback for value in values))):
        raise ValueError(f"{question!r} has an answer without feedback")
    for index, later in enumerate(values):
        for earlier in values[:index]:
            if abs(later.value - earlier.value) <= tolerance:
                what = "its key" if earlier.is_right else f"its mistake {earlier.value:g}"
                raise ValueError(f"the mistake {later.value:g} of {question!r} is within the tolerance of {what}")
