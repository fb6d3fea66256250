"""attention beside PyTorch's own attention, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from dotformer.attention import MultiHeadAttention, scaled_dot_product_attention
from dotformer.support.recording import record_weights
from dotformer.support.torch_modules import our_state_dict
from tests.reference.strategies import (
    assert_close,
    attention_inputs,
    drawn_anew,
    masks,
    normals,
    seeds,
    sizes,
    torch_mask,
)

# The ways through MultiHeadAttention: by our own function, or by each of PyTorch's that runs on a CPU.
PATHS = ["our own", None, SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]


def attend(module, path, *inputs):
    """The module's output by one of the `PATHS`, None being PyTorch's own choice among the last two."""
    if path == "our own":
        return module(*inputs, need_weights=True)[0]
    if path is None:
        return module(*inputs)[0]
    with sdpa_kernel(path):
        return module(*inputs)[0]


@st.composite
def self_or_cross(draw):
    """The number of heads; query, key and value with no, one or more sequences; a mask or None; a seed.

    A mask is (T, S), or (..., 1, 1, S), (..., 1, T, S) or (..., H, T, S) with an axis for the batch if there is one.
    """
    num_heads, width, seed = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(seeds)
    batch = draw(st.sampled_from([(), (1,), (3,)]))
    t, s = draw(sizes), draw(sizes)
    query, key, value = normals(seed, *[(*batch, tokens, num_heads * width) for tokens in (t, s, s)])
    if draw(st.booleans()):
        s, key, value = t, query, query
    shapes = [(t, s), (*batch, 1, 1, s), (*batch, 1, t, s), (*batch, num_heads, t, s)]
    mask = draw(masks(*shapes))
    return num_heads, query, key, value, None if mask is None else torch.from_numpy(mask), seed


def torch_attention(num_heads, query, bias, seed):
    """PyTorch's layer with random weights and biases, and ours with the same."""
    d_model = query.shape[-1]
    theirs = drawn_anew(nn.MultiheadAttention(d_model, num_heads, bias=bias, batch_first=True), seed)
    ours = MultiHeadAttention(d_model, num_heads, bias=bias).double()
    ours.load_state_dict(our_state_dict(theirs))
    return ours, theirs


def tensors(inputs):
    """NumPy's query, key, value and mask for PyTorch: the first three with the same leading axes, wanting gradients."""
    *arrays, mask = inputs
    leading = np.broadcast_shapes(*(a.shape[:-2] for a in arrays))
    arrays = [torch.tensor(np.broadcast_to(a, (*leading, *a.shape[-2:])), requires_grad=True) for a in arrays]
    return *arrays, None if mask is None else torch.atleast_2d(torch.from_numpy(mask))


@given(attention_inputs())
def test_attention_and_its_gradients_are_torch(inputs):
    query, key, value, mask = tensors(inputs)
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    reference = F.scaled_dot_product_attention(query, key, value, mask)
    assert_close(output, reference, 3e-12)
    identity = torch.eye(key.shape[-2], dtype=torch.float64)  # as values, it shows the weights
    assert_close(weights, F.scaled_dot_product_attention(query, key, identity, mask), 3e-12)
    (direction,) = normals(output.numel(), output.shape)
    gradients = (torch.autograd.grad(a, (query, key, value), direction) for a in (output, reference))
    for a, b in zip(*gradients, strict=True):
        assert_close(a, b, 1e-11)


