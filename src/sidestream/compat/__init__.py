"""The signatures of two earlier asynchronous loaders, for programs that were written for them.

Change the import and nothing else:

    from sidestream.compat.lighter import AsynchronousLoader  # was lighter.train
    from sidestream.compat.bolts import AsynchronousLoader  # was pl_bolts.datamodules

Both are `sidestream.AsynchronousLoader` behind another constructor. Batches keep their types,
where the earlier ones made lists and dicts of them. `iter(loader)` is a pass of its own and not
the loader itself, so `next` goes to what `iter` gave.
"""

from __future__ import annotations

from typing import Any

import torch

from sidestream.loader import AsynchronousLoader


def buffer_size_of(queue_size: int, num_batches: int | None, name: str) -> int:
    """The buffer size for the size of a `queue.Queue`, where 0 and less is no limit.

    Raises:
        ValueError: If no limit is asked for and it is not known how many batches there are.
    """
    if queue_size > 0:
        return queue_size
    if num_batches is None:
        raise ValueError(
            f"{name} must be 1 or more [batches] for data without a length, got {queue_size}, "
            "which means no limit"
        )
    return max(1, num_batches)


class QueueView:
    """What programs ask the `queue` attribute of the earlier loaders: whether they are starved."""

    def __init__(self, loader: AsynchronousLoader[Any]) -> None:
        self._loader = loader
        self.maxsize = loader._buffer_size

    def qsize(self) -> int:
        """How many batches wait [batches]."""
        return self._loader._run_here().num_waiting

    def empty(self) -> bool:
        """Whether none waits: the next one will have to be waited for."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether no more will be loaded before one is taken."""
        return self.qsize() >= self.maxsize


class QueueLoader(AsynchronousLoader[Any]):
    """What both have beside their constructors."""

    @property
    def dataloader(self) -> Any:
        """The DataLoader, given or made."""
        return self._data

    @property
    def device(self) -> torch.device | None:
        """Where batches go."""
        return self._device

    @property
    def queue(self) -> QueueView:
        """How full the buffer is."""
        return QueueView(self)
