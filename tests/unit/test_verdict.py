"""The verdict is a pure function: for times that are made up, the stage that was made slow."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sidestream import LoaderStatistics
from sidestream.diagnose.verdict import THRESHOLDS, judge, times_of


def seen(
    *,
    read: float = 0.001,
    stage: float = 0.001,
    link: float | None = 0.001,
    compute: float = 0.001,
    step: float | None = None,
    steps: int = 100,
) -> LoaderStatistics:
    """What a pipeline of these stages comes to: a step takes as long as the slowest [s]."""
    if step is None:
        step = max(read + stage, link or 0.0, compute)
    wait = step - compute
    found = LoaderStatistics(
        num_epochs=1, num_batches=steps + 1, num_bytes=1000 * (steps + 1), num_steps=steps,
        elapsed_s=step * steps, consumer_wait_s=wait * steps, num_loaded=steps,
        source_wait_s=read * steps, staging_s=stage * steps,
    )  # fmt: skip
    if link is None:
        return dataclasses.replace(found, num_bytes=0)
    return dataclasses.replace(
        found, link_bytes_per_s=1000 / link, num_timed=steps,
        device_elapsed_s=step * steps, device_wait_s=wait * steps,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "bound", "gain"),
    [
        ({"read": 0.020, "compute": 0.010}, "reading", 2.1),
        ({"read": 0.020, "compute": 0.010, "link": None}, "reading", 2.1),
        ({"stage": 0.020, "compute": 0.005}, "staging", 4.2),
        ({"link": 0.020, "compute": 0.010}, "link", 2.0),
        ({"compute": 0.020}, "compute", 1.0),
        ({"compute": 0.020, "link": None}, "compute", 1.0),
        # Two and three that are slow: reading and staging share a thread, and add up.
        ({"read": 0.012, "stage": 0.011, "link": 0.020, "compute": 0.010}, "reading", 2.3),
        ({"read": 0.008, "stage": 0.007, "link": 0.020, "compute": 0.010}, "link", 2.0),
        ({"read": 0.010, "stage": 0.011, "link": 0.020, "compute": 0.005}, "staging", 4.2),
    ],
)
def test_the_slow_stage_is_named(stages: dict[str, Any], bound: str, gain: float) -> None:
    found = judge(seen(**stages))
    assert found.bound == bound
    assert found.gain == pytest.approx(gain)
    assert found.advice
    assert str(found).startswith(f"bound by {bound}: the loop waits for ")


def test_the_device_s_clock_counts_where_there_is_one() -> None:
    """A loop that runs ahead waits on the host for what its device has no need of yet."""
    ahead = dataclasses.replace(seen(compute=0.020), consumer_wait_s=1.9, elapsed_s=2.0)
    assert judge(ahead).bound == "compute"
    # And one that never waits on the host may starve its device.
    starved = dataclasses.replace(seen(link=0.020, compute=0.010), consumer_wait_s=0.0)
    assert judge(starved).bound == "link"


def test_without_a_clock_the_link_is_told_by_the_wait_for_staging_memory() -> None:
    found = dataclasses.replace(
        seen(read=0.001, link=None, compute=0.010, step=0.020), staging_wait_s=1.8, num_bytes=1000
    )
    assert judge(found).bound == "link"


@pytest.mark.parametrize(("wait", "bound"), [(0.04, "compute"), (0.06, "reading")])
def test_a_share_of_waiting_below_the_threshold_is_none(wait: float, bound: str) -> None:
    assert 0.04 < THRESHOLDS["starved"][0] < 0.06
    found = judge(seen(read=0.1, stage=0.0, compute=0.1 * (1 - wait), step=0.1))
    assert found.bound == bound


@pytest.mark.parametrize(("steps", "bound"), [(7, "not measurable"), (8, "reading")])
def test_a_few_steps_are_not_judged(steps: int, bound: str) -> None:
    assert THRESHOLDS["steps"][0] == 8
    found = judge(seen(read=0.02, steps=steps))
    assert found.bound == bound
    if bound == "not measurable":
        assert (found.gain, found.advice) == (None, "")
        assert found.reason == "7 steps were seen, and a verdict takes 8"


def test_what_was_not_seen_is_not_judged() -> None:
    assert judge(LoaderStatistics()).bound == "not measurable"
    found = judge(dataclasses.replace(seen(), num_loaded=0))
    assert found.reason == "no batch was loaded after the first of its pass"


def test_a_loop_that_only_waits_has_no_bound_to_its_gain() -> None:
    found = judge(seen(read=0.02, compute=0.0))
    assert found.bound == "reading"
    assert found.gain is None


def test_the_next_stage_is_named() -> None:
    assert "though link is close behind" in judge(seen(compute=0.020, link=0.019)).reason
    assert "close" not in judge(seen(compute=0.020, link=0.017)).reason
    near = seen(read=0.020, stage=0.0, link=0.019, compute=0.010)
    assert judge(near).reason.endswith("; link would be next")


def test_late_batches_want_a_larger_buffer() -> None:
    found = judge(seen(read=0.010, stage=0.0, compute=0.012, step=0.016))
    assert "some batches are late" in found.reason
    assert "buffer_size larger" in found.advice


def test_stages_that_add_up_do_not_overlap() -> None:
    found = judge(seen(read=0.010, stage=0.002, link=0.003, compute=0.010, step=0.025))
    assert found.bound == "reading"
    assert "one after the other" in found.reason
    assert "buffer_size=0" in found.advice


def test_metrics_are_flat_numbers_and_leave_out_what_is_not_known() -> None:
    found = seen(read=0.020, link=0.005, compute=0.010)
    metrics = found.metrics()
    assert metrics == pytest.approx({
        "step_ms": 21.0, "wait_ms": 11.0, "compute_ms": 10.0, "read_ms": 20.0, "stage_ms": 1.0,
        "link_ms": 5.0, "wait_share": 11 / 21, "buffer": 0.0,
    })  # fmt: skip
    assert "link_ms" not in seen(link=None).metrics()
    assert LoaderStatistics().metrics() == {}


def test_one_line_for_a_progress_bar() -> None:
    assert str(seen(read=0.020, link=0.005, compute=0.010)) == (
        "bound by reading: step 21 ms, of it waiting 11 ms "
        "(read 20 ms, stage 1 ms, link 5 ms, compute 10 ms)"
    )
    assert str(LoaderStatistics()) == "0 batches: no step to measure yet"
    assert str(seen(steps=3)).startswith("not measurable: step 2 ms")
    assert times_of(LoaderStatistics()).step is None


def test_every_threshold_has_a_reason() -> None:
    assert all(value > 0 and len(reason) > 40 for value, reason in THRESHOLDS.values())
