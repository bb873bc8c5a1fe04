"""What `SIDESTREAM_VERIFY=1` costs: time a batch and device memory, as ratios within this run.

    scripts/bench verify            about half a minute

On the simulated accelerator with copies and kernels that take no simulated time, so that all that
is seen is the host's own work; a device whose steps take longer than that hides it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from typing import Any

import harness
import torch

import sidestream.simulator as simulator
from sidestream import AsynchronousLoader

STEPS = 60


def batches(count: int, size_bytes: int) -> list[list[torch.Tensor]]:
    """What every step of the loop gets: tensors of float32."""
    batch = [torch.ones(size_bytes // 4) for _ in range(count)]
    return [batch] * STEPS


def epoch(source: Any, *, verify: bool) -> tuple[float, int]:
    """Seconds a batch, and the most device memory reserved [bytes]."""
    os.environ["SIDESTREAM_VERIFY"] = "1" if verify else "0"
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_reserved()
    loader = AsynchronousLoader(source, "sim")
    for _ in loader:  # the first pass allocates
        pass
    start = time.perf_counter()
    for batch in loader:
        del batch
    torch.accelerator.synchronize()
    seconds = (time.perf_counter() - start) / STEPS
    loader.close()
    return seconds, torch.accelerator.max_memory_reserved() - before


def measure(options: argparse.Namespace) -> Any:
    """All kinds of batches."""
    simulator.enable()
    torch.set_num_threads(1)
    simulator.configure(detect_races=False, guard_host=False, poison_memory=False)
    simulator.configure(poison_copies=False, python_lines=False)
    rows = []
    for count, size_bytes in ((1, 1 << 20), (1, 16 << 20), (2, 256 << 10), (64, 4 << 10)):
        source = batches(count, size_bytes)
        pairs = [  # side by side: the machine is not always as fast
            (epoch(source, verify=False), epoch(source, verify=True))
            for _ in range(3 if options.quick else 7)
        ]
        ratio = statistics.median(on[0] / off[0] for off, on in pairs)
        memory = statistics.median(on[1] / off[1] for off, on in pairs)
        off_s = statistics.median(off[0] for off, _ in pairs)
        rows.append(
            {
                "tensors": count,
                "tensor_bytes": size_bytes,
                "off_s": off_s,
                "time_ratio": ratio,
                "memory_ratio": memory,
            }
        )
        print(
            f"{count:3} x {size_bytes >> 10:6} KiB: {off_s * 1e3:7.2f} ms a batch without; "
            f"with it {ratio:5.1f} times the time, {memory:4.1f} times the device memory"
        )
    return rows


if __name__ == "__main__":
    sys.exit(harness.run("verify", measure, __doc__, devices=("sim",)))
