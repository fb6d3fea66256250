"""Tangled from chapters/20_one_gpu.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, repeat
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor, nn

from dotformer.attention import MultiHeadAttention
from dotformer.devices import (
    Checkpointed,
    PaddedOutput,
    kept_for_backward,
    made_ahead,
    product_precision,
    step_operations,
    synchronize,
)
from dotformer.support.checkpoints import keep_random_state
from dotformer.training import Trainer, TrainingConfig, cross_entropy, pair_batches
from dotformer.transformer import Transformer, TransformerConfig


@dataclass(frozen=True)
class Setup:
    """How a training step is computed. What it computes is the same for all.

    `batch` says how many times the workload's pairs a step takes, `feed` where
    they come from: "held" on the device, "made" between steps, or made "ahead".
    Raises ValueError for another precision or feed.

    Defined in chapter 20, "A ladder".
    """

    precision: str = "float32"  # or "tf32", "bfloat16", "float16"
    fused_attention: bool = False
    compiled: bool = False
    fused_optimizer: bool = False
    vocabulary_multiple: int = 1
    batch: int = 1
    feed: str = "held"
    checkpointing: bool = False

    def __post_init__(self) -> None:
        choices = {
            "precision": ("float32", "tf32", "bfloat16", "float16"),
            "feed": ("held", "made", "ahead"),
        }
        for name, there in choices.items():
            if getattr(self, name) not in there:
                raise ValueError(
                    f"{name} must be one of {', '.join(there)}, not"
                    f" {getattr(self, name)!r}"
                )


def rungs() -> dict[str, dict[str, Any]]:
    """The rungs of the ladder: what each changes in the one before.

    Defined in chapter 20, "A ladder".
    """
    return {
        "float32": {},
        "tf32": {"precision": "tf32"},
        "bf16": {"precision": "bfloat16"},
        "fused attention": {"fused_attention": True},
        "compile": {"compiled": True},
        "fused AdamW": {"fused_optimizer": True},
        "padded vocabulary": {"vocabulary_multiple": 64},
        "larger batch": {"batch": 4},
        "batches made between steps": {"feed": "made"},
        "batches made ahead": {"feed": "ahead"},
        "checkpointing": {"feed": "held", "checkpointing": True},
    }


def setups(changes: dict[str, dict[str, Any]]) -> dict[str, Setup]:
    """The setup of each of some `rungs`, with all the changes up to it.

    Defined in chapter 20, "A ladder".
    """
    now, found = Setup(), {}
    for name, change in changes.items():
        now = replace(now, **change)
        found[name] = now
    return found


@dataclass(frozen=True)
class Workload:
    """What is computed: a model, and `pairs` pairs of random tokens for it.

    Sentences have `length` tokens on each side, and the target one more. Raises
    ValueError when there are none, and when the model has dropout: no two steps
    would compute the same.

    Defined in chapter 20, "A ladder".
    """

    model: TransformerConfig
    pairs: int
    length: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model.dropout:
            raise ValueError(f"dropout must be 0, not {self.model.dropout}")
        if min(self.pairs, self.length) < 1:
            raise ValueError(
                "pairs and length must be positive, not"
                f" {self.pairs} and {self.length}"
            )

    def tokens(self, times: int = 1) -> list[tuple[list[int], list[int]]]:
        """Token numbers of all pairs, `times` over."""
        draw = torch.Generator().manual_seed(self.seed)
        shape = self.pairs, 2 * self.length + 1
        top = min(self.model.source_vocab_size, self.model.target_vocab_size)
        rows = torch.randint(3, top, shape, generator=draw).tolist()
        return [(row[: self.length], row[self.length :]) for row in rows] * times

    def fresh(self, device: torch.device | str) -> Transformer:
        """The model, with parameters that the seed fixes."""
        with keep_random_state():
            torch.manual_seed(self.seed)
            return Transformer(self.model).to(device)


def written_out(_module: nn.Module, given: tuple, named: dict) -> tuple:
    """Ask an attention for its weights, so that it writes them out (chapter 7).

    Defined in chapter 20, "A ladder".
    """
    return given[:4], named | {"need_weights": True}


def set_up(model: Transformer, setup: Setup) -> Transformer:
    """Change a model, in place, into one that computes in the way of a setup.

    Defined in chapter 20, "A ladder".
    """
    for module in model.modules():
        if isinstance(module, MultiHeadAttention) and not setup.fused_attention:
            module.register_forward_pre_hook(written_out, with_kwargs=True)
    for part in (model.encoder, model.decoder):
        for layer in part.layers if setup.compiled else ():
            layer.compile()  # layers of one kind are compiled once
        if setup.checkpointing:
            part.layers = nn.ModuleList(map(Checkpointed, part.layers))
    if setup.vocabulary_multiple > 1:
        model.output = PaddedOutput(model.output, setup.vocabulary_multiple)
    return model


def in_a_row(batches: Callable[[int], Iterable], _epoch: int) -> Iterator:
    """The batches of all epochs, one after another.

    Defined in chapter 20, "A ladder".
    """
    return chain.from_iterable(map(batches, count()))


def feed(
    workload: Workload, setup: Setup, device: torch.device | str
) -> Iterator[tuple[Tensor, ...]]:
    """Batches of a workload on the device, without end, in the way of a setup.

    Defined in chapter 20, "A ladder".
    """
    pairs = workload.tokens(setup.batch)
    one = partial(
        pair_batches, pairs, max_tokens=len(pairs) * (workload.length + 1)
    )
    if setup.feed == "held":
        [batch] = one(0)
        yield from repeat(tuple(side.to(device) for side in batch))
    batches = partial(in_a_row, one)
    if setup.feed == "ahead":
        batches = made_ahead(batches, pin=torch.device(device).type == "cuda")
    for batch in batches(0):
        yield tuple(side.to(device, non_blocking=True) for side in batch)


def trainer(
    workload: Workload, setup: Setup, device: torch.device | str
) -> tuple[Callable[[tuple[Tensor, ...]], tuple[float, int]], Transformer]:
    """What makes a step on a batch in the way of a setup, and the model.

    A step returns the summed loss and the number of targets. The learning rate is
    0: all steps find the same model.

    Defined in chapter 20, "A ladder".
    """
    model = set_up(workload.fresh(device), setup)
    trainer = Trainer(model, TrainingConfig(max_grad_norm=1e9), device)
    trainer.optimizer = torch.optim.AdamW(
        model.parameters(), weight_decay=0.0, fused=setup.fused_optimizer or None
    )
    if setup.precision.endswith("float16"):
        kind, dtype = torch.device(device).type, getattr(torch, setup.precision)
        trainer.precision = partial(torch.autocast, kind, dtype)
    if setup.compiled:
        trainer.criterion = torch.compile(cross_entropy)
    rounding = "highest" if setup.precision == "float32" else "high"

    def step(batch: tuple[Tensor, ...]) -> tuple[float, int]:
        # the loss's compiled program may hand a number back, too
        whole = torch._dynamo.config.patch(capture_scalar_outputs=True)
        with product_precision(rounding), whole:
            return trainer.train_step([batch], 0.0)

    return step, model


def measure(
    workload: Workload,
    setup: Setup,
    device: torch.device | str = "cpu",
    steps: int = 10,
) -> dict[str, Any]:
    """Make some steps in the way of a setup, and say what they cost.

    Returns "loss", the mean of a target's, and "gradient" (N,), on the CPU;
    "first_step" and "seconds", the quartiles of `steps` others;
    "tokens_per_second", both sides counted, and "operations_per_second", at the
    median; and "memory" in bytes: the most that was allocated on a CUDA device,
    elsewhere parameters, gradients, the optimiser's two means, and what was kept
    for the backward pass. Raises ValueError for fewer than 2 steps.

    Defined in chapter 20, "A ladder".
    """
    if steps < 2:
        raise ValueError(f"steps must be at least 2, not {steps}")
    cuda = torch.device(device).type == "cuda"
    step, model = trainer(workload, setup, device)
    batches, times, kept = feed(workload, setup, device), [], {}
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    for n in range(steps + 2):  # the first compiles, the second is watched
        watch = kept_for_backward(model) if n == 1 and not cuda else nullcontext()
        synchronize(device)
        start = time.perf_counter()
        with watch as seen:
            loss, targets = step(next(batches))
        synchronize(device)
        times.append(time.perf_counter() - start)
        kept = kept if seen is None else seen
    gradient = [p.grad.float().flatten().cpu() for p in model.parameters()]
    quartiles = quantiles(times[2:], n=4)
    sizes = workload.pairs * setup.batch, workload.length, workload.length
    work = sum(step_operations(workload.model, *sizes).values())
    state = 4 * sum(p.nbytes for p in model.parameters())
    counted = state + sum(kept.values())
    peak = torch.cuda.max_memory_allocated(device) if cuda else counted
    return {
        "loss": loss / targets,
        "gradient": torch.cat(gradient),
        "first_step": times[0],
        "seconds": quartiles,
        "tokens_per_second": 2 * targets / quartiles[1],
        "operations_per_second": work / quartiles[1],
        "memory": peak,
    }


def climb(
    workload: Workload,
    changes: dict[str, dict[str, Any]],
    device: torch.device | str = "cpu",
    steps: int = 10,
) -> Iterator[dict[str, Any]]:
    """Measure each of some `rungs`, and how far its numbers are from the first.

    Yields, for each, its "name" and what `measure` returns, with "loss_error" and
    "gradient_error", relative, in place of the gradient. A rung that cannot run
    here, for want of memory or of a compiler, has an "error" instead.

    Defined in chapter 20, "A ladder".
    """
    first = None
    for name, setup in setups(changes).items():
        try:
            found = measure(workload, setup, device, steps)
        except RuntimeError as error:
            yield {"name": name, "error": str(error).strip().partition("\n")[0]}
            continue
        gradient = found.pop("gradient")
        first = first or (found["loss"], gradient)
        found["loss_error"] = abs(found["loss"] / first[0] - 1)
        distance = torch.linalg.vector_norm(gradient - first[1])
        found["gradient_error"] = float(
            distance / torch.linalg.vector_norm(first[1])
        )
        yield {"name": name, **found}
