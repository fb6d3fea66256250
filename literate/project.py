"""Where everything is, and how a generated file is written: whole or not at all."""

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

PACKAGE = "dotformer"
CLASSROOM = "classroom"
DIFF_LINES = 20


class ChapterError(Exception):
    """What is wrong in a chapter, and where. Prints as `chapters/03_softmax.py:41: message`."""

    def __init__(self, path: Path, line: int, message: str) -> None:
        super().__init__(path, line, message)
        self.path, self.line, self.message = path, line, message

    def __str__(self) -> str:
        return f"{self.path.as_posix()}:{self.line}: {self.message}"


class ProjectError(Exception):
    """What is wrong with the project folder, in one line."""


@dataclass(frozen=True)
class Project:
    """A project folder and the places in it that the tools read and write."""

    root: Path

    @property
    def chapters(self) -> Path:
        return self.root / "chapters"

    @property
    def package(self) -> Path:
        return self.root / PACKAGE

    @property
    def notebooks(self) -> Path:
        return self.root / "book" / "notebooks"

    @property
    def names_page(self) -> Path:
        return self.root / "book" / "names.md"

    @property
    def contents_page(self) -> Path:
        return self.root / "book" / "contents.md"

    def parts(self) -> list[tuple[str, list[str]]]:
        """The parts of _toc.yml, captions and stems of chapters, in order; none where there is no such file."""
        path = self.root / "_toc.yml"
        toc = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
        return [
            (part["caption"], [Path(entry["file"]).name for entry in part["chapters"] if "notebooks" in entry["file"]])
            for part in toc.get("parts", [])
        ]

    @property
    def work(self) -> Path:
        return self.root / "work"

    def relative(self, path: Path) -> str:
        """`path` as it is shown to people: from the root of the project, with forward slashes."""
        return path.relative_to(self.root).as_posix()

    def repository_url(self) -> str:
        """`repository: url:` of _config.yml without a closing slash; empty where there is none."""
        config_path = self.root / "_config.yml"
        if not config_path.exists():
            return ""
        try:
            config = yaml.safe_load(config_path.read_text(encoding="utf-8")) or {}
        except yaml.YAMLError as error:
            raise ProjectError(f"_config.yml is not YAML: {' '.join(str(error).split())}") from None
        return ((config.get("repository") or {}).get("url") or "").rstrip("/")


def read_text(path: Path) -> str | None:
    """The text of a file with its line ends as they are; None where there is no such file."""
    return path.read_bytes().decode("utf-8", errors="replace") if path.exists() else None


def write_text(path: Path, text: str) -> bool:
    """Write a file in one step, so that no reader and no interruption ever meets half of it.

    Returns whether anything was written: a file that holds `text` already is left alone.
    """
    if read_text(path) == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(text.encode("utf-8"))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return True


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed run may have left of `write_text` in a folder and below it."""
    for path in folder.rglob("*.tmp"):
        if re.search(r"\.\d+\.tmp$", path.name):
            path.unlink(missing_ok=True)


def short_diff(old: str, new: str) -> str:
    """The first lines of a unified diff from `old` to `new`, indented."""
    lines = list(
        difflib.unified_diff(
            old.splitlines(), new.splitlines(), "on disk", "from the chapters", "", "", n=1, lineterm=""
        )
    )
    if len(lines) > DIFF_LINES:
        lines = [*lines[:DIFF_LINES], f"... and {len(lines) - DIFF_LINES} more lines"]
    return "\n".join(f"    {line}" for line in lines)
