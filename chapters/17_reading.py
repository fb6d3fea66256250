# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 17. Can it answer questions about a text?
#
# *Mary took the ball. Mary went to the kitchen. Where is the ball?* The answer follows from neither sentence alone. A
# story and its answer are texts, so a translator can be trained to turn one into the other. But does it answer from
# what it has read, and how would you know? In this chapter you find out by experiment how your transformer joins two
# facts. Later you give it a **pointer**, with which it copies words that it never saw in training. You compare each
# model with **baselines**, rules that need no model, and more than once a model with a good score turns out no better
# than a rule.
#
# You need chapters [13](13_alignment.ipynb), [14](14_translation.ipynb) and [15](15_pretrained.ipynb). It takes about
# 29 minutes to read, and 35 more for the exercises. [Going further](#going-further), at the end, takes 3 more.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer, complete. This chapter asks it questions."}}
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
from classroom import checks, plots, quiz, transformer_map
from classroom.diagram import Diagram
from classroom.measured import measured, trained

plots.book_style()
transformer_map(built=17)

# %% [markdown]
# ## An answer is a text
#
# Begin with a world so small that everything about it is known. Four people walk between five rooms and take three
# things. Whoever takes a thing keeps it. A story is a question and then four to ten such facts, a line for each, the
# newest first, since what happened last matters most.

# %% tags=["export", "hide-input"] module="reading"
from random import Random

from dotformer.data.babi import Story
from dotformer.data.corpora import Corpus, distinct


def story(rng: Random) -> Story:
    """Four to ten facts about people who walk and take things, and a question.

    "Where is Mary?" takes one fact to answer, "Where is the ball?" two.
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
    """Questions about different stories; the task is how many facts one takes."""
    rng = Random(0)
    wanted = train + validation + test
    return Corpus.split(distinct(lambda: story(rng), wanted), validation, test)


# %% tags=["nbval-check-output"]
corpus = stories()
example = corpus.test[50]
for n, line in enumerate(example.source.split("\n")):
    print(f"{n}  {line.strip()}")
print("answer:", example.target, "  evidence: lines", *example.evidence)

# %% [markdown]
# Why lines 4 and 1, and in this order? Line 4 says that Paul has the book, and line 1 that he has gone to the bedroom
# since. The answer takes two **supporting facts**, and the second can only be chosen when the first is known. Such a
# chain is called **multi-hop** reasoning, here of two hops. A question about a person takes one hop.
#
# For attention, two hops are a difficulty. A query made from the question alone can ask for the book, but not for Paul,
# because only line 4 links the two.
#
# ## A vector for each fact
#
# The transformer of chapter 9 can take such a story as one sequence of tokens. But *bedroom* belongs to *Paul* only
# because both are in one line. So the model must gather words into facts before it can join two, and that is hard to
# learn, as you will see.
#
# So gather them for the model: give the encoder **one vector for each fact**, not for each token, as the **end-to-end
# memory network** did (Sukhbaatar and others 2015). The simplest such vector is the sum of the embeddings of the fact's
# words, a **bag of words**. But in a sum the order is lost: *Mary follows John* and *John follows Mary* would get the
# same vector.
#
# So multiply each embedding first, entry by entry, by the sinusoids of the word's position in its sentence ([chapter
# 5](05_position.ipynb)). In this example each word's embedding has two numbers, given in brackets. The sinusoids of
# positions 0, 1 and 2 are $(0, 1)$, $(0.841, 0.540)$ and $(0.909, -0.416)$. *Mary* has position 0 in the left column
# and 2 in the right one:
#
# | | *Mary follows John* | *John follows Mary* |
# |---|---|---|
# | Mary $(2, 1)$ | $(2 \cdot 0,\ 1 \cdot 1)$ | $(2 \cdot 0.909,\ 1 \cdot (-0.416))$ |
# | follows $(1, 1)$ | $(0.841,\ 0.540)$ | $(0.841,\ 0.540)$ |
# | John $(0, 3)$ | $(0 \cdot 0.909,\ 3 \cdot (-0.416))$ | $(0 \cdot 0,\ 3 \cdot 1)$ |
# | sum | $(0.84,\ 0.29)$ | $(2.66,\ 3.12)$ |
#
# The two sums differ, so order counts now. Why multiply, when chapter 5 *adds* the sinusoids? Because here the words
# are summed, and with addition the two sums would be equal again: $\sum_i (e_i + p_i) = \sum_i e_i + \sum_i p_i$.
# Neither sum on the right depends on the order.

# %% tags=["proof"]
from dotformer.by_hand.positions import sinusoidal_positions

word = {"Mary": [2, 1], "follows": [1, 1], "John": [0, 3]}
positions = sinusoidal_positions(3, 2)
both = [
    np.array([word[w] for w in text.split()])
    for text in ("Mary follows John", "John follows Mary")
]
one, other = ((vectors * positions).sum(axis=0) for vectors in both)
assert np.allclose(one, [0.841, 0.292], atol=0.001)
assert np.allclose(other, [2.660, 3.124], atol=0.001)
assert np.allclose(*((vectors + positions).sum(axis=0) for vectors in both))

# %% [markdown]
# The encoder gets a batch of stories, each a row of tokens. For each token you need the number of its line, and its
# position there. The newline is a token, too, at position 0 of the line that it opens:

# %% tags=["export"] module="reading"
import torch
from jaxtyping import Int
from torch import Tensor


def line_positions(
    source: Int[Tensor, "B S"], newline: int
) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B S"]]:
    """For each token the number of its line and its position there, from 0.

    `newline` is a token too, the first of the line that it opens.
    """
    opens = source == newline
    number = torch.arange(source.shape[1], device=source.device)
    first = (number * opens).cummax(dim=1).values  # of the token's line
    return opens.cumsum(dim=1), number - first


# %% tags=["nbval-check-output"]
line, position = line_positions(
    torch.tensor([[7, 5, 13, 4, 9, 8, 13, 6]]), newline=13
)
print("line    ", *line[0].tolist())
print("position", *position[0].tolist())

# %% [markdown]
# Then the vector of line $l$ is
#
# $$x_l = p_l + \sum_{i \text{ in line } l} \sqrt{D} \, e_i \odot p_{\text{pos}(i)}$$
#
# Here $e_i$ (D) is the embedding of token $i$, and $\odot$ is the product entry by entry. The sinusoids $p$ (D) are
# used twice: $p_{\text{pos}(i)}$ is for the token's position in its line, and $p_l$ for the line's position in the
# story. $p_l$ can be added, since lines are not summed afterwards. $\sqrt{D}$ is the usual scale of the embeddings
# ([chapter 5](05_position.ipynb#why-multiply-the-embedding-by-the-root-of-the-width)), which the example above leaves
# out. In code a matrix, `inside`, sums each line: its row for a line has a 1 for each token of that line, and 0
# elsewhere.

# %% tags=["plot"] mystnb={"image": {"alt": "Three lines of tokens, Where is Mary, Mary took the ball, Mary went to the hall. The tokens of each line are added up into one vector, so the encoder gets three vectors, which attend to one another. The decoder reads them and writes hall."}}
drawing = Diagram(7.6, 2.5)
lines = ["Where is Mary ?", "Mary took the ball .", "Mary went to the hall ."]
for n, text in enumerate(lines):
    y = 1.95 - 0.62 * n
    for k, token in enumerate(text.split()):
        drawing.box(
            0.36 + 0.6 * k,
            y,
            token,
            width=0.56,
            height=0.34,
            color=plots.GREY,
            size=9,
        )
    drawing.arrow((0.7 + 0.6 * k, y), (4.0, y))
    drawing.sum(4.1, y)
    drawing.arrow((4.2, y), (4.7, y))
    drawing.arrow((5.8, y), (6.25, 1.33 + 0.25 * (1 - n)))
drawing.text(4.1, 2.35, "one vector a line", size=9)
drawing.box(5.25, 1.33, "encoder", width=1.1, height=1.7)
drawing.box(6.75, 1.33, "decoder", width=1.0, height=0.8, color=plots.RED)
drawing.arrow((6.75, 1.73), (6.75, 2.15))
drawing.text(6.75, 2.3, "hall", size=11)
plt.show()

# %% tags=["export"] module="reading"
from dotformer.decoder import padding_mask
from dotformer.support.shapes import shapes
from dotformer.transformer import Transformer
from jaxtyping import Bool, Float


class FactTransformer(Transformer):
    """A transformer whose encoder gets one vector for each line, not each token.

    It is the sum of the line's embeddings, each multiplied by the sinusoid of its
    position in the line, so that their order counts. After Sukhbaatar and others
    (2015), section 4.1, who use different factors.
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


