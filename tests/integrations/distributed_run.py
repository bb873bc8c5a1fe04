"""One process of several under torchrun: DDP and FSDP, with and without the loader."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

from sidestream import AsynchronousLoader

ROWS = TensorDataset(torch.arange(17.0).unsqueeze(1) / 17)


def even(**kwargs: Any) -> Any:
    """What a DistributedSampler deals out; it fills the last round up."""
    sampler: Any = DistributedSampler(ROWS, shuffle=True, seed=1)
    return DataLoader(ROWS, batch_size=3, sampler=sampler, **kwargs)


def uneven(**kwargs: Any) -> Any:
    """A batch more in the first process than in the second."""
    part = Subset(ROWS, range(dist.get_rank(), len(ROWS), dist.get_world_size()))
    return DataLoader(part, batch_size=1, **kwargs)


def run(make: Any, wrap: Any, kind: str, **kwargs: Any) -> Any:
    torch.manual_seed(2)
    model: Any = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Linear(4, 1))
    model = fully_shard(model) if kind == "fsdp" else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = wrap(make(**kwargs))
    seen, losses = [], []
    for epoch in range(3):
        if make is even:
            loader.sampler.set_epoch(epoch)
        with Join([model]) if make is uneven else contextlib.nullcontext():
            for (x,) in loader:
                optimizer.zero_grad()
                loss = (model(x) ** 2).mean()
                loss.backward()
                optimizer.step()
                seen.append((x.flatten() * 17).round().int().tolist())
                losses.append(loss.item())
    weights = [
        (one.full_tensor() if hasattr(one, "full_tensor") else one).tolist()
        for one in model.parameters()
    ]
    return {"seen": seen, "losses": losses, "weights": weights, "length": len(loader)}


CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "ddp": (even, "ddp", {}),
    "ddp, workers": (even, "ddp", {"num_workers": 1}),
    "ddp, persistent workers": (even, "ddp", {"num_workers": 1, "persistent_workers": True}),
    "ddp, uneven ends": (uneven, "ddp", {}),
    "fsdp": (even, "fsdp", {}),
}


def main() -> None:
    dist.init_process_group("gloo")
    results: dict[str, Any] = {}
    for name, (make, kind, kwargs) in CASES.items():
        plain = run(make, lambda loader: loader, kind, **kwargs)
        ours = run(make, lambda loader: AsynchronousLoader(loader, "cpu"), kind, **kwargs)
        results[name] = {"same": plain == ours, "seen": ours["seen"], "losses": ours["losses"]}
    assert not [one for one in threading.enumerate() if one.name.startswith("sidestream")]
    dist.barrier()  # gloo may abort a process whose peer left first
    dist.destroy_process_group()
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
