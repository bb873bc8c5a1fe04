"""What handing a batch over costs, as a ratio to a thread and a bare `queue.Queue`.

    scripts/bench handover

The source is a list of small batches that are there already, the loop does nothing, and the batch
stays on the CPU: what is left is the way from one thread to another. The bare queue knows no
errors, no end before its end and no states. "Full" is the time of `next` when a batch is waiting.
"""

from __future__ import annotations

import argparse
import functools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import harness
import torch
from torch.utils.data import DataLoader

from sidestream import AsynchronousLoader


def bare_queue(data: Iterable[Any], size: int) -> Iterator[Any]:
    """The least that a thread and a queue can be."""
    ready: queue.Queue[Any] = queue.Queue(size)

    def fill() -> None:
        for batch in data:
            ready.put(batch)
        ready.put(None)

    thread = threading.Thread(target=fill)
    thread.start()
    while (batch := ready.get()) is not None:
        yield batch
    thread.join()


def ours(data: Iterable[Any], size: int) -> Iterator[Any]:
    """The loader."""
    return iter(AsynchronousLoader(data, "cpu", buffer_size=size))


def no_thread(data: Iterable[Any], size: int) -> Iterator[Any]:
    """The loader without its thread."""
    return iter(AsynchronousLoader(data, "cpu", buffer_size=0))


def generator(data: Iterable[Any], size: int) -> Iterator[Any]:
    """prefetch_generator's thread."""
    from prefetch_generator import BackgroundGenerator

    return iter(BackgroundGenerator(data, max_prefetch=size))


def nodes(data: Iterable[Any], size: int) -> Iterator[Any]:
    """torchdata.nodes' thread."""
    from torchdata.nodes import IterableWrapper, Loader, Prefetcher

    return iter(Loader(Prefetcher(IterableWrapper(data), prefetch_factor=size)))


def pipeline(data: Iterable[Any], size: int) -> Iterator[Any]:
    """SPDL's pipeline, without a stage."""
    from spdl.pipeline import PipelineBuilder

    built = PipelineBuilder().add_source(data).add_sink(size).build(num_threads=1)
    with built.auto_stop():
        yield from built


def data_loader(data: Iterable[Any], size: int) -> Iterator[Any]:
    """A plain DataLoader in the loop's own thread."""
    return iter(DataLoader(list(data), batch_size=None))


WAYS: dict[str, Callable[[Iterable[Any], int], Iterator[Any]]] = {
    "queue.Queue and a thread": bare_queue,
    "sidestream": ours,
    "sidestream, buffer_size=0: no thread": no_thread,
    "prefetch_generator": generator,
    "torchdata.nodes": nodes,
    "SPDL": pipeline,
    "DataLoader, no thread": data_loader,
}
BARE = "queue.Queue and a thread"


def streaming(way: Any, data: list[Any], size: int) -> float:
    """Time per batch of a loop that does nothing [s]; the start is left out."""
    batches = way(data, size)
    next(batches)
    start = time.perf_counter()
    count = sum(1 for _ in batches)
    assert count == len(data) - 1
    return (time.perf_counter() - start) / count


def full(way: Any, data: list[Any], size: int, pause_s: float = 0.0005) -> float:
    """The median time of `next` when a batch has been waiting [s]."""
    batches = way(data, size)
    next(batches)
    times = []
    for _ in range(len(data) - 1):
        time.sleep(pause_s)  # the other thread fills the queue
        start = time.perf_counter()
        next(batches)
        times.append(time.perf_counter() - start)
    for _ in batches:
        pass
    return float(harness.spread(times)["median"])


def measure(options: argparse.Namespace) -> Any:
    """Both, for two sizes of the queue."""
    torch.set_num_threads(1)
    rounds, length = (15, 2000) if options.quick else (41, 5000)
    data = [(torch.zeros(256), torch.zeros(1)) for _ in range(length)]
    ways, missing = {}, {}
    for name, way in WAYS.items():
        try:
            streaming(way, data[:10], 2)
            ways[name] = way
        except ImportError as error:
            missing[name] = str(error)
    result: dict[str, Any] = {"rounds": rounds, "batches": length, "missing": missing}
    for size in (2, 10):
        runs = {name: functools.partial(streaming, way, data, size) for name, way in ways.items()}
        waits = {
            name: functools.partial(full, way, data[:200], size) for name, way in ways.items()
        }
        times = harness.by_turns(runs, rounds=rounds)
        full_times = harness.by_turns(waits, rounds=5)
        result[f"buffer {size}"] = {
            name: {
                "us": harness.spread([1e6 * one for one in times[name]]),
                "over_queue": harness.ratios(times[name], times[BARE]),
                "full_us": harness.spread([1e6 * one for one in full_times[name]]),
            }
            for name in ways
        }
        show(size, result[f"buffer {size}"])
    return result


def show(size: int, found: dict[str, Any]) -> None:
    """Print a table."""
    rows = [
        (
            name,
            f"{one['us']['median']:.1f}",
            f"{one['over_queue']['median']:.2f}",
            f"{one['full_us']['median']:.1f}",
        )
        for name, one in found.items()
    ]
    head = (f"buffer {size}", "us a batch", "over queue.Queue", "next() when full, us")
    print("\n".join(harness.table(head, rows)) + "\n", flush=True)


if __name__ == "__main__":
    sys.exit(harness.run("handover", measure, __doc__))
