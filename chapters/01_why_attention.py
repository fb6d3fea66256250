# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 1. Why attention?
#
# Before attention, a network read a text the way you listen to a stranger's telephone number: one digit at a time,
# holding on to what you can. By the end of this chapter you will have built the cells of three networks that read like
# that, and measured how fast they forget.
#
# You need a little Python, the product of two matrices, and the idea of a derivative. It takes about 20 minutes to
# read, and 25 for the exercises.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer, an encoder and a decoder with one attention block magnified. No box is filled: this chapter says why it is worth building."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=1)

# %% [markdown]
# Nothing is built yet. This chapter is about what stood in its place.
#
# ## Which word would you keep?
#
# *A Lannister always pays his debts.* You may keep a single word of this sentence. Which?
#
# *Lannister* is a good choice: it carries most of what is special here. But suppose that somebody asks what it is that
# gets paid. Now you want *debts*. And how often? *Always*. No word is worth most in itself. It depends on the question,
# and the question comes *after* the sentence.
#
# Human attention works like that: you look back at what you have read, and what you look for decides what you see. A
# network that is to look back needs the words to be still there. Until 2014 the usual networks did not keep them. Then
# attention was added on top, and in 2017 the network underneath was left out.
#
# ## One number of memory
#
# A **recurrent network** reads one word at a time and keeps a **state**, a list of numbers of fixed size. Each word
# changes the state; then the word is gone. In its smallest form the state is a single number $h$, which is halved at
# each step before the new word, also a number, is added:
#
# $$h_t = 0.5 \, h_{t-1} + x_t .$$
#
# **Predict first.** After four words, how much of the first is left in $h_4$? Put in $x_1$ to $x_4$ on paper:
#
# $$h_4 = x_4 + 0.5 \, x_3 + 0.25 \, x_2 + 0.125 \, x_1 .$$
#
# An eighth. How much does the state depend on a word $k$ steps back? Differentiate:
# $\partial h_4 / \partial x_{4-k} = 0.5^k$.

# %%
import numpy as np


def read(words):
    state = 0.0
    for word in words:
        state = 0.5 * state + word
    return state


nudge = 1e-6
influence = []
for back in range(4):
    words = np.array([3.0, 1.0, 4.0, 1.0])
    words[3 - back] += nudge
    influence.append((read(words) - read([3, 1, 4, 1])) / nudge)
assert np.allclose(influence, [1, 0.5, 0.25, 0.125])

# %% [markdown]
# The cell does it by trial: nudge a word, read again, and see how far the state moves. That works for any network.
#
# Why not 1 in place of 0.5? Then nothing fades, and nothing makes room: after a thousand words the state is a sum of a
# thousand, and no single one can be read off. With more than 1, the oldest word would drown the newest. A memory of
# fixed size has to let go of something. The question is how fast.
#
# ## Three cells
#
# What computes the new state, a list of numbers now, from the old one and the word is called a **cell**. Three of them
# did most of the work.
#
# The plain one, in use since the 1980s, mixes state and word by two matrices and squeezes the result between −1 and 1:
#
# $$h' = \tanh(x W_x + h W_h + b) .$$
#
# The **LSTM** (1997, complete since 2000) keeps a second state $c$ that is *added to*, and **gates**, numbers between 0
# and 1, that decide what to keep ($f$, for forget), what to let in ($i$) and what to show ($o$). With
# $\sigma(z) = 1 / (1 + e^{-z})$ and $\odot$ for products entry by entry,
#
# $$c' = f \odot c + i \odot g, \qquad h' = o \odot \tanh c' .$$
#
# Here $i$, $f$ and $o$ are $\sigma(x W_x + h W_h + b)$, each with matrices of its own, and the new part $g$ is the
# $\tanh$ of such a sum. The **GRU** of 2014 makes do with one state: a gate $z$ blends the old state with a new one,
# $h' = (1 - z) \odot g + z \odot h$, and a second gate, the reset, says how much of the old state goes into $g$.
#
# Here is the plain cell in code. Its sum has two biases, one for the word and one for the state, because PyTorch's cells
# have them.


