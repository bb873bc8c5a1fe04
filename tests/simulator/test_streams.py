"""Devices, streams, events and time, through torch's generic interfaces alone."""

import threading

import pytest
import torch

pytestmark = pytest.mark.simulated_accelerator

ACC = torch.accelerator


def test_sim_is_the_accelerator():
    assert ACC.is_available()
    assert ACC.current_accelerator(check_available=True) == torch.device("sim")
    assert ACC.device_count() == 2
    assert torch.get_device_module("sim") is torch.sim
    assert torch.ones(1).sim().is_sim


def test_the_current_device_is_per_thread():
    seen = []
    with ACC.device_index(1):
        assert torch.ones(2, device="sim").device.index == 1
        thread = threading.Thread(target=lambda: seen.append(ACC.current_device_index()))
        thread.start()
        thread.join()
    assert (ACC.current_device_index(), seen) == (0, [0])


def test_a_device_that_does_not_exist_is_named():
    with pytest.raises(RuntimeError, match="no device sim:7; there are 2"):
        torch.ones(1, device="sim:7")


@pytest.mark.parametrize(
    ("arguments", "index"), [((), 0), (("sim:1",), 1), ((torch.device("sim"),), 0), ((1,), 1)]
)
def test_streams_are_made_in_every_form(arguments, index):
    stream = torch.Stream(*arguments)
    assert stream.device == torch.device("sim", index)
    same = torch.Stream(
        stream_id=stream.stream_id, device_type=stream.device_type, device_index=index
    )
    assert same == stream
    assert hash(same) == hash(stream)


def test_stream_contexts_nest_across_devices_and_survive_exceptions():
    first = ACC.current_stream()
    a, b = torch.Stream("sim:0"), torch.Stream("sim:1")
    with a:
        with b, pytest.raises(KeyError), a:
            raise KeyError
        with b:
            assert ACC.current_stream() == b
            assert ACC.current_device_index() == 1
        assert ACC.current_stream() == a
        assert ACC.current_device_index() == 0
    assert ACC.current_stream() == first


