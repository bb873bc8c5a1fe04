"""Drive the loader in ways that would race if it were wrong, under a sanitizer.

    python benchmarks/stream_check.py               on the accelerator, values alone
    python benchmarks/stream_check.py --sanitize    under PyTorch's stream sanitizer (CUDA)

PyTorch's sanitizer sees the operators of the thread that switched it on, and no other. Here it is
switched on in every thread that starts, with one record for all; a loader that is known to race
has to be caught, or a clean report of ours would say nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from sidestream import AsynchronousLoader

STEPS = 12
SHAPE = (64, 1024)


def batches() -> list[Any]:
    """Small and large tensors, some of them page-locked."""
    return [
        {
            "image": torch.full(SHAPE, float(number)),
            "labels": [torch.full((3,), number) for _ in range(4)],
            "locked": torch.full(SHAPE, float(number)).pin_memory(),
        }
        for number in range(STEPS)
    ]


def sums(batch: Any) -> torch.Tensor:
    """Read all of a batch on the current stream."""
    parts = [batch["image"].sum(), batch["locked"].sum(), *(one.sum() for one in batch["labels"])]
    return torch.stack([part.double() for part in parts])


def right(number: int) -> list[float]:
    """What `sums` has to give."""
    size = float(SHAPE[0] * SHAPE[1])
    return [number * size, number * size, *([3.0 * number] * 4)]


def ahead(loader: Any) -> list[torch.Tensor]:
    """A loop that never waits."""
    found = []
    for batch in loader:
        found.append(sums(batch))
        del batch
    return found


def kept(loader: Any) -> list[torch.Tensor]:
    """A loop that keeps batches for three steps, and uses them again."""
    found, held = [], []
    for batch in loader:
        held.append(batch)
        if len(held) > 3:
            found.append(sums(held.pop(0)))
        del batch
    return found + [sums(batch) for batch in held]


def streams_in_turn(loader: Any) -> list[torch.Tensor]:
    """A loop that changes its stream from step to step."""
    streams = [torch.Stream(device=torch.accelerator.current_accelerator()) for _ in range(3)]
    found = []
    first = torch.accelerator.current_stream()
    for number, batch in enumerate(over_streams(loader, streams)):
        found.append(sums(batch))
        first.wait_stream(streams[number % 3])
        del batch
    torch.accelerator.set_stream(first)
    torch.accelerator.synchronize()
    return found


def over_streams(loader: Any, streams: list[torch.Stream]) -> Iterator[Any]:
    """Ask for each batch with another stream current."""
    iterator = iter(loader)
    for number in range(STEPS):
        torch.accelerator.set_stream(streams[number % len(streams)])
        yield next(iterator)


def broken_off(loader: Any) -> list[torch.Tensor]:
    """A pass that is broken off, then a whole one."""
    for number, batch in enumerate(loader):
        sums(batch)
        if number == 2:
            break
    del batch
    return ahead(loader)


LOOPS: list[Callable[[Any], list[torch.Tensor]]] = [ahead, kept, streams_in_turn, broken_off]


def wrong_values(device: str) -> list[str]:
    """The loops in which a value came out wrong."""
    source = batches()
    found = []
    for loop in LOOPS:
        loader = AsynchronousLoader(source, device)
        values = [one.tolist() for one in loop(loader)]
        if values != [right(number) for number in range(STEPS)]:
            found.append(loop.__name__)
        loader.close()
    return found


def forgetful(source: list[Any], device: str) -> list[torch.Tensor]:
    """A loader that does not wait for its copies: it has to be caught."""
    side = torch.Stream(device=device)
    found = []
    for batch in source:
        outer = torch.accelerator.current_stream()
        torch.accelerator.set_stream(side)
        image = batch["locked"].to(device, non_blocking=True)
        torch.accelerator.set_stream(outer)
        found.append(image.sum())
    return found


# ---- the sanitizer


class OneRecord:
    """Calls of an event handler from several threads, one at a time."""

    def __init__(self, handler: Any) -> None:
        self._handler, self._lock = handler, threading.RLock()
        self.found = 0

    def _handle_kernel_launch(self, *arguments: Any) -> list[Any]:
        with self._lock:
            errors: list[Any] = self._handler._handle_kernel_launch(*arguments)
        self.found += len(errors)
        for error in errors[:1]:
            print(error, file=sys.stderr)
        return []  # counted, and not raised in the middle of a loader


@contextlib.contextmanager
def in_every_thread(mode: Callable[[], Any]) -> Iterator[None]:
    """Enter what `mode` gives in this thread, and in each one that starts within the block."""
    original = threading.Thread.run

    def run(self: threading.Thread) -> None:
        with mode():
            original(self)

    threading.Thread.run = run  # type: ignore[method-assign]
    try:
        with mode():
            yield
    finally:
        threading.Thread.run = original  # type: ignore[method-assign]


def sanitized(device: str) -> int:
    """How many accesses of ours the sanitizer finds unordered.

    Raises:
        RuntimeError: If it does not find those of the forgetful loader.
    """
    from torch.cuda._sanitizer import CUDASanitizerDispatchMode

    first = CUDASanitizerDispatchMode()  # registers for CUDA's events, once
    record = OneRecord(first.event_handler)

    def mode() -> Any:
        one = CUDASanitizerDispatchMode.__new__(CUDASanitizerDispatchMode)
        torch.utils._python_dispatch.TorchDispatchMode.__init__(one)
        one.event_handler = record
        return one

    with in_every_thread(mode):
        with contextlib.redirect_stderr(io.StringIO()):
            forgetful(batches(), device)
            torch.accelerator.synchronize()
        if not record.found:
            raise RuntimeError("the sanitizer does not see a loader that never waits")
        print(f"a loader that never waits: {record.found} reports, as it should be")
        record.found = 0
        wrong = wrong_values(device)
        torch.accelerator.synchronize()
    print(f"sidestream: {record.found} reports, wrong values in: {wrong or 'no loop'}")
    return record.found + len(wrong)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sanitize", action="store_true")
    options = parser.parse_args()
    device = str(torch.accelerator.current_accelerator())
    if options.sanitize:
        return 1 if sanitized(device) else 0
    wrong = wrong_values(device)
    print(f"wrong values in: {wrong or 'no loop'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
