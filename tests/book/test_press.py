"""The extension that the book is rendered with: what it makes of the signatures in the code."""

from dataclasses import dataclass
from functools import partial
from importlib import import_module

import pytest
from docutils import nodes


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


class App:
    """As much of Sphinx as the extension asks for."""

    def __init__(self, root):
        self.srcdir, self.outdir, self.files = str(root), str(root / "html"), []
        self.builder = type("Builder", (), {"name": "html"})

    def add_css_file(self, name):
        self.files.append(name)

    def add_js_file(self, name, loading_method):
        assert loading_method == "defer"
        self.files.append(name)


def test_a_page_with_a_translator_gets_its_scripts_and_the_readers_models(root, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(root / "book/_ext")
    add_translator = import_module("press").add_translator
    for name in ("b", "a"):
        folder = tmp_path / "runs" / name / "page"
        folder.mkdir(parents=True)
        (folder / "model.js").write_text(name)
    (tmp_path / "runs" / "unfinished").mkdir()
    app = App(tmp_path)
    add_translator(app, "other", "", {"body": "<figure>"}, None)
    assert app.files == []
    add_translator(app, "22", "", {"body": 'x<figure class="translator" data-sentence="">'}, None)
    models = ["translators/a.js", "translators/b.js"]
    assert app.files == ["translator.css", "engine.js", *models, "translator.js"]
    assert (tmp_path / "html/_static/translators/b.js").read_text() == "b"


def test_scripts_in_a_page_become_files(root, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(root / "book/_ext")
    scripts_as_files = import_module("press").scripts_as_files
    text = (
        '<script data-a="b">one\n()</script><script src="x.js"></script><script type="application/json">{}</script>'
        '<button onclick="window.print()">'
    )
    for path in ("html/a.html", "html/book/b/c.html"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    scripts_as_files(App(tmp_path), None)
    [script] = (tmp_path / "html/_static/inline").iterdir()
    assert script.read_text() == "one\n()"
    for path, up in (("html/a.html", ""), ("html/book/b/c.html", "../../")):
        assert (tmp_path / path).read_text() == (
            f'<script data-a="b" src="{up}_static/inline/{script.name}"></script><script src="x.js"></script>'
            '<script type="application/json">{}</script><button data-print>'
        )


def page_of(*cells):
    """A page of code cells: what they hold, and of those that are hidden their title and tags."""
    page = nodes.section()
    for source, *hidden in cells:
        title, *tags = hidden or [""]
        options = {"hide_mode": "input", "prompt_show": title} if hidden else {}
        cell = nodes.container(classes=["cell", *tags], **options)
        code = nodes.container("", nodes.literal_block(source, source), classes=["cell_input"])
        printed = nodes.container("", nodes.literal_block("seen = 1", "seen = 1"), classes=["cell_output"])
        cell += [code, printed]
        page += cell
    return page


def test_a_toggle_says_what_it_hides_and_names_what_the_code_below_it_needs(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "book/_ext")
    page = page_of(
        ("def unused(): ...\nclass Kept: ...\nfirst, seen = 1, 2\n", "two names", "tag_hide-input"),
        ("def unused(): ...\ndef _own(): ...\n", "", "tag_hide-input", "tag_export"),
        ("const x = 1;", "", "tag_hide-input"),
        ("again = 0\nfor n in range(3):\n    print(n)", "three numbers", "tag_hide-input"),
        (
            "again = Kept(first)\nfor n in range(3):\n    print(n)\n"
            "def local(unused):\n    return [seen for seen in unused]\n",
        ),
        ("print(unused, seen)", "", "tag_plot"),
        ("print(again)",),
    )
    import_module("press").name_toggles(None, page)
    shown = [cell.get("prompt_show") for cell in page.children]
    assert shown == [
        "Show the code of Kept, first: two names",
        "Show the code of unused",
        "Show the code",
        "Show the code: three numbers",
        None,
        "Show the plotting code",
        None,
    ]
    assert page.children[0]["prompt_hide"] == "Hide the code of Kept, first: two names"
