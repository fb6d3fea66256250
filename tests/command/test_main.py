"""The command line: what it does, and that whatever goes wrong ends in one line and loses nothing."""

import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dotformer import training
from dotformer.command_line import commands
from dotformer.command_line.commands import arriving, main
from dotformer.command_line.runs import Run

CONFIGS = Path(__file__).parents[2] / "configs"
DATA = '[data]\ncorpus = "number_words"\ntrain = 300\nvalidation = 20\ntest = 20\n'
MODEL = (
    "[model]\nd_model = 16\nnum_heads = 2\nnum_encoder_layers = 1\nnum_decoder_layers = 1\nd_ff = 16\nmax_length = 32\n"
)
RECURRENT = '[model]\nkind = "recurrent"\nd_model = 16\n'
TOKENS = "[tokens]\nvocab_size = 300\n"
TRAINING = "[training]\nsteps = 8\nwarmup = 4\nevery = 4\nmax_tokens = 512\n"


def config(folder, data=DATA, model=MODEL, training=TRAINING, tokens=TOKENS):
    path = folder / "tiny.toml"
    path.write_text(data + tokens + model + training, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    assert main(["train", str(config(folder)), "--output", str(folder / "run"), "--quiet"]) == 0
    return folder / "run"


def steps_of(folder):
    """How many steps the run in a folder has made."""
    run = Run.load(folder)
    return training.Team().reached(folder, run.translator().model, run.training)


@pytest.fixture
def run(trained, tmp_path):
    """A copy to break."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def call(capfd, monkeypatch):
    """Run a command; the exit code and what it said on standard output and standard error."""

    def call(*arguments, given=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:
            code = error.code
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def fails(call):
    """What a command says that must fail: one line."""

    def fails(*arguments, given=b"", code=1):
        found, out, error = call(*arguments, given=given)
        assert found == code
        assert error.startswith("dotformer: ") and error.count("\n") == 1 and error.endswith("\n")
        fails.out = out
        return error

    return fails


def start(*arguments, **options):
    """A process of its own."""
    command = [sys.executable, "-m", "dotformer", *map(str, arguments)]
    interruptible = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **interruptible, **options)


def wait_for(path, process):
    deadline = time.monotonic() + 30
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.exists()


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# What it does


def test_train_kill_train_evaluate_translate(tmp_path, call):
    path = config(tmp_path, training=TRAINING.replace("8", "60"))
    process = start("train", path, "--output", tmp_path / "killed")
    wait_for(tmp_path / "killed/checkpoint.pt", process)
    process.kill()
    process.communicate()
    tokenizer = tmp_path / "killed/source.json"
    learnt = tokenizer.stat().st_mtime_ns
    code, out, error = call("train", path, "--output", tmp_path / "killed")
    assert (code, error) == (0, "") and "going on after step " in out and "finished" in out
    assert tokenizer.stat().st_mtime_ns == learnt
    assert call("train", path, "--output", tmp_path / "whole")[0] == 0
    whole, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
    before = content(tmp_path / "killed")
    code, out, _ = call("train", path, "--output", tmp_path / "killed")
    assert code == 0 and "is finished" in out and content(tmp_path / "killed") == before
    code, out, _ = call("evaluate", tmp_path / "killed", "--save", tmp_path / "found.json", "--beam", 2)
    found = json.loads((tmp_path / "found.json").read_text())
    measured = found["measured"]
    assert code == 0 and "bleu lowercase signature" in out and measured["parameters"] > 0 and measured["beam"] == 2
    assert "case:mixed" in measured["bleu_signature"] and "tok:13a" in measured["bleu_signature"]
    assert "case:lc" in measured["bleu_lowercase_signature"]
    assert [row["step"] for row in found["curve"]] == list(range(4, 64, 4))
    examples = found["examples"]
    assert len(examples) == 10 and all(example["reference"] and "source" in example for example in examples)
    assert found["config"]["training"]["steps"] == 60 and found["versions"]["torch"] and found["machine"]["cores"]
    code, out, error = call("translate", tmp_path / "killed", given=b"forty two\n\n  \nseven")
    lines = out.split("\n")
    assert (code, error, len(lines)) == (0, "", 5) and lines[1] == lines[2] == lines[4] == "" and lines[0]


def test_a_recurrent_run(tmp_path, call):
    path = config(tmp_path, model=RECURRENT + "share_embeddings = true\n", tokens=TOKENS + "shared = true\n")
    assert call("train", path, "--output", tmp_path / "run", "--quiet") == (0, "", "")
    code, out, error = call("evaluate", tmp_path / "run", "--part", "validation", "--beam", 1)
    assert (code, error) == (0, "") and "validation" in out
    assert (tmp_path / "run/source.json").read_bytes() == (tmp_path / "run/target.json").read_bytes()


def test_a_run_of_files_works_from_anywhere(tmp_path, call, monkeypatch):
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("A dog .\nTwo dogs .\n")
    same = '["a.en", "a.de"]'
    data = f'[data]\ncorpus = "parallel"\ntrain = {same}\nvalidation = {same}\ntest = {same}\n'
    config(tmp_path, data)
    monkeypatch.chdir(tmp_path)
    assert call("train", "tiny.toml", "--quiet") == (0, "", "")
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    assert call("evaluate", "../runs/tiny")[0::2] == (0, "")


def test_the_seed_fixes_the_parameters(tmp_path):
    path = config(tmp_path)
    models = [Run(path, tmp_path / "none").translator().model for _ in range(2)]
    other = Run(config(tmp_path, training=TRAINING + "seed = 1\n"), tmp_path / "none").translator().model
    first = [next(model.parameters()) for model in (*models, other)]
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])


def test_answers_come_while_the_input_is_open(trained):
    process = start("translate", trained, "--beam", "1", stdin=subprocess.PIPE)
    for _ in range(2):
        process.stdin.write(b"seven\n")
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\n")
    process.stdin.close()
    assert process.stdout.read() == process.stderr.read() == b"" and process.wait() == 0


def test_lines_arrive_whole():
    data = b"".join(b"%d\n" % n for n in range(5000)) + b"end"
    assert [line for lines in arriving(io.BytesIO(data)) for line in lines] == data.split(b"\n")
    assert [*arriving(io.BytesIO(b""))] == []
    assert len(b"".join(line for lines in arriving(io.BytesIO(b"x" * 100_000), 20_000) for line in lines)) < 40_000


def test_an_answer_is_one_line(trained, call, monkeypatch):
    monkeypatch.setattr("dotformer.tokens.BPETokenizer.decode", lambda *_: "a\nb\r\nc\u2028d")
    assert call("translate", trained, given=b"one\ntwo\n")[1] == "a b c d\n" * 2


@pytest.mark.parametrize("arguments", [[], ["--help"], ["train", "--help"], ["translate", "-h"], ["evaluate", "-h"]])
def test_help(call, arguments):
    code, out, error = call(*arguments)
    assert (code, error) == (0, "") and out.startswith("usage: python -m dotformer") and out.count("\n") > 8


def test_no_arguments_and_wrong_ones_as_a_process():
    process = start("translate", "--beam", "no")
    out, error = process.communicate()
    assert (process.returncode, out) == (2, b"") and error.startswith(b"dotformer: ") and error.count(b"\n") == 1


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_configs_are_valid(path, tmp_path):
    run = Run(path, tmp_path)
    assert set(tomllib.loads(path.read_text(encoding="utf-8"))) <= set(run.config)
    assert ("Downloaded" in path.read_text(encoding="utf-8")) == ("multi30k" in path.stem)


# What a user can do wrong


@pytest.mark.parametrize(
    "arguments",
    [["fly"], ["train"], ["translate", "x", "--beam", "0"], ["evaluate", "x", "--alpha", "nan"],
     ["evaluate", "x", "--part", "train"], ["train", "x", "--device", "gpu"]],
)  # fmt: skip
def test_usage(fails, arguments):
    assert "--help" in fails(*arguments, code=2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps = 3", "there is no section [steps]"),
        ("[mode]\n", "there is no section [mode]"),
        ("[data]\nsize = 3", "[data] has no key size; there are corpus, train"),
        ('[data]\ncorpus = "wmt"', "[data] corpus must be one of number_words"),
        ('[data]\ncorpus = ["grammar"]', "[data] corpus must be one of number_words"),
        ('[data]\ntrain = "many"', "[data] train must be a whole number, not 'many'"),
        ("[data]\ntrain = -600", "[data] "),
        ("[data]\ntrain = 0", "dotformer: [data] leaves no pairs"),
        ('[data]\ncorpus = "parallel"\ntrain = ["a", "b"]', "[data] needs validation"),
        ('[data]\ncorpus = "parallel"\ntrain = "ab"', "[data] train must be two file names"),
        ('[data]\ncorpus = "parallel"\ntrain = ["a", 3]', "[data] train must be two file names"),
        ('[data]\ncorpus = "multi30k"\ntarget = "it"', "[data] source and target must be two of"),
        (DATA + "[tokens]\nvocab_size = 99", "[tokens] vocab_size 99"),
        (DATA + "[tokens]\nshared = 1", "[tokens] shared must be true or false"),
        ('[model]\nkind = "cnn"', "[model] kind must be one of transformer, recurrent"),
        ('[model]\nkind = "recurrent"\nnum_heads = 4', "[model] has no key num_heads"),
        ("[model]\npad_id = 3", "[model] has no key pad_id"),
        ("[model]\nd_model = true", "[model] d_model must be a whole number"),
        (DATA + "[model]\nd_model = 15", "[model] d_model must be even"),
        (DATA + "[model]\ndropout = nan", "[model] dropout must be"),
        (DATA + '[model]\nactivation = "tanh"', "[model] activation must be"),
        (DATA + "[model]\nd_ff = 2147483647\nd_model = 2147483646\nnum_heads = 1", "[model] "),
        ("[model]\nshare_embeddings = true", "[model] share_embeddings needs [tokens] shared"),
        ('[training]\nrate = "1e-3"', "[training] rate must be a number, not '1e-3'"),
        ("[training]\nrate = nan", "[training] rate must be positive"),
        ("[training]\nsteps = 10\nwarmup = 20", "[training] step must be"),
        ("[training]\nmax_tokens = 0", "[training] max_tokens"),
        ("[training]\nseed = -1", "[training] max_tokens must be positive and seed not negative"),
        (
            '[training]\nprecision = "float16"',
            "[training] precision must be one of float32, tf32, bfloat16, not 'float16'",
        ),
        ('[training]\nprecision = "BFLOAT16"', "[training] precision must be one of float32, tf32, bfloat16, not 'BF"),
        ("[training]\nprecision = 16", "[training] precision must be a text in quotes, not 16"),
        (f"[training]\nseed = {2**63}", "[training] seed must be a whole number"),
        ("steps = = 3", "tiny.toml: "),
        ("[training]\nsteps = 1\nsteps = 2", "tiny.toml: "),
        ("a = " + "[" * 10_000, "tiny.toml: "),
    ],
)
def test_configurations_that_cannot_be(fails, tmp_path, text, said):
    (tmp_path / "tiny.toml").write_text(text)
    assert said in fails("train", tmp_path / "tiny.toml", "--output", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_configurations_that_cannot_be_read(fails, tmp_path):
    assert f"{tmp_path}/none.toml: No such file" in fails("train", tmp_path / "none.toml")
    assert "Is a directory" in fails("train", tmp_path)
    (tmp_path / "tiny.toml").write_bytes(b"[data]\xff")
    assert "tiny.toml: 'utf-8' codec" in fails("train", tmp_path / "tiny.toml")


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
def test_files_that_cannot_be(fails, tmp_path, source, target, said):
    for name, data in (("x.en", source), ("x.de", target), ("a.en", b"a b\n" * 3), ("a.de", b"a b\n" * 3)):
        (tmp_path / name).write_bytes(data)
    data = f'[data]\ncorpus = "parallel"\ntrain = ["a.en", "a.de"]\nvalidation = {["x.en", "x.de"]}\n'
    path = config(tmp_path, data + 'test = ["a.en", "a.de"]\n')
    start = time.monotonic()
    assert said in fails("train", path, "--output", tmp_path / "run") and time.monotonic() - start < 5
    assert not (tmp_path / "run").exists()


def test_files_that_are_not_there_or_not_whole(fails, tmp_path):
    packed = tmp_path / "a.gz"
    path = config(tmp_path, '[data]\ncorpus = "parallel"\n' + "".join(
        f'{part} = ["a.gz", "a.gz"]\n' for part in ("train", "validation", "test")))  # fmt: skip
    assert "a.gz: No such file" in fails("train", path)
    for data in (
        b"no gzip",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03KL",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff",
    ):
        packed.write_bytes(data)
        assert "a.gz is not a whole gzip file" in fails("train", path)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"\xff\xfe", "line 3: 'utf-8' codec can't decode"),
        (b"seven " * 100, "line 3: more than the 32 tokens that fit"),
        (b"x" * 3_000_000, "line 3: more than the 32 tokens that fit"),
        ("日本".encode() * 20_000, "line 3: more than the 32 tokens that fit"),
    ],
)
def test_the_lines_before_a_bad_one_are_answered(trained, fails, bad, said):
    start = time.monotonic()
    assert "standard input, " + said in fails("translate", trained, given=b"one\n\n" + bad + b"\ntwo\n")
    assert fails.out.count("\n") == 2 and time.monotonic() - start < 10


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_folders_without_a_run(fails, tmp_path, run, command):
    assert "none holds no run" in fails(command, tmp_path / "none")
    (run / "model.safetensors").unlink()
    assert "train first" in fails(command, run)
    for data in (b"", b"[]", b"{", b"\xff", b'{"data": 3}', b'{"data": {"x": 3}}', b"[" * 100_000):
        (run / "config.json").write_bytes(data)
        assert "config.json: " in fails(command, run)


def test_a_changed_configuration_is_refused(fails, run, trained, tmp_path):
    before = content(run)
    for old, new, said in (
        ("steps = 8", "steps = 9", "[training] steps = 8, not 9"),
        ("max_tokens = 512", "max_tokens = 511", "[training] max_tokens = 512, not 511"),
        ("train = 300", "train = 301", "[data] train = 300, not 301"),
        ("[training]", "dropout = 0\n[training]", "[model] dropout = 0.1, not 0"),
        ("vocab_size = 300", "", "[tokens] vocab_size = 300, not 10000"),
    ):
        path = config(tmp_path)
        path.write_text(path.read_text().replace(old, new))
        assert said in fails("train", path, "--output", run)
    assert "[data] corpus = 'number_words', not 'grammar'" in fails(
        "train", config(tmp_path, '[data]\ncorpus = "grammar"\n'), "--output", run
    )
    assert content(run) == before


def test_a_tokenizer_that_is_gone_is_learnt_again(call, fails, run, trained, tmp_path):
    (run / "source.json").unlink()
    given = b"one\nseven\n"
    assert call("translate", run, given=given) == call("translate", trained, given=given)
    (run / "checkpoint.pt").unlink()
    assert call("train", config(tmp_path), "--output", run, "--quiet") == (0, "", "")
    assert (run / "source.json").read_bytes() == (trained / "source.json").read_bytes()


def test_files_of_another_are_not_overwritten(fails, tmp_path):
    (tmp_path / "target.json").write_text("mine")
    assert "holds a target.json, but no config.json" in fails("train", config(tmp_path), "--output", tmp_path)
    assert (tmp_path / "target.json").read_text() == "mine" and not (tmp_path / "config.json").exists()


@pytest.mark.parametrize("name", ["source.json", "model.safetensors", "checkpoint.pt"])
@pytest.mark.parametrize("damage", ["empty", "half", "foreign"])
def test_damaged_files(fails, run, tmp_path, name, damage):
    data = (run / name).read_bytes()
    data = {"empty": b"", "half": data[: len(data) // 2], "foreign": b'{"tokenizer": 3}'}[damage]
    (run / name).write_bytes(data)
    before = content(run)
    train = ("train", config(tmp_path), "--output", run)
    commands = {"source.json": [("translate", run), train], "checkpoint.pt": [train]}
    for command in commands.get(name, [("translate", run), ("evaluate", run)]):
        assert f"{run / name}" in fails(*command)
    assert content(run) == before


def test_a_vocabulary_that_does_not_fit(fails, run, tmp_path):
    shutil.copy(run / "target.json", run / "source.json")  # as many tokens, but others
    for command in (("translate", run), ("train", config(tmp_path), "--output", run)):
        assert "source.json or target.json is not what" in fails(*command)


def test_parameters_that_do_not_fit(fails, run, tmp_path):
    settings = json.loads((run / "config.json").read_text())
    settings["model"]["d_model"] = 32
    (run / "config.json").write_text(json.dumps(settings))
    assert "model.safetensors holds another model" in fails("translate", run)
    path = config(tmp_path, model=MODEL.replace("16", "32", 1))
    assert "checkpoint.pt holds the parameters of another model" in fails("train", path, "--output", run)


def test_parameters_that_are_not_numbers(fails, run):
    values = load_file(run / "model.safetensors")
    save_file({name: tensor * torch.nan for name, tensor in values.items()}, run / "model.safetensors")
    assert "not numbers" in fails("translate", run, given=b"one\n")


def test_a_training_that_explodes(fails, tmp_path):
    path = config(tmp_path, training=TRAINING + "rate = 1e30\n")
    assert "the norm of the gradient is" in fails("train", path, "--output", tmp_path / "run")


def test_a_device_that_is_not_there(fails, trained):
    if torch.cuda.is_available():
        pytest.skip("it is there")
    assert "there is no cuda here" in fails("translate", trained, "--device", "cuda")


def test_not_enough_memory(fails, trained, monkeypatch):
    def translate(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 3 GiB")

    monkeypatch.setattr("dotformer.translation.Translator.translate", translate)
    assert "CUDA out of memory. Tried" in fails("translate", trained, given=b"one\n")


def test_precision_is_that_of_the_products(tmp_path, call, monkeypatch):
    """Each run as a whole and in two parts: the parameters it keeps, and how products were rounded."""
    kept, roundings, take = {}, [], training.take_step

    def watched(model, *arguments, **named):
        roundings.append((torch.get_float32_matmul_precision(), {p.dtype for p in model.parameters()}))
        if len(roundings) == 7 and halted:
            raise KeyboardInterrupt
        return take(model, *arguments, **named)

    monkeypatch.setattr("dotformer.training.take_step", watched)
    before = torch.get_float32_matmul_precision()
    for precision, rounding in (("float32", "highest"), ("tf32", "high"), ("bfloat16", "high")):
        path = config(tmp_path, training=TRAINING + f'precision = "{precision}"\n')
        for halted in (False, True):
            roundings.clear()
            folder = tmp_path / f"{precision}{halted}"
            code = call("train", path, "--output", folder, "--quiet")[0]
            assert code == (130 if halted else 0)
            assert set(map(str, roundings)) == {str((rounding, {torch.float32}))}
            if halted:
                assert len(roundings) == 7 and call("train", path, "--output", folder, "--quiet") == (0, "", "")
                assert len(roundings) == 7 + 4  # from the checkpoint after step 4
            kept[precision, halted] = load_file(folder / "model.safetensors")
        whole, parts = (kept[precision, halted] for halted in (False, True))
        assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert torch.get_float32_matmul_precision() == before
    name = "output.weight" if "output.weight" in whole else next(iter(whole))
    assert not torch.equal(kept["float32", False][name], kept["bfloat16", False][name])
    torch.testing.assert_close(kept["float32", False][name], kept["bfloat16", False][name], rtol=0.1, atol=0.02)
    assert all(tensor.dtype == torch.float32 for tensor in whole.values())


def test_without_more_a_run_is_in_float32(tmp_path, trained, fails):
    assert json.loads((trained / "config.json").read_text())["training"]["precision"] == "float32"
    path = config(tmp_path, training=TRAINING + 'precision = "bfloat16"\n')
    assert "[training] precision = 'float32', not 'bfloat16'" in fails("train", path, "--output", trained)


OUT = "CUDA out of memory.\nTried to allocate 3 GiB"


def out_of_memory_after(monkeypatch, steps):
    """Let the device be full after some steps."""
    take, made = training.take_step, []

    def full(*arguments, **named):
        made.append(1)
        if len(made) > steps:
            raise torch.OutOfMemoryError(OUT)
        return take(*arguments, **named)

    monkeypatch.setattr("dotformer.training.take_step", full)


def test_training_without_enough_memory(fails, call, tmp_path, monkeypatch):
    path, run = config(tmp_path), tmp_path / "run"
    with monkeypatch.context() as patch:
        out_of_memory_after(patch, 6)
        assert "CUDA out of memory. Tried to allocate 3 GiB" in fails("train", path, "--output", run, "--device", "cpu")
    assert "after step 4" in call("train", path, "--output", run)[1]


def test_training_without_enough_memory_on_a_gpu(fails, tmp_path, monkeypatch):
    path, run, asked, train = config(tmp_path), tmp_path / "run", [], commands.train
    before = torch.get_float32_matmul_precision()

    def shrink(model, source, target, available):
        asked.append((source.shape, target.shape, available, torch.is_grad_enabled()))
        return f"{available} bytes; a batch of 3 fits"

    def on_the_cpu(model, batches, config, validate, folder, device, *rest):
        assert device == "cuda"
        return train(model, batches, config, validate, folder, "cpu", *rest)

    properties = types.SimpleNamespace(total_memory=1000, total_mem=1000)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setattr(commands, "what_to_shrink", shrink)
    monkeypatch.setattr(commands, "train", on_the_cpu)
    out_of_memory_after(monkeypatch, 6)
    assert fails("train", path, "--output", run) == "dotformer: 1000 bytes; a batch of 3 fits\n"
    [(source, target, available, grad)] = asked
    assert source[0] == target[0] and max(source.numel(), target.numel()) <= 512 and available == 1000 and grad
    assert (run / "checkpoint.pt").exists() and torch.get_float32_matmul_precision() == before
    monkeypatch.undo()
    assert steps_of(run) == 4


def test_what_it_says_on_a_gpu_that_is_full(fails, tmp_path, monkeypatch):
    """With the advice itself, for a device on which nothing fits, and for one on which a smaller batch does."""
    path, train = config(tmp_path), commands.train
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(commands, "train", lambda m, b, c, v, f, device, *rest: train(m, b, c, v, f, "cpu", *rest))
    out_of_memory_after(monkeypatch, 0)
    for total, said in ((100_000, "; a smaller model is needed"), (2_000_000, " fits (max_tokens = ")):
        properties = types.SimpleNamespace(total_memory=total)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_, found=properties: found)
        assert said in fails("train", path, "--output", tmp_path / f"run{total}")


def test_no_network(fails, tmp_path, monkeypatch):
    monkeypatch.delenv("DOTFORMER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    path = config(tmp_path, '[data]\ncorpus = "multi30k"\n')
    assert "name that in DOTFORMER_DATA" in fails("train", path, "--output", tmp_path / "run")
    assert not [p for p in tmp_path.rglob("*.gz*") if p.is_file()]
    monkeypatch.setenv("DOTFORMER_DATA", str(tmp_path))
    assert "train.en.gz is not there" in fails("train", path, "--output", tmp_path / "run")
    (tmp_path / "train.en.gz").write_bytes(b"half")
    assert "train.en.gz is not a whole gzip file" in fails("train", path, "--output", tmp_path / "run")


def test_a_full_disk(fails, call, tmp_path):
    path, run = config(tmp_path), tmp_path / "run"
    (tmp_path / "old.json").write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (500, 10_000, 60_000):  # config.json, model.safetensors, checkpoint.pt do not fit
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            error = fails("train", path, "--output", run, "--quiet")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "File too large" in error
        assert not [name for name in content(run) if name.startswith(".")] and "checkpoint.pt" not in content(run)
    assert call("train", path, "--output", run, "--quiet") == (0, "", "")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        assert "File too large" in fails("evaluate", run, "--save", tmp_path / "old.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "exact match" in fails.out and (tmp_path / "old.json").read_text() == "old"


def test_a_disk_that_fills_under_tensorboard(run, tmp_path):
    """It writes in a thread of its own, which would print a traceback of its own."""
    (run / "checkpoint.pt").unlink()
    before = (run / "model.safetensors").read_bytes()
    code = (
        "import runpy, sys\n"
        "from tensorboard.summary.writer.record_writer import RecordWriter\n"
        "def write(*_):\n"
        "    raise OSError(28, 'No space left on device')\n"
        "RecordWriter.write = write\n"
        f"sys.argv = ['dotformer', 'train', {str(config(tmp_path))!r}, '--output', {str(run)!r}]\n"
        "runpy.run_module('dotformer', run_name='__main__')\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (1, "dotformer: No space left on device\n")
    assert (run / "model.safetensors").read_bytes() == before


def test_a_folder_that_cannot_be_written(fails, tmp_path):
    path = config(tmp_path)
    assert "tiny.toml: Not a directory" in fails("train", path, "--output", path / "run").replace("/run:", ":")
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    root = os.geteuid() == 0
    try:
        if root:
            for folder in (tmp_path, *tmp_path.parents[:2]):
                folder.chmod(0o755)
            os.seteuid(65534)
        error = fails("train", path, "--output", locked)
    finally:
        if root:
            os.seteuid(0)
    assert "Permission denied" in error and not content(locked)


def test_interrupted(tmp_path, call):
    path, run = config(tmp_path, training=TRAINING.replace("8", "100_000")), tmp_path / "run"
    process = start("train", path, "--output", run)
    wait_for(run / "checkpoint.pt", process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert error == b"dotformer: stopped; the same command goes on from the last checkpoint\n"
    assert steps_of(run) >= 4


def test_nobody_listens(trained):
    command = (
        f"yes seven | {sys.executable} -m dotformer translate {trained} --beam 1 | head -1; echo ${{PIPESTATUS[1]}}"
    )
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert found.stderr == "" and found.stdout.count("\n") == 2 and found.stdout.endswith("\n141\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a Linux device")
def test_an_output_that_is_full(trained):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "dotformer", "translate", str(trained)]
        found = subprocess.run(command, input=b"one\n", stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert found.returncode == 1 and found.stderr == b"dotformer: No space left on device\n"
