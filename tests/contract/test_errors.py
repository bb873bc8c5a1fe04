"""G6: what is raised anywhere reaches the consumer once, as itself, in its place."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from sidestream import AsynchronousLoader
from sidestream.channel import ChannelEnd
from support.sources import LIMIT_S, Counting, Raising, batch_of, numbers, plain
from support.waiting import Worker

LENGTH = 5


class Demanding(Exception):
    """Cannot be made again from its text."""

    def __init__(self, *, code: int, path: str) -> None:
        super().__init__(f"{path}: {code}")
        self.code = code
        self.path = path


class Mute(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Slotted(Exception):
    __slots__ = ("code",)


class Falsy(Exception):
    def __bool__(self) -> bool:
        return False


class Odd(Exception):
    """Refuses notes and comparison, as some extension types do."""

    def add_note(self, note: str) -> None:
        raise TypeError("no notes")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = Exception.__hash__


def _chained() -> BaseException:
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")
    if sys.version_info >= (3, 11):
        error.add_note("the user's own note")
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "Exception": lambda: RuntimeError("out of memory"),
    "OSError": lambda: FileNotFoundError(2, "No such file", "image.png"),
    "BaseException": lambda: BaseException("the very base"),
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": GeneratorExit,
    "MemoryError": MemoryError,
    "StopAsyncIteration": StopAsyncIteration,
    "TimeoutError": lambda: TimeoutError("of the source's own"),
    "key with lines": lambda: KeyError("first line\nsecond line"),
    "required keywords": lambda: Demanding(code=7, path="a/b"),
    "no text": Mute,
    "slots": Slotted,
    "falsy": Falsy,
    "odd": Odd,
    "cause and notes": _chained,
}


@pytest.fixture(params=ERRORS)
def make_error(request: pytest.FixtureRequest) -> Callable[[], BaseException]:
    """Makes the error in the test, as its traceback keeps the test's frames alive."""
    return ERRORS[request.param]


def collect(iterator: Iterator[Any]) -> tuple[list[int], BaseException | None]:
    """Read on until the end or an error, and give both."""
    seen = []
    try:
        for _, number in iterator:
            seen.append(number)
    except BaseException as error:
        return seen, error
    return seen, None


