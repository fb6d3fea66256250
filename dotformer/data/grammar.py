"""A synchronous grammar of a small part of English and German: each sentence is one tree, put in order twice."""

from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from dotformer.data.trees import Tree


@dataclass(eq=False)
class Word:
    """An English word of one sentence; equal to no other, whatever its text."""

    text: str


class Phrase(NamedTuple):
    """Both sides of a phrase; each German word has the English words it renders.

    `constituents` are those of the English side, each a word, or a label with its own constituents.
    """

    english: list[Word]
    german: list[tuple[str, list[Word]]]
    constituents: tuple = ()


def leaf(english: str, german: str) -> Phrase:
    """Word for word from the right; the first German word renders all the rest."""
    words, texts = [Word(text) for text in english.split()], german.split()
    first = len(words) - len(texts) + 1
    links = [words[:first], *([word] for word in words[first:])]
    return Phrase(words, list(zip(texts, links, strict=True)), tuple(words))


def join(*phrases: Phrase) -> Phrase:
    """Several phrases as one, in the same order on both sides."""
    return Phrase(
        [word for phrase in phrases for word in phrase.english],
        [word for phrase in phrases for word in phrase.german],
        tuple(part for phrase in phrases for part in phrase.constituents),
    )


def labelled(label: str, phrase: Phrase, skip: int = 0) -> Phrase:
    """The phrase with one constituent for all that it has, but for the first `skip`."""
    parts = phrase.constituents
    return phrase._replace(constituents=(*parts[:skip], (label, parts[skip:])))


def tree_of(part: Word | tuple) -> Tree:
    """A constituent as a tree; the grammar has no parts of speech, so each word, and each sign, has its own."""
    if isinstance(part, Word):
        return Tree(part.text, (part.text,))
    label, parts = part
    return Tree(label, tuple(map(tree_of, parts)))


# The lexicon


class Noun(NamedTuple):
    """A noun, a name or a pronoun, and what may stand before it."""

    english: tuple[str, ...]  # of a pronoun: subject, object
    german: tuple[str, ...]  # of a pronoun: nominative, accusative, dative
    gender: str  # m, f, n or p, plural; of I and we 1 and 2
    classes: tuple[str, ...]  # what it is, or the preposition that it may follow
    articles: tuple[str, ...]  # my: or his, or her
    adjectives: tuple[str, ...]

    @property
    def is_pronoun(self) -> bool:
        """Whether it has cases of its own, and nothing before it."""
        return len(self.german) > 1


class Verb(NamedTuple):
    """A verb, the case and the class of each object, and reasons to do it."""

    english: tuple[str, ...]  # base, participle, what follows
    german: tuple[str, ...]  # infinitive, with er, participle, separable prefix
    objects: tuple[str, ...]
    classes: tuple[str, ...]  # of its subject; whether it has a place
    reasons: tuple[str, ...]  # what the subject is like; +: what the object is


def table(text: str) -> list[list[tuple[str, ...]]]:
    """A row for each line; its cells, between bars, are tuples of words."""
    return [[tuple(cell.split()) for cell in row.split("|")] for row in text.strip().splitlines()]


NOUN_TABLE = table("""
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
NOUNS = [
    Noun(words[: len(words) // 3], words[len(words) // 3 : -1], words[-1], classes, articles, adjectives)
    for classes, articles, adjectives, *entries in NOUN_TABLE
    for words in entries
]
NOUNS += NOUNS[:1] * 5  # I more often than others
PRONOUNS = {noun.gender: noun for noun in reversed(NOUNS) if noun.is_pronoun}  # of each gender the first

VERBS = [
    Verb(*row)
    for row in table("""
        sleep slept | schlafen schläft geschlafen || human animal place | tired sick
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
]

FORMS = {  # by the second English one: forms with I, he and we, in German likewise
    forms[2]: forms
    for row in table("""
        am is are bin ist sind                | have has have habe hat haben
        can can can kann kann können          | must must must muss muss müssen
        cannot cannot cannot kann kann können | want wants want will will wollen
        say says say sage sagt sagen          | think thinks think glaube glaubt glauben
    """)
    for forms in row
}

