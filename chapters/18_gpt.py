# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 18. What is left without the encoder?
#
# Take the decoder of [chapter 9](09_decoder.ipynb), leave out the attention to the encoder, and you have a
# **decoder-only** model, a **GPT** (*generative pre-trained transformer*). Most language models of today are of this
# kind.
#
# By the end of this chapter you have written one, counted GPT-2's parameters exactly, seen a small one learn to write
# documentation, and found, in a still smaller one, the heads that copy what the model has read.
#
# You need chapters [9](09_decoder.ipynb), [11](11_training.ipynb) and [12](12_generation.ipynb). It takes about 30
# minutes to read, and 30 for the exercises. [Going further](#going-further), at the end, takes 5 more minutes.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. Every part is built. A GPT is the decoder's half of it, without cross-attention."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=18)

# %% [markdown]
# ## One sequence
#
# A decoder layer has three sublayers: self-attention, cross-attention and a feed-forward network. Without
# cross-attention two are left, as in the *encoder* layer of chapter 8. Only the causal mask still tells such a layer
# from an encoder's.
#
# Cross-attention was how the answer saw the question. Now the question goes into the same sequence, in front of the
# answer:
#
# > *why are you tired* `<bos>` *I work too much* `<eos>`
#
# A word of the answer attends to all words before it, the question among them, so self-attention does what
# cross-attention did. What stands in front is called the **prompt**. Compare:
#
# | | encoder and decoder | GPT |
# |---|---|---|
# | a word of the question sees | the whole question | the question up to itself |
# | a word of the answer, in layer 3, say, reads of the question | what the *last* encoder layer made of it | what layer 2 made of it |
# | question and answer have | parameters of their own | the same parameters |
#
# The question can even be left out. A model can learn from any text as it is: nobody has to translate or label it,
# because its own tokens are the targets. Such learning is called **self-supervised**. A model that gives a probability
# to every next token of a text is a **language model**.
#
# An encoder with a decoder can learn from plain text, too, but source and target must first be made of each text, by
# cutting it or by damaging a copy. A decoder alone needs no such step, and every token of the text is a target. That is
# one reason to leave out the encoder. There are two more:
#
# - Question and answer share their parameters, so what is learned about language from one serves the other.
# - A conversation only grows at its end. Earlier tokens never see new ones, so their keys and values in chapter 12's
#   cache stay valid. In an encoder every token attends to every other, so each new token would change the vectors of
#   all.
#
# Must the question be under the causal mask, too? It need not: a mask that is open inside the prompt and causal after
# it gives a **prefix LM**. But plain text has no prompt, so in training you would have to cut each text somewhere, and
# only the tokens after the cut would be targets.
#
# **Predict first.** Back to a question with its answer. The model reads the nine tokens from *why* to *much*. Of the 81
# scores of a head, how many does the causal mask leave? And how many targets are there to learn from, if only the
# answer counts?

# %% tags=["plot"] mystnb={"image": {"alt": "A nine by nine map, queries as rows and keys as columns: why are you tired, begin, I work too much. On and below the diagonal the cells are filled, 45 of them. The rows from begin to much, five of them, have a target beside them: I, work, too, much, end. In these rows, the cells under the four words of the question are marked in red: there the answer reads the question. The cells above the diagonal are blank."}}
import numpy as np

question, answer = "why are you tired".split(), "<bos> I work too much".split()
tokens, targets = question + answer, [""] * 4 + "I work too much <eos>".split()
figure, axes = plt.subplots(figsize=(5.2, 4))
for row, column in np.ndindex(9, 9):
    crosses = row >= 4 > column
    seen = (plots.RED if crosses else plots.BLUE) if column <= row else plots.BLANK
    axes.add_patch(plt.Rectangle((column, row), 1, 1, fc=seen, ec="white", lw=1.5))
for row, target in enumerate(targets):
    axes.text(9.2, row + 0.5, target, va="center", color=plots.INK)
axes.text(9.2, -0.4, "target", color=plots.GREY, va="center")
axes.set(xlim=(0, 11), ylim=(9, -0.8), aspect="equal", ylabel="query")
axes.set_xticks(np.arange(9) + 0.5, tokens, rotation=60, ha="right")
axes.set_yticks(np.arange(9) + 0.5, tokens)
axes.tick_params(length=0)
axes.spines[:].set_visible(False)
figure.tight_layout()
plt.show()

# %% [markdown]
# 45 scores are left ($9 \cdot 10 / 2$), and five rows have a target. The red block is the old cross-attention: queries
# from the answer, keys and values from the question. The words of the prompt are not targets, since they are given;
# leaving them out is called **loss masking**.
#
# In code, a GPT has three parts: embeddings, a stack of chapter 8's layers, and an output that scores every token with
# the embedding table, as in chapter 9. Three choices are those of GPT-2 ([Radford and others
# 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)):
#
# - the positions are learned;
# - the norms stand before the sublayers ([pre-norm](08_encoder.ipynb#post-norm-or-pre-norm));
# - the activation is GELU.
#
# First the settings:

# %% tags=["export"] module="gpt"
from dataclasses import dataclass
from typing import Literal

import torch
from dotformer.decoder import causal_mask
from dotformer.encoder import EncoderLayer, LayerConfig, Stack
from dotformer.support.settings import check_settings, check_vocabularies
from dotformer.support.shapes import shapes
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class GPTConfig(LayerConfig):
    """All that fixes a GPT's shape. Defaults: the smallest GPT-2, token 0 padding."""

    vocab_size: int
    num_layers: int = 12
    max_length: int = 1024
    pad_id: int | None = 0
    d_model: int = 768
    num_heads: int = 12
    d_ff: int = 3072
    activation: Literal["relu", "gelu"] = "gelu"
    norm_first: bool = True

    def __post_init__(self) -> None:
        check_settings(self, zero=("pad_id",), shares=("dropout",))
        check_vocabularies(self.vocab_size, self.vocab_size, self.pad_id or 0, True)


# %% [markdown]
# The model joins two arguments into one sequence: `prompt`, here the question, and `text`, here `<bos>` and the answer.
# It must know where the text begins, because only the text is scored: row $t$ of the result says what may follow the
# prompt and the text up to its token $t$. For plain text the prompt is empty. The longest sequence, `max_length`, is
# the **context window**: GPT-2 cannot read a 1,025th token, because no position vector was learned for it.


