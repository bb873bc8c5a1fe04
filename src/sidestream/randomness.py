"""The random numbers that come next: note them, put them back, see which kinds were drawn.

Three generators are everybody's: those of `torch`, `random` and `numpy`. Others are held by a
source, its dataset or its samplers, as is the epoch that a sampler shuffles by.
"""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Callable, Collection
from typing import Any

import torch


def random_state(data: Any = None) -> dict[str, Any]:
    """What everybody's generators give next, and those that a source holds. Of plain types."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    numpy = sys.modules.get("numpy")
    # With another bit generator than its first, numpy cannot set the state back.
    if numpy is not None and numpy.random.get_state(legacy=False)["bit_generator"] == "MT19937":
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = (name, keys.tolist(), *rest)
    state["generators"] = generator_states(data)
    state["epochs"] = [part.epoch for part in _with_epoch(data)]
    return state


def set_random_state(state: dict[str, Any], data: Any = None, but: Collection[str] = ()) -> None:
    """Let the same numbers come again, but for some kinds; those of a source too, if given."""
    for kind, put in _setters(fresh=False).items():
        if kind in state.keys() - but:
            put(state[kind])
    if data is not None:
        set_generators(data, state["generators"])
        for part, epoch in zip(_with_epoch(data), state["epochs"], strict=True):
            if part.epoch != epoch:
                part.set_epoch(epoch)


def check_random_state(state: dict[str, Any], data: Any) -> None:
    """Try a state on generators that are nobody's; raises what that raises."""
    for kind, put in _setters(fresh=True).items():
        if kind != "numpy" or kind in state:  # numpy need not have been there
            put(state[kind])
    check_generators(state["generators"], data)
    _check_all(state["epochs"], _with_epoch(data), operator.index)


def _setters(*, fresh: bool) -> dict[str, Callable[[Any], Any]]:
    """What sets each kind of everybody's generators, or of fresh ones."""
    setters: dict[str, Callable[[Any], Any]] = {
        "torch": (torch.Generator() if fresh else torch.default_generator).set_state,
        "python": (random.Random() if fresh else random).setstate,
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        setters["numpy"] = (numpy.random.RandomState() if fresh else numpy.random).set_state
    return setters


def generator_states(data: Any) -> list[torch.Tensor]:
    """What the generators that a source holds give next."""
    return [generator.get_state() for generator in generators_of(data)]


def set_generators(data: Any, states: list[torch.Tensor]) -> None:
    """Bring the generators that a source holds to these states."""
    for generator, state in zip(generators_of(data), states, strict=True):
        generator.set_state(state)


def check_generators(states: Any, data: Any) -> None:
    """Try on what `set_generators` is to take; raises what that raises."""
    _check_all(states, generators_of(data), torch.Generator().set_state)


def _check_all(states: Any, owners: list[Any], check: Callable[[Any], Any]) -> None:
    if type(states) is not list or len(states) != len(owners):
        raise ValueError(f"there are {len(owners)} generators and samplers for {states!r:.80}")
    for state in states:
        check(state)


def kinds_drawn(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """The kinds of random numbers that were drawn between two states."""

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, torch.Tensor):
            return torch.equal(one, other)
        return all(map(same, one, other)) if isinstance(one, list) else bool(one == other)

    return {kind for kind in before.keys() & after.keys() if not same(before[kind], after[kind])}


def read_past(read: Callable[[], Any], count: int, drawn: set[str]) -> Any:
    """Leave out so many, and return the next one.

    Args:
        read: Gives the next one, or raises `StopIteration`.
        count: How many to leave out.
        drawn: Takes in the kinds of random numbers that are drawn as the source goes on, after
            its first one: what comes with that belongs to the beginning of a pass.
    """
    begun = None
    try:
        for _ in range(count):
            read()
            begun = begun or random_state()
        return read()
    finally:
        if begun is not None:
            drawn |= kinds_drawn(begun, random_state())


# ---- who holds them


def parts_of(data: Any) -> list[Any]:
    """A source, its samplers and its dataset, each once."""
    return _each_once(data, *samplers_of(data), getattr(data, "dataset", None))


def samplers_of(data: Any) -> list[Any]:
    """The samplers of a DataLoader, or of what is like one, each once."""
    batch_sampler = getattr(data, "batch_sampler", None)
    inner = getattr(batch_sampler, "sampler", None)
    return _each_once(getattr(data, "sampler", None), batch_sampler, inner)


def generators_of(data: Any) -> list[torch.Generator]:
    """The generators that a source, its samplers and its dataset hold, each once."""
    held = [one for part in parts_of(data) for one in getattr(part, "__dict__", {}).values()]
    generators = _each_once(*(one for one in held if isinstance(one, torch.Generator)))
    return [one for one in generators if one.device.type == "cpu"]


def _with_epoch(data: Any) -> list[Any]:
    return [
        part
        for part in parts_of(data)
        if hasattr(part, "set_epoch") and isinstance(getattr(part, "epoch", None), int)
    ]


def _each_once(*things: Any) -> list[Any]:
    return list({id(one): one for one in things if one is not None}.values())