# %% tags=["export"] module="by_hand.recurrence"
import numpy as np
from dotformer.support.shapes import shapes
from jaxtyping import Float


@shapes
def rnn_cell(
    x: Float[np.ndarray, "*batch D"],
    hidden: Float[np.ndarray, "*batch H"],
    w_x: Float[np.ndarray, "D H"],
    w_h: Float[np.ndarray, "H H"],
    b_x: Float[np.ndarray, " H"],
    b_h: Float[np.ndarray, " H"],
) -> Float[np.ndarray, "*batch H"]:
    """One step of a plain recurrent network: from word and state to the new state.

    Equal to `torch.nn.RNNCell` with its weights transposed. After Elman (1990).
    """
    return np.tanh(x @ w_x + b_x + hidden @ w_h + b_h)


# %% [markdown]
# The body is the formula, and **the signature says which shapes fit it**. `Float[np.ndarray, "*batch D"]` is a NumPy
# array of floating-point numbers with an axis of size $D$, after any number of other axes. A letter stands for one size
# throughout a call: `x` is as wide as `w_x` is high. This notation is
# [jaxtyping](https://docs.kidger.site/jaxtyping/)'s. The decorator `@shapes` checks each call against it, by means of
# [beartype](https://beartype.readthedocs.io), and refuses what does not fit. Here a word of width 7 meets a matrix with
# 8 rows:

# %% tags=["nbval-check-output"]
try:
    rnn_cell(
        x=np.ones(7),
        hidden=np.zeros(3),
        w_x=np.ones((8, 3)),
        w_h=np.ones((3, 3)),
        b_x=np.zeros(3),
        b_h=np.zeros(3),
    )
except TypeError as error:
    lines = str(error).splitlines()
    print(*lines[1:4], "...", *lines[-3:], sep="\n")

# %% [markdown]
# The error names the argument, the shape it has and the axes that its annotation asks for. The last lines list the sizes
# known by then: `x` came first, so $D$ is 7. All functions of part I check their arguments like this.
#
# Next the two cells with gates. In code, $f$, $i$, $g$ and $o$ are called keep, enter, new and show, and `4*H` is the
# width of four gates side by side.


# %% tags=["export"] module="by_hand.recurrence"
@shapes
def sigmoid(z: Float[np.ndarray, "*batch H"]) -> Float[np.ndarray, "*batch H"]:
    """1 / (1 + e^-z) for every entry of z: between 0 and 1."""
    return np.exp(-np.logaddexp(0, -z))


@shapes
def lstm_cell(
    x: Float[np.ndarray, "*batch D"],
    hidden: Float[np.ndarray, "*batch H"],
    cell: Float[np.ndarray, "*batch H"],
    w_x: Float[np.ndarray, "D 4*H"],
    w_h: Float[np.ndarray, "H 4*H"],
    b_x: Float[np.ndarray, " 4*H"],
    b_h: Float[np.ndarray, " 4*H"],
) -> tuple[Float[np.ndarray, "*batch H"], Float[np.ndarray, "*batch H"]]:
    """One step of an LSTM: the new hidden state and the new cell.

    Equal to `torch.nn.LSTMCell` with its weights transposed. After Hochreiter and
    Schmidhuber (1997), with the forget gate of Gers and others (2000).
    """
    gates = x @ w_x + b_x + hidden @ w_h + b_h
    enter, keep, new, show = np.split(gates, 4, axis=-1)
    cell = sigmoid(keep) * cell + sigmoid(enter) * np.tanh(new)
    return sigmoid(show) * np.tanh(cell), cell


