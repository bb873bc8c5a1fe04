"""Host memory for batches: used again as soon as nobody holds any of it, and not before.

A batch's tensor lies in a storage that borrows its bytes from a block. The storage dies with the
last tensor, view, numpy array or autograd graph on it, and only that gives the block back. So no
batch that somebody keeps is ever written again, and nobody has to say that they are done.

Fresh memory is what makes collation slow: the system clears every page at its first touch.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import defaultdict, deque

import torch

from sidestream import device as seam

LEAST_BYTES = 64 * 1024
"""From this size on [bytes] a tensor lies in memory that is used again. Smaller ones come from the
host's allocator, which keeps such sizes at hand; and the loader packs them anyway."""


class Blocks:
    """Pageable memory to be used again, for the batches of one loader.

    Blocks are kept for each tensor of a batch by itself: somebody who keeps the labels does not
    keep the images. New memory is asked for only while all of it is in use, so it is never more
    than what batches in use take; and of what the user had kept longer, at most `max_free` blocks
    a tensor stay.

    Threads:
        Any. Nothing here waits: blocks come back from finalizers, which may run at any point.
    """

    def __init__(self, max_free: int) -> None:
        self._max_free = max_free
        self._free: defaultdict[int, deque[torch.Tensor]] = defaultdict(self._new_list)

    @property
    def size_bytes(self) -> int:
        """How much lies ready [bytes]."""
        return sum(block.numel() for free in list(self._free.values()) for block in list(free))

    def take(self, number: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for tensor `number` of a batch: of this shape and type, with any values."""
        size_bytes = math.prod(shape) * dtype.itemsize
        free = self._free[number]
        try:
            block = free.pop()  # the one used last, which may still be in the cache
        except IndexError:
            block = None
        if block is None or block.numel() < size_bytes:
            with torch.inference_mode(False):
                block = torch.empty(size_bytes, dtype=torch.uint8, device=seam.HOST)
        loan = (ctypes.c_ubyte * size_bytes).from_address(block.data_ptr())
        # A full list drops its oldest block. Bound to the list alone: this may outlive the rest.
        weakref.finalize(loan, free.append, block).atexit = False
        return torch.frombuffer(loan, dtype=dtype).view(shape)

    def _new_list(self) -> deque[torch.Tensor]:
        return deque(maxlen=self._max_free)


class BatchMemory:
    """Where the tensors of one batch are written.

    Args:
        blocks: Memory to be used again; None for page-locked memory, which torch itself uses
            again, after the copies that read it.
    """

    def __init__(self, blocks: Blocks | None) -> None:
        self._blocks = blocks
        self._count = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """A contiguous tensor with any values; None where an ordinary one is as good."""
        size_bytes = math.prod(shape) * dtype.itemsize
        if size_bytes < LEAST_BYTES:
            return None
        if self._blocks is None:
            return seam.pinned_bytes(size_bytes).view(dtype).view(shape)
        self._count += 1
        return self._blocks.take(self._count, shape, dtype)
