"""Page-locked slots: the state machine, and what is asked of an allocator that rounds up."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sidestream.staging import ONE_BLOCK_BYTES, PAGE_BYTES, Slot, StagingPool, State

MEBIBYTE = 1 << 20


class FakeCopy:
    """Has finished when it is told so, or waited for."""

    def __init__(self) -> None:
        self.finished = False
        self.waits = 0

    def query(self) -> bool:
        return self.finished

    def synchronize(self) -> None:
        self.waits += 1
        self.finished = True


class RoundingAllocator:
    """Gives memory without values, and counts as the page-locking allocators of torch do."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, size_bytes: int) -> torch.Tensor:
        self.asked.append(size_bytes)
        return torch.empty(size_bytes, dtype=torch.uint8, device="meta")

    @property
    def rounded_bytes(self) -> int:
        """Nothing is ever given back here: what was asked is what is held, or cached."""
        return sum(1 << (size - 1).bit_length() for size in self.asked)


def used(pool: StagingPool, size_bytes: int) -> tuple[Slot, FakeCopy]:
    slot, copy = pool.acquire(size_bytes), FakeCopy()
    slot.take(size_bytes)
    slot.submit(copy)
    return slot, copy


# ---- one slot


def test_a_slot_goes_round_its_states() -> None:
    slot, copy = Slot(RoundingAllocator()), FakeCopy()
    assert slot.state is State.FREE
    assert slot.is_free()
    slot.begin(100)
    assert slot.state is State.FILLING
    assert not slot.is_free()
    slot.submit(copy)
    assert slot.state is State.IN_FLIGHT
    assert not slot.is_free()
    copy.finished = True
    assert slot.is_free()
    assert slot.state is State.FREE


def test_waiting_for_a_slot_waits_for_its_copy_and_frees_it() -> None:
    slot, copy = Slot(RoundingAllocator()), FakeCopy()
    slot.begin(1)
    slot.submit(copy)
    slot.wait()
    assert (copy.waits, slot.state) == (1, State.FREE)
    slot.wait()
    assert copy.waits == 1


@pytest.mark.parametrize("state", ["free", "filling", "in flight"])
@pytest.mark.parametrize("step", ["begin", "take", "submit"])
def test_a_step_out_of_turn_is_a_mistake(state: str, step: str) -> None:
    slot = Slot(RoundingAllocator())
    if state != "free":
        slot.begin(10)
    if state == "in flight":
        slot.submit(FakeCopy())
    allowed = {"begin": "free", "take": "filling", "submit": "filling"}[step] == state
    argument = FakeCopy() if step == "submit" else 10
    if allowed:
        getattr(slot, step)(argument)
    else:
        with pytest.raises(AssertionError):
            getattr(slot, step)(argument)


def test_more_than_was_begun_with_cannot_be_taken() -> None:
    slot = Slot(RoundingAllocator())
    slot.begin(PAGE_BYTES)
    slot.take(PAGE_BYTES)
    with pytest.raises(AssertionError, match="more was taken"):
        slot.take(1)


@pytest.mark.parametrize("size", [1, PAGE_BYTES, PAGE_BYTES + 1, 100_000, ONE_BLOCK_BYTES])
def test_a_small_slot_is_one_piece(size: int) -> None:
    slot = Slot(RoundingAllocator())
    slot.begin(size)
    (piece,) = slot.take(size)
    assert piece.numel() == size


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 5 * MEBIBYTE), min_size=1, max_size=8))
def test_what_is_taken_is_as_long_as_asked_and_never_overlaps(sizes: list[int]) -> None:
    slot = Slot(lambda size: torch.empty(size, dtype=torch.uint8))
    slot.begin(sum(sizes))
    ranges = []
    for size in sizes:
        pieces = slot.take(size)
        assert sum(piece.numel() for piece in pieces) == size
        ranges += [(piece.data_ptr(), piece.data_ptr() + piece.numel()) for piece in pieces]
    ranges.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


