"""Questions as HTML and as text: what they hold, that they come out the same each time, what they refuse."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from classroom import quiz
from tests.conftest import ROOT


def cosine():
    return quiz.one_choice(
        r"You double $a$. What happens to $\cos(a, b)$?",
        quiz.wrong("It doubles.", "The dot product does."),
        quiz.right("It stays.", "The length doubles too."),
    )


def weights():
    return quiz.several_choices(
        "Which hold?", quiz.right("sum", "yes"), quiz.wrong("half", "no"), quiz.right("positive", "yes")
    )


def third(**changes):
    wanted = {"tolerance": 0.01, "feedback": "yes", "mistakes": [(0.5, "of two")], "otherwise": "divide by three"}
    return quiz.number(r"What is $\frac{1}{3}$?", 1 / 3, **(wanted | changes))


KINDS = pytest.mark.parametrize("build", [cosine, weights, third])


def html_of(question):
    return question._repr_mimebundle_()["text/html"]


class Tags(HTMLParser):
    """Every tag of a page, and whether each one was closed in order."""

    VOID = ("input",)

    def __init__(self, page):
        super().__init__()
        self.seen, self.open = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, tag):
        return [attributes for name, attributes in self.seen if name == tag]


def test_questions_are_the_same_html_in_every_process():
    code = "from tests.classroom.test_quiz import *\nfor build in (cosine, weights, third): print(html_of(build()))"
    pages = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"}
        pages.append(subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment))
    assert pages[0] == pages[1] and pages[0].count(b"<form") == 3


def test_no_two_questions_share_an_id():
    ids = [re.search(r'id="([^"]+)"', html_of(build()))[1] for build in (cosine, weights, third)]
    ids.append(re.search(r'id="([^"]+)"', html_of(third(otherwise="look again")))[1])
    assert len(set(ids)) == 4


@KINDS
def test_a_question_is_made_of_real_controls_and_loads_nothing(build):
    tags = Tags(html_of(build()))
    assert not tags.open
    for tag in ("form", "fieldset", "legend", "button", "details", "summary"):
        assert len(tags.all(tag)) == 1, tag
    assert len(tags.all("label")) == len(tags.all("input")) > 0
    assert [tag for _, attributes in tags.seen if (tag := attributes.get("role"))] == ["status"]
    assert not any("src" in attributes or "href" in attributes for _, attributes in tags.seen)
    assert not re.search(r"https?://(?!www\.w3\.org/1998/Math)", html_of(build()))


@KINDS
def test_mathjax_leaves_a_question_alone(build):
    (form,) = Tags(html_of(build())).all("form")
    assert {"mathjax_ignore", "tex2jax_ignore"} <= set(form["class"].split())


def test_mathematics_is_drawn_without_a_script():
    body = html_of(cosine()).split("</style>")[1].split("<script>")[0]
    assert "<math" in body and "$" not in body


def test_plain_text_letters_the_options_and_keeps_the_answers_to_itself():
    assert repr(cosine()) == "You double $a$. What happens to $\\cos(a, b)$?\n  A. It doubles.\n  B. It stays."
    assert third()._repr_mimebundle_()["text/plain"].endswith("(a number)")
    assert "0.33" not in repr(third())


def test_a_number_is_shown_with_the_digits_its_tolerance_makes_meaningful():
    assert '<span class="cq-shown">0.333</span>' in html_of(third())
    whole = quiz.number("n?", 40.0, tolerance=0.5, feedback="yes", otherwise="no")
    assert '<span class="cq-shown">40</span>' in html_of(whole)
    small = quiz.number("n?", -0.002, tolerance=1e-4, feedback="yes", otherwise="no")
    assert '<span class="cq-shown">−0.002</span>' in html_of(small)


def test_noise_in_the_last_digit_of_a_computed_key_changes_nothing():
    def html(key):
        return html_of(quiz.number("n?", key, tolerance=0.01, feedback="yes", otherwise="no"))

    assert html(0.1 + 0.2) == html(0.3)


def test_a_keypad_without_a_minus_sign_is_not_asked_for_where_one_is_needed():
    assert 'inputmode="decimal"' in html_of(third())
    assert 'inputmode="text"' in html_of(third(mistakes=[(-1, "a sign too many")]))


RIGHT, WRONG = quiz.right("a", "yes"), quiz.wrong("b", "no")


@pytest.mark.parametrize(
    ("build", "options", "named"),
    [
        (quiz.one_choice, [WRONG, quiz.wrong("c", "no")], "no right option"),
        (quiz.several_choices, [WRONG, quiz.wrong("c", "no")], "no right option"),
        (quiz.one_choice, [RIGHT, quiz.right("c", "yes")], "more than one right option"),
        (quiz.one_choice, [RIGHT, quiz.wrong("a", "no")], "'a' twice"),
        (quiz.one_choice, [RIGHT], "at least two"),
        (quiz.several_choices, [RIGHT, quiz.wrong("c", " ")], "'c' .* no feedback"),
    ],
)
def test_bad_options_are_refused(build, options, named):
    with pytest.raises(ValueError, match=named):
        build("Which?", *options)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tolerance": 0}, "must be positive"),
        ({"tolerance": float("nan")}, "must be positive"),
        ({"tolerance": float("inf")}, "must be positive and finite"),
        ({"mistakes": [(0.34, "close")]}, "within the tolerance of its key"),
        ({"mistakes": [(0.5, "of two"), (0.505, "half")]}, "within the tolerance of its mistake 0.5"),
        ({"mistakes": [(float("inf"), "endless")]}, "not a finite number"),
        ({"mistakes": [(0.5, "")]}, "without feedback"),
        ({"otherwise": ""}, "without feedback"),
    ],
)
def test_bad_numbers_are_refused(changes, named):
    with pytest.raises(ValueError, match=named):
        third(**changes)
