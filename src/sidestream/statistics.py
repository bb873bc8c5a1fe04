"""Counters and spans fed with clock readings. Knows no torch and reads no clock itself."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidestream.diagnose.verdict import Verdict


@dataclasses.dataclass(frozen=True)
class LoaderStatistics:
    """What a loader has done since it was made. A snapshot; reading it resets nothing.

    The first batch of each pass is apart, in `warm_up_s` alone: it includes the start of worker
    processes and of the thread, and page-locking. A *step* is what lies between two hand-overs of
    one pass. "High" and "low" are meant beside `elapsed_s`.

    `print` shows it in one line.
    """

    num_epochs: int = 0
    """Passes begun [epochs]."""

    num_batches: int = 0
    """Batches handed to the consumer [batches]."""

    num_bytes: int = 0
    """Copied to the device for these batches [bytes]; 0 where nothing is copied. High for what
    the batches are worth: copy uint8 and convert on the device, in `transform`."""

    warm_up_s: float = 0.0
    """The consumer's wait for the first batch of each pass [s]. High: workers start slowly;
    `persistent_workers=True` starts them once."""

    num_steps: int = 0
    """Steps [steps]: hand-overs after the first of their pass."""

    elapsed_s: float = 0.0
    """How long these steps took, on the host [s]."""

    consumer_wait_s: float = 0.0
    """Time the consumer waited on the host for a batch [s]. High: the loop is starved, unless it
    runs ahead of its device; then `device_wait_s` tells. Low: loading costs the host nothing."""

    mean_waiting: float = 0.0
    """How many batches were in the buffer when the consumer asked, on average [batches]. Near
    `buffer_size`: the loop is the slowest stage. Near 0: it is starved."""

    num_loaded: int = 0
    """Batches loaded after the first of their pass [batches]; the next four speak of these."""

    source_wait_s: float = 0.0
    """Time spent in the source's `next` [s]. High: reading is the slowest stage; add workers or
    make the dataset cheaper. Low: it is not."""

    staging_s: float = 0.0
    """Time spent on packing batches, queueing their copies and `transform` [s]. High: the
    host's memory is the slowest stage; let workers pin the batches, or make them smaller."""

    staging_wait_s: float = 0.0
    """Time the loader's thread waited for copies that still read what it wants to write [s],
    page-locking included. High: the link is the slowest stage, or the loop runs far ahead of a
    device that is. Low: neither is."""

    room_wait_s: float = 0.0
    """Time the loader's thread waited for room in the buffer [s]. High: the consumer is the
    slowest stage, and loading costs it nothing. Near zero: the consumer is starved."""

    link_bytes_per_s: float | None = None
    """What the last copies ran at, on the device's clock [bytes/s], the median of up to 63: the
    host may be held up between the two events around one. None where that cannot be told.
    Low beside what `sidestream bench` measures: many small copies, or the link is shared."""

    num_timed: int = 0
    """Steps that the next two speak of [steps]: those the device has come to."""

    device_elapsed_s: float | None = None
    """How long these steps took, on the consumer's stream [s]; None where the device keeps no
    time, as the CPU does not."""

    device_wait_s: float | None = None
    """How long the consumer's stream had nothing to do for want of a batch, waits on the host
    included [s]; None as above. This is what loading costs. Low: it costs nothing."""

    peak_device_bytes: int = 0
    """The most device memory that one pass held, in the buffer and of the last two batches handed
    over [bytes]. High: make `buffer_size` smaller."""

    peak_staging_bytes: int = 0
    """The most page-locked memory held [bytes]. High: as above."""

    epoch: LoaderStatistics | None = None
    """The same for the pass begun last alone; None before the first."""

    def verdict(self) -> Verdict:
        """Which stage bounds the loop, why, what could still be gained, and what to change.

        Computed from these numbers alone.
        """
        from sidestream.diagnose.verdict import judge  # not needed before somebody asks

        return judge(self)

    def metrics(self) -> dict[str, float]:
        """The times of a step, for TensorBoard or any other logger: flat, numbers only.

        Returns:
            `step_ms`, and what it is made of: `wait_ms` for batches and `compute_ms` for the rest;
            `wait_share` [0 to 1]; of the loader's stages `read_ms`, `stage_ms`, and, where it can
            be measured, `link_ms`; `buffer` [batches]. What is not known yet is left out.
        """
        from sidestream.diagnose.verdict import metrics_of

        return metrics_of(self)

    def __str__(self) -> str:
        from sidestream.diagnose.verdict import in_one_line

        return in_one_line(self)


