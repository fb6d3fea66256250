"""Tangled from chapters/11_training.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

import csv
import io
import math
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from dotformer.support.files import replacing
from dotformer.tokens import pad_batch, token_batches


def cross_entropy(
    logits: Tensor, targets: Tensor, pad_id: int = 0, smoothing: float = 0.0
) -> tuple[Tensor, int]:
    """The loss summed over the real targets, in nats, and how many these are.

    `logits` (B, T, V) score what stands in `targets` (B, T); targets equal to
    `pad_id` do not count. With `smoothing`, that share of the probability is asked
    for evenly from the whole vocabulary. Raises ValueError when shapes do not fit.

    Defined in chapter 11, "What should be small?".
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} need targets"
            f" {tuple(logits.shape[:-1])}, not {tuple(targets.shape)}"
        )
    loss = F.cross_entropy(
        logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float)),
        targets.flatten(),
        ignore_index=pad_id,
        reduction="sum",
        label_smoothing=smoothing,
    )
    return loss, int((targets != pad_id).sum())


def inverse_sqrt_rate(step: int, peak: float, warmup: int) -> float:
    """Up in a line to `peak` at step `warmup`, then down as 1 / sqrt(step).

    Steps count from 1. Raises ValueError for a step or a warm-up below 1.

    Defined in chapter 11, "How large a step?".
    """
    if min(step, warmup) < 1:
        raise ValueError(f"step and warmup count from 1, not {step} and {warmup}")
    return peak * min(step / warmup, (warmup / step) ** 0.5)


def noam_rate(step: int, d_model: int, warmup: int) -> float:
    """The paper's schedule, whose peak follows from width and warm-up.

    Steps count from 1. After Vaswani and others (2017), equation 3; named after
    its author Noam Shazeer.

    Defined in chapter 11, "How large a step?".
    """
    return inverse_sqrt_rate(step, (d_model * warmup) ** -0.5, warmup)


def linear_rate(step: int, peak: float, warmup: int, steps: int) -> float:
    """Up in a line to `peak` at step `warmup`, then down in a line.

    It reaches 0 one step after the last, `steps`, and stays there. Raises
    ValueError for a step below 1 or a warm-up that is not between 1 and `steps`.

    Defined in chapter 11, "How large a step?".
    """
    if step < 1 or not 1 <= warmup <= steps:
        raise ValueError(
            "step must be at least 1 and warmup between 1 and steps, not"
            f" {step}, {warmup} and {steps}"
        )
    left = (steps + 1 - step) / (steps + 1 - warmup)
    return peak * max(0.0, min(step / warmup, left))


