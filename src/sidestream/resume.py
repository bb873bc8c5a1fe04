"""Where a pass stands, and how to begin another one there.

Read-ahead makes the source's own state wrong by the batches in flight. So a position travels with
each batch, and the loader's state is that of the batch delivered last.

There are three ways to get back to a position. A source with state methods goes there itself. A
DataLoader begins its pass with the same random numbers, and its sampler leaves out what was
delivered. Anything else that can be iterated again is read from the beginning, and what was
delivered is thrown away; so is a DataLoader when what it reads draws random numbers.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import operator
import random
import sys
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

VERSION = 1

STATE_SHARE = 0.02
"""How much of the reading time may go into taking a source's states. Where one costs more than
this share of a batch, it is taken less often, and on resuming the batches since then are read
again: for 1 / share times the time of a state at most."""


@dataclasses.dataclass(frozen=True)
class Position:
    """A place between two batches of a pass."""

    num_batches: int = 0
    source: Any = None
    """The source's own state there, where it has one."""
    since: int = 0
    """How many batches ago that was taken [batches]. Within a pass never 0 after a batch: a state
    from behind the last one makes some sources begin anew, where the rest of the pass is empty."""
    finished: bool = False
    """Whether the pass is over: the next one comes then."""


class ReadAgain(Exception):  # noqa: N818 - a request, not an error
    """Random numbers hang on what was left out: open the data again, and read it all."""


class Start:
    """The beginning of one pass: opens the data and reads the first batch.

    Args:
        data: What to iterate.
        state: A checked state dict to begin at; None for the beginning.
    """

    def __init__(self, data: Any, state: dict[str, Any] | None) -> None:
        self._data = data
        self._state = state
        self._way = state["way"] if state else ways_of(data)[0]
        self._skip = state["num_batches"] if state else 0
        self._since = state["since"] if state else 0
        self._unpaid_s = 0.0
        self._again: dict[str, Any] = {}
        self._draws: dict[str, Any] = {}
        self._is_warm = False
        self._is_stream = False
        self._refusal: Exception | None = None
        self._watch = _Watch(data)
        self.position = Position(self._skip)
        self._latest = self.position

    def open(self) -> Iterator[Any]:
        """Call `iter` of the data, with the random numbers of the pass that is resumed."""
        data, state = self._data, self._state
        self._is_warm = _is_warm(data)
        if state is not None:
            self._is_warm, self._again = state["warm"], dict(state["start"])
            if self._way == "skip" and not _forks(data) and _generators(data.dataset):
                self._way = "replay"  # it most likely draws from what it holds
            skip = self._skip if self._way == "skip" else 0
            if skip or _is_persistent(data):
                data = _rest_of(data, skip, self._is_warm, self._watch)
        with self._drawing("iter"):
            iterator: Iterator[Any] = iter(data)
        if _is_persistent(data):
            vars(self._data)["_iterator"] = iterator
        self._is_stream = iterator is self._data
        self._latest = dataclasses.replace(self.snapshot(self._skip), since=self._since)
        self.position = self._latest
        return iterator

    def first(self, read: Callable[[], Any]) -> Any:
        """Read the first batch that was not delivered before.

        Raises:
            ReadAgain: If that needs another iterator. What is read with that is right.
        """
        with self._drawing("first"):
            begun = None
            try:
                for _ in range(self._skip if self._way == "replay" else self._since):
                    read()
                    begun = begun or _random_state(None)
                batch = read()
            finally:
                if begun is not None:
                    self._watch.drawn |= _moved(begun, _random_state(None))
        if self._watch.has_drawn:
            self._way, self._watch = "replay", _Watch(self._data)
            raise ReadAgain
        return batch

    def snapshot(
        self, num_batches: int, read_s: float = 0.0, *, finished: bool = False
    ) -> Position:
        """The position after so many batches, just read, the last of them in this time."""
        self._unpaid_s -= read_s
        last = self._latest
        before = Position(num_batches, last.source, last.since + 1)
        if self._way != "source" or self._refusal is not None:
            self._latest = Position(num_batches, finished=finished)
        elif self._unpaid_s > 0 and not finished:
            self._latest = before
        else:
            started = time.perf_counter()
            self._latest = Position(num_batches, self._take_state(), finished=finished)
            self._unpaid_s = (time.perf_counter() - started) / STATE_SHARE
            if self._way == "source" and not finished and num_batches > self._skip:
                return before
        return self._latest

    def _take_state(self) -> Any:
        try:
            # Copied: some give a live object, which goes on with the read-ahead.
            return copy.deepcopy(_stateful(self._data).state_dict())
        except (AttributeError, NotImplementedError):  # it only looks as if it had one
            self._way = (*ways_of(self._data)[1:], "none")[0]
        except Exception as error:  # noqa: BLE001 - nobody may ever ask for the state
            self._refusal = error.with_traceback(None)  # which would hold this object
        return None

    def cut_short(self, position: Position) -> Position:
        """The position after a pass that was ended by its bound and not by its source.

        The next pass begins anew, unless the source is a stream that goes on where it was left.
        """
        if not self._is_stream:
            position = Position(position.num_batches)
        return dataclasses.replace(position, finished=True)

    def state_at(self, position: Position) -> dict[str, Any]:
        """The state dict for a position of this pass.

        Raises:
            TypeError: If the source cannot be resumed, or did not give its state.
        """
        if self._refusal is not None:
            raise TypeError(
                f"this {type(self._data).__name__} cannot be resumed: {self._refusal}"
            ) from self._refusal
        state = _fresh_state(self._data, self._way)
        if not position.finished:
            state.update(
                num_batches=position.num_batches, start=dict(self._draws), warm=self._is_warm
            )
        state.update(source=copy.deepcopy(position.source), since=position.since)
        return state

    @contextlib.contextmanager
    def _drawing(self, moment: str) -> Iterator[None]:
        """Note what random numbers come next, or begin with those noted by another pass."""
        noted = self._again.get(moment)
        forks = _forks(self._data)
        if noted is None:
            # With worker processes the samplers' first numbers are drawn at `iter`.
            if moment == "iter" or not forks:
                self._draws[moment] = _random_state(self._data)
            yield
            return
        self._draws[moment] = noted
        mine = _random_state(None)
        # Generators must not be set back where the samplers, or the source, have used them.
        used = self._way == "source" or (moment == "first" and forks)
        _set_random_state(noted, None if used else self._data, self._watch.drawn)
        try:
            yield
            if self._skip:
                self._again.setdefault("first", _random_state(self._data))
        finally:
            # The program's own numbers go on where they were; what the source draws as it goes
            # on stays where that left it. So do the generators of the samplers.
            _set_random_state(mine, None, self._watch.drawn)


