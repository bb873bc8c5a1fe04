"""Each hazard of docs/hazards.md in a loop that meets it: clean, and not without its guard.

The guard is taken out by patching the one place that holds it. A scenario that stayed clean
without its guard would show nothing; that is what the second half of each pair is for.
"""

import gc
import itertools
import warnings

import pytest
import torch

from sidestream import AsynchronousLoader
from sidestream import device as seam
from sidestream.release import Leases
from sidestream.staging import Slot, State
from sidestream.transfer import StreamTransfer
from support.steps import MEBIBYTE, Checks, batches, on_stream


@pytest.fixture
def slow_copies(simulator):
    with simulator.settings(h2d_bytes_per_s=MEBIBYTE / 2e-3, kernel_s=1e-4):
        yield


@pytest.fixture
def slow_kernels(simulator):
    with simulator.settings(h2d_bytes_per_s=MEBIBYTE / 1e-3, kernel_s=2e-3):
        yield


def plain_steps(simulator, count=12, **options):
    checks = Checks()
    for number, batch in enumerate(AsynchronousLoader(batches(count), "sim", **options)):
        checks.add(batch, number)
    wrong = checks.wrong()
    assert len(checks) == count
    return wrong, simulator.races()


# ---- H1 read before copy


@pytest.mark.parametrize("buffer_size", [1, 2, 9])
def test_h1_the_consumer_waits_for_the_copy(simulator, slow_copies, buffer_size):
    assert plain_steps(simulator, buffer_size=buffer_size) == (0, [])


def test_h1_without_the_wait_it_is_reported(simulator, slow_copies, monkeypatch):
    monkeypatch.setattr(
        StreamTransfer,
        "hand_over",
        lambda self, parcel: (self._leases.hand_over(None, parcel.storages), parcel.batch)[1],
    )
    _, races = plain_steps(simulator)
    assert races


# ---- H2 staging reused before its copy ends


def test_h2_a_slot_is_not_filled_while_its_copy_reads_it(simulator, slow_copies):
    assert plain_steps(simulator, buffer_size=1) == (0, [])


def test_h2_without_the_wait_it_is_reported(simulator, slow_copies, monkeypatch):
    def forget(slot):
        slot._copy = None
        slot.state = State.FREE
        return True

    monkeypatch.setattr(Slot, "is_free", forget)
    _, races = plain_steps(simulator, buffer_size=1)
    assert races


# ---- H3 device memory reused under the consumer's kernels


@pytest.mark.parametrize("buffer_size", [1, 2, 9])
def test_h3_dropped_batches_stay_until_the_kernels_are_through(
    simulator, slow_kernels, buffer_size
):
    assert plain_steps(simulator, buffer_size=buffer_size) == (0, [])


def test_h3_without_the_fence_it_is_reported(simulator, slow_kernels, monkeypatch):
    monkeypatch.setattr(Leases, "_streams_since", lambda self, number: [])
    _, races = plain_steps(simulator)
    assert races


def keep_for_five_steps(simulator, count=20):
    checks, kept = Checks(), []
    for number, batch in enumerate(AsynchronousLoader(batches(count), "sim")):
        kept.append((number, batch[8:]))  # a view is all that is kept
        del batch
        if len(kept) > 5:
            checks.add(kept[0][1], kept[0][0])  # used, and dropped at once
            del kept[0]
    wrong = checks.wrong()
    return wrong, simulator.races()


def test_h3_a_kept_view_is_safe_until_after_its_last_use(simulator, slow_kernels):
    assert keep_for_five_steps(simulator) == (0, [])


def test_h3_without_looking_for_holders_it_is_reported(simulator, slow_kernels, monkeypatch):
    monkeypatch.setattr(seam, "is_held", lambda holder: False)
    _, races = keep_for_five_steps(simulator)
    assert races


