"""A folder in which a model is trained: its configuration, tokenizers, parameters and log."""

import hashlib
import inspect
import json
import tomllib
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_origin

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model

from dotformer.command_line.models import FIXED, MODELS, check_kind, longest_text, new_translator
from dotformer.data import corpora
from dotformer.data.babi import babi
from dotformer.data.summaries import summaries
from dotformer.devices import pad_vocabulary
from dotformer.parsing import craft, trees
from dotformer.reading import stories
from dotformer.support.files import replacing
from dotformer.tokens import BPETokenizer
from dotformer.training import TrainingConfig
from dotformer.translation import Translator


def parallel(train: list[str], validation: list[str], test: list[str]) -> corpora.Corpus:
    """Three pairs of text files, source and target."""
    return corpora.Corpus(*(corpora.parallel(*pair) for pair in (train, validation, test)))


@dataclass(frozen=True)
class Tokens:
    """How many tokens to learn, whether both sides share them, and (a run adds this) a hash of what was learnt.

    The rows of the output matrix are filled up to a `multiple`.
    """

    vocab_size: int = 10_000
    shared: bool = False
    multiple: int = 1
    learnt: str = ""


@dataclass(frozen=True)
class Training(TrainingConfig):
    """A training, with the number of tokens in a batch, and how a step is computed.

    Parameters are float32 in any case; products in float16 would need a loss scale. With `compile`, layers and loss are
    compiled; with `cuda_graphs`, steps are recorded and repeated; with `checkpointing`, activations inside layers are
    computed twice and not kept.
    """

    max_tokens: int = 4096
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    compile: bool = False
    cuda_graphs: bool = False
    checkpointing: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cuda_graphs and (self.checkpointing or self.accumulation_steps > 1):
            raise ValueError("cuda_graphs goes with neither checkpointing nor accumulation_steps")


CORPORA = {name: getattr(corpora, name) for name in ("number_words", "grammar", "cmudict", "multi30k", "docstrings")}
CORPORA |= {"trees": trees, "craft": craft, "stories": stories, "babi": babi, "summaries": summaries}
SECTIONS: dict[str, tuple[str, dict[str, Callable[..., Any]]]] = {  # the key that chooses, and what there is
    "data": ("corpus", CORPORA | {"parallel": parallel}),
    "tokens": ("", {"": Tokens}),
    "model": ("kind", {kind: parts[0] for kind, parts in MODELS.items()}),
    "training": ("", {"": Training}),
}
RENAMED = {  # keys of [training] in earlier versions
    "rate": "learning_rate",
    "warmup": "warmup_steps",
    "smoothing": "label_smoothing",
    "clip": "max_grad_norm",
    "accumulate": "accumulation_steps",
    "every": "validate_every",
}
PARTS, SIDES = ("train", "validation", "test"), ("source", "target")
FILES = ("source.json", "target.json", "model.safetensors", "log.csv", "checkpoint.safetensors")
WANTED = {int: "a whole number", float: "a number", bool: "true or false", list[str]: "two file names"}


def fits(value: Any, kind: Any) -> bool:
    """Whether a value from a file is of that kind."""
    if kind in (int, float):
        return (type(value) is int and abs(value) < 2**31) or type(value) is kind is float
    if get_origin(kind) is Literal:
        return isinstance(value, str)
    if kind == list[str]:
        return isinstance(value, list) and list(map(type, value)) == [str, str]
    return isinstance(value, kind)


