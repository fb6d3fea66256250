"""Runs the cells of a chapter in the page, where there is no matplotlib and no IPython.

What is drawn is nothing: the page keeps the picture that the book was built with.
"""

import ast
import contextlib
import importlib
import io
import json
import re
import sys
import traceback
import types
import unicodedata

import numpy as np


class Drawn(type):
    """Whatever is asked of the class is nothing, too."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class Nothing(metaclass=Drawn):
    """Stands for figures and axes, and for all that can be asked of them."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *_, **__):
        return Nothing()

    def __getitem__(self, _):
        return Nothing()

    def __setitem__(self, *_):
        pass

    def __iter__(self):
        return iter((Nothing(), Nothing()))  # a pair: limits, or handles and labels

    def __float__(self):
        return 0.0

    def __add__(self, _):
        return 0.0

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__


def subplots(nrows=1, ncols=1, **_):
    """A figure and its axes, as many as are asked for."""
    grid = np.empty((nrows, ncols), dtype=object)
    for place in np.ndindex(nrows, ncols):
        grid[place] = Nothing()
    return Nothing(), grid[0, 0] if grid.size == 1 else grid.squeeze()


def module(name, **known):
    """A module that has what is named, and nothing for the rest."""
    made = types.ModuleType(name)
    made.__path__ = []
    made.__getattr__ = lambda attribute: Nothing if attribute[0].isupper() else Nothing()
    vars(made).update(known)
    sys.modules[name] = made
    return made


matplotlib = module("matplotlib")
for part in ("axes", "colors", "patches", "pyplot", "ticker", "lines"):
    known = {"subplots": subplots} if part == "pyplot" else {}
    setattr(matplotlib, part, module(f"matplotlib.{part}", **known))
module("matplotlib_inline")
module("matplotlib_inline.backend_inline", set_matplotlib_formats=lambda *_: None)
module("IPython", get_ipython=lambda: None)
module("IPython.display")


def fetched(name, kind):
    """A file beside the page's scripts; the worker may wait for it."""
    from js import XMLHttpRequest

    request = XMLHttpRequest.new()
    request.open("GET", name, False)
    request.responseType = kind
    request.send()
    if request.status != 200:
        raise FileNotFoundError(f"{name}: {request.status}")
    return request.response


def minilm_embeddings():
    """The published embeddings, in half precision: as dotformer.support.published gives them."""
    rows = json.loads(fetched("vocabulary.json", "text"))
    numbers = np.frombuffer(fetched("embeddings.f16", "arraybuffer").to_py(), np.float16)
    return rows, numbers.reshape(len(rows), -1).astype(np.float32)


class WordPiece:
    """Cuts a text as the published tokenizer does: into words, and each into the longest tokens there are."""

    def __init__(self, rows):
        self.rows = rows

    def encode(self, text):
        """Its `tokens`, and their numbers, `ids`."""
        letters = unicodedata.normalize("NFD", text.lower())
        letters = "".join(letter for letter in letters if unicodedata.category(letter) != "Mn")
        tokens = ["[CLS]"]
        for word in re.findall(r"[^\W_]+|[^\w\s]|_", letters):
            tokens += self.cut(word)
        tokens.append("[SEP]")
        return types.SimpleNamespace(tokens=tokens, ids=[self.rows[token] for token in tokens])

    def cut(self, word):
        """The tokens of a word, or that it is unknown."""
        tokens, start = [], 0
        while start < len(word):
            ends = range(len(word), start, -1)
            pieces = (("##" if start else "") + word[start:end] for end in ends)
            end, piece = next(
                ((end, piece) for end, piece in zip(ends, pieces, strict=True) if piece in self.rows), (0, "")
            )
            if not end:
                return ["[UNK]"]
            tokens.append(piece)
            start = end
        return tokens


def minilm_parameters():
    """As dotformer.support.published gives them, up to the weights of the first layer's attention."""
    rows, table = minilm_embeddings()
    first = np.load(io.BytesIO(fetched("first_layer.npz", "arraybuffer").to_bytes()))
    return WordPiece(rows), {"embeddings.word_embeddings.weight": table, **first}


published = types.ModuleType("dotformer.support.published")
published.minilm_embeddings = minilm_embeddings
published.minilm_parameters = minilm_parameters
sys.modules[published.__name__] = published
plots = importlib.import_module("classroom.plots")  # which finds what stands for matplotlib
for name, value in list(vars(plots).items()):
    if isinstance(value, types.FunctionType) and value.__module__ == plots.__name__:
        setattr(plots, name, Nothing())
namespace = {"__name__": "__main__"}


def bundle_of(value):
    """A value as HTML, or as text; None for a picture."""
    if hasattr(value, "_repr_mimebundle_"):
        bundle = value._repr_mimebundle_()
        if any(kind.startswith("image/") for kind in bundle):
            return None
        if "text/html" in bundle:
            return "html", bundle["text/html"]
        return "text", bundle["text/plain"]
    if hasattr(value, "_repr_svg_"):
        return None
    if hasattr(value, "_repr_html_"):
        return "html", value._repr_html_()
    return "text", repr(value)


def run(code):
    """Execute a cell: pairs of a kind ("text", "html" or "error") and what is to be shown."""
    shown, said = [], io.StringIO()
    try:
        tree = ast.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            exec(compile(tree, "<cell>", "exec"), namespace)
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace) if last else None
        if value is not None and not isinstance(value, Nothing):
            shown += filter(None, [bundle_of(value)])
    except BaseException as error:
        lines = traceback.format_exception(error)
        own = [n for n, line in enumerate(lines) if '"<cell>"' in line or '"<unknown>"' in line]
        shown.append(("error", "".join(lines[own[0] :] if own else lines)))
    text = said.getvalue()
    return [("text", text), *shown] if text else shown
