"""ladder: rungs that compute the same, that say so, and what they cost by a clock that is wound by hand."""

import contextlib
import itertools
import statistics
import types
from dataclasses import asdict, replace

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional as F

from dotformer import ladder
from dotformer.attention import MultiHeadAttention
from dotformer.devices import Checkpointed, PaddedOutput, kept_for_backward, step_operations
from dotformer.ladder import Setup, Workload, climb, feed, measure, rungs, set_up, setups, trainer
from dotformer.training import Trainer, TrainingConfig, cross_entropy
from dotformer.transformer import TransformerConfig

MODEL = TransformerConfig(40, 50, 2, 1, d_model=16, num_heads=2, d_ff=32, dropout=0.0, max_length=24)
WORK = Workload(MODEL, pairs=3, length=12)
EXACT = {name: change for name, change in rungs().items() if name not in ("bf16", "compile")}


# what is computed


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Workload(TransformerConfig(9, 9), 1, 1), "^dropout must be 0, not 0.1$"),
        (lambda: Workload(MODEL, 0, 3), "^pairs and length must be positive, not 0 and 3$"),
        (lambda: measure(WORK, Setup(), steps=1), "^steps must be at least 2, not 1$"),  # it has no quartiles
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


# the ways


def test_the_ladder_changes_one_thing_a_rung():
    ways = list(setups(rungs()).values())
    assert ways[0] == Setup() == Setup("float32", False, False, False, 1, 1, "held", False)
    changes = [
        {name for name, value in asdict(b).items() if value != asdict(a)[name]} for a, b in itertools.pairwise(ways)
    ]
    assert [sorted(names) for names in changes] == [
        ["precision"],
        ["precision"],
        ["fused_attention"],
        ["compiled"],
        ["fused_optimizer"],
        ["vocabulary_multiple"],
        ["batch"],
        ["feed"],
        ["feed"],
        ["checkpointing", "feed"],  # beside the larger batch, which is held as well
    ]
    assert ways[-1] == replace(setups(rungs())["larger batch"], checkpointing=True)
    assert rungs() is not rungs() and rungs() == rungs()


@pytest.mark.parametrize("fused", [True, False])
def test_attention_is_fused_or_written_out(monkeypatch, fused):
    calls, attend = [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *given: (calls.append(1), attend(*given))[1])
    model = set_up(WORK.fresh("cpu"), Setup(fused_attention=fused))
    weights = []
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.register_forward_hook(lambda _m, _i, output: weights.append(output[1]))
    model(torch.tensor([[3, 4, 0]]), torch.tensor([[3, 4]]))
    attentions = 2 + 2 * 1
    assert len(calls) == (attentions if fused else 0)
    assert [found is None for found in weights] == [fused] * attentions


def test_layers_are_computed_twice():
    model = WORK.fresh("cpu")
    layers = [*model.encoder.layers, *model.decoder.layers]
    names = [id(p) for p in model.parameters()]
    set_up(model, Setup(checkpointing=True))
    wrapped = [*model.encoder.layers, *model.decoder.layers]
    assert all(isinstance(layer, Checkpointed) for layer in wrapped)
    assert [layer.layer for layer in wrapped] == layers
    assert isinstance(set_up(model, Setup(vocabulary_multiple=64)).output, PaddedOutput)
    assert [id(p) for p in model.parameters()] == names


@pytest.mark.parametrize("way", ["held", "made", "ahead"])
def test_batches_hold_all_pairs_each_time(way):
    batches = feed(WORK, Setup(feed=way, batch=4), "cpu")
    found = list(itertools.islice(batches, 3))
    expected = sorted(WORK.tokens() * 4)
    for source, target in found:
        assert (source.shape, target.shape) == ((12, 12), (12, 13))
        assert sorted(zip(source.tolist(), target.tolist(), strict=True)) == expected
    assert (found[0] is found[2]) == (way == "held")
    batches.close()


# a step


