"""A short soak; the long one is `python tests/simulator/soak.py --programs 5000`."""

import itertools

import pytest

import soak

pytestmark = [pytest.mark.simulated_accelerator, pytest.mark.slow, pytest.mark.timeout(170)]


def test_random_programs_against_the_oracle_and_flat_memory():
    """1,000 programs: values, reports and memory; about 12 s on an idle machine."""
    tally, resident = soak.Tally(), []
    for seed in range(1000):
        tally.run(100_000 + seed)
        if seed % 300 == 99:
            resident.append(soak.resident_bytes())
    assert tally.complaints == []
    assert tally.racy > 300
    assert tally.reported == tally.racy
    assert tally.visibly_wrong > 30
    growth = [after - before for before, after in itertools.pairwise(resident)]
    assert len(growth) == 3
    assert min(growth) < 1 << 20  # a leak grows in every window; Python's own tables do not


def test_the_check_can_fail(simulator):
    """With the detector off, the same tally complains of every racy program."""
    tally = soak.Tally()
    with simulator.settings(detect_races=False):
        for seed in range(20):
            tally.run(seed)
    assert tally.racy > 0
    assert tally.missed == tally.racy
    assert len(tally.complaints) == tally.missed
