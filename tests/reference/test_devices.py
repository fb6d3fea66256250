"""devices beside PyTorch's own counters, and rungs that compute the same as a training."""

import contextlib
import copy
import gc
import itertools
import os
import pickle
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import get_worker_info
from torch.utils.flop_counter import FlopCounterMode

from dotformer import devices
from dotformer.attention import MultiHeadAttention
from dotformer.command_line.commands import made_ahead
from dotformer.devices import (
    FastTrainer,
    GraphTrainer,
    Setup,
    configure,
    layers_of,
    level,
    matmul_throughput,
    matrix_parameters,
    measure,
    memory_bandwidth,
    pad_vocabulary,
    prefetch,
    prepare_layers,
    rungs,
    training_flops,
    training_step,
)
from dotformer.encoder import Encoder, EncoderLayer, LayerConfig
from dotformer.support.benchmark import Workload, climb, count_synchronisations, cumulative
from dotformer.support.memory import saved_activations
from dotformer.support.progress import Stream
from dotformer.support.recording import record_weights
from dotformer.training import Trainer, TrainingConfig, cross_entropy, pair_batches
from dotformer.transformer import Transformer, TransformerConfig
from tests.cuda_graphs import OnCPU, stand_in

MODEL = TransformerConfig(40, 50, 2, 1, d_model=16, num_heads=2, d_ff=32, dropout=0.0, max_length=24)
WORK = Workload(MODEL, pairs=3, length=12)

# FLOPs and speeds


SHAPES = [
    ({}, 1, 7, 3),
    ({"num_encoder_layers": 3}, 3, 4, 6),
    ({"num_decoder_layers": 3, "tie_output": False}, 2, 6, 4),
    ({"d_ff": 20, "num_heads": 4, "source_vocab_size": 23}, 2, 3, 8),
    ({"norm_first": True, "target_vocab_size": 31}, 4, 2, 5),
]


@pytest.mark.parametrize(("shape", "batch", "source", "target"), SHAPES)
def test_flops_are_those_that_torch_counts(shape, batch, source, target):
    sizes = {"source_vocab_size": 11, "target_vocab_size": 13, "d_model": 8, "num_heads": 2, "d_ff": 16}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.0, "max_length": 12}
    config = TransformerConfig(**(sizes | layers | shape))
    model = Transformer(config)
    pairs = torch.ones(batch, source, dtype=torch.long), torch.ones(batch, target, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, record_weights(model):
        model(*pairs).sum().backward()
    ours, theirs = training_flops(config, batch, source, target), counter.get_flop_counts()
    assert sum(ours.values()) == counter.get_total_flops()
    assert ours["scores and sums"] == theirs["Global"][torch.ops.aten.bmm]

    def within(name):
        return sum(sum(found.values()) for module, found in theirs.items() if module.endswith(name))

    assert (ours["output"], ours["feed-forward"]) == (within("Transformer.output"), within(".feed_forward"))


def test_speeds_are_counted_by_bytes_and_flops(monkeypatch):
    seen = []

    def timed(work, device):
        seen.append((work(), device))
        return [1.0, 9.0, 4.0]

    monkeypatch.setattr(devices, "benchmark", timed)
    assert memory_bandwidth("cpu", 1000) == (1000 * 4 + 1000 * 4) / 4.0  # each is read and written
    assert matmul_throughput("cpu", 6, torch.bfloat16) == 2 * 6 * 6 * 6 / 4.0
    (copied, _), (product, device) = seen
    assert copied.shape == (1000,) and copied.std() > 0.5  # the numbers were copied
    assert product.shape == (6, 6) and product.dtype == torch.bfloat16 and device == "cpu"


# activation checkpointing


def layers(dropout=0.0):
    """An encoder's layer, the same with checkpointing, and sentences with a mask for both."""
    torch.manual_seed(0)
    one = EncoderLayer(LayerConfig(d_model=8, num_heads=2, d_ff=32, dropout=dropout))
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])[:, None, None]
    stack = Encoder(LayerConfig(d_model=8, num_heads=2, d_ff=32, dropout=dropout), 1)
    stack.layers[0].load_state_dict(one.state_dict())
    prepare_layers(stack, checkpointing=True)
    return one, stack.layers[0], torch.randn(2, 5, 8), mask


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
    twice.attention.register_forward_pre_hook(lambda *_: calls.append(1))
    for layer in (one, twice):
        with saved_activations(layer) as found:
            output = layer(x.clone().requires_grad_(), mask)
        kept.append(sum(found.values()))
    assert len(calls) == 1 and kept[1] < kept[0] / 4
    assert kept[1] >= x.nbytes  # what goes in has to be there
    output.sum().backward()
    assert len(calls) == 2


