"""What the tests of the commands share: a corpus in files, a run that has been trained, and a way to call a command."""

import gc
import io
import os
import random
import shutil
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from dotformer.command_line.commands import main
from tests.command.reference import CORPUS, toml

PARTS, SIDES = ("train", "validation", "test"), {"source": "en", "target": "de"}

LIBRARIES = ("PYTEST", "KMP", "TORCHINDUCTOR")  # which set variables of their own


def settings():
    """All that a command could leave otherwise than it was."""
    return {
        "random numbers": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "precision": (
            torch.get_float32_matmul_precision(),
            torch.get_default_dtype(),
            torch.is_autocast_enabled("cpu"),
        ),
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "threads": (torch.get_num_threads(), {t.name for t in threading.enumerate()} - {"tqdm_monitor"}),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
        "folder": Path.cwd(),
        "environment": {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "KMP", "TORCHINDUCTOR"))
        },
    }


def called(*arguments):
    """The exit code of a command, on the CPU, which leaves all settings as they were, also when it fails."""
    before = settings()
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as error:
        code = error.code
    gc.collect()
    ending = [t for t in threading.enumerate() if t.name == "QueueFeederThread"]  # of a loader that is shut down
    for thread in ending:
        thread.join(timeout=10)
    assert settings() == before
    return code


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Compute in one thread: models are tiny, and processes then compute the same."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    """Compute there, wherever the tests run."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """The folder of a corpus in text files, and its [data]."""
    folder = tmp_path_factory.mktemp("the texts")
    for part in PARTS:
        for side, language in SIDES.items():
            lines = [f"{getattr(pair, side)}\n" for pair in getattr(CORPUS, part)]
            (folder / f"{part}.{language}").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def data(texts):
    """[data] with the corpus in text files."""
    return {"corpus": "parallel"} | {
        part: [str(texts / f"{part}.{language}") for language in SIDES.values()]
        for part in ("train", "validation", "test")
    }


CONFIG = {
    "tokens": {"vocab_size": 330},
    "model": {"d_model": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 64}
    | {"max_length": 16, "norm_first": True},
    "training": {"steps": 60, "learning_rate": 0.02, "warmup_steps": 10, "schedule": "inverse_sqrt"}
    | {"validate_every": 5, "max_tokens": 96, "seed": 6},
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory, data):
    """The folder of a run that has learnt something; not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.toml").write_text(toml({"data": data} | CONFIG), encoding="utf-8")
    assert called("train", folder / "tiny.toml", "--output", folder / "run", "--quiet", "--device", "cpu") == 0
    return folder / "run"


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run, to break."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def call(capfd, monkeypatch):
    """Run a command; the exit code and what it said on standard output and standard error."""

    def call(*arguments, given=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        return called(*arguments), *capfd.readouterr()

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


@pytest.fixture
def moved(monkeypatch):
    """The devices to which models and batches are moved; they stay here."""
    devices = set()
    for kind in (torch.nn.Module, torch.Tensor):

        def to(self, *given, before=kind.to, **named):
            if not given or not isinstance(given[0], str):
                return before(self, *given, **named)
            devices.add(given[0])
            return self

        monkeypatch.setattr(kind, "to", to)
    return devices