@given(sizes, sizes, sizes, sizes, seeds, st.data())
def test_a_query_with_nothing_to_attend_to_leaves_no_trace(t, s, d_k, d_v, seed, data):
    inputs = query, key, value = normals(seed, (2, t, d_k), (2, s, d_k), (2, s, d_v))
    mask = torch.tensor(data.draw(st.lists(st.lists(st.booleans(), min_size=s, max_size=s), min_size=t, max_size=t)))
    mask[data.draw(st.integers(0, t - 1))] = False
    blind = ~mask.any(dim=-1)
    (on_weights,) = normals(seed, (2, t, s))
    for a in inputs:
        a.requires_grad_()
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    assert (output[:, blind] == 0).all()
    assert (weights[:, blind] == 0).all()
    gradients = torch.autograd.grad(output.sum() + (weights * on_weights).sum(), inputs)
    assert (gradients[0][:, blind] == 0).all()
    # all else is as if that query had not been asked
    seeing, table = scaled_dot_product_attention(query[:, ~blind], key, value, mask[~blind])
    assert_close(output[:, ~blind], seeing)
    assert_close(weights[:, ~blind], table)
    others = torch.autograd.grad(seeing.sum() + (table * on_weights[:, ~blind]).sum(), inputs)
    for a, b in zip(gradients, others, strict=True):
        assert_close(a, b)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_not_even_on_the_way_does_nothing_to_attend_to_make_nan():
    query, key, value = (x.requires_grad_() for x in normals(0, (3, 2), (4, 2), (4, 2)))
    mask = torch.ones(3, 4, dtype=torch.bool).tril(-1)
    with torch.autograd.detect_anomaly():  # looks for NaN behind each step of the gradient
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        (output.sum() + weights.square().sum()).backward()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", ["one query", "one head"])
def test_heads_with_nothing_to_attend_to_give_zeros_and_finite_gradients(path, kind):
    module = drawn_anew(MultiHeadAttention(6, 3), seed=0)
    query, key, value = (x.requires_grad_() for x in normals(1, (2, 4, 6), (2, 5, 6), (2, 5, 6)))
    mask = torch.ones(2, 3, 4, 5, dtype=torch.bool).tril()
    mask[{"one query": (..., 2, slice(None)), "one head": (slice(None), 1)}[kind]] = False
    output = attend(module, path, query, key, value, mask)
    for nothing in (~mask.any(-1)).all(1).nonzero():  # a query that no head answers
        assert torch.equal(output[*nothing], module.w_o.bias)
    assert (kind == "one head") != bool((output == module.w_o.bias).all(-1).any())
    reference, weights = module(query, key, value, mask, need_weights=True)
    assert (weights[~mask] == 0).all()
    assert_close(output, reference)
    (direction,) = normals(2, output.shape)
    wanted = (query, key, value, *module.parameters())
    for a, b in zip(*(torch.autograd.grad(x, wanted, direction) for x in (output, reference)), strict=True):
        assert a.isfinite().all()
        assert_close(a, b)


@given(attention_inputs(), st.sampled_from([0.0, 0.3, 0.8]), seeds)
def test_dropout_drops_weights_and_returns_them_undropped(inputs, share, seed):
    query, key, value, mask = tensors(inputs)
    _, weights = scaled_dot_product_attention(query, key, value, mask)
    torch.manual_seed(seed)
    output, returned = scaled_dot_product_attention(query, key, value, mask, share)
    assert torch.equal(returned, weights)
    torch.manual_seed(seed)
    assert_close(output, nn.Dropout(share)(weights) @ value, 1e-11)


@pytest.mark.parametrize("need_weights", [False, True])
def test_heads_drop_weights_in_training_and_never_in_eval(need_weights):
    module = drawn_anew(MultiHeadAttention(6, 3, dropout=0.4), seed=0)
    plain = MultiHeadAttention(6, 3).double()
    plain.load_state_dict(module.state_dict())
    (x,) = normals(1, (2, 4, 6))
    same, _ = plain(x, x, x)
    module.eval()
    torch.manual_seed(0)
    for _ in range(2):
        assert_close(module(x, x, x, need_weights=need_weights)[0], same)
    module.train()
    many = x.repeat(2_000, 1, 1)
    output, weights = module(many, many, many, need_weights=need_weights)
    runs = output.unflatten(0, (2_000, 2))
    assert (runs[0] != runs[1]).any(-1).all()
    assert_close(runs.mean(0), same, 0.1)
    if need_weights:
        assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@given(self_or_cross(), st.booleans(), st.booleans(), st.booleans())
