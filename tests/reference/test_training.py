"""training beside slow loops and formulas; and runs that are interrupted, killed, or out of disk space."""

import contextlib
import copy
import csv
import functools
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import resource
import signal
import types
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from torch.nn import functional as F

from dotformer.training import (
    Trainer,
    TrainingConfig,
    cross_entropy,
    evaluate,
    inverse_sqrt_rate,
    linear_rate,
    noam_rate,
    pair_batches,
)
from dotformer.transformer import Transformer, TransformerConfig
from tests.reference.strategies import assert_close

rates = st.floats(1e-6, 10)
counts = st.integers(1, 10_000)


def small(seed=0, dropout=0.0, **options):
    """A small model for 9 tokens on each side."""
    torch.manual_seed(seed)
    return Transformer(
        TransformerConfig(9, 9, 1, 1, d_model=8, num_heads=2, d_ff=16, dropout=dropout, max_length=12, **options)
    )


def drawn(count, seed=0, shortest=1, longest=6):
    """Pairs of random source tokens, 3 to 8, and the same between 1 and 2 as targets."""
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for _ in range(count):
        length = int(torch.randint(shortest, longest + 1, (), generator=generator))
        words = torch.randint(3, 9, (length,), generator=generator).tolist()
        pairs.append((words, [1, *words, 2]))
    return pairs


def state_of(*parts):
    """All tensors and numbers of modules and optimisers, to compare bit for bit."""

    def flat(x):
        if isinstance(x, dict):
            return {name: flat(value) for name, value in x.items()}
        if isinstance(x, (list, tuple)):
            return [flat(value) for value in x]
        return (str(x.dtype), tuple(x.shape), x.tolist()) if isinstance(x, torch.Tensor) else x

    return [flat(part.state_dict()) for part in parts]


# the loss


