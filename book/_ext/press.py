"""What YAML cannot say of the book: which buttons appear, what toggles say, how names and sources are shown."""

from __future__ import annotations

import ast
import gc
import hashlib
import inspect
import re
import shutil
import symtable
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx_codeautolink.extension import resolve

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

TOGGLES = {  # the tag of a hidden cell -> what its toggle shows
    "tag_solution": "the solution",
    "tag_check": "the check",
    "tag_plot": "the plotting code",
    "tag_proof": "the proof of the numbers above",
}


def set_buttons(app: Sphinx, config: Config) -> None:
    """Show repository and launch buttons if `_config.yml` names a repository, and none if it does not."""
    options = config.html_theme_options
    if options.get("repository_url"):
        options.update(use_repository_button=True, use_issues_button=True)
    else:
        options["launch_buttons"] = {}


def name_toggles(app: Sphinx, doctree: nodes.document) -> None:
    """Let the toggle of a hidden cell say what it hides: its title, and what it exports or the code below it needs."""
    needed: set[str] = set()
    for cell in reversed([node for node in doctree.findall(nodes.container) if "cell" in node["classes"]]):
        defined, read = names_of(cell)
        if "hide_mode" not in cell:
            needed = (needed - set(defined)) | read
            continue
        exported = "tag_export" in cell["classes"]
        names = dict.fromkeys(name for name in defined if name in needed or (exported and not name.startswith("_")))
        title = cell.get("prompt_show")
        hidden = "the code" + (f" of {', '.join(names)}" if names else "") + (f": {title}" if title else "")
        for tag in TOGGLES.keys() & set(cell["classes"]):
            hidden = TOGGLES[tag]
        cell["prompt_show"], cell["prompt_hide"] = f"Show {hidden}", f"Hide {hidden}"


def source_of(cell: nodes.container) -> str:
    """What stands in a cell, without what it has printed."""
    inputs = [node for node in cell.findall(nodes.container) if "cell_input" in node["classes"]]
    return "\n".join(code.astext() for node in inputs for code in node.findall(nodes.literal_block))


def names_of(cell: nodes.container) -> tuple[list[str], set[str]]:
    """The names that a cell of Python defines, in order, and those that it needs from the cells before it."""
    defined: list[str] = []
    read: set[str] = set()
    try:
        statements = ast.parse(source_of(cell)).body
    except SyntaxError:  # another language
        return defined, read
    for statement in statements:
        table = symtable.symtable(ast.unparse(statement), "cell", "exec")
        loops = [node.target for node in ast.walk(statement) if isinstance(node, ast.For)]
        counted = {node.id for target in loops for node in ast.walk(target) if isinstance(node, ast.Name)}
        read |= globals_read(table) - set(defined) - counted
        assigned = [symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()]
        defined += [name for name in assigned if name not in counted]
    return defined, read


def globals_read(table: symtable.SymbolTable) -> set[str]:
    """The global names that a piece of code reads, in its functions as well."""
    is_module = table.get_type() == "module"
    names = {
        each.get_name() for each in table.get_symbols() if each.is_referenced() and (is_module or each.is_global())
    }
    return names.union(*map(globals_read, table.get_children()))


def write_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, str] | None:
    """Show the signature of a function as its author wrote it: autodoc spells out what `ArrayLike` stands for."""
    if what not in ("function", "method"):
        return None
    try:
        function = ast.parse(textwrap.dedent(inspect.getsource(obj))).body[0]
    except (OSError, TypeError):  # written by nobody, such as the __eq__ of a dataclass
        return None
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    if what == "method" and "staticmethod" not in map(ast.unparse, function.decorator_list):
        arguments = function.args
        (arguments.posonlyargs or arguments.args)[:1] = []
    return f"({ast.unparse(function.args)})", ast.unparse(function.returns) if function.returns else ""


def drop_origin(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Leave out a module's docstring, which tells those who open the file where it comes from."""
    if what == "module":
        lines.clear()


def list_sources(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document
) -> None:
    """Make each entry of a bibliography an item of its list: the role that docutils gives it may not stand in one."""
    context["body"] = context.get("body", "").replace('role="doc-biblioentry"', 'role="listitem"')


def add_translator(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document
) -> None:
    """Give a page with a translator its scripts, and the models that the reader has trained and written for a page."""
    if '<figure class="translator"' not in context.get("body", ""):
        return
    app.add_css_file("translator.css")
    app.add_js_file("engine.js", loading_method="defer")
    for model in sorted(Path(app.srcdir).glob("runs/*/page/model.js")):
        name = f"translators/{model.parents[1].name}.js"
        copy = Path(app.outdir, "_static", name)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model, copy)
        app.add_js_file(name, loading_method="defer")
    app.add_js_file("translator.js", loading_method="defer")


def scripts_as_files(app: Sphinx, exception: Exception | None) -> None:
    """Turn each script that stands in a page into a file, and the one handler into a listener of press.js.

    A host can then forbid scripts in pages (the README names the policy). What is no script, such as JSON, stays.
    """
    if exception or app.builder.name != "html":
        return
    root = Path(app.outdir)
    folder = root / "_static" / "inline"
    folder.mkdir(parents=True, exist_ok=True)

    def moved(found: re.Match[str]) -> str:
        attributes, script = found.groups()
        if "src=" in attributes or "type=" in attributes:
            return found[0]
        name = f"{hashlib.sha256(script.encode()).hexdigest()[:16]}.js"
        (folder / name).write_text(script, encoding="utf-8")
        return f'<script{attributes} src="{up}_static/inline/{name}"></script>'

    for page in sorted(root.rglob("*.html")):
        up = "../" * (len(page.relative_to(root).parts) - 1)
        text = page.read_text(encoding="utf-8").replace('onclick="window.print()"', "data-print")
        page.write_text(re.sub(r"<script\b([^>]*)>(.*?)</script>", moved, text, flags=re.DOTALL), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx, and document the package that lies beside the book rather than one installed elsewhere."""
    sys.path.insert(0, str(app.srcdir))
    gc.set_threshold(100_000, 20)  # with Python's own 700 and 10, looking for garbage is a fifth of the build
    # it executes what modules import for type checkers: all of transformers, for half a minute, and to no use here
    resolve.populate_type_checking = lambda module: None
    app.setup_extension("sphinx.ext.autodoc")  # which brings two of the events below
    app.connect("config-inited", set_buttons, priority=100)
    app.connect("doctree-read", name_toggles)
    app.connect("autodoc-process-signature", write_signature)
    app.connect("autodoc-process-docstring", drop_origin)
    app.connect("html-page-context", list_sources)
    app.connect("html-page-context", add_translator)
    app.connect("build-finished", scripts_as_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
