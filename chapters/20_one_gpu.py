# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 20. Where does the time go?
#
# Training is one step, made a hundred thousand times. At the end of this chapter you know how much work is in that step,
# how fast your machine could do it, where the rest of the time goes, and which changes win it back. You try
# them one on top of the other, like the rungs of a ladder, and check on each that the model still computes the same.
#
# You need [chapter 9](09_decoder.ipynb) for the model and [chapter 11](11_training.ipynb) for the step. It takes about
# 50 minutes to read, and 25 more for the exercises. No GPU is needed: what is said about GPUs can be tried on one, by
# running this notebook there.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer, every part built. This chapter makes all of it faster."}}
from dataclasses import replace
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from classroom import checks, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=20)

# %% [markdown]
# ## How much work is a step?
#
# Nearly all of it is matrix products, and those can be counted on paper. A table of 2 rows and 3 columns, times one of
# 3 rows and 4 columns, has 2 · 4 entries. Each is a dot product of 3 numbers: 3 multiplications and 3 additions, if
# the first is added to 0. That makes $2 \cdot 2 \cdot 3 \cdot 4 = 48$ operations.

#
# PyTorch can count too: it watches products while they run.

# %% tags=["nbval-check-output"]
from torch.utils.flop_counter import FlopCounterMode

with FlopCounterMode(display=False) as counter:
    torch.ones(2, 3) @ torch.ones(3, 4)
print(counter.get_total_flops())
assert counter.get_total_flops() == 2 * 2 * 3 * 4 == 48

# %% [markdown]
# So a projection of $T$ tokens from width $D$ to width $D$ takes $2 T D^2$ operations. The scores of $T$ queries and
# $S$ keys take $2 T S D$ (all heads together), and blending the values takes as many again. And the backward pass? A
# product has two factors, and the gradient of each is a product of the same size ([chapter
# 7](07_learning.ipynb#one-answer-one-gradient)). So the backward pass takes twice the work of the forward pass, and a
# step takes three times the forward pass. The function counts multiplications first, and at the end multiplies by 3,
# for the step, and by 2, for the additions.

# %% tags=["export"] module="devices"
from dotformer.transformer import TransformerConfig


def step_operations(
    config: TransformerConfig, batch: int, source: int, target: int
) -> dict[str, int]:
    """Operations in the matrix products of a training step, forward and back.

    By part, for `batch` pairs of `source` and `target` tokens. A multiplication
    and an addition are two operations.
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


# %% [markdown]
# Let PyTorch watch a small model.

# %% tags=["nbval-check-output"]
from dotformer.support.recording import record_weights
from dotformer.transformer import Transformer

small = TransformerConfig(
    source_vocab_size=6001,
    target_vocab_size=6001,
    d_model=128,
    num_heads=4,
    num_encoder_layers=2,
    num_decoder_layers=2,
    d_ff=512,
    dropout=0.0,
    max_length=64,
    share_embeddings=True,
)
torch.manual_seed(0)
model = Transformer(small)
source, target = torch.randint(3, 6001, (16, 24)), torch.randint(3, 6001, (16, 20))
# the counter does not know every attention: have the weights written out (chapter 7)
with FlopCounterMode(display=False) as counter, record_weights(model):
    model(source, target).sum().backward()
ours = sum(step_operations(small, 16, 24, 20).values())
print(f"counted {counter.get_total_flops():,}, on paper {ours:,}")
assert counter.get_total_flops() == ours

# %% [markdown]
# Equal, to the last operation. Now the paper's base model, with a batch of about 25,000 tokens on each side, as the
# paper had it: 400 pairs of 64.

# %% tags=["nbval-check-output"]
base = TransformerConfig(37_000, 37_000, dropout=0.0, share_embeddings=True)
with torch.device("meta"):  # shapes only, no numbers
    parameters = sum(p.numel() for p in Transformer(base).parameters())
work = step_operations(base, 400, 64, 64)
for part, count in work.items():
    print(f"{part:18} {count / 1e12:5.2f} e12  {count / sum(work.values()):4.0%}")
rule = 6 * parameters * 400 * 64
print(f"{'together':18} {sum(work.values()) / 1e12:5.2f} e12")
print(f"6 · {parameters / 1e6:.0f} million · 25,600: {rule / 1e12:.2f} e12")
assert abs(sum(work.values()) / rule - 1) < 0.1

# %% [markdown]
# Ten million million operations, for one step. The last line is a rule of thumb: six operations for each parameter and
# each token of the target, because each parameter is multiplied and added once forward and twice back. (Source and
# target have equally many tokens here.) (An embedding that is only looked up should not be counted. This one is also
# the output matrix.) It is right to a few percent here, and says nothing of the scores, which are a small part at this
# length.

# %% tags=["quiz"]
half = step_operations(base, 400, 64, 64)["scores and blends"] / sum(work.values())
long = step_operations(base, 25, 1024, 1024)
quiz.number(
    "The same tokens in 25 pairs of 1,024: what percentage of the step's operations are scores and blends now?",
    100 * long["scores and blends"] / sum(long.values()),
    tolerance=0.5,
    feedback="Yes. Every other part depends on the number of tokens alone, and that is the same.",
    mistakes=[
        (
            100 * half,
            "That is the share at 64 tokens. Each query has sixteen times as many keys now.",
        ),
        (
            1600 * half,
            "Sixteen times the share is too much: the total has grown as well.",
        ),
    ],
    otherwise="`step_operations(base, 25, 1024, 1024)` counts them; divide by the sum of its parts.",
)

# %% [markdown]
# ## How fast could it be?
#
# A machine has two speeds. It computes so many operations a second, and it moves so many bytes a second between memory
# and the place where it computes. Whichever takes longer decides. Measure both: the first with a matrix product, the
# second with a copy. (A GPU is handed its work and reports back later, so the clock has to wait for it, with
# `synchronize`. Otherwise one measures how fast work can be handed over.)

# %% tags=["export"] module="devices"
import time
from collections.abc import Callable
from statistics import median

import torch


def synchronize(device: torch.device | str) -> None:
    """Wait until a device has done all that it was asked to do."""
    device = torch.device(device)
    which = [] if device.type == "mps" else [device]  # a Mac has one
    if device.type != "cpu":
        getattr(torch, device.type).synchronize(*which)


def time_of(
    work: Callable[[], object], device: torch.device | str, repeats: int = 10
) -> list[float]:
    """Seconds that each repetition of some work takes, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return times[1:]


