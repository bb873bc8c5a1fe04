"""The fault matrix: what goes wrong, when, and what the loader must make of it.

`FAULTS` is the list of those within one process; support/process_faults.py has the others. The
tests in tests/faults and tests/simulator run every one of them at every moment and compare what
happened with what is written here. `python tests/faults/table.py` makes docs/faults.md of it.
"""

from __future__ import annotations

import dataclasses
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from sidestream import AsynchronousLoader
from support.sources import batch_of
from support.waiting import Worker, is_blocked, loader_threads, wait_until

LENGTH = 6
MOMENTS = {"first": 0, "middle": 3, "last": LENGTH - 1, "after the end": LENGTH}
ALL = range(LENGTH + 1)


@dataclasses.dataclass(frozen=True)
class Case:
    """One run of a fault."""

    moment: str
    buffer_size: int
    device: str

    @property
    def at(self) -> int:
        """The batch in whose place it happens; after the end that is one more than there are."""
        return MOMENTS[self.moment]

    def loader(self, data: Any, **options: Any) -> AsynchronousLoader[Any]:
        return AsynchronousLoader(data, self.device, buffer_size=self.buffer_size, **options)


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Args:
        name: For people.
        run: Makes it happen in this process, and says what came of it; see `outcome_of`.
        expected: What must come of it, by moment; a moment that is left out cannot be.
        limit_s: Within this time it must be over [s].
        devices: Where it is tried.
        buffer_sizes: With which.
    """

    name: str
    run: Callable[[Case], str]
    expected: dict[str, str]
    limit_s: float = 5.0
    devices: tuple[str, ...] = ("cpu", "meta", "sim")
    buffer_sizes: tuple[int, ...] = (0, 1, 2)


def same(text: str, *moments: str) -> dict[str, str]:
    """The same outcome at these moments, or at all."""
    return dict.fromkeys(moments or MOMENTS, text)


def after_the_good(then: str, *moments: str) -> dict[str, str]:
    """All batches before it, then this."""
    return {m: f"{MOMENTS[m]}, {then}" for m in moments or MOMENTS}


# ---- what the loop saw


def read_on(iterator: Iterator[Any]) -> tuple[int, BaseException | None]:
    """Read to the end or an error: how many batches came, each checked, and the error."""
    count = 0
    try:
        for tensor, number in iterator:
            assert number == count
            if tensor.device.type != "meta":
                assert (tensor == number).all().item()
            del tensor
            count += 1
    except BaseException as error:
        return count, error
    return count, None


def describe(caught: BaseException | None, error: BaseException) -> str:
    """What became of an error."""
    if caught is None:
        return "the end"
    if caught is error:
        return "it"
    if caught.__cause__ is error:
        return f"a {type(caught).__name__} from it"
    return f"a {type(caught).__name__}"


def outcome_of(loader: Any, error: BaseException) -> str:
    """Read one pass: the batches that came, and what then. Nothing comes after that.

    And the next pass is a full one, if its source says that the fault comes once.
    """
    iterator = iter(loader)
    count, caught = read_on(iterator)
    text = f"{count}, {describe(caught, error)}"
    for _ in range(3):
        assert next(iterator, "nothing") == "nothing"
    del iterator
    error.__traceback__ = None
    if caught is not None:
        caught.__traceback__ = None
    assert read_on(iter(loader)) == (LENGTH, None), "the next pass"
    return text


class Faulty:
    """Does something in place of batch `at`, once, and keeps an eye on the batches it gave."""

    def __init__(self, at: int, fault: Callable[[], Any], batch: Any = batch_of) -> None:
        self.at = at
        self.fault: Callable[[], Any] | None = fault
        self.batch = batch
        self.given: list[weakref.ref[torch.Tensor]] = []

    def __iter__(self) -> Iterator[Any]:
        return _FaultyIterator(self)


class _FaultyIterator:
    def __init__(self, source: Faulty) -> None:
        self._source = source
        self._next = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        source, number = self._source, self._next
        if number == source.at and source.fault is not None:
            fault, source.fault = source.fault, None
            return fault()
        if number >= LENGTH:
            raise StopIteration
        self._next += 1
        batch = source.batch(number)
        if isinstance(batch, tuple):
            source.given.append(weakref.ref(batch[0]))
        return batch


def check_released(make: Callable[[], str]) -> str:
    """Run it, and see that neither a thread nor memory of any kind is left."""
    before = Held()
    result = make()
    gc.collect()
    wait_until(lambda: not loader_threads(), "the threads have ended")
    wait_until(lambda: gc.collect() is not None and Held() == before, f"{before} again")
    return result


class Held:
    """Device and page-locked memory in use [bytes]."""

    def __init__(self) -> None:
        self.device = self.pinned = 0
        if torch.accelerator.is_available():
            from sidestream import simulator

            torch.accelerator.synchronize()
            self.device = torch.accelerator.memory_allocated()
            self.pinned = simulator.pinned_memory().bytes

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.device} bytes on the device, {self.pinned} page-locked"


# ---- errors


class Demanding(Exception):
    """Cannot be made again from its text, nor pickled."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code

    def __reduce__(self) -> Any:
        raise TypeError("not to be rebuilt")


