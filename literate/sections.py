"""The headings of a chapter: their text without markup, and the anchor that a page gives them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from myst_parser.config.main import MdParserConfig
from myst_parser.mdit_to_docutils.base import compute_unique_slug
from myst_parser.parsers.mdit import create_md_parser

MARKDOWN = create_md_parser(MdParserConfig(enable_extensions={"dollarmath"}), RendererHTML)
NUMBER = re.compile(r"^\d+\. ")


@dataclass(frozen=True)
class Section:
    """A heading: its text in plain characters (a chapter's title without its number), and the anchor of its page."""

    title: str
    slug: str


def sections(markdown: str, slugs: set[str]) -> Iterator[Section]:
    """The headings of a Markdown text in order; `slugs` are those taken in this chapter, and gains the new ones.

    Anchors are computed by myst-parser itself, so that a link made from one is right on the page.
    """
    tokens = MARKDOWN.parse(markdown)
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            heading = SyntaxTreeNode(tokens[index : index + 3]).children[0]
            slug = compute_unique_slug(heading, slugs)
            slugs.add(slug)
            title = _plain_text(tokens[index + 1].children or [])
            yield Section(NUMBER.sub("", title) if token.tag == "h1" else title, slug)


def _plain_text(tokens: list[Token]) -> str:
    """The words of a heading: emphasis and links lose their markup, formulas become readable."""
    words = []
    for token in tokens:
        if token.type == "math_inline":
            words.append(_plain_math(token.content))
        elif token.type == "softbreak":
            words.append(" ")
        else:
            words.append(token.content)
    return "".join(words)


def _plain_math(latex: str) -> str:
    r"""A short formula without LaTeX: `\sqrt{d_k}` becomes `sqrt(d_k)`, `K^\top` becomes `K^T`."""
    text = re.sub(r"\\(?:text|mathrm|mathbf|operatorname)\{([^{}]*)\}", r"\1", latex)
    text = re.sub(r"\\d?frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2", text)
    text = re.sub(r"\\sqrt\{([^{}]*)\}", r"sqrt(\1)", text)
    text = text.replace(r"\top", "T").replace(r"\cdot", "·").replace(r"\times", "×")
    return re.sub(r"[\\{}]", "", text)
