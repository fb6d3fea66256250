"""What a page has of Python: which cells it cannot run, and files that are what they should be."""

import base64
import hashlib
import tomllib
import zipfile

import nbformat
import pytest

from literate import live
from literate.live import cells_of, delivered, names_of, write_zip
from literate.project import Project, ProjectError


@pytest.mark.parametrize(
    ("code", "defined", "used"),
    [
        ("x = 1\nprint(x + y)", {"x"}, {"print", "y"}),
        ("import numpy as np\nfrom a import b as c", {"np", "c"}, set()),
        ("def f(x):\n    return x + g + [i for i in h]", {"f"}, {"g", "h"}),
        ("for n in rows:\n    total += n", {"n", "total"}, {"rows"}),
        ("(lambda x: x * z)(1)", set(), {"z"}),
    ],
)
def test_the_names_that_a_cell_gives_and_needs(code, defined, used):
    assert names_of(code) == (defined, used)


def test_a_cell_that_needs_what_such_a_cell_defines_is_left_out_too():
    sources = ["x = 1", "import torch\ny = torch.ones(x)", "print(y)", "y = 2", "print(y, x)", "import torch.nn as nn"]
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    cells += [
        nbformat.v4.new_markdown_cell("torch"),
        nbformat.v4.new_code_cell("z", metadata={"tags": ["remove-cell"]}),
    ]
    found = cells_of(nbformat.v4.new_notebook(cells=cells))
    assert [cell["needs"] for cell in found] == [None, "PyTorch", "PyTorch", None, None, "PyTorch"]
    assert [cell["source"] for cell in found] == sources


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """A cache of its own, and an npm that delivers a file of three bytes, and counts."""
    calls = []
    monkeypatch.setattr(live.platformdirs, "user_cache_dir", lambda _: tmp_path)
    monkeypatch.setattr(live.shutil, "which", lambda _: "npm")

    def run(command, cwd, **_):
        calls.append(command)
        (tmp_path / cwd / "some.tgz").write_bytes(b"abc")
        return type("Done", (), {"returncode": 0, "stderr": ""})

    monkeypatch.setattr(live.subprocess, "run", run)
    return calls


RIGHT = base64.b64encode(hashlib.sha512(b"abc").digest()).decode()


def test_a_package_is_fetched_once(npm):
    assert delivered("@a/b@1", RIGHT).read_bytes() == b"abc" == delivered("@a/b@1", RIGHT).read_bytes()
    assert npm == [["npm", "pack", "--silent", "@a/b@1"]]


def test_a_package_that_is_another_is_refused_and_not_kept(npm):
    for _ in range(2):
        with pytest.raises(ProjectError, match=r"@a/b@1 is not the file that live.toml names: its sha512 is "):
            delivered("@a/b@1", "other")
    assert len(npm) == 2


def test_a_library_that_is_another_is_refused():
    with pytest.raises(ProjectError, match=r"latex2mathml is not the one that live.toml names: its sha512 is "):
        live.library_files("latex2mathml", "other")
    listed = tomllib.loads(live.LIST.read_text(encoding="utf-8"))["libraries"]
    found = {name: dict(live.library_files(name, sha512)) for name, sha512 in listed.items()}
    assert all(any(path.endswith("METADATA") for path in files) for files in found.values())


def test_what_is_missing_is_said(npm, monkeypatch, tmp_path):
    monkeypatch.setattr(live.shutil, "which", lambda _: None)
    with pytest.raises(ProjectError, match=r"npm is not installed"):
        delivered("c@1", RIGHT)
    with pytest.raises(ProjectError, match=r"no rendered book: make book"):
        live.make_live(Project(tmp_path), tmp_path / "html")


def test_a_zip_depends_on_its_files_alone(tmp_path):
    for name, files in (("a", [("x", b"1"), ("y", b"2")]), ("b", [("y", b"2"), ("x", b"1")])):
        write_zip(tmp_path / name, files)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert zipfile.ZipFile(tmp_path / "a").read("y") == b"2"
