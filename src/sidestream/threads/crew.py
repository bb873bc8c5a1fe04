"""The worker threads of one iterator: what they are given, what they give back, how they end.

    consumer                                   worker 0, 1, ...
    --------                                   ----------------
    next index of the sampler -> tasks[k] -->  take, make the batch
    wait for the batch wanted  <-- results --  put it under its number, wake the consumer

The threads know the crew and not the iterator that the consumer holds. So a forgotten iterator is
collected, and its collection ends the threads.
"""

from __future__ import annotations

import _thread
import atexit
import functools
import itertools
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from sidestream.context import ThreadState
from sidestream.threads.worker import Outcome, Stopped, Work

FORGET_TIMEOUT_S = 0.5
"""How long the end of an iterator waits for samples under way [s], as the loader's own. A thread
that is not back by then ends by itself when it is."""

EXIT_TIMEOUT_S = 2.0
"""How long interpreter exit waits, for all threads together [s]."""

_numbers = itertools.count()
_alive: weakref.WeakSet[Crew] = weakref.WeakSet()


BEGIN = (0, -1)
"""The number of the first task of each worker: nothing to make yet."""


class Crew:
    """The threads of one iterator.

    A thread that waits for a task holds the crew and nothing of the user's: an error that the
    dataset keeps knows, by its traceback, the iterator that raised it, and a thread that kept the
    dataset would keep itself alive.

    Threads:
        The consumer's for all methods; `close` any.
    """

    def __init__(self, size: int) -> None:
        self.results: dict[tuple[int, int], Outcome] = {}
        """By pass and number of the batch."""
        self.current = 0
        """Which pass is under way: an older one's tasks are left undone."""
        self.closed = False
        self.gone: set[int] = set()
        """Workers whose thread has ended."""
        self.tasks: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(size)]
        """For each worker: the pass and the number of a batch, the work, and the indices."""
        self._sleepers: deque[_thread.LockType] = deque()
        state = ThreadState()
        name = f"sidestream-workers-{next(_numbers)}"
        self._threads = [
            threading.Thread(
                name=f"{name}-{worker}",
                target=state.run,
                args=(_serve, self, worker),
                # Not waited for at exit before the handler below has told it to end.
                daemon=True,
            )
            for worker in range(size)
        ]
        _alive.add(self)
        _close_all_at_exit()
        for thread in self._threads:
            thread.start()

    def wait(self, is_over: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until something holds that a worker's result, or its end, brings about.

        Returns:
            False if it does not hold after this time.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_over():
            sleeper = _thread.allocate_lock()
            sleeper.acquire()
            self._sleepers.append(sleeper)
            if is_over():  # again: a worker may have looked for sleepers just before
                return True
            left = -1 if until is None else until - time.monotonic()
            if until is not None and left <= 0:
                return False
            sleeper.acquire(True, left)
        return True

    def wake(self) -> None:
        """Let the consumer look again."""
        while True:
            try:
                self._sleepers.popleft().release()
            except IndexError:
                return

    def close(self, timeout_s: float = FORGET_TIMEOUT_S) -> None:
        """End the threads, and wait for them for so long. Their batches are dropped."""
        self.closed = True
        for tasks in self.tasks:
            tasks.put(None)
        self.wake()
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            # A finalizer may run in a worker itself, and an exception from outside may have come
            # before all were started.
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        self.results.clear()


def _serve(crew: Crew, worker: int) -> None:
    """The body of a worker's thread."""
    try:
        while not crew.closed:
            task = crew.tasks[worker].get()
            if task is None:
                break
            _do(crew, worker, *task)
            del task
    finally:
        crew.gone.add(worker)
        crew.wake()
        if crew.closed:
            crew.results.clear()


def _do(crew: Crew, worker: int, number: tuple[int, int], work: Work, index: Any) -> None:
    """Make one batch, or begin. Nothing of it stays here."""
    which = number[0]

    def check() -> None:
        if crew.closed or crew.current != which:
            raise Stopped

    if number == BEGIN:
        work.begin(worker)
    elif which == crew.current:
        outcome = work.make(worker, number, index, check)
        if outcome is not None:
            crew.results[number] = outcome
            crew.wake()


@functools.cache
def _close_all_at_exit() -> None:
    atexit.register(_close_all)


def _close_all() -> None:
    """End all threads: one that is inside torch when the interpreter goes aborts the process."""
    crews = list(_alive)
    until = time.monotonic() + EXIT_TIMEOUT_S
    for crew in crews:
        crew.close(0.0)
    for crew in crews:
        crew.close(max(0.0, until - time.monotonic()))
