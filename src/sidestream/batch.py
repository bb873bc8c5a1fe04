"""A batch as a tree: find what can be moved, put the moved things back. Knows no device.

Leaves are tensors, of any class, and objects that move themselves: those whose class has a
callable `to`. Containers are rebuilt as their own type, and only where something inside them
changed; all else, numpy arrays and unknown objects included, passes through untouched.

A walk is made twice per batch, so it is written for speed: plain tensors, atoms and plain
containers first, the rest by the role of its class. `benchmarks/walk.py` measures it.
"""

from __future__ import annotations

import array
import collections
import copy
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

ResultT = TypeVar("ResultT")
_Renew: TypeAlias = Callable[[Any], Any]

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, range})
_NOT_REPLACED = _ATOMS | {torch.Tensor}

# Sequences of characters or numbers, in which no tensor can stand.
_FLAT = (
    str, bytes, bytearray, memoryview, range, torch.Size, array.array, collections.UserString,
)  # fmt: skip


def movable_leaves(batch: Any) -> list[Any]:
    """List what can be moved, each object once, in the order of its first place.

    Raises:
        ValueError: If a container contains itself; the message names the place.
    """
    leaves: dict[int, Any] = {}
    _collect_from((batch,), leaves, {}, batch)
    return list(leaves.values())


def replace_leaves(batch: Any, replacement: dict[int, Any]) -> Any:
    """Rebuild a batch around new leaves.

    Args:
        batch: What `movable_leaves` was called with.
        replacement: The new leaf for `id(leaf)`; leaves that are not in it stay.

    Returns:
        The batch itself where nothing in it changed; else the same structure with the same
        types, in which one object that stood in two places still is one object.

    Raises:
        TypeError: If a container can be rebuilt neither through a copy nor through its
            constructor; the message names the place and the class.
    """
    try:
        return _Rebuilding(replacement).renew(batch)
    except _CannotRebuildError as error:
        node = error.args[0]
        raise TypeError(
            f"{path_of(batch, node)} is a {type(node).__qualname__}, and neither a copy of it nor "
            "its constructor takes in the moved tensors; give the class a `to(device)` method"
        ) from error.__cause__


def path_of(batch: Any, wanted: Any) -> str:
    """Name the first place of a leaf or a container as Python would: `batch["labels"][3]`."""
    return _search(batch, wanted, "batch", set()) or "batch"


