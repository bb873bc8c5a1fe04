"""One interpreter that has imported torch, for all scripts of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import process


@pytest.fixture(autouse=True, scope="session")
def _template() -> Iterator[None]:
    with process.template():
        yield
