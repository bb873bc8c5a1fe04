"""The signature of Lighter's loader, its meaning, and its faults, which are gone."""

import inspect
import pickle
import threading

import pytest
import torch
from torch.utils.data import TensorDataset

import sidestream
from sidestream.compat.lighter import AsynchronousLoader
from support.waiting import wait_until

DATA = TensorDataset(torch.arange(10.0), torch.arange(10))


def ids(loader):
    return [y.tolist() for _, y in loader]


def test_the_signature_is_the_old_one():
    parameters = inspect.signature(AsynchronousLoader).parameters
    assert [(name, one.default) for name, one in parameters.items()] == [
        ("dataset", inspect.Parameter.empty),
        ("device", inspect.Parameter.empty),
        ("batch_size", 1),
        ("shuffle", False),
        ("pin_memory", True),
        ("workers", 10),
        ("queue_size", 10),
        ("kwargs", inspect.Parameter.empty),
    ]
    kinds = {one.kind for name, one in parameters.items() if name != "kwargs"}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert parameters["kwargs"].kind is inspect.Parameter.VAR_KEYWORD


def test_every_argument_by_position():
    loader = AsynchronousLoader(DATA, torch.device("cpu"), 4, False, False, 0, 3, drop_last=True)
    assert isinstance(loader, sidestream.AsynchronousLoader)
    assert ids(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(loader) == 2


def test_every_argument_by_name():
    loader = AsynchronousLoader(
        dataset=DATA, device="cpu", batch_size=5, shuffle=True, pin_memory=True, workers=0,
        queue_size=1, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    first, second = ids(loader), ids(loader)
    assert sorted(number for batch in first for number in batch) == list(range(10))
    assert first != second


def test_the_old_attributes():
    loader = AsynchronousLoader(DATA, "cpu", batch_size=4, workers=0, queue_size=7)
    assert loader.dataset is DATA
    assert loader.device == torch.device("cpu")
    assert loader.batch_size == 4
    assert loader.workers == 0
    assert loader.queue_size == 7
    assert loader.dataloader.dataset is DATA


def test_a_dataset_need_be_no_torch_dataset():
    assert [x.tolist() for x in AsynchronousLoader(range(4), "cpu", 2, workers=0)] == [
        [0, 1],
        [2, 3],
    ]


def test_the_queue_tells_whether_the_loop_is_starved():
    loader = AsynchronousLoader(DATA, "cpu", workers=0, queue_size=3)
    assert loader.queue.empty()
    assert loader.queue.qsize() == 0
    iterator = iter(loader)
    next(iterator)
    wait_until(loader.queue.full, "the buffer is full")
    assert loader.queue.qsize() == loader.queue.maxsize == 3
    assert not loader.queue.empty()
    assert len(list(iterator)) == 9
    assert loader.queue.empty()


def test_a_queue_of_size_0_has_no_limit():
    loader = AsynchronousLoader(DATA, "cpu", workers=0, queue_size=0)
    iterator = iter(loader)
    next(iterator)
    wait_until(lambda: loader.queue.qsize() == 9, "all the others are loaded")
    assert len(list(iterator)) == 9


def test_no_limit_needs_a_length():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(int, 1)

    with pytest.raises(ValueError, match=r"queue_size must be 1 or more .*got 0"):
        AsynchronousLoader(Endless(), "cpu", workers=0, queue_size=0)


def test_a_loop_broken_off_can_be_begun_again_and_leaves_no_thread():
    loader = AsynchronousLoader(DATA, "cpu", 2, workers=0)
    before = threading.active_count()
    for _ in loader:
        break
    assert threading.active_count() == before
    assert ids(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_an_error_in_the_dataset_reaches_the_loop():
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            if index == 5:
                raise ValueError("sample 5 is broken")
            return torch.tensor(index)

    iterator = iter(AsynchronousLoader(Broken(), "cpu", workers=0))
    assert [int(next(iterator)) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="sample 5 is broken"):
        next(iterator)


def test_dicts_and_strings_are_batches_too():
    data = [{"x": torch.tensor(number), "name": f"n{number}"} for number in range(2)]
    (batch,) = AsynchronousLoader(data, "cpu", 2, workers=0)
    assert type(batch) is dict
    assert batch["x"].tolist() == [0, 1]
    assert batch["name"] == ["n0", "n1"]


def test_it_is_pickled_as_its_base_is():
    loader = pickle.loads(pickle.dumps(AsynchronousLoader(DATA, "cpu", 5, workers=0)))
    assert type(loader) is AsynchronousLoader
    assert len(ids(loader)) == 2
