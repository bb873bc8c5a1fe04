"""G7, report R10: a forgotten iterator is collected, and its thread ends."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

from sidestream import AsynchronousLoader
from support.sources import Blocking, Counting, batch_of, numbers, plain
from support.waiting import Worker, loader_threads, wait_until, wait_until_blocked


def test_two_hundred_first_batches_leave_no_thread(buffer_size: int, device: str) -> None:
    before = threading.active_count()
    loader = AsynchronousLoader(Counting(None), device, buffer_size=buffer_size)
    for _ in range(200):
        assert next(iter(loader))[1] == 0
    wait_until(lambda: threading.active_count() == before, "all threads have ended")


def test_two_hundred_loaders_broken_off_leave_no_thread(device: str) -> None:
    before = threading.active_count()
    for _ in range(200):
        for _, number in AsynchronousLoader(Counting(None), device, buffer_size=1):
            assert number == 0
            break
    wait_until(lambda: threading.active_count() == before, "all threads have ended")


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_an_iterator_in_a_cycle_is_collected(taken: int, buffer_size: int, device: str) -> None:
    before = threading.active_count()
    holder: dict[str, Any] = {}
    holder["itself"] = holder
    holder["iterator"] = iter(AsynchronousLoader(plain(9), device, buffer_size=buffer_size))
    for number in range(taken):
        assert next(holder["iterator"])[1] == number
    reference = weakref.ref(holder["iterator"])
    del holder
    gc.collect()
    assert reference() is None
    wait_until(lambda: threading.active_count() == before, "the thread has ended")


def test_a_loader_in_a_cycle_with_its_source_is_collected(buffer_size: int, device: str) -> None:
    source = Counting(5)
    loader = AsynchronousLoader(source, device, buffer_size=buffer_size)
    source.owner = loader
    iterator = iter(loader)
    assert next(iterator)[1] == 0
    references = [weakref.ref(source), weakref.ref(loader), weakref.ref(iterator)]
    del source, loader, iterator

    def gone() -> bool:
        gc.collect()
        return all(reference() is None for reference in references)

    wait_until(gone, "source, loader and iterator are collected")


class Batch:
    """Can be watched."""


def test_the_batches_of_a_forgotten_iterator_are_freed(buffer_size: int, device: str) -> None:
    references: list[weakref.ref[Batch]] = []

    class Source(Counting):
        def make(self, number: int) -> Any:
            batch = Batch()
            references.append(weakref.ref(batch))
            return batch

    loader = AsynchronousLoader(Source(None), device, buffer_size=buffer_size)
    iterator = iter(loader)
    next(iterator)
    del iterator
    wait_until(lambda: not any(r() for r in list(references)), "all batches are freed")


def test_an_iterator_keeps_its_pass_alive_without_the_loader(
    buffer_size: int, device: str
) -> None:
    iterator = iter(AsynchronousLoader(Counting(5), device, buffer_size=buffer_size))
    gc.collect()
    assert numbers(iterator) == list(range(5))


def test_the_thread_ends_with_the_epoch_though_the_iterator_is_kept(device: str) -> None:
    before = threading.active_count()
    iterator = iter(AsynchronousLoader(Counting(5), device, buffer_size=2))
    assert numbers(iterator) == list(range(5))
    wait_until(lambda: threading.active_count() == before, "the thread has ended")
    assert list(iterator) == []


def test_an_iterator_collected_in_another_thread_ends_its_own(device: str) -> None:
    iterators = [iter(AsynchronousLoader(Counting(None), device, buffer_size=2))]
    assert next(iterators[0])[1] == 0
    Worker(iterators.clear).result()
    wait_until(lambda: not loader_threads(), "the thread has ended")


def test_a_source_that_forgets_its_own_iterator_does_not_deadlock(device: str) -> None:
    """The last reference goes in the loader's own thread."""
    held: list[Any] = []
    took = threading.Event()

    class Source(Counting):
        def make(self, number: int) -> Any:
            if number == 2:
                assert took.wait(10)
                held.clear()
            return batch_of(number)

    held.append(iter(AsynchronousLoader(Source(None), device, buffer_size=2)))
    assert next(held[0])[1] == 0
    took.set()
    wait_until(lambda: not held, "the source cleared it")
    wait_until(lambda: not loader_threads(), "the thread has ended")


def test_a_thread_that_waits_for_room_ends_when_the_iterator_is_dropped(device: str) -> None:
    iterator = iter(AsynchronousLoader(Counting(None), device, buffer_size=1))
    assert next(iterator)[1] == 0
    (thread,) = loader_threads()
    wait_until_blocked(thread)
    del iterator
    thread.join(5)
    assert not thread.is_alive()


def test_dropping_an_iterator_does_not_wait_for_a_slow_source(device: str) -> None:
    source = Blocking(at=1)
    iterator = iter(AsynchronousLoader(source, device, buffer_size=2))
    assert next(iterator)[1] == 0
    assert source.entered.wait(5)
    (thread,) = loader_threads()
    iterators = [iterator]
    del iterator
    try:
        Worker(iterators.clear).result(limit_s=5)
        assert thread.is_alive()
    finally:
        source.gate.set()
    thread.join(5)
    assert not thread.is_alive()