@st.composite
def scored(draw):
    """Logits (B, T, V) in float64, targets (B, T), what stands for padding, a share for smoothing."""
    batch, length, size = (draw(st.integers(1, n)) for n in (3, 4, 6))
    pad_id, smoothing = draw(st.integers(0, size - 1)), draw(st.sampled_from([0.0, 0.1, 0.7]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    logits = torch.randn(batch, length, size, generator=generator, dtype=torch.float64) * 3
    return logits, torch.randint(size, (batch, length), generator=generator), pad_id, smoothing


@given(scored())
def test_the_loss_is_that_of_a_slow_loop(case):
    logits, targets, pad_id, smoothing = case
    expected, count = 0.0, 0
    for scores, target in zip(logits.flatten(0, 1).tolist(), targets.flatten().tolist(), strict=True):
        if target == pad_id:
            continue
        logs = [score - math.log(sum(map(math.exp, scores))) for score in scores]
        expected -= (1 - smoothing) * logs[target] + smoothing * sum(logs) / len(logs)
        count += 1
    loss, tokens = cross_entropy(logits, targets, pad_id, smoothing)
    assert (loss.shape, tokens.shape, int(tokens)) == ((), (), count)
    assert loss.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)  # float64 stays float64


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_without_more_the_loss_is_that_of_torch_in_float32_or_better(dtype):
    logits, targets = torch.randn(2, 3, 5).to(dtype), torch.tensor([[0, 4, 1], [2, 0, 0]])
    loss, count = cross_entropy(logits, targets)
    assert count == 3
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    real = targets != 0
    assert_close(loss, F.cross_entropy(logits[real].to(loss.dtype), targets[real], reduction="sum"), 1e-5)


def test_targets_of_another_shape_are_named():
    with pytest.raises(TypeError, match="'targets'"):
        cross_entropy(torch.zeros(2, 3, 5), torch.zeros((2, 4), dtype=torch.long))


# schedules


@given(counts, st.integers(1, 2048), counts)
def test_the_noam_rate_is_that_of_the_paper(step, d_model, warmup):
    expected = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
    assert noam_rate(step, d_model, warmup) == pytest.approx(expected, rel=1e-12)


@given(counts, rates, counts)
def test_the_inverse_root_rises_in_a_line_and_falls_by_the_root(step, peak, warmup):
    rate = inverse_sqrt_rate(step, peak, warmup)
    expected = peak * step / warmup if step <= warmup else peak * math.sqrt(warmup) / math.sqrt(step)
    assert rate == pytest.approx(expected, rel=1e-12)
    assert inverse_sqrt_rate(warmup, peak, warmup) == peak
    assert inverse_sqrt_rate(4 * warmup, peak, warmup) == pytest.approx(peak / 2)


@given(rates, counts, counts | st.just(0))
def test_the_linear_rate_rises_and_falls_in_equal_steps(peak, warmup, more):
    steps = warmup + more
    assert linear_rate(warmup, peak, warmup, steps) == peak
    assert linear_rate(1, peak, warmup, steps) == pytest.approx(peak / warmup)
    assert linear_rate(steps, peak, warmup, steps) == pytest.approx(peak / (more + 1))
    for beyond in (1, 2, 1000):
        assert linear_rate(steps + beyond, peak, warmup, steps) == 0
    middle = warmup + (more + 1) / 2
    assert linear_rate(middle, peak, warmup, steps) == pytest.approx(peak / 2)


@pytest.mark.parametrize(
    ("rate", "numbers", "says"),
    [
        (inverse_sqrt_rate, (0, 1.0, 5), r"^step and warmup count from 1, not 0 and 5$"),
        (linear_rate, (0, 1.0, 1, 5), r"^step must be at least 1 and warmup between 1 and steps, not 0, 1 and 5$"),
        (linear_rate, (1, 1.0, 6, 5), r"not 1, 6 and 5$"),
    ],
)
def test_steps_that_no_schedule_has_are_named(rate, numbers, says):
    with pytest.raises(ValueError, match=says):
        rate(*numbers)


def test_the_configuration_chooses_the_schedule():
    linear, root = (TrainingConfig(30, 0.5, 10, name) for name in ("linear", "inverse_sqrt"))
    for step in (1, 9, 10, 11, 30, 31):
        assert linear.learning_rate_at(step) == linear_rate(step, 0.5, 10, 30)
        assert root.learning_rate_at(step) == inverse_sqrt_rate(step, 0.5, 10)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        *(
            ({name: 0}, ValueError, f"^{name} must be positive, not 0")
            for name in ("steps", "warmup_steps", "accumulation_steps", "validate_every")
        ),
        *(
            ({name: 0.0}, ValueError, f"^{name} must be positive, not 0.0")
            for name in ("learning_rate", "max_grad_norm")
        ),
        *(({name: -1}, ValueError, f"^{name} must be at least 0, not -1") for name in ("seed", "pad_id")),
        ({"max_grad_norm": math.nan}, ValueError, "^max_grad_norm must be positive, not nan$"),
        ({"steps": math.nan}, TypeError, "^steps must be of type int, not nan$"),
        ({"steps": "7"}, TypeError, "^steps must be of type int, not '7'$"),
        ({"label_smoothing": 1.0}, ValueError, "^label_smoothing must be at least 0 and below 1, not 1.0$"),
        ({"label_smoothing": -0.1}, ValueError, "^label_smoothing must be at least 0 and below 1, not -0.1$"),
        ({"schedule": "cosine"}, ValueError, "^schedule must be linear or inverse_sqrt, not 'cosine'$"),
        ({"steps": 10, "warmup_steps": 11}, ValueError, "warmup between 1 and steps, not 1, 11 and 10$"),
    ],
)
def test_a_configuration_that_cannot_work_is_named(options, error, says):
    with pytest.raises(error, match=says):
        TrainingConfig(**options)


def test_numbers_of_numpy_become_pythons():
    config = TrainingConfig(steps=np.int64(7), learning_rate=np.float64(0.5), warmup_steps=2.0)
    found = config.steps, config.learning_rate, config.warmup_steps
    assert [(type(n), n) for n in found] == [(int, 7), (float, 0.5), (int, 2)]


def test_a_step_without_a_real_target_is_an_error():
    model = small()
    before = copy.deepcopy(state_of(model))
    with pytest.raises(ValueError, match=r"^no target of these batches is real$"):
        Trainer(model, TrainingConfig()).train_step([(torch.tensor([[3]]), torch.tensor([[1, 0, 0]]))], 0.1)
    assert state_of(model) == before


def test_validation_may_leave_the_model_asleep():
    awake, _ = run(None, validate=validation)
    asleep, _ = run(None, validate=lambda model: validation(model.eval()))
    assert state_of(asleep) == state_of(awake)


