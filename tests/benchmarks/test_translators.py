"""The contenders in the race of translators: one size for all, and embeddings as large as the settings ask."""

import pytest
import torch

from benchmarks.translators import MODELS, PARAMETERS, corpus_of, length, parameters, translator_of


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("model", MODELS)
def test_contenders_are_of_one_size_and_start_as_they_are_told(model: str, layers: int):
    _, *tokenizers = corpus_of("grammar")
    torch.manual_seed(0)
    translator = translator_of(model, {"size": 0.5, "layers": layers, "dropout": 0.0}, *tokenizers)
    assert parameters(translator.model) == pytest.approx(PARAMETERS, rel=0.1)
    network, tokens = translator.model, torch.arange(3, 40)[None]
    if translator.kind == "recurrent":
        embedded = network.source_embeddings(tokens) * network.scale
    else:
        embedded = network.source_embeddings(tokens) - network.source_embeddings.positions.table[: tokens.shape[1]]
    assert embedded.std().item() == pytest.approx(0.5, rel=0.1)


def test_only_the_longer_half_of_the_numbers_is_left_out():
    corpus, *_ = corpus_of("numbers")
    longest = max(map(length, corpus.train))
    assert max(map(length, corpus.validation)) <= longest < max(map(length, corpus.test))