def parts_of(batch: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    """List what is wanted of all that stands in a batch and is no container."""
    found = _children(batch)
    if found is None:
        return [batch] if wanted(batch) else []
    return [part for child in found.values() for part in parts_of(child, wanted)]


# ---- what a class is to a walk


def _cached(function: Callable[[type], ResultT]) -> Callable[[type], ResultT]:
    """Ask once for each class; bounded, because some programs make classes for every batch."""
    return functools.lru_cache(maxsize=1024)(function)


# A leaf is moved, or asked to move itself; the children of a container stand by key, by index or
# by field, as in dataclasses and attrs classes; what is opaque passes through.
_Role = enum.Enum("_Role", "LEAF MAPPING SEQUENCE FIELDS OPAQUE")


@_cached
def _role(kind: type) -> _Role:
    if issubclass(kind, type):
        return _Role.OPAQUE
    if issubclass(kind, torch.Tensor) or callable(getattr(kind, "to", None)):
        return _Role.LEAF
    if issubclass(kind, _FLAT):
        return _Role.OPAQUE
    if issubclass(kind, Mapping):
        return _Role.MAPPING
    if issubclass(kind, Sequence):
        return _Role.SEQUENCE
    return _Role.OPAQUE if _field_names(kind) is None else _Role.FIELDS


@_cached
def _field_names(kind: type) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else tuple(one.name for one in attributes)


def _children(node: Any) -> dict[Any, Any] | None:
    """The children of a container by key, index or field.

    None for what is no container, or does not hold its items but makes them when asked: like a
    numpy array, it passes through.
    """
    kind = type(node)
    role = _role(kind)
    if role is _Role.FIELDS:
        names = _field_names(kind) or ()
        return {name: getattr(node, name) for name in names if hasattr(node, name)}
    if role is _Role.MAPPING:
        found = {key: node[key] for key in node}
    elif role is _Role.SEQUENCE:
        found = dict(enumerate(node))
        if isinstance(node, tuple):
            return found
    else:
        return None
    return found if all(node[key] is child for key, child in found.items()) else None


# ---- the first walk


def _collect_from(
    nodes: Iterable[Any], leaves: dict[int, Any], inside: dict[int, bool], root: Any
) -> None:
    """Note the leaves in and below some nodes.

    Args:
        nodes: The children of one container.
        leaves: By identity, so that each is noted once.
        inside: The containers met, by identity: whether the walk is inside it now.
        root: The batch, to name a place in it.
    """
    for node in nodes:
        kind = type(node)
        if kind is torch.Tensor:
            leaves[id(node)] = node
            continue
        if kind in _ATOMS:
            continue
        key = id(node)
        if key in inside:
            if inside[key]:
                raise ValueError(f"{path_of(root, node)} contains itself: a batch must be a tree")
            continue
        children: Iterable[Any]
        if kind is dict:
            children = node.values()
        elif kind is list or kind is tuple:
            children = node
        elif _role(kind) is _Role.LEAF:
            leaves[key] = node
            continue
        else:
            found = _children(node)
            if found is None:
                continue
            children = found.values()
        inside[key] = True
        _collect_from(children, leaves, inside, root)
        inside[key] = False


# ---- the second walk


class _CannotRebuildError(Exception):
    """The container in `args` cannot be rebuilt."""


class _Rebuilding:
    """One walk that puts new leaves in their places."""

    def __init__(self, replacement: dict[int, Any]) -> None:
        # What stands in the place of an object, by its identity: what was one stays one.
        self._known = dict(replacement)

    def renew(self, node: Any) -> Any:  # noqa: C901 - one frame a container, for speed
        """What stands in the place of a node: itself where nothing in it changed."""
        known = self._known
        key = id(node)
        if key in known:
            return known[key]
        known[key] = node  # an attribute may lead back here
        kind = type(node)
        get = known.get
        result: Any = node
        if kind is list or kind is tuple:
            row: list[Any] = []
            for child in node:
                new = get(id(child), child)
                if new is child and type(child) not in _NOT_REPLACED:
                    new = self.renew(child)
                if new is not child:
                    result = row
                row.append(new)
            if result is row:
                result = kind(row)
        else:
            items: dict[Any, Any] = {}
            children = node if kind is dict else _children(node) or items
            for name, child in children.items():
                new = get(id(child), child)
                if new is child and type(child) not in _NOT_REPLACED:
                    new = self.renew(child)
                if new is not child:
                    result = items
                items[name] = new
            if result is items and children is not node:
                result = self._anew(node, items)
        known[key] = result
        return result

    def _anew(self, node: Any, new: dict[Any, Any]) -> Any:
        """A container of a class of its own with new children."""
        cause: Exception | None = None
        for way in [_by_new] if isinstance(node, tuple) else [_by_copy, _by_constructor]:
            try:
                result = way(node, new, self.renew)
            except Exception as error:  # noqa: BLE001 - a class of the user's may raise anything
                cause = error
                continue
            if type(result) is type(node) and _same(new, _children(result)):
                return result
        raise _CannotRebuildError(node) from cause


def _same(some: dict[Any, Any], others: dict[Any, Any] | None) -> bool:
    """Whether two containers hold the same objects."""
    return (
        others is not None
        and some.keys() == others.keys()
        and all(others[key] is one for key, one in some.items())
    )


def _by_new(node: tuple[Any, ...], new: dict[int, Any], renew: _Renew) -> Any:
    """A namedtuple or another subclass, without running a constructor of unknown signature."""
    kind = type(node)
    items = list(new.values())
    if hasattr(kind, "n_sequence_fields"):  # a C struct sequence: torch.return_types.max and kin
        return kind(items)
    result = tuple.__new__(kind, items)
    if hasattr(node, "__dict__"):
        result.__dict__.update(node.__dict__)
        _renew_attributes(node, result, renew)
    return result


def _by_copy(node: Any, new: dict[Any, Any], renew: _Renew) -> Any:
    """Copy, and put the new children in place; runs no constructor and keeps attributes.

    Where a class keeps its items in an attribute, the copy shares it, so attributes that hold
    something new are rebuilt as well. That the original is untouched is checked, not believed.
    """
    result = copy.copy(node)
    if result is node:
        raise TypeError(f"copying a {type(node).__qualname__} gives the same object")
    _renew_attributes(node, result, renew)
    if _role(type(node)) is _Role.FIELDS:
        for name, child in new.items():
            if getattr(result, name) is not child:
                object.__setattr__(result, name, child)  # frozen classes too
        return result
    for key, child in new.items():
        if result[key] is not child:
            old = node[key]
            result[key] = child
            if node[key] is not old:
                node[key] = old
                raise TypeError(f"a copy of a {type(node).__qualname__} shares its items with it")
    return result


def _by_constructor(node: Any, new: dict[Any, Any], renew: _Renew) -> Any:
    return type(node)(new if isinstance(node, Mapping) else list(new.values()))


def _renew_attributes(node: Any, result: Any, renew: _Renew) -> None:
    """Bring what a copy took over from `node` up to date: item stores, and aliases of items."""
    for slot in _slots(type(node)):
        try:
            value = slot.__get__(node)
        except AttributeError:  # never set
            continue
        new = renew(value)
        if new is not value:
            slot.__set__(result, new)
    attributes = getattr(node, "__dict__", None)
    if attributes is node:  # the idiom `self.__dict__ = self`
        result.__dict__ = result
        return
    for name, value in (attributes or {}).items():
        new = renew(value)
        if new is not value:
            result.__dict__[name] = new


@_cached
def _slots(kind: type) -> list[types.MemberDescriptorType]:
    return [
        member
        for base in kind.__mro__
        for member in vars(base).values()
        if isinstance(member, types.MemberDescriptorType)
    ]


# ---- places, for messages


def _search(node: Any, wanted: Any, place: str, seen: set[int]) -> str | None:
    """The first place below `node`, depth first, each container once."""
    fields = _role(type(node)) is _Role.FIELDS
    for key, child in (_children(node) or {}).items():
        name = f"{place}.{key}" if fields else f"{place}[{_key(key)}]"
        if child is wanted:
            return name
        if id(child) not in seen:
            seen.add(id(child))
            found = _search(child, wanted, name, seen)
            if found:
                return found
    return None


def _key(key: Any) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)