def test_a_later_run_may_validate_less(tmp_path):
    config = TrainingConfig(**(RUN | {"validate_every": 1, "steps": 4}))
    calls = iter(range(100))

    def failing(epoch):
        for batch in batches_of(epoch):
            if next(calls) == 5:
                raise KeyboardInterrupt
            yield batch

    more = lambda model: validation(model) | {"more": 1.0}  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        Trainer(small(), config).train(failing, more, tmp_path, progress=False)
    Trainer(small(), config).train(batches_of, validation, tmp_path, progress=False)
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert [row["validation_more"] for row in rows] == ["1.0", "1.0", "", ""]


def test_an_epoch_that_is_empty_is_named():
    with pytest.raises(ValueError, match=r"^epoch 2 has 0 batches, of which 0 have been taken$"):
        run(None, batches=lambda n: batches_of(n) if n < 2 else [])


# batches


@given(st.integers(0, 30), st.integers(8, 40), st.integers(0, 5), st.integers(0, 5), st.sampled_from([0, 9]))
def test_batches_hold_each_pair_once_and_keep_the_limit(count, limit, seed, epoch, pad_id):
    pairs = drawn(count, seed)
    found = []
    for source, target in pair_batches(pairs, epoch, limit, pad_id, seed):
        assert source.dtype == target.dtype == torch.int64
        assert len(source) == len(target)
        assert max(source.numel(), target.numel()) <= limit
        for rows in (source, target):
            lengths = (rows != pad_id).sum(dim=1)
            assert rows.shape[1] == lengths.max()
            assert all((row[n:] == pad_id).all() for row, n in zip(rows, lengths, strict=True))
        found += [tuple(r[r != pad_id].tolist() for r in rows) for rows in zip(source, target, strict=True)]
    assert sorted(found) == sorted((source, target) for source, target in pairs)


def test_both_sides_keep_the_limit():
    for pair in (([3] * 9, [4] * 2), ([3] * 2, [4] * 9)):
        assert [len(source) for source, _ in pair_batches([pair] * 6, max_tokens=20)] == [2, 2, 2]


def test_seed_and_epoch_fix_the_order():
    def batches(seed, epoch):
        return str([[rows.tolist() for rows in batch] for batch in pair_batches(drawn(60), epoch, 40, 0, seed)])

    places = list(itertools.product(range(3), range(3)))
    epochs = [batches(*place) for place in places]
    assert len(set(epochs)) == 9
    torch.manual_seed(1)  # this one does not matter, and is not drawn from
    state = torch.get_rng_state()
    assert [batches(*place) for place in places] == epochs
    assert torch.equal(torch.get_rng_state(), state)


def test_pairs_that_make_no_batch_are_named():
    with pytest.raises(ValueError, match=r"^21 tokens exceed max_tokens 20$"):
        list(pair_batches([([3], [4] * 21)], max_tokens=20))
    with pytest.raises(ValueError, match=r"^a side is empty in pairs \[0\] of 1$"):
        list(pair_batches([([], [4])], max_tokens=20))


# a step


def batch_of(pairs):
    """All pairs as one batch."""
    (batch,) = pair_batches(pairs, max_tokens=1000)
    return batch


@pytest.mark.parametrize(("sizes", "clip"), [([6], 1e9), ([1, 2, 3], 1e9), ([1, 2, 3], 0.01)])
def test_accumulated_gradients_are_those_of_one_batch(sizes, clip):
    pairs = sorted(drawn(6, 3), key=lambda pair: len(pair[0]))  # so that the batches hold very different numbers
    config = TrainingConfig(max_grad_norm=clip, label_smoothing=0.2)
    bounds = [0, *itertools.accumulate(sizes)]
    batches = [batch_of(pairs[start:end]) for start, end in itertools.pairwise(bounds)]
    model = small().double()
    start = copy.deepcopy(model)
    trainer = Trainer(model, config)
    trainer.optimizer = torch.optim.SGD(model.parameters(), 1.0)
    summed, tokens = trainer.train_step(batches, 0.3)
    # beside it, the slow way: the mean over all tokens of all pairs, one pair at a time
    total = sum(
        F.cross_entropy(
            start(torch.tensor([s]), torch.tensor([t[:-1]]))[0],
            torch.tensor(t[1:]),
            reduction="sum",
            label_smoothing=0.2,
        )
        for s, t in pairs
    )
    count = sum(len(target) - 1 for _, target in pairs)
    (total / count).backward()
    norm = torch.stack([p.grad.norm() for p in start.parameters()]).norm()
    assert (norm > clip) == (clip < 1)
    factor = min(1.0, clip / (norm.item() + 1e-6))
    for ours, theirs in zip(model.parameters(), start.parameters(), strict=True):
        assert_close(ours.data, theirs.data - 0.3 * factor * theirs.grad)
    assert tokens == count
    assert summed.item() == pytest.approx(total.item(), rel=1e-12)


