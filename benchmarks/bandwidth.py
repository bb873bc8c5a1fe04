"""Bytes per second that reach the device, for batches from 1 KiB to 256 MiB, against the link.

    scripts/bench bandwidth

The source gives a batch in ordinary memory at once; the loop waits for each batch and does nothing
with it. The simulated link
is declared; a GPU's is measured with page-locked memory. Small batches show the cost of a batch;
large ones whether staging keeps up with the link.
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

LINK_BYTES_PER_S = 2e9  # declared; slow enough for two cores to keep up with, if staging is fast
SIZES = [1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 24, 1 << 28]  # [bytes]
FIRST = 5  # by then every buffer is there
NAMES = "sidestream,plain loop,forty lines,SPDL"


def epoch(target: Any, contender: contenders.Contender, size_bytes: int, steps: int) -> float:
    """Bytes per second, from the arrival of batch `FIRST` to that of the last."""
    batch = [torch.ones(size_bytes // 4)]
    data = Locking(batch, steps) if contender.pins else Again(batch, steps)
    arrived: list[float] = []

    def step(batch: Any) -> None:
        torch.accelerator.current_stream().synchronize()
        arrived.append(time.perf_counter())

    targets.settle()
    contender.drive(data, target, step)
    torch.accelerator.synchronize()
    assert len(arrived) == steps
    target.races()
    return size_bytes * (steps - 1 - FIRST) / (arrived[-1] - arrived[FIRST])


class Again:
    """The same batch, again and again."""

    def __init__(self, batch: list[torch.Tensor], steps: int) -> None:
        self.batch, self.steps = batch, steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Any:
        for _ in range(self.steps):
            yield self.batch


class Locking(Again):
    """What a DataLoader with `pin_memory=True` does with each batch."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield [tensor.pin_memory() for tensor in batch]


def measure(options: argparse.Namespace) -> Any:
    """All sizes."""
    target = targets.target(options.device)
    link = getattr(target, "link_bytes_per_s", LINK_BYTES_PER_S)
    there, missing = contenders.present(NAMES)
    rounds = 3 if options.quick else 7
    found: dict[str, Any] = {"rounds": rounds, "link_bytes_per_s": link, "missing": missing}
    sizes: dict[str, Any] = {}
    for size_bytes in SIZES:
        steps = FIRST + max(6, min(200, int(0.3 * LINK_BYTES_PER_S / size_bytes)))
        runs = {
            one.name: functools.partial(epoch, target, one, size_bytes, steps) for one in there
        }
        with target.copying_at(LINK_BYTES_PER_S), target.unguarded():
            results = harness.by_turns(runs, rounds=rounds)
        sizes[str(size_bytes)] = {
            name: {
                "bytes_per_s": harness.spread(values),
                "of_link": harness.spread(values)["median"] / link,
            }
            for name, values in results.items()
        }
    found["sizes"] = sizes
    show(found)
    return found


def show(found: dict[str, Any]) -> None:
    """Print a table."""
    sizes = found["sizes"]
    rows = [
        (name, *(f"{sizes[size][name]['of_link']:.3f}" for size in sizes))
        for name in next(iter(sizes.values()))
    ]
    print("\n".join(harness.table(("of the link, by bytes", *sizes), rows)))


if __name__ == "__main__":
    sys.exit(harness.run("bandwidth", measure, __doc__, devices=("sim", "cuda")))
