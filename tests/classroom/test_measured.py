"""Measurements and models are read from the repository, and a missing one says what makes it."""

import json

import pytest

from classroom import measured as module
from classroom.measured import measured, trained


def test_a_measurement_is_what_its_program_wrote(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    (tmp_path / "speed.json").write_text(json.dumps({"seconds": 1.5, "machine": "ä"}), encoding="utf-8")
    assert measured("speed") == {"seconds": 1.5, "machine": "ä"}
    with pytest.raises(FileNotFoundError, match=r"other\.json is missing: python -m benchmarks\.other makes it"):
        measured("other")


def test_a_model_is_a_folder_with_parameters(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MODELS", tmp_path)
    (tmp_path / "small").mkdir()
    with pytest.raises(FileNotFoundError, match=r"small is missing: python -m dotformer train configs/small\.toml"):
        trained("small")
    (tmp_path / "small/model.safetensors").touch()
    assert trained("small") == tmp_path / "small"