ERRORS: dict[str, Callable[[], BaseException]] = {
    "an `Exception`": lambda: ValueError("broken"),
    "a `BaseException`": lambda: BaseException("the very base"),
    "`SystemExit`": lambda: SystemExit(3),
    "`KeyboardInterrupt`": KeyboardInterrupt,
    "`GeneratorExit`": GeneratorExit,
    "`MemoryError`": MemoryError,
    "an exception with required arguments, not to be rebuilt": lambda: Demanding(code=7),
    "`torch.OutOfMemoryError`": lambda: torch.OutOfMemoryError("no memory"),
}


def throw(error: BaseException) -> Any:
    raise error


def source_raises(make_error: Callable[[], BaseException]) -> Callable[[Case], str]:
    def run(case: Case) -> str:
        error = make_error()
        source = Faulty(case.at, lambda: throw(error))
        text = outcome_of(case.loader(source), error)
        gc.collect()
        assert [ref for ref in source.given if ref() is not None] == []
        return text

    return run


def source_stops(case: Case) -> str:
    """A `StopIteration` out of a helper in the source's `__next__`, as in a plain loop."""
    error = StopIteration("from inside")
    return outcome_of(case.loader(Faulty(case.at, lambda: throw(error))), error)


def generator_stops(case: Case) -> str:
    """The same within a generator, where Python makes a RuntimeError of it."""
    error = StopIteration("from inside")
    source = Faulty(case.at, lambda: throw(error))

    class Generated:
        def __iter__(self) -> Iterator[Any]:
            iterator = iter(source)
            for _ in ALL:
                if source.fault is None and iterator._next == LENGTH:
                    return
                yield next(iterator)

    return outcome_of(case.loader(Generated()), error)


class Items(Dataset[Any]):
    """Raises in place of one item, once."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.at, self.error = at, error
        self.has_raised = False

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        if index == self.at and not self.has_raised:
            self.has_raised = True
            raise self.error
        return batch_of(index)


def dataset_raises(case: Case) -> str:
    error = Demanding(code=7)
    data = DataLoader(Items(case.at, error), batch_size=None)
    return outcome_of(case.loader(data), error)


def sampler_raises(case: Case) -> str:
    error = ValueError("in the sampler")

    class Sampler:
        has_raised = False

        def __iter__(self) -> Iterator[int]:
            for number in ALL:
                if number == case.at and not self.has_raised:
                    self.has_raised = True
                    raise error
                if number < LENGTH:
                    yield number

    data = DataLoader(Items(-1, error), batch_size=None, sampler=Sampler())
    return outcome_of(case.loader(data), error)


def collate_raises(case: Case) -> str:
    error = ValueError("in collate_fn")
    raised = []

    def collate(sample: Any) -> Any:
        if sample[1] == case.at and not raised:
            raised.append(1)
            raise error
        return sample

    data = DataLoader(Items(-1, error), batch_size=None, collate_fn=collate)
    return outcome_of(case.loader(data), error)


def transform_raises(make_error: Callable[[], BaseException]) -> Callable[[Case], str]:
    def run(case: Case) -> str:
        error = make_error()
        raised = []

        def transform(batch: Any) -> Any:
            if batch[1] == case.at and not raised:
                raised.append(1)
                raise error
            return batch

        source = Faulty(-1, lambda: None)
        return outcome_of(case.loader(source, transform=transform), error)

    return run


class BadMove:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def to(self, *args: Any, **kwargs: Any) -> Any:
        raise self._error


def move_raises(case: Case) -> str:
    error = Demanding(code=8)
    return outcome_of(case.loader(Faulty(case.at, lambda: (BadMove(error), case.at))), error)


# ---- garbage


class Unfriendly:
    """Answers no question."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("do not ask")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("do not compare")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("do not show")


