"""All that a program may do with a loader, in any order, on the CPU; and damaged states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sidestream import AsynchronousLoader
from support.face import SOURCES, Face

TestFace = Face.TestCase
TestFace.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)

THINGS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 10),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.binary(max_size=5),
        st.sampled_from([torch.zeros(3), torch.zeros(0), torch.get_rng_state(), int, ...]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers()), inner, max_size=3),
    ),
    max_leaves=6,
)
LENGTH = 5


def places_in(state: Any) -> list[tuple[Any, Any]]:
    """All containers in a state, and the keys in each."""
    found = []
    if isinstance(state, dict):
        found += [(state, key) for key in state]
        for value in state.values():
            found += places_in(value)
    elif isinstance(state, list):
        found += [(state, index) for index in range(min(len(state), 4))]
        for value in state[:4]:
            found += places_in(value)
    return found


def number_of(batch: torch.Tensor) -> int:
    return int(batch[0, 0])


def numbers(loader: Any) -> list[int]:
    return [number_of(batch) for batch in loader]


def raised_by(kind: type[Exception], function: Callable[[], Any]) -> Exception | None:
    try:
        function()
    except kind as error:
        return error
    return None


@pytest.mark.parametrize("name", SOURCES)
@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(data=st.data(), count=st.integers(0, LENGTH + 1), num_changes=st.integers(1, 3))
def test_a_damaged_state_is_an_error_and_never_a_wrong_epoch(
    name: str, data: Any, count: int, num_changes: int
) -> None:
    loader = AsynchronousLoader(SOURCES[name](LENGTH, "cpu"), "cpu")
    iterator = iter(loader)
    for _ in range(count):
        next(iterator, None)
    state = loader.state_dict()
    for _ in range(num_changes):
        places = places_in(state)
        if not places:
            break
        # How a state is built differs from run to run: a source's own is taken when it is cheap.
        holder, key = places[data.draw(st.integers(0, 1 << 16), label="place") % len(places)]
        is_taken_out = data.draw(st.booleans(), label="taken out")
        thing = data.draw(THINGS, label="instead")
        if isinstance(holder, dict) and is_taken_out:
            del holder[key]
        else:
            holder[key] = thing
    before = loader.state_dict()["num_batches"]
    if (refusal := raised_by(ValueError, lambda: loader.load_state_dict(state))) is not None:
        assert "state" in str(refusal)
        assert loader.state_dict()["num_batches"] == before
        rest: list[int] = []
        stopped = raised_by(RuntimeError, lambda: rest.extend(map(number_of, iterator)))
        if stopped is None:  # the pass goes on
            assert rest == list(range(min(count, LENGTH), LENGTH))
        else:  # the source refused its part, when passes were closed
            assert "another state" in str(stopped)
    else:  # a place that can be: then the rest from there
        rest = numbers(loader)
        assert rest == list(range(LENGTH - len(rest), LENGTH))
    assert numbers(loader) == list(range(LENGTH))
    loader.close()


@given(thing=THINGS)
@settings(deadline=None, max_examples=60)
def test_what_is_no_state_is_refused(thing: Any) -> None:
    loader = AsynchronousLoader(SOURCES["list"](LENGTH, "cpu"), "cpu")
    with pytest.raises(ValueError, match="not a state"):
        loader.load_state_dict(thing)
    assert numbers(loader) == list(range(LENGTH))
