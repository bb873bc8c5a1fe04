"""Scripts in processes of their own, one or several, under a hard limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import sidestream

LAUNCHED = Path(__file__).with_name("launched.py")


NOT_OURS = "ignore:Implicitly cleaning up:ResourceWarning"  # torch 2.6, at every exit


def python(*arguments: object, limit_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Run an interpreter with this package, for which a warning is an error."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-W", NOT_OURS, *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(sidestream.__file__).parents[1]),
            "OMP_NUM_THREADS": "1",  # torchrun says so too, in five lines
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def launch(script: Path, *arguments: str, processes: int = 0, limit_s: float = 100.0) -> str:
    """Run a script with torchrun, or alone where `processes` is 0, and give what it printed."""
    command = [sys.executable]
    if processes:
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={processes}", str(LAUNCHED)]
    paths = [Path(sidestream.__file__).parents[1], Path(__file__).parents[1]]
    running = subprocess.Popen(
        [*command, str(script), *arguments],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "OMP_NUM_THREADS": "1",  # torchrun says so too, in five lines
            "HF_HUB_OFFLINE": "1",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, error = running.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _kill(running)
        out, error = running.communicate()
        raise AssertionError(f"no end within {limit_s} s:\n{out}{error}") from None
    finally:
        _kill(running)
    assert running.returncode == 0, f"{script.name} ended with {running.returncode}:\n{out}{error}"
    return out


def results(
    script: Path, *arguments: str, processes: int = 0, limit_s: float = 100.0
) -> list[Any]:
    """What the processes of a script printed as JSON, one line each."""
    out = launch(script, *arguments, processes=processes, limit_s=limit_s)
    found = [json.loads(line) for line in out.splitlines() if line.startswith(("{", "["))]
    assert len(found) == max(processes, 1), out
    return found


def _kill(running: subprocess.Popen[str]) -> None:
    """End a script with all its processes: torchrun puts each of them in a session of its own."""
    if running.poll() is None:
        running.terminate()  # torchrun ends its processes when it is asked to
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(10.0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
