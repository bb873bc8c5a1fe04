"""Pickling and copying: a loader whenever its source can, with nothing of what runs."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data import DataLoader

from sidestream import AsynchronousLoader
from support.children import send_numbers
from support.sources import SizedCounting, numbers, plain

WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


def double(batch: Any) -> Any:
    return batch[0], batch[1] * 2


@pytest.fixture(params=[0, 2], ids=lambda size: f"buffer{size}")
def buffer_size(request: pytest.FixtureRequest) -> int:
    """With and without a thread: its size does not matter here."""
    return request.param


@pytest.fixture(params=WAYS)
def duplicate(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return WAYS[request.param]


def test_a_copy_made_before_iteration_is_complete(
    duplicate: Any, buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(plain(4), device, buffer_size=buffer_size)
    assert numbers(duplicate(loader)) == [0, 1, 2, 3]
    assert numbers(loader) == [0, 1, 2, 3]


@pytest.mark.parametrize("taken", [0, 1, 3, 4])
def test_a_copy_made_in_mid_pass_is_fresh_and_independent(
    duplicate: Any, buffer_size: int, device: str, taken: int
) -> None:
    loader = AsynchronousLoader(plain(4), device, buffer_size=buffer_size)
    iterator = iter(loader)
    seen = numbers(itertools.islice(iterator, taken))
    twin = duplicate(loader)
    assert numbers(itertools.islice(twin, 2)) == [0, 1]
    seen += numbers(iterator)
    assert seen == [0, 1, 2, 3]
    assert numbers(twin) == [0, 1, 2, 3]


def test_a_copy_made_after_a_pass_is_fresh(duplicate: Any, buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(plain(4), device, buffer_size=buffer_size)
    assert numbers(loader) == [0, 1, 2, 3]
    loader.close()
    twin = duplicate(loader)
    assert twin.statistics().num_batches == 0
    assert numbers(twin) == [0, 1, 2, 3]


def test_closing_a_copy_leaves_the_original_running(
    duplicate: Any, buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(plain(4), device, buffer_size=buffer_size)
    iterator = iter(loader)
    assert next(iterator)[1] == 0
    duplicate(loader).close()
    assert numbers(iterator) == [1, 2, 3]


def test_a_copy_keeps_the_arguments(duplicate: Any, device: str) -> None:
    loader = AsynchronousLoader(plain(5), device, buffer_size=9, num_batches=3, transform=double)
    twin = duplicate(loader)
    assert repr(twin) == repr(loader)
    assert len(twin) == 3
    assert numbers(twin) == [0, 2, 4]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol_works(protocol: int) -> None:
    loader = AsynchronousLoader(plain(2), "cpu")
    assert numbers(pickle.loads(pickle.dumps(loader, protocol))) == [0, 1]


def test_a_copy_of_a_dataloader_s_loader_reads_through(duplicate: Any, device: str) -> None:
    twin = duplicate(AsynchronousLoader(DataLoader(plain(4), batch_size=2), device))
    assert (twin.batch_size, len(twin.dataset), len(twin)) == (2, 4, 2)


def test_a_source_that_cannot_be_pickled_says_so_itself(device: str) -> None:
    class Source(SizedCounting):
        def __reduce__(self) -> Any:
            raise TypeError("this source stays here")

    with pytest.raises(TypeError, match="this source stays here"):
        pickle.dumps(AsynchronousLoader(Source(2), device))


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_iterator_refuses_to_be_pickled_or_copied_in_words(
    way: Any, taken: int, buffer_size: int, device: str
) -> None:
    iterator = iter(AsynchronousLoader(plain(3), device, buffer_size=buffer_size))
    seen = numbers(itertools.islice(iterator, taken))
    with pytest.raises(TypeError, match="pickled") as caught:
        way(iterator)
    assert "\n" not in str(caught.value)
    assert seen + numbers(iterator) == [0, 1, 2]


def test_a_loader_inside_another_object_is_copied_with_it(duplicate: Any, device: str) -> None:
    holder = {"loaders": [AsynchronousLoader(plain(2), device)], "epoch": 3}
    iterator = iter(holder["loaders"][0])
    next(iterator)
    assert numbers(duplicate(holder)["loaders"][0]) == [0, 1]


def test_copying_a_thousand_times_starts_nothing(duplicate: Any, device: str) -> None:
    loader = AsynchronousLoader(plain(2), device)
    before = threading.active_count()
    twins = [duplicate(loader) for _ in range(1000)]
    assert threading.active_count() == before
    assert numbers(twins[-1]) == [0, 1]


def test_a_spawned_child_gets_the_loader_in_mid_pass_and_all_its_batches() -> None:
    context = multiprocessing.get_context("spawn")
    loader = AsynchronousLoader(plain(3), "meta", buffer_size=2)
    iterator = iter(loader)
    assert next(iterator)[1] == 0
    ours, theirs = context.Pipe()
    child = context.Process(target=send_numbers, args=(loader, theirs))
    child.start()
    theirs.close()
    assert ours.poll(25)
    assert ours.recv() == [[0, 1, 2], [0], 3]
    child.join(5)
    assert child.exitcode == 0
    child.close()
    ours.close()
    assert numbers(iterator) == [1, 2]
