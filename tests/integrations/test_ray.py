"""Ray Train: the loader goes around what `prepare_data_loader` gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.integration import needs
from support.launch import results

needs("ray.train")

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(200)]


def test_two_workers_see_what_they_saw_without() -> None:
    (found,) = results(Path(__file__).with_name("ray_run.py"), limit_s=180)
    assert [one["same"] for one in found] == [[True, True]] * 2
    dealt = {value for one in found for batch in one["seen"][0] for value in batch}
    assert dealt == set(range(13))
    assert found[0]["seen"][0] != found[0]["seen"][1], "set_epoch reaches the sampler"
