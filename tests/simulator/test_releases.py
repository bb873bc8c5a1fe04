"""The seven ways to release memory give the verdicts of the documentation's table."""

import pytest
import releases
import torch

from sidestream.simulator import RaceKind

pytestmark = [pytest.mark.simulated_accelerator, pytest.mark.slow]

READ, REUSE = RaceKind.READ_BEFORE_COPY, RaceKind.REUSE_UNDER_USE
VERDICTS = {  # way: kinds of race, how many of them, reserved batches
    "no wait": ({READ, REUSE}, range(44, 48), range(1, 5)),
    "wait only": ({REUSE}, range(20, 25), range(1, 5)),
    "host synchronize, last 4 kept": ({REUSE}, range(16, 21), range(5, 9)),
    "wait + record_stream": (set(), range(1), range(23, 25)),
    "B: allocate on the consumer's stream": (set(), range(1), range(1, 5)),
    "A2: release before the next is taken": (set(), range(1), range(1, 5)),
    "A3: release after the next is taken": (set(), range(1), range(3, 5)),
}


def test_every_way_has_a_verdict():
    assert list(VERDICTS) == list(releases.WAYS)


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict(name):
    kinds, count, reserved = VERDICTS[name]
    result = releases.measure_way(name, copy_s=0.002, compute_s=0.002)
    assert {race.kind for race in result.races} == kinds
    assert len(result.races) in count
    assert int(result.reserved) in reserved
    if not kinds:
        assert result.wrong == 0


@pytest.mark.parametrize("name", ["no wait", "wait only"])
def test_wrong_ways_give_wrong_values(name):
    result = releases.measure_way(name, copy_s=0.005, compute_s=0.005)
    assert result.wrong > 12


def test_only_the_release_after_the_take_overlaps_in_bounded_memory():
    """By virtual time."""
    torch.accelerator.synchronize()
    copy_s = compute_s = 0.01
    serial, ideal = copy_s + compute_s, copy_s + compute_s / releases.STEPS
    times = {
        name: releases.measure_way(name, copy_s=copy_s, compute_s=compute_s).step_ms / 1e3
        for name in list(VERDICTS)[3:]
    }
    assert times["A3: release after the next is taken"] < 1.15 * ideal
    assert times["wait + record_stream"] < 1.15 * ideal
    assert times["A2: release before the next is taken"] > 0.9 * serial
    assert times["B: allocate on the consumer's stream"] > 0.9 * serial


def test_a_smaller_lead_frees_record_stream_from_growing():
    """record_stream's growth is the lead of the CPU: with a synchronisation a step it is gone."""

    def synchronising(batches, side):
        for x in releases.record_stream(batches, side):
            yield x
            del x
            torch.accelerator.current_stream().synchronize()

    batches, side = releases.pinned_batches(), torch.Stream("sim")
    result = releases.measure(lambda: synchronising(batches, side), copy_s=0.001, compute_s=0.001)
    assert (result.wrong, result.races) == (0, [])
    assert result.reserved <= 3
