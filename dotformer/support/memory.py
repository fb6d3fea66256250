"""The memory of a training step: what it keeps, where it comes from, and what to shrink when it does not fit."""

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dotformer.support.checkpoints import keep_random_state

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # as glibc's malloc.h numbers its settings


def keep_freed_memory() -> bool:
    """Let the main thread keep the memory of freed arrays for the next ones: whether glibc has been told to.

    By default glibc, the C library of most Linux systems, gives freed memory back to the system where it can, and takes
    it from there again; the system fills each page with zeros when it is touched first, which is a page fault. Other C
    libraries stay as they are. It lasts as long as the process, which may hold more memory for it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))


def page_faults() -> int:
    """How often this process has had to get a page of memory, so far; 0 where Windows is."""
    if sys.platform == "win32":
        return 0
    import resource  # which Windows does not have

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def peak_memory(device: str) -> int:
    """The most bytes that have been in use: of tensors on a CUDA device, else of this process; 0 where Windows is."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    if sys.platform == "win32":
        return 0
    import resource  # which Windows does not have

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most  # Linux counts in KiB


@contextmanager
def saved_activations(model: nn.Module) -> Iterator[dict[int, int]]:
    """The bytes of each array that is kept for the backward pass, by its address.

    Those of the model's parameters do not count: they are there anyway.
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


def training_memory(
    model: nn.Module, criterion: Callable[[Tensor, Tensor], object], source: Tensor, target: Tensor
) -> tuple[int, int]:
    """Bytes that a step needs: for any batch, and for this one, both in float32.

    The first are parameters, gradients and Adam's two moments. The second, the activations and the gradient of the
    logits, is measured on the first pair of `source` (B, S) and `target` (B, T), with `criterion(logits, targets)` as
    the loss. The model and the pair are moved to the CPU for that.
    """
    model.cpu().zero_grad()
    pair = source[:1].clone().cpu(), target[:1].clone().cpu()
    with keep_random_state(), saved_activations(model) as kept:
        logits = model(pair[0], pair[1][:, :-1])
        criterion(logits, pair[1][:, 1:])
    state = 4 * sum(p.nbytes for p in model.parameters())
    # the loss and its way back need three more arrays as large as the logits
    return state, len(source) * (sum(kept.values()) + 3 * logits.nbytes)


def memory_advice(
    model: nn.Module, criterion: Callable[[Tensor, Tensor], object], source: Tensor, target: Tensor, available: int
) -> str:
    """Which of model, length or batch is too large for `available` bytes.

    For a step that has run out of memory; see `training_memory`.
    """
    state, batch = training_memory(model, criterion, source, target)
    pairs, longest = len(source), max(source.shape[1], target.shape[1])
    text = (
        f"{available / 1e9:.2f} GB of memory: the model and Adam need {state / 1e9:.2f},"
        f" {pairs} pair{'s' * (pairs > 1)} of {longest} tokens about {batch / 1e9:.2f}"
    )
    fit = int(pairs * (0.9 * available - state) / batch)  # a tenth for the rest
    if state > 0.9 * available:
        return text + "; a smaller model is needed (d_model, d_ff, layers)"
    if fit < 1:
        return text + "; shorter sentences are needed, or a smaller model"
    if fit >= pairs:
        return text + "; that fits, so something else fills the memory"
    return text + f"; a batch of {fit} fits (max_tokens = {fit * longest})"
