# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 20. Where does the time go?
#
# Training is one step, repeated a hundred thousand times. On one GPU, with steps of the paper's size, that takes up to
# 9.4 hours in the plainest way, and at best 1.1 hours. By the end of this chapter you will know how much work is in a
# step, how fast your machine could do it, where the rest of the time goes, and which changes win it back.
#
# A step can be slow for three reasons: it does much arithmetic, it moves many bytes, or it has to start many small
# operations one after the other. [A ladder](#a-ladder) adds the remedies one at a time. At each rung it times the step
# and compares the gradient with that of the first rung, the plainest one.
#
# You need [chapter 9](09_decoder.ipynb) for the model and [chapter 11](11_training.ipynb) for the step. It takes about
# 29 minutes to read, and 25 for the exercises. [Going further](#going-further), at the end, takes 16 more minutes. No
# GPU is needed.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer, every part built. This chapter makes all of it faster."}}
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
# Nearly all of a step's arithmetic is matrix products, and those can be counted on paper. A matrix of 2 rows and 3
# columns, times one of 3 rows and 4 columns, has 2 · 4 entries, each a dot product of two vectors of 3 numbers: 3
# multiplications and 3 additions, if the first product is added to 0. Each of these is one floating-point operation. So
# the matrix product takes $2 \cdot 2 \cdot 3 \cdot 4 = 48$ of them, or 48 **FLOPs**; the first 2 stands for
# multiplication and addition.
#
# A GFLOP is a billion FLOPs, and a TFLOP a thousand GFLOPs. Speed is measured in FLOPs per second, FLOP/s.
#
#
#
# A projection of $T$ tokens from width $D$ to width $D$ takes $2 T D^2$ FLOPs by the same count. The scores of $T$
# queries and $S$ keys take $2 T S D$ for all heads together, because their widths add up to $D$, and the weighted sums
# of the values as many again.
#
# And the backward pass? Let the product be $Y = XW$, and $G$ the gradient of $Y$. Then $X$ has the gradient $G W^\top$,
# and $W$ has $X^\top G$ ([chapter 7](07_learning.ipynb#one-answer-one-gradient)): two products, each with as many FLOPs
# as $XW$. So the backward pass takes twice the work of the forward pass, and the whole step three times that of the
# forward pass.
#
# A folded function, `training_flops`, counts the FLOPs of a whole step.

# %% tags=["hide-input", "export"] module="devices"
from dotformer.transformer import Transformer, TransformerConfig


def training_flops(
    config: TransformerConfig, batch: int, source: int, target: int
) -> dict[str, int]:
    """FLOPs of the matrix products in a training step, forward and back, by part.

    For `batch` pairs of `source` and `target` tokens; a multiply-add is two FLOPs.
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


# %% [markdown]
# PyTorch can count, too: its `FlopCounterMode` watches products while they run. Let it watch a small model, two layers
# on each side, of width 128.

# %% FLOPs by PyTorch's counter tags=["hide-input", "nbval-check-output"]
from dotformer.support.recording import record_weights
from torch.utils.flop_counter import FlopCounterMode

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
ours = sum(training_flops(small, 16, 24, 20).values())
print(f"counted {counter.get_total_flops():,}, on paper {ours:,}")
assert counter.get_total_flops() == ours

# %% [markdown]
# Equal, to the last FLOP. Now the paper's base model, with the paper's batch of about 25,000 tokens on each side: 400
# pairs of 64.

# %% the base model's FLOPs by part tags=["hide-input", "nbval-check-output"]
base = TransformerConfig(37_000, 37_000, dropout=0.0, share_embeddings=True)
with torch.device("meta"):  # shapes only, no numbers
    parameters = sum(p.numel() for p in Transformer(base).parameters())
flops = training_flops(base, 400, 64, 64)
total = sum(flops.values())
for part, count in flops.items():
    print(f"{part:16}{count / 1e12:5.2f} TFLOP  {count / total:4.0%}")
rule = 6 * parameters * 400 * 64
print(f"{'total':16}{total / 1e12:5.2f} TFLOP")
print(f"6 · {parameters / 1e6:.0f} million · 25,600: {rule / 1e12:.2f} TFLOP")
assert abs(total / rule - 1) < 0.1 and 2 * 2 * 3 * 4 == 48

# %% [markdown]
# One step takes ten TFLOPs. The last line is a rule of thumb: six FLOPs for each parameter and each token, because a
# parameter is multiplied and added once in the forward pass and twice in the backward pass. It counts the tokens of one
# side, since most parameters meet only the source or only the target.
#
#

# %% tags=["quiz"]
half = training_flops(base, 400, 64, 64)["scores and sums"] / total
long = training_flops(base, 25, 1024, 1024)
quiz.number(
    "The same tokens in 25 pairs of 1,024: what percentage of the step's FLOPs are scores and weighted sums now?",
    100 * long["scores and sums"] / sum(long.values()),
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
    otherwise="`training_flops(base, 25, 1024, 1024)` counts them; divide by the sum of its parts.",
)

# %% [markdown]
# ## How fast could it be?
#
# Two properties of a machine set the limit: its **peak compute**, the FLOPs that it does in a second, and its **memory
# bandwidth**, the bytes that it moves in a second between memory and its arithmetic units. Arithmetic and transfer can
# overlap, so the longer of the two sets the time.
#
# The folded cell times a large product, and a copy, which reads and writes every byte. Python does not wait for a GPU's
# work ([why](#who-waits-for-whom)). So you must **synchronize**, that is, wait for the device, before you read the
# clock.

# %% tags=["export", "hide-input"] module="devices"
from statistics import median

import torch
from dotformer.support.benchmark import benchmark


def memory_bandwidth(device: torch.device | str, size: int = 1 << 25) -> float:
    """Bytes per second that a device reads and writes, copying `size` numbers."""
    a = torch.randn(size, device=device)
    b = torch.empty_like(a)
    return 2 * a.nbytes / median(benchmark(lambda: b.copy_(a), device))


def matmul_throughput(
    device: torch.device | str, size: int = 1024, dtype: torch.dtype = torch.float32
) -> float:
    """FLOP/s in the product of two square matrices of `size` rows."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / median(benchmark(lambda: a @ b, device))


# %% both peaks, measured tags=["hide-input"]
device = "cuda" if torch.cuda.is_available() else "cpu"
size = 1024 if device == "cpu" else 8192
bandwidth = memory_bandwidth(device)
peak_compute = matmul_throughput(device, size)
ridge_point = peak_compute / bandwidth
print(f"peak compute     {peak_compute / 1e9:10,.1f} GFLOP/s")
print(f"memory bandwidth {bandwidth / 1e9:10,.1f} GB/s")
print(f"ridge point      {ridge_point:10.1f} FLOPs per byte")

# %% [markdown]
# The last number, the first divided by the second, is called the **ridge point**: the FLOPs that the machine can do
# while it moves one byte.
#
# Work has such a ratio, too: the FLOPs that it does for each byte that it moves are its **arithmetic intensity**. Work
# whose intensity is below the ridge point is **memory-bound**: memory sets its time, and no faster arithmetic will help
# it. Above the ridge point it is **compute-bound**.
#
# **By hand.** Take a machine of 80 GFLOP/s and 16 GB/s, and two matrices of 1,024 rows and columns.
#
# - Their sum reads 8 bytes and writes 4 for each entry, 12.6 MB in all, which take 0.8 ms. Its million FLOPs take 0.01
#   ms: memory decides.
# - Their product moves as many bytes, but does 2.1 billion FLOPs, which take 27 ms: arithmetic decides.
#
# A sum does a twelfth of a FLOP per byte, however large it is. A product of $n$ rows and columns does $2 n^3$ FLOPs and
# moves $12 n^2$ bytes, $n / 6$ FLOPs per byte. So it is compute-bound if $n$ is above six times the ridge point, or
# three times in 16 bits, which halve the bytes.
#
# On a GPU the ridge point is much higher. NVIDIA's [data
# sheet](https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet) gives an H100 (SXM) 1,979
# TFLOP/s in 16 bits where half of the entries are zeros (*sparsity*), so 989 without, and 3.35 TB/s: 295 FLOPs per
# byte. There a product in 16 bits needs 885 rows.
#
# **Predict first.** Draw FLOP/s over arithmetic intensity. Which two lines bound all work whose data comes from memory?

# %% tags=["plot"] mystnb={"image": {"alt": "FLOP/s over FLOPs per byte, both logarithmic. A grey line rises straight and then is flat. The sum of two matrices lies on the rising part, at its left end. Products of small matrices lie below the rising part or on it, products of large ones near the flat part. Softmax, layer norm, Adam and the matrix of one token lie near the rising part or below, the projection of many tokens near the flat one."}}
from torch import nn
from torch.nn import functional as F

sizes = (8, 16, 32, 64, 128, 256, 512)
a, b = (torch.randn(1 << 24, device=device) for _ in range(2))
there = torch.empty_like(a)  # where the sum will be
added = len(a) / median(benchmark(lambda: torch.add(a, b, out=there), device))
rows, out = a.view(-1, 512), there.view(-1, 512)
tokens, matrix = a[: 1536 * 512].view(-1, 512), b[: 512**2].view(512, 512)
parameter = nn.Parameter(a.clone())
parameter.grad = b.clone()
adam = torch.optim.Adam([parameter], fused=True)
n = len(a)
parts = {  # work, FLOPs and bytes
    "softmax": (lambda: torch.softmax(rows, -1, out=out), 5 * n, 8 * n),
    "layer norm": (lambda: F.layer_norm(rows, (512,)), 8 * n, 8 * n),
    "Adam": (adam.step, 12 * n, 28 * n),
    "one token": (lambda: a.view(-1, 2048) @ b[:2048], 2 * n, 4 * n),
    "projection": (
        lambda: tokens @ matrix,
        2 * 1536 * 512**2,
        4 * (2 * 1536 * 512 + 512**2),
    ),
}
measured_parts = {
    name: (flops / moved, flops / median(benchmark(work, device)))
    for name, (work, flops, moved) in parts.items()
}
throughputs = [matmul_throughput(device, n) for n in sizes]
figure, axes = plt.subplots(figsize=(6.4, 3.6))
intensity = np.geomspace(1 / 16, 200, 200)
roof = np.minimum(peak_compute, intensity * bandwidth)
axes.loglog(intensity, roof, color=plots.GREY)
axes.loglog([n / 6 for n in sizes], throughputs, "o", color=plots.BLUE)
for n, throughput in zip(sizes, throughputs, strict=True):
    axes.annotate(
        f"{n}",
        (n / 6, throughput),
        (0, -17),
        textcoords="offset points",
        ha="center",
    )
axes.loglog([1 / 12], [added], "o", color=plots.RED)
axes.annotate("sum", (1 / 12, added), (7, -6), textcoords="offset points")
left, middle = ("right", (-7, -2)), ("center", (0, -14))  # of its dot
places = {"Adam": left, "one token": left, "layer norm": middle}
places |= {"softmax": ("left", (7, -2)), "projection": ("center", (4, 8))}
for name, dot in measured_parts.items():
    axes.loglog(*dot, "s", color=plots.TEAL, ms=5)
    side, offset = places[name]
    axes.annotate(name, dot, offset, textcoords="offset points", size=9, ha=side)
