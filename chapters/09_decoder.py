# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 9. How does a transformer answer?
#
# *Hi, how are you?* goes in, *I am fine* comes out. An encoder can read the question. To write the answer, a second
# stack is needed, one that looks at the question and at its own words so far, and never at words that it has not
# written yet. At the end of this chapter the transformer of the paper is complete, its stacks equal to PyTorch's, and a
# small one has learnt to answer. You follow one question through it, number by number.
#
# You need [chapter 8](08_encoder.ipynb). It takes about 40 minutes to read, and 45 more for the exercises.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. The encoder side is built, with embeddings and positions. This chapter adds the decoder side: masked self-attention, cross-attention, the decoder stack, and the output layer."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, movable, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=9)

# %% [markdown]
# ## Who may see whom
#
# A model that writes is asked at every word: *what comes next?* In training the whole answer is there, and the question
# is put at all its positions at once. Then the third word must not see the fourth, or it would copy it instead of
# predicting it. That is what masks are for. In this book, **true means: may attend**.
#
# There are two masks, and they say different things:
#
# - The **causal mask** is about order. Row $t$ is true up to column $t$. Its shape is $(T, T)$, queries by keys, and it
#   is the same for every sentence.
# - The **padding mask** is about what is real. Sentences in a batch have different lengths; the shorter ones are filled
#   up with a token that means nothing. Its shape is $(B, 1, 1, S)$, where $S$ counts the keys: one row for each
#   sentence, the same for all heads and all queries. Where words ask each other, $S = T$.

