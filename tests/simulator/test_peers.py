"""Other libraries' loaders, their own code, run through `as_cuda()`.

Each is skipped by name where it is not installed. The versions that the counts were seen with
are given with each; a version that mends its loader fails its test here, which is good news.
"""

import concurrent.futures
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

import pytest
import releases
import torch

from sidestream.simulator import RaceKind

pytestmark = [
    pytest.mark.simulated_accelerator,
    pytest.mark.integration,
    pytest.mark.timeout(120),  # importing some of them takes seconds
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

REUSE = {RaceKind.REUSE_UNDER_USE}
TIMES = {"copy_s": 0.005, "compute_s": 0.005}


class Loader(list):
    """Stands for a DataLoader: iterable, with a length."""


@pytest.fixture
def cuda(simulated_accelerator):
    with simulated_accelerator.as_cuda():
        yield torch.device("cuda")


def peer(name):
    """Import a peer's module; skip where the peer is not installed. A broken one fails."""
    package, _, part = name.partition(".")
    if importlib.util.find_spec(package) is None or importlib.util.find_spec(name) is None:
        pytest.skip(f"{name if part else package} is not installed")
    return importlib.import_module(name)


def kinds(result):
    return {race.kind for race in result.races}


def test_torch_geometric_does_not_order_reuse(cuda):
    """PyG 2.8.1: the consumer waits for the copy; nothing protects memory it still reads."""
    loader = peer("torch_geometric.loader")
    batches = Loader(releases.pinned_batches())
    result = releases.measure(lambda: loader.PrefetchLoader(batches), **TIMES)
    assert kinds(result) == REUSE
    assert len(result.races) in range(20, 25)
    assert result.reserved < 5


def test_torchtnt_does_not_order_reuse(cuda):
    """torchtnt 0.2.4, with two batches ahead."""
    prefetcher = peer("torchtnt.utils.data.data_prefetcher")
    batches = Loader(releases.pinned_batches())
    make = prefetcher.CudaDataPrefetcher
    result = releases.measure(lambda: make(batches, cuda, num_prefetch_batches=2), **TIMES)
    assert kinds(result) == REUSE
    assert len(result.races) in range(20, 25)
    assert result.reserved < 6


def test_spdl_keeps_four_batches_and_hopes(cuda):
    """SPDL 0.8.0: the host waits for the copy and the last four batches are kept alive."""
    spdl = peer("spdl.io")
    batches = [host.clone() for host in releases.pinned_batches()]

    def transferred():
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            for host in batches:
                yield thread.submit(spdl.transfer_tensor_h2d, host).result()

    result = releases.measure(transferred, **TIMES)
    assert kinds(result) == REUSE
    assert len(result.races) in range(16, 21)
    assert 5 <= result.reserved < 7


class TorchvisionStub(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """timm imports torchvision for its transforms; its PrefetchLoader uses none of it."""

    class Module(types.ModuleType):
        __path__ = ()

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            modes = {
                "NEAREST": 0,
                "BILINEAR": 1,
                "BICUBIC": 2,
                "BOX": 3,
                "HAMMING": 4,
                "LANCZOS": 5,
            }
            return type(name, (), modes)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] != "torchvision":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return self.Module(spec.name)

    def exec_module(self, module):
        pass


def test_timm_is_ordered(cuda, monkeypatch):
    """timm 1.0.31: its side stream waits for the consumer before each copy."""
    if importlib.util.find_spec("torchvision") is None:
        monkeypatch.setattr(sys, "meta_path", [TorchvisionStub(), *sys.meta_path])
    loader = peer("timm.data.loader")
    images = (
        torch.full((1, 3, 592, 592), i + 1, dtype=torch.uint8) for i in range(releases.STEPS)
    )
    batches = Loader((image.pin_memory(), torch.zeros(1).pin_memory()) for image in images)
    prefetch = loader.PrefetchLoader(batches, mean=(0, 0, 0), std=(1 / 255,) * 3, device=cuda)
    assert prefetch.is_cuda
    result = releases.measure(
        lambda: prefetch, get=lambda batch: batch[0].flatten()[: releases.ROWS], **TIMES
    )
    assert (result.races, result.wrong) == ([], 0)