class _Sums:
    """What a snapshot is made of; the names that both have are the same."""

    def __init__(self) -> None:
        self.num_epochs = self.num_batches = self.num_bytes = self.num_steps = self.num_loaded = 0
        self.num_timed = self.peak_device_bytes = self.peak_staging_bytes = self.waiting = 0
        self.warm_up_s = self.elapsed_s = self.consumer_wait_s = self.source_wait_s = 0.0
        self.staging_s = self.staging_wait_s = self.room_wait_s = 0.0
        self.timed_s = self.stalled_s = 0.0
        self.rates: deque[float] = deque(maxlen=_NUM_RATES)

    def snapshot(self, epoch: LoaderStatistics | None) -> LoaderStatistics:
        """The values as they stand."""
        plain = {name: value for name, value in vars(self).items() if name in _NAMES}
        return LoaderStatistics(
            **plain,
            mean_waiting=self.waiting / self.num_steps if self.num_steps else 0.0,
            link_bytes_per_s=sorted(self.rates)[len(self.rates) // 2] if self.rates else None,
            device_elapsed_s=self.timed_s if self.num_timed else None,
            device_wait_s=self.stalled_s if self.num_timed else None,
            epoch=epoch,
        )


_NUM_RATES = 63
_NAMES = frozenset(field.name for field in dataclasses.fields(LoaderStatistics))


class Recorder:
    """Adds up what `LoaderStatistics` shows, of all passes of a loader.

    Threads:
        Any thread may add or look.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may look while its thread adds
        self._sums = _Sums()
        self._latest: PassRecorder | None = None
        self.trace: Any = None  # a `diagnose.timeline.Timeline`, while one watches

    def begin_pass(self) -> PassRecorder:
        """A recorder for a new pass."""
        with self._lock:
            self._latest = PassRecorder(self, self._lock, self._sums)
            return self._latest

    def snapshot(self) -> LoaderStatistics:
        """All as it stands."""
        with self._lock:
            latest = self._latest
            return self._sums.snapshot(None if latest is None else latest._sums.snapshot(None))


class PassRecorder:
    """Adds up one pass, and into the sums of its loader. All readings are of one clock [s]."""

    def __init__(self, whole: Recorder, lock: threading.RLock, sums: _Sums) -> None:
        self.whole = whole
        self._lock = lock
        self._sums = _Sums()
        self._both = (self._sums, sums)
        self._read_s = self._waited_s = 0.0
        self._loaded = 0
        self._delivered_at: float | None = None
        self._sizes: deque[tuple[int, int]] = deque()  # of batches held: copied, on the device
        self._held = self._handed = 0
        self.last_mark: Any = None
        """The device's event at the hand-over before."""
        for sums in self._both:
            sums.num_epochs += 1

    def read(self, began: float, ended: float, waited: float = 0.0) -> None:
        """A batch was read, after a wait for its memory; it counts when it is loaded."""
        self._read_s, self._waited_s = ended - began, waited
        if (trace := self.whole.trace) is not None:
            trace.span("read", self._loaded, began, ended)

    def loaded(
        self,
        asked: float,
        began: float,
        ended: float,
        *,
        waited: float,
        sizes: tuple[int, int, int],
    ) -> int:
        """The batch read last was loaded.

        Args:
            asked: When room for it was asked for.
            began: When there was room.
            ended: When it was loaded.
            waited: For how much of that staging memory was waited for.
            sizes: What was copied, what it holds on the device, and the page-locked memory
                of all [bytes].

        Returns:
            Its number in this pass.
        """
        copied, on_device, staging = sizes
        with self._lock:
            self._sizes.append((copied, on_device))
            self._held += on_device
            number, self._loaded = self._loaded, self._loaded + 1
            for sums in self._both:
                if number:
                    sums.num_loaded += 1
                    sums.source_wait_s += self._read_s
                    sums.room_wait_s += began - asked
                    sums.staging_wait_s += self._waited_s + waited
                    sums.staging_s += ended - began - waited
                sums.peak_device_bytes = max(sums.peak_device_bytes, self._held)
                sums.peak_staging_bytes = max(sums.peak_staging_bytes, staging)
        if (trace := self.whole.trace) is not None:
            trace.span("wait for room", number, asked, began)
            trace.span("wait for staging", number, began, began + waited)
            trace.span("stage", number, began + waited, ended)
        return number

    def delivered(self, asked: float, ended: float, num_waiting: int) -> int:
        """A batch was handed over.

        Args:
            asked: When it was asked for.
            ended: When it was handed over.
            num_waiting: How many were in the buffer at that request [batches].

        Returns:
            Its number in this pass.
        """
        with self._lock:
            number, self._handed = self._handed, self._handed + 1
            size = self._sizes[min(number, 2)][0] if self._sizes else 0
            if number >= 2:  # the batch before the one before this is let go of
                self._held -= self._sizes.popleft()[1]
            before, self._delivered_at = self._delivered_at, ended
            for sums in self._both:
                sums.num_batches += 1
                sums.num_bytes += size
                if before is None:
                    sums.warm_up_s += ended - asked
                    continue
                sums.num_steps += 1
                sums.elapsed_s += ended - before
                sums.consumer_wait_s += ended - asked
                sums.waiting += num_waiting
        if (trace := self.whole.trace) is not None:
            trace.span("loop waits", number, asked, ended)
        return number

    def timed_step(self, step_s: float, wait_s: float) -> None:
        """A step's time between two hand-overs on the consumer's stream, and its idle part."""
        with self._lock:
            for sums in self._both:
                sums.num_timed += 1
                sums.timed_s += step_s
                sums.stalled_s += wait_s

    def timed_copy(self, size_bytes: int, copy_s: float) -> None:
        """A copy's time on the device."""
        with self._lock:
            for sums in self._both:
                sums.rates.append(size_bytes / max(copy_s, 1e-9))
