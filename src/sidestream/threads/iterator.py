"""One iterator of a ThreadDataLoader: which worker makes which batch, and the order they come in.

The order of everything a user can see is that of DataLoader's own iterator with worker processes:
what the samplers are asked and when, which worker gets which batch, what a pass draws.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter

from sidestream import device as seam
from sidestream.source import copies_from_pinned
from sidestream.threads.collate import is_default
from sidestream.threads.crew import BEGIN, Crew
from sidestream.threads.worker import Job, Outcome, Work

if TYPE_CHECKING:
    from sidestream.threads.loader import ThreadDataLoader


class ThreadIterator(_BaseDataLoaderIter):
    """Hands out the batches of one pass, and ends its threads when forgotten.

    With persistent workers it serves all passes of its loader, one after the other.
    """

    _crew: Crew | None = None

    def __init__(self, loader: ThreadDataLoader[Any]) -> None:
        super().__init__(loader)
        self._process = os.getpid()
        self._prefetch = loader.prefetch_factor or 0
        self._in_order = loader.in_order
        self._draws = loader._draws
        watch = None if self._draws.is_over else self._draws.watch
        init: Callable[[int], None] | None = loader.worker_init_fn
        self._work = Work(_for_each_worker(loader), int(self._base_seed), init, watch)
        self._crew = Crew(loader.num_workers)
        for tasks in self._crew.tasks:
            tasks.put((BEGIN, self._work, None))
        self._reset(loader, first_iter=True)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin a pass."""
        super()._reset(loader, first_iter)
        assert self._crew is not None
        self._crew.current += 1
        self._crew.results.clear()
        self._work.job = _job(loader)
        self._sent = self._received = 0
        self._workers: dict[int, int] = {}  # the worker of each batch that was asked for
        self._is_active = [True] * self._num_workers
        self._num_tasks = [0] * self._num_workers
        self._turns = itertools.cycle(range(self._num_workers))
        for _ in range(self._prefetch * self._num_workers):
            self._send_next()

    def _send_next(self) -> None:
        """Give the next batch's indices to the worker whose turn it is."""
        assert self._crew is not None
        try:
            index = self._next_index()  # type: ignore[no-untyped-call]
        except StopIteration:
            return
        most = self._prefetch * self._num_workers
        for _ in range(self._num_workers):
            worker = next(self._turns)
            if self._is_active[worker] and (
                self._in_order or self._num_tasks[worker] < most // sum(self._is_active)
            ):
                break
        else:
            return
        self._workers[self._sent] = worker
        self._num_tasks[worker] += 1
        self._crew.tasks[worker].put(((self._crew.current, self._sent), self._work, index))
        self._sent += 1

    def __next__(self) -> Any:
        """The next batch.

        Raises:
            StopIteration: At the end.
            RuntimeError: If it takes too long, in another process, or if a thread is gone.
            BaseException: What the dataset or the collate function raised, as itself.
        """
        outcome: Outcome = super().__next__()
        error = outcome.error
        if error is None:
            return outcome.batch
        self._num_yielded -= 1
        del self, outcome  # an error knows its frames: it must not keep the threads
        try:
            raise error
        finally:
            del error  # a frame that holds its own traceback is a cycle

    def _next_data(self) -> Any:
        """What became of the next batch."""
        if self._process != os.getpid():
            raise RuntimeError(
                f"this iterator belongs to process {self._process}, where its threads are; call "
                f"iter() on the loader again in process {os.getpid()}"
            )
        crew = self._crew
        if crew is None:
            raise StopIteration
        while True:
            number = self._next_number(crew)
            if number is None:
                if not self._persistent_workers:
                    self._end()
                raise StopIteration
            outcome = crew.results.pop((crew.current, number))
            worker = self._workers.pop(number)
            if outcome.is_end:
                self._is_active[worker] = False
                self._send_next()
                continue
            self._num_tasks[worker] -= 1
            self._send_next()
            if self._draws.found:
                warnings.warn(self._draws.message(), RuntimeWarning, stacklevel=4)
            return outcome

    def _next_number(self, crew: Crew) -> int | None:
        """Wait for the batch that comes next, and tell its number; None at the end."""
        if not self._in_order:
            return self._any_number(crew)
        while self._received < self._sent:
            number = self._received
            worker = self._workers.get(number)
            if worker is not None:
                # What was asked of a worker before it came to its end is not made any more.
                if (crew.current, number) in crew.results or self._is_active[worker]:
                    self._wait(crew, [number])
                    self._received += 1
                    return number
                del self._workers[number]
            self._received += 1
        return None

    def _any_number(self, crew: Crew) -> int | None:
        for number, worker in list(self._workers.items()):
            if not self._is_active[worker] and (crew.current, number) not in crew.results:
                del self._workers[number]
        return self._wait(crew, list(self._workers)) if self._workers else None

    def _wait(self, crew: Crew, numbers: list[int]) -> int:
        """Wait for one of these batches."""

        def ready() -> list[int]:
            return [number for number in numbers if (crew.current, number) in crew.results]

        gone = functools.partial(self._gone, crew, numbers)
        in_time = crew.wait(lambda: bool(ready() or gone()), self._timeout or None)
        if done := ready():
            return done[0]
        if not in_time:
            raise RuntimeError(
                f"ThreadDataLoader timed out after {self._timeout} seconds, waiting for batch "
                f"{numbers[0]} of worker thread {self._workers[numbers[0]]}"
            )
        if crew.closed:
            raise StopIteration
        raise RuntimeError(f"worker thread {gone()} has ended without batch {numbers[0]}")

    def _gone(self, crew: Crew, numbers: list[int]) -> set[int]:
        return crew.gone & {self._workers[number] for number in numbers}

    def _end(self) -> None:
        crew, self._crew = self._crew, None
        if crew is not None and self._process == os.getpid():
            crew.close()

    def __del__(self) -> None:
        with contextlib.suppress(BaseException):  # nobody could catch anything here
            self._end()


def _for_each_worker(loader: ThreadDataLoader[Any]) -> list[Any]:
    """The dataset that each worker reads.

    Attributes of an iterable dataset may tell the workers' parts apart: they are set in
    `worker_init_fn`, by way of `get_worker_info().dataset`. So each has one to itself.
    """
    dataset = loader.dataset
    numbers = range(loader.num_workers)
    if loader.copy_dataset:
        return [copy.deepcopy(dataset) for _ in numbers]
    if isinstance(dataset, IterableDataset):
        return [copy.copy(dataset) for _ in numbers]
    return [dataset for _ in numbers]


def _job(loader: ThreadDataLoader[Any]) -> Job:
    is_direct = loader._auto_collation and is_default(loader.collate_fn)
    pins = loader.pin_memory and torch.accelerator.is_available()
    return Job(
        is_iterable=isinstance(loader.dataset, IterableDataset),
        is_batched=loader._auto_collation,
        drop_last=loader.drop_last,
        collate_fn=loader.collate_fn,
        is_direct=is_direct,
        blocks=None if pins or copies_from_pinned() else loader._memory,
        pin=functools.partial(pin_memory, device=seam.accelerator_type()) if pins else None,
    )
