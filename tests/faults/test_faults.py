"""G6, G7: every fault at every moment, on the CPU; docs/faults.md is the table."""

from __future__ import annotations

import pytest

from support.faults import Case, Fault, cases, check_released


@pytest.mark.parametrize(("fault", "case"), cases("cpu", "meta"))
def test_a_fault_has_the_outcome_that_is_written_down(
    fault: Fault, case: Case, capfd: pytest.CaptureFixture[str]
) -> None:
    assert check_released(lambda: fault.run(case)) == fault.expected[case.moment]
    assert capfd.readouterr() == ("", "")
