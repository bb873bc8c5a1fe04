"""Several loaders, several consumers, and a dataset that stands one thread at a time."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sidestream import AsynchronousLoader
from support.sources import Counting, NonReentrant, numbers
from support.waiting import Worker


def test_two_loaders_at_once_in_one_loop(buffer_size: int, device: str) -> None:
    """As training and validation are, or a loader for each of two domains."""
    one = AsynchronousLoader(Counting(9), device, buffer_size=buffer_size)
    other = AsynchronousLoader(Counting(4), device, buffer_size=buffer_size)
    seen = []
    for _, number in one:
        seen.append(number)
        if number % 3 == 0:
            assert numbers(other) == [0, 1, 2, 3]
    assert seen == list(range(9))


def test_two_loaders_with_workers_at_once() -> None:
    def make(first: int) -> Any:
        data = TensorDataset(torch.arange(first, first + 12))
        return AsynchronousLoader(DataLoader(data, batch_size=2, num_workers=1), "cpu")

    pairs = [
        (one[0].tolist(), other[0].tolist()) for one, other in zip(make(0), make(100), strict=True)
    ]
    assert pairs == [([n, n + 1], [100 + n, 101 + n]) for n in range(0, 12, 2)]


def test_four_threads_share_one_iterator_and_get_each_batch_once(
    buffer_size: int, device: str
) -> None:
    iterator = iter(AsynchronousLoader(Counting(200), device, buffer_size=buffer_size))
    seen = [worker.result() for worker in [Worker(numbers, iterator) for _ in range(4)]]
    assert sorted(number for part in seen for number in part) == list(range(200))
    assert all(part == sorted(part) for part in seen)


def test_four_threads_with_a_loader_each(buffer_size: int, device: str) -> None:
    loaders = [AsynchronousLoader(Counting(50), device, buffer_size=buffer_size) for _ in range(4)]
    for worker in [Worker(numbers, loader) for loader in loaders]:
        assert worker.result() == list(range(50))


@pytest.mark.parametrize("buffer_size", [0, 1, 2])
def test_no_two_threads_are_in_the_dataset_over_200_early_breaks(buffer_size: int) -> None:
    """Report R60: also across passes that were broken off and begun anew at once."""
    dataset = NonReentrant(30)
    loader = AsynchronousLoader(DataLoader(dataset, batch_size=2), "cpu", buffer_size=buffer_size)
    for turn in range(200):
        for position, (_, number) in enumerate(loader):
            assert number.tolist() == [2 * position, 2 * position + 1]
            if position == turn % 4:
                break
    assert dataset.overlaps == 0
    assert len(list(loader)) == 15


class Lingering(NonReentrant):
    """Stays inside for a while and lets other threads run, so that one would meet the other."""

    def __getitem__(self, index: int) -> Any:
        if not self.inside.acquire(blocking=False):
            self.overlaps += 1
            raise RuntimeError("two threads are inside the dataset at once")
        try:
            threading.Event().wait(0.001)
            return torch.full((2,), float(index)), index
        finally:
            self.inside.release()


def test_no_two_threads_are_in_the_dataset_of_four_passes_at_once() -> None:
    dataset = Lingering(20)
    loader = AsynchronousLoader(DataLoader(dataset, batch_size=None), "cpu")
    for worker in [Worker(numbers, loader) for _ in range(4)]:
        assert worker.result() == list(range(20))
    assert dataset.overlaps == 0
