"""What test_torchrun.py lets several processes do: `work.py train|stop|slow FOLDER WAY STEPS`, `work.py gradients`."""

import json
import os
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path

import torch
from torch import nn

from dotformer.distributed import joined, my_share, replicate, shard
from dotformer.training import TrainingConfig, cross_entropy, evaluate, pair_batches, take_step, train
from dotformer.transformer import Transformer, TransformerConfig


def fresh():
    torch.manual_seed(0)
    return Transformer(TransformerConfig(30, 30, 16, 2, 1, 1, 32, dropout=0.0, max_length=16, share_embeddings=True))


def pairs():
    """Sentences to turn around, among them batches of one."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 9, (61,), generator=generator).tolist()
    sources = [torch.randint(3, 30, (length,), generator=generator).tolist() for length in lengths]
    return [(source, [1, *source[::-1], 2]) for source in sources]


def learn(what, folder, way, steps):
    folder, data = Path(folder), pairs()
    batches = partial(pair_batches, data, max_tokens=20)
    validate = partial(evaluate, batches=list(pair_batches(data[:20])))
    config = TrainingConfig(steps=int(steps), rate=1e-2, warmup=5, every=5, accumulate=2)
    with joined() as team:
        with (folder / "started").open("a") as file:
            file.write(f"{team.number}:{os.getpid()} ")

        def checked(model):
            if what == "slow":
                time.sleep(0.3)
            return validate(model)

        taken = count()

        def until_the_tenth(epoch):
            for batch in batches(epoch):
                if next(taken) == 10 * config.accumulate:
                    raise InterruptedError
                yield batch

        model = team.wrap(fresh(), way == "parts")
        given = team.share(until_the_tenth if what == "stop" else batches)
        try:
            train(model, given, config, checked, folder, progress=False, team=team)
        except InterruptedError:
            print("stopped after 10")


def gradients():
    """How far the gradients of two processes are from those of one, relative to the largest."""
    generator = torch.Generator().manual_seed(1)
    source, target = (torch.randint(3, 30, (5, 7), generator=generator) for _ in range(2))
    target[0, 5:] = target[2, 2:] = 0
    found = {}
    with joined() as team:
        for precision in (torch.float32, torch.float64):
            for way, wrap in (("whole", replicate), ("parts", shard)):
                one, many = fresh().to(precision), wrap(fresh().to(precision))
                optimizers = [torch.optim.SGD(model.parameters()) for model in (one, many)]
                config, share = TrainingConfig(clip=1e9), my_share((source, target), team.number, team.size)
                take_step(one, optimizers[0], [(source, target)], 0.0, config)
                take_step(many, optimizers[1], [share], 0.0, config, total=team.total, processes=team.size)
                name = way if precision == torch.float32 else f"{way}, float64"
                found[name] = apart(one, many)
        many = nn.parallel.DistributedDataParallel(fresh(), forward_sync_buffers=False)
        loss, tokens = cross_entropy(many(share[0], share[1][:, :-1]), share[1][:, 1:], smoothing=0.1)
        (loss / tokens).backward()
        one = fresh()
        loss, tokens = cross_entropy(one(source, target[:, :-1]), target[:, 1:], smoothing=0.1)
        (loss / tokens).backward()
        found["each divides by its own"] = apart(one, many)
        if not team.number:
            print(json.dumps(found))


def apart(one, many):
    whole = [getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in many.parameters()]
    largest = max(p.grad.abs().max() for p in one.parameters())
    return max(float((a.grad - b).abs().max() / largest) for a, b in zip(one.parameters(), whole, strict=True))


if __name__ == "__main__":
    torch.set_num_threads(1)
    gradients() if sys.argv[1] == "gradients" else learn(*sys.argv[1:])
