"""What each change since 2017 is worth: `python -m benchmarks.modern`.

Small decoder-only models learn documentation, cut after some tokens. Each has one change more than the one before it,
and a learning rate of its own, found with one seed and judged with three; while a lower one might do better than
these three, it is judged too. All embeddings are scaled as in 2017, and all start as chapter 18's GPT does. Kept are
losses on the test set, by position, beyond the length of training too, and seconds. Then models whose feed-forward
networks are four experts each, with and without a loss that balances their load.

Takes an hour and a half of one core. Whatever is done is kept in book/measurements/modern.json, and not done again.
"""

import statistics
import time
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.docstrings import Encoded, encoded, learnt, token_losses
from benchmarks.race import SEEDS, Store, asked_for
from benchmarks.search import Settings, climb
from dotformer.by_hand.positions import sinusoidal_positions
from dotformer.decoder import causal_mask
from dotformer.encoder import FeedForward, LayerConfig
from dotformer.modern import Experts, GroupedAttention, ModernConfig, ModernGPT, ModernLayer, rotate, rotation
from dotformer.training import Trainer, TrainingConfig, cross_entropy, evaluate, pair_batches

WIDTH, LAYERS, HEADS, MAX_TOKENS, STEPS = 64, 4, 4, 2048, 300
CUT, LONG, BIN = 64, 160, 16  # tokens of a text in training; of texts that are measured, in parts of so many
WIDE, GATED = 4 * WIDTH, 172  # d_ff with two matrices and with three: 32,768 and 33,024 numbers
CHANGES: dict[str, dict[str, Any]] = {  # each on top of those before it
    "2017": {"norm_first": False, "norm": "layer", "activation": "relu", "d_ff": WIDE, "positions": "sinusoids"}
    | {"bias": True, "num_heads": HEADS, "num_kv_heads": HEADS, "tied": True},
    "pre-norm": {"norm_first": True},
    "RMSNorm": {"norm": "rms"},
    "SwiGLU": {"activation": "swiglu", "d_ff": GATED},
    "RoPE": {"positions": "rotary"},
    "no biases": {"bias": False},
    "grouped heads": {"num_kv_heads": 2},
    "untied": {"tied": False},
}
INSTEAD: dict[str, tuple[str, dict[str, Any]]] = {  # another choice on top of some change
    "learned positions": ("SwiGLU", {"positions": "learned"}),
    "no positions": ("SwiGLU", {"positions": "none"}),
    "one head": ("SwiGLU", {"num_heads": 1, "num_kv_heads": 1}),
    "sixteen heads": ("SwiGLU", {"num_heads": 16, "num_kv_heads": 16}),
    "RoPE, longer texts": ("RoPE", {}),
    "experts": ("grouped heads", {}),
    "balanced experts": ("grouped heads", {}),
}
EXPERTS, BALANCE = 4, {"experts": 0.0, "balanced experts": 0.01}
AXES = {"learning_rate": [7.5e-4 * 2**n for n in range(9)]}
Choices = dict[str, Any]


def choices(model: str) -> Choices:
    """What a model is made of."""
    base, more = INSTEAD.get(model, (model, {}))
    made: Choices = {}
    for name, change in CHANGES.items():
        made |= change
        if name == base:
            return made | more
    raise ValueError(f"there is no {model!r}")


class AnyAttention(GroupedAttention):
    """Attention with rotary positions, or without (`turn` is None)."""

    def forward(self, x: Tensor, mask: Tensor, turn: Tensor | None, kept: None = None) -> Tensor:
        """Attend from x (B, T, D) to x."""
        q, k, v = (self.split_heads(w(x)) for w in (self.w_q, self.w_k, self.w_v))
        if turn is not None:
            q, k = rotate(q, turn), rotate(k, turn)
        heads = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        return self.w_o(heads.transpose(-3, -2).flatten(-2))


