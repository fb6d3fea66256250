"""generation beside teacher forcing, slow loops, brute force, and the filters of the library `transformers`."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from dotformer.generation import Hypothesis, KVAttention, KVCache, beam_search, filter_logits, greedy, sample
from dotformer.transformer import Transformer, TransformerConfig
from tests.reference.strategies import assert_close

PAD, BEGIN, END = SPECIAL_IDS = 0, 1, 2
SOURCE = torch.tensor([[5, 3, 4, 6, 7], [7, 6, 3, 0, 0], [4, 0, 0, 0, 0], [3, 3, 4, 0, 0]])


def small(seed=0, layers=1, size=9, spread=1.0, **options):
    """A small model in eval mode, in float64, whose logits are the further apart the larger `spread` is."""
    torch.manual_seed(seed)
    options = {"max_length": 12, "tie_output": False, "dropout": 0.3} | options
    model = (
        Transformer(TransformerConfig(9, size, layers, layers, d_model=8, num_heads=2, d_ff=16, **options))
        .double()
        .eval()
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=torch.float64)
        model.output.weight *= spread
    return model


def following(model, source, tokens):
    """Logits (V,) of what follows tokens, begin in front, without a cache or a batch."""
    with torch.no_grad():
        return model(source[source != model.config.pad_id][None], torch.tensor([tokens]))[0, -1]


class Table:
    """Sentences written by a table of transitions: row t of `logits` (V, V) scores what follows token t.

    Sentence n has the table n, if there are several (N, V, V).
    """

    def __init__(self, logits, count=1, special_ids=SPECIAL_IDS):
        self.special_ids = special_ids
        self.tables = logits if logits.ndim == 3 else logits.expand(count, -1, -1)
        self.sizes = []

    def __len__(self):
        return len(self.tables)

    def step(self, tokens):
        self.sizes.append(len(tokens))
        assert tokens.dtype == torch.int64
        assert tokens.shape == (len(self),)
        return self.tables[torch.arange(len(self)), tokens]

    def select(self, rows):
        self.tables = self.tables[rows]


def a_table(seed, size=6, count=None, spread=1.5):
    """Random logits of transitions, (V, V) or (N, V, V)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (size, size) if count is None else (count, size, size)
    return torch.randn(shape, generator=generator, dtype=torch.float64) * spread


# the cache


@pytest.mark.parametrize(("layers", "norm_first"), [(1, False), (3, True)])
def test_each_step_is_that_of_teacher_forcing(layers, norm_first):
    model = small(layers, layers, norm_first=norm_first)
    target = torch.randint(1, 9, (4, 8))
    with torch.no_grad():
        expected = model(SOURCE, target)
    cache = KVCache(model, SOURCE)
    assert len(cache) == 4
    for place in range(8):
        assert cache.length == place
        logits = cache.step(target[:, place])
        assert_close(logits, expected[:, place])
        assert not logits.requires_grad


@given(st.lists(st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 99)), max_size=6))
@settings(max_examples=settings.default.max_examples // 3)
def test_sentences_may_be_selected_again_and_again(moves):
    model = small(6, 2)
    cache, tokens, rows = KVCache(model, SOURCE), [[] for _ in SOURCE], list(range(4))
    for choice, seed in moves:
        following = torch.randint(1, 9, (len(rows),), generator=torch.Generator().manual_seed(seed))
        logits = cache.step(following)
        tokens = [[*words, token] for words, token in zip(tokens, following.tolist(), strict=True)]
        with torch.no_grad():
            assert_close(logits, model(SOURCE[rows], torch.tensor(tokens))[:, -1])
        choice = [n % len(rows) for n in choice]
        cache.select(torch.tensor(choice))
        rows, tokens = [rows[n] for n in choice], [tokens[n] for n in choice]


def test_the_source_is_encoded_and_projected_once_and_each_token_once():
    model, calls = small(1, 3), Counter()
    model.encoder.register_forward_hook(lambda *_: calls.update(encoder=1))
    for name, module in model.decoder.named_modules():
        if name.endswith(("w_k", "w_v")):
            module.register_forward_hook(lambda _m, x, _o, name=name: calls.update({name: x[0].shape[-2]}))
    cache = KVCache(model, SOURCE)
    for n in range(6):
        cache.step(torch.randint(3, 9, (len(cache),)))
        cache.select(torch.arange(len(cache)) if n % 2 else torch.tensor([0, 0, 1]))
    assert calls.pop("encoder") == 1
    assert len(calls) == 3 * 2 * 2
    for name, rows in calls.items():  # of vectors, 5 of the memory and 6 of tokens
        assert rows == (5 if "cross_attention" in name else 6), name


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"^the model is in training mode: call model\.eval\(\)$"):
        KVCache(small().train(), SOURCE)


