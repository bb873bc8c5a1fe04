"""G10: next, state, load, break and new passes in any order, against a model that is a list."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sidestream import AsynchronousLoader
from support.resuming import LENGTH, Batches, Resumable, loading, through_a_file

SOURCES = {
    "list": lambda: list(range(LENGTH)),
    "iterable": Batches,
    "DataLoader": loading,
    "a source with a state": lambda: loading(Resumable()),
    "nested": lambda: AsynchronousLoader(loading(), "cpu"),
}


class Resuming(RuleBasedStateMachine):
    """A place is (batches delivered, whether the pass is over)."""

    states = Bundle("states")

    @initialize(name=st.sampled_from(sorted(SOURCES)), size=st.sampled_from([0, 1, 2, 9]))
    def make(self, name: str, size: int) -> None:
        self.name, self.size = name, size
        self.expected = [value(batch) for batch in SOURCES[name]()]
        self.start_again()

    @rule()
    def start_again(self) -> None:
        """Another process."""
        self.loader = AsynchronousLoader(SOURCES[self.name](), "cpu", buffer_size=self.size)
        self.iterator: Any = None
        self.place = (0, True)
        self.is_stale = self.is_loaded = False

    @rule()
    def begin(self) -> None:
        self.iterator = iter(self.loader)
        count, over = self.place
        self.place = (count, over) if self.is_loaded and not over else (0, False)
        self.is_stale = self.is_loaded = False

    @precondition(lambda self: self.iterator is not None)
    @rule(times=st.integers(1, LENGTH + 1))
    def advance(self, times: int) -> None:
        for _ in range(times):
            if self.is_stale:
                # A pass that had ended before goes on saying so.
                with pytest.raises((RuntimeError, StopIteration), match=r"another state|^$"):
                    next(self.iterator)
                continue
            count, _ = self.place
            if count == LENGTH:
                assert next(self.iterator, "end") == "end"
                self.place = (count, True)
            else:
                assert value(next(self.iterator)) == self.expected[count]
                self.place = (count + 1, False)

    @precondition(lambda self: self.iterator is not None)
    @rule()
    def break_off(self) -> None:
        self.iterator = None

    @rule(target=states, filed=st.booleans())
    def save(self, filed: bool) -> Any:
        state = self.loader.state_dict()
        return self.name, self.place, through_a_file(state) if filed else copy.deepcopy(state)

    @rule(saved=states)
    def load(self, saved: Any) -> None:
        name, place, state = saved
        assert name == self.name
        self.loader.load_state_dict(state)
        self.place = place
        self.is_stale = self.is_loaded = True

    @precondition(lambda self: hasattr(self, "place"))
    @invariant()
    def the_state_tells_the_place(self) -> None:
        count, over = self.place
        state = self.loader.state_dict()
        assert (state["num_batches"], not state["start"]) == (0 if over else count, over)

    def teardown(self) -> None:
        if hasattr(self, "loader"):
            self.loader.close()
            self.iterator = None


def value(batch: Any) -> int:
    return batch if isinstance(batch, int) else int(batch.flatten()[0])


TestResuming = Resuming.TestCase
TestResuming.settings = settings(deadline=None, max_examples=40, stateful_step_count=25)
