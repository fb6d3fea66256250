"""Several processes, started by torchrun, compute what one computes, however many they are, and survive a kill."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file

from dotformer.command_line.commands import main

WORK = Path(__file__).with_name("work.py")


def together(processes, *arguments, restarts=0, machines=1, port=0, shared=True, work=(WORK,)):
    """Start `processes` of the work under torchrun, on one of some machines."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", f"--nnodes={machines}"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=test"]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.1", *map(str, work)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(WORK.parents[2])}
    if not shared:
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
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
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(WORK.parents[2])}
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


@pytest.mark.parametrize(("processes", "way"), [(2, "whole"), (3, "parts")])
def test_many_train_what_one_trains(processes, way, alone, tmp_path):
    finished(together(processes, "train", tmp_path, way, 20))
    assert_same_run(tmp_path, alone)


def test_gradients_are_those_of_one_to_rounding_and_means_of_means_are_not():
    out = finished(together(2, "gradients"))
    found = json.loads(out)
    assert found["whole, float64"] < 1e-14 and found["parts, float64"] < 1e-14
    assert found["whole"] < 1e-6 and found["parts"] < 1e-6
    assert found["each divides by its own"] > 1e-3


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that two processes, each with a part, have stopped after 10 of 20 steps; to be copied."""
    folder = tmp_path_factory.mktemp("stopped")
    assert "stopped after 10" in finished(together(2, "stop", folder, "parts", 20))
    return folder


def test_three_with_the_whole_go_on_where_two_with_parts_have_stopped(stopped, alone, tmp_path):
    copytree(stopped, tmp_path, dirs_exist_ok=True)
    assert json.loads((tmp_path / "checkpoint" / "run.json").read_text())["history"][-1]["step"] == 10
    finished(together(3, "train", tmp_path, "whole", 20))
    assert_same_run(tmp_path, alone)


def kill_the_second(folder, agents):
    """Kill process 1 once there is a checkpoint, in the middle of the run."""
    while not (folder / "checkpoint" / "run.json").exists():
        assert all(agent.poll() is None for agent in agents)
        time.sleep(0.02)
    started = dict(pair.split(":") for pair in (folder / "started").read_text().split())
    os.kill(int(started["1"]), signal.SIGKILL)


def assert_started_twice(folder):
    numbers = [pair.partition(":")[0] for pair in (folder / "started").read_text().split()]
    assert sorted(numbers) == ["0", "0", "1", "1"]
    assert all(int(a[0]) < int(b[0]) for a, b in pairwise(losses(folder)))


def test_a_killed_worker_is_started_again_and_nothing_is_lost(alone, tmp_path):
    agent = together(2, "slow", tmp_path, "whole", 20, restarts=1)
    kill_the_second(tmp_path, [agent])
    finished(agent)
    assert_started_twice(tmp_path)
    assert_same_run(tmp_path, alone)


def test_a_worker_killed_on_another_machine(alone, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    agents = [
        together(1, "slow", tmp_path, "whole", 20, restarts=1, machines=2, port=port, shared=False) for _ in range(2)
    ]
    kill_the_second(tmp_path, agents)
    for agent in agents:
        finished(agent)
    assert_started_twice(tmp_path)
    assert_same_run(tmp_path, alone)


def test_the_same_command_trains_with_one_process_and_with_several(tmp_path, capsys):
    config = tmp_path / "tiny.toml"
    config.write_text(
        '[data]\ncorpus = "number_words"\ntrain = 200\nvalidation = 20\ntest = 20\n[tokens]\nvocab_size = 300\n'
        "[model]\nd_model = 16\nnum_heads = 2\nnum_encoder_layers = 1\nnum_decoder_layers = 1\nd_ff = 16\n"
        "dropout = 0.0\n[training]\nsteps = 8\nwarmup = 4\nevery = 4\nmax_tokens = 512\n"
    )
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["train", str(config), "--output", str(one), "--device", "cpu"]) == 0
    said = capsys.readouterr().out.splitlines()
    several = together(2, "train", config, "--output", two, "--device", "cpu", "--shard", work=("-m", "dotformer"))
    assert finished(several).replace(str(two), str(one)).splitlines() == said  # and only one of the two speaks
    assert_same_run(two, one)
    assert main(["evaluate", str(two), "--device", "cpu"]) == 0
    assert main(["train", str(config), "--output", str(two)]) == 1
    assert "begun by several processes" in capsys.readouterr().err