@pytest.mark.parametrize(("bad", "first"), [(math.nan, True), (math.inf, False)])
def test_a_gradient_that_is_not_finite_changes_nothing(bad, first):
    model = small()
    trainer = Trainer(model, TrainingConfig())
    batches = [batch_of(drawn(3, seed)) for seed in range(2)]
    trainer.train_step(batches, 0.1)
    before = copy.deepcopy(state_of(model, trainer.optimizer))
    calls = itertools.count()

    def spoil(gradient):
        return torch.full_like(gradient, bad) if (next(calls) == 0) == first else gradient

    handle = model.output.weight.register_hook(spoil)
    with pytest.raises(FloatingPointError, match=rf"^the norm of the gradient is {bad}$"):
        trainer.train_step(batches, 0.1)
    handle.remove()
    assert state_of(model, trainer.optimizer) == before


def test_each_forward_pass_runs_in_the_precision_that_is_asked_for():
    model, seen, results = small(), [], []
    batches = [batch_of(drawn(3, seed)) for seed in range(2)]
    for precision in (functools.partial(torch.autocast, "cpu", torch.bfloat16), contextlib.nullcontext):
        trainer = Trainer(copy.deepcopy(model), TrainingConfig())
        trainer.model.register_forward_hook(lambda _m, _i, output: seen.append(output.dtype))
        trainer.precision = precision
        results.append([*map(float, trainer.train_step(batches, 0.1))])
    assert seen == [torch.bfloat16] * 2 + [torch.float32] * 2
    assert results[0] != results[1]
    assert results[0] == pytest.approx(results[1], rel=0.02)


def test_another_function_may_compute_the_loss():
    seen, found, batches = [], [], [batch_of(drawn(3, seed)) for seed in range(2)]

    def twice(logits, targets, pad_id, smoothing):
        seen.append((targets.tolist(), pad_id, smoothing))
        loss, count = cross_entropy(logits, targets, pad_id, smoothing)
        return 2 * loss, count

    for criterion in (cross_entropy, twice):
        trainer = Trainer(small(), TrainingConfig(max_grad_norm=1e9, label_smoothing=0.2, pad_id=5))
        trainer.criterion = criterion
        found.append((*trainer.train_step(batches, 0.1), trainer.model.output.weight.grad))
    assert (found[1][0].item(), found[1][1]) == (pytest.approx(2 * found[0][0].item()), found[0][1])
    assert_close(found[1][2], 2 * found[0][2], 1e-5)
    assert seen == [(target[:, 1:].tolist(), 5, 0.2) for _, target in batches]


# evaluation


@torch.no_grad()
def figures(model, batches, pad_id=0):
    """What `evaluate` should find, token by token."""
    loss, right, tokens, exact, sentences = 0.0, 0, 0, 0, 0
    for source, target in batches:
        for row in range(len(source)):
            words = target[row][target[row] != pad_id].tolist()
            logits = model(source[row : row + 1], target[row : row + 1, : len(words) - 1])[0]
            logs = logits.double().log_softmax(-1)
            hits = [int(logs[n].argmax()) == word for n, word in enumerate(words[1:])]
            loss -= sum(float(logs[n, word]) for n, word in enumerate(words[1:]))
            right, tokens, exact, sentences = right + sum(hits), tokens + len(hits), exact + all(hits), sentences + 1
    return {"loss": loss / tokens, "accuracy": right / tokens, "exact": exact / sentences}


