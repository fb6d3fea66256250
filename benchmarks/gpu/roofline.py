"""The roofline of a device: memory bandwidth, peak compute by dtype, the ridge point, and where operations lie."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu.run import Measurement, Row, Run
from benchmarks.timing import repeated
from dotformer.support.modes import matmul_precision

DTYPES = {  # as a setup of the ladder calls them: the dtype, and how float32 matrix products are computed
    "float32": (torch.float32, "highest"),
    "tf32": (torch.float32, "high"),
    "bfloat16": (torch.bfloat16, "high"),
    "float16": (torch.float16, "high"),
}
NOMINAL = {  # the vendor's peaks without sparsity: FLOP/s in each of these dtypes, then bytes/s
    "NVIDIA H200": (66.9e12, 494.7e12, 989.4e12, 989.4e12, 4.8e12),
    "NVIDIA H100 80GB HBM3": (66.9e12, 494.7e12, 989.4e12, 989.4e12, 3.35e12),
    "NVIDIA H100 PCIe": (51.2e12, 378e12, 756e12, 756e12, 2.0e12),
    "NVIDIA A100-SXM4-80GB": (19.5e12, 156e12, 312e12, 312e12, 2.039e12),
    "NVIDIA A100-SXM4-40GB": (19.5e12, 156e12, 312e12, 312e12, 1.555e12),
}
SIZES = {  # bytes of copies, rows of square matrices, their dtypes, and the dtypes of operations
    "cuda": ([1 << n for n in range(14, 33, 2)], [1 << n for n in range(8, 15)], [*DTYPES], ["bfloat16", "float32"]),
    "cpu": ([1 << n for n in range(14, 29, 2)], [1 << n for n in range(7, 12)], [*DTYPES][:3], ["float32"]),
    "quick": ([1 << 12, 1 << 14], [8, 32], [*DTYPES], ["float32"]),
}
WIDTHS = {  # tokens, d_model and d_ff of operations, and the width of a matrix that is larger than a cache
    "cuda": (1 << 17, 512, 2048, 8192),
    "cpu": (1 << 13, 512, 2048, 4096),
    "quick": (32, 16, 64, 32),
}
ELEMENTWISE = {  # FLOPs a number, and how often all numbers are read or written at least
    "softmax": (5, 2),  # maximum, subtraction, exp, sum, division
    "layer norm": (8, 2),  # mean 1, variance 3, division 2, gain and bias 2
    "Adam step": (13, 7),  # moments 3 and 4, step 6; reads parameters, gradients and moments, writes all but gradients
}
OPERATIONS = (*ELEMENTWISE, "feed-forward", "projection", "one-token projection", "one-token generation")


def copy(device: torch.device, size: int) -> Measurement:
    """Memory bandwidth: bytes read and written a second, copying `size` bytes."""
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    times = repeated(lambda: target.copy_(source), device)
    return {"what": "copy", "bytes": source.nbytes, **times, "bandwidth": 2 * source.nbytes / times["seconds"]}


def matmul(device: torch.device, name: str, size: int) -> Measurement:
    """FLOP/s in the product of two square matrices of `size` rows."""
    dtype, precision = DTYPES[name]
    a, b, out = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(3))
    with matmul_precision(precision):
        times = repeated(lambda: torch.mm(a, b, out=out), device)
    return {"what": "matmul", "dtype": name, "size": size, **times, "flops_per_second": 2 * size**3 / times["seconds"]}


def operation(run: Run, name: str, dtype: str) -> Measurement:
    """Where an operation lies: FLOPs per byte, when each number moves once, and the FLOP/s achieved."""
    tokens, d_model, d_ff, wide = WIDTHS[run.sizes]
    rows, inner, columns = {
        "feed-forward": (tokens, d_model, d_ff),
        "one-token projection": (1, d_model, d_model),
        "one-token generation": (1, wide, wide),
    }.get(name, (tokens, d_model, d_model))
    new = partial(torch.randn, device=run.device, dtype=DTYPES[dtype][0])
    x, weight, out = new(rows, inner), new(columns, inner), new(rows, columns)
    work: dict[str, Callable[[], object]] = {
        "softmax": lambda: x.softmax(dim=-1),
        "layer norm": lambda: F.layer_norm(x, (d_model,), weight[0], weight[1]),
    }
    if name == "Adam step":
        parameters = nn.Parameter(x)
        parameters.grad = out
        work[name] = torch.optim.Adam([parameters], fused=True).step
    times = repeated(work.get(name, lambda: torch.mm(x, weight.T, out=out)), run.device)  # as nn.Linear computes it
    flops, moved = 2 * rows * inner * columns, x.nbytes + weight.nbytes + out.nbytes
    if name in ELEMENTWISE:
        flops, moved = ELEMENTWISE[name][0] * x.numel(), ELEMENTWISE[name][1] * x.nbytes
    return {
        **{"what": "operation", "name": name, "dtype": dtype, "flops": flops, "bytes": moved, **times},
        **{"intensity": flops / moved, "flops_per_second": flops / times["seconds"]},
        "bandwidth": moved / times["seconds"],
    }


def peaks(run: Run, dtype: str) -> dict[str, float | None]:
    """The peak FLOP/s of a dtype: the highest measured in this run, and the vendor's; None where it is not known."""
    rows = [row for row in run.measured.get("roofline", ()) if row["what"] == "matmul" and row["dtype"] == dtype]
    nominal = NOMINAL.get(run.machine.get("accelerator", ""), [None] * 5)
    return {
        "mfu": max((row["flops_per_second"] for row in rows), default=None),
        "mfu_of_nominal": nominal[[*DTYPES].index(dtype)],
    }


def utilisation(run: Run, dtype: str, flops_per_second: float) -> dict[str, float | None]:
    """Model FLOPs utilisation (MFU): the share of each of the peaks."""
    return {name: flops_per_second / peak if peak else None for name, peak in peaks(run, dtype).items()}


def ridge_point(run: Run, dtype: str) -> Measurement:
    """The FLOPs per byte above which work is compute-bound: peak compute over the bandwidth of the largest copy."""
    copies = [row for row in run.measured["roofline"] if row["what"] == "copy"]
    peak, nominal = peaks(run, dtype).values()
    if not copies or not peak:
        raise LookupError(f"no copy, or no matrix product in {dtype}, was measured")
    bandwidth = max(copies, key=lambda row: row["bytes"])["bandwidth"]
    found = {"what": "ridge point", "dtype": dtype, "flops_per_second": peak, "bandwidth": bandwidth}
    if nominal:
        most = NOMINAL[run.machine["accelerator"]][-1]
        found |= {"nominal_flops_per_second": nominal, "nominal_bandwidth": most, "nominal_intensity": nominal / most}
    return found | {"intensity": peak / bandwidth}


def rows(run: Run) -> Iterator[Row]:
    """Copies, matrix products and their ridge point by dtype, and other operations."""
    copies, matrices, dtypes, operations = SIZES[run.sizes]
    for size in copies:
        yield Row(f"copy of {size:,} bytes", partial(copy, run.device, size))
    for dtype in dtypes:
        for size in matrices:
            yield Row(f"matmul in {dtype}, {size:,} rows", partial(matmul, run.device, dtype, size))
        yield Row(f"ridge point in {dtype}", partial(ridge_point, run, dtype))
    for dtype in operations:
        for name in OPERATIONS:
            if name != "Adam step" or dtype == "float32":  # parameters and moments stay in float32
                yield Row(f"{name} in {dtype}", partial(operation, run, name, dtype))
