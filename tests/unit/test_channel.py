"""The channel: a bounded queue that ends for certain, alone and against a plain list."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import sidestream.channel
from sidestream.channel import Channel, ChannelEnd
from support.waiting import Worker, wait_until_blocked


def filled(capacity: int, *items: int) -> Channel[int]:
    channel: Channel[int] = Channel(capacity)
    for item in items:
        assert channel.reserve()
        channel.put(item)
    return channel


def end_of(channel: Channel[int]) -> BaseException | None:
    with pytest.raises(ChannelEnd) as caught:
        channel.take()
    return caught.value.error


# ---- one thread


def test_items_come_out_in_order_then_the_end() -> None:
    channel = filled(3, 1, 2, 3)
    channel.finish()
    taken = []
    for _ in range(3):
        taken.append(channel.take())
        channel.release()
    assert taken == [1, 2, 3]
    assert [end_of(channel), end_of(channel)] == [None, None]


def test_the_error_comes_after_the_items() -> None:
    error = KeyboardInterrupt()
    channel = filled(2, 1)
    channel.finish(error)
    assert channel.take() == 1
    assert [end_of(channel), end_of(channel)] == [error, error]


def test_after_close_nothing_is_given_and_nothing_wanted() -> None:
    channel = filled(2, 1)
    channel.finish(ValueError("unseen"))
    channel.close()
    assert end_of(channel) is None
    assert not channel.reserve()
    assert not channel.reserve()


def test_drain_gives_what_nobody_took_once() -> None:
    error = ValueError("behind them")
    channel = filled(3, 1, 2)
    channel.finish(error)
    channel.close()
    assert channel.drain() == ([1, 2], error)
    assert channel.drain() == ([], None)


def test_an_item_put_after_close_can_be_drained() -> None:
    channel: Channel[int] = Channel(1)
    assert channel.reserve()
    channel.close()
    channel.put(7)
    assert channel.drain() == ([7], None)


def test_put_without_reserve_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        Channel(1).put(1)


def test_it_keeps_nothing_of_what_was_taken() -> None:
    class Item:
        pass

    channel: Channel[Any] = Channel(1)
    assert channel.reserve()
    item = Item()
    reference = weakref.ref(item)
    channel.put(item)
    del item
    channel.take()
    gc.collect()
    assert reference() is None


def test_the_end_keeps_nothing_of_the_error() -> None:
    class Error(Exception):
        pass

    error = Error("gone with its handler")
    reference = weakref.ref(error)
    channel: Channel[int] = Channel(1)
    channel.finish(error)
    del error
    assert end_of(channel) is reference()
    channel.close()
    assert channel.drain() == ([], reference())
    gc.collect()
    assert reference() is None


# ---- two threads, each brought to the wait in question


def test_a_producer_waits_while_the_channel_is_full() -> None:
    channel = filled(2, 1, 2)
    producer = Worker(channel.reserve)
    wait_until_blocked(producer)
    channel.take()
    wait_until_blocked(producer)  # taken is not yet released: the item is still in memory
    channel.release()
    assert producer.result() is True


def test_a_consumer_that_was_thrown_out_before_release_gives_the_room_back_later() -> None:
    """As an exception out of a signal handler does it, between `take` and `release`."""
    channel = filled(2, 1, 2)
    assert channel.take() == 1  # and no release
    producer = Worker(channel.reserve)
    wait_until_blocked(producer)
    assert channel.take() == 2
    assert producer.result() is True


def test_a_consumer_waits_for_an_item() -> None:
    channel: Channel[int] = Channel(1)
    consumer = Worker(channel.take)
    wait_until_blocked(consumer)
    assert channel.reserve()
    channel.put(5)
    assert consumer.result() == 5


def take_or_end(channel: Channel[int]) -> Any:
    try:
        return channel.take()
    except ChannelEnd as end:
        return end.error


def test_the_end_wakes_all_consumers_and_shows_each_the_error() -> None:
    """Which of them raises it is for the epoch to say: it must survive until it is raised."""
    error = ValueError("for one of them")
    channel: Channel[int] = Channel(1)
    consumers = [Worker(take_or_end, channel) for _ in range(3)]
    for consumer in consumers:
        wait_until_blocked(consumer)
    channel.finish(error)
    assert [consumer.result() for consumer in consumers] == [error, error, error]
    assert end_of(channel) is error


def test_close_wakes_everybody() -> None:
    empty, full = Channel[int](1), filled(1, 1)
    waiting = [Worker(take_or_end, empty), Worker(take_or_end, empty), Worker(full.reserve)]
    for worker in waiting:
        wait_until_blocked(worker)
    empty.close()
    full.close()
    assert [worker.result() for worker in waiting] == [None, None, False]


def test_close_from_inside_its_own_lock_does_not_hang() -> None:
    """As a finalizer or a signal handler may do it in the middle of a call."""
    channel = filled(1, 1)

    def inside() -> None:
        with channel._lock:
            channel.close()

    Worker(inside).result()
    assert end_of(channel) is None


# ---- interleavings: what the other thread does is done inside the wait


@contextlib.contextmanager
def instead_of_waiting(*steps: Callable[[], Any]) -> Iterator[list[int]]:
    """Run one step in place of each wait: the other thread, at the worst moment. Counts them."""
    done: list[int] = []

    def sleep(sleeper: Any) -> None:
        assert steps[len(done) :], "it waits once more than the other thread has steps"
        step = steps[len(done)]
        done.append(1)
        step()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sidestream.channel, "_sleep", sleep)
        yield done


def nothing() -> None:
    """A wake-up without a reason."""


def test_a_consumer_woken_without_a_reason_waits_again() -> None:
    channel: Channel[int] = Channel(1)

    def produce() -> None:
        assert channel.reserve()
        channel.put(1)

    with instead_of_waiting(nothing, nothing, produce) as waits:
        assert channel.take() == 1
    assert len(waits) == 3


def test_a_producer_woken_without_a_reason_waits_again() -> None:
    channel = filled(1, 1)

    def consume() -> None:
        assert channel.take() == 1

    with instead_of_waiting(nothing, consume, channel.release) as waits:
        assert channel.reserve()
    assert len(waits) == 3


def test_an_item_that_another_consumer_took_meanwhile_is_waited_for_again() -> None:
    channel: Channel[int] = Channel(1)

    def produce_and_lose() -> None:
        assert channel.reserve()
        channel.put(1)
        assert channel._items.popleft() == 1  # the other consumer was quicker

    with instead_of_waiting(produce_and_lose, channel.finish) as waits:
        assert end_of(channel) is None
    assert len(waits) == 2


@pytest.mark.parametrize("other", ["close", "finish"])
def test_the_end_comes_while_a_consumer_is_about_to_wait(other: str) -> None:
    channel: Channel[int] = Channel(1)
    with instead_of_waiting(getattr(channel, other)) as waits:
        assert end_of(channel) is None
    assert len(waits) == 1


def test_close_comes_while_a_producer_is_about_to_wait() -> None:
    channel = filled(1, 1)
    with instead_of_waiting(channel.close) as waits:
        assert not channel.reserve()
    assert len(waits) == 1


# ---- against a model


class AgainstAList(RuleBasedStateMachine):
    """Every order of calls that a producer and a consumer can make, in one thread."""

    @initialize(capacity=st.integers(1, 4))
    def begin(self, capacity: int) -> None:
        self.capacity = capacity
        self.channel: Channel[int] = Channel(capacity)
        self.items: list[int] = []
        self.count = 0
        self.making = self.held = self.finished = self.closed = False
        self.error: BaseException | None = None

    def would_block(self) -> bool:
        return self.making + len(self.items) + self.held >= self.capacity

    @precondition(lambda self: not self.making and not self.finished)
    @precondition(lambda self: self.closed or not self.would_block())
    @rule()
    def reserve(self) -> None:
        assert self.channel.reserve() is not self.closed
        self.making = not self.closed

    @precondition(lambda self: self.making)
    @rule()
    def put(self) -> None:
        self.channel.put(self.count)
        self.items.append(self.count)
        self.count += 1
        self.making = False

    @precondition(lambda self: not self.finished)
    @rule(fails=st.booleans())
    def finish(self, fails: bool) -> None:
        self.error = ValueError("the source's") if fails else None
        self.channel.finish(self.error)
        self.finished, self.making = True, False

    @precondition(lambda self: self.items or self.finished or self.closed)
    @rule()
    def take(self) -> None:
        self.held = False
        if self.items and not self.closed:
            assert self.channel.take() == self.items.pop(0)
            self.held = True
            return
        error = end_of(self.channel)
        if self.closed:
            assert error is None
        else:
            assert error is self.error

    @rule()
    def release(self) -> None:
        self.channel.release()
        self.held = False

    @rule()
    def close(self) -> None:
        self.channel.close()
        self.closed = True

    @precondition(lambda self: self.closed)
    @rule()
    def drain(self) -> None:
        assert self.channel.drain() == (self.items, self.error)
        self.items, self.error = [], None

    @invariant()
    def it_holds_what_the_list_holds_and_no_more_than_its_bound(self) -> None:
        assert len(self.channel) == len(self.items)
        assert self.making + len(self.channel) + self.held <= self.capacity
        assert self.channel._full() is self.would_block()


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
