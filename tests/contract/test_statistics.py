"""`statistics`: zero before use, exact counts, and times that go to the stage that took them."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from typing import Any

import pytest

from sidestream import AsynchronousLoader, LoaderStatistics
from support.sources import Counting, SelfMoving, batch_of, numbers, plain
from support.waiting import Worker, loader_threads, wait_until_blocked

SLOW_S = 0.02  # how long a slow stage takes a batch: far more than the work around it
TIMES = [
    "warm_up_s",
    "source_wait_s",
    "staging_s",
    "staging_wait_s",
    "room_wait_s",
    "consumer_wait_s",
]
UNKNOWN = ["link_bytes_per_s", "device_elapsed_s", "device_wait_s", "epoch"]


def take_time() -> None:
    """What a slow stage does; nothing waits for it by a clock."""
    threading.Event().wait(SLOW_S)


class Slow(Counting):
    def make(self, number: int) -> Any:
        take_time()
        return batch_of(number)


class SlowToMove(SelfMoving):
    def to(self, device: Any, *args: Any, **kwargs: Any) -> Any:
        take_time()
        return super().to(device)


def test_zero_reads_as_zero_before_use(buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(plain(3), device, buffer_size=buffer_size)
    assert loader.statistics() == LoaderStatistics()
    values = dataclasses.asdict(loader.statistics())
    assert [values.pop(name) for name in UNKNOWN] == [None] * 4
    assert set(values.values()) == {0}
    iterator = iter(loader)
    begun = LoaderStatistics(num_epochs=1)
    assert loader.statistics() == dataclasses.replace(begun, epoch=begun)
    assert numbers(iterator) == [0, 1, 2]


def test_a_snapshot_is_frozen_and_does_not_change(buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(plain(3), device, buffer_size=buffer_size)
    before = loader.statistics()
    assert numbers(loader) == [0, 1, 2]
    assert before == LoaderStatistics()
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.num_batches = 5


def test_counts_are_of_what_was_begun_and_delivered(buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(plain(5), device, buffer_size=buffer_size)
    delivered = 0
    for epoch, taken in enumerate([5, 0, 1, 3, 5], start=1):
        delivered += len(list(itertools.islice(iter(loader), taken)))
        counts = loader.statistics()
        assert (counts.num_epochs, counts.num_batches) == (epoch, delivered)
    assert delivered == 14


def test_counts_of_several_consumers_add_up(device: str) -> None:
    loader = AsynchronousLoader(plain(40), device)
    iterator = iter(loader)
    seen = [len(worker.result()) for worker in [Worker(list, iterator) for _ in range(4)]]
    assert sum(seen) == loader.statistics().num_batches == 40


def test_copies_of_a_loader_count_for_themselves(device: str) -> None:
    loader = AsynchronousLoader(plain(3), device)
    other = AsynchronousLoader(plain(3), device)
    assert numbers(loader) == [0, 1, 2]
    assert other.statistics() == LoaderStatistics()


def test_time_in_the_source_is_the_source_s(buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(Slow(6), device, buffer_size=buffer_size)
    begun = time.perf_counter()
    assert numbers(loader) == list(range(6))
    wall_s = time.perf_counter() - begun
    found = loader.statistics()
    assert 5 * SLOW_S <= found.source_wait_s <= wall_s - SLOW_S
    # Nothing but the source was waited for, by the consumer too; the first wait is apart.
    assert SLOW_S <= found.warm_up_s <= wall_s - found.consumer_wait_s
    assert found.consumer_wait_s <= found.elapsed_s <= wall_s
    assert (found.num_steps, found.num_loaded) == (5, 5)


def test_time_in_a_move_is_stagings(device: str) -> None:
    source = [SlowToMove(*batch_of(number)) for number in range(6)]
    loader = AsynchronousLoader(source, device)
    begun = time.perf_counter()
    assert len(list(loader)) == 6
    wall_s = time.perf_counter() - begun
    found = loader.statistics()
    assert 5 * SLOW_S <= found.staging_s <= wall_s - SLOW_S
    assert found.source_wait_s <= wall_s - found.staging_s


def test_time_in_the_loop_is_waited_for_room(device: str) -> None:
    loader = AsynchronousLoader(plain(8), device, buffer_size=1)
    begun = time.perf_counter()
    iterator = iter(loader)
    for number in range(4):
        assert next(iterator)[1] == number
        (thread,) = loader_threads()
        wait_until_blocked(thread)
        take_time()
    assert numbers(iterator) == [4, 5, 6, 7]
    wall_s = time.perf_counter() - begun
    found = loader.statistics()
    assert 4 * SLOW_S <= found.room_wait_s <= wall_s


def test_the_stages_of_the_thread_take_no_more_than_there_was(device: str) -> None:
    loader = AsynchronousLoader(plain(50), device)
    begun = time.perf_counter()
    for _ in range(5):
        assert len(list(loader)) == 50
    wall_s = time.perf_counter() - begun
    found = loader.statistics()
    assert all(getattr(found, name) >= 0 for name in TIMES)
    assert found.warm_up_s + found.elapsed_s <= wall_s
    assert found.consumer_wait_s <= found.elapsed_s
    thread = [found.source_wait_s, found.staging_s, found.staging_wait_s, found.room_wait_s]
    assert sum(thread) <= wall_s


def test_the_last_pass_is_told_apart(buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(plain(5), device, buffer_size=buffer_size)
    assert numbers(loader) == list(range(5))
    first = loader.statistics()
    assert first.epoch == dataclasses.replace(first, epoch=None)
    assert numbers(itertools.islice(iter(loader), 3)) == [0, 1, 2]
    second = loader.statistics()
    assert (second.num_epochs, second.num_batches, second.num_steps) == (2, 8, 6)
    assert (second.epoch.num_epochs, second.epoch.num_batches, second.epoch.num_steps) == (1, 3, 2)
    assert second.epoch.warm_up_s == pytest.approx(second.warm_up_s - first.warm_up_s)
    assert second.epoch.elapsed_s == pytest.approx(second.elapsed_s - first.elapsed_s)


def test_where_nothing_is_copied_no_bytes_are_told(buffer_size: int) -> None:
    loader = AsynchronousLoader(plain(5), "cpu", buffer_size=buffer_size)
    assert numbers(loader) == list(range(5))
    found = loader.statistics()
    assert found.num_bytes == found.peak_device_bytes == found.peak_staging_bytes == 0
    assert found.num_timed == 0
