"""The tokenizer beside the library `tokenizers`, on Multi30k: `DOTFORMER_DATA=folder python -m benchmarks.tokens`.

Both learn the same number of merges from the same sentences, then cut them; medians of five runs each, one thread. The
result goes to book/measurements/tokens.json, which chapter 10 shows.
"""

import gzip
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "1"  # the library's threads; read when it is imported

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from benchmarks.results import save
from dotformer.tokens import BPETokenizer

PATTERN = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
VOCAB_SIZE, RUNS = 8000, 5


def seconds(action: Callable[[], object]) -> float:
    """The median duration of an action."""
    durations = []
    for _ in range(RUNS):
        start = time.perf_counter()
        action()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


def learned_by_library(sentences: list[str]) -> Tokenizer:
    """The library's byte-pair encoding with the same cut into words, trained."""
    library = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<pad>", "<begin>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(sentences, trainer)
    return library


def main() -> None:
    """Measure and save, or say what is missing."""
    folder = os.environ.get("DOTFORMER_DATA")
    files = [Path(folder or "", f"train.{language}.gz") for language in ("en", "de")]
    if not folder or not all(file.is_file() for file in files):
        sys.exit("DOTFORMER_DATA must name a folder with train.en.gz and train.de.gz of Multi30k")
    sentences = [line for file in files for line in gzip.decompress(file.read_bytes()).decode().splitlines()]
    ours, library = BPETokenizer.train(sentences, VOCAB_SIZE), learned_by_library(sentences)
    fresh = ours.merges
    result = {
        "sentences": len(sentences),
        "vocab_size": VOCAB_SIZE,
        "training": {
            "ours": seconds(lambda: BPETokenizer.train(sentences, VOCAB_SIZE)),
            "library": seconds(lambda: learned_by_library(sentences)),
        },
        "encoding": {
            "ours, words known": seconds(lambda: [ours.encode(sentence) for sentence in sentences]),
            "ours, from nothing": seconds(lambda: list(map(BPETokenizer(fresh).encode, sentences))),
            "library": seconds(lambda: [library.encode(sentence) for sentence in sentences]),
            "library, as a batch": seconds(lambda: library.encode_batch(sentences)),
        },
    }
    save("tokens", result)


if __name__ == "__main__":
    main()