axes.margins(y=0.12)
axes.set(xlabel="arithmetic intensity (FLOPs per byte)", ylabel="FLOP/s")
plt.show()

# %% [markdown]
# The picture is called a **roofline**, and the grey line is the limit. Work that does $I$ FLOPs per byte, on a machine
# with a memory bandwidth of $B$, does at most $I \cdot B$ FLOP/s, because no more bytes arrive: the rising part. No
# work exceeds the peak: the flat part. They meet at the ridge point. The red dot is the sum of two matrices, the blue
# dots are products of the size beside them.
#
# The green squares are parts of a transformer:
#
# - Softmax, layer norm and Adam do a few FLOPs for each number. (A point can lie above the line, as Adam may here: the
#   line is drawn by the speed of a copy, and other work can reach more.)
# - Generating one token multiplies a matrix by a *vector*. That is 2 FLOPs for each 4-byte entry of the matrix, half a
#   FLOP per byte, and [in 16 bits one](12_generation.ipynb#why-one-sentence-is-slow).
# - The projection of $T$ tokens does $2 T D^2$ FLOPs and moves $2 T D + D^2$ numbers, because the matrix is read once
#   for all tokens. With $D = 512$ and 1,536 tokens that is 110 FLOPs per byte, far above the ridge point of the machine
#   measured here. So a batch is faster than its tokens one by one.
#
# The smallest products lie far below even the grey line. To start any work takes a microsecond or more, its **launch
# overhead**, and a product of matrices of 8 rows needs far less than that. Work whose time goes into launch overhead is
# **overhead-bound**, the third way to be slow.

# %% tags=["quiz"]
quiz.one_choice(
    "A layer norm reads and writes each number and does about eight FLOPs on it. On a machine with a ridge point of 10 FLOPs per byte, what makes it faster?",
    quiz.right(
        "Doing it together with the operation before, so that its input is not written and read again",
        "Eight FLOPs for 8 bytes (4 read, 4 written) are 1 per byte, far below the ridge point. It is memory-bound: only bytes that are not moved help.",
    ),
    quiz.wrong(
        "Arithmetic units that are twice as fast",
        "They would wait all the more. At 1 FLOP per byte it is memory that decides, not arithmetic.",
    ),
    quiz.wrong(
        "A larger batch, which fills the machine better",
        "That helps work that is too small to fill it. A layer norm of a large batch moves as many bytes for each number as one of a small batch.",
    ),
)

# %% [markdown]
# ## Where does it go?
#
# We time a training step of the small model above, with 16 pairs, after telling the C library to keep what is freed
# ([why](#what-do-page-faults-cost)).

# %% one step, and its page faults tags=["hide-input"]
from dotformer.support.memory import keep_freed_memory, page_faults
from dotformer.training import Trainer, TrainingConfig

model = Transformer(small).to(device)
trainer = Trainer(model, TrainingConfig(), device)
batch = source.to(device), target.to(device)


def step():
    return trainer.train_step([batch], 1e-4)


def faults():
    """Page faults of a step, the median of five."""
    counts = [page_faults()]
    for _ in range(5):
        step()
        counts.append(page_faults())
    return median(np.diff(counts))


costs = {"as it comes": (median(benchmark(step, device, 10)), faults())}
is_kept = keep_freed_memory()
costs["kept"] = median(benchmark(step, device, 10)), faults()
assert not is_kept or costs["kept"][1] < costs["as it comes"][1] / 10 + 100

# %% [markdown]
# The FLOPs of this step, divided by the machine's peak compute, are the time that it would take if it were nothing but
# products at full speed. This time, as a share of the real time, is called the **model FLOPs utilisation** (MFU).
#
# **Predict first.** How large is the MFU of this step? And what takes the rest of the time?
#
# The list under the MFU is from PyTorch's profiler (`torch.profiler`): each operator's own time.

# %% time by kind of operator tags=["hide-input"]
import re

from dotformer.support.benchmark import profile_operators

seconds = median(benchmark(step, device))
# 19 targets are fed, since nothing follows the last
least = sum(training_flops(small, 16, 24, 19).values()) / peak_compute
print(f"a step takes {1000 * seconds:.0f} ms", end=", ")
print(f"its products at full speed {1000 * least:.0f} ms: {least / seconds:.0%}")
operators = profile_operators(step, device, shown=10**6)
kinds = {
    "products (mm, addmm)": "mm$",
    "attention": "scaled_dot_product",
    "softmax of the loss": "log_softmax",
    "Adam": r"Adam|lerp_|addc(mul|div)_|sqrt|div$",
    "all other operators": "",
}
spent = dict.fromkeys(kinds, 0.0)
for name, cost in operators:
    kind = next(kind for kind in kinds if re.search(kinds[kind], name))
    spent[kind] += cost
listed = sum(spent.values())
for kind, cost in spent.items():
    print(f"{1000 * cost:7.1f} ms  {kind}")
assert max(spent.values()) == spent["products (mm, addmm)"]
assert spent["Adam"] > 0.03 * listed

# %% [markdown]
# On the machine that wove this page the products (`mm`, `addmm` with a bias, and part of attention) take more than half
# of the operators' time. That is less than twice their time at full speed, so this part is compute-bound, or nearly.
# However fast it became, the rest of the step would remain (**Amdahl's law**). Much of it moves many bytes for little
# arithmetic: Adam reads four numbers for each parameter and writes three, and more where its operators are not fused.
# (The list and the step were timed in different runs, and the profiler slows operators down, so look at the shares.)
#
# Numbers with fewer bits help where a step is compute-bound or memory-bound. *Fused* operators, which do several
# operations in one, help where it is memory-bound. Larger steps, or steps recorded and repeated as a whole, help where
# it is overhead-bound. The chapter follows this order.

# %% [markdown]
# ## Fewer bits
#
# Numbers of 16 bits halve the bytes that are moved, and many processors multiply them faster. What does one lose? A
# float32 has 1 bit for the sign, 8 for the **exponent** (a power of two) and 23 for the **mantissa**, its digits. The
# shorter **dtypes** have fewer: bfloat16 gives up mantissa only, float16 some of both. There are [even shorter
# ones](#what-comes-after-16-bits).

