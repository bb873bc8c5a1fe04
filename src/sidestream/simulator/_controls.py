"""Settings, delays, counters and memory statistics of the simulator."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from sidestream.simulator._enable import extension
from sidestream.simulator._races import Race, from_extension

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What can be changed while the simulator runs.

    Durations are those of simulated time; they apply to what is enqueued while they are set.
    """

    h2d_bytes_per_s: float = math.inf
    """Bandwidth from host to device [bytes/s]."""
    d2h_bytes_per_s: float = math.inf
    """Bandwidth from device to host [bytes/s]."""
    d2d_bytes_per_s: float = math.inf
    """Bandwidth of copies on and between devices [bytes/s]."""
    copy_s: float = 0.0
    """Fixed time of each copy [s]."""
    kernel_s: float = 0.0
    """Time of each kernel [s]."""
    operator_s: Mapping[str, float] = field(default_factory=dict)
    """Times of single operators by name ("aten::mm"), in place of `kernel_s` [s]."""
    memory_bytes: int | None = None
    """Capacity of each device, at most what `enable` mapped (None: all of it) [bytes]."""
    pinned_bytes: int | None = None
    """Capacity of page-locked memory, at most what `enable` mapped (None: all of it) [bytes]."""
    detect_races: bool = True
    """Judge every access. Off, only the values tell."""
    strict: bool = False
    """Also report memory that is freed without being ordered after its uses, as
    `RaceKind.UNORDERED_FREE`."""
    raise_on_race: bool = False
    """Raise `RaceError` at the Python line of the second access. A race found while memory is
    freed or by the host guard is raised at this thread's next operation on the device."""
    nan_on_race: bool = False
    """Overwrite the result of a racy operation with 0xFF bytes, NaN in floating types."""
    python_lines: bool = True
    """Note the Python line of every access. Costs about a microsecond an operation."""
    guard_host: bool = True
    """Keep the host off page-locked memory that a copy is using."""
    poison_memory: bool = True
    """Fill new, reused and freed page-locked memory with 0xFF bytes, so that what is read before
    it was written is NaN."""
    poison_copies: bool = True
    """Fill the destination of an asynchronous copy with 0xFF bytes while the copy runs."""


_current = Settings()


def current_settings() -> Settings:
    """The settings in force."""
    return _current


def configure(**changes: Any) -> Settings:
    """Change settings until they are changed again.

    Args:
        **changes: Fields of `Settings`.

    Returns:
        The settings before.

    Raises:
        TypeError: If a name is not a field of `Settings`.
        ValueError: If a value is out of range; nothing is changed then.

    Threads:
        Settings hold for all threads; change them from one.
    """
    names = {f.name for f in fields(Settings)}
    unknown = sorted(set(changes) - names)
    if unknown:
        raise TypeError(
            f"no such setting: {', '.join(unknown)}; there are {', '.join(sorted(names))}"
        )
    before = _current
    _apply(replace(before, **changes))
    return before


@contextlib.contextmanager
def settings(**changes: Any) -> Iterator[Settings]:
    """Change settings for a block, and put back all that were in force before it.

    Args:
        **changes: Fields of `Settings`.

    Yields:
        The settings in force in the block.

    Raises:
        TypeError: If a name is not a field of `Settings`.
        ValueError: If a value is out of range.
    """
    before = configure(**changes)
    try:
        yield _current
    finally:
        _apply(before)


def _apply(new: Settings) -> None:
    global _current
    ext = extension()
    values = _checked_values(new, *ext.sizes()[1:])
    for name, value in values.items():
        ext.set_setting(name, value)
    for name in _current.operator_s.keys() - new.operator_s.keys():
        ext.set_operator_time(name, -1.0)
    for name, seconds in new.operator_s.items():
        ext.set_operator_time(name, float(seconds))
    _current = new


def _checked_values(new: Settings, memory_bytes: int, pinned_bytes: int) -> dict[str, float]:
    values = {f.name: getattr(new, f.name) for f in fields(Settings)}
    for name, seconds in values.pop("operator_s").items():
        if not 0 <= seconds < math.inf:
            raise ValueError(
                f"operator_s[{name!r}] must be 0 or more and finite [s], got {seconds}"
            )
    for name, most in (("memory_bytes", memory_bytes), ("pinned_bytes", pinned_bytes)):
        if values[name] is None:
            values[name] = most
        elif not 0 < values[name] <= most:
            raise ValueError(
                f"{name} must be 1 to {most}, which enable() mapped, got {values[name]}"
            )
    for name, value in values.items():
        if name.endswith("_per_s") and not value > 0:
            raise ValueError(f"{name} must be above 0 [bytes/s], got {value}")
        if name.endswith("_s") and not name.endswith("_per_s") and not 0 <= value < math.inf:
            raise ValueError(f"{name} must be 0 or more and finite [s], got {value}")
    return {name: float(value) for name, value in values.items()}


def races(*, clear: bool = True) -> list[Race]:
    """The races found so far, in the order in which they were found.

    An access that conflicts with several earlier ones is reported once, with the latest of them.

    Args:
        clear: Whether to forget them.
    """
    return [from_extension(found) for found in extension().races(clear)]


def delay(seconds: float, *, device: int | None = None) -> None:
    """Enqueue a kernel that takes `seconds` and touches no memory, on the current stream.

    Args:
        seconds: Simulated duration [s], 0 or more.
        device: Index of the device whose current stream is meant; by default the current one.

    Raises:
        ValueError: If `seconds` is negative or not finite.
    """
    if not 0 <= seconds < math.inf:
        raise ValueError(f"seconds must be 0 or more and finite [s], got {seconds}")
    extension().delay(float(seconds), -1 if device is None else device)


def virtual_time(event: torch.Event) -> float:
    """When an event's latest recording was reached, in virtual time [s].

    The zero is arbitrary: subtract two. For events with `enable_timing=True` the difference is
    `elapsed_time`, which is in milliseconds.

    Raises:
        RuntimeError: If the event has not been recorded, or not been reached yet.
    """
    return float(extension().event_time_ns(event.event_id or 0)) / 1e9


def operation_counts(*, clear: bool = False) -> dict[str, int]:
    """How often each operation was enqueued, since the start or the last clearing.

    Operators go by their full name ("aten::mm"); others are "copy h2d", "copy d2h" (each with
    " pageable" appended where the host memory is not page-locked), "copy d2d", "copy peer",
    "delay", "event record" and "event wait". An operator that had to wait for the device and run
    on the CPU is counted as "synchronous: NAME".

    Args:
        clear: Whether to start again at zero.
    """
    return dict(extension().operation_counts(clear))


@dataclass(frozen=True)
class PinnedMemory:
    """Statistics of page-locked memory."""

    bytes: int
    """In use now, as requested [bytes]."""
    peak_bytes: int
    """The most that was in use at once, as requested [bytes]."""
    reserved_bytes: int
    """Taken from the system now: rounded to powers of two, free blocks included [bytes]."""
    peak_reserved_bytes: int
    """The most that was reserved at once [bytes]."""
    allocations: int
    """Blocks in use now."""
    total_allocations: int
    """Blocks handed out since the start."""
    total_reservations: int
    """Of these, how many were not served from free blocks. On a real device each such call
    takes a fraction of a millisecond and may wait for the device: a loop should add none."""


def pinned_memory(*, reset_peaks: bool = False) -> PinnedMemory:
    """Statistics of page-locked memory.

    Args:
        reset_peaks: Whether the peaks start afresh from what is held now.
    """
    return PinnedMemory(*extension().pinned_memory(reset_peaks))