@pytest.fixture(scope="module")
def learnt():
    """A small model that has learnt to copy single words, somewhat; and batches to judge it by."""
    model = small(dropout=0.2, norm_first=True, tie_output=False)
    config = TrainingConfig(80, 0.03, 10, validate_every=80, label_smoothing=0.0)
    batches = functools.partial(pair_batches, drawn(200, 1, 1, 1), max_tokens=60)
    Trainer(model, config).train(batches, lambda m: {"loss": 0.0}, progress=False)
    return model.eval(), list(pair_batches(drawn(40, 2, 1, 2), max_tokens=60))


def test_figures_are_those_of_a_slow_loop(learnt):
    model, batches = learnt
    found = evaluate(model, iter(batches))
    assert found == pytest.approx(figures(model, batches), rel=1e-5)
    assert found.keys() == {"loss", "accuracy", "exact"}
    assert 0 < found["exact"] < found["accuracy"] < 1
    batches = list(pair_batches([([3, 4], [1, 3, 2]), ([5], [1, 3, 4, 5, 2])], 100, pad_id=8))  # other padding
    model = small(pad_id=8).eval()
    assert evaluate(model, batches, 8) == pytest.approx(figures(model, batches, 8), rel=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_evaluation_sleeps_and_leaves_the_mode_as_it_was(learnt, training):
    model, batches = learnt
    modes, before = [], evaluate(model, batches)
    handle = model.register_forward_hook(lambda m, _i, _o: modes.append((m.training, torch.is_grad_enabled())))
    assert evaluate(model.train(training), batches) == before
    handle.remove()
    assert model.training == training
    assert set(modes) == {(False, False)}
    with pytest.raises(ValueError, match=r"^nothing to evaluate: there is no batch$"):
        evaluate(model, [])
    assert model.training == training
    model.eval()


# runs


class Clock(types.SimpleNamespace):
    """A stand-in for TensorBoard's clock, by which it names and orders its files: they are seconds apart."""

    now = 1_000_000_000

    def time(self):
        return self.now

    sleep = staticmethod(lambda _: None)


RUN = {"steps": 5, "learning_rate": 0.01, "warmup_steps": 2, "validate_every": 2, "accumulation_steps": 2, "seed": 3}
PAIRS = drawn(18, 7)
HELD_OUT = list(pair_batches(drawn(8, 8), max_tokens=60))


def batches_of(epoch):
    """Three batches an epoch."""
    return pair_batches(PAIRS, epoch, 60)


def validation(model):
    """Figures for the history."""
    return evaluate(model, HELD_OUT)


def run(folder, model=None, batches=batches_of, validate=validation, **options):
    """Train a small model, with dropout, in a folder; the model and the history without the speed."""
    Clock.now += 10
    model = model or small(1, dropout=0.3)
    with mock.patch.object(event_file_writer, "time", Clock()):
        trainer = Trainer(model, TrainingConfig(**(RUN | options)))
        history = trainer.train(batches, validate, folder, progress=False)
    return model, slow(history)


def slow(history):
    """A history without the speed, which is never the same."""
    return [{name: value for name, value in row.items() if name != "tokens_per_second"} for row in history]


def events(folder):
    """What TensorBoard shows: for each figure its (step, value) pairs."""
    board = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}


