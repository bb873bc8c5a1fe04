"""Hazard H9 on the CPU: a source that fills the same memory again shows each value in time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sidestream import AsynchronousLoader
from support.waiting import wait_until

LENGTH = 26


class Ring:
    """Fills a ring of tensors in turn, and counts its batches."""

    def __init__(self, tensors: list[torch.Tensor], wrap: Callable[[Any], Any]) -> None:
        self.tensors = tensors
        self.wrap = wrap
        self.reads = 0

    def __iter__(self) -> Any:
        self.reads = 0
        for number in range(LENGTH):
            tensor = self.tensors[number % len(self.tensors)]
            tensor.fill_(number)
            self.reads += 1
            yield self.wrap(tensor)


def assert_each_in_time(ring: Ring, buffer_size: int, find: Callable[[Any], Any]) -> None:
    """Look at each batch when as much as ever will be has been read ahead of it."""
    loader = AsynchronousLoader(ring, "cpu", buffer_size=buffer_size)
    for taken in (LENGTH, 3, LENGTH):
        for number, batch in enumerate(itertools.islice(iter(loader), taken)):
            ahead = min(number + 1 + buffer_size + 1, LENGTH) if buffer_size else 0
            wait_until(lambda: ring.reads >= ahead, "the buffer is full")  # noqa: B023
            tensor = find(batch)
            assert tensor.unique().tolist() == [number]
        assert number == taken - 1


@pytest.mark.parametrize("size", range(1, 13))
@pytest.mark.parametrize("buffer_size", [1, 2, 9])
def test_a_ring_of_buffers(size: int, buffer_size: int) -> None:
    ring = Ring([torch.zeros(4) for _ in range(size)], lambda tensor: tensor)
    assert_each_in_time(ring, buffer_size, lambda batch: batch)


KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "rows of one tensor": (
        lambda size: list(torch.zeros(size, 4)),
        lambda tensor: tensor,
        lambda batch: batch,
    ),
    "inside a dict": (
        lambda size: [torch.zeros(4) for _ in range(size)],
        lambda tensor: {"x": [tensor]},
        lambda batch: batch["x"][0],
    ),
    "a view of what is filled": (
        lambda size: [torch.zeros(4) for _ in range(size)],
        lambda tensor: tensor[1:3],
        lambda batch: batch,
    ),
    "transposed": (
        lambda size: [torch.zeros(3, 4) for _ in range(size)],
        lambda tensor: tensor.T,
        lambda batch: batch,
    ),
    "channels last": (
        lambda size: [
            torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
            for _ in range(size)
        ],
        lambda tensor: tensor,
        lambda batch: batch,
    ),
    "every second element": (
        lambda size: [torch.zeros(8) for _ in range(size)],
        lambda tensor: tensor[::2],
        lambda batch: batch,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 3])
def test_a_ring_of_another_kind(kind: str, size: int) -> None:
    make, wrap, find = KINDS[kind]
    assert_each_in_time(Ring(make(size), wrap), 2, find)


def test_without_a_buffer_nothing_is_ahead() -> None:
    ring = Ring([torch.zeros(4)], lambda tensor: tensor)
    assert_each_in_time(ring, 0, lambda batch: batch)
