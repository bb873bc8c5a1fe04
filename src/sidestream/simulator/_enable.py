"""Makes device "sim" available: checks, compiles, registers. Once per process."""

from __future__ import annotations

import atexit
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from sidestream.simulator import _build, _device_module

SUPPORTED_TORCH = ("2.13", "2.14")
"""The torch releases (major.minor) that the simulator is tested on and accepts."""

DEVICES = 2
MEMORY_BYTES = 2 << 30
PINNED_BYTES = 4 << 30

_lock = threading.Lock()
_extension: Any = None


def enable(
    *, devices: int | None = None, memory_bytes: int | None = None, pinned_bytes: int | None = None
) -> None:
    """Make the simulated accelerator THE accelerator of this process, as device "sim".

    From here on tensors, streams, events, autograd, optimizers, page-locking and
    `torch.accelerator.*` work on it. The first call on a machine compiles the simulator
    (about half a minute on two cores); later processes load the result. There is no way back
    within the process. Enabling again is allowed and changes nothing.

    Args:
        devices: Number of devices, 1 to 16; by default 2, or what is enabled already.
        memory_bytes: Memory of each device [bytes]; by default 2 GiB, or what is enabled already.
            Only touched pages cost memory.
        pinned_bytes: Page-locked memory in all [bytes]; by default 4 GiB, or what is enabled
            already.

    Raises:
        RuntimeError: If another accelerator is in use, another backend has taken torch's place
            for external devices, this torch is not supported, the system is not Linux, or the
            simulator is enabled with other sizes.
        BuildError: If it cannot be compiled; the message says what is missing.
        ValueError: If a size is out of range.

    Threads:
        Any; concurrent calls wait for one another.
    """
    global _extension
    wanted = {"devices": devices, "memory_bytes": memory_bytes, "pinned_bytes": pinned_bytes}
    _check_sizes(wanted)
    with _lock:
        if _extension is not None:
            _check_same_sizes(wanted)
            return
        _check_platform()
        extension = _build.load()
        here = str(Path(__file__).parent) + "/"
        extension.set_internal_paths([here, str(Path(torch.__file__).parent) + "/"])
        extension.configure(
            devices or DEVICES, memory_bytes or MEMORY_BYTES, pinned_bytes or PINNED_BYTES
        )
        rename_privateuse1_backend("sim")
        torch._register_device_module("sim", _device_module.make(extension))  # type: ignore[no-untyped-call]
        generate_methods_for_privateuse1_backend(
            for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=True
        )
        atexit.register(extension.shutdown)
        _extension = extension


def is_enabled() -> bool:
    """Whether `enable` has made device "sim" available in this process."""
    return _extension is not None


def extension() -> Any:
    """The loaded extension.

    Raises:
        RuntimeError: If the simulator is not enabled.
    """
    if _extension is None:
        raise RuntimeError(
            "the simulated accelerator is not enabled in this process; call "
            "sidestream.simulator.enable() first"
        )
    return _extension


def _check_sizes(wanted: dict[str, int | None]) -> None:
    limits = {
        "devices": (1, 16),
        "memory_bytes": (1 << 20, 1 << 40),
        "pinned_bytes": (1 << 20, 1 << 40),
    }
    for name, value in wanted.items():
        low, high = limits[name]
        if value is not None and not low <= value <= high:
            raise ValueError(f"{name} must be {low} to {high}, got {value}")


def _check_same_sizes(wanted: dict[str, int | None]) -> None:
    in_force = dict(zip(wanted, _extension.sizes(), strict=True))
    for name, value in wanted.items():
        if value is not None and value != in_force[name]:
            raise RuntimeError(
                f"the simulator is enabled with {name}={in_force[name]} and cannot change to "
                f"{value}: sizes hold for the life of the process"
            )


def _check_platform() -> None:
    if sys.platform != "linux":
        raise RuntimeError(f"sidestream.simulator runs on Linux only, not on {sys.platform}")
    version = ".".join(torch.__version__.split(".")[:2])
    if version not in SUPPORTED_TORCH:
        raise RuntimeError(
            f"sidestream.simulator supports torch {', '.join(SUPPORTED_TORCH)}, not "
            f"{torch.__version__}: it is compiled against interfaces that change between releases"
        )
    backend = torch._C._get_privateuse1_backend_name()
    if backend != "privateuseone":
        raise RuntimeError(
            f"torch has one place for an external device, and the backend {backend!r} has taken "
            "it; enable the simulator in a process without that backend"
        )
    other = torch.accelerator.current_accelerator(check_available=True)
    if other is not None:
        raise RuntimeError(
            f"this process has an accelerator, {other.type!r}, and torch allows one; hide it (for "
            "CUDA: set CUDA_VISIBLE_DEVICES to the empty string before torch is imported)"
        )
