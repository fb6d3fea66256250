"""Functions of a notebook that run in several processes at once, started by torchrun's own launcher."""

import logging
import multiprocessing
import sys
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

import cloudpickle
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

# PyTorch is imported once, by a server that each process is a fork of: for each to import it takes seconds.
multiprocessing.set_forkserver_preload(["torch.distributed.elastic.multiprocessing.api", "torch.distributed.fsdp"])


def together(work: Callable[[], Any], size: int, restarts: int = 0) -> list[Any]:
    """Run `work()` in `size` fresh processes at the same time; what each returned, in the order of their numbers.

    They find each other by RANK, WORLD_SIZE and so on in their environment. The function may come from a notebook, and
    takes with it what it uses there. When one process fails the others are stopped, and all are started again, at most
    `restarts` times; then ChildFailedError is raised, which quotes it. Raises ValueError when `size` is below 1.
    """
    if size < 1:
        raise ValueError(f"size must be positive, not {size}")
    with TemporaryDirectory() as folder:
        machine = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=size,
            run_id="together",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            start_method="forkserver",
            max_restarts=restarts,
            monitor_interval=0.05,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        logging.disable(logging.ERROR)  # what has gone wrong for good is in the exception
        try:
            returned = elastic_launch(machine, _run)(cloudpickle.dumps(work), sys.path)
        finally:
            logging.disable(logging.NOTSET)
    return [cloudpickle.loads(returned[number]) for number in range(size)]


def _run(packed: bytes, path: list[str]) -> bytes:
    sys.path[:] = path
    return cloudpickle.dumps(cloudpickle.loads(packed)())
