"""Processes that compute together: how they join, what they return, and what becomes of those that fail."""

import os
import signal
import time
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from dotformer.support.processes import (
    barrier,
    fresh_random_numbers,
    launch,
    process_group,
    rank,
    rank_0_first,
    world_size,
)
from dotformer.support.shapes import shapes

# joining


def test_a_process_that_nobody_has_started_is_alone(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")  # other launchers set it, too
    with process_group():
        assert not dist.is_initialized() and (rank(), world_size()) == (0, 1)
        barrier()
        with rank_0_first():
            pass


@pytest.fixture
def started(monkeypatch):
    """Set what torchrun tells process 0 of 4; where they meet is said in a ValueError."""
    monkeypatch.setattr(dist, "rendezvous", lambda _: iter([("the store", 0, 4)]))
    monkeypatch.setattr(dist, "PrefixStore", lambda prefix, store: f"{store}, {prefix}")

    def begin(_, store, rank, world_size, **__):
        assert (rank, world_size) == (0, 4)
        raise ValueError(f"they meet in {store}")

    monkeypatch.setattr(dist, "init_process_group", begin)

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
    with pytest.raises(ValueError, match=says), process_group():
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
    with pytest.raises(ValueError, match=says), process_group(device):
        raise AssertionError("they have joined")
    assert taken == ([number] if says == "they meet" else [])


@pytest.mark.parametrize(
    ("problem", "kind", "says"),
    [
        ("Timed out waiting 1ms for recv", TimeoutError, "rank 0 has waited 0:10:00 for the other processes"),
        ("Connection closed by peer", ConnectionError, "rank 0 has lost another process"),
        ("a mistake of ours", RuntimeError, "a mistake of ours"),
    ],
)
def test_others_that_do_not_answer_are_told_from_mistakes(problem, kind, says, started, monkeypatch):
    waiting = []
    monkeypatch.setattr(dist, "init_process_group", lambda *_, timeout, **__: waiting.append(timeout))
    started()
    with pytest.raises(kind, match=says), process_group():
        raise RuntimeError(problem)
    assert waiting == [timedelta(minutes=10)]


def test_no_random_number_is_used_twice_and_rank_0_keeps_its_own(monkeypatch):
    drawn = set()
    for number in range(3):
        monkeypatch.setattr("dotformer.support.processes.rank", lambda number=number: number)
        for step in range(3):
            for seed in range(3):
                fresh_random_numbers(seed, step)
                drawn.add(torch.rand(()).item())
    assert len(drawn) == 27
    monkeypatch.setattr("dotformer.support.processes.rank", lambda: 0)
    before = torch.get_rng_state()
    fresh_random_numbers(0, 0)
    assert torch.equal(torch.get_rng_state(), before)


# starting


def test_each_has_its_rank_and_what_the_function_knows():
    word = "known here"

    @shapes
    def checked(count: int) -> int:
        return count

    def tell():
        barrier()
        return rank(), checked(world_size()), word

    assert launch(tell, 2) == [(0, 2, word), (1, 2, word)]


def test_rank_0_does_it_before_the_others_and_nobody_goes_on_before_all_have_done_it(tmp_path):
    done = tmp_path / "done"

    def work():
        with rank_0_first():
            there = done.read_text() if rank() else ""
            time.sleep(0.5)
            with done.open("a") as file:
                file.write(str(rank()))
        return there[:1], len(done.read_text())

    assert launch(work, 3) == [("", 3), ("0", 3), ("0", 3)]


@pytest.mark.parametrize("failing", [0, 1])
def test_one_that_fails_while_others_wait_for_it_ends_all(failing):
    def work():
        with rank_0_first():
            if rank() == failing:
                raise KeyError("the reason")

    # which of the two is quoted depends on whose error is there first
    with pytest.raises(ChildFailedError, match=r"KeyError: 'the reason'|rank \d has lost another process"):
        launch(work, 2)


@pytest.mark.parametrize("size", [0, -1])
def test_nobody_cannot_do_anything(size):
    with pytest.raises(ValueError, match=f"world_size must be positive, not {size}"):
        launch(list, size)


def fail(attempts, way):
    """Fail in process 1 in the first attempts; the others wait until they are stopped."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt < attempts:
        if os.environ["RANK"] == "0":
            signal.pause()
        if way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyError("the reason")
    return attempt


@pytest.mark.parametrize(("way", "says"), [("raises", "KeyError: 'the reason'"), ("killed", "SIGKILL")])
def test_one_that_fails_is_quoted_and_the_others_are_stopped(way, says):
    with pytest.raises(ChildFailedError, match=says):
        launch(partial(fail, 1, way), 2)


def test_all_are_started_again(capfd):
    assert launch(partial(fail, 1, "killed"), 2, restarts=1) == [1, 1]
    assert capfd.readouterr() == ("", "")
