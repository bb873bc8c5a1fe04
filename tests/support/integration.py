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
    make: Callable[[], Any], *, passes: int = 2, close: Any = None, break_off: bool = True
) -> None:
    """Hold full passes, with one broken off between them, against a plain loop."""
    expected, given = make(), make()
    loader = AsynchronousLoader(given, "cpu")
    for _ in range(passes):
        want = list(expected)
        got = list(loader)
        assert len(want) > 1, "an empty source shows nothing"
        assert len(got) == len(want)
        for number, (one, other) in enumerate(zip(got, want, strict=True)):
            Comparison().same(one, other, f"batch {number}")
        for source in (expected, loader) if break_off else ():
            for _batch in source:
                break
    if close is not None:
        close(expected)
        close(given)
