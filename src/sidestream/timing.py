"""When the device came to what: events that are recorded now and read once it has been there.

And names for what is done, shown to whoever profiles the program.

Nothing here ever waits for the device. What it has not come to yet is left for the next look.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from typing import Any, TypeAlias

import torch

from sidestream import device as seam
from sidestream.statistics import PassRecorder

Mark: TypeAlias = tuple[torch.Stream, torch.Event]
_Step: TypeAlias = tuple[PassRecorder, int, torch.Event, torch.Event, torch.Event]


class Copies:
    """The copies of one batch out of page-locked memory, each with the time it began.

    Args:
        stream: Where they are queued; None to take no times.
    """

    def __init__(self, stream: torch.Stream | None = None) -> None:
        self._stream = stream
        self.began: list[torch.Event] = []
        self.ended: torch.Event | None = None  # after the last
        self.num_bytes = self.last_bytes = 0
        self.waited_s = 0.0  # for staging memory

    def queue(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Queue one, on the stream that is current.

        Returns:
            The target.
        """
        self.last_bytes = source.nbytes
        self.num_bytes += self.last_bytes
        if self._stream is not None:
            self.began.append(record(self._stream))
        return target.copy_(source, non_blocking=True)


def record(stream: torch.Stream) -> torch.Event:
    """An event that keeps the time, recorded on a stream."""
    event = torch.Event(device=stream.device, enable_timing=True)
    event.record(stream)
    return event


def named(name: str) -> contextlib.AbstractContextManager[Any]:
    """Show what is done inside under a name, where somebody looks: torch.profiler, or Nsight.

    The profiler sees the loader's thread only if it is told to look at all threads.
    """
    if getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
        return torch.profiler.record_function(name)
    return torch.cuda.nvtx.range(name) if _NSIGHT and torch.cuda.is_available() else _NOTHING


_NOTHING = contextlib.nullcontext()
# Set in the programs that Nsight Systems starts and whose NVTX ranges it collects.
_NSIGHT = "NVTX_INJECTION64_PATH" in os.environ


class StreamTimer:
    """Measures steps on the consumer's streams, and copies.

    Threads:
        `loaded`: the loader's threads. All else: any.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._steps: deque[_Step] = deque()
        self._copies: deque[tuple[PassRecorder, int, Copies, torch.Event]] = deque()

    def asked(self) -> Mark:
        """Mark that a batch is asked for: reached when the stream has done all before."""
        stream = seam.current_stream(self._device)
        return stream, record(stream)

    def delivered(self, recorder: PassRecorder, number: int, mark: Mark) -> None:
        """Mark that this batch was handed over: reached when the stream may go on."""
        stream, asked = mark
        ready = record(stream)
        previous, recorder.last_mark = recorder.last_mark, ready
        if previous is not None:
            self._steps.append((recorder, number, previous, asked, ready))
        self.look()

    def loaded(self, recorder: PassRecorder, number: int, copies: Copies) -> None:
        """Note the copies of a batch, queued by now."""
        if copies.began and copies.ended is not None:
            self._copies.append((recorder, number, copies, copies.ended))

    def look(self) -> None:
        """Read what the device has come to."""
        if not self._lock.acquire(blocking=False):  # somebody looks
            return
        try:
            with contextlib.suppress(RuntimeError):  # a backend without times: none are shown
                self._look()
        finally:
            self._lock.release()

    def _look(self) -> None:
        while self._steps and self._steps[0][-1].query():
            recorder, number, previous, asked, ready = self._steps.popleft()
            if (trace := recorder.whole.trace) is not None:
                trace.device_step(number, previous, asked, ready)
            recorder.timed_step(
                previous.elapsed_time(ready) / 1e3, asked.elapsed_time(ready) / 1e3
            )
        while self._copies and self._copies[0][-1].query():
            recorder, number, copies, ended = self._copies.popleft()
            if (trace := recorder.whole.trace) is not None:
                trace.device_copy(number, copies.began[0], ended)
            # Of the last one alone: between two, the stream may wait for the host.
            recorder.timed_copy(copies.last_bytes, copies.began[-1].elapsed_time(ended) / 1e3)
