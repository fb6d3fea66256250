"""Reading: a vector for each line beside the sum that it stands for, copying beside a slow loop, and scores by hand."""

import itertools
import math
import re
from collections import Counter
from fractions import Fraction
from functools import cache
from importlib.metadata import version

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dotformer.data.babi import Story
from dotformer.data.corpora import Pair
from dotformer.generation import KVCache, beam_search, greedy
from dotformer.reading import (
    CopyingCache,
    CopyingTransformer,
    FactTransformer,
    babi_scores,
    line_positions,
    rouge_scores,
)
from dotformer.reading import stories as make_stories
from dotformer.tokens import BPETokenizer, pad_batch
from dotformer.training import cross_entropy
from dotformer.transformer import Transformer, TransformerConfig
from tests.reference.strategies import assert_close, drawn_anew

NEWLINE = FactTransformer.newline
SHAPE = {"d_model": 8, "num_heads": 2, "num_encoder_layers": 2, "num_decoder_layers": 1, "d_ff": 16}
SHAPE |= {"max_length": 20, "dropout": 0.3}
ROWS = [[5, 3, 4, NEWLINE, 6, 7, 5, NEWLINE, 4], [7, 6, NEWLINE, 6], [4, 3, 3]]
TARGETS = torch.tensor([[1, 4, 3], [1, 6, 0], [1, 3, 3]])
SIZE = 12  # of the vocabulary from which is copied
SOURCE = torch.tensor([[5, 3, 4, 5, 11], [7, 6, 3, 0, 0], [4, 0, 0, 0, 0]])
TARGET = torch.tensor([[1, 5, 4, 9], [1, 3, 3, 2], [1, 4, 2, 0]])
few = settings(max_examples=settings.default.max_examples // 2)


def facts(seed=0, **options):
    """A small model that reads lines, with random parameters, in float64, in eval mode."""
    config = TransformerConfig(16, 9, **(SHAPE | {"tie_output": False} | options))
    return drawn_anew(FactTransformer(config), seed).eval()


def copying(seed=0, **options):
    """A small model that copies, likewise."""
    config = TransformerConfig(SIZE, SIZE, **(SHAPE | {"share_embeddings": True} | options))
    return drawn_anew(CopyingTransformer(config), seed).eval()


# stories


def answered(source):
    """The answer to a story and the lines that it takes, by keeping track of everybody."""
    question, *facts = source.split("\n ")
    where, has = {}, {}
    for n, fact in reversed(list(enumerate(facts, 1))):
        who, verb, *_, what = fact.rstrip(".").split()
        if verb == "took":
            assert what not in has and who in where  # nobody takes what is taken, or is nowhere
            has[what] = who, n
        else:
            assert where.get(who, ("",))[0] != what  # nobody goes where they are
            where[who] = what, n
    asked = question.rstrip("?").split()[-1]
    took = has[asked][1:] if asked in has else ()
    room, went = where[has[asked][0] if took else asked]
    return room, (*took, went)


def test_a_story_has_the_answer_that_follows_and_the_facts_it_takes():
    corpus = make_stories(300, 100, 100)
    everything = corpus.train + corpus.validation + corpus.test
    assert len({story.source for story in everything}) == 500
    for story in everything:
        assert answered(story.source) == (story.target, story.evidence)
        assert story.task == len(story.evidence)
        assert 4 <= story.source.count("\n") <= 10
    assert {story.task for story in corpus.test} == {1, 2}
    assert {story.source.count("\n") for story in everything} == {*range(4, 11)}
    assert make_stories(300, 100, 100) == corpus


# a vector for each line

lines = st.lists(st.integers(3, 12), min_size=1, max_size=5)
stories = st.lists(lines, min_size=1, max_size=3)


def opened(story):
    """The lines, a newline in front of each but the first."""
    return [[NEWLINE, *line] if n else line for n, line in enumerate(story)]


def joined(story):
    """The tokens of a story."""
    return [token for line in opened(story) for token in line]


@given(stories, st.integers(3, 13))
def test_each_token_has_its_line_and_its_position_there(story, newline):
    source = torch.tensor([joined(story)])
    line, position = line_positions(torch.where(source == NEWLINE, newline, 99), newline)
    assert line[0].tolist() == [n for n, one in enumerate(opened(story)) for _ in one]
    assert position[0].tolist() == [k for one in opened(story) for k, _ in enumerate(one)]


@given(st.lists(stories, min_size=1, max_size=4))
def test_a_line_is_the_sum_of_its_tokens_each_times_the_sinusoid_of_its_position(batch):
    model = facts()
    x, mask = model.embed(pad_batch([joined(story) for story in batch], 0))
    table, embeddings = model.source_embeddings.positions.table, model.source_embeddings.tokens.weight * 8**0.5
    for row, story in enumerate(batch):
        for n, line in enumerate(opened(story)):
            wanted = sum(embeddings[token] * table[place] for place, token in enumerate(line))
            assert_close(x[row, n], wanted + table[n])
        assert mask[row, 0, 0].tolist() == [n < len(story) for n in range(x.shape[1])]


def test_beside_others_a_story_is_read_as_alone():
    model, source = facts(), pad_batch(ROWS, 0)
    together = model(source, TARGETS)
    for n, row in enumerate(ROWS):
        alone = model(torch.tensor([row]), TARGETS[n : n + 1])
        assert_close(together[n], alone[0])
        assert model.encode(torch.tensor([row]))[0].shape == (1, row.count(NEWLINE) + 1, 8)


@pytest.mark.parametrize(
    "other",
    [[3, 5, NEWLINE, 4, 6], [5, 3, NEWLINE, 6, 4], [4, 6, NEWLINE, 5, 3], [5, NEWLINE, 3, 4, 6], [5, 3, 4, 6]],
    ids=["words of the first line", "words of the second", "lines", "where a line ends", "one line"],
)
def test_the_order_of_words_and_of_lines_counts(other):
    model, target = facts(), TARGETS[:1]
    first, second = (model(torch.tensor([row]), target) for row in ([5, 3, NEWLINE, 4, 6], other))
    assert (first - second).abs().max() > 1e-6


def test_a_line_of_one_token_is_the_transformer_of_chapter_9_but_for_the_sinusoid():
    model = facts()
    plain = Transformer(model.config).double().eval()
    plain.load_state_dict(model.state_dict())  # the parameters are the same
    with torch.no_grad():
        model.source_embeddings.positions.table[0] = 1  # the factor of place 0, and what is added to line 0
        plain.source_embeddings.positions.table[0] = 1
    source = torch.tensor([[5], [3], [7]])
    assert_close(model(source, TARGETS), plain(source, TARGETS))


def test_an_empty_story_is_refused_and_an_empty_line_is_a_line():
    model = facts()
    with pytest.raises(ValueError, match=r"empty sentences in rows \[1\]"):
        model.encode(torch.tensor([[5, NEWLINE, 4], [0, 0, 0]]))
    assert model.embed(torch.tensor([[5, NEWLINE, NEWLINE, 4]]))[1].tolist() == [[[[True] * 3]]]
    with pytest.raises(ValueError, match="21 tokens exceed max_length 20"):
        model.encode(torch.tensor([[5, *[NEWLINE] * 20]]))


def test_no_merge_takes_the_newline_and_a_word_is_the_same_token_in_every_line():
    texts = [" Where is Mary?\n Mary went home.\n John went home."] * 9
    tokenizer = BPETokenizer.train(texts, 1000)
    assert tokenizer.encode("\n") == [NEWLINE]
    tokens = tokenizer.encode(texts[0])
    assert tokens.count(NEWLINE) == 2
    assert tokens.count(*tokenizer.encode(" Mary")) == 2
    assert not any(b"\n" in symbol and symbol != b"\n" for symbol in tokenizer.symbols)


def test_each_parameter_learns_and_nothing_from_tokens_that_are_not_there():
    model = facts(dropout=0.1).train()
    model(pad_batch(ROWS, 0), TARGETS).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    unused = set(range(16)) - {token for row in ROWS for token in row}
    assert not model.source_embeddings.tokens.weight.grad[sorted(unused)].any()


def test_what_is_written_of_lines_is_what_teacher_forcing_scores_highest():
    model, source = facts(), pad_batch(ROWS, 0)
    with torch.no_grad():
        logits, state = model(source, TARGETS[:, :2]), KVCache(model, source)
        for t in range(2):
            assert_close(state.step(TARGETS[:, t]), logits[:, t])
    written = greedy(KVCache(model, source), 4)
    assert written == [greedy(KVCache(model, torch.tensor([row])), 4)[0] for row in ROWS]
    assert [best.tokens for best, *_ in beam_search(KVCache(model, source), 4, 1)] == written


# answers


def story(task, target):
    """A story that is nothing but its task and its answer."""
    return Story("Where?", target, (1,), task)


def test_a_task_is_passed_with_95_of_100():
    tasks = {10: 95, 2: 94, 1: 100, 20: 0, 3: 96}
    asked = [story(task, "hall") for task in tasks for _ in range(100)]
    answers = ["hall" if n < right else "Hall" for right in tasks.values() for n in range(100)]
    found = babi_scores(answers, asked)
    expected = {"task 1": 1.0, "task 2": 0.94, "task 3": 0.96, "task 10": 0.95, "task 20": 0.0, "mean": 0.77}
    assert found == pytest.approx(expected | {"passed": 3})
    assert list(found) == [*expected, "passed"]  # by number, not by name
    assert babi_scores(answers[::-1], asked[::-1]) == found


def test_each_task_counts_alike_in_the_mean_and_an_answer_letter_by_letter():
    asked = [story(1, "hall"), story(8, "milk,apple"), story(8, "nothing"), story(8, "milk"), story(8, "e,e")]
    found = babi_scores(["hall", "apple,milk", "nothing", "milk.", "e"], asked)
    assert found == {"task 1": 1.0, "task 8": 0.25, "mean": 0.625, "passed": 1}


@pytest.mark.parametrize(("answers", "asked"), [(1, 2), (2, 1), (0, 1), (1, 0), (0, 0)])
@pytest.mark.parametrize(("score", "one"), [(babi_scores, story(1, "hall")), (rouge_scores, Pair("a b", "hall"))])
def test_texts_that_are_none_or_not_as_many_are_refused(answers, asked, score, one):
    with pytest.raises(ValueError, match=r"^there are no (answers|texts) to score$|^zip\(\)"):
        score(["hall"] * answers, [one] * asked)


# summaries


def common(first, second):
    """The length of the longest sequence that stands in both, with gaps: every way is tried."""

    @cache
    def longest(a, b):
        if not a or not b:
            return 0
        same = longest(a[1:], b[1:]) + 1 if a[0] == b[0] else 0
        return max(same, longest(a[1:], b), longest(a, b[1:]))

    return longest(tuple(first), tuple(second))


def f1(hits, written, wanted):
    """From 0 to 100; 0 where there is nothing."""
    return float(100 * Fraction(2 * hits, written + wanted)) if hits else 0.0


def slowly_scored(text, target):
    """ROUGE of texts of small letters in which no word has an ending."""
    written, wanted = text.split(), target.split()
    found = {"rougeL": f1(common(written, wanted), len(written), len(wanted))}
    for n in (1, 2):
        grams = [Counter(zip(*(words[k:] for k in range(n)), strict=False)) for words in (written, wanted)]
        found[f"rouge{n}"] = f1((grams[0] & grams[1]).total(), grams[0].total(), grams[1].total())
    return found


def test_rouge_by_hand():
    pair = Pair("", "the cat sat on the mat")
    found = rouge_scores(["the mat and the cat on it"], [pair])
    # 7 words for 6, in common: the, the, cat, on, mat; 6 pairs for 5: the cat, the mat; in their order: the, cat, on
    assert found.pop("rouge_signature") == f"f1|stemmer:porter|version:{version('rouge-score')}"
    assert found == pytest.approx({"rouge1": 100 * 10 / 13, "rouge2": 100 * 4 / 11, "rougeL": 100 * 6 / 13})
    assert found == pytest.approx(slowly_scored("the mat and the cat on it", pair.target))


texts = st.lists(st.sampled_from("abcd"), max_size=7).map(" ".join)


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4))
def test_rouge_is_the_mean_of_what_is_counted_slowly(rows):
    found = rouge_scores([text for text, _ in rows], [Pair("x", target) for _, target in rows])
    scores = [slowly_scored(*row) for row in rows]
    for name in ("rouge1", "rouge2", "rougeL"):
        assert found[name] == pytest.approx(sum(score[name] for score in scores) / len(rows))


