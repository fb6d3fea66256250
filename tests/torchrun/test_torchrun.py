"""Several processes, started by torchrun, compute what one computes, however many they are, and survive a kill."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file

from dotformer.command_line.commands import main
from dotformer.support.checkpoints import RunFolder
from tests.conftest import ROOT
from tests.torchrun import work

WORK = Path(work.__file__)
CONFIG = """
[data]
corpus = "number_words"
train = 200
validation = 20
test = 20
[tokens]
vocab_size = 300
[model]
d_model = 16
num_heads = 2
num_encoder_layers = 1
num_decoder_layers = 1
d_ff = 16
dropout = 0.0
[training]
steps = 8
warmup_steps = 4
validate_every = 4
max_tokens = 512
"""


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory):
    """Start processes of the work under torchrun, on some machines, and wait; what they have said.

    None of them outlives the call, and none the tests.
    """
    pipe, output = subprocess.PIPE, tmp_path_factory.mktemp("output") / "output"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(WORK.parents[2])}
    server = subprocess.Popen([sys.executable, WORK, "serve"], env=environment, stdin=pipe, stdout=pipe, bufsize=0)

    def torchrun(processes, *arguments, restarts=0, machines=1, port=0, code=0):
        command = [f"--nproc-per-node={processes}", f"--nnodes={machines}", f"--max-restarts={restarts}"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=test"]
        command += ["--monitor-interval=0.1", "--run-path", "--start-method=fork", WORK, *arguments]
        settings = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if machines > 1 else {}
        request = json.dumps([machines, [str(word) for word in command], settings, str(output)])
        server.stdin.write(f"{request}\n".encode())
        number = int(server.stdout.readline())
        try:
            ended, _, _ = select.select([server.stdout], [], [], 120)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(number, signal.SIGKILL)
            ended_with = int(server.stdout.readline())
        said, errors = (Path(f"{output}.{stream}") for stream in (1, 2))
        torchrun.errors = errors.read_text()
        assert ended and ended_with == code, torchrun.errors[-3000:]
        text = said.read_text()
        said.unlink()
        errors.unlink()
        return text

    yield torchrun
    server.stdin.close()
    server.wait()


def losses(folder):
    rows = (folder / "log.csv").read_text().splitlines()
    names = rows[0].split(",")
    return [[float(row.split(",")[names.index(n)]) for n in ("step", "loss", "validation_loss")] for row in rows[1:]]


def assert_same_run(folder, other, rounding=1e-5):
    assert torch.allclose(torch.tensor(losses(folder)), torch.tensor(losses(other)), atol=rounding, rtol=0)
    assert all(int(a[0]) < int(b[0]) for a, b in pairwise(losses(folder)))
    ours, theirs = (load_file(one / "model.safetensors") for one in (folder, other))
    assert ours.keys() == theirs.keys()
    for name in ours:
        if not name.endswith("w_k.bias"):  # it changes no weight: its gradient is rounding, which Adam makes large
            assert torch.allclose(ours[name], theirs[name], atol=10 * rounding, rtol=0), name


def on_each(folder):
    """The shares of the parameters that processes have kept, in percent."""
    return set(noted(folder, "kept"))


def noted(folder, name="started"):
    """The numbers that processes have written to a file, in order."""
    return sorted(map(int, (folder / name).read_text().split()))


def new(base, *names):
    """New folders."""
    for name in names:
        (base / name).mkdir()
    return [base / name for name in names]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of a run by one process without torchrun."""
    folder = tmp_path_factory.mktemp("alone")
    work.learn("train", "alone", folder)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory, torchrun):
    """What two processes have left in folders: gradients, a whole run, and one that they have stopped, sharded."""
    base = tmp_path_factory.mktemp("two")
    folders = new(base, "gradients", "whole", "stopped")
    tasks = zip(("gradients", "train", "stop"), ("both", "whole", "sharded"), folders, strict=True)
    torchrun(2, *(word for task in tasks for word in task))
    return base


def test_gradients_are_those_of_one_to_rounding_and_means_of_means_are_not(two):
    found = json.loads((two / "gradients" / "gradients.json").read_text())
    assert found["whole"] < 1e-14 and found["sharded"] < 1e-14
    assert 1e-4 < found["bfloat16"] < 0.3  # as far off as autocast by one process; twice the gradient would be 1
    assert found["each divides by its own"] > 1e-3


def test_two_train_what_one_trains(two, alone):
    assert noted(two / "whole") == [0, 1] and on_each(two / "whole") == {100}
    tokens, [all_tokens] = noted(two / "whole", "tokens"), noted(alone, "tokens")
    assert sum(tokens) == all_tokens and min(tokens) > 0.4 * all_tokens
    assert_same_run(two / "whole", alone)


def stopped_by_two(two, folder):
    """A copy of the run that two processes have stopped after step 10."""
    halves = Path(copytree(two / "stopped", folder))
    assert RunFolder(halves).reached() == 10 and (halves / "stopped").exists() and on_each(halves) <= {49, 50, 51}
    return halves


def test_three_that_share_a_model_train_what_one_trains_and_go_on_where_two_have_stopped(
    two, alone, torchrun, tmp_path
):
    [together] = new(tmp_path, "sharded")
    halves = stopped_by_two(two, tmp_path / "stopped")
    torchrun(3, "train", "sharded", together, "train", "whole", halves)
    for folder in (together, halves):
        assert_same_run(folder, alone)


