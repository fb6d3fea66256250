"""What `benchmarks.reading` counts beside slow counts, and where it looks in models whose flow is known."""

from random import Random
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks import reading
from benchmarks.reading import PLACES, attention, exchanged, of_each_task, on_evidence
from dotformer.data.babi import Story
from dotformer.data.corpora import Corpus
from dotformer.tokens import BPETokenizer
from dotformer.training import evaluate, pair_batches
from tests.reference.strategies import drawn_anew

PEOPLE, THINGS = ("Mary", "John", "Sandra", "Daniel"), ("milk", "apple", "football")


def made_up(count, seed=0):
    """Stories of two kinds: where somebody is, and where a thing is that somebody has."""
    rng, stories = Random(seed), []
    for n in range(count):
        facts = [(person, rng.choice(PLACES)) for person in rng.choices(PEOPLE, k=rng.randint(2, 4))]
        who = rng.randrange(len(facts))
        who = min(k for k, (person, _) in enumerate(facts) if person == facts[who][0])  # the newest
        person, place = facts[who]
        lines = [f"{one} went to the {there}." for one, there in facts]
        evidence, question = [who + 1], f"Where is {person}?"
        if n % 2:
            thing = rng.choice(THINGS)
            lines.append(f"{person} got the {thing}.")
            evidence, question = [len(lines), who + 1], f"Where is the {thing}?"
        stories.append(Story("\n ".join([question, *lines]), place, tuple(evidence), 1 + n % 2))
    return stories


STORIES = made_up(24)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few questions in the place of bAbI's, and small models."""
    corpus = Corpus(STORIES, STORIES, STORIES)
    tokenizer = BPETokenizer.train((f" {text}" for story in STORIES for text in story[:2]), 10_000)
    shape = {"d_model": 8, "num_heads": 2, "num_encoder_layers": 2, "num_decoder_layers": 1, "d_ff": 16}
    monkeypatch.setattr(reading, "learnt", lambda *data: (corpus, tokenizer))
    monkeypatch.setattr(reading, "SHAPE", shape | {"norm_first": True, "share_embeddings": True, "max_length": 64})


def fresh(seed=0):
    """A translator whose model has random parameters, in eval mode."""
    translator = reading.fresh({"dropout": 0.5})
    drawn_anew(translator.model, seed).float().eval()
    return translator


def words(line):
    """The words of a line in small letters."""
    return set(line.lower().replace(".", "").replace("?", "").split())


def test_rules_are_counted_story_by_story():
    hits = {"chance": 0.0, "newest": 0, "shared words": 0}
    for question, _, evidence, _ in ((story.source.split("\n"), *story[1:]) for story in STORIES):
        scores = [len(words(question[0]) & words(fact)) for fact in question[1:]]
        first = next(n for n, score in enumerate(scores, 1) if score == max(scores))
        hits["chance"] += len(evidence) / (len(question) - 1)
        hits["newest"] += 1 in evidence
        hits["shared words"] += first in evidence
    assert 0 < hits["newest"] < hits["shared words"]
    assert reading.rules(STORIES) == {name: round(hit / len(STORIES), 4) for name, hit in hits.items()}
    twice = Story("Who?\n Ann sees Bo.\n Bo sleeps.\n Ed eats.\n Flo runs.", "Ann", (1, 1), 1)
    assert reading.rules([twice]) == {"chance": 0.25, "newest": 1.0, "shared words": 1.0}


def test_rules_that_do_not_look_at_the_question_are_counted_story_by_story():
    for task, found in reading.shortcuts().items():
        some = [story for story in STORIES if story.task == task]
        answers = [story.target for story in some]
        newest = commonest = 0
        for story in some:
            named = [place for line in story.source.split("\n")[1:] for place in PLACES if place in line]
            named = [place for place in named if place in answers]
            newest += named[0] == story.target
            commonest += max(named, key=named.count) == story.target  # the first of equals
        assert found["commonest in training"] == round(max(map(answers.count, answers)) / len(some), 4)
        assert found["newest in the story"] == round(newest / len(some), 4)
        assert found["commonest in the story"] == round(commonest / len(some), 4)