def test_stems_count_and_capitals_and_signs_do_not():
    same = rouge_scores(["Multiplies, matrices!"], [Pair("", "multiply matrix")])["rouge1"]
    assert same == pytest.approx(50)  # one of two words: the stem of a matrix is not that of matrices
    assert rouge_scores(["Return `the` SUM."], [Pair("", "return the sum")])["rougeL"] == pytest.approx(100)
    assert rouge_scores([""], [Pair("", "return the sum")])["rougeL"] == 0


# the two ways to a token


def held(model, p_gen):
    """The model, its gate held open or shut, or at a share of the vocabulary, for all states."""
    with torch.no_grad():
        model.gate.weight.zero_()
        model.gate.bias.fill_(torch.logit(torch.tensor(p_gen)))
    return model


def never(model, *tokens):
    """The model, whose vocabulary layer gives these tokens nothing; they keep their embeddings."""
    vocabulary = model.vocabulary
    model.vocabulary = torch.nn.Linear(*reversed(vocabulary.weight.shape), dtype=torch.float64)
    with torch.no_grad():
        model.vocabulary.weight.copy_(vocabulary.weight)
        model.vocabulary.bias.zero_()[[*tokens]] = -1e4
    return model


def read(model, source=SOURCE, target=TARGET):
    """The decoder's states, and what it has read: source, memory and mask."""
    memory, mask = model.encode(source)
    return model.decode(target, memory, mask), source, memory, mask


