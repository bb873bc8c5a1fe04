"""What a worker thread knows of itself, and how it makes a batch out of an index.

`torch.utils.data.get_worker_info` knows one worker for each process. From the first pass with
threads on it looks at the calling thread first; every other thread, and every worker process, gets
from it what it always got.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import data
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils import worker as torch_worker

from sidestream.errors import annotate
from sidestream.threads.collate import Collation
from sidestream.threads.memory import BatchMemory, Blocks

_here = threading.local()


class Stopped(Exception):  # noqa: N818 - an end, not an error
    """Nobody wants the batch any more."""


@dataclasses.dataclass(frozen=True)
class Job:
    """What the workers of one pass do."""

    is_iterable: bool
    is_batched: bool
    drop_last: bool
    collate_fn: Callable[[Any], Any]
    is_direct: bool
    """Whether batches are collated into given memory."""
    blocks: Blocks | None
    """That memory; None for page-locked memory."""
    pin: Callable[[Any], Any] | None
    """What page-locks a batch that something else has made; None where that is not wanted."""


class Fetcher:
    """Makes the batches of one worker in one pass, as DataLoader's fetchers do.

    Args:
        job: What to do.
        dataset: Read here and nowhere else, unless it is shared.
        watch: Stands around the reading of a sample.
    """

    def __init__(
        self,
        job: Job,
        dataset: Any,
        watch: Callable[[Callable[[], Any]], Any] | None = None,
    ) -> None:
        self._job, self._dataset = job, dataset
        self.check: Callable[[], None]
        """Called between samples; raises `Stopped`."""
        self._watch = watch
        self._iterator: Iterator[Any] | None = iter(dataset) if job.is_iterable else None
        self._ended = False

    def fetch(self, index: Any) -> Any:
        """The batch at an index, or at the indices of a batch.

        Raises:
            StopIteration: At the end of an iterable dataset.
        """
        job = self._job
        if not job.is_batched:
            return self._pinned(job.collate_fn(self._read(index)))
        if not job.is_direct:
            return self._pinned(job.collate_fn(self._all(index)))
        collation = Collation(_length(index), BatchMemory(job.blocks))
        indices = None
        if self._iterator is not None:
            self._fill(index, collation.add)
        elif getattr(self._dataset, "__getitems__", None):
            indices = index
            collation.add_all(self._at_once(index))
        else:
            indices = []
            for one in index:
                indices.append(one)
                self.check()
                collation.add(self._read(one))
        return collation.finish(indices)

    def _all(self, index: Any) -> list[Any]:
        samples: list[Any] = []
        if self._iterator is not None:
            self._fill(index, samples.append)
        elif getattr(self._dataset, "__getitems__", None):
            return self._at_once(index)  # type: ignore[no-any-return]
        else:
            for one in index:
                self.check()
                samples.append(self._read(one))
        return samples

    def _fill(self, index: Any, add: Callable[[Any], None]) -> None:
        """Read as many samples as a batch has from an iterable dataset."""
        count = wanted = 0
        if self._ended:
            raise StopIteration
        for _ in index:
            wanted += 1
            if not self._ended:
                self.check()
                try:
                    sample = self._read(None)
                except StopIteration:
                    self._ended = True
                else:
                    add(sample)
                    count += 1
        if count == 0 or (self._job.drop_last and count < wanted):
            raise StopIteration

    def _read(self, index: Any) -> Any:
        iterator, dataset, watch = self._iterator, self._dataset, self._watch
        if watch is not None:
            return watch(lambda: dataset[index] if iterator is None else next(iterator))
        return dataset[index] if iterator is None else next(iterator)

    def _at_once(self, index: Any) -> Any:
        if self._watch is not None:
            return self._watch(lambda: self._dataset.__getitems__(index))
        return self._dataset.__getitems__(index)

    def _pinned(self, batch: Any) -> Any:
        return batch if self._job.pin is None else self._job.pin(batch)


def _length(index: Any) -> int:
    try:
        return len(index)
    except TypeError:  # a batch sampler that gives an iterator: nothing is written ahead
        return 0


# ---- all that the workers of one iterator do


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a task."""

    batch: Any = None
    error: BaseException | None = None
    is_end: bool = False
    """Whether the worker's part of an iterable dataset is over."""


