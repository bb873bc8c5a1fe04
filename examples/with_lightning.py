"""Lightning: one callback, and every loop takes batches that are on the device.

python examples/with_lightning.py
"""

import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from sidestream.integrations.lightning import AsynchronousTransfer


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def loss(self, batch):
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    warnings.filterwarnings("ignore", message=".*does not have many workers")
    x = torch.randn(512, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    trainer = Trainer(
        max_epochs=3,
        callbacks=[AsynchronousTransfer()],  # this line is all
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regression(), DataLoader(data, batch_size=32), DataLoader(data, batch_size=64))
    print(f"loss {trainer.callback_metrics['loss']:.4f}")


if __name__ == "__main__":
    main()
