"""ThreadDataLoader is DataLoader with threads: what its documentation says, side by side.

Each case is run with both, from the same seed: with DataLoader's worker processes, and where its
workers do not show in the result, also with none.
"""

from __future__ import annotations

import collections
import copy
import gc
import itertools
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from sidestream import ThreadDataLoader
from support.fidelity import Comparison
from support.waiting import LIMIT_S, Worker, wait_until

Point = collections.namedtuple("Point", "x y")


class Numbers(Dataset):
    """Sample k is a tensor of k, and k."""

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return torch.full((2, 3), float(index)), index


class Large(Numbers):
    """Large enough to be written row by row, into memory that is used again."""

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.full((64, 128), float(index)), "a": np.full((9000,), index), "k": index}


class AtOnce(Numbers):
    """Gives a batch's samples in one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(torch.tensor([float(index)] * 5), len(indices)) for index in indices]


class Keyed(Dataset):
    """Has strings for indices."""

    def __getitem__(self, key: str) -> Any:
        return {"key": key, "value": torch.tensor(ord(key))}


class Of(Dataset):
    """What it is given."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Stream(IterableDataset):
    """Each worker has every num_workers-th number, as in torch's documentation."""

    def __init__(self, length: int = 10, size: int = 2) -> None:
        self.length, self.size = length, size

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (torch.full((self.size,), k) for k in range(first, self.length, step))


class Sized(Stream):
    def __len__(self) -> int:
        return self.length


class Range(IterableDataset):
    """Its workers' parts are set in `worker_init_fn`, as in torch's documentation."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def part_of_range(worker_id: int) -> None:
    info = get_worker_info()
    dataset, size = info.dataset, 5
    dataset.start = worker_id * size
    dataset.end = dataset.start + size


def shuffled(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Eager:
    """A sampler that draws at `iter`, and not at `next`."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(10).tolist())

    def __len__(self) -> int:
        return 10


