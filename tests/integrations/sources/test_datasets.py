"""Hugging Face datasets: rows in torch's format, batches of a stream, and through a DataLoader."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader

from support.integration import assert_like_a_plain_loop, needs

datasets = needs("datasets")

pytestmark = pytest.mark.integration

needs("tqdm").tqdm.monitor_interval = 0  # no thread for progress bars that stays

ROWS = {
    "x": [[float(number), 1.0] for number in range(10)],
    "y": list(range(10)),
    "name": list("abcdefghij"),
}


def table() -> Any:
    return datasets.Dataset.from_dict(ROWS).with_format("torch")


def test_rows_in_torch_s_format() -> None:
    assert_like_a_plain_loop(table)


def test_batches_of_a_table() -> None:
    assert_like_a_plain_loop(lambda: table().batch(4).with_format("torch"))


def test_a_table_in_a_dataloader() -> None:
    assert_like_a_plain_loop(lambda: DataLoader(table(), batch_size=4))


def test_a_table_in_a_dataloader_with_workers() -> None:
    assert_like_a_plain_loop(lambda: DataLoader(table(), batch_size=4, num_workers=2))


def test_a_stream_of_batches() -> None:
    assert_like_a_plain_loop(lambda: table().to_iterable_dataset().batch(4))


def test_a_stream_in_a_dataloader() -> None:
    assert_like_a_plain_loop(lambda: DataLoader(table().to_iterable_dataset(), batch_size=4))