@shapes
def gru_cell(
    x: Float[np.ndarray, "*batch D"],
    hidden: Float[np.ndarray, "*batch H"],
    w_x: Float[np.ndarray, "D 3*H"],
    w_h: Float[np.ndarray, "H 3*H"],
    b_x: Float[np.ndarray, " 3*H"],
    b_h: Float[np.ndarray, " 3*H"],
) -> Float[np.ndarray, "*batch H"]:
    """One step of a GRU: a blend of the old state and a new one.

    Equal to `torch.nn.GRUCell` with its weights transposed. After Cho and others
    (2014), with the reset where PyTorch has it.
    """
    x_reset, x_keep, x_new = np.split(x @ w_x + b_x, 3, axis=-1)
    h_reset, h_keep, h_new = np.split(hidden @ w_h + b_h, 3, axis=-1)
    new = np.tanh(x_new + sigmoid(x_reset + h_reset) * h_new)
    keep = sigmoid(x_keep + h_keep)
    return (1 - keep) * new + keep * hidden


# %% [markdown]
# ## How fast do they forget?
#
# Run each cell over 50 random words, with random weights as PyTorch starts them. Then ask of the last state: how far
# does it move when the word $k$ steps back is nudged? The slopes of single steps are measured by nudging and multiplied
# along the way, by the chain rule. State and word are vectors, so the result is a matrix, and the root of the sum of
# its squares is the number to look at.
#
# **Predict first.** Compared with the latest word, how much influence does the word 20 steps back have: about a fifth,
# a hundredth, or less than a ten-thousandth?


# %%
def start_weights(rng, gates, width=8, size=24, forget=0.0):
    """Weights as PyTorch draws them; `forget` is added to the second gate."""
    bound = size**-0.5
    shapes = [
        (width, gates * size),
        (size, gates * size),
        (gates * size,),
        (gates * size,),
    ]
    weights = tuple(rng.uniform(-bound, bound, shape) for shape in shapes)
    weights[2][size : 2 * size] += forget
    return weights


def lstm_step(x, state, *weights):
    """The LSTM's two states in one list, so that all cells are called alike."""
    hidden, cell = np.split(state, 2, axis=-1)
    return np.concatenate(lstm_cell(x, hidden, cell, *weights), axis=-1)


def slopes(function, point, nudge=1e-6):
    """Derivatives of results with respect to entries: (results, entries)."""
    up, down = (
        point + nudge * np.eye(len(point)),
        point - nudge * np.eye(len(point)),
    )
    return (function(up) - function(down)).T / (2 * nudge)


def influence_by_distance(step, states, weights, rng, words=50, size=24):
    """How much the last state depends on the word 0, 1, 2, ... steps back."""
    text = rng.standard_normal((words, 8))
    history = [np.zeros(states * size)]
    for word in text:
        history.append(step(word, history[-1], *weights))
    influence = []
    onward = np.eye(size, states * size)  # from the state at hand to the last one
    for word, state in zip(text[::-1], history[-2::-1], strict=True):
        by_word = slopes(
            lambda w, s=state: step(w, np.tile(s, (len(w), 1)), *weights), word
        )
        by_state = slopes(
            lambda s, w=word: step(np.tile(w, (len(s), 1)), s, *weights), state
        )
        influence.append(np.linalg.norm(onward @ by_word))
        onward = onward @ by_state
    return np.array(influence) / influence[0]


# %%
kinds = {
    "plain": (rnn_cell, 1, 1, 0.0),
    "GRU": (gru_cell, 3, 1, 0.0),
    "LSTM": (lstm_step, 4, 2, 0.0),
    "LSTM, gate held open": (lstm_step, 4, 2, 3.0),
}
curves = {}
for name, (step, gates, states, forget) in kinds.items():
    runs = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        weights = start_weights(rng, gates, forget=forget)
        runs.append(influence_by_distance(step, states, weights, rng))
    curves[name] = np.array(runs)
    middle = np.median(curves[name], axis=0)
    print(f"{name:21}", *(f"{k} back {middle[k]:.1e}  " for k in (5, 20, 40)))

