"""The search for a translator from few sentences: what each setting does, at toy size."""

import pytest
import torch
from torch.nn import functional as F

from benchmarks import small_data
from benchmarks.small_data import RECIPE, TRIALS, Pairs, consistent, cut_at_random, jobs_of, mean, steps_for
from dotformer.command_line.models import new_translator
from dotformer.data.corpora import Pair, number_words
from dotformer.tokens import BPETokenizer
from dotformer.training import cross_entropy
from dotformer.transformer import TransformerConfig
from dotformer.translation import Translator

SMALL = {"d_model": 16, "num_heads": 4, "d_ff": 32, "num_encoder_layers": 1, "num_decoder_layers": 1}
JOB = {"part": "search", "corpus": "en-de", "model": "", "seed": 0}


@pytest.fixture(scope="module")
def corpus():
    return number_words(60, 4, 4)


@pytest.fixture(scope="module")
def tokenizer(corpus):
    return BPETokenizer.train((f" {text}" for pair in corpus.train for text in pair[:2]), 330)


def test_words_are_cut_at_random_into_what_gives_the_same_text(tokenizer, corpus):
    texts = [f" {pair.target}" for pair in corpus.train] + [" Zoë trinkt Tee, 🙂"]
    whole, torn = (cut_at_random(tokenizer, share) for share in (0.0, 0.5))
    assert [whole.encode(text).ids for text in texts] == [tokenizer.encode(text) for text in texts]
    cut = [torn.encode(text).ids for text in texts]
    assert [tokenizer.decode(row) for row in cut] == texts
    assert sum(map(len, cut)) > 1.3 * sum(len(tokenizer.encode(text)) for text in texts)


def test_each_epoch_cuts_the_pairs_anew_only_if_that_is_asked_for(tokenizer, corpus):
    translator = new_translator(tokenizer, tokenizer, "transformer", SMALL | {"share_embeddings": True})
    for share in (0.0, 0.3):
        pairs = Pairs(translator, corpus.train, RECIPE | {"bpe_dropout": share, "max_tokens": 4096}, 0)
        [(one, target)], [(other, _)] = ([*pairs(epoch)] for epoch in (0, 0))
        assert torch.equal(one, other) == (share == 0)
        assert (target[:, 0] == tokenizer.bos_id).all() and ((target == tokenizer.eos_id).sum(dim=1) == 1).all()


@pytest.mark.parametrize("weight", [0.0, 3.0])
def test_two_passes_are_asked_for_the_same_answer(weight):
    torch.manual_seed(0)
    logits, targets = torch.randn(4, 3, 5), torch.tensor([[1, 2, 0], [3, 0, 0]] * 2)
    found, count = consistent(weight, logits, targets, 0, 0.1)
    plain, real = cross_entropy(logits, targets, 0, 0.1)
    apart = 0.0
    for one, other, target in zip(*logits.log_softmax(-1).chunk(2), targets[:2], strict=True):
        for p, q, token in zip(one, other, target, strict=True):
            if token:
                both = (F.kl_div(a, b, log_target=True, reduction="sum") for a, b in ((p, q), (q, p)))
                apart += sum(both) / 2
    assert count == real == 6
    torch.testing.assert_close(found, plain + weight * apart)
    same = logits[:2].repeat(2, 1, 1)
    torch.testing.assert_close(consistent(weight, same, targets, 0, 0.1)[0], cross_entropy(same, targets, 0, 0.1)[0])


def test_batches_have_few_shapes_and_hold_every_row_twice_where_that_is_asked_for(tokenizer, corpus):
    translator = new_translator(tokenizer, tokenizer, "transformer", SMALL | {"share_embeddings": True})
    some = RECIPE | {"max_tokens": 128}
    once, twice = ([*Pairs(translator, corpus.train, some | {"consistency": c}, 0)(0)] for c in (0.0, 1.0))
    for batch, doubled in zip(once, twice, strict=True):
        for side, other in zip(batch, doubled, strict=True):
            assert torch.equal(other, torch.cat([side, side]))
    assert all(source.shape[1] % 8 == 0 and target.shape[1] % 8 == 1 for source, target in once)