def test_answers_are_held_against_those_of_each_rule():
    some = [story for story in STORIES if story.task == 2]
    guessed = reading.guesses(some)
    newest, wanted = guessed["newest in the story"], [story.target for story in some]
    wrong = [n for n, (one, other) in enumerate(zip(newest, wanted, strict=True)) if one != other]
    assert 1 < len(wrong) < len(some)
    alike = reading.beside_rules(newest, some)
    assert alike["newest in the story"] == [1, 0] and alike["commonest in training"][0] < 1
    assert reading.beside_rules(wanted, some)["newest in the story"] == [round(1 - len(wrong) / len(some), 4), 1]
    answers = [*newest]
    answers[wrong[0]] = wanted[wrong[0]]
    found = reading.beside_rules(answers, some)["newest in the story"]
    assert found == [round(1 - 1 / len(some), 4), round(1 / len(wrong), 4)]
    right = [story for n, story in enumerate(some) if n not in wrong]
    assert reading.beside_rules([story.target for story in right], right)["newest in the story"] == [1, None]


def test_a_rule_for_the_third_task_follows_whoever_came_last():
    facts = ["John went to the office.", "Mary moved to the hallway.", "Mary went back to the garden.",
             "John travelled to the garden.", "John got the milk there.", "Mary journeyed to the office."]  # fmt: skip

    def told(count, place):
        return Story("\n ".join([f"Where was the milk before the {place}?", *facts[:count][::-1]]), "", (), 3)

    assert reading.came_from(told(6, "garden")) == "office"  # John came after Mary
    assert reading.came_from(told(3, "garden")) == "hallway"
    assert reading.came_from(told(6, "office")) == "garden"
    assert reading.came_from(told(4, "office")) is None  # John was nowhere before
    assert reading.came_from(told(6, "kitchen")) is None


def test_evidence_is_found_where_a_weight_on_a_fact_is_the_largest():
    for seed, story in enumerate(STORIES):
        weights = torch.rand(3, 2, story.source.count("\n") + 1, generator=torch.Generator().manual_seed(seed))
        weights[..., 0] *= 5  # the question itself does not count
        found = on_evidence(weights, story)
        expected = [[row.index(max(row[1:]), 1) in story.evidence for row in layer] for layer in weights.tolist()]
        assert found.tolist() == expected


def test_attention_to_lines_sums_to_one():
    translator = fresh()
    for story in STORIES[:6]:
        count = story.source.count("\n") + 1
        weights = attention(translator, story)
        assert weights.shape == (1, 2, count) and (weights >= 0).all()
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 2))
        assert not torch.allclose(weights, torch.full_like(weights, 1 / count), atol=1e-3)


@pytest.fixture
def learned():
    """A reader of facts that has learnt some of the questions, by heart."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        translator = reading.fresh({"dropout": 0.0})
        optimizer = torch.optim.Adam(translator.model.parameters(), lr=0.02)
        batches = list(pair_batches(translator.encode_pairs(STORIES[:12]), max_tokens=4096))
        for source, target in batches * 25:
            logits = translator.model(source, target[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    translator.model.eval()
    return translator


def test_an_answer_is_right_if_each_of_its_tokens_is(learned):
    alone = [evaluate(learned.model, pair_batches(learned.encode_pairs([story])))["exact"] for story in STORIES]
    assert 0 < sum(alone) < len(STORIES)
    assert reading.right(learned, STORIES) == pytest.approx(sum(alone) / len(STORIES), abs=1e-4)
    written = learned.translate([story.source for story in STORIES], beam=1)
    assert [text == story.target for text, story in zip(written, STORIES, strict=True)] == alone


class Known:
    """In the place of a model: layer 1 moves all places to line 1, layer 2 from there to the question; that is read."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.places = [tokenizer.encode(f" {place}")[0] for place in PLACES]
        self.encoder = SimpleNamespace(layers=[self.to_line_1, self.to_the_question], norm=nn.Identity())

    def embed(self, source):
        rows = [self.tokenizer.decode(row).split("\n") for row in source.tolist()]
        x = torch.tensor([[[float(place in line) for place in PLACES] for line in lines] for lines in rows])
        return x, torch.ones(len(rows), 1, 1, x.shape[1])

    encode = embed

    def to_line_1(self, x, mask):
        assert mask.shape == (len(x), 1, 1, x.shape[1])
        return torch.cat([x[:, :1], x.sum(dim=1, keepdim=True), x[:, 2:]], dim=1)

    def to_the_question(self, x, mask):
        return torch.cat([x[:, 1:2], x[:, 1:]], dim=1)

    def decode(self, begin, memory, seen):
        assert len(begin) == len(memory) == len(seen) and (begin == 1).all()
        logits = torch.zeros(len(memory), 1, len(self.tokenizer))
        logits[:, 0, self.places] = memory[:, 0]
        return logits


