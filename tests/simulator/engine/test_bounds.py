"""G5: how much memory is held, on the device and page-locked, and how many calls a batch costs."""

import random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sidestream import AsynchronousLoader
from sidestream import device as seam
from sidestream.packing import PACK_LIMIT_BYTES
from sidestream.transfer import StreamTransfer
from support.steps import MEBIBYTE, Checks, batches

PAGE = 4096


@pytest.fixture
def pinned_sizes(simulator, monkeypatch):
    """The sizes of all staging memory asked for [bytes]."""
    sizes = []
    real = seam.pinned_bytes
    monkeypatch.setattr(seam, "pinned_bytes", lambda size: sizes.append(size) or real(size))
    return sizes


@pytest.mark.parametrize(
    "size", [4 * PAGE, MEBIBYTE, MEBIBYTE + MEBIBYTE // 3, 5 * MEBIBYTE - PAGE]
)
@pytest.mark.parametrize("buffer_size", [1, 2, 4])
def test_page_locked_memory_is_bounded_without_rounding(
    simulator, pinned_sizes, buffer_size, size
):
    size = size // PAGE * PAGE
    loader = AsynchronousLoader(batches(4 * buffer_size, size), "sim", buffer_size=buffer_size)
    for _ in range(3):
        list(loader)
    assert sum(pinned_sizes) == (buffer_size + 1) * size
    assert all(asked & (asked - 1) == 0 for asked in pinned_sizes)  # nothing to be rounded up


def test_page_locked_memory_does_not_grow_with_the_shapes_seen(simulator, pinned_sizes):
    draw = random.Random(0)
    sizes = [draw.randrange(1000, 400_000) for _ in range(500)]
    loader = AsynchronousLoader([torch.zeros(size) for size in sizes], "sim")
    for _ in loader:
        pass
    largest = -(-max(sizes) * 4 // PAGE) * PAGE
    assert sum(pinned_sizes) <= 3 * largest
    for _ in range(4):
        for _ in loader:
            pass
    assert sum(pinned_sizes) <= 3 * largest


def test_close_gives_page_locked_memory_back(simulator):
    before = simulator.pinned_memory().bytes
    loader = AsynchronousLoader(batches(6), "sim")
    list(loader)
    assert simulator.pinned_memory().bytes > before
    loader.close()
    assert simulator.pinned_memory().bytes == before
    assert len(list(loader)) == 6
    del loader
    assert simulator.pinned_memory().bytes == before


def test_close_gives_device_memory_back(simulator):
    before = torch.accelerator.memory_allocated()
    loader = AsynchronousLoader(batches(6), "sim")
    for number, _ in enumerate(loader):
        if number == 2:
            break
    del _
    loader.close()
    assert torch.accelerator.memory_allocated() == before


def test_a_forgotten_loader_gives_all_memory_back(simulator):
    device, pinned = torch.accelerator.memory_allocated(), simulator.pinned_memory().bytes
    for _ in AsynchronousLoader(batches(6), "sim"):
        break
    del _
    assert torch.accelerator.memory_allocated() == device
    assert simulator.pinned_memory().bytes == pinned


def test_memory_is_flat_over_a_thousand_epochs(simulator):
    checks = Checks()
    loader = AsynchronousLoader(batches(3, 200_000), "sim")
    flat = None
    for epoch in range(1000):
        for number, batch in enumerate(loader):
            if epoch % 100 == 0:
                checks.add(batch, number)
            if number == epoch % 4:
                break
        if epoch == 99:  # by now the threads have run in every order, and the most was held
            torch.accelerator.synchronize()
            flat = (torch.accelerator.memory_reserved(), simulator.pinned_memory().reserved_bytes)
    assert checks.wrong() == 0
    reserved = torch.accelerator.memory_reserved()
    assert reserved - flat[0] <= 64 * 1024  # the comparisons' results
    assert simulator.pinned_memory().reserved_bytes == flat[1]


@pytest.mark.parametrize("buffer_size", [1, 2])
def test_kept_batches_come_on_top_and_nothing_more(simulator, buffer_size):
    keep = 5
    with simulator.settings(h2d_bytes_per_s=MEBIBYTE / 5e-4, kernel_s=2e-3):
        result = torch.zeros(MEBIBYTE // 4, device="sim")
        torch.accelerator.synchronize()
        torch.accelerator.empty_cache()
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_reserved()
        kept = []
        for batch in AsynchronousLoader(batches(30), "sim", buffer_size=buffer_size):
            kept.append(batch[:1])
            result.copy_(batch)
            del batch
            if len(kept) > keep:
                del kept[0]
        torch.accelerator.synchronize()
        peak = (torch.accelerator.max_memory_reserved() - before) / MEBIBYTE
    assert peak <= buffer_size + 2 + keep


def test_a_thousand_kept_batches_are_found_again_when_they_are_dropped(simulator):
    loader = AsynchronousLoader(batches(400, 70_000), "sim")
    before = torch.accelerator.memory_allocated()
    kept = list(loader)
    kept.clear()
    for batch in loader:
        del batch
    loader.close()
    assert torch.accelerator.memory_allocated() == before


class _Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def _calls(count):
    transfer = StreamTransfer(torch.device("sim", 0), None, None, 2)
    batch = [torch.ones(32, 32) for _ in range(count)]
    with transfer.reading():
        transfer.load(batch)
        with _Calls() as calls:
            transfer.load(batch)
    transfer.close()
    per_tensor = ("aten.view.", "aten.detach.", "aten.narrow.", "aten.slice.")
    return sum(not name.startswith(per_tensor) for name in calls.names)


def test_the_calls_for_a_batch_do_not_grow_with_its_small_tensors(simulator):
    assert _calls(4) == _calls(10) == _calls(64) == _calls(250)


def test_tensors_just_over_the_limit_travel_alone(simulator):
    small = torch.zeros(PACK_LIMIT_BYTES // 4)
    large = torch.zeros(PACK_LIMIT_BYTES // 4 + 1)
    (batch,) = AsynchronousLoader([[small, small.clone(), large, large.clone()]], "sim")
    storages = [tensor.untyped_storage().data_ptr() for tensor in batch]
    assert len(set(storages)) == 3
    assert storages[0] == storages[1]
