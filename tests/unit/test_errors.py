"""Notes on exceptions, and the one exception that cannot be raised out of `next` as it is."""

from __future__ import annotations

import traceback

import pytest

from sidestream.errors import annotate, as_raisable


def test_a_note_is_added_once_and_behind_those_that_were_there() -> None:
    error = ValueError("x")
    error.__notes__ = ["the user's"]
    for _ in range(3):
        annotate(error, "ours")
    annotate(error, "another")
    assert error.__notes__ == ["the user's", "ours", "another"]
    assert "ours" in "".join(traceback.format_exception(error))


class Full(Exception):
    """Takes no note in any way."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


class Mute(Exception):
    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)


@pytest.mark.parametrize("kind", [Full, Mute])
def test_an_error_that_takes_no_note_stays_as_it_is(kind: type[BaseException]) -> None:
    error = kind("x")
    annotate(error, "ours")
    assert BaseException.__getattribute__(error, "args") == ("x",)


def test_notes_of_another_type_are_no_reason_to_fail() -> None:
    error = ValueError("x")
    error.__notes__ = None
    annotate(error, "ours")
    assert error.__notes__ is None


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), GeneratorExit(), Full("x")]
)
def test_any_other_error_is_raised_as_itself(error: BaseException) -> None:
    assert as_raisable(error) is error


class Derived(StopIteration):
    pass


@pytest.mark.parametrize("error", [StopIteration(), StopIteration(5), Derived()])
def test_stop_iteration_becomes_an_error_that_keeps_it(error: StopIteration) -> None:
    raisable = as_raisable(error)
    assert type(raisable) is RuntimeError
    assert raisable.__cause__ is error
