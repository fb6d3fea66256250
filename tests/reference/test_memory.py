"""support.memory beside arrays counted on paper, and beside what a training step keeps."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from dotformer.support import memory
from dotformer.support.memory import memory_advice, saved_activations, training_memory
from dotformer.training import Trainer, TrainingConfig, cross_entropy
from dotformer.transformer import Transformer, TransformerConfig


def test_activations_counted_by_hand():
    linear, x = nn.Linear(4, 5), torch.randn(3, 4)
    with saved_activations(linear) as kept:
        y = linear(x).tanh()
    inside = dict(kept)
    assert inside == {x.data_ptr(): 3 * 4 * 4, y.data_ptr(): 3 * 5 * 4}  # the product keeps x, tanh its output
    y.tanh()
    assert kept == inside  # nothing is watched any more
    y.sum().backward()
    assert linear.weight.grad is not None


def test_a_slice_counts_as_its_array_once_and_a_view_of_a_parameter_not_at_all():
    weight, x = nn.Parameter(torch.randn(4, 5)), torch.randn(8, 4)
    with saved_activations(nn.ParameterList([weight])) as kept:
        (x[:2] @ weight[:, 1:]).sum() + (x[3:] @ weight[:, 1:]).sum()
    assert kept == {x.data_ptr(): 8 * 4 * 4}


def test_parameters_need_16_bytes_and_pairs_alike_and_nothing_is_changed():
    model = Transformer(TransformerConfig(9, 11, 1, 1, d_model=8, num_heads=2, d_ff=16, dropout=0.5, max_length=40))
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    row = torch.arange(20) % 6 + 3
    one, several = (training_memory(model, cross_entropy, row.expand(n, -1), row.expand(n, -1)) for n in (1, 7))
    assert one[0] == several[0] == 16 * sum(p.numel() for p in model.parameters())
    assert several[1] == 7 * one[1]
    longer = training_memory(model, cross_entropy, row.repeat(2)[None], row.repeat(2)[None])
    assert 1.9 * one[1] < longer[1] < 4 * one[1]
    assert torch.equal(torch.get_rng_state(), random) and model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_it_is_about_the_memory_of_a_training_step():
    model = Transformer(TransformerConfig(9, 9, 2, 2, d_model=32, num_heads=2, d_ff=64, dropout=0.0, max_length=40))
    rows = torch.randint(3, 9, (4, 20))
    trainer = Trainer(model, TrainingConfig())
    with saved_activations(model) as kept:
        trainer.train_step([(rows, rows)], 0.1)
    state, batch = training_memory(model, cross_entropy, rows, rows)
    assert batch == pytest.approx(sum(kept.values()), rel=0.1)
    moments = sum(t.nbytes for s in trainer.optimizer.state.values() for t in s.values() if t.ndim)
    assert state == moments + 2 * sum(p.nbytes for p in model.parameters())


SMALLER, SHORTER = "; a smaller model is needed (d_model, d_ff, layers)", "; shorter sentences are needed, or a smaller"


@pytest.mark.parametrize(
    ("state", "batch", "says"),
    [
        (901, 1, SMALLER),
        (900, 1, SHORTER),
        (500, 4000, "; a batch of 1 fits (max_tokens = 6)"),
        (500, 2000, "; a batch of 2 fits (max_tokens = 12)"),
        (800, 200, "; a batch of 5 fits (max_tokens = 30)"),
        (500, 401, "; a batch of 9 fits (max_tokens = 54)"),
        (500, 400, "; that fits, so something else fills the memory"),
    ],
)
def test_what_has_to_shrink(monkeypatch, state, batch, says):
    monkeypatch.setattr(memory, "training_memory", lambda *_: (state * 10**7, batch * 10**7))
    source, target = (torch.ones(10, n, dtype=torch.long) for n in (3, 6))
    advice = memory_advice(None, None, source, target, 1000 * 10**7)
    assert says in advice and advice.count(";") == 1
    start = f"10.00 GB of memory: the model and Adam need {state / 100:.2f}, 10 pairs of 6 tokens about"
    assert advice.startswith(f"{start} {batch / 100:.2f};")


FAULTS = """
import torch
from dotformer.support.memory import keep_freed_memory, page_faults

def faults():
    before = page_faults()
    for _ in range(5):
        torch.ones(16_000_000)
    return page_faults() - before

plain = [faults() for _ in range(4)]
can = keep_freed_memory()
kept = [faults() for _ in range(8)]  # the first rounds still make room, and how many depends on where the heap lies
print(min(plain), min(kept), can)
"""


def test_freed_memory_is_kept_for_the_next_array():
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # jemalloc, say
    plain, kept, can = subprocess.check_output([sys.executable, "-c", FAULTS], text=True, env=environment).split()
    if can == "False":
        pytest.skip("this C library has no such setting")
    assert int(plain) > 50 > int(kept)


@pytest.mark.parametrize("error", [OSError, TypeError, AttributeError])
def test_another_c_library_stays_as_it_is(monkeypatch, error):
    def missing(_):
        raise error

    monkeypatch.setattr(memory.ctypes, "CDLL", missing)
    assert memory.keep_freed_memory() is False
