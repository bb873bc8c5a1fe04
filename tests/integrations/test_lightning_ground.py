"""The ground that the Lightning integration stands on: fails loudly where a release moves it."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest

from sidestream.integrations import MADE_FOR
from support.integration import needs
from support.lightning import loader, make_module, make_trainer

needs("lightning.pytorch")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    # Lightning asks torch in a way that torch is giving up.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def pl(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param, reason=f"{request.param} is not installed")


def test_the_installed_version_is_one_that_was_tested(pl: Any) -> None:
    name = pl.__name__.partition(".")[0]
    release = tuple(map(int, re.findall(r"\d+", pl.__version__)[:2]))
    oldest, newest = (tuple(map(int, one.split("."))) for one in MADE_FOR[name])
    assert oldest <= release <= newest, "run the tests with it, then write it down"


def test_every_loop_keeps_its_combined_loader_where_it_is_looked_for(pl: Any) -> None:
    kind = importlib.import_module(f"{pl.__name__}.utilities").CombinedLoader
    trainer = make_trainer(pl, max_epochs=1)
    data, module = loader(8), make_module(pl)
    trainer.fit(module, data, data)
    found = [trainer.fit_loop, trainer.fit_loop.epoch_loop.val_loop]
    assert [type(loop._combined_loader) for loop in found] == [kind, kind]
    assert [loop._data_fetcher for loop in found] == [None, None]  # there until the loop's end
    trainer.validate(module, data, verbose=False)
    assert type(trainer.validate_loop._combined_loader) is kind
    trainer.test(module, data, verbose=False)
    assert type(trainer.test_loop._combined_loader) is kind
    trainer.predict(module, data)
    assert type(trainer.predict_loop._combined_loader) is kind
    assert {"__iter__", "__next__", "__len__", "reset", "flattened"} <= set(dir(kind))


def test_the_combined_loader_gives_a_batch_and_two_indices_and_is_its_own_iterator(
    pl: Any,
) -> None:
    kind = importlib.import_module(f"{pl.__name__}.utilities").CombinedLoader
    for mode in ("min_size", "max_size", "max_size_cycle", "sequential"):
        combined = kind([loader(8)], mode)
        assert iter(combined) is combined
        _, batch_idx, dataloader_idx = next(combined)
        assert (batch_idx, dataloader_idx) == (0, 0)


def test_a_loader_without_length_is_fetched_one_ahead_into_a_list(pl: Any) -> None:
    fetchers = importlib.import_module(f"{pl.__name__}.loops.fetchers")
    kind = importlib.import_module(f"{pl.__name__}.utilities").CombinedLoader
    fetcher = fetchers._PrefetchDataFetcher()
    fetcher.setup(kind([iter([1, 2, 3])]))
    iter(fetcher)
    assert [one[1:] for one in fetcher.batches] == [(0, 0)]
    assert fetcher.fetched == 1


def test_the_hooks_that_are_lightnings_own_are_known_by_their_module(pl: Any) -> None:
    from sidestream.integrations._lightning_loop import BEFORE, MOVE, is_default

    for owner in (pl.LightningModule(), pl.LightningDataModule(), make_module(pl)):
        for name in (BEFORE, MOVE):
            assert is_default(getattr(owner, name))

    class Own(pl.LightningModule):
        def on_before_batch_transfer(self, batch, dataloader_idx):
            return batch

    assert not is_default(Own().on_before_batch_transfer)


def test_a_batch_goes_through_the_same_steps_in_every_loop(pl: Any) -> None:
    loops = importlib.import_module(f"{pl.__name__}.loops")
    for name in ("training_epoch_loop", "evaluation_loop", "prediction_loop"):
        text = inspect.getsource(importlib.import_module(f"{loops.__name__}.{name}"))
        places = [
            text.index(step)
            for step in ("next(data_fetcher)", "precision_plugin.convert_input",
                         "_on_before_batch_transfer", '"batch_to_device"')
        ]  # fmt: skip
        assert places == sorted(places)


def test_no_strategy_goes_around_the_transfer_hook(pl: Any) -> None:
    strategies = importlib.import_module(f"{pl.__name__}.strategies")
    base = strategies.Strategy
    found = [
        one for one in vars(strategies).values() if inspect.isclass(one) and issubclass(one, base)
    ]
    assert len(found) > 5
    for one in found:
        assert one.batch_to_device is base.batch_to_device
