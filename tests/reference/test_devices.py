"""devices beside PyTorch's own counters, beside clocks that are wound by hand, and beside arrays counted on paper."""

import contextlib
import copy
import gc
import os
import pickle
import types
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import get_worker_info
from torch.utils.flop_counter import FlopCounterMode

from dotformer import devices
from dotformer.devices import (
    Checkpointed,
    Epoch,
    PaddedOutput,
    copy_rate,
    costliest,
    kept_for_backward,
    made_ahead,
    memory_of_step,
    product_precision,
    product_rate,
    step_operations,
    synchronize,
    time_of,
    what_to_shrink,
)
from dotformer.encoder import EncoderLayer, LayerConfig
from dotformer.support.recording import record_weights
from dotformer.training import Trainer, TrainingConfig, pair_batches
from dotformer.transformer import Transformer, TransformerConfig

# operations


SHAPES = [
    ({}, 1, 7, 3),
    ({"num_encoder_layers": 3}, 3, 4, 6),
    ({"num_decoder_layers": 3, "tie_output": False}, 2, 6, 4),
    ({"d_ff": 20, "num_heads": 4, "source_vocab_size": 23}, 2, 3, 8),
    ({"norm_first": True, "target_vocab_size": 31}, 4, 2, 5),
]


@pytest.mark.parametrize(("shape", "batch", "source", "target"), SHAPES)
def test_operations_are_those_that_torch_counts(shape, batch, source, target):
    sizes = {"source_vocab_size": 11, "target_vocab_size": 13, "d_model": 8, "num_heads": 2, "d_ff": 16}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.0, "max_length": 12}
    config = TransformerConfig(**(sizes | layers | shape))
    model = Transformer(config)
    pairs = torch.ones(batch, source, dtype=torch.long), torch.ones(batch, target, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, record_weights(model):
        model(*pairs).sum().backward()
    ours, theirs = step_operations(config, batch, source, target), counter.get_flop_counts()
    assert sum(ours.values()) == counter.get_total_flops()
    assert ours["scores and blends"] == theirs["Global"][torch.ops.aten.bmm]

    def within(name):
        return sum(sum(found.values()) for module, found in theirs.items() if module.endswith(name))

    assert (ours["output"], ours["feed-forward"]) == (within("Transformer.output"), within(".feed_forward"))


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
    monkeypatch.setattr(devices, "synchronize", lambda device: events.append(device))
    monkeypatch.setattr(
        devices, "time", types.SimpleNamespace(perf_counter=lambda: (events.append("clock"), next(clock))[1])
    )
    assert time_of(lambda: events.append("work"), "here", 3) == [1, 2, 4]
    assert events == ["here", "clock", "work", "here", "clock"] * 4


def test_rates_are_counted_by_numbers_and_operations(monkeypatch):
    seen = []

    def timed(work, device):
        seen.append((work(), device))
        return [1.0, 9.0, 4.0]

    monkeypatch.setattr(devices, "time_of", timed)
    assert copy_rate("cpu", 1000) == (1000 * 4 + 1000 * 4) / 4.0  # each is read and written
    assert product_rate("cpu", 6, torch.bfloat16) == 2 * 6 * 6 * 6 / 4.0
    (copied, _), (product, device) = seen
    assert copied.shape == (1000,) and copied.std() > 0.5  # the numbers were copied
    assert product.shape == (6, 6) and product.dtype == torch.bfloat16 and device == "cpu"


# where the time goes


def test_the_costliest_operations_come_first_and_on_a_gpu_its_own(monkeypatch):
    cpu, cuda = types.SimpleNamespace(name="CPU"), types.SimpleNamespace(name="CUDA")
    rows = [("call", cpu, 9, 9), ("fast", cuda, 7, 2e6), ("slow", cuda, 0, 3e6)]
    kinds = [
        types.SimpleNamespace(
            key=key, device_type=kind, self_cpu_time_total=c, self_device_time_total=d, is_user_annotation=False
        )
        for key, kind, c, d in rows
    ]
    events = []

    @contextlib.contextmanager
    def watching(activities):
        events.append([activity.name for activity in activities])
        yield types.SimpleNamespace(key_averages=lambda: kinds)
        events.append("end")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: events.append("wait"))
    assert "aten::mm" in dict(costliest(lambda: torch.ones(9, 9) @ torch.ones(9, 9), "cpu"))
    monkeypatch.setattr(devices, "profile", watching)
    found = costliest(lambda: events.append("work"), "cuda")
    assert found == [("slow", 3.0), ("fast", 2.0)]
    assert events == ["work"] * 3 + ["wait", ["CPU", "CUDA"], "work", "wait", "end"]


