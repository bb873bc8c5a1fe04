"""Each kind of race is found where it is, and its orderly twin is not."""

import linecache

import pytest
import torch

from sidestream.simulator import Race, RaceError, RaceKind, Severity

pytestmark = pytest.mark.simulated_accelerator

ACC = torch.accelerator


def side_stream():
    return torch.Stream(device="sim")


def source_line(access):
    file, _, number = access.line.rpartition(":")
    return linecache.getline(file, int(number)).strip()


def only(simulator, kind):
    found = simulator.races()
    assert [race.kind for race in found] == [kind], found
    return found[0]


def test_a_read_before_the_copy_names_both_operations_streams_bytes_and_lines(simulator):
    side, pinned = side_stream(), torch.ones(1000).pin_memory()
    with side:
        x = pinned.to("sim", non_blocking=True)
    x[10:20] + 1
    race = only(simulator, RaceKind.READ_BEFORE_COPY)
    assert race.severity is Severity.ERROR
    assert not race.pinned
    assert race.block_bytes == 4000
    assert (race.first.operation, race.second.operation) == ("copy h2d", "aten::add")
    assert race.first.stream == (0, side.stream_id)
    assert race.second.stream == (0, 0)
    assert (race.first.begin, race.first.end) == (0, 4000)
    assert (race.second.begin, race.second.end) == (40, 80)
    assert (race.first.writes, race.second.writes) == (True, False)
    assert source_line(race.first) == 'x = pinned.to("sim", non_blocking=True)'
    assert source_line(race.second) == "x[10:20] + 1"
    ACC.current_stream().wait_stream(side)


@pytest.mark.parametrize(
    "order", ["wait_event", "wait_stream", "host event", "host stream", "query"]
)
def test_every_way_to_order_a_read_after_the_copy_is_known(simulator, order):
    side, pinned = side_stream(), torch.ones(1000).pin_memory()
    with side:
        x = pinned.to("sim", non_blocking=True)
        event = side.record_event()
    current = ACC.current_stream()
    if order == "wait_event":
        current.wait_event(event)
    elif order == "wait_stream":
        current.wait_stream(side)
    elif order == "host event":
        event.synchronize()
    elif order == "host stream":
        side.synchronize()
    else:
        side.synchronize()
        assert event.query()
    y = x + 1
    x.record_stream(current)
    assert y.sum().item() == 2000
    assert simulator.races() == []


def test_a_query_that_says_no_orders_nothing(simulator):
    side, pinned = side_stream(), torch.ones(1000).pin_memory()
    with simulator.settings(copy_s=0.05), side:
        x = pinned.to("sim", non_blocking=True)
        event = side.record_event()
    assert not event.query()
    x + 1
    only(simulator, RaceKind.READ_BEFORE_COPY)
    side.synchronize()


def test_a_read_before_a_kernels_write(simulator):
    side = side_stream()
    with side:
        x = torch.ones(1000, device="sim")
    x + 1
    only(simulator, RaceKind.READ_BEFORE_WRITE)
    side.synchronize()


def test_an_overwrite_under_a_read(simulator):
    x, side = torch.ones(1000, device="sim"), side_stream()
    side.wait_stream(ACC.current_stream())
    x.sum()
    with side:
        x.zero_()
    only(simulator, RaceKind.OVERWRITE_UNDER_READ)
    side.synchronize()


def test_unordered_writes(simulator):
    x, side = torch.ones(1000, device="sim"), side_stream()
    side.wait_stream(ACC.current_stream())
    x.fill_(1.0)
    with side:
        x.fill_(2.0)
    only(simulator, RaceKind.UNORDERED_WRITES)
    side.synchronize()


def used_and_freed_on(side):
    """A block of the side stream, used by the current stream and freed without a fence."""
    with side:
        x = torch.ones(1000, device="sim")
        event = side.record_event()
    ACC.current_stream().wait_event(event)
    x.sum()
    return x.data_ptr()  # x is freed here


