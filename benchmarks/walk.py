"""What the walk through a batch costs, as a ratio to the recursion one would write by hand.

Both replace every tensor by one that is there already, so that only the walk is measured. The
hand-written one knows tensors, dicts, lists and tuples, and nothing of aliases, other containers
or errors. Rounds of the two alternate, and the median of the rounds' ratios is shown: numbers of
one run are compared with each other only.

    scripts/bench walk [--rounds 41]
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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


def seconds(walk: Callable[[Any, dict[int, Any]], Any], batch: Any, new: Any, count: int) -> float:
    """Time of one walk [s]."""
    start = time.perf_counter()
    for _ in range(count):
        walk(batch, new)
    return (time.perf_counter() - start) / count


def main() -> int:
    """Print a line for each batch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41, help="rounds of each [rounds]")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args()
    rounds = options.rounds
    result = {}
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {rounds} rounds")
    print(f"{'batch':26} {'by hand us':>10} {'ours us':>8} {'ratio':>6}")
    for number, (name, batch) in enumerate(batches().items()):
        new = {id(leaf): torch.ones(2) for leaf in movable_leaves(batch)}
        count = max(1, 2000 // (len(new) + 4))
        known = number < KNOWN_BY_HAND
        hand, own = [], []
        for _ in range(rounds):
            hand.append(seconds(by_hand, batch, new, count) if known else float("nan"))
            own.append(seconds(ours, batch, new, count))
        ratio = statistics.median(b / a for a, b in zip(hand, own, strict=True))
        hand_us, own_us = statistics.median(hand) * 1e6, statistics.median(own) * 1e6
        print(f"{name:26} {hand_us:10.1f} {own_us:8.1f} {ratio:6.2f}")
        result[name] = {"own_us": own_us} | ({"ratio": ratio} if known else {})
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
