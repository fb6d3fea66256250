"""Probabilistic context-free grammars, counted in treebanks."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from dotformer.data.trees import Tree, collapse, word_class


def rules(tree: Tree) -> Iterator[tuple[str, ...]]:
    """The rules in a collapsed tree: (parent, left, right), and (symbol, word).

    Of more than two children, all but the first are in a symbol of their own, which says what they follow: NP -> DT JJ
    NN is NP -> DT NP|DT and NP|DT -> JJ NN.
    """
    if tree.is_leaf:
        yield tree.label, tree.children[0]
        return
    parent, children = tree.label, tree.children
    for n, child in enumerate(children[:-1], 2):
        rest = f"{tree.label}|{child.label}" if n < len(children) else children[-1].label
        yield parent, child.label, rest
        parent = rest
    for child in children:
        yield from rules(child)


def labels(tree: Tree) -> set[str]:
    """All labels and parts of speech in a tree."""
    return {tree.label}.union(*(labels(child) for child in tree.children if not tree.is_leaf))


class PCFG:
    """A probabilistic context-free grammar: the rules of trees, and how frequent each is for its symbol.

    `symbols` are labels of constituents and parts of speech; all else has their numbers. `rules` (3, R) are parents,
    left and right parts, and `log_p` (R,) the logarithms of their probabilities. `words` has for a word, or what it is
    known by, the log-probability that each symbol is it, `roots` that each symbol is a whole sentence; both are
    (symbols,). A word that was seen at most `rare` times is known by its class alone. Raises ValueError when there are
    no trees, or a label has a / or | in it.
    """

    def __init__(self, trees: Iterable[Tree], rare: int = 5) -> None:
        trees = list(trees)
        if not trees:
            raise ValueError("there are no trees to count rules in")
        if marked := {label for tree in trees for label in labels(tree) if "/" in label or "|" in label}:
            raise ValueError(f"labels may not have / or | in them: {', '.join(sorted(marked))}")
        trees = [collapse(tree) for tree in trees]
        seen = Counter(word for tree in trees for word in tree.words())
        self.known = {word for word, times in seen.items() if times > rare}
        pairs, words, totals = Counter(), Counter(), Counter()
        for symbol, *parts in (rule for tree in trees for rule in rules(tree)):
            totals[symbol] += 1
            if len(parts) == 2:
                pairs[symbol, *parts] += 1
            else:
                words.update((symbol, name) for name in self.names(*parts))
        number = {symbol: n for n, symbol in enumerate(totals)}
        self.symbols = list(totals)
        self.rules = np.array([[number[s] for s in rule] for rule in pairs], dtype=int).reshape(-1, 3).T
        self.log_p = np.log([n / totals[rule[0]] for rule, n in pairs.items()])
        nothing = np.full(len(number), -np.inf)
        self.words, self.roots = defaultdict(nothing.copy), nothing.copy()
        for (symbol, word), n in words.items():
            self.words[word][number[symbol]] = math.log(n / totals[symbol])
        for label, n in Counter(tree.label for tree in trees).items():
            self.roots[number[label]] = math.log(n / len(trees))

    def names(self, word: str) -> list[str]:
        """As what a word may be known: itself, or its class, or a rare word."""
        return [word] if word in self.known else [word_class(word), "<rare>"]

    def word_scores(self, word: str) -> np.ndarray:
        """Of each symbol (symbols,), the log-probability that it is this word."""
        return next((self.words[name] for name in self.names(word) if name in self.words), self.roots - np.inf)
