"""Accelerate: the accelerator prepares loaders that read and move in the background.

python examples/with_accelerate.py
accelerate launch --cpu --num_processes 2 examples/with_accelerate.py
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from sidestream.integrations.accelerate import asynchronous


def main():
    accelerator = asynchronous(Accelerator(gradient_accumulation_steps=2))  # this line is all
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    x = torch.randn(512, 8)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, data)
    for _ in range(3):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    accelerator.print(f"loss {loss.item():.4f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