@torch.no_grad()
def slowly(model, source, target):
    """Log-probabilities (V,) of what follows a target, one sum after the other; no batch, no padding."""
    [[*_, state]], _, [memory], _ = read(model, source[None], target[None])
    scores = [float(model.pointer(state) @ vector) / math.sqrt(len(state)) for vector in memory]
    logits = model.vocabulary(state).tolist()
    gate = float(model.gate.weight[0] @ state + model.gate.bias[0])
    p_gen = 1 / (1 + math.exp(-gate))
    p = [p_gen * math.exp(logit) / sum(map(math.exp, logits)) for logit in logits]
    for score, token in zip(scores, source.tolist(), strict=True):
        p[token] += (1 - p_gen) * math.exp(score) / sum(map(math.exp, scores))
    return torch.tensor(p, dtype=torch.float64).log()


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "tie_output": False}], ids=["tied", "norm first"])
def test_each_token_is_written_or_copied_as_a_slow_loop_finds(options):
    model = copying(**options)
    found = model(SOURCE, TARGET)
    for n, (source, target) in enumerate(zip(SOURCE, TARGET, strict=True)):
        for t in range(int((target != 0).sum())):
            assert_close(found[n, t], slowly(model, source[source != 0], target[: t + 1]))


@few
@given(st.integers(0, 99), st.lists(st.lists(st.integers(3, SIZE - 1), min_size=1, max_size=6), min_size=1, max_size=4))
def test_the_probabilities_of_each_position_sum_to_one(seed, rows):
    target = torch.randint(3, SIZE, (len(rows), 5), generator=torch.Generator().manual_seed(seed))
    logs = copying(seed)(pad_batch(rows, 0), target)
    assert_close(logs.exp().sum(dim=-1), torch.ones(len(rows), 5, dtype=torch.float64))
    assert_close(logs, logs.log_softmax(dim=-1))  # so that loss and search may treat them as logits


