"""Lightning's Trainer without our callback, as a contender: it moves batches in its own way."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch
from lightning import pytorch as pl


class _Simulated(pl.accelerators.Accelerator):
    """Tells Lightning of the simulated accelerator."""

    def setup_device(self, device: torch.device) -> None:
        """Nothing to do."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """There are none."""
        return {}

    def teardown(self) -> None:
        """Nothing to do."""

    @staticmethod
    def parse_devices(devices: Any) -> Any:
        """Whatever was given."""
        return devices

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """One."""
        return [torch.device("sim", 0)]

    @staticmethod
    def auto_device_count() -> int:
        """One."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """It is."""
        return True

    @staticmethod
    def name() -> str:
        """Its name."""
        return "sim"


class _Module(pl.LightningModule):
    def __init__(self, step: Callable[[Any], None]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.automatic_optimization = False
        self._step = step

    def training_step(self, batch: Any, index: int) -> None:
        """Do what every contender does with a batch."""
        self._step(batch)

    def configure_optimizers(self) -> None:
        """Nothing is trained."""


def train(data: Any, target: Any, step: Callable[[Any], None]) -> None:
    """One epoch with the Trainer, with nothing that it does not need."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    where: dict[str, Any] = {"accelerator": target.name}
    if target.name == "sim":
        strategies = pl.strategies
        device = torch.device("sim", 0)
        where = {
            "strategy": strategies.SingleDeviceStrategy(device=device, accelerator=_Simulated())
        }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            **where,
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(_Module(step), data)
