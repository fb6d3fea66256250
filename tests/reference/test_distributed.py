"""Tests for distributed.py, by one process; tests/torchrun has several."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from dotformer.distributed import DistributedTrainer, evaluate_together, shard, shard_batch
from dotformer.support.checkpoints import Checkpoint, RunFolder
from dotformer.support.progress import steps_after
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches
from dotformer.transformer import Transformer, TransformerConfig

CONFIG = TrainingConfig(steps=8, learning_rate=1e-2, warmup_steps=3, validate_every=4, seed=3)
TRAINERS = {
    "alone": Trainer,
    "whole": DistributedTrainer,
    "sharded": partial(DistributedTrainer, sharded=True),
}


def model(heads=2):
    torch.manual_seed(0)
    return Transformer(
        TransformerConfig(
            20, 20, 1, 1, d_model=16, num_heads=heads, d_ff=32, dropout=0.1, max_length=16, share_embeddings=True
        )
    )


def pairs():
    generator = torch.Generator().manual_seed(0)
    sources = [torch.randint(3, 20, (length,), generator=generator).tolist() for length in (2, 3, 4, 5, 6, 7)]
    return [(source, [1, *source[::-1], 2]) for source in sources]


@pytest.fixture
def group(tmp_path):
    """A group of one process, so that what is said to all is said to oneself."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# shares


@given(st.integers(1, 9), st.integers(1, 5))
def test_every_row_has_one_process(rows, world_size):
    source = torch.arange(rows * 3).reshape(rows, 3) + 5
    target = torch.arange(rows * 4).reshape(rows, 4) + 50
    shares = [shard_batch((source, target), rank, world_size) for rank in range(world_size)]
    real = [(s, t) for s, t in shares if (t[:, 1:] != 0).any()]
    together = torch.cat([s for s, _ in real]), torch.cat([t for _, t in real])
    for side, found in zip((source, target), together, strict=True):
        assert found.sort(dim=0).values.equal(side)
    for _, t in shares[rows:]:
        assert t.shape == (1, 4) and t[0, 0] == 50 and not t[0, 1:].any()
    assert max(len(s) for s, _ in real) - min(len(s) for s, _ in real) <= 1


def test_another_padding_and_a_process_that_is_not_there():
    target = torch.full((1, 4), 7)
    _, padded = shard_batch((target, target), 1, 2, pad_id=5)
    assert padded.tolist() == [[7, 5, 5, 5]] and (target == 7).all()  # the batch stays as it is
    for rank in (2, -1):
        with pytest.raises(ValueError, match=f"there is no rank {rank} among 2 processes"):
            shard_batch((target, target), rank, 2)
    with pytest.raises(TypeError, match="'batch'"):
        shard_batch((target, target.float()), 0, 2)


def test_the_step_of_one_of_several_divides_by_its_part_of_all_targets(group, monkeypatch):
    """Here one process takes itself for two: it computes its rows, and divides by half of all targets."""
    monkeypatch.setattr("dotformer.distributed.all_reduce", lambda number: 2 * number)
    [batch] = pair_batches(pairs(), max_tokens=100)
    config = replace(CONFIG, max_grad_norm=1e9)
    one, many = Trainer(model().eval(), config), DistributedTrainer(model().eval(), config)
    many.world_size = 2
    [(loss, tokens)] = [one.train_step([shard_batch(batch, 0, 2)], 0.0)]
    found, count = many.train_step([batch], 0.0)
    assert (found.item(), count) == (pytest.approx(2 * loss.item()), (batch[1][:, 1:] != 0).sum())
    for ours, theirs in zip(many.model.parameters(), one.model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad * tokens / (count / 2))


def test_a_process_without_rows_learns_nothing_whatever_stands_for_padding(group):
    batch = torch.tensor([[7, 8]]), torch.tensor([[1, 8, 2]])
    trainer = DistributedTrainer(model(), replace(CONFIG, pad_id=5))
    trainer.rank, trainer.world_size = 1, 2
    assert trainer.train_step([batch], 0.0)[0].item() == 0


