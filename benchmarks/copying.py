"""Two layers that learn to copy: `python -m benchmarks.copying`.

Each text has four words of its own, made of random letters and said again and again in random order, with a random
letter after each. Nothing in it can be predicted but the rest of a word that has been there before. Kept are, while
three models learn, the loss and where each head attends to; in the end, the loss without each head; and all that of
models of one layer, and of two layers without positions. Takes ten minutes of one core and writes
book/measurements/copying.json.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from benchmarks.docstrings import without
from benchmarks.results import save
from dotformer.gpt import GPT, GPTConfig
from dotformer.support.recording import record_weights
from dotformer.training import Trainer, TrainingConfig

LETTERS, LENGTH, ROWS, WORDS = 32, 48, 64, (4, 5, 6, 7)
SHAPE = {"d_model": 64, "num_heads": 2, "d_ff": 128, "dropout": 0.0}
STEPS, SEEDS = 2000, range(3)
KINDS = (2, True), (1, True), (2, False)  # layers, and whether there are positions


def texts(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts (rows, 48) of the letters 1 to 32, and which letters continue a word that has been there before."""
    found, known = [], []
    starts = [sum(WORDS[:n]) for n in range(len(WORDS) + 1)]
    for _ in range(rows):
        letters = (1 + torch.randperm(LETTERS, generator=generator)).tolist()
        row, continues, before, word = [], [], set(), 0
        while len(row) < LENGTH:
            word = (word + int(torch.randint(1, len(WORDS), (1,), generator=generator))) % len(WORDS)
            row += letters[starts[word] : starts[word + 1]]
            continues += [False] + [word in before] * (WORDS[word] - 1)
            before.add(word)
            row.append(letters[int(torch.randint(starts[-1], LETTERS, (1,), generator=generator))])
            continues.append(False)
        found.append(row[:LENGTH])
        known.append(continues[:LENGTH])
    return torch.tensor(found), torch.tensor(known)


def batches(seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A hundred batches, without a prompt."""
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    for _ in range(100):
        text, _ = texts(ROWS, generator)
        yield text[:, :0], text


@torch.no_grad()
def attended(model: GPT, text: Tensor, known: Tensor) -> dict[str, list[list[float]]]:
    """Of each head, (layers, H), two mean weights of the letters that a known one follows.

    "before" is the weight on the letter before; "after" that on all letters that came after the same letter earlier.
    """
    with record_weights(model.eval()) as seen:
        model(text[:, :0], text)
    weights = torch.stack(list(seen.values()))  # (layers, rows, H, T, T)
    follows = torch.cat([text[:, :1] * 0, text[:, :-1]], dim=1)  # the letter before each
    came_after = (text[:, :, None] == follows[:, None, :]).tril()
    queries = torch.cat([known[:, 1:], known[:, :1]], dim=1)[:, None, :]  # whose next letter is known
    before = F.pad(weights.diagonal(-1, -2, -1), (1, 0))
    after = (weights * came_after[:, None]).sum(dim=-1)
    means = {"before": before, "after": after}
    count = queries.sum()
    return {
        name: ((each * queries).sum(dim=(1, 3)) / count).double().round(decimals=3).tolist()
        for name, each in means.items()
    }


@torch.no_grad()
def losses(model: GPT, text: Tensor, known: Tensor) -> dict[str, float]:
    """Nats of the letters that continue a word that was there before, and of all others."""
    each = F.cross_entropy(model.eval()(text[:, :0], text[:, :-1]).mT, text[:, 1:], reduction="none")
    return {"loss": float(each[known[:, 1:]].mean()), "new": float(each[~known[:, 1:]].mean())}


def learn(seed: int, layers: int, positions: bool) -> dict[str, Any]:
    """What a model of that many layers comes to, and how."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig(vocab_size=LETTERS + 1, max_length=LENGTH, num_layers=layers, **SHAPE))
    if not positions:
        model.positions.weight.data.zero_()
        model.positions.weight.requires_grad_(False)
    config = TrainingConfig(STEPS, 3e-3, warmup_steps=100, label_smoothing=0.0, validate_every=50, seed=seed)
    held_out = texts(300, torch.Generator().manual_seed(10**6))
    rows: list[dict[str, Any]] = []

    def validate(model: torch.nn.Module) -> dict[str, float]:
        found = losses(model, *held_out)
        rows.append({name: round(nats, 3) for name, nats in found.items()} | attended(model, *held_out))
        return found

    history = Trainer(model, config).train(lambda epoch: batches(seed, epoch), validate, progress=False)
    for row, logged in zip(rows, history, strict=True):
        row["step"] = logged["step"]
    run = {"seed": seed, "layers": layers, "positions": positions, "rows": rows}
    if layers > 1 and positions:
        run |= {"without": without_each(model, *held_out), "example": example(model, *held_out)}
    return run


def without_each(model: GPT, text: Tensor, known: Tensor) -> list[list[float]]:
    """The loss on known letters when a head hands over nothing, (layers, H)."""
    found = []
    for layer in range(model.config.num_layers):
        found.append([])
        for head in range(model.config.num_heads):
            with without(model, [(layer, head)]):
                found[layer].append(round(losses(model, text, known)["loss"], 3))
    return found


@torch.no_grad()
def example(model: GPT, text: Tensor, known: Tensor) -> dict[str, Any]:
    """One text, its weights in thousandths (layers, H, T, T), and which of its letters are known."""
    with record_weights(model.eval()) as seen:
        model(text[:1, :0], text[:1])
    weights = torch.cat([each for each in seen.values()])
    return {
        "text": text[0].tolist(),
        "known": known[0].tolist(),
        "thousandths": (1000 * weights).round().int().tolist(),
    }


def main() -> None:
    """Train all of them."""
    torch.set_num_threads(1)
    asked = [(seed, *kind) for kind in KINDS for seed in SEEDS]
    runs = [learn(*one) for one in tqdm(asked, unit="model")]
    for run in runs[1:]:
        run.pop("example", None)  # one is enough
    save("copying", {"steps": STEPS, "letters": LETTERS, "words": WORDS, "runs": runs})


if __name__ == "__main__":
    main()
