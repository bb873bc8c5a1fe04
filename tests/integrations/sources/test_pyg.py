"""PyTorch Geometric: graphs move themselves, in place, and are asked once."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from support.integration import assert_like_a_plain_loop, needs

data = needs("torch_geometric.data")
loaders = needs("torch_geometric.loader")

pytestmark = pytest.mark.integration


def graphs() -> list[Any]:
    return [
        data.Data(
            x=torch.full((3 + i % 2, 2), float(i)),
            edge_index=torch.tensor([[0, 1], [1, 2]]),
            y=torch.tensor([i]),
        )
        for i in range(10)
    ]


def mixed() -> Any:
    graph = data.HeteroData()
    graph["author"].x = torch.ones(4, 2)
    graph["paper"].x = torch.zeros(3, 5)
    graph["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 3], [0, 2, 1]])
    return graph


def one_graph() -> Any:
    edges = torch.stack([torch.arange(40), (torch.arange(40) * 7) % 40])
    return data.Data(x=torch.arange(80.0).reshape(40, 2), edge_index=edges)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_its_dataloader(num_workers: int) -> None:
    assert_like_a_plain_loop(
        lambda: loaders.DataLoader(graphs(), batch_size=3, num_workers=num_workers)
    )


def test_its_dataloader_over_graphs_of_many_types() -> None:
    assert_like_a_plain_loop(lambda: loaders.DataLoader([mixed() for _ in range(5)], batch_size=2))


def test_its_loader_of_random_parts() -> None:
    assert_like_a_plain_loop(
        lambda: loaders.RandomNodeLoader(one_graph(), num_parts=4, shuffle=False)
    )


@pytest.mark.skipif(
    not (importlib.util.find_spec("pyg_lib") or importlib.util.find_spec("torch_sparse")),
    reason="NeighborLoader needs pyg-lib or torch-sparse, which are not installed",
)
def test_its_loader_of_neighbours() -> None:
    assert_like_a_plain_loop(
        lambda: loaders.NeighborLoader(one_graph(), num_neighbors=[-1], batch_size=8)
    )
