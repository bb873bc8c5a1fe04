"""SPDL: a pipeline of threads, for one pass as it is, for many through a class that makes one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sidestream import AsynchronousLoader
from support.fidelity import Comparison
from support.integration import assert_like_a_plain_loop, needs

pipelines = needs("spdl.pipeline")
dataloaders = needs("spdl.dataloader")

pytestmark = pytest.mark.integration


def sample(index: int) -> Any:
    return torch.full((2,), float(index))


def pipeline() -> Any:
    builder = pipelines.PipelineBuilder().add_source(range(10))
    builder = builder.pipe(sample, concurrency=2, output_order="input")
    return builder.aggregate(3).pipe(torch.stack).add_sink(2).build(num_threads=2)


class Passes:
    """A pipeline serves one pass; this makes one for each."""

    def __iter__(self) -> Iterator[Any]:
        running = pipeline()
        with running.auto_stop():
            yield from running


def test_one_pass_over_a_pipeline() -> None:
    one, other = pipeline(), pipeline()
    with one.auto_stop(), other.auto_stop():
        Comparison().same(list(AsynchronousLoader(one, "cpu")), list(other))


def test_many_passes() -> None:
    assert_like_a_plain_loop(Passes, passes=3)


def test_a_pass_broken_off_ends_the_pipeline() -> None:
    loader = AsynchronousLoader(Passes(), "cpu")
    for _ in range(2):
        for _batch in loader:
            break
    assert len(list(loader)) == 4


def test_its_dataloader() -> None:
    assert_like_a_plain_loop(
        lambda: dataloaders.DataLoader(
            range(10),
            preprocessor=sample,
            batch_size=3,
            aggregator=torch.stack,
            num_threads=2,
            output_order="input",
        )
    )