def test_several_new_tokens_need_a_causal_mask():
    """Without one the first would see the second."""
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    attention = small().decoder.layers[0].self_attention
    kept = KVAttention(attention, x[:, :3])
    with pytest.raises(ValueError, match="2 new tokens need a causal mask"):
        kept.extend(x[:, 3:])
    kept.mask = torch.ones(5, 5, dtype=torch.bool).tril()[3:]
    alone = KVAttention(attention, x[:, :3])
    one_by_one = torch.cat([alone.extend(x[:, t : t + 1]) for t in (3, 4)], dim=1)
    assert_close(kept.extend(x[:, 3:]), one_by_one)


def test_more_tokens_than_the_model_has_positions_are_refused():
    cache = KVCache(small(), SOURCE)
    for _ in range(12):
        cache.step(torch.tensor([3, 3, 3, 3]))
    with pytest.raises(ValueError, match=r"^more tokens than max_length 12$"):
        cache.step(torch.tensor([3, 3, 3, 3]))


def test_tokens_go_to_where_the_model_is():
    cache = KVCache(small().to("meta"), SOURCE.to("meta"))  # the others are made on the CPU
    assert cache.step(torch.tensor([1, 1, 1, 1])).is_meta


# one token after the other


def greedy_slowly(score, max_length, special_ids=SPECIAL_IDS):
    """What scores highest, of a function from tokens to logits."""
    pad, begin, end = special_ids
    tokens = [begin]
    while len(tokens) <= max_length:
        scores = score(tokens).tolist()
        best = max((n for n in range(len(scores)) if n not in (pad, begin)), key=scores.__getitem__)
        if best == end:
            break
        tokens.append(best)
    return tokens[1:]


@pytest.mark.parametrize("seed", [0, 3])
def test_greedy_is_what_a_slow_loop_finds_without_a_cache_or_a_batch(seed):
    model = small(seed, 2, norm_first=seed % 2 == 0)
    written = greedy(KVCache(model, SOURCE), 8)
    slow = [greedy_slowly(lambda tokens, s=source: following(model, s, tokens), 8) for source in SOURCE]
    assert written == slow and all(written)
    assert all(type(token) is int for tokens in written for token in tokens)


@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 9))
def test_sentences_do_not_see_each_other_and_keep_to_their_length(seed, count, max_length):
    tables = a_table(seed, count=count)
    slow = [greedy_slowly(lambda tokens, t=table: t[tokens[-1]], max_length) for table in tables]
    assert greedy(Table(tables), max_length) == slow
    assert all(len(tokens) <= max_length for tokens in slow)


def counting(lengths, size=9, special_ids=SPECIAL_IDS):
    """Tables of which sentence n ends after lengths[n] tokens, which go 3, 4, 5 and so on."""
    tables = torch.zeros(len(lengths), size, size)
    for table, length in zip(tables, lengths, strict=True):
        path = [special_ids[1], *range(3, 3 + length), special_ids[2]]
        for token, after in itertools.pairwise(path):
            table[token, after] = 9.0
    return tables


def test_finished_sentences_leave_the_batch():
    lengths = [3, 0, 5, 1, 3]
    state = Table(counting(lengths))
    assert greedy(state, 20) == [list(range(3, 3 + n)) for n in lengths]
    assert state.sizes == [5, 4, 3, 3, 1, 1]
    state = Table(counting(lengths))
    assert greedy(state, 2) == [list(range(3, 3 + min(n, 2))) for n in lengths]
    assert state.sizes == [5, 4]


