"""ThreadDataLoader under an AsynchronousLoader: page-locked once, copied from there, no races."""

import pytest
import torch

from sidestream import AsynchronousLoader, ThreadDataLoader
from sidestream.staging import StagingPool

SIDE = 256  # a sample is 256 KiB, a batch 1 MiB
BATCH_BYTES = 4 * SIDE * SIDE * 4


class Large:
    def __init__(self, batches=40):
        self.batches = batches

    def __len__(self):
        return 4 * self.batches

    def __getitem__(self, index):
        return torch.full((SIDE, SIDE), float(index // 4))


def source(**options):
    return ThreadDataLoader(Large(), batch_size=4, num_workers=2, **options)


@pytest.fixture
def slow_copies(simulator):
    with simulator.settings(h2d_bytes_per_s=BATCH_BYTES / 2e-3, kernel_s=1e-4):
        yield


def wrong_batches(loader):
    """How many batches did not hold what they should, looked at on the device."""
    marks = torch.zeros(40, device="sim")
    for number, batch in enumerate(loader):
        marks[number] = (batch != number).any()
    assert number == 39
    return int(marks.cpu().sum())


@pytest.mark.parametrize("buffer_size", [1, 2, 5])
def test_no_race_and_no_wrong_batch(simulator, slow_copies, buffer_size):
    loader = AsynchronousLoader(source(), "sim", buffer_size=buffer_size)
    simulator.races()
    for _ in range(2):
        assert wrong_batches(loader) == 0
    assert simulator.races() == []
    loader.close()


def test_page_locked_memory_is_bounded_and_flat(simulator, slow_copies):
    loader = AsynchronousLoader(source(), "sim", buffer_size=2)
    before = simulator.pinned_memory(reset_peaks=True).bytes
    peaks = []
    for _ in range(3):
        wrong_batches(loader)
        peaks.append(simulator.pinned_memory().peak_bytes - before)
    # Four read ahead, one handed to the loader, three in its copies, one on its way.
    assert peaks[-1] <= (4 + 1 + 3 + 1) * BATCH_BYTES
    assert peaks[0] > 0
    loader.close()


def test_a_batch_is_not_staged_again(simulator, monkeypatch):
    staged = []
    acquire = StagingPool.acquire
    monkeypatch.setattr(
        StagingPool, "acquire", lambda pool, size: staged.append(size) or acquire(pool, size)
    )
    loader = AsynchronousLoader(source(), "sim")
    assert wrong_batches(loader) == 0
    assert staged == []
    assert wrong_batches(AsynchronousLoader(list(source()), "sim")) == 0
    assert len(staged) == 40
    loader.close()


def test_pin_memory_without_a_loader(simulator):
    batches = list(source(pin_memory=True))
    assert all(batch.is_pinned() for batch in batches)
    assert [batch[0, 0, 0].item() for batch in batches] == list(range(40))
    assert not next(iter(source())).is_pinned()


def test_a_page_locked_batch_that_is_let_go_of_is_not_written_before_its_copy_ends(
    simulator, slow_copies
):
    """Torch's own allocator sees to it; memory of our own would not."""
    simulator.races()
    marks = torch.zeros(40, device="sim")
    for number, host in enumerate(source(pin_memory=True)):
        batch = host.to("sim", non_blocking=True)
        del host
        marks[number] = (batch != number).any()
    assert int(marks.cpu().sum()) == 0
    assert simulator.races() == []
