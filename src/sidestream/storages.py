"""Which device memory stands behind a leaf. Knows no streams.

A plain tensor has one storage. Other layouts and wrapper subclasses are made of plain tensors, and
an object that moves itself keeps what it makes where only it knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_HOST = torch.device("cpu")
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def storages_of(tensor: torch.Tensor, device: torch.device) -> Iterator[torch.UntypedStorage]:
    """The storages on a device behind a tensor of any kind."""
    for part in _plain_parts(tensor):
        if part.device == device:
            yield part.untyped_storage()


class RecordedAllocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what torch operations make on a device while it is active.

    An object's `to` may keep what it makes where looking at the object would not find it.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: list[torch.UntypedStorage] = []
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operation and note the tensors that come out of it."""
        result = func(*args, **(kwargs or {}))
        for out in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(out, torch.Tensor):
                self.storages.extend(storages_of(out, self._device))
        return result


class RecordedCopies(RecordedAllocations):  # type: ignore[no-untyped-call]
    """Notes the host memory that operations read, too.

    Copies that an object queues of its own read memory that only they name.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.sources: list[torch.UntypedStorage] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operation and note the tensors that go in and come out."""
        for arg in args:
            for one in arg if isinstance(arg, (list, tuple)) else (arg,):
                if isinstance(one, torch.Tensor):
                    self.sources.extend(storages_of(one, _HOST))
        return super().__torch_dispatch__(func, types, args, kwargs)


def _plain_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with a storage of their own that a tensor is made of."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            yield from _plain_parts(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        yield tensor._indices()
        yield tensor._values()
    elif tensor.layout in _COMPRESSED:
        for name in _COMPRESSED[tensor.layout]:
            yield getattr(tensor, name)()
        yield tensor.values()
    else:
        yield tensor
