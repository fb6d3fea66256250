"""Chapters become executed notebooks: the same each time, only the stale ones, each whole or not at all."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT

FIGURE = """
# %%
import matplotlib.pyplot as plt
import matplotlib_inline.backend_inline
matplotlib_inline.backend_inline.set_matplotlib_formats("svg")
plt.rcParams["svg.hashsalt"] = "book"
plt.plot([1, 2])
plt.show()
"""
SOFTMAX = """
# %% [markdown]
# ## Some prose

# %% tags=["export"] module="by_hand.softmax"
def softmax(scores):
    \"\"\"Shares.\"\"\"
    return scores / 1

# %% tags=["nbval-check-output"]
import os, sys, warnings
print("one")
print(os.environ["OMP_NUM_THREADS"], os.environ["PYTHONHASHSEED"], os.path.basename(os.getcwd()))
warnings.warn("careful")
print("two")
softmax(3)

# %% tags=["raises-exception"]
import json
json.loads("{")
"""
ATTENTION = """
# %%
from dotformer.by_hand.softmax import softmax
softmax(4)
"""


@pytest.fixture(scope="module")
def woven(shared_folder):
    """Two chapters, tangled and woven once for all tests of this file that leave them woven."""
    shared_folder.chapter("03_softmax", SOFTMAX)
    shared_folder.chapter("04_attention", ATTENTION)
    assert shared_folder.literate("tangle") == 0
    assert shared_folder.literate("weave", "-j", "2") == 0
    return shared_folder


def outputs(folder, stem: str) -> list:
    return [cell["outputs"] for cell in folder.notebook(stem)["cells"] if cell["cell_type"] == "code"]


@contextlib.contextmanager
def restored(folder, *names: str):
    """Put files back as they were, whatever becomes of the test that changes them."""
    before = {name: folder.read(name) for name in names}
    try:
        yield
    finally:
        for name, text in before.items():
            folder.write(name, text)


def test_a_notebook_holds_what_its_cells_put_out(woven):
    definition, prints, fails = outputs(woven, "03_softmax")
    assert definition == []
    stdout, stderr, result = prints
    assert stdout["text"] == ["one\n", "1 0 notebooks\n", "two\n"]
    assert stderr["text"][0] == "cell:4: UserWarning: careful\n"
    assert result["data"] == {"text/plain": ["3.0"]}
    assert fails[0]["ename"] == "JSONDecodeError" and "decoder.py" not in "".join(fails[0]["traceback"])
    assert [cell.get("execution_count") for cell in woven.notebook("03_softmax")["cells"]] == [None, None, 1, 2, 3]


def test_weaving_again_executes_nothing_and_from_nothing_gives_the_same_bytes(woven, capsys):
    before = woven.notebooks()
    assert woven.literate("weave", "--check") == 0
    assert woven.literate("weave") == 0
    assert capsys.readouterr().out == ""
    (woven.root / "book/notebooks/03_softmax.ipynb").unlink()
    assert woven.literate("weave") == 0
    assert "wove chapters/03_softmax.py (5 cells, " in capsys.readouterr().out
    assert woven.notebooks() == before


def test_new_prose_keeps_the_outputs_and_executes_nothing(woven, capsys):
    chapter, notebook = "chapters/03_softmax.py", "book/notebooks/03_softmax.ipynb"
    kept = outputs(woven, "03_softmax")
    with restored(woven, chapter, notebook):
        woven.edit(chapter, "Some prose", "Other prose")
        assert woven.literate("weave", "--check") == 1
        assert capsys.readouterr().err == f"{notebook}: text changed, run `make weave`\n"
        assert woven.literate("weave") == 0
        assert capsys.readouterr().out == f"{chapter}: text changed, outputs kept\n"
        assert "Other prose" in woven.read(notebook)
        assert outputs(woven, "03_softmax") == kept
        assert woven.literate("weave", "--check") == 0


def test_a_change_in_an_imported_module_makes_its_chapter_stale_and_no_other(woven, capsys):
    module, notebook = "dotformer/by_hand/softmax.py", "book/notebooks/04_attention.ipynb"
    with restored(woven, module, notebook):
        woven.edit(module, "scores / 1", "scores / 2")
        assert woven.literate("weave", "--check") == 1
        assert capsys.readouterr().err == f"{notebook}: code changed, run `make weave`\n"
        assert woven.literate("weave") == 0
        printed = capsys.readouterr().out
        assert "wove chapters/04_attention.py" in printed and "03_softmax" not in printed
        assert outputs(woven, "04_attention")[0][0]["data"] == {"text/plain": ["2.0"]}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"3.0"', '"4.0"', "outputs were edited"),
        ('"execution_count": 2', '"execution_count": null', "outputs were edited"),
        ('print(\\"one\\")', 'print(\\"two\\")', "text changed"),
        ('"nbformat": 4', '"nbformat": four', "never woven (no notebook that weave wrote)"),
        ('"dotformer": {', '"other": {', "never woven (no notebook that weave wrote)"),
    ],
)
def test_check_notices_an_edited_notebook(woven, capsys, old, new, problem):
    name = "book/notebooks/03_softmax.ipynb"
    text = woven.read(name)
    assert old in text
    with restored(woven, name):
        woven.write(name, text.replace(old, new))
        assert woven.literate("weave", "--check", "03_softmax") == 1
        assert capsys.readouterr().err == f"{name}: {problem}, run `make weave`\n"


def test_a_notebook_that_no_chapter_weaves_goes_and_one_of_the_reader_stays(woven, capsys):
    own, old = "book/notebooks/own.ipynb", "book/notebooks/02_old.ipynb"
    woven.write(own, '{"metadata": {}}')
    woven.write(old, woven.read("book/notebooks/03_softmax.ipynb"))
    try:
        assert woven.literate("weave", "--check") == 1
        errors = capsys.readouterr().err
        assert f"{old}: no chapter weaves it, run `make weave`\n" in errors
        to_be_moved = f"{own}: no chapter weaves it, move it to work/, the folder of `make lab`, or delete it\n"
        assert to_be_moved in errors
        assert woven.literate("weave") == 0  # so that `make book` goes on
        assert capsys.readouterr().err == to_be_moved
        assert (woven.root / own).exists() and not (woven.root / old).exists()
    finally:
        for name in (own, old):
            (woven.root / name).unlink(missing_ok=True)


FAILING = {
    "05_in_a_cell": ("# %%\nfine = 1\n\nwrong = 1 / 0  # here", "ZeroDivisionError: division by zero"),
    "06_in_a_call": (
        "# %%\ndef f(x):\n    return 1 / x  # here\n\n\nf(\n    0\n)",
        "ZeroDivisionError: division by zero",
    ),
    "07_in_a_module": ("# %%\nimport json\n\njson.loads('{')  # here", "JSONDecodeError: Expecting property name"),
    "08_in_an_earlier_cell": ("# %%\ndef f(x):\n    return 1 / x\n\n# %%\n\nf(0)  # here", "ZeroDivisionError"),
    "09_address": ("# %%\nobject()  # here", "the output holds a memory address (at 0x"),
    "10_path": ("# %%\nimport os  # here\nprint(os.getcwd())", "the output holds a path of this machine"),
    "11_death": ("# %%\nimport os  # here\nos._exit(1)", "the kernel died in this cell"),
    "12_exit": ("# %%\nraise SystemExit  # here", "SystemExit"),
}


def test_failing_cells_are_named_with_their_line_and_the_others_are_woven(folder, capsys):
    for stem, (cells, _) in FAILING.items():
        folder.chapter(stem, cells)
        folder.write(f"book/notebooks/{stem}.ipynb", "as it was")
    folder.chapter("14_fine", "# %%\n1 + 1" + FIGURE)
    folder.chapter("15_fine_too", "# %% [markdown]\n# no code at all")
    assert folder.literate("weave", "-j", "2") == 1
    errors = capsys.readouterr().err
    for stem, (_, message) in FAILING.items():
        (line,) = [line for line in errors.split("\n") if line.startswith(f"chapters/{stem}.py")]
        assert line.startswith(f"{folder.at(stem, '# here')} {message}")
        assert folder.read(f"book/notebooks/{stem}.ipynb") == "as it was"
    assert "\n    return 1 / x  # here\n" in errors
    result, figure = outputs(folder, "14_fine")
    assert result[0]["data"] == {"text/plain": ["2"]} and "image/svg+xml" in figure[0]["data"]
    assert folder.literate("weave", "--check", "14_fine", "15_fine_too") == 0


def test_an_endless_cell_is_named_with_its_line(folder, capsys, monkeypatch):
    monkeypatch.setattr("literate.execute.CELL_TIMEOUT", 2)
    folder.chapter("03_softmax", "# %%\nimport time  # here\ntime.sleep(60)")
    assert folder.literate("weave") == 1
    assert f"{folder.at('03_softmax', '# here')} the cell was not done after 2 s\n" in capsys.readouterr().err


SLEEPING = """
# %%
import os, pathlib, time
pathlib.Path("kernel.pid").write_text(str(os.getpid()))
time.sleep(60)
"""


def alive(process: int) -> bool:
    """Whether a process runs: `ps` says nothing of one that is gone, and Z of one whose parent has not noticed."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()[:1] not in ("", "Z")


