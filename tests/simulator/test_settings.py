"""Settings are checked, applied and put back."""

import math

import pytest
import torch

pytestmark = pytest.mark.simulated_accelerator


def test_defaults_add_no_time(simulator):
    settings = simulator.current_settings()
    assert settings == simulator.Settings()
    assert math.isinf(settings.h2d_bytes_per_s)
    assert settings.kernel_s == settings.copy_s == 0


def test_a_block_puts_back_what_was_before_also_after_an_error(simulator):
    with pytest.raises(KeyError), simulator.settings(kernel_s=0.5, operator_s={"aten::mm": 1.0}):
        raise KeyError
    assert simulator.current_settings() == simulator.Settings()
    x = torch.ones(4, 4, device="sim")
    start, end = (torch.Event("sim", enable_timing=True) for _ in range(2))
    simulator.delay(0.05)
    start.record()
    x @ x
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) == 0


def test_blocks_nest_and_add_up(simulator):
    with simulator.settings(copy_s=0.1), simulator.settings(strict=True) as inner:
        assert inner.copy_s == 0.1
        assert inner.strict
    assert simulator.current_settings() == simulator.Settings()


def test_configure_holds_until_it_is_changed_again(simulator):
    before = simulator.configure(h2d_bytes_per_s=1e6)
    assert simulator.current_settings().h2d_bytes_per_s == 1e6
    simulator.configure(h2d_bytes_per_s=before.h2d_bytes_per_s)
    assert simulator.current_settings() == before


def test_bandwidths_and_fixed_times_add_up(simulator):
    host, start = torch.ones(1000).pin_memory(), torch.Event("sim", enable_timing=True)
    ends = [torch.Event("sim", enable_timing=True) for _ in range(3)]
    simulator.delay(0.05)
    with simulator.settings(
        h2d_bytes_per_s=4e5, d2h_bytes_per_s=2e5, d2d_bytes_per_s=1e6, copy_s=0.001
    ):
        start.record()
        x = host.to("sim", non_blocking=True)
        ends[0].record()
        back = x.to("cpu", non_blocking=True)
        ends[1].record()
        y = x.clone()
        ends[2].record()
    torch.accelerator.synchronize()
    times = [start.elapsed_time(end) for end in ends]
    assert times == pytest.approx([11, 11 + 21, 11 + 21 + 5], abs=0.01)
    assert back.sum().item() == y.sum().item() == 1000


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kernel_ms": 1}, TypeError, "no such setting: kernel_ms; there are .*kernel_s"),
        ({"kernel_s": -1.0}, ValueError, r"kernel_s must be 0 or more and finite \[s\], got -1"),
        ({"copy_s": math.nan}, ValueError, "copy_s must be"),
        (
            {"h2d_bytes_per_s": 0},
            ValueError,
            r"must be above 0 \[bytes/s\], got 0",
        ),
        ({"operator_s": {"aten::mm": -2.0}}, ValueError, "aten::mm"),
        ({"memory_bytes": 1 << 50}, ValueError, "memory_bytes must be 1 to"),
        ({"pinned_bytes": 0}, ValueError, "pinned_bytes must be 1 to"),
    ],
)
def test_wrong_settings_are_named_and_change_nothing(simulator, changes, error, message):
    with pytest.raises(error, match=message):
        simulator.configure(d2h_bytes_per_s=1e6, **changes)
    assert simulator.current_settings() == simulator.Settings()
