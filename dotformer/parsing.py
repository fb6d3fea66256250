"""Tangled from chapters/16_parsing.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from random import Random

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from dotformer.data.corpora import Corpus, distinct
from dotformer.data.grammar import Sampler
from dotformer.data.pcfg import PCFG
from dotformer.data.trees import (
    Parse,
    Tree,
    craft_trees,
    expand,
    spans_to_tree,
    tree_to_spans,
)
from dotformer.decoder import padding_mask
from dotformer.encoder import Embeddings, Encoder, LayerConfig
from dotformer.support.decoding import Constrained
from dotformer.tokens import BPETokenizer
from dotformer.translation import Translator


def linearize(tree: Tree) -> str:
    """A tree as a text: labels open, the same in small letters close, _ is a word.

    Labels must be in capitals. After Vinyals and others (2015).

    Defined in chapter 16, "A tree is a text".
    """
    if tree.is_leaf:
        return "_"
    inside = " ".join(map(linearize, tree.children))
    return f"{tree.label} {inside} {tree.label.lower()}"


def read_tree(text: str, leaves: Sequence[Tree]) -> Tree:
    """The tree that `linearize` has written; its words are the leaves, in order.

    Raises ValueError for a text that is no tree of these leaves.

    Defined in chapter 16, "A tree is a text".
    """
    words, nodes = list(reversed(leaves)), [("nothing", [])]
    for token in text.split():
        label, children = nodes[-1]
        if token == "_" and words:
            children.append(words.pop())
        elif token.isupper():
            nodes.append((token, []))
        elif token == label.lower() and children and len(nodes) > 1:
            nodes.pop()
            nodes[-1][1].append(Tree(label, tuple(children)))
        else:
            raise ValueError(
                f"{token!r} with {label} open, {len(words)} words left"
            )
    if words or len(nodes) > 1 or len(nodes[0][1]) != 1:
        opened = ", ".join(label for label, _ in nodes[1:]) or "nothing"
        raise ValueError(f"ends with {opened} open, {len(words)} words left")
    return nodes[0][1][0]


def brackets(tree: Tree) -> Counter[tuple[str, int, int]]:
    """The constituents (label, start, end) of a tree that EVALB compares.

    Ends count words, without those whose part of speech is punctuation. A part of
    speech is no constituent, nor is TOP, nor what holds nothing but punctuation;
    PRT is ADVP. After Sekine and Collins (1997), with the parameters of Collins.

    Defined in chapter 16, "How good is a parse?".
    """
    found = Counter()

    def visit(node: Tree, start: int) -> int:
        if node.is_leaf:
            return start + (not node.is_punctuation)
        end = start
        for child in node.children:
            end = visit(child, end)
        if start < end and node.label != "TOP":
            found["ADVP" if node.label == "PRT" else node.label, start, end] += 1
        return end

    visit(tree, 0)
    return found


def bracket_scores(pairs: Iterable[tuple[Tree, Tree | None]]) -> dict[str, float]:
    """Labelled precision, recall and F1 of parses against gold trees, 0 to 100.

    Pairs are (gold, parse), with None where there is no parse: it has no brackets.
    Brackets of all sentences are added up first. "exact" is the share of sentences
    whose brackets are all right, "parsed" of those with a parse. Raises ValueError
    when there is no pair, or a parse has more or fewer words than its sentence.

    Defined in chapter 16, "How good is a parse?".
    """
    hits = wanted = found = exact = parsed = count = 0
    for gold, parse in pairs:
        if parse and len(parse.leaves()) != len(gold.leaves()):
            raise ValueError(f"a parse of more or fewer words than {gold.words()}")
        right, given = brackets(gold), brackets(parse) if parse else Counter()
        hits += (right & given).total()
        wanted, found = wanted + right.total(), found + given.total()
        exact += parse is not None and right == given
        parsed, count = parsed + (parse is not None), count + 1
    if not count:
        raise ValueError("there are no parses to score")
    scores = {
        "f1": 2 * hits / max(wanted + found, 1),
        "precision": hits / max(found, 1),
        "recall": hits / max(wanted, 1),
        "exact": exact / count,
    }
    return {n: 100 * x for n, x in (scores | {"parsed": parsed / count}).items()}


def as_pair(tree: Tree) -> Parse:
    """A pair to learn from: the words of a tree, and the tree as a text.

    Defined in chapter 16, "The translator, unchanged".
    """
    return Parse(" ".join(tree.words()), linearize(tree), tree)


def trees(train: int = 20_000, validation: int = 500, test: int = 500) -> Corpus:
    """Sentences of the grammar and their trees. For errors see `data.grammar`.

    Defined in chapter 16, "The translator, unchanged".
    """
    sampler = Sampler(Random(0))
    pairs = distinct(lambda: as_pair(sampler.tree()), train + validation + test)
    return Corpus.split(pairs, validation, test)


def craft(longest: int = 20) -> Corpus:
    """Sentences of biology of at most `longest` words. See `data.craft_trees`.

    Defined in chapter 16, "The translator, unchanged".
    """
    parts = craft_trees(longest)
    return Corpus(*(list(map(as_pair, part)) for part in parts.values()))


def parse_scores(texts: Sequence[str], parses: Sequence[Parse]) -> dict[str, float]:
    """`bracket_scores` of texts that a model wrote; one that is no tree has none.

    Defined in chapter 16, "The translator, unchanged".
    """

    def read(text: str, gold: Tree) -> Tree | None:
        try:
            return read_tree(text, gold.leaves())
        except ValueError:
            return None

    pairs = zip(texts, parses, strict=True)
    return bracket_scores((one.tree, read(text, one.tree)) for text, one in pairs)


def next_symbols(
    written: Sequence[str], words: int, labels: Iterable[str]
) -> set[str]:
    """What may follow `written`, if it is to become a tree of that many words.

    A label to open, one to close, "_" for a word, or "" for the end.

    Defined in chapter 16, "Hold it to trees".
    """
    opened, empty = [], True  # empty: the last one opened has nothing in it yet
    for symbol in written:
        words -= symbol == "_"
        empty = symbol.isupper()
        if empty:
            opened.append(symbol)
        elif symbol != "_":
            opened.pop()
    if written and not opened:
        return {""}
    possible = set(labels) if words else set()
    if words and opened:
        possible.add("_")
    if not empty and (len(opened) > 1 or not words):
        possible.add(opened[-1].lower())
    return possible


def only_trees(translator: Translator, labels: Iterable[str]) -> Translator:
    """The translator, held to trees of the words of its source, with these labels.

    Defined in chapter 16, "Hold it to trees".
    """
    source, target = translator.source, translator.target
    begins = torch.tensor([text.startswith(b" ") for text in source.vocabulary])
    symbols = dict(enumerate(target.vocabulary))
    symbols = {
        n: s[1:].decode() for n, s in symbols.items() if s[1:] and s[:1] == b" "
    }
    labels = set(labels) & set(symbols.values())

    def state(model: nn.Module, tokens: Tensor) -> Constrained:
        words = begins.to(tokens.device)[tokens].sum(dim=1).tolist()
        return Constrained(
            translator.state(model, tokens),
            symbols | {target.eos_id: ""},
            lambda n, written: next_symbols(written, words[n], labels),
        )

    held = copy(translator)
    held.state = state
    return held


def spans(length: int) -> list[tuple[int, int]]:
    """All spans (start, end) of a sentence, in the order of their ends.

    Defined in chapter 16, "Count instead: a grammar".
    """
    return [(i, j) for j in range(1, length + 1) for i in range(j)]


def fill_chart(grammar: PCFG, words: Sequence[str]) -> tuple[np.ndarray, dict]:
    """The log-probability of the best constituent of each symbol over each span.

    Also, for each longer span, the best score of each rule and its cut. After
    Cocke, Kasami (1965) and Younger (1967).

    Defined in chapter 16, "Count instead: a grammar".
    """
    length, (parents, left, right) = len(words), grammar.rules
    best = np.full((length + 1, length + 1, len(grammar.symbols)), -np.inf)
    for i, word in enumerate(words):
        best[i, i + 1] = grammar.word_scores(word)
    ways = {}
    for i, j in sorted(spans(length), key=lambda span: span[1] - span[0]):
        if j > i + 1:
            # the left and the right part added up: (cuts, rules)
            halves = best[i, i + 1 : j][:, left] + best[i + 1 : j, j][:, right]
            scores = halves.max(axis=0) + grammar.log_p
            np.maximum.at(best[i, j], parents, scores)
            ways[i, j] = scores, i + 1 + halves.argmax(axis=0)
    return best, ways


def cky(grammar: PCFG, words: Sequence[str]) -> Tree | None:
    """The likeliest tree of a sentence; None if there is none. See `fill_chart`.

    Defined in chapter 16, "Count instead: a grammar".
    """
    length, (parents, left, right) = len(words), grammar.rules
    best, ways = fill_chart(grammar, words)

    def build(i: int, j: int, symbol: int) -> list[Tree]:
        label, inside = grammar.symbols[symbol], [words[i]]
        if j > i + 1:
            scores, splits = ways[i, j]
            rule = np.where(parents == symbol, scores, -np.inf).argmax()
            split = splits[rule]
            inside = build(i, split, left[rule]) + build(split, j, right[rule])
        return inside if "|" in label else [Tree(label, tuple(inside))]

    roots = best[0, length] + grammar.roots
    if roots.max() == -np.inf:
        return None
    return expand(build(0, length, roots.argmax())[0])


def span_vectors(
    x: Float[Tensor, "B S D"], first: Bool[Tensor, "B S"]
) -> Float[Tensor, "B N D"]:
    """A vector for each of `spans`: the fencepost at its end minus the first.

    `first` says which tokens begin a word, or end the sentence. N is that of the
    longest sentence; a shorter one has its own in front. After Kitaev and Klein
    (2018).

    Defined in chapter 16, "Another head on an encoder".
    """
    firsts = [row.nonzero().flatten() for row in first]
    after = pad_sequence(firsts, batch_first=True, padding_value=1)
    rows, half = torch.arange(len(x), device=x.device)[:, None], x.shape[-1] // 2
    # `after` is the token behind each post; the one before it ends the word there
    posts = torch.cat([x[rows, after - 1, :half], x[rows, after, half:]], dim=-1)
    start, end = torch.tensor(spans(after.shape[1] - 1), device=x.device).T
    return posts[:, end] - posts[:, start]


class SpanParser(nn.Module):
    """Scores labels for each span of a sentence: encoder, fenceposts, feed-forward.

    Label 0 is padding, label 1 no constituent. After Kitaev and Klein (2018), but
    each span is classified by itself.

    Defined in chapter 16, "Another head on an encoder".
    """

    def __init__(
        self,
        config: LayerConfig,
        num_layers: int,
        tokenizer: BPETokenizer,
        labels: Sequence[str],
    ) -> None:
        super().__init__()
        self.tokenizer, self.labels = tokenizer, ["<pad>", "", *labels]
        width = config.d_model
        self.embeddings = Embeddings(len(tokenizer), width, dropout=config.dropout)
        self.encoder = Encoder(config, num_layers)
        self.scorer = nn.Sequential(
            nn.Linear(width, 2 * width),
            nn.LayerNorm(2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, len(self.labels)),
        )
        first = [symbol.startswith(b" ") for symbol in tokenizer.vocabulary]
        first[tokenizer.eos_id] = True  # a word begins here, or the end
        self.register_buffer("first", torch.tensor(first), persistent=False)

    def encode(self, tree: Tree) -> tuple[list[int], list[int]]:
        """Its words as tokens, and the labels of `spans`.

        In front stands one to skip: the trainer scores targets from the second on.
        """
        source = self.tokenizer.encode(f" {' '.join(tree.words())}", True)
        known, found = self.labels[2:], tree_to_spans(tree)
        wanted = (found.get(span) for span in spans(len(tree.words())))
        labels = (2 + known.index(x) if x in known else 1 for x in wanted)
        return source, [1, *labels]

    def forward(self, source: Tensor, labels: Tensor) -> Tensor:
        """Label scores (B, N, L) for `span_vectors` of tokens (B, S)."""
        x = self.encoder(self.embeddings(source), padding_mask(source, 0))
        return self.scorer(span_vectors(x, self.first[source]))

    @torch.no_grad()
    def parse(self, leaves: Sequence[Tree]) -> Tree:
        """The tree of these leaves whose spans score best."""
        text = "".join(f" {leaf.children[0]}" for leaf in leaves)
        source = torch.tensor([self.tokenizer.encode(text, True)])
        source = source.to(self.first.device)
        scores = self(source, source)[0, :, 1:]
        found = best_spans((scores - scores[:, :1]).cpu().numpy(), len(leaves))
        named = {span: self.labels[1 + n] for span, n in found.items()}
        return spans_to_tree(named, leaves)


def best_spans(scores: np.ndarray, length: int) -> dict[tuple[int, int], int]:
    """The spans, with their labels, of the tree whose scores have the largest sum.

    Scores are (N, L) for `spans`; label 0 is no constituent, and scores 0. The
    whole sentence is a constituent in any case.

    Defined in chapter 16, "Another head on an encoder".
    """
    row = dict(zip(spans(length), scores.copy(), strict=True))
    row[0, length][0] = -np.inf
    best, split = {}, {}
    for i, j in sorted(row, key=lambda span: span[1] - span[0]):
        best[i, j] = row[i, j].max()
        if j > i + 1:
            cuts = [best[i, k] + best[k, j] for k in range(i + 1, j)]
            split[i, j] = i + 1 + int(np.argmax(cuts))
            best[i, j] += max(cuts)
    labels, to_visit = {}, [(0, length)]
    for i, j in to_visit:
        if label := int(row[i, j].argmax()):
            labels[i, j] = label
        if j > i + 1:
            to_visit += [(i, split[i, j]), (split[i, j], j)]
    return labels
