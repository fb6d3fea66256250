"""The marks of Markdown that questions know, as HTML."""

import pytest

from classroom.text import to_html, to_mathml, to_plain


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("plain", "plain"),
        ("`a < b`", "<code>a &lt; b</code>"),
        ("*one* and **two**", "<em>one</em> and <strong>two</strong>"),
        ("**a *b* c**", "<strong>a <em>b</em> c</strong>"),
        ("2 * 3 * 4", "2 * 3 * 4"),
        (r"\$5 and \*", "$5 and *"),
        ("<script>", "&lt;script&gt;"),
        ("two\n    lines", "two lines"),
    ],
)
def test_marks_become_html(text, html):
    assert to_html(text) == html


def test_mathematics_becomes_mathml_and_no_dollar_is_left():
    html = to_html(r"divide by $\sqrt{d_k}$")
    assert "<msqrt>" in html and "<msub>" in html
    assert "$" not in html and "\\" not in html


def test_a_line_does_not_break_between_a_formula_and_what_closes_the_sentence():
    kept = '<span style="white-space: nowrap"><math'
    assert kept in to_html("What is $a$?") and to_html("What is $a$?").endswith("</math>?</span>")
    assert to_html("Is $a$ equal to $b$?").count(kept) == 1
    assert kept not in to_html("Is $a$ it?")


@pytest.mark.parametrize(("formula", "named"), [(r"\nosuch{x}", "nosuch"), (r"\frac{1", "braces"), ("", "not LaTeX")])
def test_a_formula_that_cannot_be_shown_is_an_error(formula, named):
    with pytest.raises(ValueError, match=named):
        to_mathml(formula)


def test_a_lone_dollar_is_an_error():
    with pytest.raises(ValueError, match="a single"):
        to_html("it costs $5")


def test_plain_text_keeps_the_formula_and_drops_the_escape():
    assert to_plain(r"$\sqrt{d_k}$ for  \$5") == r"$\sqrt{d_k}$ for $5"
