"""All that a program may do with a loader, in any order, on the simulated accelerator."""

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

import sidestream.simulator
from support.face import Face


class FaceOnDevice(Face):
    """With slow copies and kernels, and the consumer on several streams; never synchronises."""

    device = "sim"

    def __init__(self):
        super().__init__()
        self.default = torch.accelerator.current_stream()
        self.streams = [self.default, torch.Stream(device="sim"), torch.Stream(device="sim")]
        self.results = []
        self.is_closed = False
        before = sidestream.simulator.configure(copy_s=3e-4, kernel_s=1e-4)
        self.settings_before = vars(before)

    def check(self, tensor, number):
        assert tensor.device.type == "sim"
        self.results.append((tensor == self.factor * number).all())

    @rule(which=st.integers(0, 2))
    def switch_streams(self, which):
        if self.is_closed:
            # On streams that it meets after a close, what was kept owes `record_stream`.
            self.kept.clear()
        stream = self.streams[which]
        stream.wait_event(torch.accelerator.current_stream().record_event())
        torch.accelerator.set_stream(stream)

    @precondition(lambda self: not self.is_closed)
    @rule()
    def close(self):
        super().close()
        self.is_closed = True

    def load(self, saved):
        super().load(saved)

    def teardown(self):
        try:
            super().teardown()
            torch.accelerator.set_stream(self.default)
            torch.accelerator.synchronize()
            assert sidestream.simulator.races() == []
            assert [result for result in self.results if not result.item()] == []
        finally:
            torch.accelerator.set_stream(self.default)
            sidestream.simulator.configure(**self.settings_before)


@pytest.mark.timeout(120)
def test_any_order_of_calls_gives_right_values_and_no_race(simulator):
    run_state_machine_as_test(
        FaceOnDevice,
        settings=settings(
            deadline=None,
            max_examples=40,
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
        ),
    )
