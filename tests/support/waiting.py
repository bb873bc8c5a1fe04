"""Waiting for what another thread does, with a bound and without blind sleeping."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import sidestream.channel

LIMIT_S = 15.0  # arbitrary: longer than anything here may take


def wait_until(condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> None:
    """Return as soon as the condition holds; fail when it never does."""
    until = time.monotonic() + limit_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < until, f"not seen within {limit_s} s: {what}"
        pause.wait(0.001)


def is_blocked(thread: threading.Thread) -> bool:
    """Whether a thread is inside one of the waits of `threading`, or of a channel."""
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and (
        frame.f_code.co_filename == threading.__file__
        or frame.f_code is sidestream.channel._sleep.__code__
    )


def wait_until_blocked(thread: threading.Thread) -> None:
    """Return when a thread stands in a wait, seen twice so that it is not passing through."""
    wait_until(lambda: is_blocked(thread), f"{thread.name} waits")
    threading.Event().wait(0.002)
    wait_until(lambda: is_blocked(thread), f"{thread.name} still waits")


class Worker(threading.Thread):
    """Runs a function, keeps what it returns or raises, and hands that over in `result`."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        super().__init__(name=f"test-{getattr(function, '__name__', 'worker')}", daemon=True)
        self._function = function
        self._arguments = args
        self._outcome: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._outcome = self._function(*self._arguments)
        except BaseException as error:
            self._error = error
        finally:
            del self._function, self._arguments

    def result(self, limit_s: float = LIMIT_S) -> Any:
        self.join(limit_s)
        assert not self.is_alive(), f"{self.name} did not end within {limit_s} s"
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._outcome


def loader_threads() -> list[threading.Thread]:
    """The threads that are neither the main one nor made by a test."""
    return [
        thread
        for thread in threading.enumerate()
        if thread is not threading.main_thread() and not thread.name.startswith("test-")
    ]
