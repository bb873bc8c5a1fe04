"""Classify digits, in the shape of MNIST: training and validation, plain loop against loader.

    scripts/bench mnist [--images FOLDER]

60,000 images of 28 x 28 train a network of two layers, and 10,000 validate it, through a
DataLoader without workers. Two loaders of this kind were first shown with this job: there the
ratio was 1.05. FOLDER holds the four files of MNIST, as they are distributed, packed or not;
without it the images are random, in the same shape, and cost the same to read.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import sys
import time
from pathlib import Path
from typing import Any

import harness
import targets
import torch
from torch.utils.data import DataLoader, TensorDataset

from sidestream import AsynchronousLoader

FILES = {
    "training": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", 60_000),
    "validation": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", 10_000),
}


def idx(folder: Path, name: str) -> torch.Tensor:
    """The bytes of a file of MNIST, in its shape.

    Raises:
        ValueError: If it is no such file.
    """
    packed = folder / f"{name}.gz"
    data = (
        gzip.decompress(packed.read_bytes()) if packed.exists() else (folder / name).read_bytes()
    )
    if data[:3] != b"\0\0\x08" or len(data) < 8:
        raise ValueError(f"{folder / name} is no file of bytes in MNIST's format")
    shape = [int.from_bytes(data[4 * n + 4 : 4 * n + 8], "big") for n in range(data[3])]
    return torch.frombuffer(bytearray(data[4 + 4 * len(shape) :]), dtype=torch.uint8).reshape(
        shape
    )


def images(folder: Path | None, part: str) -> TensorDataset:
    """The images as floats, and the labels."""
    pixels, labels, count = FILES[part]
    if folder is None:
        made = torch.Generator().manual_seed(harness.SEED + count)
        x = torch.randint(256, (count, 28, 28), dtype=torch.uint8, generator=made)
        y = torch.randint(10, (count,), generator=made)
    else:
        x, y = idx(folder, pixels), idx(folder, labels).long()
    return TensorDataset(x.float().div_(255).unsqueeze_(1), y)


def epoch(
    device: str, way: str, data: dict[str, TensorDataset], batch_size: int
) -> dict[str, Any]:
    """Train and validate once from the same start; times and what came out."""
    torch.manual_seed(harness.SEED)
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    ).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    found: dict[str, Any] = {}
    for part, dataset in data.items():
        batches: Any = DataLoader(dataset, batch_size, shuffle=part == "training")
        if way == "loader":
            batches = AsynchronousLoader(batches, device)
        total = torch.zeros((), device=device)
        start = time.perf_counter()
        with torch.set_grad_enabled(part == "training"):
            for x, y in batches:
                if way == "plain":
                    x, y = x.to(device), y.to(device)
                loss = torch.nn.functional.cross_entropy(network(x), y)
                total += loss.detach()
                if part == "training":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        found[f"{part}_loss"] = total.item()  # waits for the device
        found[f"{part}_s"] = time.perf_counter() - start
    return found


def measure(options: argparse.Namespace) -> Any:
    """Both, by turns."""
    if options.device == "cpu":
        torch.set_num_threads(1)
    else:
        targets.target(options.device)
    folder = Path(options.images) if options.images else None
    data = {part: images(folder, part) for part in FILES}
    batch_size, rounds = 128, 3 if options.quick else 9
    found: dict[str, Any] = {
        "images": "MNIST" if folder else "random, in the shape of MNIST",
        "batch_size": batch_size,
        "rounds": rounds,
    }
    ways = ("plain", "loader")
    results = harness.by_turns(
        {way: functools.partial(epoch, options.device, way, data, batch_size) for way in ways},
        rounds=rounds,
    )
    losses = {way: [one[f"{part}_loss"] for one in results[way] for part in FILES] for way in ways}
    found["same losses"] = losses["plain"] == losses["loader"]
    for part in FILES:
        seconds = {way: [one[f"{part}_s"] for one in results[way]] for way in ways}
        found[part] = {f"{way}_s": harness.spread(seconds[way]) for way in ways}
        found[part]["ratio"] = harness.ratios(seconds["plain"], seconds["loader"])
        print(part, found[part])
    print("same losses:", found["same losses"])
    return found


if __name__ == "__main__":
    run = functools.partial(harness.run, "mnist", measure, __doc__, devices=("cpu", "sim", "cuda"))
    sys.exit(run(images="folder with the four files of MNIST"))
