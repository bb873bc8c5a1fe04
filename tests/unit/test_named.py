"""What the loader does is shown under its name to whoever profiles the program."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from sidestream import AsynchronousLoader, timing

try:
    ALL_THREADS = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
except TypeError:
    ALL_THREADS = None


@pytest.mark.skipif(ALL_THREADS is None, reason="this torch profiles the calling thread only")
@pytest.mark.parametrize("buffer_size", [0, 2])
def test_the_profiler_shows_them(buffer_size: int) -> None:
    loader = AsynchronousLoader([torch.ones(3)] * 5, "cpu", buffer_size=buffer_size)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=ALL_THREADS) as seen:
        assert len(list(loader)) == 5
    names = Counter(event.name for event in seen.events() if event.name.startswith("sidestream: "))
    assert names["sidestream: read"] in (5, 6)  # the end is asked for, too, where it must be
    assert names["sidestream: stage"] == 5
    assert names["sidestream: next"] == 6


def test_nothing_is_made_where_nobody_looks() -> None:
    assert timing.named("one") is timing.named("another")


def test_nsight_is_shown_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges: list[str] = []

    @contextlib.contextmanager
    def shown(name: str):
        ranges.append(name)
        yield

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nvtx, "range", shown)
    with timing.named("not yet"):
        assert ranges == []
    monkeypatch.setattr(timing, "_NSIGHT", True)
    with timing.named("sidestream: read"):
        assert ranges == ["sidestream: read"]