# %% [markdown]
# Nothing else changes, so the usual command trains it, in about a minute on one core:
#
# ```bash
# python -m dotformer train configs/stories.toml
# python -m dotformer evaluate runs/stories
# ```
#
# The model has two encoder layers, one decoder layer and width 64, and comes trained with the book. How many of the 500
# held-out stories does it answer correctly? In the output, *task 1* means the questions of one hop, *task 2* those of
# two:

# %% tags=["export", "hide-input"] module="reading"
from collections.abc import Sequence


def babi_scores(
    answers: Sequence[str], stories: Sequence[Story]
) -> dict[str, float | int]:
    """The share of right answers to each task, their mean, and how many are passed.

    A task is passed with 0.95, after Weston and others (2015). An answer is right
    if it is the story's, letter by letter. ValueError: not equally many, or none.
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


# %% the trained model on 500 stories tags=["hide-input"]
import json

from dotformer.generation import KVCache
from dotformer.tokens import BPETokenizer
from dotformer.transformer import TransformerConfig
from dotformer.translation import Translator
from safetensors.torch import load_model

folder = trained("stories")
tokenizer = BPETokenizer.load(folder / "source.json")
shape = json.loads((folder / "config.json").read_text())["model"]
shape.pop("kind")
config = TransformerConfig(len(tokenizer), len(tokenizer), **shape)
model = FactTransformer(config).eval()
load_model(model, folder / "model.safetensors")
translator = Translator(tokenizer, tokenizer, model, KVCache)

answers = translator.translate([one.source for one in corpus.test], beam=1)
scores = babi_scores(answers, corpus.test)
print(
    "right: " + ", ".join(f"{scores[n]:.0%} of {n}" for n in ("task 1", "task 2"))
)

# %% [markdown]
# All of them. Now one of your own, the newest fact first. Each fact begins with a space, because in the tokens of
# chapter 10 the space belongs to the word that follows it.

# %%
mine = """Where is the cup?
 Mary went to the hall.
 Paul took the ball.
 John took the cup.
 Paul went to the hall.
 John went to the office."""
print(translator.translate([mine], beam=1))

# %% tags=["proof"]
assert answers == [one.target for one in corpus.test]
assert translator.translate([mine], beam=1) == ["office"]

# %% [markdown]
# Does the model need one vector for each fact? Two other kinds of model get one for each token. *tokens* is a plain
# `Transformer`. *placed tokens* gets the same products $e_i \odot p_{\text{pos}(i)}$ and the lines' positions as a
# `FactTransformer`, but does not add the products up. The output has the lowest and the highest score of several models
# of each kind (`python -m benchmarks.stories`), and last a rule: answer with the room that the story names most often
# (of equals, the newest).


# %% scores of all models, and of a rule tags=["hide-input"]
def commonest(one):
    """The room that is named most often."""
    facts = [fact for fact in one.source.split("\n ")[1:] if " went " in fact]
    named = [fact.strip(".").split()[-1] for fact in facts]
    return max(named, key=named.count)


print("                one hop    two hops")
judged = [run for run in measured("stories")["runs"] if run["part"] == "judge"]
for kind, model in {
    "tokens": "transformer",
    "placed tokens": "placed tokens",
}.items():
    some = [run for run in judged if run["model"] == model]
    shares = [[run["scores"][f"task {n}"] for run in some] for n in (1, 2)]
    ranges = (f"{min(share):.0%} to {max(share):.0%}" for share in shares)
    print(f"{kind:15}", *ranges, f"({len(some)} models)")
plain, plain_one = (
    np.mean(
        [commonest(one) == one.target for one in corpus.test if one.task == task]
    )
    for task in (2, 1)
)
print(f"the room named most often: {plain_one:.0%}, {plain:.0%}")
assert round(plain_one, 2) == 0.46 and round(plain, 2) == 0.47

# %% [markdown]
# Even with one hop both kinds stay near one half, about what the rule gets. One of the *tokens* models stays there even
# with four times as many steps of training. With two layers and this much training, gathering words into facts made the
# difference. Deeper models were not tried.

# %% tags=["quiz"]
quiz.number(
    "A story has a question and eight facts of six tokens each, with the newline; the question has five tokens. How many vectors does the encoder of a `FactTransformer` get?",
    9,
    tolerance=0.4,
    feedback="Yes, one for each line. Attention compares 9 · 9 pairs of lines, where a vector for each token would make 53 · 53 pairs.",
    mistakes=[
        (
            53,
            "That is the number of tokens, 5 + 8 · 6. They are added up, line by line.",
        ),
        (8, "The question is a line, too."),
    ],
    otherwise="Count the lines, not the tokens.",
)

# %% [markdown]
# ## How does it join two facts?
#
# *Where is the book?* Somewhere in the model, the question must be joined with *Paul took the book*, and this fact with
# *Paul went to the bedroom*. Two routes come to mind:
#
# - The question reads *Paul took the book* in layer 1, learns of Paul, and looks for Paul in layer 2.
# - The facts do the reading: *Paul took the book* reads the question, and then *Paul went to the bedroom* reads *Paul
#   took the book*.
#
# **Predict first**: which of them does the model take?
#
# Attention maps suggest an answer, and do not prove it ([chapter 15](15_pretrained.ipynb)). So run an experiment, the
# **activation patching** of [chapter 13](13_alignment.ipynb), now line by line:
#
# 1. Take two stories that differ in one word, and so in their answer. The second is called the **donor**.
# 2. Run the encoder on both, and stop after some layer.
# 3. Copy the vectors of *some lines* from the donor into the first story.
# 4. Let the first story go on, and see which answer comes out.
#
# If the donor's answer comes out, then after that layer the copied vectors alone are enough to change the answer.
#
# Here are a story and a donor that asks for another thing. Call the person who has the thing asked for its *owner*. The
# kind of a line is printed behind it: *took* is the line in which the owner takes the thing, and *went* is the one that
# says where the owner went last, be it before or after taking the thing.


# %% answers from patched states tags=["hide-input"]
@torch.no_grad()
def answers_from(translator, x, mask, layers_done):
    """What a model answers to states x (B, L, D) after some encoder layers."""
    model = translator.model
    for layer in model.encoder.layers[layers_done:]:
        x = layer(x, mask)
    memory = model.encoder.norm(x)
    begin = torch.full((len(x), 1), translator.target.bos_id)
    mask = mask.expand(len(x), -1, -1, -1)
    best = model.decode(begin, memory, mask)[:, 0].argmax(dim=-1)
    return [translator.target.decode([token]).strip() for token in best.tolist()]


# %% which lines matter, and a donor tags=["hide-input"]
def supporting(lines):
    """The lines of who took the thing asked for, and of where that person went."""
    thing = lines[0].strip("?").split()[-1]
    [took] = [
        n for n, line in enumerate(lines) if line.endswith(f"took the {thing}.")
    ]
    owner = lines[took].split()[0]
    went = next(
        n for n, line in enumerate(lines) if line.startswith(f" {owner} went")
    )
    return took, went


def donor(lines, change, rng):
    """The story with a word exchanged for another of its words, if there is one."""
    took, went = supporting(lines)
    n, word, others = {
        "thing": (0, -1, [line for line in lines if " took " in line]),
        "owner": (took, 0, [line for line in lines[took:] if " went " in line]),
        "room": (went, -1, [line for line in lines if " went " in line]),
    }[change]
    old, *names = (line.strip(".?").split()[word] for line in [lines[n], *others])
    names = sorted({*names} - {old})
    new = lines[n].replace(old, rng.choice(names)) if names else lines[n]
    return [*lines[:n], new, *lines[n + 1 :]]


tests = [one.source.split("\n") for one in corpus.test if one.task == 2]
pairs = [(lines, donor(lines, "thing", Random(0))) for lines in tests]
pairs = [two for two in pairs if supporting(two[0])[1] != supporting(two[1])[1]]
story, other = min(pairs, key=lambda two: len(two[0]))
roles = [
    {0: "question"} | dict(zip(supporting(lines), ("took", "went"), strict=True))
    for lines in (story, other)
]
print(f"{'the story':38}its donor")
for n, texts in enumerate(zip(story, other, strict=True)):
    for text, role in zip(texts, roles, strict=True):
        print(f"{text.strip():28}{role.get(n, ''):10}", end="")
    print()


# %% [markdown]
# Both stories hold the same facts, but in the story John is the owner, so *took* and *went* are his lines. In the donor
# they are Mary's. So two lines are *took*, and we copy both from the donor: John's must stop being the line asked for,
# and Mary's must become it. The same goes for *went*.
#
# There are three sorts of donor, with a map for each in the figure:
#
# - another *thing*: the question asks for another thing;
# - another *owner*: someone else took it;
# - another *room*: the owner went to another room.
#
# A row of a map is the kind of line copied: the question, *took*, *went*, or all others. A column is the number of
# layers before the copy. A cell is the share of stories that then get the model's answer to the donor. Stories that get
# it without a copy are left out.


# %% copy lines after each layer tags=["hide-input"]
@torch.no_grad()
def brought(translator, texts, groups):
    """Whether a donor's lines bring its answer, a row for 0, 1, ... layers.

    `texts` are a story and its donor, and `groups` says which lines are copied in
    each column. None if both have the same answer.
    """
    rows, layers = [], translator.model.encoder.layers
    tokens = torch.tensor([translator.tokens(text) for text in texts])
    x, mask = translator.model.embed(tokens)
    ours, donors = answers_from(translator, x, mask, 0)
    if ours == donors:
        return None
    for done in range(len(layers) + 1):
        mixed = x[:1].repeat(len(groups), 1, 1)
        for row, lines in enumerate(map(list, groups)):
            mixed[row, lines] = x[1, lines]
        answers = answers_from(translator, mixed, mask[:1], done)
        rows.append([answer == donors for answer in answers])
        x = layers[done](x, mask) if done < len(layers) else x
    return rows


# %% all donors, and how often they win tags=["hide-input"]
CHANGES = ("thing", "owner", "room")
COPIED = ("question", "took", "went", "all others")


def patched(translator, change, all_but=False):
    """How many donors have another answer, and how often copies bring it.

    A row for 0, 1, ... layers, a column for each of COPIED; no rows for no donors.
    With `all_but`, all lines are copied except those.
    """
    rng, hits = Random(0), []
    for lines in (one.source.split("\n") for one in corpus.test if one.task == 2):
        other = donor(lines, change, rng)
        took, went = zip(supporting(lines), supporting(other), strict=True)
        every = {*range(len(lines))}
        groups = [{0}, {*took}, {*went}, every - {0, *took, *went}]
        groups = [every - group for group in groups] if all_but else groups
        texts = ["\n".join(story) for story in (lines, other)]
        if rows := brought(translator, texts, groups):
            hits.append(rows)
    return len(hits), np.mean(hits, axis=0).round(2).tolist() if hits else []


# %% tags=["plot"] mystnb={"image": {"alt": "Three maps of the share of stories that get the donor's answer, with the copied lines as rows, question, took, went and all others, and 0, 1 and 2 layers as columns. Another thing: 1.00 for the question after 0 layers, 0.99 for took after 1, 0.99 for went after 2. Another owner: 1.00 for took after 0 and 1, 0.99 for went after 2. Another room: 1.00 for went in all three. All other cells are 0.00 or 0.01."}}
found = {change: patched(translator, change) for change in CHANGES}
figure, panels = plt.subplots(1, 3, figsize=(7.0, 3.5))
for axes, (change, (count, shares)) in zip(panels, found.items(), strict=True):
    rows = COPIED if axes is panels[0] else [""] * len(COPIED)
    title = f"another {change}\n({count} stories)"
    plots.attention_map(np.transpose(shares), rows, "012", title=title, ax=axes)
    axes.set(xlabel="layers done", ylabel="")
panels[0].set_ylabel("lines copied")
figure.tight_layout()
plt.show()

# %% tags=["proof"]
assert 35 < len(translator.tokens(example.source)) < 45
staircase = {
    "thing": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]],
    "owner": [[0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]],
    "room": [[0, 0, 1, 0]] * 3,
}
for name, step in staircase.items():
    assert np.allclose(found[name][1], step, atol=0.05)
    _, without = patched(translator, name, all_but=True)
    assert np.abs(without + np.array(step) - 1).max() < 0.045

# %% [markdown]
# After each layer, which lines' vectors tell which thing is asked for? Read the first map from left to right. Column 0
# is no news: only the question was changed, so copying it makes the story the donor. After layer 1 the two *took* lines
# together bring the donor's answer, and the question no longer does. After layer 2 the *went* lines bring it.
#
# The other maps agree. A change of owner is in the *took* line up to layer 1, and moves to the *went* line in layer 2.
# A change of room stays in the *went* line.
#
# So each time one kind of line is enough. This kind is also needed: copy every line *except* this kind, and the donor's
# answer comes in at most 4 percent of the stories. The experiment finds where the difference between a story and
# *these* donors is kept, and not how the weights compute it.
#
# So it is the second route. On the first, the question would have learned of the owner in layer 1, and copying the
# question then would still bring the donor's answer. Attention carries information *to* the position that attends, and
# here the facts attend. *Paul went to the bedroom* can ask for Paul, so the question need not.

# %% tags=["plot"] mystnb={"image": {"alt": "Four lines of a story as rows, and columns for the embeddings, layer 1, layer 2 and the answer. What is asked goes from the question to Paul took the book in layer 1, from there to Paul went to the bedroom in layer 2, and from there to the answer, bedroom."}}
drawing = Diagram(7.6, 2.5)
columns = {
    "embeddings": 3.2,
    "after layer 1": 4.6,
    "after layer 2": 6.0,
    "answer": 7.1,
}
rows = {
    "Where is the book?": 1.8,
    "Paul took the book.": 1.25,
    "Paul went to the bedroom.": 0.7,
    "Mary went to the hall.": 0.15,
}
for text, y in rows.items():
    drawing.text(2.3, y, text, at="right", size=10)
    drawing.arrow((2.5, y), (6.3, y), color=plots.BLANK)
for text, x in columns.items():
    drawing.text(x, 2.3, text, color=plots.GREY, size=9)
one, two, three = 3.2, 4.6, 6.0
drawing.arrow((one + 0.1, 1.74), (two - 0.12, 1.31), color=plots.RED, width=2.2)
drawing.arrow((two + 0.1, 1.19), (three - 0.12, 0.76), color=plots.RED, width=2.2)
drawing.arrow((three + 0.12, 0.7), (6.72, 0.7), color=plots.RED, width=2.2)
for x, y in ((one, 1.8), (two, 1.25), (three, 0.7)):
    drawing.axes.plot(x, y, "o", color=plots.RED, ms=9, zorder=4)
drawing.text(3.95, 1.72, "asked?", color=plots.RED, size=9)
drawing.text(5.35, 1.17, "asked?", color=plots.RED, size=9)
drawing.text(7.15, 0.7, "bedroom", size=10)
plt.show()

# %% tags=["quiz"]
quiz.one_choice(
    "In a model of three layers, copying the donor's *fact* changes the answer before any layer and after layer 1, and no longer after layer 2. What follows?",
    quiz.right(
        "In layer 2 another line has read from the fact what the answer needs",
        "Yes. After that, the fact alone no longer decides. Copy the other lines to find out which one does.",
    ),
    quiz.wrong(
        "The fact has lost its room in layer 2",
        "Its vector may still have it; the residual stream loses little. But what is read there is no longer enough to decide.",
    ),
    quiz.wrong(
        "The decoder's weight on the fact is zero",
        "It may be large. The experiment says that what the decoder reads there does not decide the answer.",
    ),
    quiz.wrong(
        "The question attends to the fact in layer 2",
        "It is one of the lines that could have read it. In our small world it was another fact.",
    ),
)

# %% [markdown]
# ### Does every model take this route?
#
# Here are three more models of the same size, trained with twice the learning rate from three random starts (seeds).
# For donors that ask for another *thing*, the last column names the kind of line whose copy brings the donor's answer
# in over half the stories: before any layer -> after layer 1 -> after layer 2. The output ends with a rule that ignores
# what is asked: the room of whoever took something last.

# %% the same copies in other models tags=["hide-input"]
runs = [run for run in measured("stories")["runs"] if run["part"] == "judge"]
print("                   one hop  two hops   which line brings the donor's answer")
for run in runs:
    if run["model"] == "facts":
        scores = "  ".join(f"{run['scores'][f'task {n}']:6.1%}" for n in (1, 2))
        shares = run["patched"]["thing"][1]
        way = [
            COPIED[int(np.argmax(r))] if max(r) > 0.5 else "none" for r in shares
        ]
        print(
            f"facts, seed {run['seed']}   {scores}  ",
            " -> ".join(way) or "another thing changes no answer",
        )


def taker(one):
    """The room of whoever took something last, whatever is asked."""
    facts = one.source.split("\n ")[1:]
    [last, *_] = (fact.split()[0] for fact in facts if " took " in fact)
    return (
        next(f for f in facts if f.startswith(f"{last} went"))
        .strip(".")
        .split()[-1]
    )


two_hops = [one for one in corpus.test if one.task == 2]
rule = np.mean([taker(one) == one.target for one in two_hops])
print(f"the room of whoever took something last: {rule:.1%} of two hops")

# %% [markdown]
# None of the three takes the route of the model above from start to end:
#
# - In **seed 0** the *took* lines are enough after layer 1, too, but they have read the room as well as the question
#   (other copies show it). After layer 2 no kind of line is enough in half the stories.
# - In **seed 1** the *went* lines are enough after one layer, in at least 79 percent. So two hops need not take two
#   layers of reading: *Paul went to the bedroom* can read the question and *Paul took the book* in the same layer. The
#   copies do not tell where the thing asked for is compared with the thing taken.
# - **Seed 2** gives the same answer for the thing asked for and for the other thing that we tried, so no donor has
#   another answer to bring. A **shortcut** is enough for its 86 percent: the rule in the output's last line is right in
#   88. It cannot fail where only one thing is taken, in nearly half of these stories. Whether the model follows exactly
#   this rule, the scores do not tell. By its score alone this model would pass for one that is nearly there.

# %% tags=["proof"]
single = np.mean([one.source.count(" took ") == 1 for one in two_hops])
assert 0.46 < single < 0.5
assert 0.85 < rule < 0.9 and 0.44 < plain < 0.5
facts = [run for run in runs if run["model"] == "facts"]
tokens = [run for run in runs if run["model"] != "facts"]
assert facts[0]["scores"]["task 2"] == 1 and facts[1]["scores"]["task 2"] > 0.99
assert (
    0.84 < facts[2]["scores"]["task 2"] < 0.88
    and facts[2]["patched"]["thing"][1] == []
)
first, second = (
    {change: shares for change, (_, shares) in run["patched"].items()}
    for run in facts[:2]
)
assert first["room"][1][1] > 0.95 and first["owner"][1][1] > 0.95
assert round(min(second[change][1][2] for change in CHANGES), 2) == 0.79
assert all(0.45 < run["scores"]["task 2"] < 0.495 for run in tokens)
assert all(0.44 < run["scores"]["task 1"] < 0.515 for run in tokens)
[longer] = [run for run in tokens if run["settings"].get("times") == 4]
assert len(tokens) == 7 and longer["model"] == "transformer"
once = np.mean([run["seconds"] for run in facts])
assert 10.5 < longer["seconds"] / once < 11.5

# %% [markdown]
# ## Twenty tasks
#
# Our world was made to be solved. The **bAbI** tasks (Weston and others 2015) are twenty worlds, each made to test one
# kind of reasoning. We leave out task 3, most of whose stories are missing from the copy that we use. Each of the
# others has 9,000 questions to learn from and 1,000 for the test. On these nineteen together we train a
# `FactTransformer`, in three minutes, and do so from three different starts.
#
# ```bash
# python -m dotformer train configs/babi.toml
# ```
#
# **Predict first.** Which of these will it fail?
#
# | task | a question, and what it takes |
# |---|---|
# | 2 | *Where is the football?* Two facts, but now things are put down again |
# | 7 | *How many objects is Sandra carrying?* Counting |
# | 10 | *Is Bill in the office?* He is in the office or in the park, so: *maybe* |
# | 16 | *What color is Bernhard?* He is a swan, Brian is a swan, and Brian is white |
# | 17 | *Is the triangle below the square?* Both are placed by way of a third shape |
# | 19 | *How do you go from the garden to the office?* East, then south |

# %% [markdown]
# Beside the model stand three rules that never look at the question. *usual* gives the task's most frequent answer in
# training. The others look for words in the story that were answers to the task: *newest* gives the latest, *frequent*
# the commonest, and both give *usual* where there is none.
#
# In the figure each task has a row, with a blue dot for each of the three models, and the best of the three rules in
# red. A task is passed with 95 percent or more, the dotted line.

# %% tags=["plot"] mystnb={"image": {"alt": "Share of right answers to each of nineteen tasks, three seeds, from below: paths 0.07 to 0.09, induction 0.47 to 0.49, positions and deduction about 0.6, then two facts 0.77, rising to 1.00 for the task both of them. Rules that never look at the question have as much for paths, induction and who are they."}}
from textwrap import shorten

names = """1 one fact, 2 two facts, 4 who of two, 5 who of three, 6 yes or no, 7 counting,
8 lists, 9 negation, 10 maybe, 11 who is he, 12 both of them, 13 who are they, 14 time,
15 deduction, 16 induction, 17 positions, 18 sizes, 19 paths, 20 motives"""
tasks = dict(
    name.split(maxsplit=1) for name in names.replace("\n", " ").split(", ")
)
babi = measured("reading")
judged = [run for run in babi["runs"] if run["part"] == "judge"]
runs = [run for run in judged if run["settings"]["steps"] == 4000]
runs = [run for run in runs if run["corpus"] == "babi"]
means = {task: np.mean([run["right"][task] for run in runs]) for task in tasks}

figure, axes = plt.subplots(figsize=(6.4, 5.2), layout="constrained")
order = sorted(tasks, key=means.get)
for y, task in enumerate(order):
    axes.plot(
        max(babi["shortcuts"][task].values()), y, "|", color=plots.RED, ms=11, mew=2
    )
    for run in runs:
        axes.plot(run["right"][task], y, "o", color=plots.BLUE, ms=5, alpha=0.7)
axes.axvline(0.95, color=plots.GREY, lw=0.8, ls=":")
axes.set_yticks(range(len(order)), [f"{task}  {tasks[task]}" for task in order])
axes.set(xlabel="right answers (red: without the question)", xlim=(0, 1.02))
plt.show()

# %% tasks passed, and the best rule for seven tags=["hide-input"]
passed = [
    {task for task, share in run["right"].items() if share >= 0.95} for run in runs
]
print(
    "passed by each of three models: tasks", ", ".join(sorted(passed[0], key=int))
)
assert passed[0] == passed[1] == passed[2]
rules = {
    "commonest in training": "usual",
    "newest in the story": "newest",
    "commonest in the story": "frequent",
}
print("\ntask                right   best rule")
for task in ("2", "7", "10", "13", "16", "17", "19"):
    rule, share = max(babi["shortcuts"][task].items(), key=lambda item: item[1])
    name = f"{task} {tasks[task]}"
    print(f"{name:18}{means[task]:7.0%}{share:9.0%} {rules[rule]}")

same, better = np.mean(
    [run["beside_rules"]["13"]["newest in the story"] for run in runs], axis=0
)
print(f"\n13: {same:.1%} of the answers are the rule's; where the rule is wrong,")
print(f"    {better:.1%} are right")

# %% tags=["proof"]
half_way = [r for r in judged if r["corpus"] == "babi" and r not in runs]
assert all(0.8 < np.mean(list(run["right"].values())) < 0.84 for run in runs)
assert {sum(x >= 0.95 for x in run["right"].values()) for run in runs} == {6}
rules = {task: max(row.values()) for task, row in babi["shortcuts"].items()}
assert means["19"] < rules["19"] + 0.01 and means["17"] < 0.65
assert (
    abs(means["13"] - rules["13"]) < 0.001 and abs(means["16"] - rules["16"]) < 0.03
)
beside = {
    task: np.array(
        [run["beside_rules"][task][f"{rule} in the story"] for run in runs]
    )
    for task, rule in (("11", "newest"), ("13", "newest"), ("16", "commonest"))
}
assert beside["13"][:, 0].min() >= 0.999 and beside["13"][:, 1].max() < 0.02
assert beside["11"][:, 1].min() > 0.66 and beside["11"][:, 1].max() < 0.7
assert np.allclose(beside["16"].mean(axis=0), [0.73, 0.19], atol=0.009)
for task in ("6", "9", "10"):
    early = [run["right"][task] for run in half_way]
    assert max(early) < 0.76 and means[task] > 0.92
assert 0.45 < means["16"] < 0.5 and 0.76 < means["2"] < 0.79
counted = [mistake for run in runs for mistake in run["mistakes"]["7"]]
most = sum(times for pair, times in counted if pair == "one > none")
assert most > 0.6 * sum(times for _, times in counted)

# %% [markdown]
# The three models answer 81 to 82 percent of the questions correctly, and each passes six of the nineteen tasks
# (`python -m benchmarks.reading`).
#
# They fail all six tasks that you were asked about, though they come close in *maybe* (10):
#
# - **Two facts** (2) and **counting** (7): in task 2 the mistakes that we kept, in short stories, often name an earlier
#   room of the right person. In task 7 things are put down and handed on, and the model seems to lose count.
# - **Induction** (16): 48 percent are right, no more than a rule gets.
# - **Positions** (17), yes or no, get 60 percent, where a coin flip would get 50, and **paths** (19) are no better than
#   always giving the same answer. In both, relations must be composed, through things that the question does not name.
#
# One more task looks almost solved: **who are they** (13), where a pronoun stands for two people, with 94 percent. But
# the rule *newest*, here the newest room of the story, is right as often, and nearly all of the model's answers are
# that room, even where it is wrong. So the model has learned that rule, not whom the pronoun means.
#
# Where rule and meaning give the same answer, the loss cannot tell them apart. Only stories in which they differ teach
# the difference, or test it, and these are few. To learn the rule in place of the meaning is called *shortcut
# learning*. These failures do not show what attention cannot do: a transformer whose one layer is applied again and
# again passes nearly all twenty tasks from the same data ([Dehghani and others,
# 2018](https://arxiv.org/abs/1807.03819)).
#
# In real text, too, a rule can match a model. For 1,190 questions about paragraphs of Wikipedia, take the sentence that
# shares most words with the question, where rare words count more: it holds the answer to 80 percent of them. The
# sentence whose MiniLM vector is nearest to the question's holds it for 74 percent ([Going
# further](#questions-about-real-paragraphs)).

# %% [markdown]
# ## A text made short
#
# So far our models answered with words that they knew. A **summary** names what its text is about, and that may be a
# word that was in no training text. For the smallest such task, take two sentences of [chapter
# 13's](13_alignment.ipynb) grammar, and in each put an invented name where a person was. The summary is the two names.
# Training uses 300 names. Both tests have new pairs of sentences: one with the same names, the other with 100 new ones.
# Here is a training pair:

# %% two sentences with new names tags=["hide-input"]
import re

from dotformer.data.corpora import Pair
from dotformer.data.grammar import Sampler

person = re.compile(
    r"\b(Anna|Paul|he|she|(my|his|her|the|an?) (old )?"
    r"(man|woman|brother|sister|father|mother))\b"
)


def invented(rng):
    """A name of three syllables."""
    letters = (rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))
    return "".join(letters).capitalize()


def about(name, sampler):
    """A sentence of the grammar in which someone has this name."""
    while True:
        text, found = person.subn(name, sampler.pair()[0], count=1)
        if found:
            return text


def news(names, rng, sampler):
    """Two sentences about two people, and who they are."""
    both = rng.sample(names, 2)
    text = " ".join(about(name, sampler) for name in both)
    return Pair(text, " and ".join(both))


rng, sampler = Random(0), Sampler(Random(0))
names = list(dict.fromkeys(invented(rng) for _ in range(400)))
known, new = names[:300], names[300:]
learn = [news(known, rng, sampler) for _ in range(3000)]
tests = {
    name: [news(some, rng, sampler) for _ in range(200)]
    for name, some in (("known names", known), ("new names", new))
}
print(learn[0].source, learn[0].target, sep="\n-> ")

# %% [markdown]
# Each word is a token here. The new names have rows in the embedding table, too, but are in no training pair. **Predict
# first**: can the transformer write a name that it has never had to write?
#
# Give it a second way to produce a word: point at it in the source, and copy it. Attention already points, so the
# decoder gets one more attention, the pointer, with weights $a$ on the source's positions (a *pointer network*'s idea;
# after See, Liu and Manning 2017). A *gate* decides between the two ways: a number $p_{\text{gen}}$ between 0 and 1,
# a sigmoid of the decoder's state. From here on $p$ is a probability, no longer a sinusoid. The probability of the word
# $w$ is
#
# $$p(w) = p_{\text{gen}} \cdot p_{\text{vocabulary}}(w) + (1 - p_{\text{gen}}) \sum_{i:\ \text{source}_i = w} a_i$$
#
# The sum runs over the positions $i$ of the source at which $w$ stands. This **copy mechanism** is called a
# **pointer-generator**. An example: the source is *Netasa sleeps*, with weights 0.9 and 0.1. The gate is at 0.2, and
# the vocabulary's softmax gives *Netasa* 0.01. Then $p(\text{Netasa}) = 0.2 \cdot 0.01 + 0.8 \cdot 0.9 = 0.722$.
# $p_{\text{vocabulary}}$ and $a$ are probability distributions, and their factors add up to 1, so $p$ is one, too. The
# loss stays the same, and its gradient also trains the gate.
#
# In the code the transformer's output layer is renamed to `vocabulary`, and an identity stands where it was, so that
# `decode` gives the decoder's states. `mix` turns these into $p$, and returns $\log p$ in place of logits, because the
# loss then takes softmax$(\log p) = p$.

# %% tags=["export"] module="reading"
from dotformer.attention import scaled_dot_product_attention
from dotformer.transformer import TransformerConfig
from torch import nn


class CopyingTransformer(Transformer):
    """A transformer that writes each token from its vocabulary, or copies it.

    p(token) = p_gen softmax(logits) + (1 - p_gen) (weights on the positions of the
    source that hold the token). What it returns as logits is log p. Raises
    ValueError unless both sides share a vocabulary. After See, Liu and Manning
    (2017); the pointer is an attention of its own, where theirs is the decoder's.
    `decode` gives states here, and `mix` log-probabilities.
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


