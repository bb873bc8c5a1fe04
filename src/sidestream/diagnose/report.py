"""`sidestream diagnose`: run a script, say where its steps go and what could be gained."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from sidestream.diagnose.measure import EnoughError, Limit, Measured, Measurement, measuring
from sidestream.diagnose.predict import PlainStep, Prediction, predict
from sidestream.diagnose.run import Report, asynchronous_loaders, check_script, run_as_main
from sidestream.diagnose.verdict import THRESHOLDS, times_of
from sidestream.epoch import EpochIterator
from sidestream.loader import AsynchronousLoader
from sidestream.timing import StreamTimer

_PASS: Any = EpochIterator
_PROBES = 12
"""Batches of the last pass of the probe [batches]: enough for a mean, and soon over."""


@dataclasses.dataclass(frozen=True)
class LoaderReport:
    """What was found about one DataLoader."""

    loader: str
    num_steps: int
    """Steps measured [steps]; the first batch of each pass is apart."""
    plain: PlainStep | None
    """None where too few steps were seen."""
    predicted: Prediction | None
    measured_step_s: float | None = None
    """A step with `AsynchronousLoader`, from a second run of the script [s]."""

    @property
    def measured_gain(self) -> float | None:
        """How many times faster that was [factor]."""
        if self.plain is None or not self.measured_step_s:
            return None
        return self.plain.step_s / self.measured_step_s

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self) | {"measured_gain": self.measured_gain}

    def lines(self) -> list[str]:
        """For a terminal."""
        if self.plain is None or self.predicted is None:
            fewest = THRESHOLDS["steps"][0]
            return [f"{self.loader}: {self.num_steps} steps, fewer than the {fewest} it takes"]
        plain, found = self.plain, self.predicted
        parts = {"reading": plain.wait_s, "transfer": plain.transfer_s, "compute": plain.compute_s}
        lines = [
            f"{self.loader}: {self.num_steps} steps",
            f"  a step takes {_ms(plain.step_s)}",
            *(
                f"    {name:<10} {_ms(value)}  {value / plain.step_s:4.0%}"
                for name, value in parts.items()
            ),
            f"  with AsynchronousLoader, predicted: {_ms(found.step_s)}, "
            f"{found.gain:.2f} times as fast; bound by {found.bound}",
        ]
        if self.measured_step_s and self.measured_gain:
            lines.append(
                f"  with AsynchronousLoader, measured:  {_ms(self.measured_step_s)}, "
                f"{self.measured_gain:.2f} times as fast"
            )
        return lines + ([f"  ({found.note})"] if found.note else [])


def diagnose(
    script: str,
    arguments: list[str],
    *,
    num_steps: int | None,
    tries: bool = False,
    as_json: bool = False,
) -> int:
    """Run a script with its DataLoaders measured, and tell what was found on stderr.

    Args:
        script: Its path.
        arguments: What it finds behind its name in `sys.argv`.
        num_steps: Steps of one loader after which the script is ended [steps]; None for its own
            end.
        tries: Run the script once more, with `AsynchronousLoader`, and show both.
        as_json: Print the findings as JSON to stdout, and what the script prints to stderr.

    Returns:
        2 if it cannot be run at all, else 0.

    Raises:
        BaseException: What the script raises, its exit included.
    """
    try:
        check_script(script)
        if num_steps is not None and num_steps < 1:
            raise ValueError(f"--steps must be 1 or more, got {num_steps}; 0 means all")
    except ValueError as error:
        sys.stderr.write(f"sidestream diagnose: {error}\n")
        return 2
    out = _stdout_to_stderr() if as_json else None
    limit = Limit(num_steps)
    measurement = Measurement(limit)
    process = os.getpid()
    failed = True
    try:
        with measuring(measurement):
            _run(script, arguments)
        failed = False
    except SystemExit as end:
        failed = end.code not in (None, 0)
        raise
    finally:
        if os.getpid() == process:  # else a forked child of the script has come here
            measurement.finish()
            loaders = [_report_of(seen, measurement.device) for seen in measurement.found.values()]
            if tries and loaders and not failed:
                loaders = _tried(loaders, script, arguments, num_steps)
            text = _text(loaders, measurement, limit, num_steps)
            sys.stderr.write("".join(f"sidestream diagnose: {line}\n" for line in text))
            if out is not None:
                found = {
                    "script": script,
                    "arguments": arguments,
                    "stopped": limit.was_reached,
                    "loaders": [one.as_dict() for one in loaders],
                }
                with os.fdopen(out, "w") as file:
                    file.write(json.dumps(found, indent=1) + "\n")
    return 0


def _run(script: str, arguments: list[str]) -> None:
    with contextlib.suppress(EnoughError):
        run_as_main(script, arguments)


def _report_of(seen: Measured, device: torch.device | None) -> LoaderReport:
    found = seen.recorder.snapshot()
    times = times_of(found)
    if found.num_steps < THRESHOLDS["steps"][0] or times.step is None or times.wait is None:
        return LoaderReport(seen.label, found.num_steps, None, None)
    stage, link = _probe(seen, device)
    plain = PlainStep(
        step_s=times.step,
        wait_s=times.wait,
        transfer_s=seen.transfer_s / found.num_steps,
        read_s=times.read or 0.0,
        stage_s=stage,
        link_s=link,
        num_workers=seen.num_workers,
    )
    return LoaderReport(seen.label, found.num_steps, plain, predict(plain))


def _probe(seen: Measured, device: torch.device | None) -> tuple[float, float]:
    """What staging and copying such a batch take [s]: with batches of zeros, after the script."""
    if device is None or not seen.transfer_bytes or not seen.leaves:
        return 0.0, 0.0
    try:
        loader = AsynchronousLoader([[leaf.make() for leaf in seen.leaves]] * _PROBES, device)
        for _ in range(2):  # the first pass takes memory
            for batch in loader:
                del batch
        torch.accelerator.synchronize(device)
        found = loader.statistics().epoch
        loader.close()
    except torch.OutOfMemoryError:  # the script's own is not given back yet
        return 0.0, seen.transfer_s / max(1, seen.num_steps)
    assert found is not None
    times = times_of(found)
    return times.stage or 0.0, times.link or 0.0


def _tried(
    loaders: list[LoaderReport], script: str, arguments: list[str], num_steps: int | None
) -> list[LoaderReport]:
    """Run the script again in a process of its own, its loaders asynchronous."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.json"
        command = [sys.executable, "-m", "sidestream", "diagnose", "--second-run", str(path)]
        command += ["--steps", str(num_steps or 0), script, *arguments]
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        steps: list[float | None] = json.loads(path.read_text()) if path.exists() else []
    if len(steps) != len(loaders):
        sys.stderr.write(
            f"sidestream diagnose: the second run ended with code {ended.returncode} and "
            f"{len(steps)} loaders instead of {len(loaders)}; it is left out\n"
        )
        return loaders
    return [
        dataclasses.replace(one, measured_step_s=step)
        for one, step in zip(loaders, steps, strict=True)
    ]