def copy_rate(device: torch.device | str, size: int = 1 << 25) -> float:
    """Bytes a second that a device reads and writes, copying `size` numbers."""
    numbers = torch.randn(size, device=device)
    other = torch.empty_like(numbers)
    times = time_of(lambda: other.copy_(numbers), device)
    return 2 * numbers.nbytes / median(times)


def product_rate(
    device: torch.device | str, size: int = 1024, dtype: torch.dtype = torch.float32
) -> float:
    """Operations a second in the product of two square tables of `size` rows."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / median(time_of(lambda: a @ b, device))


# %%
device = "cuda" if torch.cuda.is_available() else "cpu"
size = 1024 if device == "cpu" else 8192
bytes_per_second = copy_rate(device)
operations_per_second = product_rate(device, size)
ridge = operations_per_second / bytes_per_second
print(f"{operations_per_second / 1e9:,.0f} thousand million operations a second")
print(f"{bytes_per_second / 1e9:,.0f} thousand million bytes a second")
print(f"{ridge:.1f} operations for each byte")

# %% [markdown]
# The last number, called the **ridge**, is the one to remember. Work that does fewer operations for each byte waits for
# memory, and no faster arithmetic will help it. Adding two tables reads 8 bytes and writes 4 for a single operation: a
# twelfth of an operation a byte, far below. A product of two tables of $n$ rows and $n$ columns reads and writes $12
# n^2$ bytes for $2 n^3$ operations: $n / 6$ a byte. So small products wait, and large ones compute. On a GPU the ridge
# is much higher. NVIDIA gives an H100 (SXM) 989 million million operations a second with numbers of 16 bits, and 3.35
# million million bytes: 295 operations for each byte. (With 16 bits a product has $n / 3$.)
#
# **Predict first.** Draw speed against operations for each byte. Above which two lines can no work rise, if all its
# bytes come from memory?

# %% tags=["plot"] mystnb={"image": {"alt": "Operations a second over operations for each byte, both logarithmic. A roof rises in a straight line and then is flat. The sum of two tables lies on the rising part, at its left end. Products of small tables lie below the rising part or on it, products of large tables near the flat part."}}
sizes = (8, 16, 32, 64, 128, 256, 512)
a, b = (torch.randn(1 << 24, device=device) for _ in range(2))
there = torch.empty_like(a)  # where the sum will be
added = len(a) / median(time_of(lambda: torch.add(a, b, out=there), device))
measured_rates = [product_rate(device, n) for n in sizes]
figure, axes = plt.subplots(figsize=(6.4, 3.6))
intensity = np.geomspace(1 / 16, 200, 200)
roof = np.minimum(operations_per_second, intensity * bytes_per_second)
axes.loglog(intensity, roof, color=plots.GREY)
axes.loglog([n / 6 for n in sizes], measured_rates, "o", color=plots.BLUE)
for n, rate in zip(sizes, measured_rates, strict=True):
    axes.annotate(f"{n}", (n / 6, rate), (5, -11), textcoords="offset points")
axes.loglog([1 / 12], [added], "o", color=plots.RED)
axes.annotate("sum", (1 / 12, added), (7, -6), textcoords="offset points")
axes.set(xlabel="operations for each byte", ylabel="operations a second")
plt.show()

# %% [markdown]
# The grey line is the **roof**: on the left as many operations as the bytes allow, on the right as many as the
# arithmetic can do. (The picture is called a *roofline*. What fits into a cache, a small memory next to the arithmetic,
# can rise above its left part.) The red dot is the sum, the blue ones are products, with their size beside them. The
# smallest lie far below even this roof: to start any work at all takes a microsecond or more, and in that time a table
# of 8 rows is long finished. So there are three ways to be slow: to compute much, to move much, or to do very little
# very often.

# %% tags=["quiz"]
quiz.one_choice(
    "A layer norm reads and writes each number and does about eight operations on it. On a machine with a ridge of 10 operations a byte, what makes it faster?",
    quiz.right(
        "Doing it together with the operation before, so that its input is not written and read again",
        "Eight operations for 8 bytes (4 read, 4 written) are 1 a byte, far below the ridge. Only bytes that are not moved help.",
    ),
    quiz.wrong(
        "Arithmetic units that are twice as fast",
        "They would wait all the more. At 1 operation a byte it is memory that decides, not arithmetic.",
    ),
    quiz.wrong(
        "A larger batch, which fills the machine better",
        "That helps work that is too small to fill it. A layer norm of a large batch moves as many bytes for each number as one of a small batch.",
    ),
)

# %% [markdown]
# ## Where does it go?
#
# The small model's step has a known number of operations, and the machine does so many a second. Their quotient is the
# time the step would take if it were nothing but products at full speed.
#
# **Predict first.** What share of the real time is that? And what is the rest? (`costliest` lets PyTorch's profiler watch
# a step, and adds up the time that each operation itself takes, without what it calls.)

# %% tags=["export", "hide-input"] module="devices"
import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch.profiler import ProfilerActivity, profile


@contextmanager
def quietly() -> Iterator[None]:
    """Throw away what is written to standard error, by any part of the process."""
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


# %%
from dotformer.training import Trainer, TrainingConfig

model = Transformer(small).to(device)
trainer = Trainer(model, TrainingConfig(), device)
batch = source.to(device), target.to(device)


def step():
    return trainer.train_step([batch], 1e-4)


seconds = median(time_of(step, device))
# 19 targets are fed, since nothing follows the last
least = sum(step_operations(small, 16, 24, 19).values()) / operations_per_second
print(f"a step takes {1000 * seconds:.0f} ms, its products {1000 * least:.0f} ms")
for name, cost in costliest(step, device):
    print(f"{1000 * cost:7.1f} ms  {name}")
assert least < 1.1 * seconds

# %% [markdown]
# At full speed the products would take less than half of the step. They do take more than that, as `mm` and `addmm`,
# products without and with a bias: they are smaller than the one that was measured, and reach less of the speed, as in
# the figure. Below them stands what moves many bytes for little arithmetic: the gradient of the softmax over 6,001
# scores, sums, zeros to begin a gradient with (`fill_`). Apart from attention's products we have counted none of it,
# and yet it takes time. Much more is too small to be listed, and adds up. Most of the optimiser is among that; its line
# is what Python takes to go through the parameters.
#
# ## A ladder
#
# Each rung changes one thing about *how* a step is computed, on top of the rungs before. *What* is computed must stay the
# same, so each rung's loss and gradient are compared with the first one's.
#
# | rung | what changes | why it may be faster |
# |---|---|---|
# | float32 | nothing; attention writes its weights out | |
# | tf32 | products read 10 binary digits of each number instead of 23 | some GPUs have circuits for that |
# | bf16 | products read and write numbers of 16 bits | half the bytes, and circuits for that |
# | fused attention | the weights are never written out | fewer bytes |
# | compile | neighbouring operations become one program | fewer bytes, fewer starts |
# | fused AdamW | one program updates all parameters | fewer starts |
# | padded vocabulary | 6,001 rows become 6,016 = 94 · 64 | rows that the circuits can take evenly |
# | larger batch | 4 times as many pairs | larger products |
# | batches made between steps | pairs are cut and padded on the way | slower, but real: so far all steps had one batch, made before |
# | batches made ahead | by another process, meanwhile | the device need not wait |
# | checkpointing | the inside of each layer is not kept, but computed again | it is slower, and needs less memory |
#
# Dropout is off, because two programs would drop different entries. The learning rate is 0, so that every step finds the
# same model. The larger batch has the same pairs four times, and the scores of the padded rows are cut off before the
# softmax. The program is folded below; what it times is `train_step` of [chapter 11](11_training.ipynb).
#
# **Predict first.** Which rungs are slower on your machine?

# %% tags=["export", "hide-input"] module="devices"
from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset


@contextmanager
def product_precision(name: str) -> Iterator[None]:
    """Let float32 products be rounded to tf32 ("high") or not ("highest").

    As `torch.set_float32_matmul_precision`, while the block lasts.
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
    """The batches of an epoch, for PyTorch's loader."""

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


