"""Tangled from chapters/21_many_gpus.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import gc
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

from dotformer.decoder import DecoderLayer
from dotformer.encoder import EncoderLayer
from dotformer.support.files import replacing
from dotformer.training import Team, TrainingConfig, shape_of, write_logs


def my_share(
    batch: tuple[Tensor, Tensor], number: int, size: int, pad_id: int = 0
) -> tuple[Tensor, Tensor]:
    """The rows of a batch (B, S), (B, T) that belong to process `number` of `size`.

    Every row belongs to one process. One that has none gets a source to read and a
    target without real tokens, which adds nothing to a loss: it must take part in
    what all do together. Raises ValueError when there is no such process.

    Defined in chapter 21, "Two halves of a batch".
    """
    if not 0 <= number < size:
        raise ValueError(f"there is no process {number} among {size}")
    source, target = (side[number::size] for side in batch)
    if not len(source):
        source, target = (side[:1].clone() for side in batch)
        target[:, 1:] = pad_id
    return source, target


def replicate(model: nn.Module) -> nn.Module:
    """A model of which each process has a copy; gradients become their mean.

    The backward pass sends those that are ready while it computes the others. All
    begin with the parameters of process 0. After Li and others (2020).

    Defined in chapter 21, "Ready-made engines".
    """
    return DistributedDataParallel(model, forward_sync_buffers=False)


def shard(model: nn.Module, device: torch.device | str = "cpu") -> nn.Module:
    """A model, changed in place, of which each process keeps a part on its device.

    A layer of a transformer is put together before it is used, and forgotten after;
    what belongs to no layer stays whole between the passes. Gradients become their
    mean, and each process keeps its part of that. All begin with the parameters of
    process 0. After Rajbhandari and others (2020).

    Defined in chapter 21, "Ready-made engines".
    """
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    mesh = init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
    for part in model.modules():
        if isinstance(part, EncoderLayer | DecoderLayer):
            fully_shard(part, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def last_checkpoint(folder: Path) -> Path:
    """Where the last whole checkpoint is, if a run has saved one.

    That is `checkpoint`, or `checkpoint.old` if all were killed between two names.

    Defined in chapter 21, "A team that trains".
    """
    path, old = folder / "checkpoint", folder / "checkpoint.old"
    return old if old.exists() and not path.exists() else path


def whole_of(model: nn.Module) -> nn.Module:
    """The model that `replicate` has wrapped, or the one that `shard` has changed.

    Defined in chapter 21, "A team that trains".
    """
    return getattr(model, "module", model)


def digests(path: Path) -> dict[str, str]:
    """SHA-256 of the files of a checkpoint but `run.json`, by name.

    Defined in chapter 21, "A team that trains".
    """
    files = [file for file in path.iterdir() if file.name != "run.json"]
    return {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def read_run(folder: Path, config: TrainingConfig) -> dict[str, Any] | None:
    """What `save_parts` was told of the run in a folder; None where there is none.

    Raises ValueError when it is no such run, or had another configuration.

    Defined in chapter 21, "A team that trains".
    """
    if (folder / "checkpoint.pt").exists():
        raise ValueError(
            f"{folder} was begun by a process alone: go on without torchrun, or"
            " choose another folder"
        )
    path = last_checkpoint(folder) / "run.json"
    if not path.exists():
        return None
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        before, step = run["config"], int(run["history"][-1]["step"])
        found = {
            "place": tuple(run["place"]),
            "history": run["history"],
            "step": step,
            "shape": run["shape"],
            "digests": run["digests"],
        }
        wrong = [n for n, value in asdict(config).items() if before[n] != value]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error
    if wrong:
        raise ValueError(f"{path} was made with another {', '.join(wrong)}")
    return found


def save_parts(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: TrainingConfig,
    place: tuple[int, int],
    history: list[dict[str, float]],
) -> None:
    """Write a checkpoint, each process its part. The one before stays until then.

    Raises OSError when a part cannot be written.

    Defined in chapter 21, "A team that trains".
    """
    draft, path = folder / "checkpoint.draft", folder / "checkpoint"
    first = dist.get_rank() == 0
    if first:
        shutil.rmtree(draft, ignore_errors=True)
    dist.barrier()
    parameters, memory = get_state_dict(whole_of(model), optimizer)
    try:
        dcp.save({"model": parameters, "optimizer": memory}, checkpoint_id=draft)
    except CheckpointException as error:
        raise OSError(f"{draft}: {str(error).strip().splitlines()[-1]}") from error
    if first:
        run = {"config": asdict(config), "place": place, "history": history}
        run |= {"shape": shape_of(whole_of(model)), "digests": digests(draft)}
        with replacing(draft / "run.json") as file:
            file.write_text(json.dumps(run), encoding="utf-8")
        old = folder / "checkpoint.old"
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        draft.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    dist.barrier()


def load_parts(
    folder: Path,
    run: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Put a model and its optimiser back, saved by however many processes.

    PyTorch's reader can run what a file tells it to: load only your own ones.
    Raises ValueError when files are missing, damaged, or of another model.

    Defined in chapter 21, "A team that trains".
    """
    path, inner = last_checkpoint(folder), whole_of(model)
    if run["shape"] != shape_of(inner):
        raise ValueError(f"{path} holds the parameters of another model")
    if dist.get_rank() == 0 and run["digests"] != digests(path):
        raise ValueError(f"{path} is damaged: a file is missing, or has changed")
    parameters, memory = get_state_dict(inner, optimizer)
    state = {"model": parameters, "optimizer": memory}
    try:
        dcp.load(state, checkpoint_id=path)
    except (CheckpointException, OSError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ValueError(f"{path} cannot be read: {reason}") from error
    set_state_dict(
        inner,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )


class Processes(Team):
    """Several processes that train one model together, a share of each batch each.

    Made where the processes have found each other; see `joined`. All must see the
    same folder. Process 0 keeps a whole copy of the model on its CPU, and each
    validates on everything.

    Defined in chapter 21, "A team that trains".
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.number, self.size = dist.get_rank(), dist.get_world_size()
        self.device = torch.device(device)
        self.copy: nn.Module | None = None

    def wait(self) -> None:
        """Wait until all processes are here."""
        dist.barrier()

    def total(self, number: Tensor) -> Tensor:
        """The sum of a number over all processes."""
        summed = number.clone()
        dist.all_reduce(summed)
        return summed

    def share(
        self, batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]]
    ) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
        """This process's share of each batch of an epoch; see `my_share`."""
        return lambda epoch: (
            my_share(batch, self.number, self.size) for batch in batches(epoch)
        )

    def wrap(self, model: nn.Module, sharded: bool = False) -> nn.Module:
        """The model as all train it together: each the whole, or each a part."""
        self.copy = deepcopy(model).cpu() if self.number == 0 else None
        if sharded:
            return shard(model, self.device)
        return replicate(model.to(self.device))

    def reached(
        self, folder: Path, model: nn.Module, config: TrainingConfig
    ) -> int:
        """How many steps the run in a folder has made."""
        run = read_run(folder, config)
        return run["step"] if run else 0

    def load(
        self,
        folder: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: TrainingConfig,
    ) -> tuple[tuple[int, int], list[dict[str, float]]]:
        """Put a run back to where it was saved last; see `read_run`, `load_parts`.

        Raises ValueError, too, when not all processes find the same checkpoint.
        """
        run = read_run(folder, config)
        step = run["step"] if run else 0
        if self.total(torch.tensor(step, device=self.device)) != self.size * step:
            raise ValueError(f"not all processes find the same run in {folder}")
        if run is None:
            return (0, 0), []
        load_parts(folder, run, model, optimizer)
        self.seed(config, step)
        return run["place"], run["history"]

    def save(
        self,
        folder: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: TrainingConfig,
        place: tuple[int, int],
        history: list[dict[str, float]],
        board: SummaryWriter | None,
    ) -> None:
        """Write what a run leaves: process 0 the logs, each its part."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        whole = get_model_state_dict(whole_of(model), options=options)
        if self.copy:
            self.copy.load_state_dict(whole)
            write_logs(folder, self.copy, history, board)
        save_parts(folder, model, optimizer, config, place, history)
        self.seed(config, int(history[-1]["step"]))

    def seed(self, config: TrainingConfig, step: int) -> None:
        """Begin random numbers that no other process and no other step has."""
        mixed = np.random.SeedSequence([config.seed, step, self.number])
        torch.manual_seed(int(mixed.generate_state(1, np.uint64)[0]))


@contextmanager
def joined(device: str = "cpu") -> Iterator[Team]:
    """The team of the processes that torchrun has started, or of this one alone.

    On GPUs each process takes the one that has its number on this machine. What the
    team has wrapped must be gone when the block ends, or ending the group can hang:
    let a function of its own train. Raises ValueError when there is no GPU for a
    process, when processes cannot talk on the device, and when restarts on several
    machines would wait for the dead.

    Defined in chapter 21, "A team that trains".
    """
    if not dist.is_torchelastic_launched():
        yield Team()
        return
    local, here, restarts, attempt = (
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
    if device == "cuda" and local >= torch.cuda.device_count():
        raise ValueError(
            f"{here} processes find {torch.cuda.device_count()} GPUs: start fewer,"
            " or use --device cpu"
        )
    store, number, size = next(dist.rendezvous("env://"))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # it outlives a restart, and holds the addresses of those that have died
        if here < size and restarts:
            raise ValueError(
                "to restart several machines, torchrun needs"
                " TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment"
            )
        store = dist.PrefixStore(f"attempt {attempt}", store)
    if device == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        store=store,
        rank=number,
        world_size=size,
        timeout=timedelta(hours=3),  # process 0 may have to fetch and prepare data
    )
    yield Processes(device)
    gc.collect()  # what has wrapped a model refers to itself, and stays till then
    dist.destroy_process_group()  # not after an error: others may never answer
