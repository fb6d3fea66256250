"""Models as files of a page that translates, and the other files of such a page."""

import base64
import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dotformer.support.files import replacing

PAGE = Path(__file__).resolve().parents[1] / "page"


def check_page_model(model: nn.Module, kind: type[nn.Module]) -> None:
    """Raise ValueError unless the model is of this very kind, with ReLU: the page's engine knows no other."""
    if type(model) is not kind:
        raise ValueError(f"a page translates with a {kind.__name__} only, and this model is a {type(model).__name__}")
    if model.config.activation != "relu":
        raise ValueError(f"the page's engine has relu only, and this model has {model.config.activation}")


def bytes_as_text(numbers: Tensor) -> str:
    """A matrix of 8-bit numbers, row by row, in base64; zeros fill the last three bytes up."""
    data = numbers.contiguous().numpy().tobytes()
    return base64.b64encode(data + bytes(-len(data) % 3)).decode()


def as_script(name: str, model: dict[str, Any]) -> str:
    """A model as a script that puts it under its name into `translators`: a page on a disk can load that."""
    return f"(globalThis.translators ??= {{}})[{json.dumps(name)}] = {json.dumps(model, separators=(',', ':'))};\n"


def write_page(folder: str | Path, name: str, model: dict[str, Any]) -> None:
    """Write a folder that holds a whole page, `index.html`, which translates with this model and needs no server.

    Each file is written whole or not at all. Raises OSError when that cannot be done.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(PAGE.iterdir()) if path.is_file()}
    for file, text in (texts | {"model.js": as_script(name, model)}).items():
        with replacing(folder / file) as draft:
            draft.write_text(text, encoding="utf-8")
