"""A training script in the style of torch's ImageNet example: knows nothing of sidestream."""

import argparse
import sys
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("-j", "--workers", type=int, default=0)
parser.add_argument("--persistent", action="store_true")
parser.add_argument("--say-threads", action="store_true")
parser.add_argument("--fail", action="store_true")
parser.add_argument("--exit", type=int)

readers = set()


class Images(Dataset):
    def __init__(self):
        numbers = torch.Generator().manual_seed(1)
        self.images = torch.randn(40, 3, 8, 8, generator=numbers)
        self.targets = torch.randint(5, (40,), generator=numbers)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        readers.add(threading.current_thread().name.rpartition("-")[0])
        return self.images[index], self.targets[index]


def main():
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cpu")
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 5)).to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    train_loader = DataLoader(
        Images(), batch_size=8, shuffle=True, num_workers=args.workers,
        persistent_workers=args.persistent,
    )  # fmt: skip
    val_loader = DataLoader(TensorDataset(Images().images), batch_size=16)
    for epoch in range(args.epochs):
        for i, (images, target) in enumerate(train_loader):
            moved = images.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            loss = criterion(model(moved), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch}, batch {i} of {len(train_loader)}: {loss.item():.8f}")
            if args.fail and i == 2:
                raise ValueError("the script's own error")
        with torch.no_grad():
            total = sum(model(images.to(device)).sum() for (images,) in val_loader)
        print(f"validation {total.item():.6f}")
    if args.say_threads:
        print("read by", sorted(readers))
    if args.exit is not None:
        sys.exit(args.exit)


if __name__ == "__main__":
    main()
