"""AsynchronousLoader: its arguments, its length, its attributes, and its epochs."""

from __future__ import annotations

import contextlib
import copy
import inspect
import operator
import os
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from sidestream import device as seam
from sidestream.epoch import CLOSE_TIMEOUT_S, Epoch, EpochIterator, Transfer
from sidestream.randomness import parts_of
from sidestream.resume import Start, check_state, fresh_state, length_or_none, restore
from sidestream.reuse import ReuseGuard
from sidestream.source import Source, Unused, inside_source, is_reading
from sidestream.statistics import LoaderStatistics, Recorder
from sidestream.transfer import PlainTransfer, StreamTransfer

BatchT = TypeVar("BatchT")


class AsynchronousLoader(Generic[BatchT]):
    """Iterate over batches that are already on the device, read and copied in the background.

    A thread reads the source, stages each batch in page-locked memory and copies it on a stream
    of its own into a bounded buffer, while the loop computes. The loop sees what a plain loop
    over `data` with `batch.to(device)` would see: the same batches, values, types and errors, in
    the same order. Each `iter()` is a full fresh pass.

    Args:
        data: A DataLoader, any other iterable of batches, or a Dataset, for which a DataLoader is
            made. An IterableDataset may be a pipeline that yields batches already: it is iterated
            as it is, unless `dataloader_kwargs` are given. A batch may be a tensor, or tensors in
            nested lists, tuples, dicts, dataclasses and the like, or an object with a `to`
            method. What cannot be moved stays as it is.
        device: Where batches go; None for the current accelerator, or the CPU where there is
            none. Looked up at the first `iter()`, as an accelerator without an index is.
        buffer_size: How many batches may wait on the device, ready or in flight [batches]. 0 for
            no thread and the same results. Memory: at most `buffer_size + 2` batches on the
            device beside those that the loop keeps, and `buffer_size + 1` page-locked.
        num_batches: The most batches of one pass [batches]; None for all. Also the length, where
            the source has none.
        transform: Called with each batch after its transfer, on the device's side stream and in
            the loader's thread; the loop gets what it returns.
        **dataloader_kwargs: Arguments for the DataLoader, where `data` is a Dataset.

    Raises:
        TypeError: If an argument has the wrong type, or `dataloader_kwargs` meet no Dataset.
        ValueError: If a number is negative, the device is not there, or `data` is an iterator
            that is used up.

    Threads:
        `iter(data)` and the first `next` run in the thread that calls them here, all further
        ones in the loader's thread, never two at a time.

    In doubt, `SIDESTREAM_VERIFY=1` in the environment compares every batch on the device with
    what the source gave; docs/verify.md says what it finds and costs.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> data = DataLoader(TensorDataset(torch.arange(6)), batch_size=3)
        >>> [batch.tolist() for batch, in AsynchronousLoader(data, "cpu")]
        [[0, 1, 2], [3, 4, 5]]
    """

    def __init__(
        self,
        data: Iterable[BatchT] | Dataset[Any],
        device: torch.device | str | int | None = None,
        *,
        buffer_size: int = 2,
        num_batches: int | None = None,
        transform: Callable[[Any], Any] | None = None,
        **dataloader_kwargs: Any,
    ) -> None:
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be callable or None, got {transform!r}")
        self._buffer_size = _count("buffer_size", buffer_size, "0 turns the thread off")
        self._num_batches = (
            None if num_batches is None else _count("num_batches", num_batches, "None means all")
        )
        self._transform = transform
        self._device = seam.parse(device)
        self._data = _as_iterable(data, dataloader_kwargs)
        self._running = _Running()

    def __iter__(self) -> Iterator[BatchT]:
        return EpochIterator(self._run_here().begin(self))

    def __len__(self) -> int:
        """The number of batches in a pass.

        Raises:
            TypeError: If neither the source nor `num_batches` tells.
        """
        if self._num_batches is None:
            return len(self._data)
        try:
            return min(self._num_batches, len(self._data))
        except TypeError:
            return self._num_batches

    def __bool__(self) -> bool:
        return not isinstance(self._data, Sized) or length_or_none(self) != 0

    def close(self) -> None:
        """End the passes under way and give their memory back. A new `iter()` starts afresh.

        Raises:
            TimeoutError: If a source does not come back within 10 s; names the thread.
        """
        self._run_here().close()

    def __enter__(self) -> AsynchronousLoader[BatchT]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Where the pass stands after the batch delivered last, never where the read-ahead is.

        In the middle of a pass, also one that was broken off, the rest of it comes after
        `load_state_dict`; after its end the next one. The state holds what is needed to make the
        batches that a plain loop would give then: the source's own state, where it has one; else
        the position and the random numbers that the pass began with. It can be pickled.

        Raises:
            TypeError: If the source cannot be resumed, a generator for example; says why.

        Threads:
            Any, at any time.
        """
        return self._run_here().state_dict(self._data)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the batch that `state_dict` spoke of: with the next `iter()`.

        Passes under way are closed; their iterators raise a RuntimeError. A sampler leaves out
        what was delivered, without reading it; what draws random numbers as it is read, or is no
        DataLoader and has no state, is read again from its beginning.

        Raises:
            ValueError: If the state is damaged, or does not fit the source.
            TypeError: If the source cannot be resumed.
            TimeoutError: As `close`.
        """
        self._run_here().load_state_dict(state, self._data)

    def statistics(self) -> LoaderStatistics:
        """What the loader has done so far."""
        return self._run_here().statistics()

    def __repr__(self) -> str:
        device = "None" if self._device is None else f'"{self._device}"'
        return (
            f"{type(self).__name__}({type(self._data).__name__}, device={device}, "
            f"buffer_size={self._buffer_size})"
        )

    # ---- the wrapped loader shows through

    def __getattr__(self, name: str) -> Any:
        # Public names only: frameworks act on private ones wherever they find them.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name == "set_epoch":
            return self._find_set_epoch()
        return getattr(self._data, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or "_data" not in vars(self):
            object.__setattr__(self, name, value)
        elif type(self) is not AsynchronousLoader and not hasattr(self._data, name):
            object.__setattr__(self, name, value)  # a subclass may have attributes of its own
        elif hasattr(type(self), name) or not hasattr(self._data, name):
            raise AttributeError(
                f"cannot set {name!r}: neither the loader nor the {type(self._data).__name__} in "
                "it has such an attribute; give options to the constructor"
            )
        else:
            setattr(self._data, name, value)

    def _find_set_epoch(self) -> Callable[[int], None]:
        data = self._data
        parts = [data] if hasattr(data, "set_epoch") else parts_of(data)
        takers = [part for part in parts if hasattr(part, "set_epoch")]
        if not takers:
            raise AttributeError(
                f"nothing in the {type(data).__name__} takes set_epoch: no sampler and no dataset"
            )

        def set_epoch(epoch: int) -> None:
            for taker in takers:
                taker.set_epoch(epoch)

        return set_epoch

    # ---- copies

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_running"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _running=_Running())

    def _run_here(self) -> _Running:
        """What runs in this process; a forked child starts afresh."""
        if self._running.process != os.getpid():
            self._running = _Running()
        return self._running


class _Running:
    """What a loader has running or keeps between passes; none of it is copied or pickled."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.recorder = Recorder()
        self._opening = threading.RLock()
        self._reading = threading.RLock()
        self._epochs: list[Epoch] = []
        self._transfers: dict[torch.device, Transfer] = {}
        self._unused: Unused = deque()
        self._resume: dict[str, Any] | None = None
        # The pass that began last, unless another state was loaded since. One object, so that it
        # can be read from any thread without a lock.
        self._latest: tuple[Start, Epoch] | None = None

    def begin(self, loader: AsynchronousLoader[Any]) -> Epoch:
        """Start a pass: `iter` of the data, in the caller's thread."""
        data = loader._data
        with self._exclusively():
            transfer = self._transfer(loader)
            self._make_room(data)
            start = Start(data, self._resume)
            with inside_source(pinned=type(transfer) is StreamTransfer), self._reading:
                iterator = start.open()
            for epoch in self._epochs:
                if epoch.source.reads(iterator):
                    epoch.close(reason=_TAKEN_OVER)
            source = Source(
                iterator,
                start,
                loader._num_batches,
                length_or_none(data),
                self._reading,
                self._unused if _is_one_shot(iterator, data) else None,
            )
            epoch = Epoch(source, transfer, loader._buffer_size, self.recorder.begin_pass())
            self._epochs.append(epoch)
            self._latest = start, epoch
            self._resume = None
            return epoch

    def state_dict(self, data: Any) -> dict[str, Any]:
        """The state after the batch delivered last, or the one that the next pass begins with."""
        resume, latest = self._resume, self._latest
        if resume is not None:
            return copy.deepcopy(resume)
        if latest is None:
            with self._reading:
                return fresh_state(data)
        start, epoch = latest
        return start.state_at(epoch.position)

    def load_state_dict(self, state: dict[str, Any], data: Any) -> None:
        """Close all passes, and let the next one begin at a state."""
        state = check_state(state, data)
        with self._exclusively():
            self._end_all(_RESTORED)
            if not self._reading.acquire(timeout=CLOSE_TIMEOUT_S):
                raise TimeoutError(
                    f"the source has not come back from a batch within {CLOSE_TIMEOUT_S:g} s"
                )
            try:
                restore(state, data)
            finally:
                self._reading.release()
            self._unused = deque()  # an old pass may still give something back to the other
            self._resume = state

    def statistics(self) -> LoaderStatistics:
        """The counters, with what the device has come to."""
        for transfer in list(self._transfers.values()):
            if transfer.timer is not None:
                transfer.timer.look()
        return self.recorder.snapshot()

    @property
    def num_waiting(self) -> int:
        """How many batches wait for a consumer, in all passes under way [batches]."""
        return sum(epoch.num_waiting for epoch in self._epochs if not epoch.is_stopped)

    def close(self) -> None:
        """End all passes; then give memory back."""
        with self._exclusively():
            self._end_all("")
            for transfer in self._transfers.values():
                transfer.close()

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[None]:
        """Let one thread at a time open or close passes.

        Raises:
            TimeoutError: If code of the source's asks for it and another thread, which waits for
                the source, does not let go.
        """
        if not self._opening.acquire(timeout=CLOSE_TIMEOUT_S if is_reading() else -1):
            raise TimeoutError(
                "the source uses the loader that reads it, while another thread opens or closes "
                f"a pass of it and waits for the source; gave up after {CLOSE_TIMEOUT_S:g} s"
            )
        try:
            yield
        finally:
            self._opening.release()

    def _end_all(self, reason: str) -> None:
        for epoch in self._epochs:
            epoch.stop(reason)
        for epoch in self._epochs:
            epoch.close()
        self._epochs.clear()

    def _make_room(self, data: Any) -> None:
        """Let no two threads into the data.

        An abandoned pass is waited for. One still under way goes on, as it would with a plain
        loop, unless it reads the very object that would be opened again: a one-shot iterator, or
        the one iterator of a DataLoader with persistent workers.
        """
        shared = getattr(data, "_iterator", None)
        for epoch in self._epochs:
            if epoch.is_stopped:
                epoch.close()
            elif (
                epoch.source.is_one_shot  # also when all is read and some not yet delivered
                or epoch.source.reads(data)
                or (shared is not None and epoch.source.reads(shared))
            ):
                epoch.close(reason=_TAKEN_OVER)
        self._epochs = [epoch for epoch in self._epochs if not epoch.is_over]

    def _transfer(self, loader: AsynchronousLoader[Any]) -> Transfer:
        device = seam.resolve(loader._device)
        if device not in self._transfers:
            buffer_size = loader._buffer_size
            guard = None
            if buffer_size and not _makes_anew(loader._data):
                guard = ReuseGuard(device, buffer_size + 2)
            self._transfers[device] = (
                _stream_transfer()(device, loader._transform, guard, buffer_size)
                if buffer_size and seam.has_streams(device)
                else PlainTransfer(device, loader._transform, guard)
            )
        return self._transfers[device]


_RESTORED = "the loader was given another state; call iter() on it again"

_TAKEN_OVER = (
    "a newer iterator of this loader has taken over: both would read the same iterator of the "
    "source (a one-shot iterator, or persistent workers); finish one pass before the next"
)


def _stream_transfer() -> type[StreamTransfer]:
    """The one that moves; with `SIDESTREAM_VERIFY=1` in the environment the one that checks."""
    if os.environ.get("SIDESTREAM_VERIFY", "0") in ("", "0"):
        return StreamTransfer
    from sidestream.verify import VerifyingTransfer

    return VerifyingTransfer


def _count(name: str, value: Any, hint: str) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer [batches], got {value!r}; {hint}")
    if count < 0:
        raise ValueError(f"{name} must be 0 or more [batches], got {count}; {hint}")
    return count


def _as_iterable(data: Any, dataloader_kwargs: dict[str, Any]) -> Any:
    """What to iterate: the data itself, or a DataLoader over a dataset."""
    names = ", ".join(dataloader_kwargs)
    if isinstance(data, Dataset) and (dataloader_kwargs or not isinstance(data, IterableDataset)):
        accepted = inspect.signature(DataLoader).parameters
        unknown = [name for name in dataloader_kwargs if name not in accepted]
        if unknown:
            raise TypeError(f"neither AsynchronousLoader nor DataLoader takes {unknown[0]!r}")
        return DataLoader(data, **dataloader_kwargs)
    if dataloader_kwargs:
        raise TypeError(
            f"{names} given with a {type(data).__name__}: DataLoader arguments go with a Dataset; "
            "give them where the batches are made"
        )
    kind = type(data)
    if isinstance(data, type) or not (hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")):
        raise TypeError(
            f"data must be a DataLoader, a Dataset or an iterable of batches, got {data!r}"
        )
    if _is_spent(data):
        raise ValueError(
            f"data is a {kind.__name__} that is used up: it would give no batch; make a new one, "
            "or give what it was made from"
        )
    return data


def _is_spent(data: Any) -> bool:
    """Whether an iterator is known to be at its end, asked without advancing it."""
    if isinstance(data, types.GeneratorType):
        return data.gi_frame is None
    if not isinstance(data, Iterator) or operator.length_hint(data, 1) > 0:
        return False
    # An iterator over an empty list is not used up: pickled, it still knows its position.
    return len(data.__reduce__()) < 3


def _makes_anew(data: Any) -> bool:
    """Whether the data surely does not write a batch it gave before: a list, worker processes."""
    return isinstance(data, (list, tuple)) or getattr(data, "num_workers", 0) > 0


def _is_one_shot(iterator: Any, data: Any) -> bool:
    """Whether the data is an iterator that goes on where it was left.

    A class of the user's whose `__iter__` is written in Python may start again there, so only
    generators and the interpreter's own iterators are known to.
    """
    return iterator is data and (
        isinstance(data, types.GeneratorType)
        or isinstance(getattr(type(data), "__iter__", None), types.WrapperDescriptorType)
    )
