"""torch's own DataLoader in its many forms, and queues between processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SequentialSampler,
    TensorDataset,
    get_worker_info,
)

from sidestream import AsynchronousLoader
from support.fidelity import Comparison
from support.integration import assert_like_a_plain_loop


class Items(Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((2,), float(index)), "index": index, "name": f"item {index}"}


class Rows(Dataset):
    """Looks up many indices at once."""

    def __getitem__(self, indices: list[int]) -> Any:
        return torch.tensor(indices), [f"item {index}" for index in indices]


class Stream(IterableDataset):
    """Gives each worker its own part."""

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for index in range(first, 10, step):
            yield torch.full((2,), float(index)), index


class Batches(IterableDataset):
    """A pipeline that gives batches already."""

    def __iter__(self) -> Iterator[Any]:
        for index in range(4):
            yield torch.full((3, 2), float(index)), [f"{index}"] * 3


class Backwards(Sampler):
    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[int]:
        return iter(range(9, -1, -1))


def as_list(samples: list[Any]) -> Any:
    return samples


FORMS: dict[str, Any] = {
    "no workers": lambda: DataLoader(Items(), batch_size=3),
    "2 workers": lambda: DataLoader(Items(), batch_size=3, num_workers=2),
    "2 workers, persistent": lambda: DataLoader(
        Items(), batch_size=3, num_workers=2, persistent_workers=True, prefetch_factor=3
    ),
    "no batches": lambda: DataLoader(Items(), batch_size=None),
    "no batches, 2 workers": lambda: DataLoader(Items(), batch_size=None, num_workers=2),
    "stream": lambda: DataLoader(Stream(), batch_size=4),
    "stream, 2 workers": lambda: DataLoader(Stream(), batch_size=2, num_workers=2),
    "stream, last dropped": lambda: DataLoader(Stream(), batch_size=4, drop_last=True),
    "stream of batches": lambda: DataLoader(Batches(), batch_size=None),
    "sampler": lambda: DataLoader(Items(), batch_size=3, sampler=Backwards()),
    "batch sampler": lambda: DataLoader(
        Items(), batch_sampler=BatchSampler(SequentialSampler(Items()), 4, drop_last=True)
    ),
    "batch sampler as sampler": lambda: DataLoader(
        Rows(), batch_size=None, sampler=BatchSampler(Backwards(), 4, drop_last=False)
    ),
    "own collate": lambda: DataLoader(Items(), batch_size=3, collate_fn=as_list),
    "tensors": lambda: DataLoader(TensorDataset(torch.arange(9), torch.ones(9, 2)), batch_size=4),
}


def end(source: Any) -> None:
    """Let the worker processes go that a DataLoader keeps."""
    source._iterator = None


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_what_a_plain_loop_sees(form: str) -> None:
    assert_like_a_plain_loop(FORMS[form], close=end)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shuffling_draws_the_same_order(num_workers: int) -> None:
    def made() -> Any:
        generator = torch.Generator().manual_seed(3)
        return DataLoader(
            Items(), batch_size=3, shuffle=True, num_workers=num_workers, generator=generator
        )

    # Not broken off: near its end the read-ahead lets the sampler draw once more from a generator
    # of its own, which a plain loop that stops there does not.
    assert_like_a_plain_loop(made, passes=3, break_off=False)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shuffling_draws_the_same_order_after_a_break(num_workers: int) -> None:
    def orders(wrap: Any) -> list[Any]:
        torch.manual_seed(3)
        loader = wrap(DataLoader(Items(), batch_size=3, shuffle=True, num_workers=num_workers))
        next(iter(loader))
        return [batch["index"].tolist() for _ in range(2) for batch in loader]

    assert orders(lambda loader: AsynchronousLoader(loader, "cpu")) == orders(
        lambda loader: loader
    )


def test_a_stream_of_batches_is_taken_as_it_is() -> None:
    assert_like_a_plain_loop(Batches)


def test_a_stream_with_loader_arguments_gets_a_loader() -> None:
    got = list(AsynchronousLoader(Stream(), "cpu", batch_size=4))
    want = list(DataLoader(Stream(), batch_size=4))
    Comparison().same(got, want)


def produce(queue: Any, done: Any) -> None:
    for index in range(5):
        queue.put({"x": torch.full((4,), float(index)), "index": index})
    queue.put(None)
    done.wait()  # the tensors lie in memory that this process shares


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_queue_of_torch_multiprocessing(method: str) -> None:
    context = torch.multiprocessing.get_context(method)
    queue, done = context.Queue(), context.Event()
    process = context.Process(target=produce, args=(queue, done), daemon=True)
    process.start()
    try:
        loader = AsynchronousLoader(iter(queue.get, None), "cpu")
        got = list(loader)
    finally:
        done.set()
        process.join(20)
        queue.close()
        queue.join_thread()
    want = [{"x": torch.full((4,), float(index)), "index": index} for index in range(5)]
    Comparison().same(got, want)


def test_a_queue_is_not_read_beyond_the_number_asked_for() -> None:
    given = iter(range(100))
    loader = AsynchronousLoader(given, "cpu", num_batches=3)
    assert list(loader) == [0, 1, 2]
    assert next(given) == 3
