"""Questions about short stories, with the facts that answer each: the bAbI tasks."""

from collections.abc import Iterator
from importlib.resources import files
from typing import Literal, NamedTuple

from dotformer.data.corpora import Corpus
from dotformer.data.download import cached

BABI = (
    "https://raw.githubusercontent.com/diixo/bAbi-tasks-with-transformer-model/ef2bdcb/datasets/tasks_1-20_v1-2/{}/{}"
)
FOLDERS = {"1k": "en-valid", "10k": "en-valid-10k"}
TASKS = "1 2 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"  # of the third there are 1,000 only
PARTS = {"train": "train", "valid": "validation", "test": "test"}


class Story(NamedTuple):
    """A pair to learn, a question with facts and its answer; which facts answer it, and the number of the task.

    The source has the question in its first line and the facts in the others, the newest first. `evidence` has the
    numbers of lines, the question being line 0, in the order of the file. All but the question's are indented by a
    space, so that a word is the same token wherever it stands.
    """

    source: str
    target: str
    evidence: tuple[int, ...]
    task: int


def read_stories(text: str, task: int) -> Iterator[Story]:
    """The questions in the text of a file, each with all facts before it.

    Raises ValueError for a line that is neither a fact nor a question, and for evidence that is no fact.
    """
    facts: dict[int, str] = {}  # by their number in the file, the oldest first
    for n, line in enumerate(text.splitlines(), 1):
        number, _, rest = line.partition(" ")
        said, *answer = (part.strip() for part in rest.split("\t"))
        if not number.isdecimal() or not said or len(answer) not in (0, 2):
            raise ValueError(f"line {n} is neither a fact nor a question: {line!r}")
        if number == "1":
            facts = {}
        if not answer:
            facts[int(number)] = said
            continue
        lines = {fact: len(facts) - place for place, fact in enumerate(facts)}
        named = answer[1].split()
        if not all(fact.isdecimal() and int(fact) in lines for fact in named):
            raise ValueError(f"line {n} names a fact that is not before it: {line!r}")
        evidence = tuple(lines[int(fact)] for fact in named)
        yield Story("\n ".join([said, *reversed(facts.values())]), answer[0], evidence, task)


def babi(tasks: str = TASKS, size: Literal["1k", "10k"] = "10k") -> Corpus:
    """Questions of some of the twenty bAbI tasks, with 900 or 9,000 of each to learn from, 100 or 1,000 to choose by.

    Made by a simulation, in English, CC BY 3.0. Downloaded at first use (27 MB, or 6 MB), unless DOTFORMER_DATA names a
    folder that has the files of this size. Raises ValueError for a task that there is not; for other errors see
    `data.download.cached`. After Weston and others (2015).
    """
    if size not in FOLDERS:
        raise ValueError(f"size must be one of {', '.join(FOLDERS)}, not {size!r}")
    sums = files("dotformer.data").joinpath("babi.sha256").read_text().splitlines()
    known = dict(reversed(line.split()) for line in sums)
    parts: dict[str, list[Story]] = {part: [] for part in PARTS.values()}
    for task in tasks.split():
        for name, part in PARTS.items():
            place = FOLDERS[size], f"qa{task}_{name}.txt"
            if "/".join(place) not in known:
                raise ValueError(f"there is no task {task} of size {size}")
            path = cached("/".join(("babi", place[0])), place[1], BABI.format(*place), known["/".join(place)])
            parts[part] += read_stories(path.read_text(encoding="utf-8"), int(task))
    return Corpus(**parts)