@dataclass(frozen=True)
class TrainingConfig:
    """All that fixes a run, beside the model and the data.

    `schedule` is "linear" or "inverse_sqrt", `rate` its peak, reached at step
    `warmup`. Gradients of `accumulate` batches make a step; they are clipped to the
    norm `clip`. After each `every` steps the model is validated, logged and saved.
    Raises TypeError for a value of another kind, and ValueError for a number that
    cannot work.

    Defined in chapter 11, "Break it: the mean of means".
    """

    steps: int = 2000
    rate: float = 1e-3
    warmup: int = 200
    schedule: str = "linear"
    smoothing: float = 0.1
    clip: float = 1.0
    accumulate: int = 1
    every: int = 200
    seed: int = 0
    pad_id: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            given, kind = getattr(self, field.name), type(field.default)
            if isinstance(given, str) != (kind is str) or (
                kind is int and given % 1
            ):
                raise TypeError(
                    f"{field.name} must be of type {kind.__name__}, not {given!r}"
                )
            object.__setattr__(self, field.name, kind(given))  # no NumPy number
        for name in ("steps", "warmup", "accumulate", "every", "rate", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"{name} must be positive, not {getattr(self, name)}"
                )
        if not 0 <= self.smoothing < 1:
            raise ValueError(
                f"smoothing must be at least 0 and below 1, not {self.smoothing}"
            )
        self.rate_at(1)

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, the first of which is 1."""
        if self.schedule == "linear":
            return linear_rate(step, self.rate, self.warmup, self.steps)
        if self.schedule == "inverse_sqrt":
            return inverse_sqrt_rate(step, self.rate, self.warmup)
        raise ValueError(
            f"schedule must be linear or inverse_sqrt, not {self.schedule!r}"
        )


def alone(number: Tensor) -> Tensor:
    """The sum of a number over all processes that train, where there is but one.

    Defined in chapter 11, "Break it: the mean of means".
    """
    return number


def take_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[tuple[Tensor, Tensor]],
    rate: float,
    config: TrainingConfig,
    precision: Callable[[], AbstractContextManager] = nullcontext,
    criterion: Callable[..., tuple[Tensor, int]] = cross_entropy,
    total: Callable[[Tensor], Tensor] = alone,
    processes: int = 1,
) -> tuple[float, int]:
    """One step on the gradient of several batches, as if they were one.

    The model runs inside `precision()`; `criterion` is `cross_entropy`, or another
    program that computes it. With several `processes` (chapter 21) `total` adds up
    a number over all, and the model averages their gradients. Returns the summed
    loss and the number of real targets, of all processes. Raises ValueError when
    there is none, and FloatingPointError when the gradient is not finite; nothing
    has changed then.

    Defined in chapter 11, "Break it: the mean of means".
    """
    summed, pad = torch.zeros(()), config.pad_id
    own = sum((target[:, 1:] != pad).sum() for _, target in batches)
    tokens = int(total(torch.as_tensor(own)))
    if not tokens:
        raise ValueError("no target of these batches is real")
    optimizer.zero_grad()
    for source, target in batches:
        with precision():
            logits = model(source, target[:, :-1])
        loss, _ = criterion(logits, target[:, 1:], pad, config.smoothing)
        (loss * processes / tokens).backward()
        summed = summed.to(loss.device) + loss.detach()
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip)
    if not torch.isfinite(norm):
        raise FloatingPointError(f"the norm of the gradient is {float(norm)}")
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return float(total(summed)), tokens


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    pad_id: int = 0,
) -> dict[str, float]:
    """How well a model predicts targets, given the true ones before each.

    "loss" is in nats a token, without smoothing; "accuracy" the share of places
    where the right token scores highest, "exact" the share of sentences in which it
    always does. Those are the ones that greedy generation gets right, if padding
    and begin never score highest.

    Defined in chapter 11, "How good is it?".
    """
    training, device = model.training, next(model.parameters()).device
    model.eval()
    loss, tokens, right, exact, sentences = 0.0, 0, 0, 0, 0
    try:
        for source, target in batches:
            source, target = source.to(device), target.to(device)
            logits = model(source, target[:, :-1])
            summed, count = cross_entropy(logits, target[:, 1:], pad_id)
            ignored = target[:, 1:] == pad_id
            hits = logits.argmax(dim=-1) == target[:, 1:]
            loss, tokens = loss + float(summed), tokens + count
            right += int((hits & ~ignored).sum())
            exact += int((hits | ignored).all(dim=1).sum())
            sentences += len(target)
    finally:
        model.train(training)
    if not tokens:
        raise ValueError("nothing to evaluate: there is no batch")
    return {
        "loss": loss / tokens,
        "accuracy": right / tokens,
        "exact": exact / sentences,
    }


def pair_batches(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    epoch: int = 0,
    max_tokens: int = 4096,
    pad_id: int = 0,
    seed: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of source (B, S) and target (B, T) tokens, each pair in one of them.

    No batch has more than `max_tokens` places on a side. `seed` and `epoch` fix the
    order. Raises ValueError when a side is empty or too long.

    Defined in chapter 11, "The loop".
    """
    empty = [n for n, pair in enumerate(pairs) if not all(map(len, pair))]
    if empty:
        raise ValueError(f"a side is empty in pairs {empty[:5]} of {len(pairs)}")
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    lengths = [max(len(source), len(target)) for source, target in pairs]
    for rows in token_batches(lengths, max_tokens, generator):
        source, target = zip(*(pairs[n] for n in rows), strict=True)
        yield pad_batch(source, pad_id), pad_batch(target, pad_id)


def shape_of(model: nn.Module) -> dict | None:
    """A model's configuration as a dictionary, if it has one.

    Defined in chapter 11, "The loop".
    """
    return asdict(model.config) if hasattr(model, "config") else None


def save_checkpoint(
    path: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: TrainingConfig,
    place: tuple[int, int] = (0, 0),
    history: Sequence[dict[str, float]] = (),
) -> None:
    """Write all that a run needs to go on as if it had never stopped.

    That is parameters, the optimiser's memory, the random state, the `place` in the
    data (epoch, batches taken), and the history. All of it is written, or nothing.

    Defined in chapter 11, "The loop".
    """
    content = {
        "format": "dotformer checkpoint 1",
        "config": asdict(config),
        "shape": shape_of(model),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": [torch.get_rng_state(), *torch.cuda.get_rng_state_all()],
        "place": place,
        "history": list(history),
    }
    buffer = io.BytesIO()  # into a file, torch.save hides what the disk says
    torch.save(content, buffer)
    with replacing(path) as draft:
        draft.write_bytes(buffer.getbuffer())


