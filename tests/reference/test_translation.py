"""translation beside beam search on one text at a time, BLEU counted by hand, and sacreBLEU's own command."""

import inspect
import itertools
import json
import math
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from dotformer.alignment import on_target
from dotformer.command_line.models import MODELS, ONE_VOCABULARY, new_translator
from dotformer.data.corpora import Pair
from dotformer.generation import beam_search
from dotformer.tokens import BPETokenizer, pad_batch
from dotformer.translation import Translator, bleu, chrf, exact_match

ENGLISH = ["the dog sees the cat", "the cat sleeps", "a bird sings", "he reads", "the old man sings", "my cat sings"]
GERMAN = [
    "der Hund sieht die Katze",
    "die Katze schläft",
    "ein Vogel singt",
    "er liest",
    "der Alte singt",
    "meine Katze singt",
]
PAIRS = [Pair(*pair) for pair in zip(ENGLISH, GERMAN, strict=True)]
SHAPES = {
    "transformer": {
        **{"d_model": 32, "num_heads": 4, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 64},
        **{"max_length": 32, "tie_output": False},
    },
    "recurrent": {"d_model": 32},
}
SHAPES |= {"facts": SHAPES["transformer"], "copying": SHAPES["transformer"] | {"share_embeddings": True}}
TEXTS = ["the cat", "he", "  the old dog sings\n", "a bird", "cats", "", "man", "the dog", "\u3000\t", "a bird"]
every_kind = pytest.mark.parametrize("kind", SHAPES)


@pytest.fixture(scope="module")
def tokenizers():
    """Of the source and of the target, which differ in their merges and in number."""
    sides = ([f" {text}" for text in side] for side in (ENGLISH, GERMAN))
    return tuple(BPETokenizer.train(side, size) for side, size in zip(sides, (275, 285), strict=True))


@pytest.fixture
def recurrent(tokenizers):
    """A small translator as it starts."""
    return new_translator(*tokenizers, "recurrent", {"d_model": 4})


def tokenizers_for(kind, tokenizers):
    """Two, or the second for both sides of a model that has one vocabulary."""
    return (tokenizers[1],) * 2 if kind in ONE_VOCABULARY else tokenizers


def translated_alone(translator, text):
    """What beam search writes for a text that is in no batch."""
    tokens, model = translator.source.encode(f" {text.strip()}"), translator.model.eval()
    with torch.no_grad():
        state = translator.state(model, torch.tensor([tokens]))
        found = beam_search(state, min(len(tokens) + 50, translator.longest))
    return translator.target.decode(found[0][0].tokens).strip()


class Echo:
    """In the place of a translator's state: writes each source in capitals and ends, or is stuck at a letter.

    Keeps the sources that it was given, and the modes in which it was called.
    """

    def __init__(self, translator, stuck=""):
        self.translator, self.stuck, self.sources, self.modes = translator, stuck, [], []
        translator.state = self

    def __call__(self, model, source):
        assert model is self.translator.model
        self.sources.append(source)
        self.modes.append((model.training, torch.is_grad_enabled()))
        texts = [self.stuck or f"{self.translator.source.decode(row).upper()} " for row in source.tolist()]
        end = [] if self.stuck else [2]
        return Written([self.translator.target.encode(text) + end for text in texts])


class Written:
    """A state that writes given tokens, the last of them for ever."""

    special_ids = (0, 1, 2)

    def __init__(self, answers):
        self.answers, self.place = answers, 0

    def __len__(self):
        return len(self.answers)

    def step(self, _):
        logits = torch.full((len(self), 285), -math.inf)
        for row, answer in zip(logits, self.answers, strict=True):
            row[answer[min(self.place, len(answer) - 1)]] = 0.0
        self.place += 1
        return logits

    def select(self, rows):
        self.answers = [self.answers[n] for n in rows.tolist()]


# a translator


@every_kind
def test_the_tokenizers_give_the_model_its_vocabularies_and_the_shape_the_rest(tokenizers, kind):
    tokenizers = tokenizers_for(kind, tokenizers)
    translator, sizes = new_translator(*tokenizers, kind, SHAPES[kind]), list(map(len, tokenizers))
    config, model, state = MODELS[kind]
    assert type(translator.model) is model and translator.state is state
    assert translator.model.config == config(*sizes, **SHAPES[kind])
    assert translator.model.config != config(*sizes)
    assert (translator.source, translator.target) == tokenizers
    assert translator.longest == SHAPES[kind].get("max_length", 1024)


