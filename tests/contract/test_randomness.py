"""G8: with the same seed the loader yields what a plain loop yields, whatever the caller draws."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from sidestream import AsynchronousLoader

ITEMS = 12


class Numbered(Dataset):
    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> int:
        return index


class Augmented(Numbered):
    """Draws for each item, as an augmentation does; in a worker process that has its own seed."""

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(())


def run(loader: Any, seed: int, *, epochs: int = 2) -> list[Any]:
    """What a training loop sees that draws wherever it can: batches, and its own draws."""
    torch.manual_seed(seed)
    seen: list[Any] = []
    for _ in range(epochs):
        seen.append(torch.rand(()).item())
        iterator = iter(loader)
        seen.append(torch.rand(()).item())  # between `iter` and the first `next`
        for batch in iterator:
            seen.append([part.tolist() for part in batch] if type(batch) is list else batch)
            seen.append(torch.rand(()).item())
    return [item.tolist() if isinstance(item, torch.Tensor) else item for item in seen]


def _with_generator(seed: int) -> dict[str, Any]:
    return {"generator": torch.Generator().manual_seed(seed)}


GENERATORS: dict[str, Callable[[int], dict[str, Any]]] = {
    "global generator": lambda _: {},
    "generator of its own": _with_generator,
}


@pytest.fixture(params=GENERATORS)
def options(request: pytest.FixtureRequest) -> Callable[[int], dict[str, Any]]:
    return GENERATORS[request.param]


def test_a_hundred_and_fifty_seeds_without_workers(
    options: Callable[[int], dict[str, Any]], buffer_size: int
) -> None:
    """Everything in the thread agreed 13 times of 150."""

    def make(seed: int) -> Any:
        return DataLoader(Numbered(), batch_size=4, shuffle=True, **options(seed))

    differing = [
        seed
        for seed in range(150)
        if run(make(seed), seed)
        != run(AsynchronousLoader(make(seed), "cpu", buffer_size=buffer_size), seed)
    ]
    assert differing == []


def test_different_seeds_differ() -> None:
    """The comparison above can fail."""
    data = DataLoader(Numbered(), batch_size=4, shuffle=True)
    assert run(AsynchronousLoader(data, "cpu"), 1) != run(data, 2)


@pytest.mark.parametrize("persistent", [False, True], ids=["new workers", "persistent workers"])
def test_two_workers(options: Callable[[int], dict[str, Any]], persistent: bool) -> None:
    def make(seed: int) -> Any:
        return DataLoader(
            Augmented(),
            batch_size=4,
            shuffle=True,
            num_workers=2,
            persistent_workers=persistent,
            **options(seed),
        )

    for seed in (3, 4):
        expected = run(make(seed), seed, epochs=3)
        assert run(AsynchronousLoader(make(seed), "cpu"), seed, epochs=3) == expected


def orders(loader: Any, taken: list[int | None]) -> list[Any]:
    """The batches of epochs that are broken off after so many, and a draw after each."""
    torch.manual_seed(5)
    seen = []
    for count in taken:
        seen.append([batch.tolist() for batch in itertools.islice(iter(loader), count)])
        seen.append(torch.rand(()).item())
    return seen


def test_epochs_broken_off_draw_as_those_of_a_plain_loop(
    options: Callable[[int], dict[str, Any]], buffer_size: int
) -> None:
    """Where what is read ahead does not reach the end, at which a sampler draws once more."""

    def make() -> Any:
        return DataLoader(range(40), batch_size=2, shuffle=True, **options(5))

    taken = [1, 0, 3, None, 2, None]
    expected = orders(make(), taken)
    assert orders(AsynchronousLoader(make(), "cpu", buffer_size=buffer_size), taken) == expected


def test_epochs_of_exactly_len_batches_draw_as_those_of_a_plain_loop(
    options: Callable[[int], dict[str, Any]], buffer_size: int
) -> None:
    """A trainer does not ask for the batch after the last, and a sampler draws once more there."""

    def make() -> Any:
        return DataLoader(Numbered(), batch_size=2, shuffle=True, **options(5))

    taken = [6, 6, 6]
    assert len(make()) == 6
    expected = orders(make(), taken)
    assert orders(AsynchronousLoader(make(), "cpu", buffer_size=buffer_size), taken) == expected


def test_a_dataset_with_a_generator_of_its_own_draws_as_in_a_plain_loop(buffer_size: int) -> None:
    """What the documentation advises where there are no workers and the loop draws too."""

    class Own(Numbered):
        def __init__(self) -> None:
            self.generator = torch.Generator().manual_seed(7)

        def __getitem__(self, index: int) -> Any:
            return index, torch.rand((), generator=self.generator)

    expected = run(DataLoader(Own(), batch_size=4, shuffle=True), 1)
    data = DataLoader(Own(), batch_size=4, shuffle=True)
    assert run(AsynchronousLoader(data, "cpu", buffer_size=buffer_size), 1) == expected
