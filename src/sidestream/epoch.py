"""One pass over the source: its thread, the order of its batches, its errors, its certain end.

    consumer's thread                        loader's thread
    -----------------                        ---------------
    iter(loader): iter(source)
    first next: next(source), batch 0  --->  make room, load batch 0, put
    next: take, hand over, give room back    next(source), make room, load, put
    ...                                      ...

The thread knows the parts that it works with and not the iterator that the consumer holds. So a
forgotten iterator is collected, and its collection ends the thread.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import functools
import itertools
import os
import threading
import time
import weakref
from collections import deque
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

from sidestream.channel import Channel, ChannelEnd
from sidestream.context import ThreadState
from sidestream.errors import annotate, as_raisable
from sidestream.source import EndOfSource, Source, begin_thread, is_reading
from sidestream.statistics import PassRecorder
from sidestream.timing import named
from sidestream.transfer import Parcel, PlainTransfer, StreamTransfer

BatchT = TypeVar("BatchT")
Transfer: TypeAlias = PlainTransfer | StreamTransfer

CLOSE_TIMEOUT_S = 10.0
"""How long ending an epoch waits for the source to come back [s].

A DataLoader notices the death of a worker process after 5 s; the rest is a margin.
"""

FORGET_TIMEOUT_S = 0.5
"""How long a `break` waits for a read that is under way [s]. A plain loop would not wait at all;
most reads are over by then, and the thread ends by itself when a longer one is."""

EXIT_TIMEOUT_S = 2.0
"""How long interpreter exit waits, for all epochs together [s]. Arbitrary: longer than a copy, and
short enough not to be taken for a hang."""

_AGAIN_S = 0.05
"""When a Ctrl-C that came during a finalizer comes again [s]: after the finalizer."""

_clock = time.perf_counter
_numbers = itertools.count()
_alive: weakref.WeakSet[Epoch] = weakref.WeakSet()


class Epoch:
    """The parts of one pass, and the thread that runs them.

    Args:
        source: What to read.
        transfer: What moves a batch.
        buffer_size: How many batches may wait for the consumer [batches]; 0 for no thread: each
            is read and moved when it is asked for.
        recorder: Where times and counts go.

    Threads:
        Any thread may call any method, also at once.
    """

    def __init__(
        self, source: Source, transfer: Transfer, buffer_size: int, recorder: PassRecorder
    ) -> None:
        self.source = source
        self._transfer = transfer
        self._channel: Channel[Parcel] | None = Channel(buffer_size) if buffer_size else None
        self._recorder = recorder
        self._state = ThreadState()
        self._process = os.getpid()
        self._starting = threading.RLock()
        self._first: deque[Any] = deque()  # a batch read here, until it is moved or handed on
        self._begun = False
        self._threads: list[threading.Thread] = []
        self._running = False
        self._error: BaseException | None = None  # that is on its way to the consumer
        self._has_raised = False
        self._over: str | None = None
        self.position = source.position
        """After the batch delivered last."""
        _alive.add(self)
        _close_all_at_exit()

    @property
    def is_over(self) -> bool:
        """Whether it has ended and left no thread."""
        return self._over is not None and not any(one.is_alive() for one in self._threads)

    @property
    def is_stopped(self) -> bool:
        """Whether it was told to end, or has ended."""
        return self._over is not None

    @property
    def num_waiting(self) -> int:
        """How many batches wait for the consumer [batches]."""
        return 0 if self._channel is None else len(self._channel)

    def next(self) -> Any:
        """The next batch, ready for use on the stream that is current in the calling thread.

        Raises:
            StopIteration: At the end, and always after it.
            RuntimeError: In another process than the one that made it.
            BaseException: What the source, the transfer or the transform raised.
        """
        if self._process != os.getpid():
            raise RuntimeError(
                f"this iterator belongs to process {self._process}, where its thread is; "
                f"call iter() on the loader again in process {os.getpid()}"
            )
        asked, waiting, channel = _clock(), self.num_waiting, self._channel
        timer = self._transfer.timer
        mark = None if timer is None else timer.asked()
        with named("sidestream: next"):
            batch = self._next_inline() if channel is None else self._next_taken(channel)
        number = self._recorder.delivered(asked, _clock(), waiting)
        if timer is not None and mark is not None:
            timer.delivered(self._recorder, number, mark)
        return batch

    def stop(self, reason: str = "") -> None:
        """Tell the thread to end, without waiting for it.

        Args:
            reason: What to say to a consumer that goes on asking; none to say plainly that the
                epoch has ended.
        """
        if self._process != os.getpid():  # a forked child: the thread stayed with the parent
            return
        if self._over is None:
            self._over = reason
        if self._channel is not None:
            self._channel.close()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S, reason: str = "") -> None:
        """End the epoch: no thread, no worker process and no batch stays behind.

        Raises:
            TimeoutError: If the thread has not ended in time; the message names it.
        """
        if self._process != os.getpid():
            return
        self.stop(reason)
        threads = [one for one in self._threads if one.ident is not None]
        if threading.current_thread() in threads:  # closed by the source: ends when that returns
            return
        for thread in threads:
            thread.join(timeout_s)
            if thread.is_alive():
                raise TimeoutError(
                    f'the thread "{thread.name}" has not ended within {timeout_s:g} s: the source '
                    "has not come back from reading a batch; it ends as soon as the source does"
                )
        self.source.end()
        self._collect_unused()

    def forget(self) -> None:
        """End the epoch, but do not wait long where the source keeps the thread.

        Raises:
            TimeoutError: As `close`.
        """
        try:
            self.close(FORGET_TIMEOUT_S)
        except TimeoutError:
            if not self.source.is_ending:
                raise
            self.close()  # worker processes are being ended

    # ---- one batch

    def _next_inline(self) -> Any:
        with self._starting:
            if self._over is not None:
                raise RuntimeError(self._over) if self._over else StopIteration
            if not self._first:
                self._read()
            batch = self._first.popleft()
        try:
            with self._transfer.reading():
                parcel = _load(self._transfer, self.source, batch, self._recorder, _clock())
            return self._deliver(parcel)
        except StopIteration as error:
            self.close()
            raise as_raisable(error) from error
        except BaseException:
            self.close()
            raise

    def _next_taken(self, channel: Channel[Parcel]) -> Any:
        if not self._running:
            self._start(channel)
        try:
            parcel = channel.take()
        except ChannelEnd as end:
            with self._starting:
                if not self._has_raised and end.error is not None:
                    self._error = end.error
        else:
            try:
                return self._deliver(parcel)
            finally:
                channel.release()
        if self._error is None:
            return self._next_inline()
        # Kept until here: an exception from outside during the close must not take its place.
        self.close()
        with self._starting:
            error, self._error, self._has_raised = self._error, None, True
        if error is None:  # another thread has raised it
            raise StopIteration
        try:
            raise as_raisable(error)
        finally:
            del error  # a frame that holds its own traceback is a cycle

    def _deliver(self, parcel: Parcel) -> Any:
        batch = self._transfer.hand_over(parcel)
        self.position = parcel.position
        return batch

    def _start(self, channel: Channel[Parcel]) -> None:
        """Read the first batch here, in the caller's thread, and leave the rest to another.

        The caller waits for it anyway, and its random draws, the forks of worker processes and
        the first errors happen where a plain loop has them.
        """
        with self._starting:
            if self._running or self._over is not None:
                return
            if not self._begun:
                self._transfer.follow_caller()
                self._read()
            # An exception from outside, Ctrl-C for one, may come at any point of a start. Then it
            # is tried again at the next call, and whichever thread takes the first batch is it.
            if not any(one.ident is not None for one in self._threads):
                parts = (self.source, self._transfer, channel, self._recorder, self._first)
                thread = threading.Thread(
                    name=f"sidestream-epoch-{next(_numbers)}",
                    target=self._state.run,
                    args=(_produce, *parts),
                    # Not waited for at exit before the handler below has told it to end.
                    daemon=True,
                )
                self._threads.append(thread)
                thread.start()
            self._running = True

    def _read(self) -> None:
        """Read a batch in the caller's thread; end the pass where the source does."""
        try:
            with self._transfer.reading():
                began = _clock()
                self._first.append(self.source.read())
                self._begun = True
                self._recorder.read(began, _clock())
        except EndOfSource:
            self.position = self.source.position
            self.close()
            raise StopIteration from None
        except BaseException:
            if self.source.has_failed:
                self.close()
            raise

    def _collect_unused(self) -> None:
        parcels, error = ([], None) if self._channel is None else self._channel.drain()
        raws = [parcel.raw for parcel in parcels]
        while self._first:
            raws.append(self._first.popleft())
        self.source.give_back(raws, None if self._has_raised or self._error is not None else error)


