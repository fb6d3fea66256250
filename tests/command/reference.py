"""What the commands should find, computed slowly, sentence by sentence in plain PyTorch, and without the commands."""

import hashlib
import json
from contextlib import nullcontext
from itertools import chain, count, islice
from unittest import mock

import torch
from safetensors.torch import load_model
from torch.nn import functional as F

from dotformer.data import corpora
from dotformer.data.corpora import Corpus, Pair
from dotformer.generation import KVCache, beam_search, filter_logits
from dotformer.gpt import GPT, GPTConfig
from dotformer.modern import ModernConfig, ModernGPT
from dotformer.reading import CopyingCache, CopyingTransformer, FactTransformer
from dotformer.recurrent import RecurrentConfig, RecurrentSeq2Seq, RecurrentState
from dotformer.tokens import BPETokenizer
from dotformer.training import pair_batches
from dotformer.transformer import Transformer, TransformerConfig

NOUNS = {"dog": "Hund", "cat": "Katze", "bird": "Vogel", "fish": "Fisch", "horse": "Pferd"}
VERBS = {"sees": "sieht", "hears": "hört", "runs": "läuft", "sings": "singt"}


def sentences(words):
    """Pairs of a noun and a verb; how the n-th is written depends on n, so that capitals cannot be guessed."""
    pairs = []
    for n, (noun, verb) in enumerate(words):
        source, target = f"the {noun} {verb}", f"{(NOUNS | {'whale': 'Wal', 'owl': 'Eule'})[noun]} {VERBS[verb]}"
        if n % 5 == 2:
            source, target = f"Yes, {source}!", f"Ja, {target}!"
        pairs.append(Pair(source, target.lower() if n % 3 == 1 else target))
    return pairs


ALL = [(noun, verb) for noun in NOUNS for verb in VERBS]
CORPUS = Corpus(  # the whale is in validation alone, the owl in test alone; sources occur several times
    sentences(2 * ALL[:-3] + ALL[4:]),
    sentences([("whale", verb) for verb in VERBS] + ALL[1::3]),
    sentences([("owl", "sees"), ("owl", "hears")] + 2 * ALL[::2] + ALL[-3:]),
)
WORDS = {  # a dictionary for cmudict: each fourth word has one pronunciation, the others have three
    f"{a}{b}{c}": [["T", a, "IY1"]] if b == "i" else [["D", a, b], [c, "AH0"], [b, "IY2", c]]
    for a in "bcdfg" for b in "aiou" for c in "lr"
}  # fmt: skip
DEFAULTS = {
    "tokens": {"vocab_size": 10_000, "shared": False, "multiple": 1},
    "transformer": {"d_model": 512, "num_heads": 8, "num_encoder_layers": 6, "num_decoder_layers": 6, "d_ff": 2048}
    | {"dropout": 0.1, "max_length": 1024, "norm_first": False, "final_norm": None, "activation": "relu"}
    | {"layer_norm_eps": 1e-5}
    | {"share_embeddings": False, "tie_output": True},
    "recurrent": {"d_model": 256, "num_layers": 1, "dropout": 0.1, "cell": "lstm", "attention": True}
    | {"share_embeddings": False, "tie_output": True},
    "gpt": {"d_model": 768, "num_heads": 12, "num_layers": 12, "d_ff": 3072, "dropout": 0.1, "max_length": 1024}
    | {"norm_first": True, "final_norm": None, "activation": "gelu", "layer_norm_eps": 1e-5},
    "modern": {"max_length": 2048, "rope_base": 1e4, "norm_eps": 1e-5, "tied": True},
    "training": {
        "steps": 2000,
        "learning_rate": 1e-3,
        "warmup_steps": 200,
        "schedule": "linear",
        "label_smoothing": 0.1,
    }
    | {
        "max_grad_norm": 1.0,
        "accumulation_steps": 1,
        "validate_every": 200,
        "seed": 0,
        "max_tokens": 4096,
        "precision": "float32",
        "compile": False,
        "cuda_graphs": False,
        "checkpointing": False,
    },
}
DEFAULTS |= dict.fromkeys(("facts", "copying"), DEFAULTS["transformer"])

