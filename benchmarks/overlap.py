"""Time per step of all contenders, against what the slowest stage alone takes.

    scripts/bench overlap [--contenders NAME,NAME]

A step reads (sleeps), stages into page-locked memory, copies and computes. The least that N steps
can take is N times the longest stage and the others once; a plain loop takes the sum. The time is
that from the first read to the end of the last computation. `ahead`: the loop never waits for the
device. `in step`: it waits in every step, as `loss.item()` does.

Each contender's values are checked, and on the simulated accelerator every access is judged: a
race is a race also where the values came out right this time.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import sys
import time
from dataclasses import dataclass
from typing import Any

import contenders
import harness
import targets
import torch
from torch.utils.data import DataLoader


@dataclass(frozen=True)
class Cell:
    """How long the stages take."""

    read_ms: float
    copy_ms: float
    compute_ms: float
    size_mib: float = 1
    in_step: bool = False

    def name(self) -> str:
        """For people."""
        times = f"{self.read_ms:g} / {self.copy_ms:g} / {self.compute_ms:g}"
        return f"{times}, {'in step' if self.in_step else 'ahead'}, {self.size_mib:g} MiB"


CELLS = [
    Cell(0, 10, 10),
    Cell(0, 5, 20),
    Cell(0, 20, 5),
    Cell(10, 10, 10),
    Cell(20, 5, 5),
    Cell(5, 5, 20),
    Cell(0, 20, 20, size_mib=16),
    Cell(20, 20, 20, size_mib=16),
    Cell(0, 10, 10, in_step=True),
    Cell(10, 10, 10, in_step=True),
    Cell(0, 20, 20, size_mib=16, in_step=True),
]
# A GPU's link is fast: a batch that takes long to copy takes longer to stage.
GPU_CELLS = [
    Cell(0, 1, 10),
    Cell(0, 1, 2),
    Cell(0, 2, 0.5),
    Cell(5, 1, 5),
    Cell(10, 0.2, 2),
    Cell(0, 1, 10, in_step=True),
    Cell(5, 1, 5, in_step=True),
]
LARGE_BYTES = 4 << 20
READ_ELEMENTS = 4096  # of a batch, read at the beginning and the end of a step


def staging_seconds(size_bytes: int, device: str) -> float:
    """How long it takes to copy a batch into page-locked memory, with this process's threads."""
    source = torch.ones(size_bytes // 4)
    locked = torch.empty_like(source).pin_memory()
    times = [
        harness.seconds_a_call(lambda: locked.copy_(source), calls=3 if size_bytes > 1e7 else 30)
        for _ in range(5)
    ]
    return sorted(times)[2]


def epoch(
    target: Any, contender: contenders.Contender, cell: Cell, reads: targets.Reads
) -> dict[str, Any]:
    """One pass of one contender."""
    steps, size_bytes = len(reads), reads.size_bytes
    data = DataLoader(reads, batch_size=None, pin_memory=contender.pins)
    sums: list[torch.Tensor] = []
    ended = [0.0]

    def step(batch: Any) -> None:
        x = batch[1]
        sums.append(x[:READ_ELEMENTS].sum())
        target.compute(cell.compute_ms / 1e3)
        sums.append(x[-READ_ELEMENTS:].sum())
        if cell.in_step:
            torch.accelerator.current_stream().synchronize()
        if len(sums) == 2 * steps:
            torch.accelerator.synchronize()
            ended[0] = time.perf_counter()

    targets.settle()
    target.races()
    before = torch.accelerator.memory_reserved()
    bandwidth = size_bytes / (cell.copy_ms / 1e3)
    # The checks of every byte take the processor's time, which counts for large batches.
    checks = target.unguarded() if size_bytes > LARGE_BYTES else contextlib.nullcontext()
    with target.copying_at(bandwidth), checks:
        contender.drive(data, target, step)
        torch.accelerator.synchronize()
    reserved = torch.accelerator.max_memory_reserved() - before
    races = target.races()
    expected = [reads.value(number // 2) * READ_ELEMENTS for number in range(2 * steps)]
    return {
        "step_ms": (ended[0] - reads.began) * 1e3 / steps,
        "wrong": _wrong_batches(sums, expected),
        "races": dict(collections.Counter(races)),
        "reserved_batches": reserved / size_bytes,
    }


def _wrong_batches(sums: list[torch.Tensor], expected: list[float]) -> int:
    """In how many steps a value that was read is not that of the batch."""
    right = [got.item() == want for got, want in zip(sums, expected, strict=True)]
    return sum(not (first and last) for first, last in zip(right[::2], right[1::2], strict=True))


def measure_cell(target: Any, cell: Cell, there: list[Any], rounds: int, steps: int) -> Any:
    """All contenders by turns."""
    size_bytes = target.batch_bytes(cell.copy_ms / 1e3, int(cell.size_mib * targets.MEBIBYTE))
    stage_ms = staging_seconds(size_bytes, target.name) * 1e3
    stages = [cell.read_ms, stage_ms, cell.copy_ms, cell.compute_ms]
    ideal_ms = max(stages) + (sum(stages) - max(stages)) / steps
    reads = targets.Reads(steps, size_bytes, cell.read_ms / 1e3)
    runs = {each.name: functools.partial(epoch, target, each, cell, reads) for each in there}
    failed = {
        one.name: error
        for one in there
        if (error := harness.trial(runs[one.name], required=one.ours))
    }
    results = harness.by_turns(
        {name: each for name, each in runs.items() if name not in failed}, rounds=rounds, warmup=0
    )
    return {
        "name": cell.name(),
        "read_ms": cell.read_ms,
        "stage_ms": stage_ms,
        "copy_ms": cell.copy_ms,
        "compute_ms": cell.compute_ms,
        "in_step": cell.in_step,
        "size_bytes": size_bytes,
        "steps": steps,
        "ideal_ms": ideal_ms,
        "sum_ms": sum(stages),
        "contenders": {name: summary(each, ideal_ms) for name, each in results.items()},
        "failed": failed,
    }


def summary(results: list[dict[str, Any]], ideal_ms: float) -> dict[str, Any]:
    """What is told of one contender's rounds: the median time, and the worst of all else."""
    races: collections.Counter[str] = collections.Counter()
    for one in results:
        races |= collections.Counter(one["races"])
    times = harness.spread([one["step_ms"] for one in results])
    return {
        "step_ms": times,
        "over_ideal": times["median"] / ideal_ms,
        "wrong": max(one["wrong"] for one in results),
        "races": dict(races),
        "reserved_batches": max(one["reserved_batches"] for one in results),
    }


def measure(options: argparse.Namespace) -> Any:
    """All cells."""
    target = targets.target(options.device)
    there, missing = contenders.present(options.contenders)
    rounds, steps = (3, 12) if options.quick else (7, 24)
    cells = GPU_CELLS if target.name == "cuda" else CELLS
    cells = cells[: int(options.cells or len(cells))]
    found = []
    start = time.perf_counter()
    for cell in cells:
        if time.perf_counter() - start > float(options.seconds or "inf"):
            print(f"no time is left for {len(cells) - len(found)} rows")
            break
        found.append(measure_cell(target, cell, there, rounds, steps))
        show(found[-1])
    return {
        "rounds": rounds,
        "judged": target.judges_races,
        "cells": found,
        "missing": missing,
    }


def show(cell: dict[str, Any]) -> None:
    """Print one cell's table."""
    print(f"\n{cell['name']}: ideal {cell['ideal_ms']:.2f} ms, sum {cell['sum_ms']:.2f}\n")
    rows = [
        (
            name,
            f"{one['step_ms']['median']:.2f}",
            f"{one['over_ideal']:.3f}",
            one["wrong"],
            sum(one["races"].values()),
            f"{one['reserved_batches']:.1f}",
        )
        for name, one in sorted(
            cell["contenders"].items(), key=lambda each: each[1]["step_ms"]["median"]
        )
    ]
    head = ("contender", "ms a step", "over ideal", "wrong", "races", "reserved batches")
    print("\n".join(harness.table(head, rows)), flush=True)
    for name, error in cell["failed"].items():
        print(f"{name} cannot run here: {error}")


if __name__ == "__main__":
    sys.exit(
        harness.run(
            "overlap",
            measure,
            __doc__,
            devices=("sim", "cuda"),
            contenders="only those whose name contains one of these, separated by commas",
            seconds="begin no further row after so long [s]",
            cells="only the first so many rows of the grid",
        )
    )
