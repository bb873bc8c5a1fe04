"""G7: what happens to the process, and to worker processes, at every moment, on the simulator."""

import pytest

from support.process_faults import process_cases


@pytest.mark.parametrize(("fault", "case"), process_cases("sim"))
def test_a_fault_of_a_process_has_the_outcome_that_is_written_down(fault, case):
    fault.check(case)
