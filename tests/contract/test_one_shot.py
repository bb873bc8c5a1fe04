"""G1 for sources that can be read once only: what a plain loop over them would see."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from sidestream import AsynchronousLoader
from support.sources import batch_of, numbers, plain
from support.waiting import Worker


def generate(length: int, ended: list[str] | None = None) -> Iterator[Any]:
    try:
        for number in range(length):
            yield batch_of(number)
    finally:
        if ended is not None:
            ended.append("closed")


MAKERS = {
    "generator": generate,
    "tuple iterator": lambda length: iter(tuple(plain(length))),
    "map": lambda length: map(batch_of, range(length)),
    "zip": lambda length: zip((tensor for tensor, _ in plain(length)), range(length), strict=True),
    "islice": lambda length: itertools.islice(map(batch_of, itertools.count()), length),
    "chain": lambda length: itertools.chain(plain(length)[:2], plain(length)[2:]),
}


@pytest.fixture
def device() -> str:
    """One is enough here: what is tested does not look at tensors."""
    return "meta"


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]


def test_one_pass_then_nothing(make: Any, length: int, buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(make(length), device, buffer_size=buffer_size)
    assert numbers(loader) == list(range(length))
    assert [numbers(loader) for _ in range(2)] == [[], []]


@pytest.mark.parametrize("taken", [0, 1, 2, 4, 5])
def test_a_pass_broken_off_goes_on_where_a_plain_loop_would(
    make: Any, buffer_size: int, device: str, taken: int
) -> None:
    loader = AsynchronousLoader(make(5), device, buffer_size=buffer_size)
    seen = numbers(itertools.islice(iter(loader), taken))
    assert seen == list(range(taken))
    assert numbers(loader) == list(range(taken, 5))


def test_a_pass_broken_off_again_and_again_loses_nothing(
    make: Any, buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(make(20), device, buffer_size=buffer_size)
    seen = []
    for _ in range(20):
        for _, number in loader:
            seen.append(number)
            break
    assert seen == list(range(20))
    assert numbers(loader) == []


def test_a_pass_closed_goes_on_where_a_plain_loop_would(
    make: Any, buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(make(8), device, buffer_size=buffer_size)
    seen = []
    for count in (1, 3):
        seen += numbers(itertools.islice(iter(loader), count))
        loader.close()
    assert seen + numbers(loader) == list(range(8))


@pytest.mark.parametrize("num_batches", [0, 1, 3, 5, 9])
def test_a_stream_is_never_read_beyond_num_batches(
    buffer_size: int, device: str, num_batches: int
) -> None:
    stream = generate(5)
    loader = AsynchronousLoader(stream, device, buffer_size=buffer_size, num_batches=num_batches)
    assert numbers(loader) == list(range(5))[:num_batches]
    assert numbers(stream) == list(range(5))[num_batches:]


def test_a_stream_in_pieces_of_num_batches_is_given_whole(buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(generate(7), device, buffer_size=buffer_size, num_batches=3)
    assert [numbers(loader) for _ in range(4)] == [[0, 1, 2], [3, 4, 5], [6], []]


def test_pieces_broken_off_begin_where_the_one_before_was_left(
    buffer_size: int, device: str
) -> None:
    loader = AsynchronousLoader(generate(9), device, buffer_size=buffer_size, num_batches=4)
    assert numbers(itertools.islice(iter(loader), 2)) == [0, 1]
    assert numbers(loader) == [2, 3, 4, 5]
    assert numbers(itertools.islice(iter(loader), 1)) == [6]
    assert numbers(loader) == [7, 8]


def test_two_passes_over_one_stream_at_once_are_refused_in_words(
    buffer_size: int, device: str
) -> None:
    """A plain loop would deal its batches out between them, which read-ahead cannot."""
    loader = AsynchronousLoader(generate(6), device, buffer_size=buffer_size)
    older, newer = iter(loader), None
    assert next(older)[1] == 0
    newer = iter(loader)
    assert next(newer)[1] == 1
    with pytest.raises(RuntimeError, match="iterator") as caught:
        next(older)
    assert "\n" not in str(caught.value)
    assert numbers(newer) == [2, 3, 4, 5]


def test_a_stream_that_fails_raises_once_and_has_ended(buffer_size: int, device: str) -> None:
    def failing() -> Iterator[Any]:
        yield batch_of(0)
        yield batch_of(1)
        raise OSError("the file is gone")

    loader = AsynchronousLoader(failing(), device, buffer_size=buffer_size)
    seen = []
    with pytest.raises(OSError, match="the file is gone"):
        seen.extend(number for _, number in loader)
    assert seen == [0, 1]
    assert numbers(loader) == []


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_an_error_read_ahead_waits_for_its_place(
    buffer_size: int, device: str, taken: int
) -> None:
    """A break before the error: the next pass has the batches between, then the error."""

    def failing() -> Iterator[Any]:
        yield from plain(3)
        raise OSError("the file is gone")

    loader = AsynchronousLoader(failing(), device, buffer_size=buffer_size)
    assert numbers(itertools.islice(iter(loader), taken)) == list(range(taken))
    seen = []
    with pytest.raises(OSError, match="the file is gone"):
        seen.extend(number for _, number in loader)
    assert seen == list(range(taken, 3))


def test_a_generator_s_cleanup_has_run_when_it_was_read_to_its_end(
    buffer_size: int, device: str
) -> None:
    ended: list[str] = []
    loader = AsynchronousLoader(generate(3, ended), device, buffer_size=buffer_size)
    assert numbers(loader) == [0, 1, 2]
    assert ended == ["closed"]


def test_a_stream_goes_on_in_another_thread(buffer_size: int, device: str) -> None:
    loader = AsynchronousLoader(generate(6), device, buffer_size=buffer_size)
    first = Worker(lambda: numbers(itertools.islice(iter(loader), 2))).result()
    assert first == [0, 1]
    assert numbers(loader) == [2, 3, 4, 5]
