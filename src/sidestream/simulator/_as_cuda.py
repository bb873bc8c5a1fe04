"""Lets code written for CUDA alone run on the simulated device, unchanged.

Names of `torch.cuda` and, where torch takes a device, the device "cuda" are made to mean the
simulated device. Attributes are replaced for the time of a context, so that all threads see them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

import torch

from sidestream.simulator._controls import virtual_time
from sidestream.simulator._enable import extension

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_lock = threading.Lock()
_entered = 0
_undo = contextlib.ExitStack()

_FACTORIES = [
    "arange",
    "as_tensor",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "tensor",
    "zeros",
    "zeros_like",
]


@contextlib.contextmanager
def as_cuda() -> Iterator[None]:
    """Make CUDA's stream interface mean the simulated device, for the time of the context.

    Replaced are, in `torch.cuda`: `Stream`, `Event`, `stream`, `StreamContext`, `current_stream`,
    `default_stream`, `set_stream`, `synchronize`, `is_available`, `is_initialized`, `init`,
    `device_count`, `device`, `set_device`, `current_device`, `is_current_stream_capturing`, the
    memory functions and seeds. The device "cuda", as a string or a `torch.device`, is taken as
    "sim" by `Tensor.to`, `Tensor.cuda`, `Tensor.pin_memory`, `Tensor.is_pinned`, `Module.to`,
    `Module.cuda`, factories such as `torch.zeros(device=...)`, `torch.autocast` and
    `torch.amp.GradScaler`. `Tensor.is_cuda` is true for tensors on "sim".

    Not replaced: `tensor.device.type`, which stays "sim"; `with torch.device("cuda")`; graphs;
    names that were imported from torch before the context was entered.

    Contexts may be nested and used by several threads; the last one to leave puts everything
    back, also after an exception.

    Raises:
        RuntimeError: If the simulator is not enabled, or CUDA is available.
    """
    global _entered
    extension()
    with _lock:
        if _entered == 0:
            _replace_all()
        _entered += 1
    try:
        yield
    finally:
        with _lock:
            _entered -= 1
            if _entered == 0:
                _undo.close()


def _replace_all() -> None:
    with contextlib.ExitStack() as stack:
        for owner, name, value in _replacements():
            stack.callback(_restore, owner, name, vars(owner).get(name, _restore))
            setattr(owner, name, value)
        _undo.push(stack.pop_all())


def _restore(owner: Any, name: str, before: Any) -> None:
    if before is _restore:  # it was inherited, or not there
        delattr(owner, name)
    else:
        setattr(owner, name, before)


def _as_sim(device: Any) -> Any:
    if isinstance(device, str) and device.partition(":")[0] == "cuda":
        return "sim" + device[len("cuda") :]
    if isinstance(device, torch.device) and device.type == "cuda":
        return torch.device(str(device).replace("cuda", "sim", 1))
    return device


def _index(device: Any) -> int:
    """The index that CUDA's functions would take `device` for."""
    if device is None:
        return int(extension().current_device())
    if isinstance(device, int):
        return device if device >= 0 else int(extension().current_device())
    index: Any = torch.device(_as_sim(device)).index  # None for a device without index
    return int(extension().current_device()) if index is None else index


class Stream(torch.Stream):
    """Stands for `torch.cuda.Stream`."""

    def __new__(cls, device: Any = None, priority: int = 0, **identity: Any) -> Stream:
        if identity:
            return super().__new__(cls, **identity)
        return super().__new__(cls, torch.device("sim", _index(device)), priority=priority)

    @property
    def cuda_stream(self) -> int:
        """The native handle."""
        return int(self.native_handle)  # type: ignore[attr-defined]

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Record an event, a new one by default."""
        if event is None:
            event = Event()
        event.record(self)
        return event


class Event(torch.Event):
    """Stands for `torch.cuda.Event`."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Event:
        if interprocess:
            raise RuntimeError("the simulated device has no interprocess events")
        event = super().__new__(cls, "sim", enable_timing=enable_timing, blocking=blocking)
        event.timing = enable_timing
        return event

    timing: bool

    def elapsed_time(self, other: Event) -> float:  # type: ignore[override]
        """Virtual time from this event to `other` [ms]; torch's takes no subclass of its own."""
        if not (self.timing and other.timing):
            raise RuntimeError("both events must be created with enable_timing=True")
        return (virtual_time(other) - virtual_time(self)) * 1e3


