"""What the benchmarks do on a GPU, as far as the simulated accelerator can stand for one."""

import contenders
import overlap
import pytest
import targets
import torch

pytestmark = [pytest.mark.simulated_accelerator, pytest.mark.timeout(60)]

CYCLES_PER_S = 1e9


@pytest.fixture
def cuda(simulator, monkeypatch):
    with simulator.as_cuda(), monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "_sleep", lambda cycles: simulator.delay(cycles / CYCLES_PER_S))
        yield simulator


def test_spinning_is_calibrated(cuda):
    cuda.delay(0.5)  # times are virtual, and exact for what is enqueued before it starts
    measured = targets._cycles_per_second(2_000_000)
    assert measured == pytest.approx(CYCLES_PER_S, rel=1e-3)


def test_the_link_is_measured(cuda):
    with cuda.settings(h2d_bytes_per_s=1e8):
        cuda.delay(0.5)
        assert targets._link_bytes_per_s(1 << 20) == pytest.approx(1e8, rel=1e-2)


def test_a_batch_is_as_large_as_the_link_copies_in_the_time(cuda, monkeypatch):
    monkeypatch.setattr(targets, "_link_bytes_per_s", lambda: 1e9)
    monkeypatch.setattr(targets, "_cycles_per_second", lambda: CYCLES_PER_S)
    target = targets.target("cuda")
    assert target.batch_bytes(0.001, wanted=1) == 1_000_000
    reads = targets.Reads(6, target.batch_bytes(0.001, 1), 0.0)
    (plain,) = [one for one in contenders.CONTENDERS if one.name == "plain loop"]
    found = overlap.epoch(target, plain, overlap.Cell(0, 1, 1), reads)
    assert (found["wrong"], found["races"]) == (0, {}), "nobody judges there; values tell"
    assert found["step_ms"] > 0
