"""`len`: the source's, bounded by `num_batches`, or `num_batches` where the source has none."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from sidestream import AsynchronousLoader
from support.sources import Counting, SizedCounting, numbers, plain


class SizedStream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(6))

    def __len__(self) -> int:
        return 6


class UnsizedStream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(6))


def _data(length: int, **options: Any) -> Any:
    return DataLoader(TensorDataset(torch.arange(length)), **options)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ([], 0),
        (plain(5), 5),
        (_data(5, batch_size=2), 3),
        (_data(5, batch_size=2, drop_last=True), 2),
        (DataLoader(SizedStream(), batch_size=4), 2),
    ],
)
def test_the_length_is_the_source_s(source: Any, expected: int, device: str) -> None:
    assert len(AsynchronousLoader(source, device)) == expected
    assert len(list(AsynchronousLoader(source, device))) == expected


@pytest.mark.parametrize("num_batches", [0, 1, 4, 5, 6, 1000])
def test_the_length_is_the_smaller_of_both(
    num_batches: int, buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(plain(5), device, buffer_size=buffer_size, num_batches=num_batches)
    assert len(loader) == min(5, num_batches)
    for _ in range(2):
        assert numbers(loader) == list(range(len(loader)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Counting(None),
        lambda: (batch for batch in plain(9)),
        lambda: DataLoader(UnsizedStream(), batch_size=2),
        lambda: UnsizedStream(),
    ],
    ids=["infinite", "generator", "DataLoader over a stream", "stream"],
)
def test_without_a_length_of_its_own_num_batches_is_it(make: Any, device: str) -> None:
    assert len(AsynchronousLoader(make(), device, num_batches=3)) == 3
    with pytest.raises(TypeError, match="len"):
        len(AsynchronousLoader(make(), device))


def test_num_batches_ends_an_infinite_source(buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(Counting(None), device, buffer_size=buffer_size, num_batches=4)
    assert [numbers(loader) for _ in range(2)] == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("num_batches", [0, 1, 3])
def test_num_batches_bounds_what_is_read_too(
    num_batches: int, buffer_size: int, device: str
) -> None:
    source = Counting(None)
    loader = AsynchronousLoader(source, device, buffer_size=buffer_size, num_batches=num_batches)
    assert numbers(loader) == list(range(num_batches))
    assert source.reads == num_batches


def test_a_source_shorter_than_num_batches_ends_where_it_ends(
    buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(Counting(2), device, buffer_size=buffer_size, num_batches=7)
    assert [numbers(loader) for _ in range(2)] == [[0, 1]] * 2


def test_a_length_that_changes_is_looked_up_each_time(device: str) -> None:
    source = plain(2)
    loader = AsynchronousLoader(source, device)
    assert len(loader) == 2
    source.append(source[0])
    assert len(loader) == 3
    assert len(list(loader)) == 3


def test_the_length_reads_nothing(device: str) -> None:
    source = SizedCounting(4)
    loader = AsynchronousLoader(source, device)
    assert [len(loader) for _ in range(3)] == [4, 4, 4]
    assert (source.iters, source.reads) == (0, 0)


def test_an_error_in_the_source_s_length_is_not_hidden(device: str) -> None:
    class Broken(Counting):
        def __len__(self) -> int:
            raise OSError("the index is gone")

    with pytest.raises(OSError, match="the index is gone"):
        len(AsynchronousLoader(Broken(3), device))


def test_the_length_is_the_same_in_mid_pass(buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(plain(5), device, buffer_size=buffer_size)
    assert [len(loader) for _ in itertools.islice(loader, 5)] == [5] * 5
