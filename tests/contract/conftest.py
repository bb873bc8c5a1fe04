"""The contract holds for every source: `pytest tests/contract --source threads` shows it for one.

There each source of a test is read by a ThreadDataLoader, which the AsynchronousLoader gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

import sidestream.loader
from sidestream import ThreadDataLoader


class Passing(IterableDataset):
    """Any iterable of batches as a dataset."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        return iter(self.source)


class Sized(Passing):
    def __len__(self) -> int:
        return len(self.source)


def as_it_is(batch: Any) -> Any:
    return batch


def in_threads(source: Any) -> Any:
    """The same batches, made by threads."""
    if isinstance(source, DataLoader):
        if type(source) is not DataLoader or source.num_workers:
            return source
        names = ("collate_fn", "drop_last", "generator", "pin_memory", "worker_init_fn")
        options = {name: getattr(source, name) for name in names}
        if isinstance(source.dataset, IterableDataset):
            options["batch_size"] = source.batch_size
            return ThreadDataLoader(source.dataset, num_workers=1, **options)
        if source.batch_size is None and source.batch_sampler is not None:
            options["batch_sampler"] = source.batch_sampler
        else:
            options |= {"batch_size": source.batch_size, "sampler": source.sampler}
        return ThreadDataLoader(source.dataset, num_workers=2, **options)
    kind = Sized if hasattr(type(source), "__len__") else Passing
    if isinstance(source, list):
        return ThreadDataLoader(source, batch_size=None, num_workers=2, collate_fn=as_it_is)
    return ThreadDataLoader(kind(source), batch_size=None, num_workers=1, collate_fn=as_it_is)


@pytest.fixture(autouse=True)
def _source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.config.getoption("--source") == "threads":
        given = sidestream.loader._as_iterable
        monkeypatch.setattr(
            sidestream.loader, "_as_iterable", lambda *arguments: in_threads(given(*arguments))
        )
