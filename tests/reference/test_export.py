"""What leaves Python computes the same: quantized parameters, the page's engine in V8, and graphs in ONNX Runtime."""

import json
import re

import numpy as np
import onnx
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from py_mini_racer import MiniRacer
from torch import nn

from dotformer.devices import pad_vocabulary
from dotformer.export import OnnxCache, page_model, quantize, rounded, write_onnx
from dotformer.generation import KVCache, beam_search, greedy
from dotformer.recurrent import RecurrentConfig, RecurrentSeq2Seq, RecurrentState
from dotformer.support import onnx_files
from dotformer.support.onnx_files import OnnxGraph, write_graph
from dotformer.support.pages import PAGE, as_script, write_page
from dotformer.tokens import BPETokenizer, pretokenize
from dotformer.transformer import Transformer, TransformerConfig
from dotformer.translation import Translator

TEXTS = [" the old man sees a dog .", " ein Käfer, 12 Öfen!", " Größe 3,5"]
TOKENIZER = BPETokenizer.train(TEXTS, 290)
TO_JAVASCRIPT = """
function last(steps) {
  for (;;) {
    const { value, done } = steps.next();
    if (done) return value;
  }
}
function computed(file, source, targets) {
  const model = load(file);
  const memory = encode(model, source);
  let past = begin(model);
  const logits = [];
  const looks = [];
  for (const target of targets) {
    const next = step(model, memory, past, target);
    past = next.past;
    logits.push([...next.logits]);
    looks.push(next.looks);
  }
  const best = last(beamSearch(model, source, 12, 3, 0.6));
  const ids = (steps) => steps.map(({ token }) => token);
  return { logits, looks, greedy: ids([...greedy(model, source, 12)]), best: ids(best.written), score: best.score };
}
// Searches in which a row of a table scores what comes next: which row, all tokens so far say, each by where it stands.
function searched(table, longest, beam, alpha) {
  const own = [encode, begin, step];
  [encode, begin] = [() => null, () => []];
  step = (model, memory, past, token) => {
    const longer = [...past, token];
    const row = longer.reduce((sum, one, n) => sum + (n + 1) * one, 0) % table.length;
    return { logits: Float64Array.from(table[row]), past: longer, looks: [] };
  };
  try {
    const best = last(beamSearch(null, [], longest, beam, alpha));
    const ids = (steps) => steps.map(({ token }) => token);
    return { greedy: ids([...greedy(null, [], longest)]), best: ids(best.written), score: best.score };
  } finally {
    [encode, begin, step] = own;
  }
}
"""


class Remembering:
    """Sentences in which a row of a table scores what comes next, as in `searched`: one source, any number of rows."""

    special_ids = (0, 1, 2)

    def __init__(self, table):
        self.table, self.rows = table, [[]]

    def __len__(self):
        return len(self.rows)

    def step(self, tokens):
        self.rows = [[*row, token] for row, token in zip(self.rows, tokens.tolist(), strict=True)]
        sums = [sum((n + 1) * token for n, token in enumerate(row)) for row in self.rows]
        return self.table[[total % len(self.table) for total in sums]].clone()

    def select(self, rows):
        self.rows = [self.rows[row] for row in rows.tolist()]


@pytest.fixture(scope="module")
def engine():
    """The page's engine in V8."""
    context = MiniRacer()
    context.eval((PAGE / "engine.js").read_text(encoding="utf-8") + TO_JAVASCRIPT)
    yield context
    context.close()