# %% tags=["export", "hide-input"] module="ladder"
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, repeat
from statistics import quantiles
from typing import Any

import torch
from dotformer.transformer import Transformer, TransformerConfig
from torch import Tensor, nn


@dataclass(frozen=True)
class Setup:
    """How a training step is computed. What it computes is the same for all.

    `batch` says how many times the workload's pairs a step takes, `feed` where
    they come from: "held" on the device, "made" between steps, or made "ahead".
    Raises ValueError for another precision or feed.
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
    """The rungs of the ladder: what each changes in the one before."""
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
    """The setup of each of some `rungs`, with all the changes up to it."""
    now, found = Setup(), {}
    for name, change in changes.items():
        now = replace(now, **change)
        found[name] = now
    return found


# %% tags=["export", "hide-input"] module="ladder"
import time

from dotformer.attention import MultiHeadAttention
from dotformer.support.checkpoints import keep_random_state
from dotformer.training import Trainer, TrainingConfig, cross_entropy, pair_batches


@dataclass(frozen=True)
class Workload:
    """What is computed: a model, and `pairs` pairs of random tokens for it.

    Sentences have `length` tokens on each side, and the target one more. Raises
    ValueError when there are none, and when the model has dropout: no two steps
    would compute the same.
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
    """Ask an attention for its weights, so that it writes them out (chapter 7)."""
    return given[:4], named | {"need_weights": True}


