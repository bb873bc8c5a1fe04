"""LitData: chunks on disk, behind its own DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.integration import assert_like_a_plain_loop, needs

litdata = needs("litdata")
cache = needs("litdata.streaming.cache")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning"),
]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    written = cache.Cache(str(tmp_path), chunk_size=4)
    for index in range(10):
        written[index] = {"x": torch.full((2,), float(index)), "index": index}
    written.done()
    written.merge(1)
    return str(tmp_path)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_its_dataloader(folder: str, num_workers: int) -> None:
    def made() -> Any:
        dataset = litdata.StreamingDataset(folder, shuffle=False)
        return litdata.StreamingDataLoader(dataset, batch_size=2, num_workers=num_workers)

    assert_like_a_plain_loop(made)


def test_its_dataset_as_a_stream(folder: str) -> None:
    assert_like_a_plain_loop(lambda: litdata.StreamingDataset(folder, shuffle=False))
