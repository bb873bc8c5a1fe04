"""The rest of a DataLoader's pass: its sampler leaves out what was delivered.

Nothing of what is left out is read. That is right only where what makes batches out of their
indices draws no random numbers, so the first batch that is read is watched for that, in whatever
process it is made.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from sidestream.randomness import kinds_drawn, random_state, read_past, set_random_state


class Watch:
    """Sees what random numbers a resumed pass draws after its beginning."""

    def __init__(self, data: Any) -> None:
        self.drawn: set[str] = set()
        """The kinds that the source draws from as it goes on, in this process."""
        self.flag: torch.Tensor | None = None
        self._dataset = getattr(data, "dataset", None)
        self._init = getattr(data, "worker_init_fn", None)
        self._collate: Any = getattr(data, "collate_fn", None)
        self._before: dict[int, dict[str, Any]] = {}  # by thread: workers may be threads

    def put_into(self, loader: Any) -> None:
        """Look on where a DataLoader makes its batches, in its worker processes too."""
        self.flag = torch.zeros(1).share_memory_()  # type: ignore[no-untyped-call]
        vars(loader).update(worker_init_fn=self._begin_worker, collate_fn=self._collated)

    @property
    def has_drawn(self) -> bool:
        """Whether what made the first batches out of their indices has drawn any."""
        return self.flag is not None and bool(self.flag)

    def begin(self) -> None:
        """What is drawn from here to the end of a batch is seen."""
        self._before[threading.get_ident()] = self._state()

    def _begin_worker(self, number: int) -> None:
        if self._init is not None:
            self._init(number)
        self.begin()

    def _collated(self, samples: Any) -> Any:
        batch = self._collate(samples)
        before = self._before.pop(threading.get_ident(), None)
        if self.flag is not None and before and kinds_drawn(before, self._state()):
            self.flag.fill_(1)
        return batch

    def _state(self) -> dict[str, Any]:
        """What the dataset may draw from here; a worker that is a thread has its own, too."""
        own = getattr(getattr(get_worker_info(), "rng", None), "states", list)
        return random_state(self._dataset) | {"worker": own()}


class _Rest:
    """Stands in for a sampler: its indices but the first, and in later passes all of them."""

    def __init__(self, loader: Any, sampler: Any, count: int, start: Any, watch: Watch) -> None:
        self._loader, self._sampler, self._watch = loader, sampler, watch
        self._count, self._start = count, start

    def __iter__(self) -> Iterator[Any]:
        if self._start is not None:
            set_random_state(self._start, self._loader)
        return self._after(iter(self._sampler))

    def _after(self, indices: Iterator[Any]) -> Iterator[Any]:
        # Only now: a DataLoader with workers asks twice for an iterator, and uses the second.
        count, self._count, self._start = self._count, 0, None
        if count:
            drawn: set[str] = set()
            try:
                first = read_past(indices.__next__, count, drawn)
            except StopIteration:  # nothing is read any more, so nothing goes on
                return
            self._watch.drawn |= drawn
            self._watch.begin()
            yield first
        yield from indices

    def __len__(self) -> int:
        return len(self._sampler)


def rest_of(loader: Any, count: int, start: dict[str, Any] | None, watch: Watch) -> Any:
    """The same DataLoader, of whatever class, but for a sampler that starts further on.

    Args:
        loader: The DataLoader.
        count: How many indices its sampler leaves out.
        start: The random numbers that the sampler begins with, where worker processes are to be
            those of an earlier pass: their seed was drawn in the first one, and is drawn here.
            None to go on with those that come next.
        watch: Looks on, where indices are left out.
    """
    rest = copy.copy(loader)
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    sampler = _Rest(loader, getattr(loader, name), count, start, watch)
    vars(rest).update({name: sampler, "_iterator": None})  # worker processes of its own
    if count:
        watch.put_into(rest)
    return rest


def is_plain(data: Any) -> bool:
    """Whether it is a DataLoader that iterates as all do."""
    return isinstance(data, DataLoader) and type(data).__iter__ is DataLoader.__iter__


def forks(data: Any) -> bool:
    """Whether it reads in worker processes."""
    return isinstance(data, DataLoader) and data.num_workers > 0


def is_persistent(data: Any) -> bool:
    """Whether its worker processes serve all passes."""
    return is_plain(data) and bool(data.persistent_workers)


def is_warm(data: Any) -> bool:
    """Whether it has worker processes that wait for the next pass."""
    return is_persistent(data) and data._iterator is not None
