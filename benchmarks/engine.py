"""Staging, transfer and release on the simulated accelerator: how near to what is possible.

    scripts/bench engine            about a minute

Every ratio is of two things measured in this run. Other programs on the machine disturb it.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

import harness
import torch

import sidestream.simulator as simulator
from sidestream import AsynchronousLoader
from sidestream.transfer import StreamTransfer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

MEBIBYTE = 1 << 20
STEPS = 24


class Reading:
    """A source that takes its time for every batch."""

    def __init__(self, batch: torch.Tensor, seconds: float) -> None:
        self.batch, self.seconds = batch, seconds

    def __iter__(self) -> Iterator[torch.Tensor]:
        due = time.perf_counter()
        for _ in range(STEPS):
            due = max(due, time.perf_counter() - self.seconds) + self.seconds
            time.sleep(max(0.0, due - time.perf_counter()))
            yield self.batch


def overlap(read_ms: float, copy_ms: float, compute_ms: float, *, in_step: bool) -> dict[str, Any]:
    """Time of 24 steps against the slowest stage 24 times and the others once."""
    batch = torch.zeros(MEBIBYTE // 4)
    source: Any = Reading(batch, read_ms / 1e3) if read_ms else [batch] * STEPS
    stages = [read_ms, copy_ms, compute_ms]
    ideal = max(stages) * STEPS + sum(stages) - max(stages)
    simulator.races()
    with simulator.settings(h2d_bytes_per_s=MEBIBYTE / (copy_ms / 1e3)):
        for warm in AsynchronousLoader([batch] * 4, "sim"):
            del warm
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()
        torch.accelerator.reset_peak_memory_stats()
        result = torch.zeros(MEBIBYTE // 4, device="sim")
        torch.accelerator.synchronize()
        reserved = torch.accelerator.memory_reserved()
        start = time.perf_counter()
        for moved in AsynchronousLoader(source, "sim", buffer_size=2):
            result.copy_(moved)
            simulator.delay(compute_ms / 1e3)
            if in_step:
                torch.accelerator.current_stream().synchronize()
        torch.accelerator.synchronize()
        took = (time.perf_counter() - start) * 1e3
    return {
        "read_ms": read_ms,
        "copy_ms": copy_ms,
        "compute_ms": compute_ms,
        "in_step": in_step,
        "took_ms": took,
        "ideal_ms": ideal,
        "over_ideal": took / ideal,
        "sum_over_ideal": sum(stages) * STEPS / ideal,
        "races": len(simulator.races()),
        "peak_batches": (torch.accelerator.max_memory_reserved() - reserved) / MEBIBYTE,
    }


def thread_seconds(function: Callable[[], object], *, rounds: int = 9, calls: int = 30) -> float:
    """The median over rounds of the calling thread's own CPU time for one call [s]."""
    function()
    seconds = []
    for _ in range(rounds):
        torch.accelerator.synchronize()
        start = time.thread_time()
        for _ in range(calls):
            function()
        seconds.append((time.thread_time() - start) / calls)
    return statistics.median(seconds)


def packing(count: int, size_bytes: int) -> dict[str, Any]:
    """What a batch of small tensors costs the loader's thread, against one by one."""
    device = torch.device("sim", 0)
    batch = [torch.randn(size_bytes // 4) for _ in range(count)]
    transfer = StreamTransfer(device, None, None, 2)
    one = torch.randn(count * size_bytes // 4)
    with transfer.reading():
        packed = thread_seconds(lambda: transfer.load(batch))
        floor = thread_seconds(lambda: transfer.load(one))
        separate = thread_seconds(
            lambda: [tensor.pin_memory().to(device, non_blocking=True) for tensor in batch]
        )
    transfer.close()
    return {
        "tensors": count,
        "size_bytes": size_bytes,
        "one_by_one_us": separate * 1e6,
        "packed_us": packed * 1e6,
        "one_tensor_us": floor * 1e6,
        "packed_over_one_by_one": packed / separate,
    }


def staging(size_bytes: int) -> dict[str, Any]:
    """Bytes per second into page-locked memory, against a plain copy with all threads."""
    source = torch.ones(size_bytes, dtype=torch.uint8)
    target = torch.empty(size_bytes, dtype=torch.uint8)
    transfer = StreamTransfer(torch.device("sim", 0), None, None, 1)
    torch.set_num_threads(os.cpu_count() or 1)
    plain, staged = [], []
    with simulator.settings(guard_host=False, poison_copies=False, poison_memory=False):
        for _ in range(13):  # in turn; the first rounds pay for fresh memory
            start = time.perf_counter()
            target.copy_(source)
            plain.append(time.perf_counter() - start)
            with transfer.reading():
                # The simulated copies are memcpy too; a device's would not take the host's time.
                simulator.delay(0.5)
                start = time.perf_counter()
                transfer.load(source)
                staged.append(time.perf_counter() - start)
            torch.accelerator.synchronize()
    transfer.close()
    torch.set_num_threads(1)
    plain_s, staged_s = statistics.median(plain[5:]), statistics.median(staged[5:])
    return {
        "size_bytes": size_bytes,
        "plain_bytes_per_s": size_bytes / plain_s,
        "staged_bytes_per_s": size_bytes / staged_s,
        "staged_over_plain": plain_s / staged_s,
    }


def show(result: dict[str, Any]) -> None:
    """Print the result as Markdown tables."""
    rows = [
        (
            f"{one['read_ms']} / {one['copy_ms']} / {one['compute_ms']}",
            "in step" if one["in_step"] else "ahead",
            f"{one['took_ms']:.0f}",
            f"{one['over_ideal']:.3f}",
            f"{one['sum_over_ideal']:.2f}",
            one["races"],
            f"{one['peak_batches']:.1f}",
        )
        for one in result["overlap"]
    ]
    head = ("read / copy / compute ms", "consumer", "24 steps ms", "over ideal")
    head += ("plain loop over ideal", "races", "peak batches")
    print("\n".join(harness.table(head, rows)) + "\n")
    rows = [
        (
            f"{one['tensors']} of {one['size_bytes']} bytes",
            f"{one['one_by_one_us']:.0f}",
            f"{one['packed_us']:.0f}",
            f"{one['packed_over_one_by_one']:.2f}",
            f"{one['one_tensor_us']:.0f}",
        )
        for one in result["packing"]
    ]
    head = ("small tensors", "one by one us", "packed us", "ratio")
    print("\n".join(harness.table((*head, "one tensor of the same bytes us"), rows)))
    one = result["staging"]
    print(
        f"\nStaging {one['size_bytes'] >> 20} MiB: {one['staged_bytes_per_s'] / 1e9:.1f} GB/s, "
        f"{one['staged_over_plain']:.2f} of a plain copy ({one['plain_bytes_per_s'] / 1e9:.1f})"
    )


def measure(options: argparse.Namespace) -> Any:
    """Overlap, packing and staging."""
    simulator.enable()
    torch.set_num_threads(1)
    stages = [(0, 20, 20), (0, 10, 40), (0, 40, 10), (20, 20, 20)]
    result = {
        "overlap": [
            overlap(*times, in_step=in_step) for times in stages for in_step in (False, True)
        ],
        "packing": [packing(*kind) for kind in ((64, 4096), (8, 4096), (500, 128))],
        "staging": staging((64 if options.quick else 256) * MEBIBYTE),
    }
    show(result)
    return result


if __name__ == "__main__":
    sys.exit(harness.run("engine", measure, __doc__, devices=("sim",)))