# %% tags=["export"] module="gpt"
class GPT(nn.Module):
    """A decoder-only model: encoder layers under a causal mask, learned positions.

    After Radford and others (2019). Matrices start normal, with deviation 0.02 at
    width 768. Those that write to the stream are divided by the root of the number
    of sublayers.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = c = config
        self.tokens = nn.Embedding(c.vocab_size, c.d_model)
        self.positions = nn.Embedding(c.max_length, c.d_model)
        self.dropout = nn.Dropout(c.dropout)
        self.stack = Stack(EncoderLayer, c, c.num_layers)
        self.output = nn.Linear(c.d_model, c.vocab_size, bias=False)
        self.output.weight = self.tokens.weight
        self.initialise()

    def initialise(self) -> None:
        """Draw the matrices, and set the biases to 0."""
        c = self.config
        std = 0.02 * (768 / c.d_model) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                writes = name.endswith(("w_o.weight", "down.weight"))
                shrink = (2 * c.num_layers) ** -0.5 if writes else 1
                nn.init.normal_(parameter, std=std * shrink)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def is_real(self, tokens: Tensor) -> Tensor:
        """Which tokens are no padding: all, if `config.pad_id` is None."""
        pad = self.config.pad_id
        return tokens != (-1 if pad is None else pad)

    @shapes
    def embed(
        self, tokens: Int[Tensor, "B T"], real: Bool[Tensor, "B S"]
    ) -> Float[Tensor, "B T D"]:
        """Vectors of the last T of S tokens; `real` is False for padding."""
        length, longest = real.shape[1], self.config.max_length
        if length > longest:
            raise ValueError(f"{length} tokens exceed max_length {longest}")
        positions = (real.cumsum(dim=1) - 1).clamp(min=0)
        positions = positions[:, length - tokens.shape[1] :]
        return self.dropout(self.tokens(tokens) + self.positions(positions))

    @shapes
    def forward(
        self, prompt: Int[Tensor, "B S"], text: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        """Logits: row t scores what may follow the prompt and text 0 to t.

        Padding (`config.pad_id`) is masked, and counts as no position. ValueError
        for over `config.max_length` columns in all, padding included.
        """
        tokens = torch.cat([prompt, text], dim=1)
        real = self.is_real(tokens)
        mask = "causal"
        if self.config.pad_id is not None:
            causal = causal_mask(tokens.shape[1], tokens.device)
            mask = causal & real[:, None, None, :]
        x = self.stack(self.embed(tokens, real), mask)
        return self.output(x[:, prompt.shape[1] :])


# %% [markdown]
# Shorter prompts of a batch are padded on the left, so that all prompts end in the same column and the text follows
# directly. Shorter texts are padded on the right. All padding is masked, and the loss leaves it out. A padding token on
# the left then sees no key: up to itself all is padding, and the causal mask hides the rest. A plain softmax would give
# 0/0, which is NaN, so our attention returns zeros. Padding must not shift the positions, either: in `embed`, `cumsum`
# counts the real tokens alone, so that two pads and three tokens get 0 0 0 1 2. GPT-2 has no padding token: its
# documents are joined by `<|endoftext|>` and cut into blocks of 1,024 (*packing*).
#
# The initial weights, in `initialise`, follow GPT-2 too, with two exceptions. The positions have the deviation of the
# other matrices, 0.02, where GPT-2 has 0.01. And at a width $D$ other than 768 the deviations are multiplied by
# $\sqrt{768 / D}$, because a dot product then adds $D$ products.
#
# A model of $L$ layers has $2L$ sublayers, and each adds its result to the [residual
# stream](08_encoder.ipynb#add-what-each-part-returns). The last matrix of each sublayer, which writes this result, is
# divided by $\sqrt{2L}$, and so the result's variance by $2L$. At the start the feed-forward results are about equally
# large in all layers, because each sublayer reads normalised vectors. Those of attention are smaller, because they are
# means over many tokens. All are nearly independent, because their matrices are drawn independently, so their $2L$
# variances add up. Each is at most about a $2L$th of the variance of one undivided feed-forward result, so the sum is
# at most about that variance, however deep the model is.

# %% [markdown]
# Is it the same model as the published one? Make a small GPT-2 in the library `transformers`, with random parameters
# and an exact GELU (GPT-2 approximates it), copy the parameters into our model, and compare all logits.

# %% our logits beside the library's tags=["hide-input"]
import warnings

warnings.filterwarnings("ignore", message="IProgress")  # about progress bars

from dotformer.support.published import named_as_ours
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

logging.set_verbosity_error()
torch.manual_seed(0)
sizes = {"vocab_size": 50, "n_positions": 40, "n_embd": 32}
special = {"bos_token_id": 1, "eos_token_id": 2, "activation_function": "gelu"}
gpt2 = GPT2LMHeadModel(GPT2Config(**sizes, n_layer=3, n_head=4, **special)).eval()
for parameter in gpt2.parameters():  # it starts with biases of 0 and gains of 1
    nn.init.normal_(parameter, std=0.3)
shape = {"d_model": 32, "num_heads": 4, "d_ff": 128, "num_layers": 3}
ours = GPT(GPTConfig(vocab_size=50, max_length=40, **shape)).eval()
ours.load_state_dict(named_as_ours(gpt2.state_dict(), d_model=32))
tokens = torch.randint(1, 50, (2, 20))
with torch.no_grad():
    theirs = gpt2(tokens).logits
    no_prompt = ours(tokens[:, :0], tokens)
    with_prompt = ours(tokens[:, :7], tokens[:, 7:])
print(f"largest difference of a logit: {(no_prompt - theirs).abs().max():.0e}")
assert torch.allclose(no_prompt, theirs, atol=1e-5)
assert torch.allclose(with_prompt, theirs[:, 7:], atol=1e-5)

# %% tags=["proof"]
fresh, written = (
    GPT(
        GPTConfig(
            vocab_size=500,
            num_layers=6,
            d_model=256,
            num_heads=4,
            d_ff=1024,
            dropout=0.0,
        )
    ).eval(),
    {},
)
for (
    layer
) in fresh.stack.layers:  # what each sublayer writes, but for the first tokens
    for part in (layer.attention, layer.feed_forward):
        part.register_forward_hook(
            lambda part, _, out: written.update(
                {part: out[0] if isinstance(out, tuple) else out}
            )
        )
with torch.no_grad():
    fresh(tokens[:, :0], torch.randint(1, 500, (2, 400)))
sizes = 12 * np.array([out[:, 100:].var().item() for out in written.values()])
assert (
    sizes[::2].max() < 0.05 and 0.11 < sizes[1::2].min() < sizes[1::2].max() < 0.15
)
assert sizes.sum() / 12 < sizes[1::2].mean()  # all twelve, and one undivided

# %% [markdown]
# ## GPT-2, counted
#
# **By hand**, with $D = 768$, twelve layers, 50,257 tokens and 1,024 positions:
#
# | | numbers |
# |---|---|
# | embeddings, which the output uses too | $50{,}257 \cdot 768 = 38{,}597{,}376$ |
# | positions | $1{,}024 \cdot 768 = 786{,}432$ |
# | a layer: attention $4 D^2 + 4 D$, feed-forward $8 D^2 + 5 D$, two norms $4 D$ | $12 D^2 + 13 D = 7{,}087{,}872$ |
# | twelve of them | $85{,}054{,}464$ |
# | the final norm | $2 D = 1{,}536$ |
#
# The sum is 124,439,808.

# %% GPT-2's parameters, counted tags=["hide-input"]
with torch.device("meta"):  # shapes, and no numbers
    gpt2 = GPT(GPTConfig(vocab_size=50_257))
count = sum(parameter.numel() for parameter in gpt2.parameters())
print(f"{count:,} parameters")
assert count == 124_439_808
assert round(50_257 * 768 / count, 2) == 0.31
assert round(96 * 12 * 12_288**2 / 1e9) == 174
layer = gpt2.stack.layers[0].parameters()
assert sum(parameter.numel() for parameter in layer) == 7_087_872

# %% [markdown]
# That is the size of the [published model](https://github.com/openai/gpt-2), and two thirds of each layer are its
# feed-forward network.
#
# The embeddings are 31 percent of this smallest GPT-2. In GPT-3, of nearly the same design with $D = 12{,}288$ and 96
# layers ([Brown and others 2020](https://arxiv.org/abs/2005.14165)), the layers alone have 174 of the 175 billion
# parameters, because they grow with $D^2$ and the embeddings with $D$.

# %% tags=["quiz"]
quiz.number(
    "A decoder layer of the 2017 paper has $d_{ff} = 4 D$. Leaving out cross-attention takes away what share of its matrices' numbers, in percent?",
    100 * 4 / (4 + 4 + 8),
    tolerance=0.5,
    feedback="Yes: $4 D^2$ of $16 D^2$. Self-attention has as many, and the feed-forward network twice that.",
    mistakes=[
        (
            100 / 3,
            "One of three sublayers, but they differ in size: the feed-forward network has $8 D^2$.",
        ),
        (50, "That would be true if there were only the two attentions."),
    ],
    otherwise="Four matrices $D \\times D$ for each attention, two of $D \\times 4D$ for the feed-forward network.",
)

# %% [markdown]
# ## Text that nobody had to label
#
# What can you train on without downloading anything? The packages that came with this book have their documentation in
# their code. The function `docstrings` reads five: NumPy, SciPy, NetworkX, Matplotlib and scikit-learn. For each
# function in them it returns a pair, the name as the prompt and the documentation as the text. Here is one pair:

# %% a name and its documentation tags=["hide-input"]
from classroom.measured import measured

found = measured("docstrings")
print("prompt:", found["example"]["name"], "\n")
print(found["example"]["text"])

# %% [markdown]
# There are 12,880 such pairs, long texts cut at the end of a paragraph.
#
# ### A small one, here
#
# Begin small: the texts of one package, NetworkX, a vocabulary of 600 subword tokens, and a model of two layers. Only
# the model is new; `Trainer` and `evaluate` are those of chapter 11.

# %% prompts and texts as tokens tags=["hide-input"]
from dotformer.data.corpora import docstrings
from dotformer.tokens import BPETokenizer
from dotformer.training import Trainer, TrainingConfig, evaluate, pair_batches

corpus = docstrings(100, 100, longest=300, packages="networkx")
tokenizer = BPETokenizer.train(
    (f" {text}" for pair in corpus.train for text in pair[:2]), vocab_size=600
)


def encoded(pairs):
    """Tokens of each prompt, and of each text with <bos> and <eos> around it."""
    return [
        (tokenizer.encode(f" {name}"), tokenizer.encode(f" {text}", True))
        for name, text, _ in pairs
    ]


train = encoded(corpus.train)
held_out = list(pair_batches(encoded(corpus.validation)))

# %% [markdown]
# `trained`, folded, makes 120 steps with a model of width 64, and measures the loss on held-out texts every 40:

# %% 120 steps tags=["hide-input"]
shape = {"d_model": 64, "num_heads": 4, "d_ff": 256, "num_layers": 2}
config = TrainingConfig(
    120, 6e-3, warmup_steps=20, label_smoothing=0.0, validate_every=40
)


def trained(positions=True):
    """A small model after 120 steps, and its validation losses."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 600, "max_length": 512, "dropout": 0.0}
    model = GPT(GPTConfig(**sizes, **shape))
    if not positions:
        model.positions.weight.data.zero_()
        model.positions.weight.requires_grad_(False)
    history = Trainer(model, config).train(
        partial(pair_batches, train, max_tokens=1024),
        partial(evaluate, batches=held_out),
        progress=False,
    )
    return model.eval(), {row["step"]: row["validation_loss"] for row in history}