def test_a_slot_that_grows_keeps_what_it_has() -> None:
    allocator = RoundingAllocator()
    slot = Slot(allocator)
    size = 0
    for size in (3 * MEBIBYTE, 5 * MEBIBYTE, 4 * MEBIBYTE, 9 * MEBIBYTE + 1):
        slot.begin(size)
        slot.submit(copy := FakeCopy())
        copy.finished = True
        assert slot.is_free()
    assert slot.size_bytes == sum(allocator.asked) == size - 1 + PAGE_BYTES


# ---- the pool


def test_slots_are_made_before_any_is_used_again() -> None:
    """So that all page-locking is done after the first few batches (H11)."""
    pool = StagingPool(3, RoundingAllocator())
    slots = []
    for _ in range(3):
        slot, copy = used(pool, 10)
        copy.finished = True
        slots.append(slot)
    assert len(set(map(id, slots))) == 3
    assert used(pool, 10)[0] is slots[0]


def test_a_slot_is_not_used_again_before_its_copy_has_finished() -> None:
    """H2."""
    pool = StagingPool(2, RoundingAllocator())
    first, copy = used(pool, 10)
    second, other = used(pool, 10)
    assert (copy.waits, other.waits) == (0, 0)
    assert used(pool, 10)[0] is first
    assert (copy.waits, other.waits) == (1, 0)
    other.finished = True
    assert used(pool, 10)[0] is second
    assert other.waits == 0


def test_an_exception_out_of_the_wait_loses_no_slot() -> None:
    class Interrupted(FakeCopy):
        def synchronize(self) -> None:
            if not self.waits:
                self.waits += 1
                raise KeyboardInterrupt
            super().synchronize()

    pool = StagingPool(1, RoundingAllocator())
    slot = pool.acquire(10)
    slot.submit(copy := Interrupted())
    with pytest.raises(KeyboardInterrupt):
        pool.acquire(10)
    assert pool.acquire(10) is slot
    assert copy.waits == 2


def test_close_waits_for_every_copy_and_holds_nothing() -> None:
    """G4."""
    pool = StagingPool(3, RoundingAllocator())
    copies = [used(pool, 1000)[1] for _ in range(3)]
    copies[1].finished = True
    assert pool.size_bytes == 3 * PAGE_BYTES
    pool.close()
    assert all(copy.finished for copy in copies)
    assert pool.size_bytes == 0
    assert used(pool, 10)[0].state is State.IN_FLIGHT


@pytest.mark.parametrize("max_slots", [2, 3, 10])
def test_R07_pinned_memory_is_bounded_without_rounding_and_does_not_grow(max_slots: int) -> None:
    """500 batches of 1 to 1.9 times 64 MiB, with an allocator that rounds up."""
    draw = random.Random(0)
    sizes = [int(draw.uniform(1, 1.9) * 64 * MEBIBYTE) for _ in range(500)]
    allocator = RoundingAllocator()
    pool = StagingPool(max_slots, allocator)
    held = []
    for size in sizes:
        used(pool, size)
        held.append(allocator.rounded_bytes)
    to_the_page = -(-max(sizes) // PAGE_BYTES) * PAGE_BYTES
    assert held[-1] <= max_slots * to_the_page
    assert held[-1] == pool.size_bytes == sum(allocator.asked)  # nothing was rounded
    # Only a larger batch than a slot has had makes it grow: a record, and those are few.
    assert len(set(held)) <= 30 * max_slots


@pytest.mark.parametrize("seed", range(3))
def test_R07_constant_shapes_with_a_ragged_last_batch_add_nothing(seed: int) -> None:
    draw = random.Random(seed)
    full = draw.randrange(1, 8 * MEBIBYTE)
    allocator = RoundingAllocator()
    pool = StagingPool(3, allocator)
    for epoch in range(20):
        for _ in range(5):
            used(pool, full)
        used(pool, draw.randrange(1, full + 1))
        if epoch == 0:
            after_one = len(allocator.asked)
    assert len(allocator.asked) == after_one
