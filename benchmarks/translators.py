"""The transformer beside four recurrent models, where it is known what is right: `python -m benchmarks.translators`.

On the grammar they get what else there is in four stages: one learning rate for all and embeddings as they are drawn;
then each its own learning rate; then embeddings scaled as the transformer's; then depth, dropout and size of the
embeddings as well. Of the number words they get the shorter half, with scaled embeddings and a learning rate of their
own, and are tested on all lengths.

Settings are chosen by the share of validation sentences that are right (of equals, by the loss), and judged by what is
wrong, seconds, and how often attention points at a word that is meant.

Takes three hours of one core, and less with --jobs. Whatever is done is kept in book/measurements/translators.json, and
not done again.
"""

from functools import cache, partial
from typing import Any

import torch

from benchmarks.race import TUNED, Task, attention, race
from dotformer.alignment import on_target
from dotformer.data.corpora import Corpus, Pair, grammar, number_words
from dotformer.generation import greedy
from dotformer.tokens import BPETokenizer, pad_batch
from dotformer.translation import Translator


@cache
def learnt(name: str) -> tuple[Corpus, BPETokenizer, BPETokenizer]:
    """The grammar, or the number words without the longer half of what is learnt; and two tokenizers by words."""
    corpus = grammar() if name == "grammar" else number_words()
    source, target = (BPETokenizer.train((f" {pair[side]}" for pair in corpus.train), 10_000) for side in (0, 1))
    if name == "numbers":
        longest = sorted(map(length, corpus.train))[len(corpus.train) // 2]
        corpus = Corpus(
            *([pair for pair in part if length(pair) <= longest] for part in (corpus.train, corpus.validation)),
            corpus.test,
        )
    return corpus, source, target


def length(pair: Pair) -> int:
    """The words of a pair's target."""
    return len(pair.target.split())


def chosen_by(row: dict[str, Any]) -> float:
    """The share of validation sentences that are wrong; of equals the lower loss."""
    return 1 - row["validation_exact"][-1] + row["validation_loss"] / 1000


def validated(translator: Translator, corpus: Corpus) -> dict[str, Any]:
    """Nothing that the training has not logged."""
    return {}


def judged(translator: Translator, corpus: Corpus) -> dict[str, Any]:
    """What it writes of the test set where it is wrong, and where it looks."""
    both = enumerate(zip(corpus.test, write(translator, corpus.test), strict=True))
    wrong = {n: text for n, (pair, text) in both if text != pair.target}
    return {"wrong": wrong, "points_right": points_right(translator, corpus.test)}


def write(translator: Translator, pairs: list[Pair]) -> list[str]:
    """What greedy decoding writes for each source."""
    texts = []
    for start in range(0, len(pairs), 100):
        source = pad_batch([row for row, _ in translator.encode_pairs(pairs[start : start + 100])], 0)
        state = translator.state(translator.model.eval(), source)
        texts += [translator.target.decode(tokens).strip() for tokens in greedy(state, 60)]
    return texts


def points_right(translator: Translator, pairs: list[Pair]) -> list[list[float]]:
    """For each layer, and in it for each head, the share of aligned target words that attend most to a word of theirs.

    Nothing without attention or without a gold alignment. Several heads are followed by their mean.
    """
    if not pairs[0].alignment or not getattr(translator.model.config, "attention", True):
        return []
    hits = []
    for pair in pairs:
        weights = attention(translator, pair)[:, :, :-1]
        if weights.shape[1] > 1:
            weights = torch.cat([weights, weights.mean(dim=1, keepdim=True)], dim=1)
        hits.append(on_target(weights, pair.alignment))
    shares = torch.cat(hits, dim=-1).double().mean(dim=-1)
    return [[round(share, 4) for share in layer] for layer in shares.tolist()]


SAME = {"validated": validated, "judged": judged, "chosen_by": chosen_by}
TASKS = {
    "grammar": Task(
        learnt=partial(learnt, "grammar"),
        steps=900,
        stages={
            "untuned": [],
            "own learning rate": ["learning_rate"],
            "scaled": ["learning_rate"],
            "tuned": TUNED,
        },
        **SAME,
    ),
    "numbers": Task(learnt=partial(learnt, "numbers"), steps=600, stages={"scaled": ["learning_rate"]}, **SAME),
}

if __name__ == "__main__":
    race("translators", TASKS, __doc__)