# %% range and precision of three dtypes tags=["hide-input", "nbval-check-output"]
bits = {"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}
print("        exponent  mantissa   largest  smallest   next after 1")
for name, (exponent, mantissa) in bits.items():
    dtype = torch.finfo(getattr(torch, name))
    print(
        f"{name:10}{exponent:6}{mantissa:10}{dtype.max:10.1e}"
        f"{dtype.tiny * dtype.eps:10.1e}   1 + {dtype.eps:.0e}"
    )
    assert 1 + exponent + mantissa == dtype.bits and dtype.eps == 2.0**-mantissa

# %% [markdown]
# *bfloat16* reaches about as far as float32, with two or three decimal digits. *float16* has three or four, but ends at
# 65,504.
#
# **Predict first.** Two vectors of 64 numbers, all of them 40. What is their dot product in each dtype?

# %% tags=["nbval-check-output"]
forty = torch.full((64,), 40.0)
for name in bits:
    x = forty.to(getattr(torch, name))
    print(f"{name:10}{(x @ x).item():10.0f}")
assert torch.isinf(forty.half() @ forty.half()) and forty @ forty == 102_400

# %% [markdown]
# float16 gives infinity, because 102,400 is too large for it. This is **overflow**. The softmax subtracts the largest
# score, so an infinite score gives $\infty - \infty$, which is *not a number* and spreads to everything. At the other
# end numbers vanish, which is *underflow*. Here are three small gradients, stored in 16 bits and read back. In the last
# two rows each is multiplied by a power of two before it is stored, and divided by it again afterwards, in float32:

# %% three gradients in 16 bits tags=["hide-input", "nbval-check-output"]
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
# Multiply the loss by $2^{16}$ before the backward pass. Then all gradients are 65,536 times as large, because each is
# a derivative of the loss. Divide them again, in float32, before the norm is clipped. If the scale is too large, some
# gradients become infinite, as in the last row: then skip the step, and halve the scale. PyTorch's `GradScaler` does
# all this (before clipping, call its `unscale_`). A loss scale cannot help scores that overflow in the forward pass.
#
# bfloat16 needs no loss scale, because it reaches nearly as far as float32. So it is the usual choice for training. But
# its mantissa is shorter, and that matters where something small is added to something large, as in every step of
# training.
#
#

# %% [markdown]
# ### Break it: parameters of 16 bits
#
# *If products may be rounded, round the parameters as well, and save half their memory.* Two copies of a model learn a
# straight line of slope 2. One has its parameters in bfloat16. The other has them in float32, and `torch.autocast`
# rounds its products to bfloat16. How far from 2 does the slope end?

# %% a line learnt in each tags=["hide-input"]
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
assert 0.56 < errors[torch.bfloat16][-1] < 0.57
assert errors[torch.bfloat16][-1] > 0.05 > errors[torch.float32][-1]

# %% [markdown]
# The bfloat16 parameter stops at 1.44. There two neighbouring bfloat16 numbers are 1/128 apart, and a step shorter than
# half of that rounds to nothing. The loss falls, and then is flat, as if all had been learned.
#
# So parameters stay in float32, and so do Adam's two running means, its *moments*. Only what goes into a product, and
# what comes out of it, is rounded to 16 bits. That is called **mixed precision**, with float32 *master weights*. It is
# what `torch.autocast` does, and `python -m dotformer train` where the configuration says `precision = "bfloat16"`.
#
# On a GPU `torch.autocast` also leaves softmax, norms and the loss in float32, because with few digits a long sum loses
# its small terms. In products most hardware adds in float32 and rounds only the result. That did not save the dot
# product above, because the result itself, 102,400, does not fit into float16.

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
# ## Attention without the score matrix
#
# Attention as [chapter 3](03_softmax.ipynb) has it writes a matrix of $T$ rows and $S$ columns, reads it to normalise
# each row, and reads it again to blend the values. At 16,384 tokens that is 268 million weights for each head. Yet all
# that we want is $T$ blends.
#
# The obstacle is the softmax. A weight is $e^{s_j}$ divided by the sum over *all* keys, so one seems to need all scores
# before the first weight. And since $e^{s}$ can overflow, one subtracts the largest score, which needs all of them,
# too.
#
# Now let the keys come in blocks. For each query, we keep three things about the keys seen so far:
#
# - the best score so far, $b$;
# - the sum $z = \sum_j e^{s_j - b}$;
# - the blend that has not been divided yet, $o = \sum_j e^{s_j - b}\, v_j$.
#
# If the next block brings a better score, $b'$, the old terms of $z$ and $o$ must be measured from $b'$ instead of $b$.
# Each of them changes by the same factor:
#
# $$ e^{s_j - b'} = e^{s_j - b} \cdot e^{b - b'} $$
#
# So multiply $z$ and $o$ by $e^{b - b'}$, add the block's own terms, and forget the block. After the last block, the
# blend is $o / z$.
#
# Here are three keys with the scores 0, 1 and 3 and the values 10, 20 and 30, the first two in one block:

# %% tags=["plot"] mystnb={"image": {"alt": "Online softmax, from left to right. A first block of keys and values has the scores 0 and 1, a second block the score 3. What is kept moves below them: after the first block b is 1, z 1.368 and o 23.68; then z and o are multiplied by e to the minus 2, the second block adds its own terms, and b is 3, z 1.185, o 33.20. At the end o is divided by z: 28.02."}}
from classroom.diagram import Diagram

drawing = Diagram(7.6, 2.0)
for x, scores, name in ((2.3, [0, 1], "block 1"), (4.6, [3], "block 2")):
    drawing.cells(x - 0.21 * len(scores), 1.45, scores, f"{plots.BLUE}33", 0.42)
    drawing.text(x, 1.82, f"{name}, its scores", color=plots.GREY, size=9)
    drawing.arrow((x, 1.22), (x, 0.86), color=plots.BLUE)
kept = (
    (0.55, "nothing yet", 0.96),
    (2.3, "b 1\nz 1.368\no 23.68", 0.9),
    (4.6, "b 3\nz 1.185\no 33.20", 0.9),
)
for x, label, width in kept:
    drawing.box(x, 0.48, label, width, 0.72, plots.GREY, 9)
drawing.arrow((1.05, 0.48), (1.83, 0.48))
drawing.arrow((2.77, 0.48), (4.13, 0.48), color=plots.RED)
drawing.text(3.45, 0.66, "times $e^{1 - 3}$", color=plots.RED, size=9)
drawing.arrow((5.07, 0.48), (5.75, 0.48))
drawing.text(6.5, 0.48, "o / z = 28.02")
plt.show()

# %% [markdown]
# **By hand.** After the first block $b = 1$, $z = e^{-1} + 1 = 1.368$ and $o = 10 e^{-1} + 20 = 23.68$. The second
# block brings $b' = 3$. So $z$ and $o$ shrink by $e^{-2} = 0.1353$, and the third key adds 1 to $z$ and 30 to $o$:

# %% the third key, in numbers tags=["hide-input", "nbval-check-output"]
b, z, o = 1.0, np.exp(-1) + 1, 10 * np.exp(-1) + 20
shrink = np.exp(b - 3.0)
z, o = z * shrink + 1, o * shrink + 30
print(f"shrink {shrink:.4f}   z {z:.4f}   o {o:.4f}   o / z {o / z:.4f}")
scores, values = np.array([0.0, 1.0, 3.0]), np.array([10.0, 20.0, 30.0])
weights = np.exp(scores) / np.exp(scores).sum()
print(f"softmax {weights.round(4)}, blend {weights @ values:.4f}")
assert abs(o / z - weights @ values) < 1e-12

# %% [markdown]
# The blend is the same, and at no time were there three weights. This is called **online softmax**. The function below
# does it for all queries at once: `best`, `total` and `blend` are $b$, $z$ and $o$, with one row for each query. Before
# the first block `best` is $-\infty$, so the first `shrink` is $e^{-\infty} = 0$.

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


# %% four block sizes, compared tags=["hide-input", "nbval-check-output"]
from dotformer.by_hand.attention import scaled_dot_product_attention

rng = np.random.default_rng(0)
query, key, value = (rng.normal(size=(n, 16)) * 5 for n in (50, 300, 300))
expected, _ = scaled_dot_product_attention(query, key, value)
for block in (1, 7, 128, 300):
    error = np.abs(blockwise_attention(query, key, value, block) - expected).max()
    assert error < 1e-12
    print(f"blocks of {block:3}: the same, to within 1e-12")

# %% [markdown]
# That is what `F.scaled_dot_product_attention` does where it can, in one **kernel**: a single program that runs on the
# device. A GPU has two memories: a large one (**HBM**), and a small, fast one next to the arithmetic (**SRAM**). The
# kernel brings a block of keys and values to the fast memory, uses it for a block of queries, and forgets it
# (*tiling*). No attention weight ever travels to the large memory.
#
#
#
# Attention in one such kernel is called *fused*; the name to look for is **FlashAttention**. Its backward pass computes
# the weights again, block by block ([how](#is-fused-attention-an-approximation)).

# %% tags=["proof"]
small_heads = torch.randn(1, 2, 8, 16)
for share, kernel in ((0.0, "flash_attention_for_cpu"), (0.1, "attention_math")):
    attend = partial(
        F.scaled_dot_product_attention, *[small_heads] * 3, dropout_p=share
    )
    used = [name for name, _ in profile_operators(attend, "cpu", shown=99)]
    assert any(kernel in name for name in used)

# %% tags=["quiz"]
quiz.one_choice(
    "With keys in blocks, the first block's best score is 2, its sum is 1.5. The next block has the single score 0. What is the new sum?",
    quiz.right(
        "1.5 + $e^{-2}$",
        "The best score is still 2, so nothing shrinks, and the new term is measured from it.",
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
# ## Who waits for whom?
#
# Python can slow down a fast GPU. It runs on the CPU, the *host*, and only *launches* kernels: it queues them and goes
# on. The GPU works through the queue. So there are three cases (the times are invented):

# %% tags=["plot"] mystnb={"image": {"alt": "Three schematic bands over time, each with a lane for Python, which launches four kernels, and a lane for the GPU, which runs them, with an arrow from each launch to its kernel. Large kernels: all four launches are over before kernel 1 ends, and the GPU works without a gap until kernel 4 is done. Small kernels: each launch takes nearly three times as long as its kernel, and the GPU is idle three times, between one kernel and the next. A number asked for in the middle: after two launches loss.item() makes Python wait until kernel 2 is done, then the GPU is idle until Python has launched kernel 3, and the four large kernels end later than at the top."}}
from classroom.diagram import Diagram
from classroom.plots import BLUE, GREY, INK, RED

DELAY = 0.15  # from the end of a launch to the start of its kernel, at least
drawing = Diagram(6.1, 5.25)


def x(time):
    return 0.85 + 0.67 * time


def block(start, end, y, label, color):
    width = x(end) - x(start)
    label = label if width > 0.8 else label[-1]  # where it is narrow, the number
    drawing.box(x(start) + width / 2, y, label, width - 0.05, color=color)


bands = [  # heading, time of a launch, time of a kernel, kernel whose result is asked for
    ("Large kernels: the GPU's work sets the time", 0.5, 1.5, None),
    ("Small kernels: Python's launches set the time", 1.4, 0.5, None),
    ("A number asked for in the middle: each waits for the other", 0.5, 1.5, 2),
]
for band, (heading, launch, kernel, asked) in enumerate(bands):
    top = 5.05 - 1.63 * band
    above, below = top - 0.38, top - 1.13
    drawing.text(0.1, top, heading, at="left", size=12)
    drawing.text(0.1, above, "Python", at="left")
    drawing.text(0.1, below, "GPU", at="left")
    python = gpu = 0.0  # when each is done with what it has begun
    for n in range(1, 5):
        block(python, python + launch, above, f"launch {n}", GREY)
        python += launch
        start = max(python + DELAY, gpu)
        if 0 < gpu < start:
            drawing.text(x((gpu + start) / 2), below, "idle", color=RED)
        drawing.arrow(
            (x(python - 0.1), above - 0.2), (x(start + 0.12), below + 0.2)
        )
        gpu = start + kernel
        block(start, gpu, below, f"kernel {n}", BLUE)
        if n == asked:
            block(python, gpu + DELAY, above, "loss.item() waits", RED)
            python = gpu + DELAY
            ends = (x(gpu - 0.1), below + 0.2), (x(python - 0.1), above - 0.2)
            drawing.arrow(*ends, color=RED)
drawing.text(x(2.15), 4.67, "all launched, runs ahead", at="left")
drawing.arrow((x(0), 0.24), (x(7.55), 0.24), color=INK)
drawing.text(0.1, 0.24, "time", at="left")
plt.show()

# %% [markdown]
# With large kernels, Python runs ahead, the queue is never empty, and the GPU never waits. With small ones, each ends
# before the next is launched, so the GPU waits: the step is overhead-bound. If Python asks for a number, such as the
# loss, it waits until all these are done. Then the GPU waits for the next launch. That is a **host-device
# synchronisation**. So store `loss.detach()`, which stays on the device, and call `.item()` only every hundred steps or
# so.

# %% [markdown]
# ## A ladder
#
# Each rung changes one thing about *how* a step is computed, on top of the rungs before. *What* is computed, the loss
# and the gradient, must stay the same. So dropout is off, because two kernels would drop different entries, and the
# learning rate is 0, so that every rung has the same parameters. On the CPU the model is the small one, on the GPU the
# paper's base model.
#
# | rung | what changes | why it may be faster |
# |---|---|---|
# | float32 | nothing; attention writes its weights out | |
# | tf32 | numbers stay float32, but products read 10 bits of each mantissa instead of 23 | then a GPU can use its **tensor cores**, units for small matrix products |
# | bf16 | products read and write numbers of 16 bits | half the bytes, and tensor cores or, on a CPU, **matrix units**, which do the same |
# | fused attention | the weights are never written out ([as above](#attention-without-the-score-matrix)) | fewer bytes, fewer kernels |
# | compile | neighbouring operations become one **fused kernel** | fewer bytes, fewer kernel launches |
# | fused AdamW | a few kernels update all parameters (AdamW is Adam with its weight decay kept apart) | fewer kernel launches |
# | no waiting | Python no longer asks whether the norm of the gradient is finite ([below](#a-trainer-that-does-not-wait)) | it can go on launching within the step (our clock waits after each) |
# | padded vocabulary | in the small model, 6,001 rows become 6,016 = 94 · 64: rows of zeros, whose logits are cut off | a GPU's fastest kernels read several numbers at once, so they need rows that begin at multiples of 16 bytes |
# | larger batch | the same pairs, 4 times over | larger products (but a gain only if training then needs fewer steps) |
# | batches made between steps | each batch is cut and padded only when its step needs it; until here every step reused one batch, made in advance | slower, because the device waits for the batch, as it does in real training |
# | batches prefetched | another process **prefetches** them, and a thread puts them into *pinned* memory, from which a GPU copies by itself | the device need not wait |
# | CUDA graph | a recorded step is repeated ([below](#record-a-step-and-repeat-it)) | one launch a step; on CUDA devices only |
# | checkpointing, added to *larger batch* | the **activations** inside a layer, which the forward pass leaves for the backward pass, are computed again, not kept | slower, but needs less memory |
#
# Half of the rungs are a single PyTorch call:
#
# - tf32: `torch.set_float32_matmul_precision("high")`
# - bf16: `torch.autocast(device, torch.bfloat16)` around the forward pass
# - fused attention: `F.scaled_dot_product_attention(q, k, v, mask)`
# - compile: `layer.forward = torch.compile(layer.forward)`
# - fused AdamW: `torch.optim.AdamW(parameters, fused=True, weight_decay=0.0)`; without the last argument PyTorch
#   shrinks every weight a little at each step, which Adam does not
# - checkpointing: `checkpoint(layer, x, use_reentrant=False)`

# %% tags=["hide-input", "export"] module="devices"
import os
from collections.abc import Callable, Iterable

from dotformer.support.progress import Stream
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of all stacks of a model."""
    return [one for part in model.modules() for one in getattr(part, "layers", ())]


def prepare_layers(
    model: nn.Module, compiled: bool = False, checkpointing: bool = False
) -> None:
    """Let a model's layers be compiled, one by one, or keep only their input.

    With `checkpointing` they compute the rest a second time, after Chen and others
    (2016). Names of parameters stay.
    """
    for layer in layers_of(model):
        if compiled:
            layer.forward = torch.compile(layer.forward)
        if checkpointing:  # outside, since it would keep the compiler out
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def pad_vocabulary(model: nn.Module, multiple: int) -> None:
    """Add rows of zeros to a model's output matrix, up to a multiple, for speed.

    Embeddings that share it get them too. The model computes the same.
    """
    weight, rows = model.output.weight, model.output.out_features
    padded = nn.Parameter(F.pad(weight.detach(), (0, 0, 0, -rows % multiple)))
    for module in model.modules():
        if getattr(module, "weight", None) is weight:
            module.weight = padded
    model.output.register_forward_hook(lambda _, __, logits: logits[..., :rows])


# %% tags=["hide-input", "export"] module="devices"
def prefetch(
    batches: Callable[[], Iterable], pin: bool = False, start: str | None = None
) -> DataLoader:
    """The batches that a function gives, made by another process.

    With `pin` they arrive in memory from which a GPU can copy by itself. `start` is
    how the process starts: a fork, where there is one, knows what a notebook has
    defined, but may hang if it is made beside NCCL.
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


# %% tags=["hide-input", "export"] module="devices"
from dataclasses import dataclass
from typing import Any, Literal

from dotformer.support.settings import check_settings


@dataclass(frozen=True)
class Setup:
    """How a training step is computed. What it computes is the same for all."""

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
    """The rungs of the ladder: what each changes in the one before."""
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


# %% tags=["hide-input", "export"] module="devices"
from functools import partial

from dotformer.attention import MultiHeadAttention
from dotformer.support.benchmark import Workload, feed, measure_steps
from dotformer.support.checkpoints import keep_random_state
from dotformer.support.modes import matmul_precision
from dotformer.training import Trainer, TrainingConfig, cross_entropy, pair_batches


def configure(model: Transformer, setup: Setup) -> Transformer:
    """Change a model, in place, so that it computes in the way of a setup."""
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
    """What a step costs in the way of a setup: what `measure_steps` finds."""
    step, model = training_step(workload, setup, device)
    pairs, n = workload.pairs * setup.batch, workload.length
    flops = sum(training_flops(workload.config, pairs, n, n).values())
    return measure_steps(step, model, flops, device, steps)


# %% [markdown]
# Here are five rungs, live, each alone: the median of seven steps with its quartiles, and the memory. The last column
# is the distance of a rung's gradient from the first rung's, as a share of the norm of the first. The last rung, bf16,
# can be many times slower on a processor without instructions for it. The one that wove this page may have them:
# compare the last row with the first.

# %% five rungs, one at a time tags=["hide-input"]
from dotformer.support.benchmark import climb

workload = Workload(small, pairs=16, length=24)
alone = {
    "float32": Setup(),
    "fused attention": Setup(fused_attention=True),
    "fused AdamW": Setup(fused_optimizer=True),
    "checkpointing": Setup(checkpointing=True),
    "bf16": Setup("bfloat16"),
}
for row in climb(partial(measure, workload, device=device, steps=7), alone):
    low, middle, high = (1000 * seconds for seconds in row["seconds"])
    print(
        f"{row['name']:16}{middle:7.1f} ms ({low:.1f} to {high:.1f})"
        f"{row['peak_memory'] / 1e6:7.1f} MB   {row['gradient_error']:.0e}"
    )
    rounds = row["name"] == "bf16"
    assert row["loss_error"] < 1e-3 and row["gradient_error"] < 0.05
    assert (row["gradient_error"] > 1e-3) == rounds

# %% tags=["proof"]
exact = {
    "float32": Setup(),
    "fused attention": Setup(fused_attention=True),
    "padded vocabulary": Setup(vocabulary_multiple=64),
    "checkpointing": Setup(checkpointing=True),
}
few = Workload(small, pairs=2, length=8)
for row in climb(partial(measure, few, device="cpu", steps=2), exact):
    assert row["gradient_error"] < 1e-5, row["name"]
ends = []
for fused in (False, True):
    torch.manual_seed(0)
    line_, noise = nn.Linear(8, 8), torch.randn(10, 4, 8)
    adam = torch.optim.AdamW(line_.parameters(), lr=0.01, fused=fused)
    for given in noise:
        adam.zero_grad()
        line_(given).square().mean().backward()
        adam.step()
    ends.append(line_.weight.detach())
assert torch.allclose(*ends, rtol=0, atol=1e-6)

# %% [markdown]
# ### All rungs on a GPU
#
# Here is the whole ladder on an H200. The steps have 100 pairs of 64 tokens, and from *larger batch* on 400 pairs. The
# columns:
#
# - *ms a step* is a median, with the quartiles in brackets.
# - *tokens/s* counts the tokens of both sides.
# - *gain* is in speed, over the rung before, and for checkpointing over *larger batch*.
# - *MB* is the peak allocation.
# - *MFU* is the share of the peak measured on this GPU in the same precision: 52 TFLOP/s in float32, 395 in tf32 and
#   773 in bf16.
#
# **Predict first.** Which rungs are slower than the one before?

# %% all rungs, as measured tags=["hide-input"]
from classroom.measured import measured


def show_ladder(found):
    """Print the rungs of a measured ladder; the rungs by name, and what each gains."""
    rungs_by_name = {
        r["name"]: r for r in found["measurements"] if r["what"] == "rung"
    }
    changes, last = {}, None
    used = "   MFU" if any(row["mfu"] for row in rungs_by_name.values()) else ""
    print(f"{'':26}    ms a step    tokens/s  gain     MB  gradient error{used}")
    for name, row in rungs_by_name.items():
        speed = row["tokens_per_second"]
        if name == "checkpointing":
            last = rungs_by_name["larger batch"]["tokens_per_second"]
        changes[name] = speed / last - 1 if last else 0.0
        low, high = (1000 * seconds for seconds in row["quartiles"])
        print(
            f"{name:26}{1000 * row['seconds']:6.0f} ({low:3.0f}-{high:3.0f}){speed:10,.0f}"
            f"{changes[name]:+6.0%}{row['peak_memory'] / 1e6:7.0f}"
            f"  {row['gradient_error']:.0e}"
            + (f"{row['mfu']:15.0%}" if row["mfu"] else "")
        )
        last = speed
    return rungs_by_name, changes


on_gpu = measured("ladder-cuda")
print(on_gpu["accelerator"], on_gpu["date"])
there, gains = show_ladder(on_gpu)

# %% [markdown]
# Read the gradients first. In 16 bits rounding alone puts them 4 to 5 percent off. That hides smaller errors, and a
# learning rate of 0 hides a wrong update. So a folded proof compares four rungs again, in float32, on a CPU and with a
# small model: the gradients with fused attention, a padded vocabulary and checkpointing agree to 1e-5, and ten steps
# with fused AdamW are the same as with plain AdamW. Not in that proof are the GPU's own kernels, the updates of *no
# waiting* and *CUDA graph*, and *compile*, of which we know only that its gradients are about as far off as those of
# bf16.
#
#

# %% [markdown]
# *Compile* saves more memory than time: what passes between two operations inside one fused kernel is never written, so
# fewer activations are kept. Checkpointing lowers the MFU, because the MFU counts only the FLOPs that the model needs,
# not those that are done again.
#
# Now the times. At *larger batch*, 400 pairs take 55 ms, where 100 took 45 to 81 in 16 bits. So most of a step's time
# does not grow with the work. Probably the GPU [waits for launches](#who-waits-for-whom). A **CUDA graph** can test
# that: PyTorch records all launches of a step, and from then on one call repeats them all
# ([how](#record-a-step-and-repeat-it)). What remains in such a *recorded* step is the GPU's own time. A step without a
# graph is called *launched*. Among others, steps of 64, of 256 and (on the ladder) of 400 pairs were recorded. A
# straight line through these three times says what 100 pairs would take:

# %% launched, recorded, and a line tags=["hide-input"]
batches = measured("throughput-cuda")["measurements"]
recorded = {row["pairs"]: 1000 * row["seconds"] for row in batches}
recorded[400] = 1000 * there["CUDA graph"]["seconds"]
sizes = [64, 256, 400]
per_pair, fixed = np.polyfit(sizes, [recorded[n] for n in sizes], 1)
launched = {100: "no waiting", 400: "batches prefetched"}
print(on_gpu["accelerator"], on_gpu["date"])
print("         ms a step")
print("pairs    launched   recorded   line through the recorded")
for n in (64, 100, 256, 400):
    one = (
        f"{1000 * there[launched[n]]['seconds']:8.0f}" if n in launched else 8 * " "
    )
    other = f"{recorded[n]:11.0f}" if n in recorded else 11 * " "
    print(f"{n:5} {one} {other} {fixed + per_pair * n:11.0f}")
assert round(per_pair, 2) == 0.09 and round(fixed) == 5
assert round(fixed + 100 * per_pair) == 14

# %% [markdown]
# The three recorded times lie nearly on the line. So for 100 pairs the GPU's own work takes about 14 ms. The launched
# step takes 45 (*no waiting*), or 49 with the padded vocabulary that the recorded ones have. All above 14 is mostly
# waiting: this step is overhead-bound, and the steps from *tf32* on probably too. That may be why bf16 is slower than
# tf32 here: autocast adds kernels that convert numbers, each one more launch.
#
# So the gains and losses from *tf32* to *padded vocabulary* say little about a GPU that is kept busy, and some of them
# change their sign on [another host](#where-do-the-40-ms-go). The tf32 step is a fifth shorter, but its MFU is smaller,
# because tf32 has a peak more than seven times as high.
#
# The hours of the introduction are for 100,000 steps of 400 pairs, 51,200 tokens of both sides. If each takes four
# times the 85 ms of the first rung's 100 pairs, that is 9.4 hours. At the recorded step's 40 ms it is 1.1 hours, if
# every batch is full and has the recorded shape. That step's MFU is 32 percent ([why not
# more?](#how-much-of-the-peak-can-a-narrow-model-use)).
#
#
#
# On one core of a CPU [the same ladder](#the-same-ladder-on-a-cpu) looks different: fused attention and compiling lose
# speed. So measure before you believe a list of what is fast.

# %% tags=["proof"]
other = measured("ladder-cuda-faster-host")
assert other["accelerator"] == on_gpu["accelerator"]
assert "cudnn_generated_fort_native_sdpa" in str(on_gpu)
assert {f"{row['gradient_error']:.0e}" for row in [*there.values()][2:]} <= {
    "4e-02",
    "5e-02",
}
peaks = [
    there[name]["flops_per_second"] / there[name]["mfu"] / 1e12
    for name in ("float32", "tf32", "bf16")
]
assert np.round(peaks).tolist() == [52, 395, 773]
less = {
    row["name"]: 1 - row["seconds"] / there[row["name"]]["seconds"]
    for row in other["measurements"]
    if row["what"] == "rung"
}
assert abs(less.pop("CUDA graph")) < 0.005
assert [round(100 * f(less.values())) for f in (min, max)] == [8, 37]
assert round(100 * gains["no waiting"]) == 17 and 0 < gains["fused AdamW"] < 0.06
short = [row["seconds"] for name, row in there.items() if row["pairs"] == 100]
assert [round(1000 * s) for s in (min(short[2:]), max(short[2:]))] == [45, 81]
ms = {name: 1000 * row["seconds"] for name, row in there.items()}
names = "larger batch", "batches prefetched", "CUDA graph"
assert [round(ms[name]) for name in names] == [55, 58, 40]
busy, between, ahead = (
    there[name]["tokens_per_second"]
    for name in ("larger batch", "batches made between steps", "batches prefetched")
)
assert round(1 - between / busy, 2) == 0.33 and between < 0.9 * busy < ahead
low, high = there["CUDA graph"]["quartiles"]
assert round(high - low, 4) == 1e-4 and round(there["CUDA graph"]["mfu"], 2) == 0.32
peak_in_16_bits = (
    total / there["CUDA graph"]["seconds"] / there["CUDA graph"]["mfu"]
)
assert 760e12 < peak_in_16_bits < 790e12

# %% [markdown]
# What the ladder has taught goes into `FastTrainer`, which `python -m dotformer train` uses
# ([how](#a-trainer-that-does-not-wait)).

# %% [markdown]
# ## What if it does not fit?
#
# A step holds four things in memory:
#
# - the parameters;
# - a gradient for each parameter;
# - the **optimiser state**, for Adam two moments for each parameter;
# - the activations that the forward pass leaves for the backward pass, those of the loss included.
#
# The first three take 16 bytes for each parameter, four numbers of 4, however large the batch is. The activations grow
# with the batch and the length.
#
# Mixed precision shortens only activations, and not all of them. The other three stay in float32.
#
# **By hand.** Without dropout, and with fused attention, a layer keeps for each token, in multiples of $D$ numbers:
#
# | kept | encoder | decoder |
# |---|---|---|
# | the layer's input; query, key, value, blend | 5 | 5 |
# | two sums, and the norm between them | 3 | 3 |
# | the hidden layer | 4 | 4 |
# | cross-attention: query, key, value, blend, sum, norm | | 6 |
# | together | 12 | 18 |
#
# And each target has $V$ logits, $V$ logarithms of probabilities, and the gradients of both. The base model has six
# layers a side, so a pair of 64 tokens and 63 targets takes, with 4 bytes a number,
#
# $$4 \cdot \big( 6 \cdot (12 \cdot 64 + 18 \cdot 63) \cdot 512 + 4 \cdot 63 \cdot 37{,}000 \big) = 60.7 \text{ MB}.$$
#
# A helper, `training_memory`, measures what PyTorch saves for the backward pass, and adds three of the four arrays as
# large as the logits, because PyTorch saves only one. The sum is an upper bound, because [not all need exist at the
# same moment](#must-all-logits-exist-at-once):

# %% one training step's memory, measured and summed tags=["hide-input"]
from dotformer.support.memory import training_memory

large = Transformer(base)
pair = torch.randint(3, 37_000, (2, 1, 64))
state, activations = training_memory(large, cross_entropy, *pair)
by_hand = 4 * (6 * (12 * 64 + 18 * 63) * 512 + 4 * 63 * 37_000)
print(f"parameters, gradients, moments {state / 1e6:7,.0f} MB")
print(
    f"one pair: by hand {by_hand / 1e6:.1f} MB, helper {activations / 1e6:.1f} MB"
)
assert round(by_hand / 1e6, 1) == 60.7 and 1 < activations / by_hand < 1.02
assert round(3 * 4 * 63 * 37_000 / 1e6) == 28 and round(activations / 1e6) == 61
assert round(4 * 4 * 63 * 37_000 / 1e6) == 37

# %% [markdown]
# From such a sum `memory_advice` says what has to shrink so that a tenth stays free. `python -m dotformer train` prints
# such a line when a GPU's memory runs out:

# %% advice tags=["hide-input"]
from textwrap import fill

from dotformer.support.memory import memory_advice

rows = torch.randint(3, 37_000, (400, 64))
advice = memory_advice(large, cross_entropy, rows, rows, int(24e9))
print(fill(advice, 76, subsequent_indent="    "))

# %% [markdown]
# So here it is the batch that is too large. By hand, 37 of the 61 MB of a pair are logits and arrays of their size. But
# the logits never have to exist all at once: PyTorch's `F.linear_cross_entropy` can compute loss and gradients [for
# some targets at a time](#must-all-logits-exist-at-once).
#
# Two other ways out cost time instead of memory. With *gradient accumulation* you split the batch and add up the
# gradients ([chapter 11](11_training.ipynb#break-it-the-mean-of-means)). With **activation checkpointing** you keep
# only what goes into each layer, and compute the layer again when the backward pass needs its activations. Hugging Face
# calls it *gradient checkpointing*.
#
# Checkpointing costs one more forward pass through the layers, a third more work for them. The step took 1.3 times as
# long on one host with an H200 and 1.5 times on another, where launches, which are repeated too, may have been slower.
# And it shrinks only the other 23 MB of a pair, not the logits.

# %% tags=["quiz"]
quiz.several_choices(
    "Training runs out of memory. `memory_advice` says: the model and Adam need 1 of 8 GB, the batch 10. Which of these are enough, or may be? (More than one may be right.)",
    quiz.right(
        "Half of the batch, twice for each step",
        "The gradient is the same, if the loss is divided by the targets of both halves together.",
    ),
    quiz.right(
        "Activation checkpointing",
        "It keeps less of the 10 GB, and computes the layers twice.",
    ),
    quiz.wrong(
        "An optimiser without moments, such as plain gradient descent",
        "The two moments are half of the 1 GB. The 10 would be as large as before.",
    ),
    quiz.wrong(
        "Half the learning rate",
        "A learning rate changes what the numbers are, not how many there are.",
    ),
)

# %% [markdown]
# ### What to try, by what you see
#
# | what you see | the step is | try |
# |---|---|---|
# | a batch four times as large takes hardly any longer, and the device is idle between kernels | overhead-bound | larger batches; on a GPU CUDA graphs |
# | the device is idle between steps | waiting for data | prefetching |
# | products take a small part of the time, and a batch four times as large takes four times as long | memory-bound | 16 bits; on a GPU fused kernels, on a CPU memory that is kept |
# | products take most of it, near their speed | compute-bound | 16 bits on tensor cores; then more devices |
# | products take most of it, far below their speed | made of small or narrow products | larger batches, padded sizes, a wider model |
# | out of memory | | smaller batches and gradient accumulation, checkpointing |
#
# ## Exercises
#
# ### Exercise 1: Two halves of the keys
#
# *Medium, 15 minutes.* A query has attended to the first half of the keys on one device and to the second half on
# another. Each returns its best score $b$, its sum $z$ and its blend $o$ before the division (a vector). Return the
# blend over all keys.


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
# The merging needs neither an order nor exactly two halves. So the keys of a very long text can lie on many devices,
# and once all have the queries, they exchange only three things for each query.
#
# ### Exercise 2: The floor
#
# *Easy, 10 minutes.* Given the FLOPs and the bytes of some work, and a machine's peak compute in FLOP/s and its memory
# bandwidth in bytes per second, return the shortest time that it can take, if both go on at once.


# %% tags=["exercise"]
def shortest_time(flops, moved, peak_compute, bandwidth):
    """Seconds below which no program can get."""
    ...


# %% tags=["check"]
def roofline(flops, moved, peak_compute, bandwidth, join=max):
    return join(flops / peak_compute, moved / bandwidth)


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
        "FLOPs go by the peak compute, bytes by the bandwidth": (
            lambda flops, moved, peak, width: max(flops / width, moved / peak)
        ),
    },
)
check_time(shortest_time)


# %% tags=["solution"]
def shortest_time(flops, moved, peak_compute, bandwidth):
    return max(flops / peak_compute, moved / bandwidth)


verdict = check_time(shortest_time)
assert verdict.passed, verdict
verdict

# %% [markdown]
# That is the grey line of the [roofline](#how-fast-could-it-be), read as a time instead of a speed.
#
# ## In one breath
#
# Each part of a step is a known number of FLOPs and of bytes, and the longer of its two times is its floor. Where parts
# run one after another, the step's floor is the sum of theirs. Part of the time above the floor is waiting, which
# recorded steps and prefetched batches win back. The floor itself sinks if fewer bytes are moved, as in fused
# attention, or if arithmetic is faster, as with 16 bits where the processor has units for it. Each such change must
# leave the gradient as it was, but for rounding. Where memory is short, you can compute activations twice instead of
# keeping them.
#
# **Sources.** The roofline: [Williams, Waterman and Patterson (2009)](https://doi.org/10.1145/1498765.1498785). Online
# softmax: [Milakov and Gimelshein (2018)](https://arxiv.org/abs/1805.02867); attention in blocks: [Rabe and Staats
# (2021)](https://arxiv.org/abs/2112.05682), and on a GPU [Dao and others (2022)](https://arxiv.org/abs/2205.14135).
# Mixed precision and the loss scale: [Micikevicius and others (2018)](https://arxiv.org/abs/1710.03740); bfloat16 for
# training: [Kalamkar and others (2019)](https://arxiv.org/abs/1905.12322). Activation checkpointing: [Chen and others
# (2016)](https://arxiv.org/abs/1604.06174). Six FLOPs for each parameter and token: [Kaplan and others
# (2020)](https://arxiv.org/abs/2001.08361), section 2.1.
#
# **Next.** One device has a floor. Chapter 21 puts several to work on one model, and begins by making sure that two of
# them compute what one would have computed.

# %% [markdown]
# ## Going further
#
# Eleven points about a step. Later chapters repeat what they need of them.
#
# ### The same ladder on a CPU
#
# All rungs of [the ladder](#a-ladder), on one core of a CPU that has matrix units, with the small model and twice as
# many pairs (`python -m benchmarks.gpu --device cpu --sections ladder`). On one core a second process that makes
# batches can hardly gain anything.

# %% all rungs on a CPU, as measured tags=["hide-input"]
whole, changes = show_ladder(measured("ladder-cpu"))
assert all(row["loss_error"] < 1e-3 for row in whole.values())
assert all(row["gradient_error"] < 0.035 for row in whole.values())

# %% [markdown]
# Differences of a few percent may be chance. bf16, with attention written out, is the fastest, twice as fast as
# float32. Fused attention then loses a third of the speed (we have not tested why), and compiling a seventh of what is
# left. Checkpointing, compared with *larger batch*, is slower and needs little more than half of the memory. On a GPU,
# with a text of 16,384 tokens, the fastest fused kernel takes a [tenth of the
# time](#how-do-time-and-memory-grow-with-the-length) of attention written out.

# %% tags=["proof"]
assert 1 < changes["bf16"] < 1.2 and -0.16 < changes["compile"] < -0.13
assert -0.35 < changes["fused attention"] < -0.32
assert round(100 * changes["larger batch"]) == 11
rest = ["tf32", "fused AdamW", "no waiting", "padded vocabulary"]
rest += ["batches made between steps", "batches prefetched"]
assert all(abs(changes[name]) < 0.035 for name in rest)
assert max(whole, key=lambda name: whole[name]["tokens_per_second"]) == "bf16"
assert changes["checkpointing"] < -0.15
assert {f"{row['gradient_error']:.0e}" for row in [*whole.values()][2:]} == {
    "3e-02"
}
memory = {name: row["peak_memory"] for name, row in whole.items()}
assert memory["checkpointing"] < 0.6 * memory["larger batch"]
assert memory["fused attention"] < memory["bf16"]

# %% [markdown]
# ### What do page faults cost?
#
# A large array, when freed, goes back to the operating system, and the next one comes from there in pages (mostly of 4
# KiB). At the first touch of a page the program waits until the system has filled it with zeros: a **page fault**.
# `keep_freed_memory` tells the C library of Linux to keep what is freed. The step [above](#where-does-it-go), before
# and after that:

# %% time and page faults tags=["hide-input"]
for name, (taken, count) in costs.items():
    print(f"{name:12}{1000 * taken:6.0f} ms {count:8,.0f} page faults a step")

# %% [markdown]
# Nearly all page faults are gone, for some more memory. (How much time that saves depends on the machine. Runs differ,
# too: compare the same step, with memory kept, [above](#where-does-it-go).) From that step on this notebook reuses what
# it frees, and `python -m dotformer train` does, too. On a GPU PyTorch has done the same all along, with its **caching
# allocator**.
#
# ### A step, from left to right
#
# The profiler's list in [Where does it go?](#where-does-it-go) says how long each operator takes, and not when. A
# **timeline** of the same step does:

# %% tags=["plot"] mystnb={"image": {"alt": "A training step as a band from left to right, coloured by what the operators do. The forward pass, mostly products and a softmax at its end; the backward pass, which is longer, again mostly products; a short time to clip the gradients; and Adam, all of it other work."}}
from dotformer.support.benchmark import timeline

kinds = {
    "products": (plots.BLUE, ("::mm", "::addmm", "::bmm", "::baddbmm")),
    "attention": (plots.TEAL, ("attention",)),
    "softmax, loss": (plots.GOLD, ("softmax", "nll_loss")),
    "norms": (plots.RED, ("layer_norm",)),
}
events = timeline(step)
figure, axes = plt.subplots(figsize=(7.6, 1.9))
for name, _, start, end in events:  # what an operator calls is drawn over it
    if not name.startswith("aten::"):
        continue
    color = next(
        (color for color, parts in kinds.values() if any(p in name for p in parts)),
        plots.GREY,
    )
    width = 1000 * (end - start)
    axes.barh(0, width, 0.8, 1000 * start, color=color, rasterized=True)
backward = [row for row in events if row[1].startswith("autograd")]
adam = next(row for row in events if row[0].startswith("Optimizer.step"))
borders = [0, backward[0][2], max(row[3] for row in backward), adam[2], adam[3]]
names = ["forward", "backward", "clip", "Adam"]
for n, (name, left, right) in enumerate(
    zip(names, borders, borders[1:], strict=False)
):
    axes.axvline(1000 * right, color=plots.INK, lw=0.8)
    axes.text(500 * (left + right), 0.75 if n != 2 else 1.15, name, ha="center")
labels = [(kind, color) for kind, (color, _) in kinds.items()]
for x, (kind, color) in zip(
    (0.02, 0.2, 0.38, 0.62, 0.78), [*labels, ("all else", plots.GREY)], strict=True
):
    axes.text(x, -0.75, kind, color=color, transform=axes.transAxes)
axes.set(yticks=[], ylim=(-0.5, 1.5), xlabel="milliseconds")
axes.spines["left"].set_visible(False)
plt.show()

# %% tags=["proof"]
assert borders == sorted(borders)
assert str(device) != "cpu" or borders[2] - borders[1] > borders[1]

# %% [markdown]
# The backward pass is longer than the forward pass, because each product has two there. The softmax stands where one
# ends and the other begins, with 6,001 numbers for each target. Adam is made of many short operators. White is the
# time between operators, in which Python or autograd's engine decides what comes next.
#
# Here one operator follows the other. On a GPU there would be a second band below, for the kernels, and where that is
# white the GPU waits.

# %% [markdown]
# ### What comes after 16 bits?
#
# **FP8** has 4 bits of exponent and 3 of mantissa (*E4M3*), or 5 and 2 (*E5M2*; [Micikevicius and others,
# 2022](https://arxiv.org/abs/2209.05433)), so few that each tensor, or each block of its numbers, needs a scale of its
# own. DeepSeek-V3 was trained with the first kind ([DeepSeek-AI, 2024](https://arxiv.org/abs/2412.19437)). There are
# formats of 4 bits, too: in the *MX* formats a block of 32 numbers shares a scale ([Rouhani and others,
# 2023](https://arxiv.org/abs/2310.10537)), in NVIDIA's *NVFP4* one of 16, with which a model of 12 billion parameters
# has been trained ([NVIDIA, 2025](https://arxiv.org/abs/2509.25149)).

# %% [markdown]
# ### How much of the peak can a narrow model use?
#
# On the H200 the recorded step of 400 pairs has an MFU of 32 percent. We had aimed at 40. Is a model of width 512 too
# narrow for that? Ask the roofline, with the peak and the bandwidth that were measured on this GPU. In 16 bits its
# ridge point is 180 FLOPs per byte.
#
# A projection by a matrix of 512 rows and columns does $2 \cdot 512^2$ FLOPs for a token, and moves at least its 512
# numbers in and 512 numbers out, 2,048 bytes. With many tokens, beside which the matrix hardly counts, that is 256
# FLOPs per byte. So a projection is compute-bound on this GPU, and so are the feed-forward network and the output
# matrix, which do more FLOPs per byte. Nearly all else (norms, sums, activation functions, attention in short
# sentences, the loss, the update) does fewer than 180 FLOPs per byte, and is memory-bound.
#
# Kernels run one after another, and each takes the longer of its two times. So on the roofline a step takes the time of
# its products at the peak, plus the time in which all else moves its bytes at full bandwidth. (Attention, memory-bound
# here, counts as a whole among all else, with its products.)
#
# `python -m benchmarks.traffic` counts these bytes for the recorded step. PyTorch's compiler says what each kernel that
# it has made for the layers reads and writes; what is outside of them is counted operator by operator. The loss alone
# is counted by hand: it reads the logits once on the way forward and once on the way back, when it also writes their
# gradient. This is an estimate and not a strict limit: it is counted on a CPU, where the compiler may fuse a little
# differently, and what is still in the GPU's cache costs less.
#
# **Predict first.** The products outside attention take 12.5 ms at the peak. How many ms does all else add?

# %% a whole step under the roofline tags=["hide-input"]
from dataclasses import replace

operations = {
    row.get("name", row["what"]): row
    for row in measured("roofline-cuda")["measurements"]
    if row["what"] in ("ridge point", "operation")
    if row["dtype"] == "bfloat16" or row.get("name") == "Adam step"  # in float32
}
print(measured("roofline-cuda")["accelerator"], measured("roofline-cuda")["date"])
ridge = operations["ridge point"]
gpu_peak, gpu_bandwidth = ridge["flops_per_second"], ridge["bandwidth"]
counted = measured("traffic")
outside = counted["bytes"]["embeddings and logits"]
layers = [counted["bytes"][f"{kind} layer"] for kind in ("encoder", "decoder")]
traffic = {  # bytes; six layers of each kind, and logits of 2 bytes
    "norms, sums, activations": 6 * sum(layer["fused"] for layer in layers),
    "attention": 6 * sum(layer["attention"] for layer in layers),
    "loss": 3 * 2 * 400 * 64 * 37_003,
    "gradient of cut logits": outside.pop("aten::slice_backward"),
    "embeddings": sum(outside.values()) - outside["aten::mm"],  # without a product
    "clipping and AdamW": sum(counted["bytes"]["update"].values()),
}
base = TransformerConfig(37_003, 37_003, share_embeddings=True)


def parameters(config):
    """How many parameters a model has; none is made."""
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(config).parameters())


