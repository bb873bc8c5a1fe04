"""Public reports about checkpoints and resuming; README.md lists all."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from sidestream import AsynchronousLoader


def first_numbers(batches: Any) -> list[int]:
    return [int(batch[0][0]) for batch in batches]


class Noting(Dataset):
    """Notes which indices are read: batches that are skipped are not."""

    def __init__(self, length: int) -> None:
        self.read: list[int] = []
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        self.read.append(index)
        return (torch.tensor(index),)


def test_R37_a_resumed_epoch_goes_on_in_the_permutation_it_began_with(buffer_size: int) -> None:
    def make() -> tuple[Noting, DataLoader]:
        data = Noting(10)
        generator = torch.Generator().manual_seed(5)
        return data, DataLoader(data, 2, sampler=RandomSampler(data, generator=generator))

    _, plain = make()
    wanted = [first_numbers(plain) for _ in range(2)]
    loader = AsynchronousLoader(make()[1], "cpu", buffer_size=buffer_size)
    seen = first_numbers(itertools.islice(loader, 3))
    state = loader.state_dict()
    data, source = make()
    resumed = AsynchronousLoader(source, "cpu", buffer_size=buffer_size)
    resumed.load_state_dict(state)
    assert seen + first_numbers(resumed) == wanted[0]
    assert len(data.read) == 4, "the three batches that are left out are not read again"
    assert first_numbers(resumed) == wanted[1]


def test_R37_the_epoch_of_a_sampler_advances_once_a_pass(buffer_size: int) -> None:
    class Sampler:
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __len__(self) -> int:
            return 6

        def __iter__(self) -> Any:
            return iter(range(10 * self.epoch, 10 * self.epoch + 6))

    def make() -> AsynchronousLoader:
        data = TensorDataset(torch.arange(40))
        return AsynchronousLoader(
            DataLoader(data, 2, sampler=Sampler()), "cpu", buffer_size=buffer_size
        )

    loader = make()
    loader.set_epoch(0)
    seen = first_numbers(itertools.islice(loader, 1))
    state = loader.state_dict()
    loader = make()
    loader.load_state_dict(state)
    for epoch in range(3):
        if epoch:
            loader.set_epoch(epoch)
        seen += first_numbers(loader)
    assert seen == [0, 2, 4, 10, 12, 14, 20, 22, 24]


class Stateful:
    """A source with a state of its own."""

    def __init__(self) -> None:
        self.at = 0

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Any:
        while self.at < 5:
            self.at += 1
            yield [torch.tensor([self.at])]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.fixture
def state(buffer_size: int) -> Any:
    """That of a loader which has delivered three of its five batches."""
    loader = AsynchronousLoader(Stateful(), "cpu", buffer_size=buffer_size)
    assert first_numbers(itertools.islice(loader, 3)) == [1, 2, 3]
    return loader.state_dict()


def test_R38_a_length_asked_before_a_state_is_loaded_fixes_nothing(
    state: Any, buffer_size: int
) -> None:
    loader = AsynchronousLoader(Stateful(), "cpu", buffer_size=buffer_size)
    assert len(loader) == 5
    loader.load_state_dict(state)
    assert first_numbers(loader) == [4, 5]
    assert first_numbers(loader) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_R38_an_iterator_made_before_a_state_is_loaded_gives_nothing_stale(
    state: Any, taken: int, buffer_size: int
) -> None:
    loader = AsynchronousLoader(Stateful(), "cpu", buffer_size=buffer_size)
    iterator = iter(loader)
    assert first_numbers(itertools.islice(iterator, taken)) == [1, 2, 3, 4][:taken]
    loader.load_state_dict(state)
    with pytest.raises(RuntimeError, match="another state; call iter"):
        next(iterator)
    assert first_numbers(loader) == [4, 5]


def test_R38_a_state_loaded_in_the_body_of_the_loop_ends_the_loop_with_an_error(
    state: Any, buffer_size: int
) -> None:
    loader = AsynchronousLoader(Stateful(), "cpu", buffer_size=buffer_size)
    seen = []

    def rewinding() -> None:
        for batch in loader:
            seen.extend(first_numbers([batch]))
            loader.load_state_dict(state)

    with pytest.raises(RuntimeError, match="another state"):
        rewinding()
    assert seen == [1]
    assert first_numbers(loader) == [4, 5]
