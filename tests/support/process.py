"""Scripts in an interpreter of their own, under a hard limit, with a look at how they ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import sidestream

PREAMBLE = """
import gc, os, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from sidestream import AsynchronousLoader
from support.sources import *
from support.waiting import Worker, loader_threads, wait_until, wait_until_blocked

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may inherit 'ignore'

def say(*words):
    print(*words, flush=True)

"""


class Script:
    """A running script."""

    def __init__(self, text: str) -> None:
        paths = [Path(sidestream.__file__).parents[1], Path(__file__).parents[1]]
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PREAMBLE + textwrap.dedent(text)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.stdout = ""
        self.stderr = ""

    def wait_for(self, line: str) -> None:
        """Read its output up to this line."""
        for seen in self._process.stdout:
            self.stdout += seen
            if seen.rstrip() == line:
                return
        raise AssertionError(f"it ended without {line!r}:\n{self.stdout}{self.finish().stderr}")

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        os.kill(self.pid, signal.SIGINT)

    def finish(self, limit_s: float = 20.0) -> Script:
        """Wait for its end; fail when it does not come in time."""
        if self._process.returncode is not None:
            return self
        try:
            out, err = self._process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            out, err = self._process.communicate()
            raise AssertionError(f"no end within {limit_s} s:\n{out}{err}") from None
        self.stdout += out
        self.stderr += err
        return self

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    @property
    def returncode(self) -> int:
        return self._process.returncode

    def assert_clean(self, *lines: str, returncode: int = 0) -> None:
        """It ended as asked, said these lines, and had nothing to complain of."""
        assert self.stderr == ""
        assert self.returncode == returncode
        assert self.stdout.split() == [word for line in lines for word in line.split()]


@contextlib.contextmanager
def running(text: str) -> Iterator[Script]:
    """A script that is gone afterwards, its workers included, however the test ends."""
    script = Script(text)
    try:
        yield script
    finally:
        script.kill()
        script.finish()


def run(text: str, limit_s: float = 20.0) -> Script:
    """Run a script to its end."""
    with running(text) as script:
        return script.finish(limit_s)
