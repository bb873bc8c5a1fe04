"""Fabric: the loader goes around what `setup_dataloaders` gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from support.integration import needs
from support.launch import results
from support.lightning import Items, Moves, Stack

needs("lightning.fabric")

from lightning.fabric import Fabric  # noqa: E402

from sidestream import AsynchronousLoader  # noqa: E402

RUN = Path(__file__).with_name("fabric_run.py")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    # Lightning asks torch in a way that torch is giving up.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]


@pytest.fixture
def fabric() -> Any:
    return Fabric(accelerator="cpu", devices=1)


@pytest.mark.parametrize("move", [False, True])
def test_each_batch_is_moved_once_and_in_the_background(fabric: Any, move: bool) -> None:
    moves = Moves()
    data = DataLoader(Items(16), batch_size=4, collate_fn=Stack(moves))
    loader = AsynchronousLoader(fabric.setup_dataloaders(data, move_to_device=move), fabric.device)
    assert [batch.first for batch in loader] == [0, 4, 8, 12]
    assert len(moves.real) == 4
    # Fabric's own move, where it is left on, runs in the loader's thread but for the first batch.
    assert sum(name.startswith("sidestream") for name in moves.real) >= 3
    assert moves.idle == (4 if move else 0)


WORKERS: dict[str, dict[str, Any]] = {
    "no workers": {},
    "workers": {"num_workers": 2},
    "persistent workers": {"num_workers": 1, "persistent_workers": True},
}


@pytest.mark.parametrize("move", [False, True])
@pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)
def test_epochs_are_the_same(fabric: Any, move: bool, workers: dict[str, Any]) -> None:
    def epochs(wrap: Any) -> Any:
        torch.manual_seed(1)
        data = DataLoader(Items(16), batch_size=3, shuffle=True, **workers)
        loader = wrap(fabric.setup_dataloaders(data, move_to_device=move))
        assert (len(loader), loader.batch_size) == (6, 3)
        return [[batch.tolist() for batch in loader] for _ in range(2)]

    plain = epochs(lambda loader: loader)
    assert plain[0] != plain[1]
    assert epochs(lambda loader: AsynchronousLoader(loader, fabric.device)) == plain


def test_saved_within_an_epoch_the_rest_of_it_comes_after_loading(fabric: Any, tmp_path) -> None:
    def made() -> Any:
        data = DataLoader(Items(16), batch_size=2, shuffle=True)
        return AsynchronousLoader(
            fabric.setup_dataloaders(data, move_to_device=False), fabric.device
        )

    torch.manual_seed(1)
    whole = [batch.tolist() for batch in made()]
    torch.manual_seed(1)
    loader = made()
    batches = iter(loader)
    first = [next(batches).tolist() for _ in range(3)]
    fabric.save(tmp_path / "state.ckpt", {"loader": loader, "step": 3})
    del batches
    torch.manual_seed(2)
    again = made()
    fabric.load(tmp_path / "state.ckpt", {"loader": again, "step": 0}, weights_only=False)
    assert first + [batch.tolist() for batch in again] == whole


def test_a_datasets_error_comes_after_the_good_batches(fabric: Any) -> None:
    class Broken(Items):
        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 9:
                raise ValueError("item 9 is broken")
            return super().__getitem__(index)

    data = fabric.setup_dataloaders(DataLoader(Broken(16), batch_size=4), move_to_device=False)
    seen = iter(AsynchronousLoader(data, fabric.device))
    assert [len(next(seen)), len(next(seen))] == [4, 4]
    with pytest.raises(ValueError, match="item 9 is broken"):
        next(seen)


def test_the_other_order_is_refused_by_fabric(fabric: Any) -> None:
    with pytest.raises(TypeError, match="Only PyTorch DataLoader are currently supported"):
        fabric.setup_dataloaders(AsynchronousLoader(DataLoader(Items(8))))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_processes_see_what_they_saw_without() -> None:
    found = results(RUN, processes=2)
    firsts = []
    for plain, ours in found:
        assert plain == ours
        firsts.append(plain[0][0])
    assert sorted(firsts[0] + firsts[1]) == list(range(16))