# a padded vocabulary


@pytest.mark.parametrize("tie_output", [True, False])
@pytest.mark.parametrize(("multiple", "rows"), [(8, 16), (13, 13)])
def test_a_padded_vocabulary_computes_the_same(tie_output, multiple, rows):
    config = TransformerConfig(
        13, 13, 1, 1, d_model=8, num_heads=2, d_ff=16, dropout=0.0, max_length=12, tie_output=tie_output
    )
    torch.manual_seed(0)
    one = Transformer(config)
    other = copy.deepcopy(one)
    pad_vocabulary(other, multiple)
    pairs = torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6]])
    logits = [model(*pairs) for model in (one, other)]
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-6)
    for found in logits:
        found.square().sum().backward()
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert len(theirs) in (len(mine), rows) and not theirs.grad[len(mine) :].any()
        torch.testing.assert_close(mine.grad, theirs.grad[: len(mine)], rtol=1e-5, atol=1e-5)
    assert other.output.weight.shape == (rows, 8) and not other.output.weight[13:].any()
    assert (other.output.weight is other.target_embeddings.tokens.weight) == tie_output


# prefetching


PAIRS = [([3] * n, [1, *[4] * n, 2]) for n in (1, 2, 3, 4, 2, 1, 3)]
EPOCH = partial(pair_batches, PAIRS, max_tokens=12)


def numbers(batches):
    return [[rows.tolist() for rows in batch] for batch in batches]


def test_the_same_batches_in_the_same_order():
    before = torch.get_rng_state()
    for epoch in (0, 1, 5):
        assert numbers(prefetch(partial(EPOCH, epoch))) == numbers(EPOCH(epoch))
    assert numbers(EPOCH(0)) != numbers(EPOCH(1))
    assert torch.equal(torch.get_rng_state(), before)
    sent = pickle.loads(pickle.dumps(Stream(partial(EPOCH, 3))))  # as to a process that knows nothing
    assert numbers(sent) == numbers(EPOCH(3))


def where():
    """Who makes batches."""
    yield torch.tensor([os.getpid(), get_worker_info() is not None])


def test_another_process_makes_them():
    [(process, worker)] = (batch.tolist() for batch in prefetch(where))
    assert worker and process != os.getpid()
    assert [prefetch(where, pin=pin).pin_memory for pin in (False, True)] == [False, True]


def whose(epoch):
    """The epoch, and who makes its batches."""
    yield torch.tensor([epoch, os.getpid()])


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
def test_one_process_makes_the_batches_of_all_epochs():
    ahead = made_ahead(whose)
    made = torch.stack([batch for epoch in (0, 1, 5) for batch in ahead(epoch)])
    assert made[:, 0].tolist() == [0, 1, 5]
    assert len({*made[:, 1].tolist()} - {os.getpid()}) == 1


def broken():
    yield torch.zeros(1)
    raise ValueError("line 7 is empty")


def test_what_goes_wrong_there_is_said_here(monkeypatch):
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)  # so long PyTorch waits for its end
    with pytest.raises(ValueError, match="line 7 is empty"):
        list(prefetch(broken))
    gc.collect()


# setups


def test_the_ladder_changes_one_thing_a_rung():
    ways = list(cumulative(Setup(), rungs()).values())
    assert ways[0] == Setup() == Setup("float32", False, False, False, True, 1, 1, "held", False, False)
    changes = [
        {name for name, value in asdict(b).items() if value != asdict(a)[name]} for a, b in itertools.pairwise(ways)
    ]
    assert [sorted(names) for names in changes] == [
        ["precision"],
        ["precision"],
        ["fused_attention"],
        ["compiled"],
        ["fused_optimizer"],
        ["waits"],
        ["vocabulary_multiple"],
        ["batch"],
        ["feed"],
        ["feed"],
        ["cuda_graphs"],
        ["checkpointing", "cuda_graphs", "feed"],  # beside the larger batch, which is held as well
    ]
    assert rungs() is not rungs() and rungs() == rungs()


