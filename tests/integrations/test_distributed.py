"""Two real processes under torchrun: each sees what it saw without the loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.integration import needs
from support.launch import results

HERE = Path(__file__).parent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


def test_ddp_and_fsdp_come_to_the_same_losses_and_weights() -> None:
    found = results(HERE / "distributed_run.py", processes=2)
    for name in found[0]:
        assert [one[name]["same"] for one in found] == [True, True], name
    first = [[value for batch in one["ddp"]["seen"][:3] for value in batch] for one in found]
    assert set(first[0] + first[1]) == set(range(17)), "one epoch deals out all of the data"
    epochs = [found[0]["ddp"]["seen"][at : at + 3] for at in (0, 3, 6)]
    assert epochs[0] != epochs[1] != epochs[2], "set_epoch reaches the sampler"
    # In no order: whichever process ends first prints first.
    assert sorted(len(one["ddp, uneven ends"]["seen"]) for one in found) == [24, 27]


@pytest.mark.integration
def test_lightnings_ddp_deals_out_the_data_and_comes_to_the_same() -> None:
    needs("lightning.pytorch")
    found = results(HERE / "lightning_ddp_run.py", processes=2)
    for one in found:
        assert one["bare"]
        assert one["hooks"]
        assert "give the DataLoader that is in it" in one["refused"]
    train = [[row[2][0] for row in one["seen"] if row[0] == "train"][:3] for one in found]
    items = [{round(value * 64) for batch in batches for value in batch} for batches in train]
    assert items[0] | items[1] == set(range(18))
    assert not items[0] & items[1]
