"""Scripts in an interpreter of their own, under a hard limit, with a look at how they ended.

Importing torch takes seconds, so one interpreter imports it for all and each script runs in a fork
of that, as its `__main__`, down to the interpreter's real end. `fresh=True` starts a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import selectors
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import sidestream
from support import leaks

PREAMBLE = """
import gc, os, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from sidestream import AsynchronousLoader
from support.sources import *
from support.waiting import Worker, loader_threads, wait_until, wait_until_blocked

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may inherit 'ignore'

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + chr(10))  # at once: other threads say things too
    sys.stdout.flush()

"""

# In the template: a fork for each script that watches it, and a fork of that which is the script.
# Only the latter leaves `serve`, and with it the interpreter, in the usual way.
TEMPLATE = """
import gc, os, signal, socket, sys, threading, time
import psutil, torch
import torch.utils.data, sidestream, support.sources, support.waiting

def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

def serve(requests):
    signal.signal(signal.SIGCHLD, reap)
    while True:
        text, fds, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not text:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            out, err, status = fds
            child = os.fork()
            if child == 0:
                os.setsid()
                os.dup2(out, 1)
                os.dup2(err, 2)
                for fd in fds:
                    os.close(fd)
                return text.decode()
            os.close(out)
            os.close(err)
            os.write(status, f"{child}\\n".encode())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os.write(status, f"{code}\\n".encode())
            os._exit(0)
        for fd in fds:
            os.close(fd)

exec(compile(serve(socket.socket(fileno=int(sys.argv.pop()))), "<script>", "exec"))
"""


def _start(text: str, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
    paths = [Path(sidestream.__file__).parents[1], Path(__file__).parents[1]]
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", text, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        **options,
    )


class Template:
    """An interpreter that has imported what scripts need, and forks."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests = ours
        with theirs:
            self._process = _start(TEMPLATE, str(theirs.fileno()), pass_fds=[theirs.fileno()])
        self.pid = self._process.pid

    def start(self, text: str, out: int, err: int) -> int:
        """Run a script, and give the pipe on which its id and its exit code come."""
        status, theirs = os.pipe()
        socket.send_fds(self._requests, [text.encode()], [out, err, theirs])
        os.close(theirs)
        return status

    def close(self) -> None:
        self._requests.close()
        self._process.wait(20)


@functools.cache
def template() -> Template | None:
    """The one of this process, from the first script on; None where there is no fork."""
    if not hasattr(os, "fork"):
        return None
    made = Template()
    atexit.register(made.close)
    leaks.KEPT.add(made.pid)
    return made


class Script:
    """A running script."""

    def __init__(self, text: str, *, fresh: bool = False) -> None:
        text = PREAMBLE + textwrap.dedent(text)
        self.stdout = ""
        self.stderr = ""
        self.returncode: int | None = None
        self._waited = 0  # where in the output the line ends that was waited for last
        out, their_out = os.pipe()
        err, their_err = os.pipe()
        self._open = {out: "stdout", err: "stderr"}
        self._process = None
        self._status = None
        forks = None if fresh else template()
        if forks is not None:
            self._status = open(forks.start(text, their_out, their_err), "rb")  # noqa: SIM115
        else:
            self._process = _start(text, stdout=their_out, stderr=their_err)
        os.close(their_out)
        os.close(their_err)
        self.pid = self._process.pid if self._process else int(self._status.readline())

    def wait_for(self, line: str, limit_s: float = 20.0) -> None:
        """Read its output up to this line, after the one waited for before."""
        until = time.monotonic() + limit_s
        while f"\n{line}\n" not in f"\n{self.stdout[self._waited :]}":
            assert self._read(until), f"no {line!r} before its end:\n{self.stdout}{self.stderr}"
        self._waited += f"\n{self.stdout[self._waited :]}".index(f"\n{line}\n") + len(line) + 1

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        os.kill(self.pid, signal.SIGINT)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def finish(self, limit_s: float = 20.0) -> Script:
        """Wait for its end; fail when it does not come in time."""
        until = time.monotonic() + limit_s
        while self._read(until):
            pass
        if self.returncode is None:
            if self._process is not None:
                self.returncode = self._process.wait(max(0.1, until - time.monotonic()))
            else:
                self.returncode = int(self._status.readline())
                self._status.close()
        return self

    def kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _read(self, until: float) -> bool:
        """Take in some more output; say whether more may come."""
        if not self._open:
            return False
        with selectors.DefaultSelector() as selector:
            for fd in self._open:
                selector.register(fd, selectors.EVENT_READ)
            ready = selector.select(max(0.0, until - time.monotonic()))
        if not ready:
            self.kill()
            raise AssertionError(f"no end in time:\n{self.stdout}{self.stderr}")
        for key, _ in ready:
            some = os.read(key.fd, 1 << 16)
            name = self._open[key.fd]
            setattr(self, name, getattr(self, name) + some.decode())
            if not some:
                os.close(key.fd)
                del self._open[key.fd]
        return True

    def assert_clean(self, *lines: str, returncode: int = 0) -> None:
        """It ended as asked, said these lines, and had nothing to complain of."""
        assert self.stderr == ""
        assert self.returncode == returncode
        assert self.stdout.split() == [word for line in lines for word in line.split()]


@contextlib.contextmanager
def running(text: str, *, fresh: bool = False) -> Iterator[Script]:
    """A script that is gone afterwards, its workers included, however the test ends."""
    script = Script(text, fresh=fresh)
    try:
        yield script
    finally:
        script.kill()
        script.finish()


def run(text: str, limit_s: float = 20.0, *, fresh: bool = False) -> Script:
    """Run a script to its end."""
    with running(text, fresh=fresh) as script:
        return script.finish(limit_s)