class Bucketed:
    """A batch sampler with batches of several lengths."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[3, 1, 4], [1], [5, 9, 2, 6]])

    def __len__(self) -> int:
        return 3


def joined(samples: list[Any]) -> Any:
    return torch.cat([x for x, _ in samples]), [k for _, k in samples]


def whoami(samples: list[Any]) -> Any:
    info = get_worker_info()
    return info.id, info.num_workers, info.seed - info.id, len(samples)


# name: (dataset, arguments, whether a DataLoader without workers gives the same)
CASES: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]], bool]] = {
    # -- batches
    "the defaults": (Numbers, dict, True),
    "batch_size": (Numbers, lambda: {"batch_size": 3}, True),
    "batch_size beyond the length": (Numbers, lambda: {"batch_size": 30}, True),
    "drop_last": (Numbers, lambda: {"batch_size": 3, "drop_last": True}, True),
    "drop_last of an even number": (Numbers, lambda: {"batch_size": 5, "drop_last": True}, True),
    "drop_last leaves nothing": (Numbers, lambda: {"batch_size": 30, "drop_last": True}, True),
    "nothing": (lambda: Numbers(0), lambda: {"batch_size": 3}, True),
    "batch_size None": (Numbers, lambda: {"batch_size": None}, True),
    "batch_size None converts arrays": (
        lambda: Of([{"a": np.arange(3), "s": "x"}] * 4),
        lambda: {"batch_size": None},
        True,
    ),
    "batch_size None with a collate_fn": (
        Numbers,
        lambda: {"batch_size": None, "collate_fn": list},
        True,
    ),
    "large samples": (Large, lambda: {"batch_size": 4}, True),
    "large samples, shuffled": (Large, lambda: {"batch_size": 4, "shuffle": True}, True),
    "one large sample": (Large, lambda: {"batch_size": 1}, True),
    "__getitems__": (AtOnce, lambda: {"batch_size": 4}, True),
    "__getitems__ without batches": (AtOnce, lambda: {"batch_size": None}, True),
    # -- samplers
    "shuffle": (Numbers, lambda: {"batch_size": 3, "shuffle": True}, True),
    "shuffle=False": (Numbers, lambda: {"batch_size": 3, "shuffle": False}, True),
    "shuffle with a generator": (
        Numbers,
        lambda: {"shuffle": True, "generator": shuffled(5)},
        True,
    ),
    "RandomSampler": (Numbers, lambda: {"sampler": RandomSampler(Numbers())}, True),
    "RandomSampler, replacement": (
        Numbers,
        lambda: {"sampler": RandomSampler(Numbers(), replacement=True, num_samples=17)},
        True,
    ),
    "RandomSampler, its own generator": (
        Numbers,
        lambda: {"sampler": RandomSampler(Numbers(), generator=shuffled(3)), "batch_size": 4},
        True,
    ),
    "SubsetRandomSampler": (Numbers, lambda: {"sampler": SubsetRandomSampler([7, 1, 3])}, True),
    "WeightedRandomSampler": (
        Numbers,
        lambda: {"sampler": WeightedRandomSampler([0.1] * 9 + [5.0], 20), "batch_size": 6},
        True,
    ),
    "DistributedSampler": (
        Numbers,
        lambda: {"sampler": DistributedSampler(Numbers(), num_replicas=3, rank=1, shuffle=True)},
        True,
    ),
    "a list for a sampler": (Numbers, lambda: {"sampler": [4, 4, 0], "batch_size": 2}, True),
    "a sampler that draws at iter": (Numbers, lambda: {"sampler": Eager()}, False),
    "keys that are no numbers": (Keyed, lambda: {"sampler": "sampler", "batch_size": 3}, True),
    "batch_sampler": (
        Numbers,
        lambda: {"batch_sampler": BatchSampler(RandomSampler(Numbers()), 4, drop_last=True)},
        True,
    ),
    "batch_sampler of several lengths": (Large, lambda: {"batch_sampler": Bucketed()}, True),
    "sampler with batch_size None": (
        lambda: TensorDataset(torch.arange(5)),
        lambda: {"sampler": BatchSampler([1, 2, 3], 2, False), "batch_size": None},
        True,
    ),
    # -- datasets
    "TensorDataset": (
        lambda: TensorDataset(torch.arange(20).view(10, 2), torch.arange(10)),
        lambda: {"batch_size": 4},
        True,
    ),
    "Subset": (lambda: Subset(Numbers(), [8, 2, 5]), lambda: {"batch_size": 2}, True),
    "ConcatDataset": (
        lambda: ConcatDataset([Numbers(3), Numbers(4)]),
        lambda: {"batch_size": 2},
        True,
    ),
    "StackDataset": (
        lambda: StackDataset(a=Numbers(6), b=Numbers(6)),
        lambda: {"batch_size": 4},
        True,
    ),
    "a list": (lambda: [1, 2, 3, 4, 5], lambda: {"batch_size": 2}, True),
    "a tensor": (lambda: torch.arange(12).view(6, 2), lambda: {"batch_size": 4}, True),
    "an array": (lambda: np.arange(12).reshape(6, 2), lambda: {"batch_size": 4}, True),
    "strings": (lambda: Of(list("abcde")), lambda: {"batch_size": 2}, True),
    "bytes": (lambda: Of([b"a", b"bc"]), lambda: {"batch_size": 2}, True),
    "floats": (lambda: Of([0.1, 0.2, 0.3]), lambda: {"batch_size": 2}, True),
    "bools": (lambda: Of([True, False, True]), lambda: {"batch_size": 3}, True),
    "numbers of numpy": (
        lambda: Of([np.float32(1), np.float32(2)]),
        lambda: {"batch_size": 2},
        True,
    ),
    "named tuples": (lambda: Of([Point(1, 2), Point(3, 4)]), lambda: {"batch_size": 2}, True),
    "ordered dicts": (
        lambda: Of([collections.OrderedDict(b=1, a=torch.ones(2))] * 4),
        lambda: {"batch_size": 2},
        True,
    ),
    "nested": (
        lambda: Of([{"a": [1, (torch.ones(3), "x")], "b": Point(0.5, np.ones(2))}] * 5),
        lambda: {"batch_size": 2},
        True,
    ),
    # -- iterable datasets
    "a stream": (Stream, lambda: {"batch_size": 2}, False),
    "a stream, last dropped": (Stream, lambda: {"batch_size": 3, "drop_last": True}, False),
    "a stream without batches": (Stream, lambda: {"batch_size": None}, False),
    "a stream of large samples": (lambda: Stream(11, 30000), lambda: {"batch_size": 3}, False),
    "a stream that ends at once": (lambda: Stream(0), lambda: {"batch_size": 2}, True),
    "a stream for one of two workers": (lambda: Stream(1), lambda: {"batch_size": 2}, True),
    "a stream with a length": (Sized, lambda: {"batch_size": 5}, False),
    "parts set in worker_init_fn": (
        lambda: Range(0, 99),
        lambda: {"batch_size": 2, "worker_init_fn": part_of_range},
        False,
    ),
    # -- workers
    "collate_fn": (Numbers, lambda: {"batch_size": 4, "collate_fn": joined}, True),
    "who makes what": (Numbers, lambda: {"batch_size": 2, "collate_fn": whoami}, False),
    "prefetch_factor": (Numbers, lambda: {"batch_size": 2, "prefetch_factor": 1}, False),
    "a high prefetch_factor": (Numbers, lambda: {"prefetch_factor": 20}, False),
    "a timeout": (Numbers, lambda: {"batch_size": 2, "timeout": LIMIT_S}, False),
    "persistent_workers": (
        Numbers,
        lambda: {"batch_size": 3, "shuffle": True, "persistent_workers": True},
        False,
    ),
    "persistent_workers on a stream": (
        Stream,
        lambda: {"batch_size": 3, "persistent_workers": True},
        False,
    ),
}


def passes(make: Callable[[], Any], count: int = 2) -> Any:
    """What so many passes give from one seed on, and where they leave the random numbers."""
    torch.manual_seed(11)
    loader = make()
    seen = [list(loader) for _ in range(count)]
    return seen, torch.get_rng_state()


@pytest.mark.parametrize(
    ("name", "workers"),
    [(name, n) for name, case in CASES.items() for n in ((1, 2, 3) if case[2] else (1, 2))],
)
def test_like_worker_processes_or_none(name: str, workers: int) -> None:
    dataset, options, like_none = CASES[name]
    got = passes(lambda: ThreadDataLoader(dataset(), num_workers=workers, **options()))
    if like_none:
        want = passes(lambda: DataLoader(dataset(), **options()))
    else:
        want = passes(lambda: DataLoader(dataset(), num_workers=workers, **options()))
    Comparison().same(got, want)


@pytest.mark.parametrize("name", ["the defaults", "large samples", "shuffle", "nested"])
def test_also_where_none_would_do(name: str) -> None:
    """The cases above that are held against a DataLoader without workers hold for one with."""
    dataset, options, _ = CASES[name]
    got = passes(lambda: ThreadDataLoader(dataset(), num_workers=2, **options()))
    want = passes(lambda: DataLoader(dataset(), num_workers=2, **options()))
    Comparison().same(got, want)


def test_without_workers_it_is_a_dataloader() -> None:
    got = passes(lambda: ThreadDataLoader(Numbers(), batch_size=3, shuffle=True))
    Comparison().same(got, passes(lambda: DataLoader(Numbers(), batch_size=3, shuffle=True)))


@pytest.mark.parametrize("name", ["a stream with a length", "batch_size", "drop_last"])
def test_lengths(name: str) -> None:
    dataset, options, _ = CASES[name]
    want = DataLoader(dataset(), **options())
    got = ThreadDataLoader(dataset(), num_workers=2, **options())
    assert len(got) == len(want)


def test_a_stream_longer_than_it_says_is_warned_of() -> None:
    class Longer(Sized):
        def __len__(self) -> int:
            return 3

    loader = ThreadDataLoader(Longer(8), num_workers=2, batch_size=None)
    assert len(loader) == 3
    with pytest.warns(UserWarning, match="was reported to be 3"):
        assert len(list(loader)) == 8


def test_it_is_a_dataloader() -> None:
    loader = ThreadDataLoader(Numbers(), batch_size=3, num_workers=2)
    assert isinstance(loader, DataLoader)
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (3, 2, 2)
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 4


# ---- arguments


REFUSED_BY_BOTH = {
    "num_workers": {"num_workers": -1},
    "timeout": {"timeout": -1},
    "prefetch_factor without workers": {"prefetch_factor": 2},
    "prefetch_factor": {"num_workers": 1, "prefetch_factor": -1},
    "persistent_workers": {"persistent_workers": True},
    "sampler and shuffle": {"sampler": [1], "shuffle": True},
    "batch_sampler and batch_size": {"batch_sampler": [[1]], "batch_size": 2},
    "batch_size None and drop_last": {"batch_size": None, "drop_last": True},
    "batch_size 0": {"batch_size": 0},
}


@pytest.mark.parametrize("name", REFUSED_BY_BOTH)
def test_refused_as_dataloader_refuses_it(name: str) -> None:
    messages = []
    for kind in (DataLoader, ThreadDataLoader):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the messages are compared
            kind(Numbers(), **REFUSED_BY_BOTH[name])
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("option", [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}])
def test_samplers_are_refused_for_streams(option: dict[str, Any]) -> None:
    for kind in (DataLoader, ThreadDataLoader):
        with pytest.raises(ValueError, match="with IterableDataset"):
            kind(Stream(), **option)


def test_what_makes_no_sense_for_threads_is_refused() -> None:
    with pytest.raises(ValueError, match=r"multiprocessing_context is 'fork'.*leave it out"):
        ThreadDataLoader(Numbers(), num_workers=1, multiprocessing_context="fork")


@pytest.mark.filterwarnings("ignore:.*DataPipe")
def test_datapipes_are_refused() -> None:
    from torch.utils.data.datapipes.iter import IterableWrapper

    with pytest.raises(ValueError, match=r"dataset is a IterableWrapper.*use a DataLoader"):
        ThreadDataLoader(IterableWrapper([1]), num_workers=1)


def test_more_threads_than_processors_are_nothing_to_warn_of() -> None:
    assert len(list(ThreadDataLoader(Numbers(), num_workers=70))) == 10


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_pin_memory_without_an_accelerator_warns_as_dataloader_does() -> None:
    said = []
    for kind in (DataLoader, ThreadDataLoader):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert len(list(kind(Numbers(), num_workers=1, pin_memory=True))) == 10
        # Not of fork, which only the one with processes is warned of.
        said.append([str(each.message) for each in caught if each.category is UserWarning])
    assert said[0] == said[1]  # nothing, in torch 2.6


# ---- workers


def test_a_worker_knows_itself_and_the_others() -> None:
    seen: dict[int, Any] = {}

    def init(worker_id: int) -> None:
        seen[worker_id] = (get_worker_info(), threading.current_thread())

    dataset = Numbers()
    torch.manual_seed(4)
    list(ThreadDataLoader(dataset, num_workers=3, worker_init_fn=init))
    torch.manual_seed(4)
    base_seed = torch.empty((), dtype=torch.int64).random_().item()
    assert sorted(seen) == [0, 1, 2]
    for number, (info, thread) in seen.items():
        assert (info.id, info.num_workers, info.seed) == (number, 3, base_seed + number)
        assert info.dataset is dataset
        assert thread is not threading.main_thread()
        assert not thread.is_alive()
    assert get_worker_info() is None


def test_the_worker_info_of_a_process_is_still_its_own() -> None:
    list(ThreadDataLoader(Numbers(), num_workers=1))  # puts itself in the way
    ids = [batch[0] for batch in DataLoader(Numbers(4), num_workers=2, collate_fn=whoami)]
    assert ids == [0, 1, 0, 1]


def test_a_batch_that_a_thread_collates_is_not_in_shared_memory() -> None:
    def collate(samples: Any) -> Any:
        assert get_worker_info().id == 0
        return torch.utils.data.default_collate(samples)

    for options in ({}, {"collate_fn": collate}):
        loader = ThreadDataLoader(Numbers(), num_workers=1, **options)
        assert not any(x.is_shared() for x, _ in loader)


def test_samples_of_several_batches_are_made_at_once() -> None:
    both = threading.Barrier(2)

    class Meeting(Numbers):
        def __getitem__(self, index: int) -> Any:
            both.wait(LIMIT_S)
            return index

    assert [x.item() for x in ThreadDataLoader(Meeting(4), num_workers=2)] == [0, 1, 2, 3]


def test_a_batch_is_ready_before_one_that_comes_sooner() -> None:
    gate, passed = threading.Event(), []

    class Slow(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 0:
                assert gate.wait(LIMIT_S)
            passed.append(index)
            return index

    ordered = iter(ThreadDataLoader(Slow(4), num_workers=2))
    wait_until(lambda: passed == [1, 3], "worker 1 has made its batches")
    gate.set()
    assert [x.item() for x in ordered] == [0, 1, 2, 3]
    gate.clear()
    unordered = iter(ThreadDataLoader(Slow(4), num_workers=2, in_order=False))
    first = [next(unordered).item(), next(unordered).item()]
    gate.set()
    assert sorted(first + [x.item() for x in unordered]) == [0, 1, 2, 3]
    assert first == [1, 3]


def test_no_more_is_read_ahead_than_asked_for() -> None:
    read = []

    class Noting(Numbers):
        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return index

    asked = iter(range(100))
    iterator = iter(ThreadDataLoader(Noting(100), sampler=asked, num_workers=2, prefetch_factor=3))
    assert next(asked) == 6
    next(iterator)
    assert next(asked) == 8  # one more was asked for
    del iterator
    assert max(read) <= 6


def test_the_thread_state_is_that_of_iter() -> None:
    def collate(samples: Any) -> Any:
        return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    with torch.no_grad(), torch.autocast("cpu"):
        seen = list(ThreadDataLoader([1, 2], num_workers=1, collate_fn=collate))
    assert seen == [(False, True)] * 2


# ---- random numbers


class Drawing(Numbers):
    """Draws from the worker's own generators."""

    def __getitem__(self, index: int) -> Any:
        rng = get_worker_info().rng
        return (
            torch.rand(2, generator=rng.torch_generator),
            rng.random_generator.random(),
            rng.numpy_generator.random(),
        )