def garbage(case: Case) -> str:
    """What is no batch passes through as it is, in its place."""
    for thing in (None, 7, "text", b"bytes", object(), Ellipsis, int, [], {}, ((),), {1: {2: []}}):
        source = Faulty(case.at, lambda thing=thing: thing)
        iterator = iter(case.loader(source))
        for number in range(case.at):
            assert next(iterator)[1] == number
        got = next(iterator)
        assert got is thing or got == thing
        assert type(got) is type(thing)
        rest = [number for _, number in iterator]
        assert rest == list(range(case.at, LENGTH))
    return f"{case.at}, it as it is, then the rest"


def unfriendly_object(case: Case) -> str:
    """An object that raises when it is looked at: the error that it raises, or itself."""
    thing = Unfriendly()
    source = Faulty(case.at, lambda: thing)
    iterator = iter(case.loader(source))
    for number in range(case.at):
        assert next(iterator)[1] == number
    got = next(iterator)
    assert got is thing
    return f"{case.at}, it as it is, then the rest"


def batch_in_itself(case: Case) -> str:
    knot: list[Any] = [torch.zeros(1)]
    knot.append(knot)
    error = ValueError()
    return outcome_of(case.loader(Faulty(case.at, lambda: knot)), error)


# ---- the consumer


def take(case: Case, iterator: Iterator[Any]) -> None:
    """What the loop had before the fault."""
    for number in range(min(case.at + 1, LENGTH)):
        assert next(iterator)[1] == number
    if case.at == LENGTH:
        assert next(iterator, "end") == "end"


def consuming(fault: Callable[[Any, Iterator[Any]], Any]) -> Callable[[Case], str]:
    """The loop takes batches up to the moment, and then does something.

    Everything is released, and the next pass is full.
    """

    def run(case: Case) -> str:
        source = Faulty(-1, lambda: None)
        loader = case.loader(source)
        iterators = [iter(loader)]
        take(case, iterators[0])
        fault(loader, iterators)
        iterators.clear()
        gc.collect()
        wait_until(lambda: not loader_threads(), "the thread has ended")
        wait_until(lambda: not any(ref() is not None for ref in source.given), "batches are gone")
        assert read_on(iter(loader)) == (LENGTH, None)
        return "released"

    return run


def body_raises(loader: Any, iterators: list[Any]) -> None:
    error = ValueError("in the body")
    iterator = iterators.pop()

    def loop() -> None:
        for _ in iterator:
            raise error
        raise error

    with pytest.raises(ValueError, match="in the body") as caught:
        loop()
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    error.__traceback__ = None


def in_a_cycle(loader: Any, iterators: list[Any]) -> None:
    holder: dict[str, Any] = {"iterator": iterators.pop()}
    holder["itself"] = holder


def closed_elsewhere(loader: Any, iterators: list[Any]) -> None:
    Worker(loader.close).result()
    assert next(iterators[0], "end") == "end"


def closed_elsewhere_while_waiting(case: Case) -> str:
    """Another thread closes the loader while the loop waits for a batch."""
    entered, gate = threading.Event(), threading.Event()

    def block() -> Any:
        entered.set()
        assert gate.wait(10)
        return batch_of(case.at)

    loader = case.loader(Faulty(case.at, block))
    iterator = iter(loader)
    reader = Worker(read_on, iterator)
    assert entered.wait(10)
    closer = Worker(loader.close)
    wait_until(lambda: not closer.is_alive() or is_blocked(closer), "it waits for the source")
    gate.set()
    closer.result()
    count, error = reader.result()
    assert error is None
    assert count <= case.at + 1
    del iterator, reader
    assert read_on(iter(loader)) == (LENGTH, None)
    return "at most what was read, the end"


# ---- the device


