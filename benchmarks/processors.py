"""Threads and processor time of each contender, and the loader's worth on a busy machine.

    scripts/bench processors

First, on the accelerator: how many threads run, and how much processor time a batch takes, of a
loop whose read, copy and computation take 4 ms each and need no processor. Then, on the CPU, a
loop whose read and computation both do, beside none, one and two other processes that spin: how
much of the gain is left where there is no processor to spare.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import contenders
import harness
import targets
import torch
from torch.utils.data import DataLoader

from sidestream import AsynchronousLoader

STAGE_S = 0.004
BATCH_BYTES = 1 << 20
SPIN = "while True: pass"


def pass_of(target: Any, contender: contenders.Contender, steps: int) -> dict[str, float]:
    """One pass: threads beside those that were there, and processor time a batch [ms]."""
    reads = targets.Reads(steps, BATCH_BYTES, STAGE_S)
    data = DataLoader(reads, batch_size=None, pin_memory=contender.pins)  # type: ignore[arg-type]
    most, before = [0], threading.active_count()

    def step(batch: Any) -> None:
        batch[1][:1].sum()
        target.compute(STAGE_S)
        torch.accelerator.current_stream().synchronize()
        most[0] = max(most[0], threading.active_count())

    targets.settle()
    processor = time.process_time()
    with target.copying_at(BATCH_BYTES / STAGE_S):
        contender.drive(data, target, step)
        torch.accelerator.synchronize()
    processor = time.process_time() - processor
    target.races()
    return {"threads": most[0] - before, "processor_ms": processor / steps * 1e3}


def on_accelerator(options: argparse.Namespace) -> Any:
    """All contenders, in this process."""
    target = targets.target(options.device)
    there, missing = contenders.present()
    steps, rounds = 60, 3 if options.quick else 7
    runs = {}
    for one in there:
        run = functools.partial(pass_of, target, one, steps)
        error = harness.trial(run, required=one.ours)
        if error:
            missing[one.name] = error
        else:
            runs[one.name] = run
    results = harness.by_turns(runs, rounds=rounds, warmup=0)
    found = {
        name: {
            "threads": max(one["threads"] for one in each),
            "processor_ms": harness.spread([one["processor_ms"] for one in each]),
        }
        for name, each in results.items()
    }
    rows = [
        (name, one["threads"], f"{one['processor_ms']['median']:.2f}")
        for name, one in found.items()
    ]
    print("\n".join(harness.table(("contender", "threads", "processor ms a batch"), rows)) + "\n")
    return {"stage_ms": STAGE_S * 1e3, "steps": steps, "contenders": found, "missing": missing}


# ---- a busy machine


class Hashes:
    """Batches that take processor time to read, without the interpreter's lock."""

    def __init__(self, length: int, size_bytes: int) -> None:
        self.length, self.data = length, bytes(size_bytes)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.length):
            hashlib.sha256(self.data)
            yield torch.ones(256, 256)


def calibrated(function: Any, seconds: float) -> int:
    """How many calls take about so long."""
    each = min(harness.seconds_a_call(function, calls=5) for _ in range(5))
    return max(1, round(seconds / each))


def loop(batches: Any, products: int) -> float:
    """Time of a loop that multiplies matrices [s]."""
    weight = torch.ones(256, 256)
    start = time.perf_counter()
    for batch in batches:
        for _ in range(products):
            batch = torch.mm(batch, weight).mul_(1 / 256)
    return time.perf_counter() - start


def when_busy(options: argparse.Namespace) -> Any:
    """Plain against loader, beside none, one and two spinning processes."""
    torch.set_num_threads(1)
    steps, rounds = (40, 5) if options.quick else (80, 11)
    kilobytes = calibrated(lambda: hashlib.sha256(bytes(1 << 10)), 0.005)
    source = Hashes(steps, kilobytes << 10)
    weight = torch.ones(256, 256)
    products = calibrated(lambda: torch.mm(weight, weight).mul_(1 / 256), 0.005)
    found = {}
    for others in range(3):
        spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(others)]
        try:
            times = harness.by_turns(
                {
                    "plain": lambda: loop(source, products),
                    "loader": lambda: loop(AsynchronousLoader(source, "cpu"), products),
                },
                rounds=rounds,
            )
        finally:
            for process in spinning:
                process.kill()
                process.wait()
        found[str(others)] = {
            "plain_ms": harness.spread([one / steps * 1e3 for one in times["plain"]]),
            "loader_ms": harness.spread([one / steps * 1e3 for one in times["loader"]]),
            "ratio": harness.ratios(times["plain"], times["loader"]),
        }
        print(others, "others:", found[str(others)])
    return found


def measure(options: argparse.Namespace) -> Any:
    """Both, each in a process of its own: the simulator would be part of the second."""
    if options.part:
        return {"accelerator": on_accelerator, "busy": when_busy}[options.part](options)
    more = ["--device", options.device, *["--quick"][: options.quick]]
    return {
        part: harness.in_process(Path(__file__), "--part", part, *more)["result"]
        for part in ("accelerator", "busy")
    }


if __name__ == "__main__":
    run = functools.partial(harness.run, "processors", measure, __doc__, devices=("sim", "cuda"))
    sys.exit(run(part="accelerator or busy: that part alone, in this process"))
