"""Report R23: how far is read ahead is a stated number, and reached."""

from __future__ import annotations

from typing import Any

import pytest

from sidestream import AsynchronousLoader
from support.sources import Counting, numbers
from support.waiting import loader_threads, wait_until, wait_until_blocked


@pytest.mark.parametrize("buffer_size", [1, 2, 9])
def test_one_more_than_the_buffer_is_read_ahead_and_no_further(
    buffer_size: int, device: str
) -> None:
    source = Counting(None)
    iterator = iter(AsynchronousLoader(source, device, buffer_size=buffer_size))
    assert source.reads == 0
    for delivered in range(1, 8):
        assert next(iterator)[1] == delivered - 1
        (thread,) = loader_threads()
        ahead = delivered + buffer_size + 1
        wait_until(lambda: source.reads >= ahead, "the buffer is full")  # noqa: B023
        wait_until_blocked(thread)
        assert source.reads == ahead


def test_without_a_buffer_nothing_is_read_ahead(device: str) -> None:
    source = Counting(None)
    iterator = iter(AsynchronousLoader(source, device, buffer_size=0))
    for delivered in range(1, 8):
        assert next(iterator)[1] == delivered - 1
        assert source.reads == delivered


@pytest.mark.parametrize("num_batches", [1, 3])
def test_num_batches_bounds_the_reads_whatever_the_buffer(num_batches: int, device: str) -> None:
    source = Counting(None)
    loader = AsynchronousLoader(source, device, buffer_size=10, num_batches=num_batches)
    iterator = iter(loader)
    assert next(iterator)[1] == 0
    wait_until(lambda: source.reads == num_batches, "all is read")
    wait_until(lambda: not loader_threads(), "the thread has ended")
    assert source.reads == num_batches
    assert numbers(iterator) == list(range(1, num_batches))
    assert source.reads == num_batches


def test_the_first_read_is_in_the_first_next(buffer_size: int, device: str) -> None:
    source = Counting(3)
    loader = AsynchronousLoader(source, device, buffer_size=buffer_size)
    assert (source.iters, source.reads) == (0, 0)
    iterators = [iter(loader) for _ in range(3)]
    assert (source.iters, source.reads) == (3, 0)
    assert next(iterators[0])[1] == 0
    assert source.reads >= 1


def test_a_break_stops_the_reading(buffer_size: int, device: str) -> None:
    source = Counting(None)
    loader = AsynchronousLoader(source, device, buffer_size=buffer_size)
    for _ in loader:
        break
    wait_until(lambda: not loader_threads(), "the thread has ended")
    reads: Any = source.reads
    assert reads <= 1 + buffer_size + 1
