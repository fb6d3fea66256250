"""The book's models beside those of other libraries: `python -m benchmarks.peers [--device cuda]`.

Training steps and what makes them, encoding, generation, attention and recurrent layers, timed in turns with the same
shapes and data. All that should compute the same is first checked to: parameters are copied. Takes some 6 minutes of a
core, or 3 of a GPU, and writes book/measurements/peers-cpu.json or peers-cuda.json. `--only products` measures the rows
whose names begin like that, and keeps the others; `--quick` measures tiny models and writes nothing. Without
`x-transformers` or `ctranslate2`, these are left out.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peer_models import (
    CTranslate2,
    Ending,
    Ends,
    LSTMs,
    Marian,
    OneProduct,
    SmoothedCrossEntropy,
    TorchTransformer,
    XTransformer,
    bert,
    onnx_graphs,
    parameters,
    products_alone,
    torch_attention,
    x_attention,
)
from benchmarks.results import save
from benchmarks.timing import difference, in_turns, summary
from classroom.measured import measured
from dotformer.attention import MultiHeadAttention
from dotformer.decoder import causal_mask
from dotformer.export import OnnxCache
from dotformer.generation import KVCache, beam_search, greedy
from dotformer.pretrained import load_minilm
from dotformer.recurrent import RecurrentConfig, RecurrentSeq2Seq
from dotformer.support.decoding import Decoding
from dotformer.support.memory import keep_freed_memory
from dotformer.training import Trainer, TrainingConfig, cross_entropy
from dotformer.transformer import Transformer, TransformerConfig

Measurement = dict[str, Any]
Sizes = dict[str, list[tuple[int, ...]]]

TRAINING: Sizes = {  # d_model, heads, layers on each side, d_ff, tokens in the table, sentences, tokens in each
    "cpu": [
        (64, 4, 2, 256, 1000, 64, 24),
        (128, 4, 2, 512, 6000, 64, 24),
        (256, 8, 4, 1024, 6000, 32, 24),
        (512, 8, 6, 2048, 8000, 8, 24),
    ],
    "cuda": [(128, 4, 2, 512, 6000, 64, 24), (512, 8, 6, 2048, 37_000, 128, 32), (512, 8, 6, 2048, 37_000, 512, 48)],
    "quick": [(16, 2, 1, 32, 50, 3, 6)],
}
ENCODING: Sizes = {"cpu": [(1, 32), (32, 32)], "cuda": [(1, 32), (256, 64)], "quick": [(2, 8)]}  # sentences, tokens
WRITING = [(1, 24, 1, 0), (32, 24, 1, 0), (1, 24, 4, 0), (32, 24, 4, 0), (32, 24, 1, 1), (32, 24, 4, 1)]
GENERATION: Sizes = {  # as in TRAINING, then the beam, and whether sentences end early
    "cpu": [(128, 4, 2, 512, 6000, *rest) for rest in WRITING],
    "cuda": [(512, 8, 6, 2048, 37_000, *rest) for rest in WRITING],
    "quick": [(16, 2, 1, 32, 50, 3, 6, beam, early) for beam in (1, 4) for early in (0, 1)],
}
ATTENTION: Sizes = {  # d_model, heads, sentences, tokens in each, causal or not
    "cpu": [(256, 4, 2048 // n, n, causal) for causal in (0, 1) for n in (64, 256, 1024)],
    "cuda": [(512, 8, 32_768 // n, n, causal) for causal in (0, 1) for n in (64, 1024, 4096)],
    "quick": [(16, 2, 2, 5, causal) for causal in (0, 1)],
}
RECURRENT: Sizes = {  # d_model, tokens in the table, sentences, tokens in each
    "cpu": [(128, 6000, 64, 24), (256, 6000, 64, 24)],
    "cuda": [(256, 6000, 256, 24)],
    "quick": [(16, 50, 3, 6)],
}


def sentences(batch: int, length: int, vocab_size: int, device: torch.device) -> Tensor:
    """Random tokens (B, S) from 3 up, padded with 0: the first sentence is `length` long, no other below a third."""
    tokens = torch.randint(3, vocab_size, (batch, length))
    lengths = torch.randint(max(1, length // 3), length + 1, (batch, 1))
    lengths[0] = length
    return tokens.masked_fill(torch.arange(length) >= lengths, 0).to(device)


def written(batch: int, length: int, vocab_size: int, device: torch.device) -> Tensor:
    """The same with the mark that begins a sentence (1) in front: (B, T + 1)."""
    return nn.functional.pad(sentences(batch, length, vocab_size, device), (1, 0), value=1)


def model_of(size: Sequence[int], device: torch.device, dropout: float) -> Transformer:
    """A transformer of ours, with one table for source, target and output."""
    d_model, heads, layers, d_ff, vocab_size, *_ = size
    shape = {"d_model": d_model, "num_heads": heads, "d_ff": d_ff, "dropout": dropout, "share_embeddings": True}
    config = TransformerConfig(
        vocab_size, vocab_size, num_encoder_layers=layers, num_decoder_layers=layers, max_length=64, **shape
    )
    return Transformer(config).to(device)


def told(size: Sequence[int]) -> str:
    """The size of a transformer and its batch, in words."""
    d_model, _, layers, d_ff, vocab_size, batch, length, *_ = size
    return f"D {d_model}, {layers}+{layers} layers, d_ff {d_ff}, V {vocab_size}, batch {batch} × {length}"


def step_of(model: nn.Module, source: Tensor, target: Tensor) -> Callable[[], object]:
    """A training step of a model, on a GPU in bfloat16 where that suffices."""
    learnt = [p for p in model.train().parameters() if p.requires_grad]
    trainer = Trainer(model, TrainingConfig(), str(source.device))
    trainer.optimizer = torch.optim.Adam(learnt, betas=(0.9, 0.98), eps=1e-9)
    if source.is_cuda:
        trainer.precision = partial(torch.autocast, "cuda", torch.bfloat16)
    return lambda: trainer.train_step([(source, target)], 1e-4)


def training(size: tuple[int, ...], device: torch.device, **budget: Any) -> Measurement:
    """A step: forward, smoothed cross-entropy, backward, clipping, Adam. Checks logits and gradients first."""
    *_, vocab_size, batch, length = size
    ours = model_of(size, device, dropout=0.1)
    models = {"dotformer": ours, "torch": TorchTransformer(ours), "transformers": Marian(ours)}
    with suppress(ImportError):
        models["x-transformers"] = XTransformer(ours)
    source, target = sentences(batch, length, vocab_size, device), written(batch, length, vocab_size, device)
    logits, gradients = {}, {}
    for name, model in models.items():
        found = model.to(device).eval()(source, target[:, :-1])
        cross_entropy(found, target[:, 1:], label_smoothing=0.1)[0].backward()
        logits[name] = found.detach()[target[:, :-1] != 0]
        gradients[name] = next(p.grad for p in model.parameters() if p.shape == (vocab_size, size[0]))
    apart = max(difference(logits, 1e-4), difference(gradients, 1e-4))
    del logits, gradients
    times = in_turns({name: step_of(model, source, target) for name, model in models.items()}, device, **budget)
    counts = {name: parameters(model) for name, model in models.items()}
    return {"what": "training step", "size": told(size), "parameters": counts, "difference": apart, "times": times}


def products(size: tuple[int, ...], device: torch.device, **budget: Any) -> Measurement:
    """Queries, keys and values of one input, forward and backward: three products beside one. Checks both first."""
    d_model, heads, *_, batch, length = size
    ours = MultiHeadAttention(d_model, heads)
    layers = {"dotformer": ours, "one product": OneProduct(ours)}
    x = torch.randn(batch, length, d_model, device=device, requires_grad=True)
    after = torch.randn(3, batch, length, d_model, device=device)

    def turn(name: str) -> tuple[tuple[Tensor, ...], Tensor]:
        layers[name].zero_grad()
        x.grad = None
        found = (ours.w_q(x), ours.w_k(x), ours.w_v(x)) if name == "dotformer" else layers[name](x)
        torch.autograd.backward(found, tuple(after))
        return found, x.grad

    turns = {name: turn(name) for name, layer in layers.items() if layer.to(device)}
    found = {name: (torch.cat(parts).detach(), gradient) for name, (parts, gradient) in turns.items()}
    apart = max(difference({name: pair[n] for name, pair in found.items()}, 1e-4) for n in (0, 1))
    del found, turns
    counts = {name: parameters(layer) for name, layer in layers.items()} | {"dotformer": 3 * d_model * (d_model + 1)}
    times = in_turns({name: partial(turn, name) for name in layers}, device, **budget)
    said = f"D {d_model}, batch {batch} × {length}"
    return {"what": "products", "size": said, "parameters": counts, "difference": apart, "times": times}


def cross_entropies(size: tuple[int, ...], device: torch.device, **budget: Any) -> Measurement:
    """The smoothed cross-entropy and its gradient, beside one that writes no log-probabilities. Checks both first."""
    *_, vocab_size, batch, length = size
    logits = torch.randn(batch * length, vocab_size, device=device, requires_grad=True)
    targets = sentences(batch, length, vocab_size, device).flatten()
    ways = {
        "dotformer": lambda: cross_entropy(logits, targets, label_smoothing=0.1)[0],
        "from the sum of exponentials": lambda: SmoothedCrossEntropy.apply(logits, targets, 0.1),
    }

    def turn(name: str) -> tuple[Tensor, Tensor]:
        logits.grad = None
        found = ways[name]()
        found.backward()
        return found.detach(), logits.grad

    found = {name: turn(name) for name in ways}
    apart = max(difference({name: pair[n] for name, pair in found.items()}, 1e-4) for n in (0, 1))
    del found
    times = in_turns({name: partial(turn, name) for name in ways}, device, **budget)
    said = f"V {vocab_size}, batch {batch} × {length}"
    return {"what": "cross-entropy", "size": said, "parameters": {}, "difference": apart, "times": times}


def encoding(size: tuple[int, ...], device: torch.device, **budget: Any) -> Measurement:
    """A published encoder over sentences of random pieces. Checks its vectors first."""
    batch, length = size
    ours, theirs = load_minilm().to(device), bert().to(device)
    tokens = sentences(batch, length, 30_000, device)
    real = tokens != 0
    mask, number = real[:, None, None], real.long()
    contenders = {
        "dotformer": torch.no_grad()(lambda: ours(tokens, mask)),
        "transformers": torch.no_grad()(lambda: theirs(tokens, attention_mask=number).last_hidden_state),
    }
    apart = difference({name: run()[real] for name, run in contenders.items()}, 1e-4)
    counts = {"dotformer": parameters(ours), "transformers": parameters(theirs)}
    said = f"MiniLM, batch {batch} × {length}"
    times = in_turns(contenders, device, **budget)
    return {"what": "encoding", "size": said, "parameters": counts, "difference": apart, "times": times}


def generation(size: tuple[int, ...], device: torch.device, **budget: Any) -> Measurement:
    """Writing with a cache: as many tokens as the longest source has or, `early`, as each source has.

    Checks that all write the same tokens.
    """
    *_, vocab_size, batch, length, beam, early = size
    ours = model_of(size, device, dropout=0.0).eval()
    with (
        torch.no_grad()
    ):  # what has learnt nothing repeats itself; so places count for more here, and choices are clear
        ours.output.weight *= 0.1
        ours.decoder.layers[-1].feed_forward_add_norm.norm.weight *= 50
        ours.target_embeddings.positions.table.normal_(std=2)
    theirs = Marian(ours).to(device).eval()
    source = sentences(batch, length, vocab_size, device)
    ends = Ends((source != 0).sum(dim=1), vocab_size, bool(early))

    def write(begun: Callable[[], Decoding]) -> list[list[int]]:
        state, longest = Ending(begun(), ends), length + early
        if beam == 1:
            return greedy(state, longest)
        return [best[0].tokens for best in beam_search(state, longest, beam)]

    contenders = {
        "dotformer": partial(write, lambda: KVCache(ours, source)),
        "transformers": lambda: theirs.write(source, ends, beam),
    }
    if device.type == "cpu":
        graphs = onnx_graphs(ours)
        contenders["dotformer, ONNX Runtime"] = partial(write, lambda: OnnxCache(*graphs, source))
    counts = {"dotformer": parameters(ours), "transformers": parameters(theirs)}
    if device.type == "cpu" and (not early or beam == 1):  # with a beam there is no telling it when to end
        with suppress(ImportError):
            engine = CTranslate2(ours, ends.bias)
            contenders["CTranslate2"] = lambda: engine.write(source, ends, beam)
    tokens = {name: run() for name, run in contenders.items()}
    if [len(row) for row in tokens["dotformer"]] != ends.lengths.tolist():
        raise ValueError("sentences of other lengths were written than were asked for")
    if any(found != tokens["dotformer"] for found in tokens.values()):
        raise ValueError(f"two models with the same parameters wrote different tokens, with beam {beam}")
    if not early:
        contenders["dotformer, products alone"] = products_alone(ours, batch * beam, length)
    what = "greedy" if beam == 1 else f"beam {beam}"
    said = f"generation, {what}, " + ("each to its own length" if early else "all to one length")
    different = len({token for row in tokens["dotformer"] for token in row})
    times = in_turns(contenders, device, **budget)
    return {"what": said, "size": told(size), "parameters": counts, "different_tokens": different, "times": times}


def attention(size: tuple[int, ...], device: torch.device, **budget: Any) -> Measurement:
    """Forward and backward through self-attention alone, on a GPU in bfloat16. Checks output and gradient first."""
    d_model, heads, batch, length, causal = size
    ours = MultiHeadAttention(d_model, heads, bias=False)
    layers = {
        "dotformer": ours,
        "torch": torch_attention(ours),
    }
    with suppress(ImportError):
        layers["x-transformers, flash"] = x_attention(ours, bool(causal), flash=True)
        layers["x-transformers"] = x_attention(ours, bool(causal), flash=False)
    mask = "causal" if causal else None
    hidden = {"attn_mask": ~causal_mask(length, device), "is_causal": True} if causal else {}
    calls = {
        "dotformer": lambda layer, x: layer(x, x, x, mask)[0],
        "torch": lambda layer, x: layer(x, x, x, need_weights=False, **hidden)[0],
    }

    def turn(name: str, x: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        layers[name].zero_grad()
        x.grad = None
        output = calls.get(name, lambda layer, x: layer(x))(layers[name], x)
        output.backward(after)
        return output.detach(), x.grad

    x = torch.randn(batch, length, d_model, device=device, requires_grad=True)
    after = torch.randn(batch, length, d_model, device=device)
    found = {name: turn(name, x, after) for name, layer in layers.items() if layer.to(device)}
    apart = max(difference({name: pair[n] for name, pair in found.items()}, 1e-4) for n in (0, 1))
    del found
    if device.type == "cuda":
        for layer in layers.values():
            layer.bfloat16()
        x, after = x.detach().bfloat16().requires_grad_(), after.bfloat16()
    times = in_turns({name: partial(turn, name, x, after) for name in layers}, device, **budget)
    counts = {name: parameters(layer) for name, layer in layers.items()}
    said = f"D {d_model}, {heads} heads, batch {batch} × {length}"
    what = "attention, causal" if causal else "attention"
    return {"what": what, "size": said, "parameters": counts, "difference": apart, "times": times}


def recurrent(size: tuple[int, ...], device: torch.device, **budget: Any) -> Measurement:
    """A training step of the recurrent models beside one of the library's cells alone, which compute something else."""
    d_model, vocab_size, batch, length = size
    models: dict[str, nn.Module] = {
        f"dotformer, {name}": RecurrentSeq2Seq(
            RecurrentConfig(vocab_size, vocab_size, d_model, attention=name == "attention")
        )
        for name in ("no attention", "attention")
    }
    models["nn.LSTM alone"] = LSTMs(vocab_size, d_model, dropout=0.1)
    source, target = sentences(batch, length, vocab_size, device), written(batch, length, vocab_size, device)
    for name, model in models.items():
        if model.to(device)(source, target).shape != (*target.shape, vocab_size):
            raise ValueError(f"{name} does not score every token")
    times = in_turns({name: step_of(model, source, target) for name, model in models.items()}, device, **budget)
    counts = {name: parameters(model) for name, model in models.items()}
    said = f"D {d_model}, V {vocab_size}, batch {batch} × {length}"
    return {"what": "recurrent training step", "size": said, "parameters": counts, "times": times}


