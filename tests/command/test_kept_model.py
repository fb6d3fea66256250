"""The models that the book keeps are what their configurations make, and write without a mistake."""

from pathlib import Path

import pytest

from dotformer.command_line.runs import Run

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["grammar", "stories", "trees"])
def test_a_kept_model_is_what_its_configuration_makes(name, tmp_path):
    kept, new = Run.load(ROOT / "book/models" / name), Run(ROOT / f"configs/{name}.toml", tmp_path)
    new.config["tokens"]["learnt"] = kept.config["tokens"]["learnt"]
    assert kept.config == new.config
    some = kept.corpus.test[:50]
    assert kept.trained("cpu").translate([pair.source for pair in some]) == [pair.target for pair in some]
