"""What chapter 18 has measured, beside slower ways to count; and its configuration."""

import math
import random
import tomllib
from itertools import chain, pairwise
from pathlib import Path

import pytest
import torch

from benchmarks import copying, docstrings
from dotformer.data.corpora import Corpus, Pair
from dotformer.gpt import GPT, GPTConfig
from dotformer.support.recording import record_weights
from dotformer.tokens import BPETokenizer

PAIRS = [Pair(f"numpy.part{n}", f"Return the sum {n}.\n\nParameters\n----------\nx : array {n * n}") for n in range(12)]


@pytest.fixture
def tokenizer():
    return BPETokenizer.train((f" {text}" for pair in PAIRS for text in pair[:2]), 300)


@pytest.fixture
def model(tokenizer):
    torch.manual_seed(0)
    shape = {"d_model": 16, "num_heads": docstrings.HEADS, "num_layers": docstrings.LAYERS, "d_ff": 8}
    return GPT(GPTConfig(vocab_size=len(tokenizer), max_length=512, **shape)).eval()


def test_only_what_continues_a_word_of_the_same_text_is_known():
    texts, known = copying.texts(20, torch.Generator().manual_seed(3))
    assert texts.shape == known.shape == (20, copying.LENGTH) and 0 < texts.min() <= texts.max() <= copying.LETTERS
    for text, knows in zip(texts.tolist(), known.tolist(), strict=True):
        for place in range(1, len(text)):
            pairs = list(pairwise(text[:place]))  # all that stand before
            after = [second for first, second in pairs if first == text[place - 1]]
            if knows[place]:
                assert set(after) == {text[place]}
        assert 0.2 < sum(knows) / len(knows) < 0.8 and not knows[0]


def test_weights_are_summed_over_what_came_after():
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=33, max_length=48, num_layers=2, **copying.SHAPE))
    texts, known = copying.texts(4, torch.Generator().manual_seed(1))
    found = copying.attended(model, texts, known)
    with record_weights(model) as seen, torch.no_grad():
        model(texts[:, :0], texts)
    for layer, weights in enumerate(seen.values()):
        for head in range(2):
            before, after = [], []
            for row, (text, knows) in enumerate(zip(texts.tolist(), known.tolist(), strict=True)):
                for t in range(47):
                    if knows[t + 1]:
                        here = weights[row, head, t]
                        before.append(float(here[t - 1]))
                        after.append(sum(float(here[j]) for j in range(1, t + 1) if text[j - 1] == text[t]))
            for name, values in (("before", before), ("after", after)):
                assert found[name][layer][head] == pytest.approx(sum(values) / len(values), abs=6e-4)
    without = copying.without_each(model, texts, known)
    assert len({*chain(*without), round(copying.losses(model, texts, known)["loss"], 3)}) > 1
    assert copying.attended(model, texts, known) == found  # all is put back


def test_entropies_are_those_of_counts():
    train, held_out = [([3], [1, 4, 4, 5, 2]), ([3], [1, 4, 5, 2])], [([3], [1, 4, 5, 2])]
    found = docstrings.entropies(train, held_out, 6)
    # of 7 targets 4 is three, 5 two, 2 two; and one more of each of the 6 tokens
    assert found["uniform"] == pytest.approx(math.log(6))
    assert found["unigram"] == pytest.approx(-(math.log(4 / 13) + 2 * math.log(3 / 13)) / 3)
    single, double = (4 / 13, 3 / 13, 3 / 13), (1.0, 2 / 3, 1.0)
    mixed = [
        -sum(math.log((1 - n / 10) * a + n / 10 * b) for a, b in zip(single, double, strict=True)) / 3
        for n in range(10)
    ]
    assert found["bigram"] == pytest.approx(min(mixed))


def test_all_context_is_no_less_than_the_text(model, tokenizer, monkeypatch):
    monkeypatch.setattr(docstrings, "LONG", 8)
    monkeypatch.setattr(docstrings, "BIN", 2)
    monkeypatch.setattr(docstrings, "CONTEXTS", (0, 3, 6))
    rows = docstrings.encoded(tokenizer, PAIRS)
    losses = [docstrings.token_losses(model, row) for row in rows]
    found = docstrings.by_context(model, rows)
    assert found["6"] == docstrings.by_position(losses)[-1]
    mixed = []
    for n, (name, text) in enumerate(rows):
        other = rows[(n + 1) % len(rows)][1]
        whole = torch.tensor([[*text[:1], *other[1:4], *text[4:8]]])
        with torch.no_grad():
            logs = model(torch.tensor([name]), whole)[0].log_softmax(dim=-1)
        mixed += [-float(logs[6, text[7]]), -float(logs[7, text[8]])]
    assert found["3"] == pytest.approx(sum(mixed) / len(mixed), abs=1e-3)
    assert found["0"] not in (found["3"], found["6"])