def ways_of(data: Any) -> tuple[str, ...]:
    """How to get back to a position, the best first: "source", "skip", "replay"; or "none"."""
    ways = []
    if _stateful(data) is not None:
        ways.append("source")
    if isinstance(data, DataLoader) and type(data).__iter__ is DataLoader.__iter__:
        ways += ["replay"] if isinstance(data.dataset, IterableDataset) else ["skip", "replay"]
    elif not isinstance(data, Iterator):
        ways.append("replay")
    return tuple(ways) or ("none",)


def fresh_state(data: Any) -> dict[str, Any]:
    """The state before the first pass.

    Raises:
        TypeError: If the data cannot be resumed; says why.
    """
    start = Start(data, None)
    return start.state_at(start.snapshot(0, finished=True))


def check_state(state: Any, data: Any) -> dict[str, Any]:
    """A copy of a state dict that fits the data.

    Raises:
        ValueError: If it is damaged or belongs to other data; names what does not fit.
        TypeError: If the data cannot be resumed.
    """
    ways = ways_of(data)
    wanted = _fresh_state(data, ways[0])
    if not isinstance(state, dict):
        raise ValueError(f"not a state of this loader: {repr(state)[:80]}")
    missing = sorted(wanted.keys() - state.keys())
    if missing:
        raise ValueError(f"not a state of this loader: it lacks {missing}")
    try:
        fits = bool(
            state["version"] == VERSION and state["way"] in ways and state["of"] == wanted["of"]
        )
    except Exception:  # noqa: BLE001 - a damaged state may hold what cannot be compared
        fits = False
    if not fits:
        raise ValueError(
            "the state does not fit: it is of "
            f"({state['version']!r}, {state['way']!r}, {state['of']!r}), and the "
            f"{type(data).__name__} here takes ({VERSION}, {' or '.join(ways)}, {wanted['of']!r})"
        )
    try:
        _check_place(state)
        for noted in state["start"].values():
            _check_random_state(noted, data)
        _check_list(state["generators"], _generators(data), torch.Generator().set_state)
        return copy.deepcopy(state)
    except Exception as error:
        raise ValueError(f"the state is damaged: {error}") from error


