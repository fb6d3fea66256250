"""support.benchmark: what work costs, by clocks that are wound by hand, and steps that are compared with the first."""

import contextlib
import itertools
import types
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

from dotformer.support import benchmark as support
from dotformer.support.benchmark import (
    Workload,
    benchmark,
    climb,
    count_synchronisations,
    cumulative,
    feed,
    gradient_error,
    measure_steps,
    most_allocated,
    profile_operators,
    synchronize,
    timeline,
)
from dotformer.support.memory import saved_activations
from dotformer.support.modes import matmul_precision
from dotformer.transformer import TransformerConfig

MODEL = TransformerConfig(40, 50, 2, 1, d_model=16, num_heads=2, d_ff=32, dropout=0.0, max_length=24)


# clocks


def test_a_device_of_another_kind_is_waited_for(monkeypatch):
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda which: waits.append(which))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waits.append("mps"))
    for device in ("cpu", torch.device("cpu"), "cuda", torch.device("cuda", 1), "mps"):
        synchronize(device)
    assert waits == [torch.device("cuda"), torch.device("cuda", 1), "mps"]


def test_times_are_taken_once_all_is_done_and_the_first_does_not_count(monkeypatch):
    events, clock = [], iter([0, 100, 200, 201, 300, 302, 400, 404])
    monkeypatch.setattr(support, "synchronize", lambda device: events.append(device))
    monkeypatch.setattr(
        support, "time", types.SimpleNamespace(perf_counter=lambda: (events.append("clock"), next(clock))[1])
    )
    assert benchmark(lambda: events.append("work"), "here", 3) == [1, 2, 4]
    assert events == ["here", "clock", "work", "here", "clock"] * 4


def test_the_costliest_operators_come_first_and_on_a_gpu_its_kernels(monkeypatch):
    cpu, cuda = types.SimpleNamespace(name="CPU"), types.SimpleNamespace(name="CUDA")
    rows = [("call", cpu, 9, 9), ("fast", cuda, 7, 2e6), ("slow", cuda, 0, 3e6)]
    operators = [
        types.SimpleNamespace(
            key=key, device_type=device, self_cpu_time_total=c, self_device_time_total=d, is_user_annotation=False
        )
        for key, device, c, d in rows
    ]
    events = []

    @contextlib.contextmanager
    def watching(activities):
        events.append([activity.name for activity in activities])
        yield types.SimpleNamespace(key_averages=lambda: operators)
        events.append("end")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: events.append("wait"))
    assert "aten::mm" in dict(profile_operators(lambda: torch.ones(9, 9) @ torch.ones(9, 9), "cpu"))
    monkeypatch.setattr(support, "profile", watching)
    assert profile_operators(lambda: events.append("work"), "cuda") == [("slow", 3.0), ("fast", 2.0)]
    assert events == ["work"] * 3 + ["wait", ["CPU", "CUDA"], "work", "wait", "end"]


def test_a_timeline_has_operators_in_order_and_who_called_them():
    matrix = torch.ones(9, 9, requires_grad=True)
    found = timeline(lambda: (matrix @ matrix).sum().backward())
    products = [outermost for name, outermost, *_ in found if name == "aten::mm"]
    assert products[0] == "aten::matmul" and len(products) == 3
    assert all(outermost.startswith("autograd") for outermost in products[1:])
    starts = [start for *_, start, _ in found]
    assert starts == sorted(starts) and starts[0] == 0 and all(start <= end for *_, start, end in found)


def test_the_most_that_was_allocated_counts_what_is_there_at_once_and_not_what_was_there_before():
    before = torch.ones(1000)

    def work():
        for _ in range(3):
            torch.ones(1 << 20).sum() + before.sum()

    assert 4 << 20 <= most_allocated(work) < 5 << 20
    assert 12 << 20 <= most_allocated(lambda: [torch.ones(1 << 20) for _ in range(3)]) < 13 << 20


def test_the_precision_of_products_is_put_back():
    before = torch.get_float32_matmul_precision()
    with matmul_precision("high"):
        assert torch.get_float32_matmul_precision() == "high"
        with pytest.raises(KeyError), matmul_precision("medium"):
            assert torch.get_float32_matmul_precision() == "medium"
            raise KeyError
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


# what is computed


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Workload(TransformerConfig(9, 9), 1, 1), "^dropout must be 0, not 0.1$"),
        (lambda: Workload(MODEL, 0, 3), "^pairs must be positive, not 0$"),
        (lambda: Workload(MODEL, 3, 0), "^length must be positive, not 0$"),
        (lambda: measure_steps(None, None, 1, steps=1), "^steps must be at least 2, not 1$"),  # it has no quartiles
    ],
)
def test_a_workload_that_cannot_be_measured_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_tokens_are_real_ones_of_both_sides():
    work = Workload(TransformerConfig(9, 5, dropout=0.0), 200, 3)
    pairs = work.tokens()
    assert [tuple(map(len, pair)) for pair in pairs] == [(3, 4)] * 200
    assert {token for pair in pairs for side in pair for token in side} == {3, 4}
    assert pairs == work.tokens() != replace(work, seed=1).tokens()
    assert work.tokens(3) == pairs * 3
    assert len({(*source, *target) for source, target in pairs}) > 90


def epochs(epoch):
    """Two batches in each epoch, which say where they are from."""
    for n in range(2):
        yield torch.tensor([epoch]), torch.tensor([n])