@pytest.mark.parametrize("wrong", [{"precision": "float16"}, {"feed": "late"}, {"batch": 0}])
def test_a_setup_that_there_is_not_is_named(wrong):
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must be "):
        Setup(**wrong)


@pytest.mark.parametrize("fused", [True, False])
def test_attention_is_fused_or_written_out(monkeypatch, fused):
    calls, attend = [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *given: (calls.append(1), attend(*given))[1])
    model = configure(Transformer(MODEL), Setup(fused_attention=fused))
    weights = []
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            module.register_forward_hook(lambda _m, _i, output: weights.append(output[1]))
    model(torch.tensor([[3, 4, 0]]), torch.tensor([[3, 4]]))
    attentions = 2 + 2 * 1
    assert len(calls) == (attentions if fused else 0)
    assert [found is None for found in weights] == [fused] * attentions


def test_layers_are_checkpointed_and_the_vocabulary_is_padded():
    model = Transformer(MODEL)
    names, layers = [*model.state_dict()], [*model.encoder.layers, *model.decoder.layers]
    assert layers_of(model) == layers
    configure(model, Setup(checkpointing=True, vocabulary_multiple=64))
    assert all(layer.forward.func is checkpoint for layer in layers)
    assert [*model.state_dict()] == names and len(model.output.weight) == 64


# a step