def test_a_name_is_found_where_it_shares_rare_words_with_its_text(model, tokenizer):
    assert docstrings.words("numpy.fft2.inverseShift_of") == "numpy fft inverse shift of"
    pairs = [Pair(f"numpy.{word}.it", f"Return the {word} of it.") for word in ("sum", "mean", "norm", "root", "sign")]
    pairs += [Pair("scipy.sum", "A sum."), *[Pair(f"scipy.p{n}", "Parts.") for n in range(3)]]
    found = docstrings.names_found(model, tokenizer, pairs)
    right, drawn = 0, random.Random(0)
    for pair in pairs:
        others = [one.source for one in pairs if one.source.split(".")[0] == pair.source.split(".")[0] and one != pair]
        names = [pair.source, *drawn.sample(others, docstrings.CHOICES - 1)]
        rows = docstrings.encoded(tokenizer, [Pair(name, pair.target) for name in names])
        sums = [docstrings.token_losses(model, row).sum() for row in rows]
        right += all(sums[0] <= one for one in sums)
    assert found["model"] == pytest.approx(right / len(pairs), abs=1e-3) and 0 < right < len(pairs)
    # of "Parts." nothing is shared with p0, p1, p2 and sum, and one of four is guessed: the others are found
    assert found["words"] == pytest.approx((6 + 3 / 4) / 9, abs=1e-3)


def test_repeats_are_pairs_that_the_text_has_had():
    assert docstrings.repeats(([9], [1, 4, 5, 4, 5, 4, 2])).tolist() == [False, False, False, True, True, False]


def test_a_head_is_left_out_for_a_while(model, tokenizer):
    row = docstrings.encoded(tokenizer, PAIRS[:1])[0]
    whole = docstrings.token_losses(model, row)
    with docstrings.without(model, [(1, 2)]):
        w_o = model.stack.layers[1].attention.w_o.weight
        assert not w_o[:, 8:12].any() and w_o[:, :8].all() and w_o[:, 12:].all()
        assert not torch.equal(docstrings.token_losses(model, row), whole)
    assert torch.equal(docstrings.token_losses(model, row), whole)


def test_a_training_leaves_what_the_chapter_reads(tokenizer, monkeypatch):
    corpus = Corpus(PAIRS[6:], PAIRS[4:6], PAIRS[:4])
    monkeypatch.setattr(docstrings, "learnt", lambda: (corpus, tokenizer))
    monkeypatch.setattr(docstrings, "LONG", 16)
    monkeypatch.setattr(docstrings, "WRITTEN_AFTER", (1, 2))
    job = {"part": "judge", "corpus": "model", "seed": 0, "settings": {"width": 16, "learning_rate": 1e-3}}
    row = docstrings.train("cpu", {"model": 2, "sizes": 2}, job)
    assert [text["step"] for text in row["while_learning"]] == [0, 1, 2]
    assert row.keys() >= {"test_loss", "by_context", "names_found", "copying", "ablations", "written", "seconds"}
    assert len(row["ablations"]) == 1 + docstrings.LAYERS * docstrings.HEADS + 2
    other = docstrings.train("cpu", {"model": 2, "sizes": 2}, job | {"corpus": "sizes"})
    assert other["validation_loss"] == row["validation_loss"] and "written" not in other


def test_the_configuration_is_what_was_measured():
    config = tomllib.loads((Path(__file__).parents[2] / "configs/gpt-docstrings.toml").read_text())
    model, training = config["model"], config["training"]
    assert (model["num_layers"], model["num_heads"]) == (docstrings.LAYERS, docstrings.HEADS)
    assert (config["tokens"]["vocab_size"], training["max_tokens"]) == (docstrings.VOCAB_SIZE, docstrings.MAX_TOKENS)
    assert {"width": model["d_model"], "learning_rate": training["learning_rate"]} == docstrings.CONFIGURED
    assert (training["steps"], training["warmup_steps"]) == (docstrings.STEPS["model"], docstrings.STEPS["model"] // 20)
    assert (model["d_ff"], model["dropout"], training["label_smoothing"]) == (4 * model["d_model"], 0.0, 0.0)