@pytest.mark.parametrize("way", ["whole", "sharded"])
def test_only_the_last_batch_of_a_step_is_sent(way, group, monkeypatch):
    """The gradient is that of all batches, and nothing is left switched off for the next step."""
    batches = list(pair_batches(pairs(), max_tokens=20))
    assert len(batches) > 2
    config, sent = replace(CONFIG, max_grad_norm=1e9), []
    alone, trainer = Trainer(model().eval(), config), TRAINERS[way](model(), config)
    network = trainer.model.eval()
    compute, send = type(network).__call__, getattr(network, "set_requires_gradient_sync", None)

    def is_sent():
        return network.require_backward_grad_sync if way == "whole" else asked[-1]

    asked = [True]
    if send:
        monkeypatch.setattr(network, "set_requires_gradient_sync", lambda on: (asked.append(on), send(on)))
    monkeypatch.setattr(type(network), "__call__", lambda *given: (sent.append(is_sent()), compute(*given))[1])
    for some in (batches, batches[:1], batches):
        sent.clear()
        found, expected = (one.train_step(some, 0.0) for one in (trainer, alone))
        assert [*map(float, found)] == pytest.approx([*map(float, expected)])
        assert sent == [False] * (len(some) - 1) + [True]
        for ours, theirs in zip(network.parameters(), alone.model.parameters(), strict=True):
            whole = ours.grad.full_tensor() if way == "sharded" else ours.grad
            torch.testing.assert_close(whole, theirs.grad)


# a validation


@pytest.fixture(scope="module")
def learnt():
    """A model that gets some tokens and some sentences right, and not all."""
    trainer = Trainer(model(), TrainingConfig(60, 0.02, 10, validate_every=60, label_smoothing=0.0))
    batches = list(pair_batches(pairs()[1:4], max_tokens=100))
    trainer.train(lambda epoch: batches, lambda network: evaluate(network, batches), progress=False)
    return trainer.model


@pytest.mark.parametrize(("count", "longest"), [(6, 20), (3, 8)])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_processes_that_share_a_validation_find_what_one_finds(learnt, world_size, count, longest):
    """Also when some have no rows of a batch, or none at all."""
    batches, sums = list(pair_batches(pairs()[:count], max_tokens=longest)), []
    expected = evaluate(learnt, batches)
    assert 0 < expected["exact"] < 1
    parts = [[shard_batch(batch, rank, world_size) for batch in batches] for rank in range(world_size)]
    for part in parts:
        evaluate(learnt, part, total=lambda own: sums.append(own) or torch.ones(5))
    for part in parts:
        found = evaluate(learnt, part, total=lambda _: sum(sums))
        assert found == pytest.approx(expected, rel=1e-6)


def test_a_validation_alone_in_a_group_is_that_of_one_process(group):
    batches = list(pair_batches(pairs(), max_tokens=20))
    assert evaluate_together(model(), batches) == evaluate(model(), batches)


# a run, saved and gone on with


def run(folder, way, stop=None):
    """Train as a group of one; the history. At validation `stop`, be interrupted."""
    held_out, count = list(pair_batches(pairs())), iter(range(1, 100))

    def validate(network):
        found = evaluate(network, held_out)
        if next(count) == stop:
            raise InterruptedError
        return found

    trainer = TRAINERS[way](model(), CONFIG)
    return trainer.train(partial(pair_batches, pairs(), max_tokens=20), validate, folder, progress=False)