def wait_until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interruption_leaves_the_notebook_as_it_was_and_no_kernel(folder, number):
    folder.chapter("03_softmax", SLEEPING)
    folder.write("book/notebooks/03_softmax.ipynb", "as it was")
    command = [sys.executable, "-m", "literate", "--root", str(folder.root), "weave"]
    environment = os.environ | {"TMPDIR": str(folder.root)}  # a killed one cannot tidy up
    weaving = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    pid_file = folder.root / "book/notebooks/kernel.pid"
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    kernel = int(pid_file.read_text())
    assert alive(kernel)
    os.kill(weaving.pid, number)
    _, errors = weaving.communicate(timeout=10)
    if number == signal.SIGKILL:
        assert weaving.returncode == -signal.SIGKILL
    else:
        assert weaving.returncode == 130
        assert errors == "interrupted: every notebook is whole, the unfinished ones are as they were\n"
    wait_until(lambda: not alive(kernel))
    assert folder.notebooks() == {"03_softmax.ipynb": b"as it was", "kernel.pid": str(kernel).encode()}


def test_the_bar_counts_cells_on_a_terminal(woven):
    """A terminal is made for it; without one, plain lines come instead."""
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    (woven.root / "book/notebooks/04_attention.ipynb").unlink()
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 80))
    command = [sys.executable, "-m", "literate", "--root", str(woven.root), "weave"]
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=end, text=True)
        shown = os.read(terminal, 10_000).decode()
    finally:
        os.close(end)
        os.close(terminal)
    assert "1/1" in shown and "cell" in shown
    assert "wove chapters/04_attention.py" in done.stdout and json.loads(
        woven.read("book/notebooks/04_attention.ipynb")
    )
