"""G8: with a seed, the loader and the training loop draw what they draw with a plain loop."""

from __future__ import annotations

from typing import Any

import pytest

from sidestream import AsynchronousLoader
from support.resuming import (
    EPOCHS,
    Augmented,
    DrawnOneByOne,
    OwnGenerator,
    Permuted,
    end,
    generator,
    loading,
    plain_run,
    program,
    seed,
    step,
)

RUNS = 150

SHUFFLED = {
    "shuffled": lambda workers: loading(shuffle=True, num_workers=workers),
    "by a generator": lambda workers: loading(
        shuffle=True, num_workers=workers, generator=generator()
    ),
    "permuted by numpy": lambda workers: loading(sampler=Permuted("numpy"), num_workers=workers),
    "own generator": lambda workers: loading(OwnGenerator(), shuffle=True, num_workers=workers),
}
IN_WORKERS = {
    **SHUFFLED,
    "augmented": lambda workers: loading(Augmented("numpy"), shuffle=True, num_workers=workers),
    "persistent": lambda workers: loading(
        Augmented("torch"), shuffle=True, num_workers=workers, persistent_workers=True
    ),
    "persistent, by a generator": lambda workers: loading(
        shuffle=True, num_workers=workers, persistent_workers=True, generator=generator()
    ),
}


def passes(make: Any, workers: int, buffer_size: int) -> tuple[Any, Any]:
    seed(0)
    source = make(workers)
    loader = AsynchronousLoader(source, "cpu", buffer_size=buffer_size)
    seen = [[step(batch, draws=True) for batch in loader] for _ in range(EPOCHS)]
    end(source)
    return seen, program()["torch"].tolist()


@pytest.mark.parametrize("name", SHUFFLED)
def test_the_same_numbers_as_a_plain_loop_in_every_run(name: str) -> None:
    wanted = plain_run(lambda: SHUFFLED[name](0), draws=True), program()["torch"].tolist()
    runs = RUNS if name == "shuffled" else 10
    assert sum(passes(SHUFFLED[name], 0, 2) == wanted for _ in range(runs)) == runs


@pytest.mark.parametrize("name", IN_WORKERS)
def test_the_same_numbers_with_worker_processes(name: str, buffer_size: int) -> None:
    wanted = plain_run(lambda: IN_WORKERS[name](2), draws=True), program()["torch"].tolist()
    assert passes(IN_WORKERS[name], 2, buffer_size) == wanted


@pytest.mark.parametrize("source", [Augmented("torch"), Augmented("python")])
def test_a_dataset_that_draws_while_the_loop_does_not(source: Any, buffer_size: int) -> None:
    def make() -> Any:
        return loading(source, shuffle=True)

    seed(0)
    loader = AsynchronousLoader(make(), "cpu", buffer_size=buffer_size)
    assert [step(batch, False) for batch in loader] == plain_run(make, False, epochs=1)[0]


def test_without_a_thread_nothing_is_left_out() -> None:
    """What a thread cannot keep: draws of the dataset between those of the loop."""
    for make in (
        lambda _: loading(Augmented("torch"), shuffle=True),
        lambda _: loading(sampler=DrawnOneByOne("numpy")),
    ):
        wanted = plain_run(lambda make=make: make(0), draws=True)
        assert passes(make, 0, 0)[0] == wanted
