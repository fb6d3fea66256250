"""The model that the book keeps is what its configuration makes, and translates without a mistake."""

from pathlib import Path

from dotformer.command_line.runs import Run

ROOT = Path(__file__).resolve().parents[2]


def test_the_kept_model_is_what_its_configuration_makes(tmp_path):
    kept, new = Run.load(ROOT / "book/models/grammar"), Run(ROOT / "configs/grammar.toml", tmp_path)
    new.config["tokens"]["learnt"] = kept.config["tokens"]["learnt"]
    assert kept.config == new.config
    some = kept.corpus.test[:50]
    assert kept.trained("cpu").translate([pair.source for pair in some]) == [pair.target for pair in some]
