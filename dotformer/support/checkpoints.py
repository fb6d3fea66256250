"""What a run of training keeps in its folder: one format, whether one process has written it or several."""

import csv
import hashlib
import json
import math
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from dotformer.support.files import replacing
from dotformer.support.processes import fresh_random_numbers, rank, same_everywhere
from dotformer.support.progress import Position, Row

FORMAT = "dotformer checkpoint 2"
EARLIER = ("checkpoint.pt", "checkpoint", "checkpoint.old")  # what earlier versions have left in a folder
History = list[Row]


def keep_random_state() -> AbstractContextManager:
    """Put PyTorch's random numbers back when the block ends, on every device."""
    # by their numbers: without, PyTorch warns where there are several
    return torch.random.fork_rng(range(torch.accelerator.device_count()))


# tensors of a model and its optimiser, by name


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, where DDP has wrapped it."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and buffers. One that has several names is there once, under the first."""
    state = unwrapped(model).state_dict(keep_vars=True)
    names = {id(tensor): name for name, tensor in reversed(state.items())}
    return {name: state[name] for name in names.values()}


def gather(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Copies of all tensors of a model and of its optimiser's state, whole and on the CPU.

    They are called "model.NAME" and "optimizer.NAME.exp_avg" and so on. Of a model whose parameters are sharded all
    ranks must ask; rank 0 gets the tensors, the others none.
    """
    found = {}
    for name, parameter in named_tensors(model).items():
        state = optimizer.state.get(parameter, {})
        tensors = {f"model.{name}": parameter} | {f"optimizer.{name}.{kind}": value for kind, value in state.items()}
        for key, tensor in tensors.items():
            whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            if rank() == 0:
                # on a GPU, the parameters of a recurrent layer are slices of one array
                found[key] = whole.detach().cpu().clone(memory_format=torch.contiguous_format)
    return found


def like(whole: Tensor, own: Tensor) -> Tensor:
    """A whole tensor, kept as another one is: on its device, and sharded if that is."""
    if not hasattr(own, "device_mesh"):
        return whole.to(own.device)
    from torch.distributed.tensor import distribute_tensor

    # every rank has read the whole, so nothing need be sent
    return distribute_tensor(whole.to(own.device), own.device_mesh, own.placements, src_data_rank=None)


def shape_of(model: nn.Module) -> dict[str, Any] | None:
    """A model's configuration as a dictionary, if it has one."""
    config = getattr(unwrapped(model), "config", None)
    return None if config is None else asdict(config)


def optimized(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """An optimiser's kind, and the names of the parameters in each of its groups."""
    names = {id(parameter): name for name, parameter in named_tensors(model).items()}
    groups = [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    return [type(optimizer).__name__, groups]


# checkpoints


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped.

    `tensors` are those of `gather`, and "random.0", the state of the CPU's random numbers, with "random.1" and so on
    for CUDA devices. `position` is where the run is in the data (epoch, batches taken), `config` the training
    configuration, `shape` the model's; `optimized` says what the optimiser is.
    """

    tensors: dict[str, Tensor]
    config: dict[str, Any]
    shape: dict[str, Any] | None
    optimized: list[Any]
    position: Position
    history: History

    @property
    def step(self) -> int:
        """How many steps the run has made."""
        return int(self.history[-1]["step"]) if self.history else 0

    def write(self, path: Path) -> None:
        """Write it to a safetensors file: tensors, and in the metadata a JSON text and a checksum of everything."""
        run = {name: value for name, value in vars(self).items() if name != "tensors"}
        text = json.dumps(run)
        save_tensors(path, self.tensors, {"format": FORMAT, "run": text, "sha256": checksum(self.tensors, text)})

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """What `write` has written; nothing in it is executed. ValueError when a single bit is another."""
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118, it is no dictionary
            if metadata.get("format") != FORMAT:
                raise ValueError(f"its format is {metadata.get('format')!r}")
            if metadata["sha256"] != checksum(tensors, metadata["run"]):
                raise ValueError("its checksum is another")
            run = json.loads(metadata["run"])
            torch.Generator().set_state(tensors["random.0"])
            return cls(tensors, **(run | {"position": tuple(run["position"])}))
        except OSError:
            raise
        except Exception as error:  # there is no end of what damage can raise
            raise ValueError(f"{path} is not a whole checkpoint: {error}") from error


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, which cannot hold code; all or nothing."""
    with replacing(path) as draft:
        draft.write_bytes(save(tensors, metadata))


def checksum(tensors: dict[str, Tensor], text: str) -> str:
    """SHA-256 of a text and of tensors, with their names, dtypes and shapes."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


# the folder


class RunFolder:
    """The folder of a run, to be used as a context manager; without a path nothing is kept.

    It holds checkpoint.safetensors, from which the run goes on; model.safetensors, the parameters when the validation
    loss was lowest; log.csv, and the same for TensorBoard. Each file is written whole or not at all. With several
    processes all call `load` and `save`, and rank 0 writes. A folder serves one run at a time.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.path = None if path is None else Path(path)
        self.board = None  # a SummaryWriter, once something is logged

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        if self.board:
            self.board.close()

    def checkpoint(self) -> Checkpoint | None:
        """What the folder's run has saved last, if it has. ValueError when it is damaged, or in an earlier format."""
        if self.path is None:
            return None
        for name in EARLIER:
            if (self.path / name).exists():
                raise ValueError(
                    f"{self.path / name} is of an earlier version, in another format: choose another folder"
                )
        path = self.path / "checkpoint.safetensors"
        return Checkpoint.read(path) if path.exists() else None

    def reached(self) -> int:
        """How many steps the folder's run had made when it was saved last. ValueError as of `checkpoint`."""
        saved = self.checkpoint()
        return saved.step if saved else 0

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer, config: Any) -> tuple[Position, History]:
        """Put model, optimiser and random state back to what was saved last; position in the data, and history.

        Where nothing has been saved, that is (0, 0) and no history. Raises ValueError, and changes nothing, when what
        was saved is damaged, of another model, of another optimiser, or was made with another configuration, and when
        not all processes find the same. On ranks above 0 random numbers begin anew.
        """
        saved = self.checkpoint()
        step = saved.step if saved else 0
        if not same_everywhere(step):
            raise ValueError(f"not all processes find the same run in {self.path}")
        if saved:
            self.restore(saved, model, optimizer, config)
        fresh_random_numbers(config.seed, step)
        return (saved.position, saved.history) if saved else ((0, 0), [])

    def restore(self, saved: Checkpoint, model: nn.Module, optimizer: torch.optim.Optimizer, config: Any) -> None:
        """Put model, optimiser and random state back to a checkpoint; see `load`."""
        path = self.path / "checkpoint.safetensors"
        for name, value in asdict(config).items():
            if saved.config.get(name, value) != value:  # an earlier version may not have had it
                raise ValueError(f"{path} was made with {name} = {saved.config[name]!r}, not {value!r}")
        own, found = named_tensors(model), tensors_under("model.", saved.tensors)
        sizes = [{name: (t.shape, t.dtype) for name, t in tensors.items()} for tensors in (own, found)]
        if sizes[0] != sizes[1] or saved.shape != shape_of(model):
            raise ValueError(f"{path} holds the parameters of another model")
        if saved.optimized != optimized(model, optimizer):
            raise ValueError(f"{path} holds the state of another optimiser")
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(like(found[name], parameter))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        numbers, state = {id(p): n for n, p in enumerate(parameters)}, {}
        for key, value in tensors_under("optimizer.", saved.tensors).items():
            name, _, kind = key.rpartition(".")
            placed = like(value, own[name]) if value.shape == own[name].shape else value
            state.setdefault(numbers[id(own[name])], {})[kind] = placed
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        devices = tensors_under("random.", saved.tensors)
        torch.set_rng_state(devices.pop("0"))
        for n, device_state in devices.items():
            if int(n) <= torch.cuda.device_count():
                torch.cuda.set_rng_state(device_state, int(n) - 1)

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        config: Any,
        position: Position,
        history: History,
    ) -> None:
        """Write what a run has found so far: its best parameters, its logs, then the checkpoint.

        On ranks above 0 nothing is written, and random numbers begin anew.
        """
        fresh_random_numbers(config.seed, int(history[-1]["step"]))
        if self.path is None:
            return
        tensors = gather(model, optimizer)
        if rank() > 0:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        losses = [row["validation_loss"] for row in history]
        if losses[-1] <= min(loss for loss in [*losses, math.inf] if not math.isnan(loss)):
            save_tensors(self.path / "model.safetensors", tensors_under("model.", tensors))
        self.log(history)
        states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
        tensors |= {f"random.{n}": state for n, state in enumerate(states)}
        about = asdict(config), shape_of(model), optimized(model, optimizer)
        Checkpoint(tensors, *about, position, history).write(self.path / "checkpoint.safetensors")

    def log(self, history: History) -> None:
        """Write the history to log.csv, and its last row for TensorBoard."""
        with replacing(self.path / "log.csv") as draft, draft.open("w", newline="") as file:
            table = csv.DictWriter(file, dict.fromkeys(name for row in history for name in row))
            table.writeheader()
            table.writerows(history)
        from torch.utils.tensorboard import SummaryWriter  # a quarter of a second, and most programs train nothing

        step = int(history[-1]["step"])
        self.board = self.board or SummaryWriter(self.path / "tensorboard", purge_step=step)
        for name, value in history[-1].items():
            self.board.add_scalar(name, value, step)
        self.board.flush()


def tensors_under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those tensors whose name begins so, called by the rest of it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
