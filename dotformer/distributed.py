"""Tangled from chapters/21_many_gpus.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist
from jaxtyping import Int
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils import swap_tensors

from dotformer.devices import FastTrainer, layers_of
from dotformer.support.progress import Batch, Row
from dotformer.support.shapes import shapes
from dotformer.training import TrainingConfig, evaluate


@shapes
def shard_batch(
    batch: tuple[Int[Tensor, "B S"], Int[Tensor, "B T"]],
    rank: int,
    world_size: int,
    pad_id: int = 0,
) -> tuple[Int[Tensor, "rows S"], Int[Tensor, "rows T"]]:
    """The rows of a batch that belong to the process `rank` of `world_size`.

    Every row belongs to one process. One without rows gets a target without real
    tokens, since it must take part: the others wait for its gradients. Raises
    ValueError when there is no such process.

    Defined in chapter 21, "Two halves of a batch".
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"there is no rank {rank} among {world_size} processes")
    source, target = (side.tensor_split(world_size)[rank] for side in batch)
    if not len(source):
        source, target = (side[:1].clone() for side in batch)
        target[:, 1:] = pad_id
    return source, target


def replicate(model: nn.Module) -> nn.Module:
    """A model of which each process has a copy; gradients become their mean.

    The backward pass sends those that are ready while it computes the others. All
    begin with the parameters of rank 0. After Li and others (2020).

    Defined in chapter 21, "The trainer".
    """
    return DistributedDataParallel(
        model, forward_sync_buffers=False, gradient_as_bucket_view=True
    )


def shard(
    model: nn.Module,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """A model, changed in place, of which each process keeps a shard on its device.

    A layer of a transformer is gathered before it is used, and freed after; what
    belongs to no layer stays whole between the passes. Gradients become their mean,
    and each process keeps its shard of that. With a `dtype` layers are gathered and
    compute in that, and gradients are added up in float32.

    All begin with the parameters of rank 0; on other ranks the model may be on the
    meta device. No device holds the whole. After Rajbhandari and others (2020).

    Defined in chapter 21, "The trainer".
    """
    whole = []
    for tensor in (*model.parameters(), *model.buffers()):
        whole.append(tensor.detach())
        empty = torch.empty_like(tensor, device="meta")
        swap_tensors(tensor, in_kind(tensor, empty))
    mesh = init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(dtype, dtype and torch.float32)
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    policy = replace(policy, output_dtype=dtype and torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for tensor in (*model.parameters(), *model.buffers()):
        start = whole.pop(0)
        if start.is_meta:
            start = torch.empty_like(start, device=device)
        start = start.to(device)
        if isinstance(tensor, DTensor):  # rank 0 sends each its shard
            start = distribute_tensor(start, mesh, tensor.placements)
        else:
            dist.broadcast(start, 0)
            start = start.clone()  # the engine may still hold what it has sent
        swap_tensors(tensor, in_kind(tensor, start))
    return model


def in_kind(tensor: Tensor, other: Tensor) -> Tensor:
    """The other tensor, as a parameter if the first is one.

    Defined in chapter 21, "The trainer".
    """
    return nn.Parameter(other) if isinstance(tensor, nn.Parameter) else other


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Let a model's gradients add up in each process, and send none.

    The next backward pass outside sends their sums. Till then a shard's gradients
    are whole, and its layers stay gathered from one batch to the next.

    Defined in chapter 21, "The trainer".
    """
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
        return
    engine = model.set_requires_gradient_sync, model.set_reshard_after_backward
    for switch in engine:
        switch(False)
    try:
        yield
    finally:
        for switch in engine:
            switch(True)


def all_reduce(number: Tensor) -> Tensor:
    """The sum of a number over all processes, in float64.

    Defined in chapter 21, "The trainer".
    """
    summed = number.double()
    dist.all_reduce(summed)
    return summed


def evaluate_together(
    model: nn.Module, batches: Iterable[Batch], pad_id: int = 0
) -> Row:
    """`evaluate`, each process on its rows of each batch; all get the whole result.

    Defined in chapter 21, "The trainer".
    """
    who = dist.get_rank(), dist.get_world_size(), pad_id
    mine = (shard_batch(batch, *who) for batch in batches)
    return evaluate(model, mine, pad_id, all_reduce)


class DistributedTrainer(FastTrainer):
    """Several processes train one model, each on its rows of each batch.

    The processes are a group; each has a copy of the model, or a shard of it. Rank
    0 writes into the folder, which all must see. Any number of processes goes on
    with what any other has begun.

    Defined in chapter 21, "The trainer".
    """

    def __init__(
        self,
        model: nn.Module,
        config: TrainingConfig,
        device: str = "cpu",
        sharded: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        model = (
            shard(model, device, dtype) if sharded else replicate(model.to(device))
        )
        super().__init__(model, config, device)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def train_step(
        self, batches: list[Batch], learning_rate: float
    ) -> tuple[Tensor, int]:
        """One step on this process's rows of several batches."""
        self.targets = super().count_targets(batches)
        who = self.rank, self.world_size, self.config.pad_id
        mine = [shard_batch(batch, *who) for batch in batches]
        return super().train_step(mine, learning_rate)

    def count_targets(self, batches: list[Batch]) -> int:
        """How many real targets there are in the batches of all processes."""
        return self.targets  # each has seen all batches

    def accumulate_gradients(self, batches: list[Batch], tokens: float) -> Tensor:
        """Leave the sum of all processes' gradients; the summed loss of all.

        With the last batch they are sent, once a step.
        """
        share = tokens / self.world_size  # since the engines take the mean
        *first, last = batches
        with no_sync(self.model):
            summed = super().accumulate_gradients(first, share)
        summed = summed + super().accumulate_gradients([last], share)
        return all_reduce(summed)
