"""Sources with a stated behaviour: they count, raise, block, reuse a buffer, reset themselves."""

from __future__ import annotations

import threading
from typing import Any

import torch

LIMIT_S = 20.0  # arbitrary: longer than anything here may take, shorter than a test's own limit


def batch_of(number: int) -> tuple[torch.Tensor, int]:
    """A batch whose number can be read on every target, also where values cannot."""
    return torch.full((2, 3), float(number)), number


def numbers(batches: Any) -> list[int]:
    return [number for _, number in batches]


def plain(length: int) -> list[tuple[torch.Tensor, int]]:
    """What a plain loop over a source of this length sees."""
    return [batch_of(number) for number in range(length)]


class Counting:
    """A re-iterable source that notes each `iter`, each `next`, and the thread of each."""

    def __init__(self, length: int | None) -> None:
        self.length = length
        self.iters = 0
        self.reads = 0
        self.iter_threads: list[int] = []
        self.next_threads: list[int] = []

    def __iter__(self) -> Any:
        self.iters += 1
        self.iter_threads.append(threading.get_ident())
        return _CountingIterator(self)

    def make(self, number: int) -> Any:
        return batch_of(number)


class _CountingIterator:
    def __init__(self, source: Counting) -> None:
        self._source = source
        self._next = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        self._source.reads += 1
        self._source.next_threads.append(threading.get_ident())
        number = self._next
        if self._source.length is not None and number >= self._source.length:
            raise StopIteration
        self._next += 1
        return self._source.make(number)


class SizedCounting(Counting):
    def __len__(self) -> int:
        return self.length


class Raising:
    """Raises `error` in place of batch `at` in the passes named; `at="iter"` for `iter` itself."""

    def __init__(
        self, error: BaseException, at: int | str, length: int = 5, passes: Any = (0,)
    ) -> None:
        self.error = error
        self.at = at
        self.length = length
        self.passes = passes
        self.begun = 0

    def __iter__(self) -> Any:
        index = self.begun
        self.begun += 1
        fails = index in self.passes
        if fails and self.at == "iter":
            raise self.error  # the failing line of the source
        return _RaisingIterator(self, fails)


class _RaisingIterator:
    def __init__(self, source: Raising, fails: bool) -> None:
        self._source = source
        self._fails = fails
        self._next = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        number = self._next
        self._next += 1
        if self._fails and number == self._source.at:
            raise self._source.error  # the failing line of the source
        if number >= self._source.length:
            raise StopIteration
        return batch_of(number)


class Blocking:
    """Waits on `gate` before it gives batch `at`; sets `entered` when it gets there."""

    def __init__(self, at: int, length: int = 5) -> None:
        self.at = at
        self.length = length
        self.entered = threading.Event()
        self.gate = threading.Event()

    def __iter__(self) -> Any:
        for number in range(self.length):
            if number == self.at:
                self.entered.set()
                assert self.gate.wait(LIMIT_S)
            yield batch_of(number)


class SelfResetting:
    """`iter` starts again at the beginning, and gives the object itself."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.position = length

    def __iter__(self) -> Any:
        self.position = 0
        return self

    def __next__(self) -> Any:
        if self.position >= self.length:
            raise StopIteration
        self.position += 1
        return batch_of(self.position - 1)


class Reusing:
    """Fills one and the same tensor again for every batch (hazard H9)."""

    def __init__(self, length: int, **options: Any) -> None:
        self.length = length
        self.buffer = torch.zeros(4, **options)

    def __iter__(self) -> Any:
        for number in range(self.length):
            self.buffer.fill_(number)
            yield self.buffer


class NonReentrant:
    """Fails when two threads are inside at once, or when a second thread enters during a pass."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.inside = threading.Lock()
        self.overlaps = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if not self.inside.acquire(blocking=False):
            self.overlaps += 1
            raise RuntimeError("two threads are inside the dataset at once")
        try:
            return torch.full((2,), float(index)), index
        finally:
            self.inside.release()


class SelfMoving:
    """A batch that moves itself, and remembers how it was asked."""

    def __init__(self, tensor: torch.Tensor, number: int = 0) -> None:
        self.tensor = tensor
        self.number = number
        self.asked: list[torch.device] = []

    def to(self, device: Any, *args: Any, **kwargs: Any) -> SelfMoving:
        self.asked.append(torch.device(device))
        return type(self)(self.tensor.to(device), self.number)


class Stateful:
    """A source that can say where it stands, and be put there, as stateful loaders do."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.position = 0
        self.start = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        self.position, self.start = self.start, 0
        while self.position < self.length:
            self.position += 1
            yield batch_of(self.position - 1)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["position"]
