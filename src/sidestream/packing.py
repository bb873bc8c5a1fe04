"""How the tensors of one batch lie in page-locked memory, and how they come out on the device.

Small tensors travel together: one staging block, one copy, one device block, out of which each
comes as a tensor of its own. Large ones travel alone, so that keeping a label does not keep the
images (H8), and in chunks, so that the first is under way while the next is staged.

All of it runs in the loader's thread with the side stream current. Knows no events.
"""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

import torch

from sidestream.staging import Slot
from sidestream.timing import Copies

# Tensors up to this size [bytes] are packed; docs/tuning.md has the measurement.
PACK_LIMIT_BYTES = 64 * 1024

# Every tensor starts at a multiple of this [bytes], on the host and on the device: what the
# widest vector loads ask for, and a multiple of every item size.
ALIGNMENT_BYTES = 64

# Up to this size [bytes] small tensors are flattened and joined in one call, at the price of
# writing them twice: 64 of 4 KiB take 37 us so, and 58 us with a view of each.
FLATTEN_LIMIT_BYTES = 512 * 1024

# A large tensor is staged and copied in chunks of this size [bytes].
CHUNK_BYTES = 8 << 20

# What `cat` and a view of another type can do for every one of them.
_PACKABLE = frozenset(
    {
        torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
        torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
    }
)  # fmt: skip


class Moved:
    """What became of a batch's leaves, and the memory it lies in."""

    def __init__(self, copies: Copies) -> None:
        self.leaves: dict[int, Any] = {}
        self.storages: list[torch.UntypedStorage] = []
        self.shared = False  # whether some of them are the source's own
        self.copied: torch.Event | None = None
        # Host memory that copies read, each in the one list that holds it for us.
        self.borrowed: list[list[torch.UntypedStorage]] = []
        self.originals: list[Any] = []  # for `verify` alone, as is the next
        self.watched: list[Any] = []
        self.copies = copies

    def num_bytes(self) -> int:
        """What it holds on the device, the source's own left out [bytes]."""
        if self.shared:
            return self.copies.num_bytes
        return sum({one._cdata: one.nbytes() for one in self.storages}.values())

    def note(self, leaf: torch.Tensor, new: torch.Tensor) -> None:
        """Note a tensor that lies in a storage of its own."""
        self.leaves[id(leaf)] = new
        self.storages.append(new.untyped_storage())


def can_stage(leaf: Any) -> bool:
    """Whether a leaf is an ordinary tensor in host memory, which its bytes describe.

    Subclasses, sparse, nested and quantised tensors, lazy conjugates and tensors in an autograd
    graph are not: `to` knows how to move them, and copying their bytes would lose something.
    """
    return (
        type(leaf) is torch.Tensor
        and leaf.is_cpu
        and leaf.layout is torch.strided
        and not (
            leaf.requires_grad
            or leaf.is_nested
            or leaf.is_quantized
            or leaf.is_conj()
            or leaf.is_neg()
        )
    )


def target_stride(leaf: torch.Tensor) -> tuple[int, ...]:
    """The strides that `leaf.to(device)` would have."""
    if leaf.is_contiguous():
        return leaf.stride()
    return torch.empty_like(leaf, device="meta").stride()


def is_dense(leaf: torch.Tensor) -> bool:
    """Whether the elements lie side by side in memory, in whatever order, none of them twice."""
    return leaf.is_contiguous() or target_stride(leaf) == leaf.stride()


def repeats(leaf: torch.Tensor) -> bool:
    """Whether an expanded dimension makes the tensor larger than what stands in memory."""
    return any(step == 0 and n > 1 for n, step in zip(leaf.shape, leaf.stride(), strict=True))


def without_repeats(leaf: torch.Tensor) -> torch.Tensor:
    """The tensor before it was expanded."""
    shape = [n if step else min(n, 1) for n, step in zip(leaf.shape, leaf.stride(), strict=True)]
    return leaf.as_strided(shape, leaf.stride())


def copy_direct(leaf: torch.Tensor, device: torch.device, copies: Copies) -> torch.Tensor:
    """Queue the copy of a dense page-locked tensor; it must live until the copy has ended."""
    target = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device)
    return copies.queue(target, leaf)


class _Group:
    """Tensors of one type that lie one behind the other."""

    __slots__ = ("gaps", "leaves", "shape", "size_bytes")

    def __init__(self, shape: torch.Size) -> None:
        self.leaves: list[torch.Tensor] = []
        self.size_bytes = 0
        self.gaps = False  # whether any of them needs padding to the alignment
        self.shape: torch.Size | None = shape  # of all of them, if it is the same

    def stage(self, pieces: list[torch.Tensor], target: torch.Tensor, copies: Copies) -> Any:
        """Write the tensors into page-locked pieces, queue the copies, and part the target.

        Tensors of one shape are joined and parted by one call each, the others by one call that
        makes views of all.
        """
        if self.shape is not None and not self.gaps and len(pieces) == 1:
            room = pieces[0].view(target.dtype)
            shape = (len(self.leaves), *self.shape)
            torch.stack(self.leaves, out=room.view(shape))
            copies.queue(target, room)
            return zip(self.leaves, target.view(shape).unbind(0), strict=True)
        parts = _with_padding(self.leaves) if self.gaps else self.leaves
        _stage(parts, pieces, target, copies)
        outs = torch._C._nn.unflatten_dense_tensors(target, parts)
        return zip(parts, outs, strict=True)