@pytest.mark.parametrize(
    ("precision", "rounding", "dtype"),
    [
        ("float32", "highest", torch.float32),
        ("tf32", "high", torch.float32),
        ("bfloat16", "high", torch.bfloat16),
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

    monkeypatch.setattr(devices.Trainer, "train_step", taken)
    step, model = training_step(WORK, Setup(precision, fused_optimizer=precision == "tf32"))
    before = torch.get_float32_matmul_precision()
    assert step() == (3.0, 4) and torch.get_float32_matmul_precision() == before
    assert seen[:5] == [rounding, dtype, 0.0, cross_entropy, 1e9]
    # not False, with which PyTorch would not choose the next best way, `foreach`, either
    assert seen[5:] == [torch.optim.AdamW, True if precision == "tf32" else None, None, 0.0, 1]
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("way", ["held", "made", "ahead"])
def test_a_batch_holds_all_pairs_each_time(monkeypatch, way):
    seen = []
    monkeypatch.setattr(devices.Trainer, "train_step", lambda _, batches, rate: seen.extend(batches))
    step, _ = training_step(WORK, Setup(feed=way, batch=4))
    for _ in range(3):
        step()
    expected = sorted(WORK.tokens() * 4)
    for source, target in seen:
        assert (source.shape, target.shape) == ((12, 12), (12, 13))
        assert sorted(zip(source.tolist(), target.tolist(), strict=True)) == expected


def test_all_steps_find_the_same_model_and_random_numbers_stay():
    random = torch.get_rng_state()
    step, model = training_step(WORK, Setup(fused_optimizer=True))
    assert torch.equal(torch.get_rng_state(), random)
    before = [p.detach().clone() for p in model.parameters()]
    found = [step() for _ in range(3)]
    assert found[0] == found[1] == found[2] and found[0][1] == 3 * 12
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_a_step_is_that_of_a_training():
    torch.manual_seed(WORK.seed)
    model = Transformer(MODEL)
    [batch] = pair_batches(WORK.tokens(), max_tokens=1000)
    loss, targets = Trainer(model, TrainingConfig(max_grad_norm=1e9)).train_step([batch], 0.0)
    found = measure(WORK, Setup(), steps=2)
    assert found["loss"] == pytest.approx(float(loss) / targets, rel=1e-6)
    for mine, theirs in zip(found["gradients"], model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs.grad, rtol=1e-5, atol=1e-7)


def test_tokens_and_flops_a_second_are_those_of_all_pairs():
    found = measure(WORK, Setup(batch=2), steps=2)
    flops = sum(training_flops(MODEL, 6, 12, 12).values())
    assert found["flops_per_second"] == pytest.approx(flops / found["seconds"][1])
    assert found["tokens_per_second"] == pytest.approx(2 * (3 * 2 * 12) / found["seconds"][1])


def test_all_rungs_compute_the_same(monkeypatch):
    """Without the rungs that need a compiler, or round."""
    stand_in(monkeypatch)
    monkeypatch.setattr(devices, "GraphTrainer", OnCPU)
    exact = {name: change for name, change in rungs().items() if name not in ("bf16", "compile")}
    climbed = list(climb(partial(measure, WORK, steps=2), cumulative(Setup(), exact)))
    assert [row["name"] for row in climbed] == list(exact)
    for row in climbed:
        assert "error" not in row and row["loss_error"] < 1e-6 and row["gradient_error"] < 1e-6


def test_half_the_bits_are_off_by_some_percent():
    _, bf16 = climb(partial(measure, WORK, steps=2), {"float32": Setup(), "bf16": Setup("bfloat16")})
    assert 1e-3 < bf16["gradient_error"] < 0.1 and 0 < bf16["loss_error"] < 1e-2


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
        one, other = climb(partial(measure, small, steps=2), {"one": Setup(), "compiled": Setup(compiled=True)})
    assert cross_entropy in whole and len(whole) == 3
    assert other["gradient_error"] < 1e-6 and other["loss_error"] < 1e-6
    assert one["peak_memory"] <= other["peak_memory"] < 1.1 * one["peak_memory"]


# a trainer that does not wait


def started(kind=FastTrainer, **config):
    """A trainer of a small model with dropout, and two batches."""
    torch.manual_seed(3)
    trainer = kind(
        Transformer(replace(MODEL, dropout=0.3)), TrainingConfig(steps=6, warmup_steps=2, validate_every=3, **config)
    )
    batches = [*pair_batches(WORK.tokens(), max_tokens=30)]
    assert len(batches) == 2
    return trainer, batches


def test_a_fast_run_is_that_of_a_trainer():
    found = []
    for kind in (Trainer, FastTrainer):
        trainer, batches = started(kind, accumulation_steps=2)
        history = trainer.train(lambda _, some=batches: some, lambda _: {"loss": 1.0}, progress=False)
        found.append([[row["loss"] for row in history], trainer.model.state_dict()])
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5) and len(found[0][0]) == 2
    for name, parameter in found[0][1].items():
        if not name.endswith("w_k.bias"):  # its gradient is 0, but for rounding, which Adam makes as large as any
            torch.testing.assert_close(found[1][1][name], parameter, rtol=1e-3, atol=1e-5, msg=name)


def test_a_fast_step_asks_for_nothing(monkeypatch):
    found = []
    for kind in (Trainer, FastTrainer):
        trainer, batches = started(kind)
        monkeypatch.setattr(trainer, "count_targets", lambda _: 30)  # asked of the CPU, where a loader's batches are
        trainer.train_step(batches, 0.1)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # masks are checked on a CPU only
        found.append(count_synchronisations(partial(trainer.train_step, batches, 0.1)))
    assert found[0] >= 1 and found[1] == 0


@pytest.mark.parametrize(("bad", "first"), [(float("nan"), True), (float("inf"), False)])
def test_a_gradient_that_is_not_finite_changes_nothing_and_ends_the_run(bad, first):
    trainer, batches = started()
    loss, _ = trainer.train_step(batches, 0.1)
    assert torch.isfinite(loss)
    before = copy.deepcopy((trainer.model.state_dict(), trainer.optimizer.state_dict()["state"]))
    calls = itertools.count()

    def spoil(gradient):
        return torch.full_like(gradient, bad) if (next(calls) == 0) == first else gradient

    handle = trainer.model.output.weight.register_hook(spoil)
    loss, tokens = trainer.train_step(batches, 0.2)
    handle.remove()
    assert torch.isnan(loss) and tokens == 36
    after = trainer.model.state_dict(), trainer.optimizer.state_dict()["state"]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert torch.isfinite(trainer.train_step(batches, 0.1)[0])
    trainer.device = "mps"  # whose optimiser cannot skip
    with pytest.raises(FloatingPointError, match="norm"):
        trainer.update(torch.tensor(bad))

    class Later(FastTrainer):
        def train_step(self, *given):
            calls = vars(self).setdefault("calls", itertools.count(1))
            loss, tokens = super().train_step(*given)
            return (loss * float("nan") if next(calls) == 2 else loss), tokens

    trainer, batches = started(Later)
    with pytest.raises(FloatingPointError, match=r"^a loss or a gradient has not been finite, in the steps up to 3$"):
        trainer.train(lambda _: batches, lambda _: pytest.fail("validated"), progress=False)


def test_recorded_steps_are_those_of_a_fast_trainer(monkeypatch):
    graphs = stand_in(monkeypatch)
    found = []
    for kind in (FastTrainer, OnCPU):
        torch.manual_seed(3)
        trainer = kind(Transformer(MODEL), TrainingConfig(max_grad_norm=1e9), "cpu")
        batches = [*pair_batches(WORK.tokens(), max_tokens=30)]
        for source, target in batches[:2]:  # as large, with other tokens and fewer of them
            shorter = torch.cat([target[:, :5], torch.zeros_like(target[:, 5:])], dim=1)
            batches.append((source.flip(1), shorter))
        losses = [trainer.train_step([batches[n % 4]], 0.002 * n)[0] for n in range(16)]
        found.append(([float(loss) for loss in losses], trainer.model.state_dict()))
    (fast, right), (recorded, there) = found
    assert len(graphs) == 2 and [graph.replays for graph in graphs] == [6, 6]
    assert recorded == pytest.approx(fast, rel=1e-5) and len(set(fast)) == 16
    for name, parameter in right.items():
        if not name.endswith("w_k.bias"):
            torch.testing.assert_close(there[name], parameter, rtol=1e-3, atol=1e-5, msg=name)


def test_a_recorded_step_whose_gradient_is_not_finite_changes_nothing(monkeypatch):
    graphs = stand_in(monkeypatch)
    torch.manual_seed(3)
    trainer = OnCPU(Transformer(MODEL), TrainingConfig(), "cpu")
    [batch] = pair_batches(WORK.tokens(), max_tokens=1000)
    for _ in range(4):
        assert torch.isfinite(trainer.train_step([batch], 0.01)[0])
    weight = trainer.model.output.weight
    with torch.no_grad():
        weight[0, 0] = float("nan")
    before = copy.deepcopy((trainer.model.state_dict(), trainer.optimizer.state_dict()["state"]))
    assert torch.isnan(trainer.train_step([batch], 0.01)[0])
    after = trainer.model.state_dict(), trainer.optimizer.state_dict()["state"]
    torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
    [graph] = graphs
    assert graph.replays == 3


def test_a_recorded_run_that_is_interrupted_goes_on_as_if_it_had_not_been(monkeypatch, tmp_path):
    """With one and the same trainer, whose optimiser gets other tensors when it goes on."""
    stand_in(monkeypatch)
    found = []
    for kind, stops in ((FastTrainer, None), (OnCPU, None), (OnCPU, 3)):
        torch.manual_seed(3)
        trainer = kind(Transformer(MODEL), TrainingConfig(steps=24, warmup_steps=2, validate_every=6), "cpu")
        batches, calls = [*pair_batches(WORK.tokens(), max_tokens=30)], itertools.count(1)

        def validate(model, stops=stops, calls=calls):
            if next(calls) == stops:
                raise KeyboardInterrupt
            return {"loss": 1.0}

        train = partial(
            trainer.train, lambda _, some=batches: some, validate, tmp_path / f"{kind.__name__}{stops}", False
        )
        if stops:
            with pytest.raises(KeyboardInterrupt):
                train()
        history = train()
        found.append(([row["loss"] for row in history], trainer.model.state_dict()))
    (losses, right), *others = found
    for other, there in others:
        assert other == pytest.approx(losses, rel=1e-5)
        for name, parameter in right.items():
            if not name.endswith("w_k.bias"):
                torch.testing.assert_close(there[name], parameter, rtol=1e-3, atol=1e-5, msg=name)


def test_an_error_while_a_step_is_recorded_is_told_and_leaves_the_stream(monkeypatch):
    stand_in(monkeypatch)
    left = []
    monkeypatch.setattr(torch.cuda, "set_stream", left.append)
    trainer = OnCPU(Transformer(MODEL), TrainingConfig(), "cpu")
    [batch] = pair_batches(WORK.tokens(), max_tokens=1000)
    for _ in range(2):
        trainer.train_step([batch], 0.01)
    monkeypatch.setattr(trainer, "criterion", lambda *_: (_ for _ in ()).throw(ValueError("mine")))
    with pytest.raises(ValueError, match=r"^mine$"):
        trainer.train_step([batch], 0.01)
    assert left == [torch.cuda.current_stream()] and not trainer.graphs
    assert not any(group["capturable"] for group in trainer.optimizer.param_groups)


def test_only_a_cuda_device_records():
    with pytest.raises(RuntimeError, match=r"^CUDA graphs need a CUDA device, not cpu$"):
        GraphTrainer(Transformer(MODEL), TrainingConfig(), "cpu")
    [found] = climb(partial(measure, WORK), {"recorded": Setup(cuda_graphs=True)})
    assert "CUDA device" in found["error"]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(2, 31)), min_size=1), st.integers(1, 9))
