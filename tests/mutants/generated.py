"""Plants defects that nobody has chosen, made by Cosmic Ray: `python -m tests.mutants.generated [MODULE ...]`.

A module faces the tests that are named after it, then those in tests/reference and tests/command that import it.
Prints what survived, and counts killed and survived by module. With --sample only so many in each module, the same ones
each time.
"""

import argparse
import ast
import difflib
import random
import sys
import tempfile
from collections import deque
from pathlib import Path

from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from tqdm import tqdm

from tests.mutants.engine import ROOT, Copy, import_libraries
from tests.one_chapter import imported


def modules() -> list[str]:
    """All modules of dotformer, without that name."""
    paths = [path.relative_to(ROOT / "dotformer").with_suffix("") for path in (ROOT / "dotformer").rglob("*.py")]
    return sorted(".".join(path.parts) for path in paths if not path.name.startswith("__"))


def tests_of(module: str) -> list[str]:
    """The files of tests that a module faces.

    First those that are named after it, then all that import it or its whole package, then those that import a module
    that does. A command faces all tests of commands, and so does what no test imports.
    """
    full, (package, _, name) = f"dotformer.{module}", f"dotformer.{module}".rpartition(".")
    files = {one: (ROOT / "dotformer").joinpath(*one.split(".")).with_suffix(".py") for one in modules()}
    users = {f"dotformer.{one}" for one, path in files.items() if full in imported(path)}
    commands = sorted((ROOT / "tests/command").glob("test_*.py"))
    ranked = []
    for path in [*sorted((ROOT / "tests/reference").glob("test_*.py")), *commands]:
        uses = imported(path)
        whole = package in uses and not any(one.startswith(f"{package}.") for one in uses)
        if full in uses or whole or (module.startswith("command_line") and path in commands):
            ranked.append((0 if path.stem.endswith(f"_{name}") else 1, path))
        elif users & uses:
            ranked.append((2, path))
    return [str(path.relative_to(ROOT)) for _, path in sorted(ranked) or enumerate(commands)]


class Bare(ast.NodeTransformer):
    """Takes the annotations of functions away, which compute nothing."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Called by ast for each parameter."""
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Called by ast for each function."""
        node.returns = None
        return self.generic_visit(node)


def meaning(code: str) -> str:
    """What two codes have in common that compute the same; empty for what is no code."""
    try:
        return ast.dump(Bare().visit(ast.parse(code)))
    except SyntaxError:
        return ""


def mutants(module: str, sample: int | None = None) -> list[str]:
    """The codes that Cosmic Ray makes of a module, each with one change, or a sample of them."""
    path = (ROOT / "dotformer").joinpath(*module.split(".")).with_suffix(".py")
    code = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, use_db(Path(folder) / "work.sqlite", mode=WorkDB.Mode.create) as work:
        init([path], work, {})
        mutations = sorted((m.operator_name, m.occurrence) for item in work.work_items for m in item.mutations)
    random.Random(0).shuffle(mutations)
    found, seen = [], {meaning(code), ""}
    for name, occurrence in mutations:
        if len(found) == sample:
            break
        changed = mutate_code(code, get_operator(name)(), occurrence)
        if (means := meaning(changed)) not in seen:
            seen.add(means)
            found.append(changed)
    return found


def difference(code: str, changed: str) -> str:
    """The lines that differ, as in a patch."""
    lines = difflib.unified_diff(code.splitlines(), changed.splitlines(), lineterm="", n=0)
    return "\n".join(f"    {line}" for line in list(lines)[2:])


def face(module: str, codes: list[str], bar: tqdm) -> list[str]:
    """The codes that no test notices. The test that noticed the last ones is asked first."""
    survivors, tests, lethal = [], tests_of(module), deque[str](maxlen=8)
    with Copy() as copy:
        code = copy.code(module)
        if failed := copy.failure(module, code, tests, seconds=600):
            raise ValueError(f"{module} is right, and {failed} fails")
        for changed in codes:
            try:
                failed = next((test for test in lethal if copy.failure(module, changed, [test])), "")
                failed = failed or copy.failure(module, changed, tests, seconds=600)
            except ValueError:
                failed = "no test can import it"
            if not failed:
                survivors.append(changed)
                bar.write(f"survived in {module}:\n{difference(code, changed)}")
            elif "::" in failed and failed not in lethal:
                lethal.appendleft(failed)
            bar.update()
    return survivors


def main() -> int:
    """Plant, ask, count. Returns 1 when nothing was planted."""
    parser = argparse.ArgumentParser(prog="tests.mutants.generated", description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="as attention, or by_hand.softmax; default: all")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N of each module; default: all, for hours")
    options = parser.parse_args()
    if unknown := set(options.modules) - set(modules()):
        parser.error(f"no module {', '.join(sorted(unknown))}; there are {', '.join(modules())}")
    chosen = options.modules or modules()
    tests = [ROOT / path for module in chosen for path in tests_of(module)]
    import_libraries([ROOT / "tests/conftest.py", *tests, *sorted((ROOT / "dotformer").rglob("*.py"))])
    counts = {}
    for module in chosen:
        codes = mutants(module, options.sample)
        with tqdm(total=len(codes), desc=module, disable=not sys.stderr.isatty()) as bar:
            counts[module] = len(codes), len(face(module, codes, bar))
    print(f"{'module':24}{'killed':>8}{'survived':>10}")
    for module, (number, survived) in counts.items():
        print(f"{module:24}{number - survived:8}{survived:10}")
    total, survived = (sum(column) for column in zip(*counts.values(), strict=True))
    print(f"{'all':24}{total - survived:8}{survived:10}")
    return 0 if total else 1


if __name__ == "__main__":
    sys.exit(main())
