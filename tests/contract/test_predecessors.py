"""What two widely used loaders of this kind got wrong, one test each."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sidestream import AsynchronousLoader
from support.process import run
from support.sources import numbers, plain


def test_ten_epochs_of_exactly_len_batches_are_all_full(buffer_size: int, device: str) -> None:
    """Every second one was empty: the end was noticed only when one more was asked for."""
    data = DataLoader(TensorDataset(torch.arange(10)), batch_size=2)
    loader = AsynchronousLoader(data, device, buffer_size=buffer_size)
    counts = []
    for _ in range(10):
        iterator = iter(loader)
        counts.append(len([next(iterator) for _ in range(len(loader))]))
    assert counts == [5] * 10


class FailsAtThree(Dataset):
    def __init__(self) -> None:
        self.error = OSError("image 3 is broken")

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise self.error
        return torch.zeros(2), index


def test_a_dataset_that_raises_at_batch_3_raises_that_object_after_batches_0_to_2(
    buffer_size: int, device: str
) -> None:
    """The thread died, and the loop waited for ever."""
    dataset = FailsAtThree()
    loader = AsynchronousLoader(dataset, device, buffer_size=buffer_size, batch_size=None)
    seen = []
    with pytest.raises(OSError, match="image 3 is broken") as caught:
        seen.extend(number for _, number in loader)
    assert caught.value is dataset.error
    assert seen == [0, 1, 2]


def test_a_pass_after_a_break_begins_with_batch_0(buffer_size: int, device: str) -> None:
    """It began with what the pass before had left in the queue."""
    loader = AsynchronousLoader(plain(6), device, buffer_size=buffer_size)
    for taken in (1, 3, 6):
        for _, number in loader:
            if number == taken - 1:
                break
        assert numbers(loader) == [0, 1, 2, 3, 4, 5]


@dataclasses.dataclass
class Sample:
    image: Any
    label: int


class Pair(NamedTuple):
    image: Any
    label: int


@pytest.mark.parametrize(
    "make",
    [
        lambda x: {"image": x, "label": 1},
        lambda x: Sample(x, 1),
        lambda x: Pair(x, 1),
        lambda x: (x, 1),
        lambda x: [x, 1],
    ],
    ids=["dict", "dataclass", "namedtuple", "tuple", "list"],
)
def test_a_batch_comes_back_as_its_type(make: Any, buffer_size: int, device: str) -> None:
    """A dict came back untouched, on the host, and a tuple as a list."""
    batch = make(torch.zeros(2))
    (got,) = AsynchronousLoader([batch], device, buffer_size=buffer_size)
    assert type(got) is type(batch)
    image = (
        got.image if isinstance(got, (Sample, Pair)) else got["image" if type(got) is dict else 0]
    )
    assert image.device.type == device


def test_the_process_exits_after_a_break() -> None:
    """The thread stood in a full queue, and the interpreter waited for it."""
    run(
        """
        loader = AsynchronousLoader(plain(50), "cpu", buffer_size=1)
        for _ in loader:
            break
        kept = iter(loader)
        next(kept)
        say("at the end")
        """,
        limit_s=15,
        fresh=True,
    ).assert_clean("at the end")
