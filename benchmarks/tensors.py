"""Batches of many small tensors: what one costs, by how many tensors are in it.

    scripts/bench tensors

The loop does nothing and the link is as fast as the machine: what is left is the work of Python
and of torch for each batch and tensor. The clock runs from the first read to the end of the last
copy, over as many steps as have 2,500 tensors in all, within limits.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from typing import Any

import contenders
import harness
import targets
import torch
from torch.utils.data import DataLoader

COUNTS = [1, 8, 64, 500]
SIZE_BYTES = 4096
NAMES = "sidestream,plain loop,forty lines,PyG,SPDL,torchdata.nodes,Accelerate"


class Lists:
    """A dataset of lists of tensors."""

    def __init__(self, length: int, count: int) -> None:
        self.length = length
        self.batch = [torch.full((SIZE_BYTES // 4,), float(number)) for number in range(count)]
        self.began = 0.0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index == 0:
            self.began = time.perf_counter()
        return list(self.batch)


def epoch(target: Any, contender: contenders.Contender, count: int, steps: int) -> dict[str, Any]:
    """One pass: time and processor time a batch [us]."""
    lists = Lists(steps, count)
    data = DataLoader(lists, batch_size=None, pin_memory=contender.pins)  # type: ignore[arg-type]
    seen, last = [0], [None]

    def step(batch: Any) -> None:
        seen[0] += 1
        last[0] = batch

    targets.settle()
    processor = time.process_time()
    contender.drive(data, target, step)
    torch.accelerator.synchronize()
    took = time.perf_counter() - lists.began
    processor = time.process_time() - processor
    assert seen[0] == steps
    assert [float(tensor[0]) for tensor in last[0]] == list(range(count))
    target.races()
    return {"us": took / steps * 1e6, "processor_us": processor / steps * 1e6}


def measure(options: argparse.Namespace) -> Any:
    """All counts."""
    target = targets.target(options.device)
    there, missing = contenders.present(NAMES)
    rounds = 3 if options.quick else 7
    found: dict[str, Any] = {"rounds": rounds, "size_bytes": SIZE_BYTES, "missing": missing}
    for count in COUNTS:
        steps = max(10, min(200, 2500 // count))
        runs = {one.name: functools.partial(epoch, target, one, count, steps) for one in there}
        results = harness.by_turns(runs, rounds=rounds)
        found[f"{count} tensors"] = {
            name: {
                key: harness.spread([one[key] for one in results[name]])
                for key in ("us", "processor_us")
            }
            for name in results
        }
    show(found)
    return found


def show(found: dict[str, Any]) -> None:
    """Print a table."""
    columns = [f"{count} tensors" for count in COUNTS]
    rows = [
        (name, *(f"{found[column][name]['us']['median']:.0f}" for column in columns))
        for name in found[columns[0]]
    ]
    print("\n".join(harness.table(("us a batch", *columns), rows)))


if __name__ == "__main__":
    sys.exit(harness.run("tensors", measure, __doc__, devices=("sim", "cuda")))