def on_roofline(d):
    """The FLOPs of a step of width d by kind of product; ms of each part."""
    config = replace(base, d_model=d, num_heads=d // 64, d_ff=4 * d)
    flops = training_flops(config, 400, 64, 64)
    grown = dict.fromkeys(traffic, d / 512)  # most bytes are in vectors of tokens
    grown["loss"] = grown["gradient of cut logits"] = 1
    grown["clipping and AdamW"] = parameters(config) / parameters(base)
    moving = {p: 1000 * traffic[p] * grown[p] / gpu_bandwidth for p in traffic}
    products = sum(flops.values()) - flops["scores and sums"]  # part of attention
    return flops, {"products": 1000 * products / gpu_peak} | moving


def mfu(flops, times):
    """The share of the peak that a step uses, from its FLOPs and the ms of its parts."""
    return 1000 * sum(flops.values()) / gpu_peak / sum(times.values())


flops, least = on_roofline(512)
print(f"{'':32}work     ms")
for part, took in least.items():
    work = f"{gpu_peak * took / 1e15:.1f} TFLOP"
    if part in traffic:
        work = f"{traffic[part] / 1e9:.1f} GB"
    print(f"{part:26}{work:>10}{took:7.1f}")
print(f"{'sum':36}{sum(least.values()):7.1f}")
for d in (512, 1024, 4096):
    print(f"width {d:5,}: {mfu(*on_roofline(d)):.0%} of the peak")

# %% [markdown]
# The rest adds nearly as much again. So if every kernel lay on the roofline, a step of this width could use about half
# of the peak, before any launch and any waiting. Most of the bytes in the list belong to norms, sums and activations,
# although the compiler has fused them. (Kernels that do more at once would move fewer.) With the width, the bytes of
# tokens and the FLOPs of output and attention grow in proportion, and those of all other products with the square. So a
# wide model has its limit nearer to the peak: some 85 percent at width 4,096.
#
# Real kernels stay below the roofline. On the left are some that were timed alone on the H200, in 16 bits (Adam in 32).
# On the right is the MFU of a recorded step, over the pairs in a batch.

# %% tags=["plot"] mystnb={"image": {"alt": "Left: FLOP/s over FLOPs per byte of an H200, both logarithmic. Adam, softmax and one-token generation lie near the rising line, layer norm below it, the projection and the feed-forward network a little below the flat one. Right: the share of the peak over the pairs in a batch rises from under 1 percent at one pair to 35 percent at 1,600, and flattens from 1,024 on."}}
figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2))
intensity = np.geomspace(0.2, 1000, 200)
left.loglog(
    intensity, np.minimum(gpu_peak, intensity * gpu_bandwidth), color="grey"
)
labels = {
    "one-token generation": ("one token", (-3, 6), "right"),
    "softmax": ("softmax", (4, 6), "left"),
    "layer norm": ("layer norm", (7, -6), "left"),
    "Adam step": ("Adam", (0, 7), "right"),
    "projection": ("projection", (6, -15), "center"),
    "feed-forward": ("feed-forward", (12, 9), "right"),
}
for name, (label, place, side) in labels.items():
    row = operations[name]
    dot = row["intensity"], row["flops_per_second"]
    left.loglog(*dot, "s", color=plots.TEAL, ms=5)
    left.annotate(label, dot, place, textcoords="offset points", ha=side, size=9)
