"""The prediction is a pure function: the largest stage against the sum of all."""

from __future__ import annotations

from typing import Any

import pytest

from sidestream.diagnose.predict import PlainStep, predict


def plain(
    read: float,
    stage: float,
    link: float,
    compute: float,
    *,
    transfer: float | None = None,
    **more: Any,
) -> PlainStep:
    """A plain loop with these stages, one after the other."""
    transfer = link if transfer is None else transfer
    wait = more.pop("wait", read)
    return PlainStep(
        step_s=wait + transfer + compute,
        wait_s=wait, transfer_s=transfer, read_s=read, stage_s=stage, link_s=link, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "step_s", "bound"),
    [
        ((20, 1, 5, 10), 21, "reading"),
        ((1, 9, 5, 8), 10, "staging"),
        ((1, 1, 20, 10), 20, "link"),
        ((1, 1, 2, 30), 30, "compute"),
        ((0, 0, 0, 30), 30, "compute"),
    ],
)
def test_the_largest_stage_is_what_a_step_comes_to(
    stages: tuple[float, ...], step_s: float, bound: str
) -> None:
    found = predict(plain(*stages))
    read, _stage, link, compute = stages
    assert (found.step_s, found.bound) == (step_s, bound)
    assert found.gain == pytest.approx((read + link + compute) / step_s)


def test_computing_is_what_is_left_and_never_negative() -> None:
    assert plain(1, 1, 2, 3).compute_s == 3
    assert PlainStep(step_s=1.0, wait_s=0.7, transfer_s=0.6, read_s=0.7).compute_s == 0.0


def test_a_slow_pageable_copy_is_replaced_by_staging_and_a_fast_link() -> None:
    found = predict(plain(0, 3, 2, 5, transfer=8))
    assert (found.step_s, found.gain) == (5, 13 / 5)


def test_worker_processes_that_are_the_slowest_stage_stay_so() -> None:
    found = predict(plain(2, 0, 3, 10, num_workers=2))
    assert (found.step_s, found.gain, found.bound) == (15, 1.0, "reading")
    assert "worker processes" in found.note
    keeping_up = predict(plain(0.1, 0, 3, 10, num_workers=2))
    assert keeping_up.gain == pytest.approx(1.31)
    assert "cannot be told" in keeping_up.note


def test_no_loader_is_predicted_to_slow_a_loop_down() -> None:
    assert predict(plain(1, 9, 1, 1)).gain == 1.0


def test_reading_behind_a_busy_device_counts_in_full() -> None:
    """A loop that does not wait for its device reads while that computes; it did not stall."""
    found = predict(plain(9, 0, 10, 5, wait=0))
    assert (found.step_s, found.bound) == (10, "link")
    assert predict(plain(14, 0, 10, 5, wait=0)).step_s == 14
