"""G11: until it is iterated, a loader reads nothing, draws nothing and starts nothing."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sidestream import AsynchronousLoader
from support.sources import SizedCounting, numbers

USES: dict[str, Callable[[Any], Any]] = {
    "construction": lambda _: None,
    "len": len,
    "repr": repr,
    "str": str,
    "bool": bool,
    "hasattr": lambda loader: [
        hasattr(loader, name) for name in ("dataset", "sampler", "no_such", "generator")
    ],
    "dir": dir,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
    "statistics": lambda loader: loader.statistics(),
    "close": lambda loader: loader.close(),
    "with": lambda loader: loader.__exit__(None, None, None) or loader.__enter__(),
    "hash": hash,
    "equality": lambda loader: loader == loader,
}


class Spied(SizedCounting):
    """Counts how often its items are asked for, too."""

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return index


def _random_states() -> list[Any]:
    name, keys, *rest = numpy.random.get_state()
    return [
        torch.get_rng_state().tolist(),
        random.getstate(),
        (name, keys.tolist(), rest),
    ]


@pytest.mark.parametrize("use", USES)
def test_nothing_is_read_drawn_or_started_by(use: str, buffer_size: int, device: str) -> None:
    source = Spied(5)
    states, threads = _random_states(), threading.active_count()
    loader = AsynchronousLoader(source, device, buffer_size=buffer_size, num_batches=4)
    for _ in range(2):
        USES[use](loader)
    assert (source.iters, source.reads) == (0, 0)
    assert _random_states() == states
    assert threading.active_count() == threads
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize("use", USES)
def test_a_shuffling_dataloader_s_generator_is_not_drawn_from_by(use: str, device: str) -> None:
    generator = torch.Generator().manual_seed(5)
    data = DataLoader(TensorDataset(torch.arange(6)), shuffle=True, generator=generator)
    before = generator.get_state().tolist()
    states = _random_states()
    loader = AsynchronousLoader(data, device)
    if use not in ("copy", "deepcopy", "pickle"):  # a generator cannot be pickled
        USES[use](loader)
    assert generator.get_state().tolist() == before
    assert _random_states() == states


def test_nothing_is_read_between_iter_and_the_first_next(buffer_size: int, device: str) -> None:
    source = SizedCounting(5)
    before = threading.active_count()
    iterator = iter(AsynchronousLoader(source, device, buffer_size=buffer_size))
    assert (source.iters, source.reads) == (1, 0)
    assert threading.active_count() == before
    assert next(iterator)[1] == 0


def test_a_loader_thrown_away_unused_leaves_its_source_alone(device: str) -> None:
    source = SizedCounting(3)
    for _ in range(100):
        AsynchronousLoader(source, device)
    assert (source.iters, source.reads) == (0, 0)


def test_its_truth_is_that_of_its_length_and_it_is_true_without_one(device: str) -> None:
    assert not AsynchronousLoader([], device)
    assert not AsynchronousLoader([1], device, num_batches=0)
    assert AsynchronousLoader([1], device)
    assert AsynchronousLoader((item for item in ()), device)


def test_a_pass_does_not_touch_the_random_state_of_a_source_that_draws_nothing(
    buffer_size: int, device: str
) -> None:
    states = _random_states()
    assert numbers(AsynchronousLoader(SizedCounting(5), device, buffer_size=buffer_size)) == list(
        range(5)
    )
    assert _random_states() == states
