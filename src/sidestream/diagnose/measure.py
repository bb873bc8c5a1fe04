"""Measure the plain DataLoaders of a running script, without a change in what it does.

Two methods of torch are wrapped while the script runs, each giving back the very object that it
would give without: `__next__` of the DataLoader's iterators, and `to` and `cuda` of tensors, for
the copies out of host memory. On a device that keeps time, events are recorded around both and
read later; nothing is waited for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import dataloader as torch_dataloader

from sidestream import device as seam
from sidestream.batch import movable_leaves
from sidestream.packing import can_stage
from sidestream.statistics import PassRecorder, Recorder
from sidestream.timing import StreamTimer, record

_clock = time.perf_counter
_ITERATOR: Any = torch_dataloader._BaseDataLoaderIter
_TENSOR: Any = torch.Tensor


class EnoughError(BaseException):
    """Ends a script after the steps that were asked for. No `except Exception` is to catch it."""


class Limit:
    """Ends the script once a loader has done so many steps.

    Args:
        num_steps: The steps after the first batch [steps]; None for no limit.
    """

    def __init__(self, num_steps: int | None) -> None:
        self._num_steps = num_steps
        self.was_reached = False

    def check(self, num_steps: int) -> None:
        """Raise once, in the script's main thread; a script that catches it goes on."""
        if self._num_steps is None or self.was_reached or num_steps < self._num_steps:
            return
        if threading.current_thread() is threading.main_thread():
            self.was_reached = True
            raise EnoughError


@dataclasses.dataclass
class Leaf:
    """A tensor of a batch, without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_pinned: bool

    def make(self) -> torch.Tensor:
        """One like it."""
        return torch.zeros(self.shape, dtype=self.dtype, pin_memory=self.is_pinned)


class Measured:
    """What was seen of one DataLoader."""

    def __init__(self, iterator: Any) -> None:
        self.label = _label(iterator)
        self.num_workers = int(iterator._num_workers)
        self.recorder = Recorder()
        self.num_steps = 0
        self.transfer_s = 0.0
        self.transfer_bytes = 0
        self.leaves: list[Leaf] = []
        self._passes: weakref.WeakKeyDictionary[Any, PassRecorder] = weakref.WeakKeyDictionary()
        self._open: list[tuple[int, float, Any, Any]] = []  # of the step under way
        self._done: deque[tuple[int, Any, Any]] = deque()

    def pass_of(self, iterator: Any) -> PassRecorder:
        """The recorder of the pass that an iterator makes; persistent workers share one."""
        found = self._passes.get(iterator)
        if found is None or iterator._num_yielded == 0:
            found = self._passes[iterator] = self.recorder.begin_pass()
        return found

    def copied(self, size_bytes: int, seconds: float, began: Any, ended: Any) -> None:
        """A copy was queued in the step under way."""
        self._open.append((size_bytes, seconds, began, ended))

    def end_step(self, *, counts: bool) -> None:
        """The next batch is here; what was copied belongs to the step that ends with it."""
        taken, self._open = self._open, []
        self.num_steps += counts
        for size_bytes, seconds, began, ended in taken if counts else ():
            if began is None:
                self._add(size_bytes, seconds)
            else:
                self._done.append((size_bytes, began, ended))
        self.look(wait=False)

    def look(self, *, wait: bool) -> None:
        """Read the copies that have run."""
        while self._done and (wait or self._done[0][2].query()):
            size_bytes, began, ended = self._done.popleft()
            if wait:
                ended.synchronize()
            self._add(size_bytes, began.elapsed_time(ended) / 1e3)

    def _add(self, size_bytes: int, seconds: float) -> None:
        self.transfer_bytes += size_bytes
        self.transfer_s += seconds


class Measurement:
    """Measures all DataLoaders that this process iterates in the loop's own thread."""

    def __init__(self, limit: Limit) -> None:
        self.found: dict[int, Measured] = {}
        self.num_asynchronous = 0
        """Batches that an AsynchronousLoader read, and which are its own business."""
        self.device: torch.device | None = None
        self._limit = limit
        self._process = os.getpid()
        self._kept: list[Any] = []  # what the keys of `found` are the identities of
        self._current: tuple[int, Measured] | None = None  # and the thread
        self._timer: StreamTimer | None = None

    def next(self, original: Any, iterator: Any, caller: str) -> Any:
        """The batch that `original` gives, measured."""
        if self._process != os.getpid():  # a forked child's loaders are not counted here
            return original(iterator)
        if caller.partition(".")[0] == "sidestream":
            self.num_asynchronous += 1
            return original(iterator)
        seen = self._find(iterator)
        recorder = seen.pass_of(iterator)
        timer = self._find_timer()
        asked = _clock()
        mark = None if timer is None else timer.asked()
        self._current = None
        batch = original(iterator)
        now = _clock()
        recorder.read(asked, now)
        recorder.loaded(now, now, now, waited=0.0, sizes=(0, 0, 0))
        number = recorder.delivered(asked, now, 0)
        if timer is not None and mark is not None:
            timer.delivered(recorder, number, mark)
        seen.end_step(counts=number > 0)
        if number == 1 and self.device is not None:
            seen.leaves = _leaves_of(batch)
        self._limit.check(seen.num_steps)
        self._current = threading.get_ident(), seen
        return batch

    def move(self, original: Any, tensor: Any, arguments: Any, options: Any) -> Any:
        """What `original` gives, measured where it is a copy from the host in a step."""
        current = self._current
        if (
            current is None
            or type(tensor) is not torch.Tensor
            or not tensor.is_cpu
            or current[0] != threading.get_ident()
            or self._process != os.getpid()
        ):
            return original(tensor, *arguments, **options)
        stream = None if self.device is None else seam.current_stream(self.device)
        began = None if stream is None else record(stream)
        started = _clock()
        moved = original(tensor, *arguments, **options)
        seconds = _clock() - started
        if not moved.is_cpu:
            ended = None if stream is None else record(stream)
            current[1].copied(tensor.nbytes, seconds, began, ended)
        return moved

    def finish(self) -> None:
        """Wait for what the script has queued, and read all times."""
        if self._timer is not None and self.device is not None:
            torch.accelerator.synchronize(self.device)
            self._timer.look()
        for seen in self.found.values():
            seen.look(wait=True)

    def _find(self, iterator: Any) -> Measured:
        sampler = iterator._index_sampler  # one for a DataLoader, over all its passes
        if id(sampler) not in self.found:
            self.found[id(sampler)] = Measured(iterator)
            self._kept.append(sampler)
        return self.found[id(sampler)]

    def _find_timer(self) -> StreamTimer | None:
        """A timer, once the script itself has begun to use a device."""
        if self._timer is None:
            kind = seam.accelerator_type()
            if (
                kind is None
                or not getattr(torch.get_device_module(kind), "is_initialized", lambda: True)()
            ):
                return None
            device = seam.resolve(None)
            if not seam.has_streams(device) or not seam.keeps_time(seam.current_stream(device)):
                return None
            self.device, self._timer = device, StreamTimer(device)
        return self._timer


