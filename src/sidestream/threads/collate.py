"""What `default_collate` gives, written into given memory, each sample as soon as it is ready.

The rules of `default_collate` are torch's own: `collate` does the work, with a function of ours
for tensors. Large tensors are written before that, one sample at a time, and what stands in the
sample in their place is a `Row`. So a sample's memory is free again before the next one is made.
Wherever a sample does not fit the first one, it stays as it is, and `collate` says what it always
says.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from sidestream.errors import annotate
from sidestream.packing import can_stage
from sidestream.threads.memory import BatchMemory

ROW_BYTES = 16 * 1024
"""From this size on [bytes] a sample's tensor is written at once. One call for each costs more
than one for all, and smaller samples may as well wait for it."""

_MAP = dict(default_collate_fn_map)
_CONTAINERS = (list, tuple, dict)


def is_default(collate_fn: Any) -> bool:
    """Whether this is torch's default, with its own rules for all that is looked into here.

    Anybody may add rules to it, and libraries do when they are imported, for types of theirs.
    """
    if collate_fn is not default_collate:
        return False
    if any(default_collate_fn_map.get(kind) is not rule for kind, rule in _MAP.items()):
        return False
    added = [kind for kind in default_collate_fn_map if kind not in _MAP]
    known = (torch.Tensor, *_CONTAINERS, *filter(None, [_array_type()]))
    return not any(
        issubclass(one, kind) or issubclass(kind, _CONTAINERS)
        for kinds in added
        for kind in (kinds if isinstance(kinds, tuple) else (kinds,))
        for one in known
    )


class Rows:
    """The memory for one tensor of the samples: row by row."""

    def __init__(self, first: torch.Tensor, count: int, kind: type, out: torch.Tensor) -> None:
        self._shape, self._dtype, self._count, self._kind = first.shape, first.dtype, count, kind
        self._address, self._row_bytes = out.data_ptr(), first.nbytes
        self.out = out

    def write(self, number: int, value: Any) -> Any:
        """Write a sample's tensor. Returns its place, or the value if it is not like the first."""
        if type(value) is not self._kind:
            return value
        tensor = _as_tensor(value)
        if (
            tensor is None
            or tensor.dtype is not self._dtype
            or tensor.shape != self._shape
            or number >= self._count
        ):
            return value
        if tensor.is_contiguous():  # without a view, and in this thread alone
            address = self._address + number * self._row_bytes
            ctypes.memmove(address, tensor.data_ptr(), self._row_bytes)
        else:
            self.out[number].copy_(tensor)
        return Row(self, number)

    def finish(self, count: int) -> torch.Tensor:
        """All rows, which is mostly all of the memory."""
        return self.out if count == self._count else self.out[:count].clone()

    def value(self, number: int) -> Any:
        """What stood in the sample, or its like."""
        row = self.out[number]
        return row if self._kind is torch.Tensor else row.numpy()


class Row:
    """Stands in a sample for a tensor that is written already."""

    __slots__ = ("number", "rows")

    def __init__(self, rows: Rows, number: int) -> None:
        self.rows, self.number = rows, number


# Where in a sample large tensors are: here, or below certain keys of a container of this type.
_Branch: TypeAlias = tuple[type, int, list[tuple[Any, Any]]]
_Place: TypeAlias = "Rows | _Branch | None"


