"""Large batches of random numbers, multiplied on the device: plain loop against loader.

    scripts/bench matrices

A batch is made of random numbers by the source, and multiplied by a matrix on the device. Two
loaders of this kind were first shown with batches of 256 MB; there the ratio was 1.24. On the CPU
nothing is copied, and reading overlaps with the product. On the simulated accelerator batches are
of 32 MiB, the link copies 1 GB/s, and the product is declared to take what reading takes.

What can be won is known: each stage is timed alone, a plain loop takes their sum, and nothing can
take less than the longest. Shown is how much of that is won.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
import targets
import torch

from sidestream import AsynchronousLoader

MEBIBYTE = 1 << 20
LINK_BYTES_PER_S = 1e9


class RandomNumbers:
    """A source that makes each batch when it is asked for: rows of 1024 numbers."""

    def __init__(self, steps: int, size_bytes: int) -> None:
        self.steps, self.rows = steps, size_bytes // 4096

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(harness.SEED)
        for _ in range(self.steps):
            yield torch.rand(self.rows, 1024, generator=generator)


class Job:
    """The loop, and each of its stages alone."""

    def __init__(self, device: str, size_bytes: int, steps: int) -> None:
        self.device, self.size_bytes, self.steps = device, size_bytes, steps
        self.target = targets.target(device)
        self.source = RandomNumbers(steps, size_bytes)
        self.matrix = torch.ones(1024, 4).to(device)
        self.declared_s = 0.0

    def product(self, batch: torch.Tensor) -> torch.Tensor:
        """What is done on the device: products, repeated where they would take no time."""
        if self.device == "sim":
            self.target.compute(self.declared_s)
            return torch.mm(batch[:8], self.matrix).sum()
        total = torch.mm(batch, self.matrix).sum()
        for _ in range(self.repeats - 1):
            total = total + torch.mm(batch, self.matrix).sum()
        return total

    repeats = 1

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device != "cpu":
            torch.accelerator.synchronize()

    def timed(self, batches: Any, step: Callable[[Any], Any]) -> tuple[float, list[float]]:
        """Seconds per step of a loop, and the results."""
        results = []
        start = time.perf_counter()
        for batch in batches:
            results.append(step(batch))
            del batch
        self.synchronize()
        seconds = (time.perf_counter() - start) / self.steps
        return seconds, [float(one) for one in results if one is not None]

    def stages(self) -> dict[str, float]:
        """Seconds of each stage, alone."""
        read_s, _ = self.timed(self.source, lambda _: None)
        batch = next(iter(self.source))
        there = batch.to(self.device)
        if self.device == "sim":
            self.declared_s = read_s
        else:
            once, _ = self.timed([there] * self.steps, self.product)
            self.repeats = max(1, round(read_s / once))
        compute_s, _ = self.timed([there] * self.steps, self.product)
        if self.device == "cpu":
            return {"read_s": read_s, "compute_s": compute_s}
        locked = torch.empty_like(batch).pin_memory()
        stage_s = min(harness.seconds_a_call(lambda: locked.copy_(batch), calls=3) for _ in "123")
        copy_s, _ = self.timed(
            [locked] * self.steps, lambda one: one.to(self.device, non_blocking=True)[0, 0]
        )
        return {"read_s": read_s, "stage_s": stage_s, "copy_s": copy_s, "compute_s": compute_s}

    def plain(self) -> tuple[float, list[float]]:
        """The loop that everybody writes."""
        return self.timed(self.source, lambda batch: self.product(batch.to(self.device)))

    @functools.cached_property
    def loader(self) -> AsynchronousLoader[torch.Tensor]:
        """Ours, kept over the rounds."""
        return AsynchronousLoader(self.source, self.device)

    def ours(self) -> tuple[float, list[float]]:
        """The same loop, over the loader."""
        return self.timed(self.loader, self.product)


def measure(options: argparse.Namespace) -> Any:
    """One device."""
    megabytes = {"cpu": 32, "sim": 32, "cuda": 256}[options.device]
    steps, rounds = (12, 5) if options.quick else (24, 9)
    if options.device == "cuda" and options.quick:
        steps, rounds = 6, 3  # random numbers are made at the speed of one core
    job = Job(options.device, megabytes * MEBIBYTE, steps)
    surroundings = contextlib.nullcontext() if options.device == "cpu" else job.target.unguarded()
    link = (
        contextlib.nullcontext()
        if options.device == "cpu"
        else job.target.copying_at(LINK_BYTES_PER_S)
    )
    with surroundings, link:
        stages = job.stages()
        results = harness.by_turns({"plain": job.plain, "loader": job.ours}, rounds=rounds)
    values = {way: [one[1] for one in each] for way, each in results.items()}
    seconds = {way: [one[0] for one in each] for way, each in results.items()}
    longest, total = max(stages.values()), sum(stages.values())
    ideal = longest + (total - longest) / steps
    plain, ours = (harness.spread(seconds[way]) for way in ("plain", "loader"))
    found = {
        "size_bytes": megabytes * MEBIBYTE,
        "steps": steps,
        "rounds": rounds,
        "stages": stages,
        "ideal_s": ideal,
        "plain_s": plain,
        "loader_s": ours,
        "ratio": harness.ratios(seconds["plain"], seconds["loader"]),
        "ratio_allowed": plain["median"] / ideal,
        "share": ideal / ours["median"],
        "same values": all(one == values["plain"][0] for each in values.values() for one in each),
    }
    for key, value in found.items():
        print(key, value)
    return found


if __name__ == "__main__":
    devices = ("sim", "cpu", "cuda")
    sys.exit(harness.run("matrices", measure, __doc__, devices=devices))
