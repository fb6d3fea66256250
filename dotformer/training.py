"""Tangled from chapters/11_training.py.

Never edited by hand: edit the chapter, then `make tangle`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn, optim
from torch.nn import functional as F

from dotformer.support.checkpoints import RunFolder, keep_random_state
from dotformer.support.modes import evaluating
from dotformer.support.progress import (
    Batch,
    Meter,
    Row,
    steps_after,
    stream,
    validation_row,
)
from dotformer.support.settings import check_settings
from dotformer.support.shapes import shapes
from dotformer.tokens import pad_batch, token_batches


@shapes
def cross_entropy(
    logits: Float[Tensor, "*batch T V"],
    targets: Int[Tensor, "*batch T"],
    pad_id: int = 0,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The loss summed over the real targets, in nats, and how many these are.

    Targets equal to `pad_id` do not count. With `label_smoothing`, that share of
    the target's probability is spread evenly over the whole vocabulary.

    Defined in chapter 11, "The loss".
    """
    loss = F.cross_entropy(
        logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float)),
        targets.flatten(),
        ignore_index=pad_id,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
    return loss, (targets != pad_id).sum()


def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    pad_id: int = 0,
    total: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Row:
    """How well a model predicts targets, given the true ones before each.

    "loss" is in nats per token, unsmoothed; "accuracy" the share of positions
    where the right token scores highest, "exact" the share of sentences in which it
    always does. Several processes may share the batches, if `total` adds up their
    sums. Raises ValueError when there is no batch.

    Defined in chapter 11, "How good is it?".
    """
    loss, tokens, right, exact, sentences = 0.0, 0, 0, 0, 0
    with evaluating(model) as device:
        for source, target in batches:
            logits = model(source.to(device), target[:, :-1].to(device))
            target = target[:, 1:].to(device)
            summed, count = cross_entropy(logits, target, pad_id)
            hits, real = logits.argmax(dim=-1) == target, target != pad_id
            loss, tokens = loss + float(summed), tokens + int(count)
            right += int((hits & real).sum())
            there = real.any(dim=1)
            exact += int(((hits | ~real).all(dim=1) & there).sum())
            sentences += int(there.sum())
    sums = torch.tensor(
        [loss, tokens, right, exact, sentences], dtype=torch.float64
    )
    loss, tokens, right, exact, sentences = total(sums).tolist()
    if not tokens:
        raise ValueError("nothing to evaluate: there is no batch")
    shares = {"accuracy": right / tokens, "exact": exact / sentences}
    return {"loss": loss / tokens} | shares


def pair_batches(
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    epoch: int = 0,
    max_tokens: int = 4096,
    pad_id: int = 0,
    seed: int = 0,
    alike: bool = False,
) -> Iterator[Batch]:
    """Batches of pairs of token lists, each pair in one of them.

    No batch has more than `max_tokens` on a side, padding included; `seed` and
    `epoch` fix the order. If `alike`, pairs of one length are sorted by the other
    side, too: less padding, more shapes. ValueError: a side is empty or too long.

    Defined in chapter 11, "A loop that learns".
    """
    empty = [n for n, pair in enumerate(pairs) if not all(map(len, pair))]
    if empty:
        raise ValueError(f"a side is empty in pairs {empty[:5]} of {len(pairs)}")
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    lengths = [max(len(source), len(target)) for source, target in pairs]
    others = (
        [len(source) - len(target) for source, target in pairs] if alike else None
    )
    for rows in token_batches(lengths, max_tokens, generator, others):
        source, target = zip(*(pairs[n] for n in rows), strict=True)
        yield pad_batch(source, pad_id), pad_batch(target, pad_id)


def inverse_sqrt_rate(step: int, peak: float, warmup: int) -> float:
    """Up in a line to `peak` at step `warmup`, then down as 1 / sqrt(step).

    Steps count from 1; ValueError for a step or a warm-up below 1.

    Defined in chapter 11, "Warm-up and schedule".
    """
    if min(step, warmup) < 1:
        raise ValueError(f"step and warmup count from 1, not {step} and {warmup}")
    return peak * min(step / warmup, (warmup / step) ** 0.5)


def noam_rate(step: int, d_model: int, warmup: int) -> float:
    """The paper's schedule (Vaswani and others 2017, equation 3), by Noam Shazeer.

    Defined in chapter 11, "Warm-up and schedule".
    """
    return inverse_sqrt_rate(step, (d_model * warmup) ** -0.5, warmup)


def linear_rate(step: int, peak: float, warmup: int, steps: int) -> float:
    """Up in a line to `peak` at step `warmup`, then down in a line.

    It is 0 after `steps`. ValueError unless step >= 1 and 1 <= warmup <= steps.

    Defined in chapter 11, "Warm-up and schedule".
    """
    if step < 1 or not 1 <= warmup <= steps:
        wanted = "step must be at least 1 and warmup between 1 and steps"
        raise ValueError(f"{wanted}, not {step}, {warmup} and {steps}")
    left = (steps + 1 - step) / (steps + 1 - warmup)
    return peak * max(0.0, min(step / warmup, left))


