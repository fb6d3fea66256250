"""Parsing: brackets beside EVALB's own counts, and each of three parsers beside a search that leaves nothing out."""

import math
import re
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from dotformer.command_line.models import new_translator
from dotformer.data.pcfg import PCFG, rules
from dotformer.data.trees import Tree, collapse, expand, read_trees, spans_to_tree, tree_to_spans
from dotformer.encoder import LayerConfig
from dotformer.parsing import (
    SpanParser,
    as_pair,
    best_spans,
    bracket_scores,
    brackets,
    cky,
    craft,
    linearize,
    next_symbols,
    only_trees,
    parse_scores,
    read_tree,
    spans,
    trees,
)
from dotformer.support.decoding import Constrained
from dotformer.tokens import BPETokenizer, pad_batch
from dotformer.training import cross_entropy
from tests.reference.strategies import some_trees

EVALB = Path(__file__).parents[1] / "fixtures" / "evalb"
LABELS = ["S", "NP", "VP"]
few = settings(max_examples=settings.default.max_examples // 2)


# trees as texts


def is_tree(text, words):
    """Whether a text is a tree over so many words: constituents of words alone become words until there is one."""
    constituent = "|".join(f"{label}(?: _)+ {label.lower()}" for label in LABELS)
    shorter = ""
    count = text.split().count("_")
    while shorter != text:
        shorter, text = text, re.sub(rf"\b(?:{constituent})\b", "_", text)
    return count == words and text == "_"


@given(some_trees(12))
def test_a_tree_comes_back_from_its_text(tree):
    assert read_tree(linearize(tree), tree.leaves()) == tree
    assert linearize(tree).count("_") == len(tree.words())


@given(some_trees(8), st.data())
def test_a_text_is_read_if_it_is_a_tree_of_its_words_and_refused_if_not(tree, data):
    tokens = linearize(tree).split()
    for _ in range(data.draw(st.integers(1, 3))):
        place, other = (data.draw(st.integers(0, len(tokens) - 1)) for _ in range(2))
        match data.draw(st.sampled_from(["swap", "swap closing", "delete", "replace"])):
            case "swap":
                tokens[place], tokens[other] = tokens[other], tokens[place]
            case "swap closing":
                closing = [n for n, token in enumerate(tokens) if token.islower()] or [0]
                place, other = (closing[n % len(closing)] for n in (place, other))
                tokens[place], tokens[other] = tokens[other], tokens[place]
            case "delete" if len(tokens) > 1:
                del tokens[place]
            case "replace":
                tokens[place] = data.draw(st.sampled_from(["_", "S", "s", "NP", "np", "VP"]))
    text, words = " ".join(tokens), tree.leaves()
    if is_tree(text, len(words)):
        assert linearize(read_tree(text, words)) == text and read_tree(text, words).leaves() == words
    else:
        with pytest.raises(ValueError, match="open"):
            read_tree(text, words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("S NP _ vp _ s", "'vp' with NP open, 1 words left"),
        ("S NP _ _ s np", "'s' with NP open, 0 words left"),
        ("S NP _ _ np", "ends with S open, 0 words left"),
        ("S NP _ np s", "ends with nothing open, 1 words left"),
        ("S _ _ _ s", "'_' with S open, 0 words left"),
        ("S _ NP np _ s", "'np' with NP open, 1 words left"),
        ("S _ s S _ s", "ends with nothing open, 0 words left"),
        ("S _ _ s s", "'s' with nothing open, 0 words left"),
        ("_ _ nothing", "'nothing' with nothing open, 0 words left"),
        ("S _ _ s x", "'x' with nothing open, 0 words left"),
        ("", "ends with nothing open, 2 words left"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(text, said):
    with pytest.raises(ValueError, match=f"^{said}$"):
        read_tree(text, [Tree("NN", ("a",)), Tree("NN", ("b",))])


# scores


def as_they_stand(line):
    """The trees in a line of EVALB's files; nothing is taken out but function tags, and what is of -NONE- alone."""
    opened = [[]]
    for token in re.findall(r"[()]|[^()\s]+", line):
        if token == "(":
            opened.append([])
        elif token != ")":
            opened[-1].append(token)
        elif len(made := opened.pop()) > 1 and made[0] != "-NONE-":
            label, *inside = made
            opened[-1].append(Tree(re.sub(r"(?<=.)[-=].*", "", label), tuple(inside)))
    return opened[0]


def evalb(name):
    """For each sentence: gold, parse or None, EVALB's status, and its numbers of brackets, matched, gold and parsed.

    The status is 0 for a sentence that it scores. It leaves out those whose words are not the same, and empty ones.
    """
    parts = ((EVALB / f"{name}.{end}").read_text().splitlines() for end in ("gld", "tst", "rsl"))
    for gold, parse, row in zip(*parts, strict=True):
        [gold], parse, (_, _, status, _, _, *counts) = as_they_stand(gold), as_they_stand(parse), row.split()
        yield gold, parse[0] if len(parse) == 1 else None, int(status), tuple(map(int, counts[:3]))


@pytest.mark.parametrize(("name", "scored"), [("sample", 17), ("random", 54)])
def test_brackets_are_those_that_evalb_counts(name, scored):
    """The sample's own parameters differ from Collins': they leave the stop in, and PRT is no ADVP; it has neither."""
    found = [row for row in evalb(name) if row[2] == 0]
    assert len(found) == scored
    for gold, parse, _, counts in found:
        right, given = brackets(gold), brackets(parse) if parse else Counter()
        assert ((right & given).total(), right.total(), given.total()) == counts, f"{gold}\n{parse}"


def test_a_sentence_that_evalb_leaves_out_counts_as_one_without_brackets():
    rows = list(evalb("sample"))
    scored = bracket_scores([(gold, parse) for gold, parse, status, _ in rows if status == 0])
    evalb_says = {"f1": 89.12, "precision": 90.53, "recall": 87.76, "exact": 52.94}
    assert scored == pytest.approx(evalb_says | {"parsed": 100 * 16 / 17}, abs=0.005)
    found = bracket_scores([(gold, parse if status == 0 else None) for gold, parse, status, _ in rows])
    expected = {"precision": 86 / 95, "recall": 86 / (98 + 7 * 4), "f1": 2 * 86 / (95 + 126)}
    expected |= {"exact": 9 / 24, "parsed": 16 / 24}
    assert found == pytest.approx({score: 100 * value for score, value in expected.items()})


def test_brackets_of_known_trees():
    [tree] = read_trees("(TOP (S (`` ``) (NP (NN a)) (PRN (, ,) (: -)) (VP (VB b) (PRT (RP c))) ('' '') (. .)))")
    assert brackets(tree) == {("S", 0, 3): 1, ("NP", 0, 1): 1, ("VP", 1, 3): 1, ("ADVP", 2, 3): 1}
    twice = Tree("NP", (Tree("NP", (Tree("NN", ("a",)),)),))
    assert brackets(twice) == {("NP", 0, 1): 2}


def test_no_pairs_are_refused():
    with pytest.raises(ValueError, match=r"^there are no parses to score$"):
        bracket_scores([])
    with pytest.raises(ValueError, match="more or fewer words"):
        bracket_scores([(Tree("S", (Tree("NN", ("a",)),)), Tree("S", (Tree("NN", ("a",)),) * 2))])


def test_a_sentence_without_brackets_is_not_right_when_there_is_no_parse():
    found = bracket_scores([(Tree("NN", ("a",)), None)])
    assert found == dict.fromkeys(["f1", "precision", "recall", "exact", "parsed"], 0)


def test_a_text_that_is_no_tree_has_no_brackets():
    [gold] = read_trees("(S (NP (NN a)) (VP (VB b) (NP (NN c))))")
    flat, one, right = "S _ _ _ s", "S NP _ np s", linearize(gold)
    assert parse_scores([right, one], [as_pair(gold)] * 2) == pytest.approx(
        {"f1": 200 * 4 / 12, "precision": 100, "recall": 50, "exact": 50, "parsed": 50}
    )
    assert parse_scores([flat], [as_pair(gold)]) == pytest.approx(
        {"f1": 40, "precision": 100, "recall": 25, "exact": 0, "parsed": 100}
    )
    assert parse_scores(["", one], [as_pair(gold)] * 2) == dict.fromkeys(
        ("f1", "precision", "recall", "exact", "parsed"), 0
    )
    with pytest.raises(ValueError, match="zip"):
        parse_scores([flat], [as_pair(gold)] * 2)


# corpora


def test_a_sentence_is_paired_with_its_tree():
    corpus = trees(40, 7, 5)
    pairs = corpus.train + corpus.validation + corpus.test
    assert [len(part) for part in (corpus.train, corpus.validation, corpus.test)] == [40, 7, 5]
    assert len({pair.source for pair in pairs}) == 52 and trees(40, 7, 5) == corpus
    assert trees.__defaults__ == (20_000, 500, 500)
    for source, target, tree in pairs:
        assert (source, target) == (" ".join(tree.words()), linearize(tree))


def test_craft_is_that_of_the_treebank(monkeypatch):
    made = {name: [Tree("S", (Tree("NN", (name,)),) * n) for n in (1, 3)] for name in ("train", "validation", "test")}
    asked = []
    monkeypatch.setattr("dotformer.parsing.craft_trees", lambda longest: asked.append(longest) or made)
    for corpus in (craft(7), craft()):
        for name, some in made.items():
            assert getattr(corpus, name) == list(map(as_pair, some))
    assert asked == [7, 20]


# held to trees

SYMBOLS = ["", "", "", "_", *LABELS, *map(str.lower, LABELS), ""]  # of tokens; the first three are special


class Flat:
    """A `Decoding` in which any token may follow, as likely as any other; keeps the tokens of each row."""

    special_ids = 0, 1, 2

    def __init__(self, rows):
        self.rows = [[] for _ in range(rows)]

    def __len__(self):
        return len(self.rows)

    def step(self, tokens):
        self.rows = [[*row, token] for row, token in zip(self.rows, tokens.tolist(), strict=True)]
        return torch.zeros(len(self.rows), len(SYMBOLS))

    def select(self, rows):
        self.rows = [self.rows[n] for n in rows.tolist()]


def may_end_as_tree(tokens, words):
    """Whether a text can still become a tree: by all other words, and the end of each constituent."""
    opened = []
    for token in tokens:
        opened = opened[:-1] if token.islower() else [*opened, token] if token.isupper() else opened
    rest = ["_"] * (words - tokens.count("_")) + [label.lower() for label in reversed(opened)]
    return tokens[0] != "_" and is_tree(" ".join([*tokens, *rest]), words)


def may_follow(text, words):
    """The tokens with which a text can still become a tree of so many words."""
    return {token for token, symbol in enumerate(SYMBOLS) if symbol and may_end_as_tree([*text, symbol], words)}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_what_may_follow_is_what_can_still_become_a_tree(words, data):
    """Of each row by itself, also when rows are selected and change places."""
    symbols = {n: symbol for n, symbol in enumerate(SYMBOLS) if symbol} | {2: ""}
    state = Constrained(Flat(len(words)), symbols, lambda n, written: next_symbols(written, words[n], LABELS))
    rows, tokens = [(n, []) for n in range(len(words))], [1] * len(words)
    for _ in range(12):
        logits = state.step(torch.tensor(tokens))
        tokens = []
        assert len(state) == len(rows) == len(logits)
        for (n, text), row in zip(rows, logits.tolist(), strict=True):
            ended = is_tree(" ".join(text), words[n])
            following = {2} if ended else may_follow(text, words[n])
            assert {token for token, logit in enumerate(row) if logit > -math.inf} == following, text
            tokens.append(data.draw(st.sampled_from(sorted(following))))
        going = [n for n, token in enumerate(tokens) if token != 2]
        if not going:
            break
        kept = data.draw(st.lists(st.sampled_from(going), min_size=1, max_size=3))
        state.select(torch.tensor(kept))
        rows, tokens = [(rows[n][0], [*rows[n][1], SYMBOLS[tokens[n]]]) for n in kept], [tokens[n] for n in kept]
        assert [[SYMBOLS[token] for token in row[1:]] for row in state.state.rows] == [text[:-1] for _, text in rows]


TREES = """
(S (NP the dog) (VP sees (NP the cat)) .)
(S (NP he) (VP sleeps) .)
(S (NP she) (VP reads (NP an old book) (PP in (NP the park))) .)
(S (NP the cat) (VP thinks (SBAR that (S (NP he) (VP sleeps)))) .)
"""
LEARNED = [as_pair(t) for t in read_trees(re.sub(r"(?<= )([a-z.]+)", r"(\1 \1)", TREES))]
OTHERS = ["he sees she sees .", "the park", "the old cat sleeps in the book .", "that", "book book book"]
SHAPE = {"d_model": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 64}
SHAPE |= {"norm_first": True, "dropout": 0.0, "max_length": 128}


@pytest.fixture(scope="module")
def learned():
    """A translator that has learned the trees of four sentences by heart."""
    sides = ([f" {getattr(parse, side)}" for parse in LEARNED] for side in ("source", "target"))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = new_translator(*(BPETokenizer.train(side, 400) for side in sides), "transformer", SHAPE)
        source, target = (pad_batch(side, 0) for side in zip(*made.encode_pairs(LEARNED), strict=True))
        adam = torch.optim.Adam(made.model.parameters(), lr=0.01)
        for _ in range(120):
            adam.zero_grad()
            cross_entropy(made.model(source, target[:, :-1]), target[:, 1:])[0].backward()
            adam.step()
    return made


def parsed(text, source):
    """Whether a text is a tree of a sentence."""
    try:
        return bool(read_tree(text, [Tree("NN", (word,)) for word in source.split()]))
    except ValueError:
        return False


@pytest.mark.parametrize("beam", [1, 4])
def test_held_to_trees_it_writes_those_of_each_sentence_and_no_other_where_it_did(learned, beam):
    sources = [parse.source for parse in LEARNED] + OTHERS
    labels = {symbol for parse in LEARNED for symbol in parse.target.split() if symbol.isupper()}
    free, held = (one.translate(sources, beam=beam) for one in (learned, only_trees(learned, labels)))
    assert free[:4] == held[:4] == [parse.target for parse in LEARNED]
    assert not any(map(parsed, free[4:], OTHERS)) and all(map(parsed, held[4:], OTHERS))


# the grammar of counts


def derivations(treebank, words):
    """All trees over words that are made of the rules of a treebank, with the logarithm of their probabilities."""
    used = Counter(rule for tree in treebank for rule in rules(collapse(tree)))
    totals = Counter(rule[0] for rule in used.elements())
    logs = {rule: math.log(n / totals[rule[0]]) for rule, n in used.items()}
    roots = Counter(collapse(tree).label for tree in treebank)

    def over(i, j):
        if j == i + 1:
            return [(s, log, [Tree(s, (words[i],))]) for (s, *made_of), log in logs.items() if made_of == [words[i]]]
        found = []
        for split in range(i + 1, j):
            for (a, p, left), (b, q, right) in product(over(i, split), over(split, j)):
                for symbol in {symbol for symbol, *made_of in logs if made_of == [a, b]}:
                    parts = left + right if "|" in symbol else [Tree(symbol, tuple(left + right))]
                    found.append((symbol, p + q + logs[symbol, a, b], parts))
        return found

    whole = [(made, log + math.log(roots[s] / len(treebank))) for s, log, made in over(0, len(words)) if roots[s]]
    return [(expand(tree), log) for [tree], log in whole]


AMBIGUOUS = st.recursive(  # of few labels, in which a sentence has several trees
    st.sampled_from([Tree(label, (word,)) for label in ("S", "NP") for word in "ab"]),
    lambda parts: st.builds(Tree, st.sampled_from(["S", "NP"]), st.tuples(parts, parts)),
    max_leaves=5,
)


@given(st.lists(AMBIGUOUS, min_size=2, max_size=6), st.data())
@few
def test_cky_finds_the_likeliest_of_all_trees(treebank, data):
    assume(any(len(tree.words()) > 1 for tree in treebank))
    seen = sorted({word for tree in treebank for word in tree.words()})
    words = data.draw(st.lists(st.sampled_from(seen), min_size=2, max_size=4))
    found, every = cky(PCFG(treebank, rare=0), words), derivations(treebank, words)
    if not every:
        assert found is None
    else:
        assert found.words() == words
        likeliest = max(log for _, log in every)
        assert max(log for tree, log in every if tree == found) == pytest.approx(likeliest)


def test_cky_finds_the_trees_that_it_was_counted_in():
    grammar = PCFG([parse.tree for parse in LEARNED], rare=0)
    assert [cky(grammar, parse.tree.words()) for parse in LEARNED] == [parse.tree for parse in LEARNED]


def test_of_two_trees_cky_takes_that_of_the_more_frequent_rule():
    verb, noun = "(S (NP she) (VP (V sees) (NP it) (PP there)))", "(S (NP she) (VP (V sees) (NP (NP it) (PP there))))"
    for often, seldom in ((verb, noun), (noun, verb)):
        treebank = list(read_trees(9 * often + seldom))
        assert cky(PCFG(treebank, 0), ["she", "sees", "it", "there"]) == treebank[0]


def test_one_tree_is_taken_before_two_that_are_likelier_together():
    either_way, one_way = "(S (X a) (X (X a) (X a)))", "(S (N a) (Y (N a) (N a)))"
    treebank = list(read_trees(20 * either_way + 3 * one_way))
    probabilities = sorted(round(math.exp(log), 3) for _, log in derivations(treebank, ["a"] * 3))
    assert probabilities == [0.092, 0.092, 0.13]
    assert cky(PCFG(treebank, 0), ["a"] * 3) == treebank[-1]


def test_a_sentence_with_a_word_in_no_role_that_it_can_have_has_no_tree():
    treebank = list(read_trees("(S (NP a) (VP b)) (S (NP c) (VP b))"))
    grammar = PCFG(treebank, 0)
    assert cky(grammar, ["b", "a"]) is None and cky(grammar, ["a", "b"]) == treebank[0]
    assert cky(grammar, ["a", "b", "b"]) is None and cky(grammar, ["a", "new"]) is None
    assert cky(PCFG(read_trees("(S (NP a)) (S (NP a))")), ["a", "a"]) is None


def test_rare_words_are_parsed_by_their_class():
    grammar = PCFG(read_trees("(S (NP she) (VP walking)) (S (NP she) (VP singing)) (S (NP singer) (VP sat))"), rare=1)
    for words in (["she", "talking"], ["singer", "sat"], ["she", "xyz"]):
        assert cky(grammar, words) == Tree("S", (Tree("NP", (words[0],)), Tree("VP", (words[1],))))
    assert cky(grammar, ["talking", "she"]) is None  # of that class is no NP


# the parser of spans


def bracketings(i, j):
    """All ways to cut words i to j in two, again and again: the spans that are made."""
    if j == i + 1:
        return [[(i, j)]]
    return [
        [(i, j), *left, *right]
        for split in range(i + 1, j)
        for left, right in product(bracketings(i, split), bracketings(split, j))
    ]


def test_spans_are_in_the_order_of_their_ends():
    assert spans(3) == [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]
    assert spans(5)[: len(spans(4))] == spans(4)  # so those of a shorter sentence come first


@given(st.integers(1, 5), st.integers(0, 10**6))
def test_the_best_spans_are_those_of_all_bracketings(length, seed):
    scores = np.random.default_rng(seed).normal(size=(length * (length + 1) // 2, 4))
    scores[:, 0] = 0
    before = scores.copy()
    row = dict(zip(spans(length), scores, strict=True))
    without = {span: max(row[span]) for span in row} | {(0, length): max(row[0, length][1:])}  # the whole has a label
    best = max(sum(without[span] for span in made) for made in bracketings(0, length))
    found = best_spans(scores, length)
    assert (0, length) in found and 0 not in found.values()
    assert sum(row[span][label] for span, label in found.items()) == pytest.approx(best)
    spans_to_tree({span: "ABC"[label - 1] for span, label in found.items()}, [Tree("NN", ("a",))] * length)
    assert (scores == before).all()


def span_parser(treebank, size=300, **options):
    """A small parser of spans, with the labels of some trees."""
    tokenizer = BPETokenizer.train((f" {' '.join(tree.words())}" for tree in treebank), size)
    labels = sorted({label for tree in treebank for label in tree_to_spans(tree).values()})
    config = LayerConfig(**({"d_model": 16, "num_heads": 2, "d_ff": 32, "dropout": 0.0} | options))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SpanParser(config, 1, tokenizer, labels).eval()


@given(some_trees(8))
@few
def test_each_label_is_that_of_its_span(tree):
    parser = span_parser([tree])
    source, target = parser.encode(tree)
    assert source == parser.tokenizer.encode(f" {' '.join(tree.words())}", True)
    found = zip(spans(len(tree.words())), (parser.labels[n] for n in target[1:]), strict=True)
    assert {span: label for span, label in found if label} == tree_to_spans(tree)
    assert parser.labels[:2] == ["<pad>", ""] and target[0] == 1


def test_a_label_that_was_not_learnt_is_none():
    first, second = read_trees("(S (NP (NN a)) (NN b)) (S (VP (NN a)) (NN b))")
    assert span_parser([first]).encode(second)[1] == [1, 1, 3, 1]  # S is label 3, after NP


@given(some_trees(8))
@few
def test_what_scores_best_is_parsed(tree):
    parser = span_parser([tree])
    right = torch.tensor(parser.encode(tree)[1][1:])
    parser.forward = lambda source, labels: torch.eye(len(parser.labels))[right][None] - 7
    assert parser.parse(tree.leaves()) == tree


SOURCES = ["an IL-2 unmatched word", "a b", "dogs"]


@pytest.fixture(scope="module")
def untrained():
    """A parser of spans as it starts, to which many words are several tokens."""
    some = [Tree("S", tuple(Tree("NN", (word,)) for word in source.split())) for source in SOURCES[1:]]
    parser = span_parser([*some, *read_trees("(S (NP (NN a)) (VP (NN b)))")], size=262)
    return parser.double()


def test_a_fence_post_is_half_of_the_word_before_and_half_of_that_after(untrained):
    """And a span is the post at its end without that at its start."""
    words = SOURCES[0].split()
    pieces = [untrained.tokenizer.encode(f" {word}") for word in words]
    assert max(map(len, pieces)) > 2
    source = torch.tensor([[1, *(token for piece in pieces for token in piece), 2]])
    seen = []
    handle = untrained.encoder.register_forward_hook(lambda *arguments: seen.append(arguments[-1][0]))
    with torch.no_grad():
        scores = untrained(source, source)[0]
    handle.remove()
    ends = [sum(map(len, pieces[:n])) for n in range(len(words) + 1)]  # the last token of the words before; 0 is <bos>
    posts = [torch.cat([seen[0][end, :8], seen[0][end + 1, 8:]]) for end in ends]
    with torch.no_grad():
        expected = [untrained.scorer(posts[j] - posts[i]) for i, j in spans(len(words))]
    assert_close(scores, torch.stack(expected))


def test_padding_changes_no_score(untrained):
    rows = [untrained.tokenizer.encode(f" {source}", True) for source in SOURCES]
    with torch.no_grad():
        together = untrained(pad_batch(rows, 0), None)
        for source, row, scores in zip(SOURCES, rows, together, strict=True):
            alone = untrained(torch.tensor([row]), None)[0]
            assert len(alone) == len(spans(len(source.split())))
            assert_close(scores[: len(alone)], alone)


def test_a_handful_of_trees_is_learned_and_parsed():
    treebank = [parse.tree for parse in LEARNED]
    parser = span_parser(treebank, d_model=32).train()
    source, target = (pad_batch(side, 0) for side in zip(*map(parser.encode, treebank), strict=True))
    adam = torch.optim.Adam(parser.parameters(), lr=0.01)
    before = [parser.parse(tree.leaves()) for tree in treebank]
    for _ in range(40):
        adam.zero_grad()
        cross_entropy(parser(source, target[:, :-1]), target[:, 1:])[0].backward()
        adam.step()
    parser.eval()
    assert [parser.parse(tree.leaves()) for tree in treebank] == treebank != before
