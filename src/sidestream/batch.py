"""A batch as a tree: find what can be moved, put the moved things back. Knows no device.

Leaves are tensors, of any class, and objects that move themselves: those whose class has a
callable `to`. Containers are rebuilt as their own type, and only where something inside them
changed; all else, numpy arrays and unknown objects included, passes through untouched.

A walk is made twice per batch, so it is written for speed: exact types first, the rest by rules
in `_children`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch

_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, bytearray, range})
_FLAT_SEQUENCES = (str, bytes, bytearray, memoryview, range)


def movable_leaves(batch: Any) -> list[Any]:
    """List what can be moved, each object once, in the order of its first place.

    Raises:
        ValueError: If a container contains itself; the message names the place.
    """
    leaves: list[Any] = []
    _collect(batch, leaves, set(), set(), batch)
    return leaves


def replace_leaves(batch: Any, replacement: dict[int, Any]) -> Any:
    """Rebuild a batch around new leaves.

    Args:
        batch: What `movable_leaves` was called with.
        replacement: The new leaf for `id(leaf)`; leaves that are not in it stay.

    Returns:
        The batch itself where nothing in it changed; else the same structure with the same
        types, in which one object that stood in two places still is one object.
    """
    return _rebuild(batch, replacement, {})


def path_of(batch: Any, leaf: Any) -> str:
    """Name the first place of a leaf as Python would: `batch["labels"][3]`."""
    return _search(batch, lambda node: node is leaf, "batch") or "batch"


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors among the leaves, each once."""
    return (leaf for leaf in movable_leaves(batch) if isinstance(leaf, torch.Tensor))


def is_leaf(node: Any) -> bool:
    """Whether this is a tensor or an object that moves itself."""
    return isinstance(node, torch.Tensor) or (
        callable(getattr(type(node), "to", None)) and not isinstance(node, type)
    )


# ---- the first walk


def _collect(node: Any, leaves: list[Any], seen: set[int], inside: set[int], root: Any) -> None:
    kind = type(node)
    if kind in _ATOMS:
        return
    key = id(node)
    if key in seen:
        if key in inside:
            place = _search(root, lambda other: other is node, "batch")
            raise ValueError(f"{place} contains itself: a batch must be a tree")
        return
    if kind is torch.Tensor:
        seen.add(key)
        leaves.append(node)
        return
    children: Any
    if kind is dict:
        children = node.values()
    elif kind is list or kind is tuple:
        children = node
    elif is_leaf(node):
        seen.add(key)
        leaves.append(node)
        return
    else:
        found = _children(node)
        if found is None:
            return
        children = found.values()
    seen.add(key)
    inside.add(key)
    for child in children:
        _collect(child, leaves, seen, inside, root)
    inside.discard(key)


def _children(node: Any) -> dict[Any, Any] | None:
    """The children of a container by key, index or field; None for what is no container."""
    if isinstance(node, Mapping):
        return {key: node[key] for key in node}
    if isinstance(node, Sequence) and not isinstance(node, _FLAT_SEQUENCES):
        return dict(enumerate(node))
    names = _field_names(node)
    if names is not None:
        return {name: getattr(node, name) for name in names if hasattr(node, name)}
    return None


def _field_names(node: Any) -> list[str] | None:
    """The fields of a dataclass or attrs instance. A class itself has none."""
    if isinstance(node, type):
        return None
    if dataclasses.is_dataclass(node):
        return [field.name for field in dataclasses.fields(node)]
    attributes = getattr(type(node), "__attrs_attrs__", None)
    return None if attributes is None else [attribute.name for attribute in attributes]


# ---- the second walk


def _rebuild(node: Any, replacement: dict[int, Any], done: dict[int, Any]) -> Any:
    kind = type(node)
    if kind in _ATOMS:
        return node
    key = id(node)
    if key in replacement:
        return replacement[key]
    if key in done:
        return done[key]
    result: Any
    if kind is dict:
        result = {k: _rebuild(v, replacement, done) for k, v in node.items()}
        if all(map(_same, result.values(), node.values())):
            result = node
    elif kind is list or kind is tuple:
        result = kind([_rebuild(v, replacement, done) for v in node])
        if all(map(_same, result, node)):
            result = node
    elif is_leaf(node):
        return node
    else:
        result = _rebuild_by_rule(node, replacement, done)
    done[key] = result
    return result


def _same(one: Any, other: Any) -> bool:
    return one is other


def _rebuild_by_rule(node: Any, replacement: dict[int, Any], done: dict[int, Any]) -> Any:
    children = _children(node)
    if children is None:
        return node
    new = {key: _rebuild(child, replacement, done) for key, child in children.items()}
    changed = {key: value for key, value in new.items() if value is not children[key]}
    if not changed:
        return node
    if isinstance(node, tuple):
        return _rebuild_tuple(node, list(new.values()))
    if isinstance(node, (Mapping, Sequence)):
        return _rebuild_collection(node, new, changed)
    result = copy.copy(node)
    for name, value in changed.items():
        object.__setattr__(result, name, value)  # frozen classes too
    return result


def _rebuild_tuple(node: tuple[Any, ...], items: list[Any]) -> Any:
    """A namedtuple or another subclass, without running a constructor of unknown signature."""
    kind = type(node)
    if hasattr(kind, "n_sequence_fields"):  # a C struct sequence: torch.return_types.max and kin
        return kind(items)
    result = tuple.__new__(kind, items)
    if hasattr(node, "__dict__"):
        result.__dict__.update(node.__dict__)
    return result


def _rebuild_collection(node: Any, new: dict[Any, Any], changed: dict[Any, Any]) -> Any:
    """A mapping or sequence of another class than the plain ones.

    A copy keeps its class and its attributes without a constructor. The copy of a class that
    keeps its items in an attribute shares that attribute, so it is copied as well; that the
    original is untouched is checked rather than believed.
    """
    kind = type(node)
    if not isinstance(node, (MutableMapping, MutableSequence)):
        return kind(new if isinstance(node, Mapping) else list(new.values()))
    result = copy.copy(node)
    for name, value in list(getattr(result, "__dict__", {}).items()):
        if isinstance(value, (dict, list)) and getattr(node, name, None) is value:
            result.__dict__[name] = copy.copy(value)
    for key, value in changed.items():
        old = node[key]
        result[key] = value
        if node[key] is not old:
            node[key] = old
            raise TypeError(
                f"a copy of {kind.__name__} shares its items with the original, so it cannot be "
                "rebuilt; give it a `to(device)` method of its own"
            )
    return result


# ---- places, for messages


def _search(node: Any, wanted: Callable[[Any], bool], place: str) -> str | None:
    """The place of the first wanted node below `node`, depth first, each container once."""
    seen: set[int] = set()

    def visit(node: Any, place: str) -> str | None:
        for key, child in (_children(node) or {}).items():
            name = f"{place}.{key}" if _field_names(node) is not None else f"{place}[{_key(key)}]"
            if wanted(child):
                return name
            if is_leaf(child) or id(child) in seen:
                continue
            seen.add(id(child))
            found = visit(child, name)
            if found:
                return found
        return None

    return place if wanted(node) and not _children(node) else visit(node, place)


def _key(key: Any) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)
