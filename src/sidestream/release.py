"""When device memory may be given back: leases of what the consumer was handed.

A batch is allocated and copied on the side stream, so a tensor that dies in Python goes back to
the side stream's free list, and the next copy may overwrite it while the consumer's queued kernels
still read it (H3). Therefore the loader holds the *storages* of each batch beside the consumer,
and lets a storage go only when nobody else holds it any more and the side stream has been made to
wait for all work queued until then, on every stream the consumer used since.

It is storages and not tensors, because a tensor the user keeps would hide behind our own
reference. `record_stream`, the usual way, lets reserved memory grow with how far the CPU runs
ahead of the device (H5); it is used only where no next batch will ever be asked for.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeAlias

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from sidestream import device as seam

# How many long-kept storages one hand-over looks at. Looking costs about 0.3 us each; a user who
# keeps thousands of batches must not pay for all of them at every step. Arbitrary beyond that.
_LOOK_AT = 64

# A storage, in the one list that holds it for us, and the hand-over it was leased at.
_Lease: TypeAlias = tuple[list[torch.UntypedStorage], int]
_Leases: TypeAlias = dict[int, _Lease]


class Leases:
    """The leases of one loader on one device; they outlive its epochs.

    Threads:
        Any thread may call any method. An exception thrown in by a signal handler at any point
        loses no storage: each is dropped only after its fence is queued.
    """

    def __init__(self, device: torch.device, side: torch.Stream) -> None:
        self._device = device
        self._side = side
        self._lock = threading.RLock()
        self._number = 0
        self._shared = False
        # Three ages of leases, each by the identity of its storage: the batch handed over
        # last, which the consumer surely still holds; the one before; and all that were kept.
        self._newest: _Leases = {}
        self._recent: _Leases = {}
        self._kept: OrderedDict[int, _Lease] = OrderedDict()
        # Consumer stream by id -> the stream, and the last hand-over at which it was current.
        self._met: dict[int, tuple[torch.Stream, int]] = {}
        # What was still held at a `close`. The allocator knows its streams until then; those of
        # later hand-overs are added as they come.
        self._given_up: list[StorageWeakRef] = []

    def hand_over(
        self,
        ready: torch.Event | None,
        storages: list[torch.UntypedStorage],
        *,
        shared: bool = False,
    ) -> None:
        """Let the calling thread's current stream use a batch, and lease the batch's storages.

        Args:
            ready: The event after the batch's copies; None if there are none.
            storages: The device memory that the batch lies in.
            shared: Whether the source itself may write some of it again. From then on whatever
                it queues is ordered after the use of the batches before.

        The order is worth a factor of two: this is called when the batch is already in hand, its
        copy queued, so that what the side stream is made to wait for here delays the copies
        *after* it and not its own.
        """
        stream = seam.current_stream(self._device)
        with self._lock:
            self._number += 1
            self._shared = self._shared or shared
            self._meet(stream)
            if self._given_up:
                self._record_given_up(stream)
            self._release(itertools.chain(self._recent, itertools.islice(self._kept, _LOOK_AT)))
            self._age()
            if ready is not None:
                stream.wait_event(ready)
            if not seam.CAN_TELL_HOLDERS:
                _record_use(storages, [stream])
                return
            for storage in storages:
                key = storage._cdata
                if not (key in self._newest or key in self._recent or key in self._kept):
                    self._newest[key] = ([storage], self._number)

    def sweep(self) -> None:
        """Let go of what nobody holds any more."""
        with self._lock:
            self._release(itertools.chain(self._newest, self._recent, self._kept))

    def close(self) -> None:
        """Let go of everything, and leave what somebody still holds to the allocator."""
        with self._lock:
            self._meet(seam.current_stream(self._device))
            self.sweep()
            for leases in (self._newest, self._recent, self._kept):
                for key, (holder, since) in list(leases.items()):
                    _record_use(holder, self._streams_since(since))
                    self._given_up.append(StorageWeakRef(holder[0]))  # type: ignore[no-untyped-call]
                    del leases[key]
            self._met.clear()

    def __len__(self) -> int:
        """How many storages are leased."""
        return len(self._newest) + len(self._recent) + len(self._kept)

    def _release(self, keys: Iterable[int]) -> None:
        """Fence and drop those of these storages that nobody else holds."""
        free: list[int] = []
        oldest = self._number
        # Looked at first, fenced after: whatever used a storage was queued before its last holder
        # let it go, and so before the events recorded here.
        for key in keys:
            holder, since = self._lease(key)
            if not seam.is_held(holder):
                free.append(key)
                oldest = min(oldest, since)
        if self._shared:
            oldest = min(oldest, self._number - 1)
        elif not free:
            return
        self._fence(free, oldest)
        for key in free:
            for leases in (self._newest, self._recent, self._kept):
                leases.pop(key, None)

    def _fence(self, keys: list[int], since: int) -> None:
        """Let what follows on the side stream wait for all uses of these storages."""
        for stream in self._streams_since(since):
            self._side.wait_event(stream.record_event())

    def _record_given_up(self, stream: torch.Stream) -> None:
        self._given_up = [
            ref
            for ref in self._given_up
            if not ref.expired()  # type: ignore[no-untyped-call]
        ]
        for ref in self._given_up:
            storage = torch.UntypedStorage._new_with_weak_ptr(ref.cdata)
            if storage is not None:
                _record_use([storage], [stream])

    def _meet(self, stream: torch.Stream) -> None:
        self._met[stream.stream_id] = (stream, self._number)

    def _lease(self, key: int) -> _Lease:
        return self._kept.get(key) or self._recent.get(key) or self._newest[key]

    def _streams_since(self, number: int) -> list[torch.Stream]:
        return [stream for stream, last in self._met.values() if last >= number]

    def _age(self) -> None:
        """Make room for a new batch's leases. What was looked at goes behind what was not."""
        for key in list(itertools.islice(self._kept, _LOOK_AT)):
            self._kept.move_to_end(key)
        self._kept.update(self._recent)
        self._recent, self._newest = self._newest, {}
        if len(self._met) == 1:
            return
        since = min((since for _, since in self._kept.values()), default=self._number - 1)
        for key in [key for key, (_, last) in self._met.items() if last < since]:
            del self._met[key]


def _record_use(storages: list[torch.UntypedStorage], streams: list[torch.Stream]) -> None:
    """Tell the allocator that streams use these storages: the way out without a next hand-over."""
    for storage in storages:
        if not storage.nbytes():
            continue
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        for stream in streams:
            whole.record_stream(stream)
