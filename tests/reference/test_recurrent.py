"""recurrent beside a slow loop in NumPy, over the cells of by_hand.recurrence, in float64."""

import dataclasses
import io
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dotformer.by_hand.recurrence import gru_cell, lstm_cell
from dotformer.recurrent import AdditiveAttention, RecurrentConfig, RecurrentSeq2Seq, RecurrentState
from tests.reference.strategies import assert_close, drawn_anew, normals

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
        weights = tuple(values[f"{place.replace('*', name)}"].T for name in names)
        return lstm_cell(x, *state, weights) if config.cell == "lstm" else (gru_cell(x, *state, weights),)

    empty = (np.zeros(config.d_model),) * (2 if config.cell == "lstm" else 1)
    memory = values["source_embeddings.weight"][source]
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
        inputs = [values["target_embeddings.weight"][token]]
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


def test_attention_by_hand():
    attention = drawn_anew(AdditiveAttention(2, 3), 0)
    attention.w_s.weight.data = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    attention.w_h.weight.data = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    attention.v.weight.data = torch.tensor([[3.0, -1.0]], dtype=torch.float64)
    state = torch.tensor([[0.5, -0.25]], dtype=torch.float64)
    memory = torch.tensor([[[1.0, -0.5, 4.0], [0.5, 0.0, 8.0], [9.0, 9.0, 9.0]]], dtype=torch.float64)
    real = torch.tensor([[True, True, False]])
    context, weights = attention(state, memory, attention.w_h(memory), real)
    scores = [3 * math.tanh(0.5 - 0.5) - math.tanh(-0.5 + 1), 3 * math.tanh(0.5) - math.tanh(-0.5 + 0.5)]
    share = 1 / (1 + math.exp(scores[1] - scores[0]))
    assert_close(weights, torch.tensor([[share, 1 - share, 0]], dtype=torch.float64))
    blend = [share + 0.5 * (1 - share), -0.5 * share, 4 * share + 8 * (1 - share)]
    assert_close(context, torch.tensor([blend], dtype=torch.float64))
    assert [name for name, _ in attention.named_parameters()] == ["w_s.weight", "w_h.weight", "v.weight"]


@every_variant
def test_more_padding_changes_nothing(cell, attention):
    model = fresh(cell=cell, attention=attention, d_model=32, num_layers=2)
    before, weights = model.attend(SOURCE, TARGET)
    after, wider = model.attend(F.pad(SOURCE, (0, 3)), F.pad(TARGET, (0, 2)))
    torch.testing.assert_close(after[:, :4], before, rtol=0, atol=1e-6)
    if attention:
        assert wider.shape == (3, 6, 8)
        assert not wider[..., 5:].any()
        torch.testing.assert_close(wider[:, :4, :5], weights, rtol=0, atol=1e-6)
    for row, length in enumerate((3, 5, 1)):
        alone = model(SOURCE[row : row + 1, :length], TARGET[row : row + 1])
        torch.testing.assert_close(alone, before[row : row + 1], rtol=0, atol=1e-6)


@every_variant
def test_what_stands_for_padding_is_never_read(cell, attention):
    model = small(cell=cell, attention=attention, num_layers=2)
    before = model(SOURCE, TARGET)
    model.source_embeddings.weight.data[0] += 100
    assert_close(model(SOURCE, TARGET), before)
    other = small(cell=cell, attention=attention, num_layers=2, pad_id=9)
    logits = other(SOURCE[:2].masked_fill(SOURCE[:2] == 0, 9), TARGET[:2])
    assert_close(logits, small(cell=cell, attention=attention, num_layers=2)(SOURCE[:2], TARGET[:2]))


@every_variant
@pytest.mark.parametrize("training", [False, True])
def test_logits_come_from_all_targets_so_far_and_from_no_later_one(cell, attention, training):
    model = small(cell=cell, attention=attention).train(training)
    target = torch.tensor([[1, 4, 2, 6, 7], [8, 9, 10, 11, 3]])
    for place in range(5):
        changed = target.clone()
        changed[:, place] = target[:, place] % 11 + 1
        before, after = (model(SOURCE[:2], t) for t in (target, changed))
        assert_close(after[:, :place], before[:, :place])
        assert not torch.isclose(before[:, place:], after[:, place:]).all(-1).any()


