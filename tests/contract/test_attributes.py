"""Attributes of the wrapped loader read through, are set through, and are absent where absent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from sidestream import AsynchronousLoader
from support.sources import Counting, numbers, plain

READ_THROUGH = [
    "dataset",
    "sampler",
    "batch_sampler",
    "batch_size",
    "drop_last",
    "collate_fn",
    "generator",
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "prefetch_factor",
    "persistent_workers",
    "multiprocessing_context",
]


def _values(loader: Any) -> list[list[float]]:
    return [batch.tolist() for (batch,) in loader]


@pytest.mark.parametrize("name", READ_THROUGH)
def test_a_dataloader_s_attribute_reads_through(name: str, device: str) -> None:
    data = DataLoader(TensorDataset(torch.arange(6)), batch_size=2)
    loader = AsynchronousLoader(data, device)
    assert hasattr(loader, name)
    assert getattr(loader, name) is getattr(data, name)


def test_a_dataset_s_dataloader_reads_through(device: str) -> None:
    data = TensorDataset(torch.arange(6))
    loader = AsynchronousLoader(data, device, batch_size=3, drop_last=True)
    assert loader.dataset is data
    assert (loader.batch_size, loader.drop_last) == (3, True)


@pytest.mark.parametrize("source", [plain(2), DataLoader(plain(2)), Counting(2), range(3)])
def test_what_is_not_there_is_not_there(source: Any, device: str) -> None:
    loader = AsynchronousLoader(source, device)
    assert not hasattr(loader, "no_such")
    assert getattr(loader, "no_such", 5) == 5
    with pytest.raises(AttributeError, match="no_such"):
        _ = loader.no_such


def test_a_plain_iterable_has_none_of_a_dataloader_s_attributes(device: str) -> None:
    loader = AsynchronousLoader(plain(2), device)
    assert [name for name in READ_THROUGH if hasattr(loader, name)] == []
    assert not hasattr(loader, "set_epoch")
    assert not hasattr(loader, "__array__")
    assert repr(loader)


def test_methods_of_the_source_can_be_called(device: str) -> None:
    class Source(Counting):
        def describe(self) -> str:
            return f"{self.length} batches"

    assert AsynchronousLoader(Source(4), device).describe() == "4 batches"


def test_an_attribute_error_inside_a_property_of_the_source_is_told(device: str) -> None:
    class Source(Counting):
        @property
        def shards(self) -> Any:
            return self.no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = AsynchronousLoader(Source(4), device).shards


def test_setting_an_attribute_of_the_source_sets_it_there(buffer_size: int, device: str) -> None:
    source = Counting(2)
    loader = AsynchronousLoader(source, device, buffer_size=buffer_size)
    assert loader.length == 2
    loader.length = 4
    assert source.length == 4
    assert numbers(loader) == [0, 1, 2, 3]


def test_setting_what_the_dataloader_refuses_is_refused(device: str) -> None:
    loader = AsynchronousLoader(DataLoader(plain(4), batch_size=2), device)
    with pytest.raises(ValueError, match="batch_size"):
        loader.batch_size = 3
    assert loader.batch_size == 2


def test_setting_what_is_nowhere_is_refused_in_words(device: str) -> None:
    """A misspelt option would be lost in silence."""
    loader = AsynchronousLoader(plain(2), device)
    with pytest.raises(AttributeError, match="bufer_size") as caught:
        loader.bufer_size = 3
    assert "\n" not in str(caught.value)


def test_setting_the_sampler_of_the_wrapped_batch_sampler_works_as_plain(device: str) -> None:
    data = DataLoader(plain(4), batch_size=2)
    loader = AsynchronousLoader(data, device)
    loader.dataset.append(plain(5)[4])
    assert len(loader) == len(data) == 3


def test_it_is_no_dataloader(device: str) -> None:
    """So that trainers do not try to rebuild it from its attributes."""
    loader = AsynchronousLoader(DataLoader(plain(2)), device)
    assert not isinstance(loader, DataLoader)


@pytest.mark.parametrize("through", ["sampler", "loader"])
@pytest.mark.parametrize("rank", [0, 1])
def test_set_epoch_gives_each_epoch_the_order_of_a_plain_loop(
    rank: int, through: str, buffer_size: int, device: str
) -> None:
    def make() -> Any:
        data = TensorDataset(torch.arange(16))
        sampler = DistributedSampler(data, num_replicas=2, rank=rank, shuffle=True)
        return DataLoader(data, batch_size=2, sampler=sampler)

    reference, data = make(), make()
    loader = AsynchronousLoader(data, device, buffer_size=buffer_size)
    orders, expected = [], []
    for epoch in range(3):
        reference.sampler.set_epoch(epoch)
        expected.append(list(reference.sampler))
        (loader.sampler if through == "sampler" else loader).set_epoch(epoch)
        assert data.sampler.epoch == epoch
        orders.append([index for indices in loader.batch_sampler for index in indices])
        if device == "cpu":
            assert _values(loader) == _values(reference)
    assert orders == expected
    assert orders[0] != orders[1] != orders[2]


class EpochBatches(BatchSampler):
    """A batch sampler with an epoch of its own."""

    def __init__(self) -> None:
        super().__init__(SequentialSampler(range(4)), batch_size=2, drop_last=False)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        batches = [[0, 1], [2, 3]]
        return iter(batches if self.epoch % 2 == 0 else batches[::-1])


def test_set_epoch_reaches_a_batch_sampler(buffer_size: int) -> None:
    data = DataLoader(TensorDataset(torch.arange(4)), batch_sampler=EpochBatches())
    loader = AsynchronousLoader(data, "cpu", buffer_size=buffer_size)
    orders = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        orders.append(_values(loader))
    assert orders == [[[0, 1], [2, 3]], [[2, 3], [0, 1]], [[0, 1], [2, 3]]]


def test_set_epoch_reaches_the_sampler_inside_a_batch_sampler(device: str) -> None:
    data = TensorDataset(torch.arange(8))
    sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=True)
    batches = BatchSampler(sampler, batch_size=2, drop_last=False)
    loader = AsynchronousLoader(DataLoader(data, batch_sampler=batches), device)
    loader.set_epoch(5)
    assert sampler.epoch == 5
    loader.batch_sampler.sampler.set_epoch(6)
    assert sampler.epoch == 6


def test_set_epoch_reaches_a_source_that_has_it(device: str) -> None:
    class Source(Counting):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    source = Source(2)
    AsynchronousLoader(source, device).set_epoch(4)
    assert source.epoch == 4


def test_set_epoch_is_absent_where_nothing_has_it(device: str) -> None:
    data = DataLoader(plain(4), sampler=RandomSampler(plain(4)))
    assert not hasattr(AsynchronousLoader(data, device), "set_epoch")


def test_repr_tells_the_device_and_the_buffer_on_one_line(buffer_size: int, device: str) -> None:
    text = repr(AsynchronousLoader(plain(2), device, buffer_size=buffer_size))
    assert text.startswith("AsynchronousLoader")
    assert device in text
    assert str(buffer_size) in text
    assert "\n" not in text


def test_the_class_can_be_subscripted_and_subclassed(device: str) -> None:
    class Mine(AsynchronousLoader[tuple[torch.Tensor, int]]):
        """A user's own."""

    loader = Mine(plain(3), device)
    assert numbers(loader) == [0, 1, 2]
    assert type(loader) is Mine


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_subclass_may_have_attributes_of_its_own(when: str, device: str) -> None:
    class Mine(AsynchronousLoader):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if when == "before":
                self.note = "the user's own"
            super().__init__(*args, **kwargs)
            if when == "after":
                self.note = "the user's own"

    loader = Mine(plain(2), device)
    assert loader.note == "the user's own"
    assert numbers(loader) == [0, 1]