# %% [markdown]
# Less than a ten-thousandth, for all three as they start. The plain cell depends on the word 20 back two millionths as
# much as on the last one, GRU and LSTM about five hundred-thousandths. Twenty words is one sentence.
#
# The last line is an LSTM whose forget gate was held nearly open from the start (3 added inside the $\sigma$). It keeps
# between a quarter and a half over the whole text. So gates *can* hold on, and training can teach them to, for what it
# has taught them to expect. What a gate cannot do is go back for a word it let go.

# %%
medians = {name: np.median(runs, axis=0) for name, runs in curves.items()}
assert (
    medians["plain"][20] < 1e-5
    and max(medians["GRU"][20], medians["LSTM"][20]) < 1e-4
)
assert 0.1 < medians["LSTM, gate held open"][40] < 1

# %% [markdown]
# ## The other way: keep everything, and look
#
# Now keep all words, and let the last one look back at them: give each a weight, all weights together 1, and add up.
# How the weights are chosen is the business of chapters 2 to 4. Here they come from random scores that do not know
# distance, since only the path matters.


# %%
def look_back(words, scores, values):
    """A blend of all words (n, D), projected by (D, D) and weighted by scores."""
    shares = np.exp(scores - scores.max())
    return (shares / shares.sum()) @ (words @ values)


def reach_by_distance(rng, length=50, width=8):
    words, scores = (
        rng.standard_normal((length, width)),
        rng.standard_normal(length),
    )
    values = rng.standard_normal((width, width)) / width**0.5

    def with_words_at(position, replacements):
        texts = np.repeat(words[None], len(replacements), axis=0)
        texts[:, position] = replacements
        return np.stack([look_back(text, scores, values) for text in texts])

    positions = range(length - 1, -1, -1)  # from the last word backwards
    sizes = [
        np.linalg.norm(slopes(partial(with_words_at, position), words[position]))
        for position in positions
    ]
    return np.array(sizes) / np.mean(sizes)


curves["attention"] = np.array(
    [reach_by_distance(np.random.default_rng(seed)) for seed in range(8)]
)

# %% tags=["plot"] mystnb={"image": {"alt": "Influence on the last state against the distance of the word, 0 to 49, on a logarithmic axis. The plain cell falls steeply below a millionth by distance 25, GRU and LSTM below a ten-thousandth by 20, an LSTM with its gate held open stays near one third, and attention is level: its ups and downs do not depend on distance."}}
figure, axes = plt.subplots(figsize=(6.4, 4.2))
colors = [plots.RED, plots.GOLD, plots.TEAL, plots.GREY, plots.BLUE]
ends = {
    "plain": (11, 2e-6),
    "GRU": (38, 3e-7),
    "LSTM": (32, 5e-9),
    "LSTM, gate held open": (24, 0.06),
    "attention": (30, 3.2),
}
for (name, runs), color in zip(curves.items(), colors, strict=True):
    axes.plot(np.median(runs, axis=0), color=color)
    axes.text(*ends[name], name, color=color)
axes.set(yscale="log", ylim=(1e-9, 12), xlabel="words back", ylabel="influence")
plt.show()

# %% [markdown]
# Read the blue line: it is level. (Its ups and downs are the random scores. Each curve has a scale of its own:
# attention is measured by its average word, the others by their last.) Nothing stands between the last word and the one
# 40 back. A model may still *choose* to weigh near words more; nothing forces it to. In the recurrent networks all that
# a word has to say must pass through every state on the way, and each step takes its toll.

# %%
level = np.median(curves["attention"], axis=0)
assert 0.7 < level[:25].mean() / level[25:].mean() < 1.4

