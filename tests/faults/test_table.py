"""docs/faults.md is what the tests run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from support.faults import FAULTS, MOMENTS
from support.process_faults import PROCESS_FAULTS

spec = importlib.util.spec_from_file_location("table", Path(__file__).parent / "table.py")
page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page)


def test_the_page_is_current() -> None:
    """If not: `python tests/faults/table.py > docs/faults.md`."""
    assert page.PAGE.read_text(encoding="utf-8") == page.table()


def test_every_fault_is_tried_at_every_moment_it_can_come_at() -> None:
    assert len({fault.name for fault in [*FAULTS, *PROCESS_FAULTS]}) == len(FAULTS) + len(
        PROCESS_FAULTS
    )
    for fault in FAULTS:
        assert set(MOMENTS) - {"after the end"} <= fault.expected.keys()
    for fault in PROCESS_FAULTS:
        assert {"first", "middle", "last"} <= set(fault.moments)