def test_a_reuse_under_use_names_use_reuse_and_free(simulator):
    side = side_stream()
    address = used_and_freed_on(side)
    with side:
        y = torch.empty(1000, device="sim")
    assert y.data_ptr() == address
    race = only(simulator, RaceKind.REUSE_UNDER_USE)
    assert source_line(race.first) == "x.sum()"
    assert source_line(race.second) == 'y = torch.empty(1000, device="sim")'
    assert source_line(simulator.Access("", None, 0, 0, False, race.freed_at)).startswith(
        ("return x.data_ptr()", "def used_and_freed_on", "address = ")
    )


def test_a_fence_between_free_and_reuse_is_honest(simulator):
    side = side_stream()
    address = used_and_freed_on(side)
    side.wait_stream(ACC.current_stream())
    with side:
        y = torch.empty(1000, device="sim")
    assert y.data_ptr() == address
    assert simulator.races() == []


@pytest.mark.simulated_accelerator(strict=True)
def test_strict_reports_an_unordered_free_by_its_own_name_and_severity(simulator):
    side = side_stream()
    used_and_freed_on(side)
    race = only(simulator, RaceKind.UNORDERED_FREE)
    assert race.severity is Severity.WARNING
    side.wait_stream(ACC.current_stream())
    with side:
        torch.empty(1000, device="sim")
    assert simulator.races() == []  # the fence came in time for the reuse


@pytest.mark.simulated_accelerator(strict=True)
def test_record_stream_orders_free_and_reuse(simulator):
    side = side_stream()
    with side:
        x = torch.ones(1000, device="sim")
        event = side.record_event()
    ACC.current_stream().wait_event(event)
    x.sum()
    x.record_stream(ACC.current_stream())
    address = x.data_ptr()
    del x
    ACC.synchronize()
    with side:
        y = torch.empty(1000, device="sim")
    assert y.data_ptr() == address
    assert simulator.races() == []


def test_pinned_memory_overwritten_by_the_host(simulator):
    pinned = torch.ones(1000).pin_memory()
    with simulator.settings(copy_s=0.02):
        x = pinned.to("sim", non_blocking=True)
    pinned[5] = 7.0
    race = only(simulator, RaceKind.PINNED_OVERWRITTEN)
    assert race.pinned
    assert race.second.stream is None
    assert (race.first.writes, race.second.writes) == (False, True)
    assert race.second.begin == 20
    assert source_line(race.second) == "pinned[5] = 7.0"
    assert x[5].item() == 7.0  # what a real device may well do, too


def test_reading_pinned_memory_under_a_copy_to_the_device_is_fine(simulator):
    pinned = torch.ones(1000).pin_memory()
    with simulator.settings(copy_s=0.02):
        pinned.to("sim", non_blocking=True)
    assert pinned.sum().item() == 1000
    ACC.synchronize()
    pinned.zero_()
    assert simulator.races() == []


def test_a_host_read_before_the_copy_to_it_was_waited_for(simulator):
    x = torch.ones(1000, device="sim")
    host = x.to("cpu", non_blocking=True)
    ACC.current_stream().query()  # whatever it says, this test must not depend on it
    y = x.to("cpu", non_blocking=True)
    y[3].item()
    race = only(simulator, RaceKind.HOST_READ_TOO_EARLY)
    assert source_line(race.second) == "y[3].item()"
    ACC.synchronize()
    assert host.sum().item() == 1000


def test_the_host_may_read_after_a_synchronisation(simulator):
    x = torch.ones(1000, device="sim")
    host = x.to("cpu", non_blocking=True)
    event = ACC.current_stream().record_event()
    event.synchronize()
    assert host.sum().item() == 1000
    assert simulator.races() == []


def test_two_slices_of_one_page_are_told_apart(simulator):
    pinned = torch.ones(512).pin_memory()
    with simulator.settings(copy_s=0.02):
        x = pinned[:256].to("sim", non_blocking=True)
    pinned[256:].zero_()
    assert simulator.races() == []
    assert x.sum().item() == 256


def test_two_copies_of_one_pinned_buffer_on_two_streams(simulator):
    x = torch.ones(1000, device="sim")
    pinned = torch.zeros(1000).pin_memory()
    a, b = side_stream(), side_stream()
    a.wait_stream(ACC.current_stream())
    with a:
        pinned.copy_(x, non_blocking=True)
    with b:
        pinned.to("sim", non_blocking=True)
    race = only(simulator, RaceKind.READ_BEFORE_COPY)
    assert race.pinned
    ACC.synchronize()


