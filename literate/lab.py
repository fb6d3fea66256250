"""Lays out the reader's folder `work`: copies of the woven notebooks, which are never overwritten once changed."""

import json
from pathlib import Path

from literate.project import Project, read_text, write_text

COPIED = ".copied"  # in it: the notebooks as they were when they were copied


def lay_out(project: Project) -> list[str]:
    """Copy each notebook of the book that is new or was woven anew; returns the names of the copies kept instead.

    A copy is the reader's when a cell differs from what was copied. What JupyterLab writes around the cells does not
    count, so that a notebook that was only looked at is still brought up to date.
    """
    kept = []
    for path in sorted(project.notebooks.glob("*.ipynb")):
        copy, copied = project.work / path.name, project.work / COPIED / path.name
        woven, before = read_text(path), read_text(copied)
        if copy.exists() and woven == before:
            continue
        if copy.exists() and cells(read_text(copy)) not in (cells(before), cells(woven)):
            kept.append(project.relative(copy))
            continue
        write_text(copy, woven)
        write_text(copied, woven)
    return kept


def cells(text: str | None) -> object:
    """The cells of a notebook; where there are none to be read, the text itself."""
    try:
        return json.loads(text)["cells"]
    except (ValueError, KeyError, TypeError):
        return text


if __name__ == "__main__":
    for name in lay_out(Project(Path.cwd())):
        print(f"{name}: the book has a newer one, but you changed yours, so it stays: rename it to get the new one too")