@pytest.mark.parametrize(
    ("kind", "shape", "says"),
    [
        ("rnn", {}, "^kind must be one of transformer, recurrent, gpt, modern, facts, copying, not 'rnn'$"),
        ("recurrent", {"d_model": 8, "num_heads": 2, "d_ff": 3}, "^kind recurrent has no d_ff, num_heads$"),
        ("transformer", {"source_vocab_size": 7}, "^kind transformer has no source_vocab_size$"),
        ("recurrent", {"pad_id": 7}, "^kind recurrent has no pad_id$"),
        ("gpt", {"vocab_size": 7}, "^kind gpt has no vocab_size$"),
        ("gpt", {"d_model": 12}, r"^kind gpt has one vocabulary: it needs \[tokens\] shared = true$"),
        ("copying", SHAPES["copying"], r"^kind copying has one vocabulary: it needs \[tokens\] shared = true$"),
    ],
)
def test_another_kind_and_a_shape_that_cannot_be_are_named(tokenizers, kind, shape, says):
    with pytest.raises(ValueError, match=says):
        new_translator(*tokenizers, kind, shape)


def test_a_model_that_copies_needs_one_table(tokenizers):
    for shape in ({}, {"share_embeddings": False}):
        with pytest.raises(ValueError, match=r"^kind copying has one table of embeddings: it needs share_emb"):
            new_translator(tokenizers[0], tokenizers[0], "copying", SHAPES["transformer"] | shape)


# the tokens of a text


@every_kind
def test_a_text_is_cut_up_without_the_space_around_it(tokenizers, kind):
    tokenizers = tokenizers_for(kind, tokenizers)
    translator = new_translator(*tokenizers, kind, SHAPES[kind])
    tokens = translator.tokens("the cat")
    assert tokens == tokenizers[0].encode(" the cat")
    [(source, target)] = translator.encode_pairs(iter([Pair("the cat", "die Katze")]))
    assert source == tokens and target == [1, *tokenizers[1].encode(" die Katze"), 2]
    assert tokens == translator.tokens("\n \u2003the cat\t\r\n")
    assert tokens != tokenizers[0].encode("the cat")
    for text in ("", " ", "\t\n", "\u3000\xa0", " " * 10**6):
        assert translator.tokens(text) == []


def symbols(longest):
    """A translator whose texts may have `longest` tokens, of "a", "b", "ab" or "abab"."""
    tokenizer = BPETokenizer([(97, 98), (256, 256)])
    return new_translator(tokenizer, tokenizer, "transformer", SHAPES["transformer"] | {"max_length": longest})


def test_a_text_may_have_as_many_tokens_as_the_model_has_places():
    translator = symbols(4)
    assert translator.longest == 4
    assert translator.tokens("abab" * 3) == [35, 260, 260, 260]
    for text in ("abab" * 4, "abab" * 3 + "a", "a" * 4, "\xe4\xe4"):
        with pytest.raises(ValueError, match=r"^more than the 4 tokens that fit$"):
            translator.tokens(text)
    recurrent = new_translator(translator.source, translator.target, "recurrent", SHAPES["recurrent"])
    assert recurrent.longest == 1024
    assert len(recurrent.tokens("a" * 1023)) == 1024
    with pytest.raises(ValueError, match=r"^more than the 1024 tokens that fit$"):
        recurrent.tokens("a" * 1024)


@pytest.mark.parametrize("text", ["ab" * 500_000, f"a{' ' * 10**6}b", "ä" * 9], ids=["one word", "space", "bytes"])
def test_a_text_far_too_long_is_refused_before_it_is_cut_up(text, monkeypatch):
    translator = symbols(4)
    monkeypatch.setattr(translator.source, "encode", lambda text: [3] if text == " a" else pytest.fail("it was cut up"))
    start = time.process_time()
    for call, given in ((translator.tokens, text), (translator.translate, ["a", text])):
        with pytest.raises(ValueError, match=r"^more than the 4 tokens that fit$"):
            call(given)
    assert time.process_time() - start < 1


# translations