left.set(
    xlabel="FLOPs per byte", title="FLOP/s", xlim=(0.08, 1500), ylim=(8e11, 2e15)
)
pairs = [row["pairs"] for row in batches]
right.semilogx(pairs, [row["mfu"] for row in batches], "o-", color=plots.BLUE)
right.set(xlabel="pairs in a batch", title="share of the peak", ylim=(0, 0.5))
right.yaxis.set_major_formatter("{x:.0%}")
plt.tight_layout()
plots.measured_on(measured("throughput-cuda"))
plt.show()

# %% [markdown]
# The MFU ends at 35 percent, at 1.4 million tokens a second. This MFU is a share of the peak measured on this GPU. The
# usual basis is the peak that the maker gives ([Chowdhery and others, 2022](https://arxiv.org/abs/2204.02311)), here
# 989 TFLOP/s; of that the steps of 400 and 1,600 pairs reach 25 and 27 percent.
#
# ### Where do the 40 ms go?
#
# A recorded step of 400 pairs on the H200 takes 40 ms. Is that the GPU's own time? Here is the ladder on the same kind
# of GPU in another host, which launches faster, beside the one above:

# %% the ladder on two hosts tags=["hide-input"]
elsewhere = measured("ladder-cuda-faster-host")
print(f"{'':26} ms a step on the host of")
print(f"{elsewhere['accelerator']:26} {on_gpu['date']}  {elsewhere['date']}")
for row in elsewhere["measurements"]:
    if row["what"] == "rung":
        ms_here = 1000 * there[row["name"]]["seconds"]
        print(f"{row['name']:26}{ms_here:11.0f}{1000 * row['seconds']:12.0f}")