# %% tags=["quiz"]
quiz.one_choice(
    "What did attention bring that recurrent networks lack?",
    quiz.wrong(
        "More parameters, and therefore more capacity",
        "It has few: `look_back` has one matrix, and the smallest of the cells has two.",
    ),
    quiz.wrong(
        "It throws away the words that do not matter",
        "Forgetting is what the recurrent network does. Attention keeps every word and gives each a weight, and the weights are chosen anew for every question.",
    ),
    quiz.right(
        "Each word can draw on whichever others matter to it",
        "Yes. Which those are is decided when the question is known, and distance plays no part.",
    ),
    quiz.wrong(
        "It shortens the text before it is processed",
        "Nothing is shortened: every word is kept. Attention does *more* work on long texts.",
    ),
)

# %% tags=["quiz"]
steps = int(np.ceil(np.log(0.01) / np.log(0.9)))
quiz.number(
    "A memory $h_t = 0.9 \\, h_{t-1} + x_t$. After how many steps has the influence of a word fallen below one percent?",
    steps,
    tolerance=0.5,
    feedback="Yes: $0.9^{43} = 0.0108$ and $0.9^{44} = 0.0097$.",
    mistakes=[
        (
            10,
            "That would be so if it lost a tenth of the *original* influence each time. It loses a tenth of what is left.",
        ),
        (43, "Nearly: $0.9^{43}$ is still 0.0108, a little above one percent."),
        (7, "That is for a memory that halves: $0.5^7 = 0.008$."),
    ],
    otherwise="Find the first $k$ with $0.9^k < 0.01$.",
)

# %% [markdown]
# ## What does it cost?
#
# The paper that named the transformer compares three ways to let $n$ words of width $d$ know of each other, by work, by
# steps that must wait for one another, and by the longest path between two words:
#
# | layer | work | steps in a row | longest path |
# |---|---|---|---|
# | recurrent | $n \, d^2$ | $n$ | $n$ |
# | convolution over $k$ neighbours | $k \, n \, d^2$ | 1 | of the order of $n / k$, or $\log_k n$ with gaps |
# | attention | $n^2 \, d$ | 1 | 1 |
#
# A **convolution** mixes each word with its $k$ neighbours, so news travels a few words a layer. Count it: connect
# words as each layer does, and see after how many layers the first word has reached the last.


# %%
def layers_needed(connections):
    """How many layers until every word has heard of every word it may hear of.

    `connections(layer)` is a boolean matrix (n, n): which word reads which in that
    layer.
    """
    reached, layer = connections(0), 1
    while not reached[-1, 0]:
        reached, layer = (
            connections(layer).astype(int) @ reached.astype(int) > 0,
            layer + 1,
        )
    return layer


n, k = 81, 3
distance = np.arange(n)[:, None] - np.arange(n)
neighbours = layers_needed(lambda layer: (distance >= 0) & (distance < k))
gaps = layers_needed(lambda layer: np.isin(distance, np.arange(k) * k**layer))
everybody = layers_needed(lambda layer: distance >= 0)
print(
    f"{n} words: recurrent {n - 1} steps, convolution {neighbours} layers,", end=" "
)
print(f"with gaps {gaps}, attention {everybody}")
assert (neighbours, gaps, everybody) == (40, 4, 1)

# %% [markdown]
# So much for the paths. And the work, for the width of the original transformer, $d = 512$:

# %% tags=["nbval-check-output"]
d = 512
for n in (50, 512, 5000):
    recurrent, attention = n * d**2, n**2 * d
    ratio = attention / recurrent
    print(f"{n:5} words: {recurrent:.1e} and {attention:.1e}, ratio {ratio:.1f}")

