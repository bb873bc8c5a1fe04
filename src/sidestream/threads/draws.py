"""Notices that a dataset draws from random numbers that all threads share."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch

LOOKS = 3
"""How many samples are looked at. Another thread may draw during one, by chance; not in all."""


class Draws:
    """Looks at the first samples of a loader's first worker."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        """What was drawn from in each of the samples, once they are read."""
        self._drawn = {"torch", "random", "numpy.random"}
        self._left = LOOKS

    @property
    def is_over(self) -> bool:
        """Whether it has seen all it wants to."""
        return not self._left

    def watch(self, read: Callable[[], Any]) -> Any:
        """Read a sample."""
        if not self._left:
            return read()
        before = _states()
        sample = read()
        after = _states()
        self._drawn &= {name for name in before if before[name] != after[name]}
        self._left -= 1
        if not self._left:
            self.found = self._drawn
        return sample

    def message(self) -> str:
        """What to say about it, once."""
        names, self.found = " and ".join(sorted(self.found)), set()
        return (
            f"the dataset draws from the global generator of {names}, which all worker threads "
            "and the program share: the numbers are random, but differ from run to run. Draw from "
            "torch.utils.data.get_worker_info().rng instead, or use worker processes"
        )


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {
        "torch": bytes(torch.get_rng_state().untyped_storage()),
        "random": random.getstate(),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state(legacy=False)["state"]
        states["numpy.random"] = {
            key: value.tolist() if hasattr(value, "tolist") else value
            for key, value in state.items()
        }
    return states
