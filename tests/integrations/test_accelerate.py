"""Accelerate: what it prepares reads in the background and is otherwise what it was."""

from __future__ import annotations

import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from support.integration import needs
from support.launch import results
from support.lightning import Box, Items, Moves, Stack

accelerate = needs("accelerate")

from sidestream import AsynchronousLoader  # noqa: E402
from sidestream.integrations import MADE_FOR  # noqa: E402
from sidestream.integrations.accelerate import asynchronous  # noqa: E402

RUN = Path(__file__).with_name("accelerate_run.py")

pytestmark = pytest.mark.integration


@pytest.fixture
def accelerator() -> Any:
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield accelerate.Accelerator(cpu=True)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("processes", [0, 2], ids=["one process", "two processes"])
def test_epochs_accumulation_and_states_are_the_same(processes: int) -> None:
    needs("torchdata.stateful_dataloader")
    for found in results(RUN, processes=processes):
        assert len(found) == 11
        assert all(found.values()), found


def test_each_batch_is_moved_once_and_in_the_background(accelerator: Any) -> None:
    moves = Moves()
    data = DataLoader(Items(32), batch_size=4, collate_fn=Stack(moves))
    loader = asynchronous(accelerator).prepare(data)
    firsts = [batch.first for batch in loader]
    assert firsts == list(range(0, 32, 4))
    assert len(moves.real) == 8
    assert {name.rpartition("-")[0] for name in moves.real} == {"sidestream-epoch"}
    assert moves.idle == 8, "Accelerate's own move finds each batch there already"
    assert isinstance(next(iter(loader)), Box)


def test_batches_stay_on_the_host_where_they_are_not_to_be_placed(accelerator: Any) -> None:
    asynchronous(accelerator)
    data = DataLoader(Items(8), batch_size=4)
    loader = accelerator.prepare_data_loader(data, device_placement=False)
    assert loader.base_dataloader._device == torch.device("cpu")
    assert len(list(loader)) == 2


def test_what_is_prepared_passes_for_a_dataloader(accelerator: Any) -> None:
    asynchronous(accelerator)
    data = DataLoader(Items(8), batch_size=4, num_workers=1)
    loader = accelerator.prepare(data)
    assert isinstance(loader, DataLoader)
    assert isinstance(loader.base_dataloader, DataLoader)
    assert type(loader.base_dataloader).__mro__[1] is AsynchronousLoader
    assert (len(loader), loader.num_workers, loader.total_batch_size) == (2, 1, 4)
    assert not hasattr(loader.base_dataloader, "state_dict")
    assert accelerator.prepare(loader) is loader


def test_the_accelerator_goes_when_nobody_holds_it(accelerator: Any) -> None:
    other = asynchronous(accelerate.Accelerator(cpu=True))
    loader = other.prepare(DataLoader(Items(8), batch_size=4))
    list(loader)
    gone = [weakref.ref(other), weakref.ref(loader.base_dataloader)]
    del other, loader
    assert [one() for one in gone] == [None, None], "held in a cycle"


def test_once_is_enough(accelerator: Any) -> None:
    assert asynchronous(asynchronous(accelerator)) is accelerator
    loader = accelerator.prepare(DataLoader(Items(8), batch_size=4))
    assert type(loader.base_dataloader._base) is DataLoader


def test_a_loader_can_be_pickled_before_it_is_iterated(accelerator: Any) -> None:
    loader = asynchronous(accelerator).prepare(DataLoader(Items(8), batch_size=4))
    again = pickle.loads(pickle.dumps(loader.base_dataloader))
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in loader]


def test_leaving_an_epoch_leaves_no_thread(accelerator: Any) -> None:
    loader = asynchronous(accelerator).prepare(DataLoader(Items(64), batch_size=4))
    for _ in range(3):
        for _batch in loader:
            break
    del _batch
    loader.base_dataloader.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("sidestream")]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata asks torch for it
def test_a_stateful_loader_resumes_within_an_epoch(tmp_path) -> None:
    needs("torchdata.stateful_dataloader")
    rests = []
    for ours in (False, True):
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        kind = accelerate.utils.DataLoaderConfiguration

        def made(ours: bool = ours, kind: Any = kind) -> Any:
            accelerator = accelerate.Accelerator(
                cpu=True, dataloader_config=kind(use_stateful_dataloader=True)
            )
            if ours:
                asynchronous(accelerator)
            return accelerator, accelerator.prepare(DataLoader(Items(22), batch_size=2))

        accelerator, loader = made()
        batches = iter(loader)
        first = [next(batches).tolist() for _ in range(3)]
        accelerator.save_state(tmp_path / str(ours))
        del batches
        accelerator, loader = made()
        accelerator.load_state(tmp_path / str(ours))
        rests.append([first, *([batch.tolist() for batch in loader] for _ in range(2))])
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    assert rests[0] == rests[1]
    assert len(rests[0][1]) == 8


def test_a_wrapped_loader_is_not_prepared_so_wrap_what_is(accelerator: Any) -> None:
    data = AsynchronousLoader(DataLoader(Items(8), batch_size=4))
    assert accelerator.prepare(data) is data, "documented: Accelerate would not shard it"


# ---- the ground


def test_the_installed_version_is_one_that_was_tested() -> None:
    release = tuple(map(int, accelerate.__version__.split(".")[:2]))
    oldest, newest = (tuple(map(int, one.split("."))) for one in MADE_FOR["accelerate"])
    assert oldest <= release <= newest, "run the tests with it, then write it down"


def test_prepare_goes_through_the_public_method_and_reads_from_base_dataloader(
    accelerator: Any,
) -> None:
    asked = []
    original = accelerator.prepare_data_loader
    accelerator.prepare_data_loader = lambda *a, **k: asked.append(a) or original(*a, **k)
    loader = accelerator.prepare(DataLoader(Items(8), batch_size=4))
    assert len(asked) == 1
    read = []

    class Under:
        def __iter__(self):
            read.append(1)
            return iter([torch.zeros(1)])

    vars(loader)["base_dataloader"].__class__ = type("Seen", (DataLoader,), vars(Under).copy())
    assert len(list(loader)) == 1
    assert read == [1]


def test_a_loader_of_another_make_is_left_alone_and_said(accelerator: Any) -> None:
    accelerator.prepare_data_loader = lambda data, **_: data
    asynchronous(accelerator)
    data = DataLoader(Items(8), batch_size=4)
    with pytest.warns(UserWarning, match="gave a DataLoader, which reads from nothing"):
        assert accelerator.prepare_data_loader(data) is data
