# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 21. How do many train one model?
#
# To go faster, two devices halve a batch, compute a loss and its gradient each, and average. The loss looks plausible,
# the model trains, and the result is wrong: in the first example below the loss is 3, where one device would have found
# 2.5. By the end of this chapter the command of [chapter 14](14_translation.ipynb) trains in one process or in several,
# and you will be able to check that many compute what one would, and to say what communication costs.
#
# You need [chapter 11](11_training.ipynb) for the step and [chapter 20](20_one_gpu.ipynb) for its cost. You need no
# GPU: in this chapter each process on one machine stands for a device. This code has not been run on several GPUs yet.
# The chapter takes about 29 minutes to read, and 35 for the exercises. [Going further](#going-further), at the end,
# takes 9 more minutes.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer, every part built. This chapter trains all of it in several processes at once."}}
import signal
import time
from functools import partial
from statistics import quantiles
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
import torch
from classroom import checks, plots, quiz, transformer_map
from dotformer.support.processes import launch

plots.book_style()
transformer_map(built=21)

# %% [markdown]
# ## Two halves of a batch
#
# Two processes have the same model, and each computes a gradient from half of a batch. What must they do with the two
# gradients, so that both make the step of one process with the whole batch?
#
# **Predict first.** They could average the two. When would that be right, and when not?
#
# **By hand.** The loss of a step is a sum over targets, divided by their number, and so is its gradient. Let the first
# half have 6 real targets with a summed loss of 12, and the second, with short sentences, 2 with a summed loss of 8.
# The whole batch has a loss of $20 / 8 = 2.5$. The halves have $12 / 6 = 2$ and $8 / 2 = 4$, with the mean 3. Averaging
# gives the two targets of the second half as much weight as the six of the first. It would be right if both had equally
# many targets.
#
# This is the *mean of means* of [chapter 11](11_training.ipynb#break-it-the-mean-of-means), and it has the same remedy.
# Divide every summed loss by the number of real targets *of all processes*, and then *add* the gradients.
#
# Each process has a **rank**, counted from 0, and the number of processes is the **world size**. Each takes some rows
# of the batch, its **shard**: `rows.tensor_split(world_size)[rank]`, of source and target (`shard_batch`, folded). A
# process without rows must still take part, because the others wait for its gradient. Its target is padding alone, so
# its gradient is zero.

# %% tags=["export", "hide-input"] module="distributed"
import torch
from dotformer.support.shapes import shapes
from jaxtyping import Int
from torch import Tensor


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
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"there is no rank {rank} among {world_size} processes")
    source, target = (side.tensor_split(world_size)[rank] for side in batch)
    if not len(source):
        source, target = (side[:1].clone() for side in batch)
        target[:, 1:] = pad_id
    return source, target


# %% [markdown]
# The batches are formed first and divided afterwards, so two processes see the same batches as one.
#
# ## What do they communicate?
#
# The numbers of targets must be added up, and the gradients after the backward pass, so one operation is enough.
# **All-reduce** takes a tensor from each process, adds the tensors up entry by entry, and gives the sum to all.
#
# Our helper `launch` runs a function in several processes at once, which form a **process group**. A process also has a
# **local rank**, its number on its own machine, which says which GPU to take.
#
# Here are three processes. `dist.all_reduce` overwrites each one's tensor with the sum:

# %%
import torch.distributed as dist


def introduce():
    rank = dist.get_rank()
    mine = torch.tensor([rank + 1.0, 10.0])
    dist.all_reduce(mine)
    return rank, mine.tolist()


answers = launch(introduce, 3)
print(answers)
assert answers == [(n, [6.0, 30.0]) for n in range(3)]

# %% [markdown]
# Such an operation is a **collective**: all ranks must call it, in the same order, and if one leaves it out, the others
# wait for it: they **hang**. The library that carries the messages is the group's **backend**: here `gloo`, between
# CPUs; between NVIDIA's GPUs `nccl`.
#
# ### Break it: each divides by its own targets
#
# Now two processes compute the gradients of their shards in two ways. For `added`, each divides its summed loss by the
# number of targets of all processes, and the gradients are added up. For `averaged`, each divides by the number of its
# own targets, and the gradients are averaged. `gradient_of(shard, n)`, folded, takes the divisor `n`, or without one
# the number of the shard's targets.

# %% a small model's gradient tags=["hide-input"]
from dotformer.training import cross_entropy
from dotformer.transformer import Transformer, TransformerConfig

shape = TransformerConfig(
    30, 30, 1, 1, d_model=16, num_heads=2, d_ff=32, dropout=0.0, max_length=16
)
torch.manual_seed(1)
batch = torch.randint(3, 30, (5, 7)), torch.randint(3, 30, (5, 8))
batch[1][3, 5:] = batch[1][4, 3:] = 0  # the second process has the short ones


