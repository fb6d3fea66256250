"""Checkpoints: all comes back bit for bit, and whatever is not a whole one is refused before anything has changed."""

import copy
import io
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dotformer.support.checkpoints import Checkpoint, RunFolder, gather, keep_random_state, save_tensors
from dotformer.support.progress import stream
from dotformer.training import TrainingConfig
from dotformer.transformer import Transformer, TransformerConfig

CONFIG = TrainingConfig(steps=10, warmup_steps=2)
HISTORY = [
    {"step": 2, "loss": 0.1 + 0.2, "validation_loss": float("nan")},
    {"step": 4, "loss": 1e-300, "validation_loss": 1.0},
]


def state_of(*parts):
    """All tensors and numbers of modules and optimisers, to compare bit for bit."""
    flat = torch.utils._pytree.tree_map
    return [
        flat(lambda x: (str(x.dtype), x.tolist()) if isinstance(x, torch.Tensor) else x, p.state_dict()) for p in parts
    ]


def started(seed, size=3, kind=torch.optim.Adam):
    """A tiny model, and an optimiser that has taken two steps, and the random state somewhere."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(size, 2), nn.BatchNorm1d(2))  # with buffers
    optimizer = kind(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.randn(4, size)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def save(folder, model, optimizer, config=CONFIG):
    with RunFolder(folder) as run:
        run.save(model, optimizer, config, (3, 4), HISTORY)
    return folder / "checkpoint.safetensors"


@pytest.fixture
def saved(tmp_path):
    """The path of a whole checkpoint."""
    return save(tmp_path, *started(1))


def assert_refused(path, says, model=None, optimizer=None, config=CONFIG):
    """Loading raises ValueError, names the file, and leaves all as it was."""
    if model is None:
        model, optimizer = started(2)
    before = copy.deepcopy(state_of(model, optimizer)), torch.get_rng_state()
    with pytest.raises(ValueError, match=rf"{path.name}.*{says}"):
        RunFolder(path.parent).load(model, optimizer, config)
    assert state_of(model, optimizer) == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_checkpoint_brings_everything_back_bit_for_bit(tmp_path):
    model, optimizer = started(1)
    save(tmp_path, model, optimizer)
    before = copy.deepcopy(state_of(model, optimizer))
    following = torch.rand(5)
    other, its_optimizer = started(2)
    assert state_of(other, its_optimizer) != before
    run = RunFolder(str(tmp_path))
    position, history = run.load(other, its_optimizer, CONFIG)
    assert (position, str(history)) == ((3, 4), str(HISTORY)) and isinstance(position, tuple)
    assert run.reached() == 4
    assert state_of(other, its_optimizer) == before
    assert torch.equal(torch.rand(5), following)
    fresh = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))  # whose optimiser has no state yet
    adam = torch.optim.Adam(fresh.parameters(), 0.1)
    run.load(fresh, adam, CONFIG)
    assert state_of(fresh, adam) == before


def test_the_states_of_cuda_devices_come_back(tmp_path, monkeypatch):
    """As many as there are now."""
    states, now = [torch.full((16,), n, dtype=torch.uint8) for n in (1, 2)], {}
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: states)
    save(tmp_path, *started(1))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: now.update({device: state.tolist()}))
    RunFolder(tmp_path).load(*started(1), CONFIG)
    assert now == {0: [1] * 16}


def test_a_folder_without_a_run_and_no_folder_at_all(tmp_path):
    for path in (tmp_path, tmp_path / "none", None):
        with RunFolder(path) as run:
            assert run.load(*started(1), CONFIG) == ((0, 0), []) and run.reached() == 0
    RunFolder(None).save(*started(1), CONFIG, (0, 1), HISTORY)
    assert not list(tmp_path.iterdir())


def test_every_flipped_bit_is_noticed(saved):
    data = saved.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    assert header > 1000
    places = [*range(header), *range(header, len(data), 97), len(data) - 1]
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        saved.write_bytes(damaged)
        with pytest.raises(ValueError, match="is not a whole checkpoint"):
            Checkpoint.read(saved)
    assert_refused(saved, "is not a whole checkpoint")


class Harmful:
    """An object that, unpickled, writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_in_a_file_is_executed(saved, tmp_path):
    harm, archive = tmp_path / "harm", io.BytesIO()
    torch.save(Harmful(harm), archive)
    for content in (archive.getvalue(), pickle.dumps(Harmful(harm))):
        saved.write_bytes(content)
        assert_refused(saved, "is not a whole checkpoint")
        assert not harm.exists()
    pickle.loads(content)
    assert harm.exists()