def two_facts(place, *others):
    """A question that two facts answer: who has the milk is in line 1, where she is in line 2."""
    facts = ["Mary got the milk.", f"Mary went to the {place}.", *others]
    return Story("\n ".join(["Where is the milk?", *facts]), place, (1, 2), 2)


def test_a_line_has_the_answer_from_the_layer_that_moves_it_there_to_the_one_that_moves_it_on():
    _, tokenizer = reading.learnt()
    translator = SimpleNamespace(
        model=Known(tokenizer), target=tokenizer, tokens=lambda text: tokenizer.encode(f" {text}")
    )
    some = [two_facts(place, "Ann sleeps.", "Bo eats.") for place in PLACES]
    left_out = [
        two_facts("office"),  # no line that has nothing to do with it
        two_facts("office", "Ann went to the bathroom."),  # the answer is wrong
        two_facts("garden", "Ann sleeps.")._replace(target="milk store"),  # no fact names the answer
    ]
    found = exchanged(translator, [*left_out, *some])
    moved = {"fact": [1, 0, 0], "other fact": [0, 1, 0], "question": [0, 0, 1], "another": [0, 0, 0]}
    assert found == {"stories": 6} | moved
    assert exchanged(translator, left_out) == {"stories": 0}
    source = "Where is Mary?\n Mary went to the kitchen.\n Ann sleeps."
    found = exchanged(translator, [Story(source, "kitchen", (1,), 1)])
    assert found == {"stories": 1, "fact": [1, 1, 0], "question": [0, 0, 1], "another": [0, 0, 0]}


def test_some_questions_of_each_task_are_always_the_same():
    some = of_each_task(STORIES, 5)
    assert some == of_each_task(STORIES, 5) and some.keys() == {1, 2}
    for task, stories in some.items():
        assert len(set(stories)) == 5 and {story.task for story in stories} == {task}


def test_one_model_is_trained_and_judged(monkeypatch):
    monkeypatch.setattr(reading, "VALIDATED", 6)
    monkeypatch.setattr(reading, "SAMPLED", 4)
    monkeypatch.setattr(reading, "of_each_task", lambda stories, count: of_each_task(stories, min(count, 12)))
    threads = torch.get_num_threads()
    reading.encoded.cache_clear()
    try:
        job = {"corpus": "babi", "part": "judge", "model": "facts", "seed": 0}
        found = reading.run(job | {"settings": {"learning_rate": 0.01, "dropout": 0.0, "steps": 10}})
        assert found["right"].keys() == found["answer_on_evidence"].keys() == {1, 2}
        assert len(found["validation_exact"]) == 5 and found["parameters"] > 1000
        failed = found["mistakes"][1]
        assert sum(times for _, times in failed) <= 4 and len(found["shown"][1]) <= 2
    finally:
        reading.encoded.cache_clear()
        torch.set_num_threads(threads)


def test_search_begins_within_its_axes():
    assert reading.START.keys() == reading.AXES.keys()
    assert all(reading.START[name] in values for name, values in reading.AXES.items())
