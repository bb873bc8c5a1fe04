"""One process of two with Fabric: two epochs, plain and asynchronous."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lightning.fabric import Fabric

from sidestream import AsynchronousLoader
from support.lightning import Items


def main() -> None:
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()

    def epochs(wrap: Any) -> Any:
        data = DataLoader(Items(16), batch_size=2, shuffle=True)
        loader = wrap(fabric.setup_dataloaders(data, move_to_device=False))
        return [[int(x * 64) for batch in loader for x in batch[:, 0]] for _ in range(2)]

    plain = epochs(lambda loader: loader)
    ours = epochs(lambda loader: AsynchronousLoader(loader, fabric.device))
    sys.stdout.write(json.dumps([[[one] for one in plain], [[one] for one in ours]]) + "\n")
    torch.distributed.barrier()  # gloo may abort a process whose peer left first
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