def model_of(seed=0, padded=1, **options):
    """A small model with other parameters than at the start, so that none is 0 or 1."""
    torch.manual_seed(seed)
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 12, "num_encoder_layers": 2, "num_decoder_layers": 3}
    vocabulary = len(TOKENIZER)
    model = Transformer(TransformerConfig(vocabulary, vocabulary, max_length=40, **sizes | options)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    if padded > 1:
        pad_vocabulary(model, padded)
    return model


def through_the_file(model):
    """What a page gets of a model, and the model with the parameters that it then has."""
    file = page_model(Translator(TOKENIZER, TOKENIZER, model, KVCache))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                numbers, scales = quantize(parameter)
                parameter.copy_(numbers * scales[:, None])
    return json.loads(json.dumps(file)), model


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**31), st.sampled_from([1e-6, 1.0, 1e6]))
def test_quantizing_moves_no_entry_by_more_than_half_a_scale(rows, columns, seed, size):
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * size
    numbers, scales = quantize(weight)
    assert numbers.dtype == torch.int8 and numbers.abs().amax(dim=1).tolist() == [127] * rows
    assert ((weight - numbers * scales[:, None]).abs() <= scales[:, None] * 0.50001).all()


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_fewer_bits_hold_fewer_numbers(bits):
    weight = torch.randn(3, 50, generator=torch.Generator().manual_seed(bits))
    numbers, scales = quantize(weight, bits)
    assert numbers.abs().max() == 2 ** (bits - 1) - 1 == {2: 1, 3: 3, 4: 7, 8: 127}[bits]
    assert torch.equal(rounded(weight, bits), numbers * scales[:, None])
    whole = rounded(weight, bits, by_row=False)
    assert len(whole.unique()) <= 2**bits - 1 and (whole - weight).abs().max() <= 0.501 * weight.abs().max() / (
        2 ** (bits - 1) - 1
    )


@pytest.mark.parametrize("bits", [1, 9, 32])
def test_a_number_of_bits_that_does_not_fit_is_refused(bits):
    with pytest.raises(ValueError, match=rf"bits must be from 2 to 8, not {bits}"):
        quantize(torch.ones(1, 1), bits)


def test_the_smallest_numbers_do_not_wrap():
    numbers, _ = quantize(torch.tensor([[2.6e-43, 1e-43]]))
    assert numbers[0, 0] == 127 and 0 <= numbers[0, 1] <= 127


def test_a_row_of_zeros_stays_zeros():
    numbers, scales = quantize(torch.tensor([[0.0, 0.0], [0.0, -2.0]]))
    assert numbers.tolist() == [[0, 0], [0, -127]] and scales[0] == 0


