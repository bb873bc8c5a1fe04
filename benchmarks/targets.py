"""The devices that benchmarks run on: what takes how long there, and what can be told of it.

On the simulated accelerator a copy and a computation take the time that is declared. On a GPU a
computation spins for the time that is asked for, and a batch is made as large as the link can
copy in the time that is asked for.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterator
from typing import Any

import torch

MEBIBYTE = 1 << 20


class Simulated:
    """The accelerator made of host threads."""

    name = "sim"
    peer_device = "cuda"
    """What loaders of other libraries call the device."""
    judges_races = True

    def __init__(self) -> None:
        from sidestream import simulator

        simulator.enable()
        torch.set_num_threads(1)  # or every stream's thread starts a team of its own
        self._simulator = simulator

    def for_cuda_code(self) -> contextlib.AbstractContextManager[None]:
        """Surroundings in which code written for CUDA runs on the device."""
        return self._simulator.as_cuda()

    def batch_bytes(self, copy_s: float, wanted: int) -> int:
        """How large a batch must be to take `copy_s` to copy: as large as is wanted."""
        return wanted

    def copying_at(self, bytes_per_s: float) -> contextlib.AbstractContextManager[Any]:
        """Surroundings in which the link has this bandwidth."""
        return self._simulator.settings(h2d_bytes_per_s=bytes_per_s)

    def unguarded(self) -> contextlib.AbstractContextManager[Any]:
        """Surroundings without checks that take the processor's time for every byte."""
        return self._simulator.settings(guard_host=False, poison_copies=False, poison_memory=False)

    def compute(self, seconds: float) -> None:
        """Queue a computation of that length on the current stream."""
        self._simulator.delay(seconds)

    def races(self) -> list[str]:
        """The kinds of the races found since the last call."""
        return [race.kind.name for race in self._simulator.races()]

    def pinned_bytes(self) -> int:
        """Page-locked memory that is held, free blocks of the allocator included [bytes]."""
        return self._simulator.pinned_memory().reserved_bytes


class Cuda:
    """A CUDA GPU."""

    name = peer_device = "cuda"
    judges_races = False

    def __init__(self) -> None:
        self._cycles_per_s = _cycles_per_second()
        self.link_bytes_per_s = _link_bytes_per_s()

    def for_cuda_code(self) -> contextlib.AbstractContextManager[None]:
        """Nothing to do."""
        return contextlib.nullcontext()

    def batch_bytes(self, copy_s: float, wanted: int) -> int:
        """How large a batch must be to take `copy_s` to copy, to the next 4 bytes."""
        return int(copy_s * self.link_bytes_per_s) // 4 * 4

    def copying_at(self, bytes_per_s: float) -> contextlib.AbstractContextManager[Any]:
        """The link is what it is."""
        return contextlib.nullcontext()

    def unguarded(self) -> contextlib.AbstractContextManager[Any]:
        """There are none."""
        return contextlib.nullcontext()

    def compute(self, seconds: float) -> None:
        """Spin for that long on the current stream."""
        torch.cuda._sleep(int(seconds * self._cycles_per_s))

    def races(self) -> list[str]:
        """Nobody judges; values alone tell."""
        return []

    def pinned_bytes(self) -> int:
        """Page-locked memory that is held [bytes]; 0 where this torch cannot tell."""
        statistics = getattr(torch.cuda, "host_memory_stats", dict)()
        return int(statistics.get("reserved_bytes.current", 0))


class Host:
    """No accelerator: batches stay where they are."""

    name = peer_device = "cpu"
    judges_races = False

    def __init__(self) -> None:
        torch.set_num_threads(1)


def target(name: str) -> Any:
    """The target of a name."""
    return {"sim": Simulated, "cuda": Cuda, "cpu": Host}[name]()


def _timed(queue: Any, times: int) -> float:
    """Device time of the last of some calls [s]."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for number in range(times):
        if number == times - 1:
            start.record()
        queue()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _cycles_per_second(cycles: int = 20_000_000) -> float:
    return cycles / _timed(lambda: torch.cuda._sleep(cycles), 3)


def _link_bytes_per_s(size_bytes: int = 256 * MEBIBYTE) -> float:
    host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
    return size_bytes / _timed(lambda: there.copy_(host, non_blocking=True), 5)


def settle() -> None:
    """Let the device come to rest, with nothing cached, and peaks begin anew."""
    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()


def resident_bytes() -> int:
    """Memory of this process that is in RAM [bytes]."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Reads:
    """A map-style dataset whose items are whole batches, and take their time.

    A batch is a tiny image and the data; number `i` is filled with the value of `i`. Reading
    sleeps, as a disk or a worker does: it takes no processor time.
    """

    KINDS = 5  # as many different batches, so that neighbours differ

    def __init__(self, length: int, size_bytes: int, read_s: float) -> None:
        self.length, self.size_bytes, self.read_s = length, size_bytes, read_s
        self.batches = [
            (
                torch.zeros(1, 3, 8, 8, dtype=torch.uint8),
                torch.full((size_bytes // 4,), float(kind + 1)),
            )
            for kind in range(self.KINDS)
        ]
        self.began = 0.0
        self._late = 0.0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            self.began = time.perf_counter()
        if self.read_s:
            self._sleep()
        return self.batches[index % self.KINDS]

    def _sleep(self) -> None:
        """Sleep for the time of a read, less what the sleep before was too long."""
        due = time.perf_counter() + self.read_s - self._late
        time.sleep(max(0.0, due - time.perf_counter()))
        self._late = min(time.perf_counter() - due, self.read_s / 4)

    def value(self, index: int) -> float:
        """What batch `index` is filled with."""
        return float(index % self.KINDS + 1)


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