def rows(device: torch.device, quick: bool = False) -> Iterator[tuple[str, Callable[[], Measurement]]]:
    """The name of each measurement, and what makes it."""
    kind = "quick" if quick else device.type
    budget = {"seconds": 0.0, "warm_up": 0, "least": 1} if quick else {"seconds": 8.0 if kind == "cpu" else 3.0}
    parts = TRAINING | {"cuda": []}  # for processors alone
    plans = ((training, TRAINING), (products, parts), (cross_entropies, parts), (encoding, ENCODING))
    for run, sizes in (*plans, (generation, GENERATION), (attention, ATTENTION), (recurrent, RECURRENT)):
        for size in sizes[kind]:
            yield f"{run.__name__} {size}", partial(summarised, partial(run, size, device, **budget))


def summarised(run: Callable[[], Measurement]) -> Measurement:
    """A measurement, the times in place as a summary."""
    torch.manual_seed(0)
    found = run()
    times = found.pop("times")
    found["date"] = date.today().isoformat()
    return found | {"rounds": len(next(iter(times.values()))), "contenders": summary(times)}


def merged(before: dict[str, Any], new: list[Measurement]) -> list[Measurement]:
    """What a file has, with new measurements in the place of those of the same kind and size, or at the end."""
    by_row = {(row["what"], row["size"]): row for row in new}
    old = [{"date": before["date"]} | row for row in before["measurements"]]
    return [by_row.pop((row["what"], row["size"]), row) for row in old] + list(by_row.values())


