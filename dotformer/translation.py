"""Tangled from chapters/14_translation.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import torch
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor, nn

from dotformer.data.corpora import Pair
from dotformer.generation import beam_search
from dotformer.support.decoding import Decoding
from dotformer.support.texts import fitting_tokens
from dotformer.tokens import BPETokenizer


def corpus_score(
    metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]
) -> tuple[float, str]:
    """A score from 0 to 100, and the signature that says how it was counted.

    Texts are as people write them: sacreBLEU cuts them itself. Raises ValueError
    when there are not equally many. After Post (2018).

    Defined in chapter 14, "How good is a translation?".
    """
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(
            f"{len(hypotheses)} hypotheses for {len(references)} references"
        )
    one_set = [list(references)]  # there may be several sets of references
    score = metric.corpus_score(list(hypotheses), one_set).score
    return score, str(metric.get_signature())


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False
) -> tuple[float, str]:
    """BLEU and its signature: `corpus_score`. After Papineni and others (2002).

    Defined in chapter 14, "How good is a translation?".
    """
    metric = BLEU(lowercase=lowercase, force=True)  # it would warn of " ."
    return corpus_score(metric, hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """chrF with beta 2, and its signature: `corpus_score`. After Popović (2016).

    Defined in chapter 14, "Letters instead of words".
    """
    return corpus_score(CHRF(), hypotheses, references)


def exact_match(hypotheses: Sequence[str], pairs: Sequence[Pair]) -> float:
    """The share of sources whose hypothesis equals one of their targets.

    A source with several targets is several pairs, with a hypothesis each, and
    counts once. Raises ValueError when there are none, or not equally many.

    Defined in chapter 14, "Right or wrong".
    """
    if not pairs:
        raise ValueError("no pairs to compare with")
    targets = defaultdict(set)
    for pair in pairs:
        targets[pair.source].add(pair.target)
    answers = {
        pair.source: text for pair, text in zip(pairs, hypotheses, strict=True)
    }
    return sum(text in targets[source] for source, text in answers.items()) / len(
        answers
    )


class Translator:
    """A model and its two tokenizers: text in, text out.

    The model writes with `state(model, tokens)`, whose tokens (B, S) are what it
    is to translate; a text may have `longest` tokens.

    Defined in chapter 14, "One translator for every model".
    """

    def __init__(
        self,
        source: BPETokenizer,
        target: BPETokenizer,
        model: nn.Module,
        state: Callable[[nn.Module, Tensor], Decoding],
        longest: int = 1024,
    ) -> None:
        self.source, self.target = source, target
        self.model, self.state, self.longest = model, state, longest

    def encode_pairs(
        self, pairs: Iterable[Pair]
    ) -> list[tuple[list[int], list[int]]]:
        """Source tokens, and target tokens between special ones, of each pair."""
        return [
            (
                self.source.encode(f" {p.source}"),
                self.target.encode(f" {p.target}", True),
            )
            for p in pairs
        ]

    def tokens(self, text: str) -> list[int]:
        """Source tokens of a text, none if it is nothing but space.

        Raises ValueError when they are too many.
        """
        return fitting_tokens(self.source, text, self.longest)

    @torch.no_grad()
    def translate(
        self,
        texts: Sequence[str],
        beam: int = 4,
        alpha: float = 0.6,
        max_tokens: int = 4096,
    ) -> list[str]:
        """The best hypothesis for each text, at most 50 tokens longer than it.

        A batch has at most `max_tokens` source tokens, counted once for each
        hypothesis, or one text. A text of nothing but space gives "". Raises
        ValueError for one that is too long.
        """
        rows = [self.tokens(text) for text in texts]
        results = [""] * len(texts)
        alike = defaultdict(list)  # numbers of texts by length: nothing is padded
        for n, row in enumerate(rows):
            alike[len(row)].append(n)
        device = next(self.model.parameters()).device
        self.model.eval()
        for size in sorted(alike.keys() - {0}):
            fit = max(1, max_tokens // (max(beam, 1) * size))
            for start in range(0, len(alike[size]), fit):
                chosen = alike[size][start : start + fit]
                source = torch.tensor([rows[n] for n in chosen], device=device)
                length = min(size + 50, self.longest)
                state = self.state(self.model, source)
                found = beam_search(state, length, beam, alpha)
                for n, hypotheses in zip(chosen, found, strict=True):
                    results[n] = self.target.decode(hypotheses[0].tokens).strip()
        return results
