"""Memory that is held over epochs: on the device, page-locked, and resident.

    scripts/bench memory

Each contender runs in a process of its own, with batches whose size differs from step to step and
a loop that never waits for the device within an epoch. What counts is whether it grows.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path
from typing import Any

import contenders
import harness
import targets
import torch

NAMES = ["sidestream", "plain loop, pin_memory, non_blocking", "forty lines by hand"]
NAMES += ["timm, pin_memory", "PyG PrefetchLoader", "SPDL transfer"]
STEPS = 16
LARGEST_BYTES = 1 << 20
COMPUTE_S = 0.002
COPY_S = 0.001


class Varied:
    """Batches of eleven sizes in turn, page-locked where that is asked for."""

    SIZES = 11  # coprime to the number of steps: every epoch meets them in another order

    def __init__(self, pins: bool) -> None:
        self.pins = pins
        self.number = 0

    def __len__(self) -> int:
        return STEPS

    def __iter__(self) -> Any:
        for _ in range(STEPS):
            self.number += 1
            elements = LARGEST_BYTES // 4 - 20_000 * (self.number % self.SIZES)
            batch = [torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.ones(elements)]
            yield [tensor.pin_memory() for tensor in batch] if self.pins else batch


def watch(target: Any, contender: contenders.Contender, epochs: int) -> list[dict[str, float]]:
    """What is held after each epoch, and the peak within it."""
    data = Varied(contender.pins)

    def step(batch: Any) -> None:
        batch[1].sum()
        target.compute(COMPUTE_S)

    found: list[dict[str, float]] = []

    def after(number: int) -> None:
        torch.accelerator.synchronize()
        found.append(
            {
                "peak": torch.accelerator.max_memory_reserved() / LARGEST_BYTES,
                "pinned": target.pinned_bytes() / LARGEST_BYTES,
                "resident": targets.resident_bytes() / LARGEST_BYTES,
            }
        )
        torch.accelerator.reset_peak_memory_stats()

    targets.settle()
    with target.copying_at(LARGEST_BYTES / COPY_S):
        contender.drive(data, target, step, epochs, after)
    target.races()
    return found


def measure(options: argparse.Namespace) -> Any:
    """All contenders, or the one that is asked for."""
    epochs = 60 if options.quick else 300
    if options.only:
        (contender,) = [one for one in contenders.CONTENDERS if one.name == options.only]
        return watch(targets.target(options.device), contender, epochs)
    there, missing = contenders.present()
    found: dict[str, Any] = {}
    for name in [one.name for one in there if one.name in NAMES]:
        more = ["--only", name, "--device", options.device, *["--quick"][: options.quick]]
        try:
            found[name] = summary(harness.in_process(Path(__file__), *more)["result"])
        except RuntimeError as error:
            if name == "sidestream":
                raise
            missing[name] = str(error)
    show(found)
    return {"epochs": epochs, "steps": STEPS, "contenders": found, "missing": missing}


def summary(epochs: list[dict[str, float]]) -> dict[str, Any]:
    """Early and late epochs: the most of three each, for one moment tells little."""
    late = len(epochs) - 1
    moments = {"epoch 2": 1, "the middle": late // 2, "the end": late - 1}
    return {
        name: {
            key: max(one[key] for one in epochs[at : at + 2])
            for key in ("peak", "pinned", "resident")
        }
        for name, at in moments.items()
    }


def show(found: dict[str, Any]) -> None:
    """Print a table."""
    rows = [
        (
            name,
            *(
                " / ".join(f"{moment[key]:.0f}" for moment in one.values())
                for key in ("peak", "pinned", "resident")
            ),
        )
        for name, one in found.items()
    ]
    head = ("batches, at epoch 2 / middle / end", "device, peak", "page-locked", "resident")
    print("\n".join(harness.table(head, rows)))


if __name__ == "__main__":
    run = functools.partial(harness.run, "memory", measure, __doc__, devices=("sim", "cuda"))
    sys.exit(run(only="this contender alone, in this process"))
