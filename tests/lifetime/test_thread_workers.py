"""G7 for ThreadDataLoader: its threads end with the iterator, whatever ends it, and at exit."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch

from sidestream import AsynchronousLoader, ThreadDataLoader
from support.process import run
from support.waiting import LIMIT_S, wait_until


class Numbers:
    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        return torch.full((200, 200), float(index))


def workers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("sidestream-workers")]


@pytest.fixture
def loader() -> Any:
    return ThreadDataLoader(Numbers(), batch_size=2, num_workers=3)


def test_after_the_end(loader: Any) -> None:
    iterator = iter(loader)
    assert len(workers()) == 3
    assert len(list(iterator)) == 25
    assert workers() == []
    assert list(iterator) == []


def test_after_a_break(loader: Any) -> None:
    for _ in range(20):
        for _batch in loader:
            break
        del _batch
        assert workers() == []


def test_after_an_exception_in_the_loop(loader: Any) -> None:
    def loop() -> None:
        for batch in loader:
            _ = len(batch) / 0

    with pytest.raises(ZeroDivisionError):
        loop()
    gc.collect()
    assert workers() == []


def test_when_an_iterator_in_a_cycle_is_collected(loader: Any) -> None:
    cycle: list[Any] = [iter(loader)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert workers() == []


def test_with_an_asynchronous_loader_over_it(loader: Any) -> None:
    for _ in range(10):
        for _batch in AsynchronousLoader(loader, "cpu"):
            break
    with AsynchronousLoader(loader, "cpu") as outer:
        next(iter(outer))
    del _batch
    gc.collect()
    wait_until(lambda: not workers(), "the workers have ended")


def test_a_worker_that_is_stuck_is_not_waited_for_long() -> None:
    gate, entered = threading.Event(), threading.Event()

    class Stuck(Numbers):
        def __getitem__(self, index: int) -> Any:
            entered.set()
            assert gate.wait(LIMIT_S)
            return index

    iterator = iter(ThreadDataLoader(Stuck(), num_workers=1))
    assert entered.wait(LIMIT_S)
    del iterator
    assert len(workers()) == 1
    gate.set()
    wait_until(lambda: not workers(), "the worker has ended by itself")


SCRIPTS = {
    "in the middle of a pass": "next(it)",
    "with a batch kept": "kept = next(it)",
    "before the first batch": "pass",
    "after the end": "list(it)",
    "with an error under way": "next(it); raise SystemExit(0)",
}


@pytest.mark.parametrize("options", ["", ", persistent_workers=True"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_at_interpreter_exit(name: str, options: str) -> None:
    result = run(
        f"""
from sidestream import ThreadDataLoader
dataset = TensorDataset(torch.randn(64, 200, 200))
loader = ThreadDataLoader(dataset, batch_size=4, num_workers=2{options})
it = iter(loader)
say("begun")
{SCRIPTS[name]}
"""
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "begun\n", "")


def test_a_forked_child_is_told_and_does_not_hang() -> None:
    result = run(
        """
from sidestream import ThreadDataLoader
loader = ThreadDataLoader(TensorDataset(torch.randn(64, 200, 200)), batch_size=4, num_workers=2)
it = iter(loader)
next(it)
if os.fork() == 0:
    try:
        next(it)
    except RuntimeError as error:
        say("told", "belongs to process" in str(error))
    say(len(list(loader)))
    sys.stdout.flush()
    os._exit(0)
os.wait()
say(len(list(it)))
"""
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == ["told True", "16", "15"]
