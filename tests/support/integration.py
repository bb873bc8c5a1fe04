"""Other libraries in tests: imported where they are, skipped by name where they are not."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from sidestream import AsynchronousLoader
from support.fidelity import Comparison


def needs(name: str) -> Any:
    """Import a library, whatever it warns of, or skip the tests of this file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            pytest.skip(f"{name} is not installed: {error}", allow_module_level=True)


def assert_like_a_plain_loop(
    make: Callable[[], Any], *, passes: int = 2, buffer_size: int = 2, close: Any = None
) -> None:
    """Hold passes over a source against a plain loop over one that was made in the same way."""
    expected, given = make(), make()
    loader = AsynchronousLoader(given, "cpu", buffer_size=buffer_size)
    for _ in range(passes):
        want = list(expected)
        got = list(loader)
        assert len(got) == len(want)
        assert len(want) > 1, "an empty source shows nothing"
        for number, (one, other) in enumerate(zip(got, want, strict=True)):
            Comparison().same(one, other, f"batch {number}")
    if close is not None:
        close(expected)
        close(given)
