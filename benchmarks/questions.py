"""Reading without training for it: `python -m benchmarks.questions`.

Which sentence of its paragraph answers each of XQuAD's 1,190 questions: as often as rules by shared words and chapter
15's encoder find it. Then what SmolLM2-135M-Instruct replies, always the likeliest token, 128 at most, in a fresh
conversation each: to questions about paragraphs of XQuAD, to two bAbI tasks, and to docstrings of networkx that it
shall sum up, beside simple baselines. All are shares, 0 to 1, except ROUGE, 0 to 100; "cut" is the
share of replies that take all 128. Takes some forty minutes of one core.
"""

import math
import re
import string
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import eq
from random import Random
from typing import Any

import torch
from tokenizers import Tokenizer

from benchmarks.reading import PLACES, of_each_task
from benchmarks.results import save
from dotformer.data.babi import Story, babi
from dotformer.data.summaries import summaries
from dotformer.data.xquad import Question, xquad
from dotformer.modern import ModernCache, ModernGPT, load_smollm2
from dotformer.pretrained import load_minilm, search
from dotformer.reading import rouge_scores
from dotformer.support.chat import Chat

COUNT, LENGTH, SHOWN = 100, 128, 3
FEW, ONE = "Answer with a few words from the text.", "Answer with one word."
SUM_UP = "Say in one short sentence what this function does."


def mean(values: Iterable[float]) -> float:
    """The mean, with four digits."""
    some = list(values)
    return round(sum(some) / len(some), 4)


def words(text: str) -> set[str]:
    """The words of a text, in small letters."""
    return set(re.findall(r"\w+", text.lower()))


def idf(sentences: Sequence[str]) -> dict[str, float]:
    """The inverse document frequency of each word: ln(N / n), where n of N sentences have it."""
    counts = Counter(word for sentence in sentences for word in words(sentence))
    return {word: math.log(len(sentences) / n) for word, n in counts.items()}


def most_shared(question: Question, weight: Callable[[str], float]) -> int:
    """The number of the sentence whose words, as far as the question has them, weigh most; the first of equals."""
    of_question = words(question.text)
    sums = [math.fsum(map(weight, of_question & words(sentence))) for sentence in question.sentences]
    return sums.index(max(sums))


def compared(one: Sequence[bool], other: Sequence[bool]) -> dict[str, float]:
    """How often both are right, or one where the other is wrong; McNemar's exact test, with two sides."""
    counts = Counter(zip(one, other, strict=True))
    first, second = counts[True, False], counts[False, True]
    n = first + second
    p = min(1.0, 2 * sum(math.comb(n, k) for k in range(min(first, second) + 1)) / 2**n)
    return {"both": counts[True, True], "first": first, "second": second, "neither": counts[False, False], "p": p}


def sentences_chosen(questions: list[Question]) -> dict[str, Any]:
    """How often each way to choose a sentence finds the one with the answer, and how many words it shares.

    "random" is what chance would be expected to find. Of a question's words, `words_shared` has the mean share that are
    in the answer's sentence too, and in each of the others.
    """
    start, encoder = time.process_time(), load_minilm()
    paragraphs = dict.fromkeys(question.sentences for question in questions)
    weights = idf([sentence for paragraph in paragraphs for sentence in paragraph])
    chosen = {
        "first": [0] * len(questions),
        "shared_words": [most_shared(question, lambda word: 1) for question in questions],
        "idf": [most_shared(question, weights.__getitem__) for question in questions],
        "minilm": [
            best
            for sentences, some in groupby(questions, lambda question: question.sentences)
            for [(_, best)] in search(encoder, sentences, [question.text for question in some], best=1)
        ],
    }
    wanted = [question.sentence for question in questions]
    hits = {name: list(map(eq, numbers, wanted)) for name, numbers in chosen.items()}
    shared: dict[bool, list[float]] = {True: [], False: []}
    for question in questions:
        of_question = words(question.text)
        for n, sentence in enumerate(question.sentences):
            shared[n == question.sentence].append(len(of_question & words(sentence)) / len(of_question))
    right = {"random": mean(1 / len(question.sentences) for question in questions)}
    return {
        "questions": len(questions),
        "paragraphs": len(paragraphs),
        "right": right | {name: mean(some) for name, some in hits.items()},
        "minilm_shared_words": compared(hits["minilm"], hits["shared_words"]),
        "minilm_idf": compared(hits["minilm"], hits["idf"]),
        "words_shared": {"answer": mean(shared[True]), "others": mean(shared[False])},
        "seconds": round(time.process_time() - start, 1),
    }


