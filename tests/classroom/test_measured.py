"""Measurements are read from the repository, and a missing one says what makes it."""

import json

import pytest

from classroom import measured as module
from classroom.measured import measured


def test_a_measurement_is_what_its_program_wrote(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    (tmp_path / "speed.json").write_text(json.dumps({"seconds": 1.5, "machine": "ä"}), encoding="utf-8")
    assert measured("speed") == {"seconds": 1.5, "machine": "ä"}
    with pytest.raises(FileNotFoundError, match=r"other\.json is missing: python -m benchmarks\.other makes it"):
        measured("other")
