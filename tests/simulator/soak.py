"""Random multi-stream programs against an independent oracle.

    python tests/simulator/soak.py --programs 5000

Each program copies, computes, overwrites, frees and reads back on three streams, with a ring of
two page-locked buffers, and draws every ordering edge that it needs: event waits, host
synchronisations, record_stream. As it stands it must give the CPU's values and no report. Then
one edge is left out, and the detector must report a race exactly if the oracle finds one.

The oracle knows nothing of clocks or of the simulator: it keeps, for each operation, the set of
all operations that precede it, as the bits of an integer. It judges memory at the free, which is
what `strict` is for.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sidestream import simulator

ACC = torch.accelerator
TOLERANCE = 1e-4


class Oracle:
    """Which operations precede which, as bit sets; counts accesses in no order."""

    def __init__(self):
        self.before_next = {}  # stream -> everything that precedes its next operation
        self.host = 0
        self.operations = 0
        self.accesses = {}  # name of a tensor -> [(operation, writes)]
        self.races = 0

    def operation(self, stream, reads=(), writes=(), promised=0):
        before = self.before_next.get(stream, 0) | self.host
        number = self.operations
        self.operations += 1
        self.before_next[stream] = before | 1 << number
        known = before | promised
        for name in {*reads, *writes}:
            earlier = self.accesses.setdefault(name, [])
            clashes = [n for n, wrote in earlier if wrote or name in writes]
            self.races += sum(not known >> n & 1 for n in clashes)
            earlier.append((number, name in writes))
        return number

    def record(self, stream):
        self.before_next[stream] = self.before_next.get(stream, 0) | self.host
        return self.before_next[stream]

    def wait(self, stream, recorded):
        self.before_next[stream] = self.record(stream) | recorded

    def synchronize(self, recorded):
        self.host |= recorded

    def host_touches(self, operation):
        self.races += operation is not None and not self.host >> operation & 1


@dataclass
class Tensor:
    """A tensor on the device, its value on the CPU, and who has used it."""

    on_device: torch.Tensor
    expected: torch.Tensor
    home: torch.Stream  # the stream it was allocated on
    written: tuple  # (stream, recording) of the last write
    reads: list = field(default_factory=list)
    owed: list = field(default_factory=list)  # streams that owe a record_stream, paid or not
    recorded: list = field(default_factory=list)  # those that paid


@dataclass(frozen=True)
class Outcome:
    error: float
    """Largest difference from the CPU's values; infinite for NaN."""
    races: list[simulator.Race]
    edges: int
    racy: bool
    """The oracle's verdict."""


class Program:
    """One random program; `drop` is the number of the edge to leave out."""

    def __init__(self, seed, drop=None):
        self.random = random.Random(seed)
        self.drop = drop
        self.edges = 0
        self.device = self.random.choice(["sim:0", "sim:1"])
        self.streams = [torch.Stream(device=self.device) for _ in range(3)]
        self.oracle = Oracle()
        self.tensors = {}
        self.created = 0
        self.ring = [torch.empty(4096, pin_memory=True) for _ in range(2)]
        self.ring_use = [None, None]  # (recording, the oracle's number of the copy)
        self.error = 0.0

    def run(self, steps):
        r = self.random
        settings = {
            "kernel_s": r.choice([0, 0, 5e-5, 2e-4]),
            "h2d_bytes_per_s": r.choice([float("inf"), 1e8, 1e9]),
            "d2h_bytes_per_s": r.choice([float("inf"), 1e8]),
        }
        simulator.races(clear=True)
        with simulator.settings(strict=True, **settings):
            for _ in range(steps):
                self.step(r.choice(self.streams), r.random())
        for device in range(ACC.device_count()):
            ACC.synchronize(device)
        races = simulator.races(clear=True)
        for t in self.tensors.values():
            self.compare(t.on_device.cpu(), t.expected)
        return Outcome(self.error, races, self.edges, self.oracle.races > 0)

    def step(self, stream, dice):
        if dice < 0.25 or len(self.tensors) < 2:
            self.upload(stream)
        elif dice < 0.55:
            self.combine(stream)
        elif dice < 0.75:
            self.overwrite(stream)
        elif dice < 0.95:
            self.free()
        else:
            self.download(stream)

    # ---- edges

    def edge(self):
        """Whether the next edge is drawn: all but the dropped one are."""
        self.edges += 1
        return self.edges != self.drop

    def record(self, stream):
        return stream.record_event(), self.oracle.record(stream)

    def wait(self, stream, recording):
        if self.edge():
            stream.wait_event(recording[0])
            self.oracle.wait(stream, recording[1])

    def host_waits(self, recording):
        if self.edge():
            recording[0].synchronize()
            self.oracle.synchronize(recording[1])

    def before_read(self, name, stream):
        writer, recording = self.tensors[name].written
        if writer != stream:
            self.wait(stream, recording)

    def before_write(self, name, stream):
        self.before_read(name, stream)
        for reader, recording in self.tensors[name].reads:
            if reader != stream:
                self.wait(stream, recording)

    def note_use(self, name, stream):
        t = self.tensors[name]
        if stream == t.home or stream in t.owed:
            return
        t.owed.append(stream)
        if self.edge():
            t.on_device.record_stream(stream)
            t.recorded.append(stream)

    # ---- operations

    def pick(self):
        return self.random.choice(list(self.tensors))

    def add(self, on_device, expected, stream):
        name = f"t{self.created}"
        self.tensors[name] = Tensor(on_device, expected, stream, (stream, self.record(stream)))

    def upload(self, stream):
        size = self.random.choice([256, 1024, 4096])
        generator = torch.Generator().manual_seed(self.random.getrandbits(31))
        expected = torch.randn(size, generator=generator)
        slot = self.created % 2
        if self.ring_use[slot]:
            recording, copy = self.ring_use[slot]
            self.host_waits(recording)
            self.oracle.host_touches(copy)
        self.created += 1
        self.ring[slot][:size].copy_(expected)
        with stream:
            x = self.ring[slot][:size].to(self.device, non_blocking=True)
        copy = self.oracle.operation(stream, writes=[f"t{self.created}"])
        self.add(x, expected, stream)
        self.ring_use[slot] = (self.record(stream), copy)

    def combine(self, stream):
        a, b = self.pick(), self.pick()
        for name in (a, b):
            self.before_read(name, stream)
        for name in (a, b):
            self.note_use(name, stream)
        self.created += 1
        one, two = self.tensors[a], self.tensors[b]
        size = min(one.expected.numel(), two.expected.numel())
        with stream:
            x = one.on_device[:size] * 0.5 + two.on_device[:size]
        self.oracle.operation(stream, reads=[a, b], writes=[f"t{self.created}"])
        for t in (one, two):
            t.reads.append((stream, self.record(stream)))
        self.add(x, one.expected[:size] * 0.5 + two.expected[:size], stream)

    def overwrite(self, stream):
        name = self.pick()
        self.before_write(name, stream)
        self.note_use(name, stream)
        t = self.tensors[name]
        with stream:
            t.on_device.mul_(0.5).add_(1.0)
        self.oracle.operation(stream, writes=[name])
        t.expected = t.expected * 0.5 + 1.0
        t.written, t.reads = (stream, self.record(stream)), []

    def free(self):
        name = self.pick()
        t = self.tensors.pop(name)
        promised = 0
        for stream in t.recorded:
            promised |= self.oracle.record(stream)
        self.oracle.operation(t.home, writes=[name], promised=promised)

    def download(self, stream):
        name = self.pick()
        self.before_read(name, stream)
        self.note_use(name, stream)
        t = self.tensors[name]
        with stream:
            host = t.on_device.to("cpu", non_blocking=True)
        copy = self.oracle.operation(stream, reads=[name])
        recording = self.record(stream)
        t.reads.append((stream, recording))
        self.host_waits(recording)
        self.oracle.host_touches(copy)
        self.compare(host, t.expected)

    def compare(self, got, expected):
        difference = (got - expected).abs().max().item()
        self.error = max(self.error, difference if difference == difference else float("inf"))