def left(folder, model, history):
    """All that a run leaves, apart from the speed, to be compared."""
    with (folder / "log.csv").open(newline="") as file:
        log = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert slow(log) == history
    shown = {tag: values for tag, values in events(folder).items() if tag != "tokens_per_second"}
    best = {name: tensor.tolist() for name, tensor in load_file(folder / "model.safetensors").items()}
    content = json.dumps([state_of(model), history, shown, best], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A run from start to end: its folder, its model, its history."""
    folder = tmp_path_factory.mktemp("run")
    model, history = run(folder)
    return folder, model, history, left(folder, model, history)


def test_the_history_has_a_row_for_each_validation(uninterrupted):
    _, _, history, _ = uninterrupted
    assert [(row["step"], row["epoch"]) for row in history] == [(2, 1), (4, 2), (5, 3)]
    assert [row["learning_rate"] for row in history] == [linear_rate(step, 0.01, 2, 5) for step in (2, 4, 5)]
    names = ["step", "epoch", "learning_rate", "loss", "validation_loss", "validation_accuracy", "validation_exact"]
    assert all(list(row) == names for row in history)
    seen = []
    _, short = run(
        None, steps=2, validate_every=3, accumulation_steps=1, validate=lambda _: seen.append(1) or {"loss": 1}
    )
    assert [row["step"] for row in short] == [2] and len(seen) == 1


def test_a_run_is_what_a_slow_loop_does():
    """Adam as in the paper, losses a token since the last validation, batches in their order."""
    config = TrainingConfig(5, 0.05, 2, "inverse_sqrt", 0.2, 0.5, 2, 2)
    ours, theirs = small(1).double(), small(1).double()
    history = Trainer(ours, config).train(batches_of, lambda m: {"loss": 1, "other": 2}, progress=False)
    optimizer = torch.optim.Adam(theirs.parameters(), betas=(0.9, 0.98), eps=1e-9)
    data = itertools.chain.from_iterable(batches_of(epoch) for epoch in itertools.count())
    losses, counts = [], []
    for step in range(1, 6):
        total, count = 0, 0
        for source, target in itertools.islice(data, 2):
            logits = theirs(source, target[:, :-1]).transpose(1, 2)
            options = {"reduction": "sum", "ignore_index": 0, "label_smoothing": 0.2}
            total = total + F.cross_entropy(logits, target[:, 1:], **options)
            count += int((target[:, 1:] > 0).sum())
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        optimizer.param_groups[0]["lr"] = inverse_sqrt_rate(step, 0.05, 2)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.item())
        counts.append(count)
    for name, parameter in ours.named_parameters():
        if not name.endswith("w_k.bias"):  # its gradient is 0, and Adam would enlarge what rounding makes of that
            assert_close(parameter, theirs.get_parameter(name), 1e-8)
    means = [sum(losses[a:b]) / sum(counts[a:b]) for a, b in ((0, 2), (2, 4), (4, 5))]
    assert [row["loss"] for row in history] == pytest.approx(means, rel=1e-8)
    assert [row["validation_other"] for row in history] == [2] * 3
    assert all(row["tokens_per_second"] > 0 for row in history)
    assert ours.training


def test_the_speed_counts_tokens_since_the_last_validation(monkeypatch):
    seconds = itertools.count(0, 4)
    monkeypatch.setattr("time.perf_counter", lambda: next(seconds))
    config = TrainingConfig(**(RUN | {"accumulation_steps": 1, "steps": 4}))
    history = Trainer(small(), config).train(batches_of, lambda m: {"loss": 1}, progress=False)
    data = list(itertools.chain(batches_of(0), batches_of(1)))
    tokens = [int((target[:, 1:] > 0).sum()) for _, target in data]
    assert [row["tokens_per_second"] for row in history] == [sum(tokens[:2]) / 4, sum(tokens[2:4]) / 4]


@pytest.mark.parametrize("losses", [(3.0, 1.0, 2.0), (math.nan, 2.0, 3.0)], ids=str)
def test_the_best_model_is_kept(tmp_path, losses):
    losses, models = iter(losses), []

    def validate(model):
        models.append(state_of(model))
        return {"loss": next(losses)}

    model, _ = run(tmp_path, validate=validate)
    kept = small(2)
    kept.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)  # a tied table is there once
    assert state_of(kept) == models[1] != state_of(model)


def test_the_folder_holds_what_is_said(uninterrupted):
    folder, _, history, _ = uninterrupted
    assert {file.name for file in folder.iterdir()} == {
        "checkpoint.safetensors",
        "model.safetensors",
        "log.csv",
        "tensorboard",
    }
    lines = (folder / "log.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].split(",")[:4] == ["step", "epoch", "learning_rate", "loss"]
    assert len(lines) == 1 + len(history)
    shown = events(folder)
    assert shown.keys() == {*history[0], "tokens_per_second"}
    for name in history[0]:
        assert [step for step, _ in shown[name]] == [2, 4, 5]
        assert [value for _, value in shown[name]] == pytest.approx([row[name] for row in history], rel=1e-6)


def test_the_random_state_of_the_caller_stays(tmp_path, uninterrupted):
    torch.manual_seed(99)
    model = small(1, dropout=0.3)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again, _ = run(tmp_path, model)
    assert torch.equal(torch.get_rng_state(), before)
    assert state_of(again) == state_of(uninterrupted[1])
    with pytest.raises(ZeroDivisionError):
        run(None, validate=lambda _: 1 / 0)
    other, _ = run(None, seed=4)
    assert state_of(other) != state_of(model)


def test_a_finished_run_is_read_from_its_folder(uninterrupted):
    folder, model, history, _ = uninterrupted

    def never(*_):
        raise AssertionError("there is nothing left to do")

    other = small(5, dropout=0.3)
    assert run(folder, other, never, never)[1] == history
    assert state_of(other) == state_of(model)


class Interrupted(BaseException):
    """What stops a run, as Ctrl-C does."""


@pytest.mark.parametrize("at", [1, 4, 5, 6, 7, 10])
def test_a_run_interrupted_at_any_batch_goes_on_as_if_it_had_not_been(at, tmp_path, uninterrupted):
    count = itertools.count(1)

    def stopping(epoch):
        for batch in batches_of(epoch):
            if next(count) == at:
                raise Interrupted
            yield batch

    with pytest.raises(Interrupted):
        run(tmp_path, batches=stopping)
    saved = (tmp_path / "checkpoint.safetensors").exists()
    assert saved == (at > 4)
    model, history = run(tmp_path, small(at if saved else 1, dropout=0.3))
    assert left(tmp_path, model, history) == uninterrupted[3]


@pytest.mark.parametrize("at", [1, 6, 7])
def test_a_model_interrupted_inside_a_step_can_go_on_itself(at, tmp_path, uninterrupted):
    model, count = small(1, dropout=0.3), itertools.count(1)
    start = copy.deepcopy(model.state_dict())

    def stop(_gradient):
        if next(count) == at:
            raise Interrupted

    handle = model.source_embeddings.tokens.weight.register_hook(stop)  # its gradient is the last to be known
    with pytest.raises(Interrupted):
        run(tmp_path, model)
    handle.remove()
    if not (tmp_path / "checkpoint.safetensors").exists():
        model.load_state_dict(start)
    model, history = run(tmp_path, model)
    assert left(tmp_path, model, history) == uninterrupted[3]


def test_figures_may_be_numbers_of_any_library(tmp_path):
    def validate(_):
        return {"loss": np.float64(1.5), "least": np.float32(2), "share": torch.tensor(0.5), "count": np.int64(3)}

    def none(_):
        raise AssertionError("there is nothing left to do")

    _, history = run(tmp_path, validate=validate)
    assert run(tmp_path, validate=none)[1] == history
    assert history[0]["validation_share"] == 0.5
    (log, *_) = csv.DictReader((tmp_path / "log.csv").open(newline=""))
    assert [log[f"validation_{name}"] for name in ("loss", "least", "share", "count")] == ["1.5", "2.0", "0.5", "3.0"]


# runs that are killed, or have no space


def killed_at(nth, folder):
    """A run that is killed at its nth call to the disk."""
    calls = itertools.count(1)

    def watched(call):
        def watching(*arguments, **options):
            if next(calls) == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return watching

    with mock.patch("os.fsync", watched(os.fsync)), mock.patch.object(Path, "replace", watched(Path.replace)):
        run(folder)


def killed(folder, nth):
    """Whether a run in a process of its own is killed at its nth call to the disk."""
    # A fork of this process could wait for ever: it has the locks of other threads, and not the threads.
    multiprocessing.set_forkserver_preload([__name__, "torch._dynamo"])
    process = multiprocessing.get_context("forkserver").Process(target=killed_at, args=(nth, folder))
    process.start()
    process.join(120)
    Clock.now += 10
    return process.exitcode == -signal.SIGKILL


# model, log and checkpoint are synchronised and replaced, at each of three validations
@pytest.mark.parametrize("nth", [6, 9, 10, 12])
def test_a_run_killed_at_a_call_to_the_disk_goes_on(nth, tmp_path, uninterrupted):
    assert killed(tmp_path, nth)
    model, history = run(tmp_path)
    assert left(tmp_path, model, history) == uninterrupted[3]


def test_a_full_disk_is_named_and_leaves_the_last_checkpoint(tmp_path, uninterrupted):
    assert killed(tmp_path, 7)
    for draft in tmp_path.glob(".*"):
        draft.unlink()
    before, files = (tmp_path / "checkpoint.safetensors").read_bytes(), set(tmp_path.iterdir())
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, most[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            run(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before
    assert set(tmp_path.iterdir()) == files
    model, history = run(tmp_path)
    assert left(tmp_path, model, history) == uninterrupted[3]