KINDS = {
    "post-norm": {},
    "pre-norm": {"norm_first": True},
    "pre-norm without a final norm": {"norm_first": True, "final_norm": False},
    "post-norm with a final norm": {"final_norm": True},
    "one table": {"share_embeddings": True},
    "an output of its own": {"tie_output": False},
    "one table and an output of its own": {"share_embeddings": True, "tie_output": False},
    "one head": {"num_heads": 1},
    "another epsilon": {"layer_norm_eps": 0.1},
    "a padded vocabulary": {"padded": 64},
    "a padded table for both": {"padded": 64, "share_embeddings": True},
    "a padded output": {"padded": 64, "tie_output": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_computes_what_pytorch_does(engine, kind):
    file, model = through_the_file(model_of(**KINDS[kind]))
    source, targets = [7, 30, 280, 9, 9], [1, 44, 5, 289, 44, 7]
    ids = torch.tensor([source])
    found = engine.call("computed", file, source, targets)
    cache = KVCache(model, ids)
    for target, logits in zip(targets, found["logits"], strict=True):
        torch.testing.assert_close(torch.tensor(logits), cache.step(torch.tensor([target]))[0], rtol=1e-5, atol=1e-5)
    attention = model.decoder.layers[0].cross_attention
    assert [len(found["looks"]), len(found["looks"][0]), len(found["looks"][0][0])] == [6, 3, attention.num_heads]
    # greedy hands out the end too, which Python leaves away
    written = greedy(KVCache(model, ids), 12)[0]
    assert found["greedy"] in (written, [*written, 2])
    best = beam_search(KVCache(model, ids), 12, beam=3)[0][0]
    assert found["best"] in (best.tokens, [*best.tokens, 2]) and abs(found["score"] - best.score) < 1e-4


@given(
    *(st.integers(0, 2**31), st.integers(6, 9), st.integers(1, 12), st.integers(1, 4)),
    *(st.floats(0, 3), st.floats(-2, 3), st.sampled_from([1, 4])),
)
@settings(max_examples=200)
def test_the_engine_searches_as_python_does(engine, seed, size, longest, beam, alpha, ending, scale):
    """On sentences that end early, late or never, by scores that are close together or far apart."""
    table = scale * torch.randn(31, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    table[:, 2] += ending
    table[:, :2] = -1e9  # never padding, never a begin
    found = engine.call("searched", table.tolist(), longest, beam, alpha)
    [written] = greedy(Remembering(table), longest)
    assert found["greedy"] == [*written, 2][:longest]
    tokens, score = beam_search(Remembering(table), longest, beam, alpha)[0][0]
    assert found["best"] in (tokens, [*tokens, 2]) and found["score"] == pytest.approx(score, abs=1e-9)


def test_the_weights_it_shows_are_those_of_cross_attention(engine):
    from dotformer.support.recording import record_weights

    file, model = through_the_file(model_of(3))
    source, targets = [7, 30, 280], [1, 44, 5]
    looks = torch.tensor(engine.call("computed", file, source, targets)["looks"])
    with torch.no_grad(), record_weights(model) as seen:
        model(torch.tensor([source]), torch.tensor([targets]))
    for n in range(3):
        expected = seen[f"decoder.layers.{n}.cross_attention"][0].transpose(0, 1)
        torch.testing.assert_close(looks[:, n], expected, rtol=0, atol=1e-5)


WORDS = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)


@settings(max_examples=300, deadline=None)
@given(WORDS | st.lists(st.sampled_from(["the", " old", " Käfer", "  ", " 12", "!", "\n"])).map("".join))
@example("\ufeff a\x1c\x85b\u180e\u200b\u2028")  # where languages differ about what is a space
@example("\ufeffa b")
@example("a\x1c b")
@example("\x85a  b\x85\x85 c")
def test_the_engine_cuts_texts_as_the_tokenizer_does(engine, text):
    assert json.loads(engine.eval(f"JSON.stringify({json.dumps(text)}.match(WORD) ?? [])")) == pretokenize(text)
    engine.eval(f"var side = tokenizer({json.dumps({'merges': TOKENIZER.merges, 'specials': 3})});")
    found = json.loads(engine.eval(f"JSON.stringify(tokenize(side, {json.dumps(text)}))"))
    assert found == TOKENIZER.encode(text)
    assert json.loads(engine.eval(f"JSON.stringify(detokenize(side, {json.dumps([0, 1, *found, 2])}))")) == text


@given(st.binary(max_size=8) | st.text(max_size=4).map(lambda text: text.encode()[:-1]))
@example(b"hi\xc3")  # half of a letter, while a text is written token by token
@example(b"\xf0\x9f\x99a")
def test_what_is_not_utf8_spoils_nothing_else(engine, data):
    found = json.loads(engine.eval(f"JSON.stringify(toText({list(data)}))"))
    assert re.sub("\ufffd+", "\ufffd", found) == re.sub("\ufffd+", "\ufffd", data.decode(errors="replace"))


def test_half_of_a_surrogate_pair_is_replaced(engine):
    half, whole = (
        json.loads(engine.eval(f"JSON.stringify(toBytes({text}))")) for text in ('"a\\ud83d"', '"\\ud83d\\ude42"')
    )
    assert bytes(half).decode() == "a\ufffd" and bytes(whole).decode() == "🙂"


def test_a_model_that_the_page_cannot_run_is_refused():
    model = RecurrentSeq2Seq(RecurrentConfig(290, 290, 8))
    with pytest.raises(ValueError, match=r"with a Transformer only, and this model is a RecurrentSeq2Seq"):
        page_model(Translator(TOKENIZER, TOKENIZER, model, RecurrentState))
    other = model_of()
    other.target_embeddings.scale = 1.0
    broken = model_of()
    broken.decoder.layers[1].cross_attention.w_o.bias.data[3] = float("nan")
    for wrong, said in (
        (model_of(activation="gelu"), "relu only, and this model has gelu"),
        (other, "multiplies embeddings by the root of their width"),
        (model_of(pad_id=3), "pads with 0"),
        (broken, "decoder.layers.1.cross_attention.w_o.bias holds NaN or infinity"),
    ):
        with pytest.raises(ValueError, match=said):
            page_model(Translator(TOKENIZER, TOKENIZER, wrong, KVCache))


def test_a_page_is_whole_and_names_nobody_else(tmp_path):
    file, _ = through_the_file(model_of())
    write_page(tmp_path / "there", 'a "name" </script>', file)
    names = {path.name for path in (tmp_path / "there").iterdir()}
    assert names == {"index.html", "engine.js", "translator.js", "translator.css", "model.js"}
    index = (tmp_path / "there" / "index.html").read_text()
    assert set(re.findall(r'(?:src|href)="([^"]+)"', index)) == names - {"index.html"}
    assert "http:" not in index and "https:" not in index
    context = MiniRacer()
    context.eval((tmp_path / "there" / "model.js").read_text())
    assert json.loads(context.eval("JSON.stringify(translators)")) == {'a "name" </script>': file}
    context.close()
    assert as_script("a", file).count("\n") == 1


def test_the_engine_is_short_enough_to_be_read():
    assert len((PAGE / "engine.js").read_text().splitlines()) <= 300


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """Two models, post-norm and pre-norm, each with its graphs."""
    found = []
    for seed, options in enumerate(({}, {"norm_first": True, "share_embeddings": True})):
        folder, model = tmp_path_factory.mktemp("graphs"), model_of(seed, **options)
        write_onnx(model, folder)
        for name in ("encode", "step"):
            onnx.checker.check_model(onnx.load(folder / f"{name}.onnx"))
        assert {path.name for path in folder.iterdir()} == {"encode.onnx", "step.onnx"}
        found.append((model, [OnnxGraph(folder / f"{name}.onnx") for name in ("encode", "step")]))
    return found


@pytest.mark.parametrize("which", [0, 1])
def test_graphs_write_what_the_cache_writes(graphs, which):
    """For other batches and lengths than those of the examples, with padding, and with rows that are moved."""
    model, pair = graphs[which]
    source = torch.tensor([[7, 8, 9, 10, 11], [12, 13, 0, 0, 0], [9, 200, 7, 8, 0]])
    ours, theirs = KVCache(model, source), OnnxCache(*pair, source)
    assert len(theirs) == 3 and theirs.special_ids == ours.special_ids
    tokens = torch.tensor([1, 1, 1])
    for rows in ([0, 1, 2], [2, 0], [1, 1, 0], [0, 1, 2], []):
        expected = ours.step(tokens)
        torch.testing.assert_close(theirs.step(tokens), expected, rtol=1e-4, atol=1e-4)
        tokens = expected.argmax(dim=-1)[rows]
        for state in (ours, theirs):
            state.select(torch.tensor(rows, dtype=torch.long))
        assert len(theirs) == len(rows)
    one, other = (beam_search(state, 9) for state in (KVCache(model, source), OnnxCache(*pair, source)))
    assert [[h.tokens for h in found] for found in one] == [[h.tokens for h in found] for found in other]


def test_a_model_in_training_is_not_exported(tmp_path):
    with pytest.raises(ValueError, match=r"the model is in training mode"):
        write_onnx(model_of().train(), tmp_path)


def test_an_empty_sentence_is_refused_by_graphs_too(graphs):
    with pytest.raises(ValueError, match=r"empty sentences in rows \[1\]"):
        OnnxCache(*graphs[0][1], torch.tensor([[5, 6], [0, 0]]))


def test_two_inputs_may_not_share_an_example(tmp_path):
    """The exporter would take them for one."""
    x = torch.ones(2)
    with pytest.raises(ValueError, match=r"one example stands for two inputs"):
        write_graph(tmp_path / "a.onnx", nn.Identity(), {"a": (x, {}), "b": ([x], [{}])}, ["a", "b"], ["c"])
    assert not list(tmp_path.iterdir())


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(onnx_files, "import_module", missing)
    with pytest.raises(ModuleNotFoundError, match=r"onnx is not installed: pip install onnx onnxscript onnxruntime"):
        write_onnx(model_of(), tmp_path)
    with pytest.raises(ModuleNotFoundError, match=r"onnxruntime is not installed"):
        OnnxGraph(tmp_path / "a.onnx")


def test_numbers_in_the_file_are_those_of_float32():
    file, model = through_the_file(model_of())
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert np.array(file["tensors"][name], np.float32).tolist() == parameter.tolist()
