"""G10: a resumed run is the unbroken one; G8: and both have the random numbers of a plain loop."""

from __future__ import annotations

import contextlib
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, WeightedRandomSampler

from sidestream import AsynchronousLoader
from support.resuming import (
    LENGTH,
    SAMPLES,
    Augmented,
    AugmentedStream,
    Batches,
    DrawnOneByOne,
    Items,
    OwnGenerator,
    Pairs,
    Permuted,
    Resumable,
    Stream,
    broken_run,
    generator,
    loading,
    plain_run,
    through_a_file,
)
from support.sources import LIMIT_S, Blocking, Raising
from support.waiting import Worker, is_blocked, wait_until

QUIET: dict[str, Callable[[], Any]] = {
    # These draw at the beginning of a pass only, or from a generator of their own.
    "list": lambda: list(Batches()),
    "iterable": Batches,
    "in order": loading,
    "shuffled": lambda: loading(shuffle=True),
    "shuffled by a generator": lambda: loading(shuffle=True, generator=generator()),
    "with a generator, in order": lambda: loading(generator=generator()),
    "with replacement": lambda: loading(
        sampler=RandomSampler(Items(), True, SAMPLES, generator=generator())
    ),
    "weighted": lambda: loading(
        sampler=WeightedRandomSampler(torch.linspace(1, 3, SAMPLES), SAMPLES)
    ),
    "permuted by numpy": lambda: loading(sampler=Permuted("numpy")),
    "permuted by python": lambda: loading(sampler=Permuted("python")),
    "a batch sampler": lambda: DataLoader(Items(), batch_sampler=Pairs(generator())),
    "samples as batches": lambda: DataLoader(
        list(Batches()), batch_size=None, shuffle=True, generator=generator()
    ),
    "distributed": lambda: loading(
        sampler=DistributedSampler([0] * 2 * SAMPLES, num_replicas=2, rank=1, seed=3)
    ),
    "stream": lambda: loading(Stream()),
    "stream with state": lambda: loading(Resumable()),
    "nested": lambda: AsynchronousLoader(loading(shuffle=True), "cpu"),
    "nested, with state": lambda: AsynchronousLoader(loading(Resumable()), "cpu"),
    "dataset's own generator": lambda: loading(OwnGenerator(), shuffle=True),
}
DRAWING: dict[str, Callable[[], Any]] = {
    # These draw from the global generators as they go on, in this process.
    "drawn one by one, numpy": lambda: loading(sampler=DrawnOneByOne("numpy")),
    "drawn one by one, python": lambda: loading(sampler=DrawnOneByOne("python")),
    "augmented by torch": lambda: loading(Augmented("torch"), shuffle=True),
    "augmented by python": lambda: loading(Augmented("python"), shuffle=True),
    "augmented by numpy": lambda: loading(Augmented("numpy"), shuffle=True, generator=generator()),
    "both": lambda: loading(Augmented("python"), sampler=DrawnOneByOne("python")),
    "augmented stream": lambda: loading(AugmentedStream()),
}
PLACES = [(0, 0), (0, 1), (0, LENGTH - 1), (0, LENGTH), (0, LENGTH + 1), (1, 2), (1, LENGTH + 1)]


@pytest.mark.parametrize("draws", [False, True], ids=["", "the loop draws"])
@pytest.mark.parametrize("name", QUIET)
def test_a_resumed_run_is_the_unbroken_one(name: str, draws: bool) -> None:
    unbroken = plain_run(QUIET[name], draws)
    for epoch, count in PLACES:
        assert broken_run(QUIET[name], draws, epoch, count) == unbroken, (epoch, count)


@pytest.mark.parametrize("name", DRAWING)
def test_what_a_source_draws_as_it_goes_on_is_drawn_again(name: str) -> None:
    unbroken = plain_run(DRAWING[name], draws=False)
    for epoch, count in PLACES:
        assert broken_run(DRAWING[name], False, epoch, count) == unbroken, (epoch, count)


def with_workers(dataset: Any = None, **options: Any) -> Any:
    return loading(dataset, num_workers=2, **options)


def worker_init(worker_id: int) -> None:
    torch.manual_seed(torch.initial_seed() + 17)