def test_the_current_stream_is_per_thread():
    stream, wrong = torch.Stream("sim"), []

    def enter_and_leave():
        for _ in range(200):
            with stream:
                wrong.append(ACC.current_stream() != stream)
            wrong.append(ACC.current_stream() == stream)

    threads = [threading.Thread(target=enter_and_leave) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 1200
    assert not any(wrong)


def test_a_query_is_false_until_the_work_is_done(simulator):
    stream = torch.Stream("sim")
    with stream:
        simulator.delay(0.05)
        event = stream.record_event()
    assert not stream.query()
    assert not event.query()
    event.synchronize()
    stream.synchronize()
    assert stream.query()
    assert event.query()


def test_an_event_that_was_never_recorded_is_done():
    event = torch.Event("sim")
    assert event.query()
    event.synchronize()
    event.wait()


def test_a_wait_keeps_to_the_recording_it_saw(simulator):
    a, b, event = torch.Stream("sim"), torch.Stream("sim"), torch.Event("sim")
    event.record(a)
    b.wait_event(event)
    with a:
        simulator.delay(0.1)
    event.record(a)
    b.synchronize()
    assert not event.query()
    event.synchronize()


def test_elapsed_time_is_virtual(simulator):
    start, end = (torch.Event("sim", enable_timing=True) for _ in range(2))
    simulator.delay(0.05)
    start.record()
    for _ in range(10):
        simulator.delay(0.002)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(20, abs=0.01)
    between = simulator.virtual_time(end) - simulator.virtual_time(start)
    assert between * 1e3 == pytest.approx(start.elapsed_time(end))


def test_events_without_a_time_say_so(simulator):
    start, end = (torch.Event("sim", enable_timing=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="recorded and completed"):
        simulator.virtual_time(start)
    start.record()
    simulator.delay(0.05)
    end.record()
    with pytest.raises(RuntimeError, match="must be completed"):
        start.elapsed_time(end)
    end.synchronize()
    untimed = torch.Event("sim")
    untimed.record()
    with pytest.raises((RuntimeError, ValueError), match="enable_timing"):
        start.elapsed_time(untimed)


def test_an_event_of_one_device_cannot_be_recorded_on_another():
    event = torch.Event("sim:0")
    event.record()
    with pytest.raises(RuntimeError, match="device"):
        event.record(torch.Stream("sim:1"))


def test_copy_and_compute_overlap_and_copies_of_one_direction_do_not(simulator):
    side, start = torch.Stream("sim"), torch.Event("sim", enable_timing=True)
    other = torch.Stream("sim")
    host = torch.ones(1000).pin_memory()
    ends = [torch.Event("sim", enable_timing=True) for _ in range(3)]
    simulator.delay(0.1)  # all is enqueued before any of it starts: the times are exact
    with simulator.settings(copy_s=0.02):
        start.record()
        side.wait_event(start)
        other.wait_event(start)
        with side:
            kept = [host.to("sim", non_blocking=True)]
        with other:
            kept += [host.to("sim", non_blocking=True)]
        simulator.delay(0.02)
        for end, stream in zip(ends, (side, other, ACC.current_stream()), strict=True):
            end.record(stream)
    ACC.synchronize()
    times = [start.elapsed_time(end) for end in ends]
    assert sorted(times[:2]) == pytest.approx([20, 40], abs=0.01)  # either may be the first
    assert times[2] == pytest.approx(20, abs=0.01)
    assert len(kept) == 2


@pytest.mark.parametrize("wait", ["stream", "event", "device", "cpu"])
def test_waiting_lets_other_threads_run(simulator, wait):
    """The waiter would never return if it kept the GIL: the other thread ends its waiting."""
    x = torch.ones(4, device="sim")
    started, finished = threading.Event(), []
    gate = torch.Stream("sim")

    def other_thread():
        started.wait()
        finished.append(torch.ones(1).item())

    thread = threading.Thread(target=other_thread)
    thread.start()
    with gate:
        simulator.delay(0.2)
        event = gate.record_event()
    ACC.current_stream().wait_event(event)
    started.set()
    if wait == "stream":
        gate.synchronize()
    elif wait == "event":
        event.synchronize()
    elif wait == "device":
        ACC.synchronize()
    else:
        x.cpu()
    assert finished == [1.0]
    thread.join()


def test_asynchronous_errors_surface_at_the_next_synchronisation():
    table, index = torch.zeros(3, 4, device="sim"), torch.tensor([7], device="sim")
    torch.nn.functional.embedding(index, table)
    with pytest.raises(RuntimeError, match=r"asynchronous error in aten::\w+: index out of range"):
        ACC.synchronize()
    ACC.synchronize()  # told once


def test_delay_checks_its_argument(simulator):
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="seconds must be 0 or more"):
            simulator.delay(bad)


def test_delay_takes_the_device_that_is_named(simulator):
    simulator.delay(0.1, device=1)
    assert ACC.current_stream("sim:0").query()
    assert not ACC.current_stream("sim:1").query()
    ACC.synchronize(1)


def test_operator_times_by_name(simulator):
    x = torch.ones(4, 4, device="sim")
    start, end = (torch.Event("sim", enable_timing=True) for _ in range(2))
    simulator.delay(0.05)
    with simulator.settings(kernel_s=0.001, operator_s={"aten::mm": 0.02}):
        start.record()
        y = x @ x
        y = y + 1
        end.record()
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(21, abs=0.01)
    assert y.sum().item() == 80


def test_operations_are_counted(simulator):
    simulator.operation_counts(clear=True)
    x = torch.ones(4, 4).pin_memory().to("sim", non_blocking=True)
    x @ x @ x
    x.nonzero()
    counts = simulator.operation_counts(clear=True)
    assert counts["copy h2d"] == 1
    assert counts["aten::mm"] == 2
    assert counts["synchronous: aten::nonzero"] == 1
    assert simulator.operation_counts() == {}