# %% [markdown]
# `scatter_add` adds the weight of each position of the source, times $1 - p_{\text{gen}}$, to the probability of the
# token at that position. When the model writes, each step has to call `mix` too, as `forward` does. Now train both
# transformers, without and with a pointer, with one layer on each side:

# %% tags=["export", "hide-input"] module="reading"
from dotformer.generation import KVCache


class CopyingCache(KVCache):
    """Sentences that a `CopyingTransformer` writes; see `KVCache`."""

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


# %% both trained, both tested tags=["hide-input"]
from dotformer.generation import greedy
from dotformer.tokens import pad_batch
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches

words = sorted({w for pair in learn for side in pair[:2] for w in side.split()})
words = ["<pad>", "<bos>", "<eos>", *words, *new]
numbers = {word: n for n, word in enumerate(words)}


def encode(pair):
    """The tokens of both sides, the target between begin and end."""
    source, target = ([numbers[w] for w in side.split()] for side in pair[:2])
    return source, [1, *target, 2]


def train(kind):
    """A small model of that kind, after 240 steps."""
    torch.manual_seed(0)
    shape = {"d_model": 64, "num_heads": 4, "d_ff": 128, "norm_first": True}
    depths = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    sizes = len(words), len(words)
    config = TransformerConfig(*sizes, **depths, **shape, share_embeddings=True)
    model = kind(config)
    steps = TrainingConfig(240, 4e-3, warmup_steps=24, label_smoothing=0.0)
    pairs = list(map(encode, learn))
    batches = partial(pair_batches, pairs[100:], max_tokens=1024)
    validate = partial(evaluate, batches=list(pair_batches(pairs[:100])))
    Trainer(model, steps).train(batches, validate, progress=False)
    return model.eval()


