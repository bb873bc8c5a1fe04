"""Page-locked slots as a state machine, and the memory they lay batches into.

A slot is FREE, FILLING while the host writes a batch into it, or IN_FLIGHT until the copy that
reads it has finished (H2). Knows no threads, no streams and no batches: memory comes from a
function it is given, and a copy is anything that can be asked and waited for.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

# The least that is asked for at once: a page, the unit in which memory is locked.
PAGE_BYTES = 4096

# Up to this size [bytes] a slot is rounded up to one block: what that wastes is small.
ONE_BLOCK_BYTES = 1 << 20


class Copy(Protocol):
    """A copy under way; `torch.Event` is one."""

    def query(self) -> bool:
        """Whether it has finished."""

    def synchronize(self) -> None:
        """Wait until it has."""


class State(enum.Enum):
    """What a slot is doing."""

    FREE = enum.auto()
    FILLING = enum.auto()
    IN_FLIGHT = enum.auto()


class Slot:
    """Page-locked memory for one batch.

    The memory is a list of blocks, each a power of two in size, as many as one batch needs to the
    page. Page-locking allocators round each request up to a power of two; asked for such sizes
    only, they have nothing to round, and a slot that must grow keeps what it has. Small slots are
    one block, so that what is packed is in one piece.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor]) -> None:
        self.state = State.FREE
        self._allocate = allocate
        self._blocks: list[torch.Tensor] = []
        self._used = 0
        self._copy: Copy | None = None

    @property
    def size_bytes(self) -> int:
        """How much it holds [bytes]."""
        return sum(block.numel() for block in self._blocks)

    def begin(self, size_bytes: int) -> None:
        """Start to fill, with room for `size_bytes`; the slot must be FREE."""
        assert self.state is State.FREE, self.state
        self._make_room(size_bytes)  # which may fail: then the slot is as it was, and free
        self._used = 0
        self.state = State.FILLING

    def _make_room(self, size_bytes: int) -> None:
        if size_bytes <= self.size_bytes:
            return
        if size_bytes <= ONE_BLOCK_BYTES:
            self._blocks.clear()
            pages = -(-size_bytes // PAGE_BYTES)
            self._blocks.append(self._allocate(PAGE_BYTES << (pages - 1).bit_length()))
            return
        missing = -(-(size_bytes - self.size_bytes) // PAGE_BYTES)
        while missing > 0:
            pages = 1 << (missing.bit_length() - 1)
            self._blocks.append(self._allocate(pages * PAGE_BYTES))
            missing -= pages

    def take(self, size_bytes: int) -> list[torch.Tensor]:
        """The next bytes of the slot, as few pieces as they lie in.

        Returns:
            Page-locked tensors of shape `(n,)`, uint8, whose lengths sum to `size_bytes`.
        """
        assert self.state is State.FILLING, self.state
        pieces = []
        start = 0
        for block in self._blocks:
            end = start + block.numel()
            if self._used < end and size_bytes > 0:
                offset = self._used - start
                piece = block[offset : offset + size_bytes]
                pieces.append(piece)
                size_bytes -= piece.numel()
                self._used += piece.numel()
            start = end
        assert size_bytes == 0, "more was taken than begun with"
        return pieces

    def submit(self, copy: Copy) -> None:
        """Say which copy reads the slot; it is free again when that has finished."""
        assert self.state is State.FILLING, self.state
        self._copy = copy
        self.state = State.IN_FLIGHT

    def is_free(self) -> bool:
        """Whether it may be filled again, as far as can be told without waiting."""
        if self.state is State.IN_FLIGHT and self._copy is not None and self._copy.query():
            self._land()
        return self.state is State.FREE

    def wait(self) -> None:
        """Wait until the copy that reads it, if any, has finished."""
        if self._copy is not None:
            self._copy.synchronize()
            self._land()

    def _land(self) -> None:
        self._copy = None
        self.state = State.FREE


class StagingPool:
    """At most `max_slots` slots, used in turn.

    Threads:
        One thread at a time; the caller sees to it.
    """

    def __init__(self, max_slots: int, allocate: Callable[[int], torch.Tensor]) -> None:
        self._max_slots = max_slots
        self._allocate = allocate
        self._slots: deque[Slot] = deque()  # the one used longest ago first

    @property
    def size_bytes(self) -> int:
        """Page-locked memory held [bytes]."""
        return sum(slot.size_bytes for slot in self._slots)

    def acquire(self, size_bytes: int) -> Slot:
        """A slot in state FILLING with room for `size_bytes`.

        New slots come first: after `max_slots` batches nothing is page-locked any more but for a
        larger batch (H11). Copies finish in the order they were queued in, so the slot used
        longest ago is the one that is free, or the one to wait for.
        """
        if len(self._slots) < self._max_slots:
            slot = Slot(self._allocate)
        else:
            slot = self._slots[0]
            if not slot.is_free():
                slot.wait()
            self._slots.popleft()
        self._slots.append(slot)
        slot.begin(size_bytes)
        return slot

    def close(self) -> None:
        """Give all memory back, after the copies that read it (G4)."""
        while self._slots:
            self._slots.popleft().wait()
