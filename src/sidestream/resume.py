"""Where a pass stands, and how to begin another one there.

Read-ahead makes the source's own state wrong by the batches in flight. So a position travels with
each batch, and the loader's state is that of the batch delivered last.

Every pass begins with random numbers, which are noted, and begins again with the same. What was
delivered is then left out, in one of three ways. A source with state methods goes there itself.
The sampler of a DataLoader leaves it out, and nothing of it is read. Anything else is read, and
what was delivered is thrown away; so is a DataLoader when what it reads draws random numbers.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from sidestream import randomness
from sidestream.rest import Watch, forks, is_persistent, is_plain, is_warm, rest_of

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
    """The source's own state there, where it has one; the error where it did not give it."""
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
        self._way = state["way"] if state else ways_of(data)[0]
        if self._way == "skip" and not forks(data) and randomness.generators_of(data.dataset):
            self._way = "replay"  # it most likely draws from what it holds
        # The random numbers that come next at `iter`, and with the first batch.
        self._random: dict[str, Any] = dict(state["start"]) if state else {}
        self._is_warm = state["warm"] if state else is_warm(data)
        self._watch = Watch(data)
        self._unpaid_s = 0.0
        self._taken: tuple[Any, int] = None, 0  # the source's latest state, after so many batches
        self.position = (
            Position(state["num_batches"], None, state["since"]) if state else Position()
        )
        """After the batch read last."""

    def open(self) -> Iterator[Any]:
        """Call `iter` of the data, with the random numbers of the pass that is resumed."""
        data, begin = self._data, self.position
        skip = begin.num_batches if self._way == "skip" else 0
        with self._moment("iter"):
            if skip or self._is_warm != is_warm(data):
                start = self._random["iter"] if self._is_warm else None
                data = rest_of(data, skip, start, self._watch)
            iterator: Iterator[Any] = iter(data)
        if is_persistent(data):
            vars(self._data)["_iterator"] = iterator
        self._take_state(begin.num_batches - begin.since)
        self.position = self._position(begin.num_batches)
        return iterator

    def first(self, read: Callable[[], Any]) -> Any:
        """Read the first batch that was not delivered before.

        Raises:
            ReadAgain: If that needs another iterator. What is read with that is right.
        """
        begin = self.position
        with self._moment("first"):
            again = begin.num_batches if self._way == "replay" else begin.since
            batch = randomness.read_past(read, again, self._watch.drawn)
        if self._watch.has_drawn:
            self._way, self._watch = "replay", Watch(self._data)
            raise ReadAgain
        return batch

    @contextlib.contextmanager
    def _moment(self, moment: str) -> Iterator[None]:
        """Note what random numbers come next, or begin with those noted by another pass."""
        noted = self._random.get(moment)
        if noted is None:
            # With worker processes the samplers' first numbers are drawn at `iter`.
            if moment == "iter" or not forks(self._data):
                self._random[moment] = randomness.random_state(self._data)
            yield
            return
        mine = randomness.random_state()
        # Generators must not be set back where the samplers, or the source, have used them.
        used = self._way == "source" or (moment == "first" and forks(self._data))
        randomness.set_random_state(noted, None if used else self._data, self._watch.drawn)
        try:
            yield
            if self.position.num_batches:
                self._random.setdefault("first", randomness.random_state(self._data))
        finally:
            # The program's own numbers go on where they were; what the source draws as it goes
            # on stays where that left it. So do the generators of the samplers.
            randomness.set_random_state(mine, None, self._watch.drawn)

    def snapshot(self, num_batches: int, read_s: float) -> None:
        """Note the position after so many batches, the last of them just read, in this time."""
        self._unpaid_s -= read_s
        self.position = self._position(num_batches)
        if self._unpaid_s <= 0:
            self._take_state(num_batches)

    def finish(self, num_batches: int) -> None:
        """Note the position after the end, seen after so many batches."""
        self._take_state(num_batches)
        self.position = dataclasses.replace(self._position(num_batches), finished=True)

    def _position(self, num_batches: int) -> Position:
        if self._way != "source":
            return Position(num_batches)
        state, taken_at = self._taken
        return Position(num_batches, state, num_batches - taken_at)

    def _take_state(self, num_batches: int) -> None:
        """Take the source's state as that after so many batches, if it has one."""
        if self._way != "source":
            return
        started = time.perf_counter()
        try:
            # Copied: some give a live object, which goes on with the read-ahead.
            state = copy.deepcopy(_stateful(self._data).state_dict())
        except (AttributeError, NotImplementedError):  # it only looks as if it had one
            self._way = (*ways_of(self._data)[1:], "none")[0]
            return
        except Exception as error:  # noqa: BLE001 - nobody may ever ask for the state
            state = error.with_traceback(None)  # which would hold this object
        self._taken = state, num_batches
        self._unpaid_s = (time.perf_counter() - started) / STATE_SHARE

    def cut_short(self, iterator: Iterator[Any]) -> None:
        """Note that the pass was ended by its bound and not by its source.

        The next pass begins anew, unless the source is a stream that goes on where it was left.
        """
        is_stream = iterator is self._data
        last = self.position if is_stream else Position(self.position.num_batches)
        self.position = dataclasses.replace(last, finished=True)

    def state_at(self, position: Position) -> dict[str, Any]:
        """The state dict for a position of this pass.

        Raises:
            TypeError: If the source cannot be resumed, or did not give its state.
        """
        if isinstance(position.source, Exception):
            raise TypeError(
                f"this {type(self._data).__name__} cannot be resumed: {position.source}"
            ) from position.source
        state = _blank(self._data, self._way)
        state.update(source=copy.deepcopy(position.source), since=position.since)
        if not position.finished:
            state.update(
                num_batches=position.num_batches, start=dict(self._random), warm=self._is_warm
            )
        return state


