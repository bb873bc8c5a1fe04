"""Small Lightning runs that write down all they see."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset


class Moves:
    """How often batches were really moved, and how often they were there already."""

    def __init__(self) -> None:
        self.real: list[str] = []
        self.idle = 0


class Box:
    """A batch that moves itself, to a device that is one in name only, and counts."""

    def __init__(self, x: torch.Tensor, moves: Moves, where: str = "host") -> None:
        self.x, self.moves, self.where = x, moves, where

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: Any, **_: Any) -> Box:
        if self.where == "device":
            self.moves.idle += 1
            return self
        self.moves.real.append(threading.current_thread().name)
        return Box(self.x, self.moves, "device")

    @property
    def first(self) -> int:
        return int(self.x[0, 0])


class Items(Dataset):
    def __init__(self, length: int, start: int = 0) -> None:
        self.length, self.start = length, start

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(self.start + index) / 64)


class Stack:
    """Collates into a Box."""

    def __init__(self, moves: Moves) -> None:
        self.moves = moves

    def __call__(self, samples: list[torch.Tensor]) -> Box:
        return Box(torch.stack(samples) * 64, self.moves)


def loader(length: int = 32, start: int = 0, *, moves: Moves | None = None, **kwargs: Any) -> Any:
    """Batches of four, as tensors or, where moves are counted, as boxes."""
    kwargs.setdefault("batch_size", 4)
    cls = kwargs.pop("cls", DataLoader)
    if moves is not None:
        kwargs["collate_fn"] = Stack(moves)
    return cls(Items(length, start), **kwargs)


def find(batch: Any) -> torch.Tensor:
    """The first tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        return batch
    if isinstance(batch, Box):
        assert batch.where == "device", "a step was given a batch that was not moved"
        return batch.x / 64
    parts = batch.values() if isinstance(batch, dict) else batch
    return find(next(part for part in parts if part is not None))


def make_module(pl: Any, *bases: type) -> Any:
    """A module that notes stage, values and indices of every batch that a step is given."""

    class Module(*bases, pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layer = torch.nn.Linear(4, 1)
            self.seen: list[Any] = []
            self.hooks: list[Any] = []

        def loss(self, stage: str, batch: Any, *indices: int) -> torch.Tensor:
            x = find(batch)
            both = isinstance(batch, (dict, list))
            parts = (batch.values() if isinstance(batch, dict) else batch) if both else [batch]
            values = [None if one is None else find(one)[:, 0].tolist() for one in parts]
            self.seen.append((stage, *indices, values))
            return (self.layer(x.to(self.layer.weight.dtype)) ** 2).mean()

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = self.loss("train", batch, batch_idx)
            self.log("loss", loss, batch_size=4, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            loss = self.loss("val", batch, batch_idx, dataloader_idx)
            self.log("val", loss, batch_size=4)

        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            self.log("test", self.loss("test", batch, batch_idx, dataloader_idx), batch_size=4)

        def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
            self.loss("predict", batch, batch_idx, dataloader_idx)
            return find(batch)[:, 0].tolist()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


class Hooks:
    """All three transfer hooks, each of which notes its batch and the stage that it sees."""

    def note(self, name: str, batch: Any, dataloader_idx: int) -> None:
        first = find(batch)[0, 0].item() if not isinstance(batch, Box) else batch.first
        self.hooks.append(
            (name, first, dataloader_idx, str(self.trainer.state.stage), self.training)
        )

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.note("before", batch, dataloader_idx)
        return batch + 1 if isinstance(batch, torch.Tensor) else batch

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        self.note("transfer", batch, dataloader_idx)
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.note("after", batch, dataloader_idx)
        return batch * 2 if isinstance(batch, torch.Tensor) else batch


def make_logger(pl: Any) -> Any:
    """A logger that keeps what it is given."""

    class Logger(pl.loggers.logger.Logger):
        def __init__(self) -> None:
            super().__init__()
            self.rows: list[Any] = []

        name = "kept"
        version = 0

        def log_metrics(self, metrics: Any, step: Any = None) -> None:
            self.rows.append((step, dict(metrics)))

        def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
            pass

    return Logger()


def make_trainer(pl: Any, *callbacks: Any, **kwargs: Any) -> Any:
    defaults = {
        "max_epochs": 2,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "devices": 1,
        "log_every_n_steps": 1,
    }
    return pl.Trainer(callbacks=list(callbacks), **{**defaults, **kwargs})