class DrawingGlobally(Numbers):
    def __getitem__(self, index: int) -> Any:
        import random

        return torch.rand(2), random.random()


def test_each_worker_has_random_numbers_as_its_process_would() -> None:
    torch.manual_seed(8)
    got = list(ThreadDataLoader(Drawing(), num_workers=2, batch_size=2))
    torch.manual_seed(8)
    want = list(DataLoader(DrawingGlobally(), num_workers=2, batch_size=2))
    Comparison().same([(x, y) for x, y, _ in got], [(x, y) for x, y in want])
    torch.manual_seed(8)
    again = list(ThreadDataLoader(Drawing(), num_workers=2, batch_size=2))
    Comparison().same(again, got)
    assert len({batch[2][0].item() for batch in got}) == 5


def test_draws_from_what_all_threads_share_are_warned_of_once() -> None:
    loader = ThreadDataLoader(DrawingGlobally(), num_workers=1)
    with pytest.warns(RuntimeWarning, match="global generator of random and torch") as caught:
        assert len(list(loader)) == 10
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert len(list(loader)) == 10


def test_a_program_that_draws_beside_is_not_warned() -> None:
    class Waiting(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 1:
                torch.rand(1)
            return index

    assert len(list(ThreadDataLoader(Waiting(), num_workers=1))) == 10


# ---- copies of the dataset


class Cursor(Numbers):
    """A dataset with one file position: not for two threads."""

    def __init__(self) -> None:
        super().__init__()
        self.position = 0
        self.met = threading.Barrier(2)

    def __deepcopy__(self, memo: Any) -> Cursor:
        twin = Cursor()
        twin.met = self.met
        return twin

    def __getitem__(self, index: int) -> int:
        self.position = index
        self.met.wait(LIMIT_S)  # the other thread moves its position, too
        return self.position


def test_a_copy_for_each_thread() -> None:
    got = [x.item() for x in ThreadDataLoader(Cursor(), num_workers=2, copy_dataset=True)]
    assert got == list(range(10))


def test_the_attributes_of_a_stream_are_each_worker_s_own() -> None:
    both = threading.Barrier(2)

    def init(worker_id: int) -> None:
        part_of_range(worker_id)
        both.wait(LIMIT_S)  # neither begins before both have set theirs

    dataset = Range(0, 99)
    got = list(ThreadDataLoader(dataset, num_workers=2, batch_size=5, worker_init_fn=init))
    assert [batch.tolist() for batch in got] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert (dataset.start, dataset.end) == (0, 99)


def test_one_dataset_for_all_threads() -> None:
    seen = set()

    def init(worker_id: int) -> None:
        seen.add(id(get_worker_info().dataset))

    dataset = Numbers()
    list(ThreadDataLoader(dataset, num_workers=3, worker_init_fn=init))
    assert seen == {id(dataset)}


# ---- errors


class Failing(Numbers):
    def __init__(self, error: BaseException, at: int, length: int = 6) -> None:
        super().__init__(length)
        self.error, self.at = error, at

    def __getitem__(self, index: int) -> Any:
        if index == self.at:
            raise self.error  # the failing line of the dataset
        return index


@pytest.mark.parametrize("kind", [ValueError, KeyError, OSError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("at", [0, 3, 5])
def test_an_error_comes_as_itself_at_its_batch_and_the_rest_after_it(kind: Any, at: int) -> None:
    error = kind("no")
    iterator = iter(ThreadDataLoader(Failing(error, at), num_workers=2))
    assert [next(iterator).item() for _ in range(at)] == list(range(at))
    with pytest.raises(kind) as caught:
        next(iterator)
    assert caught.value is error
    assert "the failing line" in str(caught.traceback[-1].statement)
    assert f"raised in worker thread {at % 2}, making batch {at}" in error.__notes__
    assert [x.item() for x in iterator] == list(range(at + 1, 6))


def test_where_dataloader_gives_a_copy_of_the_error() -> None:
    """Listed as different: a process can only send a message."""
    with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 0"):
        list(DataLoader(Failing(ValueError("no"), 0), num_workers=1))


def test_stop_iteration_in_a_dataset_is_an_error_and_not_the_end() -> None:
    """Listed as different: DataLoader's loop ends as if the data had."""
    assert len(list(DataLoader(Failing(StopIteration(), 3)))) == 3
    with pytest.raises(RuntimeError, match="StopIteration was raised by the dataset") as caught:
        list(ThreadDataLoader(Failing(StopIteration(), 3), num_workers=1))
    assert isinstance(caught.value.__cause__, StopIteration)


def test_an_error_in_worker_init_fn() -> None:
    def init(worker_id: int) -> None:
        raise ValueError(f"not {worker_id}")

    iterator = iter(ThreadDataLoader(Numbers(4), num_workers=2, worker_init_fn=init))
    for worker in (0, 1):
        with pytest.raises(ValueError, match=f"not {worker}") as caught:
            next(iterator)
        assert f"raised in worker thread {worker}, in worker_init_fn" in caught.value.__notes__
    for worker in (0, 1):
        with pytest.raises(RuntimeError, match=f"worker thread {worker} makes no batch"):
            next(iterator)
    assert list(iterator) == []


def test_an_error_in_the_iter_of_a_stream() -> None:
    class Unopened(Stream):
        def __iter__(self) -> Any:
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(ThreadDataLoader(Unopened(), num_workers=2))


def test_an_error_in_a_sampler_comes_from_where_it_is_asked() -> None:
    def indices() -> Iterator[int]:
        yield from range(5)
        raise ValueError("no more")

    iterator = iter(ThreadDataLoader(Numbers(), sampler=indices(), num_workers=2))
    with pytest.raises(ValueError, match="no more"):
        list(iterator)


def test_an_error_in_collate_fn() -> None:
    def collate(samples: Any) -> Any:
        raise ZeroDivisionError("collating")

    with pytest.raises(ZeroDivisionError, match="collating") as caught:
        list(ThreadDataLoader(Numbers(), num_workers=1, collate_fn=collate))
    assert caught.traceback[-1].name == "collate"


def test_a_timeout_names_the_batch_and_the_next_call_waits_again() -> None:
    gate = threading.Event()

    class Stuck(Numbers):
        def __getitem__(self, index: int) -> Any:
            assert gate.wait(LIMIT_S)
            return index

    iterator = iter(ThreadDataLoader(Stuck(2), num_workers=1, timeout=0.01))
    with pytest.raises(RuntimeError, match=r"timed out after 0.01 seconds, waiting for batch 0"):
        next(iterator)
    gate.set()
    assert [x.item() for x in _patient(iterator)] == [0, 1]


def _patient(iterator: Any) -> Iterator[Any]:
    while True:
        try:
            yield next(iterator)
        except StopIteration:
            return
        except RuntimeError as error:
            if "timed out" not in str(error):
                raise


def test_threads_end_although_an_error_knows_the_iterator() -> None:
    def init(worker_id: int) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        next(iter(ThreadDataLoader(Numbers(), num_workers=2, worker_init_fn=init)))
    gc.collect()
    assert _workers() == []


# ---- passes


def test_two_passes_at_once() -> None:
    loader = ThreadDataLoader(Numbers(), num_workers=2, collate_fn=lambda samples: samples[0][1])
    assert list(itertools.chain(*zip(loader, loader, strict=True))) == sorted([*range(10)] * 2)


def test_persistent_workers_are_the_same_threads_in_every_pass() -> None:
    names = []

    def collate(samples: Any) -> Any:
        names.append(threading.current_thread().name)
        return samples[0][1]

    loader = ThreadDataLoader(
        Numbers(), num_workers=2, collate_fn=collate, persistent_workers=True
    )
    for batch in loader:
        if batch == 3:
            break
    for _ in range(3):
        assert list(loader) == list(range(10))
    assert len(set(names)) == 2
    assert len(_workers()) == 2
    del loader
    assert _workers() == []


def _workers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("sidestream-workers")]


def _pickled(loader: Any) -> Any:
    return pickle.loads(pickle.dumps(loader))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, _pickled])
