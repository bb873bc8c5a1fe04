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
import dataclasses
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
from sidestream.errors import annotate
from sidestream.threads.worker import Fetcher, Stopped, introduce

FORGET_TIMEOUT_S = 0.5
"""How long the end of an iterator waits for samples under way [s], as the loader's own. A thread
that is not back by then ends by itself when it is."""

EXIT_TIMEOUT_S = 2.0
"""How long interpreter exit waits, for all threads together [s]."""

_numbers = itertools.count()
_alive: weakref.WeakSet[Crew] = weakref.WeakSet()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a task."""

    batch: Any = None
    error: BaseException | None = None
    is_end: bool = False
    """Whether the worker's part of an iterable dataset is over."""


class Crew:
    """The threads of one iterator.

    Args:
        datasets: For each worker the dataset it reads, and its collate function.
        base_seed: What the workers' random numbers are seeded from.
        init: Called with its number in each worker before anything is read; or None.
        watch: Stands around the reading of each sample in worker 0; or None.

    Threads:
        The consumer's for all methods; `close` any.
    """

    def __init__(
        self,
        datasets: list[Any],
        base_seed: int,
        init: Callable[[int], None] | None,
        watch: Callable[[Callable[[], Any]], Any] | None,
    ) -> None:
        self.results: dict[tuple[int, int], Outcome] = {}
        """By pass and number of the batch."""
        self.current = 0
        """Which pass is under way: an older one's tasks are left undone."""
        self.closed = False
        self.gone: set[int] = set()
        """Workers whose thread has ended."""
        self.tasks: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in datasets]
        self._sleepers: deque[_thread.LockType] = deque()
        self._base_seed, self._init, self._watch = base_seed, init, watch
        self._state = ThreadState()
        name = f"sidestream-workers-{next(_numbers)}"
        self._threads = [
            threading.Thread(
                name=f"{name}-{worker}",
                target=self._state.run,
                args=(_work, self, worker, dataset),
                # Not waited for at exit before the handler below has told it to end.
                daemon=True,
            )
            for worker, dataset in enumerate(datasets)
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


def _work(crew: Crew, worker: int, dataset: Any) -> None:
    """The body of a worker's thread."""
    try:
        introduce(worker, len(crew.tasks), crew._base_seed, dataset)
        failure = _begin(crew, worker)
        has_begun = failure is None
        begun, fetcher, is_over = -1, None, False
        while not crew.closed:
            task = crew.tasks[worker].get()
            if task is None:
                break
            number, job, index = task
            if number[0] != begun:
                begun, fetcher, is_over = number[0], None, False
            if number[0] == crew.current and not is_over:
                if not has_begun:
                    outcome, failure = failure or Outcome(error=_unfit(worker)), None
                else:
                    fetcher, outcome = _do(crew, worker, dataset, fetcher, task)
                is_over = outcome.is_end
                crew.results[number] = outcome
                del outcome
                crew.wake()
            del task, job, index
    finally:
        crew.gone.add(worker)
        crew.wake()
        if crew.closed:
            crew.results.clear()


def _begin(crew: Crew, worker: int) -> Outcome | None:
    """Call the user's function. An error comes in the place of the first batch."""
    try:
        if crew._init is not None:
            crew._init(worker)
        return None
    except BaseException as error:  # noqa: BLE001 - the consumer gets it
        return Outcome(error=_prepared(error, worker, "in worker_init_fn"))


# Nothing here may keep an error: when it has been raised, its traceback knows the iterator.


def _unfit(worker: int) -> RuntimeError:
    return RuntimeError(f"worker thread {worker} makes no batch: its worker_init_fn has failed")


def _end_of_user_code(error: StopIteration) -> RuntimeError:
    raised = RuntimeError("StopIteration was raised by the dataset or the collate function")
    raised.__cause__ = error
    return raised


def _do(
    crew: Crew, worker: int, dataset: Any, fetcher: Fetcher | None, task: Any
) -> tuple[Fetcher | None, Outcome]:
    """Make one batch."""
    number, job, index = task

    def check() -> None:
        if crew.closed or crew.current != number[0]:
            raise Stopped

    try:
        if fetcher is None:
            fetcher = Fetcher(job, dataset, check, crew._watch if worker == 0 else None)
        return fetcher, Outcome(fetcher.fetch(index))
    except StopIteration as error:
        if job.is_iterable:
            return fetcher, Outcome(is_end=True)
        what = f"making batch {number[1]}"
        return fetcher, Outcome(error=_prepared(_end_of_user_code(error), worker, what))
    except Stopped:
        return fetcher, Outcome(is_end=True)
    except BaseException as error:  # noqa: BLE001 - the consumer gets it
        return fetcher, Outcome(error=_prepared(error, worker, f"making batch {number[1]}"))


def _prepared(error: BaseException, worker: int, what: str) -> BaseException:
    """Say where an error comes from. Its traceback begins in the user's code, or next to it."""
    annotate(error, f"raised in worker thread {worker}, {what}")
    trace = error.__traceback__
    return error.with_traceback(trace.tb_next if trace is not None else None)


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
