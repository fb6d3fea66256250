"""What a kernel inherits, and which traces of a machine are taken out of outputs or refused."""

from pathlib import Path

import pytest
from nbformat import v4

from literate import execute
from literate.execute import CellError

HOME = Path("/home/some one")
ROOT = HOME / "my book"
LIBRARY = ROOT / ".venv/lib/python3.11/site-packages"


@pytest.fixture(autouse=True)
def with_spaces(monkeypatch):
    monkeypatch.setenv("HOME", str(HOME))
    monkeypatch.setattr(execute, "LIBRARIES", {LIBRARY})


def printed(text: str):
    """A code cell that printed `text`, as it comes out of the kernel's hands."""
    return v4.new_code_cell(outputs=[execute._stable(v4.new_output("stream", text=text))])


@pytest.mark.parametrize("folder", [LIBRARY, "~/my book/.venv/lib/python3.11/site-packages"])
def test_a_library_is_named_from_where_libraries_lie(folder):
    cell = printed(f"{folder}/numpy/core.py:3: UserWarning: see {folder}/numpy/x.py")
    assert cell.outputs[0].text == "site-packages/numpy/core.py:3: UserWarning: see site-packages/numpy/x.py"
    execute._check_outputs(0, cell, ROOT)


@pytest.mark.parametrize("text", [f"'{ROOT}'", f"{ROOT}/book", f"file://{ROOT}.", "in ~/my book/book"])
def test_the_projects_own_path_is_refused(text):
    with pytest.raises(CellError, match="a path of this machine"):
        execute._check_outputs(0, printed(text), ROOT)


@pytest.mark.parametrize("text", ["network/workers", "network/work", "/workers", "/work-shop", "./work"])
def test_what_only_looks_like_the_projects_path_passes(text):
    execute._check_outputs(0, printed(text), Path("/work"))


def test_the_users_settings_do_not_reach_the_kernel(folder, tmp_path, monkeypatch):
    folder.write("settings/profile_default/startup/own.py", "mine = 1")
    folder.write("settings/startup.py", "own = 1")
    folder.write("settings/matplotlibrc", "figure.dpi: 33")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "settings"))
    monkeypatch.setenv("PYTHONSTARTUP", str(tmp_path / "settings/startup.py"))
    monkeypatch.setenv("MATPLOTLIBRC", str(tmp_path / "settings/matplotlibrc"))
    folder.chapter(
        "03_softmax",
        """
        # %%
        import os, pathlib, matplotlib
        pathlib.Path("settings").write_text(os.environ["IPYTHONDIR"])
        print(matplotlib.rcParams["figure.dpi"], {"mine", "own"} & set(globals()))
        """,
    )
    assert folder.literate("weave") == 0
    output = folder.notebook("03_softmax")["cells"][1]["outputs"][0]
    assert output["text"] == ["100.0 set()\n"]
    assert not Path(folder.read("book/notebooks/settings")).exists()