def test_parameters_are_averaged():
    states = [{"a": torch.tensor([0.0, 3.0])}, {"a": torch.tensor([4.0, 5.0])}]
    assert mean(states)["a"].tolist() == [2, 4]


def test_the_same_arithmetic_buys_fewer_larger_steps():
    config, base = TransformerConfig(100, 100), RECIPE | {"max_tokens": 1024, "budget": 5}
    steps = steps_for(config, base)
    assert steps_for(config, base | {"max_tokens": 2048}) == pytest.approx(steps / 2, rel=0.02)
    assert steps_for(config, base | {"consistency": 1.0}) == pytest.approx(steps / 2, rel=0.02)
    assert steps_for(config, base | {"budget": 10}) == pytest.approx(steps * 2, rel=0.02)


def test_no_trial_is_done_twice():
    for name, changes in TRIALS.items():
        jobs = jobs_of("search", [name], [0], changes)
        assert all(set(job["settings"]) == set(RECIPE) for job in jobs)
        assert len({str(job) for job in jobs}) == len(changes)


def test_a_word_is_right_if_one_of_its_pronunciations_is_written(monkeypatch):
    pairs = [Pair("r e a d", "R IY D"), Pair("r e a d", "R EH D"), Pair("b o w", "B AW")]
    monkeypatch.setattr(Translator, "translate", lambda self, texts: {2: ["R EH D", "B OW"]}[len(texts)])
    assert small_data.score(Translator.__new__(Translator), pairs, exact=True) == 50


@pytest.fixture
def little(monkeypatch, corpus, tokenizer):
    """Any corpus is a little one."""
    monkeypatch.setattr(small_data, "learnt", lambda name, size: (corpus, tokenizer, tokenizer))


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("name", ["en-de", "cmudict"])
@pytest.mark.parametrize("change", [{}, {"consistency": 1.0, "bpe_dropout": 0.1}])
def test_a_job_is_done(name, change, monkeypatch):
    monkeypatch.setattr(small_data, "BUDGET", 1.0)
    settings = RECIPE | {"layers": 1, "d_model": 16, "max_tokens": 512} | change
    found = small_data.train("cpu", JOB | {"corpus": name, "part": "judge", "settings": settings})
    assert found["steps"] == 12 and 0 < found["validation_loss"] < 7 and found["seconds"] > 0
    assert min(found["averaged"].values()) <= found["averaged"][1] == round(found["validation_loss"], 4)
    assert found["validation"] >= 0 and found["test"] >= 0


@pytest.mark.usefixtures("little")
def test_what_is_too_large_is_not_trained():
    found = small_data.train("cpu", JOB | {"settings": RECIPE | {"layers": 8, "d_model": 384}})
    assert found["parameters"] > 12e6 and found["validation"] == 0 and "steps" not in found


@pytest.mark.parametrize("change", [{}, {"dropout": 0.2}, {"budget": 12}])
def test_the_change_that_is_best_over_its_seeds_is_judged(monkeypatch, change):
    done = []

    class Fake:
        def __init__(self, *_):
            pass

        def do(self, jobs):
            done.extend(jobs)
            good = RECIPE | change
            return [{"validation": 40 - 9 * (job["seed"] == 0) + (job["settings"] == good)} for job in jobs]

        def save(self):
            pass

    monkeypatch.setattr(small_data, "Store", Fake)
    monkeypatch.setattr(small_data, "asked_for", lambda _: (1, "cpu"))
    monkeypatch.setattr(small_data, "TRIALS", {"en-de": TRIALS["en-de"]})
    small_data.main()
    judged = [job["settings"] for job in done if job["part"] == "judge"]
    both = 2 * len(small_data.SEEDS)  # directions
    assert judged == [RECIPE] * both + ([RECIPE | change] * both if change else [])
