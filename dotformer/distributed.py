"""Tangled from chapters/16_many_gpus.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

from dotformer.decoder import DecoderLayer
from dotformer.encoder import EncoderLayer
from dotformer.training import Team, TrainingConfig, write_logs


def my_share(
    batch: tuple[Tensor, Tensor], number: int, size: int, pad_id: int = 0
) -> tuple[Tensor, Tensor]:
    """The rows of a batch (B, S), (B, T) that belong to process `number` of `size`.

    Every row belongs to one process. One that has none gets a source to read and a
    target without real tokens, which adds nothing to a loss: it must take part in
    what all do together. Raises ValueError when there is no such process.

    Defined in chapter 16, "Two halves of a batch".
    """
    if not 0 <= number < size:
        raise ValueError(f"there is no process {number} among {size}")
    source, target = (side[number::size] for side in batch)
    if not len(source):
        source, target = (side[:1].clone() for side in batch)
        target[:, 1:] = pad_id
    return source, target


def add_up(_state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Sum gradients over all processes, where PyTorch would average them.

    Defined in chapter 16, "Ready-made engines".
    """
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda summed: summed.value()[0])


def replicate(model: nn.Module) -> nn.Module:
    """A model whose gradients are summed over all processes, each of which has it.

    The backward pass sends those that are ready while it computes the others.

    Defined in chapter 16, "Ready-made engines".
    """
    copies = DistributedDataParallel(model, broadcast_buffers=False)
    copies.register_comm_hook(None, add_up)
    return copies


def shard(model: nn.Module) -> nn.Module:
    """A model, changed in place, of which each process keeps a part.

    A layer is put together when it is needed, and forgotten. Gradients are summed,
    and each process keeps those of its part. After Rajbhandari and others (2020).

    Defined in chapter 16, "Ready-made engines".
    """
    for part in model.modules():
        if isinstance(part, EncoderLayer | DecoderLayer):
            fully_shard(part)
    fully_shard(model)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
    return model


class Processes(Team):
    """Several processes that train one model together, a share of each batch each.

    Made where the processes have found each other; see `joined`.

    Defined in chapter 16, "Ready-made engines".
    """

    def __init__(self) -> None:
        self.number, self.size = dist.get_rank(), dist.get_world_size()
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
        """The model as all processes train it together: whole, or in parts."""
        self.copy = deepcopy(model).cpu() if self.number == 0 else None
        return shard(model) if sharded else replicate(model)

    def seed(self, config: TrainingConfig, step: int) -> None:
        """Begin random numbers that no other process and no other step has."""
        torch.manual_seed((config.seed * 1_000_003 + step) * 4096 + self.number)

    def last(self, folder: Path) -> Path:
        """The last whole checkpoint; `old` if a process was killed between renames."""
        path, old = folder / "checkpoint", folder / "checkpoint.old"
        return old if old.exists() and not path.exists() else path

    def run(self, folder: Path, config: TrainingConfig) -> dict | None:
        """What is known of the run in a folder: place and history; None if nothing.

        Raises ValueError when it is no such run, or had another configuration.
        """
        if (folder / "checkpoint.pt").exists():
            raise ValueError(
                f"{folder} was begun by a process alone: go on without torchrun, or"
                " choose another folder"
            )
        path = self.last(folder) / "run.json"
        if not path.exists():
            return None
        try:
            run = json.loads(path.read_text(encoding="utf-8"))
            wrong = [n for n, v in asdict(config).items() if run["config"][n] != v]
            run["place"], run["history"] = tuple(run["place"]), run["history"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error!r}") from error
        if wrong:
            raise ValueError(f"{path} was made with another {', '.join(wrong)}")
        return run

    def reached(
        self, folder: Path, model: nn.Module, config: TrainingConfig
    ) -> int:
        """How many steps the run in a folder has made."""
        run = self.run(folder, config)
        return int(run["history"][-1]["step"]) if run else 0

    def load(
        self,
        folder: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: TrainingConfig,
    ) -> tuple[tuple[int, int], list[dict[str, float]]]:
        """Put a run back to where it was saved last, by however many processes.

        Raises ValueError when it is no such run, or had another configuration.
        """
        run, path = self.run(folder, config), self.last(folder)
        if run is None:
            return (0, 0), []
        parts, memory = get_state_dict(model, optimizer)
        state = {"model": parts, "optimizer": memory}
        dcp.load(state, checkpoint_id=path)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.seed(config, int(run["history"][-1]["step"]))
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
        """Write what a run leaves: process 0 the logs, each its part of the rest.

        The folder `checkpoint` is the last one, whole, or the one before.
        """
        whole = get_model_state_dict(
            model,
            options=StateDictOptions(full_state_dict=True, cpu_offload=True),
        )
        draft, path = folder / "checkpoint.draft", folder / "checkpoint"
        if self.number == 0:
            self.copy.load_state_dict(whole)
            write_logs(folder, self.copy, history, board)
            shutil.rmtree(draft, ignore_errors=True)
        dist.barrier()
        parts, memory = get_state_dict(model, optimizer)
        dcp.save({"model": parts, "optimizer": memory}, checkpoint_id=draft)
        if self.number == 0:
            run = {"config": asdict(config), "place": place, "history": history}
            (draft / "run.json").write_text(json.dumps(run), encoding="utf-8")
            old = folder / "checkpoint.old"
            if path.exists():
                shutil.rmtree(old, ignore_errors=True)
                path.rename(old)
            draft.rename(path)
            shutil.rmtree(old, ignore_errors=True)
        dist.barrier()
        self.seed(config, int(history[-1]["step"]))


@contextmanager
def joined(device: str = "cpu") -> Iterator[Team]:
    """The team of the processes that torchrun has started, or of this one alone.

    On GPUs each process takes the one that has its number on this machine.

    Defined in chapter 16, "Ready-made engines".
    """
    if "WORLD_SIZE" not in os.environ:
        yield Team()
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    store, number, size = next(dist.rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"attempt {attempt}", store)  # addresses of the dead
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=number, world_size=size)
    try:
        yield Processes()
    finally:
        dist.destroy_process_group()