def test_drafts_and_the_taste_for_length_are_those_of_beam_search(recurrent, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "dotformer.translation.beam_search",
        lambda state, *arguments: asked.append(arguments) or beam_search(state, *arguments),
    )
    longest = len(recurrent.tokens("he")) + 50
    for options, expected in (({}, (4, 0.6)), ({"beam": 2, "alpha": 3.0}, (2, 3.0))):
        recurrent.translate(["he"], **options)
        assert asked.pop() == (longest, *expected)
    assert inspect.signature(Translator.translate).parameters["max_tokens"].default == 4096


def test_without_a_word_the_model_is_not_asked(recurrent):
    echo = Echo(recurrent)
    assert recurrent.translate([]) == []
    assert recurrent.translate(["", "  ", "\n"]) == ["", "", ""]
    with pytest.raises(ValueError, match="more than the 1024 tokens"):
        recurrent.translate(["he", "reads" * 999])
    assert not echo.sources


@pytest.mark.parametrize(("beam", "max_tokens"), [(1, 24), (4, 100)])
def test_a_batch_with_its_drafts_has_at_most_so_many_places(recurrent, beam, max_tokens):
    echo, texts = Echo(recurrent), TEXTS * 7
    lengths = [len(recurrent.tokens(text)) for text in texts]
    assert max(lengths) * beam <= max_tokens < 1024 * beam
    assert recurrent.translate(texts, beam, max_tokens=max_tokens) == [text.strip().upper() for text in texts]
    places = [beam * source.numel() for source in echo.sources]
    assert max(places) <= max_tokens
    assert sum(len(source) for source in echo.sources) == sum(length > 0 for length in lengths)
    assert max(len(source) for source in echo.sources) > 1


def test_a_text_may_become_50_tokens_longer_whatever_is_translated_beside_it(tokenizers, recurrent):
    Echo(recurrent, stuck="z")
    texts = ["he", "the old man sings", "xyz", "a bird"]
    lengths = [len(recurrent.tokens(text)) for text in texts]
    assert len(set(lengths)) > 2
    assert recurrent.translate(texts[:1]) == ["z" * (lengths[0] + 50)]
    assert recurrent.translate(texts) == ["z" * (length + 50) for length in lengths]
    bounded = new_translator(*tokenizers, "transformer", SHAPES["transformer"])
    Echo(bounded, stuck="z")
    assert bounded.translate(texts) == ["z" * 32] * 4


@every_kind
def test_a_translation_leaves_chance_and_gradients_as_they_are(tokenizers, kind):
    translator = new_translator(*tokenizers_for(kind, tokenizers), kind, SHAPES[kind] | {"dropout": 0.5})
    expected, before = translated_alone(translator, "the cat"), torch.get_rng_state()
    translator.model.train()
    assert translator.translate(["the cat"]) == [expected]  # nothing is dropped
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None and parameter.requires_grad for parameter in translator.model.parameters())
    echo = Echo(translator)
    translator.model.train()
    assert translator.translate(["the cat", "he"], max_tokens=1) == ["THE CAT", "HE"]
    assert set(echo.modes) == {(False, False)}


# where it looks


