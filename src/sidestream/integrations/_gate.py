"""When the hooks of a framework may run in the loader's thread. Knows no torch."""

from __future__ import annotations

import threading


class Gate:
    """Where the hooks of training wait while another stage may be under way.

    Open from the moment the loop asks for a batch until it is done with it. Hooks look at
    `trainer.training` and `self.training`, which a validation within the epoch changes.

    Threads:
        Entered by the loader's thread; all else belongs to the loop's.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = False
        self._is_closed = False
        self._is_inside = False

    def open(self) -> None:
        """Let hooks run."""
        with self._changed:
            self._is_open, self._is_closed = True, False
            self._changed.notify_all()

    def shut(self) -> None:
        """Let no hook begin, and wait for one that runs."""
        with self._changed:
            self._is_open = False
            self._changed.wait_for(lambda: not self._is_inside)

    def close(self) -> None:
        """Send away whoever waits: no further batch is wanted."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_open or self._is_closed)
            if self._is_closed:
                raise _NotWantedError
            self._is_inside = True

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_inside = False
            self._changed.notify_all()


class _NotWantedError(Exception):
    """The pass was ended while a batch of it waited for the gate; nobody ever sees this."""
