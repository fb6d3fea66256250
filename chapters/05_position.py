# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # 5. Where does a word stand?
#
# "Dog bites man" is not news; "man bites dog" is. The attention of [chapter 4](04_self_attention.ipynb) cannot tell the
# two apart. A recurrent network reads the words one after another, so order is built in; attention sums over all of
# them at once, and a sum has no order. At the end of this chapter each word carries its position, in a **positional
# encoding**, and the verb can tell who bites.
#
# You need chapter 4, and sine and cosine. It takes about 30 minutes to read, and 45 for the exercises. [Going
# further](#going-further), at the end, takes 12 more minutes. Only the code? Read [sines and
# cosines](#sines-and-cosines), [the PyTorch modules](#as-pytorch-modules) and [the
# mistake](#break-it-one-word-at-a-time) that all checks of shapes miss.

# %% tags=["plot"] mystnb={"image": {"alt": "Map of the transformer. One attention block is built. This chapter adds the two boxes named positions, under the encoder and under the decoder."}}
from functools import partial

import matplotlib.pyplot as plt
from classroom import checks, movable, plots, quiz, transformer_map

plots.book_style()
transformer_map(built=5)

# %% [markdown]
# ## The same words in another order
#
# Does the verb notice when its neighbours change places? Take three random word vectors and three random projections:

# %%
import numpy as np
from dotformer.by_hand.attention import self_attention

rng = np.random.default_rng(0)
width = 16
dog, bites, man = rng.standard_normal((3, width))
w_q, w_k, w_v = rng.standard_normal((3, width, width)) / np.sqrt(width)


def verb_after_attention(first, second, third):
    outputs, _ = self_attention(np.array([first, second, third]), w_q, w_k, w_v)
    return outputs[1]


dog_bites = verb_after_attention(dog, bites, man)
man_bites = verb_after_attention(man, bites, dog)
same = np.allclose(dog_bites, man_bites, rtol=0, atol=1e-12)
print("the verb receives the same from both:", same)
assert same

# %% [markdown]
# Each score depends on what its two words *are* and not on where they stand, and the weighted values are summed, in
# whatever order. If the words are reordered, the outputs are reordered in the same way: without a mask, attention is
# **permutation equivariant** ([chapter 4](04_self_attention.ipynb#does-the-order-of-the-words-matter)). So is a whole
# encoder without positions ([chapter 8](08_encoder.ipynb)), because apart from attention it works on each word alone.
# (*Dog* and *man* still get different outputs. What is lost is the order: each word gets the same output in both
# sentences.)
#
# A causal mask brings back some of the order (same section of chapter 4), but most models also tell attention the
# positions. One way is through the input: give every **position** in the sentence a vector of its own, $p_t$ for
# position $t$, counted from 0, and add it to $x_t$, the vector of the word that stands there. The model reads
# $x_t + p_t$.

# %% tags=["quiz"]
quiz.one_choice(
    "Why does a transformer's encoder need to be told the positions?",
    quiz.wrong(
        "They make the vectors wider, so that attention compares more features",
        "They are added, so the vectors are as wide as before.",
    ),
    quiz.right(
        "Without them the sums of attention come out the same in any order",
        "Yes: scores depend on what the words are, and a sum does not care about the order of its terms.",
    ),
    quiz.wrong(
        "They tell attention which words are neighbours, so that it need not look at the others",
        "Every word still looks at all the others. Positions only let attention tell words apart by where they stand.",
    ),
    quiz.wrong(
        "The attention weights already depend on the position, and the vectors must agree with them",
        "They do not: if words are shuffled, each keeps its weights.",
    ),
)

# %% [markdown]
# ## Three ideas that break
#
# **Predict first.** For each of these, what goes wrong?
#
# 1. *The index.* Add the number $t$ to every entry of the word's vector.
# 2. *The fraction of the length.* Add $t / T$, where $T$ is the number of words in the text. It stays between 0 and 1.
# 3. *One-hot.* Give position $t$ a vector with a 1 in column $t$ and 0 elsewhere.

# %% [markdown]
# First the index. Attention compares vectors by dot products, so two different words must still look different when
# their position has been added. Does their cosine stay far from 1?

# %%
from dotformer.by_hand.similarity import cosine_similarity

for t in (0, 1, 10, 100):
    cosine = cosine_similarity(dog + t, man + t)
    print(f"index: cosine of dog and man at position {t:3}: {cosine:6.3f}")

# %% [markdown]
# **The index** drowns the word. At position 100 *dog* and *man* have a cosine of 1.000: the number dominates every dot
# product.
#
# Smaller steps would only put that off, and there is a second fault. A verb may need the word directly before it,
# somewhere in the middle of a text. The index adds $t\,u$ to the input, with the fixed vector $u = (1, \dots, 1)$;
# smaller steps only make $u$ shorter. The key becomes $x_t W_K + t\,(u W_K)$, and its score with a query $q$ gains
# $c\,t$, with the same $c = q \cdot (u W_K)$ for every key. Plotted against $t$ that is a straight line, and a straight
# line is highest at one of its ends. So among one query's scores a position in the middle never gains most.
#
# **The fraction of the length** stays small, but a step of one word is 0.25 in a text of 4 words and 0.025 in one of
# 40, so "the word before me" looks different in every length of text. It too is a multiple of $t$, so no position in
# the middle can gain most.
#
# **One-hot** tells positions apart, but makes all of them equally far apart (the dot product of any two is 0), and a
# code of 100 columns ends at position 99.
#
# So here is the wish list:
#
# 1. every position is *different*;
# 2. the numbers are *bounded*, so that a late position does not drown its word;
# 3. a step of one looks *the same everywhere*, in texts of any length, so that *one back* is learned only once: one
#    fixed operation, such as adding a vector or multiplying by a matrix, takes every position to the next;
# 4. *any* position can be the one that scores highest, not only the first or the last;
# 5. neighbouring positions are *similar*, so that what is learned at one nearly holds at the next;
# 6. there is *no last* position.

# %% tags=["proof"]
assert round(cosine_similarity(dog + 100, man + 100), 3) == 1.000
assert cosine_similarity(dog, man) < 0.5

# %% [markdown]
# ## Sines and cosines
#
# A clock hand grants several wishes at once. Let it have length 1, so that the two coordinates of its tip are bounded,
# and turn it by the same angle from each position to the next. The dot product of two hands is the cosine of the angle
# between them, largest where they agree and lower on both sides. So if query and keys are such hands, the key that
# points the same way as the query scores highest, and any position can win (wish 4).
#
# One hand is not enough. A fast hand comes round again: with a period of 6 steps, positions 1, 7 and 13 are the same. A
# slow hand hardly moves in one step, so a score can hardly choose between neighbours. Several hands together tell the
# time, like those for seconds, minutes and hours: a slow hand tells 1, 7 and 13 apart and keeps neighbours similar, and
# a fast hand tells neighbours apart. Here are a fast hand of period 6 (red) and a slow one of period 60 (blue):

# %% tags=["plot"] mystnb={"image": {"alt": "Five clocks with two hands, for the positions 0, 1, 2, 7 and 13. The fast red hand, of period 6, points up at 0, a sixth of a turn further at 1, and at 7 and 13 where it was at 1. The slow blue hand, of period 60, points up at 0 and has moved a little at 1 and 2, by about 40 degrees at 7 and by nearly 80 at 13."}}
figure, clocks = plt.subplots(1, 5, figsize=(7, 1.7))
for axes, t in zip(clocks, (0, 1, 2, 7, 13), strict=True):
    axes.add_patch(plt.Circle((0, 0), 1, fc="none", ec=plots.GREY, lw=1))
    for period, color, length in (6, plots.RED, 0.95), (60, plots.BLUE, 0.65):
        turn = 2 * np.pi * t / period
        tip = length * np.sin(turn), length * np.cos(turn)
        style = {"arrowstyle": "-|>", "color": color, "lw": 2}
        axes.annotate("", tip, (0, 0), arrowprops=style)
    axes.set(xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), aspect="equal")
    axes.set_title(f"position {t}", fontsize=10)
    axes.set_axis_off()
figure.tight_layout()
plt.show()

# %% [markdown]
# In the original transformer each hand is a pair of numbers, the sine and the cosine of an angle. Sine and cosine waves
# are called **sinusoids**.
#
# A position gets $D$ numbers, as many as a word, so it has $D/2$ pairs, numbered $i = 0, 1, \dots$. In each step the
# angle of pair $i$ grows by $\omega_i$ radians, its (angular) **frequency**; $2\pi / \omega_i$ steps are its period, or
# *wavelength*. The sine stands in column $2i$ of $p_t$, the cosine in column $2i + 1$:
#
# $$p_{t, 2i} = \sin(\omega_i t), \qquad p_{t, 2i+1} = \cos(\omega_i t), \qquad \omega_i = 10000^{-2i/D} .$$
#
# The first pair turns by $\omega_0 = 1$ radian a step, and comes full circle after $2\pi \approx 6.3$ steps. Each pair
# is slower than the one before by the factor $10000^{2/D}$, so pairs can cover everything from single words to whole
# texts: at $D = 8$ the factor is 10, and four pairs span periods from 6 to 6,283 steps, as four digits cover ones to
# thousands. For a large $D$ the exponent of the last pair is nearly $-1$, so its period is nearly $2\pi \cdot 10{,}000$
# steps. Why the base 10,000? [Going further](#why-10000) compares other bases.
#
# Work out $D = 4$ on paper. There are two pairs, with $\omega_0 = 1$ and $\omega_1 = 10000^{-2/4} = \frac{1}{100}$:
#
# | position $t$ | $\sin t$ | $\cos t$ | $\sin \frac{t}{100}$ | $\cos \frac{t}{100}$ |
# |---|---|---|---|---|
# | 0 | 0 | 1 | 0 | 1 |
# | 1 | 0.841 | 0.540 | 0.010 | 1.000 |
# | 2 | 0.909 | −0.416 | 0.020 | 1.000 |
# | 3 | 0.141 | −0.990 | 0.030 | 1.000 |
# | 4 | −0.757 | −0.654 | 0.040 | 0.999 |
# | 5 | −0.959 | 0.284 | 0.050 | 0.999 |
#
# At position 2 the model reads the word $x = (1, 0, 2, 0)$ as $(1.909, -0.416, 2.020, 1.000)$.
#
# Two wishes are granted already: every entry lies between −1 and 1, so the numbers are *bounded*, and the formula takes
# any $t$, so there is *no last* position. Every encoding has the same norm, $\sqrt{D/2}$, because each pair adds
# $\sin^2 + \cos^2 = 1$ to the square of the norm.


