"""Tangled from chapters/13_translation.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import NamedTuple


@dataclass(eq=False)
class Word:
    """An English word of one sentence; equal to no other, whatever its text.

    Defined in chapter 13, "German by rules".
    """

    text: str


class Phrase(NamedTuple):
    """Both sides of a phrase; each German word has the English words it renders.

    Defined in chapter 13, "German by rules".
    """

    english: list[Word]
    german: list[tuple[str, list[Word]]]


def leaf(english: str, german: str) -> Phrase:
    """Word for word from the right; the first German word renders all the rest.

    Defined in chapter 13, "German by rules".
    """
    words, texts = [Word(text) for text in english.split()], german.split()
    first = len(words) - len(texts) + 1
    links = [words[:first], *([word] for word in words[first:])]
    return Phrase(words, list(zip(texts, links, strict=True)))


def join(*phrases: Phrase) -> Phrase:
    """Several phrases as one, in the same order on both sides.

    Defined in chapter 13, "German by rules".
    """
    return Phrase(
        [word for phrase in phrases for word in phrase.english],
        [word for phrase in phrases for word in phrase.german],
    )


class Noun(NamedTuple):
    """A noun, a name or a pronoun, and what may stand before it.

    Defined in chapter 13, "German by rules".
    """

    english: tuple[str, ...]  # of a pronoun: subject, object
    german: tuple[str, ...]  # of a pronoun: nominative, accusative, dative
    gender: str  # m, f, n or p, plural; of I and we 1 and 2
    kinds: tuple[str, ...]
    articles: tuple[str, ...]  # my: or his, or her
    looks: tuple[str, ...]


class Verb(NamedTuple):
    """A verb, the case and the kind of each object, and reasons to do it.

    Defined in chapter 13, "German by rules".
    """

    english: tuple[str, ...]  # base, participle, what follows
    german: tuple[str, ...]  # infinitive, with er, participle, separable prefix
    objects: tuple[str, ...]
    kinds: tuple[str, ...]  # who does it; whether it has a place
    reasons: tuple[str, ...]  # what the subject is like; +: what the object is


class Lexicon(NamedTuple):
    """The words of the grammar.

    Defined in chapter 13, "German by rules".
    """

    nouns: list[Noun]
    verbs: list[Verb]
    forms: dict[str, tuple[str, ...]]  # with I, he and we; in German likewise
    words: dict[str, str]
    times: list[list[tuple[str, ...]]]


@cache
def lexicon() -> Lexicon:
    """All words, read once from tables whose cells are tuples of words.

    Defined in chapter 13, "German by rules".
    """

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


def endings(case: str, gender: str) -> list[str]:
    """The article, and how ein ends, an adjective after the, and one after ein.

    Defined in chapter 13, "German by rules".
    """
    rows = {
        "nom": "der die das die | -  e  -  e  | e  e  e  en | er e  es en",
        "acc": "den die das die | en e  -  e  | en e  e  en | en e  es en",
        "dat": "dem der dem den | em er em en | en en en en | en en en en",
    }
    column = "mfnp".index(gender)
    return [part.split()[column].strip("-") for part in rows[case].split("|")]


def noun_phrase(noun: Noun, case: str, before: str = "", look: str = "") -> Phrase:
    """A noun behind its preposition, article and adjective; in German all agree.

    Defined in chapter 13, "German by rules".
    """
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
    """The subject that stands for a noun; German has er, sie and es for it.

    Defined in chapter 13, "German by rules".
    """
    same = [x for x in lexicon().nouns if x.german[1:] and x.gender == noun.gender]
    it = noun.gender in "mfn" and "human" not in noun.kinds
    return leaf("it" if it else same[0].english[0], same[0].german[0])


class Clause(dict[str, Phrase]):
    """The parts of a clause by name, in no order.

    Defined in chapter 13, "German by rules".
    """


def arrange(clause: Clause, first: str = "subject", opening: str = "") -> Phrase:
    """One tree in two orders: the parts of a clause in English and in German.

    The part called `first` comes first in both. In German the finite verb follows,
    but in a clause that a conjunction opens it comes last, in one word with its
    prefix.

    Defined in chapter 13, "German by rules".
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


def agree(noun: Noun, forms: tuple[str, ...]) -> Phrase:
    """Of the forms with I, he and we, English and German, those for the subject.

    Defined in chapter 13, "German by rules".
    """
    person = {"1": 0, "2": 2, "p": 2}.get(noun.gender, 1)
    return leaf(forms[person], forms[person + 3])


def conjugate(verb: Verb, tense: str, noun: Noun) -> Clause:
    """The verb as parts of a clause: the finite verb, and what is left for the end.

    The tense is the present, or the name of an auxiliary: have (the perfect), can,
    cannot, must or want. In the present only a separable prefix is left.

    Defined in chapter 13, "German by rules".
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


def attach(main: Clause, word: str, side: Clause, front: bool = False) -> Phrase:
    """A main clause, and behind it or in `front` of it one that a word opens.

    German has a comma between them, English only behind a clause in front.

    Defined in chapter 13, "German by rules".
    """
    opening = leaf(word, lexicon().words[word])
    clause = join(opening, arrange(side, opening=word))
    if front:
        return arrange(Clause(main, clause=join(clause, leaf(",", ","))), "clause")
    comma = Phrase([], [(",", opening.english)])
    return arrange(Clause(main, clause=join(comma, clause)))


class Sampler:
    """Draws sentences that make sense.

    Defined in chapter 13, "German by rules".
    """

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
        noun, kind, subject = self.noun(who, "nom", a=tense == "have")
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
        negated = tense in ("are", "have") and "new" not in {kind, *clause}
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
