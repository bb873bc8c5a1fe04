"""A timeline of a few steps: what overlapped, and where the loop or its device starved.

    from sidestream.diagnose.timeline import Timeline

    with Timeline(loader) as timeline:
        for batch in itertools.islice(loader, 20):
            ...
    timeline.save("steps.svg")

A row is a stage of the loader's thread, the loop's wait on the host, the side stream's copies, and
what the consumer's stream does: waiting for a batch, or else the loop's own work.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch

from sidestream import device as seam
from sidestream.diagnose.picture import draw
from sidestream.loader import AsynchronousLoader
from sidestream.timing import record

ROWS = (
    "read", "wait for room", "wait for staging", "stage",
    "loop waits", "copy", "device waits", "compute",
)  # fmt: skip
"""In the order in which they are drawn; the last three are of the device, where it keeps time."""


@dataclasses.dataclass(frozen=True)
class Span:
    """Something that took time for a batch."""

    row: str
    """One of `ROWS`."""
    number: int
    """Of the batch, in its pass, from 0."""
    began_s: float
    """After the start of the timeline [s]."""
    ended_s: float
    """After the start of the timeline [s]."""


class Timeline:
    """Collects the spans of a loader while its block is entered.

    Entering and leaving wait for the device once; in between nothing does.

    Args:
        loader: Whose passes to watch, one under way and new ones.

    Raises:
        RuntimeError: On entering, if another timeline watches the loader.

    Threads:
        Enter and leave in the thread that runs the loop.
    """

    def __init__(self, loader: AsynchronousLoader[Any]) -> None:
        self._running = loader._run_here()
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._began = 0.0
        self._bases: dict[torch.device, torch.Event] = {}
        # Events of the device, with the row and the batch: read when the block is left.
        self._events: list[tuple[str, int, torch.Event, torch.Event]] = []

    def __enter__(self) -> Timeline:
        recorder = self._running.recorder
        if recorder.trace is not None:
            raise RuntimeError("another timeline watches this loader; leave it first")
        device = seam.resolve(None)
        if seam.has_streams(device) and seam.keeps_time(seam.current_stream(device)):
            torch.accelerator.synchronize(device)
            self._bases[device] = record(seam.current_stream(device))
            self._bases[device].synchronize()
        self._began = time.perf_counter()
        recorder.trace = self
        return self

    def __exit__(self, *error: object) -> None:
        for transfer in list(self._running._transfers.values()):
            if transfer.timer is not None:
                torch.accelerator.synchronize(transfer.device)
                transfer.timer.look()
        self._running.recorder.trace = None
        for row, number, began, ended in self._events:
            for base in self._bases.values():
                self._add(row, number, *(base.elapsed_time(one) / 1e3 for one in (began, ended)))
        self._events.clear()

    @property
    def spans(self) -> list[Span]:
        """What was collected, in the order of its beginning."""
        with self._lock:
            return sorted(self._spans, key=lambda span: span.began_s)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it: `.svg` for a picture, `.json` for Perfetto and Chrome's trace viewer.

        Raises:
            ValueError: If the name ends in neither.
        """
        kind = Path(path).suffix
        if kind == ".svg":
            text = draw(self.spans, ROWS)
        elif kind == ".json":
            text = json.dumps(as_trace(self.spans))
        else:
            raise ValueError(f"a timeline is written as .svg or .json, got {str(path)!r}")
        Path(path).write_text(text, encoding="utf-8")

    # ---- what the recorder of the loader calls

    def span(self, row: str, number: int, began: float, ended: float) -> None:
        """What a stage did for a batch, by the host's clock."""
        self._add(row, number, began - self._began, ended - self._began)

    def device_step(self, number: int, previous: Any, asked: Any, ready: Any) -> None:
        """The events around the wait for a batch on the consumer's stream."""
        self._events.append(("compute", number - 1, previous, asked))
        self._events.append(("device waits", number, asked, ready))

    def device_copy(self, number: int, began: Any, ended: Any) -> None:
        """The events around the copies of a batch."""
        self._events.append(("copy", number, began, ended))

    def _add(self, row: str, number: int, began_s: float, ended_s: float) -> None:
        if began_s >= 0.0:  # what began before is not shown
            with self._lock:
                self._spans.append(Span(row, number, began_s, ended_s))


def as_trace(spans: list[Span]) -> dict[str, Any]:
    """Spans in the format that Perfetto and Chrome's trace viewer read; times in us there."""
    names = [
        {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": row}}
        for tid, row in enumerate(ROWS)
    ] + [
        {"ph": "M", "pid": 1, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}
        for tid in range(len(ROWS))
    ]
    events = [
        {
            "ph": "X", "pid": 1, "tid": ROWS.index(span.row), "cat": "sidestream",
            "name": f"{span.row} {span.number}", "args": {"batch": span.number},
            "ts": span.began_s * 1e6, "dur": (span.ended_s - span.began_s) * 1e6,
        }
        for span in spans
    ]  # fmt: skip
    process = {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "sidestream"}}
    return {"displayTimeUnit": "ms", "traceEvents": [process, *names, *events]}
