"""Public reports about threads, processes and errors; README.md lists all."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from sidestream import AsynchronousLoader
from support.process import run, running
from support.sources import Counting, Raising, batch_of, numbers, plain
from support.waiting import wait_until


def test_R10_abandoned_iterators_leave_no_thread_and_no_object(device: str) -> None:
    before = threading.active_count()
    loader = AsynchronousLoader(Counting(None), device, buffer_size=1)
    for _ in range(200):
        next(iter(loader))
    for _ in range(50):
        for _batch in loader:
            break
    iterator = iter(loader)
    next(iterator)
    references = [weakref.ref(loader), weakref.ref(iterator)]
    del loader, iterator
    gc.collect()
    wait_until(lambda: threading.active_count() == before, "all threads have ended", 2)
    assert [reference() for reference in references] == [None, None]


def test_R12_ctrl_c_is_answered_at_once_and_nothing_fatal_is_printed() -> None:
    with running(
        """
        class Slow(Counting):
            def make(self, number):
                if number == 1 and self.iters == 1:
                    say("waiting")
                    released.wait(60)
                return batch_of(number)

        released = threading.Event()
        loader = AsynchronousLoader(Slow(3), "cpu")
        try:
            list(loader)
        except KeyboardInterrupt:
            released.set()
            say(numbers(loader))
        released.clear()
        loader.iters = 0
        list(loader)
        """
    ) as script:
        script.wait_for("waiting")
        script.interrupt()
        script.wait_for("[0, 1, 2]")
        script.wait_for("waiting")
        script.interrupt()
        script.finish(5)
        assert script.returncode in (-2, 130)
        assert script.stderr.rstrip().endswith("KeyboardInterrupt")
        assert script.stderr.count("Traceback") == 1
        assert "Fatal" not in script.stderr


@pytest.mark.slow
def test_R14_a_killed_worker_is_an_error_and_not_a_hang() -> None:
    """A DataLoader that is ended with a dead worker takes 5 s."""
    run(
        """
        import psutil

        class Items(Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                if index == 2 and not released.item():
                    threading.Event().wait(60)
                return index

        released = torch.zeros(1).share_memory_()
        loader = AsynchronousLoader(DataLoader(Items(), batch_size=None, num_workers=1), "cpu")
        iterator = iter(loader)
        say(next(iterator), next(iterator))
        try:
            psutil.Process().children()[0].kill()
            next(iterator)
        except RuntimeError as error:
            say("worker" in str(error))
        loader.close()
        say([thread for thread in loader_threads() if "sidestream" in thread.name])
        wait_until(lambda: not psutil.Process().children(), "the workers have ended", 2)
        released.fill_(1)
        say(list(loader))
        """
    ).assert_clean("0 1", "True", "[]", "[0, 1, 2, 3]")


ENDS: dict[str, Callable[[BaseException], Any]] = {
    "iter": lambda error: Raising(error, "iter"),
    "first": lambda error: Raising(error, 0),
    "middle": lambda error: Raising(error, 3),
    "last": lambda error: Raising(error, 5),
}


@pytest.mark.parametrize("where", [*ENDS, "transform"])
@pytest.mark.parametrize(
    "kind", [RuntimeError, SystemExit, KeyboardInterrupt, MemoryError], ids=lambda k: k.__name__
)
def test_R15_every_way_to_end_wakes_the_consumer_in_its_place(
    where: str, kind: type[BaseException], device: str
) -> None:
    error = kind("out of memory")

    def transform(batch: Any) -> Any:
        if where == "transform" and batch[1] == 3 and error is not None:
            raise error
        return batch

    source = ENDS[where](error) if where in ENDS else plain(5)
    loader = AsynchronousLoader(source, device, transform=transform)
    seen: list[int] = []
    iterators: list[Any] = []

    def loop() -> None:
        iterators.append(iter(loader))
        for _, number in iterators[0]:
            seen.append(number)

    with pytest.raises(kind) as caught:
        loop()
    assert caught.value is error
    assert seen == list(range({"iter": 0, "first": 0, "last": 5}.get(where, 3)))
    lines = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert {"__iter__", "__next__", "transform"} & set(lines)
    assert [list(iterator) for iterator in iterators] == [[]] * len(iterators)
    error = None
    assert numbers(loader) == [0, 1, 2, 3, 4]


class Demanding(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "make", [lambda: Demanding(code=7), Mute, lambda: KeyError("one\ntwo")], ids=["a", "b", "c"]
)
def test_R16_the_error_itself_is_raised_and_does_not_grow(make: Any, device: str) -> None:
    error = make()
    error.extra = [1]
    error.__cause__ = ValueError("cause")
    loader = AsynchronousLoader(Raising(error, 2, passes=range(9)), device)
    depths = set()
    for _ in range(3):
        error.__traceback__ = None
        with pytest.raises(type(error)) as caught:
            list(loader)
        assert caught.value is error
        depths.add(
            (len(traceback.extract_tb(error.__traceback__)), len(getattr(error, "__notes__", [])))
        )
    assert len(depths) == 1
    assert error.extra == [1]
    assert str(error.__cause__) == "cause"


def test_R59_a_loader_in_use_is_pickled_and_copied_and_the_copy_is_fresh(
    device: str, buffer_size: int
) -> None:
    loader = AsynchronousLoader(plain(4), device, buffer_size=buffer_size)
    iterator = iter(loader)
    assert next(iterator)[1] == 0
    for duplicate in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert numbers(itertools.islice(duplicate, 2)) == [0, 1]
        assert numbers(duplicate) == [0, 1, 2, 3]
    with pytest.raises(TypeError, match="pass under way"):
        pickle.dumps(iterator)
    assert numbers(iterator) == [1, 2, 3]


def test_R49_batches_become_available_one_at_a_time(device: str) -> None:
    """The first is there when one was read, and not when the buffer is full."""

    class Gated(Counting):
        def __init__(self) -> None:
            super().__init__(None)
            self.gates = [threading.Event() for _ in range(4)]

        def make(self, number: int) -> Any:
            assert self.gates[number].wait(10)
            return batch_of(number)

    source = Gated()
    iterator = iter(AsynchronousLoader(source, device, buffer_size=8, num_batches=4))
    for number, gate in enumerate(source.gates):
        gate.set()
        assert next(iterator)[1] == number
        assert source.reads <= number + 2
    assert list(iterator) == []
