"""The bytes that a training step reads and writes: `python -m benchmarks.traffic`.

Counts, for the recorded step of chapter 20 on a GPU, what each kernel reads and writes; nothing is timed. What the
compiler makes of an encoder layer and of a decoder layer, it says itself. What is computed outside of the layers, one
operator after another, is counted here: embeddings and logits of a model whose layers do nothing, and the update. The
loss is not counted. All of it runs on a CPU, for which the compiler may fuse a little differently. Takes a minute and
12 GB, and writes book/measurements/traffic.json.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._inductor.graph import GraphLowering
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.gpu.ladder import WORKLOADS, setups
from benchmarks.results import save
from dotformer.devices import pad_vocabulary, training_flops
from dotformer.support.benchmark import Workload
from dotformer.transformer import Transformer


@contextmanager
def compiled_bytes() -> Iterator[Counter[str]]:
    """Count what is compiled in this context: the bytes of its "products", its "attention" and its "fused" kernels."""
    found: Counter[str] = Counter()
    generate = GraphLowering.codegen

    def codegen(graph: GraphLowering) -> Any:
        made = generate(graph)
        for kernel, elements in graph.count_bytes()[1]:
            name = getattr(getattr(kernel, "node", None), "python_kernel_name", None) or ""
            kind = "attention" if "attention" in name else "products" if "mm" in name else "fused"
            found[kind] += 4 * elements
        return made

    torch.compiler.reset()
    with patch.object(GraphLowering, "codegen", codegen), torch._inductor.config.patch(fx_graph_cache=False):
        yield found


class OperatorBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that each operator reads and writes. A view moves none."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        out, schema = operator(*given, **(named or {})), operator._schema
        if operator.is_view or operator is torch.ops.aten._unsafe_view.default:
            return out
        moved = 0 if any(returned.alias_info for returned in schema.returns) else size_of(out)
        arguments = {argument.name: argument.alias_info for argument in schema.arguments}
        for name, value in (dict(zip(arguments, given, strict=False)) | (named or {})).items():
            written = arguments[name] is not None and arguments[name].is_write
            moved += (1 + written) * size_of(value)
        self.bytes[operator.name()] += moved
        return out


def size_of(tensors: Any) -> int:
    """The bytes of all tensors in a structure."""
    return sum(leaf.nbytes for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor))


class Through(nn.Module):
    """In place of a layer: what comes in goes out, in a decoder with the memory added, so that gradients reach it."""

    def forward(self, x: Tensor, *others: Tensor | None) -> Tensor:
        return x + others[0] if len(others) == 3 else x


def layer_bytes(workload: Workload, pairs: int) -> dict[str, Counter[str]]:
    """What an encoder layer and a decoder layer move, forward and back, when each is compiled."""
    model = Transformer(replace(workload.config, num_encoder_layers=1, num_decoder_layers=1))
    x, memory = torch.randn(2, pairs, workload.length, workload.config.d_model)
    return {
        "encoder layer": moved_by(model.encoder.layers[0], x.requires_grad_()),
        "decoder layer": moved_by(model.decoder.layers[0], x, memory.requires_grad_()),
    }


def moved_by(function: Callable[..., Tensor], *given: Tensor) -> Counter[str]:
    """What the compiled function moves, with its gradient."""
    with compiled_bytes() as found:
        with torch.autocast("cpu", torch.bfloat16):
            out = torch.compile(function)(*given)
        out.backward(torch.ones_like(out))
    return found


def outside(workload: Workload, pairs: int, multiple: int) -> dict[str, Counter[str]]:
    """What moves outside of the layers and the loss: embeddings and logits, and the update."""
    model = Transformer(workload.config)
    pad_vocabulary(model, multiple)
    parameters = [*model.parameters()]
    optimizer = torch.optim.AdamW(parameters, fused=True)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # makes its state
    with OperatorBytes() as update:
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    optimizer.zero_grad()
    model.encoder.layers, model.decoder.layers = nn.ModuleList([Through()]), nn.ModuleList([Through()])
    tokens = torch.ones(pairs, workload.length, dtype=torch.long)
    with OperatorBytes() as others, torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens, tokens)
    gradient = torch.zeros_like(logits)
    with others:
        logits.backward(gradient)
    return {"embeddings and logits": others.bytes, "update": update.bytes}


def step_bytes(sizes: str) -> dict[str, Any]:
    """The workload, the FLOPs of a step's products, and the bytes of each part by kind of kernel or by operator."""
    workload, setup = WORKLOADS[sizes], setups(sizes)["CUDA graph"]
    pairs, length = workload.pairs * setup.batch, workload.length
    parts = layer_bytes(workload, pairs) | outside(workload, pairs, setup.vocabulary_multiple)
    return {
        "pairs": pairs,
        "length": length,
        "flops": training_flops(workload.config, pairs, length, length),
        "bytes": {name: {kind: moved for kind, moved in kinds.most_common() if moved} for name, kinds in parts.items()},
    }


if __name__ == "__main__":
    save("traffic", step_bytes("cuda"))
