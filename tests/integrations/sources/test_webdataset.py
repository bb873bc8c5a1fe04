"""WebDataset: shards in tar files, batched in the pipeline, behind its own loader or torch's."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from support.integration import assert_like_a_plain_loop, needs

wds = needs("webdataset")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # it leaves its tar files
]


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    """Two tar files with six samples each, written without the library."""
    paths = [str(tmp_path / f"part-{number}.tar") for number in range(2)]
    for number, path in enumerate(paths):
        with tarfile.open(path, "w") as tar:
            for index in range(6 * number, 6 * number + 6):
                array = io.BytesIO()
                np.save(array, np.full((2, 3), index, np.float32))
                for name, data in (("x.npy", array.getvalue()), ("y.cls", f"{index}".encode())):
                    info = tarfile.TarInfo(f"{index:03}.{name}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return paths


def pipeline(shards: list[str]) -> Any:
    dataset = wds.WebDataset(shards, shardshuffle=False)
    return dataset.decode().to_tuple("x.npy", "y.cls").batched(4)


def test_a_pipeline_that_gives_batches_is_taken_as_it_is(shards: list[str]) -> None:
    assert_like_a_plain_loop(lambda: pipeline(shards))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_its_own_loader(shards: list[str], num_workers: int) -> None:
    assert_like_a_plain_loop(
        lambda: wds.WebLoader(pipeline(shards), batch_size=None, num_workers=num_workers)
    )


def test_its_own_loader_batched_again_over_workers(shards: list[str]) -> None:
    assert_like_a_plain_loop(
        lambda: (
            wds.WebLoader(pipeline(shards), batch_size=None, num_workers=2).unbatched().batched(6)
        )
    )


def test_a_pipeline_in_torch_s_loader(shards: list[str]) -> None:
    assert_like_a_plain_loop(lambda: DataLoader(pipeline(shards), batch_size=None))
