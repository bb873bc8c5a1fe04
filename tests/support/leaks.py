"""What a test left behind: threads, child processes, and iterators of passes not ended."""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from typing import Any

import psutil

from sidestream import AsynchronousLoader

JOIN_S = 2.0  # the longest wait for a thread or a process that is on its way out


def iterator_type() -> type:
    """The class of what `iter(loader)` gives, found without naming a module."""
    iterator = iter(AsynchronousLoader([], "cpu"))
    assert list(iterator) == []
    return type(iterator)


KEPT: set[int] = set()
"""Child processes that stay for all tests, by id."""


class Snapshot:
    """What lives now; `leaks` tells what came later and stayed."""

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._children = set(psutil.Process().children(recursive=True))
        self._iterators = {id(iterator) for iterator in _live_iterators()}

    def leaks(self, join_s: float = JOIN_S) -> list[str]:
        """Say what stayed, after a bounded wait for what is ending."""
        until = time.monotonic() + join_s
        gc.collect()
        while self._new_threads() and time.monotonic() < until:
            # A worker that is in the middle of a task holds what is garbage when it is back.
            time.sleep(0.01)
            gc.collect()
        found = [
            f"an iterator is alive: {iterator!r}, held by {_holders(iterator)}"
            for iterator in _live_iterators()
            if id(iterator) not in self._iterators
        ]
        for thread in self._new_threads():
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                found.append(f"thread {thread.name} is alive, in:\n{_stack_of(thread)}")
        children = [child for child in self._new_children() if not _is_python_helper(child)]
        _, alive = psutil.wait_procs(children, timeout=max(0.0, until - time.monotonic()))
        found += [f"child process {child} is alive" for child in alive]
        return found

    def _new_threads(self) -> set[threading.Thread]:
        return set(threading.enumerate()) - self._threads

    def _new_children(self) -> set[psutil.Process]:
        children = set(psutil.Process().children(recursive=True)) - self._children
        return {child for child in children if child.pid not in KEPT}


def _live_iterators() -> list[Any]:
    return [obj for obj in gc.get_objects() if type(obj) is _ITERATOR_TYPE]


def _holders(obj: Any) -> list[str]:
    return [type(holder).__name__ for holder in gc.get_referrers(obj)]


def _stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident)
    return "".join(traceback.format_stack(frame)) if frame else "(no frame)"


def _is_python_helper(child: psutil.Process) -> bool:
    """Python's own resource tracker lives until the interpreter ends."""
    try:
        return any("resource_tracker" in word for word in child.cmdline())
    except psutil.Error:
        return True


_ITERATOR_TYPE = iterator_type()
