"""The accelerator seam: the only module that knows how backends and torch versions differ.

Everything else speaks of a `torch.device` and of what this module returns. The generic interfaces
`torch.accelerator`, `torch.Stream` and `torch.Event` do the work wherever they exist.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

HOST = torch.device("cpu")
_ALWAYS_THERE = ("cpu", "meta")
_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


# ---- which device


def parse(device: torch.device | str | int | None) -> torch.device | None:
    """Check a device argument without touching any device.

    Returns:
        The device, with an index only if one was given; None for None.

    Raises:
        ValueError: If the device is not there or not understood; names those that are.
        TypeError: If it is no device at all.
    """
    if device is None:
        return None
    if isinstance(device, bool) or not isinstance(device, (torch.device, str, int)):
        raise TypeError(
            f"device must be a torch.device, a string, an index or None, got {device!r}"
        )
    kind = accelerator_type()
    if isinstance(device, int):
        if kind is None:
            raise ValueError(f"device {device} is not there: no accelerator is; {_there()}")
        device = f"{kind}:{device}"
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device {device!r} is not understood; {_there()}") from error
    if parsed.type not in _ALWAYS_THERE and (parsed.index or 0) >= _count(parsed.type):
        build = "" if _count(parsed.type) else f" for this torch ({torch.__version__})"
        raise ValueError(f"device {str(device)!r} is not there{build}; {_there()}")
    return parsed


def resolve(device: torch.device | None) -> torch.device:
    """Fill in what `parse` left open, from what is current in the calling thread."""
    if device is None:
        kind = accelerator_type()
        device = HOST if kind is None else torch.device(kind)
    if device.type in _ALWAYS_THERE or device.index is not None:
        return device
    if device.type == accelerator_type():
        return torch.device(device.type, torch.accelerator.current_device_index())
    return torch.device(device.type, torch.get_device_module(device).current_device())


def has_streams(device: torch.device) -> bool:
    """Whether copies can run beside computation, ordered by streams and events."""
    if device.type in (*_ALWAYS_THERE, "mps") or device.type != accelerator_type():
        return False
    with contextlib.suppress(RuntimeError):
        torch.Stream(device=device)
        return True
    return False


def accelerator_type() -> str | None:
    """The type of the accelerator that is there; None if there is none."""
    # Asked first: torch 2.6 raises where there is none, and later builds for CUDA say "cuda".
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if found is None else found.type


def default_device() -> torch.device:
    """The default device of the calling thread, whichever way it was set."""
    # Before 2.8 it sees no `with torch.device(...)`, and in 2.6 it fails after one was unset.
    return torch.get_default_device() if _TORCH >= (2, 8) else torch.empty(0).device


def _count(kind: str) -> int:
    """How many devices of a type there are, asked without creating a context on any."""
    try:
        module: Any = torch.get_device_module(kind)
    except (RuntimeError, AttributeError):
        return 0
    if not getattr(module, "is_available", bool)():
        return 0
    return int(getattr(module, "device_count", lambda: 1)())


def _there() -> str:
    kind = accelerator_type()
    count = _count(kind) if kind is not None else 0
    names = ", ".join(['"cpu"', *(f'"{kind}:{index}"' for index in range(count))])
    return f"there is {names}; leave device out to take the current one"


# ---- streams and events


def new_stream(device: torch.device) -> torch.Stream:
    """A stream of the device, to be kept: each new one strands the blocks cached for it (H6)."""
    return torch.Stream(device=device)


def keeps_time(stream: torch.Stream) -> bool:
    """Whether events of the stream's device can tell the time between two of them."""
    with contextlib.suppress(RuntimeError):
        torch.Event(device=stream.device, enable_timing=True).record(stream)
        return True
    return False


def current_stream(device: torch.device) -> torch.Stream:
    """The stream that is current in the calling thread."""
    return torch.accelerator.current_stream(device)


@contextlib.contextmanager
def using(stream: torch.Stream) -> Iterator[None]:
    """Make a stream the current one of its device in this thread, for a while.

    The current device stays what it was: setting a stream would change it.
    """
    index = torch.accelerator.current_device_index()
    outer = torch.accelerator.current_stream(stream.device)
    _set_stream(stream, index)
    try:
        yield
    finally:
        _set_stream(outer, index)


def _set_stream(stream: torch.Stream, index: int) -> None:
    torch.accelerator.set_stream(stream)
    if torch.accelerator.current_device_index() != index:
        torch.accelerator.set_device_index(index)


# ---- memory


def pinned_bytes(size_bytes: int) -> torch.Tensor:
    """Page-locked host memory of shape `(size_bytes,)`, uint8, usable in any autograd mode.

    Where the system refuses it, during graph capture (H11) or for want of memory, it is ordinary
    memory, and a warning says so: copies from there are right, but slow and not in the background.
    """
    with torch.inference_mode(False):
        try:
            return torch.empty(size_bytes, dtype=torch.uint8, device=HOST, pin_memory=True)
        except RuntimeError as error:
            warnings.warn(
                f"page-locked memory was refused ({error}); {size_bytes} bytes of staging memory "
                "are pageable instead, and copies from there are slower",
                RuntimeWarning,
                stacklevel=2,
            )
            return torch.empty(size_bytes, dtype=torch.uint8, device=HOST)


def _use_count_function() -> Callable[[int], int] | None:
    """Find the use count of a storage, and show on the spot that it means what we need."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    if count is None:
        return None
    tensor = torch.empty(1, device=HOST)
    storage = tensor.untyped_storage()
    alias = tensor.data  # a view would keep its base
    held = count(storage._cdata)
    del tensor
    by_alias = count(storage._cdata)
    del alias
    alone = count(storage._cdata)
    return count if (held, by_alias, alone) == (3, 2, 1) else None


_use_count = _use_count_function()

CAN_TELL_HOLDERS = _use_count is not None
"""Whether `is_held` can be asked; without it memory is released through `record_stream`."""


def is_held(holder: list[torch.UntypedStorage]) -> bool:
    """Whether anybody but this list, the caller's own, still holds the storage in it.

    Tensors, views and autograd graphs count through the storage's use count, and the storage
    object itself through its reference count.

    Source:
        The use count is no public interface of torch. `_use_count_function` checks its meaning
        at import, and a test fails loudly where it changes.
    """
    assert _use_count is not None
    return _use_count(holder[0]._cdata) > 1 or _references(holder) > _REFERENCES_ALONE


def _references(holder: list[torch.UntypedStorage]) -> int:
    return sys.getrefcount(holder[0])


# Measured and not written down: how many references a call itself holds differs between Pythons.
_REFERENCES_ALONE = _references([torch.empty(1, device=HOST).untyped_storage()])
