# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 22. How does it get into a page?
#
# A trained model is numbers and a few kinds of operation. Neither needs Python. In this chapter the translator of
# [chapter 13](13_alignment.ipynb) runs in the page: you type a sentence, watch each word of its translation appear, and
# see where the decoder looked for that word. Some 290 lines of JavaScript compute this, without any library. With the
# same parameters, these lines return the same logits as PyTorch, to about 1e-5.
#
# You need [chapter 12](12_generation.ipynb) for the cache, and enough JavaScript to read a loop. It takes about 25
# minutes to read, and 25 more for the exercises. [Going further](#going-further), at the end, makes the same model a
# file for servers, and takes 10 more minutes.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer, every part built. This chapter takes all of it out of Python."}}
import json
import math
import time
from functools import partial

import numpy as np
import torch
from classroom import checks, plots, quiz, transformer_map
from classroom.measured import measured, trained

plots.book_style()
transformer_map(built=22)

# %% [markdown]
# ## What must be sent?
#
# When a reader opens a page, everything the translator needs must first come over the network. Besides the parameters
# it needs an *engine*, the code that computes with them. A browser runs JavaScript, and not Python. A ready-made engine
# for pages, [ONNX Runtime](https://www.npmjs.com/package/onnxruntime-web) 1.30, needs a file of 14 MB, or 3.7 MB
# compressed. That is several times our translator: 247,000 parameters, one megabyte in 32 bits.
#
# So we write the engine ourselves. Then three things are sent: the parameters with their configuration, the two
# tokenizers, and the code of the engine.
#
# ## Parameters in 8 bits
#
# In PyTorch a parameter takes 32 bits by default, more than it needs. Any whole number from $-127$ to 127 fits into 8
# bits. Let us turn a row of a matrix, $(0.5, -1.27, 0.254)$, into such numbers. Its largest absolute value is 1.27,
# which should become 127. So divide all entries by $1.27 / 127 = 0.01$, the row's **scale**, and round:
# $(50, -127, 25)$. To get the row back, you **dequantize**: multiply by the scale, which gives $(0.50, -1.27, 0.25)$.
#
# The last entry has lost 0.004. Rounding moves a divided entry by at most one half. Times the scale, that is half a
# scale, here 0.005.
#
# This is **post-training quantization** of the weights: the model has been trained already. Ours is *symmetric*,
# because the range reaches equally far on both sides of 0. It is also *per channel*, because each row of a matrix has a
# scale of its own: in a linear layer a row makes one entry, or *channel*, of the output.

# %% tags=["export"] module="export"
import torch
from dotformer.support.shapes import shapes
from jaxtyping import Float, Int8
from torch import Tensor


@shapes
def quantize(
    weight: Float[Tensor, "rows columns"], bits: int = 8
) -> tuple[Int8[Tensor, "rows columns"], Float[Tensor, " rows"]]:
    """Whole numbers, from -127 to 127 in 8 bits, and what to multiply each row by.

    Rounding moves an entry by at most half its row's scale. A row of zeros has
    scale 0. ValueError: fewer than 2 bits, or more than 8.
    """
    if not 2 <= bits <= 8:
        raise ValueError(f"bits must be from 2 to 8, not {bits}")
    most = 2 ** (bits - 1) - 1
    scales = weight.abs().amax(dim=1) / most
    divisors = torch.where(scales > 0, scales, 1.0)
    numbers = (weight / divisors[:, None]).round().clamp(-most, most)
    return numbers.to(torch.int8), scales


# %%
row = torch.tensor([[0.5, -1.27, 0.254]])
numbers, scales = quantize(row)
print(numbers.tolist(), scales.numpy().round(6))
assert numbers.tolist() == [[50, -127, 25]] and abs(scales - 0.01) < 1e-8
assert (row - numbers * scales[:, None]).abs().max() <= scales.max() / 2

# %% [markdown]
# The same row with fewer bits: 4 bits hold whole numbers from $-8$ to 7, but $-8$ is left unused to keep the range
# symmetric. That leaves $-7$ to 7, and 3 bits leave $-3$ to 3. Each whole number times the scale is a *level*, a value
# that can be stored exactly, and each entry goes to the nearest level:

# %% tags=["plot"] mystnb={"image": {"alt": "Two number lines from −1.27 to 1.27 with evenly spaced levels: 15 in 4 bits, 0.181 apart, and 7 in 3 bits, 0.423 apart. Arrows lead from the entries −1.27, 0.254 and 0.5 to their nearest levels. The largest in absolute value, −1.27, is the lowest level itself and does not move. The entry 0.254 becomes 0.181 in 4 bits, a move of 0.073, and 0.423 in 3 bits, a move of 0.169 to the same level as 0.5."}}
import matplotlib.pyplot as plt
from classroom.diagram import PALE
from classroom.plots import BLUE, GREY, INK, RED

entries = np.array([0.5, -1.27, 0.254])
largest = abs(entries).max()
look = {"arrowstyle": "-|>", "color": BLUE, "linewidth": 1.6}


