"""Tests for distributed.py, by one process; tests/torchrun has several."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from dotformer.distributed import (
    Processes,
    joined,
    last_checkpoint,
    load_parts,
    my_share,
    read_run,
    replicate,
    save_parts,
    shard,
)
from dotformer.training import Team, TrainingConfig, evaluate, pair_batches, train
from dotformer.transformer import Transformer, TransformerConfig

CONFIG = TrainingConfig(steps=8, rate=1e-2, warmup=3, every=4, seed=3)
HISTORY = [{"step": 4, "validation_loss": 1.0}]


def model(width=16):
    torch.manual_seed(0)
    return Transformer(TransformerConfig(20, 20, width, 2, 1, 1, 32, dropout=0.1, max_length=16))


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
def test_every_row_has_one_process(rows, size):
    source = torch.arange(rows * 3).reshape(rows, 3) + 5
    target = torch.arange(rows * 4).reshape(rows, 4) + 50
    shares = [my_share((source, target), number, size) for number in range(size)]
    real = [(s, t) for s, t in shares if (t[:, 1:] != 0).any()]
    together = torch.cat([s for s, _ in real]), torch.cat([t for _, t in real])
    for side, found in zip((source, target), together, strict=True):
        assert found.sort(dim=0).values.equal(side)
    for _, t in shares[rows:]:
        assert t.shape == (1, 4) and t[0, 0] == 50 and not t[0, 1:].any()
    assert max(len(s) for s, _ in real) - min(len(s) for s, _ in real) <= 1


def test_another_padding():
    target = torch.full((1, 4), 7)
    _, padded = my_share((target, target), 1, 2, pad_id=5)
    assert padded.tolist() == [[7, 5, 5, 5]]


def test_the_batch_stays_as_it_is():
    target = torch.ones(1, 4, dtype=torch.long)
    my_share((target, target), 1, 2)
    assert target.all()


@pytest.mark.parametrize(("number", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_process_that_is_not_there(number, size):
    with pytest.raises(ValueError, match="no process"):
        my_share((torch.ones(2, 2), torch.ones(2, 2)), number, size)


# a run, saved and gone on with


def run(folder, engine, steps=8, stop=None):
    """Train as a group of one; the model that is left, and the history. At `stop`, be interrupted."""
    team, data = Processes(), pairs()
    validate = partial(evaluate, batches=list(pair_batches(data)))

    def checked(model):
        found = validate(model)
        team.validated = getattr(team, "validated", 0) + 1
        if team.validated == stop:
            raise InterruptedError
        return found

    wrapped = team.wrap(model(), engine == "parts")
    batches = team.share(partial(pair_batches, data, max_tokens=20))
    config = replace(CONFIG, steps=steps)
    return wrapped, train(wrapped, batches, config, checked, folder, progress=False, team=team)


@pytest.mark.parametrize("engine", ["whole", "parts"])
def test_a_run_that_was_interrupted_ends_as_one_that_was_not(engine, group, tmp_path):
    _, whole = run(tmp_path / "whole", engine)
    with pytest.raises(InterruptedError):
        run(tmp_path / "halves", engine, stop=2)
    assert read_run(tmp_path / "halves", CONFIG)["step"] == 4
    assert Processes().reached(tmp_path / "halves", None, CONFIG) == 4
    _, halves = run(tmp_path / "halves", engine)
    assert [row["validation_loss"] for row in halves] == [row["validation_loss"] for row in whole]
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("halves", "whole"))
    assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)
    names = {path.name for path in (tmp_path / "halves").iterdir()}
    assert names == {"checkpoint", "model.safetensors", "log.csv", "tensorboard"}


def test_no_random_number_is_used_twice(group):
    drawn = set()
    for number in range(3):
        for step in range(3):
            for seed in range(3):
                team = Processes()
                team.number = number
                team.seed(replace(CONFIG, seed=seed), step)
                drawn.add(torch.rand(()).item())
    assert len(drawn) == 27


def test_others_that_find_another_run_are_noticed(group, tmp_path, monkeypatch):
    run(tmp_path, "whole")
    team = Processes()
    monkeypatch.setattr(team, "size", 2)  # and the second, it seems, finds none
    with pytest.raises(ValueError, match="not all processes find the same run"):
        team.load(tmp_path, model(), None, CONFIG)


@pytest.mark.parametrize("engine", [replicate, shard])
def test_parameters_are_kept(engine, group):
    before, after = model().state_dict(), engine(model()).state_dict()
    for name, tensor in after.items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        assert whole.equal(before[name.removeprefix("module.")])


def test_every_layer_is_a_part(group):
    cut = [name for name, module in shard(model()).named_modules() if hasattr(module, "unshard")]
    assert cut == ["", "encoder.layers.0", "decoder.layers.0"]


def test_nothing_is_gone_when_saving_fails(group, tmp_path, monkeypatch):
    network = model()
    optimizer = torch.optim.Adam(network.parameters())
    save_parts(tmp_path, network, optimizer, CONFIG, (0, 4), HISTORY)

    def full(*_, **__):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("torch.distributed.checkpoint.filesystem.FileSystemWriter.write_data", full)
        with pytest.raises(OSError, match=r"checkpoint\.draft: .*No space left"):
            save_parts(tmp_path, network, optimizer, CONFIG, (0, 8), [*HISTORY, {"step": 8}])
    assert read_run(tmp_path, CONFIG) == {"place": (0, 4), "history": HISTORY, "step": 4}
    load_parts(tmp_path, network, optimizer)


@pytest.mark.parametrize("killed", ["the first name", "the second name"])
def test_all_that_are_killed_between_two_names_find_the_last_or_the_one_before(killed, group, tmp_path, monkeypatch):
    network = model()
    optimizer = torch.optim.Adam(network.parameters())
    save_parts(tmp_path, network, optimizer, CONFIG, (0, 4), HISTORY)
    rename = Path.rename

    def interrupted(path, to):
        if path.parent == tmp_path and (killed == "the first name" or to.name == "checkpoint"):
            raise KeyboardInterrupt
        return rename(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            save_parts(tmp_path, network, optimizer, CONFIG, (0, 8), [{"step": 8}])
    assert read_run(tmp_path, CONFIG)["step"] == 4
    load_parts(tmp_path, network, optimizer)
    save_parts(tmp_path, network, optimizer, CONFIG, (0, 8), [{"step": 8}])
    assert read_run(tmp_path, CONFIG)["step"] == 8
    assert [path.name for path in tmp_path.iterdir() if "checkpoint" in path.name] == ["checkpoint"]


# checkpoints that cannot be used


@pytest.fixture
def saved(group, tmp_path):
    network = model()
    save_parts(tmp_path, network, torch.optim.Adam(network.parameters()), CONFIG, (0, 4), HISTORY)
    return tmp_path


@pytest.mark.parametrize("content", ["{", "[]", '{"config": {}, "place": [0, 0], "history": []}', "{}"])
def test_a_run_that_is_damaged_is_named(content, saved):
    (saved / "checkpoint/run.json").write_text(content)
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        read_run(saved, CONFIG)


def test_parts_that_are_damaged_are_named(saved):
    [part] = (saved / "checkpoint").glob("*.distcp")
    part.write_bytes(part.read_bytes()[:1000])
    network = model()
    with pytest.raises(ValueError, match="checkpoint cannot be read"):
        load_parts(saved, network, torch.optim.Adam(network.parameters()))


def test_parts_of_another_model_are_named(saved):
    network = model(width=32)
    with pytest.raises(ValueError, match=r"checkpoint cannot be read: .*mismatch"):
        load_parts(saved, network, torch.optim.Adam(network.parameters()))


def test_a_run_of_a_process_alone_is_named(tmp_path):
    (tmp_path / "checkpoint.pt").touch()
    with pytest.raises(ValueError, match="begun by a process alone"):
        read_run(tmp_path, CONFIG)


def test_another_configuration_is_named(saved):
    with pytest.raises(ValueError, match="made with another steps, seed"):
        read_run(saved, replace(CONFIG, steps=30, seed=1))


def test_no_run_yet(tmp_path):
    assert read_run(tmp_path, CONFIG) is None and last_checkpoint(tmp_path) == tmp_path / "checkpoint"


# a process alone


def test_a_process_that_nobody_has_started_is_alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined() as team:
        assert type(team) is Team and (team.number, team.size) == (0, 1)
        assert not dist.is_initialized()


def test_restarts_on_several_machines_need_a_store_of_their_own(monkeypatch):
    monkeypatch.setattr("dotformer.distributed.dist.rendezvous", lambda _: iter([(dist.HashStore(), 0, 4)]))
    given = {"WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_USE_AGENT_STORE": True}
    for name, value in (given | {"TORCHELASTIC_MAX_RESTARTS": 3, "TORCHELASTIC_RESTART_COUNT": 0}).items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(ValueError, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"), joined():
        raise AssertionError("they have joined")
    assert not dist.is_initialized()


@pytest.mark.parametrize("name", ["checkpoint", "checkpoint.old"])
def test_a_process_alone_does_not_begin_again_what_several_have_begun(name, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="begun by several processes"):
        Team().reached(tmp_path, None, CONFIG)
    with pytest.raises(ValueError, match="begun by several processes"):
        Team().load(tmp_path, None, None, CONFIG)


def test_a_process_alone_has_no_parts():
    with pytest.raises(ValueError, match="no parts"):
        Team().wrap(torch.nn.Linear(2, 2), sharded=True)
