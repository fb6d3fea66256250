"""Graphs in the format ONNX: written from a module, and run by ONNX Runtime."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from dotformer.support.files import replacing


def package(name: str) -> ModuleType:
    """An optional package. ModuleNotFoundError says how to get it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{name} is not installed: pip install onnx onnxscript onnxruntime") from error


@contextmanager
def quietly() -> Iterator[None]:
    """Without what the exporter says of packages that it would know as well, and of names of axes."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def tensors_in(example: Any) -> Iterator[Tensor]:
    """The tensors of an argument: itself, or those in a sequence, in order."""
    if isinstance(example, Tensor):
        yield example
    else:
        for one in example:
            yield from tensors_in(one)


def write_graph(
    path: str | Path,
    module: nn.Module,
    arguments: Mapping[str, tuple[Any, Any]],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> None:
    """Write what `module` computes as a graph with such `inputs` and `outputs`, whole or not at all.

    Each of its `arguments` comes with an example, a tensor or sequences of tensors, and in the same form the names of
    the axes that may vary; no tensor may be there twice. Raises ModuleNotFoundError without onnx and onnxscript,
    OSError when the file cannot be.
    """
    for name in ("onnx", "onnxscript"):
        package(name)
    examples = tuple(example for example, _ in arguments.values())
    found = [id(tensor) for tensor in tensors_in(examples)]
    if len(set(found)) < len(found):
        raise ValueError("one example stands for two inputs, which would become one in the graph")
    with quietly(), torch.no_grad():
        program = torch.onnx.export(
            module,
            examples,
            dynamo=True,
            dynamic_shapes={name: axes for name, (_, axes) in arguments.items()},
            input_names=list(inputs),
            opset_version=23,  # the first in which attention is one operation
            output_names=list(outputs),
            verbose=False,
        )
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # where each came from: paths of this machine
        with replacing(path) as draft:
            program.save(draft)


class OnnxGraph:
    """A graph on the disk, as a function from tensors to tensors, run by ONNX Runtime on as many threads as PyTorch.

    Raises ModuleNotFoundError without onnxruntime.
    """

    def __init__(self, path: str | Path) -> None:
        runtime: Any = package("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        self.session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = [one.name for one in self.session.get_inputs()]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """What the graph computes from its inputs, in the order in which they were named when it was written."""
        arrays = {name: one.contiguous().numpy() for name, one in zip(self.names, inputs, strict=True)}
        return [torch.from_numpy(array) for array in self.session.run(None, arrays)]