def signed(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


figure, panels = plt.subplots(2, 1, figsize=(6.2, 4.9))
for axes, bits in zip(panels, [4, 3], strict=True):
    most = 2 ** (bits - 1) - 1
    scale = largest / most
    levels = np.arange(-most, most + 1)
    stored = (entries / scale).round()
    named = {-most, 0, most, *stored}
    rows = [("stored", -0.1, INK, 1, levels), ("value", -0.27, GREY, scale, named)]
    for name, y, color, factor, shown in rows:
        style = {"color": color, "size": 11, "va": "top"}
        axes.text(-1.48, y, name, ha="right", **style)
        for n in shown:
            axes.text(n * scale, y, signed(n * factor), ha="center", **style)
    sizes = f"scale {largest:g} / {most} = {scale:.3f}"
    axes.set_title(f"{bits} bits: {len(levels)} levels, {sizes}", pad=6)
    axes.set(xlim=(-1.38, 1.38), ylim=(0, 1.05), yticks=[], xticks=levels * scale)
    axes.tick_params(labelbottom=False, length=7, width=1.4, color=GREY)
    axes.spines["left"].set_visible(False)
    for entry, number in zip(entries, stored, strict=True):
        axes.plot(entry, 0.8, "o", color=BLUE)
        axes.text(entry, 0.88, signed(entry), color=BLUE, ha="center")
        axes.annotate("", (number * scale, 0.01), (entry, 0.8), arrowprops=look)
    axes.text(-1.08, 0.88, "largest absolute value", color=BLUE, size=11)
    entry, level = entries[2], stored[2] * scale
    axes.bar(level, 0.8, width=scale, color=PALE[BLUE])
    axes.plot([entry, entry], [0, 0.72], ":", color=RED)
    axes.hlines(0, entry, level, color=RED, linewidth=7, clip_on=False, zorder=3)
    moved = abs(entry - level)
    error = f"{entry} moves by {moved:.3f},\nhalf a scale is {scale / 2:.3f}"
    axes.text(-0.03, 0.38, error, color=RED, ha="right", va="center")
eight = f"8 bits: {2**8 - 1} levels, {largest / 127:g} apart, too fine to draw"
axes.set_xlabel(eight, loc="left", labelpad=42, size=13)
figure.tight_layout(h_pad=1.2)
plt.show()

# %% [markdown]
# The pale band is one scale wide, and every entry in it goes to the level in the middle. With 3 bits, 0.254 and 0.5
# become the same number.
#
# We quantize matrices and embedding tables, which hold nearly all of the parameters. Biases and norms stay as they are.
#
# Everything but the code comes as one object in JSON, JavaScript's notation for data. JSON holds numbers and strings
# but no bytes. So the quantized entries, one byte each, are written as a string in **base64**: 64 characters, each
# worth 6 bits. Three bytes are 24 bits, four characters, so a byte takes 1.33 characters. Written as a number, with its
# comma, it would take about 3.4. The scales get nine digits, which give every 32-bit number back exactly. `page_model`
# makes the object:

# %% tags=["export"] module="export"
from typing import Any

from dotformer.support.pages import (
    bytes_as_text,
    check_page_model,
    vocabulary_rows,
)
from dotformer.tokens import BPETokenizer
from dotformer.transformer import Transformer
from dotformer.translation import Translator


def page_model(translator: Translator) -> dict[str, Any]:
    """All that a page needs to translate: configuration, tokenizers and tensors.

    ValueError unless the model is a `Transformer` with ReLU whose parameters are
    finite: the page supports nothing else.
    """
    check_page_model(translator.model, Transformer)
    rows, tensors = vocabulary_rows(translator.model.config), {}
    for name, parameter in translator.model.named_parameters():
        if parameter.ndim == 2:
            # without the rows that pad the vocabulary (chapter 20)
            weight = parameter.detach().float().cpu()[: rows.get(name)]
            numbers, scales = quantize(weight)
            tensors[name] = {
                "columns": numbers.shape[1],
                "scales": [float(f"{scale:.9g}") for scale in scales],
                "data": bytes_as_text(numbers),
            }
        else:
            tensors[name] = [float(f"{entry:.9g}") for entry in parameter]
    return {
        "config": vars(translator.model.config),
        "source": page_tokenizer(translator.source),
        "target": page_tokenizer(translator.target),
        "tensors": tensors,
    }


def page_tokenizer(tokenizer: BPETokenizer) -> dict[str, Any]:
    """What a page needs of a tokenizer."""
    specials = len(tokenizer.special_tokens)
    return {"merges": tokenizer.merges, "specials": specials}


# %% [markdown]
# Here is the translator of chapter 13.

# %% the translator, packed tags=["hide-input"]
import gzip

from dotformer.data.corpora import grammar
from dotformer.generation import KVCache, beam_search, greedy
from dotformer.transformer import TransformerConfig
from safetensors.torch import load_model

folder = trained("grammar")
english, german = (
    BPETokenizer.load(folder / f"{side}.json") for side in ("source", "target")
)
shape = json.loads((folder / "config.json").read_text())["model"]
shape.pop("kind")
model = Transformer(TransformerConfig(len(english), len(german), **shape)).eval()
load_model(model, folder / "model.safetensors")
translator = Translator(english, german, model, KVCache, longest=64)
corpus = grammar()

file = page_model(translator)
in_32_bits = (folder / "model.safetensors").stat().st_size
text = json.dumps(file)
compressed = len(gzip.compress(text.encode()))
print(f"{in_32_bits:,} bytes in 32 bits, as a file")
print(f"{len(text):,} in the page, {compressed:,} compressed")
assert 0.4 < len(text) / in_32_bits < 0.48 and compressed < 0.32 * in_32_bits

# %% [markdown]
# You might expect a quarter of the bytes in the page, but base64 takes a third more, and the scales, the biases and the
# tokenizers' merges come on top. Compression removes most of this excess.
#
# The 8 bits make only the download smaller: when the page loads the model, it turns every entry back into 32 bits.
#
# ### How few bits are enough?
#
# **Predict first.** How many of the 500 test sentences does the model still translate without a mistake, in 8 bits? In
# 4? And what if a whole matrix shares one scale?
#
# Below, *kB, matrices* is the size of all matrices and scales if the bits are *packed*, one number directly after
# another. *Set to 0* is the share of their entries that round to 0.


# %% tags=["export", "hide-input"] module="export"
def rounded(
    weight: Float[Tensor, "rows columns"], bits: int, by_row: bool = True
) -> Float[Tensor, "rows columns"]:
    """What `quantize` leaves of a matrix, with a scale for each row or one for all."""
    numbers, scales = quantize(weight if by_row else weight.flatten()[None], bits)
    return (numbers * scales[:, None]).view_as(weight)


# %% 2 to 32 bits tags=["hide-input"]
from copy import deepcopy

from dotformer.training import evaluate, pair_batches
from dotformer.translation import bleu

original = deepcopy(model.state_dict())
sources, targets = zip(*((p.source, p.target) for p in corpus.test), strict=True)
test = translator.encode_pairs(corpus.test)


def use(change):
    """Give the model its parameters, each matrix changed."""
    model.load_state_dict(
        {n: change(p) if p.ndim == 2 else p for n, p in original.items()}
    )


print("bits  scale for  kB, matrices  set to 0   loss  sentences right  BLEU")
matrices = [p for p in model.parameters() if p.ndim == 2]  # shared ones once
cost, zeros = {}, {}
for bits, by_row in [
    (32, True),
    (8, True),
    (4, True),
    (3, True),
    (8, False),
    (3, False),
]:
    use(partial(rounded, bits=bits, by_row=by_row) if bits < 32 else lambda p: p)
    loss = evaluate(model, pair_batches(test))["loss"]
    written = translator.translate(sources, beam=1)
    right = sum(map(str.__eq__, written, targets))
    score = bleu(written, targets)[0]
    cost[bits, by_row] = right, score, loss
    kind = "–" if bits == 32 else "a row" if by_row else "a matrix"
    scales_ = 0 if bits == 32 else sum(len(m) if by_row else 1 for m in matrices)
    kilobytes = (sum(m.numel() for m in matrices) * bits / 8 + 4 * scales_) / 1e3
    gone = sum((p == 0).sum() for p in matrices) / sum(p.numel() for p in matrices)
    zeros[bits, by_row] = gone.item()
    print(f"{bits:4}  {kind:9}{kilobytes:11.0f}{gone:12.0%}", end="")
    print(f"{loss:8.4f}{right:10} of 500{score:9.1f}")
two = torch.tensor([[0.5, -1.27], [0.3, 0.1]])
by_row, by_matrix = (rounded(two, 3, by_row=each) for each in (True, False))
right = torch.tensor([[0.4233, -1.27], [0.3, 0.1]])
assert torch.allclose(by_row, right, atol=1e-4)
right = torch.tensor([[0.4233, -1.27], [0.4233, 0.0]])
assert torch.allclose(by_matrix, right, atol=1e-4)
assert cost[8, True][0] == cost[32, True][0] == cost[8, False][0] == 500
assert 495 <= cost[4, True][0] < 500 and 490 < cost[3, True][0] < 500
assert round(zeros[3, True], 2) == 0.31 and round(zeros[3, False], 2) == 0.54
assert 13.5 < 4 * sum(len(m) - 1 for m in matrices) / 1e3 < 14.5
assert cost[3, False][0] < 430 and abs(cost[8, True][2] - cost[32, True][2]) < 5e-4

# %% [markdown]
# In 8 bits all 500 sentences stay right. Why is so little lost? A rounding error is spread evenly from minus to plus
# half a scale, so its standard deviation is the scale divided by $\sqrt{12}$. The largest absolute value of 64 normal
# random numbers is about 2.6 times their standard deviation, and the 8-bit scale is this divided by 127. So the error
# is 0.6 percent of the entries' standard deviation, in 4 bits 11 percent, and in 3 bits 25. A dot product with such a
# row is off by the same share: the errors cancel in part, but so do its terms. With a scale for each row even 3 bits
# cost only a few sentences. With one scale for the whole matrix they cost far more, because its largest entry makes the
# scale so coarse that 54 percent of the entries round to 0, against 31 with one for each row.
#
# But this language is easy, and the model is large for it. On captions, which are harder, few bits cost more. Here
# three transformers of 0.9 million parameters, trained with different seeds, translate the captions of chapter 14. You
# can repeat this with `python -m benchmarks.quantization`.

# %% the same for captions tags=["hide-input"]
captions = measured("quantization")
print("bits  scale for     BLEU of three models")
for row_ in captions["rows"]:
    kind = "–" if row_["bits"] == 32 else "a row" if row_["by_row"] else "a matrix"
    scores = "".join(f"{score:7.1f}" for score in row_["bleu"])
    print(f"{row_['bits']:4}  {kind:9}{scores}")

# %% [markdown]
# In 8 bits each model keeps its BLEU to a tenth of a point. In 4 bits it loses 0.8 to 1.5 points with a scale for each
# row, and 2.5 to 3.5 with one for the matrix. So the page uses 8 bits, which cost nothing that we can measure, and need
# no packing. In 8 bits one scale for each matrix would do as well. But scales for all rows of the translator above are
# only 14 kB, 4 bytes each (more as digits in the page), and one large entry makes only its own row coarse. [Going
# further](#other-ways-to-quantize) has other ways.

# %% tags=["proof"]
lost = {
    (row_["bits"], row_["by_row"]): np.subtract(
        captions["rows"][0]["bleu"], row_["bleu"]
    )
    for row_ in captions["rows"]
}
assert (
    np.abs([lost[8, True], lost[8, False]]).max()
    <= 0.1
    < np.ptp(captions["rows"][0]["bleu"])
)
assert np.ptp(captions["rows"][0]["bleu"]).round(1) == 1.3
assert lost[4, True].min() > 0.7 and lost[4, True].max() < 1.6
assert lost[4, False].min() > 2.4 and lost[4, False].max() < 3.6
assert lost[3, True].min() > 5 and lost[3, True].max() < 7
assert lost[3, False].min() > 16.8 and lost[3, False].max() < 19.8
normal = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
assert round(float(normal.abs().amax(dim=1).mean()), 1) == 2.6
other = torch.randn(64, 50, generator=torch.Generator().manual_seed(1))
for bits, share in ((8, 0.006), (4, 0.11), (3, 0.25)):
    error = rounded(normal, bits) - normal
    assert abs(error.std() / normal.std() - share) < 0.004
    assert abs((error @ other).std() / (normal @ other).std() - share) < 0.005

# %% tags=["quiz"]
quiz.number(
    "An embedding table of 6,000 rows of width 128 is kept in 8 bits, with a scale of 4 bytes for each row. How many bytes is that, before base64?",
    6000 * 128 + 6000 * 4,
    tolerance=0.5,
    feedback="Yes: a byte for each entry and 4 for each row. In 32 bits it would be 3,072,000.",
    mistakes=[
        (6000 * 128, "That is the entries. Each row has a scale as well."),
        (
            6000 * 128 + 128 * 4,
            "A scale belongs to a row, and there are 6,000 rows.",
        ),
        (6000 * 128 * 4 + 6000 * 4, "An entry takes one byte in 8 bits, not four."),
    ],
    otherwise="Count the bytes of the entries, one each, and add those of the scales, four for each of 6,000 rows.",
)

# %% [markdown]
# ## Here it is
#
# This is the translator. Type another sentence, from the words of chapter 13, such as *my old mother has closed the
# window .* The page translates again at every keystroke. Choose a word of the translation to see where the decoder
# looked for it, in any layer or head.

# %% the page's translator, for one sentence tags=["hide-input"]
from classroom.translator import translator_figure
from dotformer.support.recording import record_weights

use(lambda p: p)
sentence = "the old man can see a kitten ."
tokens = torch.tensor([english.encode(" " + sentence)])
[written] = greedy(KVCache(model, tokens), 60)
with torch.no_grad(), record_weights(model) as seen:
    model(tokens, torch.tensor([[1, *written]]))
looks = seen["decoder.layers.1.cross_attention"][0].mean(dim=0)
translator_figure(
    {"the grammar of chapter 13": file | {"languages": ["en", "de"]}},
    sentence,
    english.tokenize(" " + sentence),
    [*(german.decode([token]) for token in written), "(end)"],
    looks.tolist(),
    "How much the decoder looked at each word of the sentence when it wrote a word of the translation.",
)

# %% [markdown]
# At first the picture shows the mean of the heads of layer 2. A row is a step of the decoder, and the last row writes
# the end. The step that writes *der* needs the gender of the German noun. It gives a quarter of its weight to *man*,
# and most to *the*, where the encoder has brought the gender, or what decides it ([chapter
# 13](13_alignment.ipynb#what-is-read-at-the-right-word)). *sehen* looks back at *see*. Change *man* into *woman*, and
# watch what *der* becomes, and where it looks.
#
# All is computed in this page. So nothing that you type leaves it, and it works without a network.
#
# ## The engine
#
# Here is the code that the page loads. A vector is a `Float32Array`. A matrix is a list of rows, and a sentence is a
# list of vectors: there are no batches. What looks different from Python:
#
# - `({ weight, bias }, x)` takes two entries out of an object;
# - `{ logits, looks }` makes an object, a dictionary whose keys are these names;
# - `(a) => b` is a lambda, and `([y]) => b` is one that unpacks a list of one;
# - `a.map((value, i) => …)` makes a list from each entry and its index, or a `Float32Array` if `a` is one, and
#   `forEach` does the same without a result;
# - `a.reduce((sum, value) => …, 0)` starts with 0 as `sum`, and for each entry replaces `sum` by what the function
#   returns;
# - `a ? b : c` is `b if a else c`, `...list` unpacks a list, as `*list` does in Python, and a string between backticks
#   is an f-string, with `${…}` for `{…}`;
# - `subarray` is a slice that shares its memory;
# - `bias?.[i] ?? 0` is `bias[i]`, or 0 if there is no bias;
# - `%%js` runs a cell of the notebook as JavaScript, in V8, the engine of Chrome, and shows the value of its last line.

# %% the bridge to V8 tags=["hide-input"]
from classroom import javascript

# %% language="js" tags=["export"] module="engine"
# function dot(a, b) {
#   let sum = 0;
#   for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
#   return sum;
# }
#
# function add(a, b) {
#   return a.map((value, i) => value + b[i]);
# }
#
# // As nn.Linear: the matrix has a row for each entry that comes out.
# function linear({ weight, bias }, x) {
#   const out = new Float32Array(weight.length);
#   for (let i = 0; i < out.length; i++) out[i] = dot(weight[i], x) + (bias?.[i] ?? 0);
#   return out;
# }
#
# function softmax(scores) {
#   const highest = Math.max(...scores);
#   const powers = scores.map((score) => Math.exp(score - highest));
#   const sum = powers.reduce((a, b) => a + b);
#   return powers.map((power) => power / sum);
# }
#
# function layerNorm({ weight, bias }, x, eps) {
#   const mean = x.reduce((a, b) => a + b) / x.length;
#   const squares = x.reduce((sum, value) => sum + (value - mean) ** 2, 0);
#   const deviation = Math.sqrt(squares / x.length + eps);
#   return x.map((value, i) => ((value - mean) / deviation) * weight[i] + bias[i]);
# }

# %% [markdown]
# **Attention.** Before anything can attend to a vector, `keep` computes its key and value. `attend` does chapter 4's
# look-up, head by head: one vector `x` gives the query, and the list `kept` holds all keys and values so far. In the
# decoder's self-attention this list grows: it is the cache of chapter 12.

# %% language="js" tags=["export"] module="engine"
# function keep(attention, x) {
#   return { key: linear(attention.w_k, x), value: linear(attention.w_v, x) };
# }
#
# // The weights of each head are appended to `seen`.
# function attend(attention, heads, x, kept, seen = []) {
#   const query = linear(attention.w_q, x);
#   const width = query.length / heads; // d_k
#   const blend = new Float32Array(query.length);
#   for (let head = 0; head < heads; head++) {
#     const [start, end] = [head * width, (head + 1) * width];
#     const part = (vector) => vector.subarray(start, end);
#     const score = ({ key }) => dot(part(query), part(key)) / Math.sqrt(width);
#     const weights = softmax(kept.map(score));
#     seen.push(weights);
#     kept.forEach(({ value }, s) => {
#       for (let i = start; i < end; i++) blend[i] += weights[s] * value[i];
#     });
#   }
#   return linear(attention.w_o, blend);
# }

# %% [markdown]
# Check `attend` against a calculation on paper. There is one head, $d_k = 1$, and all four matrices are 1. The query is
# 1, and two words are kept, with keys and values 0 and $\ln 3$. The scores, query times key, are 0 and $\ln 3$ too. The
# softmax divides $e^0$ and $e^{\ln 3}$, 1 and 3, by their sum. So the weights must be 1/4 and 3/4, and the blend
# $\tfrac34 \ln 3 = 0.824$.

# %% language="js"
# const one = { weight: [Float32Array.of(1)] };
# const ones = { w_q: one, w_k: one, w_v: one, w_o: one };
# const two = [0, Math.log(3)].map((x) => keep(ones, Float32Array.of(x)));
# const weightsSeen = [];
# const [blended] = attend(ones, 1, Float32Array.of(1), two, weightsSeen);
# `${weightsSeen[0].map((weight) => weight.toFixed(3))} and ${blended.toFixed(3)}`

# %% [markdown]
# **Layers.** As in chapter 8, *add and norm* gets its sublayer as a function. Here this function takes the vectors of
# all tokens, and returns one for each. The last line of `addAndNorm` reads from the inside out: pre-norm is norm,
# sublayer, add; post-norm is sublayer, add, norm.

# %% language="js" tags=["export"] module="engine"
# function addAndNorm({ norm_first, layer_norm_eps }, { norm }, xs, sublayer) {
#   const normed = (ys) => ys.map((y) => layerNorm(norm, y, layer_norm_eps));
#   const added = (changes) => changes.map((change, t) => add(xs[t], change));
#   return norm_first ? added(sublayer(normed(xs))) : normed(added(sublayer(xs)));
# }
#
# function feedForward({ up, down }, x) {
#   return linear(down, linear(up, x).map((value) => Math.max(0, value)));
# }

# %% layers, the last norm, embeddings language="js" tags=["hide-input", "export"] module="engine"
# function layersOf(stack) {
#   return Object.values(stack.layers);
# }
#
# // The norm at the end of a stack, if it has one: with pre-norm it does.
# function finish({ norm }, { layer_norm_eps }, xs) {
#   return norm ? xs.map((x) => layerNorm(norm, x, layer_norm_eps)) : xs;
# }
#
# // The vectors of tokens, the first of which stands at `position`.
# function embed({ tokens }, ids, position) {
#   return ids.map((id, t) => {
#     const row = tokens.weight[id];
#     return row.map((value, i) => {
#       const angle = (position + t) / 10000 ** ((i - (i % 2)) / row.length);
#       const wave = i % 2 ? Math.cos(angle) : Math.sin(angle);
#       return value * Math.sqrt(row.length) + wave;
#     });
#   });
# }

# %% [markdown]
# **Encoder and decoder.** Three small functions are folded above: `layersOf` lists the layers of a stack, `embed` makes
# the vectors of tokens, and `finish` applies the norm at a stack's end, where there is one. (`embed` is also given the
# position of the first token: in `step` that is the number of tokens kept, `past[0].length`.)
#
# `encode` reads the source once. For each decoder layer `n` it returns a list, `memory[n]`, with the key and the value
# of every source token. Each layer needs a list of its own, because its cross-attention has its own matrices. Every
# step uses this list, and it never grows. `step` reads one token of the translation. For each layer it gets a second
# list, `past[n]`, with the keys and values of earlier tokens, and adds the new token's key and value to a copy,
# `longer[n]`. The old list stays as it was, so that several hypotheses of a beam can go on from it. `memory` and `past`
# are the two halves of chapter 12's `KVCache`.
#
# No mask is needed: there are no batches, so nothing is padded, and `past` holds no later token.

# %% language="js" tags=["export"] module="engine"
# function encode(model, source) {
#   const { config } = model;
#   let xs = embed(model.source_embeddings, source, 0);
#   for (const layer of layersOf(model.encoder)) {
#     xs = addAndNorm(config, layer.attention_add_norm, xs, (ys) => {
#       const kept = ys.map((y) => keep(layer.attention, y));
#       return ys.map((y) => attend(layer.attention, config.num_heads, y, kept));
#     });
#     xs = addAndNorm(config, layer.feed_forward_add_norm, xs, (ys) =>
#       ys.map((y) => feedForward(layer.feed_forward, y)),
#     );
#   }
#   xs = finish(model.encoder, config, xs);
#   const kept = (layer) => xs.map((x) => keep(layer.cross_attention, x));
#   return layersOf(model.decoder).map(kept);
# }
#
# // `memory` is what `encode` returns, `past` what is kept of earlier tokens, both
# // for each layer. Returns logits, the longer past, and the weights of
# // cross-attention for each layer and head.
# function step(model, memory, past, token) {
#   const { config } = model;
#   const [longer, looks] = [[], []];
#   let xs = embed(model.target_embeddings, [token], past[0].length);
#   layersOf(model.decoder).forEach((layer, n) => {
#     xs = addAndNorm(config, layer.self_attention_add_norm, xs, ([y]) => {
#       longer[n] = [...past[n], keep(layer.self_attention, y)];
#       return [attend(layer.self_attention, config.num_heads, y, longer[n])];
#     });
#     looks[n] = [];
#     xs = addAndNorm(config, layer.cross_attention_add_norm, xs, ([y]) => [
#       attend(layer.cross_attention, config.num_heads, y, memory[n], looks[n]),
#     ]);
#     xs = addAndNorm(config, layer.feed_forward_add_norm, xs, ([y]) => [
#       feedForward(layer.feed_forward, y),
#     ]);
#   });
#   const [x] = finish(model.decoder, config, xs);
#   return { logits: linear(model.output, x), past: longer, looks };
# }

# %% tags=["quiz"]
quiz.one_choice(
    "The engine has no mask. Why does no word of the translation see a later one?",
    quiz.wrong(
        "JavaScript computes word by word, so the encoder's words see only earlier ones",
        "The encoder's words see all of the sentence: `kept` holds every token before the first query is asked.",
    ),
    quiz.right(
        "When the decoder computes a word, the later ones have not been kept yet",
        "Yes. `step` appends one token at a time to what is kept, so the future is simply not there.",
    ),
    quiz.wrong(
        "The model was trained with a mask, and has learnt not to look",
        "Training with a mask teaches nothing of the kind: the masked scores never counted. A later word in `kept` would get weight like any other.",
    ),
    quiz.wrong(
        "The weights of later words are 0 by the softmax",
        "A softmax gives every finite score a positive weight, and nothing here sets a score to −∞. What must not be seen must not be in the list.",
    ),
)

# %% [markdown]
# **Writing.** `greedy` is a *generator*, as in Python: `yield` hands out one result, and the function goes on from
# there when it is asked for the next. So after each word its caller has control, and can let the browser draw that
# word. This pause is needed because the same thread draws and computes: without it, all words would appear together at
# the end. A long computation belongs in a *Web Worker*, a second thread.

# %% language="js" tags=["export"] module="engine"
# const [PAD, BOS, EOS] = [0, 1, 2];
#
# function begin(model) {
#   return layersOf(model.decoder).map(() => []);
# }
#
# // Logarithms of the probabilities; padding and begin are never written.
# function logProbabilities(logits) {
#   const highest = logits.reduce((a, b) => Math.max(a, b));
#   const sum = logits.reduce((sum, logit) => sum + Math.exp(logit - highest), 0);
#   const logs = logits.map((logit) => logit - highest - Math.log(sum));
#   logs[PAD] = logs[BOS] = -Infinity;
#   return logs;
# }
#
# function* greedy(model, source, longest) {
#   const memory = encode(model, source);
#   let [past, token] = [begin(model), BOS];
#   for (let length = 0; length < longest && token !== EOS; length++) {
#     const next = step(model, memory, past, token);
#     const logs = logProbabilities(next.logits);
#     token = logs.indexOf(logs.reduce((a, b) => Math.max(a, b)));
#     past = next.past;
#     yield { token, looks: next.looks, probability: Math.exp(logs[token]) };
#   }
# }

# %% [markdown]
# The rest is folded: a beam search, which is chapter 12's line by line; byte-pair encoding; and the reading of the
# file.

# %% beam search language="js" tags=["hide-input", "export"] module="engine"
# function penalty(length, alpha) {
#   return ((5 + length) / 6) ** alpha;
# }
#
# // Returns the best hypothesis of several that are continued side by side: what it
# // has `written`, each token as `greedy` gives it, and its score. Waits at each step.
# function* beamSearch(model, source, longest, beam = 4, alpha = 0.6) {
#   const memory = encode(model, source);
#   const finished = [];
#   const scored = (length) => (one) => ({
#     ...one,
#     score: one.total / penalty(length, alpha),
#   });
#   let live = [{ total: 0, written: [], past: begin(model), token: BOS }];
#   for (let length = 1; length <= longest && live.length; length++) {
#     yield length;
#     const candidates = live.flatMap(({ total, written, past, token: last }) => {
#       const next = step(model, memory, past, last);
#       const logs = logProbabilities(next.logits);
#       const least = logs.slice().sort().at(-beam - 1); // all by rank takes longer
#       const ranked = [...logs.keys()].filter((token) => logs[token] >= least);
#       ranked.sort((a, b) => logs[b] - logs[a]);
#       return ranked.slice(0, beam + 1).map((token) => {
#         const probability = Math.exp(logs[token]);
#         const entry = { token, looks: next.looks, probability };
#         const longer = [...written, entry];
#         return { total: total + logs[token], written: longer, past: next.past, token };
#       });
#     });
#     candidates.sort((a, b) => b.total - a.total);
#     const ended = candidates.slice(0, beam).filter(({ token }) => token === EOS);
#     finished.push(...ended.map(scored(length)));
#     live = candidates.filter(({ token }) => token !== EOS).slice(0, beam);
#     const bound = live.length ? live[0].total / penalty(longest, alpha) : -Infinity;
#     const best = Math.max(...finished.map(({ score }) => score));
#     if (finished.length >= beam && bound <= best) live = [];
#   }
#   const found = finished.length ? finished : live.map(scored(longest));
#   return found.reduce((a, b) => (b.score > a.score ? b : a));
# }

# %% bytes, and tokens both ways language="js" tags=["hide-input", "export"] module="engine"
# // UTF-8, from text to bytes and back; what is not UTF-8 becomes U+FFFD.
# function toBytes(text) {
#   const whole = text.replace(/\p{Surrogate}/gu, "\uFFFD");
#   const bytes = unescape(encodeURIComponent(whole));
#   return [...bytes].map((character) => character.charCodeAt(0));
# }
#
# function toText(bytes) {
#   const hex = (byte) => "%" + byte.toString(16).padStart(2, "0");
#   let text = "";
#   for (let i = 0, length; i < bytes.length; i += length) {
#     length = [0x80, 0xe0, 0xf0].filter((least) => bytes[i] >= least).length + 1;
#     try {
#       text += decodeURIComponent(bytes.slice(i, i + length).map(hex).join(""));
#     } catch {
#       [text, length] = [text + "\uFFFD", 1];
#     }
#   }
#   return text;
# }
#
# // Words with the space before them, numbers, punctuation, spaces: chapter 10.
# // (Space is what Unicode calls so, as in Python; \s would not be.)
# const SPACE = String.raw`\p{White_Space}`;
# const WORD = new RegExp(
#   ` ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|${SPACE}+(?!\\P{White_Space})|${SPACE}+`,
#   "gu",
# );
#
# // Of all neighbours that have a merge, the one learnt first is merged, again and
# // again, until none has.
# function tokenize({ ranks, specials }, text) {
#   const tokens = [];
#   for (const word of text.match(WORD) ?? []) {
#     let symbols = toBytes(word);
#     for (;;) {
#       const rank = (a, b) => ranks.get(`${a},${b}`) ?? Infinity;
#       const found = symbols.slice(1).map((right, i) => rank(symbols[i], right));
#       const first = Math.min(...found);
#       if (first === Infinity) break;
#       symbols = symbols.reduce((merged, symbol) => {
#         const last = merged.length - 1;
#         if (rank(merged[last], symbol) === first) merged[last] = 256 + first;
#         else merged.push(symbol);
#         return merged;
#       }, []);
#     }
#     tokens.push(...symbols.map((symbol) => symbol + specials));
#   }
#   return tokens;
# }
#
# function detokenize({ symbols, specials }, tokens) {
#   return toText(tokens.flatMap((token) => symbols[token - specials] ?? []));
# }

# %% a tokenizer, and a model with its texts language="js" tags=["hide-input", "export"] module="engine"
# function tokenizer({ merges, specials }) {
#   const symbols = [...Array(256).keys()].map((byte) => [byte]);
#   for (const [left, right] of merges) {
#     symbols.push([...symbols[left], ...symbols[right]]);
#   }
#   const ranks = new Map(merges.map((pair, n) => [pair.join(), n]));
#   return { symbols, specials, ranks };
# }
#
# // Base64: four letters hold 24 bits, three numbers of 8.
# function decode64(text) {
#   const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
#   const digits = new Map([...alphabet].map((letter, n) => [letter, n]));
#   const numbers = new Int8Array((text.length * 3) / 4);
#   for (let i = 0, j = 0; i < text.length; i += 4) {
#     let bits = 0;
#     for (let k = 0; k < 4; k++) bits = (bits << 6) | digits.get(text[i + k]);
#     for (let shift = 16; shift >= 0; shift -= 8) numbers[j++] = bits >> shift;
#   }
#   return numbers;
# }
#
# // A quantized matrix as its rows.
# function matrix({ scales, columns, data }) {
#   const numbers = decode64(data);
#   return scales.map((scale, n) => {
#     const row = numbers.subarray(n * columns, (n + 1) * columns);
#     return Float32Array.from(row, (entry) => entry * scale);
#   });
# }
#
# // The model in a file. A tensor's name says where it belongs:
# // "decoder.layers.0.self_attention.w_q.weight".
# function load({ config, tensors, source, target }) {
#   const model = { config, source: tokenizer(source), target: tokenizer(target) };
#   for (const [name, value] of Object.entries(tensors)) {
#     const path = name.split(".");
#     const last = path.pop();
#     const holder = path.reduce((at, key) => (at[key] ??= {}), model);
#     holder[last] = Array.isArray(value) ? Float32Array.from(value) : matrix(value);
#   }
#   model.target_embeddings ??= model.source_embeddings; // one table for both
#   model.output ??= model.target_embeddings.tokens; // weight tying
#   return model;
# }

# %% [markdown]
# ## Does it compute the same?
#
# Give PyTorch's model the dequantized parameters too, so that only the computation can differ (and the last bit of a
# few parameters in a hundred, by our estimate). On a hundred test sentences, compare the source's tokens, the logits of
# *every* step, and what greedy and beam search write. For the logits both programs read the same target tokens, those
# that PyTorch writes greedily (*teacher forcing*). Otherwise one differing word could change all later steps. Why every
# step? At the first, the decoder's self-attention sees a single token, whose weight is 1 whatever its score. So an
# error in this attention's scores, or in the way that its cache grows, shows only from the second step on.

# %% logits and tokens, compared tags=["hide-input"]
to_compare = (
    f"const model = load({text});"
    + """
function last(steps) {
  for (;;) {
    const { value, done } = steps.next();
    if (done) return value;
  }
}
function logitsAfter(source, targets) {
  const memory = encode(model, source);
  let past = begin(model);
  return targets.map((target) => {
    const next = step(model, memory, past, target);
    past = next.past;
    return [...next.logits];
  });
}
function compared(text, targets) {
  const source = tokenize(model.source, text);
  const best = last(beamSearch(model, source, 60));
  const ids = (steps) => steps.map(({ token }) => token);
  const written = ids([...greedy(model, source, 60)]);
  return [source, logitsAfter(source, targets), written, ids(best.written), best.score];
}
"""
)
javascript.run(to_compare)
use(lambda p: quantize(p)[0] * quantize(p)[1][:, None])
hundred = [f" {pair.source}" for pair in corpus.test[:100]]
reference = []  # what PyTorch writes, and the logits of each step
precise = deepcopy(model).double()  # the same parameters, in 64 bits
largest = apart = engine_off = pytorch_off = 0
for text_ in hundred:
    ids = torch.tensor([english.encode(text_)])
    [written] = greedy(KVCache(model, ids), 60)
    targets_ = [1, *written]
    with torch.no_grad():
        expected = model(ids, torch.tensor([targets_]))[0].numpy()
        exact = precise(ids, torch.tensor([targets_]))[0].numpy()
    reference.append((targets_, expected))
    source, logits, words, best, score = javascript.call(
        "compared", text_, targets_
    )
    assert source == ids[0].tolist() and words == [*written, 2]
    largest = max(largest, np.abs(expected - logits).max())
    engine_off = max(engine_off, np.abs(exact - logits).max())
    pytorch_off = max(pytorch_off, np.abs(exact - expected).max())
    hypothesis = beam_search(KVCache(model, ids), 60)[0][0]
    assert best == [*hypothesis.tokens, 2]
    apart = max(apart, abs(score - hypothesis.score))
print(f"{len(hundred)} sentences: source and both translations equal")
print(
    f"largest difference of a logit {largest:.0e}, of a hypothesis's score {apart:.0e}"
)
print(
    f"off PyTorch in 64 bits: engine {engine_off:.0e}, PyTorch in 32 {pytorch_off:.0e}"
)
assert largest < 3e-5 and apart < 3e-5
assert engine_off < 1e-5 and pytorch_off < 2e-5
assert 11 < max(np.abs(logits_).max() for _, logits_ in reference) < 13

# %% [markdown]
# The logits go up to about 12, and the engine's differ from PyTorch's by less than 1e-5. What is left is rounding,
# because both differ by as little from PyTorch in 64 bits, where rounding hardly counts. JavaScript computes in 64
# bits, and rounds only what it stores in a `Float32Array`. One rounding to 32 bits changes a logit of 12 by at most
# $5 \cdot 10^{-7}$, and many roundings add up. So our check allows $3 \cdot 10^{-5}$, a few times what was measured.
#
# ### Break it: an engine that is nearly right
#
# When code is written a second time, some detail often goes wrong. To find it, run both programs and compare their
# results. This is called **differential testing**. Here are six engines, each with one line that differs:
#
# - positions begin at 1;
# - embeddings are not multiplied by $\sqrt D$;
# - scores are not divided by $\sqrt{d_k}$;
# - there is no $\epsilon$ in the layer norm;
# - the layer norm's variance is divided by $D - 1$;
# - each entry of a position's vector has a frequency of its own, although two neighbours should share one.
#
# **Predict first.** Which of the six still translate most of the hundred sentences as before? Would you notice?

# %% six defects, and what notices them tags=["hide-input"]
defects = {
    "positions begin at 1": ("(position + t) /", "(position + t + 1) /"),
    "embeddings not times √D": ("value * Math.sqrt(row.length)", "value"),
    "scores not divided by √d_k": (" / Math.sqrt(width)", ""),
    "no ε in the norm": ("squares / x.length + eps", "squares / x.length"),
    "variance divided by D − 1": ("squares / x.length", "squares / (x.length - 1)"),
    "frequencies not in pairs": ("(i - (i % 2))", "i"),
}
print(f"{'':28}a logit off by   translations that differ")
broken = {}
for name, (line, wrong) in defects.items():
    off = differ = 0
    with javascript.changed(line, wrong, to_compare) as other:
        for text_, (targets_, expected) in zip(hundred, reference, strict=True):
            _, logits, words, *_ = other.call("compared", text_, targets_)
            off = max(off, np.abs(expected - logits).max())
            differ += words != [*targets_[1:], 2]
    broken[name] = off, differ
    print(f"{name:28}{off:14.1e}{differ:20} of 100")

# %% [markdown]
# By the texts alone, readers would hardly notice any but the engine without $\sqrt D$. The logits give all six away:
# each is off by more than our check allows, the right engine by less than 1e-5. Why do the other five write the same
# words, apart from one sentence? The grammar is easy and the model sure of itself, and only the largest logit counts.
# If every position moves by one, all distances stay, and products of two position vectors depend only on the distance
# ([chapter 5](05_position.ipynb#similar-but-different)). The learned matrices come between, so the logits change, but
# here no word does.
#
# The engine without $\epsilon$ is off by only 5e-5. Our check finds it, but one that allows 1e-4 would not. So a
# tolerance should be a few times what rounding does, and no more.
#
# A test cannot ask for equal bits, since a sum in another order is rounded differently. Nor is it safe to ask for equal
# texts, although ours are equal: two logits that nearly agree may swap, and everything after that may differ. So the
# logits decide.
#
# When the logits differ, how do you find the *line*? Compare in the order of the computation: tokens, embeddings, then
# each layer's output. The first result that differs by more than rounding comes from the wrong line, from a function
# that this line calls, or from a parameter that was read wrongly.

# %% tags=["proof"]
noticed = [name for name, (_, differ) in broken.items() if differ > 1]
assert noticed == ["embeddings not times √D"]
assert broken["frequencies not in pairs"][1] == 1
assert sum(differ == 0 for _, differ in broken.values()) == 4
small_one = broken.pop("no ε in the norm")[0]
assert 3e-5 < small_one < 1e-4 and round(small_one, 5) == 5e-5
others = sorted(off for off, _ in broken.values())
assert round(others[0], 1) == 0.1 and 5 < others[-2] < 5.5 and largest < 1e-5

# %% [markdown]
# ## How fast is it?

# %% the pace tags=["hide-input"]
javascript.run("""
function lengths(texts) {
  const each = (text) => [...greedy(model, tokenize(model.source, text), 60)].length;
  return texts.map(each).reduce((a, b) => a + b);
}
""")
javascript.call("lengths", hundred[:20])  # V8 compiles what runs often
start = time.process_time()
count = javascript.call("lengths", hundred)
pace = count / (time.process_time() - start)
print(f"{pace:,.0f} tokens written a second, greedily")
assert pace > 100 and pace * 247_000 / 100e6 < 50

# %% [markdown]
# This is our engine's pace in V8, on one core. The translator [in the page](#here-it-is) says how fast it is in your
# browser. Our `dot` multiplies one pair at a time. PyTorch uses the processor's instructions for four to sixteen pairs
# at once (**SIMD**), and a GPU has thousands of units.
#
# For a small model and one reader that does not matter. The time for a token grows roughly with the number of
# parameters: with 100 million, this engine would write a few tokens a second. A large model in a page uses
# **WebAssembly**, which has SIMD, or **WebGPU**, which computes on the reader's graphics card.
# [Transformers.js](https://huggingface.co/docs/transformers.js) and [WebLLM](https://github.com/mlc-ai/web-llm) do
# this.

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: Quantize
#
# *Easy, 10 minutes.* Quantize a matrix to `bits` bits, with a scale for each row, in NumPy, and dequantize it: return
# the rounded matrix times its scales. No row is all zeros. `np.round` rounds.


# %% tags=["exercise"]
def through_bits(weight, bits):
    """A matrix (rows, columns) after it has been in so many bits."""
    ...


# %% tags=["check"]
def in_bits(weight, bits, most=None, axis=1, size=np.abs, rounding=np.round):
    most = most or 2 ** (bits - 1) - 1
    scale = size(weight).max(axis=axis, keepdims=True) / most
    return rounding(weight / scale) * scale


check_bits = partial(
    checks.check,
    reference=in_bits,
    cases=[
        (np.array([[0.5, -1.27, 0.254], [3.0, 0.4, -0.2]]), 8),
        (np.random.default_rng(0).standard_normal((4, 6)), 4),
        (np.random.default_rng(1).standard_normal((3, 3)), 3),
    ],
    mistakes={
        "each row has a scale of its own, and these belong to columns": lambda w, b: (
            in_bits(w, b, axis=0)
        ),
        "each row has a scale of its own, not the whole matrix": lambda w, b: (
            in_bits(w, b, axis=None)
        ),
        "the largest entry counts without its sign": lambda w, b: in_bits(
            w, b, size=lambda w: w
        ),
        "round to the nearest whole number: this cuts off": lambda w, b: in_bits(
            w, b, rounding=np.trunc
        ),
        "8 bits hold numbers up to 127: one bit is for the sign, and the row is symmetric": lambda w, b: (
            in_bits(w, b, most=2**b - 1)
        ),
        "the result is still in whole numbers: multiply by the scales again": lambda w, b: (
            np.round(
                w / (np.abs(w).max(axis=1, keepdims=True) / (2 ** (b - 1) - 1))
            )
        ),
    },
)
check_bits(through_bits)


# %% tags=["solution"]
def through_bits(weight, bits):
    most = 2 ** (bits - 1) - 1
    scale = np.abs(weight).max(axis=1, keepdims=True) / most
    return np.round(weight / scale) * scale


verdict = check_bits(through_bits)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: A step without state
#
# *Medium, 15 minutes.* Write one step of causal self-attention, with one head, that keeps nothing itself: what is kept
# comes in as arguments, and goes out longer by one. You are given a token's vector `x` $(D)$, the matrices `w_q`, `w_k`
# and `w_v` $(D, D)$, used as `x @ w_q`, and what is kept so far, `keys` and `values`, $(T, D)$ each. Return the blend
# $(D)$, the longer keys and the longer values, stacked below one another in this order: $(1 + 2 (T + 1), D)$.


# %% tags=["exercise"]
def one_step(x, w_q, w_k, w_v, keys, values):
    """Blend, keys and values after one more token: (1 + 2 (T + 1), D)."""
    ...


# %% tags=["check"]
def stepped(
    x, w_q, w_k, w_v, keys, values, own=True, divide=True, where="end", grown=True
):
    def longer(kept, new):
        rows = [kept, new[None]] if where == "end" else [new[None], kept]
        return np.concatenate(rows)

    new_keys, new_values = longer(keys, x @ w_k), longer(values, x @ w_v)
    seen = (new_keys, new_values) if own or not len(keys) else (keys, values)
    scores = seen[0] @ (x @ w_q) / (np.sqrt(len(x)) if divide else 1)
    weights = np.exp(scores - scores.max())
    blend = weights / weights.sum() @ seen[1]
    kept = (new_keys, new_values) if grown else (keys, values)
    return np.concatenate([blend[None], *kept])


def step_case(seed, length, width=4):
    rng = np.random.default_rng(seed)
    shapes_ = [(width,), *[(width, width)] * 3, *[(length, width)] * 2]
    return tuple(rng.standard_normal(shape) for shape in shapes_)


check_step = partial(
    checks.check,
    reference=stepped,
    cases=[step_case(0, 3), step_case(1, 0), step_case(2, 1, 6)],
    mistakes={
        "the new token attends to itself too: keep its key and value first": lambda *a: (
            stepped(*a, own=False)
        ),
        "scores are divided by the root of their width": lambda *a: stepped(
            *a, divide=False
        ),
        "what is new comes last": lambda *a: stepped(*a, where="front"),
        "keys and values must go out longer by one": lambda *a: stepped(
            *a, grown=False
        ),
    },
)
check_step(one_step)


# %% tags=["solution"]
def one_step(x, w_q, w_k, w_v, keys, values):
    keys = np.concatenate([keys, (x @ w_k)[None]])
    values = np.concatenate([values, (x @ w_v)[None]])
    scores = keys @ (x @ w_q) / math.sqrt(len(x))
    weights = np.exp(scores - scores.max())
    blend = weights / weights.sum() @ values
    return np.concatenate([blend[None], keys, values])


verdict = check_step(one_step)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# A trained transformer is numbers and a few operations, so fewer than three hundred lines of another language compute
# what PyTorch computes. Its matrices can be sent in 8 bits, with a scale for each row, because a model hardly notices
# an error so small. A second engine is tested by comparing logits, and not by reading what it writes.
#
# **Sources.** Quantization, by tensor and by channel: [Krishnamoorthi (2018)](https://arxiv.org/abs/1806.08342). The
# format: [ONNX](https://onnx.ai/onnx/intro/); exporting: [PyTorch's
# tutorial](https://docs.pytorch.org/tutorials/beginner/onnx/export_simple_model_to_onnx_tutorial.html). Other models in
# pages: [Transformer Explainer](https://github.com/poloclub/transformer-explainer) shows GPT-2,
# [llm-viz](https://github.com/bbycroft/llm-viz) walks through a small GPT.
#
# **Next.** That was the last chapter. From one dot product you have built a transformer, trained it, and put it where
# anybody can use it. The [front page](../index.md) lists what else there is.

# %% [markdown]
# ## Going further
#
# Here are other ways to quantize, and the same model becomes a file for servers. Exercise 2 was one step of such a
# file.
#
# ### Other ways to quantize
#
# Entries on one side of 0 leave half of a symmetric range unused. So one adds a whole number after dividing, the **zero
# point**, which stands for 0. And formats for large models have a scale for each group of 32 to 128 entries, and often
# 4 bits, two numbers to a byte.
#
# All this is *weight-only* quantization. To compute in 8 bits, one must quantize the *activations* as well, the
# vectors between the matrices. Their scales are found on sample texts beforehand, which is called **calibration**, or
# for each vector as it comes, which is called *dynamic* quantization. In large models a few huge entries of the
# activations spoil the scale for the rest ([Dettmers and others, 2022](https://arxiv.org/abs/2208.07339)). These few
# can be computed in 16 bits, as in that paper, or be scaled down beforehand, while the weights that multiply them are
# scaled up by the same factor
# ([Xiao and others, 2022](https://arxiv.org/abs/2211.10438)).
#
# Numbers that stay in 8 bits take a quarter of the memory, and a large model that writes for one reader is faster with
# them, because it waits for its parameters to arrive from memory. Our page could keep the stored numbers $q_{ij}$ in 8
# bits after loading, and compute with them: a row $i$ has one scale $s_i$, so entry $i$ of a product with $x$ is
# $s_i \sum_j q_{ij} x_j$.
#
# And if post-training quantization loses too much, train on with the rounding in the forward pass: **quantization-aware
# training**. Rounding has derivative 0 almost everywhere, so the backward pass leaves it out (the *straight-through
# estimator*).
#
# ### A model of your own in this page
#
# You can add a model of your own. Train one with `python -m dotformer train configs/multi30k-en-de.toml`, and write it
# for a page with `python -m dotformer export runs/multi30k-en-de --to page`. The next `make book` offers it here. The
# folder that the export writes, `runs/multi30k-en-de/page`, is also a page of its own.
#
# ### A file for servers
#
# Our engine runs one kind of model, a sentence at a time. A server has many users and several kinds of model, and needs
# an engine that somebody else has made fast. Such an engine must be told what to compute. **ONNX** is a format for
# that: a file with a graph of operations and with the parameters, which ONNX Runtime and other programs can run.
#
# Here is a small graph. It computes the dot products of the rows of two matrices. The rows have width 8, and the number
# of rows may vary: $T$ queries and $S$ keys.
#
# To make the graph, `torch.onnx.export` calls `torch.export`. This runs the model with tensors that have a type and a
# shape but no values, and records every operation on them. A length that may vary is recorded as a *symbol*, here `T`
# and `S`, which `dynamic_shapes` names for each axis:

# %% tags=["nbval-check-output"]
from tempfile import TemporaryDirectory

import onnxruntime
from dotformer.support.onnx_files import quietly
from torch import nn


class Similarities(nn.Module):
    """Chapter 2's, of two inputs."""

    def forward(self, queries, keys):
        return queries @ keys.mT


with quietly(), TemporaryDirectory() as there:
    graph = torch.onnx.export(
        Similarities(),
        (torch.randn(2, 8), torch.randn(3, 8)),  # examples
        input_names=["queries", "keys"],
        output_names=["scores"],
        dynamic_shapes={"queries": {0: "T"}, "keys": {0: "S"}},
        verbose=False,
    )
    graph.save(f"{there}/similarities.onnx")
    for node in graph.model.graph:
        inputs, [output] = [one.name for one in node.inputs], node.outputs
        print(f"{node.op_type:10}{inputs} -> {output.name} {output.shape}")
    session = onnxruntime.InferenceSession(f"{there}/similarities.onnx")
q, k = np.random.default_rng(0).standard_normal((2, 5, 8)).astype(np.float32)
[found] = session.run(None, {"queries": q, "keys": k[:4]})
print([f"{one.name} {one.shape}" for one in session.get_inputs()], found.shape)
assert np.allclose(found, q @ k[:4].T, atol=1e-6)

# %% [markdown]
# Two operations are recorded, and the graph takes five queries and four keys, where the examples had two and three.
# Because the model is only recorded:
#
# - **No branches on values.** At an `if` about a tensor's entry, which has no value here, the export ends with an
#   error.
# - **Nothing kept inside.** A cache that is a Python list would be frozen in the graph as it stood at export. So the
#   keys and values of each layer come in as inputs and go out as outputs, longer by one. (Those of all layers stacked
#   into one tensor would be copied once more at every step.)
# - **No length fixed by accident.** Name every axis that may vary in `dynamic_shapes`; the others keep the example's
#   length. Use examples of length 2 or more: the export may fix a length of 0 or 1 even where the axis is named.

# %% [markdown]
# For the translator there are two graphs, which do what `encode` and `step` do above. Both build on chapter 12's
# `KVAttention`, which computes keys and values when it is made. Its `attend(x)` looks up `x` among them, and its
# `extend(x)` first appends the key and the value of `x`. `EncodeGraph` makes a `KVAttention` for each decoder layer's
# cross-attention, and returns its keys and values. `StepGraph` gets keys and values as inputs, so it uses
# `KeptAttention`, whose `__init__` takes them as they are. This graph calls `extend` for self-attention and `attend`
# for cross-attention.

# %% tags=["export"] module="export"
from dotformer.attention import MultiHeadAttention
from dotformer.generation import KVAttention
from torch import nn


class KeptAttention(KVAttention):
    """Attention to keys and values (B, H, S, d_k) that somebody else has kept."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
    ) -> None:
        self.attention, self.k, self.v, self.mask = attention, k, v, mask


class EncodeGraph(nn.Module):
    """From source tokens to what the decoder's layers keep of them."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """From (B, S): mask (B, 1, 1, S); keys, values (B, H, S, d_k) by layer."""
        model = self.model
        mask = padding_mask(source, model.config.pad_id)
        # ONNX Runtime wants a row of the mask for each query
        by_query = mask.expand(-1, 1, source.shape[1], -1)
        memory = model.encoder(model.source_embeddings(source), by_query)
        layers = model.decoder.layers
        kept = [KVAttention(layer.cross_attention, memory) for layer in layers]
        return mask, [(one.k, one.v) for one in kept]


class StepGraph(nn.Module):
    """One step of the decoder, with its cache as inputs and outputs."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        past: list[tuple[Tensor, Tensor]],
        source: list[tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Logits (B, V) after tokens (B,), and `past` with one token more.

        `past` has the keys and values (B, H, T, d_k) of each layer; `mask` and
        `source` are what `EncodeGraph` returns.
        """
        embeddings, decoder = self.model.target_embeddings, self.model.decoder
        x = embeddings.tokens(tokens[:, None]) * embeddings.scale
        # its position is the number of tokens kept
        x = x + embeddings.positions.table.narrow(0, past[0][0].shape[2], 1)
        longer = []
        for layer, kept, memory in zip(decoder.layers, past, source, strict=True):
            own = KeptAttention(layer.self_attention, *kept)
            cross = KeptAttention(layer.cross_attention, *memory, mask)
            x = layer.self_attention_add_norm(x, own.extend)
            x = layer.cross_attention_add_norm(x, cross.attend)
            x = layer.feed_forward_add_norm(x, layer.feed_forward)
            longer.append((own.k, own.v))
        return self.model.output(decoder.norm(x))[:, -1], longer


# %% [markdown]
# Now the export itself. `write_graph` calls `torch.onnx.export` as above, and asks for version 23 of ONNX's operations,
# the first in which attention is *one* operation, so that a runtime can compute it with one fast kernel. One trap is in
# the examples: the keys and the values must be *different* tensors. If you pass the same tensor for both, it is treated
# as one input: the graph uses the values as keys, and nothing complains.

# %% tags=["hide-input", "export"] module="export"
from pathlib import Path

from dotformer.support.decoding import check_evaluating
from dotformer.support.onnx_files import write_graph


def write_onnx(model: Transformer, folder: str | Path) -> None:
    """Write `encode.onnx` and `step.onnx`: any batch, up to `max_length` tokens.

    Needs the packages onnx and onnxscript. ValueError: the model is training.
    """
    check_evaluating(model)
    source = torch.tensor([[3, 4, 5], [3, 4, 0]])
    encode, step = EncodeGraph(model), StepGraph(model)
    with torch.no_grad():
        mask, memory = encode(source)
    past = [(k[:, :, :2].clone(), v[:, :, :2].clone()) for k, v in memory]
    kept, seen = ({0: "batch", 2: length} for length in ("length", "source"))
    names = [f"{what}_{n}" for n in range(len(past)) for what in ("keys", "values")]
    of_source, longer = (
        [f"{of}_{name}" for name in names] for of in ("source", "new")
    )
    write_graph(
        Path(folder) / "encode.onnx",
        encode,
        {"source": (source, {0: "batch", 1: "source"})},
        ["source"],
        ["mask", *of_source],
    )
    write_graph(
        Path(folder) / "step.onnx",
        step,
        {
            "tokens": (torch.tensor([1, 1]), {0: "batch"}),
            "mask": (mask, {0: "batch", 3: "source"}),
            "past": (past, [(kept, kept)] * len(past)),
            "source": (memory, [(seen, seen)] * len(memory)),
        },
        ["tokens", "mask", *names, *of_source],
        ["logits", *longer],
    )


# %% [markdown]
# Generation asks for an object with `step`, `select`, a length and `special_ids` ([chapter
# 12](12_generation.ipynb#one-word-at-a-time)). Wrap the two graphs in such an object, and beam search runs on them
# unchanged. The parameters are in 32 bits here, and the logits are compared with PyTorch's.

# %% tags=["hide-input", "export"] module="export"
from dotformer.decoder import padding_mask
from dotformer.support.onnx_files import OnnxGraph


class OnnxCache:
    """Sentences that two graphs of `write_onnx` write; used as a `KVCache`."""

    special_ids = (0, 1, 2)

    def __init__(self, encode: OnnxGraph, step: OnnxGraph, source: Tensor) -> None:
        padding_mask(source, 0)  # ValueError: a sentence is empty
        self.run = step
        self.mask, *self.source = encode(source)
        self.past = [kept[:, :, :0] for kept in self.source]
        self.sentences = torch.arange(len(source))  # of each row

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.mask)

    def step(self, tokens: Tensor) -> Tensor:
        """Read a token of each row (B,): logits (B, V) of what may follow."""
        logits, *self.past = self.run(tokens, self.mask, *self.past, *self.source)
        return logits

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; one may be there several times."""
        before, self.sentences = self.sentences, self.sentences[rows]
        self.past = [kept.index_select(0, rows) for kept in self.past]
        if not torch.equal(before, self.sentences):  # else within a sentence
            self.mask = self.mask[rows]
            self.source = [kept.index_select(0, rows) for kept in self.source]


# %% twenty sentences through both graphs tags=["hide-input"]
from dotformer.tokens import pad_batch

use(lambda p: p)
with TemporaryDirectory() as there:
    write_onnx(model, there)
    graphs = [OnnxGraph(f"{there}/{name}.onnx") for name in ("encode", "step")]
    sizes = [
        (Path(there) / f"{name}.onnx").stat().st_size for name in ("encode", "step")
    ]
rows = [english.encode(f" {pair.source}") for pair in corpus.test[:20]]
ids = pad_batch(rows, 0)  # of different lengths, so padding and its mask count
ours, theirs = KVCache(model, ids), OnnxCache(*graphs, ids)
largest, tokens = 0, torch.full((len(ids),), 1)
for _ in range(10):
    logits = ours.step(tokens)
    largest = max(largest, (logits - theirs.step(tokens)).abs().max().item())
    tokens = logits.argmax(dim=-1)
print(
    f"{sizes[0]:,} and {sizes[1]:,} bytes; largest difference of a logit {largest:.0e}"
)
assert largest < 2e-5
found = beam_search(OnnxCache(*graphs, ids), 60)
assert [h[0].tokens for h in found] == [
    h[0].tokens for h in beam_search(KVCache(model, ids), 60)
]
print(f"beam search: {len(found)} of {len(found)} translations are the same")

# %% [markdown]
# The same numbers, but for rounding, and the same translations.
#
# Tokenizers and search are in neither graph. Another program that runs the graphs must do both in exactly the same way,
# so test it from the text to the end.
#
# And is it faster? We timed three engines in turn, on one core, with a larger model (1.7 million parameters, sources of
# up to 24 tokens, 24 written for each): PyTorch with our cache, ONNX Runtime with the two graphs, and CTranslate2,
# which is made for this one purpose ([the comparison](../comparison.md) has more).

# %% three engines tags=["hide-input"]
engines = ("dotformer", "dotformer, ONNX Runtime", "CTranslate2")
print(
    f"{'milliseconds for all sentences':31}{'PyTorch':>10}{'ONNX Runtime':>14}{'CTranslate2':>13}"
)
serving = {}
for row_ in measured("peers-cpu")["measurements"]:
    found = row_["contenders"]
    if set(engines) <= found.keys() and row_["what"].endswith("one length"):
        batch_ = "32 sentences" if "batch 32" in row_["size"] else "1 sentence"
        way = row_["what"].split(", ")[1]
        serving[batch_, way] = times = [found[name]["ms"] for name in engines]
        print(
            f"{batch_ + ', ' + way:31}{times[0]:10.1f}{times[1]:14.1f}{times[2]:13.1f}"
        )
assert len(serving) == 4

# %% [markdown]
# ONNX Runtime writes one sentence in less than half of PyTorch's time. It has no Python between the operations, and
# joins some of them, which is called **fusion**. With 32 sentences it saves a smaller share, two fifths: each operation
# takes longer, so what Python adds to it counts less. With 32 sentences and a beam it saves least, a fifth: our own
# search, outside the graph, takes as long as before. We measured the times, not these reasons.
#
# CTranslate2 has everything in C++, search and cache included. It takes about half of PyTorch's time for 32 sentences,
# and a fifth to three tenths for one.
#
# So use a page for one reader, a graph where other programs run the model, and a special engine where one exists for
# your kind of model.

# %% tags=["proof"]
for (batch_, _), (ours_, graph, engine) in serving.items():
    assert engine < graph < ours_
    if batch_ == "1 sentence":
        assert 0.4 < graph / ours_ < 0.5 and 0.2 < engine / ours_ < 0.3
    else:
        assert round(graph / ours_, 1) in (0.6, 0.8)
        assert 0.45 < engine / ours_ < 0.55

# %% tags=["quiz"]
quiz.one_choice(
    "A cache that grows by one token each step has to get into a graph of fixed operations. How?",
    quiz.wrong(
        "As a Python list that the graph extends",
        "A graph has no Python. Whatever the list holds while the model is exported would be built in for good.",
    ),
    quiz.right(
        "As an input that comes in and an output that goes out, longer by one",
        "Yes. The caller keeps it between steps, and the axis that grows is named as one that may vary.",
    ),
    quiz.wrong(
        "Not at all: a graph must read all earlier tokens again in every step",
        "It could, and would compute $n(n+1)/2$ rows for $n$ tokens where $n$ are enough ([chapter 12](12_generation.ipynb#what-has-been-computed-before)). As an input the cache works as before.",
    ),
    quiz.wrong(
        "As a parameter, like the weights",
        "Parameters are the same for every sentence. A cache belongs to one.",
    ),
)
