"""recurrent beside a slow loop in NumPy, over the LSTM of by_hand.recurrence and PyTorch's GRU cell, in float64."""

import warnings

import numpy as np
import pytest
import torch

from dotformer.by_hand.recurrence import lstm_cell
from dotformer.recurrent import RecurrentConfig, RecurrentSeq2Seq, RecurrentState
from tests.reference.strategies import assert_close, drawn_anew

SOURCE = torch.tensor([[7, 1, 2, 0, 0], [1, 5, 3, 2, 4], [9, 0, 0, 0, 0]])  # not sorted by length
TARGET = torch.tensor([[1, 4, 2, 6], [3, 3, 0, 0], [8, 9, 10, 0]])
VARIANTS = [(cell, attention) for cell in ("lstm", "gru") for attention in (True, False)]
every_variant = pytest.mark.parametrize(("cell", "attention"), VARIANTS)
every_depth = pytest.mark.parametrize("num_layers", [1, 2])


def fresh(**options):
    """A small model as it starts, for 10 source and 12 target tokens."""
    torch.manual_seed(0)
    return RecurrentSeq2Seq(RecurrentConfig(10, 12, **({"d_model": 6, "dropout": 0.0} | options)))


def small(seed=0, **options):
    """A small model with random parameters, in float64."""
    return drawn_anew(fresh(**options), seed)


def by_hand(model, source, target):
    """Logits (T, V) and weights (T, S) or None for one sentence, as lists of tokens without padding."""
    values = {name: p.detach().numpy() for name, p in model.state_dict().items()}
    config, depth = model.config, model.config.num_layers

    def cell(x, state, place):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        weights = [values[place.replace("*", name)] for name in names]
        if config.cell == "lstm":
            return lstm_cell(x, *state, *(w.T for w in weights))
        x, state, *weights = (torch.from_numpy(array) for array in (x[None], state[0][None], *weights))
        return (torch.gru_cell(x, state, *weights).numpy()[0],)

    empty = (np.zeros(config.d_model),) * (2 if config.cell == "lstm" else 1)
    scale = np.sqrt(config.d_model)
    memory = scale * values["source_embeddings.weight"][source]
    last = []
    for layer in range(depth):
        shown = []
        for words, suffix in ((memory, ""), (memory[::-1], "_reverse")):
            state, rows = empty, []
            for word in words:
                state = cell(word, state, f"encoder.*_l{layer}{suffix}")
                rows.append(state[0])
            last.append(state)
            shown.append(rows[::-1] if suffix else rows)
        memory = np.concatenate(shown, axis=1)
    ends = np.concatenate([part for parts in zip(*last, strict=True) for part in parts])  # all h, then all c
    begin = values["bridge.weight"] @ ends + values["bridge.bias"]
    begin = begin.reshape(len(empty), depth, config.d_model)
    states = [tuple(begin[:, layer]) for layer in range(depth)]
    logits, weights = [], []
    for token in target:
        inputs = [scale * values["target_embeddings.weight"][token]]
        if config.attention:
            asked = values["attention.w_s.weight"] @ states[-1][0]
            scores = [
                values["attention.v.weight"][0] @ np.tanh(asked + values["attention.w_h.weight"] @ h) for h in memory
            ]
            weights.append(np.exp(scores) / np.exp(scores).sum())
            inputs.append(sum(w * h for w, h in zip(weights[-1], memory, strict=True)))
        x = np.concatenate(inputs)
        for layer in range(depth):
            states[layer] = cell(x, states[layer], f"decoder.*_l{layer}")
            x = states[layer][0]
        read = np.tanh(values["readout.weight"] @ np.concatenate([x, *inputs]) + values["readout.bias"])
        logits.append(values["output.weight"] @ read)
    return np.array(logits), np.array(weights) if weights else None


@every_variant
@every_depth
@pytest.mark.parametrize("tie_output", [True, False])
def test_a_padded_batch_is_its_sentences_by_hand(cell, attention, num_layers, tie_output):
    model = small(cell=cell, attention=attention, num_layers=num_layers, tie_output=tie_output)
    logits, weights = model.attend(SOURCE, TARGET)
    assert logits.shape == (3, 4, 12)
    assert (weights is None) == (not attention)
    assert torch.equal(model(SOURCE, TARGET), logits)
    for row, (source, target) in enumerate(zip(SOURCE, TARGET, strict=True)):
        source, target = source[source != 0].tolist(), target[target != 0].tolist()
        expected, blend = by_hand(model, source, target)
        assert_close(logits[row, : len(target)], torch.from_numpy(expected))
        if attention:
            assert_close(weights[row, : len(target), : len(source)], torch.from_numpy(blend))
            assert not weights[row, :, len(source) :].any()


@every_variant
def test_what_stands_for_padding_is_never_read(cell, attention):
    model, other = (small(cell=cell, attention=attention, pad_id=pad_id) for pad_id in (0, 9))
    logits = model(SOURCE[:2], TARGET[:2])
    assert_close(other(SOURCE[:2].masked_fill(SOURCE[:2] == 0, 9), TARGET[:2]), logits)
    model.source_embeddings.weight.data[0] += 100
    assert_close(model(SOURCE[:2], TARGET[:2]), logits)