class Collation:
    """One batch under way: takes the samples one by one, then gives the batch.

    Args:
        size: How many samples are expected.
        memory: Where their tensors go.
    """

    def __init__(self, size: int, memory: BatchMemory) -> None:
        self._size = size
        self._memory = memory
        self._place: _Place = None
        self._samples: list[Any] = []

    def add(self, sample: Any) -> None:
        """Take the next sample, and write what is large in it."""
        number = len(self._samples)
        if number == 0:
            self._place = self._find(sample)
        self._samples.append(_write(self._place, sample, number))

    def add_all(self, samples: Sequence[Any]) -> None:
        """Take samples that are all there."""
        self._samples.extend(samples)

    def finish(self, indices: Sequence[Any] | None) -> Any:
        """The batch.

        Raises:
            Exception: As `default_collate`, with a note that names the first sample that does not
                go with sample 0, and its index in the dataset.
        """
        rules: dict[Any, Callable[..., Any]] = {
            Row: _join, **default_collate_fn_map, torch.Tensor: self._stack,
        }  # fmt: skip
        try:
            return collate(self._samples, collate_fn_map=rules)
        except Exception as error:
            _name_sample(error, [_restored(sample) for sample in self._samples], indices)
            raise

    def _find(self, sample: Any) -> _Place:
        kind = type(sample)
        if kind in (list, tuple) or (isinstance(sample, tuple) and hasattr(sample, "_fields")):
            found = [(key, self._find(part)) for key, part in enumerate(sample)]
        elif kind is dict:
            found = [(key, self._find(part)) for key, part in sample.items()]
        else:
            return self._find_tensor(sample, kind)
        found = [(key, place) for key, place in found if place is not None]
        return (kind, len(sample), found) if found else None

    def _find_tensor(self, sample: Any, kind: type) -> Rows | None:
        first = _as_tensor(sample)
        if first is None or first.nbytes < ROW_BYTES:
            return None
        out = self._memory.empty((self._size, *first.shape), first.dtype)
        return None if out is None else Rows(first, self._size, kind, out)

    def _stack(self, batch: Sequence[Any], *, collate_fn_map: Any) -> torch.Tensor:
        """Join tensors that are all there."""
        first = batch[0]
        kind, dtype = torch.Tensor, first.dtype
        if can_stage(first) and all(type(x) is kind and x.dtype is dtype for x in batch):
            out = self._memory.empty((len(batch), *first.shape), dtype)
            if out is not None:
                with contextlib.suppress(RuntimeError):  # said again, or put right, below
                    return torch.stack(list(batch), 0, out=out)
        joined: torch.Tensor = _MAP[torch.Tensor](batch, collate_fn_map=collate_fn_map)
        return joined


def _array_type() -> Any:
    """numpy's, where it is imported."""
    return getattr(sys.modules.get("numpy"), "ndarray", None)


def _as_tensor(value: Any) -> torch.Tensor | None:
    """A tensor or a numpy array as an ordinary tensor; None for anything else."""
    if can_stage(value):
        return value  # type: ignore[no-any-return]
    if type(value) is not _array_type():
        return None
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError):  # said again when all samples are there
        return None
    return tensor if can_stage(tensor) else None


def _write(place: Any, sample: Any, number: int) -> Any:
    """Write what is large in a sample, and give the sample with rows in its place."""
    if place is None:
        return sample
    if isinstance(place, Rows):
        return place.write(number, sample)
    kind, length, branches = place
    if type(sample) is not kind or len(sample) != length:
        return sample
    if kind is dict:
        if not all(key in sample for key, _ in branches):
            return sample
        parts: Any = dict(sample)
    else:
        parts = list(sample)
    for key, branch in branches:
        parts[key] = _write(branch, parts[key], number)
    if kind in (dict, list):
        return parts
    return tuple(parts) if kind is tuple else tuple.__new__(kind, parts)


def _join(batch: Sequence[Any], *, collate_fn_map: Any) -> Any:
    """What stands where the first sample has a row."""
    rows = batch[0].rows
    if all(type(x) is Row and x.rows is rows for x in batch):
        return rows.finish(len(batch))
    return default_collate([_restored(x) for x in batch])


def _restored(sample: Any) -> Any:
    """A sample with tensors again where it has rows."""
    kind = type(sample)
    if kind is Row:
        return sample.rows.value(sample.number)
    if kind is dict:
        return {key: _restored(part) for key, part in sample.items()}
    if kind in (list, tuple):
        return kind(_restored(part) for part in sample)
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return tuple.__new__(kind, [_restored(part) for part in sample])
    return sample


def _name_sample(error: Exception, samples: list[Any], indices: Sequence[Any] | None) -> None:
    """Find the first sample that does not go with the one before all others, and note it."""
    for number, sample in enumerate(samples):
        try:
            default_collate([samples[0], sample])
        except Exception:  # noqa: BLE001 - it was one of these that is being named
            where = "" if indices is None else f", index {indices[number]!r} of the dataset"
            annotate(error, f"raised collating sample {number} of the batch{where}")
            return
