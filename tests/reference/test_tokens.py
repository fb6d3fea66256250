"""The tokenizer against the library `tokenizers` and against the slow way of learning merges; batches by length."""

import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import regex
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from dotformer.tokens import BPETokenizer, learn_merges, merge_pair, pad_batch, pretokenize, token_batches

PATTERN = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SENTENCES = [
    "A Lannister always pays his debts",
    "I like Natural Language Processing, a lot! I like it a lot.",
    "Der Hund beißt den Mann, der Mann beißt den Hund; beide lachen.",
    "Zoë trinkt 3 Tassen 茶 🙂🙂, naïve café, ½ Ⅷ",
    "aaaa aaa aa a  aaaaa\n\n\tbb",
] * 3
texts = st.text(max_size=60) | st.text("aeo stmn<>|end", max_size=60) | st.sampled_from(SENTENCES)


@pytest.fixture(scope="module")
def tokenizer():
    return BPETokenizer.train(SENTENCES, vocab_size=400)


def of_the_library(tokenizer):
    """The library's tokenizer with the same merges and numbers."""
    signs = bytes_to_unicode()
    names = ["".join(signs[byte] for byte in symbol) for symbol in tokenizer.symbols]
    shift = len(tokenizer.special_tokens)
    library = Tokenizer(
        models.BPE(
            vocab={name: n + shift for n, name in enumerate(names)},
            merges=[(names[left], names[right]) for left, right in tokenizer.merges],
        )
    )
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    return library


@given(text=texts)
def test_every_text_comes_back(tokenizer, text):
    text = text.encode(errors="replace").decode()  # half of a surrogate pair is no text
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=True)) == text
    assert "".join(pretokenize(text)) == text


@given(text=texts)
def test_texts_are_cut_as_by_the_library(tokenizer, text):
    text = text.encode(errors="replace").decode()
    assert tokenizer.encode(text) == of_the_library(tokenizer).encode(text).ids


def learned_slowly(texts, count):
    """Merges found by counting all pairs anew at every step."""
    words, merges = [list(word.encode()) for text in texts for word in regex.findall(PATTERN, text)], []
    for made in range(256, 256 + count):
        pairs = Counter(pair for word in words for pair in pairwise(word))
        if not pairs:
            break
        merges.append(min(pairs, key=lambda pair: (-pairs[pair], pair)))
        words = [merge_pair(word, merges[-1], made) for word in words]
    return merges


@given(st.lists(st.text("ab c", max_size=30) | st.sampled_from(SENTENCES), max_size=5), st.integers(0, 40))
def test_merges_are_those_of_the_slow_way(some, count):
    assert learn_merges(some, count) == learned_slowly(some, count)


def test_text_never_becomes_a_special_token(tokenizer):
    for name in tokenizer.special_tokens:
        assert min(tokenizer.encode(f"a {name} b")) >= len(tokenizer.special_tokens)
    begin, *_, end = tokenizer.encode("a", add_special_tokens=True)
    assert (begin, end, tokenizer.pad_id) == (1, 2, 0)
    assert len(tokenizer) == 400 or not learned_slowly(SENTENCES, 400)[len(tokenizer.merges) :]


def test_a_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    for saved in (BPETokenizer(tokenizer.merges, ("<nothing>", "<s>", "</s>", "<ä>")), tokenizer):
        saved.save(path)
        loaded = BPETokenizer.load(path)
        assert (loaded.merges, loaded.special_tokens, len(loaded)) == (saved.merges, saved.special_tokens, len(saved))
    content = json.loads(path.read_text(encoding="utf-8"))
    assert [piece for _, _, piece in content["merges"]][:2] == [
        symbol.decode(errors="backslashreplace") for symbol in tokenizer.symbols[256:258]
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]


@pytest.mark.parametrize(
    "content", ["", "{}", '{"merges": [[1, 2]], "special_tokens": ["a", "b", "c"]}', '{"merges": [[1, 999, "x"]]}']
)
def test_another_file_is_named(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"other\.json is not a saved tokenizer"):
        BPETokenizer.load(path)