def test_heads_are_torch_heads(case, bias, need_weights, training):
    num_heads, query, key, value, mask, seed = case
    ours, theirs = (module.train(training) for module in torch_attention(num_heads, query, bias, seed))
    output, weights = ours(query, key, value, mask, need_weights)
    shape = (*query.shape[:-2], num_heads, query.shape[-2], key.shape[-2])
    batches = [x.reshape(-1, *x.shape[-2:]) for x in (query, key, value)]
    reference, table = theirs(
        *batches, attn_mask=torch_mask(mask, shape), need_weights=need_weights, average_attn_weights=False
    )
    assert_close(output, reference.reshape(query.shape), 1e-11)
    if need_weights:
        assert_close(weights, table.reshape(shape), 1e-11)
    output.square().sum().backward()
    reference.square().sum().backward()
    gradients = torch.cat([linear.weight.grad for linear in (ours.w_q, ours.w_k, ours.w_v, ours.w_o)])
    assert_close(gradients, torch.cat([theirs.in_proj_weight.grad, theirs.out_proj.weight.grad]), 1e-10)


def heads(mask=None, need_weights=False, query=(2, 3, 4), key=(2, 5, 4), dtype=None):
    inputs = (torch.ones(shape, dtype=dtype) for shape in (query, key, key))
    return MultiHeadAttention(4, 2)(*inputs, mask, need_weights)


def plain(mask=None, query=(2, 3), key=(5, 3), value=(5, 4)):
    return scaled_dot_product_attention(*(torch.ones(shape) for shape in (query, key, value)), mask)


def yes(*shape):
    return torch.ones(shape, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: plain(key=(5, 2)), ["'key'", "[5,2]", "d_k=3"]),
        (lambda: plain(value=(4, 4)), ["'value'", "[4,4]", "S=5"]),
        (lambda: plain(query=(7, 2, 3)), ["'key'", "[5,3]", "batch"]),
        (lambda: plain(torch.ones(2, 5)), ["'mask'", "f32[2,5]", "Bool"]),
        (lambda: plain(yes(5, 2)), ["'mask'", "bool[5,2]", "T=2", "S=5"]),
        (lambda: plain(yes(5)), ["'mask'", "bool[5]"]),
        (lambda: heads(query=(2, 3, 5)), ["'query'", "[2,3,5]", "d_model"]),
        (lambda: heads(key=(3, 5, 4)), ["'key'", "[3,5,4]", "T=3"]),
        (lambda: heads(dtype=torch.long), ["'query'", "i64[2,3,4]"]),
        (lambda: heads(yes(5, 3)), ["'mask'", "bool[5,3]", "S=5"]),
        (lambda: heads(yes(5, 3), need_weights=True), ["'mask'", "bool[5,3]"]),
        (lambda: heads(yes(2, 3, 3, 5), need_weights=True), ["'mask'", "bool[2,3,3,5]"]),
    ],
)
def test_a_wrong_shape_or_dtype_is_refused_by_name(call, says):
    with pytest.raises(TypeError) as raised:
        call()
    assert [part for part in says if part not in str(raised.value)] == []


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mask", [yes(2, 3, 5), yes(2, 1, 5)], ids=["(B, T, S)", "(B, 1, S)"])
def test_a_mask_without_an_axis_for_the_heads_is_refused(mask, need_weights):
    with pytest.raises(ValueError, match=r"lacks the heads: use mask\[:, None\]$"):
        heads(mask, need_weights)


@pytest.mark.parametrize("path", PATHS)
def test_the_word_causal_is_the_triangle_and_no_other_word_is_a_mask(path):
    module = drawn_anew(MultiHeadAttention(6, 3), seed=0)
    (x,) = normals(1, (2, 5, 6))
    triangle = torch.ones(5, 5, dtype=torch.bool).tril()
    assert_close(attend(module, path, x, x, x, "causal"), attend(module, path, x, x, x, triangle))
    with pytest.raises(TypeError, match="mask"):
        attend(module, path, x, x, x, "casual")