GERMAN = dict(
    pair
    for row in table("""
        in in   | on auf | under unter | a ein | my mein | his sein | her ihr
        old alt | new neu | big groß | small klein | good gut
        tired müde | sick krank | hungry hungrig | happy glücklich | cheap billig
        that dass | because weil | although obwohl | when wenn
    """)
    for pair in row
)

TIMES = table("""
    every day      | jeden Tag | present must
    in the morning | am Morgen | present are can must want
    in the evening | am Abend  | present are can must want
    today          | heute     | have are can must want
    tomorrow       | morgen    | can must want
""")

# By case, a column for m, f, n and p: the article, and how ein ends, an adjective after the, and one after ein.
ENDINGS = {
    "nom": table("der die das die | -  e  -  e  | e  e  e  en | er e  es en")[0],
    "acc": table("den die das die | en e  -  e  | en e  e  en | en e  es en")[0],
    "dat": table("dem der dem den | em er em en | en en en en | en en en en")[0],
}


# Phrases and clauses


def noun_phrase(noun: Noun, case: str, before: str = "", adjective: str = "") -> Phrase:
    """A noun behind its preposition, article and adjective, which in German agree with it in gender, number and case.

    `before` has the English preposition and article; `case` is "nom", "acc" or "dat".
    """
    if noun.is_pronoun:
        form = ["nom", "acc", "dat"].index(case)
        return labelled("NP", leaf(noun.english[form > 0], noun.german[form]))
    the, ein, weak, mixed = (row["mfnp".index(noun.gender)].strip("-") for row in ENDINGS[case])
    german = noun.german[0]
    if case == "dat" and noun.gender == "p":
        german = german.removesuffix("n") + "n"
    phrase = leaf(noun.english[0], german)
    if adjective:
        ending = weak if before.endswith("the") else mixed
        phrase = join(leaf(adjective, GERMAN[adjective] + ending), phrase)
    if not before:
        return labelled("NP", phrase)
    *preposition, article = before.split()
    german = the if article == "the" else GERMAN[article] + ein
    german = " ".join([*(GERMAN[word] for word in preposition), german]).replace("in dem", "im")
    if article == "a" and phrase.english[0].text[0] in "aeiou":
        before += "n"
    return prepositional(join(leaf(before, german), phrase), bool(preposition))


def prepositional(phrase: Phrase, has_preposition: bool) -> Phrase:
    """A noun phrase, in a prepositional phrase if its first word is a preposition."""
    noun = labelled("NP", phrase, skip=int(has_preposition))
    return labelled("PP", noun) if has_preposition else noun


def pronoun(noun: Noun) -> Phrase:
    """The subject that stands for a noun; German has er, sie and es for it."""
    same = PRONOUNS[noun.gender]
    it = noun.gender in "mfn" and "human" not in noun.classes
    return labelled("NP", leaf("it" if it else same.english[0], same.german[0]))


class Clause(dict[str, Phrase]):
    """The parts of a clause by name, in no order."""


def linearize(clause: Clause, first: str = "subject", conjunction: str = "") -> Phrase:
    """One tree in two orders: the parts of a clause in English and in German.

    The part called `first` comes first in both. In German the finite verb follows, but in a clause that a conjunction
    opens it comes last, in one word with its prefix. `end` is what is left of the verb, and `new` a noun with an
    indefinite article, which German puts later than one that is known.
    """
    english = "subject finite not end prefix pronoun dat acc new place time clause"
    german = "finite subject pronoun dat time acc not place new end prefix clause"
    if conjunction:
        german = german.removeprefix("finite") + " finite"

    def put(order: str) -> list[Phrase]:
        names = dict.fromkeys([first, *order.split()])  # each once
        return [clause[name] for name in names if name in clause]

    words = join(*put(german)).german
    if conjunction and "prefix" in clause:
        (prefix, _), (verb, links) = words[-2:]
        words[-2:] = [(prefix + verb, links)]
    parts = put(english)
    verb = parts.index(clause["finite"])
    whole = labelled("S", join(*parts[:verb], labelled("VP", join(*parts[verb:]))))
    return whole._replace(german=words)