@dataclass
class Tally:
    """What became of many programs."""

    programs: int = 0
    wrong: int = 0
    false_reports: int = 0
    broken: int = 0
    racy: int = 0
    reported: int = 0
    missed: int = 0
    falsely_reported: int = 0
    visibly_wrong: int = 0
    wrong_unreported: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def ok(self):
        return not self.complaints

    def run(self, seed, steps=60):
        self.programs += 1
        outcome = Program(seed).run(steps)
        assert not outcome.racy, "the program itself leaves an edge out"
        if outcome.error > TOLERANCE:
            self.wrong += 1
            self.complaints.append(f"program {seed}: error {outcome.error}")
        if outcome.races:
            self.false_reports += 1
            self.complaints.append(f"program {seed}: false report {outcome.races[0]}")
        if outcome.edges:
            self.run_broken(seed, random.Random(seed).randint(1, outcome.edges), steps)

    def run_broken(self, seed, drop, steps):
        self.broken += 1
        outcome = Program(seed, drop).run(steps)
        reported, wrong = bool(outcome.races), outcome.error > TOLERANCE
        self.racy += outcome.racy
        self.reported += outcome.racy and reported
        self.missed += outcome.racy and not reported
        self.falsely_reported += reported and not outcome.racy
        self.visibly_wrong += wrong
        self.wrong_unreported += wrong and not reported
        if reported != outcome.racy:
            verdict = "racy" if outcome.racy else "ordered"
            self.complaints.append(
                f"program {seed} without edge {drop}: {verdict}, {len(outcome.races)} reports"
            )

    def __str__(self):
        return (
            f"{self.programs} programs: {self.wrong} with wrong values, {self.false_reports} with "
            f"false reports; {self.broken} with one edge left out: {self.racy} racy, of these "
            f"{self.reported} reported, {self.missed} missed; {self.falsely_reported} false "
            f"reports; {self.visibly_wrong} with visibly wrong values, {self.wrong_unreported} of "
            "them unreported"
        )


def resident_bytes():
    """Resident memory but for mapped files, with simulator's and C library's caches empty."""
    gc.collect()
    ACC.empty_cache()
    ACC.empty_host_cache()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text().splitlines()
    kinds = dict(line.split(":") for line in status if line.startswith(("RssAnon", "RssShmem")))
    return sum(int(text.split()[0]) for text in kinds.values()) * 1024


def main():
    parser = argparse.ArgumentParser(description="Random programs against an oracle.")
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first program")
    parser.add_argument("--steps", type=int, default=60, help="operations in a program")
    options = parser.parse_args()
    simulator.enable()
    torch.set_num_threads(1)
    tally, started = Tally(), time.perf_counter()
    for i in range(options.programs):
        tally.run(options.seed + i, options.steps)
        if (i + 1) % 500 == 0 or i + 1 == options.programs:
            spent = time.perf_counter() - started
            sys.stdout.write(f"{spent:.0f} s, {resident_bytes() >> 20} MiB resident: {tally}\n")
            sys.stdout.flush()
    sys.stdout.write("\n".join(tally.complaints) + "\n" if tally.complaints else "")
    sys.exit(not tally.ok)


if __name__ == "__main__":
    main()