def notes_of(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


def source_lines(error: BaseException) -> list[str]:
    return [frame.line for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("at", [0, 2, LENGTH - 1, LENGTH], ids=lambda at: f"at{at}")
def test_an_error_arrives_after_the_good_batches(at: int, buffer_size: int, device: str) -> None:
    error = SystemExit(3)
    iterator = iter(AsynchronousLoader(Raising(error, at), device, buffer_size=buffer_size))
    seen, caught = collect(iterator)
    assert caught is error
    assert seen == list(range(at))
    for _ in range(3):
        assert collect(iterator) == ([], None)


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("buffer_size", [0, 2])
def test_an_error_of_any_kind_arrives_as_itself(
    make_error: Callable[[], BaseException], at: int, buffer_size: int
) -> None:
    error = make_error()
    iterator = iter(AsynchronousLoader(Raising(error, at), "cpu", buffer_size=buffer_size))
    seen, caught = collect(iterator)
    assert caught is error
    assert seen == list(range(at))
    for _ in range(3):
        assert collect(iterator) == ([], None)


@pytest.mark.parametrize("at", [0, 2, LENGTH])
def test_an_error_tells_the_line_of_the_source_and_the_batch(
    at: int, buffer_size: int, device: str
) -> None:
    error = ValueError("broken")
    loader = AsynchronousLoader(Raising(error, at), device, buffer_size=buffer_size)
    _, caught = collect(iter(loader))
    assert caught is error
    assert any("the failing line of the source" in line for line in source_lines(error))
    assert any("collect" in frame.name for frame in traceback.extract_tb(error.__traceback__))
    assert [note for note in notes_of(error) if f"batch {at}" in note], notes_of(error)


def test_an_error_keeps_its_attributes_cause_and_notes(buffer_size: int, device: str) -> None:
    error = _chained()
    cause, before = error.__cause__, notes_of(error)
    loader = AsynchronousLoader(Raising(error, 1), device, buffer_size=buffer_size)
    _, caught = collect(iter(loader))
    assert caught is error
    assert caught.__cause__ is cause
    assert notes_of(error)[: len(before)] == before

    demanding = Demanding(code=7, path="a/b")
    loader = AsynchronousLoader(Raising(demanding, 1), device, buffer_size=buffer_size)
    _, caught = collect(iter(loader))
    assert caught is demanding
    assert (caught.code, caught.path) == (7, "a/b")


@pytest.mark.parametrize("device", ["meta"])
@pytest.mark.parametrize("buffer_size", [0, 2])
def test_an_error_in_iter_of_the_source_is_raised_by_iter(
    make_error: Callable[[], BaseException], buffer_size: int, device: str
) -> None:
    error = make_error()
    loader = AsynchronousLoader(Raising(error, "iter"), device, buffer_size=buffer_size)
    with pytest.raises(type(error)) as caught:
        iter(loader)
    assert caught.value is error
    assert any("the failing line of the source" in line for line in source_lines(error))
    assert numbers(loader) == list(range(LENGTH))


def test_stop_iteration_out_of_iter_of_the_source_is_raised_as_in_a_plain_loop(
    buffer_size: int, device: str
) -> None:
    error = StopIteration("in iter")
    loader = AsynchronousLoader(Raising(error, "iter"), device, buffer_size=buffer_size)
    with pytest.raises(StopIteration) as caught:
        iter(loader)
    assert caught.value is error


@pytest.mark.parametrize("at", ["iter", 0, 2, LENGTH])
def test_a_fresh_pass_after_an_error_is_full(at: int | str, buffer_size: int, device: str) -> None:
    error = ValueError("broken")
    loader = AsynchronousLoader(Raising(error, at), device, buffer_size=buffer_size)
    with pytest.raises(type(error)):
        list(loader)
    assert [numbers(loader) for _ in range(2)] == [list(range(LENGTH))] * 2


def test_an_error_in_every_pass_is_raised_in_every_pass(buffer_size: int, device: str) -> None:
    error = ValueError("again")
    source = Raising(error, 2, passes=range(100))
    loader = AsynchronousLoader(source, device, buffer_size=buffer_size)
    depths, counts = [], []
    for _ in range(4):
        error.__traceback__ = None
        seen, caught = collect(iter(loader))
        assert (seen, caught) == ([0, 1], error)
        depths.append(len(traceback.extract_tb(error.__traceback__)))
        counts.append(len(notes_of(error)))
    assert len(set(depths)) == 1
    assert len(set(counts)) == 1


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_an_error_read_ahead_is_not_raised_before_its_place_nor_after_a_break(
    buffer_size: int, device: str, taken: int
) -> None:
    loader = AsynchronousLoader(Raising(ValueError("later"), 2), device, buffer_size=buffer_size)
    iterator = iter(loader)
    for number in range(taken):
        assert next(iterator)[1] == number
    del iterator
    assert numbers(loader) == list(range(LENGTH))


def test_errors_in_two_passes_at_once_go_to_their_own_consumer(
    buffer_size: int, device: str
) -> None:
    class Each:
        def __init__(self) -> None:
            self.errors: list[BaseException] = []

        def __iter__(self) -> Any:
            error = ValueError(f"pass {len(self.errors)}")
            self.errors.append(error)
            return iter(Raising(error, 2))

    source = Each()
    loader = AsynchronousLoader(source, device, buffer_size=buffer_size)
    one, other = iter(loader), iter(loader)
    assert collect(other) == ([0, 1], source.errors[1])
    assert collect(one) == ([0, 1], source.errors[0])


def test_one_of_several_consumers_gets_the_error_and_the_others_the_end(
    buffer_size: int, device: str
) -> None:
    error = ValueError("for one of them")
    iterator = iter(AsynchronousLoader(Raising(error, 4), device, buffer_size=buffer_size))
    outcomes = [worker.result() for worker in [Worker(collect, iterator) for _ in range(3)]]
    assert sorted(number for seen, _ in outcomes for number in seen) == [0, 1, 2, 3]
    assert [caught for _, caught in outcomes if caught is not None] == [error]


def test_an_error_that_two_consumers_met_at_once_is_raised_in_one(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ValueError("for one of them")
    iterator: Any = iter(AsynchronousLoader(Raising(error, 1), device))
    next(iterator)
    take, met, raised = (
        iterator._epoch._channel.take,
        threading.Barrier(2, timeout=LIMIT_S),
        threading.Event(),
    )

    def take_and_meet() -> Any:
        try:
            return take()
        except ChannelEnd:
            if met.wait(LIMIT_S):  # the second goes on when the first has raised it
                assert raised.wait(LIMIT_S)
            raise

    def consume() -> Any:
        outcome = collect(iterator)
        raised.set()
        return outcome

    monkeypatch.setattr(iterator._epoch._channel, "take", take_and_meet)
    outcomes = [worker.result() for worker in [Worker(consume) for _ in range(2)]]
    assert sorted(outcomes, key=str) == [([], None), ([], error)]


class FailingItems(Dataset):
    def __init__(self, error: BaseException, at: int) -> None:
        self._error = error
        self._at = at

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        if index == self._at:
            raise self._error
        return batch_of(index)


@pytest.mark.parametrize("device", ["meta"])
@pytest.mark.parametrize("buffer_size", [0, 2])
def test_a_dataset_that_raises_at_batch_3_raises_that_after_batches_0_to_2(
    make_error: Callable[[], BaseException], buffer_size: int, device: str
) -> None:
    error = make_error()
    data = DataLoader(FailingItems(error, 3), batch_size=None)
    seen, caught = collect(iter(AsynchronousLoader(data, device, buffer_size=buffer_size)))
    assert caught is error
    assert seen == [0, 1, 2]


def through_a_transform_that_raises(
    error: BaseException, buffer_size: int, device: str
) -> Iterator[Any]:
    """A pass over five batches, the third of which does not come through."""

    def transform(batch: Any) -> Any:
        if batch[1] == 2:
            raise error
        return batch

    return iter(
        AsynchronousLoader(plain(LENGTH), device, buffer_size=buffer_size, transform=transform)
    )


@pytest.mark.parametrize("device", ["meta"])
@pytest.mark.parametrize("buffer_size", [0, 2])
def test_an_error_in_a_transform_arrives_as_itself(
    make_error: Callable[[], BaseException], buffer_size: int, device: str
) -> None:
    error = make_error()
    iterator = through_a_transform_that_raises(error, buffer_size, device)
    seen, caught = collect(iterator)
    assert caught is error
    assert seen == [0, 1]
    assert collect(iterator) == ([], None)


class FailingMove:
    """Fails when it is asked to move itself."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def to(self, *args: Any, **kwargs: Any) -> Any:
        raise self._error  # the failing line of the move


@pytest.mark.parametrize("device", ["meta"])
@pytest.mark.parametrize("buffer_size", [0, 2])
def test_an_error_in_a_move_arrives_as_itself_with_the_place_in_the_batch(
    make_error: Callable[[], BaseException], buffer_size: int, device: str
) -> None:
    error = make_error()
    source = [*plain(2), ({"edges": [0, FailingMove(error)]}, 2), *plain(1)]
    iterator = iter(AsynchronousLoader(source, device, buffer_size=buffer_size))
    seen, caught = collect(iterator)
    assert caught is error
    assert seen == [0, 1]
    assert any("the failing line of the move" in line for line in source_lines(error))
    if not isinstance(error, Odd):
        noted = "\n".join(notes_of(error))
        assert "batch 2" in noted
        assert "['edges'][1]" in noted.replace('"', "'")
    assert collect(iterator) == ([], None)


@pytest.mark.parametrize("arguments", [(), (5,)], ids=["bare", "value"])
def test_stop_iteration_out_of_a_transform_does_not_end_the_epoch_in_silence(
    arguments: tuple[int, ...], buffer_size: int, device: str
) -> None:
    error = StopIteration(*arguments)
    iterator = through_a_transform_that_raises(error, buffer_size, device)
    seen, caught = collect(iterator)
    assert seen == [0, 1]
    assert isinstance(caught, RuntimeError)
    assert caught.__cause__ is error
    assert collect(iterator) == ([], None)


def test_stop_iteration_out_of_a_move_does_not_end_the_epoch_in_silence(
    buffer_size: int, device: str
) -> None:
    error = StopIteration()
    source = [*plain(2), (FailingMove(error), 2)]
    seen, caught = collect(iter(AsynchronousLoader(source, device, buffer_size=buffer_size)))
    assert seen == [0, 1]
    assert isinstance(caught, RuntimeError)
    assert caught.__cause__ is error


def test_what_is_no_iterable_once_iterated_raises_type_error_in_iter(
    buffer_size: int, device: str
) -> None:
    class Broken:
        def __iter__(self) -> Any:
            return 3

    with pytest.raises(TypeError):
        iter(AsynchronousLoader(Broken(), device, buffer_size=buffer_size))


def test_nothing_is_read_after_an_error(buffer_size: int, device: str) -> None:
    class Failing(Counting):
        def make(self, number: int) -> Any:
            if number == 2:
                raise ValueError("stop here")
            return batch_of(number)

    source = Failing(9)
    seen, _ = collect(iter(AsynchronousLoader(source, device, buffer_size=buffer_size)))
    assert seen == [0, 1]
    assert source.reads == 3


def test_neither_batches_nor_the_iterator_stay_alive_when_an_error_was_handled(
    buffer_size: int, device: str
) -> None:
    class Batch:
        pass

    batches = [Batch() for _ in range(3)]
    references = [weakref.ref(batch) for batch in batches]

    def source() -> Any:
        while batches:
            yield batches.pop()
        raise ValueError("at the end")

    loader = AsynchronousLoader(source(), device, buffer_size=buffer_size)
    with pytest.raises(ValueError, match="at the end"):
        for _ in loader:
            pass
    del _
    loader.close()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_an_error_nobody_asks_for_is_not_printed(
    buffer_size: int, device: str, capfd: pytest.CaptureFixture[str]
) -> None:
    loader = AsynchronousLoader(
        Raising(SystemExit(3), 1, passes=range(9)), device, buffer_size=buffer_size
    )
    for _ in range(3):
        for _ in loader:
            break
    loader.close()
    gc.collect()
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_an_error_of_a_tensor_that_cannot_be_moved_names_its_place(buffer_size: int) -> None:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.strided)
    source = [batch_of(0), ({"graph": {"edges": [1, nested]}}, 1)]
    seen, caught = collect(iter(AsynchronousLoader(source, "meta", buffer_size=buffer_size)))
    assert seen == [0]
    noted = "\n".join([str(caught), *notes_of(caught)]).replace('"', "'")
    assert "['graph']['edges'][1]" in noted
    assert "Tensor" in noted