@every_variant
def test_every_logit_comes_from_every_source_token(cell, attention):
    model = small(cell=cell, attention=attention)
    for place in range(5):
        changed = SOURCE[1:2].clone()
        changed[:, place] = changed[:, place] % 9 + 1
        before, after = (model(s, TARGET[:1]) for s in (SOURCE[1:2], changed))
        assert not torch.isclose(before, after).all(-1).any()


def test_the_weights_of_the_real_words_sum_to_one():
    model = small()
    _, weights = model.attend(SOURCE, TARGET)
    assert_close(weights.sum(dim=-1), torch.ones(3, 4, dtype=torch.float64))
    assert not weights.masked_select((SOURCE == 0)[:, None].expand_as(weights)).any()
    assert (weights.masked_select((SOURCE != 0)[:, None].expand_as(weights)) > 0).all()
    assert not torch.isclose(weights[1, 0], weights[1, 1]).any()  # each step asks anew


@every_variant
@every_depth
def test_stepping_is_teacher_forcing(cell, attention, num_layers):
    model = fresh(cell=cell, attention=attention, num_layers=num_layers, d_model=32).eval()
    state = RecurrentState(model, SOURCE)
    assert len(state) == 3
    stepped = torch.stack([state.step(tokens) for tokens in TARGET.T], dim=1)
    torch.testing.assert_close(stepped, model(SOURCE, TARGET), rtol=0, atol=1e-6)


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


def test_two_states_of_a_model_are_apart():
    model = small()
    first, second = RecurrentState(model, SOURCE), RecurrentState(model, SOURCE)
    first.step(TARGET[:, 0])
    first.select(torch.tensor([1]))
    assert_close(second.step(TARGET[:, 0]), model(SOURCE, TARGET)[:, 0])


@every_variant
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "tie_output": False}])
def test_a_gradient_reaches_every_parameter(cell, attention, options):
    model = small(cell=cell, attention=attention, **options)
    F.cross_entropy(model(SOURCE, TARGET).flatten(0, 1), TARGET.roll(-1, 1).flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("attention", [True, False])
def test_the_gradient_is_right(attention):
    model = small(attention=attention, d_model=2)
    weight, direction = model.bridge.weight, normals(1, (4, 8))[0]
    model(SOURCE, TARGET).square().sum().backward()
    slope, start, losses = (weight.grad * direction).sum(), weight.data.clone(), []
    for step in (1e-5, -1e-5):
        weight.data = start + step * direction
        losses.append(model(SOURCE, TARGET).square().sum().item())
    assert_close(slope.item(), (losses[0] - losses[1]) / 2e-5, tolerance=1e-6)


@every_variant
def test_a_saved_model_comes_back(cell, attention):
    model = small(1, cell=cell, attention=attention, num_layers=2)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = small(2, cell=cell, attention=attention, num_layers=2)
    assert not torch.equal(other(SOURCE, TARGET), model(SOURCE, TARGET))
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(SOURCE, TARGET), model(SOURCE, TARGET))


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


@every_variant
def test_the_start(cell, attention):
    model = fresh(cell=cell, attention=attention, d_model=256, num_layers=2)
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
    model.load_state_dict(fresh(cell=cell, attention=attention, d_model=256, num_layers=2).state_dict())
    same = fresh(cell=cell, attention=attention, d_model=256, num_layers=2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))


@every_variant
@every_depth
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
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.RNNBase):
            module.dropout = 0.0
    evaluated = fresh(cell=cell, attention=attention, num_layers=num_layers, d_model=64)(SOURCE, TARGET)
    assert torch.equal(model(SOURCE, TARGET), evaluated)