def agree(noun: Noun, forms: tuple[str, ...]) -> Phrase:
    """Of the forms with I, he and we, English and German, those for the subject."""
    person = {"1": 0, "2": 2, "p": 2}.get(noun.gender, 1)
    return leaf(forms[person], forms[person + 3])


def conjugate(verb: Verb, tense: str, noun: Noun) -> Clause:
    """The verb as parts of a clause: the finite verb, and what is left for the end.

    The tense is the present, or the name of an auxiliary: have (the perfect), can, cannot, must or want. In the present
    only a separable prefix is left.
    """
    base, participle, *particle = verb.english
    infinitive, third, partizip, *prefix = verb.german
    if tense == "present":
        texts = [" ".join([base + s, *particle]) for s in ("", "s", "")]
        words, links, _ = agree(noun, (*texts, infinitive[:-1], third, infinitive))
        rest = Phrase(words[1:], [(text, words) for text in prefix], tuple(words[1:]))
        finite = Phrase(words[:1], links, tuple(words[:1]))
        return Clause({"finite": finite, "prefix" if prefix else "end": rest})
    if tense == "have":
        base, infinitive = participle, partizip
    finite = agree(noun, FORMS[tense])
    negation = [("nicht", finite.english)] * (tense == "cannot")
    end = leaf(" ".join([*["to"] * (tense == "want"), base, *particle]), "".join([*prefix, infinitive]))
    return Clause({"finite": finite, "not": Phrase([], negation), "end": end})


def copula(noun: Noun, subject: Phrase, adjective: str) -> Clause:
    """A clause that says what someone or something is like."""
    end = labelled("ADJP", leaf(adjective, GERMAN[adjective]))
    return Clause(subject=subject, finite=agree(noun, FORMS["are"]), end=end)


def attach(main: Clause, conjunction: str, side: Clause, front: bool = False) -> Phrase:
    """A main clause, and behind it or in `front` of it one that a conjunction opens.

    German has a comma between them, English only behind a clause in front.
    """
    opening = leaf(conjunction, GERMAN[conjunction])
    clause = labelled("SBAR", join(opening, linearize(side, conjunction=conjunction)))
    if front:
        return linearize(Clause(main, clause=join(clause, leaf(",", ","))), "clause")
    comma = Phrase([], [(",", opening.english)])
    return linearize(Clause(main, clause=join(comma, clause)))


# Sentences

STOP = leaf(".", ".")


