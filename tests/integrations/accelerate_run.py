"""One process of a run with Accelerate, plain or asynchronous; prints what it saw, as JSON."""

from __future__ import annotations

import json
import sys
import threading
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

from sidestream.integrations.accelerate import asynchronous


class Items(Dataset):
    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


class Stream(IterableDataset):
    def __len__(self) -> int:
        return 22

    def __iter__(self) -> Any:
        return iter([torch.tensor([float(index)]) for index in range(22)])


CONFIGURATIONS: dict[str, tuple[type, dict[str, Any]]] = {
    "shards": (Items, {}),
    "split_batches": (Items, {"split_batches": True}),
    "uneven": (Items, {"even_batches": False}),
    "dispatched": (Stream, {"dispatch_batches": True}),
    "dispatched, split": (Stream, {"dispatch_batches": True, "split_batches": True}),
    "a stream": (Stream, {}),
    "a stream, not dispatched": (Stream, {"dispatch_batches": False}),
    "a seedable sampler": (Items, {"use_seedable_sampler": True}),
    "stateful": (Items, {"use_stateful_dataloader": True}),
    "workers": (Items, {}),
    "persistent workers": (Items, {}),
}
WORKERS: dict[str, dict[str, Any]] = {
    "workers": {"num_workers": 2},
    "persistent workers": {"num_workers": 1, "persistent_workers": True},
}


def values(batches: Any) -> Any:
    return [batch.flatten().tolist() for batch in batches]


def run(kind: type, configuration: dict[str, Any], *, ours: bool, **kwargs: Any) -> dict[str, Any]:
    """Two epochs with accumulation; all that the loop and the accelerator see of them."""
    torch.manual_seed(5)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=4,
        dataloader_config=DataLoaderConfiguration(**configuration),
    )
    if ours:
        asynchronous(accelerator)
    shuffle = kind is Items
    data = DataLoader(kind(), batch_size=2, shuffle=shuffle, **kwargs)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, data)
    assert isinstance(loader, DataLoader)
    seen: list[Any] = []
    for _ in range(2):
        for batch in loader:
            state = accelerator.gradient_state
            if configuration.get("even_batches", True):
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch).sum())
                    optimizer.step()
                    optimizer.zero_grad()
                gathered = accelerator.gather_for_metrics(batch).flatten().tolist()
            else:  # one process has a batch more, and would wait for the other for ever
                gathered = []
            seen.append([
                batch.flatten().tolist(), accelerator.sync_gradients, state.end_of_dataloader,
                state.remainder, gathered,
            ])  # fmt: skip
    result = {
        "seen": seen,
        "weight": accelerator.unwrap_model(model).weight.item(),
        "length": len(loader),
        "again": accelerator.prepare(loader) is loader,
    }
    if "use_stateful_dataloader" in configuration:
        result["states"] = []
        for batch in loader:
            state = {key: repr(one) for key, one in loader.state_dict().items()}
            result["states"].append([batch.flatten().tolist(), sorted(state.items())])
    else:
        result["skipped"] = values(accelerator.skip_first_batches(loader, 2))
    return result


def main() -> None:
    results = {}
    for name, (kind, configuration) in CONFIGURATIONS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        workers = WORKERS.get(name, {})
        plain, ours = (run(kind, configuration, ours=one, **workers) for one in (False, True))
        assert plain["seen"]
        results[name] = plain == ours
        if plain != ours:
            for key in plain:
                if plain[key] != ours[key]:
                    sys.stderr.write(f"{name}, {key}:\n{plain[key]}\n{ours[key]}\n")
    assert not [one for one in threading.enumerate() if one.name.startswith("sidestream")]
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # gloo may abort a process whose peer left first
        torch.distributed.destroy_process_group()
    sys.stdout.write(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