def right(model, state, pairs):
    """The share of pairs of which a model writes the target, greedily."""
    encoded = list(map(encode, pairs))
    written = greedy(state(model, pad_batch([s for s, _ in encoded], 0)), 8)
    return np.mean(
        [
            text == target[1:-1]
            for text, (_, target) in zip(written, encoded, strict=True)
        ]
    )


shares = {}
for kind, state in ((Transformer, KVCache), (CopyingTransformer, CopyingCache)):
    model = train(kind)
    for name, pairs in tests.items():
        shares[kind.__name__, name] = right(model, state, pairs)
        print(f"{kind.__name__:18} {name}: {shares[kind.__name__, name]:.0%}")

# %% tags=["proof"]
assert shares["Transformer", "new names"] == 0
assert shares["Transformer", "known names"] > 0.5
assert shares["CopyingTransformer", "new names"] > 0.6
assert shares["CopyingTransformer", "known names"] > 0.95

# %% [markdown]
# The plain transformer's output layer has a row for each new name, the name's embedding. But no new name was ever the
# right answer, so training only pushed their logits down. The pointer need not know *which* name it copies, only
# *where* the name stands: among known words, as in training.
#
# The next figure shows the pointer's weights for one pair of new names. Each row is a token that is written, with
# $p_{\text{gen}}$ behind it, and each column is a word of the source:

