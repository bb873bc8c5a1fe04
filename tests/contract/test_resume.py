"""G10: a resumed run is the unbroken one; G8: and both have the random numbers of a plain loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, WeightedRandomSampler

from sidestream import AsynchronousLoader
from support.resuming import (
    LENGTH,
    SAMPLES,
    Augmented,
    AugmentedStream,
    Batches,
    DrawnOneByOne,
    Items,
    OwnGenerator,
    Pairs,
    Permuted,
    Resumable,
    Stream,
    broken_run,
    generator,
    loading,
    plain_run,
)

QUIET: dict[str, Callable[[], Any]] = {
    # These draw at the beginning of a pass only, or from a generator of their own.
    "list": lambda: list(Batches()),
    "iterable": Batches,
    "in order": loading,
    "shuffled": lambda: loading(shuffle=True),
    "shuffled by a generator": lambda: loading(shuffle=True, generator=generator()),
    "with a generator, in order": lambda: loading(generator=generator()),
    "with replacement": lambda: loading(
        sampler=RandomSampler(Items(), True, SAMPLES, generator=generator())
    ),
    "weighted": lambda: loading(sampler=WeightedRandomSampler(torch.linspace(1, 3, SAMPLES), SAMPLES)),
    "permuted by numpy": lambda: loading(sampler=Permuted("numpy")),
    "permuted by python": lambda: loading(sampler=Permuted("python")),
    "a batch sampler": lambda: DataLoader(Items(), batch_sampler=Pairs(generator())),
    "samples as batches": lambda: DataLoader(
        list(Batches()), batch_size=None, shuffle=True, generator=generator()
    ),
    "distributed": lambda: loading(
        sampler=DistributedSampler([0] * 2 * SAMPLES, num_replicas=2, rank=1, seed=3)
    ),
    "stream": lambda: loading(Stream()),
    "stream with state": lambda: loading(Resumable()),
    "nested": lambda: AsynchronousLoader(loading(shuffle=True), "cpu"),
    "nested, with state": lambda: AsynchronousLoader(loading(Resumable()), "cpu"),
    "dataset's own generator": lambda: loading(OwnGenerator(), shuffle=True),
}
DRAWING: dict[str, Callable[[], Any]] = {
    # These draw from the global generators as they go on, in this process.
    "drawn one by one, numpy": lambda: loading(sampler=DrawnOneByOne("numpy")),
    "drawn one by one, python": lambda: loading(sampler=DrawnOneByOne("python")),
    "augmented by torch": lambda: loading(Augmented("torch"), shuffle=True),
    "augmented by python": lambda: loading(Augmented("python"), shuffle=True),
    "augmented by numpy": lambda: loading(
        Augmented("numpy"), shuffle=True, generator=generator()
    ),
    "both": lambda: loading(Augmented("python"), sampler=DrawnOneByOne("python")),
    "augmented stream": lambda: loading(AugmentedStream()),
}
PLACES = [(0, 0), (0, 1), (0, LENGTH - 1), (0, LENGTH), (0, LENGTH + 1), (1, 2), (1, LENGTH + 1)]


@pytest.mark.parametrize("draws", [False, True], ids=["", "the loop draws"])
@pytest.mark.parametrize("name", QUIET)
def test_a_resumed_run_is_the_unbroken_one(name: str, draws: bool) -> None:
    unbroken = plain_run(QUIET[name], draws)
    for epoch, count in PLACES:
        assert broken_run(QUIET[name], draws, epoch, count) == unbroken, (epoch, count)


@pytest.mark.parametrize("name", DRAWING)
def test_what_a_source_draws_as_it_goes_on_is_drawn_again(name: str) -> None:
    unbroken = plain_run(DRAWING[name], draws=False)
    for epoch, count in PLACES:
        assert broken_run(DRAWING[name], False, epoch, count) == unbroken, (epoch, count)


def with_workers(dataset: Any = None, **options: Any) -> Any:
    return loading(dataset, num_workers=2, **options)


def worker_init(worker_id: int) -> None:
    torch.manual_seed(torch.initial_seed() + 17)


WORKERS: dict[str, Callable[[], Any]] = {
    "in order": with_workers,
    "shuffled": lambda: with_workers(shuffle=True),
    "shuffled by a generator": lambda: with_workers(shuffle=True, generator=generator()),
    "persistent": lambda: with_workers(shuffle=True, persistent_workers=True),
    "persistent, by a generator": lambda: with_workers(
        shuffle=True, generator=generator(), persistent_workers=True
    ),
    "stream": lambda: with_workers(Stream()),
    "persistent stream": lambda: with_workers(Stream(), persistent_workers=True),
    "drawn one by one": lambda: with_workers(sampler=DrawnOneByOne("numpy")),
    "augmented by torch": lambda: with_workers(Augmented("torch"), shuffle=True),
    "augmented by python": lambda: with_workers(Augmented("python"), shuffle=True),
    "augmented by numpy": lambda: with_workers(Augmented("numpy"), shuffle=True),
    "seeded by the user": lambda: with_workers(Augmented("torch"), worker_init_fn=worker_init),
    "dataset's own generator": lambda: with_workers(OwnGenerator(), shuffle=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", [(0, 0), (0, 3), (1, 2), (0, LENGTH + 1)], ids=str)
@pytest.mark.parametrize("name", WORKERS)
def test_a_resumed_run_with_workers(name: str, place: tuple[int, int]) -> None:
    draws = name != "drawn one by one"
    unbroken = plain_run(WORKERS[name], draws)
    assert broken_run(WORKERS[name], draws, *place) == unbroken
