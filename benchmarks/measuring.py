"""How right the statistics are, what they cost, and how near a prediction comes.

    scripts/bench measuring            all of it, about four minutes
    scripts/bench measuring --quick    a few cases of each kind

Truth: on the simulated accelerator copies and kernels take the time they are given, and the source
and the transform below time themselves. Other programs on the machine disturb it: what is compared
is measured in one run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
import torch
from torch.utils.data import DataLoader, Dataset

import sidestream.epoch as epoch_module
import sidestream.simulator as simulator
from sidestream import AsynchronousLoader

if TYPE_CHECKING:
    from collections.abc import Iterator

MEBIBYTE = 1 << 20
STEPS = 40
WARM_UP_S = 0.2  # of the first read: what a start of worker processes takes


def pause(seconds: float, took: list[float]) -> None:
    """Take time, and note how much it was."""
    began = time.perf_counter()
    time.sleep(seconds)
    took.append(time.perf_counter() - began)


class Reading:
    """A source that takes its time for every batch, more for the first, and knows how much."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.took = seconds, list[float]()
        self.batch = torch.zeros(MEBIBYTE // 4)

    def __iter__(self) -> Iterator[torch.Tensor]:
        pause(self.seconds + WARM_UP_S, self.took)
        yield self.batch
        for _ in range(STEPS):
            pause(self.seconds, self.took)
            yield self.batch


class Items(Dataset[torch.Tensor]):
    """The same for worker processes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return STEPS + 1

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((MEBIBYTE // 4,), float(index))


CASES: list[tuple[str, str, dict[str, float]]] = [
    # bound by, name, stages in ms
    ("reading", "read", {"read": 20, "link": 4, "compute": 10}),
    ("staging", "stage", {"read": 2, "stage": 20, "link": 4, "compute": 10}),
    ("link", "link", {"read": 4, "link": 20, "compute": 10}),
    ("compute", "compute", {"read": 4, "link": 4, "compute": 20}),
    ("link", "mixed: link, then reading", {"read": 14, "link": 20, "compute": 10}),
    ("reading", "mixed: reading, then link", {"read": 20, "link": 14, "compute": 10}),
    ("compute", "mixed: all but equal", {"read": 14, "link": 14, "compute": 20}),
    ("reading", "read, 1 worker", {"read": 25, "link": 4, "compute": 8, "workers": 1}),
    ("reading", "read, 4 workers", {"read": 100, "link": 4, "compute": 8, "workers": 4}),
    ("compute", "compute, 4 workers", {"read": 25, "link": 4, "compute": 25, "workers": 4}),
]  # fmt: skip


def truth(  # noqa: C901 - one case, told from its beginning to its end
    bound: str, name: str, stages: dict[str, float], *, in_step: bool
) -> dict[str, Any]:
    """One case: what the statistics say against what was."""
    workers = int(stages.get("workers", 0))
    read_s, link_s, compute_s = (stages[key] / 1e3 for key in ("read", "link", "compute"))
    staged: list[float] = []

    def transform(batch: torch.Tensor) -> torch.Tensor:
        pause(stages["stage"] / 1e3, staged)
        return batch

    source: Any = Reading(read_s)
    if workers:
        source = DataLoader(Items(read_s), batch_size=None, num_workers=workers)
    with simulator.settings(
        h2d_bytes_per_s=MEBIBYTE / link_s, detect_races=False, python_lines=False
    ):
        loader = AsynchronousLoader(
            source, "sim", transform=transform if "stage" in stages else None
        )
        total = torch.zeros(MEBIBYTE // 4, device="sim")
        looped: list[float] = []  # between two hand-overs, by the loop's own clock
        last = None
        for batch in loader:
            now = time.perf_counter()
            if last is not None:
                looped.append(now - last)
            last = now
            total.copy_(batch)
            simulator.delay(compute_s)
            if in_step:
                torch.accelerator.current_stream().synchronize()
        torch.accelerator.synchronize()
        found = loader.statistics()
    loader.close()
    told = found.metrics()
    expected = {"link_ms": link_s * 1e3}
    if not in_step:  # else the loop's own overhead, the simulator's, is part of it
        expected["compute_ms"] = compute_s * 1e3
    if not workers:
        expected["read_ms"] = statistics.fmean(source.took[1:]) * 1e3
    if staged:
        expected["stage_ms"] = statistics.fmean(staged[1:]) * 1e3
    if in_step:  # a loop that runs ahead is handed batches before the device has come to them
        expected["step_ms"] = statistics.fmean(looped) * 1e3
    elif bound in ("link", "compute"):
        expected["step_ms"] = max(link_s, compute_s) * 1e3
    verdict = found.verdict()
    return {
        "case": name,
        "in_step": in_step,
        "expected": bound,
        "verdict": verdict.bound,
        "is_right": verdict.bound == bound,
        "gain": verdict.gain,
        "told": told,
        "truth": expected,
        "off": {key: told[key] / value - 1 for key, value in expected.items()},
        "warm_up_ms": found.warm_up_s * 1e3,
    }


class Deaf:
    """A recorder of a pass that records nothing."""

    last_mark = trace = None

    def read(self, *_: object) -> None:
        """Nothing."""

    def loaded(self, *_: object, **__: object) -> int:
        """Nothing."""
        return 0

    def delivered(self, *_: object) -> int:
        """Nothing."""
        return 0


def cpu_per_batch(device: str, *, measured: bool, count: int = 400) -> float:
    """CPU time of all threads of this process for a batch [s]."""
    batch = [torch.zeros(64), torch.zeros(64, dtype=torch.int64)]
    loader = AsynchronousLoader([batch] * count, device)
    passed: Any = iter(loader)
    if not measured:
        passed._epoch._recorder = Deaf()
        passed._epoch._transfer.timer = None
    began = time.process_time()
    for _ in passed:
        pass
    if device != "cpu":
        torch.accelerator.synchronize()
    took = time.process_time() - began
    loader.close()
    return took / count


def cost(device: str, *, rounds: int) -> dict[str, Any]:
    """With and without, in turn."""
    with_, without = [], []
    # Clock readings stay in both: they are about 0.05 us each.
    assert epoch_module._clock is time.perf_counter
    context: Any = contextlib.nullcontext()
    if device != "cpu":
        context = simulator.settings(detect_races=False, python_lines=False)
    with context:
        for _ in range(rounds):
            with_.append(cpu_per_batch(device, measured=True))
            without.append(cpu_per_batch(device, measured=False))
    extra = statistics.median(a - b for a, b in zip(with_, without, strict=True))
    return {
        "device": device,
        "with_us": statistics.median(with_) * 1e6,
        "without_us": statistics.median(without) * 1e6,
        "extra_us": extra * 1e6,
        "share_of_5_ms": extra / 5e-3,
    }


PLAIN = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
from sidestream import simulator

read_s, link_s, compute_s, workers, in_step = (float(part) for part in sys.argv[1:])

class Items(Dataset):
    def __len__(self):
        return 60
    def __getitem__(self, index):
        time.sleep(read_s)
        return torch.full((1 << 18,), float(index))

if __name__ == "__main__":
    torch.set_num_threads(1)
    simulator.enable()
    simulator.configure(
        h2d_bytes_per_s=(1 << 20) / link_s, detect_races=False, python_lines=False
    )
    total = torch.zeros(1 << 18, device="sim")
    for batch in DataLoader(Items(), batch_size=None, num_workers=int(workers)):
        total += batch.to("sim")
        simulator.delay(compute_s)
        if in_step:
            torch.accelerator.current_stream().synchronize()
"""

PREDICTIONS = [
    # read, link, compute in ms, workers, whether it synchronises
    (20, 5, 10, 0, 1),
    (5, 20, 10, 0, 1),
    (5, 10, 30, 0, 1),
    (10, 10, 10, 0, 1),
    (5, 10, 10, 0, 0),
    (40, 5, 10, 2, 1),
    (5, 10, 20, 2, 1),
]


def prediction(case: tuple[float, ...], folder: Path) -> dict[str, Any]:
    """A prediction and what came of it, by `sidestream diagnose --try`."""
    script = folder / "plain.py"
    script.write_text(PLAIN)
    read, link, compute, workers, in_step = case
    command = [sys.executable, "-m", "sidestream", "diagnose", "--try", "--json", "--steps", "40"]
    command += [str(script), *(str(part / 1e3) for part in (read, link, compute))]
    ended = subprocess.run(
        [*command, str(workers), str(in_step)], capture_output=True, text=True, check=True
    )
    (found,) = json.loads(ended.stdout)["loaders"]
    return {
        "case": case,
        "plain_ms": found["plain"]["step_s"] * 1e3,
        "predicted": found["predicted"]["gain"],
        "measured": found["measured_gain"],
        "off": found["predicted"]["gain"] / found["measured_gain"] - 1,
    }


def show(result: dict[str, Any]) -> None:
    """Tables for a terminal."""
    print("verdicts and times (off: told over truth, minus 1)")
    for one in result["truth"]:
        off = "  ".join(f"{key[:-3]} {value:+.1%}" for key, value in one["off"].items())
        loop = "in step" if one["in_step"] else "ahead"
        mark = "right" if one["is_right"] else "WRONG"
        print(f"  {one['case']:<26} {loop:<8} {one['verdict']:<8} {mark}  {off}")
    print("cost")
    for one in result["cost"]:
        print(
            f"  {one['device']:<5} {one['extra_us']:.1f} us a batch beside "
            f"{one['without_us']:.0f}: {one['share_of_5_ms']:.2%} of a 5 ms step"
        )
    print("predicted and measured gain (read, link, compute in ms, workers, in step)")
    for one in result["prediction"]:
        print(
            f"  {one['case']!s:<24} plain {one['plain_ms']:5.1f} ms  predicted "
            f"{one['predicted']:.2f}  measured {one['measured']:.2f}  off {one['off']:+.1%}"
        )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All of it, shown and given."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "This DataLoader will create")  # they sleep
    simulator.enable()
    cases, rounds = (CASES[:4], 5) if options.quick else (CASES, 15)
    predictions = PREDICTIONS[:2] if options.quick else PREDICTIONS
    with tempfile.TemporaryDirectory() as folder:
        result = {
            "truth": [
                truth(*case, in_step=in_step) for case in cases for in_step in (True, False)
            ],
            "cost": [cost(device, rounds=rounds) for device in ("cpu", "sim")],
            "prediction": [prediction(case, Path(folder)) for case in predictions],
        }
    show(result)
    return result


if __name__ == "__main__":
    sys.exit(harness.run("measuring", measure, __doc__))