small, losses = trained()
print(f"{len(train)} texts; a guess costs ln 600 = {np.log(600):.2f} nats a token")
for step, loss in losses.items():
    print(f"validation loss after {step:3} steps: {loss:.2f}")
assert abs(losses[120] - 4.2) < 0.03 and abs(np.exp(losses[120]) - 67) < 2

# %% [markdown]
# A loss of 4.2 is a [perplexity](11_training.ipynb#the-loss) of 67: the model is as unsure as if it chose among 67
# tokens, all equally likely.

# %% [markdown]
# ### A million parameters
#
# A larger model, `configs/gpt-docstrings.toml`, has four layers of width 128 and a vocabulary of 2,000 tokens: 1.2
# million parameters. The training texts of all five packages together have 1.2 million tokens, and it reads them two
# and a half times, in 1,500 steps. [Going further](#train-it-yourself) has the commands.
#
# To judge its loss, compare it with three guessers:
#
# - one gives every token the same probability, and pays $\ln 2000 = 7.6$ nats a token (in the output, *uniform
#   entropy*);
# - one knows how often each token occurs in the training texts, and pays on the validation texts the **unigram
#   entropy** (strictly, a cross-entropy);
# - one also knows how often each token $b$ follows each token $a$ there, and pays the **bigram entropy**. A pair that
#   never occurred would cost infinitely much, so $p(b \mid a)$ is mixed with $p(b)$. [Exercise
#   1](#exercise-1-how-much-does-counting-tell) computes it unmixed, on the very text whose pairs are counted.

# %% tags=["plot"] mystnb={"image": {"alt": "Validation loss of three seeds over 1,500 steps, from 5.9 at step 50 to 3.1. Three horizontal lines: a guess 7.6, unigrams 6.2, bigrams 4.0. The curves are below unigrams by step 50, and cross the line of bigrams near step 370."}}
runs = [run for run in found["runs"] if run["corpus"] == "model"]
figure, axes = plt.subplots(figsize=(6.6, 3.4))
for run in runs:
    axes.plot(
        *zip(*run["validation_losses"], strict=True), color=plots.BLUE, lw=1.2
    )
for name, label in (
    ("uniform", "a guess, ln 2000"),
    ("unigram", "unigrams"),
    ("bigram", "bigrams"),
):
    nats = found["entropies"][name]
    axes.axhline(nats, color=plots.GREY, lw=1, ls="--")
    axes.text(1500, nats + 0.08, label, color=plots.GREY, ha="right")
axes.text(900, 3.55, "GPT, three seeds", color=plots.BLUE)
axes.set(xlabel="step", ylabel="validation loss, nats a token", ylim=(2.5, 8.2))
plt.show()

# %% [markdown]
# Before training and while it learns, the model is asked to write about an invented name,
# `numpy.linalg.triangular_norm`, with temperature 0.8 and top-p 0.95.

# %% losses, and texts while it learns tags=["hide-input"]
test = [run["test_loss"] for run in runs]
print("nats a token:")
print("   test loss, three seeds:", *(f"{loss:.2f}" for loss in test))
for name, nats in found["entropies"].items():
    print(f"   {name} entropy: {nats:.2f}")
for text in runs[0]["while_learning"]:
    lines = [line for line in text["text"].splitlines() if line.strip()][:9]
    print(
        f"\nafter {text['step']} steps:\n" + "\n".join(line[:78] for line in lines)
    )

# %% tags=["proof"]
assert (
    sum(found["texts"].values()) == 12_880 and round(found["tokens"], -5) == 1.2e6
)
assert found["steps"]["model"] * found["max_tokens"] < 3.1e6
assert 3.1 <= min(test) < max(test) < 3.15
for run in runs:
    assert round(run["parameters"], -5) == 1.2e6 and run["seconds"] < 660
    curve = dict(run["validation_losses"])
    assert curve[50] < found["entropies"]["unigram"]
    assert curve[400] < found["entropies"]["bigram"] < curve[300]

# %% [markdown]
# After 50 steps the model has beaten the unigrams, between steps 300 and 400 it passes the bigrams, and it ends at 3.1
# nats a token. What it then writes has the form of documentation, with headings, dashes and shapes, but its sentences
# mean nothing.

# %% [markdown]
# ## It writes
#
# In each layer, [chapter 12](12_generation.ipynb#what-has-been-computed-before)'s cache kept two kinds of keys and
# values, the source's and the target's. A GPT has one sequence, so its cache keeps one kind. Writing begins with the
# **prefill**: the whole prompt goes through all layers at once. After that, each new token goes through alone. The
# class in the folded cell wraps the model and its cache, and its method `read` does both.

# %% tags=["export", "hide-input"] module="gpt"
from dotformer.generation import KVAttention
from dotformer.support import decoding


