"""Executes the cells of a notebook in a kernel of its own, and makes what they put out the same on every machine."""

import asyncio
import os
import re
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

CELL_TIMEOUT = 120  # seconds
START_TIMEOUT = 60

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}")
CELL_FILE = re.compile(r"\S*/ipykernel_\d+/\d+\.py")  # what a warning calls a cell; the numbers change
LIBRARIES = {Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")}


class CellError(Exception):
    """A cell did not do what it should: the cell's index in the notebook, and the line in its source (from 1)."""

    def __init__(self, index: int, line: int, message: str) -> None:
        super().__init__(index, line, message)
        self.index, self.line, self.message = index, line, message


async def execute(notebook: NotebookNode, root: Path, folder: Path, on_cell: Callable[[], None]) -> None:
    """Execute a notebook in place, in `folder`, with the project at `root` importable.

    `on_cell` is called after each code cell. Raises CellError where a cell fails that is not tagged raises-exception,
    takes too long, kills the kernel, or puts out what will differ the next time. The kernel is gone at the end, however
    that comes.
    """
    kernel = AsyncKernelManager(kernel_name="python3")
    kernel.kernel_spec.argv[0] = sys.executable
    client = NotebookClient(notebook, km=kernel, timeout=CELL_TIMEOUT, record_timing=False, coalesce_streams=True)
    with tempfile.TemporaryDirectory(prefix="weave-", ignore_cleanup_errors=True) as settings:
        try:
            await _start(client, folder, _environment(root, settings))
            for index, cell in enumerate(notebook.cells):
                if cell.cell_type == "code":
                    await _execute_cell(client, index, cell)
                    cell.outputs = [_stable(output) for output in cell.outputs]
                    _check_outputs(index, cell, root)
                    on_cell()
        finally:
            if client.kc is not None:
                client.kc.stop_channels()
            if kernel.has_kernel:
                await kernel.shutdown_kernel(now=True)


async def _start(client: NotebookClient, folder: Path, environment: dict[str, str]) -> None:
    options = ["--log-level=ERROR", f"--HistoryManager.hist_file={client.ipython_hist_file}"]
    await client.km.start_kernel(cwd=str(folder), env=environment, extra_arguments=options)
    client.kc = client.km.client()
    client.kc.start_channels()
    client.kc.allow_stdin = False
    try:
        await client.kc.wait_for_ready(timeout=START_TIMEOUT)
    except RuntimeError as error:
        raise CellError(0, 1, f"no kernel could be started: {error}") from None


def _environment(root: Path, settings: str) -> dict[str, str]:
    """The kernel's environment: `settings`, an empty folder, stands in for what the user has set for IPython."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("MPLBACKEND", "PYTHONSTARTUP")}
    paths = [str(root), *filter(None, [inherited.get("PYTHONPATH")])]
    fixed = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    return inherited | fixed | {"IPYTHONDIR": settings, "MATPLOTLIBRC": os.devnull}


async def _execute_cell(client: NotebookClient, index: int, cell: NotebookNode) -> None:
    try:
        await client.async_execute_cell(cell, index, execution_count=client.code_cells_executed + 1)
    except CellExecutionError as error:
        message = f"{error.ename}: {error.evalue}".strip().split("\n")[0].removesuffix(": ")
        raise CellError(index, _failing_line(error.traceback, client.code_cells_executed), message) from None
    except CellTimeoutError:
        raise CellError(index, 1, f"the cell was not done after {CELL_TIMEOUT} s") from None
    except DeadKernelError:
        if asyncio.current_task().cancelling():  # nbclient takes one for the other
            raise asyncio.CancelledError from None
        raise CellError(index, 1, "the kernel died in this cell") from None


def _failing_line(traceback: str, count: int) -> int:
    """The innermost line of cell `count` in an IPython traceback; 1 where it names none."""
    lines = re.findall(rf"Cell In\[{count}\], line (\d+)", COLOUR.sub("", traceback))
    return int(lines[-1]) if lines else 1


def _stable(output: NotebookNode) -> NotebookNode:
    """An output without the numbers and paths of this run and this machine."""
    if output.output_type == "error":  # a frame of the traceback that is not in a cell shows a path of this machine
        output.traceback = [frame for frame in output.traceback if not COLOUR.sub("", frame).startswith("File ")]
    elif output.output_type == "stream":
        output.text = CELL_FILE.sub("cell", output.text)
        for library in LIBRARIES:
            for prefix in _spellings(library):
                output.text = output.text.replace(f"{prefix}/", f"{library.name}/")
    return output


def _spellings(path: Path) -> list[str]:
    """How a path may be written: in full, and from ~ if it lies in the user's home."""
    home = Path.home()
    return [str(path), *([f"~/{path.relative_to(home)}"] if home in path.parents else [])]


def _check_outputs(index: int, cell: NotebookNode, root: Path) -> None:
    """Refuse what would make weaving twice give two notebooks."""
    own_path = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, _spellings(root)))})(?![\w-])")
    for output in cell.outputs:
        text = f"{output.get('text', '')}\n{output.get('data', '')}\n{output.get('traceback', '')}"
        if address := ADDRESS.search(text):
            message = f"the output holds a memory address ({address[0]}), another one each time: show something else"
            raise CellError(index, 1, message)
        if own_path.search(text):
            raise CellError(index, 1, f"the output holds a path of this machine ({root}): show something else")
