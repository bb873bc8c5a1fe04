"""A script in the style of Lighter: digits are classified, epoch after epoch, with callbacks.

Only its import of `AsynchronousLoader` differs from what it was. The digits are made up: each
class is a pattern, each image the pattern of its class and noise.

    python examples/from_lighter.py [--device cuda:0] [--epochs 3]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from sidestream.compat.lighter import AsynchronousLoader


class Progress:
    """Keeps a moving average of the loss, and how often the queue was found empty."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.loss = 0.0
        self.num_steps = 0
        self.num_empty = 0

    def __call__(self, loss: torch.Tensor) -> None:
        self.num_steps += 1
        self.loss += (loss.item() - self.loss) / self.num_steps
        self.num_empty += self.loader.queue.empty()


def digits(num_samples: int, seed: int) -> Dataset[Any]:
    patterns = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (num_samples,), generator=generator)
    noise = torch.randn(num_samples, 1, 28, 28, generator=generator)
    return TensorDataset(patterns[labels] + 0.5 * noise, labels)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.LeakyReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * 14 * 14, 10), nn.LogSoftmax(dim=1),
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> float:
    """Train, and return the accuracy on images that were not trained on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="where to train; the accelerator, if there is one")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=640)
    parser.add_argument("--workers", type=int, default=0, help="processes that read")
    args = parser.parse_args(arguments)
    there = torch.accelerator.is_available()
    found = torch.accelerator.current_accelerator() if there else "cpu"
    device = torch.device(args.device or found)

    torch.manual_seed(1)
    model = network().to(device)
    criterion = nn.NLLLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    train = AsynchronousLoader(
        digits(args.samples, seed=1), device, 64, True, workers=args.workers
    )  # the batch size and the shuffling by position, as it was written then
    test = AsynchronousLoader(
        digits(args.samples // 2, seed=2), device=device, batch_size=64, workers=args.workers
    )

    accuracy = 0.0
    for epoch in range(args.epochs):
        progress = Progress(train)
        for x, y in train:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            progress(loss.detach())
        with torch.no_grad():
            right = sum((model(x).argmax(1) == y).sum() for x, y in test)
        accuracy = float(right) / len(test.dataset)
        print(
            f"epoch {epoch}: loss {progress.loss:.3f}, accuracy {accuracy:.3f}, "
            f"queue empty at {progress.num_empty} of {len(train)} steps"
        )
    return accuracy


if __name__ == "__main__":
    main()
