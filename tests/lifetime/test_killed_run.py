"""G10: a training run killed with SIGKILL and started again gives the unbroken run's losses."""

from __future__ import annotations

import importlib.util

import pytest

from support.killing import OWN, limit_s, show

TORCHDATA = {
    "stateful": "StatefulDataLoader(Items(), batch_size=2)",
    "stateful, workers": "StatefulDataLoader(Items(), batch_size=2, num_workers=2)",
    "nodes": "nodes.Loader(nodes.Mapper(nodes.Batcher(nodes.Mapper(nodes.SamplerWrapper("
    "torch.utils.data.SequentialSampler(range(SAMPLES))), Items().__getitem__), batch_size=2), "
    "torch.utils.data.default_collate))",
}
DATASETS = {
    "stream": "loading(rows.to_iterable_dataset(num_shards=2), collate_fn=stacked)",
    "table": "loading(rows, shuffle=True, collate_fn=stacked)",
}
RANKS = {
    "distributed": "loading(sampler=DistributedSampler([0] * 2 * SAMPLES, 2, rank))",
    "sharded list": "[torch.full((2,), float(2 * number + rank)) for number in range(LENGTH)]",
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(limit_s(OWN) + 10)]


def test_a_killed_run_ends_as_the_unbroken_one() -> None:
    show(OWN)


def test_a_killed_run_of_two_ranks() -> None:
    show(RANKS, world=2)


@pytest.mark.integration
@pytest.mark.skipif(not importlib.util.find_spec("torchdata"), reason="torchdata is not installed")
def test_a_killed_run_with_torchdata() -> None:
    show(
        TORCHDATA,
        "from torchdata import nodes\n"
        "from torchdata.stateful_dataloader import StatefulDataLoader\n",
    )


@pytest.mark.integration
@pytest.mark.skipif(not importlib.util.find_spec("datasets"), reason="datasets is not installed")
def test_a_killed_run_with_datasets() -> None:
    show(
        DATASETS,
        "import datasets\n"
        "rows = {'x': [[float(number)] for number in range(SAMPLES)]}\n"
        "rows = datasets.Dataset.from_dict(rows).with_format('torch')\n"
        "def stacked(rows): return torch.stack([row['x'] for row in rows])\n",
    )