# %% [markdown]
# By this count of the paper's, which leaves out constants and attention's own projections, attention does a tenth of
# the work on a sentence of 50 words. The two are even where the text is as long as the vectors are wide, $n = d$, and
# from there attention costs more: a text twice as long takes four times the work. What it saves in training is the
# waiting: all words at once, where the recurrent network must take them in a row.
#
# That was worth a great deal. The paper reported 41.8 BLEU from English to French (a score for translations, chapter
# 14) and 28.4 to German, both better than any single model before, after 3.5 days of training on eight GPUs (chapter
# 21), and the same network learned to parse English (chapter 14).
#
# ### Is attention an infinite memory?
#
# Slides say that attention gives "infinite" access to the past. What is true: nothing fades with distance, and no
# number in the network limits the length. What is not: the words must all be kept, the matrix of weights has $n^2$
# entries, and weights that sum to 1 spread thinner the more words there are. In practice every model has a longest
# text, set by memory, by cost, or by the positions it was trained on (chapter 5).

# %% tags=["quiz"]
quiz.one_choice(
    "A text is made ten times as long. What happens to an attention layer?",
    quiz.wrong(
        "Nothing: it has access to everything at once, and the path stays 1",
        "The *path* stays 1. The matrix of attention weights has an entry for each pair of words, and there are a hundred times as many.",
    ),
    quiz.wrong(
        "Its number of parameters grows tenfold",
        "Parameters do not depend on the length: the same matrices serve every word. It is the work that grows.",
    ),
    quiz.right(
        "Its matrix of attention weights grows a hundredfold",
        "Yes: every word against every word. The path between any two stays 1.",
    ),
    quiz.wrong(
        "It forgets the beginning, like a recurrent network",
        "Distance plays no part in attention. With more words to share it out, each gets less weight on average; but a good match still wins.",
    ),
)

# %% [markdown]
# ## Break it: the memory of somebody else
#
# Texts are processed in batches, several sentences at once: an array of shape (sentences, words, width). PyTorch's
# recurrent layers, unless told otherwise, expect (words, sentences, width). Both are three numbers, so nothing
# complains.


# %% tags=["nbval-check-output"]
def run(text, weights):
    """Plain cells over the first axis of text, as PyTorch's default has it."""
    state = np.zeros((text.shape[1], 24))
    for step in text:
        state = rnn_cell(step, state, *weights)
    return state


rng = np.random.default_rng(0)
weights = start_weights(rng, gates=1)
batch = rng.standard_normal((4, 7, 8))  # 4 sentences of 7 words
right = run(batch.swapaxes(0, 1), weights)  # (4, 24): a state for each sentence
wrong = run(batch, weights)  # (7, 24)?
print("right:", right.shape, "  wrong:", wrong.shape)

# %% [markdown]
# With 4 sentences of 7 words the shape of the result gives it away, if you look. With 7 sentences of 7 words it does
# not. The loop runs over *sentences*, so that a row of the state carries the words that stand at one position, from
# one sentence to the next.
#
# The check: change the first sentence, and all other rows of the result must stay as they were.


# %%
def depends_on_neighbours(run, batch):
    changed = batch.copy()
    changed[0] += 1  # another first sentence
    before, after = run(batch), run(changed)
    return not np.allclose(before[1:], after[1:])


square = rng.standard_normal((7, 7, 8))  # 7 sentences of 7 words
assert not depends_on_neighbours(lambda b: run(b.swapaxes(0, 1), weights), square)
assert depends_on_neighbours(lambda b: run(b, weights), square)

# %% [markdown]
# ## Exercises
#
# Write your answer in the first cell, run it, then run the check below it. The check tells you what it saw.
#
# ### Exercise 1: How long does it last?
#
# *Easy, 10 minutes.* A memory keeps the share `keep` of its state at each step. With `keep` and `share` strictly
# between 0 and 1, return the smallest number of steps after which less than `share` of a word's influence is left.


# %% tags=["exercise"]
def lasts(keep, share):
    """Smallest whole k with keep**k < share."""
    ...


