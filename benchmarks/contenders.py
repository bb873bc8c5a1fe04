"""The ways to bring batches to the device that are compared: ours, by hand, and other libraries'.

Other libraries run their own code, as installed. Those that know CUDA alone run on the simulated
accelerator through `simulator.as_cuda()`. A contender gets a DataLoader and calls `step` with each
batch that it has brought to the device. `pins` says whether the DataLoader was made with
`pin_memory=True`: for each library its default and its best setting are both here where they
differ.
"""

from __future__ import annotations

import contextlib
import importlib.util
import queue
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch
from targets import environment

from sidestream import AsynchronousLoader

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from minimal_prefetch import prefetch

Step = Callable[[Any], None]
Open = Callable[[Any, str], Iterable[Any]]
Drive = Callable[[Any, Any, Step, int, Step], None]


@dataclass(frozen=True)
class Contender:
    """One way to bring batches to the device."""

    name: str
    _drive: Drive
    pins: bool = False
    needs: tuple[str, ...] = ()
    """The module that must be there, and the package that has its version."""
    ours: bool = False

    def drive(
        self, data: Any, target: Any, step: Step, passes: int = 1, after: Step = lambda _: None
    ) -> None:
        """Loop over the batches, on the target.

        Args:
            data: A DataLoader.
            target: Where batches go.
            step: Called with each batch.
            passes: How often; what a user would keep from pass to pass is kept.
            after: Called after each pass with its number.
        """
        self._drive(data, target, step, passes, after)


class Each:
    """Calls a function for every pass: a generator, or a loader that is made for one pass."""

    def __init__(self, function: Open, data: Any, device: str) -> None:
        self._function, self._data, self._device = function, data, device

    def __iter__(self) -> Iterator[Any]:
        return iter(self._function(self._data, self._device))


def _looped(make: Open, *, for_cuda: bool = False, each: bool = False) -> Drive:
    """Plain loops over what `make` gives for a DataLoader and a device.

    Args:
        make: Gives what is iterated.
        for_cuda: Whether it knows CUDA alone.
        each: Whether it is called for every pass; else what it gives is kept over the passes.
    """

    def drive(data: Any, target: Any, step: Step, passes: int, after: Step) -> None:
        device = target.peer_device if for_cuda else target.name
        with target.for_cuda_code() if for_cuda else contextlib.nullcontext():
            batches = Each(make, data, device) if each else make(data, device)
            for number in range(passes):
                for batch in batches:
                    step(batch)
                    del batch  # or the loop would hold it while it asks for the next
                after(number)

    return drive


# ---- by hand


def _plain(data: Any, device: str) -> Iterator[Any]:
    for batch in data:
        yield [tensor.to(device) for tensor in batch]


def _plain_non_blocking(data: Any, device: str) -> Iterator[Any]:
    for batch in data:
        yield [tensor.to(device, non_blocking=True) for tensor in batch]


def _lighter_2019(data: Any, device: str) -> Iterator[Any]:
    """The loader of Lighter, retold: a thread, a side stream, and nobody waits for the copy."""
    side, ready = torch.cuda.Stream(), queue.Queue[Any](maxsize=10)

    def fill() -> None:
        for batch in data:
            with torch.cuda.stream(side):
                ready.put([tensor.to(device, non_blocking=True) for tensor in batch])
        ready.put(None)

    return _drained(fill, ready)


def _bolts_2020(data: Any, device: str) -> Iterator[Any]:
    """The loader of Lightning Bolts, retold: the same, and it page-locks what is not."""
    side, ready = torch.cuda.Stream(), queue.Queue[Any](maxsize=10)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(device, non_blocking=True)

    def fill() -> None:
        for batch in data:
            with torch.cuda.stream(side):
                ready.put([moved(tensor) for tensor in batch])
        ready.put(None)

    return _drained(fill, ready)


def _drained(fill: Callable[[], None], ready: queue.Queue[Any]) -> Iterator[Any]:
    thread = threading.Thread(target=fill)
    thread.start()
    while (batch := ready.get()) is not None:
        yield batch
        del batch
    thread.join()


# ---- other libraries


def _timm(data: Any, device: str) -> Any:
    if importlib.util.find_spec("torchvision") is None:  # the second time it is found: ours
        sys.meta_path.append(_NoTorchvision())
    from timm.data.loader import PrefetchLoader

    return PrefetchLoader(data, device=torch.device(device))


class _NoTorchvision:
    """Stands for torchvision, which timm imports for transforms that its loader does not use."""

    class Module(types.ModuleType):
        """Has every name that is asked for, and all the resampling modes' numbers."""

        __path__ = ()

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            modes = ["NEAREST", "LANCZOS", "BILINEAR", "BICUBIC", "BOX", "HAMMING"]
            return type(name, (), {mode: number for number, mode in enumerate(modes)})

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find torchvision, and all below it, here."""
        if name.partition(".")[0] != "torchvision":
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """Give a stand-in."""
        return self.Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is in it."""


def _pyg(data: Any, device: str) -> Any:
    from torch_geometric.loader import PrefetchLoader

    return PrefetchLoader(data, device=torch.device(device))


def _torchtnt(data: Any, device: str) -> Any:
    from torchtnt.utils.data.data_prefetcher import CudaDataPrefetcher

    return CudaDataPrefetcher(data, torch.device(device), num_prefetch_batches=2)


