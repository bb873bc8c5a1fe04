"""A bounded channel from one producer to its consumers. Knows no torch.

It differs from `queue.Queue` in three ways that a loader needs. It ends for certain: with the
producer's error or without one, and from the consumer's side by `close`. Room for an item is
taken *before* the item is made, because an item is device memory. And a consumer gives the room
back in a step of its own, after it has put away what it held before.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class ChannelEnd(Exception):  # noqa: N818 - an end, not an error
    """The channel has ended; `error` is what ended it, or None.

    It is not a `StopIteration`, which would silently end any generator it passes through.
    """

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.error = error


class Channel(Generic[ItemT]):
    """Bounded, ordered, closable; every wait ends when the channel does.

    Invariant, under the lock: `made + waiting + held <= capacity`, where `made` is 1 while the
    producer works on an item, `waiting` counts the items in the channel, and `held` the consumer
    threads between `take` and `release`.

    A signal handler may throw an exception into a consumer at any point, Ctrl-C for one. So nobody
    waits inside the lock, as `threading.Condition` does, which can lose track of it then: who must
    wait leaves a lock of its own, waits for that outside, and looks again. And a consumer that
    begins to wait wakes the producer first, in case its own wake-up call was cut off.

    Threads:
        `reserve`, `put` and `finish` belong to the producer's thread. All else may be called
        from any thread.
    """

    def __init__(self, capacity: int) -> None:
        assert capacity > 0
        # Re-entrant: a signal handler or a finalizer may close a channel from anywhere, also while
        # its own thread is inside one of these methods.
        self._lock = threading.RLock()
        self._capacity = capacity
        self._making = False
        self._items: deque[ItemT] = deque()
        self._producers: deque[_thread.LockType] = deque()  # who waits for room
        self._consumers: deque[_thread.LockType] = deque()  # who waits for an item
        # By thread, not a count: an exception can keep a consumer from calling `release`. Its own
        # next `take` then heals the account.
        self._holders: set[int] = set()
        self._error: BaseException | None = None
        self._finished = False
        self._closed = False

    # ---- the producer's side

    def reserve(self) -> bool:
        """Wait for room for one item.

        Returns:
            False if the channel was closed: nobody wants another item.
        """
        while True:
            with self._lock:
                if self._closed or not self._full():
                    self._making = not self._closed
                    return self._making
                sleeper = _fall_asleep(self._producers)
            _sleep(sleeper)

    def put(self, item: ItemT) -> None:
        """Hand an item to the consumer; `reserve` came before."""
        with self._lock:
            assert self._making or self._closed
            self._making = False
            self._items.append(item)
            _wake(self._consumers)

    def finish(self, error: BaseException | None = None) -> None:
        """Say that no item will follow. The consumer learns it after the items before it."""
        with self._lock:
            self._making = False
            self._error = error
            self._finished = True
            _wake(self._consumers)

    # ---- the consumer's side

    def take(self) -> ItemT:
        """Wait for the next item. Its room stays taken until `release`.

        Raises:
            ChannelEnd: After the last item, with the producer's error, every time; without it
                after `close`.
        """
        me = threading.get_ident()
        while True:
            with self._lock:
                if me in self._holders:
                    self._holders.discard(me)
                    _wake(self._producers)
                if self._closed:
                    raise ChannelEnd
                if self._items:
                    self._holders.add(me)
                    return self._items.popleft()
                if self._finished:
                    raise ChannelEnd(self._error)
                _wake(self._producers)
                sleeper = _fall_asleep(self._consumers)
            _sleep(sleeper)

    def release(self) -> None:
        """Give the room of the item taken last by this thread back to the producer."""
        with self._lock:
            self._holders.discard(threading.get_ident())
            _wake(self._producers)

    def close(self) -> None:
        """Want nothing more: wake everybody who waits here, for good."""
        with self._lock:
            self._closed = True
            _wake(self._producers)
            _wake(self._consumers)

    def drain(self) -> tuple[list[ItemT], BaseException | None]:
        """Take out what no consumer took: the items and the error behind them."""
        with self._lock:
            items, error = list(self._items), self._error
            self._items.clear()
            self._error = None
            return items, error

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._items)

    def _full(self) -> bool:
        return self._making + len(self._items) + len(self._holders) >= self._capacity


def _fall_asleep(side: deque[_thread.LockType]) -> _thread.LockType:
    """A lock that is free again when something has changed."""
    sleeper = _thread.allocate_lock()
    sleeper.acquire()
    side.append(sleeper)
    return sleeper


def _sleep(sleeper: _thread.LockType) -> None:
    sleeper.acquire()


def _wake(side: deque[_thread.LockType]) -> None:
    while side:
        side.popleft().release()
