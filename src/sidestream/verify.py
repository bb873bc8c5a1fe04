"""Check that every batch is what the source gave: as it arrives, and when its last holder lets go.

For a user who doubts: with `SIDESTREAM_VERIFY=1` in the environment each tensor on the device is
compared with its host original, bit by bit: as the copy left it, as the consumer's stream found it
at the hand-over, and behind all its uses, before its memory is given back. What differs raises a
RuntimeError that names the batch, the place in it and the hazard. Imported only where it is on.

A check that waited would hide what it looks for. So the original is copied when the batch is read,
into page-locked memory of its own, and goes to the device on a stream of its own. All that the
consumer's stream does is to copy what it sees, into memory that is there already. (Were it
allocated on that stream, it might be what the user has freed there and still uses on another.)
The comparisons run on the check's own stream, and the host reads their outcomes a few batches
later; until then all this memory is held.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from sidestream import device as seam
from sidestream.batch import movable_leaves, path_of
from sidestream.packing import Moved, can_stage
from sidestream.release import Leases
from sidestream.reuse import ReuseGuard
from sidestream.transfer import Parcel, StreamTransfer, Transform

_OUTSTANDING = 4
"""How many releases may wait for their outcome before the consumer waits. Arbitrary: a device that
is a few steps behind delays nobody, and the copies of originals stay few."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclasses.dataclass(slots=True)
class _Watched:
    """A tensor of a batch and what it must hold. Does not keep its memory alive."""

    place: str
    is_direct: bool  # copied out of page-locked memory of the source's own
    host: torch.Tensor  # the original; kept until its copy has ended
    original: torch.Tensor
    geometry: tuple[torch.dtype, int, torch.Size, tuple[int, ...]]
    counter: torch.Tensor | None  # empty, with the version counter of the tensor
    version: int
    storage: torch.UntypedStorage | None  # until it is handed over
    copied: torch.Tensor  # what was there after the copy, as integers
    first: torch.Tensor  # what was seen at the hand-over
    last: torch.Tensor  # what was seen when nobody held it any more
    allocated: torch.Event
    looked: torch.Event | None = None  # after the first of these
    number: int = -1
    is_seen: bool = False  # at the hand-over
    is_compared_at_last: bool = False

    def is_as_made(self) -> bool:
        """Whether it is known that the user has not changed it, which is allowed."""
        return self.counter is not None and self.counter._version == self.version

    def look(
        self, stream: torch.Stream, storage: torch.UntypedStorage, copy: torch.Tensor
    ) -> None:
        """Queue a copy of what lies in the storage now, on a stream that is the current one."""
        stream.wait_event(self.allocated)
        dtype, *where = self.geometry
        now = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, *where)
        copy.copy_(_bits(now))

    def finding(self, copied: bool, first: bool, last: bool) -> str | None:
        """What the outcomes of the comparisons mean, each whether it was wrong."""
        if copied and self.is_direct:
            what = "the source wrote into its page-locked memory before the copy had ended (H9)"
        elif copied:
            what = "its staging memory was written before the copy had ended (H2)"
        elif first and not last:
            what = "it was handed over before its copy had ended (H1)"
        elif last:
            what = (
                "its device memory was written while it was in use (H3), or changed by what torch "
                "is not told of: `.data`, a kernel of your own"
            )
        else:
            return None
        return _message(self.number, self.place, what)


class _WatchedParcel(Parcel):
    """A parcel, and what must be in it."""

    __slots__ = ("watched",)

    watched: list[_Watched]


