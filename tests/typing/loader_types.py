"""Read by mypy, not run: what the public names are to a type checker."""

from collections.abc import Iterable

import torch
from typing_extensions import assert_type

from sidestream import AsynchronousLoader, LoaderStatistics

Pair = tuple[torch.Tensor, torch.Tensor]


def batches_keep_their_type(pairs: Iterable[Pair], lines: Iterable[dict[str, int]]) -> None:
    loader = AsynchronousLoader(pairs, "cpu", buffer_size=3)
    for batch in loader:
        assert_type(batch, Pair)
    for line in AsynchronousLoader(lines):
        assert_type(line, dict[str, int])
    assert_type(len(loader), int)
    assert_type(loader.statistics(), LoaderStatistics)