@pytest.mark.parametrize("num_heads", [4, 0, -2])
def test_columns_that_do_not_make_heads_are_refused(num_heads):
    with pytest.raises(ValueError, match=f"^6 columns do not make {num_heads} heads$"):
        MultiHeadAttention(6, num_heads)


class Exported(nn.Module):
    """An attention to itself under a causal mask, as `torch.export` takes it."""

    def __init__(self, need_weights):
        super().__init__()
        self.attention, self.need_weights = MultiHeadAttention(8, 2), need_weights

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return self.attention(x, x, x, mask, self.need_weights)[0]


@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_is_compiled_and_exported_in_one_piece(need_weights):
    module, x = Exported(need_weights).eval(), torch.randn(2, 5, 8)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), module(x), atol=1e-6)
    assert torch.allclose(torch.export.export(module, (x,)).module()(x), module(x), atol=1e-6)


class Twice(nn.Module):
    """Two attentions, one inside another module, and something that is none."""

    def __init__(self):
        super().__init__()
        self.first = MultiHeadAttention(4, 2)
        self.inner = nn.ModuleDict({"second": MultiHeadAttention(4, 1)})
        self.last = nn.Linear(4, 4)

    def forward(self, x, fail=False):
        x, nothing = self.first(x, x, x, torch.ones(3, 3, dtype=torch.bool).tril())
        x, _ = self.inner["second"](query=x, key=x, value=x, need_weights=False)
        if fail:
            raise RuntimeError("half-way")
        return self.last(x), nothing


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_every_attention_is_recorded():
    model = drawn_anew(Twice(), seed=0)
    (x,) = normals(0, (2, 3, 4))
    with record_weights(model) as weights:
        assert weights == {}
        during, _ = model(x)
    assert list(weights) == ["first", "inner.second"]
    inside, first = model.first(x, x, x, torch.ones(3, 3, dtype=torch.bool).tril(), need_weights=True)
    _, second = model.inner["second"](inside, inside, inside, need_weights=True)
    assert_close(weights["first"], first.detach())
    assert_close(weights["inner.second"], second.detach())
    assert not any(w.requires_grad for w in weights.values())
    after, nothing = model(x)
    assert nothing is None  # as before, nobody asks for weights
    assert_close(during, after)
    assert during.requires_grad


def test_each_pass_is_recorded_anew_and_none_after_the_end_or_an_exception():
    model = drawn_anew(Twice(), seed=0)
    (x,) = normals(0, (2, 3, 4))
    with pytest.raises(RuntimeError, match="half-way"), record_weights(model) as weights:
        model(x)
        before = dict(weights)
        model(x + 1)
        assert all((weights[name] != before[name]).any() for name in before)
        model(x, fail=True)
    assert hooks(model) == 0
    assert model(x)[1] is None


@pytest.mark.parametrize("options", [(None, False), (None,), ()])
def test_who_says_by_position_what_is_needed_is_recorded_too(options):
    module = drawn_anew(MultiHeadAttention(8, 2), seed=0)
    (x,) = normals(1, (1, 3, 8))
    with record_weights(module) as weights:
        module(x, x, x, *options)
    assert_close(weights[""], module(x, x, x, need_weights=True)[1].detach())


def test_a_recording_inside_another_leaves_that_one_be():
    model, x = Twice(), torch.ones(2, 3, 4)
    with record_weights(model) as outer:
        with record_weights(model.first) as inner:
            model(x)
        first = outer["first"]
        model(x)
        assert list(inner) == [""] and outer["first"] is not first


def test_a_compiled_model_is_not_recorded_in_silence():
    compiled = torch.compile(MultiHeadAttention(4, 2), backend="eager")
    with pytest.raises(TypeError, match="original"), record_weights(compiled):
        pass
