"""Tangled from chapters/13_alignment.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def on_target(weights: Tensor, alignment: Iterable[tuple[int, int]]) -> Tensor:
    """Whether each aligned target word looks most at a word that it renders.

    `weights` are (..., T, S), and `alignment` has pairs (target word, source word).
    Returns booleans (..., N) for the N target words that are aligned, in order.

    Defined in chapter 13, "Does attention say which word came from which?".
    """
    gold = torch.zeros(weights.shape[-2:], dtype=torch.bool)
    for place in alignment:
        gold[place] = True
    best = weights.argmax(dim=-1, keepdim=True).cpu()
    hits = gold.expand(weights.shape).gather(-1, best).squeeze(-1)
    return hits[..., gold.any(dim=1)]
