"""What it costs to take the source's state with every batch, as a ratio to not taking it.

The read-ahead of a StatefulDataLoader is run with and without states, by turns in one process:
without, the loader is given an object that passes everything on but the two state methods. Shown
are the median of the rounds' ratios and the ratio of the shortest times, which other programs on
the machine disturb less. Numbers of one run are compared with each other only.

    python benchmarks/resume.py [--rounds 21]       (needs torchdata)
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from sidestream import AsynchronousLoader

BATCHES = 200


class Images(Dataset[Any]):
    """Images as small as they come in practice, of bytes, made into floats."""

    def __init__(self) -> None:
        self.pixels = torch.randint(0, 256, (BATCHES * 32, 3, 64, 64), dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Any:
        return self.pixels[index].float().div_(255), index


class Stateless:
    """A loader without its state methods."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)


def seconds(loader: Any) -> float:
    """How long one pass takes [s]."""
    start = time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - start


def compare(make: Any, rounds: int) -> dict[str, float]:
    """The cost of states, with pairs of passes in alternating order."""
    loaders = [AsynchronousLoader(Stateless(make()), "cpu"), AsynchronousLoader(make(), "cpu")]
    for loader in loaders:
        seconds(loader)
    times: list[list[float]] = [[], []]
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            times[which].append(seconds(loaders[which]))
    ratios = [states / none for none, states in zip(*times, strict=True)]
    return {
        "ms_a_batch": 1e3 * statistics.median(times[0]) / BATCHES,
        "ratio": statistics.median(ratios),
        "ratio_of_shortest": min(times[1]) / min(times[0]),
    }


def main() -> None:
    """Measure, print a table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    images = Images()
    results = {}
    for workers, every in ((0, 1), (2, 1), (2, 10)):

        def make(workers: int = workers, every: int = every) -> Any:
            return StatefulDataLoader(
                images,
                batch_size=32,
                shuffle=True,
                num_workers=workers,
                snapshot_every_n_steps=every,
            )

        name = f"{workers} workers, snapshot every {every}"
        results[name] = compare(make, arguments.rounds)
        print(f"{name:32}", *(f"{key} {value:.3f}" for key, value in results[name].items()))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
