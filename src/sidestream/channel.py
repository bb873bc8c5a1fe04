"""A bounded channel from one producer to its consumers. Knows no torch.

It differs from `queue.Queue` in three ways that a loader needs. It ends for certain: with the
producer's error or without one, and from the consumer's side by `close`. Room for an item is
taken *before* the item is made, because an item is device memory. And a consumer gives the room
back in a step of its own, after it has put away what it held before.
"""

from __future__ import annotations

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

    Threads:
        `reserve`, `put` and `finish` belong to the producer's thread. All else may be called
        from any thread.
    """

    def __init__(self, capacity: int) -> None:
        assert capacity > 0
        # Re-entrant: a signal handler or a finalizer may close a channel from anywhere, also while
        # its own thread is inside one of these methods.
        lock = threading.RLock()
        self._room = threading.Condition(lock)
        self._filled = threading.Condition(lock)
        self._lock = lock
        self._capacity = capacity
        self._making = False
        self._items: deque[ItemT] = deque()
        # By thread, not a count: an exception thrown into a consumer by a signal handler can keep
        # it from calling `release`. Its own next `take` then heals the account.
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
        with self._lock:
            while not self._closed and self._full():
                self._room.wait()
            self._making = not self._closed
            return self._making

    def put(self, item: ItemT) -> None:
        """Hand an item to the consumer; `reserve` came before."""
        with self._lock:
            assert self._making or self._closed
            self._making = False
            self._items.append(item)
            self._filled.notify()

    def finish(self, error: BaseException | None = None) -> None:
        """Say that no item will follow. The consumer learns it after the items before it."""
        with self._lock:
            self._making = False
            self._error = error
            self._finished = True
            self._filled.notify_all()

    # ---- the consumer's side

    def take(self) -> ItemT:
        """Wait for the next item. Its room stays taken until `release`.

        Raises:
            ChannelEnd: After the last item. It carries the producer's error to the first caller
                that gets here, and to nobody after that.
        """
        with self._lock:
            me = threading.get_ident()
            if me in self._holders:
                self._holders.remove(me)
                self._room.notify()
            while not (self._items or self._finished or self._closed):
                self._filled.wait()
            if self._closed:
                raise ChannelEnd
            if not self._items:
                error, self._error = self._error, None
                raise ChannelEnd(error)
            self._holders.add(me)
            return self._items.popleft()

    def release(self) -> None:
        """Give the room of the item taken last by this thread back to the producer."""
        with self._lock:
            self._holders.discard(threading.get_ident())
            self._room.notify()

    def close(self) -> None:
        """Want nothing more: wake everybody who waits here, for good."""
        with self._lock:
            self._closed = True
            self._room.notify_all()
            self._filled.notify_all()

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