def normalised(text: str) -> str:
    """As SQuAD's script compares texts: small letters, no punctuation, no articles, single spaces."""
    plain = text.lower().translate(str.maketrans("", "", string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


def f1(reply: str, answer: str) -> float:
    """The harmonic mean of precision and recall of a reply's words, both texts `normalised`."""
    one, other = reply.split(), answer.split()
    same = (Counter(one) & Counter(other)).total()
    return 2 * same / (len(one) + len(other)) if same else 0.0


def squad_scores(replies: Sequence[str], questions: Sequence[Question]) -> dict[str, float]:
    """SQuAD's exact match and F1, by the best of the answers, and how many replies contain one as whole words."""
    scores: dict[str, list[float]] = {"exact": [], "f1": [], "contains": []}
    for text, question in zip(replies, questions, strict=True):
        reply, answers = normalised(text), [normalised(answer) for answer in question.answers]
        scores["exact"].append(reply in answers)
        scores["f1"].append(max(f1(reply, answer) for answer in answers))
        scores["contains"].append(any(f" {answer} " in f" {reply} " for answer in answers))
    return {name: mean(some) for name, some in scores.items()}


def first_place(text: str) -> str | None:
    """The place that a text names first, or None."""
    found = re.search(rf"\b({'|'.join(PLACES)})\b", text.lower())
    return found and found[0]


def place_scores(replies: Sequence[str], stories: Sequence[Story]) -> dict[str, float]:
    """How often the first place in a reply is right, and how often there is none.

    Beside them how often the place is right that the story names last, whose facts come newest first, and chance.
    """
    named, golds = [first_place(reply) for reply in replies], [story.target for story in stories]
    last = [first_place(story.source) for story in stories]
    scores = {"right": mean(map(eq, named, golds)), "no_place": mean(place is None for place in named)}
    return scores | {"named_last": mean(map(eq, last, golds)), "chance": mean([1 / len(PLACES)])}


def asked(
    smollm2: tuple[ModernGPT, Tokenizer, str], prompts: Sequence[str], golds: Sequence[str]
) -> tuple[list[str], dict[str, Any]]:
    """What the model replies to each prompt; and what is kept, with a few of them: prompt's end, gold, reply."""
    model, *rest = smollm2
    start, bits = time.process_time(), []
    for prompt in prompts:
        chat = Chat(ModernCache(model, torch.zeros(1, 0, dtype=torch.long)), *rest)
        bits.append(list(chat.reply(prompt, LENGTH)))
    replies = ["".join(some) for some in bits]
    shown = [(prompt[-200:], *both) for prompt, *both in zip(prompts, golds, replies, strict=True)][:SHOWN]
    seconds = round(time.process_time() - start, 1)
    cut = mean(len(some) == LENGTH for some in bits)
    return replies, {"asked": len(prompts), "cut": cut, "seconds": seconds, "shown": shown}


def main() -> None:
    """Measure all of it."""
    torch.set_num_threads(1)
    questions, smollm2 = xquad(), load_smollm2()
    found: dict[str, Any] = {"sentences": sentences_chosen(questions)}
    some = Random(0).sample(questions, COUNT)
    golds = [question.answers[0] for question in some]
    prompts = [f"{' '.join(question.sentences)}\n\n{question.text} {FEW}" for question in some]
    replies, kept = asked(smollm2, prompts, golds)
    found["xquad"] = squad_scores(replies, some) | kept
    best = [question.sentences[most_shared(question, lambda word: 1)] for question in some]
    found["xquad"]["shared_words"] = squad_scores(best, some)
    for task, stories in of_each_task(babi("1 2").test, COUNT).items():
        lines = [story.source.split("\n ") for story in stories]
        texts = ["\n".join([*reversed(facts), question, ONE]) for question, *facts in lines]
        replies, kept = asked(smollm2, texts, [story.target for story in stories])
        found[f"babi_{task}"] = place_scores(replies, stories) | kept
    pairs = Random(0).sample([pair for pair in summaries().test if pair.package == "networkx"], COUNT)
    replies, kept = asked(smollm2, [f"{pair.source}\n\n{SUM_UP}" for pair in pairs], [pair.target for pair in pairs])
    first = rouge_scores([pair.sentences[0] for pair in pairs], pairs)
    found["networkx"] = {"smollm2": rouge_scores(replies, pairs), "first_sentence": first} | kept
    save("questions", found)


if __name__ == "__main__":
    main()
