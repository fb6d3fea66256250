"""How a published model goes on, greedily and drawn: `python -m benchmarks.degeneration`.

SmolLM2 continues a beginning with its likeliest token each time, and with one drawn each time, for 60 tokens. Takes
ten seconds of one core and writes book/measurements/degeneration.json.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.results import save
from dotformer.generation import filter_logits
from dotformer.modern import ModernCache, load_smollm2

BEGINNING = "The old man walked along the shore and looked at the sea."
LENGTH, TOP_P = 60, 0.9


def main() -> None:
    """Write, decode, save."""
    model, tokenizer, _ = load_smollm2()
    prompt = torch.tensor([tokenizer.encode(BEGINNING).ids])
    generator = torch.Generator().manual_seed(0)

    def written(choose: Callable[[Tensor], Tensor]) -> str:
        cache, token, tokens = ModernCache(model, prompt[:, :-1]), prompt[:, -1], []
        for _ in range(LENGTH):
            token = choose(cache.step(token))
            tokens.append(int(token))
        return tokenizer.decode(tokens)

    def draw(logits: Tensor) -> Tensor:
        shares = filter_logits(logits, top_p=TOP_P).softmax(dim=-1)
        return torch.multinomial(shares, 1, generator=generator).flatten()

    texts = {"greedy": written(lambda logits: logits.argmax(dim=-1)), "drawn": written(draw)}
    save("degeneration", {"beginning": BEGINNING, "tokens": LENGTH, "top_p": TOP_P} | texts)


if __name__ == "__main__":
    main()
