"""Prefetching the simplest way: a thread, a bounded queue, a side stream. Read this first.

    for x, y in prefetch(DataLoader(dataset, batch_size=64), "cuda"):
        ...

It is right: the loop sees the same batches in the same order, never reads one before its copy
has ended, gets the source's own exception, and leaves no thread behind. What its length does
not allow, and `sidestream.AsynchronousLoader` gives:

- Device memory bounded where the CPU runs ahead of the device. `record_stream` keeps each batch
  until the device has come past it, so a loop that never synchronises holds every batch it has
  queued work for.
- Page-locked memory that is used again. Here each tensor is locked anew, in sizes that torch
  rounds up to powers of two; many small tensors cost as many copies.
- Other batches than tensors in tuples, lists and dicts: named tuples, dataclasses, objects with a
  `to` method, one tensor standing twice. Here those are flattened, passed by or copied twice.
- The random numbers of a plain loop. Here the source is opened in the thread.
- The caller's device, grad mode, autocast and default device in the thread; a source that fills
  one buffer again and again; one that blocks for ever when the loop breaks off.
- Stream memory over epochs. Here each pass has a new stream, whose cached blocks stay with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any

import torch


def prefetch(  # noqa: C901 - its nested functions are counted with it
    source: Iterable[Any], device: str, buffer_size: int = 2
) -> Iterator[Any]:
    """Yield the batches of `source`, read and copied to `device` ahead of time."""
    side = torch.Stream(device=device) if torch.device(device).type != "cpu" else None
    room = threading.Semaphore(buffer_size)  # bounds the queue; opened to end the thread
    ready: SimpleQueue[tuple[Any, torch.Event | None, BaseException | None]] = SimpleQueue()
    stopped = threading.Event()

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory().to(device, non_blocking=True) if side else tensor.to(device)

    def record_use(tensor: torch.Tensor) -> None:
        # When the loop drops it, its memory waits for what the loop's stream has queued by then.
        tensor.record_stream(torch.accelerator.current_stream(device))

    def produce() -> None:
        try:
            if side:
                torch.accelerator.set_stream(side)
            for batch in source:
                room.acquire()
                if stopped.is_set():
                    return
                moved = map_tensors(copy, batch)
                ready.put((moved, side.record_event() if side else None, None))
            ready.put((None, None, StopIteration()))
        except BaseException as error:  # noqa: BLE001 - all of them belong to the consumer
            ready.put((None, None, error))

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        while True:
            batch, event, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            if event is not None:  # the loop's stream waits for the copy, the CPU does not
                torch.accelerator.current_stream(device).wait_event(event)
                map_tensors(record_use, batch)
            room.release()
            yield batch
    finally:  # the end, an error, or the loop was left
        stopped.set()
        room.release()
        thread.join()


def map_tensors(function: Callable[[torch.Tensor], Any], batch: Any) -> Any:
    """Apply a function to the tensors in nested tuples, lists and dicts."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {key: map_tensors(function, value) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(map_tensors(function, value) for value in batch)
    return batch
