"""The loader of Lighter: `AsynchronousLoader(dataset, device, batch_size, ...)`.

It makes its own DataLoader, always. What it did wrong is gone: the loop read batches before their
copies had ended, an error in the dataset ended the epoch without a word, and a loop that was
broken off could not be begun again and kept the process from ending.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from sidestream.compat import QueueLoader, buffer_size_of
from sidestream.resume import length_or_none


class AsynchronousLoader(QueueLoader):
    """Load a dataset in batches onto a device, in the background.

    Args:
        dataset: The dataset.
        device: Where batches go.
        batch_size: How many samples make a batch [samples].
        shuffle: Whether to draw a new order for every pass.
        pin_memory: Whether the DataLoader page-locks the batches. They are staged in page-locked
            memory in any case; without an accelerator there is none, and this has no effect.
        workers: How many processes read [processes].
        queue_size: How many batches may wait on the device [batches]; 0 for no limit.
        **kwargs: Further arguments for the DataLoader.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        device: torch.device | str | int | None,
        batch_size: int = 1,
        shuffle: bool = False,
        pin_memory: bool = True,
        workers: int = 10,
        queue_size: int = 10,
        **kwargs: Any,
    ) -> None:
        batches: DataLoader[Any] = DataLoader(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            pin_memory=pin_memory and torch.accelerator.is_available(),
            num_workers=workers,
            **kwargs,
        )
        depth = buffer_size_of(queue_size, length_or_none(batches), "queue_size")
        super().__init__(batches, device, buffer_size=depth)

    @property
    def workers(self) -> int:
        """How many processes read [processes]."""
        return int(self._data.num_workers)

    @property
    def queue_size(self) -> int:
        """How many batches may wait on the device [batches]."""
        return self._buffer_size