@dataclass(frozen=True)
class TrainingConfig:
    """All that fixes a run, beside the model and the data.

    The schedule has its peak, `learning_rate`, at step `warmup_steps`. The model is
    validated, logged and saved each `validate_every` steps. TypeError for a value
    of another type, and ValueError for a number that cannot work.

    Defined in chapter 11, "The trainer".
    """

    steps: int = 2000
    learning_rate: float = 1e-3
    warmup_steps: int = 200
    schedule: Literal["linear", "inverse_sqrt"] = "linear"
    label_smoothing: float = 0.1
    max_grad_norm: float = 1.0
    accumulation_steps: int = 1
    validate_every: int = 200
    seed: int = 0
    pad_id: int = 0

    def __post_init__(self) -> None:
        check_settings(self, zero=("seed", "pad_id"), shares=("label_smoothing",))
        self.learning_rate_at(1)

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, the first of which is 1."""
        peak, warmup = self.learning_rate, self.warmup_steps
        if self.schedule == "linear":
            return linear_rate(step, peak, warmup, self.steps)
        return inverse_sqrt_rate(step, peak, warmup)


class Trainer:
    """Trains a model in place. Its optimizer, the function that computes the loss,
    and the context of each forward pass are attributes, which may be replaced.

    Defined in chapter 11, "The trainer".
    """

    def __init__(
        self, model: nn.Module, config: TrainingConfig, device: str = "cpu"
    ) -> None:
        self.model, self.config, self.device = model.to(device), config, device
        self.criterion, self.precision = cross_entropy, nullcontext
        self.optimizer = optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)

    def count_targets(self, batches: list[Batch]) -> int:
        """How many real targets there are in the batches of a step."""
        pad = self.config.pad_id
        return int(sum((target[:, 1:] != pad).sum() for _, target in batches))

    def accumulate_gradients(self, batches: list[Batch], tokens: float) -> Tensor:
        """Add up the gradients of each batch's loss / `tokens`; the summed loss."""
        pad, smoothing = self.config.pad_id, self.config.label_smoothing
        summed = torch.zeros(())
        for source, target in batches:
            with self.precision():
                logits = self.model(source, target[:, :-1])
            loss, _ = self.criterion(logits, target[:, 1:], pad, smoothing)
            (loss / tokens).backward()
            summed = summed + loss.detach()
        return summed

    def update(self, norm: Tensor) -> None:
        """Let the optimizer move the parameters; `norm` is that of the gradient."""
        if not torch.isfinite(norm):
            raise FloatingPointError(f"the norm of the gradient is {float(norm)}")
        self.optimizer.step()

    def train_step(
        self, batches: list[Batch], learning_rate: float
    ) -> tuple[Tensor, int]:
        """One step on several batches, as if they were one; summed loss, targets.

        ValueError when no target is real, FloatingPointError when the gradient is
        not finite; no parameter has changed then.
        """
        tokens = self.count_targets(batches)
        if not tokens:
            raise ValueError("no target of these batches is real")
        batches = [
            tuple(side.to(self.device, non_blocking=True) for side in one)
            for one in batches
        ]
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        return self.device_step(batches, tokens), tokens

    def device_step(self, batches: list[Batch], tokens: float) -> Tensor:
        """A step on batches that are on the device; the summed loss."""
        self.optimizer.zero_grad()
        loss = self.accumulate_gradients(batches, tokens)
        limit = self.config.max_grad_norm
        self.update(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        return loss

    def figures(self, row: Row) -> Row:
        """What else a row of the history should say."""
        return {}

    def train(
        self,
        batches: Callable[[int], Iterable[Batch]],
        validate: Callable[[nn.Module], Row],
        folder: str | Path | None = None,
        progress: bool = True,
    ) -> list[Row]:
        """Train to the last step; the history, a row for each validation.

        `batches(epoch)` gives the same batches whenever it is asked, and leaves
        PyTorch's global random numbers alone; `validate(model)` gives figures,
        "loss" among them. A run that `folder` holds goes on where it was.
        """
        config, optimizer, model = self.config, self.optimizer, self.model.train()
        with keep_random_state(), RunFolder(folder) as run:
            torch.manual_seed(config.seed)
            position, history = run.load(model, optimizer, config)
            steps, meter = steps_after(history, config.steps, progress), Meter()
            with closing(
                stream(batches, position, config.accumulation_steps)
            ) as data:
                for step, (position, group) in zip(steps, data, strict=False):
                    learning_rate = config.learning_rate_at(step)
                    meter.add(*self.train_step(group, learning_rate))
                    if step % config.validate_every == 0 or step == config.steps:
                        row = meter.row(step, position, learning_rate)
                        row |= self.figures(row) | validation_row(validate(model))
                        history.append(row)
                        run.save(model, optimizer, config, position, history)
                        meter = Meter()
                        model.train()
        return history