@pytest.mark.parametrize("axes", [(), (2, 4)], ids=str)
@pytest.mark.parametrize("alignment", [(), ((0, 0), (0, 3), (1, 2), (3, 1), (3, 2), (3, 4))])
def test_a_hit_is_an_aligned_word_that_looks_most_where_it_belongs(axes, alignment):
    weights = torch.rand((*axes, 6, 5), generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    hits = on_target(weights, iter(alignment))
    rows = sorted({t for t, _ in alignment})
    assert hits.shape == (*axes, len(rows))
    assert hits.dtype == torch.bool
    for place in itertools.product(*map(range, axes)):
        best = [max(range(5), key=weights[place][t].__getitem__) for t in rows]
        assert hits[place].tolist() == [(t, s) in alignment for t, s in zip(rows, best, strict=True)]
    sure = torch.eye(5).expand(2, 5, 5)
    assert on_target(sure, [(1, 1), (3, 3), (3, 2), (4, 0)]).tolist() == [[True, True, False]] * 2


# exact match

SOUNDS = [Pair("a", "AH"), Pair("a", "EY"), Pair("b", "B"), Pair("the", "AH"), Pair("the", "IY"), Pair("tea", "T IY")]


@pytest.mark.parametrize(
    ("hypotheses", "sources"),
    [(["EY", "EY", "B", "EY", "EY", "T IY"], 3), (["IY", "IY", "b", "IY", "IY", "T  IY"], 1)],
    ids=str,
)
def test_each_source_counts_once_and_any_of_its_targets_is_right(hypotheses, sources):
    assert exact_match(hypotheses, SOUNDS) == sources / 4
    order = [5, 3, 0, 4, 2, 1]
    assert exact_match([hypotheses[n] for n in order], [SOUNDS[n] for n in order]) == sources / 4


@pytest.mark.parametrize(("hypotheses", "pairs"), [(0, 0), (5, 6)])
def test_an_exact_match_of_nothing_or_of_other_numbers_is_refused(hypotheses, pairs):
    with pytest.raises(ValueError, match=r"\S"):
        exact_match(["B"] * hypotheses, SOUNDS[:pairs])


# BLEU


MIXED = (
    ["The dog's toy, he said, was 3.5 cm long.", "Yes!", "He walks the very old dog .", "a &quot;cat&quot; sits on it"],
    ["The dog's toy, she said, was 3.5 cm long.", "No!", "he Walks the old dog.", 'The "cat" sits on it'],
)


@pytest.mark.parametrize(
    ("measure", "options", "said"),
    [
        (bleu, [], "|case:mixed|eff:no|tok:13a|"),
        (partial(bleu, lowercase=True), ["-lc"], "|case:lc|eff:no|tok:13a|"),
        (chrf, ["-m", "chrf"], "|nc:6|nw:0|"),
    ],
)
def test_score_and_signature_are_those_of_the_command(tmp_path, measure, options, said):
    names = [tmp_path / "hypotheses", tmp_path / "references"]
    for name, side in zip(names, MIXED, strict=True):
        name.write_text("".join(f"{text}\n" for text in side), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", names[1], "-i", names[0], "-w", "9", *options]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    theirs, (score, signature) = json.loads(printed), measure(*MIXED)
    assert score == pytest.approx(theirs["score"], abs=1e-8)
    assert signature == theirs["signature"]
    assert said in signature


def test_signs_are_cut_off_by_the_metric_without_a_warning(caplog, capfd):
    apart, joined = ["Der Hund sieht die Katze ."] * 200, ["Der Hund sieht die Katze."] * 200
    assert bleu(apart, joined)[0] == pytest.approx(100)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("measure", [bleu, chrf])
@pytest.mark.parametrize(("hypotheses", "references"), [(0, 0), (1, 2)])
def test_texts_that_are_not_equally_many_are_counted(hypotheses, references, measure):
    with pytest.raises(ValueError, match=f"^{hypotheses} hypotheses for {references} references$"):
        measure(["a b c d"] * hypotheses, ["a b c d"] * references)


# all of it


@pytest.fixture(scope="module", params=SHAPES)
def learned(tokenizers, request):
    """A translator of each kind that has learned PAIRS by heart, in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        translator = new_translator(*tokenizers_for(request.param, tokenizers), request.param, SHAPES[request.param])
        source, target = (pad_batch(side, 0) for side in zip(*translator.encode_pairs(PAIRS), strict=True))
        optimizer = torch.optim.Adam(translator.model.parameters(), lr=0.02)
        for _ in range(50):
            logits = translator.model(source, target[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    translator.model.double()
    return translator


def test_pairs_learned_by_heart_are_translated(learned):
    answers = learned.translate(ENGLISH)
    assert answers == GERMAN
    assert exact_match(answers, PAIRS) == 1 and bleu(answers, GERMAN)[0] == pytest.approx(100)


def test_each_text_is_translated_as_if_alone_whatever_the_batches(learned):
    texts = [*TEXTS, *ENGLISH]
    expected = [translated_alone(learned, text) if text.strip() else "" for text in texts]
    assert len(set(expected)) > 6
    assert learned.translate(texts) == expected
    assert learned.translate(texts, max_tokens=1) == expected
    assert learned.translate(tuple(texts[::-1]), max_tokens=60) == expected[::-1]
    for text, answer in zip(texts, expected, strict=True):
        assert learned.translate([text]) == [answer]