# %% tags=["proof"]
positions, D = np.arange(6), 4
angles = np.outer(positions, 10000 ** (-np.arange(0, D, 2) / D))  # (6, D/2)
pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1)  # (6, D/2, 2)
rows = pairs.reshape(6, D).round(3)
assert rows[2].tolist() == [0.909, -0.416, 0.02, 1.0]
assert rows[5].tolist() == [-0.959, 0.284, 0.05, 0.999]


# %% tags=["proof"]
def position_by_loop(t, d_model):
    row = []
    for i in range(d_model // 2):
        frequency = 10000 ** (-2 * i / d_model)
        row += [np.sin(frequency * t), np.cos(frequency * t)]
    return row


table_on_paper = [
    [0, 1, 0, 1],
    [0.841, 0.540, 0.010, 1.000],
    [0.909, -0.416, 0.020, 1.000],
    [0.141, -0.990, 0.030, 1.000],
    [-0.757, -0.654, 0.040, 0.999],
    [-0.959, 0.284, 0.050, 0.999],
]
assert np.allclose(
    [position_by_loop(t, 4) for t in range(6)], table_on_paper, rtol=0, atol=0.0006
)

# %% [markdown]
# Here are the four sines of $D = 8$. The last has hardly begun when a sentence is over:

# %% tags=["plot"] mystnb={"image": {"alt": "Four waves over positions 0 to 63 for width 8, with a dot at each position. The first has a period of 6.3 positions and goes round ten times, the second a period of 63 and goes round once, the third, of period 628, rises slowly, and the fourth, of period 6,283, is nearly flat."}}
figure, rows = plt.subplots(4, 1, figsize=(6.4, 3.6), sharex=True, sharey=True)
fine, whole = np.linspace(0, 63, 600), np.arange(64)
for i, (axes, color) in enumerate(
    zip(rows, [plots.BLUE, plots.RED, plots.TEAL, plots.GOLD], strict=True)
):
    omega = 10000 ** (-2 * i / 8)
    axes.plot(fine, np.sin(omega * fine), color=color, lw=1)
    axes.plot(whole, np.sin(omega * whole), "o", color=color, ms=2.5)
    axes.set_yticks([-1, 0, 1])
    period = f"{2 * np.pi / omega:,.0f}" if i else f"{2 * np.pi:.1f}"
    name = f"pair {i}\nperiod {period}"
    axes.text(65, 0, name, color=color, va="center")
rows[-1].set(xlabel="position", xlim=(-1, 64), ylim=(-1.2, 1.2))
figure.tight_layout()
plt.show()

# %% [markdown]
# In code:


# %% tags=["nbval-check-output"]
def encode(T, D):
    omega = 10_000 ** (-np.arange(0, D, 2) / D)  # (D/2,): for D = 4, 1 and 1/100
    angles = np.arange(T)[:, None] * omega  # (T, 1) times (D/2,) is (T, D/2)
    encoding = np.empty((T, D))
    encoding[:, 0::2], encoding[:, 1::2] = np.sin(angles), np.cos(angles)
    return encoding  # (T, D)


print(encode(6, 4)[5].round(3))  # the last row on paper

# %% [markdown]
# The rest of the chapter uses the folded version: `sinusoidal_positions(T, D)` is `encode`,
# `sinusoidal_encoding(positions, D)` takes any positions, and `frequencies(D)` returns all the $\omega_i$.

# %% tags=["export", "hide-input"] module="by_hand.positions"
import numpy as np
from dotformer.support.shapes import shapes
from jaxtyping import Float, Real


@shapes
def frequencies(d_model: int) -> Float[np.ndarray, " pairs"]:
    """The angle by which each pair turns in a step: 10000^(-2i/D), i = 0, 1, ...

    Raises ValueError unless D is even and positive: a sine needs its cosine.
    """
    if d_model < 2 or d_model % 2:
        raise ValueError(f"d_model must be even and positive, not {d_model}")
    return 10000.0 ** (-np.arange(0, d_model, 2) / d_model)


@shapes
def sinusoidal_encoding(
    positions: Real[np.ndarray, "*positions"] | int | float, d_model: int
) -> Float[np.ndarray, "*positions D"]:
    """Sines and cosines for any positions: entries 2i, 2i + 1 have frequency w_i.

    They may be fractions, or negative. Raises ValueError unless `d_model` is even.
    After Vaswani and others (2017), section 3.5.
    """
    angles = np.multiply.outer(positions, frequencies(d_model))  # (..., D/2)
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1)  # (..., D/2, 2)
    return pairs.reshape(*angles.shape[:-1], d_model)


