"""G1: each `iter()` is a full fresh pass, however the one before it ended."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sidestream import AsynchronousLoader
from support.sources import Counting, SelfResetting, SizedCounting, numbers, plain
from support.waiting import Worker

LENGTH = 5
FULL = list(range(LENGTH))

SOURCES = {
    "list": lambda: plain(LENGTH),
    "iterable": lambda: Counting(LENGTH),
    "self-resetting": lambda: SelfResetting(LENGTH),
    "DataLoader": lambda: DataLoader(plain(LENGTH), batch_size=None),
}


@pytest.fixture
def device() -> str:
    """One is enough here: what is tested does not look at tensors."""
    return "meta"


@pytest.fixture(params=SOURCES)
def loader(request: pytest.FixtureRequest, device: str, buffer_size: int) -> Any:
    return AsynchronousLoader(SOURCES[request.param](), device, buffer_size=buffer_size)


@pytest.mark.parametrize("taken", [0, 1, LENGTH - 1, LENGTH, LENGTH + 1])
def test_a_pass_is_full_after_one_of_so_many_batches(loader: Any, taken: int) -> None:
    for _ in range(4):
        iterator = iter(loader)
        seen = []
        with contextlib.suppress(StopIteration):
            for _ in range(taken):
                seen.append(next(iterator)[1])  # noqa: PERF401 - the error is part of it
        assert seen == FULL[:taken]
    assert numbers(loader) == FULL


@pytest.mark.parametrize("taken", [0, 1, LENGTH - 1, LENGTH, LENGTH + 1])
def test_a_pass_is_full_while_the_one_before_it_is_still_held(
    device: str, buffer_size: int, taken: int
) -> None:
    loader = AsynchronousLoader(plain(LENGTH), device, buffer_size=buffer_size)
    held = iter(loader)
    seen = numbers(itertools.islice(held, taken))
    assert numbers(loader) == FULL
    assert seen + numbers(held) == FULL


def _break_at_once(loader: Any) -> None:
    for _ in loader:
        break


def _break_on_the_last(loader: Any) -> None:
    for index, _ in enumerate(loader):
        if index == LENGTH - 1:
            break


def _islice(loader: Any) -> None:
    assert len(list(itertools.islice(loader, 2))) == 2


def _islice_of_the_length(loader: Any) -> None:
    assert len(list(itertools.islice(loader, LENGTH))) == LENGTH


def _zip_first(loader: Any) -> None:
    assert len(list(zip(loader, range(LENGTH), strict=False))) == LENGTH


def _zip_last(loader: Any) -> None:
    assert len(list(zip(range(LENGTH), loader, strict=False))) == LENGTH


def _raise(loader: Any) -> None:
    def body() -> None:
        for _ in loader:
            raise KeyError("in the body of the loop")

    with pytest.raises(KeyError):
        body()


def _raise_on_the_last(loader: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        [1 / (LENGTH - 1 - number) for _, number in loader]


def _return_out_of_it(loader: Any) -> None:
    def first() -> Any:
        for batch in loader:
            return batch
        return None

    assert first()[1] == 0


def _throw_a_generator_away(loader: Any) -> None:
    generator = (batch for batch in loader)
    assert next(generator)[1] == 0
    generator.close()


def _only_iter(loader: Any) -> None:
    iter(loader)


def _all_of_it(loader: Any) -> None:
    assert numbers(loader) == FULL


def _close(loader: Any) -> None:
    iterator = iter(loader)
    next(iterator)
    loader.close()


WAYS = [
    _break_at_once,
    _break_on_the_last,
    _islice,
    _islice_of_the_length,
    _zip_first,
    _zip_last,
    _raise,
    _raise_on_the_last,
    _return_out_of_it,
    _throw_a_generator_away,
    _only_iter,
    _all_of_it,
    _close,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_a_pass_is_full_after(way: Callable[[Any], None], loader: Any) -> None:
    for _ in range(3):
        way(loader)
    assert numbers(loader) == FULL
    assert numbers(loader) == FULL


@pytest.mark.parametrize("buffer_size", [0, 1, 2, 9])
def test_two_iterators_at_once_are_independent_and_complete(device: str, buffer_size: int) -> None:
    loader = AsynchronousLoader(plain(LENGTH), device, buffer_size=buffer_size)
    one, other = iter(loader), iter(loader)
    assert one is not other
    assert numbers(itertools.islice(one, 2)) == [0, 1]
    assert numbers(other) == FULL
    assert numbers(one) == [2, 3, 4]


def test_zip_of_a_loader_with_itself_gives_equal_pairs(device: str, buffer_size: int) -> None:
    loader = AsynchronousLoader(Counting(LENGTH), device, buffer_size=buffer_size)
    pairs = [(one[1], other[1]) for one, other in zip(loader, loader, strict=True)]
    assert pairs == [(number, number) for number in FULL]


def test_nested_passes_are_full(device: str, buffer_size: int) -> None:
    loader = AsynchronousLoader(Counting(3), device, buffer_size=buffer_size)
    pairs = [(outer[1], inner[1]) for outer in loader for inner in loader]
    assert pairs == list(itertools.product(range(3), range(3)))


def test_iter_of_an_iterator_is_the_iterator(device: str, buffer_size: int) -> None:
    iterator = iter(AsynchronousLoader(plain(LENGTH), device, buffer_size=buffer_size))
    assert iter(iterator) is iterator
    assert numbers(iterator) == FULL


def test_the_loader_is_no_iterator(device: str) -> None:
    loader = AsynchronousLoader(plain(LENGTH), device)
    with pytest.raises(TypeError):
        next(loader)


def test_a_pass_in_another_thread_is_full(device: str, buffer_size: int) -> None:
    loader = AsynchronousLoader(plain(LENGTH), device, buffer_size=buffer_size)
    assert Worker(numbers, loader).result() == FULL
    assert numbers(loader) == FULL


def test_passes_in_several_threads_at_once_are_full(device: str, buffer_size: int) -> None:
    loader = AsynchronousLoader(plain(LENGTH), device, buffer_size=buffer_size)
    workers = [Worker(numbers, loader) for _ in range(4)]
    assert [worker.result() for worker in workers] == [FULL] * 4


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_an_iterator_can_be_handed_to_another_thread(
    device: str, buffer_size: int, taken: int
) -> None:
    iterator = iter(AsynchronousLoader(plain(LENGTH), device, buffer_size=buffer_size))
    seen = numbers(itertools.islice(iterator, taken))
    seen += Worker(numbers, itertools.islice(iterator, 1)).result()
    assert seen + numbers(iterator) == FULL


def test_an_iterator_made_in_a_thread_that_has_ended_goes_on(
    device: str, buffer_size: int
) -> None:
    loader = AsynchronousLoader(plain(LENGTH), device, buffer_size=buffer_size)
    iterator = Worker(iter, loader).result()
    assert numbers(iterator) == FULL


def test_consumers_that_share_an_iterator_get_each_batch_once_and_in_order(
    device: str, buffer_size: int
) -> None:
    iterator = iter(AsynchronousLoader(plain(60), device, buffer_size=buffer_size))
    shares = [worker.result() for worker in [Worker(numbers, iterator) for _ in range(3)]]
    assert sorted(itertools.chain(*shares)) == list(range(60))
    assert all(share == sorted(share) for share in shares)


@pytest.mark.parametrize("num_batches", [None, 3])
def test_exactly_as_many_batches_as_its_length_ten_epochs_long(
    device: str, buffer_size: int, num_batches: int | None
) -> None:
    """As a trainer does, which never asks for the batch after the last."""
    loader = AsynchronousLoader(
        SizedCounting(LENGTH), device, buffer_size=buffer_size, num_batches=num_batches
    )
    for _ in range(10):
        iterator = iter(loader)
        assert [next(iterator)[1] for _ in range(len(loader))] == FULL[: len(loader)]


def test_two_loaders_over_one_source_do_not_disturb_each_other(
    device: str, buffer_size: int
) -> None:
    source = plain(LENGTH)
    one = AsynchronousLoader(source, device, buffer_size=buffer_size)
    other = AsynchronousLoader(source, device, buffer_size=buffer_size)
    pairs = zip(one, other, strict=True)
    assert [(first[1], second[1]) for first, second in pairs] == [(n, n) for n in FULL]


def test_a_loader_of_a_loader_gives_the_same(device: str, buffer_size: int) -> None:
    inner = AsynchronousLoader(plain(LENGTH), "cpu", buffer_size=buffer_size)
    outer = AsynchronousLoader(inner, device, buffer_size=buffer_size)
    for _ in range(2):
        assert numbers(outer) == FULL
        for _ in outer:
            break


def test_many_passes_with_a_break_stay_full(device: str) -> None:
    data = TensorDataset(torch.arange(8), torch.arange(8))
    loader = AsynchronousLoader(DataLoader(data, batch_size=2), device, buffer_size=2)
    for _ in range(100):
        for _ in loader:
            break
        assert len(list(loader)) == 4
