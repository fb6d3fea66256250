"""Models as files of a page that translates, and the other files of such a page."""

import base64
import json
import math
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
    scales = {model.source_embeddings.scale, model.target_embeddings.scale}
    if model.config.pad_id != 0 or scales != {math.sqrt(model.config.d_model)}:
        raise ValueError("the page's engine pads with 0 and multiplies embeddings by the root of their width")
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinity")


def vocabulary_rows(config: Any) -> dict[str, int]:
    """How many rows of a table or an output matrix are tokens: behind them may be rows that fill it up."""
    sides = {"source_embeddings.tokens": config.source_vocab_size, "target_embeddings.tokens": config.target_vocab_size}
    return {f"{name}.weight": size for name, size in (sides | {"output": config.target_vocab_size}).items()}


def bytes_as_text(numbers: Tensor) -> str:
    """A matrix of 8-bit numbers, row by row, in base64; zeros fill the last three bytes up."""
    data = numbers.contiguous().numpy().tobytes()
    return base64.b64encode(data + bytes(-len(data) % 3)).decode()


def as_script(name: str, model: dict[str, Any]) -> str:
    """A model as a script that puts it under its name into `translators`: a page on a disk can load that."""
    data = json.dumps(model, separators=(",", ":"), allow_nan=False)
    return f"(globalThis.translators ??= {{}})[{json.dumps(name)}] = {data};\n"


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
