"""Functions of a notebook that run in several processes at once, as torchrun would start them."""

import os
import socket
import sys
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import Any

import cloudpickle


def together(work: Callable[[], Any], size: int) -> list[Any]:
    """Run `work()` in `size` fresh processes at the same time; what each returned, in the order of their numbers.

    They find each other as those of torchrun do, by RANK, WORLD_SIZE and so on in their environment. The function may
    come from a notebook, and takes with it what it uses there. Raises ValueError when `size` is below 1, and what the
    first process that fails raises; then the others are stopped.
    """
    if size < 1:
        raise ValueError(f"size must be positive, not {size}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    packed = cloudpickle.dumps(work)
    with ProcessPoolExecutor(size, get_context("spawn")) as pool:
        numbers = ({"RANK": str(number), "LOCAL_RANK": str(number)} for number in range(size))
        futures = [pool.submit(_run, packed, shared | own, sys.path) for own in numbers]
        ended, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failed = [future.exception() for future in futures if future in ended and future.exception()]
        if failed:  # the others may wait for it for ever
            for process in list(pool._processes.values()):
                process.terminate()
            raise failed[0]
        return [cloudpickle.loads(future.result()) for future in futures]


def _run(packed: bytes, environment: dict[str, str], path: list[str]) -> bytes:
    sys.path[:] = path
    os.environ.update(environment)
    return cloudpickle.dumps(cloudpickle.loads(packed)())