@pytest.mark.parametrize(
    ("precision", "rounding", "dtype"),
    [
        ("float32", "highest", torch.float32),
        ("tf32", "high", torch.float32),
        ("bfloat16", "high", torch.bfloat16),
        ("float16", "high", torch.float16),
    ],
)
def test_a_step_is_made_in_the_precision_of_its_rung(monkeypatch, precision, rounding, dtype):
    seen = []

    def taken(self, batches, rate):
        with self.precision():
            product = torch.ones(2, 2) @ torch.ones(2, 2)
        clip = self.config.max_grad_norm
        seen.extend((torch.get_float32_matmul_precision(), product.dtype, rate, self.criterion, clip))
        [group] = self.optimizer.param_groups
        seen.extend((type(self.optimizer), group["fused"], group["foreach"], group["weight_decay"], len(batches)))
        return 3.0, 4

    monkeypatch.setattr(ladder.Trainer, "train_step", taken)
    step, model = trainer(WORK, Setup(precision, fused_optimizer=precision == "tf32"), "cpu")
    before = torch.get_float32_matmul_precision()
    assert step((None, None)) == (3.0, 4) and torch.get_float32_matmul_precision() == before
    assert seen[:5] == [rounding, dtype, 0.0, cross_entropy, 1e9]
    # not False, with which PyTorch would not choose the next best way, `foreach`, either
    assert seen[5:] == [torch.optim.AdamW, True if precision == "tf32" else None, None, 0.0, 1]
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_all_steps_find_the_same_model():
    step, model = trainer(WORK, Setup(fused_optimizer=True), "cpu")
    batch = next(feed(WORK, Setup(), "cpu"))
    before = [p.detach().clone() for p in model.parameters()]
    found = [step(batch) for _ in range(3)]
    assert found[0] == found[1] == found[2] and found[0][1] == 3 * 12
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_a_step_is_that_of_a_training():
    model = WORK.fresh("cpu")
    batch = next(feed(WORK, Setup(), "cpu"))
    loss, targets = Trainer(model, TrainingConfig(max_grad_norm=1e9)).train_step([batch], 0.0)
    found = measure(WORK, Setup(), steps=2)
    assert found["loss"] == pytest.approx(loss / targets, rel=1e-6)
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(found["gradient"], gradient, rtol=1e-5, atol=1e-7)


# what it costs


def test_costs_by_a_clock_wound_by_hand(monkeypatch):
    seconds = [50.0, 70.0, 4.0, 1.0, 3.0, 2.0, 8.0]  # the first two do not count
    ticks = iter(itertools.accumulate(s for n in seconds for s in (1.0, n)))
    monkeypatch.setattr(ladder, "time", types.SimpleNamespace(perf_counter=lambda: next(ticks)))
    found = measure(WORK, Setup(batch=2), steps=5)
    assert next(ticks, None) is None
    assert found["first_step"] == 50.0
    assert found["seconds"] == statistics.quantiles([4.0, 1.0, 3.0, 2.0, 8.0], n=4)
    assert found["tokens_per_second"] == 2 * (3 * 2 * 12) / 3.0
    assert found["operations_per_second"] == sum(step_operations(MODEL, 6, 12, 12).values()) / 3.0


def test_a_gpu_is_asked_for_its_memory(monkeypatch):
    events = []
    model = WORK.fresh("cpu")

    def step(batch):
        events.append(batch)
        model(*batch).sum().backward()
        return 6.0, 4

    rows = torch.tensor([[3, 4]])
    monkeypatch.setattr(ladder, "trainer", lambda *_: (step, model))
    monkeypatch.setattr(ladder, "feed", lambda *_: itertools.repeat((rows, rows)))
    monkeypatch.setattr(ladder, "synchronize", lambda device: events.append(device))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda which: events.append(("reset", which)))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda which: (events.append(("asked", which)), 12345)[1])
    monkeypatch.setattr(ladder, "kept_for_backward", lambda _: pytest.fail("that would take time"))
    found = measure(WORK, Setup(), "cuda:1", 2)
    assert (found["memory"], found["loss"]) == (12345, 1.5)
    assert events == [("reset", "cuda:1"), *["cuda:1", (rows, rows), "cuda:1"] * 4, ("asked", "cuda:1")]


