"""The walk and the rebuilding by themselves; whole batches are in tests/contract."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch

from sidestream.batch import movable_leaves, parts_of, path_of, replace_leaves

A, B, C = torch.zeros(1), torch.ones(2), torch.ones(3)


class Mover:
    def to(self, device: Any) -> Any:
        return self


class Pair(NamedTuple):
    one: Any
    other: Any


@dataclasses.dataclass
class Fields:
    one: Any
    other: Any = None


def same(got: list[Any], want: list[Any]) -> bool:
    return [id(one) for one in got] == [id(one) for one in want]


MOVER = Mover()


@pytest.mark.parametrize(
    ("batch", "leaves"),
    [
        (A, [A]),
        (MOVER, [MOVER]),
        ([A, [B], (C,)], [A, B, C]),
        ({"x": B, "y": {"z": A}}, [B, A]),
        (Pair(A, [MOVER]), [A, MOVER]),
        (Fields(A, Fields(B)), [A, B]),
        ([A, B, A, [A, B]], [A, B]),
        ([None, 1, "text", b"bytes", 2.5, range(3), object()], []),
        ([], []),
        (collections.deque([A]), [A]),
        ({A}, []),
        ([torch.Tensor, Mover, Fields], []),
    ],
    ids=repr,
)
def test_leaves_are_listed_once_in_the_order_of_their_first_place(
    batch: Any, leaves: list[Any]
) -> None:
    assert same(movable_leaves(batch), leaves)


@pytest.mark.parametrize(
    "batch", [A, [A, {"x": (B,)}], Pair(A, B), Fields(A), [1, 2], {"x": None}], ids=repr
)
def test_without_a_change_the_batch_is_the_same_object(batch: Any) -> None:
    assert replace_leaves(batch, {}) is batch
    assert replace_leaves(batch, {id(leaf): leaf for leaf in movable_leaves(batch)}) is batch


def test_only_what_leads_to_a_change_is_made_anew() -> None:
    untouched = [B]
    batch = {"x": [A], "y": untouched, "z": 3}
    got = replace_leaves(batch, {id(A): C})
    assert got["x"][0] is C
    assert got["y"] is untouched
    assert batch["x"][0] is A


def test_a_container_in_two_places_stays_one() -> None:
    shared = [A]
    got = replace_leaves([shared, {"again": shared}, Pair(shared, A)], {id(A): C})
    assert got[0] is got[1]["again"] is got[2].one
    assert got[0][0] is got[2].other is C


def test_an_alias_below_a_class_of_its_own_stays_one() -> None:
    shared = {"x": A}
    got = replace_leaves(Fields(shared, [shared, A]), {id(A): C})
    assert got.one is got.other[0]
    assert got.one["x"] is got.other[1] is C


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda x: x, "batch"),
        (lambda x: [0, x], "batch[1]"),
        (lambda x: {"a b": (0, x)}, 'batch["a b"][1]'),
        (lambda x: {3: {None: x}}, "batch[3][None]"),
        (lambda x: {("t", 1): x}, "batch[('t', 1)]"),
        (lambda x: Fields(0, [x]), "batch.other[0]"),
        (lambda x: Pair(0, {"y": x}), 'batch[1]["y"]'),
        (lambda x: [[x], x], "batch[0][0]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_place_is_named_as_python_would(make: Any, name: str) -> None:
    assert path_of(make(A), A) == name


def _list_in_itself() -> Any:
    batch: list[Any] = [A]
    batch.append(batch)
    return batch


def _dict_below_itself() -> Any:
    batch: dict[str, Any] = {"x": [A]}
    batch["x"].append({"y": batch["x"]})
    return batch


def _fields_in_themselves() -> Any:
    batch = Fields(A)
    batch.other = [batch]
    return batch


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (_list_in_itself, "batch[1]"),
        (_dict_below_itself, 'batch["x"]'),
        (_fields_in_themselves, "batch.other[0]"),
    ],
    ids=["list", "dict", "dataclass"],
)
def test_what_contains_itself_is_refused_with_its_place(make: Any, name: str) -> None:
    with pytest.raises(ValueError, match="contains itself") as caught:
        movable_leaves(make())
    assert str(caught.value).startswith(name)


def test_a_deep_batch_that_repeats_itself_is_no_circle() -> None:
    shared: Any = [A]
    for _ in range(60):  # 2 ** 60 places, were each one walked
        shared = [shared, shared]
    assert same(movable_leaves(shared), [A])
    got = replace_leaves(shared, {id(A): C})
    for _ in range(60):
        assert got[0] is got[1]
        got = got[0]
    assert got[0] is C


def test_parts_are_found_wherever_they_stand() -> None:
    arrays = [bytearray(b"1"), bytearray(b"2")]
    batch = [arrays[0], {"x": Pair(A, arrays[1])}, "text"]
    assert same(parts_of(batch, lambda part: isinstance(part, bytearray)), arrays)
    assert parts_of(batch, lambda part: part is A) == [A]
