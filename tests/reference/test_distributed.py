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
    digests,
    joined,
    last_checkpoint,
    load_parts,
    my_share,
    read_run,
    save_parts,
    shard,
)
from dotformer.training import Team, TrainingConfig, evaluate, pair_batches, train
from dotformer.transformer import Transformer, TransformerConfig

CONFIG = TrainingConfig(steps=8, rate=1e-2, warmup=3, every=4, seed=3)
HISTORY = [{"step": 4, "validation_loss": 1.0}]


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


def test_another_padding_and_a_process_that_is_not_there():
    target = torch.full((1, 4), 7)
    _, padded = my_share((target, target), 1, 2, pad_id=5)
    assert padded.tolist() == [[7, 5, 5, 5]] and (target == 7).all()  # the batch stays as it is
    for number in (2, -1):
        with pytest.raises(ValueError, match="no process"):
            my_share((target, target), number, 2)


# checkpoints that cannot be used


@pytest.fixture
def saved(group, tmp_path):
    network = model()
    save_parts(tmp_path, network, torch.optim.Adam(network.parameters()), CONFIG, (0, 4), HISTORY)
    return tmp_path


@pytest.mark.parametrize("content", ["{", "[]", '{"config": {}, "place": [0, 0], "history": []}'])
def test_a_run_that_is_damaged_is_named(content, saved):
    (saved / "checkpoint/run.json").write_text(content)
    with pytest.raises(ValueError, match=r"run\.json is damaged"):
        read_run(saved, CONFIG)


def loaded(folder, network=None):
    network = network or model()
    load_parts(folder, read_run(folder, CONFIG), network, torch.optim.Adam(network.parameters()))


@pytest.mark.parametrize(
    ("name", "damage"), [("*.distcp", lambda b: b[:-3] + bytes([b[-3] ^ 1]) + b[-2:]), (".metadata", None)]
)
def test_parts_that_are_damaged_are_named(name, damage, saved):
    [part] = (saved / "checkpoint").glob(name)
    loaded(saved)
    if damage:
        part.write_bytes(damage(part.read_bytes()))
    else:
        part.unlink()
    with pytest.raises(ValueError, match="checkpoint is damaged: a file is missing, or has changed"):
        loaded(saved)


def test_parts_that_another_process_cannot_read_are_named(saved, monkeypatch):
    """It compares no digests: only process 0 does."""
    [part] = (saved / "checkpoint").glob("*.distcp")
    found = digests(saved / "checkpoint")
    part.write_bytes(part.read_bytes()[:1000])
    monkeypatch.setattr("dotformer.distributed.digests", lambda _: found)
    with pytest.raises(ValueError, match="checkpoint cannot be read"):
        loaded(saved)


def test_parts_of_another_model_and_configuration_are_named(saved):
    with pytest.raises(ValueError, match="holds the parameters of another model"):
        loaded(saved, model(heads=4))
    with pytest.raises(ValueError, match="made with another steps, seed"):
        read_run(saved, replace(CONFIG, steps=30, seed=1))


# a process alone


def test_a_process_that_nobody_has_started_is_alone(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")  # other launchers set it, too
    with joined() as team:
        assert type(team) is Team and (team.number, team.size) == (0, 1)
        assert not dist.is_initialized()


@pytest.fixture
def started(monkeypatch):
    """Set what torchrun tells process 0 of 4; where they meet is said in a ValueError."""
    monkeypatch.setattr("dotformer.distributed.dist.rendezvous", lambda _: iter([("the store", 0, 4)]))
    monkeypatch.setattr("dotformer.distributed.dist.PrefixStore", lambda prefix, store: f"{store}, {prefix}")

    def begin(_, store, rank, world_size, **__):
        assert (rank, world_size) == (0, 4)
        raise ValueError(f"they meet in {store}")

    monkeypatch.setattr("dotformer.distributed.dist.init_process_group", begin)

    def started(here=4, restarts=0, own=False, number=0):
        told = {"RUN_ID": "test", "USE_AGENT_STORE": not own, "MAX_RESTARTS": restarts, "RESTART_COUNT": 1}
        told = {f"TORCHELASTIC_{name}": value for name, value in told.items()}
        for name, value in (told | {"LOCAL_WORLD_SIZE": here, "LOCAL_RANK": number}).items():
            monkeypatch.setenv(name, str(value))

    return started


@pytest.mark.parametrize(
    ("here", "restarts", "own", "says"),
    [
        (2, 3, False, "needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),
        (4, 3, False, "they meet in the store, attempt 1$"),
        (2, 3, True, "they meet in the store$"),
    ],
)
def test_where_they_meet_after_a_restart(here, restarts, own, says, started):
    started(here, restarts, own)
    with pytest.raises(ValueError, match=says), joined():
        raise AssertionError("they have joined")


@pytest.mark.parametrize(
    ("device", "number", "says"),
    [("mps", 0, "cannot use mps: use --device cpu"), ("cuda", 2, "4 processes find 2 GPUs"), ("cuda", 1, "they meet")],
)
def test_devices_that_there_are_not(device, number, says, started, monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    started(number=number)
    with pytest.raises(ValueError, match=says), joined(device):
        raise AssertionError("they have joined")
    assert taken == ([number] if says == "they meet" else [])


def test_a_process_alone_and_several_do_not_begin_again_what_the_other_has_begun(tmp_path):
    assert read_run(tmp_path, CONFIG) is None and last_checkpoint(tmp_path) == tmp_path / "checkpoint"
    (tmp_path / "checkpoint.pt").touch()
    with pytest.raises(ValueError, match="begun by a process alone"):
        read_run(tmp_path, CONFIG)
    (tmp_path / "checkpoint.old").mkdir()
    with pytest.raises(ValueError, match="begun by several processes"):
        Team().reached(tmp_path, None, CONFIG)
    with pytest.raises(ValueError, match="begun by several processes"):
        Team().load(tmp_path, None, None, CONFIG)
    with pytest.raises(ValueError, match="no parts"):
        Team().wrap(torch.nn.Linear(2, 2), sharded=True)


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
    before = model().state_dict()
    assert not any(ours[name].equal(before[name]) for name in ours if name.endswith("w_v.weight"))
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
    kept = read_run(tmp_path, CONFIG)
    assert (kept["place"], kept["history"], kept["step"]) == ((0, 4), HISTORY, 4)
    load_parts(tmp_path, read_run(tmp_path, CONFIG), network, optimizer)


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
    load_parts(tmp_path, read_run(tmp_path, CONFIG), network, optimizer)
    save_parts(tmp_path, network, optimizer, CONFIG, (0, 8), [{"step": 8}])
    (tmp_path / "checkpoint.old").mkdir()
    assert last_checkpoint(tmp_path) == tmp_path / "checkpoint"
    (tmp_path / "checkpoint.old").rmdir()
    assert read_run(tmp_path, CONFIG)["step"] == 8
    assert [path.name for path in tmp_path.iterdir() if "checkpoint" in path.name] == ["checkpoint"]