def test_padding_and_begin_are_never_written_and_end_ends():
    table, special_ids = a_table(0, 6), (4, 2, 0)
    table[:, special_ids[0]] = table[:, special_ids[1]] = 50.0
    written = [
        *greedy(Table(table, 5, special_ids), 7),
        *sample(Table(table, 50, special_ids), 7, generator=torch.Generator().manual_seed(0)),
        *(h.tokens for found in beam_search(Table(table, 2, special_ids), 4, 3) for h in found),
    ]
    found = {token for tokens in written for token in tokens}
    assert found == {0, 1, 2, 3, 4, 5} - set(special_ids)
    assert any(len(tokens) < 4 for tokens in written)
    assert written[:5] == [greedy_slowly(lambda tokens: table[tokens[-1]], 7, special_ids)] * 5


def test_no_sentences_give_nothing():
    assert greedy(Table(a_table(0, count=0)), 5) == []
    assert greedy(KVCache(small(), SOURCE[:0]), 5) == []
    assert beam_search(Table(a_table(0, count=0)), 5) == []


def test_what_a_state_returns_is_left_as_it_is():
    class Same(Table):
        def step(self, tokens):
            return self.logits

    for write in (greedy, sample, beam_search):
        state = Same(a_table(0), 3)
        state.logits = torch.zeros(3, 6)
        write(state, 1)
        assert not state.logits.any()


def test_scores_that_are_no_numbers_are_named():
    table = a_table(0)
    table[3:, 4] = math.nan
    table[BEGIN, 3] = 9.0
    for write in (greedy, sample, beam_search):
        with pytest.raises(FloatingPointError, match=r"^the model's scores are not numbers \(NaN\)$"):
            write(Table(table, 2), 5)


@pytest.mark.parametrize("forbidden", [-math.inf, 0.0])
def test_a_dead_end_is_named(forbidden):
    table = torch.full((6, 6), -math.inf)
    table[BEGIN, 3] = 0.0
    table[3, [PAD, BEGIN]] = forbidden
    for write in (greedy, sample):
        with pytest.raises(ValueError, match=r"^no token may follow: all scores are minus infinity$"):
            write(Table(table, 2), 5)
    table[BEGIN, 4] = table[4, END] = -3.0  # a beam has another way
    (found,) = beam_search(Table(table), 5, 2, 0.0)
    assert [h.tokens for h in found] == [[4]]


def test_half_precision_is_chosen_from_in_float32():
    table = a_table(3, 8, 3).bfloat16()
    assert greedy(Table(table), 6) == greedy(Table(table.float()), 6)
    assert beam_search(Table(table), 6) == beam_search(Table(table.float()), 6)


# sampling


def of_the_library(logits, temperature, top_k, top_p):
    """The library's filters, in its order; those that do nothing are left out, as it does."""
    filters = [TemperatureLogitsWarper(temperature)] if temperature != 1 else []
    filters += [TopKLogitsWarper(top_k)] if top_k else []
    filters += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    for each in filters:
        logits = each(None, logits)
    return logits


@given(
    st.integers(0, 2**31),
    st.tuples(st.integers(1, 4), st.integers(1, 30)),
    st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    st.sampled_from([None, 1, 2, 5, 30, 100]),
    st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0.5, 3.0, 20.0]),
)
def test_filters_are_those_of_the_library(seed, shape, temperature, top_k, top_p, spread):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64) * spread
    before = logits.clone()
    ours = filter_logits(logits, temperature, top_k, top_p)
    assert torch.equal(logits, before)
    theirs = of_the_library(logits, temperature, top_k, top_p)
    assert_close(ours, theirs - theirs.amax(dim=-1, keepdim=True), 1e-11)  # the best has 0
    assert_close(filter_logits(logits[0], temperature, top_k, top_p), ours[0])
    assert (ours > -math.inf).any(dim=-1).all()


