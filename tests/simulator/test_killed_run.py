"""A training run on the device, killed with SIGKILL, ends with the unbroken run's losses."""

import pytest

from support.killing import OWN, limit_s, show

SOURCES = {
    name: OWN[name] for name in ("DataLoader", "workers", "augmented", "iterable", "stream")
}


@pytest.mark.slow
@pytest.mark.timeout(limit_s(OWN) + 10)
def test_a_killed_run_ends_as_the_unbroken_one():
    show(SOURCES, device="sim")