class VerifyingTransfer(StreamTransfer):
    """A `StreamTransfer` that compares what it moved with what it was given."""

    def __init__(
        self,
        device: torch.device,
        transform: Transform | None,
        guard: ReuseGuard | None,
        buffer_size: int,
    ) -> None:
        super().__init__(device, transform, guard, buffer_size)
        self._own = seam.new_stream(device)
        self._idle = seam.new_stream(device)  # nothing runs here: memory for any stream
        self._judge = _Judge(self._own)
        self._leases = _WatchedLeases(device, self._side, self._judge)

    def hand_over(self, parcel: Parcel) -> Any:
        """Hand a batch over, compared.

        Raises:
            RuntimeError: What was found about this or earlier batches.
        """
        batch = super().hand_over(parcel)
        if isinstance(parcel, _WatchedParcel):
            number = parcel.position.num_batches - 1 if parcel.position is not None else -1
            self._judge.arrive(parcel.watched, number, seam.current_stream(self.device))
            parcel.watched = []
        self._judge.pronounce()
        return batch

    def close(self) -> None:
        """Give memory back.

        Raises:
            RuntimeError: What was found about the last batches.
        """
        super().close()
        if self._process == os.getpid():
            self._judge.pronounce(at_end=True)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():
            return
        try:
            self.close()
        except AttributeError:  # of a construction that failed half-way
            pass
        except RuntimeError as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)

    def _move(self, batch: Any, leaves: list[Any]) -> Moved:
        with _undisturbed():
            originals = [(x, _page_locked(x), x.is_pinned()) for x in leaves if can_stage(x)]
        moved = super()._move(batch, leaves)
        moved.originals = [(moved.leaves[id(x)], *rest) for x, *rest in originals]
        return moved

    def _transformed(self, batch: Any, transform: Transform, moved: Moved) -> Any:
        """Watch over what goes in; what comes out has no original, and must stay as it is."""
        into = self._watch(batch, moved.originals)
        for watched in into:
            watched.storage = None
        batch = super()._transformed(batch, transform, moved)
        with _undisturbed():
            moved.originals = [
                (leaf, leaf.clone(), False)
                for leaf in movable_leaves(batch)
                if type(leaf) is torch.Tensor and leaf.device == self.device
            ]
        moved.watched = into
        return batch

    def _parcel(self, batch: Any, moved: Moved) -> Parcel:
        watched = [*moved.watched, *self._watch(batch, moved.originals)]
        moved.copied = None  # the batch is ready after what was queued here, too
        made = super()._parcel(batch, moved)
        fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(Parcel)}
        parcel = _WatchedParcel(**fields)
        parcel.watched = watched
        return parcel

    def _watch(
        self, batch: Any, originals: list[tuple[Any, torch.Tensor, bool]]
    ) -> list[_Watched]:
        """Watch over tensors that are on the device now."""
        found: list[_Watched] = []
        for there, host, is_direct in originals:
            if not (there.numel() and _has_bits(there)):
                continue
            counter = None
            with _undisturbed():  # the side stream is current
                copied = torch.empty_like(_bits(there))
            with _undisturbed(), seam.using(self._own):
                original = _bits(host.to(self.device, non_blocking=True))
                with seam.using(self._idle):
                    first, last = torch.empty_like(original), torch.empty_like(original)
                    allocated = self._idle.record_event()
                if not there.is_inference():  # those have none
                    counter = there.detach()
                    counter.data = torch.empty(0, dtype=there.dtype, device=there.device)
            storage = there.untyped_storage()
            watched = _Watched(
                path_of(batch, there),
                is_direct,
                host,
                original,
                (there.dtype, there.storage_offset(), there.shape, there.stride()),
                counter,
                0 if counter is None else counter._version,
                storage,
                copied,
                first,
                last,
                allocated,
            )
            watched.look(self._side, storage, copied)
            watched.looked = self._side.record_event()
            found.append(watched)
        return found


class _WatchedLeases(Leases):
    """Leases that are looked at before they end."""

    def __init__(self, device: torch.device, side: torch.Stream, judge: _Judge) -> None:
        super().__init__(device, side)
        self._judge = judge
        self._ended: list[tuple[StorageWeakRef, _Watched]] = []

    def close(self) -> None:
        """Let go of everything. What somebody still holds is not compared any more."""
        with self._lock:
            super().close()
            self._judge.forget()

    def _release(self, keys: Iterable[int]) -> None:
        super()._release(keys)
        # Nobody held these, so nobody can have got hold of them since.
        ended, self._ended = self._ended, []
        for ref, watched in ended:
            if not ref.expired():  # type: ignore[no-untyped-call]
                what = "its device memory was released while somebody held it (H3)"
                self._judge.complain(_message(watched.number, watched.place, what))

    def _fence(self, keys: list[int], since: int) -> None:
        for key in keys:
            storage = self._lease(key)[0][0]
            watched = self._judge.leave(storage)
            if watched:
                ref = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._ended.append((ref, watched[0]))
        super()._fence(keys, since)


