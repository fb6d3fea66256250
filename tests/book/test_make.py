"""The Makefile where a command meets more than files: a port in use, a reader's folder, a user who is root."""

import os
import socket
import subprocess

import pytest


def make(root, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run make as from a shell, even where this test was started by make."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        ["make", *arguments], cwd=root, env=inherited | environment, capture_output=True, text=True, check=False
    )


def test_a_port_in_use_is_one_clear_line(root):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = make(root, "-o", "book", "serve", f"PORT={port}")
    assert result.returncode != 0
    first, *rest = result.stderr.splitlines()
    assert first == f"Port {port} is taken, or not allowed. Name another: make PORT=... serve"
    assert [line for line in rest if not line.startswith("make")] == []


@pytest.mark.parametrize(("user", "shown"), [(0, "--notebook-dir=work --allow-root"), (1000, "--notebook-dir=work")])
def test_the_lab_serves_the_readers_folder_and_lets_root_in(root, tmp_path, user, shown):
    (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n", encoding="utf-8")
    (tmp_path / "id").chmod(0o755)
    result = make(root, "-o", "venv", "lab", "RUN=echo", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert result.stdout.splitlines()[0] == "literate.lab"
    assert result.stdout.splitlines()[-1] == f"jupyterlab {shown}"


def test_the_tests_that_make_runs_are_all_there_are(root):
    commands = make(root, "--dry-run", "-o", "venv", "test").stdout
    named = [root / word for word in commands.split() if word.startswith("tests/")]
    assert len(named) > 10 and all(place.exists() for place in named)
    files = (root / "tests").rglob("test_*.py")
    assert [file.name for file in files if not any(file.is_relative_to(place) for place in named)] == []
