"""attention beside PyTorch's own attention, in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from dotformer.attention import MultiHeadAttention, record_weights, scaled_dot_product_attention
from tests.reference.strategies import (
    as_ours,
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
    ours.load_state_dict(as_ours(theirs))
    return ours, theirs


def tensors(inputs):
    """NumPy's query, key, value and mask for PyTorch, the first three wanting gradients."""
    *arrays, mask = inputs
    arrays = [torch.tensor(a, requires_grad=True) for a in arrays]
    return *arrays, None if mask is None else torch.from_numpy(mask)


@given(attention_inputs())
def test_attention_and_its_gradients_are_torch(inputs):
    query, key, value, mask = tensors(inputs)
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    wide = None if mask is None else torch.atleast_2d(mask)  # PyTorch takes no mask with a single axis
    reference = F.scaled_dot_product_attention(query, key, value, wide)
    assert_close(output, reference, 3e-12)
    identity = torch.eye(key.shape[-2], dtype=torch.float64)  # as values, it shows the weights
    assert_close(weights, F.scaled_dot_product_attention(query, key, identity, wide), 3e-12)
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


def heads(mask=None, need_weights=False, shapes=((2, 3, 4), (2, 5, 4), (2, 5, 4))):
    return MultiHeadAttention(4, 2)(*(torch.ones(shape) for shape in shapes), mask, need_weights)


def plain(mask=None, shapes=((2, 3), (5, 3), (5, 4))):
    return scaled_dot_product_attention(*(torch.ones(shape) for shape in shapes), mask)


def yes(*shape):
    return torch.ones(shape, dtype=torch.bool)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: plain(torch.ones(2, 5)),
            TypeError,
            "^mask must be boolean, True for may attend, but it is torch.float32$",
        ),
        (lambda: MultiHeadAttention(6, 4), ValueError, "^d_model must be divisible by num_heads, not 6 by 4$"),
        (lambda: MultiHeadAttention(6, 0), ValueError, "not 6 by 0$"),
        (lambda: MultiHeadAttention(4, 2, dropout=1.0), ValueError, "not 1.0"),
        (lambda: heads(shapes=[(2, 3, 5)] * 3), ValueError, r"^query needs shape \(..., tokens, 4\), not \(2, 3, 5\)$"),
    ],
)
def test_bad_input_is_named(call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    ("mask", "error", "says"),
    [
        (yes(5, 3), ValueError, r"^mask of shape \(5, 3\) does not broadcast to scores of \(2, 2, 3, 5\)$"),
        (yes(2, 3, 5), ValueError, r"^mask of shape \(2, 3, 5\) has no axis for the heads .* use mask\[:, None\]$"),
    ],
)
def test_a_mask_that_does_not_fit_is_named(mask, error, says, need_weights):
    with pytest.raises(error, match=says):
        heads(mask, need_weights)


@pytest.mark.parametrize("need_weights", [False, True])
def test_one_query_may_look_into_a_whole_padded_batch(need_weights):
    query, memory = normals(0, (3, 4), (2, 5, 4))
    module = MultiHeadAttention(4, 2).double()
    mask = torch.arange(5) < torch.tensor([5, 2])[:, None]
    output, _ = module(query, memory, memory, mask[:, None, None], need_weights)
    assert_close(output, module(query.expand(2, 3, 4), memory, memory, mask[:, None, None])[0])
    row, _ = module(query, memory, memory, mask[1], need_weights)  # the same keys for all
    assert_close(row, module(query.expand(2, 3, 4), memory[:, :2], memory[:, :2])[0])


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


def test_who_asks_for_weights_by_place_or_with_a_cache_is_recorded_too():
    module = drawn_anew(MultiHeadAttention(8, 2), seed=0)
    (x,) = normals(1, (1, 3, 8))
    cache = Kept(*module.project(x, x))
    with record_weights(module) as weights:
        output, _ = module(x[:, 2:], x[:, 2:], x[:, 2:], None, False, cache=cache)
    assert_close(output, module(x, x, x)[0][:, 2:])
    assert weights[""].shape == (1, 2, 1, 3)
    assert len(cache.asked) == 1


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


# a cache


class Kept:
    """A cache that gives the same keys and values to whoever asks, and remembers who did."""

    def __init__(self, keys, values, length=2):
        self.kept, self.length, self.asked = (keys, values), length, []

    def project(self, *arguments):
        self.asked.append(arguments)
        return self.kept


@given(self_or_cross(), st.booleans())
def test_a_cache_that_projects_changes_nothing(case, need_weights):
    num_heads, query, key, value, mask, seed = case
    module = drawn_anew(MultiHeadAttention(query.shape[-1], num_heads), seed)
    keys, values = module.project(key, value)
    shape = (*key.shape[:-1], num_heads, -1)
    assert_close(keys, module.w_k(key).reshape(shape).transpose(-3, -2))
    assert_close(values, module.w_v(value).reshape(shape).transpose(-3, -2))
    straight = module(query, key, value, mask, need_weights)
    cache = Kept(keys, values)
    cached = module(query, key, value, mask, need_weights, cache)
    assert len(cache.asked) == 1
    assert all(a is b for a, b in zip(cache.asked[0], (module, key, value), strict=True))
    assert_close(cached[0], straight[0])
    assert not need_weights or torch.equal(cached[1], straight[1])
