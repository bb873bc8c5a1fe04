"""Times on the device's clock, where the truth is declared: exact, since all is queued beforehand.

The loader's thread and the loop queue everything while both streams are held up; what follows runs
in virtual time, whatever the machine does meanwhile. Times of the host are in tests/unit, with the
readings of a clock that stands still, and in benchmarks/statistics.py.
"""

import threading

import pytest
import torch
from torch.utils.data import DataLoader

from sidestream import AsynchronousLoader
from sidestream.diagnose.measure import Limit, Measurement, measuring
from sidestream.diagnose.timeline import Timeline

MIB = 1 << 20
NUM = 10
HOLD_S = 0.5  # for both streams: longer than the host takes to queue ten batches


def run(loader, link_s, compute_s, *, simulator, in_step=False):
    """All batches, queued before the first copy ends. Gives the statistics after the last."""
    rate = MIB / link_s
    with simulator.settings(h2d_bytes_per_s=rate, detect_races=False):
        passed = iter(loader)
        side = passed._epoch._transfer._side
        with side:
            simulator.delay(HOLD_S)
        total = torch.zeros(MIB // 4, device="sim")
        first = next(passed)
        for thread in threading.enumerate():
            if thread.name.startswith("sidestream-epoch"):
                thread.join()  # it has read the last and queued all copies
        total.copy_(first)
        simulator.delay(compute_s)
        for batch in passed:
            total.copy_(batch)
            simulator.delay(compute_s)
            if in_step:
                torch.accelerator.current_stream().synchronize()
        before = loader.statistics()
        torch.accelerator.synchronize()
        return before, loader.statistics()


def loader_of(batch):
    return AsynchronousLoader([batch] * NUM, "sim", buffer_size=NUM - 1)


class Pinned:
    """Gives page-locked batches away: asked for the next while `buffer_size` of them are kept."""

    def __iter__(self):
        return (torch.zeros(MIB // 4).pin_memory() for _ in range(NUM))


@pytest.mark.parametrize("pinned", [False, True], ids=["staged", "pinned"])
@pytest.mark.parametrize(
    ("link_s", "compute_s", "bound"),
    [(0.020, 0.005, "link"), (0.005, 0.020, "compute"), (0.020, 0.019, "link")],
)
def test_the_stages_of_the_device_are_exact(simulator, link_s, compute_s, bound, pinned):
    loader = loader_of(torch.zeros(MIB // 4))
    if pinned:
        loader = AsynchronousLoader(Pinned(), "sim", buffer_size=NUM)
    _, found = run(loader, link_s, compute_s, simulator=simulator)
    step_s = max(link_s, compute_s)
    assert found.num_timed == found.num_steps == NUM - 1
    assert found.device_elapsed_s == pytest.approx((NUM - 1) * step_s, rel=1e-3)
    wait_s = (NUM - 1) * (step_s - compute_s)
    assert found.device_wait_s == pytest.approx(wait_s, rel=1e-3, abs=1e-4)
    assert found.link_bytes_per_s == pytest.approx(MIB / link_s, rel=1e-3)
    verdict = found.verdict()
    assert (verdict.bound, verdict.gain) == (bound, pytest.approx(step_s / compute_s, rel=1e-2))
    assert found.metrics()["link_ms"] == pytest.approx(link_s * 1e3, rel=1e-3)
    assert found.epoch.device_wait_s == found.device_wait_s
    assert simulator.races() == []


def test_the_stall_is_that_of_the_stream_and_not_of_the_host(simulator):
    """The loop is through before the device has begun: on the host nothing was waited for."""
    before, found = run(loader_of(torch.zeros(MIB // 4)), 0.020, 0.005, simulator=simulator)
    assert (before.num_steps, before.num_timed, before.device_wait_s) == (NUM - 1, 0, None)
    assert found.consumer_wait_s < HOLD_S
    assert found.device_wait_s == pytest.approx((NUM - 1) * 0.015, rel=1e-3)


def test_nothing_waits_for_the_device_to_be_asked(simulator):
    """The device is held up; statistics come all the same, and say what is known."""
    loader = AsynchronousLoader([torch.zeros(MIB // 4)] * NUM, "sim")
    passed = iter(loader)
    with passed._epoch._transfer._side:
        simulator.delay(4.0)
    for _ in range(2):
        next(passed)
    found = loader.statistics()
    held_up = passed._epoch._transfer._side.record_event()
    assert not held_up.query()
    assert (found.num_batches, found.num_timed) == (2, 0)
    assert found.link_bytes_per_s is None
    assert found.verdict().bound == "not measurable"
    passed.close()


@pytest.mark.parametrize("size", [1000, 3 * MIB, 20 * MIB])
def test_bytes_and_memory_are_those_of_the_batches(simulator, size):
    loader = AsynchronousLoader([torch.zeros(size, dtype=torch.uint8)] * 6, "sim", buffer_size=2)
    for batch in loader:
        assert batch.numel() == size
    found = loader.statistics()
    rounded = -(-size // 64) * 64 if size <= 64 * 1024 else size  # small ones are packed
    assert found.num_bytes == 6 * rounded
    assert rounded <= found.peak_device_bytes <= 4 * rounded
    assert size <= found.peak_staging_bytes <= 3 * (size + 4096)


def test_a_large_batch_is_timed_by_a_chunk_and_counted_as_a_whole(simulator):
    size = 20 * MIB  # three chunks: the stream may wait for the host between them
    with simulator.settings(h2d_bytes_per_s=1e9, detect_races=False):
        loader = AsynchronousLoader([torch.zeros(size, dtype=torch.uint8)] * 3, "sim")
        passed = iter(loader)
        with passed._epoch._transfer._side:
            simulator.delay(HOLD_S)
        list(passed)
        torch.accelerator.synchronize()
    found = loader.statistics()
    assert found.num_bytes == 3 * size
    assert found.link_bytes_per_s == pytest.approx(1e9, rel=1e-2)


def test_an_expanded_tensor_counts_as_what_is_copied(simulator):
    loader = AsynchronousLoader([torch.zeros(64 * 1024).expand(100, -1)] * 3, "sim")
    list(loader)
    assert loader.statistics().num_bytes == 3 * 256 * 1024


# ---- a plain loop, measured from outside


def test_copies_of_a_plain_loop_are_timed_in_the_step_they_belong_to(simulator):
    measurement = Measurement(Limit(None))
    batches = [torch.zeros(MIB // 4) for _ in range(NUM)]
    loader = DataLoader(batches, batch_size=None, collate_fn=torch.Tensor.pin_memory)
    other = torch.zeros(MIB // 4).pin_memory()
    with (
        measuring(measurement),
        simulator.settings(h2d_bytes_per_s=MIB / 0.020, detect_races=False),
    ):
        other.to("sim")  # not in a step
        simulator.delay(HOLD_S)
        total = torch.zeros(MIB // 4, device="sim")
        for batch in loader:
            moved = batch.to("sim", non_blocking=True)
            total.copy_(moved)
            simulator.delay(0.005)
        other.to("sim")  # nor is this
        measurement.finish()
    (seen,) = measurement.found.values()
    found = seen.recorder.snapshot()
    assert seen.transfer_bytes == (NUM - 1) * MIB  # the last batch's step has no end
    assert seen.transfer_s == pytest.approx((NUM - 1) * 0.020, rel=1e-3)
    assert found.device_elapsed_s == pytest.approx((NUM - 1) * 0.025, rel=1e-3)
    assert found.device_wait_s == pytest.approx(0.0, abs=1e-4)
    assert [(leaf.shape, leaf.is_pinned) for leaf in seen.leaves] == [((MIB // 4,), True)]


def test_what_is_no_copy_to_the_device_is_not_counted(simulator):
    measurement = Measurement(Limit(None))
    with measuring(measurement):
        for batch in DataLoader([torch.zeros(4)] * 4, batch_size=None):
            batch.to(torch.float64)
            batch.to("cpu")
            there = batch.to("sim")
            there.to(torch.float64)
            there.to("cpu")
            thread = threading.Thread(target=lambda batch=batch: batch.to("sim"))
            thread.start()
            thread.join()
    measurement.finish()
    (seen,) = measurement.found.values()
    assert seen.transfer_bytes == 3 * 16


def test_what_the_dataset_copies_itself_is_reading(simulator):
    class There(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.zeros(4).to("sim")

    measurement = Measurement(Limit(None))
    with measuring(measurement):
        list(DataLoader(There(), batch_size=None))
    measurement.finish()
    (seen,) = measurement.found.values()
    assert (seen.num_steps, seen.transfer_bytes) == (3, 0)


# ---- the timeline


def test_a_timeline_has_the_device_s_spans_at_their_times(simulator):
    loader = loader_of(torch.zeros(MIB // 4))
    with Timeline(loader) as timeline:
        run(loader, 0.020, 0.005, simulator=simulator)
    spans = {(span.row, span.number): span for span in timeline.spans}
    for number in range(1, NUM):
        copy, wait = spans["copy", number], spans["device waits", number]
        assert copy.ended_s - copy.began_s == pytest.approx(0.020, rel=1e-3)
        assert wait.ended_s == pytest.approx(copy.ended_s, abs=1e-4)
        assert copy.began_s == pytest.approx(spans["copy", number - 1].ended_s, abs=1e-4)
        before = spans["compute", number - 1]
        assert before.ended_s == pytest.approx(wait.began_s, abs=1e-4)
        assert before.ended_s - before.began_s == pytest.approx(0.005, rel=1e-2)
    # The host's clock and the device's are laid over one another.
    assert spans["copy", 0].began_s >= HOLD_S - 0.01
    assert spans["loop waits", 0].began_s < spans["loop waits", 0].ended_s < HOLD_S
