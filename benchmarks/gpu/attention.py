"""Attention over length: every backend of PyTorch's fused attention by its name, and the book's own, written out."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.run import Measurement, Row, Run
from benchmarks.timing import peak_memory, repeated
from dotformer.attention import scaled_dot_product_attention
from dotformer.decoder import causal_mask

LENGTHS = {
    "cuda": (256, 512, 1024, 2048, 4096, 8192, 16384),
    "cpu": (64, 128, 256, 512, 1024, 2048),
    "quick": (8, 16),
}
HEADS, D_K = 8, 64
BACKENDS = {  # how attention is computed -> what PyTorch calls that; "default" is its own choice
    "default": "",
    "flash": "FLASH_ATTENTION",
    "cuDNN": "CUDNN_ATTENTION",
    "memory-efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
    "written out": "",
}


def fused(backend: str) -> AbstractContextManager[object]:
    """Inside, PyTorch's fused attention uses this backend and no other."""
    name = BACKENDS[backend]
    return sdpa_kernel([getattr(SDPBackend, name)]) if name else nullcontext()


def written_out(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """The output of the book's own attention, without its weights."""
    return scaled_dot_product_attention(query, key, value, mask)[0]


def forward_and_backward(forward: Callable[..., Tensor], qkv: list[Tensor], upstream: Tensor) -> None:
    """The gradient for query, key and value, given that for the output."""
    torch.autograd.grad(forward(*qkv), qkv, upstream)


def attention(run: Run, backend: str, causal: bool, length: int) -> Measurement:
    """Forward and backward with 8 heads of 64, on a GPU in bfloat16. An error's notes say what PyTorch warned of."""
    dtype = torch.bfloat16 if run.device.type == "cuda" else torch.float32
    new = partial(torch.randn, 1, HEADS, length, D_K, device=run.device, dtype=dtype)
    qkv = [new(requires_grad=True) for _ in range(3)]
    forward = partial(F.scaled_dot_product_attention, is_causal=causal)
    if backend == "written out":  # its mask is made once: neither its time nor its memory counts
        forward = partial(written_out, mask=causal_mask(length, run.device) if causal else None)
    with warnings.catch_warnings(record=True) as warned, fused(backend):
        warnings.simplefilter("always")
        try:
            upstream = torch.randn_like(forward(*qkv))  # laid out in memory as the output is
            step = partial(forward_and_backward, forward, qkv, upstream)
            memory = peak_memory(step, run.device)
            times = repeated(step, run.device)
        except Exception as error:
            for text in dict.fromkeys(str(one.message).partition(" (Triggered")[0] for one in warned):
                error.add_note(text)
            raise
    pairs = length * (length + 1) // 2 if causal else length * length  # of a query and a key that it may attend to
    flops = 3 * 4 * HEADS * D_K * pairs  # two matrix products forward, four backward
    return {
        **{"what": "attention", "backend": backend, "causal": causal, "length": length, "dtype": str(dtype)[6:]},
        **{**times, "flops_per_second": flops / times["seconds"], "peak_memory": memory},
    }


def rows(run: Run) -> Iterator[Row]:
    """Every backend, at every length, causal and not."""
    for length in LENGTHS[run.sizes]:
        for causal in (False, True):
            for backend in BACKENDS:
                name = f"{backend}, {'causal, ' * causal}length {length}"
                yield Row(name, partial(attention, run, backend, causal, length))
