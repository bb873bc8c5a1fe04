"""Device memory and page-locked memory: reuse, limits, statistics."""

import gc

import pytest
import torch

pytestmark = pytest.mark.simulated_accelerator

ACC = torch.accelerator
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _empty_caches(simulated_accelerator):
    gc.collect()
    ACC.synchronize()
    ACC.empty_cache()
    ACC.empty_host_cache()


def test_device_memory_statistics():
    before, reserved = ACC.memory_allocated(), ACC.memory_reserved()
    ACC.reset_peak_memory_stats()
    x = torch.empty(MIB, device="sim")
    assert ACC.memory_allocated() - before == 4 * MIB
    del x
    assert ACC.memory_allocated() == before
    assert ACC.max_memory_allocated() - before == 4 * MIB
    assert ACC.memory_reserved() - reserved == 4 * MIB
    ACC.empty_cache()
    assert ACC.memory_reserved() == reserved
    free, total = ACC.get_memory_info()
    assert total == 2 << 30
    assert free == total - reserved


def test_freed_memory_is_reused_at_once_by_its_stream_and_by_no_other():
    x = torch.empty(100_000, device="sim")
    address = x.data_ptr()
    del x
    with torch.Stream("sim"):
        assert torch.empty(100_000, device="sim").data_ptr() != address
    assert torch.empty(100_000, device="sim").data_ptr() == address


def test_record_stream_keeps_memory_back_until_the_other_stream_is_done(simulator):
    side, x = torch.Stream("sim"), torch.ones(100_000, device="sim")
    address = x.data_ptr()
    side.wait_stream(ACC.current_stream())
    with side:
        simulator.delay(0.1)
        x.sum()
    x.record_stream(side)
    del x
    assert torch.empty(100_000, device="sim").data_ptr() != address
    side.synchronize()
    assert address in [torch.empty(100_000, device="sim").data_ptr() for _ in range(2)]


def test_running_out_of_memory_is_an_error_with_figures_and_empties_the_cache_first(simulator):
    with simulator.settings(memory_bytes=8 * MIB):
        torch.empty(6 * MIB, dtype=torch.uint8, device="sim:1")  # stays in the cache
        torch.empty(7 * MIB, dtype=torch.uint8, device="sim:1")
        with pytest.raises(torch.OutOfMemoryError, match=f"allocate {9 * MIB} bytes on sim:1"):
            torch.empty(9 * MIB, dtype=torch.uint8, device="sim:1")


def test_memory_that_was_never_written_is_nan_or_all_ones():
    assert torch.empty(3, device="sim").isnan().all()
    assert torch.empty(2, dtype=torch.int32, device="sim").tolist() == [-1, -1]
    assert torch.empty(2, pin_memory=True).isnan().all()


def test_pinned_memory_statistics_tell_requested_and_reserved_bytes(simulator):
    before = simulator.pinned_memory(reset_peaks=True)
    x = torch.empty(5000, dtype=torch.uint8, pin_memory=True)
    now = simulator.pinned_memory()
    assert now.bytes - before.bytes == 5000
    assert now.reserved_bytes - before.reserved_bytes == 8192
    assert now.allocations - before.allocations == 1
    assert now.total_reservations - before.total_reservations == 1
    del x
    y = torch.empty(6000, dtype=torch.uint8, pin_memory=True)  # from the free block
    later = simulator.pinned_memory()
    assert later.total_allocations - before.total_allocations == 2
    assert later.total_reservations - before.total_reservations == 1
    assert later.peak_bytes - before.bytes == 6000
    del y
    ACC.empty_host_cache()
    end = simulator.pinned_memory()
    assert (end.bytes, end.reserved_bytes) == (before.bytes, before.reserved_bytes)
    assert end.peak_reserved_bytes - before.reserved_bytes == 8192


def test_a_pinned_block_is_not_reused_while_its_copy_runs(simulator):
    host = torch.ones(100_000).pin_memory()
    address = host.data_ptr()
    with simulator.settings(copy_s=0.1):
        x = host.to("sim", non_blocking=True)
    del host
    assert torch.empty(100_000, pin_memory=True).data_ptr() != address
    ACC.synchronize()
    kept = [torch.empty(100_000, pin_memory=True) for _ in range(2)]
    assert address in [t.data_ptr() for t in kept]
    assert x.sum().item() == 100_000


def test_running_out_of_pinned_memory_is_an_error_with_figures(simulator):
    in_use = simulator.pinned_memory().reserved_bytes
    with (
        simulator.settings(pinned_bytes=in_use + MIB),
        pytest.raises(torch.OutOfMemoryError, match="out of page-locked memory"),
    ):
        torch.empty(2 * MIB, dtype=torch.uint8, pin_memory=True)


def test_pinning_is_known_of_views_and_storages():
    host = torch.ones(5).pin_memory()
    assert host.is_pinned()
    assert host[2:].is_pinned()
    assert host.pin_memory() is host
    assert not torch.ones(5).is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.ones(5).untyped_storage().pin_memory().is_pinned()


def test_a_storage_gives_its_memory_back_and_takes_it_again():
    x = torch.ones(1024, device="sim")
    before = ACC.memory_allocated()
    x.untyped_storage().resize_(0)
    assert before - ACC.memory_allocated() == 4096
    x.untyped_storage().resize_(4096)
    x.fill_(2.0)
    assert x.sum().item() == 2048


def test_growing_a_storage_keeps_its_content():
    x = torch.arange(4.0, device="sim")
    x.resize_(8)
    assert x[:4].tolist() == [0, 1, 2, 3]
