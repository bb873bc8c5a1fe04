"""What all tests share: the targets, and the check that no test leaves anything behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("support")

from support.leaks import Snapshot  # noqa: E402 - rewritten, so that a failure shows its values

# 'meta': a transfer really happens, but there are no values to see. scripts/gpu-check runs the
# contract with "cuda"; "sim" runs it on the simulated accelerator.
DEVICES = os.environ.get("SIDESTREAM_TEST_DEVICES", "cpu,meta").split(",")
BUFFER_SIZES = [0, 1, 2, 9]
LENGTHS = [0, 1, 5]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also what is marked as long")
    parser.addoption(
        "--source",
        choices=["plain", "threads"],
        default="plain",
        help="what the contract tests read from: what they name, or a ThreadDataLoader over it",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is long, without counting it as skipped, unless it was asked for."""
    if not config.getoption("--long"):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=BUFFER_SIZES, ids=lambda size: f"buffer{size}")
def buffer_size(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(params=LENGTHS, ids=lambda length: f"length{length}")
def length(request: pytest.FixtureRequest) -> int:
    return request.param


def pytest_configure() -> None:
    if "sim" in DEVICES:  # before anything asks which accelerator there is
        from sidestream import simulator

        simulator.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that leaves a thread, a child process or an iterator behind.

    A failing test is not asked: its traceback keeps its frames and what they hold alive.
    """
    gc.freeze()  # sets aside what lives already, so that a collection costs little
    before = Snapshot()
    result = yield
    leaks = before.leaks()
    if leaks:
        pytest.fail("left behind:\n" + "\n".join(leaks), pytrace=False)
    return result


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave scripts and helpers alone: looking for doctests would run them."""
    name = collection_path.name
    return True if name.endswith(".py") and not name.startswith(("test_", "conftest")) else None