def test_with_the_gate_open_it_is_the_plain_transformer():
    model = held(copying(), 1.0)
    plain = Transformer(model.config).double().eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    assert_close(model(SOURCE, TARGET), plain(SOURCE, TARGET).log_softmax(dim=-1))


def test_with_the_gate_shut_it_writes_what_is_in_the_source_and_nothing_else():
    p = held(copying(), 0.0)(SOURCE, TARGET).exp()
    for row, source in zip(p, SOURCE, strict=True):
        there = source[source != 0].unique()
        assert (row[:, there] > 0).all()
        assert_close(row[:, there].sum(dim=-1), torch.ones(4, dtype=torch.float64))
    assert_close(p[2, :, 4], torch.ones(4, dtype=torch.float64))  # a source of one token


def test_a_token_that_is_there_twice_gets_the_weights_of_both_places():
    model = held(copying(), 0.0)
    states, source, memory, mask = read(model)
    weights = (model.pointer(states) @ memory.mT / math.sqrt(8)).masked_fill(~mask[:, 0], -math.inf).softmax(dim=-1)
    p = model.mix(states, source, memory, mask).exp()
    assert_close(p[0, :, 5], weights[0, :, 0] + weights[0, :, 3])
    assert_close(p[0, :, 11], weights[0, :, 4])


