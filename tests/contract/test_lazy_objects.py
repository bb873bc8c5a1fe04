"""G12: an object that moves itself is asked once to do so, and not looked into."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sidestream import AsynchronousLoader


class Lazy:
    """Notes every attribute that is asked for on it; its properties would do work."""

    def __init__(self, asked: list[str]) -> None:
        object.__setattr__(self, "_asked", asked)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            object.__getattribute__(self, "_asked").append(name)
        return object.__getattribute__(self, name)

    @property
    def frames(self) -> torch.Tensor:
        raise AssertionError("a video would have been decoded")

    def to(self, device: Any, *args: Any, **kwargs: Any) -> Any:
        return Moved(torch.device(device))


class LazyMapping(Lazy, dict):
    """Looks like a container, and would compute its items."""

    def __getitem__(self, key: str) -> Any:
        raise AssertionError("an item would have been computed")

    def __iter__(self) -> Any:
        raise AssertionError("the keys would have been computed")

    __len__ = values = items = keys = __iter__


class LazySequence(Lazy, list):
    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("an item would have been computed")

    __len__ = __iter__ = __reversed__ = __getitem__


class Moved:
    def __init__(self, device: torch.device) -> None:
        self.device = device


@pytest.mark.parametrize("kind", [Lazy, LazyMapping, LazySequence])
@pytest.mark.parametrize("place", ["alone", "nested", "twice"])
def test_it_is_asked_to_move_once_and_for_nothing_else(
    kind: type, place: str, buffer_size: int, device: str
) -> None:
    asked: list[str] = []
    lazy = kind(asked)
    batch: Any = {
        "alone": lazy,
        "nested": {"a": [1, (lazy,)]},
        "twice": [lazy, {"again": lazy}],
    }[place]
    (got,) = AsynchronousLoader([batch], device, buffer_size=buffer_size)
    assert asked == ["to"]
    found = {
        "alone": lambda: [got],
        "nested": lambda: [got["a"][1][0]],
        "twice": lambda: [got[0], got[1]["again"]],
    }[place]()
    assert len({id(one) for one in found}) == 1
    assert isinstance(found[0], Moved)
    assert found[0].device.type == device


def test_an_attribute_called_to_is_no_method(buffer_size: int, device: str) -> None:
    """A message has a `to`, too: asking every object for one would look into it."""

    class Message:
        def __init__(self) -> None:
            self.to = "somebody"

    message = Message()
    (got,) = AsynchronousLoader([message], device, buffer_size=buffer_size)
    assert got is message


def test_an_object_that_answers_to_every_name_is_left_alone(buffer_size: int, device: str) -> None:
    class Anything:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    anything = Anything()
    (got,) = AsynchronousLoader([[anything]], device, buffer_size=buffer_size)
    assert got[0] is anything