class Layout:
    """The pageable tensors of one batch: which are packed, and the room that all need."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._packed: dict[torch.dtype, _Group] = {}
        self._alone: list[torch.Tensor] = []

    def add(self, leaf: torch.Tensor) -> bool:
        """Take a tensor in if it is small enough to be packed."""
        size = leaf.nbytes
        dtype = leaf.dtype
        if not 0 < size <= PACK_LIMIT_BYTES or dtype not in _PACKABLE or not leaf.is_contiguous():
            return False
        group = self._packed.get(dtype)
        if group is None:
            group = self._packed[dtype] = _Group(leaf.shape)
        elif group.shape is not None and group.shape != leaf.shape:
            group.shape = None
        group.leaves.append(leaf)
        gap = -size % ALIGNMENT_BYTES
        if gap:
            group.gaps = True
            size += gap
        group.size_bytes += size
        self.size_bytes += size
        return True

    def add_alone(self, leaf: torch.Tensor) -> None:
        """Take in a tensor that travels alone."""
        self._alone.append(leaf)
        self.size_bytes += _aligned(leaf.nbytes)

    def copy(self, slot: Slot, device: torch.device, moved: Moved) -> None:
        """Stage everything in a slot, queue the copies, and note what was made of each tensor."""
        self._copy_packed(slot, device, moved)
        for leaf in self._alone:
            moved.note(leaf, _copy_alone(leaf, slot, device, moved.copies))

    def _copy_packed(self, slot: Slot, device: torch.device, moved: Moved) -> None:
        for dtype, group in self._packed.items():
            # One block for each type: compilers do not stand views of several types on one.
            target = torch.empty(group.size_bytes // dtype.itemsize, dtype=dtype, device=device)
            moved.storages.append(target.untyped_storage())
            pieces = slot.take(group.size_bytes)
            for leaf, out in group.stage(pieces, target, moved.copies):
                out = out.data  # with a version counter of its own (H7)
                if out.stride() != leaf.stride():  # sizes of 1 may have any stride
                    out = out.as_strided(leaf.shape, leaf.stride())
                moved.leaves[id(leaf)] = out


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _with_padding(leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, each followed by what brings it to a multiple of the alignment."""
    parts: list[torch.Tensor] = []
    for leaf in leaves:
        parts.append(leaf)
        gap = -leaf.nbytes % ALIGNMENT_BYTES
        if gap:
            parts.append(_padding(leaf.dtype, gap // leaf.element_size()))
    return parts


@functools.cache
def _padding(dtype: torch.dtype, count: int) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.zeros(count, dtype=dtype, device="cpu")


def _stage(
    parts: list[torch.Tensor],
    pieces: list[torch.Tensor],
    target: torch.Tensor,
    copies: Copies,
) -> None:
    """Write small tensors one behind the other into page-locked pieces and queue the copies."""
    dtype = target.dtype
    if len(pieces) == 1:
        room = pieces[0].view(dtype)
        if room.nbytes <= FLATTEN_LIMIT_BYTES:
            room.copy_(torch._C._nn.flatten_dense_tensors(parts))
        else:
            torch.cat([part.view(-1) for part in parts], out=room)
        copies.queue(target, room)
        return
    flat = deque(part.view(-1) for part in parts)
    start = 0
    for piece in pieces:
        room = piece.view(dtype)
        torch.cat(_take(flat, room.numel()), out=room)
        copies.queue(target[start : start + room.numel()], room)
        start += room.numel()


def _take(flat: deque[torch.Tensor], count: int) -> list[torch.Tensor]:
    """The next `count` elements of flat tensors, parted within a tensor if need be."""
    taken = []
    while count > 0:
        part = flat.popleft()
        if part.numel() > count:
            flat.appendleft(part[count:])
            part = part[:count]
        taken.append(part)
        count -= part.numel()
    return taken


def _copy_alone(
    leaf: torch.Tensor, slot: Slot, device: torch.device, copies: Copies
) -> torch.Tensor:
    stride = target_stride(leaf)
    target = torch.empty_strided(leaf.shape, stride, dtype=leaf.dtype, device=device)
    pieces = slot.take(_aligned(leaf.nbytes))
    if len(pieces) == 1 and leaf.nbytes <= CHUNK_BYTES:
        room = pieces[0][: leaf.nbytes].view(leaf.dtype).as_strided(leaf.shape, stride)
        room.copy_(leaf)
        return copies.queue(target, room)
    if stride != leaf.stride():
        leaf = torch.empty_strided(leaf.shape, stride, dtype=leaf.dtype, device="cpu").copy_(leaf)
    source, into = _bytes_of(leaf), _bytes_of(target)
    start = 0
    for piece in pieces:
        for chunk in torch.split(piece, CHUNK_BYTES):
            chunk = chunk[: source.numel() - start]  # the last is shorter by the alignment
            end = start + chunk.numel()
            chunk.copy_(source[start:end])
            copies.queue(into[start:end], chunk)
            start = end
    return target


def _bytes_of(dense: torch.Tensor) -> torch.Tensor:
    """The memory of a dense tensor, in memory order: shape `(nbytes,)`, uint8."""
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
