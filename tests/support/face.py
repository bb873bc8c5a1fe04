"""The public face as a state machine: all that a program may do with a loader, in any order.

The model is a list: what a pass delivers is its beginning, or that of its rest after a resume.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from torch.utils.data import DataLoader, TensorDataset

from sidestream import AsynchronousLoader
from support.waiting import loader_threads, wait_until

MANY = 3  # passes under way at once


class Batches:
    """Can be iterated again, and has no length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Any:
        for number in range(self.length):
            yield torch.full((1, 700), float(number))


def data_loader(length: int) -> Any:
    rows = torch.arange(length, dtype=torch.float32).reshape(-1, 1).repeat(1, 700)
    return DataLoader(
        TensorDataset(rows), collate_fn=lambda samples: torch.stack([x for (x,) in samples])
    )


SOURCES = {
    "list": lambda length, device: list(Batches(length)),
    "iterable": lambda length, device: Batches(length),
    "DataLoader": lambda length, device: data_loader(length),
    "nested": lambda length, device: AsynchronousLoader(Batches(length), device),
    "nested twice": lambda length, device: AsynchronousLoader(
        AsynchronousLoader(data_loader(length), "cpu"), "cpu", buffer_size=1
    ),
}


class Pass:
    """An iterator, and what it must give next."""

    def __init__(self, iterator: Any, start: int) -> None:
        self.iterator = iterator
        self.next = start
        self.is_over = False
        self.is_stale = False  # another state was loaded


class Face(RuleBasedStateMachine):
    """On the CPU; on the simulated accelerator see tests/simulator."""

    device = "cpu"
    states = Bundle("states")

    @initialize(
        name=st.sampled_from(sorted(SOURCES)),
        length=st.sampled_from([0, 1, 2, 5, 8]),
        size=st.sampled_from([0, 1, 2, 9]),
        doubles=st.booleans(),
    )
    def make(self, name: str, length: int, size: int, doubles: bool) -> None:
        self.name, self.length, self.factor = name, length, 1 + doubles
        self.loader = AsynchronousLoader(
            SOURCES[name](length, self.device),
            self.device,
            buffer_size=size,
            transform=(lambda batch: batch * 2) if doubles else None,
        )
        self.passes: list[Pass] = []
        self.latest: Pass | None = None
        self.loaded: tuple[int, bool] | None = None
        self.kept: list[tuple[torch.Tensor, int]] = []

    # ---- what is checked

    def check(self, tensor: torch.Tensor, number: int) -> None:
        assert tensor.device.type == self.device
        assert (tensor == self.factor * number).all().item()

    def place(self) -> tuple[int, bool]:
        """How many batches the state speaks of, and whether it is of a pass that is over."""
        if self.loaded is not None:
            return self.loaded
        if self.latest is None:
            return 0, True
        return (0, True) if self.latest.is_over else (self.latest.next, False)

    # ---- what a program may do

    @precondition(lambda self: len(self.passes) < MANY)
    @rule()
    def begin(self) -> None:
        start = 0 if self.loaded is None else self.loaded[0]
        one = Pass(iter(self.loader), start)
        self.passes.append(one)
        self.latest, self.loaded = one, None

    @precondition(lambda self: self.passes)
    @rule(which=st.integers(0, MANY), times=st.integers(1, 4), keep=st.booleans())
    def advance(self, which: int, times: int, keep: bool) -> None:
        one = self.passes[which % len(self.passes)]
        for _ in range(times):
            if one.is_stale:
                with pytest.raises((RuntimeError, StopIteration), match=r"another state|^$"):
                    next(one.iterator)
            elif one.is_over or one.next == self.length:
                assert next(one.iterator, "end") == "end"
                one.is_over = True
            else:
                batch = next(one.iterator)
                self.check(batch, one.next)
                if keep:
                    self.kept.append((batch[:, 3:] if times % 2 else batch, one.next))
                one.next += 1

    @precondition(lambda self: self.passes)
    @rule(which=st.integers(0, MANY))
    def forget(self, which: int) -> None:
        del self.passes[which % len(self.passes)]

    @precondition(lambda self: self.passes)
    @rule(which=st.integers(0, MANY))
    def close_a_pass(self, which: int) -> None:
        one = self.passes[which % len(self.passes)]
        one.iterator.close()
        if not one.is_stale:
            assert next(one.iterator, "end") == "end"
            del self.passes[which % len(self.passes)]

    @rule()
    def close(self) -> None:
        self.loader.close()
        for one in self.passes:
            if not one.is_stale:
                assert next(one.iterator, "end") == "end"
        self.passes.clear()

    @rule()
    def use_what_was_kept(self) -> None:
        for tensor, number in self.kept:
            self.check(tensor, number)

    @precondition(lambda self: self.kept)
    @rule()
    def change_in_place_and_drop(self) -> None:
        tensor, number = self.kept.pop()
        copied = tensor.clone()
        self.check(copied, number)
        self.kept = [one for one in self.kept if one[1] != number]  # they may share its memory
        if self.name != "list" or self.factor == 2:  # else it is the list's own
            tensor.zero_()

    @rule(target=states, filed=st.booleans())
    def save(self, filed: bool) -> Any:
        state = self.loader.state_dict()
        state = pickle.loads(pickle.dumps(state)) if filed else copy.deepcopy(state)
        return self.name, self.length, self.place(), state

    @rule(saved=states)
    def load(self, saved: Any) -> None:
        name, length, place, state = saved
        assert (name, length) == (self.name, self.length)
        self.loader.load_state_dict(state)
        for one in self.passes:
            one.is_stale = True
        self.loaded = place

    @rule(key=st.sampled_from(["version", "way", "num_batches", "start", "since"]))
    def load_a_damaged_state(self, key: str) -> None:
        """It is refused, and nothing has changed."""
        state = self.loader.state_dict()
        state[key] = "damaged"
        with pytest.raises(ValueError, match="state"):
            self.loader.load_state_dict(state)

    @rule()
    def copy_the_loader(self) -> None:
        if self.factor == 1 and self.name != "DataLoader" and "twice" not in self.name:
            twin = pickle.loads(pickle.dumps(self.loader))
        else:  # lambdas
            twin = copy.deepcopy(self.loader)
        if "nested" in self.name:
            twin.close()
        for number, batch in enumerate(twin):
            self.check(batch, number)
        twin.close()

    @rule()
    def ask(self) -> None:
        repr(self.loader)
        assert bool(self.loader) in (True, self.length > 0)
        assert self.loader.statistics().num_batches >= 0
        with contextlib.suppress(TypeError):
            assert len(self.loader) == self.length

    @invariant()
    def the_state_tells_the_place(self) -> None:
        if hasattr(self, "loader"):
            state = self.loader.state_dict()
            assert (state["num_batches"], not state["start"]) == self.place()

    def teardown(self) -> None:
        if hasattr(self, "loader"):
            self.kept.clear()
            self.passes.clear()
            self.latest = None
            self.loader.close()
            del self.loader
            gc.collect()
            wait_until(lambda: not loader_threads(), "all threads have ended")
