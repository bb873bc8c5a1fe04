"""NVIDIA DALI, on the CPU: its own iterator fills and hands out its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sidestream import AsynchronousLoader
from support.fidelity import Comparison
from support.integration import assert_like_a_plain_loop, needs

dali = needs("nvidia.dali")
plugin = needs("nvidia.dali.plugin.pytorch")

pytestmark = pytest.mark.integration


def samples() -> Iterator[Any]:
    for index in range(12):
        yield np.full((2, 3), index, np.float32)


def iterator() -> Any:
    @dali.pipeline_def(batch_size=3, num_threads=2, device_id=None)
    def pipeline() -> Any:
        return dali.fn.external_source(source=samples, batch=False, cycle="raise") * 2.0

    return plugin.DALIGenericIterator(
        pipeline(), ["x"], auto_reset=True, last_batch_policy=plugin.LastBatchPolicy.PARTIAL
    )


def test_its_iterator() -> None:
    got = list(AsynchronousLoader(iterator(), "cpu"))
    want = [
        [{name: x.clone() for name, x in batch.items()} for batch in row] for row in iterator()
    ]
    Comparison().same(got, want)


def test_its_iterator_over_passes() -> None:
    # Broken off, it goes on where it was, and what was read ahead is gone: it cannot start anew.
    assert_like_a_plain_loop(iterator, break_off=False)
