"""What chapter 19 has measured: its models, its experts' loads, and its configuration."""

import tomllib
from pathlib import Path

import pytest
import torch

from benchmarks import docstrings, modern
from dotformer.by_hand.positions import sinusoidal_positions
from dotformer.decoder import causal_mask
from dotformer.encoder import Encoder, LayerConfig
from dotformer.modern import Experts, ModernConfig, ModernGPT
from dotformer.training import cross_entropy
from tests.reference.strategies import drawn_anew

TEXTS = [([3 + n], [1, *(3 + (n * k) % 20 for k in range(1, 15 + n)), 2]) for n in range(8)]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Little data, texts cut after 8 tokens, and those of 16 measured in parts of 4."""
    cut = [(name, text[:9]) for name, text in TEXTS]
    monkeypatch.setattr(modern, "data", lambda length: ((cut if length == 8 else TEXTS)[:6], cut[6:], TEXTS, 25))
    for name, value in {"CUT": 8, "LONG": 16, "BIN": 4}.items():
        monkeypatch.setattr(modern, name, value)


def test_each_model_has_one_change_more_than_the_one_before():
    before = modern.choices("2017")
    assert before["positions"] == "sinusoids" and not before["norm_first"]
    for name in list(modern.CHANGES)[1:]:
        after = modern.choices(name)
        changed = {key for key in after if after[key] != before.get(key)}
        assert changed == modern.CHANGES[name].keys() and before.items() - after.items() <= {
            item for item in before.items() if item[0] in changed
        }
        before = after
    for name, (base, change) in modern.INSTEAD.items():
        assert modern.choices(name) == modern.choices(base) | change
    with pytest.raises(ValueError, match="there is no 'post-norm'"):
        modern.choices("post-norm")


def test_gated_networks_have_about_as_many_parameters():
    sizes = {name: sum(p.numel() for p in modern.new_model(name, 25, 0).parameters()) for name in modern.CHANGES}
    assert abs(sizes["SwiGLU"] - sizes["RMSNorm"]) < 0.02 * sizes["RMSNorm"]
    assert sizes["RMSNorm"] > sizes["no biases"] > sizes["grouped heads"] < sizes["untied"]


def test_the_last_changes_make_the_model_of_chapter_19():
    for name in ("grouped heads", "untied"):
        ours = modern.new_model(name, 25, 0).eval()
        shape = {"d_model": 64, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "d_ff": modern.GATED}
        theirs = ModernGPT(ModernConfig(vocab_size=25, tied=False, **shape)).eval()
        theirs.load_state_dict(ours.state_dict())
        theirs.tokens.weight.data *= 8
        tokens = torch.randint(1, 25, (2, 9))
        with torch.no_grad():
            assert torch.allclose(ours(tokens[:, :2], tokens), theirs(tokens[:, :2], tokens), atol=1e-5)


def test_the_first_model_is_a_decoder_of_2017():
    ours = drawn_anew(modern.new_model("2017", 25, 0), seed=0).eval()
    config = LayerConfig(d_model=64, num_heads=4, d_ff=256, dropout=0.0)
    encoder = Encoder(config, 4).double().eval()
    names = {"attention_norm": "attention_add_norm.norm", "feed_forward_norm": "feed_forward_add_norm.norm"}
    state = {}
    for name, value in ours.layers.state_dict().items():
        for old, new in names.items():
            name = name.replace(old, new)
        state[f"layers.{name}"] = value
    encoder.load_state_dict(state)
    tokens = torch.randint(1, 25, (2, 9))
    with torch.no_grad():
        x = ours.tokens(tokens) * 8 + torch.tensor(sinusoidal_positions(9, 64))
        expected = ours.output(encoder(x, causal_mask(9)))
        assert torch.allclose(ours(tokens[:, :0], tokens), expected, atol=1e-5)


def test_a_training_leaves_what_the_chapter_reads():
    job = {"part": "train", "corpus": "docstrings", "seed": 0, "settings": {"learning_rate": 1e-3}}
    row = modern.train("cpu", 2, job | {"model": "grouped heads"})
    model = modern.new_model("grouped heads", 25, 0)
    assert row["parameters"] == sum(p.numel() for p in model.parameters()) and len(row["by_position"]) == 4
    assert row["kept_numbers"] == 2 * 4 * 2 * 16 and "loads" not in row
    row = modern.train("cpu", 2, job | {"model": "balanced experts"})
    assert len(row["loads"]) == 4 and all(sum(layer) == pytest.approx(1, abs=0.01) for layer in row["loads"])
    lost = modern.train("cpu", 3, job | {"model": "2017", "settings": {"learning_rate": 1e30}})
    assert lost["validation_loss"] == 1e9


def test_loads_are_shares_of_tokens():
    model = modern.new_model("experts", 25, 0)
    counts = [[0] * modern.EXPERTS for _ in model.layers]
    found = modern.loads(model, TEXTS)
    inputs = []
    for layer in model.layers:
        layer.feed_forward.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
    for pair in TEXTS:
        inputs.clear()
        docstrings.token_losses(model, pair)
        for row, layer, x in zip(counts, model.layers, list(inputs), strict=True):
            for vector in x[0]:
                row[int(layer.feed_forward.router(vector).argmax())] += 1
    for row, layer in zip(counts, found, strict=True):
        assert layer == pytest.approx([count / sum(row) for count in row], abs=1e-3)


def test_balancing_adds_each_layers_balance_to_the_loss():
    model = modern.new_model("balanced experts", 25, 0)
    assert isinstance(model.layers[3].feed_forward, Experts)
    trainer = modern.Balancing(model, modern.TrainingConfig(), "cpu")
    trainer.weight = 0.5
    prompt, text = torch.tensor([[3]]), torch.tensor([[4, 5, 6]])
    logits = model(prompt, text)
    plain, count = cross_entropy(logits, text)
    extra = sum(layer.feed_forward.balance.item() for layer in model.layers)
    loss, tokens = trainer.criterion(logits, text)
    assert (float(loss), tokens) == (pytest.approx(float(plain) + 0.5 * 3 * extra), count)


def test_the_modern_configuration_is_the_gpts_with_other_parts():
    folder = Path(__file__).parents[2] / "configs"
    ours, theirs = (tomllib.loads((folder / f"gpt-{name}.toml").read_text()) for name in ("modern", "docstrings"))
    assert {key for key in ours if ours[key] != theirs[key]} == {"model"}
    shape = {key: value for key, value in ours["model"].items() if key != "kind"}
    changed = {key for key in ours["model"] if ours["model"][key] != theirs["model"].get(key)}
    assert changed == {"kind", "num_kv_heads", "d_ff"} and theirs["model"].keys() - shape.keys() == {"kind", "dropout"}
    ModernConfig(vocab_size=ours["tokens"]["vocab_size"], **shape)