def test_h3_autograd_keeps_what_it_saved(simulator, slow_kernels):
    count = 12
    weight = torch.ones(MEBIBYTE // 4, device="sim", requires_grad=True)
    losses = []
    for batch in AsynchronousLoader(batches(count), "sim"):
        losses.append((batch * weight).sum())
        del batch
        if len(losses) > 4:
            losses.pop(0).backward()
    for loss in losses:
        loss.backward()
    torch.accelerator.synchronize()
    assert weight.grad[0].item() == sum(range(count))
    assert simulator.races() == []


def switch_streams(simulator, count=18):
    streams = [torch.Stream(device="sim") for _ in range(3)]
    checks, kept = Checks(), []
    for number, batch in enumerate(AsynchronousLoader(batches(count), "sim")):
        with on_stream(streams[number % 3]):
            checks.add(batch, number)
            simulator.delay(5e-3)
            checks.add(batch, number)
            kept.append(batch)
            del batch
            if len(kept) > 2:
                del kept[0]
    wrong = checks.wrong()
    return wrong, simulator.races()


def use_on_a_stream_of_before(simulator, count=12):
    """Two batches on stream A, two on B, and so on, B's work never ordered after A's."""
    default = torch.accelerator.current_stream()
    other = torch.Stream(device="sim")
    iterator = iter(AsynchronousLoader(batches(count), "sim"))
    checks = Checks()
    try:
        for number in range(count):
            torch.accelerator.set_stream(other if number // 2 % 2 else default)
            batch = next(iterator)
            checks.add(batch, number)
            if not number // 2 % 2:
                simulator.delay(8e-3)
                checks.add(batch, number)
            del batch
    finally:
        torch.accelerator.set_stream(default)
    wrong = checks.wrong()
    return wrong, simulator.races()


def test_h3_a_consumer_may_change_streams(simulator, slow_copies):
    assert switch_streams(simulator) == (0, [])
    assert use_on_a_stream_of_before(simulator) == (0, [])


def test_h3_with_a_fence_on_the_current_stream_only_it_is_reported(
    simulator, slow_copies, monkeypatch
):
    monkeypatch.setattr(
        Leases, "_streams_since", lambda self, number: [seam.current_stream(self._device)]
    )
    _, races = use_on_a_stream_of_before(simulator)
    assert races


def leave_a_batch_to_the_next_epoch(simulator):
    loader = AsynchronousLoader(batches(3), "sim", buffer_size=1)
    checks = Checks()
    for _ in range(4):
        for number, batch in enumerate(loader):
            checks.add(batch, number)
            simulator.delay(4e-3)
            checks.add(batch, number)
            if number == 1:
                break
        del batch
    wrong = checks.wrong()
    return wrong, simulator.races()


def test_h3_leases_outlive_their_epoch(simulator):
    assert leave_a_batch_to_the_next_epoch(simulator) == (0, [])


def test_h3_what_is_kept_when_the_loader_goes_is_safe(simulator, slow_kernels):
    checks, kept = Checks(), []
    for _ in range(3):
        loader = AsynchronousLoader(batches(4), "sim")
        kept.extend(enumerate(loader))
        loader.close()
        del loader
    gc.collect()
    for number, batch in kept:
        checks.add(batch, number)
    del number, batch
    kept.clear()
    more = [torch.zeros(MEBIBYTE // 4, device="sim") for _ in range(12)]  # would take the memory
    other = AsynchronousLoader(batches(8), "sim")
    for number, batch in enumerate(other):
        checks.add(batch, number)
    assert checks.wrong() == 0
    assert len(more) == 12
    assert simulator.races() == []


# ---- H4 the consumer's stream


def consume_on_another_stream(simulator):
    checks = Checks()
    iterator = iter(AsynchronousLoader(batches(8), "sim"))
    default = torch.accelerator.current_stream()
    torch.accelerator.set_stream(torch.Stream(device="sim"))
    try:
        for number, batch in enumerate(iterator):
            checks.add(batch, number)
        return checks.wrong(), simulator.races()
    finally:
        torch.accelerator.set_stream(default)


def test_h4_the_stream_is_looked_up_at_the_hand_over(simulator, slow_copies):
    assert consume_on_another_stream(simulator) == (0, [])


def test_h4_with_the_stream_of_before_it_is_reported(simulator, slow_copies, monkeypatch):
    at_first = torch.accelerator.current_stream()
    monkeypatch.setattr(seam, "current_stream", lambda device: at_first)
    _, races = consume_on_another_stream(simulator)
    assert races


# ---- H5 memory that grows with run-ahead


def peak_reserved_batches(simulator, count, **options):
    with simulator.settings(h2d_bytes_per_s=MEBIBYTE / 5e-4, kernel_s=4e-3):
        result = torch.zeros(MEBIBYTE // 4, device="sim")
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_reserved()
        for batch in AsynchronousLoader(batches(count), "sim", **options):
            result.copy_(batch)
            del batch
        torch.accelerator.synchronize()
        return (torch.accelerator.max_memory_reserved() - before) / MEBIBYTE


@pytest.mark.parametrize("buffer_size", [1, 2, 5])
def test_h5_memory_does_not_grow_with_run_ahead(simulator, buffer_size):
    peak = peak_reserved_batches(simulator, 24, buffer_size=buffer_size)
    assert 0 < peak <= buffer_size + 2


def test_h5_record_stream_alone_is_right_and_grows(simulator, monkeypatch):
    monkeypatch.setattr(seam, "CAN_TELL_HOLDERS", False)
    assert peak_reserved_batches(simulator, 24, buffer_size=2) > 4 + 2
    assert plain_steps(simulator) == (0, [])


# ---- H6 one side stream


def test_h6_one_stream_serves_all_epochs(simulator, monkeypatch):
    made = []
    real = seam.new_stream
    monkeypatch.setattr(seam, "new_stream", lambda device: made.append(device) or real(device))
    loader = AsynchronousLoader(batches(4, 4096), "sim")
    for _ in range(10):
        assert len(list(loader)) == 4
        next(iter(loader))
        for _ in loader:
            break
    assert made == [torch.device("sim", 0)]


# ---- H7, H8, H13: packed tensors


def test_h7_packed_tensors_have_version_counters_of_their_own(simulator):
    (batch,) = AsynchronousLoader([[torch.ones(8), torch.ones(8)]], "sim")
    weight = torch.ones(8, device="sim", requires_grad=True)
    loss = (batch[0] * weight).sum()
    batch[1].add_(1)
    loss.backward()
    assert [tensor._version for tensor in batch] == [0, 1]
    assert not any(tensor._is_view() for tensor in batch)
    assert torch.equal(batch[0].cpu(), torch.ones(8))


def test_h8_a_kept_label_does_not_keep_the_images(simulator):
    images, labels = torch.zeros(4 * MEBIBYTE // 4), torch.zeros(64)
    loader = AsynchronousLoader([(images, labels)] * 6, "sim")
    before = torch.accelerator.memory_allocated()
    kept = [label for _, label in loader]
    loader.close()
    torch.accelerator.synchronize()
    assert len(kept) == 6
    assert torch.accelerator.memory_allocated() - before < 64 * 1024


def test_h13_one_tensor_in_two_places_stays_one(simulator):
    shared, large = torch.ones(4), torch.ones(100_000)
    (batch,) = AsynchronousLoader([{"a": shared, "b": [shared, large], "c": large}], "sim")
    assert batch["a"] is batch["b"][0]
    assert batch["c"] is batch["b"][1]


# ---- H9 a source that reuses its buffer


class OneBuffer:
    """Fills the same memory for every batch."""

    def __init__(self, buffers, count=10):
        self.buffers, self.count = buffers, count

    def __iter__(self):
        for number, buffer in zip(range(self.count), itertools.cycle(self.buffers), strict=False):
            buffer.fill_(float(number))
            yield buffer


def through_buffers(simulator, *buffers, buffer_size=2):
    checks = Checks()
    loader = AsynchronousLoader(OneBuffer(buffers), "sim", buffer_size=buffer_size)
    for number, batch in enumerate(loader):
        checks.add(batch, number)
    wrong = checks.wrong()
    assert len(checks) == 10
    return wrong, simulator.races()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("kind", ["pageable", "pinned", "slice of pinned", "device"])
@pytest.mark.parametrize("size", [100, 100_000])
def test_h9_a_reused_buffer_gives_the_right_values(simulator, slow_copies, kind, count, size):
    if kind == "pageable":
        buffers = [torch.empty(size) for _ in range(count)]
    elif kind == "pinned":
        buffers = [torch.empty(size).pin_memory() for _ in range(count)]
    elif kind == "slice of pinned":
        buffers = list(torch.empty(count, size).pin_memory())
    else:
        buffers = [torch.empty(size, device="sim") for _ in range(count)]
    assert through_buffers(simulator, *buffers) == (0, [])


def test_h9_without_waiting_for_page_locked_sources_it_is_reported(
    simulator, slow_copies, monkeypatch
):
    monkeypatch.setattr(StreamTransfer, "wait_for_sources", lambda self: None)
    _, races = through_buffers(simulator, torch.empty(100_000).pin_memory())
    assert races


# ---- H11 page-locked memory refused


def test_h11_refused_page_locked_memory_is_survived_with_a_warning(simulator, monkeypatch):
    real = torch.empty

    def refuse(*arguments, pin_memory=False, **options):
        if pin_memory:
            raise RuntimeError("not while capturing")
        return real(*arguments, **options)

    monkeypatch.setattr(torch, "empty", refuse)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert plain_steps(simulator, count=4) == (0, [])
    assert {warning.category for warning in caught} == {RuntimeWarning}
    assert "not while capturing" in str(caught[0].message)


def test_h11_nothing_is_page_locked_once_the_slots_are_there(simulator):
    loader = AsynchronousLoader(batches(6), "sim")
    list(loader)
    before = simulator.pinned_memory().total_allocations
    for _ in range(5):
        list(loader)
    assert simulator.pinned_memory().total_allocations == before


# ---- H12 the device of a new thread


class SeesDevice:
    """Gives what device index is current where it is read."""

    def __iter__(self):
        for _ in range(4):
            yield torch.accelerator.current_device_index()


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("target", [0, 1])
def test_h12_the_source_sees_the_callers_device(simulator, current, target):
    torch.accelerator.set_device_index(current)
    try:
        loader = AsynchronousLoader(SeesDevice(), f"sim:{target}")
        assert list(loader) == [current] * 4
        assert torch.accelerator.current_device_index() == current
    finally:
        torch.accelerator.set_device_index(0)


def test_h12_nothing_is_put_on_another_device(simulator):
    before = torch.accelerator.memory_allocated(0)
    kept = list(AsynchronousLoader(batches(3), "sim:1"))
    assert {batch.device for batch in kept} == {torch.device("sim", 1)}
    assert torch.accelerator.memory_allocated(0) == before


def test_h12_a_device_without_index_is_looked_up_at_iter(simulator):
    loader = AsynchronousLoader(batches(2), "sim")
    torch.accelerator.set_device_index(1)
    try:
        assert {batch.device.index for batch in loader} == {1}
    finally:
        torch.accelerator.set_device_index(0)
    assert {batch.device.index for batch in loader} == {0}
