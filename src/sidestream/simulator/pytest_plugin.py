"""pytest: a fixture and a marker that run a test on the simulated device and fail it on a race.

Load it with `-p sidestream.simulator.pytest_plugin`, or name it in `pytest_plugins` of the top
`conftest.py`. It is not loaded by itself: that would import torch into every run of pytest. Where
a collected test asks for the device, it is enabled before the first test runs (a compilation would
not fit into a test's time limit), and "sim" is the accelerator of the whole pytest process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from sidestream import simulator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_NAME = "simulated_accelerator"  # of the fixture and of the marker


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{_NAME}(**settings): run on the simulated device with these simulator.Settings; the "
        "test fails if a race is found",
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Enable the device if a test asks for it."""
    if not session.config.option.collectonly and any(map(_uses, session.items)):
        simulator.enable()


@pytest.fixture
def simulated_accelerator(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The package `sidestream.simulator`: enabled, with default settings and no races found.

    The test fails if a race is found while it runs. A test that means to race takes the reports
    with `simulated_accelerator.races()` before it ends.
    """
    simulator.enable()  # where the fixture is asked for by name while a test runs
    marker = request.node.get_closest_marker(_NAME)
    changes: dict[str, Any] = marker.kwargs if marker else {}
    before = simulator.configure(**{**vars(simulator.Settings()), **changes})
    simulator.races(clear=True)
    simulator.operation_counts(clear=True)
    stream, index = torch.accelerator.current_stream(), torch.accelerator.current_device_index()
    yield simulator
    torch.accelerator.set_stream(stream)
    torch.accelerator.set_device_index(index)
    _wait_for_all_devices()
    simulator.configure(**vars(before))
    _fail_on_races()  # those made after the test itself, by the ends of other fixtures


@pytest.fixture(autouse=True)
def _simulated_accelerator_by_marker(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker(_NAME):
        request.getfixturevalue(_NAME)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail the test itself, not its teardown, on a race; show the races of a failed test."""
    uses = _uses(item)
    try:
        yield
    except BaseException:
        if uses and (text := _take_races()):
            item.add_report_section("call", "simulated accelerator", text)
        raise
    if uses:
        _wait_for_all_devices()
        _fail_on_races()


def _uses(item: pytest.Item) -> bool:
    return _NAME in getattr(item, "fixturenames", ()) or bool(item.get_closest_marker(_NAME))


def _wait_for_all_devices() -> None:
    for index in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(index)


def _take_races() -> str:
    found = simulator.races(clear=True) if simulator.is_enabled() else []
    count = f"{len(found)} race{'s' if len(found) > 1 else ''} on the simulated accelerator"
    return "\n".join([count, *map(str, found)]) if found else ""


def _fail_on_races() -> None:
    if text := _take_races():
        pytest.fail(text, pytrace=False)
