"""Tangled from chapters/20_one_gpu.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from dotformer.attention import MultiHeadAttention
from dotformer.support.benchmark import Workload, benchmark, feed, measure_steps
from dotformer.support.checkpoints import keep_random_state
from dotformer.support.memory import peak_memory
from dotformer.support.modes import matmul_precision
from dotformer.support.processes import world_size
from dotformer.support.progress import Batch, Row, Stream
from dotformer.support.settings import check_settings
from dotformer.training import Trainer, TrainingConfig, cross_entropy, pair_batches
from dotformer.transformer import Transformer, TransformerConfig


def training_flops(
    config: TransformerConfig, batch: int, source: int, target: int
) -> dict[str, int]:
    """FLOPs of the matrix products in a training step, forward and back, by part.

    For `batch` pairs of `source` and `target` tokens; a multiply-add is two FLOPs.

    Defined in chapter 20, "How much work is a step?".
    """
    encoder, decoder = config.num_encoder_layers, config.num_decoder_layers
    d, s, t = config.d_model, batch * source, batch * target  # s, t: all tokens
    scores = encoder * s * source + decoder * t * (target + source)
    # a decoder layer projects its own tokens six times, the encoder's twice
    multiplications = {
        "projections": (encoder * 4 * s + decoder * (6 * t + 2 * s)) * d**2,
        "scores and sums": 2 * scores * d,
        "feed-forward": 2 * (encoder * s + decoder * t) * d * config.d_ff,
        "output": t * d * config.target_vocab_size,
    }
    return {part: 3 * 2 * count for part, count in multiplications.items()}


def memory_bandwidth(device: torch.device | str, size: int = 1 << 25) -> float:
    """Bytes per second that a device reads and writes, copying `size` numbers.

    Defined in chapter 20, "How fast could it be?".
    """
    a = torch.randn(size, device=device)
    b = torch.empty_like(a)
    return 2 * a.nbytes / median(benchmark(lambda: b.copy_(a), device))


def matmul_throughput(
    device: torch.device | str, size: int = 1024, dtype: torch.dtype = torch.float32
) -> float:
    """FLOP/s in the product of two square matrices of `size` rows.

    Defined in chapter 20, "How fast could it be?".
    """
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / median(benchmark(lambda: a @ b, device))


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of all stacks of a model.

    Defined in chapter 20, "A ladder".
    """
    return [one for part in model.modules() for one in getattr(part, "layers", ())]


def prepare_layers(
    model: nn.Module, compiled: bool = False, checkpointing: bool = False
) -> None:
    """Let a model's layers be compiled, one by one, or keep only their input.

    With `checkpointing` they compute the rest a second time, after Chen and others
    (2016). Names of parameters stay.

    Defined in chapter 20, "A ladder".
    """
    for layer in layers_of(model):
        if compiled:
            layer.forward = torch.compile(layer.forward)
        if checkpointing:  # outside, since it would keep the compiler out
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def pad_vocabulary(model: nn.Module, multiple: int) -> None:
    """Add rows of zeros to a model's output matrix, up to a multiple, for speed.

    Embeddings that share it get them too. The model computes the same.

    Defined in chapter 20, "A ladder".
    """
    weight, rows = model.output.weight, model.output.out_features
    padded = nn.Parameter(F.pad(weight.detach(), (0, 0, 0, -rows % multiple)))
    for module in model.modules():
        if getattr(module, "weight", None) is weight:
            module.weight = padded
    model.output.register_forward_hook(lambda _, __, logits: logits[..., :rows])


def prefetch(
    batches: Callable[[], Iterable], pin: bool = False, start: str | None = None
) -> DataLoader:
    """The batches that a function gives, made by another process.

    With `pin` they arrive in memory from which a GPU can copy by itself. `start` is
    how the process starts: a fork, where there is one, knows what a notebook has
    defined, but may hang if it is made beside NCCL.

    Defined in chapter 20, "A ladder".
    """
    way = "fork" if hasattr(os, "fork") else None
    return DataLoader(
        Stream(batches),
        batch_size=None,
        num_workers=1,
        prefetch_factor=8,
        pin_memory=pin,
        persistent_workers=True,  # asked again, the same process makes them
        multiprocessing_context=start or way,
        generator=torch.Generator(),  # not PyTorch's global random numbers
    )


