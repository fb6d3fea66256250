"""Plants each defect of feared.toml and asks its test: `python -m tests.mutants.feared`. Prints what went unnoticed."""

import ast
import sys
import tomllib
from pathlib import Path

from tests.mutants.engine import ROOT, Copy, import_libraries

DEFECTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["defect"]


def unnoticed() -> list[str]:
    """The defects that their tests do not notice, and those that cannot be planted, a line each."""
    problems = []
    files = {ROOT / "tests/reference" / defect["test"].partition("::")[0] for defect in DEFECTS}
    import_libraries([ROOT / "tests/conftest.py", *sorted(files), *sorted((ROOT / "dotformer").rglob("*.py"))])
    with Copy() as copy:
        for defect in DEFECTS:
            code = ast.unparse(ast.parse(copy.code(defect["module"])))
            name = f"{defect['module']}: {defect['name']}"
            if code.count(defect["right"]) != 1:
                problems.append(f"{name}: {defect['right']!r} stands {code.count(defect['right'])} times in the module")
                continue
            changed = code.replace(defect["right"], defect["wrong"])
            try:
                failed = copy.failure(defect["module"], changed, [f"tests/reference/{defect['test']}"], seconds=600)
            except ValueError as error:
                problems.append(f"{name}: {error}")
                continue
            if defect["test"].partition("::")[2] not in failed:
                problems.append(f"{name}: {defect['test']} does not notice it ({failed or 'passes'})")
    return problems


if __name__ == "__main__":
    found = unnoticed()
    print(*found, f"{len(DEFECTS) - len(found)} of {len(DEFECTS)} defects are noticed", sep="\n")
    sys.exit(bool(found))
