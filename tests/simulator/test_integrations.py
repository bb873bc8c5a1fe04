"""The integrations on a device with streams: each batch copied once, aside, and without a race."""

import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sidestream.diagnose.run import run_script
from support.integration import needs
from support.lightning import Hooks, make_module

pytestmark = [pytest.mark.simulated_accelerator, pytest.mark.timeout(100)]

SCRIPT = Path(__file__).parents[1] / "run" / "imagenet_style.py"


def rows(length, start=0):
    return DataLoader(
        TensorDataset(torch.arange(float(length * 4)).reshape(length, 4) / 64 + start),
        batch_size=4,
        collate_fn=lambda samples: torch.stack([row for (row,) in samples]),
    )


def test_an_unchanged_script_finds_its_batches_on_the_device(simulator, capsys, monkeypatch):
    moved = []
    original = torch.Tensor.to

    def to(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        if kwargs.get("non_blocking"):
            moved.append((self.device.type, result is self))
        return result

    monkeypatch.setattr(torch.Tensor, "to", to)
    assert run_script(str(SCRIPT), ["--epochs", "1"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 6
    assert "8 batches on sim:0" in err
    assert moved == [("sim", True)] * 10, "the script's own .to costs nothing"


def sim_trainer(pl, *callbacks, **kwargs):
    """A trainer on the simulated accelerator."""

    class Sim(pl.accelerators.Accelerator):
        def setup_device(self, device):
            pass

        def get_device_stats(self, device):
            return {}

        def teardown(self):
            pass

        @staticmethod
        def parse_devices(devices):
            return devices

        @staticmethod
        def get_parallel_devices(devices):
            return [torch.device("sim", 0)]

        @staticmethod
        def auto_device_count():
            return 1

        @staticmethod
        def is_available():
            return True

        @staticmethod
        def name():
            return "sim"

    strategy = pl.strategies.SingleDeviceStrategy(device=torch.device("sim", 0), accelerator=Sim())
    return pl.Trainer(
        strategy=strategy,
        devices=1,
        callbacks=list(callbacks),
        max_epochs=2,
        val_check_interval=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **kwargs,
    )


@pytest.mark.integration
@pytest.mark.parametrize("bases", [(), (Hooks,)], ids=["", "hooks"])
def test_lightning_on_a_side_stream_comes_to_the_same(simulator, bases, monkeypatch):
    pl = needs_lightning()
    from sidestream.integrations.lightning import AsynchronousTransfer

    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for callbacks in ([], [AsynchronousTransfer()]):
            module = make_module(pl, *bases)
            sim_trainer(pl, *callbacks).fit(module, rows(32), rows(12, 100))
            weights = [one.detach().cpu().tolist() for one in module.parameters()]
            results.append((module.seen, weights))
    assert results[0] == results[1]
    assert len(results[0][0]) > 16


def needs_lightning():
    try:
        return needs("lightning.pytorch")
    except pytest.skip.Exception as error:
        pytest.skip(str(error))