@every_variant
def test_eight_pairs_are_learned_by_heart(cell, attention):
    generator = torch.Generator().manual_seed(0)
    lengths = [2, 3, 4, 5, 5, 4, 3, 2]
    rows = [torch.randint(3, 10, (n,), generator=generator) for n in lengths]
    pad = {"batch_first": True, "padding_value": 0}
    source = nn.utils.rnn.pad_sequence(rows, **pad)
    ends = [torch.tensor([1]), torch.tensor([2])]
    target = nn.utils.rnn.pad_sequence([torch.cat([ends[0], row.flip(0), ends[1]]) for row in rows], **pad)
    model = fresh(cell=cell, attention=attention, d_model=32, dropout=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        logits = model(source, target[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    state = RecurrentState(model.eval(), source)
    written = [torch.ones(8, dtype=torch.int64)]
    for _ in range(target.shape[1] - 1):
        written.append(state.step(written[-1]).argmax(dim=-1))
    real = target != 0
    assert torch.equal(torch.stack(written, dim=1)[real], target[real])


@every_variant
def test_bad_batches_are_named(cell, attention):
    model = fresh(cell=cell, attention=attention)
    with pytest.raises(ValueError, match=r"empty sentences: rows \[1\] .* nothing but padding \(0\)"):
        model(torch.tensor([[1, 2], [0, 0]]), TARGET[:2])
    with pytest.raises(ValueError, match=r"empty sentences: rows \[0\]"):
        RecurrentState(model, torch.tensor([[0, 0]]))
    with pytest.raises(ValueError, match=r"^source rows \[0, 2\] have padding before a token$"):
        model(torch.tensor([[0, 2], [1, 2], [0, 3]]), TARGET)
    with pytest.raises(ValueError, match=r"^source rows \[0\] have padding before a token$"):
        model(torch.tensor([[1, 0, 2]]), TARGET[:1])
    with pytest.raises(ValueError, match=r"^source has 3 rows, target \(2, 4\)$"):
        model(SOURCE, TARGET[:2])
    with pytest.raises(ValueError, match=r"^source has 1 rows, target \(3, 4\)$"):
        model(SOURCE[:1], TARGET)
    with pytest.raises(ValueError, match=r"^source has 3 rows, target \(4,\)$"):
        model(SOURCE, TARGET[0])
    with pytest.raises(ValueError, match=r"shape \(batch, tokens\), not \(5,\)$"):
        model(SOURCE[0], TARGET)
    state = RecurrentState(model, SOURCE)
    with pytest.raises(ValueError, match=r"^source has 3 rows, target \(1, 1\)$"):
        state.step(torch.tensor([1]))
    with pytest.raises(ValueError, match=r"^source has 3 rows, target \(3, 1, 4\)$"):
        state.step(TARGET)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(
            ({name: value}, f"^{name} must be positive, not {value}$")
            for name in ("source_vocab_size", "target_vocab_size", "d_model", "num_layers")
            for value in (0, -1)
        ),
        ({"dropout": 1.0}, r"^dropout must be at least 0 and below 1, not 1\.0$"),
        ({"dropout": -0.1}, r"^dropout must be at least 0 and below 1, not -0\.1$"),
        ({"cell": "rnn"}, "^cell must be 'lstm' or 'gru', not 'rnn'$"),
        ({"cell": "LSTM"}, "^cell must be 'lstm' or 'gru', not 'LSTM'$"),
        ({"pad_id": 10}, "^pad_id must be a token of both sides, not 10$"),
        ({"pad_id": -1}, "^pad_id must be a token of both sides, not -1$"),
        ({"share_embeddings": True}, r"^a shared table needs vocabularies of one size, not \(10, 12\)$"),
    ],
)
def test_a_config_that_cannot_be_is_named(changes, says):
    with pytest.raises(ValueError, match=says):
        RecurrentConfig(**({"source_vocab_size": 10, "target_vocab_size": 12} | changes))


def test_a_config_at_the_edge_is_taken_and_stays():
    config = RecurrentConfig(1, 1, d_model=1, dropout=0.0, share_embeddings=True)
    assert RecurrentConfig(10, 12, pad_id=9).pad_id == 9
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.d_model = 2
    defaults = dataclasses.asdict(RecurrentConfig(10, 12))
    assert defaults == {
        "source_vocab_size": 10,
        "target_vocab_size": 12,
        "d_model": 256,
        "num_layers": 1,
        "dropout": 0.1,
        "cell": "lstm",
        "attention": True,
        "pad_id": 0,
        "share_embeddings": False,
        "tie_output": True,
    }
