"""A training run that is broken off and resumed, against a plain loop that is not."""

from __future__ import annotations

import contextlib
import io
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from sidestream import AsynchronousLoader

LENGTH = 5
"""Batches of a pass, of all sources here [batches]."""
EPOCHS = 3
SAMPLES = 2 * LENGTH


# ---- runs

Seen = list[list[Any]]


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def program() -> dict[str, Any]:
    """The program's own random numbers, as a checkpoint holds them."""
    name, keys, *rest = numpy.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
    }


def restore_program(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    numpy.random.set_state(state["numpy"])


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def step(batch: Any, draws: bool) -> Any:
    """One step of training: what was seen, and what the step itself drew."""
    drawn = [torch.rand(1).item(), random.random(), numpy.random.rand()] if draws else []
    return [readable(batch), drawn]


def readable(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, (list, tuple)):
        return [readable(one) for one in batch]
    return batch


def plain_run(make: Callable[[], Any], draws: bool, *, epochs: int = EPOCHS) -> Seen:
    """What a plain loop sees, pass by pass."""
    seed(0)
    source = make()
    seen = []
    for epoch in range(epochs):
        set_epoch(source, epoch)
        seen.append([step(batch, draws) for batch in source])
    end(source)
    return seen


def broken_run(
    make: Callable[[], Any],
    draws: bool,
    epoch: int,
    count: int,
    *,
    epochs: int = EPOCHS,
    remake: Callable[[], Any] | None = None,
) -> Seen:
    """What a run sees that ends after so many batches of a pass, and what the one after it sees.

    Args:
        count: LENGTH + 1 for after the end was seen.
        remake: Makes the source of the second run, where that is another.
    """
    seed(0)
    source = make()
    loader = AsynchronousLoader(source, "cpu")
    seen: Seen = []
    for number in range(epoch):
        set_epoch(loader, number)
        seen.append([step(batch, draws) for batch in loader])
    set_epoch(loader, epoch)
    iterator = iter(loader)
    seen.append([step(batch, draws) for batch in itertools.islice(iterator, count)])
    checkpoint = through_a_file({"loader": loader.state_dict(), "program": program()})
    loader.close()
    end(source)

    seed(99)
    source = (remake or make)()
    loader = AsynchronousLoader(source, "cpu")
    loader.load_state_dict(checkpoint["loader"])
    restore_program(checkpoint["program"])
    if count <= LENGTH:
        set_epoch(loader, epoch)
        seen[-1] += [step(batch, draws) for batch in loader]
    for number in range(epoch + 1, epochs):
        set_epoch(loader, number)
        seen.append([step(batch, draws) for batch in loader])
    end(source)
    return seen


def set_epoch(source: Any, epoch: int) -> None:
    with contextlib.suppress(AttributeError):
        (source if hasattr(source, "set_epoch") else source.sampler).set_epoch(epoch)


def end(source: Any) -> None:
    """End the worker processes that a DataLoader keeps."""
    if isinstance(getattr(source, "data", None), DataLoader):
        source = source.data
    if isinstance(source, DataLoader):
        source._iterator = None


# ---- datasets and samplers


class Items:
    """Samples that are their index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index)])


class Augmented(Items):
    """Each sample draws from one of the global generators."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), DRAWS[self.kind]()], dtype=torch.float64)


DRAWS: dict[str, Callable[[], float]] = {
    "torch": lambda: torch.rand(1).item(),
    "python": random.random,
    "numpy": lambda: float(numpy.random.rand()),
}


class OwnGenerator(Items):
    """Each sample draws from the dataset's generator."""

    def __init__(self) -> None:
        self.numbers = torch.Generator().manual_seed(3)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), torch.rand(1, generator=self.numbers).item()])


class Stream(IterableDataset):
    """Samples in order, shared out among worker processes."""

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        workers, number = (info.num_workers, info.id) if info else (1, 0)
        for index in range(SAMPLES):
            if index // 2 % workers == number:
                yield torch.tensor([float(index)])


class AugmentedStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            yield torch.cat([sample, torch.rand(1)])


class Resumable(IterableDataset):
    """A stream with the two state methods: its state is live, and goes on with the read-ahead."""

    def __init__(self) -> None:
        self.state = {"next": 0, "finished": True}
        self.resumes = False

    def __iter__(self) -> Iterator[Any]:
        if not self.resumes or self.state["finished"]:
            self.state.update(next=0, finished=False)
        self.resumes = False
        while self.state["next"] < SAMPLES:
            self.state["next"] += 1
            yield torch.tensor([self.state["next"] - 1.0])
        self.state["finished"] = True

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state, self.resumes = state, True


class Permuted(Sampler):
    """Draws its order at the beginning of a pass, as most samplers do."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[int]:
        if self.kind == "numpy":
            return iter(numpy.random.permutation(SAMPLES).tolist())
        order = list(range(SAMPLES))
        random.shuffle(order)
        return iter(order)


class DrawnOneByOne(Permuted):
    """Draws each index when it is asked for."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(SAMPLES):
            yield int(DRAWS[self.kind]() * SAMPLES)


class Pairs(Sampler):
    """A batch sampler of one's own."""

    def __init__(self, generator: torch.Generator) -> None:
        self.source = generator

    def __len__(self) -> int:
        return LENGTH

    def __iter__(self) -> Iterator[list[int]]:
        for start in torch.randperm(LENGTH, generator=self.source).tolist():
            yield [2 * start, 2 * start + 1]


def loading(dataset: Any = None, **options: Any) -> Any:
    return DataLoader(dataset if dataset is not None else Items(), batch_size=2, **options)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


class Batches(Iterable[Any]):
    """An iterable of batches that is no DataLoader."""

    def __iter__(self) -> Iterator[Any]:
        return (torch.full((2,), float(number)) for number in range(LENGTH))
