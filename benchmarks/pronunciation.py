"""The appendix on pronunciation: `python -m benchmarks.pronunciation`.

Writes book/pronunciation.md from the text in pronunciation.md beside this file, in which {{wrong}} and the like stand
for what `python -m dotformer evaluate runs/cmudict --save` has found.
"""

import re
from pathlib import Path

from benchmarks.results import FOLDER
from classroom.measured import measured

TEXT = Path(__file__).with_suffix(".md")


def shown() -> dict[str, str]:
    """What stands on the page for each name."""
    found = measured("cmudict")
    score, config = found["measured"], found["config"]
    model, steps = config["model"], config["training"]["steps"]
    depth = f"{model['num_encoder_layers']} layers on each side, width {model['d_model']}"
    [wider] = (run for run in measured("small_data")["runs"] if run["corpus"] == "cmudict")
    return {
        "split": f"{score['sources']:,} words are held out.",
        "model": f"a transformer of {score['parameters']:,} parameters ({depth}) for {steps:,} steps",
        "wrong": f"{1 - score['exact_match']:.1%}",
        "wider": f"{wider['parameters']:,} parameters (width {wider['settings']['d_model']}, {wider['steps']:,} steps)",
        "right": f"{wider['validation']:.1f} percent",
        "examples": "\n".join(table(found["examples"])),
    }


def table(examples: list[dict[str, str]]) -> list[str]:
    """A Markdown table of words: what the model wrote, and what the dictionary has where that is something else."""
    listed: dict[str, tuple[str, list[str]]] = {}  # what was written, and all that would be right
    for example in examples:
        listed.setdefault(example["source"], (example["translation"], []))[1].append(example["reference"])
    rows = ["| word | written | in the dictionary |", "|---|---|---|"]
    for word, (wrote, ways) in listed.items():
        other = "the same" if wrote in ways else " or ".join(f"`{way}`" for way in ways)
        rows.append(f"| {word.replace(' ', '')} | `{wrote}` | {other} |")
    return rows


def page() -> str:
    """The page."""
    names = shown()
    return re.sub(r"\{\{(\w+)\}\}", lambda found: names[found[1]], TEXT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    (FOLDER.parent / TEXT.name).write_text(page(), encoding="utf-8")
