"""`close`, `with` and what an ended pass says: passes end at once, and a new one starts afresh."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import Any

import pytest

from sidestream import AsynchronousLoader
from support.sources import Blocking, Counting, numbers, plain
from support.waiting import Worker, loader_threads, wait_until, wait_until_blocked

FULL = [0, 1, 2, 3, 4]


@pytest.fixture
def loader(device: str, buffer_size: int) -> Any:
    return AsynchronousLoader(Counting(5), device, buffer_size=buffer_size)


@pytest.mark.parametrize("taken", [0, 1, 4, 5])
def test_close_ends_every_pass_and_a_new_one_is_full(loader: Any, taken: int) -> None:
    one, other = iter(loader), iter(loader)
    for iterator in (one, other):
        assert numbers(itertools.islice(iterator, taken)) == FULL[:taken]
    loader.close()
    assert loader_threads() == []
    assert [list(one), list(other)] == [[], []]
    assert numbers(loader) == FULL


def test_close_may_be_called_at_any_time_and_again(loader: Any) -> None:
    loader.close()
    loader.close()
    iterator = iter(loader)
    loader.close()
    assert list(iterator) == []
    assert numbers(loader) == FULL
    for _ in range(2):
        loader.close()
    assert numbers(loader) == FULL


def test_with_closes_at_its_end(loader: Any) -> None:
    with loader as entered:
        assert entered is loader
        iterator = iter(loader)
        assert next(iterator)[1] == 0
    assert loader_threads() == []
    assert list(iterator) == []
    assert numbers(loader) == FULL


def test_with_closes_on_an_error_and_lets_it_through(loader: Any) -> None:
    error = ValueError("in the body")

    def loop() -> None:
        with loader:
            for _ in loader:
                raise error

    with pytest.raises(ValueError, match="in the body") as caught:
        loop()
    assert caught.value is error
    assert loader_threads() == []
    assert numbers(loader) == FULL


def test_closing_one_iterator_leaves_the_others(loader: Any) -> None:
    one, other = iter(loader), iter(loader)
    assert (next(one)[1], next(other)[1]) == (0, 0)
    one.close()
    one.close()
    assert list(one) == []
    assert numbers(other) == [1, 2, 3, 4]


def test_close_in_the_body_of_the_loop_ends_the_loop(loader: Any) -> None:
    seen = []
    for _, number in loader:
        seen.append(number)
        if number == 2:
            loader.close()
    assert seen == [0, 1, 2]


def test_close_wakes_a_consumer_that_waits(device: str) -> None:
    source = Blocking(at=1)
    loader = AsynchronousLoader(source, device, buffer_size=2)
    iterator = iter(loader)
    assert next(iterator)[1] == 0
    consumer = Worker(numbers, iterator)
    wait_until_blocked(consumer)
    closer = Worker(loader.close)
    assert consumer.result() == []
    source.gate.set()
    closer.result()


def test_close_while_the_thread_waits_for_room(device: str) -> None:
    loader = AsynchronousLoader(Counting(None), device, buffer_size=1)
    iterator = iter(loader)
    assert next(iterator)[1] == 0
    (thread,) = loader_threads()
    wait_until_blocked(thread)
    loader.close()
    assert not thread.is_alive()
    assert list(iterator) == []


def test_the_source_may_close_the_loader_that_reads_it(device: str) -> None:
    class Closing(Counting):
        def make(self, number: int) -> Any:
            if number == 3:
                loader.close()
            return super().make(number)

    loader = AsynchronousLoader(Closing(9), device, buffer_size=2)
    seen = numbers(loader)
    assert seen == list(range(len(seen)))
    assert len(seen) < 9
    wait_until(lambda: not loader_threads(), "the thread has ended")


def test_close_frees_the_batches_that_wait(device: str) -> None:
    class Batch:
        pass

    references: list[weakref.ref[Batch]] = []

    class Source(Counting):
        def make(self, number: int) -> Any:
            batch = Batch()
            references.append(weakref.ref(batch))
            return batch

    loader = AsynchronousLoader(Source(None), device, buffer_size=9)
    iterator = iter(loader)
    next(iterator)
    wait_until(lambda: len(references) == 11, "the buffer is full")
    loader.close()
    assert [reference() for reference in references] == [None] * len(references)


def test_two_threads_may_close_at_once(device: str) -> None:
    loader = AsynchronousLoader(plain(50), device, buffer_size=1)
    for _ in range(20):
        iterator = iter(loader)
        assert next(iterator)[1] == 0
        for closer in [Worker(loader.close), Worker(iterator.close)]:
            closer.result()
    assert threading.active_count() == 1 + len(loader_threads())
