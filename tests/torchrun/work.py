"""What test_torchrun.py starts: `work.py serve` has imported all, and forks torchrun, which forks its workers.

They run `work.py FAULT FOLDER ARGUMENTS`, or `work.py` with WHAT, WAY and FOLDER, once or several times.
"""

import gc
import json
import multiprocessing
import os
import resource
import runpy
import signal
import sys
import time
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from unittest import mock

import torch
import torch.distributed.run
from torch import nn
from torch.distributed.fsdp import FSDPModule

from dotformer.command_line.runs import Run
from dotformer.distributed import DistributedTrainer, evaluate_together, replicate, shard_batch
from dotformer.support import processes
from dotformer.support.processes import process_group, rank, world_size
from dotformer.training import Trainer, TrainingConfig, cross_entropy, evaluate, pair_batches
from dotformer.transformer import Transformer, TransformerConfig

CONFIG = TrainingConfig(steps=20, learning_rate=1e-2, warmup_steps=5, validate_every=10, accumulation_steps=2)
FAULTS = ("kill", "hang", "silent", "full", "apart", "run")
LAST = 14  # the step in which a run is stopped or killed: four after its checkpoint
TRAINERS = {
    "alone": Trainer,
    "whole": DistributedTrainer,
    "sharded": partial(DistributedTrainer, sharded=True),
    "bfloat16": partial(DistributedTrainer, sharded=True, dtype=torch.bfloat16),
}


def fresh(seed):
    """A model as it starts; each process takes its rank as seed, so that all start with other parameters."""
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


def learn(what, way, folder):
    """Train to the end ("train"), or stop in step 14 ("stop"), or let the last process be killed there once ("die")."""
    data, taken = pairs(), count()
    judge = evaluate_together if torch.distributed.is_initialized() else evaluate
    validate = partial(judge, batches=list(pair_batches(data[:20])))

    def batches(epoch):
        for batch in pair_batches(data, epoch, max_tokens=20):
            if next(taken) == LAST * CONFIG.accumulation_steps - 1:
                if what == "stop":
                    raise InterruptedError
                if what == "die" and rank() == world_size() - 1:
                    die_once(folder)
            yield batch

    def noted(logits, targets, *options):
        found.append(int((targets > 0).sum()))
        return cross_entropy(logits, targets, *options)

    note(folder / "started", rank())
    trainer, found = TRAINERS[way](fresh(rank()), CONFIG), []
    trainer.criterion = noted
    local = [parameter.to_local() if way == "sharded" else parameter for parameter in trainer.model.parameters()]
    whole = sum(parameter.numel() for parameter in trainer.model.parameters())
    note(folder / "kept", round(100 * sum(parameter.numel() for parameter in local) / whole))
    try:
        trainer.train(batches, validate, folder, progress=False)
    except InterruptedError:
        (folder / "stopped").touch()
    note(folder / "tokens", sum(found))


def note(path, number):
    """Add a number to those that processes have written to a file."""
    with path.open("a") as file:
        file.write(f"{number} ")


def die_once(folder, hang=False):
    """Kill this process, or let it wait for good, unless that was done before."""
    if not (folder / "killed").exists():
        (folder / "killed").touch()
        signal.pause() if hang else os.kill(os.getpid(), signal.SIGKILL)


def gradients(folder):
    """How far the gradients of several processes are from those of one, relative to the largest."""
    generator = torch.Generator().manual_seed(1)
    source, target = (torch.randint(3, 30, (5, 7), generator=generator) for _ in range(2))
    target[0, 5:] = target[2, 2:] = 0
    found, config = {}, TrainingConfig(max_grad_norm=1e9)
    with torch.device("meta" if rank() else "cpu"):
        hollow = fresh(0).double()
    for way, start in (("whole", fresh(rank()).double()), ("sharded", hollow), ("bfloat16", fresh(rank()))):
        one, many = Trainer(fresh(0).double(), config), TRAINERS[way](start, config)
        for trainer in (one, many):
            trainer.train_step([(source, target)], 0.0)
        found[way] = apart(one.model, many.model)
    one, many = fresh(0).double(), replicate(fresh(rank()).double())
    for model, (given, wanted) in (
        (one, (source, target)),
        (many, shard_batch((source, target), rank(), world_size())),
    ):
        loss, tokens = cross_entropy(model(given, wanted[:, :-1]), wanted[:, 1:], label_smoothing=0.1)
        (loss / tokens).backward()
    found["each divides by its own"] = apart(one, many)
    if rank() == 0:
        (folder / "gradients.json").write_text(json.dumps(found))


def apart(one, many):
    whole = [getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in many.parameters()]
    largest = max(p.grad.abs().max() for p in one.parameters())
    return max(float((a.grad - b).abs().max() / largest) for a, b in zip(one.parameters(), whole, strict=True))


def work(tasks):
    """Do all tasks in one group of processes."""
    with process_group():
        for what, way, folder in tasks:
            gradients(Path(folder)) if what == "gradients" else learn(what, way, Path(folder))
            # a wrapped model is in cycles; its destructor must not run when the group is gone (pytorch issue 56297)
            gc.collect()


def command(fault, folder, *arguments):
    """Run a command with a fault after a checkpoint; tell what is left when the group ends.

    Process 1 is killed ("kill") or hangs, once, after both have prepared data for longer than others wait; or process 0
    prepares data and does not answer ("silent"); or no file of process 0 may grow any more ("full"); or process 1 sees
    another folder from the beginning ("apart"); or there is none ("run").
    """
    steps, train_step, destroy = count(1), Trainer.train_step, torch.distributed.destroy_process_group
    patience = timedelta(seconds=4) if fault in ("hang", "silent") else processes.PATIENCE
    begin = Run.begin

    def prepare(*given):
        if fault == "silent" and rank() == 0:
            torch.distributed.all_reduce = lambda _: time.sleep(1000)
            time.sleep(1000)
        if fault == "hang" and not (Path(folder) / "killed").exists():
            time.sleep(1.2 * patience.total_seconds())
        return begin(*given)

    def take(*given, **named):
        sixth = next(steps) == 6
        if sixth and fault in ("kill", "hang") and rank() == 1:
            die_once(Path(folder), fault == "hang")
        if sixth and fault == "full" and rank() == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        return train_step(*given, **named)

    def end(*given):
        wrapped = nn.parallel.DistributedDataParallel, FSDPModule
        left = [module for module in gc.get_objects() if isinstance(module, wrapped)]
        note(Path(folder) / "left", len(left))
        destroy(*given)

    if fault == "apart" and int(os.environ["RANK"]):
        arguments = [*arguments, f"--output={folder}/elsewhere"]
    sys.argv = ["dotformer", *arguments]
    patch = mock.patch.object
    with (
        patch(processes, "PATIENCE", patience),
        patch(Run, "begin", prepare),
        patch(Trainer, "train_step", take),
        patch(torch.distributed, "destroy_process_group", end),
    ):
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
        command(what, *rest) if what in FAULTS else work(zip(*[iter(sys.argv[1:])] * 3, strict=True))