SMALL = {
    "tokens": {"vocab_size": 300},
    "model": {"d_model": 8, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 8}
    | {"max_length": 32},
    "training": {"steps": 4, "learning_rate": 0.05, "warmup_steps": 2, "validate_every": 2, "max_tokens": 96},
}


def changed(config, section, values):
    """A configuration with other values in a section."""
    return config | {section: config[section] | values}


def digests():
    """Of corpora, to be compared between processes."""
    with mock.patch("cmudict.dict", lambda: WORDS):
        found = [corpora.number_words(50, 5, 5), corpora.grammar(50, 5, 5), corpora.cmudict(5, 5)]
    return [hashlib.sha256(repr(corpus).encode()).hexdigest() for corpus in found]


def full(config):
    """A configuration with all its keys, apart from those of [data]."""
    kind = config["model"].get("kind", "transformer")
    return {
        "tokens": DEFAULTS["tokens"] | config.get("tokens", {}),
        "model": {"kind": kind} | DEFAULTS[kind] | config["model"],
        "training": DEFAULTS["training"] | config.get("training", {}),
    }


def toml(config):
    """A configuration as it stands in a file: values are written there as in JSON."""
    lines = [
        [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in given.items())]
        for name, given in config.items()
    ]
    return "\n".join(chain.from_iterable(lines)) + "\n"


def tokenizers(config, pairs):
    """Those of the source and of the target, learnt from pairs."""
    sides = [[f" {text}" for text in side] for side in ([p.source for p in pairs], [p.target for p in pairs])]
    if config["tokens"]["shared"]:
        sides = [sides[0] + sides[1]] * 2
    return [BPETokenizer.train(side, config["tokens"]["vocab_size"]) for side in sides]


def encoded(both, pairs):
    """The tokens of pairs, those of the target between marks."""
    return [(both[0].encode(f" {pair.source}"), both[1].encode(f" {pair.target}", True)) for pair in pairs]


def fresh(config, both):
    """A model as it starts, for two tokenizers."""
    shape = dict(config["model"])
    kinds = {"transformer": (TransformerConfig, Transformer), "recurrent": (RecurrentConfig, RecurrentSeq2Seq)}
    kinds |= {"gpt": (GPTConfig, GPT), "modern": (ModernConfig, ModernGPT)}
    kinds |= {"facts": (TransformerConfig, FactTransformer), "copying": (TransformerConfig, CopyingTransformer)}
    if (kind := shape.pop("kind")) in ("gpt", "modern"):
        shaped, model = kinds[kind]
        return model(shaped(vocab_size=len(both[1]), **shape))
    shaped, model = kinds[kind]
    return model(shaped(len(both[0]), len(both[1]), **shape))


def kept(config, both, folder):
    """The model that a run has kept."""
    model = fresh(config, both)
    load_model(model, folder / "model.safetensors")
    return model.eval()


@torch.no_grad()
def judged(model, pairs):
    """How well a model predicts the targets of encoded pairs, one by one and word by word."""
    loss, right, tokens, exact = 0.0, 0, 0, 0
    for source, target in pairs:
        logits = model.eval()(torch.tensor([source]), torch.tensor([target[:-1]]))[0]
        logs = logits.double().log_softmax(dim=-1).tolist()
        hits = [max(range(len(row)), key=row.__getitem__) == word for row, word in zip(logs, target[1:], strict=True)]
        loss -= sum(row[word] for row, word in zip(logs, target[1:], strict=True))
        right, tokens, exact = right + sum(hits), tokens + len(hits), exact + all(hits)
    return {"loss": loss / tokens, "accuracy": right / tokens, "exact": exact / len(pairs)}


