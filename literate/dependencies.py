"""Which files of the project a chapter's code depends on: what it imports, what that imports, and so on."""

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

from literate.project import CLASSROOM, PACKAGE, ProjectError

LOCAL = (PACKAGE, CLASSROOM)
DATA = {".css", ".js"}
KEPT = {"measured": "measurements/{}.json", "trained": "models/{}/*"}  # what a call by this name reads, below book/


def local_files(root: Path, trees: Sequence[ast.Module]) -> list[Path]:
    """The files below `root` that running these trees reads, sorted: modules of the project, and data beside them.

    `measured("name")` reads book/measurements/name.json, `trained("name")` all of book/models/name. Style sheets and
    scripts count with every module of their folder: nothing tells which one reads them.
    """
    found = {path for tree in trees for path in _kept(root, tree)}
    waiting = [name for tree in trees for name in _imported(tree)]
    while waiting:
        for path in _files(root, waiting.pop()):
            if path not in found:
                found.add(path)
                if path.suffix == ".py":
                    waiting += _imports(path.read_text(encoding="utf-8"), path.relative_to(root))
    return sorted(found)


def _kept(root: Path, tree: ast.Module) -> Iterator[Path]:
    """The measurements and models that a tree names in a call, as far as they are there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KEPT:
            names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            for name in names:
                yield from filter(Path.is_file, (root / "book").glob(KEPT[node.func.id].format(name)))


@functools.cache  # by text: chapters share most of their modules
def _imports(text: str, path: Path) -> tuple[str, ...]:
    try:
        return tuple(_imported(ast.parse(text), ".".join(path.parts[:-1])))
    except SyntaxError as error:
        raise ProjectError(f"{path.as_posix()}:{error.lineno}: SyntaxError: {error.msg}") from None


def _imported(tree: ast.Module, package: str = "") -> Iterator[str]:
    """The dotted names that a module of `package` imports, as far as they can be modules of the project."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        yield from (name for name in names if name.split(".")[0] in LOCAL)


def _files(root: Path, name: str) -> Iterator[Path]:
    """The files that importing a dotted name runs (the packages on the way included), and the data beside them."""
    folder = root
    for part in name.split("."):
        module = (folder / part).with_suffix(".py")
        folder = folder / part
        if module.is_file():
            yield module
        if not folder.is_dir():
            return
        yield from (path for path in folder.iterdir() if path.is_file() and path.suffix in DATA)
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py"
