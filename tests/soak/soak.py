"""Hours of random use on the simulated accelerator: every value checked, nothing may grow.

    scripts/soak 30                                 minutes
    python tests/soak/soak.py --seconds 60 --json build/soak.json

Random programs (sources, sizes, kept batches, stream switches, breaks, slow copies and kernels),
one in eight with SIDESTREAM_VERIFY=1; random faults out of docs/faults.md; worker processes; and
one loader that lives through all of it. From time to time everything is let go and counted:
resident memory, threads, file descriptors, and bytes on the device and page-locked. Exit code 1,
and the reason, if a value is wrong, a race is reported, or something is not flat.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import gc
import json
import os
import platform
import random
import statistics
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "simulator" / "engine")]

from sidestream import AsynchronousLoader, simulator  # noqa: E402

RESIDENT_GROWTH = 0.02
RESIDENT_GROWTH_BYTES = 6 << 20
"""Resident memory may grow by this much between the second quarter of the time and the last; the
larger of the two: heaps settle for minutes."""

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "2"}
"""The C library keeps up to 64 MiB that was freed in the arena of each thread, and in how many it
does is chance. With these it gives large blocks back, and what grows is not its doing."""


def sample(started: float) -> dict[str, Any]:
    """What is held now that everything was let go."""
    gc.collect()
    torch.accelerator.synchronize()
    resident_used = _resident_bytes()
    device, pinned = torch.accelerator.memory_allocated(), simulator.pinned_memory()
    found = {
        "at_s": round(time.monotonic() - started, 1),
        "resident_bytes": resident_used,
        "device_bytes": device,
        "device_reserved_bytes": torch.accelerator.memory_reserved(),
        "page_locked_bytes": pinned.bytes,
        "page_locked_reserved_bytes": pinned.reserved_bytes,
        "threads": threading.active_count(),
        "native_threads": len(list(Path("/proc/self/task").iterdir())),
        "file_descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "children": _children(),
    }
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    ctypes.CDLL(None).malloc_trim(0)
    found["resident_trimmed_bytes"] = _resident_bytes()
    return found


def _resident_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    kinds = dict(line.split(":") for line in status if line.startswith(("RssAnon", "RssShmem")))
    return sum(int(text.split()[0]) for text in kinds.values()) * 1024


def _children() -> int:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return len(path.read_text(encoding="ascii").split())


def not_flat(samples: list[dict[str, Any]]) -> list[str]:
    """What grew, in words."""
    found = [
        f"{name} was {[one[name] for one in samples]}"
        for name in ("device_bytes", "page_locked_bytes", "threads", "children")
        if len({one[name] for one in samples}) > 1
    ]
    count = len(samples)
    second, fourth = (samples[count * n // 4 : count * (n + 1) // 4] for n in (1, 3))
    found += [
        f"{name} was {[one[name] for one in samples]}"
        for name in ("file_descriptors", "native_threads")  # a few come and go
        if min(one[name] for one in fourth) > max(one[name] for one in second)
    ]
    first, last = (
        statistics.median(one["resident_trimmed_bytes"] for one in quarter)
        for quarter in (second, fourth)
    )
    if last - first > max(RESIDENT_GROWTH * first, RESIDENT_GROWTH_BYTES):
        found.append(f"resident memory grew from {first} to {last} bytes")
    return found


class Soak:
    """What runs in turn, and what it has counted."""

    def __init__(self, seed: int) -> None:
        from support import faults

        self.random = random.Random(seed)
        self.faults = faults
        self.tally: collections.Counter[str] = collections.Counter()
        self.rows = torch.arange(4000, dtype=torch.float32).reshape(40, 100)
        self.loader = AsynchronousLoader(
            DataLoader(TensorDataset(self.rows), batch_size=4), "sim", buffer_size=2
        )
        self.leaked: list[Any] = []

    def step(self) -> None:
        """One of the things."""
        way = self.random.random()
        if way < 0.7:
            self.program()
        elif way < 0.9:
            self.fault()
        elif way < 0.99:
            self.lasting_loader()
        else:
            self.workers()
        races = simulator.races()
        assert not races, races[0]

    def program(self) -> None:
        from test_programs import Program, check

        verify = self.random.random() < 1 / 8
        with _verifying(verify):
            seed = self.random.getrandbits(48)
            self.tally["tensors"] += check(Program(random.Random(seed)), seed)
        self.tally["programs"] += 1
        self.tally["programs_verified"] += verify

    def fault(self) -> None:
        fault = self.random.choice([one for one in self.faults.FAULTS if "sim" in one.devices])
        moment = self.random.choice(list(fault.expected))
        case = self.faults.Case(moment, self.random.choice(fault.buffer_sizes), "sim")
        outcome = self.faults.check_released(lambda: fault.run(case))
        assert outcome == fault.expected[moment], (fault.name, case, outcome)
        self.tally["faults"] += 1

    def lasting_loader(self) -> None:
        stop = self.random.choice([None, 0, 3])
        resumes = stop is not None and self.random.random() < 0.3
        number = self.expect_rows(0, stop)
        if resumes:
            self.loader.load_state_dict(self.loader.state_dict())
            number = self.expect_rows(number + 1, None)
        assert number == (9 if stop is None or resumes else stop)
        self.tally["passes_of_one_loader"] += 1

    def expect_rows(self, first: int, stop: int | None) -> int:
        number = -1
        for number, (batch,) in enumerate(self.loader, first):
            assert torch.equal(batch.to("cpu"), self.rows[4 * number : 4 * number + 4])
            self.tally["tensors"] += 1
            if number == stop:
                break
        return number

    def workers(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forks beside threads
            data = DataLoader(TensorDataset(self.rows), batch_size=4, num_workers=2)
            loader = AsynchronousLoader(data, "sim")
            for number, (batch,) in enumerate(loader):
                assert torch.equal(batch.to("cpu"), self.rows[4 * number : 4 * number + 4])
            assert number == 9
            loader.close()
        self.tally["passes_with_workers"] += 1

    def sample(self, started: float) -> dict[str, Any]:
        self.loader.close()
        return sample(started)


@contextlib.contextmanager
def _verifying(on: bool):
    os.environ["SIDESTREAM_VERIFY"] = "1" if on else "0"
    try:
        yield
    finally:
        os.environ["SIDESTREAM_VERIFY"] = "0"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--samples", type=int, default=24)
    parser.add_argument(
        "--leak", choices=["memory", "thread", "device", "file"], help="to see that it is noticed"
    )
    options = parser.parse_args()
    if not os.environ.items() >= ALLOCATOR.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    simulator.enable()
    torch.set_num_threads(1)
    soak = Soak(seed)
    warnings.simplefilter("error")
    for _ in range(
        40
    ):  # what is made at first use: a thread behind each stream of the pool, for one
        with torch.Stream(device="sim"):
            torch.zeros(1, device="sim")
    for _ in range(20):
        soak.step()
    soak.workers()
    started = time.monotonic()
    samples = [soak.sample(started)]
    while samples[-1]["at_s"] < options.seconds:
        until = started + options.seconds * len(samples) / (options.samples - 1)
        soak.step()
        while time.monotonic() < until:
            soak.step()
        if options.leak:
            soak.leaked.append(leak(options.leak))
        samples.append(soak.sample(started))
        _say(f"{samples[-1]['at_s']:7.0f} s  {dict(soak.tally)}")
    complaints = not_flat(samples)
    result = {
        "seed": seed,
        "seconds": samples[-1]["at_s"],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "done": dict(soak.tally),
        "wrong_values": 0,  # the first one would have raised
        "races": 0,
        "not_flat": complaints,
        "samples": samples,
    }
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name in samples[0]:
        values = [one[name] for one in samples]
        _say(
            f"{name:<28} first {values[0]:>12}  least {min(values):>12}  most {max(values):>12}"
            f"  last {values[-1]:>12}"
        )
    _say("\n".join([f"seed {seed}: {dict(soak.tally)}, 0 wrong values, 0 races", *complaints]))
    return int(bool(complaints))


def leak(kind: str) -> Any:
    """What a leak would look like."""
    if kind == "memory":
        return b"x" * (12 << 20)
    if kind == "device":
        return torch.zeros(1, device="sim")
    if kind == "file":
        return os.open(os.devnull, os.O_RDONLY)
    event = threading.Event()
    thread = threading.Thread(target=event.wait, name="test-leak", daemon=True)
    thread.start()
    return thread


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