def device_memory_runs_out(case: Case) -> str:
    """One batch is larger than what is left on the device."""
    from sidestream import simulator

    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    large = torch.zeros(32 << 20, dtype=torch.uint8)
    source = Faulty(case.at, lambda: (large, case.at))
    room = torch.accelerator.memory_reserved() + (24 << 20)
    error = ValueError()
    with simulator.settings(memory_bytes=room):
        return outcome_of(case.loader(source), error)


def page_locked_memory_runs_out(case: Case) -> str:
    """The batch is staged in pageable memory, and a warning says so."""
    from sidestream import simulator

    torch.accelerator.synchronize()
    torch.accelerator.empty_host_cache()
    large = torch.full((8 << 20,), float(case.at))
    source = Faulty(case.at, lambda: (large, case.at))
    room = simulator.pinned_memory().reserved_bytes + (4 << 20)
    with simulator.settings(pinned_bytes=room), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        iterator = iter(case.loader(source))
        numbers = []
        for tensor, number in iterator:
            assert (tensor == number).all().item()
            numbers.append(number)
    assert numbers == [*range(case.at), case.at, *range(case.at, LENGTH)]
    said = [str(one.message) for one in caught]
    assert all("page-locked memory was refused" in text for text in said)
    assert bool(said) == (case.buffer_size > 0)
    return "all, and a warning"


FAULTS = [
    *(
        Fault(f"the source raises {name}", source_raises(make), after_the_good("it"))
        for name, make in ERRORS.items()
    ),
    Fault(
        "`StopIteration` out of the source's `__next__`", source_stops, after_the_good("the end")
    ),
    Fault(
        "`StopIteration` inside a generator",
        generator_stops,
        after_the_good("a RuntimeError from it"),
    ),
    Fault(
        "the dataset raises (DataLoader)",
        dataset_raises,
        after_the_good("it", "first", "middle", "last"),
    ),
    Fault("the sampler raises", sampler_raises, after_the_good("it")),
    Fault("`collate_fn` raises", collate_raises, after_the_good("it", "first", "middle", "last")),
    *(
        Fault(
            f"the transform raises {name}",
            transform_raises(ERRORS[name]),
            after_the_good("it", "first", "middle", "last"),
        )
        for name in ("an `Exception`", "a `BaseException`", "`MemoryError`")
    ),
    Fault(
        "the transform raises `StopIteration`",
        transform_raises(lambda: StopIteration(5)),
        after_the_good("a RuntimeError from it", "first", "middle", "last"),
    ),
    Fault("an object in the batch raises in its `to`", move_raises, after_the_good("it")),
    Fault(
        "garbage in place of a batch: None, text, objects, nothing",
        garbage,
        after_the_good("it as it is, then the rest"),
    ),
    Fault(
        "an object that raises whatever is asked of it",
        unfriendly_object,
        after_the_good("it as it is, then the rest"),
    ),
    Fault("a batch that contains itself", batch_in_itself, after_the_good("a ValueError")),
    Fault("the loop's body raises", consuming(body_raises), same("released")),
    Fault("`break`", consuming(lambda loader, iterators: None), same("released")),
    Fault("the iterator is forgotten in a cycle", consuming(in_a_cycle), same("released")),
    Fault("another thread closes the loader", consuming(closed_elsewhere), same("released")),
    Fault(
        "another thread closes it while the loop waits",
        closed_elsewhere_while_waiting,
        same("at most what was read, the end"),
        buffer_sizes=(1, 2),
    ),
    Fault(
        "the device's memory runs out",
        device_memory_runs_out,
        after_the_good("a OutOfMemoryError"),
        devices=("sim",),
    ),
    Fault(
        "page-locked memory runs out",
        page_locked_memory_runs_out,
        same("all, and a warning"),
        devices=("sim",),
    ),
]


def cases(*devices: str) -> list[Any]:
    """Parameters for a test: a fault and a case on one of these devices."""
    return [
        pytest.param(
            fault,
            Case(moment, size, device),
            id=f"{fault.name.replace('`', '')}-{moment}-buffer{size}-{device}",
            marks=pytest.mark.timeout(fault.limit_s),
        )
        for fault in FAULTS
        for moment in fault.expected
        for device in devices
        if device in fault.devices
        for size in fault.buffer_sizes
    ]