@pytest.mark.parametrize("persistent", [False, True])
def test_copies_are_loaders_of_their_own(duplicate: Any, persistent: bool) -> None:
    loader = ThreadDataLoader(Large(), num_workers=2, batch_size=4, persistent_workers=persistent)
    want = list(loader)
    twin = duplicate(loader)
    Comparison().same(list(twin), want)
    assert type(twin) is ThreadDataLoader
    assert twin._memory is not loader._memory


def test_an_iterator_cannot_be_pickled() -> None:
    iterator = iter(ThreadDataLoader(Numbers(), num_workers=1))
    with pytest.raises(NotImplementedError):
        pickle.dumps(iterator)


def test_making_one_starts_nothing_and_draws_nothing() -> None:
    before = torch.get_rng_state()
    loader = ThreadDataLoader(Numbers(), num_workers=2, shuffle=True, persistent_workers=True)
    assert len(loader) == 10
    assert _workers() == []
    assert torch.equal(torch.get_rng_state(), before)


def test_many_passes_from_many_threads() -> None:
    loader = ThreadDataLoader(Large(20), num_workers=2, batch_size=4)
    want = list(loader)

    def use() -> None:
        for _ in range(3):
            Comparison().same(list(loader), want)

    for one in [Worker(use) for _ in range(4)]:
        one.result()