def rate_at(step, training):
    """The learning rate of a step: up in a line, then down in a line or as 1 / sqrt(step)."""
    peak, warmup = training["learning_rate"], training["warmup_steps"]
    if step <= warmup:
        return peak * step / warmup
    if training["schedule"] == "inverse_sqrt":
        return peak * (warmup / step) ** 0.5
    return peak * (training["steps"] + 1 - step) / (training["steps"] + 1 - warmup)


def learn(config, corpus=CORPUS):
    """What a run should leave: tokenizers, rows of the log, the best parameters, and the state of Adam."""
    config = full(config)
    both, training = tokenizers(config, corpus.train), config["training"]
    pairs, held_out = encoded(both, corpus.train), encoded(both, corpus.validation)
    half = torch.autocast("cpu", torch.bfloat16) if training["precision"] == "bfloat16" else nullcontext()
    rows, best, losses, tokens = [], None, 0, 0
    with torch.random.fork_rng():
        torch.manual_seed(training["seed"])
        model = fresh(config, both)
        torch.manual_seed(training["seed"])
        adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
        sizes = training["max_tokens"], 0, training["seed"]
        data = chain.from_iterable(pair_batches(pairs, epoch, *sizes, alike=True) for epoch in count())
        for step in range(1, training["steps"] + 1):
            batches = list(islice(data, training["accumulation_steps"]))
            real = sum(int((target[:, 1:] != 0).sum()) for _, target in batches)
            adam.zero_grad()
            for source, target in batches:
                with half:
                    logits = model.train()(source, target[:, :-1]).flatten(0, 1)
                options = {"ignore_index": 0, "reduction": "sum", "label_smoothing": training["label_smoothing"]}
                loss = F.cross_entropy(logits.float(), target[:, 1:].flatten(), **options)
                (loss / real).backward()
                losses += float(loss.detach())
            tokens += real
            torch.nn.utils.clip_grad_norm_(model.parameters(), training["max_grad_norm"])
            adam.param_groups[0]["lr"] = rate_at(step, training)
            adam.step()
            if step % training["validate_every"] == 0 or step == training["steps"]:
                found = {f"validation_{name}": value for name, value in judged(model, held_out).items()}
                rows.append({"step": step, "learning_rate": rate_at(step, training), "loss": losses / tokens} | found)
                if found["validation_loss"] == min(row["validation_loss"] for row in rows):
                    best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
                losses = tokens = 0
    return both, rows, best, adam.state_dict()


@torch.no_grad()
def translated(model, both, text, beam=4, alpha=0.6):
    """The best hypothesis of beam search for one text."""
    tokens = both[0].encode(f" {text}")
    kinds = {Transformer: KVCache, FactTransformer: KVCache, CopyingTransformer: CopyingCache}
    state = kinds.get(type(model), RecurrentState)(model.eval(), torch.tensor([tokens]))
    [[best, *_]] = beam_search(state, min(len(tokens) + 50, getattr(model.config, "max_length", 1024)), beam, alpha)
    return both[1].decode(best.tokens).strip()


@torch.no_grad()
def written(model, tokenizer, prompt, length, temperature=1.0, seed=0, **filters):
    """A text that a GPT draws after a prompt, without a cache; at temperature 0 always the likeliest token."""
    generator, text = torch.Generator().manual_seed(seed), [1]
    prompt = torch.tensor([tokenizer.encode(f" {prompt}") if prompt else []], dtype=torch.long)
    while len(text) <= length:
        logits = model(prompt, torch.tensor([text]))[:, -1]
        logits[:, :2] = -torch.inf
        if temperature:
            shares = filter_logits(logits, temperature, **filters).softmax(dim=-1)
            text.append(int(torch.multinomial(shares, 1, generator=generator)))
        else:
            text.append(int(logits.argmax()))
        if text[-1] == 2:
            break
    return tokenizer.decode(text).strip()