class StreamContext:
    """Stands for `torch.cuda.StreamContext`: selects a stream; None selects nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*error)


class _Device(torch.accelerator.device_index):
    def __init__(self, device: Any) -> None:
        super().__init__(_index(device))


def _own(stream: torch.Stream) -> Stream:
    return Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def _default_stream(device: Any = None) -> Stream:
    of_device = torch.accelerator.current_stream(_index(device))
    return Stream(
        stream_id=0, device_index=of_device.device_index, device_type=of_device.device_type
    )


def _set_stream(stream: torch.Stream | None) -> None:
    if stream is not None:
        torch.accelerator.set_stream(stream)


def _of_cuda() -> dict[str, Any]:
    accelerator = torch.accelerator
    names: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "StreamContext": StreamContext,
        "stream": StreamContext,
        "current_stream": lambda device=None: _own(accelerator.current_stream(_index(device))),
        "default_stream": _default_stream,
        "set_stream": _set_stream,
        "synchronize": lambda device=None: accelerator.synchronize(_index(device)),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "device_count": lambda: accelerator.device_count(),
        "device": _Device,
        "set_device": lambda device: accelerator.set_device_index(_index(device)),
        "current_device": lambda: accelerator.current_device_index(),
        "is_current_stream_capturing": lambda: False,
        "empty_cache": lambda: accelerator.empty_cache(),
        "get_device_name": lambda device=None: "simulated accelerator",
        "mem_get_info": lambda device=None: accelerator.get_memory_info(_index(device)),
        "manual_seed": torch.sim.manual_seed,  # type: ignore[attr-defined]
        "manual_seed_all": torch.sim.manual_seed_all,  # type: ignore[attr-defined]
    }
    for name in [
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "memory_stats",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
    ]:
        function = getattr(accelerator, name)
        names[name] = lambda device=None, function=function: function(_index(device))
    return names


def _with_device(function: Callable[..., Any], position: int | None = None) -> Callable[..., Any]:
    """Wrap a function that takes a device as `device=`, or as the argument at a position."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = _as_sim(kwargs["device"])
        if position is not None and len(args) > position:
            args = (*args[:position], _as_sim(args[position]), *args[position + 1 :])
        return function(*args, **kwargs)

    return wrapped


def _subclass(base: type, parameter: str) -> type:
    """A class that takes "cuda" for "sim" in its first parameter."""

    class Mapped(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if parameter in kwargs:
                kwargs[parameter] = _as_sim(kwargs[parameter])
            elif args:
                args = (_as_sim(args[0]), *args[1:])
            super().__init__(*args, **kwargs)

    Mapped.__name__ = base.__name__
    Mapped.__qualname__ = base.__qualname__
    return Mapped


def _cuda(self: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
    return self.to(torch.device("sim", _index(device)), *args, **kwargs)


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    tensor, cuda = torch.Tensor, torch.cuda
    if cuda.is_available():
        raise RuntimeError("CUDA is available in this process: as_cuda() would hide it")
    for name, value in _of_cuda().items():
        yield cuda, name, value
    for name in ("Stream", "Event"):
        yield cuda.streams, name, getattr(cuda, name)
    for name in _FACTORIES:
        yield torch, name, _with_device(getattr(torch, name))
    for name in ("to", "pin_memory", "is_pinned"):
        yield tensor, name, _with_device(getattr(tensor, name), position=1)
    yield tensor, "cuda", _cuda
    yield tensor, "is_cuda", property(lambda self: self.device.type in ("cuda", "sim"))
    autocast = _subclass(torch.autocast, "device_type")
    yield torch, "autocast", autocast
    yield torch.amp, "autocast", autocast
    yield torch.amp, "GradScaler", _subclass(torch.amp.GradScaler, "device")
