"""Race reports: what the detector found, as plain frozen objects. Knows no torch."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NoReturn


class Severity(enum.Enum):
    """How certain it is that values can be wrong."""

    ERROR = "error"
    """Two accesses in no order: on some machine, at some load, a wrong value."""
    WARNING = "warning"
    """Not wrong by itself, but only an event that happens to be queued later keeps it so."""


class RaceKind(enum.Enum):
    """What went unordered."""

    READ_BEFORE_COPY = "read before copy"
    """Memory is read that a transfer fills, and nothing orders the read after the transfer."""
    READ_BEFORE_WRITE = "read before write"
    """Memory is read that a kernel writes, and nothing orders the read after the kernel."""
    OVERWRITE_UNDER_READ = "overwrite under read"
    """Device memory is written, and nothing orders the write after an earlier read."""
    UNORDERED_WRITES = "unordered writes"
    """Memory is written twice in no order: either value may stay."""
    REUSE_UNDER_USE = "reuse under use"
    """Freed device memory is handed out again, not ordered after an earlier use of it."""
    PINNED_OVERWRITTEN = "page-locked memory overwritten"
    """Page-locked memory is written, by the host or a copy, while a copy may still read it."""
    HOST_READ_TOO_EARLY = "host read too early"
    """The host touches page-locked memory that a copy to the host may not have filled yet."""
    UNORDERED_FREE = "unordered free"
    """`strict` only: memory is freed, not ordered after a use of it. Whether it is reused in
    order depends on what is queued between the free and the reuse."""

    @property
    def severity(self) -> Severity:
        """`WARNING` for `UNORDERED_FREE`, `ERROR` for all others."""
        return Severity.WARNING if self is RaceKind.UNORDERED_FREE else Severity.ERROR


@dataclass(frozen=True)
class Access:
    """One of the two accesses of a race."""

    operation: str
    """Name of the operator ("aten::add"), copy ("copy h2d"), "reuse of freed memory", ..."""
    stream: tuple[int, int] | None
    """Device index and stream number (0: the default stream); None for the host."""
    begin: int
    """First byte touched [bytes from the start of the memory block]."""
    end: int
    """One past the last byte touched [bytes from the start of the memory block]."""
    writes: bool
    """Whether it writes."""
    line: str
    """The Python line, "file:line": the innermost frame outside torch and the simulator; for
    a kernel of a backward pass "backward of NODE"; "" if unknown or `python_lines` is off."""

    def __str__(self) -> str:
        where = "the host" if self.stream is None else "sim:{}/stream{}".format(*self.stream)
        text = f"{self.operation!r} on {where}, bytes {self.begin} to {self.end}"
        return f"{text}, at {self.line}" if self.line else text


@dataclass(frozen=True)
class Race:
    """Two accesses to the same bytes that nothing orders, at least one of them a write."""

    kind: RaceKind
    """What went unordered."""
    pinned: bool
    """Whether the memory is page-locked host memory; else it is device memory."""
    block_bytes: int
    """Size of the memory block, as requested [bytes]."""
    first: Access
    """The access that was enqueued first."""
    second: Access
    """The access that was enqueued later, without being ordered after the first."""
    freed_at: str
    """For `REUSE_UNDER_USE`, the Python line where the memory had been freed; else ""."""

    @property
    def severity(self) -> Severity:
        """That of its kind."""
        return self.kind.severity

    def __str__(self) -> str:
        memory = "page-locked memory" if self.pinned else "device memory"
        text = (
            f"{self.severity.value}: {self.kind.value} in {self.block_bytes} bytes of {memory}:\n"
            f"  {self.second}\n  is not ordered after\n  {self.first}"
        )
        return f"{text}\n  (freed at {self.freed_at})" if self.freed_at else text


class RaceError(RuntimeError):
    """Raised by `raise_on_race` at the Python line of the second access.

    Attributes:
        race: The report.
    """

    def __init__(self, race: Race) -> None:
        super().__init__(f"data race: {race}")
        self.race = race

    def __reduce__(self) -> tuple[type[RaceError], tuple[Race]]:
        return type(self), (self.race,)


_KINDS = tuple(RaceKind)  # in the order of the extension's numbers


def from_extension(found: tuple[Any, ...]) -> Race:
    """Make a report of what the extension hands over."""
    kind, pinned, block_bytes, first, second, freed_at = found
    return Race(_KINDS[kind], pinned, block_bytes, Access(*first), Access(*second), freed_at)


def raise_error(found: tuple[Any, ...]) -> NoReturn:
    """Raise the error of one report. Called by the extension."""
    raise RaceError(from_extension(found))