class Sampler:
    """Draws sentences that make sense, and in which no noun or verb occurs twice."""

    def __init__(self, random: Random) -> None:
        self.choice = random.choice
        self.used: set[str] = set()  # what the sentence has already

    def pick(self, entries: list, of_class: str) -> Noun | Verb:
        """An entry of that class; LookupError if the sentence has it already."""
        entry = self.choice([x for x in entries if of_class in x.classes])
        name = "I" if "I" in entry.classes else entry.english[0]  # not I and we
        if name in self.used:
            raise LookupError(f"{name} twice in one sentence")
        self.used.add(name)
        return entry

    def noun(self, of_class: str, case: str, preposition: str = "", a: bool = False) -> tuple[Noun, str, Phrase]:
        """A noun, what part of a clause it is as an object, and its phrase; `a` allows the indefinite article."""
        noun = self.pick(NOUNS, of_class)
        article = self.choice([x for x in noun.articles if x != "a" or a] or [""])
        article = self.choice(["my", "his", "her"]) if article == "my" else article
        adjective = self.choice([*noun.adjectives, "", ""])
        part = "pronoun" if noun.is_pronoun else "new" if article == "a" else case
        return noun, part, noun_phrase(noun, case, f"{preposition} {article}".strip(), adjective)

    def act(self, noun: Noun, subject: Phrase, tense: str, of_class: str) -> tuple[Clause, Verb, Noun]:
        """A clause in which the subject, which is of that class, does something; its verb, and the last noun in it."""
        verb = self.pick(VERBS, of_class)
        clause = Clause(conjugate(verb, tense, noun), subject=subject)
        for case, wanted in zip(verb.objects[::2], verb.objects[1::2], strict=True):
            noun, part, clause[part] = self.noun(wanted, case, a=case == "acc" and tense != "cannot")
        return clause, verb, noun

    def simple(self) -> Clause:
        """Someone is or does something, perhaps somewhere, perhaps at some time."""
        who = self.choice(["human", "human", "human", "animal", "thing"])
        tenses = {"thing": "are", "animal": "are present have"}
        options = "are present present present have have can must want"
        tense = self.choice(tenses.get(who, options).split())
        noun, as_object, subject = self.noun(who, "nom", a=tense == "have")
        placed = who == "thing" or self.choice([True, False])
        if tense == "are":
            part, clause = "end", copula(noun, subject, self.choice(["tired", "sick", "hungry", "happy"]))
        else:
            part, (clause, verb, _) = "place", self.act(noun, subject, tense, who)
            placed = placed and "place" in verb.classes
        if placed:
            prepositions = {"human": "in", "animal": "in under"}.get(who, "on under")
            preposition = self.choice(prepositions.split())
            clause[part] = self.noun(preposition, "dat", preposition)[2]
        if tense in ("are", "have") and "new" not in {as_object, *clause} and self.choice([True, False, False]):
            clause["not"] = leaf("not", "nicht")
        if self.choice([True, False]):
            english, german, _ = self.choice([row for row in TIMES if tense in row[2]])
            time = leaf(" ".join(english), " ".join(german))
            clause["time"] = prepositional(time, english[0] == "in")
        return clause

    def reasoned(self, conjunction: str) -> Phrase:
        """A main clause with one that begins with because, although or when."""
        tenses = {"because": ["cannot", "want", "present"], "although": ["want"]}
        tense = self.choice(tenses.get(conjunction, ["present"]))
        against = conjunction == "although" or tense == "cannot"
        who = self.choice(["human", "human", "animal"])
        noun, _, subject = self.noun(who, "nom")
        main, verb, last = self.act(noun, subject, tense, who)
        front = self.choice([True, False])
        if conjunction == "when":
            noun, _, subject = self.noun("human", "nom")
            side, _, _ = self.act(noun, subject, tense, "human")
        elif against and who == "human" and self.choice([True, False]):
            side, _, _ = self.act(noun, pronoun(noun), "must", "human")
        else:
            states = sorted({"tired", "sick"} - {*verb.reasons})
            state = self.choice(states if against else verb.reasons)
            if state[0] == "+":
                noun, front = last, False
            side = copula(noun, pronoun(noun), state.strip("+"))
        return attach(main, conjunction, side, front)

    def sentence(self) -> Phrase:
        """A sentence of one clause or of two, without its full stop."""
        self.used = set()
        conjunction = self.choice(["", "", "", "that", "because", "although", "when"])
        if conjunction not in ("", "that"):
            return self.reasoned(conjunction)
        clause = self.simple()
        if conjunction:
            noun, _, subject = self.noun("human", "nom")
            finite = agree(noun, FORMS[self.choice(["say", "think"])])
            return attach(Clause(subject=subject, finite=finite), conjunction, clause)
        first = self.choice(["subject", "time"])
        return linearize(clause, first if "time" in clause else "subject")

    def draw(self) -> Phrase:
        """A sentence, without its full stop, in which no noun or verb occurs twice."""
        with suppress(LookupError):  # then draw again
            return self.sentence()
        return self.draw()

    def pair(self) -> tuple[str, str, tuple[tuple[int, int], ...]]:
        """A sentence, its translation, and (target word, source word) links."""
        english, german, _ = join(self.draw(), STOP)
        place = {word: s for s, word in enumerate(english)}
        links = [(t, place[word]) for t, (_, words) in enumerate(german) for word in words]
        texts = (word.text for word in english), (text for text, _ in german)
        return *map(" ".join, texts), tuple(sorted(links))

    def tree(self) -> Tree:
        """A sentence as a tree: S, NP, VP, PP, ADJP, and SBAR for a clause that a conjunction opens."""
        [(label, parts)] = self.draw().constituents
        return tree_of((label, (*parts, *STOP.constituents)))
