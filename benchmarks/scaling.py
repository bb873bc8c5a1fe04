"""How time per step changes with the DataLoader's workers and with the number of ranks.

    scripts/bench scaling

Reading takes 12 ms a batch and sleeps; copy and computation take 6 ms each (on a GPU the copy
half a millisecond). Workers overlap the
reading by themselves; what is left to win is the copy. Ranks are processes of torchrun with an
accelerator each, that meet before they begin: those of one machine share its processors.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import contenders
import harness
import targets
import torch
from torch.utils.data import DataLoader

READ_S, COPY_S, COMPUTE_S = 0.012, 0.006, 0.006
GPU_COPY_S = 0.0005  # a batch that a GPU's link copies longer takes longer to stage
BATCH_BYTES = 1 << 20
NAMES = ["sidestream", "plain loop", "plain loop, pin_memory, non_blocking"]
WORKERS = [0, 1, 2]
RANKS = [1, 2]


def epoch(target: Any, contender: contenders.Contender, workers: int, steps: int) -> float:
    """Time per step [ms], from the second batch on: workers take their time to start."""
    reads = targets.Reads(steps, target.batch_bytes(GPU_COPY_S, BATCH_BYTES), READ_S)
    data = DataLoader(
        reads,  # type: ignore[arg-type]
        batch_size=None,
        pin_memory=contender.pins,
        num_workers=workers,
    )
    times: list[float] = []

    def step(batch: Any) -> None:
        times.append(time.perf_counter())
        batch[1][:1].sum()
        target.compute(COMPUTE_S)
        torch.accelerator.current_stream().synchronize()

    targets.settle()
    with target.copying_at(BATCH_BYTES / COPY_S):
        contender.drive(data, target, step)
        torch.accelerator.synchronize()
    target.races()
    return (times[-1] - times[4]) / (steps - 5) * 1e3


def chosen() -> list[contenders.Contender]:
    """The contenders here."""
    return [one for one in contenders.CONTENDERS if one.name in NAMES]


def with_workers(target: Any, rounds: int, steps: int) -> dict[str, Any]:
    """By the number of workers."""
    found = {}
    for workers in WORKERS:
        runs = {
            one.name: functools.partial(epoch, target, one, workers, steps) for one in chosen()
        }
        results = harness.by_turns(runs, rounds=rounds)
        found[str(workers)] = {name: harness.spread(each) for name, each in results.items()}
    return found


def one_rank(options: argparse.Namespace) -> None:
    """What each process of torchrun does: print its medians as a line of JSON."""
    from torch import distributed

    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    target = targets.target(options.device)
    distributed.init_process_group("gloo")
    rounds, steps = (3, 40) if options.quick else (7, 80)

    def run(one: contenders.Contender) -> float:
        distributed.barrier()
        return epoch(target, one, 0, steps)

    results = harness.by_turns(
        {one.name: functools.partial(run, one) for one in chosen()}, rounds=rounds
    )
    print(json.dumps({name: harness.spread(each) for name, each in results.items()}), flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


def with_ranks(options: argparse.Namespace) -> dict[str, Any]:
    """By the number of ranks: of each contender the slowest rank, which the others wait for."""
    found = {}
    more = ["--rank", "yes", "--device", options.device, *["--quick"][: options.quick]]
    for ranks in RANKS:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", str(Path(__file__)), *more]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        if ran.returncode:
            raise RuntimeError(f"torchrun ended with {ran.returncode}:\n{ran.stderr}")
        each = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
        assert len(each) == ranks
        found[str(ranks)] = {
            name: max((one[name] for one in each), key=lambda spread: spread["median"])
            for name in each[0]
        }
    return found


def measure(options: argparse.Namespace) -> Any:
    """Both."""
    rounds, steps = (3, 40) if options.quick else (7, 80)
    target = targets.target(options.device)
    found = {
        "read_ms": READ_S * 1e3,
        "copy_ms": (GPU_COPY_S if target.name == "cuda" else COPY_S) * 1e3,
        "compute_ms": COMPUTE_S * 1e3,
        "workers": with_workers(target, rounds, steps),
        "ranks": with_ranks(options),
    }
    for kind in ("workers", "ranks"):
        rows = [
            (name, *(f"{column[name]['median']:.2f}" for column in found[kind].values()))
            for name in NAMES
        ]
        head = (f"ms a step, by {kind}", *found[kind])
        print("\n".join(harness.table(head, rows)) + "\n")
    return found


if __name__ == "__main__":
    if "--rank" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rank")
        parser.add_argument("--device")
        parser.add_argument("--quick", action="store_true")
        one_rank(parser.parse_args())
        sys.exit(0)
    sys.exit(harness.run("scaling", measure, __doc__, devices=("sim", "cuda")))
