"""Where measurements are kept for the chapters to show, and on what machine they were made."""

import json
import platform
import subprocess
from contextlib import suppress
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dotformer.support.files import replacing

FOLDER = Path(__file__).resolve().parents[1] / "book" / "measurements"


def machine() -> dict[str, Any]:
    """What measures: processor, versions, the accelerator if there is one, and the day."""
    processor = platform.processor() or platform.machine()
    found = {
        "machine": f"{processor}, {torch.get_num_threads()} thread, Python {platform.python_version()}",
        "torch": torch.__version__,
    }
    if torch.cuda.is_available():
        found |= accelerator()
    return found | {"date": date.today().isoformat()}


def accelerator() -> dict[str, Any]:
    """The CUDA device in use: its name, size, driver and libraries."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    cudnn = None
    with suppress(RuntimeError):  # of another version than PyTorch was built with
        cudnn = torch.backends.cudnn.version()
    return {
        "accelerator": properties.name,
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "cudnn": cudnn,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "device_memory": properties.total_memory,
        "l2_cache": getattr(properties, "L2_cache_size", None),
    }


def driver_version() -> str:
    """The version of NVIDIA's driver, or "unknown"."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.partition("\n")[0].strip() or "unknown"


def package_versions(names: tuple[str, ...]) -> dict[str, str | None]:
    """The versions of some packages; None for one that is not installed."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a file of measurements, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as draft:
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def save(name: str, measured: dict[str, Any]) -> None:
    """Write a measurement to book/measurements, with machine, versions and day, and print where."""
    path = FOLDER / f"{name}.json"
    write(path, measured | machine())
    print(path)