def test_what_cannot_be_a_tokenizer_is_named():
    with pytest.raises(ValueError, match="vocab_size 258 has no room for 256 bytes and 3 special tokens"):
        BPETokenizer.train(["a"], 258)
    with pytest.raises(ValueError, match="merge 0 joins 97 and 256"):
        BPETokenizer([(97, 256)])
    with pytest.raises(ValueError, match="merged twice"):
        BPETokenizer([(97, 98), (97, 98)])
    with pytest.raises(ValueError, match="over 10,000 bytes"):
        BPETokenizer([(97, 97), *((n, n) for n in range(256, 290))])
    with pytest.raises(TypeError, match="not one string"):
        BPETokenizer.train("tea tea", 300)
    for special in [("<pad>",), ("a", "a", "b"), (1, 2, 3)]:
        with pytest.raises(ValueError, match="special tokens must be different strings"):
            BPETokenizer([], special)


def test_numbers_that_are_no_tokens_are_named(tokenizer):
    for number in (-1, len(tokenizer)):
        with pytest.raises(ValueError, match=f"token {number} is not one of 0 to {len(tokenizer) - 1}"):
            tokenizer.decode([number])


@given(st.lists(st.integers(1, 50), max_size=80), st.integers(50, 300), st.integers(0, 2**31))
def test_batches_hold_every_sentence_once_and_keep_the_limit(lengths, limit, seed):
    batches = token_batches(lengths, limit, torch.Generator().manual_seed(seed))
    assert sorted(n for batch in batches for n in batch) == list(range(len(lengths)))
    assert all(batch and len(batch) * max(lengths[n] for n in batch) <= limit for batch in batches)
    again = token_batches(lengths, limit, torch.Generator().manual_seed(seed))
    assert batches == again


def test_batches_waste_little_and_change_from_epoch_to_epoch():
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 100, (2000,), generator=generator).tolist()
    first, second = (token_batches(lengths, 1000, generator) for _ in range(2))
    places = sum(len(batch) * max(lengths[n] for n in batch) for batch in first)
    assert sum(lengths) / places > 0.9
    assert sorted(map(sorted, first)) != sorted(map(sorted, second))
    assert [max(lengths[n] for n in batch) for batch in first] != sorted(max(lengths[n] for n in b) for b in first)


def test_sentences_of_one_length_are_sorted_by_what_they_are_paired_with():
    lengths, others = torch.randint(1, 5, (2, 300), generator=torch.Generator().manual_seed(0)).tolist()
    batches = token_batches(lengths, 20, torch.Generator().manual_seed(1), np.array(others))
    assert sorted(n for batch in batches for n in batch) == list(range(300))
    keys = sorted([(lengths[n], others[n]) for n in batch] for batch in batches)
    assert [key for batch in keys for key in batch] == sorted(zip(lengths, others, strict=True))
    assert batches != token_batches(lengths, 20, torch.Generator().manual_seed(2), others)


@pytest.mark.parametrize(("rows", "says"), [([], "no row"), ([[1], []], r"rows \[1\] of 2")])
def test_empty_rows_are_named(rows, says):
    with pytest.raises(ValueError, match=says):
        pad_batch(rows, 0)


def test_numbers_of_any_library_are_taken():
    merges = learn_merges(SENTENCES, 20)
    for same in (np.array(merges), torch.tensor(merges)):
        tokenizer = BPETokenizer(same)
        assert tokenizer.encode(SENTENCES[0]) == BPETokenizer(merges).encode(SENTENCES[0])
        assert tokenizer.decode(torch.tensor(tokenizer.encode("tea"))) == "tea"
    assert token_batches(np.array([3, 4], dtype=np.uint8), 300) in ([[0, 1]], [[1, 0]])
    padded = pad_batch([np.array([1, 2], dtype=np.int32), torch.tensor([3])], pad_id=9)
    assert padded.tolist() == [[1, 2], [3, 9]] and padded.dtype == torch.int64
    with pytest.raises(TypeError, match="interpreted as an integer"):
        pad_batch([[1.5, 2], [3]], 0)
