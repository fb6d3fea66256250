"""Tests for distributed.py: that many processes compute what one computes, however many, and survive a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from dotformer.distributed import my_share

WORK = Path(__file__).with_name("distributed_work.py")


def together(processes, *arguments, restarts=0):
    """Start the work under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", f"--max-restarts={restarts}", "--monitor-interval=0.1", str(WORK)]
    root = str(WORK.parents[2])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    return subprocess.Popen(
        [*command, *map(str, arguments)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process):
    """Its standard output, once it has ended well."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err[-3000:]
    return out


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of a run by one process without torchrun."""
    folder = tmp_path_factory.mktemp("alone")
    environment = {key: value for key, value in os.environ.items() if key != "WORLD_SIZE"}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(WORK.parents[2])}
    subprocess.run([sys.executable, WORK, "train", folder, "whole", "20"], env=environment, check=True, timeout=120)
    return folder


def losses(folder):
    rows = (folder / "log.csv").read_text().splitlines()
    names = rows[0].split(",")
    return [[float(row.split(",")[names.index(n)]) for n in ("step", "loss", "validation_loss")] for row in rows[1:]]


def assert_same_run(folder, other, rounding=1e-5):
    assert torch.allclose(torch.tensor(losses(folder)), torch.tensor(losses(other)), atol=rounding, rtol=0)
    ours, theirs = (load_file(one / "model.safetensors") for one in (folder, other))
    assert ours.keys() == theirs.keys()
    for name in ours:
        if not name.endswith("w_k.bias"):  # it changes no weight: its gradient is rounding, which Adam makes large
            assert torch.allclose(ours[name], theirs[name], atol=10 * rounding, rtol=0), name


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


def test_the_batch_stays_as_it_is():
    target = torch.ones(1, 4, dtype=torch.long)
    my_share((target, target), 1, 2)
    assert target.all()


@pytest.mark.parametrize(("number", "size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_process_that_is_not_there(number, size):
    with pytest.raises(ValueError, match="no process"):
        my_share((torch.ones(2, 2), torch.ones(2, 2)), number, size)


# runs


@pytest.mark.parametrize(("processes", "way"), [(2, "whole"), (2, "parts"), (3, "whole")])
def test_many_train_what_one_trains(processes, way, alone, tmp_path):
    finished(together(processes, "train", tmp_path, way, 20))
    assert_same_run(tmp_path, alone)


def test_gradients_are_those_of_one_to_rounding_and_means_of_means_are_not():
    out = finished(together(2, "gradients"))
    found = json.loads(out)
    assert found["whole, float64"] < 1e-14 and found["parts, float64"] < 1e-14
    assert found["whole"] < 1e-6 and found["parts"] < 1e-6
    assert found["each divides by its own"] > 1e-3


@pytest.mark.parametrize(("first", "then"), [((2, "parts"), (3, "whole")), ((3, "whole"), (2, "parts"))])
def test_others_go_on_where_some_have_stopped(first, then, alone, tmp_path):
    process = together(first[0], "stop", tmp_path, first[1], 20)
    assert "stopped after 10" in finished(process)
    assert json.loads((tmp_path / "checkpoint" / "run.json").read_text())["history"][-1]["step"] == 10
    finished(together(then[0], "train", tmp_path, then[1], 20))
    assert_same_run(tmp_path, alone)


def test_a_killed_worker_is_started_again_and_nothing_is_lost(alone, tmp_path):
    process = together(2, "slow", tmp_path, "whole", 20, restarts=1)
    while not (tmp_path / "checkpoint" / "run.json").exists():
        assert process.poll() is None
        time.sleep(0.02)
    number, first = 1, (tmp_path / "started").read_text().split()
    os.kill(int(dict(pair.split(":") for pair in first)[str(number)]), signal.SIGKILL)
    finished(process)
    started = (tmp_path / "started").read_text().split()
    assert len(started) == 4, started  # both were started twice
    assert all(int(a[0]) < int(b[0]) for a, b in pairwise(losses(tmp_path)))
    assert_same_run(tmp_path, alone)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "checkpoint" / "run.json").write_text("{"), "is damaged"),
        (lambda folder: (folder / "checkpoint.pt").touch(), "begun by a process alone"),
    ],
)
def test_a_run_that_cannot_go_on_is_named(damage, says, tmp_path):
    finished(together(2, "stop", tmp_path, "whole", 20))
    damage(tmp_path)
    process = together(2, "train", tmp_path, "whole", 20)
    _, err = process.communicate(timeout=120)
    assert process.returncode and says in err


def test_another_configuration_is_named(tmp_path):
    finished(together(2, "stop", tmp_path, "whole", 20))
    process = together(2, "train", tmp_path, "whole", 30)
    _, err = process.communicate(timeout=120)
    assert process.returncode and "made with another steps" in err