def test_one_ends_what_two_have_begun_and_two_what_one_has_begun_and_was_killed(two, alone, torchrun, tmp_path):
    halves = stopped_by_two(two, tmp_path / "stopped")
    work.learn("train", "alone", halves)
    [killed] = new(tmp_path, "killed")
    torchrun(1, "die", "alone", killed, code=1)
    assert RunFolder(killed).reached() == 10 and (killed / "killed").exists()
    torchrun(2, "die", "sharded", killed)
    for folder in (halves, killed):
        assert_same_run(folder, alone)


def test_a_worker_killed_on_another_machine_is_started_again_and_nothing_is_lost(alone, torchrun, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    torchrun(1, "die", "whole", tmp_path, restarts=1, machines=2, port=port)
    assert (tmp_path / "killed").exists() and noted(tmp_path) == [0, 0, 1, 1]
    assert_same_run(tmp_path, alone)


def test_a_command_of_two_of_which_one_hangs_says_so_and_goes_on(torchrun, tmp_path):
    (tmp_path / "tiny.toml").write_text(CONFIG)
    command = ["train", str(tmp_path / "tiny.toml"), "--device", "cpu", "--output"]
    assert main([*command, str(tmp_path / "one")]) == 0
    torchrun(2, "hang", tmp_path, *command, tmp_path / "two", restarts=1)
    said = [line for line in torchrun.errors.splitlines() if line.startswith(("dotformer: ", "Traceback"))]
    assert said == ["dotformer: rank 0 has waited 0:00:04 for the other processes"]
    assert_same_run(tmp_path / "two", tmp_path / "one")


def test_one_that_is_silent_while_it_prepares_data_is_given_up(torchrun, tiny, tmp_path):
    torchrun(2, "silent", tmp_path, *tiny, tmp_path / "two", code=1)
    assert said_by(torchrun) == ["dotformer: rank 1 has waited 0:00:04 for the other processes"]


@pytest.fixture
def tiny(tmp_path):
    """The arguments of a command that trains a tiny model, without the folder."""
    (tmp_path / "tiny.toml").write_text(CONFIG)
    return ["train", str(tmp_path / "tiny.toml"), "--device", "cpu", "--quiet", "--output"]


def said_by(torchrun):
    """What a command has said, a line a process at most, without what one says of another that has ended."""
    lines = [line for line in torchrun.errors.splitlines() if line.startswith("dotformer: ")]
    assert len(lines) <= 2 and f'File "{ROOT}/dotformer/' not in torchrun.errors
    return [line for line in lines if not line.endswith("has lost another process")]


def test_two_whose_disk_is_full_say_so_and_go_on_when_it_is_not(torchrun, tiny, tmp_path):
    assert main([*tiny, str(tmp_path / "one")]) == 0
    torchrun(2, "full", tmp_path, *tiny, tmp_path / "two", code=1)
    [line] = said_by(torchrun)
    assert line.startswith(f"dotformer: {tmp_path / 'two'}/") and line.endswith(": File too large")
    assert RunFolder(tmp_path / "two").reached() == 4
    torchrun(2, "run", tmp_path, *tiny, tmp_path / "two")
    assert_same_run(tmp_path / "two", tmp_path / "one")


def test_two_that_find_a_checkpoint_cut_short_or_not_the_same_folder_say_so(torchrun, tiny, tmp_path):
    both = tmp_path / "two"
    torchrun(2, "apart", tmp_path, *tiny, both, code=1)
    assert said_by(torchrun) == [f"dotformer: rank 1 does not see what rank 0 has written to {tmp_path}/elsewhere"]
    torchrun(2, "full", tmp_path, *tiny, both, code=1)
    saved = both / "checkpoint.safetensors"
    saved.write_bytes(saved.read_bytes()[:-100])
    torchrun(2, "run", tmp_path, *tiny, both, code=1)
    [line] = said_by(torchrun)
    assert line.startswith(f"dotformer: {saved} is not a whole checkpoint")


def test_a_command_of_two_of_which_one_is_killed_trains_what_it_trains_alone(torchrun, tmp_path, capsys):
    (tmp_path / "tiny.toml").write_text(CONFIG)
    one, both = tmp_path / "one", tmp_path / "two"
    command = ["train", str(tmp_path / "tiny.toml"), "--device", "cpu", "--output"]
    assert main([*command, str(one)]) == 0
    said = capsys.readouterr().out.splitlines()
    heard = torchrun(2, "kill", tmp_path, *command, both, "--shard", restarts=1).replace(str(both), str(one))
    assert heard.splitlines() == [*said[:2], said[0], "going on after step 4 of 8", said[2]]  # only one of them speaks
    assert (tmp_path / "killed").exists()
    assert noted(tmp_path, "left") == [0, 0]  # wrapped models, when the group ends
    assert_same_run(both, one)
    assert main(["evaluate", str(both), "--device", "cpu"]) == 0
    assert main([*command, str(both)]) == 0
    assert "is finished" in capsys.readouterr().out
    assert main([*command, str(tmp_path / "new"), "--shard"]) == 1
    assert "no shards of a model: use torchrun" in capsys.readouterr().err
