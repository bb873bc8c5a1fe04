"""What the walk through a batch costs, as a ratio to the recursion one would write by hand.

Both replace every tensor by one that is there already, so that only the walk is measured. The
hand-written one knows tensors, dicts, lists and tuples, and nothing of aliases, other containers
or errors. Rounds of the two alternate, and the median of the rounds' ratios is shown.

    scripts/bench walk
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import sys
from typing import Any, NamedTuple

import harness
import torch

from sidestream.batch import movable_leaves, replace_leaves


@dataclasses.dataclass
class Sample:
    """A batch of a class of one's own."""

    image: Any
    label: Any


class Pair(NamedTuple):
    """A named tuple."""

    image: Any
    label: Any


def by_hand(node: Any, replacement: dict[int, Any]) -> Any:
    """The recursion that stands in most training scripts."""
    if isinstance(node, torch.Tensor):
        return replacement[id(node)]
    if isinstance(node, dict):
        return {key: by_hand(value, replacement) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return type(node)(by_hand(value, replacement) for value in node)
    return node


def ours(node: Any, replacement: dict[int, Any]) -> Any:
    """Both walks of the loader: find the leaves, put the new ones in their places."""
    movable_leaves(node)
    return replace_leaves(node, replacement)


def batches() -> dict[str, Any]:
    """Batches by name; those that the hand-written recursion knows come first."""

    def tensor() -> torch.Tensor:
        return torch.zeros(2)

    return {
        "pair": (tensor(), tensor()),
        "dict of 8": {f"key{i}": tensor() for i in range(8)},
        "dict of 64": {f"key{i}": tensor() for i in range(64)},
        "list of 64 pairs": [(tensor(), tensor()) for _ in range(64)],
        "nested dicts, 4 x 4 x 4": {
            i: {j: {k: tensor() for k in range(4)} for j in range(4)} for i in range(4)
        },
        "dict of 8 and 64 strings": {
            **{f"key{i}": tensor() for i in range(8)},
            "names": [f"name{i}" for i in range(64)],
        },
        "namedtuple": Pair(tensor(), tensor()),
        "dataclass": Sample(tensor(), tensor()),
        "OrderedDict of 8": collections.OrderedDict((f"key{i}", tensor()) for i in range(8)),
    }


KNOWN_BY_HAND = 6
"""How many of `batches` the hand-written recursion rebuilds as they are."""


def measure(options: argparse.Namespace) -> Any:
    """The cost of each batch, and its ratio where both walks know the batch."""
    result: dict[str, Any] = {}
    rows = []
    for number, (name, batch) in enumerate(batches().items()):
        new = {id(leaf): torch.ones(2) for leaf in movable_leaves(batch)}
        calls = max(1, 2000 // (len(new) + 4))
        walks = {"ours": ours} | ({"by hand": by_hand} if number < KNOWN_BY_HAND else {})
        times = harness.by_turns(
            {
                each: functools.partial(
                    harness.seconds_a_call, functools.partial(walk, batch, new), calls=calls
                )
                for each, walk in walks.items()
            },
            rounds=11 if options.quick else 41,
        )
        result[name] = {each: harness.spread([1e6 * t for t in times[each]]) for each in times}
        if "by hand" in times:
            result[name]["ratio"] = harness.ratios(times["ours"], times["by hand"])
        cells = [result[name].get(key, {}).get("median") for key in ("by hand", "ours", "ratio")]
        rows.append((name, *(f"{cell:.2f}" if cell else "" for cell in cells)))
    print("\n".join(harness.table(("batch", "by hand us", "ours us", "ratio"), rows)))
    return result


if __name__ == "__main__":
    sys.exit(harness.run("walk", measure, __doc__))
