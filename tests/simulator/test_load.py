"""Many, large and small on the simulated accelerator; in full with --long."""

import gc

import pytest
import torch

from sidestream import AsynchronousLoader
from support.sources import Counting, plain


def some(few, many):
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.long)])


@some(300, 10_000)
@pytest.mark.timeout(300)
def test_many_tiny_epochs(simulator, count):
    loader = AsynchronousLoader(Counting(2), "sim")
    seen = torch.zeros((), device="sim")
    for _ in range(count):
        for tensor, number in loader:
            seen += (tensor == number).all()
    assert seen.item() == 2 * count


@some(60, 1_000)
@pytest.mark.timeout(300)
def test_many_loaders_alive_at_once(simulator, count):
    """There are 32 streams, handed out in turn: they share them."""
    torch.accelerator.synchronize()
    device, pinned = torch.accelerator.memory_allocated(), simulator.pinned_memory().bytes
    loaders = [AsynchronousLoader(plain(4), "sim") for _ in range(count)]
    iterators = [iter(loader) for loader in loaders]
    for expected in range(4):
        for iterator in iterators:
            tensor, number = next(iterator)
            assert number == expected
            assert (tensor == number).all().item()
    assert [next(iterator, "end") for iterator in iterators] == ["end"] * count
    del loaders, iterators, iterator, tensor
    gc.collect()
    torch.accelerator.synchronize()
    assert torch.accelerator.memory_allocated() == device
    assert simulator.pinned_memory().bytes == pinned


@pytest.mark.parametrize(
    "size",
    [
        0, 1, 63, 64, 65, 4095, 4096, 4097, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 1 << 20,
        (1 << 20) + 1, (8 << 20) - 1, (8 << 20) + 1, (64 << 20) + 3,
        pytest.param(2_000_000_000, marks=pytest.mark.long),
    ],
)  # fmt: skip
@pytest.mark.timeout(300)
def test_batches_of_any_size(simulator, size):
    """[bytes]"""
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    host = torch.empty(size, dtype=torch.uint8)
    step = 65_537
    host[::step] = torch.arange(len(host[::step]), dtype=torch.int64).remainder(251).byte()
    host[-5:] = 99
    large = size > 1_000_000_000
    for batch in AsynchronousLoader([host] * (1 if large else 3), "sim"):
        assert batch.shape == (size,)
        assert torch.equal(batch[::step].cpu(), host[::step])
        assert torch.equal(batch[-5:].cpu(), host[-5:])
        if not large:
            assert torch.equal(batch.cpu(), host)
        del batch
    gc.collect()
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