@dataclass(frozen=True)
class Setup:
    """How a training step is computed. What it computes is the same for all.

    Defined in chapter 20, "A ladder".
    """

    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    fused_attention: bool = False
    compiled: bool = False
    fused_optimizer: bool = False
    waits: bool = True  # whether Python takes numbers off the device in a step
    vocabulary_multiple: int = 1
    batch: int = 1  # how many times over the pairs are in a step
    feed: Literal["held", "made", "ahead"] = "held"  # see `support.benchmark.feed`
    cuda_graphs: bool = False
    checkpointing: bool = False

    def __post_init__(self) -> None:
        check_settings(self)


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
        "no waiting": {"waits": False},
        "padded vocabulary": {"vocabulary_multiple": 64},
        "larger batch": {"batch": 4},
        "batches made between steps": {"feed": "made"},
        "batches prefetched": {"feed": "ahead"},
        "CUDA graph": {"cuda_graphs": True},
        "checkpointing": {
            "feed": "held",
            "cuda_graphs": False,
            "checkpointing": True,
        },
    }


def configure(model: Transformer, setup: Setup) -> Transformer:
    """Change a model, in place, so that it computes in the way of a setup.

    Defined in chapter 20, "A ladder".
    """
    for module in model.modules():
        if isinstance(module, MultiHeadAttention) and not setup.fused_attention:
            module.forward = partial(module.forward, need_weights=True)
    prepare_layers(model, setup.compiled, setup.checkpointing)
    if setup.vocabulary_multiple > 1:
        pad_vocabulary(model, setup.vocabulary_multiple)
    return model


def training_step(
    workload: Workload, setup: Setup, device: str = "cpu"
) -> tuple[Callable[[], tuple[Tensor, int]], Transformer]:
    """A function that makes a step in the way of a setup, and its model.

    It takes the next batch, returns the summed loss and the number of targets, and
    leaves the parameters as they are.

    Defined in chapter 20, "A ladder".
    """
    with keep_random_state():
        torch.manual_seed(workload.seed)
        model = configure(Transformer(workload.config).to(device), setup)
    kind = Trainer if setup.waits else FastTrainer
    kind = GraphTrainer if setup.cuda_graphs else kind
    trainer = kind(model, TrainingConfig(max_grad_norm=1e9), device)
    trainer.optimizer = torch.optim.AdamW(
        model.parameters(), weight_decay=0.0, fused=setup.fused_optimizer or None
    )
    if setup.precision == "bfloat16":
        kind = torch.device(device).type
        trainer.precision = partial(torch.autocast, kind, torch.bfloat16)
    if setup.compiled:
        trainer.criterion = torch.compile(cross_entropy)
    epochs = partial(pair_batches, workload.tokens(setup.batch), max_tokens=1 << 30)
    batches = feed(epochs, setup.feed, device, prefetch)
    rounding = "highest" if setup.precision == "float32" else "high"

    def step() -> tuple[Tensor, int]:
        with matmul_precision(rounding):
            return trainer.train_step([next(batches)], 0.0)

    return step, model


def measure(
    workload: Workload, setup: Setup, device: str = "cpu", steps: int = 10
) -> dict[str, Any]:
    """What a step costs in the way of a setup: what `measure_steps` finds.

    Defined in chapter 20, "A ladder".
    """
    step, model = training_step(workload, setup, device)
    pairs, n = workload.pairs * setup.batch, workload.length
    flops = sum(training_flops(workload.config, pairs, n, n).values())
    return measure_steps(step, model, flops, device, steps)


@cache
def peak_compute_of(device: str, dtype: torch.dtype) -> float:
    """FLOP/s of a device in a large product, measured once.

    Defined in chapter 20, "A trainer that does not wait".
    """
    with keep_random_state():
        return matmul_throughput(device, 4096 if device == "cuda" else 1024, dtype)


def matrix_parameters(model: nn.Module) -> int:
    """How many parameters are in matrices that multiply, not only looked up.

    Defined in chapter 20, "A trainer that does not wait".
    """
    linear = {
        id(part.weight) for part in model.modules() if isinstance(part, nn.Linear)
    }
    tables = [
        part.weight for part in model.modules() if isinstance(part, nn.Embedding)
    ]
    only_looked_up = {*map(id, tables)} - linear
    several = (p for p in model.parameters() if p.ndim > 1)
    return sum(p.numel() for p in several if id(p) not in only_looked_up)


