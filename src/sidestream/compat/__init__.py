"""The signatures of two earlier asynchronous loaders, for programs that were written for them.

Change the import and nothing else:

    from sidestream.compat.lighter import AsynchronousLoader  # was lighter.train
    from sidestream.compat.bolts import AsynchronousLoader  # was pl_bolts.datamodules

Both are `sidestream.AsynchronousLoader` behind another constructor. Batches keep their types,
where the earlier ones made lists and dicts of them. `iter(loader)` is a pass of its own and not
the loader itself, so `next` goes to what `iter` gave.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidestream.loader import AsynchronousLoader


def buffer_size_of(queue_size: int, batches: Any) -> int:
    """The buffer size for the size of a `queue.Queue`, where 0 and less is no limit."""
    if queue_size > 0:
        return queue_size
    with contextlib.suppress(TypeError):  # a stream of unknown length
        return max(1, len(batches))
    return sys.maxsize


class QueueView:
    """What programs ask the `queue` attribute of the earlier loaders: whether they are starved."""

    def __init__(self, loader: AsynchronousLoader[Any]) -> None:
        self._loader = loader
        self.maxsize = loader._buffer_size

    def qsize(self) -> int:
        """How many batches wait [batches]."""
        return self._loader._run_here().num_waiting

    def empty(self) -> bool:
        """Whether none waits: the next one will have to be waited for."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Whether no more will be loaded before one is taken."""
        return self.qsize() >= self.maxsize