# %% tags=["plot"] mystnb={"image": {"alt": "Pointer weights of the four tokens that are written on the words of the source. The first name has its weight on that name in the source, the second on the other."}}
pair = tests["new names"][0]
source, target = (torch.tensor([row]) for row in encode(pair))
with torch.no_grad():
    memory, mask = model.encode(source)
    states = model.decode(target[:, :-1], memory, mask)
    _, weights = scaled_dot_product_attention(
        model.pointer(states), memory, memory, mask[:, 0]
    )
    gate = model.gate(states).sigmoid()[0, :, 0]
labels = [*pair.target.split(), "<eos>"]
labels = [f"{w}  ({g:.2f})" for w, g in zip(labels, gate, strict=True)]
figure, axes = plt.subplots(figsize=(7.6, 2.6), layout="constrained")
plots.attention_map(weights[0].numpy(), labels, pair.source.split(), ax=axes)
plt.show()

# %% [markdown]
# For both names $p_{\text{gen}}$ is close to 0: almost nothing comes from the vocabulary, and the pointer lies on the
# right word. For *and* and for the end $p_{\text{gen}}$ is close to 1, so it hardly matters where the pointer lies.

# %% [markdown]
# ### What does it change in real summaries?
#
# A real summary is hard to judge, since a text has many good ones. So the field counts the n-grams that the written
# summary shares with the wanted one: **ROUGE** (Lin 2004). ROUGE-1 counts shared words, here in bold:
#
# | | words |
# |---|---|
# | wanted | ***the number of** nodes **in** a graph* |
# | written | ***the number of** edges **in** it* |
#
# Four of the six written words are right (*precision*), and four of the seven wanted words were found (*recall*). Lin's
# ROUGE-1 is the recall, but a summary can raise it by being long. So today one gives F1, the harmonic mean of precision
# and recall: twice the shared words over the words of both texts, $2 \cdot 4 / (6 + 7) = 0.615$, often given times 100,
# as 61.5.