def ways_of(data: Any) -> tuple[str, ...]:
    """How to get back to a position, the best first: "source", "skip", "replay"; or "none"."""
    ways = []
    if _stateful(data) is not None:
        ways.append("source")
    if is_plain(data):
        ways += ["replay"] if isinstance(data.dataset, IterableDataset) else ["skip", "replay"]
    elif not isinstance(data, Iterator):
        ways.append("replay")
    return tuple(ways) or ("none",)


def length_or_none(data: Any) -> int | None:
    """The length of what may have none."""
    try:
        return len(data)
    except TypeError:
        return None


def fresh_state(data: Any) -> dict[str, Any]:
    """The state before the first pass.

    Raises:
        TypeError: If the data cannot be resumed; says why.
    """
    start = Start(data, None)
    start.finish(0)
    return start.state_at(start.position)


def check_state(state: Any, data: Any) -> dict[str, Any]:
    """A copy of a state dict that fits the data.

    Raises:
        ValueError: If it is damaged or belongs to other data; names what does not fit.
        TypeError: If the data cannot be resumed.
    """
    ways = ways_of(data)
    wanted = _blank(data, ways[0])
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
            randomness.check_random_state(noted, data)
        randomness.check_generators(state["generators"], data)
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
        randomness.set_generators(data, state["generators"])


def _blank(data: Any, way: str) -> dict[str, Any]:
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
        "warm": is_warm(data),
        "source": None,
        "since": 0,
        "generators": randomness.generator_states(data),
    }


def _description(data: Any) -> list[Any]:
    """What tells two sources apart: length, batch size and samplers. By no means all."""
    size = getattr(data, "batch_size", None)
    samplers = [type(sampler).__name__ for sampler in randomness.samplers_of(data)]
    return [length_or_none(data), size if isinstance(size, int) else None, samplers]


def _check_place(state: dict[str, Any]) -> None:
    count, since, way, begun = (state[name] for name in ("num_batches", "since", "way", "start"))
    for name, kind in (("num_batches", int), ("since", int), ("warm", bool), ("start", dict)):
        if type(state[name]) is not kind or (kind is int and state[name] < 0):
            raise ValueError(f"{name} is {state[name]!r:.80}")
    if since and way != "source":
        raise ValueError(f"since is {since}, at batch {count}")
    if way == "skip" and count > state["of"][0]:
        raise ValueError(f"num_batches is {count}, of {state['of'][0]}")
    if (count or begun) and not {"iter"} <= begun.keys() <= {"iter", "first"}:
        raise ValueError("the random numbers that the pass began with are missing")
    if way == "source" and count and state["source"] is None:
        raise ValueError("the source's own state is missing")


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
