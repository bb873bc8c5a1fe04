"""Public reports about streams and device memory, on the simulated accelerator.

tests/reports/README.md lists all reports and where each is tested.
"""

import gc
import random
import threading
import warnings
import weakref

import pytest
import torch

from sidestream import AsynchronousLoader
from sidestream import device as seam
from sidestream.transfer import StreamTransfer
from support.steps import MEBIBYTE, Checks, batches


@pytest.fixture
def slow_copies(simulator):
    with simulator.settings(h2d_bytes_per_s=MEBIBYTE / 2e-3, kernel_s=1e-4):
        yield


@pytest.fixture
def pinned_sizes(simulator, monkeypatch):
    """The sizes of all staging memory asked for [bytes]."""
    sizes = []
    real = seam.pinned_bytes
    monkeypatch.setattr(seam, "pinned_bytes", lambda size: sizes.append(size) or real(size))
    return sizes


# ---- R01 a page-locked source has an owner until its copy has ended


def copied_without_an_owner(simulator, count=40):
    """Page-locked batches that nobody but the loader holds, and new page-locking in between."""
    references = []

    def source():
        for number in range(count):
            batch = torch.full((30_000,), float(number)).pin_memory()
            references.append(weakref.ref(batch.untyped_storage()))
            yield batch
            del batch
            gc.collect()
            torch.full((30_000,), -1.0).pin_memory()  # would take the memory, and is gone again

    checks = Checks()
    loader = AsynchronousLoader(source(), "sim")
    for number, batch in enumerate(loader):
        checks.add(batch, number)
    wrong = checks.wrong()
    assert len(checks) == count
    loader.close()
    return wrong, simulator.races()


def test_R01_a_page_locked_source_lives_until_its_copy_has_ended(simulator, slow_copies):
    before = simulator.pinned_memory().bytes
    assert copied_without_an_owner(simulator) == (0, [])
    gc.collect()
    assert simulator.pinned_memory().bytes == before


# ---- R03 what is kept is kept by storage


def rows_of_one_pinned_tensor(simulator, ring, count=24):
    """Each row is written again as soon as nobody but the source holds it."""

    def source():
        rows = torch.zeros(ring, 30_000).pin_memory()
        for number in range(count):
            row = rows[number % ring]
            row.fill_(number)
            yield [row, row[5:100], row.view(300, 100)]

    checks = Checks()
    for number, batch in enumerate(AsynchronousLoader(source(), "sim")):
        for tensor in batch:
            checks.add(tensor, number)
    assert len(checks) == 3 * count
    return checks.wrong(), simulator.races()


@pytest.mark.parametrize("ring", [1, 2, 4])
def test_R03_slices_of_one_page_locked_tensor_are_as_independent_ones(
    simulator, slow_copies, ring
):
    assert rows_of_one_pinned_tensor(simulator, ring) == (0, [])


def test_R03_without_waiting_for_the_storage_it_is_reported(simulator, slow_copies, monkeypatch):
    monkeypatch.setattr(StreamTransfer, "wait_for_sources", lambda self: None)
    _, races = rows_of_one_pinned_tensor(simulator, 1)
    assert races


# ---- R06 one stream, flat memory, early drops


def test_R06_epochs_breaks_and_first_batches_share_one_stream(simulator, monkeypatch):
    made = []
    real = seam.new_stream
    monkeypatch.setattr(seam, "new_stream", lambda device: made.append(device) or real(device))
    loader = AsynchronousLoader(batches(4, 400_000), "sim")
    reserved = []
    for _ in range(40):
        assert len(list(loader)) == 4
        next(iter(loader))
        for _batch in loader:
            break
        del _batch
        torch.accelerator.synchronize()
        reserved.append(torch.accelerator.memory_reserved())
    assert len(made) == 1
    assert reserved[2] == reserved[-1]