def load_checkpoint(
    path: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    config: TrainingConfig,
) -> tuple[tuple[int, int], list[dict[str, float]]]:
    """Put a run back to where `save_checkpoint` left it; place and history.

    Nothing in the file is executed. Raises ValueError, and changes nothing, when it
    is damaged, no checkpoint, of another model, or of another configuration.

    Defined in chapter 11, "The loop".
    """
    data = io.BytesIO(Path(path).read_bytes())
    try:
        with zipfile.ZipFile(data) as file:
            damaged = file.testzip()  # torch.load does not check the sums
            if damaged or any(record.external_attr for record in file.infolist()):
                raise ValueError(f"{damaged or 'its table of contents'} is damaged")
        data.seek(0)
        content = torch.load(data, map_location="cpu", weights_only=True)
        if content["format"] != "dotformer checkpoint 1":
            raise ValueError(f"its format is {content['format']!r}")
        cpu, *others = content["random"]
        torch.Generator().set_state(cpu)
    except Exception as error:  # there is no end of what damage can raise
        raise ValueError(f"{path} is not a whole checkpoint: {error}") from error
    for name, value in asdict(config).items():
        if content["config"].get(name) != value:
            raise ValueError(
                f"{path} was made with {name} = {content['config'].get(name)!r},"
                f" not {value!r}"
            )
    own, found = (
        {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
        for state in (model.state_dict(), content["model"])
    )
    if own != found or content["shape"] != shape_of(model):
        raise ValueError(f"{path} holds the parameters of another model")
    own, found = (
        [(group.keys(), group["params"]) for group in state["param_groups"]]
        for state in (optimizer.state_dict(), content["optimizer"])
    )
    if own != found:
        raise ValueError(f"{path} holds the memory of another optimiser")
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    torch.set_rng_state(cpu)
    torch.cuda.set_rng_state_all(others[: torch.cuda.device_count()])
    return tuple(content["place"]), content["history"]


def keep_random_state() -> AbstractContextManager:
    """Put PyTorch's random numbers back when the block ends, on every device.

    Defined in chapter 11, "The loop".
    """
    # by their numbers: without, PyTorch warns where there are several
    return torch.random.fork_rng(range(torch.accelerator.device_count()))


def save_parameters(path: str | Path, model: nn.Module) -> None:
    """Write a model's parameters, and nothing that could run; all or nothing.

    A parameter with several names is written once, under the first of them.

    Defined in chapter 11, "The loop".
    """
    state = model.state_dict(keep_vars=True)
    names = {id(tensor): name for name, tensor in reversed(state.items())}
    parameters = {
        # on a GPU, those of a recurrent layer are slices of one array
        name: state[name].detach().clone(memory_format=torch.contiguous_format)
        for name in names.values()
    }
    with replacing(path) as draft:
        try:
            save_file(parameters, draft)
        except SafetensorError as error:
            raise OSError(f"{path}: {error}") from error


def write_logs(
    folder: Path,
    model: nn.Module,
    history: list[dict[str, float]],
    board: SummaryWriter,
) -> None:
    """Write what a run has found so far: the best model, and the history twice.

    Defined in chapter 11, "The loop".
    """
    row = history[-1]
    losses = [r["validation_loss"] for r in history]
    if row["validation_loss"] <= min(n for n in [*losses, math.inf] if n == n):
        save_parameters(folder / "model.safetensors", model)
    with (
        replacing(folder / "log.csv") as draft,
        draft.open("w", newline="") as file,
    ):
        names = dict.fromkeys(name for row in history for name in row)
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows(history)
    for name, value in row.items():
        board.add_scalar(name, value, int(row["step"]))
    board.flush()


class Team:
    """Who trains: a process alone. Chapter 21 has teams of several processes.

    `number` is that of this process, from 0, of `size`. `save` leaves in a folder
    what `load` goes on from. A process alone needs none of the rest: it waits for
    nobody, has the whole of each batch, and trains the model as it is.

    Defined in chapter 11, "The loop".
    """

    number, size = 0, 1

    def seed(self, config: TrainingConfig, step: int) -> None:
        """Begin the random numbers that follow a step; 0 before the first."""
        torch.manual_seed(config.seed)

    def wait(self) -> None:
        """Wait until all of the team are here."""

    def total(self, number: Tensor) -> Tensor:
        """The sum of a number over the team."""
        return alone(number)

    def share(
        self, batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]]
    ) -> Callable[[int], Iterable[tuple[Tensor, Tensor]]]:
        """This process's share of the batches of an epoch."""
        return batches

    def wrap(self, model: nn.Module, sharded: bool = False) -> nn.Module:
        """The model as the team trains it. ValueError: one process has no parts."""
        if sharded:
            raise ValueError("one process has no parts of a model: use torchrun")
        return model

    def checkpoint(self, folder: Path) -> Path | None:
        """Where a run was saved. ValueError: several processes have begun it."""
        if any(
            (folder / name).exists() for name in ("checkpoint", "checkpoint.old")
        ):
            raise ValueError(
                f"{folder} was begun by several processes: go on with torchrun (one"
                " process is enough), or choose another folder"
            )
        path = folder / "checkpoint.pt"
        return path if path.exists() else None

    def reached(
        self, folder: Path, model: nn.Module, config: TrainingConfig
    ) -> int:
        """How many steps the run in a folder has made; see `load_checkpoint`."""
        path = self.checkpoint(folder)
        if path is None:
            return 0
        optimizer = torch.optim.Adam(model.parameters())
        with keep_random_state():
            _, history = load_checkpoint(path, model, optimizer, config)
        return int(history[-1]["step"])

    def load(
        self,
        folder: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: TrainingConfig,
    ) -> tuple[tuple[int, int], list[dict[str, float]]]:
        """Put a run back to where it was saved last, or to its start.

        Place and history, as of `load_checkpoint`.
        """
        path = self.checkpoint(folder)
        if path is None:
            return (0, 0), []
        return load_checkpoint(path, model, optimizer, config)

    def save(
        self,
        folder: Path,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: TrainingConfig,
        place: tuple[int, int],
        history: list[dict[str, float]],
        board: SummaryWriter | None,
    ) -> None:
        """Write what a run leaves in its folder: logs, then the checkpoint."""
        write_logs(folder, model, history, board)
        path = folder / "checkpoint.pt"
        save_checkpoint(path, model, optimizer, config, place, history)


