"""Measurements and a trained model that the repository keeps, for chapters to show."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "book" / "measurements"
MODELS = FOLDER.parent / "models"


def measured(name: str) -> dict[str, Any]:
    """Return the measurement of a name, as its program wrote it. FileNotFoundError says which program that is."""
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: python -m benchmarks.{name} makes it, in a clone of the book")
    return json.loads(path.read_text(encoding="utf-8"))


def trained(name: str) -> Path:
    """Return the folder of a model that the repository keeps. FileNotFoundError says which command makes it."""
    folder = MODELS / name
    if not (folder / "model.safetensors").is_file():
        raise FileNotFoundError(f"{folder} is missing: python -m dotformer train configs/{name}.toml makes it")
    return folder
