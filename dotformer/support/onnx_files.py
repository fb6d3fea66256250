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


def write_graph(
    path: str | Path,
    module: nn.Module,
    inputs: Mapping[str, tuple[Tensor, dict[int, str]]],
    outputs: Sequence[str],
) -> None:
    """Write what `module` computes as a graph, whole or not at all.

    `inputs` are its arguments by name, each with an example and the names of the axes that may vary; two of them must
    not be the same tensor. Raises ModuleNotFoundError without onnx and onnxscript, OSError when the file cannot be.
    """
    for name in ("onnx", "onnxscript"):
        package(name)
    examples = tuple(example for example, _ in inputs.values())
    if len({id(example) for example in examples}) < len(examples):
        raise ValueError("one example stands for two inputs, which would become one in the graph")
    with quietly(), torch.no_grad():
        program = torch.onnx.export(
            module,
            examples,
            dynamo=True,
            dynamic_shapes={name: axes for name, (_, axes) in inputs.items()},
            input_names=list(inputs),
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
