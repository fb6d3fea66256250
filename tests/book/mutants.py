"""Defects that real code has had, each to be planted alone into a copy of dotformer.

They are planted into code written out by `ast.unparse`, so that comments and line breaks are free to change.
"""

from dataclasses import dataclass

from tests.book.devices_mutants import BLOCKS, DEVICES, LADDER
from tests.book.distributed_mutants import DISTRIBUTED
from tests.book.recurrent_mutants import RECURRENT
from tests.book.torch_mutants import TORCH
from tests.book.training_mutants import CORPORA, GENERATION, TRAINING
from tests.book.translation_mutants import FILES_OF_TEXT, GERMAN, TRANSLATION

AS_IT_IS = "without a defect"


@dataclass(frozen=True)
class Mutant:
    """One defect: in `module` of the package, the piece of code `right`, found exactly once, becomes `wrong`.

    `tests` is the reference tests' file, where it has not the module's name.
    """

    name: str
    module: str
    right: str
    wrong: str
    tests: str = ""

    @property
    def key(self) -> str:
        """What the mutant is called in a report."""
        return f"{self.module}: {self.name}"


GRADIENTS = [
    (
        "the values' gradient without weights",
        "weights.swapaxes(-1, -2) @ d_output",
        "np.ones_like(weights).swapaxes(-1, -2) @ d_output",
    ),
    ("scores are not compared", "weights * (d_weights - average)", "weights * d_weights"),
    (
        "the average is not weighted",
        "(weights * d_weights).sum(axis=-1, keepdims=True)",
        "d_weights.mean(axis=-1, keepdims=True)",
    ),
    (
        "the average runs over queries",
        "(weights * d_weights).sum(axis=-1, keepdims=True)",
        "(weights * d_weights).sum(axis=-2, keepdims=True)",
    ),
    ("the root is forgotten", "/ np.sqrt(query.shape[-1])", "/ 1.0"),
    ("the sign is turned", "weights * (d_weights - average)", "weights * (average - d_weights)"),
    ("the mask is forgotten", "attend_by_hand(query, key, value, mask)", "attend_by_hand(query, key, value)"),
    (
        "query and key gradients are swapped",
        "d_scores @ key, d_scores.swapaxes(-1, -2) @ query",
        "d_scores @ query, d_scores.swapaxes(-1, -2) @ key",
    ),
]
SIMILARITY = [
    ("dot forgets the last product", "(a * b).sum()", "(a[:-1] * b[:-1]).sum()"),
    ("dot adds instead of multiplying", "(a * b).sum()", "(a + b).sum()"),
    ("cosine without norms", "dot(normalize(a), normalize(b))", "dot(a, b)"),
    ("cosine with one norm", "dot(normalize(a), normalize(b))", "dot(normalize(a), b)"),
    (
        "a sum of squares without the root",
        "np.sqrt((vectors ** 2).sum(axis=-1, keepdims=True))",
        "(vectors ** 2).sum(axis=-1, keepdims=True)",
    ),
    (
        "one norm for the whole matrix",
        "np.sqrt((vectors ** 2).sum(axis=-1, keepdims=True))",
        "np.sqrt((vectors ** 2).sum())",
    ),
    (
        "a norm over the wrong axis",
        "np.sqrt((vectors ** 2).sum(axis=-1, keepdims=True))",
        "np.sqrt((vectors ** 2).sum(axis=0, keepdims=True))",
    ),
    ("squares that overflow", "vectors = vectors / largest", "vectors = vectors / 1.0"),
    (
        "keys reshaped, not transposed",
        "keys.swapaxes(-1, -2)",
        "keys.reshape(*keys.shape[:-2], keys.shape[-1], keys.shape[-2])",
    ),
    ("all axes of the keys reversed", "keys.swapaxes(-1, -2)", "keys.T"),
    ("keys are rows, queries are columns", "queries @ keys.swapaxes(-1, -2)", "keys @ queries.swapaxes(-1, -2)"),
    ("leading axes do not broadcast", "queries @ keys.swapaxes(-1, -2)", "np.einsum('...td,...sd->ts', queries, keys)"),
    ("keys with a single axis pass", "queries.ndim < 2 or keys.ndim < 2", "queries.ndim < 2"),
    ("a clash of leading axes is left to NumPy", "except ValueError as error", "except ZeroDivisionError as error"),
    ("a clash of leading axes is reported without shapes", "do not broadcast: {shapes}", "do not broadcast"),
    (
        "only the first 8 entries count",
        "queries @ keys.swapaxes(-1, -2)",
        "queries[..., :8] @ keys.swapaxes(-1, -2)[..., :8, :]",
    ),
]
SOFTMAX = [
    ("overflow", "np.exp(scores - highest)", "np.exp(scores)"),
    ("one maximum for all rows", "np.exp(scores - highest)", "np.exp(scores - scores.max())"),
    ("a maximum over the wrong axis", "scores.max(axis=axis, keepdims=True)", "scores.max(axis=0, keepdims=True)"),
    ("always over the last axis", "shares.sum(axis=axis, keepdims=True)", "shares.sum(axis=-1, keepdims=True)"),
    ("over the queries", "shares.sum(axis=axis, keepdims=True)", "shares.sum(axis=0, keepdims=True)"),
    ("over everything", "shares.sum(axis=axis, keepdims=True)", "shares.sum()"),
    ("base 2", "np.exp(scores - highest)", "np.exp2(scores - highest)"),
    (
        "a small constant in the divisor",
        "shares.sum(axis=axis, keepdims=True)",
        "(shares.sum(axis=axis, keepdims=True) + 1e-09)",
    ),
    ("shares are not divided", "return shares / shares.sum(axis=axis, keepdims=True)", "return shares"),
    ("a row with nothing to attend to passes", "if np.isneginf(highest).any():", "if False:"),
    (
        "values are averaged without weights",
        "return weights @ values",
        "return np.ones_like(weights) @ values / weights.shape[-1]",
    ),
    ("weights that do not sum to 1 pass", "> 1e-05", "> 100000.0"),
    ("the Jacobian without its diagonal", "np.eye(weights.shape[-1]) - weights", "-weights"),
    ("the Jacobian with the sign turned", "np.eye(weights.shape[-1]) - weights", "np.eye(weights.shape[-1]) + weights"),
    ("weighted_average: a clash is left to NumPy", "except ValueError as error", "except ZeroDivisionError as error"),
    ("weighted_average: a clash is reported without shapes", "do not broadcast: {shapes}", "do not broadcast"),
    ("only the first 8 values count", "return weights @ values", "return weights[..., :8] @ values[..., :8, :]"),
    (
        "the scores given are shifted in place",
        "scores = as_real_array(scores, 'scores', infinite=True)",
        "scores = np.asarray(scores, dtype=np.float64)\n    scores -= scores.max(axis=axis, keepdims=True)",
    ),
    (
        "the weights given to weighted_average are divided by their sum in place",
        "weights = as_real_array(weights, 'weights')\n    values =",
        "weights = np.asarray(weights, dtype=np.float64)\n"
        "    weights /= weights.sum(axis=-1, keepdims=True)\n    values =",
    ),
    (
        "the weights given to softmax_jacobian are divided by their sum in place",
        "weights = as_real_array(weights, 'weights')\n    if",
        "weights = np.asarray(weights, dtype=np.float64)\n    weights /= weights.sum(axis=-1, keepdims=True)\n    if",
    ),
]
ATTENTION = [
    ("no scaling", " / np.sqrt(query.shape[-1])", ""),
    ("scaled by the number of keys", "np.sqrt(query.shape[-1])", "np.sqrt(key.shape[-2])"),
    ("scaled by the number of queries", "np.sqrt(query.shape[-1])", "np.sqrt(query.shape[-2])"),
    ("scaled by the width of the values", "np.sqrt(query.shape[-1])", "np.sqrt(value.shape[-1])"),
    ("scaled without the root", "np.sqrt(query.shape[-1])", "query.shape[-1]"),
    ("softmax over the queries", "softmax(scores)", "softmax(scores, axis=-2)"),
    (
        "the mask is inverted",
        "np.where(checked_mask(mask, scores.shape), scores, -np.inf)",
        "np.where(checked_mask(mask, scores.shape), -np.inf, scores)",
    ),
    ("the mask is ignored", "np.where(checked_mask(mask, scores.shape), scores, -np.inf)", "scores"),
    ("the mask fills in zeros", "scores, -np.inf)", "scores, 0.0)"),
    ("the mask fills in a number that is not low enough", "scores, -np.inf)", "scores, -9.0)"),
    (
        "the mask is transposed",
        "checked_mask(mask, scores.shape), scores",
        "checked_mask(mask, scores.shape).swapaxes(-1, -2), scores",
    ),
    (
        "the mask is multiplied after the softmax",
        "softmax(scores)",
        "softmax(np.where(np.isinf(scores), 0.0, scores)) * np.isfinite(scores)",
    ),
    ("a mask of numbers passes", "if mask.dtype != np.bool_:", "if False:"),
    (
        "the weights are returned unmasked",
        "(weighted_average(weights, value), weights)",
        "(weighted_average(weights, value), softmax(similarity_matrix(query, key)))",
    ),
    (
        "keys are averaged, not values",
        "(weighted_average(weights, value), weights)",
        "(weighted_average(weights, key), weights)",
    ),
    ("queries and keys change places", "similarity_matrix(query, key)", "similarity_matrix(key, query)"),
    ("self-attention forgets to project", "(x @ w for w in matrices.values())", "(x, x, x)"),
    ("self-attention mixes up queries and keys", "query, key, value = (x @ w", "key, query, value = (x @ w"),
    (
        "self-attention projects with the transposes",
        "x @ w for w in",
        "x @ (w.T if w.shape[0] == w.shape[1] else w) for w in",
    ),
    ("self-attention drops its mask", "attention(query, key, value, mask)", "attention(query, key, value)"),
    ("the mask fills in minus a billion", "scores, -np.inf)", "scores, -1e9)"),
    ("a query with nothing to attend to is left to softmax", "if not mask.any(axis=-1).all():", "if False:"),
    ("one query with something to attend to is enough", "mask.any(axis=-1).all()", "mask.any()"),
    ("a mask is checked but not broadcast", "mask = np.broadcast_to(mask, shape)", "np.broadcast_to(mask, shape)"),
    (
        "a mask that does not broadcast is left to NumPy",
        "mask = np.broadcast_to(mask, shape)\n    except ValueError",
        "mask = np.broadcast_to(mask, shape)\n    except ZeroDivisionError",
    ),
    (
        "a ragged mask is left to NumPy",
        "mask = np.asarray(mask)\n    except ValueError",
        "mask = np.asarray(mask)\n    except ZeroDivisionError",
    ),
    ("self-attention takes matrices with any number of axes", "w.ndim != 2 or ", ""),
    ("self-attention takes a single vector", "x.ndim < 2 or ", ""),
    ("wide vectors are scaled as if they were narrow", "np.sqrt(query.shape[-1])", "np.sqrt(min(query.shape[-1], 8))"),
    (
        "the query given is scaled in place",
        "(as_real_array(a, name) for a, name in [(query, 'query'), (key, 'key'), (value, 'value')])\n"
        "    scores = similarity_matrix(query, key) / np.sqrt(query.shape[-1])",
        "(np.asarray(a, dtype=np.float64) for a, name in [(query, 'query'), (key, 'key'), (value, 'value')])\n"
        "    query /= np.sqrt(query.shape[-1])\n    scores = similarity_matrix(query, key)",
    ),
    (
        "the matrices given to self-attention are rounded in place",
        "as_real_array(w, name) for name, w in",
        "np.asarray(w, dtype=np.float64).round(14, out=np.asarray(w, dtype=np.float64)) for name, w in",
    ),
]
ARRAYS = [
    ("integers are kept, and overflow", "array.astype(np.float64)", "array"),
    ("input is truncated to integers", "array.astype(np.float64)", "array.astype(np.int64).astype(np.float64)"),
    ("input is rounded to float32", "array.astype(np.float64)", "array.astype(np.float32).astype(np.float64)"),
    ("NaN passes", "if np.isnan(array).any():", "if False:"),
    ("infinity passes", "if not infinite and np.isinf(array).any():", "if False:"),
    ("float64 comes through without a copy", "array.astype(np.float64)", "array.astype(np.float64, copy=False)"),
]
RECURRENCE = [
    ("the word's bias is missing", "x @ w_x + b_x", "x @ w_x"),
    ("the state's bias is missing", "hidden @ w_h + b_h", "hidden @ w_h"),
    (
        "all columns are dealt out in turn",
        "list(zip(*by_gate, strict=True))",
        "[(from_word[..., g::gates], from_state[..., g::gates]) for g in range(gates)]",
    ),
    ("the plain cell squeezes by a sigmoid", "np.tanh(word + state)", "sigmoid(word + state)"),
    ("LSTM: enter and keep change places", "enter, keep, new, show =", "keep, enter, new, show ="),
    (
        "LSTM: new and show change places, as in Keras' older order",
        "enter, keep, new, show =",
        "enter, keep, show, new =",
    ),
    ("LSTM: no forget gate", "sigmoid(keep) * cell", "cell"),
    ("LSTM: the cell is shown without a tanh", "sigmoid(show) * np.tanh(cell)", "sigmoid(show) * cell"),
    ("GRU: reset and keep change places", "reset, keep, new = mix", "keep, reset, new = mix"),
    (
        "GRU: the reset gate acts on word and state",
        "new[0] + sigmoid(sum(reset)) * new[1]",
        "sigmoid(sum(reset)) * (new[0] + new[1])",
    ),
    (
        "GRU: keep means replace, as in the paper's first version",
        "(1 - kept) * candidate + kept * as_real_array(hidden, 'hidden')",
        "kept * candidate + (1 - kept) * as_real_array(hidden, 'hidden')",
    ),
]
POSITIONS = [
    ("base 1000", "10000.0 **", "1000.0 **"),
    ("paces by i, not 2i", "-np.arange(0, d_model, 2) / d_model", "-np.arange(d_model // 2) / d_model"),
    ("sine and cosine change places", "[np.sin(angles), np.cos(angles)]", "[np.cos(angles), np.sin(angles)]"),
    (
        "halves instead of pairs",
        "np.stack([np.sin(angles), np.cos(angles)], axis=-1)",
        "np.stack([np.sin(angles), np.cos(angles)], axis=-2)",
    ),
    (
        "places count from 1",
        "as_real_array(positions, 'positions')[..., None]",
        "(as_real_array(positions, 'positions')[..., None] + 1)",
    ),
    ("every word of the table stands at place 0", "np.arange(length)", "np.zeros(length)"),
    ("the rotation is transposed", "[[cosine, -sine], [sine, cosine]]", "[[cosine, sine], [-sine, cosine]]"),
    ("one pace for all pairs", "shift * paces(d_model)", "shift + 0 * paces(d_model)"),
    ("a shift one too far", "shift * paces(d_model)", "(shift + 1) * paces(d_model)"),
]
MULTIHEAD = [
    (
        "columns are dealt out in turn",
        "pieces = x.reshape(*x.shape[:-1], num_heads, x.shape[-1] // num_heads)",
        "pieces = np.moveaxis(x.reshape(*x.shape[:-1], x.shape[-1] // num_heads, num_heads), -1, -2)",
    ),
    (
        "split without the swap",
        "return pieces.swapaxes(-2, -3)",
        "return pieces.reshape(*pieces.shape[:-3], pieces.shape[-2], pieces.shape[-3], pieces.shape[-1])",
    ),
    (
        "merged without the swap",
        "pieces = heads.swapaxes(-2, -3)",
        "pieces = heads.reshape(*heads.shape[:-3], heads.shape[-2], heads.shape[-3], heads.shape[-1])",
    ),
    (
        "scaled by the width of the model",
        "scaled_dot_product_attention(q, k, v, mask)",
        "scaled_dot_product_attention(q / np.sqrt(num_heads), k, v, mask)",
    ),
    ("the mask is dropped", "scaled_dot_product_attention(q, k, v, mask)", "scaled_dot_product_attention(q, k, v)"),
    (
        "the mask binds the first head alone",
        "scaled_dot_product_attention(q, k, v, mask)",
        "scaled_dot_product_attention(q, k, v, mask if mask is None else"
        " mask | (np.arange(num_heads) > 0)[:, None, None])",
    ),
    (
        "heads are averaged, not set side by side",
        "merge_heads(heads) @",
        "merge_heads(0 * heads + heads.mean(axis=-3, keepdims=True)) @",
    ),
    ("W_O is dropped", "merge_heads(heads) @ matrices['w_o']", "merge_heads(heads)"),
    ("W_O is transposed", "matrices['w_o'], weights", "matrices['w_o'].T, weights"),
    (
        "split before projecting",
        "split_heads(array @ matrix, num_heads)",
        "(split_heads(array, num_heads) @ split_heads(matrix, num_heads)[..., :array.shape[-1] // num_heads, :])",
    ),
    (
        "keys and values change matrices",
        "{'w_q': w_q, 'w_k': w_k, 'w_v': w_v, 'w_o': w_o}",
        "{'w_q': w_q, 'w_k': w_v, 'w_v': w_k, 'w_o': w_o}",
    ),
    (
        "always self-attention",
        "{'query': query, 'key': key, 'value': value}",
        "{'query': query, 'key': query, 'value': query}",
    ),
    (
        "a padding mask binds all sequences as it binds the first",
        "scaled_dot_product_attention(q, k, v, mask)",
        "scaled_dot_product_attention(q, k, v, mask if q.shape[-2] == 1 or np.shape(mask)[-3:-1] != (1, 1)"
        " else np.asarray(mask)[:1])",
    ),
    (
        "no more than 4 heads",
        "split_heads(array @ matrix, num_heads)",
        "split_heads(array @ matrix, min(num_heads, 4))",
    ),
]

DEFECTS = {
    "by_hand.arrays": ARRAYS,
    "by_hand.recurrence": RECURRENCE,
    "by_hand.similarity": SIMILARITY,
    "by_hand.softmax": SOFTMAX,
    "by_hand.attention": ATTENTION,
    "by_hand.positions": POSITIONS,
    "by_hand.multihead": MULTIHEAD,
    "by_hand.gradients": GRADIENTS,
    "by_hand.blocks": BLOCKS,
    **TORCH,
    "corpora": CORPORA,
    "training": TRAINING,
    "generation": GENERATION,
    "german": GERMAN,
    "recurrent": RECURRENT,
    "translation": TRANSLATION,
    "devices": DEVICES,
    "ladder": LADDER,
    "distributed": DISTRIBUTED,
}
MUTANTS = [Mutant(name, module, right, wrong) for module, defects in DEFECTS.items() for name, right, wrong in defects]
MUTANTS += [Mutant(name, "corpora", right, wrong, "parallel") for name, right, wrong in FILES_OF_TEXT]
