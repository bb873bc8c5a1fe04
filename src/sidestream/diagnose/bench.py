"""`sidestream bench`: what this machine can do, as ratios of two things measured in one run."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from sidestream import device as seam
from sidestream.loader import AsynchronousLoader

_SIZE_BYTES = 64 << 20
"""Of one copy: large enough that its start does not count."""
_ROUNDS = 7
_BATCHES = 200
_STEPS = 24
_STAGE_S = 0.01
"""Of reading and of computing in the overlap: long beside what a thread needs to wake."""


@dataclasses.dataclass(frozen=True)
class Figures:
    """What was measured; None where it cannot be, which `missing` explains."""

    device: str
    pinned_bytes_per_s: float | None
    """Page-locked memory to the device [bytes/s]."""
    pageable_bytes_per_s: float | None
    """Ordinary memory to the device [bytes/s]."""
    staging_bytes_per_s: float
    """Ordinary memory into page-locked, or into ordinary memory where there is none [bytes/s]."""
    hand_over_s: float
    """What a batch that is ready costs the loop [s]."""
    plain_hand_over_s: float
    """What it costs a plain loop with `.to(device)`: nothing but the copy [s]."""
    overlap: float
    """Steps of 10 ms reading beside 10 ms of waiting, over the slower of the two [ratio]: 1 is
    perfect, 2 a plain loop."""
    missing: str

    def lines(self) -> list[str]:
        """For a terminal."""
        lines = [f"device {self.device}"]
        if self.pinned_bytes_per_s and self.pageable_bytes_per_s:
            lines += [
                f"  page-locked copies   {_gb(self.pinned_bytes_per_s)}, "
                f"{self.pinned_bytes_per_s / self.pageable_bytes_per_s:.2f} times pageable ones",
                f"  pageable copies      {_gb(self.pageable_bytes_per_s)}",
                f"  staging, one thread  {_gb(self.staging_bytes_per_s)}, "
                f"{self.staging_bytes_per_s / self.pinned_bytes_per_s:.2f} of the link",
            ]
        else:
            lines.append(f"  host memory, one thread  {_gb(self.staging_bytes_per_s)}")
        lines += [
            f"  hand-over of a ready batch  {self.hand_over_s * 1e6:.0f} us; a plain loop's "
            f"batch.to(device) {self.plain_hand_over_s * 1e6:.0f} us",
            f"  reading beside computing, 10 ms each: {self.overlap:.2f} of the slower one "
            "(1 is perfect, a plain loop takes 2)",
        ]
        return lines + ([f"  not measured: {self.missing}"] if self.missing else [])


def bench(device: str | None, *, as_json: bool = False) -> int:
    """Measure, and print.

    Returns:
        2 if the device is not there, else 0.
    """
    try:
        target = seam.resolve(seam.parse(device))
    except ValueError as error:
        sys.stderr.write(f"sidestream bench: {error}\n")
        return 2
    found = measure(target)
    text = json.dumps(dataclasses.asdict(found), indent=1) if as_json else "\n".join(found.lines())
    sys.stdout.write(text + "\n")
    return 0


def measure(device: torch.device) -> Figures:
    """Measure a device."""
    has_link = seam.has_streams(device)
    page_locked = seam.pinned_bytes if has_link else _ordinary
    staging = page_locked(_SIZE_BYTES)
    source = torch.ones(_SIZE_BYTES, dtype=torch.uint8)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the loader's thread has it
    try:
        staged_s = _best(lambda: staging.copy_(source), _nothing)
    finally:
        torch.set_num_threads(threads)
    pinned = pageable = None
    if has_link:
        there = torch.empty(_SIZE_BYTES, dtype=torch.uint8, device=device)

        def wait() -> None:
            torch.accelerator.synchronize(device)

        pinned = _SIZE_BYTES / _best(lambda: there.copy_(staging, non_blocking=True), wait)
        pageable = _SIZE_BYTES / _best(lambda: there.copy_(source), wait)
    plain, ours = _hand_over(device)
    return Figures(
        device=str(device),
        pinned_bytes_per_s=pinned,
        pageable_bytes_per_s=pageable,
        staging_bytes_per_s=_SIZE_BYTES / staged_s,
        hand_over_s=ours,
        plain_hand_over_s=plain,
        overlap=_overlap(device),
        missing="" if has_link else "the link, for there is no accelerator with streams",
    )


def _best(copy: Callable[[], Any], wait: Callable[[], None]) -> float:
    """The shortest of several rounds [s]: what disturbs a copy only makes it longer."""
    seconds = []
    for _ in range(_ROUNDS):
        wait()
        began = time.perf_counter()
        copy()
        wait()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _hand_over(device: torch.device) -> tuple[float, float]:
    """The median time of `.to(device)`, and of `next` with the batch in the buffer [s]."""
    batches = [(torch.zeros(256, 64), torch.zeros(256, dtype=torch.int64))] * _BATCHES
    plain = []
    for batch in batches:
        began = time.perf_counter()
        moved = [tensor.to(device) for tensor in batch]
        plain.append(time.perf_counter() - began)
        del moved
    ours = []
    passed: Any = iter(AsynchronousLoader(batches, device))
    next(passed)
    for _ in range(_BATCHES - 1):
        while not passed._epoch.num_waiting:  # a hand-over that has to wait is not meant
            time.sleep(0)
        began = time.perf_counter()
        next(passed)
        ours.append(time.perf_counter() - began)
    passed.close()
    return statistics.median(plain), statistics.median(ours)


def _overlap(device: torch.device) -> float:
    def reading() -> Iterator[torch.Tensor]:
        for _ in range(_STEPS + 1):
            time.sleep(_STAGE_S)
            yield torch.zeros(1024)

    def seconds(batches: Iterable[torch.Tensor]) -> float:
        passed = iter(batches)
        next(passed)
        began = time.perf_counter()
        for _ in passed:
            time.sleep(_STAGE_S)
        return time.perf_counter() - began

    alone = time.perf_counter()
    for _ in range(_STEPS):
        time.sleep(_STAGE_S)
    alone = time.perf_counter() - alone
    return seconds(AsynchronousLoader(reading(), device)) / alone


def _ordinary(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8)


def _nothing() -> None:
    pass


def _gb(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s"
