"""The comparison with other libraries: that it times in turns, reckons right, and lets no unequal contender in."""

import time

import pytest
import torch

from benchmarks import peers
from benchmarks.peer_models import CTranslate2, Ending, Ends, Marian, TorchTransformer, XTransformer, products_alone
from benchmarks.timing import difference, in_turns, summary
from dotformer.generation import KVCache, greedy

CPU = torch.device("cpu")
PEERS = {
    "training step": {"torch", "transformers", "x-transformers"},
    "products": {"one product"},
    "cross-entropy": {"from the sum of exponentials"},
    "encoding": {"transformers"},
    "generation, greedy, all to one length": {"transformers"},
    "generation, greedy, each to its own length": {"transformers"},
    "generation, beam 4, all to one length": {"transformers"},
    "generation, beam 4, each to its own length": {"transformers"},
    "attention": {"torch", "x-transformers", "x-transformers, flash"},
    "attention, causal": {"torch", "x-transformers", "x-transformers, flash"},
    "recurrent training step": {"nn.LSTM alone"},
}


@pytest.fixture(scope="module")
def measured():
    return {found["what"]: found for found in (make() for _, make in peers.rows(CPU, quick=True))}


def test_every_row_is_there(measured):
    assert measured.keys() == PEERS.keys()
    for what, found in measured.items():
        ours = {"no attention", "attention"} if what.startswith("recurrent") else {""}
        ours |= {"products alone"} if what.endswith("one length") else set()
        ours |= {"ONNX Runtime"} if what.startswith("generation") else set()
        ours = {f"dotformer, {name}" if name else "dotformer" for name in ours}
        ours |= {"CTranslate2"} if what.endswith("one length") or what.startswith("generation, greedy") else set()
        assert found["contenders"].keys() == PEERS[what] | ours
        for name, row in found["contenders"].items():
            assert row["ms"] > 0 and row["quartiles"] == [row["ms"]] * 2
            assert f"  {name:24}" in peers.table(found)


def test_rows_measured_again_take_the_place_of_the_old_ones():
    before = {"date": "2026-01-01", "measurements": [{"what": "a", "size": "1"}, {"what": "b", "size": "1"}]}
    new = [{"what": "c", "size": "1", "date": "2026-02-02"}, {"what": "a", "size": "1", "date": "2026-02-02"}]
    assert peers.merged(before, new) == [new[1], {"what": "b", "size": "1", "date": "2026-01-01"}, new[0]]


def test_ratios_are_to_the_fastest_peer(measured):
    for found in measured.values():
        rows = found["contenders"]
        fastest = min(
            (row for name, row in rows.items() if not name.startswith(("dotformer", "CT"))), key=lambda r: r["ms"]
        )
        assert fastest["ratio"] == 1
        for row in rows.values():
            assert row["ratio"] == pytest.approx(row["ms"] / fastest["ms"], rel=2e-3)


def test_peers_have_as_many_parameters_and_compute_the_same(measured):
    for what, found in measured.items():
        if not what.startswith(("recurrent", "cross-entropy")):
            counts = dict(found["parameters"])
            if what == "training step":  # three attentions and five norms of width 16 without biases
                assert counts.pop("x-transformers") == counts["dotformer"] - 16 * (3 * 4 + 5)
            assert len(counts) > 1 and len(set(counts.values())) == 1, what
            assert "generation" in what or 0 <= found["difference"] < 1e-5, what


@pytest.fixture
def ours():
    """A model whose biases are not 0 and whose gains are not 1, as they are before it learns."""
    torch.manual_seed(3)
    model = peers.model_of((16, 2, 2, 32, 50), CPU, dropout=0.0).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


@pytest.mark.parametrize("peer", [TorchTransformer, Marian])
def test_a_peer_has_each_bias_and_gain_of_ours(peer, ours):
    source, target = torch.tensor([[7, 9, 8, 3, 4], [5, 6, 0, 0, 0]]), torch.tensor([[1, 8, 9], [1, 7, 0]])
    with torch.no_grad():
        expected, found = ours(source, target), peer(ours).eval()(source, target)
    real = target != 0
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-4)


def test_ctranslate2_has_each_bias_and_gain_of_ours(ours):
    """Seen at what it writes: positions weigh more here, and a norm more than its token, or all would be alike."""
    ours.output.weight.data *= 0.1
    ours.decoder.layers[-1].feed_forward_add_norm.norm.weight.data *= 50
    for embeddings in (ours.source_embeddings, ours.target_embeddings):
        torch.nn.init.normal_(embeddings.positions.table, std=2)
    source = torch.randint(3, 50, (8, 5))
    ends = Ends(torch.full((8,), 6), 50, early=False)
    written = greedy(Ending(KVCache(ours, source), ends), 6)
    assert CTranslate2(ours, ends.bias).write(source, ends, 1) == written
    assert len({token for row in written for token in row}) > 2


