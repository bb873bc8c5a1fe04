"""One batch on its way to the device: stage, copy on the side stream, hand over.

`StreamTransfer` is the real one. `PlainTransfer` serves targets without streams: the host itself,
where nothing is copied, and backends such as MPS, where the copy is made in the simple way. Both
have the same steps: `load` in the loader's thread, `hand_over` in the consumer's, and `close`.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import inspect
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from sidestream import device as seam
from sidestream.batch import movable_leaves, parts_of, path_of, replace_leaves
from sidestream.errors import annotate
from sidestream.packing import (
    Layout,
    Moved,
    can_stage,
    copy_direct,
    is_dense,
    repeats,
    target_stride,
    without_repeats,
)
from sidestream.release import Leases
from sidestream.reuse import ReuseGuard
from sidestream.staging import StagingPool
from sidestream.storages import RecordedAllocations, RecordedCopies, storages_of
from sidestream.timing import Copies, StreamTimer, record

Transform: TypeAlias = Callable[[Any], Any]

_alive: weakref.WeakSet[StreamTransfer] = weakref.WeakSet()


@functools.cache
def _close_all_at_exit() -> None:
    # Registered now and not at import: what comes later runs earlier, and a device's own end is
    # registered when the device is first used.
    atexit.register(_close_all)


def _close_all() -> None:
    """At exit no next hand-over comes; the epochs, registered later, have ended before this."""
    for transfer in list(_alive):
        transfer.close()


@dataclasses.dataclass(slots=True)
class Parcel:
    """A batch between `load` and `hand_over`."""

    batch: Any
    ready: torch.Event | None
    storages: list[torch.UntypedStorage]
    raw: Any
    """What the source gave, kept only where an unused batch must go back to it."""
    shared: bool = False
    """Whether some of the memory is the source's own."""
    position: Any = None
    """Where the pass stands once this batch is delivered."""
    copies: Copies = dataclasses.field(default_factory=Copies)
    sizes: tuple[int, int, int] = (0, 0, 0)
    """What was copied, what it holds on the device, and all page-locked memory [bytes]."""


def name_leaf(error: BaseException, batch: Any, leaf: Any) -> None:
    """Note on an error which leaf of the batch it was about."""
    annotate(error, f"moving {path_of(batch, leaf)}, a {type(leaf).__qualname__}")


def move(batch: Any, device: torch.device) -> Any:
    """Move a batch as a plain loop would: `leaf.to(device)`, once for each leaf."""
    moved = {}
    leaf: Any = None
    try:
        for leaf in movable_leaves(batch):
            new = leaf.to(device)
            if new is not leaf:
                moved[id(leaf)] = new
    except BaseException as error:
        if leaf is not None:
            name_leaf(error, batch, leaf)
        raise
    return replace_leaves(batch, moved) if moved else batch


def pinned_by_itself(leaf: Any) -> Any:
    """What an object's own `pin_memory` gives, where its `to` can make use of it; else None."""
    kind: Any = type(leaf)
    if not _can_copy_behind(kind):
        return None
    try:
        pinned = leaf.pin_memory()
    except RuntimeError:  # refused: for want of memory, or during graph capture (H11)
        return None
    return pinned if type(pinned) is kind else None


@functools.lru_cache(maxsize=1024)
def _can_copy_behind(kind: Any) -> bool:
    """Whether objects of a class pin themselves, and their `to` says that it takes non_blocking.

    A bare `**kwargs` says nothing: it may end in an error.
    """
    if not callable(getattr(kind, "pin_memory", None)):
        return False
    if kind is torch.nn.utils.rnn.PackedSequence:
        return True
    try:
        return "non_blocking" in inspect.signature(kind.to).parameters
    except (TypeError, ValueError):
        return False


def _may_hide_tensors(part: Any) -> bool:
    """Whether something in a batch is neither a tensor nor plain data."""
    return not isinstance(part, (torch.Tensor, str, bytes, int, float, complex, type(None))) and (
        type(part).__module__ != "numpy"
    )


class PlainTransfer:
    """Moves with `to`, in whatever thread calls; the reference for what a batch looks like."""

    timer: StreamTimer | None = None

    def __init__(
        self, device: torch.device, transform: Transform | None, guard: ReuseGuard | None
    ) -> None:
        self.device = device
        self._transform = transform
        self._guard = guard

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """The surroundings in which the source is read; none here."""
        return contextlib.nullcontext()

    def follow_caller(self) -> None:
        """Order what follows after the caller's work; a device without streams does that."""

    def load(self, batch: Any) -> Parcel:
        """Move a batch."""
        if self._guard is not None:
            batch = self._guard.protect(batch)
        batch = move(batch, self.device)
        if self._transform is not None:
            batch = self._transform(batch)
        return Parcel(batch, None, [], None)

    def hand_over(self, parcel: Parcel) -> Any:
        """Give the consumer its batch."""
        return parcel.batch

    def wait_for_sources(self) -> None:
        """Return when no copy reads the source's own memory; here none does by now."""

    def end_pass(self) -> None:
        """Keep nothing of the source's batches."""
        if self._guard is not None:
            self._guard.end_pass()

    def close(self) -> None:
        """Give memory back; none is held."""


