"""How fast one device trains, rung by rung: `python -m benchmarks.ladder --device auto`.

First what the device can do: bytes it copies and operations of matrix products, over sizes and precisions. Then the
ladder of chapter 15, with the paper's base model on a GPU and a small one elsewhere; where the time of its first rung
and its best goes; and attention over length, fused and written out. Takes some minutes, and writes
book/measurements/ladder-DEVICE.json.
"""

import argparse
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch.nn import functional as F

from benchmarks.results import save
from dotformer.attention import scaled_dot_product_attention
from dotformer.command_line.commands import device_named
from dotformer.devices import copy_rate, costliest, product_precision, product_rate, time_of
from dotformer.ladder import Workload, climb, feed, rungs, setups, trainer
from dotformer.transformer import TransformerConfig

SHARED = {"dropout": 0.0, "share_embeddings": True, "max_length": 128}
BASE = TransformerConfig(37_003, 37_003, **SHARED)
SMALL = TransformerConfig(6_001, 6_001, 128, 4, 2, 2, 512, **SHARED)
WORKLOADS = {"cuda": Workload(BASE, 100, 64), "other": Workload(SMALL, 32, 24)}
SIZES = {"cuda": (256, 512, 1024, 2048, 4096, 8192), "other": (128, 256, 512, 1024, 2048)}
LENGTHS = {"cuda": (256, 512, 1024, 2048, 4096, 8192, 16384), "other": (64, 128, 256, 512, 1024, 2048)}


def products(device: str, sizes: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """The rate of square matrix products, by precision and size."""
    for name, dtype, rounding in (
        ("float32", torch.float32, "highest"), ("tf32", torch.float32, "high"), ("bfloat16", torch.bfloat16, "high"),
    ):  # fmt: skip
        for size in sizes:
            with product_precision(rounding):
                yield {"precision": name, "size": size, "operations_per_second": product_rate(device, size, dtype)}


def attention_over_length(device: str, lengths: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Seconds and bytes of attention with 8 heads of 64, forward and back, fused and written out."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    ways = {
        "fused": F.scaled_dot_product_attention,
        "written out": lambda q, k, v: scaled_dot_product_attention(q, k, v)[0],
    }
    for length in lengths:
        qkv = [torch.randn(1, 8, length, 64, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
        for name, attend in ways.items():

            def work(attend: Any = attend, qkv: list[torch.Tensor] = qkv) -> None:
                attend(*qkv).sum().backward()

            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            try:
                row = {"way": name, "length": length, "seconds": median(time_of(work, device, 5))}
            except torch.OutOfMemoryError:
                continue
            if device == "cuda":
                row["memory"] = torch.cuda.max_memory_allocated() - before
            yield row


def where_it_goes(workload: Workload, rung: str, device: str) -> list[tuple[str, float]]:
    """The costliest operations of a step on a rung, and their seconds."""
    setup = setups(rungs())[rung]
    step, _ = trainer(workload, setup, device)
    batches = feed(workload, setup, device)
    return costliest(lambda: step(next(batches)), device, shown=12)


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto")
    device = device_named(parser.parse_args().device)
    kind = device if device == "cuda" else "other"
    workload = WORKLOADS[kind]
    found: dict[str, Any] = {"copy": copy_rate(device, 1 << (28 if kind == "cuda" else 26))}
    found["products"] = list(products(device, SIZES[kind]))
    best = max(row["operations_per_second"] for row in found["products"])
    print(f"copy {found['copy'] / 1e9:,.0f} GB/s, products at most {best / 1e12:,.2f} TFLOP/s", flush=True)
    parameters = sum(p.numel() for p in workload.fresh("cpu").parameters())
    found |= {"parameters": parameters, "pairs": workload.pairs, "length": workload.length, "rungs": []}
    for row in climb(workload, rungs(), device, steps=20 if device == "cuda" else 10):
        found["rungs"].append(row)
        print(
            row.get("error")
            or f"{row['name']:<28}{row['tokens_per_second']:>12,.0f} tokens/s"
            f"{row['operations_per_second'] / best:>8.1%}{row['memory'] / 2**30:>8.2f} GiB"
            f"  first {row['first_step']:.1f} s  gradient off by {row['gradient_error']:.1e}",
            flush=True,
        )
    whole = [row for row in found["rungs"] if "error" not in row]
    fastest = max(whole, key=lambda row: row["tokens_per_second"])["name"]
    found["profiles"] = {name: where_it_goes(workload, name, device) for name in ("float32", fastest)}
    found["attention"] = list(attention_over_length(device, LENGTHS[kind]))
    save(f"ladder-{device}", {"device": device} | found)


if __name__ == "__main__":
    main()
