"""A script in the style of Lightning Bolts: large random batches, multiplied on the device.

Only its import of `AsynchronousLoader` differs from what it was.

    python examples/from_bolts.py [--device cuda:0] [--size 256] [--batches 20]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from sidestream.compat.bolts import AsynchronousLoader


class RandomMatrices(Dataset):
    """Pairs of matrices, each pair made from its number."""

    def __init__(self, num_pairs: int, size: int) -> None:
        self.num_pairs = num_pairs
        self.size = size

    def __len__(self) -> int:
        return self.num_pairs

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.num_pairs:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(index)
        left, right = torch.randn(2, self.size, self.size, generator=generator)
        return {"left": left, "right": right}


class EndlessMatrices(IterableDataset):
    """The same without an end; `num_batches` says where an epoch ends."""

    def __init__(self, size: int) -> None:
        self.pairs = RandomMatrices(1 << 30, size)

    def __iter__(self) -> Iterator[Any]:
        return (self.pairs[index] for index in range(self.pairs.num_pairs))


def multiply(loader: AsynchronousLoader) -> float:
    """One epoch: the sum of the largest entries of all products."""
    total = torch.zeros((), device=loader.device)
    for batch in loader:
        total += torch.bmm(batch["left"], batch["right"]).amax()
    return total.item()


def main(arguments: list[str] | None = None) -> list[float]:
    """Multiply in three ways of giving the data, and return what each came to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="where to multiply; the accelerator, if there is one")
    parser.add_argument("--size", type=int, default=64, help="rows of a matrix")
    parser.add_argument("--batches", type=int, default=6)
    args = parser.parse_args(arguments)
    there = torch.accelerator.is_available()
    found = torch.accelerator.current_accelerator() if there else "cpu"
    device = torch.device(args.device or found)

    pairs = RandomMatrices(4 * args.batches, args.size)
    loaders = {
        "a DataLoader": AsynchronousLoader(DataLoader(pairs, batch_size=4), device=device),
        "a dataset": AsynchronousLoader(pairs, device, 4, batch_size=4),
        "an endless one": AsynchronousLoader(
            EndlessMatrices(args.size), device, q_size=2, num_batches=args.batches, batch_size=4
        ),
    }
    sums = []
    for name, loader in loaders.items():
        for epoch in range(2):
            start = time.perf_counter()
            sums.append(multiply(loader))
            rate = len(loader) / (time.perf_counter() - start)
            print(f"{name}, epoch {epoch}: {sums[-1]:.3f}, {rate:.0f} batches/s")
    return sums


if __name__ == "__main__":
    main()