# %% tags=["export", "hide-input"] module="reading"
from importlib.metadata import version

from dotformer.data.corpora import Pair


def rouge_scores(
    texts: Sequence[str], pairs: Sequence[Pair]
) -> dict[str, float | str]:
    """ROUGE-1, -2 and -L of texts beside the pairs' targets, and their signature.

    Means of F1, 0 to 100, with stems of words. ValueError: not equally many, or
    none. After Lin (2004), by the library `rouge-score`.
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


# %% tags=["quiz"]
asked_for = Pair("", "the length of the shortest path")
quiz.number(
    "Wanted is *the length of the shortest path*, written *the shortest path in it*. What is ROUGE-1, from 0 to 100?",
    rouge_scores(["the shortest path in it"], [asked_for])["rouge1"],
    tolerance=0.6,
    feedback="Yes: *the*, *shortest* and *path* are shared, of five and six words: 2 · 3 / (5 + 6).",
    mistakes=[
        (
            60,
            "That is the precision, 3 of 5. F1 has the six wanted words in it as well.",
        ),
        (
            50,
            "That is the recall, 3 of 6. F1 has the five written words in it as well.",
        ),
        (
            72.7,
            "*the* is written once, so it counts once, though it is wanted twice.",
        ),
    ],
    otherwise="Three words are shared. There are five in one text, six in the other.",
)

# %% [markdown]
# A docstring begins with a line that sums it up. Seven Python libraries that this book installs have, without
# duplicates, 12,700 functions, classes and modules with such a line and more text after it, of which we take up to 200
# characters. The task: from the name and the text, write the line. Of two tests of 500 pairs each, one is of the *same
# packages* as in training, and one of *networkx*, which was kept out.
#
# Both models are larger now, and use subwords (`python -m benchmarks.summaries`; `configs/summaries.toml` trains a
# similar one). These can spell any name, but a rare name takes several subwords, and the plain model must find each of
# them through its vocabulary. Two baselines need no training:
#
# - *first sentence*: the first sentence of the text, which the field calls the *lead* (an **extractive** summary; a
#   model that writes is **abstractive**);
# - *words of the name*: `number_of_nodes` becomes *number of nodes*.
#
# Beside ROUGE-1 the output has the share of the written words that are also in the name or the text.
#
# **Predict first**: in which order will they come?

# %% ROUGE-1, and two summaries tags=["hide-input"]
summaries = measured("summaries")
systems = {
    "transformer": "transformer",
    "copying": "with a pointer",
    "words of the name": "words of the name",
    "first sentence": "first sentence",
}
for part, result in summaries["results"].items():
    name = "networkx" if part == "unseen package" else "same packages"
    print(f"{name:20} ROUGE-1   words also in the text")
    for system, name in systems.items():
        row = result["systems"][system]
        score, copied = row["rouge"]["rouge1"], row["words in the text"]
        print(f"   {name:18}{score:6.1f} {copied:7.0%}")

for one in [summaries["examples"]["unseen package"][n] for n in (0, 4)]:
    print(f"\n{one['name'].rpartition('.')[2]}: {one['summary']}")
    for system, name in systems.items():
        print(f"   {name:18}{shorten(one[system], 56)}")

# %% tags=["proof"]
seen, unseen = (
    {name: row["rouge"]["rouge1"] for name, row in result["systems"].items()}
    for result in summaries["results"].values()
)
chance = {part: result["p"] for part, result in summaries["results"].items()}
for part, row in (("unseen lines", seen), ("unseen package", unseen)):
    assert 6 < row["copying"] - row["transformer"] < 9.5
    assert chance[part]["transformer, copying"]["rouge1"] < 0.001
    assert chance[part]["copying, words of the name"]["rouge1"] < 0.01
    assert row["words of the name"] > row["first sentence"] > row["copying"]
assert chance["unseen lines"]["copying, first sentence"]["rouge1"] > 0.2
assert chance["unseen package"]["copying, first sentence"]["rouge1"] < 0.001
results = summaries["results"]["unseen package"]["systems"]
assert results["transformer"]["words in the text"] < 0.25
assert 0.65 < results["copying"]["words in the text"] < 0.68
assert sum(summaries["sizes"].values()) == 12_717
minutes = [r["seconds"] / 60 for r in summaries["runs"] if r["part"] == "judge"]
assert min(minutes) > 2.3 and max(minutes) < 5

# %% [markdown]
# The pointer is worth six points of ROUGE-1 in the same packages, and nine in the new one (means of three seeds; p <
# 0.001, [approximate randomisation](14_translation.ipynb#is-one-better-than-the-other)). It at least doubles the share
# of the model's words that are also in the text. Without it, the model writes about *GPU memory* in the new package,
# where a maximum flow is computed. A text that says what its source does not is called a **hallucination**.
#
# And yet in both tests the *words of the name* score higher than either model, though the one with a pointer could copy
# them. Trained from nothing, for two to five minutes, it has learned how such lines begin, and to use words of the
# text, but in the examples it does not say what the function does. ROUGE-1 counts *maximum* in *The maximum edge graph
# of the graph*, and sees neither the order of the words nor whether they say anything.
#
# Is a pointer still needed? Today's language models have none: a deep model with subwords learns to copy with its
# ordinary attention heads ([chapter 18](18_gpt.ipynb#how-does-it-copy)).

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: How right is an answer?
#
# *Easy, 10 minutes.* SQuAD is a collection of questions about Wikipedia; the 1,190 questions mentioned above come from
# it. It scores an answer by the F1 of its words. (It leaves out *a*, *an*, *the* and punctuation first; here every word
# counts.) A word that one text has twice and the other three times is shared twice. *the red house* has three words,
# *red house by the sea* has five, and they share three, so F1 is $2 \cdot 3 / (3 + 5) = 0.75$. Both arguments are texts
# in small letters.


# %% tags=["exercise"]
def word_f1(answer, wanted):
    """The F1 of the words of an answer, 0 to 1."""
    ...


# %% tags=["check"]
def overlap_f1(answer, wanted, times=True, which="f1"):
    left, right = answer.split(), wanted.split()
    if times:
        shared = sum(min(left.count(w), right.count(w)) for w in {*left})
    else:
        shared = len({*left} & {*right})
    return {
        "f1": 2 * shared / (len(left) + len(right)),
        "precision": shared / len(left),
        "recall": shared / len(right),
        "loose": 2 * sum(w in right for w in left) / (len(left) + len(right)),
    }[which]


check_f1 = partial(
    checks.check,
    reference=overlap_f1,
    cases=[
        ("the red house", "red house by the sea"),
        ("the the the", "the sea by the house"),
        ("a dog", "the cat"),
        ("no no yes", "yes no no no"),
    ],
    mistakes={
        "a word that is in both texts twice counts twice": partial(
            overlap_f1, times=False
        ),
        "that is the precision": partial(overlap_f1, which="precision"),
        "that is the recall": partial(overlap_f1, which="recall"),
        "a word counts at most as often as it is in the wanted text": partial(
            overlap_f1, which="loose"
        ),
    },
)
check_f1(word_f1)


# %% tags=["solution"]
def word_f1(answer, wanted):
    from collections import Counter

    left, right = Counter(answer.split()), Counter(wanted.split())
    return 2 * (left & right).total() / (left.total() + right.total())


verdict = check_f1(word_f1)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: The longest common subsequence
#
# *Medium, 15 minutes.* ROUGE-L needs the length of the longest sequence of words that both texts have in the same
# order, with gaps allowed: 3 for *the red old house* and *the house is red and old*. Fill a matrix: `length[i][j]` is
# that of the first $i$ words of one and the first $j$ of the other.


# %% tags=["exercise"]
def common_subsequence(left, right):
    """The length of the longest common subsequence of two lists of words."""
    ...


# %% tags=["check"]
def longest_common(left, right, gaps=True, order=True, twice=False):
    if not order:
        return sum(min(left.count(w), right.count(w)) for w in {*left})
    length = np.zeros((len(left) + 1, len(right) + 1), int)
    for i, j in np.ndindex(len(left), len(right)):
        if left[i] == right[j]:
            length[i + 1, j + 1] = length[i + (twice), j] + 1
        elif gaps:
            length[i + 1, j + 1] = max(length[i, j + 1], length[i + 1, j])
    return int(length[-1, -1] if gaps else length.max())


check_common = partial(
    checks.check,
    reference=longest_common,
    cases=[
        ("the red old house".split(), "the house is red and old".split()),
        ("a b c d".split(), "d c b a".split()),
        ("a b c".split(), "a x b y c".split()),
        ("a a b".split(), "a b a b".split()),
        ([], ["a"]),
        ("a b".split(), "a a a".split()),
    ],
    mistakes={
        "words between may be left out": partial(longest_common, gaps=False),
        "the words must be in the same order in both": partial(
            longest_common, order=False
        ),
        "a word cannot be used twice": partial(longest_common, twice=True),
    },
)
check_common(common_subsequence)


# %% tags=["solution"]
def common_subsequence(left, right):
    length = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, one in enumerate(left, 1):
        for j, other in enumerate(right, 1):
            if one == other:
                length[i][j] = length[i - 1][j - 1] + 1
            else:
                length[i][j] = max(length[i - 1][j], length[i][j - 1])
    return length[-1][-1]


verdict = check_common(common_subsequence)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: Written or copied
#
# *Easy, 10 minutes.* Compute the mixture for one position: `vocabulary` has a probability for each token, `weights` one
# for each position of the source, and `source` says which token stands there.


# %% tags=["exercise"]
def mixture(p_gen, vocabulary, weights, source):
    """The probability of each token, a list as long as `vocabulary`."""
    ...


# %% tags=["check"]
def mixed(p_gen, vocabulary, weights, source, turned=False, add=True, own=True):
    gate = 1 - p_gen if turned else p_gen
    p = [gate * share for share in vocabulary] if own else [0.0] * len(vocabulary)
    for weight, token in zip(weights, source, strict=True):
        p[token] = (1 - gate) * weight + (
            p[token] if add else gate * vocabulary[token]
        )
    return p


check_mixture = partial(
    checks.check,
    reference=mixed,
    cases=[
        (0.2, [0.01, 0.5, 0.49], [0.9, 0.1], [0, 2]),
        (0.5, [0.25, 0.25, 0.5], [0.5, 0.25, 0.25], [1, 1, 0]),
        (1.0, [0.5, 0.5], [1.0], [0]),
    ],
    mistakes={
        "p_gen is the share of the vocabulary, not of the source": partial(
            mixed, turned=True
        ),
        "a token that is in the source twice gets both weights": partial(
            mixed, add=False
        ),
        "what the vocabulary gives is missing": partial(mixed, own=False),
    },
)
check_mixture(mixture)


# %% tags=["solution"]
def mixture(p_gen, vocabulary, weights, source):
    p = [p_gen * share for share in vocabulary]
    for weight, token in zip(weights, source, strict=True):
        p[token] += (1 - p_gen) * weight
    return p


verdict = check_mixture(mixture)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# Questions and summaries are sequences, so a translator can learn them. With one vector for each fact, one fact looks
# up another; copying states from one story into another shows by which route the answer came, and another seed may go
# another way. A pointer lets the decoder copy what it cannot write. And before one praises a model, one measures how
# well a count of shared words, or the first sentence, does on the same data.
#
# **Sources.** A vector for each fact: [Sukhbaatar and others (2015)](https://arxiv.org/abs/1503.08895), section 4.1.
# The twenty tasks: [Weston and others (2015)](https://arxiv.org/abs/1502.05698), CC BY 3.0. Interventions on states:
# [Vig and others (2020)](https://arxiv.org/abs/2004.12265), [Geiger and others
# (2021)](https://arxiv.org/abs/2106.02997); on large language models, [Meng and others
# (2022)](https://arxiv.org/abs/2202.05262). XQuAD: [Artetxe and others (2020)](https://arxiv.org/abs/1910.11856),
# from SQuAD of [Rajpurkar and others (2016)](https://arxiv.org/abs/1606.05250), CC BY-SA 4.0. ROUGE: [Lin
# (2004)](https://aclanthology.org/W04-1013/). Copying: [Vinyals, Fortunato and Jaitly
# (2015)](https://arxiv.org/abs/1506.03134), [See, Liu and Manning (2017)](https://arxiv.org/abs/1704.04368).
#
# **Next.** So far one stack has read and another has written. [Chapter 18](18_gpt.ipynb) takes the encoder away, and
# lets one stack do both.

# %% [markdown]
# ## Going further
#
# Three more checks. Later chapters do not need them.
#
# ### Questions about real paragraphs
#
# In three of the bAbI tasks (13, 16 and 19) a rule did as well as the model. Can a rule do so in real text, against a
# model that others have trained? XQuAD (Artetxe and others 2020) has 1,190 questions about 240 paragraphs of Wikipedia,
# each with the words that answer it. The task is **answer sentence selection**: find the *sentence* of the paragraph in
# which the answer stands. There is one model, and there are two rules that learn nothing:
#
# - *nearest vector*: MiniLM, the encoder of chapter 15, takes the sentence whose vector is nearest to the question's;
# - *most shared words*: take the sentence that shares most words with the question;
# - *the same, rare words count more*: here a shared word counts more if few sentences of all paragraphs have it
#   (**inverse document frequency**).
#
# **Predict first**: which of the three wins?

# %% sentences found by each rule tags=["hide-input"]
questions = measured("questions")
sentences = questions["sentences"]
for rule, name in {
    "random": "a sentence at random",
    "first": "the first sentence",
    "minilm": "nearest vector (MiniLM)",
    "shared_words": "most shared words",
    "idf": "the same, rare words count more",
}.items():
    print(f"{name:32} {sentences['right'][rule]:.1%}")
words = sentences["words_shared"]
print(
    f"words of a question in the answer's sentence: {words['answer']:.0%},",
    f"in any other of the paragraph: {words['others']:.0%}",
)

# %% tags=["proof"]
assert (sentences["questions"], sentences["paragraphs"]) == (1190, 240)
assert round(sentences["minilm_shared_words"]["p"], 2) == 0.21
assert round(sentences["minilm_idf"]["p"], 5) == 2e-5
assert 0.5 < sentences["words_shared"]["answer"] < 0.55
assert sentences["right"]["idf"] > sentences["right"]["shared_words"] > 0.75
assert 0.73 < sentences["right"]["minilm"] < 0.75

# %% [markdown]
# The rule of most shared words is ahead of MiniLM and its 22 million parameters by less than two points, which could be
# chance ([sign test](13_alignment.ipynb#longer-than-anything-it-has-learned), p = 0.21). The rule in which rare words
# count more is clearly ahead of MiniLM (p = 0.00002).
#
# Why do the rules do so well? Half of a question's words are in the answer's sentence (52 percent, against 21 in any
# other). A likely reason: whoever wrote these questions had the paragraph before them, and used its words. Where
# question and sentence use different words, as in chapter 15, counting has little to go on.
#
# (The usual way to find an answer in a paragraph is **extractive**: two linear layers give each token a score for being
# the first and the last word of the answer, and training maximises the probability of the right *span*. A BERT trained
# so finds most spans. MiniLM was never trained to find a span. But SQuAD's training questions were among the pairs that
# it learned from, so this kind of question is not new to it.)
#
# ### Does attention agree?
#
# [By experiment](#how-does-it-join-two-facts) what is asked moves from line to line. Here is the mean weight of one
# line on another, in the head where it is largest:

# %% weights of one line on another tags=["hide-input"]
from dotformer.support.recording import record_weights


@torch.no_grad()
def attention(one):
    """Weights of the encoder (layers, H, L, L) and of the answer on lines (H, L)."""
    source = torch.tensor([translator.tokens(one.source)])
    with record_weights(translator.model) as seen:
        translator.model(source, torch.tensor([[translator.target.bos_id]]))
    layers = [w for name, w in seen.items() if name.startswith("encoder")]
    [cross] = [w for name, w in seen.items() if "cross" in name]
    return torch.cat(layers), cross[0, :, 0]


hops = {"took on question": [], "went on took": [], "answer on went": []}
for one in corpus.test:
    if one.task == 2:
        (took, went), (layers, answer) = one.evidence, attention(one)
        hops["took on question"].append(layers[0, :, took, 0])
        hops["went on took"].append(layers[1, :, went, took])
        hops["answer on went"].append(answer[:, went])
for name, weights in hops.items():
    best = torch.stack(weights).mean(dim=0)
    print(f"{name:17} {best.max():.2f} in head {int(best.argmax()) + 1}")

# %% tags=["proof"]
largest = [torch.stack(w).mean(dim=0).max() for w in hops.values()]
assert 0.25 < largest[0] < 0.4 and min(largest[1:]) > 0.95

# %% [markdown]
# Attention agrees with the experiment in two of the three steps. In the first, from *took* to the question, the weight
# is a third. A map alone would not have told how much depends on this weight.

# %% [markdown]
# ### A published model, zero-shot
#
# [Chapter 19](19_modern.ipynb) loads SmolLM2, a chat model of 135 million parameters. Give it the paragraph, a
# question, and the request to answer in a few words, without any training (**zero-shot**). An answer counts if the
# right words occur in it; in bAbI, if the first room that it names is right. (A hundred real questions, and a hundred
# of each of bAbI's first two tasks.)

# %% answers right without training tags=["hide-input"]
asked = questions["xquad"]
for name, row in (("SmolLM2", asked), ("most shared words", asked["shared_words"])):
    print(f"real questions, {name:18} {row['contains']:.0%}, F1 {row['f1']:.2f}")
for task in (1, 2):
    found = questions[f"babi_{task}"]
    print(
        f"bAbI task {task}: {found['right']:.0%}, no room named {found['no_place']:.0%};",
        f"the room named last {found['named_last']:.0%}, a guess {found['chance']:.0%}",
    )
wrong = next(row for row in asked["shown"] if row[1].lower() not in row[2].lower())
for _, wanted, written in (wrong, questions["babi_1"]["shown"][0]):
    print(f"wanted: {wanted}; written: {shorten(written, 40)}")

# %% tags=["proof"]
lexical, one, two = asked["shared_words"], questions["babi_1"], questions["babi_2"]
assert asked["contains"] == 0.26 and lexical["contains"] == 0.7
assert 0.02 < lexical["f1"] - asked["f1"] < 0.03 and asked["cut"] == 0.03
assert one["no_place"] == 0.52 and all(
    r["right"] < r["named_last"] for r in (one, two)
)

# %% [markdown]
# A quarter of its replies to real questions have the right words in them. The sentence with most shared words, taken
# whole, has them in 70 percent. By this count the rule wins, but it writes a whole sentence; by F1 of the words
# (without articles and punctuation) the two are close. In bAbI's first task half of the replies name no room at all,
# and in both tasks the room named last scores higher. One model and one wording were tried, so this shows only that a
# chat model must be checked, too.