class AnyLayer(ModernLayer):
    """A layer of any year between."""

    def __init__(self, config: ModernConfig, chosen: Choices) -> None:
        super().__init__(config)
        self.chosen = chosen
        self.attention = AnyAttention(config)
        if chosen["activation"] == "relu":
            self.feed_forward = FeedForward(LayerConfig(d_model=WIDTH, d_ff=chosen["d_ff"], dropout=0.0))
        if chosen["norm"] == "layer":
            self.attention_norm, self.feed_forward_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        for part in self.modules():
            if chosen["bias"] and isinstance(part, nn.Linear) and part.bias is None:
                part.bias = nn.Parameter(torch.zeros(part.out_features))

    def forward(self, x: Tensor, *context: Tensor | None) -> Tensor:
        """Pass x (B, T, D) through."""
        if self.chosen["norm_first"]:
            return super().forward(x, *context)
        x = self.attention_norm(x + self.attention(x, *context))
        return self.feed_forward_norm(x + self.feed_forward(x))


class AnyGPT(ModernGPT):
    """A decoder-only model of any year between; embeddings are multiplied by sqrt(D), as in 2017."""

    def __init__(self, vocab_size: int, chosen: Choices) -> None:
        shared = {name: chosen[name] for name in ("num_heads", "num_kv_heads", "d_ff", "tied")}
        sizes = {"vocab_size": vocab_size, "d_model": WIDTH, "num_layers": LAYERS, "max_length": 512}
        super().__init__(ModernConfig(**sizes, **shared))
        self.chosen = chosen
        self.layers = nn.ModuleList(AnyLayer(self.config, chosen) for _ in range(LAYERS))
        if chosen["norm"] == "layer":
            self.norm = nn.LayerNorm(WIDTH)
        if not chosen["norm_first"]:
            self.norm = nn.Identity()
        if chosen["positions"] == "learned":
            self.positions = nn.Embedding(512, WIDTH)
        self.register_buffer("waves", torch.tensor(sinusoidal_positions(512, WIDTH)).float(), persistent=False)
        self.initialise()

    def run(self, tokens: Tensor, real: Tensor, kept: tuple[()] = ()) -> Tensor:
        """Vectors (B, T, D) of tokens (B, T)."""
        mask = causal_mask(tokens.shape[1], tokens.device) & real[:, None, None]
        positions = (real.cumsum(dim=1) - 1).clamp(min=0)
        x, turn, kind = self.tokens(tokens), None, self.chosen["positions"]
        if kind == "learned":
            x = x + self.positions(positions)
        x = x * WIDTH**0.5
        if kind == "sinusoids":
            x = x + self.waves[positions]
        elif kind == "rotary":
            turn = rotation(positions[:, None], WIDTH // self.config.num_heads)
        for layer in self.layers:
            x = layer(x, mask, turn)
        return self.norm(x)


def new_model(model: str, vocab_size: int, seed: int) -> AnyGPT:
    """A fresh one."""
    torch.manual_seed(seed)
    made = AnyGPT(vocab_size, choices(model))
    if model in BALANCE:
        for layer in made.layers:
            layer.feed_forward = Experts(WIDTH, GATED, EXPERTS)
        made.initialise()
    return made


@cache
def data(cut: int) -> tuple[Encoded, Encoded, Encoded, int]:
    """Texts to learn from and to validate with, cut; texts to test with, whole; and the size of the vocabulary."""
    corpus, tokenizer = learnt()
    train, held_out = (
        [(name, text[: length + 1]) for name, text in encoded(tokenizer, pairs)]
        for pairs, length in ((corpus.train, cut), (corpus.validation, CUT))
    )
    return train, held_out, encoded(tokenizer, corpus.test), len(tokenizer)


class Balancing(Trainer):
    """A trainer that adds to the loss of each token what the experts' balance is, times a weight."""

    weight = 0.0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.criterion = self.balanced

    def balanced(self, *arguments: Any) -> tuple[Tensor, int]:
        """The loss, summed, and how many targets there are."""
        loss, count = cross_entropy(*arguments)
        extra = sum(layer.feed_forward.balance for layer in self.model.layers)
        return loss + self.weight * count * extra, count


@torch.no_grad()
def loads(model: ModernGPT, texts: Encoded) -> list[list[float]]:
    """The share of tokens that go to each expert, of each layer, (layers, experts)."""
    counts = torch.zeros(LAYERS, EXPERTS)

    def count(n: int, router: nn.Module, inputs: tuple[Tensor], scores: Tensor) -> None:
        counts[n] += scores.argmax(dim=-1).flatten().bincount(minlength=EXPERTS)

    routers = [layer.feed_forward.router for layer in model.layers]
    hooks = [router.register_forward_hook(partial(count, n)) for n, router in enumerate(routers)]
    for pair in texts:
        token_losses(model, pair)
    for hook in hooks:
        hook.remove()
    return [[round(float(share), 3) for share in row / row.sum()] for row in counts]


def train(device: str, steps: int, job: dict[str, Any]) -> dict[str, Any]:
    """Train a model; the job with what is kept of it."""
    torch.set_num_threads(1)
    rate, name = job["settings"]["learning_rate"], job["model"]
    learn, held_out, test, vocab_size = data(LONG if "longer" in name else CUT)
    model = new_model(name, vocab_size, job["seed"])
    shape = {"label_smoothing": 0.0, "validate_every": steps, "seed": job["seed"]}
    config = TrainingConfig(steps, rate, warmup_steps=max(1, steps // 20), **shape)
    trainer = (Balancing if name in BALANCE else Trainer)(model, config, device)
    trainer.weight = BALANCE.get(name, 0.0)
    batches = partial(pair_batches, learn, max_tokens=MAX_TOKENS, seed=job["seed"])
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    try:
        trainer.train(batches, lambda _: {"loss": 0.0}, progress=False)
    except FloatingPointError:  # a learning rate that is too high
        return job | {"seconds": clock() - start, "validation_loss": 1e9}
    seconds, model = clock() - start, model.to("cpu")
    losses = [token_losses(model, pair) for pair in test]
    long = torch.stack([one[:LONG] for one in losses if len(one) >= LONG])
    found = {
        "seconds": round(seconds, 1),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "validation_loss": evaluate(model, pair_batches(held_out, max_tokens=MAX_TOKENS))["loss"],
        "test_loss": round(float(torch.cat([one[:CUT] for one in losses]).mean()), 4),
        "by_position": [round(float(part.mean()), 3) for part in long.split(BIN, dim=1)],
        "kept_numbers": 2 * LAYERS * model.layers[0].attention.w_k.out_features,
    }
    return job | found | ({"loads": loads(model, test)} if name in BALANCE else {})


def judged(store: Store, job: dict[str, Any], settings: Settings) -> float:
    """The mean validation loss of three seeds."""
    rows = store.do([job | {"seed": seed, "settings": settings} for seed in SEEDS])
    return statistics.mean(row["validation_loss"] for row in rows)


def main() -> None:
    """Train all of them."""
    jobs, device = asked_for(__doc__)
    about = {"steps": STEPS, "max_tokens": MAX_TOKENS, "cut": CUT, "bin": BIN, "changes": [*CHANGES]}
    about |= {"experts": EXPERTS, "vocab_size": data(CUT)[-1]}
    store = Store("modern", partial(train, device, STEPS), jobs, about)
    job = {"part": "train", "corpus": "docstrings"}
    best: Settings = {"learning_rate": 6e-3}
    for name in (*CHANGES, *INSTEAD):

        def losses_of(some: list[Settings], name: str = name) -> list[float]:
            asked = [job | {"model": name, "seed": 0, "settings": one} for one in some]
            return [row["validation_loss"] for row in store.do(asked)]

        best = climb(AXES, best, losses_of)
        means = {best["learning_rate"]: judged(store, job | {"model": name}, best)}
        while True:  # what was best with one seed may not be with three
            lower = {"learning_rate": min(means) / 2}
            if losses_of([lower])[0] >= min(means.values()):
                break
            means[lower["learning_rate"]] = judged(store, job | {"model": name}, lower)
        best = {"learning_rate": min(means, key=means.get)}
        store.chosen.setdefault("docstrings", {}).setdefault(name, {})["judged"] = best
    store.save()


if __name__ == "__main__":
    main()