@pytest.mark.parametrize(
    ("begun", "ended"),
    [
        *(("whole", "whole"), ("sharded", "sharded"), ("alone", "whole")),
        *(("alone", "sharded"), ("whole", "alone"), ("sharded", "alone")),
    ],
)
def test_a_run_may_be_begun_and_ended_in_any_two_ways(begun, ended, group, tmp_path):
    whole = run(tmp_path / "whole", "alone")
    with pytest.raises(InterruptedError):
        run(tmp_path / "halves", begun, stop=2)
    assert RunFolder(tmp_path / "halves").reached() == 4
    halves = run(tmp_path / "halves", ended)
    expected = [row["validation_loss"] for row in whole]
    assert [row["validation_loss"] for row in halves] == pytest.approx(expected, abs=1e-5)
    for name in ("model", "checkpoint"):
        ours, theirs = (load_file(tmp_path / folder / f"{name}.safetensors") for folder in ("halves", "whole"))
        assert ours.keys() == theirs.keys()
        for key in ours:
            if not key.endswith(
                ("w_k.bias", "w_k.bias.exp_avg", "w_k.bias.exp_avg_sq")
            ):  # rounding, which Adam enlarges
                torch.testing.assert_close(ours[key], theirs[key], rtol=0, atol=1e-4)
    before = model().state_dict()
    assert not any(ours[f"model.{name}"].equal(before[name]) for name in before if name.endswith("w_v.weight"))
    names = {path.name for path in (tmp_path / "halves").iterdir()}
    assert names == {"checkpoint.safetensors", "model.safetensors", "log.csv", "tensorboard"}


def test_a_sharded_run_that_was_interrupted_ends_bit_for_bit_as_one_that_was_not(group, tmp_path):
    whole = run(tmp_path / "whole", "sharded")
    with pytest.raises(InterruptedError):
        run(tmp_path / "halves", "sharded", stop=2)
    halves = run(tmp_path / "halves", "sharded")
    assert [row["validation_loss"] for row in halves] == [row["validation_loss"] for row in whole]
    ours, theirs = (Checkpoint.read(tmp_path / name / "checkpoint.safetensors") for name in ("halves", "whole"))
    assert all(tensor.equal(theirs.tensors[name]) for name, tensor in ours.tensors.items())


def test_other_ranks_write_nothing_and_begin_their_random_numbers_anew(group, tmp_path, monkeypatch):
    for module in ("processes", "checkpoints", "progress"):
        monkeypatch.setattr(f"dotformer.support.{module}.rank", lambda: 1)
    assert steps_after([], 3, progress=True).disable
    history = [{"step": 4, "validation_loss": 1.0}]
    network = model()
    drawn = []
    for _ in range(2):
        torch.manual_seed(len(drawn))
        with RunFolder(tmp_path / "run") as folder:
            folder.save(network, torch.optim.Adam(network.parameters()), CONFIG, (0, 4), history)
        drawn.append(torch.rand(()).item())
    assert drawn[0] == drawn[1] and not (tmp_path / "run").exists()


def test_others_that_find_another_run_are_noticed(group, tmp_path, monkeypatch):
    run(tmp_path, "whole")
    network = model()
    monkeypatch.setattr(dist, "all_gather_object", lambda steps, step: steps.__setitem__(slice(None), [step, 0]))
    with pytest.raises(ValueError, match="not all processes find the same run"):
        RunFolder(tmp_path).load(network, torch.optim.Adam(network.parameters()), CONFIG)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), model().parameters(), strict=True))


def test_every_layer_is_a_shard(group):
    cut = [name for name, module in shard(model()).named_modules() if hasattr(module, "unshard")]
    assert cut == ["", "encoder.layers.0", "decoder.layers.0"]


def test_a_run_of_another_configuration_is_named(group, tmp_path):
    run(tmp_path, "sharded")
    network = model(heads=4)
    optimizer = torch.optim.Adam(network.parameters())
    with pytest.raises(ValueError, match="holds the parameters of another model"):
        RunFolder(tmp_path).load(network, optimizer, CONFIG)
    with pytest.raises(ValueError, match="made with steps = 8, not 30"):
        RunFolder(tmp_path).load(network, optimizer, replace(CONFIG, steps=30))