WORKERS: dict[str, Callable[[], Any]] = {
    "in order": with_workers,
    "shuffled": lambda: with_workers(shuffle=True),
    "shuffled by a generator": lambda: with_workers(shuffle=True, generator=generator()),
    "persistent": lambda: with_workers(shuffle=True, persistent_workers=True),
    "persistent, by a generator": lambda: with_workers(
        shuffle=True, generator=generator(), persistent_workers=True
    ),
    "stream": lambda: with_workers(Stream()),
    "persistent stream": lambda: with_workers(Stream(), persistent_workers=True),
    "drawn one by one": lambda: with_workers(sampler=DrawnOneByOne("numpy")),
    "augmented by torch": lambda: with_workers(Augmented("torch"), shuffle=True),
    "augmented by python": lambda: with_workers(Augmented("python"), shuffle=True),
    "augmented by numpy": lambda: with_workers(Augmented("numpy"), shuffle=True),
    "seeded by the user": lambda: with_workers(Augmented("torch"), worker_init_fn=worker_init),
    "dataset's own generator": lambda: with_workers(OwnGenerator(), shuffle=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", [(0, 0), (0, 3), (1, 2), (0, LENGTH + 1)], ids=str)
@pytest.mark.parametrize("name", WORKERS)
def test_a_resumed_run_with_workers(name: str, place: tuple[int, int]) -> None:
    draws = name != "drawn one by one"
    unbroken = plain_run(WORKERS[name], draws)
    assert broken_run(WORKERS[name], draws, *place) == unbroken


# ---- where and when


def test_sampled_indices_are_left_out_without_being_read() -> None:
    class Counted(Items):
        read = 0

        def __getitem__(self, index: int) -> Any:
            self.read += 1
            return super().__getitem__(index)

    loader = AsynchronousLoader(loading(Counted(), shuffle=True), "cpu")
    iterator = iter(loader)
    seen = [next(iterator) for _ in range(3)]
    state = loader.state_dict()
    data = loading(Counted(), shuffle=True)
    resumed = AsynchronousLoader(data, "cpu")
    resumed.load_state_dict(state)
    seen += resumed
    assert sorted(torch.cat(seen).flatten().tolist()) == list(range(SAMPLES))
    assert data.dataset.read == SAMPLES - 6


def test_more_worker_processes_or_none_give_the_same_order() -> None:
    for before, after in ((0, 2), (2, 0), (2, 1)):
        unbroken = plain_run(lambda before=before: loading(shuffle=True, num_workers=before), True)
        seen = broken_run(
            lambda before=before: loading(shuffle=True, num_workers=before),
            True,
            0,
            2,
            remake=lambda after=after: loading(shuffle=True, num_workers=after),
        )
        assert seen[0] == unbroken[0]


def test_a_resumed_run_is_broken_off_and_resumed_again() -> None:
    def make() -> Any:
        return AsynchronousLoader(loading(Augmented("torch"), shuffle=True), "cpu")

    torch.manual_seed(0)
    unbroken = [batch.tolist() for batch in loading(Augmented("torch"), shuffle=True)]
    torch.manual_seed(0)
    loader, seen = make(), []
    for _ in range(LENGTH):
        seen.append(next(iter(loader)).tolist())
        state = through_a_file(loader.state_dict())
        loader.close()
        torch.manual_seed(99)
        loader = make()
        loader.load_state_dict(state)
    assert list(loader) == []
    assert seen == unbroken


@pytest.mark.parametrize("count", [0, 2, LENGTH])
def test_a_pass_with_a_bound(count: int) -> None:
    def make() -> Any:
        return AsynchronousLoader(loading(shuffle=True, generator=generator()), num_batches=4)

    wanted = make()
    first, second = ([batch.tolist() for batch in wanted] for _ in range(2))
    loader = make()
    iterator = iter(loader)
    seen = [batch.tolist() for batch in itertools.islice(iterator, count)]
    state = loader.state_dict()
    loader = make()
    loader.load_state_dict(state)
    passes = [[batch.tolist() for batch in loader] for _ in range(2)]
    if count < 4:
        assert [seen + passes[0], passes[1]] == [first, second]
    else:
        assert [seen, passes[0]] == [first, second]


def test_a_stream_in_bounded_passes_goes_on_where_the_pass_before_was_cut(
    buffer_size: int,
) -> None:
    class Numbers(Iterator[int]):
        next = 0

        def __next__(self) -> int:
            self.next += 1
            return self.next - 1

        def state_dict(self) -> dict[str, Any]:
            return {"next": self.next}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.next = state["next"]

    seen: list[int] = []
    state = None
    for count in (4, 1, 1, 2, 3):  # two passes of four, and three of the next
        loader = AsynchronousLoader(Numbers(), "cpu", buffer_size=buffer_size, num_batches=4)
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        seen += itertools.islice(iterator, count)
        if len(seen) % 4 == 0:
            assert next(iterator, None) is None
        state = through_a_file(loader.state_dict())
        loader.close()
    assert seen == list(range(11))


def test_the_state_after_a_break_is_that_of_the_batch_before_it(buffer_size: int) -> None:
    loader = AsynchronousLoader(Batches(), "cpu", buffer_size=buffer_size)
    for batch in loader:
        if batch[0] == 2:
            break
    loader.load_state_dict(loader.state_dict())
    assert firsts(loader) == [3, 4]
    assert firsts(loader) == [0, 1, 2, 3, 4]


class Restarting:
    """Begins anew when given the state from behind its last batch, as nodes.Loader does."""

    def __init__(self) -> None:
        self._next, self._read = 0, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._read, self._next = self._next % LENGTH, 0
        while self._read < LENGTH:
            self._read += 1
            yield torch.tensor([self._read - 1])

    def state_dict(self) -> dict[str, int]:
        return {"read": self._read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["read"]


@pytest.mark.parametrize("share", [1e9, 0.0])  # a state with every batch, and the first alone
def test_the_rest_after_the_last_batch_is_empty_whatever_the_source_begins(
    share: float, buffer_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidestream.resume.STATE_SHARE", share or 1e-9)
    for taken in range(1, LENGTH + 1):
        loader = AsynchronousLoader(Restarting(), "cpu", buffer_size=buffer_size)
        iterator = iter(loader)
        seen = firsts(itertools.islice(iterator, taken))
        state = loader.state_dict()
        for resumed_again in range(2):
            loader = AsynchronousLoader(Restarting(), "cpu", buffer_size=buffer_size)
            loader.load_state_dict(state)
            if not resumed_again:
                state = loader.state_dict()
        assert seen + firsts(loader) == list(range(LENGTH)), taken
        assert firsts(loader) == list(range(LENGTH))


def test_len_and_attributes_before_a_load_fix_nothing() -> None:  # R38, order A
    loader = AsynchronousLoader(loading(), "cpu")
    assert len(loader) == LENGTH
    assert loader.batch_size == 2
    loader.load_state_dict(state_after(loading(), 3))
    assert firsts(loader) == [6, 8]


@pytest.mark.parametrize("taken", [0, 1, 3, LENGTH])  # R38, orders B and C
def test_an_iterator_that_is_there_raises_after_a_load(taken: int, buffer_size: int) -> None:
    state = state_after(loading(), 3)
    loader = AsynchronousLoader(loading(), "cpu", buffer_size=buffer_size)
    iterator = iter(loader)
    assert firsts(itertools.islice(iterator, taken)) == [0, 2, 4, 6, 8][:taken]
    loader.load_state_dict(state)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="another state; call iter"):
            next(iterator)
    assert firsts(loader) == [6, 8]


@pytest.mark.parametrize("make", [loading, lambda: loading(Resumable()), Batches])
def test_a_load_in_the_body_of_the_loop(make: Any, buffer_size: int) -> None:  # R38, order D
    state = state_after(make(), 3)
    loader = AsynchronousLoader(make(), "cpu", buffer_size=buffer_size)
    seen = []

    def rewinding() -> None:
        for number, batch in enumerate(loader):
            seen.append(batch[0].item())
            if number == 1:
                loader.load_state_dict(state)

    with pytest.raises(RuntimeError, match="another state"):
        rewinding()
    rest = firsts(loader)
    assert seen + rest == [*firsts(make())[:2], *firsts(make())[3:]]
    assert firsts(loader) == firsts(make())


def test_a_load_from_another_thread_while_the_source_reads(buffer_size: int) -> None:
    source = Blocking(at=2)
    loader = AsynchronousLoader(source, "cpu", buffer_size=buffer_size)
    state = state_after(Blocking(at=-1), 4)
    seen: list[int] = []

    def consume() -> None:
        seen.extend(number for _, number in loader)

    consumer = Worker(consume)
    assert source.entered.wait(LIMIT_S)
    loading_thread = Worker(loader.load_state_dict, state)
    # Without a thread of the loader's, it waits for the lock of the source.
    wait_until(lambda: is_blocked(loading_thread) or not buffer_size, "the load waits")
    source.gate.set()
    loading_thread.result()
    with contextlib.suppress(RuntimeError):
        consumer.result()
        assert not buffer_size, "it did not raise"
    assert seen == [0, 1, 2, 3, 4][: len(seen)]
    source.at = -1
    assert [number for _, number in loader] == [4]


def test_the_state_from_another_thread_is_never_that_of_the_read_ahead() -> None:
    loader = AsynchronousLoader(list(range(200)), "cpu", buffer_size=9)
    delivered, over = [-1], threading.Event()

    def watch() -> int:
        looks = 0
        while not over.is_set() or not looks:
            low = delivered[-1]
            count = loader.state_dict()["num_batches"]
            # One more may have been handed over than the loop has noted.
            assert count == 0 or low + 1 <= count <= delivered[-1] + 2
            looks += 1
        return looks

    watching = Worker(watch)
    iterator = iter(loader)
    delivered.extend(iterator)
    over.set()
    assert watching.result() > 0


def test_an_error_keeps_the_place_before_it(buffer_size: int) -> None:
    source = Raising(OSError("gone"), at=3)
    loader = AsynchronousLoader(source, "cpu", buffer_size=buffer_size)
    seen: list[int] = []
    with pytest.raises(OSError, match="gone"):
        seen.extend(number for _, number in loader)
    loader.load_state_dict(loader.state_dict())
    assert [number for _, number in loader] == [3, 4]


def test_pickled_after_a_load_a_loader_begins_anew() -> None:
    loader = AsynchronousLoader(loading(), "cpu")
    loader.load_state_dict(state_after(loading(), 3))
    other = pickle.loads(pickle.dumps(loader))
    assert firsts(other) == [0, 2, 4, 6, 8]
    assert firsts(loader) == [6, 8]


def test_the_epochs_of_a_sampler_go_on(buffer_size: int) -> None:  # R37
    def make() -> Any:
        return loading(sampler=DistributedSampler([0] * SAMPLES, num_replicas=1, rank=0))

    plain = make()
    wanted = []
    for epoch in range(3):
        plain.sampler.set_epoch(epoch)
        wanted.append(firsts(plain))
    assert len({tuple(order) for order in wanted}) == 3
    loader = AsynchronousLoader(make(), "cpu", buffer_size=buffer_size)
    loader.set_epoch(1)
    seen = firsts(itertools.islice(loader, 2))
    state = through_a_file(loader.state_dict())
    loader = AsynchronousLoader(make(), "cpu", buffer_size=buffer_size)
    loader.load_state_dict(state)
    assert seen + firsts(loader) == wanted[1]  # without set_epoch: the state knows it
    loader.set_epoch(2)
    assert firsts(loader) == wanted[2]


# ---- what cannot be resumed


def test_a_generator_says_why_it_cannot(buffer_size: int) -> None:
    loader = AsynchronousLoader((number for number in range(5)), "cpu", buffer_size=buffer_size)
    with pytest.raises(TypeError, match="a generator cannot be resumed: what it gave is gone"):
        loader.state_dict()
    with pytest.raises(TypeError, match="cannot be resumed"):
        loader.load_state_dict(state_after(Batches(), 1))
    assert list(loader) == list(range(5))


def test_a_loader_of_a_loader_of_a_generator_says_why_it_cannot() -> None:
    inner = AsynchronousLoader((number for number in range(5)), "cpu")
    loader = AsynchronousLoader(inner, "cpu")
    assert list(loader) == list(range(5))
    with pytest.raises(TypeError, match="a generator cannot be resumed"):
        loader.state_dict()


@pytest.mark.parametrize("error", [AttributeError, NotImplementedError])
def test_a_source_that_only_looks_stateful_is_read_again(error: type[Exception]) -> None:
    class Hollow(Batches):
        def state_dict(self) -> Any:
            raise error("none")

        def load_state_dict(self, state: Any) -> None:
            raise error("none")

    assert broken_run(Hollow, True, 1, 2) == plain_run(Hollow, True)
    assert broken_run(Hollow, True, 1, LENGTH + 1) == plain_run(Hollow, True)


def test_a_state_that_fails_breaks_no_pass() -> None:
    class Failing(Batches):
        def state_dict(self) -> Any:
            raise OSError("the disk is full")

        def load_state_dict(self, state: Any) -> None: ...

    loader = AsynchronousLoader(Failing(), "cpu")
    assert firsts(loader) == [0, 1, 2, 3, 4]
    with pytest.raises(TypeError, match="Failing cannot be resumed: the disk is full"):
        loader.state_dict()


# ---- damaged states

SOURCES: dict[str, Callable[[], Any]] = {
    "skip": lambda: loading(shuffle=True, generator=generator()),
    "replay": Batches,
    "source": lambda: loading(Resumable()),
}
KEYS = ["version", "way", "of", "num_batches", "start", "warm", "source", "since", "generators"]
WRONG = [None, -1, 7.5, "x", [], [None], {}, {"iter": 3}, (), torch.zeros(2), object()]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", SOURCES)
def test_a_state_that_lacks_a_key(kind: str, key: str) -> None:
    state = state_after(SOURCES[kind](), 2)
    assert sorted(state) == sorted(KEYS)
    del state[key]
    assert_refused(SOURCES[kind](), state, f"it lacks .*{key}")


@pytest.mark.parametrize("state", [None, 3, [], "state", {}, {"version": 1}])
def test_what_is_no_state(state: Any) -> None:
    assert_refused(loading(), state, "not a state of this loader")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, r"it is of \(2, "),
        ({"way": "replay"}, None),
        ({"way": "source"}, "takes .*skip or replay"),
        ({"of": [6, 2, []]}, r"it is of .*\[6, 2, \[\]\]"),
        ({"num_batches": -1}, "num_batches is -1"),
        ({"num_batches": True}, "num_batches is True"),
        ({"num_batches": LENGTH + 1}, "num_batches is 6, of 5"),
        ({"start": {}}, "random numbers that the pass began with are missing"),
        ({"start": {"iter": {}}}, "damaged"),
        ({"warm": 1}, "warm is 1"),
        ({"since": 1}, "since is 1, at batch 2"),
        ({"generators": []}, "there are 1 generators and samplers for"),
        ({"generators": [torch.zeros(7, dtype=torch.uint8)]}, "damaged"),
    ],
)
def test_a_damaged_state(change: dict[str, Any], message: str | None) -> None:
    state = {**state_after(SOURCES["skip"](), 2), **change}
    if message is None:
        AsynchronousLoader(SOURCES["skip"](), "cpu").load_state_dict(state)
    else:
        assert_refused(SOURCES["skip"](), state, message)


