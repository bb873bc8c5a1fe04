"""G9: what holds in the thread that calls `iter` holds wherever the source is read."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from sidestream import AsynchronousLoader
from sidestream.device import default_device
from support.sources import Counting, batch_of, numbers, plain
from support.waiting import Worker

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


def look(_: Any = None) -> tuple[Any, ...]:
    """What user code can see of its thread's state."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        default_device(),
        torch.get_default_dtype(),
        torch.ones(1, requires_grad=True).mul(2).requires_grad,
        torch.zeros(1).is_inference(),
        torch.empty(1).device,
        VARIABLE.get(),
    )


@contextlib.contextmanager
def _variable(value: str) -> Any:
    token = VARIABLE.set(value)
    try:
        yield
    finally:
        VARIABLE.reset(token)


@contextlib.contextmanager
def _default_dtype() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextlib.contextmanager
def _default_device() -> Any:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


CONTEXTS: dict[str, Any] = {
    "nothing": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "no inference mode inside": lambda: torch.inference_mode(False),
    "autocast bfloat16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "autocast without cache": lambda: torch.autocast("cpu", cache_enabled=False),
    "with device": lambda: torch.device("meta"),
    "set_default_device": _default_device,
    "default dtype": _default_dtype,
    "a context variable": lambda: _variable("set"),
}


@pytest.fixture(params=[0, 2], ids=lambda size: f"buffer{size}")
def buffer_size(request: pytest.FixtureRequest) -> int:
    """With and without a thread: its size does not matter here."""
    return request.param


@pytest.fixture(params=CONTEXTS)
def context(request: pytest.FixtureRequest) -> Any:
    return CONTEXTS[request.param]


class Looking(Counting):
    """Its batches are what user code sees while it makes them."""

    def make(self, number: int) -> Any:
        return look()


def test_the_source_sees_the_caller_s_state_in_every_batch(
    context: Any, buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(Looking(5), device, buffer_size=buffer_size)
    with context():
        expected = look()
        assert list(loader) == [expected] * 5
    default = look()
    assert list(loader) == [default] * 5


@pytest.mark.parametrize("name", [name for name in CONTEXTS if "device" not in name])
def test_a_collate_function_sees_the_caller_s_state_in_every_batch(
    name: str, buffer_size: int, device: str
) -> None:
    """A default device without values is left out: a plain DataLoader draws its seed there."""
    data = DataLoader(range(5), batch_size=1, collate_fn=look)
    with CONTEXTS[name]():
        expected = look()
        assert list(data) == [expected] * 5
        loader = AsynchronousLoader(data, device, buffer_size=buffer_size)
        assert list(loader) == [expected] * 5


def test_a_transform_sees_the_caller_s_state_in_every_batch(
    context: Any, buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(plain(5), device, buffer_size=buffer_size, transform=look)
    with context():
        expected = look()
        assert list(loader) == [expected] * 5


def test_the_caller_s_state_is_untouched_by_a_pass(
    context: Any, buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(plain(4), device, buffer_size=buffer_size)
    with context():
        before = look()
        for _ in loader:
            assert look() == before
        assert look() == before


@pytest.mark.parametrize("name", [name for name in CONTEXTS if name != "default dtype"])
def test_the_state_of_the_thread_that_called_iter_counts(name: str, device: str) -> None:
    """With all of `next` elsewhere, the loader's own thread still has the state of `iter`.

    The default dtype is one for all threads, and not among that state.
    """
    loader = AsynchronousLoader(Looking(5), device, buffer_size=2)
    with CONTEXTS[name]():
        expected = look()
        iterator = iter(loader)
    assert Worker(list, iterator).result()[1:] == [expected] * 4


def test_a_state_that_the_loop_s_body_changes_is_not_seen_by_the_source(device: str) -> None:
    data = DataLoader(range(5), batch_size=1, collate_fn=look)
    expected = look()
    seen = []
    for batch in AsynchronousLoader(data, device, buffer_size=2):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            seen.append(batch)
    assert seen == [expected] * 5


def test_moved_tensors_have_the_flags_of_a_plain_move(context: Any, buffer_size: int) -> None:
    def make() -> Any:
        return [torch.ones(2), torch.ones(2, requires_grad=True), torch.ones(2) * 1.0]

    with torch.device("cpu"):
        source = [make() for _ in range(4)]
    with context():
        loader = AsynchronousLoader(source, "meta", buffer_size=buffer_size)
        for got, given in zip(loader, source, strict=True):
            wanted = [tensor.to("meta") for tensor in given]
            assert [(t.requires_grad, t.is_inference(), t.dtype, t.device) for t in got] == [
                (t.requires_grad, t.is_inference(), t.dtype, t.device) for t in wanted
            ]


def test_the_number_of_threads_of_torch_is_left_alone(device: str) -> None:
    # A new thread need not begin with this thread's number: `set_num_threads` in any thread of
    # the process is what the next one begins with, and torchdata.nodes calls it in its own.
    before, begins_with = torch.get_num_threads(), Worker(torch.get_num_threads).result()
    seen = []

    def transform(batch: Any) -> Any:
        seen.append(torch.get_num_threads())
        return batch

    loader = AsynchronousLoader(plain(4), device, transform=transform)
    assert numbers(loader) == [0, 1, 2, 3]
    assert set(seen) <= {before, begins_with}
    assert torch.get_num_threads() == before
    assert Worker(torch.get_num_threads).result() == begins_with


def test_all_reads_but_the_first_come_from_one_thread(device: str) -> None:
    source = Counting(6)
    loader = AsynchronousLoader(source, device, buffer_size=2)
    here = threading.get_ident()
    for _ in range(2):
        source.iter_threads.clear()
        source.next_threads.clear()
        assert numbers(loader) == list(range(6))
        assert source.iter_threads == [here]
        assert source.next_threads[0] == here
        assert len(set(source.next_threads[1:])) == 1
        assert here not in source.next_threads[1:]


def test_without_a_buffer_all_reads_come_from_the_caller(device: str) -> None:
    source = Counting(6)
    assert numbers(AsynchronousLoader(source, device, buffer_size=0)) == list(range(6))
    assert set(source.iter_threads + source.next_threads) == {threading.get_ident()}


def test_the_loader_s_thread_is_named_after_the_package(device: str) -> None:
    names = []

    class Source(Counting):
        def make(self, number: int) -> Any:
            names.append(threading.current_thread().name)
            return batch_of(number)

    assert numbers(AsynchronousLoader(Source(3), device)) == [0, 1, 2]
    assert all("sidestream" in name for name in names[1:])


def test_a_context_variable_set_by_the_source_stays_with_the_pass(device: str) -> None:
    """What the source sets for itself in one batch is there in the next one."""
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("count", default=0)

    class Source(Counting):
        def make(self, number: int) -> Any:
            variable.set(variable.get() + 1)
            return variable.get()

    batches = list(AsynchronousLoader(Source(5), device, buffer_size=2))
    assert batches[1:] == list(range(batches[1], batches[1] + 4))


def test_a_default_device_does_not_decide_where_batches_go(buffer_size: int) -> None:
    source = plain(6)
    with torch.device("meta"):
        got = list(AsynchronousLoader(source, "cpu", buffer_size=buffer_size))
    assert numbers(got) == list(range(6))
    assert [tensor.tolist() for tensor, _ in got] == [tensor.tolist() for tensor, _ in source]