def test_other_files_are_refused(saved):
    data = saved.read_bytes()
    for content in (b"", data[: len(data) // 3], data[:-9], data + b"x", b"Only some text.\n" * 100):
        saved.write_bytes(content)
        assert_refused(saved, "is not a whole checkpoint")
    for metadata in (None, {"format": "other"}, {"format": "dotformer checkpoint 2"}):
        save_file({"weight": torch.ones(2, 3)}, saved, metadata)
        assert_refused(saved, "is not a whole checkpoint")


@pytest.mark.parametrize("name", ["checkpoint.pt", "checkpoint", "checkpoint.old"])
def test_what_an_earlier_version_has_left_is_named(name, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(
        ValueError, match=rf"{name} is of an earlier version, in another format: choose another folder$"
    ):
        RunFolder(tmp_path).load(*started(2), CONFIG)


def test_another_model_is_named(saved):
    norm = nn.BatchNorm1d(2)
    for layers in (
        [nn.Linear(4, 2), norm],
        [nn.Linear(3, 2, bias=False), norm],
        [nn.Linear(3, 2)],
        [nn.Linear(3, 2).double(), norm],
        [nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False)],
    ):
        model = nn.Sequential(*layers)
        optimizer = torch.optim.Adam(model.parameters())
        assert_refused(saved, "holds the parameters of another model", model, optimizer)


def test_a_model_of_the_same_parameters_but_another_shape_is_refused(tmp_path):
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 16}
    one = Transformer(TransformerConfig(9, 9, 1, 1, **sizes))
    other = Transformer(TransformerConfig(9, 9, 1, 1, **sizes, norm_first=True, final_norm=False))
    path = save(tmp_path, one, torch.optim.Adam(one.parameters()))
    assert_refused(path, "of another model", other, torch.optim.Adam(other.parameters()))


def test_another_configuration_is_named(saved):
    others = {"steps": 11, "learning_rate": 0.5, "warmup_steps": 3, "schedule": "inverse_sqrt", "label_smoothing": 0.0}
    others |= {"max_grad_norm": 2.0, "accumulation_steps": 2, "validate_every": 7, "seed": 1, "pad_id": 3}
    assert others.keys() == TrainingConfig.__dataclass_fields__.keys()
    for name, value in others.items():
        before, config = getattr(CONFIG, name), replace(CONFIG, **{name: value})
        assert_refused(saved, f"was made with {name} = {before!r}, not {value!r}", *started(2), config)


def test_the_state_of_another_optimiser_is_refused(tmp_path):
    model, _ = started(1)
    two_groups = torch.optim.Adam([{"params": [p]} for p in model.parameters()])
    for optimizer in (torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), two_groups):
        path = save(tmp_path, model, optimizer)
        assert_refused(path, "another optimiser")


def test_a_failed_save_leaves_the_old_checkpoint(saved, monkeypatch):
    before, files = saved.read_bytes(), set(saved.parent.iterdir())
    checkpoint = Checkpoint.read(saved)
    for call in ("os.fsync", "pathlib.Path.write_bytes"):
        with monkeypatch.context() as patch:

            def full(*_, **__):
                raise OSError("No space left on device")

            patch.setattr(call, full)
            with pytest.raises(OSError, match=r"No space left on device"):
                replace(checkpoint, position=(9, 9)).write(saved)
        assert saved.read_bytes() == before and set(saved.parent.iterdir()) == files


def test_a_tensor_of_several_names_is_kept_once_and_those_that_are_slices_of_one_array_each(tmp_path):
    """As the parameters of a recurrent layer are on a GPU."""
    layer = nn.LSTM(3, 4)
    flat = torch.cat([parameter.detach().flatten() for parameter in layer.parameters()])
    slices = flat.split([parameter.numel() for parameter in layer.parameters()])
    for parameter, part in zip(layer.parameters(), slices, strict=True):
        parameter.data = part.view_as(parameter)
    assert len({parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}) == 1
    layer.again = layer.weight_hh_l0
    save_tensors(tmp_path / "layer.safetensors", gather(layer, torch.optim.Adam(layer.parameters())))
    kept = load_file(tmp_path / "layer.safetensors")
    assert kept.keys() == {f"model.{name}" for name, _ in layer.named_parameters()}
    assert all(torch.equal(kept[f"model.{name}"], parameter) for name, parameter in layer.named_parameters())


def test_the_file_holds_names_that_say_what_they_are(saved):
    kept = load_file(saved)
    names = {name.partition(".")[0] for name in kept}
    assert names == {"model", "optimizer", "random"} and "optimizer.0.weight.exp_avg_sq" in kept
    header = json.loads(saved.read_bytes()[8 : 8 + int.from_bytes(saved.read_bytes()[:8], "little")])
    assert json.loads(header["__metadata__"]["run"])["config"]["max_grad_norm"] == 1.0


@pytest.mark.filterwarnings("error")
def test_the_random_state_of_several_devices_stays(monkeypatch):
    states = {0: "first", 1: "second"}
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", states.get)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: states.update({device: state}))
    before = torch.get_rng_state()
    with keep_random_state():
        torch.rand(3)
        states |= {0: "drawn", 1: "drawn"}
    assert states == {0: "first", 1: "second"}
    assert torch.equal(torch.get_rng_state(), before)


def test_a_stream_goes_on_from_a_place_and_says_where_it_is():
    epochs = lambda epoch: [10 * epoch + n for n in range(3)]  # noqa: E731
    data = stream(epochs, (1, 2), 2)
    assert [next(data) for _ in range(3)] == [((2, 1), [12, 20]), ((2, 3), [21, 22]), ((3, 2), [30, 31])]
    with pytest.raises(ValueError, match=r"^epoch 0 has 3 batches, of which 5 have been taken$"):
        next(stream(epochs, (0, 5)))