def stream(
    batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]],
    place: tuple[int, int],
) -> Iterator[tuple[tuple[int, int], tuple[Tensor, Tensor]]]:
    """Epoch after epoch of batches from a place on, each with the place after it.

    Raises ValueError when an epoch is empty, or too short for the place.

    Defined in chapter 11, "The loop".
    """
    epoch, taken = place
    while True:
        n = 0
        for n, batch in enumerate(batches(epoch), 1):
            if n > taken:
                yield (epoch, n), batch
        if not n or taken > n:
            raise ValueError(
                f"epoch {epoch} has {n} batches, of which {taken} have been taken"
            )
        epoch, taken = epoch + 1, 0


def train(
    model: nn.Module,
    batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]],
    config: TrainingConfig,
    validate: Callable[[nn.Module], dict[str, float]],
    folder: str | Path | None = None,
    device: torch.device | str = "cpu",
    precision: Callable[[], AbstractContextManager] = nullcontext,
    progress: bool = True,
    team: Team | None = None,
) -> list[dict[str, float]]:
    """Train a model in place. Returns the history, a row for each validation.

    `batches(epoch)` gives the batches of an epoch, the same ones whenever it is
    asked, without drawing PyTorch's global random numbers; `validate(model)` gives
    figures, "loss" among them. What it keeps in `folder`: `checkpoint.pt`, from
    which the next call goes on, whatever the model's parameters are, on the same
    CPU bit for bit as if it had never stopped; `model.safetensors`, as the model
    was when the validation loss was lowest; `log.csv`, and the same for
    TensorBoard. The model is left in training mode, the caller's random state as it
    was. A folder serves one run at a time. A `team` of several processes (chapter
    16) trains what it has wrapped on its shares of the batches.

    Defined in chapter 11, "The loop".
    """
    model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    place, history, team = (0, 0), [], team or Team()
    with keep_random_state(), ExitStack() as stack:
        team.seed(config, 0)
        folder = None if folder is None else Path(folder)
        if folder:
            place, history = team.load(folder, model, optimizer, config)
        done = int(history[-1]["step"]) if history else 0
        data = stream(batches, place)
        board = None
        if folder and team.number == 0:
            board = stack.enter_context(
                SummaryWriter(folder / "tensorboard", purge_step=done + 1)
            )
        steps = tqdm(
            range(done + 1, config.steps + 1),
            initial=done,
            total=config.steps,
            disable=not progress or team.number > 0,
        )
        summed, tokens, start = 0.0, 0, time.perf_counter()
        for step in steps:
            group = []
            for _ in range(config.accumulate):
                place, (source, target) = next(data)
                group.append((source.to(device), target.to(device)))
            rate = config.rate_at(step)
            loss, count = take_step(
                model,
                optimizer,
                group,
                rate,
                config,
                precision,
                total=team.total,
                processes=team.size,
            )
            summed, tokens = summed + loss, tokens + count
            if step % config.every and step < config.steps:
                continue
            speed = tokens / (time.perf_counter() - start)
            row = {"step": step, "epoch": place[0], "rate": rate}
            row |= {"loss": summed / tokens, "tokens_per_second": speed}
            row |= {f"validation_{k}": float(v) for k, v in validate(model).items()}
            history.append(row)
            model.train()
            steps.set_postfix_str(f"validation loss {row['validation_loss']:.3f}")
            if folder:
                team.save(folder, model, optimizer, config, place, history, board)
            summed, tokens, start = 0.0, 0, time.perf_counter()
    return history
