"""G10 with other libraries' stateful sources: a resumed run is the unbroken one."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

from sidestream import AsynchronousLoader
from support.resuming import (
    LENGTH,
    SAMPLES,
    Items,
    Resumable,
    Stream,
    broken_run,
    generator,
    loading,
    plain_run,
    through_a_file,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]

PLACES = [(0, 0), (0, 1), (0, LENGTH - 1), (0, LENGTH), (1, 3), (1, LENGTH + 1)]
TORCHDATA: dict[str, Callable[[], Any]] = {}
DATASETS: dict[str, Callable[[], Any]] = {}


def order() -> Any:
    return DistributedSampler([0] * SAMPLES, num_replicas=1, rank=0)


with contextlib.suppress(ImportError):
    from torchdata import nodes
    from torchdata.stateful_dataloader import StatefulDataLoader

    def stateful(dataset: Any = None, **options: Any) -> Any:
        return StatefulDataLoader(dataset or Items(), batch_size=2, **options)

    def graph() -> Any:
        node = nodes.Mapper(nodes.SamplerWrapper(order()), Items().__getitem__)
        node = nodes.Batcher(node, batch_size=2)
        return nodes.Loader(nodes.Mapper(node, torch.utils.data.default_collate))

    TORCHDATA = {
        "in order": stateful,
        "shuffled": lambda: stateful(shuffle=True, generator=generator()),
        "distributed": lambda: stateful(sampler=order()),
        "stream": lambda: stateful(Resumable()),
        "graph": graph,
        "two workers": lambda: stateful(num_workers=2),
        "two workers, shuffled": lambda: stateful(
            shuffle=True, num_workers=2, generator=generator()
        ),
        "two workers, stream": lambda: stateful(Stream(), num_workers=2),
        "two workers, every third": lambda: stateful(num_workers=2, snapshot_every_n_steps=3),
    }

with contextlib.suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import datasets
    import tqdm

    tqdm.tqdm.monitor_interval = 0  # no thread for progress bars that stays

    def table() -> Any:
        rows = {"x": [[float(number)] for number in range(SAMPLES)]}
        return datasets.Dataset.from_dict(rows).with_format("torch")

    def rows_as_tensors(rows: Any) -> Any:
        return torch.stack([row["x"] for row in rows])

    DATASETS = {
        "table": lambda: loading(table(), shuffle=True, collate_fn=rows_as_tensors),
        "stream": lambda: loading(
            table().to_iterable_dataset(num_shards=2), collate_fn=rows_as_tensors
        ),
        "shuffled stream": lambda: loading(
            table().to_iterable_dataset(num_shards=2).shuffle(seed=3, buffer_size=1),
            collate_fn=rows_as_tensors,
        ),
        "two workers": lambda: loading(
            table().to_iterable_dataset(num_shards=2), num_workers=2, collate_fn=rows_as_tensors
        ),
    }

if not (TORCHDATA or DATASETS):
    pytest.skip("neither torchdata nor datasets is installed", allow_module_level=True)


@pytest.mark.skipif(not TORCHDATA, reason="torchdata is not installed")
@pytest.mark.parametrize("draws", [False, True], ids=["", "the loop draws"])
@pytest.mark.parametrize("name", TORCHDATA)
def test_a_torchdata_source(name: str, draws: bool) -> None:
    unbroken = plain_run(TORCHDATA[name], draws)
    for epoch, count in PLACES if "two" not in name else PLACES[3:5]:
        seen = broken_run(TORCHDATA[name], draws, epoch, count)
        # What comes after the resumed pass is torchdata's own matter: it draws one seed more
        # from a generator that it also shuffles with, and after an end one from the global one.
        passes = epoch + 1 if name == "shuffled" or count > LENGTH else 3
        assert seen[:passes] == unbroken[:passes], (epoch, count)


@pytest.mark.skipif(not DATASETS, reason="datasets is not installed")
@pytest.mark.parametrize("name", DATASETS)
def test_a_source_of_datasets(name: str) -> None:
    unbroken = plain_run(DATASETS[name], True)
    assert len(unbroken[0]) >= LENGTH
    for epoch, count in PLACES if "two" not in name else PLACES[2:5:2]:
        assert broken_run(DATASETS[name], True, epoch, count) == unbroken, (epoch, count)


@pytest.mark.skipif(not DATASETS, reason="datasets is not installed")
def test_a_stream_by_itself() -> None:
    def make() -> Any:
        return table().to_iterable_dataset(num_shards=2)

    for count in range(SAMPLES + 1):
        loader = AsynchronousLoader(make(), "cpu")
        seen = [int(row["x"]) for row in itertools.islice(iter(loader), count)]
        state = through_a_file(loader.state_dict())
        loader.close()
        loader = AsynchronousLoader(make(), "cpu")
        loader.load_state_dict(state)
        assert seen + [int(row["x"]) for row in loader] == list(range(SAMPLES))
        loader.set_epoch(1)  # datasets begins each pass of one epoch at the state it was given
        assert [int(row["x"]) for row in loader] == list(range(SAMPLES))
