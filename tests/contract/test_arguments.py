"""Wrong arguments are refused at construction, in one line with the value and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sidestream import AsynchronousLoader
from support.sources import Counting, SizedCounting, numbers, plain


def refused(error: type[Exception], *parts: str, **arguments: Any) -> str:
    """Construct with the arguments, and look at what is said."""
    data = arguments.pop("data", None) if "data" in arguments else plain(2)
    with pytest.raises(error) as caught:
        AsynchronousLoader(data, **{"device": "cpu", **arguments})
    message = str(caught.value)
    assert "\n" not in message
    assert [part for part in parts if part not in message] == [], message
    assert caught.value.__cause__ is None or "\n" not in str(caught.value.__cause__)
    return message


@pytest.mark.parametrize("name", ["buffer_size", "num_batches"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1, ValueError),
        (-(10**30), ValueError),
        (True, TypeError),
        (False, TypeError),
        (1.5, TypeError),
        (2.0, TypeError),
        ("2", TypeError),
        ([2], TypeError),
        (float("nan"), TypeError),
    ],
    ids=repr,
)
def test_a_count_that_is_none(name: str, value: Any, error: type[Exception]) -> None:
    message = refused(error, name, repr(value), **{name: value})
    assert ";" in message or "0" in message


def test_a_buffer_size_of_none_is_refused() -> None:
    refused(TypeError, "buffer_size", "None", buffer_size=None)


@pytest.mark.parametrize("name", ["buffer_size", "num_batches"])
def test_an_integer_of_another_class_will_do(name: str) -> None:
    numpy = pytest.importorskip("numpy")
    loader = AsynchronousLoader(plain(4), "cpu", **{name: numpy.int64(2)})
    assert numbers(loader) == [0, 1, 2, 3][: len(loader)]


@pytest.mark.parametrize("data", [plain(2), Counting(2), range(2), (item for item in range(2))])
def test_an_unknown_keyword(data: Any) -> None:
    refused(TypeError, "q_size", data=data, q_size=3)


def test_a_dataloader_s_keyword_with_a_dataloader() -> None:
    refused(TypeError, "shuffle", "DataLoader", data=DataLoader(plain(2)), shuffle=True)


def test_an_unknown_keyword_with_a_dataset() -> None:
    refused(TypeError, "bach_size", data=TensorDataset(torch.arange(2)), bach_size=3)


def test_a_wrong_value_for_the_dataloader_is_refused_at_construction() -> None:
    data = TensorDataset(torch.arange(2))
    with pytest.raises(ValueError, match="num_workers"):
        AsynchronousLoader(data, "cpu", num_workers=-1)


def _spent_generator() -> Any:
    generator = (item for item in plain(2))
    assert len(list(generator)) == 2
    return generator


def _spent_list_iterator() -> Any:
    iterator = iter(plain(2))
    assert len(list(iterator)) == 2
    return iterator


def _closed_generator() -> Any:
    generator = (item for item in plain(2))
    generator.close()
    return generator


@pytest.mark.parametrize(
    "make", [_spent_generator, _spent_list_iterator, _closed_generator], ids=lambda f: f.__name__
)
def test_an_iterator_that_is_used_up(make: Callable[[], Any], buffer_size: int) -> None:
    data = make()
    message = refused(ValueError, type(data).__name__, data=data, buffer_size=buffer_size)
    assert "used up" in message


def test_an_iterator_in_the_middle_is_welcome(buffer_size: int) -> None:
    for iterator in (iter(plain(3)), (batch for batch in plain(3))):
        next(iterator)
        assert numbers(AsynchronousLoader(iterator, "cpu", buffer_size=buffer_size)) == [1, 2]


@pytest.mark.parametrize(
    "device", ["gpu", "cuda:x", "", "cpu:", "Cpu", "nonsense:0", "cuda:-1", "cuda 0"]
)
def test_a_device_that_is_none(device: str) -> None:
    refused(ValueError, repr(device), device=device)


@pytest.mark.parametrize("device", [3.5, [0], ("cuda", 0), b"cpu", object, True])
def test_a_device_of_the_wrong_type(device: Any) -> None:
    refused(TypeError, "device", device=device)


@pytest.mark.parametrize(
    "device", ["cuda", "cuda:0", "xpu", "mps", torch.device("cuda"), torch.device("cuda", 1), 0]
)
@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_an_accelerator_that_is_not_there(device: Any) -> None:
    message = refused(ValueError, str(device), device=device)
    assert "cpu" in message


@pytest.mark.parametrize("device", [99, -1, "cuda:99", torch.device("cuda", 99)])
def test_a_device_index_out_of_range(device: Any) -> None:
    refused(ValueError, str(device), device=device)


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu"), "meta", None])
def test_every_way_to_name_a_device_is_understood(device: Any) -> None:
    expected = torch.device(device if device is not None else "cpu").type
    if device is None and torch.accelerator.is_available():
        expected = torch.accelerator.current_accelerator().type
    ((tensor, _),) = AsynchronousLoader(plain(1), device)
    assert tensor.device.type == expected


@pytest.mark.parametrize("transform", [3, "double", [len], {}, False])
def test_a_transform_that_cannot_be_called(transform: Any) -> None:
    refused(TypeError, "transform", repr(transform), transform=transform)


@pytest.mark.parametrize("data", [None, 3, 2.5, object(), len, DataLoader, list, Counting])
def test_data_that_cannot_be_iterated(data: Any) -> None:
    refused(TypeError, repr(data) if data is None else "", data=data)


def test_a_zero_dimensional_tensor_fails_as_in_a_plain_loop() -> None:
    with pytest.raises(TypeError, match="0-d"):
        list(AsynchronousLoader(torch.tensor(3), "cpu"))


class Indexed:
    """Iterable by index only, as before iterators there were."""

    def __getitem__(self, index: int) -> int:
        if index >= 3:
            raise IndexError(index)
        return index


def test_what_can_be_iterated_by_index_is_iterable(buffer_size: int) -> None:
    loader = AsynchronousLoader(Indexed(), "cpu", buffer_size=buffer_size)
    assert [list(loader) for _ in range(2)] == [[0, 1, 2]] * 2


def test_only_data_and_device_are_positional() -> None:
    with pytest.raises(TypeError):
        AsynchronousLoader(plain(2), "cpu", 2)


def test_without_data_it_is_refused() -> None:
    with pytest.raises(TypeError, match="data"):
        AsynchronousLoader()


def test_a_refused_loader_leaves_its_source_alone() -> None:
    source = SizedCounting(3)
    with pytest.raises(ValueError, match="-1"):
        AsynchronousLoader(source, "cpu", buffer_size=-1)
    assert (source.iters, source.reads) == (0, 0)


def test_a_dataset_with_an_iterable_face_is_still_a_dataset() -> None:
    class Both(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            if index >= 4:
                raise IndexError(index)
            return index

    batches = list(AsynchronousLoader(Both(), "cpu", batch_size=2))
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]