def test_the_precision_of_products_is_put_back():
    before = torch.get_float32_matmul_precision()
    with product_precision("high"):
        assert torch.get_float32_matmul_precision() == "high"
        with pytest.raises(KeyError), product_precision("medium"):
            assert torch.get_float32_matmul_precision() == "medium"
            raise KeyError
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


# what is computed a second time


def layers(dropout=0.0):
    """An encoder's layer, the same computed twice, and sentences with a mask for both."""
    torch.manual_seed(0)
    one = EncoderLayer(LayerConfig(d_model=8, num_heads=2, d_ff=32, dropout=dropout))
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])[:, None, None]
    return one, Checkpointed(copy.deepcopy(one)), torch.randn(2, 5, 8), mask


@pytest.mark.parametrize(("dropout", "masked"), [(0.0, False), (0.5, True)])
def test_a_layer_computed_twice_has_the_same_output_and_gradients(dropout, masked):
    *both, x, mask = layers(dropout)
    found = []
    for layer in both:
        torch.manual_seed(1)
        inputs = x.clone().requires_grad_()
        output = layer(inputs, mask if masked else None)
        output.square().sum().backward()
        found.append([output, inputs.grad, *(p.grad for p in layer.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_it_is_computed_twice_and_less_is_kept():
    one, twice, x, mask = layers()
    calls, kept = [], []
    twice.layer.register_forward_pre_hook(lambda *_: calls.append(1))
    for layer in (one, twice):
        with kept_for_backward(layer) as found:
            output = layer(x.clone().requires_grad_(), mask)
        kept.append(sum(found.values()))
    assert len(calls) == 1 and kept[1] < kept[0] / 4
    assert kept[1] >= x.nbytes  # what goes in has to be there
    output.sum().backward()
    assert len(calls) == 2


# rows of zeros


@pytest.mark.parametrize(("rows", "multiple", "in_all"), [(6001, 64, 6016), (64, 64, 64)])
def test_the_product_has_a_multiple_of_rows(monkeypatch, rows, multiple, in_all):
    seen, product = [], F.linear
    monkeypatch.setattr(F, "linear", lambda x, weight: (seen.append(weight), product(x, weight))[1])
    scores = PaddedOutput(nn.Linear(2, rows, bias=False), multiple)(torch.ones(3, 2))
    assert seen[0].shape == (in_all, 2) and not seen[0][rows:].any()
    assert scores.shape == (3, rows)


@pytest.mark.parametrize("tie_output", [True, False])
def test_a_model_with_padded_rows_has_the_same_parameters(tie_output):
    config = TransformerConfig(
        11, 13, 1, 1, d_model=8, num_heads=2, d_ff=16, dropout=0.0, max_length=12, tie_output=tie_output
    )
    torch.manual_seed(0)
    one = Transformer(config)
    other = copy.deepcopy(one)
    other.output = PaddedOutput(other.output, 8)
    pairs = torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6]])
    for model in (one, other):
        model(*pairs).square().sum().backward()
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-5)
    assert (other.output.output.weight is other.target_embeddings.tokens.weight) == tie_output
    assert set(one.state_dict()) ^ set(other.state_dict()) == {"output.weight", "output.output.weight"}


# batches made ahead


PAIRS = [([3] * n, [1, *[4] * n, 2]) for n in (1, 2, 3, 4, 2, 1, 3)]


def numbers(batches):
    return [[rows.tolist() for rows in batch] for batch in batches]


def test_the_same_batches_in_the_same_order():
    batches = partial(pair_batches, PAIRS, max_tokens=12)
    ahead = made_ahead(batches)
    before = torch.get_rng_state()
    for epoch in (0, 1, 5):
        assert numbers(ahead(epoch)) == numbers(batches(epoch))
    assert numbers(batches(0)) != numbers(batches(1))
    assert torch.equal(torch.get_rng_state(), before)
    sent = pickle.loads(pickle.dumps(Epoch(batches, 3)))  # as to a process that knows nothing
    assert numbers(sent) == numbers(batches(3))


def where(epoch):
    """Who makes batches."""
    yield torch.tensor([epoch, os.getpid(), get_worker_info() is not None])


def test_another_process_makes_them():
    [(epoch, process, worker)] = (batch.tolist() for batch in made_ahead(where)(7))
    assert epoch == 7 and worker and process != os.getpid()
    assert [made_ahead(where, pin=pin)(0).pin_memory for pin in (False, True)] == [False, True]


def broken(epoch):
    yield torch.zeros(1)
    raise ValueError("line 7 is empty")


