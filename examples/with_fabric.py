"""Fabric: around what `setup_dataloaders` gives.

python examples/with_fabric.py
"""

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

from sidestream import AsynchronousLoader


def main():
    fabric = Fabric(devices=1)
    fabric.launch()
    layer = torch.nn.Linear(8, 1)
    model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.1))
    x = torch.randn(512, 8)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    loader = fabric.setup_dataloaders(data, move_to_device=False)
    loader = AsynchronousLoader(loader, fabric.device)  # this line is all
    for _ in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            fabric.backward(loss)
            optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