# %% tags=["check"]
check_lasts = partial(
    checks.check,
    reference=lambda keep, share: next(k for k in range(10**6) if keep**k < share),
    cases=[(0.5, 0.1), (0.9, 0.01), (0.99, 0.455), (0.5, 0.25)],
    mistakes={
        "you return the last step at which the share is still reached: one more": lambda keep, share: (
            max(k for k in range(10**4) if keep**k >= share)
        ),
        "at an exact hit, such as 0.5 squared and 0.25, nothing is *less* yet: one more step": lambda keep, share: (
            next(k for k in range(10**6) if keep**k <= share)
        ),
        "you let it lose the same amount each time; it loses a share of what is left": lambda keep, share: (
            next(k for k in range(10**6) if 1 - k * (1 - keep) < share - 1e-12)
        ),
    },
)
check_lasts(lasts)


# %% tags=["solution"]
def lasts(keep, share):
    left, steps = 1.0, 0
    while left >= share:
        left, steps = keep * left, steps + 1
    return steps


verdict = check_lasts(lasts)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: Hold the gate
#
# *Medium, 15 minutes.* Write the heart of the LSTM: the new $c'$, from the old $c$ and the sums that go into the gates
# and the new part, *before* any $\sigma$ or $\tanh$. The check also tries a keep of $+100$ with an enter of $-100$:
# what should come out?


# %% tags=["exercise"]
def new_cell(cell, enter, keep, new):
    """The new cell, from the old one and three sums, all arrays of one shape."""
    ...


# %% tags=["check"]
rng = np.random.default_rng(1)
check_cell = partial(
    checks.check,
    reference=lambda c, i, f, g: (
        c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
    ),
    cases=[
        tuple(rng.standard_normal((4, 3))),
        (np.array([2.0]), np.array([-100.0]), np.array([100.0]), np.array([5.0])),
    ],
    properties=[checks.finite, checks.same_shape_as_first_argument],
    mistakes={
        "the two gates are swapped: keep belongs to the old cell": lambda c, i, f, g: (
            sigmoid(i) * c + sigmoid(f) * np.tanh(g)
        ),
        "the gates are not squeezed between 0 and 1: use sigmoid": lambda c, i, f, g: (
            f * c + i * np.tanh(g)
        ),
        "the new part is squeezed by sigmoid; tanh lets it be negative": lambda c, i, f, g: (
            sigmoid(f) * c + sigmoid(i) * sigmoid(g)
        ),
        "that is a GRU's blend: an LSTM has a gate of its own for what enters": lambda c, i, f, g: (
            sigmoid(f) * c + (1 - sigmoid(f)) * np.tanh(g)
        ),
        "the old cell is lost: its gate keeps it, and the new part is added": lambda c, i, f, g: (
            sigmoid(i) * np.tanh(g)
        ),
    },
)
check_cell(new_cell)


# %% tags=["solution"]
def new_cell(cell, enter, keep, new):
    return sigmoid(keep) * cell + sigmoid(enter) * np.tanh(new)


verdict = check_cell(new_cell)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# Which word of a sentence matters depends on what is asked, and that is known only afterwards. A recurrent network has
# to pack every word into a state of fixed size as it comes, and how much it depends on a word tends to shrink with
# every step in between. Attention keeps the words and looks back at all of them in one step, at a cost that grows with
# the square of their number.
#
# **Sources.** The plain recurrent network: [Elman (1990)](https://doi.org/10.1207/s15516709cog1402_1). Why it forgets:
# [Bengio, Simard and Frasconi (1994)](https://doi.org/10.1109/72.279181). The LSTM: [Hochreiter and Schmidhuber
# (1997)](https://doi.org/10.1162/neco.1997.9.8.1735), its forget gate: [Gers, Schmidhuber and Cummins
# (2000)](https://doi.org/10.1162/089976600300015015). The GRU: [Cho and others
# (2014)](https://arxiv.org/abs/1406.1078). The table of costs: [Vaswani and others
# (2017)](https://arxiv.org/abs/1706.03762), table 1.
#
# **Next.** To look back at the right words, the network must find out which words go together. [Chapter
# 2](02_similarity.ipynb) begins with two of them.
