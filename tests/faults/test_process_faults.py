"""G7: what happens to the process, and to worker processes, at every moment, on the CPU."""

from __future__ import annotations

import sys

import pytest

from support.faults import Case
from support.process_faults import ProcessFault, process_cases

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


@pytest.mark.parametrize(("fault", "case"), process_cases("cpu"))
def test_a_fault_of_a_process_has_the_outcome_that_is_written_down(
    fault: ProcessFault, case: Case
) -> None:
    fault.check(case)