class GPTCache:
    """Texts that a GPT writes after prompts (B, S), with keys and values so far."""

    special_ids = (0, 1, 2)  # as `BPETokenizer` numbers padding, begin and end

    @torch.no_grad()
    def __init__(self, model: GPT, prompt: Int[Tensor, "B S"]) -> None:
        decoding.check_evaluating(model)
        prompt = prompt.to(model.output.weight.device)
        self.model, self.real = (
            model,
            torch.zeros_like(prompt[:, :0], dtype=torch.bool),
        )
        nothing = model.embed(prompt[:, :0], self.real)
        layers = model.stack.layers
        self.kept = [KVAttention(layer.attention, nothing) for layer in layers]
        if prompt.shape[1]:
            self.read(prompt)

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.real)

    @torch.no_grad()
    def read(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B V"]:
        """Read some tokens of each row: logits of what may follow the last."""
        tokens = tokens.to(self.model.output.weight.device)
        self.real = torch.cat([self.real, self.model.is_real(tokens)], dim=1)
        S, T = self.real.shape[1], tokens.shape[1]
        causal = causal_mask(S, tokens.device)[S - T :]
        mask = causal & self.real[:, None, None, :]
        x = self.model.embed(tokens, self.real)
        for layer, kept in zip(self.model.stack.layers, self.kept, strict=True):
            kept.mask = mask
            x = layer.attention_add_norm(x, kept.extend)
            x = layer.feed_forward_add_norm(x, layer.feed_forward)
        return self.model.output(self.model.stack.norm(x[:, -1]))

    def step(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B V"]:
        """Read a token of each row: logits of what may follow."""
        return self.read(tokens[:, None])

    def select(self, rows: Int[Tensor, " M"]) -> None:
        """Keep these rows, in this order; one may be there several times."""
        rows = rows.to(self.real.device)
        self.real = self.real[rows]
        for attention in self.kept:
            attention.select(rows)


# %% [markdown]
# Chapter 12's functions call the class's methods `step` and `select`, so greedy decoding, beam search and sampling work
# unchanged.
#
# Does the model write the same with a cache as without? Does a text depend on its neighbours in a batch? Take the small
# model of NetworkX, and forty prompts of different lengths, padded on the left:

# %% alone and in a batch tags=["hide-input"]
from dotformer.generation import greedy

prompts = [tokenizer.encode(f" {pair.source}") for pair in corpus.test[:40]]
longest = max(map(len, prompts))
padded = torch.tensor([[0] * (longest - len(row)) + row for row in prompts])


def both_ways(model):
    """What it writes after each prompt, alone and in a batch."""
    rows = [torch.tensor([row]) for row in prompts]
    alone = [greedy(GPTCache(model, row), 30)[0] for row in rows]
    return alone, greedy(GPTCache(model, padded), 30)


alone, together = both_ways(small)
same, first = [], []
with torch.no_grad():
    for row, written in zip(prompts, alone, strict=True):
        text = torch.tensor([[1, *written]])  # <bos>, and what was written
        logits = small(torch.tensor([row]), text)[0]
        first.append(logits[0])
        best = logits[: len(written), 2:].argmax(dim=-1) + 2
        same.append(best.tolist() == written)
begin = torch.ones(len(prompts), dtype=torch.long)
apart = (GPTCache(small, padded).step(begin) - torch.stack(first)).abs().max()
print("without the cache, the same tokens:", all(same))
print("in a batch, the same texts:", together == alone)
print(f"first logits, cached in a batch and uncached alone: {apart:.0e} apart")
assert all(same) and together == alone and apart < 1e-4
assert 1 < len(set(map(tuple, alone))) < 10

# %% [markdown]
# The logits differ in the sixth decimal only, because the same sums are taken in another order.
#
# ## Break it: the position of padding
#
# Suppose that the code masks the padding on the left, but counts it, so that positions are the columns of the batch.
# Nothing crashes, and the model still writes.
#
# **Predict first.** Of forty texts, how many change?

# %% columns as positions tags=["hide-input"]
import copy


class ColumnsNumbered(GPT):
    """A GPT whose positions are the columns of the batch, padding included."""

    def embed(self, tokens, real):
        columns = torch.arange(real.shape[1])[-tokens.shape[1] :]
        return self.tokens(tokens) + self.positions(columns)


broken = copy.deepcopy(small)
broken.__class__ = ColumnsNumbered
alone, together = both_ways(broken)
changed = [one != other for one, other in zip(alone, together, strict=True)]
pads = [longest - len(row) for row in prompts]
print(
    f"{sum(changed)} of 40 texts change; {sum(pad > 0 for pad in pads)} have padding"
)
n = changed.index(True)
print("alone:     ", repr(tokenizer.decode(alone[n])[:60]))
print("in a batch:", repr(tokenizer.decode(together[n])[:60]))
assert 12 <= sum(changed) <= 18
assert not any(
    change and not pad for change, pad in zip(changed, pads, strict=True)
)

# %% [markdown]
# The two lines show one of the texts that change. In padded texts that do not change, the shift moves the logits, too,
# but no other token becomes the likeliest. Whoever sees only the second line takes it for a weak model's text. The
# previous section's check finds the mistake: each prompt must give the same text alone and in a batch. The library
# `transformers` counted padding, and did not even mask it, in GPT-2's generation until
# [2020](https://github.com/huggingface/transformers/pull/7552).

# %% tags=["quiz"]
quiz.one_choice(
    "Why are prompts in a batch padded on the left and not on the right?",
    quiz.right(
        "So that the last token of each row is a real one, and the next one stands right after it, in the same column for all",
        "Yes. With padding on the right each row would have its end elsewhere.",
    ),
    quiz.wrong(
        "Because the causal mask hides what is on the left",
        "It hides what is on the right. Padding in front of real tokens needs a mask of its own.",
    ),
    quiz.wrong(
        "Because positions on the right have not been trained",
        "They may well have been. And padding must not count as a position on either side.",
    ),
)

# %% [markdown]
# ## Learning while it reads
#
# After training the parameters no longer change. And yet in a sense the model goes on learning: a token is easier to
# predict if the model has seen more of the text. This is **in-context learning** in the wide sense.
#
# Take test texts of at least 160 tokens, and measure the loss on tokens 144 to 159 alone. Before them always stand the
# right name and 144 tokens, so their positions never change. The first $144 - n$ come from another text, the last $n$
# from this one. Let $n$ grow from 0 to 144:

# %% tags=["plot"] mystnb={"image": {"alt": "Mean loss of tokens 144 to 159, against the number of tokens before them that are the text's own, for three seeds. 4.4 with none, 3.5 with 16, 3.0 with all 144; every step helps."}}
figure, axes = plt.subplots(figsize=(5.8, 3))
for run in runs:
    lengths, nats = zip(*run["by_context"].items(), strict=True)
    axes.plot(range(len(lengths)), nats, color=plots.BLUE, marker="o", ms=4, lw=1.2)
axes.set_xticks(range(len(lengths)), [*lengths[:-1], "all"])
axes.set(
    xlabel="tokens before them from their own text", ylabel="loss, nats a token"
)
plt.show()

# %% tags=["proof"]
contexts = [list(run["by_context"].values()) for run in runs]
assert all(np.all(np.diff(each) < 0) for each in contexts)
assert round(np.mean([each[0] for each in contexts]), 1) == 4.4
assert round(np.mean([each[5] for each in contexts]), 1) == 3.5
assert round(np.mean([each[-1] for each in contexts]), 1) == 3.0

# %% [markdown]
# Part of the gain is plain grammar, for which the last few words are enough. But from 16 own tokens to all 144 the loss
# still falls by half a nat. Part of that may be that the other text misleads; the rest must come from farther back:
# perhaps from the subject, the names of the arguments, the layout.
#
# ### What does predicting the next token have to do with answering?
#
# Multiply the probabilities that the model gives to a text's tokens: the product is the probability of the whole text
# after its prompt. So the model can choose: among several answers to a question, the most probable; or among several
# prompts, the one that makes a text most probable.
#
# We test the second, since our data hold the right answers. Put each of four names before a test text: its own and
# three others of its package. After which is the text likeliest? For comparison without a model, *tf-idf* counts the
# words that name and text share, and gives rare words more weight.

# %% names found by model and by words tags=["hide-input"]
print("right name found   by the model   by comparing words")
for run in runs:
    found_by = run["names_found"]
    print(f"seed {run['seed']}{found_by['model']:25.1%}{found_by['words']:21.1%}")
right = np.mean([run["names_found"]["model"] for run in runs])
assert 0.84 < right < 0.89 and runs[0]["names_found"]["words"] == 0.894

# %% [markdown]
# The model finds the right name for about six texts of seven; guessing would find one of four. Comparing words does a
# little better, so this task takes no understanding. But the model was never trained to choose names. It can, because
# to predict a text after its name, it had to learn which texts belong to which names.
#
# GPT-2 and GPT-3 are a bet that this goes much further: whoever predicts enough text must learn much of what it is
# about, and can then be asked by a prompt alone (*zero-shot*), or by a prompt with some examples in it
# (**few-shot**). Learning a task from such examples is *in-context learning* in the narrow sense ([chapter
# 19](19_modern.ipynb#learning-from-examples-in-the-prompt)).
#
# Training first on a great deal of plain text, before any particular task, is called **pre-training**. The result, a
# **base model**, continues text; it does not answer. After *What is the capital of France?* it may well go on with
# *What is the capital of Spain?* There are two ways to an answer:
#
# - Write a prompt whose continuation is the answer: *The capital of France is*.
# - **Fine-tune** the base model: train it further on prompts with good answers. The loss counts the answers' tokens
#   alone, as in this chapter. This is called **instruction tuning**, or *supervised fine-tuning* (SFT). Often a second
#   stage follows: people say which of two answers they prefer, and the model is trained towards such answers: **RLHF**
#   (*reinforcement learning from human feedback*, [Ouyang and others 2022](https://arxiv.org/abs/2203.02155)) or
#   **DPO** (*direct preference optimization*, [Rafailov and others 2023](https://arxiv.org/abs/2305.18290)).

# %% [markdown]
# ## How does it copy?
#
# One way to use the earlier tokens of a text is to copy from them. On random tokens our model of documentation does not
# show it ([Going further](#does-the-model-of-documentation-copy)), but larger models do. First wire by hand a stack
# that copies, then train a small model that learns to.
#
# *The dog sees the man. The dog* ... You would go on with *sees*, because that is what came after *the dog* a moment
# ago. How would a stack of attention layers do it? If a head has the word as its query and as its key, the last *dog*
# finds the earlier *dog*. But we want the word after that one, *sees*, and the key of *sees* does not know that *dog*
# stood before it.
#
# So it takes two layers. The first tells each word which word stood before it. The second looks for words that followed
# the present word earlier. Give each vector four blocks. Two are filled: the **word** (one-hot) and its **position**
# (the waves of chapter 5). Two are empty: the word **before** it, and a **guess** at the next. A head's rows of $W_O$
# decide into which block it writes ([chapter 6](06_many_heads.ipynb#heads-are-a-sum)).
#
# 1. A *previous-token head* in layer 1. Every token's key is its position. Its query is its position too, but turned
#    back by one step ([a rotation](05_position.ipynb#a-step-is-a-rotation)), so that it matches the key of the token
#    before. The value is the word, and the head writes it to *before*.
# 2. An **induction head** in layer 2. The query is the word, and the key is the block *before*. So *dog* attends to the
#    words that have *dog* before them. The value is the word, and the head writes it to *guess*.
#
# Follow the two words that matter. After layer 1, *sees* has word = *sees*, before = *dog*. In layer 2 the query of the
# last *dog* is *dog*. It matches one key, the block *before* of *sees*. The value there is *sees*, so the last *dog*
# gets *sees* as its guess.
#
# **Predict first.** In *the dog sees the man the dog*, the guess at the last *dog* is *sees*. What is it at the *the*
# before that? And at *man*, which is new?

# %% tags=["plot"] mystnb={"image": {"alt": "The words the dog sees the man the dog in a row. Layer 1: from each word a short arrow to the word before it; under sees stands: before = dog. Layer 2: from the last word, dog, a long arrow back to sees, whose block before says dog; what comes back is the guess sees."}}
from classroom.diagram import Diagram

text = "<bos> the dog sees the man the dog".split()
drawing = Diagram(8.6, 2.2)
for n, word in enumerate(text):
    x = 0.6 + 1.07 * n
    drawing.text(x, 1.1, word)
    if n:
        drawing.arc(x - 0.1, x - 0.97, 1.25, plots.BLUE)
        drawing.text(x, 0.78, f"before: {text[n - 1]}", plots.BLUE, size=9)
drawing.arc(0.6 + 7.49, 0.6 + 3.21, 1.3, plots.RED)
drawing.text(0.6 + 7.49, 0.45, "guess: sees", plots.RED, size=9)
drawing.text(0.6, 2.05, "layer 1", plots.BLUE, size=9)
drawing.text(1.4, 2.05, "layer 2", plots.RED, size=9)
plt.show()

# %%
from dotformer.by_hand.attention import scaled_dot_product_attention
from dotformer.by_hand.positions import rotation_matrix, sinusoidal_positions

words = "<bos> dog man sees the".split()
blocks = {"word": 5, "position": 16, "before": 5, "guess": 5}
starts = np.cumsum([0, *blocks.values()])
D = starts[-1]


def block(name):
    """A matrix (D, width) that reads one block of a vector; its transpose writes."""
    start = starts[list(blocks).index(name)]
    return np.eye(D)[:, start : start + blocks[name]]


def head(x, w_q, w_k, w_v, w_o):
    """What a head adds to each vector, and its weights, under the causal mask."""
    causal = np.tril(np.ones((len(x), len(x)), dtype=bool))
    out, weights = scaled_dot_product_attention(x @ w_q, x @ w_k, x @ w_v, causal)
    return out @ w_o, weights


x = np.zeros((len(text), D))  # `text`: <bos> and the words above
x += np.eye(5)[[words.index(word) for word in text]] @ block("word").T
x += sinusoidal_positions(len(text), 16) @ block("position").T

# %% [markdown]
# Each head is four matrices: three read a block, for the query, the key and the value, and the last writes to one. The
# first call of `head` is the previous-token head, the second the induction head. The factor 200 makes the scores so
# large that the softmax puts nearly all weight on the best match:

# %%
read_position, read_word = block("position"), block("word")
back = 200 * read_position @ rotation_matrix(-1, 16)
added, _ = head(x, back, read_position, read_word, block("before").T)
x = x + added
added, _ = head(x, 200 * read_word, block("before"), read_word, block("guess").T)
guess = (x + added) @ block("guess")
print("word  guess at the next")
for n, name in enumerate(text):
    best = ", ".join(f"{w} {g:.2f}" for w, g in zip(words, guess[n], strict=True))
    print(f"{name:5} {best}")
assert words[guess[-1].argmax()] == "sees" and guess[-1].max() > 0.99
assert np.allclose(guess[6], [0, 0.5, 0.5, 0, 0], atol=0.01)

# %% [markdown]
# After the last *dog* the guess is *sees*. After the *the* before it, it is *dog* or *man*, half and half, since both
# have followed *the*. Where a word is new, as at *man*, nothing matches, so all scores are 0, and the softmax spreads
# the weight evenly over all words so far. Such a pair of heads is an **induction circuit** ([Elhage and others
# 2021](https://transformer-circuits.pub/2021/framework/index.html)). It knows no word and no grammar: *AB ... A*,
# therefore *B*.

# %% tags=["quiz"]
quiz.one_choice(
    "The induction head of layer 2 has the *word* as its query. What would it do with the word as its key, too?",
    quiz.right(
        "Attend to itself and to earlier occurrences of the same word, and guess that word again",
        "Yes: equal words match equal words. Only a key that knows the word *before* it shifts the answer by one.",
    ),
    quiz.wrong(
        "The same, a little less sharply",
        "The value comes from the position that matched. With the word as its key that is *dog*, not *sees*.",
    ),
    quiz.wrong(
        "Nothing, since the causal mask hides earlier words",
        "The mask hides later ones. All earlier words can be seen.",
    ),
)

# %% [markdown]
# ### Found in a trained model
#
# Does training find this? Train two layers of two heads on texts in which there is little else to learn. The alphabet
# has 32 letters. Each text has four words of its own, of four, five, six and seven letters, and their 22 letters all
# differ. The text repeats its words in random order, none twice running, and after each stands a random letter, one of
# the ten that no word uses.
#
# Such a text might begin *rtuzc* m *qxab* k *rtuzc* s. The first *rtuzc* cannot be known. After the second *r*, the
# letters *t*, *u*, *z*, *c* are known to a reader who looks back.
#
# Here is a head of each layer of a trained model, on one text, queries as rows:

# %% tags=["plot"] mystnb={"image": {"alt": "Two maps of 48 queries by 48 keys. On the left, a head of layer 1: a band below the diagonal that fades after some letters. On the right, a head of layer 2: short dark diagonal lines far below the main diagonal, each as long as a word: a query attends to what followed its letter earlier."}}
copying = measured("copying")["runs"]
two_layers = [run for run in copying if "without" in run]
one = np.array(two_layers[0]["example"]["thousandths"])  # (layers, H, T, T)
figure, panels = plt.subplots(1, 2, figsize=(7.6, 3.9))
for layer, axes in enumerate(panels):
    weights = one[layer, 1] / 1000
    axes.imshow(weights, cmap=plots.WEIGHTS, vmin=0, vmax=1, interpolation="none")
    axes.set(title=f"layer {layer + 1}, head 2", xlabel="key")
panels[0].set_ylabel("query")
figure.tight_layout()
plt.show()

# %% [markdown]
# On the left, the head spreads its weight over the last few letters. On the right, each line below the diagonal is a
# word that comes again: letter by letter, the head attends to what followed earlier, mostly the first time. A head's
# weight on **what came after** is its total weight on all letters that followed the query's letter earlier.
#
# On a letter that can be known, a reader who knows nothing pays $\ln 32 = 3.47$ nats. One who knows that the word goes
# on, and the words' 22 letters but not their order, pays $\ln 21 = 3.04$, because any of the other 21 letters may come
# next. One who copies pays nearly nothing.
#
# For comparison, train also models of one layer, and of two layers without positions, three seeds of each kind
# (`python -m benchmarks.copying`).
#
# **Predict first.** Measure the loss only on letters that can be known. Will it fall evenly?

# %% tags=["plot"] mystnb={"image": {"alt": "Two panels over 2,000 steps. Above, the loss on repeated letters: three models of two layers sink from 3.47 to 3.25 until step 250, fall to between 0.4 and 0.7 by step 450, and end below 0.2; three models of one layer stay above 3.1; three of two layers without positions sink slowly, to 1.1 or 1.2. Below, the largest weight of a head of layer 2 on what came after: 0.04 until step 250, between 0.6 and 0.9 at step 450, 0.86 to 0.95 in the end."}}
figure, (above, below) = plt.subplots(2, 1, figsize=(6.4, 4.8), sharex=True)
for run in copying:
    steps = [row["step"] for row in run["rows"]]
    usual = run["layers"] == 2 and run["positions"]
    color = plots.BLUE if usual else plots.GREY if run["positions"] else plots.GOLD
    above.plot(steps, [row["loss"] for row in run["rows"]], color=color, lw=1.2)
    if usual:
        after = [np.max(row["after"][1]) for row in run["rows"]]
        below.plot(steps, after, color=plots.RED, lw=1.2)
above.text(2000, 2.7, "one layer", color=plots.GREY, ha="right")
above.text(2000, 0.35, "two layers", color=plots.BLUE, ha="right")
above.text(2000, 1.5, "no positions", color=plots.GOLD, ha="right")
above.set(ylabel="loss on known letters", ylim=(0, 3.7))
below.set(xlabel="step", ylabel="weight on what\ncame after", ylim=(0, 1))
figure.tight_layout()
plt.show()

# %% [markdown]
# It does not. In the three full models, those of two layers with positions, little happens for 250 steps. Within the
# next 200 the loss falls from over 3.2 to under 0.7, and at the same steps the weight of the stronger head of layer 2
# on what came after rises from under 0.05 to over 0.6. Such a sudden turn is called a **phase change**. Perhaps the
# layers need each other: the second finds nothing until the first has written what came before, and writing it gains
# little until the second looks for it. [Olsson and others (2022)](https://arxiv.org/abs/2209.11895) found such a turn
# in language models of two and more layers, at which induction heads form and in-context learning improves abruptly.
#
# The models of one layer have not learned to copy at the end: their loss is 3.1 to 3.2, close to that of a reader who
# knows the letters and not their order. Those of two layers without positions learn it slowly: 1.1 to 1.2 after 2,000
# steps.
#
# For each head of the three full models, *before* and *after* are its mean weights on the previous letter and on what
# came after. A weight says where a head looks, not whether the output uses what it finds. So *loss without it* is the
# loss with this head's result set to 0 (**ablation**). All are measured at letters whose next one is known.

# %% each head, and the loss without it tags=["hide-input"]
print("seed  layer head  before  after  loss without it   (with all heads)")
for run in two_layers:
    last = run["rows"][-1]
    for layer, head in np.ndindex(2, 2):
        before, after = (last[name][layer][head] for name in ("before", "after"))
        lost = run["without"][layer][head]
        ending = f"   ({last['loss']:.2f})" if layer == head == 0 else ""
        place = f"{run['seed']:4} {layer + 1:6} {head + 1:4}"
        print(f"{place} {before:7.2f} {after:6.2f} {lost:16.2f}{ending}")
        assert lost > 1.5 * last["loss"]
        assert layer == 0 or after > 0.84

# %% tags=["proof"]
assert np.log([32, 4 + 5 + 6 + 7 - 1]).round(2).tolist() == [3.47, 3.04]
for run in copying:
    rows, last = {row["step"]: row for row in run["rows"]}, run["rows"][-1]
    if "without" in run:
        assert rows[250]["loss"] > 3.2 and np.max(rows[250]["after"][1]) < 0.05
        assert rows[450]["loss"] < 0.7 and np.max(rows[450]["after"][1]) > 0.6
        assert 0.25 < max(np.max(row["before"][0]) for row in run["rows"]) < 0.3
        assert last["loss"] < 0.19 and np.min(run["without"]) >= 0.28
        assert (
            np.max(run["without"][1]) < 1.005 and np.min(run["without"][0]) > 0.59
        )
        tokens_before = np.array(last["before"][0])
        assert tokens_before.min() > 0.08 and tokens_before.max() < 0.135
        assert np.min(last["after"][1]) > 0.84 and np.max(last["after"][1]) < 0.96
    elif run["layers"] == 1:
        assert 3.1 < last["loss"] < 3.2
    else:
        assert 1.1 < last["loss"] < 1.2
letters, is_known = (
    np.array(two_layers[0]["example"][n]) for n in ("text", "known")
)
read = {
    s
    for t in range(len(letters) - 1)
    for s in range(1, t + 1)
    if is_known[t + 1] and not is_known[s]
    if letters[s - 1] == letters[t] and letters[s] == letters[t + 1]
}
there = [one[0][h, sorted(read), np.array(sorted(read)) - 1].mean() for h in (0, 1)]
assert np.round(np.divide(there, one[0].sum(-1).mean()), 2).tolist() == [0.35, 0.25]
for run in runs:
    scores = [row for row in run["ablations"] if len(row["heads"]) == 1]
    assert len(scores) == 16 and max(row["after"] for row in scores) < 0.035
    assert 12 < run["copying"]["first"] < run["copying"]["second"] < 12.7

# %% [markdown]
# Both heads of layer 2 have become induction heads, with more than 0.8 of their weight on what came after.
#
# In layer 1, no head became the previous-token head that we wired. Each puts only 0.08 to 0.13 on the letter before,
# measured where a word comes again. Layer 2 reads mostly the first occurrence, and there it is more: 0.35 and 0.25 on
# average in the text drawn above. The heads of layer 1 are needed: without one of them the loss is 0.6 to 2.3 instead
# of 0.16 to 0.18. Without one head of layer 2 it is 0.28 to 1.00: the other still copies, though less well.

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: How much does counting tell?
#
# *Easy, 10 minutes.* An ideal guesser sees only the token before, and knows how often each *pair* occurs in this very
# text. Given the text as whole numbers $(T,)$, return what it pays in nats a token: the mean of $-\ln p(b \mid a)$
# over all $T - 1$ pairs, with $p(b \mid a)$ the count of the pair $ab$ divided by the count of pairs that begin with
# $a$. In NumPy.


# %% tags=["exercise"]
def bigram_entropy(tokens):
    """Nats a token, given the token before."""
    ...


# %% tags=["check"]
def counted(tokens, given=True, total=False, base=1.0):
    pairs = list(zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True))
    of = {a: sum(first == a for first, _ in pairs) for a, _ in pairs}
    nats = [
        -np.log(pairs.count(pair) / (of[pair[0]] if given else len(pairs)))
        for pair in pairs
    ]
    return (np.sum(nats) if total else np.mean(nats)) / base


rng = np.random.default_rng(0)
check_bigrams = partial(
    checks.check,
    reference=counted,
    cases=[
        (rng.integers(0, 3, 12),),
        (np.array([0, 1, 0, 1, 0]),),
        (rng.integers(5, 9, 30),),
    ],
    mistakes={
        "this is the entropy of pairs; divide by the count of pairs that begin with a": partial(
            counted, given=False
        ),
        "this is the sum; the mean over the pairs is wanted": partial(
            counted, total=True
        ),
        "these are bits; nats are wanted": partial(counted, base=np.log(2)),
    },
)
check_bigrams(bigram_entropy)


# %% tags=["solution"]
def bigram_entropy(tokens):
    before, after = tokens[:-1], tokens[1:]
    counts = np.zeros((tokens.max() + 1, tokens.max() + 1))
    np.add.at(counts, (before, after), 1)
    shares = counts[before, after] / counts.sum(axis=1)[before]
    return -np.log(shares).mean()


verdict = check_bigrams(bigram_entropy)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: Score a head for copying
#
# *Medium, 15 minutes.* Given tokens $(T,)$ and one head's weights $(T, T)$, return the mean, over all queries whose
# token has been there before, of the weight that they put on the tokens right after its earlier occurrences. In NumPy.
# Mind that a query's own position counts if the token before it is the same.


# %% tags=["exercise"]
def copying_score(tokens, weights):
    """Mean weight on what came after the same token earlier."""
    ...


# %% tags=["check"]
def scored(tokens, weights, shift=1, over_all=False):
    found = []
    for t in range(len(tokens)):
        earlier = [j for j in range(t) if tokens[j] == tokens[t]]
        if earlier or over_all:
            found.append(sum(weights[t, j + shift] for j in earlier))
    return np.mean(found)


cases = []
for seed, size in ((1, 6), (2, 9), (3, 12)):
    draw = np.random.default_rng(seed)
    lower = np.tril(draw.random((size, size)))
    cases.append((draw.integers(0, 3, size), lower / lower.sum(1, keepdims=True)))
check_copying = partial(
    checks.check,
    reference=scored,
    cases=cases,
    mistakes={
        "this is the weight on the earlier occurrences; the tokens after them are wanted": partial(
            scored, shift=0
        ),
        "queries whose token is new do not count": partial(scored, over_all=True),
    },
)
check_copying(copying_score)


# %% tags=["solution"]
def copying_score(tokens, weights):
    follows = np.r_[-1, tokens[:-1]]  # the token before each key
    after = np.tril(tokens[:, None] == follows[None, :])
    seen = after.any(axis=1)
    return (weights * after).sum(axis=1)[seen].mean()


verdict = check_copying(copying_score)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: Bits a character
#
# *Easy, 5 minutes.* Losses per token cannot be compared between tokenizers. Given the loss in nats a token, the number
# of tokens and the number of characters of a text, return bits a character.


# %% tags=["exercise"]
def bits_per_character(nats, tokens, characters):
    """Bits a character."""
    ...


# %% tags=["check"]
check_bits = partial(
    checks.check,
    reference=lambda nats, tokens, characters: (
        nats * tokens / np.log(2) / characters
    ),
    cases=[(3.1, 100, 302), (1.0, 7, 7), (4.5, 20, 90)],
    mistakes={
        "these are nats a character": lambda n, t, c: n * t / c,
        "characters and tokens are exchanged": lambda n, t, c: (
            n * c / np.log(2) / t
        ),
        "a nat is 1 / ln 2 bits: divide": lambda n, t, c: n * t * np.log(2) / c,
    },
)
check_bits(bits_per_character)


# %% tags=["solution"]
def bits_per_character(nats, tokens, characters):
    return nats * tokens / characters / np.log(2)


verdict = check_bits(bits_per_character)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# A GPT is a stack of encoder layers under a causal mask; question and answer stand in one sequence, and the next token
# is all that it learns to predict. To predict text well it must learn its form and much of what it is about. With two
# layers it can copy what it has read: one tells each token which token stood before it, and one finds where the present
# token stood earlier, and guesses what came after.
#
# **Sources.** GPT-2: [Radford and others
# (2019)](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf); GPT-3
# and in-context learning: [Brown and others (2020)](https://arxiv.org/abs/2005.14165). Models of two layers, taken
# apart: [Elhage and others (2021)](https://transformer-circuits.pub/2021/framework/index.html); induction heads:
# [Olsson and others (2022)](https://arxiv.org/abs/2209.11895). No positions: [Haviv and others
# (2022)](https://arxiv.org/abs/2203.16634). Instructions: [Ouyang and others (2022)](https://arxiv.org/abs/2203.02155).
#
# **Next.** [Chapter 19](19_modern.ipynb) replaces almost every part of this model with a newer one.

# %% [markdown]
# ## Going further
#
# Four questions about a GPT, and the commands. Chapter 19 repeats what it needs of them.
#
# ### Train it yourself
#
# On the command line, the model of 1.2 million parameters is trained and writes like this:
#
# ```bash
# python -m dotformer train configs/gpt-docstrings.toml      # ten minutes on one core
# python -m dotformer write runs/gpt-docstrings numpy.linalg.triangular_norm
# ```
#
# `python -m benchmarks.docstrings` trains it with three seeds, and models of [other widths](#larger-models), and
# measures all that this chapter reports of them, in nearly two hours of one core.
#
# ### Does a causal model need positions?
#
# **Predict first.** Without positions an encoder takes a sentence for a bag of words ([chapter
# 4](04_self_attention.ipynb#does-the-order-of-the-words-matter)). Train the [small model](#a-small-one-here) again,
# with all vectors of positions set to 0. Is it worse, and by how much?

# %%
_, without = trained(positions=False)
print({step: round(loss, 2) for step, loss in without.items()})
assert abs(without[120] - 3.92) < 0.03

# %% [markdown]
# Better: about 3.9 instead of 4.2 (one seed each). In a causal model the mask tells the order ([chapter
# 9](09_decoder.ipynb#does-a-causal-mask-carry-order)). In one layer the tokens that a token sees are still a bag of
# words. But each token has a bag of its own: the first token's holds one token, the tenth token's ten. Take a head that
# spreads its weight evenly. At the first token it gives that token a weight of 1. At the second it gives the first
# token ½, and at the tenth a tenth. If every text begins with the same token, such as `<bos>`, the share of its value
# in what the head writes tells the position, and a second layer can read it. [Haviv and others
# (2022)](https://arxiv.org/abs/2203.16634) found that large language models without positions (later called *NoPE*) do
# nearly as well as others, and that positions can be read from their vectors.
#
# Our 512 vectors for positions start as noise, and 120 steps are few to learn them. So do not conclude that positions
# are useless: in the [copying task](#found-in-a-trained-model), they make the difference, after 2,000 steps, between a
# loss of 0.2 and one of 1.1.

# %% [markdown]
# ### Larger models
#
# Would a larger model of documentation reach a lower loss? `benchmarks.docstrings` also trains models of four widths,
# 16 to 128, each with about four times the parameters of the one before it (those of the layers; embeddings are left
# aside), for 750 steps. Smaller models train best with larger learning rates, so each has a learning rate of its own:
# the best of a grid that goes on until the loss rises again.
#
# **Predict first.** From width 16 to 32 the loss falls from 4.47 to 4.11, and to 3.77 at 64. Where will it be at 128?

# %% tags=["plot"] mystnb={"image": {"alt": "Loss against parameters, both on logarithmic scales. Points of three seeds for four sizes: 4.47 at 13 thousand, 4.11 at 51 thousand, 3.77 at 200 thousand, 3.54 at 793 thousand. A dashed line through the first three would reach 3.46 at the fourth, which lies above it."}}
sized = [run for run in found["runs"] if run["corpus"] == "sizes"]
sized = [run for run in sized if run["part"] == "judge"]
counts = sorted({run["in_layers"] for run in sized})
losses = [
    [run["validation_loss"] for run in sized if run["in_layers"] == count]
    for count in counts
]
line = np.polyfit(np.log(counts[:3]), np.log(np.mean(losses[:3], axis=1)), 1)
expected = np.exp(np.polyval(line, np.log(counts)))
figure, axes = plt.subplots(figsize=(5.8, 3.2))
axes.plot(counts, expected, color=plots.GREY, ls="--", lw=1.2)
axes.plot(counts, losses, "o", color=plots.BLUE, ms=5, alpha=0.7)
axes.set(xscale="log", yscale="log", xlabel="parameters in the layers")
axes.set_ylabel("loss, nats a token")
axes.set_yticks([3.5, 4, 4.5], ["3.5", "4", "4.5"])
axes.minorticks_off()
plt.show()

# %% losses beside the line tags=["hide-input"]
for count, three, line_says in zip(counts, losses, expected, strict=True):
    seeds = " ".join(f"{loss:.2f}" for loss in three)
    print(f"{count:7,} parameters in layers: {seeds}   line {line_says:.2f}")

# %% tags=["proof"]
means = [np.mean(three) for three in losses]
assert np.allclose(means, [4.474, 4.111, 3.774, 3.538], atol=0.005)
assert abs(expected[3] - 3.46) < 0.005 < min(losses[3]) - expected[3]
assert -0.07 < line[0] < -0.055

# %% [markdown]
# On logarithmic scales the first three lie on a line: four times the parameters, 8 percent less loss. Such laws, called
# **power laws**, in parameters, in data and in computing, are the scaling laws that [Kaplan and others
# (2020)](https://arxiv.org/abs/2001.08361) found, some over seven orders of magnitude.
#
# But our fourth point lies above the line, at 3.54 instead of 3.46, and its three seeds agree to 0.03. The law in size
# holds while data and training suffice. All four models have read the same 1.5 million tokens in 750 steps. (The
# training texts have 1.2 million, so some were read twice.) The largest model was still improving: the same width,
# [trained twice as long](#a-million-parameters), reached about 3.1 on the test texts.
#
# Too little training may not be the whole reason for the gap. The smaller models were not run longer, and a law with
# three points has little to stand on.
#
# Size and data must grow together. [Hoffmann and others (2022)](https://arxiv.org/abs/2203.15556) worked out how: with
# more computing both should grow by the same factor, to about 20 tokens for each parameter. Of all ways to a given
# loss, that one needs the least computing for *training*. Small models that are to be used a great deal read far more:
# SmolLM2-135M of [chapter 19](19_modern.ipynb#smollm2) two trillion tokens, some 15,000 for each parameter.

# %% tags=["quiz"]
quiz.number(
    "By that rule, how many million tokens should the model of 1.18 million parameters read?",
    20 * runs[0]["parameters"] / 1e6,
    tolerance=0.3,
    feedback="Yes, 23.6 million. It has read 3 million in its 1,500 steps, so for its size it has read little. (The rule was found with models 60 to 14,000 times as large.)",
    mistakes=[
        (
            3.07,
            "That is about what it has read, 1,500 steps of at most 2,048 tokens.",
        ),
        (1.18 / 20, "Twenty tokens for each parameter, not the other way round."),
    ],
    otherwise="Twenty tokens for each parameter.",
)

# %% [markdown]
# ### Does the model of documentation copy?
#
# Look for induction heads in the model that [writes documentation](#a-million-parameters). Such heads are usually
# looked for on a sequence of random tokens that is written twice. There none shows. The model's loss is no lower the
# second time than the first: over 12 nats a token, worse than a guess, since it expects documentation; and none of its
# sixteen heads puts more than 0.035 of its weight on what came after the same token earlier.
#
# Texts in which a third of the letters are copies teach copying in 450 steps. In documentation, copying perhaps helps
# too seldom for so short a training. In the models of Olsson and others, which read general text, the turn came after
# 2.5 to 5 billion tokens. Ours has read three million. (Random tokens are unlike all that it has read, so the test says
# only that no head copies there.)

# %% [markdown]
# ### Is the decoder an encoder with a mask?
#
# A GPT is an encoder with a mask. The decoder of 2017 is not: it has one sublayer more, cross-attention, and knows of
# the source only through that. Switch cross-attention off in chapter 9's model, and give the model two different
# questions:

# %% two questions, with and without cross-attention tags=["hide-input"]
from dotformer.transformer import Transformer, TransformerConfig

config = TransformerConfig(
    50, 50, num_encoder_layers=2, num_decoder_layers=2, d_model=32, num_heads=4
)
translator = Transformer(config).eval()
sources, target = torch.randint(1, 50, (2, 6)), tokens[:1, :5].expand(2, -1)
with torch.no_grad():
    one, other = translator(sources, target)
    print(f"two sources: logits differ by {(one - other).abs().max():.2f}")
    assert (one - other).abs().max() > 0.1
    for layer in translator.decoder.layers:
        for parameter in layer.cross_attention.w_o.parameters():
            parameter.zero_()
    one, other = translator(sources, target)
    print(f"without cross-attention: {(one - other).abs().max():.2f}")
assert torch.equal(one, other)

# %% [markdown]
# Without cross-attention the 2017 model writes the same, whatever it was asked. A GPT needs none, because the question
# stands in its own sequence.
