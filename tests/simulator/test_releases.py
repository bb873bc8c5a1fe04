"""The seven ways to release memory give the verdicts of the documentation's table."""

from pathlib import Path

import pytest
import releases
import torch

from sidestream.simulator import RaceKind

pytestmark = [pytest.mark.simulated_accelerator, pytest.mark.slow]

READ, REUSE = RaceKind.READ_BEFORE_COPY, RaceKind.REUSE_UNDER_USE
KINDS = {"no wait": {READ, REUSE}, "wait only": {REUSE}, "host synchronize, last 4 kept": {REUSE}}
DOCS = Path(__file__).parents[2] / "docs" / "simulator.md"


def documented():
    """The table of the page: way -> (possible numbers of races, of reserved batches)."""
    table = DOCS.read_text().partition("| way |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
    return {row[0]: tuple(map(possible, row[-2:])) for row in rows}


def possible(cell):
    low, _, high = cell.partition("-")
    return range(int(low), int(high or low) + 1)


def test_the_page_lists_every_way():
    assert list(documented()) == list(releases.WAYS)


@pytest.mark.parametrize("name", releases.WAYS)
def test_the_verdict_is_that_of_the_page(name):
    count, reserved = documented()[name]
    result = releases.measure_way(name, copy_s=0.002, compute_s=0.002)
    assert {race.kind for race in result.races} == KINDS.get(name, set())
    assert len(result.races) in count
    assert int(result.reserved) in reserved
    if name not in KINDS:
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
        for name in releases.WAYS
        if name not in KINDS
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
