"""Where a pass stands, and how to begin another one there.

Read-ahead makes the source's own state wrong by the batches in flight. So a position travels with
each batch, and the loader's state is that of the batch delivered last.

There are three ways to get back to a position. A source with state methods goes there itself. A
DataLoader begins its pass with the same random numbers, and its sampler leaves out what was
delivered. Anything else that can be iterated again is read from the beginning, and what was
delivered is thrown away.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import itertools
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

VERSION = 1


@dataclasses.dataclass(frozen=True)
class Position:
    """A place between two batches of a pass."""

    num_batches: int = 0
    source: Any = None
    """The source's own state there, where it has one."""
    finished: bool = False
    """Whether the pass is over: the next one comes then."""


class Start:
    """The beginning of one pass: opens the data and reads the first batch.

    Args:
        data: What to iterate.
        state: A state dict to begin at; None for the beginning.
    """

    def __init__(self, data: Any, state: dict[str, Any] | None) -> None:
        self._data = data
        self._way = way_of(data)
        self._skip = state["num_batches"] if state else 0
        self._stateful = stateful_of(data)
        self._again: dict[str, Any] = (state and state["start"]) or {}
        self._draws: dict[str, Any] = {}
        self._is_stream = False
        self.position = Position(self._skip, state["source"] if state else None)

    def open(self) -> Iterator[Any]:
        """Call `iter` of the data, with the random numbers of the pass that is resumed."""
        data = self._data
        if self._way == "skip" and self._skip:
            data = _skipping(data, self._skip)
        with self._drawing("iter"):
            iterator: Iterator[Any] = iter(data)
        self._is_stream = iterator is self._data
        self.position = self.snapshot(self._skip)
        return iterator

    def first(self, read: Callable[[], Any]) -> Any:
        """Read the first batch that was not delivered before."""
        with self._drawing("first"):
            for _ in range(self._skip if self._way == "replay" else 0):
                read()
            return read()

    def snapshot(self, num_batches: int, *, finished: bool = False) -> Position:
        """The position after so many batches, just read."""
        state = None
        if self._stateful is not None:
            try:
                # Copied: some give a live object, which goes on with the read-ahead.
                state = copy.deepcopy(self._stateful.state_dict())
            except (AttributeError, NotImplementedError):  # it only looks as if it had one
                self._stateful = None
        return Position(num_batches, state, finished)

    def cut_short(self, position: Position) -> Position:
        """The position after a pass that was ended by its bound and not by its source.

        The next pass begins anew, unless the source is a stream that goes on where it was left.
        """
        source = position.source if self._is_stream else None
        return Position(position.num_batches, source, finished=True)

    def state_at(self, position: Position) -> dict[str, Any]:
        """The state dict for a position of this pass."""
        if position.finished and self._way != "source":
            return fresh_state(self._data)
        state = fresh_state(self._data)
        state.update(
            num_batches=0 if position.finished else position.num_batches,
            start=dict(self._draws),
            source=copy.deepcopy(position.source),
        )
        return state

    @contextlib.contextmanager
    def _drawing(self, moment: str) -> Iterator[None]:
        """Note what random numbers come next, or begin with those noted by another pass."""
        if self._way == "source" or isinstance(self._data, (list, tuple)):
            yield
            return
        noted = self._again.get(moment)
        if noted is None:
            self._draws[moment] = _random_state(self._data)
            yield
            return
        self._draws[moment] = noted
        mine = _random_state(None)
        # Worker processes are given their first indices at `iter`, and so may draw the last of a
        # short rest there: generators must not be set back after that.
        early = moment == "first" and getattr(self._data, "num_workers", 0) > 0
        _set_random_state(noted, None if early else self._data)
        try:
            yield
        finally:
            # The program's own numbers go on where they were. The generators of the samplers
            # stay advanced, as they are after the same draws in the unbroken run.
            _set_random_state(mine, None)


def way_of(data: Any) -> str:
    """How to get back to a position: "source", "skip", "replay", or "none"."""
    if stateful_of(data) is not None:
        return "source"
    if type(data).__iter__ is DataLoader.__iter__ if isinstance(data, DataLoader) else False:
        return "replay" if isinstance(data.dataset, IterableDataset) else "skip"
    return "none" if isinstance(data, Iterator) else "replay"


def stateful_of(data: Any) -> Any:
    """What has the state: the data, or a dataset that a DataLoader reads in this process."""
    if _has_state(data):
        return data
    dataset = getattr(data, "dataset", None)
    if isinstance(dataset, IterableDataset) and getattr(data, "num_workers", 1) == 0:
        return dataset if _has_state(dataset) else None
    return None


