"""A project folder to try the author's tools on: chapters are written into it as text, files are read back."""

import json
import shutil
import textwrap
from pathlib import Path

import pytest

from literate.command_line import main
from literate.names import Book, read_book
from literate.project import Project
from tests.conftest import ROOT


class Folder:
    """A project in a temporary folder, with an empty package."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copy(ROOT / "pyproject.toml", root)
        self.write("dotformer/__init__.py", "")
        self.write("dotformer/by_hand/__init__.py", "")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def read(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")

    def chapter(self, stem: str, cells: str, title: str = "A title") -> None:
        """Write a chapter: a title cell, then the given cells, whose common indentation is removed."""
        number = int(stem.split("_")[0])
        body = textwrap.dedent(cells).strip("\n")
        self.write(f"chapters/{stem}.py", f"# %% [markdown]\n# # {number}. {title}\n\n{body}\n")

    def edit(self, name: str, old: str, new: str) -> None:
        text = self.read(name)
        assert text.count(old) == 1, text
        self.write(name, text.replace(old, new))

    def at(self, stem: str, fragment: str) -> str:
        """`chapters/<stem>.py:<line>:`, the line being the only one that holds `fragment`."""
        lines = self.read(f"chapters/{stem}.py").split("\n")
        (line,) = [number for number, content in enumerate(lines, 1) if fragment in content]
        return f"chapters/{stem}.py:{line}:"

    def book(self) -> Book:
        return read_book(Project(self.root))

    def literate(self, *arguments: str) -> int:
        """Run the command line on this project, in this process."""
        return main(["--root", str(self.root), *arguments])

    def notebook(self, stem: str) -> dict:
        return json.loads(self.read(f"book/notebooks/{stem}.ipynb"))

    def notebooks(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.root / "book" / "notebooks").iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("project"))