def test_R06_a_batch_dropped_early_is_intact_until_the_queued_kernels_are_through(simulator):
    checks = Checks()
    iterator = iter(AsynchronousLoader(batches(8), "sim"))
    batch = next(iterator)
    simulator.delay(2e-2)
    checks.add(batch, 0)
    del batch
    for number in range(1, 6):
        checks.add(next(iterator), number)
    assert checks.wrong() == 0
    assert simulator.races() == []


# ---- R08 device memory does not depend on how far the host runs ahead


@pytest.mark.parametrize("buffer_size", [1, 2, 4])
@pytest.mark.parametrize("kernel_s", [1e-4, 4e-3], ids=["fast consumer", "slow consumer"])
def test_R08_device_memory_is_bounded_whatever_the_run_ahead(simulator, buffer_size, kernel_s):
    with simulator.settings(h2d_bytes_per_s=MEBIBYTE / 1e-3, kernel_s=kernel_s):
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_allocated()
        result = torch.zeros(MEBIBYTE // 4, device="sim")
        loader = AsynchronousLoader(batches(16), "sim", buffer_size=buffer_size)
        for taken in (16, 3):
            for number, batch in enumerate(loader, start=1):
                result.copy_(batch)
                if number == taken:
                    break
            del batch
        peak = torch.accelerator.max_memory_allocated() - before - MEBIBYTE
        torch.accelerator.synchronize()
    assert 0 < peak <= (buffer_size + 2) * MEBIBYTE


# ---- R07, R30, R34 what is staged


def test_R07_page_locked_memory_does_not_grow_with_the_shapes_seen(simulator, pinned_sizes):
    draw = random.Random(1)
    sizes = [int(draw.uniform(1, 1.9) * 300_000) for _ in range(200)]
    loader = AsynchronousLoader([torch.zeros(size // 4) for size in sizes], "sim")
    for batch in loader:
        del batch
    limit = 3 * (-(-max(sizes) // 4096) * 4096)
    held = simulator.pinned_memory().bytes
    assert 0 < held <= 2 * limit  # to the power of two, below 1 MiB
    assert sum(pinned_sizes) >= held
    for batch in loader:
        del batch
    assert simulator.pinned_memory().bytes <= 2 * limit


def test_R30_an_expanded_tensor_is_not_blown_up_on_the_host(simulator, pinned_sizes):
    tensor = torch.arange(3.0).expand(100_000, 3)
    (got,) = AsynchronousLoader([tensor], "sim")
    assert got.stride() == tensor.to("sim").stride()
    assert torch.equal(got.cpu(), tensor)
    assert sum(pinned_sizes) <= 4096


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(60_000.0).reshape(200, 300).T,
        lambda: torch.arange(100_000.0)[::3],
        lambda: torch.rand(8, 3, 40, 40).contiguous(memory_format=torch.channels_last),
        lambda: torch.arange(50_000.0).as_strided((200, 300), (100, 1)),
    ],
    ids=["transposed", "step", "channels last", "overlapping"],
)
def test_R30_values_and_strides_are_those_of_to(simulator, make):
    tensor = make()
    (got,) = AsynchronousLoader([tensor], "sim")
    assert got.stride() == tensor.to("sim").stride()
    assert torch.equal(got.cpu(), tensor)


def test_R34_staging_follows_the_view_and_not_its_storage(simulator, pinned_sizes):
    view = torch.arange(10_000_000.0)[5:15]
    (got,) = AsynchronousLoader([view], "sim")
    assert got.tolist() == list(range(5, 15))
    assert got.untyped_storage().nbytes() <= 4096
    assert sum(pinned_sizes) <= 4096


def test_R34_a_tensor_named_several_times_is_copied_once(simulator):
    tensor = torch.ones(100_000)
    loader = AsynchronousLoader([{"a": tensor, "b": [tensor, tensor]}] * 2, "sim")
    before = torch.accelerator.memory_allocated()
    got = next(iter(loader))
    assert got["a"] is got["b"][0] is got["b"][1]
    torch.accelerator.synchronize()
    assert torch.accelerator.memory_allocated() - before <= 2 * 500_000


# ---- R32, R51 what is there already, and what is page-locked already


def test_R32_tensors_on_the_target_pass_through_and_pinned_ones_are_not_staged(
    simulator, pinned_sizes
):
    there = torch.ones(100_000, device="sim")
    pinned = torch.full((100_000,), 2.0).pin_memory()
    (got,) = AsynchronousLoader([[there, pinned]], "sim")
    assert got[0] is there
    assert torch.equal(got[1].cpu(), pinned)
    assert pinned_sizes == []


# ---- R39 the device of the thread


@pytest.mark.parametrize("current", [0, 1])
def test_R39_two_loaders_for_two_devices_disturb_neither_each_other_nor_the_caller(
    simulator, current
):
    torch.accelerator.set_device_index(current)
    indices = set()

    def transform(batch):
        indices.add((threading.current_thread().name, torch.accelerator.current_device_index()))
        return batch

    one = AsynchronousLoader(batches(6, 4000), "sim:0", transform=transform)
    other = AsynchronousLoader(batches(6, 4000), "sim:1", transform=transform)
    for number, (first, second) in enumerate(zip(one, other, strict=True)):
        assert (first.device.index, second.device.index) == (0, 1)
        assert (first[0].item(), second[0].item()) == (number, number)
        assert torch.accelerator.current_device_index() == current
    assert {index for _, index in indices} == {current}


# ---- R46 overlap


def test_R46_copies_overlap_kernels(simulator):
    """In virtual time, which does not depend on the machine: the larger and not the sum."""
    count = 24
    with simulator.settings(h2d_bytes_per_s=MEBIBYTE / 5e-3, kernel_s=1e-5):
        result = torch.zeros(MEBIBYTE // 4, device="sim")
        begin = torch.accelerator.current_stream().record_event(torch.Event(enable_timing=True))
        for batch in AsynchronousLoader(batches(count), "sim"):
            result.add_(batch)
            simulator.delay(5e-3)
        end = torch.accelerator.current_stream().record_event(torch.Event(enable_timing=True))
        torch.accelerator.synchronize()
        step = (simulator.virtual_time(end) - simulator.virtual_time(begin)) / count
    assert step <= 0.8 * (5e-3 + 5e-3)


def test_R46_a_batch_is_handed_over_before_its_copy_has_ended(simulator):
    """The host waits for nothing on the device: the consumer's stream does."""

    def transform(batch):
        simulator.delay(0.3)
        return batch

    iterator = iter(AsynchronousLoader(batches(2, 4000), "sim", transform=transform))
    batch = next(iterator)
    event = torch.accelerator.current_stream().record_event()
    assert not event.query()
    assert batch[0].item() == 0
    assert event.query()
    assert next(iterator)[0].item() == 1


# ---- R53 page-locked memory refused


def test_R53_a_refusal_is_survived_with_a_warning_and_right_values(simulator, monkeypatch):
    real = torch.empty

    def refuse(*arguments, pin_memory=False, **options):
        if pin_memory:
            raise RuntimeError("operation not permitted when stream is capturing")
        return real(*arguments, **options)

    monkeypatch.setattr(torch, "empty", refuse)
    checks = Checks()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number, batch in enumerate(AsynchronousLoader(batches(5), "sim")):
            checks.add(batch, number)
    assert checks.wrong() == 0
    assert caught
    assert all("page-locked memory was refused" in str(warning.message) for warning in caught)


def test_R53_after_the_first_batches_nothing_is_page_locked(simulator):
    buffer_size = 2
    before = simulator.pinned_memory().total_allocations
    counts = []
    for batch in AsynchronousLoader(batches(12), "sim", buffer_size=buffer_size):
        del batch
        counts.append(simulator.pinned_memory().total_allocations - before)
    assert counts[-1] == counts[buffer_size + 1] > 0