def test_what_is_out_already_stays_out():
    logits = torch.tensor([[0.0, -math.inf, 1.0, -math.inf]])
    for options in ({}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.9999}):
        assert (filter_logits(logits, **options) > -math.inf).tolist() == [[True, False, True, False]]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("temperature", 0.0),
        ("temperature", math.nan),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
    ],
)
def test_numbers_that_make_no_sense_are_named(name, number):
    says = "must be positive, top_p above 0 and at most 1, not "
    for call, arguments in ((filter_logits, (torch.zeros(1, 3),)), (sample, (Table(a_table(0)), 3))):
        with pytest.raises(ValueError, match=says):
            call(*arguments, **{name: number})


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6, "top_k": 3, "top_p": 0.9}], ids=str)
def test_sentences_are_as_frequent_as_they_are_probable(options):
    table, count = a_table(1, 6), 4000
    shares = table.clone()
    shares[:, [PAD, BEGIN]] = -math.inf
    shares = of_the_library(shares, **({"temperature": 1.0, "top_k": None, "top_p": 1.0} | options)).softmax(-1)
    expected = Counter()
    for first in range(2, 6):  # all sentences of at most 2 tokens
        if first == END:
            expected[()] += shares[BEGIN, END].item()
            continue
        for second in range(2, 6):
            share = (shares[BEGIN, first] * shares[first, second]).item()
            expected[(first,) if second == END else (first, second)] += share
    generator = torch.Generator().manual_seed(0)
    found = Counter(map(tuple, sample(Table(table, count), 2, **options, generator=generator)))
    possible = [words for words, share in expected.items() if share > 0]
    assert set(found) <= set(possible)
    assert sum(expected.values()) == pytest.approx(1)
    test = stats.chisquare([found[words] for words in possible], [expected[words] * count for words in possible])
    assert test.pvalue > 0.01


def test_samples_are_fixed_by_the_generator_alone():
    model, runs = small(), []
    for seed in (1, 1, 2):
        torch.manual_seed(len(runs))
        state = torch.get_rng_state()
        runs.append(sample(KVCache(model, SOURCE), 8, generator=torch.Generator().manual_seed(seed)))
        assert torch.equal(torch.get_rng_state(), state)
    assert runs[0] == runs[1] != runs[2]
    assert sample(KVCache(model, SOURCE), 8) != sample(KVCache(model, SOURCE), 8)  # the generator that all share


@pytest.mark.parametrize("options", [{"top_k": 1}, {"temperature": 1e-300}, {"top_p": 1e-6}], ids=str)
def test_the_likeliest_alone_is_greedy(options):
    model = small()
    assert sample(KVCache(model, SOURCE), 8, **options) == greedy(KVCache(model, SOURCE), 8)


# beam search


def every_sentence(score, max_length, alpha, size=6):
    """All that can be finished, and its score, the best first; by hand, from a function from tokens to logits."""
    found, live = [], [((), 0.0)]
    for length in range(max_length):
        longer = []
        for tokens, total in live:
            logs = score([BEGIN, *tokens]).log_softmax(-1).tolist()
            found.append((list(tokens), (total + logs[END]) / ((5 + length + 1) / 6) ** alpha))
            longer += [((*tokens, token), total + logs[token]) for token in range(3, size)]
        live = longer
    return sorted(found, key=lambda pair: -pair[1])


@pytest.mark.parametrize(("size", "max_length", "alpha"), [(6, 4, 0.6), (7, 3, 1.0), (6, 1, 0.0)])
def test_a_wide_beam_finds_what_brute_force_finds(size, max_length, alpha):
    model = small(size=size, spread=2.0)
    wide = (size - 2) ** max_length  # nothing is left out
    found = beam_search(KVCache(model, SOURCE), max_length, wide, alpha)
    for source, hypotheses in zip(SOURCE, found, strict=True):
        expected = every_sentence(lambda tokens, s=source: following(model, s, tokens), max_length, alpha, size)
        assert len(hypotheses) == len(expected)
        assert [h.score for h in hypotheses] == pytest.approx([score for _, score in expected], rel=1e-9)
        assert [h.tokens for h in hypotheses] == [tokens for tokens, _ in expected]