class EpochIterator(Generic[BatchT]):
    """What `iter(loader)` gives: hands out an epoch's batches, and ends it when forgotten."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch

    def __iter__(self) -> EpochIterator[BatchT]:
        return self

    def __next__(self) -> BatchT:
        batch: BatchT = self._epoch.next()
        return batch

    def close(self) -> None:
        """End this pass.

        Raises:
            TimeoutError: If the source does not come back within 10 s; names the thread.
        """
        self._epoch.close()

    def __del__(self) -> None:
        # Nobody could catch anything here. The loader joins the thread before it reads again.
        try:
            self._epoch.stop()
            if not is_reading():
                self._epoch.forget()
        except KeyboardInterrupt:  # a finalizer swallows it, and the program must not
            threading.Timer(_AGAIN_S, _thread.interrupt_main).start()
        except BaseException:  # noqa: BLE001 - see above
            pass

    def __reduce__(self) -> NoReturn:
        raise TypeError("a pass under way cannot be copied or pickled; the loader can")


def _load(
    transfer: Transfer, source: Source, batch: Any, recorder: PassRecorder, asked: float
) -> Parcel:
    """Load the batch that was read last."""
    began = _clock()
    try:
        with named("sidestream: stage"):
            parcel = transfer.load(batch)
        parcel.raw = batch if source.is_one_shot else None
        parcel.position = source.position
    except BaseException as error:
        number = source.num_read - 1
        annotate(error, f"raised on the way to {transfer.device}, moving batch {number}")
        raise
    number = recorder.loaded(
        asked, began, _clock(), waited=parcel.copies.waited_s, sizes=parcel.sizes
    )
    if transfer.timer is not None:
        transfer.timer.loaded(recorder, number, parcel.copies)
    return parcel


def _produce(
    source: Source,
    transfer: Transfer,
    channel: Channel[Parcel],
    recorder: PassRecorder,
    first: deque[Any],
) -> None:
    """The body of the loader's thread: load the batch given, then read and load until the end.

    A batch is read before there is room for it, so that reading goes on while the buffer is full;
    its device memory is allocated after.
    """
    error: BaseException | None = None
    begin_thread()
    try:
        batch = first.popleft()
    except IndexError:  # another thread has it
        return
    try:
        with transfer.reading():
            while True:
                asked = _clock()
                if not channel.reserve():
                    source.give_back([batch])
                    break
                channel.put(_load(transfer, source, batch, recorder, asked))
                del batch  # nothing of it may be held while the next one is read
                if source.is_at_length:
                    break
                loaded = _clock()
                transfer.wait_for_sources()
                began = _clock()
                batch = source.read()
                recorder.read(began, _clock(), began - loaded)
    except EndOfSource:
        pass
    except BaseException as raised:  # noqa: BLE001 - this is where they all are caught
        error = raised
    finally:
        batch = None
        source.is_ending = True
        transfer.end_pass()
        if error is not None or not source.is_at_length:
            source.end()  # before the consumer learns of the end: worker processes end with it
        channel.finish(error)
        del error


@functools.cache
def _close_all_at_exit() -> None:
    atexit.register(_close_all)


def _close_all() -> None:
    """End all threads: one that is inside torch when the interpreter goes aborts the process."""
    epochs = list(_alive)
    for epoch in epochs:
        epoch.stop()
    deadline = time.monotonic() + EXIT_TIMEOUT_S
    for epoch in epochs:
        with contextlib.suppress(TimeoutError):
            epoch.close(max(0.0, deadline - time.monotonic()))
