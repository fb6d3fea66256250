"""Weaves chapters into executed notebooks: only stale ones, several at a time, each of them whole or not at all."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nbformat import v4
from tqdm import tqdm

from literate.chapter import Chapter
from literate.execute import CellError, execute
from literate.names import Book
from literate.notebook import Outputs, assemble, cells_of, executed_hash, is_woven, outputs_of, state
from literate.project import ChapterError, Project, read_text, remove_leftovers, write_text

MAX_JOBS = 4
REMEDY = "run `make weave`"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def weave(book: Book, chosen: Sequence[Chapter], *, check: bool, jobs: int | None = None) -> list[str]:
    """Weave the chosen chapters, or with `check` only compare; returns what is wrong, one string for each thing.

    At most `jobs` chapters are executed at a time; if it is None, one for each core, but no more than MAX_JOBS. A
    chapter of which only the text changed keeps its outputs and is not executed. When all chapters are chosen,
    notebooks that no chapter weaves any more are removed; one that weave did not write is named and left alone. Raises
    KeyboardInterrupt on Ctrl-C and SIGTERM, when every kernel has been stopped.
    """
    project = book.project
    states = {chapter.stem: state(project, chapter) for chapter in chosen}
    surplus = []
    if len(chosen) == len(book.chapters):
        stems = {chapter.stem for chapter in book.chapters}
        surplus = [path for path in sorted(project.notebooks.glob("*.ipynb")) if path.stem not in stems]
    if check:
        found = {f"book/notebooks/{stem}.ipynb": known.problem for stem, known in states.items()}
        problems = [f"{name}: {problem}, {REMEDY}" for name, problem in found.items() if problem]
        return problems + [_surplus(project, path) for path in surplus]

    project.notebooks.mkdir(parents=True, exist_ok=True)
    remove_leftovers(project.notebooks)
    for path in surplus:
        if is_woven(read_text(path) or ""):
            path.unlink()
            print(f"removed {project.relative(path)}: no chapter weaves it any more")
        else:
            print(_surplus(project, path), file=sys.stderr)
    problems, stale = [], []
    for chapter in chosen:
        found = states[chapter.stem]
        if found.problem and found.outputs is None:
            print(f"{chapter.path.as_posix()}: {found.problem}")
            stale.append(chapter)
        elif found.problem:
            _write(project, chapter, executed_hash(project, chapter), found.outputs)
            print(f"{chapter.path.as_posix()}: {found.problem}, outputs kept")
    if stale:
        try:
            problems += asyncio.run(_weave_all(project, stale, jobs or min(os.cpu_count() or 1, MAX_JOBS)))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
    return problems


def _surplus(project: Project, path: Path) -> str:
    to_work = f"move it to {project.relative(project.work)}/, the folder of `make lab`, or delete it"
    remedy = REMEDY if is_woven(read_text(path) or "") else to_work
    return f"{project.relative(path)}: no chapter weaves it, {remedy}"


async def _weave_all(project: Project, chapters: Sequence[Chapter], jobs: int) -> list[str]:
    """Weave chapters, `jobs` at a time; returns what went wrong. The first signal to stop cancels all of it."""
    loop, this = asyncio.get_running_loop(), asyncio.current_task()

    def stop() -> None:
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, lambda: None)
        this.cancel()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    places = asyncio.Semaphore(jobs)
    total = sum(len(chapter.code_cells) for chapter in chapters)
    with tqdm(total=total, desc="weaving", unit="cell", disable=not sys.stderr.isatty()) as bar:
        results = await asyncio.gather(*(_weave_one(project, chapter, places, bar) for chapter in chapters))
    return [problem for problem in results if problem]


async def _weave_one(project: Project, chapter: Chapter, places: asyncio.Semaphore, bar: tqdm) -> str | None:
    """Execute a chapter and write its notebook; returns what went wrong, and then the notebook is as it was."""
    async with places:
        begun, executed = time.monotonic(), executed_hash(project, chapter)
        cells = cells_of(project, chapter)
        notebook = v4.new_notebook(cells=[cell for cell, _ in cells])
        try:
            await execute(notebook, project.root, project.notebooks, bar.update)
        except CellError as error:
            cell, first_line = cells[error.index]
            source = cell.source.split("\n")[error.line - 1].strip()
            return f"{ChapterError(chapter.path, first_line + error.line - 1, error.message)}\n    {source}"
        _write(project, chapter, executed, outputs_of(notebook))
        with bar.external_write_mode():
            print(f"wove {chapter.path.as_posix()} ({len(cells)} cells, {time.monotonic() - begun:.1f} s)", flush=True)
        return None


def _write(project: Project, chapter: Chapter, executed: str, outputs: Outputs) -> None:
    write_text(project.notebooks / f"{chapter.stem}.ipynb", assemble(project, chapter, executed, outputs))
