"""Run an unchanged script with its DataLoaders asynchronous: `sidestream run script.py`.

A DataLoader has no hook for this, so its `__iter__` is replaced, in this process and while the
script runs: a pass over a DataLoader becomes one over an `AsynchronousLoader` that is kept with
it. `tests/run` fails where that ground moves.

What cannot be done is left as it is, and said at the end with the reason: a loader whose class
iterates in its own way, one that a framework drives (a device is that framework's business), and
one that stands in an AsynchronousLoader already.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, get_worker_info

from sidestream.errors import annotate
from sidestream.loader import AsynchronousLoader
from sidestream.statistics import Recorder

_ITERATE: Callable[[Any], Iterator[Any]] = DataLoader.__iter__
_KEPT = "_sidestream_loader"

_DRIVERS = {
    "lightning": "give the Trainer the callback of sidestream.integrations.lightning",
    "pytorch_lightning": "give the Trainer the callback of sidestream.integrations.lightning",
    "accelerate": "see sidestream.integrations.accelerate",
}
"""Frameworks that decide themselves when and how a batch is moved."""


def run_script(
    script: str, arguments: list[str], *, device: str | None = None, buffer_size: int = 2
) -> int:
    """Run a script as `__main__`, and say on stderr what was done.

    Args:
        script: Its path.
        arguments: What it finds behind its name in `sys.argv`.
        device: Where batches go; None for the current accelerator, or the CPU without one.
        buffer_size: How many batches of a loader may wait there [batches].

    Returns:
        2 if it cannot be run at all, else 0.

    Raises:
        BaseException: What the script raises, its exit included.
    """
    try:
        AsynchronousLoader((), device, buffer_size=buffer_size)
        check_script(script)
    except ValueError as error:
        sys.stderr.write(f"sidestream run: {error}\n")
        return 2
    report = Report()
    try:
        with asynchronous_loaders(device, buffer_size, report):
            run_as_main(script, arguments)
    except Exception as error:
        if report.recorders:
            annotate(
                error,
                f"under sidestream run: batches of DataLoaders are on {report.device} already; a "
                "script that needs them on the host cannot be run with it",
            )
        raise
    finally:
        sys.stderr.write(report.text())
    return 0


def check_script(script: str) -> None:
    """See that there is one.

    Raises:
        ValueError: If not.
    """
    if not Path(script).is_file():
        raise ValueError(f"there is no file {script!r}; give the path of a Python script")


def run_as_main(script: str, arguments: list[str]) -> None:
    """Run a script as python does, in this process."""
    outer = sys.argv, sys.path[:]
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = outer


class Report:
    """What was done, and what was not."""

    def __init__(self) -> None:
        self.recorders: list[Recorder] = []
        self.device = "the device"
        self._refused: Counter[str] = Counter()

    def refuse(self, reason: str) -> None:
        """Count a pass that was left as it is."""
        self._refused[reason] += 1

    def text(self) -> str:
        """Both, in lines for a terminal."""
        seen = [recorder.snapshot() for recorder in self.recorders]
        lines = [
            f"not asynchronous, passes: {count}; {reason}"
            for reason, count in self._refused.items()
        ]
        if seen:
            first = sum(one.warm_up_s for one in seen)
            work = first + sum(
                one.source_wait_s + one.staging_s + one.staging_wait_s for one in seen
            )
            waited = first + sum(one.consumer_wait_s for one in seen)
            lines.insert(0, (
                f"{len(seen)} loaders, {sum(one.num_epochs for one in seen)} passes, "
                f"{sum(one.num_batches for one in seen)} batches on {self.device}; reading and "
                f"moving them took {work:.1f} s, of which the script waited {waited:.1f} s: "
                f"{max(0.0, work - waited):.1f} s went on beside it"
            ))  # fmt: skip
        elif not lines:
            lines = ["no DataLoader was iterated in this process: nothing was done"]
        return "".join(f"sidestream run: {line}\n" for line in lines)


@contextlib.contextmanager
def asynchronous_loaders(device: str | None, buffer_size: int, report: Report) -> Iterator[None]:
    """Let passes over DataLoaders be asynchronous, for a while."""

    def iterate(self: Any) -> Iterator[Any]:
        if get_worker_info() is not None:  # a worker process has no device to move to
            return _ITERATE(self)
        reason = _why_not(self, sys._getframe(1).f_globals.get("__name__", ""))
        if reason is not None:
            if reason:
                report.refuse(reason)
            return _ITERATE(self)
        kept = vars(self).get(_KEPT)
        if kept is None or kept._data.loader is not self:  # a copy brings the other's along
            kept = AsynchronousLoader[Any](_Passes(self), device, buffer_size=buffer_size)
            vars(self)[_KEPT] = kept
            report.recorders.append(kept._run_here().recorder)
        passed: Any = iter(kept)
        report.device = str(passed._epoch._transfer.device)
        return passed  # type: ignore[no-any-return]

    kind: Any = DataLoader
    kind.__iter__ = iterate
    try:
        yield
    finally:
        kind.__iter__ = _ITERATE


def _why_not(loader: Any, caller: str) -> str | None:
    """Why a pass is left as it is; empty for no need to say, None for no reason."""
    package = caller.partition(".")[0]
    if package == "sidestream":
        return ""  # an AsynchronousLoader in the script reads it
    if package in _DRIVERS:
        return f"{package} drives the loader: {_DRIVERS[package]}"
    if type(loader).__iter__ is not DataLoader.__iter__:
        return f"{type(loader).__name__} iterates in its own way"
    return None


class _Passes:
    """The passes of a DataLoader as they were, for the core.

    The DataLoader holds its loader and not the other way round: it goes when the script lets go.
    """

    def __init__(self, loader: Any) -> None:
        self._reference = weakref.ref(loader)

    @property
    def loader(self) -> Any:
        """The DataLoader, while the script has it."""
        return self._reference()

    @property
    def _iterator(self) -> Any:
        return getattr(self.loader, "_iterator", None)  # shared by passes with persistent workers

    @property
    def num_workers(self) -> int:
        """Whether batches come in memory of their own."""
        return int(getattr(self.loader, "num_workers", 0))

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        return _ITERATE(self.loader)
