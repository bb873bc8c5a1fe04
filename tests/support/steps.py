"""Training loops in small, for the engine's tests: every value is checked on the device."""

import contextlib

import torch

MEBIBYTE = 1 << 20


class Checks:
    """Compares what a batch holds with what it should, in kernels of the consumer's stream.

    Nothing waits for the device before `wrong` is called, as in a training loop that runs ahead.
    """

    def __init__(self):
        self._results = []

    def add(self, tensor, value):
        """Queue the comparison of every element with one value."""
        self._results.append((tensor == value).all())

    def wrong(self):
        """How many of the comparisons failed."""
        torch.accelerator.synchronize()
        return sum(not result.item() for result in self._results)

    def __len__(self):
        return len(self._results)


def batches(count, size_bytes=MEBIBYTE, *, first=0):
    """Batches of float32, each filled with its number."""
    return [torch.full((size_bytes // 4,), float(first + i)) for i in range(count)]


@contextlib.contextmanager
def on_stream(stream):
    """Make a stream current that waits for the one that was, and the other way round after."""
    outer = torch.accelerator.current_stream()
    stream.wait_event(outer.record_event())
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        outer.wait_event(stream.record_event())
        torch.accelerator.set_stream(outer)
