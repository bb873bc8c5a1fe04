"""G1: the same batches as a plain loop, in the same order and number, of the same types."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sidestream import AsynchronousLoader
from support.compare import assert_same
from support.sources import (
    Blocking,
    Counting,
    Reusing,
    SelfResetting,
    SizedCounting,
    numbers,
    plain,
)


class Items(Dataset):
    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)), index


class Stream(IterableDataset):
    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Any:
        return iter(range(self._length))


SOURCES = {
    "list": plain,
    "tuple": lambda length: tuple(plain(length)),
    "range": range,
    "iterable": Counting,
    "sized iterable": SizedCounting,
    "self-resetting": SelfResetting,
    "DataLoader": lambda length: DataLoader(Items(length), batch_size=2),
    "DataLoader, last dropped": lambda length: DataLoader(
        Items(length), batch_size=2, drop_last=True
    ),
    "DataLoader, no batches": lambda length: DataLoader(Items(length), batch_size=None),
    "DataLoader over a stream": lambda length: DataLoader(Stream(length), batch_size=2),
    "tensor": lambda length: torch.arange(2 * length).reshape(length, 2),
    "dict": lambda length: dict.fromkeys(range(length)),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_pass_equals_a_plain_loop(
    kind: str, length: int, buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(SOURCES[kind](length), device, buffer_size=buffer_size)
    for _ in range(3):
        assert_same(list(loader), list(SOURCES[kind](length)), device)


def test_a_dataset_gets_a_dataloader_with_the_arguments_given(
    length: int, buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(
        Items(length), device, buffer_size=buffer_size, batch_size=2, drop_last=True
    )
    expected = list(DataLoader(Items(length), batch_size=2, drop_last=True))
    assert_same(list(loader), expected, device)
    assert len(loader) == len(expected)


def test_a_stream_dataset_gets_a_dataloader_too(buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(Stream(5), device, buffer_size=buffer_size, batch_size=2)
    assert_same(list(loader), list(DataLoader(Stream(5), batch_size=2)), device)


FALSY = [None, 0, False, (), {}, [], "", b"", 0.0, set(), None]


def test_falsy_batches_are_ordinary_batches(buffer_size: int, device: str) -> None:
    for _ in range(2):
        batches = list(AsynchronousLoader(FALSY, device, buffer_size=buffer_size))
        assert batches == FALSY
        assert [type(batch) for batch in batches] == [type(batch) for batch in FALSY]


@pytest.mark.parametrize(
    "batch",
    [
        NotImplemented,
        ...,
        StopIteration,
        StopIteration(),
        ValueError("an item"),
        BaseException,
        object(),
        type,
        float("nan"),
    ],
    ids=repr,
)
def test_no_value_is_a_signal(batch: Any, buffer_size: int, device: str) -> None:
    batches = list(AsynchronousLoader([batch, 1, batch], device, buffer_size=buffer_size))
    assert batches[0] is batch
    assert batches[1] == 1
    assert batches[2] is batch


class Unequal:
    """Comparing it or asking for its truth is an error, as with an array of many values."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __bool__(self) -> bool:
        raise RuntimeError("asked for its truth")

    def __hash__(self) -> int:
        raise RuntimeError("hashed")


def test_batches_are_never_compared_hashed_or_tested_for_truth(
    buffer_size: int, device: str
) -> None:
    batch = Unequal()
    nested = {"inside": [batch, torch.zeros(2)]}
    one, two = AsynchronousLoader([batch, nested], device, buffer_size=buffer_size)
    assert one is batch
    assert two["inside"][0] is batch


def test_a_zero_size_batch_is_an_ordinary_batch(buffer_size: int, device: str) -> None:
    source = [torch.empty(0, 3), torch.zeros(()), torch.empty(3, 0)]
    assert_same(list(AsynchronousLoader(source, device, buffer_size=buffer_size)), source, device)


def test_an_empty_source_gives_no_batch_epoch_after_epoch(buffer_size: int, device: str) -> None:
    for source in ([], DataLoader(Items(1), batch_size=2, drop_last=True), Stream(0)):
        loader = AsynchronousLoader(source, device, buffer_size=buffer_size)
        assert [list(loader) for _ in range(3)] == [[], [], []]


def test_an_infinite_source_is_read_as_far_as_asked(buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(Counting(None), device, buffer_size=buffer_size)
    assert numbers(itertools.islice(loader, 20)) == list(range(20))
    assert numbers(itertools.islice(loader, 3)) == list(range(3))


def test_a_batch_that_needs_no_move_is_the_same_object(buffer_size: int) -> None:
    source = [{"x": torch.zeros(2), "y": [torch.ones(3)]}, torch.zeros(1), "text"]
    for got, given in zip(
        AsynchronousLoader(source, "cpu", buffer_size=buffer_size), source, strict=True
    ):
        assert got is given


def test_the_source_s_own_batch_is_left_as_it_was(buffer_size: int) -> None:
    tensor = torch.ones(2)
    source = [{"x": tensor, "y": [tensor, 1]}]
    (got,) = AsynchronousLoader(source, "meta", buffer_size=buffer_size)
    assert got["x"].is_meta
    assert source[0]["x"] is tensor
    assert source[0]["y"][0] is tensor


def test_next_after_the_end_keeps_saying_the_end(
    length: int, buffer_size: int, device: str
) -> None:
    iterator = iter(AsynchronousLoader(plain(length), device, buffer_size=buffer_size))
    assert numbers(iterator) == list(range(length))
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


def test_a_source_that_reuses_its_buffer_shows_each_value_in_time(buffer_size: int) -> None:
    """Hazard H9: a plain loop sees each value before the next one overwrites it."""
    loader = AsynchronousLoader(Reusing(5), "cpu", buffer_size=buffer_size)
    assert [batch.tolist() for batch in loader] == [[float(number)] * 4 for number in range(5)]


def test_a_dataloader_over_tensors_keeps_values(buffer_size: int) -> None:
    data = TensorDataset(torch.arange(7), torch.randn(7, 2))
    expected = list(DataLoader(data, batch_size=3))
    assert_same(
        list(AsynchronousLoader(DataLoader(data, batch_size=3), "cpu", buffer_size=buffer_size)),
        expected,
        "cpu",
    )


def test_the_first_batch_does_not_wait_for_the_buffer_to_fill(device: str) -> None:
    source = Blocking(at=1)
    iterator = iter(AsynchronousLoader(source, device, buffer_size=9))
    assert next(iterator)[1] == 0  # batch 1 is not there, and cannot be
    source.gate.set()
    assert numbers(iterator) == [1, 2, 3, 4]
