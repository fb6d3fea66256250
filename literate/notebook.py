"""A woven notebook as text: put together from a chapter and outputs, and told apart from one that is out of date."""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import nbformat
from nbformat import NotebookNode, v4

from literate.chapter import TAGS, Chapter
from literate.dependencies import local_files
from literate.project import Project, read_text

HIDDEN = {"quiz", "plot", "check", "solution"}
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LANGUAGE = {"name": "python", "pygments_lexer": "ipython3"}
COLAB = """\
# On Google Colab this installs what the chapter imports; anywhere else it does nothing.
import sys

if "google.colab" in sys.modules:
    import subprocess

    package = "dotformer[serving,weights] @ git+{url}"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", package], check=True)"""

Outputs = list[tuple[int | None, list[NotebookNode]]]  # of each code cell: its execution count and its outputs


@dataclass(frozen=True)
class State:
    """How a notebook on disk stands to its chapter: `problem` is empty if it is fresh, `outputs` are those to keep."""

    problem: str
    outputs: Outputs | None = None


def cells_of(project: Project, chapter: Chapter) -> list[tuple[NotebookNode, int]]:
    """The notebook's cells, unexecuted, each with the line of the chapter on which its source begins."""
    cells = []
    for cell in chapter.cells:
        metadata: dict[str, Any] = dict(cell.metadata)
        if cell.title:
            metadata["mystnb"] = metadata.get("mystnb", {}) | {"code_prompt_show": cell.title}
        if cell.tags:
            metadata["tags"] = list(dict.fromkeys(tag for given in cell.tags for tag in TAGS[given]))
        if HIDDEN.intersection(cell.tags):
            metadata |= {"jupyter": {"source_hidden": True}, "cellView": "form"}
        make = {"code": v4.new_code_cell, "markdown": v4.new_markdown_cell}[cell.kind]
        cells.append((make(cell.source, metadata=metadata), cell.line))
    if url := project.repository_url():
        colab = v4.new_code_cell(COLAB.format(url=url), metadata={"tags": ["remove-cell"]})
        cells.insert(1, (colab, chapter.cells[0].line))
    seen: Counter[tuple[str, str]] = Counter()
    for cell, _ in cells:
        same = cell.cell_type, cell.source
        cell.id = _digest([chapter.stem, *same, seen[same]])[:12]
        seen[same] += 1
    return cells


def assemble(project: Project, chapter: Chapter, executed: str, outputs: Outputs) -> str:
    """The text of the chapter's notebook with outputs, and the `executed_hash` under which they came to be."""
    cells = [cell for cell, _ in cells_of(project, chapter)]
    code_cells = [cell for cell in cells if cell.cell_type == "code"]
    for cell, (count, produced) in zip(code_cells, outputs, strict=True):
        cell.execution_count, cell.outputs = count, produced
    metadata = {
        "kernelspec": KERNEL,
        "language_info": LANGUAGE,
        "dotformer": {"chapter": chapter.path.as_posix(), "executed": executed, "outputs": outputs_hash(outputs)},
    }
    notebook = v4.new_notebook(cells=cells, metadata=metadata)
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def outputs_of(notebook: NotebookNode) -> Outputs:
    """What the code cells of a notebook hold."""
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [(cell.get("execution_count"), cell.outputs) for cell in code_cells]


def executed_hash(project: Project, chapter: Chapter) -> str:
    """A hash over what decides, in this project, what executing the chapter gives: its code, and the files it imports.

    The versions of libraries do not count: a notebook stays fresh when requirements.txt changes.
    """
    code = [
        [cell.source, "raises-exception" in cell.metadata.get("tags", [])]
        for cell, _ in cells_of(project, chapter)
        if cell.cell_type == "code"
    ]
    files = local_files(project.root, [cell.tree for cell in chapter.code_cells])
    return _digest([code, [[project.relative(path), hashlib.sha256(path.read_bytes()).hexdigest()] for path in files]])


def outputs_hash(outputs: Outputs) -> str:
    """A hash over outputs, to notice when somebody edits them."""
    return _digest(outputs)


def state(project: Project, chapter: Chapter) -> State:
    """Compare the chapter's notebook on disk with the chapter, without executing anything."""
    text = read_text(project.notebooks / f"{chapter.stem}.ipynb")
    if text is None:
        return State("never woven")
    try:
        notebook = nbformat.reads(text, as_version=4)
        woven = notebook.metadata.dotformer
        executed, recorded, outputs = woven.executed, woven.outputs, outputs_of(notebook)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, AttributeError, KeyError):
        return State("never woven (no notebook that weave wrote)")
    if executed != executed_hash(project, chapter):
        return State("code changed")
    if recorded != outputs_hash(outputs):
        return State("outputs were edited")
    return State("" if assemble(project, chapter, executed, outputs) == text else "text changed", outputs)


def is_woven(text: str) -> bool:
    """Whether a file's text is a notebook that `weave` wrote."""
    try:
        return "dotformer" in json.loads(text)["metadata"]
    except (ValueError, KeyError, TypeError):
        return False


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
