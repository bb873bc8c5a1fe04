"""The source of one epoch: its iterator, read by one thread at a time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

from sidestream.errors import annotate
from sidestream.resume import Position, ReadAgain, Start
from sidestream.timing import named

Unused: TypeAlias = deque[tuple[Any, BaseException | None]]
"""Batches that were read from a one-shot iterator and not used, and the error behind them."""

_reading = threading.local()


class EndOfSource(Exception):  # noqa: N818 - an end, not an error
    """The source has no further batch. Not a `StopIteration`, which a generator would swallow."""


def begin_thread() -> None:
    """Say that the calling thread is a loader's."""
    _reading.depth = 1


@contextlib.contextmanager
def inside_source(*, pinned: bool = False) -> Iterator[None]:
    """Say so while code of the source's runs, or may be waited for, in the calling thread.

    Args:
        pinned: Whether tensors that arrive page-locked are copied from where they are.
    """
    _reading.depth = getattr(_reading, "depth", 0) + 1
    outer, _reading.pinned = getattr(_reading, "pinned", False), pinned
    try:
        yield
    finally:
        _reading.depth -= 1
        _reading.pinned = outer


def copies_from_pinned() -> bool:
    """Whether a loader that copies page-locked tensors from where they are opens its source."""
    return getattr(_reading, "pinned", False)


def is_reading() -> bool:
    """Whether the calling thread is inside a source, or is a loader's thread.

    A finalizer that the garbage collector runs there must not wait for another loader's thread,
    which may be waiting for this one.
    """
    return bool(getattr(_reading, "depth", 0))


class Source:
    """Reads the user's iterator, never past the limit and never from two threads at once.

    Args:
        iterator: What `iter` of the user's data gave.
        start: How the pass begins: reads the first batch, and takes positions.
        num_batches: The most to read [batches]; None for no limit.
        length: How many it says it has [batches]; None where it does not.
        lock: Held while reading. All epochs of a loader share it: a dataset need not stand being
            used by two threads at once.
        unused: Where batches wait that were read and not used, for an iterator that cannot give
            them again; None for data that can be iterated afresh.
    """

    def __init__(
        self,
        iterator: Iterator[Any],
        start: Start,
        num_batches: int | None,
        length: int | None,
        lock: threading.RLock,
        unused: Unused | None,
    ) -> None:
        self._iterator: Iterator[Any] | None = iterator
        self._length = length
        self._start = start
        self._first = True
        self._num_batches = num_batches
        self._lock = lock
        self._unused = unused
        self.num_read = start.position.num_batches
        self.is_ending = False
        """Whether its thread has read all it will, and is letting the iterator go."""
        self.has_failed = False
        """Whether the user's code raised something, so that nothing more can be read."""

    @property
    def position(self) -> Position:
        """After the batch read last."""
        return self._start.position

    @property
    def is_at_length(self) -> bool:
        """Whether as much was read as the source says it has.

        A loop that takes exactly so many batches does not ask further, and some sources do
        something at their end: a sampler draws once more. So it is the consumer who asks.
        """
        return self.num_read == self._length and self._iterator is not None

    @property
    def is_one_shot(self) -> bool:
        """Whether a batch that is read and not used would be lost."""
        return self._unused is not None

    def reads(self, iterator: Any) -> bool:
        """Whether it is this object that is read here."""
        return self._iterator is iterator

    def read(self) -> Any:
        """The next batch.

        Raises:
            EndOfSource: After the last.
            BaseException: Whatever the source raises, with a note that names the batch.
        """
        if self._iterator is None:
            raise EndOfSource
        if self._num_batches is not None and self.num_read >= self._num_batches:
            self._start.cut_short(self._iterator)
            raise EndOfSource
        with inside_source(), self._lock, named("sidestream: read"):
            started = time.perf_counter()
            try:
                batch = self._next()
            except StopIteration:
                self._start.finish(self.num_read)
                raise EndOfSource from None
            except EndOfSource:
                raise
            except BaseException as error:
                self.has_failed = True
                where = "the loader's thread" if _reading.depth > 1 else "the caller's thread"
                annotate(error, f"raised in {where}, reading batch {self.num_read}")
                raise
            self.num_read += 1
            self._start.snapshot(self.num_read, time.perf_counter() - started)
        return batch

    def give_back(self, batches: list[Any], error: BaseException | None = None) -> None:
        """Keep what was read and not used for the next epoch, where it would be lost else."""
        if self._unused is not None:
            if error is not None:
                self._unused.appendleft((None, error))
            self._unused.extendleft((batch, None) for batch in reversed(batches))

    def end(self) -> None:
        """Let go of the iterator: worker processes end with it."""
        self._iterator = None

    def _next(self) -> Any:
        if self._unused:
            batch, error = self._unused.popleft()
            if error is not None:
                raise error
            return batch
        if self._iterator is None:
            raise EndOfSource
        if self._first:
            self._first = False
            with contextlib.suppress(ReadAgain):
                return self._start.first(self._iterator.__next__)
            self._iterator = None  # its worker processes end first
            self._iterator = self._start.open()
            return self._start.first(self._iterator.__next__)
        return next(self._iterator)
