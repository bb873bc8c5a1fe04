"""What all benchmarks share: contenders by turns, spreads, ratios, the machine, the result file.

A benchmark is a file here with a function `measure(options)` that gives what it found, as data for
JSON. `run` wraps it: the command line, what it was measured on, and the file. Whatever is compared
is measured in one run, by turns; figures of two runs are never set against each other.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import importlib.metadata
import json
import math
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[1]
SEED = 20261201  # arbitrary; every benchmark begins with it and writes it down

TRIAL_S = 60  # far more than one pass takes, importing a library included
PROCESS_S = 400  # far more than a part of a benchmark takes

ResultT = TypeVar("ResultT")


# ---- by turns


def by_turns(
    contenders: Mapping[str, Callable[[], ResultT]], *, rounds: int, warmup: int = 1
) -> dict[str, list[ResultT]]:
    """Run each contender once a round, in an order that turns and reverses from round to round.

    The first `warmup` rounds are thrown away.

    Returns:
        For each contender its results, one a round, so that results of one round stand together.
    """
    names = list(contenders)
    results: dict[str, list[ResultT]] = {name: [] for name in names}
    for number in range(warmup + rounds):
        if number == warmup:
            gc.freeze()  # what libraries have made lives on: collections need not look through it
        turned = names[number % len(names) :] + names[: number % len(names)]
        for name in turned if number % 2 == 0 else reversed(turned):
            result = contenders[name]()
            if number >= warmup:
                results[name].append(result)
    return results


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise a TimeoutError in this, the main, thread if the block takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def trial(run: Callable[[], object], *, required: bool) -> str | None:
    """Warm a contender up; give its error in one line where it cannot run here.

    Raises:
        Exception: The error, where the contender is required.
    """
    try:
        with limit(TRIAL_S):
            run()
    except Exception as error:
        if required:
            raise
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    return None


def in_process(script: Path, *more: str) -> dict[str, Any]:
    """Run a benchmark in a process of its own, and give what it wrote.

    Raises:
        RuntimeError: If it failed; with the last line that it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        ran = subprocess.run(
            [sys.executable, str(script), "--json", str(file), *more],
            capture_output=True,
            text=True,
            timeout=PROCESS_S,
            check=False,
        )
        if ran.returncode:
            sys.stderr.write(ran.stderr)
            last = (ran.stderr.strip().splitlines() or ["no output"])[-1]
            raise RuntimeError(f"{script.name} ended with {ran.returncode}: {last}")
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, the least and the most."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def ratios(values: Sequence[float], by: Sequence[float]) -> dict[str, float]:
    """The spread of the ratios within each round."""
    return spread([a / b for a, b in zip(values, by, strict=True)])


def seconds_a_call(function: Callable[[], object], *, calls: int, clock: Any = None) -> float:
    """The mean time of one call [s], by the wall's clock unless another is given."""
    clock = clock or time.perf_counter
    start = clock()
    for _ in range(calls):
        function()
    return float(clock() - start) / calls


# ---- what it was measured on

_PACKAGES = [
    "torch", "numpy", "accelerate", "lightning", "prefetch_generator", "ray", "spdl-core", "timm",
    "torch-geometric", "torchdata", "torchtnt", "nvidia-dali-cuda130", "ffcv",
]  # fmt: skip


def machine() -> dict[str, Any]:
    """The machine and the versions of all that may be measured."""
    found = {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "platform": platform.platform(terse=True),
        "python": platform.python_version(),
    }
    versions = {name: version(name) for name in _PACKAGES}
    return found | {"versions": {name: each for name, each in versions.items() if each}}


def version(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def commit() -> str | None:
    """The commit that was measured, with a plus sign where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # a copy of the files, where there is no git
        return None
    return found.stdout.strip() or None


# ---- the command line and the file


def run(
    name: str,
    measure: Callable[[argparse.Namespace], Any],
    description: str | None,
    *,
    devices: Sequence[str] = ("cpu",),
    **more: str,
) -> int:
    """Measure, and write down the result with all that is needed to repeat it.

    Args:
        name: The benchmark's.
        measure: Gives the result.
        description: Its first line is shown by `--help`.
        devices: Where it can run; the first is the default.
        **more: Names of further options, each with its help.
    """
    import torch

    faulthandler.enable()  # a crash within a library must not go without a word
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    parser.add_argument("--device", choices=devices, default=devices[0])
    for option, text in more.items():
        parser.add_argument(f"--{option}", help=text)
    options = parser.parse_args()
    random.seed(SEED)
    torch.manual_seed(SEED)
    load, start = os.getloadavg()[0], time.perf_counter()
    result = measure(options)
    written = {
        "benchmark": name,
        "device": options.device,
        "quick": options.quick,
        "seed": SEED,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "took_s": round(time.perf_counter() - start, 1),
        "load_average": {"before": round(load, 2), "after": round(os.getloadavg()[0], 2)},
        "machine": machine() | {"accelerator": accelerator(options.device)},
        "result": rounded(result),
    }
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    print(f"{name}: {written['took_s']} s, load {written['load_average']}", file=sys.stderr)
    return 0


def accelerator(device: str) -> str:
    """What stands behind the device."""
    import torch

    if device == "cuda" and torch.version.cuda:
        return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return {"cpu": "none", "sim": "simulated"}.get(device, device)


def rounded(value: Any) -> Any:
    """The same data with five significant digits: more would be noise."""
    if isinstance(value, dict):
        return {str(key): rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> list[str]:
    """A Markdown table, as lines."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]