def test_both_write_the_same_tokens_and_more_than_one(measured):
    for what, found in measured.items():
        assert "generation" not in what or found["different_tokens"] > 2, what  # unequal ones would have raised


@pytest.mark.parametrize("peer", [TorchTransformer, Marian, XTransformer])
def test_a_peer_that_computes_something_else_is_not_timed(peer, monkeypatch):
    def wrong(self, source, target):
        return forward(self, source, target) * 1.01

    forward = peer.forward
    monkeypatch.setattr(peer, "forward", wrong)
    name = {TorchTransformer: "torch", Marian: "transformers", XTransformer: "x-transformers"}[peer]
    with pytest.raises(ValueError, match=f"^{name} differs"):
        peers.training(peers.TRAINING["quick"][0], CPU, seconds=0)


def test_products_alone_are_those_that_writing_takes(monkeypatch):
    """Counted at both: a step multiplies with every matrix of the decoder but those of the memory's keys and values."""
    ours = peers.model_of((16, 2, 3, 32, 50), CPU, dropout=0.0).eval()
    source, shapes, linear = torch.full((2, 5), 7), [], torch.nn.functional.linear

    def counting(x, weight, bias=None):
        shapes.append((x.numel() // x.shape[-1], *weight.shape))
        return linear(x, weight, bias)

    state = KVCache(ours, source)
    state.step(torch.tensor([1, 1]))
    monkeypatch.setattr(torch.nn.functional, "linear", counting)
    state.step(torch.tensor([3, 4]))
    stepped = sorted(shapes)
    shapes.clear()
    products_alone(ours, rows=2, steps=2)()
    assert len(stepped) == 3 * 8 + 1 and sorted(shapes) == sorted(stepped * 2)


@pytest.mark.parametrize("beam", [1, 4])
def test_a_peer_that_writes_something_else_is_not_timed(beam, monkeypatch):
    write = Marian.write
    monkeypatch.setattr(Marian, "write", lambda *arguments: [row[::-1] for row in write(*arguments)])
    with pytest.raises(ValueError, match="different tokens"):
        peers.generation((16, 2, 1, 32, 50, 3, 6, beam, 0), CPU, seconds=0)


def test_contenders_take_turns_and_each_begins_as_often():
    turns = []
    contenders = {name: lambda name=name: turns.append(name) for name in "abc"}
    times = in_turns(contenders, CPU, seconds=0, warm_up=1, least=3)
    assert "".join(turns) == "abc" + "bca" + "cab" + "abc"
    assert {len(taken) for taken in times.values()} == {3}


def test_rounds_go_on_for_the_time_that_there_is():
    start = time.perf_counter()
    times = in_turns({"a": lambda: time.sleep(0.01)}, CPU, seconds=0.2, warm_up=1, least=1)
    assert 0.2 < time.perf_counter() - start < 2 and len(times["a"]) > 2


def test_a_summary_of_known_times():
    found = summary({"dotformer": [1, 3, 2], "slow": [4, 4, 4], "fast": [2, 2, 2]})
    assert found["dotformer"] == {"ms": 2000, "quartiles": [1500, 2500], "ratio": 1, "ratio_quartiles": [0.75, 1.25]}
    assert found["slow"]["ratio"] == 2
    assert found["fast"]["ratio"] == 1


@pytest.mark.parametrize(
    ("other", "says"), [([1.0, 2.1], "^b differs by 5"), ([1.0], r"^b has shape \(1,\), not \(2,\)")]
)
def test_outputs_that_differ_are_named(other, says):
    with pytest.raises(ValueError, match=says):
        difference({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(other)}, 1e-3)
    nothing = torch.tensor([1.0, torch.nan])
    with pytest.raises(ValueError, match=r"^b differs by nan"):
        difference({"a": torch.tensor([1.0, 2.0]), "b": nothing}, 1e-3)


def test_the_quick_command_prints_a_table_and_saves_nothing(capsys, monkeypatch):
    monkeypatch.setattr(peers, "save", lambda *_: pytest.fail("saved"))
    monkeypatch.setattr(peers, "rows", lambda *_: iter([("attention", example)]))
    peers.main(["--device", "cpu", "--quick"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "attention: small" and lines[2].split()[:2] == ["dotformer", "2000"]


def example():
    rows = summary({"dotformer": [1, 3, 2], "torch": [2, 2, 2]})
    return {"what": "attention", "size": "small", "parameters": {"dotformer": 1000, "torch": 1000}, "contenders": rows}