# %% [markdown]
# The launched rungs that were measured there, all but *no waiting*, take 8 to 37 percent less, although from *padded
# vocabulary* on they still waited for the norm. The recorded step takes the same. So it does not depend on the host.
# The profiler has listed the twelve kernels that take the most time. Those for the loss, attention and copies are in
# the right column below, each with all its launches. The copies probably come from the padded vocabulary: the gradient
# of the logits that were kept is written into a tensor that is as wide as before the cut. The list does not hold all
# products. So for projections and the feed-forward network the right column borrows the speeds of the figure, 67 and 86
# percent of the peak, which were measured forward and with more tokens. All other rows stay on the roofline. The layer
# norm of the figure reaches only a quarter of the bandwidth, but it is a kernel of its own, and in this step norms are
# fused with their neighbours, so its speed is not borrowed. One kernel of sums is in the list, too, but its time is not
# in the right column, because its bytes are not counted apart.

# %% the roofline, and what was timed tags=["hide-input"]
print(on_gpu["accelerator"], on_gpu["date"])
kernels = dict(
    next(
        row["kernels"]
        for row in on_gpu["measurements"]
        if row["what"] == "kernels" and row["name"] == "CUDA graph"
    )
)
patterns = {
    "attention": "sdpa",
    "loss": "softmax",
    "gradient of cut logits": "direct_copy",
}
timed = {
    part: 1000 * sum(took for name, took in kernels.items() if pattern in name)
    for part, pattern in patterns.items()
}
speeds = {name: row["flops_per_second"] for name, row in operations.items()}
speeds["projections"] = speeds.pop("projection")
borrowed = {
    "products": 1000
    * sum(
        count / speeds.get(part, gpu_peak)
        for part, count in flops.items()
        if part != "scores and sums"
    )
}
columns = [least, least | timed | borrowed]
print(f"{'ms':26}roofline   timed")
for part, took in least.items():
    other = columns[1][part]
    print(f"{part:26}{took:8.1f}" + (f"{other:8.1f}" if other != took else ""))