def section(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """A section with all its keys. ValueError names the section, and the key that is wrong or missing."""
    choice, choices = SECTIONS[name]
    chosen = given.pop(choice, next(iter(choices)))
    if chosen not in list(choices):
        raise ValueError(f"[{name}] {choice} must be one of {', '.join(choices)}, not {chosen!r}")
    fixed = () if name == "tokens" else FIXED
    keys = {key: p for key, p in inspect.signature(choices[chosen]).parameters.items() if key not in fixed}
    for key, value in given.items():
        if key not in keys and name == "training" and key in RENAMED:
            raise ValueError(f"[training] {key} is called {RENAMED[key]} now")
        if key not in keys:
            raise ValueError(f"[{name}] has no key {key}; there are {', '.join(filter(None, [choice, *keys]))}")
        if not fits(value, keys[key].annotation):
            wanted = WANTED.get(keys[key].annotation, "a text in quotes")
            raise ValueError(f"[{name}] {key} must be {wanted}, not {value!r}")
    for key, parameter in keys.items():
        if given.setdefault(key, parameter.default) is parameter.empty:
            raise ValueError(f"[{name}] needs {key}")
    return ({choice: chosen} if choice else {}) | given


@contextmanager
def named(place: str) -> Iterator[None]:
    """Put a `place` in front of what an error says, and make it a ValueError."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{place} {error}") from error


class Run:
    """A folder in which a model is trained; `path` is its configuration, TOML or, once it has begun, its config.json.

    Raises ValueError, which names section and key, for a configuration that cannot be.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.folder = folder
        with named(f"{path}:"):
            content = (json if path.suffix == ".json" else tomllib).loads(path.read_text(encoding="utf-8"))
            if not isinstance(content, dict):
                raise ValueError("there are no sections")
            for name, given in content.items():
                if name not in SECTIONS or not isinstance(given, dict):
                    raise ValueError(f"there is no section [{name}]; there are {', '.join(SECTIONS)}")
            self.config = {name: section(name, dict(content.get(name, {}))) for name in SECTIONS}
            data, model, tokens = (self.config[name] for name in ("data", "model", "tokens"))
            if model.get("share_embeddings") and not tokens["shared"]:
                raise ValueError("[model] share_embeddings needs [tokens] shared = true")
            if tokens["multiple"] < 1 or (tokens["multiple"] > 1 and model["kind"] == "copying"):
                raise ValueError(f"[tokens] multiple cannot be {tokens['multiple']} for kind {model['kind']}")
            with named("[model]"):
                check_kind(model["kind"], model, tokens["shared"])
            with named("[training]"):
                self.training = Training(**self.config["training"])
        if data["corpus"] == "parallel":
            data |= {part: [str((path.parent / name).absolute()) for name in data[part]] for part in PARTS}
        self.longest = min(longest_text(model["kind"], model), self.training.max_tokens)

    @classmethod
    def load(cls, folder: Path) -> "Run":
        """The run that a folder holds."""
        if not (folder / "config.json").exists():
            raise FileNotFoundError(f"{folder} holds no run: there is no config.json")
        return cls(folder / "config.json", folder)

    @classmethod
    def begin(cls, path: Path, folder: Path) -> "Run":
        """A run as `path` wants it, or the one in the folder. ValueError when that is another."""
        new = cls(path, folder)
        strange = [name for name in FILES if (folder / name).exists()]
        if not (folder / "config.json").exists():
            if strange:
                raise ValueError(f"{folder} holds a {strange[0]}, but no config.json: choose another --output")
            return new
        old = cls.load(folder)
        for name, values in old.config.items():
            for key in values | new.config[name]:
                before, now = values.get(key), new.config[name].get(key)
                if before != now and key != "learnt":
                    raise ValueError(
                        f"{folder} was begun with [{name}] {key} = {before!r}, not {now!r}: change it"
                        " back, or choose another --output"
                    )
        return old

    @cached_property
    def corpus(self) -> corpora.Corpus:
        """The data. ValueError when there is none to learn from, or a line is so long that it must be a mistake."""
        options = dict(self.config["data"])
        with named("[data]"):
            corpus = SECTIONS["data"][1][options.pop("corpus")](**options)
            if not corpus.train or not corpus.validation:
                raise ValueError("leaves no pairs for train or for validation")
        for part in PARTS:
            self.check(part, [pair[:2] for pair in getattr(corpus, part)], 32 * self.longest, "characters")
        return corpus

    def encode_part(self, translator: Translator, part: str) -> list[tuple[list[int], list[int]]]:
        """The token numbers of a part of the corpus. ValueError when there are too many in a line, or no line."""
        pairs = translator.encode_pairs(getattr(self.corpus, part))
        if not pairs:
            raise ValueError(f"[data] leaves no pairs for {part}")
        self.check(part, pairs, self.longest, "tokens")
        return pairs

    def check(self, part: str, pairs: Sequence[Sequence[Sized]], limit: int, unit: str) -> None:
        """Raise ValueError, which says where, when one side of a pair is longer than `limit`."""
        files = self.config["data"].get(part) if self.config["data"]["corpus"] == "parallel" else None
        for n, pair in enumerate(pairs, 1):
            for side, row in enumerate(pair):
                if len(row) > limit:
                    place = files[side] if files else f"{part}, {SIDES[side]}"
                    raise ValueError(f"[data] {place}, line {n}: {len(row):,} {unit}, more than the {limit:,} that fit")

    def tokenizer(self, side: str) -> BPETokenizer:
        """The tokenizer of a side, "source" or "target", learnt unless that has been done."""
        tokens, path = self.config["tokens"], self.folder / f"{side}.json"
        if path.exists():
            return BPETokenizer.load(path)
        sides = SIDES if tokens["shared"] else (side,)
        texts = (f" {getattr(pair, name)}" for pair in self.corpus.train for name in sides)
        with named("[tokens]"):
            return BPETokenizer.train(texts, tokens["vocab_size"])

    def translator(self) -> Translator:
        """A fresh model, its parameters drawn with the training's seed. ValueError when a tokenizer is another's."""
        shape, tokens = dict(self.config["model"]), self.config["tokens"]
        source = self.tokenizer("source")
        both = source, source if tokens["shared"] else self.tokenizer("target")
        learnt = hashlib.sha256(json.dumps([[t.special_tokens, t.merges] for t in both]).encode()).hexdigest()
        if tokens["learnt"] not in ("", learnt):
            raise ValueError(f"{self.folder}: source.json or target.json is not what this run was begun with")
        tokens["learnt"] = learnt
        with named("[model]"), torch.random.fork_rng():
            torch.manual_seed(self.training.seed)
            translator = new_translator(*both, shape.pop("kind"), shape)
        if tokens["multiple"] > 1:
            pad_vocabulary(translator.model, tokens["multiple"])
        return translator

    def trained(self, device: str) -> Translator:
        """The model as it was when its validation loss was lowest."""
        path, translator = self.folder / "model.safetensors", self.translator()
        if not path.exists():
            raise FileNotFoundError(f"{path} is not there: train first")
        try:
            load_model(translator.model, path)
        except (RuntimeError, SafetensorError) as error:  # the first for names and shapes, of which it lists all
            raise ValueError(f"{path} holds another model, or is damaged") from error
        translator.model.to(device)
        return translator

    def save(self, translator: Translator) -> None:
        """Write, where it is not there yet, what belongs to the parameters that will come."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "config.json").exists():
            write_json(self.folder / "config.json", self.config)
        for side in SIDES:
            if not (self.folder / f"{side}.json").exists():
                getattr(translator, side).save(self.folder / f"{side}.json")


def write_json(path: Path, content: Any) -> None:
    """Write a file whole or not at all."""
    with replacing(path) as draft:
        draft.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
