"""torchdata: the stateful DataLoader and a graph of nodes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.integration import assert_like_a_plain_loop, needs

stateful = needs("torchdata.stateful_dataloader")
nodes = needs("torchdata.nodes")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
]


class Items(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((2,), float(index)), "name": f"item {index}"}


def end(source: Any) -> None:
    source._iterator = None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_dataloader(num_workers: int) -> None:
    def made() -> Any:
        return stateful.StatefulDataLoader(Items(), batch_size=3, num_workers=num_workers)

    assert_like_a_plain_loop(made, close=end)


def test_a_stateful_dataloader_with_persistent_workers() -> None:
    def made() -> Any:
        return stateful.StatefulDataLoader(
            Items(), batch_size=3, num_workers=2, persistent_workers=True
        )

    assert_like_a_plain_loop(made, close=end)


def test_a_loader_of_nodes() -> None:
    def made() -> Any:
        node = nodes.SamplerWrapper(torch.utils.data.SequentialSampler(range(10)))
        node = nodes.Mapper(node, Items().__getitem__)
        node = nodes.Batcher(node, batch_size=3, drop_last=False)
        return nodes.Loader(nodes.Mapper(node, torch.utils.data.default_collate))

    assert_like_a_plain_loop(made)


def test_a_loader_of_nodes_with_threads_of_its_own() -> None:
    def made() -> Any:
        node = nodes.IterableWrapper(range(10))
        node = nodes.ParallelMapper(node, Items().__getitem__, num_workers=2, method="thread")
        node = nodes.Batcher(node, batch_size=3, drop_last=False)
        return nodes.Loader(nodes.Prefetcher(node, prefetch_factor=2))

    assert_like_a_plain_loop(made)
