"""Where measurements are kept for the chapters to show, and on what machine they were made."""

import json
import platform
from datetime import date
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).resolve().parents[1] / "book" / "measurements"


def save(name: str, measured: dict[str, Any]) -> None:
    """Write a measurement to book/measurements, with machine, versions and day, and print where."""
    processor = platform.processor() or platform.machine()
    measured |= {
        "machine": f"{processor}, {torch.get_num_threads()} thread, Python {platform.python_version()}",
        "torch": torch.__version__,
    }
    if torch.cuda.is_available():
        measured["accelerator"] = torch.cuda.get_device_name()
    measured["date"] = date.today().isoformat()
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    print(path)
