"""Many, long, large, fast and slow: as many passes, loaders and readers as anybody will have.

Numbers in full with --long; the usual run has a tenth of them.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sidestream import AsynchronousLoader
from support.process import run
from support.sources import Counting, batch_of, numbers, plain
from support.waiting import Worker, is_blocked, loader_threads, wait_until


def some(few: int, many: int) -> Any:
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.long)])


@some(1_000, 10_000)
@pytest.mark.timeout(120)
def test_many_tiny_epochs(count: int) -> None:
    source = Counting(2)
    loader = AsynchronousLoader(source, "cpu")
    for _ in range(count):
        assert numbers(loader) == [0, 1]
    assert source.iters == count
    assert loader.statistics().num_batches == 2 * count
    wait_until(lambda: not loader_threads(), "all threads have ended")


@some(100, 1_000)
@pytest.mark.timeout(120)
def test_many_loaders_alive_at_once(count: int) -> None:
    loaders = [AsynchronousLoader(plain(4), "cpu") for _ in range(count)]
    iterators = [iter(loader) for loader in loaders]
    for number in range(4):
        assert [next(iterator)[1] for iterator in iterators] == [number] * count
    assert [next(iterator, "end") for iterator in iterators] == ["end"] * count
    again = [iter(loader) for loader in loaders]  # and given up in the middle
    assert [next(iterator)[1] for iterator in again] == [0] * count
    del again, iterators, loaders
    wait_until(lambda: not loader_threads(), "all threads have ended")


@some(400, 4_000)
@pytest.mark.timeout(120)
def test_one_pass_read_by_four_threads(count: int) -> None:
    iterator = iter(AsynchronousLoader(Counting(count), "cpu", buffer_size=3))
    begun = threading.Barrier(4)

    def read() -> list[int]:
        begun.wait(10)
        return numbers(iterator)

    parts = [worker.result(60) for worker in [Worker(read) for _ in range(4)]]
    assert sorted(number for part in parts for number in part) == list(range(count))
    assert all(part == sorted(part) for part in parts)


@some(20, 200)
@pytest.mark.timeout(120)
def test_four_threads_with_passes_of_their_own(count: int) -> None:
    loader = AsynchronousLoader(Counting(5), "cpu")
    workers = [Worker(lambda: [numbers(loader) for _ in range(count)]) for _ in range(4)]
    for worker in workers:
        assert worker.result(60) == [[0, 1, 2, 3, 4]] * count


@some(2, 8)
@pytest.mark.timeout(150)
def test_several_loaders_with_worker_processes_at_once(count: int) -> None:
    run(
        f"""
import psutil
data = [DataLoader(TensorDataset(torch.arange(40) + 100 * k), 4, num_workers=2)
        for k in range({count})]
iterators = [iter(AsynchronousLoader(one, "cpu")) for one in data]
for step in range(10):
    for k, iterator in enumerate(iterators):
        (batch,) = next(iterator)
        assert batch.tolist() == list(range(100 * k + 4 * step, 100 * k + 4 * step + 4))
assert len(psutil.Process().children()) <= 2 * {count}
assert [next(iterator, None) for iterator in iterators] == [None] * {count}
wait_until(lambda: not psutil.Process().children(), "the workers have ended", 60)
wait_until(lambda: not loader_threads(), "the threads have ended", 60)
say("all of them")
""",
        limit_s=120,
    ).assert_clean("all of them")


@pytest.mark.parametrize("buffer_size", [1, 2, 9])
def test_a_consumer_much_slower_than_the_source(buffer_size: int) -> None:
    """Before each batch the loader's thread has done all that it may, and no more."""
    source = Counting(100)
    iterator = iter(AsynchronousLoader(source, "cpu", buffer_size=buffer_size))
    for number in range(100):
        assert next(iterator)[1] == number
        if number == 0:
            (thread,) = loader_threads()
        most = min(number + 1 + buffer_size + 1, 101)
        wait_until(lambda: source.reads >= most, "all is read ahead")  # noqa: B023
        assert source.reads == most
    assert next(iterator, "end") == "end"
    thread.join(10)


@pytest.mark.parametrize("buffer_size", [1, 2, 9])
def test_a_consumer_much_faster_than_the_source(buffer_size: int) -> None:
    """Each batch is made only when the consumer stands waiting for it."""
    consumer = threading.current_thread()

    class Slow(Counting):
        def make(self, number: int) -> Any:
            if number:
                wait_until(lambda: is_blocked(consumer), "the consumer waits")
            return batch_of(number)

    assert numbers(AsynchronousLoader(Slow(60), "cpu", buffer_size=buffer_size)) == list(range(60))


def test_both_cores_busy_in_this_process() -> None:
    """Three threads that compute without end take the interpreter's lock away all the time."""
    stop = threading.Event()

    def compute() -> int:
        total = 0
        while not stop.is_set():
            total += sum(range(2_000))
        return total

    workers = [Worker(compute) for _ in range(3)]
    try:
        loader = AsynchronousLoader(Counting(15), "cpu")
        for _ in range(3):
            assert numbers(loader) == list(range(15))
        iterator = iter(loader)
        next(iterator)
        del iterator
        wait_until(lambda: not loader_threads(), "the thread has ended")
    finally:
        stop.set()
    assert all(worker.result() for worker in workers)


@pytest.mark.timeout(90)
def test_both_cores_busy_with_other_processes() -> None:
    run(
        """
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        while True:
            pass
    children.append(child)
loader = AsynchronousLoader(DataLoader(TensorDataset(torch.arange(60)), 2, num_workers=2), "cpu")
for _ in range(2):
    assert [batch[0].item() for batch, in loader] == list(range(0, 60, 2))
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
say("all of it")
""",
        limit_s=60,
    ).assert_clean("all of it")