print(f"{'sum':26}" + "".join(f"{sum(each.values()):8.1f}" for each in columns))
print(f"{'MFU':26}" + "".join(f"{mfu(flops, each):8.0%}" for each in columns))
print(f"{'measured':34}{ms['CUDA graph']:8.1f}")
print(f"timed, but products at the peak: MFU {mfu(flops, least | timed):.1%}")

# %% tags=["proof"]
assert [round(recorded[n]) for n in (64, 256, 400)] == [11, 28, 40]
hours = [4 * ms["float32"], ms["CUDA graph"]]
assert [round(each / 36, 1) for each in hours] == [9.4, 1.1]
assert round(least["products"], 1) == 12.5 and round(ridge["intensity"]) == 180
assert [round(mfu(flops, each), 2) for each in columns] == [0.52, 0.37]
assert round(sum(columns[1].values())) == 35
assert round(mfu(flops, least | timed), 3) == 0.398
assert 0.84 < mfu(*on_roofline(4096)) < 0.86
assert max(traffic, key=traffic.get) == "norms, sums, activations"
assert batches[-1]["pairs"] == 1600 and round(batches[-1]["mfu"], 2) == 0.35
assert round(batches[-1]["tokens_per_second"], -5) == 1.4e6
shares = [speeds[part] / gpu_peak for part in ("projections", "feed-forward")]
assert [round(share, 2) for share in shares] == [0.67, 0.86]
assert len(kernels) == 12 and "fused_sum" in str([*kernels])
times_longer = [timed[part] / least[part] for part in patterns]
assert min(times_longer) > 2 and max(times_longer) < 4
assert round(timed["loss"] + timed["gradient of cut logits"]) == 7
assert counted["pairs"] == 400 and counted["flops"] == flops

# %% [markdown]
# Loss, attention and copies take two to four times their time on the roofline. With the right column, a step takes
# about 35 ms by this estimate, an MFU of 37 percent. Even with every product at the peak it would be 39.8 percent. So
# with these kernels 40 percent is hardly in reach for a model of this width. (The width is not the only reason: 7 of
# the 35 ms are the loss and the copies, which depend on the vocabulary.) Between 35 and the measured 40 ms are gaps,
# bytes that we did not count, and slower kernels.

# %% [markdown]
# ### A trainer that does not wait
#
# Asking for a number that is on a GPU makes [both wait](#who-waits-for-whom). `train_step` does so once, to
# see whether the norm of the gradient is finite.
#
# `FastTrainer`, which `python -m dotformer train` uses, need not wait. Its optimiser is fused. Such an optimiser can be
# told *on the device* to skip a step: if `found_inf` is 1, it changes nothing. Then nobody has to look at the norm of
# the gradient first. The loss of a skipped step becomes NaN, and when the next row of the history is due, the training
# ends with an error, later than before and with nothing spoiled.
#
# More rungs are switches in the configuration: `compile`, `cuda_graphs`, which ends the waiting for launches, and
# `checkpointing` under `[training]`, and `multiple = 64` under `[tokens]`, which pads the vocabulary. The log has
# tokens a second, the most memory in use, and the MFU. Its speed and its MFU count real target tokens only, whereas the
# ladder's tokens are those of both sides, padding included.

# %% tags=["hide-input", "export"] module="devices"
from contextlib import nullcontext
from functools import cache

from dotformer.support.memory import peak_memory
from dotformer.support.processes import world_size
from dotformer.support.progress import Batch, Row
from torch.distributed.tensor import DTensor


@cache
def peak_compute_of(device: str, dtype: torch.dtype) -> float:
    """FLOP/s of a device in a large product, measured once."""
    with keep_random_state():
        return matmul_throughput(device, 4096 if device == "cuda" else 1024, dtype)


def matrix_parameters(model: nn.Module) -> int:
    """How many parameters are in matrices that multiply, not only looked up."""
    linear = {
        id(part.weight) for part in model.modules() if isinstance(part, nn.Linear)
    }
    tables = [
        part.weight for part in model.modules() if isinstance(part, nn.Embedding)
    ]
    only_looked_up = {*map(id, tables)} - linear
    several = (p for p in model.parameters() if p.ndim > 1)
    return sum(p.numel() for p in several if id(p) not in only_looked_up)


# %% tags=["export", "hide-input"] module="devices"
class FastTrainer(Trainer):
    """Trains as `Trainer` does, and asks a device for nothing during a step.

    Its optimizer must be fused. A step whose gradient is not finite changes
    nothing, and its loss is NaN: FloatingPointError follows when a row of the
    history is due (on a Mac's GPU, where nothing can be skipped, at once).
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


# %% [markdown]
# How often does a step of each take a number out of a tensor? One operator of PyTorch's does that, so count its calls:

# %% numbers taken in a step tags=["hide-input"]
from dotformer.support.benchmark import count_synchronisations

asked = {}
for kind in (Trainer, FastTrainer):
    trainer = kind(Transformer(small).to(device), TrainingConfig(), device)
    trainer.train_step([batch], 1e-4)
    make = partial(trainer.train_step, [batch], 1e-4)
    asked[kind.__name__] = count_synchronisations(make)
    print(f"{kind.__name__:12} takes {asked[kind.__name__]} numbers")

# %% tags=["proof"]
assert asked["FastTrainer"] <= 3 < asked["Trainer"]

# %% [markdown]
# Not each of these is a wait: a number that lies on the CPU is there at once. Most of the 89 are Adam's, which looks up
# for each parameter how many steps there were; they cost Python's time. One is the norm of the gradient, and that one
# is a wait on a GPU. The three numbers that `FastTrainer` takes count the targets and check the masks. In training the
# targets are counted before the batch goes to a GPU, and masks on a GPU are not checked, so nothing waits.

# %% [markdown]
# ### Record a step, and repeat it
#
# Each launch of a kernel takes Python's time. A CUDA graph repeats all launches of a step by one call.
#
# Four conditions come with it. Nothing in a step may ask the device for a number, since Python is no longer there to
# see it. What is repeated reads its inputs from where they were when it was recorded, so a new batch is copied there. A
# number that Python passes to a kernel is recorded with it, so what changes from step to step, such as the learning
# rate, must be a tensor. And shapes stay the same, so each shape of batch needs a recording of its own.
#
# The switch `cuda_graphs` needs a CUDA device, one process, and a model that asks the device for no numbers, which
# excludes the kinds `recurrent` and `facts`. It cannot be combined with accumulation or checkpointing.

# %% tags=["export", "hide-input"] module="devices"
from collections import Counter


class GraphTrainer(FastTrainer):
    """Trains as `FastTrainer` does, by CUDA graphs: one for each shape of batch.

    A shape that is met for the third time is recorded. RuntimeError for a device
    that cannot record. After PyTorch's notes on CUDA semantics.
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


# %% [markdown]
# If each batch is as long as its longest sentence, there are too many shapes. So the helper `level` pads both sides of
# each pair to a multiple of 8 tokens, before pairs are grouped. Sentences of 1 to 60 tokens, in five epochs (padded
# pairs are longer, so fewer fit in a batch):

