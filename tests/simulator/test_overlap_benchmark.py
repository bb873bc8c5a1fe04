"""The grid marks what is wrong and what races, and lets a right contender be."""

import itertools

import contenders
import overlap
import pytest
import targets
import torch

pytestmark = [pytest.mark.simulated_accelerator, pytest.mark.timeout(60)]

CELL = overlap.Cell(1, 2, 2)
STEPS = 12


@pytest.fixture
def target(simulator):
    return targets.target("sim")


def measured(target, name, cell=CELL):
    reads = targets.Reads(STEPS, targets.MEBIBYTE, cell.read_ms / 1e3)
    (contender,) = [one for one in contenders.CONTENDERS if one.name == name]
    return overlap.epoch(target, contender, cell, reads)


@pytest.mark.parametrize("in_step", [False, True])
@pytest.mark.parametrize("name", ["sidestream", "plain loop", "forty lines by hand"])
def test_what_is_right_is_not_marked(target, name, in_step):
    found = measured(target, name, overlap.Cell(1, 2, 2, in_step=in_step))
    assert (found["wrong"], found["races"]) == (0, {})
    assert found["step_ms"] > 0


@pytest.mark.parametrize("name", ["Lighter 2019, retold", "Bolts 2020, retold"])
def test_a_race_is_marked(target, name):
    found = measured(target, name)
    assert found["races"]
    assert "READ_BEFORE_COPY" in found["races"]


def test_wrong_values_are_counted_by_steps():
    sums = [torch.tensor(float(value)) for value in (1, 1, 2, 9, 9, 3)]
    assert overlap._wrong_batches(sums, [1, 1, 2, 2, 3, 3]) == 2


def test_one_race_in_one_round_stays(target):
    rounds = [
        {"step_ms": 2.0, "wrong": 0, "races": {}, "reserved_batches": 1.0},
        {"step_ms": 4.0, "wrong": 3, "races": {"READ_BEFORE_COPY": 1}, "reserved_batches": 2.0},
        {"step_ms": 3.0, "wrong": 0, "races": {}, "reserved_batches": 1.0},
    ]
    found = overlap.summary(rounds, ideal_ms=2.0)
    assert (found["wrong"], found["races"]) == (3, {"READ_BEFORE_COPY": 1})
    assert found["over_ideal"] == 1.5
    assert found["reserved_batches"] == 2.0


def test_reading_takes_its_time_and_no_value_is_given_twice_in_a_row():
    reads = targets.Reads(12, 64, 0.0)
    values = [reads[number][1][0].item() for number in range(len(reads))]
    assert values == [reads.value(number) for number in range(12)]
    assert all(a != b for a, b in itertools.pairwise(values))