def set_up(model: Transformer, setup: Setup) -> Transformer:
    """Change a model, in place, into one that computes in the way of a setup."""
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
    """The batches of all epochs, one after another."""
    return chain.from_iterable(map(batches, count()))


def feed(
    workload: Workload, setup: Setup, device: torch.device | str
) -> Iterator[tuple[Tensor, ...]]:
    """Batches of a workload on the device, without end, in the way of a setup."""
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


# %%
workload = Workload(small, pairs=16, length=24)
two_rungs = {"float32": {}, "bf16": {"precision": "bfloat16"}}
for row in climb(workload, two_rungs, device, steps=3):
    speed = row["tokens_per_second"]
    print(f"{row['name']:8} {speed:7,.0f} tokens/s  {row['gradient_error']:.0e}")
    assert row["loss_error"] < 1e-3 and row["gradient_error"] < 0.05

# %% [markdown]
# All eleven take a minute or two, and want a machine that does nothing else. So a program has climbed them, with twice as
# many pairs (`python -m benchmarks.gpu --device cpu --sections ladder`).

# %%
from classroom.measured import measured

ladder = measured("ladder-cpu")["measurements"]
whole = {row["name"]: row for row in ladder if row["what"] == "rung"}
changes, last = {}, None
print(f"{'':26}    ms a step    tokens/s        MB  gradient off by")
for name, row in whole.items():
    speed = row["tokens_per_second"]
    changes[name] = speed / last - 1 if last else 0.0
    low, high = (1000 * seconds for seconds in row["quartiles"])
    print(
        f"{name:26}{1000 * row['seconds']:6.0f} ({low:3.0f}-{high:3.0f}){speed:10,.0f}"
        f"{changes[name]:+5.0%}{row['peak_memory'] / 1e6:5.0f}"
        f"  {row['gradient_error']:.0e}"
    )
    last = speed
assert all(row["loss_error"] < 1e-3 for row in whole.values())
assert all(row["gradient_error"] < 0.035 for row in whole.values())

# %% [markdown]
# The times are medians, with quartiles in brackets. Tokens are those of both sides. Memory is what the model and the
# optimiser keep, and what is kept for the backward pass.
#
# Read the last column first. tf32 changes nothing on this machine. With numbers of 16 bits the gradients differ by three
# percent, from rounding, and no later rung moves that. So the table compares like with like.
#
# Then the speeds. They belong to one core of one CPU; yours will differ, and the quartiles say that a difference of a few
# percent means nothing. tf32 belongs to certain GPUs, so what its line shows is chance. bf16 gains four tenths, since
# this processor has circuits for it. On one that has none it goes *down*, because every product is converted first. (It
# saves little memory: most of that is the float32 parameters with their gradients and means, and the scores, which
# become float32 again for the loss.) Compiling gains a seventh, and costs many seconds before its first step. What
# follows it is of the size of chance: one core has few idle circuits that a larger batch could fill, and making batches
# takes no time to speak of. Checkpointing is slower and needs less memory, as promised.

# %% tags=["hide-input"]
assert 0.4 < changes["bf16"] < 0.45 and 1 / 8 < changes["compile"] < 1 / 6
rest = list(changes)[list(changes).index("compile") + 1 : -1]
assert all(abs(changes[name]) < 0.09 for name in ["tf32", *rest])
assert changes["fused attention"] < -0.2 and changes["checkpointing"] < -0.15
memory = {name: row["peak_memory"] for name, row in whole.items()}
assert memory["checkpointing"] < 0.6 * memory["batches made ahead"]
assert memory["fused attention"] < memory["bf16"]

# %% [markdown]
# But why does fused attention go *down*? Time one attention alone, forward and back.

# %%
attention = MultiHeadAttention(128, 4).to(device)
x = torch.randn(16, 24, 128, device=device)
alone = {}
for kind in (torch.float32, torch.bfloat16):
    for way in ("written out", "fused"):

        def there_and_back(kind=kind, way=way):
            with torch.autocast(x.device.type, kind, enabled=kind != torch.float32):
                output, _ = attention(x, x, x, need_weights=way == "written out")
            output.float().sum().backward()

        alone[kind, way] = median(time_of(there_and_back, device, 20))
        print(f"{kind!s:15} {way:12}{1000 * alone[kind, way]:6.2f} ms")

# %% [markdown]
# With 32 bits the two are level, as far as chance lets one see. With 16 bits PyTorch's fused program for CPUs takes
# twice as long or more. Such things change from one version to the next, so measure before you believe a list of what
# is fast, this one too.
#
# ## Fewer digits
#
# A float32 has 1 bit for the sign, 8 for the size (a power of two) and 23 for the digits. The shorter kinds have
# fewer: bfloat16 gives up digits only, float16 some of both.

