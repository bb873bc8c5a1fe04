"""Ignite: the loader goes where the DataLoader would.

python examples/with_ignite.py
"""

import torch
from ignite.engine import create_supervised_trainer
from torch.utils.data import DataLoader, TensorDataset

from sidestream import AsynchronousLoader


def main():
    device = torch.device("cpu")
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(512, 8)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    trainer = create_supervised_trainer(
        model, optimizer, torch.nn.functional.mse_loss, device=device
    )
    state = trainer.run(AsynchronousLoader(data, device), max_epochs=3)  # the loader is all
    print(f"loss {state.output:.4f}")


if __name__ == "__main__":
    main()
