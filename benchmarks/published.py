"""A published model in the book's code, beside the library `transformers`: `python -m benchmarks.published`.

SmolLM2-135M-Instruct with the same parameters in both: logits and next tokens after a hundred prompts, and tokens a
second. Then what the model makes of examples in its prompt. And stories260K, which writes its pinned text. Takes
fifteen minutes of one core; the network once, for stories260K.
"""

import random
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.results import save
from dotformer.data.corpora import docstrings
from dotformer.data.stories import stories_files
from dotformer.modern import ModernCache, ModernConfig, ModernGPT, load_smollm2
from dotformer.support.llama_files import llama2c_subwords, read_llama2c, smollm2_file

PROMPTS, PROMPT_LENGTH, WRITTEN, ROUNDS = 100, 40, 60, 3
EXAMPLES, SEEDS = (0, 1, 2, 4, 8, 16), range(3)
OPPOSITES = """hot cold, big small, up down, left right, day night, black white, old new, rich poor, hard soft, fast
slow, high low, long short, wet dry, open closed, early late, full empty, good bad, happy sad, heavy
light, inside outside, strong weak, love hate, win lose, buy sell, push pull, first last, always never,
north south, east west, near far, true false, yes no, begin end, man woman, king queen, war peace, young
old, clean dirty, sweet sour, thick thin"""


def their_model(path: Path) -> PreTrainedModel:
    """The library's Llama, which reads the file itself; it turns entries i and i + d_k / 2, ours 2i and 2i + 1."""
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return theirs.eval()


@torch.no_grad()
def compared(ours: ModernGPT, theirs: PreTrainedModel, prompts: list[list[int]]) -> dict[str, Any]:
    """The largest difference of logits, the largest logit, and after how many prompts the next token is the same."""
    difference, largest, same = 0.0, 0.0, 0
    for prompt in prompts:
        tokens = torch.tensor([prompt])
        one, other = ours(tokens[:, :0], tokens)[0], theirs(tokens).logits[0]
        difference = max(difference, float((one - other).abs().max()))
        largest = max(largest, float(other.abs().max()))
        same += int(one[-1].argmax() == other[-1].argmax())
    return {"prompts": len(prompts), "difference": difference, "largest": largest, "same_next_token": same}


@torch.no_grad()
def speeds(ours: ModernGPT, theirs: PreTrainedModel, prompt: list[int]) -> dict[str, list[float]]:
    """Tokens a second of processor time that each writes after a prompt, with its cache, in several rounds."""
    tokens, found = torch.tensor([prompt]), {"ours": [], "transformers": []}
    for _ in range(ROUNDS):
        start = time.process_time()
        cache, token = ModernCache(ours, tokens[:, :-1]), tokens[:, -1]
        for _ in range(WRITTEN):
            token = cache.step(token).argmax(dim=-1)
        found["ours"].append(WRITTEN / (time.process_time() - start))
        start = time.process_time()
        theirs.generate(tokens, max_new_tokens=WRITTEN, min_new_tokens=WRITTEN, do_sample=False, pad_token_id=2)
        found["transformers"].append(WRITTEN / (time.process_time() - start))
    return {name: [round(rate, 2) for rate in rates] for name, rates in found.items()}


@torch.no_grad()
def few_shot(model: ModernGPT, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """How often the opposite of a word comes next, after so many examples; and if each has another's answer."""
    pairs = [tuple(pair.split()) for pair in OPPOSITES.split(",")]
    found = []
    for seed, count, right in product(SEEDS, EXAMPLES, (True, False)):
        if not count and not right:
            continue
        drawn, hits = random.Random(seed), 0
        for word, opposite in pairs:
            rest = [pair for pair in pairs if not {word, opposite} & set(pair)]
            shown = drawn.sample(rest, max(EXAMPLES) + 1)[: count + 1]
            answers = [answer for _, answer in shown[not right :]]  # wrong: of the next pair
            lines = [f"{one} -> {answer}" for (one, _), answer in zip(shown[:count], answers, strict=False)]
            tokens = torch.tensor([tokenizer.encode("\n".join([*lines, f"{word} ->"])).ids])
            guess = int(model(tokens[:, :0], tokens)[0, -1].argmax())
            hits += guess == tokenizer.encode(f" {opposite}").ids[0]
        found.append({"seed": seed, "examples": count, "right": right, "found": round(hits / len(pairs), 3)})
    return found


@torch.no_grad()
def story(length: int = 200) -> str:
    """What stories260K writes, always the likeliest token."""
    model_file, tokenizer_file = stories_files()
    settings, state = read_llama2c(model_file)
    model, subwords = ModernGPT(ModernConfig(**settings, pad_id=None)).eval(), llama2c_subwords(tokenizer_file)
    model.load_state_dict(state)
    cache, token, written = ModernCache(model, torch.zeros(1, 0, dtype=torch.long)), torch.tensor([1]), []
    while len(written) < length and int(token := cache.step(token).argmax(dim=-1)) != 1:
        written.append(int(token))
    return b"".join(subwords[n] for n in written).decode().removeprefix(" ")


def main() -> None:
    """Measure all of it."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"story": story()}
    ours, tokenizer, _ = load_smollm2()
    theirs = their_model(smollm2_file())
    texts = [tokenizer.encode(pair.target).ids[:PROMPT_LENGTH] for pair in docstrings().test[:PROMPTS]]
    found |= {"compared": compared(ours, theirs, texts), "tokens_a_second": speeds(ours, theirs, texts[0])}
    ratios = [one / other for one, other in zip(*found["tokens_a_second"].values(), strict=True)]
    found |= {"ratio": round(statistics.median(ratios), 3), "few_shot": few_shot(ours, tokenizer)}
    save("published", found)


if __name__ == "__main__":
    main()
