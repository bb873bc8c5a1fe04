"""The loops of scripts/gpu-check's sanitizer, on a device where every access is judged."""

import pytest
import stream_check

pytestmark = [pytest.mark.simulated_accelerator, pytest.mark.timeout(60)]


def test_our_loops_neither_race_nor_give_wrong_values(simulator):
    assert stream_check.wrong_values("sim") == []
    assert simulator.races() == []


def test_the_loader_that_has_to_be_caught_races(simulator):
    stream_check.forgetful(stream_check.batches(), "sim")
    assert simulator.RaceKind.READ_BEFORE_COPY in {race.kind for race in simulator.races()}


def test_a_wrong_value_is_told(simulator, monkeypatch):
    monkeypatch.setattr(stream_check, "right", lambda number: [number + 1.0] * 6)
    assert stream_check.wrong_values("sim") == [one.__name__ for one in stream_check.LOOPS]
