"""`transform`: called once with each batch after its transfer; the loop gets what it returns."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sidestream import AsynchronousLoader
from support.sources import Counting, batch_of, numbers, plain


def test_the_loop_gets_what_the_transform_returns(
    length: int, buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(
        plain(length),
        device,
        buffer_size=buffer_size,
        transform=lambda batch: {"number": batch[1], "twice": batch[0] * 2},
    )
    for _ in range(2):
        batches = list(loader)
        assert [batch["number"] for batch in batches] == list(range(length))
        assert all(batch["twice"].device.type == device for batch in batches)
        if device == "cpu":
            assert [batch["twice"][0, 0].item() for batch in batches] == [
                2.0 * number for number in range(length)
            ]


def test_the_transform_sees_moved_batches_once_each_and_in_order(
    buffer_size: int, device: str
) -> None:
    seen: list[tuple[int, str]] = []

    def transform(batch: Any) -> Any:
        seen.append((batch[1], batch[0].device.type))
        return batch

    loader = AsynchronousLoader(plain(5), device, buffer_size=buffer_size, transform=transform)
    assert numbers(loader) == list(range(5))
    assert seen == [(number, device) for number in range(5)]


@pytest.mark.parametrize("value", [None, False, 0, (), StopIteration])
def test_a_transform_may_return_anything(value: Any, buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(
        plain(3), device, buffer_size=buffer_size, transform=lambda _: value
    )
    assert list(loader) == [value] * 3


def test_a_transform_that_returns_host_tensors_is_not_overruled(buffer_size: int) -> None:
    loader = AsynchronousLoader(
        plain(2), "meta", buffer_size=buffer_size, transform=lambda batch: torch.ones(batch[1])
    )
    assert [batch.device.type for batch in loader] == ["cpu", "cpu"]


def test_the_transform_runs_in_the_loader_s_thread(device: str) -> None:
    threads: list[int] = []

    def transform(batch: Any) -> Any:
        threads.append(threading.get_ident())
        return batch

    loader = AsynchronousLoader(plain(5), device, buffer_size=2, transform=transform)
    assert numbers(loader) == list(range(5))
    assert threading.get_ident() not in threads[1:]
    assert len(set(threads[1:])) == 1


def test_without_a_thread_the_transform_runs_here(device: str) -> None:
    threads: list[int] = []

    def transform(batch: Any) -> Any:
        threads.append(threading.get_ident())
        return batch

    loader = AsynchronousLoader(plain(3), device, buffer_size=0, transform=transform)
    assert numbers(loader) == [0, 1, 2]
    assert set(threads) == {threading.get_ident()}


@pytest.mark.parametrize("grad", [True, False])
def test_the_transform_has_the_caller_s_grad_mode(
    grad: bool, buffer_size: int, device: str
) -> None:
    with torch.set_grad_enabled(grad):
        loader = AsynchronousLoader(
            plain(4),
            device,
            buffer_size=buffer_size,
            transform=lambda _: torch.is_grad_enabled(),
        )
        assert list(loader) == [grad] * 4


def test_num_batches_bounds_what_is_transformed(buffer_size: int, device: str) -> None:
    seen: list[int] = []
    loader = AsynchronousLoader(
        Counting(None),
        device,
        buffer_size=buffer_size,
        num_batches=3,
        transform=lambda batch: seen.append(batch[1]),
    )
    assert list(loader) == [None] * 3
    assert seen == [0, 1, 2]


def test_a_module_may_be_the_transform(buffer_size: int) -> None:
    data = DataLoader(TensorDataset(torch.randn(6, 4)), batch_size=2)
    model = torch.nn.Linear(4, 2)
    loader = AsynchronousLoader(
        data, "cpu", buffer_size=buffer_size, transform=lambda batch: model(batch[0])
    )
    for got, (given,) in zip(loader, data, strict=True):
        assert torch.equal(got, model(given))
        assert got.requires_grad


def test_a_transform_may_change_the_batch_in_place(buffer_size: int) -> None:
    def transform(batch: Any) -> Any:
        batch["x"] += 1
        batch["new"] = True
        return batch

    source = [{"x": torch.zeros(2)} for _ in range(3)]
    loader = AsynchronousLoader(source, "cpu", buffer_size=buffer_size, transform=transform)
    assert [(batch["x"].tolist(), batch["new"]) for batch in loader] == [([1.0, 1.0], True)] * 3


def test_a_transform_may_iterate_another_loader(buffer_size: int, device: str) -> None:
    inner = AsynchronousLoader(plain(2), device, buffer_size=buffer_size)
    outer = AsynchronousLoader(
        [batch_of(7)] * 3, device, buffer_size=buffer_size, transform=lambda _: numbers(inner)
    )
    assert list(outer) == [[0, 1]] * 3
