"""Random programs: sources, consumers, breaks, kept batches, stream switches. 0 races, all values.

Each is made from one seed, or by Hypothesis, which shrinks what fails. The suite runs a few
hundred; more by

    python tests/simulator/engine/test_programs.py --programs 5000 --first 0
"""

import argparse
import dataclasses
import gc
import itertools
import random
import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies
from torch.utils.data import DataLoader, TensorDataset

import sidestream.simulator
from sidestream import AsynchronousLoader

PROGRAMS = 300
SIZES = [1, 3, 64, 1_000, 20_000, 30_000]


@dataclasses.dataclass
class Pair:
    one: object
    other: object


def filled(draw, number):
    """A tensor that holds its batch's number everywhere, wherever and however it lies."""
    tensor = torch.full((draw.choice(SIZES),), float(number))
    way = draw.random()
    if way < 0.15:
        return tensor.pin_memory()
    if way < 0.25:
        return tensor.to("sim")
    if way < 0.35:
        return tensor.reshape(1, -1).expand(4, -1)
    if way < 0.4:
        return torch.stack([tensor, tensor]).T
    return tensor


def nested(draw, number):
    way = draw.random()
    if way < 0.3:
        return filled(draw, number)
    if way < 0.6:
        return {
            "a": filled(draw, number),
            "b": [filled(draw, number) for _ in range(draw.randint(0, 6))],
        }
    if way < 0.8:
        shared = filled(draw, number)
        return shared, Pair(filled(draw, number), shared), None
    return [filled(draw, number) for _ in range(draw.randint(0, 20))]


def tensors(batch):
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, dict):
        yield from itertools.chain.from_iterable(map(tensors, batch.values()))
    elif isinstance(batch, (list, tuple)):
        yield from itertools.chain.from_iterable(map(tensors, batch))
    elif isinstance(batch, Pair):
        yield from tensors(batch.one)
        yield from tensors(batch.other)


class OneBuffer:
    def __init__(self, count, where):
        self.count, self.where = count, where

    def __iter__(self):
        buffer = torch.empty(20_000)
        if self.where == "pinned":
            buffer = buffer.pin_memory()
        elif self.where == "device":
            buffer = buffer.to("sim")
        for number in range(self.count):
            yield buffer.fill_(float(number))


def make_source(draw, kind, count):
    if kind in ("list", "iterator"):
        items = [nested(draw, number) for number in range(count)]
        return items if kind == "list" else iter(items)
    if kind == "DataLoader":
        rows = torch.arange(count, dtype=torch.float32).reshape(-1, 1).repeat(1, 5000)
        return DataLoader(TensorDataset(rows), batch_size=1, pin_memory=draw.random() < 0.5)
    return OneBuffer(count, kind)


def joined(batch):
    found = list(tensors(batch))
    return torch.cat([tensor.flatten() for tensor in found]) if found else batch


class Program:
    """One random program, and what it found."""

    def __init__(self, draw):
        self.draw = draw
        self.count = self.draw.randint(0, 12)
        self.kind = self.draw.choice(
            ["list", "iterator", "pageable", "pinned", "device", "DataLoader"]
        )
        self.loader = AsynchronousLoader(
            make_source(self.draw, self.kind, self.count),
            "sim",
            buffer_size=self.draw.choice([1, 1, 2, 3, 9]),
            transform=self.draw.choice([None, None, joined]),
        )
        self.default = torch.accelerator.current_stream()
        self.streams = [self.default, torch.Stream(device="sim"), torch.Stream(device="sim")]
        self.current = self.default
        self.weight = torch.ones((), device="sim", requires_grad=True)
        self.results = []
        self.kept = []

    def run(self):
        """Run it; returns how many tensors were checked and how many were wrong."""
        try:
            self.passes()
        finally:  # Hypothesis breaks off programs that draw too much
            torch.accelerator.set_stream(self.default)
            torch.accelerator.synchronize()
        return len(self.results), sum(not result.item() for result in self.results)

    def passes(self):
        delivered = 0
        for _ in range(self.draw.randint(1, 3)):
            with sidestream.simulator.settings(
                copy_s=self.draw.choice([1e-5, 3e-4, 1.5e-3]),
                kernel_s=self.draw.choice([1e-5, 3e-4]),
            ):
                delivered = self.one_pass(delivered)
            self.switch(self.default)
            if self.draw.random() < 0.2:
                self.loader.close()
                self.kept.clear()  # from here on a further stream would owe `record_stream`

    def one_pass(self, delivered):
        start = delivered if self.kind == "iterator" else 0
        stop = self.draw.choice([None, None, self.draw.randint(0, self.count)])
        switches = self.draw.random() < 0.4
        number = start
        for number, batch in enumerate(self.loader, start):
            if switches and self.draw.random() < 0.5:
                self.switch(self.draw.choice(self.streams))
            for tensor in tensors(batch):
                self.use(tensor, number)
            self.use_kept()
            if self.draw.random() < 0.1:
                torch.accelerator.current_stream().synchronize()
            if stop is not None and number - start == stop:
                break
            delivered = number + 1
        return number + 1 if stop is not None else delivered

    def use(self, tensor, number):
        if not tensor.numel():
            return
        used = tensor * self.weight if self.draw.random() < 0.3 else tensor
        self.results.append((used == number).all())
        if self.draw.random() < 0.2:
            self.kept.append((used[:1], number))

    def use_kept(self):
        if self.kept and self.draw.random() < 0.3:
            tensor, number = self.kept.pop(0)
            self.results.append((tensor == number).all())

    def switch(self, stream):
        stream.wait_event(self.current.record_event())
        torch.accelerator.set_stream(stream)
        self.current = stream


def check(program, name):
    count, wrong = program.run()
    races = sidestream.simulator.races()
    assert not races, f"program {name} ({program.kind}): {races[0]}"
    assert not wrong, f"program {name} ({program.kind}): {wrong} of {count} wrong"
    return count


def run_programs(seeds):
    return sum(check(Program(random.Random(seed)), seed) for seed in seeds)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("part", range(4))
def test_random_programs_see_right_values_and_no_race(simulator, part):
    each = PROGRAMS // 4
    assert run_programs(range(part * each, (part + 1) * each)) > 10 * each
    gc.collect()
    assert [t.name for t in threading.enumerate() if t.name.startswith("sidestream")] == []


@pytest.mark.timeout(120)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(draw=strategies.randoms(use_true_random=False))
def test_programs_that_hypothesis_makes_see_right_values_and_no_race(simulator, draw):
    check(Program(draw), "by Hypothesis")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    sidestream.simulator.enable()
    torch.set_num_threads(1)
    checked = run_programs(range(options.first, options.first + options.programs))
    print(f"{options.programs} programs, {checked} tensors checked, 0 wrong, 0 races")  # noqa: T201


if __name__ == "__main__":
    main()