def test_interleaved_columns_on_two_streams_are_no_race(simulator):
    x = torch.zeros(100, 10, device="sim")
    streams = [side_stream(), side_stream()]
    for i, stream in enumerate(streams):
        stream.wait_stream(ACC.current_stream())
        with stream:
            x[:, i * 5 : (i + 1) * 5].fill_(i + 1.0)
    assert simulator.races() == []
    with streams[0]:
        x[:, 4:6].fill_(3.0)
    only(simulator, RaceKind.UNORDERED_WRITES)
    ACC.synchronize()


def test_raise_on_race_raises_at_the_offending_line(simulator):
    side, pinned = side_stream(), torch.ones(1000).pin_memory()
    with side:
        x = pinned.to("sim", non_blocking=True)
    with (
        simulator.settings(raise_on_race=True),
        pytest.raises(RaceError, match="read before copy") as caught,
    ):
        x.mul(2)
    assert isinstance(caught.value.race, Race)
    frames = [str(entry.statement).strip() for entry in caught.traceback]
    assert "x.mul(2)" in frames
    assert simulator.races() == [caught.value.race]
    side.synchronize()


def test_raise_on_race_raises_a_host_touch_at_the_next_operation(simulator):
    pinned = torch.ones(1000).pin_memory()
    with simulator.settings(copy_s=0.02, raise_on_race=True):
        pinned.to("sim", non_blocking=True)
        pinned.zero_()
        with pytest.raises(RaceError, match="page-locked memory overwritten"):
            torch.ones(1, device="sim")
    simulator.races()


def test_raise_on_race_works_in_a_backward_pass(simulator):
    side = side_stream()
    w = torch.ones(1000, device="sim", requires_grad=True)
    y = (w * 2).sum()
    with side:
        bad = torch.ones((), device="sim")
    with simulator.settings(raise_on_race=True), pytest.raises(RaceError) as caught:
        y.backward(bad)
    assert caught.value.race.second.line.startswith("backward of ")
    simulator.races()
    ACC.synchronize()


def test_old_races_are_not_raised_later(simulator):
    side = side_stream()
    with side:
        x = torch.ones(10, device="sim")
    x + 1
    with simulator.settings(raise_on_race=True):
        torch.ones(1, device="sim")
    only(simulator, RaceKind.READ_BEFORE_WRITE)
    side.synchronize()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_nan_on_race_spoils_the_result(simulator, dtype):
    side, pinned = side_stream(), torch.ones(1000, dtype=dtype).pin_memory()
    with simulator.settings(nan_on_race=True):
        with side:
            x = pinned.to("sim", non_blocking=True)
        racy = x + 1
        ACC.current_stream().wait_stream(side)
        fine = x + 1
    assert racy.isnan().all()
    assert (fine == 2).all()
    assert simulator.races() != []


def test_detection_and_lines_can_be_turned_off(simulator):
    side, pinned = side_stream(), torch.ones(1000).pin_memory()
    with side:
        x = pinned.to("sim", non_blocking=True)
    with simulator.settings(detect_races=False):
        x + 1
    assert simulator.races() == []
    with simulator.settings(python_lines=False):
        x + 1
    assert only(simulator, RaceKind.READ_BEFORE_COPY).second.line == ""
    side.synchronize()


def test_reports_are_plain_frozen_values(simulator):
    side = side_stream()
    with side:
        x = torch.ones(10, device="sim")
    x + 1
    kept = simulator.races(clear=False)
    race = only(simulator, RaceKind.READ_BEFORE_WRITE)
    assert kept == [race]
    assert hash(race) == hash(kept[0])
    with pytest.raises(AttributeError):
        race.kind = RaceKind.UNORDERED_WRITES
    text = str(race)
    for part in (
        "error: read before write",
        "aten::add",
        "aten::fill_",
        "sim:0/stream0",
        __file__,
    ):
        assert part in text
    side.synchronize()
