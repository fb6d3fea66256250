"""Whatever goes wrong with a command ends in one line and loses nothing."""

import json
import os
import resource
import signal
import sys
import tomllib
import types
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.modules.module import register_module_forward_pre_hook

from dotformer.command_line import commands
from dotformer.command_line.runs import Run
from dotformer.devices import FastTrainer
from dotformer.support.memory import memory_advice, training_memory
from dotformer.training import cross_entropy, pair_batches
from dotformer.transformer import Transformer
from tests.command import reference
from tests.command.conftest import PARTS
from tests.command.reference import CORPUS, SMALL, changed, toml

CONFIGS = Path(__file__).parents[2] / "configs"
NUMBERS = '[data]\ncorpus = "number_words"\ntrain = 30\nvalidation = 9\ntest = 9\n'


@pytest.fixture
def config(tmp_path, data):
    """The file of a small configuration, or of another."""

    def config(content=SMALL):
        (tmp_path / "tiny.toml").write_text(toml({"data": data} | content), encoding="utf-8")
        return tmp_path / "tiny.toml"

    return config


def files(folder):
    """The content of all files in a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@contextmanager
def before_pass(number, act):
    """Do something before a forward pass of a model that trains, the first of which is 1; once."""
    passes = iter(range(1, number + 1))

    def watch(model, _):
        if isinstance(model, Transformer) and model.training and next(passes, None) == number:
            act()

    handle = register_module_forward_pre_hook(watch)
    try:
        yield
    finally:
        handle.remove()


# what is said on the command line


def test_help(call):
    for arguments in ([], ["--help"], ["train", "--help"], ["translate", "-h"], ["evaluate", "-h"], ["search", "-h"]):
        code, out, error = call(*arguments)
        assert (code, error) == (0, "") and out.startswith("usage: python -m dotformer") and out.count("\n") > 8


@pytest.mark.parametrize(
    "arguments",
    [["fly"], ["train"], ["translate", "x", "--beam", "0"], ["evaluate", "x", "--beam", "101"],
     ["translate", "x", "--alpha", "-1"], ["evaluate", "x", "--alpha", "nan"], ["evaluate", "x", "--part", "train"],
     ["train", "x", "--device", "gpu"], ["search", "x"], ["search", "x", "y", "--best", "0"]],
)  # fmt: skip
def test_usage(fails, arguments):
    assert "--help" in fails(*arguments, code=2)


@pytest.mark.parametrize("command", ["translate", "evaluate", "train", "search"])
def test_a_device_that_is_not_there(command, fails, trained, config):
    for device in ("cuda", "mps"):
        what = {"train": [config()], "search": [config(), "what?"]}.get(command, [trained])
        assert f"there is no {device} here: choose another --device" in fails(command, *what, "--device", device)


@pytest.mark.parametrize(
    ("content", "question", "said"),
    [
        (None, "what?", "text.txt: No such file or directory"),
        (b"\n \n", "what?", "there are no words in"),
        (b"Some words.", " ", "there are no words in the question"),
        (b"\xff\xfe", "what?", "text.txt is not UTF-8"),
    ],
)
def test_texts_that_cannot_be_searched(fails, tmp_path, content, question, said):
    if content is not None:
        (tmp_path / "text.txt").write_bytes(content)
    assert said in fails("search", tmp_path / "text.txt", question)


# configurations


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_configs_are_valid(path, tmp_path):
    run = Run(path, tmp_path)
    assert set(tomllib.loads(path.read_text(encoding="utf-8"))) <= set(run.config)
    assert ("Downloaded" in path.read_text(encoding="utf-8")) == path.stem.startswith(("multi30k", "craft", "babi"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps = 3", "there is no section [steps]"),
        ("[mode]\n", "there is no section [mode]; there are data, tokens, model, training"),
        ("[data]\nsize = 3", "[data] has no key size; there are corpus, train"),
        ('[data]\ncorpus = "wmt"', "[data] corpus must be one of number_words"),
        ('[data]\ncorpus = ["grammar"]', "[data] corpus must be one of number_words"),
        ('[data]\ntrain = "many"', "[data] train must be a whole number, not 'many'"),
        ("[data]\ntrain = -600", "[data] "),
        ("[data]\ntrain = 0", "dotformer: [data] leaves no pairs"),
        (f"{NUMBERS}validation = 0".replace("validation = 9\n", ""), "dotformer: [data] leaves no pairs"),
        ('[data]\ncorpus = "parallel"\ntrain = ["a", "b"]', "[data] needs validation"),
        ('[data]\ncorpus = "parallel"\ntrain = "ab"', "[data] train must be two file names"),
        ('[data]\ncorpus = "parallel"\ntrain = ["a", 3]', "[data] train must be two file names"),
        ('[data]\ncorpus = "multi30k"\ntarget = "it"', "[data] source and target must be two of"),
        (f"{NUMBERS}[tokens]\nvocab_size = 99", "[tokens] vocab_size 99"),
        ("[tokens]\nshared = 1", "[tokens] shared must be true or false"),
        ("[tokens]\nmultiple = 0", "[tokens] multiple cannot be 0"),
        (
            '[model]\nkind = "copying"\n[tokens]\nmultiple = 8\nshared = true',
            "[tokens] multiple cannot be 8 for kind copying",
        ),
        ('[model]\nkind = "cnn"', "[model] kind must be one of transformer, recurrent"),
        ('[model]\nkind = "recurrent"\nnum_heads = 4', "[model] has no key num_heads"),
        ("[model]\npad_id = 3", "[model] has no key pad_id"),
        ("[model]\nd_model = true", "[model] d_model must be a whole number"),
        (f"{NUMBERS}[model]\nd_model = 15", "[model] d_model must be even"),
        (f"{NUMBERS}[model]\ndropout = nan", "[model] dropout must be"),
        (f'{NUMBERS}[model]\nactivation = "tanh"', "[model] activation must be"),
        (f"{NUMBERS}[model]\nd_ff = 2147483647\nd_model = 2147483646\nnum_heads = 1", "[model] "),
        ("[model]\nshare_embeddings = true", "[model] share_embeddings needs [tokens] shared"),
        ('[model]\nkind = "copying"', "[model] kind copying has one vocabulary: it needs [tokens] shared = true"),
        (
            '[model]\nkind = "copying"\n[tokens]\nshared = true',
            "[model] kind copying has one table of embeddings: it needs",
        ),
        ('[model]\nkind = "facts"\nnewline = 13', "[model] has no key newline"),
        ('[training]\nlearning_rate = "1e-3"', "[training] learning_rate must be a number, not '1e-3'"),
        ("[training]\nlearning_rate = nan", "[training] learning_rate must be positive"),
        ("[training]\nsteps = 10\nwarmup_steps = 20", "[training] step must be"),
        ("[training]\nmax_tokens = 0", "[training] max_tokens must be positive"),
        ("[training]\nseed = -1", "[training] seed must be at least 0, not -1"),
        ('[training]\nprecision = "BF16"', "[training] precision must be float32 or tf32 or bfloat16, not 'BF16'"),
        *(
            (f"[training]\n{old} = 1", f"[training] {old} is called {new} now")
            for old, new in (
                *(("rate", "learning_rate"), ("warmup", "warmup_steps"), ("every", "validate_every")),
                *(("smoothing", "label_smoothing"), ("clip", "max_grad_norm"), ("accumulate", "accumulation_steps")),
            )
        ),
        (
            "[training]\ncuda_graphs = true\naccumulation_steps = 2",
            "[training] cuda_graphs goes with neither checkpointing nor accumulation_steps",
        ),
        (
            "[training]\ncuda_graphs = true\ncheckpointing = true",
            "[training] cuda_graphs goes with neither checkpointing nor accumulation_steps",
        ),
        ("[training]\nprecision = 16", "[training] precision must be a text in quotes, not 16"),
        (f"[training]\nseed = {2**63}", "[training] seed must be a whole number"),
        ("steps = = 3", "tiny.toml: "),
        ("[training]\nsteps = 1\nsteps = 2", "tiny.toml: "),
        ("a = " + "[" * 10_000, "tiny.toml: "),
    ],
)
def test_configurations_that_cannot_be(fails, tmp_path, text, said):
    (tmp_path / "tiny.toml").write_text(text)
    with before_pass(1, lambda: pytest.fail("it trains")):
        assert said in fails("train", tmp_path / "tiny.toml", "--output", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_only_a_cuda_device_records_steps(fails, tmp_path):
    (tmp_path / "tiny.toml").write_text(f"{NUMBERS}[training]\ncuda_graphs = true")
    with before_pass(1, lambda: pytest.fail("it trains")):
        said = fails("train", tmp_path / "tiny.toml", "--output", tmp_path / "run", "--device", "cpu")
    assert "[training] cuda_graphs needs a CUDA device, and one process" in said


def test_a_model_that_asks_for_numbers_is_not_recorded(fails, tmp_path, monkeypatch):
    monkeypatch.setattr("dotformer.command_line.commands.GraphTrainer.can_record", ("cpu",))
    (tmp_path / "tiny.toml").write_text(f'{NUMBERS}[model]\nkind = "recurrent"\n[training]\ncuda_graphs = true')
    with before_pass(1, lambda: pytest.fail("it trains")):
        said = fails("train", tmp_path / "tiny.toml", "--output", tmp_path / "run", "--device", "cpu")
    assert "[training] cuda_graphs: kind recurrent asks the device for numbers" in said


def test_configurations_that_cannot_be_read(fails, tmp_path):
    assert f"{tmp_path}/none.toml: No such file" in fails("train", tmp_path / "none.toml")
    assert "Is a directory" in fails("train", tmp_path)
    (tmp_path / "tiny.toml").write_bytes(b"[data]\xff")
    assert "tiny.toml: 'utf-8' codec" in fails("train", tmp_path / "tiny.toml")


# texts


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        (b"a\nb\n", b"a\n", "has 2 lines"),
        (b"", b"", "has 0 lines"),
        (b"a\n\xff\n", b"a\nb\n", "x.en, line 2, is not UTF-8"),
        (b"a\nb\nc\n", b"a\n \nc\n", "x.de, line 2, is empty"),
        (b"a\n" + b"z" * 1_000_000, b"a\nb\n", "x.en, line 2: 1,000,000 characters, more than the 1,024 that fit"),
        (b"a\nb\n", b"a\n" + b"q w x " * 20, "x.de, line 2: "),
    ],
)
def test_texts_that_cannot_be(fails, tmp_path, config, source, target, said):
    for name, content in (("x.en", source), ("x.de", target), ("a.en", b"a b\n" * 3), ("a.de", b"a b\n" * 3)):
        (tmp_path / name).write_bytes(content)
    data = {"corpus": "parallel"} | {part: ["a.en", "a.de"] for part in PARTS} | {"validation": ["x.en", "x.de"]}
    assert said in fails("train", config(SMALL | {"data": data}), "--output", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_texts_that_are_not_there_or_not_whole(fails, tmp_path, config):
    path = config(SMALL | {"data": {"corpus": "parallel"} | {part: ["a.gz", "a.gz"] for part in PARTS}})
    assert "a.gz: No such file" in fails("train", path)
    head = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"
    for content in (b"no gzip", head + b"KL", head + b"\xff\xff\xff"):
        (tmp_path / "a.gz").write_bytes(content)
        assert "a.gz is not a whole gzip file" in fails("train", path)


def test_no_network(fails, tmp_path, monkeypatch):
    monkeypatch.delenv("DOTFORMER_DATA", raising=False)
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    (tmp_path / "tiny.toml").write_text('[data]\ncorpus = "multi30k"\n')
    train = ("train", tmp_path / "tiny.toml", "--output", tmp_path / "run")
    assert "name that in DOTFORMER_DATA" in fails(*train)
    assert not [p for p in tmp_path.rglob("*.gz*") if p.is_file()]
    monkeypatch.setenv("DOTFORMER_DATA", str(tmp_path))
    assert "train.en.gz is not there" in fails(*train)


def test_a_treebank_that_is_not_there(fails, tmp_path, monkeypatch):
    (tmp_path / "tiny.toml").write_text('[data]\ncorpus = "craft"\n')
    monkeypatch.setenv("DOTFORMER_DATA", str(tmp_path))
    assert "11532192.tree is not there" in fails("train", tmp_path / "tiny.toml", "--output", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"\xff\xfe", "line 3: 'utf-8' codec can't decode"),
        (b"horse " * 100, "line 3: more than the 16 tokens that fit"),
        (b"x" * 3_000_000, "line 3: more than the 16 tokens that fit"),
        ("日本".encode() * 20_000, "line 3: more than the 16 tokens that fit"),
    ],
)
def test_the_lines_before_a_bad_one_are_answered(trained, fails, bad, said):
    given = b"the dog sees\n\n" + bad + b"\nthe dog sees\n"
    assert "standard input, " + said in fails("translate", trained, given=given)
    assert fails.out.count("\n") == 2 and fails.out.strip()


def test_each_line_has_one_answer(trained, call, monkeypatch):
    code, out, _ = call("translate", trained, given=b"       \n" * 5000 + b"the dog sees")
    assert code == 0 and out[:5000] == "\n" * 5000 and out[5000:].strip() and out.count("\n") == 5001
    monkeypatch.setattr("dotformer.tokens.BPETokenizer.decode", lambda *_: "a\nb\r\nc\u2028d")
    assert call("translate", trained, given=b"the dog sees\nthe cat runs\n")[1] == "a b c d\n" * 2


def test_streams_that_are_closed(trained, begun, call, config, tmp_path, monkeypatch):
    """Python has None in their place."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert call("translate", trained)[0::2] == (1, "dotformer: standard input or output is closed\n")
        assert call("evaluate", begun, "--beam", 1, "--save", tmp_path / "found.json")[0::2] == (0, "")
    monkeypatch.setattr(sys, "stderr", None)
    assert call("train", config(), "--output", tmp_path / "other")[0] == 0
    assert files(tmp_path / "other")["model.safetensors"] == files(begun)["model.safetensors"]
    assert call("train", tmp_path / "none.toml") == (1, "", "") and (tmp_path / "found.json").exists()