@contextlib.contextmanager
def measuring(measurement: Measurement) -> Iterator[None]:
    """Measure for a while."""
    next_batch, to, cuda = _ITERATOR.__next__, _TENSOR.to, _TENSOR.cuda

    def __next__(self: Any) -> Any:  # noqa: N807 - takes its place
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return measurement.next(next_batch, self, caller)

    def moved_to(self: Any, *arguments: Any, **options: Any) -> Any:
        return measurement.move(to, self, arguments, options)

    def moved_cuda(self: Any, *arguments: Any, **options: Any) -> Any:
        return measurement.move(cuda, self, arguments, options)

    _ITERATOR.__next__, _TENSOR.to, _TENSOR.cuda = __next__, moved_to, moved_cuda
    try:
        yield
    finally:
        _ITERATOR.__next__ = next_batch
        del _TENSOR.to, _TENSOR.cuda  # both are of its base class


def _label(iterator: Any) -> str:
    sampler = iterator._index_sampler
    size = getattr(sampler, "batch_size", None)
    parts = [type(iterator._dataset).__name__, f"num_workers={iterator._num_workers}"]
    if size is not None:
        parts.insert(1, f"batch_size={size}")
    return f"DataLoader({', '.join(parts)})"


def _leaves_of(batch: Any) -> list[Leaf]:
    return [
        Leaf(tuple(leaf.shape), leaf.dtype, leaf.is_pinned())
        for leaf in movable_leaves(batch)
        if can_stage(leaf)
    ]
