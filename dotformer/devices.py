"""Tangled from chapters/20_one_gpu.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset

from dotformer.support.checkpoints import keep_random_state
from dotformer.training import cross_entropy
from dotformer.transformer import TransformerConfig


def step_operations(
    config: TransformerConfig, batch: int, source: int, target: int
) -> dict[str, int]:
    """Operations in the matrix products of a training step, forward and back.

    By part, for `batch` pairs of `source` and `target` tokens. A multiplication
    and an addition are two operations.

    Defined in chapter 20, "How much work is a step?".
    """
    d, encoder, decoder = (
        config.d_model,
        config.num_encoder_layers,
        config.num_decoder_layers,
    )
    s, t = batch * source, batch * target  # all tokens
    looks = encoder * s * source + decoder * t * (target + source)
    forward = {
        # the decoder has six on its own tokens, and two on what the encoder found
        "projections": (encoder * 4 * s + decoder * (6 * t + 2 * s)) * d**2,
        "scores and blends": 2 * looks * d,
        "feed-forward": 2 * (encoder * s + decoder * t) * d * config.d_ff,
        "output": t * d * config.target_vocab_size,
    }
    return {part: 3 * 2 * count for part, count in forward.items()}


def synchronize(device: torch.device | str) -> None:
    """Wait until a device has done all that it was asked to do.

    Defined in chapter 20, "How fast could it be?".
    """
    device = torch.device(device)
    which = [] if device.type == "mps" else [device]  # a Mac has one
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(*which)


def time_of(
    work: Callable[[], object], device: torch.device | str, repeats: int = 10
) -> list[float]:
    """Seconds that each repetition of some work takes, after one to warm up.

    Defined in chapter 20, "How fast could it be?".
    """
    times = []
    for _ in range(repeats + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return times[1:]


def copy_rate(device: torch.device | str, size: int = 1 << 25) -> float:
    """Bytes a second that a device reads and writes, copying `size` numbers.

    Defined in chapter 20, "How fast could it be?".
    """
    numbers = torch.randn(size, device=device)
    other = torch.empty_like(numbers)
    times = time_of(lambda: other.copy_(numbers), device)
    return 2 * numbers.nbytes / median(times)


def product_rate(
    device: torch.device | str, size: int = 1024, dtype: torch.dtype = torch.float32
) -> float:
    """Operations a second in the product of two square tables of `size` rows.

    Defined in chapter 20, "How fast could it be?".
    """
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / median(time_of(lambda: a @ b, device))


@contextmanager
def quietly() -> Iterator[None]:
    """Throw away what is written to standard error, by any part of the process.

    Defined in chapter 20, "Where does it go?".
    """
    before, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nothing)


def costliest(
    work: Callable[[], object], device: torch.device | str, shown: int = 8
) -> list[tuple[str, float]]:
    """The operations on which some work spends most time, and their seconds.

    On a CUDA device its own operations, elsewhere PyTorch's. The work is done
    three times before, to warm up.

    Defined in chapter 20, "Where does it go?".
    """
    for _ in range(3):
        work()
    synchronize(device)
    cuda = torch.device(device).type == "cuda"
    watched = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * cuda
    # its start and its end are reported there, whatever one asks for
    with quietly(), profile(activities=watched) as record:
        work()
        synchronize(device)
    own = "self_device_time_total" if cuda else "self_cpu_time_total"
    kinds = [
        kind
        for kind in record.key_averages()
        if not cuda
        or (kind.device_type.name == "CUDA" and not kind.is_user_annotation)
    ]
    kinds.sort(key=lambda kind: -getattr(kind, own))
    return [(kind.key, getattr(kind, own) / 1e6) for kind in kinds[:shown]]


@contextmanager
def product_precision(name: str) -> Iterator[None]:
    """Let float32 products be rounded to tf32 ("high") or not ("highest").

    As `torch.set_float32_matmul_precision`, while the block lasts.

    Defined in chapter 20, "A ladder".
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Checkpointed(nn.Module):
    """A layer that keeps only what goes in, and computes the rest a second time.

    After Chen and others (2016).

    Defined in chapter 20, "A ladder".
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: object) -> Tensor:
        """As the layer."""
        return checkpoint(self.layer, *inputs, use_reentrant=False)


class PaddedOutput(nn.Module):
    """A linear map whose rows are padded with zeros to a multiple, for speed.

    The scores of those rows are cut off again: it is the same function. Raises
    ValueError for a map with a bias.

    Defined in chapter 20, "A ladder".
    """

    def __init__(self, output: nn.Linear, multiple: int) -> None:
        super().__init__()
        if output.bias is not None:
            raise ValueError("output must have no bias")
        self.output, self.rows = output, -output.out_features % multiple

    def forward(self, x: Tensor) -> Tensor:
        """Scores (..., V) of x (..., D)."""
        weight = F.pad(self.output.weight, (0, 0, 0, self.rows))
        return F.linear(x, weight)[..., : self.output.out_features]


class Epoch(IterableDataset):
    """The batches of an epoch, for PyTorch's loader.

    Defined in chapter 20, "A ladder".
    """

    def __init__(self, batches: Callable[[int], Iterable], epoch: int) -> None:
        self.batches, self.epoch = batches, epoch

    def __iter__(self) -> Iterator:
        return iter(self.batches(self.epoch))


def made_ahead(
    batches: Callable[[int], Iterable], pin: bool = False
) -> Callable[[int], Iterable]:
    """The same batches, made by another process while the device computes.

    `batches(epoch)` is as `train` wants it. With `pin` they arrive in memory from
    which a GPU can copy by itself.

    Defined in chapter 20, "A ladder".
    """

    def ahead(epoch: int) -> DataLoader:
        return DataLoader(
            Epoch(batches, epoch),
            batch_size=None,
            num_workers=1,
            prefetch_factor=8,
            pin_memory=pin,
            # where there is one, a process that knows what a notebook has defined
            multiprocessing_context="fork" if hasattr(os, "fork") else None,
            generator=torch.Generator(),  # not PyTorch's global random numbers
        )

    return ahead


@contextmanager
def kept_for_backward(model: nn.Module) -> Iterator[dict[int, int]]:
    """The bytes of each array that is kept for the backward pass, by its address.

    Those of the model's parameters do not count: they are there anyway.

    Defined in chapter 20, "A ladder".
    """
    there = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in there:
            kept[memory.data_ptr()] = memory.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield kept


def memory_of_step(
    model: nn.Module, source: Tensor, target: Tensor
) -> tuple[int, int]:
    """Bytes that a step needs: for any batch, and for this one, both in float32.

    The first are parameters, gradients and Adam's two means. The second, what is
    kept for the backward pass and the gradient of the logits, is measured on the
    first pair of `source` (B, S) and `target` (B, T). The model and the pair are
    moved to the CPU for that.

    Defined in chapter 20, "What if it does not fit?".
    """
    model.cpu().zero_grad()
    pair = source[:1].clone().cpu(), target[:1].clone().cpu()
    with keep_random_state(), kept_for_backward(model) as kept:
        logits = model(pair[0], pair[1][:, :-1])
        cross_entropy(logits, pair[1][:, 1:])
    state = 4 * sum(p.nbytes for p in model.parameters())
    # the loss and its way back need three more tables as large as the logits
    return state, len(source) * (sum(kept.values()) + 3 * logits.nbytes)


def what_to_shrink(
    model: nn.Module, source: Tensor, target: Tensor, available: int
) -> str:
    """Which of model, length or batch is too large for `available` bytes.

    For a step that has run out of memory; see `memory_of_step`.

    Defined in chapter 20, "What if it does not fit?".
    """
    state, batch = memory_of_step(model, source, target)
    pairs, longest = len(source), max(source.shape[1], target.shape[1])
    text = (
        f"{available / 1e9:.2f} GB of memory: the model and Adam need"
        f" {state / 1e9:.2f}, {pairs} pairs of {longest} tokens about"
        f" {batch / 1e9:.2f}"
    )
    fit = int(pairs * (0.9 * available - state) / batch)  # a tenth for the rest
    if state > 0.9 * available:
        return text + "; a smaller model is needed (d_model, d_ff, layers)"
    if fit < 1:
        return text + "; shorter sentences are needed, or a smaller model"
    if fit >= pairs:
        return text + "; that fits, so something else fills the memory"
    return text + f"; a batch of {fit} fits (max_tokens = {fit * longest})"