def restore(state: dict[str, Any], data: Any) -> None:
    """Bring the source, or its generators, to a checked state.

    Raises:
        ValueError: If the source does not take its part.
        TimeoutError: If the source is a loader, and closing its passes takes too long.
    """
    if state["way"] == "source":
        if state["source"] is not None:
            try:
                _stateful(data).load_state_dict(copy.deepcopy(state["source"]))
            except TimeoutError:
                raise
            except Exception as error:
                raise ValueError(
                    f"the state is damaged, or of another source: the {type(data).__name__} "
                    f"did not take its part, {type(error).__name__}: {error}"
                ) from error
    elif not state["start"]:
        for generator, saved in zip(_generators(data), state["generators"], strict=True):
            generator.set_state(saved)


def _fresh_state(data: Any, way: str) -> dict[str, Any]:
    if way == "none":
        raise TypeError(
            f"a {type(data).__name__} cannot be resumed: what it gave is gone, and it cannot be "
            "asked again; give the loader something that can be iterated anew, or an iterator "
            "with state_dict and load_state_dict"
        )
    return {
        "version": VERSION,
        "way": way,
        "of": _description(data),
        "num_batches": 0,
        "start": {},
        "warm": _is_warm(data),
        "source": None,
        "since": 0,
        "generators": [generator.get_state() for generator in _generators(data)],
    }


def _description(data: Any) -> list[Any]:
    """What tells two sources apart: length, batch size and samplers. By no means all."""
    try:
        length = len(data)
    except TypeError:
        length = None
    size = getattr(data, "batch_size", None)
    samplers = [type(sampler).__name__ for sampler in _samplers(data)]
    return [length, size if isinstance(size, int) else None, samplers]


def _check_place(state: dict[str, Any]) -> None:
    count, since, way, begun = (state[name] for name in ("num_batches", "since", "way", "start"))
    for name, kind in (("num_batches", int), ("since", int), ("warm", bool), ("start", dict)):
        if type(state[name]) is not kind or (kind is int and state[name] < 0):
            raise ValueError(f"{name} is {state[name]!r:.80}")
    if (since and way != "source") or (begun and since > count):
        raise ValueError(f"since is {since}, at batch {count}")
    if way == "skip" and count > state["of"][0]:
        raise ValueError(f"num_batches is {count}, of {state['of'][0]}")
    if (count or begun) and not {"iter"} <= begun.keys() <= {"iter", "first"}:
        raise ValueError("the random numbers that the pass began with are missing")
    if way == "source" and count and state["source"] is None:
        raise ValueError("the source's own state is missing")


# ---- skipping


class _Watch:
    """Sees what random numbers a resumed pass draws after its beginning."""

    def __init__(self, data: Any) -> None:
        self.drawn: set[str] = set()
        """The kinds that the source draws from as it goes on, in this process."""
        self._dataset = getattr(data, "dataset", None)
        self._forks = _forks(data)
        self._init = getattr(data, "worker_init_fn", None)
        self._collate = getattr(data, "collate_fn", None)
        self._before: dict[str, Any] | None = None
        self._flag: torch.Tensor | None = None

    def put_into(self, loader: Any) -> None:
        """Look on in a DataLoader, in its worker processes too."""
        self._flag = torch.zeros(1)
        if self._forks:
            self._flag.share_memory_()  # type: ignore[no-untyped-call]
        vars(loader).update(worker_init_fn=self._begin_worker, collate_fn=self._collated)

    @property
    def has_drawn(self) -> bool:
        """Whether what made the first batches out of their indices has drawn any."""
        return self._flag is not None and bool(self._flag)

    def begin(self) -> None:
        """What the dataset draws now is seen."""
        self._before = _random_state(self._dataset)

    def _begin_worker(self, worker_id: int) -> None:
        if self._init is not None:
            self._init(worker_id)
        self.begin()

    def _collated(self, samples: Any) -> Any:
        batch = self._collate(samples)  # type: ignore[misc]
        before, self._before = self._before, None
        if before is not None and _moved(before, _random_state(self._dataset)):
            self._flag.fill_(1)  # type: ignore[union-attr]
        return batch


class _Skipping:
    """The rest of what a sampler gives; in later passes all of it, before the first nothing."""

    def __init__(self, sampler: Any, watch: _Watch) -> None:
        self._sampler, self._watch = sampler, watch
        self.count: int | None = None

    def __iter__(self) -> Iterator[Any]:
        return self._rest(iter(self._sampler))

    def _rest(self, indices: Iterator[Any]) -> Iterator[Any]:
        count, self.count = self.count, 0
        if count is None:
            return
        begun = None
        for number, one in enumerate(indices):
            if number == 0 and count:
                begun = _random_state(None)
            if number == count and begun is not None:
                self._watch.drawn |= _moved(begun, _random_state(None))
                self._watch.begin()
            if number >= count:
                yield one

    def __len__(self) -> int:
        return len(self._sampler)