def test_elsewhere_memory_is_counted():
    found = measure(WORK, Setup(), steps=2)
    step, model = trainer(WORK, Setup(), "cpu")
    with kept_for_backward(model) as kept:
        step(next(feed(WORK, Setup(), "cpu")))
    assert found["memory"] == 16 * sum(p.numel() for p in model.parameters()) + sum(kept.values())


@pytest.fixture(scope="module")
def climbed():
    """A ladder without the rungs that need a compiler, or round."""
    return {row["name"]: row for row in climb(WORK, EXACT, steps=2)}


def test_all_rungs_compute_the_same(climbed):
    assert list(climbed) == list(EXACT)
    assert climbed["float32"]["loss_error"] == climbed["float32"]["gradient_error"] == 0
    for row in climbed.values():
        assert "error" not in row and "gradient" not in row
        assert row["loss_error"] < 1e-6 and row["gradient_error"] < 1e-6


def test_half_the_digits_are_off_by_some_percent():
    _, bf16 = climb(WORK, {"float32": {}, "bf16": {"precision": "bfloat16"}}, steps=2)
    assert 1e-3 < bf16["gradient_error"] < 0.1 and 0 < bf16["loss_error"] < 1e-2


def test_errors_are_relative_to_the_first_rung(monkeypatch):
    rows = iter([(2.0, [3.0, 4.0]), (2.5, [3.0, 4.5]), (1.0, [0.0, 0.0])])

    def measured(*_):
        loss, gradient = next(rows)
        return {"loss": loss, "gradient": torch.tensor(gradient)}

    monkeypatch.setattr(ladder, "measure", measured)
    found = list(climb(WORK, {"a": {}, "b": {}, "c": {}}))
    assert [(row["name"], row["loss_error"], row["gradient_error"]) for row in found] == [
        ("a", 0.0, 0.0),
        ("b", 0.25, pytest.approx(0.1)),
        ("c", 0.5, 1.0),
    ]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (torch.OutOfMemoryError("\nCUDA out of memory. Tried\nmore"), "CUDA out of memory. Tried"),
        (BackendCompilerFailed("inductor", RuntimeError("no g++"), None), None),
    ],
)
def test_a_rung_that_cannot_run_says_so_and_the_others_go_on(monkeypatch, error, says):
    measured = []

    def fails(workload, setup, device, steps):
        measured.append((setup.batch, device, steps))
        if setup.batch == 2:
            raise error
        return measure(workload, setup, device, steps)

    monkeypatch.setattr(ladder, "measure", fails)
    found = list(climb(WORK, {"one": {}, "large": {"batch": 2}, "again": {"batch": 1}}, "cpu", 2))
    assert measured == [(1, "cpu", 2), (2, "cpu", 2), (1, "cpu", 2)]
    assert found[1].keys() == {"name", "error"} and found[1]["name"] == "large"
    assert found[1]["error"] and "\n" not in found[1]["error"] and says in (None, found[1]["error"])
    assert found[2]["gradient_error"] == 0


def test_compiled_rungs_compute_the_same(monkeypatch):
    """With PyTorch's own tracer, and no compiler behind it, which would take half a minute."""
    compiled, whole = torch.compile, []

    def traced(function, **options):
        whole.append(function)
        return compiled(function, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", traced)
    small = Workload(TransformerConfig(9, 9, 1, 1, d_model=8, num_heads=2, d_ff=16, dropout=0.0, max_length=12), 2, 3)
    with contextlib.ExitStack() as stack:
        stack.callback(torch._dynamo.reset)
        one, other = climb(small, {"one": {}, "compiled": {"compiled": True}}, steps=2)
    assert cross_entropy in whole and len(whole) == 3
    assert other["gradient_error"] < 1e-6 and other["loss_error"] < 1e-6
    assert one["memory"] <= other["memory"] < 1.1 * one["memory"]