class _Judge:
    """Knows what is out there, which comparisons are under way, and what they found.

    Threads:
        Any thread may call any method.
    """

    def __init__(self, own: torch.Stream) -> None:
        self._own = own
        self._lock = threading.RLock()
        # By the identity of the storage: what is out there, and the stream that was handed it.
        self._out: dict[int, tuple[torch.Stream, list[_Watched]]] = {}
        self._under_way: deque[tuple[list[_Watched], torch.Tensor, torch.Event]] = deque()
        self._found: list[str] = []
        self._has_raised = False

    def arrive(self, parcel: list[_Watched], number: int, stream: torch.Stream) -> None:
        """Note what the stream sees of a batch that was just handed over to it."""
        here: dict[int, tuple[torch.Stream, list[_Watched]]] = {}
        gone = []
        with self._lock, _undisturbed():
            for one in parcel:
                storage, one.storage, one.number = one.storage, None, number
                if storage is None:  # it went into a transform
                    gone.append(one)
                elif storage._cdata not in self._out:  # else it stands in an earlier batch, too
                    one.look(stream, storage, one.first)
                    one.is_seen = True
                    here.setdefault(storage._cdata, (stream, []))[1].append(one)
            storage = None
            self._out.update(here)
            if gone:
                self._compare(stream, gone, None)
            if not seam.CAN_TELL_HOLDERS:
                self.forget()

    def leave(self, storage: torch.UntypedStorage) -> list[_Watched]:
        """Queue the comparisons with a storage that nobody holds any more, behind its last use."""
        with self._lock:
            if storage._cdata not in self._out:
                return []
            # On the stream that was handed the batch: another one may not know of its copies.
            stream, watched = self._out.pop(storage._cdata)
            self._compare(stream, watched, storage)
            return watched

    def forget(self) -> None:
        """Expect nothing more of what is out there but how it arrived."""
        with self._lock:
            while self._out:
                _, (stream, watched) = self._out.popitem()
                self._compare(stream, watched, None)

    def _compare(
        self, stream: torch.Stream, watched: list[_Watched], storage: torch.UntypedStorage | None
    ) -> None:
        with _undisturbed():
            if storage is not None:
                with seam.using(stream):
                    for one in watched:
                        one.is_compared_at_last = one.is_as_made()
                        if one.is_compared_at_last:
                            one.look(stream, storage, one.last)
            self._own.wait_event(stream.record_event())
            with seam.using(self._own):
                try:
                    outcomes = []
                    for one in watched:
                        assert one.looked is not None
                        self._own.wait_event(one.looked)
                        first = one.first if one.is_seen else one.copied
                        last = one.last if one.is_compared_at_last else one.copied
                        outcomes += [
                            (look != one.original).any() for look in (one.copied, first, last)
                        ]
                    there = torch.stack(outcomes)
                except torch.OutOfMemoryError:  # no room to look at these: give them up
                    self._own.synchronize()
                    return
                here = torch.empty(there.shape, dtype=there.dtype, device="cpu", pin_memory=True)
                here.copy_(there, non_blocking=True)
                self._under_way.append((watched, here, self._own.record_event()))

    def complain(self, finding: str) -> None:
        """Note what was found."""
        with self._lock:
            self._found.append(finding)

    def pronounce(self, *, at_end: bool = False) -> None:
        """Raise what was found.

        Raises:
            RuntimeError: If something was; of several findings the first.
        """
        with self._lock:
            while self._under_way:
                watched, outcomes, done = self._under_way[0]
                if not at_end and len(self._under_way) <= _OUTSTANDING and not done.query():
                    break
                done.synchronize()
                self._under_way.popleft()
                wrong = outcomes.view(-1, 3).tolist()
                findings = [one.finding(*three) for one, three in zip(watched, wrong, strict=True)]
                self._found += [finding for finding in findings if finding is not None]
            found, self._found = self._found, []
            if at_end and self._has_raised:  # in the loop; a `finally` closes the loader
                return
            self._has_raised = self._has_raised or bool(found)
        if found:
            more = f"; and {len(found) - 1} more findings" if len(found) > 1 else ""
            raise RuntimeError(found[0] + more)


def _message(number: int, place: str, what: str) -> str:
    return f"batch {number}, {place}: {what}; see docs/hazards.md"


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Whatever mode the caller is in, ordinary tensors without a graph come out."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _page_locked(leaf: torch.Tensor) -> torch.Tensor:
    """A copy; its memory is the allocator's to watch, which knows nothing of our staging."""
    try:
        return torch.empty_like(leaf, device="cpu", pin_memory=True).copy_(leaf)
    except RuntimeError:  # for want of memory, or during graph capture (H11)
        return leaf.clone()


def _has_bits(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
        and (tensor.is_complex() or tensor.element_size() in _INTEGERS)
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers: NaN equals itself, and 0.0 is not -0.0."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(_INTEGERS[tensor.element_size()])
