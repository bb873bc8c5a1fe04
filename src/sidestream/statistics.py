"""Counters fed with clock readings. Knows no torch and reads no clock itself."""

from __future__ import annotations

import dataclasses
import threading


@dataclasses.dataclass(frozen=True)
class LoaderStatistics:
    """What a loader has done since it was made. A snapshot; reading it resets nothing."""

    num_epochs: int = 0
    """Passes begun [epochs]."""

    num_batches: int = 0
    """Batches handed to the consumer [batches]."""

    source_wait_s: float = 0.0
    """Time spent in the source's `next` [s]. High beside the length of the run: reading is the
    slowest stage; add workers or make the dataset cheaper. Low: it is not."""

    transfer_s: float = 0.0
    """Time the loader's thread spent on staging batches and queueing their copies [s], waits for
    staging memory included. High: the link or the host's memory is the slowest stage."""

    room_wait_s: float = 0.0
    """Time the loader's thread waited for room in the buffer [s]. High: the consumer is the
    slowest stage, and loading costs it nothing. Near zero: the consumer is starved."""

    consumer_wait_s: float = 0.0
    """Time the consumer waited on the host for a batch [s], the first of each epoch included.
    This alone is what loading costs a loop that does not run ahead of its device."""


class Recorder:
    """Adds up what `LoaderStatistics` shows. Any thread may add or look."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may look while its thread adds
        self._sums: dict[str, float] = dict.fromkeys(
            (field.name for field in dataclasses.fields(LoaderStatistics)), 0
        )

    def add(self, **amounts: float) -> None:
        """Add amounts to the counters of these names."""
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    def snapshot(self) -> LoaderStatistics:
        """The counters as they stand."""
        with self._lock:
            return LoaderStatistics(**self._sums)  # type: ignore[arg-type]