def test_what_the_vocabulary_cannot_give_comes_from_the_source():
    logs = never(held(copying(), 0.5), 11)(SOURCE, TARGET)
    assert (logs[0, :, 11] > math.log(1e-6)).all()  # it is in the first source
    assert (logs[1:, :, 11] < -700).all()
    assert logs.isfinite().all()


def test_padding_gets_nothing():
    model = held(copying(), 0.5)
    states, source, memory, mask = read(model)
    generated = 0.5 * model.vocabulary(states).softmax(dim=-1)
    assert_close(model.mix(states, source, memory, mask).exp()[..., 0], generated[..., 0])
    for row in (1, 2):
        short = SOURCE[row][SOURCE[row] != 0][None]
        assert_close(model(short, TARGET[row : row + 1]), model(SOURCE, TARGET)[row : row + 1])


def test_two_tables_are_refused():
    with pytest.raises(ValueError, match=r"^copying needs one vocabulary: share_embeddings=True$"):
        CopyingTransformer(TransformerConfig(SIZE, SIZE, **SHAPE))


def test_every_parameter_of_a_model_that_copies_learns_and_impossible_targets_leave_it_finite():
    model = never(copying(dropout=0.0), 8)
    target = torch.tensor([[1, 5, 8, 2], [1, 3, 9, 2], [1, 4, 2, 0]])  # 8 is in no source
    loss, _ = cross_entropy(model(SOURCE, target[:, :-1]), target[:, 1:], label_smoothing=0.1)
    loss.backward()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name


# the cache of what is copied


@pytest.mark.parametrize("options", [{}, {"num_decoder_layers": 3, "norm_first": True}], ids=["1 layer", "3 layers"])
def test_each_step_is_that_of_teacher_forcing(options):
    model = copying(**options)
    target = torch.randint(1, SIZE, (3, 8), generator=torch.Generator().manual_seed(0))
    expected, cache = model(SOURCE, target), CopyingCache(model, SOURCE)
    for place in range(8):
        logs = cache.step(target[:, place])
        assert_close(logs, expected[:, place])
        assert not logs.requires_grad


def test_rows_that_are_selected_keep_their_source():
    model = copying(3)
    cache = CopyingCache(model, SOURCE)
    cache.step(torch.tensor([1, 1, 1]))
    cache.select(torch.tensor([2, 0, 0]))
    cache.step(torch.tensor([4, 5, 6]))
    cache.select(torch.tensor([1, 0]))
    found = cache.step(torch.tensor([7, 8]))
    assert_close(found[0], slowly(model, SOURCE[0], torch.tensor([1, 5, 7])))
    assert_close(found[1], slowly(model, SOURCE[2, :1], torch.tensor([1, 4, 8])))


def test_beam_search_ranks_copies_by_their_score():
    model = never(held(copying(5), 0.2), *range(3, SIZE))  # all but the end must be copied
    best = beam_search(CopyingCache(model, SOURCE), 3, beam=200, alpha=0.0)  # leaves no way out
    for source, hypotheses in zip(SOURCE, best, strict=True):
        source = source[source != 0]
        ways = [[*way] for n in range(3) for way in itertools.product(source.unique().tolist(), repeat=n)]

        def score(way, source=source):
            tokens = [1, *way]
            return sum(
                float(slowly(model, source, torch.tensor(tokens[: n + 1]))[token]) for n, token in enumerate([*way, 2])
            )

        ways.sort(key=score, reverse=True)
        likely = [one for one in hypotheses if one.score > -100]  # the others hold tokens that the source has not
        assert [one.tokens for one in likely] == ways
        assert [one.score for one in likely] == pytest.approx([*map(score, ways)])
    assert greedy(CopyingCache(model, SOURCE[:1]), 3) == greedy(CopyingCache(model, SOURCE), 3)[:1]


def test_a_model_that_copies_in_bfloat16_is_nearly_itself():
    model = copying().float()
    with torch.autocast("cpu", torch.bfloat16):
        rough = model(SOURCE, TARGET)
    assert rough.isfinite().all() and re.search("16", str(rough.dtype))
    torch.testing.assert_close(rough.float().exp(), model(SOURCE, TARGET).exp(), rtol=0, atol=0.05)