@pytest.mark.parametrize("way", ["held", "made", "ahead"])
def test_batches_come_epoch_after_epoch_or_are_held(way):
    asked = []

    def prefetch(batches, pin):
        asked.append(pin)
        return batches()

    found = list(itertools.islice(feed(epochs, way, "cpu", prefetch), 5))
    places = [(int(source), int(target)) for source, target in found]
    assert places == ([(0, 0)] * 5 if way == "held" else [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)])
    assert (found[0][0] is found[2][0]) == (way == "held")
    assert asked == ([False] if way == "ahead" else [])


def test_each_number_that_is_taken_from_a_tensor_is_counted():
    x = torch.tensor([1.0, -2.0])

    def work():
        return float(x[0]) if x.sum() < 0 else x.max()

    assert count_synchronisations(work) == 2
    assert count_synchronisations(lambda: x.max() + x.shape[0]) == 0


# what it costs


@pytest.fixture
def linear():
    """A small model, and a step of it that learns nothing."""
    model, x = nn.Linear(4, 5), torch.randn(3, 4)

    def step():
        model.zero_grad()
        loss = model(x).tanh().sum()
        loss.backward()
        return 6.0, 4

    return model, step


def test_costs_by_a_clock_wound_by_hand(monkeypatch, linear):
    model, step = linear
    seconds = [50.0, 70.0, 4.0, 1.0, 3.0, 2.0, 8.0]  # the first two do not count
    ticks = iter(itertools.accumulate(s for n in seconds for s in (1.0, n)))
    monkeypatch.setattr(support, "time", types.SimpleNamespace(perf_counter=lambda: next(ticks)))
    found = measure_steps(step, model, flops=900, steps=5)
    assert next(ticks, None) is None
    assert (found["loss"], found["first_step"]) == (1.5, 50.0)
    assert found["seconds"] == np.quantile([4.0, 1.0, 3.0, 2.0, 8.0], [0.25, 0.5, 0.75]).tolist()
    assert (found["tokens_per_second"], found["flops_per_second"]) == (2 * 4 / 3.0, 900 / 3.0)
    assert all(torch.equal(g, p.grad) for g, p in zip(found["gradients"], model.parameters(), strict=True))
    with saved_activations(model) as kept:
        step()
    assert found["peak_memory"] == 16 * (4 * 5 + 5) + sum(kept.values())


def test_a_gpu_is_asked_for_its_memory(monkeypatch, linear):
    model, step = linear
    events = []
    monkeypatch.setattr(support, "synchronize", lambda device: events.append(device))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda which: events.append(("reset", which)))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda which: (events.append(("asked", which)), 12345)[1])
    monkeypatch.setattr(support, "saved_activations", lambda _: pytest.fail("that would take time"))
    found = measure_steps(lambda: (events.append("step"), step())[1], model, 1, "cuda:1", 2)
    assert found["peak_memory"] == 12345
    assert events == [("reset", "cuda:1"), *["cuda:1", "step", "cuda:1"] * 4, ("asked", "cuda:1")]


# one after another


@dataclass(frozen=True)
class Pair:
    """Two settings."""

    a: int = 0
    b: int = 0


def test_changes_add_up():
    found = cumulative(Pair(), {"first": {}, "second": {"b": 2}, "third": {"a": 1}})
    assert found == {"first": Pair(0, 0), "second": Pair(0, 2), "third": Pair(1, 2)}


def test_the_error_of_gradients_is_relative_and_new_rows_should_be_zero():
    right = [torch.tensor([3.0, 4.0]), torch.tensor([[0.0, 0.0]])]
    assert gradient_error(right, right) == 0
    assert gradient_error([torch.tensor([3.0, 4.5]), right[1]], right) == pytest.approx(0.1)
    padded = [right[0], torch.zeros(3, 2)]
    assert gradient_error(padded, right) == 0
    padded[1][2, 0] = 10
    assert gradient_error(padded, right) == pytest.approx(2)


def test_errors_are_relative_to_the_first():
    rows = {"a": (2.0, [3.0, 4.0]), "b": (2.5, [3.0, 4.5]), "c": (1.0, [0.0, 0.0])}
    measured = {name: {"loss": loss, "gradients": [torch.tensor(g)]} for name, (loss, g) in rows.items()}
    found = list(climb(measured.get, {name: name for name in rows}))
    assert [(row["name"], row["loss_error"], row["gradient_error"]) for row in found] == [
        ("a", 0.0, 0.0),
        ("b", 0.25, pytest.approx(0.1)),
        ("c", 0.5, 1.0),
    ]
    assert all(row.keys() == {"name", "loss", "loss_error", "gradient_error"} for row in found)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (torch.OutOfMemoryError("\nCUDA out of memory. Tried\nmore"), "CUDA out of memory. Tried"),
        (BackendCompilerFailed("inductor", RuntimeError("no g++"), None), None),
    ],
)
def test_what_cannot_run_says_so_and_the_others_go_on(error, says):
    def measure(setup):
        if setup == 2:
            raise error
        return {"loss": 1.0, "gradients": [torch.ones(1)]}

    found = list(climb(measure, {"one": 1, "large": 2, "again": 1}))
    assert found[1].keys() == {"name", "error"} and found[1]["name"] == "large"
    assert found[1]["error"] and "\n" not in found[1]["error"] and says in (None, found[1]["error"])
    assert found[2]["gradient_error"] == 0
