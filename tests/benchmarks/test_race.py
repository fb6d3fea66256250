"""The contenders in a race of translators: one size for all, embeddings as large as asked, nothing done twice."""

import json
from concurrent.futures import Future

import pytest
import torch

from benchmarks import captions, race
from benchmarks.race import AXES, MODELS, TUNED, Store, parameters, stages, translator_of
from benchmarks.translators import TASKS, length
from dotformer.data.corpora import Corpus, Pair
from dotformer.recurrent import RecurrentSeq2Seq
from dotformer.translation import Translator


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("model", MODELS)
def test_contenders_are_of_one_size_and_start_as_they_are_told(model: str, layers: int):
    task = TASKS["grammar"]
    _, *tokenizers = task.learnt()
    torch.manual_seed(0)
    translator = translator_of(task, model, {"size": 0.5, "layers": layers, "dropout": 0.0}, *tokenizers)
    assert parameters(translator.model) == pytest.approx(task.parameters, rel=0.1)
    network, tokens = translator.model, torch.arange(3, 40)[None]
    if isinstance(network, RecurrentSeq2Seq):
        embedded = network.source_embeddings(tokens) * network.scale
    else:
        embedded = network.source_embeddings(tokens) - network.source_embeddings.positions.table[: tokens.shape[1]]
    assert embedded.std().item() == pytest.approx(0.5, rel=0.1)


def test_only_the_longer_half_of_the_numbers_is_left_out():
    corpus, *_ = TASKS["numbers"].learnt()
    longest = max(map(length, corpus.train))
    assert max(map(length, corpus.validation)) <= longest < max(map(length, corpus.test))


class Now:
    """What is submitted is done at once, in the same process."""

    @staticmethod
    def submit(function, *arguments):
        done = Future()
        done.set_result(function(*arguments))
        return done


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store of the short captions whose trainings only count: the best settings are the third of each axis."""
    done = []

    def work(job):
        done.append(job)
        away = sum(abs(AXES[name].index(value) - 3) for name, value in job["settings"].items())
        return job | {"validation_loss": 1.0 + away, "validation_bleu": 30.0 - away, "seconds": 1.0}

    monkeypatch.setattr(race, "FOLDER", tmp_path)
    monkeypatch.setattr(race, "save", lambda name, found: (tmp_path / f"{name}.json").write_text(json.dumps(found)))
    store = Store("captions", work, 1, {})
    store.pool, store.done = Now(), done
    return store


def test_settings_are_searched_from_scaled_embeddings(store):
    best = {name: values[3] for name, values in AXES.items() if name != "norm_first"}
    found = dict(stages(store, captions.TASKS, "short", "gru, attention"))
    assert found == {"tuned": {name: best[name] for name in TUNED}, "warmed": best, "placed": best}
    assert not any("norm_first" in job["settings"] for job in store.done)
    assert store.done[0]["settings"]["size"] == 1


def test_what_is_kept_is_not_done_again(store, monkeypatch):
    best = [settings for _, settings in stages(store, captions.TASKS, "short", "transformer")]
    assert {job["settings"].get("norm_first") for job in store.done} == {None, True}
    monkeypatch.setattr(race, "measured", lambda name: json.loads((race.FOLDER / f"{name}.json").read_text()))
    again = Store("captions", store.work, 1, {})
    again.pool, before = Now(), len(store.done)
    assert [settings for _, settings in stages(again, captions.TASKS, "short", "transformer")] == best
    assert len(store.done) == before


def test_captions_are_judged_by_what_was_written(monkeypatch):
    corpus = Corpus([], [Pair("a b", "ein Hund .")], [Pair("c d", "die Katze sieht den Hund im Garten .")] * 2)
    asked = []

    def translate(self, texts, alpha):
        """Longer texts, the more alpha favours them: 1.0 gives the validation caption as wanted."""
        asked.append((len(texts), alpha))
        full = ["ein", "Hund", ".", ".", ".", ".", ".", ".", "."]
        return [" ".join(full[: round(3 * alpha)])] if len(texts) == 1 else ["die Katze sieht den Hund .", "x"]

    monkeypatch.setattr(Translator, "translate", translate)
    monkeypatch.setattr(captions, "bleu", lambda texts, wanted: (50.0 * (texts == wanted), ""))
    found = captions.judged(Translator.__new__(Translator), corpus)
    assert found["own_alpha"]["alpha"] == 1.0 and found["own_alpha"]["validation_bleu"] == 50
    assert found["own_alpha"]["translations"] == found["translations"] and (2, 1.0) in asked and (2, 0.6) in asked
    assert found["validation_bleu"] == 0.0  # a text of three words has no 4-gram
    assert found["counts"] == ["6 4 3 2 6 8", "0 0 0 0 1 8"]
    assert found["translations"] == ["die Katze sieht den Hund .", "x"]
    assert 0 < found["BLEU"] < 100 and "tok:13a" in found["BLEU signature"] and "nc:6" in found["chrF2 signature"]


def test_differences_are_tested_between_kinds_of_one_race_only():
    wanted = [f"der Mann und Hund {n} sehen die Katze" for n in range(30)]
    bad = ["die Frau " + text for text in wanted]
    runs = [
        {"corpus": corpus, "model": model, "seed": seed, "translations": texts}
        for corpus, model, seed, texts in (
            ("short", "gru", 0, bad),
            ("short", "gru", 1, [text.replace("29", "30") for text in wanted]),
            ("short", "transformer", 0, [text.replace("28", "30") for text in wanted]),
            ("long", "transformer", 0, bad),
        )
    ]
    first, second = captions.differences(runs, wanted)
    assert first["runs"] == [["gru", 0], ["transformer", 0]] and second["runs"] == [["gru", 1], ["transformer", 0]]
    assert first["p"]["BLEU"] < 0.001 and second["p"]["BLEU"] > 0.2


def test_kinds_are_compared_over_all_splits_of_their_seeds():
    one = [{"BLEU": 32, "chrF2": 50}, {"BLEU": 31, "chrF2": 52}, {"BLEU": 30, "chrF2": 57}]
    other = [{"BLEU": 29, "chrF2": 51}, {"BLEU": 28, "chrF2": 50}, {"BLEU": 27, "chrF2": 49}]
    # of 20 splits by chrF, three have a sum of 159 or more on one side, 57 + 52 with 51, 50 or 50; three on the other
    assert captions.kinds(one, other) == {"BLEU": 2 / 20, "chrF2": 6 / 20}


@pytest.mark.parametrize("model", ["transformer", "gru, attention"])
def test_it_is_seen_where_a_model_looks(model):
    corpus, *tokenizers = TASKS["grammar"].learnt()
    settings = {"size": 1, "layers": 2, "dropout": 0.5}
    translator, pair = translator_of(TASKS["grammar"], model, settings, *tokenizers), corpus.test[0]
    weights, again = (race.attention(translator, pair) for _ in range(2))
    source, target = (len(side.split()) for side in pair[:2])
    assert weights.shape == ((2, 4) if model == "transformer" else (1, 1)) + (target + 1, source)
    assert torch.equal(weights, again) and not weights.requires_grad
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(weights.shape[:-1]))
    with torch.no_grad():  # the last row of the last layer is what the decoder has when it predicts the end
        if model == "transformer":
            [row], [tokens] = zip(*translator.encode_pairs([pair]), strict=True)
            with race.record_weights(translator.model) as seen:
                translator.model(torch.tensor([row]), torch.tensor([tokens[:-1]]))
            torch.testing.assert_close(seen["decoder.layers.1.cross_attention"][0], weights[1])
