"""G6, G7: every fault at every moment, on the simulator; docs/faults.md is the table."""

import pytest

from support.faults import cases, check_released


@pytest.mark.parametrize(("fault", "case"), cases("sim"))
def test_a_fault_has_the_outcome_that_is_written_down(simulator, fault, case, capfd):
    assert check_released(lambda: fault.run(case)) == fault.expected[case.moment]
    assert capfd.readouterr() == ("", "")