class FastTrainer(Trainer):
    """Trains as `Trainer` does, and asks a device for nothing during a step.

    Its optimizer must be fused. A step whose gradient is not finite changes
    nothing, and its loss is NaN: FloatingPointError follows when a row of the
    history is due (on a Mac's GPU, where nothing can be skipped, at once).

    Defined in chapter 20, "A trainer that does not wait".
    """

    def __init__(
        self, model: nn.Module, config: TrainingConfig, device: str = "cpu"
    ) -> None:
        super().__init__(model, config, device)
        parameters, betas = self.model.parameters(), (0.9, 0.98)
        self.optimizer = torch.optim.Adam(
            parameters, betas=betas, eps=1e-9, fused=True
        )

    def update(self, norm: Tensor) -> None:
        """Let the optimizer move the parameters, if the norm is finite."""
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self.spoiled = ~torch.isfinite(norm)
        if self.device == "mps":
            return super().update(norm)
        self.optimizer.found_inf = self.spoiled.float()
        self.optimizer.step()

    def device_step(self, batches: list[Batch], tokens: float) -> Tensor:
        """A step on batches that are on the device; the summed loss."""
        loss = super().device_step(batches, tokens)
        return loss.masked_fill(self.spoiled, torch.nan)

    def figures(self, row: Row) -> Row:
        """The MFU, by the speed of a large product; the most bytes in use."""
        dtype = torch.float32 if self.precision is nullcontext else torch.bfloat16
        flops = 6 * matrix_parameters(self.model) * row["tokens_per_second"]
        mfu = flops / world_size() / peak_compute_of(self.device, dtype)
        return {"mfu": mfu, "peak_memory": peak_memory(self.device)}


class GraphTrainer(FastTrainer):
    """Trains as `FastTrainer` does, by CUDA graphs: one for each shape of batch.

    A shape that is met for the third time is recorded. RuntimeError for a device
    that cannot record. After PyTorch's notes on CUDA semantics.

    Defined in chapter 20, "Record a step, and repeat it".
    """

    can_record = ("cuda",)

    def __init__(
        self, model: nn.Module, config: TrainingConfig, device: str = "cuda"
    ) -> None:
        if torch.device(device).type not in self.can_record:
            raise RuntimeError(f"CUDA graphs need a CUDA device, not {device}")
        super().__init__(model, config, device)
        self.rate, self.tokens = torch.zeros(2, device=device)
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs, self.met = {}, Counter()

    def train(self, *given: Any, **named: Any) -> list[Row]:
        """As `Trainer.train`. What was recorded before is forgotten."""
        self.graphs, self.met = {}, Counter()  # it may go on with another state
        return super().train(*given, **named)

    def device_step(self, batches: list[Batch], tokens: float) -> Tensor:
        """A step on batches that are on the device; the summed loss."""
        for group in self.optimizer.param_groups:
            self.rate.fill_(group["lr"])
            group["lr"] = self.rate
        self.tokens.fill_(tokens)
        sides = [side for batch in batches for side in batch]
        shapes = tuple(side.shape for side in sides)
        self.met[shapes] += 1
        if self.met[shapes] < 3:
            return self.in_the_stream(batches)
        if shapes not in self.graphs:
            self.graphs[shapes] = self.record(batches)
        graph, inputs, loss = self.graphs[shapes]
        for there, side in zip(inputs, sides, strict=True):
            there.copy_(side)
        graph.replay()
        return loss.clone()

    def in_the_stream(self, batches: list[Batch]) -> Tensor:
        """Make a step, in the stream in which others are recorded."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            loss = super().device_step(batches, self.tokens)
        torch.cuda.current_stream().wait_stream(self.stream)
        return loss

    def record(
        self, batches: list[Batch]
    ) -> tuple[torch.cuda.CUDAGraph, list[Tensor], Tensor]:
        """Record a step, and make none: the graph, what it reads, and its loss."""
        inputs = [tuple(side.clone() for side in batch) for batch in batches]
        graph, way = torch.cuda.CUDAGraph(), {"capture_error_mode": "thread_local"}
        before = torch.cuda.current_stream()
        self.capturable(True)
        try:
            with torch.cuda.graph(graph, self.pool, self.stream, **way):
                loss = super().device_step(inputs, self.tokens)
        finally:
            torch.cuda.set_stream(before)  # an error would leave the other
            self.capturable(False)
        return graph, [side for batch in inputs for side in batch], loss

    def capturable(self, now: bool) -> None:
        """Tell the optimizer whether it is being recorded."""
        for group in self.optimizer.param_groups:
            group["capturable"] = now


def level(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    longest: int,
    multiple: int = 8,
    pad_id: int = 0,
) -> list[tuple[list[int], list[int]]]:
    """Pairs padded: a source to a multiple of tokens, a target to one more.

    (What a decoder reads of a target is one token shorter than it.) None is padded
    beyond `longest`, or a target beyond one more.

    Defined in chapter 20, "Record a step, and repeat it".
    """

    def padded(side: Sequence[int], more: int) -> list[int]:
        size = len(side) - more
        size = max(size, min(-(-size // multiple) * multiple, longest)) + more
        return [*side, *[pad_id] * (size - len(side))]

    return [(padded(source, 0), padded(target, 1)) for source, target in pairs]
