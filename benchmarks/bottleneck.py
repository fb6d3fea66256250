"""How much one vector can carry, after training: `python -m benchmarks.bottleneck`.

Encoder-decoders copy random letters, with the attention of 2014 and without. Each is trained over a grid of learning
rates, with three seeds, and tested at each length. Takes half an hour of two cores and writes
book/measurements/bottleneck.json.
"""

import time
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from tqdm import tqdm

from benchmarks.results import save
from dotformer.recurrent import RecurrentConfig, RecurrentSeq2Seq
from dotformer.training import linear_rate

LETTERS, LONGEST, BATCH = 26, 32, 64
RATES, SEEDS = (0.001, 0.003, 0.01, 0.03), range(3)
MODELS: dict[str, dict[str, Any]] = {
    "width 32": {"width": 32},
    "width 64": {"width": 64},
    "width 64, three times the steps": {"width": 64, "steps": 6000},
    "width 128": {"width": 128},
    "attention, width 32": {"width": 32, "attention": True},
}
LENGTHS = range(2, LONGEST + 1, 2)


def draw(length: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random letters (count, length) and, with begin and end around them, the target; token 0 is padding."""
    letters = torch.randint(3, 3 + LETTERS, (count, length), generator=generator)
    begin, end = torch.full((count, 1), 1), torch.full((count, 1), 2)
    return letters, torch.cat([begin, letters, end], dim=1)


@torch.no_grad()
def right_by_length(model: nn.Module) -> list[float]:
    """At each of `LENGTHS` the share of letters right, given the true ones before each."""
    model.eval()
    generator, shares = torch.Generator().manual_seed(1000), []
    for length in LENGTHS:
        source, target = draw(length, 200, generator)
        hits = model(source, target[:, :-2]).argmax(dim=-1) == source
        shares.append(hits.float().mean().item())
    return shares


def run(width: int, rate: float, seed: int, steps: int = 2000, attention: bool = False) -> dict[str, Any]:
    """Train one model on lengths from 2 to `LONGEST`, drawn afresh for each batch."""
    torch.manual_seed(seed)
    sizes = {"d_model": width, "attention": attention, "dropout": 0.0}
    model = RecurrentSeq2Seq(RecurrentConfig(3 + LETTERS, 3 + LETTERS, **sizes))
    optimizer, generator = optim.Adam(model.parameters()), torch.Generator().manual_seed(seed)
    start = time.perf_counter()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = linear_rate(step, rate, 100, steps)
        length = int(torch.randint(2, LONGEST + 1, (), generator=generator))
        source, target = draw(length, BATCH, generator)
        loss = F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    seconds = time.perf_counter() - start
    settings = {"width": width, "learning_rate": rate, "seed": seed, "steps": steps, "attention": attention}
    parameters = sum(p.numel() for p in model.parameters())
    return settings | {"parameters": parameters, "seconds": seconds, "right": right_by_length(model)}


def planned(plan: tuple[str, float, int]) -> dict[str, Any]:
    """A run of a model at a learning rate, with a seed."""
    name, rate, seed = plan
    torch.set_num_threads(1)
    return {"model": name} | run(rate=rate, seed=seed, **MODELS[name])


def main() -> None:
    """Train all, two at a time, and save."""
    plan = [(name, rate, seed) for name in MODELS for rate in RATES for seed in SEEDS]
    with get_context("spawn").Pool(2) as pool:
        runs = list(tqdm(pool.imap(planned, plan), total=len(plan)))
    save("bottleneck", {"lengths": list(LENGTHS), "batch": BATCH, "runs": runs})


if __name__ == "__main__":
    main()