class Work:
    """What the workers have of the user's; held by the iterator and by tasks alone.

    Args:
        datasets: For each worker the one it reads.
        base_seed: What the workers' random numbers are seeded from.
        init: Called with its number in each worker before anything is read; or None.
        watch: Stands around the reading of each sample in worker 0; or None.

    Threads:
        Each worker's touches its own entries only.
    """

    def __init__(
        self,
        datasets: list[Any],
        base_seed: int,
        init: Callable[[int], None] | None,
        watch: Callable[[Callable[[], Any]], Any] | None,
    ) -> None:
        size = len(datasets)
        self.job: Job
        self._datasets, self._base_seed, self._init, self._watch = datasets, base_seed, init, watch
        self._infos: list[Any] = [None] * size
        self._fetchers: list[tuple[int, Fetcher | None]] = [(0, None)] * size
        self._failures: list[Outcome | None] = [None] * size
        self._ended = [0] * size  # the last pass in which the worker came to its end

    def begin(self, worker: int) -> None:
        """Call the user's function. An error comes in the place of the worker's first batch."""
        try:
            _install()
            dataset = self._datasets[worker]
            self._infos[worker] = _info(worker, len(self._datasets), self._base_seed, dataset)
            if self._init is not None:
                with _being(self._infos[worker]):
                    self._init(worker)
        except BaseException as error:  # noqa: BLE001 - the consumer gets it
            _say_where(error, worker, "in worker_init_fn")
            self._failures[worker] = Outcome(error=error)

    def make(
        self, worker: int, number: tuple[int, int], index: Any, check: Callable[[], None]
    ) -> Outcome | None:
        """Make a batch; None if nobody waits for it any more."""
        if self._ended[worker] == number[0]:
            return None
        failure, self._failures[worker] = self._failures[worker], _UNFIT
        if failure is not None:
            text = f"worker thread {worker} makes no batch: its worker_init_fn has failed"
            return failure if failure is not _UNFIT else Outcome(error=RuntimeError(text))
        self._failures[worker] = None
        try:
            with _being(self._infos[worker]):
                return Outcome(self._fetcher(worker, number[0], check).fetch(index))
        except Stopped:
            return None
        except StopIteration as error:
            if self.job.is_iterable:
                self._ended[worker] = number[0]
                return Outcome(is_end=True)
            return Outcome(error=_as_error(error, worker, number[1]))
        except BaseException as error:  # noqa: BLE001 - the consumer gets it
            _say_where(error, worker, f"making batch {number[1]}")
            return Outcome(error=error)

    def _fetcher(self, worker: int, which: int, check: Callable[[], None]) -> Fetcher:
        """The worker's fetcher of a pass."""
        begun, fetcher = self._fetchers[worker]
        if begun != which or fetcher is None:
            self._fetchers[worker] = (which, None)  # the last one's iterator ends first
            watch = self._watch if worker == 0 else None
            fetcher = Fetcher(self.job, self._datasets[worker], watch)
            self._fetchers[worker] = (which, fetcher)
        fetcher.check = check
        return fetcher


_UNFIT = Outcome()


def _say_where(error: BaseException, worker: int, what: str) -> None:
    """Note it, and let the traceback begin after this module's first frame."""
    annotate(error, f"raised in worker thread {worker}, {what}")
    trace = error.__traceback__
    error.__traceback__ = trace.tb_next if trace is not None else None


def _as_error(error: StopIteration, worker: int, number: int) -> RuntimeError:
    raised = RuntimeError("StopIteration was raised by the dataset or the collate function")
    raised.__cause__ = error
    _say_where(raised, worker, f"making batch {number}")
    return raised


# ---- who am I


@dataclasses.dataclass(frozen=True)
class _Generators:
    """The random numbers of one worker; torch has a class with these fields from 2.13 on."""

    random_generator: random.Random
    torch_generator: torch.Generator
    numpy_generator: Any

    def states(self) -> list[Any]:
        """What they give next."""
        numbers = self.numpy_generator
        state = None if numbers is None else str(numbers.bit_generator.state)
        return [self.torch_generator.get_state(), self.random_generator.getstate(), state]


def _info(worker: int, num_workers: int, base_seed: int, dataset: Any) -> Any:
    """What `get_worker_info` says in a worker.

    Beside what DataLoader says of a worker process, `rng` has the worker's own random numbers,
    seeded as the global generators of that process would be.
    """
    seed = base_seed + worker
    numpy = sys.modules.get("numpy")
    state = torch_worker._generate_state(base_seed, worker)  # type: ignore[no-untyped-call]
    generators = _Generators(
        random_generator=random.Random(seed),
        torch_generator=torch.Generator().manual_seed(seed),
        numpy_generator=None if numpy is None else numpy.random.default_rng(state),
    )
    more = {}
    if "worker_method" in getattr(torch_worker.WorkerInfo, "__dataclass_fields__", {}):
        more["worker_method"] = "thread"
    make: Any = torch_worker.WorkerInfo
    return make(
        id=worker, num_workers=num_workers, seed=seed, dataset=dataset, rng=generators, **more
    )


@contextlib.contextmanager
def _being(info: Any) -> Iterator[None]:
    """Be a worker in this thread."""
    _here.info = info
    try:
        yield
    finally:
        _here.info = None


def _get_worker_info() -> Any:  # its code, in the place of torch's own
    from sidestream.threads.worker import worker_info

    return worker_info()


def worker_info() -> Any:
    """What `get_worker_info` gives to whoever called it.

    The default collation asks whether to make a batch in shared memory, as a worker process must.
    A thread need not.
    """
    info = getattr(_here, "info", None)
    if info is None:
        return _info_of_process()
    caller = sys._getframe(2).f_code
    return None if caller is torch_collate.collate_tensor_fn.__code__ else info


def _info_of_process() -> Any:
    return torch_worker._worker_info


@functools.cache
def _install() -> None:
    """Put our code into torch's function: whoever has imported it by name calls it, too."""
    function: types.FunctionType = data.get_worker_info  # type: ignore[assignment]
    function.__code__ = _get_worker_info.__code__
