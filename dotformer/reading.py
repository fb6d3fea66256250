"""Tangled from chapters/17_reading.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

from collections.abc import Sequence
from importlib.metadata import version
from random import Random

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dotformer.attention import scaled_dot_product_attention
from dotformer.data.babi import Story
from dotformer.data.corpora import Corpus, Pair, distinct
from dotformer.decoder import padding_mask
from dotformer.generation import KVCache
from dotformer.support.shapes import shapes
from dotformer.transformer import Transformer, TransformerConfig


def story(rng: Random) -> Story:
    """Four to ten facts about people who walk and take things, and a question.

    "Where is Mary?" takes one fact to answer, "Where is the ball?" two.

    Defined in chapter 17, "An answer is a text".
    """
    people, things = ("Anna", "John", "Mary", "Paul"), ("ball", "book", "cup")
    rooms = ("bathroom", "bedroom", "hall", "kitchen", "office")
    facts, went, took = [], {}, {}  # who went where, who took what, in which fact
    for n in range(rng.randint(4, 10)):
        who, thing = rng.choice(people), rng.choice(things)
        if who in went and thing not in took and rng.random() < 0.5:
            took[thing] = who, n
            facts.append(f"{who} took the {thing}.")
        else:
            elsewhere = [room for room in rooms if room not in went.get(who, ())]
            went[who] = rng.choice(elsewhere), n
            facts.append(f"{who} went to the {went[who][0]}.")
    asked, evidence = rng.choice([*went]), []
    who = asked
    if took and rng.random() < 0.7:
        thing = rng.choice([*took])
        asked, (who, n) = f"the {thing}", took[thing]
        evidence = [n]
    room, n = went[who]
    lines = tuple(len(facts) - n for n in [*evidence, n])  # the newest is line 1
    source = "\n ".join([f"Where is {asked}?", *reversed(facts)])
    return Story(source, room, lines, task=len(lines))


def stories(train: int = 20_000, validation: int = 500, test: int = 500) -> Corpus:
    """Questions about different stories; the task is how many facts one takes.

    Defined in chapter 17, "An answer is a text".
    """
    rng = Random(0)
    wanted = train + validation + test
    return Corpus.split(distinct(lambda: story(rng), wanted), validation, test)


def line_positions(
    source: Int[Tensor, "B S"], newline: int
) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B S"]]:
    """For each token the number of its line and its position there, from 0.

    `newline` is a token too, the first of the line that it opens.

    Defined in chapter 17, "A vector for each fact".
    """
    opens = source == newline
    number = torch.arange(source.shape[1], device=source.device)
    first = (number * opens).cummax(dim=1).values  # of the token's line
    return opens.cumsum(dim=1), number - first


class FactTransformer(Transformer):
    """A transformer whose encoder gets one vector for each line, not each token.

    It is the sum of the line's embeddings, each multiplied by the sinusoid of its
    position in the line, so that their order counts. After Sukhbaatar and others
    (2015), section 4.1, who use different factors.

    Defined in chapter 17, "A vector for each fact".
    """

    newline = 13  # byte 10, behind the three special tokens of a `BPETokenizer`

    @shapes
    def embed(
        self, source: Int[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B L D"], Bool[Tensor, "B 1 1 L"]]:
        """A vector for each of L lines, its position added, and their mask."""
        line, position = line_positions(source, self.newline)
        number = torch.arange(int(line.max()) + 1, device=source.device)
        real = padding_mask(source, self.config.pad_id)[:, 0]
        inside = (line[:, None] == number[:, None]) & real  # (B, L, S)
        e = self.source_embeddings
        sinusoids = e.positions.table[position * real[:, 0]]  # (B, S, D)
        tokens = e.tokens(source) * e.scale * sinusoids
        x = e.positions(inside.to(tokens.dtype) @ tokens)
        return x, inside.any(dim=-1)[:, None, None]

    @shapes
    def encode(
        self, source: Int[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B L D"], Bool[Tensor, "B 1 1 L"]]:
        """The memory and its mask, a row for each line."""
        x, mask = self.embed(source)
        return self.encoder(x, mask), mask


def babi_scores(
    answers: Sequence[str], stories: Sequence[Story]
) -> dict[str, float | int]:
    """The share of right answers to each task, their mean, and how many are passed.

    A task is passed with 0.95, after Weston and others (2015). An answer is right
    if it is the story's, letter by letter. ValueError: not equally many, or none.

    Defined in chapter 17, "A vector for each fact".
    """
    right: dict[int, list[bool]] = {}
    for answer, story in zip(answers, stories, strict=True):
        right.setdefault(story.task, []).append(answer == story.target)
    if not right:
        raise ValueError("there are no answers to score")
    shares = {task: sum(hits) / len(hits) for task, hits in sorted(right.items())}
    scores = {f"task {task}": share for task, share in shares.items()}
    passed = sum(share >= 0.95 for share in shares.values())
    return scores | {"mean": sum(shares.values()) / len(shares), "passed": passed}


class CopyingTransformer(Transformer):
    """A transformer that writes each token from its vocabulary, or copies it.

    p(token) = p_gen softmax(logits) + (1 - p_gen) (weights on the positions of the
    source that hold the token). What it returns as logits is log p. Raises
    ValueError unless both sides share a vocabulary. After See, Liu and Manning
    (2017); the pointer is an attention of its own, where theirs is the decoder's.
    `decode` gives states here, and `mix` log-probabilities.

    Defined in chapter 17, "A text made short".
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        if not config.share_embeddings:
            raise ValueError("copying needs one vocabulary: share_embeddings=True")
        self.vocabulary, self.output = self.output, nn.Identity()  # decode: states
        self.output.weight = self.vocabulary.weight  # `KVCache` asks for its device
        self.pointer = nn.Linear(config.d_model, config.d_model)
        self.gate = nn.Linear(config.d_model, 1)

    @shapes
    def mix(
        self,
        states: Float[Tensor, "B T D"],
        source: Int[Tensor, "B S"],
        memory: Float[Tensor, "B S D"],
        memory_mask: Bool[Tensor, "B 1 1 S"],
    ) -> Float[Tensor, "B T V"]:
        """Log-probabilities, from the decoder's states and what it has read."""
        query, mask = self.pointer(states), memory_mask[:, 0]
        _, weights = scaled_dot_product_attention(query, memory, memory, mask)
        p_gen = self.gate(states).sigmoid()
        p = p_gen * self.vocabulary(states).softmax(dim=-1)
        tokens = source[:, None].expand_as(weights)  # what stands at each position
        p = p.scatter_add(-1, tokens, (1 - p_gen) * weights)
        return p.clamp_min(torch.finfo(p.dtype).tiny).log()

    @shapes
    def forward(
        self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        """Log-probabilities: row t has those of what may follow targets 0 to t."""
        memory, memory_mask = self.encode(source)
        states = self.decode(target, memory, memory_mask)
        return self.mix(states, source, memory, memory_mask)


class CopyingCache(KVCache):
    """Sentences that a `CopyingTransformer` writes; see `KVCache`.

    Defined in chapter 17, "A text made short".
    """

    @torch.no_grad()
    def __init__(
        self, model: CopyingTransformer, source: Int[Tensor, "B S"]
    ) -> None:
        super().__init__(model, source)
        self.read = source, *model.encode(source)

    @torch.no_grad()
    def step(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
        """Read a token of each row: log-probabilities of what may follow."""
        states = super().step(tokens)[:, None]
        read = (part[self.sentences] for part in self.read)
        return self.model.mix(states, *read)[:, 0]


def rouge_scores(
    texts: Sequence[str], pairs: Sequence[Pair]
) -> dict[str, float | str]:
    """ROUGE-1, -2 and -L of texts beside the pairs' targets, and their signature.

    Means of F1, 0 to 100, with stems of words. ValueError: not equally many, or
    none. After Lin (2004), by the library `rouge-score`.

    Defined in chapter 17, "What does it change in real summaries?".
    """
    from rouge_score.rouge_scorer import RougeScorer

    if not pairs:
        raise ValueError("there are no texts to score")
    names = ("rouge1", "rouge2", "rougeL")
    scorer = RougeScorer(names, use_stemmer=True)
    scores = [
        scorer.score(pair.target, text)
        for text, pair in zip(texts, pairs, strict=True)
    ]
    found = {
        name: 100 * sum(one[name].fmeasure for one in scores) / len(scores)
        for name in names
    }
    signature = f"f1|stemmer:porter|version:{version('rouge-score')}"
    return found | {"rouge_signature": signature}