def test_pairs_are_filled_up_to_few_sizes(sizes, multiple):
    pairs = [([3] * source, [1, *[4] * (target - 2), 2]) for source, target in sizes]
    found = level(pairs, 30, multiple, pad_id=7)
    for (source, target), (longer, goal) in zip(pairs, found, strict=True):
        assert longer == source + [7] * (len(longer) - len(source))
        assert goal == target + [7] * (len(goal) - len(target))
        for before, after in ((len(source), len(longer)), (len(target) - 1, len(goal) - 1)):
            assert before <= after < before + multiple and (after % multiple == 0 or after == 30)


@pytest.mark.parametrize("tied", [True, False])
def test_matrices_that_multiply_are_counted(tied):
    model = Transformer(replace(MODEL, tie_output=tied))
    layers = 2 * (4 * 16**2 + 2 * 16 * 32) + 8 * 16**2 + 2 * 16 * 32
    assert matrix_parameters(model) == layers + 50 * 16


def test_the_log_has_utilisation_and_memory(monkeypatch):
    random = torch.get_rng_state()
    assert devices.peak_compute_of("cpu", torch.float32) > 1e8
    assert torch.equal(torch.get_rng_state(), random)
    peaks = {torch.float32: 1e6, torch.bfloat16: 2e6}
    monkeypatch.setattr(devices, "peak_compute_of", lambda device, dtype: peaks[dtype])
    monkeypatch.setattr(devices, "world_size", lambda: 4)
    trainer, batches = started()
    work = 6 * matrix_parameters(trainer.model)
    assert trainer.figures({"tokens_per_second": 10.0})["mfu"] == pytest.approx(work * 10 / 4 / 1e6)
    trainer.precision = partial(torch.autocast, "cpu", torch.bfloat16)
    assert trainer.figures({"tokens_per_second": 10.0})["mfu"] == pytest.approx(work * 10 / 4 / 2e6)
    [row, _] = trainer.train(lambda _: batches, lambda _: {"loss": 1.0}, progress=False)
    before = row["peak_memory"]
    assert row["mfu"] > 0 and before > 50e6
    held = torch.ones(60_000_000)
    assert trainer.figures(row)["peak_memory"] > before + 0.8 * held.nbytes - 100e6


# last, since PyTorch's optimisers take seconds to load


def test_training_finds_the_same_model():
    config, found = TrainingConfig(steps=7, warmup_steps=1, validate_every=7), []
    for way in (EPOCH, lambda epoch: prefetch(partial(EPOCH, epoch))):
        torch.manual_seed(0)
        model = Transformer(TransformerConfig(9, 9, 1, 1, d_model=8, num_heads=2, d_ff=16, dropout=0.5, max_length=12))
        Trainer(model, config).train(way, lambda _: {"loss": 0.0}, progress=False)
        found.append(model.state_dict())
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
