"""Functions that run in several processes: what they return, and what becomes of those that fail."""

import os
import signal
from functools import partial

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from classroom.processes import together


def test_each_has_its_number_and_what_the_function_knows():
    word = "known here"

    def tell():
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), word

    assert together(tell, 2) == [(0, 2, word), (1, 2, word)]


@pytest.mark.parametrize("size", [0, -1])
def test_nobody_cannot_do_anything(size):
    with pytest.raises(ValueError, match=f"size must be positive, not {size}"):
        together(list, size)


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
        together(partial(fail, 1, way), 2)


def test_all_are_started_again(capfd):
    assert together(partial(fail, 1, "killed"), 2, restarts=1) == [1, 1]
    assert capfd.readouterr() == ("", "")