@every_variant
@every_depth
def test_selected_rows_go_on_as_they_would_have(cell, attention, num_layers):
    model = small(cell=cell, attention=attention, num_layers=num_layers)
    state = RecurrentState(model, SOURCE)
    state.step(TARGET[:, 0])
    state.step(TARGET[:, 1])
    rows = torch.tensor([2, 0, 0, 1, 2])
    state.select(rows)
    assert len(state) == 5
    chosen = TARGET[rows]
    chosen[:, 2] = torch.tensor([1, 2, 3, 4, 5])  # those that come twice part ways
    third = state.step(chosen[:, 2])
    expected = model(SOURCE[rows], chosen)
    assert_close(third, expected[:, 2])
    state.select(torch.tensor([4, 1]))  # the others are finished
    assert_close(state.step(chosen[[4, 1], 3]), expected[[4, 1], 3])
    state.select(torch.tensor([], dtype=torch.int64))
    assert len(state) == 0


def test_tables_are_tied_and_shared_as_wanted():
    model = fresh()
    assert model.output.weight is model.target_embeddings.weight
    assert model.source_embeddings.weight is not model.target_embeddings.weight
    apart = fresh(tie_output=False)
    assert apart.output.weight is not apart.target_embeddings.weight
    one = RecurrentSeq2Seq(RecurrentConfig(12, 12, d_model=6, share_embeddings=True))
    assert one.source_embeddings.weight is one.target_embeddings.weight is one.output.weight
    count = [sum(p.numel() for p in m.parameters()) for m in (model, apart, one)]
    assert count[1] - count[0] == 12 * 6
    assert count[0] - count[2] == 10 * 6


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_start(cell):
    model = fresh(cell=cell, d_model=256, num_layers=2)
    for table in (model.source_embeddings, model.target_embeddings):
        assert table.weight.std().item() == pytest.approx(1 / 16, rel=0.1)
        assert table.weight.mean().item() == pytest.approx(0, abs=0.01)
    assert model(SOURCE, TARGET).std().item() < 1  # near even guesses
    for cells, suffixes in ((model.encoder, ("", "_reverse")), (model.decoder, ("",))):
        for suffix in suffixes:
            for layer in range(2):
                forget = getattr(cells, f"bias_ih_l{layer}{suffix}")[256:512]
                assert (forget == 1).all() == (cell == "lstm")
                assert (getattr(cells, f"bias_ih_l{layer}{suffix}")[:256].abs() <= 1 / 16).all()
                assert (getattr(cells, f"bias_hh_l{layer}{suffix}").abs() <= 1 / 16).all()


@pytest.mark.parametrize(("cell", "attention", "num_layers"), [("lstm", True, 1), ("gru", False, 2)])
def test_dropout_in_training_alone(cell, attention, num_layers):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch's, of dropout between layers where there is one layer
        model = fresh(cell=cell, attention=attention, num_layers=num_layers, dropout=0.5, d_model=64)
    seen = {}
    for name in ("encoder", "decoder", "output"):
        getattr(model, name).register_forward_pre_hook(lambda _m, inputs, name=name: seen.update({name: inputs[0]}))

    def zeros():
        read = {"encoder": seen["encoder"].data, "decoder": seen["decoder"][..., :64], "output": seen["output"]}
        return {name: (x == 0).double().mean().item() for name, x in read.items()}

    first = model(SOURCE, TARGET)
    assert zeros() == {name: pytest.approx(0.5, abs=0.12) for name in ("encoder", "decoder", "output")}
    assert not torch.equal(model(SOURCE, TARGET), first)
    assert model.encoder.dropout == model.decoder.dropout == (0.5 if num_layers > 1 else 0.0)
    model.eval()
    assert torch.equal(model(SOURCE, TARGET), model(SOURCE, TARGET))
    assert zeros() == {"encoder": 0, "decoder": 0, "output": 0}


def test_bad_batches_are_named():
    model = fresh()
    with pytest.raises(ValueError, match=r"^empty sentences in rows \[1\]: nothing but padding$"):
        model(torch.tensor([[1, 2], [0, 0]]), TARGET[:2])
    with pytest.raises(ValueError, match=r"^source rows \[0, 2\] have padding before a token$"):
        model(torch.tensor([[0, 2], [1, 2], [0, 3]]), TARGET)
    with pytest.raises(TypeError, match="'target'"):
        model(SOURCE, TARGET[:2])
    with pytest.raises(ValueError, match=r"^source has 3 rows, target \(1, 1\)$"):
        RecurrentState(model, SOURCE).step(torch.tensor([1]))


@pytest.mark.parametrize("changes", [{"d_model": 0}, {"dropout": 1.0}, {"cell": "rnn"}, {"pad_id": 10}], ids=str)
def test_a_config_that_cannot_be_is_named(changes):
    ((name, value),) = changes.items()
    with pytest.raises(ValueError, match=f"^{name} must be .*not '?{value}'?$"):
        RecurrentConfig(10, 12, **changes)
    with pytest.raises(ValueError, match=r"^a shared table needs vocabularies of one size, not 10 and 12$"):
        RecurrentConfig(10, 12, share_embeddings=True)