@pytest.mark.parametrize("moment", ["iter", "first"])
@pytest.mark.parametrize("key", ["torch", "python", "numpy", "generators", "epochs"])
def test_damaged_random_numbers(moment: str, key: str) -> None:
    for wrong in [*WRONG, CUT]:
        state = state_after(SOURCES["skip"](), 2)
        state["start"][moment][key] = cut(state["start"][moment][key]) if wrong is CUT else wrong
        if key == "epochs" and isinstance(wrong, list) and not wrong:
            continue  # there are none
        assert_refused(SOURCES["skip"](), state, "the state is damaged")


def test_a_state_of_another_source() -> None:
    for kind, other in itertools.permutations(SOURCES, 2):
        state = state_after(SOURCES[kind](), 2)
        assert_refused(SOURCES[other](), state, "the state does not fit")
    state = state_after(loading(shuffle=True), 2)
    assert_refused(loading(), state, "RandomSampler.*SequentialSampler")
    assert_refused(DataLoader([0] * 16, 3), state_after(DataLoader([0] * 15, 3), 1), r"\[5.*\[6")


def test_a_part_that_the_source_does_not_take() -> None:
    class Picky(Resumable):
        def load_state_dict(self, state: Any) -> None:
            super().load_state_dict({"next": state["next"], "finished": state["finished"]})

    state = state_after(loading(Picky()), 2)
    assert_refused(loading(Picky()), {**state, "source": None}, "own state is missing")
    assert_refused(loading(Picky()), {**state, "source": {}}, "did not take its part, KeyError")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_mutated_state_is_refused_or_means_what_it_says(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["skip", "replay"]))
    state = state_after(SOURCES[kind](), 2)
    place: Any = state
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(st.sampled_from(WRONG) | st.integers(-2, 9) | st.text(max_size=3))
    loader = AsynchronousLoader(SOURCES[kind](), "cpu")
    try:
        loader.load_state_dict(state)
    except ValueError:
        assert firsts(loader) == firsts(SOURCES[kind]())  # as if nothing had been given
    else:
        assert firsts(loader) == firsts(SOURCES[kind]())[state["num_batches"] :]


CUT = object()


def cut(value: Any) -> Any:
    return value[:-1] if len(value) else [torch.zeros(3)]


def firsts(batches: Any) -> list[int]:
    """The first number of each batch."""
    return [int(batch.flatten()[0]) for batch in batches]


def state_after(source: Any, count: int) -> Any:
    loader = AsynchronousLoader(source, "cpu")
    list(itertools.islice(iter(loader), count))
    state = loader.state_dict()
    loader.close()
    return through_a_file(state)


def assert_refused(source: Any, state: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AsynchronousLoader(source, "cpu").load_state_dict(state)