# folders


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_folders_without_a_run(fails, tmp_path, run, command):
    assert "none holds no run" in fails(command, tmp_path / "none")
    (run / "model.safetensors").unlink()
    assert "train first" in fails(command, run)
    for data in (b"", b"[]", b"{", b"\xff", b'{"data": 3}', b'{"data": {"x": 3}}', b"[" * 100_000):
        (run / "config.json").write_bytes(data)
        assert "config.json: " in fails(command, run)


@pytest.fixture
def begun(call, config, tmp_path):
    """The folder of a small run."""
    assert call("train", config(), "--output", tmp_path / "run", "--quiet") == (0, "", "")
    return tmp_path / "run"


def test_a_changed_configuration_is_refused(fails, begun, config, data, tmp_path):
    before = files(begun)
    for section, key, old, new in (
        ("training", "steps", 4, 5),
        ("training", "max_tokens", 96, 95),
        ("training", "precision", "float32", "bfloat16"),
        ("model", "dropout", 0.1, 0),
        ("tokens", "vocab_size", 300, 10_000),
        ("data", "test", data["test"], data["validation"]),
    ):
        path = config(changed(SMALL | {"data": data}, section, {key: new}))
        assert f"begun with [{section}] {key} = {old!r}, not {new!r}" in fails("train", path, "--output", begun)
    path = config(SMALL | {"data": {"corpus": "grammar"}})
    assert "[data] corpus = 'parallel', not 'grammar'" in fails("train", path, "--output", begun)
    assert files(begun) == before