def _rest_of(loader: Any, count: int, is_warm: bool, watch: _Watch) -> Any:
    """The same DataLoader, of whatever class, but for a sampler that starts further on.

    Persistent worker processes are started, and their seed drawn, in the first pass only.
    """
    rest = copy.copy(loader)
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    skipping = _Skipping(getattr(loader, name), watch)
    vars(rest).update({name: skipping, "_iterator": None})  # worker processes of its own
    if count:
        watch.put_into(rest)
    if is_warm:
        before = _random_state(loader)
        iter(rest)
        _set_random_state(before, loader)
    skipping.count = count
    return rest


def _forks(data: Any) -> bool:
    """Whether it reads in worker processes."""
    return isinstance(data, DataLoader) and data.num_workers > 0


def _is_persistent(data: Any) -> bool:
    return (
        isinstance(data, DataLoader)
        and type(data).__iter__ is DataLoader.__iter__
        and data.persistent_workers
        and data.num_workers > 0
    )


def _is_warm(data: Any) -> bool:
    """Whether it has worker processes that wait for the next pass."""
    return _is_persistent(data) and data._iterator is not None


# ---- random numbers


def _random_state(data: Any) -> dict[str, Any]:
    """The state of all that a sampler or a dataset may draw from."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        now = numpy.random.get_state(legacy=False)
        if now["bit_generator"] == "MT19937":  # with another one numpy cannot set it back
            keys, place = now["state"]["key"].tolist(), int(now["state"]["pos"])
            state["numpy"] = ("MT19937", keys, place, int(now["has_gauss"]), float(now["gauss"]))
    state["generators"] = [generator.get_state() for generator in _generators(data)]
    state["epochs"] = [part.epoch for part in _with_epoch(data)]
    return state


def _set_random_state(state: dict[str, Any], data: Any, but: Collection[str] = ()) -> None:
    if "torch" not in but:
        torch.set_rng_state(state["torch"])
    if "python" not in but:
        random.setstate(state["python"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state.keys() - but:
        numpy.random.set_state(state["numpy"])
    if data is not None:
        for generator, saved in zip(_generators(data), state["generators"], strict=True):
            generator.set_state(saved)
        for part, epoch in zip(_with_epoch(data), state["epochs"], strict=True):
            if part.epoch != epoch:
                part.set_epoch(epoch)


def _moved(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """The kinds of random numbers that were drawn between two states."""

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, torch.Tensor):
            return torch.equal(one, other)
        return all(map(same, one, other)) if isinstance(one, list) else bool(one == other)

    return {name for name in before.keys() & after.keys() if not same(before[name], after[name])}


def _check_random_state(state: dict[str, Any], data: Any) -> None:
    torch.Generator().set_state(state["torch"])
    random.Random().setstate(state["python"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.RandomState().set_state(state["numpy"])
    _check_list(state["generators"], _generators(data), torch.Generator().set_state)
    _check_list(state["epochs"], _with_epoch(data), operator.index)


def _check_list(states: Any, owners: list[Any], check: Callable[[Any], Any]) -> None:
    if type(states) is not list or len(states) != len(owners):
        raise ValueError(f"there are {len(owners)} generators and samplers for {states!r:.80}")
    for state in states:
        check(state)


def _samplers(data: Any) -> list[Any]:
    batch_sampler = getattr(data, "batch_sampler", None)
    found = (
        getattr(data, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
    )
    return list({id(one): one for one in found if one is not None}.values())


def _parts(data: Any) -> list[Any]:
    return [data, getattr(data, "dataset", None), *_samplers(data)]


def _generators(data: Any) -> list[torch.Generator]:
    """The generators that a source, its samplers and its dataset hold, each once."""
    held = [one for part in _parts(data) for one in getattr(part, "__dict__", {}).values()]
    found = {id(one): one for one in held if isinstance(one, torch.Generator)}
    return [one for one in found.values() if one.device.type == "cpu"]


def _with_epoch(data: Any) -> list[Any]:
    found = (
        one
        for one in _parts(data)
        if hasattr(one, "set_epoch") and isinstance(getattr(one, "epoch", None), int)
    )
    return list({id(one): one for one in found}.values())


# ---- the source's own state


def _stateful(data: Any) -> Any:
    """What has the state: the data, or a dataset that a DataLoader reads in this process."""
    if _has_state(data):
        return data
    dataset = getattr(data, "dataset", None)
    in_here = isinstance(dataset, IterableDataset) and getattr(data, "num_workers", 1) == 0
    return dataset if in_here and _has_state(dataset) else None


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
