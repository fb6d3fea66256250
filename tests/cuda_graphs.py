"""Stand-ins for CUDA graphs where there is no CUDA device."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from dotformer.devices import GraphTrainer


class RecordedOperators(TorchDispatchMode):
    """A CUDA graph as far as a CPU can have one: what runs inside is undone at the end, and done again by `replay`.

    Done again are PyTorch's operators, in the same places of memory, with the numbers that they had from Python.
    """

    def __init__(self):
        super().__init__()
        self.calls, self.before, self.replays = [], [], 0

    def __torch_dispatch__(self, operator, types, given=(), named=None):
        named = named or {}
        parts = zip(operator._schema.arguments, [*given, *[None] * len(operator._schema.arguments)], strict=False)
        written = [named.get(one.name, value) for one, value in parts if one.alias_info and one.alias_info.is_write]
        for tensor in tree_flatten(written)[0]:
            self.before.append((tensor, tensor.clone()))
        found = operator(*given, **named)
        self.calls.append((operator, given, named, found if not written and not is_view(operator) else None))
        return found

    def __exit__(self, *error):
        super().__exit__(*error)
        with torch.no_grad():
            for tensor, value in reversed(self.before):
                tensor.copy_(value)

    def replay(self):
        self.replays += 1
        with torch.no_grad():
            for operator, given, named, places in self.calls:
                found = operator(*given, **named)
                for place, value in zip(tree_flatten(places)[0], tree_flatten(found)[0], strict=False):
                    if isinstance(place, torch.Tensor):
                        place.copy_(value)


def is_view(operator):
    """Whether what an operator returns lies where one of its inputs does."""
    return any(one.alias_info for one in operator._schema.returns)


class OnCPU(GraphTrainer):
    """Records on a CPU, with the stand-in above."""

    can_record = ("cpu",)


def stand_in(monkeypatch):
    """Put stand-ins in the place of what only a CUDA build of PyTorch has; the graphs that will have been made."""
    made, stream = [], SimpleNamespace(wait_stream=lambda _: None)

    def new():
        made.append(RecordedOperators())
        return made[-1]

    for name, value in (
        ("Stream", lambda _: stream),
        ("set_stream", lambda _: None),
        ("current_stream", lambda: stream),
        ("stream", lambda _: nullcontext()),
        ("graph_pool_handle", lambda: None),
        ("CUDAGraph", new),
        ("graph", lambda graph, *_, **__: graph),
    ):
        monkeypatch.setattr(torch.cuda, name, value)
    return made