# %% tags=["export"] module="decoder"
import torch
from dotformer.support.shapes import shapes
from jaxtyping import Bool, Float, Int
from torch import Tensor


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """Which positions each may attend to: (T, T), True on and below the diagonal.

    Row t is true in columns 0 to t, so that no query sees its future.
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


@shapes
def padding_mask(
    tokens: Int[Tensor, "B S"], pad_id: int
) -> Bool[Tensor, "B 1 1 S"]:
    """Which tokens are real: the same for all heads and all queries.

    Raises ValueError when a sentence has no real token. (On a GPU, or compiled,
    that is not checked: the check would have to wait for the device.)
    """
    real = tokens != pad_id
    checked = tokens.device.type == "cpu" and not torch.compiler.is_compiling()
    if checked and not real.any(dim=1).all():
        empty = (~real.any(dim=1)).nonzero().flatten().tolist()
        raise ValueError(f"empty sentences in rows {empty}: nothing but padding")
    return real[:, None, None]


# %%
import warnings

import numpy as np
from dotformer.support.recording import record_weights
from torch.nn import functional as F

# %% tags=["plot"] mystnb={"image": {"alt": "Three small matrices of ones and blanks for an answer of three words and one padding token. Causal: a triangle, each row true up to its own column. Padding: three columns true in every row, the last blank. Both: the triangle without the last column."}}
answer = torch.tensor([[5, 6, 7, 0]])  # three words, then padding
causal, padding = causal_mask(4), padding_mask(answer, pad_id=0)
names = ["I", "am", "fine", "pad"]
figure, panels = plt.subplots(1, 3, figsize=(6.6, 2.7))
for axes, title, allowed in [
    (panels[0], "causal (T, T)", causal),
    (panels[1], "padding (B, 1, 1, S)", padding[0, 0].expand(4, 4)),
    (panels[2], "both", (causal & padding)[0, 0]),
]:
    axes.pcolormesh(allowed, cmap=plots.WEIGHTS, vmin=0, vmax=1.4, ec="white", lw=2)
    axes.set(title=title, xlabel="key", ylabel="query", aspect="equal", ylim=(4, 0))
    axes.set_xticks(np.arange(4) + 0.5, names)
    axes.set_yticks(np.arange(4) + 0.5, names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for row, column in np.ndindex(4, 4):
        text = "yes" if allowed[row, column] else "–"
        color = "white" if allowed[row, column] else plots.GREY
        axes.text(
            column + 0.5, row + 0.5, text, ha="center", va="center", color=color
        )
figure.tight_layout()
plt.show()

# %% [markdown]
# Each *yes* is a pair that may meet. The word *am*, in the second row, sees *I* and itself. The last row belongs to the
# padding token. No word may attend to it; it still asks, and the loss leaves its answer out.
#
# ### Are causal and padding masks interchangeable?
#
# No. One is a matrix of queries by keys and knows nothing of sentences; the other has one row per sentence and knows
# nothing of order. Together, `causal & padding` broadcasts to $(B, 1, T, T)$. Encoders need only the padding mask:
# there, everybody may look at everybody. And mind a trap: with four sentences of four tokens, a padding mask $(B, S)$
# passes for a matrix of queries by keys, and nothing complains. That is why `padding_mask` returns four axes.
#
# ### Does a mask zero anything?
#
# People who hear *mask* think of multiplying by 0. Try it on paper. Scores $(2, 1, 3)$, and the third is forbidden.
#
# | | scores | weights |
# |---|---|---|
# | minus infinity *before* the softmax | $(2, 1, -\infty)$ | $(0.731, 0.269, 0)$ |
# | scores times 0 | $(2, 1, 0)$ | $(0.665, 0.245, 0.090)$ |
# | weights times 0 | $(2, 1, 3)$ | $(0.245, 0.090, 0)$ |
#
# A score of 0 is a score like any other: the forbidden word gets 9 percent. And weights set to 0 after the softmax no
# longer sum to 1; worse, $e^3$ is still in the divisor, so the forbidden word is heard through the others. Only minus
# infinity leaves a word out.

# %%
scores = torch.tensor([2.0, 1, 3])
allowed = torch.tensor([True, True, False])
before = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
times_zero = (scores * allowed).softmax(-1)
after = scores.softmax(-1) * allowed
assert np.allclose(before, [0.731, 0.269, 0], rtol=0, atol=5e-4)
assert np.allclose(times_zero, [0.665, 0.245, 0.090], rtol=0, atol=5e-4)
assert np.allclose(after, [0.245, 0.090, 0], rtol=0, atol=5e-4)

# %% tags=["quiz"]
quiz.one_choice(
    "Two sentences of 5 and 3 tokens are padded to 5 and enter an *encoder* with 4 heads. Which mask does its attention need?",
    quiz.right(
        "A padding mask of shape $(2, 1, 1, 5)$",
        "Yes: for each sentence one row that says which keys are real, for all heads and queries.",
    ),
    quiz.wrong(
        "A causal mask of shape $(5, 5)$",
        "An encoder reads a sentence that is complete. There is no future to hide, and a causal mask would only make its first words blind.",
    ),
    quiz.wrong(
        "Both of them, combined into $(2, 1, 5, 5)$",
        "That is what a *decoder* needs in training. In an encoder, the last word may inform the first.",
    ),
    quiz.wrong(
        "None, as padding tokens have vectors of zeros",
        "Even a vector of zeros has a key, with a bias, and a score. A score of 0 can be the largest of all.",
    ),
)

# %% [markdown]
# ## Asking somebody else
#
# The second thing a writer needs is to look at the question. [Exercise 1 of chapter
# 4](04_self_attention.ipynb#exercise-1-ask-somebody-else) did it: queries from one sequence, keys and values from
# another. The formula does not change, and the matrix of weights is no longer square. It has a row for each word of the
# answer, $T$, and a column for each word of the question, $S$. This is **cross-attention**.

# %% tags=["plot"] mystnb={"image": {"alt": "Drawing of cross-attention as a matrix of 3 rows and 6 columns. Above the columns stands the memory, a vector for each of Hi , how are you ?, and an arrow W_K leads down to their keys. Left of the rows stands the decoder, a vector for each of begin, I, am, and an arrow W_Q leads to their queries. To the right an arrow leads to three results, each a blend of the values, which are memory times W_V."}}
question = ["Hi", ",", "how", "are", "you", "?"]
writing = ["<begin>", "I", "am"]


def cells(axes, left, bottom, rows, columns, color, width=1.0):
    for row, column in np.ndindex(rows, columns):
        corner = (left + width * column, bottom + row)
        axes.add_patch(
            plt.Rectangle(corner, width, 1, fc=color, ec="white", lw=1.5)
        )


def arrow(axes, start, end, text, at):
    style = {"arrowstyle": "-|>", "color": plots.INK}
    axes.annotate("", end, start, arrowprops=style)
    axes.text(*at, text, ha="center", va="center", fontsize=11)


figure, axes = plt.subplots(figsize=(7.6, 4.6))
cells(axes, 8, 7.5, 3, 6, plots.BLUE, width=1.5)
cells(axes, 8, 4, 2, 6, plots.GOLD, width=1.5)
cells(axes, 8, 0, 3, 6, "#a9c6dc", width=1.5)
cells(axes, 0, 0, 3, 3, plots.RED)
cells(axes, 5, 0, 3, 2, plots.TEAL)
cells(axes, 19, 0, 3, 2, plots.GREY)
arrow(axes, (12.5, 7.4), (12.5, 6.1), "$W_K$", (13.3, 6.75))
arrow(axes, (3.1, 1.5), (4.9, 1.5), "$W_Q$", (4, 2.1))
arrow(axes, (17.1, 1.5), (18.9, 1.5), "", (18, 2))
for column, token in enumerate(question):
    axes.text(8.75 + 1.5 * column, 10.7, token, ha="center")
for row, token in enumerate(writing):
    axes.text(-0.3, 2.5 - row, token, ha="right", va="center")
for x, y, text in [
    (7.7, 9, "memory,\nfrom the encoder"),
    (7.7, 5, "keys"),
]:
    axes.text(x, y, text, ha="right", va="center")
for x, y, text in [
    (1.5, 3.5, "decoder"),
    (6, 3.5, "queries"),
    (12.5, 3.5, "weights (T, S)"),
    (20, 3.5, "received"),
]:
    axes.text(x, y, text, ha="center", va="center")
axes.text(
    20, -0.7, "blends of the values,\nmemory times $W_V$", ha="center", va="top"
)
axes.set(xlim=(-2.5, 24), ylim=(-2.4, 11.4), aspect="equal")
axes.set_axis_off()
plt.show()

# %% [markdown]
# What was read stands above, what is written so far on the left. Each word being written asks, and all words of the
# question are there to answer, so no causal mask is needed here; only padding is left out.
#
# ### Which encoder layer does the decoder ask?
#
# The *last* one, always. A picture of two towers side by side suggests that decoder layer 2 asks encoder layer 2. It
# does not. The encoder runs to its end first, once, and its final output is the **memory** that every decoder layer
# asks, each through its own $W_K$ and $W_V$. And the queries come from the decoder: whoever receives the blend is the
# one who asks.
#
# So a decoder layer has three sublayers, each in the *add and norm* of chapter 8: attend to what is written, attend to the
# question, feed forward. The stack is the encoder's.

# %% tags=["export"] module="decoder"
from dotformer.attention import MultiHeadAttention
from dotformer.encoder import AddAndNorm, FeedForward, LayerConfig, Stack
from torch import nn


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention, feed-forward, each with add and norm.

    After Vaswani and others (2017), section 3.1.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        sizes = config.d_model, config.num_heads, config.dropout
        self.self_attention = MultiHeadAttention(*sizes)
        self.self_attention_add_norm = AddAndNorm(config)
        self.cross_attention = MultiHeadAttention(*sizes)
        self.cross_attention_add_norm = AddAndNorm(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_add_norm = AddAndNorm(config)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """Pass x (..., T, D) through; it may attend to the `memory` (..., S, D).

        `mask` broadcasts to (..., H, T, T) and says which targets see which,
        `memory_mask` to (..., H, T, S) and says which sources they see.
        """
        x = self.self_attention_add_norm(
            x, lambda x: self.self_attention(x, x, x, mask)[0]
        )
        x = self.cross_attention_add_norm(
            x, lambda x: self.cross_attention(x, memory, memory, memory_mask)[0]
        )
        return self.feed_forward_add_norm(x, self.feed_forward)


class Decoder(Stack):
    """A stack of `num_layers` decoder layers, all of which see the same memory."""

    def __init__(self, config: LayerConfig, num_layers: int) -> None:
        super().__init__(DecoderLayer, config, num_layers)

    @shapes
    def forward(
        self,
        x: Float[Tensor, "*batch T D"],
        memory: Float[Tensor, "*batch S D"],
        mask: Bool[Tensor, "... #T #T"] | None = None,
        memory_mask: Bool[Tensor, "... #T #S"] | None = None,
    ) -> Float[Tensor, "*batch T D"]:
        """Pass x through all layers; masks as in `DecoderLayer`."""
        return super().forward(x, memory, mask, memory_mask)


# %% tags=["quiz"]
quiz.one_choice(
    "Encoder and decoder have 6 layers each. Where do the keys of decoder layer 2's cross-attention come from?",
    quiz.wrong(
        "From the output of encoder layer 2",
        "The two towers are drawn side by side, which suggests it. But the decoder starts when the encoder has finished, and sees only its last output.",
    ),
    quiz.right(
        "From the output of encoder layer 6, by a matrix of decoder layer 2",
        "Yes: one memory for all decoder layers, and a $W_K$ of its own in each.",
    ),
    quiz.wrong(
        "From the output of encoder layer 6, by the same matrix in all layers",
        "The memory is the same, but each layer looks at it with matrices of its own. Look at `__init__`: every layer makes its own attention.",
    ),
    quiz.wrong(
        "From the words written so far",
        "Those give the *queries* here. In the layer's other attention they give all three.",
    ),
)

# %% [markdown]
# ## The whole transformer
#
# Two embeddings, two stacks, and one linear map that gives each token of the vocabulary a score. All masks are made in
# one method. The configuration of a layer grows into that of the model, whose defaults are the paper's base model
# (except that the paper shares one table of embeddings).

# %% tags=["export"] module="transformer"
from dataclasses import dataclass

from dotformer.encoder import Embeddings, Encoder, LayerConfig
from dotformer.support.settings import check_settings, check_vocabularies
from dotformer.support.shapes import shapes
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class TransformerConfig(LayerConfig):
    """All that fixes a transformer's shape, beside what fixes its layers.

    `share_embeddings` uses one table for source and target; `tie_output` scores
    tokens by their dot products with the target table.
    """

    source_vocab_size: int
    target_vocab_size: int
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    max_length: int = 1024
    pad_id: int = 0
    share_embeddings: bool = False
    tie_output: bool = True

    def __post_init__(self) -> None:
        check_settings(self, zero=("pad_id",), shares=("dropout",))
        sizes = self.source_vocab_size, self.target_vocab_size
        check_vocabularies(*sizes, self.pad_id, self.share_embeddings)


# %% [markdown]
# The output can be *tied*: a token's score is the dot product of the last vector with its embedding.


# %% tags=["export"] module="transformer"
class Transformer(nn.Module):
    """The whole model: embeddings, encoder, decoder, and a score for every token.

    After Vaswani and others (2017), figure 1. Matrices start uniform after Glorot
    and Bengio (2010), biases at 0, embeddings with deviation 1/sqrt(D).
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = c = config
        sizes = c.d_model, c.max_length, c.dropout
        self.source_embeddings = Embeddings(c.source_vocab_size, *sizes)
        self.target_embeddings = Embeddings(c.target_vocab_size, *sizes)
        self.encoder = Encoder(c, c.num_encoder_layers)
        self.decoder = Decoder(c, c.num_decoder_layers)
        self.output = nn.Linear(c.d_model, c.target_vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if c.share_embeddings:
            self.source_embeddings.tokens = self.target_embeddings.tokens
        if c.tie_output:
            self.output.weight = self.target_embeddings.tokens.weight

    @shapes
    def encode(
        self, source: Int[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B 1 1 S"]]:
        """The memory and its mask, from source tokens."""
        mask = padding_mask(source, self.config.pad_id)
        return self.encoder(self.source_embeddings(source), mask), mask

    @shapes
    def decode(
        self,
        target: Int[Tensor, "B T"],
        memory: Float[Tensor, "B S D"],
        memory_mask: Bool[Tensor, "B 1 1 S"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits: row t scores what may follow the targets 0 to t."""
        real = padding_mask(target, self.config.pad_id)
        mask = causal_mask(target.shape[1], target.device) & real
        x = self.target_embeddings(target)
        return self.output(self.decoder(x, memory, mask, memory_mask))

    @shapes
    def forward(
        self, source: Int[Tensor, "B S"], target: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        """Logits for the tokens of source and target.

        Padding (`config.pad_id`) is masked on both sides. Raises ValueError when a
        sentence is longer than `config.max_length` or, on a CPU, empty.
        """
        return self.decode(target, *self.encode(source))


# %% [markdown]
# Is it the transformer? `nn.Transformer` has the two stacks. Copy its parameters and compare, in both orders of norm,
# with padding on both sides. (It always has a final norm, so ours gets one for the comparison. The functions that copy
# are folded.)


# %% tags=["hide-input"]
def copy_attention(ours, theirs):
    weights, biases = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
    for linear, weight, bias in zip(
        (ours.w_q, ours.w_k, ours.w_v), weights, biases, strict=True
    ):
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
    ours.w_o.load_state_dict(theirs.out_proj.state_dict())


def copy_layer(ours, theirs):
    parts = [(ours.feed_forward.up, theirs.linear1)]
    parts += [(ours.feed_forward.down, theirs.linear2)]
    frames = [m for m in ours.modules() if isinstance(m, AddAndNorm)]
    norms = [m for m in theirs.modules() if isinstance(m, nn.LayerNorm)]
    parts += zip([frame.norm for frame in frames], norms, strict=True)
    for mine, other in parts:
        mine.load_state_dict(other.state_dict())
    attentions = [m for m in ours.modules() if isinstance(m, MultiHeadAttention)]
    others = [m for m in theirs.modules() if isinstance(m, nn.MultiheadAttention)]
    for mine, other in zip(attentions, others, strict=True):
        copy_attention(mine, other)


# %%
warnings.filterwarnings("ignore", message=".*nested")  # of no concern here

source = torch.tensor([[4, 5, 6, 7, 8], [9, 10, 3, 0, 0]])
target = torch.tensor([[1, 4, 5, 6], [1, 7, 0, 0]])
for norm_first in (False, True):
    torch.manual_seed(0)
    theirs = nn.Transformer(
        16, 4, 2, 2, 32, batch_first=True, norm_first=norm_first
    ).eval()
    sizes = TransformerConfig(
        source_vocab_size=11,
        target_vocab_size=11,
        d_model=16,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_ff=32,
        norm_first=norm_first,
        final_norm=True,
    )
    ours = Transformer(sizes).eval()
    with torch.no_grad():
        for stack in ("encoder", "decoder"):
            mine, other = getattr(ours, stack), getattr(theirs, stack)
            for layer, reference in zip(mine.layers, other.layers, strict=True):
                copy_layer(layer, reference)
            mine.norm.load_state_dict(other.norm.state_dict())
        expected = ours.output(
            theirs(
                ours.source_embeddings(source),
                ours.target_embeddings(target),
                tgt_mask=~causal_mask(4),  # there, True means: may not
                src_key_padding_mask=source == 0,
                tgt_key_padding_mask=target == 0,
                memory_key_padding_mask=source == 0,
            )
        )
        found = ours(source, target)
    real = target != 0
    assert torch.allclose(found[real], expected[real], atol=1e-5)

# %% tags=["quiz"]
quiz.number(
    "The paper's base model has 6 encoder layers, 6 decoder layers and 8 heads. How many matrices of attention weights does one training pass compute for a sentence and its translation?",
    sum(
        8 * attentions
        for attentions in [
            6 * 1,
            6 * 2,
        ]  # one in each encoder layer, two in a decoder's
    ),
    tolerance=0.5,
    feedback="Yes: 6 + 12 attentions, each with 8 heads.",
    mistakes=[
        (
            96,
            "A decoder layer has two attentions: to what is written, and to the memory.",
        ),
        (18, "Those are the attentions. Each has 8 heads with a matrix each."),
    ],
    otherwise="Count attentions first: one in an encoder layer, two in a decoder layer. Then heads.",
)

# %% [markdown]
# ## A model that has learnt to answer
#
# Small talk, in 360 questions with one right answer each: *Hi, how are you?* wants *I am fine*. *Is Ada tired?* wants
# *yes, Ada is*. *Why are they late?* wants *who says they are late?* To answer, the model must find the person, turn
# *you* into *I*, and choose *am*, *is* or *are*. A fifth of the questions is held out, and *Hi, how are you?* is among
# those. (Most have a twin with another greeting among the rest. What is new is the combination.)

# %%
subjects = {"you": ("are", "I am"), "we": ("are", "you are")}
subjects |= {"they": ("are", "they are")}
subjects |= {
    name: ("is", f"{name} is") for name in ("she", "he", "Ada", "Bo", "Cleo", "Dan")
}
talk = {}
for greeting in ("", "Hi , ", "Hello , ", "Good morning , "):
    for subject, (verb, reply) in subjects.items():
        talk[f"{greeting}how {verb} {subject} ?"] = f"{reply} fine"
        for state in ("fine", "tired", "happy", "cold", "late"):
            talk[f"{greeting}{verb} {subject} {state} ?"] = f"yes , {reply}"
        for state in ("tired", "happy", "cold", "late"):
            answer = f"who says {reply} {state} ?"
            talk[f"{greeting}why {verb} {subject} {state} ?"] = answer

specials = ["<pad>", "<begin>", "<end>"]
seen_words = {
    word for pair in talk.items() for text in pair for word in text.split()
}
vocabulary = specials + sorted(seen_words)
number = {word: n for n, word in enumerate(vocabulary)}


def batch(texts):
    rows = [torch.tensor([number[word] for word in text.split()]) for text in texts]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)  # padded with 0


questions = batch(talk)
answers = batch(f"<begin> {answer} <end>" for answer in talk.values())
print(len(talk), "pairs,", len(vocabulary), "words")

# %% [markdown]
# In training the decoder receives `<begin> I am fine` and must predict `I am fine <end>`. Both have the same length,
# and stand opposite each other position by position: after `<begin>` comes *I*, after *I* comes *am*. In code, the
# first is all columns of the answers but the last, and the second all but the first; the loss skips padding
# (`ignore_index=0`). This is called **teacher forcing**, since the model goes on from the right words whatever it would
# have said.


# %%
def split_talk(seed):
    order = torch.randperm(
        len(talk), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    hello = list(talk).index("Hi , how are you ?")
    order.remove(hello)
    return [hello, *order[:71]], order[71:]  # held out, for training


def fit(model, rows, steps=250, seed=0):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters())
    model.train()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * min(1, step / 50)
        picked = torch.tensor(rows)[
            torch.randint(len(rows), (32,), generator=generator)
        ]
        logits = model(questions[picked], answers[picked, :-1])
        wanted = answers[picked, 1:]
        loss = F.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=0
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    return loss.item()


config = TransformerConfig(
    source_vocab_size=len(vocabulary),
    target_vocab_size=len(vocabulary),
    d_model=16,
    num_heads=2,
    num_encoder_layers=2,
    num_decoder_layers=2,
    d_ff=64,
    dropout=0.0,
    max_length=16,
)


# %% [markdown]
# And to use it, the model runs once for each word: each new word is appended and goes in with the rest. This is
# **greedy** generation, always the best next word; chapter 12 does better and faster.


# %%
@torch.no_grad()
def generate(model, questions, longest=8):
    written = torch.full((len(questions), 1), number["<begin>"])
    for _ in range(longest):
        best = model(questions, written)[:, -1].argmax(dim=-1)
        written = torch.cat([written, best[:, None]], dim=1)
    return written


def words(row):
    text = [vocabulary[n] for n in row[1:].tolist()]
    return " ".join(text[: text.index("<end>")] if "<end>" in text else text)


def share_right(model, rows):
    written = generate(model, questions[rows])
    return np.mean(
        [
            words(mine) == words(right)
            for mine, right in zip(written, answers[rows], strict=True)
        ]
    )


# %%
scores, trained = [], []
for seed in range(3):
    held_out, for_training = split_talk(seed)
    torch.manual_seed(seed)
    trial = Transformer(config)
    last_loss = fit(trial, for_training, seed=seed)
    scores.append(share_right(trial, held_out))
    trained.append(trial)
    print(
        f"seed {seed}: loss {last_loss:.3f}, held-out answers right {scores[-1]:.0%}"
    )
assert min(scores) > 0.95
model, (unseen, _) = trained[0], split_talk(0)

hello = batch(["Hi , how are you ?"])  # one of the unseen, without padding
print("Hi , how are you ? ->", words(generate(model, hello)[0]))
assert words(generate(model, hello)[0]) == "I am fine"

# %% [markdown]
# A few seconds each, and the held-out questions are answered right. Now follow one.
#
# ## Number by number
#
# The question has six tokens. Each is looked up, scaled by $\sqrt{16} = 4$, and receives its position; two encoder
# layers turn that into the memory. The answer so far, `<begin> I am fine`, goes into the decoder.

# %%
right = answers[unseen[:1], :5]  # <begin> I am fine <end>


def row(stage, values, who):
    numbers = "  ".join(f"{value:6.2f}" for value in values[:5].tolist())
    print(f"{stage:36} {tuple(values.shape)!s:6} {who:8} {numbers} ...")


with torch.no_grad():
    embedded = model.source_embeddings(hello)
    row(
        "embedding x 4",
        4 * model.source_embeddings.tokens.weight[hello[0, 4]],
        "you",
    )
    row("  plus position 4", embedded[0, 4], "you")
    mask = padding_mask(hello, pad_id=0)
    x = embedded
    for n, layer in enumerate(model.encoder.layers, 1):
        x = layer(x, mask)
        row(f"after encoder layer {n}" + " = memory" * (n == 2), x[0, 4], "you")
    memory = x
    y = model.target_embeddings(right[:, :-1])
    row("embedding x 4 plus position 0", y[0, 0], "<begin>")
    for n, layer in enumerate(model.decoder.layers, 1):
        y = layer(y, memory, causal_mask(4), mask)
        row(f"after decoder layer {n}", y[0, 0], "<begin>")
    logits = model.output(y)[0]
assert torch.allclose(logits, model(hello, right[:, :-1])[0], atol=1e-5)

# %% [markdown]
# One vector of 16 numbers enters for each token, and one leaves. The one that leaves at `<begin>` is compared with the
# embeddings of all 32 words. The dot products are the logits, and their softmax says what comes next.

# %%
word = model.target_embeddings.tokens.weight[number["I"]]
total = logits[0].exp().sum().item()
dot = (y[0, 0] @ word).item()
print(f"last vector at <begin>, times the embedding of I: {dot:.2f}")
print(f"e to that power {np.exp(dot):.0f}, of {total:.0f} for all words")
assert np.isclose(dot, logits[0, number["I"]].item(), atol=1e-4)

print("\nafter       next word, and the next best")
for position, probabilities in enumerate(logits.softmax(dim=-1)):
    best, which = probabilities.topk(2)
    listed = "   ".join(
        f"{vocabulary[n]:6} {p:.3f}" for p, n in zip(best, which, strict=True)
    )
    print(f"{vocabulary[right[0, position]]:10}  {listed}")
assert [vocabulary[n] for n in logits.argmax(-1)] == ["I", "am", "fine", "<end>"]

# %% [markdown]
# All four rows come from the same pass. And here is every attention on the way: choose layer and head. First the
# question looking at itself.

# %%
with record_weights(model) as seen, torch.no_grad():
    model(hello, right[:, :-1])


def weights_of(part, kind):
    names = [f"{part}.layers.{n}.{kind}" for n in range(2)]
    return torch.stack([seen[name][0] for name in names])


movable.heads(weights_of("encoder", "attention"), question, layer=1, token=2)

# %% [markdown]
# Then the answer looking at its own beginning. No line leads to a later word, since the mask forbids it.

# %% tags=["plot"]
so_far = ["<begin>", "I", "am", "fine"]
movable.heads(weights_of("decoder", "self_attention"), so_far, layer=1, token=2)

# %% [markdown]
# And the answer looking at the question. A row asks *what comes next?*, so the row of `<begin>` stands where *I* is
# written.

# %% tags=["plot"]
movable.heads(
    weights_of("decoder", "cross_attention"), so_far, keys=question, layer=1
)

# %%
cross = weights_of("decoder", "cross_attention")
for layer, head in np.ndindex(2, 2):
    best = cross[layer, head, 0].argmax().item()
    weight = cross[layer, head, 0, best]
    where = f"layer {layer + 1}, head {head + 1}"
    print(f"{where}: <begin> looks most at {question[best]!r}, {weight:.2f}")

# %% [markdown]
# In this model, both heads of the second layer look at *you* from `<begin>`. Does that explain the *I*? A map is not
# yet a reason, says [chapter 15](15_pretrained.ipynb#do-attention-maps-explain-predictions). Hide one word of the question
# at a time from the decoder, and see what becomes of *I*, in all three models.


# %%
@torch.no_grad()
def chance_of_i(model, hidden):
    memory, mask = model.encode(hello)
    mask = mask.clone()
    mask[..., hidden] = False
    return model.decode(right[:, :1], memory, mask)[0, 0].softmax(-1)[number["I"]]


print(
    "probability of I without",
    *(f"{word:>6}" for word in question),
    "  looks most at",
)
for seed, trial in enumerate(trained):
    chances = [chance_of_i(trial, position).item() for position in range(6)]
    with record_weights(trial) as recorded, torch.no_grad():
        trial(hello, right[:, :1])
    heads = recorded["decoder.layers.1.cross_attention"][0, :, 0]  # (H, S)
    most = question[heads.mean(dim=0).argmax()]
    listed = " ".join(f"{chance:6.2f}" for chance in chances)
    print(f"model {seed}                  {listed}   {most}")

# %% [markdown]
# Model 0 looks at *you* and cannot do without it. Model 1 looks at the question mark and hangs on that: when the
# encoder has finished, a position holds more than its own word. And model 2 looks most at *are*, but what it needs is
# *you*. So the first map was right, and only the test could tell.
#
# ### Does training run token by token?
#
# No. Generation does. In training all positions are computed in one pass, and the causal mask makes each behave as if
# the rest were not there. Put the two side by side: one pass over the whole answer, and four passes, each over what had
# been written.

# %%
with torch.no_grad():
    one_pass = model(hello, right[:, :-1])[0]  # four rows at once
    print("written so far            next word   same as the row of the one pass")
    for length in range(1, 5):
        step = model(hello, right[:, :length])[0, -1]  # the last row only
        difference = (step - one_pass[length - 1]).abs().max().item()
        so_far = " ".join(vocabulary[n] for n in right[0, :length])
        word = vocabulary[step.argmax()]
        print(f"{so_far:25} {word:11} to within {difference:.0e}")
        assert difference < 1e-5

# %% [markdown]
# The same, to the fifth digit. That is what the causal mask buys: a sentence of a thousand words costs a thousand
# passes to write, but to learn from it costs one. A recurrent network ([chapter 1](01_why_attention.ipynb)) needs a
# thousand steps for either.
#
# It rests on one property: *no position sees its future*. So it is worth a test of its own. Change the last words of
# the answer, and nothing before them may move, in training mode and out of it. (Dropout must be 0 for that, since it
# moves everything at random.)


# %%
def leaks(model, cut=2):
    """Does any logit up to `cut` move when later target tokens change?"""
    before = answers[unseen, :-1]
    after = before.clone()
    after[:, cut + 1 :] = number["tired"]
    was_training, moved = model.training, {}
    for mode in (True, False):
        model.train(mode)
        with torch.no_grad():
            first, second = (model(questions[unseen], t) for t in (before, after))
        change = (first - second)[:, : cut + 1].abs().max().item()
        moved["train" if mode else "eval"] = change > 1e-4
    model.train(was_training)
    return moved


assert leaks(model) == {"train": False, "eval": False}

# %% tags=["quiz"]
quiz.one_choice(
    "A translation of 12 words is learnt from. How often does the decoder run for it, in training with teacher forcing, per step of the optimizer?",
    quiz.wrong(
        "Twelve times, once for each word",
        "That is how a translation is *written*. In training the right words are all known, so all rows are computed together.",
    ),
    quiz.right(
        "Once, for all positions together",
        "Yes. The causal mask makes every row see only what it would have seen when writing.",
    ),
    quiz.wrong(
        "Once, and without a causal mask, since the right words are known anyway",
        "They are known to us. Without the mask they are known to the model too, which would copy the next word instead of predicting it.",
    ),
    quiz.wrong(
        "Until the prediction is right, at most twelve times",
        "Training does not repeat until something is right. It takes one pass, and one step against the gradient.",
    ),
)

# %% [markdown]
# ## Break it: six ways to get a mask wrong
#
# The first is a line forgotten. The other five are mistakes that published code has made. Train a model with each and
# ask: Does the loss fall? What share of held-out *words* is right when the decoder is given the right words so far
# (*forced*)? What share of *answers* is right when it writes by itself? Does it leak? And does the correct model, given
# the same parameters, compute the same? (`Masked` leaves the targets' padding mask out: padding stands at the end, where
# the causal mask hides it. Without a causal mask, and with one turned around, padding is seen as well.)


# %%
class Masked(Transformer):
    """A transformer whose decoder masks are made by functions of (T, S)."""

    def __init__(self, own, cross=lambda T, S: torch.ones(T, S).bool()):
        super().__init__(config)
        self.own, self.cross = own, cross

    def decode(self, target, memory, memory_mask=None):
        shape = target.shape[1], memory.shape[1]
        own = self.own(shape[0], self.training)
        cross = self.cross(*shape) & memory_mask
        x = self.decoder(self.target_embeddings(target), memory, own, cross)
        return self.output(x)


class WrongAttention(MultiHeadAttention):
    """An attention that multiplies by the mask: scores, or weights."""

    where = "scores"

    def forward(self, query, key, value, mask=None, need_weights=False):
        q, k, v = (
            self.split_heads(linear(x))
            for linear, x in [(self.w_q, query), (self.w_k, key), (self.w_v, value)]
        )
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if self.where == "scores":
            weights = (scores * mask).softmax(dim=-1)
        else:
            weights = scores.softmax(dim=-1) * mask
        return self.w_o(self.merge_heads(weights @ v)), weights


class AfterSoftmax(WrongAttention):
    where = "weights"


def with_attention(kind):
    broken = Transformer(config)
    for layer in broken.decoder.layers:
        wrong = kind(config.d_model, config.num_heads)
        wrong.load_state_dict(layer.self_attention.state_dict())
        layer.self_attention = wrong
    return broken


def equals_reference(variant, rows):
    reference = Transformer(config)
    reference.load_state_dict(variant.state_dict())
    same = []
    for mode in (True, False):
        with torch.no_grad():
            theirs = reference.train(mode)(questions[rows], answers[rows, :-1])
            ours = variant.train(mode)(questions[rows], answers[rows, :-1])
        real = answers[rows, :-1] != 0
        same.append(torch.allclose(ours[real], theirs[real], atol=1e-4))
    return all(same)


def triangle(T, _training):
    return causal_mask(T)


variants = {
    "correct": lambda: Masked(triangle),
    "no causal mask": lambda: Masked(lambda T, _: torch.ones(T, T).bool()),
    "causal mask turned around": lambda: Masked(lambda T, _: ~causal_mask(T)),
    "scores times mask": lambda: with_attention(WrongAttention),
    "weights times mask": lambda: with_attention(AfterSoftmax),
    "causal mask in training only": lambda: Masked(
        lambda T, training: causal_mask(T) | (not training)
    ),
    "causal mask on cross-attention": lambda: Masked(
        triangle, cross=lambda T, S: torch.ones(T, S).bool().tril()
    ),
}


def trained_with(make, seed):
    """Loss, share of words right when forced, share of answers right when writing."""
    held_out, for_training = split_talk(seed)
    torch.manual_seed(seed)
    variant = make()
    last_loss = fit(variant, for_training, seed=seed)
    with torch.no_grad():
        logits = variant(questions[held_out], answers[held_out, :-1])
    wanted = answers[held_out, 1:]
    forced = (logits.argmax(-1) == wanted)[wanted != 0].float().mean().item()
    return last_loss, forced, share_right(variant, held_out)


# %%
loss, forced, writing = trained_with(variants["no causal mask"], seed=0)
print(
    f"no causal mask: loss {loss:.3f}, forced {forced:.0%}, writing {writing:.0%}"
)
assert loss < 0.02 and forced == 1 and writing < 0.4

# %% [markdown]
# A perfect loss, and hardly an answer right. A program has trained all seven with nine seeds each (`python -m
# benchmarks.masks`, five minutes). The last two columns need no training, so they are computed here.

# %%
from classroom.measured import measured

measurement = measured("masks")["found"]
held_out, _ = split_talk(0)
checked = {}
print(f"{'':30}  loss forced     writing  leaks in        equal")
for name, make in variants.items():
    loss, forced, writing = np.array(measurement[name]).T
    torch.manual_seed(0)
    variant = make()
    leak, equal = leaks(variant), equals_reference(variant, held_out)
    checked[name] = leak, equal
    where = " and ".join(mode for mode, leaking in leak.items() if leaking) or "–"
    spread = f"{writing.min():.0%}-{writing.max():.0%}"
    known = "yes" if equal else "NO"
    print(
        f"{name:30}{loss.max():6.3f}{forced.mean():7.0%}{spread:>12}"
        f"  {where:15} {known}"
    )

# %% [markdown]
# Read the training loss first, the highest of nine: all seven are below 0.1, where guessing costs more than 3. *Forced* is
# the mean of nine seeds, *writing* goes from the worst to the best. Without a causal mask the model sees the next word
# and copies it. Forced, it is perfect; writing by itself it gets a quarter right at best, and with seven of the nine
# seeds nothing (the proof below counts them). A mask turned around, as it comes out when the convention of
# `nn.MultiheadAttention`, where true means *may not*, is mixed with ours, shows *only* the future; the last row may
# attend to nothing and receives zeros. Multiplying leaves the future some weight, or a term in the divisor, and training
# finds whatever leaks. None of this shows in the loss.
#
# A mask that is dropped outside training makes a lottery. Forced, every word suddenly sees its future, which it never
# did in training, and half the words come out wrong. While writing, the new word has no future yet, but the words
# before it have one. One seed gets 3 percent right, another all.
#
# And a causal mask on cross-attention gets by here: the first word may attend to the first word of the question only,
# but two layers of encoder have already carried the rest there, and small talk is easy. Its loss is the highest of the
# seven, which says nothing to somebody who has trained none of the others. The leak test passes. What finds it is the last
# column, the comparison with a reference.

# %% tags=["hide-input"]
writing = {name: np.array(runs)[:, 2] for name, runs in measurement.items()}
forced = {name: np.array(runs)[:, 1] for name, runs in measurement.items()}
assert max(loss for runs in measurement.values() for loss, *_ in runs) < 0.1
assert np.log(len(vocabulary)) > 3
assert [name for name, (_, equal) in checked.items() if equal] == ["correct"]
assert forced["correct"].min() > 0.99 and writing["correct"].min() > 0.95
for name in list(variants)[1:5]:
    assert forced[name].min() > 0.99 and writing[name].max() < 0.36
    assert checked[name][0] == {"train": True, "eval": True}
none = writing["no causal mask"]
assert none.max() < 0.27 and (none == 0).sum() == 7
dropped = "causal mask in training only"
assert 0.4 < forced[dropped].mean() < 0.6
assert round(writing[dropped].min(), 2) == 0.03 and writing[dropped].max() == 1
assert checked[dropped][0] == {"train": False, "eval": True}
assert writing["causal mask on cross-attention"].min() > 0.9

# %% [markdown]
# ## All of it on one screen
#
# Here is the whole model once more, with the paper's settings and without configuration or checks, as one would write it
# in an afternoon.

# %%
import math

from dotformer.by_hand.positions import sinusoidal_positions


class Attention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, x, context, mask):
        q, k, v = self.w_q(x), self.w_k(context), self.w_v(context)
        q, k, v = (  # (B, H, T or S, d_k)
            y.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for y in (q, k, v)
        )
        scores = q @ k.mT / math.sqrt(q.shape[-1])  # (B, H, T, S)
        weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return self.w_o((weights @ v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout, cross):
        super().__init__()
        self.self_attention = Attention(d_model, num_heads)
        self.norm1 = nn.LayerNorm(d_model)
        if cross:
            self.cross_attention = Attention(d_model, num_heads)
            self.norm2 = nn.LayerNorm(d_model)
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.norm3 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.norm1(x + self.dropout(self.self_attention(x, x, mask)))
        if memory is not None:
            found = self.cross_attention(x, memory, memory_mask)
            x = self.norm2(x + self.dropout(found))
        return self.norm3(x + self.dropout(self.down(self.up(x).relu())))


class OneScreen(nn.Module):
    def __init__(self, vocab_size, d_model, heads, layers, d_ff, dropout=0.1):
        super().__init__()
        self.source = nn.Embedding(vocab_size, d_model)
        self.target = nn.Embedding(vocab_size, d_model)
        sizes = d_model, heads, d_ff, dropout
        encoder = (Layer(*sizes, cross=False) for _ in range(layers))
        decoder = (Layer(*sizes, cross=True) for _ in range(layers))
        self.encoder = nn.ModuleList(encoder)
        self.decoder = nn.ModuleList(decoder)
        self.dropout = nn.Dropout(dropout)

    def embed(self, table, tokens):
        T, D = tokens.shape[1], table.embedding_dim
        positions = torch.from_numpy(sinusoidal_positions(T, D)).float()
        x = table(tokens) * math.sqrt(D) + positions.to(tokens.device)
        return self.dropout(x)

    def forward(self, source, target):
        real = (source != 0)[:, None, None]  # (B, 1, 1, S)
        memory = self.embed(self.source, source)
        for layer in self.encoder:
            memory = layer(memory, real)
        T = target.shape[1]
        causal = torch.ones(T, T, dtype=torch.bool, device=target.device)
        mask = causal.tril() & (target != 0)[:, None, None]
        x = self.embed(self.target, target)
        for layer in self.decoder:
            x = layer(x, mask, memory, real)
        return x @ self.target.weight.T  # logits (B, T, V)


# %% [markdown]
# Give it the parameters of the model that has learnt to answer, and it answers the same.

# %%
screen = OneScreen(len(vocabulary), 16, 2, 2, 64).eval()
pairs = zip(screen.parameters(), model.parameters(), strict=True)
with torch.no_grad():
    for mine, trained_one in pairs:
        mine.copy_(trained_one)
    same = screen(questions[unseen], answers[unseen, :-1])
    expected = model(questions[unseen], answers[unseen, :-1])
real = answers[unseen, :-1] != 0
assert torch.allclose(same[real], expected[real], atol=1e-5)
assert words(generate(screen, hello)[0]) == "I am fine"

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: Shift right
#
# *Easy, 10 minutes.* Given right answers $(B, T)$ as a NumPy array, padded with 0 and with no begin or end, return what
# the decoder receives and what it must predict, stacked: $(2, B, T + 1)$. Each sentence's end token stands right after
# its last word, before the padding.


# %% tags=["exercise"]
def teacher_forcing(answers, begin, end):
    """Decoder input and wanted output for answers (B, T): (2, B, T + 1)."""
    ...


# %% tags=["check"]
def forced_by_loop(answers, begin, end):
    pair = np.zeros((2, len(answers), answers.shape[1] + 1), dtype=int)
    for n, row in enumerate(answers):
        real = row[row != 0].tolist()
        pair[0, n, : len(real) + 1] = [begin, *real]
        pair[1, n, : len(real) + 1] = [*real, end]
    return pair


def ends_in_the_last_column(answers, begin, end):
    column = np.ones((len(answers), 1), dtype=int)
    return np.stack(
        [np.hstack([begin * column, answers]), np.hstack([answers, end * column])]
    )


def not_shifted(answers, begin, end):
    first, _ = forced_by_loop(answers, begin, end)
    return np.stack([first, first])


def the_input_ends(answers, begin, end):
    first, second = forced_by_loop(answers, begin, end)
    return np.stack(
        [np.where((first == 0) & (np.roll(first, 1, 1) != 0), end, first), second]
    )


check_forcing = partial(
    checks.check,
    reference=forced_by_loop,
    cases=[
        (np.array([[5, 6, 7], [8, 0, 0]]), 1, 2),
        (np.array([[9, 4, 0, 0], [3, 3, 3, 0], [5, 6, 7, 8]]), 11, 30),
    ],
    mistakes={
        "the end token stands after the padding; it belongs right after the last word": ends_in_the_last_column,
        "input and output are the same: the output must be one position ahead": not_shifted,
        "the decoder never receives the end token: nothing comes after it": the_input_ends,
    },
)
check_forcing(teacher_forcing)


# %% tags=["solution"]
def teacher_forcing(answers, begin, end):
    column = np.zeros((len(answers), 1), dtype=int)
    received = np.hstack([column + begin, answers])
    wanted = np.hstack([answers, column])
    wanted[np.arange(len(answers)), (answers != 0).sum(axis=1)] = end
    return np.stack([received, wanted])


verdict = check_forcing(teacher_forcing)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: A prefix
#
# *Medium, 15 minutes.* Some models read and write in one stack. The first `prefix` tokens of a sequence are the
# question: they may see each other in both directions. The rest is the answer: it may see the question and its own
# past. Padding is seen by nobody; its own rows follow the same rule as the others. Given tokens $(B, T)$, the padding
# token's number and `prefix`, return the mask, boolean, $(B, 1, T, T)$, true for *may attend*. In NumPy.


# %% tags=["exercise"]
def prefix_mask(tokens, pad_id, prefix):
    """Who may attend to whom: (B, 1, T, T)."""
    ...


# %% tags=["check"]
def prefixed(tokens, pad_id, prefix, rows=False, turned=False):
    length = tokens.shape[1]
    query, key = np.arange(length)[:, None], np.arange(length)[None, :]
    seen = (key >= query) if turned else (key <= query)
    seen = seen | (query < prefix if rows else key < prefix)
    return seen & (tokens != pad_id)[:, None, None, :]


check_prefix = partial(
    checks.check,
    reference=prefixed,
    cases=[
        (np.array([[1, 5, 6, 7], [1, 7, 3, 0]]), 0, 2),
        (np.array([[4, 4, 2, 9, 9], [5, 9, 9, 9, 9]]), 9, 3),
        (np.array([[4, 4, 4]]), 0, 1),
    ],
    mistakes={
        "this is the causal mask: the question may look ahead within itself": lambda t, pad, n: (
            prefixed(t, pad, 0)
        ),
        "the question sees the answer; it may see only itself": lambda t, pad, n: (
            prefixed(t, pad, n, rows=True)
        ),
        "padding may be attended to": lambda t, pad, n: np.repeat(
            prefixed(t[:1] * 0, -1, n), len(t), axis=0
        ),
        "true must mean: may attend": lambda t, pad, n: ~prefixed(t, pad, n),
        "the triangle is upside down": lambda t, pad, n: prefixed(
            t, pad, n, turned=True
        ),
        "the prefix is one token too long": lambda t, pad, n: prefixed(
            t, pad, n + 1
        ),
    },
)
check_prefix(prefix_mask)


# %% tags=["solution"]
def prefix_mask(tokens, pad_id, prefix):
    positions = np.arange(tokens.shape[1])
    causal = positions[None, :] <= positions[:, None]  # queries are rows
    in_question = positions < prefix  # as keys, for everybody
    return (causal | in_question) & (tokens != pad_id)[:, None, None, :]


verdict = check_prefix(prefix_mask)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: Write until the end
#
# *Medium, 20 minutes.* `next_scores(written)` takes a list of token numbers, beginning with `begin`, and returns the
# scores of what may come next. Write greedily until the end token, or until `longest` tokens stand there (begin and end
# not counted), and return these as a list without begin and end.


# %% tags=["exercise"]
def write(next_scores, begin, end, longest):
    """The tokens that greedy generation writes, a list."""
    ...


# %% tags=["check"]
def storyteller(story, begin, end):
    """Scores that lead through a story; the right next token depends on all before."""

    def next_scores(written):
        step = len(written) - 1
        on_track = list(written) == [begin, *story[:step]]
        scores = np.zeros(10)
        scores[story[step] if on_track and step < len(story) else end] = 1.0
        return scores

    return next_scores


def write_with(first, stop, keep_end=False, off_by=0):
    def attempt(next_scores, begin, end, longest):
        written = [begin] if first else [end]
        while len(written) - 1 < longest + off_by:
            best = int(np.argmax(next_scores(written)))
            if best == end and stop:
                return written[1:] + [end] * keep_end
            written.append(best)
        return written[1:]

    return attempt


def forgets(next_scores, begin, end, longest):
    written, last = [], begin
    for _ in range(longest):
        last = int(np.argmax(next_scores([last])))
        if last == end:
            break
        written.append(last)
    return written


check_write = partial(
    checks.check,
    reference=write_with(first=True, stop=True),
    cases=[
        (storyteller([5, 6, 5, 7], 1, 2), 1, 2, 10),
        (storyteller([3, 3, 3, 4], 8, 9), 8, 9, 3),
        (storyteller([], 1, 2), 1, 2, 5),
    ],
    mistakes={
        "you go on after the end token": write_with(first=True, stop=False),
        "leave the end token out": write_with(True, True, keep_end=True),
        "you write one token more than `longest`": write_with(True, True, off_by=1),
        "you write one token fewer than `longest`": write_with(
            True, True, off_by=-1
        ),
        "give the model everything written so far, not only the last token": forgets,
        "begin with the token `begin`": write_with(first=False, stop=True),
    },
)
check_write(write)


# %% tags=["solution"]
def write(next_scores, begin, end, longest):
    written = [begin]
    for _ in range(longest):
        best = int(np.argmax(next_scores(written)))
        if best == end:
            break
        written.append(best)
    return written[1:]


verdict = check_write(write)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# A decoder layer looks at what is written, looks at what was read, and works on both. A mask, by setting scores to
# minus infinity, keeps each word from its future, so that all words can be learnt in one pass, though they are written
# one by one. In cross-attention the writer asks and the reader's last layer answers, in every layer anew.
#
# **Sources.** The model: [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762), sections 3.1 and 3.2.3.
# Attention from writer to reader: [Bahdanau, Cho and Bengio (2014)](https://arxiv.org/abs/1409.0473). Teacher forcing:
# [Williams and Zipser (1989)](https://doi.org/10.1162/neco.1989.1.2.270). Tied output: [Press and Wolf
# (2016)](https://arxiv.org/abs/1608.05859). Starting matrices: [Glorot and Bengio
# (2010)](https://proceedings.mlr.press/v9/glorot10a.html).
#
# **Next.** The model is complete. But real text has more words than any vocabulary, and real training takes more care
# than a loop of ten lines. That is what chapters 10 to 12 are for.