# %% tags=["nbval-check-output"]
bits = {"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}
print("            size  digits   largest  smallest   next after 1")
for name, (size, digits) in bits.items():
    kind = torch.finfo(getattr(torch, name))
    print(
        f"{name:10}{size:6}{digits:8}{kind.max:10.1e}{kind.tiny * kind.eps:10.1e}"
        f"   1 + {kind.eps:.0e}"
    )
    assert 1 + size + digits == kind.bits and kind.eps == 2.0**-digits

# %% [markdown]
# (tf32 is a way to multiply, not to keep: numbers stay float32, and the circuit reads 8 bits of size and 10 of digits.)
# *bfloat16* reaches about as far as float32, with two or three decimal digits. *float16* has three or four, and reaches
# from 0.00000006 to 65,504. Which one would you train with?
#
# **Predict first.** Two vectors of 64 numbers, all of them 40. What is their dot product in each kind?

# %% tags=["nbval-check-output"]
forty = torch.full((64,), 40.0)
for name in bits:
    x = forty.to(getattr(torch, name))
    print(f"{name:10}{(x @ x).item():10.0f}")
assert torch.isinf(forty.half() @ forty.half()) and forty @ forty == 102_400

# %% [markdown]
# Infinity, where the truth is 102,400. One such score turns the softmax into *not a number*, and from there it spreads
# to everything. (`torch.autocast` computes in float32 what is likely to overflow, such as the softmax and the loss. It
# does not do so for a product like this one.) And at the other end:

# %% tags=["nbval-check-output"]
gradient = torch.tensor([1e-4, 1e-6, 1e-8])
print("bfloat16             ", [f"{g:.2g}" for g in gradient.bfloat16().tolist()])
for scale in (1.0, 2.0**16, 2.0**40):
    kept = (gradient * scale).half().float() / scale
    print(
        f"float16, times 2^{np.log2(scale):<4.0f}",
        [f"{g:.2g}" for g in kept.tolist()],
    )
assert gradient.half()[2] == 0 and (gradient * 2**16).half()[2] > 0
assert torch.isinf((gradient * 2**40).half())[0]

# %% [markdown]
# float16 has lost the smallest gradient: it is 0, and what depended on it learns nothing. Hence the **loss scale**.
# Multiply the loss by $2^{16}$ before the backward pass, and all gradients are 65,536 times as large. Divide them
# again, in float32, before the step. With too large a scale some are infinite, as in the last row: then skip the step,
# and halve the scale. PyTorch's `GradScaler` does all this. (It rescues gradients. Against scores that overflow it does
# nothing.) bfloat16 needs none of it, because it reaches as far as float32. That is why one trains with it, although it
# has fewer digits.
#
# What about the digits? They matter where something small is added to something large, and training does that with every
# step.

# %% [markdown]
# ### Break it: parameters of 16 bits
#
# *If products may be rounded, round the parameters as well, and save half their memory.* Here are two copies of a model
# that learns a straight line. One has its parameters in bfloat16. The other has them in float32, and `torch.autocast`
# rounds its products to bfloat16.

# %%
from itertools import pairwise


def line(dtype):
    """Learn y = 2 x with parameters of a kind, products in bfloat16: the errors."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1, bias=False).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.linspace(-1, 1, 64)[:, None]
    errors = []
    for _ in range(600):
        with torch.autocast("cpu", torch.bfloat16):
            loss = (model(x).float() - 2 * x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(abs(model.weight.item() - 2))
    return errors


errors = {dtype: line(dtype) for dtype in (torch.float32, torch.bfloat16)}
for dtype, values in errors.items():
    moved = sum(a != b for a, b in pairwise(values))
    print(
        f"{dtype}: off by {values[-1]:.3f} at the end, moved in {moved} of 599 steps"
    )
assert errors[torch.bfloat16][-1] > 0.05 > errors[torch.float32][-1]

# %% [markdown]
# The bfloat16 parameter stops on its way. Near 1.5 two neighbouring bfloat16 numbers are 1/128 apart, and a step
# shorter than half of that rounds to no step at all. From outside nothing is wrong: the loss falls, and then it is
# flat, as if the model had learnt all it can. So parameters stay in float32, and the optimiser's means with them, and
# only products are rounded. That is called **mixed precision**, and it is what `torch.autocast` does. `python -m
# dotformer train` does it where the configuration says `precision = "bfloat16"`.

# %% tags=["quiz"]
quiz.one_choice(
    "Your bf16 training reaches a loss of 2.9 and stays there, the float32 run reached 2.4. `model.parameters()` are bfloat16. What do you try first?",
    quiz.right(
        "Keep the parameters in float32 and wrap the forward pass in autocast",
        "Steps that are smaller than half the distance to the next bfloat16 number are lost. With float32 parameters they add up.",
    ),
    quiz.wrong(
        "A loss scale of 65,536",
        "That rescues gradients too small for float16. bfloat16 reaches almost as far down as float32, so no gradient was lost.",
    ),
    quiz.wrong(
        "A lower learning rate",
        "That makes each step smaller, and more of them round to nothing.",
    ),
)

# %% [markdown]
# ## Attention without the table
#
# Attention as [chapter 3](03_softmax.ipynb) has it writes a table of $T$ rows and $S$ columns, reads it to normalise
# each row, and reads it again to blend. At 64 tokens that is little. At 16,384 it is 268 million weights for each head.
# Yet what we want are $T$ blends. Nobody asked for a table.
#
# The obstacle is the softmax. A weight is $e^{s_j}$ divided by the sum over *all* keys, so one seems to need all scores
# before the first weight. And since $e^{s}$ can overflow, one subtracts the largest score first, which again needs all of
# them.
#
# Now suppose the keys come in blocks, and we keep three things about those we have seen: the best score so far, $b$;
# the sum $z = \sum_j e^{s_j - b}$; and the blend that has not been divided yet, $o = \sum_j e^{s_j - b}\, v_j$. Then a block
# brings a better score, $b'$. The old terms were measured from $b$, and now all must be measured from $b'$. Each of them
# changes by the same factor:
#
# $$ e^{s_j - b'} = e^{s_j - b} \cdot e^{b - b'} $$
#
# So multiply $z$ and $o$ by $e^{b - b'}$, add the block's own terms, and forget the block. At the end, $o / z$.
#
# **By hand.** Scores 0, 1 and 3, with values 10, 20 and 30, in two blocks: the first two, then the third. After the
# first block $b = 1$, $z = e^{-1} + 1 = 1.368$ and $o = 10 e^{-1} + 20 = 23.68$. The second brings $b' = 3$, so both
# shrink by $e^{-2} = 0.1353$, and the third word adds 1 and 30:

# %% tags=["nbval-check-output"]
best, total, blend = 1.0, np.exp(-1) + 1, 10 * np.exp(-1) + 20
shrink = np.exp(best - 3.0)
total, blend = total * shrink + 1, blend * shrink + 30
print(
    f"shrink {shrink:.4f}   sum {total:.4f}   blend {blend:.4f}   {blend / total:.4f}"
)
scores, values = np.array([0.0, 1.0, 3.0]), np.array([10.0, 20.0, 30.0])
weights = np.exp(scores) / np.exp(scores).sum()
print(f"softmax {weights.round(4)}, blend {weights @ values:.4f}")
assert abs(blend / total - weights @ values) < 1e-12

# %% [markdown]
# The same blend, and at no time were there three weights. (This is called *online softmax*.) For all queries at once:

# %% tags=["export"] module="by_hand.blocks"
import numpy as np
from dotformer.by_hand.similarity import similarity_matrix
from dotformer.support.scores import check_scores
from dotformer.support.shapes import shapes
from jaxtyping import Float, Real


@shapes
def blockwise_attention(
    query: Real[np.ndarray, "T d_k"],
    key: Real[np.ndarray, "S d_k"],
    value: Real[np.ndarray, "S d_v"],
    block: int = 128,
) -> Float[np.ndarray, "T d_v"]:
    """Attention that holds (T, block) weights at a time, never (T, S).

    The output and the errors are those of `scaled_dot_product_attention`. Raises
    ValueError besides when `block` is below 1. After Milakov and Gimelshein (2018),
    Rabe and Staats (2021), Dao and others (2022).
    """
    if block < 1:
        raise ValueError(f"block must be at least 1, not {block}")
    best = np.full((len(query), 1), -np.inf)  # the best score so far
    total, blend = np.zeros((len(query), 1)), np.zeros((len(query), value.shape[1]))
    for start in range(0, len(key), block):
        keys, values = key[start : start + block], value[start : start + block]
        scores = similarity_matrix(query, keys) / np.sqrt(query.shape[1])
        better = np.maximum(best, scores.max(axis=1, keepdims=True))
        shrink, weights = np.exp(best - better), np.exp(scores - better)
        total = total * shrink + weights.sum(axis=1, keepdims=True)
        blend = blend * shrink + weights @ values
        best = better
    check_scores(best)
    return blend / total


# %% tags=["nbval-check-output"]
from dotformer.by_hand.attention import scaled_dot_product_attention

rng = np.random.default_rng(0)
query, key, value = (rng.normal(size=(n, 16)) * 5 for n in (50, 300, 300))
whole_table, _ = scaled_dot_product_attention(query, key, value)
for block in (1, 7, 128, 300):
    error = np.abs(
        blockwise_attention(query, key, value, block) - whole_table
    ).max()
    print(f"blocks of {block:3}: equal to {'1e-12' if error < 1e-12 else error}")
    assert error < 1e-12

# %% [markdown]
# That is what `F.scaled_dot_product_attention` does where it can, in one program. A block of keys and values is brought
# to the fast memory next to the arithmetic, used for a block of queries, and forgotten, and no weight ever travels to
# the large memory. (The name to look for is *FlashAttention*. For cases that it cannot do, PyTorch has another way,
# which writes the table out.) For the backward pass the weights are needed again. They are computed again, from the
# queries, the keys, and one number kept for each query, $b + \ln z$.
#
# ### Is fused attention an approximation?
#
# No. The blend is the same but for rounding, as you have seen. Nor does it do fewer operations; with the second
# computation in the backward pass it does *more*. What it saves is bytes: of memory, and of traffic.
#
# **Predict first.** Here both run on your machine, forward and back, in float32. The table grows with the square of the
# length. Does the time of the fused one grow more slowly?

# %% tags=["plot"] mystnb={"image": {"alt": "Two panels over length, both axes logarithmic. Left, seconds: both ways grow with the square of the length and lie close together. Right, bytes kept for the backward pass: written out, they grow with the square; fused, in proportion."}}
from dotformer.attention import MultiHeadAttention
from torch import nn

torch.manual_seed(0)
attention = MultiHeadAttention(128, 4).to(device)
lengths = (128, 256, 512, 1024)
seconds, kept_bytes = {}, {}
for way in ("written out", "fused"):
    for n in lengths:
        x = torch.randn(1, n, 128, device=device)

        def back_and_forth(x=x, way=way):
            attention(x, x, x, need_weights=way == "written out")[
                0
            ].sum().backward()

        seconds[way, n] = median(time_of(back_and_forth, device, 5))
        with kept_for_backward(attention) as kept:
            output = attention(x, x, x, need_weights=way == "written out")[0]
        kept_bytes[way, n] = sum(kept.values())
        del output
figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.2))
for axes, figures, title in zip(
    panels, (seconds, kept_bytes), ("seconds", "bytes kept"), strict=True
):
    for way, color in (("written out", plots.RED), ("fused", plots.BLUE)):
        axes.loglog(lengths, [figures[way, n] for n in lengths], "o-", color=color)
        axes.annotate(
            way,
            (lengths[-1], figures[way, lengths[-1]]),
            (-6, 8 if way == "written out" else -22),
            textcoords="offset points",
            ha="right",
            color=color,
        )
    axes.minorticks_off()
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.set(xlabel="tokens", title=title)
plt.tight_layout()
plt.show()

# %%
for way in ("written out", "fused"):
    growth = kept_bytes[way, 1024] / kept_bytes[way, 128]
    print(f"{way:12} 8 times the tokens, {growth:.0f} times the bytes kept")
assert kept_bytes["written out", 1024] > 30 * kept_bytes["written out", 128]
assert kept_bytes["fused", 1024] < 9 * kept_bytes["fused", 128]

# %% [markdown]
# Every query meets every key either way, so the time grows, in the end, with the square. The memory need not. Written
# out, part of it grows with the square and part in proportion: 33 times, between 8 and 64. Fused, all of it grows in
# proportion. On a CPU the two curves of time stay close at these lengths: its ridge is low, and a table costs little to
# move beside what it costs to compute. On a GPU the fused one is reported to be several times as fast ([Dao and others
# 2022](https://arxiv.org/abs/2205.14135)).

# %% tags=["quiz"]
quiz.one_choice(
    "With keys in blocks, the first block's best score is 2, its sum is 1.5. The next block has the single score 0. What is the new sum?",
    quiz.right(
        "1.5 + $e^{-2}$",
        "The best score is still 2, so nothing shrinks, and the new term is reckoned from it.",
    ),
    quiz.wrong(
        "1.5 + 1",
        "That would be right if 0 were the best score. A term is $e^{s - b}$, and $b$ is 2.",
    ),
    quiz.wrong(
        "1.5 $e^{-2}$ + 1",
        "The old sum shrinks only when a *better* score arrives. 0 is no better than 2.",
    ),
)

# %% [markdown]
# ## What if it does not fit?
#
# A step holds four things in memory: the parameters, a gradient for each, the two running means that Adam keeps for
# each, and what the forward pass leaves for the backward pass, to which the loss adds its own tables. The first three
# are 16 bytes for each parameter, however large the batch is. The fourth grows with the batch and the length.

# %% tags=["export", "hide-input"] module="devices"
from dotformer.support.checkpoints import keep_random_state
from dotformer.training import cross_entropy


def memory_of_step(
    model: nn.Module, source: Tensor, target: Tensor
) -> tuple[int, int]:
    """Bytes that a step needs: for any batch, and for this one, both in float32.

    The first are parameters, gradients and Adam's two means. The second, what is
    kept for the backward pass and the gradient of the logits, is measured on the
    first pair of `source` (B, S) and `target` (B, T). The model and the pair are
    moved to the CPU for that.
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


# %%
large = Transformer(base)
for pairs, length, available in ((400, 64, 24e9), (400, 64, 8e9), (1, 1024, 1.2e9)):
    rows = torch.randint(3, 37_000, (pairs, length))
    print(what_to_shrink(large, rows, rows, int(available)))
state, kept = memory_of_step(large, rows, rows)
assert state == 16 * parameters

# %% [markdown]
# The base model itself takes a gigabyte, and the paper's batch more than 20, most of it for the logits: 37,000 numbers
# for each target, as scores, as logarithms of shares, and as the gradients of both. (The batch that fits leaves a tenth
# of the memory free for the rest.) So for this model it is usually the batch that is too large. With billions of
# parameters it can be the model. And if a single pair does not fit, sentences must be shorter. On a GPU `python -m
# dotformer train` prints such a line when memory runs out.
#
# Two ways out cost time instead of memory. Split the batch and add up the gradients ([chapter
# 11](11_training.ipynb#break-it-the-mean-of-means)). Or keep less: **checkpointing** keeps only what goes into each
# layer, and computes the layer again when the backward pass needs its inside. That is one more forward pass through the
# layers: a third more work for them, and none for the output product. The last rung of the ladder does it: less memory,
# fewer tokens a second, the same gradient. Here it is once more with 32 bits and nothing compiled.

# %%
setup = Setup(fused_attention=True, batch=4)
without, with_it = (
    measure(workload, replace(setup, checkpointing=on), device, steps=2)["memory"]
    for on in (False, True)
)
print(f"{without / 1e6:.0f} MB without, {with_it / 1e6:.0f} MB with checkpointing")
assert with_it < 0.8 * without

# %% tags=["quiz"]
quiz.several_choices(
    "Training runs out of memory. `what_to_shrink` says: the model and Adam need 1 of 8 GB, the batch 10. Which of these help?",
    quiz.right(
        "Half of the batch, twice for each step",
        "The gradient is the same, if the loss is divided by the targets of both halves together.",
    ),
    quiz.right(
        "Checkpointing",
        "It keeps less of the 10 GB, and computes the layers twice.",
    ),
    quiz.wrong(
        "An optimiser without means, such as plain gradient descent",
        "The two means are half of the 1 GB. The 10 would be as large as before.",
    ),
    quiz.wrong(
        "Half the learning rate",
        "A rate changes the numbers in a table, not how many there are.",
    ),
)

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: Two halves of the keys
#
# *Medium, 15 minutes.* A query has attended to the first half of the keys on one device and to the second half on
# another. Each returns its best score $b$, its sum $z$ and its undivided blend $o$ (a vector). Return the blend over all
# keys.


# %% tags=["exercise"]
def merge(first, second):
    """The blend over all keys, from (best, total, blend) of each half."""
    ...


# %% tags=["check"]
def merged(first, second, shrink=True, divide=True, weigh=True):
    (b, z, o), (b2, z2, o2) = first, second
    top = max(b, b2)
    f, f2 = (np.exp(b - top), np.exp(b2 - top)) if shrink else (1.0, 1.0)
    if not weigh:  # the mean of the two blends
        return (np.asarray(o) / z + np.asarray(o2) / z2) / 2
    blend = f * np.asarray(o) + f2 * np.asarray(o2)
    return blend / (f * z + f2 * z2) if divide else blend


check_merge = partial(
    checks.check,
    reference=merged,
    cases=[
        ((3.0, 1.2, np.array([1.0, 2.0])), (1.0, 2.5, np.array([4.0, -1.0]))),
        ((-2.0, 1.0, np.array([0.5, 0.5])), (0.0, 1.7, np.array([3.0, 1.0]))),
        ((1000.0, 2.0, np.array([2.0, 6.0])), (1001.0, 1.0, np.array([1.0, 1.0]))),
    ],
    mistakes={
        "both halves must be reckoned from the same best score": partial(
            merged, shrink=False
        ),
        "divide by the sum over all keys at the end": partial(merged, divide=False),
        "the halves do not count alike: each weighs as much as its sum": partial(
            merged, weigh=False
        ),
    },
)
check_merge(merge)


# %% tags=["solution"]
def merge(first, second):
    (b, z, o), (b2, z2, o2) = first, second
    top = max(b, b2)
    a, a2 = np.exp(b - top), np.exp(b2 - top)
    return (a * o + a2 * o2) / (a * z + a2 * z2)


verdict = check_merge(merge)
assert verdict.passed, verdict
verdict

# %% [markdown]
# It needs neither an order nor exactly two halves. So the keys of a very long text can lie on many devices, and all
# that these exchange is three things for each query.
#
# ### Exercise 2: The floor
#
# *Easy, 10 minutes.* Given the operations and the bytes of some work, and a machine's operations and bytes a second,
# return the shortest time that it can take, if both go on at once.


# %% tags=["exercise"]
def shortest_time(operations, moved, operations_per_second, bytes_per_second):
    """Seconds below which no program can get."""
    ...


# %% tags=["check"]
def roofline(operations, moved, rate, bandwidth, join=max):
    return join(operations / rate, moved / bandwidth)


check_time = partial(
    checks.check,
    reference=roofline,
    cases=[(48, 24, 6, 12), (1e9, 12e9, 1e11, 2e10), (2e12, 3e8, 1e11, 2e10)],
    mistakes={
        "both go on at once: the longer time counts, not their sum": partial(
            roofline, join=lambda a, b: a + b
        ),
        "the slower of the two decides, not the faster": partial(
            roofline, join=min
        ),
        "operations go by the rate, bytes by the bandwidth": (
            lambda o, m, rate, bandwidth: max(o / bandwidth, m / rate)
        ),
    },
)
check_time(shortest_time)


# %% tags=["solution"]
def shortest_time(operations, moved, operations_per_second, bytes_per_second):
    return max(operations / operations_per_second, moved / bytes_per_second)


verdict = check_time(shortest_time)
assert verdict.passed, verdict
verdict

# %% [markdown]
# That is the roof of the figure, seen from the side of time.
#
# ## In one breath
#
# A step is a known number of operations and a known number of bytes, and a machine does so many of each in a second;
# whichever takes longer is the floor. What lies above it is won back by starting less often; the floor itself sinks
# where fewer bytes are moved (16 bits, fused attention, compiled programs). Each such change must leave the gradient as
# it was, but for rounding. Where memory is short, computing something twice takes the place of keeping it.
#
# **Sources.** The roofline: [Williams, Waterman and Patterson (2009)](https://doi.org/10.1145/1498765.1498785). Online
# softmax: [Milakov and Gimelshein (2018)](https://arxiv.org/abs/1805.02867); attention in blocks: [Rabe and Staats
# (2021)](https://arxiv.org/abs/2112.05682), and on a GPU [Dao and others (2022)](https://arxiv.org/abs/2205.14135). Mixed
# precision and the loss scale: [Micikevicius and others (2018)](https://arxiv.org/abs/1710.03740); bfloat16 for training:
# [Kalamkar and others (2019)](https://arxiv.org/abs/1905.12322). Checkpointing: [Chen and others
# (2016)](https://arxiv.org/abs/1604.06174). Six operations for each parameter and token: [Kaplan and others
# (2020)](https://arxiv.org/abs/2001.08361), section 2.1.
#
# **Next.** One device has a floor. Chapter 21 puts several to work on one model, and begins by making sure that two of
# them compute what one would have computed.