def table(found: Measurement) -> str:
    """A measurement as lines: each contender with its median, quartiles and ratio to the fastest peer."""
    lines = [f"{found['what']}: {found['size']}", f"  {'':24}{'ms':>9}  {'quartiles':>17}  {'ratio':>6}  quartiles"]
    for name, row in found["contenders"].items():
        ends, around = ("{:.4g} – {:.4g}".format(*row[key]) for key in ("quartiles", "ratio_quartiles"))
        lines.append(f"  {name:24}{row['ms']:9.4g}  {ends:>17}  {row['ratio']:6.2f}  {around:15}")
        if name in found["parameters"]:
            lines[-1] += f"  {found['parameters'][name]:,} parameters"
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure on a device, print a table, and save what was found."""
    parser = argparse.ArgumentParser(prog="benchmarks.peers")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU if there is one")
    parser.add_argument("--quick", action="store_true", help="tiny models, one round, nothing saved")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="rows whose names begin like this, such as products")
    options = parser.parse_args(arguments)
    auto = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(auto if options.device == "auto" else options.device)
    keep_freed_memory()  # for all contenders alike
    measurements = []
    for name, make in rows(device, options.quick):
        if not options.only or name.startswith(tuple(options.only)):
            measurements.append(make())
            print(table(measurements[-1]), flush=True)
    if not measurements:
        parser.error(f"no row's name begins with {' or '.join(options.only)}")
    if not options.quick:
        name = f"peers-{device.type}"
        kept = measured(name) if options.only else {}
        save(name, kept | {"measurements": merged(kept, measurements) if kept else measurements})


if __name__ == "__main__":
    main()
