"""The recorder, fed with the readings of a clock that stands still: every time is exact."""

from __future__ import annotations

from typing import Any

import pytest

from sidestream.statistics import LoaderStatistics, PassRecorder, Recorder

MIB = 1 << 20


def load(recorder: PassRecorder, at: float, *, read: float, stage: float, **more: Any) -> float:
    """One batch of the loader's thread: read, wait for room, stage. Gives the time after it."""
    room, waited, behind = more.get("room", 0.0), more.get("waited", 0.0), more.get("behind", 0.0)
    began = at + behind
    recorder.read(began, began + read, behind)
    asked = began + read
    ended = asked + room + waited + stage
    recorder.loaded(
        asked, asked + room, ended, waited=waited, sizes=more.get("sizes", (MIB, MIB, 3 * MIB))
    )
    return ended


def test_every_time_goes_to_its_stage_and_the_first_batch_is_apart() -> None:
    whole = Recorder()
    recorder = whole.begin_pass()
    at = load(recorder, 100.0, read=9.0, stage=8.0)  # warm-up: workers start, memory is taken
    recorder.delivered(100.0, at + 1, 0)
    at = load(recorder, at, read=0.25, stage=0.5, room=1.0, waited=2.0, behind=4.0)
    recorder.delivered(at - 0.125, at, 1)
    at = load(recorder, at, read=0.25, stage=0.5)
    recorder.delivered(at - 0.125, at, 2)
    recorder.timed_step(7.0, 3.0)
    recorder.timed_step(1.0, 0.5)
    recorder.timed_copy(MIB, 0.5)
    recorder.timed_copy(MIB, 60.0)  # the host was held up: one such copy does not count
    recorder.timed_copy(MIB, 1.0)
    found = whole.snapshot()
    assert found.epoch is not None
    assert found == LoaderStatistics(
        num_epochs=1, num_batches=3, num_bytes=3 * MIB, warm_up_s=18.0,
        num_steps=2, elapsed_s=7.5, consumer_wait_s=0.25, mean_waiting=1.5,
        num_loaded=2, source_wait_s=0.5, staging_s=1.0, staging_wait_s=6.0, room_wait_s=1.0,
        link_bytes_per_s=MIB, num_timed=2, device_elapsed_s=8.0, device_wait_s=3.5,
        peak_device_bytes=3 * MIB, peak_staging_bytes=3 * MIB, epoch=found.epoch,
    )  # fmt: skip


def test_passes_add_up_and_the_last_stands_alone() -> None:
    whole = Recorder()
    first, second = whole.begin_pass(), whole.begin_pass()  # both under way
    for recorder, seconds in ((first, 1.0), (second, 2.0), (first, 4.0), (second, 8.0)):
        at = load(recorder, 0.0, read=seconds, stage=0.0)
        recorder.delivered(at, at, 0)
    found = whole.snapshot()
    assert (found.num_epochs, found.num_batches, found.source_wait_s) == (2, 4, 12.0)
    assert found.epoch is not None
    assert (found.epoch.num_epochs, found.epoch.source_wait_s) == (1, 8.0)
    assert found.epoch.epoch is None


def test_memory_is_of_the_buffer_and_of_the_last_two_handed_over() -> None:
    whole = Recorder()
    recorder = whole.begin_pass()
    for number in range(4):  # two in the buffer, two given out: nothing is let go of yet
        load(recorder, 0.0, read=0.0, stage=0.0, sizes=(1, 10 + number, 7))
    recorder.delivered(0.0, 0.0, 3)
    recorder.delivered(0.0, 0.0, 2)
    assert whole.snapshot().peak_device_bytes == 10 + 11 + 12 + 13
    recorder.delivered(0.0, 0.0, 1)  # lets go of the first
    load(recorder, 0.0, read=0.0, stage=0.0, sizes=(1, 10, 9))
    assert whole.snapshot().peak_device_bytes == 46  # 11, 12, 13 and the new 10
    recorder.delivered(0.0, 0.0, 1)
    load(recorder, 0.0, read=0.0, stage=0.0, sizes=(1, 50, 8))
    found = whole.snapshot()
    assert found.peak_device_bytes == 12 + 13 + 10 + 50
    assert found.peak_staging_bytes == 9
    assert found.num_bytes == 4  # what was handed over, one each


def test_what_is_not_known_is_none_and_not_zero() -> None:
    whole = Recorder()
    recorder = whole.begin_pass()
    assert whole.snapshot().device_wait_s is None
    recorder.timed_step(1.0, 0.0)
    assert whole.snapshot().device_wait_s == 0.0
    assert whole.snapshot().link_bytes_per_s is None


class Spans:
    def __init__(self) -> None:
        self.found: list[tuple[Any, ...]] = []

    def span(self, *what: Any) -> None:
        self.found.append(what)

    def device_step(self, *what: Any) -> None:
        raise AssertionError(what)

    device_copy = device_step


def test_spans_go_to_a_trace_while_there_is_one() -> None:
    whole = Recorder()
    recorder = whole.begin_pass()
    load(recorder, 0.0, read=1.0, stage=1.0)
    whole.trace = spans = Spans()
    load(recorder, 10.0, read=1.0, room=2.0, waited=3.0, stage=4.0)
    recorder.delivered(11.0, 21.0, 0)
    whole.trace = None
    load(recorder, 30.0, read=1.0, stage=1.0)
    assert spans.found == [
        ("read", 1, 10.0, 11.0),
        ("wait for room", 1, 11.0, 13.0),
        ("wait for staging", 1, 13.0, 16.0),
        ("stage", 1, 16.0, 20.0),
        ("loop waits", 0, 11.0, 21.0),
    ]


def test_a_signal_handler_may_look_while_its_thread_adds() -> None:
    whole = Recorder()
    recorder = whole.begin_pass()
    with recorder._lock:
        assert whole.snapshot().num_epochs == 1


@pytest.mark.parametrize("name", ["num_epochs", "num_timed", "peak_staging_bytes"])
def test_the_sums_have_the_names_of_what_they_become(name: str) -> None:
    assert name in vars(Recorder()._sums)
