"""Several processes that compute together: how they find each other, and how a notebook starts them."""

import gc
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

PATIENCE = timedelta(minutes=10)  # with processes that do not answer


def rank() -> int:
    """The number of this process in its group, from 0; 0 without a group."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many processes there are in the group; 1 without one."""
    return dist.get_world_size() if dist.is_initialized() else 1


def barrier() -> None:
    """Wait until all processes are here."""
    if dist.is_initialized():
        dist.all_reduce(torch.zeros(()))  # on the CPU, whatever they compute on


@contextmanager
def rank_0_first() -> Iterator[None]:
    """Run the block on rank 0, then on all others; it may take any time, and must not communicate.

    Meanwhile a thread of each process tells the others five times a second whether its block is done. So one that
    takes hours is waited for, and one that is silent is given up like everywhere in the group.
    """
    if not dist.is_initialized():
        yield
        return
    ended, done = Event(), torch.zeros(world_size(), dtype=torch.int64)

    def tell_until(enough: Callable[[torch.Tensor], torch.Tensor]) -> None:
        while not ended.wait(0.2) or done[rank()]:  # until the block has failed
            everywhere = done.clone()
            dist.all_reduce(everywhere)
            if enough(everywhere):
                return

    if rank() > 0:
        tell_until(lambda everywhere: everywhere[0])
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(tell_until, torch.all)
        try:
            yield
            done[rank()] = 1
        finally:
            ended.set()
        told.result()


def same_everywhere(number: int) -> bool:
    """Whether all processes of the group have the same number."""
    if not dist.is_initialized():
        return True
    numbers = [None] * dist.get_world_size()
    dist.all_gather_object(numbers, number)
    return set(numbers) == {number}


def fresh_random_numbers(seed: int, step: int) -> None:
    """On ranks above 0, begin PyTorch's random numbers anew, with some that no other rank and no other step has."""
    if rank() > 0:
        mixed = np.random.SeedSequence([seed, step, rank()])
        torch.manual_seed(int(mixed.generate_state(1, np.uint64)[0]))


@contextmanager
def process_group(device: str = "cpu") -> Iterator[None]:
    """Join the processes that torchrun has started into a group; do nothing in one that it has not started.

    When one has not answered for `PATIENCE`, TimeoutError is raised, and ConnectionError when one is gone. (On GPUs,
    NCCL ends the process instead.)

    On GPUs each process takes the one of its local rank. A model that DDP or FSDP have wrapped must be gone when the
    block ends, or ending the group can hang (pytorch issue 56297): let a function of its own train. Raises ValueError
    when there is no GPU for a process, when processes cannot communicate on the device, and when restarts on several
    machines would wait for the dead.
    """
    if not dist.is_torchelastic_launched():
        yield
        return
    local_rank, local_size, restarts, attempt = (
        int(os.environ[name])
        for name in (
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "TORCHELASTIC_MAX_RESTARTS",
            "TORCHELASTIC_RESTART_COUNT",  # each machine has its own
        )
    )
    if device not in ("cpu", "cuda"):
        raise ValueError(f"several processes cannot use {device}: use --device cpu")
    if device == "cuda" and local_rank >= torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise ValueError(f"{local_size} processes find {there} GPUs: start fewer, or use --device cpu")
    store, number, size = next(dist.rendezvous("env://"))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # it outlives a restart, and holds the addresses of those that have died
        if local_size < size and restarts:
            raise ValueError(
                "to restart several machines, torchrun needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment"
            )
        store = dist.PrefixStore(f"attempt {attempt}", store)
    if device == "cuda":
        torch.cuda.set_device(local_rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        store=store,
        rank=number,
        world_size=size,
        timeout=PATIENCE,
    )
    try:
        yield
        barrier()  # who leaves first would cut off what another still reads
    except RuntimeError as error:
        if "Timed out" in str(error):
            raise TimeoutError(f"rank {number} has waited {PATIENCE} for the other processes") from error
        if "Connection" in str(error):
            raise ConnectionError(f"rank {number} has lost another process") from error
        raise
    gc.collect()  # what has wrapped a model refers to itself, and stays till then
    dist.destroy_process_group()  # not after an error: others may never answer


def launch(work: Callable[[], Any], world_size: int, restarts: int = 0) -> list[Any]:
    """Run `work()` in fresh processes that are a group, by torchrun's own launcher; what each returned, by rank.

    The function may come from a notebook, and takes with it what it uses there. When one process fails the others are
    stopped, and all are started again, at most `restarts` times; then ChildFailedError is raised, which quotes it.
    Raises ValueError when `world_size` is below 1.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be positive, not {world_size}")
    # PyTorch is imported once, by a server that each process is a fork of: for each to import it takes seconds.
    multiprocessing.set_forkserver_preload(["torch.distributed.elastic.multiprocessing.api", "torch.distributed.fsdp"])
    with TemporaryDirectory() as folder:
        machine = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=world_size,
            run_id="launch",
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
    return [cloudpickle.loads(returned[number]) for number in range(world_size)]


def _run(packed: bytes, path: list[str]) -> bytes:
    sys.path[:] = path
    with process_group():
        return cloudpickle.dumps(cloudpickle.loads(packed)())