def beam_slowly(score, max_length, beam, alpha, size):
    """Beam search of one sentence, in words: from a function from tokens to logits, without a batch."""
    live, finished = [([], 0.0)], []
    for length in range(1, max_length + 1):
        candidates = []
        for tokens, total in live:
            logs = score([BEGIN, *tokens]).log_softmax(-1).tolist()
            candidates += [(total + logs[token], tokens, token) for token in range(2, size)]
        candidates.sort(key=lambda candidate: -candidate[0])
        penalty = ((5 + length) / 6) ** alpha
        finished += [(tokens, total / penalty) for total, tokens, token in candidates[:beam] if token == END]
        live = [([*tokens, token], total) for total, tokens, token in candidates if token != END][:beam]
        bound = live[0][1] / ((5 + max_length) / 6) ** alpha  # what the best may become, if all that follows is sure
        if len(finished) >= beam and bound <= max(score for _, score in finished):
            break
    finished = finished or [(tokens, total / penalty) for tokens, total in live]
    return sorted(finished, key=lambda pair: -pair[1])[:beam]


@given(
    st.integers(0, 2**31),
    st.integers(1, 4),
    st.integers(4, 7),
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    st.floats(-3, 3),
)
def test_beam_search_is_what_a_slow_one_finds(seed, count, size, max_length, beam, alpha, ending):
    tables = a_table(seed, size, count)
    tables[:, :, END] += ending  # sentences are long, or short
    found = beam_search(Table(tables), max_length, beam, alpha)
    for table, hypotheses in zip(tables, found, strict=True):
        expected = beam_slowly(lambda tokens, t=table: t[tokens[-1]], max_length, beam, alpha, size)
        assert [h.tokens for h in hypotheses] == [tokens for tokens, _ in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for _, score in expected], rel=1e-12)
        assert all(isinstance(h, Hypothesis) for h in hypotheses)


def test_what_is_impossible_is_no_hypothesis():
    table = torch.full((6, 6), -math.inf, dtype=torch.float64)
    table[BEGIN, 3] = table[3, 4] = table[4, END] = table[5, 5] = 0.0
    table[3, 5] = -1.0
    for beam in (1, 2, 10):
        (found,) = beam_search(Table(table), 5, beam, 0.0)
        assert found == [([3, 4], pytest.approx(-math.log(1 + math.exp(-1))))]
    (found,) = beam_search(Table(table), 2, 10, 0.0)  # nothing can end so soon
    assert [h.tokens for h in found] == [[3, 4], [3, 5]]


def test_a_beam_has_no_more_rows_than_it_is_wide():
    state = Table(a_table(0, 8, 2))
    state.tables[:, :, END] = -9.0
    beam_search(state, 5, 3)
    assert state.sizes == [2, 6, 6, 6, 6]


def test_a_sentence_goes_on_while_one_of_its_beginnings_may_become_better():
    table = torch.full((6, 6), -math.inf, dtype=torch.float64)
    table[BEGIN, [END, 3]] = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    table[3, 4] = table[4, 5] = table[5, END] = 0.0
    for alpha, steps in ((1.0, 4), (0.0, 1)):  # without a penalty, none becomes better
        state = Table(table)
        beam_search(state, 9, 1, alpha)
        assert len(state.sizes) == steps


def test_numbers_that_make_no_search_are_named():
    for write in (greedy, sample):
        with pytest.raises(ValueError, match=r"^max_length must be positive, not 0$"):
            write(Table(a_table(0)), 0)
    for numbers, says in (
        ((0, 4, 0.6), "max_length must be positive, not 0"),
        ((5, 0, 0.6), "beam must be positive, not 0"),
        ((5, 4, -0.1), r"alpha must not be negative, and is -0\.1"),
    ):
        with pytest.raises(ValueError, match=f"^{says}$"):
            beam_search(Table(a_table(0)), *numbers)