def fresh_state(data: Any) -> dict[str, Any]:
    """The state at the beginning of the next pass.

    Raises:
        TypeError: If the data cannot be resumed; says why.
    """
    way = way_of(data)
    if way == "none":
        raise TypeError(
            f"a {type(data).__name__} cannot be resumed: what it gave is gone, and it cannot be "
            "asked again; give the loader something that can be iterated anew, or an iterator "
            "with state_dict and load_state_dict"
        )
    return {
        "version": VERSION,
        "way": way,
        "num_batches": 0,
        "length": _length(data),
        "start": {},
        "source": None,
        "generators": [generator.get_state() for generator in _generators(data)],
    }


def check_state(state: Any, data: Any) -> dict[str, Any]:
    """A copy of a state dict that fits the data.

    Raises:
        ValueError: If it is damaged or belongs to other data; names what does not fit.
        TypeError: If the data cannot be resumed.
    """
    wanted = fresh_state(data)
    if not isinstance(state, dict) or not wanted.keys() <= state.keys():
        missing = sorted(wanted.keys() - state.keys()) if isinstance(state, dict) else []
        raise ValueError(
            f"not a state of this loader: {f'it lacks {missing}' if missing else repr(state)[:80]}"
        )
    for name in ("version", "way", "length"):
        if state[name] != wanted[name]:
            raise ValueError(
                f"the state does not fit: its {name} is {state[name]!r}, and that of the "
                f"{type(data).__name__} here is {wanted[name]!r}"
            )
    count = state["num_batches"]
    if type(count) is not int or count < 0:
        raise ValueError(f"the state is damaged: num_batches is {count!r}")
    try:
        for noted in state["start"].values():
            _check_random_state(noted, len(wanted["generators"]))
        _check_generators(state["generators"], len(wanted["generators"]))
    except Exception as error:
        raise ValueError(f"the state is damaged: its random numbers are not ({error})") from error
    return copy.deepcopy(state)


def restore(state: dict[str, Any], data: Any) -> None:
    """Bring the source, or its generators, to a checked state."""
    stateful = stateful_of(data)
    if stateful is not None:
        if state["source"] is not None:
            stateful.load_state_dict(copy.deepcopy(state["source"]))
    elif not state["start"]:
        for generator, saved in zip(_generators(data), state["generators"], strict=True):
            generator.set_state(saved)


# ---- skipping


class _Skipping:
    """The rest of what a sampler gives."""

    def __init__(self, sampler: Any, count: int) -> None:
        self._sampler, self._count = sampler, count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._sampler), self._count, None)

    def __len__(self) -> int:
        return len(self._sampler)


def _skipping(loader: Any, count: int) -> Any:
    """The same DataLoader, of whatever class, but for a sampler that starts further on."""
    rest = copy.copy(loader)
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    vars(rest)[name] = _Skipping(getattr(loader, name), count)
    vars(rest)["_iterator"] = None  # worker processes of its own
    return rest


# ---- random numbers


def _random_state(data: Any) -> dict[str, Any]:
    """The state of all that a sampler may draw from."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = (name, keys.tolist(), *rest)
    state["generators"] = [generator.get_state() for generator in _generators(data)]
    state["epochs"] = [sampler.epoch for sampler in _with_epoch(data)]
    return state


def _set_random_state(state: dict[str, Any], data: Any) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    for generator, saved in zip(_generators(data), state["generators"], strict=False):
        generator.set_state(saved)
    for sampler, epoch in zip(_with_epoch(data), state["epochs"], strict=False):
        sampler.set_epoch(epoch)


def _check_random_state(state: dict[str, Any], num_generators: int) -> None:
    torch.Generator().set_state(state["torch"])
    random.Random().setstate(state["python"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.RandomState().set_state(state["numpy"])
    _check_generators(state["generators"], num_generators)


def _check_generators(states: list[torch.Tensor], count: int) -> None:
    if len(states) != count:
        raise ValueError(f"{len(states)} generators were saved, there are {count}")
    for saved in states:
        torch.Generator().set_state(saved)


def _samplers(data: Any) -> list[Any]:
    batch_sampler = getattr(data, "batch_sampler", None)
    found = (
        getattr(data, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
    )
    return list({id(one): one for one in found if one is not None}.values())


def _generators(data: Any) -> list[torch.Generator]:
    """The generators that a DataLoader and its samplers were given, each once."""
    found = [getattr(one, "generator", None) for one in [data, *_samplers(data)]]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def _with_epoch(data: Any) -> list[Any]:
    return [
        one
        for one in _samplers(data)
        if hasattr(one, "set_epoch") and isinstance(getattr(one, "epoch", None), int)
    ]


def _has_state(data: Any) -> bool:
    state_dict = getattr(data, "state_dict", None)
    if not (callable(state_dict) and callable(getattr(data, "load_state_dict", None))):
        return False
    try:
        # Some streaming datasets ask their own loader how far it has come: not for us to call.
        inspect.signature(state_dict).bind()
    except TypeError:
        return False
    except ValueError:  # written in C, without a signature
        pass
    return True


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:
        return None