def _spdl(data: Any, device: str) -> Iterator[Any]:
    from spdl.io import transfer_tensor_h2d
    from spdl.pipeline import PipelineBuilder

    with environment(LOCAL_RANK="0"):
        builder = PipelineBuilder().add_source(data).pipe(transfer_tensor_h2d).add_sink(2)
        pipeline = builder.build(num_threads=1)
        with pipeline.auto_stop():
            yield from pipeline


def _ray(data: Any, device: str) -> Any:
    from ray.train.torch.train_loop_utils import _WrappedDataLoader

    loader = _WrappedDataLoader(data, torch.device(device), auto_transfer=True)
    # It looks for tensors of the device's type, which `as_cuda` cannot make "cuda".
    loader.device = torch.device(torch.accelerator.current_accelerator())
    return loader


def _nodes(data: Any, device: str) -> Iterator[Any]:
    from torchdata.nodes import IterableWrapper, Loader, PinMemory, Prefetcher

    nodes = Loader(Prefetcher(PinMemory(IterableWrapper(data)), prefetch_factor=2))
    return _plain_non_blocking(nodes, device)


def _prefetch_generator(data: Any, device: str) -> Iterator[Any]:
    from prefetch_generator import BackgroundGenerator

    return _plain_non_blocking(BackgroundGenerator(data, max_prefetch=2), device)


def _accelerate(non_blocking: bool) -> Open:
    def make(data: Any, device: str) -> Any:
        from accelerate.data_loader import prepare_data_loader

        return prepare_data_loader(
            data,
            device=torch.device(device),
            num_processes=1,
            process_index=0,
            put_on_device=True,
            non_blocking=non_blocking,
        )

    return make


def _lightning(data: Any, target: Any, step: Step, passes: int, after: Step) -> None:
    from lightning_run import train

    for number in range(passes):
        train(data, target, step)
        after(number)


_PIN = "pin_memory"
CONTENDERS = [
    Contender("sidestream", _looped(AsynchronousLoader), ours=True),
    Contender("plain loop", _looped(_plain, each=True)),
    Contender(
        f"plain loop, {_PIN}, non_blocking", _looped(_plain_non_blocking, each=True), pins=True
    ),
    Contender("forty lines by hand", _looped(prefetch, each=True)),
    Contender("Lighter 2019, retold", _looped(_lighter_2019, for_cuda=True, each=True), pins=True),
    Contender("Bolts 2020, retold", _looped(_bolts_2020, for_cuda=True, each=True)),
    Contender("timm PrefetchLoader", _looped(_timm, for_cuda=True), needs=("timm",)),
    Contender(f"timm, {_PIN}", _looped(_timm, for_cuda=True), pins=True, needs=("timm",)),
    Contender(
        "PyG PrefetchLoader",
        _looped(_pyg, for_cuda=True),
        needs=("torch_geometric", "torch-geometric"),
    ),
    Contender(
        f"torchtnt CudaDataPrefetcher, {_PIN}",
        _looped(_torchtnt, for_cuda=True),
        pins=True,
        needs=("torchtnt",),
    ),
    Contender(
        "SPDL transfer", _looped(_spdl, for_cuda=True, each=True), needs=("spdl.io", "spdl-core")
    ),
    Contender("Ray Train", _looped(_ray, for_cuda=True), needs=("ray",)),
    Contender(f"Ray Train, {_PIN}", _looped(_ray, for_cuda=True), pins=True, needs=("ray",)),
    Contender(
        "torchdata.nodes, non_blocking",
        _looped(_nodes, for_cuda=True, each=True),
        needs=("torchdata.nodes", "torchdata"),
    ),
    Contender(
        f"prefetch_generator, {_PIN}, non_blocking",
        _looped(_prefetch_generator, each=True),
        pins=True,
        needs=("prefetch_generator",),
    ),
    Contender("Accelerate", _looped(_accelerate(False)), needs=("accelerate",)),
    Contender(
        f"Accelerate, {_PIN}, non_blocking",
        _looped(_accelerate(True)),
        pins=True,
        needs=("accelerate",),
    ),
    Contender("Lightning Trainer", _lightning, needs=("lightning",)),
    Contender(f"Lightning Trainer, {_PIN}", _lightning, pins=True, needs=("lightning",)),
]

ABSENT = {
    "DALI": "its pipelines run on CUDA alone where they give batches on the device, and without "
    "it in the loop's own thread; the wheel has 200 MB",
    "FFCV": "reads its own file format only, and is built against OpenCV and libturbojpeg, which "
    "pip does not bring",
}
"""Loaders that are asked about and not measured here, with the reason."""


def present(names: str | None = None) -> tuple[list[Contender], dict[str, str]]:
    """The contenders that can run here, and for each other one the reason why not.

    Args:
        names: Take only those whose name contains one of these, separated by commas.
    """
    there, missing = [], dict(ABSENT)
    for contender in CONTENDERS:
        wanted = names is None or any(name in contender.name for name in names.split(","))
        if not wanted:
            continue
        if (
            contender.needs
            and importlib.util.find_spec(contender.needs[0].partition(".")[0]) is None
        ):
            missing[contender.name] = f"{contender.needs[-1]} is not installed"
        else:
            there.append(contender)
    return there, missing
