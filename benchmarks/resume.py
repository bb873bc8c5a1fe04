"""What it costs to take the source's state with every batch, as a ratio to not taking it.

The read-ahead of a StatefulDataLoader is run with and without states, by turns in one process:
without, the loader is given an object that passes everything on but the two state methods. Shown
are the median of the rounds' ratios and the ratio of the shortest times, which other programs on
the machine disturb less.

    scripts/bench resume       needs torchdata
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import harness
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


def compare(make: Any, rounds: int) -> dict[str, Any]:
    """The cost of states."""
    loaders = {
        "without": AsynchronousLoader(Stateless(make()), "cpu"),
        "with": AsynchronousLoader(make(), "cpu"),
    }
    times = harness.by_turns(
        {name: functools.partial(seconds, loader) for name, loader in loaders.items()},
        rounds=rounds,
    )
    return {
        "ms_a_batch": 1e3 * statistics.median(times["without"]) / BATCHES,
        "ratio": harness.ratios(times["with"], times["without"]),
        "ratio_of_shortest": min(times["with"]) / min(times["without"]),
    }


def measure(options: argparse.Namespace) -> Any:
    """With and without workers, with a state for every batch and for every tenth."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    images = Images()
    results = {}
    for workers, every in ((0, 1), (2, 1), (2, 10)):
        make = functools.partial(
            StatefulDataLoader,
            images,
            batch_size=32,
            shuffle=True,
            num_workers=workers,
            snapshot_every_n_steps=every,
        )
        name = f"{workers} workers, snapshot every {every}"
        results[name] = compare(make, 5 if options.quick else 21)
        print(f"{name:32}", results[name])
    return results


if __name__ == "__main__":
    sys.exit(harness.run("resume", measure, __doc__))