def second_run(script: str, arguments: list[str], *, num_steps: int | None, path: str) -> int:
    """Run a script with its loaders asynchronous, and write their times of a step [s] as JSON."""
    limit, report = Limit(num_steps), Report()
    next_batch = _PASS.__next__
    timers: set[StreamTimer | None] = set()

    def counted(self: Any) -> Any:
        batch = next_batch(self)
        timers.add(self._epoch._transfer.timer)
        limit.check(self._epoch._recorder._sums.num_steps)
        return batch

    _PASS.__next__ = counted
    try:
        with asynchronous_loaders(None, 2, report):
            _run(script, arguments)
    finally:
        _PASS.__next__ = next_batch
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        for timer in timers:
            if timer is not None:
                timer.look()
        seen = [recorder.snapshot() for recorder in report.recorders]
        found = [times_of(one).step for one in seen if one.num_batches]
        Path(path).write_text(json.dumps(found))
    return 0


def _text(
    loaders: list[LoaderReport], measurement: Measurement, limit: Limit, num_steps: int | None
) -> list[str]:
    if not loaders and measurement.num_asynchronous:
        return [
            "all DataLoaders are read by an AsynchronousLoader already; "
            "print(loader.statistics()) tells where its time goes"
        ]
    if not loaders:
        return [
            "no DataLoader was iterated in this process; where the script starts processes of its "
            "own that do, run one of those with it"
        ]
    lines = [line for one in loaders for line in one.lines()]
    if limit.was_reached:
        lines.append(
            f"stopped the script after {num_steps} steps; --steps 0 lets it end by itself"
        )
    elif num_steps is not None:
        lines.append(f"the script ended by itself before {num_steps} steps of one loader")
    return lines


def _stdout_to_stderr() -> int:
    """Let all that is printed go to stderr, from child processes too; gives the old stdout."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    return out


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:7.2f} ms"
