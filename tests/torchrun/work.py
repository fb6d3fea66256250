"""What test_torchrun.py starts: `work.py serve` has imported all, and forks torchrun, which forks its workers.

They run `work.py command FOLDER ARGUMENTS`, or `work.py` with WHAT, WAY and FOLDER, once or several times.
"""

import gc
import json
import multiprocessing
import os
import runpy
import signal
import sys
from functools import partial
from itertools import count
from pathlib import Path
from unittest import mock

import torch
import torch.distributed.run
from torch import nn
from torch.distributed.fsdp import FSDPModule

import dotformer.command_line.commands
from dotformer.distributed import joined, my_share, replicate, shard
from dotformer.training import TrainingConfig, cross_entropy, evaluate, pair_batches, take_step, train
from dotformer.transformer import Transformer, TransformerConfig

CONFIG = TrainingConfig(steps=20, rate=1e-2, warmup=5, every=10, accumulate=2)
LAST = 14  # the step in which a run is stopped or killed: four after its checkpoint


def fresh(seed):
    """A model as it starts; each process takes its number as seed, so that all start with other parameters."""
    torch.manual_seed(seed)
    return Transformer(
        TransformerConfig(
            30, 30, 1, 1, d_model=16, num_heads=2, d_ff=32, dropout=0.0, max_length=16, share_embeddings=True
        )
    )


def pairs():
    """Sentences to turn around, among them batches of one."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 9, (61,), generator=generator).tolist()
    sources = [torch.randint(3, 30, (length,), generator=generator).tolist() for length in lengths]
    return [(source, [1, *source[::-1], 2]) for source in sources]


def learn(team, what, way, folder):
    """Train to the end ("train"), or stop in step 14 ("stop"), or let process 1 be killed there once ("die")."""
    data, taken = pairs(), count()
    batches = partial(pair_batches, data, max_tokens=20)
    validate = partial(evaluate, batches=list(pair_batches(data[:20])))

    def until_the_last(epoch):
        for batch in batches(epoch):
            if next(taken) == LAST * CONFIG.accumulate - 1:
                if what == "stop":
                    raise InterruptedError
                if what == "die" and team.number == 1:
                    die_once(folder)
            yield batch

    def noted(epoch):
        for source, target in team.share(until_the_last)(epoch):
            tokens.append(int((target[:, 1:] > 0).sum()))
            yield source, target

    note(folder / "started", team.number)
    model, tokens = team.wrap(fresh(team.number), way == "parts"), []
    try:
        train(model, noted, CONFIG, validate, folder, progress=False, team=team)
    except InterruptedError:
        (folder / "stopped").touch()
    note(folder / "tokens", sum(tokens))


def note(path, number):
    """Add a number to those that processes have written to a file."""
    with path.open("a") as file:
        file.write(f"{number} ")


def die_once(folder):
    """Kill this process, unless one was killed before."""
    if not (folder / "killed").exists():
        (folder / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def gradients(team, folder):
    """How far the gradients of several processes are from those of one, relative to the largest."""
    generator = torch.Generator().manual_seed(1)
    source, target = (torch.randint(3, 30, (5, 7), generator=generator) for _ in range(2))
    target[0, 5:] = target[2, 2:] = 0
    found, config, share = {}, TrainingConfig(clip=1e9), my_share((source, target), team.number, team.size)
    for way, wrap in (("whole", replicate), ("parts", shard)):
        one, many = fresh(0).double(), wrap(fresh(team.number).double())
        optimizers = [torch.optim.SGD(model.parameters()) for model in (one, many)]
        take_step(one, optimizers[0], [(source, target)], 0.0, config)
        take_step(many, optimizers[1], [share], 0.0, config, total=team.total, processes=team.size)
        found[way] = apart(one, many)
    one, many = fresh(0).double(), replicate(fresh(team.number).double())
    for model, (given, wanted) in ((one, (source, target)), (many, share)):
        loss, tokens = cross_entropy(model(given, wanted[:, :-1]), wanted[:, 1:], smoothing=0.1)
        (loss / tokens).backward()
    found["each divides by its own"] = apart(one, many)
    if not team.number:
        (folder / "gradients.json").write_text(json.dumps(found))


def apart(one, many):
    whole = [getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in many.parameters()]
    largest = max(p.grad.abs().max() for p in one.parameters())
    return max(float((a.grad - b).abs().max() / largest) for a, b in zip(one.parameters(), whole, strict=True))


def work(tasks):
    """Do all tasks in one group of processes."""
    with joined() as team:
        for what, way, folder in tasks:
            gradients(team, Path(folder)) if what == "gradients" else learn(team, what, way, Path(folder))
            # a wrapped model is in cycles; its destructor must not run when the group is gone (pytorch issue 56297)
            gc.collect()


def command(folder, *arguments):
    """Run a command, in which process 1 is killed once, after a checkpoint; tell what is left when the group ends."""
    steps, take_step, destroy = count(1), dotformer.training.take_step, torch.distributed.destroy_process_group

    def take(*given, **named):
        if next(steps) == 6 and torch.distributed.get_rank() == 1:
            die_once(Path(folder))
        return take_step(*given, **named)

    def end(*given):
        wrapped = nn.parallel.DistributedDataParallel, FSDPModule
        left = [module for module in gc.get_objects() if isinstance(module, wrapped)]
        note(Path(folder) / "left", len(left))
        destroy(*given)

    sys.argv = ["dotformer", *arguments]
    patch = mock.patch.object
    with patch(dotformer.training, "take_step", take), patch(torch.distributed, "destroy_process_group", end):
        try:
            runpy.run_module("dotformer", run_name="__main__")
        except SystemExit as error:  # torchrun waits for a fork's script to return
            if error.code:
                raise


def launch(machines, arguments, settings, output):
    """Torchrun, as so many machines would start it, all here, in a session of its own; ends this process."""
    os.setsid()
    os.environ |= settings
    for stream in (1, 2):
        os.dup2(os.open(f"{output}.{stream}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
    fork = multiprocessing.get_context("fork")
    agents = [fork.Process(target=torch.distributed.run.main, args=(arguments,)) for _ in range(machines)]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join()
    os._exit(any(agent.exitcode for agent in agents))


def serve():
    """For each line of standard input a launch, in a fork of this process: its number, and when it ends its code."""
    import torch._dynamo  # noqa: F401, which the workers would import one by one

    for line in sys.stdin:
        number = os.fork()
        if not number:
            launch(*json.loads(line))
        print(number, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, *rest = sys.argv[1:]
    if what == "serve":
        serve()
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork has torchrun's handler, which waits for Python's turn
        command(*rest) if what == "command" else work(zip(*[iter(sys.argv[1:])] * 3, strict=True))