def test_what_goes_wrong_there_is_said_here(monkeypatch):
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)  # so long PyTorch waits for its end
    with pytest.raises(ValueError, match="line 7 is empty"):
        list(made_ahead(broken)(0))
    gc.collect()


# memory


def test_what_is_kept_counted_by_hand():
    linear, x = nn.Linear(4, 5), torch.randn(3, 4)
    with kept_for_backward(linear) as kept:
        y = linear(x).tanh()
    inside = dict(kept)
    assert inside == {x.data_ptr(): 3 * 4 * 4, y.data_ptr(): 3 * 5 * 4}  # the product keeps x, tanh its output
    y.tanh()
    assert kept == inside  # nothing is watched any more
    y.sum().backward()
    assert linear.weight.grad is not None


def test_a_part_counts_as_the_whole_once_and_a_view_of_a_parameter_not_at_all():
    table, x = nn.Parameter(torch.randn(4, 5)), torch.randn(8, 4)
    with kept_for_backward(nn.ParameterList([table])) as kept:
        (x[:2] @ table[:, 1:]).sum() + (x[3:] @ table[:, 1:]).sum()
    assert kept == {x.data_ptr(): 8 * 4 * 4}


def test_parameters_need_16_bytes_and_pairs_alike_and_nothing_is_changed():
    model = Transformer(TransformerConfig(9, 11, 1, 1, d_model=8, num_heads=2, d_ff=16, dropout=0.5, max_length=40))
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    row = torch.arange(20) % 6 + 3
    one, several = (memory_of_step(model, row.expand(n, -1), row.expand(n, -1)) for n in (1, 7))
    assert one[0] == several[0] == 16 * sum(p.numel() for p in model.parameters())
    assert several[1] == 7 * one[1]
    longer = memory_of_step(model, row.repeat(2)[None], row.repeat(2)[None])
    assert 1.9 * one[1] < longer[1] < 4 * one[1]
    assert torch.equal(torch.get_rng_state(), random) and model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


SMALLER, SHORTER = "; a smaller model is needed (d_model, d_ff, layers)", "; shorter sentences are needed, or a smaller"


@pytest.mark.parametrize(
    ("state", "batch", "says"),
    [
        (901, 1, SMALLER),
        (900, 1, SHORTER),
        (500, 4000, "; a batch of 1 fits (max_tokens = 6)"),
        (500, 2000, "; a batch of 2 fits (max_tokens = 12)"),
        (800, 200, "; a batch of 5 fits (max_tokens = 30)"),
        (500, 401, "; a batch of 9 fits (max_tokens = 54)"),
        (500, 400, "; that fits, so something else fills the memory"),
    ],
)
def test_what_has_to_shrink(monkeypatch, state, batch, says):
    monkeypatch.setattr(devices, "memory_of_step", lambda *_: (state * 10**7, batch * 10**7))
    source, target = (torch.ones(10, n, dtype=torch.long) for n in (3, 6))
    found = what_to_shrink(None, source, target, 1000 * 10**7)
    assert says in found and found.count(";") == 1
    start = f"10.00 GB of memory: the model and Adam need {state / 100:.2f}, 10 pairs of 6 tokens about"
    assert found.startswith(f"{start} {batch / 100:.2f};")


# last, since PyTorch's optimisers take seconds to load


def test_training_finds_the_same_model():
    config, found = TrainingConfig(steps=7, warmup_steps=1, validate_every=7), []
    batches = partial(pair_batches, PAIRS, max_tokens=12)
    for way in (batches, made_ahead(batches)):
        torch.manual_seed(0)
        model = Transformer(TransformerConfig(9, 9, 1, 1, d_model=8, num_heads=2, d_ff=16, dropout=0.5, max_length=12))
        Trainer(model, config).train(way, lambda _: {"loss": 0.0}, progress=False)
        found.append(model.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_the_memory_that_a_step_takes_is_about_that():
    """Beside what is there while a step of another program runs: that of a trainer, forward and back."""
    model = Transformer(TransformerConfig(9, 9, 2, 2, d_model=32, num_heads=2, d_ff=64, dropout=0.0, max_length=40))
    rows = torch.randint(3, 9, (4, 20))
    trainer = Trainer(model, TrainingConfig())
    with kept_for_backward(model) as kept:
        trainer.train_step([(rows, rows)], 0.1)
    state, batch = memory_of_step(model, rows, rows)
    assert batch == pytest.approx(sum(kept.values()), rel=0.1)
    means = sum(t.nbytes for s in trainer.optimizer.state.values() for t in s.values() if t.ndim)
    assert state == means + 2 * sum(p.nbytes for p in model.parameters())
