"""The loader of Lightning Bolts: `AsynchronousLoader(data, device, q_size, num_batches, ...)`.

As there, numpy arrays and numbers become tensors on the device; those of strings and objects stay.
What it did wrong is gone: the loop read batches before their copies had ended, an error in the
dataset hung it, a loop that was broken off began the next one with what was left, and one that
took exactly `len` batches found the next one empty.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from sidestream.batch import parts_of, replace_leaves
from sidestream.compat import QueueLoader, buffer_size_of
from sidestream.resume import length_or_none

_FIRST_GPU = torch.device("cuda", 0)


class AsynchronousLoader(QueueLoader):
    """Load batches onto a device, in the background.

    Args:
        data: A DataLoader, or a dataset, for which one is made.
        device: Where batches go.
        q_size: How many batches may wait on the device [batches]; 0 for no limit.
        num_batches: The most batches of one pass, and its length [batches]; needed where `data`
            has no length.
        **kwargs: Arguments for the DataLoader, where one is made.

    Raises:
        ValueError: If neither `data` nor `num_batches` tells how many batches a pass has.
    """

    def __init__(
        self,
        data: DataLoader[Any] | Dataset[Any],
        device: torch.device | str | int | None = _FIRST_GPU,
        q_size: int = 10,
        num_batches: int | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(data, DataLoader):
            batches = data
            if kwargs:
                warnings.warn(
                    f"{', '.join(kwargs)} given with a DataLoader: without effect, because it is "
                    "made already; give them where it is made",
                    stacklevel=2,
                )
        else:
            batches = DataLoader(data, **kwargs)
        limit = length_or_none(batches) if num_batches is None else num_batches
        if limit is None:
            raise ValueError("num_batches must be given for data without a length, got None")
        super().__init__(
            batches,
            device,
            buffer_size=buffer_size_of(q_size, limit, "q_size"),
            num_batches=num_batches,
            transform=functools.partial(_move_arrays, device=device),
        )

    @property
    def q_size(self) -> int:
        """How many batches may wait on the device [batches]."""
        return self._buffer_size

    @property
    def num_batches(self) -> int:
        """How many batches a pass has [batches]."""
        return len(self)


def _is_array(part: Any) -> bool:
    """Whether this is a numpy array or number that can be a tensor; numpy may be missing."""
    return type(part).__module__ == "numpy" and part.dtype.kind in "biufc"


def _move_arrays(batch: Any, device: Any) -> Any:
    arrays = parts_of(batch, _is_array)
    return replace_leaves(
        batch, {id(array): torch.as_tensor(array).to(device) for array in arrays}
    )
