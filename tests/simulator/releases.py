"""Seven ways of a prefetcher to give a batch's device memory back, and what each costs.

    python tests/simulator/releases.py        prints the table

Each way is a small loader of its own: it takes page-locked batches, copies them on a side stream
and hands them over. The consumer never synchronises, so the CPU runs far ahead of the device, as
in real training; a loader's queue is then empty whenever the consumer asks, which is why these
loaders need no thread to behave like one with a thread.
"""

from __future__ import annotations

import collections
import gc
import sys
from dataclasses import dataclass

import torch

from sidestream import simulator

ACC = torch.accelerator
STEPS = 24
ROWS = 1 << 18
BATCH_BYTES = ROWS * 4


def no_wait(batches, side):
    """The consumer's stream does not wait for the copy."""
    for host in batches:
        with side:
            x = host.to("sim", non_blocking=True)
        yield x
        del x


def wait_only(batches, side):
    """It waits; but freed memory goes back to the side stream, whatever still reads it."""
    for host in batches:
        with side:
            x = host.to("sim", non_blocking=True)
        ACC.current_stream().wait_stream(side)
        yield x
        del x


def keep_four(batches, side):
    """The host waits for the copy and keeps the last four batches alive, hoping that is enough."""
    kept = collections.deque(maxlen=4)
    for host in batches:
        with side:
            x = host.to("sim", non_blocking=True)
        side.synchronize()
        kept.append(x)
        yield x
        del x


def record_stream(batches, side):
    """Right, but memory is given back only when the device gets there: it grows with the lead."""
    for host in batches:
        with side:
            x = host.to("sim", non_blocking=True)
        current = ACC.current_stream()
        current.wait_stream(side)
        x.record_stream(current)
        yield x
        del x


def allocate_on_consumer(batches, side):
    """B: the memory is the consumer stream's, so the copy waits for all that is queued there."""
    for host in batches:
        current = ACC.current_stream()
        x = torch.empty(host.shape, device="sim")
        side.wait_stream(current)
        with side:
            x.copy_(host, non_blocking=True)
        current.wait_stream(side)
        yield x
        del x


def release_before_take(batches, side):
    """A2: the fence is queued before the next copy, which therefore waits for the last step."""
    held = collections.deque()
    for host in batches:
        side.wait_stream(ACC.current_stream())
        held.clear()  # given back behind the fence
        with side:
            x = host.to("sim", non_blocking=True)
        ACC.current_stream().wait_stream(side)
        held.append(x.untyped_storage())
        yield x
        del x


def release_after_take(batches, side):
    """A3: the next copy is queued first, then the fence; the fence holds up the copy after it."""
    held = collections.deque()
    for host in batches:
        with side:
            x = host.to("sim", non_blocking=True)
            copied = side.record_event()
        if len(held) == 2:
            side.wait_stream(ACC.current_stream())
            held.popleft()
        ACC.current_stream().wait_event(copied)
        held.append(x.untyped_storage())  # a real loader also watches who else still holds it
        yield x
        del x
    side.wait_stream(ACC.current_stream())


WAYS = {
    "no wait": no_wait,
    "wait only": wait_only,
    "host synchronize, last 4 kept": keep_four,
    "wait + record_stream": record_stream,
    "B: allocate on the consumer's stream": allocate_on_consumer,
    "A2: release before the next is taken": release_before_take,
    "A3: release after the next is taken": release_after_take,
}


@dataclass(frozen=True)
class Result:
    step_ms: float
    """Virtual time per step."""
    wrong: int
    """Batches whose sum came out wrong, of `STEPS`."""
    races: list[simulator.Race]
    reserved: float
    """Peak of reserved device memory [batches]."""


def pinned_batches():
    return [torch.full((ROWS,), float(i + 1)).pin_memory() for i in range(STEPS)]


def measure(make_loader, *, side=None, copy_s=0.01, compute_s=0.01, get=lambda batch: batch):
    """Run one epoch of `make_loader()` against a consumer that computes for `compute_s` a step.

    Where the loader's stream is known, the device starts late, with the CPU as far ahead as it
    gets: what comes out then does not depend on the speed of the machine.
    """
    gc.collect()
    ACC.synchronize()
    ACC.empty_cache()
    ACC.reset_peak_memory_stats()
    before = ACC.memory_reserved()
    simulator.races()
    sums = []
    start, end = (torch.Event("sim", enable_timing=True) for _ in range(2))
    with simulator.settings(h2d_bytes_per_s=BATCH_BYTES / copy_s):
        if side is not None:
            simulator.delay(0.1)
        start.record()
        if side is not None:
            side.wait_event(start)
        for batch in make_loader():
            x = get(batch)
            simulator.delay(compute_s)
            sums.append(x.sum() / ROWS)
            del x, batch
        end.record()
        ACC.synchronize()
    reserved = (ACC.max_memory_reserved() - before) / BATCH_BYTES
    step_ms = start.elapsed_time(end) / STEPS
    races = simulator.races()
    values = [s.item() for s in sums]
    wrong = sum(value != i + 1 for i, value in enumerate(values)) + abs(STEPS - len(values))
    return Result(step_ms, wrong, races, reserved)


def measure_way(name, **times):
    batches, side = pinned_batches(), torch.Stream(device="sim")
    return measure(lambda: WAYS[name](batches, side), side=side, **times)


def table():
    """The table, as lines of text."""
    yield f"{'way':38} 10 / 10 ms      5 / 20          20 / 5          races   reserved"
    for name in WAYS:
        times = [(0.01, 0.01), (0.005, 0.02), (0.02, 0.005)]
        results = [measure_way(name, copy_s=copy, compute_s=compute) for copy, compute in times]
        cells = "  ".join(f"{r.step_ms:4.1f}, {r.wrong:2} wrong" for r in results)
        races = sorted(len(r.races) for r in results)
        reserved = sorted(r.reserved for r in results)
        ends = f"{races[0]:2} to {races[-1]:2}  {reserved[0]:2.0f} to {reserved[-1]:2.0f}"
        yield f"{name:38} {cells}  {ends}"


if __name__ == "__main__":
    simulator.enable()
    torch.set_num_threads(1)
    measure_way("no wait")  # warms up
    for line in table():
        sys.stdout.write(line + "\n")
