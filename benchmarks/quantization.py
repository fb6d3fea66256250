"""What few bits cost a translator of captions: `python -m benchmarks.quantization [--device cuda]`.

Three small transformers, one a seed, are trained on English and German captions, for 2,000 steps with the settings that
the search of `benchmarks.captions` has found for as many. Then each matrix is rounded to some bits, with a scale for
each row or one for the matrix, and the test captions are translated greedily. Takes a quarter of an hour of one core,
and writes book/measurements/quantization.json.
"""

from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.captions import TASKS, learnt
from benchmarks.race import SEEDS, asked_for, translator_of
from benchmarks.results import save
from dotformer.export import rounded
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches
from dotformer.translation import bleu

SETTINGS = {"learning_rate": 0.003, "size": 1, "layers": 2, "dropout": 0.0}
BITS = [(32, True), (8, True), (6, True), (5, True), (4, True), (3, True), (8, False), (6, False), (5, False)]
BITS += [(4, False), (3, False)]


def put(model: nn.Module, parameters: dict[str, Tensor], bits: int, by_row: bool) -> None:
    """Give a model its parameters, each matrix rounded; all 32 bits are no rounding."""
    model.load_state_dict(
        {
            name: rounded(value, bits, by_row) if value.ndim == 2 and bits < 32 else value
            for name, value in parameters.items()
        }
    )


def costs(device: str, steps: int) -> dict[str, Any]:
    """BLEU of each model at each number of bits."""
    task, (corpus, *tokenizers) = TASKS["short"], learnt()
    rows = [{"bits": bits, "by_row": by_row, "bleu": []} for bits, by_row in BITS]
    for seed in SEEDS:
        torch.manual_seed(seed)
        translator = translator_of(task, "transformer", SETTINGS, *tokenizers)
        learn, held_out = translator.encode_pairs(corpus.train), translator.encode_pairs(corpus.validation)
        config = TrainingConfig(steps, SETTINGS["learning_rate"], warmup_steps=100, validate_every=steps, seed=seed)
        batches = partial(pair_batches, learn, max_tokens=task.max_tokens, seed=seed)
        validate = partial(evaluate, batches=list(pair_batches(held_out)))
        Trainer(translator.model, config, device).train(batches, validate, progress=False)
        parameters = deepcopy(translator.model.state_dict())
        for row in rows:
            put(translator.model, parameters, row["bits"], row["by_row"])
            texts = translator.translate([pair.source for pair in corpus.test], beam=1)
            score, signature = bleu(texts, [pair.target for pair in corpus.test])
            row["bleu"].append(round(score, 2))
            print(seed, row["bits"], row["by_row"], row["bleu"][-1], flush=True)
    return {"steps": steps, "settings": SETTINGS, "signature": signature, "rows": rows}


if __name__ == "__main__":
    _, device = asked_for(__doc__)
    save("quantization", costs(device, TASKS["short"].steps))