def gradient_of(batch, divisor=None):
    """The gradient of the loss over `divisor` targets, or over those of the batch."""
    torch.manual_seed(0)
    model = Transformer(shape).double()
    logits = model(batch[0], batch[1][:, :-1])
    loss, tokens = cross_entropy(logits, batch[1][:, 1:], 0)
    (loss / (divisor or tokens)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# %%
def two_halves():
    """The summed gradient, with the common divisor, and the averaged one."""
    shard = shard_batch(batch, dist.get_rank(), dist.get_world_size())
    tokens = (shard[1][:, 1:] != 0).sum()
    dist.all_reduce(tokens)
    added, averaged = (gradient_of(shard, n) for n in (tokens, None))
    dist.all_reduce(added)
    dist.all_reduce(averaged)
    return added, averaged / 2


first, second = launch(two_halves, 2)
whole = gradient_of(batch)
for name, gradient in zip(("added", "averaged"), first, strict=True):
    off = ((gradient - whole).abs().max() / whole.abs().max()).item()
    print(f"{name}: off by {off:.0e} of the largest entry")
    assert off < 1e-14 if name == "added" else off > 1e-2
assert torch.equal(first[0], second[0])

# %% [markdown]
# Added up, the two make the gradient of one process, up to rounding. Averaged, they are far off, because the first
# process has 21 real targets here, and the second 6. From outside you would not notice, because a model with averaged
# gradients trains. So make this check once: on one batch, without dropout, against one process.

# %% tags=["quiz"]
quiz.one_choice(
    "Four processes each divide by their own number of targets and average their gradients. When is the result that of one process with the whole batch?",
    quiz.wrong(
        "Always: a mean of means is a mean",
        "Only if every mean is over the same number. A shard with few targets would count as much as one with many.",
    ),
    quiz.right(
        "When all four have equally many real targets",
        "Yes. With sentences of different lengths that is chance.",
    ),
    quiz.wrong(
        "When all four have equally many sentences",
        "The loss is a sum over *targets*, and sentences have different numbers of them.",
    ),
    quiz.wrong(
        "Never",
        "If all have equally many real targets, the four divisors are each a quarter of the common one.",
    ),
)

# %% [markdown]
# ## How is a sum made?
#
# If each of $N$ processes sent its whole gradient to all others, each would receive $N - 1$ of them. For the paper's
# base model (63 million numbers of 4 bytes) and 8 devices that is 1.8 gigabytes a step. A **parameter server**, which
# collects all gradients, would receive as many at its one connection. It can be done with less.
#
# Put the processes into a ring, and cut the gradient into $N$ chunks. In the first round, process $p$ sends chunk $p$
# to the next process, which adds it to its own chunk $p$. In every later round, each process passes on the chunk to
# which it has just added. After $N - 1$ rounds each chunk has been through all processes, so each process has a
# complete one. The sum is scattered over all: this phase is a **reduce-scatter**. In $N - 1$ more rounds the complete
# chunks go around, until every process has gathered all: an **all-gather**.
#
# Here are three processes, each with three numbers: $(1, 2, 3)$, $(10, 20, 30)$ and $(100, 200, 300)$. In the first
# round each rank sends the chunk in red:


# %% the ring tags=["hide-input"]
def ring(gradients, rounds=None):
    """What each has after all rounds, or some, and how many numbers each sent."""
    n = len(gradients)
    chunks = [np.array_split(gradient.copy(), n) for gradient in gradients]
    sent = [0] * n
    for turn in range(2 * (n - 1) if rounds is None else rounds):
        adding = turn < n - 1  # later, complete chunks go around
        moving = []
        for p in range(n):
            which = (p - turn) % n  # the chunk that p sends in this round
            moving.append((p, which, chunks[p][which].copy()))
        for p, which, chunk in moving:
            sent[p] += len(chunk)
            to = chunks[(p + 1) % n]
            to[which] = to[which] + chunk if adding else chunk
    return [np.concatenate(own) for own in chunks], sent


three = [np.array([1.0, 2, 3]) * 10**p for p in range(3)]

# %% tags=["plot"] mystnb={"image": {"alt": "Three ranks in a ring, in the first round. Rank 0 sends its first number, 1, to rank 1; rank 1 sends its second, 20, to rank 2; rank 2 sends its third, 300, to rank 0."}}
from classroom.diagram import Diagram

drawing = Diagram(6.2, 2.3)
places = {0: (1.3, 1.85), 1: (4.9, 1.85), 2: (3.1, 0.4)}
for rank, values in enumerate(([1, 2, 3], [10, 20, 30], [100, 200, 300])):
    x, y = places[rank]
    colors = [f"{plots.RED}33" if n == rank else plots.BLANK for n in range(3)]
    drawing.cells(x - 0.63, y, values, colors, 0.42)
    drawing.text(x, y - 0.3, f"rank {rank}", color=plots.GREY, size=9)
for start, end, sent, at in (
    ((2.05, 1.85), (4.1, 1.85), "1", (3.1, 2.03)),
    ((4.9, 1.4), (3.85, 0.5), "20", (4.65, 0.85)),
    ((2.35, 0.5), (1.3, 1.4), "300", (1.5, 0.85)),
):
    drawing.arrow(start, end, color=plots.RED)
    drawing.text(*at, sent, color=plots.RED)
plt.show()

# %% [markdown]
# Here are all four rounds, with complete sums in blue:

# %% tags=["plot"] mystnb={"image": {"alt": "Five columns, at the start and after each of four rounds, with a row of three numbers for each of three ranks. At the start 1, 2, 3; 10, 20, 30; 100, 200, 300. After round 1 rank 0 has 303 in its third number, rank 1 has 11 in its first, rank 2 has 220 in its second. After round 2 rank 0 has 222, rank 1 has 333 and rank 2 has 111, each complete. After round 3 each has two complete numbers, after round 4 all three."}}
drawing = Diagram(7.9, 2.2)
for rounds in range(5):
    left = 0.75 + 1.45 * rounds
    title = f"round {rounds}" if rounds else "start"
    drawing.text(left + 0.6, 2.0, title, color=plots.GREY, size=9)
    for rank, numbers in enumerate(ring(three, rounds)[0]):
        colors = [
            f"{plots.BLUE}33" if number == whole else plots.BLANK
            for number, whole in zip(numbers, sum(three), strict=True)
        ]
        shown = [f"{number:.0f}" for number in numbers]
        drawing.cells(left, 1.55 - 0.45 * rank, shown, colors, 0.41)
for rank in range(3):
    drawing.text(0.65, 1.55 - 0.45 * rank, f"rank {rank}", at="right", size=9)
drawing.text(3.0, 0.2, "reduce-scatter", color=plots.GREY, size=9)
drawing.text(5.9, 0.2, "all-gather", color=plots.GREY, size=9)
plt.show()

# %% [markdown]
# **By hand.** Follow the first numbers, the left column of each block. Round 1: rank 0 sends its 1 to rank 1, which has
# 11 now. Round 2: rank 1 sends 11 to rank 2, which has 111: complete. Round 3: rank 2 sends it to rank 0, which keeps
# it instead of its own. Round 4: rank 0 hands it on to rank 1. The other two numbers do the same, each starting one
# rank further on. Each chunk is completed on one rank and then copied, so all ranks have the same bits; one process
# adds in another order, and may differ in the last digit.
#
# **Predict first.** In each round a process sends one $N$-th of its gradient. How much does it send in all, if there
# are 2 processes? If there are 100?

# %% sums, and what each sends tags=["hide-input"]
sums, sent = ring(three)
print(sums[0], sums[1], sums[2], "each has sent", sent[0], "numbers")
assert all(np.array_equal(each, sum(three)) for each in sums)
for n in (2, 8, 100):
    sums, sent = ring([np.ones(1000) for _ in range(n)])
    assert (
        np.array_equal(sums[-1], np.full(1000, n))
        and sent[0] == 2 * (n - 1) * 1000 // n
    )
    print(f"{n:4} processes: each sends {sent[0] / 1000:.3f} times its gradient")

# %% [markdown]
# Each of the two phases has $N - 1$ rounds of one $N$-th. So a process sends $(N - 1) / N$ times its gradient in each
# phase, and $2 (N - 1) / N$ times in all: once with two processes, and never quite twice with more. No all-reduce can
# send less, unless the network itself adds ([Patarasuk and Yuan, 2009](https://doi.org/10.1016/j.jpdc.2008.09.002)).
# What grows is the number of rounds, $2 (N - 1)$. Each round takes a fixed **latency**, plus the chunk's bytes divided
# by the **bandwidth** of the connection.

# %% tags=["quiz"]
quiz.number(
    "The base model has 63 million parameters of 4 bytes. How many megabytes does each of 8 processes send in one step, with a ring? To the nearest one.",
    2 * 7 / 8 * 63 * 4,
    tolerance=1,
    feedback="Yes: 252 megabytes of gradient, times 2 · 7/8.",
    mistakes=[
        (
            7 * 63 * 4,
            "That is what each would *receive* if everyone sent all to all.",
        ),
        (
            63 * 4,
            "That is one gradient. In the ring, seven eighths of it travel twice.",
        ),
        (2 * 7 / 8 * 63, "These are millions of numbers. Each has 4 bytes."),
    ],
    otherwise="The gradient has as many bytes as the parameters; multiply by 2 (N - 1) / N.",
)

# %% [markdown]
# How long does an all-reduce take? Here is one between two processes of the machine that wove this page:


# %% an all-reduce, timed tags=["hide-input"]
def time_all_reduce():
    """The least seconds of an all-reduce, by how many numbers it sums."""
    dist.all_reduce(torch.ones(1))  # the first takes longer
    least = {}
    sizes = (10, 200), (10_000, 200), (256 * 1024, 50), (10_000_000, 9)
    for size, rounds in sizes:
        numbers, times = torch.ones(size), []
        for _ in range(rounds):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(numbers)
            times.append(time.perf_counter() - start)
        least[size] = min(times)
    return least


seconds = launch(time_all_reduce, 2)[0]
for size, taken in seconds.items():
    bandwidth = 4 * size / taken / 1e9
    print(f"{size:>10,} numbers {1000 * taken:6.2f} ms {bandwidth:9.4f} GB/s")
assert seconds[10_000] < 4 * seconds[10]
assert seconds[256 * 1024] < 26 * seconds[10_000]  # at a greater bandwidth

# %% [markdown]
# 10,000 numbers take about as long as ten: nearly all of that is latency. So gradients should not travel one by one.
# [Going further](#what-does-a-message-cost) puts latency and bandwidth into numbers.

# %% [markdown]
# ## Ready-made engines
#
# Splitting the batch is called **data parallelism**, and PyTorch has two engines for it. **Distributed data parallel**
# (DDP) keeps the whole model in every process, and begins to send the gradients of the last layers while the backward
# pass still computes those of the first (**overlap of communication and computation**). **Fully sharded data parallel**
# (FSDP) gives each process a shard of the model, too: a part of the parameters, the gradients and Adam's two moments.
#
# FSDP takes the two phases of the ring apart. Before a layer is used, an all-gather gives every process the layer's
# full parameters. Afterwards each process frees those outside its shard, so the backward pass gathers the layer again.
# Each process then has the full layer's gradient from its own rows, and a reduce-scatter leaves it the sum over all
# processes for its shard. Adam treats each number by itself, so it needs only that shard, and moments for it. A step of
# two layers on one device (the times are invented):

# %% tags=["plot"] mystnb={"image": {"alt": "One device in a training step of two layers under FSDP, time to the right, with lanes for network, compute and memory. Forward pass: all-gather 1, then all-gather 2 during forward 1, then forward 2 and the loss; the full parameters of each layer are freed after its forward. Backward pass: all-gather 2, then all-gather 1 during backward 2, reduce-scatter 2 during backward 1, reduce-scatter 1, and Adam on the own shard; the full parameters of each layer are freed after its backward. The full parameters of both layers take up memory at once only during forward 1 and during backward 2."}}
lanes = {"network": 1.7, "compute": 1.12, "layer 1": 0.62, "layer 2": 0.26}
forward = [
    ("network", "all-\ngather 1", 0, 0.85),
    ("network", "all-\ngather 2", 0.85, 1.7),
    ("compute", "forward 1", 0.85, 1.8),
    ("compute", "forward 2", 1.8, 2.75),
    ("compute", "loss", 2.75, 3.35),
    ("layer 1", "all of layer 1", 0, 1.8),
    ("layer 2", "all of layer 2", 0.85, 2.75),
]
backward = [
    ("network", "all-\ngather 2", 0, 0.85),
    ("network", "all-\ngather 1", 0.85, 1.7),
    ("compute", "backward 2", 0.85, 2.25),
    ("network", "reduce-\nscatter 2", 2.25, 3.1),
    ("compute", "backward 1", 2.25, 3.65),
    ("network", "reduce-\nscatter 1", 3.65, 4.5),
    ("compute", "Adam,\nown shard", 4.5, 5.5),
    ("layer 1", "all of layer 1", 0.85, 3.65),
    ("layer 2", "all of layer 2", 0, 2.25),
]
panels = [("forward pass", forward, 2.4), ("backward pass and update", backward, 0)]
drawing = Diagram(6.6, 4.75)
for title, steps, bottom in panels:
    drawing.text(0.1, bottom + 2.15, title, at="left", size=13)
    for lane, y in [("network", 1.7), ("compute", 1.12), ("memory", 0.44)]:
        drawing.text(0.1, bottom + y, lane, plots.GREY, "left")
    for lane, label, start, end in steps:
        x, width = 1 + (start + end) / 2, end - start - 0.05
        y, height = bottom + lanes[lane], 0.3 if "layer" in lane else 0.5
        color = {"1": plots.BLUE, "2": plots.GOLD}.get(label[-1], plots.GREY)
        drawing.box(x, y, label, width, height, color)
        if "layer" in lane:
            drawing.text(1.05 + end, y, "freed", plots.GREY, "left")
    drawing.text(5.55, bottom + 2.15, "time", plots.GREY, "right")
    drawing.arrow((5.65, bottom + 2.15), (6.47, bottom + 2.15))
plt.show()

# %% [markdown]
# While the device computes with one layer, the network gathers the next, or carries gradients away. So in a step of one
# batch, at most two layers lie whole in memory. If the network is fast enough, the device waits only for the first
# all-gather of each pass and the last reduce-scatter. The embeddings belong to no layer: they are gathered first and
# stay whole through both passes.
#
# Training takes 16 bytes for each parameter: 4 for itself, 4 for its gradient and 8 for the moments ([chapter
# 20](20_one_gpu.ipynb#what-if-it-does-not-fit)). With FSDP a process keeps about $16 / N$ bytes for each parameter. A
# model of 8 billion parameters needs 128 GB, more than a GPU of 80 GB holds, and over eight GPUs $128 / 8 = 16$ GB on
# each. To this come the gathered layers, and the activations, which FSDP does not shard. Steps of several batches need
# [more](#what-does-accumulation-cost-under-fsdp).
#
#

# %% [markdown]
# ### What lies where?
#
# One can also shard less. The **Zero Redundancy Optimizer** (ZeRO; [Rajbhandari and others,
# 2020](https://arxiv.org/abs/1910.02054)) has three stages: ZeRO-1 shards Adam's moments, ZeRO-2 the gradients as well,
# and ZeRO-3, which is what FSDP does, the parameters, too. Of the 16 bytes for each parameter, each of four devices
# keeps:

# %% tags=["plot"] mystnb={"image": {"alt": "Bytes for each parameter that one of four devices keeps. DDP: parameters 4, gradients 4, moments 8, together 16. ZeRO-1: 4, 4 and 2, together 10. ZeRO-2: 4, 1 and 2, together 7. ZeRO-3, FSDP: 1, 1 and 2, together 4."}}
whole = {"parameters": 4, "gradients": 4, "moments": 8}
sharded_parts = {
    "DDP": (),
    "ZeRO-1": ("moments",),
    "ZeRO-2": ("moments", "gradients"),
    "ZeRO-3, FSDP": tuple(whole),
}
colors = dict(zip(whole, (plots.BLUE, plots.TEAL, plots.RED), strict=True))
figure, axes = plt.subplots(figsize=(6.4, 2.4), layout="constrained")
bytes_kept = {}
for row, (name, parts) in enumerate(sharded_parts.items()):
    left = 0.0
    for part, size in whole.items():
        size = size / 4 if part in parts else size
        axes.barh(row, size, 0.6, left, color=colors[part], alpha=0.75)
        label = part if size > 3 else ""
        axes.text(
            left + size / 2, row, label, color="white", ha="center", va="center"
        )
        left += size
    bytes_kept[name] = left
    axes.text(left + 0.2, row, f"{left:g}", va="center")
axes.set_yticks(range(4), list(sharded_parts))
axes.invert_yaxis()
axes.set(xlim=(0, 17.5), xlabel="bytes a parameter, on one of four devices")
plt.show()
assert list(bytes_kept.values()) == [16, 10, 7, 4]

# %% [markdown]
# With one batch a step, the first two stages send no more bytes than DDP. The gradients are reduce-scattered, each
# device updates its quarter, and the new parameters are all-gathered: these are the two phases of the all-reduce that
# DDP makes anyway. Only ZeRO-3 communicates more, because it gathers the parameters twice.

# %% [markdown]
# ### The trainer
#
# By default both engines *average* the $N$ gradients, which gives an $N$-th of the sum that we need. So each process
# makes its own gradient $N$ times as large: it divides its loss by an $N$-th of all targets. In the first example two
# processes have summed losses of 12 and 8, and 8 targets in all. Each divides by $8 / 2 = 4$. The mean of $12 / 4 = 3$
# and $8 / 4 = 2$ is 2.5, the loss of the whole batch.
#
# Our function `replicate` wraps a model in DDP, which first sends the parameters of rank 0 to the others (a
# **broadcast**). Otherwise equal gradients would move different models, and no error would say so.
#
# Our function `shard` wraps a model in FSDP. Because the model may not fit on one device, rank 0 builds it in the
# computer's own memory, the others on the **meta device**, without values, and rank 0 sends each its part.

# %% tags=["hide-input", "export"] module="distributed"
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch.distributed as dist
from dotformer.devices import FastTrainer, layers_of
from dotformer.support.progress import Batch, Row
from dotformer.training import TrainingConfig, evaluate
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils import swap_tensors


def replicate(model: nn.Module) -> nn.Module:
    """A model of which each process has a copy; gradients become their mean.

    The backward pass sends those that are ready while it computes the others. All
    begin with the parameters of rank 0. After Li and others (2020).
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
    """The other tensor, as a parameter if the first is one."""
    return nn.Parameter(other) if isinstance(tensor, nn.Parameter) else other


# %% [markdown]
# When a step adds up the gradients of several batches, `no_sync`, folded, holds them back until the last.


# %% tags=["hide-input", "export"] module="distributed"
@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Let a model's gradients add up in each process, and send none.

    The next backward pass outside sends their sums. Till then a shard's gradients
    are whole, and its layers stay gathered from one batch to the next.
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
    """The sum of a number over all processes, in float64."""
    summed = number.double()
    dist.all_reduce(summed)
    return summed


def evaluate_together(
    model: nn.Module, batches: Iterable[Batch], pad_id: int = 0
) -> Row:
    """`evaluate`, each process on its rows of each batch; all get the whole result."""
    who = dist.get_rank(), dist.get_world_size(), pad_id
    mine = (shard_batch(batch, *who) for batch in batches)
    return evaluate(model, mine, pad_id, all_reduce)


# %% [markdown]
# `DistributedTrainer` is [chapter 20](20_one_gpu.ipynb#a-trainer-that-does-not-wait)'s `FastTrainer` with the model in
# an engine and three methods changed. `all_reduce`, folded, returns the sum.


# %% tags=["export"] module="distributed"
class DistributedTrainer(FastTrainer):
    """Several processes train one model, each on its rows of each batch.

    The processes are a group; each has a copy of the model, or a shard of it. Rank
    0 writes into the folder, which all must see. Any number of processes goes on
    with what any other has begun.
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


# %% [markdown]
# Do both engines compute what one process computes, and what do they send? With each engine, two processes make a step
# of a small model. The output has these rows, all but *error* in multiples of the parameters' bytes in float32:
#
# - *allreduce*, *allgather* and *reducescatter* count the whole tensor of each call.
# - *kept* is what one process keeps of the parameters.
# - *sent* is what one process would send in a ring. With $N = 2$ that is $2 (N - 1) / N = 1$ times what is all-reduced,
#   and $(N - 1) / N = 1/2$ of what is gathered or scattered.
# - *error* is how far the gradient is from that of one process. In float32 it is rounding, in bfloat16 about as much as
#   [in one process](20_one_gpu.ipynb#a-ladder).
#
# **Predict first.** FSDP keeps half of the model in each of the two processes. How much does it send, where DDP sends
# as many bytes as the model has?

# %% a counter of bytes tags=["hide-input"]
from torch.utils._python_dispatch import TorchDispatchMode


class Traffic(TorchDispatchMode):
    """Counts the bytes of the tensors that processes sum, gather and scatter."""

    def __init__(self):
        super().__init__()
        self.bytes = {"allreduce": 0, "allgather": 0, "reducescatter": 0}

    def __torch_dispatch__(self, operation, types, given=(), named=None):
        library, _, name = str(operation).partition(".")
        for collective in self.bytes:
            if library == "c10d" and collective in name.replace("_", ""):
                full = given[1 if collective == "reducescatter" else 0]  # no shards
                tensors = full if isinstance(full, list) else [full]
                self.bytes[collective] += sum(tensor.nbytes for tensor in tensors)
        return operation(*given, **(named or {}))


# %% one step of each engine, counted tags=["hide-input"]
class SendsEach(DistributedTrainer):
    """Sends gradients after every batch, and not with the last one only."""

    def accumulate_gradients(self, batches, tokens):
        share = tokens / self.world_size
        summed = super(DistributedTrainer, self).accumulate_gradients(
            batches, share
        )
        return all_reduce(summed)


def one_step(count=1, kind=DistributedTrainer, **options):
    """What a step moves and keeps, over the parameters' bytes, and its gradient.

    The step is made of `count` batches; the options are those of the trainer.
    """
    torch.manual_seed(0)
    config = TransformerConfig(
        1000, 1000, 2, 2, d_model=64, num_heads=4, d_ff=256, dropout=0.0
    )
    model, rows = Transformer(config), torch.randint(3, 1000, (8, 17))
    rows[5:, 9:] = 0  # the second process has the short ones
    full = sum(p.nbytes for p in model.parameters())
    plan = TrainingConfig(max_grad_norm=1e9)
    trainer, sharded = kind(model, plan, **options), "sharded" in options
    with Traffic() as traffic:
        trainer.train_step([(some, some) for some in rows.chunk(count)], 0.0)
    gradients, kept = [], 0
    for p in trainer.model.parameters():
        kept += (p.to_local() if sharded else p).nbytes
        gradients.append((p.grad.full_tensor() if sharded else p.grad).flatten())
    moved = {name: n / full for name, n in traffic.bytes.items()}
    return moved | {"kept": kept / full}, torch.cat(gradients)


[(single, whole_gradient)] = launch(one_step, 1)
engines = {
    "DDP": {},
    "FSDP": {"sharded": True},
    "FSDP in bf16": {"sharded": True, "dtype": torch.bfloat16},
}
traffic, errors_of = {}, {}


def show_engines(count):
    """Print what a step of `count` batches moves with each engine."""
    for name, options in engines.items():
        (row, other), _ = launch(partial(one_step, count, **options), 2)
        one_way = row["allgather"] + row["reducescatter"]
        row["sent"] = (2 * row["allreduce"] + one_way) / 2
        traffic[name, count] = row
        errors_of[name, count] = (
            (other - whole_gradient).norm() / whole_gradient.norm()
        ).item()
    batches = f"{count} batches a step" if count > 1 else ""
    print(f"{batches:16}" + "".join(f"{name:>14}" for name in engines))
    for name in traffic["DDP", count]:
        found = [traffic[engine, count][name] for engine in engines]
        print(f"{name:16}" + "".join(f"{share:14.2f}" for share in found))
    errors = "".join(f"{errors_of[engine, count]:14.0e}" for engine in engines)
    print(f"{'error':16}{errors}")


print("multiples of the parameters' bytes; error as a share of the gradient")
show_engines(1)


# %% tags=["proof"]
def check_engines(count, gathered):
    """A step of `count` batches moves what the text says."""
    moved, full = traffic["FSDP", count], traffic["DDP", count]
    assert round(moved["allgather"], 2) == gathered
    assert round(moved["reducescatter"], 2) == round(full["allreduce"], 2) == 1
    assert round(moved["kept"], 2) == 0.5 and full["allgather"] == 0
    half = traffic["FSDP in bf16", count]
    assert half["reducescatter"] == moved["reducescatter"]
    assert round(moved["allgather"] / half["allgather"], 3) == 2
    assert max(errors_of["DDP", count], errors_of["FSDP", count]) < 1e-6
    assert errors_of["FSDP in bf16", count] < 0.06


check_engines(1, 1.65)
assert round(traffic["FSDP", 1]["sent"], 2) == 1.32

# %% [markdown]
# FSDP gathers each layer twice. The embeddings, 35.5 percent of this model, belong to no layer: they stay gathered
# through both passes, so they are gathered once. That makes $2 \cdot 0.645 + 0.355 = 1.65$.
#
# The gradients add 1, and each of two processes sends half: $(1.65 + 1) / 2 = 1.32$ times the bytes of the parameters.
# DDP sends the gradients alone, 1. With small embeddings FSDP would send nearly $(2 + 1) / 2 = 1.5$. In bfloat16 it
# gathers half as many bytes, but still sums gradients in float32. It sends 0.91, less than DDP in float32.

# %% [markdown]
# ## What goes into a checkpoint?
#
# As in [chapter 11](11_training.ipynb#stop-halfway), a checkpoint keeps parameters, optimiser state, random state,
# epoch and batch, and history. To save, the processes gather one parameter after the other, and rank 0 writes them
# whole. To load, each process reads the file and keeps its shard. So nothing in the file has the shape of a shard, and
# **any number of processes may go on from there**.
#
#
#
# ### Do they train the same model?
#
# Without dropout, train a model that reverses sentences, for 20 steps: in one process, in two that each have the full
# model, and in three that each have a shard.

# %% one, two and three processes tags=["hide-input"]
import os
from pathlib import Path

from dotformer.training import TrainingConfig, evaluate, pair_batches

torch.manual_seed(0)
sentences = [
    torch.randint(3, 30, (n,)).tolist() for n in torch.randint(2, 9, (61,))
]
pairs = [(one, [1, *one[::-1], 2]) for one in sentences]


def run(trainer_of, folder=None, accident=False):
    """The history of a short training, with an accident on the first attempt."""
    validate = partial(evaluate, batches=list(pair_batches(pairs[:20])))
    config = TrainingConfig(
        steps=20, learning_rate=1e-2, warmup_steps=5, validate_every=5
    )

    def batches(epoch):
        for n, batch in enumerate(pair_batches(pairs, epoch, max_tokens=20), 1):
            first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
            if accident and n == 13 and first_attempt and dist.get_rank() == 1:
                Path(folder, "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)  # no chance to say goodbye
            yield batch

    torch.manual_seed(0)
    trainer = trainer_of(Transformer(shape), config)
    if accident:  # count what each rank computes, over both attempts
        criterion = trainer.criterion

        def counted(*given):
            with Path(folder, "steps").open("a") as file:
                file.write(f"{dist.get_rank()} ")
            return criterion(*given)

        trainer.criterion = counted
    return trainer.train(batches, validate, folder, progress=False)


sharded = partial(DistributedTrainer, sharded=True)
histories = {
    "1 process": run(FastTrainer),
    "2, each the full model": launch(partial(run, DistributedTrainer), 2)[0],
    "3, each a shard": launch(partial(run, sharded), 3)[0],
}


def compare(name):
    """Print the validation losses of a run; they are those of the first."""
    losses = [row["validation_loss"] for row in histories[name]]
    print(name, "\n  ", *(f"{loss:.6f}" for loss in losses))
    for loss, row in zip(losses, histories["1 process"], strict=True):
        assert abs(loss - row["validation_loss"]) < 1e-5


print("validation loss after steps 5, 10, 15 and 20")
for name in histories:
    compare(name)

# %% [markdown]
# They agree up to rounding: only the order of adding differs.
#
# ### What if one of them dies?
#
# All devices wait for the slowest, the **straggler**. (If each updated without waiting, in *asynchronous* training, it
# would use gradients of parameters already replaced, *stale* ones, and the run would no longer be that of one process.)
# And the more there are, the more often one fails. On 16,384 of them the training of Llama 3 was interrupted
# unexpectedly 419 times in 54 days, once every three hours ([Grattafiori and others,
# 2024](https://arxiv.org/abs/2407.21783), section 3.3.4). A process that is killed says nothing, but its connections
# close, and the others stop with an error (with gloo; with NCCL they may wait). One that hangs does not even close
# them, and the others wait, with our settings ten minutes. So somebody has to watch: when one fails, stop the rest,
# start all again, and let them go on from the last checkpoint.
#
# Here rank 1 kills itself in step 13, and the last checkpoint was made after step 10.
#
# **Predict first.** How far from the losses above will this run end?

# %% a process killed, and what came out tags=["hide-input"]
with TemporaryDirectory() as folder:
    killed = partial(run, DistributedTrainer, folder, accident=True)
    histories["2, one of them killed"] = launch(killed, 2, restarts=1)[0]
    assert Path(folder, "killed").exists()
    steps_of_rank_0 = Path(folder, "steps").read_text().split().count("0")
    assert steps_of_rank_0 < 25  # 13 and 10; from nothing 33
for name in ("1 process", "2, one of them killed"):
    compare(name)

# %% [markdown]
# No farther than the other runs, because the checkpoint keeps all that the steps depend on. Steps 11 and 12 were made
# twice. One process could have gone on alone, because the whole batch is dealt out to whoever is there, with the same
# results up to rounding.
#
#
#
# How often should you save? Let a save take $c$ minutes and a failure come every $M$ minutes on average, with $M$ much
# larger. Saving every $T$ minutes costs a share $c / T$ of the time. Every $M$ minutes a failure loses half an interval
# on average, a share $T / (2M)$. The product of both shares does not depend on $T$, so their sum is smallest where they
# are equal, at $T = \sqrt{2 c M}$ (**Young and Daly's rule**). With one minute to save and a failure every three hours
# that is $\sqrt{2 \cdot 1 \cdot 180} \approx 19$ minutes.
#
# ## The same command
#
# PyTorch's `torchrun` starts a program several times, tells each copy its rank, and watches them.
# `python -m dotformer train` takes a `DistributedTrainer` if it finds a rank in its environment variables. The commands
# start two processes, two that each keep a shard, and eight, one for each GPU, which are all started again when one
# fails, at most three times:
#
# ```bash
# torchrun --standalone --nproc-per-node 2 \
#     -m dotformer train configs/grammar.toml --device cpu
# torchrun --standalone --nproc-per-node 2 \
#     -m dotformer train configs/grammar.toml --device cpu --shard
# torchrun --standalone --nproc-per-node 8 --max-restarts 3 \
#     -m dotformer train configs/grammar.toml
# ```
#
# `max_tokens` stays the size of the *whole* batch. So the result does not depend on the number of processes, except for
# rounding and for dropout, where each rank draws its own numbers. (With the same numbers, row $n$ of every shard would
# lose the same entries, and the noise of the shards would no longer average out.)

# %% tags=["quiz"]
quiz.one_choice(
    "A run on 8 GPUs used `max_tokens = 24000`. You repeat it on 16 GPUs with the same file. What becomes of the batch?",
    quiz.wrong(
        "It has 48,000 tokens: every GPU takes 3,000 as before",
        "Many programs do this: there the number is meant for one device. Here it is the whole batch, dealt out to whoever is there.",
    ),
    quiz.right(
        "It has 24,000 tokens, and every GPU takes half of what it took",
        "Yes, so the run computes the same, except for rounding and dropout. But each device has less to compute between two rounds of communication.",
    ),
    quiz.wrong(
        "It has 24,000 tokens, and the gradient is half as large",
        "The gradients of all are added, and divided by the targets of all, which are as many as before.",
    ),
)

# %% [markdown]
# ## Are two twice as fast?
#
# Here each process computes with one thread the gradient of a model of 4 million parameters: one process from a whole
# batch, then two from a half each. So the total batch is fixed, which is called **strong scaling**. With a fixed batch
# per process it would be **weak scaling**. The speed-up divided by the number of processes is the **scaling
# efficiency**.
#
# The two do it in three ways: without communication; with an all-reduce when the backward pass is done; and in
# **buckets**: the backward pass starts at the last layer, and whenever 5 megabytes of gradients are ready, they are
# sent. (PyTorch's hold 25 megabytes, but for a smaller first one.)
#
# **Predict first.** How much faster are two, with a batch of 32 sentences? With one of 4?


# %% the clock tags=["hide-input"]
def race(sentences, rounds=24):
    """Milliseconds for a gradient, for each way: the quartiles of some rounds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = TransformerConfig(
        1000, 1000, 2, 2, d_model=256, num_heads=4, d_ff=1024, dropout=0.0
    )
    rows = torch.randint(3, 1000, (sentences // dist.get_world_size(), 33))
    ways = {
        name: DistributedDataParallel(Transformer(config), bucket_cap_mb=megabytes)
        for name, megabytes in (("at the end", 1000), ("in buckets", 5))
    }
    ways = {"no all-reduce": ways["in buckets"].module} | ways
    times = {name: [] for name in ways}
    for name in [*ways] * rounds:
        dist.barrier()
        start = time.perf_counter()
        loss, tokens = cross_entropy(ways[name](rows, rows[:, :-1]), rows[:, 1:])
        (loss / tokens).backward()
        dist.barrier()
        times[name].append(1000 * (time.perf_counter() - start))
    return {name: quantiles(taken[1:], n=4) for name, taken in times.items()}


# %% [markdown]
# We ran this on an idle machine (`python -m benchmarks.two_processes`):

# %% how much faster tags=["hide-input"]
from classroom.measured import measured

raced, gains = measured("two_processes")["found"], {}
for sentences, (one, two) in raced.items():
    rows = {"one process": one["no all-reduce"]} | {
        f"two, {way}": two[way] for way in two
    }
    print(f"{sentences} sentences    speed  ms a gradient (quartiles)")
    for name, (low, middle, high) in rows.items():
        gains[sentences, name] = gain = one["no all-reduce"][1] / middle
        print(f"  {name:18} x {gain:.2f} {middle:4.0f} ms ({low:.0f}-{high:.0f})")
assert (
    1.5 < gains["32", "two, in buckets"] < 2 > gains["32", "two, at the end"] > 1.5
)
assert max(gains["4", "two, in buckets"], gains["4", "two, at the end"]) < 1
assert (
    2 < gains["32", "two, no all-reduce"] < 2.1
    and gains["4", "two, no all-reduce"] < 1.5
)

# %% [markdown]
# With 32 sentences two are twice as fast without communication, within the spread, and less than twice with it: with an
# all-reduce at the end the scaling efficiency is about 90 percent.
#
# With 4 sentences two that communicate are *slower* than one, an efficiency of about 42 percent. DDP adds
# $61 - 38 = 23$ ms, about as much as with 32 sentences, since there are as many gradients. (Some 7 ms even one process
# pays, by itself.) But now these 23 ms follow 38 ms of computing, and not 167.
#
# Even without communication, two are only 1.31 times as fast as one. Part of a step takes as long for few sentences as
# for many. If a share $s$ of the time cannot be divided, no number of devices is more than $1 / s$ times as fast
# (**Amdahl's law**). One process takes 293 ms more for 28 more sentences. If time grows in a straight line, 4 take 42
# of the 50 ms, and 8 are fixed, so two can be $50 / (8 + 42 / 2) = 1.7$ times as fast. But for 2 sentences each of the
# two takes 38 ms, and not 29: below 4 the time falls more slowly, or the two disturb each other.
#
# Buckets make no clear difference here, perhaps because overlap needs free hardware, and both processes may be
# computing.

# %% tags=["proof"]
one, two = raced["32"]
grew = two["at the end"][1] - two["no all-reduce"][1]
assert round(grew) == 22
alone, shared = raced["4"]
assert round(alone["at the end"][1] - alone["no all-reduce"][1]) == 7
few, many = alone["no all-reduce"][1], one["no all-reduce"][1]
slope = (many - few) / 28
assert 8 < few - 4 * slope < 9 and 29 < few - 2 * slope < 30
assert round(shared["no all-reduce"][1]) == 38
reached = [gains[batch, "two, at the end"] / 2 for batch in ("32", "4")]
assert np.allclose(reached, [0.905, 0.415], atol=0.01)

# %% [markdown]
# ## Share a layer
#
# If one layer is too large for a device, or a batch too small to be split further, a *matrix* can be shared (**tensor
# parallelism**, [Shoeybi and others, 2019](https://arxiv.org/abs/1909.08053)).
#
# Take the feed-forward network, $\operatorname{relu}(x W_1) \, W_2$. Cut $W_1$ between columns (**column-parallel**):
# each device then computes half of the hidden numbers, and applies the ReLU to them by itself. Cut between rows, it
# would give each device only a summand of every hidden number. These would have to be added before the ReLU, because
# the ReLU of a sum is not the sum of the ReLUs. Cut $W_2$ between rows (**row-parallel**). Each device then needs only
# its own hidden numbers, and computes a summand of the output:
#
# $$\operatorname{relu}(x W_1) \, W_2 = \operatorname{relu}(x W_1^{(1)}) \, W_2^{(1)} + \operatorname{relu}(x W_1^{(2)}) \, W_2^{(2)}$$
#
# **Predict first.** How often must the two communicate in a forward pass? And in a backward pass?

# %% tags=["plot"] mystnb={"image": {"alt": "x goes to two devices. Each has half of the columns of W_1, a ReLU, and half of the rows of W_2. Their two outputs are added up by one all-reduce to the output."}}
drawing = Diagram(7.4, 2.2)
drawing.box(0.45, 1.1, "x", 0.5)
for device, (y, color) in enumerate([(1.65, plots.BLUE), (0.55, plots.RED)]):
    drawing.arrow((0.7, 1.1), (0.95, 1.1), (0.95, y), (1.25, y))
    drawing.box(2.05, y, "half the columns\nof $W_1$", 1.6, 0.62, color)
    drawing.arrow((2.85, y), (3.15, y), color=color)
    drawing.box(3.5, y, "ReLU", 0.7, 0.62, color)
    drawing.arrow((3.85, y), (4.15, y), color=color)
    drawing.box(4.95, y, "half the rows\nof $W_2$", 1.6, 0.62, color)
    drawing.arrow((5.75, y), (6.1, y), (6.1, 1.1 + (0.1 if y > 1.1 else -0.1)))
    drawing.text(
        2.05, y + 0.43 if y > 1.1 else y - 0.43, f"device {device}", color=color
    )
drawing.sum(6.1, 1.1)
drawing.arrow((6.2, 1.1), (6.7, 1.1))
drawing.text(7.02, 1.1, "output")
drawing.text(6.35, 0.7, "all-reduce", color=plots.GREY, at="left", size=9)
plt.show()

# %% [markdown]
# Once in each. The summands of the output are added up on the way forward. Both devices have used $x$, so on the way
# back each has only its part of the gradient of $x$, and these parts are added up.
#
# **By hand.** Let $x = 3$, $W_1 = (1, 2)$ and $W_2 = (4, 5)^\top$. The first device computes $3 \cdot 1 \cdot 4 = 12$
# and the second $3 \cdot 2 \cdot 5 = 30$; their sum, 42, is the output. Back, let the gradient at the output be 2. The
# first finds $2 \cdot 4 \cdot 1 = 8$ for $x$, and the second $2 \cdot 5 \cdot 2 = 20$. One process would have found 28,
# their sum.
#
# `dist.all_reduce` has no backward pass, so we write two functions that have one, both folded. `SumForward` sums
# forward and passes gradients on unchanged: the loss is computed from the sum, so each summand has the gradient of the
# sum. `SumBackward` passes $x$ on unchanged, and sums the gradients.

# %% tags=["proof"]
x = torch.tensor(3.0, requires_grad=True)
halves = [(x * up).relu() * down for up, down in ((1, 4), (2, 5))]
assert [half.item() for half in halves] == [12, 30]
back = [torch.autograd.grad(2 * half, x)[0].item() for half in halves]
assert back == [8, 20]


# %% the sum on the way forward tags=["hide-input"]
class SumForward(torch.autograd.Function):
    """All-reduce on the way forward, nothing on the way back."""

    @staticmethod
    def forward(ctx, x):
        summed = x.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx, gradient):
        return gradient


# %% the sum on the way back tags=["hide-input"]
class SumBackward(torch.autograd.Function):
    """Nothing on the way forward, all-reduce on the way back."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        summed = gradient.clone()
        dist.all_reduce(summed)
        return summed


# %% [markdown]
# With these a device computes `SumForward.apply(relu(SumBackward.apply(x) @ W_1) @ W_2)`, with its halves of the
# matrices. Two processes compute output and gradients, in float64:


# %% two processes beside one tags=["hide-input"]
def shared_layer():
    """Output and gradients of a feed-forward network that processes share."""
    draw = torch.Generator().manual_seed(0)
    sizes = (5, 8), (8, 32), (32, 8)
    x, w_1, w_2 = (
        torch.randn(size, generator=draw, dtype=torch.float64) for size in sizes
    )
    w_1 = w_1.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].clone()
    w_2 = w_2.chunk(dist.get_world_size(), dim=0)[dist.get_rank()].clone()
    x, w_1, w_2 = (part.requires_grad_() for part in (x, w_1, w_2))
    output = SumForward.apply(torch.relu(SumBackward.apply(x) @ w_1) @ w_2)
    output.square().mean().backward()
    return output.detach(), x.grad, w_1.grad, w_2.grad


draw = torch.Generator().manual_seed(0)
x, w_1, w_2 = (  # one process, without the two functions
    torch.randn(size, generator=draw, dtype=torch.float64).requires_grad_()
    for size in ((5, 8), (8, 32), (32, 8))
)
output = torch.relu(x @ w_1) @ w_2
output.square().mean().backward()
alone = output.detach(), x.grad, w_1.grad, w_2.grad
left, right = launch(shared_layer, 2)
together = (
    *left[:2],
    torch.cat([left[2], right[2]], 1),
    torch.cat([left[3], right[3]]),
)
apart = max(
    ((one - other).abs().max() / one.abs().max()).item()
    for one, other in zip(alone, together, strict=True)
)
print(f"farthest from one process: {apart:.0e}")
assert apart < 1e-12
assert all(torch.equal(*pair) for pair in zip(left[:2], right[:2], strict=True))

# %% [markdown]
# Output and all gradients are those of one process, up to rounding.
#
# Attention is shared by heads: a device has the columns of $W_Q$, $W_K$ and $W_V$ that belong to its heads, and their
# rows of $W_O$ ([chapter 6](06_many_heads.ipynb#heads-are-a-sum)). So an encoder layer needs two all-reduces forward,
# one for each sublayer, and two back. FSDP sends parameters, and each device has its own rows. Here activations are
# sent, and devices that share a layer have the same rows. So the batch need not grow with the devices. If two share
# each layer, the batch is cut into half as many shards, of twice as many tokens, and a device sends only the gradients
# of its half of the matrices.
#
# ### Share the layers, or the positions
#
# In **pipeline parallelism** ([Huang and others, 2019](https://arxiv.org/abs/1811.06965)) each device has some of the
# *layers*, and only activations at the borders are sent, and on the way back their gradients. To keep all busy, a batch
# is cut into $m$ micro-batches that follow one another. The last one leaves the last device after $m + N - 1$ turns.
# Each device works in $m$ of them and waits in the rest, a share of $(N - 1) / (m + N - 1)$, the **bubble**. With 3
# devices and 4 micro-batches, as in the picture, that is a third, and with 30 micro-batches 6 percent. But small
# micro-batches use a device badly, and the activations of all must be kept until their backward pass. A schedule that
# starts backward passes early (*1F1B*, one forward, one backward) keeps those of at most $N$ micro-batches.
#
# In **context parallelism** each device has some of the *positions*. In *ring attention* ([Liu and others,
# 2023](https://arxiv.org/abs/2310.01889)) the keys and values then go around a ring, while each device keeps the
# queries of its own positions, and a running weighted mean of the values that have passed, as in [chapter
# 20](20_one_gpu.ipynb#attention-without-the-score-matrix). So no device ever holds all keys.

# %% tags=["plot"] mystnb={"image": {"alt": "Left: pipeline parallelism, three devices as rows, time as columns. Four micro-batches, numbered 1 to 4, pass through the devices one step later each; two cells of every row are empty, the bubble. Right: context parallelism, four devices in a ring, each with a quarter of the positions; keys and values are passed on to the next."}}
figure, (pipe, ring_axes) = plt.subplots(
    1, 2, figsize=(7.4, 2.6), width_ratios=(1.5, 1), layout="constrained"
)
for row in range(3):
    for column in range(6):
        number = column - row + 1
        busy = 1 <= number <= 4
        color = plots.BLUE if busy else plots.BLANK
        corner = column + 0.05, 2 - row + 0.05
        pipe.add_patch(plt.Rectangle(corner, 0.9, 0.9, fc=color, alpha=0.75))
        if busy:
            center = column + 0.5, 2 - row + 0.5
            pipe.text(*center, str(number), color="white", ha="center", va="center")
pipe.set(xlim=(0, 6), ylim=(0, 3), xlabel="time", title="pipeline, forward")
pipe.set_xticks([])
pipe.set_yticks([0.5, 1.5, 2.5], ["device 2", "device 1", "device 0"])
corners = {0: (0.2, 0.8), 1: (0.8, 0.8), 2: (0.8, 0.2), 3: (0.2, 0.2)}
for device, (x, y) in corners.items():
    ring_axes.text(
        x,
        y,
        f"positions\n{device + 1}/4",
        ha="center",
        va="center",
        bbox={"boxstyle": "round", "fc": "none", "ec": plots.BLUE},
    )
    to_x, to_y = corners[(device + 1) % 4]
    start = x + 0.42 * (to_x - x), y + 0.36 * (to_y - y)
    end = x + 0.6 * (to_x - x), y + 0.64 * (to_y - y)
    arrow = {"arrowstyle": "-|>", "color": plots.RED, "lw": 1.6}
    ring_axes.annotate("", end, start, arrowprops=arrow)
ring_axes.text(0.5, 0.5, "K, V", color=plots.RED, ha="center", va="center")
ring_axes.set(xlim=(0, 1), ylim=(0, 1), title="context")
ring_axes.set_axis_off()
for axes in (pipe, ring_axes):
    for side in axes.spines.values():
        side.set_visible(False)
plt.show()

# %% [markdown]
# ### Which one, and when?
#
# Try them in this order:
#
# | what you see | what to share |
# |---|---|
# | everything fits | the batch (data parallel) |
# | memory is short | the moments and gradients, too (ZeRO-2, which with one batch a step sends no more bytes than DDP), then the parameters (FSDP) |
# | a layer is too large for a device, or a device has so few tokens that sending its gradients takes longer than its backward pass | each layer (tensor parallel), within a machine, if the layer is wide enough |
# | the stack of layers still does not fit, or links are slow | the stack of layers (pipeline parallel) |
# | one sequence is too long | its positions (context parallel) |
#
# Where each way begins to be bound by communication is [computed below](#when-does-communication-take-longer).
#
# Large models combine these ways. The eight devices of one machine, joined by fast links (NVLink), share each layer,
# and batches are dealt out among machines. With a pipeline besides, this is called **3D parallelism**. In a [mixture of
# experts](19_modern.ipynb#experts-more-parameters-at-the-same-price) the experts can be dealt out as well, and each
# token travels to the devices of its experts, in an *all-to-all*: **expert parallelism**.

# %% [markdown]
# ## Do more devices need a larger batch?
#
# If the batch stays as it is, every further device leaves less for each: on 64 H200s the paper's base model would train
# only [some 7 times as fast](#what-would-it-cost-today) as on one, by our estimate.
#
# So more devices usually get a larger batch, to keep them busy. But then the same data make fewer steps, and the
# learning rate and Adam's settings must be searched for again. Two rules say where to begin, for $k$ times the batch.
# For SGD, take $k$ times the learning rate, after a warm-up ([Goyal and others,
# 2017](https://arxiv.org/abs/1706.02677)). For Adam, take $\sqrt k$ times the learning rate, divide $\epsilon$ by
# $\sqrt k$, and replace $\beta_1$ and $\beta_2$ by $1 - k (1 - \beta_1)$ and $1 - k (1 - \beta_2)$, as long as these
# are above 0 ([Malladi and others, 2022](https://arxiv.org/abs/2205.10287)). A gradient is a mean over targets, and
# with $k$ times as many its noise is $\sqrt k$ times smaller. Once the noise is small beside the gradient, a larger
# batch saves few steps. The size at which this begins is the **critical batch size** ([McCandlish and others,
# 2018](https://arxiv.org/abs/1812.06162); measured for many models by [Shallue and others,
# 2019](https://arxiv.org/abs/1811.03600)).

# %% tags=["quiz"]
quiz.one_choice(
    "You go from 32 devices to 64 and keep the size of the whole batch. Suppose that a step then computes in half the time. Leave latency out. What happens to the time for sending the gradients around the ring?",
    quiz.wrong(
        "It halves as well",
        "The gradient is as large as before. Everyone sends 2 (N - 1) / N of it, which hardly changes.",
    ),
    quiz.right(
        "It stays nearly the same",
        "Yes: 2 (N - 1) / N goes from 1.94 to 1.97. So its share of the step grows. (The rounds go from 62 to 126, so with latency it even grows itself.)",
    ),
    quiz.wrong(
        "It doubles",
        "That would be so if everyone sent the whole gradient to everyone. In a ring the chunks become smaller.",
    ),
)

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: One gradient out of several
#
# *Easy, 10 minutes.* Each process has divided its loss by its *own* number of real targets. `gradients` is a list of
# the gradients that came out, arrays of one shape, and `targets` a list of those numbers. Return the gradient of the
# whole batch.


# %% tags=["exercise"]
def combined(gradients, targets):
    """The gradient of all processes' targets together."""
    ...


# %% tags=["check"]
def weighted(gradients, targets, weights=lambda targets: targets / np.sum(targets)):
    return sum(
        w * g for w, g in zip(weights(np.array(targets)), gradients, strict=True)
    )


check_combined = partial(
    checks.check,
    reference=weighted,
    cases=[
        ([np.array([2.0, 4.0]), np.array([4.0, 0.0])], [6, 2]),
        (
            [
                np.array([[1.0, -1.0]]),
                np.array([[0.0, 3.0]]),
                np.array([[5.0, 2.0]]),
            ],
            [10, 1, 5],
        ),
    ],
    mistakes={
        "that is the mean of means: a shard with few targets counts as much as one with many": partial(
            weighted, weights=lambda targets: np.ones(len(targets)) / len(targets)
        ),
        "added up, each is still divided by its own targets alone": partial(
            weighted, weights=lambda targets: np.ones(len(targets))
        ),
        "multiplied by its targets, each must be divided by those of all": partial(
            weighted, weights=lambda targets: targets
        ),
    },
)
check_combined(combined)


# %% tags=["solution"]
def combined(gradients, targets):
    """The gradient of all processes' targets together."""
    whole = sum(n * g for g, n in zip(gradients, targets, strict=True))
    return whole / sum(targets)


verdict = check_combined(combined)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: What each keeps
#
# *Easy, 10 minutes.* A model has `parameters` parameters, of which the largest layer has `layer`. Training takes 16
# bytes for each parameter: 4 for itself, 4 for its gradient and 8 for the moments. Return the bytes that each of
# `world_size` processes needs, if each keeps its shard of all of these and has besides, in tensors of their own, the
# full parameters and gradients of one layer at a time (PyTorch's FSDP has at times two).


# %% tags=["exercise"]
def bytes_of_shard(parameters, layer, world_size):
    """Bytes in each of `world_size` processes."""
    ...


# %% tags=["check"]
def kept(parameters, layer, world_size, divide=16, whole=8):
    return (
        divide * parameters / world_size
        + whole * layer
        + (16 - divide) * parameters
    )


check_shard = partial(
    checks.check,
    reference=kept,
    cases=[(100, 10, 2), (100, 10, 4), (63e6, 3e6, 8)],
    mistakes={
        "the layer that is gathered needs its gradient as well": partial(
            kept, whole=4
        ),
        "the full layer comes on top of the shard": partial(kept, whole=0),
        "parameters and gradients are divided too, not only the moments": partial(
            kept, divide=8
        ),
    },
)
check_shard(bytes_of_shard)


# %% tags=["solution"]
def bytes_of_shard(parameters, layer, world_size):
    """Bytes in each of `world_size` processes."""
    return 16 * parameters / world_size + 8 * layer


verdict = check_shard(bytes_of_shard)
assert verdict.passed, verdict
verdict

# %% [markdown]
# With many processes the layer is what remains. So a model with one very large layer gains less.
#
# ### Exercise 3: Nobody left out
#
# *Medium, 15 minutes.* A sampler deals out `count` sentences to `world_size` processes like cards, in order. All must
# make the same number of batches, each of one sentence. Return for the process `rank` the list of its sentences'
# numbers, with `None` where it has to take part without one, so that each sentence goes to exactly one process.


# %% tags=["exercise"]
def dealt(count, rank, world_size):
    """The sentences of a process, and None where there is none left."""
    ...


# %% tags=["check"]
def dealing(count, rank, world_size, fill=True, repeat=False, drop=False):
    own = list(range(rank, count, world_size))
    rounds = count // world_size if drop else -(-count // world_size)
    if fill and len(own) < rounds:
        own.append(rank % count if repeat else None)
    return own[:rounds]


check_dealt = partial(
    checks.check,
    reference=dealing,
    cases=[(6, 1, 2), (7, 0, 3), (7, 1, 3), (7, 2, 3), (2, 3, 4)],
    mistakes={
        "all processes need equally many rounds: fill up with None": partial(
            dealing, fill=False
        ),
        "a sentence that is repeated counts twice": partial(dealing, repeat=True),
        "the last sentences must not be dropped": partial(dealing, drop=True),
    },
)
check_dealt(dealt)


# %% tags=["solution"]
def dealt(count, rank, world_size):
    """The sentences of a process, and None where there is none left."""
    own = list(range(rank, count, world_size))
    return own + [None] * (-(-count // world_size) - len(own))


verdict = check_dealt(dealt)
assert verdict.passed, verdict
verdict

# %% [markdown]
# PyTorch's own `DistributedSampler` repeats sentences where we have put `None`, or drops the last ones if one asks for
# that. For training on millions of sentences it matters little. For a test score, a sentence that counts twice is a
# mistake.

# %% [markdown]
# ## In one breath
#
# Many processes train one model if each takes a shard of every batch and divides by the targets of all, and if they
# all-reduce the gradients. The sum is what one process would have computed, and in a ring each sends less than twice
# the gradient for it. What does not fit is kept in shards, and a process that dies is restarted from the last
# checkpoint. How much faster it gets depends on the work between two sums.
#
# **Sources.** Figures of the paper: [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762), table 2, sections
# 5.1, 5.2 and 6.1. Model, gradients and optimiser state in shards: [Rajbhandari and others
# (2020)](https://arxiv.org/abs/1910.02054). PyTorch's two engines: [Li and others
# (2020)](https://arxiv.org/abs/2006.15704), [Zhao and others (2023)](https://arxiv.org/abs/2304.11277). The ring:
# [Patarasuk and Yuan (2009)](https://doi.org/10.1016/j.jpdc.2008.09.002).
#
# **Next.** The model is trained, on as many devices as it takes. [Chapter 22](22_in_the_browser.ipynb) takes it out of
# Python, into a page that anybody can open.

# %% [markdown]
# ## Going further
#
# What the paper's training cost, what it would cost today, a sampler that repeats one order, and what a message,
# accumulation and each way of sharing cost.

# %% [markdown]
# ### What did the paper's run cost?
#
# Before you add devices, ask how busy those are that you have. How well did the paper use its eight? It gives two costs
# for training its models, $3.3 \cdot 10^{18}$ and $2.3 \cdot 10^{19}$ FLOPs. The operations were not counted. Each cost
# is the hours of a run (12 for the base model, 84 for the big one), times 8 devices, times what one device sustains,
# taken to be 9.5 TFLOP/s.
#
# **By hand.** 12 hours are 43,200 seconds, and $43{,}200 \cdot 8 \cdot 9.5 \cdot 10^{12} = 3.3 \cdot 10^{18}$.
#
# **Predict first.** We can count ([chapter 20](20_one_gpu.ipynb#how-much-work-is-a-step)). A step has about 25,000
# tokens on each side; let them be 390 pairs of 64. Are the FLOPs in the products of 100,000 such steps (300,000 for the
# big model) more than the estimate, or fewer?

# %% FLOPs of both models tags=["hide-input"]
from dotformer.devices import training_flops

models = {
    "base": (TransformerConfig(37_000, 37_000), 100_000, 12),
    "big": (
        TransformerConfig(37_000, 37_000, d_model=1024, num_heads=16, d_ff=4096),
        300_000,
        3.5 * 24,
    ),
}
shares = {}
for name, (config, steps, hours) in models.items():
    estimate = hours * 3600 * 8 * 9.5e12
    counted = steps * sum(training_flops(config, 390, 64, 64).values())
    shares[name] = counted / estimate
    print(
        f"{name:5} by the clock {estimate:.1e}, counted {counted:.1e}, {shares[name]:.0%}"
    )
assert [round(100 * share) for share in shares.values()] == [29, 42]

# %% [markdown]
# Counted, the work is less than half of the estimate. The estimate is what eight devices could have done in those
# hours. The counted FLOPs, divided by the estimate, are the run's *model FLOPs utilisation* (MFU), here as a share
# of 9.5 TFLOP/s, which the paper takes as what a P100 sustains.

# %% [markdown]
# ### What would it cost today?
#
# Here is an estimate, with its assumptions. A device computes as fast as the H200 of [chapter
# 20](20_one_gpu.ipynb#how-much-of-the-peak-can-a-narrow-model-use), where recorded steps were timed with batches of 1
# to 1,600 pairs, without dropout, padding or waiting for data. (Our trainer records only in one process; launched steps
# of 100 pairs took 35 ms or more.) The batch stays the paper's, divided among the devices. Gradients have 4 bytes a
# parameter, go around a ring at 200 GB/s ([an assumption](#when-does-communication-take-longer)) without latency, and
# travel during the backward pass, two thirds of the computation, as far as they fit.

# %% tags=["plot"] mystnb={"image": {"alt": "Minutes for the base model's 100,000 steps over 1 to 64 devices, both axes logarithmic. A dotted line, in proportion to one device, falls straight. The estimate departs from it at two devices and becomes nearly flat."}}
from classroom.measured import measured

_, steps, _ = models["base"]
batches = measured("throughput-cuda")["measurements"]
gradient_bytes = 4 * 63e6
devices = 2 ** np.arange(7)
computing = np.interp(
    390 / devices,
    [row["pairs"] for row in batches],
    [row["seconds"] for row in batches],
)
communication = 2 * (devices - 1) / devices * gradient_bytes / 200e9
extra = np.maximum(0, communication - 2 / 3 * computing)  # what cannot be hidden
figure, axes = plt.subplots(figsize=(5.6, 3.2))
axes.loglog(devices, steps * computing[0] / devices / 60, color=plots.GREY, ls=":")
axes.loglog(devices, steps * (computing + extra) / 60, "o-", color=plots.BLUE)
axes.minorticks_off()
axes.set_xticks(devices, [str(n) for n in devices])
axes.set_yticks([1, 10, 100], ["1", "10", "100"])
axes.set(xlabel="devices", ylabel="minutes, base model", ylim=(0.7, 130))
axes.text(20, 2.2, "in proportion", ha="right", color=plots.GREY)
axes.text(64, 13, "estimated", ha="right", color=plots.BLUE)
plots.measured_on(measured("throughput-cuda"))
plt.show()
whole = computing + extra
for k in (0, 3, 6):
    print(
        f"{devices[k]:2} devices: computation {1000 * computing[k]:5.2f} ms, communication {1000 * communication[k]:.2f} ms a step"
    )
    print(
        f"   {steps * whole[k] / 60:.1f} minutes, {whole[0] / whole[k]:.1f} times as fast as one"
    )
assert [round(float(whole[0] / whole[k]), 1) for k in (3, 6)] == [4.2, 7.5]
assert [round(float(steps * whole[k] / 60)) for k in (0, 6)] == [65, 9]
assert not extra.any()
assert round(1000 * float(communication[6]), 1) == 2.5
waits = 10 * 2 * 63 * 10e-6  # seconds, of ten buckets with 10 µs a round
assert (
    round(1000 * waits) == 13
    and round(1000 * 2 / 3 * float(computing[6]), 1) == 3.5
)
table_bytes = 4 * 37_000 * 512  # of the embeddings, which the output shares
for n in (8, 64):
    assert round(1000 * 2 * (n - 1) / n * table_bytes / 200e9, 1) == 0.7
assert [round(1000 * float(computing[k])) for k in (0, 6)] == [39, 5]
assert 4 * communication[6] > computing[6]
launched = [
    row["seconds"]
    for host in ("ladder-cuda", "ladder-cuda-faster-host")
    for row in measured(host)["measurements"]
    if row["what"] == "rung" and row["name"] != "CUDA graph"
]
assert round(1000 * min(launched)) == 35
step_flops = sum(
    training_flops(TransformerConfig(37_000, 37_000), 390, 64, 64).values()
)
assert round(step_flops / 64 / float(computing[6]) / 989e12, 2) == 0.03
with torch.device("meta"):  # shapes without numbers
    base = Transformer(TransformerConfig(37_000, 37_000, share_embeddings=True))
assert round(sum(p.numel() for p in base.parameters()) / 1e6) == 63

# %% [markdown]
# What took eight devices half a day would take a single H200 65 minutes, if the assumptions hold. Eight are 4.2 times
# as fast, and 64 only 7.5 times. Communication is not the reason: at 200 GB/s nearly all gradients fit behind the
# backward pass, though at 50 they would not. (Those of the shared embeddings, complete only at its end, do not; the
# estimate leaves out their 0.7 ms.) The reason is the step's computation: with 6 pairs in place of 390 it still takes 5
# ms in place of 39, and reaches 3 percent of the maker's peak. Latency, which the estimate leaves out, counts too: a
# ring of 64 has $2 \cdot 63$ rounds. If each took 10 microseconds, ten buckets, one after the other, would wait 13 ms,
# far more than the 3.5 that a backward pass can hide.

# %% [markdown]
# ### Break it: the order that never changes
#
# Our processes all read the same batches, and each takes its rows. Many programs give each process a part of the data,
# with PyTorch's `DistributedSampler`. Without one, processes that shuffle with the same seed read the same examples,
# and their mean gradient is what one process finds alone. The sampler shuffles by an epoch number that `set_epoch`
# sets:

# %% tags=["nbval-check-output"]
from torch.utils.data import DistributedSampler

sampler = DistributedSampler(range(10), num_replicas=2, rank=0)
orders = [list(sampler), list(sampler)]
sampler.set_epoch(1)
orders.append(list(sampler))
print(*orders, sep="\n")
assert orders[0] == orders[1] != orders[2]

# %% [markdown]
# Without `set_epoch` each epoch has the order of the first, and so the same batches. From outside nothing is wrong.
# That is why `batches` is a function of the epoch here: nobody can forget it.

# %% [markdown]
# ### What does a message cost?
#
# A message's cost is often taken as a straight line, $t = \alpha + \text{bytes} / \beta$, with the latency $\alpha$ and
# the bandwidth $\beta$. One all-reduce counts as one message, so $\alpha$ is the latency of all its rounds together.
# Here is the line that fits the four [measured times](#how-is-a-sum-made) best, by the relative error:

# %% latency and bandwidth, fitted tags=["hide-input"]
sizes, taken = np.array(list(seconds)), np.array(list(seconds.values()))
rows = np.stack([1 / taken, 4 * sizes / taken], axis=1)  # times alpha, 1 / beta: 1
(latency, per_byte), *_ = np.linalg.lstsq(rows, np.ones(len(rows)))
print(
    f"latency {1e6 * latency:.0f} µs, bandwidth {1e-9 / per_byte:.1f} GB/s", end=""
)
print(f", their product {latency / per_byte / 1e6:.2f} MB")
said = latency + 4 * sizes * per_byte
for size, by_line, measured_time in zip(sizes, said, taken, strict=True):
    print(
        f"{size:>10,} numbers: predicted {1e3 * by_line:.2f} ms, measured {1e3 * measured_time:.2f}"
    )
assert (abs(said / taken - 1) < 0.8).all() and latency > 0 and per_byte > 0
# %% [markdown]
# Below about $\alpha \beta$ bytes a message costs mostly its latency. The line is a rough one, since the bandwidth is
# not the same at every size.
#
# ### What does accumulation cost under FSDP?
#
# When a step adds up the gradients of several batches ([gradient
# accumulation](11_training.ipynb#one-step-from-several-batches)), FSDP sends more. Here are the engines' bytes for
# four:
#

# %% one step from four batches, counted tags=["hide-input"]
show_engines(4)
check_engines(4, 3.58)
assert round(traffic["FSDP", 4]["sent"], 2) == 2.29
print("\nthe same, if each batch sends its gradients")
each = {
    name: launch(partial(one_step, 4, kind=SendsEach, **engines[name]), 2)[0][0]
    for name in ("DDP", "FSDP")
}
for collective in ("allreduce", "allgather", "reducescatter"):
    row = "".join(f"{moved[collective]:14.2f}" for moved in each.values())
    print(f"{collective:16}{row}")
assert round(each["DDP"]["allreduce"], 2) == 4
assert round(each["FSDP"]["reducescatter"], 2) == 4
assert round(each["FSDP"]["allgather"], 2) == 6.58

# %% [markdown]
# Gradients are sent only with the last of the four batches: DDP's all-reduce and FSDP's reduce-scatter are a quarter of
# what they are if each batch sends its own (last three rows). A layer is gathered before the first forward pass and
# before each of the four backward passes; after a backward pass it stays gathered for the next forward pass. So the
# layers are gathered five times: $5 \cdot 0.645 + 0.355 = 3.58$. The price is memory: until the last batch each process
# holds all gradients, and between two batches all layers. (With all layers in memory anyway, one could keep them after
# the forward pass, too, and gather them once a step.) To save memory instead, scatter the gradients after every batch,
# which our trainer does not do.
#
# ### When does communication take longer?
#
# For each [way to share](#which-one-and-when), ask when communication takes longer than computation, for a device of
# $F$ FLOP/s whose connections have the bandwidth $\beta$.
#
# - **Data parallel**, with $b$ tokens a device: a model of $P$ parameters takes $6 P b / F$ seconds for forward and
#   backward pass, and its gradients of 4 bytes take $2 \frac{N - 1}{N} \, 4 P / \beta$ around a ring of $N$. They can
#   hide behind the backward pass, two thirds of the work, if $b > 2 \frac{N - 1}{N} F / \beta$, whatever the model.
# - **FSDP** gathers 2 bytes a parameter before the forward pass, and again before the backward pass, which also
#   scatters gradients of 4 bytes. The backward pass decides, since it sends three times as much, behind twice the
#   computation: $\frac{N - 1}{N} \, 6 P / \beta$, behind $4 P b / F$. That needs
#   $b > \frac{3}{2} \frac{N - 1}{N} F / \beta$, which is less than data parallel needs: both send
#   $\frac{N - 1}{N} \, 8 P$ bytes a step, but FSDP can hide some of them behind the forward pass, too.
# - **Tensor parallel**, for an encoder layer of width $D$ on $N$ devices, which all work on the same $b$ tokens: its
#   matrices have $12 D^2$ numbers, so the forward pass takes $24 b D^2 / (N F)$ seconds. Two all-reduces of $b D$
#   numbers of 2 bytes take $\frac{N - 1}{N} \, 8 b D / \beta$, and nothing hides them, because the next product waits
#   for their sum (unless products or batches are cut into parts). The all-reduces take longer than the products where
#   $D < \frac{N - 1}{3} F / \beta$, whatever the batch.
# - **Pipeline**, with $b$ tokens in a micro-batch and $L$ layers on each device: a device sends $2 b D$ bytes at a
#   border, and has computed $24 b D^2$ FLOPs in each of its layers. It sends one micro-batch while it computes the
#   next. The bytes hide where $D > F / (12 L \beta)$.
# - **Context**, with $b$ positions a device: in each round a device sends keys and values, $4 b D$ bytes, while it
#   computes $4 b^2 D$ FLOPs of scores and sums with those it has. They hide if $b > F / \beta$. A causal mask halves
#   the FLOPs, and if positions are dealt out so that all devices save alike, it takes $b > 2 F / \beta$.
#
# Everything is a multiple of $F / \beta$: the FLOPs that a device can do while it sends one byte. For $F$ take 271
# TFLOP/s, which the H200 of [chapter 20](20_one_gpu.ipynb#all-rungs-on-a-gpu) reached with the paper's base model and
# its largest batch (27 percent of the maker's 989). For $\beta$ take three values. Within a machine, an H100's links
# have 450 GB/s in one direction ([NVIDIA](https://www.nvidia.com/en-us/data-center/h100/) gives 900 for both). Between
# machines, a network card of 400 Gbit/s
# ([ConnectX-7](https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html), eight in a DGX H100)
# has 50. Eight cards have 400, of which we count half, 200: an assumption, since gradients also cross the machine's own
# links. Then $F / \beta$ is about 600, 1,360 and 5,420:

# %% the break-even for three networks tags=["hide-input", "nbval-check-output"]
speeds = (450, 200, 50)  # GB/s
used = max(
    row["mfu_of_nominal"] for row in measured("throughput-cuda")["measurements"]
)
ratio = {speed: used * 989e12 / (1e9 * speed) for speed in speeds}  # F / β
bounds = {  # as multiples of F / β
    "data parallel, 8 devices: tokens a device": 2 * 7 / 8,
    "data parallel, 64 devices: tokens a device": 2 * 63 / 64,
    "FSDP, 8 devices: tokens a device": 3 / 2 * 7 / 8,
    "tensor parallel, 2 devices: width": 1 / 3,
    "tensor parallel, 8 devices: width": 7 / 3,
    "pipeline, one layer a device: width": 1 / 12,
    "context: positions a device": 1,
}
print(f"{'break-even at':46}" + "".join(f"{speed:4} GB/s" for speed in speeds))
for name, multiple in bounds.items():
    row = "".join(f"{multiple * ratio[speed]:9,.0f}" for speed in speeds)
    print(f"{name:46}{row}")

# %% tags=["proof"]
width = bounds["tensor parallel, 2 devices: width"]
shared_time = {
    speed: (1 + width * ratio[speed] / 512) / 2 for speed in speeds
}  # by two, as a share of the time alone
assert round(used, 2) == 0.27
assert round(shared_time[450], 2) == 0.70 and round(shared_time[50], 2) == 2.27
tokens = bounds["data parallel, 8 devices: tokens a device"]
assert tokens * ratio[200] < 25_000 / 8 and round(25_000 / 64) == 391
assert bounds["data parallel, 64 devices: tokens a device"] * ratio[450] > 391

# %% [markdown]
# For the paper's base model, of width 512, and its batch of 25,000 targets, this means:
#
# - **Data parallel.** Each of eight devices has 3,125 targets, enough at 450 GB/s and at 200. Each of 64 has 391, too
#   few for devices at 27 percent of the peak. But with so few the devices do not reach that, so the gradients may still
#   be hidden: see [what it would cost today](#what-would-it-cost-today).
# - **FSDP.** On eight devices communication would hide at 450 and at 200 GB/s, where it needs 791 and 1,780 tokens, and
#   not at 50.
# - **Tensor parallel.** Shared between two devices, a layer needs 0.70 times as long as one device for its forward pass
#   at 450 GB/s, and 2.27 times as long at 50.
# - **Pipeline.** With one encoder layer a device, communication would hide even at 50 GB/s, since the width of 512 is
#   above 452.
# - **Context parallel.** Communication would not hide: sentences of some 64 tokens never come near 603 positions a
#   device.
#