class StreamTransfer(PlainTransfer):
    """Copies on a side stream of its own, out of page-locked slots, and leases what it made.

    Threads:
        `load`, `reading` and `wait_for_sources`: the loader's threads. `hand_over` and
        `follow_caller`: the consumer's. `close`: any.
    """

    def __init__(
        self,
        device: torch.device,
        transform: Transform | None,
        guard: ReuseGuard | None,
        buffer_size: int,
    ) -> None:
        super().__init__(device, transform, guard)
        self._records = True
        self._process = os.getpid()
        self._side = seam.new_stream(device)
        self.timer = StreamTimer(device) if seam.keeps_time(self._side) else None
        self._leases = Leases(device, self._side)
        self._loading = threading.RLock()
        self._buffer_size = buffer_size
        self._pool = StagingPool(buffer_size + 1, seam.pinned_bytes)
        # Page-locked storages of the source, each list with the event after its copies.
        self._borrowed: deque[tuple[torch.Event, list[list[torch.UntypedStorage]]]] = deque()
        _alive.add(self)
        _close_all_at_exit()

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """Read the source with the side stream current.

        Whatever the source queues on the device is then ordered before the ready event, and what
        it allocates there is leased as our own.
        """
        return seam.using(self._side)

    def follow_caller(self) -> None:
        """Order the side stream after what the calling thread has queued so far.

        A dataset may live on the device, made a moment ago on the caller's stream.
        """
        self._leases.sweep()
        self._side.wait_event(seam.current_stream(self.device).record_event())

    def load(self, batch: Any) -> Parcel:
        """Stage a batch and queue its copies; return before they have run.

        Called inside `reading`: the side stream is current.
        """
        if self._guard is not None:
            batch = self._guard.protect(batch)
        try:
            moved = self._move(batch, movable_leaves(batch))
            batch = replace_leaves(batch, moved.leaves)
            if self._transform is not None:
                batch = self._transformed(batch, self._transform, moved)
                moved.copied = None
            return self._parcel(batch, moved)
        except torch.OutOfMemoryError:
            self._leases.sweep()  # what the user has dropped is free for whoever tries again
            raise

    def _parcel(self, batch: Any, moved: Moved) -> Parcel:
        # Always an event: the source may have queued work for what only the user can find.
        return Parcel(
            batch,
            moved.copied or self._side.record_event(),
            moved.storages,
            None,
            moved.shared,
            copies=moved.copies,
            sizes=(moved.copies.num_bytes, moved.num_bytes(), self._pool.size_bytes),
        )

    def hand_over(self, parcel: Parcel) -> Any:
        """Make the consumer's current stream wait for the batch's copies, and never the host."""
        self._leases.hand_over(parcel.ready, parcel.storages, shared=parcel.shared)
        return parcel.batch

    def wait_for_sources(self) -> None:
        """Return when no copy reads memory that the source may be about to write.

        Only page-locked tensors are copied without a detour, and only where the source still
        holds one can it write it: a buffer of its own that it fills for every batch (H9). Also
        wait until no more of them are kept for their copies than there would be slots (G5).
        """
        with self._loading:
            borrowed = list(self._borrowed)
        # Below 0 are those that are too many.
        for number, (event, holders) in enumerate(borrowed, self._buffer_size - len(borrowed)):
            if number < 0 or not seam.CAN_TELL_HOLDERS or any(map(seam.is_held, holders)):
                event.synchronize()
        del borrowed
        with self._loading:
            while self._borrowed and self._borrowed[0][0].query():
                self._borrowed.popleft()

    def close(self) -> None:
        """Give page-locked memory back after its copies, and let all leases go."""
        if self._process != os.getpid():  # a forked child: the device is not its own
            return
        with self._loading:
            self._pool.close()
            while self._borrowed:
                self._borrowed.popleft()[0].synchronize()
        self._leases.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # closed before, and what closing calls may be gone
            return
        with contextlib.suppress(AttributeError):  # of a construction that failed half-way
            self.close()

    def _move(self, batch: Any, leaves: list[Any]) -> Moved:
        """Queue the copies of all leaves."""
        copies = Copies(self._side if self.timer else None)
        moved = Moved(copies)
        layout = Layout()
        try:
            for leaf in leaves:
                if not can_stage(leaf):
                    self._move_itself(batch, leaf, moved)
                elif not layout.add(leaf):
                    self._sort_large(leaf, layout, moved)
        finally:  # also after an error: some copies may be queued
            if moved.borrowed:
                with self._loading:
                    self._borrowed.append((self._side.record_event(), moved.borrowed))
        if layout.size_bytes:
            self._stage(layout, moved)
        elif copies.began:
            moved.copied = record(self._side)
        copies.ended = moved.copied
        return moved

    def _stage(self, layout: Layout, moved: Moved) -> None:
        """Stage and copy what needs it. No code of the user's runs under the lock."""
        with self._loading:
            asked = time.perf_counter()
            slot = self._pool.acquire(layout.size_bytes)
            moved.copies.waited_s += time.perf_counter() - asked
            try:
                if torch.is_autocast_enabled("cpu"):  # joining tensors would change their types
                    with torch.autocast("cpu", enabled=False):
                        layout.copy(slot, self.device, moved)
                else:
                    layout.copy(slot, self.device, moved)
            finally:  # also after an error
                moved.copied = record(self._side) if self.timer else self._side.record_event()
                slot.submit(moved.copied)

    def _transformed(self, batch: Any, transform: Transform, moved: Moved) -> Any:
        """Run the transform, and add the memory of its result to what is leased.

        Of tensors that is found in the result. Where the result has objects that keep their
        tensors to themselves, what the transform allocates is recorded instead; the first call
        is recorded too, to learn of which kind the results are.
        """
        with RecordedAllocations(self.device) if self._records else contextlib.nullcontext() as on:
            batch = transform(batch)
        leaves = movable_leaves(batch)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for tensor in tensors:
            moved.storages.extend(storages_of(tensor, self.device))
        self._records = bool(parts_of(batch, _may_hide_tensors))
        if on is not None and self._records:
            moved.storages.extend(on.storages)
        return batch

    def _sort_large(self, leaf: torch.Tensor, layout: Layout, moved: Moved) -> None:
        if leaf.numel() == 0:
            moved.note(leaf, torch.empty_like(leaf, device=self.device))
        elif leaf.is_pinned() and is_dense(leaf):
            moved.note(leaf, copy_direct(leaf, self.device, moved.copies))
            moved.borrowed.append([leaf.untyped_storage()])
        elif 0 in leaf.stride() and repeats(leaf):
            self._move_expanded(leaf, moved)
        else:
            layout.add_alone(leaf)

    def _move_itself(self, batch: Any, leaf: Any, moved: Moved) -> None:
        """Ask a leaf to move itself.

        Without `non_blocking`, unless it pins itself first: its memory is not ours to keep, and
        where it can be kept, the copies out of it tell which it is.
        """
        new: Any = leaf
        try:
            if not isinstance(leaf, torch.Tensor):
                new = self._ask_to_move(leaf, moved)
            elif leaf.device == self.device:
                moved.shared = True
            else:
                new = leaf.to(self.device)
        except BaseException as error:
            name_leaf(error, batch, leaf)
            raise
        moved.leaves[id(leaf)] = new
        if isinstance(new, torch.Tensor):
            moved.storages.extend(storages_of(new, self.device))

    def _ask_to_move(self, leaf: Any, moved: Moved) -> Any:
        pinned = pinned_by_itself(leaf)
        if pinned is None:
            with RecordedAllocations(self.device) as recorded:
                new = leaf.to(self.device)
            moved.storages.extend(recorded.storages)
            return new
        with RecordedCopies(self.device) as copies:
            try:
                new = pinned.to(self.device, non_blocking=True)
            finally:
                # Page-locked by the call above or by the user, and, where an object pinned only
                # a part of itself, pageable: all are kept, and waited for where the source still
                # holds them.
                moved.borrowed.extend([storage] for storage in copies.sources)
        moved.storages.extend(copies.storages)
        return new

    def _move_expanded(self, leaf: torch.Tensor, moved: Moved) -> None:
        """Copy what there really is, and repeat it on the device."""
        once = without_repeats(leaf)
        alone = self._move(once, [once])
        there = alone.leaves[id(once)]
        moved.copies.num_bytes += alone.copies.num_bytes
        new = torch.empty_strided(
            leaf.shape, target_stride(leaf), dtype=leaf.dtype, device=self.device
        )
        moved.note(leaf, new.copy_(there.expand(leaf.shape)))