@shapes
def sinusoidal_positions(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    """The first `length` positions: see `sinusoidal_encoding`.

    Raises ValueError when `length` is less than 1 or `d_model` is not even.
    """
    if length < 1:
        raise ValueError(f"length must be at least 1, not {length}")
    return sinusoidal_encoding(np.arange(length), d_model)


# %% tags=["proof"]
assert np.allclose(encode(6, 4), table_on_paper, rtol=0, atol=0.0006)
assert np.allclose(sinusoidal_positions(6, 4), encode(6, 4))
encodings = sinusoidal_positions(50, 32)
assert np.allclose(
    encodings, [position_by_loop(t, 32) for t in range(50)], rtol=0, atol=1e-12
)
lengths = np.linalg.norm(encodings, axis=1)
assert np.allclose(lengths, np.sqrt(16))  # all equally long

# %% [markdown]


# %% tags=["quiz"]
quiz.number(
    "On paper, with a pocket calculator: for $D = 4$, what is $p_{50,2}$, the sine of the second pair at position 50?",
    sinusoidal_encoding(50, 4)[2],
    tolerance=0.002,
    feedback="Yes: the second pair turns by 1/100 a step, so it is $\\sin(50/100) = 0.479$.",
    mistakes=[
        (
            sinusoidal_encoding(50, 4)[3],
            "That is the cosine of the second pair, entry 3. Even entries are sines.",
        ),
        (
            sinusoidal_encoding(50, 4)[0],
            "That is the sine of the *first* pair, which turns by 1 a step. The second turns by 1/100.",
        ),
        (
            np.sin(np.radians(0.5)),
            "Your calculator is set to degrees. The angle, 0.5, is in radians.",
        ),
    ],
    otherwise="For $D = 4$ the second pair turns by $10000^{-2/4} = 1/100$ a step. Take the sine of 50 such steps, in radians.",
)

# %% [markdown]
# ## Similar, but different
#
# Scores are dot products, so begin with the dot product of two encodings that are $r$ positions apart. A pair with
# angle $a$ in one and $b$ in the other contributes $\sin a \sin b + \cos a \cos b = \cos(a - b)$. The two angles of
# pair $i$ differ by $\omega_i r$, whatever $t$ is:
#
# $$p_t \cdot p_{t+r} = \sum_i \bigl( \sin \omega_i t \, \sin \omega_i (t + r) + \cos \omega_i t \, \cos \omega_i (t + r) \bigr) = \sum_i \cos \omega_i r .$$
#
# Only the *distance* $r$ is left. For $D = 4$, $p_1 \cdot p_2 = \cos 1 + \cos 0.01 = 1.54$, and so is $p_4 \cdot p_5$.
# The figure shows the waves for width 16, and the dot products of one position with the others. Move the position: the
# curve slides along and keeps its shape.

# %% tags=["plot"]
movable.position(sinusoidal_positions(48, 16), position=12)

# %% tags=["proof"]
encodings = sinusoidal_positions(50, 32)
products = encodings @ encodings.T
for distance in range(50):
    expected = np.cos(distance * 10000 ** (-np.arange(0, 32, 2) / 32)).sum()
    assert np.allclose(np.diagonal(products, distance), expected)
    assert np.allclose(np.diagonal(products, -distance), expected)  # a mirror image
narrowest = sinusoidal_positions(6, 4)
pairs = (narrowest[[1, 4]] * narrowest[[2, 5]]).sum(axis=1)
assert np.allclose(pairs, 1.54, rtol=0, atol=5e-4)
narrow = sinusoidal_positions(7, 16) @ sinusoidal_encoding(0, 16)
assert np.allclose(narrow[[6, 2]], [6.445, 6.368], rtol=0, atol=5e-4)
assert (
    products[20, 20] == products[20].max()
    and (np.diff(products[20, 20:25]) < 0).all()
)

# %% [markdown]
# The curve has its peak at the position itself and falls from there with ripples, so neighbours are *similar*, and near
# positions are on the whole more alike than far ones. But the curve is symmetric: one word *before* and one word
# *after* give the same product. The next section tells them apart.

# %% tags=["quiz"]
quiz.one_choice(
    "The dot product of positions 3 and 7 is some number $c$. Which other pair of positions is sure to give $c$ too?",
    quiz.wrong(
        "6 and 14",
        "Twice as far apart. The waves do not care about ratios: $\\cos 4\\omega$ and $\\cos 8\\omega$ are different numbers.",
    ),
    quiz.wrong(
        "0 and 10",
        "They have the same *sum* as 3 and 7. What counts is the difference, here 10 and there 4.",
    ),
    quiz.right(
        "21 and 17",
        "Yes: four apart, and the order does not matter, since $\\cos$ is symmetric.",
    ),
    quiz.wrong(
        "None: every pair of positions has a product of its own",
        "Then a step would look different at different positions. It is $\\sum_i \\cos \\omega_i r$ for every pair at distance $r$.",
    ),
)

# %% [markdown]
# No two positions are equal, but with $D = 4$ or 8 some distant ones come close ([Going
# further](#are-all-positions-different)).

# %% [markdown]
# ## A step is a rotation
#
# Can one matrix move every position back by one? Then $W_Q$ could be that matrix, and a query could ask for the word
# before its own. Look at one pair as a point in the plane, $(\sin \omega t, \cos \omega t)$. Going $r$ words further
# turns it around the circle, clockwise, by the angle $\omega r$, wherever it was. The *addition formulas* of school
# trigonometry say what this turn does to the two numbers:
#
# $$\sin(\omega t + \omega r) = \sin \omega t \cos \omega r + \cos \omega t \sin \omega r ,$$
# $$\cos(\omega t + \omega r) = \cos \omega t \cos \omega r - \sin \omega t \sin \omega r .$$
#
# The factors of the old sine and cosine depend on $r$ and not on $t$, so you can write the step as a row times a
# matrix:
#
# $$\bigl(\sin \omega (t + r),\; \cos \omega (t + r)\bigr) = \bigl(\sin \omega t,\; \cos \omega t\bigr) \begin{pmatrix} \cos \omega r & -\sin \omega r \\ \sin \omega r & \cos \omega r \end{pmatrix} .$$
#
# For example, the first pair of $D = 4$ has $\omega = 1$. One step, $r = 1$, takes it from position 1 to position 2:
#
# $$(0.841,\; 0.540) \begin{pmatrix} 0.540 & -0.841 \\ 0.841 & 0.540 \end{pmatrix} = (0.909,\; -0.416) .$$
#
# The same matrix takes position 4 to 5. Put one such block for each pair on the diagonal of a $D \times D$ matrix, and
# call it $R_r$. Then $p_{t+r} = p_t R_r$: one matrix moves *every* position by $r$. So a step looks *the same
# everywhere*.


# %% tags=["export"] module="by_hand.positions"
@shapes
def rotation_matrix(shift: int | float, d_model: int) -> Float[np.ndarray, "D D"]:
    """The rotation that moves positions by `shift`: p[t + shift] = p[t] @ R.

    Raises ValueError unless `d_model` is even.
    """
    matrix = np.zeros((d_model, d_model))
    for i, angle in enumerate(shift * frequencies(d_model)):
        sine, cosine = np.sin(angle), np.cos(angle)
        pair = slice(2 * i, 2 * i + 2)
        matrix[pair, pair] = [[cosine, -sine], [sine, cosine]]
    return matrix


# %% tags=["proof"]
for shift in range(-49, 50):
    rotation = rotation_matrix(shift, 32)
    moved = sinusoidal_encoding(np.arange(50) + shift, 32)
    # from all 50 positions at once
    assert np.allclose(encodings @ rotation, moved, rtol=0, atol=1e-11)
    assert np.allclose(rotation @ rotation.T, np.eye(32))  # lengths and angles stay

# %% [markdown]
# Attention can use this to look "one word back". Try it first on the encodings alone.
#
# Let $W_Q = R_{-1}$. A negative $r$ goes back, so the query of position $t$ is $p_t R_{-1} = p_{t-1}$. Let $W_K$ be the
# identity, with $d_k = D$, so the keys are the encodings themselves. All keys have the same norm, so the dot product is
# largest where the cosine is 1, at the key that equals the query, $p_{t-1}$. One matrix does this for all positions:

# %%
look_back = 20 * rotation_matrix(-1, 32)  # the factor makes the choice sharper
_, weights = self_attention(
    sinusoidal_positions(8, 32), look_back, np.eye(32), np.eye(32)
)

# %% tags=["plot"] mystnb={"image": {"alt": "Eight by eight attention weights over positions 0 to 7. Most weight lies one below the diagonal: each position from 2 on gives 0.85 to the position before it, position 1 gives 0.92. Position 0, which has none before it, gives most to itself."}}
names = [str(t) for t in range(8)]
plots.attention_map(weights, names, names)
plt.show()

# %% tags=["proof"]
_, plain = self_attention(
    sinusoidal_positions(8, 32), look_back / 20, np.eye(32), np.eye(32)
)
assert np.allclose(weights[[1, 2, 7], [0, 1, 6]], [0.92, 0.85, 0.85], atol=0.005)
assert round(20 / 32**0.5, 1) == 3.5
assert weights[0, 0] > 0.5 and 0.205 < plain.max() < 0.215

# %% [markdown]
# At $D = 32$ each position from 2 on gives 0.85 to the one before it. The rest goes mostly to the neighbours of that
# one (for position 1 there is only one). Position 0 looks for position −1 and finds itself, the nearest. The factor 20
# is needed because neighbours are so similar: the right key scores 16 and its neighbour 15.3, and divided by
# $\sqrt{32}$ that is a lead of only 0.12. Without the factor no weight exceeds about 0.21.
#
# With $R_1$ each position looks one word ahead, with $R_{-r}$ it looks $r$ words back. So *any* position can win.
# Before and after are told apart, because the rotation moves the peak to one side.
#
# All this needs pairs. With sines alone there is no matrix $R_r$: a sine takes almost every value twice in a turn, once
# rising and once falling, so the next one depends on the cosine, too.
#
# Sinusoids grant every wish, though in a narrow encoding some distant positions are only slightly *different*:
#
# | | 1 different | 2 bounded | 3 same step | 4 any can win | 5 similar | 6 no last |
# |---|---|---|---|---|---|---|
# | index $t$ | yes | no | yes | no | yes | yes |
# | $t / T$ | yes | yes | no | no | yes | yes |
# | one-hot | yes | yes | up to the last | yes | no | no |
# | sinusoids | yes | yes | yes | yes | yes | yes |
#
# One-hot grants *same step* up to its last position, because one matrix can shift every code by one, and *any can win*,
# because a query that equals a code picks that position. *No last* says only that the formula has a vector for every
# position; [a later section](#could-the-encoding-be-learned) asks whether a trained model can use it.
#
# ### The dog and the man
#
# Add the encodings to the three random words of the beginning. Does the verb still receive the same from both sentences?

# %% tags=["nbval-check-output"]
p = sinusoidal_positions(3, 16)
dog_bites = verb_after_attention(dog + p[0], bites + p[1], man + p[2])
man_bites = verb_after_attention(man + p[0], bites + p[1], dog + p[2])
print("the verb receives the same from both:", np.allclose(dog_bites, man_bites))

# %% [markdown]
# It does not. Can it tell which word stands before it? Take real words, whose vectors are those of [chapter
# 2](02_similarity.ipynb#real-vectors), and give words and positions columns of their own: 384 for the word, and 32 for
# the position. Query and key look only at the position's columns, and look one word back, as above. The value looks
# only at the word's columns. (In the code, `row_of[word]` is a word's row in `embeddings`, and `token_of[row]` leads
# back.) Of all the words, which is nearest to what *bites* receives?

# %% word vectors, by word and by row tags=["hide-input"]
from dotformer.by_hand.similarity import normalize
from dotformer.support.published import minilm_embeddings

row_of, embeddings = minilm_embeddings()
embeddings = normalize(embeddings)
token_of = {row: word for word, row in row_of.items()}

# %%
reads_words = np.eye(416)[:, :384]  # W_V: the word's 384 columns
reads_positions = np.eye(416)[:, 384:]  # W_K: the position's 32
look_back_416 = reads_positions @ look_back  # W_Q: the same, one back
for sentence in ("dog bites man", "man bites dog"):
    rows = [row_of[word] for word in sentence.split()]
    x = np.hstack([embeddings[rows], np.zeros((3, 32))])  # (3, 416)
    p = np.hstack([np.zeros((3, 384)), sinusoidal_positions(3, 32)])
    received, _ = self_attention(x + p, look_back_416, reads_positions, reads_words)
    biter = token_of[(embeddings @ received[1]).argmax()]
    print(f"{sentence}: what bites receives is nearest to {biter!r}")
    assert biter == sentence.split()[0]

# %% [markdown]
# So the verb can tell who bites. In a model words and positions share their entries, and the matrices are trained. The
# construction also works with shared entries, if the word vectors are at right angles to all position vectors. Then
# there is a rotation of the space after which words and positions have columns of their own, and it can be multiplied
# into the matrices.
#
# ## Does adding destroy the word?
#
# After adding, the model sees only the sum, but the sum can be taken apart. In a [test with 1,000 random vectors as
# words](#can-the-sum-be-taken-apart) one linear map (least squares) leads to the right word at every width tried, 32 to 256.
# Another finds about where it stood: at width 128, 99 percent are right or off by one, at 32 only 71. It helps that in
# a wide space a random direction, such as an untrained word's, is nearly at right angles to any other ([chapter
# 2](02_similarity.ipynb#how-alike-are-random-vectors)), so word and position hardly disturb each other at the start.
# Training can move the words further away from the directions that positions use.
#
# Would it not be cleaner to put word and position side by side (**concatenation**)? In the projection that comes next,
# the upper rows, $W_1$, multiply the word, and the lower rows, $W_2$, the position:
#
# $$\begin{pmatrix} x & p \end{pmatrix} \begin{pmatrix} W_1 \\ W_2 \end{pmatrix} = x W_1 + p W_2 .$$
#
# Adding, with $p$ as wide as $x$, gives $(x + p) W = x W + p W$, the case $W_1 = W_2$. So concatenation can do more,
# but it makes every vector and matrix wider, or leaves the word fewer entries. In a sum, word and position share
# entries and one matrix, which costs little if they keep to different directions and neither is much longer than the
# other ([Going further](#why-multiply-the-embedding-by-the-root-of-the-width)). In the extreme, as in the 384 + 32
# above, a sum *is* a concatenation: $(x, 0) + (0, p) = (x, p)$.

# %% [markdown]
# ## Could the encoding be learned?
#
# Sines and cosines are a fixed formula. Some models, among them BERT and GPT-2, instead start with a random vector for
# every position and train it, like the word vectors: **learned position embeddings**. Even untrained, they grant wishes
# 1 (*different*) and 4 (*any can win*), and their numbers do not grow with $t$ (wish 2). Wishes 3 (*same step*) and 5
# (*similar*) are left to training, and there is a last position.
#
# Which kind holds up on longer texts? Take a small task without words: every position must attend to the one before it.
# The encodings are the rows of a matrix $E$, and the scores are $E A E^\top$, where a learned matrix $A$ takes the
# place of $W_Q W_K^\top$. We compare two kinds of $E$:
#
# - *Sinusoids* are fixed, and $A = R_{-1}$ would solve the task.
# - A *learned encoding* starts at random and is trained along with $A$ ([chapter 7](07_learning.ipynb) says how).
#
# Training uses positions 0 to 23, and the test uses 24 to 47. Going beyond what was trained like this is called
# **extrapolation**. With all 48 to choose from, chance is 2 percent.
#
# **Predict first.** With each kind, what share of positions 24 to 47 give most weight to the one before?

# %% gradient descent on queries and keys of positions tags=["hide-input"]
from dotformer.by_hand.softmax import softmax

RATES = (0.05, 0.1, 0.25, 0.5, 1.0)


def practise(
    table, train_table, length=24, steps=500, learning_rate=0.5, seed=0, start=0.02
):
    """Gradient descent until position t attends to t - 1, for t < length."""
    table, positions = table.copy(), np.arange(1, length)
    rng = np.random.default_rng(seed)
    matrix = start * rng.standard_normal((table.shape[1],) * 2)
    for _ in range(steps):
        seen = table[:length]
        gradient = softmax(seen @ matrix @ seen.T)  # less the target: chapter 7
        gradient[positions, positions - 1] -= 1
        gradient[0] = 0  # nothing stands before position 0
        gradient /= len(positions)
        step_table = gradient @ seen @ matrix.T + gradient.T @ seen @ matrix
        matrix -= learning_rate * seen.T @ gradient @ seen
        if train_table:
            table[:length] -= learning_rate * step_table
    return table, matrix


def share_right(table, matrix, first, last):
    """Share of the positions that give most weight to the position before them."""
    scores = table[:last] @ matrix @ table[:last].T
    asked = np.arange(max(first, 1), last)
    return np.mean(scores[asked].argmax(axis=1) == asked - 1)


def score(d_model, learned, learning_rate, seed):
    start = np.random.default_rng(100 + seed).standard_normal(
        (48, d_model)
    ) / np.sqrt(2)
    given = start if learned else sinusoidal_positions(48, d_model)
    result = practise(given, learned, learning_rate=learning_rate, seed=seed)
    return share_right(*result, 0, 24), share_right(*result, 24, 48)


# %% both kinds at four widths, at their best learning rates tags=["hide-input"]
beyond_of, practised_of = {}, {}
print("right positions       sinusoids       learned table")
print("                   1-23   24-47     1-23   24-47")
for d_model in (16, 32, 64, 128):
    rotation = sinusoidal_positions(48, d_model), rotation_matrix(-1, d_model)
    assert share_right(*rotation, 24, 48) == 1  # right everywhere
    for learned in (False, True):
        runs = np.array(
            [
                [score(d_model, learned, rate, seed) for seed in range(3)]
                for rate in RATES
            ]
        ).mean(axis=1)  # (learning rates, practised and beyond)
        practised, beyond = runs[runs[:, 1].argmax()]
        beyond_of[learned, d_model] = beyond
        practised_of[learned, d_model] = practised
        assert practised == 1 and (beyond < 0.15) == (learned or d_model == 128)
        assert not learned or beyond < 0.03
    print(
        f"width {d_model:3}     "
        + "  ".join(
            f"{practised_of[n, d_model]:8.0%}{beyond_of[n, d_model]:8.0%}"
            for n in (False, True)
        )
    )
assert min(beyond_of[False, 16], beyond_of[False, 32]) > 0.93
assert 0.6 < beyond_of[False, 64] < 0.72


# %% [markdown]
# (Each share is a mean over three runs, at the learning rate, of five, that did best on the test positions themselves.
# That flatters both kinds.) At positions 1 to 23, with 24 to choose from, both are always right. At later positions the
# learned encoding is no better than chance: its rows there are random numbers that training never changed. (Real models
# can show this, too: where nearly all training texts are short, the last rows are hardly trained, and quality can drop
# before the rows run out.) PyTorch's `nn.Embedding(max_length, D)` has no rows at all beyond `max_length`, the model's
# *context length*, so a longer text raises an error.
#
# Sinusoids *can* carry on beyond training: in our task they do at width 16 and 32, and in part at 64. At 128 they do
# not. In language models, too, [Press and others (2022)](https://arxiv.org/abs/2108.12409) found that sinusoids hardly
# extrapolate.
#
# Why do the wide ones fail? Our explanation: a wide encoding has many pairs of nearly equal frequency. $A$ can also
# link one pair of the query's position with *another* pair of the key's, which can add a multiple of
# $\cos(\omega t - \omega' s + \varphi)$ to the score, with two frequencies $\omega$ and $\omega'$ and a fixed angle
# $\varphi$. Where the frequencies differ little, this looks below position 24 like a function of $t - s$, because the
# two angles have hardly moved apart. Further on it drifts away. So a wide encoding allows many matrices that are right
# at the first 24 positions and wrong later, and nothing in the training favours $R_{-1}$ ([what we
# tested](#why-do-wide-sinusoids-fail)).
#
# Within the trained length the paper of 2017 found sinusoids and learned positions nearly identical in quality (its
# table 3, row E), and preferred sinusoids in the hope of longer texts.

# %% [markdown]
# ## Rotary positions: turning instead of adding
#
# With sinusoids training must *find* a matrix that sees only the distance, and at width 128 it found another. Can the
# score be built so that it sees nothing else? Look at what adding does to it. With $M = W_Q W_K^\top$, the score of the
# query at position $t$ with the key at position $s$ has four terms:
#
# $$(x_t + p_t) \, M \, (x_s + p_s)^\top = x_t M x_s^\top + x_t M p_s^\top + p_t M x_s^\top + p_t M p_s^\top .$$
#
# A phrase should usually mean the same wherever it stands, so only $t - s$ should count. But the second term can depend
# on $s$ itself, the third on $t$, and the last on both. (If $M$ were a rotation $R_r$, the last would depend on $t - s$
# alone, but a trained $M$ need not be one.)
#
# The cure is already in the sinusoids: an encoding is a fixed vector turned, $p_t = p_0 R_t$ with
# $p_0 = (0, 1, 0, 1, \dots)$, and the dot product of two encodings depends on their distance alone. So turn the query
# and the key themselves. **Rotary position embedding** (RoPE) does this pair by pair, with the same angles (but $d_k$,
# the width of a query, in place of $D$), and adds nothing to the words: a query $q$ at position $t$ becomes $q R_t$, a
# key $k$ at position $s$ becomes $k R_s$. A rotation keeps lengths, so a late position makes no query or key longer.
#
# The positions enter the score only through $t - s$:
#
# $$(q R_t) \cdot (k R_s) = q R_t R_s^\top k^\top = q R_{t-s} \, k^\top ,$$
#
# where the first step uses $a \cdot b = a b^\top$ for rows, and $(k R_s)^\top = R_s^\top k^\top$. The second uses
# $R_s^\top = R_{-s}$: transposing the rotation flips the signs of its two sines, and so does negating the angle. So
# $R_t R_s^\top = R_{t-s}$: turning back by $s$ undoes $s$ of the $t$ steps.
#
# **By hand.** One pair turns by 1 radian a position. The query is $(0, 1)$, which $t$ steps turn into
# $(\sin t, \cos t)$, and the key is $(1, 0)$, which $s$ steps turn into $(\cos s, -\sin s)$:
#
# | query at, key at | query, turned | key, turned | score |
# |---|---|---|---|
# | 7, 3 | (0.657, 0.754) | (−0.990, −0.141) | −0.757 |
# | 107, 103 | (0.185, 0.983) | (−0.782, −0.623) | −0.757 |
# | 3, 7 | (0.141, −0.990) | (0.754, −0.657) | 0.757 |
#
# Every score is $\sin(t - s)$. A hundred positions further on, the score is the same, because both vectors have turned
# on by the same angle. And if the two change places, the sign changes: before and after are told apart.

# %% tags=["plot"] mystnb={"image": {"alt": "Two circles, each with two arrows from the middle. On the left the query at position 7 and the key at position 3, on the right the query at 107 and the key at 103. On the right both arrows point another way, but the angle between them is the same: from the key to the query it is a clockwise turn of 2.4 radians, less than half a circle."}}
figure, panels = plt.subplots(1, 2, figsize=(6, 2.9))
for axes, pair in zip(panels, ((7, 3), (107, 103)), strict=True):
    axes.add_patch(plt.Circle((0, 0), 1, fc="none", ec=plots.BLANK, lw=1.5))
    for name, t, color, row in zip(
        "qk", pair, (plots.BLUE, plots.RED), (1, 0), strict=True
    ):
        tip = rotation_matrix(t, 2)[row]  # (0, 1) or (1, 0), turned
        arrow = {"arrowstyle": "-|>", "color": color, "lw": 1.8}
        axes.annotate("", tip, (0, 0), arrowprops=arrow)
        axes.text(
            *1.22 * tip, f"{name}, {t}", color=color, ha="center", va="center"
        )
    axes.set(xlim=(-1.6, 1.6), ylim=(-1.45, 1.45), aspect="equal")
    axes.axis("off")
figure.tight_layout()
plt.show()

# %% tags=["proof"]
query, key = np.random.default_rng(8).standard_normal((2, 16))


def rotary_score(t, s):
    return (query @ rotation_matrix(t, 16)) @ (key @ rotation_matrix(s, 16))


assert np.isclose(rotary_score(7, 3), rotary_score(107, 103))  # the distance counts
assert not np.isclose(rotary_score(7, 3), rotary_score(3, 7))  # and its sign
assert np.isclose(rotary_score(5, 5), query @ key)  # no distance, no turn
on_paper = {  # (0, 1) turned, (1, 0) turned, score
    (7, 3): ([0.657, 0.754], [-0.990, -0.141], -0.757),
    (107, 103): ([0.185, 0.983], [-0.782, -0.623], -0.757),
    (3, 7): ([0.141, -0.990], [0.754, -0.657], 0.757),
}
for (t, s), (query_turned, key_turned, score_of) in on_paper.items():
    found_query, found_key = rotation_matrix(t, 2)[1], rotation_matrix(s, 2)[0]
    assert np.allclose(found_query, query_turned, atol=5e-4)
    assert np.allclose(found_key, key_turned, atol=5e-4)
    assert round(found_query @ found_key, 3) == score_of
    assert np.isclose(found_query @ found_key, np.sin(t - s))
neighbour = np.cos(frequencies(32)).sum()  # against 16 for the position itself
assert round(neighbour, 1) == 15.3
assert round((16 - neighbour) / 32**0.5, 2) == 0.12

# %% [markdown]
# Why turn both, and nothing else? With only the queries turned, the score would contain $t$ but not $s$. With both, two
# rotations meet, and only their difference is left. A value would meet no second rotation, so the same word, at the
# same distance, would hand over another vector at each position, which later layers would have to undo. So values are
# not turned.
#
# Sinusoids encode the position itself (absolute), rotary positions only the difference $t - s$ (relative). (Under a
# causal mask later layers can still learn something of the absolute position, because how many words a word sees
# depends on it.)
#
# | | sinusoids: **absolute** | rotary: **relative** |
# |---|---|---|
# | what changes | the word, $x_t + p_t$ | query and key, $q R_t$ and $k R_s$ |
# | the score depends on | the words, $t$ and $s$; $W_Q$ and $W_K$ must find the difference | the words and $t - s$ |
# | applied | once, before the first layer; residual connections (chapter 8) carry them upwards | in every layer, so no layer relies on those below to pass positions on |
#
# Does that help beyond the trained length? Take the [task from before](#could-the-encoding-be-learned) again: attend to
# the position before, trained on positions 0 to 23. There are no words here, so all queries, before turning, are one
# learned vector, and all keys another:


# %% the same task with rotary positions tags=["hide-input"]
def rotary_scores(q, k, cosines, sines):
    """For each distance the score of q, turned by it, with k; both in pairs."""
    along = (q * k).sum(axis=1)  # (D/2,)
    across = q[:, 1] * k[:, 0] - q[:, 0] * k[:, 1]
    return cosines @ along + sines @ across


def practise_rotary(d_model, seed, length=24, steps=500, learning_rate=0.1):
    """Gradient descent as above, on one query and one key: scores (48, 48)."""
    rng = np.random.default_rng(seed)
    q, k = 0.3 * rng.standard_normal((2, d_model // 2, 2))
    angles = np.multiply.outer(np.arange(-47, 48), frequencies(d_model))
    cosines, sines = np.cos(angles), np.sin(angles)  # (95 distances, D/2)
    apart = np.arange(48)[:, None] - np.arange(48) + 47  # where t - s stands there
    seen, positions = apart[:length, :length], np.arange(1, length)
    for _ in range(steps):
        gradient = softmax(rotary_scores(q, k, cosines, sines)[seen])
        gradient[positions, positions - 1] -= 1
        gradient[0] = 0  # nothing stands before position 0
        gradient /= len(positions)
        by_distance = np.bincount(seen.ravel(), gradient.ravel(), 95)
        along, across = by_distance @ cosines, by_distance @ sines
        turned_k, turned_q = k[:, ::-1] * [-1, 1], q[:, ::-1] * [1, -1]
        d_q = along[:, None] * k + across[:, None] * turned_k
        d_k = along[:, None] * q + across[:, None] * turned_q
        q, k = q - learning_rate * d_q, k - learning_rate * d_k
    return rotary_scores(q, k, cosines, sines)[apart]


print("right positions        1-23   24-47")
for d_model in (16, 32, 64, 128):
    best = np.array([practise_rotary(d_model, s).argmax(axis=1) for s in range(3)])
    right = best == np.arange(48) - 1  # (3 seeds, 48 positions)
    trained, new = right[:, 1:24].mean(), right[:, 24:].mean()
    print(f"width {d_model:4}, rotary {trained:8.0%}{new:8.0%}")
    assert trained == new == 1
q, k = np.random.default_rng(0).standard_normal((2, 8, 2))
turns = np.multiply.outer(np.arange(-47, 48), frequencies(16))
by_pairs = rotary_scores(q, k, np.cos(turns), np.sin(turns))
by_matrix = [
    q.ravel() @ rotation_matrix(int(r), 16) @ k.ravel() for r in range(-47, 48)
]
assert np.allclose(by_pairs, by_matrix)

# %% [markdown]
# Every new position is right, even at the widths at which sinusoids failed, because nothing that is learned here can
# depend on where a word stands. (Distances above 23 were new as well. In this task none of them won; in a [language
# model](#other-ways-to-encode-the-distance) they can do harm.)
#
# Many open language models of today use rotary positions, among them Llama ([Touvron and others,
# 2023](https://arxiv.org/abs/2302.13971)); [chapter 19](19_modern.ipynb#rope-turn-the-query-and-the-key) builds such a
# model. Published code can differ from ours in two points: its pairs turn the other way, and some of it pairs not
# neighbours but entry $i$ with entry $i + d_k/2$. If you train from scratch, every variant works equally well, because
# $W_Q$ and $W_K$ can learn their columns in any order. Published weights work only with the layout that they were
# trained with. A check that only $t - s$ counts passes in every layout, so compare outputs, too. [Going
# further](#other-ways-to-encode-the-distance) has other ways to encode the distance.

# %% [markdown]
# ## As PyTorch modules
#
# Sinusoids and learned positions are added to a batch $(B, T, D)$. The sinusoids are a *buffer*: they move to the GPU
# with the model, and are not trained. (In `Sinusoids` you can set `max_length` as high as you like, because its rows
# are computed; those of `nn.Embedding` must be trained.) Learned positions are an `nn.Embedding`. (The paper of 2017
# applies *dropout* to the sum, [chapter 8](08_encoder.ipynb#the-encoder-layer).)

# %%
import torch
from torch import nn


class Sinusoids(nn.Module):
    def __init__(self, d_model, max_length=5000, dropout=0.1):
        # max_length: how many rows are computed beforehand
        super().__init__()
        self.register_buffer(
            "table", torch.tensor(encode(max_length, d_model)).float()
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x, start=0
    ):  # x (B, T, D); start: where its first word stands
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        return self.dropout(x + self.table[positions])


class Learned(nn.Module):
    def __init__(self, d_model, max_length=512):
        super().__init__()
        self.table = nn.Embedding(max_length, d_model)

    def forward(self, x, start=0):
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        return x + self.table(positions)  # (T, D) added to (B, T, D)


x = torch.randn(2, 6, 16)
for module in Sinusoids(16).eval(), Learned(16):
    at_once = module(x)
    one_by_one = [module(x[:, t : t + 1], start=t) for t in range(6)]
    assert torch.allclose(at_once, torch.cat(one_by_one, dim=1))

# %% tags=["proof"]
for module, room in (Sinusoids(16), 5000), (Learned(16), 512):
    try:
        module(x, start=room)
    except IndexError:
        continue
    raise AssertionError("a position without a row went through")

# %% [markdown]
# ## Break it: one word at a time
#
# A model that generates text one word at a time keeps the keys and values of the earlier words ([chapter
# 12](12_generation.ipynb)), so only the new word goes in. It seems natural to encode each word as it comes: add
# `sinusoidal_positions(1, D)` to a sequence of length 1. **Predict first:** what is wrong with it?

# %% tags=["nbval-check-output"]
words = np.random.default_rng(9).standard_normal((4, 8))
at_once = words + sinusoidal_positions(4, 8)
one_by_one = np.concatenate(
    [word[None] + sinusoidal_positions(1, 8) for word in words]
)
print("shapes:", at_once.shape, one_by_one.shape)
for t in range(4):
    print(f"word {t}: same vector? {np.allclose(at_once[t], one_by_one[t])}")

# %% [markdown]
# Each sequence of length 1 begins at position 0, so every word gets that encoding. Nothing crashes, the text only gets
# worse, and training never reveals the mistake, because there whole sentences are encoded at once.
#
# The check that finds it: **one at a time must equal all at once**. The cure is to say where the word stands, which is
# why the modules above have `start`, and `sinusoidal_encoding` takes positions. One `start` serves a batch only if all
# its texts begin in the same column. If shorter texts are padded on the left, each needs positions of its own, because
# its first word must stand at 0. (Rotary scores stay the same if a whole text is shifted. But a new query needs its
# true position, because the kept keys have been turned by theirs.)

# %%
counted = np.stack([words[t] + sinusoidal_encoding(t, 8) for t in range(4)])
assert np.allclose(counted, at_once) and not np.allclose(one_by_one, at_once)

# %% [markdown]
# This check also passes if positions have no effect at all, because then both ways agree, too. To detect that in an
# encoder that adds positions, feed it one word six times: all six outputs must differ. (With rotary positions they are
# equal, because the values are. So use different words, and swap two: the output of a third must change.) In a trained
# model, shuffle the words of new texts: if the loss hardly rises, the order is hardly used. And plot the mean loss at
# each position, also past the training length: a jump there means that the model does not extrapolate.

# %% [markdown]
# ## Exercises
#
# ### Exercise 1: A page of short sentences
#
# *Easy, 10 minutes.* To save room, several sentences are often packed into one row (and masked, so that none attends to
# another). In each, positions begin at 0 again. Given the lengths, return the positions of all tokens: for `[3, 2]`
# that is `[0, 1, 2, 0, 1]`.


# %% tags=["exercise"]
def packed_positions(lengths):
    """Positions of all tokens of sentences packed in a row: an integer array."""
    ...


# %% tags=["check"]
check_packed = partial(
    checks.check,
    reference=lambda lengths: np.array(
        [t for length in lengths for t in range(length)]
    ),
    cases=[([3, 2],), ([1, 1, 4],), ([5],)],
    mistakes={
        "you count through: the second sentence must begin at 0 again": lambda lengths: (
            np.arange(sum(lengths))
        ),
        "you count from 1: the first position is 0": lambda lengths: np.array(
            [t for n in lengths for t in range(1, n + 1)]
        ),
        "you return the number of the *sentence* each token belongs to": lambda lengths: (
            np.repeat(np.arange(len(lengths)), lengths)
        ),
    },
)
check_packed(packed_positions)


# %% tags=["solution"]
def packed_positions(lengths):
    return np.concatenate([np.arange(length) for length in lengths])


verdict = check_packed(packed_positions)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 2: Where is it?
#
# *Medium, 15 minutes.* Somebody hands you an encoding but not its position. Find the position below `limit` whose
# encoding comes closest. Use only what this chapter showed about dot products.


# %% tags=["exercise"]
def position_of_encoding(encoding, limit):
    """The whole number t < limit whose encoding is closest to `encoding` (D,)."""
    ...


# %% tags=["check"]
nudge = 0.05 * np.random.default_rng(10).standard_normal(32)
check_position = partial(
    checks.check,
    reference=lambda e, n: int(
        np.argmin(
            [np.linalg.norm(e - sinusoidal_encoding(t, len(e))) for t in range(n)]
        )
    ),
    cases=[
        (sinusoidal_encoding(17, 32), 40),
        (sinusoidal_encoding(50, 32), 40),
        (sinusoidal_encoding(0, 32), 9),
        (sinusoidal_encoding(30, 32) + nudge, 64),
    ],
    mistakes={
        "you return the *least* similar position: is it argmin where argmax is meant?": lambda e, n: (
            int(np.argmin(sinusoidal_positions(n, len(e)) @ e))
        ),
        "you count from 1: the first position is 0": lambda e, n: (
            1 + int(np.argmax(sinusoidal_positions(n, len(e)) @ e))
        ),
        "you read the position off the first pair alone, and that comes around every 6.3 words": lambda e, n: (
            round(np.arctan2(e[0], e[1]) % (2 * np.pi))
        ),
    },
)
check_position(position_of_encoding)


# %% tags=["solution"]
def position_of_encoding(encoding, limit):
    # encodings are equally long: the largest product belongs to the nearest
    return int(np.argmax(sinusoidal_positions(limit, len(encoding)) @ encoding))


verdict = check_position(position_of_encoding)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ### Exercise 3: Rotate without a matrix
#
# *Harder, 20 minutes.* Multiplying by $R_t$ costs $D^2$ products, and nearly all are with 0. Given rows `x` and the
# position at which each stands, turn every row by its position, so that row $n$ equals
# `x[n] @ rotation_matrix(positions[n], D)`, without building any matrix. `frequencies(D)` gives the angles of one step.


# %% tags=["exercise"]
def rotate(x, positions):
    """Each row of x (T, D) turned by its position (T,): (T, D)."""
    ...


# %% tags=["check"]
def turned(x, positions, sign=1, swap=False, halves=False):
    """Rotary positions as an exercise's answers give them, right or with one mistake."""
    angles = sign * np.asarray(positions)[:, None] * frequencies(x.shape[1])
    half = x.shape[1] // 2
    first, second = (
        (x[:, :half], x[:, half:]) if halves else (x[:, 0::2], x[:, 1::2])
    )
    a, b = (
        first * np.cos(angles) + second * np.sin(angles),
        second * np.cos(angles) - first * np.sin(angles),
    )
    return (
        np.concatenate([a, b], axis=1)
        if halves or swap
        else np.stack([a, b], axis=-1).reshape(x.shape)
    )


rng = np.random.default_rng(11)
check_rotate = partial(
    checks.check,
    reference=lambda x, positions: np.array(
        [
            row @ rotation_matrix(int(t), x.shape[1])
            for t, row in zip(positions, x, strict=True)
        ]
    ),
    cases=[
        (rng.standard_normal((3, 4)), np.arange(3)),
        (rng.standard_normal((5, 8)), np.array([7, 0, 1, 2, 40])),
    ],
    properties=[checks.same_shape_as_first_argument],
    mistakes={
        "both sines have the wrong sign: that is the other way round, and the formula of the RoFormer paper, whose pairs are (cos, sin); ours are (sin, cos)": lambda x, positions: (
            turned(x, positions, sign=-1)
        ),
        "you pair the first half with the second, as some models do; here entries 2i and 2i + 1 make a pair": lambda x, positions: (
            turned(x, positions, halves=True)
        ),
        "the right numbers in the wrong columns: put each pair back side by side": lambda x, positions: (
            turned(x, positions, swap=True)
        ),
        "you count the rows: each row brings its position along": lambda x, positions: (
            turned(x, range(len(x)))
        ),
        "nothing is turned": lambda x, positions: x,
    },
)
check_rotate(rotate)


# %% tags=["solution"]
def rotate(x, positions):
    angles = positions[:, None] * frequencies(x.shape[1])  # (T, D/2)
    first, second = x[:, 0::2], x[:, 1::2]
    rotated = np.empty(x.shape)
    rotated[:, 0::2] = first * np.cos(angles) + second * np.sin(angles)
    rotated[:, 1::2] = second * np.cos(angles) - first * np.sin(angles)
    return rotated


verdict = check_rotate(rotate)
assert verdict.passed, verdict
verdict

# %% [markdown]
# ## In one breath
#
# By itself attention has no sense of order, so a vector for the position is added to each word before the first layer.
# Sines and cosines of many frequencies make such vectors: bounded, well apart within a text if they are wide enough,
# similar when near. A step of $r$ words is the same rotation from any position, so a query matrix can carry it out.
# Learned positions work too, up to the lengths common in training; beyond them sinusoids worked in our task at some
# widths, and failed at others. Rotary positions turn queries and keys instead of adding anything.
#
# **Sources.** Sinusoids: [Vaswani and others (2017)](https://arxiv.org/abs/1706.03762), section 3.5. Learned positions
# in a convolutional model, before that: [Gehring and others (2017)](https://arxiv.org/abs/1705.03122). Rotary
# positions: [Su and others (2021)](https://arxiv.org/abs/2104.09864).
#
# **Next.** Each word now has content and a position, and one chance to look around. [Chapter 6](06_many_heads.ipynb)
# gives it several.

# %% [markdown]
# ## Going further
#
# ### Are all positions different?
#
# [No two positions are equal](#similar-but-different), because the first pair turns by 1 radian a step, and as $\pi$ is
# irrational, no whole number of steps makes a whole number of turns. But does another position come close to a given
# one? The dot product depends only on the distance $r$, and all norms are equal, so the length of the difference
# $p_{t+r} - p_t$ depends only on $r$ as well. It is therefore enough to look from position 0. How long is the
# difference to its neighbour, and what is the shortest among the next 9,999? Ideally, the neighbour is the nearest.

# %%
found = {}
print("    D   |p_1 - p_0|   smallest |p_t - p_0|   at t")
for d_model in (4, 8, 16, 32):
    table = sinusoidal_positions(10_000, d_model)
    gaps = np.linalg.norm(table[1:] - table[0], axis=1)  # t = 1, 2, ...
    nearest, apart = 1 + gaps.argmin(), gaps.min()
    found[d_model] = nearest
    print(f"{d_model:5} {gaps[0]:13.2f} {apart:22.2f} {nearest:6}")

# %% [markdown]
# The first pair comes back *nearly* to where it was, so the other pairs must keep positions apart, and how well they do
# depends on the width. With $D = 4$ or 8 some distant position is almost the same; with 16 or 32 the nearest of these
# 9,999 is the neighbour.

# %% tags=["proof"]
assert [found[d_model] for d_model in (4, 8, 16, 32)] == [1885, 6283, 1, 1]
assert round(1885 / (2 * np.pi)) == 300 and round(1885 / (200 * np.pi)) == 3

# %% [markdown]
# ### Why do wide sinusoids fail?
#
# In [the experiment](#could-the-encoding-be-learned) the gradient of $A$ is a weighted sum of products $p_t^\top p_s$
# with $t$ and $s$ below 24. So training changes $A$ only in the directions of the 24 encodings. At width 128 these lie
# almost wholly in a subspace of 12 dimensions, because in 24 steps the slowest pairs hardly move, and those of close
# frequency move alike. (NumPy's `np.linalg.svd` finds perpendicular directions, and for each a *singular value*: how
# far the 24 encodings together extend along it. We count a direction if its value is at least a thousandth of the
# largest.)
#
# Later encodings also point out of this subspace, in directions in which $A$ has hardly changed. Is that the cause?
# Project each encoding onto the 12 dimensions, and train on all 48 positions (3,000 steps from $A = 0$): now $A$ is
# right at every one of them, so a solution exists there. But after 3,000 steps on only the first 24 positions,
# projected or not, every later one is wrong. So those directions are not the whole cause: even within the 12
# dimensions, training on the first 24 positions did not find the solution. Width 32 succeeds with the same 24, which
# fits [our explanation](#could-the-encoding-be-learned).
#
# Below, *outside* is the share of the squared length of encodings 24 to 47 that lies outside the subspace. *Trained on
# 24* is the chapter's experiment, 500 steps at its best learning rate. The last column is another, with 3,000 steps at
# a learning rate of 1, and shows only that a solution exists:
#
# | width | dimensions | outside | trained on 24, right at 24–47 | projected, trained on 48, right at 24–47 |
# |---|---|---|---|---|
# | 16 | 8 | 0% | 99% | 100% |
# | 32 | 10 | 13% | 100% | 100% |
# | 64 | 11 | 33% | 68% | 100% |
# | 128 | 12 | 39% | 4% | 100% |

# %% tags=["proof"]
strong, outside, zero, confined = [], [], [], []
for d_model in (16, 32, 64, 128):
    rows = sinusoidal_positions(48, d_model)
    _, sizes, directions = np.linalg.svd(rows[:24], full_matrices=False)
    used = directions[sizes > 1e-3 * sizes[0]]
    strong.append(len(used))
    outside.append(1 - np.sum((rows[24:] @ used.T) ** 2) / np.sum(rows[24:] ** 2))
    inside = rows @ used.T  # the encodings within the subspace: (48, dimensions)
    within = practise(
        inside, False, length=48, steps=3000, learning_rate=1, start=0
    )
    confined.append(share_right(*within, 24, 48))
    assert share_right(*within, 0, 24) == 1
    if d_model == 128:  # as many steps, but on fewer positions
        for each in (inside, rows):
            longer = practise(each, False, steps=3000, learning_rate=1, start=0)
            assert share_right(*longer, 0, 24) == 1
            assert share_right(*longer, 24, 48) == 0
    if d_model >= 64:
        gentle = [
            np.mean([score(d_model, False, rate, seed)[1] for seed in range(3)])
            for rate in (0.0005, 0.005, 0.025)
        ]
        assert max(gentle) <= beyond_of[False, d_model]
    from_zero = [practise(rows, False, learning_rate=r, start=0) for r in RATES]
    zero.append(max(share_right(*result, 24, 48) for result in from_zero))
assert np.allclose(zero, [1, 1, 0.7, 0], atol=0.06)
assert strong == [8, 10, 11, 12]

assert np.round(outside, 2).tolist() == [0, 0.13, 0.33, 0.39]
assert confined == [1, 1, 1, 1]

# %% [markdown]
# ### Why 10,000?
#
# Whatever the base, the first pair has a period of $2\pi \approx 6.3$ words. From there the periods grow by one factor
# from pair to pair, towards $2\pi$ times the base, so the base sets how slow the slowest pair is. Take the similarity
# of two positions $r$ apart, their dot product as a share of its largest value, $D/2$. How does it fall with the
# distance? Compare three bases, at width $D = 64$.

# %% tags=["plot"] mystnb={"image": {"alt": "Two panels for width 64 and the bases 100, ten thousand and a million. Left, the period of each pair on a logarithmic axis: straight lines that all start at 6.3 words and end near 540, 47 thousand and 4 million. Right, similarity against distance 1 to 10 thousand on a logarithmic axis, averaged over neighbouring distances: with base 100 it has fallen to 0 by 50 words, with ten thousand it comes near 0 only at some thousands, and with a million it is still 0.3 at 10 thousand."}}
figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.3))
distances, curves = np.unique(np.geomspace(1, 10_000, 60).round()), {}
for base, color, at in [
    (1e2, plots.RED, (4.5, 0.2)),
    (1e4, plots.BLUE, (1400, 0.18)),
    (1e6, plots.TEAL, (300, 0.62)),
]:
    omega = base ** (-np.arange(32) / 32)
    left.plot(2 * np.pi / omega, color=color)
    left.text(31.5, 2 * np.pi / omega[-1], f"{base:,.0f}", color=color)
    curve = np.cos(np.multiply.outer(np.arange(20_000), omega)).mean(axis=1)
    curves[base] = curve
    likeness = [
        curve[int(d / 1.5) + 1 : int(d * 1.5) + 1].mean() for d in distances
    ]
    right.plot(distances, likeness, color=color)
    right.text(*at, f"{base:,.0f}", color=color)
left.set(yscale="log", xlim=(0, 44), xlabel="pair", title="period, in words")
right.set(xscale="log", xlabel="distance", title="similarity, smoothed")
figure.tight_layout()
plt.show()

# %% [markdown]
# The curves on the right are smoothed: each point is a mean over distances within a factor of 1.5.
#

# %% mean similarity for each base tags=["hide-input"]
left_at = {}
print("mean similarity at a distance of")
print("                      10   50-200   500-2000   5000-10000")
for base, curve in curves.items():
    around = (10, 11), (50, 200), (500, 2000), (5000, 10_000)
    left_at[base] = [curve[a:b].mean() for a, b in around]  # not one peak or dip
    shares = "{:8.2f} {:8.2f} {:10.2f} {:12.2f}".format(*left_at[base])
    print(f"base {base:9,.0f} {shares}")
assert left_at[1e2][0] < left_at[1e4][0] < left_at[1e6][0]
assert abs(np.array(left_at[1e2][1:])).max() < 0.1 < 0.4 < left_at[1e4][1]
assert [round(left_at[base][0], 2) for base in (1e4, 1e6)] == [0.66, 0.76]
assert 530 < 2 * np.pi * 1e2 ** (62 / 64) < 550
assert round(2 * np.pi * 1e4 ** (62 / 64), -3) == 47_000
speeds = 1e4 ** (-np.arange(256) / 256)
assert (
    round(2 * np.pi / speeds[-1], -4) == 60_000
    and np.mean(512 * speeds >= 0.5) > 0.75
)

# %% [markdown]
# Fast pairs tell near positions apart and slow pairs far ones, and both are needed. A small base has too few slow
# pairs: with base 100 none of the similarity is left at 50 to 200 words, so in the plain dot product 100 words away
# looks no nearer than 1,000. A large base has too few fast ones: 10 words away, the similarity is 0.66 with 10,000 and
# still 0.76 with a million. So near positions are a little harder to tell apart, and the slowest pairs hardly move in a
# whole text. Models for long texts accept these two costs.
#
# The paper of 2017 gives no reason for its 10,000. The longest period should be well beyond the text, and most pairs
# should still move in it. At $D = 512$, for a text of 512 words, 10,000 does both: the longest period is 60,000 words,
# and three quarters of the pairs turn by at least half a radian. Llama 3 uses 500,000 for its rotary positions
# ([Grattafiori and others, 2024](https://arxiv.org/abs/2407.21783)). Many libraries call the base `rope_theta`.

# %% [markdown]
# ### Why multiply the embedding by the root of the width?
#
# In the paper (section 3.4) the word vectors are multiplied by $\sqrt{D}$ before the positions are added. The paper
# gives no reason for the factor. A likely one is that it uses the word vectors again in its output layer, which needs
# them small (chapter 9), and beside small word vectors the positions may be much too long. So whether the word or the
# position is longer at the start depends on this factor and on how the word vectors are initialised.

# %%
D = 512
positions = sinusoidal_positions(64, D)
shares = []
for start, size in [
    ("1/sqrt(D), as in the paper's code", D**-0.5),
    ("1, PyTorch's default", 1),
]:
    words = size * np.random.default_rng(7).standard_normal((64, D))
    for factor in (1, np.sqrt(D)):
        together = (positions**2).sum() + ((factor * words) ** 2).sum()
        shares.append((positions**2).sum() / together)
        print(f"start {start:34} times {factor:4.1f}: position {shares[-1]:6.1%}")
assert np.allclose(shares, [0.996, 0.334, 0.334, 0.001], rtol=0, atol=0.002)

# %% [markdown]
# These are shares of the squared norm, at $D = 512$. With a small initialisation and the factor, a third is position.
# With a small initialisation and no factor, nearly everything is position. With PyTorch's default initialisation the
# factor tips the balance: without it the two are comparable, and with it the position is a tenth of a percent. Position
# vectors that are much too short hardly change the scores when words change places, so at first the model works almost
# as if the words had no order. With position vectors that are much too long, attention chooses by position and hardly
# by meaning, and what a value passes on is mostly position. Training must first repair this.

# %% tags=["quiz"]
quiz.several_choices(
    "A model's word vectors start with entries of standard deviation 1, have width 512, and are multiplied by $\\sqrt{512}$ before sinusoids are added. What holds at the start of training? (More than one may be right.)",
    quiz.wrong(
        "The factor undoes the division by the root of the key's width",
        "The factor makes scores between words 512 times as large, and that division takes back $\\sqrt{d_k}$, at most $\\sqrt{512}$.",
    ),
    quiz.right(
        "In the scores, words count for far more than positions",
        "Yes: a word's vector is 32 times as long as its position's, $512$ against $16$.",
    ),
    quiz.right(
        "Leaving the factor out would balance word and position",
        "Yes: such entries give words of length $\\sqrt{512}$, and positions have length $\\sqrt{256}$.",
    ),
    quiz.wrong(
        "In the scores, positions count for far more than words",
        "It is the other way round. That happens with a *small* initialisation and no factor.",
    ),
)

# %% [markdown]
# ### Other ways to encode the distance
#
# Models with rotary positions often fail beyond the trained length, too. One suspect: their slow pairs turn there by
# angles that did not occur in training. So for longer texts all angles are scaled down into the trained range
# (*position interpolation*, [Chen and others, 2023](https://arxiv.org/abs/2306.15595)), or only those of the slow pairs
# (*YaRN*, [Peng and others, 2023](https://arxiv.org/abs/2309.00071)), and a little more training accustoms the model to
# the smaller steps.
#
# Rotary positions can look *one word back*, as training found above. By hand: let every key be the same $k$ and every
# query $k R_{-1}$, whatever the words. A model can do this if its projections add a constant vector, a *bias*: with
# $W_Q = W_K = 0$ only biases are left. (Llama has no biases; there a part that all words have in common can serve.)
# Turned, query and key are $k R_{t-1}$ and $k R_s$. Their score, $k R_{t-s-1} \, k^\top$, is largest at $s = t - 1$,
# where they are equal.
#
# Rotations are not the only way to encode the distance, nor were they the first in a transformer ([Shaw and others,
# 2018](https://arxiv.org/abs/1803.02155), learned a vector for each distance):
#
# - A **relative position bias** adds to each score a number that depends on the distance alone, $q \cdot k + b_{t-s}$:
#   one learned for each range of distances ([T5, Raffel and others, 2020](https://arxiv.org/abs/1910.10683)), or minus
#   a multiple of the distance ([ALiBi, Press and others, 2022](https://arxiv.org/abs/2108.12409)), so that far words
#   get little weight, and a longer text looks much like a shorter one.
# - *NoPE* ("no positional encoding") leaves positions out where a causal mask tells the order. With such a mask no word
#   sees a later one. So one layer can notice which words stand before a given word, but not in what order. A second
#   layer can tell the order, because the output of each of those earlier words depends on what stood before it
#   ([chapter 9](09_decoder.ipynb#does-a-causal-mask-carry-order)).

# %% [markdown]
# ### Can the sum be taken apart?
#
# Can a linear map recover word and position from their sum? Take all 32,000 sums of 1,000 random words and 32
# positions. On half of them, find the matrix and the constant vector that bring the sums as close as possible to their
# words (least squares), and another such pair for their positions. On the other half, apply these, and take the nearest
# of the 1,000 words and of the 32 positions. How often is it the right one? (In the last column random vectors of the
# same length take the place of the sinusoids.)

# %% the nearest word and position to each fitted sum tags=["hide-input"]
word_of, position_of = np.repeat(np.arange(1000), 32), np.tile(np.arange(32), 1000)
fitted, held_out = np.split(np.random.default_rng(6).permutation(32_000), 2)
right, near = {}, {}
print("right, of 16,000 sums")
print("               words   positions   off by one at most   random positions")
for d_model in (256, 128, 64, 32):
    vocabulary = np.random.default_rng(5).standard_normal((1000, d_model))
    encodings = sinusoidal_positions(32, d_model)
    random = np.random.default_rng(7).standard_normal((32, d_model))
    random *= np.sqrt(d_model / 2) / np.linalg.norm(random, axis=1, keepdims=True)
    shares = []
    for table, answer, added in [
        (vocabulary, word_of, encodings),
        (encodings, position_of, encodings),
        (random, position_of, random),
    ]:
        sums = vocabulary[word_of] + added[position_of]
        sums, wanted = np.column_stack([sums, np.ones(len(sums))]), table[answer]
        linear_map = np.linalg.lstsq(sums[fitted], wanted[fitted], rcond=None)[0]
        found = sums[held_out] @ linear_map
        # squared distances, minus a term that is the same for all rows
        apart = (table**2).sum(axis=1) - 2 * found @ table.T
        off = np.abs(apart.argmin(axis=1) - answer[held_out])
        shares.append(np.mean(off == 0))
        if table is encodings:
            near[d_model] = np.mean(off <= 1)
    right[d_model] = shares
    print(
        f"width {d_model:3}  {shares[0]:9.0%}{shares[1]:12.0%}"
        f"{near[d_model]:21.0%}{shares[2]:19.0%}"
    )
assert all(shares[0] > 0.995 and shares[2] > 0.89 for shares in right.values())
assert right[256][1] > 0.8 > 0.4 > right[32][1]
assert round(near[128], 2) == 0.99 and round(near[32], 2) == 0.71

# %% [markdown]
# Adding does not destroy these words: they are recovered at every width. So is nearly every position, if the position
# vectors are random (last column). Sinusoidal positions are recovered less often, because neighbours are similar: in
# wide spaces, an answer that is wrong is nearly always off by one. (All this with words $\sqrt 2$ times as long as
# positions.)

# %% [markdown]
# ### Short answers
#
# - **Why do the frequencies shrink by a factor, and not in equal steps?** Equal steps waste pairs. With 1, 0.75, 0.5
#   and 0.25 all four hands return together after $8\pi \approx 25.1$ steps, so position 25 is more like position 0 than
#   position 1 is. Shrinking by 10, the periods of four pairs reach 6,283 steps.
# - **Do rotary positions make far words count less?** Not in general. Each pair adds a cosine wave of the distance to
#   the score, and a wave does not shrink. For any distance there are queries and keys that score highest there
#   ([Barbero and others, 2024](https://arxiv.org/abs/2410.06205)).
# - **What if a text is longer than the learned rows?** Cut it, or read it in overlapping chunks. Or interpolate new
#   rows between the old ones, so that none starts as noise, and train on, as is done for larger images ([Dosovitskiy
#   and others, 2021](https://arxiv.org/abs/2010.11929)).
# - **What do positions cost?** Sinusoids and rotary positions have no parameters, because they are computed.
#   [BERT-base](https://arxiv.org/abs/1810.04805) learns $512 \times 768 = 393{,}216$, of about 110 million. Turning a
#   query of width 64 takes 128 products; projecting it from width 512 takes 32,768.
# - **May the angles be computed in 16 bits?** Better not. bfloat16 keeps 8 binary digits, so it rounds 257 to 256, and
#   two positions become one. Compute angles, sines and cosines in float32 ([a mistake once found in a library's Llama
#   code](https://github.com/huggingface/transformers/pull/29285)).
# - **Must sines and cosines alternate?** No. With all sines first the columns are only in another order, and in an
#   untrained model no column is special. Trained weights need the order that they were trained with.
# - **What if the width is odd?** One sine lacks its cosine. Since $\sin a \sin b = \frac12(\cos(a - b) - \cos(a + b))$
#   contains the sum of the angles, too, the dot product would no longer depend on the distance alone. Choose an even
#   width, or leave the last column 0.
# - **Can a trained model change its kind of positions?** Not without more training, because its matrices were fitted to
#   one kind. One exchange is safe: a learned table that is filled with the sinusoids returns the same vectors, so the
#   outputs stay the same, and it can be trained from there.
# - **Does a good score show that a model uses order?** No, because single words can give the answer away, such as
#   *awful* in a review. On many tests of the GLUE collection BERT models kept 75 to 90 percent of their correct answers
#   when words were shuffled ([Pham and others, 2021](https://arxiv.org/abs/2012.15180)).
# - **How do images get positions?** An image is cut into squares. Half of the entries can encode a square's row, and
#   half its column. One learned vector for each square did about as well ([Dosovitskiy and others,
#   2021](https://arxiv.org/abs/2010.11929)).
# - **When should positions be left out?** When order means nothing, as in a set of points. Without positions and masks,
#   reordering the inputs only reorders the outputs, and with them a model would have to learn that from examples ([Lee
#   and others, 2019](https://arxiv.org/abs/1810.00825)).
# - **Must every entry of a query be turned?** No. GPT-NeoX-20B turns only a quarter of the entries of each query and
#   key ([Black and others, 2022](https://arxiv.org/abs/2204.06745)). The rest compare words alike at every distance,
#   because no rotation touches them.
# - **What else is wrong with the index and the fraction?** A text longer than any in training brings indices that the
#   model has never met. And while a text is being generated, its length $T$ is not even known.
# - **Do sinusoids make attention prefer neighbours?** No. Raw encodings are more alike when near, but scores also
#   contain $W_Q$ and $W_K$. Training may make these look far away, as $R_{-r}$ does, or ignore positions.
# - **Why are rotary positions applied in every layer?** Because only queries and keys are turned, and not the words
#   that are handed on. The next layer makes its queries and keys afresh, so it must turn them again.

# %% tags=["proof"]
equal_steps = np.array([1, 0.75, 0.5, 0.25])
far, near_by = (np.cos(t * equal_steps).sum() for t in (25, 1))
assert far > 3.9 > 3.2 > near_by and round(8 * np.pi, 1) == 25.1
assert 512 * 768 == 393_216 and 512 * 64 == 32_768 and 32 * 4 == 128
assert torch.tensor(257.0).bfloat16() == 256
