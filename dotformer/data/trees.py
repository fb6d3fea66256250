"""Trees of sentences: as a type, in the files of treebanks, those of CRAFT, and in the forms that parsers want."""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

CRAFT = "https://raw.githubusercontent.com/UCDenver-ccp/CRAFT/v5.0.2/structural-annotation/treebank/penn/{}"


class Tree(NamedTuple):
    """A constituent: its label, and the constituents or, for a part of speech, the one word that it is made of."""

    label: str
    children: tuple["Tree | str", ...]

    @property
    def is_leaf(self) -> bool:
        """Whether it is a part of speech with its word."""
        return isinstance(self.children[0], str)

    @property
    def is_punctuation(self) -> bool:
        """Whether it is a part of speech that the scores of parsers leave out: a comma, a colon, a quote, a stop."""
        return self.label in {",", ":", "``", "''", "."}

    def leaves(self) -> list["Tree"]:
        """The parts of speech with their words, from left to right."""
        return [self] if self.is_leaf else [leaf for child in self.children for leaf in child.leaves()]

    def words(self) -> list[str]:
        """The words, from left to right."""
        return [leaf.children[0] for leaf in self.leaves()]

    def __str__(self) -> str:
        return f"({self.label} {' '.join(map(str, self.children))})"


class Parse(NamedTuple):
    """A pair to learn from, a sentence and its tree as a text, and the tree."""

    source: str
    target: str
    tree: Tree


def read_trees(text: str) -> Iterator[Tree]:
    """The trees in the text of a treebank file, as `cleaned` leaves them.

    Raises ValueError for brackets that do not close, and for what is no tree.
    """
    open_nodes: list[list] = [[]]
    for token in re.findall(r"[()]|[^ \n\r\t()]+", text):
        if token == "(":
            open_nodes.append([])
        elif token != ")":
            open_nodes[-1].append(token)
        elif len(open_nodes) == 1:
            raise ValueError("a bracket closes that was not opened")
        else:
            node = open_nodes.pop()
            open_nodes[-1].append(node)
    if len(open_nodes) > 1:
        raise ValueError("a bracket does not close")
    for node in open_nodes[0]:
        if not isinstance(node, list):
            raise ValueError(f"no tree: {node}")
        for part in node if node and isinstance(node[0], list) else [node]:  # an outer bracket may have no label
            if tree := cleaned(part):
                yield tree


def cleaned(node: list) -> Tree | None:
    """A tree as parsers learn it: no empty elements, no function tags, no constituent in one of the same label."""
    if len(node) < 2 or not isinstance(node[0], str) or len(set(map(type, node[1:]))) > 1:
        raise ValueError(f"no tree: {node}")
    label, *children = node
    if isinstance(children[0], str):
        word = " ".join(children).replace("-LRB-", "(").replace("-RRB-", ")")
        return None if label == "-NONE-" else Tree(label, (word.replace("\xa0", "_"),))
    kept = tuple(filter(None, map(cleaned, children)))
    label = re.split("[-=]", label)[0]
    if len(kept) == 1 and not kept[0].is_leaf and label == kept[0].label:
        return kept[0]
    return Tree(label, kept) if kept else None


def craft_articles() -> Iterator[tuple[str, str, list[Tree]]]:
    """97 articles of biology, parsed by hand: of each its part (train, validation or test), its name and its trees.

    The split is the published one. Downloaded at first use (13 MB), unless DOTFORMER_DATA names a folder that has the
    files. For errors see `data.download.cached`. Annotations CC BY 3.0. After Verspoor and others (2012).
    """
    from dotformer.data.download import cached

    for line in files("dotformer.data").joinpath("craft.sha256").read_text().splitlines():
        sha256, name, part = line.split()
        path = cached("craft", name, CRAFT.format(name), sha256)
        yield part, path.stem, list(read_trees(path.read_text(encoding="utf-8")))


def craft_trees(longest: int) -> dict[str, list[Tree]]:
    """The trees of at most `longest` words of `craft_articles`, by part."""
    trees: dict[str, list[Tree]] = {"train": [], "validation": [], "test": []}
    for part, _, found in craft_articles():
        trees[part] += (tree for tree in found if len(tree.words()) <= longest)
    return trees


def collapse(tree: Tree) -> Tree:
    """The tree with a chain of only children as one node: (S (VP x)) is (S/VP x)."""
    if tree.is_leaf:
        return tree
    children = tuple(map(collapse, tree.children))
    if len(children) > 1:
        return Tree(tree.label, children)
    return Tree(f"{tree.label}/{children[0].label}", children[0].children)


def expand(tree: Tree) -> Tree:
    """The tree that `collapse` was given."""
    *chain, label = tree.label.split("/")
    expanded = Tree(label, tree.children if tree.is_leaf else tuple(map(expand, tree.children)))
    for label in reversed(chain):
        expanded = Tree(label, (expanded,))
    return expanded


def tree_to_spans(tree: Tree) -> dict[tuple[int, int], str]:
    """The constituents as spans of words (start, end), each with its label; a chain of several is one label, "S/VP"."""
    found = {}

    def visit(node: Tree, start: int) -> int:
        if node.is_leaf:
            end, label = start + 1, node.label.rpartition("/")[0]  # of the chain above the part of speech
        else:
            end, label = start, node.label
            for child in node.children:
                end = visit(child, end)
        if label:
            found[start, end] = label
        return end

    visit(collapse(tree), 0)
    return found


def spans_to_tree(spans: Mapping[tuple[int, int], str], leaves: Sequence[Tree]) -> Tree:
    """The tree of these leaves that has these constituents, as `tree_to_spans` gives them.

    Raises ValueError when two of them cross, or none is all of the sentence.
    """
    if (0, len(leaves)) not in spans:
        raise ValueError("no constituent is all of the sentence")
    parts: list[tuple[int, int, Tree]] = [(n, n + 1, leaf) for n, leaf in enumerate(leaves)]
    for (start, end), label in sorted(spans.items(), key=lambda item: item[0][1] - item[0][0]):
        inside = [part for part in parts if start <= part[0] and part[1] <= end]
        if not inside or (inside[0][0], inside[-1][1]) != (start, end):
            raise ValueError(f"{label} from {start} to {end} crosses another constituent, or has no words")
        if end == start + 1:
            node = inside[0][2]._replace(label=f"{label}/{inside[0][2].label}")
        else:
            node = Tree(label, tuple(part for _, _, part in inside))
        first = parts.index(inside[0])
        parts[first : first + len(inside)] = [(start, end, node)]
    return expand(parts[0][2])


def word_class(word: str) -> str:
    """What a word that is hardly known is known by: its capitals, digits and hyphen, and its last two letters."""
    capital, digit = any(map(str.isupper, word)), any(map(str.isdigit, word))
    kinds = "A" * capital + "0" * digit + "-" * ("-" in word)
    return f"<{kinds} {word[-2:].lower()}>"
