"""The signature of Lightning Bolts' loader, its meaning, and its faults, which are gone."""

import collections
import inspect
import itertools
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import sidestream
from sidestream.compat.bolts import AsynchronousLoader

DATA = TensorDataset(torch.arange(10.0), torch.arange(10))


class Endless(IterableDataset):
    def __iter__(self):
        return (torch.tensor(number) for number in itertools.count())


def ids(loader):
    return [y.tolist() for _, y in loader]


def test_the_signature_is_the_old_one():
    parameters = inspect.signature(AsynchronousLoader).parameters
    assert [(name, one.default) for name, one in parameters.items()] == [
        ("data", inspect.Parameter.empty),
        ("device", torch.device("cuda", 0)),
        ("q_size", 10),
        ("num_batches", None),
        ("kwargs", inspect.Parameter.empty),
    ]
    kinds = {one.kind for name, one in parameters.items() if name != "kwargs"}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert parameters["kwargs"].kind is inspect.Parameter.VAR_KEYWORD


def test_every_argument_by_position():
    loader = AsynchronousLoader(DATA, torch.device("cpu"), 3, 2, batch_size=4)
    assert isinstance(loader, sidestream.AsynchronousLoader)
    assert ids(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(loader) == loader.num_batches == 2
    assert loader.q_size == loader.queue.maxsize == 3
    assert loader.device == torch.device("cpu")


def test_every_argument_by_name():
    loader = AsynchronousLoader(
        data=DataLoader(DATA, batch_size=5), device="cpu", q_size=1, num_batches=None
    )
    assert ids(loader) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert loader.dataloader.dataset is DATA


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_means_the_first_gpu_as_it_did():
    with pytest.raises(ValueError, match=r'"?cuda:0.* is not there'):
        AsynchronousLoader(DATA)


def test_a_pass_without_an_end_needs_a_number():
    with pytest.raises(ValueError, match=r"num_batches must be given .*got None"):
        AsynchronousLoader(Endless(), "cpu")
    loader = AsynchronousLoader(Endless(), "cpu", num_batches=3, batch_size=2)
    assert len(loader) == 3
    assert [x.tolist() for x in loader] == [[0, 1], [2, 3], [4, 5]]


def test_a_queue_of_size_0_has_no_limit():
    assert AsynchronousLoader(DATA, "cpu", 0).q_size == 10
    assert AsynchronousLoader(Endless(), "cpu", 0, 3).q_size == 3


def test_arguments_that_come_too_late_are_named():
    with pytest.warns(UserWarning, match="batch_size given with a DataLoader: without effect"):
        loader = AsynchronousLoader(DataLoader(DATA), "cpu", batch_size=5)
    assert len(loader) == 10


def test_taking_exactly_len_batches_leaves_the_next_pass_whole():
    loader = AsynchronousLoader(DATA, "cpu", batch_size=4)
    for _ in range(4):
        assert len(list(itertools.islice(loader, len(loader)))) == 3


def test_a_pass_broken_off_leaves_nothing_to_the_next():
    loader = AsynchronousLoader(DATA, "cpu", batch_size=2)
    for _ in loader:
        break
    assert ids(loader) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


Pair = collections.namedtuple("Pair", "x y")


def test_numpy_becomes_tensors_and_containers_stay_what_they_are(device):
    strings = np.array(["a", "bc"])
    objects = np.array([None, "x"], dtype=object)
    array = np.arange(3.0)
    batch = collections.OrderedDict(
        arrays=(array, np.float32(1.5), array),
        kept=[strings, objects, "text", None, np.str_("n")],
        pair=Pair(torch.ones(2), np.arange(2)),
    )
    (got,) = AsynchronousLoader([batch], device, collate_fn=lambda samples: samples[0])
    assert type(got) is collections.OrderedDict
    assert type(got["arrays"]) is tuple
    first, second, third = got["arrays"]
    assert first is third
    assert (first.dtype, second.dtype) == (torch.float64, torch.float32)
    assert {first.device.type, second.device.type, got["pair"].y.device.type} == {device}
    assert type(got["pair"]) is Pair
    assert got["kept"][0].tolist() == ["a", "bc"]
    assert got["kept"][1] is objects
    assert got["kept"][2:] == ["text", None, np.str_("n")]
    if device == "cpu":
        assert first.tolist() == [0.0, 1.0, 2.0]
        assert second.item() == 1.5


def test_it_is_pickled_as_its_base_is():
    loader = pickle.loads(pickle.dumps(AsynchronousLoader(DATA, "cpu", batch_size=5)))
    assert type(loader) is AsynchronousLoader
    assert len(ids(loader)) == 2