# %% tags=["hide-input", "export"] module="devices"
from collections.abc import Sequence


def level(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    longest: int,
    multiple: int = 8,
    pad_id: int = 0,
) -> list[tuple[list[int], list[int]]]:
    """Pairs padded: a source to a multiple of tokens, a target to one more.

    (What a decoder reads of a target is one token shorter than it.) None is padded
    beyond `longest`, or a target beyond one more.
    """

    def padded(side: Sequence[int], more: int) -> list[int]:
        size = len(side) - more
        size = max(size, min(-(-size // multiple) * multiple, longest)) + more
        return [*side, *[pad_id] * (size - len(side))]

    return [(padded(source, 0), padded(target, 1)) for source, target in pairs]


# %% how many shapes are left tags=["hide-input", "nbval-check-output"]
draw = np.random.default_rng(0)
lengths = draw.integers(1, 61, size=(5000, 2)).tolist()
pairs = [([3] * s, [1, *[3] * t, 2]) for s, t in lengths]
shapes = {}
for name, some in (("as they are", pairs), ("padded", level(pairs, 64))):
    met = [
        tuple(side.shape for side in one)
        for epoch in range(5)
        for one in pair_batches(some, epoch, max_tokens=2048)
    ]
    shapes[name] = len(set(met))
    print(f"{name:12} {len(met)} batches, {shapes[name]} shapes")
assert 2 * shapes["padded"] < shapes["as they are"]

# %% [markdown]
# ### Is fused attention an approximation?
#
# No. The blend is the same but for rounding, as you have seen. Nor does it do fewer FLOPs. The backward pass needs the
# weights, and computes them again: each block's scores from queries and keys, and each weight from its score,
# $e^{s_j - b} / z = e^{s_j - (b + \ln z)}$. For that the forward pass keeps one number for each query, $b + \ln z$, the
# *log-sum-exp*. So it does *more* FLOPs. What it saves is bytes: of memory, and of traffic ([measured
# below](#how-do-time-and-memory-grow-with-the-length)).
#
# On CUDA, PyTorch has three fused kernels: FlashAttention, a *memory-efficient* one and cuDNN's. What it calls *math*
# is not fused: it writes the matrix out, and serves where the others refuse. FlashAttention takes only numbers of 16
# bits, and no mask as a matrix. Our translator always passes one, because it hides padding wherever that stands, so
# another fused kernel runs: in the steps on the H200 above, cuDNN's. For a mask of one's own there is
# [FlexAttention](https://pytorch.org/blog/flexattention/), which, compiled, makes a fused kernel out of a Python
# function that says which key a query may see. On a CPU there is one fused kernel, and it refuses dropout, so a
# training that drops attention weights writes them out there.
#
# Under a causal mask a fused kernel could skip the half of the keys that nobody may see. But a kernel that is given the
# mask as a matrix has to read the matrix to find out. So *say* that the mask is causal: PyTorch has the argument
# `is_causal`, and our `MultiHeadAttention` takes the word `"causal"` as its mask, which a GPT without padding passes.
# Here are the times, forward and back, at 1,024 tokens:

# %% the time of each tags=["hide-input"]
torch.manual_seed(0)
attention = MultiHeadAttention(128, 4).to(device)
x = torch.randn(1, 1024, 128, device=device)
triangle = torch.ones(1024, 1024, dtype=torch.bool, device=device).tril()


def under(mask):
    attention(x, x, x, mask)[0].sum().backward()


given, told = (
    min(benchmark(partial(under, mask), device, 9)) for mask in (triangle, "causal")
)
print(f"told that it is causal: {told / given:.2f} of the time with a matrix")
assert told < given

# %% [markdown]
# ### How do time and memory grow with the length?
#
# **Predict first.** Here attention runs on your machine, written out and fused, forward and back, in float32. The
# matrix of scores grows with the square of the length. Does the time of the fused one grow more slowly?

# %% tags=["plot"] mystnb={"image": {"alt": "Two panels over length, both axes logarithmic. Left, seconds: both ways grow with the square of the length and lie close together. Right, bytes of activations: written out, they grow with the square; fused, in proportion."}}
from dotformer.support.memory import saved_activations

lengths = (128, 256, 512, 1024)
seconds, activation_bytes = {}, {}
for way in ("written out", "fused"):
    for n in lengths:
        x = torch.randn(1, n, 128, device=device)

        def back_and_forth(x=x, way=way):
            attention(x, x, x, need_weights=way == "written out")[
                0
            ].sum().backward()

        seconds[way, n] = median(benchmark(back_and_forth, device, 5))
        with saved_activations(attention) as kept:
            output = attention(x, x, x, need_weights=way == "written out")[0]
        activation_bytes[way, n] = sum(kept.values())
        del output
figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.2))
for axes, figures, title in zip(
    panels,
    (seconds, activation_bytes),
    ("seconds", "bytes of activations"),
    strict=True,
):
    for way, color in (("written out", plots.RED), ("fused", plots.BLUE)):
        axes.loglog(lengths, [figures[way, n] for n in lengths], "o-", color=color)
        side, offset = (
            ("right", (-8, 4)) if way == "written out" else ("left", (8, -12))
        )
        last_but_one = lengths[-2], figures[way, lengths[-2]]
        axes.annotate(
            way,
            last_but_one,
            offset,
            textcoords="offset points",
            ha=side,
            color=color,
        )
    axes.margins(y=0.2)
    axes.minorticks_off()
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.set(xlabel="tokens", title=title)
plt.tight_layout()
plt.show()

# %% how activations grow tags=["hide-input"]
growth = {}
for way in ("written out", "fused"):
    growth[way] = activation_bytes[way, 1024] / activation_bytes[way, 128]
    print(f"{way:12} 8 times the tokens, {growth[way]:.0f} times the activations")
assert round(growth["written out"]) == 45 and round(growth["fused"]) == 8

# %% [markdown]
# Every query meets every key either way, so the time grows, in the end, with the square. The memory need not. Written
# out, part of it grows with the square (the weights before and after masking, and their masks) and part in proportion:
# 45 times, between 8 and 64.
#
# Fused, all of it grows in proportion. On a CPU the two curves of time lie close together at these lengths, since the
# products, which both must do, take much of the time. On the H200 they part further, here for one sentence and eight
# heads, in 16 bits:

# %% tags=["plot"] mystnb={"image": {"alt": "Seconds and bytes over length on an H200, from 1,024 to 16,384 tokens, all axes logarithmic. Written out is slowest and its bytes grow with the square. From 4,096 tokens on memory-efficient, FlashAttention and cuDNN follow in this order, with bytes that grow in proportion."}}
ways = measured("attention-cuda")["measurements"]
colors = {"written out": plots.RED, "memory-efficient": plots.GOLD}
colors |= {"flash": plots.TEAL, "cuDNN": plots.BLUE}
curves = {
    name: [
        row
        for row in ways
        if row["backend"] == name and not row["causal"] and row["length"] >= 1024
    ]
    for name in colors
}
figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.2))
for axes, key, title in zip(
    panels, ("seconds", "peak_memory"), ("seconds", "bytes"), strict=True
):
    for name, rows in curves.items():
        lengths = [row["length"] for row in rows]
        axes.loglog(
            lengths,
            [row[key] for row in rows],
            "o-",
            color=colors[name],
            label=name,
        )
    axes.minorticks_off()
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.set(xlabel="tokens", title=title)
panels[0].legend(frameon=False, fontsize=9)
plt.tight_layout()
plots.measured_on(measured("attention-cuda"))
plt.show()

# %% [markdown]
# At 16,384 tokens, attention written out takes 19 GB for one sentence, most of it for scores, weights and their
# gradients. cuDNN's kernel, without them, takes a hundred MB and a tenth of the time. All these see every key. Told
# that a mask is causal, a fused kernel leaves out the blocks that it hides:

# %% the same with a causal mask tags=["hide-input"]
print(measured("attention-cuda")["accelerator"], measured("attention-cuda")["date"])
print("16,384 tokens, causal: seconds as a share of those without a mask")
shorter = {}
for name, rows in curves.items():
    [causal] = (
        row
        for row in ways
        if (row["backend"], row["causal"], row["length"]) == (name, True, 16384)
    )
    shorter[name] = causal["seconds"] / rows[-1]["seconds"]
    print(f"{name:17}{shorter[name]:.2f}")
assert all(
    (share < 0.6) == (name != "written out") for name, share in shorter.items()
)

# %% tags=["proof"]
longest = {name: rows[-1] for name, rows in curves.items()}
assert {row["length"] for row in longest.values()} == {16384}
assert round(longest["written out"]["peak_memory"] / 1e9) == 19
assert round(longest["cuDNN"]["peak_memory"] / 1e6) == 102
assert round(longest["written out"]["seconds"] / longest["cuDNN"]["seconds"]) == 10

# %% [markdown]
# ### Must all logits exist at once?
#
# As attention can do without the score matrix, the loss can do without that of the logits: multiply the vectors of some
# targets by the output matrix, add up their loss and their gradients, and forget these logits before the next ones are
# computed. PyTorch's `F.linear_cross_entropy` does that if you pass it `options`; without, it computes all logits. Here
# are 1,024 targets of the base model's width and vocabulary, in chunks of 128:

# %% memory and seconds, whole and in chunks tags=["hide-input"]
from dotformer.support.benchmark import most_allocated
from torch.nn import LinearCrossEntropyOptions

torch.manual_seed(0)
output = nn.Linear(512, 37_000, bias=False)
states, right = torch.randn(1024, 512), torch.randint(3, 37_000, (1024,))
chunks = LinearCrossEntropyOptions(batch_chunk_size=128)


def gradients_of(loss):
    """Those of a loss of states, for the states and for the output matrix."""
    x, output.weight.grad = states.clone().requires_grad_(), None
    loss(x).backward()
    return x.grad, output.weight.grad


ways = {
    "all logits": lambda x: F.cross_entropy(output(x), right),
    "in chunks": lambda x: F.linear_cross_entropy(
        x, output.weight, right, options=chunks
    ),
}
found = {}
for name, way in ways.items():
    work = partial(gradients_of, way)
    seconds, output.weight.grad = median(benchmark(work, "cpu", 2)), None
    most = most_allocated(work)
    found[name] = most, seconds, *work()
    print(f"{name:10} {most / 1e6:4.0f} MB at most   {seconds:.1f} s")

# %% tags=["proof"]
whole, chunked = found.values()
assert 0.3 * whole[0] < chunked[0] < 0.4 * whole[0] and chunked[1] < 1.5 * whole[1]
for one, other in zip(whole[2:], chunked[2:], strict=True):
    assert (one - other).abs().max() < 1e-5 * one.abs().max()

# %% [markdown]
# The gradients are the same, with a third of the memory. Which way is faster changes from run to run. Computed all
# together, three of the four arrays of logits and gradients exist at once. In chunks, nearly all of the memory is two
# arrays as large as the output matrix, for the gradient of that matrix. These do not grow with the targets.
#
# In chunks `F.linear_cross_entropy` cannot smooth labels, so our trainer does not use it.
