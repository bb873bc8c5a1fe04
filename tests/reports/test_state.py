"""Public reports about devices, thread state, speed and counters; README.md lists all."""

from __future__ import annotations

import contextvars
import copy
import pickle
import threading
import time
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sidestream import AsynchronousLoader
from sidestream.device import default_device
from support.process import run
from support.sources import SizedCounting, plain
from support.waiting import loader_threads, wait_until_blocked


def test_R48_many_tiny_tensors_cost_one_walk_a_batch_and_no_page_locked_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there is nothing to gain: nothing is pinned, and no tensor is touched twice."""
    batch = [torch.zeros(1) for _ in range(50)]
    moves: list[Any] = []
    real = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pytest.fail("pinned"))
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, *args: moves.append(1) or real(self, *args)
    )
    for got in AsynchronousLoader([batch] * 20, "cpu"):
        assert got is batch
    assert len(moves) == 20 * 50


def test_R51_the_cpu_needs_no_accelerator_no_pinning_and_no_warning(
    monkeypatch: pytest.MonkeyPatch, buffer_size: int
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("nothing is page-locked for the CPU")

    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    monkeypatch.setattr("sidestream.device.pinned_bytes", refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = DataLoader(TensorDataset(torch.arange(6)), batch_size=2)
        loader = AsynchronousLoader(data, "cpu", buffer_size=buffer_size)
        assert [batch.tolist() for (batch,) in loader] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
@pytest.mark.parametrize("device", ["cuda", torch.device("cuda", 0), 0, "mps"])
def test_R51_a_device_that_is_not_there_is_refused_at_construction(device: Any) -> None:
    with pytest.raises(ValueError, match="is not there"):
        AsynchronousLoader([], device)


def test_R56_construction_and_looking_have_no_side_effects(device: str) -> None:
    generator = torch.Generator().manual_seed(3)
    source = SizedCounting(4)
    before = torch.get_rng_state(), generator.get_state(), threading.active_count()
    for data in (source, DataLoader(range(4), shuffle=True, generator=generator)):
        loader = AsynchronousLoader(data, device)
        len(loader), repr(loader), bool(loader), copy.copy(loader), loader.statistics()
        hasattr(loader, "dataset"), hasattr(loader, "state_dict"), hasattr(loader, "no_such")
    pickle.dumps(AsynchronousLoader(source, device))
    after = torch.get_rng_state(), generator.get_state(), threading.active_count()
    assert (source.iters, source.reads) == (0, 0)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])
    assert before[2] == after[2]


def test_R56_no_device_is_initialised_by_construction() -> None:
    run(
        """
        loader = AsynchronousLoader(plain(3))
        len(loader), repr(loader), hasattr(loader, "generator")
        say(torch.cuda.is_initialized(), threading.active_count())
        """
    ).assert_clean("False 1")


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


def look(_: Any = None) -> Any:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        default_device(),
        VARIABLE.get(),
    )


@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu"), None]
)
def test_R57_the_caller_s_modes_reach_user_code_in_the_thread(context: Any, device: str) -> None:
    data = DataLoader(range(4), batch_size=1, collate_fn=look)
    token = VARIABLE.set("set" if context is None else "unset")
    try:
        with (context or torch.no_grad)():
            loader = AsynchronousLoader(data, device)
            assert list(loader) == list(data) == [look()] * 4
    finally:
        VARIABLE.reset(token)


def test_R57_a_default_device_does_not_break_the_loader(buffer_size: int) -> None:
    source = plain(4)
    torch.set_default_device("meta")
    try:
        got = list(AsynchronousLoader(source, "cpu", buffer_size=buffer_size))
    finally:
        torch.set_default_device(None)
    assert [tensor.tolist() for tensor, _ in got] == [tensor.tolist() for tensor, _ in source]


def _slow(seconds: float) -> None:
    threading.Event().wait(seconds)


def test_R61_waiting_is_told_apart_from_loading() -> None:
    """A slow source is waited for; a slow loop is not, and the thread waits for room."""

    class Slow(SizedCounting):
        def make(self, number: int) -> Any:
            _slow(0.02)
            return number

    loader = AsynchronousLoader(Slow(8), "cpu")
    begun = time.perf_counter()
    list(loader)
    wall_s = time.perf_counter() - begun
    starved = loader.statistics()
    assert 7 * 0.02 <= starved.source_wait_s <= wall_s - 0.02  # the first is apart
    assert 0.5 * wall_s <= starved.consumer_wait_s <= wall_s

    loader = AsynchronousLoader(plain(6), "cpu", buffer_size=1)
    iterator = iter(loader)
    for number in range(3):
        assert next(iterator)[1] == number
        wait_until_blocked(loader_threads()[0])
        _slow(0.02)
    list(iterator)
    assert loader.statistics().room_wait_s >= 3 * 0.02