def test_a_tokenizer_that_is_gone_is_learnt_again(call, begun, config):
    before = files(begun)
    (begun / "source.json").unlink()
    assert call("translate", begun, "--beam", 1, given=b"the dog sees\n")[0] == 0
    (begun / "checkpoint.safetensors").unlink()
    assert call("train", config(), "--output", begun, "--quiet") == (0, "", "")
    for name in ("source.json", "model.safetensors"):
        assert (begun / name).read_bytes() == before[name]


def test_files_of_another_are_not_overwritten(fails, tmp_path, config):
    (tmp_path / "target.json").write_text("mine")
    assert "holds a target.json, but no config.json" in fails("train", config(), "--output", tmp_path)
    assert (tmp_path / "target.json").read_text() == "mine" and not (tmp_path / "config.json").exists()


def test_damaged_files(fails, begun, config):
    train = ("train", config(), "--output", begun)
    translate, evaluate = (("translate", begun), ("evaluate", begun))
    for name, tried in (
        ("source.json", (translate, train)),
        ("model.safetensors", (translate, evaluate)),
        ("checkpoint.safetensors", (train,)),
    ):
        whole = (begun / name).read_bytes()
        for damaged in (b"", whole[: len(whole) // 2], b'{"tokenizer": 3}'):
            (begun / name).write_bytes(damaged)
            before = files(begun)
            for command in tried:
                assert f"{begun / name}" in fails(*command)
            assert files(begun) == before
        (begun / name).write_bytes(whole)


def test_a_tokenizer_of_another_run_is_noticed(fails, begun, config):
    whole = (begun / "source.json").read_bytes()
    for other in ((begun / "target.json").read_bytes(), whole.replace(b"<eos>", b"<stop>")):  # as many tokens
        (begun / "source.json").write_bytes(other)
        for command in (("translate", begun), ("train", config(), "--output", begun)):
            assert "source.json or target.json is not what" in fails(*command)


def test_parameters_of_another_model_or_that_are_not_numbers(fails, begun, config):
    path, settings = begun / "model.safetensors", json.loads((begun / "config.json").read_bytes())
    values = load_file(path)
    save_file({name: tensor * torch.nan for name, tensor in values.items()}, path)
    assert "not numbers" in fails("translate", begun, given=b"the dog sees\n")
    save_file(values, path)
    settings["model"]["d_model"] = 16
    (begun / "config.json").write_text(json.dumps(settings))
    assert "model.safetensors holds another model" in fails("translate", begun)
    wider = config(changed(SMALL, "model", {"d_model": 16}))
    assert "checkpoint.safetensors holds the parameters of another model" in fails("train", wider, "--output", begun)


# what happens on the way


def test_interrupted(call, config, tmp_path):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with before_pass(4, lambda: signal.raise_signal(signal.SIGINT)):
            code, _, error = call("train", config(), "--output", tmp_path / "run")
        assert (code, error) == (130, "dotformer: stopped; the same command goes on from the last checkpoint\n")
        code, out, error = call("train", config(), "--output", tmp_path / "run")
        assert (code, error) == (0, "") and "\ngoing on after step 2 of 4\n" in out
    finally:
        signal.signal(signal.SIGINT, before)


OUT = torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 3 GiB")


def full():
    """What PyTorch raises when a device is full."""
    raise type(OUT)(*OUT.args)  # a new one each time: an error keeps all that its traceback refers to


def test_not_enough_memory(fails, call, trained, config, tmp_path, monkeypatch):
    with before_pass(4, full):
        said = fails("train", config(), "--output", tmp_path / "run")
    assert said == "dotformer: CUDA out of memory. Tried to allocate 3 GiB\n"
    assert "\ngoing on after step 2 of 4\n" in call("train", config(), "--output", tmp_path / "run")[1]
    monkeypatch.setattr("dotformer.translation.Translator.translate", lambda *_: full())
    assert "CUDA out of memory. Tried to allocate 3 GiB" in fails("translate", trained, given=b"one\n")


def test_not_enough_memory_on_a_gpu(fails, call, config, tmp_path, monkeypatch, moved):
    """With the advice, for a device on which nothing fits, and on which a smaller batch does; but not to a team."""
    both = reference.tokenizers(reference.full(SMALL), CORPUS.train)
    batches = pair_batches(reference.encoded(both, CORPUS.train), 0, SMALL["training"]["max_tokens"], alike=True)
    largest = max(batches, key=lambda batch: batch[0].numel() + batch[1].numel())
    model = reference.fresh(reference.full(SMALL), both)
    needed, more = training_memory(model, cross_entropy, *largest)
    for total, said in ((needed // 2, "; a smaller model is needed"), (needed + more, " fits (max_tokens = ")):
        advice = memory_advice(model, cross_entropy, *largest, total)
        train = ("train", config(), "--output", tmp_path / f"run{total}")
        with monkeypatch.context() as patch, before_pass(4, full):
            patch.setattr(torch.cuda, "is_available", lambda: True)
            properties = types.SimpleNamespace(total_memory=total)
            patch.setattr(torch.cuda, "get_device_properties", lambda *_, properties=properties: properties)
            patch.setattr(FastTrainer, "figures", lambda *_: {})  # its speed and memory cannot be measured here
            assert fails(*train) == f"dotformer: {advice}\n" and said in advice and "cuda" in moved
        assert "\ngoing on after step 2 of 4\n" in call(*train)[1]
    monkeypatch.setattr(commands, "world_size", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with before_pass(1, full):
        assert fails(*train[:3], tmp_path / "two") == "dotformer: CUDA out of memory. Tried to allocate 3 GiB\n"


def test_a_full_disk(fails, call, config, tmp_path):
    path, run = config(), tmp_path / "run"
    (tmp_path / "old.json").write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fails_with(limit, *command):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            return fails(*command)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    for limit in (500, 10_000, 40_000):  # config.json, model.safetensors, checkpoint.safetensors do not fit
        assert "File too large" in fails_with(limit, "train", path, "--output", run, "--quiet")
        assert not [name for name in files(run) if name.startswith(".")] and "checkpoint.safetensors" not in files(run)
    assert call("train", path, "--output", run, "--quiet") == (0, "", "")
    assert "File too large" in fails_with(1000, "evaluate", run, "--beam", 1, "--save", tmp_path / "old.json")
    assert "exact match" in fails.out and (tmp_path / "old.json").read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a Linux device")
def test_an_output_that_is_full(trained, call, monkeypatch):
    with Path("/dev/full").open("w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert call("translate", trained, given=b"the dog sees\n")[0::2] == (1, "dotformer: No space left on device\n")


def test_a_folder_that_cannot_be_written(fails, tmp_path, config):
    (tmp_path / "tiny.toml").write_text(NUMBERS + toml({"tokens": SMALL["tokens"], "model": SMALL["model"]}))
    path, locked, root = tmp_path / "tiny.toml", tmp_path / "locked", os.geteuid() == 0
    assert "tiny.toml: Not a directory" in fails("train", path, "--output", path / "run").replace("/run:", ":")
    locked.mkdir(mode=0o555)
    try:
        if root:  # who may write anywhere
            for folder in (tmp_path, *tmp_path.parents[:2]):
                folder.chmod(0o755)
            os.seteuid(65534)
        error = fails("train", path, "--output", locked)
    finally:
        if root:
            os.seteuid(0)
    assert "Permission denied" in error and not files(locked)
