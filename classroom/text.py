"""The few marks of Markdown that questions and feedback need, as HTML: `code`, *emphasis*, **strong**, $mathematics$.

Mathematics becomes MathML, which a browser draws without a script. A dollar sign that means money is written ``\\$``.
"""

import html
import re

from latex2mathml.converter import convert

MARKS = re.compile(
    r"\\(?P<escaped>[\\`*$])"
    r"|`(?P<code>[^`]+)`"
    r"|\$(?P<math>(?:\\.|[^$\\])+)\$"
    r"|\*\*(?P<strong>\S(?:.*?\S)?)\*\*"
    r"|\*(?P<emphasis>\S(?:.*?\S)?)\*"
)

# a formula and the full stop or question mark behind it, between which a line should not break
CLOSED_FORMULA = re.compile(r"<math\b(?:(?!</math>).)*</math>[.,;:?!)]+")


def to_html(text: str) -> str:
    """Return one line of marked text as HTML that is safe to embed; ValueError for a formula that cannot be read."""
    line = " ".join(text.split())
    pieces, end = [], 0
    for match in MARKS.finditer(line):
        pieces += [_literal(line[end : match.start()], line), _marked(match)]
        end = match.end()
    return CLOSED_FORMULA.sub(
        r'<span style="white-space: nowrap">\g<0></span>', "".join([*pieces, _literal(line[end:], line)])
    )


def to_plain(text: str) -> str:
    """Return one line of marked text for a terminal: the marks stay, since they read well, the escapes go."""
    return re.sub(r"\\([`*$])", r"\1", " ".join(text.split()))


def to_mathml(formula: str) -> str:
    """Return a LaTeX formula as inline MathML; ValueError names a formula with an unknown command or an open brace."""
    if re.sub(r"\\.", "", formula).count("{") != re.sub(r"\\.", "", formula).count("}"):
        raise ValueError(f"the braces of ${formula}$ do not match")
    try:
        mathml = convert(formula)
    except Exception as error:  # latex2mathml raises a dozen unrelated types
        raise ValueError(f"${formula}$ is not LaTeX that can be shown: {type(error).__name__}") from error
    if unknown := re.search(r"\\\w+", mathml):
        raise ValueError(f"${formula}$ uses {unknown.group()}, which MathML cannot show")
    return mathml


def _marked(match: re.Match[str]) -> str:
    kind, content = match.lastgroup, match[match.lastgroup]
    if kind == "escaped":
        return html.escape(content)
    if kind == "code":
        return f"<code>{html.escape(content)}</code>"
    if kind == "math":
        return to_mathml(content)
    return f"<strong>{to_html(content)}</strong>" if kind == "strong" else f"<em>{to_html(content)}</em>"


def _literal(text: str, line: str) -> str:
    if "$" in text:
        raise ValueError(f"a single $ in {line!r}: write \\$ for a dollar sign")
    return html.escape(text)
